/*
 * For those who implement a device. Copy kernels/host/ to start one.
 *
 * kernels/device.c and kernels/kernels.c check every argument, log refusals and keep
 * the costs, so a backend sees valid calls only: sizes > 0 (but sum_of_squares of 0
 * elements, whose result is 0), known dtypes, known tiers, ranges that it reserved.
 */
#pragma once

#include <pthread.h>

#include "kernels/device.h"
#include "kernels/device_trace.h"
#include "kernels/kernels.h"
#include "kernels/update.h"

ZR_BEGIN_C

struct zr_nn_backend;

/** The runtime's kernels: see kernels.h and update.h. */
typedef enum zr_kernel {
    ZR_KERNEL_UPDATE,
    ZR_KERNEL_SUM_OF_SQUARES, /* of src */
    ZR_KERNEL_ADD,
    ZR_KERNEL_SCALE,
    ZR_KERNEL_CAST,
    ZR_KERNEL_FILL,
    ZR_KERNEL_SUM, /* a spread to one dst */
    ZR_KERNEL_SPREAD,
    ZR_KERNEL_ENCODE, /* src to blocks of a code, dst */
    ZR_KERNEL_DECODE
} zr_kernel_t;

/** Arguments of zr_kernel_spread. The lists are gone when the call returns. */
typedef struct zr_spread {
    void *const *dsts;
    int n_dsts;
    const void *const *sources;
    int n_sources;
    zr_dtype_t dtype;
    size_t n_elems;
} zr_spread_t;

/** A kernel that is to be queued; what it has no use for is 0. */
typedef struct zr_kernel_work {
    zr_kernel_t kernel;
    void *dst;
    const void *src;
    zr_dtype_t dst_dtype, src_dtype;
    size_t n_elems;
    float value; /* the factor, too */
    double *result;
    void *workspace;
    zr_spread_t spread;
    zr_code_t code;
    const zr_update_rule_t *rule; /* one that the device has a kernel for */
    const zr_update_t *update;    /* gone when the call returns */
} zr_kernel_work_t;

typedef struct zr_device_backend {
    const char *name;

    /* Create a device whose first member is a zr_device; fill its info. Logs its own failure. */
    zr_status_t (*open)(const zr_device_options_t *options, zr_device_t **device_p);
    void (*close)(zr_device_t *device);
    /* Optional. Create the device that zr_device_open_host gives; NULL: "host" is right. */
    zr_status_t (*open_host)(zr_device_t *device, const zr_device_options_t *options,
                             zr_device_t **host_p);
    /* Optional. See zr_device_now; NULL: the machine's clock. */
    double (*now)(const zr_device_t *device);

    /* Address ranges: see device.h. All five may be called with queued work elsewhere. */
    zr_status_t (*range_reserve)(zr_device_t *device, zr_tier_t tier, size_t size_bytes,
                                 void **base_p);
    void (*range_release)(zr_device_t *device, zr_tier_t tier, void *base, size_t size_bytes);
    zr_status_t (*range_map)(zr_device_t *device, zr_tier_t tier, void *base, size_t offset_bytes,
                             size_t size_bytes);
    zr_status_t (*range_unmap)(zr_device_t *device, zr_tier_t tier, void *base, size_t offset_bytes,
                               size_t size_bytes);
    /* Unmap the memory at `from` (base + offset) and map the same memory at `to`: on CUDA, handle
     * by handle. ZR_ERR_UNSUPPORTED: not now or never, and nothing is mapped other than before;
     * device.c then unmaps the source and maps the destination. Any other failure changes nothing,
     * too. */
    zr_status_t (*range_move)(zr_device_t *device, zr_tier_t tier, void *from, void *to,
                              size_t size_bytes);

    /* Streams and events: first member is a zr_stream or zr_event, which device.c fills, but for
     * is_synchronous. */
    zr_status_t (*stream_create)(zr_device_t *device, const char *name, zr_stream_t **stream_p);
    /* Optional. See zr_stream_create_beside; NULL: as stream_create. */
    zr_status_t (*stream_create_beside)(zr_device_t *device, const char *name,
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
    zr_status_t (*copy_async)(zr_stream_t *stream, void *dst, const void *src, size_t size_bytes,
                              zr_copy_t kind);

    /* Optional. The handle that kernels of a caller's own are queued on (zr_stream_native); NULL:
     * there is none. */
    void *(*stream_native)(const zr_stream_t *stream);
    /* Optional. Such a kernel was queued: keep its name for the message if it fails, or fail when
     * it was refused. */
    zr_status_t (*stream_launched)(zr_stream_t *stream, const char *name);

    /* Optional. A kernel of this cost has been queued: what a simulated device takes its time for.
     */
    void (*charge)(zr_stream_t *stream, const zr_charge_t *charge);

    /* Optional. When the work that was queued last on a stream begins and ends, for a device whose
     * clock knows it at once. */
    void (*last_work)(const zr_stream_t *stream, double *begin_p, double *end_p);

    /* Optional, both or none. A timer is an event that tells when it passed, for a device that
     * works beside the calling thread. It is created as an event, and destroyed, recorded and asked
     * for as one; read when it has passed, it gives seconds of zr_device_now. */
    zr_status_t (*timer_create)(zr_device_t *device, zr_event_t **timer_p);
    zr_status_t (*timer_read)(zr_event_t *timer, double *seconds_p);

    /* Whether it has a kernel for a rule; NULL: for all. */
    bool (*has_update)(const zr_update_rule_t *rule);
    zr_status_t (*run)(zr_stream_t *stream, const zr_kernel_work_t *work);
    /* It runs ZR_KERNEL_SPREAD with at least one dst; otherwise sums and copies do, one for each.
     */
    bool has_spread;

    /* Optional. A transformer's kernels (nn/nn.h) of a device that libzero_nn has none for. NULL:
     * those that it has for a device of this name, if any. */
    const struct zr_nn_backend *nn;
} zr_device_backend_t;

/** What was said last of an error of a device's, for ranks that wait for its own. */
typedef struct zr_device_words {
    pthread_mutex_t lock; /* guards text: streams may have threads */
    zr_log_t log;         /* the log that the device was opened with, where they go */
    char text[ZR_DEVICE_WORDS_BYTES];
} zr_device_words_t;

struct zr_device {
    const zr_device_backend_t *backend;
    zr_log_t log; /* notes `words` on their way */
    zr_device_words_t words;
    zr_device_info_t info;
    struct zr_device_range *ranges; /* reserved; kept by device.c */
    zr_trace_t *trace;              /* NULL: nothing is recorded */
    struct zr_trace_timing
        *timing; /* work whose times are not known yet (device_trace.c), or NULL */
};

struct zr_stream {
    zr_device_t *device;
    const char *name;
    zr_cost_t cost;      /* queued so far */
    bool is_synchronous; /* work is done when its call returns */

    /* With a recorder: see device_trace.h. */
    double work_begin;
    struct zr_trace_span *span; /* of the work that has begun, where that tells its times itself */
    int n_groups;               /* that are open */
};

struct zr_event {
    zr_device_t *device;
};

/**
 * Open a device of this backend, as zr_device_open does by name: a program's own needs no other
 * place to be known in.
 *
 * @param backend  borrowed until the device is closed
 */
ZR_NODISCARD zr_status_t zr_device_open_from(const zr_device_backend_t *backend,
                                             const zr_device_options_t *options,
                                             zr_device_t **device_p);

/** Fill in what device.c keeps of every device, and free it: zr_device_open and zr_device_close do.
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

/** Account for a kernel that was queued, also with the device. */
static inline void zr_stream_charge(zr_stream_t *stream, const zr_charge_t *charge) {
    zr_stream_add_cost(stream, charge->cost);
    if (stream->device->backend->charge != NULL)
        stream->device->backend->charge(stream, charge);
    if (stream->device->trace != NULL)
        zr_stream_trace_work(stream, charge->kernel, charge->cost);
}

/** The library's own. */
extern const zr_device_backend_t zr_host_backend;
extern const zr_device_backend_t zr_sim_backend;
extern const zr_device_backend_t zr_cuda_backend; /* where CUDA is built (ZR_HAVE_CUDA) */

/** What zr_device_open looks in; ends with NULL (backends.c). */
extern const zr_device_backend_t *const zr_device_backends[];

ZR_END_C

