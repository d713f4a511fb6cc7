/*
 * zero-train on a drive that changes a bit while it trains: that is a run that failed, with a
 * report, and not bad input. And on a system that forbids io_uring: it plans, trains, and saves.
 */
#include "examples/train/plan.h"
#include "examples/train/train.h"
#include "tests/common/one_thing.h"
#include "tests/common/test.h"
#include "tests/offload/fault_ring.h"
#include "tests/offload/store_fixture.h"

static char folder[] = "test-zero-train-bits-XXXXXX";

static void keep(void *context, zr_log_level_t level, int rank, const char *message) {
    expect_one_thing(message);
    if (level == ZR_LOG_ERROR)
        snprintf(context, 512, "%s", message);
}

static zr_status_t train(const char *data, char *said, train_result_t *result) {
    char *words[] = {"zero-train",
                     "--model=layers=2,channels=16,heads=2,seq=16,vocab=256",
                     "--data",
                     (char *)(uintptr_t)data,
                     "--steps=2",
                     "--offload-optimizer=nvme",
                     "--nvme-path",
                     folder,
                     "--checkpoint-dir=ckpt",
                     NULL};
    zr_log_t log = {.sink = keep, .context = said, .level = ZR_LOG_ERROR, .rank = -1};
    train_options_t options;
    train_plan_t plan = {0};
    assert_ok(train_options_parse(9, words, &log, &options));
    train_plan_make(&options, 0, &(zr_run_evaluations_t){0}, &plan);
    assert_true(plan.is_made);
    zr_status_t status = zero_train_run(&options, &log, NULL, result);
    result->planned = train_plan_of(&plan, result);
    train_options_free(&options);
    return status;
}

TEST(a_flipped_bit_is_no_bad_input) {
    char said[512] = "";
    train_result_t result = {0};
    fault_arm(FAULT_FLIP, 0, 1, 1);
    assert_int_equal(train("data", said, &result), ZR_ERR_FORMAT);
    assert_int_equal(fault.n_hits, 1);
    assert_int_equal(system("rm -r ckpt"), 0);
    assert_has(said, "are not those that were put");
    assert_false(result.bad_input);
}

TEST(without_io_uring_it_trains_and_saves) {
    char said[512] = "";
    train_result_t with = {0}, without = {0};
    fault_arm(FAULT_NONE, 0, 1, 0);
    assert_ok(train("data", said, &with));
    assert_int_equal(system("rm -rf ckpt"), 0);
    fault_arm(FAULT_OPEN_RING, -EPERM, 1, 1000);
    assert_ok(train("data", said, &without));
    assert_true(fault.n_hits >= 2); /* its own store, and that of the checkpoint */
    assert_true(without.weights.xxh3 == with.weights.xxh3);
    assert_int_equal(without.saves.n_saves, 1);
    for (int tier = 0; tier < ZR_N_TIERS; tier++)
        assert_int_equal(without.planned.peak[tier].live, without.peak[tier].live);
    assert_int_equal(system("rm -r ckpt"), 0);
}

int main(void) {
    if (fixture_probe() != 0)
        return FIXTURE_SKIPPED;
    if (mkdtemp(folder) == NULL || chdir(folder) != 0)
        return 1;
    FILE *file = fopen("data", "w");
    for (int i = 0; file != NULL && i < 2000; i++)
        fputc("the quick brown fox "[i % 20], file);
    if (file == NULL || fclose(file) != 0)
        return 1;
    snprintf(folder, sizeof(folder), ".");
    int n_failed = run_all_tests(NULL, NULL);
    char path[4096];
    unlink("data");
    return n_failed | (getcwd(path, sizeof(path)) == NULL || rmdir(path) != 0);
}
