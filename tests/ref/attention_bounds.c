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
    size_t stride, out_stride, out, q_at, k_at, v_at; /* at: in qkv */
    size_t log_sum, sequence;
} rows_t;

static rows_t find_rows(const ref_attention_t *c, const double *qkv, size_t head) {
    size_t b = head / c->heads, h = head % c->heads, of_keys = h / (c->heads / c->kv_heads);
    rows_t rows = {.stride = (c->heads + 2 * c->kv_heads) * c->head_size,
                   .out_stride = c->heads * c->head_size};
    rows.sequence = b * c->seq;
    rows.q_at = rows.sequence * rows.stride + h * c->head_size;
    rows.k_at = rows.sequence * rows.stride + (c->heads + of_keys) * c->head_size;
    rows.v_at = rows.k_at + c->kv_heads * c->head_size;
    rows.out = rows.sequence * rows.out_stride + h * c->head_size;
    rows.q = qkv + rows.q_at;
    rows.k = qkv + rows.k_at;
    rows.v = qkv + rows.v_at;
    rows.log_sum = head * c->seq;
    return rows;
}

/* The first key that a query sees. */
static size_t first_key(const ref_attention_t *c, const rows_t *rows, size_t t) {
    size_t first = c->document_starts == NULL ? 0 : (size_t)c->document_starts[rows->sequence + t];
    return c->window != 0 && t + 1 > first + c->window ? t + 1 - c->window : first;
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
static double find_scores(double *score, const ref_attention_t *c, const rows_t *rows, size_t t) {
    double scale = 1.0 / sqrt((double)c->head_size), most = 0, largest = 0;
    const double *q = rows->q + t * rows->stride;
    for (size_t s = first_key(c, rows, t); s <= t; s++) {
        score[s] = scale * dot(q, rows->k + s * rows->stride, c->head_size);
        most = fmax(most, scale * absolute_dot(q, rows->k + s * rows->stride, c->head_size));
        largest = fmax(largest, fabs(score[s]));
    }
    return e * (2 * (double)(c->head_size + 3) * most + 4 * largest + 8);
}

void attention_bounds(double *out_bound, double *log_sum_bound, const double *qkv,
                      const double *out, const attention_case_t *test_case) {
    const ref_attention_t *c = &test_case->ref;
    double score[1024], u = test_case->rounding;
    for (size_t head = 0; head < c->batch * c->heads; head++) {
        rows_t rows = find_rows(c, qkv, head);
        for (size_t t = 0; t < c->seq; t++) {
            double off = find_scores(score, c, &rows, t), sum = 0, top = score[t];
            for (size_t s = first_key(c, &rows, t); s <= t; s++)
                top = fmax(top, score[s]);
            for (size_t s = first_key(c, &rows, t); s <= t; s++)
                sum += exp(score[s] - top);
            log_sum_bound[rows.log_sum + t] =
                off + e * ((double)t + 4) + 2 * e * fabs(top + log(sum));
            for (size_t i = 0; i < c->head_size; i++) {
                size_t at = rows.out + t * rows.out_stride + i;
                double terms = 0;
                for (size_t s = first_key(c, &rows, t); s <= t; s++)
                    terms += exp(score[s] - top) / sum * fabs(rows.v[s * rows.stride + i]);
                out_bound[at] =
                    terms * (2 * off + 2 * (double)(t + 4) * e + u) + u * fabs(out[at]) + underflow;
            }
        }
    }
}

/* What the pair of query t and key s adds to the bounds of dq, dk and dv. */
static void add_pair(double *bound, const attention_case_t *test_case, const rows_t *rows,
                     const double *dout, size_t t, size_t s, double p, double ds, double ds_off,
                     double off) {
    const ref_attention_t *c = &test_case->ref;
    size_t group = c->heads / c->kv_heads; /* a key's sums are over so many heads' queries */
    double scale = 1.0 / sqrt((double)c->head_size), sums = (double)(group * c->seq) * e;
    const double *q = rows->q + t * rows->stride, *k = rows->k + s * rows->stride;
    double *dq = bound + rows->q_at + t * rows->stride;
    double *dk = bound + rows->k_at + s * rows->stride, *dv = bound + rows->v_at + s * rows->stride;
    for (size_t i = 0; i < c->head_size; i++) {
        double d = fabs(dout[rows->out + t * rows->out_stride + i]);
        dq[i] += scale * fabs(k[i]) * (ds_off + sums * fabs(ds));
        dk[i] += scale * fabs(q[i]) * (ds_off + sums * fabs(ds));
        dv[i] += d * p * (test_case->rounding + off + sums);
    }
}

void attention_backward_bounds(double *dqkv_bound, const double *qkv, const double *dqkv,
                               const double *out, const double *dout, const double *log_sum,
                               const attention_case_t *test_case) {
    const ref_attention_t *c = &test_case->ref;
    double score[1024], u = test_case->rounding, n_products = (double)c->head_size + 3;
    size_t n = c->batch * c->seq * (c->heads + 2 * c->kv_heads) * c->head_size;
    for (size_t i = 0; i < n; i++)
        dqkv_bound[i] = u * fabs(dqkv[i]) + underflow;
    for (size_t head = 0; head < c->batch * c->heads; head++) {
        rows_t rows = find_rows(c, qkv, head);
        for (size_t t = 0; t < c->seq; t++) {
            const double *d = dout + rows.out + t * rows.out_stride;
            const double *o = out + rows.out + t * rows.out_stride;
            double delta = dot(d, o, c->head_size), terms = absolute_dot(d, o, c->head_size);
            double off = find_scores(score, c, &rows, t);
            for (size_t s = first_key(c, &rows, t); s <= t; s++) {
                const double *v = rows.v + s * rows.stride;
                double p = exp(score[s] - log_sum[rows.log_sum + t]);
                double ds = p * (dot(d, v, c->head_size) - delta);
                double ds_off = fabs(ds) * (u + off) + p * (u + n_products * e) * terms +
                                p * n_products * e * absolute_dot(d, v, c->head_size);
                add_pair(dqkv_bound, test_case, &rows, dout, t, s, p, ds, ds_off, off);
            }
        }
    }
}
