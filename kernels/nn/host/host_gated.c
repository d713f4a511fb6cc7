/* SwiGLU on the host: rows are shared among threads. */
#include "kernels/nn/host/host_nn.h"

typedef struct swiglu_job {
    zr_host_nn_job_t base;
    size_t n_rows, channels;
    const float *gate_up;
    float *out;      /* y; backward the gradient of gate_up */
    const float *dy; /* NULL: forward */
} swiglu_job_t;

static void swiglu_task(void *context, size_t index) {
    const swiglu_job_t *job = context;
    const zr_host_nn_loops_t *loops = job->base.loops;
    size_t channels = job->channels;
    size_t last = zr_host_nn_part(job->n_rows, job->base.n_tasks, index + 1, 1);
    for (size_t row = zr_host_nn_part(job->n_rows, job->base.n_tasks, index, 1); row < last;
         row++) {
        const float *gate = job->gate_up + row * 2 * channels, *up = gate + channels;
        if (job->dy == NULL)
            loops->swiglu(job->out + row * channels, gate, up, channels);
        else
            loops->swiglu_backward(job->out + row * 2 * channels,
                                   job->out + row * 2 * channels + channels,
                                   job->dy + row * channels, gate, up, channels);
    }
}

static zr_status_t run_swiglu(zr_stream_t *stream, swiglu_job_t *job, zr_dtype_t dtype,
                              const char *kernel) {
    ZR_TRY(zr_host_nn_check_activations(stream, kernel, dtype));
    job->base.loops = zr_host_nn_loops(stream->device);
    job->base.n_tasks = zr_host_nn_n_tasks(stream->device, job->n_rows);
    return zr_host_nn_run(stream, &job->base, swiglu_task, kernel);
}

zr_status_t zr_host_nn_swiglu(zr_stream_t *stream, const void *arguments, void *workspace) {
    const zr_nn_swiglu_t *args = arguments;
    (void)workspace;
    swiglu_job_t job = {.n_rows = args->n_rows,
                        .channels = args->channels,
                        .gate_up = args->gate_up,
                        .out = args->y};
    return run_swiglu(stream, &job, args->activation_dtype, "swiglu");
}

zr_status_t zr_host_nn_swiglu_backward(zr_stream_t *stream, const void *arguments,
                                       void *workspace) {
    const zr_nn_swiglu_backward_t *args = arguments;
    (void)workspace;
    swiglu_job_t job = {.n_rows = args->n_rows,
                        .channels = args->channels,
                        .gate_up = args->gate_up,
                        .out = args->dgate_up,
                        .dy = args->dy};
    return run_swiglu(stream, &job, args->activation_dtype, "swiglu_backward");
}
