/*
 * See attention_bounds.h. What is rounded, u being the rounding of stored values and e that of one
 * addition in fp32, which tensor cores may truncate (2^-23):
 *
 *   a score       (head_size + 3) e times the sum of the absolute products
 *   p             relative: its score's error, that of the row's largest or of log_sum, and of exp2
 *   p, ds         u more where they are an operand of the next product
 *   sums of rows  seq e times the sum of the absolute terms
 *   results       u
 *   delta         u times the sum of |dout out|, from out as it is given
 */
#include "tests/ref/attention_bounds.h"

#include <math.h>

static const double e = 0x1p-23;
static const double underflow = 0x1p-100; /* what fp32 and bf16 lose of the smallest terms */

/* One head's rows. */
typedef struct rows {
    const double *q, *k, *v;
    size_t stride, out_stride, out, first; /* first: of q in qkv */
    size_t log_sum;
} rows_t;

static rows_t find_rows(const attention_case_t *c, const double *qkv, size_t head) {
    size_t b = head / c->heads, h = head % c->heads, channels = c->heads * c->head_size;
    rows_t rows = {.stride = 3 * channels, .out_stride = channels};
    rows.first = b * c->seq * rows.stride + h * c->head_size;
    rows.out = b * c->seq * channels + h * c->head_size;
    rows.q = qkv + rows.first;
    rows.k = rows.q + channels;
    rows.v = rows.k + channels;
    rows.log_sum = head * c->seq;
    return rows;
}

static double dot(const double *a, const double *b, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}
static double absolute_dot(const double *a, const double *b, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += fabs(a[i] * b[i]);
    return sum;
}

/* Scores of a query, and the most that the exponential of one may be off, relative. */
static double find_scores(double *score, const attention_case_t *c, const rows_t *rows, size_t t) {
    double scale = 1.0 / sqrt((double)c->head_size), most = 0, largest = 0;
    const double *q = rows->q + t * rows->stride;
    for (size_t s = 0; s <= t; s++) {
        score[s] = scale * dot(q, rows->k + s * rows->stride, c->head_size);
        most = fmax(most, scale * absolute_dot(q, rows->k + s * rows->stride, c->head_size));
        largest = fmax(largest, fabs(score[s]));
    }
    return e * (2 * (double)(c->head_size + 3) * most + 4 * largest + 8);
}

void attention_bounds(double *out_bound, double *log_sum_bound, const double *qkv,
                      const double *out, const attention_case_t *c) {
    double score[1024];
    for (size_t head = 0; head < c->batch * c->heads; head++) {
        rows_t rows = find_rows(c, qkv, head);
        for (size_t t = 0; t < c->seq; t++) {
            double off = find_scores(score, c, &rows, t), sum = 0, top = score[0];
            for (size_t s = 0; s <= t; s++)
                top = fmax(top, score[s]);
            for (size_t s = 0; s <= t; s++)
                sum += exp(score[s] - top);
            log_sum_bound[rows.log_sum + t] =
                off + e * ((double)t + 4) + 2 * e * fabs(top + log(sum));
            for (size_t i = 0; i < c->head_size; i++) {
                size_t at = rows.out + t * rows.out_stride + i;
                double terms = 0;
                for (size_t s = 0; s <= t; s++)
                    terms += exp(score[s] - top) / sum * fabs(rows.v[s * rows.stride + i]);
                out_bound[at] = terms * (2 * off + 2 * (double)(t + 4) * e + c->rounding) +
                                c->rounding * fabs(out[at]) + underflow;
            }
        }
    }
}

/* What the pair of query t and key s adds to the bounds of dq, dk and dv. */
static void add_pair(double *bound, const attention_case_t *c, const rows_t *rows,
                     const double *dout, size_t t, size_t s, double p, double ds, double ds_off,
                     double off) {
    double scale = 1.0 / sqrt((double)c->head_size), sums = (double)c->seq * e;
    const double *q = rows->q + t * rows->stride, *k = rows->k + s * rows->stride;
    size_t channels = rows->out_stride;
    double *dq = bound + rows->first + t * rows->stride;
    double *dk = bound + rows->first + s * rows->stride + channels, *dv = dk + channels;
    for (size_t i = 0; i < c->head_size; i++) {
        double d = fabs(dout[rows->out + t * rows->out_stride + i]);
        dq[i] += scale * fabs(k[i]) * (ds_off + sums * fabs(ds));
        dk[i] += scale * fabs(q[i]) * (ds_off + sums * fabs(ds));
        dv[i] += d * p * (c->rounding + off + sums);
    }
}

void attention_backward_bounds(double *dqkv_bound, const double *qkv, const double *dqkv,
                               const double *out, const double *dout, const double *log_sum,
                               const attention_case_t *c) {
    double score[1024], u = c->rounding, n_products = (double)c->head_size + 3;
    size_t n = c->batch * c->seq * 3 * c->heads * c->head_size;
    for (size_t i = 0; i < n; i++)
        dqkv_bound[i] = u * fabs(dqkv[i]) + underflow;
    for (size_t head = 0; head < c->batch * c->heads; head++) {
        rows_t rows = find_rows(c, qkv, head);
        for (size_t t = 0; t < c->seq; t++) {
            const double *d = dout + rows.out + t * rows.out_stride;
            const double *o = out + rows.out + t * rows.out_stride;
            double delta = dot(d, o, c->head_size), terms = absolute_dot(d, o, c->head_size);
            double off = find_scores(score, c, &rows, t);
            for (size_t s = 0; s <= t; s++) {
                const double *v = rows.v + s * rows.stride;
                double p = exp(score[s] - log_sum[rows.log_sum + t]);
                double ds = p * (dot(d, v, c->head_size) - delta);
                double ds_off = fabs(ds) * (u + off) + p * (u + n_products * e) * terms +
                                p * n_products * e * absolute_dot(d, v, c->head_size);
                add_pair(dqkv_bound, c, &rows, dout, t, s, p, ds, ds_off, off);
            }
        }
    }
}
