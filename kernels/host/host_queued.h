/*
 * The runtime's kernels on a stream of a host device, which may have a thread of its own: entries
 * of the backend's table.
 */
#ifndef ZR_KERNELS_HOST_HOST_QUEUED_H
#define ZR_KERNELS_HOST_HOST_QUEUED_H

#include "kernels/device_backend.h"

zr_status_t zr_host_queue_copy(zr_stream_t *stream, void *dst, const void *src, size_t size_bytes,
                               zr_copy_t kind);
zr_status_t zr_host_queue_update(zr_stream_t *stream, const zr_update_rule_t *rule,
                                 const zr_update_t *update);
zr_status_t zr_host_queue_sum_of_squares(zr_stream_t *stream, const void *x, zr_dtype_t dtype,
                                         size_t n_elems, double *result, void *workspace);
zr_status_t zr_host_queue_add(zr_stream_t *stream, void *dst, zr_dtype_t dst_dtype, const void *src,
                              zr_dtype_t src_dtype, size_t n_elems);
zr_status_t zr_host_queue_scale(zr_stream_t *stream, void *x, zr_dtype_t dtype, size_t n_elems,
                                float factor);
zr_status_t zr_host_queue_cast(zr_stream_t *stream, void *dst, zr_dtype_t dst_dtype,
                               const void *src, zr_dtype_t src_dtype, size_t n_elems);
zr_status_t zr_host_queue_fill(zr_stream_t *stream, void *x, zr_dtype_t dtype, size_t n_elems,
                               float value);
zr_status_t zr_host_queue_sum(zr_stream_t *stream, void *dst, const void *const *sources,
                              int n_sources, zr_dtype_t dtype, size_t n_elems);
zr_status_t zr_host_queue_spread(zr_stream_t *stream, const zr_spread_t *args);

#endif
