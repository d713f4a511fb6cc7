/* The bias of a matrix product, where the product itself cannot add it. */
#include "kernels/cuda/cuda_pack.cuh"
#include "kernels/nn/cuda/matmul_cuda.h"

/* A pack may begin in one row and end in the next: the column of each element is its own. */
template <typename C, typename B>
static __global__ void __launch_bounds__(ZR_CUDA_THREADS)
    add_bias_kernel(C *__restrict__ c, const B *__restrict__ bias, size_t n_elems, size_t n_columns,
                    bool wide) {
    zr_for_packs<C>(n_elems, wide, [&](auto place) {
        zr_pack_t pack = place.load(c);
        size_t column = 0;
#pragma unroll
        for (int i = 0; i < ZR_PACK_ELEMS; i++) {
            column = i % place.PIECE == 0 ? place.index(i) % n_columns : column + 1;
            column = column < n_columns ? column : 0;
            if (place.index(i) < n_elems)
                pack.value[i] += zr_widen(bias[column]);
        }
        place.store(c, pack);
    });
}

/* Rows that are apart from each other. */
template <typename C, typename B>
static __global__ void __launch_bounds__(ZR_CUDA_THREADS)
    add_bias_apart_kernel(C *__restrict__ c, const B *__restrict__ bias, size_t n_elems,
                          size_t n_columns, size_t ldc) {
    size_t step = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n_elems; i += step) {
        C *element = c + i / n_columns * ldc + i % n_columns;
        zr_narrow(zr_widen(*element) + zr_widen(bias[i % n_columns]), element);
    }
}

zr_status_t zr_cuda_add_bias(zr_stream_t *stream, const zr_nn_matmul_t *args, void *c) {
    size_t n_elems = args->m * args->n, ldc = zr_nn_matmul_ldc(args);
    ZR_TRY(zr_cuda_enter(stream->device));
    zr_by_dtypes(args->c_dtype, args->bias_dtype, [&](auto of_c, auto of_bias) {
        using C = decltype(of_c);
        using B = decltype(of_bias);
        C *to = static_cast<C *>(c);
        const B *bias = static_cast<const B *>(args->bias);
        if (ldc == args->n)
            ZR_CUDA_LAUNCH((add_bias_kernel<C, B>), zr_cuda_blocks(n_elems), ZR_CUDA_THREADS, 0,
                           zr_cuda_queue(stream), to, bias, n_elems, args->n, zr_is_wide(c));
        else
            ZR_CUDA_LAUNCH((add_bias_apart_kernel<C, B>), zr_cuda_blocks(n_elems), ZR_CUDA_THREADS,
                           0, zr_cuda_queue(stream), to, bias, n_elems, args->n, ldc);
    });
    return zr_cuda_launched(stream, "add_bias");
}
