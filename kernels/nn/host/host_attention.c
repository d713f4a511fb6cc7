/*
 * Causal attention on the host. The heads of all sequences are shared among threads;
 * backward, those of keys with all queries' heads that go with one, which it adds up in
 * their order. A thread goes through a head in tiles of query rows; the scores of a tile
 * are one small matrix product over the keys from the first that its first row sees to the
 * last that its last row does, so that half of the work above the diagonal is never done,
 * nor what documents and windows hide.
 */
#include "kernels/nn/host/host_nn.h"

#include <math.h>
#include <string.h>

#define ZR_QUERY_ROWS ((size_t)64)

/* One head of queries of one sequence: its queries, keys and values are columns of qkv. */
typedef struct head {
    zr_host_matrix_t q, k, v;   /* [seq, head_size] */
    size_t q_offset, kv_offset; /* of its first element of the queries, of the keys, in qkv */
    size_t out_offset, out_ld;  /* the same in out */
    size_t log_sum_offset;
    const int32_t *document_starts; /* of the sequence; NULL: it is one document */
} head_t;

typedef struct attention_sizes {
    size_t batch, seq, heads, kv_heads, head_size, window;
    size_t ld; /* of qkv */
    const int32_t *document_starts;
    float scale;
} attention_sizes_t;

static attention_sizes_t sizes_of(const zr_nn_qkv_shape_t *shape, size_t window) {
    return (attention_sizes_t){.batch = shape->batch,
                               .seq = shape->seq,
                               .heads = shape->heads,
                               .kv_heads = shape->kv_heads,
                               .head_size = shape->head_size,
                               .window = window,
                               .ld = (shape->heads + 2 * shape->kv_heads) * shape->head_size,
                               .document_starts = shape->document_starts,
                               .scale = (float)(1.0 / sqrt((double)shape->head_size))};
}

static head_t find_head(const attention_sizes_t *sizes, const float *qkv, size_t index) {
    size_t b = index / sizes->heads, h = index % sizes->heads, size = sizes->head_size;
    size_t of_keys = h / (sizes->heads / sizes->kv_heads), row = b * sizes->seq;
    head_t head;
    head.out_ld = sizes->heads * size;
    head.out_offset = row * head.out_ld + h * size;
    head.q_offset = row * sizes->ld + h * size;
    head.kv_offset = row * sizes->ld + (sizes->heads + of_keys) * size;
    head.log_sum_offset = index * sizes->seq;
    head.document_starts = sizes->document_starts == NULL ? NULL : sizes->document_starts + row;
    head.q = (zr_host_matrix_t){qkv + head.q_offset, sizes->ld, false};
    head.k = (zr_host_matrix_t){qkv + head.kv_offset, sizes->ld, false};
    head.v = (zr_host_matrix_t){qkv + head.kv_offset + sizes->kv_heads * size, sizes->ld, false};
    return head;
}

/* The first key that a query sees; it does not go back from query to query. */
static size_t first_key(const attention_sizes_t *sizes, const head_t *head, size_t query) {
    size_t first = head->document_starts == NULL ? 0 : (size_t)head->document_starts[query];
    size_t of_window = 0;
    if (sizes->window != 0 && query + 1 > sizes->window)
        of_window = query + 1 - sizes->window;
    return first > of_window ? first : of_window;
}

/* A tile of queries, and the keys that any of them sees. */
typedef struct tile {
    size_t row, n_rows, key, n_keys;
} tile_t;

static tile_t find_tile(const attention_sizes_t *sizes, const head_t *head, size_t row) {
    tile_t tile = {.row = row, .n_rows = zr_host_nn_min(ZR_QUERY_ROWS, sizes->seq - row)};
    tile.key = first_key(sizes, head, row);
    tile.n_keys = row + tile.n_rows - tile.key;
    return tile;
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

static size_t n_head_tasks(const zr_device_t *device, size_t n_heads) {
    return zr_host_nn_min((size_t)device->info.n_threads, n_heads);
}

/* ---- forward ------------------------------------------------------------------------- */

typedef struct attention_job {
    zr_host_nn_job_t base;
    const zr_nn_attention_t *args;
    attention_sizes_t sizes;
    float *workspace; /* tile_elems for each task */
} attention_job_t;

/* The scores of a tile's row `i`: from where on, and how many it sees. */
static float *seen_scores(const attention_sizes_t *sizes, const head_t *head, const tile_t *tile,
                          float *scores, size_t i, size_t *n_p) {
    size_t query = tile->row + i, key = first_key(sizes, head, query);
    *n_p = query + 1 - key;
    return scores + i * tile->n_keys + (key - tile->key);
}

static int attend(const attention_job_t *job, const head_t *head, float *scores) {
    const attention_sizes_t *sizes = &job->sizes;
    float *out = (float *)job->args->out + head->out_offset;
    float *log_sum = job->args->log_sum + head->log_sum_offset;
    for (size_t row = 0; row < sizes->seq; row += ZR_QUERY_ROWS) {
        tile_t tile = find_tile(sizes, head, row);
        int status = zr_host_sgemm(tile.n_rows, tile.n_keys, sizes->head_size, sizes->scale,
                                   from_row(head->q, row), transposed(from_row(head->k, tile.key)),
                                   0.0f, scores, tile.n_keys);
        if (status != 0)
            return status;
        for (size_t i = 0; i < tile.n_rows; i++) {
            size_t n_seen;
            float *row_scores = scores + i * tile.n_keys;
            float *seen = seen_scores(sizes, head, &tile, scores, i, &n_seen);
            memset(row_scores, 0, (size_t)(seen - row_scores) * sizeof(float));
            log_sum[row + i] = job->base.loops->softmax_row(
                seen, n_seen, tile.n_keys - (size_t)(seen - row_scores));
        }
        zr_host_matrix_t p = {scores, tile.n_keys, false};
        status = zr_host_sgemm(tile.n_rows, sizes->head_size, tile.n_keys, 1.0f, p,
                               from_row(head->v, tile.key), 0.0f, out + row * head->out_ld,
                               head->out_ld);
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

size_t zr_host_nn_attention_bytes(const zr_device_t *device, const void *arguments) {
    const zr_nn_attention_t *args = arguments;
    return n_head_tasks(device, args->shape.batch * args->shape.heads) *
           tile_elems(args->shape.seq) * sizeof(float);
}

zr_status_t zr_host_nn_attention(zr_stream_t *stream, const void *arguments, void *workspace) {
    const zr_nn_attention_t *args = arguments;
    ZR_TRY(zr_host_nn_check_activations(stream, "attention", args->activation_dtype));
    ZR_TRY(zr_host_nn_check_documents(stream, "attention", &args->shape));
    attention_job_t job = {
        .base = {.loops = zr_host_nn_loops(stream->device),
                 .n_tasks = n_head_tasks(stream->device, args->shape.batch * args->shape.heads)},
        .args = args,
        .sizes = sizes_of(&args->shape, args->window),
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
static void differentiate_tile(const attention_backward_job_t *job, const head_t *head,
                               const tile_t *tile, float *scores, float *dscores) {
    const zr_nn_attention_backward_t *args = job->args;
    const zr_host_nn_loops_t *loops = job->base.loops;
    for (size_t i = 0; i < tile->n_rows; i++) {
        size_t offset = head->out_offset + (tile->row + i) * head->out_ld, n_seen;
        float delta = loops->dot((const float *)args->out + offset,
                                 (const float *)args->dout + offset, job->sizes.head_size);
        float *seen = seen_scores(&job->sizes, head, tile, scores, i, &n_seen);
        size_t row_begin = i * tile->n_keys, n_hidden = (size_t)(seen - scores) - row_begin;
        memset(scores + row_begin, 0, n_hidden * sizeof(float));
        memset(dscores + row_begin, 0, n_hidden * sizeof(float));
        loops->softmax_row_backward(seen, dscores + row_begin + n_hidden,
                                    args->log_sum[head->log_sum_offset + tile->row + i], delta,
                                    job->sizes.scale, n_seen, tile->n_keys - n_hidden);
    }
}

/* One tile of rows. Its part of dk and dv is added unless it is the first to come, whose keys are
   the last: the ones before those are cleared then. */
static int attend_tile_backward(const attention_backward_job_t *job, const head_t *head, size_t row,
                                bool is_first, float *scores) {
    const attention_sizes_t *sizes = &job->sizes;
    const tile_t tile = find_tile(sizes, head, row);
    size_t n_rows = tile.n_rows, n_keys = tile.n_keys, size = sizes->head_size, ld = sizes->ld;
    float *dscores = scores + tile_elems(sizes->seq), beta = is_first ? 0.0f : 1.0f;
    float *dq = (float *)job->args->dqkv + head->q_offset;
    float *dk = (float *)job->args->dqkv + head->kv_offset, *dv = dk + sizes->kv_heads * size;
    zr_host_matrix_t p = {scores, n_keys, false}, ds = {dscores, n_keys, false};
    zr_host_matrix_t q = from_row(head->q, row), k = from_row(head->k, tile.key);
    zr_host_matrix_t v = from_row(head->v, tile.key);
    zr_host_matrix_t dout = {(const float *)job->args->dout + head->out_offset + row * head->out_ld,
                             head->out_ld, false};

    for (size_t i = 0; is_first && i < tile.key; i++) {
        memset(dk + i * ld, 0, size * sizeof(float));
        memset(dv + i * ld, 0, size * sizeof(float));
    }
    dk += tile.key * ld;
    dv += tile.key * ld;
    int status =
        zr_host_sgemm(n_rows, n_keys, size, sizes->scale, q, transposed(k), 0.0f, scores, n_keys);
    if (status == 0)
        status =
            zr_host_sgemm(n_rows, n_keys, size, 1.0f, dout, transposed(v), 0.0f, dscores, n_keys);
    if (status != 0)
        return status;
    differentiate_tile(job, head, &tile, scores, dscores);
    status = zr_host_sgemm(n_keys, size, n_rows, 1.0f, transposed(p), dout, beta, dv, ld);
    if (status == 0)
        status = zr_host_sgemm(n_keys, size, n_rows, 1.0f, transposed(ds), q, beta, dk, ld);
    if (status == 0)
        status = zr_host_sgemm(n_rows, size, n_keys, 1.0f, ds, k, 0.0f, dq + row * ld, ld);
    return status;
}

/* A head of keys, with the queries' heads that go with it. */
static int attend_backward(const attention_backward_job_t *job, size_t index, float *scores) {
    size_t n_group = job->sizes.heads / job->sizes.kv_heads;
    size_t n_tiles = (job->sizes.seq + ZR_QUERY_ROWS - 1) / ZR_QUERY_ROWS;
    for (size_t h = 0; h < n_group; h++) {
        head_t head = find_head(&job->sizes, job->args->qkv, index * n_group + h);
        for (size_t i = n_tiles; i-- > 0;) {
            bool is_first = h == 0 && i + 1 == n_tiles;
            int status = attend_tile_backward(job, &head, i * ZR_QUERY_ROWS, is_first, scores);
            if (status != 0)
                return status;
        }
    }
    return 0;
}

static void attention_backward_task(void *context, size_t index) {
    attention_backward_job_t *job = context;
    size_t n_heads = job->sizes.batch * job->sizes.kv_heads;
    size_t first = zr_host_nn_part(n_heads, job->base.n_tasks, index, 1);
    size_t last = zr_host_nn_part(n_heads, job->base.n_tasks, index + 1, 1);
    float *scores = job->workspace + index * 2 * tile_elems(job->sizes.seq);
    for (size_t i = first; i < last; i++) {
        int status = attend_backward(job, i, scores);
        if (status != 0) {
            atomic_store(&job->base.status, status);
            return;
        }
    }
}

size_t zr_host_nn_attention_backward_bytes(const zr_device_t *device, const void *arguments) {
    const zr_nn_attention_backward_t *args = arguments;
    return n_head_tasks(device, args->shape.batch * args->shape.kv_heads) * 2 *
           tile_elems(args->shape.seq) * sizeof(float);
}

zr_status_t zr_host_nn_attention_backward(zr_stream_t *stream, const void *arguments,
                                          void *workspace) {
    const zr_nn_attention_backward_t *args = arguments;
    ZR_TRY(zr_host_nn_check_activations(stream, "attention_backward", args->activation_dtype));
    ZR_TRY(zr_host_nn_check_documents(stream, "attention_backward", &args->shape));
    attention_backward_job_t job = {
        .base = {.loops = zr_host_nn_loops(stream->device),
                 .n_tasks = n_head_tasks(stream->device, args->shape.batch * args->shape.kv_heads)},
        .args = args,
        .sizes = sizes_of(&args->shape, args->window),
        .workspace = workspace};
    return zr_host_nn_run(stream, &job.base, attention_backward_task, "attention_backward");
}
