/*
 * A search for a lower plan, beside training: a thread that is started when a plan in force is
 * higher than it has to be, and whose result is taken at the start of a later step.
 * Threads: externally locked, by the allocator; the thread itself touches only its own copies.
 */
#pragma once

#include "allocator/replay_internal.h"

/** Whether a plan may have one that is lower by more than a thousandth. */
bool zr_replay_plan_can_improve(const zr_replay_made_t *plan);

/**
 * Search for a plan of the same tape.
 *
 * @param tape        copied
 * @param most_bytes  that it may have; it ends where it needs more. They are counted nowhere else:
 *                    when it ends depends on time
 * @return NULL: no memory, or no thread
 */
zr_replay_search_t *zr_replay_search_start(const zr_tape_t *tape,
                                           const zr_replay_planning_t *planning, double seconds,
                                           size_t most_bytes);
/** What it has now; of NULL nothing. */
size_t zr_replay_search_bytes(const zr_replay_search_t *search);
/** Whether it has ended. */
bool zr_replay_search_is_done(zr_replay_search_t *search);
/** End it, wait for its thread, and hand over what it has found; NULL: nothing. `peak_bytes`
 * becomes what it had at most, where that is more. */
zr_replay_made_t *zr_replay_search_stop(zr_replay_search_t **search, size_t *peak_bytes);
