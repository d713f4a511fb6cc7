/*
 * libzero: a ZeRO-style sharded optimizer runtime. The one header to include.
 *
 * Most programs need these calls, in this order:
 *
 *   zr_config_default             config.h      what is asked of a run: a struct to be filled in,
 *   zr_config_read_json                         or read from DeepSpeed's JSON
 *   zr_run_ranks                  ranks.h       run a function for each rank: a thread, or a
 * process that torchrun or mpirun has started. It gets a runtime; the calls below are the
 * function's zr_runtime_add_unit           runtime.h     a unit: parameters that are gathered,
 * reduced and zr_unit_add_param                           released together, such as a layer's
 *   zr_runtime_commit                           shard, place and fill all of them
 *   zr_runtime_begin_micro_batch                for each micro-batch of a step:
 *   zr_unit_acquire                               a unit's parameters are there, all of them, ...
 *   zr_param_data                                 ... here, and
 *   zr_param_grad                                 where the gradient of one goes
 *   zr_unit_reduce                                its gradients are complete
 *   zr_unit_release                               it is not needed for now
 *   zr_runtime_step                             clip and update
 *   zr_runtime_save               checkpoint.h  write a checkpoint
 *   zr_runtime_restore                          go on from one, of any number of ranks and any
 *                                               stage: before the commit
 *   zr_last_error                 log.h         why a call has failed
 *
 * examples/library/regression.c is a whole program of them. Every call that can fail returns a
 * status, and has said why by then: on standard error, or in a log of the program's own.
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

/* Memory, files and what lies in them, for trainers that keep more than parameters. */
#include "allocator/allocator.h"
#include "offload/stash.h"
#include "offload/store.h"

/* Plans, simulated machines, traces, and what became of memory. */
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

/** How this library was built: "cuda", "nccl", ... found or not, for people; static. */
const char *zr_build_description(void);

ZR_END_C
