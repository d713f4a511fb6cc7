/*
 * An emulation of the CUDA calls that the CUDA device uses, for tests: it is linked in place of
 * CUDA, and the device's own files are compiled for it.
 *
 * - Device memory is host memory that only kernels and copies can reach; anything else that
 *   touches it ends the program.
 * - Streams run late, when somebody waits, or now and then when something is queued, in an order
 *   that is drawn from those that events allow.
 * - A kernel or copy that touches what is not mapped fails as on a GPU: the device reports
 *   cudaErrorIllegalAddress from then on.
 * - A kernel's warps keep step, run ahead or are mixed, as drawn for each block; shared memory is
 *   spoilt before each block, and its dynamic part ends where it should (emu_kernels.cc).
 * - Any call can be made to fail, and so can queued work.
 * - What was not given back when the program ends, or was used after it, ends it with 1.
 *
 * What it does not notice: a kernel that reads host memory which is not registered (but its
 * pointer arguments are checked), the host touching device memory at the very moment when another
 * thread's kernels do, and blocks of one kernel that rely on each other's order but by chance.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/base/status.h"

ZR_BEGIN_C

typedef struct emu_options {
    int n_devices;           /* 0: as on a machine without a GPU */
    bool has_driver;         /* otherwise as on one without a driver */
    int major;               /* compute capability */
    bool has_virtual_memory; /* otherwise there is cudaMalloc alone */
    bool are_peers;          /* devices can reach each other's memory */
    bool has_cublaslt;       /* the library is there */
    bool has_epilogues;      /* it adds a bias, and has GELU, for some shapes */
    bool has_cudnn;           /* likewise */
    bool cudnn_refuses;       /* its heuristic has no proposal */
    size_t cudnn_version;     /* 91900: 9.19.0 */
    size_t cudnn_extra_bytes; /* that its plans need, more than usual */
    size_t granule_bytes;    /* smaller than a GPU's, so that tests have many */
    size_t memory_bytes;     /* of each device */
    size_t in_use_bytes;     /* of that, by the context */
    size_t pinned_bytes;     /* host memory that can be registered */
    uint64_t seed;           /* of the order in which streams run */
    size_t fail_copy_bytes;  /* copies of so many fail, when somebody waits; 0: none does */
} emu_options_t;

/** Two devices with everything, or what EMU_DEVICES, EMU_SEED, EMU_GRANULE_BYTES,
 * EMU_FAIL_COPY_BYTES, EMU_NO_VIRTUAL_MEMORY, EMU_NO_EPILOGUES, EMU_MAJOR and EMU_CUDNN_VERSION
 * (0: none) of the environment say. */
emu_options_t emu_options_default(void);

/** Another machine from now on. Nothing of the old one may be in use. */
void emu_configure(const emu_options_t *options);

/** The n-th call from now (1 is the next) of this name, or of any when NULL, returns `error`. */
void emu_fail_call(const char *name, int nth, int error);
/** Whether that call has come. */
bool emu_has_failed_call(void);
/** The n-th kernel from now whose name contains `name` fails with `error` when it runs. */
void emu_fail_kernel(const char *name, int nth, int error);
/** From now on nothing runs, and nobody may wait; or does again. */
void emu_hold(bool is_held);
/** Nothing runs until this thread has asked whether an event has passed. */
void emu_hold_until_asked(void);
bool emu_is_held(void);
/** From now on events are not waited for: what a schedule without events does. */
void emu_ignore_waits(bool ignore);

/**
 * NCCL (emu_nccl.cc). Ranks are threads of this process, each with a device of its own. A
 * collective runs when the streams of all ranks have come to it, and hangs until then; calls that
 * do not fit each other, or break NCCL's rules, are misuses. Calls fail by emu_fail_call, with a
 * number of ncclResult_t.
 */

/** Every communicator of this rank reports `error` (ncclResult_t) from now on, as after a failure
 * of its network; 0: none does. */
void emu_nccl_fail(int rank, int error);
/** The n-th launch of this rank from now is lost: the others hang in it, and this rank does not. */
void emu_nccl_lose_launch(int rank, int nth);
/** From now on what communicators have in progress never ends; or does again. */
void emu_nccl_stall(bool stall);
/** The next collective, send or receive that the calling thread asks for returns `error`. */
void emu_nccl_fail_next(int error);
/** Communicators that were aborted so far. */
size_t emu_nccl_n_aborted(void);

/** cuBLASLt proposes algorithms that add in different orders; this one fails when it is used. */
#define EMU_REFUSED_ALGORITHM 22
/** And one needs so much: more than what is usual. */
#define EMU_LARGE_WORKSPACE_BYTES ((uint32_t)5 << 20)

/** Streams, events, memory, addresses, registrations, communicators and what cuBLASLt has made that
 * are in use. */
size_t emu_n_live(void);
/** Bytes of a device's memory that are in use; bytes of host memory that are registered. */
size_t emu_used_bytes(int device);
size_t emu_pinned_bytes(void);
/** What was used after it was given back, or otherwise against the rules; each was printed. */
size_t emu_n_misuses(void);
/** Devices as after a restart of the process: failures of queued work are forgotten. */
void emu_forget_failures(void);

ZR_END_C
