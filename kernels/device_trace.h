/*
 * How what a device does comes to its recorder (trace.h): for the dispatch of kernels and copies,
 * and for what is made of several of them.
 *
 * When work ran is known in one of several ways. A device with a clock of its own tells
 * (last_work). On a synchronous stream it is the time that the call took. A stream that takes calls
 * has one queued before the work and one behind it, which look at the clock. On a device with
 * timers it is two of those, which are read when they have passed. On any other it is when the work
 * was queued, and the file says so.
 */
#pragma once

#include "kernels/device.h"
#include "kernels/kernels.h"

ZR_BEGIN_C

/* With a recorder only: before and after a kernel or copy is queued. Within a group: nothing. */
void zr_stream_trace_begin(zr_stream_t *stream);
void zr_stream_trace_work(zr_stream_t *stream, const char *name, zr_cost_t cost);

/* For zr_stream_destroy: what was begun on the stream, or NULL. For zr_device_close: what has
 * passed is recorded. */
struct zr_trace_span;
void zr_stream_trace_drop(struct zr_trace_span *span);
void zr_device_trace_close(zr_device_t *device);

/**
 * What is queued on a stream between these two is one slice, such as a collective, whatever it is
 * made of. They may be within each other: the outermost counts. Without a recorder they do nothing.
 *
 * @param slice  without lane and times; NULL: nothing came of it
 */
void zr_stream_group_begin(zr_stream_t *stream);
void zr_stream_group_end(zr_stream_t *stream, const zr_trace_slice_t *slice);

/** The rank's thread has stood still since `begin`, of the device's clock. Without a recorder
 * nothing happens. @param subject  NULL: it has no name */
void zr_device_waited(const zr_device_t *device, double begin, const char *name,
                      const char *subject);

ZR_END_C
