/*
 * Replay, for the files of this folder.
 *
 *   tape.c          writes a step down
 *   replay_plan.c   makes a plan of a tape: offsets, and the line of events
 *   replay_waits.c  finds who waits for whom
 *   replay.c        follows the plan, and decides when to make another
 *
 * Why it is safe to hand out a place without looking at what lies around it: the plan is a line
 * of events, allocations and frees, and a cursor moves along it, forwards only. A tensor that the
 * cursor has passed the free of, and that lives, is overdue; while one is, nothing is served by
 * plan. So every tensor of the plan that lives is one that lives at the cursor's place in the
 * plan as well, and no two of those overlap.
 *
 * On a device whose streams are late, memory also has to wait for work that is queued. While a
 * step follows the plan, it is known in advance what each stream has freed last of all that may
 * have lain in a place. When that is freed, the stream's position is recorded, and the stream that
 * uses the place next waits for it. Once a step has left the plan, a place waits for all that the
 * other streams have queued. A stream's first place in a step waits for the step before.
 */
#pragma once

#include "allocator/block_internal.h"
#include "allocator/planner.h"
#include "allocator/replay.h"
#include "allocator/shared_internal.h"
#include "allocator/tape_internal.h"

/* Streams have numbers from 1 on, in the order in which they are met; all others have one that what
 * is planned never has. */
#define ZR_REPLAY_MAX_STREAMS 8
#define ZR_REPLAY_OTHER_STREAM (ZR_REPLAY_MAX_STREAMS + 1)
#define ZR_REPLAY_N_TIERS 2

/* ---- the plan ----------------------------------------------------------------------- */

/* What a plan adds to an entry of its tape. */
typedef struct zr_replay_entry {
    size_t offset_bytes; /* in the arena of the plan */
    /* By stream - 1: which of its last records was made when it freed the last of what may have had
     * the place, 1 for the last; 0: it has freed nothing of that in this step. */
    uint8_t since[ZR_REPLAY_MAX_STREAMS];
    bool is_awaited; /* its free is recorded */
    bool is_planned;
} zr_replay_entry_t;

/* How offsets are searched for. */
typedef struct zr_replay_planning {
    zr_log_t log;
    uint8_t compute;     /* its stream; 0: none */
    bool is_synchronous; /* streams are done at once: nothing waits, nothing is kept longer */
    bool is_as_long;     /* zr_replay_options_t */
    zr_plan_options_t search;
} zr_replay_planning_t;

typedef struct zr_replay_made {
    zr_shared_t shared; /* with the heap of all that it has, which counts by itself */
    zr_tape_t tape;     /* that it was made of, enlarged */
    zr_replay_planning_t planning;
    zr_replay_entry_t *entries; /* alongside those of the tape */
    size_t n_entries;
    uint32_t *events; /* the line, by time: entry << 1, + 1 for its free */
    size_t n_events;
    unsigned streams; /* of what is planned, bit by number; late devices only */
    zr_replay_plan_t summary[ZR_REPLAY_N_TIERS];
} zr_replay_made_t;

/**
 * Make a plan of a tape, or take the one that others have of the same.
 *
 * @param cache  where plans are shared; NULL: this one is not
 * @param tape   without gaps; taken over with its heap, whatever comes of it
 * @return ZR_OK; ZR_ERR_MEMORY, not logged
 */
ZR_NODISCARD zr_status_t zr_replay_plan_make(zr_plan_cache_t *cache, const zr_tape_t *tape,
                                             const zr_replay_planning_t *planning,
                                             zr_replay_made_t **made_p);
/** Its blocks and events must be back. One that others have stays. */
void zr_replay_plan_free(zr_replay_made_t **made);

/*
 * When a place may be given to another. What another stream than compute frees is kept to the end
 * of the segment after that of the free: the next unit then computes while, say, the gradients of
 * this one are still being reduced.
 */
uint32_t zr_replay_end_of_life(const zr_tape_t *tape, const zr_tape_entry_t *entry,
                               const zr_replay_planning_t *planning);

/** Set what entries wait for, and which are awaited. ZR_ERR_MEMORY, not logged. */
ZR_NODISCARD zr_status_t zr_replay_find_waits(zr_replay_made_t *made);

typedef struct zr_replay_search zr_replay_search_t;

/* ---- replay itself ---------------------------------------------------------------------- */

#define ZR_REPLAY_N_RECORDS ((size_t)32)

/* A stream that places wait for. Records of where it was have numbers from 1 on. */
typedef struct zr_replay_fence {
    zr_event_t *events[ZR_REPLAY_N_RECORDS];  /* of the last records: number n in n % N_RECORDS */
    size_t n_records, n_before;               /* of all, and of those of before the step */
    size_t joined[ZR_REPLAY_MAX_STREAMS + 1]; /* numbers that other streams have waited for */
    uint32_t freed;                           /* the latest in the step, as time on the tape, + 1 */
    size_t least;   /* the record that is waited for at least: it was made when the step freed
                       something later than in the plan's order */
    bool has_freed; /* something, since the last record */
} zr_replay_fence_t;

typedef struct zr_replay {
    zr_replay_planning_t planning;
    zr_stream_t *streams[ZR_REPLAY_MAX_STREAMS]; /* by number - 1; NULL: not met yet */
    zr_tape_t tape;                              /* in a heap of its own */
    zr_replay_made_t *plan;                      /* the last that was made; NULL: none yet */
    size_t plan_bytes;   /* of it, that are counted in the allocator's heap */
    bool is_in_force;    /* its memory is held, and there is what follows */
    zr_block_t **blocks; /* of entries' places, from the pool, while they are live; else NULL */
    bool is_paused;      /* it is not, and will be at the next mark */
    zr_block_t *held[ZR_REPLAY_N_TIERS];
    /* Late devices, by stream: without events where the plan does not have it. */
    zr_replay_fence_t fences[ZR_REPLAY_MAX_STREAMS + 1];

    size_t step;    /* of the last mark; 0: none yet */
    uint32_t scale; /* of what is allocated now; 0: none */
    /* The cursor. segment: of the plan, the last that was met; SIZE_MAX: none yet. */
    size_t segment, at, end;  /* events of the segment that are still to come: [at, end) */
    bool is_in_segment;       /* false: the last mark is not in the plan */
    bool has_left;            /* this step has not followed the plan */
    size_t n_live, n_overdue; /* entries */

    size_t n_divergent_in_row; /* steps */
    size_t n_plans_in_row;     /* without a step that followed one */
    bool is_warned;            /* that a step is too long */
    double search_seconds;
    zr_replay_search_t *search; /* for a lower plan than the one in force; NULL: none runs */
    zr_replay_statistics_t statistics;
} zr_replay_t;

/**
 * Look a request up in the plan.
 *
 * @param block_p  a live block without tag, lifetime and request; NULL: it is not in the plan
 * @return ZR_OK; ZR_ERR_DEVICE when a stream could not be made to wait; ZR_ERR_MEMORY: none for a
 *         block
 */
ZR_NODISCARD zr_status_t zr_replay_take(zr_allocator_t *allocator,
                                        const zr_allocation_request_t *request, size_t block_bytes,
                                        zr_block_t **block_p);
/** Write an allocation of a lifetime that repeats onto the tape. */
void zr_replay_allocated(zr_replay_t *replay, const zr_allocation_request_t *request,
                         zr_block_t *block);
/** And its free. */
void zr_replay_freed(zr_replay_t *replay, zr_block_t *block, zr_stream_t *stream);
/** The block of a live entry goes back to the pool. */
void zr_replay_drop_block(zr_allocator_t *allocator, size_t entry);
/** A block of the plan is nobody's from now on. ZR_ERR_DEVICE: waited for the stream instead. */
ZR_NODISCARD zr_status_t zr_replay_give(zr_allocator_t *allocator, zr_block_t *block,
                                        zr_stream_t *stream);
/** Follow a mark. The lock is held, and given up while a plan is made. */
void zr_replay_mark(zr_allocator_t *allocator, const zr_mark_t *mark);
/**
 * Give the plan up and make its memory the arena's: what is live lives on there.
 *
 * @return whether there was one; false also when there is no memory for the blocks
 */
bool zr_replay_drop(zr_allocator_t *allocator);
/** Give it up when the step has left it and a request of the step would need more memory. */
bool zr_replay_yield(zr_allocator_t *allocator, const zr_allocation_request_t *request);
/** End the search for a lower plan, if one runs. */
bool zr_replay_end_search(zr_replay_t *replay);
/** With the lock held; `replay` is gone then. */
void zr_replay_destroy(zr_allocator_t *allocator);

/** Whether a request is one that may repeat from step to step. */
static inline bool zr_replay_covers(const zr_allocation_request_t *request) {
    return request->lifetime != ZR_LIFETIME_PERSISTENT && request->size_bytes > 0;
}
