/*
 * Dispatch of the runtime's own kernels: checks, costs, and the call of the backend.
 */
#include "kernels/kernels.h"

#include <math.h>
#include <stdint.h>

#include "kernels/device_backend.h"
#include "kernels/encoding.h"
#include "kernels/kernel_checks_internal.h"
#include "kernels/sum_of_squares_math.h"

static bool is_float_dtype(zr_dtype_t dtype) {
    return dtype == ZR_DTYPE_F32 || dtype == ZR_DTYPE_BF16;
}

/* An array of a kernel: a known dtype, an address that fits it, a size that exists. */
static zr_status_t check_elements(const zr_stream_t *stream, const char *kernel, const char *array,
                                  const void *address, zr_dtype_t dtype, size_t n_elems,
                                  bool are_numbers) {
    const zr_log_t *log = &stream->device->log;
    if (are_numbers && !is_float_dtype(dtype))
        return zr_fail(log, ZR_ERR_ARGUMENT, "%s: %s is %s; only fp32 and bf16 are allowed", kernel,
                       array, zr_dtype_name(dtype));
    if (n_elems > SIZE_MAX / sizeof(double))
        return zr_fail(log, ZR_ERR_ARGUMENT, "%s: %s has %zu elements, more than memory can hold",
                       kernel, array, n_elems);
    if (n_elems > 0 && address == NULL)
        return zr_fail(log, ZR_ERR_ARGUMENT, "%s: %s is NULL with %s", kernel, array,
                       zr_count_text(n_elems, "element").text);
    if ((uintptr_t)address % zr_dtype_size(dtype) != 0)
        return zr_fail(log, ZR_ERR_ARGUMENT, "%s: %s at %p is not aligned to its %zu-byte elements",
                       kernel, array, address, zr_dtype_size(dtype));
    return ZR_OK;
}

zr_status_t zr_check_array(const zr_stream_t *stream, const char *kernel, const char *array,
                           const void *address, zr_dtype_t dtype, size_t n_elems) {
    return check_elements(stream, kernel, array, address, dtype, n_elems, true);
}

zr_status_t zr_kernel_run(zr_stream_t *stream, const zr_kernel_work_t *work,
                          const zr_charge_t *charge) {
    zr_stream_work_begins(stream);
    ZR_TRY(stream->device->backend->run(stream, work));
    zr_stream_charge(stream, charge);
    return ZR_OK;
}

/* All of these are made of single operations. */
static zr_status_t run(zr_stream_t *stream, const zr_kernel_work_t *work, const char *name,
                       double operations, double bytes) {
    const zr_charge_t charge = {
        .kernel = name, .cost = {.operations = operations, .bytes = bytes}, .rate = ZR_RATE_VECTOR};
    return zr_kernel_run(stream, work, &charge);
}

/* ---- sums -------------------------------------------------------------------------- */

size_t zr_sum_of_squares_workspace_bytes(size_t n_elems) {
    size_t n_blocks = zr_sum_of_squares_n_blocks(n_elems);
    return n_blocks > 1 ? n_blocks * sizeof(double) : 0;
}

zr_status_t zr_kernel_sum_of_squares(zr_stream_t *stream, const void *x, zr_dtype_t dtype,
                                     size_t n_elems, double *result, void *workspace) {
    ZR_TRY(zr_check_array(stream, "sum_of_squares", "x", x, dtype, n_elems));
    size_t workspace_bytes = zr_sum_of_squares_workspace_bytes(n_elems);
    if (result == NULL || (uintptr_t)result % sizeof(double) != 0)
        return zr_fail(&stream->device->log, ZR_ERR_ARGUMENT,
                       "sum_of_squares: result at %p is no place for a double", (void *)result);
    if (workspace_bytes > 0 && (workspace == NULL || (uintptr_t)workspace % sizeof(double) != 0))
        return zr_fail(&stream->device->log, ZR_ERR_ARGUMENT,
                       "sum_of_squares: workspace at %p is no place for %zu bytes of doubles",
                       workspace, workspace_bytes);
    const zr_kernel_work_t work = {.kernel = ZR_KERNEL_SUM_OF_SQUARES,
                                   .src = x,
                                   .src_dtype = dtype,
                                   .n_elems = n_elems,
                                   .result = result,
                                   .workspace = workspace};
    return run(stream, &work, "sum_of_squares", 2.0 * (double)n_elems,
               (double)zr_dtype_size(dtype) * (double)n_elems);
}

zr_status_t zr_kernel_sum(zr_stream_t *stream, void *dst, const void *const *sources, int n_sources,
                          zr_dtype_t dtype, size_t n_elems) {
    if (n_sources < 1 || n_sources > ZR_MAX_SUM_SOURCES || sources == NULL)
        return zr_fail(&stream->device->log, ZR_ERR_ARGUMENT,
                       "sum: n_sources is %d; 1 to %d are allowed", n_sources, ZR_MAX_SUM_SOURCES);
    ZR_TRY(zr_check_array(stream, "sum", "dst", dst, dtype, n_elems));
    for (int i = 0; i < n_sources; i++)
        ZR_TRY(zr_check_array(stream, "sum", "a source", sources[i], dtype, n_elems));
    if (n_elems == 0)
        return ZR_OK;
    const zr_kernel_work_t work = {.kernel = ZR_KERNEL_SUM,
                                   .spread = {&dst, 1, sources, n_sources, dtype, n_elems}};
    return run(stream, &work, "sum", (double)(n_sources - 1) * (double)n_elems,
               (double)zr_dtype_size(dtype) * (n_sources + 1.0) * (double)n_elems);
}

/* Where the device has no kernel for it: a sum, or a copy, for each place. */
static zr_status_t spread_one_by_one(zr_stream_t *stream, void *const *dsts, int n_dsts,
                                     const void *const *sources, int n_sources, zr_dtype_t dtype,
                                     size_t n_elems) {
    const void *whole = sources[0];
    int n_done = 0;
    if (n_sources > 1) {
        ZR_TRY(zr_kernel_sum(stream, dsts[0], sources, n_sources, dtype, n_elems));
        whole = dsts[0];
        n_done = 1;
    }
    for (int i = n_done; i < n_dsts; i++)
        if (dsts[i] != whole)
            ZR_TRY(zr_copy_async(stream, dsts[i], whole, n_elems * zr_dtype_size(dtype),
                                 ZR_COPY_DEVICE_TO_DEVICE));
    return ZR_OK;
}

static zr_status_t check_spread(const zr_stream_t *stream, void *const *dsts, int n_dsts,
                                const void *const *sources, int n_sources, zr_dtype_t dtype,
                                size_t n_elems) {
    const zr_log_t *log = &stream->device->log;
    if (n_sources < 1 || n_sources > ZR_MAX_SUM_SOURCES || sources == NULL || n_dsts < 0 ||
        n_dsts > ZR_MAX_SUM_SOURCES || dsts == NULL)
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "spread: n_sources is %d, n_dsts %d; 1 to %d and 0 to %d are allowed",
                       n_sources, n_dsts, ZR_MAX_SUM_SOURCES, ZR_MAX_SUM_SOURCES);
    if (n_sources == 1 && zr_dtype_size(dtype) == 0)
        return zr_fail(log, ZR_ERR_ARGUMENT, "spread: %d is not a dtype", (int)dtype);
    /* A copy is one of bytes; what else there is to check is the same. */
    for (int i = 0; i < n_sources; i++)
        ZR_TRY(check_elements(stream, "spread", "a source", sources[i], dtype, n_elems,
                              n_sources > 1));
    for (int i = 0; i < n_dsts; i++)
        ZR_TRY(check_elements(stream, "spread", "a dst", dsts[i], dtype, n_elems, n_sources > 1));
    return ZR_OK;
}

zr_status_t zr_kernel_spread(zr_stream_t *stream, void *const *dsts, int n_dsts,
                             const void *const *sources, int n_sources, zr_dtype_t dtype,
                             size_t n_elems) {
    ZR_TRY(check_spread(stream, dsts, n_dsts, sources, n_sources, dtype, n_elems));
    if (n_elems == 0 || n_dsts == 0)
        return ZR_OK;
    if (!stream->device->backend->has_spread)
        return spread_one_by_one(stream, dsts, n_dsts, sources, n_sources, dtype, n_elems);
    const zr_kernel_work_t work = {.kernel = ZR_KERNEL_SPREAD,
                                   .spread = {dsts, n_dsts, sources, n_sources, dtype, n_elems}};
    double array_bytes = (double)zr_dtype_size(dtype) * (double)n_elems;
    return run(stream, &work, "spread", (double)(n_sources - 1) * (double)n_elems,
               array_bytes * ((double)n_sources + (double)n_dsts));
}

/* ---- element by element -------------------------------------------------------------- */

/* From src to dst; `n_moves` times an array of dst's kind is moved. */
static zr_status_t run_on_two(zr_stream_t *stream, const zr_kernel_work_t *work, const char *name,
                              double operations, size_t n_moves) {
    ZR_TRY(zr_check_array(stream, name, "dst", work->dst, work->dst_dtype, work->n_elems));
    ZR_TRY(zr_check_array(stream, name, "src", work->src, work->src_dtype, work->n_elems));
    if (work->n_elems == 0)
        return ZR_OK;
    size_t bytes_per_elem =
        n_moves * zr_dtype_size(work->dst_dtype) + zr_dtype_size(work->src_dtype);
    return run(stream, work, name, operations, (double)bytes_per_elem * (double)work->n_elems);
}

/* In place. */
static zr_status_t run_on_one(zr_stream_t *stream, const zr_kernel_work_t *work, const char *name,
                              double operations, double n_moves) {
    ZR_TRY(zr_check_array(stream, name, "x", work->dst, work->dst_dtype, work->n_elems));
    if (work->n_elems == 0)
        return ZR_OK;
    return run(stream, work, name, operations,
               n_moves * (double)zr_dtype_size(work->dst_dtype) * (double)work->n_elems);
}

zr_status_t zr_kernel_add(zr_stream_t *stream, void *dst, zr_dtype_t dst_dtype, const void *src,
                          zr_dtype_t src_dtype, size_t n_elems) {
    const zr_kernel_work_t work = {.kernel = ZR_KERNEL_ADD,
                                   .dst = dst,
                                   .src = src,
                                   .dst_dtype = dst_dtype,
                                   .src_dtype = src_dtype,
                                   .n_elems = n_elems};
    return run_on_two(stream, &work, "add", (double)n_elems, 2);
}

zr_status_t zr_kernel_cast(zr_stream_t *stream, void *dst, zr_dtype_t dst_dtype, const void *src,
                           zr_dtype_t src_dtype, size_t n_elems) {
    const zr_kernel_work_t work = {.kernel = ZR_KERNEL_CAST,
                                   .dst = dst,
                                   .src = src,
                                   .dst_dtype = dst_dtype,
                                   .src_dtype = src_dtype,
                                   .n_elems = n_elems};
    return run_on_two(stream, &work, "cast", 0.0, 1);
}

zr_status_t zr_kernel_scale(zr_stream_t *stream, void *x, zr_dtype_t dtype, size_t n_elems,
                            float factor) {
    const zr_kernel_work_t work = {.kernel = ZR_KERNEL_SCALE,
                                   .dst = x,
                                   .dst_dtype = dtype,
                                   .n_elems = n_elems,
                                   .value = factor};
    return run_on_one(stream, &work, "scale", (double)n_elems, 2.0);
}

zr_status_t zr_kernel_fill(zr_stream_t *stream, void *x, zr_dtype_t dtype, size_t n_elems,
                           float value) {
    const zr_kernel_work_t work = {
        .kernel = ZR_KERNEL_FILL, .dst = x, .dst_dtype = dtype, .n_elems = n_elems, .value = value};
    return run_on_one(stream, &work, "fill", 0.0, 1.0);
}

/* ---- blocks with a scale -------------------------------------------------------------------- */

static zr_status_t check_blocks(const zr_stream_t *stream, const char *kernel, const void *blocks,
                                const zr_encoding_t *encoding, size_t n_elems) {
    if ((n_elems > 0 && blocks == NULL) || (uintptr_t)blocks % encoding->align_bytes != 0)
        return zr_fail(&stream->device->log, ZR_ERR_ARGUMENT,
                       "%s: blocks of %s at %p; they must be at a multiple of %s", kernel,
                       encoding->name, blocks, zr_count_text(encoding->align_bytes, "byte").text);
    return ZR_OK;
}

zr_status_t zr_kernel_code(zr_stream_t *stream, const zr_kernel_work_t *work,
                           const zr_encoding_t *encoding) {
    bool encodes = work->kernel == ZR_KERNEL_ENCODE;
    const char *name = encodes ? "encode" : "decode";
    zr_dtype_t dtype = encodes ? work->src_dtype : work->dst_dtype;
    ZR_TRY(zr_check_array(stream, name, "values", encodes ? work->src : work->dst, dtype,
                          work->n_elems));
    ZR_TRY(check_blocks(stream, name, encodes ? work->dst : work->src, encoding, work->n_elems));
    if (work->n_elems == 0)
        return ZR_OK;
    double operations = encodes ? encoding->encode_operations : encoding->decode_operations;
    return run(stream, work, name, operations * (double)work->n_elems,
               (double)(work->n_elems * zr_dtype_size(dtype) +
                        zr_encoding_bytes(encoding, work->n_elems)));
}

/* ---- kernels of a caller's own -------------------------------------------------------------- */

zr_status_t zr_stream_launched(zr_stream_t *stream, const zr_charge_t *charge) {
    const zr_device_backend_t *backend = stream->device->backend;
    if (charge == NULL || charge->kernel == NULL)
        return zr_fail(&stream->device->log, ZR_ERR_ARGUMENT,
                       "a kernel on stream \"%s\" has no name", stream->name);
    const zr_cost_t *cost = &charge->cost;
    if (!isfinite(cost->operations) || !isfinite(cost->bytes) || cost->operations < 0 ||
        cost->bytes < 0)
        return zr_fail(&stream->device->log, ZR_ERR_ARGUMENT,
                       "%s: a cost of %g operations and %g bytes; both must be finite and >= 0",
                       charge->kernel, cost->operations, cost->bytes);
    if (backend->stream_launched != NULL)
        ZR_TRY(backend->stream_launched(stream, charge->kernel));
    zr_stream_charge(stream, charge);
    return ZR_OK;
}
