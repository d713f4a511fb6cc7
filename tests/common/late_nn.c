/*
 * See late_nn.h: every kernel is queued with a copy of its arguments, and run by the host's.
 */
#include "tests/common/late_nn.h"

static const zr_nn_backend_t *host_nn(const zr_device_t *device) {
    return zr_nn_backend_of(late_host_of(device));
}

static zr_status_t late_activation_dtype(const zr_device_t *device, zr_dtype_t param_dtype,
                                         zr_dtype_t *dtype_p) {
    return host_nn(device)->activation_dtype(late_host_of(device), param_dtype, dtype_p);
}

/* ---- run by the host ------------------------------------------------------------------- */

static zr_status_t run_matmul(zr_stream_t *stream, const late_nn_args_t *args) {
    return zr_nn_backend_of(stream->device)->matmul(stream, &args->matmul, args->workspace);
}

static zr_status_t run_bias_grad(zr_stream_t *stream, const late_nn_args_t *args) {
    return zr_nn_backend_of(stream->device)->bias_grad(stream, &args->bias_grad, args->workspace);
}

static zr_status_t run_layernorm(zr_stream_t *stream, const late_nn_args_t *args) {
    return zr_nn_backend_of(stream->device)->layernorm(stream, &args->layernorm);
}

static zr_status_t run_layernorm_backward(zr_stream_t *stream, const late_nn_args_t *args) {
    return zr_nn_backend_of(stream->device)
        ->layernorm_backward(stream, &args->layernorm_backward, args->workspace);
}

static zr_status_t run_gelu(zr_stream_t *stream, const late_nn_args_t *args) {
    const late_gelu_t *gelu = &args->gelu;
    const zr_nn_backend_t *nn = zr_nn_backend_of(stream->device);
    if (gelu->dy == NULL)
        return nn->gelu(stream, gelu->out, gelu->x, gelu->dtype, gelu->n_elems);
    return nn->gelu_backward(stream, gelu->out, gelu->dy, gelu->x, gelu->dtype, gelu->n_elems);
}

static zr_status_t run_attention(zr_stream_t *stream, const late_nn_args_t *args) {
    return zr_nn_backend_of(stream->device)->attention(stream, &args->attention, args->workspace);
}

static zr_status_t run_attention_backward(zr_stream_t *stream, const late_nn_args_t *args) {
    return zr_nn_backend_of(stream->device)
        ->attention_backward(stream, &args->attention_backward, args->workspace);
}

static zr_status_t run_embedding(zr_stream_t *stream, const late_nn_args_t *args) {
    return zr_nn_backend_of(stream->device)->embedding(stream, &args->embedding);
}

static zr_status_t run_embedding_backward(zr_stream_t *stream, const late_nn_args_t *args) {
    return zr_nn_backend_of(stream->device)
        ->embedding_backward(stream, &args->embedding_backward, args->workspace);
}

static zr_status_t run_lm_head(zr_stream_t *stream, const late_nn_args_t *args) {
    return zr_nn_backend_of(stream->device)->lm_head(stream, &args->lm_head, args->workspace);
}

/* ---- queued --------------------------------------------------------------------------------- */

static zr_status_t late_matmul(zr_stream_t *stream, const zr_nn_matmul_t *args, void *workspace) {
    return late_queue_nn(stream, run_matmul,
                         &(late_nn_args_t){.matmul = *args, .workspace = workspace});
}

static zr_status_t late_bias_grad(zr_stream_t *stream, const zr_nn_bias_grad_t *args,
                                  void *workspace) {
    return late_queue_nn(stream, run_bias_grad,
                         &(late_nn_args_t){.bias_grad = *args, .workspace = workspace});
}

static zr_status_t late_layernorm(zr_stream_t *stream, const zr_nn_layernorm_t *args) {
    return late_queue_nn(stream, run_layernorm, &(late_nn_args_t){.layernorm = *args});
}

static zr_status_t late_layernorm_backward(zr_stream_t *stream,
                                           const zr_nn_layernorm_backward_t *args,
                                           void *workspace) {
    return late_queue_nn(stream, run_layernorm_backward,
                         &(late_nn_args_t){.layernorm_backward = *args, .workspace = workspace});
}

static zr_status_t late_gelu(zr_stream_t *stream, void *y, const void *x, zr_dtype_t dtype,
                             size_t n_elems) {
    return late_queue_nn(
        stream, run_gelu,
        &(late_nn_args_t){.gelu = {.out = y, .x = x, .dtype = dtype, .n_elems = n_elems}});
}

static zr_status_t late_gelu_backward(zr_stream_t *stream, void *dx, const void *dy, const void *x,
                                      zr_dtype_t dtype, size_t n_elems) {
    return late_queue_nn(
        stream, run_gelu,
        &(late_nn_args_t){
            .gelu = {.out = dx, .dy = dy, .x = x, .dtype = dtype, .n_elems = n_elems}});
}

static zr_status_t late_attention(zr_stream_t *stream, const zr_nn_attention_t *args,
                                  void *workspace) {
    return late_queue_nn(stream, run_attention,
                         &(late_nn_args_t){.attention = *args, .workspace = workspace});
}

static zr_status_t late_attention_backward(zr_stream_t *stream,
                                           const zr_nn_attention_backward_t *args,
                                           void *workspace) {
    return late_queue_nn(stream, run_attention_backward,
                         &(late_nn_args_t){.attention_backward = *args, .workspace = workspace});
}

static zr_status_t late_embedding(zr_stream_t *stream, const zr_nn_embedding_t *args) {
    return late_queue_nn(stream, run_embedding, &(late_nn_args_t){.embedding = *args});
}

static zr_status_t late_embedding_backward(zr_stream_t *stream,
                                           const zr_nn_embedding_backward_t *args,
                                           void *workspace) {
    return late_queue_nn(stream, run_embedding_backward,
                         &(late_nn_args_t){.embedding_backward = *args, .workspace = workspace});
}

static zr_status_t late_lm_head(zr_stream_t *stream, const zr_nn_lm_head_t *args, void *workspace) {
    return late_queue_nn(stream, run_lm_head,
                         &(late_nn_args_t){.lm_head = *args, .workspace = workspace});
}

/* ---- workspaces ------------------------------------------------------------------------------ */

/* No kernel is without, as some are on the host and none on a GPU: each workspace is freed behind
 * its kernel, and late devices see whether it is. */
enum { MORE_BYTES = 1 };

static size_t matmul_bytes(const zr_device_t *device, const zr_nn_matmul_t *args) {
    return zr_nn_matmul_workspace_bytes(late_host_of(device), args) + MORE_BYTES;
}

static size_t bias_grad_bytes(const zr_device_t *device, const zr_nn_bias_grad_t *args) {
    return zr_nn_bias_grad_workspace_bytes(late_host_of(device), args) + MORE_BYTES;
}

static size_t layernorm_backward_bytes(const zr_device_t *device,
                                       const zr_nn_layernorm_backward_t *args) {
    return zr_nn_layernorm_backward_workspace_bytes(late_host_of(device), args) + MORE_BYTES;
}

static size_t attention_bytes(const zr_device_t *device, const zr_nn_attention_t *args) {
    return zr_nn_attention_workspace_bytes(late_host_of(device), args) + MORE_BYTES;
}

static size_t attention_backward_bytes(const zr_device_t *device,
                                       const zr_nn_attention_backward_t *args) {
    return zr_nn_attention_backward_workspace_bytes(late_host_of(device), args) + MORE_BYTES;
}

static size_t embedding_backward_bytes(const zr_device_t *device,
                                       const zr_nn_embedding_backward_t *args) {
    return zr_nn_embedding_backward_workspace_bytes(late_host_of(device), args) + MORE_BYTES;
}

static size_t lm_head_bytes(const zr_device_t *device, const zr_nn_lm_head_t *args) {
    return zr_nn_lm_head_workspace_bytes(late_host_of(device), args) + MORE_BYTES;
}

const zr_nn_backend_t late_nn_backend = {
    .name = "late",
    .activation_dtype = late_activation_dtype,
    .matmul = late_matmul,
    .bias_grad = late_bias_grad,
    .layernorm = late_layernorm,
    .layernorm_backward = late_layernorm_backward,
    .gelu = late_gelu,
    .gelu_backward = late_gelu_backward,
    .attention = late_attention,
    .attention_backward = late_attention_backward,
    .embedding = late_embedding,
    .embedding_backward = late_embedding_backward,
    .lm_head = late_lm_head,
    .matmul_workspace_bytes = matmul_bytes,
    .bias_grad_workspace_bytes = bias_grad_bytes,
    .layernorm_backward_workspace_bytes = layernorm_backward_bytes,
    .attention_workspace_bytes = attention_bytes,
    .attention_backward_workspace_bytes = attention_backward_bytes,
    .embedding_backward_workspace_bytes = embedding_backward_bytes,
    .lm_head_workspace_bytes = lm_head_bytes,
};
