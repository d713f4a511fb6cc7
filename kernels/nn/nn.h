/*
 * A transformer's kernels, for models built on the library. They are in a separate library,
 * libzero_nn, which is linked before libzero.
 *
 * All of them queue work on a stream and take device pointers. Matrices are row-major
 * and dense: the last dimension is contiguous. Each kernel names its dtypes:
 * activations have one (see zr_nn_activation_dtype), parameters and their gradients another (F32 or
 * BF16). Sums are computed in fp32; a BF16 gradient is computed in fp32 and rounded once when it is
 * written or accumulated.
 *
 * Results are reproducible: timing never changes the order of a sum. On the host they may depend on
 * the number of threads, and only matrix products depend on the instruction set.
 *
 * No kernel allocates memory: the caller passes a workspace, whose size is the result of the
 * kernel's *_workspace_bytes for the same device and arguments (that function does not dereference
 * pointers, but checks whether they are NULL). A workspace may be reused by the next kernel of the
 * same stream.
 *
 * Every kernel returns ZR_OK, or
 *   ZR_ERR_ARGUMENT     a NULL, a wrong dtype, a size that overflows, a workspace that is too small
 * or not aligned; ZR_ERR_UNSUPPORTED  the device has no such kernel, or not for these dtypes;
 *   ZR_ERR_DEVICE, ZR_ERR_MEMORY  the work could not be queued or done.
 * Sizes of 0 are allowed. Threads: those of the stream.
 */
#pragma once

#include <stdint.h>

#include "kernels/device.h"
#include "kernels/kernels.h"

ZR_BEGIN_C

#define ZR_NN_WORKSPACE_ALIGNMENT 256 /* bytes, as cuBLASLt requires */

/** Memory that a kernel may use while it runs, aligned as above. Zero: none. */
typedef struct zr_nn_workspace {
    void *data;
    size_t size_bytes;
} zr_nn_workspace_t;

/** Output of a parameter's gradient; data == NULL: not computed. */
typedef struct zr_nn_gradient {
    void *data;      /* same shape and dtype as the parameter */
    bool accumulate; /* false: every element is overwritten; true: added to */
} zr_nn_gradient_t;

/**
 * The dtype of activations on a device for parameters of `param_dtype`.
 *
 * @return ZR_OK; ZR_ERR_ARGUMENT for a dtype parameters cannot have; ZR_ERR_UNSUPPORTED when
 *         the device has no kernels for it
 */
ZR_NODISCARD zr_status_t zr_nn_activation_dtype(const zr_device_t *device, zr_dtype_t param_dtype,
                                                zr_dtype_t *dtype_p);

/* ---- matrix products -------------------------------------------------------- */

/** An operation on the result of a matrix product before it is stored. */
typedef enum zr_nn_epilogue {
    ZR_NN_EPILOGUE_NONE = 0,
    ZR_NN_EPILOGUE_GELU = 1,         /* pre_gelu = y, c = gelu(y) */
    ZR_NN_EPILOGUE_GELU_BACKWARD = 2 /* c = y * gelu'(pre_gelu) */
} zr_nn_epilogue_t;

/**
 * y = op(a) op(b) + bias + addend;  c = epilogue(y), or c += y.
 *
 * Shapes: op(a) is [m, k]: a is [m, k], or [k, m] when transposed. op(b) is [k, n]: b is [k, n],
 * or [n, k] when transposed. c, addend and pre_gelu are [m, n], bias is [n]. Rows of a and c may be
 * parts of longer rows.
 *
 * On the host a is F32; b and bias are F32 or BF16; c is F32, or BF16 (a gradient) without
 * bias, addend and epilogue and with b F32.
 */
typedef struct zr_nn_matmul {
    size_t m, n, k;
    size_t least_m; /* the workspace must suffice for any number of rows from least_m to m, to plan
                       memory for the longest sequence; 0: for m only */
    const void *a;
    const void *b;
    void *c; /* overlaps nothing but addend, which may be c itself */
    zr_dtype_t a_dtype;
    zr_dtype_t b_dtype;
    zr_dtype_t c_dtype; /* of c, addend and pre_gelu */
    size_t lda, ldc; /* row strides in elements: of a as stored, and of c and addend; 0: contiguous
                        rows. With strided c there must be no epilogue */
    bool transpose_a;
    bool transpose_b;
    bool accumulate;  /* c += y; without bias, addend and epilogue */
    const void *bias; /* NULL: none */
    zr_dtype_t bias_dtype;
    const void *addend; /* NULL: none; a residual stream, with the epilogue NONE */
    zr_nn_epilogue_t epilogue;
    void *pre_gelu; /* GELU: out, NULL if not needed; GELU_BACKWARD: in */
} zr_nn_matmul_t;
ZR_NODISCARD zr_status_t zr_nn_matmul(zr_stream_t *stream, const zr_nn_matmul_t *args,
                                      zr_nn_workspace_t workspace);
/** The row strides of a product, also if its rows are contiguous. */
size_t zr_nn_matmul_lda(const zr_nn_matmul_t *args);
size_t zr_nn_matmul_ldc(const zr_nn_matmul_t *args);
size_t zr_nn_matmul_workspace_bytes(const zr_device_t *device, const zr_nn_matmul_t *args);

/* ---- algorithms of matrix products -------------------------------------------
 *
 * On CUDA an algorithm can be chosen for each product among those that cuBLASLt proposes. Results
 * of algorithms differ in their last bits, so a choice is an input like any other: given explicitly
 * and the same on all ranks. Without a choice a product has the first proposal that fits into the
 * usual workspace, 32 MiB from compute capability 9.0 on and 4 MiB before.
 */

#define ZR_NN_MAX_PROPOSALS 8
#define ZR_NN_ALGORITHM_BYTES 192

/** Text, with the terminating zero. */
typedef struct zr_nn_algorithm_text {
    char text[ZR_NN_ALGORITHM_BYTES];
} zr_nn_algorithm_text_t;

typedef struct zr_nn_matmul_proposals {
    zr_nn_algorithm_text_t product;                         /* the product, as choices name it */
    size_t n;                                               /* at least 1 */
    zr_nn_algorithm_text_t algorithms[ZR_NN_MAX_PROPOSALS]; /* the heuristic's order */
    size_t workspace_bytes[ZR_NN_MAX_PROPOSALS];            /* that each needs */
} zr_nn_matmul_proposals_t;

typedef struct zr_nn_matmul_choice {
    const char *product;
    const char *algorithm; /* of a proposal; NULL: the same as without a choice */
    size_t workspace_bytes;
} zr_nn_matmul_choice_t;

typedef struct zr_nn_matmul_choices {
    const char *name;     /* for messages: the file, for example */
    const char *made_for; /* zr_nn_matmul_library where they were made */
    size_t limit_bytes;   /* as zr_nn_matmul_proposals was called */
    const zr_nn_matmul_choice_t *choices;
    size_t n_choices;
} zr_nn_matmul_choices_t;

/** Products queued since zr_nn_matmul_choose. */
typedef struct zr_nn_matmul_counts {
    uint64_t chosen;  /* with a choice */
    uint64_t unknown; /* without one: the first proposal was taken */
} zr_nn_matmul_counts_t;

/**
 * The library and the device that algorithms belong to.
 *
 * @return ZR_OK; ZR_ERR_UNSUPPORTED if the device has no algorithms to choose from: all but CUDA
 */
ZR_NODISCARD zr_status_t zr_nn_matmul_library(zr_device_t *device, zr_nn_algorithm_text_t *text_p);

/**
 * The algorithms that are proposed for a product. Reads no memory.
 *
 * @param limit_bytes  of workspace that they may need
 * @return ZR_OK; ZR_ERR_UNSUPPORTED; ZR_ERR_ARGUMENT; ZR_ERR_DEVICE
 */
ZR_NODISCARD zr_status_t zr_nn_matmul_proposals(zr_device_t *device, const zr_nn_matmul_t *args,
                                                size_t limit_bytes,
                                                zr_nn_matmul_proposals_t *proposals_p);

/**
 * Choose the algorithms of a device's products from now on, instead of earlier choices. Workspaces
 * that were sized before are invalid.
 *
 * A product without a choice has the first proposal; the log says so once (info). A product whose
 * algorithm is not proposed is refused when it is queued (ZR_ERR_UNSUPPORTED).
 *
 * @param choices  copied; NULL: none
 * @return ZR_OK; ZR_ERR_UNSUPPORTED: they were made for another device or version, or the device
 *         has no algorithms to choose from; ZR_ERR_MEMORY
 */
ZR_NODISCARD zr_status_t zr_nn_matmul_choose(zr_device_t *device,
                                             const zr_nn_matmul_choices_t *choices);
/** The largest workspace of the choices, for zr_hardware_t.matmul_workspace_bytes. */
size_t zr_nn_matmul_choices_workspace(const zr_nn_matmul_choices_t *choices);
/** All 0 if the device has no algorithms to choose from. */
zr_nn_matmul_counts_t zr_nn_matmul_counts(const zr_device_t *device);

/**
 * Gradient of a bias: the sum of dy over its rows, in row order.
 *
 * Shapes: dy [n_rows, n_columns], dbias [n_columns].
 */
typedef struct zr_nn_bias_grad {
    size_t n_rows, n_columns;
    size_t ld_dy; /* row stride of dy in elements; 0: contiguous rows */
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
 * y = (x - mean) * rstd * weight + bias, mean and variance over each row. RMSNorm (is_rms) is y = x
 * * rstd * weight with rstd = 1 / sqrt(mean of x^2 + epsilon).
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

/** Gradients of layer normalisation: dx (+)= ..., dweight and dbias if requested. */
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
 * Shapes: gate_up [n_rows, 2, channels] (a row's gates, then its up projections),
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
 * The input of rotary positions and attention: qkv [batch, seq, heads + 2 kv_heads, head_size], the
 * heads of queries, keys and values in this order, as one matrix product with the concatenated
 * weights gives them. Query head h uses key head h / (heads / kv_heads).
 *
 * document_starts [batch, seq]: the index in the sequence at which the document of a position
 * begins: the position itself, or the value of the previous position (not checked by devices).
 */
typedef struct zr_nn_qkv_shape {
    size_t batch, seq, heads;
    size_t kv_heads; /* heads is a multiple of it */
    size_t head_size;
    const int32_t *document_starts; /* NULL: each sequence is one document */
} zr_nn_qkv_shape_t;

/* ---- rotary positions ------------------------------------------------------- */

/** Scaling of rotary positions: zr_nn_rotary_frequencies. */
typedef enum zr_nn_rotary_scaling {
    ZR_NN_ROTARY_DEFAULT = 0, /* channel pair i of a head: theta^(-2i / head_size) per position */
    ZR_NN_ROTARY_LINEAR = 1,  /* DEFAULT, divided by `factor` */
    ZR_NN_ROTARY_LLAMA3 =
        2 /* slow pairs are divided by `factor`, fast ones are not, with a smooth transition */
} zr_nn_rotary_scaling_t;

typedef struct zr_nn_rotary_positions {
    double theta; /* 10000, 500000, ... */
    zr_nn_rotary_scaling_t scaling;
    double factor;                            /* LINEAR and LLAMA3 */
    double low_freq_factor, high_freq_factor; /* LLAMA3 */
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
 * Prepare a projection for attention: each head of the queries and keys is normalised if there are
 * weights (RMSNorm per head), then channels i and i + head_size / 2 of it are rotated by
 * frequencies[i] times the position in the document. Values are unchanged.
 *
 * Shapes: qkv, out as zr_nn_qkv_shape_t has it; q_weight, k_weight [head_size]; rstd
 * [batch, seq, heads + kv_heads].
 */
typedef struct zr_nn_rotary {
    zr_nn_qkv_shape_t shape; /* head_size: even, at most ZR_NN_ROTARY_MAX_HEAD_SIZE */
    const void *qkv;
    void *out; /* may be qkv, unless heads are normalised, as the backward pass needs the original
                  qkv then */
    const float *frequencies; /* [head_size / 2] in host memory, unchanged until the work is done;
                                 NULL: no rotation */
    const void *q_weight, *k_weight; /* both NULL: no normalisation */
    float epsilon;
    float *rstd; /* out, for the backward pass; NULL without weights */
    zr_dtype_t activation_dtype;
    zr_dtype_t param_dtype;
} zr_nn_rotary_t;
ZR_NODISCARD zr_status_t zr_nn_rotary(zr_stream_t *stream, const zr_nn_rotary_t *args);

/** Backward pass: dqkv, the gradient of `out`, is replaced by that of `qkv`. */
typedef struct zr_nn_rotary_backward {
    zr_nn_qkv_shape_t shape;
    void *dqkv; /* same shape as qkv; overlaps nothing */
    const float *frequencies;
    const void *qkv;                 /* as before normalisation; NULL without weights */
    const void *q_weight, *k_weight; /* both NULL: no normalisation */
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

/** Whose kernels compute attention. Both keep the same log_sum. Other sums, hence other bits. */
typedef enum zr_nn_engine {
    ZR_NN_ENGINE_OWN = 0,
    ZR_NN_ENGINE_CUDNN = 1 /* on cuda: cuDNN's fused kernels, the library's own where cuDNN has none
                              (fp32, documents, some head sizes); other devices: as OWN */
} zr_nn_engine_t;

typedef struct zr_nn_engine_info {
    char name[32];                /* with its version: "own", "cuDNN 9.19.0" */
    size_t n_forward, n_backward; /* of cuDNN: passes that it has computed on this device, where
                                     it was asked to; others were the library's own */
} zr_nn_engine_info_t;

/**
 * Load an engine for a device before it is first used, and tell its version. Ranks that should
 * compute the same bits must have the same. Later calls tell what it has computed since.
 *
 * @return ZR_OK; ZR_ERR_UNSUPPORTED if the device does not have it, or it is too old;
 * ZR_ERR_MEMORY; ZR_ERR_DEVICE
 *
 * Threads: the device's own. Until it is closed the device keeps what was loaded.
 */
ZR_NODISCARD zr_status_t zr_nn_attention_open(zr_device_t *device, zr_nn_engine_t engine,
                                              zr_nn_engine_info_t *info_p);

/**
 * Causal attention of every head: out = softmax(q k^T / sqrt(head_size)) v, each position attends
 * to itself and earlier positions of its document, at most `window` in total.
 *
 * Each thread holds only a tile of rows of one head's scores at a time; the backward pass needs
 * only the logarithm of each row's sum.
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
    zr_nn_engine_t engine;
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
    zr_nn_engine_t engine; /* need not be the forward pass's */
} zr_nn_attention_backward_t;
ZR_NODISCARD zr_status_t zr_nn_attention_backward(zr_stream_t *stream,
                                                  const zr_nn_attention_backward_t *args,
                                                  zr_nn_workspace_t workspace);
size_t zr_nn_attention_backward_workspace_bytes(const zr_device_t *device,
                                                const zr_nn_attention_backward_t *args);

/* ---- embedding -------------------------------------------------------------- */

/**
 * out[b, t] = token_table[tokens[b, t]] + position_table[t - document_starts[b, t]]; without
 * position_table if n_positions is 0.
 *
 * Shapes: tokens [batch, seq], each in [0, vocab) (not checked by devices); token_table [vocab,
 * channels]; position_table [n_positions, channels] with n_positions >= seq, or both 0 and NULL;
 * out [batch, seq, channels].
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
 * Gradients of both tables. Occurrences of a token or position are added in the order of their
 * rows, so the result is reproducible. Rows of unused tokens become 0 unless the gradient
 * accumulates.
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

/** An ignored target: its row has no loss, and gradients of 0. PyTorch's ignore_index. */
#define ZR_NN_TARGET_IGNORED (-100)

/**
 * Logits, softmax cross-entropy and, if requested, their gradients, in one kernel that never holds
 * all logits. The order depends on the device:
 *
 * - the host processes columns, `vocab_chunk` at a time, in two passes over the vocabulary: for the
 * logarithm of each row's sum, then for the gradients. The second pass recomputes logits (except
 * for the last chunk, so that a single chunk has no extra cost);
 * - CUDA processes rows, `row_chunk` at a time, each with all its logits, in one pass.
 *
 * loss[0] += scale * sum over rows of (log_sum - logit of the target);
 * dx = scale * (softmax - one_hot) weight;  dweight (+)= scale * (softmax - one_hot)^T x.
 *
 * Shapes: x, dx [n_rows, channels]; weight, dweight [vocab, channels]; targets [n_rows],
 * each in [0, vocab) or ZR_NN_TARGET_IGNORED (not checked by devices).
 */
typedef struct zr_nn_lm_head {
    size_t n_rows, channels, vocab;
    size_t vocab_chunk; /* columns of logits at a time, >= 1 */
    size_t row_chunk;   /* rows at a time; 0: all */
    const void *x;
    const void *weight;
    const int32_t *targets;
    double *loss; /* [1] on the device, added to */
    float scale;
    void *dx; /* overwritten; NULL: not computed. Overlaps nothing */
    zr_nn_gradient_t dweight;
    zr_dtype_t activation_dtype;
    zr_dtype_t param_dtype;
} zr_nn_lm_head_t;
ZR_NODISCARD zr_status_t zr_nn_lm_head(zr_stream_t *stream, const zr_nn_lm_head_t *args,
                                       zr_nn_workspace_t workspace);
size_t zr_nn_lm_head_workspace_bytes(const zr_device_t *device, const zr_nn_lm_head_t *args);
/**
 * Set vocab_chunk and row_chunk to suitable values for a device and the sizes and dtypes in args.
 * The workspace grows monotonically with n_rows up to most_rows (0: n_rows), so memory can be
 * planned for the largest micro-batch.
 */
void zr_nn_lm_head_chunks(const zr_device_t *device, size_t most_rows, zr_nn_lm_head_t *args);

/* ---- costs ------------------------------------------------------------------ */

/** The cost that each kernel adds to its stream: see zr_stream_cost. */
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

/* ---- to implement a device ---------------------------------------- */

/** The kernels of this header. Each takes a zr_nn_<kernel>_t as arguments; both GELU kernels take
 * zr_nn_gelu_t. */
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

/** A kernel to be queued. nn.c has checked the arguments (no needed pointer is NULL, sizes
 * are not 0 and do not overflow, dtypes are F32 or BF16, the workspace is large enough) and
 * accounts for the cost. */
typedef struct zr_nn_work {
    zr_nn_kernel_t kernel;
    const void *args; /* [args_bytes], valid only during the call */
    size_t args_bytes;
    void *workspace;
} zr_nn_work_t;

/** The functions above, of a device whose products have algorithms to choose from. */
typedef struct zr_nn_chooser {
    zr_status_t (*library)(zr_device_t *device, zr_nn_algorithm_text_t *text_p);
    zr_status_t (*proposals)(zr_device_t *device, const zr_nn_matmul_t *args, size_t limit_bytes,
                             zr_nn_matmul_proposals_t *proposals_p);
    zr_status_t (*choose)(zr_device_t *device, const zr_nn_matmul_choices_t *choices);
    zr_nn_matmul_counts_t (*counts)(const zr_device_t *device);
} zr_nn_chooser_t;

/** All entries but the last two are required; a backend refuses the dtypes it lacks with
 * ZR_ERR_UNSUPPORTED. */
typedef struct zr_nn_backend {
    const char *name; /* name of the device's backend */

    /* See zr_nn_activation_dtype; param_dtype is F32 or BF16. */
    zr_status_t (*activation_dtype)(const zr_device_t *device, zr_dtype_t param_dtype,
                                    zr_dtype_t *dtype_p);
    zr_status_t (*run)(zr_stream_t *stream, const zr_nn_work_t *work);
    /* Workspace of a kernel; 0: none. */
    size_t (*workspace_bytes)(const zr_device_t *device, zr_nn_kernel_t kernel, const void *args);
    /* zr_nn_attention_open of ZR_NN_ENGINE_CUDNN; NULL: the device does not have it. */
    zr_status_t (*attention_open)(zr_device_t *device, zr_nn_engine_info_t *info_p);
    const zr_nn_chooser_t *chooser; /* NULL: none */
} zr_nn_backend_t;

/** Function types for a backend's tables of kernels and workspace sizes, indexed by zr_nn_kernel_t.
 */
typedef zr_status_t zr_nn_run_fn(zr_stream_t *stream, const void *args, void *workspace);
typedef size_t zr_nn_bytes_fn(const zr_device_t *device, const void *args);

/** The kernels of a device: its backend's (zr_device_backend_t.nn), or this library's for a device
 * with that name. NULL: none. */
const zr_nn_backend_t *zr_nn_backend_of(const zr_device_t *device);

/** This library's kernels; ends with NULL (kernels/nn/backends.c). */
extern const zr_nn_backend_t *const zr_nn_backends[];

ZR_END_C
