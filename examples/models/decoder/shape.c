/*
 * Shapes of decoders: the usual ones by their names, the values of any, and what follows from them.
 */
#include <string.h>

#include "models/decoder/internal.h"

#define N_ELEMS(array) (sizeof(array) / sizeof((array)[0]))

/* ---- by name --------------------------------------------------------------------------------- */

/* What the models of one line have in common. */
typedef struct line {
    size_t head_size; /* 0: channels / heads */
    double epsilon, theta;
    double factor; /* of llama3's scaling; 0: none */
    bool has_qkv_bias, normalises_qk;
    size_t window; /* of all layers */
} line_t;

static const line_t llama32 = {.epsilon = 1e-5, .theta = 500000, .factor = 32};
static const line_t llama31 = {.epsilon = 1e-5, .theta = 500000, .factor = 8};
static const line_t qwen25 = {.epsilon = 1e-6, .theta = 1000000, .has_qkv_bias = true};
static const line_t qwen3 = {
    .head_size = 128, .epsilon = 1e-6, .theta = 1000000, .normalises_qk = true};
static const line_t mistral = {.epsilon = 1e-5, .theta = 10000, .window = 4096};
static const line_t smollm2 = {.epsilon = 1e-5, .theta = 100000};
static const line_t smollm2_large = {.epsilon = 1e-5, .theta = 130000};
static const line_t llama2 = {.epsilon = 1e-5, .theta = 10000};

/* As their config.json has them. */
static const struct named {
    const char *name;
    const line_t *line;
    size_t channels, wide, n_layers, heads, kv_heads, vocab, seq;
    bool is_tied;
} named_shapes[] = {
    {"llama-2-7b", &llama2, 4096, 11008, 32, 32, 32, 32000, 4096, false},
    {"llama-2-13b", &llama2, 5120, 13824, 40, 40, 40, 32000, 4096, false},
    {"llama-3.2-1b", &llama32, 2048, 8192, 16, 32, 8, 128256, 131072, true},
    {"llama-3.1-8b", &llama31, 4096, 14336, 32, 32, 8, 128256, 131072, false},
    {"llama-3.1-70b", &llama31, 8192, 28672, 80, 64, 8, 128256, 131072, false},
    {"qwen2.5-0.5b", &qwen25, 896, 4864, 24, 14, 2, 151936, 32768, true},
    {"qwen2.5-1.5b", &qwen25, 1536, 8960, 28, 12, 2, 151936, 131072, true},
    {"qwen2.5-3b", &qwen25, 2048, 11008, 36, 16, 2, 151936, 32768, true},
    {"qwen2.5-7b", &qwen25, 3584, 18944, 28, 28, 4, 152064, 131072, false},
    {"qwen2.5-14b", &qwen25, 5120, 13824, 48, 40, 8, 152064, 131072, false},
    {"qwen2.5-32b", &qwen25, 5120, 27648, 64, 40, 8, 152064, 131072, false},
    {"qwen2.5-72b", &qwen25, 8192, 29568, 80, 64, 8, 152064, 131072, false},
    {"qwen3-0.6b", &qwen3, 1024, 3072, 28, 16, 8, 151936, 40960, true},
    {"qwen3-1.7b", &qwen3, 2048, 6144, 28, 16, 8, 151936, 40960, true},
    {"qwen3-4b", &qwen3, 2560, 9728, 36, 32, 8, 151936, 40960, true},
    {"qwen3-8b", &qwen3, 4096, 12288, 36, 32, 8, 151936, 40960, false},
    {"qwen3-14b", &qwen3, 5120, 17408, 40, 40, 8, 151936, 40960, false},
    {"qwen3-32b", &qwen3, 5120, 25600, 64, 64, 8, 151936, 40960, false},
    {"mistral-7b", &mistral, 4096, 14336, 32, 32, 8, 32000, 32768, false},
    {"smollm2-135m", &smollm2, 576, 1536, 30, 9, 3, 49152, 8192, true},
    {"smollm2-360m", &smollm2, 960, 2560, 32, 15, 5, 49152, 8192, true},
    {"smollm2-1.7b", &smollm2_large, 2048, 8192, 24, 32, 32, 49152, 8192, true},
    {"tinyllama", &llama2, 2048, 5632, 22, 32, 4, 32000, 2048, false},
};

static zr_nn_rotary_positions_t positions_of(const line_t *line) {
    zr_nn_rotary_positions_t rotary = {.theta = line->theta};
    if (line->factor > 0)
        rotary = (zr_nn_rotary_positions_t){.theta = line->theta,
                                            .scaling = ZR_NN_ROTARY_LLAMA3,
                                            .factor = line->factor,
                                            .low_freq_factor = 1,
                                            .high_freq_factor = 4,
                                            .original_max_position_embeddings = 8192};
    return rotary;
}

static const char *usual(size_t index, zr_model_shape_t *shape_p) {
    if (index >= N_ELEMS(named_shapes))
        return NULL;
    const struct named *named = &named_shapes[index];
    const line_t *line = named->line;
    zr_decoder_shape_t shape = {.n_layers = named->n_layers,
                                .channels = named->channels,
                                .heads = named->heads,
                                .kv_heads = named->kv_heads,
                                .head_size = line->head_size > 0 ? line->head_size
                                                                 : named->channels / named->heads,
                                .wide = named->wide,
                                .seq = named->seq,
                                .vocab = named->vocab,
                                .epsilon = line->epsilon,
                                .rotary = positions_of(line),
                                .is_tied = named->is_tied,
                                .has_qkv_bias = line->has_qkv_bias,
                                .normalises_qk = line->normalises_qk,
                                .window = line->window};
    for (size_t i = 0; i < named->n_layers && line->window > 0; i++)
        zr_model_set_layer(shape.windowed, i);
    *shape_p = (zr_model_shape_t){.kind = ZR_MODEL_DECODER, .of.decoder = shape};
    return named->name;
}

/* ---- what follows from sizes ----------------------------------------------------------------- */

size_t zr_decoder_n_params(const zr_decoder_shape_t *s) {
    size_t q = s->heads * s->head_size, kv = s->kv_heads * s->head_size, c = s->channels;
    size_t layer = 2 * c + c * (q + 2 * kv) + q * c + 3 * c * s->wide;
    layer += (s->has_qkv_bias ? q + 2 * kv : 0) + (s->has_out_bias ? c : 0) +
             (s->has_mlp_bias ? 2 * s->wide + c : 0) + (s->normalises_qk ? 2 * s->head_size : 0);
    return s->n_layers * layer + c + (s->is_tied ? 1 : 2) * s->vocab * c;
}

static size_t n_params(const zr_model_shape_t *shape) {
    return zr_decoder_n_params(&shape->of.decoder);
}

/* Positions that a token sees in a layer, on average over t of them. */
static double keys_seen(const zr_decoder_shape_t *s, size_t layer, size_t t) {
    double n = (double)t, window = (double)s->window;
    if (!zr_decoder_has_layer(s, s->windowed, layer) || window >= n)
        return (n + 1.0) / 2.0;
    return window * (n - (window - 1.0) / 2.0) / n;
}

/* A table of words that is looked up alone is no product. Of attention, scores and their use: 2
 * products of a head's channels x keys, each 2 operations, 3 times (forward, and two operands in
 * backward). */
static double flops_per_token(const zr_model_shape_t *shape, size_t t) {
    const zr_decoder_shape_t *s = &shape->of.decoder;
    double in_products = (double)(n_params(shape) - (s->is_tied ? 0 : s->vocab * s->channels));
    double keys = 0;
    for (size_t i = 0; i < s->n_layers; i++)
        keys += keys_seen(s, i, t);
    return 6.0 * in_products + 12.0 * (double)(s->heads * s->head_size) * keys;
}

static zr_model_sizes_t sizes(const zr_model_shape_t *shape) {
    const zr_decoder_shape_t *s = &shape->of.decoder;
    return (zr_model_sizes_t){.n_layers = s->n_layers,
                              .channels = s->channels,
                              .heads = s->heads,
                              .kv_heads = s->kv_heads,
                              .head_size = s->head_size,
                              .seq = s->seq,
                              .vocab = s->vocab};
}

/* ---- the row --------------------------------------------------------------------------------- */

#define AT(member) offsetof(zr_model_shape_t, of.decoder.member)
static const char *const scalings[] = {[ZR_NN_ROTARY_DEFAULT] = "default",
                                       [ZR_NN_ROTARY_LINEAR] = "linear",
                                       [ZR_NN_ROTARY_LLAMA3] = "llama3",
                                       NULL};

static const zr_model_key_t keys[] = {
    {"layers", ZR_MODEL_SIZE, AT(n_layers), .most = ZR_DECODER_MAX_LAYERS},
    {"channels", ZR_MODEL_SIZE, AT(channels), .most = (size_t)1 << 24},
    {"heads", ZR_MODEL_SIZE, AT(heads), .most = (size_t)1 << 20},
    {"kv_heads", ZR_MODEL_SIZE, AT(kv_heads), .most = (size_t)1 << 20, .is_optional = true},
    {"head_size", ZR_MODEL_SIZE, AT(head_size), .most = ZR_NN_ROTARY_MAX_HEAD_SIZE,
     .is_optional = true},
    {"wide", ZR_MODEL_SIZE, AT(wide), .most = (size_t)1 << 26},
    {"seq", ZR_MODEL_SIZE, AT(seq), .most = (size_t)1 << 30},
    {"vocab", ZR_MODEL_SIZE, AT(vocab), .most = INT32_MAX},
    {"epsilon", ZR_MODEL_REAL, AT(epsilon), .is_optional = true},
    {"theta", ZR_MODEL_REAL, AT(rotary.theta), .is_optional = true},
    {"rope", ZR_MODEL_WORD, AT(rotary.scaling), .is_optional = true, .words = scalings},
    {"rope_factor", ZR_MODEL_REAL, AT(rotary.factor), .is_optional = true},
    {"rope_low", ZR_MODEL_REAL, AT(rotary.low_freq_factor), .is_optional = true},
    {"rope_high", ZR_MODEL_REAL, AT(rotary.high_freq_factor), .is_optional = true},
    {"rope_seq", ZR_MODEL_REAL, AT(rotary.original_max_position_embeddings), .is_optional = true},
    {"tied", ZR_MODEL_FLAG, AT(is_tied), .is_optional = true},
    {"qkv_bias", ZR_MODEL_FLAG, AT(has_qkv_bias), .is_optional = true},
    {"out_bias", ZR_MODEL_FLAG, AT(has_out_bias), .is_optional = true},
    {"mlp_bias", ZR_MODEL_FLAG, AT(has_mlp_bias), .is_optional = true},
    {"qk_norm", ZR_MODEL_FLAG, AT(normalises_qk), .is_optional = true},
    {"window", ZR_MODEL_SIZE, AT(window), .most = (size_t)1 << 30, .is_optional = true},
    {"windowed", ZR_MODEL_LAYERS, AT(windowed), .most = ZR_DECODER_SET_LAYERS, .is_optional = true},
    {"unrotated", ZR_MODEL_LAYERS, AT(unrotated), .most = ZR_DECODER_SET_LAYERS,
     .is_optional = true},
    {"repeat", ZR_MODEL_SIZE, AT(repeat), .most = ZR_DECODER_SET_LAYERS, .is_optional = true},
};

static bool are_all(const uint64_t *layers) {
    bool are = true;
    for (size_t i = 0; i < ZR_DECODER_SET_LAYERS / 64; i++)
        are = are && layers[i] == UINT64_MAX;
    return are;
}

/* Bits of layers that a set tells apart. */
static size_t n_told_apart(const zr_decoder_shape_t *s) {
    size_t most = s->repeat > 0 ? s->repeat : ZR_DECODER_SET_LAYERS;
    return s->n_layers < most ? s->n_layers : most;
}

/* "all" has set more bits than there are layers. */
static void cut_layers(const zr_decoder_shape_t *s, uint64_t *layers) {
    if (!are_all(layers))
        return;
    memset(layers, 0, ZR_DECODER_SET_LAYERS / 8);
    for (size_t i = 0; i < n_told_apart(s); i++)
        zr_model_set_layer(layers, i);
}

static double or_default(double value, double absent) {
    return value != 0 ? value : absent;
}

/* As a Llama's config.json has it, where that says nothing. */
static void complete(zr_model_shape_t *shape) {
    zr_decoder_shape_t *s = &shape->of.decoder;
    zr_nn_rotary_positions_t *rotary = &s->rotary;
    if (s->kv_heads == 0)
        s->kv_heads = s->heads;
    if (s->head_size == 0)
        s->head_size = s->channels / s->heads;
    s->epsilon = or_default(s->epsilon, 1e-5);
    rotary->theta = or_default(rotary->theta, 10000);
    if (rotary->scaling == ZR_NN_ROTARY_LLAMA3) {
        rotary->low_freq_factor = or_default(rotary->low_freq_factor, 1);
        rotary->high_freq_factor = or_default(rotary->high_freq_factor, 4);
        rotary->original_max_position_embeddings =
            or_default(rotary->original_max_position_embeddings, (double)s->seq);
    }
    static const uint64_t none[ZR_DECODER_SET_LAYERS / 64];
    if (s->window > 0 && memcmp(s->windowed, none, sizeof(none)) == 0)
        memset(s->windowed, 0xff, sizeof(s->windowed));
    cut_layers(s, s->windowed);
    cut_layers(s, s->unrotated);
}

static bool check_sizes(const zr_model_shape_t *shape, char *error, size_t error_size) {
    for (size_t i = 0; i < N_ELEMS(keys); i++) {
        zr_model_value_t value = zr_model_key_value(&keys[i], shape);
        if (keys[i].type == ZR_MODEL_SIZE && keys[i].offset != AT(window) &&
            keys[i].offset != AT(repeat) && (value.size == 0 || value.size > keys[i].most))
            return zr_model_refuse(error, error_size, "%s=%zu; allowed: 1 to %zu", keys[i].name,
                                   value.size, keys[i].most);
    }
    return true;
}

static bool has_bit(const uint64_t *layers, size_t i) {
    return (layers[i / 64] >> (i % 64) & 1) != 0;
}

/* More layers than have bits: without `repeat`, all are alike. */
static bool check_repeat(const zr_decoder_shape_t *s, char *error, size_t error_size) {
    static const uint64_t none[ZR_DECODER_SET_LAYERS / 64];
    const uint64_t *const sets[] = {s->windowed, s->unrotated};
    for (int i = 0; i < 2 && s->n_layers > ZR_DECODER_SET_LAYERS && s->repeat == 0; i++)
        if (!are_all(sets[i]) && memcmp(sets[i], none, sizeof(none)) != 0)
            return zr_model_refuse(error, error_size,
                                   "%s is of some of %zu layers; beyond %d layers give repeat=N, "
                                   "the layers after which it begins again, or all or none",
                                   i == 0 ? "windowed" : "unrotated", s->n_layers,
                                   ZR_DECODER_SET_LAYERS);
    return true;
}

static bool check_layers(const zr_decoder_shape_t *s, char *error, size_t error_size) {
    bool any_windowed = false;
    for (size_t i = 0; i < ZR_DECODER_SET_LAYERS; i++) {
        bool windowed = has_bit(s->windowed, i);
        any_windowed = any_windowed || windowed;
        if (i >= n_told_apart(s) && (windowed || has_bit(s->unrotated, i)))
            return zr_model_refuse(error, error_size, "%s has layer %zu; there are layers 0 to %zu",
                                   windowed ? "windowed" : "unrotated", i, n_told_apart(s) - 1);
    }
    if (!check_repeat(s, error, error_size))
        return false;
    if (any_windowed != (s->window > 0))
        return zr_model_refuse(error, error_size,
                               "window=%zu, and %s layer is windowed; give both, or neither",
                               s->window, any_windowed ? "some" : "no");
    return true;
}

static bool check(const zr_model_shape_t *shape, char *error, size_t error_size) {
    const zr_decoder_shape_t *s = &shape->of.decoder;
    if (!check_sizes(shape, error, error_size))
        return false;
    if (s->heads % s->kv_heads != 0)
        return zr_model_refuse(error, error_size, "kv_heads=%zu does not divide heads=%zu",
                               s->kv_heads, s->heads);
    if (s->head_size % 2 != 0)
        return zr_model_refuse(error, error_size,
                               "head_size=%zu; must be even for rotary positions", s->head_size);
    if (!(s->epsilon > 0))
        return zr_model_refuse(error, error_size, "epsilon=%g; must be greater than 0", s->epsilon);
    if (n_params(shape) > SIZE_MAX / 256)
        return zr_model_refuse(error, error_size,
                               "a model of %.3g parameters is too large to address",
                               (double)n_params(shape));
    return check_layers(s, error, error_size);
}

static zr_status_t create(zr_runtime_t *runtime, const zr_model_shape_t *shape,
                          const zr_transformer_options_t *options,
                          const zr_activation_options_t *activations, zr_model_t **model_p) {
    return zr_decoder_create(runtime, &shape->of.decoder, options, activations, model_p);
}

const zr_architecture_t zr_decoder_architecture = {.kind = ZR_MODEL_DECODER,
                                                   .name = "llama",
                                                   .prefix = "llama,",
                                                   .keys = keys,
                                                   .n_keys = N_ELEMS(keys),
                                                   .types = zr_decoder_types,
                                                   .usual = usual,
                                                   .complete = complete,
                                                   .check = check,
                                                   .read_config = zr_decoder_read_config,
                                                   .sizes = sizes,
                                                   .n_params = n_params,
                                                   .flops_per_token = flops_per_token,
                                                   .create = create};

/* ---- of decoders alone ----------------------------------------------------------------------- */

const char *zr_decoder_name(size_t index) {
    return index < N_ELEMS(named_shapes) ? named_shapes[index].name : NULL;
}

bool zr_decoder_named(const char *name, zr_decoder_shape_t *shape_p) {
    zr_model_shape_t shape;
    const char *known;
    size_t i = 0;
    while ((known = usual(i, &shape)) != NULL && strcmp(known, name) != 0)
        i++;
    if (known == NULL)
        return false;
    *shape_p = shape.of.decoder;
    return true;
}
