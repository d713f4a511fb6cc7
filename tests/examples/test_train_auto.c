/*
 * `auto` placement: whatever the budgets are, the run stays within them and ends in the same
 * weights; what stays up is as much as fits, which runs with less offloaded show by failing; and
 * where nothing fits, that is said before anything is begun.
 */
#include "tests/common/test.h"
#include "tests/examples/run_ranks.h"
#include "zero/zero.h"

/* 0.8 million parameters: 3.2 MB of them, as many gradients, 9.7 MB of optimizer state. */
#define MODEL                                                                                      \
    "--model layers=4,channels=128,heads=2,seq=16,vocab=256 --data text --steps 2 --json "         \
    "--recompute unit --sub-group 4096 "
#define AUTO "--offload-optimizer auto "
#define AUTO_PARAMS "--stage 3 --ranks 2 --offload-params auto "

/* The object of a run that trains. */
static json_t *train(const char *arguments) {
    assert_ran(arguments, 0);
    json_t *object = json_loads(out, 0, NULL);
    assert_non_null(object);
    return object;
}

static void expect_within(json_t *object, const char *tier, double budget) {
    json_t *peaks = json_object_get(object, "peak_bytes");
    if (budget > 0)
        assert_true(number(peaks, tier, "reserved") <= budget);
}

/* One configuration: budgets in bytes, 0: none. */
typedef struct budgets {
    double device, host;
    bool has_drive;
} budgets_t;

static void write_arguments(const char *rest, const budgets_t *b, char *text, size_t size) {
    int n = snprintf(text, size, MODEL "%s", rest);
    if (b->device > 0)
        n += snprintf(text + n, size - (size_t)n, " --device-memory %.0f", b->device);
    if (b->host > 0)
        n += snprintf(text + n, size - (size_t)n, " --host-memory %.0f", b->host);
    if (b->has_drive)
        n += snprintf(text + n, size - (size_t)n, " --nvme-path drive --nvme-buffers 2");
    if (b->has_drive && strstr(rest, "--offload-params") != NULL)
        snprintf(text + n, size - (size_t)n, " --param-buffer 20000 --param-buffers 2");
}

TEST(every_budget_is_kept) {
    static const budgets_t cases[] = {{0, 0, false},     {16e6, 0, false},  {9e6, 0, false},
                                      {7e6, 12e6, true}, {5e6, 6e6, true},  {4e6, 0, false},
                                      {4e6, 8e6, true},  {4e6, 3.5e6, true}};
    char arguments[512], hash[2][17] = {"", ""};
    bool nvme = has_nvme();
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        for (int with_params = 0; with_params < 2; with_params++) {
            if (cases[i].has_drive && !nvme)
                continue;
            if (!with_params && cases[i].device > 0 && cases[i].device < 7e6)
                continue; /* parameters and gradients alone are more */
            write_arguments(with_params ? AUTO AUTO_PARAMS : AUTO "--stage 2", &cases[i], arguments,
                            sizeof(arguments));
            json_t *object = train(arguments);
            if (i == 0)
                snprintf(hash[with_params], sizeof(hash[0]), "%s", text(object, "weights_xxh3"));
            assert_string_equal(text(object, "weights_xxh3"), hash[with_params]);
            expect_within(object, "device", cases[i].device);
            expect_within(object, "host", cases[i].host);
            json_decref(object);
        }
}

/* What was chosen fits; a 256th less offloaded does not. */
TEST(as_much_as_fits_stays_up) {
    char arguments[512];
    for (double device = 8e6; device < 16e6; device += 1.7e6) {
        budgets_t budgets = {.device = device};
        write_arguments(AUTO "--stage 2", &budgets, arguments, sizeof(arguments));
        json_t *object = train(arguments);
        double ratio = number(json_object_get(object, "offload"), "ratio", NULL);
        assert_true(json_is_true(json_object_get(json_object_get(object, "offload"), "auto")));
        assert_true(ratio > 0 && ratio <= 1);
        json_decref(object);
        char rest[96];
        for (int less = 0; less < 2; less++) {
            snprintf(rest, sizeof(rest), "--stage 2 --offload-optimizer cpu --offload-ratio %.8f",
                     ratio - less / 256.0);
            write_arguments(rest, &budgets, arguments, sizeof(arguments));
            assert_ran(arguments, less);
        }
    }
}

/* ---- the stage --------------------------------------------------------------------------------
 */

#define TWO "--ranks 2 --stage auto "

/* What the sentence calls its options is what the run was, and they say all of it. */
static json_t *expect_choice(const char *arguments, int stage) {
    char again[1024];
    json_t *object = train(arguments), *chosen = json_object_get(object, "chosen");
    assert_int_equal((int)number(object, "stage", NULL), stage);
    snprintf(again, sizeof(again), "%s", arguments);
    char *option = strstr(again, "--stage auto");
    assert_non_null(option);
    memset(option, ' ', strlen("--stage auto"));
    option = strstr(again, "--offload-optimizer auto");
    if (option != NULL)
        memset(option, ' ', strlen("--offload-optimizer auto"));
    snprintf(again + strlen(again), sizeof(again) - strlen(again), " %s", text(chosen, "options"));
    json_t *said = train(again);
    assert_string_equal(text(object, "weights_xxh3"), text(said, "weights_xxh3"));
    assert_true(json_equal(json_object_get(object, "planned_peak_bytes"),
                           json_object_get(said, "planned_peak_bytes")));
    assert_null(json_object_get(said, "chosen"));
    json_decref(said);
    return object;
}

/* Less and less memory, more and more sharded; what the lower stages lack is said. */
TEST(the_stage_that_fits) {
    static const struct {
        const char *options;
        int stage;
        const char *why;
    } cases[] = {
        {"--device-memory 13MB", 1,
         "; plain data parallelism (stage 0), layers computed again in backward, needs"},
        {"--device-memory 11100kB", 3,
         "; plain data parallelism (stage 0), layers computed again in backward, needs"},
        {"--offload-optimizer auto --device-memory 8MB", 1, "optimizer state in host memory"},
        {"--offload-optimizer auto --device-memory 6MB", 2, "optimizer state in host memory"},
        {"--offload-params cpu", 3,
         "stage 3 with parameters in host memory, layers computed again in backward, fits"},
        {"--offload-optimizer cpu --offload-gradients none", 2, "optimizer state in host"}};
    char arguments[1024];
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        snprintf(arguments, sizeof(arguments), MODEL TWO "%s", cases[i].options);
        json_t *object = expect_choice(arguments, cases[i].stage);
        const char *why = text(json_object_get(object, "chosen"), "why");
        if (strstr(why, cases[i].why) == NULL)
            fail_msg("%s: \"%s\" is not in: %s", arguments, cases[i].why, why);
        json_decref(object);
    }
}

/* With room for all, no slower one is taken for a lower number, nor a higher one for nothing. */
TEST(the_fastest_of_those_that_fit) {
    json_t *object = train(MODEL "--stage auto"); /* one rank: all stages are alike */
    assert_int_equal((int)number(object, "stage", NULL), 0);
    assert_said("one rank", "auto: plain data parallelism (stage 0)");
    assert_said("no --hardware", "rates of this machine are not measured");
    json_decref(object);
}

TEST(no_stage_fits) {
    assert_ran(MODEL TWO "--device-memory 5MB", 1);
    assert_said("5 MB", "auto: nothing fits; the nearest to it, stage 3, layers computed again in "
                        "backward, needs ");
    assert_said("5 MB", " of device memory and has 4.8 MiB; ");
    assert_said("5 MB", "--offload-optimizer cpu or nvme");
    assert_ran(MODEL TWO "--device-memory 2MB --offload-optimizer auto", 1);
    assert_said("2 MB", "the nearest to it, stage 3 with optimizer state in host memory, layers");
}

TEST(what_cannot_be_is_said) {
    assert_ran(MODEL AUTO "--stage 2 --device-memory 3MB", 1);
    assert_said("3 MB", "auto: nothing fits");
    assert_said("3 MB", "device memory");
    json_t *object = json_loads(out, 0, NULL);
    assert_non_null(object);
    assert_string_equal(text(object, "result"), "failed");
    assert_string_equal(text(object, "error"), "ZR_ERR_BUDGET");
    assert_non_null(strstr(text(object, "message"), "auto: nothing fits"));
    json_decref(object);
    assert_ran(MODEL "--stage auto --device-memory 2MB", 1); /* advice is what it has not tried */
    assert_said("stages",
                "; try a larger --device-memory, --stage 3 with --offload-params cpu or nvme");
    assert_null(strstr(err, "--stage 1"));
    assert_ran(MODEL
               "--stage auto --offload-optimizer auto --offload-params auto --device-memory 500kB",
               1);
    assert_said("all of it", "; try a larger --device-memory, more --ranks, ");
    assert_null(strstr(err, "--offload-params"));
    assert_null(strstr(err, "--offload-optimizer"));
    assert_ran(MODEL AUTO "--stage 2 --device-memory 8MB --host-memory 1MB", 1);
    assert_said("1 MB of host memory", "--nvme-path");
    assert_ran(MODEL "--offload-params auto --stage 2", 2);
    assert_said("stage 2", "--stage 3");
    assert_ran(MODEL AUTO "--offload-ratio 0.5", 2);
    assert_said("a ratio", "--offload-ratio");
    assert_ran(MODEL AUTO "--state-in-host 7", 2);
    assert_said("elements", "--state-in-host");
    assert_ran(MODEL AUTO_PARAMS "--offload-param-ratio 0.5", 2);
    assert_said("a ratio of parameters", "--offload-param-ratio");
    assert_ran(MODEL AUTO "--data nowhere", 2); /* said before anything is planned */
    assert_said("data that are not there", "--data nowhere: cannot read it");
    assert_null(strstr(err, "auto: "));
    assert_ran(MODEL AUTO "--log nowhere/log", 2);
    assert_said("a folder that is not there", "cannot write --log nowhere/log");
    assert_null(strstr(err, "auto: "));
    assert_ran(MODEL AUTO "--nvme-path drive,nowhere", 2);
    assert_said("a folder that is not there", "--nvme-path nowhere: No such file");
}

/* A machine on which a collective, or an update, takes days. */
static void write_rates(const char *path, zr_hardware_kind_t kind, bool has_slow_updates) {
    zr_hardware_t hardware = zr_hardware_default();
    hardware.kind = kind;
    hardware.ranks_per_node = 2;
    if (has_slow_updates)
        hardware.device.update_bytes_per_s = 1.0;
    else
        hardware.within_node.bytes_per_s = 1.0;
    assert_int_equal(zr_hardware_write_json(&hardware, NULL, path, NULL), ZR_OK);
}

/* What is fastest goes by the rates of a file; what fits is looked up all the same. */
TEST(rates_of_a_file) {
    static const char arguments[] = MODEL "--ranks 2 --threads 1 --stage auto --grad-accum 2 ";
    char with_file[512];
    for (int stage = 0; stage < 2; stage++) {
        write_rates("slow.json", ZR_HARDWARE_HOST, stage == 1);
        snprintf(with_file, sizeof(with_file), "%s --hardware slow.json", arguments);
        json_t *object = train(with_file);
        assert_int_equal((int)number(object, "stage", NULL), stage);
        assert_null(strstr(err, "times are rough"));
        json_decref(object);
    }
    json_t *object = train(MODEL "--stage auto --hardware slow.json");
    assert_said("one rank", "its rates are those of 2 ranks of 1 thread");
    json_decref(object);

    write_rates("gpu.json", ZR_HARDWARE_CUDA, false);
    assert_ran(MODEL "--device host --stage auto --hardware gpu.json", 2);
    assert_said("a GPU's", "--hardware gpu.json: it describes the device cuda");
    assert_ran(MODEL "--hardware slow.json", 2);
    assert_said("no auto", "--hardware slow.json: nothing is chosen");
    assert_ran(MODEL "--stage auto --hardware none.json", 2);
    assert_said("no such file", "--hardware none.json: cannot read it");
}

/* ---- several machines --------------------------------------------------------------------------
 */

/* Four ranks, of which so many are said to be on each machine. The object of rank 0. */
static json_t *train_on_machines(const char *n_local, const char *options) {
    char arguments[512];
    snprintf(arguments, sizeof(arguments), MODEL "--device host --threads 1 %s", options);
    setenv("LOCAL_WORLD_SIZE", n_local, 1);
    int code = run_by_hand(4, arguments);
    unsetenv("LOCAL_WORLD_SIZE");
    if (code != 0)
        fail_msg("%s: exit %d\n%s", arguments, code, err);
    json_t *object = json_loads(out, 0, NULL);
    assert_non_null(object);
    return object;
}

/* Between machines everything is slow by default, and groups send less there; on one there is
 * nothing to be gained, which is said where nothing else was asked. What is given is kept. */
TEST(groups_of_machines) {
    static const struct {
        const char *n_local, *options, *chosen; /* a part of it; NULL: no groups are said */
        int size;
    } cases[] = {{"2", "--stage auto", " --shard-group-size 2", 2},
                 {"4", "--stage auto", NULL, 4},
                 {"2", "--stage 3 --shard-group-size auto", "--shard-group-size 2", 2},
                 {"4", "--stage 3 --shard-group-size auto", "--shard-group-size all", 4},
                 {"2", "--stage auto --shard-group-size all", NULL, 4},
                 {"2", "--stage auto --shard-group-size 1", NULL, 1}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        json_t *object = train_on_machines(cases[i].n_local, cases[i].options);
        const char *options = text(json_object_get(object, "chosen"), "options");
        const char *said = strstr(options, "--shard-group-size");
        if ((said != NULL) != (cases[i].chosen != NULL) ||
            (said != NULL && strstr(options, cases[i].chosen) == NULL))
            fail_msg("%s on machines of %s: %s", cases[i].options, cases[i].n_local, options);
        assert_int_equal((int)number(object, "shard_group_size", NULL), cases[i].size);
        if (cases[i].size == 2) {
            assert_non_null(
                strstr(text(json_object_get(object, "chosen"), "why"), "in groups of 2 ranks"));
            assert_said(cases[i].options, "times only compare stages and groups");
        }
        json_decref(object);
    }
}

/* Rates are a share of a machine: of as many ranks as are on it, and not of all. */
TEST(rates_are_of_one_machine) {
    write_rates("two.json", ZR_HARDWARE_HOST, false);
    json_decref(train_on_machines("2", "--stage auto --hardware two.json"));
    assert_null(strstr(err, "times are rough"));
    json_decref(train_on_machines("4", "--stage auto --hardware two.json"));
    assert_said("four", "its rates are those of 2 ranks of 1 thread each, and these are 4 of 1 on "
                        "this machine: times are rough");
}

const test_group_t test_group = {make_folder, leave_test_folder};
