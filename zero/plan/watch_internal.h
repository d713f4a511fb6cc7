/*
 * Watching a simulated clock, for the times of a planned step.
 */
#pragma once

#include "zero/plan/run_times.h"

typedef struct zr_run_watch zr_run_watch_t;

/**
 * Watch a clock from now on.
 *
 * @param clock  of a simulated device; borrowed until destroy
 * @param spans  of the last step are kept here; NULL: they are not
 * @return NULL when there is no memory
 */
zr_run_watch_t *zr_run_watch_create(zr_sim_clock_t *clock, zr_run_spans_t *spans);
void zr_run_watch_destroy(zr_run_watch_t **watch);

/** A step begins: work that ended before is forgotten. is_counted: its times may be asked for. */
void zr_run_watch_begin(zr_run_watch_t *watch, bool is_counted);
/** It has ended. False: there was no memory for all of its work. */
bool zr_run_watch_end(zr_run_watch_t *watch, zr_run_times_t *times_p);
