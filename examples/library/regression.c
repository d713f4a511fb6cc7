/*
 * A whole program that uses the library: two linear layers learn a matrix from samples of it,
 * sharded over ranks at any stage.
 *
 *   regression [RANKS [ds_config.json]]
 *
 * Ranks are threads of this process. Where WORLD_SIZE and its like are set, or a launcher of MPI's
 * has started it, it is one rank of several processes instead, and RANKS does not matter. Build it
 * against an installed library with pkg-config, or with the CMakeLists.txt beside it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <zero/zero.h>

enum { N = 32, LAYERS = 2, STEPS = 300, MAX_BATCH = 64 };

typedef struct {
    zr_runtime_t *runtime;
    const zr_config_t *config;
    size_t rank, n_ranks;
    zr_unit_t *layers[LAYERS];
    zr_param_t *weights[LAYERS];
} model_t;

/* Between -1 and 1; a number as good as drawn, and the same for the same i. */
static float drawn(size_t i) {
    uint64_t bits = (i + 1) * 0x9e3779b97f4a7c15U;
    bits = (bits ^ bits >> 31) * 0xbf58476d1ce4e5b9U;
    return (float)(bits >> 40) / (1 << 23) - 1;
}

/* Initial values depend on an element's place alone: any rank may be asked for any of them. */
static void fill(void *context, size_t first, size_t n_elems, float *values) {
    (void)context;
    for (size_t i = 0; i < n_elems; i++)
        values[i] = 0.1F * drawn(first + i);
}

static zr_status_t build(model_t *model) {
    for (int l = 0; l < LAYERS; l++) {
        char name[16];
        snprintf(name, sizeof(name), "h.%d", l);
        ZR_TRY(zr_runtime_add_unit(model->runtime, name, &model->layers[l]));
        snprintf(name, sizeof(name), "h.%d.w", l);
        zr_param_desc_t desc = {.name = name, .n_dims = 2, .dims = {N, N}, .fill = fill};
        ZR_TRY(zr_unit_add_param(model->layers[l], &desc, &model->weights[l]));
    }
    return zr_runtime_commit(model->runtime);
}

/* y[b][i] = the sum over j of w[i][j] x[b][j] */
static zr_status_t forward(model_t *model, int l, size_t batch, float (*x)[N], float (*y)[N]) {
    ZR_TRY(zr_unit_acquire(model->layers[l], ZR_FORWARD));
    const float *w = zr_param_data(model->weights[l]); /* the whole matrix, until the release */
    for (size_t b = 0; b < batch; b++)
        for (int i = 0; i < N; i++) {
            y[b][i] = 0;
            for (int j = 0; j < N; j++)
                y[b][i] += w[i * N + j] * x[b][j];
        }
    return zr_unit_release(model->layers[l]);
}

static zr_status_t backward(model_t *model, int l, size_t batch, float (*x)[N], float (*dy)[N],
                            float (*dx)[N]) {
    void *gradient;
    ZR_TRY(zr_unit_acquire(model->layers[l], ZR_BACKWARD));
    ZR_TRY(zr_param_grad(model->weights[l], &gradient, NULL)); /* what is found there is added to */
    const float *w = zr_param_data(model->weights[l]);
    float *dw = gradient;
    for (size_t b = 0; b < batch; b++) {
        for (int j = 0; j < N; j++)
            dx[b][j] = 0;
        for (int i = 0; i < N; i++)
            for (int j = 0; j < N; j++) {
                dw[i * N + j] += dy[b][i] * x[b][j];
                dx[b][j] += dy[b][i] * w[i * N + j];
            }
    }
    ZR_TRY(zr_unit_reduce(model->layers[l])); /* over the ranks */
    return zr_unit_release(model->layers[l]);
}

/* The wanted y is x turned by one place, the loss the mean over the batch of |y - wanted|^2 / 2. */
static zr_status_t micro_batch(model_t *model, size_t first_sample, double *loss_p) {
    static _Thread_local float x[LAYERS + 1][MAX_BATCH][N], dy[2][MAX_BATCH][N];
    size_t batch = model->config->micro_batch;
    for (size_t b = 0; b < batch; b++)
        for (size_t i = 0; i < N; i++)
            x[0][b][i] = drawn((first_sample + b) * N + i);
    ZR_TRY(zr_runtime_begin_micro_batch(model->runtime));
    for (int l = 0; l < LAYERS; l++)
        ZR_TRY(forward(model, l, batch, x[l], x[l + 1]));
    for (size_t b = 0; b < batch; b++)
        for (int i = 0; i < N; i++) {
            double error = x[LAYERS][b][i] - x[0][b][(i + 1) % N];
            *loss_p += error * error / 2 / (double)batch;
            dy[LAYERS % 2][b][i] = (float)(error / (double)batch);
        }
    for (int l = LAYERS - 1; l >= 0; l--)
        ZR_TRY(backward(model, l, batch, x[l], dy[(l + 1) % 2], dy[l % 2]));
    return ZR_OK;
}

static zr_status_t train(model_t *model) {
    size_t accum = model->config->grad_accum, n_batches = 0;
    for (int step = 1; step <= STEPS; step++) {
        double loss = 0;
        for (size_t k = 0; k < accum; k++, n_batches++) /* each rank has samples of its own */
            ZR_TRY(micro_batch(
                model, (n_batches * model->n_ranks + model->rank) * model->config->micro_batch,
                &loss));
        ZR_TRY(
            zr_runtime_step(model->runtime, NULL)); /* mean over ranks and micro-batches, AdamW */
        ZR_TRY(zr_runtime_average(model->runtime, loss / (double)accum, &loss));
        if (model->rank == 0 && (step == 1 || step % 100 == 0))
            printf("step %3d: loss %.4f\n", step, loss);
    }
    uint64_t hash;
    ZR_TRY(zr_runtime_weights_xxh3(model->runtime, &hash));
    if (model->rank == 0)
        printf("weights %016llx\n", (unsigned long long)hash);
    return ZR_OK;
}

/* Of each rank, in its own thread. What it returns that is no success ends the others. */
static zr_status_t run(zr_rank_t *rank) {
    model_t model = {.runtime = rank->runtime,
                     .config = zr_runtime_config(rank->runtime),
                     .rank = (size_t)rank->rank,
                     .n_ranks = (size_t)rank->n_ranks};
    if (model.config->micro_batch > MAX_BATCH || model.config->dtype != ZR_DTYPE_F32)
        return zr_fail(zr_runtime_log(rank->runtime), ZR_ERR_ARGUMENT,
                       "regression: fp32, with a micro-batch of at most %d", MAX_BATCH);
    ZR_TRY(build(&model));
    return train(&model);
}

/* Ours over the library's defaults, and the file over both. What fails has said why: without a log
 * of the program's own, the library writes to standard error. */
int main(int argc, char **argv) {
    int n_ranks = argc > 1 ? atoi(argv[1]) : 2;
    zr_config_t config = zr_config_default();
    config.stage = 3;
    config.micro_batch = 16;
    config.adamw.lr = 0.003;
    if (argc > 3) {
        fprintf(stderr, "usage: regression [RANKS [ds_config.json]]\n");
        return 2;
    }
    if (argc > 2 && zr_config_read_json(argv[2], NULL, &config) != ZR_OK)
        return 2;
    return zr_run_ranks(&config, n_ranks, run, NULL, NULL) != ZR_OK;
}
