/*
 * A model of one's own as a list of blocks: three linear layers learn a matrix from samples of it.
 * The program plans the training to the byte, trains on several ranks, saves checkpoints, and goes
 * on from the newest one when it is started again. The guide is docs/guide/own-model.md.
 *
 *   blocks [RANKS [ds_config.json [FOLDER]]]      FOLDER: of checkpoints; without it none are saved
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zero/zero.h>

enum { N = 32, LAYERS = 3, STEPS = 300, SAVE_EVERY = 100, BATCH = 16 };

/* A number between -1 and 1 that looks random, the same for the same i. */
static float drawn(size_t i) {
    uint64_t bits = (i + 1) * 0x9e3779b97f4a7c15U;
    bits = (bits ^ bits >> 31) * 0xbf58476d1ce4e5b9U;
    return (float)(bits >> 40) / (1 << 23) - 1;
}

/* ---- kernels: functions that run in the order of the stream ---------------------------------- */

typedef struct {
    size_t rows;
    const float *x, *w, *wanted;
    float *y, *dw;
    double *loss;
    bool adds; /* to dw */
} args_t;

/* y[r] = w x[r] */
static void multiply(const void *context) {
    const args_t *a = context;
    for (size_t r = 0; r < a->rows; r++)
        for (size_t i = 0; i < N; i++) {
            a->y[r * N + i] = 0;
            for (size_t j = 0; j < N; j++)
                a->y[r * N + i] += a->w[i * N + j] * a->x[r * N + j];
        }
}

/* dw (+)= the sum over rows of dy x; here `wanted` is dy and y is dx */
static void differentiate(const void *context) {
    const args_t *a = context;
    for (size_t k = 0; !a->adds && k < (size_t)N * N; k++)
        a->dw[k] = 0;
    for (size_t r = 0; r < a->rows; r++) {
        for (size_t j = 0; j < N; j++)
            a->y[r * N + j] = 0;
        for (size_t i = 0; i < N; i++)
            for (size_t j = 0; j < N; j++) {
                a->dw[i * N + j] += a->wanted[r * N + i] * a->x[r * N + j];
                a->y[r * N + j] += a->wanted[r * N + i] * a->w[i * N + j];
            }
    }
}

/* The mean over rows of |x - wanted|^2 / 2, and its gradient in y unless that is NULL */
static void measure(const void *context) {
    const args_t *a = context;
    for (size_t k = 0; k < a->rows * N; k++) {
        double error = a->x[k] - a->wanted[k];
        *a->loss += error * error / 2 / (double)a->rows;
        if (a->y != NULL)
            a->y[k] = (float)(error / (double)a->rows);
    }
}

/* The cost, floating-point operations and bytes, is what a plan computes times from. */
static zr_status_t run(zr_visit_t *visit, const char *name, void (*function)(const void *),
                       args_t *args, double operations) {
    const zr_own_kernel_t kernel = {.name = name, .host = function};
    args->rows = visit->batch->rows;
    operations *= (double)args->rows * N;
    return zr_kernel_own(visit->stream, &kernel, args, sizeof(*args),
                         (zr_cost_t){operations, 8 * (double)args->rows * N});
}

static zr_status_t take(zr_visit_t *visit, void **pointer_p) {
    return zr_visit_take(visit, ZR_MEMORY_KEPT, visit->batch->rows * N * sizeof(float), pointer_p);
}

/* ---- blocks ---------------------------------------------------------------------------------- */

static zr_status_t layer_declare(zr_block_t *block, const void *shape, void *self) {
    char name[32];
    (void)shape;
    snprintf(name, sizeof(name), "h.%zu.w", zr_block_index(block));
    zr_block_param_t w = {
        .name = name, .n_dims = 2, .dims = {N, N}, .init = ZR_INIT_NORMAL, .deviation = 0.1};
    return zr_block_add_param(block, &w, self);
}

/* The first layer's x are the samples, which are an input of the micro-batch. */
static const void *input_of(const zr_visit_t *visit) {
    return visit->x != NULL ? visit->x : visit->batch->inputs[0];
}

static zr_status_t layer_forward(zr_visit_t *visit) {
    zr_param_t *w = *(zr_param_t **)visit->self;
    ZR_TRY(take(visit, &visit->y));
    args_t args = {.x = input_of(visit), .w = zr_param_data(w), .y = visit->y};
    return run(visit, "multiply", multiply, &args, 2 * N);
}

static zr_status_t layer_backward(zr_visit_t *visit) {
    zr_param_t *w = *(zr_param_t **)visit->self;
    void *dx = NULL, *dw;
    args_t args = {.x = input_of(visit), .w = zr_param_data(w), .wanted = visit->gradient};
    ZR_TRY(zr_param_grad(w, &dw, &args.adds));
    ZR_TRY(take(visit, &dx));
    args.dw = dw;
    args.y = dx;
    zr_status_t status = run(visit, "differentiate", differentiate, &args, 4 * N);
    zr_visit_drop(visit, &visit->gradient);
    visit->gradient = dx;
    return status;
}

static const zr_block_type_t layer = {.name = "layer",
                                      .declare = layer_declare,
                                      .forward = layer_forward,
                                      .backward = layer_backward,
                                      .self_bytes = sizeof(zr_param_t *)};

static zr_status_t loss_forward(zr_visit_t *visit) {
    args_t args = {.x = visit->x, .wanted = visit->batch->inputs[1], .loss = visit->loss};
    return run(visit, "measure", measure, &args, 3);
}

static zr_status_t loss_backward(zr_visit_t *visit) {
    ZR_TRY(take(visit, &visit->gradient));
    args_t args = {.x = visit->x,
                   .wanted = visit->batch->inputs[1],
                   .loss = visit->loss,
                   .y = visit->gradient};
    return run(visit, "measure", measure, &args, 4);
}

static const zr_block_type_t loss = {
    .name = "loss", .forward = loss_forward, .backward = loss_backward};

/* Makes the model: the library calls it to plan, on simulated hardware, and train() to train. */
static zr_status_t make(const void *context, zr_runtime_t *runtime,
                        const zr_activation_options_t *activations, zr_model_t **model_p) {
    zr_model_options_t options = {
        .inputs = {{"sample", N * sizeof(float), 0}, {"wanted", N * sizeof(float), 0}},
        .n_inputs = 2,
        .seed = 1,
        .activations = *activations};
    (void)context;
    ZR_TRY(zr_model_create(runtime, &options, model_p));
    for (int i = 0; i < LAYERS; i++) {
        char name[16];
        snprintf(name, sizeof(name), "h.%d", i);
        ZR_TRY(zr_model_add(*model_p, &layer, name, NULL));
    }
    return zr_model_add(*model_p, &loss, "loss", NULL);
}

/* ---- training -------------------------------------------------------------------------------- */

typedef struct {
    const char *folder;          /* of checkpoints; NULL: none are saved */
    zr_checkpoint_t *checkpoint; /* to go on from; NULL: begin */
} settings_t;

/* To learn: y is x, rotated by one place. Each rank trains on its own samples. */
static zr_status_t train_step(zr_rank_t *rank, zr_model_t *model, size_t step, double *loss_p) {
    const zr_config_t *config = zr_runtime_config(rank->runtime);
    for (size_t k = 0; k < config->grad_accum; k++) {
        float x[BATCH * N], wanted[BATCH * N];
        size_t number =
            (step * config->grad_accum + k) * (size_t)rank->n_ranks + (size_t)rank->rank;
        for (size_t i = 0; i < BATCH * N; i++)
            x[i] = drawn(number * BATCH * N + i);
        for (size_t i = 0; i < BATCH * N; i++)
            wanted[i] = x[i / N * N + (i + 1) % N];
        zr_host_batch_t batch = {.n_sequences = BATCH, .seq = 1, .inputs = {x, wanted}};
        ZR_TRY(zr_model_train(model, &batch, 1));
    }
    ZR_TRY(zr_model_take_loss(model, loss_p));
    ZR_TRY(zr_runtime_step(rank->runtime, NULL));
    return zr_runtime_average(rank->runtime, *loss_p, loss_p);
}

static zr_status_t train_all(zr_rank_t *rank, zr_model_t *model) {
    const settings_t *settings = rank->context;
    const zr_save_options_t save = {.folder = settings->folder, .keep = 2};
    zr_checkpoint_info_t info = {0};
    zr_tier_statistics_t memory;
    uint64_t hash;
    double mean;
    ZR_TRY(zr_model_commit(model));
    if (settings->checkpoint != NULL)
        zr_checkpoint_info(settings->checkpoint, &info);
    for (size_t step = info.step + 1; step <= STEPS; step++) {
        ZR_TRY(train_step(rank, model, step, &mean));
        if (rank->rank == 0 && (step == 1 || step % 100 == 0))
            printf("step %3zu: loss %.4f\n", step, mean);
        if (settings->folder != NULL && step % SAVE_EVERY == 0)
            ZR_TRY(zr_runtime_save(rank->runtime, &save, NULL));
    }
    ZR_TRY(zr_runtime_weights_xxh3(rank->runtime, &hash));
    zr_allocator_statistics(zr_runtime_allocator(rank->runtime), ZR_TIER_DEVICE, &memory);
    if (rank->rank == 0)
        printf("device memory: %zu bytes\nweights %016llx\n", memory.live.peak,
               (unsigned long long)hash);
    return ZR_OK;
}

static zr_status_t train(zr_rank_t *rank) {
    const settings_t *settings = rank->context;
    const zr_activation_options_t activations = {0};
    zr_model_t *model = NULL;
    zr_status_t status = make(NULL, rank->runtime, &activations, &model);
    if (settings->folder != NULL)
        ZR_THEN(status, zr_runtime_expect_saves(rank->runtime, false));
    if (settings->checkpoint != NULL)
        ZR_THEN(status, zr_runtime_restore(rank->runtime, settings->checkpoint));
    ZR_THEN(status, train_all(rank, model));
    zr_model_destroy(&model);
    return status;
}

/* What a rank will need: the same training on simulated hardware, without data. */
static zr_status_t plan(const zr_config_t *config, int n_ranks, bool saves) {
    zr_run_request_t request = {.model = {.make = make},
                                .config = *config,
                                .seq = 1,
                                .n_steps = 3, /* later steps need what the third needs */
                                .saves = saves,
                                .save_every = saves ? SAVE_EVERY : 0,
                                .n_ranks = n_ranks,
                                .hardware = zr_hardware_default(),
                                .log = zr_log_default()};
    zr_run_plan_t planned;
    ZR_TRY(zr_config_resolve(&request.config, n_ranks, NULL));
    ZR_TRY(zr_run_plan(&request, &planned));
    printf("planned: %zu bytes\n", planned.tiers[ZR_TIER_DEVICE].live.peak);
    return ZR_OK;
}

static zr_status_t open_newest(const char *folder, zr_checkpoint_t **checkpoint_p) {
    zr_checkpoint_entry_t *entries = NULL;
    size_t n = 0;
    if (folder == NULL || access(folder, F_OK) != 0)
        return ZR_OK;
    ZR_TRY(zr_checkpoint_list(folder, NULL, &entries, &n));
    free(entries);
    return n > 0 ? zr_checkpoint_open(folder, NULL, checkpoint_p) : ZR_OK;
}

int main(int argc, char **argv) {
    int n_ranks = argc > 1 ? atoi(argv[1]) : 2;
    settings_t settings = {.folder = argc > 3 ? argv[3] : NULL};
    zr_config_t config = zr_config_default();
    config.stage = 3;
    config.micro_batch = BATCH;
    config.clip = 1;
    config.adamw.lr = 0.01;
    if (argc > 4) {
        fprintf(stderr, "usage: blocks [RANKS [ds_config.json [FOLDER]]]\n");
        return 2;
    }
    if (argc > 2 && zr_config_read_json(argv[2], NULL, &config) != ZR_OK)
        return 2;
    if (config.micro_batch != BATCH || config.dtype != ZR_DTYPE_F32) {
        fprintf(stderr, "blocks: requires fp32 and a micro-batch of %d\n", BATCH);
        return 2;
    }
    zr_status_t status = open_newest(settings.folder, &settings.checkpoint);
    ZR_THEN(status, plan(&config, n_ranks, settings.folder != NULL));
    ZR_THEN(status, zr_run_ranks(&config, n_ranks, train, &settings, NULL));
    zr_checkpoint_close(&settings.checkpoint);
    return status != ZR_OK;
}
