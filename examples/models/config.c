/*
 * What is the same for the config.json of all architectures: keys that change nothing in training,
 * and the refusal of those that nobody knows.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "models/internal.h"

/* Notes of who wrote the file, outputs, generation, heads for other tasks: nothing of them changes
   what is computed in training. */
static const char *const passed_over[] = {"architectures",
                                          "assistant_confidence_threshold",
                                          "assistant_early_exit",
                                          "auto_map",
                                          "bad_words_ids",
                                          "begin_suppress_tokens",
                                          "classifier_dropout",
                                          "custom_pipelines",
                                          "diversity_penalty",
                                          "do_sample",
                                          "dtype",
                                          "early_stopping",
                                          "encoder_no_repeat_ngram_size",
                                          "encoder_repetition_penalty",
                                          "epsilon_cutoff",
                                          "eta_cutoff",
                                          "exponential_decay_length_penalty",
                                          "finetuning_task",
                                          "forced_bos_token_id",
                                          "forced_eos_token_id",
                                          "gradient_checkpointing",
                                          "id2label",
                                          "initializer_range",
                                          "is_llama_config",
                                          "label2id",
                                          "length_penalty",
                                          "max_length",
                                          "max_sequence_length",
                                          "max_new_tokens",
                                          "min_length",
                                          "model_max_length",
                                          "model_type",
                                          "name_or_path",
                                          "no_repeat_ngram_size",
                                          "num_beam_groups",
                                          "num_beams",
                                          "num_labels",
                                          "num_return_sequences",
                                          "output_attentions",
                                          "output_hidden_states",
                                          "output_past",
                                          "output_scores",
                                          "prefix",
                                          "pretraining_tp",
                                          "problem_type",
                                          "remove_invalid_values",
                                          "repetition_penalty",
                                          "return_dict",
                                          "return_dict_in_generate",
                                          "suppress_tokens",
                                          "task_specific_params",
                                          "temperature",
                                          "tf_legacy_loss",
                                          "tokenizer_class",
                                          "tokenizer_model_max_length",
                                          "tokenizer_padding_side",
                                          "top_k",
                                          "top_p",
                                          "torch_dtype",
                                          "torchscript",
                                          "transformers.js_config",
                                          "transformers_version",
                                          "typical_p",
                                          "use_bfloat16",
                                          "use_cache",
                                          "use_return_dict"};

static bool begins(const char *key, const char *with) {
    return strncmp(key, with, strlen(with)) == 0;
}

static bool ends(const char *key, const char *with) {
    size_t n = strlen(key), n_with = strlen(with);
    return n > n_with && strcmp(key + n - n_with, with) == 0;
}

static bool is_one_of(const char *key, const char *const *keys, size_t n) {
    for (size_t i = 0; i < n && keys[i] != NULL; i++)
        if (strcmp(key, keys[i]) == 0)
            return true;
    return false;
}

/* Marks of tools, private notes, and which tokens begin, end and fill texts. */
static bool is_passed_over(const char *key) {
    return key[0] == '_' || begins(key, "unsloth_") || ends(key, "_token_id") ||
           is_one_of(key, passed_over, sizeof(passed_over) / sizeof(passed_over[0]));
}

/* Missing, false, or empty. */
static bool is_neutral(const json_t *value) {
    return json_is_null(value) || json_is_false(value) ||
           (json_is_object(value) && json_object_size(value) == 0) ||
           (json_is_array(value) && json_array_size(value) == 0);
}

zr_model_json_text_t zr_model_json_show(const json_t *value) {
    zr_model_json_text_t shown;
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    snprintf(shown.text, sizeof(shown.text), "%s", text != NULL ? text : "?");
    free(text);
    return shown;
}

/* Numbers of a few bits stand for the weights; this program reads whole ones. */
static zr_status_t check_quantization(const json_t *root, const char *where, const zr_log_t *log) {
    static const char *const keys[] = {"quantization_config", "compression_config", "quantization"};
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        const json_t *value = json_object_get(root, keys[i]);
        const json_t *method = json_object_get(value, "quant_method");
        if (value != NULL && !is_neutral(value))
            return zr_fail(log, ZR_ERR_UNSUPPORTED,
                           "%s: %s is %s: quantised weights (%.40s) are not supported; give the "
                           "model that they were made of, in fp32, bf16 or fp16",
                           where, keys[i], zr_model_json_show(value).text,
                           json_is_string(method) ? json_string_value(method)
                                                  : "of no named method");
    }
    return ZR_OK;
}

zr_status_t zr_model_config_check(const json_t *root, const char *const *known, const char *type,
                                  const char *where, const zr_log_t *log) {
    zr_status_t status = check_quantization(root, where, log);
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)root, key, value) {
        bool is_dropout = ends(key, "dropout") && json_is_number(value) &&
                          strcmp(key, "summary_first_dropout") != 0 &&
                          strcmp(key, "classifier_dropout") != 0;
        if (is_dropout && json_number_value(value) != 0)
            status = zr_fail(log, ZR_ERR_UNSUPPORTED, "%s: %s is %s; supported: 0", where, key,
                             zr_model_json_show(value).text);
        else if (status == ZR_OK && !is_dropout && !is_neutral(value) && !is_passed_over(key) &&
                 !is_one_of(key, known, SIZE_MAX))
            status = zr_fail(log, ZR_ERR_UNSUPPORTED,
                             "%s: %s is %s, and not supported for the model type %s; remove the "
                             "key if it changes nothing of the model",
                             where, key, zr_model_json_show(value).text, type);
    }
    return status;
}
