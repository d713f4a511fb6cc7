/*
 * The file of a store: one per rank and path, without a name, of its full length from the start.
 */
#ifndef ZR_OFFLOAD_URING_FILE_H
#define ZR_OFFLOAD_URING_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/log.h"

typedef struct zr_uring_file {
    int fd;             /* -1: not open */
    char *name;         /* for messages */
    bool is_direct;     /* past the page cache */
    size_t block_bytes; /* offsets and lengths are multiples of it; 1 when not direct */
    size_t align_bytes; /* memory is aligned to it; 1 when not direct */
} zr_uring_file_t;

/** Where offsets of extents are multiples of, at least. */
#define ZR_URING_LAYOUT_BYTES ((size_t)4096)

/**
 * Make a file in a folder, and find its block size by real transfers.
 *
 * @param file  filled as far as it came; zr_uring_file_close it, also after an error
 * @return ZR_OK; ZR_ERR_IO; ZR_ERR_MEMORY; ZR_ERR_BUDGET when the folder has no room at all
 */
ZR_NODISCARD zr_status_t zr_uring_file_open(const char *folder, const zr_log_t *log,
                                            zr_uring_file_t *file);

/** Make it so long, and sure of the room; ZR_ERR_BUDGET with the numbers when there is none. */
ZR_NODISCARD zr_status_t zr_uring_file_reserve(zr_uring_file_t *file, uint64_t size_bytes,
                                               const zr_log_t *log);

/** The file is gone with this, and all it held. */
void zr_uring_file_close(zr_uring_file_t *file);

#endif
