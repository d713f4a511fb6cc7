/*
 * Promise 1: with the same number of ranks every stage ends in bitwise the same parameters;
 * and the promise that this test would notice if one rounding changed. Runs on the device whose
 * name is the first argument; another one than the host has to end in the host's bits, and meets
 * fewer of the mixtures; fewer still on a GPU, where each rank takes tens of milliseconds to begin.
 */
#include "tests/common/test.h"
#include "tests/zero/toy.h"

static const int rank_counts[] = {1, 2, 3, 4, 8};
#define N_RANK_COUNTS 5

static const char *device_name = "host";
/* Of all mixtures of options, and of all numbers of ranks, every how many are met. */
static unsigned flags_step = 1;
static int ranks_step = 1;

/* Whether the next mixture is. */
#define IS_MET() (strcmp(device_name, "host") == 0 ? ONE_OF(5, 5) : ONE_OF(11, 7))

static uint64_t hash_on(const char *device, const toy_options_t *options) {
    toy_options_t copy = *options;
    copy.device_name = device;
    return toy_hash(&copy);
}

static uint64_t hash_of(const toy_options_t *options) {
    return hash_on(device_name, options);
}

static uint64_t hash_at_stage(const toy_options_t *options, int stage) {
    toy_options_t copy = *options;
    copy.config.stage = stage;
    return hash_of(&copy);
}

static void expect_same(const toy_options_t *options, int first_stage, int last_stage,
                        const char *what) {
    uint64_t reference = hash_at_stage(options, first_stage);
    toy_options_t first = *options;
    first.config.stage = first_stage;
    if (strcmp(device_name, "host") != 0 && hash_on("host", &first) != reference)
        fail_msg("%s, %d ranks, %s: stage %d ends in other weights on %s than on the host", what,
                 options->n_ranks, zr_dtype_name(options->config.dtype), first_stage, device_name);
    for (int stage = first_stage + 1; stage <= last_stage; stage++) {
        uint64_t hash = hash_at_stage(options, stage);
        if (hash != reference)
            fail_msg("%s, %d ranks, %s: stage %d ends in %016llx, stage %d in %016llx", what,
                     options->n_ranks, zr_dtype_name(options->config.dtype), first_stage,
                     (unsigned long long)reference, stage, (unsigned long long)hash);
    }
}

static toy_options_t variant(int n_ranks, zr_dtype_t dtype, unsigned flags) {
    toy_options_t options = toy_mixture(0, n_ranks, dtype, flags & 15);
    options.n_steps = 4;
    toy_set_optimizer(&options, (unsigned)n_ranks + (unsigned)dtype + flags);
    return options;
}

TEST(all_stages_agree) {
    for (int i = 0; i < N_RANK_COUNTS; i += ranks_step)
        for (int dtype = ZR_DTYPE_F32; dtype <= ZR_DTYPE_BF16; dtype++)
            for (unsigned flags = 0; flags < 16; flags += flags_step) {
                if (!IS_MET())
                    continue;
                toy_options_t options = variant(rank_counts[i], (zr_dtype_t)dtype, flags);
                options.n_steps = 3;
                expect_same(&options, 0, 3, "one micro-batch");
            }
}

TEST(accumulation_agrees_in_pairs) {
    for (int i = 0; i < N_RANK_COUNTS; i += ranks_step)
        for (int dtype = ZR_DTYPE_F32; dtype <= ZR_DTYPE_BF16; dtype++)
            for (unsigned flags = 0; flags < 16; flags += 2 + flags_step) {
                if (!IS_MET())
                    continue;
                toy_options_t options = variant(rank_counts[i], (zr_dtype_t)dtype, flags);
                options.config.grad_accum = 3;
                expect_same(&options, 0, 1, "accumulation");
                expect_same(&options, 2, 3, "accumulation");
                options.config.reduce = ZR_REDUCE_EVERY_MICRO_BATCH;
                expect_same(&options, 0, 3, "accumulation, every micro-batch");
            }
}

/* Each block for all micro-batches: micro-batches are added before ranks at every stage, or ranks
 * before micro-batches; as each micro-batch through all blocks does at stage 0. */
TEST(orders_agree) {
    for (int i = 0; i < N_RANK_COUNTS; i += ranks_step)
        for (int dtype = ZR_DTYPE_F32; dtype <= ZR_DTYPE_BF16; dtype++)
            for (unsigned flags = 0; flags < 32; flags += 4 + flags_step) {
                if (!IS_MET())
                    continue;
                toy_options_t options = variant(rank_counts[i], (zr_dtype_t)dtype, flags);
                options.config.grad_accum = 3;
                options.config.reduce = flags & 16 ? ZR_REDUCE_EVERY_MICRO_BATCH : ZR_REDUCE_AUTO;
                uint64_t reference = hash_at_stage(&options, 0);
                options.config.order = ZR_ORDER_BLOCK;
                expect_same(&options, 0, 3, "each block for all micro-batches");
                assert_true(hash_at_stage(&options, 0) == reference);
            }
}

/* Groups of ranks: the stages agree, and of one rank each, or of all, with one group. */
TEST(groups_agree) {
    static const int shapes[][2] = {{2, 1}, {4, 2}, {6, 2}, {6, 3}, {8, 4}};
    for (size_t i = 0; i < N_OF(shapes); i += (size_t)ranks_step)
        for (int dtype = ZR_DTYPE_F32; dtype <= ZR_DTYPE_BF16; dtype++)
            for (unsigned flags = 0; flags < 16; flags += 4 + flags_step) {
                if (!IS_MET())
                    continue;
                toy_options_t options = variant(shapes[i][0], (zr_dtype_t)dtype, flags);
                options.config.shard_group_size = shapes[i][1];
                options.n_steps = 3;
                expect_same(&options, 0, 3, "groups");
                options.config.grad_accum = 2;
                expect_same(&options, 0, 1, "groups, accumulation");
                expect_same(&options, 2, 3, "groups, accumulation");
                options.config.reduce = ZR_REDUCE_EVERY_MICRO_BATCH;
                expect_same(&options, 0, 3, "groups, accumulation, every micro-batch");
            }
}

/* Sums of one rank each, or of all ranks, are sums in rank order. What a norm adds up does depend
 * on the shards, so nothing is clipped. */
TEST(the_two_ends_of_grouping_are_one_group) {
    for (int stage = 0; stage <= 3; stage++)
        for (unsigned flags = 0; flags < 16; flags += 4 * flags_step) {
            toy_options_t options = variant(4, flags & 4 ? ZR_DTYPE_BF16 : ZR_DTYPE_F32, flags);
            options.config.stage = stage;
            zr_config_set_optimizer(&options.config, &zr_adamw); /* signs are seldom others */
            uint64_t reference = hash_of(&options);
            options.config.shard_group_size = 1;
            assert_true(hash_of(&options) == reference);
            options.config.shard_group_size = 4;
            assert_true(hash_of(&options) == reference);
            options.config.shard_group_size = 2;
            assert_true(hash_of(&options) != reference); /* another order of sums */
        }
}

/* Rounding apart, a model trained in groups is the one trained in one. */
TEST(groups_train_the_same_model) {
    for (int stage = 0; stage <= 3; stage++) {
        toy_options_t options = variant(8, ZR_DTYPE_F32, 1);
        toy_result_t whole, grouped;
        options.device_name = device_name;
        options.config.stage = stage;
        toy_train(&options, &whole);
        options.config.shard_group_size = 4;
        toy_train(&options, &grouped);
        assert_float_equal((float)whole.step.gradient_norm, (float)grouped.step.gradient_norm,
                           1e-5f * (float)whole.step.gradient_norm);
        for (int i = 0; i < TOY_N_SAMPLES; i++)
            for (int elem = 0; elem < TOY_SAMPLE_ELEMS; elem++)
                assert_float_equal(whole.sample[i][elem], grouped.sample[i][elem], 1e-5f);
    }
}

/* Each is so for those behind it, too. */
TEST(how_it_is_done_changes_nothing) {
    static const char *const ways[] = {"prefetch=0", "overlap-comm=off", "reuse_elems=1000000000",
                                       "max-live=1", "sub-group=77"};
    toy_options_t options = variant(3, ZR_DTYPE_BF16, 7);
    options.config.stage = 3;
    uint64_t reference = hash_of(&options);
    for (size_t i = 0; i < N_OF(ways); i++) {
        toy_set(&options, "%s", ways[i]);
        assert_true(hash_of(&options) == reference);
    }
}

TEST(one_ulp_is_noticed) {
    for (int stage = 0; stage <= 3; stage++) {
        toy_options_t options = toy_options_default(stage, 3);
        uint64_t reference = hash_of(&options);
        options.flip_rank = 1;
        assert_true(hash_of(&options) != reference);
    }
}

TEST(options_matter) {
    uint64_t seen[16];
    for (unsigned flags = 0; flags < 16; flags++) {
        toy_options_t options = variant(2, ZR_DTYPE_F32, flags);
        seen[flags] = hash_of(&options);
        for (unsigned other = 0; other < flags; other++)
            assert_true(seen[flags] != seen[other]);
    }
}

TEST(a_step_that_is_not_finite_is_skipped) {
    for (int stage = 0; stage <= 3; stage++) {
        toy_options_t options = toy_options_default(stage, 2);
        options.quiet = 1;
        options.n_steps = 1;
        uint64_t after_one = hash_of(&options);
        options.n_steps = 2;
        options.nan_step = 1;
        toy_result_t result;
        options.device_name = device_name;
        toy_train_well(&options, &result);
        assert_true(result.hash == after_one);
        assert_true(result.step.skipped);
        assert_int_equal(result.step.n_skipped, 1);
    }
}

int main(int argc, char **argv) {
    if (argc > 1)
        device_name = argv[1];
    if (strcmp(device_name, "host") != 0)
        flags_step = 7, ranks_step = 2;
    zr_device_t *device = NULL;
    const char *opened = strcmp(device_name, "nccl") == 0 ? "cuda" : device_name;
    if (zr_device_open(opened, NULL, &device) == ZR_ERR_UNSUPPORTED)
        return 77; /* said by the log */
    zr_device_close(&device);
    return run_all_tests(NULL, NULL);
}
