/*
 * The virtual clock of a simulated rank: what its device, communicator and store share.
 *
 * It has the time of the rank's own thread, which goes on when that thread queues work or waits,
 * and the times at which each part of the machine is busy. Work is told of in the order in which
 * it is queued, and begins when the stream it is in has come so far and its part has room: also
 * before work that was told of earlier, where that has to wait for something else.
 *
 * Nothing of this is measured, and the same run takes the same time to the bit, everywhere.
 *
 * Threads: a clock belongs to one thread at a time, the rank's.
 */
#pragma once

#include "kernels/device.h"
#include "kernels/base/hardware.h"

ZR_BEGIN_C

/** What can be busy, each with one piece of work at a time. */
typedef enum zr_sim_part {
    ZR_SIM_COMPUTE = 0,   /* the device's kernels, and copies within its memory */
    ZR_SIM_HOST = 1,      /* kernels on host memory where that is another processor; checksums */
    ZR_SIM_TO_DEVICE = 2, /* the host link, one direction */
    ZR_SIM_TO_HOST = 3,   /* the other */
    ZR_SIM_NETWORK = 4,   /* collectives */
    ZR_SIM_DISK_READ = 5,
    ZR_SIM_DISK_WRITE = 6,
    ZR_SIM_DISK = 7 /* what both directions share */
} zr_sim_part_t;
#define ZR_N_SIM_PARTS 8

typedef struct zr_sim_clock zr_sim_clock_t;

/**
 * Make a clock that stands at 0.
 *
 * @param log  copied; NULL: default
 * @return ZR_OK; ZR_ERR_MEMORY
 *
 * Ownership: destroy it after everything that uses it.
 */
ZR_NODISCARD zr_status_t zr_sim_clock_create(const zr_log_t *log, zr_sim_clock_t **clock_p);
void zr_sim_clock_destroy(zr_sim_clock_t **clock);

/** Seconds that the rank's thread has come to. */
double zr_sim_clock_now(const zr_sim_clock_t *clock);
/** Seconds that a part has worked, or will have when what was queued is done. */
double zr_sim_clock_busy(const zr_sim_clock_t *clock, zr_sim_part_t part);

/** A piece of work: when it ran. */
typedef struct zr_sim_span {
    zr_sim_part_t part;
    const char *name; /* of the kernel, collective or direction; static */
    double begin, end;
    bool is_update; /* of an optimizer (ZR_RATE_UPDATE) */
} zr_sim_span_t;
typedef void (*zr_sim_span_fn)(void *context, const zr_sim_span_t *span);

/** Tell of every piece of work from now on, when it is queued. NULL: no more. */
void zr_sim_clock_observe(zr_sim_clock_t *clock, zr_sim_span_fn observer, void *context);

/* ---- for backends ---------------------------------------------------------------------------- */

/**
 * Let a part work.
 *
 * @param earliest  it does not begin before this, nor before now
 * @return when it is done
 */
double zr_sim_clock_work(zr_sim_clock_t *clock, zr_sim_part_t part, const char *name,
                         double earliest, double seconds);
/** Whether the work that follows is an optimizer's, for those who are told of it. */
void zr_sim_clock_tell_update(zr_sim_clock_t *clock, bool is_update);
/** The rank's thread has to wait until then; a time that has passed is fine. */
void zr_sim_clock_wait(zr_sim_clock_t *clock, double until);
/** The rank's thread is busy for so long. */
void zr_sim_clock_spend(zr_sim_clock_t *clock, double seconds);

/** The clock of a simulated device; NULL of any other. */
zr_sim_clock_t *zr_sim_clock_of(const zr_device_t *device);
/** The hardware that a simulated device stands for; NULL of any other. */
const zr_hardware_t *zr_sim_hardware_of(const zr_device_t *device);
/** Queue work of a part on a stream of a simulated device, like a kernel. Gives its end. */
double zr_sim_queue(zr_stream_t *stream, zr_sim_part_t part, const char *name, double seconds);

ZR_END_C
