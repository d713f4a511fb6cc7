/*
 * The conformance suite on ranks that are threads, each with a host device; with "beside" as its
 * argument, on streams of it that have a thread.
 */
#include "tests/common/test.h"
#include "tests/zero/comm/comm_cases.h"
#include "tests/zero/comm/comm_suite.h"

static bool is_concurrent;

static zr_status_t open_device(zr_device_t **device_p) {
    zr_device_options_t options = zr_device_options_default();
    options.n_threads = 1;
    options.concurrent = is_concurrent;
    return zr_device_open("host", &options, device_p);
}

static const comm_suite_t suite = {
    .name = "threads on host",
    .create = zr_comm_create_threads,
    .open_device = open_device,
    .close_device = zr_device_close,
};

TEST(test_large_tensors) {
    run_ranks(&suite, 2, 60000, large_tensors, NULL);
}

int main(int argc, char **argv) {
    is_concurrent = argc > 1 && strcmp(argv[1], "beside") == 0;
    int n_failed = run_comm_suite(&suite);
    return n_failed + run_all_tests(NULL, NULL);
}
