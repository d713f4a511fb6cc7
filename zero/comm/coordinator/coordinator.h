/*
 * The coordinator: where ranks that are processes meet. A thread of rank 0's process that keeps the
 * membership of every communicator (membership.h), and a connection to each rank.
 *
 * It first gathers the ranks: whoever connects has to say which rank it is, and to know the secret
 * where there is one; a rank that comes twice, with another number of ranks or another version is
 * refused and told why, and so is, by silence, whatever is not a rank (door.h). Then it answers
 * their frames until all have gone. A rank whose connection is lost, who is not heard for too long
 * (wire.h), or who sends what is no message, ends all communicators that it is in; and what ends a
 * communicator, but for leaving, ends the groups split from it.
 */
#pragma once

#include "zero/comm/wire_internal.h"

typedef struct zr_coordinator zr_coordinator_t;

typedef struct zr_coordinator_options {
    zr_log_t log; /* warnings of the coordinator: what connected and was no rank */
    int listener; /* of zr_wire_listen; the coordinator's from now on, also when it cannot be made
                   */
    zr_secret_t secret; /* of the ranks */
    int n_ranks;        /* 2 and more */
    int gather_ms;      /* until all ranks have come */
    int timeout_ms;     /* for a rank that others wait for */
    char place[300];    /* where ranks are told to connect: "host:port", for messages */
} zr_coordinator_options_t;

/**
 * Start it.
 *
 * @param own_p  rank 0's connection, as zr_wire_connect gives the others theirs; the caller's
 * @return ZR_OK; ZR_ERR_MEMORY, logged
 */
ZR_NODISCARD zr_status_t zr_coordinator_start(const zr_coordinator_options_t *options,
                                              zr_coordinator_t **coordinator_p, int *own_p);

/**
 * Wait until all ranks have gone, for a few seconds; then cut the connections, and free. What
 * remains elsewhere ends with the loss of its connection.
 */
void zr_coordinator_stop(zr_coordinator_t **coordinator);

/** Close the connections' descriptors in a fork of rank 0's process, and nothing else. */
void zr_coordinator_forget(zr_coordinator_t *coordinator);
