/* An open checkpoint, and what a folder has: see checkpoint.h. */
#include "zero/checkpoint/checkpoint.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "zero/checkpoint/reader_internal.h"

/* ---- opening --------------------------------------------------------------------------------- */

static zr_status_t open_this(const char *path, int fd, const zr_secret_t *secret,
                             const zr_log_t *log, zr_folder_found_t *found) {
    ZR_TRY(zr_manifest_read_at(fd, path, secret, log, &found->manifest));
    found->path = strdup(path);
    if (found->path == NULL)
        return zr_fail(log, ZR_ERR_MEMORY, "%s: no memory for a path", path);
    found->fd = fd;
    return ZR_OK;
}

/* The checkpoint at a path, or the newest of a folder. */
static zr_status_t find(const char *path, size_t below, const zr_secret_t *secret,
                        const zr_log_t *log, zr_folder_found_t *found) {
    int fd = -1;
    ZR_TRY(zr_folder_open(path, log, &fd));
    if (faccessat(fd, ZR_MANIFEST_NAME, F_OK, AT_SYMLINK_NOFOLLOW) != 0) {
        close(fd);
        return zr_folder_newest(path, below, secret, log, found);
    }
    zr_status_t status = open_this(path, fd, secret, log, found);
    if (status != ZR_OK) {
        zr_manifest_clear(&found->manifest);
        close(fd);
    }
    return status;
}

zr_status_t zr_checkpoint_open(const char *path, const zr_log_t *log,
                               zr_checkpoint_t **checkpoint_p) {
    return zr_checkpoint_open_signed(path, NULL, log, checkpoint_p);
}

zr_status_t zr_checkpoint_open_signed(const char *path, const zr_secret_t *secret,
                                      const zr_log_t *log, zr_checkpoint_t **checkpoint_p) {
    if (path == NULL || checkpoint_p == NULL)
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "opening a checkpoint needs a path and an output pointer");
    return zr_checkpoint_open_below(path, SIZE_MAX, secret, log, checkpoint_p);
}

zr_status_t zr_checkpoint_open_below(const char *path, size_t below, const zr_secret_t *secret,
                                     const zr_log_t *log, zr_checkpoint_t **checkpoint_p) {
    zr_checkpoint_t *checkpoint = calloc(1, sizeof(*checkpoint));
    if (checkpoint == NULL)
        return zr_fail(log, ZR_ERR_MEMORY, "%s: no memory to open it", path);
    checkpoint->found.fd = -1;
    zr_status_t status = find(path, below, secret, log, &checkpoint->found);
    if (status != ZR_OK)
        goto err_free_checkpoint;
    const zr_manifest_t *manifest = &checkpoint->found.manifest;
    checkpoint->by_name = zr_manifest_tensors_by_name(manifest);
    checkpoint->by_row = zr_manifest_extents_by_row(manifest);
    if (checkpoint->by_name == NULL || checkpoint->by_row == NULL) {
        status = zr_fail(log, ZR_ERR_MEMORY, "%s: no memory to open it", path);
        goto err_close;
    }
    for (size_t i = 0; i < manifest->n_files; i++)
        checkpoint->data_bytes += manifest->files[i].data_bytes;
    if (manifest->is_signed && (secret == NULL || !secret->is_given))
        zr_log_write(log, ZR_LOG_INFO,
                     "%s is signed, but no secret was given to verify it: anybody with write "
                     "access may have changed it",
                     checkpoint->found.path);
    *checkpoint_p = checkpoint;
    return ZR_OK;

err_close:
    zr_checkpoint_close(&checkpoint);
    return status;
err_free_checkpoint:
    free(checkpoint);
    return status;
}

void zr_checkpoint_close(zr_checkpoint_t **checkpoint) {
    if (checkpoint == NULL || *checkpoint == NULL)
        return;
    zr_folder_found_clear(&(*checkpoint)->found);
    free((*checkpoint)->by_name);
    free((*checkpoint)->by_row);
    free(*checkpoint);
    *checkpoint = NULL;
}

/* ---- facts ----------------------------------------------------------------------------------- */

void zr_checkpoint_info(const zr_checkpoint_t *checkpoint, zr_checkpoint_info_t *info_p) {
    const zr_manifest_t *manifest = &checkpoint->found.manifest;
    *info_p =
        (zr_checkpoint_info_t){.path = checkpoint->found.path,
                               .step = manifest->step,
                               .n_updates = manifest->n_updates,
                               .n_ranks = manifest->n_ranks,
                               .stage = manifest->stage,
                               .dtype = manifest->dtype,
                               .n_tensors = manifest->n_tensors,
                               .data_bytes = checkpoint->data_bytes,
                               .optimizer = zr_manifest_optimizer(manifest),
                               .n_arrays = zr_manifest_n_arrays(manifest),
                               .messages = manifest->messages != NULL ? manifest->messages : "",
                               .is_signed = manifest->is_signed};
}

const char *zr_checkpoint_trainer_json(const zr_checkpoint_t *checkpoint) {
    return checkpoint->found.manifest.trainer_json;
}

const char *zr_checkpoint_array_name(const zr_checkpoint_t *checkpoint, size_t array) {
    const zr_manifest_t *manifest = &checkpoint->found.manifest;
    return array < zr_manifest_n_arrays(manifest) ? zr_manifest_array(manifest, array).name : NULL;
}

const zr_encoding_t *zr_checkpoint_array_encoding(const zr_checkpoint_t *checkpoint, size_t array) {
    const zr_manifest_t *manifest = &checkpoint->found.manifest;
    return array < zr_manifest_n_arrays(manifest) ? zr_manifest_array(manifest, array).encoding
                                                  : NULL;
}

const zr_checkpoint_tensor_t *zr_checkpoint_tensor(const zr_checkpoint_t *checkpoint,
                                                   size_t index) {
    const zr_manifest_t *manifest = &checkpoint->found.manifest;
    return index < manifest->n_tensors ? &manifest->tensors[index].tensor : NULL;
}

bool zr_checkpoint_find(const zr_checkpoint_t *checkpoint, const char *name, size_t *index_p) {
    const zr_manifest_t *manifest = &checkpoint->found.manifest;
    size_t low = 0, high = manifest->n_tensors;
    while (low < high) {
        size_t middle = low + (high - low) / 2, index = checkpoint->by_name[middle];
        int order = strcmp(name, manifest->tensors[index].tensor.name);
        if (order == 0) {
            *index_p = index;
            return true;
        }
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return false;
}

/* ---- listing --------------------------------------------------------------------------------- */

static int64_t saved_at(int fd) {
    struct stat about;
    return fstatat(fd, ZR_MANIFEST_NAME, &about, AT_SYMLINK_NOFOLLOW) == 0
               ? (int64_t)about.st_mtim.tv_sec
               : 0;
}

/* What is wrong with it is part of the answer; only that memory ends is an error. */
static zr_status_t describe(int folder_fd, const zr_folder_item_t *items, size_t index,
                            zr_checkpoint_entry_t *entry) {
    const zr_folder_item_t *item = &items[index];
    zr_manifest_t manifest = {0};
    int fd = -1;
    snprintf(entry->name, sizeof(entry->name), "%s", item->name);
    entry->step = item->step;
    if (item->kind == ZR_FOLDER_PARTIAL) {
        snprintf(entry->problem, sizeof(entry->problem),
                 "it was never finished, or is being written");
        return ZR_OK;
    }
    if (item->kind == ZR_FOLDER_DAMAGED) {
        snprintf(entry->problem, sizeof(entry->problem),
                 "its data is damaged; it was renamed and is kept");
        return ZR_OK;
    }
    if (!zr_folder_is_checkpoint(items, index)) {
        snprintf(entry->problem, sizeof(entry->problem),
                 "it was replaced or exceeds the number to keep; the next save removes it");
        return ZR_OK;
    }
    zr_status_t status =
        zr_folder_read(folder_fd, item->name, NULL, entry->problem, &fd, &manifest);
    if (status != ZR_OK)
        return status == ZR_ERR_MEMORY ? status : ZR_OK;
    entry->is_complete = true;
    entry->n_ranks = manifest.n_ranks;
    entry->stage = manifest.stage;
    entry->dtype = manifest.dtype;
    entry->saved_unix_s = saved_at(fd);
    entry->is_signed = manifest.is_signed;
    for (size_t i = 0; i < manifest.n_files; i++)
        entry->data_bytes += manifest.files[i].data_bytes;
    zr_manifest_clear(&manifest);
    close(fd);
    return ZR_OK;
}

static zr_status_t describe_all(int folder_fd, const char *folder, const zr_log_t *log,
                                const zr_folder_item_t *items, size_t n_items,
                                zr_checkpoint_entry_t **entries_p) {
    zr_checkpoint_entry_t *entries = calloc(n_items + 1, sizeof(*entries));
    if (entries == NULL)
        return zr_fail(log, ZR_ERR_MEMORY, "%s: no memory to list it", folder);
    for (size_t i = 0; i < n_items; i++)
        if (describe(folder_fd, items, i, &entries[i]) != ZR_OK) {
            zr_status_t status = zr_fail(log, ZR_ERR_MEMORY, "%s: %s", folder, entries[i].problem);
            free(entries);
            return status;
        }
    *entries_p = entries;
    return ZR_OK;
}

zr_status_t zr_checkpoint_list(const char *folder, const zr_log_t *log,
                               zr_checkpoint_entry_t **entries_p, size_t *n_entries_p) {
    zr_folder_item_t *items = NULL;
    size_t n_items = 0;
    int folder_fd = -1;
    ZR_TRY(zr_folder_open(folder, log, &folder_fd));
    zr_status_t status = zr_folder_scan(folder_fd, folder, log, &items, &n_items);
    ZR_THEN(status, describe_all(folder_fd, folder, log, items, n_items, entries_p));
    if (status == ZR_OK)
        *n_entries_p = n_items;
    free(items);
    close(folder_fd);
    return status;
}
