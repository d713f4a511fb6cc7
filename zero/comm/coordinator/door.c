/* See door.h. */
#include "zero/comm/coordinator/door.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "kernels/kernels.h"

enum {
    STRANGER_MS = 10 * 1000, /* how long a connection may take to say who it is */
    LEAST_MS = 1000,         /* and how long it is let, where others wait for its place */
    FULL_MS = 100,           /* until it is tried again whether there is a place */
    MOST_WARNINGS = 5        /* then it is known */
};

static void warn(zr_door_t *door, const char *what, const char *detail) {
    if (door->n_warnings++ < MOST_WARNINGS)
        zr_log_write(&door->log, ZR_LOG_WARNING, "%s: %s%s%s", door->place, what, detail,
                     door->n_warnings == MOST_WARNINGS ? "; further ones are not reported" : "");
}

void zr_door_show_out(zr_door_t *door, zr_connection_t *stranger, const char *what) {
    if (!stranger->is_closing)
        warn(door, "closed a connection that is not from a rank of this run: it ", what);
    zr_connection_close(stranger);
}

bool zr_door_open(zr_door_t *door) {
    door->strangers = calloc(ZR_DOOR_PLACES, sizeof(*door->strangers));
    for (int i = 0; door->strangers != NULL && i < ZR_DOOR_PLACES; i++)
        door->strangers[i].socket = -1;
    if (door->strangers == NULL)
        zr_door_shut(door);
    return door->strangers != NULL;
}

void zr_door_shut(zr_door_t *door) {
    for (int i = 0; door->strangers != NULL && i < ZR_DOOR_PLACES; i++)
        if (!door->strangers[i].is_closing)
            zr_connection_close(&door->strangers[i]);
    if (door->listener >= 0)
        close(door->listener);
    door->listener = -1;
}

void zr_door_close(zr_door_t *door) {
    for (int i = 0; door->strangers != NULL && i < ZR_DOOR_PLACES; i++)
        zr_connection_close(&door->strangers[i]);
    free(door->strangers);
    door->strangers = NULL;
    zr_door_shut(door);
}

void zr_door_refuse(zr_door_t *door, zr_connection_t *stranger, const char *reason) {
    warn(door, "refused: ", reason);
    zr_connection_refuse(stranger, reason);
}

/* ---- who comes ------------------------------------------------------------------------------- */

/* The one that has taken longest gives way, when it has had time. NULL: all are new. */
static zr_connection_t *find_place(zr_door_t *door, int64_t now_ms) {
    zr_connection_t *oldest = &door->strangers[0];
    for (int i = 0; i < ZR_DOOR_PLACES; i++) {
        zr_connection_t *stranger = &door->strangers[i];
        if (stranger->socket < 0)
            return stranger;
        if (stranger->until_ms < oldest->until_ms)
            oldest = stranger;
    }
    if (now_ms < oldest->until_ms - STRANGER_MS + LEAST_MS)
        return NULL;
    zr_door_show_out(door, oldest, "did not identify itself");
    return oldest;
}

/* All who have come. Those for whom there is no place wait in the system's queue. */
static void accept_all(zr_door_t *door, int64_t now_ms) {
    zr_connection_t *place;
    while ((place = find_place(door, now_ms)) != NULL) {
        int socket = accept4(door->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (socket < 0) {
            if (errno == EMFILE || errno == ENFILE)
                door->full_until_ms = now_ms + FULL_MS;
            return;
        }
        zr_wire_no_delay(socket);
        zr_wire_guard(socket, door->timeout_ms);
        zr_connection_open(place, socket, door->secret, now_ms);
        place->until_ms = now_ms + STRANGER_MS;
    }
    door->full_until_ms = now_ms + FULL_MS;
}

static void serve_stranger(zr_door_t *door, zr_connection_t *stranger, int64_t now_ms, int revents,
                           zr_door_take_fn take, void *context) {
    zr_frame_t frame;
    zr_hello_t hello;
    char why[ZR_PEER_WHY_BYTES];
    if ((revents & POLLOUT) != 0 && !zr_connection_flush(stranger))
        zr_connection_close(stranger);
    if (stranger->socket < 0 || (revents & (POLLIN | POLLHUP | POLLERR)) == 0)
        return;
    int error = zr_connection_receive(stranger, now_ms);
    if (stranger->is_closing) { /* all was said */
        stranger->n_received = 0;
        if (error != 0)
            zr_connection_close(stranger);
        return;
    }
    int found = error == 0 ? zr_connection_next_frame(stranger, &frame, why) : 0;
    if (found > 0)
        memcpy(&hello, stranger->received + sizeof(frame), sizeof(hello));
    if (found > 0 && frame.kind == ZR_FRAME_HELLO && hello.magic == ZR_WIRE_MAGIC) {
        zr_connection_drop_frame(stranger, &frame);
        take(context, stranger, &hello);
    } else if (found < 0 && stranger->seal.has_keys) {
        zr_door_show_out(door, stranger, "does not know the secret");
    } else if (found != 0) {
        zr_door_show_out(door, stranger, "sent something else");
    } else if (error != 0) {
        zr_door_show_out(door, stranger, "said nothing");
    }
}

void zr_door_fill(zr_door_t *door, int64_t now_ms, struct pollfd *polled) {
    polled[0] =
        (struct pollfd){.fd = now_ms < door->full_until_ms ? -1 : door->listener, .events = POLLIN};
    for (int i = 0; i < ZR_DOOR_PLACES; i++)
        polled[1 + i] = zr_connection_polled(&door->strangers[i]);
}

void zr_door_serve(zr_door_t *door, int64_t now_ms, const struct pollfd *polled,
                   zr_door_take_fn take, void *context) {
    for (int i = 0; i < ZR_DOOR_PLACES; i++) {
        zr_connection_t *stranger = &door->strangers[i];
        if (stranger->socket >= 0 && stranger->socket == polled[1 + i].fd)
            serve_stranger(door, stranger, now_ms, polled[1 + i].revents, take, context);
        if (stranger->socket >= 0 && now_ms >= stranger->until_ms)
            zr_door_show_out(door, stranger, "did not identify itself");
    }
    if (polled[0].revents != 0 && door->listener >= 0)
        accept_all(door, now_ms);
}
