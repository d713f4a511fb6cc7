/*
 * config.json of Hugging Face, as it is written: what is read is for models/shape.h.
 */
#pragma once

#include <jansson.h>

#include "models/shape.h"
#include "examples/weights/elements.h"

/**
 * Make the text of one that describes a model; models/shape.h reads the same model from it.
 *
 * @param text_p  [*n_bytes_p] free it
 * @return ZR_OK; ZR_ERR_UNSUPPORTED, logged, when none of their model types is this model;
 *         ZR_ERR_MEMORY
 */
ZR_NODISCARD zr_status_t hf_config_make(const zr_model_shape_t *shape, element_kind_t kind,
                                        const zr_log_t *log, char **text_p, size_t *n_bytes_p);

/** Change the dtype that one says, where it says one; the text is replaced only when it differs.
 * ZR_ERR_FORMAT; ZR_ERR_MEMORY. */
ZR_NODISCARD zr_status_t hf_config_set_dtype(element_kind_t kind, const zr_log_t *log,
                                             char **text_p, size_t *n_bytes_p);

/** As text, with a newline; free it. NULL when memory ends, or the object is NULL. */
char *hf_config_print(const json_t *object, size_t *n_bytes_p);
