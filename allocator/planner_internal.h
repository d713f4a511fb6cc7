/*
 * The planner, for its own files.
 *
 * planner.c         checks the input, takes it apart, and spends the time on the highest part
 * planner_parts.c   taking apart: sections, buffers that live throughout, independent parts
 * planner_greedy.c  the portfolio of orders, and the local search over orders
 * planner_search.c  the exact search
 * planner_fold.c    one period for many identical micro-batches
 * plan_cache.c      plans that were made before
 *
 * Time is cut into sections: the largest sets of buffers that are alive at once, in order.
 * Two buffers overlap in time exactly if they share a section, so that sections are all that
 * is left of time after planner_parts.c.
 */
#pragma once

#include <pthread.h>

#include "allocator/planner.h"
#include "kernels/base/heap_internal.h"

/** A buffer of a part: sections first <= s < last. */
typedef struct zr_plan_item {
    uint32_t first, last;
    size_t size, alignment; /* size > 0 */
    int64_t lower, upper;   /* in the caller's virtual time */
    uint32_t source;        /* place in the caller's array */
} zr_plan_item_t;

/* Where the work stands, shared by all parts of one call. */
typedef struct zr_plan_clock {
    const zr_plan_options_t *options;
    double begin, end; /* end is infinite without a limit */
    uint64_t n_steps, max_steps;
    uint64_t next_look; /* n_steps at which the clock is looked at again */
    bool is_over;
} zr_plan_clock_t;

/** Seconds from some moment on, as the options have it. */
double zr_plan_clock_now(const zr_plan_clock_t *clock);
/** Count some steps; true when the work has to stop. */
bool zr_plan_clock_step(zr_plan_clock_t *clock, uint64_t n_steps);

typedef struct zr_plan_search zr_plan_search_t;
typedef struct zr_plan_order_search zr_plan_order_search_t;

/** An independent problem: no buffer outside shares a section with one inside. */
typedef struct zr_plan_part {
    zr_heap_t *heap;       /* of the run, and of all that its parts have; borrowed */
    zr_plan_item_t *items; /* by first, last, size, alignment; borrowed from zr_plan_parts_t */
    size_t n_items;
    size_t *offsets; /* [n_items] the best plan so far, without base; likewise borrowed */
    uint32_t n_sections;
    size_t base;                   /* what lies below: buffers that live throughout */
    size_t bound;                  /* no plan of the part is lower */
    size_t height;                 /* of the best plan; SIZE_MAX before there is one */
    const char *strategy;          /* what found it */
    size_t twin;                   /* a part before it that is the same but for base; or itself */
    unsigned round;                /* of the searches */
    double stride;                 /* how much of what is above the target to try to save */
    zr_plan_search_t *search;      /* created when first needed */
    zr_plan_order_search_t *order; /* likewise */
} zr_plan_part_t;

/* ---- planner_parts.c ---------------------------------------------------------------- */

typedef struct zr_plan_parts {
    zr_heap_t *heap; /* borrowed */
    zr_plan_item_t *items;
    size_t *offsets; /* alongside items */
    size_t n_items;  /* without those of size 0 */
    zr_plan_part_t *parts;
    size_t n_parts, capacity;
    size_t settled_height; /* of what lies below the parts */
    size_t max_live_bytes;
} zr_plan_parts_t;

/**
 * Take apart what has been checked. Buffers that live throughout a part can lie below all
 * others of it at no loss; what they leave may fall apart further.
 */
ZR_NODISCARD zr_status_t zr_plan_parts_create(zr_heap_t *heap, const zr_plan_buffer_t *buffers,
                                              size_t n_buffers, zr_plan_parts_t *parts_p);

/** The most bytes that are alive at once, of input that has been checked. */
ZR_NODISCARD zr_status_t zr_plan_find_max_live(zr_heap_t *heap, const zr_plan_buffer_t *buffers,
                                               size_t n_buffers, size_t *max_live_p);

/* ---- planner_greedy.c --------------------------------------------------------------- */

/** Try the portfolio of orders until the part's height is at most `target`. */
ZR_NODISCARD zr_status_t zr_plan_greedy(zr_plan_part_t *part, size_t target,
                                        zr_plan_clock_t *clock);

/** Change the best order at random for some steps, or until the height is at most `target`. */
ZR_NODISCARD zr_status_t zr_plan_order_improve(zr_plan_part_t *part, size_t target,
                                               uint64_t n_steps, zr_plan_clock_t *clock);

/* ---- planner_search.c --------------------------------------------------------------- */

/** Parts larger than this are left to the orders. */
#define ZR_PLAN_MAX_SEARCH ((size_t)2048)

/**
 * Look for a plan of at most `capacity`, which becomes the part's; when it is shown that
 * there is none, the part's bound rises.
 *
 * @param round    chooses the heuristic order; what was learnt in earlier rounds is kept
 * @param n_steps  limit of this call
 */
ZR_NODISCARD zr_status_t zr_plan_search(zr_plan_part_t *part, size_t capacity, unsigned round,
                                        uint64_t n_steps, zr_plan_clock_t *clock);

/* ---- planner_fold.c ----------------------------------------------------------------- */

/**
 * Where the part repeats itself with a period, plan one period for all, and keep the result
 * if it is lower than what the part has.
 */
ZR_NODISCARD zr_status_t zr_plan_fold(zr_plan_part_t *part, size_t target, unsigned depth,
                                      zr_plan_clock_t *clock);

/* ---- plan_cache.c -------------------------------------------------------------------- */

/** What somebody asks for: who finds nothing makes it, and others who ask for the same wait. */
typedef struct zr_plan_question {
    struct zr_plan_question *next; /* of those that are being made */
    const zr_plan_options_t *options;
    const zr_plan_buffer_t *buffers;
    size_t n_buffers;
    uint64_t hash; /* set when it is asked */
} zr_plan_question_t;

typedef struct zr_plan_answer {
    zr_plan_result_t result;
    size_t heap_bytes; /* that it took to make it, at most */
} zr_plan_answer_t;

struct zr_plan_cache {
    pthread_mutex_t lock;   /* guards what follows; under the allocator's */
    pthread_cond_t is_made; /* something that was asked for, or it could not be */
    struct zr_plan_cached *first;
    zr_plan_question_t *asked; /* being made; their owners' */
    size_t size_bytes, max_bytes;
    struct zr_shared *shared; /* tables that have users: see shared_internal.h */
};

/** Whether there is a cache, and the options have one answer for each input. */
bool zr_plan_cache_knows(const zr_plan_options_t *options);
/** The plan, if it was made. False: it was not, and the caller makes it, and then calls
 * zr_plan_cache_end. */
bool zr_plan_cache_find(zr_plan_question_t *question, size_t *offsets_p,
                        zr_plan_answer_t *answer_p);
/** Keep a plan, where there is memory for it; NULL: it could not be made. */
void zr_plan_cache_end(zr_plan_question_t *question, const size_t *offsets,
                       const zr_plan_answer_t *answer);

/* ---- planner.c ---------------------------------------------------------------------- */

/** zr_plan_offsets, whose memory is counted in that of a heap, or NULL. */
ZR_NODISCARD zr_status_t zr_plan_offsets_in(zr_heap_t *counted_in, const zr_plan_buffer_t *buffers,
                                            size_t n_buffers, const zr_plan_options_t *options,
                                            size_t *offsets_p, zr_plan_result_t *result_p);

/** The same of checked input, on a clock that runs; `depth` counts foldings. */
ZR_NODISCARD zr_status_t zr_plan_run(zr_heap_t *counted_in, const zr_plan_buffer_t *buffers,
                                     size_t n_buffers, size_t capacity, unsigned depth,
                                     zr_plan_clock_t *clock, size_t *offsets_p,
                                     zr_plan_result_t *result_p);

/* ---- shared ------------------------------------------------------------------------- */

static inline size_t zr_plan_align(size_t offset, size_t alignment) {
    return (offset + alignment - 1) & ~(alignment - 1);
}

/** A number that depends on nothing but the state; splitmix64. */
static inline uint64_t zr_plan_random(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}
