/*
 * Reads tensors in pieces: see checkpoint.h. A piece is a walk over extents, their groups, and the
 * chunks that these lie in. A chunk that is wanted whole goes straight to where it is wanted; of
 * others the last few are kept.
 */
#include <endian.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "offload/store.h"
#include "zero/checkpoint/reader_internal.h"
#include "zero/layout_internal.h"

/* ---- files and checksums --------------------------------------------------------------------- */

/* The entry of a cache that was used longest ago, or never; `used` is the first member of each. */
#define ANOTHER "an older checkpoint may be intact: --resume-damaged previous resumes from it"

static void *least_used(void *entries, size_t n, size_t entry_bytes) {
    char *least = entries;
    for (size_t i = 1; i < n; i++) {
        char *entry = (char *)entries + i * entry_bytes;
        if (*(uint64_t *)entry < *(uint64_t *)least)
            least = entry;
    }
    return least;
}

static void close_files(zr_reader_files_t *files) {
    if (files->used != 0) {
        zr_file_close(&files->data);
        zr_file_close(&files->sums);
    }
    files->used = 0;
}

static zr_status_t open_file(const zr_checkpoint_reader_t *reader, const char *name,
                             zr_file_t *file_p) {
    uint64_t n_bytes = 0;
    const zr_folder_found_t *found = &reader->checkpoint->found;
    return zr_file_open(found->fd, found->path, name, &reader->log, file_p, &n_bytes);
}

zr_status_t zr_reader_open_files(zr_checkpoint_reader_t *reader, size_t file,
                                 zr_reader_files_t **files_p) {
    const zr_manifest_file_t *names = &reader->checkpoint->found.manifest.files[file];
    for (size_t i = 0; i < ZR_READER_FILES; i++)
        if (reader->files[i].used != 0 && reader->files[i].file == file) {
            reader->files[i].used = ++reader->count;
            *files_p = &reader->files[i];
            return ZR_OK;
        }
    zr_reader_files_t *files = least_used(reader->files, ZR_READER_FILES, sizeof(reader->files[0]));
    close_files(files);
    ZR_TRY(open_file(reader, names->data, &files->data));
    zr_status_t status = open_file(reader, names->sums, &files->sums);
    if (status != ZR_OK) {
        zr_file_close(&files->data);
        return status;
    }
    files->file = file;
    files->used = ++reader->count;
    *files_p = files;
    return ZR_OK;
}

size_t zr_reader_chunk_bytes(const zr_manifest_t *manifest, size_t extent, size_t chunk) {
    const zr_manifest_extent_t *e = &manifest->extents[extent];
    size_t chunk_bytes = manifest->files[e->file].chunk_bytes;
    uint64_t left = zr_manifest_extent_bytes(manifest, e) - (uint64_t)chunk * chunk_bytes;
    return left < chunk_bytes ? (size_t)left : chunk_bytes;
}

uint64_t zr_reader_chunk_offset(const zr_manifest_t *manifest, size_t extent, size_t chunk) {
    const zr_manifest_extent_t *e = &manifest->extents[extent];
    return e->offset_bytes + (uint64_t)chunk * manifest->files[e->file].chunk_bytes;
}

static zr_status_t read_sums(zr_checkpoint_reader_t *reader, size_t extent, uint64_t *sums,
                             size_t n_chunks) {
    const zr_manifest_extent_t *e = &reader->checkpoint->found.manifest.extents[extent];
    zr_reader_files_t *files = NULL;
    ZR_TRY(zr_reader_open_files(reader, e->file, &files));
    uint64_t offset = 8 * (uint64_t)e->first_chunk;
    ZR_TRY(zr_file_read(&files->sums, offset, sums, 8 * n_chunks, &reader->log));
    uint64_t sum = zr_store_checksum(sums, 8 * n_chunks);
    if (sum != e->xxh3)
        return zr_fail(&reader->log, ZR_ERR_FORMAT,
                       "%s/%s: the checksums of extent %zu, %zu at offset %" PRIu64
                       ", are not those that were saved; " ANOTHER,
                       files->sums.folder, files->sums.name, extent, n_chunks, offset);
    for (size_t i = 0; i < n_chunks; i++)
        sums[i] = le64toh(sums[i]);
    return ZR_OK;
}

zr_status_t zr_reader_load_sums(zr_checkpoint_reader_t *reader, size_t extent,
                                const uint64_t **sums_p) {
    const zr_manifest_t *manifest = &reader->checkpoint->found.manifest;
    const zr_manifest_extent_t *e = &manifest->extents[extent];
    for (size_t i = 0; i < ZR_READER_EXTENTS; i++)
        if (reader->extents[i].used != 0 && reader->extents[i].extent == extent) {
            reader->extents[i].used = ++reader->count;
            *sums_p = reader->extents[i].sums;
            return ZR_OK;
        }
    zr_reader_sums_t *entry =
        least_used(reader->extents, ZR_READER_EXTENTS, sizeof(reader->extents[0]));
    size_t n_chunks = (size_t)zr_manifest_chunks(zr_manifest_extent_bytes(manifest, e),
                                                 manifest->files[e->file].chunk_bytes);
    entry->used = 0;
    free(entry->sums);
    entry->sums = malloc(8 * n_chunks);
    if (entry->sums == NULL)
        return zr_fail(&reader->log, ZR_ERR_MEMORY, "%s: no memory for %s",
                       reader->checkpoint->found.path, zr_count_text(n_chunks, "checksum").text);
    ZR_TRY(read_sums(reader, extent, entry->sums, n_chunks));
    entry->extent = extent;
    entry->used = ++reader->count;
    *sums_p = entry->sums;
    return ZR_OK;
}

/* ---- chunks ---------------------------------------------------------------------------------- */

static zr_status_t read_chunk(zr_checkpoint_reader_t *reader, size_t extent, size_t chunk,
                              void *bytes) {
    const zr_manifest_t *manifest = &reader->checkpoint->found.manifest;
    const zr_manifest_extent_t *e = &manifest->extents[extent];
    size_t n_bytes = zr_reader_chunk_bytes(manifest, extent, chunk);
    uint64_t offset = zr_reader_chunk_offset(manifest, extent, chunk);
    const uint64_t *sums = NULL;
    zr_reader_files_t *files = NULL;
    ZR_TRY(zr_reader_load_sums(reader, extent, &sums));
    ZR_TRY(zr_reader_open_files(reader, e->file, &files));
    ZR_TRY(zr_file_read(&files->data, offset, bytes, n_bytes, &reader->log));
    if (zr_store_checksum(bytes, n_bytes) == sums[chunk])
        return ZR_OK;
    return zr_fail(&reader->log, ZR_ERR_FORMAT,
                   "%s/%s: %zu bytes at offset %" PRIu64
                   ", of unit \"%.200s\", are not those that were saved; " ANOTHER,
                   files->data.folder, files->data.name, n_bytes, offset, manifest->units[e->unit]);
}

static zr_status_t keep_chunk(zr_checkpoint_reader_t *reader, size_t extent, size_t chunk,
                              const void **bytes_p) {
    size_t n_bytes = zr_reader_chunk_bytes(&reader->checkpoint->found.manifest, extent, chunk);
    for (size_t i = 0; i < ZR_READER_CHUNKS; i++) {
        zr_reader_chunk_t *kept = &reader->chunks[i];
        if (kept->used == 0 || kept->extent != extent || kept->chunk != chunk)
            continue;
        kept->used = ++reader->count;
        *bytes_p = kept->bytes;
        return ZR_OK;
    }
    zr_reader_chunk_t *entry =
        least_used(reader->chunks, ZR_READER_CHUNKS, sizeof(reader->chunks[0]));
    entry->used = 0;
    if (entry->capacity < n_bytes) {
        free(entry->bytes);
        entry->bytes = malloc(n_bytes);
        entry->capacity = entry->bytes != NULL ? n_bytes : 0;
    }
    if (entry->bytes == NULL)
        return zr_fail(&reader->log, ZR_ERR_MEMORY, "%s: no memory for a chunk of %s",
                       reader->checkpoint->found.path, zr_size_text(n_bytes).text);
    ZR_TRY(read_chunk(reader, extent, chunk, entry->bytes));
    entry->extent = extent;
    entry->chunk = chunk;
    entry->used = ++reader->count;
    *bytes_p = entry->bytes;
    return ZR_OK;
}

/* The block at this byte of an extent, which two chunks may have parts of. */
static zr_status_t read_block(zr_checkpoint_reader_t *reader, size_t extent,
                              const zr_encoding_t *encoding, uint64_t offset,
                              float values[ZR_LAYOUT_MOST_ALIGN_ELEMS]) {
    const zr_manifest_t *manifest = &reader->checkpoint->found.manifest;
    size_t chunk_bytes = manifest->files[manifest->extents[extent].file].chunk_bytes;
    unsigned char block[ZR_LAYOUT_MOST_ALIGN_ELEMS * (sizeof(float) + 1)];
    for (size_t done = 0, n = 0; done < encoding->block_bytes; done += n) {
        size_t chunk = (size_t)((offset + done) / chunk_bytes);
        size_t begin = (size_t)((offset + done) % chunk_bytes);
        size_t left = zr_reader_chunk_bytes(manifest, extent, chunk) - begin;
        const void *bytes = NULL;
        n = left < encoding->block_bytes - done ? left : encoding->block_bytes - done;
        ZR_TRY(keep_chunk(reader, extent, chunk, &bytes));
        memcpy(block + done, (const char *)bytes + begin, n);
    }
    encoding->decode(encoding, block, encoding->block_elems, values);
    return ZR_OK;
}

/* Elements that lie behind each other in an extent, from `skip` after the beginning of a block on,
 * which is at byte `offset`. */
static zr_status_t read_run(zr_checkpoint_reader_t *reader, size_t extent,
                            const zr_encoding_t *encoding, uint64_t offset, size_t skip,
                            size_t n_elems, float *values) {
    const zr_manifest_t *manifest = &reader->checkpoint->found.manifest;
    const zr_manifest_extent_t *e = &manifest->extents[extent];
    size_t chunk_bytes = manifest->files[e->file].chunk_bytes;
    float block[ZR_LAYOUT_MOST_ALIGN_ELEMS];
    while (n_elems > 0) {
        size_t chunk = (size_t)(offset / chunk_bytes), begin = (size_t)(offset % chunk_bytes);
        size_t in_chunk = zr_reader_chunk_bytes(manifest, extent, chunk);
        size_t left = zr_encoding_elems(encoding, in_chunk - begin);
        size_t n = left < n_elems ? left : n_elems;
        const void *bytes = NULL;
        if (skip > 0 || left == 0) {
            left = encoding->block_elems - skip;
            n = left < n_elems ? left : n_elems;
            ZR_TRY(read_block(reader, extent, encoding, offset, block));
            memcpy(values, block + skip, n * sizeof(float));
            skip = 0;
            offset += encoding->block_bytes;
        } else if (zr_encoding_bytes(encoding, n) == in_chunk && encoding == &zr_encoding_fp32) {
            ZR_TRY(read_chunk(reader, extent, chunk, values));
            offset += in_chunk;
        } else {
            ZR_TRY(keep_chunk(reader, extent, chunk, &bytes));
            encoding->decode(encoding, (const char *)bytes + begin, n, values);
            offset += zr_encoding_bytes(encoding, n);
        }
        values += n;
        n_elems -= n;
    }
    return ZR_OK;
}

/* ---- tensors --------------------------------------------------------------------------------- */

/* The extent that has an element of a row: the last one that begins at it or before. There is
 * one, as the manifest was checked. */
static size_t find_extent(const zr_checkpoint_t *checkpoint, size_t unit, bool frozen, size_t at) {
    const zr_manifest_t *manifest = &checkpoint->found.manifest;
    size_t low = 0, high = manifest->n_extents;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        const zr_manifest_extent_t *e = &manifest->extents[checkpoint->by_row[middle]];
        bool is_behind = e->unit != unit       ? e->unit > unit
                         : e->frozen != frozen ? e->frozen
                                               : e->first > at;
        if (is_behind)
            high = middle;
        else
            low = middle;
    }
    return checkpoint->by_row[low];
}

/* Where an element's block of an array is, in bytes of its extent, which of the block it is, and
 * how many lie behind it. */
static uint64_t locate(const zr_manifest_t *m, const zr_manifest_extent_t *e, size_t array,
                       size_t elem, size_t *skip, size_t *n_elems) {
    const zr_encoding_t *encoding = zr_manifest_encoding(m, e, array);
    size_t begin = elem - elem % e->group_elems, left = e->n_elems - begin;
    size_t in_group = left < e->group_elems ? left : e->group_elems;
    *n_elems = in_group - (elem - begin);
    uint64_t group_bytes = zr_manifest_array_offset(m, e, (size_t)e->n_arrays, e->group_elems);
    *skip = (elem - begin) % encoding->block_elems;
    return begin / e->group_elems * group_bytes + zr_manifest_array_offset(m, e, array, in_group) +
           zr_encoding_bytes(encoding, elem - begin - *skip);
}

static zr_status_t read_row(zr_checkpoint_reader_t *reader, const zr_manifest_tensor_t *tensor,
                            size_t array, size_t at, size_t n_elems, float *values) {
    const zr_checkpoint_t *checkpoint = reader->checkpoint;
    const zr_manifest_t *manifest = &checkpoint->found.manifest;
    while (n_elems > 0) {
        size_t extent = find_extent(checkpoint, tensor->unit, tensor->tensor.frozen, at);
        size_t skip = 0, n = 0;
        const zr_manifest_extent_t *e = &manifest->extents[extent];
        uint64_t offset = locate(manifest, e, array, at - e->first, &skip, &n);
        n = n < n_elems ? n : n_elems;
        ZR_TRY(read_run(reader, extent, zr_manifest_encoding(manifest, e, array), offset, skip, n,
                        values));
        values += n;
        at += n;
        n_elems -= n;
    }
    return ZR_OK;
}

zr_status_t zr_checkpoint_read(zr_checkpoint_reader_t *reader, size_t tensor, size_t array,
                               size_t first, size_t n_elems, float *values) {
    if (reader == NULL || (values == NULL && n_elems > 0))
        return zr_fail(reader != NULL ? &reader->log : NULL, ZR_ERR_ARGUMENT,
                       "reading a checkpoint needs a reader and an output pointer for values");
    const zr_manifest_t *manifest = &reader->checkpoint->found.manifest;
    if (tensor >= manifest->n_tensors || array >= zr_manifest_n_arrays(manifest))
        return zr_fail(&reader->log, ZR_ERR_ARGUMENT,
                       "%s has %s with up to %zu arrays; there is no array %zu of tensor %zu",
                       reader->checkpoint->found.path,
                       zr_count_text(manifest->n_tensors, "tensor").text,
                       zr_manifest_n_arrays(manifest), array, tensor);
    const zr_manifest_tensor_t *t = &manifest->tensors[tensor];
    if (first > t->tensor.n_elems || n_elems > t->tensor.n_elems - first)
        return zr_fail(&reader->log, ZR_ERR_ARGUMENT,
                       "\"%.200s\" has %s; %zu from %zu on were asked for", t->tensor.name,
                       zr_count_text(t->tensor.n_elems, "element").text, n_elems, first);
    if (array == ZR_CHECKPOINT_VALUE || t->tensor.has_moments)
        return read_row(reader, t, array, t->offset_elems + first, n_elems, values);
    if (n_elems > 0)
        memset(values, 0, n_elems * sizeof(*values));
    return ZR_OK;
}

zr_status_t zr_checkpoint_reader_create(const zr_checkpoint_t *checkpoint, const zr_log_t *log,
                                        zr_checkpoint_reader_t **reader_p) {
    if (checkpoint == NULL || reader_p == NULL)
        return zr_fail(log, ZR_ERR_ARGUMENT, "a reader needs a checkpoint and an output pointer");
    zr_checkpoint_reader_t *reader = calloc(1, sizeof(*reader));
    if (reader == NULL)
        return zr_fail(log, ZR_ERR_MEMORY, "%s: no memory to read it", checkpoint->found.path);
    reader->checkpoint = checkpoint;
    reader->log = log != NULL ? *log : zr_log_default();
    *reader_p = reader;
    return ZR_OK;
}

void zr_checkpoint_reader_destroy(zr_checkpoint_reader_t **reader) {
    if (reader == NULL || *reader == NULL)
        return;
    for (size_t i = 0; i < ZR_READER_CHUNKS; i++)
        free((*reader)->chunks[i].bytes);
    for (size_t i = 0; i < ZR_READER_EXTENTS; i++)
        free((*reader)->extents[i].sums);
    for (size_t i = 0; i < ZR_READER_FILES; i++)
        close_files(&(*reader)->files[i]);
    free(*reader);
    *reader = NULL;
}
