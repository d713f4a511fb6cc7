/*
 * The transformer's kernels of the late device: what late_device.c and late_nn.c share.
 */
#ifndef ZR_TESTS_COMMON_LATE_NN_H
#define ZR_TESTS_COMMON_LATE_NN_H

#include "kernels/device_backend.h"
#include "kernels/nn/nn.h"

typedef struct late_gelu {
    void *out;
    const void *dy, *x; /* dy NULL: forward */
    zr_dtype_t dtype;
    size_t n_elems;
} late_gelu_t;

/* Arguments as they were when a kernel was queued. */
typedef struct late_nn_args {
    union {
        zr_nn_matmul_t matmul;
        zr_nn_bias_grad_t bias_grad;
        zr_nn_layernorm_t layernorm;
        zr_nn_layernorm_backward_t layernorm_backward;
        late_gelu_t gelu;
        zr_nn_attention_t attention;
        zr_nn_attention_backward_t attention_backward;
        zr_nn_embedding_t embedding;
        zr_nn_embedding_backward_t embedding_backward;
        zr_nn_lm_head_t lm_head;
    };
    void *workspace;
} late_nn_args_t;

typedef zr_status_t (*late_nn_run_fn)(zr_stream_t *host_stream, const late_nn_args_t *args);

/** Queue a kernel: `run` gets the host's stream when its time has come. */
zr_status_t late_queue_nn(zr_stream_t *stream, late_nn_run_fn run, const late_nn_args_t *args);
/** The host device that does a late device's work. */
const zr_device_t *late_host_of(const zr_device_t *device);

extern const zr_nn_backend_t late_nn_backend;

#endif
