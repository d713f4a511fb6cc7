/*
 * Element types, and the one conversion between fp32 and bf16 that every
 * backend shares: round to nearest, ties to even, NaN stays NaN.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "kernels/base/status.h"

ZR_BEGIN_C

#if defined(__CUDACC__)
#define ZR_HOST_DEVICE __host__ __device__
#else
#define ZR_HOST_DEVICE
#endif

typedef enum zr_dtype {
    ZR_DTYPE_F32 = 0,
    ZR_DTYPE_BF16 = 1,
    ZR_DTYPE_F64 = 2, /* control values (norms); not supported by kernels */
    ZR_DTYPE_I32 = 3, /* token numbers */
    ZR_DTYPE_U8 = 4   /* bytes */
} zr_dtype_t;

/** Bytes per element; 0 for an invalid dtype. */
static inline size_t zr_dtype_size(zr_dtype_t dtype) {
    switch (dtype) {
    case ZR_DTYPE_F32:
    case ZR_DTYPE_I32:
        return 4;
    case ZR_DTYPE_BF16:
        return 2;
    case ZR_DTYPE_F64:
        return 8;
    case ZR_DTYPE_U8:
        return 1;
    }
    return 0;
}

/** "fp32", "bf16", "fp64", "int32", "uint8" or "?". */
static inline const char *zr_dtype_name(zr_dtype_t dtype) {
    switch (dtype) {
    case ZR_DTYPE_F32:
        return "fp32";
    case ZR_DTYPE_BF16:
        return "bf16";
    case ZR_DTYPE_F64:
        return "fp64";
    case ZR_DTYPE_I32:
        return "int32";
    case ZR_DTYPE_U8:
        return "uint8";
    }
    return "?";
}

typedef uint16_t zr_bf16_t;

/** The value of a bf16, exactly. */
static inline ZR_HOST_DEVICE float zr_bf16_to_f32(zr_bf16_t value) {
    uint32_t bits = (uint32_t)value << 16;
    float result;
    memcpy(&result, &bits, sizeof(result));
    return result;
}

/** Nearest bf16, ties to even; a NaN becomes a quiet NaN of the same sign. */
static inline ZR_HOST_DEVICE zr_bf16_t zr_bf16_from_f32(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    uint32_t quiet_nan = (bits >> 16) | 0x0040u;
    /* Signed, because most vector units compare only those. */
    return (zr_bf16_t)((int32_t)(bits & 0x7fffffffu) > 0x7f800000 ? quiet_nan : rounded);
}

ZR_END_C
