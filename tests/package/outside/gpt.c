/*
 * A program outside the tree that trains a model of libzero_models, on data of its own.
 *
 *   gpt STAGE RANKS [MODEL]
 *
 * It prints a hash of the weights. That it does not learn, or that its peak is not the planned one,
 * is an error.
 */
#include <models/shape.h>
#include <stdio.h>
#include <stdlib.h>

enum { STEPS = 30, B = 4, T = 16, ROWS = B * T };

typedef struct settings {
    zr_model_shape_t shape;
    zr_run_plan_t plan;
} settings_t;

static const zr_transformer_options_t options = {.seed = 5, .weight_decay = 0.1};

/* Each token follows from the one before it. */
static zr_status_t train_step(zr_rank_t *rank, zr_model_t *model, size_t step, double *loss_p) {
    const settings_t *settings = rank->context;
    int32_t tokens[ROWS + 1];
    size_t vocab = zr_model_shape_sizes(&settings->shape).vocab;
    zr_host_batch_t batch = {.n_sequences = B,
                             .seq = T,
                             .inputs = {[ZR_PART_TOKENS] = tokens, [ZR_PART_TARGETS] = tokens + 1}};
    tokens[0] = (int32_t)((step * 7 + (size_t)rank->rank) % vocab);
    for (size_t i = 0; i < ROWS; i++)
        tokens[i + 1] = (tokens[i] * 5 + 3) % (int32_t)vocab;
    ZR_TRY(zr_model_train(model, &batch, 1));
    ZR_TRY(zr_model_take_loss(model, loss_p));
    return zr_runtime_step(rank->runtime, NULL);
}

static zr_status_t check(const zr_rank_t *rank, double first, double last) {
    const settings_t *settings = rank->context;
    zr_tier_statistics_t measured;
    zr_allocator_statistics(zr_runtime_allocator(rank->runtime), ZR_TIER_DEVICE, &measured);
    size_t planned = settings->plan.tiers[ZR_TIER_DEVICE].live.peak;
    fprintf(stderr, "rank %d: loss %.3f to %.3f, %zu bytes of %zu planned\n", rank->rank, first,
            last, measured.live.peak, planned);
    return last < first / 2 && measured.live.peak == planned ? ZR_OK : ZR_ERR_STATE;
}

static zr_status_t train(zr_rank_t *rank) {
    const settings_t *settings = rank->context;
    zr_model_t *model = NULL;
    double first = 0, last = 0;
    uint64_t hash = 0;
    ZR_TRY(zr_model_shape_create(rank->runtime, &settings->shape, &options, NULL, &model));
    zr_status_t status = zr_model_commit(model);
    for (size_t step = 0; step < STEPS && status == ZR_OK; step++)
        status = train_step(rank, model, step, step == 0 ? &first : &last);
    ZR_THEN(status, check(rank, first, last));
    ZR_THEN(status, zr_runtime_weights_xxh3(rank->runtime, &hash));
    if (status == ZR_OK && rank->rank == 0)
        printf("weights %016llx\n", (unsigned long long)hash);
    zr_model_destroy(&model);
    return status;
}

int main(int argc, char **argv) {
    settings_t settings = {0};
    zr_model_tensors_t tensors;
    if (argc < 3)
        return 2;
    const char *model = argc > 3 ? argv[3] : "layers=2,channels=32,heads=2,seq=16,vocab=11";
    if (zr_model_shape_read(model, NULL, &settings.shape) != ZR_OK ||
        zr_model_shape_tensors(&settings.shape, NULL, NULL, &tensors) != ZR_OK)
        return 2;
    fprintf(stderr, "%zu parameters, the first is %s\n", tensors.n, tensors.all[0].name);
    zr_model_tensors_free(&tensors);
    zr_config_t config = zr_config_default();
    config.stage = atoi(argv[1]);
    config.micro_batch = B;
    config.adamw.lr = 0.01;
    int n_ranks = atoi(argv[2]);
    zr_status_t status = zr_config_resolve(&config, n_ranks, NULL);
    zr_run_request_t request = {.model = zr_model_shape_maker(&settings.shape, &options),
                                .config = config,
                                .seq = T,
                                .n_steps = 3,
                                .n_ranks = n_ranks,
                                .hardware = zr_hardware_default(),
                                .log = zr_log_default()};
    ZR_THEN(status, zr_run_plan(&request, &settings.plan));
    ZR_THEN(status, zr_run_ranks(&config, n_ranks, train, &settings, NULL));
    return status != ZR_OK;
}
