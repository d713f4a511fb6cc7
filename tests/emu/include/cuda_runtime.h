/*
 * What nvcc brings for kernels: for the host's compiler. A kernel is an ordinary function that
 * runs once per thread; `threadIdx` and its like are those of the thread that runs.
 */
#ifndef ZR_TESTS_EMU_CUDA_RUNTIME_H
#define ZR_TESTS_EMU_CUDA_RUNTIME_H

#include <cuda_runtime_api.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include <functional>
#include <tuple>
#include <type_traits>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __shared__ static /* one block runs at a time */
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {
    }
};

/* ---- for kernels ------------------------------------------------------------------------ */

struct emu_thread_t {
    dim3 thread, block, n_threads, n_blocks;
};
extern const emu_thread_t *emu_thread; /* the one that runs */
#define threadIdx (emu_thread->thread)
#define blockIdx (emu_thread->block)
#define blockDim (emu_thread->n_threads)
#define gridDim (emu_thread->n_blocks)
#define warpSize 32

#define EMU_STRING_(x) #x
#define EMU_STRING(x) EMU_STRING_(x)
#define EMU_HERE __FILE__ ":" EMU_STRING(__LINE__)

/* Wait for the block, or for the lanes of `mask` in the warp. `here` names the barrier. */
void emu_wait_for_block(const char *here);
void emu_wait_for_warp(unsigned mask, const char *here);
#define __syncthreads() emu_wait_for_block(EMU_HERE)
#define __syncwarp(...) emu_wait_for_warp(0xffffffffu, EMU_HERE)

/* Show `bits` to the warp and get those of lane `lane`; a lane outside 0 to 31 gets its own. */
uint64_t emu_exchange(unsigned mask, uint64_t bits, int lane, const char *here);
unsigned emu_lane(void);

template <typename T> T emu_shuffle(unsigned mask, T value, int lane, const char *here) {
    static_assert(sizeof(T) <= sizeof(uint64_t), "a shuffle moves at most 8 bytes");
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof(value));
    bits = emu_exchange(mask, bits, lane, here);
    memcpy(&value, &bits, sizeof(value));
    return value;
}
#define __shfl_sync(mask, value, lane) emu_shuffle(mask, value, (int)(lane), EMU_HERE)
#define __shfl_xor_sync(mask, value, bits) emu_shuffle(mask, value, emu_lane() ^ (bits), EMU_HERE)
#define __shfl_down_sync(mask, value, by) emu_shuffle(mask, value, emu_lane() + (by), EMU_HERE)
#define __shfl_up_sync(mask, value, by) emu_shuffle(mask, value, (int)emu_lane() - (by), EMU_HERE)

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

/* The block's dynamic shared memory. It begins as NaNs of all dtypes, and what lies behind it is a
 * fault. */
void *emu_shared_memory(void);

/* ---- for launches ------------------------------------------------------------------------- */

struct emu_launch_t {
    const char *name;
    const void *function;
    dim3 n_blocks, n_threads;
    size_t shared_bytes;
    cudaStream_t stream;
};
/* `pointers`: the kernel's arguments that are some; they have to be the device's. */
void emu_queue_kernel(const emu_launch_t &launch, std::function<void()> thread,
                      std::vector<const void *> pointers);

template <typename T>
void emu_collect_pointer(std::vector<const void *> &pointers, const T &argument) {
    if constexpr (std::is_pointer_v<T>)
        pointers.push_back(argument);
}

template <typename... P, typename... A>
void emu_launch(const char *name, void (*kernel)(P...), dim3 n_blocks, dim3 n_threads,
                size_t shared_bytes, cudaStream_t stream, A... arguments) {
    static_assert((sizeof(P) + ... + 0) <= 32764, "arguments of a kernel: at most 32764 bytes");
    std::tuple<P...> copies(arguments...);
    std::vector<const void *> pointers;
    std::apply([&](auto &...copy) { (emu_collect_pointer(pointers, copy), ...); }, copies);
    emu_queue_kernel(
        {name, (const void *)kernel, n_blocks, n_threads, shared_bytes, stream},
        [=] { std::apply(kernel, copies); }, pointers);
}

#endif
