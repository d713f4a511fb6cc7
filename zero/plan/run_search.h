/*
 * Choosing by planning: where things live so that the step is fast, and of
 * many plans the one that is best.
 */
#pragma once

#include "zero/plan/run_plan.h"

ZR_BEGIN_C

/* ---- placement ------------------------------------------------------------------------------- */

/** What `auto` may choose of a run. */
typedef struct zr_run_open {
    bool optimizer; /* where its state lives, and how much of it */
    bool params;    /* likewise; at stage 3 */
    bool gradients; /* where those of offloaded state wait, and how many of them */
    /* Of a step: zr_run_search and zr_run_find_largest plan each, and take the fastest of those
     * that fit. The run's own are ZR_ORDER_MICRO_BATCH and ZR_UPDATE_AT_END. */
    bool order, update_at;
    bool is_enough; /* any placement that fits: no faster one is looked for */
} zr_run_open_t;

/**
 * Choose the placements that a run leaves open, by planning it for many of them.
 *
 * Optimizer state, parameters and gradients are divided among all tiers at once (drives: where the
 * run's nvme.paths name some), so that the step is as fast as what is moved lets it be: found from
 * what a plan says of the run, without further plans, and corrected by plans until one within the
 * budgets proves it. Beside it, parameters are kept up before state, as far as fits; the faster of
 * both is taken.
 *
 * @param run        its config is resolved, with a stage; in and out: its config. Where nothing
 * fits, the least that there is
 * @param n_plans_p  what was tried is added
 * @return ZR_OK, also when nothing fits; what a plan fails for, other than memory: logged
 */
ZR_NODISCARD zr_status_t zr_run_place(zr_run_request_t *run, const zr_run_open_t *open,
                                      const zr_log_t *log, size_t *n_plans_p);

/* ---- search ---------------------------------------------------------------------------------- */

/** What is asked for: a run with some of it left open. */
typedef struct zr_run_ask {
    zr_run_request_t run; /* its log is not used; what is open has its usual value */
    zr_run_open_t places; /* that `auto` chooses, for each plan */
    /* What is tried in all ways. */
    bool stage_open, optimizer_open, params_open, recompute_open, micro_batch_open;
    bool group_open; /* sizes of groups that share one copy of what is sharded */
    int least_stage; /* of those that are tried */
    bool has_drives; /* there are, though config.nvme.paths names none */
    void (*progress)(void *context,
                     size_t n_plans); /* after each plan, from any of the search's
                                         threads, one at a time; NULL: nobody looks */
    void *progress_context;
    size_t n_threads; /* that plan; 0: one per core. Results are the same with any number */
} zr_run_ask_t;

/** A plan: what was chosen of what is open, and what came of it. */
typedef struct plan_row {
    int group_size; /* ranks that share one copy of what is sharded; -1: all */
    int stage;
    zr_offload_device_t optimizer, params; /* of a placement that is auto: what it has become */
    bool recompute;
    size_t micro_batch;
    zr_step_order_t order;    /* where it was open; else that of the run */
    zr_update_at_t update_at; /* likewise */

    zr_config_t config; /* all of it, resolved; with drives "." where none were named */
    zr_run_fit_t one;
    double tokens_per_s; /* fits: of all ranks */
} zr_run_row_t;

typedef struct plan_rows {
    /* Owned; one group before several, and in each, simple before sharded, sharded before
     * offloaded. */
    zr_run_row_t *all;
    size_t n, capacity;
    bool has_groups; /* there are plans with one group, and with several */
    size_t n_tried;  /* with those that only looked for a placement */
    size_t n_fit;
    size_t nearest;      /* none fits: the one that is short of least */
    size_t fastest;      /* of those that fit */
    size_t recommended;  /* likewise: the first of those that are about as fast */
    double encoded_gain; /* of ranks on several nodes: how many times as fast that one is whose
                            messages lose some bits, 8-bit gathers and 4-bit sums; 0: not planned */
} zr_run_rows_t;

/** As fast as the fastest, for all that a plan can tell: the simplest of such is recommended. */
#define ZR_RUN_ABOUT_AS_FAST 0.98

/**
 * Plan them all, on all cores: the model's maker and the functions of its lengths are called from
 * several threads at a time.
 *
 * @param rows_p  free with zr_run_rows_free
 * @return ZR_OK, also when nothing fits; what a plan fails for, other than memory: logged
 */
ZR_NODISCARD zr_status_t zr_run_search(const zr_run_ask_t *ask, const zr_log_t *log,
                                       zr_run_rows_t *rows_p);
void zr_run_rows_free(zr_run_rows_t *rows);

/** The request that a plan is of, without a log. */
zr_run_request_t zr_run_row_request(const zr_run_ask_t *ask, const zr_run_row_t *row);

/** Whether two plans differ in their micro-batch alone. */
bool zr_run_row_is_alike(const zr_run_row_t *a, const zr_run_row_t *b);

/** Ranks that share one copy of what is sharded. */
int zr_run_row_group_size(const zr_run_ask_t *ask, const zr_run_row_t *row);

/** Whether anything of a plan is on drives. */
bool zr_run_row_uses_nvme(const zr_run_ask_t *ask, const zr_run_row_t *row);

/* ---- jobs on all cores ----------------------------------------------------------------------- */

/** Independent jobs, with the result of doing them one after the other. */
typedef struct zr_run_jobs {
    size_t n;
    /* Job `index`; several run at once. One that fails may be run a second time. */
    zr_status_t (*run)(void *context, size_t index, const zr_log_t *log);
    /* Each that went well, in their order, one at a time; NULL: nobody is told. An error ends the
     * jobs as one of `run` does. */
    zr_status_t (*ended)(void *context, size_t index, const zr_log_t *log);
    void *context;
    size_t n_threads; /* with the caller's; 0: one per core */
} zr_run_jobs_t;

/**
 * Do them all, and wait for it.
 *
 * @param log  what a job logs reaches it only if it fails, and no job before it does; what `ended`
 *             logs always does
 * @return ZR_OK; what the first job that fails returns: those behind it may not have run, and
 *         `ended` is not told of them; ZR_ERR_MEMORY
 */
ZR_NODISCARD zr_status_t zr_run_jobs(const zr_run_jobs_t *jobs, const zr_log_t *log);

ZR_END_C
