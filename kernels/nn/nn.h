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
#ifndef ZR_KERNELS_NN_NN_H
#define ZR_KERNELS_NN_NN_H

#include <stdint.h>

#include "kernels/device.h"
#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

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
 * or [n, k] when transposed. c, addend and pre_gelu are [m, n], bias is [n].
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
size_t zr_nn_matmul_workspace_bytes(const zr_device_t *device, const zr_nn_matmul_t *args);

/**
 * Gradient of a bias: the sum of dy over its rows, in row order.
 *
 * Shapes: dy [n_rows, n_columns], dbias [n_columns].
 */
typedef struct zr_nn_bias_grad {
    size_t n_rows, n_columns;
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
 * y = (x - mean) * rstd * weight + bias, mean and variance over each row.
 *
 * Shapes: x, y [n_rows, channels]; mean, rstd [n_rows]; weight, bias [channels].
 * Source: Ba et al. 2016.
 */
typedef struct zr_nn_layernorm {
    size_t n_rows, channels;
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

/* ---- attention -------------------------------------------------------------- */

/**
 * Causal attention of every head: out = softmax(q k^T / sqrt(head_size)) v, each position
 * over itself and those before it.
 *
 * Only a tile of rows of one head's scores exists at a time per thread; what the backward
 * pass needs of them is the logarithm of each row's sum.
 *
 * Shapes: qkv [batch, seq, 3, heads, head_size] (queries, keys, values), out
 * [batch, seq, heads, head_size], log_sum [batch, heads, seq].
 * Source: Dao et al. 2022.
 */
typedef struct zr_nn_attention {
    size_t batch, seq, heads, head_size;
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
    size_t batch, seq, heads, head_size;
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
 * out[b, t] = token_table[tokens[b, t]] + position_table[t].
 *
 * Shapes: tokens [batch, seq], each in [0, vocab) (the caller's duty: a device need not
 * check); token_table [vocab, channels]; position_table [n_positions, channels] with
 * n_positions >= seq; out [batch, seq, channels].
 */
typedef struct zr_nn_embedding {
    size_t batch, seq, channels, vocab, n_positions;
    const int32_t *tokens;
    const void *token_table;
    const void *position_table;
    void *out;
    zr_dtype_t activation_dtype;
    zr_dtype_t param_dtype;
} zr_nn_embedding_t;
ZR_NODISCARD zr_status_t zr_nn_embedding(zr_stream_t *stream, const zr_nn_embedding_t *args);

/**
 * Gradients of both tables. The occurrences of a token are added up in the order of their
 * positions, so the result depends on nothing else. Rows that no token names become 0
 * unless the gradient accumulates.
 */
typedef struct zr_nn_embedding_backward {
    size_t batch, seq, channels, vocab, n_positions;
    const int32_t *tokens;
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

/**
 * Logits, softmax cross-entropy and, where wanted, their gradients, in one kernel that
 * never holds more than `vocab_chunk` columns of the logits: it goes through the vocabulary
 * twice, for the logarithm of each row's sum and then for the gradients, and computes the
 * logits of a chunk again (the last one excepted, so that a single chunk costs nothing more).
 *
 * loss[0] += scale * sum over rows of (log_sum - logit of the target);
 * dx = scale * (softmax - one_hot) weight;  dweight (+)= scale * (softmax - one_hot)^T x.
 *
 * Shapes: x, dx [n_rows, channels]; weight, dweight [vocab, channels]; targets [n_rows],
 * each in [0, vocab) (the caller's duty: a device need not check).
 */
typedef struct zr_nn_lm_head {
    size_t n_rows, channels, vocab;
    size_t vocab_chunk; /* columns of logits at a time, >= 1 */
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

/* ---- costs ------------------------------------------------------------------ */

/** What each kernel charges to its stream: see zr_stream_cost. */
zr_cost_t zr_nn_matmul_cost(const zr_nn_matmul_t *args);
zr_cost_t zr_nn_bias_grad_cost(const zr_nn_bias_grad_t *args);
zr_cost_t zr_nn_layernorm_cost(const zr_nn_layernorm_t *args);
zr_cost_t zr_nn_layernorm_backward_cost(const zr_nn_layernorm_backward_t *args);
zr_cost_t zr_nn_attention_cost(const zr_nn_attention_t *args);
zr_cost_t zr_nn_attention_backward_cost(const zr_nn_attention_backward_t *args);
zr_cost_t zr_nn_embedding_cost(const zr_nn_embedding_t *args);
zr_cost_t zr_nn_embedding_backward_cost(const zr_nn_embedding_backward_t *args);
zr_cost_t zr_nn_lm_head_cost(const zr_nn_lm_head_t *args);

/**
 * For those who implement a device: one entry per kernel of this header. nn.c checks the
 * arguments (no needed pointer is NULL, sizes are not 0 and do not overflow, dtypes are F32 or
 * BF16, the workspace is large enough) and keeps the costs; a backend refuses the dtypes it
 * lacks with ZR_ERR_UNSUPPORTED. No entry is optional but the workspace queries: NULL means 0.
 */
typedef struct zr_nn_backend {
    const char *name; /* of the device's backend */

    /* See zr_nn_activation_dtype; param_dtype is F32 or BF16. */
    zr_status_t (*activation_dtype)(const zr_device_t *device, zr_dtype_t param_dtype,
                                    zr_dtype_t *dtype_p);

    zr_status_t (*matmul)(zr_stream_t *stream, const zr_nn_matmul_t *args, void *workspace);
    zr_status_t (*bias_grad)(zr_stream_t *stream, const zr_nn_bias_grad_t *args, void *workspace);
    zr_status_t (*layernorm)(zr_stream_t *stream, const zr_nn_layernorm_t *args);
    zr_status_t (*layernorm_backward)(zr_stream_t *stream, const zr_nn_layernorm_backward_t *args,
                                      void *workspace);
    zr_status_t (*gelu)(zr_stream_t *stream, void *y, const void *x, zr_dtype_t dtype,
                        size_t n_elems);
    zr_status_t (*gelu_backward)(zr_stream_t *stream, void *dx, const void *dy, const void *x,
                                 zr_dtype_t dtype, size_t n_elems);
    zr_status_t (*attention)(zr_stream_t *stream, const zr_nn_attention_t *args, void *workspace);
    zr_status_t (*attention_backward)(zr_stream_t *stream, const zr_nn_attention_backward_t *args,
                                      void *workspace);
    zr_status_t (*embedding)(zr_stream_t *stream, const zr_nn_embedding_t *args);
    zr_status_t (*embedding_backward)(zr_stream_t *stream, const zr_nn_embedding_backward_t *args,
                                      void *workspace);
    zr_status_t (*lm_head)(zr_stream_t *stream, const zr_nn_lm_head_t *args, void *workspace);

    size_t (*matmul_workspace_bytes)(const zr_device_t *device, const zr_nn_matmul_t *args);
    size_t (*bias_grad_workspace_bytes)(const zr_device_t *device, const zr_nn_bias_grad_t *args);
    size_t (*layernorm_backward_workspace_bytes)(const zr_device_t *device,
                                                 const zr_nn_layernorm_backward_t *args);
    size_t (*attention_workspace_bytes)(const zr_device_t *device, const zr_nn_attention_t *args);
    size_t (*attention_backward_workspace_bytes)(const zr_device_t *device,
                                                 const zr_nn_attention_backward_t *args);
    size_t (*embedding_backward_workspace_bytes)(const zr_device_t *device,
                                                 const zr_nn_embedding_backward_t *args);
    size_t (*lm_head_workspace_bytes)(const zr_device_t *device, const zr_nn_lm_head_t *args);
} zr_nn_backend_t;

/** The kernels that a device has: its backend's own (zr_device_backend_t.nn), or this library's for
 * a device of that name. NULL: none. */
const zr_nn_backend_t *zr_nn_backend_of(const zr_device_t *device);

/** This library's kernels; ends with NULL (kernels/nn/backends.c). */
extern const zr_nn_backend_t *const zr_nn_backends[];

#ifdef __cplusplus
}
#endif
#endif
