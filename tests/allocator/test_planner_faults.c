/*
 * The planner without memory: each of its allocations fails once, and then all from it on.
 * It either plans or says so, sets nothing then, and leaks nothing.
 *
 * The linker sends malloc, calloc and realloc of the library here (--wrap).
 */
#include "tests/allocator/fail_malloc.h"
#include "tests/allocator/plan_cases.h"
#include "tests/common/kept_log.h"
#include "tests/common/test.h"

#define N_BUFFERS 600

static zr_plan_buffer_t buffers[N_BUFFERS];
static size_t offsets[N_BUFFERS];

/* Plan with a fault; false when the fault was not met. */
static bool plan_with_fault(size_t n_buffers, size_t countdown, bool stays) {
    kept_log_t kept;
    zr_plan_result_t result = {.height_bytes = 12345};
    zr_plan_options_t options = zr_plan_options_default();
    options.log = kept_log(&kept, options.log.level);
    options.max_seconds = 0.0;
    options.max_steps = 30000;
    memset(offsets, 0xee, sizeof(offsets));
    size_t untouched = offsets[0];
    fault.n_failed = 0;
    fault.stays = stays;
    fault.countdown = countdown;
    zr_status_t status = zr_plan_offsets(buffers, n_buffers, &options, offsets, &result);
    fault.countdown = 0;
    if (status == ZR_OK) {
        assert_true(plan_is_valid(buffers, n_buffers, offsets, result.height_bytes));
        assert_int_equal(kept.n_messages, 0);
        assert_int_equal(fault.n_failed, 0);
    } else {
        assert_int_equal(status, ZR_ERR_MEMORY);
        assert_int_equal(kept.n_messages, 1);
        assert_int_equal(offsets[0], untouched);
        assert_int_equal(result.height_bytes, 12345);
    }
    return fault.n_failed > 0;
}

static void plan_with_every_fault(size_t n_buffers, size_t least_faults) {
    for (int stays = 0; stays < 2; stays++) {
        size_t n = 1;
        while (plan_with_fault(n_buffers, n, stays == 1))
            n++;
        assert_true(n > least_faults);
    }
}

/* What one search of several parts needs, the exact search among it. */
TEST(test_parts) {
    plan_random_t random = {1};
    plan_cut_rectangle(&random, buffers, 60, 100, 500);
    plan_cut_rectangle(&random, buffers + 60, 70, 100, 480);
    for (int i = 60; i < 130; i++) {
        buffers[i].lower += 100;
        buffers[i].upper += 100;
    }
    plan_with_every_fault(130, 40);
}

/* Folding plans within a plan. */
TEST(test_folding) {
    plan_random_t random = {2};
    size_t n = plan_micro_batches(&random, buffers, 6, 8);
    /* Something irregular, so that the greedy orders do not suffice. */
    for (size_t i = 0; i < 8; i++)
        buffers[n++] = (zr_plan_buffer_t){(int64_t)(i * 120 + 50), (int64_t)(i * 120 + 65),
                                          256 * (1000 + 137 * 3), 256};
    plan_with_every_fault(n, 10);
}
