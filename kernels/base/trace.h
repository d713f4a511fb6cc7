/*
 * A recorder of a rank's timeline: slices (work with begin and end, in a lane), places (step,
 * micro-batch and unit of the rank's thread) and counters (bytes of memory).
 *
 * It is passed to zr_device_open, and everything that uses the device records to it: kernels,
 * copies, collectives, stores, the allocator, the runtime. Without a recorder the only cost is a
 * check for NULL. Times are those of the device's clock (zr_device_now), which is virtual for a
 * simulated device.
 *
 * Memory is bounded: when it is used up, further events are dropped and counted. Only the requested
 * steps are recorded. The file contains both facts.
 *
 * The file format is the Trace Event Format: ui.perfetto.dev and chrome://tracing open it. Source:
 * Google, "Trace Event Format", complete events (X), counters (C) and metadata (M).
 *
 * Threads: thread-safe.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "kernels/base/log.h"
#include "kernels/base/status.h"

ZR_BEGIN_C

typedef struct zr_trace zr_trace_t;

/** The meaning of the times of a device's work. */
typedef enum zr_trace_times {
    ZR_TIMES_MEASURED = 0, /* when it ran */
    ZR_TIMES_QUEUED = 1,   /* when the rank's thread queued it; it ran later */
    ZR_TIMES_VIRTUAL = 2   /* when it would run, by the virtual clock of a simulation */
} zr_trace_times_t;

typedef struct zr_trace_options {
    zr_log_t log;
    int process;              /* process number in the viewer, from 1: one for each rank */
    const char *process_name; /* "rank 0"; copied */
    size_t first_step;        /* first recorded step, from 1 */
    size_t last_step;         /* last recorded step, which lasts until the next one begins */
    bool from_start;          /* also record what comes before the first step */
    size_t most_bytes;        /* memory limit: at least ZR_TRACE_LEAST_BYTES */
} zr_trace_options_t;

#define ZR_TRACE_LEAST_BYTES ((size_t)1 << 18)

/** Default log, process 1 "rank 0", everything from the start, 64 MiB. */
zr_trace_options_t zr_trace_options_default(void);

/**
 * Create a recorder.
 *
 * @param options  NULL means the defaults; borrowed for the call
 * @return ZR_OK; ZR_ERR_ARGUMENT; ZR_ERR_MEMORY
 *
 * Ownership: destroy it after all devices that use it.
 */
ZR_NODISCARD zr_status_t zr_trace_create(const zr_trace_options_t *options, zr_trace_t **trace_p);
void zr_trace_destroy(zr_trace_t **trace);

/** Whether events are recorded now; false for NULL. */
bool zr_trace_is_on(const zr_trace_t *trace);

/* ---- what is recorded ------------------------------------------------------------------------ */

/** The current place of the rank's thread. */
typedef struct zr_trace_place {
    size_t step;        /* from 1; 0: outside of a step */
    size_t micro_batch; /* from 1; 0: outside of one */
    const char *phase;  /* "forward", "norm", "update"; NULL: none */
    const char *unit;   /* NULL: none */
    size_t part;        /* part of the unit: a sub-group of the update, from 1; 0: the whole unit */
} zr_trace_place_t;

/**
 * Set the place of the rank's thread from now on. The step determines whether events are recorded.
 *
 * @param trace  NULL is fine
 * @param now    seconds of the device's clock
 * @param place  borrowed for the call, with its names
 */
void zr_trace_at(zr_trace_t *trace, double now, const zr_trace_place_t *place);
/** The same within the current step: a phase outside of micro-batches; NULL: none. */
void zr_trace_phase(zr_trace_t *trace, double now, const char *phase);

typedef enum zr_slice_kind {
    ZR_SLICE_WORK = 0,       /* a kernel or a copy: belongs to the place where it was queued */
    ZR_SLICE_COLLECTIVE = 1, /* bytes are those that this rank sends */
    ZR_SLICE_TRANSFER = 2,   /* a store's transfer */
    ZR_SLICE_WAIT = 3        /* the rank's thread was blocked */
} zr_slice_kind_t;
#define ZR_N_SLICE_KINDS 4

/** The lane of ZR_SLICE_WAIT. */
#define ZR_TRACE_STALLS "stalls"

/** A piece of work. */
typedef struct zr_trace_slice {
    zr_slice_kind_t kind;
    const char *lane;    /* "compute"; slices of a lane may overlap */
    const char *name;    /* "matmul", "all_gather" */
    const char *subject; /* the tensor or unit: "h.0 parameters"; NULL: none */
    double begin, end;   /* seconds */
    double bytes;        /* 0: not shown */
    double operations;   /* 0: not shown */
    size_t place;        /* value of zr_trace_here when it was queued; 0: the current place */
} zr_trace_slice_t;

/** Record a slice. @param slice  borrowed for the call, with its names */
void zr_trace_slice(zr_trace_t *trace, const zr_trace_slice_t *slice);

/** The current place of the rank's thread, for slices that are recorded later; 0: not recording. */
size_t zr_trace_here(zr_trace_t *trace);

/** Record that a counter has a value from now on, such as "device memory", "gradients". If `series`
 * is NULL, the value is the whole counter. Values are kept even while not recording. */
void zr_trace_count(zr_trace_t *trace, double now, const char *counter, const char *series,
                    size_t value);

/** Count an event that could not be recorded. */
void zr_trace_leave_out(zr_trace_t *trace);

/** Note in the file that recorded work has times of this kind. */
void zr_trace_say_times(zr_trace_t *trace, zr_trace_times_t times);

/** Set the time of this recorder's clock that becomes 0 in the file, for ranks whose clocks differ.
 * By default the smallest time in all recorders of the file becomes 0. */
void zr_trace_set_origin(zr_trace_t *trace, double seconds);

/* ---- what was recorded ----------------------------------------------------------------------- */

typedef struct zr_trace_info {
    size_t n_events;
    size_t n_left_out;            /* dropped for lack of memory */
    size_t first_step, last_step; /* range of steps with slices or places; 0: none */
    double first_time;            /* smallest time in seconds; 0 without events */
    size_t memory_bytes;
} zr_trace_info_t;
void zr_trace_info(const zr_trace_t *trace, zr_trace_info_t *info_p);

/**
 * Write recorders of several ranks to one file.
 *
 * @param traces  [n_traces]; no thread may record meanwhile
 * @param path    an existing file is replaced only after the new one is complete; pipes and other
 *                non-files are written directly
 * @param log     gets errors, with the path; NULL: default
 * @return ZR_OK; ZR_ERR_IO; ZR_ERR_MEMORY
 */
ZR_NODISCARD zr_status_t zr_trace_save(zr_trace_t *const *traces, size_t n_traces, const char *path,
                                       const zr_log_t *log);

ZR_END_C
