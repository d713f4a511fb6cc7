/* See coordinator.h. One thread, one poll; nothing in it waits for a single rank. */
#include "zero/comm/coordinator/coordinator.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "zero/comm/coordinator/coordinator_internal.h"

enum { STOP_MS = 5 * 1000 }; /* for ranks to go, once rank 0 has */

/* ---- what ranks say ---- */

/* A rank that comes to the end of a call which has ended without it: it always has an answer. */
static void answer_late_rank(zr_coordinator_t *coordinator, int world_rank, uint32_t group) {
    zr_outcome_t outcome = {.status = ZR_ERR_COMM, .group = -1};
    zr_connection_send(&coordinator->ranks[world_rank], ZR_FRAME_OUTCOME, group, &outcome,
                       sizeof(outcome));
}

/* False: this is no message of a rank; why[ZR_PEER_WHY_BYTES]: "" where it only does not fit. */
static bool take_frame(zr_coordinator_t *coordinator, int world_rank, const zr_frame_t *frame,
                       void *data, char *why) {
    why[0] = '\0';
    if (frame->kind == ZR_FRAME_ALIVE || frame->kind == ZR_FRAME_HELLO)
        return frame->kind == ZR_FRAME_ALIVE;
    zr_coordinator_group_t *group = zr_coordinator_group_find(coordinator, frame->group);
    int rank = group != NULL ? zr_coordinator_group_rank(group, world_rank) : -1;
    if (rank < 0 || group->is_gone[rank]) { /* the group has gone, or on without it */
        if (frame->kind == ZR_FRAME_MEET)
            answer_late_rank(coordinator, world_rank, frame->group);
        return true;
    }
    if (frame->kind == ZR_FRAME_POST) {
        zr_post_t post;
        memcpy(&post, data, sizeof(post));
        if (group->has_arrived[rank] || !zr_peer_check_post(&post, group->membership->n_ranks, why))
            return false;
        zr_coordinator_meeting_take_post(coordinator, group, rank, &post);
    } else if (frame->kind == ZR_FRAME_MEET) {
        int32_t status;
        memcpy(&status, data, sizeof(status));
        if (group->has_arrived[rank] || !zr_peer_check_status(status, why))
            return false;
        zr_coordinator_meeting_begin(coordinator, group, rank, false);
        zr_coordinator_meeting_count_in(coordinator, group, rank, (zr_status_t)status);
    } else if (frame->kind == ZR_FRAME_KILL) {
        zr_peer_clean(data, frame->length);
        zr_membership_kill(group->membership, "%s", (const char *)data);
        zr_coordinator_group_tell_end(coordinator, group);
    } else if (frame->kind == ZR_FRAME_APART) {
        group->membership->is_apart = true;
    } else if (frame->kind == ZR_FRAME_LEAVE) {
        zr_membership_kill_for_leaving(group->membership, rank);
        zr_coordinator_group_remove(coordinator, group, rank);
        zr_coordinator_groups_forget(coordinator);
    } else {
        return false;
    }
    return true;
}

static void serve_rank(zr_coordinator_t *coordinator, int rank) {
    zr_connection_t *connection = &coordinator->ranks[rank];
    zr_frame_t frame;
    char why[ZR_PEER_WHY_BYTES];
    int error = zr_connection_receive(connection, coordinator->now_ms), found = 0;
    while (error == 0 && connection->socket >= 0 &&
           (found = zr_connection_next_frame(connection, &frame, why)) > 0) {
        _Alignas(16) char data[ZR_WIRE_MOST_TO_HUB];
        memcpy(data, connection->received + sizeof(frame), frame.length);
        zr_connection_drop_frame(connection, &frame);
        if (!take_frame(coordinator, rank, &frame, data, why))
            found = -1;
        if (found < 0)
            break;
    }
    if (found < 0) {
        char reason[ZR_PEER_WHY_BYTES + 64];
        if (why[0] == '\0')
            snprintf(why, sizeof(why), "a frame of kind %u that does not fit here", frame.kind);
        snprintf(reason, sizeof(reason),
                 "sent data that is not a message, and was disconnected: %s", why);
        zr_coordinator_lose_rank(coordinator, rank, reason);
    } else if (error != 0) {
        char reason[256], gap[ZR_GAP_TEXT_BYTES];
        snprintf(reason, sizeof(reason), "is gone: its connection has ended (%s)%s",
                 error == ECONNRESET ? "closed by the other process or machine" : strerror(error),
                 zr_wire_describe_gap(&coordinator->clock, gap, sizeof(gap)));
        zr_coordinator_lose_rank(coordinator, rank, reason);
    }
}

/* ---- the thread ---- */

static int fill_polled(zr_coordinator_t *coordinator) {
    coordinator->polled[0] = (struct pollfd){.fd = coordinator->wake[0], .events = POLLIN};
    for (int rank = 0; rank < coordinator->options.n_ranks; rank++)
        coordinator->polled[1 + rank] = zr_connection_polled(&coordinator->ranks[rank]);
    zr_door_fill(&coordinator->door, coordinator->now_ms,
                 &coordinator->polled[1 + coordinator->options.n_ranks]);
    return 1 + coordinator->options.n_ranks + ZR_DOOR_POLLED;
}

/* All are told, or, while they gather, it may come again for a moment. */
static void lose_rank(zr_coordinator_t *coordinator, int rank, const char *reason) {
    if (coordinator->is_gathered && !coordinator->is_failed)
        zr_coordinator_lose_rank(coordinator, rank, reason);
    else
        zr_coordinator_gathering_lose_early_rank(coordinator, &coordinator->ranks[rank]);
}

static void serve_connection(zr_coordinator_t *coordinator, zr_connection_t *connection,
                             const struct pollfd *polled) {
    if (connection->socket < 0 || connection->socket != polled->fd || polled->revents == 0)
        return;
    if ((polled->revents & POLLOUT) != 0 && !zr_connection_flush(connection))
        lose_rank(coordinator, connection->rank, "is gone: sending to it fails");
    else if ((polled->revents & (POLLIN | POLLHUP | POLLERR)) == 0)
        return;
    else if (coordinator->is_gathered && !coordinator->is_failed)
        serve_rank(coordinator, connection->rank);
    else
        zr_coordinator_gathering_serve_early_rank(coordinator, connection);
}

static void serve(zr_coordinator_t *coordinator) {
    int n_polled = fill_polled(coordinator);
    int n_ready = poll(coordinator->polled, (nfds_t)n_polled, ZR_LIVED_SLICE_MS);
    coordinator->now_ms = zr_lived_ms(&coordinator->clock);
    if (n_ready < 0)
        return;
    char byte;
    if (coordinator->polled[0].revents != 0 && read(coordinator->wake[0], &byte, 1) < 0)
        return; /* was read already */
    for (int rank = 0; rank < coordinator->options.n_ranks; rank++)
        serve_connection(coordinator, &coordinator->ranks[rank], &coordinator->polled[1 + rank]);
    zr_door_serve(&coordinator->door, coordinator->now_ms,
                  &coordinator->polled[1 + coordinator->options.n_ranks],
                  zr_coordinator_gathering_take, coordinator);
}

/* Tell the ranks, at times, that it is there. */
static void beat(zr_coordinator_t *coordinator) {
    if (coordinator->now_ms < coordinator->beat_ms)
        return;
    coordinator->beat_ms = coordinator->now_ms + zr_wire_beat_ms(coordinator->options.timeout_ms);
    for (int rank = 0; rank < coordinator->options.n_ranks; rank++)
        if (!coordinator->ranks[rank].is_closing)
            zr_connection_send(&coordinator->ranks[rank], ZR_FRAME_ALIVE, 0, NULL, 0);
}

/* A rank that does not say so is stopped, or out of reach. */
static void look_for_silence(zr_coordinator_t *coordinator) {
    int most_ms = zr_wire_silence_ms(coordinator->options.timeout_ms);
    for (int rank = 0; rank < coordinator->options.n_ranks; rank++) {
        zr_connection_t *connection = &coordinator->ranks[rank];
        if (connection->socket < 0 || coordinator->now_ms - connection->heard_ms < most_ms)
            continue;
        char reason[160];
        snprintf(reason, sizeof(reason), "has not been heard from for %d ms: %s", most_ms,
                 ZR_WIRE_SILENCE);
        lose_rank(coordinator, rank, reason);
    }
}

/* Whether there is nobody left, or no time for who is. */
static bool is_over(zr_coordinator_t *coordinator) {
    pthread_mutex_lock(&coordinator->lock);
    bool is_stopping = coordinator->is_stopping;
    pthread_mutex_unlock(&coordinator->lock);
    if (!is_stopping)
        return false;
    if (coordinator->stop_until_ms == 0)
        coordinator->stop_until_ms =
            coordinator->now_ms + (coordinator->has_failed ? ZR_HUB_DEAD_MS : STOP_MS);
    if (coordinator->now_ms >= coordinator->stop_until_ms)
        return true;
    for (int rank = 0; rank < coordinator->options.n_ranks; rank++)
        if (coordinator->ranks[rank].socket >= 0)
            return false;
    return true;
}

static void *coordinator_main(void *argument) {
    zr_coordinator_t *coordinator = argument;
    coordinator->now_ms = zr_lived_ms(&coordinator->clock);
    coordinator->gather_until_ms = coordinator->now_ms + coordinator->options.gather_ms;
    while (!is_over(coordinator)) {
        serve(coordinator);
        beat(coordinator);
        look_for_silence(coordinator);
        if (!coordinator->is_gathered)
            zr_coordinator_gathering_look(coordinator);
        else if (!coordinator->is_failed)
            zr_coordinator_meetings_look(coordinator);
    }
    return NULL;
}

/* ---- start and stop ---- */

static void free_coordinator(zr_coordinator_t *coordinator) {
    for (int rank = 0; coordinator->ranks != NULL && rank < coordinator->options.n_ranks; rank++)
        zr_connection_close(&coordinator->ranks[rank]);
    zr_door_close(&coordinator->door);
    while (coordinator->groups != NULL) {
        zr_coordinator_group_t *group = coordinator->groups;
        coordinator->groups = group->next;
        zr_coordinator_group_free(group);
    }
    for (int i = 0; i < 2; i++)
        if (coordinator->wake[i] >= 0)
            close(coordinator->wake[i]);
    free(coordinator->ranks);
    free(coordinator->polled);
    free(coordinator);
}

/* What the thread needs, and rank 0's connection. */
static bool prepare(zr_coordinator_t *coordinator, int *own_p) {
    size_t n_ranks = (size_t)coordinator->options.n_ranks;
    int pair[2];
    coordinator->ranks = calloc(n_ranks, sizeof(*coordinator->ranks));
    coordinator->polled = calloc(1 + n_ranks + ZR_DOOR_POLLED, sizeof(*coordinator->polled));
    for (size_t rank = 0; coordinator->ranks != NULL && rank < n_ranks; rank++)
        coordinator->ranks[rank].socket = -1;
    if (coordinator->ranks == NULL || !zr_door_open(&coordinator->door) ||
        coordinator->polled == NULL || pipe2(coordinator->wake, O_CLOEXEC | O_NONBLOCK) != 0 ||
        socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
        return false;
    zr_connection_open(&coordinator->ranks[0], pair[0], NULL, coordinator->now_ms);
    coordinator->ranks[0].rank = 0;
    *own_p = pair[1];
    return true;
}

zr_status_t zr_coordinator_start(const zr_coordinator_options_t *options,
                                 zr_coordinator_t **coordinator_p, int *own_p) {
    zr_coordinator_t *coordinator = calloc(1, sizeof(*coordinator));
    int own = -1;
    if (coordinator == NULL) {
        close(options->listener);
        return zr_fail(&options->log, ZR_ERR_MEMORY, "no memory for the meeting of %d ranks",
                       options->n_ranks);
    }
    coordinator->options = *options;
    coordinator->door = (zr_door_t){.log = options->log,
                                    .listener = options->listener,
                                    .secret = &coordinator->options.secret,
                                    .timeout_ms = options->timeout_ms,
                                    .place = coordinator->options.place};
    coordinator->wake[0] = coordinator->wake[1] = -1;
    if (!prepare(coordinator, &own) || pthread_mutex_init(&coordinator->lock, NULL) != 0)
        goto err_free;
    if (pthread_create(&coordinator->thread, NULL, coordinator_main, coordinator) == 0) {
        *coordinator_p = coordinator;
        *own_p = own;
        return ZR_OK;
    }
    pthread_mutex_destroy(&coordinator->lock);
err_free:
    if (own >= 0)
        close(own);
    free_coordinator(coordinator);
    return zr_fail(&options->log, ZR_ERR_MEMORY, "no memory for the meeting of %d ranks",
                   options->n_ranks);
}

void zr_coordinator_stop(zr_coordinator_t **coordinator_pp) {
    zr_coordinator_t *coordinator = *coordinator_pp;
    if (coordinator == NULL)
        return;
    *coordinator_pp = NULL;
    pthread_mutex_lock(&coordinator->lock);
    coordinator->is_stopping = true;
    pthread_mutex_unlock(&coordinator->lock);
    ssize_t n = write(coordinator->wake[1], "", 1);
    (void)n; /* it looks by itself, too, a little later */
    pthread_join(coordinator->thread, NULL);
    pthread_mutex_destroy(&coordinator->lock);
    free_coordinator(coordinator);
}

void zr_coordinator_forget(zr_coordinator_t *coordinator) {
    for (int rank = 0; rank < coordinator->options.n_ranks; rank++)
        if (coordinator->ranks[rank].socket >= 0)
            close(coordinator->ranks[rank].socket);
}
