/*
 * The design's two tables as tests: model states in memory per stage, and elements sent per
 * collective and step. Both are computed here from the sizes of the model, not from the runtime.
 */
#include "tests/common/test.h"
#include "tests/zero/toy.h"

/* Sum of all parameters in toy.c, so that the report of the runtime is checked too. */
#define TOY_ELEMS (101 + 1 + 7 + 0 + 1009 + 64 + 1 + 17 + 0 + 3 + 251 + 20011 + 2 + 0)

static void expect_states(const toy_options_t *options) {
    toy_result_t result;
    toy_train_well(options, &result);
    size_t n = (size_t)options->n_ranks;
    int stage = options->config.stage;
    size_t width = zr_dtype_size(options->config.dtype);
    size_t trainable = result.size.trainable_padded_elems;
    size_t all = trainable + result.size.frozen_padded_elems;
    assert_int_equal(result.size.trainable_elems + result.size.frozen_elems, TOY_ELEMS);
    assert_int_equal(trainable % n, 0);
    assert_true(trainable >= result.size.trainable_elems);
    /* Padding: less than 32 elements per parameter, and 32 per rank, unit and buffer. */
    assert_true(all <= TOY_ELEMS + 32 * result.size.n_params + 64 * n * result.size.n_units);

    const zr_byte_count_t *tag = result.device_memory.by_tag;
    assert_int_equal(tag[ZR_TAG_PARAMETERS].peak, width * (stage == 3 ? all / n : all));
    size_t accumulated =
        options->config.reduce == ZR_REDUCE_EVERY_MICRO_BATCH && stage < 2 ? trainable / n : 0;
    assert_int_equal(tag[ZR_TAG_GRADIENTS].peak,
                     width * ((stage >= 2 ? trainable / n : trainable) + accumulated));
    assert_int_equal(tag[ZR_TAG_OPTIMIZER_STATE].peak,
                     (4 * zr_config_optimizer(&options->config)->rule.n_arrays - width) *
                         (stage >= 1 ? trainable / n : trainable));
    bool gathers = stage == 3 && n > 1;
    size_t live = gathers ? width * result.size.largest_unit_padded_elems : 0;
    size_t prefetched = options->config.prefetch_elems != 0 ? live : 0;
    assert_true(tag[ZR_TAG_GATHERED_PARAMETERS].peak >= live);
    assert_true(tag[ZR_TAG_GATHERED_PARAMETERS].peak <= live + prefetched);
    assert_int_equal(tag[ZR_TAG_GATHERED_PARAMETERS].live, 0);
    assert_int_equal(tag[ZR_TAG_GRADIENT_BUCKETS].live, 0);
    if (stage < 2) /* sums are made in place */
        assert_int_equal(tag[ZR_TAG_GRADIENT_BUCKETS].peak, 0);
}

TEST(states_follow_the_table) {
    const int rank_counts[] = {1, 2, 3, 4, 8};
    for (int i = 0; i < 5; i++)
        for (int stage = 0; stage <= 3; stage++)
            for (int flags = 0; flags < 16; flags++) {
                if (!ONE_OF(3, 7))
                    continue;
                toy_options_t options = toy_options_default(stage, rank_counts[i]);
                options.n_steps = 2;
                options.config.dtype = flags & 1 ? ZR_DTYPE_BF16 : ZR_DTYPE_F32;
                options.frozen = (flags & 2) != 0;
                toy_set_optimizer(&options, (unsigned)(flags + i));
                options.config.prefetch_elems = flags & 4 ? 0 : 50000000;
                options.config.grad_accum = flags & 8 ? 2 : 1;
                options.config.reduce = flags & 8 ? ZR_REDUCE_EVERY_MICRO_BATCH : ZR_REDUCE_AUTO;
                expect_states(&options);
            }
}

static int n_shards_of(const toy_options_t *options) {
    return zr_config_n_shards(&options->config, options->n_ranks);
}

typedef struct traffic {
    uint64_t all_gather;
    uint64_t reduce_scatter;
    uint64_t all_reduce;
} traffic_t;

/* Elements sent per rank and step: the design's formulas, with what the options add. */
static traffic_t expected_traffic(const toy_options_t *options, const toy_result_t *result) {
    uint64_t n = (uint64_t)n_shards_of(options);
    uint64_t k = options->config.grad_accum;
    uint64_t trainable = result->size.trainable_padded_elems * (n - 1) / n;
    uint64_t all = trainable + result->size.frozen_padded_elems * (n - 1) / n;
    bool every = options->config.reduce == ZR_REDUCE_EVERY_MICRO_BATCH && k > 1;
    bool by_blocks = options->config.order == ZR_ORDER_BLOCK;
    uint64_t k_reduced = by_blocks && !every ? 1 : k, k_gathered = by_blocks ? 1 : k;
    bool in_parts = every || (int)n < options->n_ranks;
    switch (options->config.stage) {
    case 0:
        return in_parts ? (traffic_t){trainable, every ? k * trainable : trainable, 0}
                        : (traffic_t){0, 0, 2 * trainable};
    case 1:
        return (traffic_t){trainable, every ? k * trainable : trainable, 0};
    case 2:
        return (traffic_t){trainable, k_reduced * trainable, 0};
    default: /* forward and backward */
        return (traffic_t){k_gathered * 2 * all, k_reduced * trainable, 0};
    }
}

/* Between groups: each shard's sum, once per step; nothing else, and among all ranks nothing. */
static void expect_replicas(const toy_options_t *options, const toy_result_t *result,
                            uint64_t steps) {
    uint64_t n = (uint64_t)n_shards_of(options), n_groups = (uint64_t)options->n_ranks / n;
    uint64_t shard = result->size.trainable_padded_elems / n;
    const zr_comm_count_t *across = result->traffic[ZR_LEVEL_REPLICAS].count[ZR_TRAFFIC_MODEL];
    const zr_comm_count_t *all = result->traffic[ZR_LEVEL_ALL].count[ZR_TRAFFIC_MODEL];
    for (int i = 0; i < ZR_N_COLLECTIVES; i++) {
        uint64_t expected = i == ZR_ALL_REDUCE ? steps * 2 * shard * (n_groups - 1) / n_groups : 0;
        assert_int_equal(across[i].elems_sent, expected);
        assert_true(n_groups == 1 || all[i].n_calls == 0);
    }
}

static void expect_traffic(const toy_options_t *options) {
    toy_result_t result;
    toy_train_well(options, &result);
    traffic_t expected = expected_traffic(options, &result);
    bool is_hybrid = n_shards_of(options) < options->n_ranks;
    const zr_comm_statistics_t *own = &result.traffic[is_hybrid ? ZR_LEVEL_GROUP : ZR_LEVEL_ALL];
    const zr_comm_count_t *count = own->count[ZR_TRAFFIC_MODEL];
    uint64_t steps = options->n_steps;
    uint64_t width = zr_dtype_size(options->config.dtype);
    assert_int_equal(count[ZR_ALL_GATHER].elems_sent, steps * expected.all_gather);
    assert_int_equal(count[ZR_REDUCE_SCATTER].elems_sent, steps * expected.reduce_scatter);
    assert_int_equal(count[ZR_ALL_REDUCE].elems_sent, steps * expected.all_reduce);
    assert_int_equal(count[ZR_BROADCAST].elems_sent, 0);
    assert_int_equal(count[ZR_ALL_GATHER].bytes_sent, width * count[ZR_ALL_GATHER].elems_sent);
    assert_int_equal(count[ZR_REDUCE_SCATTER].bytes_sent,
                     width * count[ZR_REDUCE_SCATTER].elems_sent);
    assert_int_equal(count[ZR_ALL_REDUCE].bytes_sent, width * count[ZR_ALL_REDUCE].elems_sent);
    /* The norm: one double per unit, to every other rank. */
    assert_int_equal(own->count[ZR_TRAFFIC_CONTROL][ZR_ALL_GATHER].elems_sent,
                     steps * result.size.n_units * (uint64_t)(n_shards_of(options) - 1));
    expect_replicas(options, &result, steps);
}

TEST(traffic_follows_the_formulas) {
    const int rank_counts[] = {1, 2, 3, 4, 8};
    for (int i = 0; i < 5; i++)
        for (int stage = 0; stage <= 3; stage++)
            for (int flags = 0; flags < 32; flags++) {
                if (!ONE_OF(3, 7))
                    continue;
                toy_options_t options = toy_options_default(stage, rank_counts[i]);
                options.n_steps = 2;
                options.config.dtype = flags & 1 ? ZR_DTYPE_BF16 : ZR_DTYPE_F32;
                options.frozen = (flags & 2) != 0;
                options.config.grad_accum = flags & 4 ? 3 : 1;
                options.config.reduce = flags & 8 ? ZR_REDUCE_EVERY_MICRO_BATCH : ZR_REDUCE_AUTO;
                options.config.order = flags & 16 ? ZR_ORDER_BLOCK : ZR_ORDER_MICRO_BATCH;
                expect_traffic(&options);
            }
}

/* What is on the drives: with each micro-batch through all units, parameters are read in each pass
 * of each of them, else in each pass of the step; state is read and written once per step. */
TEST(drives_follow_them_too) {
    for (int flags = 0; flags < 16; flags++) {
        toy_options_t options = toy_options_default(3, flags & 1 ? 3 : 1);
        toy_result_t result;
        options.n_steps = 2;
        options.frozen = (flags & 2) != 0;
        options.config.grad_accum = flags & 4 ? 3 : 1;
        options.config.order = flags & 8 ? ZR_ORDER_BLOCK : ZR_ORDER_MICRO_BATCH;
        toy_set(&options, "offload-optimizer=nvme offload-params=nvme params-in-host=0 "
                          "sub-group=1024 nvme-path=x");
        options.config.nvme.store = "memory";
        toy_train_well(&options, &result);
        uint64_t n = (uint64_t)options.n_ranks, k = options.config.grad_accum;
        uint64_t trainable = result.size.trainable_padded_elems / n;
        uint64_t all = trainable + result.size.frozen_padded_elems / n;
        uint64_t n_walks = options.config.order == ZR_ORDER_BLOCK ? 1 : k;
        uint64_t width = zr_dtype_size(options.config.dtype);
        const zr_offload_report_t *offload = &result.offload[0];
        assert_int_equal(offload->params.gathers.bytes,
                         options.n_steps * n_walks * 2 * width * all);
        assert_int_equal(offload->params.updates.bytes, options.n_steps * width * trainable);
        for (int d = 0; d < ZR_N_STORE_DIRECTIONS; d++)
            assert_int_equal(offload->updates[d].bytes, options.n_steps * (12 - width) * trainable);
    }
}

TEST(traffic_of_groups_follows_them_too) {
    const int shapes[][2] = {{2, 1}, {4, 1}, {4, 2}, {4, 4}, {8, 2}, {8, 4}};
    for (size_t i = 0; i < N_OF(shapes); i++)
        for (int stage = 0; stage <= 3; stage++)
            for (int flags = 0; flags < 8; flags++) {
                if (!ONE_OF(3, 7))
                    continue;
                toy_options_t options = toy_options_default(stage, shapes[i][0]);
                options.config.shard_group_size = shapes[i][1];
                options.n_steps = 2;
                options.frozen = (flags & 1) != 0;
                options.config.grad_accum = flags & 2 ? 3 : 1;
                options.config.reduce = flags & 4 ? ZR_REDUCE_EVERY_MICRO_BATCH : ZR_REDUCE_AUTO;
                expect_traffic(&options);
            }
}

TEST(reuse_saves_a_gather_and_costs_memory) {
    toy_options_t options = toy_options_default(3, 4);
    toy_result_t result;
    options.config.reuse_elems = 1000000000;
    options.n_steps = 1;
    toy_train_well(&options, &result);
    uint64_t all = result.size.trainable_padded_elems;
    const zr_comm_count_t *gathers =
        &result.traffic[ZR_LEVEL_ALL].count[ZR_TRAFFIC_MODEL][ZR_ALL_GATHER];
    const zr_byte_count_t *gathered = &result.device_memory.by_tag[ZR_TAG_GATHERED_PARAMETERS];
    uint64_t recorded = 2 * all * 3 / 4; /* the first micro-batch only records */
    assert_int_equal(gathers->elems_sent, recorded);
    options.n_steps = 3;
    toy_train_well(&options, &result);
    assert_int_equal(gathers->elems_sent, recorded + 2 * all * 3 / 4);
    assert_int_equal(gathered->peak, 4 * all);
    assert_int_equal(gathered->live, 0);
    options.config.max_live_elems = 2000; /* less than the largest unit: it is not kept */
    toy_train_well(&options, &result);
    assert_true(gathered->peak <= 4 * (result.size.largest_unit_padded_elems + 2000));
}

TEST(a_budget_is_hard) {
    toy_options_t options = toy_options_default(0, 4);
    options.config.prefetch_elems = 0;
    options.quiet = 1;
    options.config.device_memory_bytes = 440 * 1024; /* states at stage 0: 424 KiB, and staging */
    toy_result_t result;
    toy_train(&options, &result);
    for (int r = 0; r < 4; r++) {
        assert_int_equal(result.status[r], ZR_ERR_BUDGET);
        assert_has(result.last_error[r], "--stage");
    }
    options.config.stage = 3;
    toy_train_well(&options, &result);
    assert_true(result.device_memory.reserved.peak <= options.config.device_memory_bytes);
}
