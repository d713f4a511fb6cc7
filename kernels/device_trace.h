/*
 * How a device's work is recorded (trace.h): for the dispatch of kernels and copies, and for
 * operations made of several of them.
 *
 * There are several ways to find out when work ran. A device with a virtual clock tells
 * (last_work). On a synchronous stream it is the time of the call. On a stream that takes
 * functions, functions queued before and after the work read the clock. On a device with timers,
 * two timers around the work are read after they have passed. On any other device it is the time of
 * queueing, and the file notes that.
 */
#pragma once

#include "kernels/device.h"
#include "kernels/kernels.h"

ZR_BEGIN_C

/* Only with a recorder: called before and after a kernel or copy is queued. No effect within a
 * group. */
void zr_stream_trace_begin(zr_stream_t *stream);
void zr_stream_trace_work(zr_stream_t *stream, const char *name, zr_cost_t cost);

/* For zr_stream_destroy: drop the span begun on the stream, or NULL. For zr_device_close: record
 * everything that has passed. */
struct zr_trace_span;
void zr_stream_trace_drop(struct zr_trace_span *span);
void zr_device_trace_close(zr_device_t *device);

/**
 * Record all work queued on a stream between these two calls as one slice, such as a collective.
 * Groups may be nested: only the outermost counts. Without a recorder they do nothing.
 *
 * @param slice  without lane and times; NULL: record nothing
 */
void zr_stream_group_begin(zr_stream_t *stream);
void zr_stream_group_end(zr_stream_t *stream, const zr_trace_slice_t *slice);

/** Record that the rank's thread was blocked since `begin`, in time of the device's clock. Does
 * nothing without a recorder. @param subject NULL: none */
void zr_device_waited(const zr_device_t *device, double begin, const char *name,
                      const char *subject);

ZR_END_C
