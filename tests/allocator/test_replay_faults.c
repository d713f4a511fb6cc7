/*
 * Replay without memory for its metadata: whichever of its own allocations fails, on the tape,
 * in planning, or in putting a plan into force, training goes on, nothing is lost, and once there
 * is memory again, steps are served by plan again.
 */
#include "tests/allocator/fail_malloc.h"
#include "tests/allocator/replay_steps.h"
#include "tests/common/test.h"

#define PLENTY ((size_t)4 << 20)
#define N_STEPS 8
#define N_TENSORS 40
#define EXTRA 200

/* Enough tensors that arrays grow; freed behind the stream that they are used on. */
static step_t make_step(void) {
    static step_t step;
    step.n_ops = 0;
    for (size_t segment = 0; segment < 4; segment++) {
        step_mark(&step, 1, segment, 0);
        for (int i = 0; i < N_TENSORS; i++)
            step_allocate(&step, i, 300 + 100 * (size_t)i, ZR_LIFETIME_UNIT, i % 2);
        for (int i = 0; i < N_TENSORS; i++)
            step_free(&step, i, i % 2);
    }
    return step;
}

static void do_op(steps_t *steps, const step_op_t *op) {
    zr_status_t status = steps_do(steps, op);
    assert_true(status == ZR_OK || status == ZR_ERR_MEMORY);
}

static void do_step(steps_t *steps, const step_t *step) {
    steps->step++;
    for (size_t i = 0; i < step->n_ops; i++)
        do_op(steps, &step->ops[i]);
    steps_check(steps);
}

/* A whole life with a fault at the n-th allocation. How many failed. */
static size_t run(size_t n, bool stays, bool is_late) {
    steps_options_t options = {.granule_bytes = 4096, .is_late = is_late, .budget_bytes = PLENTY};
    steps_t *steps = steps_open(&options);
    step_t step = make_step(), other = step;
    other.ops[3].size_bytes *= 20;
    fault.countdown = n;
    fault.stays = stays;
    fault.n_failed = 0;
    zr_replay_options_t how = zr_replay_options_default();
    how.search_seconds = 0;
    zr_status_t status = zr_allocator_replay_start(steps->allocator, &how);
    assert_true(status == ZR_OK || status == ZR_ERR_MEMORY);
    for (int i = 0; i < N_STEPS; i++) {
        do_step(steps, i == 3 ? &other : &step);
        if (i != 5)
            continue;
        /* A large tensor needs the plan's memory while something of it lives. */
        steps->step++;
        for (size_t k = 0; k < N_TENSORS; k++)
            do_op(steps, &step.ops[k]);
        step_op_t large = {.kind = STEP_ALLOCATE,
                           .slot = EXTRA,
                           .size_bytes = PLENTY - 32 * 4096,
                           .lifetime = ZR_LIFETIME_PERSISTENT,
                           .stream = STEPS_NO_STREAM};
        status = steps_do(steps, &large);
        assert_true(status == ZR_OK ||
                    (fault.n_failed > 0 && (status == ZR_ERR_MEMORY || status == ZR_ERR_BUDGET)));
        large.kind = STEP_FREE;
        steps_do(steps, &large);
        for (size_t k = N_TENSORS; k < step.n_ops; k++)
            do_op(steps, &step.ops[k]);
    }
    size_t n_failed = fault.n_failed;
    fault.countdown = 0;
    if (!steps_replay(steps).is_on)
        assert_ok(zr_allocator_replay_start(steps->allocator, &how));
    for (int i = 0; i < 24; i++)
        do_step(steps, &step);
    assert_int_equal(steps_replay(steps).last_clean_step, steps->step - 1);
    steps_close(&steps);
    return n_failed;
}

static void check(bool stays) {
    for (int is_late = 0; is_late < 2; is_late++) {
        size_t n = 1;
        while (run(n, stays, is_late != 0) > 0)
            n++;
        printf("%zu allocations failed\n", n - 1);
        assert_true(n > 40);
    }
}

TEST(test_each_allocation_fails_once) {
    check(false);
}

TEST(test_all_allocations_fail_from_one_on) {
    check(true);
}
