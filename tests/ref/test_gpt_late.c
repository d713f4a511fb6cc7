/*
 * The model on a device whose streams run late and in every order that events allow: losses and
 * weights are the host's, to the bit. So nothing of a micro-batch is read before it is there,
 * given away before it was used, or borrowed for longer than the call.
 */
#include "models/gpt2/gpt.h"
#include "tests/common/late_device.h"
#include "tests/common/ranks.h"
#include "tests/common/test.h"
#include "tests/ref/gpt_batch.h"

enum { N_STEPS = 3, BATCH = 2, SEQ = 7, VOCAB = 29, MOST_ACCUM = 3 };

typedef struct late_case {
    zr_config_t config;
    bool recompute;
    zr_offload_device_t activations;
    double losses[TEST_MAX_RANKS][N_STEPS + 1]; /* of the steps, and of an evaluation */
    uint64_t hash[TEST_MAX_RANKS];
} late_case_t;

static void make_tokens(int rank, size_t step, int32_t *tokens) {
    for (size_t i = 0; i < BATCH * SEQ; i++)
        tokens[i] = (int32_t)((i * i + 5 * i * step + 3 * (size_t)rank + step) % VOCAB);
}

/* A loss becomes the average of all ranks'. */
static zr_status_t share_loss(test_rank_t *rank, zr_runtime_t *runtime, double *loss) {
    double all[TEST_MAX_RANKS], sum = 0;
    int n_ranks = zr_comm_n_ranks(rank->comm);
    ZR_TRY(zr_runtime_share(runtime, loss, 1, all));
    for (int r = 0; r < n_ranks; r++)
        sum += all[r];
    *loss = sum / n_ranks;
    return ZR_OK;
}

/* Those of a step that begin together, or one. */
static zr_status_t train_together(test_rank_t *rank, zr_model_t *gpt, size_t first, size_t n) {
    int32_t tokens[MOST_ACCUM][BATCH * SEQ], targets[MOST_ACCUM][BATCH * SEQ];
    zr_host_batch_t batches[MOST_ACCUM];
    for (size_t i = 0; i < n; i++) {
        make_tokens(rank->rank, first + i, tokens[i]);
        make_tokens(rank->rank, first + i + 1, targets[i]);
        batches[i] = (zr_host_batch_t){
            BATCH, SEQ, {[ZR_PART_TOKENS] = tokens[i], [ZR_PART_TARGETS] = targets[i]}};
    }
    ZR_TRY(zr_model_train(gpt, batches, n));
    memset(tokens, 0x7f, sizeof(tokens)); /* they were borrowed for the call alone */
    memset(targets, 0x7f, sizeof(targets));
    return ZR_OK;
}

static zr_status_t train(test_rank_t *rank, zr_runtime_t *runtime, zr_model_t *gpt) {
    late_case_t *c = rank->context;
    double *losses = c->losses[rank->rank];
    int32_t tokens[BATCH * SEQ], targets[BATCH * SEQ];
    for (size_t step = 0; step < N_STEPS; step++) {
        size_t n = zr_config_n_together(&c->config);
        for (size_t i = 0; i < c->config.grad_accum; i += n)
            ZR_TRY(train_together(rank, gpt, 2 * step + i, n));
        if (step > 0) /* sometimes the loss is read before the step, sometimes after */
            ZR_TRY(zr_model_take_loss(gpt, &losses[step]));
        ZR_TRY(zr_runtime_step(runtime, NULL));
        if (step == 0)
            ZR_TRY(zr_model_take_loss(gpt, &losses[step]));
        ZR_TRY(share_loss(rank, runtime, &losses[step]));
    }
    make_tokens(rank->rank, 1, tokens);
    make_tokens(rank->rank, 2, targets);
    ZR_TRY(gpt_evaluate(gpt, tokens, targets, BATCH, SEQ, &losses[N_STEPS]));
    return zr_runtime_weights_xxh3(runtime, &c->hash[rank->rank]);
}

static zr_status_t run_rank(test_rank_t *rank) {
    late_case_t *c = rank->context;
    const zr_gpt_shape_t shape = {
        .n_layers = 3, .channels = 12, .heads = 2, .seq = 8, .vocab = VOCAB};
    zr_transformer_options_t options = {.seed = 3, .weight_decay = 0.1};
    zr_activation_options_t activations = {
        .recompute = c->recompute, .device = c->activations, .most_rows = BATCH * SEQ};
    zr_runtime_t *runtime = NULL;
    zr_model_t *gpt = NULL;
    ZR_TRY(zr_runtime_create(&c->config, rank->comm, rank->device, &rank->log, &runtime));
    zr_status_t status = zr_gpt_create(runtime, &shape, &options, &activations, &gpt);
    ZR_THEN(status, zr_model_commit(gpt));
    ZR_THEN(status, train(rank, runtime, gpt));
    zr_model_destroy(&gpt);
    zr_runtime_destroy(&runtime);
    return status;
}

/* Variants from 8 on work on a step's micro-batches in each block before the next. */
static late_case_t run(int stage, int variant, zr_offload_device_t activations, bool late) {
    int n_ranks = variant & 1 ? 2 : 1;
    late_case_t c = {
        .config = zr_config_default(), .recompute = variant & 4, .activations = activations};
    c.config.nvme.store = "memory";
    c.config.offload_optimizer.n_buffers = variant & 1 ? 2 : 5;
    c.config.stage = stage;
    c.config.dtype = variant & 2 ? ZR_DTYPE_BF16 : ZR_DTYPE_F32;
    c.config.micro_batch = BATCH;
    c.config.grad_accum = variant & 8 ? MOST_ACCUM : 2;
    c.config.order = variant & 8 ? ZR_ORDER_BLOCK : ZR_ORDER_MICRO_BATCH;
    c.config.reduce = variant & 2 ? ZR_REDUCE_AUTO : ZR_REDUCE_EVERY_MICRO_BATCH;
    c.config.adamw.lr = 0.01;
    test_ranks_t ranks = {.n_ranks = n_ranks, .late = late, .run = run_rank, .context = &c};
    test_run_ranks(&ranks);
    for (int r = 0; r < n_ranks; r++)
        assert_int_equal(ranks.status[r], ZR_OK);
    return c;
}

static void assert_same(const late_case_t *host, const late_case_t *late, int stage, int variant) {
    for (int r = 0; r < (variant & 1 ? 2 : 1); r++) {
        if (memcmp(host->losses[r], late->losses[r], sizeof(host->losses[r])) != 0 ||
            host->hash[r] != late->hash[r])
            fail_msg("stage %d, variant %d, activations %d, rank %d: late streams change the "
                     "result (evaluation %.9g, not %.9g)",
                     stage, variant, (int)late->activations, r, late->losses[r][N_STEPS],
                     host->losses[r][N_STEPS]);
    }
}

/* ThreadSanitizer watches two ranks, with each type and with recomputation and without. */
#if defined(__SANITIZE_THREAD__)
enum { FIRST_VARIANT = 1, VARIANT_STEP = 10 };
#else
enum { FIRST_VARIANT = 0, VARIANT_STEP = 1 };
#endif

TEST(test_late) {
    for (int stage = 0; stage <= 3; stage++) {
        for (int variant = FIRST_VARIANT; variant < 16; variant += VARIANT_STEP) {
            if ((variant >= 8 && (variant + stage) % 4 != 0) || !ONE_OF(1, 3))
                continue;
            late_case_t host = run(stage, variant, ZR_OFFLOAD_NONE, false);
            late_case_t late = run(stage, variant, ZR_OFFLOAD_NONE, true);
            assert_same(&host, &late, stage, variant);
            for (int i = ZR_OFFLOAD_CPU; i <= ZR_OFFLOAD_NVME && host.recompute; i++) {
                late = run(stage, variant, (zr_offload_device_t)i, true);
                assert_same(&host, &late, stage, variant);
            }
        }
    }
}

/* A model that ends with its work queued, where its context says. */
static zr_status_t run_in_part(test_rank_t *rank) {
    const zr_gpt_shape_t shape = {
        .n_layers = 2, .channels = 12, .heads = 2, .seq = 8, .vocab = VOCAB};
    zr_transformer_options_t options = {.seed = 3};
    zr_config_t config = zr_config_default();
    zr_runtime_t *runtime = NULL;
    zr_model_t *gpt = NULL;
    int32_t tokens[BATCH * SEQ];
    config.micro_batch = BATCH;
    config.grad_accum = 1;
    make_tokens(0, 1, tokens);
    ZR_TRY(zr_runtime_create(&config, rank->comm, rank->device, &rank->log, &runtime));
    zr_status_t status = zr_gpt_create(runtime, &shape, &options, NULL, &gpt);
    ZR_THEN(status, zr_model_commit(gpt));
    if (status == ZR_OK)
        late_device_fail_work(zr_runtime_stream(runtime), *(const int *)rank->context);
    ZR_THEN(status, gpt_train(gpt, tokens, tokens, BATCH, SEQ));
    zr_model_destroy(&gpt);
    zr_runtime_destroy(&runtime);
    return status;
}

/* What it has is freed behind the work that uses it (late_device_check_free). */
TEST(test_ends_anywhere) {
    int nth = 0;
    test_ranks_t ranks = {
        .n_ranks = 1, .late = true, .quiet = true, .run = run_in_part, .context = &nth};
    do {
        nth++;
        test_run_ranks(&ranks);
    } while (ranks.status[0] == ZR_ERR_DEVICE);
    if (ranks.status[0] != ZR_OK)
        fail_msg("failure %d: %s", nth, ranks.last_error[0]);
    assert_true(nth > 20);
}
