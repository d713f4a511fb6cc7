/* Workspaces of a transformer's CUDA kernels: see cuda_sizes_internal.h. */
#include "kernels/nn/cuda_sizes_internal.h"

#include "kernels/device_backend.h"

/* Tensor cores multiply bf16 with fp32 sums, so that activations may stay as small as weights. */
zr_status_t zr_cuda_nn_activation_dtype(const zr_device_t *device, zr_dtype_t param_dtype,
                                        zr_dtype_t *dtype_p) {
    (void)device;
    *dtype_p = param_dtype;
    return ZR_OK;
}

/* What NVIDIA recommends. */
size_t zr_cuda_matmul_usual_bytes(const zr_device_t *device) {
    return (size_t)(device->info.cuda_major >= 9 ? 32 : 4) << 20;
}

/*
 * The same for every product: the choice of an algorithm would else be needed to know the size.
 * More where algorithms were chosen that need it: a product that is split along k leaves fp32 sums
 * of each part there, 39 MiB for a gradient of 1600 x 6400.
 */
size_t zr_cuda_matmul_workspace_bytes(const zr_device_t *device) {
    size_t chosen = device->info.matmul_workspace_bytes, usual = zr_cuda_matmul_usual_bytes(device);
    return chosen > usual ? chosen : usual;
}

static size_t matmul_bytes(const zr_device_t *device, const void *arguments) {
    (void)arguments;
    return zr_cuda_matmul_workspace_bytes(device);
}

/* ---- rows ------------------------------------------------------------------------------------ */

size_t zr_cuda_bias_grad_n_partials(size_t n_rows) {
    return n_rows / ZR_CUDA_ROWS_PER_PARTIAL + (n_rows % ZR_CUDA_ROWS_PER_PARTIAL != 0);
}

static size_t bias_grad_bytes(const zr_device_t *device, const void *arguments) {
    const zr_nn_bias_grad_t *args = arguments;
    (void)device;
    return zr_cuda_bias_grad_n_partials(args->n_rows) * args->n_columns * sizeof(float);
}

static size_t layernorm_threads(size_t channels) {
    const size_t pack_elems = 8, warp = 32, most = ZR_CUDA_LAYERNORM_BACKWARD_THREADS;
    size_t n_packs = (channels + pack_elems - 1) / pack_elems;
    size_t n_threads = (n_packs + warp - 1) / warp * warp;
    return n_threads < most ? n_threads : most;
}

/* So many parts at most that about two blocks fill each multiprocessor, or four where rows are
 * short: fewer would leave the memory idle, more would write more partial sums (here at most 4
 * MiB). */
static size_t most_layernorm_parts(size_t channels) {
    const size_t all_threads = 57344, most = 512;
    size_t n_parts = all_threads / layernorm_threads(channels);
    return n_parts < most ? n_parts : most;
}

zr_cuda_layernorm_plan_t zr_cuda_layernorm_plan(size_t n_rows, size_t channels) {
    const size_t rows_at_once = ZR_CUDA_LAYERNORM_BACKWARD_ROWS;
    zr_cuda_layernorm_plan_t plan = {.n_threads = (unsigned)layernorm_threads(channels)};
    size_t n_parts = most_layernorm_parts(channels);
    size_t rows = n_rows / n_parts + (n_rows % n_parts != 0);
    plan.rows_per_part = (rows + rows_at_once - 1) / rows_at_once * rows_at_once;
    plan.n_parts = rows == 0 ? 0 : (n_rows + plan.rows_per_part - 1) / plan.rows_per_part;
    return plan;
}

/* Of as many parts as any number of rows up to this one is shared out to: one row more may halve
 * them, and what needs less memory for longer sequences cannot be planned by the longest. */
static size_t layernorm_backward_bytes(const zr_device_t *device, const void *arguments) {
    const zr_nn_layernorm_backward_t *args = arguments;
    const size_t rows_at_once = ZR_CUDA_LAYERNORM_BACKWARD_ROWS;
    (void)device;
    if (args->channels == 0 || (args->dweight.data == NULL && args->dbias.data == NULL))
        return 0;
    size_t n_parts = (args->n_rows + rows_at_once - 1) / rows_at_once;
    size_t most = most_layernorm_parts(args->channels);
    return (n_parts < most ? n_parts : most) * 2 * args->channels * sizeof(float);
}

/* Enough parts for a few warps on each of a multiprocessor's schedulers. */
static const size_t most_rotary_parts = 4096;

size_t zr_cuda_rotary_part(size_t n_tokens) {
    return (n_tokens + most_rotary_parts - 1) / most_rotary_parts;
}

/* Of as many parts as any number of tokens up to this one is shared out to. */
static size_t rotary_backward_bytes(const zr_device_t *device, const void *arguments) {
    const zr_nn_rotary_backward_t *args = arguments;
    size_t n_tokens = args->shape.batch * args->shape.seq;
    (void)device;
    if (args->dq_weight.data == NULL && args->dk_weight.data == NULL)
        return 0;
    return (n_tokens < most_rotary_parts ? n_tokens : most_rotary_parts) * 2 *
           args->shape.head_size * sizeof(float);
}

/* ---- attention, embedding -------------------------------------------------------------------- */

static size_t round_up(size_t n, size_t to) {
    return (n + to - 1) / to * to;
}

static bool has_cudnn(zr_nn_engine_t engine, const zr_nn_qkv_shape_t *shape, zr_dtype_t dtype) {
    return engine == ZR_NN_ENGINE_CUDNN && dtype == ZR_DTYPE_BF16 && shape->head_size % 8 == 0 &&
           shape->head_size <= 128 && shape->document_starts == NULL;
}

bool zr_cuda_attention_is_cudnns(const zr_device_t *device, const zr_nn_attention_t *args) {
    (void)device;
    return has_cudnn(args->engine, &args->shape, args->activation_dtype);
}

bool zr_cuda_attention_backward_is_cudnns(const zr_device_t *device,
                                          const zr_nn_attention_backward_t *args) {
    return device->info.cuda_major == 9 &&
           has_cudnn(args->engine, &args->shape, args->activation_dtype);
}

/* What cuDNN's plans need apart from tensors: 256 bytes on 9.0, less elsewhere. */
static const size_t cudnn_bytes = 256;

static size_t attention_bytes(const zr_device_t *device, const void *arguments) {
    return zr_cuda_attention_is_cudnns(device, arguments) ? cudnn_bytes : 0;
}

size_t zr_cuda_attention_delta_bytes(const zr_nn_qkv_shape_t *shape) {
    return round_up(shape->batch * shape->heads * shape->seq * sizeof(float),
                    ZR_NN_WORKSPACE_ALIGNMENT);
}

/* cuDNN keeps the gradients of all scores, and those of keys and values for each head of queries:
 * to the byte what its plans of 9.16 to 9.24 ask for (test_cudnn). */
static size_t attention_backward_bytes(const zr_device_t *device, const void *arguments) {
    const zr_nn_attention_backward_t *args = arguments;
    const zr_nn_qkv_shape_t *shape = &args->shape;
    size_t n_heads = shape->batch * shape->heads;
    if (!zr_cuda_attention_backward_is_cudnns(device, args))
        return n_heads * shape->seq * sizeof(float); /* delta */
    size_t scores = n_heads * round_up(shape->seq, 64) * round_up(shape->seq, 128);
    size_t by_query = n_heads * shape->seq * shape->head_size;
    bool has_groups = shape->heads > shape->kv_heads;
    return zr_cuda_attention_delta_bytes(shape) + cudnn_bytes +
           (scores + (has_groups ? 2 * by_query : 0)) * sizeof(zr_bf16_t);
}

static size_t embedding_backward_bytes(const zr_device_t *device, const void *arguments) {
    const zr_nn_embedding_backward_t *args = arguments;
    (void)device;
    return args->dtoken_table.data == NULL ? 0 : 2 * args->batch * args->seq * sizeof(int32_t);
}

/* ---- language model head --------------------------------------------------------------------- */

/* Of a bf16 weight in fp32, where it would be rounded once for each chunk otherwise. */
static size_t wide_dweight_bytes(const zr_nn_lm_head_t *args, size_t n_columns, size_t chunk_rows) {
    if (args->dweight.data == NULL || args->param_dtype == ZR_DTYPE_F32 ||
        args->n_rows <= chunk_rows)
        return 0;
    return n_columns * args->channels * sizeof(float);
}

/* cuBLASLt's algorithms for tensor cores want sides that are multiples of 16 bytes: with GPT-2's
 * 50257 columns the three products took 7 times as long on an H200. */
static bool needs_whole_columns(const zr_nn_lm_head_t *args) {
    return args->param_dtype == ZR_DTYPE_BF16 && args->vocab % 8 != 0;
}

zr_cuda_lm_head_plan_t zr_cuda_lm_head_plan(const zr_device_t *device,
                                            const zr_nn_lm_head_t *args) {
    zr_cuda_lm_head_plan_t plan;
    bool is_whole = args->row_chunk == 0 || args->n_rows < args->row_chunk;
    plan.chunk_rows = is_whole ? args->n_rows : args->row_chunk;
    plan.stride = zr_cuda_lm_head_stride(args->vocab);
    bool is_widened = needs_whole_columns(args);
    const size_t bytes[ZR_CUDA_LM_HEAD_PARTS] = {
        plan.chunk_rows * plan.stride * zr_dtype_size(args->activation_dtype),
        args->n_rows * sizeof(float),
        args->n_rows * sizeof(float),
        wide_dweight_bytes(args, is_widened ? plan.stride : args->vocab, plan.chunk_rows),
        zr_cuda_matmul_workspace_bytes(device),
        is_widened ? plan.stride * args->channels * zr_dtype_size(args->param_dtype) : 0};
    plan.size_bytes = 0;
    for (int i = 0; i < ZR_CUDA_LM_HEAD_PARTS; i++) {
        plan.part_bytes[i] = bytes[i];
        plan.part_offset[i] = plan.size_bytes;
        plan.size_bytes += (bytes[i] + 255) / 256 * 256;
    }
    return plan;
}

/* Rows that a product and a grid are large enough with; multiples of them fill its tiles. */
#define LM_HEAD_TILE ((size_t)128)
#define LM_HEAD_MOST_BYTES ((size_t)512 << 20)

size_t zr_cuda_lm_head_stride(size_t vocab) {
    return (vocab + LM_HEAD_TILE - 1) / LM_HEAD_TILE * LM_HEAD_TILE;
}

/* Half a gigabyte of logits, but no more than four times the weight: beside a small model they
 * would be most of the memory otherwise. Of the sizes alone, so that a plan knows it. */
size_t zr_cuda_lm_head_row_chunk(const zr_nn_lm_head_t *args) {
    size_t elem = zr_dtype_size(args->activation_dtype);
    size_t row_bytes = zr_cuda_lm_head_stride(args->vocab) * elem;
    size_t most = 4 * args->vocab * args->channels * elem;
    most = most < LM_HEAD_MOST_BYTES ? most : LM_HEAD_MOST_BYTES;
    size_t tiles = row_bytes == 0 ? 1 : most / (row_bytes * LM_HEAD_TILE);
    return (tiles == 0 ? 1 : tiles) * LM_HEAD_TILE;
}

static size_t lm_head_bytes(const zr_device_t *device, const void *arguments) {
    const zr_nn_lm_head_t *args = arguments;
    return zr_cuda_lm_head_plan(device, args).size_bytes;
}

static zr_nn_bytes_fn *const bytes[ZR_NN_N_KERNELS] = {
    [ZR_NN_MATMUL] = matmul_bytes,
    [ZR_NN_BIAS_GRAD] = bias_grad_bytes,
    [ZR_NN_LAYERNORM_BACKWARD] = layernorm_backward_bytes,
    [ZR_NN_ROTARY_BACKWARD] = rotary_backward_bytes,
    [ZR_NN_ATTENTION] = attention_bytes,
    [ZR_NN_ATTENTION_BACKWARD] = attention_backward_bytes,
    [ZR_NN_EMBEDDING_BACKWARD] = embedding_backward_bytes,
    [ZR_NN_LM_HEAD] = lm_head_bytes,
};

size_t zr_cuda_nn_workspace_bytes(const zr_device_t *device, zr_nn_kernel_t kernel,
                                  const void *args) {
    return bytes[kernel] == NULL ? 0 : bytes[kernel](device, args);
}
