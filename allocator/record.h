/*
 * Recording: every life of a tensor, from its allocation to the moment its memory may be used
 * again, in virtual time. It is what a planner of offsets reads, and what allocator/snapshot.h
 * writes to files that people look at.
 *
 * Virtual time is a counter: each allocation, each free, each end of a pending free, each mark
 * and each change of the mapping takes one tick. Two runs that do the same in the same order
 * have the same times, however fast they are. Recording starts at time 0, with all that is live
 * then.
 */
#pragma once

#include <stdint.h>

#include "allocator/allocator.h"

ZR_BEGIN_C

typedef struct zr_recording zr_recording_t;

/** What a recording may need for itself unless it is told otherwise, in host memory. */
#define ZR_RECORDING_MAX_BYTES ((size_t)256 << 20)

/**
 * Record both tiers from now on. While a recording runs, forget what has ended and begin again
 * at time 0: names, and the steps in which lives began, are kept of what is live.
 *
 * @param max_bytes  of metadata; 0 means ZR_RECORDING_MAX_BYTES. When it is reached, or the
 *                   system has no more, the recording ends there with a warning and is not
 *                   complete; allocating goes on.
 * @return ZR_OK; ZR_ERR_MEMORY: nothing is recorded
 *
 * Of what is live and was never recorded the name is not known: record from the beginning.
 * Cost: nothing while not recording; some tens of nanoseconds per call while.
 * Threads: thread-safe, as is stop.
 */
ZR_NODISCARD zr_status_t zr_allocator_record_start(zr_allocator_t *allocator, size_t max_bytes);

/**
 * End the recording and hand it over. What is live lives on, and is said to be open.
 *
 * @return ZR_OK, also for one that is not complete; ZR_ERR_STATE when none runs
 *
 * Ownership: destroy with zr_recording_destroy; the allocator may be gone by then. Destroying
 * the allocator destroys a recording that was not stopped.
 */
ZR_NODISCARD zr_status_t zr_allocator_record_stop(zr_allocator_t *allocator,
                                                  zr_recording_t **recording_p);
void zr_recording_destroy(zr_recording_t **recording);

/** One life. It lasts over the times t with lower <= t < upper. */
typedef struct zr_life {
    size_t id;        /* its number in the recording: the order of allocation */
    const char *name; /* of the request, "" for none; valid as long as the recording */
    zr_tier_t tier;
    zr_tag_t tag;
    zr_lifetime_t lifetime;
    size_t size_bytes;   /* as requested */
    size_t block_bytes;  /* as it was placed: rounded up to the allocator's alignment */
    size_t offset_bytes; /* in the addresses of its class, */
    int class_index;     /* which is that of its lifetime, or ZR_CLASS_PLANNED */
    int64_t lower;       /* allocated; 0 also for what was live when recording started */
    int64_t freed;       /* zr_free; the end of the recording when that came before */
    int64_t upper; /* the memory may be used again: at the free, or, where work was queued, when
                      the allocator saw that its stream had passed; or the end of the recording */
    bool is_open;  /* it had not ended when the recording did */
    int stream;    /* that it was freed after: streams are numbered from 1, as they come up; 0:
                      none yet, or NULL */
    /* Where it was allocated and where it was freed (or recording ended), as marks said; step 0:
     * before the first mark. */
    size_t first_step, first_micro_batch;
    size_t last_step, last_micro_batch;
} zr_life_t;

typedef struct zr_recording_info {
    size_t n_lives;
    int64_t end;      /* the time at which it ended: no life has a larger upper */
    bool is_complete; /* it ended when it was stopped, and not for want of memory */
} zr_recording_info_t;

void zr_recording_info(const zr_recording_t *recording, zr_recording_info_t *info_p);
/** The life of a number below n_lives. */
void zr_recording_life(const zr_recording_t *recording, size_t id, zr_life_t *life_p);

ZR_END_C
