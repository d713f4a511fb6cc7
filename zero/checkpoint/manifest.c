/* A manifest in its folder: see manifest_internal.h. What it says is of other files: manifest_*.c.
 */
#include "zero/checkpoint/manifest_internal.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "zero/checkpoint/file_internal.h"

void zr_manifest_clear(zr_manifest_t *manifest) {
    for (size_t i = 0; manifest->units != NULL && i < manifest->n_units; i++)
        free(manifest->units[i]);
    for (size_t i = 0; manifest->tensors != NULL && i < manifest->n_tensors; i++)
        free((char *)manifest->tensors[i].tensor.name);
    free(manifest->units);
    free(manifest->tensors);
    free(manifest->files);
    free(manifest->extents);
    for (size_t i = 0; manifest->arrays != NULL && i < manifest->n_arrays; i++)
        free(manifest->arrays[i].name);
    free(manifest->arrays);
    free(manifest->carried);
    free(manifest->optimizer);
    free(manifest->messages);
    free(manifest->trainer_json);
    *manifest = (zr_manifest_t){0};
}

bool zr_manifest_count_elems(int n_dims, const size_t *dims, size_t most, size_t *n_elems_p) {
    size_t n = 1;
    bool is_empty = false;
    for (int i = 0; i < n_dims; i++)
        is_empty |= dims[i] == 0;
    for (int i = 0; i < n_dims && !is_empty; i++) {
        if (dims[i] > most / n)
            return false;
        n *= dims[i];
    }
    *n_elems_p = is_empty ? 0 : n;
    return is_empty || n <= most;
}

/* ---- the optimizer's arrays ------------------------------------------------------------------ */

const char *zr_manifest_optimizer(const zr_manifest_t *manifest) {
    return manifest->optimizer != NULL ? manifest->optimizer : zr_adamw.name;
}

size_t zr_manifest_n_arrays(const zr_manifest_t *manifest) {
    return manifest->optimizer != NULL ? manifest->n_arrays : zr_adamw.rule.n_arrays;
}

zr_state_array_t zr_manifest_array(const zr_manifest_t *manifest, size_t index) {
    if (manifest->optimizer == NULL)
        return zr_adamw.rule.arrays[index];
    return (zr_state_array_t){manifest->arrays[index].name, manifest->arrays[index].encoding};
}

const zr_encoding_t *zr_manifest_encoding(const zr_manifest_t *manifest,
                                          const zr_manifest_extent_t *extent, size_t array) {
    return array == 0 ? zr_encoding_of(extent->dtype) : zr_manifest_array(manifest, array).encoding;
}

uint64_t zr_manifest_array_offset(const zr_manifest_t *manifest, const zr_manifest_extent_t *extent,
                                  size_t array, size_t group_elems) {
    uint64_t n_bytes = 0;
    for (size_t i = 0; i < array; i++)
        n_bytes += zr_encoding_bytes(zr_manifest_encoding(manifest, extent, i), group_elems);
    return n_bytes;
}

uint64_t zr_manifest_extent_bytes(const zr_manifest_t *manifest,
                                  const zr_manifest_extent_t *extent) {
    size_t n_arrays = (size_t)extent->n_arrays, group = extent->group_elems;
    return extent->n_elems / group * zr_manifest_array_offset(manifest, extent, n_arrays, group) +
           zr_manifest_array_offset(manifest, extent, n_arrays, extent->n_elems % group);
}

/* "folder/manifest.json" for messages; NULL: no memory. */
static char *path_of(const char *folder) {
    char *path = NULL;
    return asprintf(&path, "%s/%s", folder, ZR_MANIFEST_NAME) < 0 ? NULL : path;
}

static zr_status_t no_memory(const char *folder, const zr_log_t *log) {
    return zr_fail(log, ZR_ERR_MEMORY, "%s: no memory for its manifest", folder);
}

/* ---- reading --------------------------------------------------------------------------------- */

static zr_status_t read_text(int folder_fd, const char *folder, const zr_log_t *log, char **text_p,
                             size_t *n_bytes_p) {
    zr_file_t file;
    uint64_t n_bytes = 0;
    ZR_TRY(zr_file_open(folder_fd, folder, ZR_MANIFEST_NAME, log, &file, &n_bytes));
    zr_status_t status = ZR_OK;
    char *text = NULL;
    if (n_bytes > ZR_MANIFEST_MAX_BYTES)
        status = zr_fail(log, ZR_ERR_FORMAT,
                         "%s/%s: %s, too large for a manifest; at most %s are allowed", folder,
                         file.name, zr_size_text(n_bytes).text,
                         zr_size_text(ZR_MANIFEST_MAX_BYTES).text);
    if (status == ZR_OK && (text = malloc((size_t)n_bytes + 1)) == NULL)
        status = no_memory(folder, log);
    ZR_THEN(status, zr_file_read(&file, 0, text, (size_t)n_bytes, log));
    zr_file_close(&file);
    if (status != ZR_OK) {
        free(text);
        return status;
    }
    text[n_bytes] = '\0';
    *text_p = text;
    *n_bytes_p = (size_t)n_bytes;
    return ZR_OK;
}

/* Before anything is parsed. What is damaged is for who parses to say. */
static zr_status_t check_signature(const char *text, size_t n_bytes, const char *where,
                                   const zr_secret_t *secret, const zr_log_t *log) {
    if (secret == NULL || !secret->is_given || !zr_manifest_is_sealed(text, n_bytes) ||
        zr_manifest_is_signed(text, n_bytes, secret))
        return ZR_OK;
    if (zr_manifest_signature(text, n_bytes) == NULL)
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "%s: it is not signed, but a secret was given to verify it; if you trust "
                       "its origin, leave the secret out (zero-train: "
                       "--checkpoint-sign write)",
                       where);
    return zr_fail(log, ZR_ERR_ARGUMENT,
                   "%s: its signature does not match the secret: it was saved with another secret, "
                   "or changed by somebody without the secret",
                   where);
}

static zr_status_t parse(int folder_fd, const char *folder, const zr_secret_t *secret,
                         const zr_log_t *log, zr_manifest_t *manifest_p) {
    char *text = NULL, *where = path_of(folder);
    size_t n_bytes = 0;
    if (where == NULL)
        return no_memory(folder, log);
    zr_status_t status = read_text(folder_fd, folder, log, &text, &n_bytes);
    ZR_THEN(status, check_signature(text, n_bytes, where, secret, log));
    ZR_THEN(status, zr_manifest_parse(text, n_bytes, where, log, manifest_p));
    free(text);
    free(where);
    return status;
}

static zr_status_t check_size(int folder_fd, const char *folder, const char *name, uint64_t size,
                              const zr_log_t *log) {
    zr_file_t file;
    uint64_t n_bytes = 0;
    ZR_TRY(zr_file_open(folder_fd, folder, name, log, &file, &n_bytes));
    zr_file_close(&file);
    if (n_bytes == size)
        return ZR_OK;
    return zr_fail(log, ZR_ERR_FORMAT, "%s/%s has %s; %" PRIu64 " were saved", folder, name,
                   zr_count_text(n_bytes, "byte").text, size);
}

static zr_status_t check_files(int folder_fd, const char *folder, const zr_log_t *log,
                               const zr_manifest_t *manifest) {
    for (size_t i = 0; i < manifest->n_files; i++) {
        const zr_manifest_file_t *file = &manifest->files[i];
        ZR_TRY(check_size(folder_fd, folder, file->data, file->data_bytes, log));
        ZR_TRY(check_size(folder_fd, folder, file->sums, 8 * (uint64_t)file->n_chunks, log));
    }
    for (size_t i = 0; i < manifest->n_carried; i++)
        ZR_TRY(check_size(folder_fd, folder, manifest->carried[i].name,
                          manifest->carried[i].n_bytes, log));
    return ZR_OK;
}

zr_status_t zr_manifest_read_at(int folder_fd, const char *folder, const zr_secret_t *secret,
                                const zr_log_t *log, zr_manifest_t *manifest_p) {
    zr_manifest_t manifest;
    ZR_TRY(parse(folder_fd, folder, secret, log, &manifest));
    zr_status_t status = check_files(folder_fd, folder, log, &manifest);
    if (status != ZR_OK) {
        zr_manifest_clear(&manifest);
        return status;
    }
    *manifest_p = manifest;
    return ZR_OK;
}

/* ---- writing --------------------------------------------------------------------------------- */

static zr_status_t write_text(const char *folder, const char *text, const zr_log_t *log) {
    int folder_fd = -1;
    zr_file_t file = {.fd = -1};
    ZR_TRY(zr_folder_open(folder, log, &folder_fd));
    zr_status_t status = zr_file_create(folder_fd, folder, ZR_MANIFEST_NAME, log, &file);
    ZR_THEN(status, zr_file_write(&file, 0, text, strlen(text), log));
    ZR_THEN(status, zr_file_sync_and_close(&file, log));
    zr_file_close(&file);
    close(folder_fd);
    return status;
}

zr_status_t zr_manifest_write(const zr_manifest_t *manifest, const char *folder,
                              const zr_log_t *log) {
    zr_manifest_t read = {0};
    char *text = NULL, *where = path_of(folder);
    if (where == NULL)
        return no_memory(folder, log);
    zr_status_t status = zr_manifest_check(manifest, where, log);
    ZR_THEN(status, zr_manifest_print(manifest, where, log, &text));
    /* Older checkpoints may be removed for this one: it has to pass the limits of reading. */
    ZR_THEN(status, zr_manifest_parse(text, strlen(text), where, log, &read));
    zr_manifest_clear(&read);
    ZR_THEN(status, write_text(folder, text, log));
    free(text);
    free(where);
    return status;
}
