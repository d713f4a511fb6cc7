/* See hub.h. One thread, one poll; nothing in it waits for a single rank. */
#include "zero/comm/hub/hub.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "zero/comm/hub/hub_internal.h"

enum { STOP_MS = 5 * 1000 }; /* for ranks to go, once rank 0 has */

/* ---- what ranks say ---- */

/* A rank that comes to the end of a call which has ended without it: it always has an answer. */
static void answer_late_rank(zr_hub_t *hub, int world_rank, uint32_t group) {
    zr_outcome_t outcome = {.status = ZR_ERR_COMM, .group = -1};
    zr_connection_send(&hub->ranks[world_rank], ZR_FRAME_OUTCOME, group, &outcome, sizeof(outcome));
}

/* False: this is no message of a rank; why[ZR_PEER_WHY_BYTES]: "" where it only does not fit. */
static bool take_frame(zr_hub_t *hub, int world_rank, const zr_frame_t *frame, void *data,
                       char *why) {
    why[0] = '\0';
    if (frame->kind == ZR_FRAME_ALIVE || frame->kind == ZR_FRAME_HELLO)
        return frame->kind == ZR_FRAME_ALIVE;
    zr_hub_group_t *group = zr_hub_group_find(hub, frame->group);
    int rank = group != NULL ? zr_hub_group_rank(group, world_rank) : -1;
    if (rank < 0 || group->is_gone[rank]) { /* the group has gone, or on without it */
        if (frame->kind == ZR_FRAME_MEET)
            answer_late_rank(hub, world_rank, frame->group);
        return true;
    }
    if (frame->kind == ZR_FRAME_POST) {
        zr_post_t post;
        memcpy(&post, data, sizeof(post));
        if (group->has_arrived[rank] || !zr_peer_check_post(&post, group->roll->n_ranks, why))
            return false;
        zr_hub_meeting_take_post(hub, group, rank, &post);
    } else if (frame->kind == ZR_FRAME_MEET) {
        int32_t status;
        memcpy(&status, data, sizeof(status));
        if (group->has_arrived[rank] || !zr_peer_check_status(status, why))
            return false;
        zr_hub_meeting_begin(hub, group, rank, false);
        zr_hub_meeting_count_in(hub, group, rank, (zr_status_t)status);
    } else if (frame->kind == ZR_FRAME_KILL) {
        zr_peer_clean(data, frame->length);
        zr_roll_kill(group->roll, "%s", (const char *)data);
        zr_hub_group_tell_end(hub, group);
    } else if (frame->kind == ZR_FRAME_APART) {
        group->roll->is_apart = true;
    } else if (frame->kind == ZR_FRAME_LEAVE) {
        zr_roll_kill_for_leaving(group->roll, rank);
        zr_hub_group_remove(hub, group, rank);
        zr_hub_groups_forget(hub);
    } else {
        return false;
    }
    return true;
}

static void serve_rank(zr_hub_t *hub, int rank) {
    zr_connection_t *connection = &hub->ranks[rank];
    zr_frame_t frame;
    char why[ZR_PEER_WHY_BYTES];
    int error = zr_connection_receive(connection, hub->now_ms), found = 0;
    while (error == 0 && connection->socket >= 0 &&
           (found = zr_connection_next_frame(connection, &frame, why)) > 0) {
        _Alignas(16) char data[ZR_WIRE_MOST_TO_HUB];
        memcpy(data, connection->received + sizeof(frame), frame.length);
        zr_connection_drop_frame(connection, &frame);
        if (!take_frame(hub, rank, &frame, data, why))
            found = -1;
        if (found < 0)
            break;
    }
    if (found < 0) {
        char reason[ZR_PEER_WHY_BYTES + 64];
        if (why[0] == '\0')
            snprintf(why, sizeof(why), "a frame of kind %u that does not fit here", frame.kind);
        snprintf(reason, sizeof(reason), "sent what is no message, and was cut off: %s", why);
        zr_hub_lose_rank(hub, rank, reason);
    } else if (error != 0) {
        char reason[256], gap[ZR_GAP_TEXT_BYTES];
        snprintf(reason, sizeof(reason), "is gone: its connection has ended (%s)%s",
                 error == ECONNRESET ? "closed by its process or machine" : strerror(error),
                 zr_wire_describe_gap(&hub->clock, gap, sizeof(gap)));
        zr_hub_lose_rank(hub, rank, reason);
    }
}

/* ---- the thread ---- */

static int fill_polled(zr_hub_t *hub) {
    hub->polled[0] = (struct pollfd){.fd = hub->wake[0], .events = POLLIN};
    for (int rank = 0; rank < hub->options.n_ranks; rank++)
        hub->polled[1 + rank] = zr_connection_polled(&hub->ranks[rank]);
    zr_door_fill(&hub->door, hub->now_ms, &hub->polled[1 + hub->options.n_ranks]);
    return 1 + hub->options.n_ranks + ZR_DOOR_POLLED;
}

/* All are told, or, while they gather, it may come again for a moment. */
static void lose_rank(zr_hub_t *hub, int rank, const char *reason) {
    if (hub->is_gathered && !hub->is_failed)
        zr_hub_lose_rank(hub, rank, reason);
    else
        zr_hub_gathering_lose_early_rank(hub, &hub->ranks[rank]);
}

static void serve_connection(zr_hub_t *hub, zr_connection_t *connection,
                             const struct pollfd *polled) {
    if (connection->socket < 0 || connection->socket != polled->fd || polled->revents == 0)
        return;
    if ((polled->revents & POLLOUT) != 0 && !zr_connection_flush(connection))
        lose_rank(hub, connection->rank, "is gone: nothing can be sent to it");
    else if ((polled->revents & (POLLIN | POLLHUP | POLLERR)) == 0)
        return;
    else if (hub->is_gathered && !hub->is_failed)
        serve_rank(hub, connection->rank);
    else
        zr_hub_gathering_serve_early_rank(hub, connection);
}

static void serve(zr_hub_t *hub) {
    int n_polled = fill_polled(hub);
    int n_ready = poll(hub->polled, (nfds_t)n_polled, ZR_LIVED_SLICE_MS);
    hub->now_ms = zr_lived_ms(&hub->clock);
    if (n_ready < 0)
        return;
    char byte;
    if (hub->polled[0].revents != 0 && read(hub->wake[0], &byte, 1) < 0)
        return; /* was read already */
    for (int rank = 0; rank < hub->options.n_ranks; rank++)
        serve_connection(hub, &hub->ranks[rank], &hub->polled[1 + rank]);
    zr_door_serve(&hub->door, hub->now_ms, &hub->polled[1 + hub->options.n_ranks],
                  zr_hub_gathering_take, hub);
}

/* Tell the ranks, at times, that it is there. */
static void beat(zr_hub_t *hub) {
    if (hub->now_ms < hub->beat_ms)
        return;
    hub->beat_ms = hub->now_ms + zr_wire_beat_ms(hub->options.timeout_ms);
    for (int rank = 0; rank < hub->options.n_ranks; rank++)
        if (!hub->ranks[rank].is_closing)
            zr_connection_send(&hub->ranks[rank], ZR_FRAME_ALIVE, 0, NULL, 0);
}

/* A rank that does not say so is stopped, or out of reach. */
static void look_for_silence(zr_hub_t *hub) {
    int most_ms = zr_wire_silence_ms(hub->options.timeout_ms);
    for (int rank = 0; rank < hub->options.n_ranks; rank++) {
        zr_connection_t *connection = &hub->ranks[rank];
        if (connection->socket < 0 || hub->now_ms - connection->heard_ms < most_ms)
            continue;
        char reason[160];
        snprintf(reason, sizeof(reason), "has not been heard for %d ms: %s", most_ms,
                 ZR_WIRE_SILENCE);
        lose_rank(hub, rank, reason);
    }
}

/* Whether there is nobody left, or no time for who is. */
static bool is_over(zr_hub_t *hub) {
    pthread_mutex_lock(&hub->lock);
    bool is_stopping = hub->is_stopping;
    pthread_mutex_unlock(&hub->lock);
    if (!is_stopping)
        return false;
    if (hub->stop_until_ms == 0)
        hub->stop_until_ms = hub->now_ms + (hub->has_failed ? ZR_HUB_DEAD_MS : STOP_MS);
    if (hub->now_ms >= hub->stop_until_ms)
        return true;
    for (int rank = 0; rank < hub->options.n_ranks; rank++)
        if (hub->ranks[rank].socket >= 0)
            return false;
    return true;
}

static void *hub_main(void *argument) {
    zr_hub_t *hub = argument;
    hub->now_ms = zr_lived_ms(&hub->clock);
    hub->gather_until_ms = hub->now_ms + hub->options.gather_ms;
    while (!is_over(hub)) {
        serve(hub);
        beat(hub);
        look_for_silence(hub);
        if (!hub->is_gathered)
            zr_hub_gathering_look(hub);
        else if (!hub->is_failed)
            zr_hub_meetings_look(hub);
    }
    return NULL;
}

/* ---- start and stop ---- */

static void free_hub(zr_hub_t *hub) {
    for (int rank = 0; hub->ranks != NULL && rank < hub->options.n_ranks; rank++)
        zr_connection_close(&hub->ranks[rank]);
    zr_door_close(&hub->door);
    while (hub->groups != NULL) {
        zr_hub_group_t *group = hub->groups;
        hub->groups = group->next;
        zr_hub_group_free(group);
    }
    for (int i = 0; i < 2; i++)
        if (hub->wake[i] >= 0)
            close(hub->wake[i]);
    free(hub->ranks);
    free(hub->polled);
    free(hub);
}

/* What the thread needs, and rank 0's connection. */
static bool prepare(zr_hub_t *hub, int *own_p) {
    size_t n_ranks = (size_t)hub->options.n_ranks;
    int pair[2];
    hub->ranks = calloc(n_ranks, sizeof(*hub->ranks));
    hub->polled = calloc(1 + n_ranks + ZR_DOOR_POLLED, sizeof(*hub->polled));
    for (size_t rank = 0; hub->ranks != NULL && rank < n_ranks; rank++)
        hub->ranks[rank].socket = -1;
    if (hub->ranks == NULL || !zr_door_open(&hub->door) || hub->polled == NULL ||
        pipe2(hub->wake, O_CLOEXEC | O_NONBLOCK) != 0 ||
        socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
        return false;
    zr_connection_open(&hub->ranks[0], pair[0], NULL, hub->now_ms);
    hub->ranks[0].rank = 0;
    *own_p = pair[1];
    return true;
}

zr_status_t zr_hub_start(const zr_hub_options_t *options, zr_hub_t **hub_p, int *own_p) {
    zr_hub_t *hub = calloc(1, sizeof(*hub));
    int own = -1;
    if (hub == NULL) {
        close(options->listener);
        return zr_fail(&options->log, ZR_ERR_MEMORY, "no memory for the meeting of %d ranks",
                       options->n_ranks);
    }
    hub->options = *options;
    hub->door = (zr_door_t){.log = options->log,
                            .listener = options->listener,
                            .secret = &hub->options.secret,
                            .timeout_ms = options->timeout_ms,
                            .place = hub->options.place};
    hub->wake[0] = hub->wake[1] = -1;
    if (!prepare(hub, &own) || pthread_mutex_init(&hub->lock, NULL) != 0)
        goto err_free;
    if (pthread_create(&hub->thread, NULL, hub_main, hub) == 0) {
        *hub_p = hub;
        *own_p = own;
        return ZR_OK;
    }
    pthread_mutex_destroy(&hub->lock);
err_free:
    if (own >= 0)
        close(own);
    free_hub(hub);
    return zr_fail(&options->log, ZR_ERR_MEMORY, "no memory for the meeting of %d ranks",
                   options->n_ranks);
}

void zr_hub_stop(zr_hub_t **hub_pp) {
    zr_hub_t *hub = *hub_pp;
    if (hub == NULL)
        return;
    *hub_pp = NULL;
    pthread_mutex_lock(&hub->lock);
    hub->is_stopping = true;
    pthread_mutex_unlock(&hub->lock);
    ssize_t n = write(hub->wake[1], "", 1);
    (void)n; /* it looks by itself, too, a little later */
    pthread_join(hub->thread, NULL);
    pthread_mutex_destroy(&hub->lock);
    free_hub(hub);
}
