/*
 * What an architecture has to say of itself: one row, in its folder, and a member of the union and
 * an entry of the table in shape.h and shape.c. Everything else of programs works with it then.
 */
#pragma once

#include <jansson.h>

#include "models/shape.h"

/** A value of a shape: by this name it is read, written, compared and kept in checkpoints. */
typedef struct zr_model_key {
    const char *name; /* "kv_heads" */
    zr_model_value_type_t type;
    size_t offset;            /* in zr_model_shape_t: size_t, double, bool, an enum, or the words of
                                 a bit for each layer */
    size_t most;              /* of a SIZE; bits of LAYERS */
    bool is_optional;         /* absent, it stays 0, and `complete` may set it */
    const char *const *words; /* of a WORD, NULL behind the last: their places are its values */
} zr_model_key_t;

typedef struct zr_architecture {
    zr_model_kind_t kind;
    const char *name;   /* in front of sizes, with a comma */
    const char *prefix; /* where a description has to begin so: "llama,"; else "" */
    const zr_model_key_t *keys;
    size_t n_keys;
    const char *const *types; /* model_type of a config.json; NULL behind the last */

    /** Usual model `index`: its name, NULL behind the last. */
    const char *(*usual)(size_t index, zr_model_shape_t *shape_p);
    /** Set what was not given, and follows from the rest. NULL: nothing does. */
    void (*complete)(zr_model_shape_t *shape);
    /** Whether it is a model; if not, a message. */
    bool (*check)(const zr_model_shape_t *shape, char *error, size_t error_size);
    /** Read a config.json of one of `types`; messages begin with `where`. */
    zr_status_t (*read_config)(const json_t *root, const char *where, const zr_log_t *log,
                               zr_model_shape_t *shape_p);
    zr_model_sizes_t (*sizes)(const zr_model_shape_t *shape);
    size_t (*n_params)(const zr_model_shape_t *shape);
    double (*flops_per_token)(const zr_model_shape_t *shape, size_t t);
    zr_status_t (*create)(zr_runtime_t *runtime, const zr_model_shape_t *shape,
                          const zr_transformer_options_t *options,
                          const zr_activation_options_t *activations, zr_model_t **model_p);
} zr_architecture_t;

extern const zr_architecture_t zr_gpt_architecture, zr_decoder_architecture;

/** Read "key=value,..." of an architecture; false, with a message: it is not valid. */
bool zr_model_keys_read(const zr_architecture_t *architecture, const char *text,
                        zr_model_shape_t *shape_p, char *error, size_t error_size);
/** Write a message; false. */
bool zr_model_refuse(char *error, size_t error_size, const char *format, ...) ZR_PRINTF(3, 4);
zr_model_value_t zr_model_key_value(const zr_model_key_t *key, const zr_model_shape_t *shape);

/** A value of a config.json for messages, shortened. */
typedef struct zr_model_json_text {
    char text[64];
} zr_model_json_text_t;
zr_model_json_text_t zr_model_json_show(const json_t *value);

/**
 * Refuse what is neither read nor known to change nothing.
 *
 * @param known  keys that the architecture reads; NULL behind the last
 * @param type   the model type, for messages
 * @return ZR_OK; ZR_ERR_UNSUPPORTED, logged with the key and its value
 */
ZR_NODISCARD zr_status_t zr_model_config_check(const json_t *root, const char *const *known,
                                               const char *type, const char *where,
                                               const zr_log_t *log);

static inline void zr_model_set_layer(uint64_t *layers, size_t i) {
    layers[i / 64] |= (uint64_t)1 << (i % 64);
}
