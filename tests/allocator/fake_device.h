/*
 * A device for tests of the allocator: host memory whose streams are late, whose machine
 * can run out of memory, and that watches how it is used. Its events pass when the test
 * says so, or when somebody waits for them.
 *
 * What is ordered behind what, it knows by vector clocks: a stream's says for each stream how
 * many pieces of work are behind it, an event keeps its stream's, waiting merges, and what the
 * CPU has waited for, or has seen to have passed, is behind all that comes after.
 */
#pragma once

#include <pthread.h>

#include "kernels/device_backend.h"

#define FAKE_MAX_RANGES 64
#define FAKE_LOG_BYTES 65536
#define FAKE_MAX_STREAMS 16
#define FAKE_CALLS_BYTES 256

/* A letter per call. A test may add its own with fake_note. */
#define FAKE_MAP 'm'
#define FAKE_UNMAP 'u'
#define FAKE_MOVE 'v'
#define FAKE_WAIT 'w'

/* A reserved range, and which of its granules are mapped. */
typedef struct fake_range {
    zr_tier_t tier;
    char *base; /* NULL: none */
    size_t size_bytes;
    unsigned char *is_mapped;
} fake_range_t;

typedef struct fake_stream fake_stream_t;

/* Pieces of work per stream. */
typedef struct fake_clock {
    size_t ticks[FAKE_MAX_STREAMS];
} fake_clock_t;

/* The zr_device is the host's own, with another table. */
typedef struct fake {
    zr_device_t *device;
    zr_device_backend_t backend;          /* the host's, with memory, streams and events replaced */
    fake_range_t ranges[FAKE_MAX_RANGES]; /* in the order of their reservation */
    int n_ranges;
    size_t mapped_bytes[ZR_N_TIERS];
    size_t n_maps, n_unmaps, n_moves, n_waits, n_events; /* n_events: that exist */
    size_t n_stream_waits;                               /* of a stream for another */
    char calls[FAKE_CALLS_BYTES]; /* the last of them, in order: see FAKE_MAP */
    size_t n_calls;
    size_t n_violations; /* calls that break the interface's rules: tests hold this at 0 */
    fake_stream_t *streams;
    int n_streams;
    fake_clock_t host; /* what the CPU knows to have passed */

    /* What is to fail. */
    size_t machine_bytes;   /* of each tier: mapping more is refused */
    size_t max_range_bytes; /* reserving more is refused */
    size_t fail_map_at;     /* the n-th map call from now is refused; 0: none */
    size_t fail_call_at;    /* likewise, of all map, unmap and move calls */
    bool cannot_move;       /* moves end as unmapping and mapping, which count and fail, too */
    bool fail_unmap, fail_move;
    bool fail_event_create, fail_event_record, fail_waits, fail_queries;
    bool fail_stream_waits;

    /* What was logged, a line per message, and how often at each level. */
    pthread_mutex_t log_lock;
    char text[FAKE_LOG_BYTES];
    size_t n_logged[ZR_LOG_DEBUG + 1];
} fake_t;

/** Open one; is_late: streams pass only when told. */
fake_t *fake_open(size_t granule_bytes, bool is_late);
/** Close it and check that it was used well: all given back, no rule broken. */
void fake_close(fake_t *fake);

/** Add a letter to the calls. */
void fake_note(fake_t *fake, char letter);
/** Forget the calls so far. */
void fake_forget_calls(fake_t *fake);

/** A log that ends in fake->text. */
zr_log_t fake_log(fake_t *fake);
/** Forget what was logged. */
void fake_log_clear(fake_t *fake);

/** Queue a piece of work: what is recorded from now on passes after it. */
size_t fake_stream_queue(zr_stream_t *stream);
/** Let the first n pieces of what is still queued pass. */
void fake_stream_pass(zr_stream_t *stream, size_t n);
/** How many pieces have passed so far. */
size_t fake_stream_n_passed(const zr_stream_t *stream);

/** Whether what is queued on a stream from now on, or what the CPU does (NULL), comes after the
 * first `tick` pieces of another stream. */
bool fake_is_ordered(const fake_t *fake, const zr_stream_t *before, size_t tick,
                     const zr_stream_t *after);

/** The range that an address is in; NULL: in none. */
fake_range_t *fake_range_of(fake_t *fake, const void *pointer);
/** Whether all of it is mapped. */
bool fake_is_mapped(fake_t *fake, const void *pointer, size_t size_bytes);
