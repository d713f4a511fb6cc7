/*
 * A model as a user of the library writes one: three kinds of blocks, whose kernels are their own.
 *
 *   in    y = input w + b
 *   mid   h = x w, y = x + h h; keeps h, or is computed again
 *   loss  the mean over rows of half the squared distance to the target
 */
#pragma once

#include "zero/zero.h"

#define OWN_WIDTH 5 /* of x and y: [rows, OWN_WIDTH] */

typedef struct own_options {
    size_t n_mids;
    bool recompute;
    zr_offload_device_t activations;
    size_t most_rows;
    const char *freeze;
    size_t spare_elems; /* of a parameter more in each mid, that nobody uses */
} own_options_t;

/** Parameters are "in.w", "in.b", "mid.0.w", ... of [OWN_WIDTH], normal with deviation 0.5. */
ZR_NODISCARD zr_status_t own_model_create(zr_runtime_t *runtime, const own_options_t *options,
                                          zr_model_t **model_p);

/** A parameter: 0 in.w, 1 in.b, 2 + i mid.i.w. */
zr_param_t *own_model_param(zr_model_t *model, size_t index);

/** Loss and gradients of one micro-batch, in double, by another way: `gradients` [2 +
 * n_mids][WIDTH] is added to. */
double own_model_oracle(size_t n_mids, const double *params, const float *inputs,
                        const float *targets, size_t rows, double *gradients);
