/*
 * The element-by-element loops of the host's transformer kernels.
 *
 * host_nn_loops.c is compiled once per instruction set; each compilation gives one of
 * these tables, and the device's instruction set chooses among them at run time. Sums
 * have 16 lanes on every instruction set, so all tables give the same bits.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/dtype.h"

typedef struct zr_host_nn_loops {
    const char *name; /* of the instruction set, as in zr_device_options_t.isa */

    /* dst = src, widened; dst = src, rounded; dst += src, rounded once. */
    void (*widen)(float *dst, const zr_bf16_t *src, size_t n);
    void (*narrow)(zr_bf16_t *dst, const float *src, size_t n);
    void (*narrow_add)(zr_bf16_t *dst, const float *src, size_t n);

    /* dst += src */
    void (*add)(float *dst, const float *src, size_t n);
    /* dst[c, r] = src[r, c] for r < n_rows, c < n_columns; leading dimensions in elements. */
    void (*transpose)(float *dst, size_t dst_ld, const float *src, size_t src_ld, size_t n_rows,
                      size_t n_columns);

    /* y = gelu(x); dx = dy gelu'(x): in place is fine. */
    void (*gelu)(float *y, const float *x, size_t n);
    void (*gelu_backward)(float *dx, const float *dy, const float *x, size_t n);

    /* y = silu(gate) up; the gradients of both, which may be where they are. */
    void (*swiglu)(float *y, const float *gate, const float *up, size_t n);
    void (*swiglu_backward)(float *dgate, float *dup, const float *dy, const float *gate,
                            const float *up, size_t n);

    /* Of a position, for n pairs of channels. */
    void (*rotary_angles)(float *cosines, float *sines, const float *frequencies, int32_t position,
                          size_t n);
    /* Pair i of a head, x[i] and x[n + i], turned by its angle; by the opposite of it. */
    void (*rotate)(float *x, const float *cosines, const float *sines, bool is_opposite, size_t n);

    /* mean and 1 / sqrt(variance + epsilon) of a row; mean_p NULL: of the root mean square. */
    void (*row_statistics)(const float *x, size_t n, float epsilon, float *mean_p, float *rstd_p);
    /* y = (x - mean) rstd weight + bias; bias may be NULL. */
    void (*normalise)(float *y, const float *x, float mean, float rstd, const float *weight,
                      const float *bias, size_t n);
    /* dx (+)= rstd (dy weight - mean of it - xhat mean of (it xhat)); is_rms: its mean is not taken
       off. */
    void (*normalise_backward)(float *dx, bool accumulate, const float *dy, const float *x,
                               float mean, float rstd, bool is_rms, const float *weight, size_t n);
    /* dweight += dy (x - mean) rstd; dbias += dy */
    void (*normalise_weights_backward)(float *dweight, float *dbias, const float *dy,
                                       const float *x, float mean, float rstd, size_t n);

    float (*dot)(const float *x, const float *y, size_t n);
    /* Scores of a row become probabilities over the first n_valid, 0 up to n; gives the log of the
       sum of exp. n_valid >= 1. */
    float (*softmax_row)(float *scores, size_t n_valid, size_t n);
    /* Scores become probabilities e^(score - log_sum), dprobabilities become
       scale p (dp - delta); both 0 from n_valid up to n. */
    void (*softmax_row_backward)(float *scores, float *dprobabilities, float log_sum, float delta,
                                 float scale, size_t n_valid, size_t n);

    /* Logits [n_vocab, n] with leading dimension ld: each column is a token. Takes them into its
       running maximum and the sum of exp(logit - maximum). */
    void (*column_statistics)(float *maximum, float *sum, const float *logits, size_t ld,
                              size_t n_vocab, size_t n);
    /* logits = scale exp(logits - log_sum); log_sum and scale are the columns'. */
    void (*column_softmax)(float *logits, size_t ld, const float *log_sum, const float *scale,
                           size_t n_vocab, size_t n);
} zr_host_nn_loops_t;

/* Those exist whose counterparts in kernels/host/host_isa.h do. */
extern const zr_host_nn_loops_t zr_host_nn_loops_baseline;
extern const zr_host_nn_loops_t zr_host_nn_loops_avx2;
extern const zr_host_nn_loops_t zr_host_nn_loops_avx512;

