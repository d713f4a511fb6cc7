/*
 * The communicator `mpi` where MPI is not needed: ranks of one machine that were started by hand,
 * each a process with a host device. The conformance suite; what is refused; and a process that is
 * killed in the midst of a run.
 */
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "kernels/host/host_share.h"
#include "tests/common/one_thing.h"
#include "tests/common/test.h"
#include "tests/zero/comm/comm_cases.h"
#include "tests/zero/comm/free_port.h"
#include "tests/zero/comm/process_cases.h"
#include "zero/comm/comm_backend.h"

enum { LONG_MS = 60000 };

static int port; /* of the ranks that come next */

static void prepare(void) {
    port = free_port();
}

static zr_status_t create_rank(int rank, int n_ranks, const zr_comm_options_t *options,
                               zr_comm_t **comm_p) {
    zr_launch_t launch = {.host = "127.0.0.1", .port = port, .rank = rank, .n_ranks = n_ranks};
    launch.start_timeout_ms = LONG_MS; /* short limits are those of calls */
    return zr_comm_create_processes(&launch, options, comm_p);
}

static zr_status_t create(int n_ranks, const zr_comm_options_t *options, zr_comm_t **comms) {
    return create_rank(0, n_ranks, options, comms);
}

static zr_status_t open_host(int n_threads, bool shares_memory, bool concurrent,
                             zr_device_t **device_p) {
    zr_device_options_t options = zr_device_options_default();
    options.n_threads = n_threads;
    options.shares_memory = shares_memory;
    options.concurrent = concurrent;
    return zr_device_open("host", &options, device_p);
}

static zr_status_t open_device(zr_device_t **device_p) {
    return open_host(1, false, false, device_p);
}

/* As launched programs open it: ranks map each other's memory where the system lets them. */
static zr_status_t open_shared_device(zr_device_t **device_p) {
    return open_host(1, true, false, device_p);
}

static zr_status_t open_wide_device(zr_device_t **device_p) {
    return open_host(3, false, false, device_p);
}

static zr_status_t open_concurrent_device(zr_device_t **device_p) {
    return open_host(1, false, true, device_p);
}

/* A first call with data, after which ranks of one machine meet in memory. It is not counted. */
static bool warm_up(rank_t *self) {
    zr_message_t message = {"warmth", ZR_DTYPE_F32, ZR_TRAFFIC_CONTROL};
    self->comm->n_calls = 98; /* a number that tests do not come to */
    bool is_made = zr_comm_all_reduce(self->comm, &message, self->arena, 1, self->stream) == ZR_OK;
    if (!is_made)
        note_failure(self, __FILE__, __LINE__, "a first call");
    self->comm->n_calls = 0;
    self->comm->device = NULL;
    self->comm->statistics = (zr_comm_statistics_t){0};
    return is_made;
}

/* Of several ranks, that whose process number is odd has private memory, as had they other
 * systems. */
static zr_status_t open_mixed_device(zr_device_t **device_p) {
    return getpid() % 2 ? open_device(device_p) : open_shared_device(device_p);
}

static zr_status_t open_sim(zr_device_t **device_p) {
    return zr_device_open("sim", NULL, device_p);
}

static comm_suite_t suite = {
    .name = "mpi, processes on host",
    .create = create,
    .create_rank = create_rank,
    .prepare = prepare,
    .open_device = open_device,
    .close_device = zr_device_close,
};

TEST(test_large_tensors) {
    run_ranks(&suite, 1, 60000, large_tensors, NULL);
    run_ranks(&suite, 3, 60000, large_tensors, NULL);
    suite.open_device = open_wide_device;
    run_ranks(&suite, 2, 60000, large_tensors, NULL);
    suite.open_device = open_device;
}

static zr_status_t create_on_machines(int machine_ranks, int rank, int n_ranks,
                                      const zr_comm_options_t *options, zr_comm_t **comm_p) {
    zr_comm_options_t own = *options;
    own.machine_ranks = machine_ranks;
    return create_rank(rank, n_ranks, &own, comm_p);
}

static zr_status_t create_apart(int rank, int n_ranks, const zr_comm_options_t *options,
                                zr_comm_t **comm_p) {
    return create_on_machines(2, rank, n_ranks, options, comm_p);
}

/* Machines of one rank each: all data goes over connections. */
static zr_status_t create_alone(int rank, int n_ranks, const zr_comm_options_t *options,
                                zr_comm_t **comm_p) {
    return create_on_machines(1, rank, n_ranks, options, comm_p);
}

/* Pieces and messages in several parts, in both directions at once. */
TEST(test_several_machines) {
    suite.create_rank = create_apart;
    run_ranks(&suite, 3, 60000, large_tensors, NULL);
    run_ranks(&suite, 4, 60000, large_tensors, NULL);
    suite.create_rank = create_alone;
    run_ranks(&suite, 2, 60000, large_tensors, NULL);
    suite.create_rank = create_rank;
}

static void simulated(rank_t *self) {
    zr_message_t message = {"x", ZR_DTYPE_F32, ZR_TRAFFIC_MODEL};
    char *buffer = device_take(self, 400);
    CHECK(self,
          zr_comm_all_reduce(self->comm, &message, buffer, 100, self->stream) == ZR_ERR_ARGUMENT);
    CHECK(self, strstr(self->log, "works on host memory, and the stream is of device \"sim\""));
}

TEST(test_other_device) {
    suite.open_device = open_sim;
    run_ranks(&suite, 1, 60000, simulated, NULL);
    suite.open_device = open_device;
}

static int most_maps = -1; /* of every other process; -1: no limit */

/* The linker sends the communicator's calls here (--wrap). */
WRAP(int, zr_host_map_shared, const zr_host_file_t *file, int pid, void **view_p) {
    if (most_maps < 0 || getpid() % 2)
        return __real_zr_host_map_shared(file, pid, view_p);
    return most_maps-- == 0 ? ENOMEM : __real_zr_host_map_shared(file, pid, view_p);
}

/* Some ranks cannot map others' memory, at once or when it has grown: none does. */
TEST(test_memory_that_cannot_be_mapped) {
    suite.open_device = open_shared_device;
    for (int most = 0; most <= 2; most += 2) {
        most_maps = most;
        run_ranks(&suite, 3, 60000, moved_memory, NULL);
    }
    most_maps = -1;
    suite.open_device = open_device;
}

TEST(test_moved_memory) {
    run_ranks(&suite, 3, 60000, moved_memory, NULL);
    suite.open_device = open_shared_device;
    run_ranks(&suite, 2, 60000, moved_memory, NULL);
    run_ranks(&suite, 5, 60000, moved_memory, NULL);
    run_ranks(&suite, 3, 60000, large_tensors, NULL);
    suite.open_device = open_mixed_device;
    run_ranks(&suite, 4, 60000, moved_memory, NULL);
    suite.open_device = open_device;
}

/* ---- a process that is killed ---------------------------------------------------------------- */

enum { N_PROCESSES = 3, VICTIM = 2 };

/* When the victim ends: between two calls; when others are in the second; or in that itself. Or it
 * is only too slow in that. */
typedef enum moment { BETWEEN, LATE, INSIDE, TOO_SLOW, N_MOMENTS } moment_t;

static bool dies_in_kernels, waits_in_kernels;
static atomic_int *n_let_go; /* ranks whose call has ended without the victim; all share it */

/* The linker sends the communicators' calls here (--wrap). */
WRAP(zr_status_t, zr_kernel_spread, zr_stream_t *stream, void *const *dsts, int n_dsts,
     const void *const *sources, int n_sources, zr_dtype_t dtype, size_t n_elems) {
    if (dies_in_kernels)
        (void)raise(SIGKILL);
    while (waits_in_kernels && atomic_load(n_let_go) < N_PROCESSES - 1)
        (void)usleep(1000);
    return __real_zr_kernel_spread(stream, dsts, n_dsts, sources, n_sources, dtype, n_elems);
}

static void keep_error(void *context, zr_log_level_t level, int rank, const char *message) {
    expect_one_thing(message);
    if (level == ZR_LOG_ERROR)
        snprintf(context, 512, "%s", message);
}

typedef enum verdict { RIGHT, WRONG, TOO_BUSY } verdict_t;

/* Whether the words are on a rank that was too late; which of them is, on a busy machine and with
 * little time, is not certain. */
static bool is_of_time(const char *error) {
    return strstr(error, " has waited ") != NULL || strstr(error, " heard") != NULL;
}

/* A rank: the last one is killed. The first error has to name it and the call. */
static verdict_t outlive(int rank, moment_t moment, int timeout_ms) {
    char error[512] = "";
    zr_message_t message = {"h.3 gradients", ZR_DTYPE_F32, ZR_TRAFFIC_MODEL};
    zr_comm_options_t options = zr_comm_options_default();
    zr_device_t *device = NULL;
    zr_stream_t *stream = NULL;
    zr_comm_t *comm = NULL;
    void *range = NULL;
    options.log = (zr_log_t){.sink = keep_error, .context = error, .level = ZR_LOG_ERROR};
    options.timeout_ms = timeout_ms;
    if (create_rank(rank, N_PROCESSES, &options, &comm) != ZR_OK)
        return TOO_BUSY;
    if (open_shared_device(&device) != ZR_OK || zr_stream_create(device, "comm", &stream) != ZR_OK)
        return WRONG;
    size_t granule = zr_device_info(device)->granule_bytes;
    if (zr_range_reserve(device, ZR_TIER_DEVICE, granule, &range) != ZR_OK ||
        zr_range_map(device, ZR_TIER_DEVICE, range, 0, granule) != ZR_OK)
        return WRONG;
    if (zr_comm_all_reduce(comm, &message, range, 100, stream) != ZR_OK)
        return TOO_BUSY;
    bool is_inside = moment >= INSIDE && zr_device_info(device)->shares_memory;
    dies_in_kernels = rank == VICTIM && is_inside && moment == INSIDE;
    waits_in_kernels = rank == VICTIM && is_inside && moment == TOO_SLOW;
    if (rank == VICTIM && !is_inside) {
        if (moment == LATE)
            (void)usleep(100000);
        (void)raise(SIGKILL);
    }
    zr_status_t status = zr_comm_all_reduce(comm, &message, range, 100, stream);
    atomic_fetch_add(n_let_go, 1);
    zr_comm_destroy(&comm);
    zr_stream_destroy(&stream);
    zr_range_release(device, ZR_TIER_DEVICE, &range, granule);
    zr_device_close(&device);
    char cause[256];
    snprintf(cause, sizeof(cause),
             "rank 2 is gone: its connection has ended (closed by the other process or machine) "
             "(latest: "
             "all_reduce of \"h.3 gradients\" (fp32, 100 elements, model, call %d))",
             is_inside ? 2 : 1);
    if (is_inside && moment == TOO_SLOW)
        snprintf(cause, sizeof(cause), "has waited %d ms for rank 2 to finish all_reduce of",
                 timeout_ms);
    bool is_right =
        status == ZR_ERR_COMM &&
        strstr(error, "all_reduce of \"h.3 gradients\" (fp32, 100 elements, model, call 2)") &&
        strstr(error, cause);
    if (!is_right && timeout_ms < LONG_MS && is_of_time(error))
        return TOO_BUSY;
    return is_right ? RIGHT : WRONG;
}

/* False: a busy machine has left no time to come to the moment. */
static bool lose_rank(moment_t moment, int timeout_ms) {
    pid_t children[N_PROCESSES];
    bool has_come = true;
    prepare();
    atomic_store(n_let_go, 0);
    fflush(NULL);
    for (int rank = 0; rank < N_PROCESSES; rank++) {
        children[rank] = fork();
        if (children[rank] == 0)
            _exit(outlive(rank, moment, timeout_ms));
        assert_true(children[rank] > 0);
    }
    for (int rank = 0; rank < N_PROCESSES; rank++) {
        int status = 0;
        assert_int_equal(waitpid(children[rank], &status, 0), children[rank]);
        bool is_killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
        has_come &= !WIFEXITED(status) || WEXITSTATUS(status) != TOO_BUSY;
        if (!has_come && timeout_ms < LONG_MS)
            continue;
        if (rank == VICTIM && (is_killed || moment != TOO_SLOW))
            assert_true(is_killed);
        else
            assert_true(WIFEXITED(status) && WEXITSTATUS(status) == RIGHT);
    }
    return has_come;
}

TEST(test_killed_rank) {
    n_let_go =
        mmap(NULL, sizeof(*n_let_go), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(n_let_go != MAP_FAILED);
    for (moment_t moment = BETWEEN; moment < N_MOMENTS; moment++) {
        int timeout_ms = moment == TOO_SLOW ? 300 : LONG_MS;
        while (!lose_rank(moment, timeout_ms))
            timeout_ms *= 4;
    }
    munmap(n_let_go, sizeof(*n_let_go));
}

/* With an argument: the suite alone, with memory that ranks map, or as on several machines;
 * with a second one, on streams that have a thread. */
int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "shared") == 0) {
        suite.name = "mpi, processes on host that share memory";
        suite.open_device = open_shared_device;
        suite.warm_up = warm_up;
        suite.latest = "all_reduce of \"warmth\" (fp32, 1 element, control, call 99))";
        return run_comm_suite(&suite);
    }
    if (argc > 2 && strcmp(argv[2], "beside") == 0)
        suite.open_device = open_concurrent_device;
    if (argc > 1) {
        suite.name = "mpi, processes as on two machines";
        suite.create_rank = create_apart;
        suite.machine_ranks = 2;
        return run_comm_suite(&suite);
    }
    int failed = run_comm_suite(&suite);
    return failed + run_all_tests(NULL, NULL);
}
