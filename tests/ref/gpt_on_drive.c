/* See gpt_on_drive.h. */
#include <stdatomic.h>

#include "models/gpt2/gpt.h"
#include "offload/store_backend.h"
#include "tests/common/test.h"
#include "tests/offload/fault_ring.h"
#include "tests/offload/store_fixture.h"
#include "tests/ref/gpt_batch.h"
#include "tests/ref/gpt_on_drive.h"

/* A run takes a fraction of a second; one that takes this long hangs, or leaves a thread. */
#define WATCHDOG_SECONDS 200

enum { N_STEPS = 2, N_MICRO_BATCHES = 2, BATCH = 2, SEQ = 32, VOCAB = 61 };

/* More layers than buffers, so that inputs of layers are written and read. */
static const zr_gpt_shape_t shape = {
    .n_layers = 5, .channels = 16, .heads = 2, .seq = SEQ, .vocab = VOCAB};

/* ---- what is left behind -------------------------------------------------------------------- */

/* Found when they are destroyed, by ranks at the same time. */
static atomic_size_t n_lost_transfers, n_lost_blocks;

/* Whoever started a transfer has waited for it, also after an error. */
WRAP(void, zr_store_destroy, zr_store_t **store) {
    for (size_t i = 0; *store != NULL && i < (*store)->options.max_transfers; i++)
        n_lost_transfers += (*store)->transfers[i].state != ZR_TRANSFER_FREE;
    __real_zr_store_destroy(store);
}

WRAP(void, zr_allocator_destroy, zr_allocator_t **allocator) {
    static const zr_tier_t tiers[] = {ZR_TIER_DEVICE, ZR_TIER_HOST};
    for (size_t i = 0; *allocator != NULL && i < 2; i++) {
        zr_tier_statistics_t statistics;
        zr_allocator_statistics(*allocator, tiers[i], &statistics);
        n_lost_blocks += statistics.n_live;
    }
    __real_zr_allocator_destroy(allocator);
}

static size_t count_threads(void) {
    return count_names("/proc/self/task");
}

/* ---- training ------------------------------------------------------------------------------- */

static zr_config_t make_config(const gpt_run_t *run) {
    const gpt_variant_t *variant = &run->variant;
    zr_config_t config = zr_config_default();
    config.stage = variant->stage;
    config.dtype = variant->dtype;
    config.micro_batch = BATCH;
    config.grad_accum = N_MICRO_BATCHES;
    config.adamw.lr = 0.01;
    config.clip = variant->in_backward ? 0.01 : 1.0; /* less than the norm of any step */
    config.order = variant->is_block ? ZR_ORDER_BLOCK : ZR_ORDER_MICRO_BATCH;
    if (variant->is_final) {
        config.clip = 0;
        config.check_overflow = false;
    }
    if (run->paths == NULL)
        return config;
    config.master = variant->master;
    config.update_at = variant->in_backward ? ZR_UPDATE_AT_BACKWARD : ZR_UPDATE_AT_END;
    snprintf(config.nvme.paths, sizeof(config.nvme.paths), "%s", run->paths);
    config.nvme.request_bytes = 8192; /* transfers are several requests */
    config.nvme.depth = 4;
    config.nvme.submit_batch = 2;
    config.sub_group_elems = 4096 / zr_dtype_size(variant->dtype); /* of gradients, a block */
    config.offload_optimizer.device = ZR_OFFLOAD_NVME;
    config.offload_optimizer.n_buffers = variant->n_buffers;
    config.offload_optimizer.gradients = ZR_OFFLOAD_NVME;
    config.offload_optimizer.gradients_ratio = variant->mixed ? 0.8 : 1;
    config.offload_optimizer.gradients_in_cpu_elems = variant->mixed ? 2048 : 0;
    config.offload_optimizer.ratio = variant->mixed ? 0.8 : 1;
    config.offload_optimizer.max_in_cpu_elems = variant->mixed ? 2048 : 0;
    if (variant->stage != 3)
        return config;
    config.offload_param.device = ZR_OFFLOAD_NVME;
    config.offload_param.n_buffers = variant->n_buffers;
    config.offload_param.buffer_elems = 2048;
    config.offload_param.ratio = variant->mixed ? 0.8 : 1;
    config.offload_param.max_in_cpu_elems = variant->mixed ? 2000 : 0;
    return config;
}

static void make_tokens(int rank, size_t step, int32_t *tokens) {
    for (size_t i = 0; i < BATCH * SEQ; i++)
        tokens[i] = (int32_t)((i * i + 5 * i * step + 3 * (size_t)rank + step) % VOCAB);
}

/* Steps, and an evaluation, which reads the parameters once more. */
static zr_status_t train(int rank, zr_runtime_t *runtime, zr_model_t *gpt) {
    int32_t tokens[N_MICRO_BATCHES + 1][BATCH * SEQ];
    zr_host_batch_t batches[N_MICRO_BATCHES];
    double loss;
    for (size_t step = 0; step < N_STEPS; step++) {
        for (size_t i = 0; i <= N_MICRO_BATCHES; i++)
            make_tokens(rank, 2 * step + i, tokens[i]);
        for (size_t i = 0; i < N_MICRO_BATCHES; i++)
            batches[i] = gpt_batch(tokens[i], tokens[i + 1], BATCH, SEQ);
        ZR_TRY(zr_model_train(gpt, batches, N_MICRO_BATCHES));
        ZR_TRY(zr_runtime_step(runtime, NULL));
    }
    return zr_model_evaluate(gpt, &batches[0], &loss);
}

static zr_status_t build_and_train(test_rank_t *rank, zr_runtime_t *runtime, zr_model_t **gpt_p) {
    gpt_run_t *run = rank->context;
    const zr_transformer_options_t options = {.seed = 3, .weight_decay = 0.1};
    const zr_activation_options_t activations = {.recompute = true,
                                                 .device = run->paths != NULL ? ZR_OFFLOAD_NVME
                                                                              : ZR_OFFLOAD_NONE,
                                                 .most_rows = BATCH * SEQ};
    ZR_TRY(zr_gpt_create(runtime, &shape, &options, &activations, gpt_p));
    ZR_TRY(zr_model_commit(*gpt_p));
    ZR_TRY(train(rank->rank, runtime, *gpt_p));
    return zr_runtime_weights_xxh3(runtime, &run->hash[rank->rank]);
}

static zr_status_t run_rank(test_rank_t *rank) {
    gpt_run_t *run = rank->context;
    zr_config_t config = make_config(run);
    zr_runtime_t *runtime = NULL;
    zr_model_t *gpt = NULL;
    fault_spare_thread(rank->rank != run->bad_rank);
    ZR_TRY(zr_runtime_create(&config, rank->comm, rank->device, &rank->log, &runtime));
    zr_status_t status = build_and_train(rank, runtime, &gpt);
    zr_model_destroy(&gpt);
    zr_runtime_destroy(&runtime);
    return status;
}

void gpt_run(gpt_run_t *run) {
    size_t n_descriptors = count_descriptors(), n_threads = count_threads();
    run->ranks = (test_ranks_t){
        .n_ranks = run->variant.n_ranks, .quiet = true, .run = run_rank, .context = run};
    n_lost_transfers = n_lost_blocks = 0;
    alarm(WATCHDOG_SECONDS);
    test_run_ranks(&run->ranks);
    while (count_threads() > n_threads) /* one that was joined is seen for a moment longer */
        usleep(100);
    alarm(0);
    assert_int_equal(count_descriptors(), n_descriptors);
    assert_int_equal(n_lost_transfers, 0);
    assert_int_equal(n_lost_blocks, 0);
}
