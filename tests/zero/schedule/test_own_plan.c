/*
 * A model of a user's own is planned to the byte, placed and searched for like any other.
 */
#include "tests/common/kept_log.h"
#include "tests/common/ranks.h"
#include "tests/common/test.h"
#include "tests/package/outside/own_model.h"

enum { N_MIDS = 4, N_STEPS = 3, B = 3, T = 64, ROWS = B * T };

typedef struct own_run {
    zr_config_t config;
    own_options_t model;
    zr_tier_statistics_t tiers[2]; /* out, of rank 0 */
} own_run_t;

/* ---- a maker --------------------------------------------------------------------------------- */

static zr_status_t make(const void *context, zr_runtime_t *runtime,
                        const zr_activation_options_t *activations, zr_model_t **model_p) {
    own_options_t options = *(const own_options_t *)context;
    options.recompute = activations->recompute;
    options.activations = activations->device;
    options.most_rows = activations->most_rows;
    return own_model_create(runtime, &options, model_p);
}

static zr_model_maker_t maker_of(const own_options_t *options) {
    zr_model_maker_t maker = {.make = make};
    memcpy(maker.context, options, sizeof(*options));
    return maker;
}

static zr_run_request_t request_of(const own_run_t *run, int n_ranks) {
    return (zr_run_request_t){.model = maker_of(&run->model),
                              .config = run->config,
                              .recompute = run->model.recompute,
                              .activations = run->model.activations,
                              .seq = T,
                              .n_steps = N_STEPS,
                              .n_ranks = n_ranks,
                              .hardware = zr_hardware_default(),
                              .log = {.sink = drop_message, .level = ZR_LOG_ERROR}};
}

/* ---- the run --------------------------------------------------------------------------------- */

static zr_status_t train(zr_runtime_t *runtime, zr_model_t *model, size_t grad_accum) {
    float values[ROWS] = {0.25F};
    zr_host_batch_t batch = {B, T, {values, values}};
    double loss, own[2] = {0}, all[2 * TEST_MAX_RANKS];
    for (size_t step = 0; step < N_STEPS; step++) {
        for (size_t i = 0; i < grad_accum; i++)
            ZR_TRY(zr_model_train(model, &batch, 1));
        ZR_TRY(zr_model_take_loss(model, &loss));
        ZR_TRY(zr_runtime_share(runtime, own, 2, all)); /* as a trainer does, and a plan */
        ZR_TRY(zr_runtime_step(runtime, NULL));
    }
    return ZR_OK;
}

static zr_status_t run_rank(test_rank_t *rank) {
    own_run_t *run = rank->context;
    own_options_t options = run->model;
    zr_runtime_t *runtime = NULL;
    zr_model_t *model = NULL;
    options.most_rows = ROWS;
    ZR_TRY(zr_runtime_create(&run->config, rank->comm, rank->device, &rank->log, &runtime));
    zr_status_t status = own_model_create(runtime, &options, &model);
    ZR_THEN(status, zr_model_commit(model));
    ZR_THEN(status, train(runtime, model, run->config.grad_accum));
    for (int tier = 0; tier < 2 && rank->rank == 0; tier++)
        zr_allocator_statistics(zr_runtime_allocator(runtime), (zr_tier_t)tier, &run->tiers[tier]);
    zr_model_destroy(&model);
    zr_runtime_destroy(&runtime);
    return status;
}

/* ---- to the byte ----------------------------------------------------------------------------- */

static void check_plan(own_run_t *run, int n_ranks) {
    zr_run_plan_t plan;
    assert_ok(zr_config_resolve(&run->config, n_ranks, NULL));
    zr_run_request_t request = request_of(run, n_ranks);
    test_ranks_t ranks = {.n_ranks = n_ranks, .run = run_rank, .context = run};
    test_run_ranks(&ranks);
    assert_int_equal(ranks.status[0], ZR_OK);
    assert_ok(zr_run_plan(&request, &plan));
    for (int tier = 0; tier < 2; tier++) {
        assert_int_equal(plan.tiers[tier].live.peak, run->tiers[tier].live.peak);
        assert_int_equal(plan.tiers[tier].reserved.peak, run->tiers[tier].reserved.peak);
        for (int tag = 0; tag < ZR_N_TAGS; tag++)
            assert_int_equal(plan.tiers[tier].by_tag[tag].peak, run->tiers[tier].by_tag[tag].peak);
    }
    assert_true(plan.step_seconds > 0);
}

static own_run_t run_of(int stage) {
    own_run_t run = {.config = zr_config_default(), .model = {.n_mids = N_MIDS}};
    run.config.stage = stage;
    run.config.micro_batch = B;
    run.config.nvme.store = "memory";
    snprintf(run.config.nvme.paths, sizeof(run.config.nvme.paths), ".");
    return run;
}

TEST(planned_peaks_are_measured_peaks) {
    for (int n_ranks = 1; n_ranks <= 3; n_ranks++)
        for (int stage = 0; stage <= 3; stage++)
            for (int variant = 0; variant < 4; variant++) {
                own_run_t run = run_of(stage);
                run.config.grad_accum = 1 + (size_t)variant % 2;
                run.config.plan_memory = variant % 2 == 0;
                run.model.recompute = variant > 0;
                run.model.activations = variant > 1 ? ZR_OFFLOAD_CPU : ZR_OFFLOAD_NONE;
                if (variant == 3)
                    run.config.offload_optimizer.device = ZR_OFFLOAD_CPU;
                check_plan(&run, n_ranks);
            }
}

/* ---- what is chosen -------------------------------------------------------------------------- */

/* With less device memory than all needs, what is placed lower is as little as fits. */
TEST(auto_places_what_does_not_fit) {
    own_run_t run = run_of(3);
    run.model.n_mids = 12;
    run.model.spare_elems = 1 << 16; /* state is what it needs most memory for */
    assert_ok(zr_config_resolve(&run.config, 1, NULL));
    zr_run_request_t request = request_of(&run, 1);
    zr_log_t log = {.sink = drop_message, .level = ZR_LOG_ERROR};
    zr_run_fit_t fit;
    size_t n_plans = 0;
    assert_ok(zr_run_fit(&request, &log, &fit));
    assert_true(fit.fits);
    size_t all = fit.plan.tiers[ZR_TIER_DEVICE].reserved.peak;
    request.config.device_memory_bytes = all - all / 4;
    assert_ok(zr_run_fit(&request, &log, &fit));
    assert_false(fit.fits);
    assert_int_equal(fit.lack.tier, ZR_TIER_DEVICE);
    assert_true(fit.lack.needed_bytes > request.config.device_memory_bytes);
    zr_run_open_t open = {.optimizer = true, .params = true, .gradients = true};
    assert_ok(zr_run_place(&request, &open, &log, &n_plans));
    assert_ok(zr_run_fit(&request, &log, &fit));
    assert_true(fit.fits && n_plans > 1);
    assert_int_equal(request.config.offload_optimizer.device, ZR_OFFLOAD_CPU);
    assert_true(request.config.offload_optimizer.ratio < 1);
    double placed = request.config.offload_optimizer.ratio;
    request.config.offload_optimizer.ratio = placed - 1.0 / 12;
    assert_ok(zr_run_fit(&request, &log, &fit));
    assert_false(fit.fits); /* one of its 12 large pieces less is not enough */
}

TEST(a_search_recommends_what_fits) {
    own_run_t run = run_of(0);
    assert_ok(zr_config_resolve(&run.config, 4, NULL));
    zr_run_ask_t ask = {.run = request_of(&run, 4), .stage_open = true, .recompute_open = true};
    zr_log_t log = {.sink = drop_message, .level = ZR_LOG_ERROR};
    zr_run_rows_t rows;
    assert_ok(zr_run_search(&ask, &log, &rows));
    assert_int_equal(rows.n, 4 * 2); /* each stage, with recomputation and without */
    assert_int_equal(rows.n_fit, rows.n);
    assert_true(rows.all[rows.recommended].tokens_per_s >=
                ZR_RUN_ABOUT_AS_FAST * rows.all[rows.fastest].tokens_per_s);
    zr_run_rows_free(&rows);
}

static void assert_same_row(const zr_run_row_t *a, const zr_run_row_t *b) {
    const zr_run_plan_t *x = &a->one.plan, *y = &b->one.plan;
    assert_true(zr_run_row_is_alike(a, b) && a->micro_batch == b->micro_batch);
    assert_memory_equal(&a->one.fits, &b->one.fits, sizeof(a->one.fits));
    assert_memory_equal(x->tiers, y->tiers, sizeof(x->tiers));
    assert_memory_equal(&x->metadata, &y->metadata, sizeof(x->metadata));
    assert_memory_equal(&x->times, &y->times, sizeof(x->times));
    assert_true(a->tokens_per_s == b->tokens_per_s);
}

TEST(a_search_is_the_same_with_any_number_of_threads) {
    own_run_t run = run_of(0);
    assert_ok(zr_config_resolve(&run.config, 4, NULL));
    zr_run_ask_t ask = {.run = request_of(&run, 4),
                        .stage_open = true,
                        .optimizer_open = true,
                        .recompute_open = true,
                        .micro_batch_open = true};
    zr_log_t log = {.sink = drop_message, .level = ZR_LOG_ERROR};
    zr_run_rows_t alone, rows;
    ask.n_threads = 1;
    assert_ok(zr_run_search(&ask, &log, &alone));
    assert_true(alone.n > 4 * 2 * 2);
    for (ask.n_threads = 2; ask.n_threads <= 9; ask.n_threads += 7) {
        assert_ok(zr_run_search(&ask, &log, &rows));
        assert_int_equal(rows.n, alone.n);
        assert_int_equal(rows.n_tried, alone.n_tried);
        assert_int_equal(rows.recommended, alone.recommended);
        for (size_t i = 0; i < rows.n; i++)
            assert_same_row(&rows.all[i], &alone.all[i]);
        zr_run_rows_free(&rows);
    }
    zr_run_rows_free(&alone);
}

static zr_status_t fail_to_make(const void *context, zr_runtime_t *runtime,
                                const zr_activation_options_t *activations, zr_model_t **model_p) {
    (void)context, (void)model_p;
    return zr_fail(zr_runtime_log(runtime), ZR_ERR_UNSUPPORTED, "no model %s recomputation",
                   activations->recompute ? "with" : "without");
}

static void add_message(void *context, zr_log_level_t level, int rank, const char *message) {
    (void)level, (void)rank;
    strncat(context, message, 256);
}

TEST(a_search_tells_the_first_error_once) {
    own_run_t run = run_of(0);
    assert_ok(zr_config_resolve(&run.config, 4, NULL));
    zr_run_ask_t ask = {.run = request_of(&run, 4), .stage_open = true, .recompute_open = true};
    ask.run.model.make = fail_to_make;
    for (ask.n_threads = 1; ask.n_threads <= 8; ask.n_threads++) {
        char messages[1024] = "";
        zr_log_t log = {.sink = add_message, .context = messages, .level = ZR_LOG_ERROR};
        zr_run_rows_t rows;
        assert_int_equal(zr_run_search(&ask, &log, &rows), ZR_ERR_UNSUPPORTED);
        assert_string_equal(messages, "no model without recomputation");
        assert_string_equal(zr_last_error(), messages);
    }
}

static bool set_model(const void *context, size_t index, zr_run_request_t *request) {
    own_options_t options = *(const own_options_t *)context;
    options.n_mids = 1 + index;
    request->model = maker_of(&options);
    return index < 200;
}

TEST(the_largest_that_fits_is_found) {
    own_run_t run = run_of(0);
    run.config.device_memory_bytes = (size_t)8 << 20;
    run.model.spare_elems = 1 << 14;
    assert_ok(zr_config_resolve(&run.config, 1, NULL));
    zr_log_t log = {.sink = drop_message, .level = ZR_LOG_ERROR};
    static zr_run_largest_t search; /* plans are large */
    search = (zr_run_largest_t){.family = {.set_model = set_model, .context = &run.model},
                                .run = request_of(&run, 1),
                                .log = &log};
    assert_ok(zr_run_find_largest(&search));
    assert_true(search.found && search.has_next && !search.next.fits && search.is_monotone);
    for (size_t i = search.index; i <= search.index + 1; i++) {
        zr_run_request_t request = search.run;
        request.log = log;
        assert_true(set_model(&run.model, i, &request));
        assert_true(zr_run_fits(&request) == (i == search.index));
    }
}
