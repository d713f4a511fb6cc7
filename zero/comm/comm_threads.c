/*
 * The reference communicator: ranks are threads of this process.
 *
 * Ranks meet (control.h), each showing where its tensors are, and then every rank moves its own
 * part: it reads what that is made of, wherever it is, and writes it to every rank that wants it,
 * directly, through the device of its own stream. So each byte is read once and written once, and
 * no rank touches another's part. They meet again before any of them returns, because a returned
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
#include "zero/comm/control.h"

/* Events of a call: what was queued before it, and with it. */
enum { MARK_BEGIN, MARK_END, N_MARKS };

/* What a rank shows to the others. */
typedef struct peer {
    const void *send;
    void *recv;
    zr_event_t *marks[N_MARKS]; /* the rank's; NULL on synchronous devices */
} peer_t;

typedef struct threads_comm {
    zr_comm_t base;
    zr_control_t *control;
    zr_event_t *marks[N_MARKS]; /* NULL until a call on an asynchronous device */
    const void **sources;       /* [n_ranks], dsts: [n_ranks], of zr_kernel_spread */
    void **dsts;
    peer_t peers[]; /* [n_ranks] of the call under way */
} threads_comm_t;

/* The first meeting of a call. */
static zr_status_t arrive(threads_comm_t *self, const zr_comm_call_t *call) {
    peer_t own = {.send = call->send, .recv = call->recv};
    memcpy(own.marks, self->marks, sizeof(own.marks));
    return zr_control_arrive(self->control, &self->base, call, &own, sizeof(own), self->peers);
}

static zr_status_t meet(threads_comm_t *self, zr_status_t status) {
    return zr_control_meet(self->control, &self->base, status);
}

static zr_status_t refuse(threads_comm_t *self, const zr_comm_call_t *call) {
    return zr_control_refuse(self->control, &self->base, call);
}

/* This rank's device failed inside a call: end the call for the others. */
static void kill_for_failure(threads_comm_t *self, const zr_comm_call_t *call, zr_status_t status) {
    zr_control_kill_for_failure(self->control, call, status);
}

/* ---- order on asynchronous devices ---- */

static bool is_asynchronous(const zr_comm_call_t *call) {
    return call->stream != NULL && !zr_device_info(zr_stream_device(call->stream))->synchronous;
}

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

/* One rank's work between two meetings. */
typedef zr_status_t (*move_fn)(threads_comm_t *self, const zr_comm_call_t *call);

/* This rank's part, in order behind what all had queued before. */
static zr_status_t make_part(threads_comm_t *self, const zr_comm_call_t *call, move_fn move) {
    double start = zr_comm_clock();
    zr_status_t status = follow(self, call, MARK_BEGIN);
    if (status == ZR_OK)
        status = move(self, call);
    if (status == ZR_OK)
        status = mark(self, call, MARK_END);
    if (status != ZR_OK)
        kill_for_failure(self, call, status);
    self->base.statistics.move_seconds += zr_comm_clock() - start;
    return status;
}

/*
 * The end on an asynchronous device: this rank's stream passes only when all others are done
 * with its tensors. After an error that cannot be queued for, so each rank waits for its own.
 */
static zr_status_t settle(threads_comm_t *self, const zr_comm_call_t *call, zr_status_t status) {
    if (status == ZR_OK) {
        status = follow(self, call, MARK_END);
        if (status != ZR_OK)
            kill_for_failure(self, call, status);
    } else if (zr_stream_synchronize(call->stream) != ZR_OK) {
        status = ZR_ERR_DEVICE;
    }
    zr_status_t outcome = meet(self, status);
    return status != ZR_OK ? status : outcome;
}

/* A call of a single rank: what is not in place is copied. */
static zr_status_t run_alone(threads_comm_t *self, const zr_comm_call_t *call) {
    if (zr_control_is_dead(self->control))
        return refuse(self, call);
    if (call->send == call->recv || call->n_elems == 0)
        return ZR_OK;
    double start = zr_comm_clock();
    zr_status_t status =
        zr_copy_async(call->stream, call->recv, call->send,
                      call->n_elems * zr_dtype_size(call->message.dtype), ZR_COPY_DEVICE_TO_DEVICE);
    if (status != ZR_OK)
        kill_for_failure(self, call, status);
    self->base.statistics.move_seconds += zr_comm_clock() - start;
    return status;
}

/* A collective: all arrive, move their parts, and meet again. */
static zr_status_t run(threads_comm_t *self, const zr_comm_call_t *call, move_fn move) {
    if (self->base.n_ranks == 1)
        return run_alone(self, call);
    zr_status_t status = prepare_marks(self, call);
    if (status == ZR_OK)
        status = mark(self, call, MARK_BEGIN);
    if (status != ZR_OK) {
        kill_for_failure(self, call, status);
        return status;
    }
    ZR_TRY(arrive(self, call));
    status = make_part(self, call, move);
    zr_status_t outcome = meet(self, status);
    if (status == ZR_OK)
        status = outcome;
    if (is_asynchronous(call))
        status = settle(self, call, status);
    return status == ZR_ERR_COMM ? refuse(self, call) : status;
}

/* Element `first` of a tensor. */
static const char *elem_of(const zr_comm_call_t *call, const void *tensor, size_t first) {
    return (const char *)tensor + first * zr_dtype_size(call->message.dtype);
}

/* Sources: elements from `begin` on of what each rank sends. How many they are. */
static int take_all_sources(threads_comm_t *self, const zr_comm_call_t *call, size_t begin) {
    for (int rank = 0; rank < self->base.n_ranks; rank++)
        self->sources[rank] = elem_of(call, self->peers[rank].send, begin);
    return self->base.n_ranks;
}

/* Places: elements from `begin` on of what each rank receives, this rank's own first, and but for
 * that which is the source already. How many they are. */
static int take_all_dsts(threads_comm_t *self, const zr_comm_call_t *call, size_t begin,
                         const void *source) {
    int n_ranks = self->base.n_ranks, n_dsts = 0;
    for (int i = 0; i < n_ranks; i++) {
        int rank = (self->base.rank + i) % n_ranks;
        void *dst = (void *)elem_of(call, self->peers[rank].recv, begin);
        if (dst != source)
            self->dsts[n_dsts++] = dst;
    }
    return n_dsts;
}

/* Write the sum of the sources, or the one source, to all places. */
static zr_status_t spread(threads_comm_t *self, const zr_comm_call_t *call, int n_sources,
                          int n_dsts, size_t n_elems) {
    if (n_elems == 0)
        return ZR_OK;
    return zr_kernel_spread(call->stream, self->dsts, n_dsts, self->sources, n_sources,
                            call->message.dtype, n_elems);
}

/* The slice of a tensor of n_elems that is this rank's to move. */
static size_t own_slice(const threads_comm_t *self, const zr_comm_call_t *call, size_t *begin_p) {
    int rank = self->base.rank, n_ranks = self->base.n_ranks;
    *begin_p = zr_comm_slice_begin(call->n_elems, rank, n_ranks);
    return zr_comm_slice_begin(call->n_elems, rank + 1, n_ranks) - *begin_p;
}

/* all_gather: this rank's block, to all. */
static zr_status_t give_block(threads_comm_t *self, const zr_comm_call_t *call) {
    size_t begin = (size_t)self->base.rank * call->n_elems;
    self->sources[0] = call->send;
    int n_dsts = take_all_dsts(self, call, begin, call->send);
    return spread(self, call, 1, n_dsts, call->n_elems);
}

/* reduce_scatter: in place this overwrites block `rank` of send, which no other rank reads. */
static zr_status_t sum_own_block(threads_comm_t *self, const zr_comm_call_t *call) {
    int n_sources = take_all_sources(self, call, (size_t)self->base.rank * call->n_elems);
    self->dsts[0] = call->recv;
    return spread(self, call, n_sources, 1, call->n_elems);
}

/* all_reduce: this rank's slice, which no other rank reads, or writes anywhere. */
static zr_status_t sum_own_slice(threads_comm_t *self, const zr_comm_call_t *call) {
    size_t begin, n_elems = own_slice(self, call, &begin);
    int n_sources = take_all_sources(self, call, begin);
    int n_dsts = take_all_dsts(self, call, begin, NULL);
    return spread(self, call, n_sources, n_dsts, n_elems);
}

/* broadcast: a slice of root's buffer, to all others, so that all ranks share the work. */
static zr_status_t give_slice_of_root(threads_comm_t *self, const zr_comm_call_t *call) {
    size_t begin, n_elems = own_slice(self, call, &begin);
    self->sources[0] = elem_of(call, self->peers[call->root].send, begin);
    int n_dsts = take_all_dsts(self, call, begin, self->sources[0]);
    return spread(self, call, 1, n_dsts, n_elems);
}

static zr_status_t threads_all_gather(zr_comm_t *comm, const zr_comm_call_t *call) {
    return run((threads_comm_t *)comm, call, give_block);
}

static zr_status_t threads_reduce_scatter(zr_comm_t *comm, const zr_comm_call_t *call) {
    return run((threads_comm_t *)comm, call, sum_own_block);
}

static zr_status_t threads_all_reduce(zr_comm_t *comm, const zr_comm_call_t *call) {
    return run((threads_comm_t *)comm, call, sum_own_slice);
}

static zr_status_t threads_broadcast(zr_comm_t *comm, const zr_comm_call_t *call) {
    return run((threads_comm_t *)comm, call, give_slice_of_root);
}

/* A single rank finds nothing to move. */
static zr_status_t threads_barrier(zr_comm_t *comm, const zr_comm_call_t *call) {
    threads_comm_t *self = (threads_comm_t *)comm;
    return self->base.n_ranks == 1 ? run_alone(self, call) : arrive(self, call);
}

/* ---- life ---- */

static void threads_abort(zr_comm_t *comm, const char *reason) {
    zr_control_abort(((threads_comm_t *)comm)->control, reason);
}

static void threads_destroy(zr_comm_t *comm) {
    threads_comm_t *self = (threads_comm_t *)comm;
    zr_control_destroy(&self->control);
    for (int i = 0; i < N_MARKS; i++)
        zr_event_destroy(&self->marks[i]);
    free(self);
}

static const zr_comm_backend_t threads_backend;

/* A handle at a place that it takes over. NULL: no memory; nothing is taken over. */
static zr_comm_t *create_comm(const zr_comm_options_t *options, zr_control_t *control) {
    size_t n_ranks = (size_t)control->n_ranks;
    size_t rank_bytes = sizeof(peer_t) + 2 * sizeof(void *);
    threads_comm_t *self = calloc(1, sizeof(*self) + n_ranks * rank_bytes);
    if (self == NULL)
        return NULL;
    zr_comm_options_t own = *options;
    own.log = zr_log_with_rank(&options->log, control->origin_rank);
    zr_comm_init(&self->base, &threads_backend, &own, control->rank, control->n_ranks);
    self->control = control;
    self->sources = (const void **)(self->peers + n_ranks);
    self->dsts = (void **)(self->sources + n_ranks);
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
    return zr_control_split(((threads_comm_t *)comm)->control, comm, call, adopt);
}

static const zr_comm_backend_t threads_backend = {
    .name = "threads",
    .destroy = threads_destroy,
    .abort = threads_abort,
    .all_gather = threads_all_gather,
    .reduce_scatter = threads_reduce_scatter,
    .all_reduce = threads_all_reduce,
    .broadcast = threads_broadcast,
    .barrier = threads_barrier,
    .split = threads_split,
};
