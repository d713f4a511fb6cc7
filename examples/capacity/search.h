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

/** A size that was planned and fits. */
typedef struct capacity_size {
    size_t n_params;
    double step_seconds;
} capacity_size_t;

#define CAPACITY_MOST_SIZES 64

typedef struct capacity_search {
    const capacity_options_t *options;
    const capacity_case_t *its_case;
    capacity_place_t place;
    const zr_log_t *log;
    const atomic_bool *stop; /* NULL: never */
    size_t n_plans;          /* so far */

    /* What was found. */
    bool found;               /* a size fits */
    bool has_next;            /* there is a larger size */
    bool is_monotone;         /* of all that was planned, no size fits that is larger than one that
                                 does not, in any one placement */
    size_t index;             /* of the largest that fits */
    train_options_t run;      /* that trains it */
    gpt_plan_t plan;          /* of it */
    gpt_shape_t next_shape;   /* of the next larger size */
    train_options_t next_run; /* as near as it comes to training that */
    plan_one_t next;          /* it does not fit */
    capacity_size_t sizes[CAPACITY_MOST_SIZES]; /* by size */
    size_t n_sizes;
} capacity_search_t;

/**
 * Find the largest size.
 *
 * Sizes are doubled until one does not fit, and halved in between; then the next
 * CAPACITY_CHECKED larger ones are planned as well, and where one of them fits, which the rule of
 * the family makes possible, the search goes on from there. Where gradients and inputs of layers
 * may wait in several places, all are tried.
 *
 * @param search  in: its first six fields; out: the others
 * @return ZR_OK, also when none fits; ZR_ERR_STATE: `stop` was set; what a plan fails for, other
 *         than memory: logged
 */
ZR_NODISCARD zr_status_t capacity_search(capacity_search_t *search);

#define CAPACITY_CHECKED 8

#endif
