/*
 * Rotary positions on the host, with the normalisation of queries and keys that goes before them.
 * Tokens are shared among threads; the weights' gradients are sums over all heads of all tokens, so
 * for them columns are.
 */
#include <string.h>

#include "kernels/nn/host/host_nn.h"

#define ZR_COLUMN_PIECE 64
#define MAX_PAIRS (ZR_NN_ROTARY_MAX_HEAD_SIZE / 2)

/* What both directions share. Of a token's row, the first n_turned heads are queries and keys. */
typedef struct rotary_job {
    zr_host_nn_job_t base;
    zr_nn_qkv_shape_t shape;
    size_t n_tokens, n_turned, row_heads;
    const float *frequencies;

    /* Weights in fp32, NULL without: of queries, of keys. */
    const float *weights[2];
    float wide[2][ZR_NN_ROTARY_MAX_HEAD_SIZE];
} rotary_job_t;

static rotary_job_t make_job(const zr_stream_t *stream, const zr_nn_qkv_shape_t *shape,
                             const float *frequencies) {
    size_t n_tokens = shape->batch * shape->seq, n_turned = shape->heads + shape->kv_heads;
    return (rotary_job_t){.base = {.loops = zr_host_nn_loops(stream->device),
                                   .n_tasks = zr_host_nn_n_tasks(stream->device, n_tokens)},
                          .shape = *shape,
                          .n_tokens = n_tokens,
                          .n_turned = n_turned,
                          .row_heads = n_turned + shape->kv_heads,
                          .frequencies = frequencies};
}

static void find_weights(rotary_job_t *job, const void *q_weight, const void *k_weight,
                         zr_dtype_t dtype) {
    const void *weights[2] = {q_weight, k_weight};
    for (int i = 0; i < 2 && q_weight != NULL; i++)
        job->weights[i] = zr_host_nn_widen(job->base.loops, weights[i], dtype, 0,
                                           job->shape.head_size, job->wide[i]);
}

/* The angles of a token's pairs; false: nothing is turned. */
static bool find_angles(const rotary_job_t *job, size_t token, float *cosines, float *sines) {
    if (job->frequencies == NULL)
        return false;
    int32_t position = (int32_t)(token % job->shape.seq);
    if (job->shape.document_starts != NULL)
        position -= job->shape.document_starts[token];
    job->base.loops->rotary_angles(cosines, sines, job->frequencies, position,
                                   job->shape.head_size / 2);
    return true;
}

static size_t first_token(const rotary_job_t *job, size_t task) {
    return zr_host_nn_part(job->n_tokens, job->base.n_tasks, task, 1);
}

/* ---- forward ------------------------------------------------------------------------ */

typedef struct forward_job {
    rotary_job_t rotary;
    const zr_nn_rotary_t *args;
} forward_job_t;

static void turn_token(const forward_job_t *job, size_t token) {
    const rotary_job_t *rotary = &job->rotary;
    const zr_nn_rotary_t *args = job->args;
    const zr_host_nn_loops_t *loops = rotary->base.loops;
    size_t size = rotary->shape.head_size, row = token * rotary->row_heads * size;
    const float *x = (const float *)args->qkv + row;
    float *y = (float *)args->out + row, cosines[MAX_PAIRS], sines[MAX_PAIRS];
    bool is_turned = find_angles(rotary, token, cosines, sines);
    if (x != y)
        memcpy(y, x, rotary->row_heads * size * sizeof(float));
    for (size_t h = 0; h < rotary->n_turned; h++) {
        float *head = y + h * size;
        if (rotary->weights[0] != NULL) {
            float *rstd = &args->rstd[token * rotary->n_turned + h];
            loops->row_statistics(head, size, args->epsilon, NULL, rstd);
            loops->normalise(head, head, 0.0f, *rstd, rotary->weights[h >= rotary->shape.heads],
                             NULL, size);
        }
        if (is_turned)
            loops->rotate(head, cosines, sines, false, size / 2);
    }
}

static void forward_task(void *context, size_t index) {
    const forward_job_t *job = context;
    size_t last = first_token(&job->rotary, index + 1);
    for (size_t token = first_token(&job->rotary, index); token < last; token++)
        turn_token(job, token);
}

zr_status_t zr_host_nn_rotary(zr_stream_t *stream, const void *arguments, void *workspace) {
    const zr_nn_rotary_t *args = arguments;
    (void)workspace;
    ZR_TRY(zr_host_nn_check_activations(stream, "rotary", args->activation_dtype));
    ZR_TRY(zr_host_nn_check_documents(stream, "rotary", &args->shape));
    forward_job_t job = {.rotary = make_job(stream, &args->shape, args->frequencies), .args = args};
    find_weights(&job.rotary, args->q_weight, args->k_weight, args->param_dtype);
    return zr_host_nn_run(stream, &job.rotary.base, forward_task, "rotary");
}

/* ---- backward ----------------------------------------------------------------------- */

typedef struct backward_job {
    rotary_job_t rotary;
    const zr_nn_rotary_backward_t *args;
} backward_job_t;

/* Gradients of what was turned become those of what it was turned from. */
static void turn_back_task(void *context, size_t index) {
    const backward_job_t *job = context;
    const rotary_job_t *rotary = &job->rotary;
    size_t last = first_token(rotary, index + 1), size = rotary->shape.head_size;
    float cosines[MAX_PAIRS], sines[MAX_PAIRS];
    for (size_t token = first_token(rotary, index); token < last; token++) {
        float *row = (float *)job->args->dqkv + token * rotary->row_heads * size;
        (void)find_angles(rotary, token, cosines, sines);
        for (size_t h = 0; h < rotary->n_turned; h++)
            rotary->base.loops->rotate(row + h * size, cosines, sines, true, size / 2);
    }
}

/* Columns of both weights' gradients, summed up in the order of tokens and heads. */
static void weights_task(void *context, size_t index) {
    const backward_job_t *job = context;
    const rotary_job_t *rotary = &job->rotary;
    const zr_nn_rotary_backward_t *args = job->args;
    size_t first = index * ZR_COLUMN_PIECE;
    size_t n = zr_host_nn_min(ZR_COLUMN_PIECE, rotary->shape.head_size - first);
    float sums[2][ZR_COLUMN_PIECE] = {{0}}, unused[ZR_COLUMN_PIECE] = {0};
    for (size_t token = 0; token < rotary->n_tokens; token++)
        for (size_t h = 0; h < rotary->n_turned; h++) {
            size_t at = (token * rotary->row_heads + h) * rotary->shape.head_size + first;
            rotary->base.loops->normalise_weights_backward(
                sums[h >= rotary->shape.heads], unused, (const float *)args->dqkv + at,
                (const float *)args->qkv + at, 0.0f, args->rstd[token * rotary->n_turned + h], n);
        }
    const zr_nn_gradient_t *gradients[2] = {&args->dq_weight, &args->dk_weight};
    for (int i = 0; i < 2; i++)
        if (gradients[i]->data != NULL)
            zr_host_nn_store_gradient(rotary->base.loops, gradients[i], args->param_dtype, first,
                                      sums[i], n);
}

static void normalise_task(void *context, size_t index) {
    const backward_job_t *job = context;
    const rotary_job_t *rotary = &job->rotary;
    size_t last = first_token(rotary, index + 1), size = rotary->shape.head_size;
    float dy[ZR_NN_ROTARY_MAX_HEAD_SIZE];
    for (size_t token = first_token(rotary, index); token < last; token++)
        for (size_t h = 0; h < rotary->n_turned; h++) {
            size_t at = (token * rotary->row_heads + h) * size;
            float *dx = (float *)job->args->dqkv + at;
            memcpy(dy, dx, size * sizeof(float));
            rotary->base.loops->normalise_backward(
                dx, false, dy, (const float *)job->args->qkv + at, 0.0f,
                job->args->rstd[token * rotary->n_turned + h], true,
                rotary->weights[h >= rotary->shape.heads], size);
        }
}

zr_status_t zr_host_nn_rotary_backward(zr_stream_t *stream, const void *arguments,
                                       void *workspace) {
    const zr_nn_rotary_backward_t *args = arguments;
    const char *kernel = "rotary_backward";
    (void)workspace;
    ZR_TRY(zr_host_nn_check_activations(stream, kernel, args->activation_dtype));
    ZR_TRY(zr_host_nn_check_documents(stream, kernel, &args->shape));
    backward_job_t job = {.rotary = make_job(stream, &args->shape, args->frequencies),
                          .args = args};
    zr_host_nn_job_t *base = &job.rotary.base;
    const size_t n_tasks = base->n_tasks;
    find_weights(&job.rotary, args->q_weight, args->k_weight, args->param_dtype);
    if (args->frequencies != NULL)
        ZR_TRY(zr_host_nn_run(stream, base, turn_back_task, kernel));
    if (job.rotary.weights[0] == NULL)
        return ZR_OK;
    if (args->dq_weight.data != NULL || args->dk_weight.data != NULL) {
        base->n_tasks = (args->shape.head_size + ZR_COLUMN_PIECE - 1) / ZR_COLUMN_PIECE;
        ZR_TRY(zr_host_nn_run(stream, base, weights_task, kernel));
    }
    base->n_tasks = n_tasks;
    return zr_host_nn_run(stream, base, normalise_task, kernel);
}
