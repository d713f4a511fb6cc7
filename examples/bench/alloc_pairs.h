/*
 * Nanoseconds per allocate-and-free pair, on the host device, through the public calls, with
 * locking and statistics on, one thread. No memory is touched. The machine's own limit for it are
 * two uncontended locks of a mutex, since both calls take one; malloc with the same sizes in the
 * same order stands beside it.
 */
#pragma once

#include "examples/bench/alloc_calls.h"
#include "examples/common/json.h"

typedef enum pairs_kind {
    PAIRS_PLANNED,   /* the made-up step, replayed by a plan; the time of its marks is in it */
    PAIRS_IRREGULAR, /* random sizes and classes */
    PAIRS_SAME_SIZE, /* one size, from what was freed before */
    PAIRS_N_KINDS
} pairs_kind_t;

typedef struct pairs_result {
    size_t n_pairs;       /* per repetition; of the step the next multiple */
    size_t n_repetitions; /* times are medians of them */
    double clock_ns;      /* of looking at the clock; subtracted from all others */
    double locks_ns;      /* of locking and unlocking a mutex, twice */
    double zero_ns[PAIRS_N_KINDS], malloc_ns[PAIRS_N_KINDS]; /* per pair */
} pairs_result_t;

/**
 * Measure. Some tens of milliseconds for 20,000 pairs.
 *
 * @return ZR_OK; ZR_ERR_MEMORY; ZR_ERR_STATE when not every allocation of the replayed steps was
 *         served by the plan; or what opening the device or allocating failed with
 */
ZR_NODISCARD zr_status_t pairs_measure(size_t n_pairs, const zr_log_t *log,
                                       pairs_result_t *result_p);

/** NULL when there is no memory. */
json_t *pairs_describe(const pairs_result_t *result);
