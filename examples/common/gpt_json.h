/*
 * A model's shape in JSON, as all programs and checkpoints have it.
 */
#pragma once

#include <jansson.h>

#include "models/gpt2/gpt.h"

/** {"layers": 12, "channels": 768, ...}; NULL when memory ends. */
json_t *gpt_shape_json(const zr_gpt_shape_t *shape);
