/*
 * A connection as the hub has it: bytes on their way to a rank wait in an outbox until the socket
 * takes them, and what has been received waits until it is a whole frame (wire.h). Nothing here
 * blocks, and nothing here knows what frames mean.
 *
 * Threads: the hub's own.
 */
#pragma once

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
    int64_t heard_ms;      /* when something came from it; of the hub's time */
    int64_t back_until_ms; /* a rank that has gone early: when it has to be back; 0: it has not */
    bool is_closing;       /* when its outbox is empty */
    zr_outbox_t outbox;
    size_t n_received;
    char received[sizeof(zr_frame_t) + ZR_WIRE_MOST_TO_HUB];
} zr_connection_t;

/** @param socket  the connection's from now on */
void zr_connection_open(zr_connection_t *connection, int socket, int rank, int64_t now_ms);
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

/** Read what there is. 0, or why the connection has ended: ECONNRESET when the other side closed.
 */
int zr_connection_receive(zr_connection_t *connection, int64_t now_ms);
/** The first whole frame of what was received: 1, none yet: 0, no frame at all: -1, and
 * why[ZR_PEER_WHY_BYTES]. */
int zr_connection_next_frame(const zr_connection_t *connection, zr_frame_t *frame, char *why);
/** Forget it, its data included. */
void zr_connection_drop_frame(zr_connection_t *connection, const zr_frame_t *frame);
