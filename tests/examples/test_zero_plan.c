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

/* What is recommended trains as it was planned: in its memory, by these of its options. */
static json_t *expect_recommended(json_t *planned, const char *more, const char *options) {
    json_t *trained = run_json(0, "--data text --steps 4 %s %s", more,
                               text(field(planned, "recommended"), options));
    json_t *best = recommended_plan(planned);
    expect_same_peaks(field(best, "peak_bytes"), trained, false);
    double tables = number(trained, "metadata_bytes.peak");
    double planned_tables = number(best, "metadata_bytes.peak");
    assert_true(planned_tables > tables / 2 && planned_tables < 2 * tables);
    expect_fields(trained, "micro_batch=%.0f", number(best, "micro_batch"));
    return trained;
}

/* The same budgets, above and below what is needed, and what the refusal says. */
TEST(what_does_not_fit_is_agreed_on) {
    static const char *const cases[][2] = {
        {"--stage 0 --offload-optimizer none", "device"},
        {"--stage 2 --offload-optimizer cpu --ranks 2", "host"},
        {"--stage 3 --offload-optimizer none --offload-params none --ranks 2", "device"}};
    for (size_t i = 0; i < N_OF(cases); i++) {
        bool has_fit = false, has_failed = false;
        for (size_t budget = 50000; budget < 4000000; budget = budget * 9 / 4) {
            char arguments[512];
            snprintf(arguments, sizeof(arguments),
                     MODEL "%s --recompute none --micro-batch 1 --%s-memory %zu", cases[i][0],
                     cases[i][1], budget);
            bool fits = plan(arguments) == 0;
            json_t *planned = plan_json(fits ? 0 : 1, "%s", arguments), *one = only_plan(planned);
            expect_fields(planned, "result=%s", fits ? "planned" : "none_fits");
            if (!fits) {
                json_t *lack = field(one, "lack");
                expect_fields(lack, "tier=%s there=%zu", cases[i][1], budget);
                assert_true(number(lack, "needed") > budget && number(lack, "tag_bytes") > 0);
            }
            assert_ran(fits ? 0 : 1, "%s --data text --steps 3", arguments);
            has_fit |= fits;
            has_failed |= !fits;
        }
        assert_true(has_fit && has_failed);
    }
}

/* Of everything that is open. */
TEST(what_is_recommended_runs) {
    json_t *planned =
        plan_json(0, MODEL "--ranks 2 --grad-accum 2 --seq 8 --offload-gradients cpu "
                           "--dtype bf16 --state 8bit --sub-group 131072 --master split");
    json_t *best = recommended_plan(planned), *one;
    size_t stages[4] = {0}, i;
    json_array_foreach(field(planned, "plans"), i, one) {
        stages[(int)number(one, "stage")]++;
        assert_true(number(best, "tokens_per_s") >= 0.98 * number(one, "tokens_per_s"));
        const char *part;
        json_t *value;
        double sum = 0;
        json_object_foreach(field(one, "time"), part, value) sum +=
            json_is_number(value) ? json_number_value(value) : number(value, "exposed");
        assert_float_equal(1e3 * sum / number(one, "step_ms"), 1, 1e-3);
    }
    assert_true(stages[0] > 0 && stages[1] > 0 && stages[2] > 0 && stages[3] > 0);
    expect_fields(best, "fits=true stage=0"); /* it is about as fast as any */
    expect_recommended(planned, "", "options");
}

/* Partial placements: as far up as fits, at each stage. */
TEST(parts_are_planned) {
    json_t *planned = plan_json(
        0, MODEL "--ranks 2 --recompute none --micro-batch 1 --stage auto "
                 "--offload-optimizer auto --offload-params none --device-memory 1300000");
    json_t *best = recommended_plan(planned);
    assert_int_equal(json_array_size(field(planned, "plans")), 4);
    expect_fields(best, "offload_optimizer=cpu");
    assert_true(number(best, "offload_ratio") < 1 && number(best, "offload_ratio") > 0);
    expect_recommended(planned, "", "options");
}

/* ---- the picture ---------------------------------------------------------------------------- */

#define PICTURED                                                                                   \
    "--model layers=8,channels=256,heads=4,seq=64,vocab=256 --ranks 2 --dtype bf16 --micro-batch " \
    "1 "                                                                                           \
    "--hardware 8x-a100-80g --recompute none --quiet "
#define BUDGET "--device-memory 48MiB "

static void expect_picture(const char *arguments, int code, const char *file, const char *parts) {
    static char drawn[1 << 20];
    assert_int_equal(plan(arguments), code);
    assert_true(code != 0 || err[0] == '\0');
    read_file(file, drawn, sizeof(drawn));
    expect_parts(arguments, drawn, parts);
}

/* Both forms; what is drawn is what was planned, for all tiers, and the parts of a step. */
TEST(pictures_are_drawn) {
    if (system("gnuplot --version >/dev/null 2>&1") != 0)
        skip();
    expect_picture(PICTURED BUDGET "--offload-optimizer nvme --stage 2 --plot \"it's.svg\"", 0,
                   "it's.svg", "<svg");
    expect_picture(PICTURED BUDGET "--plot it.png --trace it.json", 0, "it.png", "\x89PNG");
    expect_out("recommended");
    assert_int_equal(system("grep -q matmul it.json"), 0); /* of the step that is drawn */
    expect_picture(
        PICTURED BUDGET "--offload-optimizer nvme --plot it.svg", 0, "it.svg",
        "<svg|parameters|optimizer state|activations|device, |host, |nvme, |no room"
        "|budget|48.0 MiB|peak, as reserved|compute|network|update|to the device|drive, read"
        "|one step of the recommended plan");
    expect_picture(PICTURED "--device-memory 8MiB --stage 0 --offload-optimizer none "
                            "--plot none.svg --trace none.json",
                   1, "none.svg", "no room");
    assert_int_not_equal(system("grep -q 'one step' none.svg"), 0);
    assert_int_not_equal(access("none.json", F_OK), 0);
    expect_picture("--model gpt3-6.7b --hardware 8x-h100-100gb --dtype bf16 --stage 3 "
                   "--offload-optimizer none --offload-params none --recompute unit --quiet "
                   "--micro-batch 4 --ranks 32 --plot groups.svg",
                   0, "groups.svg", "stage, group|3, 32|3, 8");
}

/* The script that gnuplot is given, of a program in its place. */
static char *script_of(const char *arguments) {
    static char script[1 << 20];
    char path[4096];
    const char *usual = getenv("PATH");
    FILE *file = fopen("gnuplot", "w");
    assert_true(file != NULL && usual != NULL);
    fputs("#!/bin/sh\ncat >script\n", file);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(chmod("gnuplot", 0700), 0);
    assert_true(getcwd(path, sizeof(path)) != NULL);
    char *kept = strdup(usual);
    size_t n = strlen(path);
    snprintf(path + n, sizeof(path) - n, ":%s", kept);
    assert_int_equal(setenv("PATH", path, 1), 0);
    assert_int_equal(plan(arguments), 0);
    assert_int_equal(setenv("PATH", kept, 1), 0);
    free(kept);
    unlink("gnuplot");
    read_file("script", script, sizeof(script));
    return script;
}

/* A panel of the script: in each column the top of its boxes, its peak, its budget, and whether its
 * plan fits. 0: there is none. */
typedef struct panel {
    double tops[8], peaks[8], budgets[8];
    bool fits[8];
} panel_t;

static void expect_stacks(const panel_t *panel, size_t *n_stacks_p) {
    for (int i = 0; i < 8; i++) {
        *n_stacks_p += panel->tops[i] > 0;
        assert_true((panel->tops[i] > 0) == (panel->peaks[i] > 0));
        if (panel->tops[i] > 0)
            assert_float_equal(panel->tops[i] / panel->peaks[i], 1, 1e-4);
        if (panel->fits[i] && panel->budgets[i] > 0)
            assert_true(panel->tops[i] <= panel->budgets[i]);
    }
}

/* Each column's boxes, one on the other, end at its peak, which is compared with its budget. */
static void expect_stacks_of(const char *arguments, size_t *n_stacks_p) {
    panel_t panel = {0};
    bool is_peak = false, is_kind = false;
    char *rest = script_of(arguments), *line;
    while ((line = strsep(&rest, "\n")) != NULL) {
        int column;
        double from, x, y;
        const char *at = strstr(line, "' at first ");
        if (strncmp(line, "set xrange", 10) == 0)
            panel = (panel_t){0};
        else if (line[0] == '$') {
            is_peak = strncmp(line, "$peaks ", 7) == 0;
            is_kind = strncmp(line, "$kind", 5) == 0;
        } else if (is_peak && sscanf(line, "%lf %lf 0.8 0", &x, &y) == 2)
            panel.peaks[(int)(x + 0.5)] = y;
        else if (is_kind && sscanf(line, "%d %lf %*f %*f %lf %lf", &column, &x, &from, &y) == 4) {
            assert_float_equal(from, panel.tops[column], 1e-5 * from);
            panel.tops[column] = y;
        } else if (sscanf(line, "set arrow from first %lf, first %lf to", &x, &y) == 2)
            panel.budgets[(int)(x + 0.6)] = y;
        else if (at != NULL && sscanf(at, "' at first %d", &column) == 1)
            panel.fits[column] = strstr(line, "#000000") != NULL;
        else if (strncmp(line, "plot $kind", 10) == 0)
            expect_stacks(&panel, n_stacks_p);
    }
}

TEST(stacks_are_what_budgets_limit) {
    static const char *const plans[] = {
        PICTURED BUDGET "--offload-optimizer nvme ", PICTURED BUDGET,
        "--model gpt2 --hardware 24g-64g --dtype bf16 --micro-batch 16 --recompute unit --quiet ",
        "--model gpt3-13b --hardware 24g-64g --dtype bf16 --stage 3 --quiet "
        "--offload-optimizer nvme --offload-params cpu --recompute unit --micro-batch 16 ",
        "--model layers=2,channels=128,heads=2,seq=64,vocab=256 --ranks 2 --device host "
        "--host-memory 16MiB --device-memory 24MiB --offload-optimizer cpu --quiet "};
    size_t n_stacks = 0;
    for (size_t i = 0; i < sizeof(plans) / sizeof(plans[0]); i++) {
        char arguments[1024];
        snprintf(arguments, sizeof(arguments), "%s --plot it.svg", plans[i]);
        expect_stacks_of(arguments, &n_stacks);
    }
    assert_true(n_stacks > 20);
}

/* What a rank has, as many lines as are asked for, and what the time is worth. */
TEST(table) {
    assert_int_equal(plan("--model gpt2 --hardware 4x-rtx4090 --dtype bf16 --quiet"), 0);
    expect_out("budgets   of a rank: device 23.0 GiB, host 60.0 GiB (assumption: 256 GiB; a quarter"
               "|nvme 884.8 GiB (assumption: a drive of 4 TB|(8 of |placements; --top 0 prints all)"
               "|->|  error band: |measured steps of 9 published runs of "
               "other programs on one node of GPUs took |times the planned time "
               "(docs/internals/scaling.md)");
    assert_int_equal(plan("--model gpt2 --hardware 4x-rtx4090 --dtype bf16 --quiet --top 0"), 0);
    assert_null(strstr(out, "prints all"));
    assert_null(strstr(out, "dividing offloaded"));
    assert_int_equal(plan("--model gpt3-6.7b --hardware 24g-64g --dtype bf16 --stage 3 --quiet "
                          "--micro-batch 1 --recompute unit"),
                     0);
    expect_out("may be faster; plan it with: zero-plan ... --offload-optimizer auto");
    assert_int_equal(plan("--model gpt2 --device host --quiet --top 1 --host-memory 7GiB"), 0);
    expect_out(
        "budgets   of a rank: memory 7.0 GiB, nvme none without --nvme-path|(1 of |error band: "
        "rates of this machine are not measured");
    json_t *object = plan_json(0, "--model gpt2 --hardware 8x-a100-80g --ranks 32 --dtype bf16 "
                                  "--stage 1 --offload-optimizer none --micro-batch 1");
    json_t *band = field(object, "recommended.error_band");
    double planned = number(recommended_plan(object), "step_ms");
    expect_fields(band, "runs=18 source=docs/internals/scaling.md");
    assert_float_equal(number(band, "least_ms") / planned, 1.21, 1e-6);
    assert_float_equal(number(band, "most_ms") / planned, 3.04, 1e-6);
    assert_true(number(object, "budget_bytes.device") > 7e10);
    expect_fields(plan_json(0, "--model gpt2 --hardware 8x-a100-80g --dtype bf16 --stage 2 "
                               "--offload-optimizer nvme --micro-batch 1"),
                  "recommended.error_band.least_ms=absent");
}

TEST(a_picture_needs_gnuplot) {
    assert_int_equal(setenv("PATH", "/nowhere", 1), 0);
    int code = plan(PICTURED BUDGET "--plot it.svg");
    assert_int_equal(setenv("PATH", "/usr/local/bin:/usr/bin:/bin", 1), 0);
    assert_int_equal(code, 1);
    assert_said("no gnuplot", "gnuplot is missing; install the package gnuplot-nox");
    expect_out("recommended");
}

/* ---- DeepSpeed's JSON ----------------------------------------------------------------------- */

static bool have_same(json_t *a, json_t *b, const char *path) {
    return json_equal(field_at(a, path), field_at(b, path));
}

/* A recommendation as a file and what is left beside it runs as its options do; planned with that
 * file, nothing is open but where it does not say that things are on the device. */
static void expect_file_runs(const char *asked) {
    static const char *const of_run[] = {"stage",
                                         "ranks",
                                         "dtype",
                                         "micro_batch",
                                         "grad_accum",
                                         "seq",
                                         "recompute",
                                         "weights_xxh3",
                                         "planned_fits",
                                         "planned_peak_bytes",
                                         "offload.optimizer",
                                         "offload.ratio",
                                         "offload.groups",
                                         "offload.state_bytes"};
    static const char *const of_plan[] = {"offload_optimizer", "offload_params", "micro_batch",
                                          "recompute"};
    json_t *planned = plan_json(0, "%s", asked), *best = recommended_plan(planned);
    json_t *recommended = field(planned, "recommended");
    assert_int_equal(json_dump_file(field(recommended, "config"), "ds.json", 0), 0);
    assert_true((field(recommended, "config.aio") != NULL) ==
                (strcmp(text(best, "offload_optimizer"), "nvme") == 0 ||
                 strcmp(text(best, "offload_params"), "nvme") == 0));
    json_t *by_options = expect_recommended(planned, "", "options");
    json_t *by_file = expect_recommended(planned, "--config ds.json", "options_with_config");
    for (size_t i = 0; i < N_OF(of_run); i++)
        if (field_at(by_options, of_run[i]) != NULL && !have_same(by_options, by_file, of_run[i]))
            fail_msg("%s: by a file %s is another", asked, of_run[i]);
    json_t *again = plan_json(0, "--config ds.json %s", text(recommended, "options_with_config"));
    json_t *one;
    size_t i, n_same = 0;
    json_array_foreach(field(again, "plans"), i, one) {
        bool is_same = true;
        assert_true(have_same(one, best, "stage"));
        for (size_t k = 0; k < N_OF(of_plan); k++)
            is_same &= have_same(one, best, of_plan[k]);
        n_same += is_same;
        assert_true(!is_same || have_same(one, best, "peak_bytes"));
    }
    assert_int_equal(n_same, 1);
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
    for (size_t i = 0; i < N_OF(asked); i++)
        if (nvme || strstr(asked[i], "nvme") == NULL)
            expect_file_runs(asked[i]);
}

static void expect_plans(size_t n, const char *file, const char *options, const char *fields) {
    json_t *one;
    size_t i;
    write_file("given.json", file, strlen(file));
    json_t *planned = plan_json(0, MODEL "--recompute none --config given.json %s", options);
    assert_int_equal(json_array_size(field(planned, "plans")), n);
    json_array_foreach(field(planned, "plans"), i, one) expect_fields(one, "%s", fields);
}

/* What a file gives is not tried in all ways; "auto" and an option leave it open. */
TEST(files_keep_plans_to_what_they_give) {
    static const char stage[] = "{\"zero_optimization\": {\"stage\": 2}}";
    static const char left_open[] = "{\"zero_optimization\": {\"stage\": \"auto\"}}";
    static const char offload[] =
        "{\"zero_optimization\": {\"stage\": 3, \"offload_optimizer\": {\"device\": \"none\"},"
        "\"offload_param\": {\"device\": \"cpu\", \"ratio\": 0.5}}, \"train_batch_size\": 6,"
        "\"gradient_accumulation_steps\": 2}";
    expect_plans(2, stage, "--micro-batch 1", "stage=2"); /* none, cpu */
    expect_plans(2, stage, "--micro-batch 1 --stage 1", "stage=1");
    expect_plans(10, stage, "--micro-batch 1 --ranks 2 --stage auto", "micro_batch=1");
    expect_plans(10, left_open, "--micro-batch 1 --ranks 2", "micro_batch=1");
    /* With one rank, stage 1 is as stage 0, and stage 3 as stage 2 where parameters stay up. */
    expect_plans(6, stage, "--micro-batch 1 --stage auto", "micro_batch=1");
    expect_plans(2, stage, "--micro-batch 1 --stage auto --offload-params cpu", "stage=3");
    expect_plans(1, offload, "", "micro_batch=3 offload_param_ratio=0.5");
    write_file("given.json", "{\"stage\": 2}", 12);
    expect_said(ZERO_PLAN, 2, MODEL "--config given.json", "--config given.json: ");
}

/* A schedule of a file stays, with what it leaves to the run's steps. */
TEST(schedules_stay) {
    static const char file[] = "{\"scheduler\": {\"type\": \"WarmupCosineLR\", \"params\":"
                               "{\"cos_min_ratio\": 0.25}}, \"optimizer\": {\"params\":"
                               "{\"lr\": 0.01, \"weight_decay\": 0.1}}}";
    write_file("schedule.json", file, strlen(file));
    expect_file_runs(MODEL "--ranks 2 --micro-batch 1 --config schedule.json");
}

/* One plan is not one of several. */
TEST(one_plan_that_does_not_fit) {
    expect_said(ZERO_PLAN, 1,
                MODEL "--stage 0 --offload-optimizer none --offload-params none --recompute none "
                      "--micro-batch 1 --device-memory 64KiB",
                "error: the plan does not fit");
    expect_said(ZERO_PLAN, 1,
                MODEL "--stage 0 --offload-params none --offload-optimizer none --micro-batch 1 "
                      "--device-memory 64KiB",
                "error: none of 2 plans fits");
}

/* What comes to nothing is warned of once, and is not in the command that runs the plan. */
TEST(what_has_no_effect) {
    static const char config[] = "{\"zero_optimization\": {\"stage\": 1, "
                                 "\"stage3_prefetch_bucket_size\": 7, "
                                 "\"stage3_max_reuse_distance\": \"auto\", "
                                 "\"allgather_bucket_size\": 5}}";
    write_file("stage1.json", config, sizeof(config) - 1);
    expect_said(ZERO_PLAN, 0,
                MODEL "--micro-batch 1 --ranks 2 --stage 1 --prefetch 9 --max-live 8 --sums any",
                "warning: --prefetch, --max-live: no effect at stage 1, "
                "|warning: --sums any: no effect: ");
    assert_null(strstr(out, "--prefetch"));
    assert_null(strstr(out, "--sums"));
    expect_said(ZERO_PLAN, 0, MODEL "--micro-batch 1 --ranks 2 --config stage1.json",
                "warning: stage3_prefetch_bucket_size: no effect at stage 1, "
                "|zero_optimization.allgather_bucket_size 5 has no effect: ");
    assert_int_equal(plan(MODEL "--micro-batch 1 --config stage1.json --stage 3"), 0);
    assert_not_said("--stage 3", "no effect at");
    assert_int_equal(plan(MODEL "--micro-batch 1 --prefetch 9"), 0); /* all stages are tried */
    assert_not_said("all stages", "no effect");
    assert_int_equal(plan(MODEL "--hardware 8x-h100 --micro-batch 1 --sums any"), 0);
    assert_not_said("GPUs", "no effect");
}

/* Stages that lack what is asked for are not planned: what is recommended has it, and runs. */
TEST(stages_that_lack_an_option) {
    static const struct {
        const char *options;
        int least;
    } cases[] = {{"--update-at backward", 2},
                 {"--gather-encoding 8bit", 1},
                 {"--gather-encoding 8bit --master split", 3},
                 {"--offload-optimizer cpu --offload-gradients cpu", 2},
                 {"--offload-params cpu", 3}};
    for (size_t i = 0; i < N_OF(cases); i++)
        for (int n_ranks = 1; n_ranks <= 2; n_ranks++) {
            json_t *object =
                plan_json(0, MODEL "--micro-batch 1 --ranks %d %s", n_ranks, cases[i].options);
            size_t k;
            json_t *row;
            assert_true(json_array_size(field(object, "plans")) > 0);
            json_array_foreach(field(object, "plans"), k, row)
                assert_true(number(row, "stage") >= cases[i].least);
            expect_recommended(object, "", "options");
        }
}

/* The default is fp32; weights that are published otherwise are not expected to cost that. */
TEST(the_price_of_fp32_is_said) {
    static const char config[] = "{\"model_type\": \"gpt2\", \"n_layer\": 1, \"n_embd\": 16, "
                                 "\"n_head\": 2, \"n_positions\": 16, \"vocab_size\": 64, "
                                 "\"torch_dtype\": \"bfloat16\"}";
    static const char *const said[] = {"Qwen/Qwen3-0.6B", "smollm2-135m", "config.json"};
    write_file("config.json", config, sizeof(config) - 1);
    for (size_t i = 0; i < N_OF(said); i++) {
        char arguments[256];
        snprintf(arguments, sizeof(arguments),
                 "--model %s --seq 16 --hardware h200 --ranks 1 --stage 0 --micro-batch 1",
                 said[i]);
        expect_said(
            ZERO_PLAN, 0, arguments,
            "planned in fp32, the default: |published with 16 bits, and --dtype bf16 takes");
        strcat(arguments, " --dtype bf16");
        assert_int_equal(plan(arguments), 0);
        assert_not_said(arguments, "planned in fp32");
    }
    assert_int_equal(plan("--model gpt2 --hardware h200 --ranks 1 --stage 0 --micro-batch 1"), 0);
    assert_not_said("gpt2", "planned in fp32");
}

/* Descriptions that come with the program. */
TEST(hardware_is_found) {
    static const char *const names[] = {"8x-a100-80g", "8x-a100-40g-400gb", "8x-h100",
                                        "h200",        "4x-rtx4090",        "24g-64g"};
    for (size_t i = 0; i < N_OF(names); i++) {
        json_t *planned =
            plan_json(0, "--model gpt2 --dtype bf16 --recompute none --micro-batch 4 --hardware %s",
                      names[i]);
        bool is_alone = json_integer_value(field(planned, "ranks")) == 1;
        assert_int_equal(json_array_size(field(planned, "plans")), is_alone ? 12 : 18); /* all */
        expect_fields(planned, "hardware.kind=cuda");
    }
}

/* Each reason that is the planner's own once. */
TEST(bad_input_is_refused) {
    static const char drive[] = "{\"zero_optimization\": {\"stage\": 1, \"offload_optimizer\": "
                                "{\"device\": \"nvme\", \"nvme_path\": \"absent\"}}}";
    static const said_t refused[] = {
        {"--hardware 8x-h200", "8x-h100"},
        {"--hardware ./none.json", "--hardware ./none.json: cannot open it"},
        {"--hardware ./", "--hardware ./: cannot read it: Is a directory"},
        {"--hardware ./drive.json", "--hardware ./drive.json: unknown figure"},
        {"--hardware h200 --device host", "--hardware this"},
        {"--stage 1 --offload-params auto", "--stage 3"},
        {"--offload-optimizer auto --offload-ratio 0.5", "leave them out"},
        {"--offload-optimizer none --offload-ratio 0.5", "nothing is offloaded"},
        {"--plot picture.pdf", "NAME.svg, NAME.png"},
        {"--plot nowhere/picture.png", "cannot write --plot nowhere/picture.png"},
        {"--trace nowhere/t.json", "cannot write --trace nowhere/t.json"},
        {"--trace ./it.svg --plot it.svg", "--trace ./it.svg: are the same file"},
        {"--config drive.json", "--config drive.json: nvme_path absent: No such"},
        {"--nvme-capacity 1GB", "--nvme-capacity 1GB: no drives are named"},
        {"--model gpt2 --micro-batch 2097152", "the nearest is 2097151"},
        {"word", "word"}};
    write_file("drive.json", drive, sizeof(drive) - 1);
    expect_all_said(ZERO_PLAN, 2, refused, N_OF(refused));
    assert_int_equal(plan("--help"), 0);
    expect_out("--hardware");
    assert_int_equal(plan("--version"), 0);
    assert_int_equal(strncmp(out, "zero-plan ", 10), 0);
}

/* Two ranks were measured on one machine, and what lies between machines was not. */
static void write_measured(const char *path) {
    zr_hardware_t hardware = zr_hardware_default();
    const char *sources[128] = {NULL};
    size_t n_figures = 0;
    const zr_figure_t *figures = zr_hardware_figures(&n_figures);
    assert_true(n_figures <= N_OF(sources));
    for (size_t i = 0; i < n_figures; i++)
        if (strncmp(figures[i].name, "between_nodes.", 14) == 0)
            sources[i] = "not measured: there is one machine; a value of the order of a server's";
    hardware.ranks_per_node = 2;
    assert_ok(zr_hardware_write_json(&hardware, sources, path, NULL));
}

static double n_ranks_of(const char *arguments) {
    char ranks[32];
    json_t *planned = plan_json(0, MODEL "--stage 1 --micro-batch 1 %s", arguments);
    double n_ranks = number(planned, "ranks");
    snprintf(ranks, sizeof(ranks), "--ranks %.0f", n_ranks);
    assert_true(n_ranks == 1 || strstr(text(planned, "recommended.options"), ranks) != NULL);
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
    expect_out("8 x A100-80G, 8 ranks (one for each device; --ranks plans others)");
    assert_int_equal(plan(MODEL "--hardware 8x-a100-80g --ranks 3 --stage 1 --micro-batch 1"), 0);
    expect_out("8 x A100-80G, 3 ranks, each with the share of one of 8\n");
    expect_out(" zero-train --data PATH --stage 1 |--ranks 3");
}

/* A GPU has more in its memory than tensors. */
TEST(context_is_counted) {
    static const char *const arguments =
        MODEL "--hardware ./gpu.json --ranks 1 --stage 0 --micro-batch 1";
    zr_hardware_t hardware = zr_hardware_default();
    hardware.kind = ZR_HARDWARE_CUDA;
    assert_ok(zr_hardware_write_json(&hardware, NULL, "gpu.json", NULL));
    assert_int_equal(plan(arguments), 0);
    assert_said("0 bytes", "warning: --hardware ./gpu.json: device_in_use_bytes is 0: ");
    hardware.device_in_use_bytes = 1;
    assert_ok(zr_hardware_write_json(&hardware, NULL, "gpu.json", NULL));
    assert_int_equal(plan(arguments), 0);
    assert_string_equal(err, "");
}

/* One process has the ranks of one node only. */
TEST(several_nodes_have_a_launcher) {
    static const char torchrun[] = "torchrun --no-python --nnodes 2 --nproc-per-node 8 "
                                   "--node-rank NODE --master-addr HOST";
    static const char mpirun[] = "mpirun -n 16 --hostfile HOSTS --map-by ppr:8:node zero-train "
                                 "--device cuda --data PATH --stage 1 ";
    char parts[512];
    snprintf(parts, sizeof(parts), "%s|%s", torchrun, mpirun);
    assert_int_equal(plan(MODEL "--hardware 8x-a100-80g --ranks 16 --stage 1 --micro-batch 1"), 0);
    expect_out(parts);
    assert_null(strstr(strstr(out, mpirun), "--ranks"));
    json_t *planned =
        plan_json(0, MODEL "--hardware 8x-a100-80g --ranks 20 --stage 1 --micro-batch 1");
    assert_has(text(planned, "recommended.launch"), "mpirun -n 20 --hostfile HOSTS");
    assert_int_equal(plan(MODEL "--hardware 8x-a100-80g --ranks 20 --stage 1 --micro-batch 1"), 0);
    assert_null(strstr(out, "torchrun")); /* nodes differ */
}

/* Of a model that sizes describe; a named one is seldom trained on all its positions. */
TEST(sequences_are_those_of_sizes) {
    static const char llama[] = "--model llama,layers=2,channels=64,heads=2,wide=96,seq=4096,"
                                "vocab=256 --hardware h200 --micro-batch 1 --stage 0";
    expect_fields(plan_json(0, "%s", llama), "seq=4096");
    expect_fields(plan_json(0, "%s --seq 512", llama), "seq=512");
    assert_int_equal(plan("--model llama-2-7b --hardware 8x-h100 --dtype bf16 --micro-batch 1"), 0);
    expect_out("llama-2-7b: 6738415616 parameters, bf16; sequences of 2048 (it has 4096 "
               "positions; --seq plans others)");
    expect_fields(plan_json(0, "--model llama-2-13b --seq 4096 --hardware 8x-h100 --dtype bf16 "
                               "--micro-batch 1 --stage 3"),
                  "seq=4096 model.parameters=13015864320");
}

#define ONE_MEMORY                                                                                 \
    "--model layers=4,channels=128,heads=2,seq=16,vocab=256 --sub-group 4096 --stage 3 "           \
    "--micro-batch 1 --recompute none --ranks 1 --master apart --hardware ./host.json "

static void write_host(size_t memory_bytes) {
    zr_hardware_t hardware = zr_hardware_default();
    hardware.host_memory_bytes = memory_bytes;
    hardware.ranks_per_node = 1;
    assert_ok(zr_hardware_write_json(&hardware, NULL, "host.json", NULL));
}

static json_t *plan_one(int expected, const char *arguments) {
    return only_plan(plan_json(expected, ONE_MEMORY "%s", arguments));
}

static double both(json_t *plan) {
    return number(plan, "peak_bytes.device.reserved") + number(plan, "peak_bytes.host.reserved");
}

/* Where device and host are one memory, the sum has to fit, and the host relieves no device. */
TEST(one_memory_is_counted_once) {
    write_host((size_t)1 << 30);
    json_t *one = plan_one(0, "--offload-optimizer auto --offload-params auto");
    double memory = 0.75 * both(one);
    expect_fields(one, "offload_optimizer=none");

    write_host((size_t)memory);
    one = plan_one(0, "--offload-optimizer auto --offload-params auto");
    expect_fields(one, "offload_optimizer=nvme offload_params=none");
    assert_true(number(one, "offload_ratio") < 0.6 && both(one) <= memory);

    one = plan_one(0, "--offload-optimizer auto --offload-params none --device-memory 6MB");
    assert_true(number(one, "peak_bytes.device.reserved") <= 6e6);
    assert_true(both(one) <= memory);

    one = plan_one(1, "--offload-optimizer cpu --offload-params none");
    expect_fields(one, "lack.of_both=true lack.needed=%.0f lack.there=%zu", both(one),
                  (size_t)memory);
    expect_said(ZERO_PLAN, 1, ONE_MEMORY "--offload-optimizer none --offload-params none",
                "of memory (device and host are one here) and has"
                "|--offload-optimizer cpu or nvme"); /* it was not tried */
    expect_said(ZERO_PLAN, 1,
                ONE_MEMORY "--offload-optimizer none --offload-params none --device-memory 6MB",
                "of device memory and has");
}

/* One plan of GPT-3 13B on 64 nodes. */
static double step_ms_of(const char *arguments, double *exposed_p) {
    json_t *planned = plan_json(
        0,
        "--model gpt3-13b --hardware 8x-a100-80g --ranks 512 --dtype bf16 --stage 3 "
        "--shard-group-size all --offload-optimizer none --offload-params none --micro-batch 1 "
        "--recompute unit %s",
        arguments);
    *exposed_p = 1e3 * number(only_plan(planned), "time.communication.exposed");
    assert_has(text(planned, "recommended.options"), arguments);
    return number(only_plan(planned), "step_ms");
}

/* What sums in rank order cost between nodes, and that gathering ahead hides gathering. */
TEST(collectives_are_as_asked_for) {
    double exposed, in_order_exposed, ahead_exposed, none_ahead_exposed;
    double any = step_ms_of("--sums any --prefetch 50000000", &exposed);
    double in_order = step_ms_of("--sums rank-order --prefetch 50000000", &in_order_exposed);
    /* Gradients of 25.7 GB, of which each of 8 ranks sends 504 of 512 parts to other nodes. */
    double more = 8.0 * 25.7e9 * 504.0 / 512.0 / 192e9 * 1e3 - 25.7e9 / 192e9 * 1e3;
    assert_true(in_order > any && in_order - any < 1.02 * more);
    assert_true(in_order_exposed > exposed);
    double ahead = step_ms_of("--sums any --prefetch 400000000", &ahead_exposed);
    assert_true(ahead < any && ahead_exposed < 0.5 * exposed);
    assert_true(step_ms_of("--sums any", &ahead_exposed) == ahead); /* no layer is too large */
    double limited =
        step_ms_of("--sums any --prefetch 400000000 --max-live 400000000", &none_ahead_exposed);
    assert_true(limited > ahead && none_ahead_exposed > ahead_exposed);
}

/* ---- groups ------------------------------------------------------------------------------ */

#define SLOW_LINKS                                                                                 \
    "--model gpt3-6.7b --hardware 8x-h100-100gb --dtype bf16 --offload-optimizer none "            \
    "--offload-params none --recompute unit --micro-batch 4 "

/* Of plans with these options, as many have groups of a size as are wanted; -1: at least one. */
static void expect_sizes(const char *arguments, const int wanted[][2], size_t n) {
    int n_of[1025] = {0};
    size_t i;
    json_t *one;
    json_array_foreach(field(plan_json(0, SLOW_LINKS "%s", arguments), "plans"), i, one)
        n_of[(size_t)number(one, "shard_group_size")]++;
    for (i = 0; i < n && wanted[i][0] != 0; i++)
        if (wanted[i][1] < 0 ? n_of[wanted[i][0]] == 0 : n_of[wanted[i][0]] != wanted[i][1])
            fail_msg("%s: %d plans with groups of %d", arguments, n_of[wanted[i][0]], wanted[i][0]);
}

/* Groups of a node where nodes are several and wait for each other; of what was given otherwise, in
 * an option, which is over a file. */
TEST(groups_are_tried) {
    static const char file[] =
        "{\"train_micro_batch_size_per_gpu\": 4, \"bf16\": {\"enabled\": true},"
        " \"zero_optimization\": {\"mics_shard_size\": 16}}";
    static const struct {
        const char *arguments;
        int sizes[3][2]; /* group size, plans */
    } cases[] = {
        {"--ranks 8", {{8, 4}}},                    /* one node */
        {"--ranks 12", {{12, 4}, {4, -1}, {8, 0}}}, /* nodes do not divide it: half of them do */
        {"--ranks 17", {{17, 4}}},                  /* nothing does */
        {"--ranks 32", {{32, 4}, {8, -1}}},
        {"--ranks 32 --shard-group-size all", {{32, 4}}},
        {"--ranks 32 --shard-group-size 16", {{16, 4}}},
        {"--ranks 32 --shard-group-size 16 --shard-group-size auto", {{32, 4}, {8, -1}}},
        {"--ranks 32 --config groups.json", {{16, 4}}},
        {"--ranks 32 --config groups.json --shard-group-size auto", {{32, 4}, {8, -1}, {16, 0}}},
    };
    write_file("groups.json", file, strlen(file));
    for (size_t i = 0; i < N_OF(cases); i++)
        expect_sizes(cases[i].arguments, cases[i].sizes, 3);
    json_t *planned = plan_json(0, SLOW_LINKS "--ranks 32");
    json_t *recommended = field(planned, "recommended");
    expect_fields(recommended_plan(planned), "shard_group_size=8");
    assert_has(text(recommended, "options"), " --shard-group-size 8 ");
    assert_null(strstr(text(recommended, "options_with_config"), "--shard-group-size"));
    expect_fields(recommended, "config.zero_optimization.mics_shard_size=8");
    assert_has(text(recommended, "why"), "in groups of 8 ranks");
    assert_has(text(recommended, "why"), " --reduce-encoding 4bit it would be ");
    assert_null(strstr(text(recommended, "options"), "encoding"));
    planned = plan_json(0, SLOW_LINKS "--ranks 32 --config groups.json --shard-group-size all");
    assert_has(text(planned, "recommended.options"),
               " --shard-group-size all --config groups.json");
    assert_int_equal(plan(SLOW_LINKS "--ranks 32"), 0);
    expect_out("stage  group optimizer|\n->  1      8      none");
    assert_int_equal(plan(SLOW_LINKS "--ranks 32 --shard-group-size 16"), 0);
    expect_out("32 ranks on 4 nodes, in groups of 16\n");
    assert_null(strstr(out, "stage  group"));
}

/* Where a node has no room for a copy, as few nodes as have, at the micro-batch that is best with
 * all ranks; what has no room with all ranks has none in groups, and is not planned. */
TEST(groups_that_fit) {
    static const int sizes[] = {64, 8, 16};
    size_t i;
    json_t *one,
        *planned = plan_json(0, "--model gpt3-13b --hardware 8x-h100-100gb --ranks 64 --dtype bf16 "
                                "--stage 3 --offload-optimizer none --offload-params none "
                                "--recompute unit --micro-batch 2 --device-memory 20GiB");
    assert_int_equal(json_array_size(field(planned, "plans")), 3);
    json_array_foreach(field(planned, "plans"), i, one)
        expect_fields(one, "shard_group_size=%d fits=%s", sizes[i], i == 1 ? "false" : "true");
    expect_fields(recommended_plan(planned), "shard_group_size=16");
    planned = plan_json(1, "--model gpt3-13b --hardware 8x-h100-100gb --ranks 64 --dtype bf16 "
                           "--stage 0 --offload-optimizer none");
    json_array_foreach(field(planned, "plans"), i, one) expect_fields(one, "shard_group_size=64");
}

/* What is recommended trains, by options and by the file, with the groups and in the memory. */
TEST(groups_that_are_recommended_run) {
    write_measured("slow.json");
    json_t *hardware = kept(json_load_file("slow.json", 0, NULL));
    json_object_set_new(field(hardware, "between_nodes"), "bytes_per_s", json_real(1e6));
    assert_int_equal(json_dump_file(hardware, "slow.json", 0), 0);
    json_t *planned =
        plan_json(0, MODEL "--ranks 4 --recompute none --micro-batch 2 --stage 3 "
                           "--offload-optimizer none --offload-params none --hardware slow.json");
    expect_fields(recommended_plan(planned), "shard_group_size=2");
    assert_int_equal(json_dump_file(field(planned, "recommended.config"), "slow_run.json", 0), 0);
    /* The described ranks have a thread each. */
    expect_fields(expect_recommended(planned, "--threads 1", "options"), "shard_group_size=2");
    expect_fields(
        expect_recommended(planned, "--threads 1 --config slow_run.json", "options_with_config"),
        "shard_group_size=2");
}

const test_group_t test_group = {make_folder, leave_test_folder};
