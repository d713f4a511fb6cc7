/*
 * Groups of ranks that take steps of their own and meet in outer steps: all ranks have the same
 * weights when they have met, at every stage, on every placement and device, and where a run goes
 * on from a checkpoint; between groups goes what the formula says; and a mean of groups that meet
 * in each step is a step of all ranks, but for rounding.
 */
#include "tests/common/test.h"
#include "tests/zero/checkpoint/folder_fixture.h"
#include "tests/zero/toy.h"

static char saved_again[96];

static toy_options_t run_of(int stage, int n_ranks, int group, const char *more) {
    toy_options_t options = toy_options_default(stage, n_ranks);
    options.n_steps = 6;
    options.config.dtype = (stage + n_ranks) % 2 ? ZR_DTYPE_BF16 : ZR_DTYPE_F32;
    toy_set(&options, "outer-every=3 shard-group-size=%d", group);
    if (more[0] != '\0')
        toy_set(&options, "%s", more);
    return options;
}

/* Its weights are compared between groups when they have met, which they have after six steps. */
TEST(ways_change_nothing) {
    static const char *const ways[] = {
        "prefetch=0 overlap-comm=off", "offload-optimizer=cpu sub-group=1024",
        "offload-optimizer=nvme sub-group=1024 nvme-path=x", "memory-plan=off",
        "check-overflow=off clip=0 update-at=backward"};
    static const int shapes[][2] = {{4, 2}, {3, 1}, {6, 2}};
    for (size_t i = 0; i < N_OF(shapes); i++) {
        toy_options_t options = run_of(0, shapes[i][0], shapes[i][1], "");
        options.config.dtype = i % 2 ? ZR_DTYPE_BF16 : ZR_DTYPE_F32;
        uint64_t hash = toy_hash(&options);
        for (int stage = 0; stage <= 3; stage++) {
            toy_options_t other = options;
            other.config.stage = stage;
            toy_expect_hash(&other, hash);
            other.late = true;
            toy_expect_hash(&other, hash);
            for (size_t way = (i + (size_t)stage) % 2; way < N_OF(ways); way += 2) {
                other = options;
                other.config.stage = stage;
                other.config.nvme.store = "memory";
                if (stage < 2 && strstr(ways[way], "backward") != NULL)
                    continue;
                toy_set(&other, "%s", ways[way]);
                toy_expect_hash(&other, hash);
            }
        }
        options.config.stage = 3;
        options.config.nvme.store = "memory";
        toy_set(&options, "offload-params=nvme offload-optimizer=nvme nvme-path=x");
        toy_expect_hash(&options, hash);
        options.config.outer_every = 0;
        assert_true(toy_hash(&options) != hash);
    }
}

/* SGD moves by the gradient: the mean of what groups have moved by is what all together would. */
TEST(a_mean_of_groups_that_always_meet_is_a_step) {
    for (int stage = 0; stage <= 3; stage++) {
        toy_options_t options = toy_options_default(stage, 4);
        toy_result_t plain, outer;
        options.config.shard_group_size = 2;
        options.n_steps = 4;
        zr_config_set_optimizer(&options.config, &zr_sgd);
        options.config.adamw.lr = 0.01;
        toy_train_well(&options, &plain);
        toy_set(&options, "outer-every=1 outer-lr=1 outer-momentum=0");
        toy_train_well(&options, &outer);
        for (int i = 0; i < TOY_N_SAMPLES; i++)
            for (int elem = 0; elem < TOY_SAMPLE_ELEMS; elem++)
                assert_float_equal(plain.sample[i][elem], outer.sample[i][elem], 1e-6f);
        options.config.outer_momentum = 0.9; /* Nesterov's: more than the mean, from the first on */
        toy_train_well(&options, &outer);
        assert_true(fabsf(plain.sample[0][0] - outer.sample[0][0]) > 1e-4f);
    }
}

/* Saving lets groups meet early, here after two of three steps, and makes their moments equal. */
TEST(a_run_that_goes_on_is_the_same) {
    static const char *const more[] = {"", "state=8bit", "reduce-encoding=8bit error-feedback=on",
                                       "offload-optimizer=cpu sub-group=1024 state=bf16"};
    for (int stage = 0; stage <= 3; stage++) {
        toy_options_t options = run_of(stage, 4, 2, more[stage]);
        char path[128];
        options.n_steps = 8;
        options.save_to = saved;
        options.save_step = 2;
        uint64_t hash = toy_hash(&options);
        snprintf(path, sizeof(path), "%s/step-00000002", saved);
        options.restore_from = path;
        options.save_to = saved_again; /* where the other has, too, they meet at the end */
        options.save_step = 0;
        toy_expect_hash(&options, hash);
        empty(saved);
        empty(saved_again);
    }
}

/* A checkpoint without what outer steps keep is gone on from, and the other way round. */
TEST(they_begin_and_end_with_a_run) {
    toy_options_t options = run_of(2, 4, 2, "");
    toy_result_t result;
    options.n_steps = 3;
    options.save_to = saved;
    options.config.outer_every = 0;
    toy_train_well(&options, &result);
    options.restore_from = saved;
    options.save_to = NULL;
    options.n_steps = 6;
    options.config.outer_every = 3;
    toy_train_well(&options, &result);
    empty(saved);
    options.restore_from = NULL;
    options.save_to = saved;
    toy_train_well(&options, &result);
    options.restore_from = saved;
    options.save_to = NULL;
    options.config.outer_every = 0;
    options.n_steps = 7;
    toy_train_well(&options, &result);
    empty(saved);
}

TEST(traffic_follows_the_formula) {
    for (int stage = 0; stage <= 3; stage++) {
        toy_options_t options = run_of(stage, 4, 2, "");
        toy_result_t result;
        toy_train_well(&options, &result);
        const zr_comm_count_t *across = result.traffic[ZR_LEVEL_REPLICAS].count[ZR_TRAFFIC_MODEL];
        uint64_t shard = result.size.trainable_padded_elems / 2;
        assert_int_equal(across[ZR_ALL_REDUCE].elems_sent, 2 * 2 * shard / 2);
        assert_int_equal(across[ZR_ALL_GATHER].elems_sent, 0);
    }
}

TEST(one_group_has_no_steps_of_its_own) {
    toy_options_t options = toy_options_default(1, 2);
    toy_set(&options, "outer-every=4");
    toy_expect_error(&options, ZR_ERR_ARGUMENT, "--shard-group-size");
    toy_set(&options, "shard-group-size=2");
    toy_expect_error(&options, ZR_ERR_ARGUMENT, "--outer-every");
}

static int make_folders(void **state) {
    int made = make_folder_in_memory(state);
    snprintf(saved_again, sizeof(saved_again), "%s/b", folder);
    return made;
}

const test_group_t test_group = {make_folders, remove_folder};
