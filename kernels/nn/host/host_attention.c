/*
 * Causal attention on the host. The heads of all sequences are shared among threads.
 * A thread goes through a head in tiles of query rows; the scores of a tile are one
 * small matrix product over the keys that its last row sees, so that half of the work
 * above the diagonal is never done.
 */
#include "kernels/nn/host/host_nn.h"

#include <math.h>

#define ZR_QUERY_ROWS ((size_t)64)

/* One head of one sequence: its queries, keys and values are columns of qkv. */
typedef struct head {
    zr_host_matrix_t q, k, v; /* [seq, head_size] */
    size_t out_offset;        /* of its first element in out */
    size_t out_ld;
    size_t qkv_offset;
    size_t log_sum_offset;
} head_t;

typedef struct attention_sizes {
    size_t batch, seq, heads, head_size;
    float scale;
} attention_sizes_t;

static attention_sizes_t sizes_of(size_t batch, size_t seq, size_t heads, size_t head_size) {
    return (attention_sizes_t){batch, seq, heads, head_size,
                               (float)(1.0 / sqrt((double)head_size))};
}

static head_t find_head(const attention_sizes_t *sizes, const float *qkv, size_t index) {
    size_t b = index / sizes->heads, h = index % sizes->heads;
    size_t channels = sizes->heads * sizes->head_size;
    head_t head;
    head.out_ld = channels;
    head.out_offset = b * sizes->seq * channels + h * sizes->head_size;
    head.qkv_offset = b * sizes->seq * 3 * channels + h * sizes->head_size;
    head.log_sum_offset = index * sizes->seq;
    head.q = (zr_host_matrix_t){qkv + head.qkv_offset, 3 * channels, false};
    head.k = (zr_host_matrix_t){qkv + head.qkv_offset + channels, 3 * channels, false};
    head.v = (zr_host_matrix_t){qkv + head.qkv_offset + 2 * channels, 3 * channels, false};
    return head;
}

static zr_host_matrix_t from_row(zr_host_matrix_t matrix, size_t row) {
    matrix.data += row * matrix.ld;
    return matrix;
}

static zr_host_matrix_t transposed(zr_host_matrix_t matrix) {
    matrix.transpose = true;
    return matrix;
}

/* Floats of one tile of scores. */
static size_t tile_elems(size_t seq) {
    return zr_host_nn_min(ZR_QUERY_ROWS, seq) * seq;
}

static size_t n_head_tasks(const zr_device_t *device, size_t batch, size_t heads) {
    return zr_host_nn_min((size_t)device->info.n_threads, batch * heads);
}

/* ---- forward ------------------------------------------------------------------------- */

typedef struct attention_job {
    zr_host_nn_job_t base;
    const zr_nn_attention_t *args;
    attention_sizes_t sizes;
    float *workspace; /* tile_elems for each task */
} attention_job_t;

static int attend(const attention_job_t *job, const head_t *head, float *scores) {
    const attention_sizes_t *sizes = &job->sizes;
    float *out = (float *)job->args->out + head->out_offset;
    float *log_sum = job->args->log_sum + head->log_sum_offset;
    for (size_t row = 0; row < sizes->seq; row += ZR_QUERY_ROWS) {
        size_t n_rows = zr_host_nn_min(ZR_QUERY_ROWS, sizes->seq - row);
        size_t n_keys = row + n_rows;
        int status =
            zr_host_sgemm(n_rows, n_keys, sizes->head_size, sizes->scale, from_row(head->q, row),
                          transposed(head->k), 0.0f, scores, n_keys);
        if (status != 0)
            return status;
        for (size_t i = 0; i < n_rows; i++)
            log_sum[row + i] =
                job->base.loops->softmax_row(scores + i * n_keys, row + i + 1, n_keys);
        zr_host_matrix_t p = {scores, n_keys, false};
        status = zr_host_sgemm(n_rows, sizes->head_size, n_keys, 1.0f, p, head->v, 0.0f,
                               out + row * head->out_ld, head->out_ld);
        if (status != 0)
            return status;
    }
    return 0;
}

static void attention_task(void *context, size_t index) {
    attention_job_t *job = context;
    size_t n_heads = job->sizes.batch * job->sizes.heads;
    size_t first = zr_host_nn_part(n_heads, job->base.n_tasks, index, 1);
    size_t last = zr_host_nn_part(n_heads, job->base.n_tasks, index + 1, 1);
    float *scores = job->workspace + index * tile_elems(job->sizes.seq);
    for (size_t i = first; i < last; i++) {
        head_t head = find_head(&job->sizes, job->args->qkv, i);
        int status = attend(job, &head, scores);
        if (status != 0) {
            atomic_store(&job->base.status, status);
            return;
        }
    }
}

size_t zr_host_nn_attention_workspace_bytes(const zr_device_t *device,
                                            const zr_nn_attention_t *args) {
    return n_head_tasks(device, args->batch, args->heads) * tile_elems(args->seq) * sizeof(float);
}

zr_status_t zr_host_nn_attention(zr_stream_t *stream, const zr_nn_attention_t *args,
                                 void *workspace) {
    ZR_TRY(zr_host_nn_check_activations(stream, "attention", args->activation_dtype));
    attention_job_t job = {
        .base = {.loops = zr_host_nn_loops(stream->device),
                 .n_tasks = n_head_tasks(stream->device, args->batch, args->heads)},
        .args = args,
        .sizes = sizes_of(args->batch, args->seq, args->heads, args->head_size),
        .workspace = workspace};
    return zr_host_nn_run(stream, &job.base, attention_task, "attention");
}

/* ---- backward -------------------------------------------------------------------------- */

typedef struct attention_backward_job {
    zr_host_nn_job_t base;
    const zr_nn_attention_backward_t *args;
    attention_sizes_t sizes;
    float *workspace; /* 2 tile_elems for each task */
} attention_backward_job_t;

/* Scores become probabilities, dscores their gradient, which start as the gradient of the
   probabilities; the row's dot product of out and dout stands for its sum over p dp. */
static void differentiate_tile(const attention_backward_job_t *job, const head_t *head, size_t row,
                               size_t n_rows, float *scores, float *dscores) {
    const zr_nn_attention_backward_t *args = job->args;
    const zr_host_nn_loops_t *loops = job->base.loops;
    size_t n_keys = row + n_rows;
    for (size_t i = 0; i < n_rows; i++) {
        size_t offset = head->out_offset + (row + i) * head->out_ld;
        float delta = loops->dot((const float *)args->out + offset,
                                 (const float *)args->dout + offset, job->sizes.head_size);
        loops->softmax_row_backward(scores + i * n_keys, dscores + i * n_keys,
                                    args->log_sum[head->log_sum_offset + row + i], delta,
                                    job->sizes.scale, row + i + 1, n_keys);
    }
}

/* One tile of rows: its part of dk and dv is added unless it is the first, which sees all keys. */
static int attend_tile_backward(const attention_backward_job_t *job, const head_t *head, size_t row,
                                size_t n_rows, float beta, float *scores) {
    const attention_sizes_t *sizes = &job->sizes;
    size_t n_keys = row + n_rows, channels = sizes->heads * sizes->head_size, ld = 3 * channels;
    float *dscores = scores + tile_elems(sizes->seq);
    float *dq = (float *)job->args->dqkv + head->qkv_offset;
    float *dk = dq + channels, *dv = dk + channels;
    zr_host_matrix_t p = {scores, n_keys, false}, ds = {dscores, n_keys, false};
    zr_host_matrix_t dout = {(const float *)job->args->dout + head->out_offset + row * head->out_ld,
                             head->out_ld, false};

    int status = zr_host_sgemm(n_rows, n_keys, sizes->head_size, sizes->scale,
                               from_row(head->q, row), transposed(head->k), 0.0f, scores, n_keys);
    if (status == 0)
        status = zr_host_sgemm(n_rows, n_keys, sizes->head_size, 1.0f, dout, transposed(head->v),
                               0.0f, dscores, n_keys);
    if (status != 0)
        return status;
    differentiate_tile(job, head, row, n_rows, scores, dscores);
    status =
        zr_host_sgemm(n_keys, sizes->head_size, n_rows, 1.0f, transposed(p), dout, beta, dv, ld);
    if (status == 0)
        status = zr_host_sgemm(n_keys, sizes->head_size, n_rows, 1.0f, transposed(ds),
                               from_row(head->q, row), beta, dk, ld);
    if (status == 0)
        status = zr_host_sgemm(n_rows, sizes->head_size, n_keys, 1.0f, ds, head->k, 0.0f,
                               dq + row * ld, ld);
    return status;
}

static int attend_backward(const attention_backward_job_t *job, const head_t *head, float *scores) {
    size_t seq = job->sizes.seq;
    size_t n_tiles = (seq + ZR_QUERY_ROWS - 1) / ZR_QUERY_ROWS;
    for (size_t i = n_tiles; i-- > 0;) {
        size_t row = i * ZR_QUERY_ROWS;
        int status = attend_tile_backward(job, head, row, zr_host_nn_min(ZR_QUERY_ROWS, seq - row),
                                          i + 1 == n_tiles ? 0.0f : 1.0f, scores);
        if (status != 0)
            return status;
    }
    return 0;
}

static void attention_backward_task(void *context, size_t index) {
    attention_backward_job_t *job = context;
    size_t n_heads = job->sizes.batch * job->sizes.heads;
    size_t first = zr_host_nn_part(n_heads, job->base.n_tasks, index, 1);
    size_t last = zr_host_nn_part(n_heads, job->base.n_tasks, index + 1, 1);
    float *scores = job->workspace + index * 2 * tile_elems(job->sizes.seq);
    for (size_t i = first; i < last; i++) {
        head_t head = find_head(&job->sizes, job->args->qkv, i);
        int status = attend_backward(job, &head, scores);
        if (status != 0) {
            atomic_store(&job->base.status, status);
            return;
        }
    }
}

size_t zr_host_nn_attention_backward_workspace_bytes(const zr_device_t *device,
                                                     const zr_nn_attention_backward_t *args) {
    return n_head_tasks(device, args->batch, args->heads) * 2 * tile_elems(args->seq) *
           sizeof(float);
}

zr_status_t zr_host_nn_attention_backward(zr_stream_t *stream,
                                          const zr_nn_attention_backward_t *args, void *workspace) {
    ZR_TRY(zr_host_nn_check_activations(stream, "attention_backward", args->activation_dtype));
    attention_backward_job_t job = {
        .base = {.loops = zr_host_nn_loops(stream->device),
                 .n_tasks = n_head_tasks(stream->device, args->batch, args->heads)},
        .args = args,
        .sizes = sizes_of(args->batch, args->seq, args->heads, args->head_size),
        .workspace = workspace};
    return zr_host_nn_run(stream, &job.base, attention_backward_task, "attention_backward");
}
