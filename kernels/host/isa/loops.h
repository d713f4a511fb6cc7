/*
 * What files have in common that are compiled once per instruction set, with ZR_HOST_ISA its name:
 * elements of either dtype as fp32, and the loops of updates for any mix of dtypes.
 */
#pragma once

#include "kernels/master_math.h"
#include "kernels/update.h"

#define ZR_INLINE static inline __attribute__((always_inline))

#define ZR_CONCAT_(a, b) a##b
#define ZR_CONCAT(a, b) ZR_CONCAT_(a, b)

ZR_INLINE float load(const void *x, zr_dtype_t dtype, size_t i) {
    return dtype == ZR_DTYPE_F32 ? ((const float *)x)[i]
                                 : zr_bf16_to_f32(((const zr_bf16_t *)x)[i]);
}

ZR_INLINE void store(void *x, zr_dtype_t dtype, size_t i, float value) {
    if (dtype == ZR_DTYPE_F32)
        ((float *)x)[i] = value;
    else
        ((zr_bf16_t *)x)[i] = zr_bf16_from_f32(value);
}

/* A master: in fp32, or split into the parameter and what is kept of it. */
ZR_INLINE float load_master(const void *kept, const void *param, zr_dtype_t dtype, bool is_split,
                            size_t i) {
    if (!is_split)
        return ((const float *)kept)[i];
    float upper = load(param, dtype, i);
    return dtype == ZR_DTYPE_F32 ? upper : zr_master_join(upper, ((const uint16_t *)kept)[i]);
}

ZR_INLINE void store_master(void *kept, void *param, zr_dtype_t dtype, bool is_split, size_t i,
                            float master) {
    if (!is_split)
        ((float *)kept)[i] = master;
    else if (dtype == ZR_DTYPE_BF16)
        ((uint16_t *)kept)[i] = zr_master_lower(master);
    if (dtype == ZR_DTYPE_F32)
        ((float *)param)[i] = master;
    else
        ((zr_bf16_t *)param)[i] = zr_master_upper(master);
}

/**
 * Define zr_host_<name>_<ISA>, which a rule's `loops` has. loop(update, factors, grad_dtype,
 * param_dtype, is_split) is ZR_INLINE and written once: inlined with constants, each mix of them
 * becomes a loop that vectorises.
 */
#define ZR_HOST_UPDATE_OF(loop, is_split)                                                          \
    do {                                                                                           \
        if (update->grad_dtype == ZR_DTYPE_F32 && update->param_dtype == ZR_DTYPE_F32)             \
            loop(update, factors, ZR_DTYPE_F32, ZR_DTYPE_F32, is_split);                           \
        else if (update->grad_dtype == ZR_DTYPE_F32)                                               \
            loop(update, factors, ZR_DTYPE_F32, ZR_DTYPE_BF16, is_split);                          \
        else if (update->param_dtype == ZR_DTYPE_F32)                                              \
            loop(update, factors, ZR_DTYPE_BF16, ZR_DTYPE_F32, is_split);                          \
        else                                                                                       \
            loop(update, factors, ZR_DTYPE_BF16, ZR_DTYPE_BF16, is_split);                         \
    } while (0)
#define ZR_HOST_UPDATE(name, loop)                                                                 \
    void ZR_CONCAT(zr_host_##name##_, ZR_HOST_ISA)(const zr_update_t *update,                      \
                                                   const void *factors);                           \
    void ZR_CONCAT(zr_host_##name##_, ZR_HOST_ISA)(const zr_update_t *update,                      \
                                                   const void *factors) {                          \
        if (update->splits_master)                                                                 \
            ZR_HOST_UPDATE_OF(loop, true);                                                         \
        else                                                                                       \
            ZR_HOST_UPDATE_OF(loop, false);                                                        \
    }
