/*
 * Shapes of GPTs: their names and sizes, and what follows from them.
 */
#include <string.h>

#include "models/gpt2/internal.h"

#define N_ELEMS(array) (sizeof(array) / sizeof((array)[0]))

static const struct {
    const char *name;
    zr_gpt_shape_t shape;
} named_shapes[] = {
    {"gpt2", {12, 768, 12, 1024, 50257}},        {"gpt2-medium", {24, 1024, 16, 1024, 50257}},
    {"gpt2-large", {36, 1280, 20, 1024, 50257}}, {"gpt2-xl", {48, 1600, 25, 1024, 50257}},
    {"gpt3-6.7b", {32, 4096, 32, 2048, 50257}},  {"gpt3-13b", {40, 5120, 40, 2048, 50257}},
    {"gpt3-175b", {96, 12288, 96, 2048, 50257}},
};

/* ---- sizes --------------------------------------------------------------------------- */

/* Per layer: two norms, q k v and their output, the two layers of the MLP. */
static double count_params(const zr_gpt_shape_t *shape) {
    double c = (double)shape->channels;
    double layer = 4.0 * c + (3.0 * c * c + 3.0 * c) + (c * c + c) + (4.0 * c * c + 4.0 * c) +
                   (4.0 * c * c + c);
    return (double)shape->n_layers * layer + 2.0 * c +
           ((double)shape->vocab + (double)shape->seq) * c;
}

size_t zr_gpt_n_params(const zr_gpt_shape_t *shape) {
    size_t c = shape->channels;
    return shape->n_layers * (12 * c * c + 13 * c) + 2 * c + (shape->vocab + shape->seq) * c;
}

double zr_gpt_flops_per_token(const zr_gpt_shape_t *shape, size_t t) {
    /* Scores and their use: 2 products of channels x keys, each 2 operations, 3 times (forward,
       and two operands in backward). */
    double keys_seen = ((double)t + 1.0) / 2.0;
    return 6.0 * count_params(shape) +
           12.0 * (double)shape->n_layers * (double)shape->channels * keys_seen;
}

static bool check(const zr_model_shape_t *model, char *error, size_t error_size) {
    const zr_gpt_shape_t *shape = &model->of.gpt;
    if (shape->n_layers == 0 || shape->channels == 0 || shape->heads == 0 || shape->seq == 0 ||
        shape->vocab == 0)
        return zr_model_refuse(error, error_size, "%s, %s, %s, %s and %s: sizes must be positive",
                               zr_count_text(shape->n_layers, "layer").text,
                               zr_count_text(shape->channels, "channel").text,
                               zr_count_text(shape->heads, "head").text,
                               zr_count_text(shape->seq, "position").text,
                               zr_count_text(shape->vocab, "word").text);
    if (shape->channels % shape->heads != 0)
        return zr_model_refuse(
            error, error_size,
            "heads=%zu does not divide channels=%zu; channels must be a multiple of it",
            shape->heads, shape->channels);
    /* Twelve bytes of state for each parameter, and some room, must have addresses. */
    double n_params = count_params(shape);
    if (n_params > (double)(SIZE_MAX / 256))
        return zr_model_refuse(
            error, error_size,
            "a model of %.3g parameters is too large to address; use fewer layers, "
            "channels, positions or words",
            n_params);
    return true;
}

/* ---- the row ----------------------------------------------------------------------------- */

#define AT(member) offsetof(zr_model_shape_t, of.gpt.member)
static const zr_model_key_t keys[] = {
    {"layers", ZR_MODEL_SIZE, AT(n_layers), .most = 100000},
    {"channels", ZR_MODEL_SIZE, AT(channels), .most = 1000000},
    {"heads", ZR_MODEL_SIZE, AT(heads), .most = 1000000},
    {"seq", ZR_MODEL_SIZE, AT(seq), .most = 1000000000},
    {"vocab", ZR_MODEL_SIZE, AT(vocab), .most = INT32_MAX},
};

static const char *usual(size_t index, zr_model_shape_t *shape_p) {
    if (index >= N_ELEMS(named_shapes))
        return NULL;
    *shape_p = (zr_model_shape_t){.kind = ZR_MODEL_GPT, .of.gpt = named_shapes[index].shape};
    return named_shapes[index].name;
}

static zr_model_sizes_t sizes(const zr_model_shape_t *model) {
    const zr_gpt_shape_t *shape = &model->of.gpt;
    return (zr_model_sizes_t){.n_layers = shape->n_layers,
                              .channels = shape->channels,
                              .heads = shape->heads,
                              .kv_heads = shape->heads,
                              .head_size = shape->channels / shape->heads,
                              .seq = shape->seq,
                              .vocab = shape->vocab};
}

static size_t n_params(const zr_model_shape_t *shape) {
    return zr_gpt_n_params(&shape->of.gpt);
}

static double flops_per_token(const zr_model_shape_t *shape, size_t t) {
    return zr_gpt_flops_per_token(&shape->of.gpt, t);
}

static zr_status_t create(zr_runtime_t *runtime, const zr_model_shape_t *shape,
                          const zr_transformer_options_t *options,
                          const zr_activation_options_t *activations, zr_model_t **model_p) {
    return zr_gpt_create(runtime, &shape->of.gpt, options, activations, model_p);
}

static const char *const types[] = {"gpt2", NULL};

const zr_architecture_t zr_gpt_architecture = {.kind = ZR_MODEL_GPT,
                                               .name = "gpt2",
                                               .prefix = "",
                                               .keys = keys,
                                               .n_keys = N_ELEMS(keys),
                                               .types = types,
                                               .usual = usual,
                                               .check = check,
                                               .read_config = zr_gpt_read_config,
                                               .sizes = sizes,
                                               .n_params = n_params,
                                               .flops_per_token = flops_per_token,
                                               .create = create};
