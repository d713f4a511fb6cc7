/*
 * A config.json of Hugging Face's GPT-2. Keys whose other values mean another function than ours
 * are refused; an absent key has the value that is wanted, as it has in GPT2Config.
 */
#include <math.h>
#include <string.h>

#include "models/gpt2/internal.h"

#define N_ELEMS(array) (sizeof(array) / sizeof((array)[0]))

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
        return zr_fail(log, ZR_ERR_FORMAT, "%s: \"%s\" is not %s: this GPT supports only %s", where,
                       switches[i].key, wanted, wanted);
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
                   where, name == NULL ? "not a string" : name);
}

static zr_status_t check_function(const json_t *config, const zr_gpt_shape_t *shape,
                                  const char *where, const zr_log_t *log) {
    ZR_TRY(check_activation(config, where, log));
    ZR_TRY(check_switches(config, where, log));
    const json_t *epsilon = json_object_get(config, "layer_norm_epsilon");
    if (epsilon != NULL && !(fabs(json_number_value(epsilon) - (double)ZR_GPT_EPSILON) < 1e-12))
        return zr_fail(log, ZR_ERR_FORMAT,
                       "%s: \"layer_norm_epsilon\" is %g; this GPT supports only 1e-05", where,
                       json_number_value(epsilon));
    const json_t *inner = json_object_get(config, "n_inner");
    if (inner != NULL && !json_is_null(inner) &&
        json_integer_value(inner) != (json_int_t)(4 * shape->channels))
        return zr_fail(log, ZR_ERR_FORMAT,
                       "%s: \"n_inner\" is %lld; this GPT supports only 4 n_embd, here %zu", where,
                       (long long)json_integer_value(inner), 4 * shape->channels);
    return ZR_OK;
}

/* Names that all models of Hugging Face have for the same; the later one in a file counts there. */
static zr_status_t check_aliases(const json_t *config, const char *where, const zr_log_t *log) {
    static const char *const aliases[][2] = {{"hidden_size", "n_embd"},
                                             {"max_position_embeddings", "n_positions"},
                                             {"num_attention_heads", "n_head"},
                                             {"num_hidden_layers", "n_layer"}};
    for (size_t i = 0; i < N_ELEMS(aliases); i++) {
        const json_t *alias = json_object_get(config, aliases[i][0]);
        if (alias != NULL && !json_equal(alias, json_object_get(config, aliases[i][1])))
            return zr_fail(log, ZR_ERR_FORMAT, "%s: \"%s\" and \"%s\" differ; remove one of them",
                           where, aliases[i][0], aliases[i][1]);
    }
    return ZR_OK;
}

static const char *const known[] = {"activation_function",
                                    "add_cross_attention",
                                    "attn_pdrop",
                                    "embd_pdrop",
                                    "hidden_size",
                                    "layer_norm_epsilon",
                                    "max_position_embeddings",
                                    "n_ctx",
                                    "n_embd",
                                    "n_head",
                                    "n_inner",
                                    "n_layer",
                                    "n_positions",
                                    "n_special",
                                    "num_attention_heads",
                                    "num_hidden_layers",
                                    "predict_special_tokens",
                                    "reorder_and_upcast_attn", /* its sums are in fp32 here */
                                    "resid_pdrop",
                                    "scale_attn_by_inverse_layer_idx",
                                    "scale_attn_weights",
                                    "summary_activation", /* of heads for other tasks */
                                    "summary_first_dropout",
                                    "summary_proj_to_labels",
                                    "summary_type",
                                    "summary_use_proj",
                                    "tie_word_embeddings",
                                    "vocab_size",
                                    NULL};

zr_status_t zr_gpt_read_config(const json_t *config, const char *where, const zr_log_t *log,
                               zr_model_shape_t *shape_p) {
    static const char *const keys[] = {"n_layer", "n_embd", "n_head", "n_positions", "vocab_size"};
    long long n[N_ELEMS(keys)];
    char text[160], error[512];
    zr_model_shape_t shape;
    for (size_t i = 0; i < N_ELEMS(keys); i++) {
        const json_t *value = json_object_get(config, keys[i]);
        if (!json_is_integer(value))
            return zr_fail(log, ZR_ERR_FORMAT, "%s: \"%s\" is %s; a whole number is required",
                           where, keys[i], value == NULL ? "missing" : "not a whole number");
        n[i] = json_integer_value(value);
    }
    snprintf(text, sizeof(text), "layers=%lld,channels=%lld,heads=%lld,seq=%lld,vocab=%lld", n[0],
             n[1], n[2], n[3], n[4]);
    if (!zr_model_keys_read(&zr_gpt_architecture, text, &shape, error, sizeof(error)))
        return zr_fail(log, ZR_ERR_FORMAT, "%s: no model: %s", where, error);
    ZR_TRY(check_aliases(config, where, log));
    ZR_TRY(check_function(config, &shape.of.gpt, where, log));
    ZR_TRY(zr_model_config_check(config, known, "gpt2", where, log));
    *shape_p = shape;
    return ZR_OK;
}
