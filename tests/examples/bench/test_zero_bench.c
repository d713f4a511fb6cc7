/* zero-bench as a user runs it: its exit statuses, its messages, and the object of --json. */
#include "tests/examples/bench/run_bench.h"

TEST(test_adam_json) {
    const char *const dtypes[] = {"fp32", "bf16", "bf16"};
    const char *const optimizers[] = {"adamw", "adamw", "lion"};
    const char *const names[] = {"AdamW", "AdamW", "Lion"};
    const double elem_bytes_wanted[] = {32, 28, 20};
    for (int i = 0; i < 3; i++) {
        char arguments[128], output[4096];
        snprintf(arguments, sizeof(arguments),
                 "adam --json --elems 50021 --threads 2 --seconds 0 --dtype %s --optimizer %s "
                 "2>/dev/null",
                 dtypes[i], optimizers[i]);
        assert_int_equal(run(arguments, output, sizeof(output)), 0);
        json_t *object = json_loads(output, JSON_REJECT_DUPLICATES, NULL);
        assert_true(json_is_object(object));
        assert_string_equal(json_string_value(json_object_get(object, "command")), "adam");
        assert_string_equal(json_string_value(json_object_get(object, "dtype")), dtypes[i]);
        assert_string_equal(json_string_value(json_object_get(object, "optimizer")), names[i]);
        assert_true(number_at(object, "elems") == 50021.0);
        assert_true(number_at(object, "threads") == 2.0);
        assert_true(number_at(object, "rounds") >= 5.0);
        const json_t *adam = json_object_get(object, "adam");
        const json_t *stream = json_object_get(object, "stream");
        double ratio = number_at(stream, "seconds") / number_at(adam, "seconds");
        assert_true(fabs(number_at(object, "ratio") / ratio - 1.0) < 1e-6);
        double elem_bytes = number_at(adam, "bytes_per_s") / number_at(adam, "elems_per_s");
        assert_true(fabs(elem_bytes - elem_bytes_wanted[i]) < 1e-6);
        json_decref(object);
    }
}

/* The ratio is of the update to the larger of what bounds it. */
static void expect_offload(const char *arguments, const char *place) {
    char output[4096];
    assert_int_equal(run(arguments, output, sizeof(output)), 0);
    json_t *object = json_loads(output, JSON_REJECT_DUPLICATES, NULL);
    assert_true(json_is_object(object));
    assert_string_equal(json_string_value(json_object_get(object, "offload")), place);
    assert_true(number_at(object, "elems") == 20000.0);
    assert_true(number_at(object, "largest_group_elems") == 1024.0);
    bool has_io = strcmp(place, "nvme") == 0;
    double limit = number_at(object, "adam_seconds");
    if (has_io && number_at(object, "io_seconds") > limit)
        limit = number_at(object, "io_seconds");
    assert_true((json_object_get(object, "io_seconds") != NULL) == has_io);
    assert_true((json_object_get(object, "io_cpu_seconds") != NULL) == has_io);
    assert_true(number_at(object, "step_cpu_seconds") >= 0.0);
    assert_true(number_at(object, "adam_cpu_seconds") >= 0.0);
    double ratio = number_at(object, "update_seconds") / limit;
    assert_true(fabs(number_at(object, "ratio") / ratio - 1.0) < 1e-6);
    json_decref(object);
}

TEST(test_adam_offload) {
    const char *arguments =
        "adam --json --elems 20000 --threads 1 --seconds 0 --sub-group 1024 --offload ";
    char with_place[256], output[4096];
    snprintf(with_place, sizeof(with_place), "%scpu 2>/dev/null", arguments);
    expect_offload(with_place, "cpu");
    snprintf(with_place, sizeof(with_place), "%snvme 2>&1", arguments);
    if (run(with_place, output, sizeof(output)) == 2 && strstr(output, "io_uring") != NULL) {
        print_message("skipped: nothing over NVMe: %s", output);
        return;
    }
    snprintf(with_place, sizeof(with_place), "%snvme --buffers 3 2>/dev/null", arguments);
    expect_offload(with_place, "nvme");
    snprintf(with_place, sizeof(with_place), "%snvme --path /nowhere 2>&1", arguments);
    assert_int_equal(run(with_place, output, sizeof(output)), 2);
    assert_non_null(strstr(output, "--path /nowhere: No such file"));
}

/* What is written for people leaves standard output alone. */
TEST(test_adam_for_people) {
    char output[4096];
    const char *arguments = "adam --elems 1000 --threads 1 --seconds 0";
    char with_errors[256];
    assert_int_equal(run(arguments, output, sizeof(output)), 0);
    assert_string_equal(output, "");
    snprintf(with_errors, sizeof(with_errors), "%s 2>&1", arguments);
    assert_int_equal(run(with_errors, output, sizeof(output)), 0);
    assert_non_null(strstr(output, "ratio"));
    assert_non_null(strstr(output, "elems                           1000\n"));
}

TEST(test_help_and_version) {
    char output[8192];
    assert_int_equal(run("--help", output, sizeof(output)), 0);
    assert_non_null(strstr(output, "adam"));
    assert_int_equal(run("--version", output, sizeof(output)), 0);
    assert_ptr_equal(strstr(output, "zero-bench "), output);
    assert_int_equal(run("adam --help", output, sizeof(output)), 0);
    assert_non_null(strstr(output, "--elems"));
    assert_int_equal(run("adam --version", output, sizeof(output)), 0);
    assert_ptr_equal(strstr(output, "zero-bench "), output);
}

TEST(test_bad_usage) {
    assert_bad_usage("", "command is missing");
    assert_bad_usage("adma", "unknown command adma; the nearest is adam");
    assert_bad_usage("--versoin", "unknown option --versoin; the nearest is --version");
    assert_bad_usage("adam --elms 3", "unknown option --elms; the nearest is --elems");
    assert_bad_usage("adam --elems", "--elems needs a value");
    assert_bad_usage("adam --elems 0", "--elems 0");
    assert_bad_usage("adam --elems -5", "--elems -5");
    assert_bad_usage("adam --elems 99999999999999999999", "--elems 99999999999999999999");
    assert_bad_usage("adam --threads 100000", "--threads 100000");
    assert_bad_usage("adam --dtype fp16", "the nearest is fp32");
    assert_bad_usage("adam --isa avx1", "the nearest is avx2");
    assert_bad_usage("adam --seconds soon", "--seconds soon");
    assert_bad_usage("adam extra", "\"extra\"");
    assert_bad_usage("adam --offload disk", "none, cpu, nvme");
    assert_bad_usage("adam --path /tmp", "--offload nvme only");
    assert_bad_usage("adam --offload cpu --buffers 3", "--buffers means something with");
    assert_bad_usage("adam --offload nvme --verify no", "off, on");
    assert_bad_usage("adam --sub-group 5", "--offload cpu or nvme only");
}

/* 16 MiB of state are 12 bytes of each parameter, and each byte of it is saved. */
TEST(test_checkpoint) {
    const char *const places[] = {"none", "nvme"};
    for (int i = 0; i < 2; i++) {
        char arguments[128], output[4096];
        snprintf(arguments, sizeof(arguments),
                 "checkpoint --json --size 16MiB --rounds 1 --offload %s 2>/dev/null", places[i]);
        assert_int_equal(run(arguments, output, sizeof(output)), 0);
        json_t *object = json_loads(output, JSON_REJECT_DUPLICATES, NULL);
        assert_true(json_is_object(object));
        assert_string_equal(json_string_value(json_object_get(object, "command")), "checkpoint");
        assert_string_equal(json_string_value(json_object_get(object, "offload")), places[i]);
        assert_true(number_at(object, "bytes") > 15.9 * (1 << 20));
        assert_true(number_at(object, "bytes") < 16.1 * (1 << 20));
        double ratio = number_at(object, "save_seconds") / number_at(object, "write_seconds");
        assert_true(fabs(number_at(object, "ratio") / ratio - 1.0) < 1e-6);
        json_decref(object);
    }
    assert_bad_usage("checkpoint --size 1MiB", "--size 1048576 bytes: 16.0 MiB to");
    assert_bad_usage("checkpoint --path /nonexistent", "--path /nonexistent");
}

/* What no machine has ends with 1 and says what was asked for. */
TEST(test_too_large) {
    char output[4096];
    assert_int_equal(run("adam --elems 60000000000 2>&1", output, sizeof(output)), 1);
    assert_non_null(strstr(output, "1200"));
}
