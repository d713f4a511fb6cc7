/*
 * The largest size of a family that fits, found by planning.
 */
#ifndef EXAMPLES_CAPACITY_SEARCH_H
#define EXAMPLES_CAPACITY_SEARCH_H

#include "examples/capacity/options.h"
#include "examples/train/plan.h"

/** One combination of what is swept: the machine and the budgets. */
typedef struct capacity_case {
    train_options_t run; /* resolved for its ranks */
    zr_hardware_t hardware;
    bool swept[CAPACITY_N_AXES]; /* by this value; else the run's own */
} capacity_case_t;

/** What is asked for: one capacity. */
typedef struct capacity_place {
    int stage;
    capacity_where_t optimizer, params;
} capacity_place_t;

/** "none", "cpu", "nvme", "auto". */
const char *capacity_where_name(capacity_where_t where);

typedef struct capacity_search {
    const capacity_options_t *options;
    const capacity_case_t *its_case;
    capacity_place_t place;
    const zr_log_t *log;
    const atomic_bool *stop; /* NULL: never */
    size_t n_plans;          /* so far */

    /* What was found. */
    bool found;          /* a size fits */
    bool has_next;       /* there is a larger size */
    bool is_monotone;    /* of all that was planned, no size fits that is larger than one that
                            does not, in any one placement */
    size_t index;        /* of the largest that fits */
    train_options_t run; /* that trains it */
    zr_run_plan_t plan;  /* of it */
    zr_model_shape_t next_shape;            /* of the next larger size */
    train_options_t next_run;               /* as near as it comes to training that */
    zr_run_fit_t next;                      /* it does not fit */
    zr_run_size_t sizes[ZR_RUN_MOST_SIZES]; /* by size */
    size_t n_sizes;
} capacity_search_t;

/**
 * Find the largest size of the family (zr_run_find_largest).
 *
 * @param search  in: its first six fields; out: the others
 * @return as zr_run_find_largest
 */
ZR_NODISCARD zr_status_t capacity_search(capacity_search_t *search);

#endif
