/*
 * User-defined kernels: one description that runs on every device, in the order of a stream.
 */
#pragma once

#include "kernels/kernels.h"

ZR_BEGIN_C

typedef struct zr_own_kernel {
    const char *name; /* static */
    /* Optional. For host devices: called in the order of the stream; the CPU can access device
     * memory. */
    void (*host)(const void *args);
    /* Optional. For GPUs: launch on this cudaStream_t, whose device is current. Returns 0, or not 0
     * if the launch failed. */
    int (*cuda)(void *stream, const void *args);
} zr_own_kernel_t;

/**
 * Queue a user-defined kernel.
 *
 * @param args  [args_bytes] copied; memory that it points to must stay valid until the work is done
 * @param cost  used by a simulated device, which computes nothing
 * @return ZR_OK; ZR_ERR_ARGUMENT; ZR_ERR_UNSUPPORTED if it has no function for the device;
 *         ZR_ERR_MEMORY; ZR_ERR_DEVICE
 *
 * Threads: those of the stream.
 */
ZR_NODISCARD zr_status_t zr_kernel_own(zr_stream_t *stream, const zr_own_kernel_t *kernel,
                                       const void *args, size_t args_bytes, zr_cost_t cost);

ZR_END_C
