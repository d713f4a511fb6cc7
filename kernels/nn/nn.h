/*
 * A transformer's kernels, for models built on the library. They are a library of their own,
 * libzero_nn, which is linked before libzero.
 *
 * All of them queue work on a stream and take device pointers. Matrices are row-major
 * and dense: the last dimension is contiguous. Each kernel names its dtypes:
 * activations have one (zr_nn_activation_dtype says which), parameters and their
 * gradients another (F32 or BF16). Sums are made in fp32; a BF16 gradient is computed
 * in fp32 and rounded once when it is written, or once when it is added to.
 *
 * Results do not depend on the run: no sum has an order that timing could change. On
 * the host they may depend on the number of threads, never on the instruction set's
 * lane count except inside matrix products.
 *
 * No kernel allocates: memory it needs beside its operands is a workspace that the
 * caller gives, as large as the kernel's *_workspace_bytes says for the same device and
 * arguments (pointers in the arguments are then not followed, but whether one is NULL
 * counts). A workspace may be reused by the next kernel of the same stream.
 *
 * Every kernel returns ZR_OK, or
 *   ZR_ERR_ARGUMENT     a NULL, a wrong dtype, a size that overflows, a workspace that is small or
 *                       not aligned;
 *   ZR_ERR_UNSUPPORTED  the device has no such kernel, or not for these dtypes;
 *   ZR_ERR_DEVICE, ZR_ERR_MEMORY  the work could not be queued or done.
 * Sizes of 0 are fine: there is then nothing to do. Threads: those of the stream.
 */
#pragma once

#include <stdint.h>

#include "kernels/device.h"
#include "kernels/kernels.h"

ZR_BEGIN_C

#define ZR_NN_WORKSPACE_ALIGNMENT 256 /* bytes; what cuBLASLt asks for */

/** Memory that a kernel may use while it runs, aligned as above. Zero: none. */
typedef struct zr_nn_workspace {
    void *data;
    size_t size_bytes;
} zr_nn_workspace_t;

/** Where a parameter's gradient goes: data == NULL means that it is not wanted. */
typedef struct zr_nn_gradient {
    void *data;      /* of the parameter's shape and dtype */
    bool accumulate; /* false: every element is overwritten; true: added to */
} zr_nn_gradient_t;

/**
 * The dtype that activations have on a device when parameters have `param_dtype`.
 *
 * @return ZR_OK; ZR_ERR_ARGUMENT for a dtype parameters cannot have; ZR_ERR_UNSUPPORTED when
 *         the device has no kernels for it
 */
ZR_NODISCARD zr_status_t zr_nn_activation_dtype(const zr_device_t *device, zr_dtype_t param_dtype,
                                                zr_dtype_t *dtype_p);

/* ---- matrix products -------------------------------------------------------- */

/** What a matrix product does with its result before it stores it. */
typedef enum zr_nn_epilogue {
    ZR_NN_EPILOGUE_NONE = 0,
    ZR_NN_EPILOGUE_GELU = 1,         /* pre_gelu = y, c = gelu(y) */
    ZR_NN_EPILOGUE_GELU_BACKWARD = 2 /* c = y * gelu'(pre_gelu) */
} zr_nn_epilogue_t;

/**
 * y = op(a) op(b) + bias + addend;  c = epilogue(y), or c += y.
 *
 * Shapes: op(a) is [m, k]: a is [m, k], or [k, m] when transposed. op(b) is [k, n]: b is [k, n],
 * or [n, k] when transposed. c, addend and pre_gelu are [m, n], bias is [n]. Rows of a, and of c,
 * may be parts of longer ones.
 *
 * On the host a is F32; b and bias are F32 or BF16; c is F32, or BF16 (a gradient) without
 * bias, addend and epilogue and with b F32.
 */
typedef struct zr_nn_matmul {
    size_t m, n, k;
    size_t least_m; /* take a workspace that is enough for this product with any number of rows
                       from so many to m, for who plans memory by the longest; 0: for m alone */
    const void *a;
    const void *b;
    void *c; /* overlaps nothing but addend, which may be c itself */
    zr_dtype_t a_dtype;
    zr_dtype_t b_dtype;
    zr_dtype_t c_dtype; /* of c, addend and pre_gelu */
    size_t lda, ldc; /* elements from row to row of a as it is stored, and of c and addend; 0: rows
                        follow each other. Apart from each other, those of c go with no epilogue */
    bool transpose_a;
    bool transpose_b;
    bool accumulate;  /* c += y; without bias, addend and epilogue */
    const void *bias; /* NULL: none */
    zr_dtype_t bias_dtype;
    const void *addend; /* NULL: none; a residual stream, with the epilogue NONE */
    zr_nn_epilogue_t epilogue;
    void *pre_gelu; /* GELU: out, NULL when nobody needs it; GELU_BACKWARD: in */
} zr_nn_matmul_t;
ZR_NODISCARD zr_status_t zr_nn_matmul(zr_stream_t *stream, const zr_nn_matmul_t *args,
                                      zr_nn_workspace_t workspace);
/** lda and ldc of a product, of rows that follow each other as well. */
size_t zr_nn_matmul_lda(const zr_nn_matmul_t *args);
size_t zr_nn_matmul_ldc(const zr_nn_matmul_t *args);
size_t zr_nn_matmul_workspace_bytes(const zr_device_t *device, const zr_nn_matmul_t *args);

/**
 * Gradient of a bias: the sum of dy over its rows, in row order.
 *
 * Shapes: dy [n_rows, n_columns], dbias [n_columns].
 */
typedef struct zr_nn_bias_grad {
    size_t n_rows, n_columns;
    size_t ld_dy; /* elements from row to row of dy; 0: rows follow each other */
    const void *dy;
    zr_nn_gradient_t dbias; /* data not NULL */
    zr_dtype_t activation_dtype;
    zr_dtype_t param_dtype;
} zr_nn_bias_grad_t;
ZR_NODISCARD zr_status_t zr_nn_bias_grad(zr_stream_t *stream, const zr_nn_bias_grad_t *args,
                                         zr_nn_workspace_t workspace);
size_t zr_nn_bias_grad_workspace_bytes(const zr_device_t *device, const zr_nn_bias_grad_t *args);

/* ---- layer normalisation ---------------------------------------------------- */

/**
 * y = (x - mean) * rstd * weight + bias, mean and variance over each row. Of the root mean square
 * (is_rms) it is y = x * rstd * weight with rstd = 1 / sqrt(mean of x^2 + epsilon).
 *
 * Shapes: x, y [n_rows, channels]; mean, rstd [n_rows]; weight, bias [channels].
 * Sources: Ba et al. 2016; is_rms: Zhang and Sennrich 2019.
 */
typedef struct zr_nn_layernorm {
    size_t n_rows, channels;
    bool is_rms; /* bias and mean are NULL then */
    const void *x;
    const void *weight;
    const void *bias;
    void *y;     /* may be x */
    float *mean; /* out, for the backward pass */
    float *rstd; /* out: 1 / sqrt(variance + epsilon) */
    float epsilon;
    zr_dtype_t activation_dtype;
    zr_dtype_t param_dtype;
} zr_nn_layernorm_t;
ZR_NODISCARD zr_status_t zr_nn_layernorm(zr_stream_t *stream, const zr_nn_layernorm_t *args);

/** Gradients of layer normalisation: dx (+)= ..., dweight and dbias where wanted. */
typedef struct zr_nn_layernorm_backward {
    size_t n_rows, channels;
    bool is_rms; /* mean and dbias.data are NULL then */
    const void *dy;
    const void *x;
    const void *weight;
    const float *mean;
    const float *rstd;
    void *dx;           /* [n_rows, channels]; overlaps nothing */
    bool accumulate_dx; /* dx is the gradient of a residual stream: add to it */
    zr_nn_gradient_t dweight;
    zr_nn_gradient_t dbias;
    zr_dtype_t activation_dtype;
    zr_dtype_t param_dtype;
} zr_nn_layernorm_backward_t;
ZR_NODISCARD zr_status_t zr_nn_layernorm_backward(zr_stream_t *stream,
                                                  const zr_nn_layernorm_backward_t *args,
                                                  zr_nn_workspace_t workspace);
size_t zr_nn_layernorm_backward_workspace_bytes(const zr_device_t *device,
                                                const zr_nn_layernorm_backward_t *args);

/* ---- GELU ------------------------------------------------------------------- */

/**
 * y = x / 2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).
 *
 * @param y  [n_elems]; may be x
 *
 * Source: Hendrycks and Gimpel 2016, the form that GPT-2 uses.
 */
ZR_NODISCARD zr_status_t zr_nn_gelu(zr_stream_t *stream, void *y, const void *x,
                                    zr_dtype_t activation_dtype, size_t n_elems);

/** dx = dy gelu'(x); dx [n_elems] may be dy. */
ZR_NODISCARD zr_status_t zr_nn_gelu_backward(zr_stream_t *stream, void *dx, const void *dy,
                                             const void *x, zr_dtype_t activation_dtype,
                                             size_t n_elems);

/* ---- SwiGLU ----------------------------------------------------------------- */

/**
 * y = silu(gate) * up, with silu(x) = x / (1 + e^-x).
 *
 * Shapes: gate_up [n_rows, 2, channels] (a row's gates, then what they are multiplied with),
 * y [n_rows, channels].
 * Source: Shazeer 2020.
 */
typedef struct zr_nn_swiglu {
    size_t n_rows, channels;
    const void *gate_up;
    void *y; /* overlaps nothing */
    zr_dtype_t activation_dtype;
} zr_nn_swiglu_t;
ZR_NODISCARD zr_status_t zr_nn_swiglu(zr_stream_t *stream, const zr_nn_swiglu_t *args);

/** Gradient of SwiGLU. */
typedef struct zr_nn_swiglu_backward {
    size_t n_rows, channels;
    const void *dy;
    const void *gate_up;
    void *dgate_up; /* [n_rows, 2, channels], overwritten; may be gate_up */
    zr_dtype_t activation_dtype;
} zr_nn_swiglu_backward_t;
ZR_NODISCARD zr_status_t zr_nn_swiglu_backward(zr_stream_t *stream,
                                               const zr_nn_swiglu_backward_t *args);

/* ---- queries, keys and values ----------------------------------------------- */

/**
 * What rotary positions and attention go through: qkv [batch, seq, heads + 2 kv_heads, head_size],
 * the heads of queries, keys and values one behind the other, as one matrix product with the three
 * weights in that order gives them. Query head h goes with key head h / (heads / kv_heads).
 *
 * document_starts [batch, seq]: where in its sequence the document of a position begins. That is
 * the position itself, or where the document of the one before it begins (the caller's duty: a
 * device need not check).
 */
typedef struct zr_nn_qkv_shape {
    size_t batch, seq, heads;
    size_t kv_heads; /* heads is a multiple of it */
    size_t head_size;
    const int32_t *document_starts; /* NULL: each sequence is one document */
} zr_nn_qkv_shape_t;

/* ---- rotary positions ------------------------------------------------------- */

/** How a model's positions turn its channels: zr_nn_rotary_frequencies. */
typedef enum zr_nn_rotary_scaling {
    ZR_NN_ROTARY_DEFAULT = 0, /* channel pair i of a head: theta^(-2i / head_size) per position */
    ZR_NN_ROTARY_LINEAR = 1,  /* that, divided by `factor` */
    ZR_NN_ROTARY_LLAMA3 = 2   /* slow pairs divided by `factor`, fast ones not, a slope between */
} zr_nn_rotary_scaling_t;

typedef struct zr_nn_rotary_positions {
    double theta; /* 10000, 500000, ... */
    zr_nn_rotary_scaling_t scaling;
    double factor;                            /* LINEAR and LLAMA3 */
    double low_freq_factor, high_freq_factor; /* LLAMA3, and all below */
    double original_max_position_embeddings;
} zr_nn_rotary_positions_t;

#define ZR_NN_ROTARY_MAX_HEAD_SIZE 256

/**
 * The angle, in radians per position, of each pair of a head's channels.
 *
 * @param frequencies_p  [head_size / 2], out
 * @return ZR_OK; ZR_ERR_ARGUMENT when head_size is odd or more than ZR_NN_ROTARY_MAX_HEAD_SIZE, or
 *         a parameter that the scaling needs is out of its range (theta and factors above 0,
 *         low_freq_factor below high_freq_factor)
 *
 * Sources: Su et al. 2021; Chen et al. 2023 (LINEAR); Llama 3.1's model card (LLAMA3).
 */
ZR_NODISCARD zr_status_t zr_nn_rotary_frequencies(const zr_nn_rotary_positions_t *positions,
                                                  size_t head_size, const zr_log_t *log,
                                                  float *frequencies_p);

/**
 * What a projection gives to attention: each head of the queries and keys is normalised where there
 * are weights (of the root mean square, per head), then channels i and i + head_size / 2 of it are
 * turned by frequencies[i] times the position, which counts from its document's start. Values stay
 * as they are.
 *
 * Shapes: qkv, out as zr_nn_qkv_shape_t has it; q_weight, k_weight [head_size]; rstd
 * [batch, seq, heads + kv_heads].
 */
typedef struct zr_nn_rotary {
    zr_nn_qkv_shape_t shape; /* head_size: even, at most ZR_NN_ROTARY_MAX_HEAD_SIZE */
    const void *qkv;
    void *out;                /* may be qkv; the backward pass needs what is normalised as it was */
    const float *frequencies; /* [head_size / 2] in host memory, as it is until the stream is done
                                 with the call; NULL: nothing is turned */
    const void *q_weight, *k_weight; /* both NULL: nothing is normalised */
    float epsilon;
    float *rstd; /* out, for the backward pass; NULL without weights */
    zr_dtype_t activation_dtype;
    zr_dtype_t param_dtype;
} zr_nn_rotary_t;
ZR_NODISCARD zr_status_t zr_nn_rotary(zr_stream_t *stream, const zr_nn_rotary_t *args);

/** The same backwards: dqkv, the gradient of `out`, becomes that of `qkv`. */
typedef struct zr_nn_rotary_backward {
    zr_nn_qkv_shape_t shape;
    void *dqkv; /* of qkv's shape; overlaps nothing */
    const float *frequencies;
    const void *qkv;                 /* as before it was normalised; NULL without weights */
    const void *q_weight, *k_weight; /* both NULL: nothing was normalised */
    const float *rstd;
    zr_nn_gradient_t dq_weight, dk_weight; /* [head_size]; data NULL without weights */
    zr_dtype_t activation_dtype;
    zr_dtype_t param_dtype;
} zr_nn_rotary_backward_t;
ZR_NODISCARD zr_status_t zr_nn_rotary_backward(zr_stream_t *stream,
                                               const zr_nn_rotary_backward_t *args,
                                               zr_nn_workspace_t workspace);
size_t zr_nn_rotary_backward_workspace_bytes(const zr_device_t *device,
                                             const zr_nn_rotary_backward_t *args);

/* ---- attention -------------------------------------------------------------- */

/**
 * Causal attention of every head: out = softmax(q k^T / sqrt(head_size)) v, each position
 * over itself and those before it in its document, at most `window` of them in all.
 *
 * Only a tile of rows of one head's scores exists at a time per thread; what the backward
 * pass needs of them is the logarithm of each row's sum.
 *
 * Shapes: qkv as zr_nn_qkv_shape_t has it, out [batch, seq, heads, head_size],
 * log_sum [batch, heads, seq].
 * Sources: Dao et al. 2022; Ainslie et al. 2023 (kv_heads).
 */
typedef struct zr_nn_attention {
    zr_nn_qkv_shape_t shape;
    size_t window; /* 0: no limit */
    const void *qkv;
    void *out;
    float *log_sum; /* log of the sum of exp(score), natural */
    zr_dtype_t activation_dtype;
} zr_nn_attention_t;
ZR_NODISCARD zr_status_t zr_nn_attention(zr_stream_t *stream, const zr_nn_attention_t *args,
                                         zr_nn_workspace_t workspace);
size_t zr_nn_attention_workspace_bytes(const zr_device_t *device, const zr_nn_attention_t *args);

/** Gradient of attention; dqkv is overwritten. */
typedef struct zr_nn_attention_backward {
    zr_nn_qkv_shape_t shape;
    size_t window;
    const void *qkv;
    const void *out;
    const float *log_sum;
    const void *dout;
    void *dqkv;
    zr_dtype_t activation_dtype;
} zr_nn_attention_backward_t;
ZR_NODISCARD zr_status_t zr_nn_attention_backward(zr_stream_t *stream,
                                                  const zr_nn_attention_backward_t *args,
                                                  zr_nn_workspace_t workspace);
size_t zr_nn_attention_backward_workspace_bytes(const zr_device_t *device,
                                                const zr_nn_attention_backward_t *args);

/* ---- embedding -------------------------------------------------------------- */

/**
 * out[b, t] = token_table[tokens[b, t]] + position_table[t - document_starts[b, t]]; without
 * n_positions there is no table of positions.
 *
 * Shapes: tokens [batch, seq], each in [0, vocab) (the caller's duty: a device need not
 * check); token_table [vocab, channels]; position_table [n_positions, channels] with
 * n_positions >= seq, or both 0 and NULL; out [batch, seq, channels].
 */
typedef struct zr_nn_embedding {
    size_t batch, seq, channels, vocab, n_positions;
    const int32_t *tokens;
    const int32_t *document_starts; /* as zr_nn_qkv_shape_t has them; NULL: all 0 */
    const void *token_table;
    const void *position_table;
    void *out;
    zr_dtype_t activation_dtype;
    zr_dtype_t param_dtype;
} zr_nn_embedding_t;
ZR_NODISCARD zr_status_t zr_nn_embedding(zr_stream_t *stream, const zr_nn_embedding_t *args);

/**
 * Gradients of both tables. The occurrences of a token, and of a position, are added up in the
 * order of their rows, so the result depends on nothing else. Rows that no token names become 0
 * unless the gradient accumulates.
 */
typedef struct zr_nn_embedding_backward {
    size_t batch, seq, channels, vocab, n_positions;
    const int32_t *tokens;
    const int32_t *document_starts;
    const void *dout;
    zr_nn_gradient_t dtoken_table;
    zr_nn_gradient_t dposition_table;
    zr_dtype_t activation_dtype;
    zr_dtype_t param_dtype;
} zr_nn_embedding_backward_t;
ZR_NODISCARD zr_status_t zr_nn_embedding_backward(zr_stream_t *stream,
                                                  const zr_nn_embedding_backward_t *args,
                                                  zr_nn_workspace_t workspace);
size_t zr_nn_embedding_backward_workspace_bytes(const zr_device_t *device,
                                                const zr_nn_embedding_backward_t *args);

/* ---- language model head ----------------------------------------------------- */

/** A target that is none: its row has no loss, and gradients of 0. PyTorch's ignore_index. */
#define ZR_NN_TARGET_IGNORED (-100)

/**
 * Logits, softmax cross-entropy and, where wanted, their gradients, in one kernel that never holds
 * all logits. A device goes through them in its own way:
 *
 * - the host by columns, `vocab_chunk` at a time, through the vocabulary twice, for the logarithm
 * of each row's sum and then for the gradients. The logits of a chunk are computed again (the last
 * one excepted, so that a single chunk costs nothing more);
 * - CUDA by rows, `row_chunk` at a time, each with all its logits, once.
 *
 * loss[0] += scale * sum over rows of (log_sum - logit of the target);
 * dx = scale * (softmax - one_hot) weight;  dweight (+)= scale * (softmax - one_hot)^T x.
 *
 * Shapes: x, dx [n_rows, channels]; weight, dweight [vocab, channels]; targets [n_rows],
 * each in [0, vocab) or ZR_NN_TARGET_IGNORED (the caller's duty: a device need not check).
 */
typedef struct zr_nn_lm_head {
    size_t n_rows, channels, vocab;
    size_t vocab_chunk; /* by columns: so many of the logits at a time, >= 1 */
    size_t row_chunk;   /* by rows: so many at a time; 0: all */
    const void *x;
    const void *weight;
    const int32_t *targets;
    double *loss; /* [1] on the device, added to */
    float scale;
    void *dx; /* overwritten; NULL: not wanted. Overlaps nothing */
    zr_nn_gradient_t dweight;
    zr_dtype_t activation_dtype;
    zr_dtype_t param_dtype;
} zr_nn_lm_head_t;
ZR_NODISCARD zr_status_t zr_nn_lm_head(zr_stream_t *stream, const zr_nn_lm_head_t *args,
                                       zr_nn_workspace_t workspace);
size_t zr_nn_lm_head_workspace_bytes(const zr_device_t *device, const zr_nn_lm_head_t *args);
/**
 * Set vocab_chunk and row_chunk to what a model takes on a device, of the sizes and dtypes in args.
 * The workspace grows with n_rows up to most_rows (0: n_rows), so that it can be planned by the
 * largest micro-batch.
 */
void zr_nn_lm_head_chunks(const zr_device_t *device, size_t most_rows, zr_nn_lm_head_t *args);

/* ---- costs ------------------------------------------------------------------ */

/** What each kernel charges to its stream: see zr_stream_cost. */
zr_cost_t zr_nn_matmul_cost(const zr_nn_matmul_t *args);
zr_cost_t zr_nn_bias_grad_cost(const zr_nn_bias_grad_t *args);
zr_cost_t zr_nn_layernorm_cost(const zr_nn_layernorm_t *args);
zr_cost_t zr_nn_layernorm_backward_cost(const zr_nn_layernorm_backward_t *args);
zr_cost_t zr_nn_attention_cost(const zr_nn_attention_t *args);
zr_cost_t zr_nn_attention_backward_cost(const zr_nn_attention_backward_t *args);
zr_cost_t zr_nn_swiglu_cost(const zr_nn_swiglu_t *args);
zr_cost_t zr_nn_swiglu_backward_cost(const zr_nn_swiglu_backward_t *args);
zr_cost_t zr_nn_rotary_cost(const zr_nn_rotary_t *args);
zr_cost_t zr_nn_rotary_backward_cost(const zr_nn_rotary_backward_t *args);
zr_cost_t zr_nn_embedding_cost(const zr_nn_embedding_t *args);
zr_cost_t zr_nn_embedding_backward_cost(const zr_nn_embedding_backward_t *args);
zr_cost_t zr_nn_lm_head_cost(const zr_nn_lm_head_t *args);

/* ---- for those who implement a device ---------------------------------------- */

/** The kernels of this header; each has zr_nn_<kernel>_t as its arguments, both of GELU one. */
typedef enum zr_nn_kernel {
    ZR_NN_MATMUL,
    ZR_NN_BIAS_GRAD,
    ZR_NN_LAYERNORM,
    ZR_NN_LAYERNORM_BACKWARD,
    ZR_NN_GELU,
    ZR_NN_GELU_BACKWARD,
    ZR_NN_SWIGLU,
    ZR_NN_SWIGLU_BACKWARD,
    ZR_NN_ROTARY,
    ZR_NN_ROTARY_BACKWARD,
    ZR_NN_ATTENTION,
    ZR_NN_ATTENTION_BACKWARD,
    ZR_NN_EMBEDDING,
    ZR_NN_EMBEDDING_BACKWARD,
    ZR_NN_LM_HEAD,
    ZR_NN_N_KERNELS
} zr_nn_kernel_t;

typedef struct zr_nn_gelu {
    void *out;      /* y, dx */
    const void *dy; /* backward */
    const void *x;
    zr_dtype_t activation_dtype;
    size_t n_elems;
} zr_nn_gelu_t;

/** A kernel that is to be queued. nn.c has checked the arguments (no needed pointer is NULL, sizes
 * are not 0 and do not overflow, dtypes are F32 or BF16, the workspace is large enough) and keeps
 * the costs. */
typedef struct zr_nn_work {
    zr_nn_kernel_t kernel;
    const void *args; /* [args_bytes], which are gone when the call returns */
    size_t args_bytes;
    void *workspace;
} zr_nn_work_t;

/** No entry is optional; a backend refuses the dtypes it lacks with ZR_ERR_UNSUPPORTED. */
typedef struct zr_nn_backend {
    const char *name; /* of the device's backend */

    /* See zr_nn_activation_dtype; param_dtype is F32 or BF16. */
    zr_status_t (*activation_dtype)(const zr_device_t *device, zr_dtype_t param_dtype,
                                    zr_dtype_t *dtype_p);
    zr_status_t (*run)(zr_stream_t *stream, const zr_nn_work_t *work);
    /* What a kernel needs that is given a workspace; 0: nothing. */
    size_t (*workspace_bytes)(const zr_device_t *device, zr_nn_kernel_t kernel, const void *args);
} zr_nn_backend_t;

/** One of a backend's kernels, and its workspace, for tables of them by zr_nn_kernel_t. */
typedef zr_status_t zr_nn_run_fn(zr_stream_t *stream, const void *args, void *workspace);
typedef size_t zr_nn_bytes_fn(const zr_device_t *device, const void *args);

/** The kernels that a device has: its backend's own (zr_device_backend_t.nn), or this library's for
 * a device of that name. NULL: none. */
const zr_nn_backend_t *zr_nn_backend_of(const zr_device_t *device);

/** This library's kernels; ends with NULL (kernels/nn/backends.c). */
extern const zr_nn_backend_t *const zr_nn_backends[];

ZR_END_C
