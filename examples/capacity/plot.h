/*
 * A picture of capacities: how large at each stage and placement, and how many tokens per
 * second sizes train.
 */
#pragma once

#include "examples/capacity/run.h"

/** Draw --plot. Errors as gnuplot_end. */
ZR_NODISCARD zr_status_t capacity_plot(const capacity_results_t *results, const char *path,
                                       const zr_log_t *log);
