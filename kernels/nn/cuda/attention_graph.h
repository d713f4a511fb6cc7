/*
 * Attention as cuDNN is told of it: a graph of operations that its fused kernels are recognised by,
 * and a plan that runs it. cuDNN's documentation and its frontend (Apache-2.0) give the patterns.
 *
 * The forward pass is softmax(scale q k^T) v with the logarithm of each row's sum of exponentials,
 * which is ours (zr_nn_attention_t.log_sum), so that either's backward pass may follow. The
 * backward pass writes dq by a product of its own, from scores' gradients in the workspace: that is
 * the form whose sums have one order. Plans that cuDNN calls nondeterministic are not taken.
 */
#pragma once

#include "kernels/nn/cuda/cudnn.h"
#include "kernels/nn/cuda_sizes_internal.h"

ZR_BEGIN_C

/** What a plan is for. Compared as bytes: made of zeros, each member then set. */
typedef struct zr_attention_key {
    size_t batch, seq, heads, kv_heads, head_size;
    size_t window; /* 0: no limit */
    size_t is_backward;
} zr_attention_key_t;

/** Tensors of a graph, by their unique ids in cuDNN. */
typedef enum zr_attention_tensor {
    ZR_ATTENTION_Q = 1,
    ZR_ATTENTION_K,
    ZR_ATTENTION_V,
    ZR_ATTENTION_OUT,
    ZR_ATTENTION_LOG_SUM,
    ZR_ATTENTION_DOUT,
    ZR_ATTENTION_DQ,
    ZR_ATTENTION_DK,
    ZR_ATTENTION_DV,
    ZR_ATTENTION_DELTA,  /* sums of dout * out over a row, in the workspace */
    ZR_ATTENTION_SCALE,  /* from here on single values */
    ZR_ATTENTION_HIDDEN, /* the score of a key that is not seen */
    ZR_ATTENTION_WINDOW,
    ZR_ATTENTION_ONE,
    ZR_ATTENTION_N_TENSORS
} zr_attention_tensor_t;

#define ZR_ATTENTION_MAX_DESCRIPTORS 160

/** Numbers from 2000 to 3999 are what cuDNN says of a description that it does not take. */
static inline bool zr_attention_is_refusal(cudnnStatus_t status) {
    return (int)status >= 2000 && (int)status < 4000;
}

typedef struct zr_attention_graph {
    const zr_cudnn_t *dnn;
    zr_attention_key_t key;
    cudnnHandle_t handle;            /* NULL: `device` says what it is for */
    cudnnBackendDescriptor_t device; /* of a device's properties */
    cudnnStatus_t status;            /* of the first call that failed, after which none is made */
    const char *call;                /* it; static */
    size_t n_descriptors, n_operations;
    int64_t n_virtual;
    cudnnBackendDescriptor_t descriptors[ZR_ATTENTION_MAX_DESCRIPTORS]; /* all that were made */
    cudnnBackendDescriptor_t operations[48];
    cudnnBackendDescriptor_t plan; /* of `descriptors` */
    size_t workspace_bytes;        /* of the plan */
} zr_attention_graph_t;

/**
 * Describe attention and choose a plan whose workspace is at most `most_bytes`: the first of the
 * heuristic's proposals that cuDNN can make, and that is deterministic.
 *
 * @param graph  zeros, but for dnn, key, and handle or device
 * @return CUDNN_STATUS_SUCCESS; what graph->call failed with; CUDNN_STATUS_NOT_SUPPORTED also where
 *         no proposal can be used: workspace_bytes is the least that one wanted, or 0
 *
 * Ownership: zr_attention_graph_free in any case.
 */
ZR_NODISCARD cudnnStatus_t zr_attention_graph_plan(zr_attention_graph_t *graph, size_t most_bytes);
void zr_attention_graph_free(zr_attention_graph_t *graph);

/** Run the plan; data: by zr_attention_tensor_t, NULL where the graph has no such tensor. */
ZR_NODISCARD cudnnStatus_t
zr_attention_graph_run(zr_attention_graph_t *graph, void *const data[ZR_ATTENTION_N_TENSORS],
                       void *workspace);

ZR_END_C
