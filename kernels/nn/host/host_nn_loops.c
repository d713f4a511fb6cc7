/*
 * Loops that the compiler vectorises; compiled once per instruction set, with
 * ZR_HOST_ISA its name (kernels/nn/CMakeLists.txt).
 */
#include "kernels/nn/host/host_nn_loops.h"

#include <float.h>
#include <math.h>

#include "kernels/nn/nn_math.h"

#define ZR_CONCAT_(a, b) a##b
#define ZR_CONCAT(a, b) ZR_CONCAT_(a, b)
#define ZR_STRING_(a) #a
#define ZR_STRING(a) ZR_STRING_(a)

#define ZR_LANES 16

/* Sum of the lanes, in a fixed tree. */
static inline float fold(float *lanes) {
    for (size_t half = ZR_LANES / 2; half > 0; half /= 2) {
        for (size_t i = 0; i < half; i++)
            lanes[i] += lanes[i + half];
    }
    return lanes[0];
}

/* ---- casts and sums --------------------------------------------------------------- */

static void widen(float *restrict dst, const zr_bf16_t *restrict src, size_t n) {
    for (size_t i = 0; i < n; i++)
        dst[i] = zr_bf16_to_f32(src[i]);
}

static void narrow(zr_bf16_t *restrict dst, const float *restrict src, size_t n) {
    for (size_t i = 0; i < n; i++)
        dst[i] = zr_bf16_from_f32(src[i]);
}

static void narrow_add(zr_bf16_t *restrict dst, const float *restrict src, size_t n) {
    for (size_t i = 0; i < n; i++)
        dst[i] = zr_bf16_from_f32(zr_bf16_to_f32(dst[i]) + src[i]);
}

static void add(float *restrict dst, const float *restrict src, size_t n) {
    for (size_t i = 0; i < n; i++)
        dst[i] += src[i];
}

#define ZR_SIDE 16

/* By way of a square that has every line of the source read at once: rows of a matrix often lie
   a multiple of 4 KiB apart, and going down a column of such would keep nothing in the cache. */
static void transpose_square(float *restrict dst, size_t dst_ld, const float *restrict src,
                             size_t src_ld) {
    float square[ZR_SIDE][ZR_SIDE + 1];
    for (size_t r = 0; r < ZR_SIDE; r++) {
        for (size_t c = 0; c < ZR_SIDE; c++)
            square[r][c] = src[r * src_ld + c];
    }
    for (size_t c = 0; c < ZR_SIDE; c++) {
        for (size_t r = 0; r < ZR_SIDE; r++)
            dst[c * dst_ld + r] = square[r][c];
    }
}

static void transpose(float *restrict dst, size_t dst_ld, const float *restrict src, size_t src_ld,
                      size_t n_rows, size_t n_columns) {
    size_t whole_rows = n_rows / ZR_SIDE * ZR_SIDE, whole_columns = n_columns / ZR_SIDE * ZR_SIDE;
    for (size_t r = 0; r < whole_rows; r += ZR_SIDE) {
        for (size_t c = 0; c < whole_columns; c += ZR_SIDE)
            transpose_square(dst + c * dst_ld + r, dst_ld, src + r * src_ld + c, src_ld);
    }
    for (size_t r = 0; r < n_rows; r++) {
        for (size_t c = r < whole_rows ? whole_columns : 0; c < n_columns; c++)
            dst[c * dst_ld + r] = src[r * src_ld + c];
    }
}

/* ---- GELU --------------------------------------------------------------------------- */

static void gelu(float *y, const float *x, size_t n) {
    for (size_t i = 0; i < n; i++)
        y[i] = zr_nn_gelu_element(x[i]);
}

static void gelu_backward(float *dx, const float *dy, const float *x, size_t n) {
    for (size_t i = 0; i < n; i++)
        dx[i] = dy[i] * zr_nn_gelu_slope(x[i]);
}

/* ---- SwiGLU, rotary positions ---------------------------------------------------------- */

static void swiglu(float *restrict y, const float *restrict gate, const float *restrict up,
                   size_t n) {
    for (size_t i = 0; i < n; i++)
        y[i] = zr_nn_silu_element(gate[i]) * up[i];
}

static void swiglu_backward(float *dgate, float *dup, const float *dy, const float *gate,
                            const float *up, size_t n) {
#pragma GCC ivdep /* an element's gradients may lie where it does */
    for (size_t i = 0; i < n; i++) {
        float d = dy[i], g = gate[i], u = up[i];
        dgate[i] = d * u * zr_nn_silu_slope(g);
        dup[i] = d * zr_nn_silu_element(g);
    }
}

static void rotary_angles(float *restrict cosines, float *restrict sines,
                          const float *restrict frequencies, int32_t position, size_t n) {
    for (size_t i = 0; i < n; i++)
        zr_nn_cosine_and_sine(zr_nn_rotary_angle(position, frequencies[i]), &cosines[i], &sines[i]);
}

static void rotate(float *restrict x, const float *restrict cosines, const float *restrict sines,
                   bool is_opposite, size_t n) {
    for (size_t i = 0; i < n; i++)
        zr_nn_rotate(&x[i], &x[n + i], cosines[i], is_opposite ? -sines[i] : sines[i]);
}

/* ---- layer normalisation --------------------------------------------------------------- */

static float row_sum(const float *x, size_t n) {
    float lanes[ZR_LANES] = {0};
    size_t i = 0;
    for (; i + ZR_LANES <= n; i += ZR_LANES) {
        for (size_t j = 0; j < ZR_LANES; j++)
            lanes[j] += x[i + j];
    }
    for (size_t j = 0; i + j < n; j++)
        lanes[j] += x[i + j];
    return fold(lanes);
}

static float row_sum_of_squares(const float *x, float mean, size_t n) {
    float lanes[ZR_LANES] = {0};
    size_t i = 0;
    for (; i + ZR_LANES <= n; i += ZR_LANES) {
        for (size_t j = 0; j < ZR_LANES; j++)
            lanes[j] += (x[i + j] - mean) * (x[i + j] - mean);
    }
    for (size_t j = 0; i + j < n; j++)
        lanes[j] += (x[i + j] - mean) * (x[i + j] - mean);
    return fold(lanes);
}

static void row_statistics(const float *x, size_t n, float epsilon, float *mean_p, float *rstd_p) {
    float mean = mean_p == NULL ? 0.0f : row_sum(x, n) / (float)n;
    float variance = row_sum_of_squares(x, mean, n) / (float)n;
    if (mean_p != NULL)
        *mean_p = mean;
    *rstd_p = 1.0f / sqrtf(variance + epsilon);
}

static void normalise(float *y, const float *x, float mean, float rstd, const float *weight,
                      const float *bias, size_t n) {
    if (bias == NULL) {
        for (size_t i = 0; i < n; i++)
            y[i] = zr_nn_normalised(x[i], mean, rstd) * weight[i];
        return;
    }
    for (size_t i = 0; i < n; i++)
        y[i] = zr_nn_normalised(x[i], mean, rstd) * weight[i] + bias[i];
}

static void normalise_backward(float *restrict dx, bool accumulate, const float *restrict dy,
                               const float *restrict x, float mean, float rstd, bool is_rms,
                               const float *restrict weight, size_t n) {
    float sum[ZR_LANES] = {0}, sum_xhat[ZR_LANES] = {0};
    size_t i = 0;
    for (; i + ZR_LANES <= n; i += ZR_LANES) {
        for (size_t j = 0; j < ZR_LANES; j++) {
            float d = dy[i + j] * weight[i + j];
            sum[j] += d;
            sum_xhat[j] += d * zr_nn_normalised(x[i + j], mean, rstd);
        }
    }
    for (size_t j = 0; i + j < n; j++) {
        float d = dy[i + j] * weight[i + j];
        sum[j] += d;
        sum_xhat[j] += d * zr_nn_normalised(x[i + j], mean, rstd);
    }
    float average = is_rms ? 0.0f : fold(sum) / (float)n, average_xhat = fold(sum_xhat) / (float)n;
    if (accumulate) {
        for (i = 0; i < n; i++)
            dx[i] += zr_nn_normalise_slope(dy[i] * weight[i], zr_nn_normalised(x[i], mean, rstd),
                                           rstd, average, average_xhat);
    } else {
        for (i = 0; i < n; i++)
            dx[i] = zr_nn_normalise_slope(dy[i] * weight[i], zr_nn_normalised(x[i], mean, rstd),
                                          rstd, average, average_xhat);
    }
}

static void normalise_weights_backward(float *restrict dweight, float *restrict dbias,
                                       const float *restrict dy, const float *restrict x,
                                       float mean, float rstd, size_t n) {
    for (size_t i = 0; i < n; i++) {
        dweight[i] += dy[i] * zr_nn_normalised(x[i], mean, rstd);
        dbias[i] += dy[i];
    }
}

/* ---- attention ----------------------------------------------------------------------------- */

static float dot(const float *restrict x, const float *restrict y, size_t n) {
    float lanes[ZR_LANES] = {0};
    size_t i = 0;
    for (; i + ZR_LANES <= n; i += ZR_LANES) {
        for (size_t j = 0; j < ZR_LANES; j++)
            lanes[j] += x[i + j] * y[i + j];
    }
    for (size_t j = 0; i + j < n; j++)
        lanes[j] += x[i + j] * y[i + j];
    return fold(lanes);
}

static float row_maximum(const float *x, size_t n) {
    float lanes[ZR_LANES];
    for (size_t j = 0; j < ZR_LANES; j++)
        lanes[j] = -FLT_MAX;
    size_t i = 0;
    for (; i + ZR_LANES <= n; i += ZR_LANES) {
        for (size_t j = 0; j < ZR_LANES; j++)
            lanes[j] = x[i + j] > lanes[j] ? x[i + j] : lanes[j];
    }
    for (size_t j = 0; i + j < n; j++)
        lanes[j] = x[i + j] > lanes[j] ? x[i + j] : lanes[j];
    for (size_t j = 1; j < ZR_LANES; j++)
        lanes[0] = lanes[j] > lanes[0] ? lanes[j] : lanes[0];
    return lanes[0];
}

static float softmax_row(float *scores, size_t n_valid, size_t n) {
    float maximum = row_maximum(scores, n_valid);
    for (size_t i = 0; i < n_valid; i++)
        scores[i] = zr_nn_exp(scores[i] - maximum);
    float sum = row_sum(scores, n_valid);
    float factor = 1.0f / sum;
    for (size_t i = 0; i < n_valid; i++)
        scores[i] *= factor;
    for (size_t i = n_valid; i < n; i++)
        scores[i] = 0.0f;
    return maximum + logf(sum);
}

static void softmax_row_backward(float *restrict scores, float *restrict dprobabilities,
                                 float log_sum, float delta, float scale, size_t n_valid,
                                 size_t n) {
    for (size_t i = 0; i < n_valid; i++) {
        float p = zr_nn_exp(scores[i] - log_sum);
        scores[i] = p;
        dprobabilities[i] = scale * (p * (dprobabilities[i] - delta));
    }
    for (size_t i = n_valid; i < n; i++) {
        scores[i] = 0.0f;
        dprobabilities[i] = 0.0f;
    }
}

/* ---- cross-entropy, tokens side by side ------------------------------------------------------ */

/* Rows that are summed before the sum is added to that of others: of a vocabulary of 50000 words
   added one by one the last would be lost in the roundings, always to the same side. */
#define ZR_SUMMED_ROWS ((size_t)64)

/* One strip of columns: maximum of a block of rows, old sum brought to it, then the exps. */
static void strip_statistics(float *maximum, float *sum, const float *logits, size_t ld,
                             size_t n_vocab, size_t n) {
    float top[ZR_LANES], total[ZR_LANES] = {0};
    for (size_t j = 0; j < n; j++)
        top[j] = maximum[j];
    for (size_t v = 0; v < n_vocab; v++) {
        for (size_t j = 0; j < n; j++)
            top[j] = logits[v * ld + j] > top[j] ? logits[v * ld + j] : top[j];
    }
    for (size_t first = 0; first < n_vocab; first += ZR_SUMMED_ROWS) {
        size_t end = n_vocab - first < ZR_SUMMED_ROWS ? n_vocab : first + ZR_SUMMED_ROWS;
        float part[ZR_LANES] = {0};
        for (size_t v = first; v < end; v++)
            for (size_t j = 0; j < n; j++)
                part[j] += zr_nn_exp(logits[v * ld + j] - top[j]);
        for (size_t j = 0; j < n; j++)
            total[j] += part[j];
    }
    for (size_t j = 0; j < n; j++) {
        sum[j] = sum[j] * zr_nn_exp(maximum[j] - top[j]) + total[j];
        maximum[j] = top[j];
    }
}

static void column_statistics(float *maximum, float *sum, const float *logits, size_t ld,
                              size_t n_vocab, size_t n) {
    size_t i = 0;
    for (; i + ZR_LANES <= n; i += ZR_LANES)
        strip_statistics(maximum + i, sum + i, logits + i, ld, n_vocab, ZR_LANES);
    if (i < n)
        strip_statistics(maximum + i, sum + i, logits + i, ld, n_vocab, n - i);
}

static void column_softmax(float *logits, size_t ld, const float *restrict log_sum,
                           const float *restrict scale,
                           size_t n_vocab, size_t n) {
    for (size_t v = 0; v < n_vocab; v++) {
        for (size_t i = 0; i < n; i++)
            logits[v * ld + i] = scale[i] * zr_nn_exp(logits[v * ld + i] - log_sum[i]);
    }
}

const zr_host_nn_loops_t ZR_CONCAT(zr_host_nn_loops_, ZR_HOST_ISA) = {
    .name = ZR_STRING(ZR_HOST_ISA),
    .widen = widen,
    .narrow = narrow,
    .narrow_add = narrow_add,
    .add = add,
    .transpose = transpose,
    .gelu = gelu,
    .gelu_backward = gelu_backward,
    .swiglu = swiglu,
    .swiglu_backward = swiglu_backward,
    .rotary_angles = rotary_angles,
    .rotate = rotate,
    .row_statistics = row_statistics,
    .normalise = normalise,
    .normalise_backward = normalise_backward,
    .normalise_weights_backward = normalise_weights_backward,
    .dot = dot,
    .softmax_row = softmax_row,
    .softmax_row_backward = softmax_row_backward,
    .column_statistics = column_statistics,
    .column_softmax = column_softmax,
};
