/*
 * A transformer's kernels on the simulated device: nothing to do, but workspaces and dtypes are
 * those of the device that it stands for. They come from that device's own functions, so that
 * they cannot differ.
 */
#include "kernels/nn/cuda_sizes.h"
#include "kernels/nn/host/host_nn.h"
#include "kernels/sim/sim_device.h"

/* ---- what the other device says ----------------------------------------------------------------
 */

static const zr_nn_backend_t cuda_queries = {
    .name = "cuda",
    .activation_dtype = zr_cuda_nn_activation_dtype,
    .matmul_workspace_bytes = zr_cuda_nn_matmul_workspace_bytes,
    .bias_grad_workspace_bytes = zr_cuda_nn_bias_grad_workspace_bytes,
    .layernorm_backward_workspace_bytes = zr_cuda_nn_layernorm_backward_workspace_bytes,
    .attention_workspace_bytes = zr_cuda_nn_attention_workspace_bytes,
    .attention_backward_workspace_bytes = zr_cuda_nn_attention_backward_workspace_bytes,
    .embedding_backward_workspace_bytes = zr_cuda_nn_embedding_backward_workspace_bytes,
    .lm_head_workspace_bytes = zr_cuda_nn_lm_head_workspace_bytes,
};

static const zr_nn_backend_t *queries(const zr_device_t *device) {
    return device->info.computes_on_host ? &zr_host_nn_backend : &cuda_queries;
}

static zr_status_t activation_dtype(const zr_device_t *device, zr_dtype_t param_dtype,
                                    zr_dtype_t *dtype_p) {
    return queries(device)->activation_dtype(device, param_dtype, dtype_p);
}

/* size_t zr_..._workspace_bytes(device, args), as the other device answers it. */
#define WORKSPACE_QUERY(kernel, args_t)                                                            \
    static size_t kernel##_workspace_bytes(const zr_device_t *device, const args_t *args) {        \
        const zr_nn_backend_t *nn = queries(device);                                               \
        return nn->kernel##_workspace_bytes == NULL ? 0                                            \
                                                    : nn->kernel##_workspace_bytes(device, args);  \
    }

WORKSPACE_QUERY(matmul, zr_nn_matmul_t)
WORKSPACE_QUERY(bias_grad, zr_nn_bias_grad_t)
WORKSPACE_QUERY(layernorm_backward, zr_nn_layernorm_backward_t)
WORKSPACE_QUERY(attention, zr_nn_attention_t)
WORKSPACE_QUERY(attention_backward, zr_nn_attention_backward_t)
WORKSPACE_QUERY(embedding_backward, zr_nn_embedding_backward_t)
WORKSPACE_QUERY(lm_head, zr_nn_lm_head_t)

/* ---- kernels ------------------------------------------------------------------------------------
 */

static zr_status_t matmul(zr_stream_t *stream, const zr_nn_matmul_t *args, void *workspace) {
    (void)stream, (void)args, (void)workspace;
    return ZR_OK;
}

static zr_status_t bias_grad(zr_stream_t *stream, const zr_nn_bias_grad_t *args, void *workspace) {
    (void)stream, (void)args, (void)workspace;
    return ZR_OK;
}

static zr_status_t layernorm(zr_stream_t *stream, const zr_nn_layernorm_t *args) {
    (void)stream, (void)args;
    return ZR_OK;
}

static zr_status_t layernorm_backward(zr_stream_t *stream, const zr_nn_layernorm_backward_t *args,
                                      void *workspace) {
    (void)stream, (void)args, (void)workspace;
    return ZR_OK;
}

static zr_status_t gelu(zr_stream_t *stream, void *y, const void *x, zr_dtype_t dtype,
                        size_t n_elems) {
    (void)stream, (void)y, (void)x, (void)dtype, (void)n_elems;
    return ZR_OK;
}

static zr_status_t gelu_backward(zr_stream_t *stream, void *dx, const void *dy, const void *x,
                                 zr_dtype_t dtype, size_t n_elems) {
    (void)stream, (void)dx, (void)dy, (void)x, (void)dtype, (void)n_elems;
    return ZR_OK;
}

static zr_status_t attention(zr_stream_t *stream, const zr_nn_attention_t *args, void *workspace) {
    (void)stream, (void)args, (void)workspace;
    return ZR_OK;
}

static zr_status_t attention_backward(zr_stream_t *stream, const zr_nn_attention_backward_t *args,
                                      void *workspace) {
    (void)stream, (void)args, (void)workspace;
    return ZR_OK;
}

static zr_status_t embedding(zr_stream_t *stream, const zr_nn_embedding_t *args) {
    (void)stream, (void)args;
    return ZR_OK;
}

static zr_status_t embedding_backward(zr_stream_t *stream, const zr_nn_embedding_backward_t *args,
                                      void *workspace) {
    (void)stream, (void)args, (void)workspace;
    return ZR_OK;
}

static zr_status_t lm_head(zr_stream_t *stream, const zr_nn_lm_head_t *args, void *workspace) {
    (void)stream, (void)args, (void)workspace;
    return ZR_OK;
}

const zr_nn_backend_t zr_sim_nn_backend = {
    .name = "sim",
    .activation_dtype = activation_dtype,
    .matmul = matmul,
    .bias_grad = bias_grad,
    .layernorm = layernorm,
    .layernorm_backward = layernorm_backward,
    .gelu = gelu,
    .gelu_backward = gelu_backward,
    .attention = attention,
    .attention_backward = attention_backward,
    .embedding = embedding,
    .embedding_backward = embedding_backward,
    .lm_head = lm_head,
    .matmul_workspace_bytes = matmul_workspace_bytes,
    .bias_grad_workspace_bytes = bias_grad_workspace_bytes,
    .layernorm_backward_workspace_bytes = layernorm_backward_workspace_bytes,
    .attention_workspace_bytes = attention_workspace_bytes,
    .attention_backward_workspace_bytes = attention_backward_workspace_bytes,
    .embedding_backward_workspace_bytes = embedding_backward_workspace_bytes,
    .lm_head_workspace_bytes = lm_head_workspace_bytes,
};
