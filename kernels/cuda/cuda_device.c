/*
 * The CUDA device: streams, events and copies of one GPU.
 *
 * Errors of queued work are seen late, in whatever is called next, and CUDA does not say which
 * work it was. So the device keeps the names of the work it has queued last, crosses out what a
 * wait has shown to have passed, and a failure lists the rest.
 */
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/cuda_device.h"

/* The kernels are built for this compute capability and later ones. */
#define ZR_CUDA_LEAST_MAJOR 8

/* ---- work that was queued, and what went wrong -------------------------------------------- */

static void note_work(zr_stream_t *stream, const char *name) {
    zr_cuda_stream_t *own = (zr_cuda_stream_t *)stream;
    zr_cuda_device_t *cuda = (zr_cuda_device_t *)stream->device;
    cuda->recent[cuda->n_recent++ % ZR_CUDA_RECENT] = (zr_cuda_work_t){.stream_number = own->number,
                                                                       .ticket = ++own->n_queued,
                                                                       .stream_name = stream->name,
                                                                       .name = name};
}

/* The stream's work up to `ticket` has passed. */
static void cross_out(zr_device_t *device, uint64_t stream_number, uint64_t ticket) {
    zr_cuda_device_t *cuda = (zr_cuda_device_t *)device;
    for (size_t i = 0; i < ZR_CUDA_RECENT; i++) {
        zr_cuda_work_t *work = &cuda->recent[i];
        if (work->stream_number == stream_number && work->ticket <= ticket)
            work->name = NULL;
    }
}

static bool same_work(const zr_cuda_work_t *a, const zr_cuda_work_t *b) {
    return a->name == b->name && a->stream_number == b->stream_number;
}

/* `adamw on "compute", copy on "transfer"`, oldest first, each once; empty when nothing is left. */
static void list_work(const zr_cuda_device_t *cuda, char *text, size_t text_bytes) {
    size_t first = cuda->n_recent > ZR_CUDA_RECENT ? cuda->n_recent - ZR_CUDA_RECENT : 0;
    size_t used = 0;
    text[0] = '\0';
    for (size_t i = first; i < cuda->n_recent && used < text_bytes; i++) {
        const zr_cuda_work_t *work = &cuda->recent[i % ZR_CUDA_RECENT];
        bool is_new = work->name != NULL;
        for (size_t k = first; k < i && is_new; k++)
            is_new = !same_work(&cuda->recent[k % ZR_CUDA_RECENT], work);
        if (is_new)
            used += (size_t)snprintf(text + used, text_bytes - used, "%s%s on \"%s\"",
                                     used > 0 ? ", " : "", work->name, work->stream_name);
    }
}

zr_status_t zr_cuda_fail(zr_device_t *device, cudaError_t error, const char *what, ...) {
    const zr_cuda_device_t *cuda = (const zr_cuda_device_t *)device;
    char action[256], work[1024];
    va_list arguments;
    va_start(arguments, what);
    vsnprintf(action, sizeof(action), what, arguments);
    va_end(arguments);
    list_work(cuda, work, sizeof(work));
    (void)cudaGetLastError(); /* said here; the next launch must not find it again */
    return zr_fail(&device->log, ZR_ERR_DEVICE, "cuda:%d: %s: %s (%s)%s%s%s", cuda->index, action,
                   cudaGetErrorString(error), cudaGetErrorName(error),
                   work[0] != '\0' ? "; queued before and not known to be complete: " : "", work,
                   work[0] != '\0' ? "; CUDA_LAUNCH_BLOCKING=1 shows which one" : "");
}

zr_status_t zr_cuda_launched(zr_stream_t *stream, const char *name) {
    cudaError_t error = cudaGetLastError();
    if (error != cudaSuccess)
        return zr_cuda_fail(stream->device, error, "launching %s on stream \"%s\"", name,
                            stream->name);
    note_work(stream, name);
    return ZR_OK;
}

zr_status_t zr_cuda_enter(zr_device_t *device) {
    int index = ((zr_cuda_device_t *)device)->index;
    cudaError_t error = cudaSetDevice(index);
    return error == cudaSuccess ? ZR_OK : zr_cuda_fail(device, error, "using the device");
}

/* ---- the device ---------------------------------------------------------------------------- */

/* The devices that there are, and whether `options` names one of them. */
static zr_status_t check_options(const zr_device_options_t *options) {
    int n_devices = 0;
    if (options->index < 0)
        return zr_fail(&options->log, ZR_ERR_ARGUMENT, "cuda device: index %d; must be at least 0",
                       options->index);
    cudaError_t error = cudaGetDeviceCount(&n_devices);
    if (error == cudaSuccess && n_devices == 0)
        error = cudaErrorNoDevice;
    if (error != cudaSuccess) {
        (void)cudaGetLastError();
        return zr_fail(&options->log, ZR_ERR_UNSUPPORTED,
                       "device \"cuda\": no GPU can be used here: %s (%s); use \"host\"",
                       error == cudaErrorInsufficientDriver
                           ? "there is no NVIDIA driver, or it is older than this build"
                           : cudaGetErrorString(error),
                       cudaGetErrorName(error));
    }
    if (options->index >= n_devices)
        return zr_fail(&options->log, ZR_ERR_ARGUMENT,
                       "cuda device: index %d; this machine has %d, numbered from 0",
                       options->index, n_devices);
    return ZR_OK;
}

static zr_status_t describe(zr_cuda_device_t *cuda) {
    struct cudaDeviceProp properties;
    zr_device_info_t *info = &cuda->base.info;
    cudaError_t error = cudaGetDeviceProperties(&properties, cuda->index);
    if (error != cudaSuccess)
        return zr_cuda_fail(&cuda->base, error, "asking for its properties");
    if (properties.major < ZR_CUDA_LEAST_MAJOR)
        return zr_fail(&cuda->base.log, ZR_ERR_UNSUPPORTED,
                       "cuda:%d: %s has compute capability %d.%d; at least %d.0 is needed; use "
                       "another index, or device \"host\"",
                       cuda->index, properties.name, properties.major, properties.minor,
                       ZR_CUDA_LEAST_MAJOR);
    snprintf(info->description, sizeof(info->description),
             "%.48s, compute capability %d.%d, %d multiprocessors", properties.name,
             properties.major, properties.minor, properties.multiProcessorCount);
    size_t free_bytes = 0, total_bytes = 0;
    error = cudaMemGetInfo(&free_bytes, &total_bytes);
    if (error != cudaSuccess)
        return zr_cuda_fail(&cuda->base, error, "asking how much memory is free");
    info->memory_bytes = properties.totalGlobalMem;
    info->in_use_bytes = info->memory_bytes > free_bytes ? info->memory_bytes - free_bytes : 0;
    cuda->major = properties.major;
    cuda->l2_bytes = (size_t)properties.l2CacheSize;
    info->cuda_major = properties.major;
    return ZR_OK;
}

static void cuda_close(zr_device_t *device) {
    zr_cuda_device_t *cuda = (zr_cuda_device_t *)device;
    if (cuda->blas != NULL)
        cuda->close_blas(cuda);
    if (cuda->attention != NULL)
        cuda->close_attention(cuda);
    if (cuda->reference != NULL && cudaEventDestroy(cuda->reference) != cudaSuccess)
        (void)cudaGetLastError();
    zr_cuda_memory_close(cuda);
    free(cuda); /* the context stays: other ranks may share it */
}

static zr_status_t prepare(zr_cuda_device_t *cuda) {
    ZR_TRY(zr_cuda_enter(&cuda->base));
    cudaError_t error = cudaFree(NULL); /* makes the context, where setting the device does not */
    if (error != cudaSuccess)
        return zr_cuda_fail(&cuda->base, error, "opening the device");
    ZR_TRY(describe(cuda));
    ZR_TRY(zr_cuda_driver_find(&cuda->base.log, &cuda->driver));
    return zr_cuda_memory_open(cuda);
}

static zr_status_t cuda_open(const zr_device_options_t *options, zr_device_t **device_p) {
    ZR_TRY(check_options(options));
    zr_cuda_device_t *cuda = calloc(1, sizeof(*cuda));
    if (cuda == NULL)
        return zr_fail(&options->log, ZR_ERR_MEMORY, "cuda device: no memory (%zu bytes)",
                       sizeof(*cuda));
    cuda->base.log = options->log; /* device.c sets it once more */
    cuda->index = options->index;
    cuda->has_no_peers = options->has_no_peers;
    zr_status_t status = prepare(cuda);
    if (status != ZR_OK) {
        cuda_close(&cuda->base);
        return status;
    }
    *device_p = &cuda->base;
    return ZR_OK;
}

/* ---- streams --------------------------------------------------------------------------------- */

static zr_status_t create_stream(zr_device_t *device, const char *name, int priority,
                                 zr_stream_t **stream_p) {
    zr_cuda_stream_t *stream = calloc(1, sizeof(*stream));
    if (stream == NULL)
        return zr_fail(&device->log, ZR_ERR_MEMORY, "stream \"%s\": no memory (%zu bytes)", name,
                       sizeof(*stream));
    cudaError_t error =
        cudaStreamCreateWithPriority(&stream->queue, cudaStreamNonBlocking, priority);
    if (error != cudaSuccess) {
        free(stream);
        return zr_cuda_fail(device, error, "creating stream \"%s\"", name);
    }
    stream->number = ++((zr_cuda_device_t *)device)->n_streams;
    *stream_p = &stream->base;
    return ZR_OK;
}

static zr_status_t cuda_stream_create(zr_device_t *device, const char *name,
                                      zr_stream_t **stream_p) {
    ZR_TRY(zr_cuda_enter(device));
    return create_stream(device, name, 0, stream_p);
}

/* Its kernels' blocks go first where multiprocessors become free: those of a collective do not wait
 * behind all that a product has queued. */
static zr_status_t cuda_stream_create_concurrent(zr_device_t *device, const char *name,
                                                 zr_stream_t **stream_p) {
    int least = 0, greatest = 0;
    ZR_TRY(zr_cuda_enter(device));
    cudaError_t error = cudaDeviceGetStreamPriorityRange(&least, &greatest);
    if (error != cudaSuccess)
        return zr_cuda_fail(device, error, "asking for the priorities of streams");
    return create_stream(device, name, greatest, stream_p);
}

static zr_status_t cuda_stream_synchronize(zr_stream_t *stream) {
    const zr_cuda_stream_t *own = (const zr_cuda_stream_t *)stream;
    ZR_TRY(zr_cuda_enter(stream->device));
    cudaError_t error = cudaStreamSynchronize(own->queue);
    if (error != cudaSuccess)
        return zr_cuda_fail(stream->device, error, "waiting for stream \"%s\"", stream->name);
    cross_out(stream->device, own->number, own->n_queued);
    return ZR_OK;
}

/* Failures have been logged, and there is nobody to hand them to. */
static void cuda_stream_destroy(zr_stream_t *stream) {
    zr_status_t status = cuda_stream_synchronize(stream);
    cudaError_t error = cudaStreamDestroy(zr_cuda_queue(stream));
    if (error != cudaSuccess && status == ZR_OK)
        (void)zr_cuda_fail(stream->device, error, "destroying stream \"%s\"", stream->name);
    free(stream);
}

static void *cuda_stream_native(const zr_stream_t *stream) {
    return ((const zr_cuda_stream_t *)stream)->queue;
}

/* ---- events ---------------------------------------------------------------------------------- */

static zr_status_t create_event(zr_device_t *device, unsigned flags, zr_event_t **event_p) {
    ZR_TRY(zr_cuda_enter(device));
    zr_cuda_event_t *event = calloc(1, sizeof(*event));
    if (event == NULL)
        return zr_fail(&device->log, ZR_ERR_MEMORY, "no memory for an event (%zu bytes)",
                       sizeof(*event));
    cudaError_t error = cudaEventCreateWithFlags(&event->handle, flags);
    if (error != cudaSuccess) {
        free(event);
        return zr_cuda_fail(device, error, "creating an event");
    }
    *event_p = &event->base;
    return ZR_OK;
}

static zr_status_t cuda_event_create(zr_device_t *device, zr_event_t **event_p) {
    return create_event(device, cudaEventDisableTiming, event_p);
}

static void cuda_event_destroy(zr_event_t *event) {
    cudaError_t error = cudaEventDestroy(((zr_cuda_event_t *)event)->handle);
    if (error != cudaSuccess)
        (void)zr_cuda_fail(event->device, error, "destroying an event");
    free(event);
}

static zr_status_t cuda_event_record(zr_event_t *event, zr_stream_t *stream) {
    zr_cuda_event_t *own = (zr_cuda_event_t *)event;
    const zr_cuda_stream_t *recorded = (const zr_cuda_stream_t *)stream;
    ZR_TRY(zr_cuda_enter(stream->device));
    cudaError_t error = cudaEventRecord(own->handle, recorded->queue);
    if (error != cudaSuccess)
        return zr_cuda_fail(stream->device, error, "recording an event on stream \"%s\"",
                            stream->name);
    own->stream_number = recorded->number;
    own->ticket = recorded->n_queued;
    return ZR_OK;
}

static zr_status_t cuda_stream_wait(zr_stream_t *stream, zr_event_t *event) {
    ZR_TRY(zr_cuda_enter(stream->device));
    cudaError_t error =
        cudaStreamWaitEvent(zr_cuda_queue(stream), ((zr_cuda_event_t *)event)->handle, 0);
    if (error != cudaSuccess)
        return zr_cuda_fail(stream->device, error, "letting stream \"%s\" wait for an event",
                            stream->name);
    return ZR_OK;
}

static zr_status_t cuda_event_synchronize(zr_event_t *event) {
    const zr_cuda_event_t *own = (const zr_cuda_event_t *)event;
    ZR_TRY(zr_cuda_enter(event->device));
    cudaError_t error = cudaEventSynchronize(own->handle);
    if (error != cudaSuccess)
        return zr_cuda_fail(event->device, error, "waiting for an event");
    cross_out(event->device, own->stream_number, own->ticket);
    return ZR_OK;
}

static zr_status_t cuda_event_query(zr_event_t *event, bool *passed_p) {
    const zr_cuda_event_t *own = (const zr_cuda_event_t *)event;
    ZR_TRY(zr_cuda_enter(event->device));
    cudaError_t error = cudaEventQuery(own->handle);
    if (error != cudaSuccess && error != cudaErrorNotReady)
        return zr_cuda_fail(event->device, error, "asking whether an event has passed");
    if (error == cudaSuccess)
        cross_out(event->device, own->stream_number, own->ticket);
    else
        (void)cudaGetLastError(); /* an answer, which the next launch must not find as an error */
    *passed_p = error == cudaSuccess;
    return ZR_OK;
}

/* ---- timers ---------------------------------------------------------------------------------- */

/* An event whose time of the host's clock is known, to within what waiting for it takes. */
static zr_status_t set_reference(zr_cuda_device_t *cuda) {
    cudaStream_t stream = NULL;
    cudaEvent_t event = NULL;
    cudaError_t error = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    if (error == cudaSuccess)
        error = cudaEventCreateWithFlags(&event, cudaEventDefault);
    if (error == cudaSuccess)
        error = cudaEventRecord(event, stream);
    if (error == cudaSuccess)
        error = cudaEventSynchronize(event);
    if (error == cudaSuccess) {
        cuda->reference = event;
        cuda->reference_seconds = zr_device_now(&cuda->base);
    } else if (event != NULL) {
        (void)cudaEventDestroy(event);
    }
    if (stream != NULL)
        (void)cudaStreamDestroy(stream);
    return error == cudaSuccess
               ? ZR_OK
               : zr_cuda_fail(&cuda->base, error, "comparing clocks with the device");
}

static zr_status_t cuda_timer_create(zr_device_t *device, zr_event_t **timer_p) {
    zr_cuda_device_t *cuda = (zr_cuda_device_t *)device;
    ZR_TRY(zr_cuda_enter(device));
    if (cuda->reference == NULL)
        ZR_TRY(set_reference(cuda));
    return create_event(device, cudaEventDefault, timer_p);
}

/* CUDA tells milliseconds between two events as a float. A timer that is far from the reference
 * becomes it, so that the digits last. */
static zr_status_t cuda_timer_read(zr_event_t *timer, double *seconds_p) {
    const float far_ms = 1000.0f;
    zr_cuda_event_t *own = (zr_cuda_event_t *)timer;
    zr_cuda_device_t *cuda = (zr_cuda_device_t *)timer->device;
    float ms = 0;
    ZR_TRY(zr_cuda_enter(timer->device));
    cudaError_t error = cudaEventElapsedTime(&ms, cuda->reference, own->handle);
    if (error != cudaSuccess)
        return zr_cuda_fail(timer->device, error, "reading a timer");
    *seconds_p = cuda->reference_seconds + 1e-3 * (double)ms;
    if (ms > far_ms) {
        cudaEvent_t before = cuda->reference;
        cuda->reference = own->handle;
        cuda->reference_seconds = *seconds_p;
        own->handle = before;
    }
    return ZR_OK;
}

/* ---- copies --------------------------------------------------------------------------------- */

/*
 * cudaMemcpyDefault: the addresses say where they are, so that pinned memory may stand on either
 * side. Between devices of one process it is the copy that their access to each other allows.
 */
static zr_status_t cuda_copy_async(zr_stream_t *stream, void *dst, const void *src,
                                   size_t size_bytes, zr_copy_t kind) {
    static const char *const names[] = {"copy to the device", "copy to the host",
                                        "copy within devices"};
    const zr_cuda_device_t *cuda = (const zr_cuda_device_t *)stream->device;
    ZR_TRY(zr_cuda_enter(stream->device));
    for (size_t done = 0; done < size_bytes;) {
        char *to = (char *)dst + done;
        const char *from = (const char *)src + done;
        size_t piece = zr_cuda_copy_piece(cuda, to, size_bytes - done);
        piece = zr_cuda_copy_piece(cuda, from, piece);
        cudaError_t error =
            cudaMemcpyAsync(to, from, piece, cudaMemcpyDefault, zr_cuda_queue(stream));
        if (error != cudaSuccess)
            return zr_cuda_fail(stream->device, error, "stream \"%s\": %s of %s", stream->name,
                                names[kind], zr_count_text(size_bytes, "byte").text);
        done += piece;
    }
    note_work(stream, names[kind]);
    return ZR_OK;
}

/* ---- updates -------------------------------------------------------------------------------- */

static bool cuda_has_update(const zr_update_rule_t *rule) {
    return rule->cuda != NULL &&
           ((rule->form == ZR_STATE_FP32 && !rule->splits_master) || rule->cuda_knows_forms);
}

static zr_status_t cuda_update(zr_stream_t *stream, const zr_update_rule_t *rule,
                               const zr_update_t *update) {
    ZR_TRY(zr_cuda_enter(stream->device));
    ZR_TRY(rule->cuda(stream, update));
    return zr_cuda_launched(stream, rule->name);
}

static zr_status_t cuda_run(zr_stream_t *stream, const zr_kernel_work_t *w) {
    switch (w->kernel) {
    case ZR_KERNEL_UPDATE:
        return cuda_update(stream, w->rule, w->update);
    case ZR_KERNEL_SUM_OF_SQUARES:
        return zr_cuda_sum_of_squares(stream, w->src, w->src_dtype, w->n_elems, w->result,
                                      w->workspace);
    case ZR_KERNEL_ADD:
        return zr_cuda_add(stream, w->dst, w->dst_dtype, w->src, w->src_dtype, w->n_elems);
    case ZR_KERNEL_SCALE:
        return zr_cuda_scale(stream, w->dst, w->dst_dtype, w->n_elems, w->value);
    case ZR_KERNEL_CAST:
        return zr_cuda_cast(stream, w->dst, w->dst_dtype, w->src, w->src_dtype, w->n_elems);
    case ZR_KERNEL_FILL:
        return zr_cuda_fill(stream, w->dst, w->dst_dtype, w->n_elems, w->value);
    case ZR_KERNEL_ENCODE:
    case ZR_KERNEL_DECODE:
        return zr_cuda_code(stream, w);
    default:
        return zr_cuda_spread(stream, &w->spread, w->kernel == ZR_KERNEL_SUM ? "sum" : "spread");
    }
}

const zr_device_backend_t zr_cuda_backend = {
    .name = "cuda",
    .open = cuda_open,
    .close = cuda_close,
    .range_reserve = zr_cuda_range_reserve,
    .range_release = zr_cuda_range_release,
    .range_map = zr_cuda_range_map,
    .range_unmap = zr_cuda_range_unmap,
    .range_move = zr_cuda_range_move,
    .stream_create = cuda_stream_create,
    .stream_create_concurrent = cuda_stream_create_concurrent,
    .stream_destroy = cuda_stream_destroy,
    .stream_synchronize = cuda_stream_synchronize,
    .event_create = cuda_event_create,
    .event_destroy = cuda_event_destroy,
    .event_record = cuda_event_record,
    .stream_wait = cuda_stream_wait,
    .event_synchronize = cuda_event_synchronize,
    .event_query = cuda_event_query,
    .timer_create = cuda_timer_create,
    .timer_read = cuda_timer_read,
    .copy_async = cuda_copy_async,
    .stream_native = cuda_stream_native,
    .stream_launched = zr_cuda_launched,
    .has_update = cuda_has_update,
    .run = cuda_run,
    .has_spread = true,
};
