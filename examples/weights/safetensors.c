/*
 * Source: the description of the format in the documentation of safetensors. Stricter than it is
 * what a name may be (no control characters, for messages show names).
 */
#include "examples/weights/safetensors.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "examples/common/json.h"

#define METADATA "__metadata__"
#define MAX_NAME_BYTES 1024
#define ALIGNMENT 8

/* What the functions that read a header share. */
typedef struct reading {
    const char *where;
    const zr_log_t *log;
    uint64_t data_bytes;
} reading_t;

void safetensors_clear(safetensors_header_t *header) {
    for (size_t i = 0; header->tensors != NULL && i < header->n_tensors; i++)
        free(header->tensors[i].name);
    free(header->tensors);
    free(header->model);
    *header = (safetensors_header_t){0};
}

/* ---- reading ----------------------------------------------------------------------------- */

zr_status_t safetensors_length(const void *bytes, uint64_t file_bytes, const char *where,
                               const zr_log_t *log, size_t *length_p) {
    uint64_t length;
    if (file_bytes < SAFETENSORS_LENGTH_BYTES)
        return zr_fail(log, ZR_ERR_FORMAT,
                       "%s: no safetensors file: it has %s, and the length of its "
                       "header needs 8",
                       where, zr_count_text(file_bytes, "byte").text);
    memcpy(&length, bytes, sizeof(length));
    if (length < 2 || length > file_bytes - SAFETENSORS_LENGTH_BYTES)
        return zr_fail(
            log, ZR_ERR_FORMAT,
            "%s: no safetensors file, or cut off: its header has %s, and the file %" PRIu64
            " behind the length",
            where, zr_count_text(length, "byte").text, file_bytes - SAFETENSORS_LENGTH_BYTES);
    if (length > SAFETENSORS_MAX_HEADER_BYTES)
        return zr_fail(log, ZR_ERR_FORMAT, "%s: its header has %s; at most %" PRIu64 " are read",
                       where, zr_count_text(length, "byte").text, SAFETENSORS_MAX_HEADER_BYTES);
    *length_p = (size_t)length;
    return ZR_OK;
}

/* Names stand in messages, which a terminal shows. */
static bool is_name(const char *name) {
    size_t length = strlen(name);
    for (size_t i = 0; i < length; i++)
        if ((unsigned char)name[i] < 0x20 || name[i] == 0x7f)
            return false;
    return length > 0 && length <= MAX_NAME_BYTES;
}

static zr_status_t refuse(const reading_t *r, const char *name, const char *what) {
    return zr_fail(r->log, ZR_ERR_FORMAT, "%s: tensor \"%s\": %s", r->where, name, what);
}

static zr_status_t read_type(const reading_t *r, const char *name, const json_t *value,
                             safetensors_tensor_t *tensor) {
    if (!json_is_string(value))
        return refuse(r, name, "its dtype is missing, or not a string");
    tensor->type = element_type_find(json_string_value(value));
    if (tensor->type == NULL)
        return zr_fail(r->log, ZR_ERR_FORMAT,
                       "%s: tensor \"%s\": unknown dtype \"%.60s\"; F32, BF16 and F16 are read",
                       r->where, name, json_string_value(value));
    return ZR_OK;
}

static zr_status_t read_shape(const reading_t *r, const char *name, const json_t *value,
                              safetensors_tensor_t *tensor) {
    if (!json_is_array(value))
        return refuse(r, name, "its shape is missing, or not an array");
    if (json_array_size(value) > SAFETENSORS_MAX_DIMS)
        return zr_fail(r->log, ZR_ERR_FORMAT,
                       "%s: tensor \"%s\": its shape has %s; at most %d are read", r->where, name,
                       zr_count_text(json_array_size(value), "dimension").text,
                       SAFETENSORS_MAX_DIMS);
    tensor->n_dims = (int)json_array_size(value);
    tensor->n_elems = 1;
    for (int i = 0; i < tensor->n_dims; i++) {
        const json_t *dim = json_array_get(value, (size_t)i);
        if (!json_is_integer(dim) || json_integer_value(dim) < 0)
            return refuse(r, name, "its shape has an entry that is not a size");
        tensor->dims[i] = (size_t)json_integer_value(dim);
        if (__builtin_mul_overflow(tensor->n_elems, tensor->dims[i], &tensor->n_elems))
            return refuse(r, name, "its shape has more elements than there are numbers");
    }
    return ZR_OK;
}

static zr_status_t read_range(const reading_t *r, const char *name, const json_t *value,
                              safetensors_tensor_t *tensor) {
    const json_t *begin = json_array_get(value, 0), *end = json_array_get(value, 1);
    if (json_array_size(value) != 2 || !json_is_integer(begin) || !json_is_integer(end))
        return refuse(r, name, "its data_offsets are missing, or no two whole numbers");
    json_int_t first = json_integer_value(begin), last = json_integer_value(end);
    if (first < 0 || last < first || (uint64_t)last > r->data_bytes)
        return zr_fail(r->log, ZR_ERR_FORMAT,
                       "%s: tensor \"%s\": its data_offsets are [%lld, %lld], and the file has "
                       "%s of data: it is damaged or truncated",
                       r->where, name, (long long)first, (long long)last,
                       zr_count_text(r->data_bytes, "byte").text);
    tensor->offset_bytes = (uint64_t)first;
    tensor->size_bytes = (uint64_t)(last - first);
    size_t needed;
    if (__builtin_mul_overflow(tensor->n_elems, tensor->type->size_bytes, &needed) ||
        needed != tensor->size_bytes)
        return zr_fail(r->log, ZR_ERR_FORMAT,
                       "%s: tensor \"%s\": its shape has %s of %s, and its "
                       "data_offsets %s",
                       r->where, name, zr_count_text(tensor->n_elems, "element").text,
                       zr_count_text(tensor->type->size_bytes, "byte").text,
                       zr_count_text(tensor->size_bytes, "byte").text);
    return ZR_OK;
}

static zr_status_t read_tensor(const reading_t *r, const char *name, const json_t *value,
                               safetensors_tensor_t *tensor) {
    if (!is_name(name))
        return zr_fail(r->log, ZR_ERR_FORMAT,
                       "%s: a tensor's name is empty, has control characters, or more than %s",
                       r->where, zr_count_text((uint64_t)MAX_NAME_BYTES, "byte").text);
    if (!json_is_object(value))
        return refuse(r, name, "it is not an object");
    if (json_object_size(value) != 3)
        return refuse(r, name, "it has other keys than dtype, shape and data_offsets");
    ZR_TRY(read_type(r, name, json_object_get(value, "dtype"), tensor));
    ZR_TRY(read_shape(r, name, json_object_get(value, "shape"), tensor));
    ZR_TRY(read_range(r, name, json_object_get(value, "data_offsets"), tensor));
    tensor->name = strdup(name);
    return tensor->name != NULL ? ZR_OK : zr_fail(r->log, ZR_ERR_MEMORY, "%s: no memory", r->where);
}

static zr_status_t read_metadata(const reading_t *r, json_t *metadata,
                                 safetensors_header_t *header) {
    const char *key;
    json_t *value;
    if (!json_is_object(metadata))
        return zr_fail(r->log, ZR_ERR_FORMAT, "%s: " METADATA " is not an object", r->where);
    json_object_foreach(metadata, key, value) {
        if (!json_is_string(value))
            return zr_fail(r->log, ZR_ERR_FORMAT, "%s: " METADATA ": \"%.60s\" is not a string",
                           r->where, is_name(key) ? key : "?");
        if (strcmp(key, SAFETENSORS_MODEL_KEY) != 0)
            continue;
        header->model = strdup(json_string_value(value));
        if (header->model == NULL)
            return zr_fail(r->log, ZR_ERR_MEMORY, "%s: no memory", r->where);
    }
    return ZR_OK;
}

static int by_offset(const void *a, const void *b) {
    const safetensors_tensor_t *x = a, *y = b;
    if (x->offset_bytes != y->offset_bytes)
        return x->offset_bytes < y->offset_bytes ? -1 : 1;
    return (x->size_bytes > y->size_bytes) - (x->size_bytes < y->size_bytes);
}

static int by_name(const void *a, const void *b) {
    const safetensors_tensor_t *x = a, *y = b;
    return strcmp(x->name, y->name);
}

/* Every byte of the data belongs to one tensor. Those without bytes may stand between others. */
static zr_status_t check_ranges(const reading_t *r, safetensors_header_t *header) {
    uint64_t end = 0;
    const char *before = "the header";
    qsort(header->tensors, header->n_tensors, sizeof(*header->tensors), by_offset);
    for (size_t i = 0; i < header->n_tensors; i++) {
        const safetensors_tensor_t *tensor = &header->tensors[i];
        if (tensor->offset_bytes != end)
            return zr_fail(r->log, ZR_ERR_FORMAT,
                           "%s: the data of \"%s\" begins at %" PRIu64 ", %s where that of \"%s\" "
                           "ends, %" PRIu64,
                           r->where, tensor->name, tensor->offset_bytes,
                           tensor->offset_bytes < end ? "before" : "with a hole behind", before,
                           end);
        end += tensor->size_bytes;
        before = tensor->name;
    }
    if (end != r->data_bytes)
        return zr_fail(r->log, ZR_ERR_FORMAT,
                       "%s: its tensors have %s, and the file %" PRIu64 " behind the header",
                       r->where, zr_count_text(end, "byte").text, r->data_bytes);
    qsort(header->tensors, header->n_tensors, sizeof(*header->tensors), by_name);
    return ZR_OK;
}

static zr_status_t read_header(const reading_t *r, json_t *object, safetensors_header_t *header) {
    const char *name;
    json_t *value;
    header->tensors = calloc(json_object_size(object) + 1, sizeof(*header->tensors));
    if (header->tensors == NULL)
        return zr_fail(r->log, ZR_ERR_MEMORY, "%s: no memory for %s", r->where,
                       zr_count_text(json_object_size(object), "tensor").text);
    json_object_foreach(object, name, value) {
        if (strcmp(name, METADATA) == 0) {
            ZR_TRY(read_metadata(r, value, header));
            continue;
        }
        ZR_TRY(read_tensor(r, name, value, &header->tensors[header->n_tensors]));
        header->n_tensors++;
    }
    return check_ranges(r, header);
}

/* An object of a file that is not ours. */
static zr_status_t load_object(const char *text, size_t n_bytes, const char *where,
                               const zr_log_t *log, json_t **object_p) {
    json_error_t error;
    if (n_bytes == 0 || text[0] != '{')
        return zr_fail(log, ZR_ERR_FORMAT, "%s: its JSON does not begin with {", where);
    json_t *object = json_loadb(text, n_bytes, JSON_REJECT_DUPLICATES, &error);
    if (object == NULL)
        return zr_fail(log, ZR_ERR_FORMAT, "%s: its JSON, at byte %d: %s", where, error.position,
                       error.text);
    *object_p = object;
    return ZR_OK;
}

zr_status_t safetensors_parse(const char *text, size_t n_bytes, uint64_t data_bytes,
                              const char *where, const zr_log_t *log,
                              safetensors_header_t *header_p) {
    reading_t reading = {.where = where, .log = log, .data_bytes = data_bytes};
    safetensors_header_t header = {0};
    json_t *object;
    ZR_TRY(load_object(text, n_bytes, where, log, &object));
    zr_status_t status = read_header(&reading, object, &header);
    json_decref(object);
    if (status == ZR_OK)
        *header_p = header;
    else
        safetensors_clear(&header);
    return status;
}

const safetensors_tensor_t *safetensors_find(const safetensors_header_t *header, const char *name) {
    union { /* bsearch wants an element; its name is not written to */
        const char *given;
        char *name;
    } key = {.given = name};
    safetensors_tensor_t wanted = {.name = key.name};
    return header->n_tensors == 0
               ? NULL
               : bsearch(&wanted, header->tensors, header->n_tensors, sizeof(wanted), by_name);
}

/* ---- writing ----------------------------------------------------------------------------- */

static json_t *describe(const safetensors_tensor_t *tensor, uint64_t offset_bytes) {
    json_t *object = json_object(), *shape = json_array();
    json_put(&object, "dtype", json_string(tensor->type->name));
    for (int i = 0; i < tensor->n_dims; i++)
        json_append(&shape, json_count(tensor->dims[i]));
    JSON_PUT(&object, {"shape", shape},
             {"data_offsets", json_pack("[II]", (json_int_t)offset_bytes,
                                        (json_int_t)(offset_bytes + tensor->size_bytes))});
    return object;
}

/* The header's text, without what aligns it. */
static char *print_header(const safetensors_tensor_t *tensors, size_t n_tensors,
                          const char *model) {
    json_t *object = json_object();
    /* "pt": Hugging Face reads no file that does not say which library's layout it has. */
    json_t *metadata = json_pack("{s:s}", "format", "pt");
    if (model != NULL)
        json_put(&metadata, SAFETENSORS_MODEL_KEY, json_string(model));
    json_put(&object, METADATA, metadata);
    uint64_t offset_bytes = 0;
    for (size_t i = 0; i < n_tensors; i++) {
        json_put(&object, tensors[i].name, describe(&tensors[i], offset_bytes));
        offset_bytes += tensors[i].size_bytes;
    }
    char *text = json_dumps(object, JSON_COMPACT);
    json_decref(object);
    return text;
}

zr_status_t safetensors_build(const safetensors_tensor_t *tensors, size_t n_tensors,
                              const char *model, const zr_log_t *log, char **bytes_p,
                              size_t *n_bytes_p) {
    char *text = print_header(tensors, n_tensors, model), *bytes = NULL;
    size_t n_text = text == NULL ? 0 : strlen(text);
    size_t n_padded = (n_text + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    if (text != NULL)
        bytes = malloc(SAFETENSORS_LENGTH_BYTES + n_padded);
    if (bytes != NULL) {
        uint64_t length = n_padded;
        memcpy(bytes, &length, sizeof(length));
        memset(bytes + SAFETENSORS_LENGTH_BYTES, ' ', n_padded);
        memcpy(bytes + SAFETENSORS_LENGTH_BYTES, text, n_text);
        *bytes_p = bytes;
        *n_bytes_p = SAFETENSORS_LENGTH_BYTES + n_padded;
    }
    free(text);
    return bytes != NULL ? ZR_OK
                         : zr_fail(log, ZR_ERR_MEMORY, "no memory for a header of %s",
                                   zr_count_text(n_tensors, "tensor").text);
}

/* ---- the index --------------------------------------------------------------------------- */

void safetensors_index_clear(safetensors_index_t *index) {
    for (size_t i = 0; index->files != NULL && i < index->n_files; i++)
        free(index->files[i]);
    for (size_t i = 0; index->entries != NULL && i < index->n_entries; i++)
        free(index->entries[i].tensor);
    free(index->files);
    free(index->entries);
    *index = (safetensors_index_t){0};
}

/* A file beside the index: no folder, nothing hidden, and by its ending no index. */
static bool is_file_name(const char *name) {
    static const char ending[] = ".safetensors";
    size_t length = strlen(name);
    return is_name(name) && length <= 255 && name[0] != '.' && strpbrk(name, "/\\") == NULL &&
           length > strlen(ending) && strcmp(name + length - strlen(ending), ending) == 0;
}

/* The number of a file, which is added when it is not there yet; SIZE_MAX: no memory. Entries of
   one file mostly stand together, so the search begins with the last one. */
static size_t number_of_file(safetensors_index_t *index, const char *name) {
    for (size_t i = index->n_files; i-- > 0;)
        if (strcmp(index->files[i], name) == 0)
            return i;
    index->files[index->n_files] = strdup(name);
    return index->files[index->n_files] == NULL ? SIZE_MAX : index->n_files++;
}

static zr_status_t read_entry(const reading_t *r, const char *tensor, const json_t *value,
                              safetensors_index_t *index) {
    if (!is_name(tensor) || !json_is_string(value))
        return zr_fail(r->log, ZR_ERR_FORMAT,
                       "%s: weight_map has an unnamed tensor, or a file that is not a string",
                       r->where);
    const char *file = json_string_value(value);
    if (!is_file_name(file))
        return zr_fail(
            r->log, ZR_ERR_FORMAT,
            "%s: weight_map has \"%s\" in \"%.255s\"; allowed: names of .safetensors files in the "
            "folder of the index, without a folder and without a dot in front",
            r->where, tensor, is_name(file) ? file : "?");
    safetensors_index_entry_t *entry = &index->entries[index->n_entries];
    entry->file = number_of_file(index, file);
    entry->tensor = strdup(tensor);
    index->n_entries++;
    if (entry->file == SIZE_MAX || entry->tensor == NULL)
        return zr_fail(r->log, ZR_ERR_MEMORY, "%s: no memory", r->where);
    if (index->n_files > SAFETENSORS_MAX_FILES)
        return zr_fail(r->log, ZR_ERR_FORMAT, "%s: it names more than %d files", r->where,
                       SAFETENSORS_MAX_FILES);
    return ZR_OK;
}

static zr_status_t read_index(const reading_t *r, json_t *object, safetensors_index_t *index) {
    json_t *map = json_object_get(object, "weight_map"), *value;
    const char *tensor;
    if (!json_is_object(map) || json_object_size(map) == 0)
        return zr_fail(r->log, ZR_ERR_FORMAT,
                       "%s: its weight_map is missing, empty, or not an object", r->where);
    size_t n = json_object_size(map);
    index->entries = calloc(n, sizeof(*index->entries));
    index->files =
        calloc(n < SAFETENSORS_MAX_FILES ? n : SAFETENSORS_MAX_FILES + 1, sizeof(*index->files));
    if (index->entries == NULL || index->files == NULL)
        return zr_fail(r->log, ZR_ERR_MEMORY, "%s: no memory for %s", r->where,
                       zr_count_text(n, "tensor").text);
    json_object_foreach(map, tensor, value) ZR_TRY(read_entry(r, tensor, value, index));
    return ZR_OK;
}

zr_status_t safetensors_index_parse(const char *text, size_t n_bytes, const char *where,
                                    const zr_log_t *log, safetensors_index_t *index_p) {
    reading_t reading = {.where = where, .log = log};
    safetensors_index_t index = {0};
    json_t *object;
    ZR_TRY(load_object(text, n_bytes, where, log, &object));
    zr_status_t status = read_index(&reading, object, &index);
    json_decref(object);
    if (status == ZR_OK)
        *index_p = index;
    else
        safetensors_index_clear(&index);
    return status;
}
