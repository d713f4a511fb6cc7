/*
 * A dimension is so many channels, the words or the positions; a vector has no second one.
 */
#include "models/gpt2/tensors.h"

#include <stdio.h>
#include <string.h>

enum { VOCAB = -1, SEQ = -2 };

static const struct {
    const char *name;  /* of a layer's: behind "h.0." */
    int rows, columns; /* channels; columns 0: a vector */
} kinds[ZR_GPT_N_KINDS] = {
    [ZR_GPT_WTE] = {"wte.weight", VOCAB, 1},
    [ZR_GPT_WPE] = {"wpe.weight", SEQ, 1},
    [ZR_GPT_LN_1_WEIGHT] = {"ln_1.weight", 1, 0},
    [ZR_GPT_LN_1_BIAS] = {"ln_1.bias", 1, 0},
    [ZR_GPT_ATTN_IN_WEIGHT] = {"attn.c_attn.weight", 1, 3},
    [ZR_GPT_ATTN_IN_BIAS] = {"attn.c_attn.bias", 3, 0},
    [ZR_GPT_ATTN_OUT_WEIGHT] = {"attn.c_proj.weight", 1, 1},
    [ZR_GPT_ATTN_OUT_BIAS] = {"attn.c_proj.bias", 1, 0},
    [ZR_GPT_LN_2_WEIGHT] = {"ln_2.weight", 1, 0},
    [ZR_GPT_LN_2_BIAS] = {"ln_2.bias", 1, 0},
    [ZR_GPT_MLP_IN_WEIGHT] = {"mlp.c_fc.weight", 1, 4},
    [ZR_GPT_MLP_IN_BIAS] = {"mlp.c_fc.bias", 4, 0},
    [ZR_GPT_MLP_OUT_WEIGHT] = {"mlp.c_proj.weight", 4, 1},
    [ZR_GPT_MLP_OUT_BIAS] = {"mlp.c_proj.bias", 1, 0},
    [ZR_GPT_LN_F_WEIGHT] = {"ln_f.weight", 1, 0},
    [ZR_GPT_LN_F_BIAS] = {"ln_f.bias", 1, 0},
};

/* Before a layer's, of one layer, and behind all layers. */
enum {
    N_BEFORE = ZR_GPT_LN_1_WEIGHT,
    N_OF_LAYER = ZR_GPT_LN_F_WEIGHT - ZR_GPT_LN_1_WEIGHT,
    N_BEHIND = ZR_GPT_N_KINDS - ZR_GPT_LN_F_WEIGHT
};

bool zr_gpt_kind_is_of_layer(zr_gpt_kind_t kind) {
    return kind >= ZR_GPT_LN_1_WEIGHT && kind < ZR_GPT_LN_F_WEIGHT;
}

bool zr_gpt_kind_is_linear(zr_gpt_kind_t kind) {
    return zr_gpt_kind_is_of_layer(kind) && kinds[kind].columns > 0;
}

static size_t dimension(const zr_gpt_shape_t *shape, int factor) {
    if (factor == VOCAB)
        return shape->vocab;
    return factor == SEQ ? shape->seq : (size_t)factor * shape->channels;
}

zr_gpt_tensor_t zr_gpt_tensor(const zr_gpt_shape_t *shape, zr_gpt_kind_t kind, size_t layer) {
    bool of_layer = zr_gpt_kind_is_of_layer(kind), is_vector = kinds[kind].columns == 0;
    zr_gpt_tensor_t tensor = {
        .kind = kind, .layer = of_layer ? layer : 0, .n_dims = is_vector ? 1 : 2};
    tensor.dims[0] = dimension(shape, kinds[kind].rows);
    tensor.dims[1] = is_vector ? 0 : dimension(shape, kinds[kind].columns);
    tensor.n_elems = tensor.dims[0] * (is_vector ? 1 : tensor.dims[1]);
    if (of_layer)
        snprintf(tensor.name, sizeof(tensor.name), "h.%zu.%s", layer, kinds[kind].name);
    else
        snprintf(tensor.name, sizeof(tensor.name), "%s", kinds[kind].name);
    return tensor;
}

size_t zr_gpt_n_tensors(const zr_gpt_shape_t *shape) {
    return N_BEFORE + shape->n_layers * N_OF_LAYER + N_BEHIND;
}

zr_gpt_tensor_t zr_gpt_tensor_at(const zr_gpt_shape_t *shape, size_t index) {
    if (index < N_BEFORE)
        return zr_gpt_tensor(shape, (zr_gpt_kind_t)index, 0);
    size_t in_layers = index - N_BEFORE;
    if (in_layers < shape->n_layers * N_OF_LAYER)
        return zr_gpt_tensor(shape, (zr_gpt_kind_t)(ZR_GPT_LN_1_WEIGHT + in_layers % N_OF_LAYER),
                             in_layers / N_OF_LAYER);
    return zr_gpt_tensor(
        shape, (zr_gpt_kind_t)(ZR_GPT_LN_F_WEIGHT + (in_layers - shape->n_layers * N_OF_LAYER)), 0);
}

/* Numbers are written without zeros in front. */
bool zr_gpt_split_layer(const char *name, size_t n_layers, size_t *layer_p, const char **rest_p) {
    size_t layer = 0, n_digits = 0;
    if (strncmp(name, "h.", 2) != 0)
        return false;
    const char *digit = name + 2;
    for (; *digit >= '0' && *digit <= '9' && layer < n_layers; digit++, n_digits++)
        layer = 10 * layer + (size_t)(*digit - '0');
    if (n_digits == 0 || (n_digits > 1 && name[2] == '0') || *digit != '.' || layer >= n_layers)
        return false;
    *layer_p = layer;
    *rest_p = digit + 1;
    return true;
}

bool zr_gpt_tensor_find(const zr_gpt_shape_t *shape, const char *name, zr_gpt_tensor_t *tensor_p) {
    size_t layer = 0;
    const char *rest = name;
    bool of_layer = zr_gpt_split_layer(name, shape->n_layers, &layer, &rest);
    for (int kind = 0; kind < ZR_GPT_N_KINDS; kind++) {
        if (zr_gpt_kind_is_of_layer((zr_gpt_kind_t)kind) != of_layer ||
            strcmp(kinds[kind].name, rest) != 0)
            continue;
        *tensor_p = zr_gpt_tensor(shape, (zr_gpt_kind_t)kind, layer);
        return true;
    }
    return false;
}
