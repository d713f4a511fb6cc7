/*
 * --trace of zero-train and zero-plan: the file is whole and says all that ran, its counters have
 * the peaks of --json, and a plan's is the same as the run's: the schedule is the plan.
 */
#include "tests/common/test.h"
#include "tests/common/trace_file.h"
#include "tests/examples/run_plan.h"
#include "tests/examples/run_ranks.h"
#include "zero/plan/run_plan.h"

#define STAGE3 TINY "--ranks 2 --stage 3 --steps 3 --grad-accum 2 --threads 1 --clip 1 "

static const char *name_of(json_t *slice) {
    return json_string_value(json_object_get(slice, "name"));
}

static double arg(json_t *slice, const char *key) {
    return json_number_value(json_object_get(json_object_get(slice, "args"), key));
}

/* ---- a run ---- */

/* So many slices have names that begin so, in a lane; -1: at least one in each of three steps. */
static void expect_slices(json_t *file, int process, const char *lane, const char *name, int n) {
    size_t found = trace_file_count(file, process, lane, name);
    if (n < 0 ? found < 3 : found != (size_t)n)
        fail_msg("%s: \"%s\" is there %zu times", lane, name, found);
}

static void check_names(json_t *file, int process) {
    static const char *const names[][2] = {{"schedule", "micro-batch 1"},
                                           {"schedule", "micro-batch 2"},
                                           {"schedule", "forward embed"},
                                           {"schedule", "forward h.0"},
                                           {"schedule", "backward h.1"},
                                           {"schedule", "forward ln_f"},
                                           {"schedule", "loss"},
                                           {"schedule", "norm"},
                                           {"schedule", "update h.0"},
                                           {"schedule", "sub-group 1"},
                                           {"comm", "all_gather embed parameters"},
                                           {"comm", "all_gather h.0 parameters"},
                                           {"comm", "all_gather ln_f parameters"},
                                           {"comm", "reduce_scatter h.0 gradients"},
                                           {"comm", "reduce_scatter ln_f gradients"},
                                           {"comm", "reduce_scatter embed gradients"},
                                           {"comm", "all_gather gradient norm"},
                                           {"compute", "matmul"},
                                           {"compute", "attention"},
                                           {"compute", "layernorm"},
                                           {"compute", "adamw"},
                                           {"compute", "sum_of_squares"},
                                           {"compute", "lm_head"}};
    expect_slices(file, process, "schedule", "step ", 3);
    for (size_t i = 0; i < N_OF(names); i++)
        expect_slices(file, process, names[i][0], names[i][1], -1);
    assert_true(trace_file_count(file, process, "stalls", "wait for ranks") > 0);
}

/* What it sent is what the run says that a rank has sent. */
static void check_bytes(json_t *file, int process, json_t *result) {
    size_t n;
    double gathered = 0, reduced = 0;
    json_t **slices = trace_file_slices(file, process, "comm", "collective", &n);
    for (size_t i = 0; i < n; i++) {
        const char *name = name_of(slices[i]);
        if (strncmp(name, "all_gather", 10) == 0 && strstr(name, " parameters") != NULL)
            gathered += arg(slices[i], "sent_bytes");
        else if (strncmp(name, "reduce_scatter", 14) == 0)
            reduced += arg(slices[i], "sent_bytes");
    }
    free(slices);
    json_t *sent = json_object_get(result, "comm_bytes");
    assert_true(reduced == json_number_value(json_object_get(sent, "reduce_scatter")));
    assert_true(gathered == json_number_value(json_object_get(sent, "all_gather")));
}

/* A counter's largest value, on the rank where it is largest, is this peak. */
static void expect_peak(json_t *file, int n_ranks, const char *tier, const char *tag, double peak) {
    char name[128];
    double most = -1;
    snprintf(name, sizeof(name), "%s memory%s%s", tier, tag[0] != '\0' ? ": " : "", tag);
    for (int rank = 0; rank < n_ranks; rank++)
        most = fmax(most, trace_file_peak(file, rank + 1, name));
    if (fmax(most, 0) != peak)
        fail_msg("%s: %g instead of %g", name, most, peak);
}

static void check_peaks(json_t *file, int n_ranks, json_t *result) {
    static const char *const tiers[] = {"device", "host"};
    for (int tier = 0; tier < 2; tier++) {
        json_t *own = field(result, "peak_bytes.%s", tiers[tier]), *value;
        const char *tag;
        expect_peak(file, n_ranks, tiers[tier], "", number(own, "live"));
        json_object_foreach(field(own, "tags"), tag, value)
            expect_peak(file, n_ranks, tiers[tier], tag, json_number_value(value));
    }
}

TEST(two_ranks) {
    json_t *result = run_json(0, STAGE3 "--trace t.json");
    json_t *file = kept(trace_file_load("t.json")), *said = json_object_get(result, "trace");
    for (int rank = 0; rank < 2; rank++) {
        check_names(file, rank + 1);
        check_bytes(file, rank + 1, result);
        assert_true(trace_file_last(file, rank + 1, "device memory: gathered_parameters") == 0);
        assert_true(trace_file_last(file, rank + 1, "device memory: activations") == 0);
    }
    check_peaks(file, 2, result);
    assert_string_equal(text(said, "file"), "t.json");
    expect_fields(said, "first_step=1 last_step=3 left_out=0");
    assert_true(number(said, "events") > 1000);
}

/* The same weights, the same peaks, and no field of it. */
TEST(a_run_is_the_same_without) {
    static const char *const fields[] = {"weights_xxh3", "peak_bytes", "comm_bytes"};
    json_t *with = run_json(0, STAGE3 "--trace t.json");
    json_t *without = run_json(0, STAGE3 "");
    for (size_t i = 0; i < N_OF(fields); i++)
        assert_true(json_equal(field(with, "%s", fields[i]), field(without, "%s", fields[i])));
    expect_fields(without, "trace=absent");
}

TEST(some_steps) {
    assert_ran(0, TINY "--steps 4 --checkpoint-dir saved --checkpoint-every 2 --trace t.json "
                       "--trace-steps 2:3");
    assert_said("--trace-steps", "steps 2 to 3");
    json_t *file = kept(trace_file_load("t.json"));
    expect_slices(file, 1, "schedule", "step ", 2);
    expect_slices(file, 1, "schedule", "step 2", 1);
    expect_slices(file, 1, "schedule", "checkpoint", 1);
    assert_true(trace_file_count(file, 1, "write", "write") > 0);
    expect_slices(file, 1, "schedule", "hash", 0);
    assert_ran(0, TINY "--steps 6 --checkpoint-dir saved --resume --trace t.json");
    file = kept(trace_file_load("t.json"));
    expect_slices(file, 1, "schedule", "step 5", 1);
    expect_slices(file, 1, "schedule", "hash of the weights", 1);
}

/* A command that is given again goes on, and leaves what it has traced. */
TEST(steps_that_are_done) {
#define AGAIN TINY "--checkpoint-dir again --resume --trace t.json "
    expect_fields(run_json(0, AGAIN "--steps 2 --trace-steps 1:2"), "trace.last_step=2");
    assert_not_said("the first time", "warning");
    json_t *result = run_json(0, AGAIN "--steps 4 --checkpoint-every 2 --trace-steps 1:2");
    expect_fields(result, "trace=absent");
    assert_said("given again", "warning: rank 0: --trace t.json: nothing is traced: the run "
                               "resumes after step 2, and --trace-steps 1:2 are done");
    assert_ran(0, AGAIN "--steps 4 --ranks 2");
    assert_said("no step", "--trace t.json: nothing is traced: no steps are left");
    expect_slices(kept(trace_file_load("t.json")), 1, "schedule", "step ", 2);
}

/* Where the time of a run that failed went is asked, too. */
TEST(a_run_that_fails) {
    assert_ran(1, TINY "--steps 3 --device-memory 256KiB --plan-check off --trace failed.json");
    json_t *file = kept(trace_file_load("failed.json"));
    assert_true(trace_file_count(file, 1, "compute", "fill") > 0);
}

TEST(full_disk) {
    assert_ran(1, TINY "--steps 1 --trace /dev/full");
    assert_said("--trace /dev/full", "/dev/full|No space left");
}

/* ---- ranks that are processes ---- */

static int by_name(const void *a, const void *b) {
    json_t *x = *(json_t *const *)a, *y = *(json_t *const *)b;
    int order = strcmp(name_of(x), name_of(y));
    return order != 0 ? order : trace_file_begin(x) < trace_file_begin(y) ? -1 : 1;
}

/* Both files show one time: nobody is done with a collective before all have come to it. Those of a
 * name come in one order on both. */
static void check_time(json_t *first, json_t *second) {
    size_t n[2];
    json_t **of_first = trace_file_slices(first, 1, "comm", "collective", &n[0]);
    json_t **of_second = trace_file_slices(second, 2, "comm", "collective", &n[1]);
    assert_true(n[0] > 20 && n[0] == n[1]);
    qsort(of_first, n[0], sizeof(json_t *), by_name);
    qsort(of_second, n[1], sizeof(json_t *), by_name);
    for (size_t i = 0; i < n[0]; i++) {
        assert_string_equal(name_of(of_first[i]), name_of(of_second[i]));
        assert_true(trace_file_end(of_first[i]) >= trace_file_begin(of_second[i]));
        assert_true(trace_file_end(of_second[i]) >= trace_file_begin(of_first[i]));
    }
    free(of_first);
    free(of_second);
}

TEST(processes) {
    int code = run_by_hand(2, TINY "--device host --threads 1 --stage 3 --steps 2 --trace p.json "
                                   "--json");
    if (code != 0)
        fail_msg("exit %d: %s", code, err);
    json_t *first = kept(trace_file_load("p.json")),
           *second = kept(trace_file_load("p.rank1.json"));
    json_t *result = kept_json(out); /* of rank 0's file */
    json_t *about = field(first, "otherData.rank 0");
    assert_true(number(result, "trace.events") == number(about, "events"));
    check_time(first, second);
    expect_slices(first, 1, "schedule", "step ", 2);
    expect_slices(second, 2, "schedule", "step ", 2);
}

/* ---- a plan ---- */

#define PLANNED_PROCESS 1001

/* Slices of a lane and a step, without those that a plan cannot have. */
static json_t **slices_of_step(json_t *file, int process, const char *lane, size_t step,
                               size_t *n_p) {
    size_t n, n_kept = 0;
    json_t **slices = trace_file_slices(file, process, lane, NULL, &n);
    for (size_t i = 0; i < n; i++)
        if (strcmp(json_string_value(json_object_get(slices[i], "cat")), "place") != 0 &&
            arg(slices[i], "step") == (double)step)
            slices[n_kept++] = slices[i];
    *n_p = n_kept;
    return slices;
}

static size_t compare_lane(json_t *run, json_t *planned, const char *lane, size_t step) {
    size_t n_run, n_planned;
    json_t **of_run = slices_of_step(run, 1, lane, step, &n_run);
    json_t **of_plan = slices_of_step(planned, PLANNED_PROCESS, lane, step, &n_planned);
    for (size_t i = 0; i < n_run || i < n_planned; i++) {
        const char *ran = i < n_run ? name_of(of_run[i]) : "nothing";
        const char *foreseen = i < n_planned ? name_of(of_plan[i]) : "nothing";
        if (strcmp(ran, foreseen) != 0)
            fail_msg("%s, slice %zu: \"%s\" ran, \"%s\" was planned", lane, i, ran, foreseen);
        assert_true(arg(of_run[i], "bytes") == arg(of_plan[i], "bytes"));
        assert_true(arg(of_run[i], "sent_bytes") == arg(of_plan[i], "sent_bytes"));
        assert_true(arg(of_run[i], "micro_batch") == arg(of_plan[i], "micro_batch"));
    }
    free(of_run);
    free(of_plan);
    return n_run;
}

/* The places of the schedule, too, are the same. */
static void compare_schedule(json_t *run, json_t *planned) {
    size_t n_run, n_planned;
    json_t **of_run = trace_file_slices(run, 1, "schedule", "place", &n_run);
    json_t **of_plan = trace_file_slices(planned, PLANNED_PROCESS, "schedule", "place", &n_planned);
    assert_int_equal(n_run, n_planned + 1); /* the hash of the weights */
    for (size_t i = 0; i < n_planned; i++)
        assert_string_equal(name_of(of_run[i]), name_of(of_plan[i]));
    free(of_run);
    free(of_plan);
}

static void compare(const char *options, const char *const *lanes, size_t n_lanes) {
    char arguments[1024];
    size_t step = zr_run_steps_of_plan(strstr(options, "--stage 3") != NULL ? 3 : 0);
    snprintf(arguments, sizeof(arguments),
             TINY "--threads 1 --steps %zu --trace ran.json --trace-steps %zu:%zu --quiet %s", step,
             step, step, options);
    assert_ran(0, "%s", arguments);
    snprintf(arguments, sizeof(arguments),
             "--model layers=2,channels=16,heads=2,seq=16,vocab=256 --threads 1 --trace plan.json "
             "--quiet %s",
             options);
    int code = plan(arguments);
    if (code != 0)
        fail_msg("zero-plan %s: exit %d: %s", arguments, code, err);
    json_t *run = kept(trace_file_load("ran.json")), *planned = kept(trace_file_load("plan.json"));
    compare_schedule(run, planned);
    for (size_t i = 0; i < n_lanes; i++)
        assert_true(compare_lane(run, planned, lanes[i], step) > 0);
}

#define LEAVE_NOTHING_OPEN "--micro-batch 2 --recompute none "

TEST(the_schedule_is_the_plan) {
    static const char *const lanes[] = {"compute", "comm"};
    for (int stage = 0; stage < 4; stage++) {
        char options[256];
        snprintf(options, sizeof(options),
                 LEAVE_NOTHING_OPEN "--stage %d --ranks 2 --grad-accum 2 --offload-optimizer none "
                                    "--offload-params none",
                 stage);
        compare(options, lanes, 2);
        json_t *file = kept(trace_file_load("ran.json"));
        size_t n_published = stage == 1 || stage == 2;
        expect_slices(file, 1, "schedule", "publish h.0", n_published);
    }
    compare("--micro-batch 1 --recompute unit --stage 3 --ranks 1 --offload-optimizer cpu "
            "--offload-params cpu --sub-group 2048",
            lanes, 1);
    compare(LEAVE_NOTHING_OPEN "--stage 3 --ranks 4 --shard-group-size 2 --offload-optimizer none "
                               "--offload-params none",
            lanes, 2);
}

TEST(the_plan_of_a_drive) {
    static const char *const lanes[] = {"compute", "comm", "read", "write"};
    if (!has_nvme())
        skip();
    compare(LEAVE_NOTHING_OPEN "--stage 2 --ranks 2 --offload-optimizer nvme --nvme-path drive "
                               "--offload-params none --sub-group 4096",
            lanes, 4);
}

const test_group_t test_group = {make_folder, leave_test_folder};
