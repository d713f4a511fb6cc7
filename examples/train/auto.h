/*
 * `auto`: the stage, the groups and the placements that zero-train was left to choose.
 */
#pragma once

#include "examples/train/options.h"

/** Whether anything is left to be chosen. */
bool train_auto_is_wanted(const train_options_t *options);

/**
 * Choose what was left open, by planning the run on this machine: of each stage (plan_search.h)
 * with the placement that is best for it (plan_auto.h), and where ranks are on several machines in
 * groups, too, the fastest, and of those about as fast the simplest. What was chosen is said.
 *
 * @param options  resolved; in and out, with choice set
 * @return ZR_OK; ZR_ERR_BUDGET when nothing fits: the message says what comes nearest to it, and
 *         what it lacks; what opening the device or the drives returns
 */
ZR_NODISCARD zr_status_t train_auto_place(train_options_t *options, const zr_log_t *log);
