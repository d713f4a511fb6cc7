/*
 * The five numbers of a shape are always checked in one place, zr_gpt_shape_parse, whoever has
 * written them: they become its text first.
 */
#include "examples/weights/shape.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "examples/common/json.h"

#define N_ELEMS(array) (sizeof(array) / sizeof((array)[0]))

shape_text_t shape_text(const zr_gpt_shape_t *shape) {
    shape_text_t text;
    snprintf(text.text, sizeof(text.text), "layers=%zu,channels=%zu,heads=%zu,seq=%zu,vocab=%zu",
             shape->n_layers, shape->channels, shape->heads, shape->seq, shape->vocab);
    return text;
}

bool shapes_are_equal(const zr_gpt_shape_t *a, const zr_gpt_shape_t *b) {
    return a->n_layers == b->n_layers && a->channels == b->channels && a->heads == b->heads &&
           a->seq == b->seq && a->vocab == b->vocab;
}

zr_status_t shape_of_numbers(const shape_numbers_t *numbers, const char *where, const zr_log_t *log,
                             zr_gpt_shape_t *shape_p) {
    char text[160], error[512];
    snprintf(text, sizeof(text), "layers=%lld,channels=%lld,heads=%lld,seq=%lld,vocab=%lld",
             numbers->layers, numbers->channels, numbers->heads, numbers->seq, numbers->vocab);
    if (!zr_gpt_shape_parse(text, shape_p, error, sizeof(error)))
        return zr_fail(log, ZR_ERR_FORMAT, "%s: no model: %s", where, error);
    return ZR_OK;
}

static zr_status_t read_number(const json_t *object, const char *key, const char *where,
                               const zr_log_t *log, long long *number_p) {
    const json_t *value = json_object_get(object, key);
    if (!json_is_integer(value))
        return zr_fail(log, ZR_ERR_FORMAT, "%s: \"%s\" is %s; a whole number is needed", where, key,
                       value == NULL ? "missing" : "no whole number");
    *number_p = json_integer_value(value);
    return ZR_OK;
}

zr_status_t shape_from_json(const json_t *object, const char *where, const zr_log_t *log,
                            zr_gpt_shape_t *shape_p) {
    shape_numbers_t numbers;
    ZR_TRY(read_number(object, "layers", where, log, &numbers.layers));
    ZR_TRY(read_number(object, "channels", where, log, &numbers.channels));
    ZR_TRY(read_number(object, "heads", where, log, &numbers.heads));
    ZR_TRY(read_number(object, "seq", where, log, &numbers.seq));
    ZR_TRY(read_number(object, "vocab", where, log, &numbers.vocab));
    return shape_of_numbers(&numbers, where, log, shape_p);
}

/* ---- Hugging Face ------------------------------------------------------------------------ */

/* Keys whose other values are other functions than ours. An absent key has the value that is
   wanted, as it has in Hugging Face's GPT2Config. */
static const struct {
    const char *key;
    bool wanted;
} switches[] = {
    {"scale_attn_weights", true},
    {"scale_attn_by_inverse_layer_idx", false},
    {"add_cross_attention", false},
    {"tie_word_embeddings", true},
};

static zr_status_t check_switches(const json_t *config, const char *where, const zr_log_t *log) {
    for (size_t i = 0; i < N_ELEMS(switches); i++) {
        const json_t *value = json_object_get(config, switches[i].key);
        if (value == NULL || (json_is_boolean(value) && json_is_true(value) == switches[i].wanted))
            continue;
        const char *wanted = switches[i].wanted ? "true" : "false";
        return zr_fail(log, ZR_ERR_FORMAT,
                       "%s: \"%s\" is not %s: that is another model than this GPT; only %s is "
                       "allowed",
                       where, switches[i].key, wanted, wanted);
    }
    return ZR_OK;
}

/* The tanh form of GELU has three names there, and is the default. */
static zr_status_t check_activation(const json_t *config, const char *where, const zr_log_t *log) {
    static const char *const names[] = {"gelu_new", "gelu_pytorch_tanh", "gelu_fast"};
    const json_t *value = json_object_get(config, "activation_function");
    const char *name = json_is_string(value) ? json_string_value(value) : NULL;
    for (size_t i = 0; name != NULL && i < N_ELEMS(names); i++)
        if (strcmp(name, names[i]) == 0)
            return ZR_OK;
    if (value == NULL)
        return ZR_OK;
    return zr_fail(log, ZR_ERR_FORMAT,
                   "%s: \"activation_function\" is %.60s; this GPT has GELU with tanh: gelu_new, "
                   "gelu_pytorch_tanh or gelu_fast",
                   where, name == NULL ? "no string" : name);
}

static zr_status_t check_function(const json_t *config, const zr_gpt_shape_t *shape,
                                  const char *where, const zr_log_t *log) {
    ZR_TRY(check_activation(config, where, log));
    ZR_TRY(check_switches(config, where, log));
    const json_t *type = json_object_get(config, "model_type");
    if (type != NULL && (!json_is_string(type) || strcmp(json_string_value(type), "gpt2") != 0))
        return zr_fail(log, ZR_ERR_FORMAT, "%s: \"model_type\" is %.60s; only gpt2 is read", where,
                       json_is_string(type) ? json_string_value(type) : "no string");
    const json_t *epsilon = json_object_get(config, "layer_norm_epsilon");
    if (epsilon != NULL && !(fabs(json_number_value(epsilon) - 1e-5) < 1e-12))
        return zr_fail(log, ZR_ERR_FORMAT,
                       "%s: \"layer_norm_epsilon\" is %g; this GPT has 1e-05 and no other", where,
                       json_number_value(epsilon));
    const json_t *inner = json_object_get(config, "n_inner");
    if (inner != NULL && !json_is_null(inner) &&
        json_integer_value(inner) != (json_int_t)(4 * shape->channels))
        return zr_fail(log, ZR_ERR_FORMAT,
                       "%s: \"n_inner\" is %lld; this GPT has 4 n_embd, here %zu, and no other",
                       where, (long long)json_integer_value(inner), 4 * shape->channels);
    return ZR_OK;
}

static zr_status_t read_config(const json_t *config, const char *where, const zr_log_t *log,
                               zr_gpt_shape_t *shape_p) {
    shape_numbers_t numbers;
    zr_gpt_shape_t shape;
    if (!json_is_object(config))
        return zr_fail(log, ZR_ERR_FORMAT, "%s: not an object", where);
    ZR_TRY(read_number(config, "n_layer", where, log, &numbers.layers));
    ZR_TRY(read_number(config, "n_embd", where, log, &numbers.channels));
    ZR_TRY(read_number(config, "n_head", where, log, &numbers.heads));
    ZR_TRY(read_number(config, "n_positions", where, log, &numbers.seq));
    ZR_TRY(read_number(config, "vocab_size", where, log, &numbers.vocab));
    ZR_TRY(shape_of_numbers(&numbers, where, log, &shape));
    ZR_TRY(check_function(config, &shape, where, log));
    *shape_p = shape;
    return ZR_OK;
}

zr_status_t shape_from_hf_config(const char *text, size_t n_bytes, const char *where,
                                 const zr_log_t *log, zr_gpt_shape_t *shape_p) {
    json_error_t error;
    json_t *config = json_loadb(text, n_bytes, JSON_REJECT_DUPLICATES, &error);
    if (config == NULL)
        return zr_fail(log, ZR_ERR_FORMAT, "%s, line %d: %s", where, error.line, error.text);
    zr_status_t status = read_config(config, where, log, shape_p);
    json_decref(config);
    return status;
}

/* GPT-2's token for the beginning and the end of a text; other vocabularies have none. */
static json_t *end_of_text(const zr_gpt_shape_t *shape) {
    return shape->vocab == 50257 ? json_integer(50256) : json_null();
}

json_t *shape_to_hf_config(const zr_gpt_shape_t *shape, const char *dtype) {
    json_t *config =
        json_pack("{s:[s], s:s, s:s, s:s}", "architectures", "GPT2LMHeadModel", "model_type",
                  "gpt2", "activation_function", "gelu_new", "torch_dtype", dtype);
    JSON_PUT(&config, {"vocab_size", json_count(shape->vocab)},
             {"n_positions", json_count(shape->seq)}, {"n_ctx", json_count(shape->seq)},
             {"n_embd", json_count(shape->channels)}, {"n_layer", json_count(shape->n_layers)},
             {"n_head", json_count(shape->heads)}, {"n_inner", json_null()},
             {"layer_norm_epsilon", json_real(1e-5)}, {"tie_word_embeddings", json_true()},
             {"bos_token_id", end_of_text(shape)}, {"eos_token_id", end_of_text(shape)},
             {"attn_pdrop", json_real(0.0)}, {"embd_pdrop", json_real(0.0)},
             {"resid_pdrop", json_real(0.0)});
    for (size_t i = 0; i < N_ELEMS(switches); i++)
        if (json_object_get(config, switches[i].key) == NULL)
            json_put(&config, switches[i].key, json_boolean(switches[i].wanted));
    return config;
}
