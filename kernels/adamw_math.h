/*
 * The element formula of AdamW, once for host and device.
 *
 * Every operation is correctly rounded (multiply, fused multiply-add, divide, square
 * root) and none may be contracted or reordered, so that all backends give the same
 * bits. What is the same for all elements is computed once per call, in double.
 */
#ifndef ZR_KERNELS_ADAMW_MATH_H
#define ZR_KERNELS_ADAMW_MATH_H

#include <math.h>

#include "kernels/kernels.h"

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
static inline zr_adamw_factors_t zr_adamw_factors(const zr_adamw_t *args) {
    double bias1 = 1.0 - pow((double)args->beta1, (double)args->step);
    double bias2 = 1.0 - pow((double)args->beta2, (double)args->step);
    zr_adamw_factors_t factors;
    factors.grad_scale = args->grad_scale;
    factors.beta1 = args->beta1;
    factors.one_minus_beta1 = (float)(1.0 - (double)args->beta1);
    factors.beta2 = args->beta2;
    factors.one_minus_beta2 = (float)(1.0 - (double)args->beta2);
    factors.keep = (float)(1.0 - (double)args->lr * (double)args->weight_decay);
    factors.minus_step_size = (float)(-(double)args->lr / bias1);
    factors.inv_sqrt_bias2 = (float)(1.0 / sqrt(bias2));
    factors.epsilon = args->epsilon;
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

#endif
