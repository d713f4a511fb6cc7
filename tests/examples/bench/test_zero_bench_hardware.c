/*
 * zero-bench hardware and plan, as a user runs them: a description that zero-plan takes, with the
 * source of every figure; and a table of planned and measured steps whose parts add up. How fast
 * anything is, and how right plans are, is not a matter of tests.
 */
#include "tests/examples/bench/run_bench.h"
#include "zero/zero.h"

static char folder[] = "test-bench-hardware-XXXXXX";
static char output[65536];

static int setup(void **state) {
    return mkdtemp(folder) == NULL;
}

static int teardown(void **state) {
    char path[256];
    snprintf(path, sizeof(path), "%s/this.json", folder);
    unlink(path);
    return rmdir(folder); /* it is empty */
}

static json_t *run_json(const char *arguments) {
    int code = run(arguments, output, sizeof(output));
    if (code != 0)
        fail_msg("zero-bench %s: exit %d", arguments, code);
    json_t *object = json_loads(output, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(object);
    return object;
}

static bool begins_with(const char *text, const char *with) {
    return strncmp(text, with, strlen(with)) == 0;
}

static void assert_source(const json_t *sources, const char *figure, const char *beginning) {
    const char *source = json_string_value(json_object_get(sources, figure));
    if (source == NULL || !begins_with(source, beginning))
        fail_msg("%s: \"%s\" does not begin with \"%s\"", figure, source != NULL ? source : "none",
                 beginning);
}

/* Every figure that the kind has says where it is from. */
static void assert_sources(const json_t *figures, const json_t *sources) {
    const char *name;
    json_t *value;
    assert_int_equal(json_object_size(figures), json_object_size(sources));
    json_object_foreach((json_t *)figures, name, value) {
        const char *source = json_string_value(json_object_get(sources, name));
        assert_non_null(source);
        if (!begins_with(source, "measured on 20") && !begins_with(source, "not measured: ") &&
            !begins_with(source, "looked up: ") && !begins_with(source, "asked for"))
            fail_msg("%s: \"%s\"", name, source);
    }
}

/* Numbers of JSON have six digits. */
static void assert_near(double value, double wanted) {
    if (!(fabs(value - wanted) <= 1e-4 * fabs(wanted)))
        fail_msg("%.9g, not %.9g", value, wanted);
}

TEST(test_description) {
    char arguments[512], path[256];
    zr_hardware_t hardware;
    snprintf(path, sizeof(path), "%s/this.json", folder);
    snprintf(arguments, sizeof(arguments),
             "--save-hardware %s --quick --ranks 2 --threads 1 --path %s --json 2>/dev/null", path,
             folder);
    json_t *object = run_json(arguments);
    const json_t *figures = json_object_get(object, "figures");
    const json_t *sources = json_object_get(object, "sources");
    assert_string_equal(json_string_value(json_object_get(object, "command")), "hardware");
    assert_string_equal(json_string_value(json_object_get(object, "file")), path);
    assert_sources(figures, sources);
    assert_source(sources, "disk_read.bytes_per_s", "measured on 20");
    assert_source(sources, "within_node.bytes_per_s", "measured on 20");
    assert_source(sources, "between_nodes.bytes_per_s", "not measured: ");

    assert_int_equal(zr_hardware_read_json(path, NULL, &hardware), ZR_OK);
    assert_int_equal(hardware.ranks_per_node, 2);
    assert_int_equal(hardware.n_threads, 1);
    assert_near(hardware.device.matrix_fp32_ops_per_s,
                number_at(figures, "device.matrix_fp32_ops_per_s"));
    assert_true(hardware.device.matrix_fp32_ops_per_s != /* it is no default */
                zr_hardware_default().device.matrix_fp32_ops_per_s);
    json_decref(object);

    snprintf(arguments, sizeof(arguments),
             "'%s' --hardware %s --model layers=2,channels=64,heads=2,seq=16,vocab=256 --ranks 2 "
             ">/dev/null 2>&1",
             ZERO_PLAN, path);
    assert_int_equal(system(arguments), 0);
}

/* What cannot be measured keeps a value, and its source says so. */
TEST(test_what_is_not_there) {
    json_t *object = run_json("hardware --quick --json 2>/dev/null");
    const json_t *sources = json_object_get(object, "sources");
    assert_null(json_object_get(object, "file"));
    assert_sources(json_object_get(object, "figures"), sources);
    assert_source(sources, "disk_read.bytes_per_s", "not measured: no --path");
    assert_source(sources, "within_node.bytes_per_s", "not measured: there is only one rank");
    assert_source(sources, "device.update_bytes_per_s", "measured on 20");
    json_decref(object);
}

static double assert_parts(const json_t *times) {
    static const char *const parts[] = {"compute_ms", "comm_ms", "stall_ms", "optimizer_ms",
                                        "io_ms"};
    double step = number_at(times, "step_ms"), sum = 0.0;
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        double part = number_at(times, parts[i]);
        assert_true(part >= 0.0);
        sum += part;
    }
    assert_true(step > 0.0);
    return sum / step;
}

static void assert_exposed(const json_t *exposed, double step_ms) {
    static const char *const parts[] = {"idle_ms",          "compute_ms",   "update_ms",
                                        "communication_ms", "host_link_ms", "disk_ms"};
    double sum = 0.0;
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
        sum += number_at(exposed, parts[i]);
    assert_near(sum, step_ms);
}

TEST(test_plan) {
    char arguments[512];
    size_t i;
    json_t *row;
    snprintf(arguments, sizeof(arguments), "plan --quick --path %s --json 2>/dev/null", folder);
    json_t *object = run_json(arguments);
    const json_t *rows = json_object_get(object, "configurations");
    assert_int_equal(json_array_size(rows), 4);
    assert_int_equal((int)number_at(object, "left_out"), 0);
    double worst = 0.0;
    json_array_foreach(rows, i, row) {
        const json_t *measured = json_object_get(row, "measured");
        const json_t *predicted = json_object_get(row, "predicted");
        double error = number_at(row, "error");
        assert_int_equal((int)number_at(row, "number"), (int)i + 1);
        (void)assert_parts(measured); /* medians: they need not add up */
        assert_near(assert_parts(predicted), 1.0);
        assert_exposed(json_object_get(row, "exposed"), number_at(predicted, "step_ms"));
        double ratio = number_at(predicted, "step_ms") / number_at(measured, "step_ms");
        assert_near(ratio + 1.0, error + 2.0); /* where steps took long, the error is nearly -1 */
        assert_true(number_at(row, "machine") > 0.0);
        worst = fabs(error) > worst ? fabs(error) : worst;
    }
    assert_near(number_at(object, "worst_error"), worst);
    assert_true(number_at(json_object_get(json_array_get(rows, 3), "predicted"), "io_ms") > 0.0);
    assert_true(number_at(json_object_get(json_array_get(rows, 1), "predicted"), "comm_ms") > 0.0);
    json_decref(object);
}

/* Without folders, what needs drives is left out, and said to be. */
TEST(test_without_drives) {
    json_t *object = run_json("plan --quick --only 1,4 --json 2>/dev/null");
    assert_int_equal(json_array_size(json_object_get(object, "configurations")), 1);
    assert_int_equal((int)number_at(object, "left_out"), 1);
    json_decref(object);
}

TEST(test_bad_usage) {
    assert_bad_usage("hardware --ranks 0", "--ranks");
    assert_bad_usage("hardware --path missing-folder", "missing-folder");
    assert_bad_usage("--save-hardwar x", "--save-hardware");
    assert_bad_usage("--save-hardware", "save-hardware");
    assert_bad_usage("--save-hardware missing-folder/x.json", "--save-hardware missing-folder/x");
    assert_bad_usage("plan --only 99", "--only");
    assert_bad_usage("plan --path missing-folder", "missing-folder");
}

const test_group_t test_group = {setup, teardown};
