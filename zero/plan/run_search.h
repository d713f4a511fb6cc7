/*
 * Search by planning: the placement with the fastest step, and the best of many plans.
 */
#pragma once

#include "zero/plan/run_plan.h"

ZR_BEGIN_C

/* ---- placement ------------------------------------------------------------------------------- */

/** Settings that `auto` may choose. */
typedef struct zr_run_open {
    bool optimizer;   /* where optimizer state is stored, and how much of it */
    bool update_on;   /* with optimizer: whether offloaded state is updated on a GPU, if the run
                         leaves   that open and it is faster; false: on the host */
    bool params;      /* the same for parameters, at stage 3 */
    bool gradients;   /* where gradients of offloaded state wait, and how many */
    bool activations; /* with recomputation: where inputs of blocks wait, and how many */
    /* zr_run_search and zr_run_find_largest plan each value and take the fastest that fits. The
     * run's own values are ZR_ORDER_MICRO_BATCH and ZR_UPDATE_AT_END. */
    bool order, update_at;
    bool is_enough; /* accept any placement that fits, without searching for a faster one */
} zr_run_open_t;

/**
 * Choose the open placements of a run, by planning many of them.
 *
 * Optimizer state, parameters, gradients and activations are divided among all tiers at once
 * (drives: if the run's nvme.paths names some), so that the step is as fast as data movement
 * allows. The division is computed from one plan of the run and corrected until a plan within the
 * budgets confirms it. An alternative that keeps parameters on the device before state is planned
 * too; the faster one is taken.
 *
 * @param run        in and out: its config, resolved, with a stage. If nothing fits, it gets the
 *                   placement with the smallest need
 * @param n_plans_p  increased by the number of plans made
 * @return ZR_OK, also when nothing fits; what a plan fails for, other than memory: logged
 */
ZR_NODISCARD zr_status_t zr_run_place(zr_run_request_t *run, const zr_run_open_t *open,
                                      const zr_log_t *log, size_t *n_plans_p);

/* ---- search ---------------------------------------------------------------------------------- */

/** The request of a search: a run with some settings left open. */
typedef struct zr_run_ask {
    zr_run_request_t run; /* its log is not used; open settings have their default values */
    zr_run_open_t places; /* placements that `auto` chooses, for each plan */
    /* Settings that are tried with all values. */
    bool stage_open, optimizer_open, params_open, recompute_open, micro_batch_open;
    bool tries_never; /* recompute_open: also ZR_RECOMPUTE_NEVER */
    bool group_open;  /* sizes of groups that share one sharded copy */
    int least_stage;  /* smallest stage that is tried */
    /* Of models with ZR_REPLAY_LONG_UNITS equal blocks or more, plans that are not recommended,
     * nor, where none fits, the nearest, are told from plans of fewer blocks, and is_exact says so.
     * Has no effect where a placement or an order is open. */
    bool folds;
    bool has_drives; /* there are drives, even if config.nvme.paths names none */
    void (*progress)(void *context,
                     size_t n_plans); /* called after each plan from any of the search's threads,
                                         one at a time; may be NULL */
    void *progress_context;
    size_t n_threads; /* planning threads; 0: one per core. Results do not depend on it */
} zr_run_ask_t;

/** One plan: the values of the open settings, and the result. */
typedef struct plan_row {
    int group_size; /* ranks that share one sharded copy; -1: all */
    int stage;
    zr_offload_device_t optimizer, params; /* with auto: the placement that was chosen */
    zr_recompute_t recompute;
    size_t micro_batch;
    zr_offload_device_t activations; /* where they wait if open, likewise; else the run's */
    size_t activations_on_device, activations_in_host;
    zr_step_order_t order;    /* the one planned if open; else the run's */
    zr_update_at_t update_at; /* likewise */

    zr_config_t config; /* complete and resolved; drives are "." if none were named */
    zr_run_fit_t one;
    bool is_exact;       /* planned with all blocks */
    double tokens_per_s; /* if it fits: tokens/s of all ranks */
} zr_run_row_t;

typedef struct plan_rows {
    /* Owned. Order: one group before several; within these, unsharded, sharded, offloaded. */
    zr_run_row_t *all;
    size_t n, capacity;
    bool has_groups; /* there are plans with one group and plans with several */
    size_t n_tried;  /* plans made, including those for placements */
    size_t n_fit;
    size_t nearest;      /* if none fits: the one with the smallest shortage */
    size_t fastest;      /* fastest plan that fits */
    size_t recommended;  /* the first plan that is about as fast */
    double encoded_gain; /* for ranks on several nodes: speedup of the recommended plan with 8-bit
                            gathers and 4-bit sums, which are lossy; 0: not planned */
} zr_run_rows_t;

/** Plans above this fraction of the fastest speed count as equally fast: the simplest of them is
 * recommended. */
#define ZR_RUN_ABOUT_AS_FAST 0.98

/**
 * Make all plans, on all cores: the model maker and the length functions are called from several
 * threads concurrently.
 *
 * @param rows_p  free with zr_run_rows_free
 * @return ZR_OK, also when nothing fits; what a plan fails for, other than memory: logged
 */
ZR_NODISCARD zr_status_t zr_run_search(const zr_run_ask_t *ask, const zr_log_t *log,
                                       zr_run_rows_t *rows_p);
void zr_run_rows_free(zr_run_rows_t *rows);

/** The request that belongs to a plan, without a log. */
zr_run_request_t zr_run_row_request(const zr_run_ask_t *ask, const zr_run_row_t *row);

/** Whether two plans differ only in their micro-batch. */
bool zr_run_row_is_alike(const zr_run_row_t *a, const zr_run_row_t *b);

/** Ranks that share one sharded copy. */
int zr_run_row_group_size(const zr_run_ask_t *ask, const zr_run_row_t *row);

/** Whether a plan uses drives. */
bool zr_run_row_uses_nvme(const zr_run_ask_t *ask, const zr_run_row_t *row);

/* ---- jobs on all cores ----------------------------------------------------------------------- */

/** Independent jobs that run in parallel, with the same result as in sequence. */
typedef struct zr_run_jobs {
    size_t n;
    /* Job `index`; several run at once. One that fails may be run a second time. */
    zr_status_t (*run)(void *context, size_t index, const zr_log_t *log);
    /* Called for each successful job, in order, one at a time; may be NULL. An error ends the jobs
     * like an error of `run`. */
    zr_status_t (*ended)(void *context, size_t index, const zr_log_t *log);
    void *context;
    size_t n_threads; /* including the caller's; 0: one per core */
} zr_run_jobs_t;

/**
 * Run all jobs and wait for them.
 *
 * @param log  receives a job's messages only if that job fails and no earlier one does; messages of
 *             `ended` always
 * @return ZR_OK; the error of the first job that fails: later jobs may not have run, and `ended` is
 *         not called for them; ZR_ERR_MEMORY
 */
ZR_NODISCARD zr_status_t zr_run_jobs(const zr_run_jobs_t *jobs, const zr_log_t *log);

ZR_END_C
