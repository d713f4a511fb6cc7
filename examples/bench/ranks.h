/*
 * Ranks of this process as threads, for what is measured while all of them work.
 */
#pragma once

#include <pthread.h>

#include "examples/bench/bench.h"

typedef struct bench_ranks bench_ranks_t;

/** The first member of whatever a rank has. */
typedef struct bench_rank {
    int number;
    zr_comm_t *comm; /* `end` destroys it */
    const bench_ranks_t *ranks;
    pthread_t thread;
    zr_status_t status;
} bench_rank_t;

struct bench_ranks {
    int n_ranks;
    void *all; /* [n_ranks] of rank_bytes, each with a bench_rank_t to be filled in first; where
                  some ranks are other processes, only as many as there are here are used */
    size_t rank_bytes;
    /* Fill comms[n_ranks]: NULL for a rank that is another process. NULL: threads */
    zr_status_t (*create)(int n_ranks, const zr_comm_options_t *options, zr_comm_t **comms);
    zr_status_t (*work)(void *rank); /* what it returns that is no success stops the others */
    void (*end)(void *rank);         /* undoes all that work has made; always called */
    zr_log_t log;
};

/**
 * Run all ranks, to their ends.
 *
 * @return ZR_OK; the error of the rank that failed, and not of those that were stopped by it:
 *         logged
 */
ZR_NODISCARD zr_status_t bench_ranks_run(const bench_ranks_t *ranks);
