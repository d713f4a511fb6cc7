/*
 * Codes of 8 and of 4 bits for elements of blocks with a scale: their formulas, once for host and
 * device. encoding.h has the layout of a block, and which values are represented how well.
 *
 * Every operation is correctly rounded and none may be contracted or reordered, and the largest
 * magnitude of a block is one of integers, so that all backends give the same bits.
 */
#pragma once

#include "kernels/master_math.h"
#include "kernels/update.h"

#define ZR_CODE_MOST_ELEMS 256

/* ---- which code is how large ----------------------------------------------------------------- */

static inline ZR_HOST_DEVICE bool zr_code_is_small(zr_code_t code) {
    return code == ZR_CODE_INT4 || code == ZR_CODE_NF4;
}
static inline ZR_HOST_DEVICE int zr_code_bits(zr_code_t code) {
    return zr_code_is_small(code) ? 4 : 8;
}
static inline ZR_HOST_DEVICE int zr_code_block_elems(zr_code_t code) {
    return zr_code_is_small(code) ? 64 : 256;
}
/** Bytes in front of the codes: the scale, in bf16 or fp32. */
static inline ZR_HOST_DEVICE int zr_code_scale_bytes(zr_code_t code) {
    return zr_code_is_small(code) ? 2 : 4;
}
static inline ZR_HOST_DEVICE int zr_code_block_bytes(zr_code_t code) {
    return zr_code_is_small(code) ? 2 + 64 / 2 : 4 + 256;
}
/* Small floats: bits of a level's fraction, and the largest code without the sign. */
static inline ZR_HOST_DEVICE int zr_code_shift(zr_code_t code) {
    return code == ZR_CODE_UFLOAT8 ? 23 - 4 : 23 - 3;
}
static inline ZR_HOST_DEVICE uint32_t zr_code_last(zr_code_t code) {
    return code == ZR_CODE_UFLOAT8 ? 255 : 127;
}
/* Code c is a float with these bits + (c << shift), less the one of code 0: equally far from each
 * other near 0, and relatively so above. */
static inline ZR_HOST_DEVICE uint32_t zr_code_base(zr_code_t code) {
    return 0x3f800000u - (zr_code_last(code) << zr_code_shift(code));
}
/** The largest level of a code; the scale is what it stands for, divided by it. */
static inline ZR_HOST_DEVICE float zr_code_most(zr_code_t code) {
    if (code == ZR_CODE_INT8 || code == ZR_CODE_INT4)
        return code == ZR_CODE_INT8 ? 127.0f : 7.0f;
    return code == ZR_CODE_NF4 ? 1.0f : 1.0f - zr_float_of_bits(zr_code_base(code));
}
/** The code of 0. */
static inline ZR_HOST_DEVICE uint32_t zr_code_of_zero(zr_code_t code) {
    return code == ZR_CODE_NF4 ? 7 : 0;
}

/* ---- a block's scale ------------------------------------------------------------------------- */

/* The least of a block that is not all 0, so that each level is a normal number: what is decoded is
 * then encoded as it was. */
#define ZR_CODE_LEAST_SCALE 0x1p-100f
/* 127 times more would be infinite. */
#define ZR_CODE_MOST_SCALE_INT8 0x1.020406p+121f

typedef struct zr_code_scale {
    float scale;   /* as it is kept; 0 or NaN: all elements have the code of 0 */
    float inverse; /* an element's place among the levels is their product */
} zr_code_scale_t;

/** What an element adds to the block's largest magnitude: the bits of a float, or less than 0.
 * Unsigned codes know no negative ones. */
static inline ZR_HOST_DEVICE int32_t zr_code_magnitude(zr_code_t code, float value) {
    uint32_t bits = zr_float_bits(value), magnitude = bits & 0x7fffffffu;
    uint32_t sign = (int32_t)magnitude < 0x7f800000 ? bits & 0x80000000u : 0;
    return (int32_t)(code == ZR_CODE_UFLOAT8 ? magnitude | sign : magnitude);
}

/* Of small floats to 16 bits, which is where a scale comes out again when its largest element, as
 * it was rounded, is divided by the largest level. */
static inline ZR_HOST_DEVICE float zr_code_round_scale(zr_code_t code, float scale) {
    if (code == ZR_CODE_INT8)
        return scale < ZR_CODE_MOST_SCALE_INT8 ? scale : ZR_CODE_MOST_SCALE_INT8;
    uint32_t dropped = zr_code_is_small(code) ? 16 : 8, bits = zr_float_bits(scale);
    uint32_t rounded = (bits + (1u << (dropped - 1))) >> dropped << dropped;
    uint32_t last = 0x7f7fffffu >> dropped << dropped; /* numbers remain numbers */
    return zr_float_of_bits(rounded < last ? rounded : last);
}

/** @param most  the largest magnitude: bits of a float */
static inline ZR_HOST_DEVICE zr_code_scale_t zr_code_scale(zr_code_t code, uint32_t most) {
    zr_code_scale_t scale = {most == 0 ? 0.0f : zr_float_of_bits(0x7fc00000u), 0};
    if (most == 0 || most >= 0x7f800000u)
        return scale;
    float exact = zr_float_of_bits(most) / zr_code_most(code);
    scale.scale =
        zr_code_round_scale(code, exact < ZR_CODE_LEAST_SCALE ? ZR_CODE_LEAST_SCALE : exact);
    /* A little more, so that the largest element has the last code in spite of rounding. */
    bool is_float = code == ZR_CODE_FLOAT8 || code == ZR_CODE_UFLOAT8;
    scale.inverse = 1.0f / scale.scale * (is_float ? 1.00004f : 1.000001f);
    return scale;
}

/* ---- random bits ----------------------------------------------------------------------------- */

/** What elements are rounded with: the same bits wherever an element lives. */
typedef struct zr_rounding {
    uint32_t keys[2];
    uint32_t first; /* the number of the first element, of those that have these keys */
    int shift;      /* of an element's bits: 16 or 0 */
} zr_rounding_t;

/** Of an array of an update's state, after the master. Two arrays have the same keys: of an
 * element's bits the first takes the lower half, the second the upper one. */
static inline zr_rounding_t zr_update_rounding(const zr_update_t *update, size_t array) {
    uint32_t of_pair = (uint32_t)((array - 1) / 2) * 0x9e3779b9u + (uint32_t)(update->first >> 32);
    return (zr_rounding_t){{update->rounding[0] ^ of_pair, update->rounding[1] + of_pair},
                           (uint32_t)update->first,
                           array % 2 == 0 ? 0 : 16};
}

/** 32 random bits of an element: two rounds of shifts and products, keyed before each. */
static inline ZR_HOST_DEVICE uint32_t zr_random_bits(const uint32_t *keys, uint32_t index) {
    uint32_t bits = index ^ keys[0];
    bits = (bits ^ (bits >> 16)) * 0x7feb352du;
    bits = ((bits ^ (bits >> 15)) + keys[1]) * 0x846ca68bu;
    return bits ^ (bits >> 16);
}

/** Random bits for element first + index: the highest 16. */
static inline ZR_HOST_DEVICE uint32_t zr_random_of(const zr_rounding_t *rounding, size_t index) {
    return zr_random_bits(rounding->keys, rounding->first + (uint32_t)index) << rounding->shift;
}

/** A bf16 next to the value, by the highest 16 random bits; a NaN as of zr_bf16_from_f32. */
static inline ZR_HOST_DEVICE zr_bf16_t zr_bf16_at_random(float value, uint32_t random) {
    uint32_t bits = zr_float_bits(value);
    uint32_t result =
        (int32_t)(bits & 0x7fffffffu) > 0x7f800000 ? bits | 0x00400000u : bits + (random >> 16);
    return (zr_bf16_t)(result >> 16);
}

/* ---- elements -------------------------------------------------------------------------------- */

/** Of zr_code_of: to the nearest level. */
#define ZR_CODE_NEAREST 0x80000000u

/* Of 0 <= x. */
static inline ZR_HOST_DEVICE uint32_t zr_code_of_float(zr_code_t code, float x, uint32_t random) {
    const uint32_t base = zr_code_base(code);
    uint32_t steps = zr_float_bits(x + zr_float_of_bits(base)) - base;
    uint32_t result = (steps + (random >> (32 - zr_code_shift(code)))) >> zr_code_shift(code);
    return (int32_t)result < (int32_t)zr_code_last(code) ? result : zr_code_last(code);
}

static inline ZR_HOST_DEVICE uint32_t zr_code_of_integer(float x, float most) {
    float low = x < -most ? -most : x;
    float held = low > most ? most : low;
    return zr_float_bits(held + 12582912.0f); /* 1.5 2^23: the integer is in the lowest bits */
}

static inline ZR_HOST_DEVICE float zr_code_pick(uint32_t bit, float if_0, float if_1) {
    return bit != 0 ? if_1 : if_0;
}

/* By choices between constants, which neither a vector nor a warp goes to memory for. Dettmers et
 * al. 2023, "QLoRA", appendix E. */
static inline ZR_HOST_DEVICE float zr_code_nf4_level(uint32_t code) {
    uint32_t a = code & 1, b = code & 2, c = code & 4;
    float level_01 = zr_code_pick(a, -1.0f, -0.69619280f);
    float level_23 = zr_code_pick(a, -0.52507305f, -0.39491749f);
    float level_45 = zr_code_pick(a, -0.28444138f, -0.18477343f);
    float level_67 = zr_code_pick(a, -0.091050036f, 0.0f);
    float level_89 = zr_code_pick(a, 0.07958030f, 0.16093020f);
    float level_1011 = zr_code_pick(a, 0.24611230f, 0.33791524f);
    float level_1213 = zr_code_pick(a, 0.44070983f, 0.56261700f);
    float level_1415 = zr_code_pick(a, 0.72295684f, 1.0f);
    float low =
        zr_code_pick(c, zr_code_pick(b, level_01, level_23), zr_code_pick(b, level_45, level_67));
    float high = zr_code_pick(c, zr_code_pick(b, level_89, level_1011),
                              zr_code_pick(b, level_1213, level_1415));
    return zr_code_pick(code & 8, low, high);
}

static inline ZR_HOST_DEVICE uint32_t zr_code_of_nf4(float x) {
    uint32_t code = 0;
    for (uint32_t i = 1; i < 16; i++)
        code += x > 0.5f * (zr_code_nf4_level(i - 1) + zr_code_nf4_level(i));
    return code;
}

/**
 * The code of an element of a block whose scale is a number > 0; other bits than the code's lowest
 * 8 or 4 mean nothing.
 *
 * @param random  of the codes that are small floats: ZR_CODE_NEAREST, or random bits, with which
 *                the mean of what is decoded is the element
 */
static inline ZR_HOST_DEVICE uint32_t zr_code_of(zr_code_t code, const zr_code_scale_t *scale,
                                                 float value, uint32_t random) {
    float x = value * scale->inverse;
    if (code == ZR_CODE_INT8 || code == ZR_CODE_INT4)
        return zr_code_of_integer(x, zr_code_most(code));
    if (code == ZR_CODE_NF4)
        return zr_code_of_nf4(x);
    uint32_t bits = zr_float_bits(x);
    if (code == ZR_CODE_FLOAT8)
        return zr_code_of_float(code, zr_float_of_bits(bits & 0x7fffffffu), random) |
               (bits >> 31 << 7);
    /* What is more than 0 stays so. */
    int32_t result = (int32_t)zr_code_of_float(code, x > 0 ? x : 0.0f, random);
    int32_t above = (int32_t)zr_float_bits(value), least = above < 1 ? above : 1;
    return (uint32_t)(result > least ? result : least);
}

/** What a code stands for, to be multiplied with the scale. */
static inline ZR_HOST_DEVICE float zr_code_level(zr_code_t code, uint32_t word) {
    if (code == ZR_CODE_INT8)
        return (float)(int8_t)word;
    if (code == ZR_CODE_INT4)
        return (float)((int32_t)(word << 28) >> 28);
    if (code == ZR_CODE_NF4)
        return zr_code_nf4_level(word & 15);
    uint32_t bits = zr_code_base(code) + ((word & zr_code_last(code)) << zr_code_shift(code));
    float level = zr_float_of_bits(bits) - zr_float_of_bits(zr_code_base(code));
    return code == ZR_CODE_FLOAT8 && (word & 128) != 0 ? -level : level;
}
