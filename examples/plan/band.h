/*
 * How far measured steps have been from planned ones: what a plan's time is worth.
 */
#pragma once

#include "examples/plan/options.h"

/** Measured steps to planned ones, of runs of one kind. */
typedef struct plan_band {
    double least, most; /* times as long as planned */
    size_t n_runs;
    const char *what;     /* "runs of other programs on one node of GPUs" */
    const char *document; /* that has them, each by itself */
} plan_band_t;

/** All that are known, for tests; their number. */
const plan_band_t *plan_bands(size_t *n_p);

/**
 * The band of a plan.
 *
 * @param text  set to a sentence that says where the band is from, or why no band is known
 * @return NULL: none
 */
const plan_band_t *plan_band_of(const plan_options_t *options, const zr_run_row_t *row, char *text,
                                size_t size);
