/*
 * The five numbers of a shape are always checked in one place, zr_gpt_shape_parse, whoever has
 * written them: they become its text first.
 */
#include "examples/weights/shape.h"

#include <stdio.h>
#include <string.h>

#include "examples/common/json.h"

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
             {"resid_pdrop", json_real(0.0)}, {"scale_attn_weights", json_true()},
             {"scale_attn_by_inverse_layer_idx", json_false()},
             {"add_cross_attention", json_false()});
    return config;
}
