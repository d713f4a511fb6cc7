/*
 * Oracles of the transformer's kernels: double precision, naive loops, written from the
 * formulas alone. Slow on purpose: nothing here is shared with what it checks.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** y[m, n] = op(a) op(b); a is [m, k] or [k, m], b is [k, n] or [n, k]. */
void ref_matmul(double *y, const double *a, bool transpose_a, const double *b, bool transpose_b,
                size_t m, size_t n, size_t k);

double ref_gelu(double x);
double ref_gelu_slope(double x);

/** y = layernorm(x) of each of n_rows rows. */
void ref_layernorm(double *y, const double *x, const double *weight, const double *bias,
                   double epsilon, size_t n_rows, size_t channels);
/** dx, dweight and dbias are overwritten. */
void ref_layernorm_backward(double *dx, double *dweight, double *dbias, const double *dy,
                            const double *x, const double *weight, double epsilon, size_t n_rows,
                            size_t channels);

/** qkv [batch, seq, 3, heads, head_size]; out [batch, seq, heads, head_size];
 *  log_sum [batch, heads, seq] or NULL. */
void ref_attention(double *out, double *log_sum, const double *qkv, size_t batch, size_t seq,
                   size_t heads, size_t head_size);
void ref_attention_backward(double *dqkv, const double *dout, const double *qkv, size_t batch,
                            size_t seq, size_t heads, size_t head_size);

/** Sum over rows of -log softmax(logits)[target]; dlogits (or NULL) = its gradient. */
double ref_cross_entropy(double *dlogits, const double *logits, const int32_t *targets,
                         size_t n_rows, size_t vocab);
