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
#define __forceinline__ inline
/* One block runs at a time. All of it lies together, so that it can be spoilt before each block. */
#define __shared__ static __attribute__((section("emu_shared")))
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {
    }
};

/* ---- for kernels ------------------------------------------------------------------------ */

#include "tests/emu/emu_thread.h"

#define threadIdx (emu_thread->thread)
#define blockIdx (emu_thread->block)
#define blockDim (emu_thread->n_threads)
#define gridDim (emu_thread->n_blocks)
#define warpSize 32

#define EMU_STRING_(x) #x
#define EMU_STRING(x) EMU_STRING_(x)
#define EMU_HERE __FILE__ ":" EMU_STRING(__LINE__)

inline void emu_syncwarp(const char *here, unsigned mask = 0xffffffffu) {
    emu_wait_for_warp(mask, here);
}
#define __syncthreads() emu_wait_for_block(EMU_HERE)
#define __syncwarp(...) emu_syncwarp(EMU_HERE, ##__VA_ARGS__)

/* From which lane: the warp falls into groups of `width` lanes, and what leaves one is its own. */
template <typename T>
T emu_shuffle(const char *here, unsigned mask, T value, int lane_in_group, int width) {
    static_assert(sizeof(T) <= sizeof(uint64_t), "a shuffle moves at most 8 bytes");
    int lane = (int)emu_lane(), first = lane / width * width;
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof(value));
    if (lane_in_group >= 0 && lane_in_group < width)
        lane = first + lane_in_group;
    bits = emu_exchange(mask, bits, lane, here);
    memcpy(&value, &bits, sizeof(value));
    return value;
}
template <typename T>
T emu_shfl(const char *here, unsigned mask, T value, int lane, int width = warpSize) {
    return emu_shuffle(here, mask, value, (int)((unsigned)lane % (unsigned)width), width);
}
template <typename T>
T emu_shfl_xor(const char *here, unsigned mask, T value, int bits, int width = warpSize) {
    return emu_shuffle(here, mask, value, ((int)emu_lane() % width) ^ bits, width);
}
template <typename T>
T emu_shfl_down(const char *here, unsigned mask, T value, unsigned by, int width = warpSize) {
    return emu_shuffle(here, mask, value, (int)emu_lane() % width + (int)by, width);
}
template <typename T>
T emu_shfl_up(const char *here, unsigned mask, T value, unsigned by, int width = warpSize) {
    return emu_shuffle(here, mask, value, (int)emu_lane() % width - (int)by, width);
}
#define __shfl_sync(...) emu_shfl(EMU_HERE, __VA_ARGS__)
#define __shfl_xor_sync(...) emu_shfl_xor(EMU_HERE, __VA_ARGS__)
#define __shfl_down_sync(...) emu_shfl_down(EMU_HERE, __VA_ARGS__)
#define __shfl_up_sync(...) emu_shfl_up(EMU_HERE, __VA_ARGS__)

template <typename T> unsigned emu_match_any(const char *here, unsigned mask, T value) {
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof(value));
    return emu_match(mask, bits, here);
}
#define __ballot_sync(mask, predicate) emu_ballot(mask, (predicate) != 0, EMU_HERE)
#define __any_sync(mask, predicate) (emu_ballot(mask, (predicate) != 0, EMU_HERE) != 0)
#define __all_sync(mask, predicate) (emu_ballot(mask, (predicate) == 0, EMU_HERE) == 0)
#define __match_any_sync(mask, value) emu_match_any(EMU_HERE, mask, value)

inline int __popc(unsigned bits) {
    return __builtin_popcount(bits);
}
inline int __ffs(int bits) {
    return __builtin_ffs(bits);
}
inline int __clz(int bits) {
    return bits == 0 ? 32 : __builtin_clz((unsigned)bits);
}

/* One thread runs at a time, so what is done to memory is done at once; in which order is drawn. */
template <typename T> T atomicAdd(T *address, T value) {
    T old = *address;
    *address = old + value;
    return old;
}
template <typename T> T atomicMax(T *address, T value) {
    T old = *address;
    *address = old > value ? old : value;
    return old;
}
inline void __threadfence() {
}
inline void __threadfence_block() {
}

/* Short names of one instruction each on a GPU; here precise. */
inline float __expf(float x) {
    return expf(x);
}
inline float __fdividef(float x, float y) {
    return x / y;
}
template <typename T> T __ldg(const T *address) {
    return *address;
}

struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
inline float2 make_float2(float x, float y) {
    return {x, y};
}
inline float4 make_float4(float x, float y, float z, float w) {
    return {x, y, z, w};
}
inline uint2 make_uint2(unsigned x, unsigned y) {
    return {x, y};
}
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) {
    return {x, y, z, w};
}

/* ---- for launches ------------------------------------------------------------------------- */

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
