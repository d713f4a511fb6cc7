/*
 * A model's shape in JSON, as all programs and checkpoints have it.
 */
#ifndef EXAMPLES_MODELS_GPT2_JSON_H
#define EXAMPLES_MODELS_GPT2_JSON_H

#include <jansson.h>

#include "examples/models/gpt2/gpt.h"

/** {"layers": 12, "channels": 768, ...}; NULL when memory ends. */
json_t *gpt_shape_json(const gpt_shape_t *shape);

#endif
