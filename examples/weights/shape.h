/*
 * The shape of a model as other places write it down: in the text of --model, in the object that a
 * checkpoint keeps for the trainer, in the config.json of Hugging Face.
 */
#pragma once

#include <jansson.h>

#include "models/gpt2/gpt.h"

typedef struct shape_text {
    char text[160];
} shape_text_t;
/** "layers=12,channels=768,heads=12,seq=1024,vocab=50257" */
shape_text_t shape_text(const zr_gpt_shape_t *shape);

bool shapes_are_equal(const zr_gpt_shape_t *a, const zr_gpt_shape_t *b);

/** Numbers that someone claims to be a shape. */
typedef struct shape_numbers {
    long long layers, channels, heads, seq, vocab;
} shape_numbers_t;
/**
 * Check that they are one, as --model does.
 *
 * @param where  for the message: "config.json of x"
 * @return ZR_OK; ZR_ERR_FORMAT, logged
 */
ZR_NODISCARD zr_status_t shape_of_numbers(const shape_numbers_t *numbers, const char *where,
                                          const zr_log_t *log, zr_gpt_shape_t *shape_p);

/** A shape from an object of gpt_shape_json; `where` as above. ZR_ERR_FORMAT, logged. */
ZR_NODISCARD zr_status_t shape_from_json(const json_t *object, const char *where,
                                         const zr_log_t *log, zr_gpt_shape_t *shape_p);

/** The config.json that Hugging Face needs to compute what ours does. `dtype`: "float32" and so on.
 * NULL when memory ends. */
json_t *shape_to_hf_config(const zr_gpt_shape_t *shape, const char *dtype);
