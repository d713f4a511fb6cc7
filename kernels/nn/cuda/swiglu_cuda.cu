/*
 * SwiGLU and its gradient on CUDA: a pack of a row's channels at a time. The formula is
 * kernels/nn/nn_math.h; with bf16, exp and the division are the hardware's approximations, as they
 * are for GELU (elementwise_nn_cuda.cu).
 */
#include "kernels/cuda/cuda_pack.cuh"
#include "kernels/nn/cuda/cuda_nn.h"
#include "kernels/nn/nn_math.h"

/* silu and its slope. The type of the elements says which: the last argument is ignored. */
struct silu_t {
    float value, slope;
};
static __device__ inline silu_t find_silu(float x, float) {
    return {zr_nn_silu_element(x), zr_nn_silu_slope(x)};
}
static __device__ inline silu_t find_silu(float x, zr_bf16_t) {
    float clamped = zr_nn_silu_clamp(x), e = __expf(-clamped), s = __fdividef(1.0f, 1.0f + e);
    return {x * s, zr_nn_silu_slope_from(clamped, e, s)};
}

/* Call `visit` with each of this thread's packs: its place in y, that of its gates, and its length.
 */
template <typename F>
static __device__ inline void for_row_packs(size_t n_rows, size_t channels, F visit) {
    const size_t row_packs = (channels + ZR_PACK_ELEMS - 1) / ZR_PACK_ELEMS;
    const size_t n_threads = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n_rows * row_packs;
         i += n_threads) {
        size_t row = i / row_packs, column = i % row_packs * ZR_PACK_ELEMS;
        visit(row * channels + column, row * 2 * channels + column,
              zr_pack_length(column, channels));
    }
}

template <typename T>
static __global__ void __launch_bounds__(ZR_CUDA_THREADS)
    swiglu_kernel(const zr_nn_swiglu_t args, bool wide) {
    const T *gate_up = static_cast<const T *>(args.gate_up);
    for_row_packs(args.n_rows, args.channels, [&](size_t at, size_t gate_at, int n) {
        zr_pack_t gate = zr_load_pack(gate_up, gate_at, n, wide);
        zr_pack_t up = zr_load_pack(gate_up, gate_at + args.channels, n, wide);
#pragma unroll
        for (int i = 0; i < ZR_PACK_ELEMS; i++)
            up.value[i] *= find_silu(gate.value[i], T()).value;
        zr_store_pack(static_cast<T *>(args.y), at, n, wide, up);
    });
}

template <typename T>
static __global__ void __launch_bounds__(ZR_CUDA_THREADS)
    swiglu_backward_kernel(const zr_nn_swiglu_backward_t args, bool wide) {
    const T *gate_up = static_cast<const T *>(args.gate_up);
    T *dgate_up = static_cast<T *>(args.dgate_up);
    for_row_packs(args.n_rows, args.channels, [&](size_t at, size_t gate_at, int n) {
        zr_pack_t dy = zr_load_pack(static_cast<const T *>(args.dy), at, n, wide);
        zr_pack_t gate = zr_load_pack(gate_up, gate_at, n, wide);
        zr_pack_t up = zr_load_pack(gate_up, gate_at + args.channels, n, wide);
#pragma unroll
        for (int i = 0; i < ZR_PACK_ELEMS; i++) {
            silu_t silu = find_silu(gate.value[i], T());
            gate.value[i] = dy.value[i] * up.value[i] * silu.slope;
            up.value[i] = dy.value[i] * silu.value;
        }
        zr_store_pack(dgate_up, gate_at, n, wide, gate);
        zr_store_pack(dgate_up, gate_at + args.channels, n, wide, up);
    });
}

static unsigned row_pack_blocks(size_t n_rows, size_t channels) {
    return zr_cuda_blocks(n_rows *
                          ((channels + ZR_PACK_ELEMS - 1) / ZR_PACK_ELEMS * ZR_PACK_ELEMS));
}

zr_status_t zr_cuda_nn_swiglu(zr_stream_t *stream, const void *arguments, void *workspace) {
    const zr_nn_swiglu_t *args = static_cast<const zr_nn_swiglu_t *>(arguments);
    (void)workspace;
    ZR_TRY(zr_cuda_enter(stream->device));
    unsigned blocks = row_pack_blocks(args->n_rows, args->channels);
    bool wide =
        zr_is_wide(args->gate_up) && zr_is_wide(args->y) && args->channels % ZR_PACK_ELEMS == 0;
    zr_by_dtype(args->activation_dtype, [&](auto element) {
        ZR_CUDA_LAUNCH((swiglu_kernel<decltype(element)>), blocks, ZR_CUDA_THREADS, 0,
                       zr_cuda_queue(stream), *args, wide);
    });
    return zr_cuda_launched(stream, "swiglu");
}

zr_status_t zr_cuda_nn_swiglu_backward(zr_stream_t *stream, const void *arguments,
                                       void *workspace) {
    const zr_nn_swiglu_backward_t *args = static_cast<const zr_nn_swiglu_backward_t *>(arguments);
    (void)workspace;
    ZR_TRY(zr_cuda_enter(stream->device));
    unsigned blocks = row_pack_blocks(args->n_rows, args->channels);
    bool wide = zr_is_wide(args->gate_up) && zr_is_wide(args->dgate_up) && zr_is_wide(args->dy) &&
                args->channels % ZR_PACK_ELEMS == 0;
    zr_by_dtype(args->activation_dtype, [&](auto element) {
        ZR_CUDA_LAUNCH((swiglu_backward_kernel<decltype(element)>), blocks, ZR_CUDA_THREADS, 0,
                       zr_cuda_queue(stream), *args, wide);
    });
    return zr_cuda_launched(stream, "swiglu_backward");
}
