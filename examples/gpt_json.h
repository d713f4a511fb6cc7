/*
 * A model's shape in JSON, as all programs and checkpoints have it.
 */
#ifndef EXAMPLES_GPT_JSON_H
#define EXAMPLES_GPT_JSON_H

#include <jansson.h>

#include "examples/gpt.h"

/** {"layers": 12, "channels": 768, ...}; NULL when memory ends. */
json_t *gpt_shape_json(const gpt_shape_t *shape);

#endif
