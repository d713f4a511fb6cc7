/*
 * Promise 1 for the real model: GPT ends in bitwise the same weights at every stage, per number
 * of ranks, in fp32 and bf16, with and without clipping, recomputation, frozen parameters and
 * accumulation, and in either order of a step; its embedding is tied.
 */
#include "models/gpt2/gpt.h"
#include "tests/common/ranks.h"
#include "tests/common/test.h"
#include "tests/ref/gpt_batch.h"
#include "tests/ref/low_rank.h"

enum { BATCH = 2, SEQ = 13, VOCAB = 61, N_STEPS = 3, MOST_ACCUM = 3 };

typedef struct gpt_run {
    zr_config_t config;
    zr_transformer_options_t options;
    zr_activation_options_t activations;
    uint64_t hash[TEST_MAX_RANKS];
} gpt_run_t;

static void make_tokens(int rank, size_t step, size_t k, int32_t *tokens, int32_t *targets) {
    uint64_t x = (uint64_t)rank * 1000003u + step * 7919u + k * 104729u + 1;
    for (int i = 0; i < BATCH * SEQ; i++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        tokens[i] = (int32_t)((x >> 33) % VOCAB);
        targets[i] = (int32_t)((x >> 45) % VOCAB);
    }
}

static zr_status_t train(test_rank_t *rank, gpt_run_t *run, zr_runtime_t *runtime,
                         zr_model_t *gpt) {
    int32_t tokens[MOST_ACCUM][BATCH * SEQ], targets[MOST_ACCUM][BATCH * SEQ];
    zr_host_batch_t batches[MOST_ACCUM];
    for (size_t step = 0; step < N_STEPS; step++) {
        double loss;
        for (size_t k = 0; k < run->config.grad_accum; k++) {
            make_tokens(rank->rank, step, k, tokens[k], targets[k]);
            batches[k] = (zr_host_batch_t){
                BATCH, SEQ, {[ZR_PART_TOKENS] = tokens[k], [ZR_PART_TARGETS] = targets[k]}};
        }
        ZR_TRY(zr_model_train(gpt, batches, run->config.grad_accum));
        ZR_TRY(zr_model_take_loss(gpt, &loss));
        ZR_TRY(zr_runtime_step(runtime, NULL));
    }
    return zr_runtime_weights_xxh3(runtime, &run->hash[rank->rank]);
}

static zr_status_t run_rank(test_rank_t *rank) {
    gpt_run_t *run = rank->context;
    zr_gpt_shape_t shape = {.n_layers = 2, .channels = 24, .heads = 3, .seq = SEQ, .vocab = VOCAB};
    zr_runtime_t *runtime = NULL;
    zr_model_t *gpt = NULL;
    ZR_TRY(zr_runtime_create(&run->config, rank->comm, rank->device, &rank->log, &runtime));
    zr_status_t status = zr_gpt_create(runtime, &shape, &run->options, &run->activations, &gpt);
    ZR_THEN(status, zr_model_commit(gpt));
    ZR_THEN(status, train(rank, run, runtime, gpt));
    zr_model_destroy(&gpt);
    zr_runtime_destroy(&runtime);
    return status;
}

static uint64_t hash_of(gpt_run_t *run, int n_ranks) {
    test_ranks_t ranks = {.n_ranks = n_ranks, .run = run_rank, .context = run};
    test_run_ranks(&ranks);
    for (int r = 0; r < n_ranks; r++) {
        assert_int_equal(ranks.status[r], ZR_OK);
        assert_true(run->hash[r] == run->hash[0]);
    }
    return run->hash[0];
}

static gpt_run_t variant(zr_dtype_t dtype, unsigned flags) {
    gpt_run_t run = {.config = zr_config_default(), .options = {.seed = 5, .weight_decay = 0.1}};
    run.config.dtype = dtype;
    run.config.adamw.lr = 0.01;
    run.config.micro_batch = BATCH;
    run.config.grad_accum = flags & 1 ? 2 : 1;
    run.config.clip = flags & 2 ? 0.5 : 0;
    run.activations.recompute = (flags & 4) != 0;
    run.options.freeze = flags & 8 ? "wpe,h.0" : NULL;
    run.options.adapter = flags & 16 ? low_rank_adapter() : NULL;
    return run;
}

static void expect_same(gpt_run_t *run, int n_ranks, int first, int last) {
    run->config.stage = first;
    uint64_t reference = hash_of(run, n_ranks);
    for (run->config.stage = first + 1; run->config.stage <= last; run->config.stage++)
        if (hash_of(run, n_ranks) != reference)
            fail_msg("%d ranks, %s: stage %d differs from stage %d", n_ranks,
                     zr_dtype_name(run->config.dtype), run->config.stage, first);
}

TEST(all_stages_agree) {
    const int rank_counts[] = {1, 2, 3, 4, 8};
    for (int i = 0; i < 5; i++)
        for (int dtype = ZR_DTYPE_F32; dtype <= ZR_DTYPE_BF16; dtype++)
            for (unsigned flags = 0; flags < 16; flags++) {
                gpt_run_t run = variant((zr_dtype_t)dtype, flags);
                if (flags & 1)
                    run.config.reduce = ZR_REDUCE_EVERY_MICRO_BATCH;
                expect_same(&run, rank_counts[i], 0, 3);
            }
}

/* Each block for all micro-batches has the bits of each micro-batch through all blocks, where
 * micro-batches are added before ranks and where ranks are: wherever activations wait. The head's
 * part of the embedding's gradients comes with the embedding's own. */
TEST(orders_agree) {
    for (unsigned i = 0; i < 3 * 2 * 16; i++) {
        int n_ranks = 1 + (int)(i % 3);
        gpt_run_t run = variant(i / 3 % 2 ? ZR_DTYPE_BF16 : ZR_DTYPE_F32, i / 6);
        run.config.grad_accum = MOST_ACCUM;
        run.config.reduce = i / 6 % 2 ? ZR_REDUCE_EVERY_MICRO_BATCH : ZR_REDUCE_AUTO;
        run.config.stage = 0;
        uint64_t reference = hash_of(&run, n_ranks);
        run.config.order = ZR_ORDER_BLOCK;
        run.config.stage = (int)((i + i / 3) % 4);
        run.activations.most_rows = BATCH * SEQ;
        if (run.activations.recompute)
            run.activations.device = (zr_offload_device_t)(i % 3);
        run.config.nvme.store = "memory";
        snprintf(run.config.nvme.paths, sizeof(run.config.nvme.paths), "x");
        if (hash_of(&run, n_ranks) != reference)
            fail_msg("case %u, %d ranks: stage %d, each block for all micro-batches, differs", i,
                     n_ranks, run.config.stage);
    }
}

/* Beside weights that are trained, and beside frozen ones. */
TEST(all_stages_agree_with_adapters) {
    for (int n_ranks = 2; n_ranks <= 3; n_ranks++)
        for (int dtype = ZR_DTYPE_F32; dtype <= ZR_DTYPE_BF16; dtype++)
            for (int frozen = 0; frozen <= 1; frozen++) {
                gpt_run_t run = variant((zr_dtype_t)dtype, 16 | 4 | 2);
                if (frozen)
                    run.options.freeze = "wte,wpe,ln_f,h.0.attn.c_attn.weight,h.0.mlp.c_fc.weight";
                expect_same(&run, n_ranks, 0, 3);
            }
}

TEST(what_should_matter_matters) {
    gpt_run_t plain = variant(ZR_DTYPE_F32, 0), clipped = variant(ZR_DTYPE_F32, 2);
    gpt_run_t frozen = variant(ZR_DTYPE_F32, 8), seeded = variant(ZR_DTYPE_F32, 0);
    gpt_run_t adapted = variant(ZR_DTYPE_F32, 16);
    seeded.options.seed = 6;
    uint64_t reference = hash_of(&plain, 2);
    assert_true(hash_of(&clipped, 2) != reference);
    assert_true(hash_of(&frozen, 2) != reference);
    assert_true(hash_of(&seeded, 2) != reference);
    assert_true(hash_of(&adapted, 2) != reference);
    assert_true(hash_of(&plain, 1) != reference);
}
