/*
 * The emulation's threads: what a thread of a kernel can do with others of its block, and how a
 * kernel is queued. For those who have included <cuda_runtime.h>, the emulation's or CUDA's own.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <functional>
#include <vector>

struct emu_thread_t {
    dim3 thread, block, n_threads, n_blocks;
};
extern const emu_thread_t *emu_thread; /* the one that runs */

/* Wait for the block, or for the lanes of `mask` in the warp. `here` names the barrier. */
void emu_wait_for_block(const char *here);
void emu_wait_for_warp(unsigned mask, const char *here);

unsigned emu_lane(void);

/* What lane `lane` of the mask shows. A lane that is not there ends the program. */
uint64_t emu_exchange(unsigned mask, uint64_t bits, int lane, const char *here);

/* Votes: the lanes of the mask whose predicate holds, or whose value is the caller's. */
unsigned emu_ballot(unsigned mask, bool predicate, const char *here);
unsigned emu_match(unsigned mask, uint64_t bits, const char *here);

/* Before what a GPU reads or writes as one access, which faults where the address is not aligned.
 */
void emu_check_access(const void *address, size_t alignment);

/* Show bytes to the warp, all of whose lanes have to come here; [32] what each shows, until the
 * lane shows something again. */
struct emu_shown_t {
    uint32_t words[8];
};
const emu_shown_t *emu_show(const void *bytes, size_t size_bytes, const char *here);

/* Copy to shared memory, now or when the thread waits, which is drawn; what `from_bytes` does not
 * cover becomes zero. A wait is for all groups but the last n_groups that were committed. */
void emu_copy_begin(void *to, const void *from, size_t to_bytes, size_t from_bytes);
void emu_copy_commit(void);
void emu_copy_wait(size_t n_groups);

/* The block's shared memory: what the launch says is static, up to the next multiple of 16, and
 * what is dynamic. It begins as NaNs of all dtypes, and what lies behind it is a fault. */
void *emu_shared_memory(void);

/* The running thread does what a GPU ends the kernel for: the device reports
 * cudaErrorIllegalAddress. */
[[noreturn]] void emu_fault(void);

struct emu_launch_t;

/* Who is told as a kernel begins to run, and each of its blocks. */
struct emu_watch_t {
    void (*begin_kernel)(const emu_launch_t &launch, int device);
    void (*begin_block)(const emu_launch_t &launch);
};

struct emu_launch_t {
    const char *name;
    const void *function;
    dim3 n_blocks, n_threads;
    size_t shared_bytes; /* dynamic */
    cudaStream_t stream;
    size_t static_bytes = 0; /* of shared memory; 0 where the host's compiler has laid it out */
    const emu_watch_t *watch = NULL;
};
/* Of a block, all of it. */
inline size_t emu_shared_bytes(const emu_launch_t &launch) {
    return (launch.static_bytes + 15) / 16 * 16 + launch.shared_bytes;
}

/* `pointers`: the kernel's arguments that are some; they have to be the device's. */
void emu_queue_kernel(const emu_launch_t &launch, std::function<void()> thread,
                      std::vector<const void *> pointers);

