/*
 * The communicator `mpi` under mpirun. Called with a number of ranks, this program lays out what
 * they share and becomes mpirun; called by that, each process runs all tests as one rank: the
 * conformance suite with all ranks on this machine, and again as if only some of them shared one,
 * so that data goes through MPI. In the end each has ended MPI, in order, and says so itself: Open
 * MPI's ranks wait two seconds for mpirun to hear of that, and then go without; where mpirun does
 * not come to run for so long, it takes that for an end without MPI_Finalize.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <sys/mman.h>

#include "tests/common/test.h"
#include "tests/zero/comm/comm_cases.h"
#include "tests/zero/comm/process_cases.h"

/* What the processes share. */
typedef struct shared {
    rank_board_t board;
    atomic_int n_fine; /* ranks whose tests went well, and which have ended MPI */
} shared_t;

static zr_launch_t launch;
static int machine_ranks;
static rank_world_t world;

static zr_status_t create_rank(int rank, int n_ranks, const zr_comm_options_t *options,
                               zr_comm_t **comm_p) {
    zr_comm_options_t own = *options;
    own.machine_ranks = machine_ranks;
    zr_launch_t wanted = launch;
    wanted.rank = rank;
    wanted.n_ranks = n_ranks;
    wanted.start_timeout_ms = 60000; /* short limits are those of calls */
    return zr_comm_create_processes(&wanted, &own, comm_p);
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

static comm_suite_t suite = {
    .name = "processes",
    .create = create,
    .create_rank = create_rank,
    .open_device = open_device,
    .close_device = zr_device_close,
    .world = &world,
};

TEST(test_large_tensors) {
    run_ranks(&suite, world.n_ranks, 60000, large_tensors, NULL);
}

TEST(test_moved_memory) {
    run_ranks(&suite, world.n_ranks, 60000, moved_memory, NULL);
}

static int run_cases(int ranks_of_a_machine) {
    machine_ranks = suite.machine_ranks = ranks_of_a_machine;
    int failed = ranks_of_a_machine == 0 || world.n_ranks <= 5 ? run_comm_suite(&suite) : 0;
    return failed + run_all_tests(NULL, NULL);
}

/* Whether MPI, of which this program knows nothing, has ended in this process. */
static bool has_ended_mpi(void) {
    int is_ended = 0;
    int (*finalized)(int *) = (int (*)(int *))(uintptr_t)dlsym(RTLD_DEFAULT, "MPI_Finalized");
    return finalized != NULL && finalized(&is_ended) == 0 && is_ended;
}

/* All ranks need MPI as long as this communicator lives: it begins once in a process. */
static int run_rank(const char *board_path) {
    zr_log_t log = zr_log_default();
    zr_comm_t *comm = NULL;
    bool is_launched = false;
    int file = open(board_path, O_RDWR | O_CLOEXEC);
    shared_t *shared =
        file < 0 ? MAP_FAILED
                 : mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (shared == MAP_FAILED || zr_launch_from_environment(&log, &launch, &is_launched) != ZR_OK)
        return 1;
    if (!is_launched)
        launch = (zr_launch_t){.n_ranks = 1};
    else if (!launch.by_mpi)
        return 1;
    if (zr_comm_create_processes(&launch, NULL, &comm) != ZR_OK)
        return 1;
    world = (rank_world_t){.rank = launch.rank, .n_ranks = launch.n_ranks, .board = &shared->board};
    int failed = run_cases(0);
    if (launch.n_ranks > 1)
        failed += run_cases(launch.n_ranks < 3 ? 1 : 2);
    pthread_barrier_wait(&world.board->together);
    zr_comm_destroy(&comm);
    if (launch.n_ranks > 1 && !has_ended_mpi()) {
        print_error("rank %d has not ended MPI\n", launch.rank);
        failed++;
    }
    atomic_fetch_add(&shared->n_fine, failed == 0);
    return failed != 0;
}

static int become_mpirun(const char *program, const char *n_ranks, const char *mpirun) {
    char path[] = "/tmp/zr_mpi_board_XXXXXX";
    int file = mkstemp(path);
    if (file < 0 || ftruncate(file, sizeof(shared_t)) != 0)
        return 1;
    shared_t *shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (shared == MAP_FAILED)
        return 1;
    prepare_board(&shared->board, atoi(n_ranks));
    char command[4096];
    snprintf(command, sizeof(command), "%s -n %s '%s' '%s' 2>&1", mpirun, n_ranks, program, path);
    int status = system(command);
    unlink(path);
    bool are_fine = atomic_load(&shared->n_fine) == atoi(n_ranks);
    if (status != 0 && are_fine)
        printf("all ranks have ended MPI, which mpirun has not heard of\n");
    return are_fine ? 0 : 1;
}

int main(int argc, char **argv) {
    if (argc == 2)
        return run_rank(argv[1]);
    if (argc != 3)
        return 2;
    if (argv[2][0] == '\0') {
        printf("skipped: this build is without MPI, or mpirun is not found\n");
        return 77;
    }
    return become_mpirun(argv[0], argv[1], argv[2]);
}
