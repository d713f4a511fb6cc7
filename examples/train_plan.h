/*
 * A run of zero-train as a plan asks for it.
 */
#ifndef EXAMPLES_TRAIN_PLAN_H
#define EXAMPLES_TRAIN_PLAN_H

#include "examples/plan_one.h"
#include "examples/train_options.h"

/** The run, as its options ask for it, on that hardware; without a log. options: resolved */
gpt_plan_request_t train_plan_request(const train_options_t *options,
                                      const zr_hardware_t *hardware);

#endif
