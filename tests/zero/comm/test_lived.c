/*
 * Waits with a limit when the machine's clock goes on without the process, as it does while that is
 * stopped (SIGSTOP, a paused machine): no such gap ends a run, however long, in whatever wait, and
 * however many there are; and a wait ends nevertheless.
 *
 * The linker sends what asks for the time here (--wrap). Where a test says so, a process's clock is
 * an hour later at each look, so many times. A rank keeps the others waiting for that long.
 */
#include <stdatomic.h>
#include <sys/mman.h>
#include <time.h>

#include <liburing.h>

#include "kernels/base/lived_internal.h"
#include "kernels/kernels.h"
#include "offload/uring_ring_internal.h"
#include "tests/common/test.h"
#include "tests/zero/comm/free_port.h"
#include "tests/zero/comm/ranks.h"
#include "zero/comm/mpi/links.h"

enum { LONG_MS = 60000, N_JUMPS = 20, HOUR_S = 3600, MOST_RANKS = 4 };

/* What processes share. */
typedef struct stops {
    atomic_int round;    /* of jumps; 0: there are none yet */
    atomic_int n_jumped; /* in this round, of all processes */
} stops_t;

static stops_t *stops;
static atomic_int own_round, n_left; /* this process's */
static _Atomic int64_t offset_s;

int __real_clock_gettime(clockid_t clock, struct timespec *now_p);
int __wrap_clock_gettime(clockid_t clock, struct timespec *now_p);

int __wrap_clock_gettime(clockid_t clock, struct timespec *now_p) {
    int status = __real_clock_gettime(clock, now_p);
    if (clock != CLOCK_MONOTONIC)
        return status;
    int round = stops != NULL ? atomic_load(&stops->round) : 0;
    if (atomic_exchange(&own_round, round) != round)
        atomic_store(&n_left, N_JUMPS);
    if (atomic_load(&n_left) > 0 && atomic_fetch_sub(&n_left, 1) > 0) {
        atomic_fetch_add(&offset_s, HOUR_S);
        if (stops != NULL)
            atomic_fetch_add(&stops->n_jumped, 1);
    }
    now_p->tv_sec += atomic_load(&offset_s);
    return status;
}

/* Whoever waits for a moment that has passed meanwhile is woken. */
WRAP(int, pthread_cond_timedwait, pthread_cond_t *changed, pthread_mutex_t *lock,
     const struct timespec *until) {
    for (;;) {
        struct timespec now, soon;
        __wrap_clock_gettime(CLOCK_MONOTONIC, &now);
        if (now.tv_sec > until->tv_sec ||
            (now.tv_sec == until->tv_sec && now.tv_nsec >= until->tv_nsec))
            return ETIMEDOUT;
        __real_clock_gettime(CLOCK_MONOTONIC, &soon);
        soon.tv_nsec += 1000000;
        soon.tv_sec += soon.tv_nsec / 1000000000;
        soon.tv_nsec %= 1000000000;
        int error = __real_pthread_cond_timedwait(changed, lock, &soon);
        if (error != ETIMEDOUT)
            return error;
    }
}

/* ---- the clock itself ------------------------------------------------------------------------ */

TEST(gaps_count_little) {
    zr_lived_t clock = {0};
    assert_int_equal(zr_lived_ms(&clock), 0);
    atomic_store(&n_left, N_JUMPS);
    for (int i = 1; i <= N_JUMPS; i++) {
        assert_int_equal(zr_lived_ms(&clock), i * ZR_LIVED_STEP_MS);
        assert_in_range(clock.gap_ms, HOUR_S * 1000, HOUR_S * 1000 + LONG_MS);
    }
    int64_t before = zr_lived_machine_ms(), lived_ms = zr_lived_ms(&clock);
    while (zr_lived_ms(&clock) < lived_ms + 20)
        ; /* however often it is looked at */
    assert_true(zr_lived_machine_ms() - before >= 19);
}

/* ---- a drive ----------------------------------------------------------------------------------
 */

static int n_waits;

WRAP(int, io_uring_wait_cqe_timeout, struct io_uring *ring, struct io_uring_cqe **cqe_p,
     struct __kernel_timespec *timeout) {
    n_waits++;
    return -ETIME; /* nothing ends */
}

/* An hour at each look is not the drive's: it has as many looks as it would have had. */
TEST(a_drive_has_its_time) {
    enum { LIMIT_MS = 1500 };
    zr_ring_t *ring = NULL;
    zr_ring_completion_t completion;
    if (zr_ring_open(4, false, &ring) != 0)
        skip();
    atomic_store(&n_left, N_JUMPS);
    assert_int_equal(zr_ring_next(ring, LIMIT_MS, &completion), 0);
    atomic_store(&n_left, 0);
    assert_in_range(n_waits, LIMIT_MS / ZR_LIVED_STEP_MS, LIMIT_MS / ZR_LIVED_STEP_MS + 1);
    zr_ring_close(&ring);
}

/* ---- ranks ----------------------------------------------------------------------------------- */

/* Where the last rank keeps the others waiting. */
typedef enum place { BEFORE, WITHIN_KERNEL, WITHIN_LINKS, N_PLACES } place_t;

static place_t late_at = N_PLACES; /* of this process, or of all its ranks */
static int n_processes;

static void stop_others(void) {
    late_at = N_PLACES;
    atomic_store(&stops->n_jumped, 0);
    atomic_fetch_add(&stops->round, 1);
    while (atomic_load(&stops->n_jumped) < N_JUMPS * n_processes)
        (void)usleep(1000);
}

WRAP(zr_status_t, zr_kernel_spread, zr_stream_t *stream, void *const *dsts, int n_dsts,
     const void *const *sources, int n_sources, zr_dtype_t dtype, size_t n_elems) {
    if (late_at == WITHIN_KERNEL)
        stop_others();
    return __real_zr_kernel_spread(stream, dsts, n_dsts, sources, n_sources, dtype, n_elems);
}

WRAP(void, zr_links_post, zr_links_t *links, zr_mpi_transfer_t *transfers, size_t n_transfers) {
    if (late_at == WITHIN_LINKS)
        stop_others();
    __real_zr_links_post(links, transfers, n_transfers);
}

static void sum(rank_t *self, float *tensor) {
    static const zr_message_t message = {"x", ZR_DTYPE_F32, ZR_TRAFFIC_MODEL};
    float own[100], all[100];
    for (int i = 0; i < 100; i++)
        own[i] = (float)(self->rank + i);
    upload(self, tensor, own, sizeof(own));
    CHECK_OK(self, zr_comm_all_reduce(self->comm, &message, tensor, 100, self->stream));
    download(self, all, tensor, sizeof(all));
    int n = self->n_ranks;
    for (int i = 0; i < 100; i++)
        CHECK(self, all[i] == (float)(n * i + n * (n - 1) / 2));
}

static void stopped(rank_t *self) {
    bool is_late = self->rank == self->n_ranks - 1;
    const place_t *place = self->context;
    float *tensor = device_take(self, 100 * sizeof(float));
    n_processes = self->suite->create_rank != NULL ? self->n_ranks : 1;
    sum(self, tensor);
    if (is_late && *place == BEFORE)
        stop_others();
    else if (is_late)
        late_at = *place;
    sum(self, tensor);
    if (!is_late) /* who has failed keeps nobody waiting */
        atomic_store(&stops->n_jumped, N_JUMPS * n_processes);
    CHECK(self, !is_late || late_at == N_PLACES); /* it has come there */
    sum(self, tensor);
}

/* ---- suites ---------------------------------------------------------------------------------- */

static int port, machine_ranks; /* of the ranks that come next */

static void prepare(void) {
    port = free_port();
}

static zr_status_t create_rank(int rank, int n_ranks, const zr_comm_options_t *options,
                               zr_comm_t **comm_p) {
    zr_launch_t launch = {.host = "127.0.0.1", .port = port, .rank = rank, .n_ranks = n_ranks};
    zr_comm_options_t own = *options;
    own.machine_ranks = machine_ranks;
    launch.start_timeout_ms = LONG_MS;
    return zr_comm_create_processes(&launch, &own, comm_p);
}

static zr_status_t create(int n_ranks, const zr_comm_options_t *options, zr_comm_t **comms) {
    return create_rank(0, n_ranks, options, comms);
}

static zr_status_t open_device(zr_device_t **device_p) {
    zr_device_options_t options = zr_device_options_default();
    options.n_threads = 1;
    options.shares_memory = true;
    return zr_device_open("host", &options, device_p);
}

static const comm_suite_t threads = {.name = "threads",
                                     .create = zr_comm_create_threads,
                                     .open_device = open_device,
                                     .close_device = zr_device_close};
static const comm_suite_t processes = {.name = "processes",
                                       .create = create,
                                       .create_rank = create_rank,
                                       .prepare = prepare,
                                       .open_device = open_device,
                                       .close_device = zr_device_close};

static void stop_at(const comm_suite_t *suite, int n_ranks, place_t place) {
    stops = mmap(NULL, sizeof(*stops), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(stops != MAP_FAILED);
    run_ranks(suite, n_ranks, LONG_MS, stopped, &place);
    munmap(stops, sizeof(*stops));
    stops = NULL;
}

TEST(threads_go_on) {
    for (int n_ranks = 2; n_ranks <= MOST_RANKS; n_ranks++)
        stop_at(&threads, n_ranks, BEFORE);
}

/* Meetings in a page of memory. */
TEST(processes_of_a_machine_go_on) {
    for (place_t place = BEFORE; place <= WITHIN_KERNEL; place++)
        for (int n_ranks = 2; n_ranks <= MOST_RANKS; n_ranks += 2)
            stop_at(&processes, n_ranks, place);
}

/* Meetings at the coordinator, and data over connections. */
TEST(processes_of_machines_go_on) {
    machine_ranks = 1;
    stop_at(&processes, 2, BEFORE);
    stop_at(&processes, 3, BEFORE);
    stop_at(&processes, 2, WITHIN_LINKS);
    stop_at(&processes, 3, WITHIN_LINKS);
}
