/*
 * zr_run_ranks: each rank has what it needs, one that fails ends the others and says why, and what
 * cannot be run is refused. Ranks as threads, and as processes that were started by hand or found
 * each other by the caller's means. A fork of a rank is refused, and disturbs no one.
 */
#include <sys/wait.h>
#include <unistd.h>

#include "tests/common/test.h"
#include "tests/zero/comm/free_port.h"
#include "tests/zero/store_folders.h"
#include "zero/zero.h"

enum { N_RANKS = 3, N_ELEMS = 100 };

typedef struct seen {
    int n_ranks[N_RANKS];
    int n_threads[N_RANKS]; /* of its device */
    double average[N_RANKS];
    int fails; /* this rank; -1: none */
    bool is_silent;
} seen_t;

static void ignore(void *context, zr_log_level_t level, int rank, const char *message) {
    (void)context, (void)level, (void)rank, (void)message;
}

static zr_run_options_t quiet_options(void) {
    zr_run_options_t options = zr_run_options_default();
    options.log.sink = ignore;
    return options;
}

/* With a runtime, the ranks share a value; without, they meet. */
static zr_status_t look_around(zr_rank_t *rank) {
    seen_t *seen = rank->context;
    zr_unit_t *unit;
    zr_param_t *param;
    const zr_param_desc_t desc = {.name = "w", .n_dims = 1, .dims = {N_ELEMS}};
    if (rank->rank == seen->fails)
        return seen->is_silent
                   ? ZR_ERR_IO
                   : zr_fail(&rank->log, ZR_ERR_IO, "rank %d has no cheese", rank->rank);
    seen->n_ranks[rank->rank] = rank->n_ranks;
    seen->n_threads[rank->rank] = zr_device_info(rank->device)->n_threads;
    if (rank->runtime == NULL)
        return zr_comm_barrier(rank->comm, "all are here");
    ZR_TRY(zr_runtime_add_unit(rank->runtime, "u", &unit));
    ZR_TRY(zr_unit_add_param(unit, &desc, &param));
    ZR_TRY(zr_runtime_commit(rank->runtime));
    return zr_runtime_average(rank->runtime, rank->rank, &seen->average[rank->rank]);
}

TEST(test_threads) {
    seen_t seen = {.fails = -1};
    zr_config_t config = zr_config_default();
    config.stage = 3;
    assert_ok(zr_run_ranks(&config, N_RANKS, look_around, &seen, NULL));
    for (int r = 0; r < N_RANKS; r++) {
        assert_int_equal(seen.n_ranks[r], N_RANKS);
        assert_true(seen.average[r] == 1);
        assert_true(seen.n_threads[r] >= 1);
    }
    assert_int_equal(config.train_batch, 0); /* a copy was resolved */
}

TEST(test_no_configuration) {
    seen_t seen = {.fails = -1};
    zr_run_options_t options = quiet_options();
    options.device_options.n_threads = 2;
    assert_ok(zr_run_ranks(NULL, 2, look_around, &seen, &options));
    assert_int_equal(seen.n_ranks[0], 2);
    assert_int_equal(seen.n_ranks[1], 2);
    assert_int_equal(seen.n_ranks[2], 0);
    assert_int_equal(seen.n_threads[1], 2);
}

/* The others wait for it, in the calling thread and elsewhere, and are not what is told. */
TEST(test_failure) {
    zr_run_options_t options = quiet_options();
    for (int fails = 0; fails < N_RANKS; fails++) {
        seen_t seen = {.fails = fails};
        char text[64];
        snprintf(text, sizeof(text), "rank %d has no cheese", fails);
        assert_int_equal(zr_run_ranks(NULL, N_RANKS, look_around, &seen, &options), ZR_ERR_IO);
        assert_string_equal(zr_last_error(), text);
    }
    seen_t silent = {.fails = 1, .is_silent = true};
    assert_int_equal(zr_run_ranks(NULL, N_RANKS, look_around, &silent, &options), ZR_ERR_IO);
    assert_string_equal(zr_last_error(), zr_status_name(ZR_ERR_IO));
}

TEST(test_refused) {
    seen_t seen = {.fails = -1};
    zr_config_t config = zr_config_default();
    zr_run_options_t options = quiet_options();
    assert_int_equal(zr_run_ranks(NULL, 0, look_around, &seen, &options), ZR_ERR_ARGUMENT);
    assert_int_equal(zr_run_ranks(NULL, 1, NULL, &seen, &options), ZR_ERR_ARGUMENT);
    config.stage = 7;
    assert_int_equal(zr_run_ranks(&config, 1, look_around, &seen, &options), ZR_ERR_ARGUMENT);
    options.comm = "pigeons";
    assert_int_equal(zr_run_ranks(NULL, 1, look_around, &seen, &options), ZR_ERR_ARGUMENT);
    assert_has(zr_last_error(), "pigeons");
    options.comm = "mpi"; /* of processes; two threads are none */
    assert_int_equal(zr_run_ranks(NULL, 2, look_around, &seen, &options), ZR_ERR_ARGUMENT);
    options.comm = NULL;
    options.device = "abacus";
    assert_int_equal(zr_run_ranks(NULL, 2, look_around, &seen, &options), ZR_ERR_ARGUMENT);
    assert_int_equal(seen.n_ranks[0], 0);
}

static void set_environment(int rank, int port) {
    char text[16];
    setenv("WORLD_SIZE", "2", 1);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("LOCAL_WORLD_SIZE", "2", 1);
    snprintf(text, sizeof(text), "%d", port);
    setenv("MASTER_PORT", text, 1);
    snprintf(text, sizeof(text), "%d", rank);
    setenv("RANK", text, 1);
    setenv("LOCAL_RANK", text, 1);
}

/* In a process of its own: 0 when it has seen what it had to. */
static int run_process(int rank, int port, int fails) {
    seen_t seen = {.fails = fails};
    zr_config_t config = zr_config_default();
    zr_run_options_t options = quiet_options();
    set_environment(rank, port);
    config.stage = 2;
    zr_status_t status = zr_run_ranks(&config, 7, look_around, &seen, &options);
    if (fails >= 0)
        return status != (rank == fails ? ZR_ERR_IO : ZR_ERR_COMM) ||
               strstr(zr_last_error(), "has no cheese") == NULL;
    return status != ZR_OK || seen.n_ranks[rank] != 2 || seen.average[rank] != 0.5 ||
           seen.n_ranks[1 - rank] != 0;
}

/* As run_process, with a rank that is opened, and two runtimes of it, one after the other. */
static int open_process(int rank, int port, int fails) {
    seen_t seen = {.fails = fails};
    zr_config_t config = zr_config_default();
    zr_run_options_t options = quiet_options();
    zr_rank_t *own = NULL;
    set_environment(rank, port);
    if (zr_config_resolve(&config, 2, NULL) != ZR_OK || zr_rank_open(&options, &own) != ZR_OK ||
        own->rank != rank || own->n_ranks != 2)
        return 1;
    zr_status_t status = ZR_OK;
    for (int i = 0; i < 2 && status == ZR_OK; i++) {
        config.stage = 3 - i;
        status = zr_runtime_create(&config, own->comm, own->device, &own->log, &own->runtime);
        own->context = &seen;
        ZR_THEN(status, look_around(own));
        zr_runtime_destroy(&own->runtime);
    }
    char error[256];
    snprintf(error, sizeof(error), "%s", zr_last_error());
    zr_rank_close(&own, status != ZR_OK ? error : NULL);
    if (own != NULL)
        return 2;
    if (fails >= 0)
        return status != (rank == fails ? ZR_ERR_IO : ZR_ERR_COMM) ||
               strstr(error, "has no cheese") == NULL;
    return status != ZR_OK || seen.average[rank] != 0.5;
}

typedef int (*process_fn)(int rank, int port, int fails);

static void run_processes(process_fn function, int fails) {
    int port = free_port();
    pid_t processes[2];
    for (int rank = 0; rank < 2; rank++) {
        processes[rank] = fork();
        assert_true(processes[rank] >= 0);
        if (processes[rank] == 0)
            _exit(function(rank, port, fails));
    }
    for (int rank = 0; rank < 2; rank++) {
        int end = -1;
        assert_int_equal(waitpid(processes[rank], &end, 0), processes[rank]);
        assert_int_equal(end, 0);
    }
}

/* Number and ranks are those that were started; a rank that fails is known in the other process. */
TEST(test_processes) {
    run_processes(run_process, -1);
    run_processes(run_process, 1);
}

TEST(test_open_processes) {
    run_processes(open_process, -1);
    run_processes(open_process, 1);
}

/* ---- ranks that the caller has brought together ---------------------------------------------- */

/* Rank 0 sends its place through a pipe; what the environment says is of another run. */
static int meet_process(int rank, int port, int fails) {
    static int pipe_fds[2];
    zr_run_options_t options = quiet_options();
    zr_launch_t launch = {.rank = rank, .n_ranks = 2, .n_local_ranks = 2, .local_rank = rank};
    zr_place_t place;
    zr_rank_t *own = NULL;
    seen_t seen = {.fails = -1};
    if (rank < 0) /* beforehand, for both */
        return pipe(pipe_fds);
    set_environment(1 - rank, port);
    if (rank == 0) {
        if (zr_launch_listen(&options.log, &launch, &place) != ZR_OK || launch.port == port ||
            write(pipe_fds[1], &place, sizeof(place)) != (ssize_t)sizeof(place))
            return 1;
    } else if (read(pipe_fds[0], &place, sizeof(place)) != (ssize_t)sizeof(place) ||
               zr_launch_connect(&options.log, &place, 20000, &launch) != ZR_OK) {
        return 2;
    }
    options.launch = &launch;
    zr_status_t status = zr_rank_open(&options, &own);
    zr_launch_drop(&launch);
    if (status != ZR_OK || launch.has_socket || own->rank != rank || own->n_ranks != 2)
        return 3;
    own->context = &seen;
    status = look_around(own);
    zr_rank_close(&own, NULL);
    return status != ZR_OK;
}

TEST(test_own_way_to_rank_0) {
    assert_int_equal(meet_process(-1, 0, -1), 0);
    run_processes(meet_process, -1);
}

/* A rank that is told to be the only one is alone, whatever the environment says. */
TEST(test_launch_of_one) {
    const zr_launch_t launch = {.n_ranks = 1};
    zr_run_options_t options = quiet_options();
    zr_rank_t *rank = NULL;
    set_environment(1, 1);
    options.launch = &launch;
    assert_ok(zr_rank_open(&options, &rank));
    assert_int_equal(rank->n_ranks, 1);
    zr_rank_close(&rank, NULL);
    unsetenv("WORLD_SIZE");
}

TEST(test_place_that_is_none) {
    zr_run_options_t options = quiet_options();
    zr_launch_t launch = {.rank = 1, .n_ranks = 2};
    zr_place_t place = {.port = 70000, .n_addresses = 1, .addresses = {"127.0.0.1"}};
    assert_int_equal(zr_launch_connect(&options.log, &place, 1000, &launch), ZR_ERR_COMM);
    assert_has(zr_last_error(), "port 70000");
    assert_false(launch.has_socket);
    place.port = free_port(); /* where nobody listens */
    assert_int_equal(zr_launch_connect(&options.log, &place, 1, &launch), ZR_ERR_COMM);
    assert_has(zr_last_error(), "set MASTER_ADDR");
    zr_launch_drop(&launch);
}

/* ---- forks ----------------------------------------------------------------------------------- */

enum { FORK_SECONDS = 60 }; /* then a fork that hangs is ended */

/* Descriptors that this process has of files in the store's folders. */
static size_t count_store_files(void) {
    size_t n = 0;
    char path[64], place[256];
    for (int fd = 0; fd < 1024; fd++) {
        snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
        ssize_t length = readlink(path, place, sizeof(place) - 1);
        place[length > 0 ? length : 0] = '\0';
        n += strstr(place, "zr-test-store-") != NULL;
    }
    return n;
}

/* Try a parent's handles in a fork: they are refused, and forgotten without a word to others. 0: so
 * they were. */
static int try_as_fork(zr_rank_t *parents) {
    double average;
    zr_runtime_t *runtime = NULL;
    zr_config_t config = zr_config_default();
    zr_run_options_t options = quiet_options();
    zr_rank_t *own = NULL;
    seen_t seen = {.fails = -1};
    if (zr_runtime_average(parents->runtime, 1, &average) != ZR_ERR_STATE ||
        strstr(zr_last_error(), "a fork of it") == NULL)
        return 1;
    if (zr_comm_barrier(parents->comm, "in a fork") != ZR_ERR_STATE)
        return 2;
    if (zr_config_resolve(&config, parents->n_ranks, NULL) != ZR_OK ||
        zr_runtime_create(&config, parents->comm, parents->device, NULL, &runtime) != ZR_ERR_STATE)
        return 3;
    zr_comm_abort(parents->comm, "a fork has had enough");
    if (store_paths[0] != '\0' && count_store_files() == 0)
        return 8;
    zr_runtime_destroy(&parents->runtime);
    if (parents->runtime != NULL || count_store_files() != 0)
        return 4;
    zr_rank_close(&parents, "a fork has ended");
    if (parents != NULL)
        return 5;
    unsetenv("WORLD_SIZE");
    options.device_options.n_threads = 1; /* sanitizers start none in a fork */
    config.train_batch = config.micro_batch = config.grad_accum = 0;
    if (zr_rank_open(&options, &own) != ZR_OK || zr_config_resolve(&config, 1, NULL) != ZR_OK ||
        zr_runtime_create(&config, own->comm, own->device, NULL, &own->runtime) != ZR_OK)
        return 6;
    own->context = &seen;
    if (look_around(own) != ZR_OK || seen.average[0] != 0)
        return 7;
    zr_runtime_destroy(&own->runtime);
    zr_rank_close(&own, NULL);
    return 0;
}

static int fork_and_try(zr_rank_t *rank) {
    int end = -1;
    pid_t process = fork();
    if (process == 0) {
        alarm(FORK_SECONDS);
        _exit(try_as_fork(rank));
    }
    return waitpid(process, &end, 0) == process ? end : -1;
}

/* Open a rank with threads of kernels, of a stream and of the communicator, and state on drives,
 * where there are such. */
static zr_status_t open_with_threads(zr_rank_t **rank_p, seen_t *seen) {
    zr_config_t config = zr_config_default();
    zr_run_options_t options = quiet_options();
    options.device_options.n_threads = 2;
    options.device_options.concurrent = true;
    ZR_TRY(zr_rank_open(&options, rank_p));
    zr_rank_t *rank = *rank_p;
    config.stage = 3;
    config.overlap_comm = true;
    if (store_paths[0] != '\0') {
        config.offload_optimizer.device = ZR_OFFLOAD_NVME;
        snprintf(config.nvme.paths, sizeof(config.nvme.paths), "%s", store_paths);
    }
    ZR_TRY(zr_config_resolve(&config, rank->n_ranks, &options.log));
    ZR_TRY(zr_runtime_create(&config, rank->comm, rank->device, &rank->log, &rank->runtime));
    rank->context = seen;
    return look_around(rank);
}

/* Rank 1 has a fork, which ends; ranks go on. */
static int fork_process(int rank, int port, int fails) {
    zr_rank_t *own = NULL;
    seen_t seen = {.fails = -1};
    double average = 0;
    set_environment(rank, port);
    if (open_with_threads(&own, &seen) != ZR_OK)
        return 1;
    if (rank == 1 && fork_and_try(own) != 0)
        return 2;
    if (zr_comm_barrier(own->comm, "behind the fork") != ZR_OK ||
        zr_runtime_average(own->runtime, rank, &average) != ZR_OK || average != 0.5)
        return 3;
    zr_runtime_destroy(&own->runtime);
    zr_rank_close(&own, NULL);
    return 0;
}

TEST(test_fork_of_a_rank) {
    assert_int_equal(find_store_folders(NULL), 0);
    run_processes(fork_process, -1);
    assert_int_equal(leave_store_folders(NULL), 0);
}

TEST(test_fork_of_the_only_rank) {
    zr_rank_t *rank = NULL;
    seen_t seen = {.fails = -1};
    double average = 1;
    assert_int_equal(find_store_folders(NULL), 0);
    assert_ok(open_with_threads(&rank, &seen));
    assert_int_equal(fork_and_try(rank), 0);
    assert_ok(zr_runtime_average(rank->runtime, 0, &average));
    assert_true(average == 0);
    zr_runtime_destroy(&rank->runtime);
    zr_rank_close(&rank, NULL);
    assert_int_equal(leave_store_folders(NULL), 0);
}

/* Without a launcher it is the only rank. */
TEST(test_open_alone) {
    zr_rank_t *rank = NULL;
    zr_run_options_t options = quiet_options();
    options.device = "abacus";
    assert_int_equal(zr_rank_open(&options, &rank), ZR_ERR_ARGUMENT);
    assert_int_equal(zr_rank_open(&options, NULL), ZR_ERR_ARGUMENT);
    assert_null(rank);
    assert_ok(zr_rank_open(NULL, &rank));
    assert_int_equal(rank->rank, 0);
    assert_int_equal(rank->n_ranks, 1);
    assert_null(rank->runtime);
    assert_ok(zr_comm_barrier(rank->comm, "alone"));
    zr_rank_close(&rank, NULL);
    assert_null(rank);
    zr_rank_close(&rank, NULL);
}
