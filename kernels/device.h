/*
 * The device interface: memory, streams, events and copies.
 *
 * Work is queued on a stream and runs in the order of that stream; between
 * streams only events order it. A caller may assume nothing more, so that the
 * same schedule is right on CUDA, where streams run late, and on the host,
 * whose streams execute work before the queueing call returns.
 *
 * Memory comes as address ranges whose granules are mapped one by one; the
 * allocator (allocator/allocator.h) is what turns them into tensors.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "kernels/dtype.h"
#include "kernels/base/log.h"
#include "kernels/base/status.h"
#include "kernels/base/trace.h"

ZR_BEGIN_C

/** Where memory is. */
typedef enum zr_tier {
    ZR_TIER_DEVICE = 0, /* the device's own memory */
    ZR_TIER_HOST = 1,   /* host memory, pinned if the device supports it */
    ZR_TIER_NVME = 2    /* files; has no addresses */
} zr_tier_t;
#define ZR_N_TIERS 3

/** "device", "host" or "nvme". */
const char *zr_tier_name(zr_tier_t tier);

typedef struct zr_device zr_device_t;
typedef struct zr_stream zr_stream_t;
typedef struct zr_event zr_event_t;

typedef struct zr_device_options {
    zr_log_t log;
    int index;       /* which device of its kind, from 0 */
    int n_threads;   /* host: threads that share one kernel's work; 0 means all cores */
    const char *isa; /* host: "baseline", "avx2" or "avx512"; NULL means the best one here */
    bool concurrent; /* host, and sim of a host: streams of zr_stream_create_concurrent get a thread
                    each; false: they run in the calling thread like all others */
    bool shares_memory; /* host: other processes of this user may map its memory, if the system
                           supports huge pages for that. For ranks that are processes of one machine
                           (zr_comm_create_processes). Mapped memory is not inherited by a forked
                           child */
    bool has_no_peers;  /* cuda: no other GPU accesses its memory, which makes mapping faster. Not
                           for NCCL between ranks of one process, which does */
    const struct zr_hardware *hardware; /* sim: the simulated hardware (kernels/base/hardware.h),
                                           copied; NULL means zr_hardware_default() */
    struct zr_sim_clock *clock; /* sim: its virtual clock (kernels/simulation.h), borrowed until the
                                   device is closed; NULL: its own clock */
    zr_trace_t *trace; /* recorder of its work; borrowed until the device is closed; NULL: none */
} zr_device_options_t;

typedef struct zr_device_info {
    const char *backend;      /* "host", "cuda", ...; static */
    char description[128];    /* model name, instruction set, threads, as text for people */
    bool host_addressable;    /* the CPU can read and write device memory */
    bool synchronous;         /* work is done when the queueing call returns, on every stream */
    size_t granule_bytes;     /* unit of mapping in both tiers, a power of two */
    size_t memory_bytes;      /* total device memory, not only free memory */
    size_t in_use_bytes;      /* cuda: device memory in use when the device was opened: by contexts,
                                 libraries, other programs and earlier ranks */
    size_t host_memory_bytes; /* total memory of the host tier; 0: unknown */
    int n_threads;            /* host: threads in use; otherwise 0 */
    bool shares_memory;       /* host: shares_memory was requested and is supported */
    int cuda_major;           /* cuda: major compute capability; otherwise 0 */
    size_t matmul_workspace_bytes; /* cuda: needed by the chosen algorithms of matrix products
                                      (zr_nn_matmul_choose); 0: none were chosen */
    bool computes_on_host; /* its kernels can access the host tier and any other host memory */
    bool stores_nothing;   /* simulated: addresses of both tiers have no memory and must not be
                              accessed. Kernels and copies take virtual time and move nothing; a copy
                              to other memory of the process writes zeros */
} zr_device_info_t;

/** Options that mean: first device, all cores, best instruction set, default log. */
zr_device_options_t zr_device_options_default(void);

/**
 * Open a device.
 *
 * @param name     "host", "sim" (and, where built, "cuda")
 * @param options  NULL means the defaults; borrowed for the call
 * @return ZR_OK; ZR_ERR_ARGUMENT for an unknown name or invalid option;
 *         ZR_ERR_UNSUPPORTED if this build or machine lacks it; ZR_ERR_MEMORY
 *
 * Ownership: close with zr_device_close after all its streams, events and ranges.
 * Threads: a device, with everything made from it, belongs to one thread at a time.
 */
ZR_NODISCARD zr_status_t zr_device_open(const char *name, const zr_device_options_t *options,
                                        zr_device_t **device_p);
void zr_device_close(zr_device_t **device);

/**
 * Open a device whose kernels work on the host tier of another device: "host", or a simulated host
 * processor if `device` is simulated. Otherwise as zr_device_open; without a recorder in the
 * options it uses that of `device`. Its streams are synchronous (zr_stream_is_synchronous), except
 * those of zr_stream_create_concurrent.
 *
 * Ownership: close it before `device`. Threads: that of `device`.
 */
ZR_NODISCARD zr_status_t zr_device_open_host(zr_device_t *device,
                                             const zr_device_options_t *options,
                                             zr_device_t **host_p);

/**
 * Seconds of the device's clock: a monotonic clock of the machine, or a simulated device's virtual
 * clock.
 */
double zr_device_now(const zr_device_t *device);

/** The recorder that the device was opened with; NULL: none. */
zr_trace_t *zr_device_trace(const zr_device_t *device);

/** Information about the device; valid until it is closed. */
const zr_device_info_t *zr_device_info(const zr_device_t *device);

/** The log the device was opened with; valid until it is closed. */
const zr_log_t *zr_device_log(const zr_device_t *device);

/** Size of the last error message that a device keeps, with the terminating zero. */
#define ZR_DEVICE_ERROR_BYTES 512

/** Store the message of an error that was logged elsewhere but concerns the device, such as its
 * allocator's. Threads: thread-safe. */
void zr_device_note_error(zr_device_t *device, const char *message);

/**
 * The last error message of the device, to tell other ranks why work failed.
 *
 * @param text  [ZR_DEVICE_ERROR_BYTES]; "" if there was none. Longer text is truncated, with a
 *              mark.
 *
 * Threads: thread-safe.
 */
void zr_device_last_error(const zr_device_t *device, char *text);

/**
 * Reserve a range of addresses without memory behind them.
 *
 * @param tier        ZR_TIER_DEVICE or ZR_TIER_HOST
 * @param size_bytes  a multiple of the granule, > 0
 * @return ZR_OK; ZR_ERR_ARGUMENT; ZR_ERR_BUDGET if there is no such range; logged at info level
 *         only, since a smaller range may work
 *
 * The start is aligned to the granule and to at least 4 KiB.
 */
ZR_NODISCARD zr_status_t zr_range_reserve(zr_device_t *device, zr_tier_t tier, size_t size_bytes,
                                          void **base_p);
/** Release the addresses and any memory that is still mapped; NULL is fine. */
void zr_range_release(zr_device_t *device, zr_tier_t tier, void **base, size_t size_bytes);

/**
 * Map memory to unmapped granules; unmap mapped granules.
 * Freshly mapped memory holds unspecified values. Unmapping keeps the addresses reserved
 * and requires that no queued work uses them.
 *
 * @param offset_bytes, size_bytes  multiples of the granule, inside the range
 * @return ZR_OK; ZR_ERR_ARGUMENT; ZR_ERR_BUDGET if the machine has no more memory (nothing is
 *         mapped then; logged at info level only, since the caller may free memory and retry)
 */
ZR_NODISCARD zr_status_t zr_range_map(zr_device_t *device, zr_tier_t tier, void *base,
                                      size_t offset_bytes, size_t size_bytes);
ZR_NODISCARD zr_status_t zr_range_unmap(zr_device_t *device, zr_tier_t tier, void *base,
                                        size_t offset_bytes, size_t size_bytes);

/**
 * Move the memory of mapped granules to unmapped granules, in the same or another range of the
 * tier. The source is unmapped afterwards. If the device supports it, the memory is not returned to
 * the machine in between, so no other program can take it.
 *
 * The content of the memory is unspecified afterwards, also on failure. No queued work may use the
 * source.
 *
 * @param from_offset_bytes, to_offset_bytes, size_bytes  multiples of the granule, inside the
 *                           ranges; source and destination must not overlap
 * @return ZR_OK; ZR_ERR_ARGUMENT or ZR_ERR_DEVICE: the mapping is unchanged; ZR_ERR_BUDGET: the
 *         device had to return the memory and could not get it again: neither source nor
 *         destination is mapped now
 */
ZR_NODISCARD zr_status_t zr_range_move(zr_device_t *device, zr_tier_t tier, void *from_base,
                                       size_t from_offset_bytes, void *to_base,
                                       size_t to_offset_bytes, size_t size_bytes);

/**
 * Create a queue of work.
 *
 * @param name  static string, for messages and traces: "compute", "comm", ...
 * @return ZR_OK; ZR_ERR_MEMORY; ZR_ERR_DEVICE
 *
 * Ownership: destroy waits for the queued work and frees it.
 */
ZR_NODISCARD zr_status_t zr_stream_create(zr_device_t *device, const char *name,
                                          zr_stream_t **stream_p);
void zr_stream_destroy(zr_stream_t **stream);

/**
 * Create a stream that runs concurrently with the calling thread and with compute, for collectives.
 * On cuda, where all streams do, its kernels have priority over those of zr_stream_create; copies
 * have none there. On a host device opened with zr_device_options_t.concurrent, the stream has its
 * own thread for copies, the runtime's kernels and functions (zr_stream_call); a transformer's
 * kernels wait for their turn and run in the calling thread. All other streams of such a device run
 * in the calling thread, and zr_stream_wait on them blocks until the event has passed.
 */
ZR_NODISCARD zr_status_t zr_stream_create_concurrent(zr_device_t *device, const char *name,
                                                     zr_stream_t **stream_p);

/** Whether work on this stream is done when the queueing call returns. */
bool zr_stream_is_synchronous(const zr_stream_t *stream);

/** The device of a stream. */
zr_device_t *zr_stream_device(const zr_stream_t *stream);

/**
 * The device's native handle of a stream, to queue your own kernels in its order. Report the cost
 * of each with zr_stream_launched (kernels.h).
 *
 * @return "cuda": a cudaStream_t; the caller makes its device current. NULL: no native handle.
 *         Then, if the stream is synchronous (zr_stream_is_synchronous), the caller computes
 *         directly, since all queued work is done; on a host stream with its own thread it queues a
 *         function (zr_stream_call); on a simulated device there is nothing to compute
 *
 * Ownership: belongs to the stream.
 */
void *zr_stream_native(const zr_stream_t *stream);

/**
 * Wait until all work queued on the stream is done.
 *
 * @return ZR_OK; ZR_ERR_DEVICE if some of it failed: the log names the failed work
 */
ZR_NODISCARD zr_status_t zr_stream_synchronize(zr_stream_t *stream);

/** Whether functions can be queued on a stream: true for host streams with their own thread. */
bool zr_stream_takes_calls(const zr_stream_t *stream);

/**
 * A function executed by a stream's thread, in the order of the stream. It may wait for other
 * processes. It may queue work on `stream` until it returns: such work is executed synchronously,
 * on the device's threads if they are idle.
 */
typedef void (*zr_stream_fn)(void *context, zr_stream_t *stream);

/**
 * Queue a function.
 *
 * @param context  passed to the function; not freed
 * @return ZR_OK; ZR_ERR_ARGUMENT if the stream takes no functions; ZR_ERR_MEMORY: it will not be
 *         called
 */
ZR_NODISCARD zr_status_t zr_stream_call(zr_stream_t *stream, zr_stream_fn fn, void *context);

/**
 * Seconds that the device's thread waited for events and streams, on a host device with concurrent
 * streams and on a simulated device. 0 on other devices, which do not count it.
 */
double zr_device_wait_seconds(const zr_device_t *device);

/** Create an event; one that was never recorded counts as passed. */
ZR_NODISCARD zr_status_t zr_event_create(zr_device_t *device, zr_event_t **event_p);
void zr_event_destroy(zr_event_t **event);

/** The event passes when the work queued on `stream` up to now is done. May be recorded again. */
ZR_NODISCARD zr_status_t zr_event_record(zr_event_t *event, zr_stream_t *stream);
/**
 * Work queued on `stream` from now on starts after the event's last record so far has passed.
 * The event may belong to another device of the same backend, whose owner must not record or
 * destroy it meanwhile.
 */
ZR_NODISCARD zr_status_t zr_stream_wait(zr_stream_t *stream, zr_event_t *event);
/** Block the calling thread until the event has passed. */
ZR_NODISCARD zr_status_t zr_event_synchronize(zr_event_t *event);
/** Whether the event has passed, without waiting. */
ZR_NODISCARD zr_status_t zr_event_query(zr_event_t *event, bool *passed_p);
/** The same, for a caller that queues the same work whatever the answer: on a simulated device it
 * takes no time. */
ZR_NODISCARD zr_status_t zr_event_peek(zr_event_t *event, bool *passed_p);

typedef enum zr_copy {
    ZR_COPY_HOST_TO_DEVICE = 0,
    ZR_COPY_DEVICE_TO_HOST = 1,
    ZR_COPY_DEVICE_TO_DEVICE = 2
} zr_copy_t;

/**
 * Queue a copy.
 *
 * @param dst, src    must not overlap; host pointers may be any host memory, which must stay valid
 *             and unchanged until the copy is done
 * @param size_bytes  0 is fine
 * @return ZR_OK; ZR_ERR_ARGUMENT; ZR_ERR_DEVICE
 */
ZR_NODISCARD zr_status_t zr_copy_async(zr_stream_t *stream, void *dst, const void *src,
                                       size_t size_bytes, zr_copy_t kind);

ZR_END_C
