/*
 * Streams of a host device that run beside the calling thread: see zr_stream_create_concurrent.
 *
 * Such a stream has a thread and a queue. What an event has to know is how far a stream has to have
 * come: a number of pieces of work; so recording one takes no place in the queue, and all of a
 * stream's events have passed where nothing is queued. The thread works on a view of the device, an
 * own one that shares the threads of its pool, and on a stream of that, whose work is done at once.
 *
 * The calling thread does its work itself, on all other streams. It waits for an event of a stream
 * beside it where it would queue something behind it, and the seconds of that are counted.
 */
#pragma once

#include "kernels/host/host_device.h"

typedef struct zr_host_concurrent zr_host_concurrent_t;

/** A stream of a host device. */
typedef struct zr_host_stream {
    zr_stream_t base;
    zr_host_concurrent_t *concurrent; /* NULL: its work is done in the calling thread */
} zr_host_stream_t;

/* Entries of the backend's table. */
zr_status_t zr_host_stream_create_concurrent(zr_device_t *device, const char *name,
                                             zr_stream_t **stream_p);
bool zr_host_stream_takes_calls(const zr_stream_t *stream);
zr_status_t zr_host_stream_call(zr_stream_t *stream, zr_stream_fn fn, void *context);
double zr_host_wait_seconds(const zr_device_t *device);
zr_status_t zr_host_stream_create(zr_device_t *device, const char *name, zr_stream_t **stream_p);
void zr_host_stream_destroy(zr_stream_t *stream);
zr_status_t zr_host_stream_synchronize(zr_stream_t *stream);
zr_status_t zr_host_event_create(zr_device_t *device, zr_event_t **event_p);
void zr_host_event_destroy(zr_event_t *event);
zr_status_t zr_host_event_record(zr_event_t *event, zr_stream_t *stream);
zr_status_t zr_host_stream_wait(zr_stream_t *stream, zr_event_t *event);
zr_status_t zr_host_event_synchronize(zr_event_t *event);
zr_status_t zr_host_event_query(zr_event_t *event, bool *passed_p);

/* ---- for host_kernels.c -------------------------------------------------------------------- */

/** A piece of work: a kernel or a copy, a call, a wait. Pointers are borrowed until it is done; an
 * update is copied. */
typedef struct zr_host_work {
    zr_status_t (*run)(zr_stream_t *stream, const struct zr_host_work *work);
    zr_kernel_work_t kernel; /* of a copy dst, src, and its bytes */
    zr_update_t update;
    zr_stream_fn fn;
    void *context;
    struct zr_host_progress *until; /* another stream's, which has to come to `ticket` */
    uint64_t ticket;
} zr_host_work_t;

/** Queue it on a stream that has a thread. ZR_ERR_MEMORY, logged. */
ZR_NODISCARD zr_status_t zr_host_queue(zr_stream_t *stream, const zr_host_work_t *work);
