/*
 * The file of a store: one per rank and path, of its full length from the start, and without a name
 * unless it is to be kept.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/base/log.h"

typedef struct zr_uring_file {
    int fd;             /* -1: not open */
    char *name;         /* for messages */
    bool is_direct;     /* past the page cache */
    size_t block_bytes; /* offsets and lengths are multiples of it; 1 when not direct */
    size_t align_bytes; /* memory is aligned to it; 1 when not direct */
} zr_uring_file_t;

/** Where offsets of extents are multiples of, at least. */
#define ZR_URING_LAYOUT_BYTES ((size_t)4096)

typedef struct zr_uring_name {
    const char *folder;
    const char *file; /* NULL: it has none, and is gone when it is closed */
    bool is_there;    /* it is written over; else it must not be there */
} zr_uring_name_t;

/**
 * Make a file in a folder, and find its block size by real transfers.
 *
 * @param file  filled as far as it came; zr_uring_file_close it, also after an error
 * @return ZR_OK; ZR_ERR_IO; ZR_ERR_MEMORY; ZR_ERR_BUDGET when the folder has no room at all
 */
ZR_NODISCARD zr_status_t zr_uring_file_open(const zr_uring_name_t *name, const zr_log_t *log,
                                            zr_uring_file_t *file);

/** Make it so long, and sure of the room; ZR_ERR_BUDGET with the numbers when there is none. */
ZR_NODISCARD zr_status_t zr_uring_file_reserve(zr_uring_file_t *file, uint64_t size_bytes,
                                               const zr_log_t *log);

/** Give it this length, which it has reached, and wait until it is on the drive. */
ZR_NODISCARD zr_status_t zr_uring_file_sync(zr_uring_file_t *file, uint64_t size_bytes,
                                            const zr_log_t *log);

/** A file without a name is gone with this, and all it held. */
void zr_uring_file_close(zr_uring_file_t *file);
