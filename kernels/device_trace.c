/* See device_trace.h. */
#include "kernels/device_backend.h"

static zr_trace_times_t times_of(const zr_stream_t *stream) {
    if (stream->device->backend->last_work != NULL)
        return ZR_TIMES_VIRTUAL;
    return stream->is_synchronous ? ZR_TIMES_MEASURED : ZR_TIMES_QUEUED;
}

/* What was begun on the stream has been queued. */
static void record(zr_stream_t *stream, zr_trace_slice_t slice) {
    const zr_device_t *device = stream->device;
    slice.lane = stream->name;
    slice.begin = stream->work_begin;
    if (device->backend->last_work != NULL) {
        device->backend->last_work(stream, &slice.begin, &slice.end);
    } else {
        slice.end = zr_device_now(device);
        if (slice.begin == 0) /* nothing was told of before it */
            slice.begin = slice.end;
    }
    stream->work_begin = slice.end; /* of a kernel of a caller's own, which is told of afterwards */
    zr_trace_say_times(device->trace, times_of(stream));
    zr_trace_slice(device->trace, &slice);
}

void zr_stream_trace_begin(zr_stream_t *stream) {
    if (stream->n_groups == 0 && zr_trace_is_on(stream->device->trace))
        stream->work_begin = zr_device_now(stream->device);
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
