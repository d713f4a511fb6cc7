/*
 * A program outside the tree with a store of its own: what training keeps in it has the same
 * parameters in the end as what stays on the device, at every stage.
 *
 * The store keeps each extent in memory of its own, inverted, and ends the latest transfer first,
 * in two pieces where there are two chunks.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zero/zero.h>

#include <offload/store_backend.h>

/* ---- the store ---------------------------------------------------------------------------------
 */

typedef struct inverted_store {
    zr_store_t base;
    unsigned char **extents; /* [n_extents] */
    zr_store_transfer_t *latest;
} inverted_store_t;

static zr_status_t inverted_open(zr_store_t *store) {
    inverted_store_t *inverted = (inverted_store_t *)store;
    inverted->extents = calloc(store->info.n_extents + 1, sizeof(*inverted->extents));
    for (size_t i = 0; i < store->info.n_extents && inverted->extents != NULL; i++) {
        inverted->extents[i] = malloc(store->extents[i].size_bytes + 1);
        if (inverted->extents[i] == NULL)
            return zr_fail(&store->options.log, ZR_ERR_MEMORY, "inverted: no memory");
        store->info.reserved_bytes += store->extents[i].size_bytes;
    }
    if (inverted->extents == NULL)
        return zr_fail(&store->options.log, ZR_ERR_MEMORY, "inverted: no memory");
    store->info.request_bytes = store->options.request_bytes;
    store->info.depth = 1;
    return ZR_OK;
}

static void inverted_close(zr_store_t *store) {
    inverted_store_t *inverted = (inverted_store_t *)store;
    for (size_t i = 0; i < store->info.n_extents && inverted->extents != NULL; i++)
        free(inverted->extents[i]);
    free(inverted->extents);
}

static void inverted_start(zr_store_t *store, zr_store_transfer_t *transfer) {
    inverted_store_t *inverted = (inverted_store_t *)store;
    transfer->next = inverted->latest;
    inverted->latest = transfer;
}

static void move_piece(inverted_store_t *inverted, const zr_store_piece_t *piece) {
    zr_store_transfer_t *transfer = piece->transfer;
    unsigned char *kept = inverted->extents[transfer->extent] + piece->offset_bytes;
    unsigned char *buffer = transfer->buffer + (piece->offset_bytes - transfer->offset_bytes);
    zr_store_piece_begins(&inverted->base, piece);
    for (size_t i = 0; i < piece->size_bytes; i++) {
        if (transfer->direction == ZR_STORE_PUT)
            kept[i] = (unsigned char)~buffer[i];
        else
            buffer[i] = (unsigned char)~kept[i];
    }
    const zr_store_outcome_t outcome = {.n_requests = 1, .moved_bytes = piece->size_bytes};
    zr_store_piece_ended(&inverted->base, piece, &outcome);
}

static void inverted_progress(zr_store_t *store, bool wait) {
    inverted_store_t *inverted = (inverted_store_t *)store;
    zr_store_transfer_t *transfer = inverted->latest;
    (void)wait;
    if (transfer == NULL)
        return;
    inverted->latest = transfer->next;
    transfer->next = NULL;
    size_t first = store->info.chunk_bytes;
    if (first > transfer->size_bytes)
        first = transfer->size_bytes;
    zr_store_piece_t piece = {.transfer = transfer,
                              .offset_bytes = transfer->offset_bytes,
                              .size_bytes = first,
                              .file = "memory, inverted"};
    size_t rest = transfer->size_bytes - first;
    move_piece(inverted, &piece);
    piece.offset_bytes += first;
    piece.size_bytes = rest;
    if (rest > 0)
        move_piece(inverted, &piece);
}

static const zr_store_backend_t inverted_backend = {
    .name = "inverted",
    .handle_bytes = sizeof(inverted_store_t),
    .open = inverted_open,
    .close = inverted_close,
    .start = inverted_start,
    .progress = inverted_progress,
};

/* ---- training
 * ------------------------------------------------------------------------------------ */

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
    if (report.has_store && strcmp(report.store.backend, inverted_backend.name) == 0)
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
        config.nvme.backend = &inverted_backend;
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
