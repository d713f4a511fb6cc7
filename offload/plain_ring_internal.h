/*
 * A ring for systems without io_uring: uring_ring.c's calls, made by pread and pwrite. Nothing
 * happens beside the caller, but all that is built on a ring works.
 */
#pragma once

#include "offload/uring_ring_internal.h"

typedef struct zr_plain_ring zr_plain_ring_t;

/** NULL: no memory. */
zr_plain_ring_t *zr_plain_ring_create(unsigned depth);
void zr_plain_ring_destroy(zr_plain_ring_t *ring);

/* As those of uring_ring_internal.h. A completion never has to be waited for. */
int zr_plain_ring_queue(zr_plain_ring_t *ring, const zr_ring_request_t *request);
int zr_plain_ring_submit(zr_plain_ring_t *ring);
int zr_plain_ring_next(zr_plain_ring_t *ring, zr_ring_completion_t *completion_p);
