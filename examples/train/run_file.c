/*
 * Both forms become one object, whose values become texts as a command line has them. Of TOML there
 * is what a list of options needs: lines of `name = value`, and comments. A library for all of it
 * would be read for this alone.
 */
#include "examples/train/run_file.h"

#include <ctype.h>
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "examples/common/files.h"

/* ---- TOML ------------------------------------------------------------------------------------ */

static char *skip_blanks(char *text) {
    return text + strspn(text, " \t\r");
}

/* The end of a value: what is behind it is blank, or a comment. */
static char *end_of_value(char *text) {
    char quote = '\0';
    for (; *text != '\0'; text++) {
        if (quote == '"' && *text == '\\' && text[1] != '\0')
            text++;
        else if (quote != '\0')
            quote = *text == quote ? '\0' : quote;
        else if (*text == '"' || *text == '\'')
            quote = *text;
        else if (*text == '#')
            break;
    }
    while (*text == '#' || *text == '\0' || isspace((unsigned char)*text)) {
        if (!isspace((unsigned char)text[-1]))
            break;
        text--;
    }
    return text;
}

/* Values of a line are those of JSON, and strings without escapes between single quotes. */
static json_t *parse_value(const char *text) {
    size_t n = strlen(text);
    if (n >= 2 && text[0] == '\'' && strchr(text + 1, '\'') == text + n - 1)
        return json_stringn(text + 1, n - 2);
    if (n > 18 && strspn(text, "0123456789") == n) /* more than JSON's integers have here */
        return json_string(text);
    return json_loads(text, JSON_DECODE_ANY, NULL);
}

/* A name as TOML may have it, without the quotes. */
static char *unquoted(char *name) {
    size_t n = strlen(name);
    if (n < 2 || (name[0] != '"' && name[0] != '\'') || name[n - 1] != name[0])
        return name;
    name[n - 1] = '\0';
    return name + 1;
}

static zr_status_t read_line(char *line, size_t number, const zr_log_t *log, json_t *root) {
    line = skip_blanks(line);
    if (*line == '\0' || *line == '#')
        return ZR_OK;
    char *equals = strchr(line, '='), *end = equals;
    if (equals == NULL || *line == '[')
        return zr_fail(log, ZR_ERR_FORMAT,
                       "line %zu: \"%.40s\" is not NAME = VALUE; tables are not supported: options "
                       "have no sections",
                       number, line);
    while (end > line && isspace((unsigned char)end[-1]))
        end--;
    *end = '\0';
    line = unquoted(line);
    char *value = skip_blanks(equals + 1);
    if (*value != '\0')
        *end_of_value(value) = '\0';
    json_t *parsed = parse_value(value);
    if (parsed == NULL)
        return zr_fail(log, ZR_ERR_FORMAT,
                       "line %zu: the value of %.40s is not a string in quotes, a number, true, "
                       "false or a list of these on one line",
                       number, line);
    bool is_new = json_object_get(root, line) == NULL;
    if (json_object_set_new(root, line, parsed) != 0)
        return zr_fail(log, ZR_ERR_MEMORY, "line %zu: no memory, or no UTF-8", number);
    return is_new ? ZR_OK
                  : zr_fail(log, ZR_ERR_FORMAT, "line %zu: %.40s is there twice", number, line);
}

static zr_status_t read_toml(FILE *file, const zr_log_t *log, json_t **root_p) {
    json_t *root = *root_p = json_object();
    char *line = NULL;
    size_t size = 0, number = 1;
    ssize_t n;
    zr_status_t status = ZR_OK;
    for (; status == ZR_OK && (n = getline(&line, &size, file)) >= 0; number++) {
        line[n > 0 && line[n - 1] == '\n' ? n - 1 : n] = '\0';
        status = read_line(line, number, log, root);
    }
    free(line);
    if (status == ZR_OK && ferror(file))
        status = zr_fail(log, ZR_ERR_IO, "cannot read it: %s", strerror(errno));
    return status;
}

/* Editors of some systems begin a text with it. */
static void skip_byte_order_mark(FILE *file) {
    unsigned char mark[3];
    if (fread(mark, 1, 3, file) != 3 || memcmp(mark, "\xef\xbb\xbf", 3) != 0)
        rewind(file);
}

static zr_status_t read_json(FILE *file, const zr_log_t *log, json_t **root_p) {
    json_error_t error;
    int first = getc(file);
    if (first == EOF && !ferror(file))
        return zr_fail(log, ZR_ERR_FORMAT,
                       "is empty; an object is wanted: {\"option\": value, ...}");
    ungetc(first, file);
    *root_p = json_loadf(file, JSON_REJECT_DUPLICATES, &error);
    if (*root_p == NULL)
        return zr_fail(
            log, ZR_ERR_FORMAT, "line %d, column %d: %s%s", error.line, error.column, error.text,
            json_error_code(&error) == json_error_numeric_overflow ? "; write it in quotes" : "");
    return json_is_object(*root_p)
               ? ZR_OK
               : zr_fail(log, ZR_ERR_FORMAT, "is no object: {\"option\": value, ...}");
}

/* ---- values ---------------------------------------------------------------------------------- */

/* A value as a command line has it; a new string, NULL: it is none. */
static json_t *text_of(const zr_option_t *option, const json_t *value) {
    bool is_flag = option->type == ZR_OPTION_FLAG;
    if (is_flag)
        return json_is_boolean(value) ? json_string("") : NULL;
    if (json_is_string(value) && json_string_length(value) > 0)
        return json_string(json_string_value(value));
    if (json_is_boolean(value) && option->type == ZR_OPTION_SWITCH && option->choices == NULL)
        return json_string(json_is_true(value) ? "on" : "off");
    if (!json_is_number(value))
        return NULL;
    double number = json_number_value(value);
    if (json_is_real(value) && number == floor(number) && fabs(number) < 1e15)
        return json_sprintf("%.0f", number);
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(17));
    json_t *string = text != NULL ? json_string(text) : NULL;
    free(text);
    return string;
}

/* A list of one option, with commas between. */
static json_t *join(const zr_option_t *option, const json_t *list) {
    char text[ZR_CONFIG_PATHS_BYTES * 4] = "";
    size_t used = 0, i;
    json_t *part;
    json_array_foreach((json_t *)(uintptr_t)list, i, part) {
        json_t *one = text_of(option, part);
        if (one != NULL && used < sizeof(text))
            used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%s", i > 0 ? "," : "",
                                     json_string_value(one));
        else
            used = sizeof(text);
        json_decref(one);
    }
    return used > 0 && used < sizeof(text) ? json_string(text) : NULL;
}

typedef struct adding {
    const zr_log_t *log;
    options_given_t *given;
    json_t *texts; /* owns the values */
    size_t n;
} adding_t;

static zr_status_t refuse_value(const adding_t *adding, const zr_option_t *option,
                                const json_t *value) {
    char *text = json_dumps(value, JSON_ENCODE_ANY);
    zr_status_t status = zr_fail(adding->log, ZR_ERR_ARGUMENT, "%s is %.60s; allowed: %s",
                                 option->name, text != NULL ? text : "no value",
                                 option->type == ZR_OPTION_FLAG ? "true or false"
                                 : option->type == ZR_OPTION_SWITCH
                                     ? "a text that is not empty, a number, true or false"
                                     : "a text that is not empty, a number, or a list of these");
    free(text);
    return status;
}

/* text: a new one, of the value. */
static zr_status_t add_text(adding_t *adding, const zr_option_t *option, json_t *text,
                            const json_t *value) {
    if (text == NULL || json_array_append_new(adding->texts, text) != 0)
        return refuse_value(adding, option, value);
    adding->n++;
    return options_note(adding->given, option->name, json_string_value(text),
                        (option->flags & ZR_OPTION_SEVERAL) != 0, adding->log);
}

static zr_status_t add_value(adding_t *adding, const zr_option_t *option, const json_t *value) {
    size_t i;
    json_t *part;
    if (option->type == ZR_OPTION_FLAG && json_is_false(value))
        return ZR_OK;
    if (!json_is_array(value))
        return add_text(adding, option, text_of(option, value), value);
    if ((option->flags & ZR_OPTION_SEVERAL) == 0)
        return add_text(adding, option, join(option, value), value);
    json_array_foreach((json_t *)(uintptr_t)value, i, part) {
        ZR_TRY(add_text(adding, option, text_of(option, part), part));
    }
    return ZR_OK;
}

static zr_status_t refuse_name(const options_rows_t *rows, const char *name, const zr_log_t *log) {
    const char *names[ZR_OPTIONS_MOST];
    for (size_t i = 0; i < rows->n; i++)
        names[i] = rows->all[i].option.name;
    return zr_fail(log, ZR_ERR_ARGUMENT, "%.60s is not an option of a run%s", name,
                   args_hint(zr_name_nearest(name, names, rows->n)).text);
}

static zr_status_t add_all(adding_t *adding, json_t *root) {
    const options_given_t by_command = *adding->given;
    options_rows_t rows;
    const char *key;
    json_t *value;
    options_rows(&train_table, &rows);
    json_object_foreach(root, key, value) {
        char name[64];
        snprintf(name, sizeof(name), "%s", key);
        for (char *c = name; *c != '\0'; c++)
            *c = *c == '_' ? '-' : *c;
        const options_row_t *row = options_find(&rows, name);
        bool is_command =
            strcmp(name, "run") == 0 || strcmp(name, "help") == 0 || strcmp(name, "version") == 0;
        if (is_command)
            return zr_fail(adding->log, ZR_ERR_ARGUMENT, "%s is for the command line alone", key);
        if (row == NULL)
            return refuse_name(&rows, key, adding->log);
        if (options_value(&by_command, row->option.name) != NULL)
            continue;
        if (options_value(adding->given, row->option.name) != NULL)
            return zr_fail(adding->log, ZR_ERR_ARGUMENT,
                           "%s is there twice, with \"-\" and with \"_\", which is the same name",
                           row->option.name);
        ZR_TRY(add_value(adding, &row->option, value));
    }
    return ZR_OK;
}

zr_status_t train_run_file_read(const char *path, const zr_log_t *log, options_given_t *given,
                                size_t *n_p, struct json_t **root_p) {
    char label[512];
    json_t *root = NULL;
    FILE *file = fopen(path, "re");
    snprintf(label, sizeof(label), "--run %s:", path);
    files_log_t named = {*log, label};
    zr_log_t own_log = files_log(&named);
    if (file == NULL)
        return zr_fail(&own_log, ZR_ERR_IO, "cannot open it: %s", strerror(errno));
    if (files_is_folder(path)) {
        fclose(file);
        return zr_fail(&own_log, ZR_ERR_ARGUMENT, "is a folder; a file is wanted");
    }
    skip_byte_order_mark(file);
    zr_status_t status = files_name_ends(path, ".toml") ? read_toml(file, &own_log, &root)
                                                        : read_json(file, &own_log, &root);
    fclose(file);
    adding_t adding = {.log = &own_log, .given = given, .texts = json_array()};
    ZR_THEN(status, add_all(&adding, root));
    json_decref(root);
    *root_p = adding.texts;
    *n_p = adding.n;
    return status;
}
