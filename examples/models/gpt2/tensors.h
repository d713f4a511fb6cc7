/*
 * The parameters of a GPT: their names and shapes, in one table. The model registers them by it
 * (gpt.c), and files of other tools are read and written by it (examples/weights/).
 *
 * A kind is what each layer has one of, or the model. Their order is that of the model's data
 * flow, which is also the order in which llm.c keeps them.
 */
#pragma once

#include "models/gpt2/gpt.h"

ZR_BEGIN_C

typedef enum zr_gpt_kind {
    ZR_GPT_WTE,
    ZR_GPT_WPE,
    ZR_GPT_LN_1_WEIGHT, /* first kind of layers */
    ZR_GPT_LN_1_BIAS,
    ZR_GPT_ATTN_IN_WEIGHT,
    ZR_GPT_ATTN_IN_BIAS,
    ZR_GPT_ATTN_OUT_WEIGHT,
    ZR_GPT_ATTN_OUT_BIAS,
    ZR_GPT_LN_2_WEIGHT,
    ZR_GPT_LN_2_BIAS,
    ZR_GPT_MLP_IN_WEIGHT,
    ZR_GPT_MLP_IN_BIAS,
    ZR_GPT_MLP_OUT_WEIGHT,
    ZR_GPT_MLP_OUT_BIAS, /* last kind of layers */
    ZR_GPT_LN_F_WEIGHT,
    ZR_GPT_LN_F_BIAS
} zr_gpt_kind_t;
#define ZR_GPT_N_KINDS 16

typedef struct zr_gpt_tensor {
    zr_gpt_kind_t kind;
    size_t layer;  /* for kinds of layers; else 0 */
    char name[64]; /* "h.0.attn.c_attn.weight" */
    int n_dims;    /* 1 or 2 */
    size_t dims[2];
    size_t n_elems;
} zr_gpt_tensor_t;

/** Whether each layer has a parameter of this kind. */
bool zr_gpt_kind_is_of_layer(zr_gpt_kind_t kind);
/** Whether it is the weight of a linear layer, [in, out]. */
bool zr_gpt_kind_is_linear(zr_gpt_kind_t kind);

/** The parameter of a kind; `layer` must be less than the shape's n_layers, and is ignored for
 * kinds outside of layers. */
zr_gpt_tensor_t zr_gpt_tensor(const zr_gpt_shape_t *shape, zr_gpt_kind_t kind, size_t layer);

/** Number of parameters (tensors, not elements). */
size_t zr_gpt_n_tensors(const zr_gpt_shape_t *shape);
/** Parameter `index`, in the order in which the model registers them: layer by layer. */
zr_gpt_tensor_t zr_gpt_tensor_at(const zr_gpt_shape_t *shape, size_t index);

/**
 * Split the name of a layer's parameter, "h.12.attn.c_attn.weight", into the layer, less than
 * n_layers, and the rest, "attn.c_attn.weight"; false: not such a name.
 */
bool zr_gpt_split_layer(const char *name, size_t n_layers, size_t *layer_p, const char **rest_p);

/** Find the parameter of a shape by name; false: not found. */
bool zr_gpt_tensor_find(const zr_gpt_shape_t *shape, const char *name, zr_gpt_tensor_t *tensor_p);

ZR_END_C
