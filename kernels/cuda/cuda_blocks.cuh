/*
 * Blocks with a scale on CUDA: a warp has 256 elements, whole blocks of any code, in quads as
 * cuda_pack.cuh has them: lane l has elements 4 l and 128 + 4 l, and three more after each.
 */
#ifndef ZR_KERNELS_CUDA_CUDA_BLOCKS_CUH
#define ZR_KERNELS_CUDA_CUDA_BLOCKS_CUH

#include <type_traits>

#include "kernels/block_code_math.h"
#include "kernels/cuda/cuda_pack.cuh"

#define ZR_WARP_ELEMS ((size_t)32 * ZR_PACK_ELEMS)

/** Call `visit` with the places of this thread's packs. All lanes of a warp come along, those that
 * have no elements, too. `wide` as for zr_for_packs. */
template <typename F>
static __device__ inline void zr_for_warps(size_t n_elems, bool wide, F visit) {
    const size_t thread = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    const size_t stride = (size_t)gridDim.x * blockDim.x * ZR_PACK_ELEMS;
    for (size_t begin = thread / 32 * ZR_WARP_ELEMS; begin < n_elems; begin += stride) {
        size_t first = begin + thread % 32 * 4;
        if (wide && n_elems - begin >= ZR_WARP_ELEMS)
            visit(zr_place_t<true, true>{first, n_elems});
        else
            visit(zr_place_t<true, false>{first, n_elems});
    }
}

/* The largest over lanes of the same block. */
static __device__ inline int32_t zr_most_of(int32_t most, int n_lanes) {
    for (int by = n_lanes / 2; by > 0; by /= 2) {
        int32_t other = __shfl_xor_sync(0xffffffffu, most, by);
        most = other > most ? other : most;
    }
    return most;
}

/* Where a quad's codes are, and its block; NULL: no element of the block is there. */
template <zr_code_t C, typename B> struct zr_quad_t {
    B *block, *codes;

    __device__ zr_quad_t(B *blocks, size_t index, size_t n_elems) {
        const size_t elems = zr_code_block_elems(C);
        size_t first = index / elems * elems;
        block = first < n_elems ? blocks + first / elems * zr_code_block_bytes(C) : NULL;
        codes = block + zr_code_scale_bytes(C) + (index - first) * zr_code_bits(C) / 8;
    }
};

/** Read a pack of a code's blocks. */
template <zr_code_t C, typename P>
static __device__ inline zr_pack_t zr_load_blocks(const unsigned char *blocks, const P &place) {
    zr_pack_t pack;
#pragma unroll
    for (int i = 0; i < ZR_PACK_ELEMS; i += 4) {
        zr_quad_t<C, const unsigned char> quad(blocks, place.index(i), place.n_elems);
        uint32_t words = 0;
        float scale = 0;
        if (quad.block != NULL && zr_code_is_small(C)) {
            words = *zr_access<uint16_t>(quad.codes);
            scale = zr_bf16_to_f32(*zr_access<zr_bf16_t>(quad.block));
        } else if (quad.block != NULL) {
            words = *zr_access<uint32_t>(quad.codes);
            scale = *zr_access<float>(quad.block);
        }
#pragma unroll
        for (int k = 0; k < 4; k++)
            pack.value[i + k] =
                zr_code_level(C, words >> (k * zr_code_bits(C)) & ((1u << zr_code_bits(C)) - 1)) *
                scale;
    }
    return pack;
}

/* Write a quad of a block whose largest magnitude is known. */
template <zr_code_t C>
static __device__ inline void zr_store_quad(zr_quad_t<C, unsigned char> quad, bool is_first,
                                            uint32_t most, const float *values,
                                            const uint32_t *random) {
    zr_code_scale_t scale = zr_code_scale(C, most);
    uint32_t words = 0;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        uint32_t word =
            scale.scale > 0 ? zr_code_of(C, &scale, values[k], random[k]) : zr_code_of_zero(C);
        words |= (word & ((1u << zr_code_bits(C)) - 1)) << (k * zr_code_bits(C));
    }
    if (zr_code_is_small(C))
        *zr_access<uint16_t>(quad.codes) = (uint16_t)words;
    else
        *zr_access<uint32_t>(quad.codes) = words;
    if (is_first && zr_code_is_small(C))
        *zr_access<zr_bf16_t>(quad.block) = zr_bf16_from_f32(scale.scale);
    else if (is_first)
        *zr_access<float>(quad.block) = scale.scale;
}

/** Write a pack to a code's blocks, by all lanes of a warp at once; elements that are not there are
 * zeros. `rounding` as for zr_host_isa_t.encode. */
template <zr_code_t C, typename P>
static __device__ inline void zr_store_blocks(unsigned char *blocks, const P &place,
                                              const zr_pack_t &pack,
                                              const zr_rounding_t *rounding) {
    const int elems = zr_code_block_elems(C);
    int32_t most[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < ZR_PACK_ELEMS; i++) {
        bool is_there = place.index(i) < place.n_elems;
        int32_t magnitude = is_there ? zr_code_magnitude(C, pack.value[i]) : 0;
        most[i / 4] = magnitude > most[i / 4] ? magnitude : most[i / 4];
    }
    __syncwarp(); /* all lanes have read the scales that one of them is about to write */
    if (elems == 256)
        most[0] = most[1] = zr_most_of(most[0] > most[1] ? most[0] : most[1], 32);
    else
        for (int k = 0; k < 2; k++)
            most[k] = zr_most_of(most[k], elems / 4);
#pragma unroll
    for (int i = 0; i < ZR_PACK_ELEMS; i += 4) {
        uint32_t random[4];
#pragma unroll
        for (int k = 0; k < 4; k++)
            random[k] =
                rounding == NULL ? ZR_CODE_NEAREST : zr_random_of(rounding, place.index(i + k));
        zr_quad_t<C, unsigned char> quad(blocks, place.index(i), place.n_elems);
        if (quad.block != NULL)
            zr_store_quad<C>(quad, place.index(i) % elems == 0, (uint32_t)most[i / 4],
                             pack.value + i, random);
    }
}

/* ---- the state of an update in its form, but for the master --------------------------------- */

template <zr_state_form_t F, zr_code_t C, typename P>
static __device__ inline zr_pack_t zr_load_state(const void *array, const P &place) {
    if constexpr (F == ZR_STATE_FP32)
        return place.load(static_cast<const float *>(array));
    else if constexpr (F == ZR_STATE_BF16)
        return place.load(static_cast<const zr_bf16_t *>(array));
    else
        return zr_load_blocks<C>(static_cast<const unsigned char *>(array), place);
}

template <zr_state_form_t F, zr_code_t C, typename P>
static __device__ inline void zr_store_state(void *array, const P &place, zr_pack_t pack,
                                             const zr_rounding_t &rounding) {
    if constexpr (F == ZR_STATE_FP32) {
        place.store(static_cast<float *>(array), pack);
    } else if constexpr (F == ZR_STATE_BF16) {
#pragma unroll
        for (int i = 0; i < ZR_PACK_ELEMS; i++)
            pack.value[i] = zr_bf16_to_f32(
                zr_bf16_at_random(pack.value[i], zr_random_of(&rounding, place.index(i))));
        place.store(static_cast<zr_bf16_t *>(array), pack);
    } else {
        zr_store_blocks<C>(static_cast<unsigned char *>(array), place, pack, &rounding);
    }
}

/* ---- the master: in fp32, or SPLIT into the parameter and what is kept of it ----------------- */

template <bool SPLIT, typename T, typename P>
static __device__ inline zr_pack_t zr_load_master(const void *kept, const T *param,
                                                  const P &place) {
    if constexpr (!SPLIT) {
        return place.load(static_cast<const float *>(kept));
    } else {
        zr_pack_t master = place.load(param);
        if constexpr (std::is_same_v<T, zr_upper_t>)
            zr_join_masters(&master, place.load(static_cast<const zr_lower_t *>(kept)));
        return master;
    }
}

template <bool SPLIT, typename T, typename P>
static __device__ inline void zr_store_master(void *kept, T *param, const P &place,
                                              const zr_pack_t &master) {
    if constexpr (!SPLIT)
        place.store(static_cast<float *>(kept), master);
    else if constexpr (std::is_same_v<T, zr_upper_t>)
        place.store(static_cast<zr_lower_t *>(kept), master);
    place.store(param, master);
}

/** Call `body` with a constant of an update's form. */
template <typename F> static inline void zr_by_form(zr_state_form_t form, F body) {
    if (form == ZR_STATE_FP32)
        body(std::integral_constant<zr_state_form_t, ZR_STATE_FP32>());
    else if (form == ZR_STATE_BF16)
        body(std::integral_constant<zr_state_form_t, ZR_STATE_BF16>());
    else
        body(std::integral_constant<zr_state_form_t, ZR_STATE_8BIT>());
}

/** Call `body` with a constant of whether the master is split, and the parameters' type. */
template <typename F> static inline void zr_by_master(bool is_split, zr_dtype_t dtype, F body) {
    if (is_split && dtype == ZR_DTYPE_F32)
        body(std::true_type(), float());
    else if (is_split)
        body(std::true_type(), zr_upper_t());
    else if (dtype == ZR_DTYPE_F32)
        body(std::false_type(), float());
    else
        body(std::false_type(), zr_upper_t());
}

/** Whether all arrays of an update but blocks, which need not, are aligned to 16 bytes. */
static inline bool zr_update_is_wide(const zr_update_t *update, int n_arrays) {
    bool is_wide = zr_is_wide(update->grad) && zr_is_wide(update->param);
    for (int i = 0; i < (update->form == ZR_STATE_8BIT ? 1 : n_arrays); i++)
        is_wide = is_wide && zr_is_wide(update->arrays[i]);
    return is_wide;
}

/**
 * Define zr_cuda_<name>, which a rule's `cuda` is: launch<F, S, G, P>(queue, update) for the
 * state's form, whether the master is split, and the gradients' and the parameters' types.
 */
#define ZR_CUDA_UPDATE(name, launch)                                                               \
    extern "C" zr_status_t zr_cuda_##name(zr_stream_t *stream, const zr_update_t *update) {        \
        zr_by_form(update->form, [&](auto form) {                                                  \
            zr_by_dtype(update->grad_dtype, [&](auto grad) {                                       \
                zr_by_master(                                                                      \
                    update->splits_master, update->param_dtype, [&](auto split, auto param) {      \
                        launch<decltype(form)::value, decltype(split)::value, decltype(grad),      \
                               decltype(param)>(zr_cuda_queue(stream), update);                    \
                    });                                                                            \
            });                                                                                    \
        });                                                                                        \
        return ZR_OK;                                                                              \
    }

#endif
