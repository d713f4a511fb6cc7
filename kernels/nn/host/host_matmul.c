/*
 * Matrix products: the result is cut into a grid with one tile per thread, whose
 * products oneDNN computes; bias, residual and GELU follow on each tile.
 *
 * BF16 weights are widened block by block into the workspace, and a BF16 gradient is
 * computed block by block there, so that neither exists in fp32 as a whole.
 */
#include <string.h>

#include "kernels/base/background_internal.h"
#include "kernels/nn/host/host_nn.h"

/* Elements of a block, and its longer side: 1 MiB, near the size of a second cache. */
#define ZR_MATMUL_BLOCK_ELEMS ((size_t)1 << 18)
#define ZR_MATMUL_BLOCK_SIDE ((size_t)1 << 10)
/* A product with few rows and b transposed is faster turned over: c^T = b a^T. */
#define ZR_MATMUL_MAX_TURNED_ROWS ((size_t)192)
#define ZR_MATMUL_MIN_TURNED_SIDE ((size_t)64)
/* Products smaller than this are not worth waking threads for. */
#define ZR_MATMUL_MIN_OPERATIONS 200000.0

typedef struct matmul_job {
    zr_host_nn_job_t base;
    const zr_nn_matmul_t *args; /* lda and ldc are set */
    size_t grid_rows, grid_columns;
    float *workspace; /* ZR_MATMUL_BLOCK_ELEMS for each task, when there is one */
    bool turned;
    float *a_transposed; /* turned: [k, m] */
    float *c_transposed; /* turned: [n, m] */
} matmul_job_t;

typedef struct tile {
    size_t row, n_rows;
    size_t column, n_columns;
} tile_t;

static bool needs_block(const zr_nn_matmul_t *args) {
    return args->b_dtype == ZR_DTYPE_BF16 || args->c_dtype == ZR_DTYPE_BF16;
}

/* oneDNN copies b when it is transposed, which few rows of a do not repay. */
static bool is_turned(const zr_nn_matmul_t *args, size_t n_rows) {
    return args->transpose_b && !args->transpose_a && !needs_block(args) && !args->accumulate &&
           args->addend != args->c && n_rows <= ZR_MATMUL_MAX_TURNED_ROWS &&
           args->n >= ZR_MATMUL_MIN_TURNED_SIDE && args->k >= ZR_MATMUL_MIN_TURNED_SIDE;
}

size_t zr_host_nn_matmul_bytes(const zr_device_t *device, const void *arguments) {
    const zr_nn_matmul_t *args = arguments;
    bool varies = args->least_m != 0 && args->least_m < args->m;
    if (is_turned(args, varies ? args->least_m : args->m)) {
        size_t most = ZR_MATMUL_MAX_TURNED_ROWS < args->m ? ZR_MATMUL_MAX_TURNED_ROWS : args->m;
        return (args->k + args->n) * most * sizeof(float);
    }
    if (!needs_block(args))
        return 0;
    return (size_t)device->info.n_threads * ZR_MATMUL_BLOCK_ELEMS * sizeof(float);
}

/* The part of op(a) or op(b) whose first element is (row, column) of op. */
static zr_host_matrix_t part_of(const void *data, bool transpose, size_t ld, size_t row,
                                size_t column) {
    size_t offset = transpose ? column * ld + row : row * ld + column;
    return (zr_host_matrix_t){(const float *)data + offset, ld, transpose};
}

static zr_host_matrix_t part_of_a(const zr_nn_matmul_t *args, size_t row, size_t column) {
    return part_of(args->a, args->transpose_a, args->lda, row, column);
}

static zr_host_matrix_t part_of_b(const zr_nn_matmul_t *args, size_t row, size_t column) {
    return part_of(args->b, args->transpose_b, args->transpose_b ? args->k : args->n, row, column);
}

/* ---- the ways to a tile's product ------------------------------------------------ */

static int multiply_f32(const matmul_job_t *job, const tile_t *tile) {
    const zr_nn_matmul_t *args = job->args;
    return zr_host_sgemm(tile->n_rows, tile->n_columns, args->k, 1.0f,
                         part_of_a(args, tile->row, 0), part_of_b(args, 0, tile->column),
                         args->accumulate ? 1.0f : 0.0f,
                         (float *)args->c + tile->row * args->ldc + tile->column, args->ldc);
}

static int multiply_turned(const matmul_job_t *job, const tile_t *tile) {
    const zr_nn_matmul_t *args = job->args;
    zr_host_matrix_t b = {(const float *)args->b + tile->column * args->k, args->k, false};
    zr_host_matrix_t a = {job->a_transposed + tile->row, args->m, false};
    float *c = job->c_transposed + tile->column * args->m + tile->row;
    int status =
        zr_host_sgemm(tile->n_columns, tile->n_rows, args->k, 1.0f, b, a, 0.0f, c, args->m);
    if (status == 0)
        job->base.loops->transpose((float *)args->c + tile->row * args->ldc + tile->column,
                                   args->ldc, c, args->m, tile->n_columns, tile->n_rows);
    return status;
}

static void turn_a_task(void *context, size_t index) {
    matmul_job_t *job = context;
    const zr_nn_matmul_t *args = job->args;
    size_t first = zr_host_nn_part(args->k, job->base.n_tasks, index, 16);
    size_t n = zr_host_nn_part(args->k, job->base.n_tasks, index + 1, 16) - first;
    job->base.loops->transpose(job->a_transposed + first * args->m, args->m,
                               (const float *)args->a + first, args->lda, args->m, n);
}

/* op(b)[row.., column..] in fp32, stored as b is; n_rows x n_columns of op(b). */
static zr_host_matrix_t widen_b(const matmul_job_t *job, size_t row, size_t n_rows, size_t column,
                                size_t n_columns, float *block) {
    const zr_nn_matmul_t *args = job->args;
    const zr_bf16_t *b = args->b;
    if (args->transpose_b) {
        for (size_t i = 0; i < n_columns; i++)
            job->base.loops->widen(block + i * n_rows, b + (column + i) * args->k + row, n_rows);
        return (zr_host_matrix_t){block, n_rows, true};
    }
    for (size_t i = 0; i < n_rows; i++)
        job->base.loops->widen(block + i * n_columns, b + (row + i) * args->n + column, n_columns);
    return (zr_host_matrix_t){block, n_columns, false};
}

static int multiply_bf16_b(const matmul_job_t *job, const tile_t *tile, float *block) {
    const zr_nn_matmul_t *args = job->args;
    const size_t side = ZR_MATMUL_BLOCK_SIDE, width = ZR_MATMUL_BLOCK_ELEMS / side;
    int status = 0;
    for (size_t j = 0; j < tile->n_columns && status == 0; j += width) {
        size_t n_columns = zr_host_nn_min(width, tile->n_columns - j);
        float *c = (float *)args->c + tile->row * args->ldc + tile->column + j;
        for (size_t k = 0; (k < args->k || k == 0) && status == 0; k += side) {
            size_t n_k = zr_host_nn_min(side, args->k - k);
            zr_host_matrix_t b = widen_b(job, k, n_k, tile->column + j, n_columns, block);
            status =
                zr_host_sgemm(tile->n_rows, n_columns, n_k, 1.0f, part_of_a(args, tile->row, k), b,
                              k > 0 || args->accumulate ? 1.0f : 0.0f, c, args->ldc);
            zr_background();
        }
    }
    return status;
}

static int multiply_bf16_c(const matmul_job_t *job, const tile_t *tile, float *block) {
    const zr_nn_matmul_t *args = job->args;
    const size_t side = ZR_MATMUL_BLOCK_SIDE, height = ZR_MATMUL_BLOCK_ELEMS / side;
    const zr_nn_gradient_t c = {args->c, args->accumulate};
    for (size_t i = 0; i < tile->n_rows; i += height) {
        size_t n_rows = zr_host_nn_min(height, tile->n_rows - i);
        for (size_t j = 0; j < tile->n_columns; j += side) {
            size_t n_columns = zr_host_nn_min(side, tile->n_columns - j);
            size_t row = tile->row + i, column = tile->column + j;
            int status = zr_host_sgemm(n_rows, n_columns, args->k, 1.0f, part_of_a(args, row, 0),
                                       part_of_b(args, 0, column), 0.0f, block, n_columns);
            if (status != 0)
                return status;
            for (size_t r = 0; r < n_rows; r++)
                zr_host_nn_store_gradient(job->base.loops, &c, ZR_DTYPE_BF16,
                                          (row + r) * args->ldc + column, block + r * n_columns,
                                          n_columns);
            zr_background();
        }
    }
    return 0;
}

/* ---- epilogue ----------------------------------------------------------------------------- */

/* One row of a block of columns, at element `offset` of c. */
static void finish_row(const matmul_job_t *job, size_t offset, const float *bias, size_t n) {
    const zr_nn_matmul_t *args = job->args;
    const zr_host_nn_loops_t *loops = job->base.loops;
    float *c = (float *)args->c + offset;
    float *pre_gelu = args->pre_gelu == NULL ? NULL : (float *)args->pre_gelu + offset;
    if (bias != NULL)
        loops->add(c, bias, n);
    if (args->addend != NULL)
        loops->add(c, (const float *)args->addend + offset, n);
    if (args->epilogue == ZR_NN_EPILOGUE_GELU_BACKWARD)
        loops->gelu_backward(c, c, pre_gelu, n);
    if (args->epilogue == ZR_NN_EPILOGUE_GELU) {
        if (pre_gelu != NULL)
            memcpy(pre_gelu, c, n * sizeof(float));
        loops->gelu(c, c, n);
    }
}

static void finish_tile(const matmul_job_t *job, const tile_t *tile) {
    const zr_nn_matmul_t *args = job->args;
    if (args->bias == NULL && args->addend == NULL && args->epilogue == ZR_NN_EPILOGUE_NONE)
        return;
    float buffer[ZR_HOST_NN_BLOCK];
    for (size_t j = 0; j < tile->n_columns; j += ZR_HOST_NN_BLOCK) {
        size_t n = zr_host_nn_min(ZR_HOST_NN_BLOCK, tile->n_columns - j);
        size_t column = tile->column + j;
        const float *bias = NULL;
        if (args->bias != NULL)
            bias =
                zr_host_nn_widen(job->base.loops, args->bias, args->bias_dtype, column, n, buffer);
        for (size_t i = 0; i < tile->n_rows; i++)
            finish_row(job, (tile->row + i) * args->ldc + column, bias, n);
    }
}

/* ---- the kernel ----------------------------------------------------------------------------- */

static void matmul_task(void *context, size_t index) {
    matmul_job_t *job = context;
    const zr_nn_matmul_t *args = job->args;
    size_t i = index / job->grid_columns, j = index % job->grid_columns;
    tile_t tile;
    tile.row = zr_host_nn_part(args->m, job->grid_rows, i, 16);
    tile.n_rows = zr_host_nn_part(args->m, job->grid_rows, i + 1, 16) - tile.row;
    tile.column = zr_host_nn_part(args->n, job->grid_columns, j, 16);
    tile.n_columns = zr_host_nn_part(args->n, job->grid_columns, j + 1, 16) - tile.column;

    float *block = job->workspace + index * ZR_MATMUL_BLOCK_ELEMS;
    int status;
    if (job->turned)
        status = multiply_turned(job, &tile);
    else if (args->c_dtype == ZR_DTYPE_BF16)
        status = multiply_bf16_c(job, &tile, block);
    else if (args->b_dtype == ZR_DTYPE_BF16)
        status = multiply_bf16_b(job, &tile, block);
    else
        status = multiply_f32(job, &tile);
    if (status != 0)
        atomic_store(&job->base.status, status);
    else
        finish_tile(job, &tile);
}

/* Of the grids with a tile per thread, the one whose tiles have the shortest sides: each tile
   reads as many rows of op(a) and columns of op(b). */
static void choose_grid(matmul_job_t *job, size_t n_threads) {
    const zr_nn_matmul_t *args = job->args;
    job->grid_rows = job->grid_columns = 1;
    if (2.0 * (double)args->m * (double)args->n * (double)args->k < ZR_MATMUL_MIN_OPERATIONS)
        return;
    size_t best = SIZE_MAX;
    for (size_t rows = 1; rows <= n_threads; rows++) {
        if (n_threads % rows != 0)
            continue;
        size_t columns = n_threads / rows;
        size_t sides = args->m / rows + args->n / columns;
        if (sides < best) {
            best = sides;
            job->grid_rows = rows;
            job->grid_columns = columns;
        }
    }
}

zr_status_t zr_host_nn_matmul(zr_stream_t *stream, const void *arguments, void *workspace) {
    const zr_nn_matmul_t *args = arguments;
    bool c_is_gradient = args->c_dtype == ZR_DTYPE_BF16;
    if (args->a_dtype != ZR_DTYPE_F32 ||
        (c_is_gradient && (args->b_dtype != ZR_DTYPE_F32 || args->bias != NULL ||
                           args->addend != NULL || args->epilogue != ZR_NN_EPILOGUE_NONE)))
        return zr_fail(&stream->device->log, ZR_ERR_UNSUPPORTED,
                       "matmul: device \"host\" has no product %s x %s -> %s%s",
                       zr_dtype_name(args->a_dtype), zr_dtype_name(args->b_dtype),
                       zr_dtype_name(args->c_dtype), c_is_gradient ? " beyond a gradient" : "");
    zr_nn_matmul_t adjusted = *args;
    adjusted.lda = zr_nn_matmul_lda(args);
    adjusted.ldc = zr_nn_matmul_ldc(args);
    if (args->addend != NULL && args->addend == args->c) { /* the product adds to it itself */
        adjusted.addend = NULL;
        adjusted.accumulate = true;
    }
    matmul_job_t job = {.base = {.loops = zr_host_nn_loops(stream->device)},
                        .args = &adjusted,
                        .workspace = workspace};
    choose_grid(&job, (size_t)stream->device->info.n_threads);
    job.base.n_tasks = job.grid_rows * job.grid_columns;
    job.turned = is_turned(args, args->m);
    if (job.turned) {
        job.a_transposed = workspace;
        job.c_transposed = job.a_transposed + args->k * args->m;
        ZR_TRY(zr_host_nn_run(stream, &job.base, turn_a_task, "matmul"));
    }
    return zr_host_nn_run(stream, &job.base, matmul_task, "matmul");
}
