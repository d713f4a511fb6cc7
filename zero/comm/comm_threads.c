/*
 * The reference communicator: ranks are threads of this process.
 *
 * Ranks meet (control_internal.h), each showing where its tensors are, and then every rank moves
 * its own part (pass_internal.h). They meet again before any of them returns, because a returned
 * tensor may be overwritten or freed. A collective is therefore two meetings and one pass of large
 * contiguous copies or sums between them.
 *
 * What ends a call early happens at the first meeting only; nobody has moved anything then. A
 * rank that has come through it always comes to the later ones, so that no rank can return and
 * free a tensor that another is still reading.
 *
 * On an asynchronous device a meeting orders only what the ranks have queued, so each rank
 * records an event before it and makes its stream wait for the others' after it. One more
 * meeting at the end keeps every rank, and its events, until all have waited.
 */
#include <stdlib.h>
#include <string.h>

#include "kernels/kernels.h"
#include "zero/comm/control_internal.h"
#include "zero/comm/pass_internal.h"

/* Events of a call: what was queued before it, and with it. */
enum { MARK_BEGIN, MARK_END, N_MARKS };

/* What a rank shows to the others. */
typedef struct peer {
    const void *send;
    void *recv;
    zr_event_t *marks[N_MARKS]; /* the rank's; NULL on synchronous devices */
    atomic_size_t *n_taken;     /* of its part (pass_internal.h); NULL on asynchronous devices */
} peer_t;

typedef struct threads_comm {
    zr_comm_t base;
    zr_event_t *marks[N_MARKS]; /* NULL until a call on an asynchronous device */
    atomic_size_t n_taken;
    zr_pass_t pass;
    peer_t peers[]; /* [n_ranks] of the call under way */
} threads_comm_t;

static bool is_asynchronous(const zr_comm_call_t *call) {
    return call->stream != NULL && !zr_device_info(zr_stream_device(call->stream))->synchronous;
}

/* The first meeting of a call. Nobody has pieces of this rank's part left to take: all met at the
 * end of the call before. */
static zr_status_t arrive(threads_comm_t *self, const zr_comm_call_t *call) {
    peer_t own = {.send = call->send, .recv = call->recv};
    atomic_store_explicit(&self->n_taken, 0, memory_order_relaxed);
    own.n_taken = is_asynchronous(call) ? NULL : &self->n_taken;
    memcpy(own.marks, self->marks, sizeof(own.marks));
    ZR_TRY(zr_control_arrive(&self->base, call, &own, sizeof(own), self->peers));
    for (int rank = 0; rank < self->base.n_ranks; rank++) {
        self->pass.sends[rank] = self->peers[rank].send;
        self->pass.recvs[rank] = self->peers[rank].recv;
        self->pass.n_taken[rank] = self->peers[rank].n_taken;
    }
    return ZR_OK;
}

/* ---- order on asynchronous devices ---- */

/* Make this rank's events, which belong to its device, at its first call that needs them. */
static zr_status_t prepare_marks(threads_comm_t *self, const zr_comm_call_t *call) {
    for (int i = 0; is_asynchronous(call) && i < N_MARKS; i++)
        if (self->marks[i] == NULL)
            ZR_TRY(zr_event_create(zr_stream_device(call->stream), &self->marks[i]));
    return ZR_OK;
}

/* Let the others wait for all that this rank has queued so far. */
static zr_status_t mark(threads_comm_t *self, const zr_comm_call_t *call, int which) {
    if (!is_asynchronous(call))
        return ZR_OK;
    return zr_event_record(self->marks[which], call->stream);
}

/* Queue nothing further before all that the others had queued by their marks. */
static zr_status_t follow(threads_comm_t *self, const zr_comm_call_t *call, int which) {
    if (!is_asynchronous(call))
        return ZR_OK;
    for (int rank = 0; rank < self->base.n_ranks; rank++)
        if (rank != self->base.rank)
            ZR_TRY(zr_stream_wait(call->stream, self->peers[rank].marks[which]));
    return ZR_OK;
}

/* ---- moving data ---- */

/* This rank's part, in order behind what all had queued before. */
static zr_status_t make_part(threads_comm_t *self, const zr_comm_call_t *call) {
    double start = zr_comm_clock();
    zr_status_t status = follow(self, call, MARK_BEGIN);
    ZR_THEN(status, zr_pass_make_part(&self->pass, call));
    ZR_THEN(status, mark(self, call, MARK_END));
    if (status != ZR_OK)
        zr_control_kill_for_failure(self->base.control, call, status);
    self->base.statistics.move_seconds += zr_comm_clock() - start;
    return status;
}

/*
 * The end on an asynchronous device: this rank's stream passes only when all others are done
 * with its tensors. After an error, also of queueing that on any rank, each waits for its own.
 */
static zr_status_t settle(threads_comm_t *self, const zr_comm_call_t *call, zr_status_t status) {
    if (status == ZR_OK) {
        status = follow(self, call, MARK_END);
        if (status != ZR_OK)
            zr_control_kill_for_failure(self->base.control, call, status);
        zr_status_t outcome = zr_control_meet(&self->base, status);
        if (outcome == ZR_OK)
            return ZR_OK;
        status = status != ZR_OK ? status : outcome;
    }
    if (zr_stream_synchronize(call->stream) != ZR_OK)
        status = ZR_ERR_DEVICE;
    (void)zr_control_meet(&self->base, status); /* nobody frees what another one still works on */
    return status;
}

/* A collective: all arrive, move their parts, and meet again. */
static zr_status_t threads_move(zr_comm_t *comm, const zr_comm_call_t *call) {
    threads_comm_t *self = (threads_comm_t *)comm;
    if (comm->n_ranks == 1)
        return zr_controlled_run_alone(comm, call);
    zr_status_t status = prepare_marks(self, call);
    ZR_THEN(status, mark(self, call, MARK_BEGIN));
    if (status != ZR_OK) {
        zr_control_kill_for_failure(self->base.control, call, status);
        return status;
    }
    ZR_TRY(arrive(self, call));
    status = make_part(self, call);
    zr_status_t outcome = zr_control_meet(&self->base, status);
    ZR_THEN(status, outcome);
    if (is_asynchronous(call))
        status = settle(self, call, status);
    return status == ZR_ERR_COMM ? zr_control_refuse(&self->base, call) : status;
}

/* ---- life ---- */

static void threads_destroy(zr_comm_t *comm) {
    threads_comm_t *self = (threads_comm_t *)comm;
    zr_control_destroy(&self->base.control);
    for (int i = 0; i < N_MARKS; i++)
        zr_event_destroy(&self->marks[i]);
    free(self);
}

static const zr_comm_backend_t threads_backend;

/* A handle at a place that it takes over. NULL: no memory; nothing is taken over. */
static zr_comm_t *create_comm(const zr_comm_options_t *options, zr_control_t *control) {
    size_t n_ranks = (size_t)control->n_ranks;
    size_t peers_bytes = n_ranks * sizeof(peer_t);
    threads_comm_t *self = calloc(1, sizeof(*self) + peers_bytes + zr_pass_bytes(control->n_ranks));
    if (self == NULL)
        return NULL;
    zr_controlled_init(&self->base, &threads_backend, options, control);
    zr_pass_init(&self->pass, self->peers + n_ranks, control->rank, control->n_ranks);
    return &self->base;
}

zr_status_t zr_comm_create_threads(int n_ranks, const zr_comm_options_t *options,
                                   zr_comm_t **comms) {
    return zr_comm_create_in_process(n_ranks, options, create_comm, comms);
}

static zr_comm_t *adopt(zr_comm_t *parent, zr_control_t *group) {
    return create_comm(&parent->options, group);
}

static zr_status_t threads_split(zr_comm_t *comm, const zr_comm_call_t *call) {
    return zr_control_split(comm, call, adopt);
}

static const zr_comm_backend_t threads_backend = {
    .name = "threads",
    .destroy = threads_destroy,
    .abort = zr_controlled_abort,
    .all_gather = threads_move,
    .reduce_scatter = threads_move,
    .all_reduce = threads_move,
    .broadcast = threads_move,
    .all_to_all = threads_move,
    .barrier = zr_controlled_barrier,
    .split = threads_split,
};
