/*
 * The communicators' conformance suite on nccl: every rank has an emulated GPU of its own. Ranks
 * are threads, threads that agree over TCP ("tcp"), or processes ("processes"), of which one may be
 * killed.
 */
#include <nccl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

#include "tests/common/one_thing.h"
#include "tests/common/test.h"
#include "tests/emu/emu.h"
#include "tests/zero/comm/comm_suite.h"
#include "tests/zero/comm/free_port.h"

static int n_ranks_now, n_opened; /* of the communicator made last; devices opened for it */

static zr_status_t create(int n_ranks, const zr_comm_options_t *options, zr_comm_t **comms) {
    n_ranks_now = n_ranks;
    n_opened = 0;
    return zr_comm_create_nccl_threads(n_ranks, options, comms);
}

/* The same ranks as if they were processes: they find each other, and agree, over TCP. */
typedef struct process {
    pthread_t thread;
    zr_launch_t launch;
    const zr_comm_options_t *options;
    zr_comm_t *comm;
    zr_status_t status;
} process_t;

static void *start_process(void *argument) {
    process_t *process = argument;
    process->status = zr_comm_create_nccl(&process->launch, process->options, &process->comm);
    return NULL;
}

static zr_status_t create_over_tcp(int n_ranks, const zr_comm_options_t *options,
                                   zr_comm_t **comms) {
    process_t processes[MAX_TEST_RANKS];
    if (n_ranks < 2 || options->timeout_ms < 1 || n_ranks > MAX_TEST_RANKS)
        return create(n_ranks, options, comms); /* one rank needs nobody; or it is refused */
    zr_comm_options_t patient = *options;
    n_ranks_now = n_ranks;
    n_opened = 0;
    zr_launch_t launch = {.host = "127.0.0.1", .port = free_port(), .n_ranks = n_ranks};
    for (int rank = 0; rank < n_ranks; rank++) {
        processes[rank] = (process_t){.launch = launch, .options = &patient};
        processes[rank].launch.rank = rank;
        if (pthread_create(&processes[rank].thread, NULL, start_process, &processes[rank]) != 0)
            abort();
    }
    zr_status_t status = ZR_OK;
    for (int rank = 0; rank < n_ranks; rank++) {
        pthread_join(processes[rank].thread, NULL);
        status = processes[rank].status != ZR_OK ? processes[rank].status : status;
        comms[rank] = processes[rank].comm;
    }
    return status;
}

/* A process that is a rank. */
static int port;

static void prepare(void) {
    port = free_port();
}

static zr_status_t create_rank(int rank, int n_ranks, const zr_comm_options_t *options,
                               zr_comm_t **comm_p) {
    zr_launch_t launch = {.host = "127.0.0.1", .port = port, .rank = rank, .n_ranks = n_ranks};
    n_ranks_now = n_ranks;
    n_opened = rank;
    if (n_ranks == 1)
        return zr_comm_create_nccl_threads(1, options, comm_p); /* it needs nobody */
    return zr_comm_create_nccl(&launch, options, comm_p);
}

static zr_status_t open_device(zr_device_t **device_p) {
    zr_device_options_t options = zr_device_options_default();
    options.index = n_opened++;
    return zr_device_open("cuda", &options, device_p);
}

/* A single rank copies; others have NCCL do it. */
static void fail_copy(zr_stream_t *stream) {
    (void)stream; /* what this thread asks for next is for it */
    if (n_ranks_now == 1)
        emu_fail_call("cudaMemcpyAsync", 1, cudaErrorInvalidValue);
    else
        emu_nccl_fail_next(ncclUnhandledCudaError);
}

/* ---- a process that is killed ---------------------------------------------------------------- */

enum { N_PROCESSES = 4, VICTIM = 2 };

static void keep_errors(void *context, zr_log_level_t level, int rank, const char *message) {
    expect_one_thing(message);
    size_t length = strlen(context);
    if (level == ZR_LOG_ERROR)
        snprintf((char *)context + length, 1024 - length, "%s\n", message);
}

/* One rank. The victim has agreed to a call with the others, and dies before its device is there:
 * theirs hang in it until the watch ends them. */
static bool outlive(int rank) {
    char errors[1024] = "";
    zr_message_t message = {"h.3 parameters", ZR_DTYPE_F32, ZR_TRAFFIC_MODEL};
    zr_comm_options_t options = zr_comm_options_default();
    rank_t self = {.rank = rank, .n_ranks = N_PROCESSES, .suite = NULL};
    options.log = (zr_log_t){.sink = keep_errors, .context = errors, .level = ZR_LOG_ERROR};
    void *buffer = NULL;
    if (create_rank(rank, N_PROCESSES, &options, &self.comm) != ZR_OK ||
        open_device(&self.device) != ZR_OK ||
        zr_stream_create(self.device, "comm", &self.stream) != ZR_OK)
        return false;
    size_t size_bytes = zr_device_info(self.device)->granule_bytes;
    if (zr_range_reserve(self.device, ZR_TIER_DEVICE, size_bytes, &buffer) != ZR_OK ||
        zr_range_map(self.device, ZR_TIER_DEVICE, buffer, 0, size_bytes) != ZR_OK)
        return false;
    bool is_right = true;
    for (int i = 0; i < 2; i++) {
        if (rank == VICTIM && i == 1)
            emu_nccl_lose_launch(rank, 1);
        is_right = is_right && zr_comm_all_gather(self.comm, &message, (char *)buffer + 400 * rank,
                                                  buffer, 100, self.stream) == ZR_OK;
        if (i == 0)
            is_right = is_right && zr_stream_synchronize(self.stream) == ZR_OK;
    }
    if (rank == VICTIM)
        (void)raise(SIGKILL);
    is_right = is_right && zr_stream_synchronize(self.stream) == ZR_OK &&
               zr_comm_check(self.comm) == ZR_ERR_COMM &&
               strstr(errors, "rank 2 is gone: its connection has ended") != NULL &&
               emu_nccl_n_aborted() == 1;
    if (!is_right)
        print_error("rank %d: %zu aborted; it logged: %s\n", rank, emu_nccl_n_aborted(), errors);
    zr_comm_destroy(&self.comm);
    zr_stream_destroy(&self.stream);
    zr_range_release(self.device, ZR_TIER_DEVICE, &buffer, size_bytes);
    zr_device_close(&self.device);
    return is_right;
}

TEST(test_killed_rank) {
    pid_t children[N_PROCESSES];
    prepare();
    fflush(NULL);
    for (int rank = 0; rank < N_PROCESSES; rank++) {
        children[rank] = fork();
        if (children[rank] == 0)
            exit(outlive(rank) ? 0 : 1);
        assert_true(children[rank] > 0);
    }
    for (int rank = 0; rank < N_PROCESSES; rank++) {
        int status = 0;
        assert_int_equal(waitpid(children[rank], &status, 0), children[rank]);
        if (rank == VICTIM)
            assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        else
            assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
}

int main(int argc, char **argv) {
    emu_options_t machine = emu_options_default();
    machine.n_devices = 8;
    emu_configure(&machine);
    comm_suite_t suite = {
        .name = "nccl on emulated GPUs",
        .create = create,
        .open_device = open_device,
        .close_device = zr_device_close,
        .fail_copy = fail_copy,
        .failure = "cuda",
        .is_slow = true,
    };
    if (argc > 1 && strcmp(argv[1], "tcp") == 0) {
        suite.name = "nccl on emulated GPUs, over TCP";
        suite.create = create_over_tcp;
    }
    if (argc > 1 && strcmp(argv[1], "processes") == 0) {
        suite.name = "nccl on emulated GPUs, processes";
        suite.create_rank = create_rank;
        suite.prepare = prepare;
        int failed = run_comm_suite(&suite);
        return failed + run_all_tests(NULL, NULL);
    }
    return run_comm_suite(&suite);
}
