/*
 * How large a model trains: the largest of a family that fits, found by planning.
 */
#pragma once

#include "zero/plan/run_search.h"

ZR_BEGIN_C

/** A sequence of models, each with more parameters than the previous one. */
typedef struct zr_run_family {
    /* Set the request to model `index`, from 0, and its seq if the model determines it. False:
     * index is out of range. */
    bool (*set_model)(const void *context, size_t index, zr_run_request_t *run);
    /* Its number of parameters; 0: index is out of range. May be NULL: then sizes are doubled until
     * one does not fit, which takes more plans. */
    size_t (*n_params)(const void *context, size_t index);
    const void *context; /* borrowed */
} zr_run_family_t;

/** Placements that are left open: the search tries all of them. */
typedef struct zr_run_largest_open {
    zr_run_open_t places; /* chosen by `auto` */
    bool gradients; /* gradients of offloaded state, if the place of the state is not chosen by auto
                     */
    bool activations; /* with recomputation */
    bool has_drives;  /* activations may wait there */
} zr_run_largest_open_t;

/** A size that was planned and fits in memory. */
typedef struct zr_run_size {
    size_t n_params;
    double step_seconds;
} zr_run_size_t;

#define ZR_RUN_MOST_SIZES 64
/** How many sizes beyond the largest are planned, in case one of them fits. */
#define ZR_RUN_SIZES_CHECKED 8

typedef struct zr_run_largest {
    /* In. */
    zr_run_family_t family;
    zr_run_request_t run; /* without model and log; open settings have their default values */
    zr_run_largest_open_t open;
    double least_tokens_per_s; /* tokens/s of all ranks: slower models count as too large; 0: no
                                  limit */
    size_t n_smaller; /* smaller sizes that are planned too, each about half the previous one, with
                         the settings of the largest */
    const zr_log_t *log;
    bool (*is_stopped)(const void *context); /* asked before each size; NULL: never */
    const void *stop_context;
    size_t n_plans; /* in and out: plans made so far */

    /* Out. */
    bool found;       /* a size fits */
    bool has_next;    /* there is a larger size */
    bool is_monotone; /* in every placement, no planned size fits that is larger than one that does
                         not fit */
    size_t index;     /* index of the largest size that fits */
    zr_run_request_t largest; /* the run that trains it */
    zr_run_plan_t plan;       /* its plan */
    zr_run_request_t
        next_run;      /* has_next: the run that comes nearest to training the next larger size */
    zr_run_fit_t next; /* the plan of next_run: it does not fit, or is too slow */
    zr_run_size_t sizes[ZR_RUN_MOST_SIZES]; /* by size */
    size_t n_sizes;
} zr_run_largest_t;

/**
 * Find the largest size.
 *
 * The memory need of a plan gives an estimate of the largest size; sizes near it are planned until
 * one fits and the next does not. Then the next ZR_RUN_SIZES_CHECKED larger sizes are planned too,
 * except those whose need exceeds all budgets together. If one of them fits, the search continues
 * from there. With auto, any placement that fits is accepted; only for the largest size the fastest
 * placement is searched.
 *
 * @return ZR_OK, also when none fits; ZR_ERR_STATE: it was stopped; errors of a plan other than
 *         lack of memory, logged
 */
ZR_NODISCARD zr_status_t zr_run_find_largest(zr_run_largest_t *search);

ZR_END_C
