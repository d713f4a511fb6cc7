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

/** y = rmsnorm(x) of each of n_rows rows; backward, dweight is added to. */
void ref_rmsnorm(double *y, const double *x, const double *weight, double epsilon, size_t n_rows,
                 size_t channels);
void ref_rmsnorm_backward(double *dx, double *dweight, const double *dy, const double *x,
                          const double *weight, double epsilon, size_t n_rows, size_t channels);

double ref_silu(double x);
double ref_silu_slope(double x);

/** Turn pairs (i, i + head_size / 2) of a head by position * frequencies[i], in place. */
void ref_rotate(double *x, const double *frequencies, double position, size_t head_size);

typedef struct ref_attention {
    size_t batch, seq, heads, kv_heads, head_size;
    size_t window;                  /* 0: none */
    const int32_t *document_starts; /* [batch, seq], or NULL */
} ref_attention_t;

/** qkv [batch, seq, heads + 2 kv_heads, head_size]; out [batch, seq, heads, head_size];
 *  log_sum [batch, heads, seq] or NULL. */
void ref_attention(double *out, double *log_sum, const double *qkv, const ref_attention_t *c);
void ref_attention_backward(double *dqkv, const double *dout, const double *qkv,
                            const ref_attention_t *c);

/** Sum over rows of -log softmax(logits)[target]; dlogits (or NULL) = its gradient. Rows whose
 * target is -100 are left out. */
double ref_cross_entropy(double *dlogits, const double *logits, const int32_t *targets,
                         size_t n_rows, size_t vocab);
