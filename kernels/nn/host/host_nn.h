/*
 * What the files of the host's transformer kernels share.
 *
 * A kernel splits its work into tasks for the device's threads. The split depends on
 * sizes and the number of threads alone, and no two tasks write the same element, so
 * results are the same in every run. Within a task, matrix products run on the task's
 * own thread.
 */
#pragma once

#include <stdatomic.h>

#include "kernels/device_backend.h"
#include "kernels/nn/host/host_nn_loops.h"
#include "kernels/nn/nn.h"

/* ---- tasks ------------------------------------------------------------------------ */

/* What every job carries: its tasks may fail, and the kernel then reports one of them. */
typedef struct zr_host_nn_job {
    const zr_host_nn_loops_t *loops;
    size_t n_tasks;
    const void *args;  /* of the kernel, where its tasks need nothing else */
    atomic_int status; /* of a task that failed, as oneDNN gave it; 0 when none did */
} zr_host_nn_job_t;

/** The loops for a host device's instruction set. */
const zr_host_nn_loops_t *zr_host_nn_loops(const zr_device_t *device);

/** Run a job, whose first member is `job`, and report the failure of a task. */
ZR_NODISCARD zr_status_t zr_host_nn_run(zr_stream_t *stream, zr_host_nn_job_t *job,
                                        void (*task)(void *job, size_t index), const char *kernel);

/** Run the tasks of a kernel that need its arguments alone; they get a zr_host_nn_job_t. */
ZR_NODISCARD zr_status_t zr_host_nn_run_tasks(zr_stream_t *stream, const void *args, size_t n_tasks,
                                              void (*task)(void *job, size_t index),
                                              const char *kernel);

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

/** Refuse document starts that are not (zr_nn_qkv_shape_t), with ZR_ERR_ARGUMENT; NULL is fine. */
ZR_NODISCARD zr_status_t zr_host_nn_check_documents(const zr_stream_t *stream, const char *kernel,
                                                    const zr_nn_qkv_shape_t *shape);

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

/* ---- entries of the backend's tables ---------------------------------------------------- */

zr_nn_run_fn zr_host_nn_matmul, zr_host_nn_bias_grad, zr_host_nn_layernorm,
    zr_host_nn_layernorm_backward, zr_host_nn_gelu /* both */, zr_host_nn_swiglu,
    zr_host_nn_swiglu_backward, zr_host_nn_rotary, zr_host_nn_rotary_backward, zr_host_nn_attention,
    zr_host_nn_attention_backward, zr_host_nn_embedding, zr_host_nn_embedding_backward,
    zr_host_nn_lm_head;
zr_nn_bytes_fn zr_host_nn_matmul_bytes, zr_host_nn_layernorm_backward_bytes,
    zr_host_nn_attention_bytes, zr_host_nn_attention_backward_bytes,
    zr_host_nn_embedding_backward_bytes, zr_host_nn_lm_head_bytes;

extern const zr_nn_backend_t zr_host_nn_backend;
/** Of the device that stands for others (kernels/nn/sim/). */
extern const zr_nn_backend_t zr_sim_nn_backend;

