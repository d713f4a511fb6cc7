/*
 * How kernels are launched: on the GPU by nvcc, in tests by the emulation (tests/emu/), which the
 * host's compiler builds the same files for.
 */
#ifndef ZR_KERNELS_CUDA_CUDA_LAUNCH_CUH
#define ZR_KERNELS_CUDA_CUDA_LAUNCH_CUH

#include <cuda_runtime.h>

#include "kernels/cuda/cuda_device.h"

#define ZR_CUDA_THREADS 256
#ifndef ZR_CUDA_MAX_BLOCKS /* tests make it small: loops over the grid are then seen to run */
#define ZR_CUDA_MAX_BLOCKS 4096
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

#endif
