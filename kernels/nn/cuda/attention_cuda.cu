/*
 * Attention: which kernels do it, and the row sums that the backward pass begins with.
 */
#include "kernels/nn/cuda/attention_cuda.cuh"

#include "kernels/cuda/cuda_pack.cuh"
#include "kernels/nn/cuda/attention_cudnn.h"

/* ---- delta: the sum of dout * out over each row of each head ------------------------------- */

#define LANES_PER_ROW 8

/* Eight lanes to a row; rows in the order of out, [batch, seq, heads]. */
template <typename T>
static __global__ void __launch_bounds__(ZR_CUDA_THREADS)
    attention_delta_kernel(zr_cuda_attention_t args, bool wide) {
    const T *out = static_cast<const T *>(args.out), *dout = static_cast<const T *>(args.dout);
    size_t n_rows = args.n_heads * args.seq;
    unsigned lane = threadIdx.x % LANES_PER_ROW;
    size_t rows_per_grid = (size_t)gridDim.x * (ZR_CUDA_THREADS / LANES_PER_ROW);
    for (size_t first = (size_t)blockIdx.x * (ZR_CUDA_THREADS / LANES_PER_ROW); first < n_rows;
         first += rows_per_grid) {
        size_t row = first + threadIdx.x / LANES_PER_ROW;
        size_t begin = row * args.head_size;
        float sum = 0;
        for (size_t i = lane * ZR_PACK_ELEMS; row < n_rows && i < args.head_size;
             i += LANES_PER_ROW * ZR_PACK_ELEMS) {
            int n = zr_pack_length(i, args.head_size);
            zr_pack_t a = zr_load_pack(out, begin + i, n, wide);
            zr_pack_t b = zr_load_pack(dout, begin + i, n, wide);
#pragma unroll
            for (int k = 0; k < ZR_PACK_ELEMS; k++)
                sum = fmaf(a.value[k], b.value[k], sum);
        }
        for (int by = LANES_PER_ROW / 2; by > 0; by /= 2)
            sum += __shfl_xor_sync(0xffffffffu, sum, by);
        size_t h = row % args.heads, position = row / args.heads;
        size_t sequence = position / args.seq, t = position % args.seq;
        if (row < n_rows && lane == 0)
            args.delta[(sequence * args.heads + h) * args.seq + t] = sum;
    }
}

static zr_status_t launch_delta(zr_stream_t *stream, const zr_cuda_attention_t &args,
                                zr_dtype_t dtype) {
    unsigned blocks = zr_cuda_blocks(args.n_heads * args.seq * LANES_PER_ROW * ZR_PACK_ELEMS);
    bool wide =
        zr_is_wide(args.out) && zr_is_wide(args.dout) && args.head_size % ZR_PACK_ELEMS == 0;
    zr_by_dtype(dtype, [&](auto element) {
        ZR_CUDA_LAUNCH((attention_delta_kernel<decltype(element)>), blocks, ZR_CUDA_THREADS, 0,
                       zr_cuda_queue(stream), args, wide);
    });
    return zr_cuda_launched(stream, "attention_backward (row sums)");
}

/* ---- entries -------------------------------------------------------------------------------- */

static zr_status_t check_head_size(zr_stream_t *stream, const char *kernel, size_t head_size) {
    if (head_size <= ZR_ATTENTION_MAX_HEAD_SIZE)
        return ZR_OK;
    return zr_fail(&stream->device->log, ZR_ERR_UNSUPPORTED,
                   "%s: heads of %zu channels; on cuda 1 to %d are allowed, fastest in bf16 with "
                   "64 or 128; use more heads",
                   kernel, head_size, ZR_ATTENTION_MAX_HEAD_SIZE);
}

/* Tensor cores read and write 16 bytes at a time. */
static bool has_matrix_kernel(const zr_cuda_attention_t &args, zr_dtype_t dtype) {
    return dtype == ZR_DTYPE_BF16 && (args.head_size == 64 || args.head_size == 128) &&
           zr_is_wide(args.qkv) && zr_is_wide(args.out) && zr_is_wide(args.dout) &&
           zr_is_wide(args.dqkv);
}

/* What both passes have: A is either's arguments. */
template <typename A>
static zr_cuda_attention_t own_args(const zr_stream_t *stream, const A *args) {
    zr_cuda_attention_t own = {};
    own.seq = args->shape.seq;
    own.heads = args->shape.heads;
    own.kv_heads = args->shape.kv_heads;
    own.window = args->window;
    own.document_starts = args->shape.document_starts;
    own.n_kv_heads = args->shape.batch * args->shape.kv_heads;
    own.head_size = args->shape.head_size;
    own.n_heads = args->shape.batch * args->shape.heads;
    size_t rows_bytes =
        2 * own.seq * own.head_size * zr_dtype_size(args->activation_dtype); /* of both matrices */
    size_t cached_bytes = ((const zr_cuda_device_t *)stream->device)->l2_bytes / 4;
    own.n_cached_heads = cached_bytes > rows_bytes ? cached_bytes / rows_bytes : 1;
    own.qkv = args->qkv;
    own.out = const_cast<void *>(static_cast<const void *>(args->out)); /* read only, backwards */
    own.log_sum = const_cast<float *>(args->log_sum);
    own.scale = (float)(1.0 / sqrt((double)args->shape.head_size));
    return own;
}

/* By cuDNN, if it has a plan: *is_done. */
template <typename A>
static zr_status_t try_cudnn(zr_stream_t *stream, zr_nn_kernel_t kernel, const A *args,
                             const void *dout, void *dqkv, void *workspace, bool *is_done) {
    zr_cuda_attention_work_t work = {};
    work.shape = args->shape;
    work.window = args->window;
    work.qkv = args->qkv;
    work.out = const_cast<void *>(static_cast<const void *>(args->out));
    work.log_sum = const_cast<float *>(args->log_sum);
    work.dout = dout;
    work.dqkv = dqkv;
    work.workspace = workspace;
    work.workspace_bytes = zr_cuda_nn_workspace_bytes(stream->device, kernel, args);
    return zr_cuda_attention_cudnn(stream, &work, is_done);
}

zr_status_t zr_cuda_nn_attention(zr_stream_t *stream, const void *arguments, void *workspace) {
    const zr_nn_attention_t *args = static_cast<const zr_nn_attention_t *>(arguments);
    bool is_done = false;
    ZR_TRY(check_head_size(stream, "attention", args->shape.head_size));
    ZR_TRY(zr_cuda_enter(stream->device));
    if (zr_cuda_attention_is_cudnns(stream->device, args))
        ZR_TRY(try_cudnn(stream, ZR_NN_ATTENTION, args, NULL, NULL, workspace, &is_done));
    if (is_done)
        return ZR_OK;
    zr_cuda_attention_t own = own_args(stream, args);
    if (has_matrix_kernel(own, args->activation_dtype))
        return zr_cuda_attention_mma(stream, own);
    return zr_cuda_attention_plain(stream, own, args->activation_dtype);
}

zr_status_t zr_cuda_nn_attention_backward(zr_stream_t *stream, const void *arguments,
                                          void *workspace) {
    const zr_nn_attention_backward_t *args =
        static_cast<const zr_nn_attention_backward_t *>(arguments);
    bool is_done = false;
    ZR_TRY(check_head_size(stream, "attention_backward", args->shape.head_size));
    ZR_TRY(zr_cuda_enter(stream->device));
    if (zr_cuda_attention_backward_is_cudnns(stream->device, args))
        ZR_TRY(try_cudnn(stream, ZR_NN_ATTENTION_BACKWARD, args, args->dout, args->dqkv, workspace,
                         &is_done));
    if (is_done)
        return ZR_OK;
    zr_cuda_attention_t own = own_args(stream, args);
    own.dout = args->dout;
    own.dqkv = args->dqkv;
    own.delta = static_cast<float *>(workspace);
    ZR_TRY(launch_delta(stream, own, args->activation_dtype));
    if (has_matrix_kernel(own, args->activation_dtype))
        return zr_cuda_attention_mma_backward(stream, own);
    return zr_cuda_attention_plain_backward(stream, own, args->activation_dtype);
}
