/* A transformer's kernels on CUDA: the table. */
#include "kernels/nn/cuda/cuda_nn.h"

const zr_nn_backend_t zr_cuda_nn_backend = {
    .name = "cuda",
    .activation_dtype = zr_cuda_nn_activation_dtype,
    .matmul = zr_cuda_nn_matmul,
    .bias_grad = zr_cuda_nn_bias_grad,
    .layernorm = zr_cuda_nn_layernorm,
    .layernorm_backward = zr_cuda_nn_layernorm_backward,
    .gelu = zr_cuda_nn_gelu,
    .gelu_backward = zr_cuda_nn_gelu_backward,
    .attention = zr_cuda_nn_attention,
    .attention_backward = zr_cuda_nn_attention_backward,
    .embedding = zr_cuda_nn_embedding,
    .embedding_backward = zr_cuda_nn_embedding_backward,
    .lm_head = zr_cuda_nn_lm_head,
    .matmul_workspace_bytes = zr_cuda_nn_matmul_workspace_bytes,
    .bias_grad_workspace_bytes = zr_cuda_nn_bias_grad_workspace_bytes,
    .layernorm_backward_workspace_bytes = zr_cuda_nn_layernorm_backward_workspace_bytes,
    .attention_workspace_bytes = zr_cuda_nn_attention_workspace_bytes,
    .attention_backward_workspace_bytes = zr_cuda_nn_attention_backward_workspace_bytes,
    .embedding_backward_workspace_bytes = zr_cuda_nn_embedding_backward_workspace_bytes,
    .lm_head_workspace_bytes = zr_cuda_nn_lm_head_workspace_bytes,
};
