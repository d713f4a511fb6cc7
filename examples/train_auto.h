/*
 * `auto` placement: what is kept where, so that as much as fits is in the faster tier.
 */
#ifndef EXAMPLES_TRAIN_AUTO_H
#define EXAMPLES_TRAIN_AUTO_H

#include "examples/train_options.h"

/** Whether a placement is left to be chosen. */
bool train_auto_is_wanted(const train_options_t *options);

/**
 * Choose the placements that were left open, by planning the run (gpt_plan.h) for many of them.
 *
 * Parameters stay up before optimizer state does, since they are moved more often: in each
 * micro-batch, not in each step. What leaves the device is as little as its budget needs, in steps
 * of 1/256; what then leaves host memory as little as that budget needs, where --nvme-path is
 * given. Gradients go with their state; where host memory does not hold them, they stay on the
 * device.
 *
 * @param options  resolved; in and out
 * @return ZR_OK; ZR_ERR_BUDGET when nothing fits: the message says what the smallest placement
 *         lacks; what opening the device or the drives returns
 */
ZR_NODISCARD zr_status_t train_auto_place(train_options_t *options, const zr_log_t *log);
/** The same for described hardware. */
ZR_NODISCARD zr_status_t train_auto_place_on(train_options_t *options,
                                             const zr_hardware_t *hardware, const zr_log_t *log);

#endif
