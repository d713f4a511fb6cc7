/* How ranks come: from the door, one by one, until all are here. */
#include <stdio.h>

#include "kernels/kernels.h"
#include "zero/comm/coordinator/coordinator_internal.h"

enum { BACK_MS = 3000 /* for a rank that was there to come again, started anew */ };

/* Which rank a stranger says it is: welcome, or told why not. */
void zr_coordinator_gathering_take(void *context, zr_connection_t *stranger,
                                   const zr_hello_t *hello) {
    zr_coordinator_t *coordinator = context;
    char reason[ZR_PEER_WHY_BYTES] = "";
    int rank = hello->rank;
    if (zr_peer_check_hello(hello, coordinator->options.n_ranks, reason) &&
        coordinator->ranks[rank].socket >= 0)
        snprintf(reason, sizeof(reason), "rank %d exists already: two processes have RANK=%d", rank,
                 rank);
    if (reason[0] != '\0') {
        zr_door_refuse(&coordinator->door, stranger, reason);
        return;
    }
    zr_connection_take(&coordinator->ranks[rank], stranger, rank);
    zr_connection_send(&coordinator->ranks[rank], ZR_FRAME_ALIVE, 0, NULL, 0);
}

/* A rank that has come and gone, and not come back in time; -1: there is none. */
static int find_gone(const zr_coordinator_t *coordinator) {
    for (int rank = 0; rank < coordinator->options.n_ranks; rank++) {
        const zr_connection_t *connection = &coordinator->ranks[rank];
        if (connection->socket < 0 && connection->back_until_ms != 0 &&
            coordinator->now_ms >= connection->back_until_ms)
            return rank;
    }
    return -1;
}

/* The ranks that have not come, named. */
static void list_missing(const zr_coordinator_t *coordinator, char *text, size_t text_bytes) {
    enum { MOST_NAMED = 16 };
    size_t length = 0;
    int n_missing = 0;
    text[0] = '\0';
    for (int rank = 0; rank < coordinator->options.n_ranks; rank++) {
        if (coordinator->ranks[rank].socket >= 0 || n_missing++ >= MOST_NAMED)
            continue;
        length += (size_t)snprintf(text + length, text_bytes - length, "%s%d",
                                   length > 0 ? ", " : "", rank);
    }
    if (n_missing > MOST_NAMED)
        snprintf(text + length, text_bytes - length, " and %d more", n_missing - MOST_NAMED);
}

static void end_gathering(zr_coordinator_t *coordinator) {
    zr_door_shut(&coordinator->door);
    coordinator->is_gathered = true;
}

static void fail_gathering(zr_coordinator_t *coordinator, const char *reason) {
    for (int rank = 0; rank < coordinator->options.n_ranks; rank++)
        if (coordinator->ranks[rank].socket >= 0)
            zr_connection_refuse(&coordinator->ranks[rank], reason);
    end_gathering(coordinator);
    coordinator->is_failed = true;
}

void zr_coordinator_gathering_look(zr_coordinator_t *coordinator) {
    char missing[256], reason[768];
    int world[ZR_MAX_SUM_SOURCES] = {0};
    list_missing(coordinator, missing, sizeof(missing));
    if (missing[0] != '\0') {
        int gone = find_gone(coordinator);
        if (gone >= 0)
            snprintf(reason, sizeof(reason),
                     "rank %d is gone: its process or connection ended before all ranks had joined "
                     "%s; missing of %d ranks: %s",
                     gone, coordinator->options.place, coordinator->options.n_ranks, missing);
        else
            snprintf(reason, sizeof(reason),
                     "after %d ms these ranks of %d have not come to %s: %s",
                     coordinator->options.gather_ms, coordinator->options.n_ranks,
                     coordinator->options.place, missing);
        if (gone >= 0 || coordinator->now_ms >= coordinator->gather_until_ms)
            fail_gathering(coordinator, reason);
        return;
    }
    for (int rank = 0; rank < coordinator->options.n_ranks; rank++)
        world[rank] = rank;
    if (zr_coordinator_group_create(coordinator, NULL, coordinator->options.n_ranks, world) ==
        NULL) {
        fail_gathering(coordinator, "rank 0 has no memory for the state of all ranks");
        return;
    }
    end_gathering(coordinator);
    for (int rank = 0; rank < coordinator->options.n_ranks; rank++)
        zr_connection_send(&coordinator->ranks[rank], ZR_FRAME_WELCOME, 0, NULL, 0);
}

void zr_coordinator_gathering_lose_early_rank(zr_coordinator_t *coordinator,
                                              zr_connection_t *connection) {
    zr_connection_close(connection);
    connection->back_until_ms = coordinator->now_ms + BACK_MS;
}

void zr_coordinator_gathering_serve_early_rank(zr_coordinator_t *coordinator,
                                               zr_connection_t *connection) {
    zr_frame_t frame;
    char why[ZR_PEER_WHY_BYTES];
    int error = zr_connection_receive(connection, coordinator->now_ms), found = 0;
    while (error == 0 && (found = zr_connection_next_frame(connection, &frame, why)) > 0 &&
           frame.kind == ZR_FRAME_ALIVE)
        zr_connection_drop_frame(connection, &frame);
    if (error != 0 || found != 0)
        zr_coordinator_gathering_lose_early_rank(coordinator, connection);
}
