/*
 * zero-bench io, as a user runs it: what it reports and saves, what it refuses, and that it
 * leaves no file behind. How fast anything is, is not a matter of tests, and so fio is not run.
 */
#include <dirent.h>

#include "tests/examples/bench/run_bench.h"

#define SMALL "io --fio off --size 4MiB --request 256KiB --depth 4 --files 1 --rounds 1 "

static char folder[] = "test-bench-io-XXXXXX";

static int setup(void **state) {
    return mkdtemp(folder) == NULL;
}

static int teardown(void **state) {
    return rmdir(folder); /* it is empty */
}

/* A comparison, without fio. */
static void assert_measured(const json_t *comparison, bool is_checksummed) {
    static const char *const patterns[] = {"write", "read", "mixed"};
    for (int i = 0; i < 3; i++) {
        const json_t *pattern = json_object_get(comparison, patterns[i]);
        assert_true(number_at(pattern, "bytes_per_s") > 0.0);
        assert_true(number_at(pattern, "cpu_s_per_gb") >= 0.0);
        assert_null(json_object_get(pattern, "ratio"));
        assert_null(json_object_get(pattern, "ratio_to_plain_fio"));
        if (is_checksummed)
            assert_true(number_at(pattern, "checksum_s_per_gb") > 0.0);
        else
            assert_null(json_object_get(pattern, "checksum_s_per_gb"));
    }
}

TEST(test_one_of_both) {
    char arguments[512], output[8192];
    for (int is_checksummed = 0; is_checksummed < 2; is_checksummed++) {
        snprintf(arguments, sizeof(arguments), SMALL "--path %s --json --verify %s 2>/dev/null",
                 folder, is_checksummed ? "on" : "off");
        assert_int_equal(run(arguments, output, sizeof(output)), 0);
        json_t *object = json_loads(output, 0, NULL);
        assert_non_null(object);
        assert_measured(json_object_get(object, is_checksummed ? "checksummed" : "plain"),
                        is_checksummed);
        assert_null(json_object_get(object, is_checksummed ? "plain" : "checksummed"));
        json_decref(object);
    }
}

TEST(test_report) {
    char arguments[512], output[8192];
    snprintf(arguments, sizeof(arguments),
             SMALL "--path %s,%s --json --save-settings %s/settings.json 2>/dev/null", folder,
             folder, folder);
    assert_int_equal(run(arguments, output, sizeof(output)), 0);
    json_t *object = json_loads(output, 0, NULL);
    assert_non_null(object);
    assert_string_equal(json_string_value(json_object_get(object, "command")), "io");
    assert_int_equal(json_array_size(json_object_get(object, "paths")), 2);
    const json_t *checksummed = json_object_get(object, "checksummed");
    assert_measured(json_object_get(object, "plain"), false);
    assert_measured(checksummed, true);
    assert_true(number_at(checksummed, "cold_s_per_gb") > 0.0);
    assert_true(number_at(checksummed, "cached_s_per_gb") > 0.0);
    assert_null(json_object_get(checksummed, "fio_verify"));
    assert_true(number_at(json_object_get(object, "settings"), "request_bytes") == 262144.0);
    json_decref(object);

    snprintf(arguments, sizeof(arguments), "%s/settings.json", folder);
    object = json_load_file(arguments, 0, NULL);
    assert_non_null(object);
    assert_true(number_at(object, "depth") == 4.0);
    assert_true(number_at(object, "submit_batch") >= 1.0);
    assert_true(number_at(object, "files_per_path") == 1.0);
    assert_int_equal(json_array_size(json_object_get(object, "paths")), 2);
    const json_t *path = json_array_get(json_object_get(object, "paths"), 1);
    assert_int_equal(json_string_value(path)[0], '/'); /* from any folder it means the same */
    assert_int_equal(access(json_string_value(path), F_OK), 0);
    json_decref(object);
    assert_int_equal(unlink(arguments), 0);
}

TEST(test_refusals) {
    assert_bad_usage("io --request 5000", "--request 5000: multiples of 4096");
    assert_bad_usage("io --depth 0", "--depth");
    assert_bad_usage("io --depth 1025", "1024");
    assert_bad_usage("io --path a,,b", "none of them empty");
    assert_bad_usage("io --size 1MiB", "--size 1048576 bytes");
    assert_bad_usage("io --size 1MiB", "8.0 MiB (8388608 bytes) to 64.0 GiB are allowed");
    assert_bad_usage("io --size 300", "a number without a unit is bytes");
    assert_bad_usage("io --path /no/such/folder", "--path /no/such/folder: No such file");
    assert_bad_usage("io --path /dev/null", "--path /dev/null: not a folder");
    assert_bad_usage("io --path /proc", "--path /proc: no files can be created there");
    assert_bad_usage("io --save-settings /no/such/folder/x",
                     "cannot write --save-settings /no/such/folder/x");
    assert_bad_usage("adam --offload nvme --path /no/such/folder", "--path /no/such/folder: No");
    assert_bad_usage("io --files 9 --path .,.", "16 files are allowed");
    assert_bad_usage("io --verify maybe", "--verify");
    assert_bad_usage("io extra", "io takes only options");
    assert_bad_usage("io --pth x", "--path");
}

int main(void) {
    char output[256];
    if (run(SMALL "2>/dev/null", output, sizeof(output)) != 0) {
        puts("skipped: zero-bench io does not run here");
        return 77;
    }
    return run_all_tests(setup, teardown);
}
