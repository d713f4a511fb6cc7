/*
 * A clock's state, for whoever goes on from it (sim_leap.c).
 */
#pragma once

#include "kernels/sim/sim_tape.h"

typedef struct zr_sim_stretch {
    double begin, end;
} zr_sim_stretch_t;

/* What a part does from now on. */
typedef struct zr_sim_part_time {
    zr_sim_stretch_t *stretches; /* [n], end[i] < begin[i + 1] */
    size_t n, capacity;
    size_t n_forgotten; /* stretches before these */
    size_t first_seen;  /* the first that was looked at since this was set, from 0 when the clock
                           began */
    double busy;
} zr_sim_part_time_t;

struct zr_sim_clock {
    double now;
    zr_sim_part_time_t parts[ZR_N_SIM_PARTS];
    zr_sim_span_fn observer;
    void *observer_context;
    zr_sim_again_fn again; /* NULL: nobody's */
    bool is_update;        /* the work that is told of */
    zr_sim_tape_t *tape;   /* NULL: none is kept */
    uint32_t n_queues, n_drives;
    size_t n_records;
    zr_log_t log;
};

/* The first stretch that ends after a time: those before it leave room from then on. */
size_t zr_sim_part_first_after(const zr_sim_part_time_t *part, double time);

/* Room for so many stretches. false: no memory. */
bool zr_sim_part_reserve(zr_sim_part_time_t *part, size_t n);
