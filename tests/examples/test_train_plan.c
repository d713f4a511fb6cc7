/*
 * A run that the machine has no memory for is warned of before it begins, and one that its budget
 * refuses is not, since the run itself says so. However long a run is, its plan is not.
 */
#include "examples/train/plan.h"
#include "tests/common/test.h"

#define GIB ((size_t)1 << 30)

static char said[1024];

static void keep(void *context, zr_log_level_t level, int rank, const char *text) {
    assert_int_equal(level, ZR_LOG_WARNING);
    snprintf(said, sizeof(said), "%s", text);
}

/* What is said of a run that needs 4 GiB of a tier, of which there are so many. */
static const char *warn(zr_tier_t tier, size_t there_bytes, size_t budget_bytes,
                        train_plan_t plan) {
    train_options_t options = {.config = zr_config_default()};
    zr_log_t log = {.sink = keep, .level = ZR_LOG_WARNING};
    options.config.plan_check = false;
    options.config.device_memory_bytes = tier == ZR_TIER_DEVICE ? budget_bytes : 0;
    options.config.host_memory_bytes = tier == ZR_TIER_HOST ? budget_bytes : 0;
    plan.on_host.lack =
        (zr_run_lack_t){.tier = tier, .needed_bytes = 4 * GIB, .there_bytes = there_bytes};
    said[0] = '\0';
    assert_ok(train_plan_check(&plan, &options, &log));
    return said;
}

TEST(the_machine_is_warned_of) {
    train_plan_t plan = {.is_made = true};
    assert_has(warn(ZR_TIER_DEVICE, 3 * GIB, ZR_CONFIG_NO_BUDGET, plan),
               "needs 4.0 GiB of device memory, and its part of this machine is 3.0 "
               "GiB");
    assert_has(warn(ZR_TIER_HOST, 3 * GIB, 5 * GIB, plan), "of host memory");
}

TEST(what_is_refused_is_not) {
    train_plan_t plan = {.is_made = true};
    assert_string_equal(warn(ZR_TIER_DEVICE, 3 * GIB, 3 * GIB, plan), "");
    assert_string_equal(warn(ZR_TIER_HOST, 2 * GIB, 2 * GIB, plan), "");
    assert_string_equal(warn(ZR_TIER_NVME, 3 * GIB, ZR_CONFIG_NO_BUDGET, plan), "");
    plan.has_choice = plan.on_device.fits = true;
    assert_string_equal(warn(ZR_TIER_HOST, 3 * GIB, ZR_CONFIG_NO_BUDGET, plan), "");
    plan.has_choice = false;
    plan.on_host.fits = true;
    assert_string_equal(warn(ZR_TIER_HOST, 3 * GIB, ZR_CONFIG_NO_BUDGET, plan), "");
    assert_string_equal(warn(ZR_TIER_HOST, 3 * GIB, ZR_CONFIG_NO_BUDGET, (train_plan_t){0}), "");
}

/* Its steps are more than anybody can go through: the plan would not end. */
TEST(the_longest_run_is_planned) {
    char *argv[] = {"zero-train", "--model", "layers=1,channels=32,heads=2,seq=16,vocab=256",
                    "--data",     "none",    "--device",
                    "host",       "--steps", "1000000000000",
                    "--seq-min",  "8",       NULL};
    zr_log_t log = zr_log_default();
    train_options_t options;
    train_plan_t plan;
    assert_ok(train_options_parse(11, argv, &log, &options));
    train_plan_make(&options, 0, &(zr_run_evaluations_t){0}, &plan);
    assert_true(plan.is_made);
    assert_true(plan.on_host.fits);
    train_options_free(&options);
}
