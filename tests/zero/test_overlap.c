/*
 * Collectives beside compute, on host devices with streams that have a thread: one rank's gather,
 * and then its reduction, are held by another rank until the first has computed behind them. Where
 * a collective did not run beside compute, it would not end before the time limit of the
 * communicator, and the run would fail.
 */
#include <semaphore.h>

#include "tests/common/ranks.h"
#include "tests/common/test.h"
#include "zero/runtime_internal.h"

enum { N_UNITS = 3, N_ELEMS = 5000, N_STEPS = 5, HOLDER = 1 };

/* What both ranks share. */
typedef struct shared {
    bool plan_memory;
    int first_held;     /* step */
    sem_t has_computed; /* the other rank, behind a collective that is held */
    int n_behind;       /* times that it was not done by then */
} shared_t;

typedef struct model {
    test_rank_t *rank;
    zr_runtime_t *runtime;
    zr_unit_t *units[N_UNITS];
    zr_param_t *params[N_UNITS];
    zr_event_t *event;
    bool is_held; /* in this step */
} model_t;

static void wait_for_other(void *context, zr_stream_t *stream) {
    shared_t *shared = context;
    sem_wait(&shared->has_computed);
}

/* The holder's collectives from here on wait until the other rank has computed. */
static zr_status_t hold(model_t *model) {
    if (model->rank->rank != HOLDER || !model->is_held)
        return ZR_OK;
    return zr_stream_call(model->runtime->base.transfer, wait_for_other, model->rank->context);
}

static zr_status_t compute(model_t *model, int unit) {
    void *grad = NULL;
    ZR_TRY(zr_param_grad(model->params[unit], &grad, NULL));
    return zr_kernel_fill(zr_runtime_stream(model->runtime), grad,
                          model->runtime->base.config.dtype, N_ELEMS,
                          (float)(1 + unit + model->rank->rank));
}

/* The other rank has come here while a collective of its own is under way: end its being held. */
static zr_status_t let_go(model_t *model, zr_event_t *done) {
    shared_t *shared = model->rank->context;
    bool passed = true;
    if (model->rank->rank == HOLDER || !model->is_held)
        return ZR_OK;
    ZR_TRY(zr_event_query(done, &passed));
    shared->n_behind += !passed;
    sem_post(&shared->has_computed);
    return ZR_OK;
}

/* While unit 1 computes, unit 2 is gathered. What is gathered for unit 1 is there before that. */
static zr_status_t forward(model_t *model) {
    ZR_TRY(zr_unit_acquire(model->units[0], ZR_FORWARD));
    ZR_TRY(zr_unit_release(model->units[0]));
    ZR_TRY(zr_event_synchronize(model->units[1]->gathered));
    ZR_TRY(hold(model));
    ZR_TRY(zr_unit_acquire(model->units[1], ZR_FORWARD));
    if (zr_param_data(model->params[1]) == NULL)
        return ZR_ERR_STATE;
    ZR_TRY(let_go(model, model->units[2]->gathered));
    ZR_TRY(zr_unit_release(model->units[1]));
    ZR_TRY(zr_unit_acquire(model->units[2], ZR_FORWARD));
    return zr_unit_release(model->units[2]);
}

/* While unit 1 computes, gradients of unit 2 are reduced. Its own parameters come before that. */
static zr_status_t backward(model_t *model) {
    for (int unit = N_UNITS - 1; unit >= 0; unit--) {
        ZR_TRY(zr_unit_acquire(model->units[unit], ZR_BACKWARD));
        ZR_TRY(compute(model, unit));
        if (unit == 1)
            ZR_TRY(let_go(model, model->event));
        if (unit == 2) {
            ZR_TRY(zr_event_synchronize(model->units[1]->gathered));
            ZR_TRY(hold(model));
        }
        ZR_TRY(zr_unit_reduce(model->units[unit]));
        if (unit == 2)
            ZR_TRY(zr_event_record(model->event, model->runtime->base.transfer));
        ZR_TRY(zr_unit_release(model->units[unit]));
    }
    return ZR_OK;
}

static zr_status_t train(model_t *model) {
    zr_step_report_t report;
    for (int step = 0; step < N_STEPS; step++) {
        model->is_held = step >= ((const shared_t *)model->rank->context)->first_held;
        ZR_TRY(zr_runtime_begin_micro_batch(model->runtime));
        ZR_TRY(forward(model));
        ZR_TRY(backward(model));
        ZR_TRY(zr_runtime_step(model->runtime, &report));
    }
    return ZR_OK;
}

static zr_status_t build(model_t *model) {
    zr_config_t config = zr_config_default();
    config.stage = 3;
    config.plan_memory = ((const shared_t *)model->rank->context)->plan_memory;
    ZR_TRY(zr_config_resolve(&config, 2, &model->rank->log));
    ZR_TRY(zr_runtime_create(&config, model->rank->comm, model->rank->device, &model->rank->log,
                             &model->runtime));
    for (int i = 0; i < N_UNITS; i++) {
        char name[16];
        snprintf(name, sizeof(name), "u%d", i);
        zr_param_desc_t desc = {.name = name, .n_dims = 1, .dims = {N_ELEMS}};
        ZR_TRY(zr_runtime_add_unit(model->runtime, name, &model->units[i]));
        ZR_TRY(zr_unit_add_param(model->units[i], &desc, &model->params[i]));
    }
    ZR_TRY(zr_event_create(model->rank->device, &model->event));
    return zr_runtime_commit(model->runtime);
}

static zr_status_t run_rank(test_rank_t *rank) {
    model_t model = {.rank = rank};
    zr_status_t status = build(&model);
    ZR_THEN(status, train(&model));
    zr_event_destroy(&model.event);
    zr_runtime_destroy(&model.runtime);
    return status;
}

static void expect_overlap(bool plan_memory, int first_held) {
    shared_t shared = {.plan_memory = plan_memory, .first_held = first_held};
    test_ranks_t ranks = {.n_ranks = 2, .concurrent = true, .run = run_rank, .context = &shared};
    sem_init(&shared.has_computed, 0, 0);
    test_run_ranks(&ranks);
    sem_destroy(&shared.has_computed);
    for (int r = 0; r < 2; r++)
        assert_int_equal(ranks.status[r], ZR_OK);
    assert_int_equal(shared.n_behind, 2 * (N_STEPS - first_held));
}

/* The first step learns the order of units, which the others gather along. */
TEST(collectives_run_during_compute) {
    expect_overlap(false, 1);
}

/* The second step is another one than the first, so that the third has the first plan that fits. */
TEST(with_planned_memory_too) {
    expect_overlap(true, 2);
}
