/*
 * The last step of the recommended plan, work for work: planned once more, for what wants to see
 * it. The picture of --plot draws how much the machine's parts work (plan_plot_time.h); the file of
 * --trace has what a rank has to do with it, as zero-train --trace writes those of a run, by the
 * same recorder.
 */
#ifndef EXAMPLES_PLAN_STEP_H
#define EXAMPLES_PLAN_STEP_H

#include "examples/plan/ask.h"

/** The planned rank's process in the file, a number of its own, so that both go into one file: that
 * of a run's rank N is N + 1. */
#define PLAN_STEP_PROCESS 1001

typedef struct plan_step {
    bool is_made;         /* something fits, and is looked at */
    zr_run_spans_t spans; /* of --plot; owned */
    zr_trace_t *trace;    /* of --trace; owned */
} plan_step_t;

/**
 * Plan it again where --plot or --trace was given and something fits.
 *
 * @param step_p  free it with plan_step_free, also after an error
 * @return ZR_OK; ZR_ERR_MEMORY: logged
 */
ZR_NODISCARD zr_status_t plan_step_make(const plan_options_t *options, const zr_run_rows_t *rows,
                                        const zr_log_t *log, plan_step_t *step_p);
void plan_step_free(plan_step_t *step);

/** Write the file of --trace; of a step that was not made nothing is written. ZR_ERR_IO,
 * ZR_ERR_MEMORY: logged. */
ZR_NODISCARD zr_status_t plan_step_save(const plan_step_t *step, const char *path,
                                        const zr_log_t *log);

#endif
