/*
 * This machine, measured: a description that plans are made for, of what each rank reaches while
 * all of them work at once.
 */
#pragma once

#include "examples/bench/bench.h"

typedef struct machine_options {
    const char *device; /* as --device */
    int n_ranks;
    int n_threads;     /* of each rank, on the host */
    const char *paths; /* folders of drives, with commas between; NULL: drives are not measured */
    double seconds;    /* each group of measurements takes about so long, at least one round */
    bool is_quick;     /* on next to nothing: only the form of the result says something */
    zr_log_t log;
} machine_options_t;

enum { MACHINE_MAX_FIGURES = 64, MACHINE_SOURCE_BYTES = 256 };

typedef struct machine {
    zr_hardware_t hardware;
    char sources[MACHINE_MAX_FIGURES][MACHINE_SOURCE_BYTES]; /* as zr_hardware_figures has them */
} machine_t;

/**
 * Measure it.
 *
 * @return ZR_OK; what failed has been logged otherwise
 */
ZR_NODISCARD zr_status_t machine_measure(const machine_options_t *options, machine_t *machine_p);

/** Write it as a file that --hardware takes. */
ZR_NODISCARD zr_status_t machine_save(const machine_t *machine, const char *path,
                                      const zr_log_t *log);
