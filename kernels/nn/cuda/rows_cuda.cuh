/*
 * What the kernels over rows share: packs as they lie in memory, work for warps, sums over the
 * lanes of a warp, gradients as they are stored, and sums over columns in two stages.
 */
#ifndef ZR_KERNELS_NN_CUDA_ROWS_CUDA_CUH
#define ZR_KERNELS_NN_CUDA_ROWS_CUDA_CUH

#include "kernels/cuda/cuda_pack.cuh"
#include "kernels/nn/cuda/cuda_nn.h"

#define ZR_WARP 32
#define ZR_ALL_LANES 0xffffffffu
/* Columns that a warp goes through at a time: a pack for each lane. */
#define ZR_TILE_ELEMS ((size_t)ZR_WARP * ZR_PACK_ELEMS)

/* ---- packs in memory's own type ------------------------------------------------------------ */

/* For what is held for long: with bf16 it takes half the registers of a zr_pack_t. */
template <typename T> struct zr_raw_pack_t;
template <> struct __align__(16) zr_raw_pack_t<float> {
    float word[ZR_PACK_ELEMS];
};
template <> struct __align__(16) zr_raw_pack_t<zr_bf16_t> {
    uint32_t pair[ZR_PACK_ELEMS / 2]; /* halves of a register would take one each */
};

static __device__ inline float zr_raw_value(const zr_raw_pack_t<float> &raw, int i) {
    return raw.word[i];
}
static __device__ inline float zr_raw_value(const zr_raw_pack_t<zr_bf16_t> &raw, int i) {
    return zr_bf16_to_f32(static_cast<zr_bf16_t>(raw.pair[i / 2] >> (i % 2 * 16)));
}
static __device__ inline void zr_set_raw(zr_raw_pack_t<float> *raw, int i, float word) {
    raw->word[i] = word;
}
static __device__ inline void zr_set_raw(zr_raw_pack_t<zr_bf16_t> *raw, int i, zr_bf16_t word) {
    raw->pair[i / 2] |= static_cast<uint32_t>(word) << (i % 2 * 16);
}

/** As zr_load_pack; what lies beyond n <= 8 elements is 0, and n = 0 reads nothing. */
template <typename T>
static __device__ inline zr_raw_pack_t<T> zr_load_raw(const T *x, size_t first, int n, bool wide) {
    if (wide && n == ZR_PACK_ELEMS)
        return *zr_access<zr_raw_pack_t<T>>(x + first);
    zr_raw_pack_t<T> raw = {};
#pragma unroll
    for (int i = 0; i < ZR_PACK_ELEMS; i++)
        if (i < n)
            zr_set_raw(&raw, i, x[first + i]);
    return raw;
}

/** Elements of a row's pack that starts at `first`; 0 behind the row's end. */
static __device__ inline int zr_row_pack_length(size_t first, size_t channels) {
    return first < channels ? zr_pack_length(first, channels) : 0;
}

/** Whether all rows of a matrix are whole packs that may be read 16 bytes at a time. */
static inline bool zr_has_wide_rows(const void *data, size_t n_columns) {
    return zr_is_wide(data) && n_columns % ZR_PACK_ELEMS == 0;
}

/* ---- warps ----------------------------------------------------------------------------------- */

static __device__ inline unsigned zr_lane(void) {
    return threadIdx.x % ZR_WARP;
}
/** The warp's number in the grid, and how many there are. */
static __device__ inline size_t zr_warp_index(void) {
    return ((size_t)blockIdx.x * blockDim.x + threadIdx.x) / ZR_WARP;
}
static __device__ inline size_t zr_warp_count(void) {
    return (size_t)gridDim.x * blockDim.x / ZR_WARP;
}

/** Blocks of ZR_CUDA_THREADS for so many warps; at least 1. */
static inline unsigned zr_blocks_for_warps(size_t n_warps) {
    size_t per_block = ZR_CUDA_THREADS / ZR_WARP;
    size_t blocks = n_warps / per_block + (n_warps % per_block != 0);
    blocks = blocks < ZR_CUDA_MAX_BLOCKS ? blocks : ZR_CUDA_MAX_BLOCKS;
    return blocks > 0 ? (unsigned)blocks : 1;
}

/** The sum over the lanes, the same bits in each. */
static __device__ inline float zr_warp_sum(float value) {
#pragma unroll
    for (int by = ZR_WARP / 2; by > 0; by /= 2)
        value += __shfl_xor_sync(ZR_ALL_LANES, value, by);
    return value;
}

/* ---- gradients ------------------------------------------------------------------------------- */

/** Write, or add to, elements [first, first + n) of a gradient, rounding once. */
template <typename T>
static __device__ inline void zr_store_gradient(T *gradient, bool accumulate, size_t first, int n,
                                                bool wide, zr_pack_t sum) {
    if (accumulate) {
        zr_pack_t old = zr_load_pack(gradient, first, n, wide);
#pragma unroll
        for (int i = 0; i < ZR_PACK_ELEMS; i++)
            sum.value[i] += old.value[i];
    }
    zr_store_pack(gradient, first, n, wide, sum);
}

/* ---- sums over columns ---------------------------------------------------------------------- */

/* Rows of fp32 that a kernel's blocks have left, `pitch` elements apart: their sum over each of
 * n_columns columns is a gradient. Which rows of the whole are in which partial, and the order of
 * the sum, depends on sizes alone. */
typedef struct zr_column_sums {
    const float *partials;
    size_t n_partials, pitch, n_columns;
} zr_column_sums_t;

/** Queue the sum of the partials (bias_grad_cuda.cu). Fails as zr_cuda_launched does. */
extern "C" ZR_NODISCARD zr_status_t zr_cuda_nn_sum_partials(zr_stream_t *stream,
                                                            const zr_column_sums_t *sums,
                                                            const zr_nn_gradient_t *gradient,
                                                            zr_dtype_t dtype, const char *name);

/** ZR_ERR_UNSUPPORTED when activations have not the dtype of the parameters. */
static inline zr_status_t zr_cuda_nn_check_dtypes(const zr_stream_t *stream, const char *kernel,
                                                  zr_dtype_t activation_dtype,
                                                  zr_dtype_t param_dtype) {
    if (activation_dtype == param_dtype)
        return ZR_OK;
    return zr_fail(&stream->device->log, ZR_ERR_UNSUPPORTED,
                   "%s: activations are %s and parameters %s; device \"cuda\" has kernels for one "
                   "dtype of both",
                   kernel, zr_dtype_name(activation_dtype), zr_dtype_name(param_dtype));
}

#endif
