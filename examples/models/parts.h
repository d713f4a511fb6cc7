/*
 * Parts of transformer blocks that all models share: linear layers, norms, and memory for
 * activations.
 *
 * Every tensor is freed as soon as the last kernel that reads it is queued.
 */
#pragma once

#include "zero/zero.h"

ZR_BEGIN_C

/** Settings shared by all kernels of a model; part of its shape. */
typedef struct zr_part_types {
    zr_dtype_t param_dtype;
    zr_dtype_t activation_dtype;
    zr_nn_engine_t attention;
    size_t least_rows; /* rows of the smallest micro-batch. Products take workspaces that suffice
                          from this size to their own, so that all sizes can follow one memory plan;
                          0: each takes what it needs */
} zr_part_types_t;

typedef struct zr_part_adapter zr_part_adapter_t;

/** The beginning of every model's shape, for blocks that all models share. */
typedef struct zr_part_model {
    zr_part_types_t types;
    size_t most_rows; /* rows of the largest micro-batch; 0: unknown */
    const zr_encoding_t
        *encoding; /* encoding of the linear layers' weights; NULL: the runtime's dtype */
    const zr_part_adapter_t *adapter; /* adapter of linear layers; NULL: none */
    bool keeps_cheap;                 /* nothing is recomputed: ZR_RECOMPUTE_NEVER */
} zr_part_model_t;

/** Get the dtypes for a runtime. ZR_ERR_UNSUPPORTED if its device has no kernels for them. */
ZR_NODISCARD zr_status_t zr_part_types_of(const zr_runtime_t *runtime, size_t least_rows,
                                          zr_part_types_t *types_p);

/* ---- memory ---------------------------------------------------------------------------------- */

/** Allocate activations [rows of the batch, n_columns]. */
ZR_NODISCARD zr_status_t zr_part_take(zr_visit_t *visit, const zr_part_types_t *types,
                                      zr_memory_t memory, size_t n_columns, void **pointer_p);
/** Allocate [n_elems] fp32 values, independent of the activations' dtype. */
ZR_NODISCARD zr_status_t zr_part_take_floats(zr_visit_t *visit, zr_memory_t memory, size_t n_elems,
                                             void **pointer_p);
/** Allocate a workspace of size_bytes into a field, to be freed with zr_visit_drop; 0: none. */
ZR_NODISCARD zr_status_t zr_part_take_workspace(zr_visit_t *visit, size_t size_bytes, void **field,
                                                zr_nn_workspace_t *workspace_p);
/** The output of a parameter's gradient: data is NULL if it is frozen or missing. */
ZR_NODISCARD zr_status_t zr_part_gradient(zr_param_t *param, zr_nn_gradient_t *gradient_p);

/* ---- linear layers ---------------------------------------------------------------------------
 *
 * y = x weight + bias, plus the output of an adapter. The weight's encoding and the adapter are
 * descriptions: a quantized frozen weight with a low-rank adapter combines the two without further
 * code.
 */

typedef struct zr_part_linear zr_part_linear_t;

/** Additional operations of a product. */
typedef struct zr_part_product {
    const void *addend;        /* forward: a residual stream, added; NULL: none */
    zr_nn_epilogue_t epilogue; /* GELU forward, GELU_BACKWARD for the input's gradient */
    void *pre_gelu;
    bool keeps_x; /* backward: do not free x, because it is still needed */
} zr_part_product_t;

/** Fields of a block's tensors that linear layers use during a visit; NULL before and after. */
typedef struct zr_part_scratch {
    void *workspace;
    void *adapter[2];
} zr_part_scratch_t;

/** An adapter: parameters that are trained in addition to a frozen weight, in the layer's unit. Its
 * functions add to y and dx, in the dtype of activations. */
struct zr_part_adapter {
    /** Add its parameters to linear->added, by zr_part_linear_add_param; or set linear->adapter to
     * NULL if this layer gets no adapter. */
    zr_status_t (*declare)(zr_block_t *block, zr_part_linear_t *linear);
    /** Add the adapter's output for x to y [rows, n_out], which has everything else but a following
     * GELU. */
    zr_status_t (*forward)(zr_visit_t *visit, const zr_part_linear_t *linear, const void *x,
                           zr_part_scratch_t *scratch, void *y);
    /** Compute the gradients of its parameters, if requested, and add its input gradient to dx. */
    zr_status_t (*backward)(zr_visit_t *visit, const zr_part_linear_t *linear, const void *x,
                            const void *dy, zr_part_scratch_t *scratch, void *dx);
};

typedef struct zr_part_linear_desc {
    const char *name; /* "h.0.mlp.c_fc": its parameters are NAME.weight and NAME.bias; copied */
    size_t n_in, n_out;
    bool is_out_first; /* the weight is [n_out, n_in], as torch's Linear has it */
    bool has_no_bias;
    size_t ld_y;      /* is_out_first: row stride of y and dy in elements; 0: contiguous rows */
    double deviation; /* standard deviation of the weight's initial values */
    const zr_encoding_t *encoding;    /* of the weight; NULL: the runtime's dtype */
    const zr_part_adapter_t *adapter; /* NULL: none; borrowed for the life of the model */
} zr_part_linear_desc_t;

#define ZR_PART_MAX_ADDED 4 /* maximum parameters of an adapter */
struct zr_part_linear {
    const char *name; /* within declare */
    zr_part_types_t types;
    zr_param_t *weight; /* [n_in, n_out], or [n_out, n_in] */
    zr_param_t *bias;   /* [n_out]; NULL: none */
    size_t n_in, n_out, ld_y;
    bool is_out_first;
    const zr_part_adapter_t *adapter;
    zr_param_t *added[ZR_PART_MAX_ADDED];
};

/** Add the parameters of a layer to a block, in its `declare`. ZR_ERR_UNSUPPORTED when a unit
 * cannot hold the weight's encoding. */
ZR_NODISCARD zr_status_t zr_part_linear_declare(zr_block_t *block, const zr_part_types_t *types,
                                                const zr_part_linear_desc_t *desc,
                                                zr_part_linear_t *linear_p);
/** Add a further parameter; desc->name is appended to the layer's name and a dot. */
ZR_NODISCARD zr_status_t zr_part_linear_add_param(zr_block_t *block, const zr_part_linear_t *linear,
                                                  const zr_block_param_t *desc,
                                                  zr_param_t **param_p);
/** The kind of memory in which a layer's forward keeps what its backward needs. */
static inline zr_memory_t zr_part_memory(const zr_visit_t *visit) {
    return visit->keeps ? ZR_MEMORY_KEPT : ZR_MEMORY_TEMPORARY;
}
/** The same for what is cheap to compute again: kept only with ZR_RECOMPUTE_NEVER. */
static inline zr_memory_t zr_part_cheap_memory(const zr_visit_t *visit) {
    return visit->keeps && ((const zr_part_model_t *)visit->shape)->keeps_cheap
               ? ZR_MEMORY_KEPT
               : ZR_MEMORY_TEMPORARY;
}

/** zr_nn_attention with its workspace; `args` is complete except for the dtype of activations. */
ZR_NODISCARD zr_status_t zr_part_attention_forward(zr_visit_t *visit, const zr_part_types_t *types,
                                                   zr_nn_attention_t args,
                                                   zr_part_scratch_t *scratch);
/** zr_nn_attention_backward likewise. */
ZR_NODISCARD zr_status_t zr_part_attention_backward(zr_visit_t *visit, const zr_part_types_t *types,
                                                    zr_nn_attention_backward_t args,
                                                    zr_part_scratch_t *scratch);

/** y = x weight + bias, with the operations of `more`. */
ZR_NODISCARD zr_status_t zr_part_linear_forward(zr_visit_t *visit, const zr_part_linear_t *linear,
                                                const void *x, const zr_part_product_t *more,
                                                zr_part_scratch_t *scratch, void *y);
/**
 * Compute the gradients of weight (x^T dy), bias (sum of dy) and x (dy weight^T).
 *
 * @param x     freed and set to NULL when no longer needed, unless more->keeps_x
 * @param dx    [rows, n_in]; if NULL, allocated for the visit; else added to
 */
ZR_NODISCARD zr_status_t zr_part_linear_backward(zr_visit_t *visit, const zr_part_linear_t *linear,
                                                 void **x, const void *dy,
                                                 const zr_part_product_t *more,
                                                 zr_part_scratch_t *scratch, void **dx);
/** c = a b, or any other product, with a temporary workspace. */
ZR_NODISCARD zr_status_t zr_part_multiply(zr_visit_t *visit, const zr_nn_matmul_t *product,
                                          void **workspace);

/* ---- norms ----------------------------------------------------------------------------------- */

typedef struct zr_part_norm {
    zr_param_t *weight, *bias; /* [channels]; without bias it is an RMSNorm */
    size_t channels;
    float epsilon;
} zr_part_norm_t;

/** y = norm(x); allocates y. `statistics` [2, rows], mean and rstd for backward, is allocated if
 * NULL, for the visit. */
ZR_NODISCARD zr_status_t zr_part_norm_forward(zr_visit_t *visit, const zr_part_types_t *types,
                                              const zr_part_norm_t *norm, const void *x,
                                              void **statistics, void **y);
/** Output and statistics of a norm that wait for backward; NULL: they are computed again. */
typedef struct zr_part_normed {
    void *statistics, *y;
} zr_part_normed_t;
/** After forward has used y: keep both, if what is cheap is kept, or free y. */
void zr_part_norm_done(zr_visit_t *visit, zr_part_normed_t *kept, void **statistics, void **y);
/** In backward: take what was kept, or compute it again. */
ZR_NODISCARD zr_status_t zr_part_norm_again(zr_visit_t *visit, const zr_part_types_t *types,
                                            const zr_part_norm_t *norm, const void *x,
                                            zr_part_normed_t *kept, void **statistics, void **y);
/** dx (+)= gradient of the norm's input, from *dy, which is freed. */
ZR_NODISCARD zr_status_t zr_part_norm_backward(zr_visit_t *visit, const zr_part_types_t *types,
                                               const zr_part_norm_t *norm, const void *x,
                                               const void *statistics, void **dy, void **workspace,
                                               void *dx, bool accumulate);

/* ---- blocks ----------------------------------------------------------------------------------
 *
 * Forward and backward of blocks that all models have: embedding, last norm and head. A model
 * declares their parameters. Its shape begins with a zr_part_model_t.
 */

/** Inputs of a language model's micro-batch, int32. Targets may be ZR_NN_TARGET_IGNORED. Document
 * starts (see zr_nn_qkv_shape_t) are only for models with documents. */
enum { ZR_PART_TOKENS = 0, ZR_PART_TARGETS = 1, ZR_PART_STARTS = 2, ZR_PART_N_INPUTS = 3 };

/** The document starts of a micro-batch, on the device; NULL: each sequence is one document. */
const int32_t *zr_part_document_starts(const zr_visit_t *visit);

/** `tensors` of these blocks. */
typedef struct zr_part_tensors {
    void *statistics; /* fp32 [2, rows] of the norm */
    void *workspace;
} zr_part_tensors_t;

/** `self` of the embedding and of the head; the head uses only `words`. */
typedef struct zr_part_tables {
    zr_param_t *words;     /* [vocab, channels] */
    zr_param_t *positions; /* [n_positions, channels]; NULL: none */
    size_t channels, vocab, n_positions;
} zr_part_tables_t;

/** y = words[tokens] + positions. Backward reads no parameters. */
ZR_NODISCARD zr_status_t zr_part_embed_forward(zr_visit_t *visit);
ZR_NODISCARD zr_status_t zr_part_embed_backward(zr_visit_t *visit);
/** y = norm(x); `self` is a zr_part_norm_t. */
ZR_NODISCARD zr_status_t zr_part_last_norm_forward(zr_visit_t *visit);
ZR_NODISCARD zr_status_t zr_part_last_norm_backward(zr_visit_t *visit);
/** The loss of x words^T against the targets. */
ZR_NODISCARD zr_status_t zr_part_head_forward(zr_visit_t *visit);
ZR_NODISCARD zr_status_t zr_part_head_backward(zr_visit_t *visit);

/* ---- models ---------------------------------------------------------------------------------- */

/** Options of a model, in addition to its shape. */
typedef struct zr_transformer_options {
    uint64_t seed;      /* for the initial weights */
    const char *freeze; /* comma-separated parameters to freeze, by name or by a prefix before a dot
                           ("wte,h.0"); NULL: none. Borrowed for calls */
    double weight_decay; /* for matrices; vectors have none */
    /* For the layers' linear layers: see zr_part_linear_desc_t. */
    const zr_encoding_t *encoding;    /* of their weights; NULL: the runtime's dtype */
    const zr_part_adapter_t *adapter; /* NULL: none; borrowed for the life of the model */
    bool trains_added;                /* train only the adapters' parameters */
    bool has_documents;               /* micro-batches have document starts */
    zr_nn_engine_t attention;         /* whose kernels compute it, where the device has them */
} zr_transformer_options_t;

/** A model with an embedding, identical layers, a norm and a head. Block types are borrowed until
 * zr_model_destroy, other fields for the call. */
typedef struct zr_part_model_desc {
    void *shape; /* [shape_bytes] begins with a zr_part_model_t, which zr_part_model_create sets
                    before it copies the shape */
    size_t shape_bytes;
    size_t n_layers, channels, vocab, seq;
    const zr_block_type_t *embed, *layer, *norm, *head;
    const char *layer_name; /* "h" for units "h.0", "h.1", ... */
    const char *norm_name;
    const zr_transformer_options_t *options;
} zr_part_model_desc_t;

/** zr_model_create and zr_model_add for each block. `activations` NULL: keep all on the device.
 */
ZR_NODISCARD zr_status_t zr_part_model_create(zr_runtime_t *runtime,
                                              const zr_part_model_desc_t *desc,
                                              const zr_activation_options_t *activations,
                                              zr_model_t **model_p);

ZR_END_C
