/*
 * zero-bench comm: the object of --json fits the formulas of docs/internals/bench.md, bad usage is
 * refused, and wrong results are found. How fast it is says nothing here.
 */
#include <pthread.h>

#include "examples/bench/comm_run.h"
#include "tests/common/one_thing.h"
#include "tests/examples/bench/run_bench.h"
#include "tests/zero/comm/free_port.h"

static void assert_near(double value, double expected) {
    if (!(fabs(value / expected - 1.0) < 1e-6))
        fail_msg("%.9g instead of %.9g", value, expected);
}

/* Of the table in docs/internals/bench.md. */
static double least_bytes(const char *collective, bool in_place, double tensor, double n_ranks) {
    if (strcmp(collective, "all_gather") == 0)
        return in_place ? n_ranks * tensor : (n_ranks + 1) * tensor;
    if (strcmp(collective, "reduce_scatter") == 0)
        return (n_ranks + 1) * tensor;
    if (strcmp(collective, "all_reduce") == 0 || strcmp(collective, "all_to_all") == 0)
        return 2 * n_ranks * tensor;
    assert_string_equal(collective, "broadcast");
    return n_ranks * tensor;
}

static double check_row(const json_t *row, double n_ranks, double elem_bytes) {
    const char *collective = json_string_value(json_object_get(row, "collective"));
    double tensor = number_at(row, "tensor_bytes"), bytes = number_at(row, "bytes");
    bool in_place = json_is_true(json_object_get(row, "in_place"));
    assert_non_null(collective);
    assert_near(bytes, least_bytes(collective, in_place, tensor, n_ranks));
    assert_true(fmod(tensor, n_ranks * elem_bytes) == 0.0);
    assert_near(number_at(row, "bytes_per_s"), bytes / number_at(row, "seconds"));
    assert_true(number_at(row, "copy_bytes_per_s") > 0.0 && number_at(row, "ratio") > 0.0);
    assert_non_null(json_string_value(json_object_get(row, "copy")));
    if (strcmp(collective, "reduce_scatter") == 0)
        assert_true(number_at(row, "read_ratio") > 0.0);
    else
        assert_null(json_object_get(row, "read_ratio"));
    assert_true(number_at(row, "rounds") >= 5.0);
    assert_true(number_at(row, "calls_a_round") >= 1.0);
    return tensor;
}

/* Sizes from 1000 bytes on, up to 64 kB; `n_rows` for each collective and place. */
static void check_run(const char *extra, double n_ranks, double elem_bytes, size_t n_rows) {
    char arguments[256], output[65536];
    snprintf(arguments, sizeof(arguments),
             "comm --json --seconds 0 --min 1000 --max 64kB --factor 8 %s 2>/dev/null", extra);
    assert_int_equal(run(arguments, output, sizeof(output)), 0);
    json_t *object = json_loads(output, JSON_REJECT_DUPLICATES, NULL);
    assert_true(json_is_object(object));
    assert_string_equal(json_string_value(json_object_get(object, "command")), "comm");
    assert_string_equal(json_string_value(json_object_get(object, "comm")), "threads");
    assert_true(number_at(object, "ranks") == n_ranks);
    assert_null(json_object_get(object, "mpi_left_out"));
    const json_t *rows = json_object_get(object, "measurements");
    assert_int_equal(json_array_size(rows), n_rows);
    double least = INFINITY, tensor = 0.0;
    for (size_t i = 0; i < n_rows; i++) {
        const json_t *row = json_array_get(rows, i);
        double size = check_row(row, n_ranks, elem_bytes);
        assert_true(i % 3 == 0 ? size <= 1000.0 && size > 1000.0 - n_ranks * elem_bytes
                               : size > 7.9 * tensor && size < 8.1 * tensor);
        tensor = size;
        least = fmin(least, number_at(row, "ratio"));
    }
    assert_near(number_at(object, "ratio"), least);
    json_decref(object);
}

TEST(test_json) {
    check_run("", 2, 4, 21);
    check_run("--ranks 3 --dtype bf16 --in-place off", 3, 2, 15);
    check_run("--ranks 5 --threads 2 --in-place on", 5, 4, 15);
    check_run("--collective reduce_scatter", 2, 4, 6);
    check_run("--collective broadcast --in-place off", 2, 4, 3);
    check_run("--collective all_to_all --in-place on", 2, 4, 3);
}

TEST(test_for_people) {
    char output[8192];
    assert_int_equal(run("comm --max 1KiB --seconds 0 2>/dev/null", output, sizeof(output)), 0);
    assert_string_equal(output, "");
    assert_int_equal(run("comm --max 1KiB --seconds 0 2>&1", output, sizeof(output)), 0);
    assert_non_null(strstr(output, "  collective      in_place  tensor_bytes  bytes  "));
    assert_non_null(strstr(output, "\n  reduce_scatter       yes          1024   3072  "));
    assert_int_equal(run("comm --help", output, sizeof(output)), 0);
    assert_non_null(strstr(output, "--in-place"));
}

TEST(test_bad_usage) {
    assert_bad_usage("comm --comm thread", "the nearest is threads");
    assert_bad_usage("comm --ranks 1", "--ranks 1");
    assert_bad_usage("comm --ranks 1025", "--ranks 1025");
    assert_bad_usage("comm --collective barrier", "--collective barrier");
    assert_bad_usage("comm --in-place maybe", "--in-place maybe");
    assert_bad_usage("comm --min 4", "--min 4");
    assert_bad_usage("comm --min 2KiB --max 1KiB", "--max 1024");
    assert_bad_usage("comm --factor 1", "--factor 1");
    assert_bad_usage("comm --comm nccl --threads 2", "--threads");
    assert_bad_usage("comm extra", "\"extra\"");
}

/* Ranks that are processes: all of them measure, and rank 0 reports. */
TEST(test_processes) {
    const char *const arguments = "comm --comm processes --json --min 1KiB --max 1KiB --seconds 0";
    char output[65536], other[256], port[16], command[512];
    snprintf(port, sizeof(port), "%d", free_port());
    assert_int_equal(setenv("WORLD_SIZE", "2", 1) | setenv("MASTER_ADDR", "127.0.0.1", 1) |
                         setenv("MASTER_PORT", port, 1) | setenv("RANK", "0", 1) |
                         setenv("LOCAL_RANK", "0", 1),
                     0);
    snprintf(command, sizeof(command), "RANK=1 LOCAL_RANK=1 '%s' %s 2>&1", ZERO_BENCH, arguments);
    FILE *rank = popen(command, "r");
    assert_non_null(rank);
    assert_int_equal(run(arguments, output, sizeof(output)), 0);
    assert_null(fgets(other, sizeof(other), rank));
    assert_int_equal(pclose(rank), 0);
    json_t *object = json_loads(output, JSON_REJECT_DUPLICATES, NULL);
    assert_true(json_is_object(object));
    assert_string_equal(json_string_value(json_object_get(object, "comm")), "processes");
    assert_true(number_at(object, "ranks") == 2);
    assert_int_equal(json_array_size(json_object_get(object, "measurements")), 7);
    assert_null(json_object_get(object, "mpi"));
    assert_string_equal(json_string_value(json_object_get(object, "mpi_left_out")),
                        "the ranks were started without MPI");
    json_decref(object);
    assert_bad_usage("comm --comm mpi --ranks 3", "2 or more, and started are 2");
    assert_int_equal(unsetenv("WORLD_SIZE"), 0);
    assert_bad_usage("comm --comm processes", "start it with mpirun -n N");
}

/* ---- wrong results --------------------------------------------------------------------------- */

static bool ranks_are_alone = false;

zr_status_t __real_zr_comm_create_threads(int n_ranks, const zr_comm_options_t *options,
                                          zr_comm_t **comms);
zr_status_t __wrap_zr_comm_create_threads(int n_ranks, const zr_comm_options_t *options,
                                          zr_comm_t **comms);

/* When told so, ranks that hold what they gave, whatever the others have. */
zr_status_t __wrap_zr_comm_create_threads(int n_ranks, const zr_comm_options_t *options,
                                          zr_comm_t **comms) {
    if (!ranks_are_alone)
        return __real_zr_comm_create_threads(n_ranks, options, comms);
    for (int rank = 0; rank < n_ranks; rank++)
        assert_int_equal(zr_comm_create_sim(rank, n_ranks, options, &comms[rank]), ZR_OK);
    return ZR_OK;
}

typedef struct latest {
    pthread_mutex_t mutex;
    char message[512];
} latest_t;

static void keep_message(void *context, zr_log_level_t level, int rank, const char *message) {
    expect_one_thing(message);
    latest_t *latest = context;
    pthread_mutex_lock(&latest->mutex);
    snprintf(latest->message, sizeof(latest->message), "%s", message);
    pthread_mutex_unlock(&latest->mutex);
}

TEST(test_wrong_results_are_found) {
    const comm_choice_t threads = {.name = "threads", .device = "host"};
    const zr_collective_t collectives[] = {ZR_ALL_GATHER, ZR_REDUCE_SCATTER, ZR_ALL_REDUCE,
                                           ZR_BROADCAST, ZR_ALL_TO_ALL};
    for (size_t i = 0; i < sizeof(collectives) / sizeof(collectives[0]); i++) {
        for (int dtype = ZR_DTYPE_F32; dtype <= ZR_DTYPE_BF16; dtype++) {
            latest_t latest = {.mutex = PTHREAD_MUTEX_INITIALIZER};
            comm_about_t about;
            comm_row_t row = {.collective = collectives[i], .in_place = true, .block_elems = 33};
            const comm_options_t options = {.comm = &threads,
                                            .n_ranks = 3,
                                            .n_threads = 1,
                                            .dtype = (zr_dtype_t)dtype,
                                            .log = {.sink = keep_message, .context = &latest}};
            ranks_are_alone = true;
            assert_int_equal(comm_measure(&options, &row, 1, &about), ZR_ERR_COMM);
            ranks_are_alone = false;
            assert_non_null(strstr(latest.message, "instead of"));
            assert_non_null(strstr(latest.message, zr_collective_name(collectives[i])));
        }
    }
}
