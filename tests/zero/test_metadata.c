/* What a rank's tables take is counted, grows with the model, and not from step to step; ranks that
 * are threads have it each for themselves. */
#include "tests/common/ranks.h"
#include "tests/common/test.h"

#define N_STEPS 8
#define N_SETTLED 3 /* steps after which each is as the last */

typedef struct run {
    int stage;
    size_t n_units;
    bool plans_memory;
    zr_plan_cache_t *plans; /* that ranks share; NULL: none */
    zr_byte_count_t created[TEST_MAX_RANKS], committed[TEST_MAX_RANKS];
    zr_byte_count_t settled[TEST_MAX_RANKS], last[TEST_MAX_RANKS];
} run_t;

static zr_status_t step(zr_runtime_t *runtime, zr_unit_t **units, size_t n_units) {
    ZR_TRY(zr_runtime_begin_micro_batch(runtime));
    for (size_t i = 0; i < n_units; i++) {
        ZR_TRY(zr_unit_acquire(units[i], ZR_FORWARD));
        ZR_TRY(zr_unit_release(units[i]));
    }
    for (size_t i = n_units; i-- > 0;) {
        ZR_TRY(zr_unit_acquire(units[i], ZR_BACKWARD));
        ZR_TRY(zr_unit_reduce(units[i]));
        ZR_TRY(zr_unit_release(units[i]));
    }
    return zr_runtime_step(runtime, NULL);
}

static zr_status_t train(zr_runtime_t *runtime, run_t *run, int rank) {
    zr_unit_t *units[64] = {0};
    zr_param_t *param = NULL;
    zr_runtime_metadata(runtime, &run->created[rank]);
    for (size_t i = 0; i < run->n_units; i++) {
        char name[32];
        snprintf(name, sizeof(name), "unit %zu", i);
        ZR_TRY(zr_runtime_add_unit(runtime, name, &units[i]));
        zr_param_desc_t desc = {.name = name, .n_dims = 2, .dims = {7, 11}};
        ZR_TRY(zr_unit_add_param(units[i], &desc, &param));
    }
    ZR_TRY(zr_runtime_commit(runtime));
    zr_runtime_metadata(runtime, &run->committed[rank]);
    for (size_t i = 0; i < N_STEPS; i++) {
        ZR_TRY(step(runtime, units, run->n_units));
        if (i + 1 == N_SETTLED)
            zr_runtime_metadata(runtime, &run->settled[rank]);
    }
    zr_runtime_metadata(runtime, &run->last[rank]);
    return ZR_OK;
}

static zr_status_t run_rank(test_rank_t *rank) {
    run_t *run = rank->context;
    zr_runtime_t *runtime = NULL;
    zr_config_t config = zr_config_default();
    config.stage = run->stage;
    config.plan_memory = run->plans_memory;
    config.adamw.lr = 0.01;
    ZR_TRY(zr_config_resolve(&config, zr_comm_n_ranks(rank->comm), &rank->log));
    ZR_TRY(zr_runtime_create(&config, rank->comm, rank->device, &rank->log, &runtime));
    if (run->plans != NULL)
        zr_allocator_share_tables(zr_runtime_allocator(runtime), run->plans,
                                  (size_t)zr_comm_n_ranks(rank->comm));
    zr_status_t status = train(runtime, run, rank->rank);
    zr_runtime_destroy(&runtime);
    assert_null(runtime);
    return status;
}

static void run_ranks(run_t *run, int n_ranks) {
    test_ranks_t ranks = {.n_ranks = n_ranks, .run = run_rank, .context = run};
    test_run_ranks(&ranks);
    for (int r = 0; r < n_ranks; r++)
        assert_ok(ranks.status[r]);
}

TEST(test_tables_are_counted_for_each_rank_and_do_not_grow_with_steps) {
    for (int stage = 0; stage <= 3; stage++)
        for (int plans_memory = 0; plans_memory < 2; plans_memory++) {
            run_t run = {.stage = stage, .n_units = 5, .plans_memory = plans_memory};
            run_ranks(&run, 4);
            for (int r = 0; r < 4; r++) {
                assert_true(run.created[r].live > 0);
                assert_true(run.committed[r].live > run.created[r].live);
                assert_true(run.last[r].peak >= run.last[r].live);
                assert_true(run.last[r].peak >= run.committed[r].live);
                assert_int_equal(run.last[r].live, run.settled[r].live);
                assert_int_equal(run.committed[r].live, run.committed[0].live);
            }
        }
}

/* Four ranks that share have less than half of what plans add to them else, each a part, and less
 * for parameters, whose names and shapes have some hundred bytes. */
TEST(test_ranks_share_tables) {
    enum { N_UNITS = 64, N_RANKS = 4 };
    run_t without = {.stage = 3, .n_units = N_UNITS}, own = without, shared = without;
    run_t params = without;
    own.plans_memory = shared.plans_memory = true;
    params.plans = shared.plans = zr_plan_cache_create(0);
    run_ranks(&without, N_RANKS);
    run_ranks(&own, N_RANKS);
    run_ranks(&params, N_RANKS);
    run_ranks(&shared, N_RANKS);
    for (int r = 0; r < N_RANKS; r++) {
        size_t plan = own.last[r].live - without.last[r].live;
        size_t part = shared.last[r].live - params.last[r].live;
        assert_true(plan > 2 * N_UNITS * 2 * sizeof(size_t));
        assert_true(part < plan / 2 && part > plan / N_RANKS);
        assert_true(shared.last[r].peak < own.last[r].peak);
        assert_true(params.committed[r].live + N_UNITS * 60 < without.committed[r].live);
        assert_int_equal(params.committed[r].live, params.committed[0].live);
        assert_int_equal(shared.last[r].live, shared.last[0].live);
        assert_int_equal(shared.last[r].peak, shared.last[0].peak);
    }
    zr_plan_cache_destroy(&shared.plans);
}

TEST(test_more_units_take_more) {
    run_t few = {.stage = 3, .n_units = 4}, many = {.stage = 3, .n_units = 64};
    run_ranks(&few, 2);
    run_ranks(&many, 2);
    /* The structure of a unit alone has more than 300 bytes. */
    assert_true(many.committed[0].live > few.committed[0].live + 60 * 300);
}
