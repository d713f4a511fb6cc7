/*
 * What the communicator nccl does when NCCL, a GPU or a rank fails: every rank's calls and waits
 * end, with a reason that names the collective, and nothing is left behind.
 */
#include <nccl.h>
#include <stdatomic.h>

#include "allocator/allocator.h"
#include "kernels/base/lived_internal.h"
#include "kernels/kernels.h"
#include "tests/common/test.h"
#include "tests/emu/emu.h"
#include "tests/zero/comm/comm_cases.h"
#include "zero/comm/comm.h"
#include "zero/comm/nccl/nccl_link.h"

enum { LONG_MS = 60000, N_RANKS = 3 };

static zr_comm_options_t changes; /* of the next communicator's options: sums, workspace */
static int n_opened, n_gpus;      /* devices since the communicator was made; to choose from */

static zr_status_t create(int n_ranks, const zr_comm_options_t *options, zr_comm_t **comms) {
    zr_comm_options_t own = *options;
    own.sums = changes.sums;
    own.workspace_bytes = changes.workspace_bytes;
    n_opened = 0;
    return zr_comm_create_nccl_threads(n_ranks, &own, comms);
}

static zr_status_t open_device(zr_device_t **device_p) {
    zr_device_options_t options = zr_device_options_default();
    options.index = n_opened++ % n_gpus;
    return zr_device_open("cuda", &options, device_p);
}

static const comm_suite_t suite = {
    .name = "nccl on emulated GPUs",
    .create = create,
    .open_device = open_device,
    .close_device = zr_device_close,
};

/* The clock that limits are measured by, how often it was read, and what has to be before it makes
 * haste: from then on each look finds it as much later as counts (lived_internal.h). */
static atomic_uint n_clock_reads;
static atomic_size_t n_ready, n_wanted;
static atomic_bool is_ready_by_meeting; /* as often as ranks have met */
static _Atomic int64_t ahead_ms;

static int set_up(void **state) {
    changes = zr_comm_options_default();
    n_gpus = 8;
    n_wanted = SIZE_MAX;
    return 0;
}

static zr_status_t gather(rank_t *self) {
    zr_message_t message = {"h.3 parameters", ZR_DTYPE_F32, ZR_TRAFFIC_MODEL};
    char *part = device_take(self, 400);
    char *whole = device_take(self, 400 * (size_t)self->n_ranks);
    return zr_comm_all_gather(self->comm, &message, part, whole, 100, self->stream);
}

/* ---- time ---- */

WRAP(int, clock_gettime, clockid_t clock, struct timespec *now_p) {
    int status = __real_clock_gettime(clock, now_p);
    if (clock != CLOCK_MONOTONIC)
        return status;
    n_clock_reads++;
    if (n_ready >= n_wanted)
        ahead_ms += ZR_LIVED_STEP_MS;
    now_p->tv_sec += ahead_ms / 1000;
    return status;
}

WRAP(zr_status_t, zr_control_arrive, zr_comm_t *comm, const zr_comm_call_t *call,
     const void *payload, size_t payload_bytes, void *all) {
    zr_status_t status = __real_zr_control_arrive(comm, call, payload, payload_bytes, all);
    n_ready += is_ready_by_meeting;
    return status;
}

/* Nobody waits long for the next look. */
WRAP(int, pthread_cond_timedwait, pthread_cond_t *changed, pthread_mutex_t *lock,
     const struct timespec *until) {
    struct timespec soon;
    __real_clock_gettime(CLOCK_MONOTONIC, &soon);
    soon.tv_nsec += 1000000;
    soon.tv_sec += soon.tv_nsec / 1000000000;
    soon.tv_nsec %= 1000000000;
    return __real_pthread_cond_timedwait(changed, lock, &soon);
}

/* Run the ranks; once so much is ready, minutes pass in moments: whoever waits then has waited for
 * as long as is allowed, and nobody has before, however long anything really takes. */
static void run_in_haste(size_t n, void (*body)(rank_t *), void *context) {
    n_ready = 0;
    n_wanted = n;
    run_ranks(&suite, N_RANKS, LONG_MS, body, context);
    n_wanted = SIZE_MAX;
}

/* ---- sums ---- */

static void sums_in_pieces(rank_t *self) {
    static const size_t sizes[] = {1, 2, 33, 100, 1021, 4096};
    for (size_t i = 0; i < 6 * 2 * 4 && self->failure[0] == '\0'; i++) {
        comm_case_t wanted = {.collective = i % 2 ? ZR_ALL_REDUCE : ZR_REDUCE_SCATTER,
                              .dtype = i / 2 % 2 ? ZR_DTYPE_BF16 : ZR_DTYPE_F32,
                              .n_elems = sizes[i / 8],
                              .in_place = i / 4 % 2,
                              .seed = i};
        run_case(self, self->comm, &wanted);
    }
}

TEST_WITH(test_sums_in_pieces, set_up, NULL) {
    static const size_t workspaces[] = {0, 3000, 100000};
    for (int i = 0; i < 3; i++) {
        changes.workspace_bytes = workspaces[i];
        for (int n_ranks = 2; n_ranks <= 8; n_ranks += 3)
            run_ranks(&suite, n_ranks, LONG_MS, sums_in_pieces, NULL);
    }
}

/* What is allocated right behind a sum, on another stream, is not the sum's workspace. */
static void overwrite_behind(rank_t *self, zr_allocator_t *allocator, zr_stream_t *other) {
    enum { N_ELEMS = 5000 };
    zr_message_t message = {"x", ZR_DTYPE_F32, ZR_TRAFFIC_MODEL};
    zr_allocation_request_t request = {.size_bytes = (N_RANKS - 1) * N_ELEMS * sizeof(float),
                                       .tag = ZR_TAG_OTHER,
                                       .lifetime = ZR_LIFETIME_COLLECTIVE,
                                       .stream = other};
    float *values = host_take(self, N_RANKS * N_ELEMS * sizeof(float));
    float *buffer = device_take(self, N_RANKS * N_ELEMS * sizeof(float));
    void *next = NULL;
    for (int i = 0; i < N_RANKS * N_ELEMS; i++)
        values[i] = (float)(self->rank + 1);
    upload(self, buffer, values, N_RANKS * N_ELEMS * sizeof(float));
    CHECK(self, zr_comm_reduce_scatter(self->comm, &message, buffer, buffer + N_ELEMS * self->rank,
                                       N_ELEMS, self->stream) == ZR_OK);
    CHECK(self, zr_allocate(allocator, &request, &next) == ZR_OK);
    CHECK(self, zr_kernel_fill(other, next, ZR_DTYPE_F32, (N_RANKS - 1) * N_ELEMS, 99) == ZR_OK);
    zr_free(allocator, &next, other);
    CHECK(self, zr_stream_synchronize(other) == ZR_OK);
    download(self, values, buffer + N_ELEMS * self->rank, N_ELEMS * sizeof(float));
    CHECK(self, zr_stream_synchronize(self->stream) == ZR_OK);
    for (int i = 0; i < N_ELEMS; i++)
        CHECK(self, values[i] == 6);
}

static void concurrent_sums(rank_t *self) {
    zr_allocator_t *allocator = NULL;
    zr_tier_statistics_t statistics;
    zr_stream_t *other = NULL;
    CHECK(self, zr_allocator_create(self->device, NULL, &allocator) == ZR_OK);
    CHECK(self, zr_stream_create(self->device, "other", &other) == ZR_OK);
    zr_comm_set_allocator(self->comm, allocator);
    for (int i = 0; i < 20 && self->failure[0] == '\0'; i++) {
        overwrite_behind(self, allocator, other);
        if (self->failure[0] == '\0')
            release_memory(self);
    }
    zr_allocator_statistics(allocator, ZR_TIER_DEVICE, &statistics);
    if (statistics.by_tag[ZR_TAG_WORKSPACE].peak != *(const size_t *)self->context)
        note_failure(self, __FILE__, __LINE__, "the workspace is as large as the sum needs");
    if (statistics.by_tag[ZR_TAG_WORKSPACE].live != 0)
        note_failure(self, __FILE__, __LINE__, "the workspace is given back");
    zr_comm_set_allocator(self->comm, NULL);
    zr_stream_destroy(&other);
    zr_allocator_destroy(&allocator);
}

TEST_WITH(test_workspace, set_up, NULL) {
    size_t expected = (N_RANKS - 1) * 5000 * sizeof(float);
    run_ranks(&suite, N_RANKS, LONG_MS, concurrent_sums, &expected);
    changes.workspace_bytes = expected - 1; /* two pieces of whole lines in it */
    expected = (N_RANKS - 1) * 2 * (5000 / 2 / 32 * 32) * sizeof(float);
    run_ranks(&suite, N_RANKS, LONG_MS, concurrent_sums, &expected);
}

/* The others are told what the allocator of the last rank says, which has too little. */
static void a_workspace_does_not_fit(rank_t *self) {
    zr_message_t message = {"h.3 gradients", ZR_DTYPE_F32, ZR_TRAFFIC_MODEL};
    zr_allocator_options_t options = zr_allocator_options_default();
    zr_allocator_t *allocator = NULL;
    float *buffer = device_take(self, N_RANKS * 5000 * sizeof(float));
    bool has_little = self->rank == N_RANKS - 1;
    if (has_little)
        options.budget_bytes[ZR_TIER_DEVICE] = 4096;
    CHECK(self, zr_allocator_create(self->device, &options, &allocator) == ZR_OK);
    zr_comm_set_allocator(self->comm, allocator);
    zr_status_t status = zr_comm_reduce_scatter(
        self->comm, &message, buffer, buffer + 5000 * (size_t)self->rank, 5000, self->stream);
    CHECK(self, status == (has_little ? ZR_ERR_BUDGET : ZR_ERR_COMM));
    zr_comm_set_allocator(self->comm, NULL);
    zr_allocator_destroy(&allocator);
    CHECK(self, zr_comm_barrier(self->comm, "dead") == ZR_ERR_COMM);
    const char *reason = strstr(self->log, "rank 2 failed with ZR_ERR_BUDGET in reduce_scatter of");
    CHECK(self, reason != NULL);
    CHECK(self, strstr(reason, ": device memory: ") != NULL);
    CHECK(self, strstr(reason, "does not fit") != NULL);
}

TEST_WITH(test_workspace_that_does_not_fit, set_up, NULL) {
    run_ranks(&suite, N_RANKS, LONG_MS, a_workspace_does_not_fit, NULL);
}

/* Numbers whose sum does not depend on the order. */
static void sums_of_nccl(rank_t *self) {
    float values[12], sums[12];
    zr_message_t message = {"x", ZR_DTYPE_F32, ZR_TRAFFIC_MODEL};
    for (int i = 0; i < 12; i++)
        values[i] = (float)(i * 10 + self->rank);
    float *buffer = device_take(self, sizeof(values));
    upload(self, buffer, values, sizeof(values));
    CHECK(self, zr_comm_all_reduce(self->comm, &message, buffer, 12, self->stream) == ZR_OK);
    CHECK(self, zr_comm_reduce_scatter(self->comm, &message, buffer, buffer + 4 * self->rank, 4,
                                       self->stream) == ZR_OK);
    download(self, sums, buffer + 4 * self->rank, 4 * sizeof(float));
    CHECK(self, zr_stream_synchronize(self->stream) == ZR_OK);
    CHECK(self, zr_comm_check(self->comm) == ZR_OK);
    for (int i = 0; i < 4; i++)
        CHECK(self, sums[i] == 3 * (3 * (float)((4 * self->rank + i) * 10) + 3));
}

TEST_WITH(test_sums_of_nccl, set_up, NULL) {
    changes.sums = ZR_SUM_ANY;
    run_ranks(&suite, N_RANKS, LONG_MS, sums_of_nccl, NULL);
}

/* ---- collectives that hang ---- */

/* What ends the others' wait for rank 1, whose launch is lost. */
typedef enum ending { BY_TIME, BY_ERROR, BY_ABORT, BY_LEAVING_NEVER } ending_t;

static void hang(rank_t *self) {
    const ending_t *ending = self->context;
    CHECK(self, gather(self) == ZR_OK);
    n_ready++;
    if (self->rank == 1 && *ending == BY_ERROR)
        emu_nccl_fail(0, ncclRemoteError);
    if (self->rank == 1 && *ending == BY_ABORT)
        zr_comm_abort(self->comm, "no bytes left on the drive");
    if (self->rank != 1) /* hangs, until the watch ends it */
        CHECK(self, zr_stream_synchronize(self->stream) == ZR_OK);
    pthread_barrier_wait(self->together);
    CHECK(self, zr_comm_check(self->comm) == ZR_ERR_COMM);
    const char *call = "all_gather of \"h.3 parameters\" (fp32, 100 elements, model, call 1)";
    if (*ending == BY_TIME) {
        CHECK(self, strstr(self->log, "has waited 60000 ms for all_gather") != NULL);
        CHECK(self, strstr(self->log, call) != NULL);
    } else if (*ending == BY_ERROR) {
        CHECK(self, strstr(self->log, "rank 0 failed with ZR_ERR_COMM in all_gather") != NULL);
        CHECK(self, strstr(self->log, "network error") != NULL);
        CHECK(self, strstr(self->log, call) != NULL);
    } else {
        CHECK(self, strstr(self->log, "rank 1 gave up: no bytes left on the drive") != NULL);
    }
    CHECK(self, zr_comm_barrier(self->comm, "dead") == ZR_ERR_COMM);
}

TEST_WITH(test_hanging_collectives, set_up, NULL) {
    for (ending_t ending = BY_TIME; ending <= BY_ABORT; ending++) {
        size_t n_aborted = emu_nccl_n_aborted();
        emu_nccl_lose_launch(1, 1);
        run_in_haste(ending == BY_TIME ? N_RANKS : SIZE_MAX, hang, &ending);
        emu_nccl_fail(0, 0);
        assert_int_equal(emu_nccl_n_aborted() - n_aborted, N_RANKS);
    }
}

/* With more launches behind it than there are notes, which wait for room. */
static void hang_before_many(rank_t *self) {
    zr_message_t message = {"x", ZR_DTYPE_F32, ZR_TRAFFIC_MODEL};
    char *buffer = device_take(self, 400);
    zr_status_t status = gather(self);
    for (int i = 1; i < 100 && status == ZR_OK; i++) {
        n_ready += i == ZR_NCCL_NOTES;
        status = zr_comm_broadcast(self->comm, &message, buffer, 100, 0, self->stream);
    }
    CHECK(self, status == ZR_ERR_COMM);
    CHECK(self, zr_stream_synchronize(self->stream) == ZR_OK);
    pthread_barrier_wait(self->together);
    CHECK(self, strstr(self->log, "has waited 60000 ms for ") != NULL);
}

TEST_WITH(test_hanging_before_many, set_up, NULL) {
    emu_nccl_lose_launch(1, 1);
    run_in_haste(N_RANKS, hang_before_many, NULL);
}

/* Until all watches have looked for longer than the limit is, or one has ended its communicator. */
static void wait_for_looks(size_t n_aborted) {
    enum { ENOUGH = 4 * N_RANKS * LONG_MS / ZR_LIVED_STEP_MS }; /* each look reads it twice */
    unsigned begin = n_clock_reads;
    n_wanted = 0;
    while (n_clock_reads - begin < ENOUGH && emu_nccl_n_aborted() == n_aborted)
        usleep(1000);
    n_wanted = SIZE_MAX;
}

/* Minutes behind other work are not the collective's. */
static void come_late(rank_t *self) {
    size_t n_aborted = emu_nccl_n_aborted();
    CHECK(self, gather(self) == ZR_OK);
    CHECK(self, zr_stream_synchronize(self->stream) == ZR_OK);
    if (pthread_barrier_wait(self->together) == PTHREAD_BARRIER_SERIAL_THREAD)
        emu_hold(true);
    pthread_barrier_wait(self->together);
    CHECK(self, gather(self) == ZR_OK);
    if (pthread_barrier_wait(self->together) == PTHREAD_BARRIER_SERIAL_THREAD) {
        wait_for_looks(n_aborted);
        emu_hold(false);
    }
    pthread_barrier_wait(self->together);
    CHECK(self, emu_nccl_n_aborted() == n_aborted);
    CHECK(self, zr_stream_synchronize(self->stream) == ZR_OK);
    CHECK(self, zr_comm_check(self->comm) == ZR_OK);
}

TEST_WITH(test_time_behind_other_work, set_up, NULL) {
    run_ranks(&suite, N_RANKS, LONG_MS, come_late, NULL);
}

/* A rank that leaves takes nothing from the others that it has agreed to: the second collective
 * begins once it has looked whether that is done. */
static void leave_early(rank_t *self) {
    CHECK(self, gather(self) == ZR_OK);
    CHECK(self, zr_stream_synchronize(self->stream) == ZR_OK);
    pthread_barrier_wait(self->together);
    if (self->rank == 0)
        emu_hold_until_asked();
    pthread_barrier_wait(self->together);
    CHECK(self, gather(self) == ZR_OK);
    if (self->rank == 0) {
        zr_comm_destroy(&self->comm);
        emu_hold(false);
    }
    pthread_barrier_wait(self->together);
    if (self->rank == 0)
        return;
    CHECK(self, zr_stream_synchronize(self->stream) == ZR_OK);
    CHECK(self, zr_comm_check(self->comm) == ZR_OK);
    CHECK(self, zr_comm_barrier(self->comm, "after") == ZR_ERR_COMM);
}

TEST_WITH(test_rank_that_leaves, set_up, NULL) {
    size_t n_aborted = emu_nccl_n_aborted();
    for (int i = 0; i < 3; i++)
        run_ranks(&suite, N_RANKS, LONG_MS, leave_early, NULL);
    assert_int_equal(emu_nccl_n_aborted(), n_aborted); /* all of them were finalized */
}

/* More launches than there are notes, on ranks that do not wait for each other. */
static void run_ahead(rank_t *self) {
    zr_message_t message = {"x", ZR_DTYPE_F32, ZR_TRAFFIC_MODEL};
    char *buffer = device_take(self, 400);
    for (int i = 0; i < 200; i++)
        CHECK(self, zr_comm_broadcast(self->comm, &message, buffer, 100, i % self->n_ranks,
                                      self->stream) == ZR_OK);
    CHECK(self, zr_stream_synchronize(self->stream) == ZR_OK);
    CHECK(self, zr_comm_check(self->comm) == ZR_OK);
}

/* Nothing passes, but for a rank that looks for room: for one launch more than there are notes. */
static void look_for_room(rank_t *self) {
    zr_message_t message = {"x", ZR_DTYPE_F32, ZR_TRAFFIC_MODEL};
    char *buffer = device_take(self, 400);
    if (self->rank == 0)
        emu_hold_until_asked();
    pthread_barrier_wait(self->together);
    for (int i = 0; i <= ZR_NCCL_NOTES; i++) {
        CHECK(self, self->rank != 0 || emu_is_held());
        CHECK(self, zr_comm_broadcast(self->comm, &message, buffer, 100, 0, self->stream) == ZR_OK);
    }
    bool is_held = emu_is_held();
    if (self->rank == 0)
        emu_hold(false);
    CHECK(self, self->rank != 0 || !is_held);
    CHECK(self, zr_stream_synchronize(self->stream) == ZR_OK);
    CHECK(self, zr_comm_check(self->comm) == ZR_OK);
}

TEST_WITH(test_many_in_flight, set_up, NULL) {
    run_ranks(&suite, N_RANKS, LONG_MS, look_for_room, NULL);
    run_ranks(&suite, N_RANKS, LONG_MS, run_ahead, NULL);
}

/* ---- beginnings ---- */

static void connect_in_vain(rank_t *self) {
    const char *const *words = self->context;
    zr_status_t status = gather(self);
    CHECK(self, status == ZR_ERR_COMM);
    CHECK(self, strstr(self->log, "all_gather of \"h.3 parameters\"") != NULL);
    CHECK(self, strstr(self->log, *words) != NULL);
    CHECK(self, zr_comm_barrier(self->comm, "dead") == ZR_ERR_COMM);
}

TEST_WITH(test_beginnings_that_fail, set_up, NULL) {
    const char *words = "to connect its ranks through NCCL";
    emu_nccl_stall(true);
    is_ready_by_meeting = true;
    run_in_haste(N_RANKS, connect_in_vain, &words);
    is_ready_by_meeting = false;
    emu_nccl_stall(false);
    words = "unhandled system error";
    for (int nth = 1; nth <= N_RANKS; nth++) {
        emu_fail_call("ncclCommInitRankConfig", nth, ncclSystemError);
        run_ranks(&suite, N_RANKS, LONG_MS, connect_in_vain, &words);
    }
    words = "failed in ncclGetUniqueId";
    emu_fail_call("ncclGetUniqueId", 1, ncclSystemError);
    run_ranks(&suite, N_RANKS, LONG_MS, connect_in_vain, &words);
    words = "invalid usage"; /* two ranks on one GPU */
    n_gpus = 2;
    run_ranks(&suite, N_RANKS, LONG_MS, connect_in_vain, &words);
}

/* ---- each call failing ---- */

static void try_everything(rank_t *self) {
    zr_message_t message = {"x", ZR_DTYPE_F32, ZR_TRAFFIC_MODEL};
    float *buffer = device_take(self, 4 * 100);
    zr_comm_t *group = NULL;
    zr_status_t status = gather(self);
    ZR_THEN(status, zr_comm_all_reduce(self->comm, &message, buffer, 100, self->stream));
    ZR_THEN(status, zr_comm_broadcast(self->comm, &message, buffer, 100, 1, self->stream));
    ZR_THEN(status, zr_comm_split(self->comm, 0, 0, &group));
    ZR_THEN(status, zr_comm_reduce_scatter(group, &message, buffer, buffer + 30 * self->rank, 30,
                                           self->stream));
    if (zr_stream_synchronize(self->stream) == ZR_OK && status == ZR_OK)
        status = zr_comm_check(self->comm);
    CHECK(self, status == ZR_OK || status == ZR_ERR_COMM || status == ZR_ERR_DEVICE);
    if (status == ZR_ERR_COMM) /* a device has a log of its own */
        CHECK(self, self->log[0] != '\0');
    if (status != ZR_OK)
        zr_comm_abort(self->comm, "what failed was said");
    zr_comm_destroy(&group);
}

TEST_WITH(test_each_call_failing, set_up, NULL) {
    static const char *const calls[] = {
        "ncclGetUniqueId", "ncclCommInitRankConfig", "ncclCommGetAsyncError", "ncclGroupStart",
        "ncclGroupEnd",    "ncclAllGather",          "ncclBroadcast",         "ncclSend",
        "ncclRecv",        "ncclCommFinalize",       "ncclCommDestroy",       "ncclCommAbort",
        "cudaEventRecord", "cudaEventCreate",        "cudaEventQuery",        "cudaStreamWaitEvent",
    };
    changes.workspace_bytes = 0; /* sums in pieces */
    for (size_t i = 0; i < N_OF(calls); i++) {
        bool is_cuda = strncmp(calls[i], "cuda", 4) == 0;
        for (int nth = 1; nth <= 9; nth += 4) {
            emu_fail_call(calls[i], nth, is_cuda ? 1 : ncclInternalError);
            run_ranks(&suite, N_RANKS, LONG_MS, try_everything, NULL);
        }
    }
    emu_fail_call(NULL, 0, 0);
}

/* ---- another device ---- */

TEST_WITH(test_host_device, set_up, NULL) {
    zr_device_t *device = NULL;
    zr_stream_t *stream = NULL;
    zr_comm_t *comm = NULL;
    float value = 1;
    zr_message_t message = {"x", ZR_DTYPE_F32, ZR_TRAFFIC_MODEL};
    assert_ok(zr_comm_create_nccl_threads(1, NULL, &comm));
    assert_ok(zr_device_open("host", NULL, &device));
    assert_ok(zr_stream_create(device, "comm", &stream));
    assert_int_equal(zr_comm_all_reduce(comm, &message, &value, 1, stream), ZR_ERR_ARGUMENT);
    zr_comm_destroy(&comm);
    zr_stream_destroy(&stream);
    zr_device_close(&device);
    assert_true(zr_comm_has_nccl());
}

int main(void) {
    emu_options_t machine = emu_options_default();
    machine.n_devices = 8;
    emu_configure(&machine);
    return run_all_tests(NULL, NULL);
}
