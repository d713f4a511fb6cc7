/* See carried_internal.h. A file is read once, in pieces: verified, and copied where it is to go.
 */
#include "zero/checkpoint/carried_internal.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <xxhash.h>

#include "offload/store.h"
#include "zero/checkpoint/reader_internal.h"

#define PIECE_BYTES ((size_t)64 << 10)

static zr_status_t pass_pieces(const zr_file_t *from, uint64_t n_bytes, char *bytes,
                               const zr_file_t *to, XXH3_state_t *sum, const zr_log_t *log) {
    char piece[PIECE_BYTES];
    for (uint64_t done = 0, n; done < n_bytes; done += n) {
        n = n_bytes - done < sizeof(piece) ? n_bytes - done : sizeof(piece);
        char *at = bytes != NULL ? bytes + done : piece;
        ZR_TRY(zr_file_read(from, done, at, (size_t)n, log));
        (void)XXH3_64bits_update(sum, at, (size_t)n);
        if (to != NULL)
            ZR_TRY(zr_file_write(to, done, at, (size_t)n, log));
    }
    return ZR_OK;
}

/* Read a file, into memory or another file where there is one. */
static zr_status_t pass(const zr_file_t *from, const zr_manifest_carried_t *about, char *bytes,
                        const zr_file_t *to, const zr_log_t *log) {
    XXH3_state_t *sum = XXH3_createState();
    if (sum == NULL)
        return zr_fail(log, ZR_ERR_MEMORY, "%s/%s: no memory to read it", from->folder,
                       about->name);
    (void)XXH3_64bits_reset(sum);
    zr_status_t status = pass_pieces(from, about->n_bytes, bytes, to, sum, log);
    if (status == ZR_OK && XXH3_64bits_digest(sum) != about->xxh3)
        status = zr_fail(log, ZR_ERR_FORMAT, "damaged: %s/%s: not what was saved", from->folder,
                         about->name);
    XXH3_freeState(sum);
    return status;
}

/* ---- of a checkpoint ------------------------------------------------------------------------- */

static zr_status_t open_file(const zr_checkpoint_t *checkpoint, size_t index, const zr_log_t *log,
                             zr_file_t *file_p) {
    uint64_t n_bytes = 0;
    return zr_file_open(checkpoint->found.fd, checkpoint->found.path,
                        checkpoint->found.manifest.carried[index].name, log, file_p, &n_bytes);
}

static zr_status_t read_file(const zr_checkpoint_t *checkpoint, size_t index, const zr_log_t *log,
                             char *bytes) {
    zr_file_t file = {.fd = -1};
    ZR_TRY(open_file(checkpoint, index, log, &file));
    zr_status_t status = pass(&file, &checkpoint->found.manifest.carried[index], bytes, NULL, log);
    zr_file_close(&file);
    return status;
}

zr_status_t zr_carried_verify(const zr_checkpoint_t *checkpoint, size_t index,
                              const zr_log_t *log) {
    return read_file(checkpoint, index, log, NULL);
}

bool zr_checkpoint_carried(const zr_checkpoint_t *checkpoint, size_t index,
                           zr_carried_file_t *file_p) {
    const zr_manifest_t *manifest = &checkpoint->found.manifest;
    if (index >= manifest->n_carried)
        return false;
    *file_p = (zr_carried_file_t){.name = manifest->carried[index].name,
                                  .n_bytes = (size_t)manifest->carried[index].n_bytes};
    return true;
}

bool zr_checkpoint_find_carried(const zr_checkpoint_t *checkpoint, const char *name,
                                size_t *index_p) {
    const zr_manifest_t *manifest = &checkpoint->found.manifest;
    for (size_t i = 0; i < manifest->n_carried; i++)
        if (strcmp(manifest->carried[i].name, name) == 0) {
            *index_p = i;
            return true;
        }
    return false;
}

zr_status_t zr_checkpoint_read_carried(const zr_checkpoint_t *checkpoint, size_t index,
                                       const zr_log_t *log, void *bytes) {
    if (index >= checkpoint->found.manifest.n_carried || bytes == NULL)
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "%s carries %s; index %zu is out of range, or there is no memory for it",
                       checkpoint->found.path,
                       zr_count_text(checkpoint->found.manifest.n_carried, "file").text, index);
    return read_file(checkpoint, index, log, bytes);
}

/* ---- from one to the next -------------------------------------------------------------------- */

static zr_status_t no_memory(const char *whose, const zr_log_t *log) {
    return zr_fail(log, ZR_ERR_MEMORY, "%s: no memory for the files that it carries", whose);
}

zr_status_t zr_carried_open(const zr_checkpoint_t *checkpoint, const zr_log_t *log,
                            zr_carried_t *carried_p) {
    const zr_manifest_t *manifest = &checkpoint->found.manifest;
    size_t n = manifest->n_carried;
    zr_carried_t carried = {.about = calloc(n + 1, sizeof(*carried.about)),
                            .sources = calloc(n + 1, sizeof(*carried.sources))};
    zr_status_t status = ZR_OK;
    if (carried.about == NULL || carried.sources == NULL)
        status = no_memory(checkpoint->found.path, log);
    for (size_t i = 0; i < n && status == ZR_OK; i++) {
        carried.about[i] = manifest->carried[i];
        status = open_file(checkpoint, i, log, &carried.sources[i].file);
        carried.n_files += status == ZR_OK;
    }
    if (status == ZR_OK)
        *carried_p = carried;
    else
        zr_carried_close(&carried);
    return status;
}

zr_status_t zr_carried_describe(const char *name, const void *bytes, size_t n_bytes,
                                const zr_manifest_carried_t *others, size_t n_others,
                                const zr_log_t *log, zr_manifest_carried_t *about_p) {
    const char *problem = NULL;
    if (name == NULL || !zr_manifest_is_carried_name(name))
        problem = "its name must have 1 to 63 letters, digits, '-', '_' and '.', no leading dot, "
                  "not rank-..., nor " ZR_MANIFEST_NAME;
    for (size_t i = 0; i < n_others && problem == NULL; i++)
        if (strcmp(others[i].name, name) == 0)
            problem = "this name exists already";
    if (problem == NULL &&
        (n_others >= ZR_MANIFEST_MAX_CARRIED || n_bytes > ZR_MANIFEST_MAX_CARRIED_BYTES))
        problem = "a checkpoint carries at most 64 files of 1 GiB each";
    if (problem != NULL)
        return zr_fail(log, ZR_ERR_ARGUMENT, "file \"%.200s\": %s", name != NULL ? name : "",
                       problem);
    *about_p =
        (zr_manifest_carried_t){.n_bytes = n_bytes, .xxh3 = zr_store_checksum(bytes, n_bytes)};
    memcpy(about_p->name, name, strlen(name));
    return ZR_OK;
}

zr_status_t zr_carried_add(zr_carried_t *carried, zr_heap_t *heap, const char *name,
                           const void *bytes, size_t n_bytes, const zr_log_t *log) {
    size_t n = carried->n_files;
    zr_manifest_carried_t about;
    ZR_TRY(zr_carried_describe(name, bytes, n_bytes, carried->about, n, log, &about));
    void *all = realloc(carried->about, (n + 1) * sizeof(*carried->about));
    if (all == NULL)
        return no_memory(name, log);
    carried->about = all;
    all = realloc(carried->sources, (n + 1) * sizeof(*carried->sources));
    if (all == NULL)
        return no_memory(name, log);
    carried->sources = all;
    char *copy = zr_heap_alloc(heap, n_bytes + 1, 1);
    if (copy == NULL)
        return no_memory(name, log);
    if (n_bytes > 0)
        memcpy(copy, bytes, n_bytes);
    carried->about[n] = about;
    carried->sources[n] = (struct zr_carried_source){.file = {.fd = -1}, .bytes = copy};
    carried->n_files++;
    return ZR_OK;
}

void zr_carried_close(zr_carried_t *carried) {
    for (size_t i = 0; i < carried->n_files; i++)
        zr_file_close(&carried->sources[i].file);
    free(carried->about);
    free(carried->sources);
    *carried = (zr_carried_t){0};
}

static zr_status_t write_file(const struct zr_carried_source *source,
                              const zr_manifest_carried_t *about, int folder_fd, const char *folder,
                              const zr_log_t *log) {
    zr_file_t from = source->file, to = {.fd = -1};
    from.folder = "the checkpoint that the run resumed from";
    from.name = about->name;
    ZR_TRY(zr_file_create(folder_fd, folder, about->name, log, &to));
    zr_status_t status = source->bytes != NULL
                             ? zr_file_write(&to, 0, source->bytes, (size_t)about->n_bytes, log)
                             : pass(&from, about, NULL, &to, log);
    ZR_THEN(status, zr_file_sync_and_close(&to, log));
    zr_file_close(&to);
    return status;
}

zr_status_t zr_carried_write(const zr_carried_t *carried, const char *folder,
                             zr_manifest_t *manifest, const zr_log_t *log) {
    int folder_fd = -1;
    if (carried->n_files == 0)
        return ZR_OK;
    manifest->carried = calloc(carried->n_files, sizeof(*manifest->carried));
    if (manifest->carried == NULL)
        return no_memory(folder, log);
    ZR_TRY(zr_folder_open(folder, log, &folder_fd));
    zr_status_t status = ZR_OK;
    for (size_t i = 0; i < carried->n_files && status == ZR_OK; i++) {
        manifest->carried[manifest->n_carried++] = carried->about[i];
        status = write_file(&carried->sources[i], &carried->about[i], folder_fd, folder, log);
    }
    close(folder_fd);
    return status;
}
