/*
 * The recorded order of units, ranks that leave it, and calls that do not fit the state. With
 * "beside", collectives are on streams that have a thread.
 */
#include "tests/common/one_thing.h"
#include "tests/common/test.h"
#include "tests/zero/toy.h"

static bool is_concurrent;

static toy_options_t options_of(int stage, int n_ranks) {
    toy_options_t options = toy_options_default(stage, n_ranks);
    options.concurrent = is_concurrent;
    return options;
}

TEST(a_common_new_order_is_recorded_again) {
    for (int n_ranks = 1; n_ranks <= 3; n_ranks++) {
        toy_options_t options = options_of(3, n_ranks);
        toy_result_t result;
        toy_train(&options, &result);
        uint64_t reference = result.hash;
        options.reorder_step = 2;
        toy_train_well(&options, &result);
        assert_true(result.hash == reference); /* the toy's sums do not depend on the order */
        assert_int_equal(result.device_memory.by_tag[ZR_TAG_GATHERED_PARAMETERS].live, 0);
    }
}

TEST(a_stray_rank_ends_all_with_names) {
    for (int stage = 1; stage <= 3; stage++)
        for (int prefetch = 0; prefetch < 2; prefetch++) {
            toy_options_t options = options_of(stage, 3);
            options.config.prefetch_elems = prefetch ? 50000000 : 0;
            options.stray_rank = 1;
            options.quiet = 1;
            toy_result_t result;
            toy_train(&options, &result);
            for (int r = 0; r < 3; r++) {
                const char *error = result.last_error[r];
                assert_int_equal(result.status[r], ZR_ERR_COMM);
                assert_has(error, "rank 1 is in |\"u1 ");
                assert_has(error, stage == 3 ? "all_gather" : "reduce_scatter");
            }
        }
}

TEST(a_rank_with_another_configuration_is_refused) {
    toy_options_t options = options_of(2, 3);
    options.other_rank = 2;
    options.quiet = 1;
    toy_result_t result;
    toy_train(&options, &result);
    for (int r = 0; r < 3; r++) {
        assert_int_equal(result.status[r], ZR_ERR_COMM);
        assert_has(result.last_error[r], "rank 2 has another configuration");
    }
}

/* From one budget to the next. ThreadSanitizer, under which each run takes long, meets one of
 * three: all kinds of allocations, but not each of them. */
#if defined(__SANITIZE_THREAD__)
enum { BUDGET_STEP_BYTES = 3 * 12288 };
#else
enum { BUDGET_STEP_BYTES = 12288 };
#endif

/* A rank that runs out of memory alone, at any of its allocations. */
static bool alone_fails(toy_options_t *options) {
    toy_result_t result;
    bool failed = false;
    toy_train(options, &result);
    for (int r = 0; r < options->n_ranks; r++)
        failed = failed || result.status[r] != ZR_OK;
    for (int r = 0; r < options->n_ranks && failed; r++)
        assert_int_equal(result.status[r], r == options->tight_rank ? ZR_ERR_BUDGET : ZR_ERR_COMM);
    return failed;
}

TEST(a_rank_that_fails_alone_ends_all) {
    for (int stage = 0; stage <= 3; stage++)
        for (int every = 0; every < 2; every++) {
            toy_options_t options = options_of(stage, 3);
            options.n_steps = 2;
            options.quiet = true;
            options.config.grad_accum = 2;
            options.config.reduce = every ? ZR_REDUCE_EVERY_MICRO_BATCH : ZR_REDUCE_AUTO;
            options.config.reuse_elems = every ? 5000 : 0;
            options.tight_rank = stage % 3;
            options.tight_bytes = BUDGET_STEP_BYTES;
            while (alone_fails(&options))
                options.tight_bytes += BUDGET_STEP_BYTES;
            assert_true(options.tight_bytes > BUDGET_STEP_BYTES);
        }
}

/* ---- one rank, called by hand ---- */

typedef struct fixture {
    zr_comm_t *comm;
    zr_device_t *device;
    zr_runtime_t *runtime;
    zr_unit_t *unit;
    zr_param_t *param;
    zr_param_t *frozen;
    char message[1024];
} fixture_t;

static void keep(void *context, zr_log_level_t level, int rank, const char *message) {
    expect_one_thing(message);
    snprintf(((fixture_t *)context)->message, sizeof(((fixture_t *)context)->message), "%s",
             message);
}

static void open_fixture(fixture_t *f, int stage) {
    *f = (fixture_t){0};
    zr_comm_options_t comm_options = zr_comm_options_default();
    zr_config_t config = zr_config_default();
    zr_log_t log = {.sink = keep, .context = f, .level = ZR_LOG_DEBUG, .rank = -1};
    config.stage = stage;
    config.grad_accum = 2;
    assert_ok(zr_config_resolve(&config, 1, NULL));
    assert_ok(zr_comm_create_threads(1, &comm_options, &f->comm));
    assert_ok(zr_device_open("host", NULL, &f->device));
    assert_ok(zr_runtime_create(&config, f->comm, f->device, &log, &f->runtime));
}

static void close_fixture(fixture_t *f) {
    zr_runtime_destroy(&f->runtime);
    zr_device_close(&f->device);
    zr_comm_destroy(&f->comm);
}

static void build_fixture(fixture_t *f) {
    zr_param_desc_t desc = {.name = "w", .n_dims = 2, .dims = {3, 5}};
    assert_ok(zr_runtime_add_unit(f->runtime, "layer", &f->unit));
    assert_ok(zr_unit_add_param(f->unit, &desc, &f->param));
    desc.name = "f";
    desc.frozen = true;
    assert_ok(zr_unit_add_param(f->unit, &desc, &f->frozen));
    assert_ok(zr_runtime_commit(f->runtime));
}

static void expect_message(const fixture_t *f, const char *part) {
    assert_has(f->message, part);
}

TEST(calls_that_do_not_fit_are_refused) {
    for (int stage = 0; stage <= 3; stage++) {
        fixture_t f;
        void *grad;
        open_fixture(&f, stage);
        assert_int_equal(zr_runtime_begin_micro_batch(f.runtime), ZR_ERR_STATE);
        expect_message(&f, "before zr_runtime_commit");
        build_fixture(&f);
        assert_null(zr_param_data(f.param));
        assert_int_equal(zr_unit_release(f.unit), ZR_ERR_STATE);
        assert_int_equal(zr_unit_reduce(f.unit), ZR_ERR_STATE);
        assert_int_equal(zr_runtime_step(f.runtime, NULL), ZR_ERR_STATE);
        expect_message(&f, "0 of 2 micro-batches");
        assert_int_equal(zr_param_grad(f.param, &grad, NULL), ZR_ERR_STATE);
        assert_ok(zr_unit_acquire(f.unit, ZR_FORWARD)); /* evaluation */
        assert_non_null(zr_param_data(f.param));
        assert_int_equal(zr_param_grad(f.frozen, &grad, NULL), ZR_ERR_STATE);
        expect_message(&f, "frozen");
        assert_ok(zr_unit_release(f.unit));
        assert_null(zr_param_data(f.param));
        assert_ok(zr_runtime_begin_micro_batch(f.runtime));
        assert_ok(zr_unit_acquire(f.unit, ZR_BACKWARD));
        assert_ok(zr_param_grad(f.param, &grad, NULL));
        assert_ok(zr_unit_reduce(f.unit));
        assert_int_equal(zr_unit_reduce(f.unit), ZR_ERR_STATE);
        expect_message(&f, "twice");
        assert_ok(zr_unit_release(f.unit));
        assert_ok(zr_runtime_begin_micro_batch(f.runtime));
        assert_int_equal(zr_runtime_begin_micro_batch(f.runtime), ZR_ERR_STATE);
        assert_int_equal(zr_runtime_step(f.runtime, NULL), ZR_ERR_STATE);
        expect_message(&f, "not reduced in micro-batch 2");
        close_fixture(&f);
    }
}

static void reduce_by_hand(zr_unit_t *unit) {
    assert_ok(zr_unit_acquire(unit, ZR_BACKWARD));
    assert_ok(zr_unit_reduce(unit));
    assert_ok(zr_unit_release(unit));
}

/* A micro-batch that is refused because a unit is missing begins once that unit has come. */
TEST(a_refused_micro_batch_changes_nothing) {
    for (int stage = 0; stage <= 3; stage++) {
        fixture_t f;
        zr_unit_t *second;
        zr_param_t *param;
        zr_param_desc_t desc = {.name = "second", .n_dims = 1, .dims = {7}};
        open_fixture(&f, stage);
        assert_ok(zr_runtime_add_unit(f.runtime, "first", &f.unit));
        assert_ok(zr_runtime_add_unit(f.runtime, "second", &second));
        assert_ok(zr_unit_add_param(second, &desc, &param));
        desc.name = "first";
        assert_ok(zr_unit_add_param(f.unit, &desc, &param));
        assert_ok(zr_runtime_commit(f.runtime));
        assert_ok(zr_runtime_begin_micro_batch(f.runtime));
        reduce_by_hand(f.unit);
        assert_int_equal(zr_runtime_begin_micro_batch(f.runtime), ZR_ERR_STATE);
        expect_message(&f, "\"second\" was not reduced");
        reduce_by_hand(second);
        assert_ok(zr_runtime_begin_micro_batch(f.runtime));
        reduce_by_hand(second);
        reduce_by_hand(f.unit);
        assert_ok(zr_runtime_step(f.runtime, NULL));
        close_fixture(&f);
    }
}

/* Each name is one's own, among as many as a large model has. */
TEST(names_differ) {
    fixture_t f;
    char name[32];
    open_fixture(&f, 1);
    zr_unit_t *units[200];
    zr_param_t *param;
    for (size_t i = 0; i < 200; i++) {
        snprintf(name, sizeof(name), "u%zu", i);
        assert_ok(zr_runtime_add_unit(f.runtime, name, &units[i]));
        for (size_t k = 0; k < 12; k++) {
            zr_param_desc_t desc = {.name = name, .n_dims = 1, .dims = {1}};
            snprintf(name, sizeof(name), "u%zu.%zu", i, k);
            assert_ok(zr_unit_add_param(units[i], &desc, &param));
        }
    }
    for (size_t i = 0; i < 200; i++) {
        zr_param_desc_t desc = {.name = name, .n_dims = 1, .dims = {1}};
        snprintf(name, sizeof(name), "u%zu", i);
        assert_int_equal(zr_runtime_add_unit(f.runtime, name, &units[0]), ZR_ERR_ARGUMENT);
        snprintf(name, sizeof(name), "u%zu.%zu", i, i % 12);
        assert_int_equal(zr_unit_add_param(units[0], &desc, &param), ZR_ERR_ARGUMENT);
        snprintf(name, sizeof(name), "already, in unit \"u%zu\"", i);
        expect_message(&f, name);
    }
    close_fixture(&f);
}

TEST(wrong_declarations_are_refused) {
    fixture_t f;
    zr_unit_t *unit;
    zr_param_t *param;
    open_fixture(&f, 1);
    assert_int_equal(zr_runtime_add_unit(f.runtime, "", &unit), ZR_ERR_ARGUMENT);
    assert_int_equal(zr_runtime_add_unit(f.runtime, "a", NULL), ZR_ERR_ARGUMENT);
    assert_ok(zr_runtime_add_unit(f.runtime, "a", &unit));
    assert_int_equal(zr_runtime_add_unit(f.runtime, "a", &unit), ZR_ERR_ARGUMENT);
    expect_message(&f, "\"a\" exists already");
    zr_param_desc_t desc = {.name = "w", .n_dims = 2, .dims = {(size_t)1 << 40, (size_t)1 << 40}};
    assert_int_equal(zr_unit_add_param(unit, &desc, &param), ZR_ERR_ARGUMENT);
    expect_message(&f, "overflows");
    desc.n_dims = 5;
    assert_int_equal(zr_unit_add_param(unit, &desc, &param), ZR_ERR_ARGUMENT);
    desc.n_dims = 1;
    desc.group = 1;
    assert_int_equal(zr_unit_add_param(unit, &desc, &param), ZR_ERR_ARGUMENT);
    desc.group = 0;
    assert_int_equal(zr_unit_add_param(unit, &desc, NULL), ZR_ERR_ARGUMENT);
    assert_ok(zr_unit_add_param(unit, &desc, &param)); /* 2^40: legal alone */
    desc.dims[0] = 1;
    assert_int_equal(zr_unit_add_param(unit, &desc, &param), ZR_ERR_ARGUMENT);
    expect_message(&f, "\"w\" exists already");
    desc.name = "v";
    desc.dims[0] = (size_t)1 << 62;
    assert_ok(zr_unit_add_param(unit, &desc, &param));
    assert_int_equal(zr_runtime_commit(f.runtime), ZR_ERR_ARGUMENT);
    expect_message(&f, "it may have 1099511627775 elements");
    assert_int_equal(zr_runtime_commit(f.runtime), ZR_ERR_STATE);
    close_fixture(&f);
}

/* What the update could not work with is refused where it is said, not in the first step. */
TEST(groups_have_factors_of_fp32) {
    static const zr_group_t wrong[] = {{"g", -1, 1},   {"g", NAN, 1},     {"g", INFINITY, 1},
                                       {"g", 1e39, 1}, {"g", 0, -0.5},    {"g", 0, NAN},
                                       {"g", 0, 1e39}, {"g", 0, INFINITY}};
    const zr_group_t right = {"g", 0, 1};
    fixture_t f;
    int number;
    open_fixture(&f, 1);
    for (size_t i = 0; i < N_OF(wrong); i++) {
        f.message[0] = '\0';
        assert_int_equal(zr_runtime_add_group(f.runtime, &wrong[i], &number), ZR_ERR_ARGUMENT);
        expect_message(&f, "\"g\": weight_decay");
    }
    assert_int_equal(zr_runtime_add_group(f.runtime, NULL, &number), ZR_ERR_ARGUMENT);
    assert_int_equal(zr_runtime_add_group(f.runtime, &right, NULL), ZR_ERR_ARGUMENT);
    assert_ok(zr_runtime_add_group(f.runtime, &right, &number));
    assert_int_equal(number, 1);
    close_fixture(&f);
}

/* A refused call leaves a runtime that goes on. */
TEST(places_that_are_missing_change_nothing) {
    fixture_t f;
    void *grad;
    bool ended;
    double values[1] = {2}, all[1];
    open_fixture(&f, 2);
    build_fixture(&f);
    assert_int_equal(zr_param_read(f.param, 0, 15, NULL), ZR_ERR_ARGUMENT);
    assert_int_equal(zr_param_read(f.param, 1, SIZE_MAX, (float *)values), ZR_ERR_ARGUMENT);
    expect_message(&f, "18446744073709551615 elements from element 1 of parameter \"w\"");
    assert_ok(zr_param_read(f.param, 15, 0, NULL));
    assert_int_equal(zr_runtime_share(f.runtime, NULL, 1, all), ZR_ERR_ARGUMENT);
    assert_int_equal(zr_runtime_share(f.runtime, values, 1, NULL), ZR_ERR_ARGUMENT);
    assert_ok(zr_runtime_share(f.runtime, values, 1, all));
    assert_true(all[0] == 2);
    assert_int_equal(zr_runtime_save_end(f.runtime, true, NULL, NULL), ZR_ERR_ARGUMENT);
    assert_ok(zr_runtime_save_end(f.runtime, true, &ended, NULL));
    assert_ok(zr_runtime_begin_micro_batch(f.runtime));
    assert_ok(zr_unit_acquire(f.unit, ZR_BACKWARD));
    assert_int_equal(zr_param_grad(f.param, NULL, NULL), ZR_ERR_ARGUMENT);
    assert_ok(zr_param_grad(f.param, &grad, NULL));
    assert_int_equal(zr_runtime_create(zr_runtime_config(f.runtime), f.comm, f.device, NULL, NULL),
                     ZR_ERR_ARGUMENT);
    close_fixture(&f);
}

TEST(parameters_can_be_read) {
    fixture_t f;
    float values[15];
    open_fixture(&f, 2);
    build_fixture(&f);
    assert_ok(zr_param_read(f.param, 4, 11, values));
    for (int i = 0; i < 11; i++)
        assert_true(values[i] == 0.0f);
    assert_int_equal(zr_param_read(f.param, 5, 11, values), ZR_ERR_ARGUMENT);
    assert_ok(zr_param_read(f.frozen, 0, 15, values));
    close_fixture(&f);
}

int main(int argc, char **argv) {
    is_concurrent = argc > 1 && strcmp(argv[1], "beside") == 0;
    return run_all_tests(NULL, NULL);
}
