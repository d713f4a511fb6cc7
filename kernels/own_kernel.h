/*
 * Kernels of a caller's own: one description that runs on every device, in the order of a stream.
 */
#pragma once

#include "kernels/kernels.h"

ZR_BEGIN_C

typedef struct zr_own_kernel {
    const char *name; /* static */
    /* On a host device, where the stream has come so far; device memory is the CPU's. Optional. */
    void (*host)(const void *args);
    /* On a GPU: launch on this cudaStream_t, whose device is the current one. Not 0: the launch
     * failed. Optional. */
    int (*cuda)(void *stream, const void *args);
} zr_own_kernel_t;

/**
 * Queue a kernel of one's own.
 *
 * @param args  [args_bytes] copied; what it points to lives until the work is done
 * @param cost  what a simulated device takes the time for, where nothing is computed
 * @return ZR_OK; ZR_ERR_ARGUMENT; ZR_ERR_UNSUPPORTED when it has no function for the device;
 *         ZR_ERR_MEMORY; ZR_ERR_DEVICE
 *
 * Threads: those of the stream.
 */
ZR_NODISCARD zr_status_t zr_kernel_own(zr_stream_t *stream, const zr_own_kernel_t *kernel,
                                       const void *args, size_t args_bytes, zr_cost_t cost);

ZR_END_C
