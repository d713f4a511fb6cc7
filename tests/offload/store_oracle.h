/*
 * Random transfers against arrays in memory that know what has to come back.
 */
#pragma once

#include "tests/offload/store_fixture.h"

#define ORACLE_N_EXTENTS 4
#define ORACLE_N_STATUSES 16

typedef struct oracle_result {
    size_t n_ended[ORACLE_N_STATUSES]; /* transfers that ended with status -i */
    size_t n_refused;                  /* gets of what was never put, or whose put had failed */
} oracle_result_t;

/** Sizes of the extents that the store has to be made with. */
extern const size_t oracle_sizes[ORACLE_N_EXTENTS];

/**
 * So many puts and gets of random places, sizes and alignments, with up to `most` in flight, and
 * a get of everything at the end. What comes back with ZR_OK is compared; a get may be refused
 * only where a put has failed, or none was.
 */
void oracle_run(zr_store_t *store, size_t n_transfers, size_t most, uint64_t seed,
                oracle_result_t *result_p);
