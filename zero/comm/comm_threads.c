/*
 * The reference communicator: ranks are threads of this process.
 *
 * Ranks meet in a shared group: each posts its call on its seat, the last to come compares
 * all calls, and then every rank moves its own part, reading the others' tensors directly
 * through the device of its own stream. They meet again before any of them returns, because
 * a returned tensor may be overwritten or freed. A collective is therefore two meetings
 * (all_reduce three) and large contiguous copies and sums between them.
 *
 * What ends a call early happens at the first meeting only: a rank that differs, gives up,
 * leaves or does not come in time. Nobody has moved anything then. A rank that has come
 * through the first meeting always comes to the later ones, with its error if it has one,
 * so that these need no time limit, and no rank can return and free a tensor that another
 * is still reading.
 *
 * On an asynchronous device a meeting orders only what the ranks have queued, so each rank
 * records an event before it and makes its stream wait for the others' after it. One more
 * meeting at the end keeps every rank, and its events, until all have waited.
 */
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/kernels.h"
#include "zero/comm/comm_backend.h"

enum { NAME_BYTES = 144, REASON_BYTES = 1024, N_MARKS = 2 };

typedef struct threads_comm threads_comm_t;

/* What a rank shows to the others. */
typedef struct seat {
    zr_comm_call_t call;        /* the latest; message.tensor points to `tensor` */
    char tensor[NAME_BYTES];    /* the name, cut to fit: outlives the call, for messages */
    const char *whole_name;     /* the caller's: only while its rank is in the call */
    const char *device;         /* backend of the call's stream, "" without one */
    zr_event_t *marks[N_MARKS]; /* the rank's; NULL on synchronous devices */
    int origin_rank;            /* in the first communicator */
    zr_comm_t *offspring;       /* split: the handle that the rank's leader made for it */
} seat_t;

/*
 * The state that ranks share. `mutex` guards all but what is said otherwise; it is the only
 * lock and nothing is called under it. A seat is written by its rank, under the mutex, before
 * the first meeting of a call, and read by the others between the meetings.
 */
typedef struct group {
    pthread_mutex_t mutex;
    pthread_cond_t changed; /* a meeting is complete, or the group is dead */
    int n_ranks;
    int n_members;             /* handles not destroyed; the last frees the group */
    bool is_nested;            /* made by split */
    int n_arrived;             /* at the meeting under way, < n_ranks */
    zr_status_t pending;       /* the first error that a rank brought to it */
    unsigned generation;       /* meetings completed */
    zr_status_t outcome;       /* of the latest meeting, the same for all; written before its
                                  generation, and not again before all ranks have arrived anew */
    atomic_bool is_dead;       /* never becomes false */
    char reason[REASON_BYTES]; /* written once, before is_dead */
    seat_t seats[];
} group_t;

struct threads_comm {
    zr_comm_t base;
    group_t *group;
    zr_event_t *marks[N_MARKS]; /* NULL until a call on an asynchronous device */
    const void *sources[];      /* [n_ranks] of zr_kernel_sum */
};

static seat_t *own_seat(threads_comm_t *self) {
    return &self->group->seats[self->base.rank];
}

/* "rank 2", or "rank 2 of its group (rank 6 of all)". */
static void describe_rank(const group_t *group, int rank, char *text, size_t text_bytes) {
    if (group->is_nested)
        snprintf(text, text_bytes, "rank %d of its group (rank %d of all)", rank,
                 group->seats[rank].origin_rank);
    else
        snprintf(text, text_bytes, "rank %d", rank);
}
enum { RANK_TEXT_BYTES = 64 };

static void describe_seat(const seat_t *seat, char *text, size_t text_bytes) {
    if (seat->call.sequence == 0)
        snprintf(text, text_bytes, "no call so far");
    else
        zr_comm_call_describe(&seat->call, text, text_bytes);
}

/* End the group for all ranks; the first reason stays. Mutex held. */
static void kill_group(group_t *group, const char *format, ...) ZR_PRINTF(2, 3);
static void kill_group(group_t *group, const char *format, ...) {
    if (atomic_load(&group->is_dead))
        return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(group->reason, sizeof(group->reason), format, arguments);
    va_end(arguments);
    atomic_store(&group->is_dead, true);
    pthread_cond_broadcast(&group->changed);
}

/* The error of a call on a dead group. */
static zr_status_t refuse(threads_comm_t *self, const zr_comm_call_t *call) {
    char text[ZR_COMM_DESCRIPTION_BYTES];
    zr_comm_call_describe(call, text, sizeof(text));
    return zr_fail(&self->base.options.log, ZR_ERR_COMM, "%s: %s", text, self->group->reason);
}

/* ---- meeting ---- */

static bool seats_match(const seat_t *a, const seat_t *b) {
    return zr_comm_call_matches(&a->call, &b->call) && strcmp(a->whole_name, b->whole_name) == 0 &&
           strcmp(a->device, b->device) == 0;
}

static int count_matches(const group_t *group, int rank) {
    int n_matches = 0;
    for (int other = 0; other < group->n_ranks; other++)
        n_matches += seats_match(&group->seats[rank], &group->seats[other]);
    return n_matches;
}

/* Name a rank that differs, and one of the most that agree. All have posted; mutex held. */
static void kill_for_mismatch(group_t *group) {
    int usual = 0;
    for (int rank = 1; rank < group->n_ranks; rank++)
        if (count_matches(group, rank) > count_matches(group, usual))
            usual = rank;
    int odd = 0;
    while (seats_match(&group->seats[odd], &group->seats[usual]))
        odd++;
    char odd_rank[RANK_TEXT_BYTES], usual_rank[RANK_TEXT_BYTES];
    char odd_call[ZR_COMM_DESCRIPTION_BYTES], usual_call[ZR_COMM_DESCRIPTION_BYTES];
    describe_rank(group, odd, odd_rank, sizeof(odd_rank));
    describe_rank(group, usual, usual_rank, sizeof(usual_rank));
    describe_seat(&group->seats[odd], odd_call, sizeof(odd_call));
    describe_seat(&group->seats[usual], usual_call, sizeof(usual_call));
    const char *odd_device = group->seats[odd].device;
    const char *usual_device = group->seats[usual].device;
    bool say_device = strcmp(odd_device, usual_device) != 0 && *odd_device && *usual_device;
    kill_group(group, "%s is in %s%s%s, %s in %s%s%s; %d of %d ranks are in the latter", odd_rank,
               odd_call, say_device ? " on " : "", say_device ? odd_device : "", usual_rank,
               usual_call, say_device ? " on " : "", say_device ? usual_device : "",
               count_matches(group, usual), group->n_ranks);
}

/* All ranks have posted: compare. Mutex held. */
static void check_agreement(group_t *group) {
    for (int rank = 1; rank < group->n_ranks; rank++) {
        if (!seats_match(&group->seats[rank], &group->seats[0])) {
            kill_for_mismatch(group);
            return;
        }
    }
}

/* Name the ranks that have not posted call `sequence`. Mutex held. */
static void kill_for_absence(threads_comm_t *self, uint64_t sequence) {
    enum { MOST_NAMED = 4 };
    group_t *group = self->group;
    char list[REASON_BYTES / 2] = "";
    size_t length = 0;
    int n_absent = 0;
    for (int rank = 0; rank < group->n_ranks; rank++) {
        if (group->seats[rank].call.sequence == sequence || n_absent++ >= MOST_NAMED)
            continue;
        char name[RANK_TEXT_BYTES], last[ZR_COMM_DESCRIPTION_BYTES];
        describe_rank(group, rank, name, sizeof(name));
        describe_seat(&group->seats[rank], last, sizeof(last));
        int n_written = snprintf(list + length, sizeof(list) - length, "%s%s (latest: %s)",
                                 length > 0 ? ", " : "", name, last);
        length += n_written > 0 ? (size_t)n_written : 0;
        if (length >= sizeof(list))
            length = sizeof(list) - 1;
    }
    char more[32] = "";
    if (n_absent > MOST_NAMED)
        snprintf(more, sizeof(more), " and %d more", n_absent - MOST_NAMED);
    char own[RANK_TEXT_BYTES];
    describe_rank(group, self->base.rank, own, sizeof(own));
    kill_group(group, "%s has waited %d ms for %s%s", own, self->base.options.timeout_ms, list,
               more);
}

/* Mutex held. */
static bool is_complete(const group_t *group, unsigned generation) {
    return group->generation != generation;
}

/*
 * Count the caller in at the meeting under way; the last to come completes it, and decides
 * the outcome for all. Mutex held.
 */
static void count_in(group_t *group, zr_status_t status) {
    if (group->pending == ZR_OK)
        group->pending = status;
    if (++group->n_arrived < group->n_ranks)
        return;
    group->outcome = atomic_load(&group->is_dead) ? ZR_ERR_COMM : group->pending;
    group->pending = ZR_OK;
    group->n_arrived = 0;
    group->generation++;
    pthread_cond_broadcast(&group->changed);
}

static struct timespec deadline_after(int timeout_ms) {
    struct timespec deadline;
    clock_gettime(CLOCK_MONOTONIC, &deadline);
    deadline.tv_sec += timeout_ms / 1000;
    deadline.tv_nsec += (long)(timeout_ms % 1000) * 1000000;
    if (deadline.tv_nsec >= 1000000000) {
        deadline.tv_sec += 1;
        deadline.tv_nsec -= 1000000000;
    }
    return deadline;
}

/*
 * The first meeting of a call: post it and wait for the others, as long as there are any to
 * wait for. ZR_OK: all ranks have come with the same call. ZR_ERR_COMM: none goes on.
 */
static zr_status_t arrive(threads_comm_t *self, const zr_comm_call_t *call) {
    group_t *group = self->group;
    double start = zr_comm_clock();
    struct timespec deadline = deadline_after(self->base.options.timeout_ms);
    pthread_mutex_lock(&group->mutex);
    unsigned generation = group->generation;
    if (!atomic_load(&group->is_dead)) {
        seat_t *seat = own_seat(self);
        seat->call = *call;
        snprintf(seat->tensor, sizeof(seat->tensor), "%s", call->message.tensor);
        seat->call.message.tensor = seat->tensor;
        seat->whole_name = call->message.tensor;
        seat->device = call->stream != NULL ? zr_device_info(self->base.device)->backend : "";
        memcpy(seat->marks, self->marks, sizeof(seat->marks));
        if (group->n_arrived + 1 == group->n_ranks)
            check_agreement(group);
        if (!atomic_load(&group->is_dead))
            count_in(group, ZR_OK);
    }
    while (!is_complete(group, generation) && !atomic_load(&group->is_dead)) {
        int error = pthread_cond_timedwait(&group->changed, &group->mutex, &deadline);
        if (error == ETIMEDOUT && !is_complete(group, generation))
            kill_for_absence(self, call->sequence);
    }
    zr_status_t status = is_complete(group, generation) ? group->outcome : ZR_ERR_COMM;
    pthread_mutex_unlock(&group->mutex);
    self->base.statistics.wait_seconds += zr_comm_clock() - start;
    return status == ZR_OK ? ZR_OK : refuse(self, call);
}

/* A later meeting: all ranks are on their way to it. Gives the same outcome to each. */
static zr_status_t meet(threads_comm_t *self, zr_status_t status) {
    group_t *group = self->group;
    double start = zr_comm_clock();
    pthread_mutex_lock(&group->mutex);
    unsigned generation = group->generation;
    count_in(group, status);
    while (!is_complete(group, generation))
        pthread_cond_wait(&group->changed, &group->mutex);
    zr_status_t outcome = group->outcome;
    pthread_mutex_unlock(&group->mutex);
    self->base.statistics.wait_seconds += zr_comm_clock() - start;
    return outcome;
}

/* This rank's device failed inside a call: end the call for the others. */
static void kill_for_failure(threads_comm_t *self, const zr_comm_call_t *call, zr_status_t status) {
    char name[RANK_TEXT_BYTES], text[ZR_COMM_DESCRIPTION_BYTES];
    describe_rank(self->group, self->base.rank, name, sizeof(name));
    zr_comm_call_describe(call, text, sizeof(text));
    pthread_mutex_lock(&self->group->mutex);
    kill_group(self->group, "%s failed with %s in %s", name, zr_status_name(status), text);
    pthread_mutex_unlock(&self->group->mutex);
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
            ZR_TRY(zr_stream_wait(call->stream, self->group->seats[rank].marks[meeting % N_MARKS]));
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
    if (atomic_load(&self->group->is_dead))
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
        self->sources[rank] = (const char *)self->group->seats[rank].call.send + begin_bytes;
    return zr_kernel_sum(call->stream, dst, self->sources, self->base.n_ranks, call->message.dtype,
                         n_elems);
}

/* all_gather: copy each rank's block, from the next rank on, so that not all read one. */
static zr_status_t gather_blocks(threads_comm_t *self, const zr_comm_call_t *call) {
    int n_ranks = self->base.n_ranks;
    size_t n_elems = call->n_elems;
    for (int i = 1; i <= n_ranks; i++) {
        int rank = (self->base.rank + i) % n_ranks;
        const void *send = self->group->seats[rank].call.send;
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
            ZR_TRY(copy_elems(call, call->recv, begin, self->group->seats[rank].call.send, begin,
                              end - begin));
    }
    return ZR_OK;
}

/* broadcast: take root's buffer. */
static zr_status_t take_from_root(threads_comm_t *self, const zr_comm_call_t *call) {
    if (self->base.rank == call->root || call->n_elems == 0)
        return ZR_OK;
    return copy_elems(call, call->recv, 0, self->group->seats[call->root].call.send, 0,
                      call->n_elems);
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
    group_t *group = ((threads_comm_t *)comm)->group;
    char name[RANK_TEXT_BYTES];
    describe_rank(group, comm->rank, name, sizeof(name));
    pthread_mutex_lock(&group->mutex);
    kill_group(group, "%s gave up: %s", name, reason);
    pthread_mutex_unlock(&group->mutex);
}

static void free_group(group_t *group) {
    pthread_cond_destroy(&group->changed);
    pthread_mutex_destroy(&group->mutex);
    free(group);
}

static void threads_destroy(zr_comm_t *comm) {
    threads_comm_t *self = (threads_comm_t *)comm;
    group_t *group = self->group;
    char name[RANK_TEXT_BYTES], last[ZR_COMM_DESCRIPTION_BYTES];
    describe_rank(group, comm->rank, name, sizeof(name));
    pthread_mutex_lock(&group->mutex);
    describe_seat(own_seat(self), last, sizeof(last));
    kill_group(group, "%s has left the communicator (latest: %s)", name, last);
    bool is_last = --group->n_members == 0;
    pthread_mutex_unlock(&group->mutex);
    for (int i = 0; i < N_MARKS; i++)
        zr_event_destroy(&self->marks[i]);
    free(self);
    if (is_last)
        free_group(group);
}

/* A mutex, and a condition on the clock that deadlines are on. */
static zr_status_t init_locks(group_t *group) {
    if (pthread_mutex_init(&group->mutex, NULL) != 0)
        return ZR_ERR_MEMORY;
    pthread_condattr_t attributes;
    if (pthread_condattr_init(&attributes) != 0)
        goto err_destroy_mutex;
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    int error = pthread_cond_init(&group->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    if (error != 0)
        goto err_destroy_mutex;
    return ZR_OK;

err_destroy_mutex:
    pthread_mutex_destroy(&group->mutex);
    return ZR_ERR_MEMORY;
}

static zr_status_t create_group(int n_ranks, bool is_nested, group_t **group_p) {
    group_t *group = calloc(1, sizeof(*group) + (size_t)n_ranks * sizeof(group->seats[0]));
    if (group == NULL)
        return ZR_ERR_MEMORY;
    if (init_locks(group) != ZR_OK) {
        free(group);
        return ZR_ERR_MEMORY;
    }
    group->n_ranks = n_ranks;
    group->n_members = n_ranks;
    group->is_nested = is_nested;
    atomic_init(&group->is_dead, false);
    *group_p = group;
    return ZR_OK;
}

static const zr_comm_backend_t threads_backend;

/*
 * A group with all its handles, or nothing.
 *
 * @param origins  [n_ranks] ranks in the first communicator, for logs and messages
 * @param comms    [n_ranks], filled on success
 */
static zr_status_t create_comms(int n_ranks, const zr_comm_options_t *options, const int *origins,
                                bool is_nested, zr_comm_t **comms) {
    group_t *group;
    int n_made = 0;
    if (create_group(n_ranks, is_nested, &group) != ZR_OK)
        goto err;
    for (; n_made < n_ranks; n_made++) {
        threads_comm_t *self =
            calloc(1, sizeof(*self) + (size_t)n_ranks * sizeof(self->sources[0]));
        if (self == NULL)
            goto err_free_comms;
        zr_comm_options_t own = *options;
        own.log = zr_log_with_rank(&options->log, origins[n_made]);
        zr_comm_init(&self->base, &threads_backend, &own, n_made, n_ranks);
        self->group = group;
        group->seats[n_made].origin_rank = origins[n_made];
        comms[n_made] = &self->base;
    }
    return ZR_OK;

err_free_comms:
    while (n_made > 0)
        free(comms[--n_made]);
    free_group(group);
err:
    return zr_fail(&options->log, ZR_ERR_MEMORY,
                   "communicator: no memory for the state of %d ranks", n_ranks);
}

zr_status_t zr_comm_create_threads(int n_ranks, const zr_comm_options_t *options,
                                   zr_comm_t **comms) {
    zr_comm_options_t defaults = zr_comm_options_default();
    if (options == NULL)
        options = &defaults;
    ZR_TRY(zr_comm_check_options(options, n_ranks));
    if (comms == NULL)
        return zr_fail(&options->log, ZR_ERR_ARGUMENT,
                       "communicator: no place (NULL) for the handles of %d ranks", n_ranks);
    int origins[ZR_MAX_SUM_SOURCES] = {0};
    for (int rank = 0; rank < n_ranks; rank++)
        origins[rank] = rank;
    zr_comm_t *made[ZR_MAX_SUM_SOURCES];
    ZR_TRY(create_comms(n_ranks, options, origins, false, made));
    memcpy(comms, made, (size_t)n_ranks * sizeof(made[0]));
    return ZR_OK;
}

/* ---- split ---- */

/* Where a rank of a color stands among that color's: by (key, rank). */
static int rank_in_color(const group_t *group, int rank) {
    const zr_comm_call_t *own = &group->seats[rank].call;
    int position = 0;
    for (int other = 0; other < group->n_ranks; other++) {
        const zr_comm_call_t *call = &group->seats[other].call;
        if (call->color == own->color &&
            (call->key < own->key || (call->key == own->key && other < rank)))
            position++;
    }
    return position;
}

/* The lowest rank of a color makes its group. */
static bool leads_color(const group_t *group, int rank) {
    int color = group->seats[rank].call.color;
    for (int other = 0; other < rank; other++)
        if (group->seats[other].call.color == color)
            return false;
    return color >= 0;
}

/* Make the group of this rank's color, and lay each member's handle on its seat. */
static zr_status_t create_offspring(threads_comm_t *self) {
    group_t *group = self->group;
    int members[ZR_MAX_SUM_SOURCES]; /* by position: rank in this communicator */
    int origins[ZR_MAX_SUM_SOURCES] = {0};
    zr_comm_t *comms[ZR_MAX_SUM_SOURCES];
    int n_members = 0;
    for (int rank = 0; rank < group->n_ranks; rank++) {
        if (group->seats[rank].call.color != own_seat(self)->call.color)
            continue;
        int position = rank_in_color(group, rank);
        members[position] = rank;
        origins[position] = group->seats[rank].origin_rank;
        n_members++;
    }
    ZR_TRY(create_comms(n_members, &self->base.options, origins, true, comms));
    for (int i = 0; i < n_members; i++)
        group->seats[members[i]].offspring = comms[i];
    return ZR_OK;
}

/* Take back what create_offspring made: a split gives groups to all ranks or to none. */
static void destroy_offspring(threads_comm_t *self) {
    group_t *group = self->group;
    for (int rank = 0; rank < group->n_ranks; rank++)
        if (group->seats[rank].call.color == own_seat(self)->call.color)
            zr_comm_destroy(&group->seats[rank].offspring);
}

static zr_status_t threads_split(zr_comm_t *comm, const zr_comm_call_t *call) {
    threads_comm_t *self = (threads_comm_t *)comm;
    ZR_TRY(arrive(self, call));
    bool leads = leads_color(self->group, comm->rank);
    zr_status_t status = leads ? create_offspring(self) : ZR_OK;
    zr_status_t outcome = meet(self, status);
    if (outcome == ZR_OK)
        *call->group_p = own_seat(self)->offspring;
    else if (leads && status == ZR_OK)
        destroy_offspring(self);
    /* Seats are the next call's after this; its outcome does not matter: all have theirs. */
    (void)meet(self, ZR_OK);
    own_seat(self)->offspring = NULL;
    if (outcome == ZR_ERR_COMM)
        return refuse(self, call);
    if (outcome != ZR_OK && status == ZR_OK)
        return zr_fail(&comm->options.log, outcome,
                       "split: another rank had no memory for its group; none is made");
    return outcome;
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
