/*
 * One plan, and what is missing where it does not fit.
 */
#ifndef EXAMPLES_PLAN_ONE_H
#define EXAMPLES_PLAN_ONE_H

#include <jansson.h>

#include "examples/plan/simulate.h"

/** Steps of a plan after which nothing new happens: see gpt_plan_request_t.n_steps. */
#define PLAN_N_STEPS 3

/** What a search of plans keeps of those of memory: many placements have the same. */
#define PLAN_KEPT_BYTES ((size_t)64 << 20)

/** Bytes of memory for any plan. */
#define PLAN_ENOUGH_BYTES ((size_t)1 << 50)

/** What a plan that does not fit lacks: the tier that is short of most. */
typedef struct plan_lack {
    zr_tier_t tier;
    bool is_of_both; /* device and host are one memory, which is short: the bytes are of both, and
                        the tier is the larger of them */
    size_t needed_bytes; /* per rank, at the peak */
    size_t there_bytes;  /* <= needed, but where only holes are the cause */
    zr_tag_t tag;        /* what most of it is for */
    size_t tag_bytes;
} plan_lack_t;

typedef struct plan_one {
    bool fits;
    gpt_plan_t plan;    /* of one that does not fit: what it would need, were there memory enough */
    plan_lack_t lack;   /* does not fit */
    char message[1024]; /* does not fit: what the run would say */
} plan_one_t;

/** What is short: "device memory", "host memory", "nvme memory", "memory (device and host are one
 * here)". */
const char *plan_lack_name(const plan_lack_t *lack);

/** As --json has it; NULL: no memory. */
json_t *plan_lack_object(const plan_lack_t *lack);

/**
 * Plan a run; where it does not fit, plan it again with memory enough, to see what it needs.
 *
 * @param request  its log is not used
 * @param log      for what a plan fails for, other than memory
 * @return ZR_OK, also when it does not fit
 */
ZR_NODISCARD zr_status_t plan_one(const gpt_plan_request_t *request, const zr_log_t *log,
                                  plan_one_t *one_p);

/** Whether there is memory for a run, and no more: of one that does not fit, found in a fraction of
 * the time. What fails for anything else is said by plan_one. */
bool plan_one_fits(const gpt_plan_request_t *request);

/** What there is of a tier for a rank: its budget, or its part of the machine where that is less.
 * Where there is one memory, host memory is what the device leaves. */
size_t plan_one_there(const gpt_plan_request_t *request, zr_tier_t tier, const gpt_plan_t *plan);

#endif
