/*
 * Weights in the names and shapes of Hugging Face's models, which are ours (hf_names.h).
 */
#pragma once

#include "examples/weights/weights.h"

#define HF_CONFIG_NAME "config.json"
#define HF_WEIGHTS_NAME "model.safetensors"
#define HF_INDEX_NAME "model.safetensors.index.json"

/** weights_open of safetensors. A folder, an index or files are told apart by their names. */
ZR_NODISCARD zr_status_t weights_open_hf(const char *const *paths, size_t n_paths,
                                         const zr_model_shape_t *model, const zr_log_t *log,
                                         weights_t **weights_p);
