/*
 * How far a kernel of attention that rounds as it says may be from the double precision oracle,
 * element by element: the sum of what each rounding can do.
 */
#pragma once

#include <stddef.h>

#include "tests/ref/ref_nn.h"

typedef struct attention_case {
    ref_attention_t ref;
    double rounding; /* at most this part of a stored value: 2^-8 for bf16, 2^-24 for fp32 */
} attention_case_t;

/** Bounds of `out` and log_sum. Everything has the shapes of kernels/nn/nn.h. */
void attention_bounds(double *out_bound, double *log_sum_bound, const double *qkv,
                      const double *out, const attention_case_t *c);

/** Bounds of dqkv, where the kernel is given the oracle's out, rounded, and its log_sum. */
void attention_backward_bounds(double *dqkv_bound, const double *qkv, const double *dqkv,
                               const double *out, const double *dout, const double *log_sum,
                               const attention_case_t *c);
