/*
 * What the files of the model share: the shape that its blocks get, and the parameters of each.
 */
#ifndef EXAMPLES_MODELS_GPT2_INTERNAL_H
#define EXAMPLES_MODELS_GPT2_INTERNAL_H

#include "examples/models/gpt2/gpt.h"
#include "examples/models/gpt2/tensors.h"
#include "examples/models/parts.h"

#define GPT_EPSILON 1e-5f /* of every norm */

/* What all blocks are handed as their shape. */
typedef struct gpt_model {
    gpt_shape_t shape;
    part_types_t types;
    size_t most_rows; /* of the largest micro-batch; 0: each for itself */
} gpt_model_t;

typedef struct gpt_embed {
    zr_param_t *wte; /* [vocab, channels], also the output's */
    zr_param_t *wpe; /* [seq, channels] */
} gpt_embed_t;

typedef struct gpt_layer {
    part_norm_t ln_1, ln_2;
    part_linear_t attn_in, attn_out; /* c_attn, attn.c_proj */
    part_linear_t mlp_in, mlp_out;   /* c_fc, mlp.c_proj */
} gpt_layer_t;

/** Add a parameter of the table (tensors.h) to a block; `deviation` 0: it begins as its kind does.
 */
ZR_NODISCARD zr_status_t gpt_add_param(zr_block_t *block, const gpt_model_t *model, gpt_kind_t kind,
                                       size_t layer, zr_init_t init, double deviation,
                                       zr_param_t **param_p);
/** A norm: its weight is of the kind that is named, its bias of the next one. */
ZR_NODISCARD zr_status_t gpt_add_norm(zr_block_t *block, const gpt_model_t *model,
                                      gpt_kind_t weight, size_t layer, part_norm_t *norm);

/** A transformer's layer, with the residual stream: layer.c. Block 1 + i of a model is layer i. */
extern const zr_block_type_t gpt_layer_block;

#endif
