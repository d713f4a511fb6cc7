/*
 * A streaming loop: the reads and writes of an optimizer's step and no arithmetic worth the name,
 * on as many threads. It is what the memory of the machine allows such a step.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/** Three arrays, or two where c is NULL, are read and written, grad is read, param is written. */
typedef struct stream_arrays {
    size_t n_elems;
    float *a, *b, *c;
    const void *grad;
    void *param;
    bool half; /* grad and param have 2 bytes per element, not 4 */
    size_t b_floats; /* of b, and of c, for 256 elements: 256, or fewer where they are encoded */
} stream_arrays_t;

typedef struct stream stream_t;

/** Start n_threads - 1 threads; NULL when the system refuses. The arrays are borrowed. */
stream_t *stream_create(const stream_arrays_t *arrays, int n_threads);
/** Go through the arrays once; values stay as they are, and param becomes a copy of grad. */
void stream_run(stream_t *stream);
void stream_destroy(stream_t **stream);
