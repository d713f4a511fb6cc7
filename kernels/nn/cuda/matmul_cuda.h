/* What matrix products are made of beside cuBLASLt. */
#ifndef ZR_KERNELS_NN_CUDA_MATMUL_CUDA_H
#define ZR_KERNELS_NN_CUDA_MATMUL_CUDA_H

#include "kernels/nn/cuda/cuda_nn.h"

#ifdef __cplusplus
extern "C" {
#endif

/** c += bias, added in fp32 and rounded once; c is [m, n], with ldc elements from row to row. */
ZR_NODISCARD zr_status_t zr_cuda_add_bias(zr_stream_t *stream, const zr_nn_matmul_t *args, void *c);

#ifdef __cplusplus
}
#endif
#endif
