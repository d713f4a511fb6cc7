/*
 * What the order of a micro-batch is for: at stage 3 each unit is gathered exactly twice, once
 * for each direction, and reduced once, whatever is recomputed or gathered ahead.
 */
#include "models/gpt2/gpt.h"
#include "tests/common/ranks.h"
#include "tests/common/test.h"
#include "tests/ref/gpt_batch.h"

#define N_LAYERS 3
#define N_UNITS (N_LAYERS + 2)

typedef struct gathers_case {
    bool recompute;
    size_t prefetch_elems;
    const char *freeze;
    uint64_t gathers, reductions; /* of the second step, which follows the recorded order */
} gathers_case_t;

static zr_status_t take_steps(zr_model_t *gpt, zr_runtime_t *runtime,
                              zr_comm_statistics_t *before) {
    static const int32_t tokens[] = {1, 5, 2, 8, 3, 1, 7, 0}, targets[] = {5, 2, 8, 3, 1, 7, 0, 4};
    for (int step = 0; step < 2; step++) {
        zr_comm_statistics(zr_runtime_comm(runtime), before);
        ZR_TRY(gpt_train(gpt, tokens, targets, 2, 4));
        ZR_TRY(zr_runtime_step(runtime, NULL));
    }
    return ZR_OK;
}

static zr_status_t run_rank(test_rank_t *rank) {
    gathers_case_t *c = rank->context;
    const zr_gpt_shape_t shape = {N_LAYERS, 12, 2, 5, 11};
    zr_transformer_options_t options = {.freeze = c->freeze};
    zr_activation_options_t activations = {.recompute = c->recompute};
    zr_config_t config = zr_config_default();
    config.stage = 3;
    config.prefetch_elems = c->prefetch_elems;
    zr_runtime_t *runtime = NULL;
    zr_model_t *gpt = NULL;
    zr_comm_statistics_t before, after;
    zr_status_t status = zr_config_resolve(&config, 2, &rank->log);
    ZR_THEN(status, zr_runtime_create(&config, rank->comm, rank->device, &rank->log, &runtime));
    ZR_THEN(status, zr_gpt_create(runtime, &shape, &options, &activations, &gpt));
    ZR_THEN(status, zr_model_commit(gpt));
    ZR_THEN(status, take_steps(gpt, runtime, &before));
    if (status == ZR_OK && rank->rank == 0) {
        zr_comm_statistics(rank->comm, &after);
        const zr_comm_count_t *count = after.count[ZR_TRAFFIC_MODEL];
        const zr_comm_count_t *earlier = before.count[ZR_TRAFFIC_MODEL];
        c->gathers = count[ZR_ALL_GATHER].n_calls - earlier[ZR_ALL_GATHER].n_calls;
        c->reductions = count[ZR_REDUCE_SCATTER].n_calls - earlier[ZR_REDUCE_SCATTER].n_calls;
    }
    zr_model_destroy(&gpt);
    zr_runtime_destroy(&runtime);
    return status;
}

static void check(gathers_case_t c, uint64_t gathers, uint64_t reductions) {
    test_ranks_t ranks = {.n_ranks = 2, .run = run_rank, .context = &c};
    test_run_ranks(&ranks);
    assert_int_equal(ranks.status[0], ZR_OK);
    assert_int_equal(ranks.status[1], ZR_OK);
    assert_int_equal(c.gathers, gathers);
    assert_int_equal(c.reductions, reductions);
}

TEST(test_twice) {
    for (int recompute = 0; recompute < 2; recompute++) {
        check((gathers_case_t){.recompute = recompute}, 2 * N_UNITS, N_UNITS);
        check((gathers_case_t){.recompute = recompute, .prefetch_elems = 1 << 20}, 2 * N_UNITS,
              N_UNITS);
    }
}

/* Backward ends at h.1, the first unit with something to train: embed is gathered for the head,
   h.0 not at all. */
TEST(test_frozen_start) {
    check((gathers_case_t){.freeze = "wte,wpe,h.0"}, 2 * N_UNITS - 1, N_UNITS - 2);
}
