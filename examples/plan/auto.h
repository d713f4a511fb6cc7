/*
 * `auto` placement of one stage: what is kept where, so that as much as fits is in the faster tier.
 */
#ifndef EXAMPLES_PLAN_AUTO_H
#define EXAMPLES_PLAN_AUTO_H

#include "examples/train/options.h"

/**
 * Choose the placements that a run leaves open, by planning it (gpt_plan.h) for many of them.
 *
 * Parameters stay up before optimizer state does, since they are moved more often: in each
 * micro-batch, not in each step. What leaves the device is as little as its budget needs, in steps
 * of 1/256; what then leaves host memory as little as that budget needs, where the run's
 * nvme.paths name drives. Gradients go with their state; where host memory does not hold them, they
 * stay on the device. Where nothing fits in this way, all parameters go to the drives, and as much
 * state as fits comes to the device with its gradients; at last all state goes there, and only as
 * many gradients stay on the device as host memory has no room for.
 *
 * @param run        resolved, with a stage; in and out: where nothing fits, the least that there is
 * @param n_plans_p  what was tried is added
 * @return ZR_OK, also when nothing fits; what a plan fails for, other than memory: logged
 */
ZR_NODISCARD zr_status_t plan_auto_place(train_options_t *run, const zr_hardware_t *hardware,
                                         const zr_log_t *log, size_t *n_plans_p);

/**
 * Let as much of the gradients of offloaded state wait on the device as host memory has no room
 * for, in steps of 1/256; none where it has room for all. Otherwise as above.
 *
 * @param run  at stage 2 or 3, its optimizer offloaded; in and out: its gradients and their ratio
 */
ZR_NODISCARD zr_status_t plan_auto_gradients(train_options_t *run, const zr_hardware_t *hardware,
                                             const zr_log_t *log, size_t *n_plans_p);

#endif
