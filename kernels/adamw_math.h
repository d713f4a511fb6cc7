/*
 * The element formula of AdamW, once for host and device.
 *
 *   g = grad * grad_scale;  m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2;
 *   master -= lr (weight_decay master + (m / bias1) / (sqrt(v / bias2) + epsilon));
 *   param = master in the parameters' dtype;  biasN = 1 - betaN^step, computed in double
 *
 * Source: Loshchilov and Hutter 2019, algorithm 2.
 *
 * Every operation is correctly rounded (multiply, fused multiply-add, divide, square
 * root) and none may be contracted or reordered, so that all backends give the same
 * bits. What is the same for all elements is computed once per call, in double.
 */
#pragma once

#include <math.h>

#include "kernels/update.h"

/** Of zr_update_t: which array and which number is which. */
enum { ZR_ADAMW_MASTER, ZR_ADAMW_M, ZR_ADAMW_V, ZR_ADAMW_N_ARRAYS };
enum { ZR_ADAMW_BETA1, ZR_ADAMW_BETA2, ZR_ADAMW_EPSILON, ZR_ADAMW_N_HYPERS };

/** What is the same for all elements of a call, each rounded once from double. */
typedef struct zr_adamw_factors {
    float grad_scale;
    float beta1, one_minus_beta1;
    float beta2, one_minus_beta2;
    float keep;            /* 1 - lr * weight_decay */
    float minus_step_size; /* -lr / (1 - beta1^step) */
    float inv_sqrt_bias2;  /* 1 / sqrt(1 - beta2^step) */
    float epsilon;
} zr_adamw_factors_t;

/** Host only: pow is not correctly rounded, so its result is handed to the device. */
static inline zr_adamw_factors_t zr_adamw_factors(const zr_update_t *update) {
    double beta1 = (double)update->hyper[ZR_ADAMW_BETA1];
    double beta2 = (double)update->hyper[ZR_ADAMW_BETA2];
    double lr = (double)update->lr;
    double bias1 = 1.0 - pow(beta1, (double)update->step);
    double bias2 = 1.0 - pow(beta2, (double)update->step);
    zr_adamw_factors_t factors;
    factors.grad_scale = update->grad_scale;
    factors.beta1 = update->hyper[ZR_ADAMW_BETA1];
    factors.one_minus_beta1 = (float)(1.0 - beta1);
    factors.beta2 = update->hyper[ZR_ADAMW_BETA2];
    factors.one_minus_beta2 = (float)(1.0 - beta2);
    factors.keep = (float)(1.0 - lr * (double)update->weight_decay);
    factors.minus_step_size = (float)(-lr / bias1);
    factors.inv_sqrt_bias2 = (float)(1.0 / sqrt(bias2));
    factors.epsilon = update->hyper[ZR_ADAMW_EPSILON];
    if (update->is_left_out)
        return (zr_adamw_factors_t){
            .beta1 = 1, .beta2 = 1, .keep = 1, .inv_sqrt_bias2 = 1, .epsilon = 1};
    return factors;
}

/**
 * Update one element.
 *
 * @param master, m, v  in and out
 * @param grad          as it was reduced, before unscaling and clipping
 */
static inline ZR_HOST_DEVICE void zr_adamw_element(const zr_adamw_factors_t *factors, float *master,
                                                   float *m, float *v, float grad) {
    float g = grad * factors->grad_scale;
    float new_m = fmaf(factors->beta1, *m, factors->one_minus_beta1 * g);
    float new_v = fmaf(factors->beta2, *v, (factors->one_minus_beta2 * g) * g);
    float denominator = fmaf(sqrtf(new_v), factors->inv_sqrt_bias2, factors->epsilon);
    float kept = *master * factors->keep;
    *m = new_m;
    *v = new_v;
    *master = fmaf(factors->minus_step_size, new_m / denominator, kept);
}
