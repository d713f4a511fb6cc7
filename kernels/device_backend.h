/*
 * The interface to implement a device. Start with a copy of kernels/host/.
 *
 * kernels/device.c and kernels/kernels.c check every argument, log refusals and account costs, so a
 * backend sees only valid calls: sizes > 0 (except sum_of_squares of 0 elements, which gives 0),
 * known dtypes, known tiers, ranges that it reserved.
 */
#pragma once

#include <pthread.h>
#include <sys/types.h>

#include "kernels/device.h"
#include "kernels/device_trace.h"
#include "kernels/kernels.h"
#include "kernels/update.h"

ZR_BEGIN_C

struct zr_nn_backend;

/** The runtime's kernels: see kernels.h and update.h. */
typedef enum zr_kernel {
    ZR_KERNEL_UPDATE,
    ZR_KERNEL_SUM_OF_SQUARES, /* sums over src */
    ZR_KERNEL_ADD,
    ZR_KERNEL_SCALE,
    ZR_KERNEL_CAST,
    ZR_KERNEL_FILL,
    ZR_KERNEL_SUM, /* a spread to one dst */
    ZR_KERNEL_SPREAD,
    ZR_KERNEL_ENCODE, /* src to blocks of a code, dst */
    ZR_KERNEL_DECODE
} zr_kernel_t;

/** Arguments of zr_kernel_spread. The lists are valid only during the call. */
typedef struct zr_spread {
    void *const *dsts;
    int n_dsts;
    const void *const *sources;
    int n_sources;
    zr_dtype_t dtype;
    size_t n_elems;
} zr_spread_t;

/** A kernel to be queued; unused fields are 0. */
typedef struct zr_kernel_work {
    zr_kernel_t kernel;
    void *dst;
    const void *src;
    zr_dtype_t dst_dtype, src_dtype;
    size_t n_elems;
    float value; /* or the factor of SCALE */
    double *result;
    void *workspace;
    zr_spread_t spread;
    zr_code_t code;
    const zr_update_rule_t *rule; /* a rule that the device has a kernel for */
    const zr_update_t *update;    /* valid only during the call */
} zr_kernel_work_t;

typedef struct zr_device_backend {
    const char *name;

    /* Create a device whose first member is a zr_device; fill its info. Logs its own failure. */
    zr_status_t (*open)(const zr_device_options_t *options, zr_device_t **device_p);
    void (*close)(zr_device_t *device);
    /* Optional. Create the device for zr_device_open_host; NULL: use "host". */
    zr_status_t (*open_host)(zr_device_t *device, const zr_device_options_t *options,
                             zr_device_t **host_p);
    /* Optional. See zr_device_now; NULL: the machine's clock. */
    double (*now)(const zr_device_t *device);

    /* Address ranges: see device.h. They may be called while work is queued on other ranges. */
    zr_status_t (*range_reserve)(zr_device_t *device, zr_tier_t tier, size_t size_bytes,
                                 void **base_p);
    void (*range_release)(zr_device_t *device, zr_tier_t tier, void *base, size_t size_bytes);
    zr_status_t (*range_map)(zr_device_t *device, zr_tier_t tier, void *base, size_t offset_bytes,
                             size_t size_bytes);
    zr_status_t (*range_unmap)(zr_device_t *device, zr_tier_t tier, void *base, size_t offset_bytes,
                               size_t size_bytes);
    /* Unmap the memory at `from` (base + offset) and map the same memory at `to`: on CUDA, handle
     * by handle. ZR_ERR_UNSUPPORTED: not possible, and the mapping is unchanged; device.c then
     * unmaps the source and maps the destination. Other failures must not change the mapping
     * either. */
    zr_status_t (*range_move)(zr_device_t *device, zr_tier_t tier, void *from, void *to,
                              size_t size_bytes);

    /* Streams and events: first member is a zr_stream or zr_event, which device.c fills in, except
     * is_synchronous. */
    zr_status_t (*stream_create)(zr_device_t *device, const char *name, zr_stream_t **stream_p);
    /* Optional. See zr_stream_create_concurrent; NULL: as stream_create. */
    zr_status_t (*stream_create_concurrent)(zr_device_t *device, const char *name,
                                            zr_stream_t **stream_p);
    /* Optional, both or none. See zr_stream_call; NULL: no stream takes calls. */
    bool (*stream_takes_calls)(const zr_stream_t *stream);
    zr_status_t (*stream_call)(zr_stream_t *stream, zr_stream_fn fn, void *context);
    /* Optional. See zr_device_wait_seconds; NULL: 0. */
    double (*wait_seconds)(const zr_device_t *device);
    void (*stream_destroy)(zr_stream_t *stream);
    zr_status_t (*stream_synchronize)(zr_stream_t *stream);
    zr_status_t (*event_create)(zr_device_t *device, zr_event_t **event_p);
    void (*event_destroy)(zr_event_t *event);
    zr_status_t (*event_record)(zr_event_t *event, zr_stream_t *stream);
    zr_status_t (*stream_wait)(zr_stream_t *stream, zr_event_t *event);
    zr_status_t (*event_synchronize)(zr_event_t *event);
    zr_status_t (*event_query)(zr_event_t *event, bool *passed_p);
    /* Optional. See zr_event_peek; NULL: as event_query. */
    zr_status_t (*event_peek)(zr_event_t *event, bool *passed_p);
    zr_status_t (*copy_async)(zr_stream_t *stream, void *dst, const void *src, size_t size_bytes,
                              zr_copy_t kind);

    /* Optional. The native handle for user-defined kernels (zr_stream_native); NULL: none. */
    void *(*stream_native)(const zr_stream_t *stream);
    /* Optional. A user-defined kernel was launched: keep its name for error messages, and report a
     * failed launch. */
    zr_status_t (*stream_launched)(zr_stream_t *stream, const char *name);

    /* Optional. A kernel with this cost was queued; a simulated device advances its clock.
     */
    void (*charge)(zr_stream_t *stream, const zr_charge_t *charge);

    /* Optional. Begin and end of the last work queued on a stream, for devices with a virtual
     * clock. */
    void (*last_work)(const zr_stream_t *stream, double *begin_p, double *end_p);

    /* Optional, both or none. A timer is an event that records the time at which it passed, for
     * asynchronous devices. It is destroyed, recorded and queried like an event. Reading it after
     * it has passed gives seconds of zr_device_now. */
    zr_status_t (*timer_create)(zr_device_t *device, zr_event_t **timer_p);
    zr_status_t (*timer_read)(zr_event_t *timer, double *seconds_p);

    /* Optional. Whether it has a kernel for a rule; NULL: it has kernels for all rules. */
    bool (*has_update)(const zr_update_rule_t *rule);
    zr_status_t (*run)(zr_stream_t *stream, const zr_kernel_work_t *work);
    /* It supports ZR_KERNEL_SPREAD with at least one dst; false: device.c uses one sum or copy per
     * dst.
     */
    bool has_spread;

    /* Optional. A transformer's kernels (nn/nn.h), for devices not known to libzero_nn. NULL: use
     * libzero_nn's kernels for a device with this name, if any. */
    const struct zr_nn_backend *nn;
} zr_device_backend_t;

/** The last error message of a device, for ranks that wait for its rank. */
typedef struct zr_device_error {
    pthread_mutex_t lock; /* guards text: streams may have threads */
    zr_log_t log;         /* the log that the device was opened with; gets all messages */
    char text[ZR_DEVICE_ERROR_BYTES];
} zr_device_error_t;

struct zr_device {
    const zr_device_backend_t *backend;
    pid_t owner;  /* process that has opened it (base/owner_internal.h) */
    zr_log_t log; /* stores errors in `last_error` and forwards them */
    zr_device_error_t last_error;
    zr_device_info_t info;
    struct zr_device_range *ranges; /* reserved; kept by device.c */
    zr_trace_t *trace;              /* NULL: nothing is recorded */
    struct zr_trace_timing *timing; /* work with times not known yet (device_trace.c), or NULL */
};

struct zr_stream {
    zr_device_t *device;
    const char *name;
    zr_cost_t cost;      /* cost of queued work so far */
    bool is_synchronous; /* work is done when its call returns */

    /* With a recorder: see device_trace.h. */
    double work_begin;
    struct zr_trace_span *span; /* begun work whose times are measured on the device */
    int n_groups;               /* number of open groups */
};

struct zr_event {
    zr_device_t *device;
};

/**
 * Open a device of this backend, as zr_device_open does by name: a custom backend needs no other
 * registration.
 *
 * @param backend  borrowed until the device is closed
 */
ZR_NODISCARD zr_status_t zr_device_open_from(const zr_device_backend_t *backend,
                                             const zr_device_options_t *options,
                                             zr_device_t **device_p);

/** Initialise and free the common part of a device; used by zr_device_open and zr_device_close.
 */
void zr_device_init(zr_device_t *device, const zr_device_backend_t *backend,
                    const zr_device_options_t *options);
void zr_device_clear(zr_device_t *device);

/** Account for work that has been queued. */
static inline void zr_stream_add_cost(zr_stream_t *stream, zr_cost_t cost) {
    stream->cost.operations += cost.operations;
    stream->cost.bytes += cost.bytes;
}

/** Before a kernel or copy is queued. */
static inline void zr_stream_work_begins(zr_stream_t *stream) {
    if (stream->device->trace != NULL)
        zr_stream_trace_begin(stream);
}

/** Account for a queued kernel, in the stream and the device. */
static inline void zr_stream_charge(zr_stream_t *stream, const zr_charge_t *charge) {
    zr_stream_add_cost(stream, charge->cost);
    if (stream->device->backend->charge != NULL)
        stream->device->backend->charge(stream, charge);
    if (stream->device->trace != NULL)
        zr_stream_trace_work(stream, charge->kernel, charge->cost);
}

/** The library's backends. */ extern const zr_device_backend_t zr_host_backend;
extern const zr_device_backend_t zr_sim_backend;
extern const zr_device_backend_t zr_cuda_backend; /* if built with CUDA (ZR_HAVE_CUDA) */

/** The backends known to zr_device_open; ends with NULL (backends.c). */
extern const zr_device_backend_t *const zr_device_backends[];

ZR_END_C
