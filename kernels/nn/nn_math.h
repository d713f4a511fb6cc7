/*
 * The element formulas of a transformer's kernels, once for host and device: plain arithmetic, so
 * that compilers vectorise loops over them on every instruction set and all of them give the same
 * bits.
 */
#ifndef ZR_KERNELS_NN_NN_MATH_H
#define ZR_KERNELS_NN_NN_MATH_H

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

#endif
