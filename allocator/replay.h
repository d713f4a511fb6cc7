/*
 * Replay: training steps repeat, so after one step the allocator knows the size and lifetime of
 * every tensor that does not outlive the step, and can plan their placement for the lowest peak.
 *
 * Every step is recorded: allocations and frees, by segment (zr_allocator_mark). After the first
 * step, and after every change, offsets are planned (allocator/planner.h) and memory for the whole
 * plan is mapped once. From then on an allocation takes the next entry of the plan, without a
 * search or a device call. Allocations that do not match the plan are placed as without a plan, in
 * their lifetime's class, and counted.
 *
 * Memory passes from one tensor to the next in the order of the program. If their streams differ,
 * the later one waits for the earlier one on the device, by an event; the CPU does not wait.
 * Offsets, peaks and results are therefore the same on every run.
 */
#pragma once

#include <stdint.h>

#include "allocator/allocator.h"
#include "allocator/planner.h"

ZR_BEGIN_C

/** Default limit of planned allocations per step. */
#define ZR_REPLAY_MAX_ALLOCATIONS ((size_t)1 << 20)
/** Steps of at least so many units are long: see zr_replay_options_t.is_as_long. */
#define ZR_REPLAY_LONG_UNITS ((size_t)2048)

typedef struct zr_replay_options {
    /* Memory freed by any other stream is kept for one more segment than needed, so that this
     * stream need not wait for concurrent streams. NULL: off. */
    zr_stream_t *compute;
    size_t max_allocations; /* per step; a step with more is not planned, which is logged; 0:
                               default */
    /* In long steps streams wait alike in each unit, at some cost in time, for what others freed
     * last anywhere. True: also in this one, which stands for a long one, and of whose plan nobody
     * asks how low it is. */
    bool is_as_long;
    double search_seconds; /* time to search for a lower plan concurrently with training, if one is
                              possible; 0: never, and plans are the same on every run */
} zr_replay_options_t;

/** No compute stream, the default number of allocations, no concurrent search. */
zr_replay_options_t zr_replay_options_default(void);

/** A hash of the places that were handed out since the last call: where it is that of a micro-batch
 * before, what comes after these needs no more. Threads: any. */
uint64_t zr_allocator_take_places(zr_allocator_t *allocator);

/**
 * Use a cache of plans that is shared with other allocators, for programs that simulate many runs.
 * Takes effect at the next replay start.
 *
 * @param plans  borrowed for as long as the allocator replays; NULL: none
 */
void zr_allocator_use_plans(zr_allocator_t *allocator, zr_plan_cache_t *plans);

/**
 * Share tables with the other allocators of this process: those of plans, and what runtimes know of
 * parameters (zr_runtime_commit). Of those that plan the same step, one makes the plan, while the
 * others wait, and all read it. Each counts a part. Takes effect at the next plan, or commit. A
 * plan that is shared has no reach (zr_allocator_replay_reach).
 *
 * @param plans         where they are found; borrowed until the runtime, or the allocator, is
 *                      destroyed. NULL: nothing is shared, but counted as if it was, for
 * simulations of one of them
 * @param n_allocators  that share; at least 1
 */
void zr_allocator_share_tables(zr_allocator_t *allocator, zr_plan_cache_t *plans,
                               size_t n_allocators);

/**
 * Record steps from now on, as given by marks, and allocate by plan.
 *
 * @param options  NULL means the defaults; borrowed for the call
 * @return ZR_OK; ZR_ERR_STATE when it is on already; ZR_ERR_MEMORY
 *
 * Allocations with the lifetimes step, micro_batch, unit and collective are planned if they are
 * freed in the step in which they were made. Their streams, in requests and frees, must exist until
 * zr_allocator_replay_stop: each step begins with recording an event on them. Threads: thread-safe;
 * planning runs in zr_allocator_mark, at the first mark of a new step, without the lock. Steps with
 * allocations from several threads repeat only if the threads allocate in the same order.
 */
ZR_NODISCARD zr_status_t zr_allocator_replay_start(zr_allocator_t *allocator,
                                                   const zr_replay_options_t *options);

/**
 * Drop the plan, and allocate without one from now on. Live allocations stay valid. Waits for
 * streams with pending frees of planned memory. Does nothing if replay is off, or, with a warning,
 * if there is no memory for metadata of live allocations. Threads: not while another thread is in
 * zr_allocator_mark, which may be planning.
 */
void zr_allocator_replay_stop(zr_allocator_t *allocator);

/**
 * The step has ended, and allocations until the next mark belong to no step, for example an
 * evaluation between steps. They may use the plan's memory until the mark. Does nothing if replay
 * is off or the step has ended already.
 */
void zr_allocator_replay_pause(zr_allocator_t *allocator);

/** The current plan of one tier. */
typedef struct zr_replay_plan {
    size_t n_allocations;  /* per step */
    size_t max_live_bytes; /* peak of live bytes, rounded up as placed */
    size_t bound_bytes;    /* proven lower bound */
    size_t height_bytes;   /* height of this plan */
} zr_replay_plan_t;

typedef struct zr_replay_statistics {
    bool is_on;
    bool has_plan;
    zr_replay_plan_t plans[ZR_N_TIERS];
    size_t n_segments;    /* in the plan */
    size_t n_plans;       /* plans used since the start, including the current one */
    size_t n_lowered;     /* plans replaced by a lower one from the concurrent search */
    size_t n_dropped;     /* plans dropped within a step, because it needed their memory */
    size_t search_bytes;  /* peak memory of the concurrent search; not counted elsewhere */
    double plan_seconds;  /* total, without concurrent searches */
    size_t n_steps;       /* steps ended since the start */
    size_t n_clean_steps; /* steps that followed the plan from the first to the last allocation */
    size_t n_planned;     /* allocations served by a plan, since the start */
    size_t n_unplanned;   /* allocations that should have been planned but did not match, since the
                             start */
    size_t
        n_left_out; /* allocations not planned because they outlive their step or have no stream */
    size_t last_clean_step; /* step number; 0: none yet */
} zr_replay_statistics_t;

void zr_allocator_replay_statistics(zr_allocator_t *allocator,
                                    zr_replay_statistics_t *statistics_p);

/**
 * Set the scale of the following allocations, such as the sequence length. For programs that
 * simulate steps that differ only in sizes and want to skip some (zr_allocator_replay_reach). Does
 * nothing if replay is off.
 *
 * Assumption: if micro-batches of two scales make the same requests except for sizes, so do all
 * scales in between; and sizes do not decrease with the scale.
 *
 * @param scale  to be set before and after each micro-batch; 0, the initial value: sizes do not
 *               depend on a scale
 */
void zr_allocator_replay_scale(zr_allocator_t *allocator, uint32_t scale);

/** A range of scales of a micro-batch; empty if least > most. */
typedef struct zr_replay_reach {
    uint32_t least, most;
} zr_replay_reach_t;

/**
 * After the last allocation of a step: the range of scales for which a step is known to follow the
 * plan completely. Such a step maps and unmaps nothing and leaves the same state. The range is
 * empty if an unplanned allocation varies in size, because its placement depends on free memory.
 *
 * @param reach_p  [n_micro_batches]
 * @return false if the step itself did not follow a plan; reach_p is not set then
 */
bool zr_allocator_replay_reach(zr_allocator_t *allocator, zr_replay_reach_t *reach_p,
                               size_t n_micro_batches);

ZR_END_C
