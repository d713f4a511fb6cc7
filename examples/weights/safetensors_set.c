/*
 * Which file has a tensor is looked up in their headers, which stay in memory; data are read when
 * they are asked for.
 */
#include "examples/weights/safetensors_set.h"

#include <stdlib.h>
#include <string.h>

#include "examples/weights/weights.h"

#define STAGING_BYTES ((size_t)65536)

typedef struct safetensors_set_file set_file_t;

static void close_file(set_file_t *file) {
    in_file_close(&file->file);
    safetensors_clear(&file->header);
}

void safetensors_set_close(safetensors_set_t *set) {
    for (size_t i = 0; set->files != NULL && i < set->n_files; i++)
        close_file(&set->files[i]);
    free(set->files);
    *set = (safetensors_set_t){0};
}

/* ---- opening ----------------------------------------------------------------------------- */

static zr_status_t read_header(set_file_t *file, const zr_log_t *log) {
    char length_bytes[SAFETENSORS_LENGTH_BYTES] = {0};
    size_t length;
    if (file->file.size_bytes >= sizeof(length_bytes))
        ZR_TRY(in_file_read(&file->file, length_bytes, sizeof(length_bytes), 0, log));
    ZR_TRY(safetensors_length(length_bytes, file->file.size_bytes, file->file.path, log, &length));
    file->data_offset_bytes = sizeof(length_bytes) + length;
    char *text = malloc(length);
    if (text == NULL)
        return zr_fail(log, ZR_ERR_MEMORY, "no memory to read %s", file->file.path);
    zr_status_t status = in_file_read(&file->file, text, length, sizeof(length_bytes), log);
    ZR_THEN(status, safetensors_parse(text, length, file->file.size_bytes - file->data_offset_bytes,
                                      file->file.path, log, &file->header));
    free(text);
    return status;
}

/* Add a file whose tensors no other has. */
static zr_status_t add_file(safetensors_set_t *set, const char *path, const zr_log_t *log) {
    set_file_t file = {.file = {.fd = -1}};
    bool is_llmc;
    ZR_TRY(weights_look_at(path, log, &is_llmc));
    ZR_TRY(in_file_open(path, log, &file.file));
    zr_status_t status = read_header(&file, log);
    for (size_t i = 0; status == ZR_OK && i < file.header.n_tensors; i++) {
        const char *name = file.header.tensors[i].name;
        safetensors_place_t other = safetensors_set_find(set, name);
        if (other.tensor != NULL)
            status = zr_fail(log, ZR_ERR_FORMAT, "%s and %s both have a tensor \"%s\"",
                             set->files[other.file].file.path, path, name);
    }
    if (status == ZR_OK)
        set->files[set->n_files++] = file;
    else
        close_file(&file);
    return status;
}

static zr_status_t make_room(safetensors_set_t *set, size_t n_files, const zr_log_t *log) {
    set->files = calloc(n_files, sizeof(*set->files));
    return set->files != NULL ? ZR_OK
                              : zr_fail(log, ZR_ERR_MEMORY, "no memory for %s",
                                        zr_count_text(n_files, "file").text);
}

zr_status_t safetensors_set_open(const char *const *paths, size_t n_paths, const zr_log_t *log,
                                 safetensors_set_t *set_p) {
    safetensors_set_t set = {0};
    zr_status_t status = make_room(&set, n_paths, log);
    for (size_t i = 0; status == ZR_OK && i < n_paths; i++)
        status = add_file(&set, paths[i], log);
    if (status == ZR_OK)
        *set_p = set;
    else
        safetensors_set_close(&set);
    return status;
}

/* ---- an index ---------------------------------------------------------------------------- */

static zr_status_t open_files_of(const char *path, const safetensors_index_t *index,
                                 const zr_log_t *log, safetensors_set_t *set) {
    ZR_TRY(make_room(set, index->n_files, log));
    for (size_t i = 0; i < index->n_files; i++) {
        char *file = in_file_beside(path, false, index->files[i]);
        zr_status_t status =
            file != NULL ? add_file(set, file, log)
                         : zr_fail(log, ZR_ERR_MEMORY, "no memory to open %s", index->files[i]);
        free(file);
        if (status == ZR_ERR_ARGUMENT) /* its cause is logged */
            return zr_fail(log, ZR_ERR_FORMAT, "%s names \"%s\"", path, index->files[i]);
        ZR_TRY(status);
    }
    return ZR_OK;
}

/* Each tensor is where the index says, and no file has one more. */
static zr_status_t compare(const char *path, const safetensors_index_t *index, const zr_log_t *log,
                           const safetensors_set_t *set) {
    size_t n_tensors = 0;
    for (size_t i = 0; i < index->n_entries; i++) {
        const safetensors_index_entry_t *entry = &index->entries[i];
        if (safetensors_find(&set->files[entry->file].header, entry->tensor) == NULL)
            return zr_fail(log, ZR_ERR_FORMAT, "%s: tensor \"%s\" is not in \"%s\"", path,
                           entry->tensor, index->files[entry->file]);
    }
    for (size_t i = 0; i < set->n_files; i++)
        n_tensors += set->files[i].header.n_tensors;
    if (n_tensors != index->n_entries)
        return zr_fail(log, ZR_ERR_FORMAT, "%s names %s, and its files have %zu", path,
                       zr_count_text(index->n_entries, "tensor").text, n_tensors);
    return ZR_OK;
}

static zr_status_t read_index(const char *path, const zr_log_t *log, safetensors_index_t *index_p) {
    char *text;
    size_t n_bytes;
    ZR_TRY(in_file_text(path, SAFETENSORS_MAX_HEADER_BYTES, log, &text, &n_bytes));
    zr_status_t status = safetensors_index_parse(text, n_bytes, path, log, index_p);
    free(text);
    return status;
}

zr_status_t safetensors_set_open_index(const char *path, const zr_log_t *log,
                                       safetensors_set_t *set_p) {
    safetensors_index_t index;
    safetensors_set_t set = {0};
    ZR_TRY(read_index(path, log, &index));
    zr_status_t status = open_files_of(path, &index, log, &set);
    ZR_THEN(status, compare(path, &index, log, &set));
    safetensors_index_clear(&index);
    if (status == ZR_OK)
        *set_p = set;
    else
        safetensors_set_close(&set);
    return status;
}

/* ---- reading ----------------------------------------------------------------------------- */

safetensors_place_t safetensors_set_find(const safetensors_set_t *set, const char *name) {
    for (size_t i = 0; i < set->n_files; i++) {
        const safetensors_tensor_t *tensor = safetensors_find(&set->files[i].header, name);
        if (tensor != NULL)
            return (safetensors_place_t){.file = i, .tensor = tensor};
    }
    return (safetensors_place_t){0};
}

zr_status_t safetensors_set_read(const safetensors_set_t *set, safetensors_place_t place,
                                 size_t first, size_t n_elems, float *values, const zr_log_t *log) {
    const set_file_t *file = &set->files[place.file];
    const element_type_t *type = place.tensor->type;
    uint64_t offset_bytes =
        file->data_offset_bytes + place.tensor->offset_bytes + first * type->size_bytes;
    unsigned char staging[STAGING_BYTES];
    size_t most = sizeof(staging) / type->size_bytes;
    for (size_t done = 0; done < n_elems;) {
        size_t n = n_elems - done < most ? n_elems - done : most;
        ZR_TRY(in_file_read(&file->file, staging, n * type->size_bytes,
                            offset_bytes + done * type->size_bytes, log));
        elements_to_fp32(type->kind, staging, n, values + done);
        done += n;
    }
    return ZR_OK;
}
