/*
 * The host device: what its files share.
 */
#pragma once

#include "kernels/device_backend.h"
#include "kernels/host/host_isa.h"
#include "kernels/host/host_pool.h"
#include "kernels/host/host_share.h"

typedef struct zr_host_device {
    zr_device_t base;
    zr_host_pool_t *pool;
    const zr_host_isa_t *isa;
    bool is_concurrent;     /* the view of a stream that has a thread */
    double wait_seconds;    /* of the device's thread, for such streams */
    zr_host_share_t *share; /* NULL: its memory is private */
} zr_host_device_t;

/* Entries of the backend's table that share work among threads (host_kernels.c). On a stream beside
 * the calling thread they are queued with their arguments; on any other they run here and now. */
bool zr_host_has_update(const zr_update_rule_t *rule);
zr_status_t zr_host_run(zr_stream_t *stream, const zr_kernel_work_t *work);
zr_status_t zr_host_copy_async(zr_stream_t *stream, void *dst, const void *src, size_t size_bytes,
                               zr_copy_t kind);
