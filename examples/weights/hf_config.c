/*
 * A shape says what is computed; which of Hugging Face's model types computes that follows from
 * what it has. That the text means the shape is not taken for granted: it is read back.
 */
#include "examples/weights/hf_config.h"

#include <stdlib.h>
#include <string.h>

#include "examples/common/json.h"

/* Of whoever may read it: `torch_dtype` has become `dtype`. */
static const char *const dtype_keys[] = {"dtype", "torch_dtype"};

static const char *dtype_name(element_kind_t kind) {
    static const char *const names[] = {"float32", "bfloat16", "float16"};
    return names[kind];
}

char *hf_config_print(const json_t *object, size_t *n_bytes_p) {
    char *text =
        object == NULL ? NULL : json_dumps(object, JSON_INDENT(2) | JSON_REAL_PRECISION(17));
    size_t n = text == NULL ? 0 : strlen(text);
    char *longer = text == NULL ? NULL : realloc(text, n + 2);
    if (longer == NULL) {
        free(text);
        return NULL;
    }
    memcpy(longer + n, "\n", 2);
    *n_bytes_p = n + 1;
    return longer;
}

zr_status_t hf_config_set_dtype(element_kind_t kind, const zr_log_t *log, char **text_p,
                                size_t *n_bytes_p) {
    json_t *object = json_loadb(*text_p, *n_bytes_p, 0, NULL);
    if (object == NULL)
        return zr_fail(log, ZR_ERR_FORMAT, "config.json that the checkpoint carries is not JSON");
    bool differs = false;
    for (size_t i = 0; i < sizeof(dtype_keys) / sizeof(dtype_keys[0]); i++) {
        const char *name = json_string_value(json_object_get(object, dtype_keys[i]));
        if (name == NULL || strcmp(name, dtype_name(kind)) == 0)
            continue;
        json_put(&object, dtype_keys[i], json_string(dtype_name(kind)));
        differs = true;
    }
    size_t n_bytes = *n_bytes_p;
    char *text = !differs         ? *text_p
                 : object == NULL ? NULL
                                  : json_dumps(object, JSON_INDENT(2) | JSON_REAL_PRECISION(17));
    json_decref(object);
    if (text == NULL)
        return zr_fail(log, ZR_ERR_MEMORY, "no memory for config.json");
    if (differs) {
        free(*text_p);
        n_bytes = strlen(text);
    }
    *text_p = text;
    *n_bytes_p = n_bytes;
    return ZR_OK;
}

/* ---- GPT-2 ------------------------------------------------------------------------------- */

/* Its token for the beginning and the end of a text; other vocabularies have none. */
static json_t *end_of_text(const zr_gpt_shape_t *shape) {
    return shape->vocab == 50257 ? json_integer(50256) : json_null();
}

static json_t *of_gpt(const zr_gpt_shape_t *shape) {
    return JSON_OBJECT(
        {"architectures", json_pack("[s]", "GPT2LMHeadModel")}, {"model_type", json_string("gpt2")},
        {"activation_function", json_string("gelu_new")}, {"vocab_size", json_count(shape->vocab)},
        {"n_positions", json_count(shape->seq)}, {"n_ctx", json_count(shape->seq)},
        {"n_embd", json_count(shape->channels)}, {"n_layer", json_count(shape->n_layers)},
        {"n_head", json_count(shape->heads)}, {"n_inner", json_null()},
        {"layer_norm_epsilon", json_real(1e-5)}, {"bos_token_id", end_of_text(shape)},
        {"eos_token_id", end_of_text(shape)}, {"attn_pdrop", json_real(0.0)},
        {"embd_pdrop", json_real(0.0)}, {"resid_pdrop", json_real(0.0)},
        {"scale_attn_weights", json_true()}, {"scale_attn_by_inverse_layer_idx", json_false()},
        {"add_cross_attention", json_false()}, {"tie_word_embeddings", json_true()});
}

/* ---- the Llama family -------------------------------------------------------------------- */

/* Layers of a shape that are in a set. */
static size_t count_layers(const zr_decoder_shape_t *shape, const uint64_t *layers) {
    size_t n = 0;
    for (size_t i = 0; i < shape->n_layers; i++)
        n += zr_decoder_has_layer(shape, layers, i);
    return n;
}

typedef struct type {
    const char *name, *architecture;
} type_t;

/* The type that has what the shape has. Whether it has nothing else is seen by reading it back. */
static type_t type_of(const zr_decoder_shape_t *shape) {
    size_t n_windowed = count_layers(shape, shape->windowed);
    if (shape->normalises_qk)
        return (type_t){"qwen3", "Qwen3ForCausalLM"};
    if (shape->has_qkv_bias && !shape->has_out_bias)
        return (type_t){"qwen2", "Qwen2ForCausalLM"};
    if (count_layers(shape, shape->unrotated) > 0 ||
        (n_windowed > 0 && (n_windowed < shape->n_layers || shape->has_qkv_bias)))
        return (type_t){"smollm3", "SmolLM3ForCausalLM"};
    if (n_windowed > 0)
        return (type_t){"mistral", "MistralForCausalLM"};
    return (type_t){"llama", "LlamaForCausalLM"};
}

static json_t *positions_of(const zr_nn_rotary_positions_t *rotary) {
    if (rotary->scaling == ZR_NN_ROTARY_DEFAULT)
        return json_null();
    if (rotary->scaling == ZR_NN_ROTARY_LINEAR)
        return JSON_OBJECT({"rope_type", json_string("linear")},
                           {"factor", json_real(rotary->factor)});
    return JSON_OBJECT({"rope_type", json_string("llama3")}, {"factor", json_real(rotary->factor)},
                       {"low_freq_factor", json_real(rotary->low_freq_factor)},
                       {"high_freq_factor", json_real(rotary->high_freq_factor)},
                       {"original_max_position_embeddings",
                        json_count((uint64_t)rotary->original_max_position_embeddings)});
}

static void put_windows(const zr_decoder_shape_t *shape, const char *type, json_t **object) {
    bool has_windows = count_layers(shape, shape->windowed) > 0;
    json_put(object, "sliding_window", has_windows ? json_count(shape->window) : json_null());
    if (strcmp(type, "mistral") == 0)
        return;
    json_t *types = json_array();
    for (size_t i = 0; i < shape->n_layers; i++)
        json_append(&types, json_string(zr_decoder_has_layer(shape, shape->windowed, i)
                                            ? "sliding_attention"
                                            : "full_attention"));
    JSON_PUT(object, {"use_sliding_window", json_boolean(has_windows)}, {"layer_types", types});
}

static void put_unrotated(const zr_decoder_shape_t *shape, json_t **object) {
    json_t *layers = json_array();
    for (size_t i = 0; i < shape->n_layers; i++)
        json_append(&layers,
                    json_integer(zr_decoder_has_layer(shape, shape->unrotated, i) ? 0 : 1));
    json_put(object, "no_rope_layers", layers);
}

static json_t *of_decoder(const zr_decoder_shape_t *shape) {
    type_t type = type_of(shape);
    json_t *object = JSON_OBJECT(
        {"architectures", json_pack("[s]", type.architecture)},
        {"model_type", json_string(type.name)}, {"vocab_size", json_count(shape->vocab)},
        {"hidden_size", json_count(shape->channels)},
        {"intermediate_size", json_count(shape->wide)},
        {"num_hidden_layers", json_count(shape->n_layers)},
        {"num_attention_heads", json_count(shape->heads)},
        {"num_key_value_heads", json_count(shape->kv_heads)},
        {"head_dim", json_count(shape->head_size)}, {"hidden_act", json_string("silu")},
        {"max_position_embeddings", json_count(shape->seq)},
        {"rms_norm_eps", json_real(shape->epsilon)}, {"rope_theta", json_real(shape->rotary.theta)},
        {"rope_scaling", positions_of(&shape->rotary)},
        {"tie_word_embeddings", json_boolean(shape->is_tied)},
        {"attention_bias", json_boolean(shape->has_out_bias)},
        {"mlp_bias", json_boolean(shape->has_mlp_bias)}, {"attention_dropout", json_real(0.0)},
        {"bos_token_id", json_null()}, {"eos_token_id", json_null()},
        {"pad_token_id", json_null()});
    if (strcmp(type.name, "llama") != 0)
        put_windows(shape, type.name, &object);
    if (strcmp(type.name, "smollm3") == 0)
        put_unrotated(shape, &object);
    return object;
}

/* ---- all --------------------------------------------------------------------------------- */

/* Read what was written: a value that no key of this type stands for shows. */
static zr_status_t check_text(const char *text, size_t n_bytes, const zr_model_shape_t *shape,
                              const zr_log_t *log) {
    zr_model_shape_t read;
    zr_model_difference_t d;
    ZR_TRY(zr_model_shape_read_config(text, n_bytes, "config.json", log, &read));
    if (!zr_model_shapes_differ(shape, &read, &d))
        return ZR_OK;
    return zr_fail(
        log, ZR_ERR_UNSUPPORTED,
        "no model type of transformers is a model with %s: the nearest has %s=%s; export "
        "to a file that ends with .safetensors, which needs no config.json",
        zr_model_shape_text(shape).text, d.b.name, d.b.text);
}

zr_status_t hf_config_make(const zr_model_shape_t *shape, element_kind_t kind, const zr_log_t *log,
                           char **text_p, size_t *n_bytes_p) {
    json_t *object =
        shape->kind == ZR_MODEL_GPT ? of_gpt(&shape->of.gpt) : of_decoder(&shape->of.decoder);
    json_put(&object, "torch_dtype", json_string(dtype_name(kind)));
    char *text = hf_config_print(object, n_bytes_p);
    json_decref(object);
    if (text == NULL)
        return zr_fail(log, ZR_ERR_MEMORY, "no memory for config.json");
    zr_status_t status = check_text(text, *n_bytes_p, shape, log);
    if (status == ZR_OK)
        *text_p = text;
    else
        free(text);
    return status;
}
