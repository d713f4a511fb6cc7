/*
 * A plan is the run: for configurations of every stage, with offload and accumulation, what
 * zero-plan foretells of each tier and tag is what zero-train has needed, to the byte; where it
 * says that nothing fits, the run ends for lack of memory; and the options that it recommends run.
 */
#include "tests/common/test.h"
#include "tests/examples/run_plan.h"
#include "zero/zero.h"

#define MODEL "--model layers=2,channels=64,heads=2,seq=16,vocab=256 --sub-group 4096 "

static json_t *only_plan(json_t *object) {
    json_t *plans = json_object_get(object, "plans");
    assert_int_equal(json_array_size(plans), 1);
    return json_array_get(plans, 0);
}

/* Live bytes and those of each tag, in every tier that either knows. */
static void expect_same_peaks(const char *arguments, json_t *planned, json_t *trained) {
    const char *tier, *tag;
    json_t *peak, *value;
    assert_int_equal(json_object_size(planned), json_object_size(trained));
    json_object_foreach(trained, tier, peak) {
        json_t *own = json_object_get(planned, tier);
        if (json_integer_value(json_object_get(own, "live")) !=
            json_integer_value(json_object_get(peak, "live")))
            fail_msg("%s: %s live differs", arguments, tier);
        json_object_foreach(json_object_get(peak, "tags"), tag, value) {
            json_int_t said =
                json_integer_value(json_object_get(json_object_get(own, "tags"), tag));
            if (said != json_integer_value(value))
                fail_msg("%s: %s %s: %lld planned, %lld needed", arguments, tier, tag,
                         (long long)said, (long long)json_integer_value(value));
        }
    }
}

static const char *const runs[] = {
    "--stage 0 --offload-optimizer none --recompute none --micro-batch 1",
    "--stage 1 --offload-optimizer none --recompute none --micro-batch 3 --grad-accum 2 --ranks 2",
    "--stage 2 --offload-optimizer none --recompute unit --micro-batch 2 --ranks 3 --dtype bf16",
    "--stage 3 --offload-optimizer none --offload-params none --recompute none --micro-batch 1 "
    "--ranks 2 --grad-accum 3",
    "--stage 2 --offload-optimizer cpu --recompute none --micro-batch 2 --ranks 2 --dtype bf16",
    "--stage 3 --offload-optimizer cpu --offload-params cpu --recompute unit --micro-batch 2 "
    "--ranks 2 --offload-activations cpu",
    "--stage 0 --offload-optimizer nvme --nvme-path drive --recompute none --micro-batch 1",
    "--stage 3 --offload-optimizer nvme --offload-params nvme --nvme-path drive --recompute unit "
    "--micro-batch 1 --ranks 2 --dtype bf16 --param-buffer 4096 --offload-activations nvme",
};

TEST(peaks_are_those_of_the_run) {
    char arguments[1024];
    bool nvme = has_nvme();
    for (size_t i = 0; i < sizeof(runs) / sizeof(runs[0]); i++) {
        if (strstr(runs[i], "nvme") != NULL && !nvme)
            continue;
        snprintf(arguments, sizeof(arguments), MODEL "%s", runs[i]);
        json_t *planned = plan_json(arguments, 0), *one = only_plan(planned);
        assert_true(json_is_true(json_object_get(one, "fits")));
        assert_true(number(one, "step_ms", NULL) > 0);
        snprintf(arguments, sizeof(arguments), MODEL "%s --data text --steps 4 --json", runs[i]);
        json_t *trained = run_json(arguments, 0);
        expect_same_peaks(arguments, json_object_get(one, "peak_bytes"),
                          json_object_get(trained, "peak_bytes"));
        json_decref(planned);
        json_decref(trained);
    }
}

/* The same budgets, above and below what is needed, and what the refusal says. */
TEST(what_does_not_fit_is_agreed_on) {
    static const char *const cases[] = {"--stage 0 --offload-optimizer none",
                                        "--stage 2 --offload-optimizer cpu --ranks 2",
                                        "--stage 3 --offload-optimizer none --offload-params none "
                                        "--ranks 2"};
    static const char *const tiers[] = {"device", "host", "device"};
    char arguments[1024];
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        bool has_fit = false, has_failed = false;
        for (size_t budget = 50000; budget < 4000000; budget = budget * 3 / 2) {
            snprintf(arguments, sizeof(arguments),
                     MODEL "%s --recompute none --micro-batch 1 --%s-memory %zu", cases[i],
                     tiers[i], budget);
            json_t *planned = plan_json(arguments, plan(arguments)), *one = only_plan(planned);
            bool fits = json_is_true(json_object_get(one, "fits"));
            if (!fits) {
                json_t *lack = json_object_get(one, "lack");
                assert_string_equal(text(lack, "tier"), tiers[i]);
                assert_true(number(lack, "needed", NULL) > number(lack, "there", NULL));
                assert_int_equal((size_t)number(lack, "there", NULL), budget);
                assert_true(number(lack, "tag_bytes", NULL) > 0);
            }
            assert_string_equal(text(planned, "result"), fits ? "planned" : "none_fits");
            snprintf(arguments, sizeof(arguments),
                     MODEL
                     "%s --recompute none --micro-batch 1 --%s-memory %zu --data text --steps 3",
                     cases[i], tiers[i], budget);
            assert_ran(arguments, fits ? 0 : 1);
            has_fit |= fits;
            has_failed |= !fits;
            json_decref(planned);
        }
        assert_true(has_fit && has_failed);
    }
}

/* Of everything that is open. */
TEST(what_is_recommended_runs) {
    char arguments[2048];
    json_t *planned =
        plan_json(MODEL "--ranks 2 --grad-accum 2 --seq 8 --offload-gradients cpu", 0);
    json_t *plans = json_object_get(planned, "plans");
    json_t *recommended = json_object_get(planned, "recommended");
    json_t *best = json_array_get(plans, (size_t)number(recommended, "plan", NULL));
    size_t stages[4] = {0}, i;
    json_t *one;
    assert_true(json_is_true(json_object_get(best, "fits")));
    json_array_foreach(plans, i, one) {
        stages[(int)number(one, "stage", NULL)]++;
        assert_true(number(best, "tokens_per_s", NULL) >= 0.98 * number(one, "tokens_per_s", NULL));
        const char *part;
        json_t *time = json_object_get(one, "time"), *value;
        double sum = 0;
        json_object_foreach(time, part, value) sum +=
            json_is_number(value) ? json_number_value(value) : number(value, "exposed", NULL);
        assert_true(sum > 0.999e-3 * number(one, "step_ms", NULL));
        assert_true(sum < 1.001e-3 * number(one, "step_ms", NULL));
    }
    assert_true(stages[0] > 0 && stages[1] > 0 && stages[2] > 0 && stages[3] > 0);
    assert_int_equal((int)number(best, "stage", NULL),
                     0); /* it fits, and is about as fast as any */
    snprintf(arguments, sizeof(arguments), "--data text --steps 2 --json %s",
             text(recommended, "options"));
    json_t *trained = run_json(arguments, 0);
    assert_int_equal((int)number(trained, "micro_batch", NULL),
                     (int)number(best, "micro_batch", NULL));
    expect_same_peaks(arguments, json_object_get(best, "peak_bytes"),
                      json_object_get(trained, "peak_bytes"));
    json_decref(trained);
    json_decref(planned);
}

/* Partial placements: as far up as fits, at each stage. */
TEST(parts_are_planned) {
    char arguments[2048];
    json_t *planned =
        plan_json(MODEL "--ranks 2 --recompute none --micro-batch 1 --stage auto "
                        "--offload-optimizer auto --offload-params none --device-memory 1300000",
                  0);
    json_t *plans = json_object_get(planned, "plans");
    json_t *recommended = json_object_get(planned, "recommended");
    json_t *best = json_array_get(plans, (size_t)number(recommended, "plan", NULL));
    assert_int_equal(json_array_size(plans), 4);
    assert_string_equal(text(best, "offload_optimizer"), "cpu");
    assert_true(number(best, "offload_ratio", NULL) < 1 && number(best, "offload_ratio", NULL) > 0);
    snprintf(arguments, sizeof(arguments), "--data text --steps 3 --json %s",
             text(recommended, "options"));
    json_t *trained = run_json(arguments, 0);
    expect_same_peaks(arguments, json_object_get(best, "peak_bytes"),
                      json_object_get(trained, "peak_bytes"));
    json_decref(trained);
    json_decref(planned);
}

/* ---- the picture ------------------------------------------------------------------------------
 */

#define PICTURED                                                                                   \
    "--model layers=8,channels=256,heads=4,seq=64,vocab=256 --ranks 2 --dtype bf16 --micro-batch " \
    "1 "                                                                                           \
    "--hardware 8x-a100-80g --recompute none --quiet "
#define BUDGET "--device-memory 48MiB "

static void assert_in(const char *file, const char *part) {
    if (strstr(file, part) == NULL)
        fail_msg("\"%s\" is not in the picture", part);
}

/* Both forms; what is drawn is what was planned, for all tiers, and the parts of a step. */
TEST(pictures_are_drawn) {
    static const char *const parts[] = {"<svg",
                                        "parameters",
                                        "optimizer_state",
                                        "activations",
                                        "device, ",
                                        "host, ",
                                        "nvme, ",
                                        "no room",
                                        "48.0 MiB",
                                        "peak, as reserved",
                                        "compute",
                                        "network",
                                        "update",
                                        "to the device",
                                        "drive, read",
                                        "one step of the recommended plan"};
    static char file[1 << 20];
    if (system("gnuplot --version >/dev/null 2>&1") != 0)
        skip();
    assert_int_equal(plan(PICTURED BUDGET "--offload-optimizer nvme --stage 2 --plot \"it's.svg\""),
                     0);
    assert_string_equal(err, "");
    assert_int_equal(plan(PICTURED BUDGET "--plot it.png --trace it.json"), 0);
    assert_string_equal(err, "");
    assert_non_null(strstr(out, "recommended"));
    read_file("it.json", file, sizeof(file)); /* of the step that is drawn */
    assert_non_null(strstr(file, "matmul"));
    read_file("it.png", file, sizeof(file));
    assert_int_equal(memcmp(file, "\x89PNG", 4), 0);
    assert_int_equal(plan(PICTURED BUDGET "--offload-optimizer nvme --plot it.svg"), 0);
    read_file("it.svg", file, sizeof(file));
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
        assert_in(file, parts[i]);
    assert_int_equal(plan(PICTURED
                          "--device-memory 8MiB --stage 0 --offload-optimizer none --plot none.svg "
                          "--trace none.json"),
                     1);
    read_file("none.svg", file, sizeof(file));
    assert_in(file, "no room");
    assert_null(strstr(file, "one step"));
    assert_int_not_equal(access("none.json", F_OK), 0);
    assert_int_equal(plan("--model gpt3-6.7b --hardware 8x-h100-100gb --dtype bf16 --stage 3 "
                          "--offload-optimizer none --offload-params none --recompute unit "
                          "--micro-batch 4 --ranks 32 --plot groups.svg"),
                     0);
    read_file("groups.svg", file, sizeof(file));
    assert_in(file, "stage, group");
    assert_in(file, "3, 32");
    assert_in(file, "3, 8");
}

TEST(a_picture_needs_gnuplot) {
    assert_int_equal(setenv("PATH", "/nowhere", 1), 0);
    int code = plan(PICTURED BUDGET "--plot it.svg");
    assert_int_equal(setenv("PATH", "/usr/local/bin:/usr/bin:/bin", 1), 0);
    assert_int_equal(code, 1);
    assert_said("no gnuplot", "there is no gnuplot; install the package gnuplot-nox");
    assert_non_null(strstr(out, "recommended"));
}

/* ---- DeepSpeed's JSON -------------------------------------------------------------------------
 */

/* What decides what a run is. */
static void expect_same_run(const char *arguments, json_t *by_options, json_t *by_file) {
    static const char *const fields[] = {
        "stage", "ranks",     "dtype",        "micro_batch",  "grad_accum",
        "seq",   "recompute", "weights_xxh3", "planned_fits", "planned_peak_bytes"};
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++)
        if (!json_equal(json_object_get(by_options, fields[i]),
                        json_object_get(by_file, fields[i])))
            fail_msg("%s: %s differs from that of the options", arguments, fields[i]);
    json_t *offload[] = {json_object_get(by_options, "offload"),
                         json_object_get(by_file, "offload")};
    static const char *const parts[] = {"optimizer", "ratio", "groups", "state_bytes"};
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
        assert_true(offload[0] == NULL || json_object_get(offload[0], parts[i]) == NULL ||
                    json_equal(json_object_get(offload[0], parts[i]),
                               json_object_get(offload[1], parts[i])));
}

/* Whether a plan has the stage, placement and micro-batch of another. */
static bool is_same_plan(json_t *a, json_t *b) {
    static const char *const fields[] = {"stage", "offload_optimizer", "offload_params",
                                         "micro_batch", "recompute"};
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++)
        if (!json_equal(json_object_get(a, fields[i]), json_object_get(b, fields[i])))
            return false;
    return true;
}

/* A recommendation as a file and what is left beside it runs as its options do; planned with that
 * file, nothing is open but where it does not say that things are on the device. */
static void expect_file_runs(const char *asked) {
    char arguments[1536];
    json_t *planned = plan_json(asked, 0), *recommended = json_object_get(planned, "recommended");
    json_t *best = json_array_get(json_object_get(planned, "plans"),
                                  (size_t)number(recommended, "plan", NULL));
    assert_int_equal(json_dump_file(json_object_get(recommended, "config"), "ds.json", 0), 0);
    assert_true((json_object_get(json_object_get(recommended, "config"), "aio") != NULL) ==
                (strcmp(text(best, "offload_optimizer"), "nvme") == 0 ||
                 strcmp(text(best, "offload_params"), "nvme") == 0));
    snprintf(arguments, sizeof(arguments), "--data text --steps 3 --json %s",
             text(recommended, "options"));
    json_t *by_options = run_json(arguments, 0);
    snprintf(arguments, sizeof(arguments), "--data text --steps 3 --json --config ds.json %s",
             text(recommended, "options_with_config"));
    json_t *by_file = run_json(arguments, 0);
    expect_same_run(arguments, by_options, by_file);
    expect_same_peaks(arguments, json_object_get(best, "peak_bytes"),
                      json_object_get(by_file, "peak_bytes"));
    snprintf(arguments, sizeof(arguments), "--config ds.json %s",
             text(recommended, "options_with_config"));
    json_t *again = plan_json(arguments, 0);
    json_t *one;
    size_t i, n_same = 0;
    json_array_foreach(json_object_get(again, "plans"), i, one) {
        assert_true(json_equal(json_object_get(one, "stage"), json_object_get(best, "stage")));
        if (!is_same_plan(one, best))
            continue;
        n_same++;
        expect_same_peaks(arguments, json_object_get(best, "peak_bytes"),
                          json_object_get(one, "peak_bytes"));
    }
    assert_int_equal(n_same, 1);
    json_decref(again);
    json_decref(by_file);
    json_decref(by_options);
    json_decref(planned);
}

TEST(the_recommended_file_runs) {
    static const char *const asked[] = {
        MODEL "--ranks 2 --grad-accum 2 --seq 8 --dtype bf16 --clip 1",
        MODEL
        "--ranks 2 --micro-batch 2 --stage auto --offload-optimizer auto --offload-params none "
        "--device-memory 1300000",
        MODEL
        "--ranks 2 --stage 3 --offload-optimizer cpu --offload-params cpu --prefetch 1000 "
        "--offload-param-ratio 0.5 --offload-activations cpu --recompute unit --micro-batch 1",
        MODEL "--ranks 3 --stage 2 --offload-optimizer nvme --nvme-path drive --micro-batch 1 "
              "--nvme-buffers 2 --nvme-verify off --nvme-capacity 1GiB --state-in-host 9000 "
              "--offload-gradients none --check-overflow off"};
    bool nvme = has_nvme();
    for (size_t i = 0; i < sizeof(asked) / sizeof(asked[0]); i++)
        if (nvme || strstr(asked[i], "nvme") == NULL)
            expect_file_runs(asked[i]);
}

static size_t n_plans_of(const char *file, const char *options, const char *field, double value) {
    char arguments[1024];
    write_file("given.json", file, strlen(file));
    snprintf(arguments, sizeof(arguments), MODEL "--recompute none --config given.json %s",
             options);
    json_t *planned = plan_json(arguments, 0), *one;
    size_t n = json_array_size(json_object_get(planned, "plans")), i;
    json_array_foreach(json_object_get(planned, "plans"), i, one) {
        if (field != NULL && number(one, field, NULL) != value)
            fail_msg("%s: %s is not %g", arguments, field, value);
    }
    json_decref(planned);
    return n;
}

/* What a file gives is not tried in all ways; "auto" and an option leave it open. */
TEST(files_keep_plans_to_what_they_give) {
    static const char stage[] = "{\"zero_optimization\": {\"stage\": 2}}";
    static const char left_open[] = "{\"zero_optimization\": {\"stage\": \"auto\"}}";
    static const char offload[] =
        "{\"zero_optimization\": {\"stage\": 3, \"offload_optimizer\": {\"device\": \"none\"},"
        "\"offload_param\": {\"device\": \"cpu\", \"ratio\": 0.5}}, \"train_batch_size\": 6,"
        "\"gradient_accumulation_steps\": 2}";
    assert_int_equal(n_plans_of(stage, "--micro-batch 1", "stage", 2), 2); /* none, cpu */
    assert_int_equal(n_plans_of(stage, "--micro-batch 1 --stage 1", "stage", 1), 2);
    assert_int_equal(n_plans_of(stage, "--micro-batch 1 --stage auto", NULL, 0), 10);
    assert_int_equal(n_plans_of(left_open, "--micro-batch 1", NULL, 0), 10);
    assert_int_equal(n_plans_of(offload, "", "micro_batch", 3), 1);
    assert_int_equal(n_plans_of(offload, "", "offload_param_ratio", 0.5), 1);
    write_file("given.json", "{\"stage\": 2}", 12);
    assert_int_equal(plan(MODEL "--config given.json"), 2);
    assert_said("given.json", "--config given.json: ");
}

/* A schedule of a file stays, with what it leaves to the run's steps. */
TEST(schedules_stay) {
    static const char file[] = "{\"scheduler\": {\"type\": \"WarmupCosineLR\", \"params\":"
                               "{\"cos_min_ratio\": 0.25}}, \"optimizer\": {\"params\":"
                               "{\"lr\": 0.01, \"weight_decay\": 0.1}}}";
    write_file("schedule.json", file, strlen(file));
    expect_file_runs(MODEL "--ranks 2 --micro-batch 1 --config schedule.json");
}

/* Change a text in a file to one of the same length. */
static void replace_in(const char *path, const char *before, const char *after) {
    static char whole[65536];
    read_file(path, whole, sizeof(whole));
    char *place = strstr(whole, before);
    assert_non_null(place);
    memcpy(place, after, strlen(after));
    write_file(path, whole, strlen(whole));
}

/* One plan is not one of several. */
TEST(one_plan_that_does_not_fit) {
    assert_int_equal(plan(MODEL "--stage 0 --offload-optimizer none --offload-params none "
                                "--recompute none --micro-batch 1 --device-memory 64KiB"),
                     1);
    assert_said("one plan", "error: the plan does not fit");
    assert_int_equal(plan(MODEL "--stage 0 --offload-params none --offload-optimizer none "
                                "--micro-batch 1 --device-memory 64KiB"),
                     1);
    assert_said("two plans", "error: none of 2 plans fits");
}

/* What comes to nothing is warned of once, and is not in the command that runs the plan. */
TEST(what_has_no_effect) {
    static const char config[] = "{\"zero_optimization\": {\"stage\": 1, "
                                 "\"stage3_prefetch_bucket_size\": 7, "
                                 "\"stage3_max_reuse_distance\": \"auto\"}}";
    write_file("stage1.json", config, sizeof(config) - 1);
    assert_int_equal(plan(MODEL "--micro-batch 1 --ranks 2 --stage 1 --prefetch 9 --max-live 8 "
                                "--sums any"),
                     0);
    assert_said("--prefetch", "warning: --prefetch, --max-live: no effect at stage 1, ");
    assert_said("--sums any", "warning: --sums any: no effect: ");
    assert_null(strstr(out, "--prefetch"));
    assert_null(strstr(out, "--sums"));
    assert_int_equal(plan(MODEL "--micro-batch 1 --ranks 2 --config stage1.json"), 0);
    assert_said("--config", "warning: stage3_prefetch_bucket_size: no effect at stage 1, ");
    assert_int_equal(plan(MODEL "--micro-batch 1 --config stage1.json --stage 3"), 0);
    assert_not_said("--stage 3", "no effect");
    assert_int_equal(plan(MODEL "--micro-batch 1 --prefetch 9"), 0); /* all stages are tried */
    assert_not_said("all stages", "no effect");
    assert_int_equal(plan(MODEL "--hardware 8x-h100 --micro-batch 1 --sums any"), 0);
    assert_not_said("GPUs", "no effect");
}

/* Descriptions that come with the program, and what is refused. */
TEST(hardware_is_found) {
    static const char *const names[] = {"8x-a100-80g", "8x-a100-40g-400gb", "8x-h100",
                                        "h200",        "4x-rtx4090",        "24g-64g"};
    char arguments[512];
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        snprintf(arguments, sizeof(arguments),
                 "--model gpt2 --dtype bf16 --recompute none --micro-batch 4 --hardware %s",
                 names[i]);
        json_t *planned = plan_json(arguments, 0);
        json_t *plans = json_object_get(planned, "plans");
        assert_int_equal(json_array_size(plans), 18); /* all placements */
        assert_string_equal(text(json_object_get(planned, "hardware"), "kind"), "cuda");
        json_decref(planned);
    }
    struct {
        const char *arguments, *part;
    } const refused[] = {{"--hardware 8x-h200", "8x-h100"},
                         {"--hardware ./none.json", "--hardware ./none.json: cannot read it"},
                         {"--hardware ./", "--hardware ./: it is a folder; allowed is a file"},
                         {"--hardware h200 --device host", "--hardware this"},
                         {"--hardwar h200 --stge 1", "--stage"},
                         {"--stage 1 --offload-params cpu", "--stage 3"},
                         {"--stage 1 --offload-params auto", "--stage 3"},
                         {"--offload-optimizer auto --offload-ratio 0.5", "leave them out"},
                         {"--offload-optimizer none --offload-ratio 0.5", "nothing is offloaded"},
                         {"--stage 1 --offload-gradients cpu", "at --stage 2 or 3"},
                         {"--offload-optimizer cpu --state-in-host 7", "--offload-optimizer nvme"},
                         {"--offload-params none --param-buffers 3", "add --offload-params nvme"},
                         {"--offload-optimizer nvme", "--nvme-path"},
                         {"--plot picture.pdf", "NAME.svg, NAME.png"},
                         {"--plot nowhere/picture.png", "cannot write --plot nowhere/picture.png"},
                         {"--trace nowhere/t.json", "cannot write --trace nowhere/t.json"},
                         {"--trace ./it.svg --plot it.svg", "--trace ./it.svg: are one file"},
                         {"--hardware odd.json",
                          "--hardware odd.json: granule_bytes is 2048; it has "
                          "to be at least 4096"},
                         {"--config drive.json", "--config drive.json: nvme_path absent: No such"},
                         {"--nvme-capacity 1GB", "--nvme-capacity 1GB: no drives are named"},
                         {"--param-buffers 2", "--param-buffers 2: no drives are named"},
                         {"--hardware h200 --nvme-capacity 1GB --offload-optimizer cpu "
                          "--offload-params none",
                          "--nvme-capacity 1GB: nothing is offloaded to NVMe"},
                         {"--micro-batch 0", "--micro-batch"},
                         {"--model gpt2 --micro-batch 2097152", "the nearest is 2097151"},
                         {"word", "word"}};
    static const char drive[] = "{\"zero_optimization\": {\"stage\": 1, \"offload_optimizer\": "
                                "{\"device\": \"nvme\", \"nvme_path\": \"absent\"}}}";
    write_file("drive.json", drive, sizeof(drive) - 1);
    zr_hardware_t odd = zr_hardware_default();
    assert_int_equal(zr_hardware_write_json(&odd, NULL, "odd.json", NULL), ZR_OK);
    replace_in("odd.json", "\"granule_bytes\": 4096", "\"granule_bytes\": 2048");
    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
        assert_int_equal(plan(refused[i].arguments), 2);
        assert_string_equal(out, "");
        assert_said(refused[i].arguments, refused[i].part);
    }
    assert_int_equal(plan("--help"), 0);
    assert_non_null(strstr(out, "--hardware"));
    assert_int_equal(plan("--version"), 0);
    assert_int_equal(strncmp(out, "zero-plan ", 10), 0);
}

/* Two ranks were measured on one machine, and what lies between machines was not. */
static void write_measured(const char *path) {
    zr_hardware_t hardware = zr_hardware_default();
    const char *sources[128] = {NULL};
    size_t n_figures = 0;
    const zr_figure_t *figures = zr_hardware_figures(&n_figures);
    assert_true(n_figures <= sizeof(sources) / sizeof(sources[0]));
    for (size_t i = 0; i < n_figures; i++)
        if (strncmp(figures[i].name, "between_nodes.", 14) == 0)
            sources[i] = "not measured: there is one machine; a value of the order of a server's";
    hardware.ranks_per_node = 2;
    assert_int_equal(zr_hardware_write_json(&hardware, sources, path, NULL), ZR_OK);
}

static double n_ranks_of(const char *arguments) {
    char with_model[512];
    snprintf(with_model, sizeof(with_model), MODEL "--stage 1 --micro-batch 1 %s", arguments);
    json_t *planned = plan_json(with_model, 0);
    double n_ranks = number(planned, "ranks", NULL);
    snprintf(with_model, sizeof(with_model), "--ranks %.0f", n_ranks);
    assert_true(n_ranks == 1 || strstr(text(json_object_get(planned, "recommended"), "options"),
                                       with_model) != NULL);
    json_decref(planned);
    return n_ranks;
}

/* As many as a description has, unless it is said; and what nobody has measured is. */
TEST(ranks_of_descriptions) {
    write_measured("two.json");
    assert_true(n_ranks_of("") == 1);
    assert_true(n_ranks_of("--hardware 8x-a100-80g") == 8);
    assert_true(n_ranks_of("--hardware 8x-a100-80g --ranks 3") == 3);
    assert_true(n_ranks_of("--hardware two.json") == 2);
    assert_string_equal(err, "");
    assert_true(n_ranks_of("--hardware two.json --ranks 1") == 1);
    assert_string_equal(err, "");
    assert_true(n_ranks_of("--hardware two.json --ranks 5") == 5);
    assert_said("more ranks", "--hardware two.json: it is of 2 ranks on one machine; 5 ranks are "
                              "planned on 3 such machines, and what is sent between them at 1 "
                              "GB/s, which was not measured");
    assert_true(n_ranks_of("--hardware 8x-a100-80g --ranks 64") == 64); /* it is described */
    assert_string_equal(err, "");
    assert_int_equal(plan(MODEL "--hardware 8x-a100-80g --stage 1 --micro-batch 1"), 0);
    assert_non_null(
        strstr(out, "8 x A100-80G, 8 ranks (one for each device; --ranks plans others)"));
    assert_int_equal(plan(MODEL "--hardware 8x-a100-80g --ranks 3 --stage 1 --micro-batch 1"), 0);
    assert_non_null(strstr(out, "8 x A100-80G, 3 ranks, each with the share of one of 8\n"));
}

#define ONE_MEMORY                                                                                 \
    "--model layers=4,channels=128,heads=2,seq=16,vocab=256 --sub-group 4096 --stage 3 "           \
    "--micro-batch 1 --recompute none --ranks 1 --hardware ./host.json "

static void write_host(size_t memory_bytes) {
    zr_hardware_t hardware = zr_hardware_default();
    hardware.host_memory_bytes = memory_bytes;
    hardware.ranks_per_node = 1;
    assert_int_equal(zr_hardware_write_json(&hardware, NULL, "host.json", NULL), ZR_OK);
}

static double both(json_t *plan) {
    json_t *peaks = json_object_get(plan, "peak_bytes");
    return number(peaks, "device", "reserved") + number(peaks, "host", "reserved");
}

/* Where device and host are one memory, the sum has to fit, and the host relieves no device. */
TEST(one_memory_is_counted_once) {
    write_host((size_t)1 << 30);
    json_t *planned = plan_json(ONE_MEMORY "--offload-optimizer auto --offload-params auto", 0);
    json_t *one = only_plan(planned);
    double whole = both(one), memory = 0.75 * whole;
    assert_string_equal(text(one, "offload_optimizer"), "none");
    json_decref(planned);

    write_host((size_t)memory);
    planned = plan_json(ONE_MEMORY "--offload-optimizer auto --offload-params auto", 0);
    one = only_plan(planned);
    assert_string_equal(text(one, "offload_optimizer"), "nvme");
    assert_string_equal(text(one, "offload_params"), "none");
    assert_true(number(one, "offload_ratio", NULL) < 0.6 && both(one) <= memory);
    json_decref(planned);

    planned = plan_json(ONE_MEMORY "--offload-optimizer auto --offload-params none "
                                   "--device-memory 6MB",
                        0);
    one = only_plan(planned);
    assert_true(number(json_object_get(one, "peak_bytes"), "device", "reserved") <= 6e6);
    assert_true(both(one) <= memory);
    json_decref(planned);

    planned = plan_json(ONE_MEMORY "--offload-optimizer cpu --offload-params none", 1);
    json_t *lack = json_object_get(only_plan(planned), "lack");
    assert_true(json_is_true(json_object_get(lack, "of_both")));
    assert_true(number(lack, "needed", NULL) == both(only_plan(planned)));
    assert_true(number(lack, "there", NULL) == (double)(size_t)memory);
    json_decref(planned);
    assert_int_equal(plan(ONE_MEMORY "--offload-optimizer none --offload-params none"), 1);
    assert_said("one memory", "of memory (device and host are one here) and has");
    assert_non_null(strstr(err, "--offload-optimizer cpu or nvme")); /* it was not tried */
    assert_int_equal(plan(ONE_MEMORY "--offload-optimizer none --offload-params none "
                                     "--device-memory 6MB"),
                     1);
    assert_said("a budget", "of device memory and has");
}

/* One plan of GPT-3 13B on 64 nodes. */
static double step_ms_of(const char *arguments, double *exposed_p) {
    char with_model[1024];
    snprintf(
        with_model, sizeof(with_model),
        "--model gpt3-13b --hardware 8x-a100-80g --ranks 512 --dtype bf16 --stage 3 "
        "--shard-group-size all --offload-optimizer none --offload-params none --micro-batch 1 "
        "--recompute unit %s",
        arguments);
    json_t *planned = plan_json(with_model, 0), *one = only_plan(planned);
    double step_ms = number(one, "step_ms", NULL);
    *exposed_p = 1e3 * number(json_object_get(json_object_get(one, "time"), "communication"),
                              "exposed", NULL);
    assert_non_null(strstr(text(json_object_get(planned, "recommended"), "options"), arguments));
    json_decref(planned);
    return step_ms;
}

/* What sums in rank order cost between nodes, and that gathering ahead hides gathering. */
TEST(collectives_are_as_asked_for) {
    double exposed, in_order_exposed, ahead_exposed, none_ahead_exposed;
    double any = step_ms_of("--sums any", &exposed);
    double in_order = step_ms_of("--sums rank-order", &in_order_exposed);
    /* Gradients of 25.7 GB, of which each of 8 ranks sends 504 of 512 parts to other nodes. */
    double more = 8.0 * 25.7e9 * 504.0 / 512.0 / 192e9 * 1e3 - 25.7e9 / 192e9 * 1e3;
    assert_true(in_order > any && in_order - any < 1.02 * more);
    assert_true(in_order_exposed > exposed);
    double ahead = step_ms_of("--sums any --prefetch 400000000", &ahead_exposed);
    assert_true(ahead < any && ahead_exposed < 0.5 * exposed);
    double limited =
        step_ms_of("--sums any --prefetch 400000000 --max-live 400000000", &none_ahead_exposed);
    assert_true(limited > ahead && none_ahead_exposed > ahead_exposed);
}

/* ---- groups ------------------------------------------------------------------------------ */

#define SLOW_LINKS                                                                                 \
    "--model gpt3-6.7b --hardware 8x-h100-100gb --dtype bf16 --offload-optimizer none "            \
    "--offload-params none --recompute unit --micro-batch 4 "

/* How many plans have groups of each size; the object is for the caller to give back. */
static json_t *sizes_of(const char *arguments, size_t n_of[1025]) {
    char all[1024];
    size_t i;
    json_t *one;
    snprintf(all, sizeof(all), SLOW_LINKS "%s", arguments);
    json_t *planned = plan_json(all, 0);
    memset(n_of, 0, 1025 * sizeof(n_of[0]));
    json_array_foreach(json_object_get(planned, "plans"), i, one)
        n_of[(size_t)number(one, "shard_group_size", NULL)]++;
    return planned;
}

/* Groups of a node where nodes are several and wait for each other; of what was given otherwise. */
TEST(groups_are_tried) {
    static size_t n_of[1025];
    json_t *planned = sizes_of("--ranks 32", n_of), *best = recommended_plan(planned);
    json_t *recommended = json_object_get(planned, "recommended");
    assert_true(n_of[32] == 4 && n_of[8] > 0);
    assert_int_equal((int)number(best, "shard_group_size", NULL), 8);
    assert_non_null(strstr(text(recommended, "options"), " --shard-group-size 8 "));
    assert_null(strstr(text(recommended, "options_with_config"), "--shard-group-size"));
    json_t *zero = json_object_get(json_object_get(recommended, "config"), "zero_optimization");
    assert_int_equal((int)number(zero, "mics_shard_size", NULL), 8);
    assert_non_null(strstr(text(recommended, "why"), "in groups of 8 ranks"));
    json_decref(planned);
    assert_int_equal(plan(SLOW_LINKS "--ranks 32"), 0);
    assert_non_null(strstr(out, "stage  group optimizer"));
    assert_non_null(strstr(out, "\n->  1      8      none"));

    json_decref(sizes_of("--ranks 8", n_of)); /* one node */
    assert_int_equal(n_of[8], 4);
    json_decref(sizes_of("--ranks 12", n_of)); /* nodes do not divide it: half of them do */
    assert_true(n_of[12] == 4 && n_of[4] > 0 && n_of[8] == 0);
    json_decref(sizes_of("--ranks 17", n_of)); /* nothing does */
    assert_int_equal(n_of[17], 4);
    json_decref(sizes_of("--ranks 32 --shard-group-size all", n_of));
    assert_int_equal(n_of[32], 4);
    json_decref(sizes_of("--ranks 32 --shard-group-size 16", n_of));
    assert_int_equal(n_of[16], 4);
    assert_int_equal(plan(SLOW_LINKS "--ranks 32 --shard-group-size 16"), 0);
    assert_non_null(strstr(out, "32 ranks on 4 nodes, in groups of 16\n"));
    assert_null(strstr(out, "stage  group"));
    json_decref(sizes_of("--ranks 32 --shard-group-size 16 --shard-group-size auto", n_of));
    assert_true(n_of[32] == 4 && n_of[8] > 0);
}

/* A file keeps plans to its groups, and options override it. */
TEST(groups_of_a_file) {
    static size_t n_of[1025];
    static const char file[] =
        "{\"train_micro_batch_size_per_gpu\": 4, \"bf16\": {\"enabled\": true},"
        " \"zero_optimization\": {\"mics_shard_size\": 16}}";
    write_file("groups.json", file, strlen(file));
    json_decref(sizes_of("--ranks 32 --config groups.json", n_of));
    assert_int_equal(n_of[16], 4);
    json_decref(sizes_of("--ranks 32 --config groups.json --shard-group-size auto", n_of));
    assert_true(n_of[32] == 4 && n_of[8] > 0 && n_of[16] == 0);
    json_t *planned = sizes_of("--ranks 32 --config groups.json --shard-group-size all", n_of);
    assert_int_equal(n_of[32], 4);
    assert_non_null(strstr(text(json_object_get(planned, "recommended"), "options"),
                           " --shard-group-size all --config groups.json"));
    json_decref(planned);
}

/* Where a node has no room for a copy, as few nodes as have, at the micro-batch that is best with
 * all ranks; what has no room with all ranks has none in groups, and is not planned. */
TEST(groups_that_fit) {
    static const char options[] = "--model gpt3-13b --hardware 8x-h100-100gb --ranks 64 --dtype "
                                  "bf16 --stage 3 --offload-optimizer none --offload-params none "
                                  "--recompute unit --micro-batch 2 --device-memory 20GiB";
    int last = 0;
    size_t i;
    json_t *one, *planned = plan_json(options, 0);
    assert_int_equal(json_array_size(json_object_get(planned, "plans")), 3);
    json_array_foreach(json_object_get(planned, "plans"), i, one) {
        int size = (int)number(one, "shard_group_size", NULL);
        assert_int_equal(size, i == 0 ? 64 : i == 1 ? 8 : 16);
        assert_int_equal(json_is_true(json_object_get(one, "fits")), size != 8);
        last = size;
    }
    assert_int_equal(last, (int)number(recommended_plan(planned), "shard_group_size", NULL));
    json_decref(planned);
    planned = plan_json("--model gpt3-13b --hardware 8x-h100-100gb --ranks 64 --dtype bf16 --stage "
                        "0 --offload-optimizer none",
                        1);
    json_array_foreach(json_object_get(planned, "plans"), i, one)
        assert_int_equal((int)number(one, "shard_group_size", NULL), 64);
    json_decref(planned);
}

/* What is recommended trains, by options and by the file, with the groups and in the memory. */
TEST(groups_that_are_recommended_run) {
    static const char options[] = MODEL "--ranks 4 --recompute none --micro-batch 2 --stage 3 "
                                        "--offload-optimizer none --offload-params none "
                                        "--hardware slow.json";
    char arguments[2048];
    json_t *hardware = NULL;
    write_measured("slow.json");
    hardware = json_load_file("slow.json", 0, NULL);
    json_object_set_new(json_object_get(hardware, "between_nodes"), "bytes_per_s", json_real(1e6));
    assert_int_equal(json_dump_file(hardware, "slow.json", 0), 0);
    json_decref(hardware);
    json_t *planned = plan_json(options, 0), *best = recommended_plan(planned);
    json_t *recommended = json_object_get(planned, "recommended");
    assert_int_equal((int)number(best, "shard_group_size", NULL), 2);
    assert_int_equal(json_dump_file(json_object_get(recommended, "config"), "slow_run.json", 0), 0);
    for (int by_file = 0; by_file <= 1; by_file++) {
        /* The described ranks have a thread each. */
        snprintf(arguments, sizeof(arguments), "--data text --steps 4 --json --threads 1 %s %s",
                 by_file ? "--config slow_run.json" : "",
                 text(recommended, by_file ? "options_with_config" : "options"));
        json_t *trained = run_json(arguments, 0);
        assert_int_equal((int)number(trained, "shard_group_size", NULL), 2);
        expect_same_peaks(arguments, json_object_get(best, "peak_bytes"),
                          json_object_get(trained, "peak_bytes"));
        json_decref(trained);
    }
    json_decref(planned);
}

const test_group_t test_group = {make_folder, leave_test_folder};
