/*
 * Training with memory that is allocated by plan: at every stage, on devices that do everything at
 * once and on late ones, it ends in the bits of one without plans, and once the order of the units
 * is known, its steps follow their plan.
 */
#include "tests/common/test.h"
#include "tests/zero/toy.h"

/* The first step is learnt, and the second where units are prefetched in the order of the first. */
#define N_STEPS 7
#define N_LEARNT 3

static void check(const toy_options_t *options, size_t n_clean) {
    toy_options_t plain = *options;
    plain.config.plan_memory = false;
    plain.late = false;
    toy_result_t planned, reference;
    toy_train_well(options, &planned);
    toy_train_well(&plain, &reference);
    assert_false(reference.replay.is_on);
    const zr_replay_statistics_t *replay = &planned.replay;
    if (planned.hash != reference.hash)
        fail_msg("stage %d, %zu micro-batches, late %d: a plan ends in other weights",
                 options->config.stage, options->config.grad_accum, options->late);
    /* The last step has not ended for the allocator: no mark has come after it. */
    assert_int_equal(replay->n_steps, options->n_steps - 1);
    assert_int_equal(replay->last_clean_step, options->n_steps - 1);
    if (replay->n_clean_steps < n_clean)
        fail_msg("stage %d, %zu micro-batches, late %d: %zu of %zu steps were clean",
                 options->config.stage, options->config.grad_accum, options->late,
                 replay->n_clean_steps, replay->n_steps);
    assert_true(planned.device_memory.by_class[ZR_CLASS_PLANNED].live.peak > 0);
}

static toy_options_t variant(int stage, unsigned flags) {
    toy_options_t options = toy_options_default(stage, 2);
    options.n_steps = N_STEPS;
    options.config.grad_accum = flags & 1 ? 3 : 1;
    options.late = (flags & 2) != 0;
    if (flags & 4)
        options.config.prefetch_elems = 0;
    if (flags & 8)
        options.config.reduce = ZR_REDUCE_EVERY_MICRO_BATCH;
    options.tied = (flags & 16) != 0;
    toy_set_optimizer(&options, flags % 7);
    options.config.dtype = flags & 32 ? ZR_DTYPE_BF16 : ZR_DTYPE_F32;
    return options;
}

TEST(plans_change_no_bit) {
    for (int stage = 0; stage <= 3; stage++)
        for (unsigned flags = 0; flags < 64; flags += 64 / 8 - 1) {
            toy_options_t options = variant(stage, flags);
            check(&options, N_STEPS - 1 - N_LEARNT);
        }
    for (int stage = 0; stage <= 3; stage++)
        for (unsigned flags = 0; flags < 8; flags++) {
            toy_options_t options = variant(stage, flags);
            check(&options, N_STEPS - 1 - N_LEARNT);
        }
}

TEST(another_order_is_learnt) {
    for (unsigned flags = 0; flags < 4; flags++) {
        toy_options_t options = variant(3, flags);
        options.n_steps = 12;
        options.reorder_step = 5;
        check(&options, 5);
    }
}
