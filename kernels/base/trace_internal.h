/*
 * What the recorder (trace.c) and the writer of its file (trace_save.c) share.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "kernels/base/trace.h"

/** A name that was recorded: its place in the table, from 1; 0 is NULL. */
typedef uint32_t zr_trace_name_t;

typedef enum zr_trace_event_kind {
    ZR_EVENT_SLICE = 0,
    ZR_EVENT_PLACE = 1,
    ZR_EVENT_COUNT = 2
} zr_trace_event_kind_t;

typedef struct zr_trace_event {
    double begin; /* of a place: when it was come to; of a counter: since when */
    uint8_t kind;
    uint8_t slice_kind;
    uint32_t place;  /* of a slice: how many places there were before it */
    uint64_t number; /* in the order of recording */
    union {
        struct {
            double end, bytes, operations;
            zr_trace_name_t lane, name, subject;
        } slice;
        struct {
            uint64_t step, micro_batch;
            uint32_t part;
            zr_trace_name_t phase, unit;
        } place;
        struct {
            uint64_t value;
            zr_trace_name_t counter, series;
        } count;
    } as;
} zr_trace_event_t;

#define ZR_TRACE_CHUNK_EVENTS 512

typedef struct zr_trace_chunk {
    struct zr_trace_chunk *next;
    size_t n;
    zr_trace_event_t events[ZR_TRACE_CHUNK_EVENTS];
} zr_trace_chunk_t;

/* The last value of a counter, for when recording begins. */
typedef struct zr_trace_value {
    zr_trace_name_t counter, series;
    uint64_t value;
} zr_trace_value_t;

#define ZR_TRACE_MOST_COUNTERS 64

struct zr_trace {
    zr_trace_options_t options; /* process_name: owned */
    atomic_bool is_on;          /* written under the lock */
    pthread_mutex_t lock;       /* innermost; guards all that follows */
    bool is_full;
    bool has_origin;
    double origin;
    size_t memory_bytes;
    size_t n_events;
    size_t n_left_out;
    bool has_times[3];
    zr_trace_chunk_t *first, *last; /* first to last; in the order of recording */

    char **names; /* [n_names]: name i is names[i - 1]; owned */
    size_t n_names, names_capacity;
    uint32_t *slots; /* [n_slots], a power of two: 0, or a name */
    size_t n_slots;

    size_t step;                  /* of the last place */
    size_t newest_step;           /* that one was of */
    size_t first_step, last_step; /* recorded; 0: none */
    double first_time;
    uint32_t n_places; /* recorded */
    zr_trace_value_t values[ZR_TRACE_MOST_COUNTERS];
    size_t n_values;
};

/** The text of a name; NULL for 0. */
static inline const char *zr_trace_text(const zr_trace_t *trace, zr_trace_name_t name) {
    return name == 0 ? NULL : trace->names[name - 1];
}

