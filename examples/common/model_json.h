/*
 * A model's shape as an object of JSON: in reports, and in what checkpoints keep for the trainer.
 */
#pragma once

#include <jansson.h>

#include "models/shape.h"

/** Each value by its name; "architecture" first, which a GPT has none of. NULL when memory ends. */
json_t *model_json(const zr_model_shape_t *shape);

/** The shape of such an object; messages begin with `where`. ZR_ERR_FORMAT, logged. */
ZR_NODISCARD zr_status_t model_from_json(const json_t *object, const char *where,
                                         const zr_log_t *log, zr_model_shape_t *shape_p);
