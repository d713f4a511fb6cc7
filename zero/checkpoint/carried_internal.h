/*
 * Files that a checkpoint carries along for other programs. A run keeps those of the checkpoint that
 * it goes on from open: the checkpoint may be removed, and they are still to be written into the
 * next. Internal to zero/checkpoint/.
 */
#pragma once

#include "zero/checkpoint/file_internal.h"
#include "zero/checkpoint/manifest_internal.h"

typedef struct zr_carried {
    struct zr_carried_open {
        zr_manifest_carried_t about;
        zr_file_t file; /* its names are not set */
    } *files;           /* [n_files] owned */
    size_t n_files;
} zr_carried_t;

/** Open those of a checkpoint. ZR_ERR_IO; ZR_ERR_FORMAT; ZR_ERR_MEMORY. */
ZR_NODISCARD zr_status_t zr_carried_open(const zr_checkpoint_t *checkpoint, const zr_log_t *log,
                                         zr_carried_t *carried_p);
/** Write them into a checkpoint in the making, verified, and list them in its manifest. ZR_ERR_IO;
 * ZR_ERR_FORMAT when one is not what was saved; ZR_ERR_MEMORY. */
ZR_NODISCARD zr_status_t zr_carried_write(const zr_carried_t *carried, const char *folder,
                                          zr_manifest_t *manifest, const zr_log_t *log);
/** One that is all zeros is fine. */
void zr_carried_close(zr_carried_t *carried);

/** Compare one of a checkpoint with its checksum. ZR_ERR_IO; ZR_ERR_FORMAT. */
ZR_NODISCARD zr_status_t zr_carried_verify(const zr_checkpoint_t *checkpoint, size_t index,
                                           const zr_log_t *log);
