/* How ranks come: whoever connects is a stranger until it has said which rank it is. */
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "kernels/kernels.h"
#include "zero/comm/hub/hub_internal.h"

enum {
    STRANGER_MS = 10 * 1000,  /* how long a connection may take to say who it is */
    BACK_MS = 3000,           /* for a rank that was there to come again, started anew */
    MOST_STRANGE_WARNINGS = 5 /* then it is known */
};

static void warn_of_stranger(zr_hub_t *hub, const char *what) {
    if (hub->n_strange++ < MOST_STRANGE_WARNINGS)
        zr_log_write(&hub->options.log, ZR_LOG_WARNING,
                     "%s: a connection that %s was closed: no rank of this run", hub->options.place,
                     what);
}

/* Who a stranger says it is: welcome, or told why not. */
static void take_hello(zr_hub_t *hub, zr_connection_t *stranger, const zr_hello_t *hello) {
    char reason[ZR_PEER_WHY_BYTES] = "";
    int rank = hello->rank;
    if (zr_peer_check_hello(hello, hub->options.n_ranks, reason) && hub->ranks[rank].socket >= 0)
        snprintf(reason, sizeof(reason), "there is a rank %d already: two processes have RANK=%d",
                 rank, rank);
    if (reason[0] == '\0') {
        zr_connection_open(&hub->ranks[rank], stranger->socket, rank, hub->now_ms);
        stranger->socket = -1;
        zr_connection_send(&hub->ranks[rank], ZR_FRAME_ALIVE, 0, NULL, 0);
        return;
    }
    zr_log_write(&hub->options.log, ZR_LOG_WARNING, "%s: refused: %s", hub->options.place, reason);
    zr_connection_refuse(stranger, reason);
}

void zr_hub_gathering_serve_stranger(zr_hub_t *hub, zr_connection_t *stranger) {
    zr_frame_t frame;
    zr_hello_t hello;
    char why[ZR_PEER_WHY_BYTES];
    int error = zr_connection_receive(stranger, hub->now_ms);
    if (stranger->is_closing) { /* all was said */
        stranger->n_received = 0;
        if (error != 0)
            zr_connection_close(stranger);
        return;
    }
    int found = error == 0 ? zr_connection_next_frame(stranger, &frame, why) : 0;
    if (found > 0)
        memcpy(&hello, stranger->received + sizeof(frame), sizeof(hello));
    if (found < 0 ||
        (found > 0 && (frame.kind != ZR_FRAME_HELLO || hello.magic != ZR_WIRE_MAGIC))) {
        warn_of_stranger(hub, "sent something else");
        zr_connection_close(stranger);
    } else if (error != 0) {
        warn_of_stranger(hub, "said nothing");
        zr_connection_close(stranger);
    } else if (found > 0) {
        take_hello(hub, stranger, &hello);
    }
}

/* A place for a stranger; the one that has taken longest gives way. */
static zr_connection_t *place_for_stranger(zr_hub_t *hub) {
    zr_connection_t *oldest = &hub->strangers[0];
    for (int i = 0; i < ZR_HUB_MOST_STRANGERS; i++) {
        zr_connection_t *stranger = &hub->strangers[i];
        if (stranger->socket < 0)
            return stranger;
        if (stranger->until_ms < oldest->until_ms)
            oldest = stranger;
    }
    zr_connection_close(oldest);
    return oldest;
}

void zr_hub_gathering_accept(zr_hub_t *hub) {
    int socket = accept4(hub->options.listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (socket < 0)
        return; /* it has gone again, or there will be room when others have */
    zr_wire_no_delay(socket);
    zr_wire_guard(socket, hub->options.timeout_ms);
    zr_connection_t *stranger = place_for_stranger(hub);
    zr_connection_open(stranger, socket, -1, hub->now_ms);
    stranger->until_ms = hub->now_ms + STRANGER_MS;
}

void zr_hub_gathering_close_late(zr_hub_t *hub) {
    for (int i = 0; i < ZR_HUB_MOST_STRANGERS; i++) {
        zr_connection_t *stranger = &hub->strangers[i];
        if (stranger->socket < 0 || hub->now_ms < stranger->until_ms)
            continue;
        if (!stranger->is_closing)
            warn_of_stranger(hub, "did not say who it is");
        zr_connection_close(stranger);
    }
}

/* A rank that has come and gone, and not come back in time; -1: there is none. */
static int find_gone(const zr_hub_t *hub) {
    for (int rank = 0; rank < hub->options.n_ranks; rank++) {
        const zr_connection_t *connection = &hub->ranks[rank];
        if (connection->socket < 0 && connection->back_until_ms != 0 &&
            hub->now_ms >= connection->back_until_ms)
            return rank;
    }
    return -1;
}

/* The ranks that have not come, named. */
static void list_missing(const zr_hub_t *hub, char *text, size_t text_bytes) {
    enum { MOST_NAMED = 16 };
    size_t length = 0;
    int n_missing = 0;
    text[0] = '\0';
    for (int rank = 0; rank < hub->options.n_ranks; rank++) {
        if (hub->ranks[rank].socket >= 0 || n_missing++ >= MOST_NAMED)
            continue;
        length += (size_t)snprintf(text + length, text_bytes - length, "%s%d",
                                   length > 0 ? ", " : "", rank);
    }
    if (n_missing > MOST_NAMED)
        snprintf(text + length, text_bytes - length, " and %d more", n_missing - MOST_NAMED);
}

static void end_gathering(zr_hub_t *hub) {
    for (int i = 0; i < ZR_HUB_MOST_STRANGERS; i++)
        if (!hub->strangers[i].is_closing)
            zr_connection_close(&hub->strangers[i]);
    close(hub->options.listener);
    hub->options.listener = -1;
    hub->is_gathered = true;
}

static void fail_gathering(zr_hub_t *hub, const char *reason) {
    for (int rank = 0; rank < hub->options.n_ranks; rank++)
        if (hub->ranks[rank].socket >= 0)
            zr_connection_refuse(&hub->ranks[rank], reason);
    end_gathering(hub);
    hub->is_failed = true;
}

void zr_hub_gathering_look(zr_hub_t *hub) {
    char missing[256], reason[768];
    int world[ZR_MAX_SUM_SOURCES] = {0};
    list_missing(hub, missing, sizeof(missing));
    if (missing[0] != '\0') {
        int gone = find_gone(hub);
        if (gone >= 0)
            snprintf(reason, sizeof(reason),
                     "rank %d is gone: its process or connection has ended before all had come to "
                     "%s; missing of %d ranks: %s",
                     gone, hub->options.place, hub->options.n_ranks, missing);
        else
            snprintf(reason, sizeof(reason),
                     "after %d ms these ranks of %d have not come to %s: %s",
                     hub->options.gather_ms, hub->options.n_ranks, hub->options.place, missing);
        if (gone >= 0 || hub->now_ms >= hub->gather_until_ms)
            fail_gathering(hub, reason);
        return;
    }
    for (int rank = 0; rank < hub->options.n_ranks; rank++)
        world[rank] = rank;
    if (zr_hub_group_create(hub, NULL, hub->options.n_ranks, world) == NULL) {
        fail_gathering(hub, "rank 0 has no memory for the state of all ranks");
        return;
    }
    end_gathering(hub);
    for (int rank = 0; rank < hub->options.n_ranks; rank++)
        zr_connection_send(&hub->ranks[rank], ZR_FRAME_WELCOME, 0, NULL, 0);
}

void zr_hub_gathering_lose_early_rank(zr_hub_t *hub, zr_connection_t *connection) {
    zr_connection_close(connection);
    connection->back_until_ms = hub->now_ms + BACK_MS;
}

void zr_hub_gathering_serve_early_rank(zr_hub_t *hub, zr_connection_t *connection) {
    zr_frame_t frame;
    char why[ZR_PEER_WHY_BYTES];
    int error = zr_connection_receive(connection, hub->now_ms), found = 0;
    while (error == 0 && (found = zr_connection_next_frame(connection, &frame, why)) > 0 &&
           frame.kind == ZR_FRAME_ALIVE)
        zr_connection_drop_frame(connection, &frame);
    if (error != 0 || found != 0)
        zr_hub_gathering_lose_early_rank(hub, connection);
}
