/*
 * Packs: eight consecutive elements of either dtype as fp32 in registers, read and written with
 * 16-byte accesses where the memory is aligned for them. All kernels of this folder are loops
 * over packs, so that the choice of access stands here alone.
 */
#ifndef ZR_KERNELS_CUDA_CUDA_PACK_CUH
#define ZR_KERNELS_CUDA_CUDA_PACK_CUH

#include <stdint.h>

#include "kernels/cuda/cuda_launch.cuh"

#define ZR_PACK_ELEMS 8

struct zr_pack_t {
    float value[ZR_PACK_ELEMS];
};

/* Elements as they lie in memory; T is float or zr_bf16_t. */
template <typename T> struct __align__(16) zr_words_t {
    T word[16 / sizeof(T)];
};

static __device__ inline float zr_widen(float value) {
    return value;
}
static __device__ inline float zr_widen(zr_bf16_t value) {
    return zr_bf16_to_f32(value);
}
static __device__ inline void zr_narrow(float value, float *word) {
    *word = value;
}
static __device__ inline void zr_narrow(float value, zr_bf16_t *word) {
    *word = zr_bf16_from_f32(value);
}

/** Read elements [first, first + n), n <= 8; `wide`: x is 16-byte aligned and first a multiple
 * of 8. */
template <typename T>
static __device__ inline zr_pack_t zr_load_pack(const T *x, size_t first, int n, bool wide) {
    const int per_access = 16 / sizeof(T);
    zr_pack_t pack;
    if (wide && n == ZR_PACK_ELEMS) {
        const zr_words_t<T> *words = reinterpret_cast<const zr_words_t<T> *>(x + first);
#pragma unroll
        for (int access = 0; access < ZR_PACK_ELEMS / per_access; access++) {
            zr_words_t<T> part = words[access];
#pragma unroll
            for (int i = 0; i < per_access; i++)
                pack.value[access * per_access + i] = zr_widen(part.word[i]);
        }
    } else {
#pragma unroll
        for (int i = 0; i < ZR_PACK_ELEMS; i++)
            pack.value[i] = i < n ? zr_widen(x[first + i]) : 0.0f;
    }
    return pack;
}

/** Write the first n elements of a pack; `wide` as for zr_load_pack. */
template <typename T>
static __device__ inline void zr_store_pack(T *x, size_t first, int n, bool wide,
                                            const zr_pack_t &pack) {
    const int per_access = 16 / sizeof(T);
    if (wide && n == ZR_PACK_ELEMS) {
        zr_words_t<T> *words = reinterpret_cast<zr_words_t<T> *>(x + first);
#pragma unroll
        for (int access = 0; access < ZR_PACK_ELEMS / per_access; access++) {
            zr_words_t<T> part;
#pragma unroll
            for (int i = 0; i < per_access; i++)
                zr_narrow(pack.value[access * per_access + i], &part.word[i]);
            words[access] = part;
        }
    } else {
#pragma unroll
        for (int i = 0; i < ZR_PACK_ELEMS; i++)
            if (i < n)
                zr_narrow(pack.value[i], &x[first + i]);
    }
}

/** Elements of the pack that starts at `first`: 8, or what is left. */
static __device__ inline int zr_pack_length(size_t first, size_t n_elems) {
    return n_elems - first < ZR_PACK_ELEMS ? (int)(n_elems - first) : ZR_PACK_ELEMS;
}

/** The first element of this thread's first pack, and the step to its next one. */
static __device__ inline size_t zr_first_pack(void) {
    return ((size_t)blockIdx.x * blockDim.x + threadIdx.x) * ZR_PACK_ELEMS;
}
static __device__ inline size_t zr_pack_stride(void) {
    return (size_t)gridDim.x * blockDim.x * ZR_PACK_ELEMS;
}

/* ---- host ---- */

static inline bool zr_is_wide(const void *pointer) {
    return (uintptr_t)pointer % 16 == 0;
}

/** Blocks for n elements in packs; at least 1. */
static inline unsigned zr_cuda_blocks(size_t n_elems) {
    size_t per_block = (size_t)ZR_CUDA_THREADS * ZR_PACK_ELEMS;
    size_t blocks = n_elems / per_block + (n_elems % per_block != 0);
    blocks = blocks < ZR_CUDA_MAX_BLOCKS ? blocks : ZR_CUDA_MAX_BLOCKS;
    return blocks > 0 ? (unsigned)blocks : 1;
}

#endif
