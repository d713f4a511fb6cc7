/*
 * Plans of a model with many layers: those told from fewer layers say the same of memory, to the
 * byte, and of time, to 1e-9; what is recommended is what it is with all layers. Options and
 * budgets are drawn at random; ZR_TEST_FOLDS=N draws N times.
 */
#include <math.h>

#include "allocator/replay.h"
#include "tests/common/test.h"
#include "tests/examples/run_plan.h"

static const char *pick(uint64_t *bits, const char *const options[], size_t n) {
    return options[random_bits(bits) % n];
}
#define PICK(bits, ...)                                                                            \
    pick(bits, (const char *const[]){__VA_ARGS__},                                                 \
         sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *))

static void draw(uint64_t *bits, size_t least, char text[1024]) {
    snprintf(text, 1024,
             "--model layers=%zu,channels=%d,heads=4,seq=64,vocab=%s %s %s %s %s %s "
             "--device-memory %zuMiB --host-memory %zuMiB --micro-batch %d --quiet",
             least + (size_t)(random_bits(bits) % 400), 16 * (int)(1 + random_bits(bits) % 4),
             PICK(bits, "300", "300", "300", "90000"),
             PICK(bits, "--hardware h200", "--hardware 24g-64g", "--hardware 8x-h100",
                  "--hardware 8x-h100 --ranks 16"),
             PICK(bits, "", "--dtype bf16"),
             PICK(bits, "", "--grad-accum 2", "--clip 1", "--grad-accum 3 --order block"),
             PICK(bits, "--stage 0", "--stage 2", "--stage 3", "--recompute unit",
                  "--stage 2 --update-at backward", "--stage 3 --update-at backward",
                  "--stage 2 --offload-gradients nvme", "--stage 3 --offload-gradients nvme",
                  "--recompute unit --offload-activations nvme"),
             PICK(bits, "", "--nvme-buffers 7", "--param-buffers 12"),
             (size_t)(200 << random_bits(bits) % 6), (size_t)(1000 << random_bits(bits) % 5),
             1 << random_bits(bits) % 3);
}

static bool is_same(json_t *a, json_t *b, double share) {
    return fabs(json_number_value(a) - json_number_value(b)) <= share * fabs(json_number_value(b));
}

/* All that a told plan says of memory is what the walked one says, to the byte. */
static void compare_bytes(json_t *told, json_t *walked, const char *where) {
    const char *key;
    json_t *value;
    json_object_foreach(told, key, value) {
        json_t *other = json_object_get(walked, key);
        if (json_is_object(value))
            compare_bytes(value, other, key);
        else if (!json_equal(value, other))
            fail_msg("%s.%s: %.0f instead of %.0f", where, key, json_number_value(value),
                     json_number_value(other));
    }
}

/* What each part did of a step. */
static void compare_times(json_t *told, json_t *walked, double step_seconds, const char *where) {
    const char *key;
    json_t *value;
    json_object_foreach(told, key, value) {
        json_t *other = json_object_get(walked, key);
        if (json_is_object(value))
            compare_times(value, other, step_seconds, key);
        else if (fabs(json_number_value(value) - json_number_value(other)) > 1e-8 * step_seconds)
            fail_msg("%s.%s: %.9g s instead of %.9g", where, key, json_number_value(value),
                     json_number_value(other));
    }
}

/* Returns whether the plan was told from fewer layers. */
static bool compare_plans(json_t *told, json_t *walked) {
    bool is_exact = json_is_true(json_object_get(told, "exact"));
    bool fits = json_is_true(json_object_get(walked, "fits"));
    json_t *step = json_object_get(told, "step_ms"),
           *walked_step = json_object_get(walked, "step_ms");
    assert_true(json_is_true(json_object_get(walked, "exact")));
    assert_true(fits == json_is_true(json_object_get(told, "fits")));
    assert_true(is_exact == (json_object_get(told, "metadata_bytes") != NULL));
    compare_bytes(json_object_get(told, "peak_bytes"), json_object_get(walked, "peak_bytes"),
                  "peak_bytes");
    if (fits && !is_same(step, walked_step, 5e-9)) /* nine digits are printed */
        fail_msg("%.9g ms instead of %.9g", json_number_value(step),
                 json_number_value(walked_step));
    if (fits)
        compare_times(field(told, "time"), field(walked, "time"), number(walked, "step_ms") / 1e3,
                      "time");
    return !is_exact;
}

static json_t *ask(const char *options, const char *exact) {
    char text[1200];
    snprintf(text, sizeof(text), "%s --plan-exact %s --json", options, exact);
    assert_in_range(plan(text), 0, 1); /* 1: nothing fits */
    return kept_json(out);
}

static size_t compare(const char *options) {
    json_t *told = ask(options, "fold"), *walked = ask(options, "walk"), *one;
    json_t *of_walked = field(walked, "plans"), *of_told = field(told, "plans");
    size_t n_told = 0, i;
    assert_int_equal(json_array_size(of_told), json_array_size(of_walked));
    assert_string_equal(text(told, "result"), text(walked, "result"));
    json_array_foreach(of_told, i, one) n_told += compare_plans(one, json_array_get(of_walked, i));
    if (strcmp(text(told, "result"), "planned") == 0) {
        assert_true(number(told, "recommended.plan") == number(walked, "recommended.plan"));
        assert_true(json_is_true(json_object_get(recommended_plan(told), "exact")));
    }
    return n_told;
}

TEST(what_is_recommended_is_as_with_all_layers) {
    const char *wanted = getenv("ZR_TEST_FOLDS");
    uint64_t bits = 11;
    size_t n = wanted != NULL ? strtoul(wanted, NULL, 10) : 3, n_told = 0;
    for (size_t i = 0; i < n; i++) {
        char options[1024];
        draw(&bits, ZR_REPLAY_LONG_UNITS, options);
        print_message("%s\n", options);
        n_told += compare(options);
        print_message("%zu plans told from fewer layers\n", n_told);
    }
    assert_true(n_told >= 2 * n);
}

/* Of fewer layers none is told. */
TEST(all_layers_of_usual_models_are_planned) {
    uint64_t bits = 5;
    char options[1024];
    draw(&bits, ZR_REPLAY_LONG_UNITS / 8, options);
    assert_true(compare(options) == 0);
}

const test_group_t test_group = {make_folder, leave_test_folder};
