/*
 * Real training steps of the GPT model on random tokens, timed: ranks are threads.
 */
#pragma once

#include "examples/bench/bench.h"
#include "examples/bench/matrix_rate.h"
#include "examples/common/device.h"
#include "examples/models/gpt2/gpt.h"

typedef struct step_options {
    gpt_shape_t shape;
    zr_config_t config; /* resolved */
    size_t seq;
    int n_ranks, n_threads; /* threads of each rank's device, on the host */
    device_choice_t device; /* of all ranks */
    bool recompute;
    size_t n_first_steps; /* at least 1: they map memory and record the order */
    size_t n_steps;       /* that are timed, after those */
    matrix_rate_t *rate;  /* its product takes turns with the steps; NULL: none does */
    zr_log_t log;
} step_options_t;

/** Medians over the steps, of the mean over the ranks where ranks differ. */
typedef struct step_result {
    char device[128];
    double step_seconds;
    double compute_seconds; /* what is left of a step */
    double comm_seconds, stall_seconds, optimizer_seconds, io_seconds;
    double first_loss, last_loss;
    size_t peak_device_bytes; /* the largest of any rank */
} step_result_t;

/** @return ZR_OK; what failed has been logged otherwise */
ZR_NODISCARD zr_status_t step_run(const step_options_t *options, step_result_t *result_p);
