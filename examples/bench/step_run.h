/*
 * Real training steps of the GPT model on random tokens, timed: ranks are threads.
 */
#pragma once

#include "examples/bench/bench.h"
#include "examples/bench/matrix_rate.h"
#include "examples/common/device.h"
#include "models/shape.h"

typedef struct step_options {
    zr_model_shape_t shape;
    zr_config_t config; /* resolved */
    size_t seq;
    int n_ranks, n_threads; /* threads of each rank's device, on the host */
    device_choice_t device; /* of all ranks */
    zr_recompute_t recompute;
    zr_nn_engine_t attention;
    size_t n_first_steps; /* at least 1: they map memory and record the order */
    size_t n_steps;       /* that are timed, after those */
    matrix_rate_t *rate;  /* its product takes turns with the steps; NULL: none does */
    zr_log_t log;
} step_options_t;

/** Where the time of a step goes; "compute" is what is left of it. */
enum { STEP_COMPUTE, STEP_COMM, STEP_STALL, STEP_OPTIMIZER, STEP_IO, STEP_N_PARTS };

/** Seconds of a step. */
typedef struct step_times {
    double step;
    double parts[STEP_N_PARTS];
} step_times_t;
/** Of a step, and of what was waited in it. */
step_times_t step_times_of(double step, const zr_runtime_time_t *time);
/** Put "compute_ms" and so on. */
void step_put_times(json_t **object_p, const step_times_t *times);

/** Medians over the steps, of the mean over the ranks where ranks differ. */
typedef struct step_result {
    char device[128];
    step_times_t times;
    zr_nn_engine_info_t attention; /* of rank 0, with its version */
    double first_loss, last_loss;
    size_t peak_device_bytes;    /* the largest of any rank */
    zr_store_statistics_t moved; /* bytes and checksums of rank 0 in all timed steps */
} step_result_t;

/** @return ZR_OK; what failed has been logged otherwise */
ZR_NODISCARD zr_status_t step_run(const step_options_t *options, step_result_t *result_p);
