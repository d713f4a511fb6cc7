/*
 * Sum of squares on CUDA, in the order that kernels/sum_of_squares_math.h writes down: one block
 * of threads for each block of elements, a thread for each lane, then one block of threads for
 * the blocks' sums.
 */
#include "kernels/cuda/cuda_pack.cuh"
#include "kernels/sum_of_squares_math.h"

/* Add the block's lanes, one per thread; thread 0 has the sum, and others have no part of it. */
static __device__ double add_lanes(double lane, double *lanes) {
    lanes[threadIdx.x] = lane;
    for (unsigned width = ZR_SUM_OF_SQUARES_LANES / 2; width > 0; width /= 2) {
        __syncthreads();
        if (threadIdx.x < width)
            lanes[threadIdx.x] += lanes[threadIdx.x + width];
    }
    return threadIdx.x == 0 ? lanes[0] : 0.0; /* which thread 0 wrote last, without a barrier */
}

/* Elements of a lane whose reads are under way at a time: the sum, which has to go on in order,
 * would else wait for the memory again and again. */
#define ELEMS_AT_ONCE 16

static __device__ inline double add_square(double sum, float x) {
    double value = x;
    return fma(value, value, sum); /* the square is exact: fused or not is the same */
}

/* The thread's lane of n elements, in their order. */
template <typename T> static __device__ inline double sum_lane(const T *x, size_t n) {
    const size_t at_once = ELEMS_AT_ONCE * ZR_SUM_OF_SQUARES_LANES;
    size_t first = threadIdx.x;
    double lane = 0;
    for (; first - threadIdx.x + at_once <= n; first += at_once) {
        T values[ELEMS_AT_ONCE];
#pragma unroll
        for (int i = 0; i < ELEMS_AT_ONCE; i++)
            values[i] = x[first + i * ZR_SUM_OF_SQUARES_LANES];
#pragma unroll
        for (int i = 0; i < ELEMS_AT_ONCE; i++)
            lane = add_square(lane, zr_widen(values[i]));
    }
    for (; first < n; first += ZR_SUM_OF_SQUARES_LANES)
        lane = add_square(lane, zr_widen(x[first]));
    return lane;
}

template <typename T>
static __global__ void __launch_bounds__(ZR_SUM_OF_SQUARES_LANES)
    sum_of_squares_blocks_kernel(const T *__restrict__ x, size_t n_elems, size_t n_blocks,
                                 double *__restrict__ sums) {
    __shared__ double lanes[ZR_SUM_OF_SQUARES_LANES];
    for (size_t block = blockIdx.x; block < n_blocks; block += gridDim.x) {
        size_t begin = block * ZR_SUM_OF_SQUARES_BLOCK;
        size_t left = n_elems - begin;
        size_t n = left < ZR_SUM_OF_SQUARES_BLOCK ? left : ZR_SUM_OF_SQUARES_BLOCK;
        double sum = add_lanes(sum_lane(x + begin, n), lanes);
        if (threadIdx.x == 0)
            sums[block] = sum;
        __syncthreads(); /* the lanes are written again */
    }
}

static __global__ void __launch_bounds__(ZR_SUM_OF_SQUARES_LANES)
    sum_of_squares_final_kernel(const double *__restrict__ sums, size_t n_blocks,
                                double *__restrict__ result) {
    __shared__ double lanes[ZR_SUM_OF_SQUARES_LANES];
    double lane = 0;
    for (size_t i = threadIdx.x; i < n_blocks; i += ZR_SUM_OF_SQUARES_LANES)
        lane += sums[i];
    double sum = add_lanes(lane, lanes);
    if (threadIdx.x == 0)
        *result = sum;
}

zr_status_t zr_cuda_sum_of_squares(zr_stream_t *stream, const void *x, zr_dtype_t dtype,
                                   size_t n_elems, double *result, void *workspace) {
    cudaStream_t queue = zr_cuda_queue(stream);
    ZR_TRY(zr_cuda_enter(stream->device));
    size_t n_blocks = zr_sum_of_squares_n_blocks(n_elems);
    /* One block has no workspace, and its sum is the result: the other lanes would add zeros. */
    double *sums = n_blocks > 1 ? static_cast<double *>(workspace) : result;
    if (n_blocks > 0) {
        zr_by_dtype(dtype, [&](auto element) {
            using T = decltype(element);
            unsigned grid = n_blocks < ZR_CUDA_MAX_BLOCKS ? (unsigned)n_blocks : ZR_CUDA_MAX_BLOCKS;
            ZR_CUDA_LAUNCH((sum_of_squares_blocks_kernel<T>), grid, ZR_SUM_OF_SQUARES_LANES, 0,
                           queue, static_cast<const T *>(x), n_elems, n_blocks, sums);
        });
        ZR_TRY(zr_cuda_launched(stream, "sum_of_squares (blocks)"));
    }
    if (n_blocks == 1)
        return ZR_OK;
    ZR_CUDA_LAUNCH(sum_of_squares_final_kernel, 1, ZR_SUM_OF_SQUARES_LANES, 0, queue, sums,
                   n_blocks, result);
    return zr_cuda_launched(stream, "sum_of_squares (final)");
}
