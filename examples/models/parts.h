/*
 * What blocks of transformers are made of: a linear layer, a norm, and the memory of a visit in
 * rows of activations. Each is written once for all models.
 *
 * Every tensor is dropped as soon as the last kernel that reads it is queued.
 */
#pragma once

#include "zero/zero.h"

ZR_BEGIN_C

/** What the kernels of a model have in common; a part of its shape. */
typedef struct zr_part_types {
    zr_dtype_t param_dtype;
    zr_dtype_t activation_dtype;
    size_t least_rows; /* of the smallest micro-batch there will be: what its products take a
                          workspace for, larger ones take one for, too, so that all can follow one
                          plan of memory; 0: as each needs it */
} zr_part_types_t;

typedef struct zr_part_adapter zr_part_adapter_t;

/** What a model's shape begins with, for blocks that are the same in all models. */
typedef struct zr_part_model {
    zr_part_types_t types;
    size_t most_rows;                 /* of the largest micro-batch; 0: each for itself */
    const zr_encoding_t *encoding;    /* of the weights of linear layers; NULL: the runtime's */
    const zr_part_adapter_t *adapter; /* of those; NULL: none */
} zr_part_model_t;

/** The dtypes of a runtime. ZR_ERR_UNSUPPORTED when its device has no kernels for them. */
ZR_NODISCARD zr_status_t zr_part_types_of(const zr_runtime_t *runtime, size_t least_rows,
                                          zr_part_types_t *types_p);

/* ---- memory ---------------------------------------------------------------------------------- */

/** [n_rows of the batch, n_columns] of activations. */
ZR_NODISCARD zr_status_t zr_part_take(zr_visit_t *visit, const zr_part_types_t *types,
                                      zr_memory_t memory, size_t n_columns, void **pointer_p);
/** [n_elems] fp32, whatever the activations are. */
ZR_NODISCARD zr_status_t zr_part_take_floats(zr_visit_t *visit, zr_memory_t memory, size_t n_elems,
                                             void **pointer_p);
/** A workspace of so many bytes into a field, to be dropped; 0: none. */
ZR_NODISCARD zr_status_t zr_part_take_workspace(zr_visit_t *visit, size_t size_bytes, void **field,
                                                zr_nn_workspace_t *workspace_p);
/** Where a parameter's gradient goes: data is NULL when it is frozen or missing. */
ZR_NODISCARD zr_status_t zr_part_gradient(zr_param_t *param, zr_nn_gradient_t *gradient_p);

/* ---- linear layers ---------------------------------------------------------------------------
 *
 * y = x weight + bias, and what an adapter adds. The weight has an encoding, the adapter is a
 * description: a frozen weight in few bits with a low-rank adapter is these two, and no other code.
 */

typedef struct zr_part_linear zr_part_linear_t;

/** What a product does beside it. */
typedef struct zr_part_product {
    const void *addend;        /* forward: a residual stream, added; NULL: none */
    zr_nn_epilogue_t epilogue; /* GELU forward, GELU_BACKWARD for the input's gradient */
    void *pre_gelu;
    bool keeps_x; /* backward: x is needed by others, too, and not dropped */
} zr_part_product_t;

/** Fields of a block's tensors that linear layers use within a visit; NULL before and after. */
typedef struct zr_part_scratch {
    void *workspace;
    void *adapter[2];
} zr_part_scratch_t;

/** What is trained beside a weight: a description, whose parameters are of the layer's unit. Its
 * functions add to y and dx, in the dtype of activations. */
struct zr_part_adapter {
    /** Add its parameters to linear->added, by zr_part_linear_add_param; or set linear->adapter to
     * NULL: this layer has none. */
    zr_status_t (*declare)(zr_block_t *block, zr_part_linear_t *linear);
    /** y += what it makes of x. y [rows, n_out] is complete but for that, and a GELU behind it. */
    zr_status_t (*forward)(zr_visit_t *visit, const zr_part_linear_t *linear, const void *x,
                           zr_part_scratch_t *scratch, void *y);
    /** The gradients of its parameters, where they are wanted, and dx += that of what it made. */
    zr_status_t (*backward)(zr_visit_t *visit, const zr_part_linear_t *linear, const void *x,
                            const void *dy, zr_part_scratch_t *scratch, void *dx);
};

typedef struct zr_part_linear_desc {
    const char *name; /* "h.0.mlp.c_fc": parameters are NAME.weight, NAME.bias; copied */
    size_t n_in, n_out;
    bool is_out_first; /* the weight is [n_out, n_in], as torch's Linear has it */
    bool has_no_bias;
    size_t ld_y; /* is_out_first: elements from row to row of y and dy, which are parts of longer
                    rows; 0: rows follow each other */
    double deviation;                 /* of the weight's initial values */
    const zr_encoding_t *encoding;    /* of the weight; NULL: the runtime's */
    const zr_part_adapter_t *adapter; /* NULL: none; borrowed as long as the model */
} zr_part_linear_desc_t;

#define ZR_PART_MAX_ADDED 4 /* parameters of an adapter */
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
/** Add one parameter more; `desc` has what follows the layer's name and a dot as its name. */
ZR_NODISCARD zr_status_t zr_part_linear_add_param(zr_block_t *block, const zr_part_linear_t *linear,
                                                  const zr_block_param_t *desc,
                                                  zr_param_t **param_p);
/** Where a layer's forward holds what its backward needs. */
static inline zr_memory_t zr_part_memory(const zr_visit_t *visit) {
    return visit->keeps ? ZR_MEMORY_KEPT : ZR_MEMORY_TEMPORARY;
}

/** zr_nn_attention with its workspace; `args` lacks the dtype of activations alone. */
ZR_NODISCARD zr_status_t zr_part_attention_forward(zr_visit_t *visit, const zr_part_types_t *types,
                                                   zr_nn_attention_t args,
                                                   zr_part_scratch_t *scratch);
/** zr_nn_attention_backward likewise. */
ZR_NODISCARD zr_status_t zr_part_attention_backward(zr_visit_t *visit, const zr_part_types_t *types,
                                                    zr_nn_attention_backward_t args,
                                                    zr_part_scratch_t *scratch);

/** y = x weight + bias, and what `more` says. */
ZR_NODISCARD zr_status_t zr_part_linear_forward(zr_visit_t *visit, const zr_part_linear_t *linear,
                                                const void *x, const zr_part_product_t *more,
                                                zr_part_scratch_t *scratch, void *y);
/**
 * The gradients of weight and bias, x^T dy and the sum of dy, and that of x, dy weight^T.
 *
 * @param x     dropped, and NULL then, as soon as nothing needs it, unless `more` keeps it
 * @param dx    [rows, n_in] taken here, for the visit, where it is NULL; else added to
 */
ZR_NODISCARD zr_status_t zr_part_linear_backward(zr_visit_t *visit, const zr_part_linear_t *linear,
                                                 void **x, const void *dy,
                                                 const zr_part_product_t *more,
                                                 zr_part_scratch_t *scratch, void **dx);
/** c = a b, or any other product, with a workspace that is there for it alone. */
ZR_NODISCARD zr_status_t zr_part_multiply(zr_visit_t *visit, const zr_nn_matmul_t *product,
                                          void **workspace);

/* ---- norms ----------------------------------------------------------------------------------- */

typedef struct zr_part_norm {
    zr_param_t *weight, *bias; /* [channels]; without a bias it is of the root mean square */
    size_t channels;
    float epsilon;
} zr_part_norm_t;

/** y = norm(x), taken here. `statistics` [2, rows], mean and rstd for backward, is taken where it
 * is NULL, within the visit. */
ZR_NODISCARD zr_status_t zr_part_norm_forward(zr_visit_t *visit, const zr_part_types_t *types,
                                              const zr_part_norm_t *norm, const void *x,
                                              void **statistics, void **y);
/** dx (+)= gradient of the norm's input, from *dy, which is dropped. */
ZR_NODISCARD zr_status_t zr_part_norm_backward(zr_visit_t *visit, const zr_part_types_t *types,
                                               const zr_part_norm_t *norm, const void *x,
                                               const void *statistics, void **dy, void **workspace,
                                               void *dx, bool accumulate);

/* ---- blocks ----------------------------------------------------------------------------------
 *
 * The passes of blocks that all models have: the embedding, the last norm and the head. A model
 * adds their parameters. Its shape begins with a zr_part_model_t.
 */

/** A micro-batch of words has these inputs, int32. Targets may be ZR_NN_TARGET_IGNORED; document
 * starts, as zr_nn_qkv_shape_t has them, are of models that have documents. */
enum { ZR_PART_TOKENS = 0, ZR_PART_TARGETS = 1, ZR_PART_STARTS = 2, ZR_PART_N_INPUTS = 3 };

/** The document starts of a micro-batch, on the device; NULL: each sequence is one document. */
const int32_t *zr_part_document_starts(const zr_visit_t *visit);

/** `tensors` of these blocks. */
typedef struct zr_part_tensors {
    void *statistics; /* fp32 [2, rows] of the norm */
    void *workspace;
} zr_part_tensors_t;

/** `self` of the embedding and of the head, which uses the words alone. */
typedef struct zr_part_tables {
    zr_param_t *words;     /* [vocab, channels] */
    zr_param_t *positions; /* [n_positions, channels]; NULL: none */
    size_t channels, vocab, n_positions;
} zr_part_tables_t;

/** y = words[tokens] + positions. Backward needs no parameters. */
ZR_NODISCARD zr_status_t zr_part_embed_forward(zr_visit_t *visit);
ZR_NODISCARD zr_status_t zr_part_embed_backward(zr_visit_t *visit);
/** y = norm(x); `self` is a zr_part_norm_t. */
ZR_NODISCARD zr_status_t zr_part_last_norm_forward(zr_visit_t *visit);
ZR_NODISCARD zr_status_t zr_part_last_norm_backward(zr_visit_t *visit);
/** The loss of x words^T against the targets. */
ZR_NODISCARD zr_status_t zr_part_head_forward(zr_visit_t *visit);
ZR_NODISCARD zr_status_t zr_part_head_backward(zr_visit_t *visit);

/* ---- models ---------------------------------------------------------------------------------- */

/** What is chosen beside a model's shape. */
typedef struct zr_transformer_options {
    uint64_t seed;       /* of the initial weights */
    const char *freeze;  /* comma-separated parameters to freeze, by name or by the part of it
                            before a dot ("wte,h.0"); NULL: none. Borrowed for calls */
    double weight_decay; /* of matrices; vectors have none */
    /* Of the layers' linear parts, as zr_part_linear_desc_t has them. */
    const zr_encoding_t *encoding;    /* of their weights; NULL: the runtime's */
    const zr_part_adapter_t *adapter; /* NULL: none; borrowed as long as the model */
    bool trains_added;                /* what adapters add is trained, and nothing else */
    bool has_documents;               /* a micro-batch has document starts, too */
} zr_transformer_options_t;

/** A model of an embedding, equal layers, a norm and a head. The types of blocks are borrowed until
 * zr_model_destroy, the rest for the call. */
typedef struct zr_part_model_desc {
    void *shape; /* [shape_bytes] begins with a zr_part_model_t, which is set here; copied then */
    size_t shape_bytes;
    size_t n_layers, channels, vocab, seq;
    const zr_block_type_t *embed, *layer, *norm, *head;
    const char *layer_name; /* "h": of the units "h.0", "h.1", ... */
    const char *norm_name;
    const zr_transformer_options_t *options;
} zr_part_model_desc_t;

/** zr_model_create and zr_model_add for each block. `activations` NULL: all are kept on the device.
 */
ZR_NODISCARD zr_status_t zr_part_model_create(zr_runtime_t *runtime,
                                              const zr_part_model_desc_t *desc,
                                              const zr_activation_options_t *activations,
                                              zr_model_t **model_p);

ZR_END_C
