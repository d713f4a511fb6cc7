/*
 * How large a model trains: the largest of a family that fits, found by planning.
 */
#pragma once

#include "zero/plan/run_search.h"

ZR_BEGIN_C

/** Models in a row, each with more parameters than the one before. */
typedef struct zr_run_family {
    /* Number `index`, from 0: the request's model, and seq where it is the model's. False: there
       are not so many. */
    bool (*set_model)(const void *context, size_t index, zr_run_request_t *run);
    /* Parameters of it; 0: there are not so many. May be NULL: then sizes are doubled until one
       does not fit, which takes more plans. */
    size_t (*n_params)(const void *context, size_t index);
    const void *context; /* borrowed */
} zr_run_family_t;

/** Where gradients and inputs of blocks wait may be left open: all are tried. */
typedef struct zr_run_largest_open {
    zr_run_open_t places; /* that `auto` chooses */
    bool gradients;       /* of offloaded state, where its place is not auto's */
    bool activations;     /* with recomputation */
    bool has_drives;      /* activations may wait there */
} zr_run_largest_open_t;

/** A size that was planned and fits. */
typedef struct zr_run_size {
    size_t n_params;
    double step_seconds;
} zr_run_size_t;

#define ZR_RUN_MOST_SIZES 64
/** Sizes beyond the largest that are planned, to see whether one of them fits all the same. */
#define ZR_RUN_SIZES_CHECKED 8

typedef struct zr_run_largest {
    /* In. */
    zr_run_family_t family;
    zr_run_request_t run; /* but for its model and its log; what is open has its usual value */
    zr_run_largest_open_t open;
    double least_tokens_per_s; /* of all ranks: what is slower counts as too large; 0: none is */
    size_t n_smaller; /* sizes that are planned besides, each of about half of the one before,
                         as the largest is trained */
    const zr_log_t *log;
    bool (*is_stopped)(const void *context); /* asked before each size; NULL: never */
    const void *stop_context;
    size_t n_plans; /* in and out: so far */

    /* Out. */
    bool found;       /* a size fits */
    bool has_next;    /* there is a larger size */
    bool is_monotone; /* of all that was planned, no size fits that is larger than one that does
                         not, in any one placement */
    size_t index;     /* of the largest that fits */
    zr_run_request_t largest;  /* that trains it */
    zr_run_plan_t plan;        /* of it */
    zr_run_request_t next_run; /* has_next: as near as it comes to training the next larger size */
    zr_run_fit_t next;         /* it does not fit, or is too slow */
    zr_run_size_t sizes[ZR_RUN_MOST_SIZES]; /* by size */
    size_t n_sizes;
} zr_run_largest_t;

/**
 * Find the largest size.
 *
 * What a plan needs tells about where the largest is; sizes near it are planned until one fits and
 * the next does not. Then the next ZR_RUN_SIZES_CHECKED larger ones are planned as well, but for
 * those that no memory of these budgets could hold, and where one of them fits, which the rule of a
 * family may make possible, the search goes on from there. Where auto chooses, it looks for any
 * placement that fits, and of the largest for the fastest.
 *
 * @return ZR_OK, also when none fits; ZR_ERR_STATE: it was stopped; what a plan fails for, other
 *         than memory: logged
 */
ZR_NODISCARD zr_status_t zr_run_find_largest(zr_run_largest_t *search);

ZR_END_C
