/* Kernels that memory bounds: see memory_kernels.h. */
#include "examples/bench/memory_kernels.h"

#include <stdlib.h>
#include <string.h>

/* ---- the kernels ------------------------------------------------------------------------ */

zr_status_t memory_kernels_copy(void *context, zr_stream_t *stream) {
    memory_kernels_t *b = context;
    return zr_copy_async(stream, b->y, b->x, b->n_elems * zr_dtype_size(b->activation_dtype),
                         ZR_COPY_DEVICE_TO_DEVICE);
}

static zr_status_t queue_fill(void *context, zr_stream_t *stream) {
    memory_kernels_t *b = context;
    return zr_kernel_fill(stream, b->y, b->activation_dtype, b->n_elems, 0.5f);
}

static zr_status_t queue_scale(void *context, zr_stream_t *stream) {
    memory_kernels_t *b = context;
    return zr_kernel_scale(stream, b->y, b->activation_dtype, b->n_elems, 1.0f);
}

static zr_status_t queue_cast_down(void *context, zr_stream_t *stream) {
    memory_kernels_t *b = context;
    return zr_kernel_cast(stream, b->y, ZR_DTYPE_BF16, b->wide, ZR_DTYPE_F32, b->n_elems);
}

static zr_status_t queue_cast_up(void *context, zr_stream_t *stream) {
    memory_kernels_t *b = context;
    return zr_kernel_cast(stream, b->wide, ZR_DTYPE_F32, b->x, ZR_DTYPE_BF16, b->n_elems);
}

static zr_status_t queue_add(void *context, zr_stream_t *stream) {
    memory_kernels_t *b = context;
    return zr_kernel_add(stream, b->wide, ZR_DTYPE_F32, b->x, b->activation_dtype, b->n_elems);
}

static zr_status_t queue_sum(void *context, zr_stream_t *stream) {
    memory_kernels_t *b = context;
    const void *const sources[] = {b->x, b->dy};
    return zr_kernel_sum(stream, b->y, sources, 2, b->activation_dtype, b->n_elems);
}

static zr_status_t queue_norm(void *context, zr_stream_t *stream) {
    memory_kernels_t *b = context;
    return zr_kernel_sum_of_squares(stream, b->x, b->activation_dtype, b->n_elems, b->result,
                                    b->workspace.data);
}

static zr_status_t queue_layernorm(void *context, zr_stream_t *stream) {
    memory_kernels_t *b = context;
    const zr_nn_layernorm_t args = {.n_rows = b->n_rows,
                                    .channels = b->channels,
                                    .x = b->x,
                                    .weight = b->param,
                                    .bias = b->positions,
                                    .y = b->y,
                                    .mean = b->mean,
                                    .rstd = b->rstd,
                                    .epsilon = 1e-5f,
                                    .activation_dtype = b->activation_dtype,
                                    .param_dtype = b->param_dtype};
    return zr_nn_layernorm(stream, &args);
}

static zr_nn_layernorm_backward_t layernorm_backward(memory_kernels_t *b) {
    return (zr_nn_layernorm_backward_t){.n_rows = b->n_rows,
                                        .channels = b->channels,
                                        .dy = b->dy,
                                        .x = b->x,
                                        .weight = b->param,
                                        .mean = b->mean,
                                        .rstd = b->rstd,
                                        .dx = b->y,
                                        .dweight = {.data = b->param_grad},
                                        .dbias = {.data = b->positions},
                                        .activation_dtype = b->activation_dtype,
                                        .param_dtype = b->param_dtype};
}

static zr_status_t queue_layernorm_backward(void *context, zr_stream_t *stream) {
    memory_kernels_t *b = context;
    const zr_nn_layernorm_backward_t args = layernorm_backward(b);
    return zr_nn_layernorm_backward(stream, &args, b->workspace);
}

zr_status_t memory_kernels_gelu(void *context, zr_stream_t *stream) {
    memory_kernels_t *b = context;
    return zr_nn_gelu(stream, b->y, b->x, b->activation_dtype, b->n_elems);
}

static zr_status_t queue_gelu_backward(void *context, zr_stream_t *stream) {
    memory_kernels_t *b = context;
    return zr_nn_gelu_backward(stream, b->y, b->dy, b->x, b->activation_dtype, b->n_elems);
}

static zr_nn_bias_grad_t bias_grad(memory_kernels_t *b) {
    return (zr_nn_bias_grad_t){.n_rows = b->n_rows,
                               .n_columns = b->channels,
                               .dy = b->dy,
                               .dbias = {.data = b->param_grad},
                               .activation_dtype = b->activation_dtype,
                               .param_dtype = b->param_dtype};
}

static zr_status_t queue_bias_grad(void *context, zr_stream_t *stream) {
    memory_kernels_t *b = context;
    const zr_nn_bias_grad_t args = bias_grad(b);
    return zr_nn_bias_grad(stream, &args, b->workspace);
}

static zr_status_t queue_embedding(void *context, zr_stream_t *stream) {
    memory_kernels_t *b = context;
    const zr_nn_embedding_t args = {.batch = b->n_rows / b->n_positions,
                                    .seq = b->n_positions,
                                    .channels = b->channels,
                                    .vocab = b->vocab,
                                    .n_positions = b->n_positions,
                                    .tokens = b->tokens,
                                    .token_table = b->param,
                                    .position_table = b->positions,
                                    .out = b->y,
                                    .activation_dtype = b->activation_dtype,
                                    .param_dtype = b->param_dtype};
    return zr_nn_embedding(stream, &args);
}

static zr_nn_embedding_backward_t embedding_backward(memory_kernels_t *b) {
    return (zr_nn_embedding_backward_t){.batch = b->n_rows / b->n_positions,
                                        .seq = b->n_positions,
                                        .channels = b->channels,
                                        .vocab = b->vocab,
                                        .n_positions = b->n_positions,
                                        .tokens = b->tokens,
                                        .dout = b->dy,
                                        .dtoken_table = {.data = b->param_grad},
                                        .dposition_table = {.data = b->positions},
                                        .activation_dtype = b->activation_dtype,
                                        .param_dtype = b->param_dtype};
}

static zr_status_t queue_embedding_backward(void *context, zr_stream_t *stream) {
    memory_kernels_t *b = context;
    const zr_nn_embedding_backward_t args = embedding_backward(b);
    return zr_nn_embedding_backward(stream, &args, b->workspace);
}

const memory_kernel_t memory_kernels_all[N_MEMORY_KERNELS] = {
    {"fill", queue_fill, false},
    {"scale", queue_scale, false},
    {"cast to bf16", queue_cast_down, false},
    {"cast to fp32", queue_cast_up, false},
    {"add", queue_add, false},
    {"sum", queue_sum, true},
    {"sum of squares", queue_norm, true},
    {"layernorm", queue_layernorm, true},
    {"layernorm backward", queue_layernorm_backward,
     true}, /* of the means that the one before made */
    {"gelu", memory_kernels_gelu, false},
    {"gelu backward", queue_gelu_backward, false},
    {"bias gradient", queue_bias_grad, true},
    {"embedding", queue_embedding, false},
    {"embedding backward", queue_embedding_backward, false},
};

/* ---- memory ------------------------------------------------------------------------------- */

static size_t workspace_bytes(memory_kernels_t *b) {
    const zr_nn_layernorm_backward_t norm = layernorm_backward(b);
    const zr_nn_bias_grad_t bias = bias_grad(b);
    const zr_nn_embedding_backward_t embedding = embedding_backward(b);
    const size_t sizes[] = {zr_sum_of_squares_workspace_bytes(b->n_elems),
                            zr_nn_layernorm_backward_workspace_bytes(b->on->device, &norm),
                            zr_nn_bias_grad_workspace_bytes(b->on->device, &bias),
                            zr_nn_embedding_backward_workspace_bytes(b->on->device, &embedding)};
    size_t most = 0;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        most = sizes[i] > most ? sizes[i] : most;
    return most;
}

static zr_status_t take_arrays(memory_kernels_t *b) {
    size_t elems_bytes = b->n_elems * zr_dtype_size(b->activation_dtype);
    size_t row_bytes = b->channels * zr_dtype_size(b->param_dtype);
    ZR_TRY(ON_DEVICE_TAKE(b->on, {&b->x, elems_bytes}, {&b->dy, elems_bytes}, {&b->y, elems_bytes},
                          {&b->param, b->vocab * row_bytes}, {&b->param_grad, b->vocab * row_bytes},
                          {&b->positions, MEMORY_KERNELS_POSITIONS * row_bytes},
                          {&b->wide, b->n_elems * sizeof(float)},
                          {&b->mean, b->n_rows * sizeof(float)},
                          {&b->rstd, b->n_rows * sizeof(float)},
                          {&b->tokens, b->n_rows * sizeof(int32_t)}, {&b->result, sizeof(double)}));
    b->workspace.size_bytes = workspace_bytes(b);
    return ON_DEVICE_TAKE(b->on, {&b->workspace.data, b->workspace.size_bytes});
}

static zr_status_t draw_tokens(memory_kernels_t *b) {
    int32_t *tokens = malloc(b->n_rows * sizeof(*tokens));
    if (tokens == NULL)
        return zr_fail(zr_device_log(b->on->device), ZR_ERR_MEMORY, "no memory for %s",
                       zr_count_text(b->n_rows, "token").text);
    uint64_t state = 1;
    for (size_t i = 0; i < b->n_rows; i++) {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        tokens[i] = (int32_t)((state >> 33) % b->vocab);
    }
    zr_status_t status = zr_copy_async(b->on->stream, b->tokens, tokens,
                                       b->n_rows * sizeof(*tokens), ZR_COPY_HOST_TO_DEVICE);
    zr_status_t passed = zr_stream_synchronize(b->on->stream);
    free(tokens);
    return status != ZR_OK ? status : passed;
}

static zr_status_t fill_arrays(memory_kernels_t *b) {
    zr_stream_t *stream = b->on->stream;
    size_t table = b->vocab * b->channels;
    ZR_TRY(zr_kernel_fill(stream, b->x, b->activation_dtype, b->n_elems, 0.5f));
    ZR_TRY(zr_kernel_fill(stream, b->dy, b->activation_dtype, b->n_elems, 0.25f));
    ZR_TRY(zr_kernel_fill(stream, b->y, b->activation_dtype, b->n_elems, 0.0f));
    ZR_TRY(zr_kernel_fill(stream, b->wide, ZR_DTYPE_F32, b->n_elems, 0.0f));
    ZR_TRY(zr_kernel_fill(stream, b->param, b->param_dtype, table, 0.5f));
    ZR_TRY(zr_kernel_fill(stream, b->positions, b->param_dtype,
                          MEMORY_KERNELS_POSITIONS * b->channels, 0.5f));
    return draw_tokens(b);
}

zr_status_t memory_kernels_make(on_device_t *on, const memory_kernels_shape_t *shape,
                                memory_kernels_t *b) {
    *b = (memory_kernels_t){.on = on,
                            .n_rows = shape->n_rows,
                            .channels = shape->channels,
                            .vocab = shape->vocab,
                            .n_elems = shape->n_rows * shape->channels,
                            .param_dtype = shape->dtype};
    b->n_positions = b->n_rows < MEMORY_KERNELS_POSITIONS ? b->n_rows : MEMORY_KERNELS_POSITIONS;
    ZR_TRY(zr_nn_activation_dtype(on->device, b->param_dtype, &b->activation_dtype));
    ZR_TRY(take_arrays(b));
    return fill_arrays(b);
}
