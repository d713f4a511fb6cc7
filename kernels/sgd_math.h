/*
 * The element formula of SGD with momentum, once for host and device; torch.optim.SGD's, with
 * dampening 0. Weight decay is coupled: it is part of the gradient, and of the momentum.
 *
 *   g = grad * grad_scale + weight_decay master;  b = momentum b + g;
 *   master -= lr b, or with Nesterov's momentum lr (g + momentum b);
 *   param = master in the parameters' dtype
 *
 * As of AdamW, every operation is correctly rounded.
 *
 * Source: Sutskever et al. 2013, in PyTorch's form.
 */
#pragma once

#include <math.h>

#include "kernels/update.h"

/** Of zr_update_t: which array and which number is which. */
enum { ZR_SGD_MASTER, ZR_SGD_MOMENTUM_BUFFER, ZR_SGD_N_ARRAYS };
enum { ZR_SGD_MOMENTUM, ZR_SGD_NESTEROV, ZR_SGD_N_HYPERS };

typedef struct zr_sgd_factors {
    float grad_scale;
    float weight_decay;
    float momentum;
    float minus_lr;
    bool nesterov;
} zr_sgd_factors_t;

static inline zr_sgd_factors_t zr_sgd_factors(const zr_update_t *update) {
    zr_sgd_factors_t factors;
    factors.grad_scale = update->grad_scale;
    factors.weight_decay = update->weight_decay;
    factors.momentum = update->hyper[ZR_SGD_MOMENTUM];
    factors.minus_lr = -update->lr;
    factors.nesterov = update->hyper[ZR_SGD_NESTEROV] != 0.0f;
    if (update->is_left_out)
        return (zr_sgd_factors_t){.momentum = 1};
    return factors;
}

/**
 * Update one element.
 *
 * @param master, buffer  in and out
 * @param grad            as it was reduced, before unscaling and clipping
 */
static inline ZR_HOST_DEVICE void zr_sgd_element(const zr_sgd_factors_t *factors, float *master,
                                                 float *buffer, float grad) {
    float g = fmaf(factors->weight_decay, *master, grad * factors->grad_scale);
    float b = fmaf(factors->momentum, *buffer, g);
    float step = factors->nesterov ? fmaf(factors->momentum, b, g) : b;
    *buffer = b;
    *master = fmaf(factors->minus_lr, step, *master);
}
