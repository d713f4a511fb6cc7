/*
 * Low-rank adapters as Hugging Face's PEFT keeps them, in a folder with adapter_config.json and
 * adapter_model.safetensors: read beside a model's weights, written apart from them, or merged into
 * them. Each call makes weights of others, which then belong to it.
 */
#pragma once

#include "examples/weights/weights.h"

#define ADAPTER_CONFIG_NAME "adapter_config.json"
#define ADAPTER_WEIGHTS_NAME "adapter_model.safetensors"
/** What names begin with in such a file, before those that a model with a head has. */
#define ADAPTER_PREFIX "base_model.model."

/**
 * The weights of a model, and beside them adapters of a folder, all of whose values are checked
 * when they are read.
 *
 * @param weights  in: without adapters; out: with them. As it was after an error
 * @return ZR_OK; ZR_ERR_ARGUMENT when there are adapters already, or no such folder; ZR_ERR_FORMAT
 *         for files that are damaged, hostile or of another model; ZR_ERR_UNSUPPORTED for adapters
 *         that are more than A and B; ZR_ERR_IO; ZR_ERR_MEMORY. Logged.
 */
ZR_NODISCARD zr_status_t adapter_add(const char *folder, const zr_log_t *log, weights_t **weights);

typedef enum adapter_part {
    ADAPTER_MERGED = 0, /* W + (alpha / rank) B A instead of W; no adapters */
    ADAPTER_ALONE = 1   /* A and B, and nothing else */
} adapter_part_t;

/** A part of weights with adapters (weights_t.has_lora). ZR_ERR_MEMORY. */
ZR_NODISCARD zr_status_t adapter_take(adapter_part_t part, const zr_log_t *log,
                                      weights_t **weights);

/** The text of an adapter_config.json: free it. ZR_ERR_MEMORY. */
ZR_NODISCARD zr_status_t adapter_config_make(const weights_t *weights, const zr_log_t *log,
                                             char **text_p, size_t *n_bytes_p);
