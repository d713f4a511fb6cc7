/*
 * How the files of Hugging Face had a model's weights, as a file that its checkpoints carry along:
 * an export gives them back with the same names and dtypes.
 *
 *   {"prefix": true, "head": "bf16", "dtype": "bf16", "others": {"ln_f.weight": "fp32"}}
 *
 * and "bare": true of names that lack the prefix which they have here.
 */
#pragma once

#include "examples/weights/weights.h"

#define ORIGIN_NAME "origin.json"

/** Its text; free it. ZR_ERR_MEMORY. */
ZR_NODISCARD zr_status_t origin_print(const weights_t *weights, const zr_log_t *log, char **text_p);

/**
 * Read it back, into weights whose tensors are listed.
 *
 * @param text  [n_bytes]; `where` is for messages
 * @return ZR_OK; ZR_ERR_FORMAT, logged; ZR_ERR_MEMORY
 */
ZR_NODISCARD zr_status_t origin_parse(const char *text, size_t n_bytes, const char *where,
                                      const zr_log_t *log, weights_t *weights);
