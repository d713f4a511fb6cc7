/*
 * Putting a plan into force, and out of it: its memory, the blocks of its places, its events.
 * Threads: with the allocator's lock held.
 */
#pragma once

#include "allocator/replay_internal.h"

/**
 * Map memory for replay->plan, and make what its entries have of this allocator. What is idle in
 * other classes is given back first, after waiting for what is pending.
 *
 * @return ZR_OK; anything else: nothing is held, and whatever is live in the class of plans is
 *         why, or the budget, or there is no memory for metadata; none of it is an error
 */
ZR_NODISCARD zr_status_t zr_replay_force(zr_allocator_t *allocator);

/**
 * The reverse, if a plan is in force: waits for the streams that use its memory, makes what is
 * live an ordinary block of the class, and the rest free.
 *
 * @return false: there is no memory for the blocks of what is live; the plan is in force
 */
ZR_NODISCARD bool zr_replay_release(zr_allocator_t *allocator);

/** The events by which places wait for a stream. ZR_ERR_MEMORY, ZR_ERR_DEVICE: there are none. */
ZR_NODISCARD zr_status_t zr_replay_add_fence(zr_allocator_t *allocator, int stream);

static inline bool zr_replay_has_fence(const zr_replay_t *replay, int stream) {
    return replay->fences[stream].events[0] != NULL;
}

/** Destroy the events of a plan that could not be released; for the end of the allocator. */
void zr_replay_abandon(zr_allocator_t *allocator);
