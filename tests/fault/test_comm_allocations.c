/*
 * Ranks of the communicator `mpi`, which connect over TCP, with one of their allocations refused,
 * once for each: memory, a mapping, a thread, a socket. It ends for every rank, those that fail
 * have said why, who goes on has the right sums, and nothing is left behind.
 *
 * The ranks are threads of the test here, so that all that they allocate is counted in one place.
 * Once they are connected they hear of each other's failures. Before, others can only wait until it
 * has been too long, so beginning is tried by a rank that nobody comes to.
 */
#include <pthread.h>
#include <sys/socket.h>

#include "tests/common/one_thing.h"
#include "tests/common/test.h"
#include "tests/fault/fault_wrap.h"
#include "tests/zero/comm/free_port.h"
#include "zero/zero.h"

enum {
    N_RANKS = 3,
    N_ELEMS = 1000,
    START_MS = 60000,      /* for ranks to come */
    ALONE_MS = 1,          /* for ranks to come where there are none */
    WATCHDOG_SECONDS = 100 /* a run takes milliseconds; one that takes this long hangs */
};
/* Of how many calls one is refused: sanitizers make a run many times slower, so they see fewer. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define STRIDE 11
#else
#define STRIDE 2
#endif

/* ---- descriptors ----------------------------------------------------------------------------- */

#define WRAP(type, name, ...)                                                                      \
    type __real_##name(__VA_ARGS__);                                                               \
    type __wrap_##name(__VA_ARGS__);                                                               \
    type __wrap_##name(__VA_ARGS__)

WRAP(int, socket, int domain, int type, int protocol) {
    return fault_meets(EMFILE) ? -1 : __real_socket(domain, type, protocol);
}
WRAP(int, socketpair, int domain, int type, int protocol, int pair[2]) {
    return fault_meets(EMFILE) ? -1 : __real_socketpair(domain, type, protocol, pair);
}
WRAP(int, pipe2, int pair[2], int flags) {
    return fault_meets(EMFILE) ? -1 : __real_pipe2(pair, flags);
}
WRAP(int, memfd_create, const char *name, unsigned flags) {
    return fault_meets(EMFILE) ? -1 : __real_memfd_create(name, flags);
}

/* ---- ranks ----------------------------------------------------------------------------------- */

typedef struct rank {
    int rank, port, machine_ranks;
    zr_device_t *device;
    zr_stream_t *stream;
    float *numbers; /* [N_ELEMS] of the device, for sums, and so many for each rank behind it */
    zr_log_t log;
    zr_status_t status;
    bool is_right; /* the sums, if it came so far */
    char error[512];
} rank_t;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* rank 0's process has threads that log */

static void keep_error(void *context, zr_log_level_t level, int rank, const char *message) {
    expect_one_thing(message);
    rank_t *self = context;
    pthread_mutex_lock(&lock);
    if (level == ZR_LOG_ERROR && self->error[0] == '\0')
        snprintf(self->error, sizeof(self->error), "%s", message);
    pthread_mutex_unlock(&lock);
}

static pthread_barrier_t together;

/* Everything that takes memory: who is where, sums, what all need, and groups. */
static zr_status_t talk(rank_t *self, zr_comm_t *comm, zr_comm_t **group_p) {
    zr_message_t message = {"numbers", ZR_DTYPE_F32, ZR_TRAFFIC_CONTROL};
    for (size_t i = 0; i < N_ELEMS; i++)
        self->numbers[i] = (float)(i % 7) + (float)self->rank;
    ZR_TRY(zr_comm_all_reduce(comm, &message, self->numbers, N_ELEMS, self->stream));
    ZR_TRY(zr_stream_synchronize(self->stream));
    self->is_right = true;
    for (size_t i = 0; i < N_ELEMS; i++)
        self->is_right &= self->numbers[i] == (float)(N_RANKS * (i % 7) + 3);
    ZR_TRY(zr_comm_all_gather(comm, &message, self->numbers, self->numbers + N_ELEMS, N_ELEMS,
                              self->stream));
    ZR_TRY(zr_comm_split(comm, self->rank / 2, 0, group_p));
    ZR_TRY(zr_comm_all_reduce(*group_p, &message, self->numbers, N_ELEMS, self->stream));
    return zr_comm_barrier(comm, "the end");
}

static zr_launch_t launch_of(const rank_t *self, int start_ms) {
    return (zr_launch_t){.host = "127.0.0.1",
                         .port = self->port,
                         .rank = self->rank,
                         .n_ranks = N_RANKS,
                         .start_timeout_ms = start_ms};
}

static void *run_rank(void *argument) {
    rank_t *self = argument;
    zr_launch_t launch = launch_of(self, START_MS);
    zr_comm_options_t options = zr_comm_options_default();
    zr_comm_t *comm = NULL, *group = NULL;
    options.log = self->log;
    options.machine_ranks = self->machine_ranks;
    self->status = zr_comm_create_processes(&launch, &options, &comm);
    pthread_barrier_wait(&together); /* what comes counts */
    pthread_barrier_wait(&together);
    if (self->status == ZR_OK)
        self->status = talk(self, comm, &group);
    if (self->status != ZR_OK)
        zr_comm_abort(comm, "an error");
    zr_comm_destroy(&group);
    zr_comm_destroy(&comm);
    return NULL;
}

static void open_rank(rank_t *self) {
    zr_device_options_t options = zr_device_options_default();
    options.n_threads = 1;
    assert_ok(zr_device_open("host", &options, &self->device));
    assert_ok(zr_stream_create(self->device, "comm", &self->stream));
    self->numbers = malloc((1 + N_RANKS) * N_ELEMS * sizeof(float));
    assert_non_null(self->numbers);
}

static void close_rank(rank_t *self) {
    free(self->numbers);
    zr_stream_destroy(&self->stream);
    zr_device_close(&self->device);
}

/* What there was before a run, and has to be there again behind it. */
typedef struct left {
    long live, mapped_bytes;
    size_t n_descriptors;
} left_t;

static left_t look(void) {
    return (left_t){fault_live(), fault_mapped_bytes(), fault_descriptors()};
}

static void check_left(const left_t *before, long at) {
    left_t now = look();
    if (now.live != before->live || now.mapped_bytes != before->mapped_bytes ||
        now.n_descriptors != before->n_descriptors)
        fail_msg("call %ld: %ld allocations, %ld mapped bytes, %ld files are left", at,
                 now.live - before->live, now.mapped_bytes - before->mapped_bytes,
                 (long)now.n_descriptors - (long)before->n_descriptors);
}

static void prepare_rank(rank_t *self, int port) {
    self->port = port;
    self->error[0] = '\0';
    self->is_right = true;
    self->log =
        (zr_log_t){.sink = keep_error, .context = self, .level = ZR_LOG_WARNING, .rank = -1};
}

/* One run; false: fewer calls were made than were to fail. */
static bool run(rank_t *ranks, long at) {
    pthread_t threads[N_RANKS];
    int port = free_port();
    left_t before = look();
    alarm(WATCHDOG_SECONDS);
    for (int rank = 0; rank < N_RANKS; rank++) {
        prepare_rank(&ranks[rank], port);
        assert_int_equal(pthread_create(&threads[rank], NULL, run_rank, &ranks[rank]), 0);
    }
    pthread_barrier_wait(&together);
    fault_arm(at);
    pthread_barrier_wait(&together);
    for (int rank = 0; rank < N_RANKS; rank++)
        pthread_join(threads[rank], NULL);
    alarm(0);
    bool hit = fault_hit();
    fault_arm(0);
    for (int rank = 0; rank < N_RANKS; rank++) {
        const rank_t *self = &ranks[rank];
        if (self->status != ZR_OK && self->error[0] == '\0')
            fail_msg("call %ld: rank %d: %s, and nobody said why", at, rank,
                     zr_status_name(self->status));
        if (self->status != ZR_OK && !hit)
            fail_msg("nothing was refused, but rank %d: %s: %s", rank, zr_status_name(self->status),
                     self->error);
        if (!self->is_right)
            fail_msg("call %ld: rank %d has other sums", at, rank);
    }
    check_left(&before, at);
    return hit;
}

static void refuse_each(int machine_ranks) {
    rank_t ranks[N_RANKS];
    bool hit = true;
    long n = 0;
    for (int rank = 0; rank < N_RANKS; rank++) {
        ranks[rank] = (rank_t){.rank = rank, .machine_ranks = machine_ranks};
        open_rank(&ranks[rank]);
    }
    for (n = 0; hit || n == 1; n += n == 0 ? 1 : STRIDE)
        hit = run(ranks, n);
    print_message("a run has about %ld calls\n", n);
    assert_true(n > 30);
    for (int rank = 0; rank < N_RANKS; rank++)
        close_rank(&ranks[rank]);
}

TEST(of_one_machine) {
    refuse_each(0);
}

TEST(of_several_machines) {
    refuse_each(1);
}

/* Nobody comes to it, or there is nobody to come to. */
static void begin_alone(int rank) {
    rank_t self = {.rank = rank};
    bool hit = true;
    for (long n = 1; hit; n++) {
        zr_comm_options_t options = zr_comm_options_default();
        zr_comm_t *comm = NULL;
        prepare_rank(&self, free_port());
        zr_launch_t launch = launch_of(&self, ALONE_MS);
        options.log = self.log;
        left_t before = look();
        fault_arm(n);
        alarm(WATCHDOG_SECONDS);
        zr_status_t status = zr_comm_create_processes(&launch, &options, &comm);
        alarm(0);
        hit = fault_hit();
        fault_arm(0);
        assert_true(status == ZR_ERR_COMM || (hit && status == ZR_ERR_MEMORY));
        assert_string_not_equal(self.error, "");
        assert_null(comm);
        check_left(&before, n);
        assert_true(hit || n > 3);
    }
}

TEST(beginning) {
    begin_alone(0);
    begin_alone(1);
}

int main(void) {
    if (pthread_barrier_init(&together, NULL, N_RANKS + 1) != 0)
        return 1;
    return run_all_tests(NULL, NULL);
}
