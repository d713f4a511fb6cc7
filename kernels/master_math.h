/*
 * A master in two halves: a bf16 parameter and 16 bits more, once for host and device.
 *
 *   upper = the bf16 next to the master, ties away from zero;  lower = the master's lower 16 bits
 *   master = upper << 16, plus lower as a signed number
 *
 * With ties to even, what a master is more or less than its parameter would take 65,537 values,
 * one more than 16 bits have. With ties away from zero it takes 65,536, so that all masters come
 * back as they were, also infinities, zeros with a sign, denormals and those whose parameter
 * rounds to infinity. Only a NaN loses bits: it stays one, of its sign.
 *
 * Parameters are rounded like this wherever the master is kept, so that all forms compute alike.
 */
#pragma once

#include "kernels/dtype.h"

static inline ZR_HOST_DEVICE uint32_t zr_float_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static inline ZR_HOST_DEVICE float zr_float_of_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

/* Chosen between before it is narrowed: compilers then need fewer instructions. */

/** The parameter of a master. */
static inline ZR_HOST_DEVICE zr_bf16_t zr_master_upper(float master) {
    uint32_t bits = zr_float_bits(master);
    uint32_t rounded = master != master ? bits | 0x00400000u : bits + 0x8000u;
    return (zr_bf16_t)(rounded >> 16);
}

/** What is kept beside the parameter. A NaN's does not make it another parameter's. */
static inline ZR_HOST_DEVICE uint16_t zr_master_lower(float master) {
    uint32_t bits = zr_float_bits(master);
    uint32_t kept = master != master ? bits & 0xffff7fffu : bits;
    return (uint16_t)kept;
}

/** The master. @param upper  the parameter's value */
static inline ZR_HOST_DEVICE float zr_master_join(float upper, uint16_t lower) {
    return zr_float_of_bits(zr_float_bits(upper) + (uint32_t)(int32_t)(int16_t)lower);
}
