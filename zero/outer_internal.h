/*
 * Local steps: groups of ranks train apart for some steps, and then meet. Internal to zero/.
 *
 * Within a group a step is as ever, and nothing of it leaves the group. When they meet, the outer
 * step takes what each group's masters have moved by since they met last as a gradient, its mean
 * over the groups, and moves the parameters that all groups began with by SGD with Nesterov's
 * momentum; every group goes on from there. These parameters and their momentum are two more arrays
 * of the optimizer's state, behind its own: they are sharded, placed, planned and saved as it is.
 *
 * Moments are each group's own. They are made equal when a checkpoint is saved, so that a run that
 * goes on from it has the bits of the one that has saved it.
 *
 * Source: Douillard et al. 2023, "DiLoCo".
 */
#pragma once

#include "zero/runtime_internal.h"

/** At the end of a step, behind its update: groups meet, when it is time to. */
ZR_NODISCARD zr_status_t zr_outer_step(zr_runtime_t *runtime);

/** Between steps: groups meet now, unless they just have, and have the same state in all. What is
 * saved then is that of any of them. Collective. */
ZR_NODISCARD zr_status_t zr_outer_settle(zr_runtime_t *runtime);
