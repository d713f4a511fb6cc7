/*
 * A transformer's kernels on CUDA, one function each.
 *
 *   matmul_cuda.c            matrix products, through cuBLASLt
 *   bias_grad_cuda.cu        gradient of a bias
 *   layernorm_cuda.cu        layer normalisation, and that of the root mean square
 *   elementwise_nn_cuda.cu   GELU
 *   swiglu_cuda.cu           SwiGLU
 *   rotary_cuda.cu           rotary positions, normalisation of queries and keys
 *   attention_*cuda.cu       attention
 *   attention_cudnn.c        attention by cuDNN, described in attention_graph.c
 *   embedding_cuda.cu        both tables of an embedding
 *   lm_head_cuda.cu          logits, loss and their gradients
 *   cuda_nn.c                the table
 *
 * Activations have the dtype of the parameters. Arithmetic is fp32. No sum has an order that the
 * run could change: there are no atomics.
 */
#pragma once

#include "kernels/cuda/cuda_device.h"
#include "kernels/nn/cuda_sizes_internal.h"
#include "kernels/nn/nn.h"

ZR_BEGIN_C

extern const zr_nn_backend_t zr_cuda_nn_backend;

zr_nn_run_fn zr_cuda_nn_matmul, zr_cuda_nn_bias_grad, zr_cuda_nn_layernorm,
    zr_cuda_nn_layernorm_backward, zr_cuda_nn_gelu /* both */, zr_cuda_nn_swiglu,
    zr_cuda_nn_swiglu_backward, zr_cuda_nn_rotary, zr_cuda_nn_rotary_backward, zr_cuda_nn_attention,
    zr_cuda_nn_attention_backward, zr_cuda_nn_embedding, zr_cuda_nn_embedding_backward,
    zr_cuda_nn_lm_head;

ZR_END_C
