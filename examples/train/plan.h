/*
 * Plans of zero-train's runs: the request that its options ask for, and what is foretold of a run
 * before it begins.
 */
#ifndef EXAMPLES_TRAIN_PLAN_H
#define EXAMPLES_TRAIN_PLAN_H

#include "examples/train/train.h"

/** The run, as its options ask for it, on that hardware; without a log. options: resolved */
zr_run_request_t train_plan_request(const train_options_t *options, const zr_hardware_t *hardware);

/** What `auto` may choose of it. */
zr_run_open_t train_plan_open(const train_options_t *options);

/** The peaks of a plan as a run reports them: of drives without classes. */
void train_plan_peaks(const zr_run_plan_t *plan, train_peak_t peaks_p[ZR_N_TIERS]);

/** A run that was planned before it began. */
typedef struct train_plan {
    bool is_made;
    zr_run_fit_t on_host;   /* updates of what is offloaded are made there, or there is no choice */
    zr_run_fit_t on_device; /* has_choice: they are made there */
    bool has_choice;        /* the run measures which is faster, so that both are planned */
    zr_status_t status;     /* not made: the error, and what it says */
    char message[1024];
} train_plan_t;

/**
 * Plan a run on this machine. It takes little memory, and, where all sequences are equally long,
 * less time than the run's first three steps, since nothing is moved.
 *
 * Lengths of sequences are those that the run will draw (--seq-min), from the millionth
 * micro-batch on as long as any can be; some steps stand for all (docs/guide/plan.md).
 *
 * What keeps a run from being planned keeps it from being made, and is said by it: nothing is
 * logged.
 *
 * @param first_step   the steps that the run has behind it: it goes on from a checkpoint
 * @param evaluations  zero_train_evaluations
 */
void train_plan_make(const train_options_t *options, size_t first_step,
                     const zr_run_evaluations_t *evaluations, train_plan_t *plan_p);

/**
 * Refuse a run that does not fit, with the plan's message, which is what the run would say. With
 * --plan-check off, warn of one that its budgets allow and the machine has no memory for: on the
 * host the system ends such a run without a word.
 *
 * @return ZR_OK, also when there is no plan; ZR_ERR_BUDGET, logged
 */
ZR_NODISCARD zr_status_t train_plan_check(const train_plan_t *plan, const train_options_t *options,
                                          const zr_log_t *log);

/** Whether the plan may say how many buffers the run has, or that it does not prefetch: each
 * process of the run has to make it. */
bool train_plan_may_hold(const train_options_t *options);

/** Take what the plan has where more does not fit; logged. */
void train_plan_hold(const train_plan_t *plan, train_options_t *options, const zr_log_t *log);

/** What the plan has foretold of the run that had this result. */
train_planned_t train_plan_of(const train_plan_t *plan, const train_result_t *result);

#endif
