/* See device_trace.h. */
#include <stdlib.h>
#include <string.h>

#include "kernels/device_backend.h"

/* ---- work that tells its times -----------------------------------------------------------------
 */

/* Queued before and behind work, on a stream that takes calls. */
struct zr_trace_span {
    const zr_device_t *device;
    double begin;           /* written when the stream comes to it */
    zr_trace_slice_t slice; /* written when the work has been queued, but for its times */
    char subject[256];      /* of the slice; the caller's may be gone by then */
};

static void note_begin(void *context, zr_stream_t *stream) {
    struct zr_trace_span *span = context;
    (void)stream;
    span->begin = zr_device_now(span->device);
}

static void note_end(void *context, zr_stream_t *stream) {
    struct zr_trace_span *span = context;
    (void)stream;
    span->slice.begin = span->begin;
    span->slice.end = zr_device_now(span->device);
    zr_trace_slice(span->device->trace, &span->slice);
    free(span);
}

/* A span that is still there is of work that was refused. */
static void begin_span(zr_stream_t *stream) {
    if (stream->span == NULL)
        stream->span = calloc(1, sizeof(*stream->span));
    if (stream->span == NULL)
        return;
    stream->span->device = stream->device;
    if (zr_stream_call(stream, note_begin, stream->span) != ZR_OK) {
        free(stream->span);
        stream->span = NULL;
    }
}

/* False: nobody will tell its times. */
static bool end_span(zr_stream_t *stream, const zr_trace_slice_t *slice) {
    struct zr_trace_span *span = stream->span;
    if (span == NULL)
        return false;
    span->slice = *slice;
    span->slice.place = zr_trace_here(stream->device->trace);
    if (slice->subject != NULL) {
        strncat(span->subject, slice->subject, sizeof(span->subject) - 1);
        span->slice.subject = span->subject;
    }
    stream->span = NULL;
    if (zr_stream_call(stream, note_end, span) == ZR_OK)
        return true;
    stream->span = span; /* the call before it may be in the queue */
    span->subject[0] = '\0';
    return false;
}

/* ---- all work ----------------------------------------------------------------------------------
 */

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
    if (!stream->is_synchronous && zr_stream_takes_calls(stream))
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
