/*
 * The parameters of a GPT: their names and shapes, in one table. The model registers them by it
 * (gpt.c), and files of other tools are read and written by it (interchange/).
 *
 * A kind is what each layer has one of, or the model. Their order is that of the model's data
 * flow, which is also the order in which llm.c keeps them.
 */
#ifndef EXAMPLES_MODELS_GPT2_TENSORS_H
#define EXAMPLES_MODELS_GPT2_TENSORS_H

#include "examples/models/gpt2/gpt.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum gpt_kind {
    GPT_WTE,
    GPT_WPE,
    GPT_LN_1_WEIGHT, /* the first one that each layer has */
    GPT_LN_1_BIAS,
    GPT_ATTN_IN_WEIGHT,
    GPT_ATTN_IN_BIAS,
    GPT_ATTN_OUT_WEIGHT,
    GPT_ATTN_OUT_BIAS,
    GPT_LN_2_WEIGHT,
    GPT_LN_2_BIAS,
    GPT_MLP_IN_WEIGHT,
    GPT_MLP_IN_BIAS,
    GPT_MLP_OUT_WEIGHT,
    GPT_MLP_OUT_BIAS, /* the last one */
    GPT_LN_F_WEIGHT,
    GPT_LN_F_BIAS
} gpt_kind_t;
#define GPT_N_KINDS 16

typedef struct gpt_tensor {
    gpt_kind_t kind;
    size_t layer;  /* of kinds that layers have; else 0 */
    char name[64]; /* "h.0.attn.c_attn.weight" */
    int n_dims;    /* 1 or 2 */
    size_t dims[2];
    size_t n_elems;
} gpt_tensor_t;

/** Whether each layer has one. */
bool gpt_kind_is_of_layer(gpt_kind_t kind);
/** Whether it is the weight of a linear layer, [in, out]. */
bool gpt_kind_is_linear(gpt_kind_t kind);

/** The parameter of a kind; `layer` is below the shape's n_layers, and only read where layers
 * have one. */
gpt_tensor_t gpt_tensor(const gpt_shape_t *shape, gpt_kind_t kind, size_t layer);

/** How many parameters (tensors, not elements) there are. */
size_t gpt_n_tensors(const gpt_shape_t *shape);
/** Number `index` of them, in the order in which the model registers them: layer by layer. */
gpt_tensor_t gpt_tensor_at(const gpt_shape_t *shape, size_t index);

/**
 * Split the name of what a layer has, "h.12.attn.c_attn.weight", into the layer, below n_layers,
 * and the rest behind it, "attn.c_attn.weight"; false: it is none.
 */
bool gpt_split_layer(const char *name, size_t n_layers, size_t *layer_p, const char **rest_p);

/** Which parameter of a shape has this name; false: none. */
bool gpt_tensor_find(const gpt_shape_t *shape, const char *name, gpt_tensor_t *tensor_p);

#ifdef __cplusplus
}
#endif
#endif
