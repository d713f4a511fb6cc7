/*
 * Recording: the lifetime of every tensor, from its allocation until its memory may be reused, in
 * virtual time. The offset planner reads it, and allocator/snapshot.h writes it to files.
 *
 * Virtual time is a counter: each allocation, each free, each end of a pending free, each mark
 * and each change of the mapping takes one tick. Two runs with the same calls in the same order
 * have the same times, however fast they are. A recording starts at time 0 with all live
 * allocations.
 */
#pragma once

#include <stdint.h>

#include "allocator/allocator.h"

ZR_BEGIN_C

typedef struct zr_recording zr_recording_t;

/** Default limit of a recording's metadata in host memory. */
#define ZR_RECORDING_MAX_BYTES ((size_t)256 << 20)

/**
 * Record both tiers from now on. If a recording is running, restart it at time 0: allocations that
 * have ended are dropped; live ones keep their names and the steps in which they began.
 *
 * @param max_bytes  limit of metadata; 0 means ZR_RECORDING_MAX_BYTES. When it is reached, or the
 *                   system is out of memory, the recording ends with a warning and is incomplete;
 *                   allocations still work.
 * @return ZR_OK; ZR_ERR_MEMORY: nothing is recorded
 *
 * Allocations made before the first recording have no known name: record from the beginning.
 * Cost: nothing while not recording; some tens of nanoseconds per call while recording.
 * Threads: thread-safe, as is stop.
 */
ZR_NODISCARD zr_status_t zr_allocator_record_start(zr_allocator_t *allocator, size_t max_bytes);

/**
 * End the recording and hand it over. Allocations that are still live are marked as open.
 *
 * @return ZR_OK, also for an incomplete recording; ZR_ERR_STATE without a running one
 *
 * Ownership: destroy with zr_recording_destroy; the allocator may be destroyed before. Destroying
 * the allocator destroys a running recording.
 */
ZR_NODISCARD zr_status_t zr_allocator_record_stop(zr_allocator_t *allocator,
                                                  zr_recording_t **recording_p);
void zr_recording_destroy(zr_recording_t **recording);

/** The lifetime of one allocation: the times t with lower <= t < upper. */
typedef struct zr_life {
    size_t id;        /* its index in the recording, in order of allocation */
    const char *name; /* name of the request, or ""; valid as long as the recording */
    zr_tier_t tier;
    zr_tag_t tag;
    zr_lifetime_t lifetime;
    size_t size_bytes;   /* as requested */
    size_t block_bytes;  /* as placed: rounded up to the allocator's alignment */
    size_t offset_bytes; /* in the address range of its class */
    int class_index;     /* its lifetime's class, or ZR_CLASS_PLANNED */
    int64_t lower;       /* allocation; 0 if it was live when the recording started */
    int64_t freed;       /* zr_free, or the end of the recording if that came first */
    int64_t upper; /* when the memory may be reused: at the free, or, if work was queued, when the
                      allocator noticed that its stream was done; or the end of the recording */
    bool is_open;  /* it was still live at the end of the recording */
    int stream; /* stream of the free, numbered from 1 in order of appearance; 0: none yet, or NULL
                 */
    /* Position in training of the allocation and of the free (or the end of the recording), from
     * marks; step 0: before the first mark. */
    size_t first_step, first_micro_batch;
    size_t last_step, last_micro_batch;
} zr_life_t;

typedef struct zr_recording_info {
    size_t n_lives;
    int64_t end;      /* end of the recording: no lifetime has a larger upper */
    bool is_complete; /* it ended by a stop and not because of its memory limit */
} zr_recording_info_t;

void zr_recording_info(const zr_recording_t *recording, zr_recording_info_t *info_p);
/** Get lifetime `id`, less than n_lives. */
void zr_recording_life(const zr_recording_t *recording, size_t id, zr_life_t *life_p);

ZR_END_C
