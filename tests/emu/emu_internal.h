/*
 * The emulation: what its files share. One mutex guards everything; functions here expect it held.
 *
 *   emu_memory.cc   addresses, memory, registrations; who may touch them
 *   emu_streams.cc  devices, streams, events, copies, failures
 *   emu_kernels.cc  a kernel's blocks and threads
 *   emu_cublaslt.cc matrix products
 *   emu_cudnn.cc    graphs of operations
 *   emu_nccl.cc     NCCL: calls, and gates in streams
 *   emu_nccl_meeting.cc  where its ranks meet
 */
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <mutex>

#include "tests/emu/emu.h"
#include "tests/emu/emu_thread.h"

namespace emu {

extern std::mutex mutex;
extern emu_options_t options;

/* ---- failures -------------------------------------------------------------------------- */

/* Something that no program may do: printed and counted; the program ends with 1. */
void misuse(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* First in every call: what the test wants it to return, or what the current device has failed
 * with. A call that gives something back does so all the same, and returns this. */
cudaError_t called(const char *name);
/* The same, without failures of queued work. */
cudaError_t called_always(const char *name);
/* Keep an error for cudaGetLastError. */
cudaError_t returned(cudaError_t error);

int current_device();

/* Queue work that is no kernel; `run` gets the device of the stream, and says whether it could
 * reach its memory. emu_fail_kernel knows it by `name`, which is static. False: no such stream. */
bool queue_work(cudaStream_t stream, const char *name, std::function<bool(int device)> run);

/* ---- memory (emu_memory.cc) --------------------------------------------------------------- */

/* While one of these exists, device memory can be opened; then all is closed again. */
struct access_t {
    access_t();
    ~access_t();
};
/* Open what lies at the address and after it. False: the device may not access it, or it is open,
 * so that this was not what was wrong. */
bool open_at(int device, const void *address);

/* Whether a device may use the bytes: its own or a peer's memory, or host memory that is either
 * registered as one piece or (`or_pageable`) not at all. */
bool may_access(int device, const void *address, size_t size_bytes, bool or_pageable);
bool is_device_address(const void *address);
size_t n_live_memory();

/* ---- matrix products (emu_cublaslt.cc) ------------------------------------------------------ */

size_t n_live_blas(); /* handles, and descriptions of matrices and products */
size_t n_live_dnn();  /* cuDNN's handles and descriptions (emu_cudnn.cc) */

/* ---- gates in streams, for collectives (emu_streams.cc, emu_nccl.cc) ------------------------- */

/* Queue what holds a stream up until `is_open`, which is asked while memory can be opened. */
cudaError_t queue_gate(cudaStream_t stream, const char *call, std::function<bool()> is_open);
/* Something has changed that a gate may depend on. */
void note_change();
/* From now on streams go on now and then although nobody of this process waits, as those of a GPU
 * do, and gates are asked again without a change: others may depend on them, or they on others. */
void set_streams_run_alone(bool run_alone);
int device_of(cudaStream_t stream);
/* Work of the device has failed. */
void fail_device(int device, cudaError_t error);
/* What the test wants the call to return; 0: nothing. */
int failure_to_return(const char *name);
/* Communicators that are not destroyed. */
size_t n_live_comms();

/* ---- kernels (emu_kernels.cc) --------------------------------------------------------------- */

/* From one to the other, faults of what runs below are caught. */
void catch_faults();
void leave_faults();
/* Run work on this thread. False: it touched what its device cannot, and was left there. */
bool run_guarded(int device, const std::function<void()> &work);
/* Run a kernel, blocks and threads in a drawn order. False as above. */
bool run_kernel(int device, const emu_launch_t &launch, const std::function<void()> &thread);

/* Shared memory that a block may have: without being asked for, and at all. The latter is what
 * compute capability 8.6 and 8.9 have, the least of those the kernels are built for. */
const size_t shared_bytes_unasked = (size_t)48 << 10;
const size_t shared_bytes_most = (size_t)99 << 10;

/* A number from 0 to below - 1, from the seed. */
unsigned draw(unsigned below);

} // namespace emu

