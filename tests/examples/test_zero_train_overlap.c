/*
 * zero-train --overlap-comm: collectives beside compute change no bit of the weights and no peak of
 * memory, are on where they are asked for, and say so.
 */
#include "tests/common/test.h"
#include "tests/examples/run_train.h"

#define RUN TINY "--steps 4 --threads 1 --json --ranks "

static bool overlaps(json_t *object) {
    json_t *value = json_object_get(object, "overlap_comm");
    assert_true(json_is_boolean(value));
    return json_is_true(value);
}

/* Where time is told apart, collectives beside compute are no part of what a rank does. */
static void expect_times(json_t *object, bool has_beside) {
    json_t *time = json_object_get(object, "time");
    assert_int_equal(json_object_get(time, "beside") != NULL, has_beside);
    if (has_beside)
        assert_true(number(time, "comm", NULL) == 0);
}

static void expect_same(const char *way) {
    char off[512], on[512];
    snprintf(off, sizeof(off), RUN "%s --overlap-comm off", way);
    snprintf(on, sizeof(on), RUN "%s --overlap-comm on", way);
    json_t *without = run_json(off, 0), *with = run_json(on, 0);
    assert_string_equal(text(with, "weights_xxh3"), text(without, "weights_xxh3"));
    assert_true(overlaps(with) && !overlaps(without));
    expect_times(with, true);
    expect_times(without, false);
    static const char *const tiers[] = {"device", "host"};
    for (int i = 0; i < 2; i++) {
        json_t *peaks = json_object_get(with, "peak_bytes");
        double measured = number(json_object_get(peaks, tiers[i]), "live", NULL);
        json_t *planned = json_object_get(json_object_get(with, "planned_peak_bytes"), tiers[i]);
        assert_true(measured > 0 && number(planned, "live", NULL) == measured);
        peaks = json_object_get(without, "peak_bytes");
        assert_true(number(json_object_get(peaks, tiers[i]), "live", NULL) == measured);
    }
    json_decref(with);
    json_decref(without);
}

TEST(test_same_weights_and_peaks) {
    expect_same("1 --stage 3");
    expect_same("2 --stage 0");
    expect_same("2 --stage 1 --grad-accum 2 --reduce every-micro-batch");
    expect_same("3 --stage 2 --dtype bf16 --grad-accum 2 --memory-plan off");
    expect_same("2 --stage 3 --recompute unit --offload-optimizer cpu --offload-params cpu");
    expect_same("4 --stage 3 --shard-group-size 2");
    if (has_nvme())
        expect_same("2 --stage 3 --offload-optimizer nvme --offload-params nvme --nvme-path drive");
}

/* Ranks of one machine share its cores; a file may say no, and the option is over it. */
TEST(test_when_it_is_on) {
    static const char no[] = "{\"zero_optimization\": {\"overlap_comm\": false}}";
    static const struct {
        const char *options;
        bool is_on;
    } cases[] = {{"", false},
                 {"--overlap-comm auto", false},
                 {"--overlap-comm on", true},
                 {"--overlap-comm on --config no.json", true},
                 {"--config no.json", false}};
    write_file("no.json", no, sizeof(no) - 1);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char arguments[512];
        snprintf(arguments, sizeof(arguments), RUN "2 %s", cases[i].options);
        json_t *object = run_json(arguments, 0);
        if (overlaps(object) != cases[i].is_on)
            fail_msg("%s: overlap_comm is %d", cases[i].options, !cases[i].is_on);
        json_decref(object);
    }
    assert_ran(RUN "2 --overlap-comm maybe", 2);
    assert_said("--overlap-comm maybe", "auto, on, off");
}

const test_group_t test_group = {make_folder, leave_test_folder};
