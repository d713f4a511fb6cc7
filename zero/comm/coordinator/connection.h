/*
 * A connection as who has listened for it has it: bytes on their way wait in an outbox until the
 * socket takes them, and what has been received waits until it is a whole frame (wire_internal.h).
 * Nothing here blocks, and nothing here knows what frames mean, but for the first one each way,
 * which the seals of all others are made of.
 *
 * Threads: externally locked.
 */
#pragma once

#include <poll.h>

#include "zero/comm/peer_internal.h"

/* Bytes on their way to a rank. */
typedef struct zr_outbox {
    char *bytes;
    size_t length, sent, capacity;
} zr_outbox_t;

typedef struct zr_connection {
    int socket;            /* -1: closed */
    int rank;              /* -1: not said yet */
    int64_t until_ms;      /* a stranger's time */
    int64_t heard_ms;      /* when something came from it; of the coordinator's time */
    int64_t back_until_ms; /* a rank that has gone early: when it has to be back; 0: it has not */
    bool is_closing;       /* when its outbox is empty */
    zr_outbox_t outbox;
    zr_seal_t seal;
    const zr_secret_t *secret; /* NULL: it is rank 0's own, without a challenge */
    unsigned char nonce[ZR_NONCE_BYTES];
    size_t n_received;
    char received[sizeof(zr_frame_t) + ZR_WIRE_MOST_TO_HUB + ZR_SEAL_BYTES];
} zr_connection_t;

/**
 * @param socket  the connection's from now on
 * @param secret  borrowed for as long: who has connected is challenged; NULL: it is known
 */
void zr_connection_open(zr_connection_t *connection, int socket, const zr_secret_t *secret,
                        int64_t now_ms);
/** Become what another one is, which is closed then, and has this rank. */
void zr_connection_take(zr_connection_t *connection, zr_connection_t *other, int rank);
/** A closed one is fine. */
void zr_connection_close(zr_connection_t *connection);

/** Send what the socket takes. False: the connection is lost. */
bool zr_connection_flush(zr_connection_t *connection);

/** Send a frame. That it cannot be sent shows when the socket is looked at next. */
void zr_connection_send(zr_connection_t *connection, uint32_t kind, uint32_t group,
                        const void *data, size_t length);
/** The same of two parts. */
void zr_connection_send_parts(zr_connection_t *connection, uint32_t kind, uint32_t group,
                              const void *head, size_t head_length, const void *tail,
                              size_t tail_length);
/** Say why not, and close when that has gone. */
void zr_connection_refuse(zr_connection_t *connection, const char *reason);

/** What to poll for. */
struct pollfd zr_connection_polled(const zr_connection_t *connection);
/** Read what there is. 0, or why the connection has ended: ECONNRESET when the other side closed.
 */
int zr_connection_receive(zr_connection_t *connection, int64_t now_ms);
/** The first whole frame of what was received: 1, none yet: 0, no frame at all, or one that is not
 * sealed by who has connected: -1, and why[ZR_PEER_WHY_BYTES]. */
int zr_connection_next_frame(zr_connection_t *connection, zr_frame_t *frame, char *why);
/** Forget it, its data included. */
void zr_connection_drop_frame(zr_connection_t *connection, const zr_frame_t *frame);
