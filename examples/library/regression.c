/*
 * A whole program that uses the library: two linear layers learn a matrix from samples of it,
 * sharded over ranks at any stage.
 *
 *   regression [RANKS [ds_config.json]]
 *
 * Ranks are threads of this process. Where WORLD_SIZE and its like are set, or a launcher of MPI's
 * has started it, it is one rank of several processes instead, and RANKS is not looked at. Build it
 * against an installed library with pkg-config, or with the CMakeLists.txt beside it.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <zero/zero.h>

enum { N = 32, LAYERS = 2, STEPS = 300, MAX_RANKS = 16, MAX_BATCH = 64 };

/* Of one rank, in its own thread. */
typedef struct {
    const zr_config_t *config;
    zr_comm_t *comm;
    zr_runtime_t *runtime;
    zr_unit_t *layers[LAYERS];
    zr_param_t *weights[LAYERS];
    zr_status_t status;
} rank_t;

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

static zr_status_t build(rank_t *rank) {
    for (int l = 0; l < LAYERS; l++) {
        char name[16];
        snprintf(name, sizeof(name), "h.%d", l);
        ZR_TRY(zr_runtime_add_unit(rank->runtime, name, &rank->layers[l]));
        snprintf(name, sizeof(name), "h.%d.w", l);
        zr_param_desc_t desc = {.name = name, .n_dims = 2, .dims = {N, N}, .fill = fill};
        ZR_TRY(zr_unit_add_param(rank->layers[l], &desc, &rank->weights[l]));
    }
    return zr_runtime_commit(rank->runtime);
}

/* y[b][i] = the sum over j of w[i][j] x[b][j] */
static zr_status_t forward(rank_t *rank, int l, size_t batch, float (*x)[N], float (*y)[N]) {
    ZR_TRY(zr_unit_acquire(rank->layers[l], ZR_FORWARD));
    const float *w = zr_param_data(rank->weights[l]); /* the whole matrix, until the release */
    for (size_t b = 0; b < batch; b++)
        for (int i = 0; i < N; i++) {
            y[b][i] = 0;
            for (int j = 0; j < N; j++)
                y[b][i] += w[i * N + j] * x[b][j];
        }
    return zr_unit_release(rank->layers[l]);
}

static zr_status_t backward(rank_t *rank, int l, size_t batch, float (*x)[N], float (*dy)[N],
                            float (*dx)[N]) {
    void *gradient;
    ZR_TRY(zr_unit_acquire(rank->layers[l], ZR_BACKWARD));
    ZR_TRY(zr_param_grad(rank->weights[l], &gradient, NULL)); /* what is found there is added to */
    const float *w = zr_param_data(rank->weights[l]);
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
    ZR_TRY(zr_unit_reduce(rank->layers[l])); /* over the ranks */
    return zr_unit_release(rank->layers[l]);
}

/* The wanted y is x turned by one place, the loss the mean over the batch of |y - wanted|^2 / 2. */
static zr_status_t micro_batch(rank_t *rank, size_t first_sample, double *loss_p) {
    static _Thread_local float x[LAYERS + 1][MAX_BATCH][N], dy[2][MAX_BATCH][N];
    size_t batch = rank->config->micro_batch;
    for (size_t b = 0; b < batch; b++)
        for (size_t i = 0; i < N; i++)
            x[0][b][i] = drawn((first_sample + b) * N + i);
    ZR_TRY(zr_runtime_begin_micro_batch(rank->runtime));
    for (int l = 0; l < LAYERS; l++)
        ZR_TRY(forward(rank, l, batch, x[l], x[l + 1]));
    for (size_t b = 0; b < batch; b++)
        for (int i = 0; i < N; i++) {
            double error = x[LAYERS][b][i] - x[0][b][(i + 1) % N];
            *loss_p += error * error / 2 / (double)batch;
            dy[LAYERS % 2][b][i] = (float)(error / (double)batch);
        }
    for (int l = LAYERS - 1; l >= 0; l--)
        ZR_TRY(backward(rank, l, batch, x[l], dy[(l + 1) % 2], dy[l % 2]));
    return ZR_OK;
}

static zr_status_t train(rank_t *rank) {
    size_t n_ranks = (size_t)zr_comm_n_ranks(rank->comm), accum = rank->config->grad_accum;
    size_t r = (size_t)zr_comm_rank(rank->comm), n_batches = 0;
    for (int step = 1; step <= STEPS; step++) {
        double loss = 0;
        for (size_t k = 0; k < accum; k++, n_batches++) /* each rank has samples of its own */
            ZR_TRY(micro_batch(rank, (n_batches * n_ranks + r) * rank->config->micro_batch, &loss));
        ZR_TRY(zr_runtime_step(rank->runtime, NULL)); /* mean over ranks and micro-batches, AdamW */
        ZR_TRY(zr_runtime_average(rank->runtime, loss / (double)accum, &loss));
        if (r == 0 && (step == 1 || step % 100 == 0))
            printf("step %3d: loss %.4f\n", step, loss);
    }
    uint64_t hash;
    ZR_TRY(zr_runtime_weights_xxh3(rank->runtime, &hash));
    if (r == 0)
        printf("weights %016llx\n", (unsigned long long)hash);
    return ZR_OK;
}

static void *run_rank(void *argument) {
    rank_t *rank = argument;
    zr_device_t *device = NULL;
    rank->status = zr_device_open("host", NULL, &device);
    if (rank->status == ZR_OK)
        rank->status = zr_runtime_create(rank->config, rank->comm, device, NULL, &rank->runtime);
    if (rank->status == ZR_OK)
        rank->status = build(rank);
    if (rank->status == ZR_OK)
        rank->status = train(rank);
    if (rank->status != ZR_OK) /* so that no other rank waits for this one */
        zr_comm_abort(rank->comm, zr_status_name(rank->status));
    zr_runtime_destroy(&rank->runtime);
    zr_comm_destroy(&rank->comm);
    zr_device_close(&device);
    return NULL;
}

/* Ours over the library's defaults, and the file over both. What fails has said why: without a log
 * of the program's own, the library writes to standard error. */
static bool configure(const char *path, int n_ranks, zr_config_t *config_p) {
    *config_p = zr_config_default();
    config_p->stage = 3;
    config_p->micro_batch = 16;
    config_p->adamw.lr = 0.003;
    if (path != NULL && zr_config_read_json(path, NULL, config_p) != ZR_OK)
        return false;
    if (zr_config_resolve(config_p, n_ranks, NULL) != ZR_OK)
        return false;
    if (config_p->micro_batch <= MAX_BATCH && config_p->dtype == ZR_DTYPE_F32)
        return true;
    fprintf(stderr, "regression: fp32, with a micro-batch of at most %d\n", MAX_BATCH);
    return false;
}

int main(int argc, char **argv) {
    int n_threads = argc > 1 ? atoi(argv[1]) : 2; /* ranks of this process */
    zr_config_t config;
    zr_comm_t *comms[MAX_RANKS];
    zr_launch_t launch;
    bool is_process;
    if (argc > 3 || n_threads < 1 || n_threads > MAX_RANKS) {
        fprintf(stderr, "usage: regression [RANKS [ds_config.json]], 1 to %d ranks\n", MAX_RANKS);
        return 2;
    }
    if (zr_launch_from_environment(NULL, &launch, &is_process) != ZR_OK ||
        !configure(argc > 2 ? argv[2] : NULL, is_process ? launch.n_ranks : n_threads, &config))
        return 2;
    if (is_process)
        n_threads = 1;
    if ((is_process ? zr_comm_create_mpi(&launch, NULL, comms)
                    : zr_comm_create_threads(n_threads, NULL, comms)) != ZR_OK)
        return 1;

    rank_t ranks[MAX_RANKS] = {0};
    pthread_t threads[MAX_RANKS];
    bool failed = false;
    for (int r = 0; r < n_threads; r++) {
        ranks[r].config = &config;
        ranks[r].comm = comms[r];
        if (pthread_create(&threads[r], NULL, run_rank, &ranks[r]) != 0)
            abort();
    }
    for (int r = 0; r < n_threads; r++) {
        pthread_join(threads[r], NULL);
        failed = failed || ranks[r].status != ZR_OK;
    }
    return failed;
}
