/*
 * Replay: training repeats itself, so after one step the allocator knows the size and the life of
 * every tensor that does not outlive the step, and can place them so that the peak is as low as
 * it can be.
 *
 * Every step is written down: what was allocated and freed, in which segment (zr_allocator_mark).
 * After the first, and again after it changed, offsets are planned (allocator/planner.h), memory
 * for the whole plan is mapped once, and from then on an allocation is a look at the next line of
 * the plan: no search, and no call into the device. What does not match the plan is served as
 * before, from the holes of its lifetime's class, and counted.
 *
 * Memory passes from one tensor to the next in the order of the program. Where their streams
 * differ, the later one waits for the earlier one on the device, by an event; the CPU waits for
 * nothing. Places, peaks and bits are therefore the same on every run.
 */
#pragma once

#include <stdint.h>

#include "allocator/allocator.h"
#include "allocator/planner.h"

ZR_BEGIN_C

/** Allocations of a step that are planned at most, unless told otherwise. */
#define ZR_REPLAY_MAX_ALLOCATIONS ((size_t)1 << 20)

typedef struct zr_replay_options {
    /* What another stream than this one frees is kept for a segment more than it must be, so
     * that computing need not wait for what runs beside it. NULL: nothing is. */
    zr_stream_t *compute;
    size_t max_allocations; /* of a step; more, and it is not planned, which is said; 0: default */
    double search_seconds;  /* to look for a lower plan beside training, where one is possible;
                               0: never, and plans are the same on every run */
} zr_replay_options_t;

/** No compute stream, the default number of allocations, no search beside training. */
zr_replay_options_t zr_replay_options_default(void);

/**
 * Look plans up among those that others have made, before each is made: for whoever simulates many
 * runs. For the next replay that starts.
 *
 * @param plans  borrowed for as long as the allocator replays; NULL: none
 */
void zr_allocator_use_plans(zr_allocator_t *allocator, zr_plan_cache_t *plans);

/**
 * Learn the steps that marks tell of from now on, and allocate by plan.
 *
 * @param options  NULL means the defaults; borrowed for the call
 * @return ZR_OK; ZR_ERR_STATE when it is on already; ZR_ERR_MEMORY
 *
 * Planned are allocations of the lifetimes step, micro_batch, unit and collective that are freed
 * in the step they were made in. The streams that they name, in requests and frees, must exist
 * until zr_allocator_replay_stop: each step begins by recording where they are.
 * Threads: thread-safe; planning runs in zr_allocator_mark, at the first mark of a new step,
 * without the lock. Steps that several threads allocate in repeat only if they take turns in the
 * same order.
 */
ZR_NODISCARD zr_status_t zr_allocator_replay_start(zr_allocator_t *allocator,
                                                   const zr_replay_options_t *options);

/**
 * Forget the plan, and allocate as without one from now on. What is live lives on. Waits for the
 * streams that planned memory was freed behind. Nothing happens when replay is not on, or, with
 * a warning, when there is no memory for metadata of what is live.
 * Threads: not while another thread is in zr_allocator_mark, which may be planning.
 */
void zr_allocator_replay_stop(zr_allocator_t *allocator);

/**
 * The step has ended, and what is allocated until the next mark belongs to no step: an evaluation
 * between steps, for instance. The plan's memory is there for it meanwhile, and the
 * plan's again at the mark. Nothing happens when replay is not on, or between steps already.
 */
void zr_allocator_replay_pause(zr_allocator_t *allocator);

/** What the plan in force is for one tier. */
typedef struct zr_replay_plan {
    size_t n_allocations;  /* of a step */
    size_t max_live_bytes; /* the most bytes alive at once, as they are placed: rounded up */
    size_t bound_bytes;    /* no plan is lower */
    size_t height_bytes;   /* of this one */
} zr_replay_plan_t;

typedef struct zr_replay_statistics {
    bool is_on;
    bool has_plan;
    zr_replay_plan_t plans[ZR_N_TIERS];
    size_t n_segments;      /* of the plan */
    size_t n_plans;         /* made and taken since the start, the present one included */
    size_t n_lowered;       /* plans that a search beside training replaced by a lower one */
    size_t n_dropped;       /* plans given up within a step, because it needed their memory */
    size_t search_bytes;    /* that a search beside training had at most; counted nowhere else */
    double plan_seconds;    /* in all, without searches beside training */
    size_t n_steps;         /* that ended since the start */
    size_t n_clean_steps;   /* that followed the plan from the first to the last allocation */
    size_t n_planned;       /* allocations served by a plan, since the start */
    size_t n_unplanned;     /* that should have been, but did not match, since the start */
    size_t n_left_out;      /* that outlive their step, or have no stream, and are not planned */
    size_t last_clean_step; /* number of the mark; 0: none yet */
} zr_replay_statistics_t;

void zr_allocator_replay_statistics(zr_allocator_t *allocator,
                                    zr_replay_statistics_t *statistics_p);

/**
 * Tell of what scale that is which is allocated from now on, in sequences' length, say. For who
 * simulates steps that differ in sizes, and need not simulate all of them
 * (zr_allocator_replay_reach). Nothing happens when replay is not on.
 *
 * Where micro-batches of two scales make the same requests but for their sizes, so do those of
 * all scales between; and of two requests in the same place, the one of larger scale is no smaller.
 *
 * @param scale  to be told before and after each micro-batch; 0: sizes depend on none, as until
 *               it is told
 */
void zr_allocator_replay_scale(zr_allocator_t *allocator, uint32_t scale);

/** Scales of a micro-batch: none where least is above most. */
typedef struct zr_replay_reach {
    uint32_t least, most;
} zr_replay_reach_t;

/**
 * After the last allocation of a step: of what scales micro-batches may be in a step that is known
 * to follow the plan from the first to the last allocation. It would neither map nor give back
 * anything, and leave everything as it is. Where something has no place in the plan, and not always
 * the same size, nothing is known: it is put where there is room.
 *
 * @param reach_p  [n_micro_batches]
 * @return false when the step itself has not followed a plan; reach_p is left alone then
 */
bool zr_allocator_replay_reach(zr_allocator_t *allocator, zr_replay_reach_t *reach_p,
                               size_t n_micro_batches);

ZR_END_C
