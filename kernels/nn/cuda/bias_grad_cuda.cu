/*
 * Sums over rows on CUDA, in two stages: blocks add up parts of 128 rows, then the parts of each
 * column are added. Rows and parts are added in an order that depends on sizes alone. Partial sums
 * are 3% (bf16) of what is read.
 */
#include "kernels/nn/cuda/rows_cuda.cuh"

#define ZR_LANES_OF_ROWS 8 /* rows that a block adds up beside each other: a warp each */
#define ZR_ROWS_AT_ONCE 4  /* of a warp */
#define ZR_ROWS_APART (ZR_LANES_OF_ROWS * ZR_ROWS_AT_ONCE)

/* ---- the sum of the partials ---------------------------------------------------------------- */

template <typename T>
static __global__ void __launch_bounds__(ZR_WARP *ZR_LANES_OF_ROWS)
    sum_partials_kernel(T *gradient, bool accumulate, zr_column_sums_t sums) {
    __shared__ float lanes[ZR_LANES_OF_ROWS][ZR_WARP];
    for (size_t first = (size_t)blockIdx.x * ZR_WARP; first < sums.n_columns;
         first += (size_t)gridDim.x * ZR_WARP) {
        size_t column = first + threadIdx.x;
        bool is_column = column < sums.n_columns;
        float sum = 0.0f;
        for (size_t i = threadIdx.y; is_column && i < sums.n_partials; i += ZR_LANES_OF_ROWS)
            sum += sums.partials[i * sums.pitch + column];
        lanes[threadIdx.y][threadIdx.x] = sum;
        __syncthreads();
        if (threadIdx.y == 0 && is_column) {
            for (int i = 1; i < ZR_LANES_OF_ROWS; i++)
                sum += lanes[i][threadIdx.x];
            if (accumulate)
                sum += zr_widen(gradient[column]);
            zr_narrow(sum, &gradient[column]);
        }
        __syncthreads(); /* the lanes are written again */
    }
}

zr_status_t zr_cuda_nn_sum_partials(zr_stream_t *stream, const zr_column_sums_t *sums,
                                    const zr_nn_gradient_t *gradient, zr_dtype_t dtype,
                                    const char *name) {
    size_t n_tiles = (sums->n_columns + ZR_WARP - 1) / ZR_WARP;
    unsigned blocks = n_tiles < ZR_CUDA_MAX_BLOCKS ? (unsigned)n_tiles : ZR_CUDA_MAX_BLOCKS;
    dim3 threads(ZR_WARP, ZR_LANES_OF_ROWS);
    zr_by_dtype(dtype, [&](auto element) {
        using T = decltype(element);
        ZR_CUDA_LAUNCH((sum_partials_kernel<T>), blocks, threads, 0, zr_cuda_queue(stream),
                       static_cast<T *>(gradient->data), gradient->accumulate, *sums);
    });
    return zr_cuda_launched(stream, name);
}

/* ---- the gradient of a bias ----------------------------------------------------------------- */

/* Add the packs of a few rows, ZR_LANES_OF_ROWS apart, whose loads are under way together. */
template <typename T>
static __device__ inline void add_rows(const T *dy, size_t ld, size_t row, size_t end, size_t first,
                                       int n, bool wide, float (&sum)[ZR_PACK_ELEMS]) {
    zr_raw_pack_t<T> raw[ZR_ROWS_AT_ONCE];
#pragma unroll
    for (int r = 0; r < ZR_ROWS_AT_ONCE; r++) {
        size_t at = row + r * ZR_LANES_OF_ROWS;
        raw[r] = zr_load_raw(dy + at * ld, first, at < end ? n : 0, wide);
    }
#pragma unroll
    for (int r = 0; r < ZR_ROWS_AT_ONCE; r++) {
#pragma unroll
        for (int i = 0; i < ZR_PACK_ELEMS; i++)
            sum[i] += zr_raw_value(raw[r], i);
    }
}

/* A block takes a tile of columns of a part of the rows; each warp every eighth row of it. */
template <typename T>
static __global__ void __launch_bounds__(ZR_WARP *ZR_LANES_OF_ROWS)
    bias_grad_kernel(float *__restrict__ partials, const T *__restrict__ dy, size_t n_rows,
                     size_t n_columns, size_t ld, bool wide) {
    __shared__ float sums[ZR_LANES_OF_ROWS][ZR_PACK_ELEMS][ZR_WARP];
    size_t n_tiles = (n_columns + ZR_TILE_ELEMS - 1) / ZR_TILE_ELEMS;
    size_t n_parts = (n_rows + ZR_CUDA_ROWS_PER_PARTIAL - 1) / ZR_CUDA_ROWS_PER_PARTIAL;
    for (size_t item = blockIdx.x; item < n_tiles * n_parts; item += gridDim.x) {
        size_t part = item / n_tiles, tile = item % n_tiles * ZR_TILE_ELEMS;
        size_t first = tile + (size_t)threadIdx.x * ZR_PACK_ELEMS;
        size_t begin = part * ZR_CUDA_ROWS_PER_PARTIAL, left = n_rows - begin;
        size_t end = begin + (left < ZR_CUDA_ROWS_PER_PARTIAL ? left : ZR_CUDA_ROWS_PER_PARTIAL);
        int n = zr_row_pack_length(first, n_columns);
        float sum[ZR_PACK_ELEMS] = {0};
        for (size_t row = begin + threadIdx.y; n > 0 && row < end; row += ZR_ROWS_APART)
            add_rows(dy, ld, row, end, first, n, wide, sum);
#pragma unroll
        for (int i = 0; i < ZR_PACK_ELEMS; i++)
            sums[threadIdx.y][i][threadIdx.x] = sum[i];
        __syncthreads();
        /* Now a warp has the same element of all packs. */
        static_assert(ZR_LANES_OF_ROWS == ZR_PACK_ELEMS, "one warp for each element of a pack");
        size_t column = first + threadIdx.y;
        float total = 0.0f;
#pragma unroll
        for (int i = 0; i < ZR_LANES_OF_ROWS; i++)
            total += sums[i][threadIdx.y][threadIdx.x];
        if (column < n_columns)
            partials[part * n_columns + column] = total;
        __syncthreads(); /* the sums are written again */
    }
}

zr_status_t zr_cuda_nn_bias_grad(zr_stream_t *stream, const void *arguments, void *workspace) {
    const zr_nn_bias_grad_t *args = static_cast<const zr_nn_bias_grad_t *>(arguments);
    float *partials = static_cast<float *>(workspace);
    size_t n_tiles = (args->n_columns + ZR_TILE_ELEMS - 1) / ZR_TILE_ELEMS;
    size_t n_partials = zr_cuda_bias_grad_n_partials(args->n_rows), n_items = n_tiles * n_partials;
    unsigned blocks = n_items < ZR_CUDA_MAX_BLOCKS ? (unsigned)n_items : ZR_CUDA_MAX_BLOCKS;
    ZR_TRY(zr_cuda_nn_check_dtypes(stream, "bias_grad", args->activation_dtype, args->param_dtype));
    ZR_TRY(zr_cuda_enter(stream->device));
    size_t ld = args->ld_dy != 0 ? args->ld_dy : args->n_columns;
    if (args->n_rows > 0) {
        zr_by_dtype(args->activation_dtype, [&](auto element) {
            using T = decltype(element);
            ZR_CUDA_LAUNCH((bias_grad_kernel<T>), blocks, dim3(ZR_WARP, ZR_LANES_OF_ROWS), 0,
                           zr_cuda_queue(stream), partials, static_cast<const T *>(args->dy),
                           args->n_rows, args->n_columns, ld,
                           zr_has_wide_rows(args->dy, ld) &&
                               zr_has_wide_rows(args->dy, args->n_columns));
        });
        ZR_TRY(zr_cuda_launched(stream, "bias_grad"));
    }
    zr_column_sums_t sums = {partials, n_partials, args->n_columns, args->n_columns};
    return zr_cuda_nn_sum_partials(stream, &sums, &args->dbias, args->param_dtype,
                                   "bias_grad (sum)");
}
