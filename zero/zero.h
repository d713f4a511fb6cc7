/*
 * libzero: a ZeRO-style sharded optimizer runtime. The one header to include.
 */
#ifndef ZR_ZERO_ZERO_H
#define ZR_ZERO_ZERO_H

#include "allocator/allocator.h"
#include "allocator/planner.h"
#include "allocator/record.h"
#include "allocator/replay.h"
#include "allocator/snapshot.h"
#include "kernels/device.h"
#include "kernels/base/hardware.h"
#include "kernels/kernels.h"
#include "kernels/nn/nn.h"
#include "kernels/own_kernel.h"
#include "kernels/simulation.h"
#include "kernels/base/trace.h"
#include "offload/stash.h"
#include "offload/store.h"
#include "zero/checkpoint/checkpoint.h"
#include "zero/comm/comm.h"
#include "zero/config.h"
#include "zero/hardware_json.h"
#include "zero/options.h"
#include "zero/plan/run_largest.h"
#include "zero/plan/run_plan.h"
#include "zero/plan/run_search.h"
#include "zero/runtime.h"
#include "zero/schedule/model.h"

#ifdef __cplusplus
extern "C" {
#endif

#define ZR_VERSION_MAJOR 0
#define ZR_VERSION_MINOR 1
#define ZR_VERSION_PATCH 0

/** "0.1.0"; static. */
const char *zr_version(void);

/** How this library was built: "cuda", "nccl", ... found or not, for people; static. */
const char *zr_build_description(void);

#ifdef __cplusplus
}
#endif
#endif
