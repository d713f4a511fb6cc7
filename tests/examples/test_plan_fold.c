/*
 * Plans of a model with many layers: those told from fewer layers are right in what is live, mostly
 * right in time, and about right in what is mapped; what is recommended is what it is with all
 * layers, to the byte and to 1e-9 of its time. Options and budgets are drawn at random;
 * ZR_TEST_FOLDS=N draws N times.
 */
#include <math.h>

#include "tests/common/test.h"
#include "tests/examples/run_plan.h"

static const char *pick(uint64_t *bits, const char *const options[], size_t n) {
    return options[random_bits(bits) % n];
}
#define PICK(bits, ...)                                                                            \
    pick(bits, (const char *const[]){__VA_ARGS__},                                                 \
         sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *))

static void draw(uint64_t *bits, char text[1024]) {
    snprintf(text, 1024,
             "--model layers=%zu,channels=%d,heads=4,seq=64,vocab=300 %s %s %s %s "
             "--device-memory %zuMiB --host-memory %zuMiB --micro-batch %d --quiet",
             512 + (size_t)(random_bits(bits) % 200), 16 * (int)(1 + random_bits(bits) % 4),
             PICK(bits, "--hardware h200", "--hardware 24g-64g", "--hardware 8x-h100",
                  "--hardware 8x-h100 --ranks 16"),
             PICK(bits, "", "--dtype bf16"), PICK(bits, "", "--grad-accum 2", "--clip 1"),
             PICK(bits, "--stage 0", "--stage 2", "--stage 3", "--recompute unit"),
             (size_t)(200 << random_bits(bits) % 6), (size_t)(1000 << random_bits(bits) % 5),
             1 << random_bits(bits) % 3);
}

static bool is_near(double a, double b, double share, double least) {
    return fabs(a - b) <= share * fabs(b) + least;
}

/* Of plans that were told: those that are as walked to the byte, those that fit, of these the ones
 * with the same time, and how far others are. */
static size_t n_same_bytes, n_fit, n_same_time;
static double most_bytes_off, most_time_off;

static double part_off(double a, double b) {
    return b != 0 ? fabs(a - b) / fabs(b) : a != 0;
}

static void note_distance(json_t *told, json_t *walked) {
    static const char *const values[] = {"device.live", "device.reserved", "host.live",
                                         "host.reserved"};
    double bytes_off = 0;
    for (size_t i = 0; i < N_OF(values); i++)
        bytes_off = fmax(bytes_off, part_off(number(told, "peak_bytes.%s", values[i]),
                                             number(walked, "peak_bytes.%s", values[i])));
    bool fits = json_is_true(json_object_get(walked, "fits"));
    double time_off = fits ? part_off(number(told, "step_ms"), number(walked, "step_ms")) : 0;
    n_same_bytes += bytes_off == 0;
    n_fit += fits;
    n_same_time += fits && time_off <= 1e-9;
    most_bytes_off = fmax(most_bytes_off, bytes_off);
    most_time_off = fmax(most_time_off, time_off);
}

static void compare_tier(json_t *told, json_t *walked, const char *tier, bool is_exact) {
    char key[64];
    static const char *const values[] = {"live", "reserved"};
    for (int i = 0; i < 2; i++) {
        snprintf(key, sizeof(key), "peak_bytes.%s.%s", tier, values[i]);
        double a = number(told, key), b = number(walked, key);
        if (is_exact || i == 0 ? a != b : !is_near(a, b, 0.01, 256e6)) /* live ones are exact */
            fail_msg("%s: %.0f instead of %.0f", key, a, b);
    }
}

/* Returns whether the plan was told from fewer layers. */
static bool compare_plans(json_t *told, json_t *walked) {
    bool is_exact = json_is_true(json_object_get(told, "exact"));
    bool fits = json_is_true(json_object_get(walked, "fits"));
    assert_true(json_is_true(json_object_get(walked, "exact")));
    assert_true(fits == json_is_true(json_object_get(told, "fits")));
    compare_tier(told, walked, "device", is_exact);
    compare_tier(told, walked, "host", is_exact);
    if (!is_exact)
        note_distance(told, walked);
    if (fits &&
        !is_near(number(told, "step_ms"), number(walked, "step_ms"), is_exact ? 1e-9 : 0.02, 0))
        fail_msg("%f ms instead of %f", number(told, "step_ms"), number(walked, "step_ms"));
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
    size_t n = wanted != NULL ? strtoul(wanted, NULL, 10) : 4, n_told = 0;
    for (size_t i = 0; i < n; i++) {
        char options[1024];
        draw(&bits, options);
        print_message("%s\n", options);
        n_told += compare(options);
        print_message("%zu plans told from fewer layers, %zu to the byte, of %zu that fit %zu to "
                      "1e-9 in time; others up to %.2g of their bytes and %.2g of their time off\n",
                      n_told, n_same_bytes, n_fit, n_same_time, most_bytes_off, most_time_off);
    }
    assert_true(n_told >= 2 * n);
    assert_true(10 * n_same_time >= 9 * n_fit);
}

const test_group_t test_group = {make_folder, leave_test_folder};
