/*
 * The element formulas of a transformer's kernels, once for host and device: plain arithmetic, so
 * that compilers vectorise loops over them on every instruction set and all of them give the same
 * bits.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "kernels/dtype.h"

/**
 * e^x for x in [-87.3, 88.3]; what lies outside is clamped to the ends, so that the result
 * is never 0, subnormal or infinite. NaN stays NaN. Error below 1 unit in the last place.
 *
 * e^x = 2^n e^r with n = round(x log2(e)) and |r| <= ln(2)/2; e^r = 1 + r + r^2 p(r) with the
 * polynomial of degree 4 that has the least relative error (3e-9), found by Remez exchange.
 */
static inline ZR_HOST_DEVICE float zr_nn_exp(float x) {
    const float round_to_integer = 12582912.0f; /* 1.5 * 2^23: what is added to it loses its
                                                   fraction; the low bits hold the integer */
    x = x < -87.3f ? -87.3f : x;
    x = x > 88.3f ? 88.3f : x;
    float shifted = x * 1.44269504f + round_to_integer;
    float n = shifted - round_to_integer;
    float r = (x - n * 0.693359375f) - n * -2.12194440e-4f; /* ln 2 in two parts */
    float p = 1.38145402e-3f;
    p = p * r + 8.36874511e-3f;
    p = p * r + 4.16683908e-2f;
    p = p * r + 1.66665204e-1f;
    p = p * r + 4.99999934e-1f;
    p = p * (r * r) + r;
    p = p + 1.0f;
    uint32_t bits;
    memcpy(&bits, &shifted, sizeof(bits));
    bits = (bits << 23) + 0x3f800000u; /* 2^n; the shift drops all but n */
    float power;
    memcpy(&power, &bits, sizeof(power));
    return p * power;
}

/* sqrt(2/pi) and 0.044715 times it, doubled: gelu(x) = x sigmoid(k1 x + k3 x^3), which equals
   the form with tanh and loses nothing to cancellation. */
#define ZR_NN_GELU_K1 1.59576912f
#define ZR_NN_GELU_K3 0.0713548163f

/** u with gelu(x) = x / (1 + e^-u). */
static inline ZR_HOST_DEVICE float zr_nn_gelu_exponent(float x) {
    return x * (ZR_NN_GELU_K1 + ZR_NN_GELU_K3 * (x * x));
}

/** GELU, tanh form. */
static inline ZR_HOST_DEVICE float zr_nn_gelu_element(float x) {
    return x / (1.0f + zr_nn_exp(-zr_nn_gelu_exponent(x)));
}

/** Beyond this the slope is 0 or 1; x^2 stays finite. */
static inline ZR_HOST_DEVICE float zr_nn_gelu_clamp(float x) {
    x = x < -16.0f ? -16.0f : x;
    return x > 16.0f ? 16.0f : x;
}

/** GELU's derivative at a clamped x: s + x s (1 - s) u', with e = e^-u, s = sigmoid(u) and
 *  1 - s = e s. */
static inline ZR_HOST_DEVICE float zr_nn_gelu_slope_from(float x, float e, float s) {
    float slope = ZR_NN_GELU_K1 + 3.0f * ZR_NN_GELU_K3 * (x * x);
    return s + x * ((e * s) * s) * slope;
}

static inline ZR_HOST_DEVICE float zr_nn_gelu_slope(float x) {
    x = zr_nn_gelu_clamp(x);
    float e = zr_nn_exp(-zr_nn_gelu_exponent(x));
    return zr_nn_gelu_slope_from(x, e, 1.0f / (1.0f + e));
}

/* ---- SwiGLU ------------------------------------------------------------------------ */

/** x sigmoid(x). */
static inline ZR_HOST_DEVICE float zr_nn_silu_element(float x) {
    return x / (1.0f + zr_nn_exp(-x));
}

/** Beyond this the slope of silu is 0 or 1; e^-x stays finite. */
static inline ZR_HOST_DEVICE float zr_nn_silu_clamp(float x) {
    x = x < -80.0f ? -80.0f : x;
    return x > 80.0f ? 80.0f : x;
}

/** silu's derivative at a clamped x: s + x s (1 - s), with e = e^-x, s = sigmoid(x), 1 - s = e s.
 */
static inline ZR_HOST_DEVICE float zr_nn_silu_slope_from(float x, float e, float s) {
    return s + x * ((e * s) * s);
}

static inline ZR_HOST_DEVICE float zr_nn_silu_slope(float x) {
    x = zr_nn_silu_clamp(x);
    float e = zr_nn_exp(-x);
    return zr_nn_silu_slope_from(x, e, 1.0f / (1.0f + e));
}

/* ---- rotary embedding -------------------------------------------------------------- */

/**
 * Cosine and sine of an angle in [0, 2^30], to 1.5 units in the last place of 1.
 *
 * The angle less a multiple of pi/2, in double precision because angles are as large as positions;
 * Taylor's series of both, to 1e-9, of what is left: at most pi/4.
 */
static inline ZR_HOST_DEVICE void zr_nn_cosine_and_sine(float angle, float *cosine_p,
                                                        float *sine_p) {
    const double round_to_integer = 6755399441055744.0; /* 1.5 * 2^52, as in zr_nn_exp */
    double shifted = (double)angle * 0.63661977236758134 + round_to_integer;
    double n = shifted - round_to_integer;
    float r = (float)((double)angle - n * 1.5707963267948966);
    float r2 = r * r;
    float sine =
        r + r * r2 * (-1.0f / 6 + r2 * (1.0f / 120 + r2 * (-1.0f / 5040 + r2 * (1.0f / 362880))));
    float cosine =
        1.0f + r2 * (-0.5f + r2 * (1.0f / 24 + r2 * (-1.0f / 720 +
                                                     r2 * (1.0f / 40320 - r2 * (1.0f / 3628800)))));
    uint64_t bits;
    memcpy(&bits, &shifted, sizeof(bits));
    bool is_odd = (bits & 1) != 0, is_upper = (bits & 2) != 0; /* which quarter of the circle */
    float c = is_odd ? -sine : cosine, s = is_odd ? cosine : sine;
    *cosine_p = is_upper ? -c : c;
    *sine_p = is_upper ? -s : s;
}

/** The angle of a pair of channels at a position: one fp32 product, as all implementations of
 *  rotary positions have it, so that far positions are where a model has learnt them. */
static inline ZR_HOST_DEVICE float zr_nn_rotary_angle(int32_t position, float frequency) {
    return (float)position * frequency;
}

/** A pair of channels turned by an angle; by its opposite with -sine. */
static inline ZR_HOST_DEVICE void zr_nn_rotate(float *first, float *second, float cosine,
                                               float sine) {
    float a = *first, b = *second;
    *first = a * cosine - b * sine;
    *second = b * cosine + a * sine;
}

/* ---- layer normalisation ----------------------------------------------------------- */

static inline ZR_HOST_DEVICE float zr_nn_normalised(float x, float mean, float rstd) {
    return (x - mean) * rstd;
}

/** The gradient of x: d = dy weight, and the row's averages of d and of d times the normalised x.
 */
static inline ZR_HOST_DEVICE float zr_nn_normalise_slope(float d, float normalised, float rstd,
                                                         float average, float average_normalised) {
    return rstd * ((d - average) - normalised * average_normalised);
}

