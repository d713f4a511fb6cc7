/*
 * Files that a checkpoint carries along for other programs. A run keeps those of the checkpoint
 * that it goes on from open: the checkpoint may be removed, and they are still to be written into
 * the next. A run that begins has those that it was given. Internal to zero/checkpoint/.
 */
#pragma once

#include "kernels/base/heap_internal.h"
#include "zero/checkpoint/file_internal.h"
#include "zero/checkpoint/manifest_internal.h"

typedef struct zr_carried {
    zr_manifest_carried_t *about; /* [n_files] owned */
    struct zr_carried_source {
        zr_file_t file;    /* its names are not set */
        const char *bytes; /* of a heap; NULL: they are in the file */
    } * sources;           /* [n_files] owned */
    size_t n_files;
} zr_carried_t;

/** Open those of a checkpoint. ZR_ERR_IO; ZR_ERR_FORMAT; ZR_ERR_MEMORY. */
ZR_NODISCARD zr_status_t zr_carried_open(const zr_checkpoint_t *checkpoint, const zr_log_t *log,
                                         zr_carried_t *carried_p);
/** Describe a file beside others. ZR_ERR_ARGUMENT, logged: a name or a size that none may have, or
 * there is one of this name, or there are too many. */
ZR_NODISCARD zr_status_t zr_carried_describe(const char *name, const void *bytes, size_t n_bytes,
                                             const zr_manifest_carried_t *others, size_t n_others,
                                             const zr_log_t *log, zr_manifest_carried_t *about_p);
/** Add one, of which a copy is made in a heap. As zr_carried_describe; ZR_ERR_MEMORY. */
ZR_NODISCARD zr_status_t zr_carried_add(zr_carried_t *carried, zr_heap_t *heap, const char *name,
                                        const void *bytes, size_t n_bytes, const zr_log_t *log);
/** Write them into a checkpoint in the making, verified, and list them in its manifest. ZR_ERR_IO;
 * ZR_ERR_FORMAT when one is not what was saved; ZR_ERR_MEMORY. */
ZR_NODISCARD zr_status_t zr_carried_write(const zr_carried_t *carried, const char *folder,
                                          zr_manifest_t *manifest, const zr_log_t *log);
/** One that is all zeros is fine. */
void zr_carried_close(zr_carried_t *carried);

/** Compare one of a checkpoint with its checksum. ZR_ERR_IO; ZR_ERR_FORMAT. */
ZR_NODISCARD zr_status_t zr_carried_verify(const zr_checkpoint_t *checkpoint, size_t index,
                                           const zr_log_t *log);
