/*
 * The GPT-2 architecture on libzero: learned positions, pre-LayerNorm, GELU with tanh, output
 * tied to the token embedding; forward and backward by hand.
 *
 * It is a list of blocks, as a user of the library writes one (zero/schedule/model.h): the schedule
 * decides when each is gathered, recomputed, reduced and released. Kernels are in kernels/nn/nn.h.
 *
 * Parameters have the names and shapes of Hugging Face's GPT-2; weights of linear layers are
 * [in, out].
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "models/parts.h"

ZR_BEGIN_C

typedef struct zr_gpt_shape {
    size_t n_layers;
    size_t channels;
    size_t heads; /* divides channels */
    size_t seq;   /* positions: the longest sequence */
    size_t vocab;
} zr_gpt_shape_t;

/** Number of parameters of a shape that passed zr_model_shape_check. */
size_t zr_gpt_n_params(const zr_gpt_shape_t *shape);

/**
 * Operations per token of a training step on sequences of t tokens: 6 per parameter, plus attention
 * over the positions that a token sees (on average (t + 1) / 2). Recomputation does not count.
 */
double zr_gpt_flops_per_token(const zr_gpt_shape_t *shape, size_t t);

/**
 * Create the model on a runtime that is not committed yet; zr_model_commit is next.
 *
 * Units are "embed", "h.0", "h.1", ..., "ln_f". Initial values depend only on the seed, the
 * parameter's name and the element's index: they are the same on every rank and stage. Matrices are
 * normal with deviation 0.02 (those that end in a residual stream 0.02 / sqrt(2 layers)), norms
 * start at 1, biases at 0.
 *
 * @param runtime  borrowed until zr_model_destroy
 * @param shape    copied
 * @param activations  how activations are kept; NULL: all on the device
 * @return ZR_OK; ZR_ERR_ARGUMENT also if the place of activations needs recompute; ZR_ERR_MEMORY;
 *         ZR_ERR_UNSUPPORTED if the device lacks kernels
 */
ZR_NODISCARD zr_status_t zr_gpt_create(zr_runtime_t *runtime, const zr_gpt_shape_t *shape,
                                       const zr_transformer_options_t *options,
                                       const zr_activation_options_t *activations,
                                       zr_model_t **model_p);

ZR_END_C
