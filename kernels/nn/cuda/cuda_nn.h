/*
 * A transformer's kernels on CUDA: entries of the table in nn.h, one function each, with that
 * entry's signature.
 *
 *   matmul_cuda.c            matrix products, through cuBLASLt
 *   bias_grad_cuda.cu        gradient of a bias
 *   layernorm_cuda.cu        layer normalisation
 *   elementwise_nn_cuda.cu   GELU
 *   attention_cuda*.cu       attention
 *   embedding_cuda.cu        both tables of an embedding
 *   lm_head_cuda.cu          logits, loss and their gradients
 *   cuda_nn.c                the table
 *
 * Activations have the dtype of the parameters. Arithmetic is fp32. No sum has an order that the
 * run could change: there are no atomics.
 */
#ifndef ZR_KERNELS_NN_CUDA_CUDA_NN_H
#define ZR_KERNELS_NN_CUDA_CUDA_NN_H

#include "kernels/cuda/cuda_device.h"
#include "kernels/nn/cuda_sizes.h"
#include "kernels/nn/nn.h"

#ifdef __cplusplus
extern "C" {
#endif

extern const zr_nn_backend_t zr_cuda_nn_backend;

zr_status_t zr_cuda_nn_matmul(zr_stream_t *stream, const zr_nn_matmul_t *args, void *workspace);
zr_status_t zr_cuda_nn_bias_grad(zr_stream_t *stream, const zr_nn_bias_grad_t *args,
                                 void *workspace);
zr_status_t zr_cuda_nn_layernorm(zr_stream_t *stream, const zr_nn_layernorm_t *args);
zr_status_t zr_cuda_nn_layernorm_backward(zr_stream_t *stream,
                                          const zr_nn_layernorm_backward_t *args, void *workspace);
zr_status_t zr_cuda_nn_gelu(zr_stream_t *stream, void *y, const void *x, zr_dtype_t dtype,
                            size_t n_elems);
zr_status_t zr_cuda_nn_gelu_backward(zr_stream_t *stream, void *dx, const void *dy, const void *x,
                                     zr_dtype_t dtype, size_t n_elems);
zr_status_t zr_cuda_nn_attention(zr_stream_t *stream, const zr_nn_attention_t *args,
                                 void *workspace);
zr_status_t zr_cuda_nn_attention_backward(zr_stream_t *stream,
                                          const zr_nn_attention_backward_t *args, void *workspace);
zr_status_t zr_cuda_nn_embedding(zr_stream_t *stream, const zr_nn_embedding_t *args);
zr_status_t zr_cuda_nn_embedding_backward(zr_stream_t *stream,
                                          const zr_nn_embedding_backward_t *args, void *workspace);
zr_status_t zr_cuda_nn_lm_head(zr_stream_t *stream, const zr_nn_lm_head_t *args, void *workspace);

#ifdef __cplusplus
}
#endif
#endif
