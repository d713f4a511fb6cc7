/*
 * Kernels on a stream beside the calling thread are queued with their arguments; on any other they
 * run here and now. Sums of several sources, which only collectives make, within what the thread
 * does anyway, wait for their turn instead, in the calling thread.
 */
#include "kernels/host/host_queued.h"

#include "kernels/host/host_beside.h"

static bool is_queued(const zr_stream_t *stream) {
    return ((const zr_host_stream_t *)stream)->beside != NULL;
}

static zr_status_t run_or_queue(zr_stream_t *stream, const zr_host_work_t *work) {
    return is_queued(stream) ? zr_host_queue(stream, work) : work->run(stream, work);
}

static zr_status_t run_copy(zr_stream_t *stream, const zr_host_work_t *work) {
    return zr_host_copy_async(stream, work->dst, work->src, work->n, work->kind);
}

zr_status_t zr_host_queue_copy(zr_stream_t *stream, void *dst, const void *src, size_t size_bytes,
                               zr_copy_t kind) {
    zr_host_work_t work = {.run = run_copy, .dst = dst, .src = src, .n = size_bytes, .kind = kind};
    return run_or_queue(stream, &work);
}

static zr_status_t run_update(zr_stream_t *stream, const zr_host_work_t *work) {
    return zr_host_update(stream, work->rule, &work->update);
}

zr_status_t zr_host_queue_update(zr_stream_t *stream, const zr_update_rule_t *rule,
                                 const zr_update_t *update) {
    zr_host_work_t work = {.run = run_update, .rule = rule, .update = *update};
    return run_or_queue(stream, &work);
}

static zr_status_t run_sum_of_squares(zr_stream_t *stream, const zr_host_work_t *work) {
    return zr_host_sum_of_squares(stream, work->src, work->src_dtype, work->n, work->dst,
                                  work->workspace);
}

zr_status_t zr_host_queue_sum_of_squares(zr_stream_t *stream, const void *x, zr_dtype_t dtype,
                                         size_t n_elems, double *result, void *workspace) {
    zr_host_work_t work = {.run = run_sum_of_squares,
                           .src = x,
                           .src_dtype = dtype,
                           .n = n_elems,
                           .dst = result,
                           .workspace = workspace};
    return run_or_queue(stream, &work);
}

/* Work from one array to another, element by element. */
static zr_host_work_t of_two(zr_status_t (*run)(zr_stream_t *, const zr_host_work_t *), void *dst,
                             zr_dtype_t dst_dtype, const void *src, zr_dtype_t src_dtype,
                             size_t n_elems) {
    return (zr_host_work_t){.run = run,
                            .dst = dst,
                            .dst_dtype = dst_dtype,
                            .src = src,
                            .src_dtype = src_dtype,
                            .n = n_elems};
}

static zr_status_t run_add(zr_stream_t *stream, const zr_host_work_t *work) {
    return zr_host_add(stream, work->dst, work->dst_dtype, work->src, work->src_dtype, work->n);
}

zr_status_t zr_host_queue_add(zr_stream_t *stream, void *dst, zr_dtype_t dst_dtype, const void *src,
                              zr_dtype_t src_dtype, size_t n_elems) {
    zr_host_work_t work = of_two(run_add, dst, dst_dtype, src, src_dtype, n_elems);
    return run_or_queue(stream, &work);
}

static zr_status_t run_scale(zr_stream_t *stream, const zr_host_work_t *work) {
    return zr_host_scale(stream, work->dst, work->dst_dtype, work->n, work->value);
}

zr_status_t zr_host_queue_scale(zr_stream_t *stream, void *x, zr_dtype_t dtype, size_t n_elems,
                                float factor) {
    zr_host_work_t work = {
        .run = run_scale, .dst = x, .dst_dtype = dtype, .n = n_elems, .value = factor};
    return run_or_queue(stream, &work);
}

static zr_status_t run_cast(zr_stream_t *stream, const zr_host_work_t *work) {
    return zr_host_cast(stream, work->dst, work->dst_dtype, work->src, work->src_dtype, work->n);
}

zr_status_t zr_host_queue_cast(zr_stream_t *stream, void *dst, zr_dtype_t dst_dtype,
                               const void *src, zr_dtype_t src_dtype, size_t n_elems) {
    zr_host_work_t work = of_two(run_cast, dst, dst_dtype, src, src_dtype, n_elems);
    return run_or_queue(stream, &work);
}

static zr_status_t run_fill(zr_stream_t *stream, const zr_host_work_t *work) {
    return zr_host_fill(stream, work->dst, work->dst_dtype, work->n, work->value);
}

zr_status_t zr_host_queue_fill(zr_stream_t *stream, void *x, zr_dtype_t dtype, size_t n_elems,
                               float value) {
    zr_host_work_t work = {
        .run = run_fill, .dst = x, .dst_dtype = dtype, .n = n_elems, .value = value};
    return run_or_queue(stream, &work);
}

zr_status_t zr_host_queue_sum(zr_stream_t *stream, void *dst, const void *const *sources,
                              int n_sources, zr_dtype_t dtype, size_t n_elems) {
    if (is_queued(stream))
        ZR_TRY(zr_host_stream_synchronize(stream));
    return zr_host_sum(stream, dst, sources, n_sources, dtype, n_elems);
}

zr_status_t zr_host_queue_spread(zr_stream_t *stream, const zr_spread_t *args) {
    if (is_queued(stream))
        ZR_TRY(zr_host_stream_synchronize(stream));
    return zr_host_spread(stream, args);
}
