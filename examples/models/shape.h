/*
 * Models of any architecture in this folder, described as in --model: by a well-known name, by
 * sizes, or by a config.json of Hugging Face. Programs use this to inspect and create models
 * independent of the architecture.
 *
 * Each architecture is one row of a table: internal.h.
 */
#pragma once

#include "models/decoder/decoder.h"
#include "models/gpt2/gpt.h"

ZR_BEGIN_C

typedef enum zr_model_kind { ZR_MODEL_GPT = 0, ZR_MODEL_DECODER = 1 } zr_model_kind_t;
#define ZR_N_MODEL_KINDS 2

typedef struct zr_model_shape {
    zr_model_kind_t kind;
    union {
        zr_gpt_shape_t gpt;
        zr_decoder_shape_t decoder;
    } of;
} zr_model_shape_t;

/* ---- which model ----------------------------------------------------------------------------- */

/**
 * Read a model's shape.
 *
 * @param text   one of
 *               - a well-known name: "gpt2-xl", "llama-3.1-8b" (zr_model_name lists all), or as
 *                 Hugging Face has it: "meta-llama/Llama-3.1-8B-Instruct"
 *               - sizes: "layers=4,channels=256,heads=4,seq=256,vocab=256" of a GPT;
 *                 "llama,layers=4,channels=256,heads=4,kv-heads=2,wide=688,seq=256,vocab=256" and
 *                 further fields of zr_decoder_shape_t, in any order
 *               - the path of a config.json, or of a folder with one; other files of the
 *                 folder are not needed
 * @param log    gets errors, which begin with the text; NULL: default
 * @return ZR_OK; ZR_ERR_ARGUMENT for names, sizes and paths; ZR_ERR_UNSUPPORTED for a configuration
 *         of an unsupported model; ZR_ERR_FORMAT; ZR_ERR_IO; ZR_ERR_MEMORY
 */
ZR_NODISCARD zr_status_t zr_model_shape_read(const char *text, const zr_log_t *log,
                                             zr_model_shape_t *shape_p);
/** Whether the weights of what such a text names are published with 16 bits each: those of the
 * well-known decoders, and of a config.json that says so ("dtype", "torch_dtype"). */
bool zr_model_is_published_in_16_bits(const char *text);

/** zr_model_shape_read for the [n_bytes] content of a config.json; messages begin with `where`. */
ZR_NODISCARD zr_status_t zr_model_shape_read_config(const char *text, size_t n_bytes,
                                                    const char *where, const zr_log_t *log,
                                                    zr_model_shape_t *shape_p);

/** Well-known name `index`; NULL after the last. */
const char *zr_model_name(size_t index);
/** The well-known name of a shape, or NULL. */
const char *zr_model_shape_name(const zr_model_shape_t *shape);
/** "gpt2" or "llama": the prefix of sizes. NULL if `kind` is invalid. */
const char *zr_model_kind_name(zr_model_kind_t kind);

/** Maximum bytes of a description. */
#define ZR_MODEL_TEXT_BYTES 2048
typedef struct zr_model_text {
    char text[ZR_MODEL_TEXT_BYTES];
} zr_model_text_t;
/** The sizes as text, in the syntax of zr_model_shape_read. */
zr_model_text_t zr_model_shape_text(const zr_model_shape_t *shape);

/* ---- what it is ------------------------------------------------------------------------------ */

/** ZR_OK; ZR_ERR_ARGUMENT, logged with the size that is wrong. Shapes from zr_model_shape_read
 * always pass. */
ZR_NODISCARD zr_status_t zr_model_shape_check(const zr_model_shape_t *shape, const zr_log_t *log);

/** Sizes that all architectures have. */
typedef struct zr_model_sizes {
    size_t n_layers, channels, heads;
    size_t kv_heads;  /* heads of keys and values */
    size_t head_size; /* channels per head */
    size_t seq;       /* the longest sequence */
    size_t vocab;
} zr_model_sizes_t;
zr_model_sizes_t zr_model_shape_sizes(const zr_model_shape_t *shape);

/** Total elements of its parameters. */
size_t zr_model_shape_n_params(const zr_model_shape_t *shape);
/**
 * Operations per token of a training step on sequences of t tokens: 6 per parameter of a product,
 * plus attention over the positions that a token sees. Recomputation does not count.
 */
double zr_model_shape_flops_per_token(const zr_model_shape_t *shape, size_t t);

typedef enum zr_model_value_type {
    ZR_MODEL_SIZE = 0,
    ZR_MODEL_REAL = 1,
    ZR_MODEL_FLAG = 2,
    ZR_MODEL_WORD = 3,  /* one of several names */
    ZR_MODEL_LAYERS = 4 /* a set of layers: "0-2+5", "all", "none" */
} zr_model_value_type_t;

/** One value of a shape, with its name in zr_model_shape_read. */
typedef struct zr_model_value {
    const char *name; /* "layers", "kv_heads" (kv-heads in text); static */
    zr_model_value_type_t type;
    size_t size;    /* SIZE, and FLAG: 0 or 1 */
    double real;    /* REAL */
    char text[768]; /* as in a description */
} zr_model_value_t;

/** Number of values of shapes of a kind. */
size_t zr_model_n_values(zr_model_kind_t kind);
/** Value `index`; the sizes come first. */
zr_model_value_t zr_model_shape_value(const zr_model_shape_t *shape, size_t index);

/** The difference of two shapes: one value of both, or "architecture". */
typedef struct zr_model_difference {
    zr_model_value_t a, b;
} zr_model_difference_t;
/** Whether they are different models; the first difference is set only if they are. difference_p
 * may be NULL. */
bool zr_model_shapes_differ(const zr_model_shape_t *a, const zr_model_shape_t *b,
                            zr_model_difference_t *difference_p);

/* ---- its parameters -------------------------------------------------------------------------- */

typedef struct zr_model_tensor {
    const char *name; /* "model.layers.0.mlp.up_proj.weight" */
    const char *unit; /* "layers.0" */
    int n_dims;
    size_t dims[4];
    size_t n_elems;
} zr_model_tensor_t;

typedef struct zr_model_tensors {
    zr_model_tensor_t *all; /* [n] in the order in which the model's blocks add them */
    size_t n;
    char *names; /* memory of all names */
} zr_model_tensors_t;

/**
 * List the parameters of a model without creating it.
 *
 * @param adapter  an adapter, whose parameters are listed too; NULL: none
 * @return ZR_OK; ZR_ERR_ARGUMENT; ZR_ERR_MEMORY
 *
 * Ownership: free with zr_model_tensors_free.
 */
ZR_NODISCARD zr_status_t zr_model_shape_tensors(const zr_model_shape_t *shape,
                                                const zr_part_adapter_t *adapter,
                                                const zr_log_t *log, zr_model_tensors_t *tensors_p);
/** Find a parameter by name; NULL: not found. */
const zr_model_tensor_t *zr_model_tensors_find(const zr_model_tensors_t *tensors, const char *name);
void zr_model_tensors_free(zr_model_tensors_t *tensors);

/* ---- the model ------------------------------------------------------------------------------- */

/**
 * Create the model on a runtime that is not committed yet; zr_model_commit is next. A micro-batch's
 * inputs are ZR_PART_TOKENS, ZR_PART_TARGETS and, with documents, ZR_PART_STARTS (models/parts.h).
 *
 * @param runtime      borrowed until zr_model_destroy
 * @param activations  how activations are kept; NULL: all on the device
 * @return ZR_OK; ZR_ERR_ARGUMENT; ZR_ERR_MEMORY; ZR_ERR_UNSUPPORTED if the device lacks kernels
 */
ZR_NODISCARD zr_status_t zr_model_shape_create(zr_runtime_t *runtime, const zr_model_shape_t *shape,
                                               const zr_transformer_options_t *options,
                                               const zr_activation_options_t *activations,
                                               zr_model_t **model_p);
/** zr_model_shape_create with this shape and these options as a maker, for plans; everything that
 * the options point to is borrowed as long as the maker is used. */
zr_model_maker_t zr_model_shape_maker(const zr_model_shape_t *shape,
                                      const zr_transformer_options_t *options);

ZR_END_C
