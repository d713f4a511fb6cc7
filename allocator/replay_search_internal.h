/*
 * A search for a lower plan, beside training: a thread that is started when a plan in force is
 * higher than it has to be, and whose result is taken at the start of a later step.
 * Threads: externally locked, by the allocator; the thread itself touches only its own copies.
 */
#pragma once

#include "allocator/replay_internal.h"

/** Whether a plan may have one lower than it. */
bool zr_replay_plan_can_improve(const zr_replay_made_t *plan);

/**
 * Search for a plan of the same tape.
 *
 * @param tape  copied
 * @param heap  what is had for it, until the search is stopped
 * @return NULL: no memory, or no thread
 */
zr_replay_search_t *zr_replay_search_start(zr_heap_t *heap, const zr_tape_t *tape,
                                           const zr_replay_planning_t *planning, double seconds);
/** Whether it has ended. */
bool zr_replay_search_is_done(zr_replay_search_t *search);
/** End it, wait for its thread, and hand over what it has found; NULL: nothing. */
zr_replay_made_t *zr_replay_search_stop(zr_replay_search_t **search);
