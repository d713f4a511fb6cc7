/* Matrix products for other kernels of this folder, with rows apart from each other. */
#ifndef ZR_KERNELS_NN_CUDA_MATMUL_CUDA_H
#define ZR_KERNELS_NN_CUDA_MATMUL_CUDA_H

#include "kernels/nn/cuda/cuda_nn.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct zr_cuda_product {
    zr_nn_matmul_t args;
    size_t lda, ldc; /* elements from row to row of a and of c; 0: rows are dense. An addend and
                        pre_gelu are as c */
} zr_cuda_product_t;

/** As zr_cuda_nn_matmul; the workspace is of zr_cuda_matmul_workspace_bytes. */
ZR_NODISCARD zr_status_t zr_cuda_matmul(zr_stream_t *stream, const zr_cuda_product_t *product,
                                        void *workspace);

/** c += bias, added in fp32 and rounded once; c is [m, n], dense. */
ZR_NODISCARD zr_status_t zr_cuda_add_bias(zr_stream_t *stream, void *c, zr_dtype_t c_dtype,
                                          const void *bias, zr_dtype_t bias_dtype, size_t m,
                                          size_t n);

#ifdef __cplusplus
}
#endif
#endif
