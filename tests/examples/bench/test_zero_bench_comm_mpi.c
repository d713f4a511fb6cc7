/*
 * zero-bench comm --comm processes, started by MPI's launchers: MPI's own collectives are measured
 * beside ours, checked, and reported as docs/internals/bench.md says. How fast they are says
 * nothing here.
 */
#include "tests/examples/bench/run_bench.h"

static const char *text_at(const json_t *object, const char *key) {
    const char *text = json_string_value(json_object_get(object, key));
    if (text == NULL)
        fail_msg("%s is no text", key);
    return text;
}

/* Two ranks' report. */
static json_t *measure(const char *mpirun, const char *arguments) {
    char command[1024], output[65536];
    snprintf(command, sizeof(command),
             "%s -n 2 '%s' comm --comm processes --json --seconds 0 --min 1000 --max 64kB --factor "
             "64 %s "
             "2>/dev/null",
             mpirun, ZERO_BENCH, arguments);
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    size_t length = fread(output, 1, sizeof(output) - 1, pipe);
    output[length] = '\0';
    assert_int_equal(pclose(pipe), 0);
    json_t *object = json_loads(output, JSON_REJECT_DUPLICATES, NULL);
    assert_true(json_is_object(object));
    assert_null(json_object_get(object, "mpi_left_out"));
    return object;
}

/* That of MPI which belongs to ours; where there are two, either. */
static void assert_call(const char *call, const char *collective) {
    if (strcmp(collective, "all_gather") == 0)
        assert_string_equal(call, "MPI_Allgather");
    else if (strcmp(collective, "all_reduce") == 0)
        assert_string_equal(call, "MPI_Allreduce");
    else if (strcmp(collective, "broadcast") == 0)
        assert_string_equal(call, "MPI_Bcast");
    else if (strcmp(collective, "all_to_all") == 0)
        assert_string_equal(call, "MPI_Alltoall");
    else
        assert_true(strcmp(call, "MPI_Reduce_scatter") == 0 ||
                    strcmp(call, "MPI_Reduce_scatter_block") == 0);
}

/* MPI's part of a row; 0: it is no reduce-scatter. */
static double check_row(const json_t *row) {
    const json_t *mpi = json_object_get(row, "mpi");
    const char *collective = text_at(row, "collective"), *memory = text_at(mpi, "malloc");
    double seconds = number_at(mpi, "seconds"), ratio = number_at(mpi, "ratio");
    assert_call(text_at(mpi, "call"), collective);
    assert_true(strcmp(memory, "kept") == 0 || strcmp(memory, "as it comes") == 0);
    assert_true(seconds > 0.0 && ratio > 0.0);
    if (strcmp(memory, "as it comes") == 0)
        assert_true(fabs(ratio * number_at(row, "seconds") / seconds - 1.0) < 1e-6);
    return strcmp(collective, "reduce_scatter") == 0 ? ratio : 0.0;
}

static void check_run(const char *mpirun, const char *library) {
    if (mpirun[0] == '\0') {
        print_message("this build is without %s, or its mpirun is not found\n", library);
        skip();
    }
    json_t *object = measure(mpirun, "");
    const json_t *rows = json_object_get(object, "measurements");
    double least = INFINITY;
    assert_int_equal(json_array_size(rows), 2 * 7);
    for (size_t i = 0; i < json_array_size(rows); i++) {
        double ratio = check_row(json_array_get(rows, i));
        least = ratio > 0.0 ? fmin(least, ratio) : least;
    }
    assert_true(fabs(number_at(object, "mpi_reduce_scatter_ratio") / least - 1.0) < 1e-6);
    assert_ptr_equal(strstr(text_at(object, "mpi"), library), text_at(object, "mpi"));
    json_decref(object);
}

TEST(test_open_mpi) {
    check_run(ZR_MPIRUN, "Open MPI");
}

TEST(test_mpich) {
    check_run(ZR_MPICH_MPIRUN, "MPICH");
}

/* MPI knows no bf16: what is only moved is measured, and what is summed is not. */
TEST(test_bf16) {
    if (ZR_MPIRUN[0] == '\0')
        skip();
    json_t *object = measure(ZR_MPIRUN, "--dtype bf16");
    const json_t *rows = json_object_get(object, "measurements");
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i);
        bool is_sum = strstr(text_at(row, "collective"), "reduce") != NULL;
        assert_true(is_sum == (json_object_get(row, "mpi") == NULL));
        if (!is_sum)
            (void)check_row(row);
    }
    assert_null(json_object_get(object, "mpi_reduce_scatter_ratio"));
    json_decref(object);
}
