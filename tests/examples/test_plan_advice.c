/*
 * The advice follows from the machine: on one GPU, several, and several nodes with fast and slow
 * links, what is recommended is the simplest of what is about as fast as anything that fits; what
 * does not fit lacks what it says, and to the granule.
 */
#include "tests/common/test.h"
#include "tests/examples/run_plan.h"

static const char *const tiers[] = {"device", "host", "nvme"};
static const char *const memory_keys[] = {"device_memory_bytes", "host_memory_bytes", "disk_bytes"};

/* A description that comes with the program, with another bandwidth between nodes; 0: its own. */
static json_t *describe(const char *name, double between_nodes) {
    char path[512];
    snprintf(path, sizeof(path), HARDWARE "/%s.json", name);
    json_t *hardware = kept(json_load_file(path, 0, NULL));
    assert_non_null(hardware);
    if (between_nodes > 0)
        assert_int_equal(json_object_set_new(json_object_get(hardware, "between_nodes"),
                                             "bytes_per_s", json_real(between_nodes)),
                         0);
    assert_int_equal(json_dump_file(hardware, "hardware.json", 0), 0);
    return hardware;
}

static double reserved(json_t *one, int tier) {
    json_t *peak = json_object_get(json_object_get(one, "peak_bytes"), tiers[tier]);
    return peak == NULL ? 0 : number(peak, "reserved");
}

/* Whether a plan fits is whether each tier holds it, and what it lacks is what is missing most. */
static void expect_fits(json_t *one, json_t *hardware) {
    bool holds = true, fits = json_is_true(json_object_get(one, "fits"));
    json_t *lack = json_object_get(one, "lack");
    double worst = 0, of_lack = 0;
    for (int tier = 0; tier < 3; tier++) {
        double there = number(hardware, memory_keys[tier]);
        double share = reserved(one, tier) / there;
        holds = holds && share <= 1;
        worst = share > worst ? share : worst;
        if (lack == NULL || strcmp(text(lack, "tier"), tiers[tier]) != 0)
            continue;
        of_lack = share;
        assert_true(number(lack, "needed") == reserved(one, tier));
        assert_true(number(lack, "there") == there);
        json_t *tags = json_object_get(
            json_object_get(json_object_get(one, "peak_bytes"), tiers[tier]), "tags");
        assert_true(number(tags, text(lack, "tag")) == number(lack, "tag_bytes"));
    }
    assert_int_equal(fits, holds);
    assert_int_equal(fits, lack == NULL);
    assert_true(fits || of_lack == worst);
}

/* The simplest of those about as fast as the fastest; plans stand in the order of simplicity. */
static void expect_best(json_t *object) {
    json_t *plans = json_object_get(object, "plans"), *best = recommended_plan(object), *one;
    double fastest = 0, own = number(best, "tokens_per_s");
    size_t i;
    json_array_foreach(plans, i, one) {
        if (json_is_true(json_object_get(one, "fits")) && number(one, "tokens_per_s") > fastest)
            fastest = number(one, "tokens_per_s");
    }
    assert_true(json_is_true(json_object_get(best, "fits")) && own >= 0.98 * fastest);
    json_array_foreach(plans, i, one) {
        if (one == best)
            return;
        assert_true(!json_is_true(json_object_get(one, "fits")) ||
                    number(one, "tokens_per_s") < 0.98 * fastest);
    }
}

/* Plan on described hardware, and check what holds anywhere. */
static json_t *advise(json_t *hardware, const char *options) {
    size_t i;
    json_t *one;
    json_t *object = plan_json(0, "--hardware ./hardware.json --dtype bf16 --quiet %s", options);
    json_array_foreach(json_object_get(object, "plans"), i, one) expect_fits(one, hardware);
    expect_best(object);
    return object;
}

static void expect_choice(json_t *object, int stage, const char *optimizer, const char *params) {
    json_t *best = recommended_plan(object);
    if ((int)number(best, "stage") != stage ||
        strcmp(text(best, "offload_optimizer"), optimizer) != 0 ||
        strcmp(text(best, "offload_params"), params) != 0)
        fail_msg("stage %d %s %s instead of stage %d %s %s: %s", (int)number(best, "stage"),
                 text(best, "offload_optimizer"), text(best, "offload_params"), stage, optimizer,
                 params, text(object, "recommended.why"));
}

/* The tokens per second of a plan. */
static double speed(json_t *object, int stage, const char *optimizer) {
    size_t i;
    json_t *one;
    json_array_foreach(json_object_get(object, "plans"), i, one) {
        if ((int)number(one, "stage") == stage &&
            strcmp(text(one, "offload_optimizer"), optimizer) == 0)
            return number(one, "tokens_per_s");
    }
    fail_msg("stage %d %s was not planned", stage, optimizer);
    return 0;
}

/* One GPU: nothing is shared, so plain training where it fits; else what least has to move. */
TEST(one_gpu) {
    expect_choice(advise(describe("h200", 0), "--model gpt2 --micro-batch 4"), 0, "none", "none");
    expect_choice(advise(describe("h200", 0), "--model gpt2-xl --micro-batch 4"), 0, "none",
                  "none");
    json_t *object = advise(describe("24g-64g", 0), "--model gpt3-6.7b --micro-batch 4");
    json_t *first = json_array_get(json_object_get(object, "plans"), 0);
    assert_false(json_is_true(json_object_get(first, "fits")));
    expect_fields(first, "lack.tag=optimizer_state");
    assert_has(text(object, "recommended.why"), "plain data parallelism (stage 0) needs");
    assert_string_equal(text(recommended_plan(object), "offload_optimizer"), "nvme");
}

/* Over fast links a shard of the update is a gain; with no time in the update it is none, and plain
 * data parallelism is the simplest. */
TEST(several_gpus) {
    json_t *object =
        advise(describe("8x-a100-80g", 0), "--model gpt2-xl --ranks 8 --micro-batch 2");
    assert_true(number(recommended_plan(object), "stage") >= 1);
    assert_true(speed(object, 1, "none") > 1.05 * speed(object, 0, "none"));
    object = advise(describe("8x-a100-80g", 0),
                    "--model gpt2-xl --ranks 8 --micro-batch 16 --grad-accum 8 --recompute none "
                    "--offload-optimizer none --offload-params none");
    expect_choice(object, 0, "none", "none");
}

/* Two nodes. What is sharded further saves memory on the device, and sends no more where a step is
 * one micro-batch, or hides what it sends; over slow links only how much that is counts, and with
 * more micro-batches what is sent once per step. */
TEST(slow_links_between_nodes) {
    static const char options[] = "--model gpt3-6.7b --ranks 16 --micro-batch 2 --recompute unit "
                                  "--device-memory 30GiB --shard-group-size all";
    static const double links[] = {100e9, 1.25e9};
    char arguments[512];
    double gain[2];
    for (size_t i = 0; i < 2; i++) {
        json_t *hardware = describe("8x-a100-80g", links[i]);
        json_object_set_new(hardware, "device_memory_bytes", json_integer((json_int_t)30 << 30));
        json_t *object = advise(json_incref(hardware), options);
        expect_choice(object, i == 0 ? 3 : 1, i == 0 ? "none" : "cpu", "none");
        snprintf(arguments, sizeof(arguments), "%s --grad-accum 4", options);
        object = advise(hardware, arguments);
        gain[i] = speed(object, 1, "cpu") / speed(object, 2, "none");
    }
    assert_true(gain[1] > 2.5 && gain[1] > 2 * gain[0]);
}

/* Compute covers state that comes up to the device and goes back, for as long as backward takes. */
TEST(updates_in_backward_run_beside_compute) {
    static const char *const moments[] = {"end", "backward"};
    double step_ms[2], link_ms = 0, compute_ms = 0;
    for (size_t i = 0; i < 2; i++) {
        json_t *object =
            plan_json(0,
                      "--model llama-3.1-8b --hardware 8x-a100-80g --dtype bf16 --quiet --stage 3 "
                      "--offload-optimizer cpu --offload-params none --update-on device "
                      "--recompute unit --micro-batch 1 --update-at %s",
                      moments[i]);
        step_ms[i] = number(recommended_plan(object), "step_ms");
        if (i == 0)
            link_ms = 1e3 * number(recommended_plan(object), "time.host_link.exposed");
        compute_ms = 1e3 * number(recommended_plan(object), "time.compute.busy");
    }
    assert_true(step_ms[0] - step_ms[1] > 0.8 * fmin(link_ms, 0.75 * compute_ms));
}

/* What groups of a node's ranks gain where nodes wait for each other, and memory holds a copy per
 * node: whatever else is chosen, all stages are faster in them, and over fast links they are not
 * worth naming. */
TEST(groups_over_slow_links) {
    static const char options[] = "--model gpt3-6.7b --ranks 16 --micro-batch 8 --recompute unit "
                                  "--offload-optimizer none --offload-params none";
    static const double links[] = {400e9, 1.25e9};
    for (size_t i = 0; i < 2; i++) {
        json_t *object = advise(describe("8x-a100-80g", links[i]), options);
        int size = (int)number(recommended_plan(object), "shard_group_size");
        assert_int_equal(size, i == 0 ? 16 : 8);
    }
}

/* As much memory as a plan needs is enough, and a granule less is not. */
TEST(to_the_granule) {
    char arguments[512];
    describe("8x-a100-80g", 0);
    const char *options = "--hardware ./hardware.json --model gpt2 --ranks 8 --dtype bf16 --quiet "
                          "--micro-batch 1 --recompute none --stage 1 --offload-optimizer none";
    json_t *object = plan_json(0, "%s", options);
    size_t needed = (size_t)reserved(recommended_plan(object), 0);
    for (int less = 0; less < 2; less++) {
        snprintf(arguments, sizeof(arguments), "%s --device-memory %zu", options,
                 needed - (less == 1 ? (size_t)2 << 20 : 0));
        plan_json(less, "%s", arguments);
    }
}

const test_group_t test_group = {make_folder, leave_test_folder};
