/*
 * GELU and its gradient on CUDA: loops over packs. The formula is kernels/nn/nn_math.h; with bf16,
 * exp and the division are the hardware's approximations, whose errors (a few units of fp32) are
 * far below the rounding of the result, because exact ones would cost more than the memory does.
 */
#include "kernels/cuda/cuda_pack.cuh"
#include "kernels/nn/cuda/cuda_nn.h"
#include "kernels/nn/nn_math.h"

/* The type of the elements says which: the last argument is not looked at. */
static __device__ inline float gelu(float x, float) {
    return zr_nn_gelu_element(x);
}
static __device__ inline float gelu(float x, zr_bf16_t) {
    return __fdividef(x, 1.0f + __expf(-zr_nn_gelu_exponent(x)));
}

static __device__ inline float gelu_slope(float x, float) {
    return zr_nn_gelu_slope(x);
}
static __device__ inline float gelu_slope(float x, zr_bf16_t) {
    x = zr_nn_gelu_clamp(x);
    float e = __expf(fminf(-zr_nn_gelu_exponent(x), 80.0f)); /* e times 1 / (1 + e) is finite */
    return zr_nn_gelu_slope_from(x, e, __fdividef(1.0f, 1.0f + e));
}

template <typename T>
static __global__ void __launch_bounds__(ZR_CUDA_THREADS)
    gelu_kernel(T *y, const T *x, size_t n_elems, bool wide) {
    zr_for_packs<T>(n_elems, wide, [&](auto place) {
        zr_pack_t pack = place.load(x);
#pragma unroll
        for (int i = 0; i < ZR_PACK_ELEMS; i++)
            pack.value[i] = gelu(pack.value[i], T());
        place.store(y, pack);
    });
}

template <typename T>
static __global__ void __launch_bounds__(ZR_CUDA_THREADS)
    gelu_backward_kernel(T *dx, const T *dy, const T *x, size_t n_elems, bool wide) {
    zr_for_packs<T>(n_elems, wide, [&](auto place) {
        zr_pack_t pack = place.load(x), slope = place.load(dy);
#pragma unroll
        for (int i = 0; i < ZR_PACK_ELEMS; i++)
            slope.value[i] *= gelu_slope(pack.value[i], T());
        place.store(dx, slope);
    });
}

zr_status_t zr_cuda_nn_gelu(zr_stream_t *stream, const void *arguments, void *workspace) {
    const zr_nn_gelu_t *args = static_cast<const zr_nn_gelu_t *>(arguments);
    (void)workspace;
    ZR_TRY(zr_cuda_enter(stream->device));
    bool wide = zr_is_wide(args->out) && zr_is_wide(args->x) && zr_is_wide(args->dy);
    zr_by_dtype(args->activation_dtype, [&](auto element) {
        using T = decltype(element);
        T *out = static_cast<T *>(args->out);
        const T *x = static_cast<const T *>(args->x), *dy = static_cast<const T *>(args->dy);
        if (dy == NULL)
            ZR_CUDA_LAUNCH((gelu_kernel<T>), zr_cuda_blocks(args->n_elems), ZR_CUDA_THREADS, 0,
                           zr_cuda_queue(stream), out, x, args->n_elems, wide);
        else
            ZR_CUDA_LAUNCH((gelu_backward_kernel<T>), zr_cuda_blocks(args->n_elems),
                           ZR_CUDA_THREADS, 0, zr_cuda_queue(stream), out, dy, x, args->n_elems,
                           wide);
    });
    return zr_cuda_launched(stream, args->dy == NULL ? "gelu" : "gelu_backward");
}
