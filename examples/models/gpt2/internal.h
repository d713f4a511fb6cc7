/*
 * What the files of the model share: the shape that its blocks get, and the parameters of each.
 */
#pragma once

#include "models/gpt2/gpt.h"
#include "models/gpt2/tensors.h"
#include "models/internal.h"

#define ZR_GPT_EPSILON 1e-5f /* of every norm */

/* What all blocks are handed as their shape. */
typedef struct zr_gpt_model {
    zr_part_model_t base;
    zr_gpt_shape_t shape;
} zr_gpt_model_t;

typedef struct zr_gpt_layer {
    zr_part_norm_t ln_1, ln_2;
    zr_part_linear_t attn_in, attn_out; /* c_attn, attn.c_proj */
    zr_part_linear_t mlp_in, mlp_out;   /* c_fc, mlp.c_proj */
} zr_gpt_layer_t;

/** Add a parameter of the table (tensors.h) to a block; `deviation` 0: it begins as its kind does.
 */
ZR_NODISCARD zr_status_t zr_gpt_add_param(zr_block_t *block, const zr_gpt_model_t *model,
                                          zr_gpt_kind_t kind, size_t layer, zr_init_t init,
                                          double deviation, zr_param_t **param_p);
/** A norm: its weight is of the kind that is named, its bias of the next one. */
ZR_NODISCARD zr_status_t zr_gpt_add_norm(zr_block_t *block, const zr_gpt_model_t *model,
                                         zr_gpt_kind_t weight, size_t layer, zr_part_norm_t *norm);

/** A transformer's layer, with the residual stream: layer.c. Block 1 + i of a model is layer i. */
extern const zr_block_type_t zr_gpt_layer_block;

/** zr_architecture_t.read_config: config.c. */
ZR_NODISCARD zr_status_t zr_gpt_read_config(const json_t *config, const char *where,
                                            const zr_log_t *log, zr_model_shape_t *shape_p);
