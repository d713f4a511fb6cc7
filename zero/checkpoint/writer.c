/*
 * Writes a checkpoint that no run has saved: see checkpoint.h. All tensors are of one unit, one
 * behind the other, each an extent of master values alone; the data file and that of checksums are
 * written on as tensors come, so that memory holds a few chunks and the manifest. Frozen tensors
 * have files of their own, which the checkpoints of a run that goes on can link.
 */
#include <endian.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "offload/store.h"
#include "zero/checkpoint/carried_internal.h"
#include "zero/checkpoint/file_internal.h"
#include "zero/checkpoint/folder_internal.h"

#define UNIT_NAME "weights"
#define CHUNK_BYTES ((size_t)256 << 10)
/* Written at a time. */
#define BUFFER_CHUNKS ((size_t)16)
#define BUFFER_ELEMS (BUFFER_CHUNKS * CHUNK_BYTES / sizeof(float))

/* Trainable tensors, or frozen ones: a row of the unit. */
typedef struct part {
    zr_file_t data, sums;
    size_t file;    /* in the manifest */
    size_t n_elems; /* of its tensors so far */
} part_t;

struct zr_checkpoint_writer {
    zr_log_t log;
    char *folder;
    size_t keep;
    char *path;      /* of the one in the making; NULL when it is no longer */
    int lock;        /* of the folder; -1: it is not held */
    part_t parts[2]; /* [frozen]; of frozen ones the files are made with the first */
    zr_manifest_t manifest;
    zr_secret_t secret; /* that signs it, where it is given */
    json_t *names;      /* of its tensors, as keys */
    float *buffer;      /* [BUFFER_ELEMS] */
    bool has_failed;    /* what is on the drive is not what the manifest says */
};

static zr_status_t no_memory(const zr_checkpoint_writer_t *writer) {
    return zr_fail(&writer->log, ZR_ERR_MEMORY, "%s: no memory to write a checkpoint",
                   writer->folder);
}

/* ---- beginning ------------------------------------------------------------------------------- */

static zr_status_t fill_manifest(zr_checkpoint_writer_t *writer, const char *trainer_json) {
    zr_manifest_t *m = &writer->manifest;
    m->n_ranks = 1;
    m->trainer_json = strdup(trainer_json);
    m->units = calloc(1, sizeof(*m->units));
    m->files = calloc(2, sizeof(*m->files));
    if (m->trainer_json == NULL || m->units == NULL || m->files == NULL)
        return no_memory(writer);
    m->n_units = 1;
    m->units[0] = strdup(UNIT_NAME);
    return m->units[0] != NULL ? ZR_OK : no_memory(writer);
}

/* Make the files of a part, unless they are there. */
static zr_status_t open_part(zr_checkpoint_writer_t *writer, bool frozen) {
    static const zr_manifest_file_t files[2] = {
        {.data = "rank-00000.data", .sums = "rank-00000.sums", .chunk_bytes = CHUNK_BYTES},
        {.data = "base-00000.data", .sums = "base-00000.sums", .chunk_bytes = CHUNK_BYTES}};
    part_t *part = &writer->parts[frozen];
    zr_manifest_t *m = &writer->manifest;
    int folder_fd = -1;
    if (part->data.fd >= 0)
        return ZR_OK;
    ZR_TRY(zr_folder_open(writer->path, &writer->log, &folder_fd));
    zr_status_t status =
        zr_file_create(folder_fd, writer->path, files[frozen].data, &writer->log, &part->data);
    ZR_THEN(status,
            zr_file_create(folder_fd, writer->path, files[frozen].sums, &writer->log, &part->sums));
    close(folder_fd);
    part->file = m->n_files;
    m->files[m->n_files++] = files[frozen];
    return status;
}

static zr_status_t begin(zr_checkpoint_writer_t *writer, const zr_save_options_t *options,
                         const char *trainer_json) {
    writer->folder = strdup(options->folder);
    writer->keep = options->keep;
    if (options->secret != NULL)
        writer->secret = *options->secret;
    writer->manifest.secret = &writer->secret;
    writer->names = json_object();
    writer->buffer = malloc(BUFFER_ELEMS * sizeof(*writer->buffer));
    if (writer->folder == NULL)
        return zr_fail(&writer->log, ZR_ERR_MEMORY, "%s: no memory for a path", options->folder);
    if (writer->names == NULL || writer->buffer == NULL)
        return no_memory(writer);
    ZR_TRY(fill_manifest(writer, trainer_json));
    ZR_TRY(zr_folder_lock(writer->folder, &writer->log, &writer->lock));
    ZR_TRY(zr_folder_begin(writer->folder, writer->manifest.step, &writer->log, &writer->path));
    return open_part(writer, false);
}

zr_status_t zr_checkpoint_writer_create(const zr_save_options_t *options, const zr_log_t *log,
                                        zr_checkpoint_writer_t **writer_p) {
    if (options == NULL || options->folder == NULL || writer_p == NULL)
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "writing a checkpoint needs a folder and an output pointer for the writer");
    const char *trainer_json = options->trainer_json != NULL ? options->trainer_json : "{}";
    ZR_TRY(zr_manifest_check_trainer(trainer_json, log));
    zr_checkpoint_writer_t *writer = calloc(1, sizeof(*writer));
    if (writer == NULL)
        return zr_fail(log, ZR_ERR_MEMORY, "%s: no memory to write a checkpoint", options->folder);
    writer->log = log != NULL ? *log : zr_log_default();
    writer->lock = -1;
    for (int i = 0; i < 2; i++)
        writer->parts[i].data.fd = writer->parts[i].sums.fd = -1;
    zr_status_t status = begin(writer, options, trainer_json);
    if (status != ZR_OK) {
        zr_checkpoint_writer_destroy(&writer);
        return status;
    }
    *writer_p = writer;
    return ZR_OK;
}

void zr_checkpoint_writer_destroy(zr_checkpoint_writer_t **writer) {
    if (writer == NULL || *writer == NULL)
        return;
    zr_checkpoint_writer_t *w = *writer;
    for (int i = 0; i < 2; i++) {
        zr_file_close(&w->parts[i].data);
        zr_file_close(&w->parts[i].sums);
    }
    if (w->path != NULL)
        zr_folder_abandon(w->folder, w->manifest.step, &w->log);
    zr_folder_unlock(&w->lock);
    free(w->path);
    free(w->folder);
    free(w->buffer);
    json_decref(w->names);
    zr_manifest_clear(&w->manifest);
    free(w);
    *writer = NULL;
}

/* ---- tensors --------------------------------------------------------------------------------- */

static zr_status_t refuse(const zr_checkpoint_writer_t *writer, const char *name,
                          const char *reason) {
    return zr_fail(&writer->log, ZR_ERR_ARGUMENT, "tensor \"%.200s\": %s", name, reason);
}

/* Room for one more; arrays are full at powers of two. */
static bool make_room(void *array_p, size_t n, size_t item_bytes) {
    void *array;
    if ((n & (n - 1)) != 0)
        return true;
    memcpy(&array, array_p, sizeof(array));
    array = realloc(array, (n == 0 ? 1 : 2 * n) * item_bytes);
    if (array != NULL)
        memcpy(array_p, &array, sizeof(array));
    return array != NULL;
}

static zr_status_t describe(zr_checkpoint_writer_t *writer, const zr_param_desc_t *desc) {
    zr_manifest_t *m = &writer->manifest;
    size_t n_elems = 0, offset = writer->parts[desc->frozen].n_elems;
    if (desc->n_dims < 0 || desc->n_dims > 4)
        return refuse(writer, desc->name, "0 to 4 dimensions are allowed");
    if (!zr_manifest_count_elems(desc->n_dims, desc->dims, ZR_MANIFEST_MAX_ROW_ELEMS - offset,
                                 &n_elems))
        return refuse(writer, desc->name, "it has more elements than a checkpoint may have");
    if (json_object_get(writer->names, desc->name) != NULL)
        return refuse(writer, desc->name, "this name exists already");
    if (!make_room(&m->tensors, m->n_tensors, sizeof(*m->tensors)) ||
        !make_room(&m->extents, m->n_extents, sizeof(*m->extents)))
        return no_memory(writer);
    if (json_object_set_new(writer->names, desc->name, json_null()) != 0)
        return refuse(writer, desc->name, "its name is not UTF-8, or there is no memory");
    zr_manifest_tensor_t tensor = {.offset_elems = offset};
    tensor.tensor = (zr_checkpoint_tensor_t){.name = strdup(desc->name),
                                             .frozen = desc->frozen,
                                             .n_dims = desc->n_dims,
                                             .n_elems = n_elems};
    if (tensor.tensor.name == NULL)
        return no_memory(writer);
    memcpy(tensor.tensor.dims, desc->dims, (size_t)desc->n_dims * sizeof(desc->dims[0]));
    m->tensors[m->n_tensors++] = tensor;
    writer->parts[desc->frozen].n_elems += n_elems;
    return ZR_OK;
}

/* Write a buffer of values, and their checksums behind those before. */
static zr_status_t write_buffer(zr_checkpoint_writer_t *writer, const part_t *part, size_t n_elems,
                                uint64_t *sums) {
    zr_manifest_file_t *file = &writer->manifest.files[part->file];
    size_t n_bytes = n_elems * sizeof(float);
    size_t n_chunks = (size_t)zr_manifest_chunks(n_bytes, CHUNK_BYTES);
    for (size_t i = 0; i < n_chunks; i++) {
        size_t left = n_bytes - i * CHUNK_BYTES;
        sums[i] = htole64(zr_store_checksum((const char *)writer->buffer + i * CHUNK_BYTES,
                                            left < CHUNK_BYTES ? left : CHUNK_BYTES));
    }
    ZR_TRY(zr_file_write(&part->data, file->data_bytes, writer->buffer, n_bytes, &writer->log));
    ZR_TRY(
        zr_file_write(&part->sums, 8 * (uint64_t)file->n_chunks, sums, 8 * n_chunks, &writer->log));
    file->data_bytes += n_bytes;
    file->n_chunks += n_chunks;
    return ZR_OK;
}

/* `sums` has room for those of all the tensor's chunks. */
static zr_status_t write_values(zr_checkpoint_writer_t *writer, const zr_param_desc_t *desc,
                                size_t n_elems, uint64_t *sums) {
    for (size_t first = 0; first < n_elems; first += BUFFER_ELEMS) {
        size_t n = n_elems - first < BUFFER_ELEMS ? n_elems - first : BUFFER_ELEMS;
        if (desc->fill != NULL)
            desc->fill(desc->fill_context, first, n, writer->buffer);
        else
            memset(writer->buffer, 0, n * sizeof(*writer->buffer));
        ZR_TRY(write_buffer(writer, &writer->parts[desc->frozen], n,
                            sums + first / (BUFFER_ELEMS / BUFFER_CHUNKS)));
    }
    return ZR_OK;
}

static zr_status_t write_extent(zr_checkpoint_writer_t *writer, const zr_param_desc_t *desc) {
    zr_manifest_t *m = &writer->manifest;
    const zr_manifest_tensor_t *tensor = &m->tensors[m->n_tensors - 1];
    size_t n_elems = tensor->tensor.n_elems;
    const part_t *part = &writer->parts[desc->frozen];
    zr_manifest_extent_t extent = {.frozen = desc->frozen,
                                   .file = part->file,
                                   .first = tensor->offset_elems,
                                   .n_elems = n_elems,
                                   .group_elems = n_elems,
                                   .n_arrays = 1,
                                   .offset_bytes = m->files[part->file].data_bytes,
                                   .first_chunk = m->files[part->file].n_chunks};
    if (n_elems == 0)
        return ZR_OK;
    size_t n_chunks = (size_t)zr_manifest_chunks(zr_manifest_extent_bytes(m, &extent), CHUNK_BYTES);
    uint64_t *sums = malloc(8 * n_chunks);
    if (sums == NULL)
        return no_memory(writer);
    zr_status_t status = write_values(writer, desc, n_elems, sums);
    extent.xxh3 = zr_store_checksum(sums, 8 * n_chunks);
    free(sums);
    if (status == ZR_OK)
        m->extents[m->n_extents++] = extent;
    return status;
}

static zr_status_t check_going_on(const zr_checkpoint_writer_t *writer) {
    if (writer->path == NULL || writer->has_failed)
        return zr_fail(&writer->log, ZR_ERR_STATE, "%s: the checkpoint %s", writer->folder,
                       writer->has_failed ? "could not be written and can only be destroyed"
                                          : "is complete");
    return ZR_OK;
}

zr_status_t zr_checkpoint_writer_add(zr_checkpoint_writer_t *writer, const zr_param_desc_t *desc) {
    if (desc == NULL || desc->name == NULL || desc->name[0] == '\0')
        return zr_fail(&writer->log, ZR_ERR_ARGUMENT, "a tensor needs a name");
    ZR_TRY(check_going_on(writer));
    ZR_TRY(describe(writer, desc));
    zr_status_t status = open_part(writer, desc->frozen);
    ZR_THEN(status, write_extent(writer, desc));
    writer->has_failed = status != ZR_OK;
    return status;
}

/* ---- files that are carried along ------------------------------------------------------------ */

static zr_status_t write_carried(const zr_checkpoint_writer_t *writer, const char *name,
                                 const void *bytes, size_t n_bytes) {
    int folder_fd = -1;
    zr_file_t file = {.fd = -1};
    ZR_TRY(zr_folder_open(writer->path, &writer->log, &folder_fd));
    zr_status_t status = zr_file_create(folder_fd, writer->path, name, &writer->log, &file);
    ZR_THEN(status, zr_file_write(&file, 0, bytes, n_bytes, &writer->log));
    ZR_THEN(status, zr_file_sync_and_close(&file, &writer->log));
    zr_file_close(&file);
    close(folder_fd);
    return status;
}

zr_status_t zr_checkpoint_writer_carry(zr_checkpoint_writer_t *writer, const char *name,
                                       const void *bytes, size_t n_bytes) {
    zr_manifest_t *m = &writer->manifest;
    ZR_TRY(check_going_on(writer));
    zr_manifest_carried_t about;
    ZR_TRY(
        zr_carried_describe(name, bytes, n_bytes, m->carried, m->n_carried, &writer->log, &about));
    if (!make_room(&m->carried, m->n_carried, sizeof(*m->carried)))
        return no_memory(writer);
    m->carried[m->n_carried] = about;
    zr_status_t status = write_carried(writer, name, bytes, n_bytes);
    writer->has_failed = status != ZR_OK;
    m->n_carried += status == ZR_OK;
    return status;
}

/* ---- the end --------------------------------------------------------------------------------- */

zr_status_t zr_checkpoint_writer_publish(zr_checkpoint_writer_t *writer) {
    const zr_folder_kept_t kept = {.n = writer->keep};
    ZR_TRY(check_going_on(writer));
    writer->has_failed = true;
    for (int i = 0; i < 2; i++) {
        if (writer->parts[i].data.fd < 0)
            continue;
        ZR_TRY(zr_file_sync_and_close(&writer->parts[i].data, &writer->log));
        ZR_TRY(zr_file_sync_and_close(&writer->parts[i].sums, &writer->log));
    }
    ZR_TRY(zr_manifest_write(&writer->manifest, writer->path, &writer->log));
    ZR_TRY(zr_folder_publish(writer->folder, writer->manifest.step, &kept, &writer->log));
    writer->has_failed = false;
    free(writer->path);
    writer->path = NULL;
    return ZR_OK;
}
