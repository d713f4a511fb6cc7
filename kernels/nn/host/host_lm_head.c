/*
 * The language model head on the host.
 *
 * Logits are kept transposed, [vocabulary, tokens]: then every product has its operands
 * in the order that is fast (the weight is never transposed), sums over the vocabulary
 * are sums down columns that vectorise across tokens, and threads that own parts of
 * the vocabulary write whole rows of the weight's gradient.
 *
 * Within its part of a chunk, a task goes by sub-blocks whose logits stay in its second
 * cache from their product to their use.
 */
#include <float.h>
#include <math.h>

#include "kernels/base/background_internal.h"
#include "kernels/nn/host/host_nn.h"
#include "kernels/nn/nn_math.h"

/* Logits of a sub-block: 512 KiB of them, within these limits of rows. */
#define ZR_SUB_BLOCK_ELEMS ((size_t)1 << 17)
#define ZR_SUB_BLOCK_MIN_ROWS ((size_t)128)
#define ZR_SUB_BLOCK_MAX_ROWS ((size_t)2048)
/* Rows of a BF16 weight, or of its gradient, that are held in fp32: 1 MiB. */
#define ZR_WIDE_BLOCK_ELEMS ((size_t)1 << 18)

typedef struct lm_head_job {
    zr_host_nn_job_t base;
    const zr_nn_lm_head_t *args;
    size_t first, n_vocab; /* the chunk */
    bool have_logits;      /* those of this chunk are there already */
    bool to_gradient;      /* second time through the vocabulary */

    /* The workspace. */
    float *logits;        /* [chunk, n_rows] */
    float *x_transposed;  /* [channels, n_rows] */
    float *log_sum;       /* [n_rows] */
    float *target_logits; /* [n_rows] */
    float *scale;         /* [n_rows], of a row's gradient; in place of its target's logit */
    float *maximum;       /* [n_tasks, n_rows] */
    float *sum;           /* [n_tasks, n_rows], of exp(logit - maximum) */
    float *wide;          /* BF16: [n_tasks, wide_elems], and the workspace of dx's product */
    size_t wide_elems;
} lm_head_job_t;

static size_t chunk_rows(const zr_nn_lm_head_t *args) {
    return zr_host_nn_min(args->vocab_chunk, args->vocab);
}

static size_t align_floats(size_t n) {
    return (n + 63) / 64 * 64;
}

/* dx += its part from vocabulary [first, first + n). */
static zr_nn_matmul_t dx_product(const lm_head_job_t *job, size_t first, size_t n) {
    const zr_nn_lm_head_t *args = job->args;
    size_t offset_bytes = first * args->channels * zr_dtype_size(args->param_dtype);
    return (zr_nn_matmul_t){.m = args->n_rows,
                            .n = args->channels,
                            .k = n,
                            .a = job->logits,
                            .transpose_a = true,
                            .b = (const char *)args->weight + offset_bytes,
                            .c = args->dx,
                            .a_dtype = ZR_DTYPE_F32,
                            .b_dtype = args->param_dtype,
                            .c_dtype = ZR_DTYPE_F32,
                            .accumulate = first + n < args->vocab};
}

/* Lay the workspace out from `base` (NULL: only to measure it); gives its floats. */
static size_t lay_out(lm_head_job_t *job, const zr_device_t *device, float *base) {
    const zr_nn_lm_head_t *args = job->args;
    size_t n_tasks = (size_t)device->info.n_threads;
    zr_nn_matmul_t product = dx_product(job, 0, chunk_rows(args));
    size_t product_elems = zr_host_nn_matmul_bytes(device, &product) / sizeof(float);
    bool wide = args->param_dtype == ZR_DTYPE_BF16;
    job->wide_elems = !wide                                  ? 0
                      : args->channels > ZR_WIDE_BLOCK_ELEMS ? args->channels
                                                             : ZR_WIDE_BLOCK_ELEMS;
    const struct {
        float **place;
        size_t n;
    } parts[] = {{&job->logits, chunk_rows(args) * args->n_rows},
                 {&job->x_transposed, args->channels * args->n_rows},
                 {&job->log_sum, args->n_rows},
                 {&job->target_logits, args->n_rows},
                 {&job->maximum, n_tasks * args->n_rows},
                 {&job->sum, n_tasks * args->n_rows},
                 {&job->wide, n_tasks * job->wide_elems > product_elems ? n_tasks * job->wide_elems
                                                                        : product_elems}};
    size_t n = 0;
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        if (base != NULL)
            *parts[i].place = base + n;
        n += align_floats(parts[i].n);
    }
    return n;
}

/* ---- one task's part of a chunk ---------------------------------------------------------- */

/* Rows [row, row + n) of the weight, in fp32. */
static zr_host_matrix_t weight_rows(const lm_head_job_t *job, size_t row, size_t n, float *wide) {
    const zr_nn_lm_head_t *args = job->args;
    const float *rows = zr_host_nn_widen(job->base.loops, args->weight, args->param_dtype,
                                         row * args->channels, n * args->channels, wide);
    return (zr_host_matrix_t){rows, args->channels, false};
}

static size_t sub_block_rows(const lm_head_job_t *job) {
    const zr_nn_lm_head_t *args = job->args;
    size_t n = ZR_SUB_BLOCK_ELEMS / (args->n_rows + 1);
    n = n < ZR_SUB_BLOCK_MIN_ROWS ? ZR_SUB_BLOCK_MIN_ROWS : n;
    n = zr_host_nn_min(n, ZR_SUB_BLOCK_MAX_ROWS);
    return job->wide_elems == 0 ? n : zr_host_nn_min(n, job->wide_elems / args->channels);
}

static int compute_logits(const lm_head_job_t *job, size_t row, size_t n, float *logits,
                          float *wide) {
    const zr_nn_lm_head_t *args = job->args;
    zr_host_matrix_t x = {job->x_transposed, args->n_rows, false};
    return zr_host_sgemm(n, args->n_rows, args->channels, 1.0f, weight_rows(job, row, n, wide), x,
                         0.0f, logits, args->n_rows);
}

/* Where the target of token `i` lies in the logits of vocabulary [row, row + n); NULL: not there.
 */
static float *target_of(const lm_head_job_t *job, size_t i, size_t row, size_t n, float *logits) {
    size_t target = (size_t)job->args->targets[i];
    if (target < row || target >= row + n)
        return NULL;
    return logits + (target - row) * job->args->n_rows + i;
}

static void take_statistics(const lm_head_job_t *job, size_t task, size_t row, size_t n,
                            float *logits) {
    size_t n_rows = job->args->n_rows;
    job->base.loops->column_statistics(job->maximum + task * n_rows, job->sum + task * n_rows,
                                       logits, n_rows, n, n_rows);
    for (size_t i = 0; i < n_rows; i++) {
        const float *logit = target_of(job, i, row, n, logits);
        if (logit != NULL)
            job->target_logits[i] = *logit;
    }
}

/* Logits become their gradient; with it, these rows of the weight's. */
static int differentiate(const lm_head_job_t *job, size_t row, size_t n, float *logits,
                         float *wide) {
    const zr_nn_lm_head_t *args = job->args;
    job->base.loops->column_softmax(logits, args->n_rows, job->log_sum, job->scale, n,
                                    args->n_rows);
    for (size_t i = 0; i < args->n_rows; i++) {
        float *gradient = target_of(job, i, row, n, logits);
        if (gradient != NULL)
            *gradient -= args->scale;
    }
    if (args->dweight.data == NULL)
        return 0;
    zr_host_matrix_t dlogits = {logits, args->n_rows, false};
    zr_host_matrix_t x = {args->x, args->channels, false};
    if (args->param_dtype == ZR_DTYPE_F32)
        return zr_host_sgemm(n, args->channels, args->n_rows, 1.0f, dlogits, x,
                             args->dweight.accumulate ? 1.0f : 0.0f,
                             (float *)args->dweight.data + row * args->channels, args->channels);
    int status = zr_host_sgemm(n, args->channels, args->n_rows, 1.0f, dlogits, x, 0.0f, wide,
                               args->channels);
    if (status == 0)
        zr_host_nn_store_gradient(job->base.loops, &args->dweight, args->param_dtype,
                                  row * args->channels, wide, n * args->channels);
    return status;
}

static void chunk_task(void *context, size_t index) {
    lm_head_job_t *job = context;
    size_t n_rows = job->args->n_rows;
    size_t end = zr_host_nn_part(job->n_vocab, job->base.n_tasks, index + 1, 16);
    size_t step = sub_block_rows(job);
    float *wide = job->wide + index * job->wide_elems;
    for (size_t i = zr_host_nn_part(job->n_vocab, job->base.n_tasks, index, 16); i < end;
         i += step) {
        size_t row = job->first + i, n = zr_host_nn_min(step, end - i);
        float *logits = job->logits + i * n_rows;
        int status = job->have_logits ? 0 : compute_logits(job, row, n, logits, wide);
        if (status == 0 && !job->to_gradient)
            take_statistics(job, index, row, n, logits);
        else if (status == 0)
            status = differentiate(job, row, n, logits, wide);
        if (status != 0) {
            atomic_store(&job->base.status, status);
            return;
        }
        zr_background();
    }
}

static zr_status_t run_chunk(zr_stream_t *stream, lm_head_job_t *job, size_t first) {
    size_t chunk = chunk_rows(job->args);
    job->first = first;
    job->n_vocab = zr_host_nn_min(chunk, job->args->vocab - first);
    return zr_host_nn_run(stream, &job->base, chunk_task, "lm_head");
}

/* ---- the passes through the vocabulary ------------------------------------------------------ */

static void transpose_task(void *context, size_t index) {
    lm_head_job_t *job = context;
    const zr_nn_lm_head_t *args = job->args;
    size_t first = zr_host_nn_part(args->n_rows, job->base.n_tasks, index, 16);
    size_t n = zr_host_nn_part(args->n_rows, job->base.n_tasks, index + 1, 16) - first;
    job->base.loops->transpose(job->x_transposed + first, args->n_rows,
                               (const float *)args->x + first * args->channels, args->channels, n,
                               args->channels);
}

/* The tasks' sums become the logarithm of each token's sum; the losses are added in order. */
static void finish_statistics(const lm_head_job_t *job) {
    const zr_nn_lm_head_t *args = job->args;
    double loss = 0.0;
    for (size_t i = 0; i < args->n_rows; i++) {
        float maximum = job->maximum[i], sum = job->sum[i];
        for (size_t task = 1; task < job->base.n_tasks; task++) {
            float other = job->maximum[task * args->n_rows + i];
            float top = other > maximum ? other : maximum;
            sum = sum * zr_nn_exp(maximum - top) +
                  job->sum[task * args->n_rows + i] * zr_nn_exp(other - top);
            maximum = top;
        }
        bool is_ignored = args->targets[i] == ZR_NN_TARGET_IGNORED;
        job->log_sum[i] = maximum + logf(sum);
        if (!is_ignored)
            loss += (double)job->log_sum[i] - (double)job->target_logits[i];
        job->scale[i] = is_ignored ? 0.0f : args->scale;
    }
    *args->loss += (double)args->scale * loss;
}

static zr_status_t run_statistics(zr_stream_t *stream, lm_head_job_t *job) {
    const zr_nn_lm_head_t *args = job->args;
    ZR_TRY(zr_host_nn_run(stream, &job->base, transpose_task, "lm_head"));
    for (size_t i = 0; i < job->base.n_tasks * args->n_rows; i++) {
        job->maximum[i] = -FLT_MAX;
        job->sum[i] = 0.0f;
    }
    for (size_t first = 0; first < args->vocab; first += chunk_rows(args))
        ZR_TRY(run_chunk(stream, job, first));
    finish_statistics(job);
    return ZR_OK;
}

/* Backwards, because the logits of the last chunk are still there. */
static zr_status_t run_gradients(zr_stream_t *stream, lm_head_job_t *job) {
    const zr_nn_lm_head_t *args = job->args;
    size_t chunk = chunk_rows(args);
    size_t n_chunks = chunk == 0 ? 0 : (args->vocab + chunk - 1) / chunk;
    job->to_gradient = true;
    job->have_logits = true;
    for (size_t i = n_chunks; i-- > 0;) {
        ZR_TRY(run_chunk(stream, job, i * chunk));
        job->have_logits = false;
        if (args->dx == NULL || args->n_rows == 0)
            continue;
        zr_nn_matmul_t product = dx_product(job, job->first, job->n_vocab);
        ZR_TRY(zr_host_nn_matmul(stream, &product, job->wide));
    }
    return ZR_OK;
}

size_t zr_host_nn_lm_head_bytes(const zr_device_t *device, const void *arguments) {
    const zr_nn_lm_head_t *args = arguments;
    lm_head_job_t job = {.args = args};
    return lay_out(&job, device, NULL) * sizeof(float);
}

static zr_status_t check_targets(const zr_stream_t *stream, const zr_nn_lm_head_t *args) {
    for (size_t i = 0; i < args->n_rows; i++) {
        if (args->targets[i] != ZR_NN_TARGET_IGNORED &&
            (args->targets[i] < 0 || (size_t)args->targets[i] >= args->vocab))
            return zr_fail(&stream->device->log, ZR_ERR_ARGUMENT,
                           "lm_head: target %d at %zu is outside of the vocabulary of %zu",
                           (int)args->targets[i], i, args->vocab);
    }
    return ZR_OK;
}

zr_status_t zr_host_nn_lm_head(zr_stream_t *stream, const void *arguments, void *workspace) {
    const zr_nn_lm_head_t *args = arguments;
    ZR_TRY(zr_host_nn_check_activations(stream, "lm_head", args->activation_dtype));
    ZR_TRY(check_targets(stream, args));
    lm_head_job_t job = {.base = {.loops = zr_host_nn_loops(stream->device),
                                  .n_tasks = (size_t)stream->device->info.n_threads},
                         .args = args};
    lay_out(&job, stream->device, workspace);
    job.scale = job.target_logits;
    if (args->n_rows > 0)
        ZR_TRY(run_statistics(stream, &job));
    if (args->dx == NULL && args->dweight.data == NULL)
        return ZR_OK;
    return run_gradients(stream, &job);
}
