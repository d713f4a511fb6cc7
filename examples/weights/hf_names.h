/*
 * What Hugging Face's models of an architecture have beside its parameters, which have the same
 * names and shapes there and here: a row for each.
 */
#pragma once

#include <string.h>

#include "models/shape.h"

typedef struct hf_names {
    const char *prefix;     /* of all names but the head's, in a model with a head; NULL: none */
    const char *own_prefix; /* that names have here already, and files of a model without a head do
                               not; NULL: none */
    const char *embedding;  /* which a tied head shares */
    const char *buffers[3]; /* that are no parameters, of layer %zu; NULL behind the last */
    const char *what;       /* they are */
    bool is_in_first;       /* weights of linear layers are [in, out] */
} hf_names_t;

#define HF_HEAD_NAME "lm_head.weight"

/** A name without the prefix that names have here. */
static inline const char *hf_bare_name(const hf_names_t *names, const char *name) {
    size_t n = names->own_prefix != NULL ? strlen(names->own_prefix) : 0;
    return n > 0 && strncmp(name, names->own_prefix, n) == 0 ? name + n : name;
}

static inline const hf_names_t *hf_names_of(const zr_model_shape_t *shape) {
    static const hf_names_t names[ZR_N_MODEL_KINDS] = {
        [ZR_MODEL_GPT] = {.prefix = "transformer.",
                          .embedding = "wte.weight",
                          .buffers = {"h.%zu.attn.bias", "h.%zu.attn.masked_bias"},
                          .what = "attention's mask (attn.bias, attn.masked_bias)",
                          .is_in_first = true},
        [ZR_MODEL_DECODER] = {.own_prefix = "model.",
                              .embedding = "model.embed_tokens.weight",
                              .buffers = {"model.layers.%zu.self_attn.rotary_emb.inv_freq"},
                              .what = "rotary positions (inv_freq)"},
    };
    return &names[shape->kind];
}
