/*
 * A program outside the tree with everything of its own: a model of three kinds of blocks
 * (own_model.h), an optimizer, and a store. Nothing in the library knows of them.
 *
 *   whole FOLDER STAGE RANKS [STEP]
 *
 * It plans itself, trains with its state on its store and a checkpoint every few steps, and goes on
 * from the last one that FOLDER has. In step STEP it kills itself, between the backward pass and
 * the update. In the end it prints a hash of the weights; measured peaks other than the planned
 * ones are an error.
 */
#define _POSIX_C_SOURCE 200809L /* access, raise */

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zero/zero.h>

#include "inverted_store.h"
#include "own_model.h"

enum { STEPS = 8, SAVE_EVERY = 3, ACCUM = 2, B = 2, T = 16, ROWS = B * T, N_MIDS = 6 };

static const own_options_t model_options = {.n_mids = N_MIDS, .spare_elems = 3000};

typedef struct settings {
    const char *folder;
    size_t kill_step;            /* 0: none */
    zr_checkpoint_t *checkpoint; /* to go on from, or NULL */
    zr_run_plan_t plan;
} settings_t;

/* ---- the optimizer: Adagrad (Duchi et al. 2011) ---------------------------------------------- */

static void adagrad_loop(const zr_update_t *part, const void *factors) {
    float *master = part->arrays[0], *sum = part->arrays[1], *param = part->param;
    const float *grad = part->grad;
    (void)factors;
    for (size_t i = 0; i < part->n_elems; i++) {
        float g = grad[i] * part->grad_scale;
        sum[i] = fmaf(g, g, sum[i]);
        master[i] -= part->lr * (g / (sqrtf(sum[i]) + part->hyper[0]));
        param[i] = master[i];
    }
}

static const zr_optimizer_type_t adagrad = {
    .name = "Adagrad",
    .rule = {.name = "adagrad",
             .arrays = {{"master", &zr_encoding_fp32}, {"sum", &zr_encoding_fp32}},
             .n_arrays = 2,
             .hypers = {{.name = "eps", .key = "eps", .index = -1, .usual = 1e-10, .below = 1}},
             .n_hypers = 1,
             .operations_per_elem = 7,
             .loops = {adagrad_loop}},
};

/* ---- training -------------------------------------------------------------------------------- */

static zr_status_t make(const void *context, zr_runtime_t *runtime,
                        const zr_activation_options_t *activations, zr_model_t **model_p) {
    own_options_t options = *(const own_options_t *)context;
    options.recompute = activations->recompute;
    options.activations = activations->device;
    options.most_rows = activations->most_rows;
    return own_model_create(runtime, &options, model_p);
}

static void make_values(int rank, size_t number, float *inputs, float *targets) {
    for (size_t i = 0; i < ROWS; i++) {
        double at = (double)(i + 31 * number) + 3.7 * rank;
        inputs[i] = (float)(0.6 * sin(at));
        targets[i] = (float)(0.5 * cos(1.3 * at));
    }
}

static zr_status_t train_step(zr_rank_t *rank, zr_model_t *model, size_t step) {
    const settings_t *settings = rank->context;
    double loss, own[2] = {0}, all[2 * ZR_MAX_SUM_SOURCES];
    for (size_t i = 0; i < ACCUM; i++) {
        float inputs[ROWS], targets[ROWS];
        make_values(rank->rank, step * ACCUM + i, inputs, targets);
        zr_host_batch_t batch = {B, T, {inputs, targets}};
        ZR_TRY(zr_model_train(model, &batch, 1));
    }
    ZR_TRY(zr_model_take_loss(model, &loss));
    ZR_TRY(zr_runtime_share(rank->runtime, own, 2, all)); /* as plans take it that trainers do */
    if (step == settings->kill_step)
        raise(SIGKILL);
    return zr_runtime_step(rank->runtime, NULL);
}

static zr_status_t train_from(zr_rank_t *rank, zr_model_t *model) {
    const settings_t *settings = rank->context;
    zr_save_options_t save = {.folder = settings->folder};
    zr_checkpoint_info_t info = {0};
    if (settings->checkpoint != NULL)
        zr_checkpoint_info(settings->checkpoint, &info);
    for (size_t step = info.step + 1; step <= STEPS; step++) {
        ZR_TRY(train_step(rank, model, step));
        if (step % SAVE_EVERY == 0)
            ZR_TRY(zr_runtime_save(rank->runtime, &save, NULL));
    }
    return ZR_OK;
}

/* Of a run from its beginning to its end. */
static zr_status_t compare_with_plan(const zr_rank_t *rank) {
    const settings_t *settings = rank->context;
    for (int tier = ZR_TIER_DEVICE; tier <= ZR_TIER_HOST; tier++) {
        zr_tier_statistics_t measured;
        const zr_tier_statistics_t *planned = &settings->plan.tiers[tier];
        zr_allocator_statistics(zr_runtime_allocator(rank->runtime), (zr_tier_t)tier, &measured);
        if (measured.reserved.peak == planned->reserved.peak &&
            measured.live.peak == planned->live.peak)
            continue;
        fprintf(stderr, "rank %d, %s: %zu bytes live, %zu reserved; planned were %zu and %zu\n",
                rank->rank, zr_tier_name((zr_tier_t)tier), measured.live.peak,
                measured.reserved.peak, planned->live.peak, planned->reserved.peak);
        return ZR_ERR_STATE;
    }
    return ZR_OK;
}

static zr_status_t train(zr_rank_t *rank) {
    const settings_t *settings = rank->context;
    zr_activation_options_t activations = {.most_rows = ROWS};
    zr_model_t *model = NULL;
    uint64_t hash = 0;
    ZR_TRY(make(&model_options, rank->runtime, &activations, &model));
    zr_status_t status = zr_runtime_expect_saves(rank->runtime, false);
    if (status == ZR_OK && settings->checkpoint != NULL)
        status = zr_runtime_restore(rank->runtime, settings->checkpoint);
    ZR_THEN(status, zr_model_commit(model));
    ZR_THEN(status, train_from(rank, model));
    ZR_THEN(status, compare_with_plan(rank));
    ZR_THEN(status, zr_runtime_weights_xxh3(rank->runtime, &hash));
    if (status == ZR_OK && rank->rank == 0)
        printf("weights %016llx\n", (unsigned long long)hash);
    zr_model_destroy(&model);
    return status;
}

/* ---- the program ----------------------------------------------------------------------------- */

static zr_status_t plan(const zr_config_t *config, int n_ranks, zr_run_plan_t *plan_p) {
    zr_run_request_t request = {.model = {.make = make},
                                .config = *config,
                                .seq = T,
                                .n_steps = 3,
                                .saves = true,
                                .save_every = SAVE_EVERY,
                                .n_ranks = n_ranks,
                                .hardware = zr_hardware_default(),
                                .log = zr_log_default()};
    memcpy(request.model.context, &model_options, sizeof(model_options));
    return zr_run_plan(&request, plan_p);
}

/* The last checkpoint of a folder; NULL: it has none, or is not there yet. */
static zr_checkpoint_t *find_checkpoint(const char *folder) {
    zr_checkpoint_entry_t *entries = NULL;
    zr_checkpoint_t *checkpoint = NULL;
    size_t n_entries = 0;
    if (access(folder, F_OK) == 0 &&
        zr_checkpoint_list(folder, NULL, &entries, &n_entries) == ZR_OK && n_entries > 0 &&
        zr_checkpoint_open(folder, NULL, &checkpoint) != ZR_OK)
        checkpoint = NULL;
    free(entries);
    return checkpoint;
}

int main(int argc, char **argv) {
    if (argc < 4)
        return 2;
    int n_ranks = atoi(argv[3]);
    settings_t settings = {.folder = argv[1],
                           .kill_step = argc > 4 ? (size_t)atoi(argv[4]) : 0,
                           .checkpoint = find_checkpoint(argv[1])};
    zr_config_t config = zr_config_default();
    config.stage = atoi(argv[2]);
    config.micro_batch = B;
    config.grad_accum = ACCUM;
    config.reduce = ZR_REDUCE_EVERY_MICRO_BATCH;
    config.sub_group_elems = 2048;
    config.offload_optimizer.device = ZR_OFFLOAD_NVME;
    config.nvme.backend = &inverted_store;
    zr_config_set_optimizer(&config, &adagrad);
    config.adamw.lr = 0.05;
    zr_status_t status = zr_config_resolve(&config, n_ranks, NULL);
    ZR_THEN(status, plan(&config, n_ranks, &settings.plan));
    ZR_THEN(status, zr_run_ranks(&config, n_ranks, train, &settings, NULL));
    zr_checkpoint_close(&settings.checkpoint);
    return status != ZR_OK;
}
