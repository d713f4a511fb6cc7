/* See hub.h. One thread, one poll; nothing in it waits for a single rank. */
#include "zero/comm/hub.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "kernels/kernels.h"

enum {
    MOST_STRANGERS = 64,     /* connections that have not said who they are, at a time */
    STRANGER_MS = 10 * 1000, /* and how long they may take */
    STOP_MS = 5 * 1000,      /* for ranks to go, once rank 0 has */
    DEAD_MS = 1000, /* both for ranks to come to the end of a call that has failed, and to go */
    LOOK_MS = 100,  /* how often time limits are looked at */
    MOST_STRANGE_WARNINGS = 5 /* then it is known */
};

/* Bytes on their way to a rank. */
typedef struct outbox {
    char *bytes;
    size_t length, sent, capacity;
} outbox_t;

typedef struct connection {
    int socket;       /* -1: closed */
    int rank;         /* -1: not said yet */
    int64_t until_ms; /* a stranger's time */
    bool is_closing;  /* when its outbox is empty */
    bool has_left;    /* the first communicator */
    outbox_t outbox;
    size_t n_received;
    char received[sizeof(zr_frame_t) + ZR_WIRE_MOST_TO_HUB];
} connection_t;

/* A communicator. Ranks are its own; `world` has their numbers in the first one. */
typedef struct group {
    struct group *next;
    uint32_t id;
    bool is_told;      /* that it is dead */
    bool is_first;     /* the meeting under way is the first of a call */
    int64_t limit_ms;  /* of the meeting under way, when one has arrived */
    int64_t until_ms;  /* likewise: when that is */
    int waiting;       /* who was the first at it */
    int *world;        /* [n_ranks] */
    bool *has_arrived; /* [n_ranks] at the meeting under way */
    bool *is_gone;     /* [n_ranks] connection lost, or left */
    zr_roll_t *roll;
} group_t;

struct zr_hub {
    zr_hub_options_t options;
    pthread_t thread;
    pthread_mutex_t lock; /* guards is_stopping */
    bool is_stopping;
    int wake[2]; /* a pipe: is_stopping has changed */
    /* the thread's own: */
    bool is_gathered, is_failed;
    bool has_failed; /* a communicator has, and its ranks know: who does not go may be stopped */
    int64_t gather_until_ms, stop_until_ms;
    int n_strange;
    uint32_t n_groups; /* made so far: their ids */
    group_t *groups;
    connection_t *ranks;     /* [n_ranks] */
    connection_t *strangers; /* [MOST_STRANGERS] */
    struct pollfd *polled;   /* [2 + n_ranks + MOST_STRANGERS] */
};

/* ---- connections ------------------------------------------------------------------------------
 */

static void close_connection(connection_t *connection) {
    if (connection->socket >= 0)
        close(connection->socket);
    free(connection->outbox.bytes);
    connection->outbox = (outbox_t){0};
    connection->socket = -1;
    connection->n_received = 0;
}

static void open_connection(connection_t *connection, int socket, int rank) {
    connection->socket = socket;
    connection->rank = rank;
    connection->is_closing = false;
    connection->has_left = false;
    connection->n_received = 0;
    connection->outbox = (outbox_t){0};
}

/* Room for so many bytes more. */
static bool grow_outbox(outbox_t *outbox, size_t length) {
    if (outbox->sent > 0) {
        memmove(outbox->bytes, outbox->bytes + outbox->sent, outbox->length - outbox->sent);
        outbox->length -= outbox->sent;
        outbox->sent = 0;
    }
    if (outbox->length + length <= outbox->capacity)
        return true;
    size_t capacity = 2 * (outbox->length + length);
    char *bytes = realloc(outbox->bytes, capacity);
    if (bytes == NULL)
        return false;
    outbox->bytes = bytes;
    outbox->capacity = capacity;
    return true;
}

/* Send what the socket takes. False: the connection is lost. */
static bool flush(connection_t *connection) {
    outbox_t *outbox = &connection->outbox;
    while (outbox->sent < outbox->length) {
        ssize_t n = send(connection->socket, outbox->bytes + outbox->sent,
                         outbox->length - outbox->sent, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return true;
        if (n < 0 && errno != EINTR)
            return false;
        outbox->sent += n > 0 ? (size_t)n : 0;
    }
    if (connection->is_closing)
        (void)shutdown(connection->socket, SHUT_WR);
    return true;
}

/* A frame of two parts. That it cannot be sent shows when the socket is looked at next. */
static void send_parts(connection_t *connection, uint32_t kind, uint32_t group, const void *head,
                       size_t head_length, const void *tail, size_t tail_length) {
    zr_frame_t frame = {
        .kind = kind, .group = group, .length = (uint32_t)(head_length + tail_length)};
    outbox_t *outbox = &connection->outbox;
    if (connection->socket < 0)
        return;
    if (!grow_outbox(outbox, sizeof(frame) + head_length + tail_length)) {
        (void)shutdown(connection->socket, SHUT_RDWR); /* it is told so by the loss */
        return;
    }
    const void *parts[] = {&frame, head, tail};
    size_t lengths[] = {sizeof(frame), head_length, tail_length};
    for (int i = 0; i < 3; i++) {
        if (lengths[i] > 0)
            memcpy(outbox->bytes + outbox->length, parts[i], lengths[i]);
        outbox->length += lengths[i];
    }
    (void)flush(connection);
}

static void send_frame(connection_t *connection, uint32_t kind, uint32_t group, const void *data,
                       size_t length) {
    send_parts(connection, kind, group, data, length, NULL, 0);
}

static void refuse(connection_t *connection, const char *reason) {
    send_frame(connection, ZR_FRAME_REFUSED, 0, reason, strlen(reason) + 1);
    connection->is_closing = true;
    (void)flush(connection);
}

/* ---- groups -------------------------------------------------------------------------------------
 */

static void free_group(group_t *group) {
    free(group->world);
    free(group->has_arrived);
    free(group->is_gone);
    free(group->roll);
    free(group);
}

/* @param world  [n_ranks] their numbers in the first communicator */
static group_t *create_group(zr_hub_t *hub, int n_ranks, const int *world) {
    size_t n = (size_t)n_ranks;
    group_t *group = calloc(1, sizeof(*group));
    if (group == NULL)
        return NULL;
    group->world = malloc(n * sizeof(*group->world));
    group->has_arrived = calloc(n, sizeof(*group->has_arrived));
    group->is_gone = calloc(n, sizeof(*group->is_gone));
    group->roll = malloc(zr_roll_bytes(n_ranks));
    if (group->world == NULL || group->has_arrived == NULL || group->is_gone == NULL ||
        group->roll == NULL) {
        free_group(group);
        return NULL;
    }
    memcpy(group->world, world, n * sizeof(*world));
    zr_roll_init(group->roll, n_ranks, hub->n_groups > 0, world);
    group->id = hub->n_groups++;
    group->next = hub->groups;
    hub->groups = group;
    return group;
}

static group_t *find_group(zr_hub_t *hub, uint32_t id) {
    group_t *group = hub->groups;
    while (group != NULL && group->id != id)
        group = group->next;
    return group;
}

/* A rank's number in a group, -1 where it is not in it. */
static int rank_in(const group_t *group, int world_rank) {
    for (int rank = 0; rank < group->roll->n_ranks; rank++)
        if (group->world[rank] == world_rank)
            return rank;
    return -1;
}

/* Tell the members of its end, once. */
static void tell_end(zr_hub_t *hub, group_t *group) {
    if (group->is_told || !atomic_load(&group->roll->is_dead))
        return;
    zr_end_t end = {.has_left = group->roll->has_left};
    group->is_told = true;
    hub->has_failed |= !group->roll->has_left;
    snprintf(end.reason, sizeof(end.reason), "%s", group->roll->reason);
    for (int rank = 0; rank < group->roll->n_ranks; rank++)
        if (!group->is_gone[rank])
            send_frame(&hub->ranks[group->world[rank]], ZR_FRAME_END, group->id, &end, sizeof(end));
}

/* ---- meetings -----------------------------------------------------------------------------------
 */

/* Make the groups of a split; false: no memory, and none is made. ids: [n_ranks] */
static bool make_groups(zr_hub_t *hub, group_t *parent, int *ids) {
    int members[ZR_MAX_SUM_SOURCES] = {0}, world[ZR_MAX_SUM_SOURCES] = {0};
    zr_roll_t *roll = parent->roll;
    group_t *before = hub->groups;
    for (int rank = 0; rank < roll->n_ranks; rank++)
        ids[rank] = -1;
    for (int rank = 0; rank < roll->n_ranks; rank++) {
        if (ids[rank] >= 0 || roll->seats[rank].post.color < 0)
            continue;
        int n_members = zr_roll_members(roll, roll->seats[rank].post.color, members);
        for (int i = 0; i < n_members; i++)
            world[i] = parent->world[members[i]];
        group_t *group = create_group(hub, n_members, world);
        while (group == NULL && hub->groups != before) {
            group_t *made = hub->groups;
            hub->groups = made->next;
            free_group(made);
        }
        if (group == NULL)
            return false;
        for (int i = 0; i < n_members; i++)
            ids[members[i]] = (int)group->id;
    }
    return true;
}

/* Tell the members what came of a meeting. */
static void tell_outcome(zr_hub_t *hub, group_t *group) {
    zr_roll_t *roll = group->roll;
    const zr_post_t *first = &roll->seats[0].post;
    int ids[ZR_MAX_SUM_SOURCES] = {0};
    zr_status_t status = roll->outcome;
    bool is_split = group->is_first && status == ZR_OK && first->collective == ZR_SPLIT;
    uint32_t payload_bytes = group->is_first && status == ZR_OK ? first->payload_bytes : 0;
    size_t all_bytes = (size_t)payload_bytes * (size_t)roll->n_ranks;
    char *all = all_bytes > 0 ? malloc(all_bytes) : NULL;
    if ((is_split && !make_groups(hub, group, ids)) || (all_bytes > 0 && all == NULL)) {
        status = ZR_ERR_MEMORY;
        all_bytes = 0;
    }
    for (int rank = 0; all_bytes > 0 && rank < roll->n_ranks; rank++)
        memcpy(all + (size_t)rank * payload_bytes, roll->seats[rank].post.payload, payload_bytes);
    for (int rank = 0; rank < roll->n_ranks; rank++) {
        zr_outcome_t outcome = {.status = status, .group = -1, .payload_bytes = payload_bytes};
        if (is_split && status == ZR_OK && ids[rank] >= 0) {
            outcome.group = ids[rank];
            outcome.rank = zr_roll_rank_in_color(roll, rank);
            outcome.n_ranks = find_group(hub, (uint32_t)ids[rank])->roll->n_ranks;
        }
        if (!group->is_gone[rank])
            send_parts(&hub->ranks[group->world[rank]], ZR_FRAME_OUTCOME, group->id, &outcome,
                       sizeof(outcome), all, all_bytes);
    }
    free(all);
}

/* A meeting has one more: perhaps it is complete now. */
static void after_arrival(zr_hub_t *hub, group_t *group, unsigned generation) {
    if (group->roll->generation != generation) {
        memset(group->has_arrived, 0, (size_t)group->roll->n_ranks * sizeof(bool));
        tell_outcome(hub, group);
    }
    tell_end(hub, group);
}

/* A later meeting: who has gone is counted in for it. */
static void count_in(zr_hub_t *hub, group_t *group, int rank, zr_status_t status) {
    unsigned generation = group->roll->generation;
    group->has_arrived[rank] = true;
    zr_roll_count_in(group->roll, status);
    for (int other = 0; other < group->roll->n_ranks; other++) {
        if (group->roll->generation == generation && group->is_gone[other] &&
            !group->has_arrived[other]) {
            group->has_arrived[other] = true;
            zr_roll_count_in(group->roll, ZR_ERR_COMM);
        }
    }
    after_arrival(hub, group, generation);
}

static void begin_meeting(zr_hub_t *hub, group_t *group, int rank, bool is_first) {
    if (group->roll->n_arrived > 0)
        return;
    /* In between, a rank may wait for its device as long as the limit is, unless that is the host.
     */
    bool waits = !is_first && strcmp(group->roll->seats[rank].post.device, "host") != 0;
    group->limit_ms = hub->options.timeout_ms * (waits ? (int64_t)2 : 1);
    if (!waits && atomic_load(&group->roll->is_dead) && group->limit_ms > DEAD_MS)
        group->limit_ms = DEAD_MS; /* who would come has been told */
    group->until_ms = zr_wire_now_ms() + group->limit_ms;
    group->waiting = rank;
    group->is_first = is_first;
}

static void take_post(zr_hub_t *hub, group_t *group, int rank, zr_post_t *post) {
    unsigned generation = group->roll->generation;
    post->tensor[sizeof(post->tensor) - 1] = '\0';
    post->device[sizeof(post->device) - 1] = '\0';
    if (atomic_load(&group->roll->is_dead))
        return; /* it has been told */
    begin_meeting(hub, group, rank, true);
    group->has_arrived[rank] = true;
    zr_roll_arrive(group->roll, rank, post);
    after_arrival(hub, group, generation);
}

/* A rank that others wait for in the midst of a call: they go on without it. */
static void end_late_meeting(zr_hub_t *hub, group_t *group) {
    zr_roll_t *roll = group->roll;
    int late = 0;
    while (group->has_arrived[late])
        late++;
    char name[ZR_RANK_TEXT_BYTES], call[ZR_COMM_DESCRIPTION_BYTES], waiting[ZR_RANK_TEXT_BYTES];
    zr_roll_describe_rank(roll, late, name, sizeof(name));
    zr_roll_describe_rank(roll, group->waiting, waiting, sizeof(waiting));
    zr_roll_describe_call(roll, late, call, sizeof(call));
    zr_roll_kill(roll, "%s has waited %lld ms for %s to come to the end of %s", waiting,
                 (long long)group->limit_ms, name, call);
    tell_end(hub, group); /* before the outcome: who gets that asks for the reason */
    for (int rank = 0; rank < roll->n_ranks; rank++)
        group->is_gone[rank] |= !group->has_arrived[rank];
    for (int rank = 0; rank < roll->n_ranks; rank++) {
        if (!group->is_gone[rank] || group->has_arrived[rank])
            continue;
        unsigned generation = roll->generation;
        group->has_arrived[rank] = true;
        zr_roll_count_in(roll, ZR_ERR_COMM);
        after_arrival(hub, group, generation);
        if (roll->generation != generation)
            break;
    }
}

static void look_at_meetings(zr_hub_t *hub) {
    int64_t now = zr_wire_now_ms();
    for (group_t *group = hub->groups; group != NULL; group = group->next) {
        if (group->roll->n_arrived == 0 || now < group->until_ms)
            continue;
        if (!group->is_first) {
            end_late_meeting(hub, group);
        } else if (!atomic_load(&group->roll->is_dead)) {
            zr_roll_kill_for_absence(group->roll, group->waiting, hub->options.timeout_ms);
            tell_end(hub, group);
        }
    }
}

/* A rank is not in a group any more, by its will or not. */
static void remove_member(zr_hub_t *hub, group_t *group, int rank) {
    if (group->is_gone[rank])
        return;
    group->is_gone[rank] = true;
    tell_end(hub, group);
    if (!group->is_first && group->roll->n_arrived > 0 && !group->has_arrived[rank])
        count_in(hub, group, rank, ZR_ERR_COMM);
}

/* Forget groups that nobody is in. */
static void forget_groups(zr_hub_t *hub) {
    group_t **link = &hub->groups;
    while (*link != NULL) {
        group_t *group = *link;
        int n_here = 0;
        for (int rank = 0; rank < group->roll->n_ranks; rank++)
            n_here += !group->is_gone[rank];
        if (n_here > 0) {
            link = &group->next;
            continue;
        }
        *link = group->next;
        free_group(group);
    }
}

/* A rank's connection has ended, for this reason where it was not to end. */
static void lose_rank(zr_hub_t *hub, int world_rank, const char *reason) {
    close_connection(&hub->ranks[world_rank]);
    for (group_t *group = hub->groups; group != NULL; group = group->next) {
        int rank = rank_in(group, world_rank);
        if (rank < 0 || group->is_gone[rank])
            continue;
        char name[ZR_RANK_TEXT_BYTES], last[ZR_COMM_DESCRIPTION_BYTES];
        zr_roll_describe_rank(group->roll, rank, name, sizeof(name));
        zr_roll_describe_call(group->roll, rank, last, sizeof(last));
        zr_roll_kill(group->roll, "%s %s (latest: %s)", name, reason, last);
        remove_member(hub, group, rank);
    }
    forget_groups(hub);
}

/* ---- frames of ranks
 * ------------------------------------------------------------------------------ */

static bool has_length(const zr_frame_t *frame) {
    switch (frame->kind) {
    case ZR_FRAME_POST:
        return frame->length == sizeof(zr_post_t);
    case ZR_FRAME_MEET:
        return frame->length == sizeof(int32_t);
    case ZR_FRAME_KILL:
        return frame->length > 0 && frame->length <= ZR_REASON_BYTES;
    case ZR_FRAME_LEAVE:
        return frame->length == 0;
    case ZR_FRAME_HELLO:
        return frame->length == sizeof(zr_hello_t);
    default:
        return false;
    }
}

/* False: this is no message of a rank. */
static bool take_frame(zr_hub_t *hub, int world_rank, const zr_frame_t *frame, void *data) {
    group_t *group = find_group(hub, frame->group);
    int rank = group != NULL ? rank_in(group, world_rank) : -1;
    if (rank < 0 || group->is_gone[rank])
        return frame->kind != ZR_FRAME_HELLO && group == NULL; /* of a group that has gone */
    if (frame->kind == ZR_FRAME_POST) {
        zr_post_t post;
        memcpy(&post, data, sizeof(post));
        if (post.payload_bytes > ZR_PAYLOAD_BYTES || group->has_arrived[rank])
            return false;
        take_post(hub, group, rank, &post);
    } else if (frame->kind == ZR_FRAME_MEET) {
        int32_t status;
        memcpy(&status, data, sizeof(status));
        if (group->has_arrived[rank])
            return atomic_load(&group->roll->is_dead);
        begin_meeting(hub, group, rank, false);
        count_in(hub, group, rank, (zr_status_t)status);
    } else if (frame->kind == ZR_FRAME_KILL) {
        ((char *)data)[frame->length - 1] = '\0';
        zr_roll_kill(group->roll, "%s", (const char *)data);
        tell_end(hub, group);
    } else if (frame->kind == ZR_FRAME_LEAVE) {
        zr_roll_kill_for_leaving(group->roll, rank);
        remove_member(hub, group, rank);
        forget_groups(hub);
    } else {
        return false;
    }
    return true;
}

/* Read what there is. 0, or why the connection has ended: ECONNRESET when the other side closed. */
static int receive_some(connection_t *connection) {
    size_t room = sizeof(connection->received) - connection->n_received;
    ssize_t n =
        recv(connection->socket, connection->received + connection->n_received, room, MSG_DONTWAIT);
    if (n == 0)
        return ECONNRESET;
    if (n < 0)
        return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? 0 : errno;
    connection->n_received += (size_t)n;
    return 0;
}

/* The first whole frame of what was received: 1, none yet: 0, no frame at all: -1. */
static int next_frame(const connection_t *connection, zr_frame_t *frame) {
    if (connection->n_received < sizeof(*frame))
        return 0;
    memcpy(frame, connection->received, sizeof(*frame));
    if (!has_length(frame))
        return -1;
    return connection->n_received >= sizeof(*frame) + frame->length;
}

static void drop_frame(connection_t *connection, const zr_frame_t *frame) {
    size_t length = sizeof(*frame) + frame->length;
    connection->n_received -= length;
    memmove(connection->received, connection->received + length, connection->n_received);
}

static void serve_rank(zr_hub_t *hub, int rank) {
    connection_t *connection = &hub->ranks[rank];
    zr_frame_t frame;
    int error = receive_some(connection), found = 0;
    while (error == 0 && connection->socket >= 0 && (found = next_frame(connection, &frame)) > 0) {
        _Alignas(16) char data[ZR_WIRE_MOST_TO_HUB];
        memcpy(data, connection->received + sizeof(frame), frame.length);
        drop_frame(connection, &frame);
        if (!take_frame(hub, rank, &frame, data))
            found = -1;
        if (found < 0)
            break;
    }
    if (found < 0) {
        lose_rank(hub, rank, "sent what is no message, and was cut off");
    } else if (error != 0) {
        char reason[128];
        snprintf(reason, sizeof(reason), "is gone: its connection has ended (%s)",
                 error == ECONNRESET ? "closed by its process or machine" : strerror(error));
        lose_rank(hub, rank, reason);
    }
}

/* ---- gathering
 * -------------------------------------------------------------------------------------- */

static void warn_of_stranger(zr_hub_t *hub, const char *what) {
    if (hub->n_strange++ < MOST_STRANGE_WARNINGS)
        zr_log_write(&hub->options.log, ZR_LOG_WARNING,
                     "%s: a connection that %s was closed: no rank of this run", hub->options.place,
                     what);
}

/* Who a stranger says it is: welcome, or told why not. */
static void take_hello(zr_hub_t *hub, connection_t *stranger, const zr_hello_t *hello) {
    char reason[256] = "";
    int rank = hello->rank;
    if (hello->version != ZR_WIRE_VERSION)
        snprintf(reason, sizeof(reason),
                 "rank %d speaks version %u of the protocol, rank 0 version %u: start all ranks "
                 "with the same program",
                 rank, hello->version, ZR_WIRE_VERSION);
    else if (hello->n_ranks != hub->options.n_ranks)
        snprintf(reason, sizeof(reason), "rank %d has WORLD_SIZE %d, rank 0 has %d", rank,
                 hello->n_ranks, hub->options.n_ranks);
    else if (rank < 0 || rank >= hub->options.n_ranks)
        snprintf(reason, sizeof(reason), "RANK is %d; the ranks are 0 to %d", rank,
                 hub->options.n_ranks - 1);
    else if (hub->ranks[rank].socket >= 0)
        snprintf(reason, sizeof(reason), "there is a rank %d already: two processes have RANK=%d",
                 rank, rank);
    if (reason[0] == '\0') {
        open_connection(&hub->ranks[rank], stranger->socket, rank);
        stranger->socket = -1;
        return;
    }
    zr_log_write(&hub->options.log, ZR_LOG_WARNING, "%s: refused: %s", hub->options.place, reason);
    refuse(stranger, reason);
}

static void serve_stranger(zr_hub_t *hub, connection_t *stranger) {
    zr_frame_t frame;
    zr_hello_t hello;
    int error = receive_some(stranger);
    if (stranger->is_closing) { /* all was said */
        stranger->n_received = 0;
        if (error != 0)
            close_connection(stranger);
        return;
    }
    int found = error == 0 ? next_frame(stranger, &frame) : 0;
    if (found > 0)
        memcpy(&hello, stranger->received + sizeof(frame), sizeof(hello));
    if (found < 0 ||
        (found > 0 && (frame.kind != ZR_FRAME_HELLO || hello.magic != ZR_WIRE_MAGIC))) {
        warn_of_stranger(hub, "sent something else");
        close_connection(stranger);
    } else if (error != 0) {
        warn_of_stranger(hub, "said nothing");
        close_connection(stranger);
    } else if (found > 0) {
        take_hello(hub, stranger, &hello);
    }
}

/* A place for a stranger; the one that has taken longest gives way. */
static connection_t *place_for_stranger(zr_hub_t *hub) {
    connection_t *oldest = &hub->strangers[0];
    for (int i = 0; i < MOST_STRANGERS; i++) {
        connection_t *stranger = &hub->strangers[i];
        if (stranger->socket < 0)
            return stranger;
        if (stranger->until_ms < oldest->until_ms)
            oldest = stranger;
    }
    close_connection(oldest);
    return oldest;
}

static void accept_stranger(zr_hub_t *hub) {
    int socket = accept4(hub->options.listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (socket < 0)
        return; /* it has gone again, or there will be room when others have */
    zr_wire_no_delay(socket);
    zr_wire_guard(socket, hub->options.timeout_ms);
    connection_t *stranger = place_for_stranger(hub);
    open_connection(stranger, socket, -1);
    stranger->until_ms = zr_wire_now_ms() + STRANGER_MS;
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
    for (int i = 0; i < MOST_STRANGERS; i++)
        if (!hub->strangers[i].is_closing)
            close_connection(&hub->strangers[i]);
    close(hub->options.listener);
    hub->options.listener = -1;
    hub->is_gathered = true;
}

static void fail_gathering(zr_hub_t *hub, const char *reason) {
    for (int rank = 0; rank < hub->options.n_ranks; rank++)
        if (hub->ranks[rank].socket >= 0)
            refuse(&hub->ranks[rank], reason);
    end_gathering(hub);
    hub->is_failed = true;
}

/* Whether all have come, or the time is up. */
static void look_at_gathering(zr_hub_t *hub) {
    char missing[256], reason[640];
    int world[ZR_MAX_SUM_SOURCES] = {0};
    list_missing(hub, missing, sizeof(missing));
    if (missing[0] != '\0') {
        if (zr_wire_now_ms() < hub->gather_until_ms)
            return;
        snprintf(reason, sizeof(reason), "after %d ms these ranks of %d have not come to %s: %s",
                 hub->options.timeout_ms, hub->options.n_ranks, hub->options.place, missing);
        fail_gathering(hub, reason);
        return;
    }
    for (int rank = 0; rank < hub->options.n_ranks; rank++)
        world[rank] = rank;
    if (create_group(hub, hub->options.n_ranks, world) == NULL) {
        fail_gathering(hub, "rank 0 has no memory for the state of all ranks");
        return;
    }
    end_gathering(hub);
    for (int rank = 0; rank < hub->options.n_ranks; rank++)
        send_frame(&hub->ranks[rank], ZR_FRAME_WELCOME, 0, NULL, 0);
}

/* A rank that goes while others are awaited may come again. */
static void serve_early_rank(connection_t *connection) {
    if (receive_some(connection) != 0 || connection->n_received > 0)
        close_connection(connection);
}

/* ---- the thread
 * --------------------------------------------------------------------------------------- */

static short events_of(const connection_t *connection) {
    bool has_more = connection->outbox.sent < connection->outbox.length;
    return (short)(POLLIN | (has_more ? POLLOUT : 0));
}

static int fill_polled(zr_hub_t *hub) {
    int n = 0;
    hub->polled[n++] = (struct pollfd){.fd = hub->wake[0], .events = POLLIN};
    hub->polled[n++] = (struct pollfd){.fd = hub->options.listener, .events = POLLIN};
    for (int rank = 0; rank < hub->options.n_ranks; rank++)
        hub->polled[n++] =
            (struct pollfd){.fd = hub->ranks[rank].socket, .events = events_of(&hub->ranks[rank])};
    for (int i = 0; i < MOST_STRANGERS; i++)
        hub->polled[n++] = (struct pollfd){.fd = hub->strangers[i].socket,
                                           .events = events_of(&hub->strangers[i])};
    return n;
}

static void serve_connection(zr_hub_t *hub, connection_t *connection, const struct pollfd *polled) {
    if (connection->socket < 0 || connection->socket != polled->fd || polled->revents == 0)
        return;
    bool is_lost = (polled->revents & POLLOUT) != 0 && !flush(connection);
    if (is_lost && connection->rank >= 0 && hub->is_gathered && !hub->is_failed)
        lose_rank(hub, connection->rank, "is gone: nothing can be sent to it");
    else if (is_lost)
        close_connection(connection);
    else if ((polled->revents & (POLLIN | POLLHUP | POLLERR)) == 0)
        return;
    else if (connection->rank < 0 || connection->is_closing)
        serve_stranger(hub, connection);
    else if (hub->is_gathered)
        serve_rank(hub, connection->rank);
    else
        serve_early_rank(connection);
}

static void serve(zr_hub_t *hub) {
    int n_polled = fill_polled(hub);
    if (poll(hub->polled, (nfds_t)n_polled, LOOK_MS) < 0)
        return;
    char byte;
    if (hub->polled[0].revents != 0 && read(hub->wake[0], &byte, 1) < 0)
        return; /* was read already */
    if (hub->polled[1].revents != 0 && hub->options.listener >= 0)
        accept_stranger(hub);
    for (int rank = 0; rank < hub->options.n_ranks; rank++)
        serve_connection(hub, &hub->ranks[rank], &hub->polled[2 + rank]);
    for (int i = 0; i < MOST_STRANGERS; i++)
        serve_connection(hub, &hub->strangers[i], &hub->polled[2 + hub->options.n_ranks + i]);
}

static void close_late_strangers(zr_hub_t *hub) {
    for (int i = 0; i < MOST_STRANGERS; i++) {
        connection_t *stranger = &hub->strangers[i];
        if (stranger->socket < 0 || zr_wire_now_ms() < stranger->until_ms)
            continue;
        if (!stranger->is_closing)
            warn_of_stranger(hub, "did not say who it is");
        close_connection(stranger);
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
        hub->stop_until_ms = zr_wire_now_ms() + (hub->has_failed ? DEAD_MS : STOP_MS);
    if (zr_wire_now_ms() >= hub->stop_until_ms)
        return true;
    for (int rank = 0; rank < hub->options.n_ranks; rank++)
        if (hub->ranks[rank].socket >= 0)
            return false;
    return true;
}

static void *hub_main(void *argument) {
    zr_hub_t *hub = argument;
    hub->gather_until_ms = zr_wire_now_ms() + hub->options.timeout_ms;
    while (!is_over(hub)) {
        serve(hub);
        close_late_strangers(hub);
        if (!hub->is_gathered)
            look_at_gathering(hub);
        else if (!hub->is_failed)
            look_at_meetings(hub);
    }
    return NULL;
}

/* ---- life
 * ------------------------------------------------------------------------------------------------
 */

static void free_hub(zr_hub_t *hub) {
    for (int rank = 0; hub->ranks != NULL && rank < hub->options.n_ranks; rank++)
        close_connection(&hub->ranks[rank]);
    for (int i = 0; hub->strangers != NULL && i < MOST_STRANGERS; i++)
        close_connection(&hub->strangers[i]);
    while (hub->groups != NULL) {
        group_t *group = hub->groups;
        hub->groups = group->next;
        free_group(group);
    }
    if (hub->options.listener >= 0)
        close(hub->options.listener);
    for (int i = 0; i < 2; i++)
        if (hub->wake[i] >= 0)
            close(hub->wake[i]);
    free(hub->ranks);
    free(hub->strangers);
    free(hub->polled);
    free(hub);
}

static void init_connections(connection_t *connections, size_t n) {
    for (size_t i = 0; connections != NULL && i < n; i++) {
        connections[i].socket = -1;
        connections[i].rank = -1;
    }
}

/* What the thread needs, and rank 0's connection. */
static bool prepare(zr_hub_t *hub, int *own_p) {
    size_t n_ranks = (size_t)hub->options.n_ranks;
    int pair[2];
    hub->ranks = calloc(n_ranks, sizeof(*hub->ranks));
    hub->strangers = calloc(MOST_STRANGERS, sizeof(*hub->strangers));
    hub->polled = calloc(2 + n_ranks + MOST_STRANGERS, sizeof(*hub->polled));
    init_connections(hub->ranks, n_ranks);
    init_connections(hub->strangers, MOST_STRANGERS);
    if (hub->ranks == NULL || hub->strangers == NULL || hub->polled == NULL ||
        pipe2(hub->wake, O_CLOEXEC | O_NONBLOCK) != 0 ||
        socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
        return false;
    open_connection(&hub->ranks[0], pair[0], 0);
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
