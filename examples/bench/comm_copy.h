/*
 * How fast this machine copies memory on the host: two loops, of which the faster one is the limit.
 * memcpy goes through the caches, and writes to what is not there read it first; streaming stores
 * do not, which is a third less to move where arrays are larger than the caches.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "examples/bench/crew.h"

typedef enum comm_copy { COMM_COPY_MEMCPY = 0, COMM_COPY_STREAMING = 1 } comm_copy_t;
#define N_COMM_COPIES 2

/** "memcpy", "streaming stores"; static. */
const char *comm_copy_name(comm_copy_t copy);
/** Whether this processor has it. */
bool comm_copy_exists(comm_copy_t copy);
/** Copy, each thread of the crew one part. */
void comm_copy_run(comm_copy_t copy, crew_t *crew, int n_threads, void *dst, const void *src,
                   size_t size_bytes);
/** Read and write nothing, likewise; `src` begins where a uint64_t may. */
void comm_read_run(crew_t *crew, int n_threads, const void *src, size_t size_bytes);
