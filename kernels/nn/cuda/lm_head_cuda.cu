/*
 * The language model head on CUDA: logits of a chunk of the vocabulary by a matrix product, what
 * softmax needs of each row by one pass over them, and, the second time through the vocabulary,
 * their gradient in their place and the two products that follow from it.
 *
 * Logits have the activations' dtype, their rows begin at multiples of 16 bytes. Everything that
 * is summed is so in fp32, the loss in double, in an order that depends on the sizes alone.
 */
#include <float.h>

#include "kernels/cuda/cuda_pack.cuh"
#include "kernels/nn/cuda/matmul_cuda.h"

#define WARPS (ZR_CUDA_THREADS / 32)
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
         first += (size_t)ZR_CUDA_THREADS * ZR_PACK_ELEMS) {
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

/* The chunk of the vocabulary at hand: logits are [n_rows, n_columns], `stride` from row to row. */
struct chunk_t {
    size_t n_rows, n_columns, stride;
    size_t first; /* of the vocabulary */
};

/* A block for each row at a time: what the chunk adds to the row's sum, and its target's logit. */
template <typename T>
static __global__ void __launch_bounds__(ZR_CUDA_THREADS)
    lm_head_statistics_kernel(const T *__restrict__ logits, chunk_t chunk,
                              const int32_t *__restrict__ targets, row_sum_t *__restrict__ sums,
                              float *__restrict__ target_logits) {
    __shared__ row_sum_t warps[WARPS];
    for (size_t row = blockIdx.x; row < chunk.n_rows; row += gridDim.x) {
        const T *own = logits + row * chunk.stride;
        row_sum_t sum = merge_warp(sum_columns(own, chunk.n_columns));
        if (threadIdx.x % 32 == 0)
            warps[threadIdx.x / 32] = sum;
        __syncthreads();
        if (threadIdx.x == 0) {
            for (int warp = 1; warp < WARPS; warp++)
                sum = merge(sum, warps[warp]);
            sums[row] = chunk.first == 0 ? sum : merge(sums[row], sum);
            size_t target = (size_t)targets[row];
            if (target >= chunk.first && target - chunk.first < chunk.n_columns)
                target_logits[row] = zr_widen(own[target - chunk.first]);
        }
        __syncthreads(); /* the warps' sums are written again */
    }
}

/* One block: the logarithm of each row's sum, and what all rows add to the loss. */
static __global__ void __launch_bounds__(LOSS_THREADS)
    lm_head_loss_kernel(const row_sum_t *__restrict__ sums, const float *__restrict__ target_logits,
                        const int32_t *__restrict__ targets, float *__restrict__ log_sums,
                        size_t n_rows, float scale,
                        double *__restrict__ loss) {
    __shared__ double parts[LOSS_THREADS];
    double part = 0;
    for (size_t row = threadIdx.x; row < n_rows; row += LOSS_THREADS) {
        float log_sum = sums[row].maximum + logf(sums[row].sum);
        log_sums[row] = log_sum;
        if (targets[row] != ZR_NN_TARGET_IGNORED)
            part += (double)log_sum - (double)target_logits[row];
    }
    parts[threadIdx.x] = part;
    for (unsigned width = LOSS_THREADS / 2; width > 0; width /= 2) {
        __syncthreads();
        if (threadIdx.x < width)
            parts[threadIdx.x] += parts[threadIdx.x + width];
    }
    if (threadIdx.x == 0)
        loss[0] += (double)scale * parts[0];
}

/* Logits become scale * (softmax - one_hot), a block for each row at a time. */
template <typename T>
static __global__ void __launch_bounds__(ZR_CUDA_THREADS)
    lm_head_gradient_kernel(T *__restrict__ logits, chunk_t chunk,
                            const int32_t *__restrict__ targets, const float *__restrict__ log_sums,
                            float scale) {
    for (size_t row = blockIdx.x; row < chunk.n_rows; row += gridDim.x) {
        T *own = logits + row * chunk.stride;
        float log_sum = log_sums[row];
        float row_scale = targets[row] == ZR_NN_TARGET_IGNORED ? 0.0f : scale;
        size_t target = (size_t)targets[row] - chunk.first; /* huge where it is before the chunk */
        for (size_t first = threadIdx.x * (size_t)ZR_PACK_ELEMS; first < chunk.n_columns;
             first += (size_t)ZR_CUDA_THREADS * ZR_PACK_ELEMS) {
            int n = zr_pack_length(first, chunk.n_columns);
            zr_pack_t pack = zr_load_pack(own, first, n, true);
#pragma unroll
            for (int i = 0; i < ZR_PACK_ELEMS; i++) {
                float softmax = expf(pack.value[i] - log_sum);
                pack.value[i] = row_scale * (first + i == target ? softmax - 1.0f : softmax);
            }
            zr_store_pack(own, first, n, true, pack);
        }
    }
}

/* ---- memory ---- */

/* The call, and its workspace. */
typedef struct lm_head_job {
    zr_stream_t *stream;
    const zr_nn_lm_head_t *args;
    size_t chunk_columns, stride, n_chunks;

    char *logits;         /* [n_rows, stride] */
    row_sum_t *sums;      /* [n_rows] */
    float *target_logits; /* [n_rows] */
    float *log_sums;      /* [n_rows] */
    float *dx;            /* [n_rows, channels]: dx in fp32 while chunks are added to it, or NULL */
    void *product;        /* the workspace of a product */
} lm_head_job_t;

static_assert(sizeof(row_sum_t) == ZR_CUDA_ROW_SUM_BYTES, "the plan of the workspace counts on it");

/* Lay the workspace out from `base`. */
static void lay_out(lm_head_job_t *job, const zr_device_t *device, const zr_nn_lm_head_t *args,
                    void *base) {
    zr_cuda_lm_head_plan_t plan = zr_cuda_lm_head_plan(device, args);
    char *parts[ZR_CUDA_LM_HEAD_PARTS];
    for (int i = 0; i < ZR_CUDA_LM_HEAD_PARTS; i++)
        parts[i] = static_cast<char *>(base) + plan.part_offset[i];
    job->args = args;
    job->chunk_columns = plan.chunk_columns;
    job->stride = plan.stride;
    job->n_chunks = plan.n_chunks;
    job->logits = parts[0];
    job->sums = reinterpret_cast<row_sum_t *>(parts[1]);
    job->target_logits = reinterpret_cast<float *>(parts[2]);
    job->log_sums = reinterpret_cast<float *>(parts[3]);
    job->dx = plan.part_bytes[4] > 0 ? reinterpret_cast<float *>(parts[4]) : NULL;
    job->product = parts[5];
}

/* ---- a chunk ---- */

static chunk_t chunk_at(const lm_head_job_t *job, size_t index) {
    size_t first = index * job->chunk_columns, left = job->args->vocab - first;
    return {job->args->n_rows, left < job->chunk_columns ? left : job->chunk_columns, job->stride,
            first};
}

static const char *weight_at(const lm_head_job_t *job, size_t row) {
    const zr_nn_lm_head_t *args = job->args;
    return static_cast<const char *>(args->weight) +
           row * args->channels * zr_dtype_size(args->param_dtype);
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

/* logits = x weight^T */
static zr_status_t compute_logits(const lm_head_job_t *job, const chunk_t &chunk) {
    zr_nn_matmul_t product = product_of(job, chunk.n_rows, chunk.n_columns, job->args->channels);
    product.a = job->args->x;
    product.b = weight_at(job, chunk.first);
    product.transpose_b = true;
    product.c = job->logits;
    product.ldc = chunk.stride;
    return zr_cuda_nn_matmul(job->stream, &product, job->product);
}

/* dx (+)= dlogits weight. The last chunk is the first to come. */
static zr_status_t add_to_dx(const lm_head_job_t *job, const chunk_t &chunk) {
    zr_nn_matmul_t product = product_of(job, chunk.n_rows, job->args->channels, chunk.n_columns);
    product.a = job->logits;
    product.lda = chunk.stride;
    product.b = weight_at(job, chunk.first);
    product.c = job->dx != NULL ? job->dx : job->args->dx;
    product.c_dtype = job->dx != NULL ? ZR_DTYPE_F32 : job->args->activation_dtype;
    product.accumulate = chunk.first + chunk.n_columns < job->args->vocab;
    return zr_cuda_nn_matmul(job->stream, &product, job->product);
}

/* dweight (+)= dlogits^T x, for the rows of the chunk. */
static zr_status_t add_to_dweight(const lm_head_job_t *job, const chunk_t &chunk) {
    const zr_nn_lm_head_t *args = job->args;
    zr_nn_matmul_t product = product_of(job, chunk.n_columns, args->channels, chunk.n_rows);
    product.a = job->logits;
    product.transpose_a = true;
    product.lda = chunk.stride;
    product.b = args->x;
    product.c = static_cast<char *>(args->dweight.data) +
                chunk.first * args->channels * zr_dtype_size(args->param_dtype);
    product.accumulate = args->dweight.accumulate;
    return zr_cuda_nn_matmul(job->stream, &product, job->product);
}

static unsigned row_blocks(size_t n_rows) {
    return n_rows < ZR_CUDA_MAX_BLOCKS ? (unsigned)n_rows : ZR_CUDA_MAX_BLOCKS;
}

static zr_status_t take_statistics(const lm_head_job_t *job, const chunk_t &chunk) {
    zr_by_dtype(job->args->activation_dtype, [&](auto element) {
        using T = decltype(element);
        ZR_CUDA_LAUNCH((lm_head_statistics_kernel<T>), row_blocks(chunk.n_rows), ZR_CUDA_THREADS, 0,
                       zr_cuda_queue(job->stream), reinterpret_cast<const T *>(job->logits), chunk,
                       job->args->targets, job->sums, job->target_logits);
    });
    return zr_cuda_launched(job->stream, "lm_head statistics");
}

static zr_status_t differentiate(const lm_head_job_t *job, const chunk_t &chunk) {
    zr_by_dtype(job->args->activation_dtype, [&](auto element) {
        using T = decltype(element);
        ZR_CUDA_LAUNCH((lm_head_gradient_kernel<T>), row_blocks(chunk.n_rows), ZR_CUDA_THREADS, 0,
                       zr_cuda_queue(job->stream), reinterpret_cast<T *>(job->logits), chunk,
                       job->args->targets, job->log_sums, job->args->scale);
    });
    return zr_cuda_launched(job->stream, "lm_head gradient");
}

/* ---- the two passes through the vocabulary ---- */

static zr_status_t run_statistics(const lm_head_job_t *job) {
    const zr_nn_lm_head_t *args = job->args;
    for (size_t i = 0; i < job->n_chunks; i++) {
        chunk_t chunk = chunk_at(job, i);
        ZR_TRY(compute_logits(job, chunk));
        ZR_TRY(take_statistics(job, chunk));
    }
    ZR_CUDA_LAUNCH(lm_head_loss_kernel, 1, LOSS_THREADS, 0, zr_cuda_queue(job->stream), job->sums,
                   job->target_logits, args->targets, job->log_sums, args->n_rows, args->scale, args->loss);
    return zr_cuda_launched(job->stream, "lm_head loss");
}

/* Backwards, because the logits of the last chunk are still there. */
static zr_status_t run_gradients(const lm_head_job_t *job) {
    const zr_nn_lm_head_t *args = job->args;
    for (size_t i = job->n_chunks; i-- > 0;) {
        chunk_t chunk = chunk_at(job, i);
        if (i + 1 < job->n_chunks)
            ZR_TRY(compute_logits(job, chunk));
        ZR_TRY(differentiate(job, chunk));
        if (args->dx != NULL)
            ZR_TRY(add_to_dx(job, chunk));
        if (args->dweight.data != NULL)
            ZR_TRY(add_to_dweight(job, chunk));
    }
    if (job->dx == NULL)
        return ZR_OK;
    return zr_cuda_cast(job->stream, args->dx, args->activation_dtype, job->dx, ZR_DTYPE_F32,
                        args->n_rows * args->channels);
}

zr_status_t zr_cuda_nn_lm_head(zr_stream_t *stream, const void *arguments, void *workspace) {
    const zr_nn_lm_head_t *args = static_cast<const zr_nn_lm_head_t *>(arguments);
    bool wants_gradients = args->dx != NULL || args->dweight.data != NULL;
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
    ZR_TRY(run_statistics(&job));
    return wants_gradients ? run_gradients(&job) : ZR_OK;
}
