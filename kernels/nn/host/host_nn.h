/*
 * What the files of the host's transformer kernels share.
 *
 * A kernel splits its work into tasks for the device's threads. The split depends on
 * sizes and the number of threads alone, and no two tasks write the same element, so
 * results are the same in every run. Within a task, matrix products run on the task's
 * own thread.
 */
#ifndef ZR_KERNELS_NN_HOST_HOST_NN_H
#define ZR_KERNELS_NN_HOST_HOST_NN_H

#include <stdatomic.h>

#include "kernels/device_backend.h"
#include "kernels/nn/host/host_nn_loops.h"
#include "kernels/nn/nn.h"

/* ---- tasks ------------------------------------------------------------------------ */

/* What every job carries: its tasks may fail, and the kernel then reports one of them. */
typedef struct zr_host_nn_job {
    const zr_host_nn_loops_t *loops;
    size_t n_tasks;
    atomic_int status; /* of a task that failed, as oneDNN gave it; 0 when none did */
} zr_host_nn_job_t;

/** The loops for a host device's instruction set. */
const zr_host_nn_loops_t *zr_host_nn_loops(const zr_device_t *device);

/** Run a job, whose first member is `job`, and report the failure of a task. */
ZR_NODISCARD zr_status_t zr_host_nn_run(zr_stream_t *stream, zr_host_nn_job_t *job,
                                        void (*task)(void *job, size_t index), const char *kernel);

/** How many tasks of equal cost to make of n_units of work: at most four for each thread. */
size_t zr_host_nn_n_tasks(const zr_device_t *device, size_t n_units);

/** Where part `index` of `n_parts` of [0, n) starts; parts begin at multiples of `align`. */
static inline size_t zr_host_nn_part(size_t n, size_t n_parts, size_t index, size_t align) {
    size_t n_blocks = (n + align - 1) / align;
    size_t block =
        n_blocks / n_parts * index + (n_blocks % n_parts < index ? n_blocks % n_parts : index);
    return block * align < n ? block * align : n;
}

static inline size_t zr_host_nn_min(size_t a, size_t b) {
    return a < b ? a : b;
}

/** Refuse activations that are not F32: ZR_ERR_UNSUPPORTED. */
ZR_NODISCARD zr_status_t zr_host_nn_check_activations(const zr_stream_t *stream, const char *kernel,
                                                      zr_dtype_t dtype);

/* ---- parameters ---------------------------------------------------------------------- */

/* Columns that a kernel handles at a time when it needs their parameters in fp32 on its stack. */
#define ZR_HOST_NN_BLOCK 256

/** Elements [first, first + n) of a parameter as fp32: in place, or widened into `buffer`. */
const float *zr_host_nn_widen(const zr_host_nn_loops_t *loops, const void *param, zr_dtype_t dtype,
                              size_t first, size_t n, float *buffer);

/** Write (accumulate: add) n fp32 values at element `first` of a gradient, rounding once. */
void zr_host_nn_store_gradient(const zr_host_nn_loops_t *loops, const zr_nn_gradient_t *gradient,
                               zr_dtype_t dtype, size_t first, const float *values, size_t n);

/** Make elements [first, first + n) of a gradient zero, unless it accumulates. */
void zr_host_nn_clear_gradient(const zr_nn_gradient_t *gradient, zr_dtype_t dtype, size_t first,
                               size_t n);

/* ---- matrix products -------------------------------------------------------------------- */

/* A row-major matrix and the distance between its rows, in elements. */
typedef struct zr_host_matrix {
    const float *data;
    size_t ld;
    bool transpose;
} zr_host_matrix_t;

/**
 * c = alpha op(a) op(b) + beta c on the calling thread alone; k = 0 is fine.
 *
 * @return 0, or oneDNN's status
 */
int zr_host_sgemm(size_t m, size_t n, size_t k, float alpha, zr_host_matrix_t a, zr_host_matrix_t b,
                  float beta, float *c, size_t c_ld);

/* ---- entries of the backend's table --------------------------------------------------------- */

zr_status_t zr_host_nn_matmul(zr_stream_t *stream, const zr_nn_matmul_t *args, void *workspace);
size_t zr_host_nn_matmul_workspace_bytes(const zr_device_t *device, const zr_nn_matmul_t *args);
zr_status_t zr_host_nn_bias_grad(zr_stream_t *stream, const zr_nn_bias_grad_t *args,
                                 void *workspace);
zr_status_t zr_host_nn_layernorm(zr_stream_t *stream, const zr_nn_layernorm_t *args);
zr_status_t zr_host_nn_layernorm_backward(zr_stream_t *stream,
                                          const zr_nn_layernorm_backward_t *args, void *workspace);
size_t zr_host_nn_layernorm_backward_workspace_bytes(const zr_device_t *device,
                                                     const zr_nn_layernorm_backward_t *args);
zr_status_t zr_host_nn_gelu(zr_stream_t *stream, void *y, const void *x, zr_dtype_t dtype,
                            size_t n_elems);
zr_status_t zr_host_nn_gelu_backward(zr_stream_t *stream, void *dx, const void *dy, const void *x,
                                     zr_dtype_t dtype, size_t n_elems);
zr_status_t zr_host_nn_attention(zr_stream_t *stream, const zr_nn_attention_t *args,
                                 void *workspace);
size_t zr_host_nn_attention_workspace_bytes(const zr_device_t *device,
                                            const zr_nn_attention_t *args);
zr_status_t zr_host_nn_attention_backward(zr_stream_t *stream,
                                          const zr_nn_attention_backward_t *args, void *workspace);
size_t zr_host_nn_attention_backward_workspace_bytes(const zr_device_t *device,
                                                     const zr_nn_attention_backward_t *args);
zr_status_t zr_host_nn_embedding(zr_stream_t *stream, const zr_nn_embedding_t *args);
zr_status_t zr_host_nn_embedding_backward(zr_stream_t *stream,
                                          const zr_nn_embedding_backward_t *args, void *workspace);
size_t zr_host_nn_embedding_backward_workspace_bytes(const zr_device_t *device,
                                                     const zr_nn_embedding_backward_t *args);
zr_status_t zr_host_nn_lm_head(zr_stream_t *stream, const zr_nn_lm_head_t *args, void *workspace);
size_t zr_host_nn_lm_head_workspace_bytes(const zr_device_t *device, const zr_nn_lm_head_t *args);

extern const zr_nn_backend_t zr_host_nn_backend;
/** Of the device that stands for others (kernels/nn/sim/). */
extern const zr_nn_backend_t zr_sim_nn_backend;

#endif
