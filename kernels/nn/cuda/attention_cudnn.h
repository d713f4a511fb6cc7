/*
 * Attention by cuDNN's fused kernels, where a caller asks for them (ZR_NN_ENGINE_CUDNN) and cuDNN
 * has a plan for the sizes: bf16, and what zr_cuda_attention_is_cudnns says. All else is ours.
 * Which of the two it is depends on sizes, cuDNN's version and the GPU, never on addresses that
 * models use, times or what is free: see zr_nn_attention_open for what ranks agree on.
 */
#pragma once

#include "kernels/nn/cuda/cuda_nn.h"

ZR_BEGIN_C

/** Of either pass; forward: dout is NULL. */
typedef struct zr_cuda_attention_work {
    zr_nn_qkv_shape_t shape;
    size_t window;
    const void *qkv, *dout;
    void *out, *dqkv; /* of the backward pass out is read only */
    float *log_sum;
    void *workspace;
    size_t workspace_bytes;
} zr_cuda_attention_work_t;

/** Queue it. *is_done_p: false where cuDNN has no plan for it; said once for each size. */
ZR_NODISCARD zr_status_t zr_cuda_attention_cudnn(zr_stream_t *stream,
                                                 const zr_cuda_attention_work_t *work,
                                                 bool *is_done_p);

/** The entry of the backend (kernels/nn/nn.h). */
zr_status_t zr_cuda_nn_attention_open(zr_device_t *device, zr_nn_engine_info_t *info_p);

ZR_END_C
