/*
 * A door: where a process listens for others of its run, and who stands there. Anybody may connect,
 * and is a stranger until it has said hello, sealed with the run's secret where there is one. Until
 * then it is told nothing but a number, waits beside all others, and is shown out when it says
 * something else or nothing at all. Some of that is said in the log; what does not end, is not.
 *
 * Threads: externally locked.
 */
#pragma once

#include <poll.h>

#include "zero/comm/coordinator/connection.h"

enum {
    ZR_DOOR_PLACES = 256, /* for strangers, at a time */
    ZR_DOOR_POLLED = ZR_DOOR_PLACES + 1
};

typedef struct zr_door {
    zr_log_t log;
    int listener; /* of zr_wire_listen; the door's from zr_door_open on; -1: closed */
    const zr_secret_t *secret;
    int timeout_ms;    /* of ranks */
    const char *place; /* where it is, for messages */
    int n_warnings;
    int64_t full_until_ms;
    zr_connection_t *strangers; /* [ZR_DOOR_PLACES]; NULL: it was not opened */
} zr_door_t;

/** Who has said hello, and knows the secret: to be taken (zr_connection_take), refused
 * (zr_door_refuse) or closed. */
typedef void (*zr_door_take_fn)(void *context, zr_connection_t *stranger, const zr_hello_t *hello);

/** @param door  its fields up to `place`; borrowed are what they point to. False: no memory, and
 * the listener is closed */
bool zr_door_open(zr_door_t *door);
/** Let nobody else in. Who was told why not may still read it. */
void zr_door_shut(zr_door_t *door);
/** Shut, and free. One that was never opened is fine. */
void zr_door_close(zr_door_t *door);

/** What to poll for: [ZR_DOOR_POLLED]. */
void zr_door_fill(zr_door_t *door, int64_t now_ms, struct pollfd *polled);
/** Take what has come, and show out whose time is up. */
void zr_door_serve(zr_door_t *door, int64_t now_ms, const struct pollfd *polled,
                   zr_door_take_fn take, void *context);

/** Close it, and say in the log that it `what`: "said nothing". */
void zr_door_show_out(zr_door_t *door, zr_connection_t *stranger, const char *what);
/** Say why not, to it and in the log, and close when it has been told. */
void zr_door_refuse(zr_door_t *door, zr_connection_t *stranger, const char *reason);
