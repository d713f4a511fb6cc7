/*
 * A small GPT that is trained with everything on NVMe, optimizer state, parameters (stage 3) and
 * inputs of layers, and what such a run leaves behind, however it ends. For tests of drives that
 * fail: the linker sends the store's calls of one rank through fault_ring.h.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tests/common/ranks.h"
#include "zero/config.h"

/* How it is trained. */
typedef struct gpt_variant {
    int n_ranks, stage;
    zr_dtype_t dtype;
    bool mixed;       /* some of everything on the device and in host memory */
    bool in_backward; /* updates are made within backward, and then taken back and made again */
    bool is_final;    /* those are not: their last writes end in the next forward */
    bool is_block;    /* the order of a step */
    size_t n_buffers; /* 0: the run chooses */
    zr_master_t master;
} gpt_variant_t;

typedef struct gpt_run {
    gpt_variant_t variant;
    const char *paths; /* folders; NULL: nothing is offloaded */
    int bad_rank;      /* whose calls faults are for; the other's are spared */

    test_ranks_t ranks;            /* out: how they ended */
    uint64_t hash[TEST_MAX_RANKS]; /* out: of ranks that ended well, weights_xxh3 */
} gpt_run_t;

/**
 * Train it, to the end or to an error.
 *
 * Fails the test when the run leaves anything behind: a file, a thread, memory of its allocators
 * that was not freed, a transfer of its stores that was not waited for.
 */
void gpt_run(gpt_run_t *run);
