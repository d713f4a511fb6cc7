/*
 * Checkpoints of models at the edges: without any element, with frozen parameters alone, with fewer
 * elements than ranks. What any ranks save at any stage, others load at another.
 */
#include "tests/common/ranks.h"
#include "tests/common/test.h"
#include "tests/zero/checkpoint/folder_fixture.h"

#define MOST_PARAMS 3
#define MOST_ELEMS 64

typedef struct param {
    size_t n_elems;
    bool frozen;
    int unit;
} param_t;

typedef struct model {
    const char *name;
    int n_units;
    size_t n_params;
    param_t params[MOST_PARAMS];
} model_t;

static const model_t models[] = {
    {"one unit, no element", 1, 1, {{0, false, 0}}},
    {"units without parameters", 3, 1, {{5, false, 1}}},
    {"frozen alone", 2, 2, {{7, true, 0}, {3, true, 1}}},
    {"a unit that is frozen, and one of both", 2, 3, {{9, true, 0}, {4, true, 1}, {33, false, 1}}},
    {"fewer elements than ranks", 2, 2, {{1, false, 0}, {1, true, 1}}},
    {"frozen without elements", 1, 2, {{0, true, 0}, {2, false, 0}}},
};
#define N_MODELS (N_OF(models))

typedef struct run {
    const model_t *model;
    zr_config_t config;
    const char *restore_from, *save_to; /* NULL: not */
} run_t;

static float value_of(uintptr_t param, size_t i) {
    return (float)(param + 1) + 0.125f * (float)i;
}

static void fill(void *context, size_t first, size_t n_elems, float *values) {
    for (size_t i = 0; i < n_elems; i++)
        values[i] = value_of((uintptr_t)context, first + i);
}

/* Where it is loaded nothing is filled. */
static zr_status_t build(const run_t *run, zr_runtime_t *runtime, zr_param_t **params) {
    zr_unit_t *units[3] = {NULL};
    for (int u = 0; u < run->model->n_units; u++) {
        char name[32];
        snprintf(name, sizeof(name), "u%d", u);
        ZR_TRY(zr_runtime_add_unit(runtime, name, &units[u]));
    }
    for (size_t i = 0; i < run->model->n_params; i++) {
        const param_t *param = &run->model->params[i];
        char name[32];
        snprintf(name, sizeof(name), "p%zu", i);
        zr_param_desc_t desc = {.name = name,
                                .n_dims = 1,
                                .dims = {param->n_elems},
                                .frozen = param->frozen,
                                .fill = run->restore_from == NULL ? fill : NULL,
                                .fill_context = (void *)(uintptr_t)i};
        ZR_TRY(zr_unit_add_param(units[param->unit], &desc, &params[i]));
    }
    return ZR_OK;
}

static zr_status_t commit(const run_t *run, zr_runtime_t *runtime) {
    zr_checkpoint_t *checkpoint = NULL;
    if (run->restore_from == NULL)
        return zr_runtime_commit(runtime);
    ZR_TRY(zr_checkpoint_open(run->restore_from, zr_runtime_log(runtime), &checkpoint));
    zr_status_t status = zr_runtime_restore(runtime, checkpoint);
    ZR_THEN(status, zr_runtime_commit(runtime));
    zr_checkpoint_close(&checkpoint);
    return status;
}

static zr_status_t use(const run_t *run, zr_runtime_t *runtime) {
    zr_param_t *params[MOST_PARAMS] = {NULL};
    float values[MOST_ELEMS];
    zr_save_options_t save = {.folder = run->save_to, .goes_on = run->config.stage % 2 == 0};
    bool ended = false;
    ZR_TRY(build(run, runtime, params));
    ZR_TRY(zr_runtime_expect_saves(runtime, save.goes_on));
    ZR_TRY(commit(run, runtime));
    for (size_t i = 0; i < run->model->n_params; i++) {
        size_t n_elems = run->model->params[i].n_elems;
        ZR_TRY(zr_param_read(params[i], 0, n_elems, values));
        for (size_t k = 0; k < n_elems; k++)
            if (values[k] != value_of(i, k))
                return zr_fail(zr_runtime_log(runtime), ZR_ERR_STATE, "p%zu: %g at %zu", i,
                               (double)values[k], k);
    }
    if (run->save_to == NULL)
        return ZR_OK;
    ZR_TRY(zr_runtime_save_begin(runtime, &save));
    if (zr_runtime_save_begin(runtime, &save) != ZR_ERR_STATE) /* one at a time */
        return ZR_ERR_STATE;
    ZR_TRY(zr_runtime_save_end(runtime, true, &ended, NULL));
    if (!ended)
        return ZR_ERR_STATE;
    return zr_runtime_save_end(runtime, true, &ended, NULL); /* nothing is left to end */
}

static zr_status_t run_rank(test_rank_t *rank) {
    const run_t *run = rank->context;
    zr_runtime_t *runtime = NULL;
    ZR_TRY(zr_runtime_create(&run->config, rank->comm, rank->device, &rank->log, &runtime));
    zr_status_t status = use(run, runtime);
    zr_runtime_destroy(&runtime);
    return status;
}

static void expect(run_t *run, int stage, int n_ranks, zr_offload_device_t place) {
    test_ranks_t ranks = {.n_ranks = n_ranks, .quiet = true, .run = run_rank, .context = run};
    run->config = zr_config_default();
    run->config.stage = stage;
    run->config.micro_batch = run->config.grad_accum = 1;
    run->config.host_threads = 1;
    run->config.offload_optimizer.device = place;
    run->config.offload_param.device = stage == 3 ? place : ZR_OFFLOAD_NONE;
    snprintf(run->config.nvme.paths, sizeof(run->config.nvme.paths), "%s", folder);
    test_run_ranks(&ranks);
    for (int rank = 0; rank < n_ranks; rank++)
        if (ranks.status[rank] != ZR_OK)
            fail_msg("%s, stage %d, %d ranks, place %d, %s: rank %d: %s: %s", run->model->name,
                     stage, n_ranks, (int)place, run->restore_from != NULL ? "loads" : "saves",
                     rank, zr_status_name(ranks.status[rank]), ranks.last_error[rank]);
}

static void verify(void) {
    zr_checkpoint_t *checkpoint = NULL;
    assert_ok(zr_checkpoint_open(saved, NULL, &checkpoint));
    assert_ok(zr_checkpoint_verify(checkpoint, NULL, NULL, NULL));
    zr_checkpoint_close(&checkpoint);
}

TEST(all_are_saved_and_loaded) {
    static const int ranks[] = {1, 3, 8};
    static const zr_offload_device_t places[] = {ZR_OFFLOAD_NONE, ZR_OFFLOAD_NVME, ZR_OFFLOAD_CPU};
    for (size_t m = 0; m < N_MODELS; m++)
        for (int stage = 0; stage <= 3; stage++)
            for (int i = 0; i < 3; i++) {
                run_t saves = {.model = &models[m], .save_to = saved};
                run_t loads = {.model = &models[m], .restore_from = saved};
                expect(&saves, stage, ranks[i], places[(stage + i) % 3]);
                verify();
                expect(&loads, 3 - stage, ranks[(i + 1) % 3], places[(stage + i + 1) % 3]);
                empty(saved);
            }
}

const test_group_t test_group = {make_folder, remove_folder};
