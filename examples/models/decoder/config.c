/*
 * What a Hugging Face config.json of a decoder says. Every key is read, or known not to matter
 * here, or refused: a model that is trained as another one would be found out late.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "models/decoder/internal.h"

#define N_ELEMS(array) (sizeof(array) / sizeof((array)[0]))

/* Layers with a window: none; all; those from max_window_layers on; those without positions. All
 * but the first two have one only where use_sliding_window is true. */
typedef enum windows { WINDOWS_NONE, WINDOWS_ALL, WINDOWS_BEHIND, WINDOWS_UNROTATED } windows_t;

/* What the model types do differently, and their defaults. */
typedef struct type {
    const char *name;
    size_t kv_heads, head_size; /* where the file names none; 0: heads, and channels / heads */
    double theta;
    bool is_tied, has_qkv_bias, normalises_qk;
    bool has_biases;    /* attention_bias and mlp_bias are keys of it */
    bool has_unrotated; /* no_rope_layers is */
    windows_t windows;  /* which layers have one, where layer_types does not say */
    size_t window;      /* where sliding_window is absent; 0: none */
} type_t;

static const type_t types[] = {
    {"llama", .theta = 10000, .has_biases = true},
    {"qwen2", .kv_heads = 32, .theta = 10000, .has_qkv_bias = true, .windows = WINDOWS_BEHIND,
     .window = 4096},
    {"qwen3", .kv_heads = 32, .head_size = 128, .theta = 10000, .normalises_qk = true,
     .windows = WINDOWS_BEHIND, .window = 4096},
    {"mistral", .kv_heads = 8, .theta = 10000, .windows = WINDOWS_ALL, .window = 4096},
    {"smollm3", .kv_heads = 4, .theta = 2000000, .is_tied = true, .has_biases = true,
     .has_unrotated = true, .windows = WINDOWS_UNROTATED},
};
const char *const zr_decoder_types[] = {"llama", "qwen2", "qwen3", "mistral", "smollm3", NULL};

typedef struct reader {
    const char *where;
    const zr_log_t *log;
    const type_t *type;
    const json_t *root;
    zr_decoder_shape_t shape;
    zr_status_t status; /* of the first error */
} reader_t;

static void refuse(reader_t *r, const char *format, ...) ZR_PRINTF(2, 3);
static void refuse(reader_t *r, const char *format, ...) {
    char message[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof(message), format, arguments);
    va_end(arguments);
    zr_status_t status = zr_fail(r->log, ZR_ERR_UNSUPPORTED, "%s: %s", r->where, message);
    if (r->status == ZR_OK)
        r->status = status;
}

/* NULL: it is not there, or null. */
static const json_t *value_of(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    return json_is_null(value) ? NULL : value;
}

/* absent 0: it has to be there. */
static double read_number(reader_t *r, const json_t *object, const char *key, double absent) {
    const json_t *value = json_object_get(object, key);
    if (value == NULL && absent > 0)
        return absent;
    if (value == NULL) {
        refuse(r, "%s is missing", key);
        return 1;
    }
    if (!json_is_number(value) || !(json_number_value(value) > 0))
        refuse(r, "%s is %s; it must be a number greater than 0", key,
               zr_model_json_show(value).text);
    return json_number_value(value);
}

/* absent 0: it has to be there. */
static size_t read_size(reader_t *r, const char *key, size_t absent) {
    const json_t *value = json_object_get(r->root, key);
    if (value == NULL && absent > 0)
        return absent;
    if (value == NULL)
        refuse(r, "%s is missing", key);
    else if (!json_is_integer(value) || json_integer_value(value) <= 0)
        refuse(r, "%s is %s; it must be a whole number greater than 0", key,
               zr_model_json_show(value).text);
    return (size_t)json_integer_value(value);
}

static bool read_flag(reader_t *r, const char *key, bool absent) {
    const json_t *value = json_object_get(r->root, key);
    if (value == NULL)
        return absent;
    if (!json_is_boolean(value))
        refuse(r, "%s is %s; it must be true or false", key, zr_model_json_show(value).text);
    return json_is_true(value);
}

/* rope_parameters, or what was written before it: rope_scaling, and rope_theta beside it. */
static void read_rotary(reader_t *r) {
    static const char *const kinds[] = {"default", "linear", "llama3"};
    static const char *const known[] = {"rope_type",
                                        "type",
                                        "rope_theta",
                                        "factor",
                                        "low_freq_factor",
                                        "high_freq_factor",
                                        "partial_rotary_factor",
                                        "original_max_position_embeddings"};
    static const char original[] = "original_max_position_embeddings";
    zr_nn_rotary_positions_t *rotary = &r->shape.rotary;
    const json_t *older = value_of(r->root, "rope_scaling"), *value;
    const json_t *scaling = older != NULL && json_object_size(older) + !json_is_object(older) > 0
                                ? older
                                : value_of(r->root, "rope_parameters");
    const json_t *named = value_of(scaling, "rope_type");
    const json_t *type = named != NULL ? named : value_of(scaling, "type");
    const char *key, *kind = json_string_value(type);
    size_t i = kind == NULL && type != NULL ? N_ELEMS(kinds) : 0;
    while (kind != NULL && i < N_ELEMS(kinds) && strcmp(kind, kinds[i]) != 0)
        i++;
    if (scaling != NULL && (!json_is_object(scaling) || i == N_ELEMS(kinds)))
        refuse(r, "positions of the type %s; supported: default, linear, llama3",
               kind != NULL ? kind : zr_model_json_show(type != NULL ? type : scaling).text);
    json_object_foreach((json_t *)scaling, key, value) {
        size_t k = 0;
        while (k < N_ELEMS(known) && strcmp(key, known[k]) != 0)
            k++;
        if (k == N_ELEMS(known))
            refuse(r, "%s of the positions is %s, and not supported", key,
                   zr_model_json_show(value).text);
    }
    if (read_number(r, scaling, "partial_rotary_factor",
                    read_number(r, r->root, "partial_rotary_factor", 1)) != 1)
        refuse(r, "partial_rotary_factor is not 1; supported: 1");
    rotary->theta = read_number(r, scaling, "rope_theta",
                                read_number(r, r->root, "rope_theta", r->type->theta));
    if (i == N_ELEMS(kinds) || i == 0)
        return;
    rotary->scaling = (zr_nn_rotary_scaling_t)i;
    rotary->factor = read_number(r, scaling, "factor", 0);
    if (rotary->scaling != ZR_NN_ROTARY_LLAMA3)
        return;
    rotary->low_freq_factor = read_number(r, scaling, "low_freq_factor", 0);
    rotary->high_freq_factor = read_number(r, scaling, "high_freq_factor", 0);
    rotary->original_max_position_embeddings =
        read_number(r, r->root, original, read_number(r, scaling, original, (double)r->shape.seq));
}

/* A layer is in a set, of which `n` layers are now. */
static void put_layer(uint64_t *layers, size_t layer, size_t *n) {
    zr_model_set_layer(layers, layer % ZR_DECODER_SET_LAYERS);
    ++*n;
}

/* More layers than a set has bits for are all in it, or none. */
static void check_set(reader_t *r, const char *key, size_t n) {
    if (r->shape.n_layers > ZR_DECODER_SET_LAYERS && n > 0 && n < r->shape.n_layers)
        refuse(r, "%s: of more than %d layers all must be of one kind", key, ZR_DECODER_SET_LAYERS);
}

/* The first layer with a window, which may be 0. */
static size_t read_first_windowed(reader_t *r) {
    const json_t *first = json_object_get(r->root, "max_window_layers");
    if (first != NULL && (!json_is_integer(first) || json_integer_value(first) < 0))
        refuse(r, "max_window_layers is %s; it must be a whole number",
               zr_model_json_show(first).text);
    return first != NULL ? (size_t)json_integer_value(first) : 28;
}

/* The rule of the type for layer `i`. */
static bool has_window(const reader_t *r, size_t first, size_t i) {
    switch (r->type->windows) {
    case WINDOWS_NONE:
        return false;
    case WINDOWS_ALL:
        return true;
    case WINDOWS_BEHIND:
        return i >= first;
    case WINDOWS_UNROTATED:
        return zr_decoder_has_layer(&r->shape, r->shape.unrotated, i);
    }
    return false;
}

/* Read the window of the layers that have one; false: none has. */
static bool uses_windows(reader_t *r) {
    static const char switched[] = "use_sliding_window";
    const json_t *window = json_object_get(r->root, "sliding_window");
    bool is_switched = r->type->windows != WINDOWS_ALL && read_flag(r, switched, false);
    if (is_switched && r->type->windows == WINDOWS_NONE)
        refuse(r, "%s is true, and the model type %s has no windows; set it to false", switched,
               r->type->name);
    bool is_used = r->type->windows == WINDOWS_ALL || is_switched;
    r->shape.window = !is_used || json_is_null(window) || (window == NULL && r->type->window == 0)
                          ? 0
                          : read_size(r, "sliding_window", r->type->window);
    return r->shape.window > 0;
}

/* layer_types, or the rule of the type. */
static void read_windows(reader_t *r) {
    zr_decoder_shape_t *shape = &r->shape;
    const json_t *kinds = value_of(r->root, "layer_types");
    bool uses = uses_windows(r);
    size_t n_layers = shape->n_layers, n_windowed = 0, first = read_first_windowed(r);
    if (kinds != NULL && json_array_size(kinds) != n_layers) {
        refuse(r, "layer_types has %s, and num_hidden_layers is %zu",
               zr_count_text(json_array_size(kinds), "layer").text, n_layers);
        return;
    }
    for (size_t i = 0; i < n_layers && r->status == ZR_OK; i++) {
        const json_t *named = json_array_get(kinds, i);
        const char *kind = json_string_value(named);
        bool by_rule = uses && has_window(r, first, i);
        bool is_windowed =
            kinds == NULL ? by_rule : kind != NULL && strcmp(kind, "sliding_attention") == 0;
        if (kinds != NULL && !is_windowed && (kind == NULL || strcmp(kind, "full_attention") != 0))
            refuse(r, "layer_types has %s; supported: full_attention and sliding_attention",
                   zr_model_json_show(named).text);
        else if (is_windowed && !uses)
            refuse(r,
                   "layer_types has sliding_attention, and there is no window: use_sliding_window "
                   "is not true, or sliding_window is null, or the model type %s has none",
                   r->type->name);
        else if (is_windowed != by_rule && r->type->windows == WINDOWS_ALL)
            refuse(r,
                   "layer_types has %s; in the model type mistral all layers have the window of "
                   "sliding_window, or none where it is null",
                   zr_model_json_show(named).text);
        if (is_windowed)
            put_layer(shape->windowed, i, &n_windowed);
    }
    check_set(r, "layer_types", n_windowed);
    if (n_windowed == 0)
        shape->window = 0;
}

/* no_rope_layers has 1 for layers with positions; SmolLM3's rule is that every fourth has none. */
static void read_unrotated(reader_t *r) {
    const json_t *layers = value_of(r->root, "no_rope_layers");
    bool has_rule = r->type->has_unrotated;
    size_t interval = has_rule ? read_size(r, "no_rope_layer_interval", 4) : 0, n_unrotated = 0;
    if (layers != NULL && json_array_size(layers) != r->shape.n_layers) {
        refuse(r, "no_rope_layers has %s, and num_hidden_layers is %zu",
               zr_count_text(json_array_size(layers), "layer").text, r->shape.n_layers);
        return;
    }
    for (size_t i = 0; i < r->shape.n_layers; i++) {
        const json_t *is_rotated = json_array_get(layers, i);
        bool is_unrotated = layers != NULL ? json_integer_value(is_rotated) == 0
                                           : interval > 0 && (i + 1) % interval == 0;
        if (layers != NULL && (!json_is_integer(is_rotated) || (is_unrotated && !has_rule))) {
            refuse(r, "no_rope_layers has %s; allowed: 1, and 0 in a model of the type smollm3",
                   zr_model_json_show(is_rotated).text);
            return;
        }
        if (is_unrotated)
            put_layer(r->shape.unrotated, i, &n_unrotated);
    }
    check_set(r, "no_rope_layers", n_unrotated);
}

static void read_sizes(reader_t *r) {
    zr_decoder_shape_t *shape = &r->shape;
    const type_t *type = r->type;
    shape->n_layers = read_size(r, "num_hidden_layers", 0);
    if (shape->n_layers > ZR_DECODER_MAX_LAYERS && r->status == ZR_OK) /* what follows walks them */
        refuse(r, "num_hidden_layers is %zu; allowed: 1 to %d", shape->n_layers,
               ZR_DECODER_MAX_LAYERS);
    shape->channels = read_size(r, "hidden_size", 0);
    shape->wide = read_size(r, "intermediate_size", 0);
    shape->heads = read_size(r, "num_attention_heads", 0);
    bool is_null = json_is_null(json_object_get(r->root, "num_key_value_heads"));
    if (is_null) /* all have one of their own */
        shape->kv_heads = shape->heads;
    else
        shape->kv_heads =
            read_size(r, "num_key_value_heads", type->kv_heads > 0 ? type->kv_heads : shape->heads);
    if (r->status != ZR_OK) /* what follows divides by some */
        return;
    size_t head_size = type->head_size > 0 ? type->head_size : shape->channels / shape->heads;
    if (type->head_size == 0 && value_of(r->root, "head_dim") == NULL)
        shape->head_size = head_size;
    else
        shape->head_size = read_size(r, "head_dim", head_size);
    shape->vocab = read_size(r, "vocab_size", 0);
    shape->seq = read_size(r, "max_position_embeddings", 0);
    shape->epsilon = read_number(r, r->root, "rms_norm_eps", 1e-6);
    shape->is_tied = read_flag(r, "tie_word_embeddings", type->is_tied);
    bool has_bias =
        (type->has_biases || type->normalises_qk) && read_flag(r, "attention_bias", false);
    shape->has_qkv_bias = type->has_qkv_bias || has_bias;
    shape->has_out_bias = has_bias;
    shape->has_mlp_bias = type->has_biases && read_flag(r, "mlp_bias", false);
    shape->normalises_qk = type->normalises_qk;
}

/* Keys with one value that is supported; others are neither read nor known. */
static void check_others(reader_t *r) {
    static const char *const read[] = {"attention_bias",
                                       "head_dim",
                                       "hidden_act",
                                       "hidden_size",
                                       "intermediate_size",
                                       "layer_types",
                                       "max_position_embeddings",
                                       "max_window_layers",
                                       "mlp_bias",
                                       "no_rope_layer_interval",
                                       "no_rope_layers",
                                       "num_attention_heads",
                                       "num_hidden_layers",
                                       "num_key_value_heads",
                                       "original_max_position_embeddings",
                                       "partial_rotary_factor",
                                       "rms_norm_eps",
                                       "rope_parameters",
                                       "rope_scaling",
                                       "rope_theta",
                                       "sliding_window",
                                       "tie_word_embeddings",
                                       "use_sliding_window",
                                       "vocab_size",
                                       NULL};
    const json_t *act = json_object_get(r->root, "hidden_act");
    const char *name = json_string_value(act);
    if (act != NULL && (name == NULL || (strcmp(name, "silu") != 0 && strcmp(name, "swish") != 0)))
        refuse(r, "hidden_act is %s; supported: silu", zr_model_json_show(act).text);
    if (r->status == ZR_OK)
        r->status = zr_model_config_check(r->root, read, r->type->name, r->where, r->log);
}

static void read_root(reader_t *r) {
    const char *name = json_string_value(value_of(r->root, "model_type"));
    r->type = types;
    while (strcmp(r->type->name, name) != 0) /* it is one of zr_decoder_types */
        r->type++;
    read_sizes(r);
    if (r->status != ZR_OK)
        return;
    read_rotary(r);
    read_unrotated(r);
    read_windows(r); /* which may be of those without positions */
    check_others(r);
}

zr_status_t zr_decoder_read_config(const json_t *root, const char *where, const zr_log_t *log,
                                   zr_model_shape_t *shape_p) {
    reader_t reader = {.where = where, .log = log, .root = root};
    read_root(&reader);
    if (reader.status == ZR_OK)
        *shape_p = (zr_model_shape_t){.kind = ZR_MODEL_DECODER, .of.decoder = reader.shape};
    return reader.status;
}
