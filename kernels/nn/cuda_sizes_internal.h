/*
 * How large the workspaces of a transformer's CUDA kernels are, and what of their plans that
 * depends on. Apart from the kernels, in every build, because a simulated device that stands for
 * CUDA answers with the same (kernels/sim/).
 *
 * Queries look at a device's info alone.
 */
#pragma once

#include "kernels/nn/nn.h"

ZR_BEGIN_C

#define ZR_CUDA_ROWS_PER_PARTIAL 128 /* of a bias' gradient */

/** Partial sums that a bias' gradient is made of. */
size_t zr_cuda_bias_grad_n_partials(size_t n_rows);

#define ZR_CUDA_LAYERNORM_BACKWARD_ROWS 4      /* at a time: their loads are under way together */
#define ZR_CUDA_LAYERNORM_BACKWARD_THREADS 512 /* at most, of a block */

/** How the rows of a layer normalisation's gradient are shared out; of the sizes alone. */
typedef struct zr_cuda_layernorm_plan {
    unsigned n_threads; /* of a block */
    size_t n_parts;     /* a block's work at a time; each leaves a row of partial sums */
    size_t
        rows_per_part; /* a multiple of ZR_CUDA_LAYERNORM_BACKWARD_ROWS, the last part excepted */
} zr_cuda_layernorm_plan_t;
zr_cuda_layernorm_plan_t zr_cuda_layernorm_plan(size_t n_rows, size_t channels);

/** Tokens of a part of the rotary positions' backward pass: a warp's work at a time, which leaves a
 * row of partial sums. */
size_t zr_cuda_rotary_part(size_t n_tokens);

/** The chunks of a language model head, and its workspace: parts one behind the other. */
enum { ZR_CUDA_LM_HEAD_PARTS = 6 };
typedef struct zr_cuda_lm_head_plan {
    size_t chunk_rows, stride; /* elements from row to row of the logits */
    /* logits, target logits, log sums, dweight in fp32, a product's workspace, the weight with rows
       of zeros behind it. What is not needed has none. */
    size_t part_bytes[ZR_CUDA_LM_HEAD_PARTS];
    size_t part_offset[ZR_CUDA_LM_HEAD_PARTS]; /* multiples of 256 */
    size_t size_bytes;
} zr_cuda_lm_head_plan_t;
zr_cuda_lm_head_plan_t zr_cuda_lm_head_plan(const zr_device_t *device, const zr_nn_lm_head_t *args);
size_t zr_cuda_lm_head_stride(size_t vocab);
/** Rows that a model's head goes through at a time: zr_nn_lm_head_chunks. */
size_t zr_cuda_lm_head_row_chunk(const zr_nn_lm_head_t *args);

/** Whether attention is cuDNN's, if that has a plan for it: of sizes, dtype and the device's info
 * alone. The backward pass on compute capability 9 only: elsewhere it is not known to be
 * deterministic. */
bool zr_cuda_attention_is_cudnns(const zr_device_t *device, const zr_nn_attention_t *args);
bool zr_cuda_attention_backward_is_cudnns(const zr_device_t *device,
                                          const zr_nn_attention_backward_t *args);
/** The sums of dout * out over a head's row, first in the backward pass's workspace. */
size_t zr_cuda_attention_delta_bytes(const zr_nn_qkv_shape_t *shape);

/** The workspace that algorithms may use which were not chosen: 32 MiB from compute capability 9.0
 * on, 4 MiB before. */
size_t zr_cuda_matmul_usual_bytes(const zr_device_t *device);
/** The same for every product of a device. */
size_t zr_cuda_matmul_workspace_bytes(const zr_device_t *device);

/* Entries of the backend (kernels/nn/nn.h). */
zr_status_t zr_cuda_nn_activation_dtype(const zr_device_t *device, zr_dtype_t param_dtype,
                                        zr_dtype_t *dtype_p);
size_t zr_cuda_nn_workspace_bytes(const zr_device_t *device, zr_nn_kernel_t kernel,
                                  const void *args);

ZR_END_C
