/*
 * Looking at all parameters: the hash is the one of zr_runtime_weights_xxh3, and what is not finite
 * is counted, trainable and frozen, wherever it is in a tensor, once for all ranks.
 */
#include "tests/common/ranks.h"
#include "tests/common/test.h"

#define N_ELEMS 20000 /* more than are looked at at a time */

typedef struct job {
    int stage;
    size_t bad[2]; /* elements of both parameters */
    float value;
    zr_weights_t weights[TEST_MAX_RANKS]; /* out */
    uint64_t xxh3[TEST_MAX_RANKS];        /* out */
} job_t;

/* The largest numbers there are, but for the bad ones. */
static void fill(void *context, size_t first, size_t n_elems, float *values) {
    const job_t *job = context;
    for (size_t i = 0; i < n_elems; i++) {
        bool is_bad = first + i == job->bad[0] || first + i == job->bad[1];
        values[i] = is_bad ? job->value : 3.4e38f;
    }
}

static zr_status_t look(zr_runtime_t *runtime, test_rank_t *rank) {
    job_t *job = rank->context;
    zr_unit_t *unit;
    zr_param_t *param;
    zr_param_desc_t desc = {
        .name = "trained", .n_dims = 1, .dims = {N_ELEMS}, .fill = fill, .fill_context = job};
    ZR_TRY(zr_runtime_add_unit(runtime, "layer", &unit));
    ZR_TRY(zr_unit_add_param(unit, &desc, &param));
    desc.name = "frozen";
    desc.frozen = true;
    ZR_TRY(zr_unit_add_param(unit, &desc, &param));
    ZR_TRY(zr_runtime_commit(runtime));
    ZR_TRY(zr_runtime_weights(runtime, &job->weights[rank->rank]));
    return zr_runtime_weights_xxh3(runtime, &job->xxh3[rank->rank]);
}

static zr_status_t run_rank(test_rank_t *rank) {
    const job_t *job = rank->context;
    zr_config_t config = zr_config_default();
    zr_runtime_t *runtime = NULL;
    config.stage = job->stage;
    ZR_TRY(zr_config_resolve(&config, zr_comm_n_ranks(rank->comm), &rank->log));
    ZR_TRY(zr_runtime_create(&config, rank->comm, rank->device, &rank->log, &runtime));
    zr_status_t status = look(runtime, rank);
    zr_runtime_destroy(&runtime);
    return status;
}

static void run(job_t *job, int n_ranks) {
    test_ranks_t ranks = {.n_ranks = n_ranks, .run = run_rank, .context = job};
    test_run_ranks(&ranks);
    for (int i = 0; i < n_ranks; i++) {
        assert_int_equal(ranks.status[i], ZR_OK);
        assert_true(job->weights[i].xxh3 == job->xxh3[0]);
        assert_true(job->xxh3[i] == job->xxh3[0]);
        assert_int_equal(job->weights[i].n_non_finite, job->weights[0].n_non_finite);
    }
}

TEST(what_is_not_finite_is_counted) {
    static const float values[] = {NAN, -NAN, INFINITY, -INFINITY};
    for (int i = 0; i < 8; i++) {
        job_t job = {.stage = i % 4, .bad = {0, N_ELEMS - 1}, .value = values[i % 4]};
        run(&job, 1 + i % 3);
        assert_int_equal(job.weights[0].n_non_finite, 4);
    }
}

TEST(large_numbers_are_finite) {
    job_t job = {.stage = 3, .bad = {77, 16384}, .value = -3.4e38f};
    run(&job, 2);
    assert_int_equal(job.weights[0].n_non_finite, 0);
}
