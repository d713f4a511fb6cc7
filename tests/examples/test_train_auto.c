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
    "--model layers=4,channels=128,heads=2,seq=16,vocab=256 --data text --steps 2 "                \
    "--recompute unit --master apart --sub-group 4096 "
#define AUTO "--offload-optimizer auto "
#define DRIVE "--nvme-path drive --nvme-buffers 2 "
#define AUTO_PARAMS "--stage 3 --ranks 2 --offload-params auto "

TEST(every_budget_is_kept) {
    static const struct {
        double device, host; /* 0: none */
        const char *options;
    } cases[] = {{0, 0, ""},
                 {16e6, 0, "--device-memory 16MB"},
                 {9e6, 0, "--device-memory 9MB"},
                 {7e6, 12e6, "--device-memory 7MB --host-memory 12MB " DRIVE},
                 {5e6, 6e6, "--device-memory 5MB --host-memory 6MB " DRIVE},
                 {4e6, 0, "--device-memory 4MB"},
                 {4e6, 8e6, "--device-memory 4MB --host-memory 8MB " DRIVE},
                 {4e6, 3.5e6, "--device-memory 4MB --host-memory 3500kB " DRIVE}};
    char hash[2][17] = {"", ""};
    bool nvme = has_nvme();
    for (size_t i = 0; i < N_OF(cases); i++)
        for (int with_params = 0; with_params < 2; with_params++) {
            if (strstr(cases[i].options, DRIVE) != NULL && !nvme)
                continue;
            if (!with_params && cases[i].device > 0 && cases[i].device < 7e6)
                continue; /* parameters and gradients alone are more */
            json_t *object = run_json(0, MODEL AUTO "%s %s",
                                      with_params ? AUTO_PARAMS : "--stage 2", cases[i].options);
            if (i == 0)
                snprintf(hash[with_params], sizeof(hash[0]), "%s", text(object, "weights_xxh3"));
            expect_fields(object, "weights_xxh3=%s", hash[with_params]);
            json_t *peaks = field(object, "peak_bytes");
            assert_true(cases[i].device == 0 ||
                        number(peaks, "device.reserved") <= cases[i].device);
            assert_true(cases[i].host == 0 || number(peaks, "host.reserved") <= cases[i].host);
        }
}

/* What was chosen fits; a 256th less offloaded does not. */
TEST(as_much_as_fits_stays_up) {
    for (double device = 8e6; device < 16e6; device += 1.7e6) {
        json_t *object = run_json(0, MODEL AUTO "--stage 2 --device-memory %.0f", device);
        double ratio = number(object, "offload.ratio");
        expect_fields(object, "offload.auto=true");
        assert_true(ratio > 0 && ratio <= 1);
        for (int less = 0; less < 2; less++)
            assert_ran(less,
                       MODEL "--stage 2 --offload-optimizer cpu --offload-ratio %.8f "
                             "--device-memory %.0f",
                       ratio - less / 256.0, device);
    }
}

/* ---- what is recomputed ---------------------------------------------------------------------- */

/* The least that fits into what the next one needs; the weights are the same. */
TEST(what_is_recomputed) {
    static const char *const ways[] = {"never", "none", "unit"};
    double before = INFINITY;
    for (size_t i = 0; i < N_OF(ways); i++) {
        json_t *given = run_json(0, MODEL "--recompute %s", ways[i]);
        double most = number(given, "planned_peak_bytes.device.reserved");
        assert_true(most < before);
        json_t *chosen = run_json(0, MODEL "--recompute auto --device-memory %.0f", most);
        expect_fields(chosen, "recompute=%s", ways[i]);
        expect_parts("auto", text(chosen, "chosen.options"), "--recompute ");
        assert_string_equal(text(chosen, "weights_xxh3"), text(given, "weights_xxh3"));
        assert_true(number(chosen, "peak_bytes.device.live") ==
                    number(given, "peak_bytes.device.live"));
        before = most;
    }
}

/* ---- the stage ------------------------------------------------------------------------------ */

#define TWO "--ranks 2 --stage auto "

/* What the sentence calls its options is what the run was, and they say all of it. */
static json_t *expect_choice(const char *options, int stage) {
    char again[512];
    json_t *object = run_json(0, MODEL TWO "%s", options);
    expect_fields(object, "stage=%d", stage);
    snprintf(again, sizeof(again), "%s", options);
    char *option = strstr(again, AUTO);
    if (option != NULL)
        memset(option, ' ', strlen(AUTO));
    json_t *said = run_json(0, MODEL "--ranks 2 %s %s", again, text(object, "chosen.options"));
    expect_fields(said, "weights_xxh3=%s chosen=absent", text(object, "weights_xxh3"));
    assert_true(json_equal(field(object, "planned_peak_bytes"), field(said, "planned_peak_bytes")));
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
         "; plain data parallelism (stage 0), layers recomputed in backward, needs"},
        {"--device-memory 11100kB", 3,
         "; plain data parallelism (stage 0), layers recomputed in backward, needs"},
        {"--offload-optimizer auto --device-memory 8MB", 1, "optimizer state in host memory"},
        {"--offload-optimizer auto --device-memory 6MB", 2, "optimizer state in host memory"},
        {"--offload-params cpu", 3,
         "stage 3 with parameters in host memory, layers recomputed in backward, fits"},
        {"--offload-optimizer cpu --offload-gradients none", 2, "optimizer state in host"}};
    for (size_t i = 0; i < N_OF(cases); i++)
        expect_parts(cases[i].options,
                     text(expect_choice(cases[i].options, cases[i].stage), "chosen.why"),
                     cases[i].why);
}

/* Nothing that was asked for is left out for a stage that does not have it, with room for all. */
TEST(what_is_asked_for_is_kept) {
    static const struct {
        const char *options, *key, *kept;
        int least;
    } cases[] = {
        {"--gather-encoding 8bit", "messages", "parameters in 8bit", 1},
        {"--gather-encoding 8bit --master split", "messages", "parameters in 8bit", 3},
        {"--update-at backward", "update_at", "backward", 2},
        {"--update-at backward --gather-encoding bf16", "messages", "parameters in bf16", 2},
        {"--update-at auto --master split", "update_at", "end", 0},
        {"--gather-encoding none", "update_at", "end", 0}};
    for (int n_ranks = 1; n_ranks <= 2; n_ranks++)
        for (size_t i = 0; i < N_OF(cases); i++) {
            json_t *object =
                run_json(0,
                         "--model layers=1,channels=8,heads=2,seq=16,vocab=256 --data text "
                         "--steps 2 --stage auto --ranks %d %s",
                         n_ranks, cases[i].options);
            assert_string_equal(text(object, cases[i].key), cases[i].kept);
            assert_true(number(object, "stage") >= cases[i].least);
            assert_true(n_ranks > 1 || number(object, "stage") == cases[i].least);
        }
}

/* An option of a place where auto puts nothing is not dropped in silence; one that is heeded, or
 * asks for nothing, is not spoken of. */
TEST(what_is_left_out_is_said) {
    static const struct {
        const char *options;
        const char *said; /* NULL: nothing */
    } cases[] = {
        {AUTO "--update-on host",
         "warning: --update-on host: no effect with what auto chose: nothing is offloaded"},
        {AUTO "--nvme-path drive --nvme-buffers 3",
         "warning: --nvme-buffers 3: no effect with what auto chose: "},
        {AUTO_PARAMS "--nvme-path drive --param-buffers 3",
         "warning: --param-buffers 3: no effect with what auto chose: "},
        {AUTO "--update-on auto", NULL},
        {AUTO "--update-on host --device-memory 9MB", NULL}};
    for (size_t i = 0; i < N_OF(cases); i++) {
        assert_ran(0, MODEL "--stage 2 %s", cases[i].options);
        if (cases[i].said != NULL)
            assert_has(err, cases[i].said);
        else
            assert_not_said(cases[i].options, "no effect");
    }
}

/* With room for all, no slower one is taken for a lower number, nor a higher one for nothing. */
TEST(the_fastest_of_those_that_fit) {
    expect_fields(run_json(0, MODEL "--stage auto"), "stage=0"); /* one rank: all are alike */
    assert_said("one rank", "auto: plain data parallelism (stage 0)"
                            "|rates of this machine are not measured");
}

/* What is lacking, and as advice what was not tried; what is wrong is said before anything is
 * planned. */
TEST(what_cannot_be_is_said) {
    static const struct {
        int code;
        said_t said;
        const char *not_said;
    } cases[] = {
        {1,
         {MODEL TWO "--device-memory 5MB",
          "auto: nothing fits; the nearest to it, stage 3, layers recomputed in backward, "
          "needs | of device memory and has 4.8 MiB; |--offload-optimizer cpu or nvme"},
         "--stage 1"},
        {1,
         {MODEL TWO "--device-memory 2MB --offload-optimizer auto",
          "the nearest to it, stage 3 with optimizer state in host memory, layers"},
         "--stage 1"},
        {1,
         {MODEL AUTO "--stage 2 --device-memory 3MB", "auto: nothing fits|device memory"},
         "--x"},
        {1,
         {MODEL "--stage auto --device-memory 2MB",
          "; try a larger --device-memory, --stage 3 with --offload-params cpu or nvme"},
         "--stage 1"},
        {1,
         {MODEL "--stage auto --offload-optimizer auto --offload-params auto --device-memory 500kB",
          "; try a larger --device-memory, more --ranks, "},
         "--offload-params"},
        {1,
         {MODEL AUTO "--stage 2 --device-memory 8MB --host-memory 1MB", "--nvme-path"},
         "--stage 1"},
        {2, {MODEL "--offload-params auto --stage 2", "--stage 3"}, "nothing fits"},
        {2, {MODEL AUTO "--offload-ratio 0.5", "--offload-ratio"}, "nothing fits"},
        {2, {MODEL AUTO "--data nowhere", "--data nowhere: cannot read it"}, "nothing fits"},
        {2, {MODEL AUTO "--log nowhere/log", "cannot write --log nowhere/log"}, "nothing fits"},
        {2,
         {MODEL AUTO "--nvme-path drive,nowhere", "--nvme-path nowhere: No such file"},
         "nothing fits"}};
    for (size_t i = 0; i < N_OF(cases); i++) {
        expect_all_said(ZERO_TRAIN, cases[i].code, &cases[i].said, 1);
        assert_not_said(cases[i].said.arguments, cases[i].not_said);
    }
    json_t *object = run_json(1, MODEL AUTO "--stage 2 --device-memory 3MB");
    expect_fields(object, "result=failed error=ZR_ERR_BUDGET");
    expect_parts("message", text(object, "message"), "auto: nothing fits");
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
    assert_ok(zr_hardware_write_json(&hardware, NULL, path, NULL));
}

/* What is fastest goes by the rates of a file; what fits is looked up all the same. */
TEST(rates_of_a_file) {
    for (int stage = 0; stage < 2; stage++) {
        write_rates("slow.json", ZR_HARDWARE_HOST, stage == 1);
        json_t *object = run_json(0, MODEL "--ranks 2 --threads 1 --stage auto --grad-accum 2 "
                                           "--hardware slow.json");
        expect_fields(object, "stage=%d", stage);
        assert_not_said("two ranks", "times are approximate");
    }
    write_rates("gpu.json", ZR_HARDWARE_CUDA, false);
    expect_said(ZERO_TRAIN, 0, MODEL "--stage auto --hardware slow.json",
                "its rates are for 2 ranks with 1 thread");
    expect_said(ZERO_TRAIN, 2, MODEL "--device host --stage auto --hardware gpu.json",
                "--hardware gpu.json: it describes the device cuda");
    expect_said(ZERO_TRAIN, 2, MODEL "--hardware slow.json",
                "--hardware slow.json: nothing is chosen");
}

/* ---- the order of a step --------------------------------------------------------------------- */

/* Parameters are read once per pass and step, not per micro-batch; but the activations of all
 * micro-batches have to fit. */
TEST(the_faster_order_that_fits) {
#define ORDER MODEL "--stage 3 --ranks 2 --grad-accum 4 --offload-params cpu --prefetch 1000000 "
    json_t *object = run_json(0, ORDER "--order auto");
    expect_fields(object, "order=block chosen.plans=2");
    expect_fields(run_json(0, ORDER "--order block"), "weights_xxh3=%s",
                  text(object, "weights_xxh3"));
    double most = number(object, "planned_peak_bytes.device.reserved");
    object = run_json(0, ORDER "--order auto --device-memory %.0f", most - 4096);
    expect_fields(object, "order=micro-batch");
    assert_ran(1, ORDER "--order block --device-memory %.0f", most - 4096);
    expect_fields(run_json(0, MODEL "--order auto"), "order=micro-batch"); /* of one micro-batch */
    expect_said(ZERO_TRAIN, 2, MODEL "--order blocks", "the nearest is block");
}

/* Two units at a time are gathered where they fit, unless the size of units is said. */
TEST(prefetch_where_it_fits) {
#define AHEAD MODEL "--stage 3 --ranks 2 --offload-params cpu "
    json_t *object = run_json(0, AHEAD "--prefetch all");
    double most = number(object, "planned_peak_bytes.device.reserved");
    expect_fields(run_json(0, AHEAD "--device-memory %.0f", most - 4096), "weights_xxh3=%s",
                  text(object, "weights_xxh3"));
    assert_has(err, "--prefetch 0 is used: two units at a time do not fit in device memory");
    assert_ran(1, AHEAD "--prefetch 1000000 --device-memory %.0f", most - 4096);
    assert_ran(0, AHEAD "--prefetch 0 --device-memory %.0f", most - 4096);
    assert_true(strstr(err, "gathered ahead") == NULL);
    static const char *const limits[] = {"--prefetch", "--max-live"};
    for (size_t i = 0; i < 2; i++) {
        assert_ran(0, AHEAD "%s 100", limits[i]);
        assert_has(err, "6 of 6 units are not gathered ahead but waited for");
        assert_has(err, limits[i]);
    }
}

/* Updates in backward keep no gradients; where the norm decides they keep the old state instead. */
TEST(the_moment_of_updates_that_fits) {
    static const char *const ways[] = {"--clip 0 --check-overflow off", "--clip 1"};
    static const char *const fitting[] = {"backward", "end"};
    for (size_t i = 0; i < 2; i++) {
        char run[512];
        snprintf(run, sizeof(run), MODEL "--stage 2 --ranks 2 %s", ways[i]);
        json_t *least = run_json(0, "%s --update-at %s", run, fitting[i]);
        double most = number(least, "planned_peak_bytes.device.reserved");
        assert_ran(1, "%s --update-at %s --device-memory %.0f", run, fitting[1 - i], most);
        expect_fields(run_json(0, "%s --update-at auto --device-memory %.0f", run, most),
                      "update_at=%s weights_xxh3=%s", fitting[i], text(least, "weights_xxh3"));
    }
}

/* ---- several machines ----------------------------------------------------------------------- */

/* Four ranks, of which so many are said to be on each machine. The object of rank 0. */
static json_t *train_on_machines(const char *n_local, const char *options) {
    char arguments[512];
    snprintf(arguments, sizeof(arguments), MODEL "--device host --threads 1 --json %s", options);
    setenv("LOCAL_WORLD_SIZE", n_local, 1);
    int code = run_by_hand(4, arguments);
    unsetenv("LOCAL_WORLD_SIZE");
    if (code != 0)
        fail_msg("%s: exit %d\n%s", arguments, code, err);
    return kept_json(out);
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
    for (size_t i = 0; i < N_OF(cases); i++) {
        json_t *object = train_on_machines(cases[i].n_local, cases[i].options);
        const char *options = text(object, "chosen.options");
        if (cases[i].chosen != NULL)
            expect_parts(cases[i].options, options, cases[i].chosen);
        else
            assert_null(strstr(options, "--shard-group-size"));
        expect_fields(object, "shard_group_size=%d", cases[i].size);
        if (cases[i].size == 2) {
            expect_parts("why", text(object, "chosen.why"), "in groups of 2 ranks");
            assert_said(cases[i].options, "times only compare stages and groups");
        }
    }
}

/* Rates are a share of a machine: of as many ranks as are on it, and not of all. */
TEST(rates_are_of_one_machine) {
    write_rates("two.json", ZR_HARDWARE_HOST, false);
    train_on_machines("2", "--stage auto --hardware two.json");
    assert_not_said("", "times are approximate");
    train_on_machines("4", "--stage auto --hardware two.json");
    assert_said("four", "its rates are for 2 ranks with 1 thread each, but this run has 4 with 1: "
                        "times are approximate");
}

const test_group_t test_group = {make_folder, leave_test_folder};
