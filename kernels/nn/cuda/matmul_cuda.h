/* What matrix products are made of beside cuBLASLt. */
#pragma once

#include "kernels/nn/cuda/cuda_nn.h"

ZR_BEGIN_C

/** c += bias, added in fp32 and rounded once; c is [m, n], with ldc elements from row to row. */
ZR_NODISCARD zr_status_t zr_cuda_add_bias(zr_stream_t *stream, const zr_nn_matmul_t *args, void *c);

ZR_END_C
