/*
 * Memory as translated kernels reach it. Each access is held to what a GPU allows, and noted for
 * the search for races.
 */
#include "tests/ptx/ptx_memory.h"

#include <cuda_runtime.h>
#include <stdio.h>
#include <string.h>

#include <deque>
#include <vector>

#include "tests/emu/emu_internal.h"
#include "tests/ptx/ptx.h"
#include "tests/ptx/races.h"

namespace {

struct copy_t {
    uint32_t to;
    size_t size_bytes;
    const char *here;
    size_t group;
};

/* Of a thread of the block: what the search for races has to know of it. */
struct thread_t {
    size_t n_barriers = 0; /* of the block, that it has passed */
    std::deque<copy_t> copies;
    size_t n_groups = 0;
};

struct block_t {
    int device;
    size_t shared_bytes;
    size_t n_barriers; /* that all have come to */
    std::vector<thread_t> threads;
};
block_t &block = *new block_t;

/* Pages of global memory that the kernel may access: what was found is kept for a while. */
const size_t page_bytes = 4096, n_known_pages = 1024;
uint64_t known_pages[n_known_pages]; /* 0: none */

size_t thread_number() {
    dim3 thread = emu_thread->thread, n = emu_thread->n_threads;
    return thread.x + (size_t)n.x * (thread.y + (size_t)n.y * thread.z);
}

[[noreturn]] void fault(const char *what, const char *space, uint64_t address, size_t size_bytes,
                        const char *here) {
    fprintf(stderr, "ptx: %s: %s of %zu bytes at %s 0x%llx\n", here, what, size_bytes, space,
            (unsigned long long)address);
    emu_fault();
}

void *at_shared(uint32_t address, size_t size_bytes, const char *here) {
    if (address % size_bytes != 0)
        fault("unaligned access", "shared", address, size_bytes, here);
    if (address + size_bytes > block.shared_bytes)
        fault("access beyond shared memory", "shared", address, size_bytes, here);
    return static_cast<char *>(emu_shared_memory()) + address;
}

void *at_global(uint64_t address, size_t size_bytes, const char *here) {
    if (address % size_bytes != 0)
        fault("unaligned access", "global", address, size_bytes, here);
    uint64_t page = address / page_bytes;
    uint64_t *known = &known_pages[page % n_known_pages];
    if (*known != page) {
        void *begin = reinterpret_cast<void *>(address);
        if (address == 0 || !emu::may_access(block.device, begin, size_bytes, false))
            fault("access to what is not the device's", "global", address, size_bytes, here);
        *known = page;
    }
    return reinterpret_cast<void *>(address);
}

void begin_kernel(const emu_launch_t &launch, int device) {
    block.device = device;
    block.shared_bytes = emu_shared_bytes(launch);
    memset(known_pages, 0, sizeof(known_pages));
    races::begin_kernel();
}

void begin_block(const emu_launch_t &launch) {
    dim3 n = launch.n_threads;
    size_t n_threads = (size_t)n.x * n.y * n.z;
    block.n_barriers = 0;
    block.threads.assign(n_threads, thread_t());
    races::begin_block(n_threads);
}

} // namespace

const emu_watch_t ptx_watch = {begin_kernel, begin_block};

const void *ptx_read_shared(uint32_t address, size_t size_bytes, const char *here) {
    const void *bytes = at_shared(address, size_bytes, here);
    races::on_read(races::SHARED, address, size_bytes, thread_number(), here);
    return bytes;
}

void *ptx_write_shared(uint32_t address, size_t size_bytes, const char *here) {
    void *bytes = at_shared(address, size_bytes, here);
    races::on_write(races::SHARED, address, size_bytes, thread_number(), here);
    return bytes;
}

const void *ptx_read_global(uint64_t address, size_t size_bytes, const char *here) {
    const void *bytes = at_global(address, size_bytes, here);
    races::on_read(races::GLOBAL, address, size_bytes, thread_number(), here);
    return bytes;
}

void *ptx_write_global(uint64_t address, size_t size_bytes, const char *here) {
    void *bytes = at_global(address, size_bytes, here);
    races::on_write(races::GLOBAL, address, size_bytes, thread_number(), here);
    return bytes;
}

void ptx_copy_begin(uint32_t to_shared, uint64_t from_global, size_t to_bytes, size_t from_bytes,
                    const char *here) {
    size_t number = thread_number();
    void *to = at_shared(to_shared, to_bytes, here);
    const void *from = reinterpret_cast<const void *>(from_global);
    if (from_bytes > to_bytes)
        fault("copy of more than its place holds", "global", from_global, from_bytes, here);
    if (from_bytes > 0) {
        from = at_global(from_global, to_bytes, here);
        races::on_read(races::GLOBAL, from_global, from_bytes, number, here);
    }
    races::on_copy_begin(to_shared, to_bytes, number, here);
    thread_t &thread = block.threads[number];
    thread.copies.push_back({to_shared, to_bytes, here, thread.n_groups});
    emu_copy_begin(to, from, to_bytes, from_bytes);
}

void ptx_copy_commit(const char *here) {
    if (ptx_is_taken_away(here))
        return;
    block.threads[thread_number()].n_groups++;
    emu_copy_commit();
}

void ptx_copy_wait(size_t n_groups, const char *here) {
    if (ptx_is_taken_away(here))
        return;
    size_t number = thread_number();
    thread_t &thread = block.threads[number];
    emu_copy_wait(n_groups);
    while (!thread.copies.empty() && thread.copies.front().group + n_groups < thread.n_groups) {
        const copy_t &copy = thread.copies.front();
        races::on_copy_end(copy.to, copy.size_bytes, number, copy.here);
        thread.copies.pop_front();
    }
}

void ptx_wait_for_block(const char *here) {
    if (ptx_is_taken_away(here))
        return;
    size_t number = thread_number();
    emu_wait_for_block(here);
    if (++block.threads[number].n_barriers > block.n_barriers) { /* the first to go on */
        block.n_barriers++;
        races::on_block_barrier();
    }
}

void ptx_wait_for_warp(uint32_t mask, const char *here) {
    if (ptx_is_taken_away(here))
        return;
    size_t number = thread_number();
    if ((mask >> number % 32 & 1) == 0) {
        fprintf(stderr, "ptx: %s: lane %zu is not in its mask 0x%x\n", here, number % 32, mask);
        emu_fault();
    }
    races::on_warp_arrival(number, mask);
    emu_wait_for_warp(mask, here);
    races::on_warp_departure(number, mask);
}
