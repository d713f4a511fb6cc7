/*
 * The host's kernels that go element by element or column by column: GELU and the
 * gradient of a bias.
 */
#include "kernels/nn/host/host_nn.h"

/* Elements below which a piece is not worth a task of its own. */
#define ZR_GELU_PIECE ((size_t)8192)
#define ZR_COLUMN_PIECE 64

/* ---- GELU ------------------------------------------------------------------------- */

static void gelu_task(void *context, size_t index) {
    const zr_host_nn_job_t *job = context;
    const zr_nn_gelu_t *args = job->args;
    size_t first = zr_host_nn_part(args->n_elems, job->n_tasks, index, 16);
    size_t n = zr_host_nn_part(args->n_elems, job->n_tasks, index + 1, 16) - first;
    float *out = (float *)args->out + first;
    const float *x = (const float *)args->x + first;
    if (args->dy == NULL)
        job->loops->gelu(out, x, n);
    else
        job->loops->gelu_backward(out, (const float *)args->dy + first, x, n);
}

zr_status_t zr_host_nn_gelu(zr_stream_t *stream, const void *arguments, void *workspace) {
    const zr_nn_gelu_t *args = arguments;
    const char *name = args->dy == NULL ? "gelu" : "gelu_backward";
    (void)workspace;
    ZR_TRY(zr_host_nn_check_activations(stream, name, args->activation_dtype));
    return zr_host_nn_run_tasks(
        stream, args, zr_host_nn_n_tasks(stream->device, args->n_elems / ZR_GELU_PIECE + 1),
        gelu_task, name);
}

/* ---- bias -------------------------------------------------------------------------- */

static void bias_grad_task(void *context, size_t index) {
    const zr_host_nn_job_t *job = context;
    const zr_nn_bias_grad_t *args = job->args;
    size_t first = index * ZR_COLUMN_PIECE;
    size_t n = zr_host_nn_min(ZR_COLUMN_PIECE, args->n_columns - first);
    size_t ld = args->ld_dy != 0 ? args->ld_dy : args->n_columns;
    float sum[ZR_COLUMN_PIECE] = {0};
    for (size_t row = 0; row < args->n_rows; row++)
        job->loops->add(sum, (const float *)args->dy + row * ld + first, n);
    zr_host_nn_store_gradient(job->loops, &args->dbias, args->param_dtype, first, sum, n);
}

zr_status_t zr_host_nn_bias_grad(zr_stream_t *stream, const void *arguments, void *workspace) {
    const zr_nn_bias_grad_t *args = arguments;
    (void)workspace;
    ZR_TRY(zr_host_nn_check_activations(stream, "bias_grad", args->activation_dtype));
    return zr_host_nn_run_tasks(stream, args,
                                (args->n_columns + ZR_COLUMN_PIECE - 1) / ZR_COLUMN_PIECE,
                                bias_grad_task, "bias_grad");
}
