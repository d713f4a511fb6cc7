/*
 * The device interface: memory, streams, events and copies.
 *
 * Work is queued on a stream and runs in the order of that stream; between
 * streams only events order it. A caller may assume nothing more, so that the
 * same schedule is right on CUDA, where streams run late, and on the host,
 * whose streams run each piece of work before the queueing call returns.
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

/** Where bytes live. */
typedef enum zr_tier {
    ZR_TIER_DEVICE = 0, /* the device's own memory */
    ZR_TIER_HOST = 1,   /* host memory, pinned where the device can use that */
    ZR_TIER_NVME = 2    /* files; never addresses */
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
    bool beside;     /* host, and sim of one: streams of zr_stream_create_beside have a thread each;
                        without, they work in the calling thread, as all others do */
    bool shares_memory; /* host: other processes of this user may map its memory, where the system
                           gives huge pages to that: for ranks that are processes of one machine
                           (zr_comm_create_processes). Memory that is mapped when the process forks
                           is not in the child */
    bool
        has_no_peers; /* cuda: no other GPU's work reads or writes its memory, which is mapped
                         sooner without access for them. NCCL's does between ranks of one process */
    const struct zr_hardware *hardware; /* sim: what it stands for (kernels/base/hardware.h),
                                           copied; NULL means zr_hardware_default() */
    struct zr_sim_clock *clock; /* sim: whose time it takes (kernels/simulation.h), borrowed until
                                   it is closed; NULL means one of its own */
    zr_trace_t *trace; /* where what it does is recorded, and what is done with it; borrowed
                          until it is closed; NULL: nowhere */
} zr_device_options_t;

typedef struct zr_device_info {
    const char *backend;      /* "host", "cuda", ...; static */
    char description[128];    /* model name, instruction set, threads: for people */
    bool host_addressable;    /* the CPU may read and write device memory itself */
    bool synchronous;         /* work is done when the queueing call returns, on every stream */
    size_t granule_bytes;     /* mapping unit of both tiers, a power of two */
    size_t memory_bytes;      /* device memory of the machine, not what is free */
    size_t in_use_bytes;      /* cuda: of it, when the device was opened: by contexts and libraries,
                                 by other programs, and by ranks that were there before */
    size_t host_memory_bytes; /* likewise of the host tier; 0: what the system says */
    int n_threads;            /* host: threads in use; otherwise 0 */
    bool shares_memory;       /* host: as was asked for, and could be had */
    int cuda_major;           /* cuda: major compute capability; otherwise 0 */
    bool computes_on_host;    /* its kernels work on memory of the host tier, and on any other */
    bool stores_nothing; /* simulated: there is no memory behind addresses of either tier. Touching
                            them is a fault; kernels and copies take their time and move nothing,
                            but that a copy to other memory of the process makes it zeros */
} zr_device_info_t;

/** Options that mean: first device, all cores, best instruction set, default log. */
zr_device_options_t zr_device_options_default(void);

/**
 * Open a device.
 *
 * @param name     "host", "sim" (and, where built, "cuda")
 * @param options  NULL means the defaults; borrowed for the call
 * @return ZR_OK; ZR_ERR_ARGUMENT for a name or option that is none;
 *         ZR_ERR_UNSUPPORTED when this build or machine lacks it; ZR_ERR_MEMORY
 *
 * Ownership: close with zr_device_close after all its streams, events and ranges.
 * Threads: a device, with everything made from it, belongs to one thread at a time.
 */
ZR_NODISCARD zr_status_t zr_device_open(const char *name, const zr_device_options_t *options,
                                        zr_device_t **device_p);
void zr_device_close(zr_device_t **device);

/**
 * Open a device whose kernels work on the memory of another one's host tier: "host", but beside a
 * simulated device its own processors, simulated. As zr_device_open otherwise; without a recorder
 * in the options it has that of `device`. Its streams are synchronous (zr_stream_is_synchronous),
 * but for those beside the thread.
 *
 * Ownership: close it before `device`, whose thread it belongs to.
 */
ZR_NODISCARD zr_status_t zr_device_open_host(zr_device_t *device,
                                             const zr_device_options_t *options,
                                             zr_device_t **host_p);

/**
 * Seconds of the clock that work on the device takes its time from: the machine's, which only goes
 * forward, or a simulated device's own.
 */
double zr_device_now(const zr_device_t *device);

/** The recorder that the device was opened with; NULL: none. */
zr_trace_t *zr_device_trace(const zr_device_t *device);

/** Facts of the device; valid until it is closed. */
const zr_device_info_t *zr_device_info(const zr_device_t *device);

/** The log the device was opened with; valid until it is closed. */
const zr_log_t *zr_device_log(const zr_device_t *device);

/** Of an error's message that a device keeps, with the terminating zero. */
#define ZR_DEVICE_WORDS_BYTES 512

/** Note what was said, elsewhere, of an error that has to do with the device: that of its
 * allocator. Threads: thread-safe. */
void zr_device_note_error(zr_device_t *device, const char *message);

/**
 * What was said last of an error on the device, for whoever tells others why work on it failed.
 *
 * @param text  [ZR_DEVICE_WORDS_BYTES]; "" when there was none. What is longer is cut, which shows.
 *
 * Threads: thread-safe.
 */
void zr_device_last_error(const zr_device_t *device, char *text);

/**
 * Reserve a range of addresses without memory behind them.
 *
 * @param tier        ZR_TIER_DEVICE or ZR_TIER_HOST
 * @param size_bytes  a multiple of the granule, > 0
 * @return ZR_OK; ZR_ERR_ARGUMENT; ZR_ERR_BUDGET when there is no such range, which a caller may
 *         get over with a smaller one: the log says it as information only
 *
 * The start is aligned to the granule and to at least 4 KiB.
 */
ZR_NODISCARD zr_status_t zr_range_reserve(zr_device_t *device, zr_tier_t tier, size_t size_bytes,
                                          void **base_p);
/** Give the addresses back, and whatever memory is still mapped; NULL is fine. */
void zr_range_release(zr_device_t *device, zr_tier_t tier, void **base, size_t size_bytes);

/**
 * Put memory behind granules that have none; take it away from granules that have it.
 * Freshly mapped memory holds unspecified values. Unmapping keeps the addresses reserved
 * and requires that no queued work uses them.
 *
 * @param offset_bytes, size_bytes  multiples of the granule, inside the range
 * @return ZR_OK; ZR_ERR_ARGUMENT; ZR_ERR_BUDGET when the machine has no more memory (nothing has
 *         been mapped then; the log says it as information only, since memory may be found)
 */
ZR_NODISCARD zr_status_t zr_range_map(zr_device_t *device, zr_tier_t tier, void *base,
                                      size_t offset_bytes, size_t size_bytes);
ZR_NODISCARD zr_status_t zr_range_unmap(zr_device_t *device, zr_tier_t tier, void *base,
                                        size_t offset_bytes, size_t size_bytes);

/**
 * Move the memory behind mapped granules to granules that have none, of the same range or
 * another one of the tier. The source has none afterwards. The machine does not get the memory in
 * between, so that nobody else can take it, unless the device cannot do that.
 *
 * What the memory holds afterwards is unspecified, on both sides, also on failure. No queued work
 * may use the source.
 *
 * @param from_offset_bytes, to_offset_bytes, size_bytes  multiples of the granule, inside the
 *        ranges; source and destination must not overlap
 * @return ZR_OK; ZR_ERR_ARGUMENT or ZR_ERR_DEVICE: nothing is mapped other than before;
 *         ZR_ERR_BUDGET: the device had to give the memory back, and the machine has no more of it:
 *         now neither source nor destination has any
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
 * Create a queue of work that runs beside the calling thread: as zr_stream_create where streams do
 * that anyway. On a host device that was opened for it (zr_device_options_t.beside) copies, the
 * runtime's kernels and functions (zr_stream_call) are queued for a thread of the stream's own; a
 * transformer's kernels wait for their turn and run in the calling thread. All other streams of
 * such a device work in the calling thread, which zr_stream_wait on them holds until the event has
 * passed.
 */
ZR_NODISCARD zr_status_t zr_stream_create_beside(zr_device_t *device, const char *name,
                                                 zr_stream_t **stream_p);

/** Whether work is done when the call that queues it on this stream returns. */
bool zr_stream_is_synchronous(const zr_stream_t *stream);

/** The device of a stream. */
zr_device_t *zr_stream_device(const zr_stream_t *stream);

/**
 * The device's own handle of a stream, for kernels of one's own: they run in the order of what is
 * queued on it. Say what each costs with zr_stream_launched (kernels.h).
 *
 * @return "cuda": a cudaStream_t, whose device the caller makes the current one. NULL: the device
 *         has none. Where the stream is synchronous (zr_stream_is_synchronous), the caller does its
 *         work itself, since all that was queued is done; on one of a host device that has a thread
 *         of its own it queues a function (zr_stream_call); a simulated device has nothing to
 *         compute
 *
 * Ownership: the stream's.
 */
void *zr_stream_native(const zr_stream_t *stream);

/**
 * Wait until all work queued on the stream is done.
 *
 * @return ZR_OK; ZR_ERR_DEVICE when some of it failed: the log names the work
 */
ZR_NODISCARD zr_status_t zr_stream_synchronize(zr_stream_t *stream);

/** Whether functions can be queued on a stream: one of a host device, with a thread of its own. */
bool zr_stream_takes_calls(const zr_stream_t *stream);

/**
 * What such a thread calls when the stream has come so far. It may wait for what other processes
 * do. `stream` is for its own use, until it returns: what it queues there is done when the call
 * returns, on the threads of the device where they have nothing else to do.
 */
typedef void (*zr_stream_fn)(void *context, zr_stream_t *stream);

/**
 * Queue a function.
 *
 * @param context  handed to it, once; nobody frees it
 * @return ZR_OK; ZR_ERR_ARGUMENT where the stream takes none; ZR_ERR_MEMORY: it is not called
 */
ZR_NODISCARD zr_status_t zr_stream_call(zr_stream_t *stream, zr_stream_fn fn, void *context);

/**
 * Seconds that the device's thread was held by events and streams that had not passed: on a host
 * device with streams beside it, and a simulated one. 0 on any other, which does not count them.
 */
double zr_device_wait_seconds(const zr_device_t *device);

/** Create an event; one that was never recorded counts as passed. */
ZR_NODISCARD zr_status_t zr_event_create(zr_device_t *device, zr_event_t **event_p);
void zr_event_destroy(zr_event_t **event);

/** The event passes when the work queued on `stream` up to now is done. May be recorded again. */
ZR_NODISCARD zr_status_t zr_event_record(zr_event_t *event, zr_stream_t *stream);
/**
 * Work queued on `stream` from now on starts after the event's last record so far has passed.
 * The event may be of another device of the same backend, whose owner must not record or destroy
 * it meanwhile.
 */
ZR_NODISCARD zr_status_t zr_stream_wait(zr_stream_t *stream, zr_event_t *event);
/** Block the calling thread until the event has passed. */
ZR_NODISCARD zr_status_t zr_event_synchronize(zr_event_t *event);
/** Whether the event has passed, without waiting. */
ZR_NODISCARD zr_status_t zr_event_query(zr_event_t *event, bool *passed_p);

typedef enum zr_copy {
    ZR_COPY_HOST_TO_DEVICE = 0,
    ZR_COPY_DEVICE_TO_HOST = 1,
    ZR_COPY_DEVICE_TO_DEVICE = 2
} zr_copy_t;

/**
 * Queue a copy.
 *
 * @param dst, src    must not overlap; host pointers may be any host memory, which
 *                    must stay valid and unchanged until the stream has passed
 * @param size_bytes  0 is fine
 * @return ZR_OK; ZR_ERR_ARGUMENT; ZR_ERR_DEVICE
 */
ZR_NODISCARD zr_status_t zr_copy_async(zr_stream_t *stream, void *dst, const void *src,
                                       size_t size_bytes, zr_copy_t kind);

ZR_END_C
