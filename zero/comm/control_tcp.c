/*
 * The control of ranks that are processes: each has a connection to the coordinator (coordinator/),
 * which is in rank 0's. See control_internal.h.
 *
 * A thread per process reads the connection, so that the end of a communicator is known at once,
 * also while its rank waits for a device; and tells the coordinator that the process is there
 * (wire_internal.h). The coordinator keeps the time limits, and its words name the ranks that are
 * missing: who has asked it something waits until it answers, or is not heard any more.
 */
#include <errno.h>
#include <netdb.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "kernels/kernels.h"
#include "zero/comm/control_tcp_internal.h"

enum {
    LAST_WORDS_MS = 2000 /* for the coordinator to close the connection, when all is said */
};

/* ---- ends ---- */

/* The first reason stays. Lock held. */
static void end_control(zr_tcp_control_t *self, const char *reason, bool has_left) {
    if (self->is_dead)
        return;
    snprintf(self->reason, sizeof(self->reason), "%s", reason);
    self->has_left = has_left;
    self->is_dead = true;
    if (self->page != NULL)
        zr_page_end(self->page);
    pthread_cond_broadcast(&self->line->changed);
}

/* The coordinator's word on it. It does not know the calls of a group that meets in a page. Lock
 * held. */
static void take_end(zr_tcp_control_t *self, const zr_end_t *end) {
    zr_post_t post;
    char latest[ZR_COMM_DESCRIPTION_BYTES + 16] = "", reason[ZR_REASON_BYTES];
    if (self->page != NULL && end->whose >= 0) {
        self->gone = end->whose;
        zr_page_latest(self->page, end->whose, &post);
        zr_post_describe_latest(&post, latest, sizeof(latest));
    }
    snprintf(reason, sizeof(reason), "%.*s%s", (int)(sizeof(reason) - sizeof(latest)), end->reason,
             latest);
    end_control(self, reason, end->has_left != 0);
}

static const char *words_for_loss(int error) {
    if (error == ECONNRESET)
        return "closed by the other process or machine";
    return error == ETIMEDOUT ? "no answer: " ZR_WIRE_SILENCE : strerror(error);
}

static void lose_line(zr_line_t *line, const char *why) {
    char reason[512], gap[ZR_GAP_TEXT_BYTES];
    snprintf(reason, sizeof(reason), "the connection to rank 0 is lost (%s)%s", why,
             zr_wire_describe_gap(&line->clock, gap, sizeof(gap)));
    pthread_mutex_lock(&line->lock);
    line->is_lost = true;
    for (zr_tcp_control_t *control = line->controls; control != NULL; control = control->next)
        end_control(control, reason, false);
    pthread_cond_broadcast(&line->changed);
    pthread_mutex_unlock(&line->lock);
}

/* ---- reading ---- */

static zr_tcp_control_t *find_control(zr_line_t *line, uint32_t group) {
    zr_tcp_control_t *control = line->controls;
    while (control != NULL && control->group != group)
        control = control->next;
    return control;
}

/* What was asked has an answer. False: it is none. Lock held. */
static bool take_outcome(zr_tcp_control_t *self, const char *data, size_t length, char *why) {
    zr_outcome_t outcome;
    const char *tail = data + sizeof(outcome);
    size_t tail_bytes = length - sizeof(outcome);
    memcpy(&outcome, data, sizeof(outcome));
    if (self->n_outcomes == self->n_awaited) {
        snprintf(why, ZR_PEER_WHY_BYTES, "the outcome of an unknown meeting");
        return false;
    }
    if (!zr_peer_check_outcome(&outcome, tail, tail_bytes, &self->question, why))
        return false;
    if (outcome.group >= 0 && find_control(self->line, (uint32_t)outcome.group) != NULL) {
        snprintf(why, ZR_PEER_WHY_BYTES, "a new group %d, which exists already", outcome.group);
        return false;
    }
    self->outcome = outcome;
    memcpy(self->payload, tail, tail_bytes);
    self->n_outcomes++;
    pthread_cond_broadcast(&self->line->changed);
    return true;
}

/* False: this is no message of the coordinator, and why. Lock held. */
static bool take_frame(zr_line_t *line, const zr_frame_t *frame, const char *data, char *why) {
    zr_tcp_control_t *control = find_control(line, frame->group);
    zr_end_t end;
    if (frame->kind == ZR_FRAME_WELCOME || frame->kind == ZR_FRAME_REFUSED ||
        frame->kind == ZR_FRAME_CHALLENGE) {
        snprintf(why, ZR_PEER_WHY_BYTES, "a frame of kind %u after the first", frame->kind);
        return false;
    }
    if (frame->kind == ZR_FRAME_ALIVE || control == NULL)
        return true; /* it has left meanwhile */
    if (frame->kind == ZR_FRAME_OUTCOME)
        return take_outcome(control, data, frame->length, why);
    memcpy(&end, data, sizeof(end));
    if (!zr_peer_check_end(&end, control->base.n_ranks, why))
        return false;
    take_end(control, &end);
    return true;
}

static void beat(zr_line_t *line) {
    pthread_mutex_lock(&line->lock);
    /* A failure shows in reading. */
    (void)zr_wire_send(line->socket, &line->seal, ZR_FRAME_ALIVE, 0, NULL, 0);
    pthread_mutex_unlock(&line->lock);
}

/* Receive exactly so many bytes, and beat meanwhile. 0; ECONNRESET; ETIMEDOUT: the coordinator is
 * silent; another errno. */
static int hear(zr_line_t *line, void *data, size_t length) {
    int beat_ms = zr_wire_beat_ms(line->timeout_ms);
    int slice_ms = beat_ms / 2 < ZR_LIVED_SLICE_MS ? beat_ms / 2 : ZR_LIVED_SLICE_MS;
    for (size_t received = 0; received < length;) {
        ssize_t n = zr_wire_receive_some(line->socket, (char *)data + received, length - received,
                                         slice_ms);
        int64_t now = zr_lived_ms(&line->clock);
        if (n < 0)
            return (int)-n;
        received += (size_t)n;
        if (n > 0)
            line->heard_ms = now;
        if (now - line->heard_ms >= zr_wire_silence_ms(line->timeout_ms))
            return ETIMEDOUT;
        if (now < line->beat_ms)
            continue;
        line->beat_ms = now + beat_ms;
        beat(line);
    }
    return 0;
}

/* The next frame, to line->heard: 0; EPROTO, and why[ZR_PEER_WHY_BYTES]; otherwise as hear. */
static int hear_frame(zr_line_t *line, zr_frame_t *frame, char *why) {
    int error = hear(line, frame, sizeof(*frame));
    memcpy(line->heard, frame, sizeof(*frame));
    if (error == 0 && !zr_peer_check_frame(frame, false, line->n_ranks, why))
        error = EPROTO;
    if (error == 0)
        error = hear(line, line->heard + sizeof(*frame), frame->length + line->seal.tag_bytes);
    if (error == 0 && !zr_seal_is_right(&line->seal, line->heard, sizeof(*frame) + frame->length)) {
        snprintf(why, ZR_PEER_WHY_BYTES,
                 "it is not authenticated with the secret, or out of order");
        error = EPROTO;
    }
    line->seal.n_received++;
    return error;
}

static void *reader_main(void *argument) {
    zr_line_t *line = argument;
    char wrong[ZR_PEER_WHY_BYTES] = "", why[ZR_PEER_WHY_BYTES + 64];
    zr_frame_t frame;
    int error = 0;
    while (error == 0) {
        error = hear_frame(line, &frame, wrong);
        pthread_mutex_lock(&line->lock);
        if (error == 0 && !take_frame(line, &frame, line->heard + sizeof(frame), wrong))
            error = EPROTO;
        pthread_mutex_unlock(&line->lock);
    }
    if (error == EPROTO)
        snprintf(why, sizeof(why), "received data that is not a message: %s", wrong);
    else
        snprintf(why, sizeof(why), "%s", words_for_loss(error));
    lose_line(line, why);
    return NULL;
}

/* ---- asking ---- */

/* Lock held. A frame that is not sent shows as a lost connection. */
static void send_locked(zr_tcp_control_t *self, zr_frame_kind_t kind, const void *data,
                        size_t length) {
    if (!self->line->is_lost)
        (void)zr_wire_send(self->line->socket, &self->line->seal, kind, self->group, data, length);
}

/* Send what the coordinator answers with an outcome, and wait for it. @param post  NULL: a later
 * meeting */
static zr_status_t ask(zr_tcp_control_t *self, zr_frame_kind_t kind, const void *data,
                       size_t length, const zr_post_t *post) {
    zr_line_t *line = self->line;
    self->question = (zr_peer_question_t){
        .rank = self->base.rank, .n_ranks = self->base.n_ranks, .origins = self->origins};
    if (post != NULL) {
        self->question.payload_bytes = post->payload_bytes;
        self->question.is_split = post->collective == ZR_SPLIT;
        self->question.color = post->color;
    }
    send_locked(self, kind, data, length);
    self->n_awaited++;
    while (self->n_outcomes != self->n_awaited) {
        /* In a later meeting the others may still need this rank: the coordinator answers in any
         * case. */
        if (self->is_dead && (kind == ZR_FRAME_POST || line->is_lost))
            return ZR_ERR_COMM;
        pthread_cond_wait(&line->changed, &line->lock);
    }
    return (zr_status_t)self->outcome.status;
}

static zr_status_t tcp_arrive(zr_control_t *control, const zr_post_t *post, void *all) {
    zr_tcp_control_t *self = (zr_tcp_control_t *)control;
    if (self->page != NULL) {
        zr_status_t met = zr_near_arrive(self, post, all);
        if (met != ZR_OK || post->collective != ZR_SPLIT)
            return met; /* groups are made by the coordinator */
    }
    self->latest = *post;
    pthread_mutex_lock(&self->line->lock);
    zr_status_t status = ZR_ERR_COMM;
    if (!self->is_dead)
        status = ask(self, ZR_FRAME_POST, post, sizeof(*post), post);
    self->split = self->outcome;
    if (status != ZR_OK && post->collective != ZR_SPLIT)
        status = ZR_ERR_COMM;
    self->split.status = status;
    if (status == ZR_OK && post->payload_bytes > 0)
        memcpy(all, self->payload, (size_t)control->n_ranks * post->payload_bytes);
    pthread_mutex_unlock(&self->line->lock);
    /* No memory for groups is the split's outcome, behind an arrival that went well. */
    return status == ZR_ERR_MEMORY ? ZR_OK : status;
}

static zr_status_t tcp_meet(zr_control_t *control, zr_status_t status) {
    zr_tcp_control_t *self = (zr_tcp_control_t *)control;
    int32_t brought = status;
    if (self->page != NULL)
        return zr_near_meet(self, status);
    pthread_mutex_lock(&self->line->lock);
    zr_status_t outcome = ask(self, ZR_FRAME_MEET, &brought, sizeof(brought), NULL);
    pthread_mutex_unlock(&self->line->lock);
    return outcome;
}

/* ---- a page ---- */

void zr_control_offer_page(zr_control_t *control, zr_page_place_t *place_p) {
    zr_tcp_control_t *self = (zr_tcp_control_t *)control;
    *place_p = (zr_page_place_t){.descriptor = -1};
    if (control->rank == 0 && self->offered == NULL)
        self->offered = zr_page_create(control->n_ranks, 0, place_p);
}

int zr_control_take_page(zr_control_t *control, const zr_page_place_t *place) {
    zr_tcp_control_t *self = (zr_tcp_control_t *)control;
    int error = place->descriptor < 0 ? ENOMEM : 0;
    if (error == 0 && control->rank > 0)
        error = zr_page_open(place, control->n_ranks, control->rank, &self->offered);
    if (error == 0)
        self->membership = malloc(zr_membership_bytes(control->n_ranks));
    if (error == 0 && self->membership == NULL)
        error = ENOMEM;
    if (error == 0)
        zr_membership_init(self->membership, control->n_ranks, control->is_nested, self->origins);
    return error;
}

atomic_size_t *zr_control_page_count(zr_control_t *control, int rank) {
    zr_tcp_control_t *self = (zr_tcp_control_t *)control;
    return self->page == NULL ? NULL : zr_page_count(self->page, rank);
}

void zr_control_use_page(zr_control_t *control, bool all_have_it) {
    zr_tcp_control_t *self = (zr_tcp_control_t *)control;
    if (!all_have_it) {
        zr_page_close(&self->offered);
        return;
    }
    zr_page_seal(self->offered);
    zr_page_show(self->offered, &self->latest);
    pthread_mutex_lock(&self->line->lock);
    self->page = self->offered;
    self->offered = NULL;
    send_locked(self, ZR_FRAME_APART, NULL, 0);
    if (self->is_dead)
        zr_page_end(self->page);
    pthread_mutex_unlock(&self->line->lock);
}

static void tcp_kill(zr_control_t *control, const char *reason) {
    zr_tcp_control_t *self = (zr_tcp_control_t *)control;
    pthread_mutex_lock(&self->line->lock);
    if (!self->is_dead)
        send_locked(self, ZR_FRAME_KILL, reason, strlen(reason) + 1);
    end_control(self, reason, false);
    pthread_mutex_unlock(&self->line->lock);
}

static const char *tcp_death(zr_control_t *control, bool *has_left_p) {
    zr_tcp_control_t *self = (zr_tcp_control_t *)control;
    pthread_mutex_lock(&self->line->lock);
    bool is_dead = self->is_dead;
    if (is_dead && has_left_p != NULL)
        *has_left_p = self->has_left;
    pthread_mutex_unlock(&self->line->lock);
    return is_dead ? self->reason : NULL;
}

static atomic_bool *tcp_has_told(zr_control_t *control) {
    return &((zr_tcp_control_t *)control)->line->has_told;
}

/* ---- life ---- */

static const zr_control_backend_t tcp_backend;

static void free_control(zr_tcp_control_t *self) {
    free(self->membership);
    free(self->payload);
    free(self->origins);
    free(self);
}

/* @param origins  [n_ranks], copied; NULL: the first communicator */
static zr_tcp_control_t *create_control(zr_line_t *line, uint32_t group, const zr_control_t *base,
                                        const void *origins) {
    zr_tcp_control_t *self = calloc(1, sizeof(*self));
    if (self == NULL)
        return NULL;
    self->payload = malloc((size_t)base->n_ranks * ZR_PAYLOAD_BYTES);
    self->origins = malloc((size_t)base->n_ranks * sizeof(*self->origins));
    if (self->payload == NULL || self->origins == NULL) {
        free_control(self);
        return NULL;
    }
    for (int rank = 0; rank < base->n_ranks; rank++)
        self->origins[rank] = rank;
    if (origins != NULL)
        memcpy(self->origins, origins, (size_t)base->n_ranks * sizeof(*self->origins));
    self->base = *base;
    self->base.backend = &tcp_backend;
    self->line = line;
    self->group = group;
    self->gone = -1;
    self->next = line->controls;
    line->controls = self;
    if (line->is_lost)
        end_control(self, "the connection to rank 0 is lost", false);
    return self;
}

static void close_socket(int socket) {
    if (socket >= 0)
        close(socket);
}

static void free_line(zr_line_t *line) {
    close_socket(line->socket);
    zr_coordinator_stop(&line->coordinator);
    if (line->controls != NULL)
        free_control(line->controls);
    pthread_cond_destroy(&line->changed);
    pthread_mutex_destroy(&line->lock);
    free(line->heard);
    explicit_bzero(line, sizeof(*line)); /* it has the secret */
    free(line);
}

/* All is said: the coordinator closes when it has read it. */
static void close_line(zr_line_t *line) {
    struct timeval limit = {.tv_sec = LAST_WORDS_MS / 1000};
    (void)setsockopt(line->socket, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
    (void)shutdown(line->socket, SHUT_WR);
    zr_lived_t clock = {0};
    pthread_mutex_lock(&line->lock);
    while (!line->is_lost && zr_lived_ms(&clock) < LAST_WORDS_MS)
        zr_lived_wait(&line->changed, &line->lock, ZR_LIVED_SLICE_MS);
    pthread_mutex_unlock(&line->lock);
    (void)shutdown(line->socket, SHUT_RDWR); /* ends the reader */
    pthread_join(line->reader, NULL);
    free_line(line);
}

static void tcp_destroy(zr_control_t *control) {
    zr_tcp_control_t *self = (zr_tcp_control_t *)control;
    zr_line_t *line = self->line;
    pthread_mutex_lock(&line->lock);
    send_locked(self, ZR_FRAME_LEAVE, NULL, 0);
    zr_tcp_control_t **link = &line->controls;
    while (*link != self)
        link = &(*link)->next;
    *link = self->next;
    bool is_last = line->controls == NULL;
    pthread_mutex_unlock(&line->lock);
    zr_page_close(&self->page);
    zr_page_close(&self->offered);
    free_control(self);
    if (is_last)
        close_line(line);
}

static void tcp_forget(zr_control_t *control) {
    zr_line_t *line = ((zr_tcp_control_t *)control)->line;
    close_socket(line->socket);
    line->socket = -1; /* of the fork's copy, which groups have, too */
    if (line->coordinator != NULL)
        zr_coordinator_forget(line->coordinator);
    line->coordinator = NULL;
}

static zr_status_t tcp_open_group(zr_control_t *control, int color, zr_control_t **group_p) {
    zr_tcp_control_t *self = (zr_tcp_control_t *)control;
    zr_tcp_control_t *group = NULL;
    zr_control_t base = {.rank = self->split.rank,
                         .n_ranks = self->split.n_ranks,
                         .origin_rank = control->origin_rank,
                         .is_nested = true};
    zr_status_t status = (zr_status_t)self->split.status;
    pthread_mutex_lock(&self->line->lock);
    if (status == ZR_OK && color >= 0) {
        group = create_control(self->line, (uint32_t)self->split.group, &base, self->payload);
        status = group != NULL ? ZR_OK : ZR_ERR_MEMORY;
    }
    pthread_mutex_unlock(&self->line->lock);
    zr_status_t outcome = tcp_meet(control, status);
    if (outcome != ZR_OK && group != NULL)
        tcp_destroy(&group->base);
    else if (outcome == ZR_OK)
        *group_p = group != NULL ? &group->base : NULL;
    return outcome;
}

/* ---- beginning ---- */

void zr_control_tcp_place(const zr_control_t *control, zr_control_place_t *place_p) {
    const zr_line_t *line = ((const zr_tcp_control_t *)control)->line;
    *place_p = (zr_control_place_t){.secret = &line->secret, .n_ranks = line->n_ranks};
    bool is_for_all = strcmp(line->bind, "0.0.0.0") == 0 || strcmp(line->bind, "::") == 0;
    snprintf(place_p->bind, sizeof(place_p->bind), "%s", line->bind);
    zr_wire_describe_address(line->socket, false, place_p->own);
    zr_wire_describe_address(line->socket, true, place_p->coordinator);
    if (line->is_bound && !is_for_all)
        snprintf(place_p->own, sizeof(place_p->own), "%s", line->bind);
    else if (strncmp(place_p->own, "127.", 4) == 0 || strcmp(place_p->own, "::1") == 0)
        place_p->own[0] = '\0'; /* rank 0's machine is this one */
    if (place_p->coordinator[0] == '\0')
        snprintf(place_p->coordinator, sizeof(place_p->coordinator), "127.0.0.1");
}

const int *zr_control_tcp_origins(const zr_control_t *control) {
    return ((const zr_tcp_control_t *)control)->origins;
}

static int start_ms(const zr_launch_t *launch, const zr_line_t *line) {
    return launch->start_timeout_ms > 0 ? launch->start_timeout_ms : line->timeout_ms;
}

/* Rank 0: the coordinator, and a connection to it within the process. */
static zr_status_t open_coordinator(const zr_launch_t *launch, int listener, const zr_log_t *log,
                                    zr_line_t *line) {
    zr_coordinator_options_t options = {.log = *log,
                                        .listener = listener,
                                        .secret = launch->secret,
                                        .n_ranks = launch->n_ranks,
                                        .gather_ms = start_ms(launch, line),
                                        .timeout_ms = line->timeout_ms};
    int port = launch->port, error = 0;
    if (listener < 0)
        error = zr_wire_listen(line->bind, launch->port, &options.listener, &port);
    if (error != 0)
        return zr_fail(
            log, ZR_ERR_COMM, "rank 0 cannot listen at MASTER_PORT %d of %s: %s; %s", launch->port,
            line->bind[0] != '\0' ? line->bind : "this machine", strerror(error),
            error == EADDRNOTAVAIL ? "give an address of this machine with --comm-bind, as a number"
                                   : "choose another one, the same for all ranks");
    snprintf(options.place, sizeof(options.place), "%s:%d", launch->host, port);
    if (!launch->secret.is_given)
        zr_log_write(log, ZR_LOG_INFO,
                     "%s is open: anybody who can reach this port can join or end the run; give "
                     "all ranks the same --comm-secret FILE (docs/guide/clusters.md)",
                     options.place);
    return zr_coordinator_start(&options, &line->coordinator, &line->socket);
}

/* Who it is, when it is asked, and in the way that it is asked. 0; EPROTO, and why; another errno.
 */
static int say_hello(const zr_launch_t *launch, zr_line_t *line, char *why) {
    zr_challenge_t challenge;
    zr_hello_t hello = {.rank = launch->rank, .n_ranks = launch->n_ranks};
    zr_frame_t frame;
    line->beat_ms = INT64_MAX; /* nothing is said before */
    int error = hear_frame(line, &frame, why);
    line->beat_ms = 0;
    if (error == 0 && frame.kind != ZR_FRAME_CHALLENGE)
        error = EPROTO;
    if (error != 0)
        return error;
    memcpy(&challenge, line->heard + sizeof(frame), sizeof(challenge));
    if (!zr_wire_answer(&line->seal, &line->secret, &challenge, &hello, why))
        return EPROTO;
    return zr_wire_send(line->socket, &line->seal, ZR_FRAME_HELLO, 0, &hello, sizeof(hello));
}

/* Every other rank: a connection. */
static zr_status_t connect_to_coordinator(const zr_launch_t *launch, int socket,
                                          const zr_log_t *log, zr_line_t *line) {
    const char *detail = NULL;
    int error = 0;
    line->socket = socket;
    if (socket < 0)
        error = zr_wire_connect(launch->host, launch->port, start_ms(launch, line), &line->socket,
                                &detail);
    if (error != 0)
        return zr_fail(log, ZR_ERR_COMM,
                       "rank 0 cannot be reached at MASTER_ADDR %s, MASTER_PORT %d, for %d ms: %s; "
                       "is its process running, and the port open?",
                       launch->host, launch->port, start_ms(launch, line),
                       detail != NULL ? detail : strerror(error));
    zr_wire_guard(line->socket, line->timeout_ms);
    return ZR_OK;
}

/* Say hello, which rank 0 itself does not, and wait until all have come. */
static zr_status_t await_welcome(const zr_launch_t *launch, const zr_log_t *log, zr_line_t *line) {
    char why[ZR_PEER_WHY_BYTES] = "no message came from it";
    zr_frame_t frame = {.kind = ZR_FRAME_ALIVE};
    int error = launch->rank > 0 ? say_hello(launch, line, why) : 0;
    while (error == 0 && frame.kind == ZR_FRAME_ALIVE)
        error = hear_frame(line, &frame, why);
    if (error == 0 && frame.kind == ZR_FRAME_WELCOME)
        return ZR_OK;
    if (error == 0 && frame.kind == ZR_FRAME_REFUSED) {
        char *text = line->heard + sizeof(frame);
        zr_peer_clean(text, frame.length);
        return zr_fail(log, ZR_ERR_COMM, "%s", text);
    }
    return zr_fail(log, ZR_ERR_COMM,
                   "%s:%d does not answer like rank 0 of this run: %s; has its process ended, or "
                   "does another program or version listen there%s?",
                   launch->host, launch->port,
                   error != 0 && error != EPROTO ? words_for_loss(error) : why,
                   launch->secret.is_given ? ", or does it have another secret" : "");
}

/* The connection, and its reader, which finds the first communicator's control there. */
static zr_status_t open_line(const zr_launch_t *launch, int socket, const zr_log_t *log,
                             zr_line_t *line) {
    zr_control_t base = {
        .rank = launch->rank, .n_ranks = launch->n_ranks, .origin_rank = launch->rank};
    if (create_control(line, 0, &base, NULL) == NULL) {
        close_socket(socket);
        return zr_fail(log, ZR_ERR_MEMORY, "no memory for the state of %d ranks", launch->n_ranks);
    }
    zr_status_t status = launch->rank == 0 ? open_coordinator(launch, socket, log, line)
                                           : connect_to_coordinator(launch, socket, log, line);
    ZR_THEN(status, await_welcome(launch, log, line));
    if (status == ZR_OK && pthread_create(&line->reader, NULL, reader_main, line) != 0)
        status =
            zr_fail(log, ZR_ERR_MEMORY, "no memory for the thread that receives from other ranks");
    return status;
}

static zr_status_t check_launch(const zr_launch_t *launch, const zr_log_t *log) {
    if (launch->n_ranks < 2 || launch->n_ranks > ZR_MAX_SUM_SOURCES || launch->rank < 0 ||
        launch->rank >= launch->n_ranks || launch->port < 1 || launch->port > 65535)
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "launch: rank %d of %d, port %d; there must be 2 to %d ranks, from 0, and a "
                       "port from 1 to 65535",
                       launch->rank, launch->n_ranks, launch->port, ZR_MAX_SUM_SOURCES);
    return ZR_OK;
}

zr_status_t zr_control_create_tcp(const zr_launch_t *launch, int socket, const zr_log_t *log,
                                  int timeout_ms, zr_control_t **control_p) {
    if (socket < 0)
        ZR_TRY(check_launch(launch, log));
    zr_line_t *line = calloc(1, sizeof(*line));
    char *heard =
        malloc(sizeof(zr_frame_t) + ZR_WIRE_MOST_FROM_HUB(launch->n_ranks) + ZR_SEAL_BYTES);
    if (line == NULL || heard == NULL || !zr_lived_init(&line->lock, &line->changed)) {
        close_socket(socket);
        free(heard);
        free(line);
        return zr_fail(log, ZR_ERR_MEMORY, "no memory for the connection to other ranks");
    }
    line->socket = -1;
    line->heard = heard;
    line->n_ranks = launch->n_ranks;
    line->secret = launch->secret;
    line->is_bound = launch->bind[0] != '\0';
    snprintf(line->bind, sizeof(line->bind), "%s", launch->bind);
    if (!line->is_bound)
        zr_wire_own_address(launch->host, line->bind);
    line->timeout_ms = timeout_ms;
    zr_status_t status = open_line(launch, socket, log, line);
    if (status != ZR_OK) {
        free_line(line);
        return status;
    }
    *control_p = &line->controls->base;
    return ZR_OK;
}

static const zr_control_backend_t tcp_backend = {
    .arrive = tcp_arrive,
    .meet = tcp_meet,
    .open_group = tcp_open_group,
    .kill = tcp_kill,
    .death = tcp_death,
    .has_told = tcp_has_told,
    .destroy = tcp_destroy,
    .forget = tcp_forget,
};
