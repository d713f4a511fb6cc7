/*
 * --calibrate: fit the rates of a description to step times that were measured, with this program's
 * trainer or another's, and see how well it then predicts steps that it was not fitted to.
 */
#pragma once

#include "examples/plan/options.h"

/** A measured step, and what is planned of it. */
typedef struct calibrate_run {
    size_t line;         /* of the file, from 1 */
    plan_options_t *own; /* its options, resolved; owned */
    double measured;     /* seconds */
    double described;    /* planned with the description as it was; likewise */
    double predicted;    /* held out: by a fit to the others; else by one to all but those */
    bool is_held_out;
} calibrate_run_t;

#define CALIBRATE_MOST_KNOBS 16

typedef struct calibration {
    calibrate_run_t *runs; /* owned */
    size_t n_runs, n_held_out;
    size_t n_parallel;    /* left out: of tensor or pipeline parallelism, which is not planned */
    size_t n_impossible;  /* left out: not planned for another reason, which was logged */
    char ignored[512];    /* columns, with commas between */
    zr_hardware_t fitted; /* to all runs */
    bool is_seen[CALIBRATE_MOST_KNOBS]; /* the runs depend on it */
} calibration_t;

/** What is fitted as one: figures of a description, with spaces between. */
typedef struct calibrate_knob {
    const char *figures;
    double spread; /* how far it may lie from the description: of the logarithm */
} calibrate_knob_t;
const calibrate_knob_t *calibrate_knobs(size_t *n_p);

/**
 * Read the runs, and fit. Columns are options of zero-plan, sizes of --model, and step_ms; names
 * that other systems use are known. What a row does not say is as the command line has it.
 *
 * @param calibration_p  set on success; free it
 * @return ZR_OK; ZR_ERR_IO, ZR_ERR_FORMAT, ZR_ERR_ARGUMENT, ZR_ERR_MEMORY: logged
 */
ZR_NODISCARD zr_status_t calibrate(const plan_options_t *options, const zr_log_t *log,
                                   calibration_t *calibration_p);
void calibration_free(calibration_t *calibration);

/** Write --save-hardware. */
ZR_NODISCARD zr_status_t calibration_save(const calibration_t *calibration,
                                          const plan_options_t *options, const zr_log_t *log);

/** Print what was found; false when that failed. */
bool calibration_report(const calibration_t *calibration, const plan_options_t *options,
                        FILE *file);
