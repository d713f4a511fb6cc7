/*
 * What the files of the model share.
 */
#pragma once

#include "models/internal.h"

/* What all blocks are handed as their shape. */
typedef struct zr_decoder_model {
    zr_part_model_t base;
    zr_decoder_shape_t shape;
    float frequencies[ZR_NN_ROTARY_MAX_HEAD_SIZE / 2];
} zr_decoder_model_t;

/** A norm of so many channels, whose weight has this name. */
ZR_NODISCARD zr_status_t zr_decoder_add_norm(zr_block_t *block, const zr_decoder_model_t *model,
                                             const char *name, size_t channels,
                                             zr_part_norm_t *norm);

/** A layer, with the residual stream: layer.c. Block 1 + i of a model is layer i. */
extern const zr_block_type_t zr_decoder_layer_block;

/** The model_types of a config.json, NULL behind the last; and zr_architecture_t.read_config. */
extern const char *const zr_decoder_types[];
ZR_NODISCARD zr_status_t zr_decoder_read_config(const json_t *root, const char *where,
                                                const zr_log_t *log, zr_model_shape_t *shape_p);
