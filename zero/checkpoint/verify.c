/* Compares all of a checkpoint with its checksums, in the order in which files have it. */
#include <inttypes.h>
#include <stdlib.h>

#include "offload/store.h"
#include "zero/checkpoint/carried_internal.h"
#include "zero/checkpoint/reader_internal.h"

/* So much between two reports of progress. */
#define REPORT_BYTES ((uint64_t)16 << 20)

typedef struct verifier {
    const zr_checkpoint_t *checkpoint;
    zr_checkpoint_reader_t *reader;
    const zr_manifest_t *manifest;
    void *bytes; /* of a chunk */
    void (*progress)(void *context, uint64_t n_bytes);
    void *context;
    uint64_t n_bytes;  /* verified */
    uint64_t reported; /* of them */
} verifier_t;

static void pass(verifier_t *v, uint64_t n_bytes, bool is_last) {
    v->n_bytes += n_bytes;
    if (v->progress == NULL || (!is_last && v->n_bytes - v->reported < REPORT_BYTES))
        return;
    v->reported = v->n_bytes;
    v->progress(v->context, v->n_bytes);
}

static zr_status_t tell_damaged(const verifier_t *v, size_t extent, size_t n_chunks,
                                size_t n_damaged, size_t first) {
    const zr_manifest_extent_t *e = &v->manifest->extents[extent];
    return zr_fail(&v->reader->log, ZR_ERR_FORMAT,
                   "damaged: unit \"%.200s\", %s elements %zu to %zu: %s/%s, offset %" PRIu64
                   ": not what was saved: %zu of %s, the first at offset %" PRIu64,
                   v->manifest->units[e->unit], e->frozen ? "frozen" : "trainable", e->first,
                   e->first + e->n_elems - 1, v->reader->checkpoint->found.path,
                   v->manifest->files[e->file].data, e->offset_bytes, n_damaged,
                   zr_count_text(n_chunks, "chunk").text,
                   zr_reader_chunk_offset(v->manifest, extent, first));
}

/* An extent that cannot be read is left at the first error. */
static zr_status_t verify_extent(verifier_t *v, size_t extent) {
    const zr_manifest_extent_t *e = &v->manifest->extents[extent];
    size_t n_chunks = (size_t)zr_manifest_chunks(zr_manifest_extent_bytes(v->manifest, e),
                                                 v->manifest->files[e->file].chunk_bytes);
    size_t n_damaged = 0, first = 0;
    const uint64_t *sums = NULL;
    zr_reader_files_t *files = NULL;
    ZR_TRY(zr_reader_load_sums(v->reader, extent, &sums));
    ZR_TRY(zr_reader_open_files(v->reader, e->file, &files));
    for (size_t chunk = 0; chunk < n_chunks; chunk++) {
        size_t n_bytes = zr_reader_chunk_bytes(v->manifest, extent, chunk);
        uint64_t offset = zr_reader_chunk_offset(v->manifest, extent, chunk);
        ZR_TRY(zr_file_read(&files->data, offset, v->bytes, n_bytes, &v->reader->log));
        if (zr_store_checksum(v->bytes, n_bytes) != sums[chunk] && n_damaged++ == 0)
            first = chunk;
        pass(v, n_bytes, false);
    }
    return n_damaged == 0 ? ZR_OK : tell_damaged(v, extent, n_chunks, n_damaged, first);
}

static size_t largest_chunk(const zr_manifest_t *manifest) {
    size_t largest = 1;
    for (size_t i = 0; i < manifest->n_files; i++) {
        const zr_manifest_file_t *file = &manifest->files[i];
        size_t n_bytes =
            file->data_bytes < file->chunk_bytes ? (size_t)file->data_bytes : file->chunk_bytes;
        largest = n_bytes > largest ? n_bytes : largest;
    }
    return largest;
}

/* The extents of a part lie together; of files that are carried along each is one part's. */
static zr_status_t verify_part(verifier_t *v, const size_t *order, size_t part, size_t n_parts) {
    size_t n_extents = v->manifest->n_extents;
    size_t end = n_extents * (part + 1) / n_parts;
    zr_status_t status = ZR_OK;
    for (size_t i = n_extents * part / n_parts; i < end; i++) {
        zr_status_t of_extent = verify_extent(v, order[i]);
        if (status == ZR_OK || (status == ZR_ERR_MEMORY && of_extent != ZR_OK))
            status = of_extent; /* what is known to be damaged is, whatever else is not known */
    }
    for (size_t i = part; i < v->manifest->n_carried; i += n_parts) {
        zr_status_t of_file = zr_carried_verify(v->checkpoint, i, &v->reader->log);
        status = status == ZR_OK ? of_file : status;
    }
    return status;
}

static zr_status_t verify(verifier_t *v, size_t part, size_t n_parts, const zr_log_t *log) {
    v->manifest = &v->checkpoint->found.manifest;
    ZR_TRY(zr_checkpoint_reader_create(v->checkpoint, log, &v->reader));
    size_t *order = zr_manifest_extents_by_file(v->manifest);
    v->bytes = malloc(largest_chunk(v->manifest));
    zr_status_t status = order != NULL && v->bytes != NULL
                             ? verify_part(v, order, part, n_parts)
                             : zr_fail(&v->reader->log, ZR_ERR_MEMORY, "%s: no memory to verify it",
                                       v->checkpoint->found.path);
    pass(v, 0, true);
    free(v->bytes);
    free(order);
    zr_checkpoint_reader_destroy(&v->reader);
    return status;
}

zr_status_t zr_checkpoint_verify(const zr_checkpoint_t *checkpoint, const zr_log_t *log,
                                 void (*progress)(void *context, uint64_t n_bytes), void *context) {
    if (checkpoint == NULL)
        return zr_fail(log, ZR_ERR_ARGUMENT, "there is no checkpoint to verify");
    verifier_t v = {.checkpoint = checkpoint, .progress = progress, .context = context};
    return verify(&v, 0, 1, log);
}

zr_status_t zr_checkpoint_verify_part(const zr_checkpoint_t *checkpoint, size_t part,
                                      size_t n_parts, const zr_log_t *log) {
    verifier_t v = {.checkpoint = checkpoint};
    return verify(&v, part, n_parts, log);
}
