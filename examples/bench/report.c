/*
 * What was measured is described once, as the object of --json. For people the same fields stand
 * below each other, with units by the ends of their names; a list of objects is a table.
 */
#include <math.h>
#include <string.h>

#include "examples/bench/bench.h"
#include "examples/common/files.h"

typedef struct text {
    char text[256];
} text_t;

/* "12.3 GB/s", "4.56 ms"; numbers of other names as they are. */
static text_t number_text(const char *name, double value) {
    static const char prefixes[] = "TGMk mun";
    const char *unit = files_name_ends(name, "bytes_per_s") ? "B/s"
                       : files_name_ends(name, "per_s")     ? "/s"
                       : files_name_ends(name, "seconds")   ? "s"
                                                            : NULL;
    text_t text;
    double scale = 1e12;
    size_t i = 0;
    if (unit == NULL || value == 0.0) {
        bool is_whole = value == floor(value) && fabs(value) < 1e15;
        snprintf(text.text, sizeof(text.text), is_whole ? "%.0f" : "%.4g", value);
        return text;
    }
    for (; prefixes[i + 1] != '\0' && fabs(value) < scale; i++)
        scale *= 1e-3;
    snprintf(text.text, sizeof(text.text), "%.4g %.*s%s", value / scale, prefixes[i] != ' ',
             &prefixes[i], unit);
    return text;
}

static text_t value_text(const char *name, const json_t *value) {
    text_t text = {"-"};
    if (json_is_real(value))
        return number_text(name, json_real_value(value));
    if (json_is_integer(value))
        snprintf(text.text, sizeof(text.text), "%lld", (long long)json_integer_value(value));
    else if (json_is_string(value))
        snprintf(text.text, sizeof(text.text), "%s", json_string_value(value));
    else if (json_is_boolean(value))
        snprintf(text.text, sizeof(text.text), "%s", json_is_true(value) ? "yes" : "no");
    return text;
}

/* ---- tables ------------------------------------------------------------------------------- */

enum { MOST_COLUMNS = 48 };

typedef struct columns {
    text_t names[MOST_COLUMNS]; /* "ratio", "mpi.seconds" */
    size_t n;
} columns_t;

static const json_t *value_at(const json_t *object, const char *name) {
    const char *dot = strchr(name, '.');
    char first[64];
    if (dot == NULL)
        return json_object_get(object, name);
    snprintf(first, sizeof(first), "%.*s", (int)(dot - name), name);
    return json_object_get(json_object_get(object, first), dot + 1);
}

static void add_columns(const char *before, const json_t *row, columns_t *columns) {
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)row, name, value) {
        text_t column;
        size_t i = 0;
        snprintf(column.text, sizeof(column.text), "%s%s", before, name);
        if (json_is_object(value)) {
            snprintf(column.text, sizeof(column.text), "%s.", name);
            add_columns(column.text, value, columns);
            continue;
        }
        while (i < columns->n && strcmp(columns->names[i].text, column.text) != 0)
            i++;
        if (i == columns->n && i < MOST_COLUMNS)
            columns->names[columns->n++] = column;
    }
}

/* Texts to the left, numbers to the right. */
static void print_cell(const char *text, size_t width, bool is_text) {
    fprintf(stderr, is_text ? "  %-*s" : "  %*s", (int)width, text);
}

static void print_table(const json_t *rows) {
    columns_t columns = {.n = 0};
    size_t widths[MOST_COLUMNS], n_rows = json_array_size(rows);
    bool is_text[MOST_COLUMNS] = {false};
    for (size_t i = 0; i < n_rows; i++)
        add_columns("", json_array_get(rows, i), &columns);
    for (size_t k = 0; k < columns.n; k++) {
        const char *name = columns.names[k].text;
        widths[k] = strlen(name);
        for (size_t i = 0; i < n_rows; i++) {
            const json_t *value = value_at(json_array_get(rows, i), name);
            size_t width = strlen(value_text(name, value).text);
            widths[k] = width > widths[k] ? width : widths[k];
            is_text[k] |= json_is_string(value);
        }
        print_cell(name, widths[k], is_text[k]);
    }
    fputc('\n', stderr);
    for (size_t i = 0; i < n_rows; i++) {
        for (size_t k = 0; k < columns.n; k++) {
            const char *name = columns.names[k].text;
            print_cell(value_text(name, value_at(json_array_get(rows, i), name)).text, widths[k],
                       is_text[k]);
        }
        fputc('\n', stderr);
    }
}

/* ---- all of it ---------------------------------------------------------------------------- */

static void print_fields(const char *before, const json_t *object) {
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)object, name, value) {
        text_t full;
        snprintf(full.text, sizeof(full.text), "%s%s%s", before, before[0] != '\0' ? "." : "",
                 name);
        if (json_is_object(value))
            print_fields(full.text, value);
        else if (!json_is_array(value))
            fprintf(stderr, "  %-30s  %s\n", full.text, value_text(name, value).text);
        else if (json_is_object(json_array_get(value, 0)))
            print_table(value);
    }
}

int bench_report(const command_common_t *common, json_t *object, int code) {
    if (object == NULL) {
        zr_log_write(common->log, ZR_LOG_ERROR, "no memory for the result");
        return COMMAND_FAILED;
    }
    print_fields("", object);
    if (common->json)
        return command_print(object, code, common->log);
    json_decref(object);
    return code;
}
