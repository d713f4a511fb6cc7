/*
 * Dispatch of a transformer's kernels: arguments are checked and refusals logged here,
 * once, so that a backend sees valid calls only; costs are counted here, so that every
 * backend counts the same.
 */
#include "kernels/nn/nn.h"

#include <string.h>

#include "kernels/device_backend.h"
#include "kernels/nn/cuda_sizes_internal.h"

/* No matrix has more elements: byte counts in any dtype then fit a size_t. */
#define ZR_NN_MAX_ELEMS (SIZE_MAX / 16)

/* What the backend is told of a kernel, and for messages and costs. */
static const struct {
    const char *name;
    size_t args_bytes;
    zr_rate_t rate; /* of its operations */
} kernels[ZR_NN_N_KERNELS] = {
    [ZR_NN_MATMUL] = {"matmul", sizeof(zr_nn_matmul_t), ZR_RATE_MATRIX},
    [ZR_NN_BIAS_GRAD] = {"bias_grad", sizeof(zr_nn_bias_grad_t), ZR_RATE_VECTOR},
    [ZR_NN_LAYERNORM] = {"layernorm", sizeof(zr_nn_layernorm_t), ZR_RATE_VECTOR},
    [ZR_NN_LAYERNORM_BACKWARD] = {"layernorm_backward", sizeof(zr_nn_layernorm_backward_t),
                                  ZR_RATE_VECTOR},
    [ZR_NN_GELU] = {"gelu", sizeof(zr_nn_gelu_t), ZR_RATE_VECTOR},
    [ZR_NN_GELU_BACKWARD] = {"gelu_backward", sizeof(zr_nn_gelu_t), ZR_RATE_VECTOR},
    [ZR_NN_SWIGLU] = {"swiglu", sizeof(zr_nn_swiglu_t), ZR_RATE_VECTOR},
    [ZR_NN_SWIGLU_BACKWARD] = {"swiglu_backward", sizeof(zr_nn_swiglu_backward_t), ZR_RATE_VECTOR},
    [ZR_NN_ROTARY] = {"rotary", sizeof(zr_nn_rotary_t), ZR_RATE_VECTOR},
    [ZR_NN_ROTARY_BACKWARD] = {"rotary_backward", sizeof(zr_nn_rotary_backward_t), ZR_RATE_VECTOR},
    [ZR_NN_ATTENTION] = {"attention", sizeof(zr_nn_attention_t), ZR_RATE_ATTENTION},
    [ZR_NN_ATTENTION_BACKWARD] = {"attention_backward", sizeof(zr_nn_attention_backward_t),
                                  ZR_RATE_ATTENTION},
    [ZR_NN_EMBEDDING] = {"embedding", sizeof(zr_nn_embedding_t), ZR_RATE_VECTOR},
    [ZR_NN_EMBEDDING_BACKWARD] = {"embedding_backward", sizeof(zr_nn_embedding_backward_t),
                                  ZR_RATE_VECTOR},
    [ZR_NN_LM_HEAD] = {"lm_head", sizeof(zr_nn_lm_head_t), ZR_RATE_LM_HEAD},
};

const zr_nn_backend_t *zr_nn_backend_of(const zr_device_t *device) {
    if (device->backend->nn != NULL)
        return device->backend->nn;
    for (size_t i = 0; zr_nn_backends[i] != NULL; i++)
        if (strcmp(zr_nn_backends[i]->name, device->backend->name) == 0)
            return zr_nn_backends[i];
    return NULL;
}

static size_t workspace_bytes(const zr_device_t *device, zr_nn_kernel_t kernel, const void *args) {
    const zr_nn_backend_t *backend = zr_nn_backend_of(device);
    return backend == NULL ? 0 : backend->workspace_bytes(device, kernel, args);
}

/* ---- checks ------------------------------------------------------------------ */

/* A call, and who refuses it. */
typedef struct nn_call {
    const zr_log_t *log;
    const char *name;
    zr_stream_t *stream;
    zr_nn_kernel_t kernel;
    const void *args;
} nn_call_t;

static nn_call_t call_of(zr_stream_t *stream, zr_nn_kernel_t kernel, const void *args) {
    return (nn_call_t){&stream->device->log, kernels[kernel].name, stream, kernel, args};
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

static zr_status_t check_dtype(nn_call_t call, const char *what, zr_dtype_t dtype) {
    if (dtype != ZR_DTYPE_F32 && dtype != ZR_DTYPE_BF16)
        return zr_fail(call.log, ZR_ERR_ARGUMENT, "%s: %s are %s; only fp32 and bf16 are allowed",
                       call.name, what, zr_dtype_name(dtype));
    return ZR_OK;
}

static zr_status_t check_dtypes(nn_call_t call, zr_dtype_t activation_dtype,
                                zr_dtype_t param_dtype) {
    ZR_TRY(check_dtype(call, "activations", activation_dtype));
    return check_dtype(call, "parameters", param_dtype);
}

/* An array that the kernel reads or writes. */
typedef struct operand {
    const char *name;
    const void *data;
} operand_t;

static zr_status_t check_operands(nn_call_t call, const operand_t *operands) {
    for (; operands->name != NULL; operands++)
        if (operands->data == NULL)
            return zr_fail(call.log, ZR_ERR_ARGUMENT, "%s: %s is NULL", call.name, operands->name);
    return ZR_OK;
}

/* Return from the calling function when one of these is NULL: {"x", args->x}, ... */
#define CHECK_OPERANDS(call, ...)                                                                  \
    ZR_TRY(check_operands(call, (const operand_t[]){__VA_ARGS__, {NULL, NULL}}))

static zr_status_t check_product(nn_call_t call, const char *what, size_t rows, size_t columns) {
    if (columns != 0 && rows > ZR_NN_MAX_ELEMS / columns)
        return zr_fail(call.log, ZR_ERR_ARGUMENT,
                       "%s: %s of %zu x %zu elements is more than memory can hold", call.name, what,
                       rows, columns);
    return ZR_OK;
}

/* Rows that are `ld` elements apart. */
static zr_status_t check_rows(nn_call_t call, const char *what, size_t rows, size_t columns,
                              size_t ld) {
    if (ld < columns)
        return zr_fail(call.log, ZR_ERR_ARGUMENT,
                       "%s: rows of %s have a stride of %s, but %zu columns", call.name, what,
                       zr_count_text(ld, "element").text, columns);
    return check_product(call, what, rows, ld);
}

static zr_status_t check_workspace(nn_call_t call, zr_nn_workspace_t workspace, size_t needed) {
    if (workspace.size_bytes < needed || (needed > 0 && workspace.data == NULL))
        return zr_fail(call.log, ZR_ERR_ARGUMENT, "%s: a workspace of %s at %p, needs %zu",
                       call.name, zr_count_text(workspace.size_bytes, "byte").text, workspace.data,
                       needed);
    if (needed > 0 && (uintptr_t)workspace.data % ZR_NN_WORKSPACE_ALIGNMENT != 0)
        return zr_fail(call.log, ZR_ERR_ARGUMENT,
                       "%s: the workspace at %p is not aligned to %d bytes", call.name,
                       workspace.data, ZR_NN_WORKSPACE_ALIGNMENT);
    return ZR_OK;
}

/* Queue a call whose arguments are fine. workspace: NULL for a kernel that takes none. Products are
 * at the rate of bf16 where any of the matrices is. A stream beside the calling thread does not
 * queue these: they wait for it here. */
static zr_status_t run(nn_call_t call, const zr_nn_workspace_t *workspace, zr_cost_t cost,
                       bool has_bf16) {
    zr_stream_t *stream = call.stream;
    const zr_nn_backend_t *backend = NULL;
    ZR_TRY(find_backend(stream->device, call.name, &backend));
    if (workspace != NULL)
        ZR_TRY(check_workspace(call, *workspace,
                               workspace_bytes(stream->device, call.kernel, call.args)));
    if (zr_stream_takes_calls(stream))
        ZR_TRY(zr_stream_synchronize(stream));
    const zr_nn_work_t work = {.kernel = call.kernel,
                               .args = call.args,
                               .args_bytes = kernels[call.kernel].args_bytes,
                               .workspace = workspace != NULL ? workspace->data : NULL};
    const zr_charge_t charge = {.kernel = call.name,
                                .cost = cost,
                                .rate = kernels[call.kernel].rate,
                                .dtype = has_bf16 ? ZR_DTYPE_BF16 : ZR_DTYPE_F32};
    zr_stream_work_begins(stream);
    ZR_TRY(backend->run(stream, &work));
    zr_stream_charge(stream, &charge);
    return ZR_OK;
}

zr_status_t zr_nn_activation_dtype(const zr_device_t *device, zr_dtype_t param_dtype,
                                   zr_dtype_t *dtype_p) {
    const zr_nn_backend_t *backend = NULL;
    nn_call_t call = {.log = &device->log, .name = "activation_dtype"};
    ZR_TRY(find_backend(device, call.name, &backend));
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

size_t zr_nn_matmul_lda(const zr_nn_matmul_t *args) {
    return args->lda != 0 ? args->lda : args->transpose_a ? args->m : args->k;
}

size_t zr_nn_matmul_ldc(const zr_nn_matmul_t *args) {
    return args->ldc != 0 ? args->ldc : args->n;
}

size_t zr_nn_matmul_workspace_bytes(const zr_device_t *device, const zr_nn_matmul_t *args) {
    return workspace_bytes(device, ZR_NN_MATMUL, args);
}

static zr_status_t check_matmul_epilogue(nn_call_t call, const zr_nn_matmul_t *args) {
    bool plain = args->epilogue == ZR_NN_EPILOGUE_NONE;
    if (args->accumulate && (!plain || args->bias != NULL || args->addend != NULL))
        return zr_fail(call.log, ZR_ERR_ARGUMENT,
                       "%s: accumulate excludes bias, addend and epilogue", call.name);
    if (zr_nn_matmul_ldc(args) != args->n && (!plain || args->k == 0))
        return zr_fail(call.log, ZR_ERR_ARGUMENT,
                       "%s: strided rows of c exclude an epilogue and require k > 0", call.name);
    if (!plain && args->addend != NULL)
        return zr_fail(call.log, ZR_ERR_ARGUMENT, "%s: an addend excludes an epilogue", call.name);
    switch (args->epilogue) {
    case ZR_NN_EPILOGUE_NONE:
        return args->pre_gelu == NULL ? ZR_OK
                                      : zr_fail(call.log, ZR_ERR_ARGUMENT,
                                                "%s: pre_gelu without an epilogue", call.name);
    case ZR_NN_EPILOGUE_GELU:
        return ZR_OK;
    case ZR_NN_EPILOGUE_GELU_BACKWARD:
        CHECK_OPERANDS(call, {"pre_gelu", args->pre_gelu});
        return ZR_OK;
    }
    return zr_fail(call.log, ZR_ERR_ARGUMENT, "%s: epilogue %d is unknown", call.name,
                   (int)args->epilogue);
}

static zr_status_t check_matmul(nn_call_t call, const zr_nn_matmul_t *args) {
    ZR_TRY(check_dtype(call, "elements of a", args->a_dtype));
    ZR_TRY(check_dtype(call, "elements of b", args->b_dtype));
    ZR_TRY(check_dtype(call, "elements of c", args->c_dtype));
    if (args->bias != NULL)
        ZR_TRY(check_dtype(call, "elements of bias", args->bias_dtype));
    ZR_TRY(check_rows(call, "a", args->transpose_a ? args->k : args->m,
                      args->transpose_a ? args->m : args->k, zr_nn_matmul_lda(args)));
    ZR_TRY(check_product(call, "b", args->k, args->n));
    ZR_TRY(check_rows(call, "c", args->m, args->n, zr_nn_matmul_ldc(args)));
    ZR_TRY(check_matmul_epilogue(call, args));
    if (args->m == 0 || args->n == 0)
        return ZR_OK;
    if (args->k != 0)
        CHECK_OPERANDS(call, {"a", args->a}, {"b", args->b});
    CHECK_OPERANDS(call, {"c", args->c});
    return ZR_OK;
}

zr_status_t zr_nn_matmul(zr_stream_t *stream, const zr_nn_matmul_t *args,
                         zr_nn_workspace_t workspace) {
    nn_call_t call = call_of(stream, ZR_NN_MATMUL, args);
    ZR_TRY(check_matmul(call, args));
    if (args->m == 0 || args->n == 0)
        return ZR_OK;
    return run(call, &workspace, zr_nn_matmul_cost(args),
               args->a_dtype == ZR_DTYPE_BF16 || args->b_dtype == ZR_DTYPE_BF16 ||
                   args->c_dtype == ZR_DTYPE_BF16);
}

zr_cost_t zr_nn_bias_grad_cost(const zr_nn_bias_grad_t *args) {
    double n = (double)args->n_rows * (double)args->n_columns;
    return (zr_cost_t){.operations = n, .bytes = n * (double)zr_dtype_size(args->activation_dtype)};
}

size_t zr_nn_bias_grad_workspace_bytes(const zr_device_t *device, const zr_nn_bias_grad_t *args) {
    return workspace_bytes(device, ZR_NN_BIAS_GRAD, args);
}

zr_status_t zr_nn_bias_grad(zr_stream_t *stream, const zr_nn_bias_grad_t *args,
                            zr_nn_workspace_t workspace) {
    nn_call_t call = call_of(stream, ZR_NN_BIAS_GRAD, args);
    ZR_TRY(check_dtypes(call, args->activation_dtype, args->param_dtype));
    ZR_TRY(check_rows(call, "dy", args->n_rows, args->n_columns,
                      args->ld_dy != 0 ? args->ld_dy : args->n_columns));
    if (args->n_columns == 0)
        return ZR_OK;
    if (args->n_rows != 0)
        CHECK_OPERANDS(call, {"dy", args->dy});
    CHECK_OPERANDS(call, {"dbias", args->dbias.data});
    return run(call, &workspace, zr_nn_bias_grad_cost(args), false);
}

/* ---- layer normalisation ---------------------------------------------------------- */

zr_cost_t zr_nn_layernorm_cost(const zr_nn_layernorm_t *args) {
    double n = (double)args->n_rows * (double)args->channels;
    return (zr_cost_t){.operations = (args->is_rms ? 5.0 : 8.0) * n,
                       .bytes = 2.0 * n * (double)zr_dtype_size(args->activation_dtype)};
}

static zr_status_t check_rms(nn_call_t call, bool has_others) {
    if (has_others)
        return zr_fail(call.log, ZR_ERR_ARGUMENT, "%s: has no mean and no bias; they must be NULL",
                       call.name);
    return ZR_OK;
}

zr_status_t zr_nn_layernorm(zr_stream_t *stream, const zr_nn_layernorm_t *args) {
    nn_call_t call = call_of(stream, ZR_NN_LAYERNORM, args);
    if (args->is_rms)
        call.name = "rmsnorm";
    ZR_TRY(check_dtypes(call, args->activation_dtype, args->param_dtype));
    ZR_TRY(check_product(call, "x", args->n_rows, args->channels));
    if (args->n_rows == 0 || args->channels == 0)
        return ZR_OK;
    CHECK_OPERANDS(call, {"x", args->x}, {"weight", args->weight}, {"y", args->y},
                   {"rstd", args->rstd});
    if (args->is_rms)
        ZR_TRY(check_rms(call, args->mean != NULL || args->bias != NULL));
    else
        CHECK_OPERANDS(call, {"bias", args->bias}, {"mean", args->mean});
    return run(call, NULL, zr_nn_layernorm_cost(args), false);
}

zr_cost_t zr_nn_layernorm_backward_cost(const zr_nn_layernorm_backward_t *args) {
    double n = (double)args->n_rows * (double)args->channels;
    double n_moves = args->accumulate_dx ? 4.0 : 3.0;
    return (zr_cost_t){.operations = (args->is_rms ? 11.0 : 14.0) * n,
                       .bytes = n_moves * n * (double)zr_dtype_size(args->activation_dtype)};
}

size_t zr_nn_layernorm_backward_workspace_bytes(const zr_device_t *device,
                                                const zr_nn_layernorm_backward_t *args) {
    return workspace_bytes(device, ZR_NN_LAYERNORM_BACKWARD, args);
}

zr_status_t zr_nn_layernorm_backward(zr_stream_t *stream, const zr_nn_layernorm_backward_t *args,
                                     zr_nn_workspace_t workspace) {
    nn_call_t call = call_of(stream, ZR_NN_LAYERNORM_BACKWARD, args);
    if (args->is_rms)
        call.name = "rmsnorm_backward";
    ZR_TRY(check_dtypes(call, args->activation_dtype, args->param_dtype));
    ZR_TRY(check_product(call, "x", args->n_rows, args->channels));
    if (args->channels == 0)
        return ZR_OK;
    if (args->is_rms)
        ZR_TRY(check_rms(call, args->mean != NULL || args->dbias.data != NULL));
    if (args->n_rows != 0)
        CHECK_OPERANDS(call, {"dy", args->dy}, {"x", args->x}, {"weight", args->weight},
                       {"rstd", args->rstd}, {"dx", args->dx});
    if (args->n_rows != 0 && !args->is_rms)
        CHECK_OPERANDS(call, {"mean", args->mean});
    return run(call, &workspace, zr_nn_layernorm_backward_cost(args), false);
}

/* ---- GELU ---------------------------------------------------------------------------- */

/* Each element is moved `n_moves` times. */
static zr_status_t run_gelu(nn_call_t call, const zr_nn_gelu_t *args, double operations,
                            double n_moves) {
    double n = (double)args->n_elems;
    return run(call, NULL,
               (zr_cost_t){.operations = operations * n,
                           .bytes = n_moves * n * (double)zr_dtype_size(args->activation_dtype)},
               false);
}

static zr_status_t check_gelu(nn_call_t call, const zr_nn_gelu_t *args) {
    ZR_TRY(check_dtype(call, "activations", args->activation_dtype));
    return check_product(call, "x", args->n_elems, 1);
}

zr_status_t zr_nn_gelu(zr_stream_t *stream, void *y, const void *x, zr_dtype_t activation_dtype,
                       size_t n_elems) {
    const zr_nn_gelu_t args = {
        .out = y, .x = x, .activation_dtype = activation_dtype, .n_elems = n_elems};
    nn_call_t call = call_of(stream, ZR_NN_GELU, &args);
    ZR_TRY(check_gelu(call, &args));
    if (n_elems == 0)
        return ZR_OK;
    CHECK_OPERANDS(call, {"y", y}, {"x", x});
    return run_gelu(call, &args, 20.0, 2.0);
}

zr_status_t zr_nn_gelu_backward(zr_stream_t *stream, void *dx, const void *dy, const void *x,
                                zr_dtype_t activation_dtype, size_t n_elems) {
    const zr_nn_gelu_t args = {
        .out = dx, .dy = dy, .x = x, .activation_dtype = activation_dtype, .n_elems = n_elems};
    nn_call_t call = call_of(stream, ZR_NN_GELU_BACKWARD, &args);
    ZR_TRY(check_gelu(call, &args));
    if (n_elems == 0)
        return ZR_OK;
    CHECK_OPERANDS(call, {"dx", dx}, {"dy", dy}, {"x", x});
    return run_gelu(call, &args, 28.0, 3.0);
}

/* ---- SwiGLU -------------------------------------------------------------------------- */

zr_cost_t zr_nn_swiglu_cost(const zr_nn_swiglu_t *args) {
    double n = (double)args->n_rows * (double)args->channels;
    return (zr_cost_t){.operations = 20.0 * n,
                       .bytes = 3.0 * n * (double)zr_dtype_size(args->activation_dtype)};
}

zr_cost_t zr_nn_swiglu_backward_cost(const zr_nn_swiglu_backward_t *args) {
    double n = (double)args->n_rows * (double)args->channels;
    return (zr_cost_t){.operations = 28.0 * n,
                       .bytes = 5.0 * n * (double)zr_dtype_size(args->activation_dtype)};
}

static zr_status_t check_swiglu(nn_call_t call, size_t n_rows, size_t channels, zr_dtype_t dtype) {
    ZR_TRY(check_dtype(call, "activations", dtype));
    ZR_TRY(check_product(call, "a row of gate_up", channels, 2));
    return check_product(call, "gate_up", n_rows, 2 * channels);
}

zr_status_t zr_nn_swiglu(zr_stream_t *stream, const zr_nn_swiglu_t *args) {
    nn_call_t call = call_of(stream, ZR_NN_SWIGLU, args);
    ZR_TRY(check_swiglu(call, args->n_rows, args->channels, args->activation_dtype));
    if (args->n_rows == 0 || args->channels == 0)
        return ZR_OK;
    CHECK_OPERANDS(call, {"gate_up", args->gate_up}, {"y", args->y});
    return run(call, NULL, zr_nn_swiglu_cost(args), false);
}

zr_status_t zr_nn_swiglu_backward(zr_stream_t *stream, const zr_nn_swiglu_backward_t *args) {
    nn_call_t call = call_of(stream, ZR_NN_SWIGLU_BACKWARD, args);
    ZR_TRY(check_swiglu(call, args->n_rows, args->channels, args->activation_dtype));
    if (args->n_rows == 0 || args->channels == 0)
        return ZR_OK;
    CHECK_OPERANDS(call, {"dy", args->dy}, {"gate_up", args->gate_up},
                   {"dgate_up", args->dgate_up});
    return run(call, NULL, zr_nn_swiglu_backward_cost(args), false);
}

/* ---- rotary positions ------------------------------------------------------------------ */

static bool has_nothing(const zr_nn_qkv_shape_t *shape) {
    return shape->batch == 0 || shape->seq == 0 || shape->heads == 0 || shape->head_size == 0;
}

static zr_status_t check_qkv_shape(nn_call_t call, const zr_nn_qkv_shape_t *shape) {
    ZR_TRY(check_product(call, "a batch", shape->batch, shape->seq));
    ZR_TRY(check_product(call, "a row of heads", shape->heads, 3));
    if (shape->kv_heads > shape->heads ||
        (shape->heads != 0 && (shape->kv_heads == 0 || shape->heads % shape->kv_heads != 0)))
        return zr_fail(call.log, ZR_ERR_ARGUMENT,
                       "%s: %zu heads of queries on %zu of keys; must be a multiple", call.name,
                       shape->heads, shape->kv_heads);
    size_t row_heads = shape->heads + 2 * shape->kv_heads;
    ZR_TRY(check_product(call, "a row of qkv", row_heads, shape->head_size));
    ZR_TRY(check_product(call, "qkv", shape->batch * shape->seq, row_heads * shape->head_size));
    if (shape->seq > INT32_MAX)
        return zr_fail(call.log, ZR_ERR_ARGUMENT, "%s: sequences of %zu; at most %d are allowed",
                       call.name, shape->seq, INT32_MAX);
    return ZR_OK;
}

/* Each of the heads that are turned is moved n_moves times. */
static zr_cost_t rotary_cost(const zr_nn_qkv_shape_t *shape, double operations, double n_moves,
                             zr_dtype_t dtype) {
    double n = (double)shape->batch * (double)shape->seq *
               (double)(shape->heads + shape->kv_heads) * (double)shape->head_size;
    return (zr_cost_t){.operations = operations * n,
                       .bytes = n_moves * n * (double)zr_dtype_size(dtype)};
}

zr_cost_t zr_nn_rotary_cost(const zr_nn_rotary_t *args) {
    double operations = args->q_weight == NULL ? 3.0 : 8.0;
    return rotary_cost(&args->shape, operations, 2.0, args->activation_dtype);
}

zr_cost_t zr_nn_rotary_backward_cost(const zr_nn_rotary_backward_t *args) {
    bool is_normalised = args->q_weight != NULL;
    return rotary_cost(&args->shape, is_normalised ? 14.0 : 3.0, is_normalised ? 3.0 : 2.0,
                       args->activation_dtype);
}

static zr_status_t check_rotary(nn_call_t call, const zr_nn_qkv_shape_t *shape,
                                const void *q_weight, const void *k_weight) {
    ZR_TRY(check_qkv_shape(call, shape));
    if (shape->head_size % 2 != 0 || shape->head_size > ZR_NN_ROTARY_MAX_HEAD_SIZE)
        return zr_fail(call.log, ZR_ERR_ARGUMENT,
                       "%s: heads of %zu channels; even numbers up to %d are allowed", call.name,
                       shape->head_size, ZR_NN_ROTARY_MAX_HEAD_SIZE);
    if ((q_weight == NULL) != (k_weight == NULL))
        return zr_fail(call.log, ZR_ERR_ARGUMENT,
                       "%s: q_weight and k_weight: only one of them is NULL", call.name);
    return ZR_OK;
}

zr_status_t zr_nn_rotary(zr_stream_t *stream, const zr_nn_rotary_t *args) {
    nn_call_t call = call_of(stream, ZR_NN_ROTARY, args);
    ZR_TRY(check_dtypes(call, args->activation_dtype, args->param_dtype));
    ZR_TRY(check_rotary(call, &args->shape, args->q_weight, args->k_weight));
    if (has_nothing(&args->shape))
        return ZR_OK;
    CHECK_OPERANDS(call, {"qkv", args->qkv}, {"out", args->out});
    if (args->q_weight != NULL)
        CHECK_OPERANDS(call, {"rstd", args->rstd});
    return run(call, NULL, zr_nn_rotary_cost(args), false);
}

size_t zr_nn_rotary_backward_workspace_bytes(const zr_device_t *device,
                                             const zr_nn_rotary_backward_t *args) {
    return workspace_bytes(device, ZR_NN_ROTARY_BACKWARD, args);
}

zr_status_t zr_nn_rotary_backward(zr_stream_t *stream, const zr_nn_rotary_backward_t *args,
                                  zr_nn_workspace_t workspace) {
    nn_call_t call = call_of(stream, ZR_NN_ROTARY_BACKWARD, args);
    ZR_TRY(check_dtypes(call, args->activation_dtype, args->param_dtype));
    ZR_TRY(check_rotary(call, &args->shape, args->q_weight, args->k_weight));
    if (args->q_weight == NULL && (args->dq_weight.data != NULL || args->dk_weight.data != NULL))
        return zr_fail(call.log, ZR_ERR_ARGUMENT, "%s: gradients of weights that are NULL",
                       call.name);
    if (args->shape.head_size == 0)
        return ZR_OK;
    if (!has_nothing(&args->shape)) {
        CHECK_OPERANDS(call, {"dqkv", args->dqkv});
        if (args->q_weight != NULL)
            CHECK_OPERANDS(call, {"qkv", args->qkv}, {"rstd", args->rstd});
    }
    return run(call, &workspace, zr_nn_rotary_backward_cost(args), false);
}

/* ---- attention ------------------------------------------------------------------------ */

/* Products over the scores of all heads, `n_operations` for an element of each, and moves of rows
 * of queries and of keys. Documents make them fewer, by how much is not known before they are read.
 */
static zr_cost_t attention_cost(const zr_nn_qkv_shape_t *shape, size_t window, double n_operations,
                                double n_moves, zr_dtype_t dtype) {
    double seq = (double)shape->seq, w = (double)window;
    double rows = (double)shape->batch * (double)shape->heads * (double)shape->head_size;
    double scores = rows * seq * (seq + 1.0) / 2.0;
    if (window != 0 && window < shape->seq)
        scores = rows * (w * (w + 1.0) / 2.0 + (seq - w) * w);
    return (zr_cost_t){.operations = n_operations * scores,
                       .bytes = n_moves * (double)shape->batch * seq *
                                (double)(shape->heads + shape->kv_heads) *
                                (double)shape->head_size * (double)zr_dtype_size(dtype)};
}

zr_cost_t zr_nn_attention_cost(const zr_nn_attention_t *args) {
    return attention_cost(&args->shape, args->window, 4.0, 2.0, args->activation_dtype);
}

zr_cost_t zr_nn_attention_backward_cost(const zr_nn_attention_backward_t *args) {
    return attention_cost(&args->shape, args->window, 10.0, 4.0, args->activation_dtype);
}

zr_status_t zr_nn_attention_open(zr_device_t *device, zr_nn_engine_t engine,
                                 zr_nn_engine_info_t *info_p) {
    const zr_nn_backend_t *backend = zr_nn_backend_of(device);
    if (engine == ZR_NN_ENGINE_OWN) {
        *info_p = (zr_nn_engine_info_t){.name = "own"};
        return ZR_OK;
    }
    if (backend == NULL || backend->attention_open == NULL)
        return zr_fail(&device->log, ZR_ERR_UNSUPPORTED,
                       "--attention cudnn: device \"%s\" has no cuDNN, only \"cuda\" has; use "
                       "--attention own",
                       device->backend->name);
    return backend->attention_open(device, info_p);
}

static zr_status_t check_attention(nn_call_t call, const zr_nn_qkv_shape_t *shape,
                                   zr_nn_engine_t engine) {
    ZR_TRY(check_qkv_shape(call, shape));
    if (engine != ZR_NN_ENGINE_OWN && engine != ZR_NN_ENGINE_CUDNN)
        return zr_fail(call.log, ZR_ERR_ARGUMENT,
                       "%s: engine %d; ZR_NN_ENGINE_OWN and ZR_NN_ENGINE_CUDNN are allowed",
                       call.name, (int)engine);
    return check_product(call, "one head's scores", shape->seq, shape->seq);
}

size_t zr_nn_attention_workspace_bytes(const zr_device_t *device, const zr_nn_attention_t *args) {
    return workspace_bytes(device, ZR_NN_ATTENTION, args);
}

zr_status_t zr_nn_attention(zr_stream_t *stream, const zr_nn_attention_t *args,
                            zr_nn_workspace_t workspace) {
    nn_call_t call = call_of(stream, ZR_NN_ATTENTION, args);
    ZR_TRY(check_dtype(call, "activations", args->activation_dtype));
    ZR_TRY(check_attention(call, &args->shape, args->engine));
    if (has_nothing(&args->shape))
        return ZR_OK;
    CHECK_OPERANDS(call, {"qkv", args->qkv}, {"out", args->out}, {"log_sum", args->log_sum});
    return run(call, &workspace, zr_nn_attention_cost(args),
               args->activation_dtype == ZR_DTYPE_BF16);
}

size_t zr_nn_attention_backward_workspace_bytes(const zr_device_t *device,
                                                const zr_nn_attention_backward_t *args) {
    return workspace_bytes(device, ZR_NN_ATTENTION_BACKWARD, args);
}

zr_status_t zr_nn_attention_backward(zr_stream_t *stream, const zr_nn_attention_backward_t *args,
                                     zr_nn_workspace_t workspace) {
    nn_call_t call = call_of(stream, ZR_NN_ATTENTION_BACKWARD, args);
    ZR_TRY(check_dtype(call, "activations", args->activation_dtype));
    ZR_TRY(check_attention(call, &args->shape, args->engine));
    if (has_nothing(&args->shape))
        return ZR_OK;
    CHECK_OPERANDS(call, {"qkv", args->qkv}, {"out", args->out}, {"log_sum", args->log_sum},
                   {"dout", args->dout}, {"dqkv", args->dqkv});
    return run(call, &workspace, zr_nn_attention_backward_cost(args),
               args->activation_dtype == ZR_DTYPE_BF16);
}

/* ---- embedding --------------------------------------------------------------------------- */

zr_cost_t zr_nn_embedding_cost(const zr_nn_embedding_t *args) {
    double n = (double)args->batch * (double)args->seq * (double)args->channels;
    return (zr_cost_t){
        .operations = n,
        .bytes = n * (double)(zr_dtype_size(args->activation_dtype) +
                              (args->n_positions == 0 ? 1 : 2) * zr_dtype_size(args->param_dtype))};
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
                                         size_t vocab, size_t n_positions, bool has_positions) {
    ZR_TRY(check_product(call, "a batch", batch, seq));
    ZR_TRY(check_product(call, "activations", batch * seq, channels));
    ZR_TRY(check_product(call, "a table of tokens", vocab, channels));
    ZR_TRY(check_product(call, "a table of positions", n_positions, channels));
    if (has_positions && seq > n_positions)
        return zr_fail(call.log, ZR_ERR_ARGUMENT, "%s: sequences of %s, but only %s", call.name,
                       zr_count_text(seq, "token").text,
                       zr_count_text(n_positions, "position").text);
    if (vocab > INT32_MAX || batch * seq > INT32_MAX)
        return zr_fail(call.log, ZR_ERR_ARGUMENT,
                       "%s: %s of %zu kinds; at most %d of each are allowed", call.name,
                       zr_count_text(batch * seq, "token").text, vocab, INT32_MAX);
    return ZR_OK;
}

zr_status_t zr_nn_embedding(zr_stream_t *stream, const zr_nn_embedding_t *args) {
    nn_call_t call = call_of(stream, ZR_NN_EMBEDDING, args);
    ZR_TRY(check_dtypes(call, args->activation_dtype, args->param_dtype));
    ZR_TRY(check_embedding_sizes(call, args->batch, args->seq, args->channels, args->vocab,
                                 args->n_positions, args->n_positions != 0));
    if (args->batch == 0 || args->seq == 0 || args->channels == 0)
        return ZR_OK;
    CHECK_OPERANDS(call, {"tokens", args->tokens}, {"token_table", args->token_table},
                   {"out", args->out});
    if (args->n_positions != 0)
        CHECK_OPERANDS(call, {"position_table", args->position_table});
    return run(call, NULL, zr_nn_embedding_cost(args), false);
}

size_t zr_nn_embedding_backward_workspace_bytes(const zr_device_t *device,
                                                const zr_nn_embedding_backward_t *args) {
    return workspace_bytes(device, ZR_NN_EMBEDDING_BACKWARD, args);
}

zr_status_t zr_nn_embedding_backward(zr_stream_t *stream, const zr_nn_embedding_backward_t *args,
                                     zr_nn_workspace_t workspace) {
    nn_call_t call = call_of(stream, ZR_NN_EMBEDDING_BACKWARD, args);
    ZR_TRY(check_dtypes(call, args->activation_dtype, args->param_dtype));
    ZR_TRY(check_embedding_sizes(call, args->batch, args->seq, args->channels, args->vocab,
                                 args->n_positions,
                                 args->n_positions != 0 || args->dposition_table.data != NULL));
    if (args->channels == 0)
        return ZR_OK;
    if (args->batch * args->seq != 0)
        CHECK_OPERANDS(call, {"tokens", args->tokens}, {"dout", args->dout});
    return run(call, &workspace, zr_nn_embedding_backward_cost(args), false);
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
    if (args->row_chunk != 0) { /* the weight is read for each chunk */
        size_t n_more = args->n_rows == 0 ? 0 : (args->n_rows - 1) / args->row_chunk;
        cost.bytes += (double)n_more * weight_bytes * (args->dx != NULL ? 2.0 : 1.0);
    }
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
    return workspace_bytes(device, ZR_NN_LM_HEAD, args);
}

/* Of the host: logits that exist at a time are at most 4 Mi elements, and a quarter of a large
 * vocabulary, but no fewer columns than below which products are slow. Chunks have equal sizes: all
 * but the last are computed twice, so it should not be a small rest. */
static size_t host_vocab_chunk(size_t vocab, size_t n_rows) {
    const size_t most_elems = (size_t)4 << 20, large_vocab = 1024, least_columns = 128;
    size_t most = most_elems / (n_rows == 0 ? 1 : n_rows);
    most = most < least_columns ? least_columns : most;
    size_t n_chunks = (vocab + most - 1) / most;
    if (n_chunks < 4 && vocab > large_vocab)
        n_chunks = 4;
    return n_chunks == 0 ? 1 : (vocab + n_chunks - 1) / n_chunks;
}

void zr_nn_lm_head_chunks(const zr_device_t *device, size_t most_rows, zr_nn_lm_head_t *args) {
    bool goes_by_rows = zr_device_info(device)->cuda_major > 0;
    size_t n_rows = args->n_rows > most_rows ? args->n_rows : most_rows;
    args->vocab_chunk = goes_by_rows ? args->vocab : host_vocab_chunk(args->vocab, n_rows);
    args->row_chunk = goes_by_rows ? zr_cuda_lm_head_row_chunk(args) : 0;
}

static zr_status_t check_lm_head(nn_call_t call, const zr_nn_lm_head_t *args) {
    ZR_TRY(check_dtypes(call, args->activation_dtype, args->param_dtype));
    ZR_TRY(check_product(call, "x", args->n_rows, args->channels));
    ZR_TRY(check_product(call, "weight", args->vocab, args->channels));
    if (args->vocab > INT32_MAX || (args->vocab == 0 && args->n_rows != 0))
        return zr_fail(call.log, ZR_ERR_ARGUMENT, "%s: a vocabulary of %zu; 1 to %d are allowed",
                       call.name, args->vocab, INT32_MAX);
    if (args->vocab_chunk == 0)
        return zr_fail(call.log, ZR_ERR_ARGUMENT, "%s: vocab_chunk is 0", call.name);
    size_t chunk = args->vocab_chunk < args->vocab ? args->vocab_chunk : args->vocab;
    ZR_TRY(check_product(call, "a chunk of logits", args->n_rows, chunk));
    if (args->channels == 0)
        return zr_fail(call.log, ZR_ERR_ARGUMENT, "%s: 0 channels", call.name);
    CHECK_OPERANDS(call, {"loss", args->loss});
    if (args->n_rows == 0)
        return ZR_OK;
    CHECK_OPERANDS(call, {"x", args->x}, {"weight", args->weight}, {"targets", args->targets});
    return ZR_OK;
}

zr_status_t zr_nn_lm_head(zr_stream_t *stream, const zr_nn_lm_head_t *args,
                          zr_nn_workspace_t workspace) {
    nn_call_t call = call_of(stream, ZR_NN_LM_HEAD, args);
    ZR_TRY(check_lm_head(call, args));
    return run(call, &workspace, zr_nn_lm_head_cost(args),
               args->activation_dtype == ZR_DTYPE_BF16 || args->param_dtype == ZR_DTYPE_BF16);
}
