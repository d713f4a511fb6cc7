/*
 * The virtual clock of a simulated rank, shared by its device, communicator and store.
 *
 * It keeps the time of the rank's thread, which advances when that thread queues work or waits, and
 * the busy times of each part of the machine. Work is added in queueing order. It begins when its
 * stream is ready and its part is free, possibly before work that was added earlier and must wait
 * for something else.
 *
 * Nothing is measured: the same run takes exactly the same virtual time on every machine.
 *
 * Threads: a clock belongs to one thread at a time, the rank's.
 */
#pragma once

#include "kernels/device.h"
#include "kernels/base/hardware.h"

ZR_BEGIN_C

/** Parts of the machine; each executes one piece of work at a time. */
typedef enum zr_sim_part {
    ZR_SIM_COMPUTE = 0,   /* the device's kernels, and copies within its memory */
    ZR_SIM_HOST = 1,      /* kernels on the host if the device is another processor; checksums */
    ZR_SIM_TO_DEVICE = 2, /* the host link, to the device */
    ZR_SIM_TO_HOST = 3,   /* the host link, to the host */
    ZR_SIM_NETWORK = 4,   /* collectives */
    ZR_SIM_DISK_READ = 5,
    ZR_SIM_DISK_WRITE = 6,
    ZR_SIM_DISK = 7 /* limit shared by reads and writes */
} zr_sim_part_t;
#define ZR_N_SIM_PARTS 8

typedef struct zr_sim_clock zr_sim_clock_t;

/**
 * Create a clock at time 0.
 *
 * @param log  copied; NULL: default
 * @return ZR_OK; ZR_ERR_MEMORY
 *
 * Ownership: destroy it after everything that uses it.
 */
ZR_NODISCARD zr_status_t zr_sim_clock_create(const zr_log_t *log, zr_sim_clock_t **clock_p);
void zr_sim_clock_destroy(zr_sim_clock_t **clock);

/** Current time of the rank's thread, in seconds. */
double zr_sim_clock_now(const zr_sim_clock_t *clock);
/** Busy seconds of a part, including queued work. */
double zr_sim_clock_busy(const zr_sim_clock_t *clock, zr_sim_part_t part);

/** A piece of work and its times. */
typedef struct zr_sim_span {
    zr_sim_part_t part;
    const char *name; /* name of the kernel, collective or direction; static */
    double begin, end;
    bool is_update; /* an optimizer's update (ZR_RATE_UPDATE) */
} zr_sim_span_t;
typedef void (*zr_sim_span_fn)(void *context, const zr_sim_span_t *span);

/** Call `observer` for every piece of work from now on, when it is queued. NULL: stop. */
void zr_sim_clock_observe(zr_sim_clock_t *clock, zr_sim_span_fn observer, void *context);

/* ---- for backends ---------------------------------------------------------------------------- */

/**
 * Add a piece of work to a part.
 *
 * @param earliest  earliest start; it also does not start before now
 * @return when it ends */
double zr_sim_clock_work(zr_sim_clock_t *clock, zr_sim_part_t part, const char *name,
                         double earliest, double seconds);
/** Set whether the following work is an optimizer's, for observers. */
void zr_sim_clock_tell_update(zr_sim_clock_t *clock, bool is_update);
/** The rank's thread waits until a time; no effect if it has passed. */
void zr_sim_clock_wait(zr_sim_clock_t *clock, double until);
/** The rank's thread is busy for `seconds`. */
void zr_sim_clock_spend(zr_sim_clock_t *clock, double seconds);

/** The clock of a simulated device; NULL for other devices. */
zr_sim_clock_t *zr_sim_clock_of(const zr_device_t *device);
/** The hardware that a device simulates; NULL for other devices. */
const zr_hardware_t *zr_sim_hardware_of(const zr_device_t *device);
/** Queue work of a part on a stream of a simulated device, like a kernel. Returns its end. */
double zr_sim_queue(zr_stream_t *stream, zr_sim_part_t part, const char *name, double seconds);

ZR_END_C
