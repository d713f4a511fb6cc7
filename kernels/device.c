/*
 * What all devices share: arguments are checked and refusals logged here, once,
 * so that a backend sees valid calls only; costs are counted here, so that every
 * backend counts the same.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/base/owner_internal.h"
#include "kernels/device_backend.h"

/* A reserved range, kept so that mapping outside of it is refused. */
struct zr_device_range {
    struct zr_device_range *next;
    zr_tier_t tier;
    void *base;
    size_t size_bytes;
};

/* Names that other builds know: refused as unsupported, not as unknown. */
static const char *const backends_elsewhere[] = {"cuda"};

#define N_ELEMS(array) (sizeof(array) / sizeof((array)[0]))

const char *zr_tier_name(zr_tier_t tier) {
    switch (tier) {
    case ZR_TIER_DEVICE:
        return "device";
    case ZR_TIER_HOST:
        return "host";
    case ZR_TIER_NVME:
        return "nvme";
    }
    return "?";
}

/* ---- devices --------------------------------------------------------------- */

zr_device_options_t zr_device_options_default(void) {
    return (zr_device_options_t){.log = zr_log_default(), .index = 0, .n_threads = 0, .isa = NULL};
}

static zr_status_t refuse_name(const zr_log_t *log, const char *name) {
    for (size_t i = 0; i < N_ELEMS(backends_elsewhere); i++) {
        if (strcmp(backends_elsewhere[i], name) == 0)
            return zr_fail(log, ZR_ERR_UNSUPPORTED,
                           "device \"%s\" is not part of this build; use \"host\"", name);
    }
    return zr_fail(log, ZR_ERR_ARGUMENT,
                   "device \"%s\" is unknown; known: \"host\", \"cuda\", \"sim\"", name);
}

static void keep_error(zr_device_error_t *error, const char *message) {
    static const char cut[] = "...";
    pthread_mutex_lock(&error->lock);
    int length = snprintf(error->text, sizeof(error->text), "%s", message);
    if (length >= (int)sizeof(error->text))
        memcpy(error->text + sizeof(error->text) - sizeof(cut), cut, sizeof(cut));
    pthread_mutex_unlock(&error->lock);
}

/* The sink of a device's log. */
static void log_and_keep(void *context, zr_log_level_t level, int rank, const char *message) {
    zr_device_error_t *error = context;
    if (level == ZR_LOG_ERROR)
        keep_error(error, message);
    zr_log_t own = zr_log_with_rank(&error->log, rank);
    zr_log_write(&own, level, "%s", message);
}

/* A view of a device shares the last error of the device that it is a view of. */
static zr_device_error_t *error_of(const zr_device_t *device) {
    return device->log.context;
}

void zr_device_note_error(zr_device_t *device, const char *message) {
    keep_error(error_of(device), message);
}

void zr_device_last_error(const zr_device_t *device, char *text) {
    zr_device_error_t *error = error_of(device);
    pthread_mutex_lock(&error->lock);
    memcpy(text, error->text, ZR_DEVICE_ERROR_BYTES);
    pthread_mutex_unlock(&error->lock);
}

void zr_device_init(zr_device_t *device, const zr_device_backend_t *backend,
                    const zr_device_options_t *options) {
    device->backend = backend;
    device->owner = getpid();
    device->last_error.log = options->log;
    device->last_error.text[0] = '\0';
    pthread_mutex_init(&device->last_error.lock, NULL);
    device->log = options->log;
    device->log.sink = log_and_keep;
    device->log.context = &device->last_error;
    device->info.backend = backend->name;
    device->ranges = NULL;
    device->trace = options->trace;
    device->timing = NULL;
}

void zr_device_clear(zr_device_t *device) {
    device->log = device->last_error.log;
    pthread_mutex_destroy(&device->last_error.lock);
}

zr_status_t zr_device_open(const char *name, const zr_device_options_t *options,
                           zr_device_t **device_p) {
    zr_device_options_t defaults = zr_device_options_default();
    if (options == NULL)
        options = &defaults;
    if (name == NULL || device_p == NULL)
        return zr_fail(&options->log, ZR_ERR_ARGUMENT,
                       "opening a device needs a name and an output pointer");

    for (size_t i = 0; zr_device_backends[i] != NULL; i++)
        if (strcmp(zr_device_backends[i]->name, name) == 0)
            return zr_device_open_from(zr_device_backends[i], options, device_p);
    return refuse_name(&options->log, name);
}

zr_status_t zr_device_open_from(const zr_device_backend_t *backend,
                                const zr_device_options_t *options, zr_device_t **device_p) {
    zr_device_options_t defaults = zr_device_options_default();
    zr_device_t *device = NULL;
    if (options == NULL)
        options = &defaults;
    ZR_TRY(backend->open(options, &device));
    zr_device_init(device, backend, options);
    *device_p = device;
    return ZR_OK;
}

zr_status_t zr_device_open_host(zr_device_t *device, const zr_device_options_t *options,
                                zr_device_t **host_p) {
    zr_device_options_t defaults = zr_device_options_default();
    zr_device_t *host = NULL;
    if (options == NULL)
        options = &defaults;
    if (device->backend->open_host == NULL) {
        zr_device_options_t own = *options;
        own.trace = options->trace != NULL ? options->trace : device->trace;
        return zr_device_open("host", &own, host_p);
    }
    ZR_TRY(device->backend->open_host(device, options, &host));
    zr_device_init(host, device->backend, options);
    if (options->trace == NULL)
        host->trace = device->trace;
    *host_p = host;
    return ZR_OK;
}

void zr_device_close(zr_device_t **device) {
    if (device == NULL || *device == NULL)
        return;
    if (!zr_owner_is_here((*device)->owner)) {
        *device = NULL;
        return;
    }
    while ((*device)->ranges != NULL) {
        void *base = (*device)->ranges->base;
        zr_range_release(*device, (*device)->ranges->tier, &base, (*device)->ranges->size_bytes);
    }
    zr_device_trace_close(*device);
    zr_device_clear(*device);
    (*device)->backend->close(*device);
    *device = NULL;
}

double zr_device_now(const zr_device_t *device) {
    struct timespec now;
    if (device->backend->now != NULL)
        return device->backend->now(device);
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

zr_trace_t *zr_device_trace(const zr_device_t *device) {
    return device->trace;
}

const zr_device_info_t *zr_device_info(const zr_device_t *device) {
    return &device->info;
}

const zr_log_t *zr_device_log(const zr_device_t *device) {
    return &device->last_error.log;
}

static zr_status_t check_owner(const zr_device_t *device, const char *call) {
    return zr_owner_check(device->owner, &device->log, call, "the device");
}

/* ---- address ranges ---------------------------------------------------------- */

static struct zr_device_range **find_range(zr_device_t *device, zr_tier_t tier, const void *base) {
    struct zr_device_range **link = &device->ranges;
    while (*link != NULL && ((*link)->base != base || (*link)->tier != tier))
        link = &(*link)->next;
    return link;
}

zr_status_t zr_range_reserve(zr_device_t *device, zr_tier_t tier, size_t size_bytes,
                             void **base_p) {
    ZR_TRY(check_owner(device, "reserving memory"));
    if (tier != ZR_TIER_DEVICE && tier != ZR_TIER_HOST)
        return zr_fail(&device->log, ZR_ERR_ARGUMENT,
                       "tier %d has no addresses; only device and host have", (int)tier);
    if (size_bytes == 0 || size_bytes % device->info.granule_bytes != 0 || base_p == NULL)
        return zr_fail(&device->log, ZR_ERR_ARGUMENT,
                       "%s memory: a range of %s is not a multiple of the %zu-byte granule",
                       zr_tier_name(tier), zr_count_text(size_bytes, "byte").text,
                       device->info.granule_bytes);

    struct zr_device_range *range = malloc(sizeof(*range));
    if (range == NULL)
        return zr_fail(&device->log, ZR_ERR_MEMORY, "no memory to note a range (%zu bytes)",
                       sizeof(*range));
    void *base = NULL;
    zr_status_t status = device->backend->range_reserve(device, tier, size_bytes, &base);
    if (status != ZR_OK) {
        free(range);
        return status;
    }
    *range = (struct zr_device_range){
        .next = device->ranges, .tier = tier, .base = base, .size_bytes = size_bytes};
    device->ranges = range;
    *base_p = base;
    return ZR_OK;
}

void zr_range_release(zr_device_t *device, zr_tier_t tier, void **base, size_t size_bytes) {
    if (base == NULL || *base == NULL || !zr_owner_is_here(device->owner))
        return;
    struct zr_device_range **link = find_range(device, tier, *base);
    struct zr_device_range *range = *link;
    if (range == NULL || range->size_bytes != size_bytes) {
        zr_log_write(&device->log, ZR_LOG_ERROR,
                     "%s memory: %p with %s is not a reserved range; nothing was released",
                     zr_tier_name(tier), *base, zr_count_text(size_bytes, "byte").text);
        return;
    }
    device->backend->range_release(device, tier, *base, size_bytes);
    *link = range->next;
    free(range);
    *base = NULL;
}

static zr_status_t check_granules(zr_device_t *device, zr_tier_t tier, const void *base,
                                  size_t offset_bytes, size_t size_bytes, const char *verb) {
    ZR_TRY(check_owner(device, verb));
    size_t granule = device->info.granule_bytes;
    const struct zr_device_range *range = *find_range(device, tier, base);
    if (range == NULL)
        return zr_fail(&device->log, ZR_ERR_ARGUMENT,
                       "%s memory: cannot %s in %p, which is not a reserved range",
                       zr_tier_name(tier), verb, base);
    if (offset_bytes % granule != 0 || size_bytes % granule != 0 ||
        offset_bytes > range->size_bytes || size_bytes > range->size_bytes - offset_bytes)
        return zr_fail(&device->log, ZR_ERR_ARGUMENT,
                       "%s memory: cannot %s %s at %zu: not whole granules of %zu bytes "
                       "inside a range of %zu",
                       zr_tier_name(tier), verb, zr_count_text(size_bytes, "byte").text,
                       offset_bytes, granule, range->size_bytes);
    return ZR_OK;
}

zr_status_t zr_range_map(zr_device_t *device, zr_tier_t tier, void *base, size_t offset_bytes,
                         size_t size_bytes) {
    ZR_TRY(check_granules(device, tier, base, offset_bytes, size_bytes, "map"));
    if (size_bytes == 0)
        return ZR_OK;
    return device->backend->range_map(device, tier, base, offset_bytes, size_bytes);
}

zr_status_t zr_range_unmap(zr_device_t *device, zr_tier_t tier, void *base, size_t offset_bytes,
                           size_t size_bytes) {
    ZR_TRY(check_granules(device, tier, base, offset_bytes, size_bytes, "unmap"));
    if (size_bytes == 0)
        return ZR_OK;
    return device->backend->range_unmap(device, tier, base, offset_bytes, size_bytes);
}

/* A stretch of a range, as a move has them two of. */
typedef struct stretch {
    void *base;
    size_t offset_bytes;
} stretch_t;

/* The machine gets the memory of the source and is asked for as much behind the destination. */
static zr_status_t replace(zr_device_t *device, zr_tier_t tier, stretch_t from, stretch_t to,
                           size_t size_bytes) {
    const zr_device_backend_t *backend = device->backend;
    zr_status_t status =
        backend->range_unmap(device, tier, from.base, from.offset_bytes, size_bytes);
    if (status != ZR_OK)
        return ZR_ERR_DEVICE;
    status = backend->range_map(device, tier, to.base, to.offset_bytes, size_bytes);
    return status == ZR_OK ? ZR_OK : ZR_ERR_BUDGET;
}

zr_status_t zr_range_move(zr_device_t *device, zr_tier_t tier, void *from_base,
                          size_t from_offset_bytes, void *to_base, size_t to_offset_bytes,
                          size_t size_bytes) {
    ZR_TRY(check_granules(device, tier, from_base, from_offset_bytes, size_bytes, "move from"));
    ZR_TRY(check_granules(device, tier, to_base, to_offset_bytes, size_bytes, "move to"));
    if (size_bytes == 0)
        return ZR_OK;
    if (from_base == to_base && from_offset_bytes < to_offset_bytes + size_bytes &&
        to_offset_bytes < from_offset_bytes + size_bytes)
        return zr_fail(&device->log, ZR_ERR_ARGUMENT,
                       "%s memory: cannot move %s from %zu to %zu, which overlap",
                       zr_tier_name(tier), zr_count_text(size_bytes, "byte").text,
                       from_offset_bytes, to_offset_bytes);
    zr_status_t status =
        device->backend->range_move(device, tier, (char *)from_base + from_offset_bytes,
                                    (char *)to_base + to_offset_bytes, size_bytes);
    if (status != ZR_ERR_UNSUPPORTED)
        return status;
    return replace(device, tier, (stretch_t){from_base, from_offset_bytes},
                   (stretch_t){to_base, to_offset_bytes}, size_bytes);
}

/* ---- streams and events ------------------------------------------------------ */

typedef zr_status_t (*create_fn)(zr_device_t *device, const char *name, zr_stream_t **stream_p);

static zr_status_t create_stream(zr_device_t *device, const char *name, create_fn create,
                                 zr_stream_t **stream_p) {
    ZR_TRY(check_owner(device, "creating a stream"));
    if (name == NULL || stream_p == NULL)
        return zr_fail(&device->log, ZR_ERR_ARGUMENT,
                       "creating a stream needs a name and an output pointer");
    zr_stream_t *stream = NULL;
    ZR_TRY(create(device, name, &stream));
    stream->device = device;
    stream->name = name;
    stream->cost = (zr_cost_t){0};
    stream->work_begin = 0;
    stream->span = NULL;
    stream->n_groups = 0;
    *stream_p = stream;
    return ZR_OK;
}

zr_status_t zr_stream_create(zr_device_t *device, const char *name, zr_stream_t **stream_p) {
    return create_stream(device, name, device->backend->stream_create, stream_p);
}

zr_status_t zr_stream_create_concurrent(zr_device_t *device, const char *name,
                                        zr_stream_t **stream_p) {
    create_fn create = device->backend->stream_create_concurrent;
    return create_stream(device, name, create != NULL ? create : device->backend->stream_create,
                         stream_p);
}

void zr_stream_destroy(zr_stream_t **stream) {
    if (stream == NULL || *stream == NULL)
        return;
    zr_device_t *device = (*stream)->device;
    if (!zr_owner_is_here(device->owner)) {
        *stream = NULL;
        return;
    }
    struct zr_trace_span *span = (*stream)->span;
    device->backend->stream_destroy(*stream);
    zr_stream_trace_drop(span); /* nothing that is queued has it any more */
    *stream = NULL;
}

zr_device_t *zr_stream_device(const zr_stream_t *stream) {
    return stream->device;
}

bool zr_stream_is_synchronous(const zr_stream_t *stream) {
    return stream->is_synchronous;
}

bool zr_stream_takes_calls(const zr_stream_t *stream) {
    const zr_device_backend_t *backend = stream->device->backend;
    return backend->stream_takes_calls != NULL && backend->stream_takes_calls(stream);
}

zr_status_t zr_stream_call(zr_stream_t *stream, zr_stream_fn fn, void *context) {
    if (fn == NULL || !zr_stream_takes_calls(stream))
        return zr_fail(&stream->device->log, ZR_ERR_ARGUMENT,
                       "stream \"%s\": no function can be queued on it%s", stream->name,
                       fn == NULL ? " (NULL)" : "");
    return stream->device->backend->stream_call(stream, fn, context);
}

double zr_device_wait_seconds(const zr_device_t *device) {
    return device->backend->wait_seconds != NULL ? device->backend->wait_seconds(device) : 0;
}

void *zr_stream_native(const zr_stream_t *stream) {
    const zr_device_backend_t *backend = stream->device->backend;
    return backend->stream_native != NULL ? backend->stream_native(stream) : NULL;
}

/* The calling thread may have to stand still, which a recorder is told. */
static double begin_wait(const zr_device_t *device) {
    return zr_trace_is_on(device->trace) ? zr_device_now(device) : 0;
}

static void end_wait(const zr_device_t *device, double begin, const char *stream_name) {
    const double least_seconds = 2e-6; /* less is the call itself */
    if (begin != 0 && zr_device_now(device) - begin > least_seconds)
        zr_device_waited(device, begin, stream_name != NULL ? "wait for stream" : "wait for event",
                         stream_name);
}

zr_status_t zr_stream_synchronize(zr_stream_t *stream) {
    zr_device_t *device = stream->device;
    ZR_TRY(check_owner(device, "waiting for a stream"));
    double begin = begin_wait(device);
    zr_status_t status = device->backend->stream_synchronize(stream);
    end_wait(device, begin, stream->name);
    return status;
}

zr_status_t zr_stream_cost(const zr_stream_t *stream, zr_cost_t *cost_p) {
    *cost_p = stream->cost;
    return ZR_OK;
}

zr_status_t zr_event_create(zr_device_t *device, zr_event_t **event_p) {
    zr_event_t *event = NULL;
    ZR_TRY(device->backend->event_create(device, &event));
    event->device = device;
    *event_p = event;
    return ZR_OK;
}

void zr_event_destroy(zr_event_t **event) {
    if (event == NULL || *event == NULL)
        return;
    (*event)->device->backend->event_destroy(*event);
    *event = NULL;
}

zr_status_t zr_event_record(zr_event_t *event, zr_stream_t *stream) {
    if (event->device != stream->device)
        return zr_fail(&stream->device->log, ZR_ERR_ARGUMENT,
                       "stream \"%s\": an event of another device cannot be recorded",
                       stream->name);
    return stream->device->backend->event_record(event, stream);
}

zr_status_t zr_stream_wait(zr_stream_t *stream, zr_event_t *event) {
    if (event->device->backend != stream->device->backend)
        return zr_fail(&stream->device->log, ZR_ERR_ARGUMENT,
                       "stream \"%s\" of a %s device cannot wait for an event of a %s device",
                       stream->name, stream->device->backend->name, event->device->backend->name);
    double begin = begin_wait(stream->device);
    zr_status_t status = stream->device->backend->stream_wait(stream, event);
    end_wait(stream->device, begin, NULL);
    return status;
}

zr_status_t zr_event_synchronize(zr_event_t *event) {
    double begin = begin_wait(event->device);
    zr_status_t status = event->device->backend->event_synchronize(event);
    end_wait(event->device, begin, NULL);
    return status;
}

zr_status_t zr_event_query(zr_event_t *event, bool *passed_p) {
    return event->device->backend->event_query(event, passed_p);
}

zr_status_t zr_event_peek(zr_event_t *event, bool *passed_p) {
    const zr_device_backend_t *backend = event->device->backend;
    return (backend->event_peek != NULL ? backend->event_peek : backend->event_query)(event,
                                                                                      passed_p);
}

/* ---- copies -------------------------------------------------------------------- */

static const char *const copy_names[] = {"copy to device", "copy to host", "copy"};

zr_status_t zr_copy_async(zr_stream_t *stream, void *dst, const void *src, size_t size_bytes,
                          zr_copy_t kind) {
    const zr_log_t *log = &stream->device->log;
    if (kind != ZR_COPY_HOST_TO_DEVICE && kind != ZR_COPY_DEVICE_TO_HOST &&
        kind != ZR_COPY_DEVICE_TO_DEVICE)
        return zr_fail(log, ZR_ERR_ARGUMENT, "stream \"%s\": copy kind %d is unknown", stream->name,
                       (int)kind);
    if (size_bytes == 0)
        return ZR_OK;
    if (dst == NULL || src == NULL)
        return zr_fail(log, ZR_ERR_ARGUMENT, "stream \"%s\": copying %s from %p to %p",
                       stream->name, zr_count_text(size_bytes, "byte").text, src, dst);
    uintptr_t from = (uintptr_t)src, to = (uintptr_t)dst;
    if (kind == ZR_COPY_DEVICE_TO_DEVICE && from < to + size_bytes && to < from + size_bytes)
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "stream \"%s\": copying %s from %p to %p, which overlap", stream->name,
                       zr_count_text(size_bytes, "byte").text, src, dst);
    zr_stream_work_begins(stream);
    ZR_TRY(stream->device->backend->copy_async(stream, dst, src, size_bytes, kind));
    zr_stream_add_cost(stream, (zr_cost_t){.bytes = 2.0 * (double)size_bytes});
    if (stream->device->trace != NULL)
        zr_stream_trace_work(stream, copy_names[kind], (zr_cost_t){.bytes = (double)size_bytes});
    return ZR_OK;
}
