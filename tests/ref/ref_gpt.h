/*
 * Oracle of the GPT model: forward and backward in double precision, naive, independent of
 * the library and of examples/gpt.
 *
 * Parameters are tensors in this order, with Hugging Face's names and shapes: wte.weight,
 * wpe.weight; per layer ln_1, attn.c_attn, attn.c_proj, ln_2, mlp.c_fc, mlp.c_proj, each weight
 * and bias; ln_f.weight, ln_f.bias.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

typedef struct ref_gpt_shape {
    size_t n_layers, channels, heads, seq, vocab;
} ref_gpt_shape_t;

size_t ref_gpt_n_tensors(const ref_gpt_shape_t *shape);
/** Elements of a tensor; its name into name[64]. */
size_t ref_gpt_tensor(const ref_gpt_shape_t *shape, size_t index, char *name);

/**
 * Mean loss over b sequences of t tokens, and its gradient.
 *
 * @param params     [n_tensors] tensors
 * @param gradients  [n_tensors] tensors, overwritten; NULL: not wanted
 */
double ref_gpt(const ref_gpt_shape_t *shape, double *const *params, double *const *gradients,
               const int32_t *tokens, const int32_t *targets, size_t b, size_t t);
