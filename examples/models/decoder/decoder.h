/*
 * The decoders of the Llama family on libzero: Llama, Qwen2, Qwen3, Mistral, SmolLM3. Norms of the
 * root mean square, rotary positions, heads of queries in groups, SwiGLU; a list of blocks, as
 * gpt2/ is.
 *
 * Parameters have the names and shapes of Hugging Face's; weights of linear layers are [out, in].
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "models/parts.h"

ZR_BEGIN_C

#define ZR_DECODER_MAX_LAYERS 256

/** What a model is; all sizes are positive but the window. */
typedef struct zr_decoder_shape {
    size_t n_layers; /* at most ZR_DECODER_MAX_LAYERS */
    size_t channels; /* hidden_size */
    size_t heads;
    size_t kv_heads;  /* divides heads */
    size_t head_size; /* even, at most ZR_NN_ROTARY_MAX_HEAD_SIZE */
    size_t wide;      /* intermediate_size */
    size_t seq;       /* the longest sequence */
    size_t vocab;
    double epsilon; /* of the norms */
    zr_nn_rotary_positions_t rotary;
    bool is_tied; /* the head's weight is the embedding's */
    bool has_qkv_bias, has_out_bias, has_mlp_bias;
    bool normalises_qk; /* each head of queries and keys has a norm: Qwen3 */
    size_t window;      /* of the layers in `windowed`: how many positions one sees; 0: all */
    /* A bit for each layer: those that see `window` alone, and those without positions. */
    uint64_t windowed[ZR_DECODER_MAX_LAYERS / 64], unrotated[ZR_DECODER_MAX_LAYERS / 64];
} zr_decoder_shape_t;

/** The shape of a usual model, "llama-3.2-1b"; false: the name is unknown. */
bool zr_decoder_named(const char *name, zr_decoder_shape_t *shape_p);
/** The names that it knows, in order; NULL behind the last. */
const char *zr_decoder_name(size_t index);

/** ZR_OK; ZR_ERR_ARGUMENT, logged with the size that is wrong. */
ZR_NODISCARD zr_status_t zr_decoder_check(const zr_decoder_shape_t *shape, const zr_log_t *log);

/** Parameters of a shape that zr_decoder_check has passed. */
size_t zr_decoder_n_params(const zr_decoder_shape_t *shape);

/**
 * Make the model on a runtime that is not committed yet; zr_model_commit is next.
 *
 * Units are "embed", "layers.0", "layers.1", ..., "norm", and "head" where it is not tied. Initial
 * values are a function of the seed, the parameter's name and the element's index alone: matrices
 * are normal with deviation 0.02, norms start at 1, biases at 0.
 *
 * @param runtime  borrowed until zr_model_destroy
 * @param shape    copied
 * @param activations  how they are held; NULL: all are kept on the device
 * @return ZR_OK; ZR_ERR_ARGUMENT; ZR_ERR_MEMORY; ZR_ERR_UNSUPPORTED when the device has no kernels
 *         for it
 */
ZR_NODISCARD zr_status_t zr_decoder_create(zr_runtime_t *runtime, const zr_decoder_shape_t *shape,
                                           const zr_transformer_options_t *options,
                                           const zr_activation_options_t *activations,
                                           zr_model_t **model_p);

/* A micro-batch's inputs are int32: tokens; targets, each the token that follows or
 * ZR_NN_TARGET_IGNORED; and of a model that has documents, where in its sequence the document of
 * each position begins: positions count from there, and attention sees nothing before it. */

ZR_END_C
