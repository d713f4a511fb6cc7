/*
 * How kernels are launched: on the GPU by nvcc, in tests by the emulation (tests/emu/), which the
 * host's compiler builds the same files for.
 */
#ifndef ZR_KERNELS_CUDA_CUDA_LAUNCH_CUH
#define ZR_KERNELS_CUDA_CUDA_LAUNCH_CUH

#include <cuda_runtime.h>

#include "kernels/cuda/cuda_device.h"

#define ZR_CUDA_THREADS 256
/* So many that the last ones, which leave part of the GPU idle, are few of them. */
#ifndef ZR_CUDA_MAX_BLOCKS /* tests make it small: loops over the grid are then seen to run */
#define ZR_CUDA_MAX_BLOCKS (1u << 20)
#endif

/**
 * Launch `kernel`, in parentheses where it has template arguments, on a cudaStream_t. Its arguments
 * follow. Whether it was accepted is what zr_cuda_launched says.
 */
#ifdef __CUDACC__
#define ZR_CUDA_LAUNCH(kernel, blocks, threads, shared_bytes, queue, ...)                          \
    kernel<<<blocks, threads, shared_bytes, queue>>>(__VA_ARGS__)
#else
#define ZR_CUDA_LAUNCH(kernel, blocks, threads, shared_bytes, queue, ...)                          \
    emu_launch(#kernel, kernel, blocks, threads, shared_bytes, queue, __VA_ARGS__)
#endif

/**
 * Declare `name`, a pointer to the bytes of shared memory that the launch asks for, aligned to 16.
 * A block may have 48 KiB of them; up to 99 KiB after zr_cuda_allow_shared.
 */
#ifdef __CUDACC__
#define ZR_CUDA_SHARED(name) extern __shared__ __align__(16) unsigned char name[]
#else
#define ZR_CUDA_SHARED(name) unsigned char *name = static_cast<unsigned char *>(emu_shared_memory())
#endif

/** The address of what is read or written as one access: elsewhere than at a multiple of its
 * alignment that would be a fault. */
template <typename W> static __device__ inline const W *zr_access(const void *address) {
#ifndef __CUDACC__
    emu_check_access(address, alignof(W));
#endif
    return static_cast<const W *>(address);
}
template <typename W> static __device__ inline W *zr_access(void *address) {
    return const_cast<W *>(zr_access<W>(static_cast<const void *>(address)));
}

/** Let launches of `kernel` on the current device ask for `size_bytes` of shared memory: the same
 * number each time, because other threads launch it, too. */
template <typename... P>
static inline zr_status_t zr_cuda_allow_shared(zr_stream_t *stream, void (*kernel)(P...),
                                               size_t size_bytes, const char *name) {
    cudaError_t error = cudaFuncSetAttribute(reinterpret_cast<const void *>(kernel),
                                             cudaFuncAttributeMaxDynamicSharedMemorySize,
                                             static_cast<int>(size_bytes));
    if (error == cudaSuccess)
        return ZR_OK;
    return zr_cuda_fail(stream->device, error, "asking for %zu bytes of shared memory for %s",
                        size_bytes, name);
}

/**
 * Call `body` with a value of the type that elements of a dtype have, float or zr_bf16_t:
 * [&](auto element) { using T = decltype(element); ... }; and with one of each of two.
 */
template <typename F> static inline void zr_by_dtype(zr_dtype_t dtype, F body) {
    if (dtype == ZR_DTYPE_F32)
        body(float());
    else
        body(zr_bf16_t());
}
template <typename F> static inline void zr_by_dtypes(zr_dtype_t a, zr_dtype_t b, F body) {
    zr_by_dtype(a, [&](auto of_a) { zr_by_dtype(b, [&](auto of_b) { body(of_a, of_b); }); });
}

#endif
