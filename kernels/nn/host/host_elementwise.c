/*
 * The host's kernels that go element by element or column by column: GELU and the
 * gradient of a bias.
 */
#include "kernels/nn/host/host_nn.h"

/* Elements below which a piece is not worth a task of its own. */
#define ZR_GELU_PIECE ((size_t)8192)
#define ZR_COLUMN_PIECE 64

/* ---- GELU ------------------------------------------------------------------------- */

typedef struct gelu_job {
    zr_host_nn_job_t base;
    float *out;
    const float *dy; /* NULL: forward */
    const float *x;
    size_t n_elems;
} gelu_job_t;

static void gelu_task(void *context, size_t index) {
    gelu_job_t *job = context;
    size_t first = zr_host_nn_part(job->n_elems, job->base.n_tasks, index, 16);
    size_t n = zr_host_nn_part(job->n_elems, job->base.n_tasks, index + 1, 16) - first;
    if (job->dy == NULL)
        job->base.loops->gelu(job->out + first, job->x + first, n);
    else
        job->base.loops->gelu_backward(job->out + first, job->dy + first, job->x + first, n);
}

static zr_status_t run_gelu(zr_stream_t *stream, gelu_job_t *job, const char *kernel) {
    job->base.loops = zr_host_nn_loops(stream->device);
    job->base.n_tasks = zr_host_nn_n_tasks(stream->device, job->n_elems / ZR_GELU_PIECE + 1);
    return zr_host_nn_run(stream, &job->base, gelu_task, kernel);
}

zr_status_t zr_host_nn_gelu(zr_stream_t *stream, void *y, const void *x, zr_dtype_t dtype,
                            size_t n_elems) {
    ZR_TRY(zr_host_nn_check_activations(stream, "gelu", dtype));
    gelu_job_t job = {.out = y, .x = x, .n_elems = n_elems};
    return run_gelu(stream, &job, "gelu");
}

zr_status_t zr_host_nn_gelu_backward(zr_stream_t *stream, void *dx, const void *dy, const void *x,
                                     zr_dtype_t dtype, size_t n_elems) {
    ZR_TRY(zr_host_nn_check_activations(stream, "gelu_backward", dtype));
    gelu_job_t job = {.out = dx, .dy = dy, .x = x, .n_elems = n_elems};
    return run_gelu(stream, &job, "gelu_backward");
}

/* ---- bias -------------------------------------------------------------------------- */

typedef struct bias_grad_job {
    zr_host_nn_job_t base;
    const zr_nn_bias_grad_t *args;
} bias_grad_job_t;

static void bias_grad_task(void *context, size_t index) {
    bias_grad_job_t *job = context;
    const zr_nn_bias_grad_t *args = job->args;
    size_t first = index * ZR_COLUMN_PIECE;
    size_t n = zr_host_nn_min(ZR_COLUMN_PIECE, args->n_columns - first);
    float sum[ZR_COLUMN_PIECE] = {0};
    for (size_t row = 0; row < args->n_rows; row++)
        job->base.loops->add(sum, (const float *)args->dy + row * args->n_columns + first, n);
    zr_host_nn_store_gradient(job->base.loops, &args->dbias, args->param_dtype, first, sum, n);
}

zr_status_t zr_host_nn_bias_grad(zr_stream_t *stream, const zr_nn_bias_grad_t *args,
                                 void *workspace) {
    (void)workspace;
    ZR_TRY(zr_host_nn_check_activations(stream, "bias_grad", args->activation_dtype));
    bias_grad_job_t job = {
        .base = {.loops = zr_host_nn_loops(stream->device),
                 .n_tasks = (args->n_columns + ZR_COLUMN_PIECE - 1) / ZR_COLUMN_PIECE},
        .args = args};
    return zr_host_nn_run(stream, &job.base, bias_grad_task, "bias_grad");
}
