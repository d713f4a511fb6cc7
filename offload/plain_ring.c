/* Requests wait in a circle, in order, until their completion is asked for: see
 * plain_ring_internal.h. */
#include "offload/plain_ring_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

struct zr_plain_ring {
    unsigned depth;
    unsigned first;    /* the oldest request */
    unsigned n_handed; /* handed over, from the first on */
    unsigned n_noted;  /* behind those */
    zr_ring_request_t requests[];
};

zr_plain_ring_t *zr_plain_ring_create(unsigned depth) {
    zr_plain_ring_t *ring = calloc(1, sizeof(*ring) + depth * sizeof(ring->requests[0]));
    if (ring != NULL)
        ring->depth = depth;
    return ring;
}

void zr_plain_ring_destroy(zr_plain_ring_t *ring) {
    free(ring);
}

int zr_plain_ring_queue(zr_plain_ring_t *ring, const zr_ring_request_t *request) {
    unsigned n = ring->n_handed + ring->n_noted;
    if (n == ring->depth)
        return -EBUSY;
    ring->requests[(ring->first + n) % ring->depth] = *request;
    ring->n_noted++;
    return 0;
}

int zr_plain_ring_submit(zr_plain_ring_t *ring) {
    int n = (int)ring->n_noted;
    ring->n_handed += ring->n_noted;
    ring->n_noted = 0;
    return n;
}

int zr_plain_ring_next(zr_plain_ring_t *ring, zr_ring_completion_t *completion_p) {
    if (ring->n_handed == 0)
        return 0;
    const zr_ring_request_t *r = &ring->requests[ring->first];
    off_t offset = (off_t)r->offset_bytes;
    ssize_t n = r->is_write ? pwrite(r->file, r->memory, r->size_bytes, offset)
                            : pread(r->file, r->memory, r->size_bytes, offset);
    *completion_p = (zr_ring_completion_t){.tag = r->tag, .result = n < 0 ? -errno : (int)n};
    ring->first = (ring->first + 1) % ring->depth;
    ring->n_handed--;
    return 1;
}
