/*
 * Reads and writes descriptions of hardware: see hardware_json.h. What figures there are is the
 * table's to say (zr_hardware_figures), where a dot in a name makes a section.
 */
#include "zero/hardware_json.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/text_file.h"
#include "zero/options.h"

#define FILE_MAX_BYTES ((size_t)1 << 20) /* none is larger; /dev/zero is */

/** One reading of a file. */
typedef struct reader {
    const char *path;
    const zr_log_t *log;
    zr_hardware_t hardware;
    bool has_kind;
    zr_status_t status; /* of the first error */
} reader_t;

ZR_PRINTF(2, 3) static void report(reader_t *reader, const char *format, ...) {
    char message[2048];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof(message), format, arguments);
    va_end(arguments);
    zr_status_t logged = zr_fail(reader->log, ZR_ERR_ARGUMENT, "%s: %s", reader->path, message);
    if (reader->status == ZR_OK)
        reader->status = logged;
}

/* ---- names ----------------------------------------------------------------------------------- */

static const zr_figure_t *find_figure(const char *name) {
    size_t n = 0;
    const zr_figure_t *figures = zr_hardware_figures(&n);
    for (size_t i = 0; i < n; i++)
        if (strcmp(figures[i].name, name) == 0)
            return &figures[i];
    return NULL;
}

/* Length of the section of a figure's name; 0: it is in none. */
static size_t section_length(const char *name) {
    const char *dot = strchr(name, '.');
    return dot != NULL ? (size_t)(dot - name) : 0;
}

static bool is_section(const char *name) {
    size_t n = 0, length = strlen(name);
    const zr_figure_t *figures = zr_hardware_figures(&n);
    for (size_t i = 0; i < n; i++)
        if (length > 0 && section_length(figures[i].name) == length &&
            strncmp(figures[i].name, name, length) == 0)
            return true;
    return false;
}

/* What a name is probably a slip of: a figure, its section, or a key that is none; or NULL. */
static const char *nearest(const char *name) {
    const char *names[256] = {"name", "kind", "sources"};
    size_t n = 0, n_names = 3;
    const zr_figure_t *figures = zr_hardware_figures(&n);
    for (size_t i = 0; i < n && n_names < 256; i++)
        names[n_names++] = figures[i].name;
    return zr_name_nearest(name, names, n_names);
}

static void refuse_name(reader_t *reader, const char *name) {
    const char *near = nearest(name);
    report(reader, "unknown figure \"%.64s\"%s%s%s", name, near != NULL ? "; is it \"" : "",
           near != NULL ? near : "", near != NULL ? "\"?" : "");
}

/* ---- reading --------------------------------------------------------------------------------- */

static bool is_whole(zr_figure_type_t type) {
    return type == ZR_FIGURE_BYTES || type == ZR_FIGURE_COUNT;
}

static void read_figure(reader_t *reader, const char *name, const json_t *value) {
    const zr_figure_t *figure = find_figure(name);
    if (figure == NULL) {
        refuse_name(reader, name);
        return;
    }
    double number = json_number_value(value);
    if (!json_is_number(value)) {
        report(reader, "%s must be a number: %s", name, figure->what);
        return;
    }
    if (is_whole(figure->type) && (number != floor(number) ||
                                   number < (figure->may_be_zero ? 0.0 : 1.0) || number > 0x1p52)) {
        report(reader, "%s is %.17g; it must be a whole number, at least %d and at most 2^52", name,
               number, figure->may_be_zero ? 0 : 1);
        return;
    }
    if (figure->type == ZR_FIGURE_COUNT && number > 1 << 20) {
        report(reader, "%s is %.17g; 1 to 1048576 are allowed", name, number);
        return;
    }
    zr_hardware_set_figure(&reader->hardware, figure, number);
}

static void read_section(reader_t *reader, const char *section, json_t *values) {
    const char *key;
    json_t *value;
    char name[128];
    if (!json_is_object(values)) {
        report(reader, "%s must be an object with its figures", section);
        return;
    }
    json_object_foreach(values, key, value) {
        snprintf(name, sizeof(name), "%s.%s", section, key);
        read_figure(reader, name, value);
    }
}

static void read_name(reader_t *reader, const json_t *value) {
    size_t room = sizeof(reader->hardware.name);
    if (!json_is_string(value) || json_string_length(value) == 0 ||
        json_string_length(value) >= room)
        report(reader, "name must be a text of 1 to %zu bytes", room - 1);
    else
        snprintf(reader->hardware.name, room, "%s", json_string_value(value));
}

static void read_kind(reader_t *reader, const json_t *value) {
    const char *text = json_is_string(value) ? json_string_value(value) : "";
    reader->has_kind = true;
    if (strcmp(text, "cuda") == 0)
        reader->hardware.kind = ZR_HARDWARE_CUDA;
    else if (strcmp(text, "host") != 0)
        report(reader, "kind must be \"host\" or \"cuda\"");
}

static void check_sources(reader_t *reader, json_t *sources) {
    const char *key;
    json_t *value;
    if (!json_is_object(sources)) {
        report(reader, "sources must be an object with a text for each figure");
        return;
    }
    json_object_foreach(sources, key, value) {
        if (find_figure(key) == NULL && !is_section(key))
            refuse_name(reader, key);
        else if (!json_is_string(value))
            report(reader, "the source of %s must be a text", key);
    }
}

static void read_top(reader_t *reader, json_t *root) {
    const char *key;
    json_t *value;
    json_object_foreach(root, key, value) {
        if (strcmp(key, "name") == 0)
            read_name(reader, value);
        else if (strcmp(key, "kind") == 0)
            read_kind(reader, value);
        else if (strcmp(key, "sources") == 0)
            check_sources(reader, value);
        else if (is_section(key))
            read_section(reader, key, value);
        else
            read_figure(reader, key, value);
    }
}

static const json_t *value_of(const json_t *root, const char *name) {
    size_t length = section_length(name);
    char section[64];
    if (length == 0)
        return json_object_get(root, name);
    snprintf(section, sizeof(section), "%.*s", (int)length, name);
    return json_object_get(json_object_get(root, section), name + length + 1);
}

/* Keys that are missing; of a section that is missing as a whole, its name. */
typedef struct missing {
    char text[1536];
    size_t used, n;
} missing_t;

static void add_missing(missing_t *missing, const char *name, size_t length) {
    if (missing->used < sizeof(missing->text))
        missing->used +=
            (size_t)snprintf(missing->text + missing->used, sizeof(missing->text) - missing->used,
                             "%s%.*s", missing->n > 0 ? ", " : "", (int)length, name);
    missing->n++;
}

static void find_missing_figures(const reader_t *reader, json_t *root, missing_t *missing) {
    size_t n = 0;
    const zr_figure_t *figures = zr_hardware_figures(&n);
    char section[64] = "";
    for (size_t i = 0; i < n; i++) {
        const char *name = figures[i].name;
        size_t length = section_length(name);
        bool is_needed = reader->hardware.kind == ZR_HARDWARE_CUDA || !figures[i].is_of_cuda;
        if (!is_needed || value_of(root, name) != NULL)
            continue;
        bool is_said =
            length > 0 && strlen(section) == length && memcmp(section, name, length) == 0;
        snprintf(section, sizeof(section), "%.*s", (int)length, name);
        bool is_whole_section = length > 0 && json_object_get(root, section) == NULL;
        if (!is_whole_section)
            add_missing(missing, name, strlen(name));
        else if (!is_said)
            add_missing(missing, name, length);
    }
}

static void check_complete(reader_t *reader, json_t *root) {
    missing_t missing = {.n = 0};
    if (reader->hardware.name[0] == '\0')
        add_missing(&missing, "name", 4);
    if (!reader->has_kind)
        add_missing(&missing, "kind", 4);
    find_missing_figures(reader, root, &missing);
    if (missing.n > 0)
        report(reader,
               "missing: %s; every figure is required: start from a complete description, such as "
               "hardware/h200.json, or measure one with zero-bench --save-hardware FILE "
               "(docs/reference/hardware.md)",
               missing.text);
}

static zr_status_t load(const char *path, const zr_log_t *log, json_t **root_p) {
    json_error_t error;
    char *text;
    size_t n_bytes;
    ZR_TRY(zr_text_file_read(path, FILE_MAX_BYTES, log, &text, &n_bytes));
    json_t *root = json_loadb(text, n_bytes, JSON_REJECT_DUPLICATES, &error);
    free(text);
    if (root == NULL)
        return zr_fail(log, ZR_ERR_FORMAT, "%s: line %d, column %d: %s", path, error.line,
                       error.column, error.text);
    if (!json_is_object(root)) {
        json_decref(root);
        return zr_fail(log, ZR_ERR_FORMAT, "%s: it must be an object, { ... }", path);
    }
    *root_p = root;
    return ZR_OK;
}

zr_status_t zr_hardware_read_json(const char *path, const zr_log_t *log,
                                  zr_hardware_t *hardware_p) {
    json_t *root = NULL;
    if (path == NULL || hardware_p == NULL)
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "reading a hardware description needs a path and an output pointer");
    ZR_TRY(load(path, log, &root));
    reader_t reader = {.path = path, .log = log, .hardware = zr_hardware_default()};
    reader.hardware.name[0] = '\0';
    read_top(&reader, root);
    if (reader.status == ZR_OK)
        check_complete(&reader, root);
    json_decref(root);
    if (reader.status == ZR_OK)
        reader.status = zr_hardware_check_of(&reader.hardware, path, log);
    if (reader.status == ZR_OK)
        *hardware_p = reader.hardware;
    return reader.status;
}

/* ---- writing --------------------------------------------------------------------------------- */

/* The object that a figure stands in, made where it is not there yet; borrowed. */
static json_t *section_of(json_t *root, const char *name) {
    size_t length = section_length(name);
    char section[64];
    if (length == 0)
        return root;
    snprintf(section, sizeof(section), "%.*s", (int)length, name);
    if (json_object_get(root, section) == NULL)
        json_object_set_new(root, section, json_object());
    return json_object_get(root, section);
}

/* NULL or incomplete objects show in json_object_set_new's result. */
static bool put_all(const zr_hardware_t *hardware, const char *const *sources, json_t *root) {
    size_t n = 0;
    const zr_figure_t *figures = zr_hardware_figures(&n);
    json_t *texts = json_object();
    int failed = json_object_set_new(root, "name", json_string(hardware->name));
    failed |= json_object_set_new(root, "kind", json_string(zr_hardware_kind_name(hardware->kind)));
    for (size_t i = 0; i < n; i++) {
        const zr_figure_t *figure = &figures[i];
        size_t length = section_length(figure->name);
        double value = zr_hardware_figure(hardware, figure);
        if (figure->is_of_cuda && hardware->kind == ZR_HARDWARE_HOST)
            continue;
        failed |= json_object_set_new(
            section_of(root, figure->name), figure->name + length + (length > 0),
            is_whole(figure->type) ? json_integer((json_int_t)value) : json_real(value));
        if (sources != NULL && sources[i] != NULL)
            failed |= json_object_set_new(texts, figure->name, json_string(sources[i]));
    }
    failed |= json_object_set_new(root, "sources", texts);
    return failed == 0;
}

zr_status_t zr_hardware_write_json(const zr_hardware_t *hardware, const char *const *sources,
                                   const char *path, const zr_log_t *log) {
    zr_status_t status = zr_hardware_check(hardware, log);
    if (status != ZR_OK || path == NULL)
        return status != ZR_OK ? status
                               : zr_fail(log, ZR_ERR_ARGUMENT, "there is no path to write to");
    json_t *root = json_object();
    if (root == NULL || !put_all(hardware, sources, root)) {
        json_decref(root);
        return zr_fail(log, ZR_ERR_MEMORY, "no memory to write the description of \"%s\"",
                       hardware->name);
    }
    errno = 0;
    if (json_dump_file(root, path, JSON_INDENT(2) | JSON_REAL_PRECISION(17)) != 0)
        status = zr_fail(log, ZR_ERR_IO, "cannot write %s: %s", path,
                         errno != 0 ? strerror(errno) : "the text cannot be written as JSON");
    json_decref(root);
    return status;
}
