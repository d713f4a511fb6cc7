/*
 * One collective call with known input and the result that a naive loop gives.
 */
#pragma once

#include "tests/zero/comm/ranks.h"

typedef struct comm_case {
    zr_collective_t collective;
    zr_dtype_t dtype;
    size_t n_elems;
    int root;
    bool in_place;
    uint64_t seed; /* the input of each rank follows from it */
} comm_case_t;

/** splitmix64 */
uint64_t mix_bits(uint64_t value);

bool is_summed(zr_collective_t collective);

/** Make the call on `comm` and check every byte of every tensor. */
void run_case(rank_t *self, zr_comm_t *comm, const comm_case_t *wanted);

/** Of a rank: sums that are made in several pieces, and blocks of several messages, or of pieces
 * that ranks take from each other. */
void large_tensors(rank_t *self);
