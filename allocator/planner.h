/*
 * The offset planner: given the size and lifetime of every buffer, assign offsets such that buffers
 * that are live at the same time do not overlap, in as few bytes as possible.
 *
 * The peak of live bytes is a lower bound; good plans reach it. Greedy orders run first and take
 * milliseconds. If they miss the bound, a local search over orders and an exact search follow; the
 * exact search can also prove that no lower plan exists. Whenever the planner is stopped, the
 * result is valid and the best so far.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/base/log.h"

ZR_BEGIN_C

/** Maximum number of buffers in a plan. */
#define ZR_PLAN_MAX_BUFFERS ((size_t)1 << 24)
/** Largest alignment, and largest number of bytes of all buffers together. */
#define ZR_PLAN_MAX_ALIGNMENT ((size_t)1 << 40)
#define ZR_PLAN_MAX_BYTES ((size_t)1 << 62)

/** A buffer that is live at the times t with lower <= t < upper. Buffers whose lifetimes only touch
 * may overlap. */
typedef struct zr_plan_buffer {
    int64_t lower, upper; /* virtual time of any unit; lower < upper */
    size_t size_bytes;    /* 0 is fine */
    size_t alignment;     /* a power of two; 0 means 1 */
} zr_plan_buffer_t;

/** A cache of plans. */
typedef struct zr_plan_cache zr_plan_cache_t;

/**
 * @param max_bytes  size of the cache; the least recently used plan is dropped first
 * @return NULL: out of memory. Threads: thread-safe.
 */
zr_plan_cache_t *zr_plan_cache_create(size_t max_bytes);
/** The cache must not be in use. NULL and *cache == NULL are fine. */
void zr_plan_cache_destroy(zr_plan_cache_t **cache);

typedef struct zr_plan_options {
    zr_log_t log;
    /* Borrowed for the call; NULL: none. Not used with max_seconds or is_cancelled. Plans are the
     * same with and without it; a cached plan has the seconds of its first run. */
    zr_plan_cache_t *cache;
    /* Stop as soon as the height is at most this; 0: stop only at the proven minimum. */
    size_t capacity_bytes;
    double max_seconds; /* by `clock`; 0: no limit, and results do not depend on the clock */
    uint64_t max_steps; /* limit for both searches, in steps, for tests; 0: no limit */
    /* Called every few thousand steps; NULL: CLOCK_MONOTONIC, and never cancelled. */
    double (*clock)(void *context); /* seconds since an arbitrary start */
    bool (*is_cancelled)(void *context);
    void *context; /* for both functions; borrowed for the call */
} zr_plan_options_t;

/** At most one second, no capacity, no step limit, default log. */
zr_plan_options_t zr_plan_options_default(void);

typedef struct zr_plan_result {
    size_t max_live_bytes; /* peak of live bytes */
    size_t bound_bytes;    /* proven lower bound: max_live_bytes or more */
    size_t height_bytes;   /* height of this plan: the largest offset + size */
    double seconds;
    uint64_t n_steps;
    const char
        *strategy;   /* how the highest part of the plan was found; static: "size, first fit" */
    bool is_proven;  /* height_bytes == bound_bytes: there is no lower plan */
    bool is_stopped; /* a limit or the caller stopped it before the capacity or a proof was reached
                      */
} zr_plan_result_t;

/**
 * Plan the offsets of buffers.
 *
 * @param buffers    [n_buffers]; borrowed for the call
 * @param options    NULL means the defaults; borrowed for the call
 * @param offsets_p  [n_buffers], multiples of the alignments; set only on success
 * @param result_p   may be NULL
 * @return ZR_OK, also when the capacity was not reached: compare result_p->height_bytes;
 *         ZR_ERR_ARGUMENT for a lifetime with upper <= lower, an alignment that is not a power of
 *         two, or sizes whose sum exceeds ZR_PLAN_MAX_BYTES; ZR_ERR_MEMORY
 *
 * Without max_seconds and is_cancelled, the same input gives the same plan.
 * It starts no threads. The exact search needs up to 1 MiB of stack, and some tens of MiB for
 * visited states; other memory is proportional to the number of buffers. Threads: thread-safe.
 * Source: Moffitt 2023, "MiniMalloc", for canonical offsets, sections and dominance.
 */
ZR_NODISCARD zr_status_t zr_plan_offsets(const zr_plan_buffer_t *buffers, size_t n_buffers,
                                         const zr_plan_options_t *options, size_t *offsets_p,
                                         zr_plan_result_t *result_p);

/** The peak of live bytes; 0 for input that zr_plan_offsets refuses. */
size_t zr_plan_max_live(const zr_plan_buffer_t *buffers, size_t n_buffers);

ZR_END_C
