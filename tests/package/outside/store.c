/*
 * A program outside the tree with a store of its own: what training keeps in it has the same
 * parameters in the end as what stays on the device, at every stage.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zero/zero.h>

#include "inverted_store.h"

/* ---- training ------------------------------------------------------------------------------- */

enum { UNITS = 3, N = 70 * 70, STEPS = 4, RANKS = 3 };

typedef struct outcome {
    uint64_t hash;
    uint64_t stored_bytes; /* by rank 0, in the store */
} outcome_t;

static void fill(void *context, size_t first, size_t n_elems, float *values) {
    (void)context;
    for (size_t i = 0; i < n_elems; i++)
        values[i] = (float)((first + i) % 101) / 101 - 0.5F;
}

/* Gradients are as good as any: the parameters, and the number of the rank. */
static zr_status_t make_gradient(zr_rank_t *rank, zr_unit_t *unit, zr_param_t *param) {
    void *gradient;
    ZR_TRY(zr_unit_acquire(unit, ZR_BACKWARD));
    ZR_TRY(zr_param_grad(param, &gradient, NULL));
    const float *values = zr_param_data(param);
    for (size_t i = 0; i < N; i++)
        ((float *)gradient)[i] += values[i] * (float)(rank->rank + 1);
    ZR_TRY(zr_unit_reduce(unit));
    return zr_unit_release(unit);
}

static zr_status_t train(zr_rank_t *rank) {
    outcome_t outcome, *outcome_p = rank->context;
    zr_unit_t *units[UNITS];
    zr_param_t *params[UNITS];
    for (int u = 0; u < UNITS; u++) {
        char name[16];
        snprintf(name, sizeof(name), "unit.%d", u);
        zr_param_desc_t desc = {.name = name, .n_dims = 1, .dims = {N}, .fill = fill};
        ZR_TRY(zr_runtime_add_unit(rank->runtime, name, &units[u]));
        ZR_TRY(zr_unit_add_param(units[u], &desc, &params[u]));
    }
    ZR_TRY(zr_runtime_commit(rank->runtime));
    for (int step = 0; step < STEPS; step++) {
        ZR_TRY(zr_runtime_begin_micro_batch(rank->runtime));
        for (int u = UNITS - 1; u >= 0; u--)
            ZR_TRY(make_gradient(rank, units[u], params[u]));
        ZR_TRY(zr_runtime_step(rank->runtime, NULL));
    }
    ZR_TRY(zr_runtime_weights_xxh3(rank->runtime, &outcome.hash));
    zr_offload_report_t report;
    zr_runtime_offload(rank->runtime, &report);
    outcome.stored_bytes = 0;
    if (report.has_store && strcmp(report.store.backend, inverted_store.name) == 0)
        outcome.stored_bytes = report.store.reserved_bytes;
    if (rank->rank == 0)
        *outcome_p = outcome;
    return ZR_OK;
}

static zr_status_t run(int stage, bool is_stored, outcome_t *outcome_p) {
    zr_config_t config = zr_config_default();
    config.stage = stage;
    config.sub_group_elems = 1024;
    if (is_stored) {
        config.nvme.backend = &inverted_store;
        config.offload_optimizer.device = ZR_OFFLOAD_NVME;
        if (stage == 3)
            config.offload_param.device = ZR_OFFLOAD_NVME;
    }
    return zr_run_ranks(&config, RANKS, train, outcome_p, NULL);
}

int main(void) {
    outcome_t plain, stored;
    int n_wrong = 0;
    for (int stage = 0; stage <= 3; stage++) {
        if (run(stage, false, &plain) != ZR_OK || run(stage, true, &stored) != ZR_OK) {
            printf("stage %d: %s\n", stage, zr_last_error());
            return 1;
        }
        bool is_right = stored.hash == plain.hash && stored.stored_bytes > 0;
        printf("stage %d: weights %016llx, and %016llx with %llu bytes of rank 0 stored%s\n", stage,
               (unsigned long long)plain.hash, (unsigned long long)stored.hash,
               (unsigned long long)stored.stored_bytes, is_right ? "" : ": wrong");
        n_wrong += !is_right;
    }
    return n_wrong;
}
