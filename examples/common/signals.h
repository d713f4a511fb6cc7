/*
 * Signals that ask a program to end: the first one is noted, and the program ends in good order; a
 * second one ends it at once.
 */
#pragma once

#include <stdatomic.h>

/** Note SIGINT, SIGTERM and SIGUSR1 from now on; what is ignored, as under nohup, stays so. The
 * flag is set by the first of them; static. Call from main's thread, before others are started. */
const atomic_bool *signals_watch(void);
