/*
 * The GPT-2 architecture on libzero: learned positions, pre-LayerNorm, GELU with tanh, output
 * tied to the token embedding; forward and backward by hand.
 *
 * A user of the library writes a model like this one: units for what is gathered together, and
 * a micro-batch that acquires, computes, reduces and releases them. The kernels are the
 * device's (kernels/nn/nn.h); memory comes from the runtime's allocator.
 *
 * Parameters have the names and shapes of Hugging Face's GPT-2; weights of linear layers are
 * [in, out].
 */
#ifndef EXAMPLES_MODELS_GPT2_GPT_H
#define EXAMPLES_MODELS_GPT2_GPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "zero/zero.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct gpt_shape {
    size_t n_layers;
    size_t channels;
    size_t heads; /* divides channels */
    size_t seq;   /* positions: the longest sequence */
    size_t vocab;
} gpt_shape_t;

typedef struct gpt_options {
    bool recompute;      /* keep only each layer's input, compute the rest again in backward */
    uint64_t seed;       /* of the initial weights */
    const char *freeze;  /* comma-separated parameters to freeze, by name or by the part of it
                            before a dot ("wte,h.0"); NULL or "": none. Borrowed for the call */
    double weight_decay; /* of matrices; vectors have none */
    size_t most_tokens;  /* of the largest micro-batch there will be, b t: what others need memory
                            for is cut as its is, so that none needs more; 0: each for itself */
    size_t least_tokens; /* of the smallest: what its products take a workspace for, those of larger
                            ones take one for, too, so that all can follow one plan of memory; 0: as
                            each needs it */
} gpt_options_t;

typedef struct gpt gpt_t;

/**
 * Read a model's shape.
 *
 * @param text   "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", "gpt3-6.7b", "gpt3-13b",
 *               "gpt3-175b", or all of "layers=4,channels=256,heads=4,seq=256,vocab=256" in any
 *               order
 * @param error  [error_size], on failure a message for the user: key, value, what is allowed
 * @return whether the shape is one; shape_p is set only then
 */
bool gpt_shape_parse(const char *text, gpt_shape_t *shape_p, char *error, size_t error_size);

/** One size of a shape, by the name that gpt_shape_parse has for it. */
typedef struct gpt_size {
    const char *name; /* static */
    size_t value;
} gpt_size_t;
#define GPT_N_SIZES 5
/** All of them: layers, channels, heads, seq, vocab. */
void gpt_shape_sizes(const gpt_shape_t *shape, gpt_size_t sizes[GPT_N_SIZES]);

/** Parameters of a shape that gpt_shape_parse has passed. */
size_t gpt_n_params(const gpt_shape_t *shape);

/**
 * Operations per token of a training step on sequences of t tokens: 6 per parameter, and those
 * of attention over the positions that a token sees (on average (t + 1) / 2). What is computed
 * twice to save memory does not count.
 */
double gpt_flops_per_token(const gpt_shape_t *shape, size_t t);

/**
 * Add the model's groups, units and parameters to a runtime that is not committed yet.
 *
 * Units are "embed", "h.0", "h.1", ..., "ln_f". Initial values are a function of the seed, the
 * parameter's name and the element's index alone: the same on every rank and stage. Matrices
 * are normal with deviation 0.02 (those that end in a residual stream 0.02 / sqrt(2 layers)),
 * norms start at 1, biases at 0.
 *
 * @param runtime  borrowed until gpt_destroy
 * @param shape    copied
 * @return ZR_OK; ZR_ERR_ARGUMENT also when `freeze` names no parameter; ZR_ERR_MEMORY;
 *         ZR_ERR_UNSUPPORTED when the device has no kernels for it
 *
 * Ownership: destroy before the runtime. Threads: the runtime's.
 */
ZR_NODISCARD zr_status_t gpt_create(zr_runtime_t *runtime, const gpt_shape_t *shape,
                                    const gpt_options_t *options, gpt_t **gpt_p);
void gpt_destroy(gpt_t **gpt);

/**
 * Let inputs of layers wait for backward in host memory, or on the drives that the runtime's
 * configuration names: says what they need there. Before commit; of a model that recomputes.
 *
 * @param device       ZR_OFFLOAD_NONE changes nothing
 * @param most_tokens  of the largest micro-batch, b t: what is reserved on the drives
 * @return ZR_OK; ZR_ERR_ARGUMENT; ZR_ERR_STATE; what zr_runtime_add_extents returns
 */
ZR_NODISCARD zr_status_t gpt_plan_activations(gpt_t *gpt, zr_offload_device_t device,
                                              size_t most_tokens);
/** Do as was planned, if anything was. After commit, before the first micro-batch. Errors as
 * zr_stash_create. */
ZR_NODISCARD zr_status_t gpt_offload_activations(gpt_t *gpt);
/** What was moved so far; false, and nothing is set: nothing is offloaded. */
bool gpt_activations_statistics(const gpt_t *gpt, zr_stash_statistics_t *statistics_p);

/**
 * One micro-batch: forward, backward, and the reduction of every unit. Begins it itself;
 * after the last one of a step, call zr_runtime_step.
 *
 * Everything is queued on the runtime's stream and nothing is waited for. The gradient is that
 * of the mean loss of the micro-batch's tokens.
 *
 * @param tokens, targets  [b, t], in host memory, borrowed for the call; target i is the token
 *                         that follows token i
 * @param t                at most the shape's seq
 * @return ZR_OK; ZR_ERR_ARGUMENT for a size or a token that is none; what the runtime, the
 *         allocator and the kernels return
 */
ZR_NODISCARD zr_status_t gpt_train_micro_batch(gpt_t *gpt, const int32_t *tokens,
                                               const int32_t *targets, size_t b, size_t t);

/**
 * Mean loss of a batch, without gradients; between steps only. All ranks call it.
 *
 * @param loss_p  this rank's alone: zr_runtime_average gives that of all
 *
 * Waits for the stream.
 */
ZR_NODISCARD zr_status_t gpt_evaluate(gpt_t *gpt, const int32_t *tokens, const int32_t *targets,
                                      size_t b, size_t t, double *loss_p);

/**
 * Mean loss of the micro-batches since the last call, this rank's alone. Waits for the stream.
 *
 * @return ZR_OK; ZR_ERR_STATE when there was none; ZR_ERR_DEVICE
 */
ZR_NODISCARD zr_status_t gpt_take_loss(gpt_t *gpt, double *loss_p);

#ifdef __cplusplus
}
#endif
#endif
