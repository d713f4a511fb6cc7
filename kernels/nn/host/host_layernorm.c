/*
 * Layer normalisation on the host, and that of the root mean square: rows are shared among
 * threads; the gradients of weight and bias are sums over rows, so for them columns are.
 */
#include "kernels/nn/host/host_nn.h"

#define ZR_COLUMN_PIECE 64

/* ---- forward ----------------------------------------------------------------------- */

static void layernorm_task(void *context, size_t index) {
    const zr_host_nn_job_t *job = context;
    const zr_nn_layernorm_t *args = job->args;
    const zr_host_nn_loops_t *loops = job->loops;
    size_t first = zr_host_nn_part(args->n_rows, job->n_tasks, index, 1);
    size_t last = zr_host_nn_part(args->n_rows, job->n_tasks, index + 1, 1);
    const float *x = args->x;
    float *y = args->y;
    for (size_t row = first; row < last; row++)
        loops->row_statistics(x + row * args->channels, args->channels, args->epsilon,
                              args->is_rms ? NULL : &args->mean[row], &args->rstd[row]);

    float weight_block[ZR_HOST_NN_BLOCK], bias_block[ZR_HOST_NN_BLOCK];
    for (size_t column = 0; column < args->channels; column += ZR_HOST_NN_BLOCK) {
        size_t n = zr_host_nn_min(ZR_HOST_NN_BLOCK, args->channels - column);
        const float *weight =
            zr_host_nn_widen(loops, args->weight, args->param_dtype, column, n, weight_block);
        const float *bias = args->is_rms ? NULL
                                         : zr_host_nn_widen(loops, args->bias, args->param_dtype,
                                                            column, n, bias_block);
        for (size_t row = first; row < last; row++) {
            size_t offset = row * args->channels + column;
            loops->normalise(y + offset, x + offset, args->is_rms ? 0.0f : args->mean[row],
                             args->rstd[row], weight, bias, n);
        }
    }
}

zr_status_t zr_host_nn_layernorm(zr_stream_t *stream, const void *arguments, void *workspace) {
    const zr_nn_layernorm_t *args = arguments;
    (void)workspace;
    ZR_TRY(zr_host_nn_check_activations(stream, "layernorm", args->activation_dtype));
    return zr_host_nn_run_tasks(stream, args, zr_host_nn_n_tasks(stream->device, args->n_rows),
                                layernorm_task, "layernorm");
}

/* ---- backward ----------------------------------------------------------------------- */

static float mean_of(const zr_nn_layernorm_backward_t *args, size_t row) {
    return args->is_rms ? 0.0f : args->mean[row];
}

typedef struct layernorm_backward_job {
    zr_host_nn_job_t base;
    const zr_nn_layernorm_backward_t *args;
    const float *weight; /* fp32 */
} layernorm_backward_job_t;

static void rows_task(void *context, size_t index) {
    layernorm_backward_job_t *job = context;
    const zr_nn_layernorm_backward_t *args = job->args;
    size_t first = zr_host_nn_part(args->n_rows, job->base.n_tasks, index, 1);
    size_t last = zr_host_nn_part(args->n_rows, job->base.n_tasks, index + 1, 1);
    for (size_t row = first; row < last; row++) {
        size_t offset = row * args->channels;
        job->base.loops->normalise_backward(
            (float *)args->dx + offset, args->accumulate_dx, (const float *)args->dy + offset,
            (const float *)args->x + offset, mean_of(args, row), args->rstd[row], args->is_rms,
            job->weight, args->channels);
    }
}

static void columns_task(void *context, size_t index) {
    layernorm_backward_job_t *job = context;
    const zr_nn_layernorm_backward_t *args = job->args;
    const zr_host_nn_loops_t *loops = job->base.loops;
    size_t first = index * ZR_COLUMN_PIECE;
    size_t n = zr_host_nn_min(ZR_COLUMN_PIECE, args->channels - first);
    float dweight[ZR_COLUMN_PIECE] = {0}, dbias[ZR_COLUMN_PIECE] = {0};
    for (size_t row = 0; row < args->n_rows; row++) {
        size_t offset = row * args->channels + first;
        loops->normalise_weights_backward(dweight, dbias, (const float *)args->dy + offset,
                                          (const float *)args->x + offset, mean_of(args, row),
                                          args->rstd[row], n);
    }
    if (args->dweight.data != NULL)
        zr_host_nn_store_gradient(loops, &args->dweight, args->param_dtype, first, dweight, n);
    if (args->dbias.data != NULL)
        zr_host_nn_store_gradient(loops, &args->dbias, args->param_dtype, first, dbias, n);
}

size_t zr_host_nn_layernorm_backward_bytes(const zr_device_t *device, const void *arguments) {
    const zr_nn_layernorm_backward_t *args = arguments;
    (void)device;
    return args->param_dtype == ZR_DTYPE_F32 ? 0 : args->channels * sizeof(float);
}

zr_status_t zr_host_nn_layernorm_backward(zr_stream_t *stream, const void *arguments,
                                          void *workspace) {
    const zr_nn_layernorm_backward_t *args = arguments;
    ZR_TRY(zr_host_nn_check_activations(stream, "layernorm_backward", args->activation_dtype));
    layernorm_backward_job_t job = {.base = {.loops = zr_host_nn_loops(stream->device)},
                                    .args = args};
    if (args->n_rows > 0) {
        job.weight = zr_host_nn_widen(job.base.loops, args->weight, args->param_dtype, 0,
                                      args->channels, workspace);
        job.base.n_tasks = zr_host_nn_n_tasks(stream->device, args->n_rows);
        ZR_TRY(zr_host_nn_run(stream, &job.base, rows_task, "layernorm_backward"));
    }
    if (args->dweight.data == NULL && args->dbias.data == NULL)
        return ZR_OK;
    job.base.n_tasks = (args->channels + ZR_COLUMN_PIECE - 1) / ZR_COLUMN_PIECE;
    return zr_host_nn_run(stream, &job.base, columns_task, "layernorm_backward");
}
