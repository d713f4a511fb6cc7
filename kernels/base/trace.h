/*
 * A recorder of what a rank did when: slices (work that began and ended, each in a lane), places
 * (step, micro-batch, unit: what the rank's thread is at) and counters (bytes of memory).
 *
 * It is handed to a device when that is opened, and everything that works with the device finds it
 * there: kernels, copies, collectives, stores, the allocator, the runtime. Without one each of them
 * asks a pointer whether it is NULL, and nothing else. Times are those of the device's clock
 * (zr_device_now), so that a simulated device's are virtual.
 *
 * Memory is bounded: what comes when it is used up is counted and left out, and so are all steps
 * but those that were asked for. The file says both.
 *
 * The form is the Trace Event Format: ui.perfetto.dev and chrome://tracing open it. Source: Google,
 * "Trace Event Format", complete events (X), counters (C) and metadata (M).
 *
 * Threads: a recorder may be used by several at once.
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

/** What the times of a device's work are. */
typedef enum zr_trace_times {
    ZR_TIMES_MEASURED = 0, /* when it ran */
    ZR_TIMES_QUEUED = 1,   /* when the rank's thread queued it: it ran later */
    ZR_TIMES_VIRTUAL = 2   /* when it would run: of a simulation's clock */
} zr_trace_times_t;

typedef struct zr_trace_options {
    zr_log_t log;
    int process;              /* the viewer's number of it, from 1: one for each rank */
    const char *process_name; /* "rank 0"; copied */
    size_t first_step;        /* the first that is recorded, from 1 */
    size_t last_step;         /* and the last: until the next one begins */
    bool from_start;          /* what comes before the first step is recorded, too */
    size_t most_bytes;        /* of memory: at least ZR_TRACE_LEAST_BYTES */
} zr_trace_options_t;

#define ZR_TRACE_LEAST_BYTES ((size_t)1 << 18)

/** Default log, process 1 "rank 0", everything from the start, 64 MiB. */
zr_trace_options_t zr_trace_options_default(void);

/**
 * Make a recorder.
 *
 * @param options  NULL means the defaults; borrowed for the call
 * @return ZR_OK; ZR_ERR_ARGUMENT; ZR_ERR_MEMORY
 *
 * Ownership: destroy it after all devices that have it.
 */
ZR_NODISCARD zr_status_t zr_trace_create(const zr_trace_options_t *options, zr_trace_t **trace_p);
void zr_trace_destroy(zr_trace_t **trace);

/** Whether something would be recorded now; false of NULL. */
bool zr_trace_is_on(const zr_trace_t *trace);

/* ---- what is recorded ------------------------------------------------------------------------ */

/** What the rank's thread is at. */
typedef struct zr_trace_place {
    size_t step;        /* from 1; 0: outside of a step */
    size_t micro_batch; /* from 1; 0: outside of one */
    const char *phase;  /* "forward", "norm", "update"; NULL: none */
    const char *unit;   /* NULL: none */
    size_t part;        /* of the unit: a sub-group of the update, from 1; 0: all of it */
} zr_trace_place_t;

/**
 * The rank's thread is somewhere else from now on. The step decides whether there is recording.
 *
 * @param trace  NULL is fine
 * @param now    seconds of the device's clock
 * @param place  borrowed for the call, with its names
 */
void zr_trace_at(zr_trace_t *trace, double now, const zr_trace_place_t *place);
/** The same in the step where it is: in a phase outside of micro-batches; NULL: in none. */
void zr_trace_phase(zr_trace_t *trace, double now, const char *phase);

typedef enum zr_slice_kind {
    ZR_SLICE_WORK = 0,       /* a kernel or a copy: belongs to the place where it was queued */
    ZR_SLICE_COLLECTIVE = 1, /* bytes are those that this rank sends */
    ZR_SLICE_TRANSFER = 2,   /* of a store */
    ZR_SLICE_WAIT = 3        /* the rank's thread stood still */
} zr_slice_kind_t;
#define ZR_N_SLICE_KINDS 4

/** The lane of ZR_SLICE_WAIT. */
#define ZR_TRACE_STALLS "stalls"

/** A piece of work. */
typedef struct zr_trace_slice {
    zr_slice_kind_t kind;
    const char *lane;    /* "compute"; slices of a lane may overlap */
    const char *name;    /* "matmul", "all_gather" */
    const char *subject; /* of what: "h.0 parameters"; NULL: it has no name */
    double begin, end;   /* seconds */
    double bytes;        /* 0: of no account */
    double operations;   /* likewise */
    size_t place;        /* where it was queued: zr_trace_here then; 0: where the thread is now */
} zr_trace_slice_t;

/** Record a slice. @param slice  borrowed for the call, with its names */
void zr_trace_slice(zr_trace_t *trace, const zr_trace_slice_t *slice);

/** The place where the rank's thread is, for slices that are recorded later; 0: there is no
 * recording. */
size_t zr_trace_here(zr_trace_t *trace);

/** Record that a counter has a value from now on, such as "device memory", "gradients". A series
 * NULL is the whole of its counter. Values are kept where there is no recording, too. */
void zr_trace_count(zr_trace_t *trace, double now, const char *counter, const char *series,
                    size_t value);

/** Something is not recorded that should be: it is counted, and the rest goes on. */
void zr_trace_leave_out(zr_trace_t *trace);

/** Work has been recorded whose times are such: the file says it. */
void zr_trace_say_times(zr_trace_t *trace, zr_trace_times_t times);

/** Let `seconds` of this recorder's clock be 0 in the file, for ranks whose clocks differ; as long
 * as nobody says it, the least time that any of the file's recorders has is 0. */
void zr_trace_set_origin(zr_trace_t *trace, double seconds);

/* ---- what was recorded ----------------------------------------------------------------------- */

typedef struct zr_trace_info {
    size_t n_events;
    size_t n_left_out;            /* for want of memory */
    size_t first_step, last_step; /* that there are slices or places of; 0: none */
    double first_time;            /* the least there is, in seconds; 0 without events */
    size_t memory_bytes;
} zr_trace_info_t;
void zr_trace_info(const zr_trace_t *trace, zr_trace_info_t *info_p);

/**
 * Write recorders of several ranks to one file.
 *
 * @param traces  [n_traces]; nobody records meanwhile
 * @param path    a file of this name is replaced when all of it has been written, and not before;
 *                what is no file, such as a pipe, is written to
 * @param log     where errors are said, with the path; NULL: default
 * @return ZR_OK; ZR_ERR_IO; ZR_ERR_MEMORY
 */
ZR_NODISCARD zr_status_t zr_trace_save(zr_trace_t *const *traces, size_t n_traces, const char *path,
                                       const zr_log_t *log);

ZR_END_C
