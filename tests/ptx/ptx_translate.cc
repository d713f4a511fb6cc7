/*
 * PTX to C++: a function for each kernel, whose registers are its variables, whose labels are
 * labels, and whose instructions are statements that call ptx_thread.h. A program:
 *
 *   ptx_translate [--strict] [-o FILE.cc] FILE.ptx NAME
 *
 * What it does not know does not stop it: a line on stderr says so, and the statement ends the
 * program should it be reached; with --strict nothing is written.
 *
 * Registers begin as bits of ones, NaN, so that what is used before it is set is seen. Instructions
 * that name no rounding (mul.f32, add.f32) may be contracted by ptxas, so that their result is not
 * known from PTX: they are rounded to nearest here, and a line on stderr says how many there are;
 * --strict takes none.
 */
#include <ctype.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace {

using std::string;
using strings_t = std::vector<string>;

string print(const char *format, ...) __attribute__((format(printf, 1, 2)));
string print(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(NULL, 0, format, arguments);
    va_end(arguments);
    string text((size_t)length + 1, 0);
    va_start(arguments, format);
    vsnprintf(&text[0], text.size(), format, arguments);
    va_end(arguments);
    text.resize((size_t)length);
    return text;
}

[[noreturn]] void fail(const string &why) {
    fprintf(stderr, "ptx_translate: %s\n", why.c_str());
    exit(1);
}

bool begins_with(const string &text, const char *with) {
    return text.compare(0, strlen(with), with) == 0;
}

/* With one blank wherever there were some, and none at the ends. */
string trimmed(const string &text) {
    string result;
    for (char c : text) {
        if (!isspace((unsigned char)c))
            result += c;
        else if (!result.empty() && result.back() != ' ')
            result += ' ';
    }
    if (!result.empty() && result.back() == ' ')
        result.pop_back();
    return result;
}

/* At commas, or another character, that stand in no brackets. */
strings_t split(const string &text, char at) {
    strings_t parts;
    string part;
    int depth = 0;
    for (char c : text) {
        depth += (strchr("{[(", c) != NULL) - (strchr("}])", c) != NULL);
        if (c == at && depth == 0) {
            parts.push_back(trimmed(part));
            part.clear();
        } else {
            part += c;
        }
    }
    part = trimmed(part);
    if (!part.empty() || !parts.empty())
        parts.push_back(part);
    return parts;
}

string joined(const strings_t &parts, const char *with) {
    string text;
    for (const string &part : parts)
        text += (text.empty() ? "" : with) + part;
    return text;
}

/* What may be part of a C++ name. */
string name_of(const string &text) {
    string name;
    for (char c : text)
        name += isalnum((unsigned char)c) ? c : '_';
    return name;
}

string quoted(const string &text) {
    string result = "\"";
    for (char c : text)
        result += c == '"' || c == '\\' ? string("\\") + c : string(1, c);
    return result + "\"";
}

/* ---- statements ------------------------------------------------------------------------------ */

struct place_t {
    int file = 0, line = 0;
};

/* What stands before a semicolon, a colon, the end of its line, or is a brace. */
struct statement_t {
    enum { INSTRUCTION, LABEL, DIRECTIVE, OPEN, CLOSE } kind;
    string text;
    int ptx_line;
    place_t source, caller; /* the last .loc's, and where that was inlined */
};

string without_comments(string text) {
    for (size_t i = 0; i < text.size(); i++) {
        if (text[i] == '"') {
            i = std::min(text.find('"', i + 1), text.size());
        } else if (text.compare(i, 2, "//") == 0) {
            for (; i < text.size() && text[i] != '\n'; i++)
                text[i] = ' ';
        } else if (text.compare(i, 2, "/*") == 0) {
            size_t end = std::min(text.find("*/", i + 2), text.size() - 2) + 2;
            for (; i < end; i++)
                text[i] = text[i] == '\n' ? '\n' : ' ';
        }
    }
    return text;
}

bool is_word(char c) {
    return isalnum((unsigned char)c) || c == '_' || c == '$' || c == '%' || c == '.';
}

/* Directives that end with their line. */
bool ends_with_line(const string &text, size_t at) {
    static const char *const names[] = {".loc",          ".file",     ".version",      ".target",
                                        ".address_size", ".maxntid",  ".minnctapersm", ".reqntid",
                                        ".maxnreg",      ".noreturn", ".maxnctapersm"};
    for (const char *name : names)
        if (text.compare(at, strlen(name), name) == 0 && !is_word(text[at + strlen(name)]))
            return true;
    return false;
}

struct reader_t {
    string text;
    size_t at = 0;
    int line = 1;
    place_t source, caller;
    std::vector<statement_t> statements;
    std::map<int, string> files;

    void skip(size_t to) {
        for (; at < to && at < text.size(); at++)
            line += text[at] == '\n';
    }
    void skip_blanks() {
        size_t to = at;
        while (to < text.size() && isspace((unsigned char)text[to]))
            to++;
        skip(to);
    }
    /* Up to the first of these characters that stands in no brackets and no quotes. */
    string take_until(const char *ends) {
        size_t to = at;
        int depth = 0;
        for (; to < text.size(); to++) {
            if (text[to] == '"')
                to = std::min(text.find('"', to + 1), text.size() - 1);
            else if (depth == 0 && strchr(ends, text[to]) != NULL)
                break;
            depth += (strchr("{[(", text[to]) != NULL) - (strchr("}])", text[to]) != NULL);
        }
        string taken = text.substr(at, to - at);
        skip(to);
        return taken;
    }
    void add(decltype(statement_t::kind) kind, const string &what, int ptx_line) {
        statements.push_back({kind, trimmed(what), ptx_line, source, caller});
    }

    void read_loc(const string &loc) {
        size_t inlined = loc.find("inlined_at");
        source = caller = {};
        sscanf(loc.c_str(), ".loc %d %d", &source.file, &source.line);
        if (inlined != string::npos)
            sscanf(loc.c_str() + inlined, "inlined_at %d %d", &caller.file, &caller.line);
    }
    void read_file(const string &directive) {
        int number = 0;
        size_t from = directive.find('"'), to = directive.find('"', from + 1);
        if (sscanf(directive.c_str(), ".file %d", &number) == 1 && to != string::npos)
            files[number] = directive.substr(from + 1, to - from - 1);
    }
    void read_line_directive() {
        int ptx_line = line;
        string directive = take_until("\n");
        if (begins_with(directive, ".loc"))
            read_loc(directive);
        else if (begins_with(directive, ".file"))
            read_file(directive);
        else
            add(statement_t::DIRECTIVE, directive, ptx_line);
    }
    void read_section() {
        take_until("{");
        skip(std::min(text.find('}', at), text.size()) + 1);
    }
    /* .entry with its parameters; what else ends with a semicolon. */
    void read_directive() {
        int ptx_line = line;
        if (text.compare(at, 8, ".section") == 0) {
            read_section();
            return;
        }
        string directive;
        do { /* a parameter list has a line of its own, a body follows; others end here */
            directive += take_until(";{\n=");
            bool is_kernel = directive.find(".entry") != string::npos;
            if (is_kernel && directive.find(')') != string::npos)
                break;
            if (at < text.size() && text[at] == '{' && is_kernel)
                break;
            if (at < text.size() && (text[at] == ';' || text[at] == '{' || text[at] == '=')) {
                directive += take_until(";");
                skip(at + 1);
                break;
            }
            directive += ' ';
            skip(at + 1);
        } while (at < text.size());
        add(statement_t::DIRECTIVE, directive, ptx_line);
    }
    void read_instruction() {
        int ptx_line = line;
        size_t word_end = at;
        while (word_end < text.size() && is_word(text[word_end]))
            word_end++;
        if (word_end < text.size() && word_end > at && text[word_end] == ':' &&
            text[word_end + 1] != ':') {
            add(statement_t::LABEL, text.substr(at, word_end - at), ptx_line);
            skip(word_end + 1);
            return;
        }
        string instruction = take_until(";");
        if (at >= text.size())
            fail(print("line %d: no end of \"%s\"", ptx_line, trimmed(instruction).c_str()));
        skip(at + 1);
        add(statement_t::INSTRUCTION, instruction, ptx_line);
    }
    void read() {
        for (skip_blanks(); at < text.size(); skip_blanks()) {
            char c = text[at];
            if (c == ';') {
                skip(at + 1);
            } else if (c == '{' || c == '}') {
                add(c == '{' ? statement_t::OPEN : statement_t::CLOSE, string(1, c), line);
                skip(at + 1);
            } else if (ends_with_line(text, at)) {
                read_line_directive();
            } else if (c == '.') {
                read_directive();
            } else {
                read_instruction();
            }
        }
    }
};

/* ---- types ---------------------------------------------------------------------------------- */

/* An instruction this program does not know, or not with these qualifiers or operands. */
struct unknown_t {};

struct type_t {
    char kind; /* u, s, b, f, p (a predicate), h (bf16), x (two bf16) */
    unsigned bits;
    bool is_float() const {
        return kind == 'f';
    }
};

bool find_type(const string &name, type_t *type_p) {
    static const std::map<string, type_t> types = {
        {"u8", {'u', 8}},   {"u16", {'u', 16}},   {"u32", {'u', 32}},    {"u64", {'u', 64}},
        {"s8", {'s', 8}},   {"s16", {'s', 16}},   {"s32", {'s', 32}},    {"s64", {'s', 64}},
        {"b8", {'b', 8}},   {"b16", {'b', 16}},   {"b32", {'b', 32}},    {"b64", {'b', 64}},
        {"f32", {'f', 32}}, {"f64", {'f', 64}},   {"pred", {'p', 1}},    {"bf16", {'h', 16}},
        {"f16", {'b', 16}}, {"f16x2", {'b', 32}}, {"bf16x2", {'x', 32}},
    };
    auto found = types.find(name);
    if (found == types.end())
        return false;
    *type_p = found->second;
    return true;
}

/* The C++ type; unsigned but for s. */
string cpp(type_t type) {
    if (type.kind == 'p')
        return "bool";
    return print("%sint%u_t", type.kind == 's' ? "" : "u", type.bits);
}
string cpp_unsigned(unsigned bits) {
    return bits == 1 ? "bool" : print("uint%u_t", bits);
}

/* ---- kernels -------------------------------------------------------------------------------- */

struct variable_t {
    string name;
    size_t alignment = 1, size_bytes = 0;
    size_t offset = 0;
    bool is_dynamic = false; /* shared memory of a size that the launch says */
};

size_t rounded_up(size_t offset, size_t to) {
    return (offset + to - 1) / to * to;
}

struct kernel_t {
    string name;
    std::vector<variable_t> params;
    std::vector<statement_t> body;
    size_t params_bytes = 0, shared_bytes = 0;
    unsigned max_threads = 0;
    string code;
};

/* ".shared .align 4 .b8 name[32]", ".param .u64 .ptr .global .align 16 name". */
variable_t read_variable(const string &text) {
    variable_t variable;
    std::istringstream words(text);
    string word;
    type_t type = {'b', 8};
    bool is_aligned = false;
    while (words >> word) {
        if (word == ".align") {
            words >> variable.alignment;
            is_aligned = true;
        } else if (word[0] == '.') {
            find_type(word.substr(1), &type);
        } else {
            variable.name += word;
        }
    }
    if (text.find(".ptr") != string::npos || !is_aligned) /* .align is that of what it points to */
        variable.alignment = type.bits / 8;
    variable.size_bytes = type.bits / 8;
    size_t bracket = variable.name.find('[');
    if (bracket != string::npos) {
        string n_elems = variable.name.substr(bracket + 1, variable.name.find(']') - bracket - 1);
        variable.is_dynamic = n_elems.empty();
        variable.size_bytes *= strtoull(n_elems.c_str(), NULL, 0);
        variable.name.resize(bracket);
    }
    return variable;
}

struct instruction_t {
    string text, place;
    string guard; /* a C++ expression; empty: none */
    string op;
    strings_t mods, operands;

    bool take(const char *mod) {
        auto found = std::find(mods.begin(), mods.end(), mod);
        if (found == mods.end())
            return false;
        mods.erase(found);
        return true;
    }
    bool take_any(std::initializer_list<const char *> names) {
        bool is_there = false;
        for (const char *name : names)
            is_there = take(name) || is_there;
        return is_there;
    }
    type_t take_type() {
        type_t type;
        if (mods.empty() || !find_type(mods.back(), &type))
            throw unknown_t();
        mods.pop_back();
        return type;
    }
    const string &operand(size_t i) const {
        if (i >= operands.size())
            throw unknown_t();
        return operands[i];
    }
    void expect_operands(size_t least, size_t most) const {
        if (operands.size() < least || operands.size() > most)
            throw unknown_t();
    }
    string here() const {
        return quoted(place);
    }
};

/* Of all kernels of a file. */
struct totals_t {
    size_t n_unknown = 0, n_contractable = 0;
    strings_t barriers; /* their places */
};

const char *flag(bool is_set) {
    return is_set ? "true" : "false";
}

/* Translates a kernel's body. */
struct writer_t {
    kernel_t &kernel;
    const std::vector<variable_t> &module_shared;
    const std::map<int, string> &files;
    const string &module_name;
    totals_t &totals;

    std::vector<std::map<string, string>> scopes;   /* register: C++ name */
    std::vector<std::map<string, unsigned>> ranges; /* %r<100>: "%r" has 32 bits */
    std::map<string, unsigned> registers;           /* that are used: C++ name, bits */
    std::map<string, unsigned> named;               /* by C++ name: bits */
    std::map<string, variable_t> shared, local;
    size_t local_bytes = 0, n_scopes = 0;
    std::vector<size_t> scope_numbers;
    std::set<string> targets; /* of branches */
    string out;

    /* ---- registers and variables ---- */

    void declare_registers(const string &text) {
        std::istringstream words(text);
        string word, names;
        type_t type = {'b', 32};
        while (words >> word) {
            if (word[0] == '.')
                find_type(word.substr(1), &type);
            else
                names += word;
        }
        for (string &name : split(names, ',')) {
            size_t bracket = name.find('<');
            string bare = name.substr(0, bracket);
            if (bracket != string::npos)
                ranges.back()[bare] = type.bits;
            string variable = "r_" + name_of(bare[0] == '%' ? bare.substr(1) : bare);
            if (scope_numbers.back() != 0)
                variable += print("_in%zu", scope_numbers.back());
            if (bracket == string::npos) {
                scopes.back()[bare] = variable;
                named[variable] = type.bits;
            } else {
                scopes.back()[bare + "<"] = variable;
            }
        }
    }

    /* NULL where there is none of that name. */
    bool find_register(const string &name, string *variable_p, unsigned *bits_p) {
        size_t digits = name.size();
        while (digits > 0 && isdigit((unsigned char)name[digits - 1]))
            digits--;
        string family = name.substr(0, digits);
        for (size_t i = scopes.size(); i-- > 0;) {
            auto one = scopes[i].find(name);
            if (one != scopes[i].end()) {
                *variable_p = one->second;
                *bits_p = named[one->second];
            } else if (digits < name.size() && ranges[i].count(family) != 0) {
                *variable_p = scopes[i][family + "<"] + name.substr(digits);
                *bits_p = ranges[i][family];
            } else {
                continue;
            }
            registers[*variable_p] = *bits_p;
            return true;
        }
        return false;
    }

    /* Where static shared memory begins is settled as it is met; dynamic one is behind all. */
    void place_shared(variable_t variable) {
        if (!variable.is_dynamic) {
            variable.offset = rounded_up(kernel.shared_bytes, variable.alignment);
            kernel.shared_bytes = variable.offset + variable.size_bytes;
        }
        shared[variable.name] = variable;
    }
    void place_local(variable_t variable) {
        variable.offset = rounded_up(local_bytes, variable.alignment);
        local_bytes = variable.offset + variable.size_bytes;
        local[variable.name] = variable;
    }

    bool find_symbol(const string &name, uint64_t *address_p) {
        for (const variable_t &param : kernel.params)
            if (param.name == name) {
                *address_p = param.offset;
                return true;
            }
        if (shared.count(name) != 0) {
            const variable_t &variable = shared[name];
            *address_p =
                variable.is_dynamic ? rounded_up(kernel.shared_bytes, 16) : variable.offset;
            return true;
        }
        if (local.count(name) != 0) {
            *address_p = local[name].offset;
            return true;
        }
        return false;
    }

    /* ---- operands ---- */

    static string constant(uint64_t value, unsigned bits) {
        if (bits == 1)
            return value != 0 ? "true" : "false";
        if (bits < 64)
            value &= ((uint64_t)1 << bits) - 1;
        if (bits < 32)
            return print("(uint%u_t)0x%llxu", bits, (unsigned long long)value);
        return print("0x%llx%s", (unsigned long long)value, bits == 64 ? "ull" : "u");
    }

    static bool read_constant(const string &text, type_t type, uint64_t *value_p) {
        bool is_single = begins_with(text, "0f") || begins_with(text, "0F");
        bool is_double = begins_with(text, "0d") || begins_with(text, "0D");
        if (is_single || is_double) {
            if (text.size() != (is_single ? 10 : 18) || type.bits != (is_single ? 32 : 64))
                throw unknown_t();
            *value_p = strtoull(text.c_str() + 2, NULL, 16);
            return true;
        }
        string digits = text[0] == '-' ? text.substr(1) : text;
        if (digits.empty() || !isdigit((unsigned char)digits[0]))
            return false;
        char *end;
        bool is_binary = begins_with(digits, "0b") || begins_with(digits, "0B");
        uint64_t value = strtoull(digits.c_str() + (is_binary ? 2 : 0), &end, is_binary ? 2 : 0);
        if (*end == 'U')
            end++;
        if (*end != 0 || type.is_float())
            throw unknown_t();
        *value_p = text[0] == '-' ? 0 - value : value;
        return true;
    }

    static bool find_special(const string &name, string *expression_p) {
        static const std::map<string, string> specials = {
            {"%laneid", "emu_lane()"},
            {"%warpid", "(ptx::thread_in_block() / 32)"},
            {"%lanemask_eq", "(1u << emu_lane())"},
            {"%lanemask_lt", "((1u << emu_lane()) - 1)"},
            {"%lanemask_le", "((2u << emu_lane()) - 1)"},
            {"%lanemask_gt", "~((2u << emu_lane()) - 1)"},
            {"%lanemask_ge", "~((1u << emu_lane()) - 1)"},
            {"WARP_SZ", "32u"},
        };
        auto found = specials.find(name);
        if (found != specials.end()) {
            *expression_p = found->second;
            return true;
        }
        static const std::map<string, string> indices = {{"%tid", "thread"},
                                                         {"%ntid", "n_threads"},
                                                         {"%ctaid", "block"},
                                                         {"%nctaid", "n_blocks"}};
        size_t dot = name.find('.');
        auto index = indices.find(name.substr(0, dot));
        if (dot == string::npos || index == indices.end() || name.size() != dot + 2 ||
            strchr("xyz", name[dot + 1]) == NULL)
            return false;
        *expression_p = "emu_thread->" + index->second + name.substr(dot);
        return true;
    }

    /* What an instruction reads; `is_wider`: the register may have more bits than the type. */
    string source(const string &operand, type_t type, bool is_wider = false) {
        string variable, special;
        unsigned bits;
        uint64_t value;
        if (operand[0] == '!') {
            if (type.kind != 'p')
                throw unknown_t();
            return "!" + source(operand.substr(1), type);
        }
        if (find_register(operand, &variable, &bits)) {
            if (bits != type.bits && !(is_wider && bits > type.bits))
                throw unknown_t();
            return bits == type.bits ? variable : "(" + cpp_unsigned(type.bits) + ")" + variable;
        }
        if (find_special(operand, &special)) {
            if (type.bits != 32 && type.bits != 64)
                throw unknown_t();
            return special;
        }
        if (read_constant(operand, type, &value))
            return constant(value, type.bits);
        size_t plus = operand.find('+');
        if (find_symbol(trimmed(operand.substr(0, plus)), &value) && type.bits >= 32) {
            if (plus != string::npos)
                value += strtoull(operand.c_str() + plus + 1, NULL, 0);
            return constant(value, type.bits);
        }
        throw unknown_t();
    }

    /* An assignment to a register of at least so many bits, or to nothing. */
    string assignment(const string &operand, type_t type, const string &value,
                      bool is_wider = false) {
        string variable;
        unsigned bits;
        if (operand == "_")
            return "(void)(" + value + ");";
        if (!find_register(operand, &variable, &bits) ||
            (bits != type.bits && !(is_wider && bits > type.bits)))
            throw unknown_t();
        return variable + " = " + value + ";";
    }

    strings_t elements(const string &operand) {
        if (operand[0] != '{')
            return {operand};
        return split(operand.substr(1, operand.size() - 2), ',');
    }

    string call(const string &function, const strings_t &arguments) {
        return "ptx::" + function + "(" + joined(arguments, ", ") + ")";
    }

    /* d = function(a, b, ...), all of one type. */
    string unary_to_ternary(const instruction_t &i, type_t type, const string &function,
                            size_t n_sources) {
        i.expect_operands(n_sources + 1, n_sources + 1);
        strings_t arguments;
        for (size_t k = 1; k <= n_sources; k++)
            arguments.push_back(source(i.operand(k), type));
        return assignment(i.operand(0), type, call(function, arguments));
    }

    /* ---- arithmetic ---- */

    /* Which rounding is named; "" where none is. */
    static string take_rounding(instruction_t &i) {
        for (const char *name : {"rn", "rz", "rm", "rp"})
            if (i.take(name)) {
                string rounding = string("ptx::") + name;
                rounding[5] = 'R';
                rounding[6] = (char)toupper(rounding[6]);
                return rounding;
            }
        return "";
    }

    string float_arithmetic(instruction_t &i, type_t type, size_t n_sources) {
        string rounding = take_rounding(i), name = i.op == "mad" ? "fma" : i.op;
        bool is_flushed = i.take("ftz"), is_limited = i.take("sat");
        if (rounding.empty() && name == "fma")
            throw unknown_t();
        totals.n_contractable += rounding.empty();
        if (rounding.empty())
            rounding = "ptx::RN";
        if (type.bits == 32)
            name += print("_f32<%s, %s, %s>", rounding.c_str(), flag(is_flushed), flag(is_limited));
        else if (type.bits == 64 && rounding == "ptx::RN" && !is_flushed && !is_limited)
            name += "_f64";
        else
            throw unknown_t();
        return unary_to_ternary(i, type, name, n_sources);
    }

    string add_or_sub(instruction_t &i) {
        type_t type = i.take_type();
        if (type.is_float())
            return float_arithmetic(i, type, 2);
        if (type.kind == 'b')
            throw unknown_t();
        return unary_to_ternary(i, type, i.op + "<" + cpp(type) + ">", 2);
    }

    static type_t twice(type_t type) {
        if (type.bits > 32)
            throw unknown_t();
        return {type.kind, type.bits * 2};
    }

    string product(instruction_t &i, type_t type, string *function_p) {
        string a = source(i.operand(1), type), b = source(i.operand(2), type);
        if (i.take("wide")) {
            *function_p = "mul_wide";
            return "ptx::mul_wide<" + cpp(twice(type)) + ", " + cpp(type) + ">(" + a + ", " + b +
                   ")";
        }
        *function_p = i.take("lo") ? "mul_lo" : i.take("hi") ? "mul_hi" : "";
        if (function_p->empty())
            throw unknown_t();
        return call(*function_p + "<" + cpp(type) + ">", {a, b});
    }
    string mul(instruction_t &i) {
        type_t type = i.take_type();
        if (type.is_float())
            return float_arithmetic(i, type, 2);
        i.expect_operands(3, 3);
        string function, value = product(i, type, &function);
        return assignment(i.operand(0), function == "mul_wide" ? twice(type) : type, value);
    }
    string mad(instruction_t &i) {
        type_t type = i.take_type();
        if (type.is_float())
            return float_arithmetic(i, type, 3);
        i.expect_operands(4, 4);
        string function, value = product(i, type, &function);
        type_t of_sum = function == "mul_wide" ? twice(type) : type;
        value = call("add<" + cpp(of_sum) + ">", {value, source(i.operand(3), of_sum)});
        return assignment(i.operand(0), of_sum, value);
    }

    /* div, rcp, sqrt, rsqrt and what else is approximate. */
    string function_of_floats(instruction_t &i) {
        type_t type = i.take_type();
        size_t n_sources = i.op == "div" ? 2 : 1;
        if (!type.is_float())
            return unary_to_ternary(i, type, i.op + "<" + cpp(type) + ">", n_sources);
        bool is_flushed = i.take("ftz"), is_full = i.op == "div" && i.take("full");
        string function = i.op;
        if (is_full || i.take("approx")) {
            if (type.bits != 32)
                throw unknown_t();
            function += "_approx";
            if (i.op == "div")
                function += print("<%s, %s>", flag(is_flushed), flag(is_full));
            else if (i.op != "tanh")
                function += print("<%s>", flag(is_flushed));
        } else {
            static const std::set<string> exact = {"div", "rcp", "sqrt"};
            if (exact.count(i.op) == 0 || take_rounding(i) != "ptx::RN" ||
                (type.bits == 64 && is_flushed))
                throw unknown_t();
            function += type.bits == 32 ? print("_f32<%s>", flag(is_flushed)) : "_f64";
        }
        return unary_to_ternary(i, type, function, n_sources);
    }
    string div(instruction_t &i) {
        return function_of_floats(i);
    }
    string rem(instruction_t &i) {
        type_t type = i.take_type();
        return unary_to_ternary(i, type, "rem<" + cpp(type) + ">", 2);
    }
    string min_or_max(instruction_t &i) {
        type_t type = i.take_type();
        string function = i.op + "<" + cpp(type) + ">";
        if (type.is_float() && type.bits == 64) {
            function = i.op + "_f64";
        } else if (type.is_float()) {
            bool is_flushed = i.take("ftz");
            function = i.op + print("_f32<%s, %s>", flag(is_flushed), flag(i.take("NaN")));
        }
        return unary_to_ternary(i, type, function, 2);
    }
    string neg_or_abs(instruction_t &i) {
        type_t type = i.take_type();
        if (type.is_float())
            return unary_to_ternary(
                i, type, i.op + (type.bits == 64 ? "_f64" : print("_f32<%s>", flag(i.take("ftz")))),
                1);
        if (type.kind != 's')
            throw unknown_t();
        if (i.op == "abs")
            return unary_to_ternary(i, type, "abs<" + cpp(type) + ">", 1);
        i.expect_operands(2, 2);
        return assignment(i.operand(0), type,
                          call("sub<" + cpp(type) + ">", {"0", source(i.operand(1), type)}));
    }

    /* ---- bits ---- */

    string logic(instruction_t &i) {
        type_t type = i.take_type();
        if (type.kind != 'b' && type.kind != 'p')
            throw unknown_t();
        string a = source(i.operand(1), type), value;
        i.expect_operands(i.op == "not" || i.op == "cnot" ? 2 : 3, 3);
        if (i.op == "not")
            value = type.kind == 'p' ? "!" + a : "(" + cpp(type) + ")~" + a;
        else if (i.op == "cnot")
            value = a + " == 0";
        else
            value = "(" + cpp(type) + ")(" + a +
                    (i.op == "and"  ? " & "
                     : i.op == "or" ? " | "
                                    : " ^ ") +
                    source(i.operand(2), type) + ")";
        return assignment(i.operand(0), type, value);
    }
    string shift(instruction_t &i) {
        i.expect_operands(3, 3);
        type_t type = i.take_type();
        return assignment(i.operand(0), type,
                          call(i.op + "<" + cpp(type) + ">",
                               {source(i.operand(1), type), source(i.operand(2), {'u', 32})}));
    }
    string funnel(instruction_t &i) {
        i.expect_operands(4, 4);
        type_t type = i.take_type();
        bool is_left = i.take("l"), wraps = i.take("wrap");
        if (!is_left && !i.take("r"))
            throw unknown_t();
        if (!wraps && !i.take("clamp"))
            throw unknown_t();
        return assignment(i.operand(0), type,
                          call(is_left ? "shf_l" : "shf_r",
                               {source(i.operand(1), type), source(i.operand(2), type),
                                source(i.operand(3), {'u', 32}), flag(wraps)}));
    }
    string fields(instruction_t &i) {
        type_t type = i.take_type(), u32 = {'u', 32};
        size_t n_values = i.op == "bfi" ? 2 : 1;
        i.expect_operands(n_values + 3, n_values + 3);
        strings_t arguments;
        for (size_t k = 1; k < n_values + 3; k++)
            arguments.push_back(source(i.operand(k), k <= n_values ? type : u32));
        return assignment(i.operand(0), type, call(i.op + "<" + cpp(type) + ">", arguments));
    }
    /* popc and clz, whose result has 32 bits; brev. */
    string count(instruction_t &i) {
        i.expect_operands(2, 2);
        type_t type = i.take_type();
        return assignment(i.operand(0), i.op == "brev" ? type : type_t{'u', 32},
                          call(i.op + "<" + cpp(type) + ">", {source(i.operand(1), type)}));
    }
    string prmt(instruction_t &i) {
        return unary_to_ternary(i, i.take_type(), "prmt", 3);
    }
    string lop3(instruction_t &i) {
        return unary_to_ternary(i, i.take_type(), "lop3", 4);
    }

    /* ---- comparisons ---- */

    static string take_comparison(instruction_t &i, bool is_float, bool *is_unsigned_p) {
        static const std::map<string, string> all = {
            {"eq", "EQ"},   {"ne", "NE"},   {"lt", "LT"},   {"le", "LE"},   {"gt", "GT"},
            {"ge", "GE"},   {"lo", "LT"},   {"ls", "LE"},   {"hi", "GT"},   {"hs", "GE"},
            {"equ", "EQU"}, {"neu", "NEU"}, {"ltu", "LTU"}, {"leu", "LEU"}, {"gtu", "GTU"},
            {"geu", "GEU"}, {"num", "NUM"}, {"nan", "NAN_"}};
        string name = i.mods.empty() ? "" : i.mods[0];
        auto found = all.find(name);
        bool of_unsigned = name == "lo" || name == "ls" || name == "hi" || name == "hs";
        if (found == all.end() || (is_float && of_unsigned) ||
            (!is_float && found->second.size() > 2))
            throw unknown_t();
        i.take(name.c_str());
        *is_unsigned_p = of_unsigned;
        return "ptx::" + found->second;
    }
    string compared(instruction_t &i, type_t type, const string &a, const string &b) {
        bool is_unsigned;
        string comparison = take_comparison(i, type.is_float(), &is_unsigned);
        if (is_unsigned && type.kind == 's')
            throw unknown_t();
        string arguments = "(" + source(a, type) + ", " + source(b, type) + ")";
        if (!type.is_float())
            return "ptx::compare<" + comparison + ", " + cpp(type) + ">" + arguments;
        if (type.bits == 64)
            return "ptx::compare_f64<" + comparison + ">" + arguments;
        return "ptx::compare_f32<" + comparison + ", " + flag(i.take("ftz")) + ">" + arguments;
    }
    string setp(instruction_t &i) {
        i.expect_operands(3, 4);
        type_t type = i.take_type(), pred = {'p', 1};
        strings_t to = split(i.operand(0), '|');
        string value = compared(i, type, i.operand(1), i.operand(2)), other = "!is_so";
        string with = i.take("and") ? " & " : i.take("or") ? " | " : i.take("xor") ? " ^ " : "";
        if (with.empty() != (i.operands.size() == 3) || to.size() > 2)
            throw unknown_t();
        string rest = with.empty() ? "" : with + "is_third";
        string code = "{ bool is_so = " + value + "; ";
        if (!with.empty())
            code += "bool is_third = " + source(i.operand(3), pred) + "; ";
        code += assignment(to[0], pred, "is_so" + rest);
        if (to.size() == 2)
            code += " " + assignment(to[1], pred, "!is_so" + rest);
        return code + " }";
    }
    string selp(instruction_t &i) {
        i.expect_operands(4, 4);
        type_t type = i.take_type();
        return assignment(i.operand(0), type,
                          source(i.operand(3), {'p', 1}) + " ? " + source(i.operand(1), type) +
                              " : " + source(i.operand(2), type));
    }
    string slct(instruction_t &i) {
        i.expect_operands(4, 4);
        type_t by = i.take_type(), type = i.take_type();
        string c = source(i.operand(3), by);
        string is_first =
            by.is_float()
                ? print("ptx::compare_f32<ptx::GE, %s>(", flag(i.take("ftz"))) + c + ", 0)"
                : "(int32_t)" + c + " >= 0";
        if (by.bits != 32 || (by.kind != 's' && !by.is_float()))
            throw unknown_t();
        return assignment(i.operand(0), type,
                          is_first + " ? " + source(i.operand(1), type) + " : " +
                              source(i.operand(2), type));
    }

    /* ---- moves and conversions ---- */

    string mov(instruction_t &i) {
        i.expect_operands(2, 2);
        type_t type = i.take_type();
        strings_t to = elements(i.operand(0)), from = elements(i.operand(1));
        if (to.size() == 1 && from.size() == 1)
            return assignment(to[0], type, source(from[0], type));
        unsigned n = (unsigned)std::max(to.size(), from.size());
        type_t part = {'b', type.bits / n};
        string code;
        if (to.size() == 1) {
            for (unsigned k = 0; k < n; k++)
                code += (k == 0 ? "" : " | ") + ("(" + cpp(type) + ")" + source(from[k], part)) +
                        (k == 0 ? "" : print(" << %u", k * part.bits));
            return assignment(to[0], type, code);
        }
        code = "{ " + cpp_unsigned(type.bits) + " all = " + source(from[0], type) + ";";
        for (unsigned k = 0; k < n; k++)
            code += " " + assignment(to[k], part,
                                     print("(%s)(all >> %u)", cpp(part).c_str(), k * part.bits));
        return code + " }";
    }

    static string take_whole_rounding(instruction_t &i) {
        static const std::map<string, string> all = {
            {"rni", "ptx::RN"}, {"rzi", "ptx::RZ"}, {"rmi", "ptx::RM"}, {"rpi", "ptx::RP"}};
        for (const auto &one : all)
            if (i.take(one.first.c_str()))
                return one.second;
        return "";
    }
    /* Conversions among floats. */
    string float_conversion(instruction_t &i, type_t to, type_t from) {
        string whole = take_whole_rounding(i), rounding = take_rounding(i);
        bool is_flushed = i.take("ftz"), is_limited = i.take("sat");
        string flags = string(flag(is_flushed)) + ", " + flag(is_limited);
        if (to.bits == 32 && from.bits == 32)
            return whole.empty() ? "f32_to_f32<" + flags + ">"
                                 : "f32_to_whole<" + whole + ", " + flags + ">";
        if (to.bits == 32 && !rounding.empty())
            return "f64_to_f32<" + rounding + ", " + flags + ">";
        if (is_limited || (to.bits == 32 && from.bits == 64))
            throw unknown_t();
        if (from.bits == 32)
            return print("f32_to_f64<%s>", flag(is_flushed));
        return whole.empty() ? "" : "f64_to_whole<" + whole + ">";
    }
    string conversion(instruction_t &i, type_t to, type_t from) {
        if (to.kind == 'h' || to.kind == 'x' || from.kind == 'h') {
            if (to.is_float() && to.bits == 32 && from.kind == 'h')
                return "bf16_to_f32";
            string rounding = take_rounding(i);
            if (from.kind != 'f' || from.bits != 32 ||
                (rounding != "ptx::RN" && rounding != "ptx::RZ"))
                throw unknown_t();
            return (to.kind == 'h' ? "f32_to_bf16<" : "f32_to_bf16x2<") + rounding + ">";
        }
        if (to.is_float() && from.is_float())
            return float_conversion(i, to, from);
        if (to.is_float()) {
            string rounding = take_rounding(i);
            bool is_limited = i.take("sat");
            if (to.bits == 64) {
                if ((rounding != "ptx::RN" && from.bits == 64) || is_limited)
                    throw unknown_t();
                return "integer_to_f64<" + cpp(from) + ">";
            }
            if (rounding.empty())
                throw unknown_t();
            return "integer_to_f32<" + rounding + ", " + flag(is_limited) + ", " + cpp(from) + ">";
        }
        bool is_limited = i.take("sat");
        if (from.is_float()) {
            string rounding = take_whole_rounding(i);
            if (rounding.empty())
                throw unknown_t();
            bool is_flushed = i.take("ftz");
            return print("f%u_to_integer<", from.bits) + cpp(to) + ", " + rounding +
                   (from.bits == 32 ? print(", %s>", flag(is_flushed)) : ">");
        }
        return is_limited ? "saturated<" + cpp(to) + ", " + cpp(from) + ">" : "";
    }
    string cvt(instruction_t &i) {
        type_t from = i.take_type(), to = i.take_type();
        i.expect_operands(to.kind == 'x' ? 3 : 2, to.kind == 'x' ? 3 : 2);
        string function = conversion(i, to, from), value = source(i.operand(1), from, true);
        if (to.kind == 'x')
            value = call(function, {value, source(i.operand(2), from)});
        else if (!function.empty())
            value = call(function, {value});
        else /* cut off, or extended by the kind of what it comes from */
            value = "(" + cpp(to) + ")(" + cpp(from) + ")" + value;
        return assignment(i.operand(0), to, value, true);
    }
    string cvta(instruction_t &i) {
        i.expect_operands(2, 2);
        type_t type = i.take_type();
        bool is_from = i.take("to");
        string value = source(i.operand(1), type);
        if (i.take_any({"shared", "shared::cta"}))
            value += string(is_from ? " - " : " + ") + "ptx::shared_window";
        else if (i.take("local"))
            value += string(is_from ? " - " : " + ") + "ptx::local_window";
        else if (!i.take("global"))
            throw unknown_t();
        return assignment(i.operand(0), type, value);
    }

    /* ---- memory ---- */

    enum space_t { GENERIC, GLOBAL, SHARED, LOCAL, PARAM };

    static space_t take_space(instruction_t &i) {
        i.take_any({"volatile", "relaxed", "acquire", "release", "weak", "cta", "gpu", "sys", "nc",
                    "ca", "cg", "cs", "lu", "cv", "wb", "wt", "unified"});
        for (size_t k = i.mods.size(); k-- > 0;)
            if (begins_with(i.mods[k], "L1::") || begins_with(i.mods[k], "L2::") ||
                begins_with(i.mods[k], "level::"))
                i.mods.erase(i.mods.begin() + (ptrdiff_t)k);
        return i.take("global")                        ? GLOBAL
               : i.take_any({"shared", "shared::cta"}) ? SHARED
               : i.take("local")                       ? LOCAL
               : i.take("param")                       ? PARAM
                                                       : GENERIC;
    }
    /* "[%rd1+4]" in an address space. */
    string address(const string &operand, space_t space) {
        if (operand.size() < 3 || operand[0] != '[' || operand.back() != ']')
            throw unknown_t();
        string inside = operand.substr(1, operand.size() - 2);
        size_t plus = inside.find('+');
        string base = trimmed(inside.substr(0, plus)), variable;
        uint64_t by = 0, at;
        if (plus != string::npos &&
            !read_constant(trimmed(inside.substr(plus + 1)), {'u', 64}, &by))
            throw unknown_t();
        const char *type = space == SHARED ? "(uint32_t)" : "(uint64_t)";
        unsigned bits;
        if (!find_register(base, &variable, &bits)) {
            if (!find_symbol(base, &at) && !read_constant(base, {'u', 64}, &at))
                throw unknown_t();
            return constant(at + by, space == SHARED ? 32 : 64);
        }
        if (bits < 32 || (bits == 32 && space != SHARED && space != PARAM && space != LOCAL))
            throw unknown_t();
        return type + ("(" + variable) + (by == 0 ? ")" : " + " + constant(by, bits) + ")");
    }
    string access(const instruction_t &i, space_t space, bool is_write, const string &at,
                  size_t size_bytes) {
        string rest = at + print(", %zu, ", size_bytes) + i.here() + ")";
        const char *verb = is_write ? "write" : "read";
        if (space == PARAM)
            return print("ptx::read_param(params, %zu, ", kernel.params_bytes) + rest;
        if (space == LOCAL)
            return "ptx::local_at(local, " + rest;
        if (space == GENERIC)
            return print("ptx::%s_generic(local, ", verb) + rest;
        return print("ptx_%s_%s(", verb, space == GLOBAL ? "global" : "shared") + rest;
    }
    static size_t take_vector(instruction_t &i) {
        return i.take("v2") ? 2 : i.take("v4") ? 4 : i.take("v8") ? 8 : 1;
    }
    /* A value between registers and memory, or a vector of them. */
    string move(instruction_t &i, bool is_write) {
        i.expect_operands(2, 2);
        type_t type = i.take_type();
        space_t space = take_space(i);
        size_t n = take_vector(i), size_bytes = type.bits / 8;
        strings_t values = elements(i.operand(is_write ? 1 : 0));
        string at = address(i.operand(is_write ? 0 : 1), space);
        if (values.size() != n || type.kind == 'p' || (is_write && space == PARAM) ||
            n * size_bytes > 16)
            throw unknown_t();
        string bytes = is_write ? "unsigned char *" : "const unsigned char *";
        string code = "{ " + bytes + "at = (" + bytes + ")" +
                      access(i, space, is_write, at, n * size_bytes) + ";";
        for (size_t k = 0; k < n; k++) {
            string place = print("at + %zu", k * size_bytes);
            if (is_write)
                code += " ptx::put<" + cpp_unsigned(type.bits) + ">(" + place + ", " +
                        source(values[k], type, true) + ");";
            else
                code += " " + assignment(values[k], type,
                                         "ptx::get<" + cpp(type) + ">(" + place + ")", true);
        }
        return code + " }";
    }
    string ld(instruction_t &i) {
        return move(i, false);
    }
    string st(instruction_t &i) {
        return move(i, true);
    }
    string cp(instruction_t &i) {
        if (!i.take("async"))
            throw unknown_t();
        if (i.take("commit_group"))
            return "ptx_copy_commit(" + barrier(i) + ");";
        if (i.take("wait_group"))
            return "ptx_copy_wait(" + source(i.operand(0), {'u', 32}) + ", " + barrier(i) + ");";
        if (i.take("wait_all")) {
            string here = barrier(i);
            return "ptx_copy_commit(" + here + "); ptx_copy_wait(0, " + here + ");";
        }
        i.expect_operands(3, 4);
        take_space(i); /* .shared.global, .cg */
        i.take_any({"shared", "shared::cta", "global"});
        string n_bytes = i.operand(2);
        return "ptx_copy_begin(" + address(i.operand(0), SHARED) + ", " +
               address(i.operand(1), GLOBAL) + ", " + n_bytes + ", " +
               (i.operands.size() == 3 ? n_bytes
                                       : "ptx::min<uint32_t>(" + source(i.operand(3), {'u', 32}) +
                                             ", " + n_bytes + ")") +
               ", " + i.here() + ");";
    }

    /* ---- warps, barriers, control ---- */

    /* Its place among those of what orders accesses. */
    string barrier(const instruction_t &i) {
        totals.barriers.push_back(i.place);
        return print("barriers[%zu]", totals.barriers.size() - 1);
    }
    string bar(instruction_t &i) {
        if (i.take("warp")) {
            if (!i.take("sync"))
                throw unknown_t();
            i.expect_operands(1, 1);
            return "ptx_wait_for_warp(" + source(i.operand(0), {'u', 32}) + ", " + barrier(i) +
                   ");";
        }
        bool is_sync = i.take("sync");
        i.take_any({"cta", "aligned"});
        if (!is_sync || i.operands.size() != 1 || i.operand(0) != "0")
            throw unknown_t();
        return "ptx_wait_for_block(" + barrier(i) + ");";
    }
    string shfl(instruction_t &i) {
        i.expect_operands(5, 5);
        type_t type = i.take_type(), u32 = {'u', 32};
        string mode = i.take("up")     ? "UP"
                      : i.take("down") ? "DOWN"
                      : i.take("bfly") ? "BFLY"
                      : i.take("idx")  ? "IDX"
                                       : "";
        strings_t to = split(i.operand(0), '|');
        if (!i.take("sync") || mode.empty() || type.bits != 32)
            throw unknown_t();
        string there = "NULL";
        if (to.size() == 2 && to[1] != "_")
            there = "&" + source(to[1], {'p', 1});
        strings_t arguments = {there};
        for (size_t k = 1; k < 5; k++)
            arguments.push_back(source(i.operand(k), u32));
        arguments.push_back(i.here());
        return assignment(to[0], type, call("shfl<ptx::" + mode + ">", arguments));
    }
    string vote(instruction_t &i) {
        i.expect_operands(3, 3);
        type_t type = i.take_type();
        string kind = i.take("ballot") ? "ballot"
                      : i.take("all")  ? "vote_all"
                      : i.take("any")  ? "vote_any"
                      : i.take("uni")  ? "vote_uni"
                                       : "";
        if (!i.take("sync") || kind.empty() || (type.kind == 'p') == (kind == "ballot"))
            throw unknown_t();
        return assignment(i.operand(0), type,
                          call(kind, {source(i.operand(1), {'p', 1}),
                                      source(i.operand(2), {'u', 32}), i.here()}));
    }
    string match(instruction_t &i) {
        i.expect_operands(3, 3);
        type_t type = i.take_type();
        bool is_all = i.take("all");
        if ((!is_all && !i.take("any")) || !i.take("sync"))
            throw unknown_t();
        strings_t to = split(i.operand(0), '|'), arguments;
        if (is_all)
            arguments.push_back(to.size() == 2 ? "&" + source(to[1], {'p', 1}) : "NULL");
        arguments.push_back(source(i.operand(1), type));
        arguments.push_back(source(i.operand(2), {'u', 32}));
        arguments.push_back(i.here());
        return assignment(to[0], {'b', 32}, call(is_all ? "match_all" : "match_any", arguments));
    }
    string activemask(instruction_t &i) { /* lanes need not run together, so this one says: I */
        return assignment(i.operand(0), i.take_type(), "1u << emu_lane()");
    }
    string array(const string &name, const string &operand, size_t n) {
        strings_t parts = elements(operand);
        if (parts.size() != n)
            throw unknown_t();
        for (string &part : parts)
            part = source(part, {'b', 32});
        return print("const uint32_t %s[%zu] = {", name.c_str(), n) + joined(parts, ", ") + "}; ";
    }
    string results(const string &operand, size_t n) {
        strings_t parts = elements(operand);
        string code;
        if (parts.size() != n)
            throw unknown_t();
        for (size_t k = 0; k < n; k++)
            code += " " + assignment(parts[k], {'b', 32}, print("d[%zu]", k));
        return code + " }";
    }
    string mma(instruction_t &i) {
        i.expect_operands(4, 4);
        strings_t known = {"sync", "aligned", "m16n8k16", "row", "col",
                           "f32",  "bf16",    "bf16",     "f32"};
        if (i.mods != known)
            throw unknown_t();
        i.mods.clear();
        return "{ " + array("a", i.operand(1), 4) + array("b", i.operand(2), 2) +
               array("c", i.operand(3), 4) + "uint32_t d[4]; ptx::mma_bf16(d, a, b, c, " +
               i.here() + ");" + results(i.operand(0), 4);
    }
    string ldmatrix(instruction_t &i) {
        i.expect_operands(2, 2);
        size_t n = i.take("x1") ? 1 : i.take("x2") ? 2 : i.take("x4") ? 4 : 0;
        bool is_transposed = i.take("trans");
        type_t type = i.take_type();
        if (!i.take("sync") || !i.take("aligned") || !i.take("m8n8") || n == 0 || type.bits != 16 ||
            !i.take_any({"shared", "shared::cta"}))
            throw unknown_t();
        return print("{ uint32_t d[%zu]; ptx::ldmatrix<%zu, %s>(d, ", n, n, flag(is_transposed)) +
               address(i.operand(1), SHARED) + ", " + i.here() + ");" + results(i.operand(0), n);
    }
    string bra(instruction_t &i) {
        i.expect_operands(1, 1);
        i.take("uni");
        targets.insert(i.operand(0));
        return "goto l_" + name_of(i.operand(0)) + ";";
    }
    string ret(instruction_t &i) {
        i.take("uni");
        return "return;";
    }
    string trap(instruction_t &i) {
        return "ptx::die(" + i.here() + ", \"a trap\");";
    }
    string nothing(instruction_t &i) { /* fences: every access is done at once */
        i.mods.clear();
        return ";";
    }

    /* ---- statements ---- */

    using handler_t = string (writer_t::*)(instruction_t &);

    static const std::map<string, handler_t> &handlers() {
        static const std::map<string, handler_t> all = {
            {"add", &writer_t::add_or_sub},
            {"sub", &writer_t::add_or_sub},
            {"mul", &writer_t::mul},
            {"mad", &writer_t::mad},
            {"fma", &writer_t::mad},
            {"div", &writer_t::div},
            {"rem", &writer_t::rem},
            {"rcp", &writer_t::function_of_floats},
            {"sqrt", &writer_t::function_of_floats},
            {"rsqrt", &writer_t::function_of_floats},
            {"ex2", &writer_t::function_of_floats},
            {"lg2", &writer_t::function_of_floats},
            {"sin", &writer_t::function_of_floats},
            {"cos", &writer_t::function_of_floats},
            {"tanh", &writer_t::function_of_floats},
            {"min", &writer_t::min_or_max},
            {"max", &writer_t::min_or_max},
            {"neg", &writer_t::neg_or_abs},
            {"abs", &writer_t::neg_or_abs},
            {"and", &writer_t::logic},
            {"or", &writer_t::logic},
            {"xor", &writer_t::logic},
            {"not", &writer_t::logic},
            {"cnot", &writer_t::logic},
            {"shl", &writer_t::shift},
            {"shr", &writer_t::shift},
            {"shf", &writer_t::funnel},
            {"bfe", &writer_t::fields},
            {"bfi", &writer_t::fields},
            {"brev", &writer_t::count},
            {"popc", &writer_t::count},
            {"clz", &writer_t::count},
            {"prmt", &writer_t::prmt},
            {"lop3", &writer_t::lop3},
            {"setp", &writer_t::setp},
            {"selp", &writer_t::selp},
            {"slct", &writer_t::slct},
            {"mov", &writer_t::mov},
            {"cvt", &writer_t::cvt},
            {"cvta", &writer_t::cvta},
            {"ld", &writer_t::ld},
            {"st", &writer_t::st},
            {"cp", &writer_t::cp},
            {"bar", &writer_t::bar},
            {"barrier", &writer_t::bar},
            {"shfl", &writer_t::shfl},
            {"vote", &writer_t::vote},
            {"match", &writer_t::match},
            {"activemask", &writer_t::activemask},
            {"mma", &writer_t::mma},
            {"ldmatrix", &writer_t::ldmatrix},
            {"bra", &writer_t::bra},
            {"ret", &writer_t::ret},
            {"exit", &writer_t::ret},
            {"trap", &writer_t::trap},
            {"brkpt", &writer_t::trap},
            {"membar", &writer_t::nothing},
            {"fence", &writer_t::nothing},
            {"prefetch", &writer_t::nothing},
            {"prefetchu", &writer_t::nothing},
            {"nanosleep", &writer_t::nothing},
        };
        return all;
    }

    /* "FILE:LINE"; false: not known. */
    bool name_place(place_t place, string *name_p) {
        auto file = files.find(place.file);
        if (file == files.end())
            return false;
        *name_p = file->second.substr(file->second.rfind('/') + 1) + print(":%d", place.line);
        return true;
    }
    /* Of what the toolkit's headers have, where it was called. */
    string place_of(const statement_t &statement) {
        string source = "?:0", caller;
        bool is_inlined = name_place(statement.caller, &caller);
        auto file = files.find(statement.source.file);
        bool is_toolkit = file != files.end() && file->second.find("/include/") != string::npos;
        name_place(statement.source, &source);
        string place = (is_toolkit && is_inlined ? caller : source) + " " + statement.text + " (" +
                       module_name + print(".ptx:%d", statement.ptx_line);
        return place + (is_toolkit || !is_inlined ? ")" : ", in " + caller + ")");
    }

    instruction_t parse(const statement_t &statement) {
        instruction_t i;
        string text = i.text = statement.text;
        i.place = place_of(statement);
        if (text[0] == '@') {
            size_t blank = text.find(' ');
            i.guard = source(text.substr(1, blank - 1), {'p', 1});
            text = trimmed(text.substr(std::min(blank, text.size())));
        }
        size_t blank = std::min(text.find(' '), text.size());
        strings_t names = split(text.substr(0, blank), '.');
        i.op = names[0];
        i.mods.assign(names.begin() + 1, names.end());
        if (blank < text.size())
            i.operands = split(text.substr(blank + 1), ',');
        return i;
    }

    string translated(const statement_t &statement, string *guard_p) {
        instruction_t i = parse(statement);
        auto handler = handlers().find(i.op);
        if (handler == handlers().end())
            throw unknown_t();
        string code = (this->*handler->second)(i);
        if (!i.mods.empty())
            throw unknown_t();
        *guard_p = i.guard;
        return code;
    }

    void write_instruction(const statement_t &statement) {
        string code, guard;
        size_t n_barriers = totals.barriers.size();
        try {
            code = translated(statement, &guard);
        } catch (const unknown_t &) {
            totals.barriers.resize(n_barriers);
            totals.n_unknown++;
            string place = place_of(statement);
            fprintf(stderr, "ptx_translate: unknown instruction: %s\n", place.c_str());
            code = "ptx::die(" + quoted(place) + ", \"an instruction that was not translated\");";
        }
        if (!guard.empty())
            code = "if (" + guard + ") { " + code + " }";
        out += "    " + code + "\n";
    }

    void open_scope() {
        scopes.emplace_back();
        ranges.emplace_back();
        scope_numbers.push_back(n_scopes++);
    }
    void close_scope() {
        scopes.pop_back();
        ranges.pop_back();
        scope_numbers.pop_back();
    }

    void write_statement(const statement_t &statement) {
        switch (statement.kind) {
        case statement_t::OPEN:
            open_scope();
            break;
        case statement_t::CLOSE:
            close_scope();
            break;
        case statement_t::LABEL:
            out += "  l_" + name_of(statement.text) + ": /*" + statement.text + "*/\n";
            break;
        case statement_t::INSTRUCTION:
            write_instruction(statement);
            break;
        case statement_t::DIRECTIVE:
            if (begins_with(statement.text, ".reg"))
                declare_registers(statement.text);
            break;
        }
    }

    /* Before anything else, so that dynamic memory is known to begin behind all of it. */
    void place_variables() {
        for (const variable_t &variable : module_shared)
            for (const statement_t &statement : kernel.body)
                if (statement.text.find(variable.name) != string::npos) {
                    place_shared(variable);
                    break;
                }
        for (const statement_t &statement : kernel.body) {
            if (statement.kind != statement_t::DIRECTIVE)
                continue;
            if (begins_with(statement.text, ".shared"))
                place_shared(read_variable(statement.text));
            else if (begins_with(statement.text, ".local"))
                place_local(read_variable(statement.text));
        }
    }

    /* Labels that nothing goes to are left out. */
    string without_unused_labels(const string &code) {
        std::istringstream lines(code);
        string line, result;
        while (std::getline(lines, line)) {
            if (begins_with(line, "  l_")) {
                size_t from = line.find("/*");
                string label = line.substr(from + 2, line.size() - from - 4);
                if (targets.count(label) == 0)
                    continue;
                line = line.substr(0, from - 1) + ";";
            }
            result += line + "\n";
        }
        return result;
    }

    string declarations() {
        string code;
        for (const auto &one : registers)
            code += "    " + cpp_unsigned(one.second) + " " + one.first +
                    (one.second == 1 ? " = true;\n" : print(" = (uint%u_t)-1;\n", one.second));
        if (local_bytes != 0)
            code += print("    alignas(16) unsigned char of_local[%zu];\n"
                          "    memset(of_local, 0xff, sizeof(of_local));\n"
                          "    const ptx::local_t local = {of_local, sizeof(of_local)};\n",
                          local_bytes);
        else
            code += "    const ptx::local_t local = {NULL, 0};\n";
        return code + "    (void)params, (void)local;\n";
    }

    void write() {
        place_variables();
        for (const statement_t &statement : kernel.body)
            write_statement(statement);
        string body = without_unused_labels(out);
        kernel.code = declarations() + body;
    }
};

/* ---- files ---------------------------------------------------------------------------------- */

/* ".visible .entry name(.param .u64 a, .param .align 8 .b8 b[16])". */
kernel_t read_entry(const string &text) {
    kernel_t kernel;
    size_t from = text.find(".entry") + 6, open = text.find('(');
    kernel.name = trimmed(text.substr(from, open == string::npos ? open : open - from));
    if (open == string::npos)
        return kernel;
    for (const string &param : split(text.substr(open + 1, text.rfind(')') - open - 1), ',')) {
        variable_t variable = read_variable(param);
        variable.offset = rounded_up(kernel.params_bytes, variable.alignment);
        kernel.params_bytes = variable.offset + variable.size_bytes;
        kernel.params.push_back(variable);
    }
    return kernel;
}

void read_max_threads(kernel_t &kernel, const string &text) {
    unsigned n[3] = {1, 1, 1};
    size_t from = text.find(' ');
    if (from == string::npos ||
        sscanf(text.c_str() + from, "%u , %u , %u", &n[0], &n[1], &n[2]) < 1)
        fail("what is \"" + text + "\"?");
    kernel.max_threads = n[0] * n[1] * n[2];
}

struct module_t {
    string name;
    reader_t reader;
    std::vector<variable_t> shared;
    std::vector<kernel_t> kernels;
    totals_t totals;
};

/* Statements to kernels and what is outside of them. */
void read_module(module_t &module) {
    size_t depth = 0;
    for (const statement_t &statement : module.reader.statements) {
        const string &text = statement.text;
        if (depth > 0) {
            depth += (statement.kind == statement_t::OPEN) - (statement.kind == statement_t::CLOSE);
            if (depth > 0)
                module.kernels.back().body.push_back(statement);
        } else if (statement.kind == statement_t::OPEN) {
            if (module.kernels.empty())
                fail("a body that no kernel has");
            module.kernels.back().body.push_back(statement);
            depth = 1;
        } else if (statement.kind != statement_t::DIRECTIVE) {
            fail("\"" + text + "\" is in no kernel");
        } else if (text.find(".entry") != string::npos) {
            module.kernels.push_back(read_entry(text));
        } else if (text.find(".maxntid") == 0 || text.find(".reqntid") == 0) {
            read_max_threads(module.kernels.back(), text);
        } else if (text.find(".shared") != string::npos) {
            module.shared.push_back(
                read_variable(text[1] == 'e' ? text.substr(text.find(".shared")) : text));
        } else if (text.find(".func") != string::npos || text.find(".global") != string::npos ||
                   text.find(".const") != string::npos) {
            fprintf(stderr, "ptx_translate: %s: left out: %s\n", module.name.c_str(), text.c_str());
            module.totals.n_unknown++;
        }
    }
}

void translate(module_t &module) {
    for (kernel_t &kernel : module.kernels) {
        writer_t writer = {kernel,
                           module.shared,
                           module.reader.files,
                           module.name,
                           module.totals,
                           {},
                           {},
                           {},
                           {},
                           {},
                           {},
                           0,
                           0,
                           {},
                           {},
                           {}};
        writer.write();
    }
}

string tables(const module_t &module) {
    string code = "static const ptx_kernel_t kernels[] = {\n";
    for (size_t k = 0; k < module.kernels.size(); k++) {
        const kernel_t &kernel = module.kernels[k];
        string params = kernel.params.empty() ? "NULL" : print("params_%zu", k);
        code += print("    {\"%s\", kernel_%zu, %s, %zu, %zu, %zu, %u},\n", kernel.name.c_str(), k,
                      params.c_str(), kernel.params.size(), kernel.params_bytes,
                      kernel.shared_bytes, kernel.max_threads);
    }
    return code +
           "};\n"
           "static const ptx_module_t module = {" +
           quoted(module.name) +
           print(", kernels, %zu, barriers, %zu};\n", module.kernels.size(),
                 module.totals.barriers.size()) +
           "__attribute__((constructor)) static void add_module() {\n"
           "    ptx_add_module(&module);\n"
           "}\n";
}

string barriers(const totals_t &totals) {
    string places;
    for (const string &place : totals.barriers)
        places += "    " + quoted(place) + ",\n";
    if (places.empty())
        return "static const char *const *const barriers = NULL;\n";
    return "static const char *const barriers[] = {\n" + places + "};\n";
}

string file_text(const module_t &module) {
    string code = "/* Translated from " + module.name +
                  ".ptx; not to be edited. */\n"
                  "#include \"tests/ptx/ptx_thread.h\"\n\n"
                  "/* Results of instructions that nobody uses. */\n"
                  "#pragma GCC diagnostic ignored \"-Wunused-but-set-variable\"\n\n" +
                  barriers(module.totals);
    for (size_t k = 0; k < module.kernels.size(); k++) {
        const kernel_t &kernel = module.kernels[k];
        code += "\n/* " + kernel.name + " */\n";
        if (!kernel.params.empty()) {
            code += print("static const ptx_param_t params_%zu[] = {", k);
            for (const variable_t &param : kernel.params)
                code += print("{%zu, %zu}, ", param.offset, param.size_bytes);
            code += "};\n";
        }
        code += print("static void kernel_%zu(const unsigned char *params) {\n", k) + kernel.code +
                "}\n";
    }
    return code + "\n" + tables(module);
}

struct arguments_t {
    bool is_strict = false;
    string out;
    strings_t others;
};

arguments_t read_arguments(int argc, char **argv) {
    arguments_t arguments;
    for (int i = 1; i < argc; i++) {
        string argument = argv[i];
        if (argument == "--strict")
            arguments.is_strict = true;
        else if (argument == "-o" && i + 1 < argc)
            arguments.out = argv[++i];
        else
            arguments.others.push_back(argument);
    }
    if (arguments.others.size() != 2)
        fail("usage: ptx_translate [--strict] [-o FILE.cc] FILE.ptx NAME");
    return arguments;
}

} // namespace

int main(int argc, char **argv) {
    arguments_t arguments = read_arguments(argc, argv);
    std::ifstream in(arguments.others[0]);
    std::stringstream text;
    text << in.rdbuf();
    if (!in)
        fail("cannot read " + arguments.others[0]);

    module_t module;
    module.name = arguments.others[1];
    module.reader.text = without_comments(text.str());
    module.reader.read();
    read_module(module);
    if (module.kernels.empty())
        fail("no kernels in " + arguments.others[0]);
    translate(module);
    if (module.totals.n_contractable != 0)
        fprintf(stderr, "ptx_translate: %s: %zu operations that ptxas may contract\n",
                module.name.c_str(), module.totals.n_contractable);
    if (arguments.is_strict && (module.totals.n_unknown != 0 || module.totals.n_contractable != 0))
        return 1;

    string code = file_text(module);
    FILE *out = arguments.out.empty() ? stdout : fopen(arguments.out.c_str(), "w");
    if (out == NULL || fwrite(code.data(), 1, code.size(), out) != code.size() || fclose(out) != 0)
        fail("cannot write " + arguments.out);
    return 0;
}
