/*
 * The CUDA device: what its files share. CUDA types stay within this folder.
 *
 *   cuda_device.c    the device, streams, events, copies, and the table
 *   cuda_memory.c    address ranges of both tiers
 *   cuda_driver.c    the driver's calls, found when a device is opened
 *   *_cuda.cu        kernels and their launches
 */
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdint.h>

#include "kernels/device_backend.h"

ZR_BEGIN_C

/* ---- the driver's calls --------------------------------------------------------------- */

/*
 * The virtual memory calls exist in the driver alone. A program that is linked with libcuda does
 * not start where there is no driver, so they are asked of the runtime when a device is opened.
 */
#define ZR_CUDA_DRIVER_CALLS(CALL)                                                                 \
    CALL(cuGetErrorName)                                                                           \
    CALL(cuGetErrorString)                                                                         \
    CALL(cuDeviceGet)                                                                              \
    CALL(cuDeviceGetAttribute)                                                                     \
    CALL(cuMemGetAllocationGranularity)                                                            \
    CALL(cuMemAddressReserve)                                                                      \
    CALL(cuMemAddressFree)                                                                         \
    CALL(cuMemCreate)                                                                              \
    CALL(cuMemRelease)                                                                             \
    CALL(cuMemMap)                                                                                 \
    CALL(cuMemUnmap)                                                                               \
    CALL(cuMemSetAccess)

typedef struct zr_cuda_driver {
#define ZR_CUDA_DRIVER_MEMBER(name) __typeof__(name) *name##_p;
    ZR_CUDA_DRIVER_CALLS(ZR_CUDA_DRIVER_MEMBER)
#undef ZR_CUDA_DRIVER_MEMBER
} zr_cuda_driver_t;

/** Find them all; the runtime must have found a driver. ZR_ERR_UNSUPPORTED names what is missing.
 */
ZR_NODISCARD zr_status_t zr_cuda_driver_find(const zr_log_t *log, zr_cuda_driver_t *driver);

/* ---- device, streams, events ------------------------------------------------------------ */

/* Work that was queued; `ticket` counts the work of its stream. All strings are static. */
typedef struct zr_cuda_work {
    uint64_t stream_number, ticket;
    const char *stream_name, *name;
} zr_cuda_work_t;

#define ZR_CUDA_RECENT 64

typedef struct zr_cuda_device {
    zr_device_t base;
    int index;
    int major; /* compute capability */
    size_t l2_bytes;
    zr_cuda_driver_t driver;
    bool has_virtual_memory;               /* otherwise ranges are cudaMalloc's */
    bool has_no_peers;                     /* as zr_device_options_t has it */
    CUmemAccessDesc *accesses;             /* [n_accesses]: this device, and its peers */
    size_t n_accesses;                     /* at least 1 */
    struct zr_cuda_range *ranges;          /* reserved; kept by cuda_memory.c */
    uint64_t n_streams;                    /* created so far: their numbers */
    zr_cuda_work_t recent[ZR_CUDA_RECENT]; /* a ring: the latest work, less what has passed */
    size_t n_recent;                       /* written so far */
    cudaEvent_t reference;                 /* timers are read against it; NULL before the first */
    double reference_seconds;              /* when it passed */
    struct zr_cuda_blas *blas;             /* NULL before the first matrix product; kept by
                                              nn/cuda/matmul_plan.c */
    void (*close_blas)(struct zr_cuda_device *cuda); /* frees it; set with it */
    struct zr_cuda_attention_plans *attention;       /* likewise: nn/cuda/attention_cudnn.c */
    void (*close_attention)(struct zr_cuda_device *cuda);
} zr_cuda_device_t;

typedef struct zr_cuda_stream {
    zr_stream_t base;
    cudaStream_t queue;
    uint64_t number, n_queued;
} zr_cuda_stream_t;

typedef struct zr_cuda_event {
    zr_event_t base;
    cudaEvent_t handle;
    uint64_t stream_number, ticket; /* what its last record is behind */
} zr_cuda_event_t;

/**
 * Make the device the calling thread's current one: first in every entry that calls CUDA, because
 * a device may be handed from thread to thread.
 */
ZR_NODISCARD zr_status_t zr_cuda_enter(zr_device_t *device);

/**
 * Log that `what` (printf's) failed and, because a failure of queued work shows in whatever is
 * called next, the work that is not known to have passed. Always ZR_ERR_DEVICE.
 */
zr_status_t zr_cuda_fail(zr_device_t *device, cudaError_t error, const char *what, ...)
    ZR_PRINTF(3, 4);

/** After each launch: note the work by its name (static), or fail when it was refused. */
ZR_NODISCARD zr_status_t zr_cuda_launched(zr_stream_t *stream, const char *name);

static inline cudaStream_t zr_cuda_queue(zr_stream_t *stream) {
    return ((zr_cuda_stream_t *)stream)->queue;
}

/* ---- memory (cuda_memory.c) --------------------------------------------------------------- */

/** Find out what the device can, the granule, and who may access its memory. */
ZR_NODISCARD zr_status_t zr_cuda_memory_open(zr_cuda_device_t *cuda);
void zr_cuda_memory_close(zr_cuda_device_t *cuda);

/**
 * How many of the `size_bytes` bytes at `address` one copy may cover: it must not cross from one
 * registration of host memory into the next.
 */
size_t zr_cuda_copy_piece(const zr_cuda_device_t *cuda, const void *address, size_t size_bytes);

/* Entries of the table. */
zr_status_t zr_cuda_range_reserve(zr_device_t *device, zr_tier_t tier, size_t size_bytes,
                                  void **base_p);
void zr_cuda_range_release(zr_device_t *device, zr_tier_t tier, void *base, size_t size_bytes);
zr_status_t zr_cuda_range_map(zr_device_t *device, zr_tier_t tier, void *base, size_t offset_bytes,
                              size_t size_bytes);
zr_status_t zr_cuda_range_unmap(zr_device_t *device, zr_tier_t tier, void *base,
                                size_t offset_bytes, size_t size_bytes);
zr_status_t zr_cuda_range_move(zr_device_t *device, zr_tier_t tier, void *from, void *to,
                               size_t size_bytes);

/* ---- kernels (*_cuda.cu): entries of the table ----------------------------------------------- */

/*
 * Pointers may be aligned to their element only: groups of 16 bytes are read and written as one
 * access where all pointers of a call allow it, element by element otherwise. No kernel uses
 * atomics, so no sum depends on the run.
 */
zr_status_t zr_cuda_sum_of_squares(zr_stream_t *stream, const void *x, zr_dtype_t dtype,
                                   size_t n_elems, double *result, void *workspace);
zr_status_t zr_cuda_add(zr_stream_t *stream, void *dst, zr_dtype_t dst_dtype, const void *src,
                        zr_dtype_t src_dtype, size_t n_elems);
zr_status_t zr_cuda_scale(zr_stream_t *stream, void *x, zr_dtype_t dtype, size_t n_elems,
                          float factor);
zr_status_t zr_cuda_cast(zr_stream_t *stream, void *dst, zr_dtype_t dst_dtype, const void *src,
                         zr_dtype_t src_dtype, size_t n_elems);
zr_status_t zr_cuda_fill(zr_stream_t *stream, void *x, zr_dtype_t dtype, size_t n_elems,
                         float value);
/** ZR_KERNEL_ENCODE or ZR_KERNEL_DECODE. */
zr_status_t zr_cuda_code(zr_stream_t *stream, const zr_kernel_work_t *work);
zr_status_t zr_cuda_spread(zr_stream_t *stream, const zr_spread_t *args, const char *name);

ZR_END_C
