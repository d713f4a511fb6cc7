/*
 * Problems for the planner, and oracles that share nothing with it: an overlap test of all
 * pairs, the bytes alive at each time, and the least height by trying every order.
 */
#pragma once

#include "allocator/planner.h"

/** Numbers that depend on the seed alone. */
typedef struct plan_random {
    uint64_t state;
} plan_random_t;
/** From `least` to `most`, both included. */
size_t plan_random_in(plan_random_t *random, size_t least, size_t most);

/** Fill with buffers of sizes up to max_size and lives within 0 to n_times. */
void plan_random_buffers(plan_random_t *random, zr_plan_buffer_t *buffers, size_t n_buffers,
                         size_t max_size, size_t n_times);

/**
 * Cut a rectangle of n_times by height into buffers, and shuffle them: a plan without any
 * loss exists. Straight cuts, and pinwheels, which no straight cuts can make.
 */
void plan_cut_rectangle(plan_random_t *random, zr_plan_buffer_t *buffers, size_t n_buffers,
                        size_t n_times, size_t height);

/**
 * Buffers with `height` alive at all times, though a plan of that height need not exist: a cut
 * rectangle, of which pieces of equal size that follow each other have become one.
 *
 * @param buffers  has room for 3 * n_buffers
 * @return how many there are, n_buffers or more
 */
size_t plan_full_sections(plan_random_t *random, zr_plan_buffer_t *buffers, size_t n_buffers,
                          size_t n_times, size_t height);

/** Micro-batches that are all alike, with accumulators that live from the first to the end. */
size_t plan_micro_batches(plan_random_t *random, zr_plan_buffer_t *buffers, size_t n_layers,
                          size_t n_micro_batches);

/** Whether no two that live at once overlap, all are aligned, and this is the height. */
bool plan_is_valid(const zr_plan_buffer_t *buffers, size_t n_buffers, const size_t *offsets,
                   size_t height);

/** The most bytes alive at once, by adding them up at every beginning. */
size_t plan_max_live(const zr_plan_buffer_t *buffers, size_t n_buffers);

/** The least height there is: some order of stacking from the bottom has it. Up to 12 buffers. */
size_t plan_least_height(const zr_plan_buffer_t *buffers, size_t n_buffers);
