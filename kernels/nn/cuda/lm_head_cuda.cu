/*
 * The language model head on CUDA, by rows: logits of some rows by a matrix product, then one
 * kernel that takes from each row what the loss needs and leaves its gradient in its place, and the
 * two products that follow from it. So each logit is computed once.
 *
 * Logits have the activations' dtype; their rows begin at multiples of 128 elements. Where products
 * of the vocabulary's size would be slow, they are of as many columns as a row has room for, by a
 * copy of the weight with rows of zeros behind it. Everything
 * that is summed is so in fp32, the loss in double, in an order that depends on the sizes alone.
 * The gradient of a bf16 weight is added up in fp32 where there are several chunks of rows.
 */
#include <float.h>

#include "kernels/cuda/cuda_pack.cuh"
#include "kernels/nn/cuda/matmul_cuda.h"

/* Of a block, which has a row: few enough blocks at a time that their rows stay in the L2 from
 * their sum to their gradient. */
#define ROW_THREADS 512
#define WARPS (ROW_THREADS / 32)
#define LOSS_THREADS 256

/* What is known of a row of logits so far: its maximum, and the sum of exp(logit - maximum). */
struct row_sum_t {
    float maximum, sum;
};

static __device__ inline row_sum_t merge(row_sum_t a, row_sum_t b) {
    float maximum = fmaxf(a.maximum, b.maximum);
    return {maximum, a.sum * expf(a.maximum - maximum) + b.sum * expf(b.maximum - maximum)};
}

static __device__ inline row_sum_t merge_warp(row_sum_t own) {
    for (int distance = 16; distance > 0; distance /= 2) {
        row_sum_t other = {__shfl_xor_sync(0xffffffffu, own.maximum, distance),
                           __shfl_xor_sync(0xffffffffu, own.sum, distance)};
        own = merge(own, other); /* the same whichever of the two is first */
    }
    return own;
}

/* A row's sum over the thread's packs of columns. */
template <typename T>
static __device__ inline row_sum_t sum_columns(const T *logits, size_t n_columns) {
    row_sum_t row = {-FLT_MAX, 0.0f};
    for (size_t first = threadIdx.x * (size_t)ZR_PACK_ELEMS; first < n_columns;
         first += (size_t)ROW_THREADS * ZR_PACK_ELEMS) {
        int n = zr_pack_length(first, n_columns);
        zr_pack_t pack = zr_load_pack(logits, first, n, true);
        float maximum = row.maximum;
#pragma unroll
        for (int i = 0; i < ZR_PACK_ELEMS; i++)
            maximum = i < n ? fmaxf(maximum, pack.value[i]) : maximum;
        float sum = row.sum * expf(row.maximum - maximum);
#pragma unroll
        for (int i = 0; i < ZR_PACK_ELEMS; i++)
            sum += i < n ? expf(pack.value[i] - maximum) : 0.0f;
        row = {maximum, sum};
    }
    return row;
}

/* Some rows: logits are [n_rows, vocab], `stride` from row to row. */
struct chunk_t {
    size_t first, n_rows, vocab, stride;
};

/* Logits become scale * (softmax - one_hot). */
template <typename T>
static __device__ inline void differentiate_row(T *logits, size_t vocab, float log_sum,
                                                int32_t target, float scale) {
    float row_scale = target == ZR_NN_TARGET_IGNORED ? 0.0f : scale;
    for (size_t first = threadIdx.x * (size_t)ZR_PACK_ELEMS; first < vocab;
         first += (size_t)ROW_THREADS * ZR_PACK_ELEMS) {
        int n = zr_pack_length(first, vocab);
        zr_pack_t pack = zr_load_pack(logits, first, n, true);
#pragma unroll
        for (int i = 0; i < ZR_PACK_ELEMS; i++) {
            float softmax = expf(pack.value[i] - log_sum);
            pack.value[i] = row_scale * (first + i == (size_t)target ? softmax - 1.0f : softmax);
        }
        zr_store_pack(logits, first, n, true, pack);
    }
}

/* A block for each row at a time: the logarithm of its sum, its target's logit and, where wanted,
 * its gradient in its place. Arrays begin with the chunk's first row. */
template <typename T>
static __global__ void __launch_bounds__(ROW_THREADS)
    lm_head_rows_kernel(T *logits, chunk_t chunk, const int32_t *__restrict__ targets,
                        float *__restrict__ log_sums, float *__restrict__ target_logits,
                        float scale, bool wants_gradient) {
    __shared__ row_sum_t warps[WARPS];
    __shared__ float row_log_sum;
    for (size_t row = blockIdx.x; row < chunk.n_rows; row += gridDim.x) {
        T *own = logits + row * chunk.stride;
        int32_t target = targets[row];
        row_sum_t sum = merge_warp(sum_columns(own, chunk.vocab));
        if (threadIdx.x % 32 == 0)
            warps[threadIdx.x / 32] = sum;
        __syncthreads();
        if (threadIdx.x == 0) {
            for (int warp = 1; warp < WARPS; warp++)
                sum = merge(sum, warps[warp]);
            log_sums[row] = row_log_sum = sum.maximum + logf(sum.sum);
            if ((size_t)target < chunk.vocab)
                target_logits[row] = zr_widen(own[target]);
        }
        __syncthreads(); /* the sum is there, and the target's logit has been read */
        if (wants_gradient)
            differentiate_row(own, chunk.vocab, row_log_sum, target, scale);
    }
}

/* One block: what all rows add to the loss. */
static __global__ void __launch_bounds__(LOSS_THREADS)
    lm_head_loss_kernel(const float *__restrict__ log_sums, const float *__restrict__ target_logits,
                        const int32_t *__restrict__ targets, size_t n_rows, float scale,
                        double *__restrict__ loss) {
    __shared__ double parts[LOSS_THREADS];
    double part = 0;
    for (size_t row = threadIdx.x; row < n_rows; row += LOSS_THREADS)
        if (targets[row] != ZR_NN_TARGET_IGNORED)
            part += (double)log_sums[row] - (double)target_logits[row];
    parts[threadIdx.x] = part;
    for (unsigned width = LOSS_THREADS / 2; width > 0; width /= 2) {
        __syncthreads();
        if (threadIdx.x < width)
            parts[threadIdx.x] += parts[threadIdx.x + width];
    }
    if (threadIdx.x == 0)
        loss[0] += (double)scale * parts[0];
}

/* ---- memory ---- */

/* The call, and its workspace. */
typedef struct lm_head_job {
    zr_stream_t *stream;
    const zr_nn_lm_head_t *args;
    size_t chunk_rows, stride;

    char *logits;         /* [chunk_rows, stride] */
    float *target_logits; /* [n_rows] */
    float *log_sums;      /* [n_rows] */
    float *dweight;       /* [n_columns, channels], in fp32 while chunks are added, or NULL */
    void *product;        /* the workspace of a product */
    size_t n_columns;     /* that are multiplied: the vocabulary, or the stride */
    const void *weight;   /* [n_columns, channels] */
} lm_head_job_t;

/* Lay the workspace out from `base`. */
static void lay_out(lm_head_job_t *job, const zr_device_t *device, const zr_nn_lm_head_t *args,
                    void *base) {
    zr_cuda_lm_head_plan_t plan = zr_cuda_lm_head_plan(device, args);
    char *parts[ZR_CUDA_LM_HEAD_PARTS];
    for (int i = 0; i < ZR_CUDA_LM_HEAD_PARTS; i++)
        parts[i] = static_cast<char *>(base) + plan.part_offset[i];
    job->args = args;
    job->chunk_rows = plan.chunk_rows;
    job->stride = plan.stride;
    job->logits = parts[0];
    job->target_logits = reinterpret_cast<float *>(parts[1]);
    job->log_sums = reinterpret_cast<float *>(parts[2]);
    job->dweight = plan.part_bytes[3] > 0 ? reinterpret_cast<float *>(parts[3]) : NULL;
    job->product = parts[4];
    bool is_widened = plan.part_bytes[5] > 0;
    job->n_columns = is_widened ? plan.stride : args->vocab;
    job->weight = is_widened ? parts[5] : args->weight;
}

/* The weight's copy, where there is one. */
static zr_status_t widen_weight(const lm_head_job_t *job) {
    const zr_nn_lm_head_t *args = job->args;
    size_t n_elems = args->vocab * args->channels,
           n_zeros = job->n_columns * args->channels - n_elems;
    char *copy = static_cast<char *>(const_cast<void *>(job->weight));
    if (job->weight == args->weight)
        return ZR_OK;
    ZR_TRY(zr_cuda_cast(job->stream, copy, args->param_dtype, args->weight, args->param_dtype,
                        n_elems));
    return zr_cuda_fill(job->stream, copy + n_elems * zr_dtype_size(args->param_dtype),
                        args->param_dtype, n_zeros, 0.0f);
}

/* ---- a chunk ---- */

static chunk_t chunk_at(const lm_head_job_t *job, size_t first) {
    size_t left = job->args->n_rows - first;
    return {first, left < job->chunk_rows ? left : job->chunk_rows, job->args->vocab, job->stride};
}

/* Rows [first, ...) of x, or of dx. */
static char *rows_at(const lm_head_job_t *job, const void *rows, size_t first) {
    size_t row_bytes = job->args->channels * zr_dtype_size(job->args->activation_dtype);
    return static_cast<char *>(const_cast<void *>(rows)) + first * row_bytes;
}

static zr_nn_matmul_t product_of(const lm_head_job_t *job, size_t m, size_t n, size_t k) {
    zr_nn_matmul_t product = {};
    product.m = m;
    product.n = n;
    product.k = k;
    product.a_dtype = job->args->activation_dtype;
    product.b_dtype = job->args->activation_dtype;
    product.c_dtype = job->args->activation_dtype;
    return product;
}

/* logits = x weight^T: 0 in columns behind the vocabulary, which stays so in their gradient. */
static zr_status_t compute_logits(const lm_head_job_t *job, const chunk_t &chunk) {
    zr_nn_matmul_t product = product_of(job, chunk.n_rows, job->n_columns, job->args->channels);
    product.a = rows_at(job, job->args->x, chunk.first);
    product.b = job->weight;
    product.transpose_b = true;
    product.c = job->logits;
    product.ldc = chunk.stride;
    return zr_cuda_nn_matmul(job->stream, &product, job->product);
}

/* dx = dlogits weight */
static zr_status_t compute_dx(const lm_head_job_t *job, const chunk_t &chunk) {
    zr_nn_matmul_t product = product_of(job, chunk.n_rows, job->args->channels, job->n_columns);
    product.a = job->logits;
    product.lda = chunk.stride;
    product.b = job->weight;
    product.c = rows_at(job, job->args->dx, chunk.first);
    return zr_cuda_nn_matmul(job->stream, &product, job->product);
}

/* dweight (+)= dlogits^T x: what has no room behind the vocabulary ends there. */
static zr_status_t add_to_dweight(const lm_head_job_t *job, const chunk_t &chunk) {
    const zr_nn_lm_head_t *args = job->args;
    size_t n_columns = job->dweight != NULL ? job->n_columns : args->vocab;
    zr_nn_matmul_t product = product_of(job, n_columns, args->channels, chunk.n_rows);
    product.a = job->logits;
    product.transpose_a = true;
    product.lda = chunk.stride;
    product.b = rows_at(job, args->x, chunk.first);
    product.c = job->dweight != NULL ? job->dweight : args->dweight.data;
    product.c_dtype = job->dweight != NULL ? ZR_DTYPE_F32 : args->param_dtype;
    product.accumulate = chunk.first > 0 || (job->dweight == NULL && args->dweight.accumulate);
    return zr_cuda_nn_matmul(job->stream, &product, job->product);
}

static unsigned row_blocks(size_t n_rows) {
    return n_rows < ZR_CUDA_MAX_BLOCKS ? (unsigned)n_rows : ZR_CUDA_MAX_BLOCKS;
}

static zr_status_t go_through_rows(const lm_head_job_t *job, const chunk_t &chunk,
                                   bool wants_gradient) {
    zr_by_dtype(job->args->activation_dtype, [&](auto element) {
        using T = decltype(element);
        ZR_CUDA_LAUNCH((lm_head_rows_kernel<T>), row_blocks(chunk.n_rows), ROW_THREADS, 0,
                       zr_cuda_queue(job->stream), reinterpret_cast<T *>(job->logits), chunk,
                       job->args->targets + chunk.first, job->log_sums + chunk.first,
                       job->target_logits + chunk.first, job->args->scale, wants_gradient);
    });
    return zr_cuda_launched(job->stream, "lm_head rows");
}

/* ---- all of them ---- */

static zr_status_t run_chunks(const lm_head_job_t *job) {
    const zr_nn_lm_head_t *args = job->args;
    bool wants_gradient = args->dx != NULL || args->dweight.data != NULL;
    for (size_t first = 0; first < args->n_rows; first += job->chunk_rows) {
        chunk_t chunk = chunk_at(job, first);
        ZR_TRY(compute_logits(job, chunk));
        ZR_TRY(go_through_rows(job, chunk, wants_gradient));
        if (args->dx != NULL)
            ZR_TRY(compute_dx(job, chunk));
        if (args->dweight.data != NULL)
            ZR_TRY(add_to_dweight(job, chunk));
    }
    ZR_CUDA_LAUNCH(lm_head_loss_kernel, 1, LOSS_THREADS, 0, zr_cuda_queue(job->stream),
                   job->log_sums, job->target_logits, args->targets, args->n_rows, args->scale,
                   args->loss);
    return zr_cuda_launched(job->stream, "lm_head loss");
}

/* What was added up in fp32 is rounded once. */
static zr_status_t round_dweight(const lm_head_job_t *job) {
    const zr_nn_lm_head_t *args = job->args;
    size_t n_elems = args->vocab * args->channels;
    if (args->dweight.accumulate)
        return zr_cuda_add(job->stream, args->dweight.data, args->param_dtype, job->dweight,
                           ZR_DTYPE_F32, n_elems);
    return zr_cuda_cast(job->stream, args->dweight.data, args->param_dtype, job->dweight,
                        ZR_DTYPE_F32, n_elems);
}

zr_status_t zr_cuda_nn_lm_head(zr_stream_t *stream, const void *arguments, void *workspace) {
    const zr_nn_lm_head_t *args = static_cast<const zr_nn_lm_head_t *>(arguments);
    if (args->activation_dtype != args->param_dtype)
        return zr_fail(&stream->device->log, ZR_ERR_UNSUPPORTED,
                       "lm_head: device \"cuda\" has activations of the parameters' dtype: not %s "
                       "with %s",
                       zr_dtype_name(args->activation_dtype), zr_dtype_name(args->param_dtype));
    ZR_TRY(zr_cuda_enter(stream->device));
    if (args->n_rows == 0) {
        if (args->dweight.data == NULL || args->dweight.accumulate || args->vocab == 0)
            return ZR_OK;
        return zr_cuda_fill(stream, args->dweight.data, args->param_dtype,
                            args->vocab * args->channels, 0.0f);
    }
    lm_head_job_t job = {};
    job.stream = stream;
    lay_out(&job, stream->device, args, workspace);
    ZR_TRY(widen_weight(&job));
    ZR_TRY(run_chunks(&job));
    return job.dweight != NULL ? round_dweight(&job) : ZR_OK;
}
