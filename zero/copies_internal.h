/*
 * The ways between device and host of optimizer state, gradients and parameters, where the CPU
 * cannot touch the device's memory, or does not compute for it: a stream each way. Internal to
 * zero/.
 */
#pragma once

#include "zero/base_internal.h"

typedef struct zr_copies {
    bool are_needed;   /* else nothing of what follows is there */
    zr_stream_t *down; /* gradients to the host; state back to it */
    zr_stream_t *up;   /* parameters to the device; state */
    /* Each of one stream alone, so that its records pass in order. */
    zr_event_t *grads_reduced; /* of the transfer stream */
    zr_event_t *all_down;      /* of `down` */
    uint64_t down_bytes;
    uint64_t up_bytes;
} zr_copies_t;

/** Where they are needed, make them. */
ZR_NODISCARD zr_status_t zr_copies_create(zr_copies_t *copies, zr_device_t *device);
/** Nothing is queued on them. */
void zr_copies_destroy(zr_copies_t *copies);
/** Work queued on `later` from now on finds what has been queued to go down. */
ZR_NODISCARD zr_status_t zr_copies_order_down(const zr_copies_t *copies, zr_stream_t *later);
