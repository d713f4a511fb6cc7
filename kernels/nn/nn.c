/*
 * Dispatch of a transformer's kernels: arguments are checked and refusals logged here,
 * once, so that a backend sees valid calls only; costs are counted here, so that every
 * backend counts the same.
 */
#include "kernels/nn/nn.h"

#include <string.h>

#include "kernels/device_backend.h"

/* No matrix has more elements: byte counts in any dtype then fit a size_t. */
#define ZR_NN_MAX_ELEMS (SIZE_MAX / 16)

/* ---- checks ------------------------------------------------------------------ */

/* Who refuses, for the messages. */
typedef struct nn_call {
    const zr_log_t *log;
    const char *kernel;
} nn_call_t;

const zr_nn_backend_t *zr_nn_backend_of(const zr_device_t *device) {
    if (device->backend->nn != NULL)
        return device->backend->nn;
    for (size_t i = 0; zr_nn_backends[i] != NULL; i++)
        if (strcmp(zr_nn_backends[i]->name, device->backend->name) == 0)
            return zr_nn_backends[i];
    return NULL;
}

static zr_status_t find_backend(const zr_device_t *device, const char *kernel,
                                const zr_nn_backend_t **backend_p) {
    const zr_nn_backend_t *backend = zr_nn_backend_of(device);
    if (backend == NULL)
        return zr_fail(&device->log, ZR_ERR_UNSUPPORTED,
                       "%s: device \"%s\" has no kernels of a transformer", kernel,
                       device->info.backend);
    *backend_p = backend;
    return ZR_OK;
}

/* For a call on a stream. One beside the calling thread does not queue these: they wait here. */
static zr_status_t find_backend_of(zr_stream_t *stream, const char *kernel,
                                   const zr_nn_backend_t **backend_p) {
    ZR_TRY(find_backend(stream->device, kernel, backend_p));
    return zr_stream_takes_calls(stream) ? zr_stream_synchronize(stream) : ZR_OK;
}

static zr_status_t check_dtype(nn_call_t call, const char *what, zr_dtype_t dtype) {
    if (dtype != ZR_DTYPE_F32 && dtype != ZR_DTYPE_BF16)
        return zr_fail(call.log, ZR_ERR_ARGUMENT, "%s: %s are %s; only fp32 and bf16 are possible",
                       call.kernel, what, zr_dtype_name(dtype));
    return ZR_OK;
}

static zr_status_t check_dtypes(nn_call_t call, zr_dtype_t activation_dtype,
                                zr_dtype_t param_dtype) {
    ZR_TRY(check_dtype(call, "activations", activation_dtype));
    return check_dtype(call, "parameters", param_dtype);
}

static zr_status_t check_pointer(nn_call_t call, const char *what, const void *pointer) {
    if (pointer == NULL)
        return zr_fail(call.log, ZR_ERR_ARGUMENT, "%s: %s is NULL", call.kernel, what);
    return ZR_OK;
}

static zr_status_t check_product(nn_call_t call, const char *what, size_t rows, size_t columns) {
    if (columns != 0 && rows > ZR_NN_MAX_ELEMS / columns)
        return zr_fail(call.log, ZR_ERR_ARGUMENT,
                       "%s: %s of %zu x %zu elements is more than memory can hold", call.kernel,
                       what, rows, columns);
    return ZR_OK;
}

static zr_status_t check_workspace(nn_call_t call, zr_nn_workspace_t workspace, size_t needed) {
    if (workspace.size_bytes < needed || (needed > 0 && workspace.data == NULL))
        return zr_fail(call.log, ZR_ERR_ARGUMENT, "%s: a workspace of %s at %p, needs %zu",
                       call.kernel, zr_count_text(workspace.size_bytes, "byte").text,
                       workspace.data, needed);
    if (needed > 0 && (uintptr_t)workspace.data % ZR_NN_WORKSPACE_ALIGNMENT != 0)
        return zr_fail(call.log, ZR_ERR_ARGUMENT,
                       "%s: the workspace at %p is not aligned to %d bytes", call.kernel,
                       workspace.data, ZR_NN_WORKSPACE_ALIGNMENT);
    return ZR_OK;
}

static void charge(zr_stream_t *stream, nn_call_t call, zr_cost_t cost) {
    const zr_charge_t charge = {.kernel = call.kernel, .cost = cost, .rate = ZR_RATE_VECTOR};
    zr_stream_charge(stream, &charge);
}

/* The operations are those of products, at the rate of bf16 where any of the matrices is. */
static void charge_products(zr_stream_t *stream, nn_call_t call, zr_cost_t cost, zr_rate_t rate,
                            bool has_bf16) {
    const zr_charge_t charge = {.kernel = call.kernel,
                                .cost = cost,
                                .rate = rate,
                                .dtype = has_bf16 ? ZR_DTYPE_BF16 : ZR_DTYPE_F32};
    zr_stream_charge(stream, &charge);
}

zr_status_t zr_nn_activation_dtype(const zr_device_t *device, zr_dtype_t param_dtype,
                                   zr_dtype_t *dtype_p) {
    const zr_nn_backend_t *backend = NULL;
    nn_call_t call = {&device->log, "activation_dtype"};
    ZR_TRY(find_backend(device, call.kernel, &backend));
    ZR_TRY(check_dtype(call, "parameters", param_dtype));
    return backend->activation_dtype(device, param_dtype, dtype_p);
}

/* ---- matrix products ----------------------------------------------------------- */

zr_cost_t zr_nn_matmul_cost(const zr_nn_matmul_t *args) {
    double m = (double)args->m, n = (double)args->n, k = (double)args->k;
    double c_size = (double)zr_dtype_size(args->c_dtype);
    double n_c = 1.0; /* times that an array of c's shape is moved */
    n_c += (args->accumulate || args->addend != NULL) ? 1.0 : 0.0;
    n_c += (args->epilogue != ZR_NN_EPILOGUE_NONE && args->pre_gelu != NULL) ? 1.0 : 0.0;
    return (zr_cost_t){.operations = 2.0 * m * n * k,
                       .bytes = m * k * (double)zr_dtype_size(args->a_dtype) +
                                k * n * (double)zr_dtype_size(args->b_dtype) +
                                n_c * m * n * c_size};
}

size_t zr_nn_matmul_workspace_bytes(const zr_device_t *device, const zr_nn_matmul_t *args) {
    const zr_nn_backend_t *backend = zr_nn_backend_of(device);
    if (backend == NULL || backend->matmul_workspace_bytes == NULL)
        return 0;
    return backend->matmul_workspace_bytes(device, args);
}

static zr_status_t check_matmul_epilogue(nn_call_t call, const zr_nn_matmul_t *args) {
    bool plain = args->epilogue == ZR_NN_EPILOGUE_NONE;
    if (args->accumulate && (!plain || args->bias != NULL || args->addend != NULL))
        return zr_fail(call.log, ZR_ERR_ARGUMENT,
                       "%s: accumulate goes with no bias, addend or epilogue", call.kernel);
    if (!plain && args->addend != NULL)
        return zr_fail(call.log, ZR_ERR_ARGUMENT, "%s: an addend goes with no epilogue",
                       call.kernel);
    switch (args->epilogue) {
    case ZR_NN_EPILOGUE_NONE:
        return args->pre_gelu == NULL ? ZR_OK
                                      : zr_fail(call.log, ZR_ERR_ARGUMENT,
                                                "%s: pre_gelu without an epilogue", call.kernel);
    case ZR_NN_EPILOGUE_GELU:
        return ZR_OK;
    case ZR_NN_EPILOGUE_GELU_BACKWARD:
        return check_pointer(call, "pre_gelu", args->pre_gelu);
    }
    return zr_fail(call.log, ZR_ERR_ARGUMENT, "%s: epilogue %d is unknown", call.kernel,
                   (int)args->epilogue);
}

static zr_status_t check_matmul(nn_call_t call, const zr_nn_matmul_t *args) {
    ZR_TRY(check_dtype(call, "elements of a", args->a_dtype));
    ZR_TRY(check_dtype(call, "elements of b", args->b_dtype));
    ZR_TRY(check_dtype(call, "elements of c", args->c_dtype));
    if (args->bias != NULL)
        ZR_TRY(check_dtype(call, "elements of bias", args->bias_dtype));
    ZR_TRY(check_product(call, "a", args->m, args->k));
    ZR_TRY(check_product(call, "b", args->k, args->n));
    ZR_TRY(check_product(call, "c", args->m, args->n));
    ZR_TRY(check_matmul_epilogue(call, args));
    if (args->m == 0 || args->n == 0)
        return ZR_OK;
    if (args->k != 0) {
        ZR_TRY(check_pointer(call, "a", args->a));
        ZR_TRY(check_pointer(call, "b", args->b));
    }
    return check_pointer(call, "c", args->c);
}

zr_status_t zr_nn_matmul(zr_stream_t *stream, const zr_nn_matmul_t *args,
                         zr_nn_workspace_t workspace) {
    const zr_nn_backend_t *backend = NULL;
    nn_call_t call = {&stream->device->log, "matmul"};
    ZR_TRY(find_backend_of(stream, call.kernel, &backend));
    ZR_TRY(check_matmul(call, args));
    if (args->m == 0 || args->n == 0)
        return ZR_OK;
    ZR_TRY(check_workspace(call, workspace, zr_nn_matmul_workspace_bytes(stream->device, args)));
    zr_stream_work_begins(stream);
    ZR_TRY(backend->matmul(stream, args, workspace.data));
    charge_products(stream, call, zr_nn_matmul_cost(args), ZR_RATE_MATRIX,
                    args->a_dtype == ZR_DTYPE_BF16 || args->b_dtype == ZR_DTYPE_BF16 ||
                        args->c_dtype == ZR_DTYPE_BF16);
    return ZR_OK;
}

zr_cost_t zr_nn_bias_grad_cost(const zr_nn_bias_grad_t *args) {
    double n = (double)args->n_rows * (double)args->n_columns;
    return (zr_cost_t){.operations = n, .bytes = n * (double)zr_dtype_size(args->activation_dtype)};
}

size_t zr_nn_bias_grad_workspace_bytes(const zr_device_t *device, const zr_nn_bias_grad_t *args) {
    const zr_nn_backend_t *backend = zr_nn_backend_of(device);
    if (backend == NULL || backend->bias_grad_workspace_bytes == NULL)
        return 0;
    return backend->bias_grad_workspace_bytes(device, args);
}

zr_status_t zr_nn_bias_grad(zr_stream_t *stream, const zr_nn_bias_grad_t *args,
                            zr_nn_workspace_t workspace) {
    const zr_nn_backend_t *backend = NULL;
    nn_call_t call = {&stream->device->log, "bias_grad"};
    ZR_TRY(find_backend_of(stream, call.kernel, &backend));
    ZR_TRY(check_dtypes(call, args->activation_dtype, args->param_dtype));
    ZR_TRY(check_product(call, "dy", args->n_rows, args->n_columns));
    if (args->n_columns == 0)
        return ZR_OK;
    if (args->n_rows != 0)
        ZR_TRY(check_pointer(call, "dy", args->dy));
    ZR_TRY(check_pointer(call, "dbias", args->dbias.data));
    ZR_TRY(check_workspace(call, workspace, zr_nn_bias_grad_workspace_bytes(stream->device, args)));
    zr_stream_work_begins(stream);
    ZR_TRY(backend->bias_grad(stream, args, workspace.data));
    charge(stream, call, zr_nn_bias_grad_cost(args));
    return ZR_OK;
}

/* ---- layer normalisation ---------------------------------------------------------- */

zr_cost_t zr_nn_layernorm_cost(const zr_nn_layernorm_t *args) {
    double n = (double)args->n_rows * (double)args->channels;
    return (zr_cost_t){.operations = 8.0 * n,
                       .bytes = 2.0 * n * (double)zr_dtype_size(args->activation_dtype)};
}

zr_status_t zr_nn_layernorm(zr_stream_t *stream, const zr_nn_layernorm_t *args) {
    const zr_nn_backend_t *backend = NULL;
    nn_call_t call = {&stream->device->log, "layernorm"};
    ZR_TRY(find_backend_of(stream, call.kernel, &backend));
    ZR_TRY(check_dtypes(call, args->activation_dtype, args->param_dtype));
    ZR_TRY(check_product(call, "x", args->n_rows, args->channels));
    if (args->n_rows == 0 || args->channels == 0)
        return ZR_OK;
    ZR_TRY(check_pointer(call, "x", args->x));
    ZR_TRY(check_pointer(call, "weight", args->weight));
    ZR_TRY(check_pointer(call, "bias", args->bias));
    ZR_TRY(check_pointer(call, "y", args->y));
    ZR_TRY(check_pointer(call, "mean", args->mean));
    ZR_TRY(check_pointer(call, "rstd", args->rstd));
    zr_stream_work_begins(stream);
    ZR_TRY(backend->layernorm(stream, args));
    charge(stream, call, zr_nn_layernorm_cost(args));
    return ZR_OK;
}

zr_cost_t zr_nn_layernorm_backward_cost(const zr_nn_layernorm_backward_t *args) {
    double n = (double)args->n_rows * (double)args->channels;
    double n_moves = args->accumulate_dx ? 4.0 : 3.0;
    return (zr_cost_t){.operations = 14.0 * n,
                       .bytes = n_moves * n * (double)zr_dtype_size(args->activation_dtype)};
}

size_t zr_nn_layernorm_backward_workspace_bytes(const zr_device_t *device,
                                                const zr_nn_layernorm_backward_t *args) {
    const zr_nn_backend_t *backend = zr_nn_backend_of(device);
    if (backend == NULL || backend->layernorm_backward_workspace_bytes == NULL)
        return 0;
    return backend->layernorm_backward_workspace_bytes(device, args);
}

zr_status_t zr_nn_layernorm_backward(zr_stream_t *stream, const zr_nn_layernorm_backward_t *args,
                                     zr_nn_workspace_t workspace) {
    const zr_nn_backend_t *backend = NULL;
    nn_call_t call = {&stream->device->log, "layernorm_backward"};
    ZR_TRY(find_backend_of(stream, call.kernel, &backend));
    ZR_TRY(check_dtypes(call, args->activation_dtype, args->param_dtype));
    ZR_TRY(check_product(call, "x", args->n_rows, args->channels));
    if (args->channels == 0)
        return ZR_OK;
    if (args->n_rows != 0) {
        ZR_TRY(check_pointer(call, "dy", args->dy));
        ZR_TRY(check_pointer(call, "x", args->x));
        ZR_TRY(check_pointer(call, "weight", args->weight));
        ZR_TRY(check_pointer(call, "mean", args->mean));
        ZR_TRY(check_pointer(call, "rstd", args->rstd));
        ZR_TRY(check_pointer(call, "dx", args->dx));
    }
    ZR_TRY(check_workspace(call, workspace,
                           zr_nn_layernorm_backward_workspace_bytes(stream->device, args)));
    zr_stream_work_begins(stream);
    ZR_TRY(backend->layernorm_backward(stream, args, workspace.data));
    charge(stream, call, zr_nn_layernorm_backward_cost(args));
    return ZR_OK;
}

/* ---- GELU ---------------------------------------------------------------------------- */

zr_status_t zr_nn_gelu(zr_stream_t *stream, void *y, const void *x, zr_dtype_t activation_dtype,
                       size_t n_elems) {
    const zr_nn_backend_t *backend = NULL;
    nn_call_t call = {&stream->device->log, "gelu"};
    ZR_TRY(find_backend_of(stream, call.kernel, &backend));
    ZR_TRY(check_dtype(call, "activations", activation_dtype));
    ZR_TRY(check_product(call, "x", n_elems, 1));
    if (n_elems == 0)
        return ZR_OK;
    ZR_TRY(check_pointer(call, "y", y));
    ZR_TRY(check_pointer(call, "x", x));
    zr_stream_work_begins(stream);
    ZR_TRY(backend->gelu(stream, y, x, activation_dtype, n_elems));
    charge(stream, call,
           (zr_cost_t){.operations = 20.0 * (double)n_elems,
                       .bytes = 2.0 * (double)n_elems * (double)zr_dtype_size(activation_dtype)});
    return ZR_OK;
}

zr_status_t zr_nn_gelu_backward(zr_stream_t *stream, void *dx, const void *dy, const void *x,
                                zr_dtype_t activation_dtype, size_t n_elems) {
    const zr_nn_backend_t *backend = NULL;
    nn_call_t call = {&stream->device->log, "gelu_backward"};
    ZR_TRY(find_backend_of(stream, call.kernel, &backend));
    ZR_TRY(check_dtype(call, "activations", activation_dtype));
    ZR_TRY(check_product(call, "x", n_elems, 1));
    if (n_elems == 0)
        return ZR_OK;
    ZR_TRY(check_pointer(call, "dx", dx));
    ZR_TRY(check_pointer(call, "dy", dy));
    ZR_TRY(check_pointer(call, "x", x));
    zr_stream_work_begins(stream);
    ZR_TRY(backend->gelu_backward(stream, dx, dy, x, activation_dtype, n_elems));
    charge(stream, call,
           (zr_cost_t){.operations = 28.0 * (double)n_elems,
                       .bytes = 3.0 * (double)n_elems * (double)zr_dtype_size(activation_dtype)});
    return ZR_OK;
}

/* ---- attention ------------------------------------------------------------------------ */

/* Multiply-adds of one product over the causal half of the scores of all heads. */
static double causal_products(size_t batch, size_t seq, size_t heads, size_t head_size) {
    return (double)batch * (double)heads * (double)head_size * (double)seq * ((double)seq + 1.0) /
           2.0;
}

zr_cost_t zr_nn_attention_cost(const zr_nn_attention_t *args) {
    double n =
        (double)args->batch * (double)args->seq * (double)args->heads * (double)args->head_size;
    return (zr_cost_t){
        .operations = 4.0 * causal_products(args->batch, args->seq, args->heads, args->head_size),
        .bytes = 4.0 * n * (double)zr_dtype_size(args->activation_dtype)};
}

zr_cost_t zr_nn_attention_backward_cost(const zr_nn_attention_backward_t *args) {
    double n =
        (double)args->batch * (double)args->seq * (double)args->heads * (double)args->head_size;
    return (zr_cost_t){
        .operations = 10.0 * causal_products(args->batch, args->seq, args->heads, args->head_size),
        .bytes = 8.0 * n * (double)zr_dtype_size(args->activation_dtype)};
}

static zr_status_t check_attention_sizes(nn_call_t call, size_t batch, size_t seq, size_t heads,
                                         size_t head_size) {
    ZR_TRY(check_product(call, "a batch", batch, seq));
    ZR_TRY(check_product(call, "a row of heads", heads, head_size));
    ZR_TRY(check_product(call, "a row of qkv", heads * head_size, 3));
    ZR_TRY(check_product(call, "qkv", batch * seq, heads * head_size * 3));
    return check_product(call, "one head's scores", seq, seq);
}

size_t zr_nn_attention_workspace_bytes(const zr_device_t *device, const zr_nn_attention_t *args) {
    const zr_nn_backend_t *backend = zr_nn_backend_of(device);
    if (backend == NULL || backend->attention_workspace_bytes == NULL)
        return 0;
    return backend->attention_workspace_bytes(device, args);
}

zr_status_t zr_nn_attention(zr_stream_t *stream, const zr_nn_attention_t *args,
                            zr_nn_workspace_t workspace) {
    const zr_nn_backend_t *backend = NULL;
    nn_call_t call = {&stream->device->log, "attention"};
    ZR_TRY(find_backend_of(stream, call.kernel, &backend));
    ZR_TRY(check_dtype(call, "activations", args->activation_dtype));
    ZR_TRY(check_attention_sizes(call, args->batch, args->seq, args->heads, args->head_size));
    if (args->batch == 0 || args->seq == 0 || args->heads == 0 || args->head_size == 0)
        return ZR_OK;
    ZR_TRY(check_pointer(call, "qkv", args->qkv));
    ZR_TRY(check_pointer(call, "out", args->out));
    ZR_TRY(check_pointer(call, "log_sum", args->log_sum));
    ZR_TRY(check_workspace(call, workspace, zr_nn_attention_workspace_bytes(stream->device, args)));
    zr_stream_work_begins(stream);
    ZR_TRY(backend->attention(stream, args, workspace.data));
    charge_products(stream, call, zr_nn_attention_cost(args), ZR_RATE_ATTENTION,
                    args->activation_dtype == ZR_DTYPE_BF16);
    return ZR_OK;
}

size_t zr_nn_attention_backward_workspace_bytes(const zr_device_t *device,
                                                const zr_nn_attention_backward_t *args) {
    const zr_nn_backend_t *backend = zr_nn_backend_of(device);
    if (backend == NULL || backend->attention_backward_workspace_bytes == NULL)
        return 0;
    return backend->attention_backward_workspace_bytes(device, args);
}

zr_status_t zr_nn_attention_backward(zr_stream_t *stream, const zr_nn_attention_backward_t *args,
                                     zr_nn_workspace_t workspace) {
    const zr_nn_backend_t *backend = NULL;
    nn_call_t call = {&stream->device->log, "attention_backward"};
    ZR_TRY(find_backend_of(stream, call.kernel, &backend));
    ZR_TRY(check_dtype(call, "activations", args->activation_dtype));
    ZR_TRY(check_attention_sizes(call, args->batch, args->seq, args->heads, args->head_size));
    if (args->batch == 0 || args->seq == 0 || args->heads == 0 || args->head_size == 0)
        return ZR_OK;
    ZR_TRY(check_pointer(call, "qkv", args->qkv));
    ZR_TRY(check_pointer(call, "out", args->out));
    ZR_TRY(check_pointer(call, "log_sum", args->log_sum));
    ZR_TRY(check_pointer(call, "dout", args->dout));
    ZR_TRY(check_pointer(call, "dqkv", args->dqkv));
    ZR_TRY(check_workspace(call, workspace,
                           zr_nn_attention_backward_workspace_bytes(stream->device, args)));
    zr_stream_work_begins(stream);
    ZR_TRY(backend->attention_backward(stream, args, workspace.data));
    charge_products(stream, call, zr_nn_attention_backward_cost(args), ZR_RATE_ATTENTION,
                    args->activation_dtype == ZR_DTYPE_BF16);
    return ZR_OK;
}

/* ---- embedding --------------------------------------------------------------------------- */

zr_cost_t zr_nn_embedding_cost(const zr_nn_embedding_t *args) {
    double n = (double)args->batch * (double)args->seq * (double)args->channels;
    return (zr_cost_t){.operations = n,
                       .bytes = n * (double)(zr_dtype_size(args->activation_dtype) +
                                             2 * zr_dtype_size(args->param_dtype))};
}

zr_cost_t zr_nn_embedding_backward_cost(const zr_nn_embedding_backward_t *args) {
    double n = (double)args->batch * (double)args->seq * (double)args->channels;
    double bytes = 2.0 * n * (double)zr_dtype_size(args->activation_dtype);
    double row_bytes = (double)args->channels * (double)zr_dtype_size(args->param_dtype);
    if (args->dtoken_table.data != NULL && !args->dtoken_table.accumulate)
        bytes += (double)args->vocab * row_bytes;
    if (args->dposition_table.data != NULL && !args->dposition_table.accumulate)
        bytes += (double)args->n_positions * row_bytes;
    return (zr_cost_t){.operations = 2.0 * n, .bytes = bytes};
}

static zr_status_t check_embedding_sizes(nn_call_t call, size_t batch, size_t seq, size_t channels,
                                         size_t vocab, size_t n_positions) {
    ZR_TRY(check_product(call, "a batch", batch, seq));
    ZR_TRY(check_product(call, "activations", batch * seq, channels));
    ZR_TRY(check_product(call, "a table of tokens", vocab, channels));
    ZR_TRY(check_product(call, "a table of positions", n_positions, channels));
    if (seq > n_positions)
        return zr_fail(call.log, ZR_ERR_ARGUMENT, "%s: sequences of %s, but only %s", call.kernel,
                       zr_count_text(seq, "token").text,
                       zr_count_text(n_positions, "position").text);
    if (vocab > INT32_MAX || batch * seq > INT32_MAX)
        return zr_fail(call.log, ZR_ERR_ARGUMENT,
                       "%s: %s of %zu kinds; at most %d of each are possible", call.kernel,
                       zr_count_text(batch * seq, "token").text, vocab, INT32_MAX);
    return ZR_OK;
}

zr_status_t zr_nn_embedding(zr_stream_t *stream, const zr_nn_embedding_t *args) {
    const zr_nn_backend_t *backend = NULL;
    nn_call_t call = {&stream->device->log, "embedding"};
    ZR_TRY(find_backend_of(stream, call.kernel, &backend));
    ZR_TRY(check_dtypes(call, args->activation_dtype, args->param_dtype));
    ZR_TRY(check_embedding_sizes(call, args->batch, args->seq, args->channels, args->vocab,
                                 args->n_positions));
    if (args->batch == 0 || args->seq == 0 || args->channels == 0)
        return ZR_OK;
    ZR_TRY(check_pointer(call, "tokens", args->tokens));
    ZR_TRY(check_pointer(call, "token_table", args->token_table));
    ZR_TRY(check_pointer(call, "position_table", args->position_table));
    ZR_TRY(check_pointer(call, "out", args->out));
    zr_stream_work_begins(stream);
    ZR_TRY(backend->embedding(stream, args));
    charge(stream, call, zr_nn_embedding_cost(args));
    return ZR_OK;
}

size_t zr_nn_embedding_backward_workspace_bytes(const zr_device_t *device,
                                                const zr_nn_embedding_backward_t *args) {
    const zr_nn_backend_t *backend = zr_nn_backend_of(device);
    if (backend == NULL || backend->embedding_backward_workspace_bytes == NULL)
        return 0;
    return backend->embedding_backward_workspace_bytes(device, args);
}

zr_status_t zr_nn_embedding_backward(zr_stream_t *stream, const zr_nn_embedding_backward_t *args,
                                     zr_nn_workspace_t workspace) {
    const zr_nn_backend_t *backend = NULL;
    nn_call_t call = {&stream->device->log, "embedding_backward"};
    ZR_TRY(find_backend_of(stream, call.kernel, &backend));
    ZR_TRY(check_dtypes(call, args->activation_dtype, args->param_dtype));
    ZR_TRY(check_embedding_sizes(call, args->batch, args->seq, args->channels, args->vocab,
                                 args->n_positions));
    if (args->channels == 0)
        return ZR_OK;
    if (args->batch * args->seq != 0) {
        ZR_TRY(check_pointer(call, "tokens", args->tokens));
        ZR_TRY(check_pointer(call, "dout", args->dout));
    }
    ZR_TRY(check_workspace(call, workspace,
                           zr_nn_embedding_backward_workspace_bytes(stream->device, args)));
    zr_stream_work_begins(stream);
    ZR_TRY(backend->embedding_backward(stream, args, workspace.data));
    charge(stream, call, zr_nn_embedding_backward_cost(args));
    return ZR_OK;
}

/* ---- language model head -------------------------------------------------------------------- */

static bool lm_head_wants_gradients(const zr_nn_lm_head_t *args) {
    return args->dx != NULL || args->dweight.data != NULL;
}

zr_cost_t zr_nn_lm_head_cost(const zr_nn_lm_head_t *args) {
    double product = 2.0 * (double)args->n_rows * (double)args->channels * (double)args->vocab;
    double weight_bytes =
        (double)args->vocab * (double)args->channels * (double)zr_dtype_size(args->param_dtype);
    double x_bytes = (double)args->n_rows * (double)args->channels *
                     (double)zr_dtype_size(args->activation_dtype);
    zr_cost_t cost = {.operations = product, .bytes = weight_bytes + x_bytes};
    if (!lm_head_wants_gradients(args))
        return cost;
    if (args->vocab > args->vocab_chunk) { /* the chunks before the last, once more */
        size_t last = args->vocab % args->vocab_chunk;
        last = last == 0 ? args->vocab_chunk : last;
        cost.operations += product * (1.0 - (double)last / (double)args->vocab);
        cost.bytes += weight_bytes;
    }
    if (args->dx != NULL) {
        cost.operations += product;
        cost.bytes += x_bytes;
    }
    if (args->dweight.data != NULL) {
        cost.operations += product;
        cost.bytes += weight_bytes * (args->dweight.accumulate ? 2.0 : 1.0);
    }
    return cost;
}

size_t zr_nn_lm_head_workspace_bytes(const zr_device_t *device, const zr_nn_lm_head_t *args) {
    const zr_nn_backend_t *backend = zr_nn_backend_of(device);
    if (backend == NULL || backend->lm_head_workspace_bytes == NULL)
        return 0;
    return backend->lm_head_workspace_bytes(device, args);
}

static zr_status_t check_lm_head(nn_call_t call, const zr_nn_lm_head_t *args) {
    ZR_TRY(check_dtypes(call, args->activation_dtype, args->param_dtype));
    ZR_TRY(check_product(call, "x", args->n_rows, args->channels));
    ZR_TRY(check_product(call, "weight", args->vocab, args->channels));
    if (args->vocab > INT32_MAX || (args->vocab == 0 && args->n_rows != 0))
        return zr_fail(call.log, ZR_ERR_ARGUMENT, "%s: a vocabulary of %zu; 1 to %d are possible",
                       call.kernel, args->vocab, INT32_MAX);
    if (args->vocab_chunk == 0)
        return zr_fail(call.log, ZR_ERR_ARGUMENT, "%s: vocab_chunk is 0", call.kernel);
    size_t chunk = args->vocab_chunk < args->vocab ? args->vocab_chunk : args->vocab;
    ZR_TRY(check_product(call, "a chunk of logits", args->n_rows, chunk));
    if (args->channels == 0)
        return zr_fail(call.log, ZR_ERR_ARGUMENT, "%s: 0 channels", call.kernel);
    ZR_TRY(check_pointer(call, "loss", args->loss));
    if (args->n_rows == 0)
        return ZR_OK;
    ZR_TRY(check_pointer(call, "x", args->x));
    ZR_TRY(check_pointer(call, "weight", args->weight));
    return check_pointer(call, "targets", args->targets);
}

zr_status_t zr_nn_lm_head(zr_stream_t *stream, const zr_nn_lm_head_t *args,
                          zr_nn_workspace_t workspace) {
    const zr_nn_backend_t *backend = NULL;
    nn_call_t call = {&stream->device->log, "lm_head"};
    ZR_TRY(find_backend_of(stream, call.kernel, &backend));
    ZR_TRY(check_lm_head(call, args));
    ZR_TRY(check_workspace(call, workspace, zr_nn_lm_head_workspace_bytes(stream->device, args)));
    zr_stream_work_begins(stream);
    ZR_TRY(backend->lm_head(stream, args, workspace.data));
    charge_products(stream, call, zr_nn_lm_head_cost(args), ZR_RATE_LM_HEAD,
                    args->activation_dtype == ZR_DTYPE_BF16 || args->param_dtype == ZR_DTYPE_BF16);
    return ZR_OK;
}
