/*
 * The runtime's kernels on the host, element by element.
 */
#include <string.h>

#include "kernels/adamw_math.h"
#include "kernels/host/host_device.h"
#include "kernels/sum_of_squares_math.h"

static float load(const void *x, zr_dtype_t dtype, size_t i) {
    return dtype == ZR_DTYPE_F32 ? ((const float *)x)[i]
                                 : zr_bf16_to_f32(((const zr_bf16_t *)x)[i]);
}

static void store(void *x, zr_dtype_t dtype, size_t i, float value) {
    if (dtype == ZR_DTYPE_F32)
        ((float *)x)[i] = value;
    else
        ((zr_bf16_t *)x)[i] = zr_bf16_from_f32(value);
}

zr_status_t zr_host_adamw(zr_stream_t *stream, const zr_adamw_t *args) {
    (void)stream;
    zr_adamw_factors_t factors = zr_adamw_factors(args);
    for (size_t i = 0; i < args->n_elems; i++) {
        zr_adamw_element(&factors, &args->master[i], &args->m[i], &args->v[i],
                         load(args->grad, args->grad_dtype, i));
        store(args->param, args->param_dtype, i, args->master[i]);
    }
    return ZR_OK;
}

static double block_sum_of_squares(const void *x, zr_dtype_t dtype, size_t first, size_t last) {
    double lanes[ZR_SUM_OF_SQUARES_LANES] = {0};
    for (size_t i = first; i < last; i++) {
        double value = load(x, dtype, i);
        lanes[(i - first) % ZR_SUM_OF_SQUARES_LANES] += value * value;
    }
    return zr_sum_of_squares_add_lanes(lanes);
}

zr_status_t zr_host_sum_of_squares(zr_stream_t *stream, const void *x, zr_dtype_t dtype,
                                   size_t n_elems, double *result, void *workspace) {
    (void)stream;
    (void)workspace;
    double lanes[ZR_SUM_OF_SQUARES_LANES] = {0};
    for (size_t block = 0; block < zr_sum_of_squares_n_blocks(n_elems); block++) {
        size_t first = block * ZR_SUM_OF_SQUARES_BLOCK;
        size_t last =
            n_elems - first < ZR_SUM_OF_SQUARES_BLOCK ? n_elems : first + ZR_SUM_OF_SQUARES_BLOCK;
        lanes[block % ZR_SUM_OF_SQUARES_LANES] += block_sum_of_squares(x, dtype, first, last);
    }
    *result = zr_sum_of_squares_add_lanes(lanes);
    return ZR_OK;
}

zr_status_t zr_host_add(zr_stream_t *stream, void *dst, zr_dtype_t dst_dtype, const void *src,
                        zr_dtype_t src_dtype, size_t n_elems) {
    (void)stream;
    for (size_t i = 0; i < n_elems; i++)
        store(dst, dst_dtype, i, load(dst, dst_dtype, i) + load(src, src_dtype, i));
    return ZR_OK;
}

zr_status_t zr_host_scale(zr_stream_t *stream, void *x, zr_dtype_t dtype, size_t n_elems,
                          float factor) {
    (void)stream;
    for (size_t i = 0; i < n_elems; i++)
        store(x, dtype, i, load(x, dtype, i) * factor);
    return ZR_OK;
}

zr_status_t zr_host_cast(zr_stream_t *stream, void *dst, zr_dtype_t dst_dtype, const void *src,
                         zr_dtype_t src_dtype, size_t n_elems) {
    (void)stream;
    if (dst_dtype == src_dtype) {
        memcpy(dst, src, n_elems * zr_dtype_size(dst_dtype));
        return ZR_OK;
    }
    for (size_t i = 0; i < n_elems; i++)
        store(dst, dst_dtype, i, load(src, src_dtype, i));
    return ZR_OK;
}

zr_status_t zr_host_fill(zr_stream_t *stream, void *x, zr_dtype_t dtype, size_t n_elems,
                         float value) {
    (void)stream;
    for (size_t i = 0; i < n_elems; i++)
        store(x, dtype, i, value);
    return ZR_OK;
}

zr_status_t zr_host_sum(zr_stream_t *stream, void *dst, const void *const *sources, int n_sources,
                        zr_dtype_t dtype, size_t n_elems) {
    (void)stream;
    for (size_t i = 0; i < n_elems; i++) {
        float sum = load(sources[0], dtype, i);
        for (int source = 1; source < n_sources; source++)
            sum += load(sources[source], dtype, i);
        store(dst, dtype, i, sum);
    }
    return ZR_OK;
}
