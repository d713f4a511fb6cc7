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
#include "zero/comm/mpi/mpi_site.h"
#include "zero/comm/wire_internal.h"

enum {
    TRY_MS = 500,    /* to connect, until the communicator is looked at */
    HELLO_MS = 2000, /* for who has connected to say who it is */
    WORD_MS = 2000   /* for the communicator's own word on a rank whose connection has ended */
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
    int listener; /* -1: none */
    int timeout_ms;
    char hub[ZR_ADDRESS_BYTES];       /* of rank 0's machine */
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

static void close_listener(zr_links_t *links) {
    if (links->listener >= 0)
        close(links->listener);
    links->listener = -1;
}

zr_links_t *zr_links_create(zr_control_t *control, int timeout_ms, zr_link_place_t *place_p) {
    zr_links_t *links = calloc(1, sizeof(*links));
    int port = 0;
    if (links == NULL)
        return NULL;
    for (int rank = 0; rank < ZR_MAX_SUM_SOURCES; rank++)
        links->links[rank].socket = -1;
    links->timeout_ms = timeout_ms;
    *place_p = (zr_link_place_t){0};
    zr_control_tcp_addresses(control, place_p->address, links->hub);
    if (zr_wire_listen(0, &links->listener, &port) != 0)
        links->listener = -1;
    place_p->port = links->listener >= 0 ? port : 0;
    return links;
}

void zr_links_cut(zr_links_t *links) {
    for (int rank = 0; rank < ZR_MAX_SUM_SOURCES; rank++)
        close_link(&links->links[rank]);
    close_listener(links);
}

void zr_links_destroy(zr_links_t **links) {
    if (*links == NULL)
        return;
    zr_links_cut(*links);
    free(*links);
    *links = NULL;
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

/* To a rank that listens: in short attempts, since the communicator may end meanwhile. */
static zr_status_t connect_to(zr_links_t *links, zr_control_t *control, const zr_card_t *own,
                              const zr_card_t *card, const zr_link_place_t *place) {
    zr_link_hello_t hello = {.magic = ZR_LINK_MAGIC,
                             .proof = card->proof,
                             .rank = own->origin_rank,
                             .version = ZR_WIRE_VERSION};
    const char *address = place->address[0] != '\0' ? place->address : links->hub, *detail = NULL;
    char other[ZR_RANK_TEXT_BYTES];
    int socket = -1, error = EHOSTUNREACH;
    if (place->port == 0) {
        zr_control_kill(
            control, "cannot reach %s, which has no port for data of other machines",
            zr_control_describe_other(control, card->origin_rank, other, sizeof(other)));
        return ZR_ERR_COMM;
    }
    for (int tried_ms = 0;
         error != 0 && tried_ms < links->timeout_ms && !zr_control_is_dead(control);
         tried_ms += TRY_MS)
        error = zr_wire_connect(address, place->port, TRY_MS, &socket, &detail);
    if (error == 0 && send(socket, &hello, sizeof(hello), MSG_NOSIGNAL) == (ssize_t)sizeof(hello))
        return adopt_socket(links, card->origin_rank, socket);
    error = error != 0 ? error : errno;
    if (socket >= 0)
        close(socket);
    zr_control_kill(control,
                    "cannot connect to %s at %s:%d for data: %s; ranks of several "
                    "machines have to reach each other at all ports, or be started by "
                    "MPI's launcher (docs/clusters.md)",
                    zr_control_describe_other(control, card->origin_rank, other, sizeof(other)),
                    address, place->port, detail != NULL ? detail : strerror(error));
    return ZR_ERR_COMM;
}

/* Take one connection. Who does not know this rank's number is no rank of this run; whoever does
 * has to be one that is awaited. */
static zr_status_t accept_one(zr_links_t *links, zr_control_t *control,
                              const zr_machines_t *machines, int *n_missing) {
    zr_link_hello_t hello;
    int socket = accept4(links->listener, NULL, NULL, SOCK_CLOEXEC);
    if (socket < 0)
        return ZR_OK;
    zr_wire_no_delay(socket);
    int error = zr_wire_receive(socket, &hello, sizeof(hello), HELLO_MS);
    if (error != 0 || zr_peer_is_stranger(&hello, machines->cards[machines->rank].proof)) {
        close(socket);
        return ZR_OK;
    }
    for (int rank = machines->rank + 1; rank < machines->n_ranks; rank++) {
        if (hello.version != ZR_WIRE_VERSION || hello.rank != machines->cards[rank].origin_rank ||
            zr_machines_is_neighbour(machines, rank) || links->links[hello.rank].socket >= 0)
            continue;
        *n_missing -= 1;
        return adopt_socket(links, hello.rank, socket);
    }
    close(socket);
    zr_control_kill_for_peer(control, hello.rank,
                             "a connection for data that it is not to make, or has made before");
    return ZR_ERR_COMM;
}

static int first_missing(const zr_links_t *links, const zr_machines_t *machines) {
    int rank = machines->rank + 1;
    while (zr_machines_is_neighbour(machines, rank) ||
           links->links[machines->cards[rank].origin_rank].socket >= 0)
        rank++;
    return machines->cards[rank].origin_rank;
}

/* Ranks with higher numbers come by themselves. */
static zr_status_t await_others(zr_links_t *links, zr_control_t *control,
                                const zr_machines_t *machines) {
    zr_lived_t clock = {0};
    char other[ZR_RANK_TEXT_BYTES];
    int n_missing = 0;
    for (int rank = machines->rank + 1; rank < machines->n_ranks; rank++)
        n_missing += !zr_machines_is_neighbour(machines, rank);
    while (n_missing > 0) {
        struct pollfd ready = {.fd = links->listener, .events = POLLIN};
        if (poll(&ready, 1, ZR_LIVED_SLICE_MS) > 0)
            ZR_TRY(accept_one(links, control, machines, &n_missing));
        if (n_missing > 0 && zr_lived_ms(&clock) >= links->timeout_ms)
            zr_control_kill(control, "has waited %d ms for %s to connect for data",
                            links->timeout_ms,
                            zr_control_describe_other(control, first_missing(links, machines),
                                                      other, sizeof(other)));
        if (n_missing > 0 && zr_control_is_dead(control))
            return ZR_ERR_COMM;
    }
    return ZR_OK;
}

zr_status_t zr_links_connect(zr_links_t *links, zr_control_t *control,
                             const zr_machines_t *machines, const zr_link_place_t *places) {
    const zr_card_t *own = &machines->cards[machines->rank];
    zr_status_t status = ZR_OK;
    for (int rank = 0; status == ZR_OK && rank < machines->rank; rank++)
        if (!zr_machines_is_neighbour(machines, rank))
            status = connect_to(links, control, own, &machines->cards[rank], &places[rank]);
    ZR_THEN(status, await_others(links, control, machines));
    close_listener(links);
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

/* A connection has ended. Its rank may have been ended by another one's death: what the
 * communicator says of that comes first. */
static void kill_for_loss(zr_control_t *control, int rank, int error) {
    char other[ZR_RANK_TEXT_BYTES];
    zr_lived_t clock = {0};
    struct timespec pause = {.tv_nsec = 5000000};
    while (!zr_control_is_dead(control) && zr_lived_ms(&clock) < WORD_MS)
        nanosleep(&pause, NULL);
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
