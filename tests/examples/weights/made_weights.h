/*
 * Weights that are made up, for what writes them; and files for what reads them, in a folder of the
 * test's own.
 */
#pragma once

#include "examples/weights/weights.h"

typedef struct made_weights {
    weights_t base;
    const char *spoiled; /* of this parameter, element spoiled_at has the value `spoil` */
    size_t spoiled_at;
    float spoil;
    const char *failing; /* reading this parameter fails, unlogged; NULL: none */
} made_weights_t;

/** Of a model, as --model has it; free it. */
made_weights_t *made_weights(const char *model);
void made_weights_free(made_weights_t **made);
zr_model_shape_t made_shape(const char *model);

/** The value of an element: any bits of a fp32 between 2^-40 and 2^3, of both signs. */
float made_value(const char *name, size_t index);
/** The same in two steps, for many elements of one parameter. */
uint64_t made_key(const char *name);
float made_value_of(uint64_t key, size_t index);

/** Write a file; fails the test when that fails. */
void made_file(const char *path, const void *bytes, size_t n_bytes);
/** Read a file that has at most 64 MiB; free it. */
unsigned char *made_file_read(const char *path, size_t *n_bytes_p);
/** Whether there is something of this name. */
bool made_file_is_there(const char *path);
/** How many entries a folder has. */
size_t made_folder_count(const char *path);
