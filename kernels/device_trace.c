/* See device_trace.h. */
#include <stdlib.h>
#include <string.h>

#include "kernels/device_backend.h"

/* Work whose times are known when it has run. */
struct zr_trace_span {
    const zr_device_t *device;
    double begin;           /* with calls: written when the stream comes to it */
    zr_trace_slice_t slice; /* written when the work has been queued, but for its times */
    char subject[256];      /* of the slice; the caller's may be gone by then */
    zr_event_t *timers[2];  /* before the work and behind it; NULL with calls */
    struct zr_trace_span *next;
};
typedef struct zr_trace_span span_t;

/* Spans with timers: those that may not have passed, as they were queued, and those to be used
 * again. */
typedef struct zr_trace_timing {
    span_t *oldest, **newest;
    span_t *idle;
    size_t n_queued; /* since it was last looked whether they have passed */
} timing_t;

#define LOOK_EVERY 64 /* spans */

/* ---- calls: queued before and behind work, where the stream takes them ---------------------- */

static void note_begin(void *context, zr_stream_t *stream) {
    span_t *span = context;
    (void)stream;
    span->begin = zr_device_now(span->device);
}

static void note_end(void *context, zr_stream_t *stream) {
    span_t *span = context;
    (void)stream;
    span->slice.begin = span->begin;
    span->slice.end = zr_device_now(span->device);
    zr_trace_slice(span->device->trace, &span->slice);
    free(span);
}

/* ---- timers --------------------------------------------------------------------------------- */

static void destroy_span(span_t *span) {
    if (span == NULL)
        return;
    zr_event_destroy(&span->timers[0]);
    zr_event_destroy(&span->timers[1]);
    free(span);
}

static timing_t *timing_of(zr_device_t *device) {
    if (device->timing == NULL) {
        device->timing = calloc(1, sizeof(*device->timing));
        if (device->timing != NULL)
            device->timing->newest = &device->timing->oldest;
    }
    return device->timing;
}

static zr_status_t create_timer(zr_device_t *device, zr_event_t **timer_p) {
    ZR_TRY(device->backend->timer_create(device, timer_p));
    (*timer_p)->device = device;
    return ZR_OK;
}

/* One that was used before, or a new one; NULL: there is none. */
static span_t *take_timed_span(zr_device_t *device) {
    timing_t *timing = timing_of(device);
    if (timing == NULL)
        return NULL;
    span_t *span = timing->idle;
    if (span != NULL) {
        timing->idle = span->next;
        return span;
    }
    span = calloc(1, sizeof(*span));
    if (span != NULL && (create_timer(device, &span->timers[0]) != ZR_OK ||
                         create_timer(device, &span->timers[1]) != ZR_OK)) {
        destroy_span(span);
        span = NULL;
    }
    return span;
}

/* False: nothing more can be learned of it. */
static bool read_span(const zr_device_t *device, span_t *span, bool *passed_p) {
    const zr_device_backend_t *backend = device->backend;
    *passed_p = false;
    if (zr_event_query(span->timers[1], passed_p) != ZR_OK)
        return false;
    if (!*passed_p)
        return true;
    if (backend->timer_read(span->timers[0], &span->slice.begin) != ZR_OK ||
        backend->timer_read(span->timers[1], &span->slice.end) != ZR_OK)
        return false;
    zr_trace_slice(device->trace, &span->slice);
    return true;
}

/* Record what has passed. After an error of the device, which has been logged, nothing is known of
 * the rest. */
static void read_timers(zr_device_t *device) {
    timing_t *timing = device->timing;
    bool passed = true;
    timing->n_queued = 0;
    while (timing->oldest != NULL) {
        span_t *span = timing->oldest;
        bool is_good = read_span(device, span, &passed);
        if (is_good && !passed)
            return;
        timing->oldest = span->next;
        if (timing->oldest == NULL)
            timing->newest = &timing->oldest;
        if (is_good) {
            span->next = timing->idle;
            timing->idle = span;
        } else {
            zr_trace_leave_out(device->trace);
            destroy_span(span);
        }
    }
}

void zr_stream_trace_drop(span_t *span) {
    destroy_span(span);
}

void zr_device_trace_close(zr_device_t *device) {
    timing_t *timing = device->timing;
    if (timing == NULL)
        return;
    read_timers(device);
    while (timing->oldest != NULL || timing->idle != NULL) {
        span_t **list = timing->oldest != NULL ? &timing->oldest : &timing->idle;
        span_t *span = *list;
        *list = span->next;
        destroy_span(span);
    }
    free(timing);
    device->timing = NULL;
}

/* ---- both ----------------------------------------------------------------------------------- */

static zr_status_t queue_begin(zr_stream_t *stream, span_t *span) {
    if (span->timers[0] != NULL)
        return zr_event_record(span->timers[0], stream);
    return zr_stream_call(stream, note_begin, span);
}

/* A span that is still there is of work that was refused. */
static void begin_span(zr_stream_t *stream) {
    bool has_calls = zr_stream_takes_calls(stream);
    if (!has_calls && stream->device->backend->timer_create == NULL)
        return;
    if (stream->span == NULL)
        stream->span = has_calls ? calloc(1, sizeof(span_t)) : take_timed_span(stream->device);
    if (stream->span == NULL)
        return;
    stream->span->device = stream->device;
    if (queue_begin(stream, stream->span) != ZR_OK) {
        destroy_span(stream->span);
        stream->span = NULL;
    }
}

static zr_status_t queue_end(zr_stream_t *stream, span_t *span) {
    timing_t *timing = stream->device->timing;
    if (span->timers[0] == NULL)
        return zr_stream_call(stream, note_end, span);
    ZR_TRY(zr_event_record(span->timers[1], stream));
    span->next = NULL;
    *timing->newest = span;
    timing->newest = &span->next;
    if (++timing->n_queued >= LOOK_EVERY)
        read_timers(stream->device);
    return ZR_OK;
}

/* False: nobody will tell its times. */
static bool end_span(zr_stream_t *stream, const zr_trace_slice_t *slice) {
    span_t *span = stream->span;
    if (span == NULL)
        return false;
    span->slice = *slice;
    span->slice.place = zr_trace_here(stream->device->trace);
    if (slice->subject != NULL) {
        span->subject[0] = '\0';
        strncat(span->subject, slice->subject, sizeof(span->subject) - 1);
        span->slice.subject = span->subject;
    }
    stream->span = NULL;
    if (queue_end(stream, span) == ZR_OK)
        return true;
    stream->span = span; /* what was queued before it may be under way */
    return false;
}

/* ---- all work ------------------------------------------------------------------------------- */

/* What was begun on the stream has been queued. */
static void record(zr_stream_t *stream, zr_trace_slice_t slice) {
    const zr_device_t *device = stream->device;
    zr_trace_times_t times = ZR_TIMES_MEASURED;
    bool is_told = false;
    slice.lane = stream->name;
    slice.begin = stream->work_begin;
    if (device->backend->last_work != NULL) {
        device->backend->last_work(stream, &slice.begin, &slice.end);
        times = ZR_TIMES_VIRTUAL;
    } else {
        is_told = end_span(stream, &slice);
        slice.end = zr_device_now(device);
        if (slice.begin == 0) /* nothing was told of before it */
            slice.begin = slice.end;
        if (!is_told && !stream->is_synchronous)
            times = ZR_TIMES_QUEUED;
    }
    stream->work_begin = slice.end; /* of a kernel of a caller's own, which is told of afterwards */
    zr_trace_say_times(device->trace, times);
    if (!is_told)
        zr_trace_slice(device->trace, &slice);
}

void zr_stream_trace_begin(zr_stream_t *stream) {
    if (stream->n_groups > 0 || !zr_trace_is_on(stream->device->trace))
        return;
    stream->work_begin = zr_device_now(stream->device);
    if (!stream->is_synchronous)
        begin_span(stream);
}

void zr_stream_trace_work(zr_stream_t *stream, const char *name, zr_cost_t cost) {
    if (stream->n_groups > 0 || !zr_trace_is_on(stream->device->trace))
        return;
    record(stream, (zr_trace_slice_t){.kind = ZR_SLICE_WORK,
                                      .name = name,
                                      .bytes = cost.bytes,
                                      .operations = cost.operations});
}

void zr_stream_group_begin(zr_stream_t *stream) {
    if (stream->device->trace == NULL)
        return;
    zr_stream_trace_begin(stream);
    stream->n_groups++;
}

void zr_stream_group_end(zr_stream_t *stream, const zr_trace_slice_t *slice) {
    if (stream->device->trace == NULL)
        return;
    stream->n_groups--;
    if (slice != NULL && stream->n_groups == 0 && zr_trace_is_on(stream->device->trace))
        record(stream, *slice);
}

void zr_device_waited(const zr_device_t *device, double begin, const char *name,
                      const char *subject) {
    if (!zr_trace_is_on(device->trace))
        return;
    const zr_trace_slice_t slice = {.kind = ZR_SLICE_WAIT,
                                    .lane = ZR_TRACE_STALLS,
                                    .name = name,
                                    .subject = subject,
                                    .begin = begin,
                                    .end = zr_device_now(device)};
    zr_trace_slice(device->trace, &slice);
}
