/*
 * What plans of memory are worth in real runs: zero-train at every stage, with and without
 * recomputation and accumulation, with sequences of equal and of varying length. A step's plan is
 * as low as it can be, and the whole run, its first steps included, reserves hardly more than
 * was ever live at once.
 */
#include "tests/common/test.h"
#include "tests/examples/run_train.h"

#define RUN "--data text --model layers=4,channels=128,heads=4,seq=64,vocab=256 --ranks 2 --quiet "

/* How a run has to use memory. */
typedef struct expectation {
    double most_reserved; /* over what is live, each at its peak in the whole run */
    int least_followed;   /* steps that went by plan from end to end */
} expectation_t;

static void check(const char *options, const expectation_t *expected) {
    json_t *object = run_json(0, RUN "%s", options);
    double live = number(object, "peak_bytes.device.live");
    double reserved = number(object, "peak_bytes.device.reserved");
    double height = number(object, "memory.device.plan.height");
    double bound = number(object, "memory.device.plan.bound");
    double followed = number(object, "memory.replay.steps_followed");
    if (reserved > expected->most_reserved * live)
        fail_msg("%s: %.0f bytes reserved, %.0f live: %.4f", options, reserved, live,
                 reserved / live);
    if (height > 1.001 * bound)
        fail_msg("%s: a plan of %.0f bytes, where %.0f are live", options, height, bound);
    if (followed < expected->least_followed)
        fail_msg("%s: %.0f of %.0f steps followed their plan", options, followed,
                 number(object, "memory.replay.steps"));
}

/* At all stages, with and without recomputation, with 1 and 4 micro-batches. */
static void check_all(const char *more, const expectation_t *expected) {
    char options[256];
    for (int stage = 0; stage <= 3; stage++) {
        for (int i = 0; i < 4; i++) {
            if (!ONE_OF(3, 3))
                continue;
            snprintf(options, sizeof(options), "--stage %d --recompute %s --grad-accum %d %s",
                     stage, i & 1 ? "unit" : "none", i & 2 ? 4 : 1, more);
            check(options, expected);
        }
    }
}

TEST(equal_lengths) {
    check_all("--steps 5", &(expectation_t){.most_reserved = 1.01, .least_followed = 2});
}

TEST(varying_lengths) {
    check_all("--steps 16 --seq-min 16",
              &(expectation_t){.most_reserved = 1.05, .least_followed = 4});
}

/* In fp32 the host's products of up to 192 rows need a workspace of their own. */
TEST(lengths_around_a_workspace) {
    const expectation_t expected = {.most_reserved = 1.05, .least_followed = 8};
    check("--steps 16 --seq-min 16 --micro-batch 4 --stage 1 --grad-accum 4", &expected);
    check("--steps 16 --seq-min 16 --micro-batch 4 --stage 2 --grad-accum 2", &expected);
}

const test_group_t test_group = {make_folder, leave_test_folder};
