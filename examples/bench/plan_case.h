/*
 * Training steps that are both made and planned, on a description measured in the same run.
 */
#ifndef EXAMPLES_BENCH_PLAN_CASE_H
#define EXAMPLES_BENCH_PLAN_CASE_H

#include "examples/bench/machine.h"
#include "examples/bench/step_run.h"
#include "zero/zero.h"

/** What is run. */
typedef struct plan_case {
    const char *model; /* as --model */
    int n_ranks, stage;
    zr_dtype_t dtype;
    size_t micro_batch, grad_accum, seq;
    zr_recompute_t recompute;
    zr_offload_device_t optimizer, params;
} plan_case_t;

/** All that there are; static. `quick`: a few that take next to no time. */
const plan_case_t *plan_cases(bool quick, size_t *n_cases_p);
/** Whether it needs folders for drives. */
bool plan_case_uses_nvme(const plan_case_t *one);

typedef struct plan_result {
    step_times_t measured, planned;
    zr_run_times_t exposed; /* of the plan */
    double machine_per_s;   /* a core's own rate of products, between the steps */
} plan_result_t;

typedef struct plan_settings {
    const char *paths;    /* folders, with commas between; NULL: no case uses drives */
    size_t n_first_steps; /* that are not measured */
    size_t n_steps;
    size_t side; /* of the machine's own product */
    zr_log_t log;
} plan_settings_t;

/** Run a case and plan it. ZR_OK; what failed has been logged otherwise. */
ZR_NODISCARD zr_status_t plan_case_run(const plan_case_t *one, const plan_settings_t *settings,
                                       const zr_hardware_t *hardware, plan_result_t *result_p);

#endif
