/*
 * The offset planner: given the size and the life of every buffer in advance, give each a
 * place such that no two that live at once overlap, in as few bytes as possible.
 *
 * No plan is lower than the most bytes that are alive at once; good plans reach that. Greedy
 * orders come first, in milliseconds; what they miss is left to a local search over orders
 * and to an exact search, which can also prove that there is no lower plan. A plan that was
 * found is kept: whenever the planner is stopped, the result is valid and the best so far.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/base/log.h"

ZR_BEGIN_C

/** Most buffers of one plan. */
#define ZR_PLAN_MAX_BUFFERS ((size_t)1 << 24)
/** Largest alignment, and largest number of bytes of all buffers together. */
#define ZR_PLAN_MAX_ALIGNMENT ((size_t)1 << 40)
#define ZR_PLAN_MAX_BYTES ((size_t)1 << 62)

/** A buffer that lives at the times t with lower <= t < upper. Two that only touch may overlap. */
typedef struct zr_plan_buffer {
    int64_t lower, upper; /* virtual time of any unit; lower < upper */
    size_t size_bytes;    /* 0 is fine */
    size_t alignment;     /* a power of two; 0 means 1 */
} zr_plan_buffer_t;

/** Plans that were made, for whoever asks for the same ones again. */
typedef struct zr_plan_cache zr_plan_cache_t;

/**
 * @param max_bytes  of what is kept; beyond it, what was not used for longest goes
 * @return NULL: no memory. Threads: a cache may be used by several at a time.
 */
zr_plan_cache_t *zr_plan_cache_create(size_t max_bytes);
/** Nobody may use it any more. NULL and *cache == NULL are fine. */
void zr_plan_cache_destroy(zr_plan_cache_t **cache);

typedef struct zr_plan_options {
    zr_log_t log;
    /* Borrowed for the call; NULL: none. Not used with max_seconds or is_cancelled. A plan is the
     * same as without it; its seconds are those of the first time. */
    zr_plan_cache_t *cache;
    /* Stop as soon as the height is at most this; 0: not before the least height is known. */
    size_t capacity_bytes;
    double max_seconds; /* by `clock`; 0: no limit, and the clock is not looked at to decide */
    uint64_t max_steps; /* work of both searches, in steps; what a test sets; 0: no limit */
    /* Both are asked every few thousand steps; may be NULL, then CLOCK_MONOTONIC and never. */
    double (*clock)(void *context); /* seconds from some moment on */
    bool (*is_cancelled)(void *context);
    void *context; /* of both; borrowed for the call */
} zr_plan_options_t;

/** At most one second, no capacity, no limit of steps, default log. */
zr_plan_options_t zr_plan_options_default(void);

typedef struct zr_plan_result {
    size_t max_live_bytes; /* the most bytes alive at once */
    size_t bound_bytes;    /* no plan is lower: max_live_bytes, or more where that is proven */
    size_t height_bytes;   /* of this plan: the largest offset + size */
    double seconds;
    uint64_t n_steps;
    const char *strategy; /* what found the plan (its highest part), static: "size, first fit" */
    bool is_proven;       /* height_bytes == bound_bytes: there is no lower plan */
    bool is_stopped;      /* a limit or the caller ended it before the capacity, or proof */
} zr_plan_result_t;

/**
 * Plan the offsets of some buffers.
 *
 * @param buffers    [n_buffers]; borrowed for the call
 * @param options    NULL means the defaults; borrowed for the call
 * @param offsets_p  [n_buffers], multiples of the alignments; set only on success
 * @param result_p   may be NULL
 * @return ZR_OK, also when the capacity was not reached: compare result_p->height_bytes;
 *         ZR_ERR_ARGUMENT for a life that does not end after it begins, an alignment that is
 *         no power of two, or sizes whose sum is above ZR_PLAN_MAX_BYTES; ZR_ERR_MEMORY
 *
 * Without max_seconds and is_cancelled, the same input gives the same plan.
 * It starts no threads. The exact search needs up to 1 MiB of stack, and some tens of MiB for
 * what it remembers; the rest is in proportion to the buffers.
 * Threads: thread-safe. Source: Moffitt 2023, "MiniMalloc", for canonical offsets, sections
 * and dominance.
 */
ZR_NODISCARD zr_status_t zr_plan_offsets(const zr_plan_buffer_t *buffers, size_t n_buffers,
                                         const zr_plan_options_t *options, size_t *offsets_p,
                                         zr_plan_result_t *result_p);

/** The most bytes that are alive at once; 0 for input that zr_plan_offsets refuses. */
size_t zr_plan_max_live(const zr_plan_buffer_t *buffers, size_t n_buffers);

ZR_END_C
