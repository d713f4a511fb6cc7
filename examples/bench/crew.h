/*
 * Threads that share a range of items: for loops that show what the machine can do, apart from the
 * library and its own threads.
 */
#pragma once

#include <stddef.h>

typedef struct crew crew_t;

/** Start n_threads - 1 threads; NULL when the system refuses. */
crew_t *crew_create(int n_threads);
/** Call task(context, first, last) for pieces of [0, n_items), on the caller's thread, too. */
void crew_run(crew_t *crew, size_t n_items, size_t piece_items,
              void (*task)(void *context, size_t first, size_t last), void *context);
void crew_destroy(crew_t **crew);
