/*
 * The reference communicator: ranks are threads of this process.
 *
 * Ranks meet (control.h), each showing where its tensor is, and then every rank moves its own
 * part, reading the others' tensors directly through the device of its own stream. They meet
 * again before any of them returns, because a returned tensor may be overwritten or freed. A
 * collective is therefore two meetings (all_reduce three) and large contiguous copies and sums
 * between them.
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

enum { N_MARKS = 2 };

/* What a rank shows to the others. */
typedef struct peer {
    const void *send;
    zr_event_t *marks[N_MARKS]; /* the rank's; NULL on synchronous devices */
} peer_t;

typedef struct threads_comm {
    zr_comm_t base;
    zr_control_t *control;
    zr_event_t *marks[N_MARKS]; /* NULL until a call on an asynchronous device */
    const void **sources;       /* [n_ranks] of zr_kernel_sum */
    peer_t peers[];             /* [n_ranks] of the call under way */
} threads_comm_t;

/* The first meeting of a call. */
static zr_status_t arrive(threads_comm_t *self, const zr_comm_call_t *call) {
    peer_t own = {.send = call->send};
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

/* Let the others wait for all that this rank has queued before meeting number `meeting`. */
static zr_status_t mark(threads_comm_t *self, const zr_comm_call_t *call, int meeting) {
    if (!is_asynchronous(call))
        return ZR_OK;
    return zr_event_record(self->marks[meeting % N_MARKS], call->stream);
}

/* Queue nothing further before all that the others had queued by meeting number `meeting`. */
static zr_status_t follow(threads_comm_t *self, const zr_comm_call_t *call, int meeting) {
    if (!is_asynchronous(call))
        return ZR_OK;
    for (int rank = 0; rank < self->base.n_ranks; rank++)
        if (rank != self->base.rank)
            ZR_TRY(zr_stream_wait(call->stream, self->peers[rank].marks[meeting % N_MARKS]));
    return ZR_OK;
}

/* ---- moving data ---- */

/* One rank's work between two meetings. */
typedef zr_status_t (*step_fn)(threads_comm_t *self, const zr_comm_call_t *call);

/* The work of step number `step`, in order behind what the others did in the steps before. */
static zr_status_t make_step(threads_comm_t *self, const zr_comm_call_t *call, step_fn move,
                             int step) {
    double start = zr_comm_clock();
    zr_status_t status = follow(self, call, step);
    if (status == ZR_OK)
        status = move(self, call);
    if (status == ZR_OK)
        status = mark(self, call, step + 1);
    if (status != ZR_OK)
        kill_for_failure(self, call, status);
    self->base.statistics.move_seconds += zr_comm_clock() - start;
    return status;
}

/*
 * The end on an asynchronous device: this rank's stream passes only when all others are done
 * with its tensors. After an error that cannot be queued for, so each rank waits for its own.
 */
static zr_status_t settle(threads_comm_t *self, const zr_comm_call_t *call, int n_steps,
                          zr_status_t status) {
    if (status == ZR_OK) {
        status = follow(self, call, n_steps);
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

/* A collective: all arrive, make the steps, and meet after each. */
static zr_status_t run_steps(threads_comm_t *self, const zr_comm_call_t *call, const step_fn *steps,
                             int n_steps) {
    if (self->base.n_ranks == 1)
        return run_alone(self, call);
    zr_status_t status = prepare_marks(self, call);
    if (status == ZR_OK)
        status = mark(self, call, 0);
    if (status != ZR_OK) {
        kill_for_failure(self, call, status);
        return status;
    }
    ZR_TRY(arrive(self, call));
    for (int step = 0; step < n_steps; step++) {
        if (status == ZR_OK)
            status = make_step(self, call, steps[step], step);
        zr_status_t outcome = meet(self, status);
        if (status == ZR_OK)
            status = outcome;
    }
    if (n_steps > 0 && is_asynchronous(call))
        status = settle(self, call, n_steps, status);
    return status == ZR_ERR_COMM ? refuse(self, call) : status;
}

/* Copy elements [begin, end) of `src` to the same place, or block, of `dst`. */
static zr_status_t copy_elems(const zr_comm_call_t *call, void *dst, size_t dst_begin,
                              const void *src, size_t src_begin, size_t n_elems) {
    size_t elem_bytes = zr_dtype_size(call->message.dtype);
    return zr_copy_async(call->stream, (char *)dst + dst_begin * elem_bytes,
                         (const char *)src + src_begin * elem_bytes, n_elems * elem_bytes,
                         ZR_COPY_DEVICE_TO_DEVICE);
}

/* dst = sum over ranks of elements [begin, begin + n_elems) of what they send. */
static zr_status_t sum_elems(threads_comm_t *self, const zr_comm_call_t *call, void *dst,
                             size_t begin, size_t n_elems) {
    if (n_elems == 0)
        return ZR_OK;
    size_t begin_bytes = begin * zr_dtype_size(call->message.dtype);
    for (int rank = 0; rank < self->base.n_ranks; rank++)
        self->sources[rank] = (const char *)self->peers[rank].send + begin_bytes;
    return zr_kernel_sum(call->stream, dst, self->sources, self->base.n_ranks, call->message.dtype,
                         n_elems);
}

/* all_gather: copy each rank's block, from the next rank on, so that not all read one. */
static zr_status_t gather_blocks(threads_comm_t *self, const zr_comm_call_t *call) {
    int n_ranks = self->base.n_ranks;
    size_t n_elems = call->n_elems;
    for (int i = 1; i <= n_ranks; i++) {
        int rank = (self->base.rank + i) % n_ranks;
        const void *send = self->peers[rank].send;
        const char *block =
            (const char *)call->recv + (size_t)rank * n_elems * zr_dtype_size(call->message.dtype);
        if (n_elems > 0 && send != (const void *)block)
            ZR_TRY(copy_elems(call, call->recv, (size_t)rank * n_elems, send, 0, n_elems));
    }
    return ZR_OK;
}

/* reduce_scatter: in place this overwrites block `rank` of send, which no other rank reads. */
static zr_status_t sum_own_block(threads_comm_t *self, const zr_comm_call_t *call) {
    return sum_elems(self, call, call->recv, (size_t)self->base.rank * call->n_elems,
                     call->n_elems);
}

/* all_reduce, first: this rank's slice, which no other rank reads in this step. */
static zr_status_t sum_own_slice(threads_comm_t *self, const zr_comm_call_t *call) {
    int rank = self->base.rank;
    size_t begin = zr_comm_slice_begin(call->n_elems, rank, self->base.n_ranks);
    size_t end = zr_comm_slice_begin(call->n_elems, rank + 1, self->base.n_ranks);
    char *slice = (char *)call->recv + begin * zr_dtype_size(call->message.dtype);
    return sum_elems(self, call, slice, begin, end - begin);
}

/* all_reduce, then: the slices that the others have summed. */
static zr_status_t gather_slices(threads_comm_t *self, const zr_comm_call_t *call) {
    int n_ranks = self->base.n_ranks;
    for (int i = 1; i < n_ranks; i++) {
        int rank = (self->base.rank + i) % n_ranks;
        size_t begin = zr_comm_slice_begin(call->n_elems, rank, n_ranks);
        size_t end = zr_comm_slice_begin(call->n_elems, rank + 1, n_ranks);
        if (end > begin)
            ZR_TRY(copy_elems(call, call->recv, begin, self->peers[rank].send, begin, end - begin));
    }
    return ZR_OK;
}

/* broadcast: take root's buffer. */
static zr_status_t take_from_root(threads_comm_t *self, const zr_comm_call_t *call) {
    if (self->base.rank == call->root || call->n_elems == 0)
        return ZR_OK;
    return copy_elems(call, call->recv, 0, self->peers[call->root].send, 0, call->n_elems);
}

static zr_status_t threads_all_gather(zr_comm_t *comm, const zr_comm_call_t *call) {
    static const step_fn steps[] = {gather_blocks};
    return run_steps((threads_comm_t *)comm, call, steps, 1);
}

static zr_status_t threads_reduce_scatter(zr_comm_t *comm, const zr_comm_call_t *call) {
    static const step_fn steps[] = {sum_own_block};
    return run_steps((threads_comm_t *)comm, call, steps, 1);
}

static zr_status_t threads_all_reduce(zr_comm_t *comm, const zr_comm_call_t *call) {
    static const step_fn steps[] = {sum_own_slice, gather_slices};
    return run_steps((threads_comm_t *)comm, call, steps, 2);
}

static zr_status_t threads_broadcast(zr_comm_t *comm, const zr_comm_call_t *call) {
    static const step_fn steps[] = {take_from_root};
    return run_steps((threads_comm_t *)comm, call, steps, 1);
}

static zr_status_t threads_barrier(zr_comm_t *comm, const zr_comm_call_t *call) {
    return run_steps((threads_comm_t *)comm, call, NULL, 0);
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
    threads_comm_t *self = calloc(1, sizeof(*self) + n_ranks * (sizeof(peer_t) + sizeof(void *)));
    if (self == NULL)
        return NULL;
    zr_comm_options_t own = *options;
    own.log = zr_log_with_rank(&options->log, control->origin_rank);
    zr_comm_init(&self->base, &threads_backend, &own, control->rank, control->n_ranks);
    self->control = control;
    self->sources = (const void **)(self->peers + n_ranks);
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
