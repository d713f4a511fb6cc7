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
    ZR_SIM_DISK = 7,  /* limit shared by reads and writes */
    ZR_SIM_UPDATE = 8 /* the device's kernels of updates, concurrent with its others: memory limits
                         them, and hardly those */
} zr_sim_part_t;
#define ZR_N_SIM_PARTS 9

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

/** Pieces of work that are there again, as many times, each time `seconds` later than before.
 * @param spans  [n] of the time before the first */
typedef void (*zr_sim_again_fn)(void *context, const zr_sim_span_t *spans, size_t n, size_t n_times,
                                double seconds);
/** Call `again`, with the observer's context, instead of the observer for such work of a tape that
 * is asked again. NULL: stop, as zr_sim_clock_observe does, too. */
void zr_sim_clock_observe_again(zr_sim_clock_t *clock, zr_sim_again_fn again);

/* ---- tapes ----------------------------------------------------------------------------------- */

/** What was asked of a simulated machine, in order, with what was found. */
typedef struct zr_sim_tape zr_sim_tape_t;

/** NULL: no memory. */
zr_sim_tape_t *zr_sim_tape_create(void);
void zr_sim_tape_destroy(zr_sim_tape_t **tape);

/** The rank's thread waits until all work is done. */
void zr_sim_clock_rest(zr_sim_clock_t *clock);
/** Keep all that is asked of the clock's machine from now on, in place of what is on the tape.
 * NULL: stop.
 * @param tape  borrowed */
void zr_sim_clock_keep(zr_sim_clock_t *clock, zr_sim_tape_t *tape);
/** Keep a mark: see zr_sim_tape_extend. */
void zr_sim_mark(zr_sim_clock_t *clock, uint32_t mark);

/**
 * Ask what a longer run would: one that differs from the last of three as that does from the one
 * before, but `n_more` times as much. What differs must be stretches of the same work again, and
 * all that is found on the way what it was in them: then nothing else can happen in that run, and
 * its times are its own.
 *
 * @param tapes  of three runs, each longer by one period
 * @param clock  new; takes the run's time
 * @param mark   called at each mark
 * @return false: no such periods are found, or something else is found in a longer run
 */
typedef void (*zr_sim_mark_fn)(void *context, uint32_t mark);
bool zr_sim_tape_extend(const zr_sim_tape_t *const tapes[3], size_t n_more, zr_sim_clock_t *clock,
                        zr_sim_mark_fn mark, void *context);

/* ---- for backends ---------------------------------------------------------------------------- */

/** The rank's thread is busy for `seconds`. */
void zr_sim_spend(zr_sim_clock_t *clock, double seconds);
/** Work of a part that the rank's thread waits for. */
void zr_sim_busy(zr_sim_clock_t *clock, zr_sim_part_t part, const char *name, double seconds);
/** Queue work of a part on a stream of a simulated device, like a kernel. Returns its end. */
double zr_sim_queue(zr_stream_t *stream, zr_sim_part_t part, const char *name, double seconds);

/** The clock of a simulated device; NULL for other devices. */
zr_sim_clock_t *zr_sim_clock_of(const zr_device_t *device);
/** The hardware that a device simulates; NULL for other devices. */
const zr_hardware_t *zr_sim_hardware_of(const zr_device_t *device);

/** Drives: reading and writing go side by side, each one transfer after the other. */
typedef struct zr_sim_drive zr_sim_drive_t;
#define ZR_SIM_MAX_AFTER 2
typedef struct zr_sim_start {
    bool is_write;
    uint32_t turn;                    /* 0 to 2: transfers of lower turns go ahead */
    const char *name;                 /* static */
    double checksum;                  /* of the rank's thread, before it begins */
    double core;                      /* likewise, besides */
    double seconds;                   /* of its direction */
    double of_both;                   /* of what both directions have together */
    double latency;                   /* after it; those of others pass at the same time */
    double after;                     /* of the rank's thread, when it has ended: a checksum */
    const zr_event_t *event;          /* it begins when this has passed; NULL: none */
    size_t records[ZR_SIM_MAX_AFTER]; /* and these have ended; 0: none */
    uint32_t line;                    /* of kernels/base/waiting_internal.h */
} zr_sim_start_t;
/** A transfer has ended. */
typedef void (*zr_sim_ended_fn)(void *context, size_t id, double began, double ended);

/** @param most    transfers that wait or are in flight
 * @param launch  seconds of the rank's thread when it finds that nothing has ended
 * @param ended   called within zr_sim_drive_ask and _progress; NULL: not wanted
 * @return NULL: no memory */
zr_sim_drive_t *zr_sim_drive_create(zr_sim_clock_t *clock, size_t most, double launch,
                                    zr_sim_ended_fn ended, void *context);
void zr_sim_drive_destroy(zr_sim_drive_t **drive);
/** Let a transfer begin once it can: now, or as soon as the drive is asked for something then.
 * @param id  the caller's
 * @return what to ask for it by */
size_t zr_sim_drive_start(zr_sim_drive_t *drive, const zr_sim_start_t *how, size_t id);
/** Whether a transfer has ended, also when it was found before; `wait`: until it has. */
bool zr_sim_drive_ask(zr_sim_drive_t *drive, size_t record, bool wait);
/** Find those that have ended by now; `wait`: until one has, or has begun. */
void zr_sim_drive_progress(zr_sim_drive_t *drive, bool wait);

/* ---- for the simulation itself --------------------------------------------------------------- */

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
/** The tape that is kept; NULL: none. */
zr_sim_tape_t *zr_sim_clock_tape(const zr_sim_clock_t *clock);

ZR_END_C
