/* See links.h. */
#include "zero/comm/mpi/links.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "kernels/kernels.h"
#include "zero/comm/coordinator/door.h"
#include "zero/comm/mpi/mpi_site.h"

enum {
    TRY_MS = 500,  /* to connect, until the communicator is looked at */
    WORD_MS = 2000 /* for the communicator's own word on a rank whose connection has ended */
};

/* Transfers of one direction; the first is under way. */
typedef struct queue {
    zr_mpi_transfer_t *first, **end;
    zr_link_header_t header; /* of the first */
    size_t n_moved;          /* of the header and the first's bytes */
} queue_t;

typedef struct zr_link {
    int socket; /* -1: none */
    queue_t out, in;
} link_t;

struct zr_links {
    zr_door_t door; /* until all are here */
    int timeout_ms;
    zr_control_place_t place;
    link_t links[ZR_MAX_SUM_SOURCES]; /* by rank of the first communicator */
};

/* ---- life ------------------------------------------------------------------------------------ */

static void clear_queue(queue_t *queue) {
    *queue = (queue_t){.end = NULL};
}

static void close_link(link_t *link) {
    if (link->socket >= 0)
        close(link->socket);
    link->socket = -1;
    clear_queue(&link->out);
    clear_queue(&link->in);
}

zr_links_t *zr_links_create(zr_control_t *control, const zr_log_t *log, int timeout_ms,
                            zr_link_place_t *place_p) {
    zr_links_t *links = calloc(1, sizeof(*links));
    int port = 0;
    *place_p = (zr_link_place_t){0};
    if (links == NULL)
        return NULL;
    for (int rank = 0; rank < ZR_MAX_SUM_SOURCES; rank++)
        links->links[rank].socket = -1;
    links->timeout_ms = timeout_ms;
    zr_control_tcp_place(control, &links->place);
    links->door = (zr_door_t){.log = *log,
                              .listener = -1,
                              .secret = links->place.secret,
                              .timeout_ms = timeout_ms,
                              .place = "this rank's port for data"};
    snprintf(place_p->address, sizeof(place_p->address), "%s", links->place.own);
    if (zr_wire_listen(links->place.bind, 0, &links->door.listener, &port) != 0)
        links->door.listener = -1;
    if (!zr_door_open(&links->door)) {
        free(links);
        return NULL;
    }
    place_p->port = links->door.listener >= 0 ? port : 0;
    return links;
}

void zr_links_cut(zr_links_t *links) {
    for (int rank = 0; rank < ZR_MAX_SUM_SOURCES; rank++)
        close_link(&links->links[rank]);
    zr_door_close(&links->door);
}

void zr_links_destroy(zr_links_t **links) {
    if (*links == NULL)
        return;
    zr_links_cut(*links);
    free(*links);
    *links = NULL;
}

/* A connection has ended. Its rank may have been ended by another one's death: what the
 * communicator says of that comes first. */
static void await_word(zr_control_t *control) {
    zr_lived_t clock = {0};
    struct timespec pause = {.tv_nsec = 5000000};
    while (!zr_control_is_dead(control) && zr_lived_ms(&clock) < WORD_MS)
        nanosleep(&pause, NULL);
}

/* ---- connecting ------------------------------------------------------------------------------ */

static zr_status_t adopt_socket(zr_links_t *links, int rank, int socket) {
    int flags = fcntl(socket, F_GETFL);
    if (flags < 0 || fcntl(socket, F_SETFL, flags | O_NONBLOCK) != 0) {
        close(socket);
        return ZR_ERR_COMM;
    }
    zr_wire_guard(socket, links->timeout_ms);
    links->links[rank].socket = socket;
    return ZR_OK;
}

/* While connections are made. */
typedef struct joining {
    zr_links_t *links;
    zr_control_t *control;
    const zr_machines_t *machines;
    const zr_card_t *own;
    int n_missing;    /* of those that connect to this rank */
    zr_lived_t clock; /* the door's, too */
    int64_t until_ms; /* of it, for what is awaited */
} joining_t;

/* Who has said hello. Who does not know this rank's number is none of this communicator; whoever
 * does has to be one that is awaited, and to wait for the answer. */
static void take_in(void *context, zr_connection_t *stranger, const zr_hello_t *hello) {
    joining_t *self = context;
    const zr_machines_t *machines = self->machines;
    char why[ZR_PEER_WHY_BYTES];
    int rank = machines->rank + 1;
    if (hello->proof != self->own->proof) {
        zr_door_show_out(&self->links->door, stranger, "does not know this rank's number");
        return;
    }
    while (rank < machines->n_ranks && (hello->rank != machines->cards[rank].origin_rank ||
                                        zr_machines_is_neighbour(machines, rank)))
        rank++;
    if (rank == machines->n_ranks || stranger->n_received > 0 ||
        !zr_peer_check_hello(hello, self->links->place.n_ranks, why) ||
        self->links->links[hello->rank].socket >= 0) {
        zr_control_kill_for_peer(self->control, hello->rank,
                                 "an unexpected or duplicate connection for data");
        return;
    }
    zr_connection_send(stranger, ZR_FRAME_ALIVE, 0, NULL, 0);
    if (adopt_socket(self->links, hello->rank, stranger->socket) == ZR_OK)
        self->n_missing--;
    stranger->socket = -1;
    zr_connection_close(stranger);
}

/* Let others in, until there is something to be read from a socket, or for a moment. */
static void serve_door(joining_t *self, int socket) {
    struct pollfd polled[ZR_DOOR_POLLED + 1];
    zr_door_fill(&self->links->door, zr_lived_ms(&self->clock), polled);
    polled[ZR_DOOR_POLLED] = (struct pollfd){.fd = socket, .events = POLLIN};
    if (poll(polled, ZR_DOOR_POLLED + 1, ZR_LIVED_SLICE_MS) >= 0)
        zr_door_serve(&self->links->door, zr_lived_ms(&self->clock), polled, take_in, self);
}

static bool is_over(joining_t *self) {
    return zr_lived_ms(&self->clock) >= self->until_ms || zr_control_is_dead(self->control);
}

/* A frame of a known size: 0 or an errno; EPROTO, and why. */
static int receive_frame(joining_t *self, int socket, const zr_seal_t *seal, zr_frame_kind_t kind,
                         char *bytes, size_t size_bytes, char *why) {
    zr_frame_t frame;
    size_t all_bytes = size_bytes + seal->tag_bytes;
    for (size_t received = 0; received < all_bytes;) {
        serve_door(self, socket);
        ssize_t n = zr_wire_receive_some(socket, bytes + received, all_bytes - received, 0);
        if (n < 0 || is_over(self))
            return n < 0 ? (int)-n : ETIMEDOUT;
        received += (size_t)n;
    }
    memcpy(&frame, bytes, sizeof(frame));
    if (!zr_peer_check_frame(&frame, false, self->links->place.n_ranks, why))
        return EPROTO;
    snprintf(why, ZR_PEER_WHY_BYTES, "a frame of kind %u, or of another secret", frame.kind);
    return frame.kind == kind && zr_seal_is_right(seal, bytes, size_bytes) ? 0 : EPROTO;
}

/* Both sides show that they are of this run. */
static int greet(joining_t *self, int socket, uint64_t proof, char *why) {
    char bytes[sizeof(zr_frame_t) + sizeof(zr_challenge_t) + ZR_SEAL_BYTES];
    zr_challenge_t challenge;
    zr_hello_t hello = {
        .rank = self->own->origin_rank, .n_ranks = self->links->place.n_ranks, .proof = proof};
    zr_seal_t seal = {.tag_bytes = 0};
    int error = receive_frame(self, socket, &seal, ZR_FRAME_CHALLENGE, bytes,
                              sizeof(zr_frame_t) + sizeof(challenge), why);
    memcpy(&challenge, bytes + sizeof(zr_frame_t), sizeof(challenge));
    if (error == 0 && !zr_wire_answer(&seal, self->links->place.secret, &challenge, &hello, why))
        error = EPROTO;
    if (error == 0)
        error = zr_wire_send(socket, &seal, ZR_FRAME_HELLO, 0, &hello, sizeof(hello));
    return error != 0
               ? error
               : receive_frame(self, socket, &seal, ZR_FRAME_ALIVE, bytes, sizeof(zr_frame_t), why);
}

/* To a rank that listens: in short attempts, since the communicator may end meanwhile. */
static zr_status_t connect_to(joining_t *self, const zr_card_t *card,
                              const zr_link_place_t *place) {
    zr_links_t *links = self->links;
    const char *detail = NULL;
    const char *address = place->address[0] != '\0' ? place->address : links->place.coordinator;
    char other[ZR_RANK_TEXT_BYTES], why[ZR_PEER_WHY_BYTES];
    int socket = -1, error = EHOSTUNREACH;
    zr_control_describe_other(self->control, card->origin_rank, other, sizeof(other));
    if (place->port == 0) {
        zr_control_kill(self->control,
                        "cannot reach %s, which has no port for data of other machines", other);
        return ZR_ERR_COMM;
    }
    for (int tried_ms = 0;
         error != 0 && tried_ms < links->timeout_ms && !zr_control_is_dead(self->control);
         tried_ms += TRY_MS)
        error = zr_wire_connect(address, place->port, TRY_MS, &socket, &detail);
    self->until_ms = zr_lived_ms(&self->clock) + links->timeout_ms;
    if (error == 0)
        error = greet(self, socket, card->proof, why);
    if (error == 0)
        return adopt_socket(links, card->origin_rank, socket);
    if (socket >= 0)
        close(socket);
    if (error == EPROTO)
        detail = why;
    await_word(self->control);
    zr_control_kill(
        self->control,
        "cannot connect to %s at %s:%d for data: %s; ranks of several machines must reach each "
        "other at all ports, or be started by MPI's launcher (docs/guide/clusters.md)",
        other, address, place->port, detail != NULL ? detail : strerror(error));
    return ZR_ERR_COMM;
}

static int first_missing(const joining_t *self) {
    const zr_machines_t *machines = self->machines;
    int rank = machines->rank + 1;
    while (zr_machines_is_neighbour(machines, rank) ||
           self->links->links[machines->cards[rank].origin_rank].socket >= 0)
        rank++;
    return machines->cards[rank].origin_rank;
}

/* Ranks with higher numbers come by themselves. */
static zr_status_t await_others(joining_t *self) {
    char other[ZR_RANK_TEXT_BYTES];
    self->until_ms = zr_lived_ms(&self->clock) + self->links->timeout_ms;
    while (self->n_missing > 0) {
        serve_door(self, -1);
        if (self->n_missing > 0 && zr_lived_ms(&self->clock) >= self->until_ms)
            zr_control_kill(self->control, "has waited %d ms for %s to open its data connection",
                            self->links->timeout_ms,
                            zr_control_describe_other(self->control, first_missing(self), other,
                                                      sizeof(other)));
        if (zr_control_is_dead(self->control))
            return ZR_ERR_COMM;
    }
    return ZR_OK;
}

zr_status_t zr_links_connect(zr_links_t *links, zr_control_t *control,
                             const zr_machines_t *machines, const zr_link_place_t *places) {
    joining_t self = {.links = links,
                      .control = control,
                      .machines = machines,
                      .own = &machines->cards[machines->rank]};
    zr_status_t status = ZR_OK;
    for (int rank = machines->rank + 1; rank < machines->n_ranks; rank++)
        self.n_missing += !zr_machines_is_neighbour(machines, rank);
    for (int rank = 0; status == ZR_OK && rank < machines->rank; rank++)
        if (!zr_machines_is_neighbour(machines, rank))
            status = connect_to(&self, &machines->cards[rank], &places[rank]);
    ZR_THEN(status, await_others(&self));
    zr_door_close(&links->door);
    return status;
}

/* ---- data ------------------------------------------------------------------------------------ */

static void start_first(queue_t *queue, bool is_send) {
    queue->n_moved = 0;
    if (queue->first != NULL && is_send)
        queue->header =
            (zr_link_header_t){.magic = ZR_LINK_MAGIC, .size_bytes = queue->first->size_bytes};
}

static void enqueue(queue_t *queue, zr_mpi_transfer_t *transfer) {
    bool was_empty = queue->first == NULL;
    transfer->next = NULL;
    transfer->is_done = false;
    if (was_empty)
        queue->end = &queue->first;
    *queue->end = transfer;
    queue->end = &transfer->next;
    if (was_empty)
        start_first(queue, transfer->is_send);
}

/* Move what the socket takes or has of the first transfer. 0: some was; otherwise an errno, EPROTO
 * with why[ZR_PEER_WHY_BYTES]. */
static int move_some(int socket, queue_t *queue, char *why) {
    zr_mpi_transfer_t *transfer = queue->first;
    bool is_header = queue->n_moved < sizeof(queue->header);
    size_t offset = is_header ? queue->n_moved : queue->n_moved - sizeof(queue->header);
    char *bytes = (is_header ? (char *)&queue->header : (char *)transfer->buffer) + offset;
    size_t left = (is_header ? sizeof(queue->header) : transfer->size_bytes) - offset;
    ssize_t n = transfer->is_send ? send(socket, bytes, left,
                                         MSG_NOSIGNAL | MSG_DONTWAIT | (is_header ? MSG_MORE : 0))
                                  : recv(socket, bytes, left, MSG_DONTWAIT);
    if (n < 0)
        return errno == EWOULDBLOCK || errno == EINTR ? EAGAIN : errno;
    if (n == 0)
        return ECONNRESET;
    queue->n_moved += (size_t)n;
    if (queue->n_moved == sizeof(queue->header) &&
        !zr_peer_check_header(&queue->header, transfer->size_bytes, why))
        return EPROTO;
    if (queue->n_moved == sizeof(queue->header) + transfer->size_bytes) {
        queue->first = transfer->next;
        transfer->is_done = true;
        start_first(queue, transfer->is_send);
    }
    return 0;
}

/* Move all that can be without waiting. 0, or why the connection has ended. */
static int move_link(link_t *link, bool *has_moved, char *why) {
    queue_t *queues[] = {&link->out, &link->in};
    for (int i = 0; i < 2; i++) {
        while (queues[i]->first != NULL) {
            int error = move_some(link->socket, queues[i], why);
            if (error == EAGAIN)
                break;
            if (error != 0)
                return error;
            *has_moved = true;
        }
    }
    return 0;
}

void zr_links_post(zr_links_t *links, zr_mpi_transfer_t *transfers, size_t n_transfers) {
    for (size_t i = 0; i < n_transfers; i++) {
        link_t *link = &links->links[transfers[i].peer];
        enqueue(transfers[i].is_send ? &link->out : &link->in, &transfers[i]);
    }
}

static void kill_for_loss(zr_control_t *control, int rank, int error) {
    char other[ZR_RANK_TEXT_BYTES];
    await_word(control);
    zr_control_kill(control, "has lost the connection for data to %s: %s",
                    zr_control_describe_other(control, rank, other, sizeof(other)),
                    strerror(error));
}

/* Move on all links, and fill `polled` with those that wait. How many, or -1 where one is lost. */
static int move_all(zr_links_t *links, zr_control_t *control, struct pollfd *polled,
                    bool *has_moved) {
    int n = 0;
    for (int rank = 0; rank < ZR_MAX_SUM_SOURCES; rank++) {
        link_t *link = &links->links[rank];
        if (link->out.first == NULL && link->in.first == NULL)
            continue;
        char why[ZR_PEER_WHY_BYTES] = "";
        int error = link->socket >= 0 ? move_link(link, has_moved, why) : ECONNRESET;
        if (why[0] != '\0')
            zr_control_kill_for_peer(control, rank, why);
        else if (error != 0)
            kill_for_loss(control, rank, error);
        if (error != 0)
            return -1;
        short events = (short)((link->out.first != NULL ? POLLOUT : 0) |
                               (link->in.first != NULL ? POLLIN : 0));
        if (events != 0)
            polled[n++] = (struct pollfd){.fd = link->socket, .events = events};
    }
    return n;
}

zr_status_t zr_links_wait(zr_links_t *links, zr_control_t *control, zr_mpi_transfer_t *transfers,
                          size_t n_transfers) {
    struct pollfd polled[ZR_MAX_SUM_SOURCES];
    zr_lived_t clock = {0};
    (void)n_transfers; /* all that were posted are waited for */
    for (;;) {
        bool has_moved = false;
        int n = move_all(links, control, polled, &has_moved);
        if (n == 0)
            return ZR_OK;
        if (has_moved)
            clock = (zr_lived_t){0};
        if (zr_lived_ms(&clock) >= links->timeout_ms && n > 0)
            zr_mpi_kill_for_lateness(control, transfers, links->timeout_ms, "");
        if (n < 0 || zr_control_is_dead(control)) {
            zr_links_cut(links);
            return ZR_ERR_COMM;
        }
        (void)poll(polled, (nfds_t)n, ZR_LIVED_SLICE_MS);
    }
}
