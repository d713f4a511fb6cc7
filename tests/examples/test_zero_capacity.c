/*
 * A capacity is the largest size of its family that fits: no larger one does, by any plan; it
 * trains, within its budgets and with the peaks of its plan, and the next is refused. What budgets
 * were used for adds up to them. A sweep that was stopped ends in what it would have ended in.
 */
#include "examples/capacity/run.h"
#include "examples/capacity/search.h"
#include "examples/capacity/verify.h"
#include "examples/plan/hardware.h"
#include "tests/common/kept_log.h"
#include "tests/common/test.h"
#include "tests/examples/run_train.h"

#define SMALL "--seq 16 --vocab 256 --aspect 12 --head-size 16 --threads 1 "
#define BUDGETS "--device-memory 2MiB --host-memory 8MiB "

static int capacity(const char *arguments) {
    return run_program("", ZERO_CAPACITY, arguments);
}

FORMATTED(2) static json_t *capacity_json(int expected, const char *format, ...) {
    char text[1024];
    FORMAT_INTO(text, format);
    return program_json(ZERO_CAPACITY, expected, text);
}

/* The first of its points. */
static json_t *point_of(json_t *object) {
    return json_array_get(field(object, "points"), 0);
}

/* ---- the family ------------------------------------------------------------------------------ */

static zr_model_shape_t named(const char *name) {
    zr_model_shape_t shape;
    assert_ok(zr_model_shape_read(name, NULL, &shape));
    return shape;
}

TEST(sizes_grow) {
    capacity_family_t families[] = {
        {.head_size = 64, .aspect = 12, .seq = 64, .vocab = 256},
        {.head_size = 16, .aspect = 128, .seq = 1, .vocab = 50257},
        {.head_size = 128, .aspect = 1, .seq = 2048, .vocab = 2},
        {.head_size = 64, .aspect = 12, .seq = 64, .vocab = 256, .layers = 7},
        {.head_size = 64, .aspect = 12, .seq = 64, .vocab = 256, .channels = 192},
        {.like = named("llama-3.1-8b"), .head_size = 64, .aspect = 64, .seq = 64, .vocab = 256},
        {.like = named("qwen3-4b"), .head_size = 10, .aspect = 12, .seq = 64, .vocab = 256},
        {.like = named("mistral-7b"),
         .head_size = 64,
         .aspect = 1,
         .seq = 8,
         .vocab = 2,
         .layers = 9},
        {.like = named("qwen2.5-0.5b"),
         .head_size = 2,
         .aspect = 1,
         .seq = 8,
         .vocab = 2,
         .channels = 14 * 16}};
    for (size_t k = 0; k < N_OF(families); k++) {
        const capacity_family_t *family = &families[k];
        size_t before = 0;
        for (size_t i = 0; i < 2000; i++) {
            zr_model_shape_t shape;
            bool is_one = capacity_family_shape(family, i, &shape);
            assert_true(is_one);
            zr_model_sizes_t sizes = zr_model_shape_sizes(&shape);
            assert_true(zr_model_shape_n_params(&shape) > before);
            if (shape.kind == ZR_MODEL_DECODER)
                assert_int_equal(shape.of.decoder.head_size, family->head_size);
            else
                assert_int_equal(sizes.heads * family->head_size, sizes.channels);
            if (family->layers == 0 && family->channels == 0)
                assert_true(sizes.channels <= family->aspect * sizes.n_layers);
            if (family->layers != 0)
                assert_int_equal(sizes.n_layers, family->layers);
            if (family->channels != 0)
                assert_int_equal(sizes.channels, family->channels);
            before = zr_model_shape_n_params(&shape);
            if (i % 100 == 0) { /* whatever its layers, a description says it */
                zr_model_shape_t again = named(zr_model_shape_text(&shape).text);
                assert_false(zr_model_shapes_differ(&shape, &again, NULL));
            }
        }
        zr_model_shape_t shape; /* and they end, where they cannot be counted */
        assert_false(capacity_family_shape(family, SIZE_MAX, &shape));
    }
}

/* ---- the search ------------------------------------------------------------------------------ */

/* Every size from the smallest to well beyond the answer, planned one by one. */
static void expect_largest(const capacity_search_t *search) {
    size_t largest = 0;
    bool any = false;
    for (size_t i = 0; i <= search->index + 12; i++) {
        train_options_t run = search->run;
        zr_run_plan_t plan;
        assert_true(capacity_family_shape(&search->options->family, i, &run.shape));
        zr_run_request_t request = train_plan_request(&run, &search->its_case->hardware);
        request.log = (zr_log_t){.sink = drop_message, .level = ZR_LOG_ERROR};
        if (zr_run_plan(&request, &plan) != ZR_OK)
            continue;
        largest = i;
        any = true;
    }
    assert_true(any == search->found);
    assert_int_equal(largest, search->index);
}

/* What zero-capacity is asked by a command line, words with spaces between. */
typedef struct asked {
    char words[1024];
    char *arguments[64];
    capacity_options_t options;
    capacity_case_t its_case;
} asked_t;

static void ask(asked_t *asked, const zr_log_t *log, const char *arguments) {
    int n = 0;
    snprintf(asked->words, sizeof(asked->words), "zero-capacity %s", arguments);
    for (char *word = strtok(asked->words, " "); word != NULL; word = strtok(NULL, " "))
        asked->arguments[n++] = word;
    assert_ok(capacity_options_parse(n, asked->arguments, log, &asked->options));
    asked->its_case = (capacity_case_t){.run = asked->options.run};
    assert_ok(plan_hardware_find("this", &asked->options.run, log, &asked->its_case.hardware));
}

static capacity_search_t search_of(const asked_t *asked, const capacity_place_t *place,
                                   const zr_log_t *log) {
    capacity_search_t search = {
        .options = &asked->options, .its_case = &asked->its_case, .place = *place, .log = log};
    assert_ok(capacity_search(&search));
    return search;
}

TEST(no_larger_size_fits) {
    static const char *const budgets[] = {
        "--device-memory 1MiB --host-memory 1MiB --nvme-capacity 1MiB",
        "--device-memory 2MiB --host-memory 8MiB --nvme-capacity 32MiB",
        "--device-memory 5MiB --host-memory 2MiB --nvme-capacity 64MiB",
        "--device-memory 1500kB --host-memory 16MiB --nvme-capacity 3MiB"};
    static const capacity_place_t places[] = {{0, CAPACITY_NONE, CAPACITY_NONE},
                                              {2, CAPACITY_CPU, CAPACITY_NONE},
                                              {3, CAPACITY_NVME, CAPACITY_CPU},
                                              {3, CAPACITY_NVME, CAPACITY_NVME}};
    zr_log_t log = zr_log_default();
    size_t n_found = 0;
    if (!has_nvme())
        skip();
    for (size_t i = 0; i < 4; i++) {
        char arguments[512];
        asked_t asked;
        snprintf(arguments, sizeof(arguments), SMALL "--ranks 2 --sub-group 4096 --verify off %s",
                 budgets[i]);
        ask(&asked, &log, arguments);
        for (size_t k = 0; k < 4; k++) {
            capacity_search_t search = search_of(&asked, &places[k], &log);
            assert_true(search.has_next);
            assert_false(search.next.fits);
            n_found += search.found;
            if (search.found)
                expect_largest(&search);
        }
    }
    assert_true(n_found >= 8);
}

TEST(a_search_can_be_stopped) {
    zr_log_t log = zr_log_default();
    atomic_bool stop = true;
    capacity_results_t results;
    asked_t asked;
    ask(&asked, &log, SMALL BUDGETS "--ranks 2 --verify off");
    assert_ok(capacity_run(&asked.options, &log, NULL, &stop, &results));
    assert_false(results.is_whole);
    assert_int_equal(results.n_wanted, 3 * 3 + 5);
    assert_int_equal(json_array_size(results.points), 0);
    capacity_results_free(&results);
}

/* ---- proof ----------------------------------------------------------------------------------- */

static double sum_of(json_t *object) {
    const char *name;
    json_t *value;
    double sum = 0;
    json_object_foreach(object, name, value) sum += json_number_value(value);
    return sum;
}

static void expect_bytes_add_up(json_t *point, double n_ranks) {
    json_t *bytes = field(point, "largest.bytes");
    double all = number(bytes, "budgets"), states = number(bytes, "states");
    double parts = states + number(bytes, "replicas") + number(bytes, "padding") +
                   number(bytes, "unused") + sum_of(field(bytes, "work")) +
                   sum_of(field(bytes, "holes"));
    assert_true(parts == all);
    assert_true(number(bytes, "replicas") >= 0 && number(bytes, "unused") >= 0);
    assert_true(all == n_ranks * (number(point, "device_memory") + number(point, "host_memory") +
                                  number(point, "nvme_capacity")));
    assert_float_equal(number(point, "largest.efficiency") * all / states, 1, 1e-6);
    /* In bf16; without a split master where updates would have to fetch parameters for it. */
    bool is_apart = strcmp(text(point, "offload_params"), "nvme") == 0 &&
                    strcmp(text(point, "offload_optimizer"), "nvme") != 0;
    assert_true(states == (is_apart ? 16 : 14) * number(point, "largest.model.parameters"));
    assert_true((number(bytes, "replicas") == 0) == (number(point, "stage") == 3 || n_ranks == 1));
}

/* Everything at once: all stages and placements, trained; with drives where there are any. */
TEST(capacities_are_trained) {
    if (!has_nvme())
        skip();
    json_t *object = capacity_json(0, SMALL BUDGETS "--ranks 2 --verify steps=3 --nvme-path drive "
                                                    "--nvme-capacity 32MiB");
    size_t i, n_nvme = 0;
    json_t *point;
    expect_fields(object, "result=done");
    assert_int_equal(json_array_size(field(object, "points")), 3 * 4 + 10);
    json_array_foreach(field(object, "points"), i, point) {
        expect_fields(point, "result=found monotone=true proof.result=trained "
                             "proof.peaks=as_planned proof.next=refused proof.steps=3");
        assert_true(number(point, "next.model.parameters") >
                    number(point, "largest.model.parameters"));
        assert_string_equal(text(point, "next.message"), text(point, "proof.next_message"));
        n_nvme += number(point, "proof.peak_bytes.nvme") > 0;
        expect_bytes_add_up(point, 2);
    }
    assert_true(n_nvme >= 7);
}

/* Heads and vocabulary are the model's, unless they are given. */
TEST(families_are_like_their_model) {
    static const char *const ways[][2] = {
        {"--model llama-3.1-8b", "family.head_size=128 family.vocab=128256"},
        {"--model Qwen/Qwen2.5-7B", "family.head_size=128 family.vocab=152064"},
        {"--model gpt2-xl", "family.head_size=64 family.vocab=50257"},
        {"--model qwen3-0.6b", "family.head_size=128"},
        {"--model qwen3-0.6b --head-size 64", "family.head_size=64"},
        {"", "family.head_size=64 family.vocab=50257"},
        {"--model llama --head-size 64 --vocab 256", "family.head_size=64 family.vocab=256"}};
    for (size_t i = 0; i < N_OF(ways); i++) {
        json_t *object = capacity_json(0,
                                       "%s --layers 2 --seq 64 --hardware h200 --ranks 1 --stage 0 "
                                       "--offload-optimizer none --micro-batch 1",
                                       ways[i][0]);
        expect_fields(object, "%s", ways[i][1]);
        if (strstr(ways[i][0], "qwen3") != NULL) /* whose heads are wider together than the model */
            assert_true(number(point_of(object), "largest.model.head_size") ==
                        number(object, "family.head_size"));
    }
}

/* Tokens of the verifying runs are as large as the vocabulary. */
TEST(large_vocabularies_are_verified) {
    json_t *point = point_of(capacity_json(
        0, "--vocab 70000 --layers 1 --head-size 4 --seq 8 --threads 1 --stage 0 "
           "--offload-optimizer none --device-memory 24MiB --host-memory 24MiB --verify steps=3"));
    expect_fields(point, "result=found proof.result=trained proof.next=refused");
}

/* Of the Llama family likewise, with the proportions of what is scaled. */
TEST(capacities_of_llamas_are_trained) {
    json_t *object = capacity_json(
        0, "--model llama --seq 16 --vocab 256 --aspect 12 --head-size 4 --threads 1 " BUDGETS
           "--ranks 2 --verify steps=3 --stage 3 "
           "--offload-optimizer cpu");
    size_t i;
    json_t *point;
    expect_fields(object, "result=done family.architecture=llama");
    json_array_foreach(field(object, "points"), i, point) {
        json_t *model = field(point, "largest.model");
        expect_fields(point, "result=found monotone=true proof.result=trained "
                             "proof.peaks=as_planned proof.next=refused");
        expect_fields(model, "architecture=llama wide=%.0f kv_heads=%.0f",
                      3.5 * number(model, "channels"), number(model, "heads") / 4);
        assert_has(text(point, "largest.options"), "--model llama,layers=");
        assert_true(number(point, "largest.bytes.states") == 14 * number(model, "parameters"));
    }
}

/* Frozen weights in few bits, and adapters that are trained. */
TEST(capacities_of_adapters_are_trained) {
    json_t *point = point_of(capacity_json(
        0, SMALL BUDGETS "--ranks 2 --verify steps=3 --stage 3 --offload-optimizer none "
                         "--offload-params none --lora rank=2,alpha=4 --lora-base nf4"));
    json_t *model = field(point, "largest.model");
    expect_fields(point, "result=found monotone=true proof.result=trained "
                         "proof.peaks=as_planned proof.next=refused");
    assert_has(text(point, "largest.options"), "--lora rank=2,alpha=4 --lora-base nf4");
    assert_true(number(point, "largest.bytes.states") < 2 * number(model, "parameters"));
    assert_true(number(point, "largest.bytes.replicas") == 0);
}

/* A proof of what is not so. */
TEST(proofs_can_fail) {
    static const capacity_place_t place = {1, CAPACITY_CPU, CAPACITY_NONE};
    zr_log_t log = zr_log_default();
    capacity_proof_t proof;
    asked_t asked;
    ask(&asked, &log, SMALL BUDGETS "--ranks 2 --verify steps=2");
    capacity_search_t search = search_of(&asked, &place, &log), other = search;
    assert_ok(capacity_verify(&search, &proof));
    assert_true(proof.trained && proof.as_planned && proof.refused);
    assert_int_equal(proof.result.n_steps, 2);
    other.next_run = search.run; /* it fits */
    assert_ok(capacity_verify(&other, &proof));
    assert_true(proof.trained && !proof.refused);
    other = search;
    other.run = search.next_run; /* it does not */
    assert_ok(capacity_verify(&other, &proof));
    assert_true(!proof.trained && !proof.as_planned && proof.refused);
    assert_has(proof.message, "does not fit");
    other = search;
    other.run.steps = 3;
    other.plan.tiers[ZR_TIER_HOST].by_tag[ZR_TAG_OPTIMIZER_STATE].peak += 4;
    assert_ok(capacity_verify(&other, &proof));
    assert_true(proof.trained && !proof.as_planned && proof.refused);
    atomic_bool stop = true;
    other = search;
    other.stop = &stop;
    assert_int_equal(capacity_verify(&other, &proof), ZR_ERR_STATE);
}

/* At stage 3 the second step is the first that gathers ahead: what is refused only there is so,
 * too, where one step is asked for, and that step's peaks are those of one step's plan. */
TEST(few_steps_are_proof_enough) {
    json_t *point = point_of(capacity_json(
        0, SMALL "--device-memory 2200kB --host-memory 8MiB --ranks 2 --verify steps=1 --stage 3 "
                 "--offload-params none --offload-optimizer cpu --offload-gradients cpu "
                 "--offload-gradients-ratio 1 --offload-activations none --prefetch 1000000"));
    expect_fields(point,
                  "proof.steps=1 proof.result=trained proof.peaks=as_planned proof.next=refused");
    assert_true(number(point, "proof.peak_bytes.device") <
                number(point, "largest.peak_bytes.device.reserved"));
}

/* Host memory is short of gradients: a part of them waits on the device. What is trained of it in
 * other tests is enough for AddressSanitizer, under which this takes long. */
TEST(parts_fit_more) {
#if defined(__SANITIZE_ADDRESS__)
    const char *proof = "off";
#else
    const char *proof = "steps=2";
#endif
    static const char *const places[] = {
        "--offload-optimizer nvme --offload-params nvme --offload-gradients cpu",
        "--offload-optimizer nvme --offload-params nvme",
        "--offload-optimizer auto --offload-params auto"};
    double found[3];
    if (!has_nvme())
        skip();
    for (size_t i = 0; i < 3; i++) {
        json_t *object = capacity_json(0,
                                       SMALL "--ranks 2 --device-memory 4MiB --host-memory 4MiB "
                                             "--nvme-capacity 64MiB --nvme-path drive --stage 3 "
                                             "--sub-group 4096 --param-buffer 4096 --verify %s %s",
                                       proof, places[i]);
        assert_int_equal(json_array_size(field(object, "points")), 1);
        found[i] = number(point_of(object), "largest.model.parameters");
    }
    assert_true(found[1] > 1.05 * found[0]);
    assert_true(found[2] >= found[1]);
}

/* What is left open by a word is as open as what is not said. With one rank, nothing is more
 * sharded at stages 1 and 3 than at the one before, where parameters stay on the device. */
TEST(open_stages_are_all_tried) {
    static const char *const stages[] = {"0 2", "0 1 2 3"};
    for (int n_ranks = 1; n_ranks <= 2; n_ranks++) {
        json_t *object =
            capacity_json(0,
                          SMALL BUDGETS "--offload-optimizer none --offload-params none --ranks %d "
                                        "--offload-activations none --verify off "
                                        "--stage 2 --stage auto --shard-group-size all",
                          n_ranks);
        char tried[32] = "";
        size_t i;
        json_t *point;
        json_array_foreach(field(object, "points"), i, point)
            snprintf(tried + strlen(tried), sizeof(tried) - strlen(tried), "%s%.0f",
                     i == 0 ? "" : " ", number(point, "stage"));
        assert_string_equal(tried, stages[n_ranks - 1]);
        expect_fields(object, "wanted=%zu", i);
    }
}

/* Stages that lack what is asked for are not tried, with one rank neither. */
TEST(stages_that_lack_an_option) {
    for (int n_ranks = 1; n_ranks <= 2; n_ranks++) {
        json_t *object = capacity_json(
            0,
            SMALL BUDGETS "--offload-optimizer none --offload-params none --ranks %d "
                          "--offload-activations none --verify off --shard-group-size all "
                          "--update-at backward",
            n_ranks);
        assert_int_equal(json_array_size(field(object, "points")), n_ranks);
        assert_true(number(point_of(object), "stage") == 2);
    }
}

/* What is printed runs in zero-train, and one layer more does not. */
TEST(options_are_zero_trains) {
    char arguments[2048], larger[64];
    json_t *object = capacity_json(
        0, SMALL BUDGETS "--ranks 2 --stage 3 --offload-optimizer cpu --offload-params cpu "
                         "--channels 64 --verify steps=2");
    json_t *largest = field(point_of(object), "largest");
    snprintf(arguments, sizeof(arguments), "%s --threads 1 --data text --steps 3",
             text(largest, "options"));
    expect_fields(run_json(0, "%s", arguments), "model.parameters=%.0f",
                  number(largest, "model.parameters"));
    snprintf(larger, sizeof(larger), "layers=%.0f", number(largest, "model.layers") + 1);
    char *place = strstr(arguments, "layers=");
    assert_int_equal(strlen(larger), strcspn(place, ","));
    memcpy(place, larger, strlen(larger));
    expect_said(ZERO_TRAIN, 1, arguments, "does not fit");
}

/* The next larger one fits, and is too slow; what is asked for bounds what is found. */
TEST(rates_may_be_asked_for) {
#define RATE SMALL BUDGETS "--verify off --stage 0 --offload-optimizer cpu "
    json_t *any = point_of(capacity_json(0, RATE));
    double rate = 4 * number(any, "largest.tokens_per_s");
    json_t *fast = point_of(capacity_json(0, RATE "--min-tokens-per-s %.6g", rate));
    assert_true(number(fast, "largest.tokens_per_s") >= rate);
    assert_true(number(fast, "next.tokens_per_s") < rate);
    assert_true(number(fast, "largest.model.parameters") <
                0.5 * number(any, "largest.model.parameters"));
    expect_fields(fast, "next.lack=absent");
    assert_int_equal(capacity(RATE "--min-tokens-per-s 1000"), 0);
    expect_out("tokens/s");
    expect_fields(point_of(capacity_json(1, RATE "--min-tokens-per-s 1e11")), "result=none_fits");
}

TEST(too_small_budgets_have_none) {
    json_t *object = capacity_json(1, SMALL "--device-memory 64KiB --stage 0 --ranks 2");
    expect_fields(point_of(object),
                  "result=none_fits largest=absent proof=absent next.lack.tier=device");
    assert_said("too small", "not even the smallest|not verified: without --host-memory");
}

/* ---- sweeps ---------------------------------------------------------------------------------- */

#define SWEPT "--verify off --sweep ranks=1,2 --sweep host-memory=1MiB,2MiB,4MiB "
#define SWEEP                                                                                      \
    SMALL "--device-memory 2MiB --stage 3 --offload-optimizer cpu " SWEPT "--quiet --csv got.csv "

static void expect_same_files(const char *a, const char *b) {
    static char first[1 << 20], second[1 << 20];
    read_file(a, first, sizeof(first));
    read_file(b, second, sizeof(second));
    assert_true(strlen(first) > 1000);
    assert_string_equal(first, second);
}

static pid_t start_sweep(void) {
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        signal(SIGINT, SIG_DFL);
        execl("/bin/sh", "sh", "-c",
              "exec '" ZERO_CAPACITY "' " SWEEP "--state state.json >out 2>err", (char *)NULL);
        _exit(127);
    }
    return child;
}

/* Whether the state has something: it is tried to write it before. */
static bool has_state(void) {
    struct stat about;
    return stat("state.json", &about) == 0 && about.st_size > 0;
}

/* Stopped after at least one capacity, wherever it was then, as often as it takes. */
TEST(stopped_sweeps_go_on) {
    int status;
    assert_int_equal(capacity(SWEEP), 0);
    assert_int_equal(rename("got.csv", "undisturbed.csv"), 0);
    pid_t child = start_sweep(), ended = 0;
    while (!has_state() && ended == 0) {
        ended = waitpid(child, &status, WNOHANG);
        usleep(1000);
    }
    if (ended == 0) {
        kill(child, SIGINT);
        ended = waitpid(child, &status, 0);
    }
    assert_int_equal(ended, child);
    assert_true(WIFEXITED(status));
    read_file("err", err, sizeof(err));
    if (WEXITSTATUS(status) == 1) {
        assert_said("stopped", "stopped after");
        assert_int_not_equal(access("got.csv", F_OK), 0); /* of what is not whole there is none */
    } else {
        assert_int_equal(WEXITSTATUS(status), 0); /* it was done already */
    }
    assert_int_not_equal(access("state.json.new", F_OK), 0);
    assert_int_equal(capacity(SWEEP "--state state.json --resume"), 0);
    expect_same_files("got.csv", "undisturbed.csv");
}

/* What the state has is not found again; what it does not have is. */
TEST(states_are_gone_on_from) {
    unlink("state.json");
    assert_int_equal(capacity(SWEEP "--state state.json --resume"), 0); /* as each time after */
    assert_said("the first time",
                "warning: --resume: state.json does not exist: starting from the beginning");
    assert_int_equal(rename("got.csv", "undisturbed.csv"), 0);
    json_t *found = kept(json_load_file("state.json", 0, NULL)), *points = field(found, "points");
    assert_int_equal(json_array_size(points), 12);
    while (json_array_size(points) > 7)
        assert_int_equal(json_array_remove(points, 7), 0);
    assert_int_equal(json_dump_file(found, "state.json", 0), 0);
    assert_int_equal(capacity(SWEEP "--state state.json --resume"), 0);
    expect_same_files("got.csv", "undisturbed.csv");
    json_object_set_new(field(json_array_get(points, 6), "largest.model"), "parameters",
                        json_integer(4711));
    assert_int_equal(json_dump_file(found, "state.json", 0), 0);
    assert_int_equal(capacity(SWEEP "--state state.json --resume"), 0);
    assert_int_equal(system("grep -q ,4711, got.csv"), 0);
}

/* What is there stays, where what replaces it cannot be written. */
TEST(states_are_whole) {
    assert_int_equal(capacity(SWEEP "--state state.json"), 0);
    assert_int_equal(rename("state.json", "whole.json"), 0);
    assert_int_equal(capacity(SWEEP "--state state.json"), 0);
    assert_int_equal(mkdir("state.json.new", 0700), 0);
    assert_int_equal(capacity(SWEEP "--state state.json"), 2);
    assert_said("state", "cannot be written");
    assert_int_equal(rmdir("state.json.new"), 0);
    expect_same_files("state.json", "whole.json");
}

TEST(other_questions_are_refused) {
#define GO_ON "--state state.json --resume"
    static const said_t cases[] = {
        {SWEEP "--micro-batch 2 " GO_ON, "--micro-batch was not given and is 2 now"},
        {SMALL "--device-memory 3MiB --stage 3 --offload-optimizer cpu " SWEPT GO_ON,
         "--device-memory was 2MiB and is 3MiB"},
        {SMALL
         "--device-memory 2MiB --stage 3 --offload-optimizer cpu --verify off --sweep ranks=1 "
         "--sweep host-memory=1MiB,2MiB,4MiB " GO_ON,
         "--sweep ranks was ranks=1,2 and is ranks=1 now"},
        {SMALL "--stage 3 --offload-optimizer cpu " SWEPT GO_ON,
         "--device-memory was 2MiB and is not given now"},
        {SWEEP "--state drive/x/state.json", "--state"}};
    static const char *const files[] = {"", "{", "[]", "{\"question\": 1, \"points\": []}",
                                        "{\"question\": {}, \"points\": [1]}"};
    assert_int_equal(capacity(SWEEP "--state state.json"), 0);
    expect_all_said(ZERO_CAPACITY, 2, cases, N_OF(cases));
    for (size_t i = 0; i < N_OF(files); i++) {
        write_file("state.json", files[i], strlen(files[i]));
        expect_said(ZERO_CAPACITY, 2, SWEEP GO_ON, "--state state.json");
    }
}

/* ---- the rest -------------------------------------------------------------------------------- */

TEST(pictures_are_drawn) {
    if (system("gnuplot --version >/dev/null 2>&1") != 0)
        skip();
    assert_int_equal(capacity(SMALL BUDGETS "--verify off --plot \"it's.svg\""), 0);
    assert_string_equal(err, "");
    expect_out("capacity efficiency");
    assert_int_equal(system("grep -q '<svg' it\\'s.svg && grep -q '3 cpu/cpu' it\\'s.svg"), 0);
    assert_int_equal(capacity(SMALL BUDGETS "--verify off --stage 3 --offload-optimizer cpu "
                                            "--offload-params cpu --plot one.svg"),
                     0);
    assert_string_equal(err, ""); /* a single capacity has axes, too */
    assert_int_equal(capacity(SWEEP "--plot sweep.png"), 0);
    assert_string_equal(err, "");
    assert_int_equal(system("head -c 4 sweep.png | grep -q PNG"), 0);
}

/* gnuplot has no axes for it, and would say so at length. */
TEST(without_capacities_nothing_is_drawn) {
    remove("none.svg");
    assert_int_equal(capacity(SMALL "--verify off --device-memory 100kB --host-memory 1MiB "
                                    "--sweep ranks=1,2 --plot none.svg"),
                     1);
    assert_said("--plot none.svg", "nothing to draw");
    assert_null(strstr(err, "plot>"));
    assert_int_not_equal(access("none.svg", F_OK), 0);
}

TEST(described_hardware_is_planned_for) {
    json_t *point = point_of(capacity_json(0, "--hardware h200 --seq 1024 --vocab 50257 --stage 0 "
                                              "--offload-optimizer none --aspect 64"));
    expect_fields(point, "proof=absent ranks=1");
    double states = number(point, "largest.bytes.states");
    double device = number(point, "largest.bytes.budget.device");
    assert_true(states > 0.9 * device && states < device);
    point = point_of(
        capacity_json(0, "--hardware 8x-a100-80g --stage 1 --offload-optimizer none --layers 2"));
    expect_fields(point, "ranks=8"); /* it has eight */
}

/* Each reason that is this program's own once, and no warning of what is not done. */
TEST(bad_input_is_refused) {
    static const said_t refused[] = {
        {"--shard-group-size 8", "allowed: all; use --ranks N for"},
        {"--verify maybe", "steps=3"},
        {"--verify steps=0", "--verify steps"},
        {"--verify steps=2 --device-memory 1MiB", "without --host-memory"},
        {BUDGETS "--verify steps=2 --nvme-path .", "without --nvme-capacity"},
        {"--hardware h200 --verify steps=2", "only a description"},
        {"--hardware none-such", "--hardware none-such"},
        {"--hardware h200 --device host", "--hardware this"},
        {"--layers 2 --channels 64", "nothing can grow"},
        {"--channels 100", "multiple of the head size, 64; the nearest is 128"},
        {"--channels 10", "the nearest is 64"},
        {"--state 8bit", "--state 8bit: here it is a file that keeps results; the precision of the "
                         "optimizer's state is --optimizer-state 8bit"},
        {"--sweep rank=1,2", "ranks"},
        {"--sweep ranks", "NAME=VALUE"},
        {"--sweep ranks=1,x", "--sweep ranks"},
        {"--sweep ranks=1,1", "twice"},
        {"--sweep ranks=1,", "--sweep ranks"},
        {"--sweep ranks=1 --sweep ranks=2", "already"},
        {"--ranks 2 --sweep ranks=1,2", "leave one of the two out"},
        {"--resume", "--state"},
        {"--plot picture.pdf", "NAME.svg"},
        {"--csv one --state one", "same file"},
        {"--stage 1 --offload-params cpu", "--stage 3"},
        {"--offload-optimizer nvme", "--nvme-path"},
        {"--recompute none --offload-activations cpu", "--recompute unit"},
        {"--nvme-buffers 2", "--nvme-buffers 2: no drives are named"},
        {"--sweep nvme-capacity=1GB --offload-optimizer cpu --offload-params none "
         "--offload-activations none",
         "--nvme-capacity (--sweep): nothing is offloaded to NVMe"},
        {"--offload-optimizer none --offload-gradients cpu", "nothing is offl"},
        {"word", "word"}};
    for (size_t i = 0; i < N_OF(refused); i++) {
        expect_all_said(ZERO_CAPACITY, 2, &refused[i], 1);
        assert_not_said(refused[i].arguments, "warning");
    }
    expect_said(ZERO_CAPACITY, 2, "--nvme-path none-such", "none-such"); /* with a warning */
    expect_said(ZERO_CAPACITY, 0, SMALL BUDGETS "--verify off --stage 2 --prefetch 9",
                "warning: --prefetch: no effect at stage 2");
    assert_int_equal(capacity("--help"), 0);
    expect_out("--sweep");
    assert_int_equal(capacity("--version"), 0);
    assert_int_equal(strncmp(out, "zero-capacity ", 14), 0);
}

/* More than there is room for is no less of a question. */
TEST(no_option_is_left_out) {
    static options_given_t givens;
    kept_log_t captured;
    zr_log_t log = kept_log(&captured, ZR_LOG_INFO);
    for (size_t i = 0; i < ZR_OPTIONS_MOST; i++) {
        assert_ok(options_note(&givens, "sweep", "ranks=1", true, &log));
        assert_int_equal(givens.n, i + 1);
    }
    assert_ok(options_note(&givens, "sweep", "ranks=2", false, &log));
    assert_string_equal(givens.all[0].value, "ranks=2");
    assert_int_equal(options_note(&givens, "seed", "7", false, &log), ZR_ERR_ARGUMENT);
    assert_string_equal(captured.text, "--seed 7: allowed: 160 options at most\n");
}

/* But for peaks and tables, which are zero-train's. */
TEST(everything_is_documented) {
    char csv[4096];
    json_t *object = capacity_json(
        0, SMALL BUDGETS "--stage 2 --offload-optimizer cpu --verify steps=1 --csv got.csv");
    expect_fields_documented(FIELDS_DOC, object, " device host nvme ",
                             " peak_bytes metadata_bytes ");
    read_file("got.csv", csv, sizeof(csv));
    for (char *name = strtok(csv, ",\n"), *end = strstr(csv, "next_trained");
         name != NULL && name <= end; name = strtok(NULL, ",\n"))
        expect_documented(FIELDS_DOC, name, "`");
}

const test_group_t test_group = {make_folder, leave_test_folder};
