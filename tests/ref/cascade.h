/*
 * Another way to choose a placement, to compare with: one tier after another, and each as full as
 * it can be, found by halving with some ten to thirty plans.
 */
#pragma once

#include "zero/plan/run_search.h"

/** Place a run as zr_run_place does: parameters stay up before state does. */
ZR_NODISCARD zr_status_t ref_cascade(zr_run_request_t *run, const zr_run_open_t *open,
                                     size_t *n_plans_p);
