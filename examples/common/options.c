/* See options.h. */
#include "examples/common/options.h"

#include <argp.h>
#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <string.h>

#include "examples/common/args.h"

#define FIRST_KEY 0x100 /* beyond characters: no short options */

/* ---- rows ------------------------------------------------------------------------------------ */

static void add_row(options_rows_t *rows, options_row_t row) {
    assert(rows->n < ZR_OPTIONS_MOST);
    rows->all[rows->n++] = row;
}

static void add_library(options_rows_t *rows) {
    size_t n = 0;
    const zr_option_t *options = zr_options(&n);
    for (size_t i = 0; i < n; i++)
        if (options[i].name != NULL)
            add_row(rows, (options_row_t){.option = options[i], .is_of_library = true});
}

/* An option that is new in the library is there without a word about it. */
static void add_rest(options_rows_t *rows, const options_table_t *table, options_row_t row) {
    int group = row.is_of_library ? table->rest[row.option.group] : 0;
    row.offset += table->base_offset;
    row.option.group = group;
    if (group != 0)
        add_row(rows, row);
}

void options_rows(const options_table_t *table, options_rows_t *rows_p) {
    options_rows_t base = {.n = 0};
    rows_p->n = 0;
    if (table->base != NULL)
        options_rows(table->base, &base);
    else
        add_library(&base);
    for (size_t i = 0; i < (table->uses != NULL ? table->n_uses : base.n); i++) {
        const options_use_t *use = table->uses != NULL ? &table->uses[i] : NULL;
        const options_row_t *found = use != NULL ? options_find(&base, use->name) : &base.all[i];
        assert(found != NULL);
        options_row_t row = *found;
        row.offset += table->base_offset;
        if (use != NULL)
            row.option.group = use->group;
        if (use != NULL && use->help != NULL) {
            row.option.help = use->help;
            row.option.initial = ""; /* it says it */
        }
        if (zr_option_find(table->own, table->n_own, row.option.name) == NULL)
            add_row(rows_p, row);
    }
    for (size_t i = 0; i < base.n && table->rest != NULL; i++)
        if (options_find(rows_p, base.all[i].option.name) == NULL)
            add_rest(rows_p, table, base.all[i]);
    for (size_t i = 0; i < table->n_own; i++) {
        add_row(rows_p, (options_row_t){.option = table->own[i]});
        rows_p->all[rows_p->n - 1].option.group += table->own[i].group == 0;
    }
}

const options_row_t *options_find(const options_rows_t *rows, const char *name) {
    for (size_t i = 0; i < rows->n; i++)
        if (strcmp(rows->all[i].option.name, name) == 0)
            return &rows->all[i];
    return NULL;
}

const void *options_object(const options_row_t *row, const void *object) {
    return (const char *)object + row->offset;
}

/* ---- what was given -------------------------------------------------------------------------- */

const char *options_value(const options_given_t *given, const char *name) {
    for (size_t i = 0; i < given->n; i++)
        if (strcmp(given->all[i].name, name) == 0)
            return given->all[i].value;
    return NULL;
}

bool options_is_auto(const options_given_t *given, const char *name) {
    const char *value = options_value(given, name);
    return value != NULL && strcmp(value, "auto") == 0;
}

zr_status_t options_note(options_given_t *given, const char *name, const char *value,
                         bool may_be_several, const zr_log_t *log) {
    size_t i = 0;
    while (i < given->n && (may_be_several || strcmp(given->all[i].name, name) != 0))
        i++;
    if (i == ZR_OPTIONS_MOST)
        return zr_fail(log, ZR_ERR_ARGUMENT, "--%s %s: allowed: %d options at most", name, value,
                       ZR_OPTIONS_MOST);
    given->all[i].name = name;
    given->all[i].value = value;
    given->n += i == given->n;
    return ZR_OK;
}

/* ---- one option ------------------------------------------------------------------------------ */

static zr_status_t set_row(const options_row_t *row, const char *value, const zr_log_t *log,
                           void *object) {
    bool is_auto = (row->option.flags & ZR_OPTION_AUTO) != 0 && strcmp(value, "auto") == 0;
    zr_config_t config = zr_config_default();
    zr_option_text_t usual = {""};
    if (is_auto && row->is_of_library)
        usual = zr_option_text(&row->option, &config);
    else if (is_auto) /* of a program's own the first choice */
        snprintf(usual.text, sizeof(usual.text), "%s", row->option.choices[0].name);
    return zr_option_set(&row->option, NULL, is_auto ? usual.text : value, log,
                         (char *)object + row->offset);
}

zr_status_t options_apply(const options_table_t *table, const options_given_t *given,
                          const zr_log_t *log, void *object) {
    options_rows_t rows;
    options_rows(table, &rows);
    for (size_t i = 0; i < rows.n; i++)
        for (size_t k = 0; k < given->n; k++)
            if (strcmp(given->all[k].name, rows.all[i].option.name) == 0)
                ZR_TRY(set_row(&rows.all[i], given->all[k].value, log, object));
    return ZR_OK;
}

zr_status_t options_check_needs(const options_table_t *table, const options_given_t *given,
                                const zr_log_t *log) {
    options_rows_t rows;
    options_rows(table, &rows);
    for (size_t i = 0; i < given->n; i++) {
        const options_row_t *row = options_find(&rows, given->all[i].name);
        const char *needed = row->option.needs, *value = given->all[i].value;
        if (needed == NULL || options_value(given, needed) != NULL ||
            zr_option_is_redundant(&row->option, value))
            continue;
        const char *arg = options_find(&rows, needed)->option.arg;
        return zr_fail(log, ZR_ERR_ARGUMENT, "--%s%s%s: requires --%s; add --%s%s%s",
                       row->option.name, *value != '\0' ? " " : "", value, needed, needed,
                       arg != NULL ? " " : "", arg != NULL ? arg : "");
    }
    return ZR_OK;
}

/* ---- parsing --------------------------------------------------------------------------------- */

/* A row as argp takes it. */
typedef struct texts {
    char arg[128];
    char help[ZR_CONFIG_PATHS_BYTES + 640];
} texts_t;

typedef struct parser {
    const options_table_t *table;
    options_rows_t rows;
    struct argp_option options[ZR_OPTIONS_MOST + 16];
    texts_t texts[ZR_OPTIONS_MOST];
    size_t n;
    const zr_log_t *log;
    void *object;
    options_given_t *given;
} parser_t;

/* "none|cpu|nvme|auto" */
static const char *make_arg(const zr_option_t *option, char *text, size_t size) {
    static const zr_option_choice_t switches[] = {
        {"on", 1, NULL}, {"off", 0, NULL}, {NULL, 0, NULL}};
    size_t used = 0;
    if (option->arg != NULL || option->type == ZR_OPTION_FLAG)
        return option->arg;
    const zr_option_choice_t *c = option->choices != NULL ? option->choices : switches;
    for (; c->name != NULL; c++)
        used += (size_t)snprintf(text + used, size - used, "%s%s", used > 0 ? "|" : "", c->name);
    if ((option->flags & ZR_OPTION_AUTO) != 0)
        snprintf(text + used, size - used, "|auto");
    return text;
}

static zr_option_text_t usual_of(const options_row_t *row, const void *object) {
    zr_option_text_t text = {""};
    if (row->option.initial != NULL)
        snprintf(text.text, sizeof(text.text), "%s", row->option.initial);
    else if (row->option.type != ZR_OPTION_FLAG && object != NULL)
        text = zr_option_text(&row->option, options_object(row, object));
    return text;
}

static void add_option(parser_t *p, size_t i, const void *defaults) {
    const options_row_t *row = &p->rows.all[i];
    const zr_option_t *option = &row->option;
    zr_option_text_t usual = usual_of(row, defaults);
    texts_t *texts = &p->texts[i];
    bool is_hidden = (option->flags & ZR_OPTION_HIDDEN) != 0;
    snprintf(texts->help, sizeof(texts->help), "%s%s%s%s", option->help,
             usual.text[0] == '\0'     ? ""
             : option->initial != NULL ? " (default: "
                                       : " (default ",
             usual.text, usual.text[0] != '\0' ? ")" : "");
    p->options[p->n++] =
        (struct argp_option){.name = option->name,
                             .key = FIRST_KEY + (int)i,
                             .arg = make_arg(option, texts->arg, sizeof(texts->arg)),
                             .flags = is_hidden ? OPTION_HIDDEN : 0,
                             .doc = texts->help,
                             .group = option->group};
}

/* Rows under the headers of their groups. */
static void make_parser(parser_t *p, const options_table_t *table, const void *defaults) {
    memset(p, 0, sizeof(*p));
    p->table = table;
    options_rows(table, &p->rows);
    for (int group = 1; group <= table->n_groups; group++) {
        p->options[p->n++] = (struct argp_option){.doc = table->headers[group], .group = group};
        for (size_t i = 0; i < p->rows.n; i++)
            if (p->rows.all[i].option.group == group)
                add_option(p, i, defaults);
    }
}

static zr_status_t take(parser_t *p, const options_row_t *row, const char *value) {
    bool may_be_several = (row->option.flags & ZR_OPTION_SEVERAL) != 0;
    const char *before = options_value(p->given, row->option.name);
    if ((row->option.flags & ZR_OPTION_ONCE) != 0 && before != NULL)
        return zr_fail(p->log, ZR_ERR_ARGUMENT,
                       "--%s is given twice, with %s and %s: one of them would have no effect; put "
                       "what both have into one file",
                       row->option.name, before, value);
    ZR_TRY(set_row(row, value, p->log, p->object));
    if (may_be_several && (row->option.flags & ZR_OPTION_HIDDEN) != 0)
        return ZR_OK; /* of which there may be any number */
    return options_note(p->given, row->option.name, value, may_be_several, p->log);
}

static error_t take_key(int key, char *value, struct argp_state *state) {
    parser_t *p = state->input;
    const options_row_t *row = NULL;
    if (key >= FIRST_KEY && key < FIRST_KEY + (int)p->rows.n)
        row = &p->rows.all[key - FIRST_KEY];
    else if (key == ARGP_KEY_ARG && p->table->word != NULL)
        row = options_find(&p->rows, p->table->word);
    else if (key != ARGP_KEY_ARG)
        return ARGP_ERR_UNKNOWN;
    if (options_value(p->given, "help") != NULL || options_value(p->given, "version") != NULL)
        return 0;
    if (row != NULL)
        return take(p, row, value != NULL ? value : "") == ZR_OK ? 0 : EINVAL;
    zr_log_write(p->log, ZR_LOG_ERROR, "\"%s\": %s takes options only (--help lists them)", value,
                 p->table->program);
    return EINVAL;
}

static struct argp make_argp(const parser_t *p) {
    return (struct argp){.options = p->options,
                         .parser = take_key,
                         .args_doc = p->table->args,
                         .doc = p->table->doc};
}

zr_status_t options_parse(const options_table_t *table, int argc, char **argv, const zr_log_t *log,
                          void *object, options_given_t *given) {
    parser_t p;
    make_parser(&p, table, NULL);
    p.log = log;
    p.object = object;
    p.given = given;
    given->n = 0;
    struct argp argp = make_argp(&p);
    const options_table_t *of = table;
    while (of->known == NULL && of->base != NULL)
        of = of->base;
    return args_parse(&argp, of->known, argc, argv, log, &p);
}

/* ---- help ------------------------------------------------------------------------------------ */

void options_help(const options_table_t *table, const void *object, FILE *file) {
    parser_t p;
    make_parser(&p, table, object);
    struct argp argp = make_argp(&p);
    args_help(&argp, table->program, file);
}

/* ---- man ------------------------------------------------------------------------------------- */

/* A text that roff takes as it is; `n` bytes of it. */
static void print_roff(const char *text, size_t n, FILE *file) {
    if (n > 0 && (text[0] == '.' || text[0] == '\''))
        fputs("\\&", file);
    for (size_t i = 0; i < n; i++)
        fprintf(file, text[i] == '\\' ? "\\e" : text[i] == '-' ? "\\-" : "%c", text[i]);
}

void options_man_begin(const char *program, const char *args, const char *doc, FILE *file) {
    size_t n_doc = strcspn(doc, "\v"), n_first = strcspn(doc, ".\v");
    fprintf(file, ".TH ");
    for (const char *c = program; *c != '\0'; c++)
        fputc(toupper((unsigned char)*c), file);
    fprintf(file, " 1 \"\" \"libzero %s\"\n.SH NAME\n%s \\- ", zr_version(), program);
    print_roff(doc, n_first, file);
    fprintf(file, "\n.SH SYNOPSIS\n.B %s\n%s\n.SH DESCRIPTION\n", program, args);
    print_roff(doc, n_doc, file);
    if (doc[n_doc] == '\v') {
        fprintf(file, "\n.PP\n");
        print_roff(doc + n_doc + 1, strlen(doc + n_doc + 1), file);
    }
    fputc('\n', file);
}

static void print_heading(const char *command, const char *header, FILE *file) {
    size_t n = strlen(header);
    fprintf(file, ".SH \"%s%s%.*s\"\n", command != NULL ? command : "", command != NULL ? ": " : "",
            (int)(n > 0 && header[n - 1] == ':' ? n - 1 : n), header);
}

void options_man_rows(const options_table_t *table, const void *object, const char *command,
                      FILE *file) {
    parser_t p;
    make_parser(&p, table, object);
    for (size_t i = 0; i < p.n; i++) {
        const struct argp_option *o = &p.options[i];
        if (o->name == NULL)
            print_heading(command, o->doc, file);
        if (o->name == NULL || (o->flags & OPTION_HIDDEN) != 0)
            continue;
        fprintf(file, ".TP\n\\fB\\-\\-");
        print_roff(o->name, strlen(o->name), file);
        fprintf(file, "\\fR%s", o->arg != NULL ? "=" : "");
        print_roff(o->arg != NULL ? o->arg : "", o->arg != NULL ? strlen(o->arg) : 0, file);
        fputc('\n', file);
        print_roff(o->doc, strlen(o->doc), file);
        fputc('\n', file);
    }
}

void options_man(const options_table_t *table, const void *object, FILE *file) {
    char args[256];
    snprintf(args, sizeof(args), "[OPTION...] %s", table->args != NULL ? table->args : "");
    options_man_begin(table->program, args, table->doc, file);
    options_man_rows(table, object, NULL, file);
}

/* ---- completion ------------------------------------------------------------------------------ */

/* zero-train: _zero_train */
static void print_function(const char *program, FILE *file) {
    fputc('_', file);
    for (const char *c = program; *c != '\0'; c++)
        fputc(*c == '-' ? '_' : *c, file);
}

void options_bash_begin(const char *program, FILE *file) {
    print_function(program, file);
    fprintf(file, "() {\n"
                  "    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]}\n"
                  "    if [[ $word == = ]]; then\n"
                  "        word=\n"
                  "    elif [[ $before == = && $COMP_CWORD -gt 1 ]]; then\n"
                  "        before=${COMP_WORDS[COMP_CWORD - 2]}\n"
                  "    fi\n"
                  "    COMPREPLY=()\n");
}

void options_bash_end(const char *program, FILE *file) {
    fprintf(file, "}\ncomplete -o default -F ");
    print_function(program, file);
    fprintf(file, " %s\n", program);
}

/* Values that are words; others are names of files, or what nobody can guess. */
static void print_words(const parser_t *p, FILE *file) {
    fprintf(file, "    case $before in\n");
    for (size_t i = 0; i < p->n; i++) {
        const struct argp_option *o = &p->options[i];
        bool has_words =
            o->name != NULL && o->arg != NULL && p->rows.all[o->key - FIRST_KEY].option.arg == NULL;
        if (o->name == NULL || o->arg == NULL || (o->flags & OPTION_HIDDEN) != 0)
            continue;
        fprintf(file, "    --%s) ", o->name);
        if (has_words) {
            fprintf(file, "mapfile -t COMPREPLY < <(compgen -W \"");
            for (const char *c = o->arg; *c != '\0'; c++)
                fputc(*c == '|' ? ' ' : *c, file);
            fprintf(file, "\" -- \"$word\"); ");
        }
        fprintf(file, "return ;;\n");
    }
    fprintf(file, "    esac\n");
}

void options_bash_rows(const options_table_t *table, FILE *file) {
    parser_t p;
    make_parser(&p, table, NULL);
    print_words(&p, file);
    fprintf(file, "    [[ $word == -* ]] && mapfile -t COMPREPLY < <(compgen -W \"");
    for (size_t i = 0; i < p.n; i++)
        if (p.options[i].name != NULL && (p.options[i].flags & OPTION_HIDDEN) == 0)
            fprintf(file, " --%s", p.options[i].name);
    fprintf(file, "\" -- \"$word\")\n");
}

void options_bash(const options_table_t *table, const void *object, FILE *file) {
    (void)object;
    options_bash_begin(table->program, file);
    options_bash_rows(table, file);
    options_bash_end(table->program, file);
}

/* ---- documents ------------------------------------------------------------------------------- */

/* A bar would end a cell. */
static void print_cell(const char *text, FILE *file) {
    for (; *text != '\0'; text++)
        fprintf(file, *text == '|' ? "\\|" : "%c", *text);
}

void options_markdown(const options_table_t *table, const void *object, FILE *file) {
    parser_t p;
    make_parser(&p, table, object);
    fprintf(file, "| option | default | meaning |\n|---|---|---|\n");
    for (size_t i = 0; i < p.n; i++) {
        if (p.options[i].name == NULL || (p.options[i].flags & OPTION_HIDDEN) != 0)
            continue;
        const options_row_t *row = &p.rows.all[p.options[i].key - FIRST_KEY];
        fprintf(file, "| `--%s%s", row->option.name, p.options[i].arg != NULL ? " " : "");
        print_cell(p.options[i].arg != NULL ? p.options[i].arg : "", file);
        fprintf(file, "` | %s | ", usual_of(row, object).text);
        print_cell(row->option.help, file);
        if (row->option.more != NULL)
            fprintf(file, "; %s", row->option.more);
        if (row->option.key != NULL)
            fprintf(file, "; `%s`", row->option.key);
        fprintf(file, " |\n");
    }
}
