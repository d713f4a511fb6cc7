/*
 * The schedule, with a model of a user's own: its gradients against an oracle, and the same bits at
 * every stage, with recomputation, wherever activations wait, and in another order of the step.
 */
#include "tests/common/ranks.h"
#include "tests/common/test.h"
#include "tests/package/outside/own_model.h"

enum { N_MIDS = 3, N_PARAMS = 2 + N_MIDS, N_STEPS = 3, ACCUM = 3, B = 2, T = 4, ROWS = B * T };

typedef struct run_case {
    int stage;
    zr_reduce_t reduce;
    own_options_t model;
    bool by_blocks;   /* each block works on all micro-batches before the next */
    bool evaluates;   /* between steps */
    bool drops;       /* each step is begun, given up and begun again */
    bool in_backward; /* units are updated there */
    bool on_drives;   /* the optimizer's state and gradients wait there */
    double clip;
    uint64_t hash;    /* out */
    double loss;      /* out, of rank 0: of the last step */
    size_t n_gathers; /* out, of rank 0 */
} run_case_t;

static void make_values(int rank, size_t step, size_t micro_batch, float *inputs, float *targets) {
    for (size_t i = 0; i < ROWS; i++) {
        double at = (double)(i + 7 * micro_batch + 29 * step) + 3.7 * rank;
        inputs[i] = (float)(0.6 * sin(at));
        targets[i] = (float)(0.5 * cos(1.3 * at));
    }
}

static zr_status_t train_step(test_rank_t *rank, const run_case_t *c, zr_model_t *model,
                              size_t step) {
    float values[ACCUM][2][ROWS];
    zr_host_batch_t batches[ACCUM];
    for (size_t i = 0; i < ACCUM; i++) {
        make_values(rank->rank, step, i, values[i][0], values[i][1]);
        batches[i] = (zr_host_batch_t){B, T, {values[i][0], values[i][1]}};
    }
    return zr_model_train(model, batches, ACCUM);
}

/* Other values: nothing of them may be left. */
static zr_status_t give_up(test_rank_t *rank, zr_model_t *model, size_t step, bool by_blocks) {
    float inputs[ROWS], targets[ROWS];
    zr_host_batch_t batch = {B, T, {inputs, targets}};
    const zr_host_batch_t all[ACCUM] = {batch, batch, batch};
    make_values(rank->rank, step, 55, inputs, targets);
    if (by_blocks)
        ZR_TRY(zr_model_train(model, all, ACCUM));
    for (size_t i = 0; i + 1 < ACCUM && !by_blocks; i++) {
        make_values(rank->rank, step, 55 + i, inputs, targets);
        ZR_TRY(zr_model_train(model, &batch, 1));
    }
    return zr_model_drop_step(model);
}

static zr_status_t train(test_rank_t *rank, run_case_t *c, zr_runtime_t *runtime,
                         zr_model_t *model) {
    double loss;
    for (size_t step = 0; step < N_STEPS; step++) {
        if (c->drops)
            ZR_TRY(give_up(rank, model, step, c->by_blocks));
        ZR_TRY(train_step(rank, c, model, step));
        ZR_TRY(zr_model_take_loss(model, &loss));
        ZR_TRY(zr_runtime_step(runtime, NULL));
        float inputs[ROWS], targets[ROWS];
        make_values(rank->rank, step, 77, inputs, targets);
        zr_host_batch_t batch = {B, T, {inputs, targets}};
        double evaluated;
        if (c->evaluates)
            ZR_TRY(zr_model_evaluate(model, &batch, &evaluated));
    }
    if (rank->rank == 0)
        c->loss = loss;
    return ZR_OK;
}

static zr_status_t run_rank(test_rank_t *rank) {
    run_case_t *c = rank->context;
    zr_config_t config = zr_config_default();
    config.stage = c->stage;
    config.reduce = c->reduce;
    config.order = c->by_blocks ? ZR_ORDER_BLOCK : ZR_ORDER_MICRO_BATCH;
    config.micro_batch = B;
    config.grad_accum = ACCUM;
    config.nvme.store = "memory";
    memcpy(config.nvme.paths, "x", 2);
    config.check_overflow = !c->in_backward || c->stage == 3;
    config.clip = c->clip;
    config.update_at = c->in_backward ? ZR_UPDATE_AT_BACKWARD : ZR_UPDATE_AT_END;
    if (c->on_drives)
        config.offload_optimizer.device = config.offload_optimizer.gradients = ZR_OFFLOAD_NVME;
    zr_runtime_t *runtime = NULL;
    zr_model_t *model = NULL;
    ZR_TRY(zr_config_resolve(&config, zr_comm_n_ranks(rank->comm), &rank->log));
    ZR_TRY(zr_runtime_create(&config, rank->comm, rank->device, &rank->log, &runtime));
    zr_status_t status = own_model_create(runtime, &c->model, &model);
    uint64_t hash = 0;
    ZR_THEN(status, zr_model_commit(model));
    ZR_THEN(status, train(rank, c, runtime, model));
    ZR_THEN(status, zr_runtime_weights_xxh3(runtime, &hash));
    if (rank->rank == 0) {
        zr_comm_statistics_t statistics;
        zr_comm_statistics(rank->comm, &statistics);
        c->n_gathers = statistics.count[ZR_TRAFFIC_MODEL][ZR_ALL_GATHER].n_calls;
        c->hash = hash;
    }
    zr_model_destroy(&model);
    zr_runtime_destroy(&runtime);
    return status;
}

static run_case_t run_case(int n_ranks, run_case_t c) {
    c.model.n_mids = N_MIDS;
    c.model.most_rows = ROWS;
    test_ranks_t ranks = {.n_ranks = n_ranks, .run = run_rank, .context = &c};
    test_run_ranks(&ranks);
    for (int i = 0; i < n_ranks; i++)
        assert_int_equal(ranks.status[i], ZR_OK);
    return c;
}

static void assert_same(const run_case_t *a, const run_case_t *b) {
    assert_int_equal(a->hash, b->hash);
    assert_true(a->loss == b->loss);
}

/* ---- the oracle ------------------------------------------------------------------------------ */

static void read_params(zr_model_t *model, double *params) {
    for (size_t i = 0; i < N_PARAMS; i++) {
        float values[OWN_WIDTH];
        assert_ok(zr_param_read(own_model_param(model, i), 0, OWN_WIDTH, values));
        for (size_t c = 0; c < OWN_WIDTH; c++)
            params[i * OWN_WIDTH + c] = values[c];
    }
}

static void compare_gradients(zr_model_t *model, const double *expected) {
    for (size_t i = 0; i < N_PARAMS; i++) {
        zr_unit_t *unit = zr_block_unit(zr_model_block(model, i < 2 ? 0 : i - 1));
        void *gradient;
        bool adds;
        assert_ok(zr_unit_acquire(unit, ZR_GRADIENTS));
        assert_ok(zr_param_grad(own_model_param(model, i), &gradient, &adds));
        assert_true(adds); /* the model has written it */
        for (size_t c = 0; c < OWN_WIDTH; c++) {
            double value = ((const float *)gradient)[c], want = expected[i * OWN_WIDTH + c];
            if (!(fabs(value - want) <= 1e-5 * (fabs(want) + 0.1)))
                fail_msg("parameter %zu, %zu: gradient %.8g instead of %.8g", i, c, value, want);
        }
        assert_ok(zr_unit_release(unit));
    }
}

/* Of two micro-batches of a step of three: gradients add up, and no rank has met another. */
static zr_status_t check_oracle(test_rank_t *rank) {
    zr_config_t config = zr_config_default();
    config.micro_batch = B;
    config.grad_accum = 3;
    zr_runtime_t *runtime = NULL;
    zr_model_t *model = NULL;
    own_options_t options = {.n_mids = N_MIDS};
    assert_ok(zr_config_resolve(&config, 1, &rank->log));
    assert_ok(zr_runtime_create(&config, rank->comm, rank->device, &rank->log, &runtime));
    assert_ok(own_model_create(runtime, &options, &model));
    assert_ok(zr_model_commit(model));
    double params[N_PARAMS * OWN_WIDTH], gradients[N_PARAMS * OWN_WIDTH] = {0}, expected = 0, loss;
    read_params(model, params);
    for (size_t i = 0; i < 2; i++) {
        float inputs[ROWS], targets[ROWS];
        make_values(0, 0, i, inputs, targets);
        zr_host_batch_t batch = {B, T, {inputs, targets}};
        expected += own_model_oracle(N_MIDS, params, inputs, targets, ROWS, gradients) / 2;
        assert_ok(zr_model_train(model, &batch, 1));
    }
    assert_ok(zr_model_take_loss(model, &loss));
    assert_true(fabs(loss - expected) <= 1e-6 * expected);
    assert_ok(zr_runtime_begin_micro_batch(runtime));
    compare_gradients(model, gradients);
    zr_model_destroy(&model);
    zr_runtime_destroy(&runtime);
    return ZR_OK;
}

TEST(gradients_are_the_oracles) {
    test_ranks_t ranks = {.n_ranks = 1, .run = check_oracle};
    test_run_ranks(&ranks);
    assert_int_equal(ranks.status[0], ZR_OK);
}

/* ---- equal bits ------------------------------------------------------------------------------ */

TEST(stages_have_the_same_bits) {
    for (int n_ranks = 1; n_ranks <= 3; n_ranks++) {
        run_case_t first = run_case(n_ranks, (run_case_t){.reduce = ZR_REDUCE_EVERY_MICRO_BATCH});
        for (int stage = 0; stage <= 3; stage++) {
            run_case_t c = {.stage = stage, .reduce = ZR_REDUCE_EVERY_MICRO_BATCH};
            for (int variant = 0; variant < 8; variant++) {
                if (!ONE_OF(1, 3))
                    continue;
                c.on_drives = variant == 7;
                c.model.activations = variant == 2   ? ZR_OFFLOAD_CPU
                                      : variant == 3 ? ZR_OFFLOAD_NVME
                                                     : ZR_OFFLOAD_NONE;
                c.evaluates = variant == 4;
                c.drops = variant > 4;
                c.model.recompute = variant > 0 && variant != 5;
                run_case_t done = run_case(n_ranks, c);
                assert_same(&first, &done);
            }
        }
    }
}

/* All micro-batches through one block before the next: gradients add up before ranks meet, at every
 * stage, as at stage 0, or ranks meet for each micro-batch. Parameters are gathered once per pass.
 */
TEST(another_order_has_the_bits_of_stage_0) {
    for (int variant = 0; variant < 3 * 2; variant++) {
        int n_ranks = 1 + variant / 2;
        zr_reduce_t reduce = variant % 2 == 0 ? ZR_REDUCE_AUTO : ZR_REDUCE_EVERY_MICRO_BATCH;
        double clip = n_ranks == 2 ? 0.05 : 0;
        run_case_t first =
            run_case(n_ranks, (run_case_t){.stage = 0, .reduce = reduce, .clip = clip});
        for (int stage = 0; stage <= 3; stage++) {
            for (int memory = 0; memory < 4; memory++) {
                if (!ONE_OF(1, 5))
                    continue;
                run_case_t c = {.stage = stage,
                                .reduce = reduce,
                                .clip = clip,
                                .by_blocks = true,
                                .model = {.recompute = memory > 0}};
                c.model.activations = memory == 2   ? ZR_OFFLOAD_CPU
                                      : memory == 3 ? ZR_OFFLOAD_NVME
                                                    : ZR_OFFLOAD_NONE;
                c.evaluates = memory % 2 == 1;
                c.drops = memory == 2;
                run_case_t by_blocks = run_case(n_ranks, c);
                assert_same(&first, &by_blocks);
                c.on_drives = true;
                c.in_backward = stage >= 2 && memory % 2 == 1;
                run_case_t on_drives = run_case(n_ranks, c);
                assert_same(&first, &on_drives);
                c.by_blocks = c.on_drives = c.in_backward = false;
                run_case_t plain = run_case(n_ranks, c);
                if (stage == 3 && n_ranks > 1 && !c.evaluates && !c.drops)
                    assert_int_equal(plain.n_gathers, ACCUM * by_blocks.n_gathers);
            }
        }
    }
}

/* Frozen parameters have no gradient, and what comes before the first trained keeps nothing. */
TEST(frozen_parameters_stay) {
    static const char *const lists[] = {"in", "mid.1", "in.b,mid.0", "in,mid.0,mid.1"};
    for (size_t i = 0; i < N_OF(lists); i++) {
        run_case_t c = {.reduce = ZR_REDUCE_EVERY_MICRO_BATCH, .model = {.freeze = lists[i]}};
        run_case_t first = run_case(2, c);
        c.stage = 3;
        c.model.recompute = true;
        c.model.activations = ZR_OFFLOAD_CPU;
        run_case_t sharded = run_case(2, c);
        assert_same(&first, &sharded);
        c.model.freeze = NULL;
        run_case_t trained = run_case(2, c);
        assert_true(trained.hash != first.hash);
    }
}

/* ---- refusals -------------------------------------------------------------------------------- */

static zr_status_t check_refusals(test_rank_t *rank) {
    zr_config_t config = zr_config_default();
    config.grad_accum = 2;
    zr_runtime_t *runtime = NULL;
    zr_model_t *model = NULL;
    own_options_t options = {.n_mids = 1, .activations = ZR_OFFLOAD_CPU};
    float values[ROWS] = {0};
    zr_host_batch_t batches[3] = {
        {1, 4, {values, values}}, {1, 4, {values, values}}, {1, 0, {values, values}}};
    double loss;
    assert_ok(zr_config_resolve(&config, 1, &rank->log));
    assert_ok(zr_runtime_create(&config, rank->comm, rank->device, &rank->log, &runtime));
    assert_int_equal(own_model_create(runtime, &options, &model), ZR_ERR_ARGUMENT);
    assert_null(model);
    options.activations = ZR_OFFLOAD_NONE;
    assert_ok(own_model_create(runtime, &options, &model));
    zr_block_t *in = zr_model_block(model, 0), *mid = zr_model_block(model, 1);
    assert_null(zr_model_block(model, 3));
    assert_int_equal(zr_block_use(in, mid), ZR_ERR_ARGUMENT);
    assert_int_equal(zr_model_train(model, batches, 1), ZR_ERR_STATE);
    assert_ok(zr_model_commit(model));
    assert_int_equal(zr_model_commit(model), ZR_ERR_STATE);
    assert_int_equal(zr_model_take_loss(model, &loss), ZR_ERR_STATE);
    assert_int_equal(zr_model_train(model, batches, 0), ZR_ERR_ARGUMENT);
    assert_int_equal(zr_model_train(model, batches, 3), ZR_ERR_ARGUMENT);
    assert_int_equal(zr_model_train(model, &batches[2], 1), ZR_ERR_ARGUMENT);
    assert_ok(zr_model_evaluate(model, batches, &loss));
    assert_ok(zr_model_drop_step(model)); /* none was begun */
    assert_ok(zr_model_train(model, batches, 1));
    assert_ok(zr_model_drop_step(model));
    assert_int_equal(zr_model_take_loss(model, &loss), ZR_ERR_STATE);
    assert_ok(zr_model_train(model, batches, 1));
    assert_int_equal(zr_model_evaluate(model, batches, &loss), ZR_ERR_STATE); /* in a step */
    assert_int_equal(zr_model_train(model, batches, 2), ZR_ERR_ARGUMENT);     /* one is left */
    assert_ok(zr_model_train(model, batches, 1));
    assert_ok(zr_model_drop_step(model)); /* it was the last */
    zr_model_destroy(&model);
    zr_runtime_destroy(&runtime);
    return ZR_OK;
}

/* Where no gradients are kept, the micro-batches of a step begin together. */
static zr_status_t check_beginnings(test_rank_t *rank) {
    zr_config_t config = zr_config_default();
    config.stage = 2;
    config.grad_accum = 2;
    config.order = ZR_ORDER_BLOCK;
    config.check_overflow = false;
    config.update_at = ZR_UPDATE_AT_BACKWARD;
    zr_runtime_t *runtime = NULL;
    zr_model_t *model = NULL;
    own_options_t options = {.n_mids = 1, .most_rows = ROWS};
    assert_ok(zr_config_resolve(&config, 1, &rank->log));
    assert_ok(zr_runtime_create(&config, rank->comm, rank->device, &rank->log, &runtime));
    assert_ok(own_model_create(runtime, &options, &model));
    assert_ok(zr_model_commit(model));
    assert_int_equal(zr_runtime_begin_micro_batch(runtime), ZR_ERR_ARGUMENT);
    float values[ROWS] = {0};
    zr_host_batch_t batches[2] = {{B, T, {values, values}}, {B, T, {values, values}}};
    assert_ok(zr_model_train(model, batches, 2));
    assert_int_equal(zr_runtime_drop_step(runtime), ZR_ERR_STATE); /* units are updated */
    assert_ok(zr_runtime_step(runtime, NULL));
    zr_model_destroy(&model);
    zr_runtime_destroy(&runtime);
    return ZR_OK;
}

TEST(micro_batches_without_kept_gradients_begin_together) {
    test_ranks_t ranks = {.n_ranks = 1, .run = check_beginnings, .quiet = true};
    test_run_ranks(&ranks);
    assert_int_equal(ranks.status[0], ZR_OK);
}

TEST(wrong_calls_are_refused) {
    test_ranks_t ranks = {.n_ranks = 1, .run = check_refusals, .quiet = true};
    test_run_ranks(&ranks);
    assert_int_equal(ranks.status[0], ZR_OK);
}

/* ---- transfers while a block computes -------------------------------------------------------- */

static _Thread_local struct {
    bool is_computing;
    size_t n_seen; /* while it is */
} progress;

WRAP(void, zr_store_progress, zr_store_t *store) {
    progress.n_seen += progress.is_computing;
    __real_zr_store_progress(store);
}

static void nothing(const void *args) {
    (void)args;
}

/* Kernels, until the drive is seen to, which happens after 0.2 ms of them. */
static zr_status_t compute_until_seen(zr_visit_t *visit) {
    const zr_own_kernel_t kernel = {.name = "nothing", .host = nothing};
    progress.is_computing = true;
    for (size_t i = 0; i < 100000000 && progress.n_seen < 2; i++)
        ZR_TRY(zr_kernel_own(visit->stream, &kernel, NULL, 0, (zr_cost_t){0}));
    progress.is_computing = false;
    return ZR_OK;
}

static zr_status_t declare_one(zr_block_t *block, const void *shape, void *self) {
    zr_param_t *param;
    (void)shape, (void)self;
    return zr_block_add_param(block, &(zr_block_param_t){.name = "w", .n_dims = 1, .dims = {8}},
                              &param);
}

static zr_status_t watch_progress(test_rank_t *rank) {
    static const zr_block_type_t type = {.name = "one",
                                         .declare = declare_one,
                                         .forward = compute_until_seen,
                                         .backward = compute_until_seen};
    zr_config_t config = zr_config_default();
    config.stage = 3;
    config.offload_param.device = ZR_OFFLOAD_NVME;
    config.nvme.store = "memory";
    memcpy(config.nvme.paths, "x", 2);
    zr_runtime_t *runtime = NULL;
    zr_model_t *model = NULL;
    zr_model_options_t options = {.inputs = {{"input", sizeof(float), 0}},
                                  .n_inputs = 1,
                                  .activations = {.most_rows = 1},
                                  .x_row_bytes = sizeof(float)};
    float value = 0;
    double loss;
    assert_ok(zr_config_resolve(&config, 1, &rank->log));
    assert_ok(zr_runtime_create(&config, rank->comm, rank->device, &rank->log, &runtime));
    assert_ok(zr_model_create(runtime, &options, &model));
    assert_ok(zr_model_add(model, &type, "one", NULL));
    assert_ok(zr_model_commit(model));
    progress.n_seen = 0;
    assert_ok(zr_model_evaluate(model, &(zr_host_batch_t){1, 1, {&value}}, &loss));
    zr_model_destroy(&model);
    zr_runtime_destroy(&runtime);
    return ZR_OK;
}

TEST(transfers_go_on_while_a_block_computes) {
    test_ranks_t ranks = {.n_ranks = 1, .run = watch_progress, .quiet = true};
    test_run_ranks(&ranks);
    assert_int_equal(ranks.status[0], ZR_OK);
    assert_int_equal(progress.n_seen, 2);
}
