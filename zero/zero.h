/*
 * libzero: a ZeRO-style sharded optimizer runtime. The one header to include.
 *
 * Most programs need these calls, in this order:
 *
 *   config.h      zr_config_default       the settings of a run: a struct to fill in
 *                 zr_config_read_json     ... or to read from DeepSpeed's JSON
 *   ranks.h       zr_run_ranks            call a function once per rank: in a thread, or in a
 *                                         process started by torchrun or mpirun
 *
 *   The function gets a runtime and calls:
 *
 *   runtime.h     zr_runtime_add_unit     a unit: parameters that are gathered, reduced and
 *                 zr_unit_add_param       released together, such as a layer's
 *                 zr_runtime_commit       shard, place and initialise all parameters
 *                 zr_runtime_begin_micro_batch   for each micro-batch of a step:
 *                 zr_unit_acquire         gather a unit's parameters
 *                 zr_param_data           where a parameter is
 *                 zr_param_grad           where its gradient is written to
 *                 zr_unit_reduce          the unit's gradients are complete
 *                 zr_unit_release         the unit is not needed for now
 *                 zr_runtime_step         clip and update
 *   checkpoint.h  zr_runtime_save         write a checkpoint
 *                 zr_runtime_restore      resume from one, saved with any number of ranks and any
 *                                         stage; to be called before the commit
 *   log.h         zr_last_error           why a call has failed
 *
 * examples/library/regression.c is a complete program. Every call that can fail returns a status
 * and logs the reason first: to standard error, or to the program's own log.
 */
#pragma once

/* What most programs need. */
#include "kernels/base/log.h"
#include "zero/checkpoint/checkpoint.h"
#include "zero/config.h"
#include "zero/ranks.h"
#include "zero/runtime.h"

/* Models as lists of blocks: the schedule acquires, recomputes, reduces and releases. */
#include "zero/schedule/model.h"

/* Ranks, devices and kernels by hand, and a transformer's kernels (libzero_nn). */
#include "kernels/device.h"
#include "kernels/kernels.h"
#include "kernels/nn/nn.h"
#include "kernels/own_kernel.h"
#include "zero/comm/comm.h"
#include "zero/comm/launch.h"

/* Memory and files, for trainers that keep more than parameters. */
#include "allocator/allocator.h"
#include "offload/stash.h"
#include "offload/store.h"

/* Plans, simulated machines, traces, and records of memory use. */
#include "allocator/planner.h"
#include "allocator/record.h"
#include "allocator/replay.h"
#include "allocator/snapshot.h"
#include "kernels/base/hardware.h"
#include "kernels/base/text_file.h"
#include "kernels/base/trace.h"
#include "kernels/simulation.h"
#include "zero/hardware_json.h"
#include "zero/optim/optimizer.h"
#include "zero/options.h"
#include "zero/updater.h"
#include "zero/plan/run_largest.h"
#include "zero/plan/run_plan.h"
#include "zero/plan/run_search.h"

ZR_BEGIN_C

#define ZR_VERSION_MAJOR 0
#define ZR_VERSION_MINOR 1
#define ZR_VERSION_PATCH 0

/** "0.1.0"; static. */
const char *zr_version(void);

/** How this library was built ("cuda", "nccl", ... found or not), as text for people; static. */
const char *zr_build_description(void);

ZR_END_C
