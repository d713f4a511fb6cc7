/* What a group's parameters share can change between updates, on all ranks alike. */
#include "tests/common/ranks.h"
#include "tests/common/test.h"
#include "zero/zero.h"

enum { N = 8 };

typedef struct seen {
    int stray; /* this rank gives another number; -1: none */
    float values[2][4];
} seen_t;

static void ignore(void *context, zr_log_level_t level, int rank, const char *message) {
    (void)context, (void)level, (void)rank, (void)message;
}

static void fill(void *context, size_t first, size_t n_elems, float *values) {
    (void)context, (void)first;
    for (size_t i = 0; i < n_elems; i++)
        values[i] = 1;
}

/* All gradients are 1. */
static zr_status_t step(zr_runtime_t *runtime, zr_unit_t *unit, zr_param_t **params) {
    ZR_TRY(zr_runtime_begin_micro_batch(runtime));
    ZR_TRY(zr_unit_acquire(unit, ZR_BACKWARD));
    for (int p = 0; p < 2; p++) {
        void *grad = NULL;
        ZR_TRY(zr_param_grad(params[p], &grad, NULL));
        for (int i = 0; i < N; i++)
            ((float *)grad)[i] += 1;
    }
    ZR_TRY(zr_unit_reduce(unit));
    ZR_TRY(zr_unit_release(unit));
    return zr_runtime_step(runtime, NULL);
}

static zr_status_t look(zr_param_t **params, float values[2][4], int at) {
    for (int p = 0; p < 2; p++) {
        float all[N];
        ZR_TRY(zr_param_read(params[p], 0, N, all));
        values[p][at] = all[N - 1];
    }
    return ZR_OK;
}

static zr_status_t train(zr_rank_t *rank) {
    seen_t *seen = rank->context;
    float values[2][4];
    zr_unit_t *unit;
    zr_param_t *params[2];
    int group;
    const zr_group_t second = {"second", 0, 0.5};
    ZR_TRY(zr_runtime_add_group(rank->runtime, &second, &group));
    ZR_TRY(zr_runtime_add_unit(rank->runtime, "u", &unit));
    for (int p = 0; p < 2; p++) {
        zr_param_desc_t desc = {.name = p == 0 ? "a" : "b",
                                .n_dims = 1,
                                .dims = {N},
                                .group = p == 0 ? 0 : group,
                                .fill = fill};
        ZR_TRY(zr_unit_add_param(unit, &desc, &params[p]));
    }
    if (zr_runtime_change_group(rank->runtime, group, 0, 1) != ZR_ERR_STATE)
        return ZR_ERR_STATE;
    ZR_TRY(zr_runtime_commit(rank->runtime));
    ZR_TRY(step(rank->runtime, unit, params));
    ZR_TRY(look(params, values, 0));
    ZR_TRY(
        zr_runtime_change_group(rank->runtime, group, 0, rank->rank == seen->stray ? 0.125 : 0.25));
    ZR_TRY(step(rank->runtime, unit, params));
    ZR_TRY(look(params, values, 1));
    ZR_TRY(zr_runtime_change_group(rank->runtime, 0, 0, 0));
    ZR_TRY(zr_runtime_change_group(rank->runtime, group, 1, 0.5));
    ZR_TRY(step(rank->runtime, unit, params));
    ZR_TRY(look(params, values, 2));
    if (zr_runtime_change_group(rank->runtime, 2, 0, 1) != ZR_ERR_ARGUMENT ||
        zr_runtime_change_group(rank->runtime, 1, 0, -1) != ZR_ERR_ARGUMENT ||
        zr_runtime_change_group(rank->runtime, 1, 1e39, 1) != ZR_ERR_ARGUMENT)
        return ZR_ERR_STATE;
    ZR_TRY(step(rank->runtime, unit, params)); /* a call that is refused changes nothing */
    ZR_TRY(look(params, values, 3));
    if (rank->rank == 0)
        memcpy(seen->values, values, sizeof(values));
    return ZR_OK;
}

static zr_config_t config_of(int stage) {
    zr_config_t config = zr_config_default();
    config.stage = stage;
    config.optimizer = ZR_OPTIMIZER_SGD;
    config.adamw.lr = 0.5;
    return config;
}

TEST(groups_change) {
    for (int stage = 0; stage <= 3; stage++) {
        seen_t seen = {.stray = -1};
        zr_config_t config = config_of(stage);
        zr_run_options_t options = zr_run_options_default();
        options.log.sink = ignore;
        assert_ok(zr_run_ranks(&config, 2, train, &seen, &options));
        /* 0.5 times the scale is taken; SGD's decay is added to the gradient. */
        const float first[4] = {0.5F, 0, 0, 0};
        float second[4] = {0.75F, 0.625F};
        second[2] = second[1] - 0.25F * (1 + second[1]);
        second[3] = second[2] - 0.25F * (1 + second[2]);
        for (int i = 0; i < 4; i++) {
            assert_true(seen.values[0][i] == first[i]);
            assert_true(seen.values[1][i] == second[i]);
        }
    }
}

/* Two groups of SGD, each with its own momentum, that changes at the third step. */
static zr_status_t train_with_momentum(zr_rank_t *rank) {
    seen_t *seen = rank->context;
    zr_unit_t *unit;
    zr_param_t *params[2];
    int group;
    float values[2][4];
    const zr_group_t second = {"second", 0, 1};
    ZR_TRY(zr_runtime_add_group(rank->runtime, &second, &group));
    ZR_TRY(zr_runtime_add_unit(rank->runtime, "u", &unit));
    for (int p = 0; p < 2; p++) {
        zr_param_desc_t desc = {.name = p == 0 ? "a" : "b",
                                .n_dims = 1,
                                .dims = {N},
                                .group = p == 0 ? 0 : group,
                                .fill = fill};
        ZR_TRY(zr_unit_add_param(unit, &desc, &params[p]));
    }
    if (zr_runtime_change_hyper(rank->runtime, group, "momentum", 0.5) != ZR_ERR_STATE)
        return ZR_ERR_STATE;
    ZR_TRY(zr_runtime_commit(rank->runtime));
    ZR_TRY(zr_runtime_change_hyper(rank->runtime, group, "momentum",
                                   rank->rank == seen->stray ? 0.25 : 0.5));
    for (int i = 0; i < 3; i++) {
        if (i == 2)
            ZR_TRY(zr_runtime_change_hyper(rank->runtime, group, "momentum", 0.25));
        if (zr_runtime_change_hyper(rank->runtime, group, "momentum", 1) != ZR_ERR_ARGUMENT ||
            zr_runtime_change_hyper(rank->runtime, 0, "beta1", 0.5) != ZR_ERR_ARGUMENT ||
            zr_runtime_change_hyper(rank->runtime, 2, "momentum", 0.5) != ZR_ERR_ARGUMENT)
            return ZR_ERR_STATE;
        ZR_TRY(step(rank->runtime, unit, params));
        ZR_TRY(look(params, values, i));
    }
    if (rank->rank == 0)
        memcpy(seen->values, values, sizeof(values));
    return ZR_OK;
}

TEST(hyperparameters_of_a_group_change) {
    /* The running sums are 1, 1 and 1 without momentum; 1, 0.5 + 1 and 0.25 * 1.5 + 1 with it. */
    const float expected[2][3] = {{0.5F, 0, -0.5F}, {0.5F, -0.25F, -0.9375F}};
    for (int stage = 0; stage <= 3; stage++) {
        seen_t seen = {.stray = -1};
        zr_config_t config = config_of(stage);
        config.adamw.weight_decay = 0;
        zr_run_options_t options = zr_run_options_default();
        options.log.sink = ignore;
        assert_ok(zr_run_ranks(&config, 2, train_with_momentum, &seen, &options));
        for (int p = 0; p < 2; p++)
            for (int i = 0; i < 3; i++)
                assert_true(seen.values[p][i] == expected[p][i]);
    }
    seen_t seen = {.stray = 1};
    zr_config_t config = config_of(1);
    zr_run_options_t options = zr_run_options_default();
    options.log.sink = ignore;
    assert_int_equal(zr_run_ranks(&config, 2, train_with_momentum, &seen, &options), ZR_ERR_COMM);
    assert_has(zr_last_error(),
               "rank 1 gives parameter group 1 momentum 0.25; rank 0 gives group 1");
}

TEST(ranks_that_differ_are_named) {
    seen_t seen = {.stray = 1};
    zr_config_t config = config_of(1);
    zr_run_options_t options = zr_run_options_default();
    options.log.sink = ignore;
    assert_int_equal(zr_run_ranks(&config, 2, train, &seen, &options), ZR_ERR_COMM);
    assert_has(zr_last_error(), "rank 1 gives parameter group 1 weight_decay 0 and lr_scale 0.125");
}
