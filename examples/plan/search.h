/*
 * Every plan that is asked for, and the one that is best.
 */
#ifndef EXAMPLES_PLAN_SEARCH_H
#define EXAMPLES_PLAN_SEARCH_H

#include "examples/common/messages.h"
#include "examples/plan/one.h"
#include "examples/plan/options.h"

/** A plan: what was chosen of what is open, and what came of it. */
typedef struct plan_row {
    int group_size; /* ranks that share one copy of what is sharded; -1: all */
    int stage;
    zr_offload_device_t optimizer, params; /* of a placement that is auto: what it has become */
    bool recompute;
    size_t micro_batch;

    zr_config_t config; /* all of it, resolved; with drives "." where none were named */
    plan_one_t one;
    double tokens_per_s; /* fits: of all ranks */
} plan_row_t;

typedef struct plan_rows {
    /* Owned; one group before several, and in each, simple before sharded, sharded before
     * offloaded. */
    plan_row_t *all;
    size_t n, capacity;
    bool has_groups; /* there are plans with one group, and with several */
    size_t n_tried;  /* with those that only looked for a placement */
    size_t n_fit;
    size_t nearest;     /* none fits: the one that is short of least */
    size_t fastest;     /* of those that fit */
    size_t recommended; /* likewise: the first of those that are about as fast */
} plan_rows_t;

/** As fast as the fastest, for all that a plan can tell: the simplest of such is recommended. */
#define PLAN_ABOUT_AS_FAST 0.98

/**
 * Plan them all.
 *
 * @param messages  for the progress line; NULL: none
 * @param rows_p    free with plan_rows_free
 * @return ZR_OK, also when nothing fits; what a plan fails for, other than memory: logged
 */
ZR_NODISCARD zr_status_t plan_search(const plan_options_t *options, const zr_log_t *log,
                                     messages_t *messages, plan_rows_t *rows_p);
void plan_rows_free(plan_rows_t *rows);

/** The request that a plan is of, without a log. */
gpt_plan_request_t plan_row_request(const plan_options_t *options, const plan_row_t *row);

/** Whether two plans differ in their micro-batch alone. */
bool plan_row_is_alike(const plan_row_t *a, const plan_row_t *b);

/** Ranks that share one copy of what is sharded. */
int plan_row_group_size(const plan_options_t *options, const plan_row_t *row);

/** Whether anything of a plan is on drives. */
bool plan_row_uses_nvme(const plan_options_t *options, const plan_row_t *row);

#endif
