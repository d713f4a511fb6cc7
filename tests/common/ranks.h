/*
 * For tests that need several ranks: each is a thread with a device and a communicator.
 */
#pragma once

#include "zero/zero.h"

#define TEST_MAX_RANKS 8

/* What a rank is given; all of it lives until its function returns. */
typedef struct test_rank {
    int rank;
    zr_comm_t *comm;
    zr_device_t *device;
    zr_log_t log;  /* keeps the last error */
    void *context; /* shared by all ranks */
} test_rank_t;

/* A rank's work. When it returns an error, the communicator is aborted for it. */
typedef zr_status_t (*test_rank_fn)(test_rank_t *rank);

typedef struct test_ranks {
    int n_ranks;
    const char *device_name; /* NULL: "host"; "nccl": a GPU for each rank, and that communicator */
    bool late;               /* on late devices (late_device.h) instead */
    bool concurrent;         /* host: collectives on streams that have a thread */
    bool quiet;              /* errors are expected: do not print them */
    test_rank_fn run;
    void *context;
    bool has_run[TEST_MAX_RANKS];
    zr_status_t status[TEST_MAX_RANKS];   /* out */
    char last_error[TEST_MAX_RANKS][512]; /* out */
    size_t n_errors[TEST_MAX_RANKS];      /* out: that were logged */
} test_ranks_t;

/* Run all ranks to their end. Aborts the program when it cannot start them. */
void test_run_ranks(test_ranks_t *ranks);
