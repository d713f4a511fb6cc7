/* zero-bench alloc as a user runs it: traces, plans, and what it says of bad ones. */
#include "tests/examples/bench/run_bench.h"

/* A trace of this text, in a file of the current folder. */
static void write_trace(const char *text, size_t length) {
    FILE *file = fopen("test_zero_bench_alloc.csv", "wb");
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
             "alloc --json --trace test_zero_bench_alloc.csv %s 2>/dev/null", options);
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

/* The entry of another allocator. */
static const json_t *compared(const json_t *object, const char *name) {
    const json_t *array = json_object_get(object, "compare");
    for (size_t i = 0; i < json_array_size(array); i++) {
        const json_t *entry = json_array_get(array, i);
        if (strcmp(json_string_value(json_object_get(entry, "name")), name) == 0)
            return entry;
    }
    fail_msg("nothing is compared with %s", name);
    return NULL;
}

/* 24 MiB in two pieces that PyTorch cannot merge. */
TEST(test_compare) {
    static const char text[] = "id,lower,upper,size\na,0,1,12582912\nb,0,1,12582912\n"
                               "c,1,2,25165824\n";
    static const struct {
        const char *name;
        double mib;
        bool is_within;
    } expected[] = {
        {"best_fit", 24, true}, {"pytorch", 48, false}, {"pytorch_expandable", 40, true}};
    char output[4096];
    write_trace(text, sizeof(text) - 1);
    assert_int_equal(
        run("alloc --json --trace test_zero_bench_alloc.csv --capacity 40MiB 2>/dev/null", output,
            sizeof(output)),
        0);
    json_t *object = json_loads(output, JSON_REJECT_DUPLICATES, NULL);
    assert_int_equal(json_array_size(json_object_get(object, "compare")), 3);
    for (int i = 0; i < 3; i++) {
        const json_t *entry = compared(object, expected[i].name);
        assert_true(number_at(entry, "reserved_peak") == expected[i].mib * 1048576.0);
        assert_true(fabs(number_at(entry, "ratio") - expected[i].mib / 24.0) < 1e-8);
        assert_true(json_is_true(json_object_get(entry, "within")) == expected[i].is_within);
    }
    json_decref(object);
    assert_int_equal(run("alloc --trace test_zero_bench_alloc.csv --capacity 40MiB 2>&1", output,
                         sizeof(output)),
                     0);
    assert_non_null(strstr(output, "  pytorch                  50331648      2 "));
    assert_non_null(strstr(output, "  pytorch_expandable       41943040  1.667 "));
}

TEST(test_alloc) {
    write_trace(trace, sizeof(trace) - 1);
    json_t *object = plan_trace("--plan test_zero_bench_alloc_plan.csv", 0);
    assert_null(json_object_get(object, "capacity"));
    assert_null(json_object_get(compared(object, "best_fit"), "within"));
    json_decref(object);
    object = plan_trace("--capacity 12 --seconds 0", 0);
    assert_true(json_is_true(json_object_get(object, "met")));
    json_decref(object);
    object = plan_trace("--capacity 11 --seconds 1", 1);
    assert_true(json_is_false(json_object_get(object, "met")));
    json_decref(object);

    FILE *plan = fopen("test_zero_bench_alloc_plan.csv", "r");
    char line[256];
    assert_non_null(plan);
    assert_non_null(fgets(line, sizeof(line), plan));
    assert_string_equal(line, "id,lower,upper,size,offset\n");
    assert_non_null(fgets(line, sizeof(line), plan));
    assert_memory_equal(line, "b1,0,3,4,", 9);
    fclose(plan);
}

/* Names that planners do not look at may hold anything; so may ids, which a plan repeats. */
TEST(test_quoted_fields) {
    static const char quoted[] = "\"name\",\"id\",lower,upper,\"size\"\r\n"
                                 "\"a,\"\"b\"\"\r\n\n c\", \"x,\"\"y\" ,0,3,\"8\"\r\n"
                                 "\"\",\"\",1,2,4\r\n"
                                 "z,\"p\nq\",\"-1\",1,2";
    char output[4096], line[256];
    write_trace(quoted, sizeof(quoted) - 1);
    assert_int_equal(run("alloc --json --trace test_zero_bench_alloc.csv "
                         "--plan test_zero_bench_alloc_plan.csv 2>/dev/null",
                         output, sizeof(output)),
                     0);
    json_t *object = json_loads(output, JSON_REJECT_DUPLICATES, NULL);
    assert_true(number_at(object, "buffers") == 3.0);
    assert_true(number_at(object, "max_live") == 12.0);
    json_decref(object);
    static const char *const lines[] = {"id,lower,upper,size,offset\n", "\"x,\"\"y\",0,3,8,",
                                        ",1,2,4,", "\"p\n", "q\",-1,1,2,"};
    FILE *plan = fopen("test_zero_bench_alloc_plan.csv", "r");
    assert_non_null(plan);
    for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
        assert_non_null(fgets(line, sizeof(line), plan));
        assert_memory_equal(line, lines[i], strlen(lines[i]));
    }
    fclose(plan);
}

/* The bound and the plan are of the rounded sizes. */
TEST(test_align) {
    static const char text[] = "id,lower,upper,size,alignment\na,0,2,1,1\nb,1,3,257,1\n"
                               "c,1,3,0,1\nd,1,2,5,512\n";
    static const unsigned sizes[] = {256, 512, 0, 256};
    char output[4096], line[256];
    write_trace(text, sizeof(text) - 1);
    assert_int_equal(run("alloc --json --align 256 --trace test_zero_bench_alloc.csv "
                         "--plan test_zero_bench_alloc_plan.csv 2>/dev/null",
                         output, sizeof(output)),
                     0);
    json_t *object = json_loads(output, JSON_REJECT_DUPLICATES, NULL);
    assert_true(number_at(object, "align") == 256.0);
    assert_true(number_at(object, "max_live") == 1024.0);
    assert_true(number_at(object, "height") == 1024.0);
    json_decref(object);
    FILE *plan = fopen("test_zero_bench_alloc_plan.csv", "r");
    assert_non_null(plan);
    assert_non_null(fgets(line, sizeof(line), plan));
    for (int i = 0; i < 4; i++) {
        unsigned size, offset;
        assert_non_null(fgets(line, sizeof(line), plan));
        assert_int_equal(sscanf(line, "%*[^,],%*d,%*d,%u,%u", &size, &offset), 2);
        assert_int_equal(size, sizes[i]);
        assert_int_equal(offset % (i == 3 ? 512 : 256), 0);
    }
    fclose(plan);
}

/* Times are not looked at, except that there are some. */
static void assert_pairs(const json_t *object, double count) {
    static const char *const kinds[] = {"planned", "irregular", "same_size"};
    const json_t *pairs = json_object_get(object, "pairs");
    assert_true(number_at(pairs, "count") == count);
    assert_true(number_at(pairs, "locks_ns") > 0.0);
    for (int i = 0; i < 3; i++) {
        const json_t *kind = json_object_get(pairs, kinds[i]);
        double ratio = number_at(kind, "ns") / number_at(pairs, "locks_ns");
        assert_true(fabs(number_at(kind, "of_locks") - ratio) <= 1e-6 * fabs(ratio));
        assert_true(number_at(kind, "malloc_ns") < 1e9);
    }
    assert_true(number_at(json_object_get(pairs, "planned"), "target_ns") == 50.0);
    assert_true(number_at(json_object_get(pairs, "irregular"), "target_ns") == 150.0);
    assert_null(json_object_get(json_object_get(pairs, "same_size"), "target_ns"));
}

static json_t *run_for_object(const char *arguments) {
    char with_errors[256], output[4096];
    snprintf(with_errors, sizeof(with_errors), "%s 2>/dev/null", arguments);
    assert_int_equal(run(with_errors, output, sizeof(output)), 0);
    json_t *object = json_loads(output, JSON_REJECT_DUPLICATES, NULL);
    assert_true(json_is_object(object));
    return object;
}

/* Without a trace it plans and times a step of its own; pairs are timed where they are asked for.
 * It fails unless the plan has served all that is timed as planned. */
TEST(test_pairs) {
    json_t *object = run_for_object("alloc --json --pairs 1000");
    assert_true(json_is_null(json_object_get(object, "trace")));
    assert_true(number_at(object, "ratio") == 1.0);
    assert_true(number_at(compared(object, "best_fit"), "ratio") >= 1.0);
    assert_pairs(object, 1000.0);
    json_decref(object);
    object = run_for_object("alloc --json --pairs 0");
    assert_null(json_object_get(object, "pairs"));
    json_decref(object);
    write_trace(trace, sizeof(trace) - 1);
    object = run_for_object("alloc --json --trace test_zero_bench_alloc.csv");
    assert_null(json_object_get(object, "pairs"));
    json_decref(object);
    object = run_for_object("alloc --json --trace test_zero_bench_alloc.csv --pairs 1");
    assert_true(number_at(object, "max_live") == 12.0);
    assert_pairs(object, 1.0);
    json_decref(object);
}

static void assert_bad_trace(const char *text, size_t length, const char *expected) {
    write_trace(text, length);
    assert_bad_usage("alloc --trace test_zero_bench_alloc.csv", expected);
}

TEST(test_bad_traces) {
    static const struct {
        const char *text, *expected;
    } cases[] = {
        {"", "test_zero_bench_alloc.csv:1:1: it is empty"},
        {"id,lower,size\n", ":1:1: the header has no column \"upper\""},
        {"id,lower,upper,size,lower\n", ":1:21: a second column \"lower\""},
        {"id,lower,upper,size\n0,1,2\n", ":2:5: 3 fields, but the header has 4 columns"},
        {"id,lower,upper,size\n0\n", ":2:1: 1 field, but the header has 4 columns"},
        {"id,lower,upper,size\n0,1,2,3,4\n", ":2:9: 5 fields, but the header has 4"},
        {"id,lower,upper,size\n0,1,2,3\n0,1, x,3\n", ":3:6: upper \"x\" is not a whole number"},
        {"id,lower,upper,size\n0,1,2,-3\n", ":2:7: size \"-3\" is not a whole number"},
        {"id,lower,upper,size\n0,1,2,\n", ":2:7: size \"\" is not a whole number"},
        {"id,lower,upper,size\n0,1,2,3 4\n", ":2:7: size \"3 4\" is not a whole number"},
        {"id,lower,upper,size\n0,1,1,3\n", ":2:5: upper 1 is not above lower 1"},
        {"id,lower,upper,size\n0,1,99999999999999999999,3\n", "of 64 bits"},
        {"id,lower,upper,size\n0\"0\",1,2,3\n", ":2:2: a quote within a field"},
        {"id,lower,upper,size\n\"a\n,b\" c,1,2,3\n", ":3:5: after a closing quote"},
        {"id,lower,upper,size\n0,1,2,3\n 1,\"2,3\n4,5,6,7\n", ":3:4: the quote that begins"},
        {"id,lower,upper,size\n\"a\nb\"\"\",\"1\",x,3\n", ":3:10: upper \"x\" is not a whole"},
        {"id,lower,upper,size\n\"\n\n\",1,2,3\n0,1,1,3\n", ":5:5: upper 1 is not above"},
        {"\"id\",\"lower\",upper,\"si\nze\"\n", ":1:1: the header has no column \"size\""},
        {"id,lower,upper,size,alignment\n0,1,2,3,3\n", ":2:9: alignment 3 is not a power"},
        {"id,lower,upper,size\n0,1,2,9000000000000000000\n", ":2:7: sizes up to this one add up"},
        {"id,lower,upper,size\n0,1,2,3000000000000000000\n1,1,2,3000000000000000000\n",
         ":3:7: siz"},
        {"id,lower,upper,size\n", "alloc.csv: there are no buffers"},
        {"id,lower,upper,size\na,1,2,3\nb,1,2,3\na,2,3,4\n", ":4: id \"a\" stands in line 2"},
        {"id,lower,upper,size\na,1,2,3\n\n\"a\",1,2,3\n", ":4: id \"a\" stands in line 2"},
        {"id,lower,upper,size\n0,1,1,3\n", "--trace test_zero_bench_alloc.csv:2:5: "},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        assert_bad_trace(cases[i].text, strlen(cases[i].text), cases[i].expected);
    assert_bad_trace("id,lower\0,upper,size\n", 22, ":1:9: a byte 0");
    assert_bad_trace("id,lower,upper,size\n\"\0\",1,2,3", 30, ":2:2: a byte 0");
    assert_bad_usage("alloc file.csv", "\"file.csv\"");
    assert_bad_usage("alloc --pairs -1", "--pairs -1");
    assert_bad_usage("alloc --pairs 1000001", "the nearest is 1000000");
    assert_bad_usage("alloc --pairs many", "--pairs many");
    assert_bad_usage("alloc --trace no_such_file.csv", "no_such_file.csv: cannot open it");
    assert_bad_usage("alloc --trace test_zero_bench_alloc.csv --plan ./test_zero_bench_alloc.csv",
                     "are the same file");
    assert_bad_usage("alloc --trace /dev/zero", "is larger than the limit");
    /* Before any work, which this trace would have failed at. */
    assert_bad_usage("alloc --trace no_such_file.csv --plan no_such_folder/plan.csv",
                     "cannot write --plan no_such_folder/plan.csv: No such file");
    assert_bad_usage("alloc --plan .", "cannot write --plan .: Is a directory");
    assert_bad_usage("alloc --trace no_such_file.csv --plan ./no_such_file.csv",
                     "are the same file");
    assert_bad_usage("alloc --trace test_zero_bench_alloc.csv --capacity -1", "--capacity -1");
    assert_bad_usage("alloc --align 384", "--align 384: a power of two up to");
    assert_bad_usage("alloc --align 700", "the nearest is 512");
    assert_bad_usage("alloc --align 800", "the nearest is 1024");
    assert_bad_usage("alloc --align 0", "the nearest is 1");
    assert_bad_usage("alloc --align 2TiB", "the nearest is 1099511627776");
    assert_bad_usage("alloc --align -8", "--align -8");
    assert_bad_usage("alloc --seconds never", "--seconds never");
}
