/*
 * Parses a manifest. jansson reads the text; every object is then read by its table: all keys that
 * it has to have, and no others. What values mean together is zr_manifest_check's to say. The
 * text is looked through before, because what jansson makes of "{}" takes seventy times its bytes.
 */
#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "zero/checkpoint/manifest_fields_internal.h"
#include "zero/options.h"
#include "zero/config/whole.h"

typedef struct parser {
    const char *where;
    const zr_log_t *log;
    zr_status_t error; /* of a refusal; ZR_ERR_FORMAT where it is 0 */
    char object[64];   /* that is read: "extents[3]." or "" */
} parser_t;

ZR_PRINTF(2, 3) static zr_status_t refuse(const parser_t *p, const char *format, ...) {
    char reason[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(reason, sizeof(reason), format, arguments);
    va_end(arguments);
    return zr_fail(p->log, p->error != ZR_OK ? p->error : ZR_ERR_FORMAT, "%s: %s", p->where,
                   reason);
}

static zr_status_t no_memory(const parser_t *p) {
    return zr_fail(p->log, ZR_ERR_MEMORY, "%s: no memory to parse it", p->where);
}

/* ---- the text -------------------------------------------------------------------------------- */

/* Behind a string whose first quote is at `at`. */
static const char *skip_string(const char *at, const char *end) {
    for (at++; at < end && *at != '"'; at++)
        if (*at == '\\')
            at++;
    return at;
}

/* `depth`: of objects and lists around the text. */
static zr_status_t check_text(const parser_t *p, const char *text, size_t n_bytes, size_t depth) {
    const bool is_whole = depth == 0;
    size_t n_objects = 0;
    if (n_bytes > ZR_MANIFEST_MAX_BYTES)
        return refuse(p, "%s, too large for a manifest; at most %s are allowed",
                      zr_size_text(n_bytes).text, zr_size_text(ZR_MANIFEST_MAX_BYTES).text);
    /* jansson passes over some. */
    const char *zero = memchr(text, '\0', n_bytes);
    if (zero != NULL)
        return refuse(p, "its byte %zu is 0, which is not allowed in text", (size_t)(zero - text));
    for (const char *at = text, *end = text + n_bytes; at < end; at++) {
        if (*at == '"') {
            at = skip_string(at, end);
        } else if (*at == '{' || *at == '[') {
            n_objects++;
            if (++depth > ZR_MANIFEST_MAX_DEPTH)
                return refuse(p, "objects and lists lie %d deep at byte %zu; %d are allowed",
                              ZR_MANIFEST_MAX_DEPTH + 1, (size_t)(at - text),
                              ZR_MANIFEST_MAX_DEPTH);
        } else if ((*at == '}' || *at == ']') && depth > 0) {
            depth--;
        }
    }
    if (is_whole && n_objects > n_bytes / ZR_MANIFEST_MIN_BYTES_PER_OBJECT + ZR_MANIFEST_MAX_DEPTH)
        return refuse(p, "%zu objects and lists in %zu bytes, which no manifest has", n_objects,
                      n_bytes);
    return ZR_OK;
}

/* A text from a file, for a terminal. */
typedef struct shown {
    char text[161];
} shown_t;

static shown_t show(const char *text) {
    shown_t shown = {.text = ""};
    memcpy(shown.text, text, strnlen(text, sizeof(shown.text) - 1));
    for (char *letter = shown.text; *letter != '\0'; letter++)
        if ((unsigned char)*letter < 0x20 || (unsigned char)*letter > 0x7e)
            *letter = '?';
    return shown;
}

static zr_status_t load(const parser_t *p, const char *text, size_t n_bytes, size_t depth,
                        json_t **root_p) {
    json_error_t error;
    ZR_TRY(check_text(p, text, n_bytes, depth));
    json_t *root = json_loadb(text, n_bytes, JSON_REJECT_DUPLICATES, &error);
    if (root == NULL && (json_error_code(&error) == json_error_out_of_memory || !error.text[0]))
        return no_memory(p);
    if (root == NULL)
        return refuse(
            p, "line %d, column %d: %s%s", error.line, error.column, show(error.text).text,
            json_error_code(&error) == json_error_premature_end_of_input ? "; the file is truncated"
                                                                         : "");
    if (!zr_config_is_whole(text, root)) {
        json_decref(root);
        return no_memory(p);
    }
    *root_p = root;
    return ZR_OK;
}

/* ---- values ---------------------------------------------------------------------------------- */

static const char *type_of(const json_t *value) {
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "a list";
    case JSON_STRING:
        return "a text";
    case JSON_REAL:
        return "a number with a point or an exponent";
    case JSON_INTEGER:
        return json_integer_value(value) < 0 ? "negative" : "a whole number";
    case JSON_NULL:
        return "null";
    default:
        return json_is_true(value) ? "true" : "false";
    }
}

static zr_status_t refuse_type(const parser_t *p, const char *name, const json_t *value,
                               const char *wanted) {
    return refuse(p, "%s%s is %s, and must be %s", p->object, name, type_of(value), wanted);
}

static zr_status_t read_count(const parser_t *p, const char *name, const json_t *value, size_t most,
                              size_t *count_p) {
    if (!json_is_integer(value) || json_integer_value(value) < 0)
        return refuse_type(p, name, value, "a whole number, 0 or more");
    if ((size_t)json_integer_value(value) > most)
        return refuse(p, "%s%s is %" JSON_INTEGER_FORMAT "; at most %zu is allowed", p->object,
                      name, json_integer_value(value), most);
    *count_p = (size_t)json_integer_value(value);
    return ZR_OK;
}

static zr_status_t read_int(const parser_t *p, const char *name, const json_t *value, int *int_p) {
    size_t count = 0;
    ZR_TRY(read_count(p, name, value, INT_MAX, &count));
    *int_p = (int)count;
    return ZR_OK;
}

static zr_status_t read_dtype(const parser_t *p, const char *name, const json_t *value,
                              zr_dtype_t *dtype_p) {
    const char *text = json_string_value(value);
    for (int dtype = ZR_DTYPE_F32; text != NULL && dtype <= ZR_DTYPE_BF16; dtype++)
        if (strcmp(text, zr_dtype_name((zr_dtype_t)dtype)) == 0) {
            *dtype_p = (zr_dtype_t)dtype;
            return ZR_OK;
        }
    return text == NULL ? refuse_type(p, name, value, "\"fp32\" or \"bf16\"")
                        : refuse(p, "%s%s is \"%s\", and must be \"fp32\" or \"bf16\"", p->object,
                                 name, show(text).text);
}

static zr_status_t read_encoding(const parser_t *p, const char *name, const json_t *value,
                                 const zr_encoding_t **encoding_p) {
    const char *text = json_string_value(value);
    if (text == NULL)
        return refuse_type(p, name, value, "the name of an encoding");
    *encoding_p = zr_encoding_find(text);
    if (*encoding_p == NULL)
        return refuse(p, "%s%s is \"%s\", which is an unknown encoding", p->object, name,
                      show(text).text);
    return ZR_OK;
}

static zr_status_t read_sum(const parser_t *p, const char *name, const json_t *value,
                            uint64_t *sum_p) {
    const char *text = json_string_value(value);
    if (text == NULL || json_string_length(value) != 16 || strspn(text, "0123456789abcdef") != 16)
        return refuse_type(p, name, value, "a text of 16 hexadecimal digits");
    *sum_p = strtoull(text, NULL, 16);
    return ZR_OK;
}

static zr_status_t read_text(const parser_t *p, const char *name, const json_t *value,
                             char **text_p) {
    if (!json_is_string(value))
        return refuse_type(p, name, value, "a text");
    *text_p = strdup(json_string_value(value));
    return *text_p != NULL ? ZR_OK : no_memory(p);
}

static zr_status_t read_file_name(const parser_t *p, const char *name, const json_t *value,
                                  char file[64]) {
    if (!json_is_string(value) || json_string_length(value) >= 64)
        return refuse_type(p, name, value, "a text of at most 63 bytes");
    snprintf(file, 64, "%s", json_string_value(value));
    return ZR_OK;
}

/* Elements are counted by what checks: here they may overflow. */
static zr_status_t read_shape(const parser_t *p, const char *name, const json_t *value,
                              zr_checkpoint_tensor_t *tensor) {
    size_t n = json_array_size(value);
    if (!json_is_array(value) || n > 4)
        return refuse_type(p, name, value, "a list of at most 4 whole numbers");
    tensor->n_dims = (int)n;
    tensor->n_elems = 1;
    for (size_t i = 0; i < n; i++) {
        ZR_TRY(read_count(p, name, json_array_get(value, i), ZR_MANIFEST_MAX_ROW_ELEMS,
                          &tensor->dims[i]));
        tensor->n_elems *= tensor->dims[i];
    }
    return ZR_OK;
}

static zr_status_t read_value(const parser_t *p, const zr_manifest_field_t *field,
                              const json_t *value, void *place) {
    switch (field->type) {
    case ZR_MANIFEST_COUNT:
        return read_count(p, field->name, value, SIZE_MAX, place);
    case ZR_MANIFEST_INT:
        return read_int(p, field->name, value, place);
    case ZR_MANIFEST_BOOL:
        *(bool *)place = json_is_true(value);
        return json_is_boolean(value) ? ZR_OK : refuse_type(p, field->name, value, "true or false");
    case ZR_MANIFEST_DTYPE:
        return read_dtype(p, field->name, value, place);
    case ZR_MANIFEST_SUM:
        return read_sum(p, field->name, value, place);
    case ZR_MANIFEST_TEXT:
        return read_text(p, field->name, value, place);
    case ZR_MANIFEST_FILE:
        return read_file_name(p, field->name, value, place);
    case ZR_MANIFEST_ENCODING:
        return read_encoding(p, field->name, value, place);
    case ZR_MANIFEST_SHAPE:
        return read_shape(p, field->name, value, place);
    }
    return ZR_ERR_FORMAT;
}

/* ---- objects --------------------------------------------------------------------------------- */

static zr_status_t check_keys(const parser_t *p, json_t *object, const char *const *names,
                              size_t n_names) {
    const char *key;
    json_t *value;
    json_object_foreach(object, key, value) {
        size_t i = 0;
        while (i < n_names && strcmp(key, names[i]) != 0)
            i++;
        if (i < n_names)
            continue;
        const char *near = zr_name_nearest(key, names, n_names);
        return refuse(p, "there is no key \"%s%s\"%s%s%s", p->object, show(key).text,
                      near != NULL ? "; is it \"" : "", near != NULL ? near : "",
                      near != NULL ? "\"?" : "");
    }
    return ZR_OK;
}

static zr_status_t read_fields(const parser_t *p, const json_t *object,
                               const zr_manifest_field_t *fields, size_t n_fields, void *to) {
    for (size_t i = 0; i < n_fields; i++) {
        const json_t *value = json_object_get(object, fields[i].name);
        if (value == NULL)
            return refuse(p, "%s%s is missing", p->object, fields[i].name);
        ZR_TRY(read_value(p, &fields[i], value, (char *)to + fields[i].offset));
    }
    return ZR_OK;
}

static zr_status_t read_item(parser_t *p, const zr_manifest_list_t *list, size_t index,
                             json_t *item, void *to) {
    const char *names[16];
    snprintf(p->object, sizeof(p->object), "%s[%zu]", list->name, index);
    if (!json_is_object(item))
        return refuse_type(p, "", item, "an object");
    snprintf(p->object, sizeof(p->object), "%s[%zu].", list->name, index);
    ZR_TRY(read_fields(p, item, list->fields, list->n_fields, to));
    if (json_object_size(item) == list->n_fields)
        return ZR_OK;
    for (size_t i = 0; i < list->n_fields; i++)
        names[i] = list->fields[i].name;
    return check_keys(p, item, names, list->n_fields);
}

static zr_status_t read_list(parser_t *p, const json_t *root, const zr_manifest_list_t *list,
                             zr_manifest_t *manifest) {
    size_t i;
    json_t *items = json_object_get(root, list->name), *item;
    p->object[0] = '\0';
    if (items == NULL)
        return refuse(p, "%s is missing", list->name);
    if (!json_is_array(items))
        return refuse_type(p, list->name, items, "a list");
    char *array = calloc(json_array_size(items) + 1, list->item_bytes);
    if (array == NULL)
        return no_memory(p);
    memcpy((char *)manifest + list->items_offset, &array, sizeof(array));
    *(size_t *)((char *)manifest + list->n_offset) = json_array_size(items);
    json_array_foreach(items, i, item) {
        ZR_TRY(read_item(p, list, i, item, array + i * list->item_bytes));
    }
    p->object[0] = '\0';
    return ZR_OK;
}

/* Of another format or version, nothing else is looked at: it would be misread. */
static zr_status_t check_format(const parser_t *p, const json_t *root) {
    const char *format = json_string_value(json_object_get(root, "format"));
    const json_t *version = json_object_get(root, "version");
    if (!json_is_object(root))
        return refuse(p, "it is not an object, { ... }");
    if (format == NULL || strcmp(format, ZR_MANIFEST_FORMAT) != 0)
        return refuse(p, "it is not a manifest: its \"format\" is not \"%s\"", ZR_MANIFEST_FORMAT);
    if (!json_is_integer(version))
        return refuse(p, "it has no \"version\", which is a whole number");
    if (json_integer_value(version) != ZR_MANIFEST_VERSION)
        return refuse(p, "it is of version %" JSON_INTEGER_FORMAT "; this library reads version %d",
                      json_integer_value(version), ZR_MANIFEST_VERSION);
    return ZR_OK;
}

static zr_status_t check_top_keys(const parser_t *p, json_t *root) {
    const char *names[10 + ZR_N_MANIFEST_NUMBERS + ZR_N_MANIFEST_LISTS] = {"format",
                                                                           "version",
                                                                           "library",
                                                                           "trainer",
                                                                           "xxh3",
                                                                           ZR_MANIFEST_OPTIMIZER,
                                                                           "arrays",
                                                                           "carried",
                                                                           ZR_MANIFEST_MESSAGES,
                                                                           ZR_MANIFEST_SIGNATURE};
    size_t n = 10;
    for (size_t i = 0; i < ZR_N_MANIFEST_NUMBERS; i++)
        names[n++] = zr_manifest_numbers[i].name;
    for (size_t i = 0; i < ZR_N_MANIFEST_LISTS; i++)
        names[n++] = zr_manifest_lists[i].name;
    ZR_TRY(check_keys(p, root, names, n));
    if (!json_is_string(json_object_get(root, "library")))
        return refuse(p, "library is missing, or is not a text");
    return ZR_OK;
}

static zr_status_t read_trainer(const parser_t *p, const json_t *root, zr_manifest_t *manifest) {
    const json_t *trainer = json_object_get(root, "trainer");
    if (!json_is_object(trainer))
        return refuse(p, "trainer is missing, or is not an object");
    manifest->trainer_json = json_dumps(trainer, JSON_COMPACT | JSON_REAL_PRECISION(17));
    return manifest->trainer_json != NULL ? ZR_OK : no_memory(p);
}

/* Where it stands is a part of it: it is of all that is before. */
static zr_status_t read_signature(const parser_t *p, const json_t *root, const char *text,
                                  size_t n_bytes, zr_manifest_t *manifest) {
    const json_t *signature = json_object_get(root, ZR_MANIFEST_SIGNATURE);
    const char *digits = zr_manifest_signature(text, n_bytes);
    if (signature == NULL)
        return ZR_OK;
    if (digits == NULL || strspn(digits, "0123456789abcdef") != ZR_MANIFEST_SIGNATURE_DIGITS)
        return refuse(p,
                      ZR_MANIFEST_SIGNATURE
                      " must be a text of %d hexadecimal digits, before the final xxh3",
                      ZR_MANIFEST_SIGNATURE_DIGITS);
    manifest->is_signed = true;
    return ZR_OK;
}

/* It stands there of any but AdamW. */
static zr_status_t read_optimizer(parser_t *p, const json_t *root, zr_manifest_t *manifest) {
    const json_t *optimizer = json_object_get(root, ZR_MANIFEST_OPTIMIZER);
    bool has_arrays = json_object_get(root, zr_manifest_arrays.name) != NULL;
    if (optimizer == NULL && !has_arrays)
        return ZR_OK;
    if (optimizer == NULL || !has_arrays)
        return refuse(p, "%s is missing",
                      optimizer == NULL ? ZR_MANIFEST_OPTIMIZER : zr_manifest_arrays.name);
    ZR_TRY(read_text(p, ZR_MANIFEST_OPTIMIZER, optimizer, &manifest->optimizer));
    return read_list(p, root, &zr_manifest_arrays, manifest);
}

static zr_status_t read_all(parser_t *p, json_t *root, zr_manifest_t *manifest) {
    ZR_TRY(check_top_keys(p, root));
    ZR_TRY(read_fields(p, root, zr_manifest_numbers, ZR_N_MANIFEST_NUMBERS, manifest));
    for (size_t i = 0; i < ZR_N_MANIFEST_LISTS; i++)
        ZR_TRY(read_list(p, root, &zr_manifest_lists[i], manifest));
    ZR_TRY(read_optimizer(p, root, manifest));
    const json_t *messages = json_object_get(root, ZR_MANIFEST_MESSAGES);
    if (messages != NULL)
        ZR_TRY(read_text(p, ZR_MANIFEST_MESSAGES, messages, &manifest->messages));
    if (json_object_get(root, zr_manifest_carried.name) != NULL)
        ZR_TRY(read_list(p, root, &zr_manifest_carried, manifest));
    return read_trainer(p, root, manifest);
}

/* What is not of a tensor alone; the manifest has been checked. */
static zr_status_t complete_tensors(const parser_t *p, zr_manifest_t *m) {
    size_t n_rows = 2 * m->n_units, i = 0;
    bool *has_moments = calloc(n_rows + 1, sizeof(*has_moments));
    if (has_moments == NULL)
        return no_memory(p);
    for (i = 0; i < m->n_extents; i++)
        has_moments[2 * m->extents[i].unit + m->extents[i].frozen] = m->extents[i].n_arrays > 1;
    for (i = 0; i < m->n_tensors; i++) {
        zr_manifest_tensor_t *t = &m->tensors[i];
        t->tensor.unit = m->units[t->unit];
        t->tensor.has_moments = has_moments[2 * t->unit + t->tensor.frozen];
    }
    free(has_moments);
    return ZR_OK;
}

zr_status_t zr_manifest_parse(const char *text, size_t n_bytes, const char *where,
                              const zr_log_t *log, zr_manifest_t *manifest_p) {
    parser_t parser = {.where = where, .log = log};
    zr_manifest_t manifest = {0};
    json_t *root = NULL;
    ZR_TRY(load(&parser, text, n_bytes, 0, &root));
    zr_status_t status = check_format(&parser, root);
    if (status == ZR_OK && !zr_manifest_is_sealed(text, n_bytes))
        status = refuse(&parser, "it was changed: its text does not match the checksum at its end");
    ZR_THEN(status, read_all(&parser, root, &manifest));
    ZR_THEN(status, read_signature(&parser, root, text, n_bytes, &manifest));
    json_decref(root);
    ZR_THEN(status, zr_manifest_check(&manifest, where, log));
    ZR_THEN(status, complete_tensors(&parser, &manifest));
    if (status != ZR_OK) {
        zr_manifest_clear(&manifest);
        return status;
    }
    *manifest_p = manifest;
    return ZR_OK;
}

zr_status_t zr_manifest_check_trainer(const char *trainer_json, const zr_log_t *log) {
    const parser_t parser = {.where = "trainer_json", .log = log, .error = ZR_ERR_ARGUMENT};
    json_t *root = NULL;
    ZR_TRY(load(&parser, trainer_json, strlen(trainer_json), 1, &root));
    bool is_object = json_is_object(root);
    json_decref(root);
    return is_object ? ZR_OK : refuse(&parser, "it must be an object of JSON");
}
