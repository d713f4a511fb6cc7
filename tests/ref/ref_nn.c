/*
 * See ref_nn.h.
 */
#include "tests/ref/ref_nn.h"

#include <math.h>
#include <stdlib.h>

void ref_matmul(double *y, const double *a, bool transpose_a, const double *b, bool transpose_b,
                size_t m, size_t n, size_t k) {
    for (size_t i = 0; i < m; i++) {
        for (size_t j = 0; j < n; j++) {
            double sum = 0.0;
            for (size_t l = 0; l < k; l++)
                sum += (transpose_a ? a[l * m + i] : a[i * k + l]) *
                       (transpose_b ? b[j * k + l] : b[l * n + j]);
            y[i * n + j] = sum;
        }
    }
}

double ref_gelu(double x) {
    double u = sqrt(2.0 / 3.14159265358979323846) * (x + 0.044715 * x * x * x);
    return 0.5 * x * (1.0 + tanh(u));
}

double ref_gelu_slope(double x) {
    double c = sqrt(2.0 / 3.14159265358979323846);
    double t = tanh(c * (x + 0.044715 * x * x * x));
    return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * c * (1.0 + 3.0 * 0.044715 * x * x);
}

static void moments(const double *x, size_t n, double epsilon, double *mean_p, double *rstd_p) {
    double mean = 0.0, variance = 0.0;
    for (size_t i = 0; i < n; i++)
        mean += x[i] / (double)n;
    for (size_t i = 0; i < n; i++)
        variance += (x[i] - mean) * (x[i] - mean) / (double)n;
    *mean_p = mean;
    *rstd_p = 1.0 / sqrt(variance + epsilon);
}

void ref_layernorm(double *y, const double *x, const double *weight, const double *bias,
                   double epsilon, size_t n_rows, size_t channels) {
    for (size_t row = 0; row < n_rows; row++) {
        double mean, rstd;
        moments(x + row * channels, channels, epsilon, &mean, &rstd);
        for (size_t c = 0; c < channels; c++)
            y[row * channels + c] = (x[row * channels + c] - mean) * rstd * weight[c] + bias[c];
    }
}

void ref_layernorm_backward(double *dx, double *dweight, double *dbias, const double *dy,
                            const double *x, const double *weight, double epsilon, size_t n_rows,
                            size_t channels) {
    for (size_t c = 0; c < channels; c++)
        dweight[c] = dbias[c] = 0.0;
    for (size_t row = 0; row < n_rows; row++) {
        const double *x_row = x + row * channels, *dy_row = dy + row * channels;
        double mean, rstd, average = 0.0, average_xhat = 0.0;
        moments(x_row, channels, epsilon, &mean, &rstd);
        for (size_t c = 0; c < channels; c++) {
            double xhat = (x_row[c] - mean) * rstd;
            dweight[c] += dy_row[c] * xhat;
            dbias[c] += dy_row[c];
            average += dy_row[c] * weight[c] / (double)channels;
            average_xhat += dy_row[c] * weight[c] * xhat / (double)channels;
        }
        for (size_t c = 0; c < channels; c++)
            dx[row * channels + c] =
                rstd * (dy_row[c] * weight[c] - average - (x_row[c] - mean) * rstd * average_xhat);
    }
}

/* Element of q (part 0), k (1) or v (2). */
static size_t qkv_index(size_t b, size_t t, size_t part, size_t h, size_t i, size_t seq,
                        size_t heads, size_t head_size) {
    return (((b * seq + t) * 3 + part) * heads + h) * head_size + i;
}

/* Probabilities of query t over keys 0..t; gives the log of the sum of exp. */
static double probabilities(double *p, const double *qkv, size_t b, size_t t, size_t h, size_t seq,
                            size_t heads, size_t head_size) {
    double top = -INFINITY, sum = 0.0;
    for (size_t s = 0; s <= t; s++) {
        p[s] = 0.0;
        for (size_t i = 0; i < head_size; i++)
            p[s] += qkv[qkv_index(b, t, 0, h, i, seq, heads, head_size)] *
                    qkv[qkv_index(b, s, 1, h, i, seq, heads, head_size)];
        p[s] /= sqrt((double)head_size);
        top = p[s] > top ? p[s] : top;
    }
    for (size_t s = 0; s <= t; s++)
        sum += exp(p[s] - top);
    for (size_t s = 0; s <= t; s++)
        p[s] = exp(p[s] - top) / sum;
    return top + log(sum);
}

void ref_attention(double *out, double *log_sum, const double *qkv, size_t batch, size_t seq,
                   size_t heads, size_t head_size) {
    double *p = malloc((seq + 1) * sizeof(double));
    for (size_t row = 0; row < batch * heads * seq; row++) {
        size_t b = row / (heads * seq), h = row / seq % heads, t = row % seq;
        double sum = probabilities(p, qkv, b, t, h, seq, heads, head_size);
        if (log_sum != NULL)
            log_sum[row] = sum;
        for (size_t i = 0; i < head_size; i++) {
            double value = 0.0;
            for (size_t s = 0; s <= t; s++)
                value += p[s] * qkv[qkv_index(b, s, 2, h, i, seq, heads, head_size)];
            out[((b * seq + t) * heads + h) * head_size + i] = value;
        }
    }
    free(p);
}

void ref_attention_backward(double *dqkv, const double *dout, const double *qkv, size_t batch,
                            size_t seq, size_t heads, size_t head_size) {
    double *p = malloc((seq + 1) * sizeof(double)), *dp = malloc((seq + 1) * sizeof(double));
    for (size_t i = 0; i < batch * seq * 3 * heads * head_size; i++)
        dqkv[i] = 0.0;
    for (size_t row = 0; row < batch * heads * seq; row++) {
        size_t b = row / (heads * seq), h = row / seq % heads, t = row % seq;
        probabilities(p, qkv, b, t, h, seq, heads, head_size);
        double weighted = 0.0;
        for (size_t s = 0; s <= t; s++) {
            dp[s] = 0.0;
            for (size_t i = 0; i < head_size; i++) {
                double d = dout[((b * seq + t) * heads + h) * head_size + i];
                dp[s] += d * qkv[qkv_index(b, s, 2, h, i, seq, heads, head_size)];
                dqkv[qkv_index(b, s, 2, h, i, seq, heads, head_size)] += p[s] * d;
            }
            weighted += p[s] * dp[s];
        }
        for (size_t s = 0; s <= t; s++) {
            double ds = p[s] * (dp[s] - weighted) / sqrt((double)head_size);
            for (size_t i = 0; i < head_size; i++) {
                size_t q = qkv_index(b, t, 0, h, i, seq, heads, head_size);
                size_t k = qkv_index(b, s, 1, h, i, seq, heads, head_size);
                dqkv[q] += ds * qkv[k];
                dqkv[k] += ds * qkv[q];
            }
        }
    }
    free(p);
    free(dp);
}

double ref_cross_entropy(double *dlogits, const double *logits, const int32_t *targets,
                         size_t n_rows, size_t vocab) {
    double loss = 0.0;
    for (size_t row = 0; row < n_rows; row++) {
        const double *l = logits + row * vocab;
        double top = -INFINITY, sum = 0.0;
        for (size_t v = 0; v < vocab; v++)
            top = l[v] > top ? l[v] : top;
        for (size_t v = 0; v < vocab; v++)
            sum += exp(l[v] - top);
        loss += top + log(sum) - l[targets[row]];
        for (size_t v = 0; dlogits != NULL && v < vocab; v++)
            dlogits[row * vocab + v] =
                exp(l[v] - top) / sum - ((size_t)targets[row] == v ? 1.0 : 0.0);
    }
    return loss;
}
