/*
 * Limits of a plan.
 */
#pragma once

#include "zero/plan/run_plan.h"

/** The same run with enough of everything. */
zr_run_request_t zr_run_without_limits(const zr_run_request_t *request);

/** What the tier has by itself: its budget, or its part of the machine where that is less. Where
 * there is one memory, that is of each tier. */
size_t zr_run_limit(const zr_run_request_t *request, zr_tier_t tier);
