/*
 * Simulated drives of a rank. Reading and writing go side by side, each one transfer after the
 * other; latencies pass beside them, as they do on drives that have several requests.
 */
#pragma once

#include "kernels/base/waiting_internal.h"
#include "kernels/sim/sim_tape.h"

#define ZR_SIM_LAST_TURN 2 /* transfers of lower turns go ahead */

typedef struct zr_sim_transfer {
    double begin, end;
    double after;  /* seconds of the thread then */
    size_t id;     /* the caller's */
    size_t record; /* the number of its start on the tape */
} zr_sim_transfer_t;

/* A transfer that waits. */
typedef struct zr_sim_held {
    zr_sim_op_t op;
    size_t id;
    bool is_there;
} zr_sim_held_t;

struct zr_sim_drive {
    zr_sim_clock_t *clock;
    uint32_t number;
    double launch;         /* of what is asked now */
    zr_sim_ended_fn ended; /* NULL: nobody is told */
    void *context;
    double ends_alone[ZR_SIM_LAST_TURN]; /* if there were only those of this turn and before */
    zr_sim_transfer_t *in_flight;        /* [n], in the order of their starts */
    zr_sim_transfer_t *passed;           /* those found to have ended */
    size_t n, capacity;
    zr_sim_held_t *held;  /* [capacity] those that wait */
    zr_waiting_t waiting; /* they, by where they are held */
};

/* Whether no more transfers have room. */
bool zr_sim_drive_is_full(const zr_sim_drive_t *drive);
/* Do what is asked of a drive, without keeping it. Returns whether the transfer has ended.
 * @param id  of a transfer that is started */
bool zr_sim_drive_do(zr_sim_drive_t *drive, const zr_sim_op_t *op, size_t id);
