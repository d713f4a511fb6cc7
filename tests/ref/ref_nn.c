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

void ref_rmsnorm(double *y, const double *x, const double *weight, double epsilon, size_t n_rows,
                 size_t channels) {
    for (size_t row = 0; row < n_rows; row++) {
        double square = 0.0;
        for (size_t c = 0; c < channels; c++)
            square += x[row * channels + c] * x[row * channels + c];
        for (size_t c = 0; c < channels; c++)
            y[row * channels + c] =
                x[row * channels + c] / sqrt(square / (double)channels + epsilon) * weight[c];
    }
}

void ref_rmsnorm_backward(double *dx, double *dweight, const double *dy, const double *x,
                          const double *weight, double epsilon, size_t n_rows, size_t channels) {
    for (size_t row = 0; row < n_rows; row++) {
        const double *x_row = x + row * channels, *dy_row = dy + row * channels;
        double square = 0.0, product = 0.0;
        for (size_t c = 0; c < channels; c++) {
            square += x_row[c] * x_row[c] / (double)channels;
            product += dy_row[c] * weight[c] * x_row[c] / (double)channels;
        }
        for (size_t c = 0; c < channels; c++) {
            dweight[c] += dy_row[c] * x_row[c] / sqrt(square + epsilon);
            dx[row * channels + c] = dy_row[c] * weight[c] / sqrt(square + epsilon) -
                                     x_row[c] * product / pow(square + epsilon, 1.5);
        }
    }
}

double ref_silu(double x) {
    return x / (1.0 + exp(-x));
}

double ref_silu_slope(double x) {
    double s = 1.0 / (1.0 + exp(-x));
    return s * (1.0 + x * (1.0 - s));
}

void ref_rotate(double *x, const double *frequencies, double position, size_t head_size) {
    for (size_t i = 0; i < head_size / 2; i++) {
        double a = x[i], b = x[i + head_size / 2], angle = position * frequencies[i];
        x[i] = a * cos(angle) - b * sin(angle);
        x[i + head_size / 2] = a * sin(angle) + b * cos(angle);
    }
}

/* Where in qkv the queries (part 0), keys (1) or values (2) of head h of queries begin. */
static size_t qkv_index(const ref_attention_t *c, size_t b, size_t t, int part, size_t h) {
    size_t of_keys = h / (c->heads / c->kv_heads);
    size_t head = part == 0 ? h : c->heads + (size_t)(part - 1) * c->kv_heads + of_keys;
    return ((b * c->seq + t) * (c->heads + 2 * c->kv_heads) + head) * c->head_size;
}

static bool sees(const ref_attention_t *c, size_t b, size_t t, size_t s) {
    if (s > t || (c->window != 0 && t - s >= c->window))
        return false;
    return c->document_starts == NULL || (int64_t)s >= c->document_starts[b * c->seq + t];
}

/* Probabilities of query t over the keys that it sees, 0 over others; gives the log of the sum. */
static double probabilities(double *p, const double *qkv, const ref_attention_t *c, size_t b,
                            size_t t, size_t h) {
    double top = -INFINITY, sum = 0.0;
    for (size_t s = 0; s < c->seq; s++) {
        p[s] = 0.0;
        for (size_t i = 0; i < c->head_size; i++)
            p[s] += qkv[qkv_index(c, b, t, 0, h) + i] * qkv[qkv_index(c, b, s, 1, h) + i];
        p[s] /= sqrt((double)c->head_size);
        top = sees(c, b, t, s) && p[s] > top ? p[s] : top;
    }
    for (size_t s = 0; s < c->seq; s++)
        sum += sees(c, b, t, s) ? exp(p[s] - top) : 0.0;
    for (size_t s = 0; s < c->seq; s++)
        p[s] = sees(c, b, t, s) ? exp(p[s] - top) / sum : 0.0;
    return top + log(sum);
}

void ref_attention(double *out, double *log_sum, const double *qkv, const ref_attention_t *c) {
    double *p = malloc((c->seq + 1) * sizeof(double));
    for (size_t row = 0; row < c->batch * c->heads * c->seq; row++) {
        size_t b = row / (c->heads * c->seq), h = row / c->seq % c->heads, t = row % c->seq;
        double sum = probabilities(p, qkv, c, b, t, h);
        if (log_sum != NULL)
            log_sum[row] = sum;
        for (size_t i = 0; i < c->head_size; i++) {
            double value = 0.0;
            for (size_t s = 0; s <= t; s++)
                value += p[s] * qkv[qkv_index(c, b, s, 2, h) + i];
            out[((b * c->seq + t) * c->heads + h) * c->head_size + i] = value;
        }
    }
    free(p);
}

void ref_attention_backward(double *dqkv, const double *dout, const double *qkv,
                            const ref_attention_t *c) {
    double *p = malloc((c->seq + 1) * sizeof(double)), *dp = malloc((c->seq + 1) * sizeof(double));
    for (size_t i = 0; i < c->batch * c->seq * (c->heads + 2 * c->kv_heads) * c->head_size; i++)
        dqkv[i] = 0.0;
    for (size_t row = 0; row < c->batch * c->heads * c->seq; row++) {
        size_t b = row / (c->heads * c->seq), h = row / c->seq % c->heads, t = row % c->seq;
        size_t q = qkv_index(c, b, t, 0, h);
        probabilities(p, qkv, c, b, t, h);
        double weighted = 0.0;
        for (size_t s = 0; s <= t; s++) {
            size_t v = qkv_index(c, b, s, 2, h);
            dp[s] = 0.0;
            for (size_t i = 0; i < c->head_size; i++) {
                double d = dout[((b * c->seq + t) * c->heads + h) * c->head_size + i];
                dp[s] += d * qkv[v + i];
                dqkv[v + i] += p[s] * d;
            }
            weighted += p[s] * dp[s];
        }
        for (size_t s = 0; s <= t; s++) {
            double ds = p[s] * (dp[s] - weighted) / sqrt((double)c->head_size);
            size_t k = qkv_index(c, b, s, 1, h);
            for (size_t i = 0; i < c->head_size; i++) {
                dqkv[q + i] += ds * qkv[k + i];
                dqkv[k + i] += ds * qkv[q + i];
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
        for (size_t v = 0; targets[row] == -100 && dlogits != NULL && v < vocab; v++)
            dlogits[row * vocab + v] = 0.0;
        if (targets[row] == -100)
            continue;
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
