/*
 * Embeddings on the host. Forward is a copy of rows. Backward sorts the occurrences of
 * tokens first: all of a token's rows are then added by one thread, in the order of
 * their positions, and rounded once.
 */
#include "kernels/nn/host/host_nn.h"

#include <string.h>

/* Rows of a table that a task clears at a time. */
#define ZR_CLEAR_ROWS ((size_t)256)

static zr_status_t check_tokens(const zr_stream_t *stream, const char *kernel,
                                const int32_t *tokens, size_t n, size_t vocab) {
    for (size_t i = 0; i < n; i++) {
        if (tokens[i] < 0 || (size_t)tokens[i] >= vocab)
            return zr_fail(&stream->device->log, ZR_ERR_ARGUMENT,
                           "%s: token %d at %zu is outside of the vocabulary of %zu", kernel,
                           (int)tokens[i], i, vocab);
    }
    return ZR_OK;
}

/* ---- forward ------------------------------------------------------------------------ */

static void embed_row(const zr_host_nn_job_t *job, size_t row) {
    const zr_nn_embedding_t *args = job->args;
    const zr_host_nn_loops_t *loops = job->loops;
    size_t token_row = (size_t)args->tokens[row] * args->channels;
    size_t start = args->document_starts != NULL ? (size_t)args->document_starts[row] : 0;
    size_t position_row = (row % args->seq - start) * args->channels;
    float *out = (float *)args->out + row * args->channels;
    float block[ZR_HOST_NN_BLOCK];
    for (size_t column = 0; column < args->channels; column += ZR_HOST_NN_BLOCK) {
        size_t n = zr_host_nn_min(ZR_HOST_NN_BLOCK, args->channels - column);
        const float *token = zr_host_nn_widen(loops, args->token_table, args->param_dtype,
                                              token_row + column, n, block);
        memcpy(out + column, token, n * sizeof(float));
        if (args->n_positions == 0)
            continue;
        const float *position = zr_host_nn_widen(loops, args->position_table, args->param_dtype,
                                                 position_row + column, n, block);
        loops->add(out + column, position, n);
    }
}

static void embedding_task(void *context, size_t index) {
    const zr_host_nn_job_t *job = context;
    const zr_nn_embedding_t *args = job->args;
    size_t n_rows = args->batch * args->seq;
    size_t first = zr_host_nn_part(n_rows, job->n_tasks, index, 1);
    size_t last = zr_host_nn_part(n_rows, job->n_tasks, index + 1, 1);
    for (size_t row = first; row < last; row++)
        embed_row(job, row);
}

zr_status_t zr_host_nn_embedding(zr_stream_t *stream, const void *arguments, void *workspace) {
    const zr_nn_embedding_t *args = arguments;
    (void)workspace;
    size_t n_rows = args->batch * args->seq;
    ZR_TRY(zr_host_nn_check_activations(stream, "embedding", args->activation_dtype));
    ZR_TRY(check_tokens(stream, "embedding", args->tokens, n_rows, args->vocab));
    zr_nn_qkv_shape_t documents = {args->batch, args->seq, 0, 0, 0, args->document_starts};
    ZR_TRY(zr_host_nn_check_documents(stream, "embedding", &documents));
    return zr_host_nn_run_tasks(stream, args, zr_host_nn_n_tasks(stream->device, n_rows),
                                embedding_task, "embedding");
}

/* ---- backward ------------------------------------------------------------------------- */

typedef struct embedding_backward_job {
    zr_host_nn_job_t base;
    const zr_nn_embedding_backward_t *args;
    const int32_t *order; /* rows of dout by token, then by position */
} embedding_backward_job_t;

/* Sort rows by token, stably: two or four passes over 8 bits each. The result is in `order`. */
static void sort_rows(const int32_t *tokens, size_t n_rows, size_t vocab, int32_t *order,
                      int32_t *other) {
    for (size_t i = 0; i < n_rows; i++)
        order[i] = (int32_t)i;
    int n_passes = vocab <= ((size_t)1 << 16) ? 2 : 4;
    for (int pass = 0; pass < n_passes; pass++) {
        size_t start[257] = {0};
        for (size_t i = 0; i < n_rows; i++)
            start[(((uint32_t)tokens[i] >> (8 * pass)) & 255) + 1]++;
        for (size_t i = 0; i < 256; i++)
            start[i + 1] += start[i];
        for (size_t i = 0; i < n_rows; i++) {
            int32_t row = order[i];
            other[start[((uint32_t)tokens[row] >> (8 * pass)) & 255]++] = row;
        }
        int32_t *swap = order;
        order = other;
        other = swap;
    }
}

static void clear_task(void *context, size_t index) {
    embedding_backward_job_t *job = context;
    const zr_nn_embedding_backward_t *args = job->args;
    size_t first = index * ZR_CLEAR_ROWS;
    size_t n_rows = zr_host_nn_min(ZR_CLEAR_ROWS, args->vocab - first);
    zr_host_nn_clear_gradient(&args->dtoken_table, args->param_dtype, first * args->channels,
                              n_rows * args->channels);
}

/* Add the rows order[first..last), all of one token, to its gradient. */
static void add_token(const embedding_backward_job_t *job, size_t first, size_t last) {
    const zr_nn_embedding_backward_t *args = job->args;
    const zr_host_nn_loops_t *loops = job->base.loops;
    size_t token = (size_t)args->tokens[job->order[first]];
    zr_nn_gradient_t gradient = {args->dtoken_table.data, true};
    float sum[ZR_HOST_NN_BLOCK];
    for (size_t column = 0; column < args->channels; column += ZR_HOST_NN_BLOCK) {
        size_t n = zr_host_nn_min(ZR_HOST_NN_BLOCK, args->channels - column);
        memset(sum, 0, sizeof(sum));
        for (size_t i = first; i < last; i++)
            loops->add(sum,
                       (const float *)args->dout + (size_t)job->order[i] * args->channels + column,
                       n);
        zr_host_nn_store_gradient(loops, &gradient, args->param_dtype,
                                  token * args->channels + column, sum, n);
    }
}

/* Tokens whose first occurrence lies in the task's part of the order. */
static void tokens_task(void *context, size_t index) {
    embedding_backward_job_t *job = context;
    const zr_nn_embedding_backward_t *args = job->args;
    const int32_t *order = job->order;
    size_t n_rows = args->batch * args->seq;
    size_t i = zr_host_nn_part(n_rows, job->base.n_tasks, index, 1);
    size_t last = zr_host_nn_part(n_rows, job->base.n_tasks, index + 1, 1);
    while (i > 0 && i < last && args->tokens[order[i]] == args->tokens[order[i - 1]])
        i++;
    while (i < last) {
        size_t end = i + 1;
        while (end < n_rows && args->tokens[order[end]] == args->tokens[order[i]])
            end++;
        add_token(job, i, end);
        i = end;
    }
}

/* Add the rows of a sequence that are at a position of their documents. */
static void add_position(const zr_host_nn_loops_t *loops, const zr_nn_embedding_backward_t *args,
                         size_t position, size_t first_row, size_t column, float *sum, size_t n) {
    const int32_t *starts = args->document_starts;
    size_t end = starts == NULL ? position + 1 : args->seq;
    for (size_t t = position; t < end; t++) {
        size_t row = first_row + t;
        if (starts == NULL || (size_t)starts[row] + position == t)
            loops->add(sum, (const float *)args->dout + row * args->channels + column, n);
    }
}

/* Position `index`: the sum over the batch; 0 beyond the sequence. */
static void position_task(void *context, size_t index) {
    embedding_backward_job_t *job = context;
    const zr_nn_embedding_backward_t *args = job->args;
    const zr_host_nn_loops_t *loops = job->base.loops;
    size_t n_rows = index < args->seq ? args->batch : 0;
    float sum[ZR_HOST_NN_BLOCK];
    for (size_t column = 0; column < args->channels; column += ZR_HOST_NN_BLOCK) {
        size_t n = zr_host_nn_min(ZR_HOST_NN_BLOCK, args->channels - column);
        memset(sum, 0, sizeof(sum));
        for (size_t b = 0; b < n_rows; b++)
            add_position(loops, args, index, b * args->seq, column, sum, n);
        zr_host_nn_store_gradient(loops, &args->dposition_table, args->param_dtype,
                                  index * args->channels + column, sum, n);
    }
}

size_t zr_host_nn_embedding_backward_bytes(const zr_device_t *device, const void *arguments) {
    const zr_nn_embedding_backward_t *args = arguments;
    (void)device;
    return args->dtoken_table.data == NULL ? 0 : 2 * args->batch * args->seq * sizeof(int32_t);
}

static zr_status_t token_table_backward(zr_stream_t *stream, embedding_backward_job_t *job,
                                        int32_t *workspace) {
    const zr_nn_embedding_backward_t *args = job->args;
    size_t n_rows = args->batch * args->seq;
    if (!args->dtoken_table.accumulate) {
        job->base.n_tasks = (args->vocab + ZR_CLEAR_ROWS - 1) / ZR_CLEAR_ROWS;
        ZR_TRY(zr_host_nn_run(stream, &job->base, clear_task, "embedding_backward"));
    }
    if (n_rows == 0)
        return ZR_OK;
    sort_rows(args->tokens, n_rows, args->vocab, workspace, workspace + n_rows);
    job->order = workspace;
    job->base.n_tasks = zr_host_nn_n_tasks(stream->device, n_rows);
    return zr_host_nn_run(stream, &job->base, tokens_task, "embedding_backward");
}

zr_status_t zr_host_nn_embedding_backward(zr_stream_t *stream, const void *arguments,
                                          void *workspace) {
    const zr_nn_embedding_backward_t *args = arguments;
    ZR_TRY(zr_host_nn_check_activations(stream, "embedding_backward", args->activation_dtype));
    ZR_TRY(check_tokens(stream, "embedding_backward", args->tokens, args->batch * args->seq,
                        args->vocab));
    zr_nn_qkv_shape_t documents = {args->batch, args->seq, 0, 0, 0, args->document_starts};
    ZR_TRY(zr_host_nn_check_documents(stream, "embedding_backward", &documents));
    embedding_backward_job_t job = {.base = {.loops = zr_host_nn_loops(stream->device)},
                                    .args = args};
    if (args->dtoken_table.data != NULL)
        ZR_TRY(token_table_backward(stream, &job, workspace));
    if (args->dposition_table.data == NULL)
        return ZR_OK;
    /* Where nothing is added, positions beyond the sequence need not be touched. */
    job.base.n_tasks = args->dposition_table.accumulate ? args->seq : args->n_positions;
    return zr_host_nn_run(stream, &job.base, position_task, "embedding_backward");
}
