/*
 * Messages in other encodings than parameters and gradients have. They change values, and so the
 * weights; but every rank has the same, on every device and placement, at each stage that shards,
 * and when a run goes on from a checkpoint. What is sent is what the formulas say.
 */
#include "tests/common/test.h"
#include "tests/zero/checkpoint/folder_fixture.h"
#include "tests/zero/toy.h"

/* All that messages can be, with and without groups of ranks. */
typedef struct variant {
    const char *options;
    int n_ranks;
} variant_t;

static const variant_t variants[] = {
    {"gather-encoding=bf16", 3},
    {"gather-encoding=8bit", 2},
    {"reduce-encoding=bf16", 3},
    {"reduce-encoding=8bit", 3},
    {"gather-encoding=8bit reduce-encoding=4bit", 4},
    {"gather-encoding=8bit reduce-encoding=4bit shard-group-size=2", 4},
    {"reduce-encoding=8bit shard-group-size=1", 3},
    {"reduce-encoding=4bit shard-group-size=2 error-feedback=on", 6},
    {"gather-encoding=8bit reduce-encoding=8bit shard-group-size=3 error-feedback=on", 6},
};

static toy_options_t run_of(const variant_t *variant, int stage, zr_dtype_t dtype) {
    toy_options_t options = toy_options_default(stage, variant->n_ranks);
    options.config.dtype = dtype;
    options.n_steps = 3;
    toy_set(&options, "%s", variant->options);
    if (stage == 0)
        options.config.gather_encoding = ZR_MESSAGE_PLAIN;
    return options;
}

/* toy_train ends with an error where a rank has other weights than rank 0. */
TEST(ways_change_nothing) {
    static const char *const ways[] = {"prefetch=0",
                                       "overlap-comm=off",
                                       "reuse_elems=1000000000",
                                       "memory-plan=off",
                                       "offload-optimizer=cpu sub-group=1024",
                                       "check-overflow=off clip=0 update-at=backward"};
    for (size_t i = 0; i < N_OF(variants); i++)
        for (int stage = 0; stage <= 3; stage++) {
            if (!ONE_OF(1, 3))
                continue;
            toy_options_t options =
                run_of(&variants[i], stage, (i + (size_t)stage) % 2 ? ZR_DTYPE_BF16 : ZR_DTYPE_F32);
            uint64_t hash = toy_hash(&options);
            toy_options_t late = options;
            late.late = true;
            toy_expect_hash(&late, hash);
            toy_options_t concurrent = options;
            concurrent.concurrent = true;
            toy_expect_hash(&concurrent, hash);
            for (size_t way = (i + (size_t)stage) % 2; way < N_OF(ways); way += 2) {
                toy_options_t other = options;
                if (stage < 2 && strstr(ways[way], "backward") != NULL)
                    continue;
                toy_set(&other, "%s", ways[way]);
                toy_expect_hash(&other, hash);
            }
            if (stage == 3) {
                toy_set(&options, "offload-params=cpu offload-optimizer=nvme nvme-path=x");
                options.config.nvme.store = "memory";
                toy_expect_hash(&options, hash);
            }
        }
}

/* Blocks begin where a shard does, so that they are those of the whole. */
TEST(stages_that_shard_agree) {
    for (size_t i = 0; i < N_OF(variants); i++) {
        toy_options_t options = run_of(&variants[i], 1, i % 2 ? ZR_DTYPE_BF16 : ZR_DTYPE_F32);
        uint64_t hash = toy_hash(&options);
        options.config.stage = 2;
        toy_expect_hash(&options, hash);
        options.config.stage = 3;
        toy_expect_hash(&options, hash);
        if (options.config.gather_encoding != ZR_MESSAGE_PLAIN)
            continue;
        options.config.stage = 0; /* where sums are gathered, and so encoded once more */
        assert_true((toy_hash(&options) == hash) == (options.config.shard_group_size == 1));
    }
}

TEST(they_change_weights_and_not_by_much) {
    for (size_t i = 0; i < N_OF(variants); i++) {
        toy_options_t options = run_of(&variants[i], 3, ZR_DTYPE_F32);
        toy_result_t plain, encoded;
        zr_config_set_optimizer(&options.config, &zr_sgd);
        options.config.adamw.lr = 0.01;
        toy_train_well(&options, &encoded);
        options.config.gather_encoding = options.config.reduce_encoding = ZR_MESSAGE_PLAIN;
        options.config.error_feedback = false;
        toy_train_well(&options, &plain);
        assert_true(plain.hash != encoded.hash);
        assert_float_equal((float)encoded.step.gradient_norm, (float)plain.step.gradient_norm,
                           0.15f * (float)plain.step.gradient_norm);
        for (int sample = 0; sample < TOY_N_SAMPLES; sample++)
            for (int elem = 0; elem < TOY_SAMPLE_ELEMS; elem++)
                assert_float_equal(plain.sample[sample][elem], encoded.sample[sample][elem], 0.02f);
    }
}

TEST(what_the_dtype_has_is_as_it_is) {
    toy_options_t options = toy_options_default(3, 3);
    options.config.dtype = ZR_DTYPE_BF16;
    uint64_t hash = toy_hash(&options);
    toy_set(&options, "gather-encoding=bf16 reduce-encoding=bf16");
    toy_expect_hash(&options, hash);
    options.n_ranks = 1;
    hash = toy_hash(&options);
    toy_set(&options, "gather-encoding=8bit reduce-encoding=4bit");
    toy_expect_hash(&options, hash); /* nobody is there to send anything to */
}

/* A step whose gradients are no numbers is skipped, and leaves nothing behind. */
TEST(values_that_are_none_are_noticed) {
    for (size_t i = 0; i < N_OF(variants); i++)
        for (int stage = 0; stage <= 3; stage++) {
            if (!ONE_OF(1, 3))
                continue;
            toy_options_t options = run_of(&variants[i], stage, ZR_DTYPE_F32);
            toy_result_t result;
            options.nan_step = 1;
            options.quiet = true;
            options.n_steps = 4;
            toy_train_well(&options, &result);
            assert_int_equal(result.step.n_skipped, 1);
            assert_true(isfinite(result.step.gradient_norm));
        }
}

/* What is saved in the middle changes a run with error feedback, which both begin anew there. */
static void expect_same_end(const variant_t *variant, int stage, bool frozen) {
    toy_options_t options = run_of(variant, stage, ZR_DTYPE_BF16);
    char path[128];
    options.frozen = frozen;
    options.n_steps = 5;
    options.save_to = saved;
    options.save_step = 2;
    uint64_t hash = toy_hash(&options);
    snprintf(path, sizeof(path), "%s/step-00000002", saved);
    options.restore_from = path;
    options.save_to = NULL;
    toy_expect_hash(&options, hash);
    empty(saved);
}

TEST(a_run_that_goes_on_is_the_same) {
    for (size_t i = 0; i < N_OF(variants); i++)
        for (int stage = 0; stage <= 3; stage++)
            if (ONE_OF(1, 3))
                expect_same_end(&variants[i], stage, i % 2 == 1);
}

/* ---- what is sent ---------------------------------------------------------------------------- */

static uint64_t bytes_of(zr_message_as_t as, uint64_t n_elems, uint64_t width) {
    switch (as) {
    case ZR_MESSAGE_PLAIN:
        break;
    case ZR_MESSAGE_BF16:
        return 2 * n_elems;
    case ZR_MESSAGE_8BIT:
        return n_elems / 256 * 260;
    case ZR_MESSAGE_4BIT:
        return n_elems / 64 * 34;
    }
    return width * n_elems;
}

/* The tables of docs/internals/architecture.md, of one unit's parameters with padding. */
static void expect_traffic(const toy_options_t *options) {
    toy_result_t result;
    toy_train_well(options, &result);
    const zr_config_t *config = &options->config;
    uint64_t n = (uint64_t)zr_config_n_shards(config, options->n_ranks);
    uint64_t r = (uint64_t)options->n_ranks / n, width = zr_dtype_size(config->dtype);
    uint64_t shard = result.size.trainable_padded_elems / n, k = options->n_steps;
    const zr_comm_count_t *within =
        result.traffic[r > 1 ? ZR_LEVEL_GROUP : ZR_LEVEL_ALL].count[ZR_TRAFFIC_MODEL];
    uint64_t part = (n - 1) * k * bytes_of(config->reduce_encoding, shard, width);
    uint64_t gathers = config->stage == 0 ? 0 : config->stage == 3 ? 2 : 1;
    uint64_t gathered = gathers * (n - 1) * k * bytes_of(config->gather_encoding, shard, width);
    assert_int_equal(within[ZR_ALL_TO_ALL].bytes_sent, n > 1 ? part : 0);
    assert_int_equal(within[ZR_ALL_GATHER].bytes_sent, gathered + (config->stage == 0 ? part : 0));
    assert_int_equal(within[ZR_ALL_REDUCE].bytes_sent, 0);
    assert_int_equal(within[ZR_REDUCE_SCATTER].bytes_sent, 0);
    if (r == 1)
        return;
    /* Each unit's slices are whole blocks. */
    const zr_comm_count_t *across = result.traffic[ZR_LEVEL_REPLICAS].count[ZR_TRAFFIC_MODEL];
    uint64_t least = (r - 1) * k * bytes_of(config->reduce_encoding, shard, width) / r;
    uint64_t most = least + (r - 1) * k * result.size.n_units * 260;
    assert_true(across[ZR_ALL_TO_ALL].bytes_sent >= least);
    assert_true(across[ZR_ALL_TO_ALL].bytes_sent < most);
    assert_int_equal(across[ZR_ALL_GATHER].bytes_sent, across[ZR_ALL_TO_ALL].bytes_sent);
    assert_int_equal(across[ZR_ALL_REDUCE].bytes_sent, 0);
}

TEST(traffic_follows_the_formulas) {
    for (size_t i = 0; i < N_OF(variants); i++)
        for (int stage = 0; stage <= 3; stage++) {
            toy_options_t options = run_of(&variants[i], stage, ZR_DTYPE_F32);
            if (options.config.reduce_encoding != ZR_MESSAGE_PLAIN && ONE_OF(1, 3))
                expect_traffic(&options);
        }
}

/* ---- what is refused ------------------------------------------------------------------------- */

TEST(promises_are_not_mixed_with_it) {
    toy_options_t options = toy_options_default(1, 2);
    toy_set(&options, "reduce-encoding=8bit reduce=every-micro-batch");
    toy_expect_error(&options, ZR_ERR_ARGUMENT, "--reduce-encoding");
    options = toy_options_default(1, 2);
    toy_set(&options, "reduce-encoding=8bit");
    options.config.reduce_encoding = (zr_message_as_t)9;
    toy_expect_error(&options, ZR_ERR_ARGUMENT, "reduce_encoding");
}

const test_group_t test_group = {make_folder_in_memory, remove_folder};
