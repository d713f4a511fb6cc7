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

template <typename C, typename B>
static void launch(cudaStream_t queue, void *c, const void *bias, size_t n_elems,
                   size_t n_columns) {
    ZR_CUDA_LAUNCH((add_bias_kernel<C, B>), zr_cuda_blocks(n_elems), ZR_CUDA_THREADS, 0, queue,
                   static_cast<C *>(c), static_cast<const B *>(bias), n_elems, n_columns,
                   zr_is_wide(c));
}

zr_status_t zr_cuda_add_bias(zr_stream_t *stream, void *c, zr_dtype_t c_dtype, const void *bias,
                             zr_dtype_t bias_dtype, size_t m, size_t n) {
    cudaStream_t queue = zr_cuda_queue(stream);
    ZR_TRY(zr_cuda_enter(stream->device));
    if (c_dtype == ZR_DTYPE_F32 && bias_dtype == ZR_DTYPE_F32)
        launch<float, float>(queue, c, bias, m * n, n);
    else if (c_dtype == ZR_DTYPE_F32)
        launch<float, zr_bf16_t>(queue, c, bias, m * n, n);
    else if (bias_dtype == ZR_DTYPE_F32)
        launch<zr_bf16_t, float>(queue, c, bias, m * n, n);
    else
        launch<zr_bf16_t, zr_bf16_t>(queue, c, bias, m * n, n);
    return zr_cuda_launched(stream, "add_bias");
}
