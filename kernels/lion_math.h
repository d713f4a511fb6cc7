/*
 * The element formula of Lion, once for host and device.
 *
 *   g = grad * grad_scale;  c = beta1 m + (1 - beta1) g;  m = beta2 m + (1 - beta2) g;
 *   master -= lr (sign(c) + weight_decay master);  param = master in the parameters' dtype
 *
 * The sign of 0 is 0, and of a NaN a NaN. As of AdamW, every operation is correctly rounded, and
 * what is the same for all elements is computed once per call, in double.
 *
 * Source: Chen et al. 2023, Symbolic Discovery of Optimization Algorithms, algorithm 2.
 */
#pragma once

#include <math.h>

#include "kernels/update.h"

/** Of zr_update_t: which array and which number is which. */
enum { ZR_LION_MASTER, ZR_LION_M, ZR_LION_N_ARRAYS };
enum { ZR_LION_BETA1, ZR_LION_BETA2, ZR_LION_N_HYPERS };

/** What is the same for all elements of a call, each rounded once from double. */
typedef struct zr_lion_factors {
    float grad_scale;
    float beta1, one_minus_beta1;
    float beta2, one_minus_beta2;
    float keep; /* 1 - lr * weight_decay */
    float minus_lr;
} zr_lion_factors_t;

static inline zr_lion_factors_t zr_lion_factors(const zr_update_t *update) {
    zr_lion_factors_t factors;
    factors.grad_scale = update->grad_scale;
    factors.beta1 = update->hyper[ZR_LION_BETA1];
    factors.one_minus_beta1 = (float)(1.0 - (double)factors.beta1);
    factors.beta2 = update->hyper[ZR_LION_BETA2];
    factors.one_minus_beta2 = (float)(1.0 - (double)factors.beta2);
    factors.keep = (float)(1.0 - (double)update->lr * (double)update->weight_decay);
    factors.minus_lr = -update->lr;
    if (update->is_left_out)
        return (zr_lion_factors_t){.beta1 = 1, .beta2 = 1, .keep = 1};
    return factors;
}

/** -1, 0 or 1; a NaN stays one. By integers, which all vector units compare. */
static inline ZR_HOST_DEVICE float zr_lion_sign(float value) {
    uint32_t bits, result;
    memcpy(&bits, &value, sizeof(bits));
    int32_t magnitude = (int32_t)(bits & 0x7fffffffu);
    result = (bits & 0x80000000u) | 0x3f800000u;
    result = magnitude > 0x7f800000 ? bits : result;
    result = magnitude == 0 ? 0 : result;
    memcpy(&value, &result, sizeof(value));
    return value;
}

/**
 * Update one element.
 *
 * @param master, m  in and out
 * @param grad       as it was reduced, before unscaling and clipping
 */
static inline ZR_HOST_DEVICE void zr_lion_element(const zr_lion_factors_t *factors, float *master,
                                                  float *m, float grad) {
    float g = grad * factors->grad_scale;
    float c = fmaf(factors->beta1, *m, factors->one_minus_beta1 * g);
    float kept = *master * factors->keep;
    *m = fmaf(factors->beta2, *m, factors->one_minus_beta2 * g);
    *master = fmaf(factors->minus_lr, zr_lion_sign(c), kept);
}
