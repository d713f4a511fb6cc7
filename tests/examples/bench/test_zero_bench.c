/* zero-bench as a user runs it: its exit statuses, its messages, and the object of --json. */
#include <math.h>

#include "tests/examples/bench/run_bench.h"

static void test_adam_json(void **state) {
    (void)state;
    const char *const dtypes[] = {"fp32", "bf16"};
    for (int i = 0; i < 2; i++) {
        char arguments[128], output[4096];
        snprintf(arguments, sizeof(arguments),
                 "adam --json --elems 50021 --threads 2 --seconds 0 --dtype %s 2>/dev/null",
                 dtypes[i]);
        assert_int_equal(run(arguments, output, sizeof(output)), 0);
        json_t *object = json_loads(output, JSON_REJECT_DUPLICATES, NULL);
        assert_true(json_is_object(object));
        assert_string_equal(json_string_value(json_object_get(object, "command")), "adam");
        assert_string_equal(json_string_value(json_object_get(object, "dtype")), dtypes[i]);
        assert_true(number_at(object, "elems") == 50021.0);
        assert_true(number_at(object, "threads") == 2.0);
        assert_true(number_at(object, "rounds") >= 5.0);
        const json_t *adam = json_object_get(object, "adam");
        const json_t *stream = json_object_get(object, "stream");
        double ratio = number_at(stream, "seconds") / number_at(adam, "seconds");
        assert_true(fabs(number_at(object, "ratio") / ratio - 1.0) < 1e-6);
        double elem_bytes = number_at(adam, "bytes_per_s") / number_at(adam, "elems_per_s");
        assert_true(fabs(elem_bytes - (i == 0 ? 32.0 : 28.0)) < 1e-6);
        json_decref(object);
    }
}

/* What is written for people leaves standard output alone. */
static void test_adam_for_people(void **state) {
    (void)state;
    char output[4096];
    const char *arguments = "adam --elems 1000 --threads 1 --seconds 0";
    char with_errors[256];
    assert_int_equal(run(arguments, output, sizeof(output)), 0);
    assert_string_equal(output, "");
    snprintf(with_errors, sizeof(with_errors), "%s 2>&1", arguments);
    assert_int_equal(run(with_errors, output, sizeof(output)), 0);
    assert_non_null(strstr(output, "ratio"));
    assert_non_null(strstr(output, "1000 elements"));
}

static void test_help_and_version(void **state) {
    (void)state;
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

static void test_bad_usage(void **state) {
    (void)state;
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
}

/* What no machine has ends with 1 and says what was asked for. */
static void test_too_large(void **state) {
    (void)state;
    char output[4096];
    assert_int_equal(run("adam --elems 60000000000 2>&1", output, sizeof(output)), 1);
    assert_non_null(strstr(output, "1200"));
}

/* ---- alloc ------------------------------------------------------------------------------- */

/* A trace of this text, in a file of the current folder. */
static void write_trace(const char *text, size_t length) {
    FILE *file = fopen("test_zero_bench.csv", "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, length, file), length);
    assert_int_equal(fclose(file), 0);
}

/* Five buffers that fit in 12 bytes and no fewer; columns in another order, one unknown. */
static const char trace[] = "size,tag,id,upper,lower\r\n4,x,b1,3,0\n 4 ,x,b2, 9,3\n\n"
                            "4,x,b3,9,-2\n4,x,b4,21,9\n4,y,b5,21,-2";

static json_t *plan_trace(const char *options, int expected) {
    char arguments[256], output[4096];
    snprintf(arguments, sizeof(arguments),
             "alloc --json --trace test_zero_bench.csv %s 2>/dev/null", options);
    assert_int_equal(run(arguments, output, sizeof(output)), expected);
    json_t *object = json_loads(output, JSON_REJECT_DUPLICATES, NULL);
    assert_true(json_is_object(object));
    assert_true(json_is_true(json_object_get(object, "valid")));
    assert_true(json_is_string(json_object_get(object, "strategy")));
    assert_true(number_at(object, "max_live") == 12.0);
    assert_true(number_at(object, "height") == 12.0);
    assert_true(number_at(object, "seconds") >= 0.0);
    assert_true(json_is_true(json_object_get(object, "proven")));
    return object;
}

static void test_alloc(void **state) {
    (void)state;
    write_trace(trace, sizeof(trace) - 1);
    json_t *object = plan_trace("--plan test_zero_bench_plan.csv", 0);
    assert_null(json_object_get(object, "capacity"));
    json_decref(object);
    object = plan_trace("--capacity 12 --seconds 0", 0);
    assert_true(json_is_true(json_object_get(object, "met")));
    json_decref(object);
    object = plan_trace("--capacity 11 --seconds 1", 1);
    assert_true(json_is_false(json_object_get(object, "met")));
    json_decref(object);

    FILE *plan = fopen("test_zero_bench_plan.csv", "r");
    char line[256];
    assert_non_null(plan);
    assert_non_null(fgets(line, sizeof(line), plan));
    assert_string_equal(line, "id,lower,upper,size,offset\n");
    assert_non_null(fgets(line, sizeof(line), plan));
    assert_memory_equal(line, "b1,0,3,4,", 9);
    fclose(plan);
}

static void assert_bad_trace(const char *text, size_t length, const char *expected) {
    write_trace(text, length);
    assert_bad_usage("alloc --trace test_zero_bench.csv", expected);
}

static void test_bad_traces(void **state) {
    (void)state;
    static const struct {
        const char *text, *expected;
    } cases[] = {
        {"", "test_zero_bench.csv:1:1: it is empty"},
        {"id,lower,size\n", ":1:1: the header has no column \"upper\""},
        {"id,lower,upper,size,lower\n", ":1:21: a second column \"lower\""},
        {"id,lower,upper,size\n0,1,2\n", ":2:5: 3 fields, but the header has 4"},
        {"id,lower,upper,size\n0,1,2,3,4\n", ":2:9: 5 fields, but the header has 4"},
        {"id,lower,upper,size\n0,1,2,3\n0,1, x,3\n", ":3:6: upper \"x\" is no whole number"},
        {"id,lower,upper,size\n0,1,2,-3\n", ":2:7: size \"-3\" is no whole number"},
        {"id,lower,upper,size\n0,1,2,\n", ":2:7: size \"\" is no whole number"},
        {"id,lower,upper,size\n0,1,2,3 4\n", ":2:7: size \"3 4\" is no whole number"},
        {"id,lower,upper,size\n0,1,1,3\n", ":2:5: upper 1 is not above lower 1"},
        {"id,lower,upper,size\n0,1,99999999999999999999,3\n", "of 64 bits"},
        {"id,lower,upper,size\n\"0\",1,2,3\n", ":2:1: quotes"},
        {"id,lower,upper,size,alignment\n0,1,2,3,3\n", ":2:9: alignment 3 is no power"},
        {"id,lower,upper,size\n0,1,2,9000000000000000000\n", "add up to more than"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        assert_bad_trace(cases[i].text, strlen(cases[i].text), cases[i].expected);
    assert_bad_trace("id,lower\0,upper,size\n", 22, ":1:9: a byte 0");
    assert_bad_usage("alloc", "alloc needs a trace");
    assert_bad_usage("alloc --trace no_such_file.csv", "no_such_file.csv: cannot open it");
    assert_bad_usage("alloc --trace test_zero_bench.csv --plan ./test_zero_bench.csv",
                     "is the file that --trace reads");
    assert_bad_usage("alloc --trace /dev/zero", "longer than");
    assert_bad_usage("alloc --trace test_zero_bench.csv --capacity -1", "--capacity -1");
    assert_bad_usage("alloc --seconds never", "--seconds never");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_adam_json),        cmocka_unit_test(test_adam_for_people),
        cmocka_unit_test(test_help_and_version), cmocka_unit_test(test_bad_usage),
        cmocka_unit_test(test_too_large),        cmocka_unit_test(test_alloc),
        cmocka_unit_test(test_bad_traces),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
