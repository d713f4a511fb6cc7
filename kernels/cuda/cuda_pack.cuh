/*
 * Packs: eight elements of either dtype as fp32 in registers, read and written with 16-byte
 * accesses where the memory is aligned for them. All kernels of this folder are loops over packs,
 * so that the choice of access stands here alone.
 */
#ifndef ZR_KERNELS_CUDA_CUDA_PACK_CUH
#define ZR_KERNELS_CUDA_CUDA_PACK_CUH

#include <stdint.h>

#include "kernels/cuda/cuda_launch.cuh"
#include "kernels/master_math.h"

#ifdef __CUDACC__
#include <cuda_bf16.h>
#endif

#define ZR_PACK_ELEMS 8

struct zr_pack_t {
    float value[ZR_PACK_ELEMS];
};

/** Two values, rounded to nearest even, as one register: `low` in the lower half. */
static __device__ inline uint32_t zr_pair_of_bf16(float low, float high) {
#ifdef __CUDACC__
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    uint32_t bits;
    memcpy(&bits, &pair, sizeof(bits));
    return bits;
#else
    return (uint32_t)zr_bf16_from_f32(low) | (uint32_t)zr_bf16_from_f32(high) << 16;
#endif
}

/* Elements as they lie in memory, of one access. */
template <typename T, int N = 16 / (int)sizeof(T)> struct __align__(N * sizeof(T)) zr_words_t {
    T word[N];
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

/* Halves of masters. A lower one stands in a pack as the bits of a float. */
struct zr_upper_t {
    zr_bf16_t bits;
};
struct zr_lower_t {
    uint16_t bits;
};
static __device__ inline float zr_widen(zr_upper_t value) {
    return zr_bf16_to_f32(value.bits);
}
static __device__ inline float zr_widen(zr_lower_t value) {
    return zr_float_of_bits(value.bits);
}
static __device__ inline void zr_narrow(float value, zr_upper_t *word) {
    word->bits = zr_master_upper(value);
}
static __device__ inline void zr_narrow(float value, zr_lower_t *word) {
    word->bits = zr_master_lower(value);
}

/* Read and write N elements as one access, which become or were part of a pack. */
template <int N, typename T>
static __device__ inline void zr_load_words(const T *x, float *values) {
    zr_words_t<T, N> words = *zr_access<zr_words_t<T, N>>(x);
#pragma unroll
    for (int i = 0; i < N; i++)
        values[i] = zr_widen(words.word[i]);
}
template <int N, typename T>
static __device__ inline void zr_store_words(T *x, const float *values) {
    zr_words_t<T, N> words;
#pragma unroll
    for (int i = 0; i < N; i++)
        zr_narrow(values[i], &words.word[i]);
    *zr_access<zr_words_t<T, N>>(x) = words;
}
template <int N> static __device__ inline void zr_store_words(zr_bf16_t *x, const float *values) {
    zr_words_t<uint32_t, N / 2> pairs; /* an instruction for two, where zr_narrow takes several */
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        pairs.word[i] = zr_pair_of_bf16(values[2 * i], values[2 * i + 1]);
    *zr_access<zr_words_t<uint32_t, N / 2>>(x) = pairs;
}

/* ---- eight elements side by side ------------------------------------------------------------ */

/** Read elements [first, first + n), n <= 8; `wide`: x is 16-byte aligned and first a multiple
 * of 8. */
template <typename T>
static __device__ inline zr_pack_t zr_load_pack(const T *x, size_t first, int n, bool wide) {
    const int per_access = 16 / sizeof(T);
    zr_pack_t pack;
    if (wide && n == ZR_PACK_ELEMS) {
#pragma unroll
        for (int i = 0; i < ZR_PACK_ELEMS; i += per_access)
            zr_load_words<per_access>(x + first + i, pack.value + i);
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
#pragma unroll
        for (int i = 0; i < ZR_PACK_ELEMS; i += per_access)
            zr_store_words<per_access>(x + first + i, pack.value + i);
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

/* ---- arrays that are gone through as a whole ----------------------------------------------------
 *
 * A warp takes 256 elements at a time. Its lanes' accesses should lie side by side: memory moves in
 * sectors of 32 bytes, and an access that takes every other 16 bytes moves twice as many, halves of
 * them when it writes. Eight elements of bf16 are 16 bytes. Eight of fp32 are two accesses, so that
 * where a kernel has an fp32 array, a lane has two quads, 128 elements apart, of all its arrays.
 */

/** Where a pack lies. WHOLE: all of it is there, and all arrays are aligned to 16 bytes. */
template <bool QUADS, bool WHOLE> struct zr_place_t {
    static constexpr int PIECE = QUADS ? 4 : 8;
    size_t first, n_elems;

    /** Of element i of the pack: which of the array it is. */
    __device__ size_t index(int i) const {
        return first + static_cast<size_t>(i / PIECE * PIECE * 32 + i % PIECE);
    }

    /** What is not there is 0. */
    template <typename T> __device__ zr_pack_t load(const T *x) const {
        zr_pack_t pack;
#pragma unroll
        for (int i = 0; i < ZR_PACK_ELEMS; i++) {
            if (WHOLE && i % PIECE == 0)
                zr_load_words<PIECE>(x + index(i), pack.value + i);
            if (!WHOLE)
                pack.value[i] = index(i) < n_elems ? zr_widen(x[index(i)]) : 0.0f;
        }
        return pack;
    }

    template <typename T> __device__ void store(T *x, const zr_pack_t &pack) const {
#pragma unroll
        for (int i = 0; i < ZR_PACK_ELEMS; i++) {
            if (WHOLE && i % PIECE == 0)
                zr_store_words<PIECE>(x + index(i), pack.value + i);
            if (!WHOLE && index(i) < n_elems)
                zr_narrow(pack.value[i], &x[index(i)]);
        }
    }
};

/**
 * Call `visit` with the place of each of this thread's packs, for arrays of the types T. `wide`:
 * all of them are aligned to 16 bytes. Which place it is, is known to the compiler: nothing
 * branches between reads, so that all are under way at a time.
 */
template <typename... T, typename F>
static __device__ inline void zr_for_packs(size_t n_elems, bool wide, F visit) {
    constexpr bool QUADS = ((sizeof(T) > sizeof(zr_bf16_t)) || ...);
    constexpr unsigned piece = zr_place_t<QUADS, true>::PIECE;
    const size_t thread = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    const size_t stride = (size_t)gridDim.x * blockDim.x * ZR_PACK_ELEMS;
    for (size_t first = thread / 32 * 32 * ZR_PACK_ELEMS + thread % 32 * piece; first < n_elems;
         first += stride) {
        const zr_place_t<QUADS, true> whole = {first, n_elems};
        if (wide && whole.index(ZR_PACK_ELEMS - 1) < n_elems)
            visit(whole);
        else
            visit(zr_place_t<QUADS, false>{first, n_elems});
    }
}

/** Complete upper halves of masters. */
static __device__ inline void zr_join_masters(zr_pack_t *pack, const zr_pack_t &lower) {
#pragma unroll
    for (int i = 0; i < ZR_PACK_ELEMS; i++)
        pack->value[i] = zr_master_join(pack->value[i], (uint16_t)zr_float_bits(lower.value[i]));
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
