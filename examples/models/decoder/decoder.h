/*
 * The decoders of the Llama family on libzero: Llama, Qwen2, Qwen3, Mistral, SmolLM3. RMSNorm,
 * rotary positions, grouped-query attention, SwiGLU; a list of blocks, like gpt2/.
 *
 * Parameters have the names and shapes of Hugging Face's; weights of linear layers are [out, in].
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "models/parts.h"

ZR_BEGIN_C

#define ZR_DECODER_MAX_LAYERS 100000
/** Layers that a set of layers has a bit for. */
#define ZR_DECODER_SET_LAYERS 256

/** The shape of a model; all sizes except the window must be positive. */
typedef struct zr_decoder_shape {
    size_t n_layers; /* at most ZR_DECODER_MAX_LAYERS */
    size_t channels; /* hidden_size */
    size_t heads;
    size_t kv_heads;  /* divides heads */
    size_t head_size; /* even, at most ZR_NN_ROTARY_MAX_HEAD_SIZE */
    size_t wide;      /* intermediate_size */
    size_t seq;       /* the longest sequence */
    size_t vocab;
    double epsilon; /* of norms */
    zr_nn_rotary_positions_t rotary;
    bool is_tied; /* the head's weight is the embedding's */
    bool has_qkv_bias, has_out_bias, has_mlp_bias;
    bool normalises_qk; /* each head of queries and keys has a norm: Qwen3 */
    size_t window;      /* positions that layers in `windowed` see; 0: all */
    /* Bit sets of layers: those limited to `window`, and those without rotary positions. Layer i has
     * bit i % repeat, or i % ZR_DECODER_SET_LAYERS where repeat is 0. */
    uint64_t windowed[ZR_DECODER_SET_LAYERS / 64], unrotated[ZR_DECODER_SET_LAYERS / 64];
    size_t repeat; /* at most ZR_DECODER_SET_LAYERS */
} zr_decoder_shape_t;

/** Whether a set of the shape has a layer. */
static inline bool zr_decoder_has_layer(const zr_decoder_shape_t *shape, const uint64_t *layers,
                                        size_t layer) {
    size_t i = layer % (shape->repeat > 0 ? shape->repeat : ZR_DECODER_SET_LAYERS);
    return (layers[i / 64] >> (i % 64) & 1) != 0;
}

/** The shape of a well-known model, "llama-3.2-1b"; false: the name is unknown. */
bool zr_decoder_named(const char *name, zr_decoder_shape_t *shape_p);
/** The known names, in order; NULL after the last. */
const char *zr_decoder_name(size_t index);

/** ZR_OK; ZR_ERR_ARGUMENT, logged with the size that is wrong. */
ZR_NODISCARD zr_status_t zr_decoder_check(const zr_decoder_shape_t *shape, const zr_log_t *log);

/** Number of parameters of a shape that passed zr_decoder_check. */
size_t zr_decoder_n_params(const zr_decoder_shape_t *shape);

/**
 * Create the model on a runtime that is not committed yet; zr_model_commit is next.
 *
 * Units are "embed", "layers.0", "layers.1", ..., "norm", and "head" if it is not tied. Initial
 * values depend only on the seed, the parameter's name and the element's index: matrices are normal
 * with deviation 0.02, norms start at 1, biases at 0.
 *
 * @param runtime  borrowed until zr_model_destroy
 * @param shape    copied
 * @param activations  how activations are kept; NULL: all on the device
 * @return ZR_OK; ZR_ERR_ARGUMENT; ZR_ERR_MEMORY; ZR_ERR_UNSUPPORTED if the device lacks kernels
 */
ZR_NODISCARD zr_status_t zr_decoder_create(zr_runtime_t *runtime, const zr_decoder_shape_t *shape,
                                           const zr_transformer_options_t *options,
                                           const zr_activation_options_t *activations,
                                           zr_model_t **model_p);

/* A micro-batch's inputs are int32: tokens; targets, each the following token or
 * ZR_NN_TARGET_IGNORED; and, for models with documents, document starts: positions count from the
 * start of their document, and attention does not reach before it. */

ZR_END_C
