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

template <typename T>
static void launch_gelu(cudaStream_t queue, void *y, const void *x, size_t n_elems) {
    ZR_CUDA_LAUNCH((gelu_kernel<T>), zr_cuda_blocks(n_elems), ZR_CUDA_THREADS, 0, queue,
                   static_cast<T *>(y), static_cast<const T *>(x), n_elems,
                   zr_is_wide(y) && zr_is_wide(x));
}

template <typename T>
static void launch_gelu_backward(cudaStream_t queue, void *dx, const void *dy, const void *x,
                                 size_t n_elems) {
    ZR_CUDA_LAUNCH((gelu_backward_kernel<T>), zr_cuda_blocks(n_elems), ZR_CUDA_THREADS, 0, queue,
                   static_cast<T *>(dx), static_cast<const T *>(dy), static_cast<const T *>(x),
                   n_elems, zr_is_wide(dx) && zr_is_wide(dy) && zr_is_wide(x));
}

zr_status_t zr_cuda_nn_gelu(zr_stream_t *stream, void *y, const void *x, zr_dtype_t dtype,
                            size_t n_elems) {
    ZR_TRY(zr_cuda_enter(stream->device));
    if (dtype == ZR_DTYPE_F32)
        launch_gelu<float>(zr_cuda_queue(stream), y, x, n_elems);
    else
        launch_gelu<zr_bf16_t>(zr_cuda_queue(stream), y, x, n_elems);
    return zr_cuda_launched(stream, "gelu");
}

zr_status_t zr_cuda_nn_gelu_backward(zr_stream_t *stream, void *dx, const void *dy, const void *x,
                                     zr_dtype_t dtype, size_t n_elems) {
    ZR_TRY(zr_cuda_enter(stream->device));
    if (dtype == ZR_DTYPE_F32)
        launch_gelu_backward<float>(zr_cuda_queue(stream), dx, dy, x, n_elems);
    else
        launch_gelu_backward<zr_bf16_t>(zr_cuda_queue(stream), dx, dy, x, n_elems);
    return zr_cuda_launched(stream, "gelu_backward");
}
