/*
 * Shards of parameters in host memory and in a store: wherever they live, in whatever parts,
 * training ends in the same bits; what is moved is counted to the byte; and device memory holds
 * what is being computed with, and no more. The store "memory" stands for a drive; "uring" is used
 * in a folder below $TMPDIR or /tmp.
 */
#include "tests/common/test.h"
#include "tests/zero/store_folders.h"
#include "tests/zero/toy.h"

#define SMALL_BUFFER 0    /* the smallest: 4096 bytes, and the toy's largest parameter is split */
#define LARGE_BUFFER 9000 /* 36864 or 16384 bytes */

static const int rank_counts[] = {1, 2, 4};

/* What it has of its own: reuse instead of what nobody asks for; no prefetch; a new order;
 * evaluation. */
static toy_options_t variant(int n_ranks, zr_dtype_t dtype, unsigned flags) {
    toy_options_t options = toy_mixture(3, n_ranks, dtype, flags & ~8u);
    toy_set(&options, "reuse_elems=%d prefetch=%d", flags & 8 ? 30000 : 0,
            flags & 32 ? 0 : 50000000);
    options.reorder_step = flags & 64 ? 1 : -1;
    options.evaluate = (flags & 128) != 0;
    options.config.shard_group_size = n_ranks == 4 && flags % 3 != 0 ? 2 : -1;
    return options;
}

static size_t n_shards_of(const toy_options_t *options) {
    return (size_t)zr_config_n_shards(&options->config, options->n_ranks);
}

static void offload(toy_options_t *options, zr_offload_device_t device, size_t buffer_elems) {
    options->config.offload_param.device = device;
    options->config.offload_param.buffer_elems =
        buffer_elems == SMALL_BUFFER
            ? ZR_CONFIG_LEAST_BUFFER_BYTES / zr_dtype_size(options->config.dtype)
            : buffer_elems;
    options->config.nvme.store = "memory";
}

static void over_files(toy_options_t *options) {
    options->config.nvme.store = "uring";
    toy_set(options, "nvme-path=%s", store_paths);
}

/* ---- bits ---------------------------------------------------------------------------------- */

/* Parameters on cpu and nvme, the optimizer's state anywhere. */
static void expect_same_bits(toy_options_t options, uint64_t reference) {
    for (int device = ZR_OFFLOAD_CPU; device <= ZR_OFFLOAD_NVME; device++)
        for (int optimizer = ZR_OFFLOAD_NONE; optimizer <= ZR_OFFLOAD_NVME; optimizer++)
            for (int is_small = 0; is_small < 2; is_small++) {
                if (!ONE_OF(1, 5))
                    continue;
                offload(&options, (zr_offload_device_t)device,
                        is_small ? SMALL_BUFFER : LARGE_BUFFER);
                options.config.offload_optimizer.device = (zr_offload_device_t)optimizer;
                options.config.offload_optimizer.ratio = is_small ? 0.4 : 1;
                options.config.sub_group_elems = is_small ? 1024 : 1000000;
                toy_expect_hash(&options, reference);
            }
}

TEST(every_placement_ends_in_the_same_bits) {
    unsigned flags = 0;
    for (int i = 0; i < 3; i++)
        for (int dtype = ZR_DTYPE_F32; dtype <= ZR_DTYPE_BF16; dtype++)
            for (int variants = 0; variants < 2; variants++) {
                flags = (flags + 93) % 256;
                toy_options_t options = variant(rank_counts[i], (zr_dtype_t)dtype, flags);
                expect_same_bits(options, toy_hash(&options));
            }
}

TEST(how_it_is_moved_changes_nothing) {
    for (unsigned flags = 0; flags < 256; flags += 5) {
        if (!ONE_OF(3, 7))
            continue;
        toy_options_t options = variant(2, (zr_dtype_t)(flags % 2), flags);
        uint64_t reference = toy_hash(&options);
        offload(&options, ZR_OFFLOAD_NVME, flags % 3 ? SMALL_BUFFER : 2500);
        toy_set(&options, "param-buffers=%u params-in-host=%d overlap-comm=%s sub-group=%d",
                1 + flags % 7, flags % 4 ? 0 : 3000, flags % 11 ? "on" : "off",
                flags % 13 ? 100000 : 1030);
        toy_expect_hash(&options, reference);
    }
}

/* What stays on the device, by the report and by the allocator. */
static void expect_fraction(const toy_options_t *options, const toy_result_t *result) {
    size_t elem_bytes = zr_dtype_size(options->config.dtype), n_shards = n_shards_of(options);
    double ratio = options->config.offload_param.ratio;
    size_t all = (result->size.trainable_padded_elems + result->size.frozen_padded_elems) /
                 n_shards * elem_bytes;
    size_t largest = result->size.largest_unit_padded_elems / n_shards * elem_bytes;
    const zr_params_report_t *report = &result->offload[0].params;
    bool is_cpu = options->config.offload_param.device == ZR_OFFLOAD_CPU;
    size_t down = report->bytes[is_cpu ? ZR_TIER_HOST : ZR_TIER_NVME];
    uint64_t n_gathers = 2 * options->config.grad_accum * options->n_steps;
    assert_int_equal(report->bytes[ZR_TIER_DEVICE] + down, all);
    assert_true((double)down >= ratio * (double)all);
    assert_true((double)down <= ratio * (double)all + (double)largest);
    assert_int_equal(result->device_memory.by_tag[ZR_TAG_PARAMETERS].peak,
                     report->bytes[ZR_TIER_DEVICE]);
    assert_int_equal(result->host_memory.by_tag[ZR_TAG_PARAMETERS].peak, is_cpu ? down : 0);
    assert_int_equal(report->copied_up_bytes, n_gathers * down);
    assert_int_equal(report->gathers.bytes, is_cpu ? 0 : n_gathers * down);
    assert_int_equal(report->has_store, !is_cpu && down > 0);
    if (ratio == 0 && n_shards == 1) /* nothing is gathered beside what is there */
        assert_int_equal(result->device_memory.by_tag[ZR_TAG_GATHERED_PARAMETERS].peak, 0);
}

TEST(a_fraction_may_stay_on_the_device) {
    static const double ratios[] = {0, 0.3, 0.7};
    unsigned flags = 0;
    for (unsigned i = 0; i < 54; i++) {
        flags = (flags + 93) % 64;
        if (!ONE_OF(1, 5))
            continue;
        toy_options_t options =
            variant(rank_counts[i % 3], (zr_dtype_t)(i & 1), (flags & ~10u) | (i % 4 ? 4 : 0));
        toy_result_t result;
        uint64_t reference = toy_hash(&options);
        offload(&options, i / 3 % 2 ? ZR_OFFLOAD_CPU : ZR_OFFLOAD_NVME,
                i % 5 ? SMALL_BUFFER : LARGE_BUFFER);
        options.config.offload_param.ratio = ratios[i / 6 % 3];
        options.config.offload_optimizer.device = (zr_offload_device_t)(i / 18);
        options.config.offload_optimizer.ratio = i % 7 ? 1 : 0.4;
        options.config.sub_group_elems = 1024;
        toy_train_well(&options, &result);
        if (result.hash != reference)
            fail_msg("case %u, flags %u: other weights", i, flags);
        expect_fraction(&options, &result);
    }
}

TEST(files_end_in_the_same_bits) {
    if (store_paths[0] == '\0')
        skip();
    for (unsigned i = 0; i < 12; i++) {
        toy_options_t options = variant(rank_counts[i % 3], (zr_dtype_t)(i / 3 % 2), 37 * i % 256);
        uint64_t reference = toy_hash(&options);
        offload(&options, ZR_OFFLOAD_NVME, i % 2 ? SMALL_BUFFER : LARGE_BUFFER);
        over_files(&options);
        options.config.offload_optimizer.device = (zr_offload_device_t)(i % 3);
        toy_set(&options, "nvme.request_bytes=%d nvme.depth=%u", i % 4 ? 4096 : 512 << 10, 1 + i);
        toy_expect_hash(&options, reference);
    }
}

/* ---- bytes ----------------------------------------------------------------------------------- */

/* A gather reads the shard, forward and backward; an update writes what is trained, once. */
static void expect_traffic(const toy_options_t *options, uint64_t n_updates) {
    toy_result_t result;
    toy_train_well(options, &result);
    uint64_t elem_bytes = zr_dtype_size(options->config.dtype);
    uint64_t n_shards = n_shards_of(options);
    uint64_t trainable = result.size.trainable_padded_elems / n_shards * elem_bytes;
    uint64_t all = trainable + result.size.frozen_padded_elems / n_shards * elem_bytes;
    uint64_t n_gathers = 2 * options->config.grad_accum * options->n_steps;
    for (int r = 0; r < options->n_ranks; r++) {
        const zr_params_report_t *report = &result.offload[r].params;
        assert_true(report->has_store);
        assert_int_equal(report->bytes[ZR_TIER_NVME], all);
        assert_int_equal(report->gathers.bytes, n_gathers * all);
        assert_int_equal(report->copied_up_bytes, n_gathers * all);
        assert_int_equal(report->updates.bytes, n_updates * trainable);
        assert_int_equal(report->all.count[ZR_STORE_PUT].bytes, all + n_updates * trainable);
        assert_int_equal(report->all.n_failed, 0);
    }
}

TEST(traffic_is_exact) {
    for (unsigned i = 0; i < 24; i++) {
        if (!ONE_OF(1, 5))
            continue;
        unsigned flags = (i & 1 ? 4u : 0u) | (i & 2 ? 16u : 0u) | (i & 4 ? 32u : 0u);
        toy_options_t options = variant(1 + (int)(i % 3), (zr_dtype_t)(i & 1), flags);
        offload(&options, ZR_OFFLOAD_NVME, i & 8 ? SMALL_BUFFER : LARGE_BUFFER);
        options.config.offload_param.n_buffers = 1 + i % 5;
        options.config.offload_optimizer.device = (zr_offload_device_t)(i % 3);
        if (store_paths[0] != '\0' && i >= 16)
            over_files(&options);
        expect_traffic(&options, options.n_steps);
    }
}

/* All micro-batches but the first, which is recorded, are read ahead of. */
TEST(reads_are_foreseen) {
    for (unsigned flags = 0; flags < 64; flags++) {
        if (!ONE_OF(3, 7))
            continue;
        toy_options_t options = variant(2, ZR_DTYPE_BF16, flags & ~8u);
        toy_result_t result;
        offload(&options, ZR_OFFLOAD_NVME, SMALL_BUFFER);
        options.config.offload_param.n_buffers = 1 + flags % 9;
        toy_train_well(&options, &result);
        const zr_params_report_t *report = &result.offload[1].params;
        uint64_t n_micro_batches = options.n_steps * options.config.grad_accum;
        assert_true(report->gathers.n_parts > 0);
        assert_int_equal(report->n_foreseen,
                         report->gathers.n_parts / n_micro_batches * (n_micro_batches - 1));
    }
}

/* A step's end begins to read for the next, into all buffers: an evaluation in between drops that,
 * and what the step reads is as without one. */
TEST(the_end_of_a_step_reads_ahead) {
    for (unsigned flags = 0; flags < 64; flags++) {
        if (!ONE_OF(3, 7))
            continue;
        toy_options_t options = variant(2, ZR_DTYPE_BF16, flags & ~8u);
        toy_result_t result;
        offload(&options, ZR_OFFLOAD_NVME, SMALL_BUFFER);
        options.config.offload_param.n_buffers = 1 + flags % 9;
        options.nan_step = flags % 3 == 0 ? 1 : -1; /* a step that is skipped, too */
        options.quiet = true;
        toy_train_well(&options, &result);
        zr_params_report_t without = result.offload[1].params;
        assert_int_equal(without.unused_bytes, 0);
        options.evaluate = true;
        toy_train_well(&options, &result);
        const zr_params_report_t *report = &result.offload[1].params;
        assert_int_equal(report->n_foreseen, without.n_foreseen);
        uint64_t n_parts = without.gathers.n_parts / (options.n_steps * options.config.grad_accum);
        uint64_t n_ahead = report->n_buffers < n_parts ? report->n_buffers : n_parts;
        assert_int_equal(report->n_unused, options.n_steps * n_ahead);
        assert_int_equal(report->all.count[ZR_STORE_GET].bytes,
                         report->gathers.bytes + report->unused_bytes + report->inspected.bytes);
    }
}

/* Passes of an evaluation have an order of their own, which is foreseen but for the first; what
 * steps read, and their bits, are as without. */
TEST(passes_of_evaluations_are_foreseen) {
    for (unsigned flags = 0; flags < 64; flags++) {
        if (!ONE_OF(3, 7))
            continue;
        toy_options_t options = variant(2, ZR_DTYPE_BF16, flags & ~8u);
        toy_result_t result;
        offload(&options, ZR_OFFLOAD_NVME, SMALL_BUFFER);
        options.config.offload_param.n_buffers = 1 + flags % 9;
        toy_train_well(&options, &result);
        uint64_t hash = result.hash;
        zr_params_report_t without = result.offload[1].params;
        options.n_passes = 3;
        toy_train_well(&options, &result);
        const zr_params_report_t *report = &result.offload[1].params;
        uint64_t n_passes = 3 * options.n_steps;
        uint64_t n_of_passes = report->gathers.n_parts - without.gathers.n_parts;
        assert_true(result.hash == hash);
        assert_int_equal(report->n_foreseen,
                         without.n_foreseen + n_of_passes / n_passes * (n_passes - 1));
    }
}

/* The micro-batch that changes the order is recorded from there on; where a unit was gathered in
 * vain, the next one again. After that it is foreseen. */
TEST(a_new_order_is_foreseen_again) {
    for (unsigned is_prefetching = 0; is_prefetching < 2; is_prefetching++) {
        toy_options_t options = variant(2, ZR_DTYPE_F32, is_prefetching ? 0 : 32);
        toy_result_t result;
        offload(&options, ZR_OFFLOAD_NVME, SMALL_BUFFER);
        options.n_steps = 3 + is_prefetching;
        toy_train_well(&options, &result);
        uint64_t n_parts = result.offload[0].params.gathers.n_parts / options.n_steps;
        options.reorder_step = 1;
        toy_train_well(&options, &result);
        assert_true(result.offload[0].params.n_foreseen > n_parts);
        assert_true(result.offload[0].params.n_foreseen < 2 * n_parts);
    }
}

TEST(a_skipped_step_writes_nothing) {
    toy_options_t options = variant(2, ZR_DTYPE_F32, 0);
    offload(&options, ZR_OFFLOAD_NVME, SMALL_BUFFER);
    options.quiet = true;
    options.n_steps = 1;
    uint64_t after_one = toy_hash(&options);
    options.n_steps = 2;
    options.nan_step = 1;
    toy_expect_hash(&options, after_one);
    expect_traffic(&options, 1);
}

/* ---- memory --------------------------------------------------------------------------------- */

TEST(shards_are_where_they_should_be) {
    for (int i = 0; i < 3; i++)
        for (int device = ZR_OFFLOAD_CPU; device <= ZR_OFFLOAD_NVME; device++) {
            toy_options_t options = variant(rank_counts[i], ZR_DTYPE_F32, 4);
            toy_result_t result;
            offload(&options, (zr_offload_device_t)device, SMALL_BUFFER);
            options.config.offload_param.n_buffers = 3;
            toy_train_well(&options, &result);
            const zr_params_report_t *report = &result.offload[0].params;
            size_t all = (result.size.trainable_padded_elems + result.size.frozen_padded_elems) /
                         n_shards_of(&options) * sizeof(float);
            bool is_cpu = device == ZR_OFFLOAD_CPU;
            assert_int_equal(report->bytes[is_cpu ? ZR_TIER_HOST : ZR_TIER_NVME], all);
            assert_int_equal(result.device_memory.by_tag[ZR_TAG_PARAMETERS].peak, 0);
            assert_int_equal(result.host_memory.by_tag[ZR_TAG_PARAMETERS].peak, is_cpu ? all : 0);
            assert_true(result.device_memory.by_tag[ZR_TAG_GATHERED_PARAMETERS].peak <=
                        2 * result.size.largest_unit_padded_elems * sizeof(float));
            assert_int_equal(result.device_memory.by_tag[ZR_TAG_GATHERED_PARAMETERS].live, 0);
            size_t own = 16384 * sizeof(float); /* the runtime's, for looking at parameters */
            assert_int_equal(result.host_memory.by_tag[ZR_TAG_STAGING].peak,
                             own + (is_cpu ? 0 : 3 * 4096));
        }
}

/* A buffer is no larger than the largest shard, and there are no more than there are parts. */
TEST(buffers_are_as_large_as_needed) {
    toy_options_t options = variant(2, ZR_DTYPE_F32, 0);
    toy_result_t result;
    offload(&options, ZR_OFFLOAD_NVME, 1000000);
    options.config.offload_param.n_buffers = 4;
    toy_train_well(&options, &result);
    size_t largest = result.size.largest_unit_padded_elems / 2 * sizeof(float);
    size_t stride = (largest + 63) / 64 * 64;
    assert_int_equal(result.offload[0].params.staging_bytes, 4 * stride);
    options.config.offload_param.n_buffers = 1000;
    toy_train_well(&options, &result);
    assert_true(result.offload[0].params.n_buffers < 7);
}

/* Left open, they hold the largest unit where units are updated within backward, as far as a
 * part of the host budget goes; the bits are the same. */
TEST(buffers_hold_the_largest_unit_where_nobody_says_how_many) {
    static const size_t budgets[] = {ZR_CONFIG_NO_BUDGET, 54 * 4096, 28 * 4096};
    size_t n[3];
    uint64_t hash = 0;
    toy_result_t result;
    for (int i = 0; i < 3; i++) {
        toy_options_t options = variant(1, ZR_DTYPE_F32, 0);
        offload(&options, ZR_OFFLOAD_NVME, SMALL_BUFFER);
        toy_set(&options, "nvme.request_bytes=4096");
        options.config.offload_param.n_buffers = 0;
        options.config.host_memory_bytes = budgets[i];
        toy_train_well(&options, &result);
        assert_int_equal(result.offload[0].params.n_buffers, ZR_CONFIG_USUAL_PARAM_BUFFERS);
        hash = i == 0 ? result.hash : hash;
        options.config.update_at = ZR_UPDATE_AT_BACKWARD;
        toy_train_well(&options, &result);
        n[i] = result.offload[0].params.n_buffers;
        assert_true(result.hash == hash);
    }
    assert_int_equal(n[0], (result.size.largest_unit_padded_elems * sizeof(float) - 1) / 4096 + 1);
    assert_true(n[1] > n[2] && n[1] < n[0]);
    assert_int_equal(n[2], ZR_CONFIG_USUAL_PARAM_BUFFERS);
}

TEST(some_may_stay_in_host_memory) {
    toy_options_t options = variant(1, ZR_DTYPE_F32, 0);
    toy_result_t result;
    offload(&options, ZR_OFFLOAD_NVME, SMALL_BUFFER);
    options.config.offload_param.max_in_cpu_elems = 1500;
    toy_train_well(&options, &result);
    const zr_params_report_t *report = &result.offload[0].params;
    size_t all = result.size.trainable_padded_elems * sizeof(float);
    assert_true(report->bytes[ZR_TIER_HOST] > 0);
    assert_true(report->bytes[ZR_TIER_HOST] <= 1500 * sizeof(float));
    assert_int_equal(report->bytes[ZR_TIER_HOST] + report->bytes[ZR_TIER_NVME], all);
    assert_int_equal(result.host_memory.by_tag[ZR_TAG_PARAMETERS].peak,
                     report->bytes[ZR_TIER_HOST]);
    options.config.offload_param.max_in_cpu_elems = 1000000;
    toy_train_well(&options, &result);
    assert_int_equal(result.offload[0].params.bytes[ZR_TIER_HOST], all);
    assert_false(result.offload[0].params.has_store);
}

/* Device memory that does not hold the parameters is enough. */
TEST(a_device_budget_without_parameters_is_enough) {
    for (int device = ZR_OFFLOAD_CPU; device <= ZR_OFFLOAD_NVME; device++) {
        toy_options_t options = variant(1, ZR_DTYPE_F32, 0);
        toy_result_t result;
        offload(&options, (zr_offload_device_t)device, LARGE_BUFFER);
        options.config.offload_optimizer.device = (zr_offload_device_t)device;
        toy_train_well(&options, &result);
        options.config.device_memory_bytes = result.device_memory.reserved.peak;
        toy_train_well(&options, &result);
        offload(&options, ZR_OFFLOAD_NONE, LARGE_BUFFER);
        options.config.prefetch_elems = 0;
        options.config.device_memory_bytes -= 64 << 10;
        options.quiet = true;
        toy_train(&options, &result);
        assert_int_equal(result.status[0], ZR_ERR_BUDGET);
        assert_has(result.last_error[0], "--offload-params cpu or nvme");
    }
}

/* ---- refusals ------------------------------------------------------------------------------- */

/* What is wrong with options is tested by test_config.c, room on drives by test_nvme.c. */
TEST(buffers_are_within_the_budget) {
    toy_options_t options = variant(2, ZR_DTYPE_F32, 0);
    offload(&options, ZR_OFFLOAD_NVME, SMALL_BUFFER);
    options.config.host_memory_bytes = 100 << 10;
    options.config.offload_param.n_buffers = 30;
    toy_expect_error(&options, ZR_ERR_BUDGET, "staging buffers (--param-buffers");
}

const test_group_t test_group = {find_store_folders, leave_store_folders};
