/* A transformer's kernels on CUDA: the table. */
#include "kernels/nn/cuda/attention_cudnn.h"

#include "kernels/nn/cuda/matmul_plan.h"

static zr_nn_run_fn *const kernels[ZR_NN_N_KERNELS] = {
    [ZR_NN_MATMUL] = zr_cuda_nn_matmul,
    [ZR_NN_BIAS_GRAD] = zr_cuda_nn_bias_grad,
    [ZR_NN_LAYERNORM] = zr_cuda_nn_layernorm,
    [ZR_NN_LAYERNORM_BACKWARD] = zr_cuda_nn_layernorm_backward,
    [ZR_NN_GELU] = zr_cuda_nn_gelu,
    [ZR_NN_GELU_BACKWARD] = zr_cuda_nn_gelu,
    [ZR_NN_SWIGLU] = zr_cuda_nn_swiglu,
    [ZR_NN_SWIGLU_BACKWARD] = zr_cuda_nn_swiglu_backward,
    [ZR_NN_ROTARY] = zr_cuda_nn_rotary,
    [ZR_NN_ROTARY_BACKWARD] = zr_cuda_nn_rotary_backward,
    [ZR_NN_ATTENTION] = zr_cuda_nn_attention,
    [ZR_NN_ATTENTION_BACKWARD] = zr_cuda_nn_attention_backward,
    [ZR_NN_EMBEDDING] = zr_cuda_nn_embedding,
    [ZR_NN_EMBEDDING_BACKWARD] = zr_cuda_nn_embedding_backward,
    [ZR_NN_LM_HEAD] = zr_cuda_nn_lm_head,
};

static zr_status_t run(zr_stream_t *stream, const zr_nn_work_t *work) {
    return kernels[work->kernel](stream, work->args, work->workspace);
}

const zr_nn_backend_t zr_cuda_nn_backend = {.name = "cuda",
                                            .activation_dtype = zr_cuda_nn_activation_dtype,
                                            .run = run,
                                            .workspace_bytes = zr_cuda_nn_workspace_bytes,
                                            .attention_open = zr_cuda_nn_attention_open,
                                            .chooser = &zr_cuda_nn_chooser};
