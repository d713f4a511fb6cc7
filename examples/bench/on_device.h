/*
 * What the commands that measure work on a device share: the device of --device, memory on it, and
 * the time of work that is queued. On a GPU work runs late, so that a single call says nothing:
 * many are queued, the stream is waited for once, and the time is divided.
 */
#pragma once

#include "examples/bench/bench.h"

#define ON_DEVICE_MAX_THREADS 1024

/** The options that these commands have in common; the first member of their own. */
typedef struct on_device_options {
    command_common_t common;
    const char *device; /* as written */
    size_t n_threads;   /* of the host; 0: all cores */
    const char *isa;    /* of the host; NULL: the best one */
    double seconds;     /* measure for about so long */
} on_device_options_t;

/** Their rows: device, threads, seconds. */
extern const options_table_t on_device_table;
/** device and threads, of ranks. */
extern const options_table_t on_ranks_table;
/** What they are when nothing is given. */
#define ON_DEVICE_DEFAULTS                                                                         \
    { .device = "host", .seconds = 2.0 }
on_device_options_t on_device_options_default(const zr_log_t *log);

typedef struct on_device {
    zr_device_t *device;
    zr_stream_t *stream;
    bool is_borrowed;
    struct {
        void *base;
        size_t size_bytes;
    } ranges[4];
    size_t n_ranges;
} on_device_t;

/**
 * Find the device and open it, with a stream. Undo with on_device_close, also after an error.
 *
 * @return ZR_OK; ZR_ERR_ARGUMENT; ZR_ERR_UNSUPPORTED: it is not here
 */
ZR_NODISCARD zr_status_t on_device_open(const on_device_options_t *options, on_device_t *on);
/** The same on a device that is somebody else's, until on_device_close. */
ZR_NODISCARD zr_status_t on_device_borrow(zr_device_t *device, on_device_t *on);
void on_device_close(on_device_t *on);
/** Whether it is the host. */
bool on_device_is_host(const on_device_t *on);

/** An array, and where the pointer to it goes. */
typedef struct on_device_array {
    void *pointer;
    size_t size_bytes;
} on_device_array_t;

/**
 * Memory for arrays, of no particular contents, until on_device_close. Arrays that begin at the
 * same place of a page compete for the same places in caches, so that there are gaps between them.
 */
ZR_NODISCARD zr_status_t on_device_take(on_device_t *on, const on_device_array_t *arrays, size_t n);
#define ON_DEVICE_TAKE(on, ...)                                                                    \
    on_device_take(on, (const on_device_array_t[]){__VA_ARGS__},                                   \
                   sizeof((const on_device_array_t[]){__VA_ARGS__}) / sizeof(on_device_array_t))

/** Numbers between -1 and 1 that repeat late: products of equal ones take less power than a
 * model's, and a GPU's clock goes by that. */
ZR_NODISCARD zr_status_t on_device_draw(on_device_t *on, void *array, zr_dtype_t dtype,
                                        size_t n_elems);

/* ---- work that is timed ------------------------------------------------------------------- */

typedef struct work {
    zr_status_t (*queue)(void *context, zr_stream_t *stream);
    void *context;

    /* Of work_warm_up. */
    size_t n_calls; /* that are queued at once */
    zr_cost_t cost; /* of a call, as the stream was charged */

    bench_times_t times; /* of one call */
} work_t;

/** Call it twice, which meets what is cold and finds how many calls to queue. */
ZR_NODISCARD zr_status_t work_warm_up(work_t *work, zr_stream_t *stream);
/** Queue its calls and wait for them. */
ZR_NODISCARD zr_status_t work_call(const work_t *work, zr_stream_t *stream);
/** Do so, and add the time of one. */
ZR_NODISCARD zr_status_t work_time(work_t *work, zr_stream_t *stream);
/** Warm all up, then time them in turns for about so long, ON_DEVICE_MIN_ROUNDS times at least. */
ZR_NODISCARD zr_status_t works_measure(work_t *works, size_t n_works, zr_stream_t *stream,
                                       double seconds);
void works_free(work_t *works, size_t n_works);
#define ON_DEVICE_MIN_ROUNDS 5
