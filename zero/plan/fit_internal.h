/*
 * Limits of a plan.
 */
#pragma once

#include "zero/plan/run_search.h"

/** A log that drops all messages. */
extern const zr_log_t zr_run_nowhere;

/** zr_run_plan, with what the run itself would choose. */
ZR_NODISCARD zr_status_t zr_run_plan_as_asked(const zr_run_request_t *request,
                                              zr_run_plan_t *plan_p);

/** Marks on a plan's tape. */
typedef enum zr_run_mark {
    ZR_RUN_MARK_STEP,      /* a step begins */
    ZR_RUN_MARK_LAST_STEP, /* one that may be the last */
    ZR_RUN_MARK_END        /* it ends */
} zr_run_mark_t;

/** zr_run_plan, with prefetch even if it fits only without. */
ZR_NODISCARD zr_status_t zr_run_plan_with_prefetch(const zr_run_request_t *request,
                                                   zr_run_plan_t *plan_p);

/** Whether a run has buffers whose number is open. */
bool zr_run_opens_buffers(const zr_run_request_t *request);

/** Whether it prefetches only where that fits. */
bool zr_run_opens_prefetch(const zr_run_request_t *request);

/** Either. */
bool zr_run_opens(const zr_run_request_t *request);

/** Choose what is open so that little is needed: the usual numbers of buffers, and no prefetch. */
void zr_run_set_least(zr_run_request_t *request);

/** The same run with enough of everything. */
zr_run_request_t zr_run_without_limits(const zr_run_request_t *request);

/** Likewise, for so many steps where all are alike: about what the run needs, to choose by. */
zr_run_request_t zr_run_to_learn(const zr_run_request_t *request, size_t n_steps);

/** Which tier a plan is shortest of, as a share of what there is; also where it fits. */
zr_run_lack_t zr_run_find_lack(const zr_run_request_t *request, const zr_run_plan_t *plan);

/**
 * What zr_run_fit says, from plans of the same model with fewer equal blocks: of memory what is
 * live, as if nothing else were mapped, and no tables.
 *
 * @return false, and *one_p is not set: it has fewer than ZR_REPLAY_LONG_UNITS, or what it does
 * does not repeat
 */
bool zr_run_fold(const zr_run_request_t *request, zr_run_fit_t *one_p);

/**
 * zr_run_place, and the plan of what was chosen.
 *
 * @param plan_p        zr_run_plan's of the run as it is now, if *is_planned_p
 * @param is_planned_p  false: nothing fits, or the run was not planned with all that it leaves open
 */
ZR_NODISCARD zr_status_t zr_run_place_and_plan(zr_run_request_t *run, const zr_run_open_t *open,
                                               const zr_log_t *log, size_t *n_plans_p,
                                               zr_run_plan_t *plan_p, bool *is_planned_p);

/** A way to make a step, of those that are left open. */
typedef struct zr_run_way {
    zr_step_order_t order;
    zr_update_at_t update_at;
} zr_run_way_t;
#define ZR_RUN_MOST_WAYS 4

/** All that differ for a run, its own first; returns their number.
 * @param config  resolved, with what is open as usual */
size_t zr_run_list_ways(const zr_run_open_t *open, const zr_config_t *config,
                        zr_run_way_t ways[ZR_RUN_MOST_WAYS]);

/** What there is of host memory for a rank: its part of the machine, or what tables leave of its
 * part of the process where that is less. */
size_t zr_run_memory(const zr_run_request_t *request, size_t table_bytes);

/** What a plan needs of the process: tiers that are host memory, and tables, as if their peaks came
 * together. */
size_t zr_run_memory_needed(const zr_run_request_t *request, const zr_run_plan_t *plan);

/** What the tier has by itself: its budget, or its part of the machine where that is less. Where
 * there is one memory, that is of each tier. */
size_t zr_run_limit(const zr_run_request_t *request, zr_tier_t tier);
