/*
 * The communicator `processes`: ranks are processes, their tensors in host memory.
 *
 * Ranks of one machine read each other's memory (machines.h), as those of `threads` do: a
 * collective is an agreement on the call (control.h), large copies and sums, and a meeting at the
 * end, because a returned tensor may be overwritten or freed. What crosses machines goes point to
 * point through MPI (mpi_site.h), or over connections of our own where MPI's launcher has not
 * started the ranks (links.h): slices that another rank sums straight to it, and what several ranks
 * of a machine need once to one of them, from which its neighbours read it.
 *
 * A sum is made in pieces, source by source in rank order. While a piece is summed, the next one
 * comes from the other machines.
 *
 * What ends a call early happens at its beginning. A rank that has come through that comes to the
 * end as well, with its error if it has one, so that no tensor is freed while another rank reads
 * it.
 */
#include <errno.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "kernels/host/host_pool.h"
#include "kernels/kernels.h"
#include "zero/comm/mpi/links.h"
#include "zero/comm/mpi/machines.h"
#include "zero/comm/mpi/mpi_site.h"
#include "zero/comm/mpi/views.h"
#include "zero/comm/pass_internal.h"

enum {
    ALL_PIECES_BYTES = 1 << 20,   /* of neighbours' pieces that are summed together: a cache */
    MOST_PIECE_BYTES = 512 << 10, /* of one source, for each thread */
    LEAST_PIECE_BYTES = 16 << 10, /* less costs more to ask for than to copy */
    LIMIT_PIECE_BYTES = 8 << 20,  /* of one source, however many threads there are */
    READ_TASK_BYTES = 512 << 10,  /* of a thread's reading */
    MESSAGE_BYTES = 16 << 20      /* of what goes through MPI in one */
};

_Static_assert(sizeof(zr_introduction_t) <= ZR_PAYLOAD_BYTES, "a post carries it");

typedef struct mpi_comm {
    zr_comm_t base;
    zr_mpi_site_t *site; /* NULL: ranks were not started by MPI's launcher */
    zr_links_t *links;   /* instead, where there are several machines; else NULL */
    uint64_t proof;      /* for zr_card_t */
    int tag;             /* of its transfers */
    int n_groups;        /* split from it so far */
    bool is_known;       /* who is where: since the first call with data */
    zr_machines_t machines;
    bool has_views; /* all neighbours, and there are no other ranks, have mapped each other */
    zr_pass_t pass;
    size_t piece_bytes; /* of a source, in a sum */
    char *pieces;       /* [2, or 1 on one machine][n_ranks][piece_bytes]; NULL until there
                           is a sum */
    zr_mpi_transfer_t *transfers; /* [n_transfers_room] */
    size_t n_transfers, n_transfers_room;
    bool is_exchanging; /* they are posted, and not known to be done */
    /* [n_ranks] each, behind the handle: */
    zr_introduction_t *introductions;
    zr_peer_tensors_t *peers; /* where all ranks' tensors are in the call under way */
    zr_card_t *cards;
    const void **sources;
    int *arrays; /* of machines */
    zr_view_t *views;
    uint64_t *file_bytes; /* as all ranks have followed them */
} mpi_comm_t;

/* ---- who is where ---------------------------------------------------------------------------- */

/* Pieces of all sources together fit a cache, and the workspace twice. As every rank sees it. */
static size_t choose_piece_bytes(const mpi_comm_t *self) {
    size_t n_ranks = (size_t)self->base.n_ranks, n_threads = 1;
    for (int rank = 0; rank < self->base.n_ranks; rank++)
        if ((size_t)self->cards[rank].n_threads > n_threads)
            n_threads = (size_t)self->cards[rank].n_threads;
    size_t bytes = ALL_PIECES_BYTES / (n_ranks - 1);
    bytes = bytes < MOST_PIECE_BYTES ? bytes : MOST_PIECE_BYTES;
    bytes = bytes > LEAST_PIECE_BYTES ? bytes : LEAST_PIECE_BYTES;
    bytes *= n_threads;
    bytes = bytes < LIMIT_PIECE_BYTES ? bytes : LIMIT_PIECE_BYTES;
    return bytes / 4096 * 4096;
}

static void warn_of_apartness(const mpi_comm_t *self, int rank, int error) {
    zr_log_write(
        &self->base.options.log, ZR_LOG_WARNING,
        "communicator \"processes\": the memory of rank %d, of the same machine, cannot be read "
        "(process_vm_readv: %s): all data goes through MPI, which is slower. It is allowed "
        "by /proc/sys/kernel/yama/ptrace_scope 0 or 1, and in a container by the "
        "capability SYS_PTRACE",
        rank, strerror(error));
}

/* Where MPI's launcher has not started the ranks: connections between machines, if there are
 * several. */
static zr_status_t connect_machines(mpi_comm_t *self) {
    int n_ranks = self->base.n_ranks;
    if (self->machines.n_machines == 1)
        zr_links_destroy(&self->links);
    if (self->site != NULL || self->machines.n_machines == 1)
        return ZR_OK;
    zr_link_place_t *places = malloc((size_t)n_ranks * sizeof(*places));
    zr_status_t status = places != NULL && self->links != NULL ? ZR_OK : ZR_ERR_COMM;
    if (status != ZR_OK)
        zr_control_kill(self->base.control, "has no memory for connections to %d ranks", n_ranks);
    for (int rank = 0; status == ZR_OK && rank < n_ranks; rank++)
        places[rank] = self->introductions[rank].place;
    ZR_THEN(status, zr_links_connect(self->links, self->base.control, &self->machines, places));
    free(places);
    return zr_control_meet(&self->base, status);
}

/* Ranks of one machine meet in a page, if all can. */
static zr_status_t meet_in_page(mpi_comm_t *self) {
    if (self->machines.n_machines > 1)
        return ZR_OK;
    int error = zr_control_take_page(self->base.control, &self->introductions[0].page);
    if (error == ESTALE)
        zr_control_kill_for_peer(self->base.control, self->cards[0].origin_rank,
                                 "a page for meetings that is not where or what it says");
    zr_status_t outcome = zr_control_meet(&self->base, error == 0 ? ZR_OK : ZR_ERR_UNSUPPORTED);
    if (error != 0)
        zr_log_write(&self->base.options.log, ZR_LOG_INFO,
                     "communicator \"processes\": no memory for meetings (%s): ranks meet over TCP",
                     strerror(error));
    zr_control_use_page(self->base.control, outcome == ZR_OK);
    return outcome == ZR_ERR_UNSUPPORTED ? ZR_OK : outcome;
}

/*
 * Read the cards. Whether neighbours can read each other is agreed on, so that sender and receiver
 * think the same; if any cannot, every rank is a machine of its own.
 */
static zr_status_t get_to_know(mpi_comm_t *self) {
    int n_ranks = self->base.n_ranks, unreadable = -1;
    zr_machines_fill(&self->machines, self->arrays, self->base.rank, n_ranks, self->cards, false);
    int error = zr_machines_try(&self->machines, &unreadable);
    if (error != 0)
        warn_of_apartness(self, unreadable, error);
    zr_status_t outcome = zr_control_meet(&self->base, error == 0 ? ZR_OK : ZR_ERR_UNSUPPORTED);
    if (outcome != ZR_OK && outcome != ZR_ERR_UNSUPPORTED)
        return outcome;
    if (outcome == ZR_ERR_UNSUPPORTED)
        zr_machines_fill(&self->machines, self->arrays, self->base.rank, n_ranks, self->cards,
                         true);
    self->piece_bytes = choose_piece_bytes(self);
    self->has_views = self->machines.n_machines == 1;
    for (int rank = 0; rank < n_ranks; rank++)
        self->has_views = self->has_views && self->cards[rank].file.descriptor >= 0;
    self->is_known = true;
    ZR_TRY(meet_in_page(self));
    return connect_machines(self);
}

static bool is_view_current(const mpi_comm_t *self, int rank) {
    return rank == self->base.rank || self->views[rank].size_bytes == self->peers[rank].file_bytes;
}

/* Map what neighbours have reserved since the call before. All ranks know when there is something
 * to be mapped; whether all can is agreed on. */
static zr_status_t follow_views(mpi_comm_t *self) {
    int n_ranks = self->base.n_ranks, rank = 0, error = 0;
    bool are_current = true;
    for (int other = 0; other < n_ranks; other++)
        are_current = are_current && self->peers[other].file_bytes == self->file_bytes[other];
    if (!self->has_views || are_current)
        return ZR_OK;
    for (rank = 0; rank < n_ranks && error == 0; rank++)
        if (!is_view_current(self, rank))
            error =
                zr_views_open(&self->views[rank], &self->cards[rank], self->peers[rank].file_bytes);
    if (error == ESTALE)
        zr_control_kill_for_peer(self->base.control, self->cards[rank - 1].origin_rank,
                                 "a memory file that is not where or what it says");
    if (error != 0)
        zr_log_write(
            &self->base.options.log, ZR_LOG_WARNING,
            "communicator \"processes\": the memory of rank %d cannot be mapped (%s): it is "
            "copied through the kernel, which is slower",
            rank - 1, strerror(error));
    zr_status_t outcome = zr_control_meet(&self->base, error == 0 ? ZR_OK : ZR_ERR_UNSUPPORTED);
    for (int other = 0; other < n_ranks; other++)
        self->file_bytes[other] = self->peers[other].file_bytes;
    self->has_views = outcome == ZR_OK;
    if (outcome == ZR_ERR_UNSUPPORTED)
        zr_views_close(self->views, n_ranks);
    return outcome == ZR_ERR_UNSUPPORTED ? ZR_OK : outcome;
}

static size_t sent_bytes(const mpi_comm_t *self, const zr_comm_call_t *call) {
    bool is_of_all = call->collective == ZR_REDUCE_SCATTER || call->collective == ZR_ALL_TO_ALL;
    size_t n_parts = is_of_all ? (size_t)self->base.n_ranks : 1;
    return n_parts * call->n_elems * zr_dtype_size(call->message.dtype);
}

static size_t received_bytes(const mpi_comm_t *self, const zr_comm_call_t *call) {
    bool is_of_all = call->collective == ZR_ALL_GATHER || call->collective == ZR_ALL_TO_ALL;
    size_t n_parts = is_of_all ? (size_t)self->base.n_ranks : 1;
    return n_parts * call->n_elems * zr_dtype_size(call->message.dtype);
}

static zr_peer_tensors_t show_tensors(const mpi_comm_t *self, const zr_comm_call_t *call) {
    zr_device_t *device = zr_stream_device(call->stream);
    return (zr_peer_tensors_t){
        .send = (uint64_t)(uintptr_t)call->send,
        .recv = (uint64_t)(uintptr_t)call->recv,
        .send_place = zr_views_place(device, call->send, sent_bytes(self, call)),
        .recv_place = zr_views_place(device, call->recv, received_bytes(self, call)),
        .file_bytes = zr_host_shared_file(device).size_bytes,
    };
}

/* ---- what others show, before it is used ----------------------------------------------------- */

/* What comes back as this rank's own is by the way of rank 0. */
static zr_status_t check_echo(mpi_comm_t *self, const void *own, const void *all,
                              size_t size_bytes) {
    const char *echo = (const char *)all + (size_t)self->base.rank * size_bytes;
    if (memcmp(own, echo, size_bytes) == 0)
        return ZR_OK;
    zr_control_kill_for_peer(self->base.control, zr_control_tcp_origins(self->base.control)[0],
                             "as this rank's own, what this rank has not sent");
    return ZR_ERR_COMM;
}

static zr_status_t check_introductions(mpi_comm_t *self, const zr_introduction_t *own) {
    const int *origins = zr_control_tcp_origins(self->base.control);
    char why[ZR_PEER_WHY_BYTES];
    for (int rank = 0; rank < self->base.n_ranks; rank++) {
        const zr_peer_t peer = {.rank = rank,
                                .origin_rank = origins[rank],
                                .machine_ranks = self->base.options.machine_ranks};
        if (zr_peer_check_introduction(&self->introductions[rank], &peer, why))
            continue;
        zr_control_kill_for_peer(self->base.control, origins[rank], why);
        return ZR_ERR_COMM;
    }
    return check_echo(self, own, self->introductions, sizeof(*own));
}

static zr_status_t check_tensors(mpi_comm_t *self, const zr_comm_call_t *call,
                                 const zr_peer_tensors_t *own) {
    char why[ZR_PEER_WHY_BYTES];
    for (int rank = 0; rank < self->base.n_ranks; rank++) {
        const zr_peer_call_t known = {.send_bytes = sent_bytes(self, call),
                                      .recv_bytes = received_bytes(self, call),
                                      .elem_bytes = zr_dtype_size(call->message.dtype),
                                      .file_bytes = self->file_bytes[rank],
                                      .has_file = self->cards[rank].file.descriptor >= 0};
        if (zr_peer_check_tensors(&self->peers[rank], &known, why))
            continue;
        zr_control_kill_for_peer(self->base.control, self->cards[rank].origin_rank, why);
        return ZR_ERR_COMM;
    }
    return check_echo(self, own, self->peers, sizeof(*own));
}

/* The first meeting of a call; of the first with data, the one where ranks get to know each other.
 */
static zr_status_t arrive(mpi_comm_t *self, const zr_comm_call_t *call) {
    zr_introduction_t own = {.tensors = show_tensors(self, call)};
    atomic_size_t *n_taken = zr_control_page_count(self->base.control, self->base.rank);
    if (n_taken != NULL)
        atomic_store_explicit(n_taken, 0, memory_order_relaxed);
    if (self->is_known) {
        ZR_TRY(
            zr_control_arrive(&self->base, call, &own.tensors, sizeof(own.tensors), self->peers));
        if (check_tensors(self, call, &own.tensors) != ZR_OK || follow_views(self) != ZR_OK)
            return zr_control_refuse(&self->base, call);
        return ZR_OK;
    }
    zr_card_fill(&own.card, &self->proof, self->base.control->origin_rank,
                 self->base.options.machine_ranks, zr_stream_device(call->stream));
    zr_links_destroy(&self->links); /* of a call before, which failed */
    zr_control_offer_page(self->base.control, &own.page);
    if (self->site == NULL)
        self->links = zr_links_create(self->base.control, &self->base.options.log,
                                      self->base.options.timeout_ms, &own.place);
    ZR_TRY(zr_control_arrive(&self->base, call, &own, sizeof(own), self->introductions));
    if (check_introductions(self, &own) != ZR_OK)
        return zr_control_refuse(&self->base, call);
    for (int rank = 0; rank < self->base.n_ranks; rank++) {
        self->peers[rank] = self->introductions[rank].tensors;
        self->cards[rank] = self->introductions[rank].card;
    }
    if (check_tensors(self, call, &own.tensors) != ZR_OK || get_to_know(self) != ZR_OK ||
        follow_views(self) != ZR_OK)
        return zr_control_refuse(&self->base, call);
    return ZR_OK;
}

/* ---- memory that is mapped ------------------------------------------------------------------- */

/* Whether what others touch of every rank's tensors is in their views: as every rank sees it. */
static bool is_in_views(const mpi_comm_t *self, const zr_comm_call_t *call) {
    bool is_in = self->has_views;
    for (int rank = 0; rank < self->base.n_ranks; rank++) {
        const zr_peer_tensors_t *peer = &self->peers[rank];
        is_in = is_in && (call->collective == ZR_ALL_GATHER || peer->send_place != ZR_NOWHERE) &&
                (call->collective == ZR_REDUCE_SCATTER || call->collective == ZR_ALL_TO_ALL ||
                 peer->recv_place != ZR_NOWHERE);
    }
    return is_in;
}

/* Whether ranks can take pieces of each other's parts: all see both of every rank's tensors, and
 * what has been taken. */
static bool is_all_in_views(const mpi_comm_t *self) {
    for (int rank = 0; rank < self->base.n_ranks; rank++)
        if (self->peers[rank].send_place == ZR_NOWHERE ||
            self->peers[rank].recv_place == ZR_NOWHERE)
            return false;
    return true;
}

/* The one step of such a call. Nobody waits in it, so that a rank that has died in it is met, or
 * missed, at its end, and what it has left behind stays as long as it is mapped. */
static zr_status_t move_in_views(mpi_comm_t *self, const zr_comm_call_t *call) {
    bool is_shared = is_all_in_views(self);
    for (int rank = 0; rank < self->base.n_ranks; rank++) {
        const zr_peer_tensors_t *peer = &self->peers[rank];
        self->pass.sends[rank] = zr_views_tensor(&self->views[rank], peer->send_place);
        self->pass.recvs[rank] = zr_views_tensor(&self->views[rank], peer->recv_place);
        self->pass.n_taken[rank] =
            is_shared ? zr_control_page_count(self->base.control, rank) : NULL;
    }
    self->pass.sends[self->base.rank] = call->send;
    self->pass.recvs[self->base.rank] = call->recv;
    return zr_pass_make_part(&self->pass, call);
}

/* ---- neighbours ------------------------------------------------------------------------------ */

typedef struct reading {
    const zr_machines_t *machines;
    int rank;
    char *dst;
    uint64_t src;
    size_t size_bytes;
    atomic_int error;
} reading_t;

static void read_part(void *context, size_t index) {
    reading_t *reading = context;
    size_t offset = index * READ_TASK_BYTES, left = reading->size_bytes - offset;
    int error =
        zr_machines_read(reading->machines, reading->rank, reading->dst + offset,
                         reading->src + offset, left < READ_TASK_BYTES ? left : READ_TASK_BYTES);
    if (error != 0)
        atomic_store(&reading->error, error);
}

/* Copy from a neighbour, on all threads of this rank's device. */
static zr_status_t read_neighbour(mpi_comm_t *self, const zr_comm_call_t *call, int rank, void *dst,
                                  uint64_t src, size_t size_bytes) {
    reading_t reading = {.machines = &self->machines,
                         .rank = rank,
                         .dst = dst,
                         .src = src,
                         .size_bytes = size_bytes};
    if (size_bytes == 0)
        return ZR_OK;
    zr_host_parallel_for(zr_stream_device(call->stream), (size_bytes - 1) / READ_TASK_BYTES + 1,
                         read_part, &reading);
    int error = atomic_load(&reading.error);
    if (error == 0)
        return ZR_OK;
    char other[ZR_RANK_TEXT_BYTES];
    zr_control_kill(self->base.control, "cannot read the memory of %s: %s",
                    zr_control_describe_other(self->base.control, self->cards[rank].origin_rank,
                                              other, sizeof(other)),
                    error == ESRCH ? "its process has ended" : strerror(error));
    return ZR_ERR_COMM;
}

/* ---- other machines -------------------------------------------------------------------------- */

/* Note a transfer, in messages that MPI can count; `post` hands them over. */
static zr_status_t add_transfer(mpi_comm_t *self, int rank, uint64_t address, size_t size_bytes,
                                bool is_send) {
    for (size_t done = 0; done < size_bytes; done += MESSAGE_BYTES) {
        if (self->n_transfers == self->n_transfers_room) {
            size_t room = self->n_transfers_room > 0 ? 2 * self->n_transfers_room : 64;
            zr_mpi_transfer_t *grown = realloc(self->transfers, room * sizeof(*grown));
            if (grown == NULL) {
                zr_control_kill(self->base.control, "has no memory for %zu transfers", room);
                return ZR_ERR_COMM;
            }
            self->transfers = grown;
            self->n_transfers_room = room;
        }
        size_t left = size_bytes - done;
        self->transfers[self->n_transfers++] = (zr_mpi_transfer_t){
            .buffer = (void *)(uintptr_t)(address + done),
            .size_bytes = left < MESSAGE_BYTES ? left : MESSAGE_BYTES,
            .peer = self->cards[rank].origin_rank,
            .tag = self->tag,
            .is_send = is_send,
        };
    }
    return ZR_OK;
}

static void post(mpi_comm_t *self) {
    if (self->n_transfers > 0 && self->site != NULL)
        self->site->module->post(self->transfers, self->n_transfers);
    else if (self->n_transfers > 0)
        zr_links_post(self->links, self->transfers, self->n_transfers);
    self->is_exchanging = self->n_transfers > 0;
}

static zr_status_t await(mpi_comm_t *self) {
    if (self->is_exchanging && self->site != NULL)
        ZR_TRY(
            zr_mpi_site_wait(self->site, self->base.control, self->transfers, self->n_transfers));
    else if (self->is_exchanging)
        ZR_TRY(zr_links_wait(self->links, self->base.control, self->transfers, self->n_transfers));
    self->is_exchanging = false;
    return ZR_OK;
}

/* ---- blocks that all need -------------------------------------------------------------------- */

/* A rank's part of what all ranks are to have in `recv`. */
typedef struct block {
    uint64_t source;                 /* in the memory of the rank that gives it */
    size_t offset_bytes, size_bytes; /* in recv */
} block_t;

/* The collectives differ in which part of what each rank gives. */
static block_t block_of(const mpi_comm_t *self, const zr_comm_call_t *call, int rank) {
    size_t elem_bytes = zr_dtype_size(call->message.dtype);
    block_t block = {.source = self->peers[rank].send};
    if (call->collective == ZR_ALL_GATHER) {
        block.size_bytes = call->n_elems * elem_bytes;
        block.offset_bytes = (size_t)rank * block.size_bytes;
    } else if (call->collective == ZR_BROADCAST) {
        block.size_bytes = rank == call->root ? call->n_elems * elem_bytes : 0;
    } else {
        size_t begin = zr_comm_slice_begin(call->n_elems, rank, self->base.n_ranks);
        size_t end = zr_comm_slice_begin(call->n_elems, rank + 1, self->base.n_ranks);
        block.offset_bytes = begin * elem_bytes;
        block.size_bytes = (end - begin) * elem_bytes;
        block.source += block.offset_bytes;
    }
    return block;
}

static zr_status_t post_blocks(mpi_comm_t *self, const zr_comm_call_t *call) {
    const zr_machines_t *machines = &self->machines;
    int rank = self->base.rank, own_machine = machines->machine_of[rank];
    block_t own = block_of(self, call, rank);
    self->n_transfers = 0;
    for (int machine = 0; machine < machines->n_machines; machine++)
        if (machine != own_machine)
            ZR_TRY(add_transfer(self, zr_machines_receiver(machines, rank, machine), own.source,
                                own.size_bytes, true));
    for (int other = 0; other < self->base.n_ranks; other++) {
        block_t block = block_of(self, call, other);
        if (machines->machine_of[other] != own_machine &&
            zr_machines_receiver(machines, other, own_machine) == rank)
            ZR_TRY(add_transfer(self, other, (uint64_t)(uintptr_t)call->recv + block.offset_bytes,
                                block.size_bytes, false));
    }
    post(self);
    return ZR_OK;
}

/* First: the blocks of this machine's ranks, and what other machines send to this rank. From the
 * next rank on, so that not all read one. */
static zr_status_t take_blocks(mpi_comm_t *self, const zr_comm_call_t *call) {
    int n_ranks = self->base.n_ranks;
    ZR_TRY(post_blocks(self, call));
    for (int i = 1; i <= n_ranks; i++) {
        int rank = (self->base.rank + i) % n_ranks;
        block_t block = block_of(self, call, rank);
        char *dst = (char *)call->recv + block.offset_bytes;
        if (rank != self->base.rank && zr_machines_is_neighbour(&self->machines, rank))
            ZR_TRY(read_neighbour(self, call, rank, dst, block.source, block.size_bytes));
        else if (rank == self->base.rank && block.size_bytes > 0 &&
                 block.source != (uint64_t)(uintptr_t)dst)
            ZR_TRY(zr_copy_async(call->stream, dst, (const void *)(uintptr_t)block.source,
                                 block.size_bytes, ZR_COPY_DEVICE_TO_DEVICE));
    }
    return await(self);
}

/* Then: what other machines have sent to this rank's neighbours. */
static zr_status_t take_from_receivers(mpi_comm_t *self, const zr_comm_call_t *call) {
    const zr_machines_t *machines = &self->machines;
    int own_machine = machines->machine_of[self->base.rank];
    for (int rank = 0; rank < self->base.n_ranks; rank++) {
        int receiver = zr_machines_receiver(machines, rank, own_machine);
        if (machines->machine_of[rank] == own_machine || receiver == self->base.rank)
            continue;
        block_t block = block_of(self, call, rank);
        ZR_TRY(read_neighbour(self, call, receiver, (char *)call->recv + block.offset_bytes,
                              self->peers[receiver].recv + block.offset_bytes, block.size_bytes));
    }
    return ZR_OK;
}

/* ---- blocks that one needs ------------------------------------------------------------------- */

/* From every rank the block that it has for this one. */
static zr_status_t exchange_blocks(mpi_comm_t *self, const zr_comm_call_t *call) {
    int n_ranks = self->base.n_ranks, own = self->base.rank;
    size_t bytes = call->n_elems * zr_dtype_size(call->message.dtype), own_at = (size_t)own * bytes;
    self->n_transfers = 0;
    for (int i = 1; i < n_ranks; i++) {
        int rank = (own + i) % n_ranks;
        size_t at = (size_t)rank * bytes;
        if (zr_machines_is_neighbour(&self->machines, rank))
            continue;
        ZR_TRY(add_transfer(self, rank, (uint64_t)(uintptr_t)call->send + at, bytes, true));
        ZR_TRY(add_transfer(self, rank, (uint64_t)(uintptr_t)call->recv + at, bytes, false));
    }
    post(self);
    for (int i = 0; i < n_ranks; i++) {
        int rank = (own + i) % n_ranks;
        char *dst = (char *)call->recv + (size_t)rank * bytes;
        if (rank == own)
            ZR_TRY(zr_copy_async(call->stream, dst, (const char *)call->send + own_at, bytes,
                                 ZR_COPY_DEVICE_TO_DEVICE));
        else if (zr_machines_is_neighbour(&self->machines, rank))
            ZR_TRY(read_neighbour(self, call, rank, dst, self->peers[rank].send + own_at, bytes));
    }
    return await(self);
}

/* ---- sums ------------------------------------------------------------------------------------ */

/* What each rank sums: elements of what all ranks send. */
static size_t sum_begin(const mpi_comm_t *self, const zr_comm_call_t *call, int rank) {
    if (call->collective == ZR_REDUCE_SCATTER)
        return (size_t)rank * call->n_elems;
    return zr_comm_slice_begin(call->n_elems, rank, self->base.n_ranks);
}

static char *piece_of(const mpi_comm_t *self, size_t round, int rank) {
    size_t buffer = self->machines.n_machines > 1 ? round % 2 : 0;
    return self->pieces + (buffer * (size_t)self->base.n_ranks + (size_t)rank) * self->piece_bytes;
}

/* The part of a rank's sum that is made in one round; 0 bytes when it has come to its end. */
static size_t round_bytes(const mpi_comm_t *self, const zr_comm_call_t *call, int rank,
                          size_t round, size_t *offset_bytes_p) {
    size_t elem_bytes = zr_dtype_size(call->message.dtype);
    size_t begin = sum_begin(self, call, rank) * elem_bytes;
    size_t end = sum_begin(self, call, rank + 1) * elem_bytes;
    size_t at = begin + round * self->piece_bytes;
    *offset_bytes_p = at;
    if (at >= end)
        return 0;
    return end - at < self->piece_bytes ? end - at : self->piece_bytes;
}

/* Begin a round's exchange with ranks of other machines. */
static zr_status_t post_round(mpi_comm_t *self, const zr_comm_call_t *call, size_t round) {
    size_t own_offset, offset;
    size_t own_bytes = round_bytes(self, call, self->base.rank, round, &own_offset);
    self->n_transfers = 0;
    for (int i = 1; i < self->base.n_ranks; i++) {
        int rank = (self->base.rank + i) % self->base.n_ranks;
        if (zr_machines_is_neighbour(&self->machines, rank))
            continue;
        size_t bytes = round_bytes(self, call, rank, round, &offset);
        ZR_TRY(add_transfer(self, rank, (uint64_t)(uintptr_t)call->send + offset, bytes, true));
        ZR_TRY(add_transfer(self, rank, (uint64_t)(uintptr_t)piece_of(self, round, rank), own_bytes,
                            false));
    }
    post(self);
    return ZR_OK;
}

/* Sum a round's piece: neighbours' are read now, those of other machines have come. */
static zr_status_t sum_round(mpi_comm_t *self, const zr_comm_call_t *call, size_t round) {
    size_t elem_bytes = zr_dtype_size(call->message.dtype), offset;
    size_t bytes = round_bytes(self, call, self->base.rank, round, &offset);
    size_t own_begin = sum_begin(self, call, self->base.rank) * elem_bytes;
    bool is_scatter = call->collective == ZR_REDUCE_SCATTER;
    for (int rank = 0; bytes > 0 && rank < self->base.n_ranks; rank++) {
        self->sources[rank] = piece_of(self, round, rank);
        if (rank == self->base.rank)
            self->sources[rank] = (const char *)call->send + offset;
        else if (zr_machines_is_neighbour(&self->machines, rank))
            ZR_TRY(read_neighbour(self, call, rank, piece_of(self, round, rank),
                                  self->peers[rank].send + offset, bytes));
    }
    if (bytes == 0)
        return ZR_OK;
    char *dst = (char *)call->recv + (is_scatter ? offset - own_begin : offset);
    return zr_kernel_sum(call->stream, dst, self->sources, self->base.n_ranks, call->message.dtype,
                         bytes / elem_bytes);
}

static size_t count_rounds(const mpi_comm_t *self, const zr_comm_call_t *call) {
    size_t n_rounds = 0, offset;
    for (int rank = 0; rank < self->base.n_ranks; rank++)
        while (round_bytes(self, call, rank, n_rounds, &offset) > 0)
            n_rounds++;
    return n_rounds;
}

static zr_status_t sum_blocks(mpi_comm_t *self, const zr_comm_call_t *call) {
    size_t n_rounds = count_rounds(self, call);
    if (self->pieces == NULL && n_rounds > 0) {
        size_t n_buffers = self->machines.n_machines > 1 ? 2 : 1;
        size_t all_bytes = n_buffers * (size_t)self->base.n_ranks * self->piece_bytes;
        self->pieces = aligned_alloc(4096, all_bytes);
        if (self->pieces == NULL) {
            zr_control_kill(self->base.control, "has no memory for %zu bytes of what others send",
                            all_bytes);
            return ZR_ERR_COMM;
        }
    }
    if (n_rounds > 0)
        ZR_TRY(post_round(self, call, 0));
    for (size_t round = 0; round < n_rounds; round++) {
        ZR_TRY(await(self));
        if (round + 1 < n_rounds)
            ZR_TRY(post_round(self, call, round + 1));
        ZR_TRY(sum_round(self, call, round));
    }
    return ZR_OK;
}

/* ---- calls ----------------------------------------------------------------------------------- */

/* A rank's work between two meetings. */
typedef zr_status_t (*step_fn)(mpi_comm_t *self, const zr_comm_call_t *call);
enum { MOST_STEPS = 3 };

static zr_status_t make_step(mpi_comm_t *self, const zr_comm_call_t *call, step_fn step) {
    double start = zr_comm_clock();
    zr_status_t status = step(self, call);
    if (status != ZR_OK)
        zr_control_kill_for_failure(self->base.control, call, status);
    if (status != ZR_OK && self->is_exchanging && self->site != NULL)
        self->site->module->give_up(); /* tensors may be freed now */
    else if (status != ZR_OK && self->is_exchanging)
        zr_links_cut(self->links);
    self->base.statistics.move_seconds += zr_comm_clock() - start;
    return status;
}

/* All arrive, make the steps, and meet after each. The second step of a gather has work only where
 * several ranks of a machine hear of others. */
static zr_status_t mpi_move(zr_comm_t *comm, const zr_comm_call_t *call) {
    static const step_fn in_views[MOST_STEPS] = {move_in_views};
    static const step_fn by_messages[ZR_N_COLLECTIVES][MOST_STEPS] = {
        [ZR_ALL_GATHER] = {take_blocks, take_from_receivers},
        [ZR_REDUCE_SCATTER] = {sum_blocks},
        [ZR_ALL_REDUCE] = {sum_blocks, take_blocks, take_from_receivers},
        [ZR_BROADCAST] = {take_blocks, take_from_receivers},
        [ZR_ALL_TO_ALL] = {exchange_blocks}};
    mpi_comm_t *self = (mpi_comm_t *)comm;
    zr_status_t status = ZR_OK;
    const char *backend = zr_device_info(zr_stream_device(call->stream))->backend;
    if (strcmp(backend, "host") != 0)
        return zr_fail(
            &comm->options.log, ZR_ERR_ARGUMENT,
            "%s of \"%s\": the communicator \"processes\" works on host memory, and the stream "
            "is of device \"%s\"; for GPUs there is \"nccl\"",
            zr_collective_name(call->collective), call->message.tensor, backend);
    if (comm->n_ranks == 1)
        return zr_controlled_run_alone(comm, call);
    ZR_TRY(arrive(self, call));
    const step_fn *steps = is_in_views(self, call) ? in_views : by_messages[call->collective];
    bool has_receivers = self->machines.n_machines > 1 && self->machines.most_members > 1;
    for (int i = 0; i < MOST_STEPS && steps[i] != NULL; i++) {
        if (steps[i] == take_from_receivers && !has_receivers)
            continue;
        ZR_THEN(status, make_step(self, call, steps[i]));
        zr_status_t outcome = zr_control_meet(comm, status);
        ZR_THEN(status, outcome);
    }
    return status == ZR_ERR_COMM ? zr_control_refuse(&self->base, call) : status;
}

static zr_status_t mpi_count_machines(zr_comm_t *comm, const zr_comm_call_t *call) {
    mpi_comm_t *self = (mpi_comm_t *)comm;
    uint64_t own = zr_machine_identity(self->base.control->origin_rank, comm->options.machine_ranks,
                                       self->proof);
    return zr_machines_count(comm, call, own);
}

/* ---- life ------------------------------------------------------------------------------------ */

static void mpi_destroy(zr_comm_t *comm) {
    mpi_comm_t *self = (mpi_comm_t *)comm;
    bool is_dead = zr_control_has_failed(self->base.control) && !self->base.control->is_nested;
    zr_control_destroy(&self->base.control);
    zr_mpi_site_leave(self->site, is_dead);
    zr_links_destroy(&self->links);
    zr_views_close(self->views, self->base.n_ranks);
    free(self->transfers);
    free(self->pieces);
    free(self);
}

static const zr_comm_backend_t mpi_backend;

static size_t rounded(size_t size_bytes) {
    return (size_bytes + 15) / 16 * 16;
}

/* A handle at a place that it takes over, with a share of the site. NULL: no memory; neither. */
static mpi_comm_t *create_comm(const zr_comm_options_t *options, zr_control_t *control,
                               zr_mpi_site_t *site) {
    size_t n_ranks = (size_t)control->n_ranks;
    size_t sizes[] = {rounded(sizeof(mpi_comm_t)),
                      rounded(n_ranks * sizeof(zr_introduction_t)),
                      rounded(n_ranks * sizeof(zr_peer_tensors_t)),
                      rounded(n_ranks * sizeof(zr_card_t)),
                      rounded(n_ranks * sizeof(void *)),
                      rounded(zr_machines_bytes(control->n_ranks)),
                      rounded(n_ranks * sizeof(zr_view_t)),
                      rounded(zr_pass_bytes(control->n_ranks)),
                      rounded(n_ranks * sizeof(uint64_t))};
    size_t all_bytes = 0;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        all_bytes += sizes[i];
    char *memory = calloc(1, all_bytes);
    if (memory == NULL)
        return NULL;
    mpi_comm_t *self = (mpi_comm_t *)memory;
    self->introductions = (zr_introduction_t *)(memory += sizes[0]);
    self->peers = (zr_peer_tensors_t *)(memory += sizes[1]);
    self->cards = (zr_card_t *)(memory += sizes[2]);
    self->sources = (const void **)(memory += sizes[3]);
    self->arrays = (int *)(memory += sizes[4]);
    self->views = (zr_view_t *)(memory += sizes[5]);
    zr_pass_init(&self->pass, memory += sizes[6], control->rank, control->n_ranks);
    self->file_bytes = (uint64_t *)(memory += sizes[7]);
    zr_controlled_init(&self->base, &mpi_backend, options, control);
    if (getrandom(&self->proof, sizeof(self->proof), 0) != (ssize_t)sizeof(self->proof))
        self->proof = (uint64_t)(uintptr_t)self ^ (uint64_t)(1e9 * zr_comm_clock());
    self->site = site;
    return self;
}

static zr_comm_t *adopt(zr_comm_t *parent, zr_control_t *place) {
    mpi_comm_t *from = (mpi_comm_t *)parent;
    mpi_comm_t *self = create_comm(&parent->options, place, from->site);
    if (self == NULL)
        return NULL;
    zr_mpi_site_share(self->site);
    self->tag = (from->tag * 31 + from->n_groups) % 32768; /* what MPI has at least */
    return &self->base;
}

static zr_status_t mpi_split(zr_comm_t *comm, const zr_comm_call_t *call) {
    mpi_comm_t *self = (mpi_comm_t *)comm;
    self->n_groups++;
    return zr_control_split(comm, call, adopt);
}

zr_status_t zr_comm_create_processes(const zr_launch_t *launch, const zr_comm_options_t *options,
                                     zr_comm_t **comm_p) {
    zr_comm_options_t defaults = zr_comm_options_default();
    zr_mpi_site_t *site = NULL;
    zr_control_t *control = NULL;
    if (options == NULL)
        options = &defaults;
    if (launch == NULL || comm_p == NULL)
        return zr_fail(&options->log, ZR_ERR_ARGUMENT,
                       "communicator \"processes\": launch %p, result %p", (const void *)launch,
                       (void *)comm_p);
    ZR_TRY(zr_comm_check_options(options, launch->n_ranks));
    if (options->machine_ranks < 0)
        return zr_fail(&options->log, ZR_ERR_ARGUMENT,
                       "communicator \"processes\": %d ranks of a machine; must be at least 0",
                       options->machine_ranks);
    if (launch->rank < 0 || launch->rank >= launch->n_ranks)
        return zr_fail(&options->log, ZR_ERR_ARGUMENT,
                       "communicator \"processes\": rank %d; the ranks are 0 to %d", launch->rank,
                       launch->n_ranks - 1);
    zr_log_t log = zr_log_with_rank(&options->log, launch->rank);
    ZR_TRY(zr_mpi_site_find_ranks(launch, &log, options->timeout_ms, &site, &control));
    mpi_comm_t *self = create_comm(options, control, site);
    if (self == NULL) {
        zr_control_destroy(&control);
        zr_mpi_site_leave(site, true);
        return zr_fail(&options->log, ZR_ERR_MEMORY, "communicator: no memory for the state of %s",
                       zr_count_text((uint64_t)launch->n_ranks, "rank").text);
    }
    *comm_p = &self->base;
    return ZR_OK;
}

static const zr_comm_backend_t mpi_backend = {
    .name = "processes",
    .destroy = mpi_destroy,
    .abort = zr_controlled_abort,
    .all_gather = mpi_move,
    .reduce_scatter = mpi_move,
    .all_reduce = mpi_move,
    .broadcast = mpi_move,
    .all_to_all = mpi_move,
    .barrier = zr_controlled_barrier,
    .count_machines = mpi_count_machines,
    .split = mpi_split,
};
