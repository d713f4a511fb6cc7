/*
 * The optimizer state on device, host and NVMe: wherever it lives, in whatever pieces, training
 * ends in the same bits; what is moved is counted to the byte; and memory is what was promised.
 * The store "memory" stands for a drive; "uring" is used in folders below $TMPDIR or /tmp. Runs on
 * the device whose name is the first argument; on another one than the host, what is offloaded has
 * to end in the bits that the host ends in.
 */
#include "tests/common/test.h"
#include "tests/zero/store_folders.h"
#include "tests/zero/toy.h"

#define SMALL_GROUP 1024 /* the smallest: the toy's largest parameter is split in 20 */

static const char *device_name = "host";
static bool is_host = true;

static void train(const toy_options_t *options, toy_result_t *result) {
    toy_options_t copy = *options;
    copy.device_name = device_name;
    toy_train_well(&copy, result);
}

static uint64_t hash_of(const toy_options_t *options) {
    toy_result_t result;
    train(options, &result);
    return result.hash;
}

static void expect_hash(const toy_options_t *options, uint64_t hash) {
    toy_options_t copy = *options;
    copy.device_name = device_name;
    toy_expect_hash(&copy, hash);
}

static toy_options_t variant(int stage, int n_ranks, zr_dtype_t dtype, unsigned flags) {
    toy_options_t options = toy_mixture(stage, n_ranks, dtype, flags);
    options.config.shard_group_size = n_ranks == 4 && flags % 3 != 0 ? 2 : -1;
    toy_set_optimizer(&options, (unsigned)stage + flags);
    return options;
}

static void offload(toy_options_t *options, zr_offload_device_t device, double ratio) {
    options->config.offload_optimizer.device = device;
    options->config.offload_optimizer.ratio = ratio;
    options->config.nvme.store = "memory";
}

static void over_files(toy_options_t *options) {
    options->config.nvme.store = "uring";
    toy_set(options, "nvme-path=%s", store_paths);
}

/* ---- bits ---------------------------------------------------------------------------------- */

static const double ratios[] = {0, 0.3, 1};

/* Where gradients wait, how much of them at least, and of how many parameters in host memory. */
typedef struct wait {
    const char *device;
    double ratio;
    size_t n_in_host;
} wait_t;
static const wait_t waits[] = {
    {"cpu", 1, 0}, {"none", 1, 0}, {"cpu", 0.4, 0}, {"nvme", 1, 0}, {"nvme", 0.7, 5000},
};

static void wait_at(toy_options_t *options, const wait_t *wait) {
    toy_set(options, "offload-gradients=%s offload-gradients-ratio=%g gradients-in-host=%zu",
            wait->device, wait->ratio, wait->n_in_host);
    if (strcmp(wait->device, "nvme") == 0 && options->config.dtype == ZR_DTYPE_BF16 &&
        options->config.sub_group_elems == SMALL_GROUP)
        options->config.sub_group_elems = 2 * SMALL_GROUP; /* whole blocks of the drive */
}

/* All placements of one configuration; the flags go through their values over the calls. */
static void expect_same_bits(const toy_options_t *options, uint64_t reference) {
    for (int device = ZR_OFFLOAD_CPU; device <= ZR_OFFLOAD_NVME; device++)
        for (size_t i = 0; i < 3; i++)
            for (int is_small = 0; is_small < 2; is_small++) {
                toy_options_t copy = *options;
                if (!ONE_OF(5, 11))
                    continue;
                offload(&copy, (zr_offload_device_t)device, ratios[i]);
                if (is_small)
                    copy.config.sub_group_elems = SMALL_GROUP;
                toy_set(&copy, "state-in-host=%d", i == 1 ? 7000 : 0);
                copy.config.offload_optimizer.update_on = (zr_update_on_t)(i % 3);
                bool has_choice = options->config.stage >= 2 && (is_host || is_small);
                for (size_t w = has_choice ? (i + (size_t)is_small) % 2 : 0;
                     w < (has_choice ? N_OF(waits) : 1); w += 2) {
                    toy_options_t waiting = copy;
                    wait_at(&waiting, &waits[w]);
                    expect_hash(&waiting, reference);
                }
            }
}

TEST(every_placement_ends_in_the_same_bits) {
    static const int rank_counts[] = {1, 2, 4};
    unsigned flags = 0;
    for (int i = 0; i < 3; i += is_host ? 1 : 2)
        for (int dtype = ZR_DTYPE_F32; dtype <= ZR_DTYPE_BF16; dtype++)
            for (int stage = 0; stage <= 3; stage++) {
                flags = (flags + 11) % 32;
                toy_options_t options = variant(stage, rank_counts[i], (zr_dtype_t)dtype, flags);
                expect_same_bits(&options, toy_hash(&options));
            }
}

/* Sums come up again in the order of the last micro-batch, unless this one has another. */
TEST(gradients_on_drives_follow_any_order) {
    for (int stage = 2; stage <= 3; stage++)
        for (size_t grad_accum = 1; grad_accum <= 3; grad_accum++)
            for (size_t n_buffers = 1; n_buffers <= 8; n_buffers += 7) {
                if (!ONE_OF(1, 5))
                    continue;
                toy_options_t options = variant(stage, 2, ZR_DTYPE_F32, 7);
                options.config.grad_accum = grad_accum;
                options.alternate = true;
                options.reorder_step = 1;
                uint64_t reference = hash_of(&options);
                offload(&options, ZR_OFFLOAD_CPU, 1);
                toy_set(&options, "offload-gradients=nvme sub-group=%d nvme-buffers=%zu",
                        SMALL_GROUP, n_buffers);
                expect_hash(&options, reference);
            }
}

/* Each unit behind its reduction, or all at the end, wherever anything is. */
TEST(updates_in_backward_end_in_the_same_bits) {
    static const int rank_counts[] = {1, 2, 3, 4};
    unsigned flags = 0, n = 0;
    for (int i = 0; i < 4; i++)
        for (int stage = 2; stage <= 3; stage++)
            for (size_t grad_accum = 1; grad_accum <= 3; grad_accum += 2)
                for (int device = ZR_OFFLOAD_NONE; device <= ZR_OFFLOAD_NVME; device++)
                    for (int param = 0; param <= (stage == 3 ? ZR_OFFLOAD_NVME : 0); param++) {
                        flags = (flags + 7) % 16;
                        n++;
                        if (!ONE_OF(5, 7))
                            continue;
                        toy_options_t options =
                            variant(stage, rank_counts[i], (zr_dtype_t)(n % 2), flags);
                        toy_set(&options, "grad-accum=%zu", grad_accum);
                        toy_set_clipping(&options, n);
                        offload(&options, (zr_offload_device_t)device, n % 3 != 0 ? 1 : 0.6);
                        options.config.offload_param.device = (zr_offload_device_t)param;
                        options.config.offload_param.buffer_elems = n % 4 ? 2048 : 100000;
                        options.config.offload_param.ratio = n % 5 != 0 ? 1 : 0.5;
                        options.config.offload_optimizer.update_on = (zr_update_on_t)(n % 3);
                        options.config.sub_group_elems = n % 2 ? 2048 : 5000;
                        if (device != ZR_OFFLOAD_NONE)
                            wait_at(&options, &waits[n % N_OF(waits)]);
                        uint64_t reference = hash_of(&options);
                        toy_set(&options, "update-at=backward overlap-comm=%s",
                                n % 3 == 1 ? "off" : "on");
                        expect_hash(&options, reference);
                    }
}

TEST(files_end_in_the_same_bits) {
    static const int rank_counts[] = {1, 2, 4};
    unsigned flags = 0;
    if (store_paths[0] == '\0')
        skip();
    for (int i = 0; i < 3; i++)
        for (int stage = 0; stage <= 3; stage++) {
            flags = (flags + 7) % 32;
            if (!ONE_OF(1, 5))
                continue;
            toy_options_t options = variant(stage, rank_counts[i], (zr_dtype_t)(flags & 1), flags);
            uint64_t reference = hash_of(&options);
            offload(&options, ZR_OFFLOAD_NVME, stage % 2 ? 1 : 0.3);
            over_files(&options);
            expect_hash(&options, reference);
            toy_set(&options, "sub-group=%d nvme.request_bytes=4096 nvme.depth=3", SMALL_GROUP);
            options.config.nvme.files_per_path = 2;
            expect_hash(&options, reference);
            wait_at(&options, &waits[3 + i % 2]);
            expect_hash(&options, reference);
        }
}

TEST(how_it_is_moved_changes_nothing) {
    toy_options_t options = variant(2, 2, ZR_DTYPE_BF16, 7);
    uint64_t reference = toy_hash(&options);
    offload(&options, ZR_OFFLOAD_NVME, 1);
    for (int flags = 0; flags < 16; flags++) {
        if (!ONE_OF(1, 3))
            continue;
        options.config.sub_group_elems = flags & 1 ? 1030 : 5000; /* of the update, too */
        options.config.offload_optimizer.n_buffers = flags & 2 ? 1 : 3;
        options.config.offload_optimizer.read_ahead = (flags & 4) != 0;
        options.config.offload_optimizer.write_behind = (flags & 8) != 0;
        options.config.nvme.verify = flags % 3 != 0;
        options.config.overlap_comm = flags % 5 != 0;
        expect_hash(&options, reference);
    }
}

/* ---- bytes ----------------------------------------------------------------------------------- */

/* Of AdamW 12 bytes per parameter, of those with two arrays 8; a split master has a parameter's
 * less. */
static size_t elem_bytes(const toy_options_t *options, const toy_result_t *result) {
    size_t n_bytes = 4 * zr_config_optimizer(&options->config)->rule.n_arrays;
    return result->offload[0].has_split_masters ? n_bytes - zr_dtype_size(options->config.dtype)
                                                : n_bytes;
}

/* So many read and written per parameter and update; at the start written. */
/* A step that is skipped has begun to read. */
static void expect_traffic(const toy_options_t *options, uint64_t n_updates, uint64_t n_skipped) {
    toy_result_t result;
    uint64_t sum = 0;
    train(options, &result);
    for (int r = 0; r < options->n_ranks; r++) {
        const zr_offload_report_t *report = &result.offload[r];
        uint64_t bytes = report->state_bytes[ZR_TIER_NVME];
        sum += bytes + report->state_bytes[ZR_TIER_DEVICE];
        assert_int_equal(bytes % elem_bytes(options, &result), 0);
        if (bytes == 0) {
            assert_false(report->has_store);
            continue;
        }
        for (int d = 0; d < ZR_N_STORE_DIRECTIONS; d++)
            assert_int_equal(report->updates[d].bytes, n_updates * bytes);
        assert_int_equal(report->all.count[ZR_STORE_PUT].bytes, (1 + n_updates) * bytes);
        assert_in_range(report->all.count[ZR_STORE_GET].bytes, n_updates * bytes + n_skipped,
                        (n_updates + n_skipped) * bytes);
        assert_true(report->updates[0].moved_bytes >= report->updates[0].bytes);
    }
    uint64_t states = elem_bytes(options, &result) * result.size.trainable_padded_elems;
    int n_shards = zr_config_n_shards(&options->config, options->n_ranks);
    int n_copies = options->n_ranks / (options->config.stage == 0 ? 1 : n_shards);
    assert_int_equal(sum, states * (uint64_t)n_copies);
}

TEST(traffic_is_exact) {
    for (int stage = 0; stage <= 3; stage++)
        for (size_t i = 0; i < 3; i++)
            for (int is_small = 0; is_small < 2; is_small++) {
                toy_options_t options = variant(stage, 3, ZR_DTYPE_BF16, 5);
                if (!ONE_OF(1, 5))
                    continue;
                offload(&options, ZR_OFFLOAD_NVME, ratios[i]);
                if (is_small)
                    options.config.sub_group_elems = SMALL_GROUP;
                expect_traffic(&options, options.n_steps, 0);
                if (store_paths[0] == '\0' || is_small)
                    continue;
                over_files(&options);
                expect_traffic(&options, options.n_steps, 0);
            }
}

/* Gradients on drives are written in each micro-batch, and read in each but the first and for the
 * update, whose reads ahead a skipped step drops. */
TEST(traffic_of_gradients_is_exact) {
    for (int stage = 2; stage <= 3; stage++)
        for (size_t grad_accum = 1; grad_accum <= 3; grad_accum++)
            for (int is_skipped = 0; is_skipped < 2; is_skipped++) {
                if (!ONE_OF(1, 5))
                    continue;
                toy_options_t options = variant(stage, 2, ZR_DTYPE_F32, 0);
                toy_result_t result;
                offload(&options, ZR_OFFLOAD_NVME, 0.8);
                options.config.grad_accum = grad_accum;
                options.config.sub_group_elems = SMALL_GROUP;
                options.quiet = true;
                options.nan_step = is_skipped ? 1 : -1;
                wait_at(&options, &waits[3]);
                train(&options, &result);
                const zr_grads_report_t *report = &result.offload[0].grads;
                const zr_store_count_t *count = report->all.count;
                uint64_t bytes = report->bytes[ZR_TIER_NVME], n_steps = options.n_steps;
                assert_true(bytes > 0);
                assert_int_equal(count[ZR_STORE_PUT].bytes, n_steps * grad_accum * bytes);
                assert_in_range(count[ZR_STORE_GET].bytes,
                                (n_steps * grad_accum - (uint64_t)is_skipped) * bytes,
                                n_steps * grad_accum * bytes);
            }
}

TEST(a_skipped_step_writes_nothing) {
    toy_options_t options = variant(1, 2, ZR_DTYPE_F32, 0);
    offload(&options, ZR_OFFLOAD_NVME, 1);
    options.quiet = true;
    options.n_steps = 1;
    uint64_t after_one = hash_of(&options);
    options.n_steps = 2;
    options.nan_step = 1;
    expect_hash(&options, after_one);
    expect_traffic(&options, 1, 1);
}

/* ---- memory --------------------------------------------------------------------------------- */

static void skip_but_on_host(void) {
    if (!is_host)
        skip();
}

TEST(what_is_offloaded_is_not_on_the_device) {
    skip_but_on_host();
    for (int device = ZR_OFFLOAD_NONE; device <= ZR_OFFLOAD_NVME; device++)
        for (size_t i = 0; i < 3; i++) {
            toy_options_t options = variant(3, 2, ZR_DTYPE_F32, 0);
            toy_result_t result;
            offload(&options, (zr_offload_device_t)device, ratios[i]);
            options.config.sub_group_elems = SMALL_GROUP;
            train(&options, &result);
            const zr_offload_report_t *report = &result.offload[0];
            size_t all = elem_bytes(&options, &result) * result.size.trainable_padded_elems / 2;
            size_t down = all - report->state_bytes[ZR_TIER_DEVICE];
            assert_int_equal(result.device_memory.by_tag[ZR_TAG_OPTIMIZER_STATE].peak, all - down);
            assert_int_equal(result.host_memory.by_tag[ZR_TAG_OPTIMIZER_STATE].peak,
                             device == ZR_OFFLOAD_CPU ? down : 0);
            /* Gradients go with it, but for those of the bucket in work. */
            assert_int_equal(result.device_memory.by_tag[ZR_TAG_GRADIENTS].peak,
                             sizeof(float) * ((all - down) / elem_bytes(&options, &result)));
            assert_int_equal(result.host_memory.by_tag[ZR_TAG_GRADIENTS].peak,
                             sizeof(float) * (down / elem_bytes(&options, &result)));
            double wanted = device == ZR_OFFLOAD_NONE ? 0 : ratios[i] * (double)all;
            assert_true((double)down >= wanted);
            assert_true((double)down <
                        wanted + (double)(elem_bytes(&options, &result) * SMALL_GROUP));
        }
}

/* What may stay in host memory does, as far as sub-groups fit. */
TEST(nvme_is_shared_with_the_host) {
    skip_but_on_host();
    for (size_t most = 0; most < 30000; most += 3000)
        for (int stage = 0; stage <= 3; stage++) {
            if (!ONE_OF(3, 7))
                continue;
            toy_options_t options = variant(stage, 2, ZR_DTYPE_BF16, 16);
            toy_result_t result;
            uint64_t reference = hash_of(&options);
            offload(&options, ZR_OFFLOAD_NVME, 0.8);
            options.config.offload_optimizer.max_in_cpu_elems = most;
            options.config.sub_group_elems = SMALL_GROUP;
            train(&options, &result);
            assert_true(result.hash == reference);
            const zr_offload_report_t *report = &result.offload[0];
            size_t in_host = report->state_bytes[ZR_TIER_HOST] / elem_bytes(&options, &result);
            size_t down =
                in_host + report->state_bytes[ZR_TIER_NVME] / elem_bytes(&options, &result);
            assert_true(in_host <= most);
            assert_true(in_host + 2 * SMALL_GROUP >= (most < down ? most : down));
            assert_int_equal(result.host_memory.by_tag[ZR_TAG_OPTIMIZER_STATE].peak,
                             in_host * elem_bytes(&options, &result));
        }
}

/* Of gradients, as of state: at least the fraction waits in host memory, and by a sub-group more at
 * most; all of a shard's are somewhere. */
TEST(a_fraction_of_gradients_waits_in_host_memory) {
    skip_but_on_host();
    for (int stage = 2; stage <= 3; stage++)
        for (int percent = 0; percent <= 100; percent += 20) {
            if (!ONE_OF(1, 5))
                continue;
            toy_options_t options = variant(stage, 2, ZR_DTYPE_F32, 16);
            toy_result_t result;
            offload(&options, ZR_OFFLOAD_CPU, percent % 40 ? 0.7 : 1);
            options.config.sub_group_elems = SMALL_GROUP;
            uint64_t reference = hash_of(&options);
            options.config.offload_optimizer.gradients_ratio = percent / 100.0;
            train(&options, &result);
            assert_true(result.hash == reference);
            size_t lowered =
                result.offload[0].state_bytes[ZR_TIER_HOST] / elem_bytes(&options, &result);
            size_t below = result.host_memory.by_tag[ZR_TAG_GRADIENTS].peak / sizeof(float);
            size_t above = result.device_memory.by_tag[ZR_TAG_GRADIENTS].peak / sizeof(float);
            assert_int_equal(below + above, result.size.trainable_padded_elems / 2);
            assert_true((double)below >= percent / 100.0 * (double)lowered);
            assert_true((double)below <= percent / 100.0 * (double)lowered + SMALL_GROUP);
        }
}

/* Of what is offloaded, what the ratio leaves is on the device, what may be in host memory is
 * there, and the rest is on the drives; buffers of a sub-group each are all that these take of the
 * host. */
TEST(gradients_are_in_three_tiers) {
    skip_but_on_host();
    for (int stage = 2; stage <= 3; stage++)
        for (int device = ZR_OFFLOAD_CPU; device <= ZR_OFFLOAD_NVME; device++)
            for (size_t most = 0; most <= 20000; most += 5000) {
                if (!ONE_OF(3, 7))
                    continue;
                toy_options_t options = variant(stage, 2, ZR_DTYPE_F32, 16);
                toy_result_t result, without;
                uint64_t reference = hash_of(&options);
                offload(&options, (zr_offload_device_t)device, 0.9);
                toy_set(&options, "sub-group=%d nvme-buffers=6", SMALL_GROUP);
                train(&options, &without);
                wait_at(&options, &(wait_t){"nvme", 0.8, most});
                train(&options, &result);
                assert_true(result.hash == reference);
                const size_t *bytes = result.offload[0].grads.bytes;
                const size_t *state = result.offload[0].state_bytes;
                size_t all = result.size.trainable_padded_elems / 2;
                size_t down = all - state[ZR_TIER_DEVICE] / elem_bytes(&options, &result);
                size_t above = all - bytes[ZR_TIER_DEVICE] / sizeof(float);
                size_t in_host = bytes[ZR_TIER_HOST] / sizeof(float);
                assert_int_equal(bytes[0] + bytes[1] + bytes[2], all * sizeof(float));
                assert_true((double)above >= 0.8 * (double)down);
                assert_true((double)above <= 0.8 * (double)down + SMALL_GROUP);
                assert_true(in_host <= most);
                assert_true(in_host + 2 * SMALL_GROUP >= (most < above ? most : above));
                for (int tier = ZR_TIER_DEVICE; tier <= ZR_TIER_HOST; tier++) {
                    const zr_tier_statistics_t *memory =
                        tier == ZR_TIER_HOST ? &result.host_memory : &result.device_memory;
                    assert_int_equal(memory->by_tag[ZR_TAG_GRADIENTS].peak, bytes[tier]);
                }
                assert_int_equal(result.offload[0].grads.staging_bytes,
                                 bytes[ZR_TIER_NVME] > 0 ? 2 * 3 * SMALL_GROUP * sizeof(float) : 0);
                assert_int_equal(result.host_memory.by_tag[ZR_TAG_STAGING].peak,
                                 without.host_memory.by_tag[ZR_TAG_STAGING].peak +
                                     result.offload[0].grads.staging_bytes);
            }
}

/* Buffers are what NVMe needs of the host, as few and as large as was said. */
TEST(host_memory_does_not_grow_with_the_model) {
    skip_but_on_host();
    toy_options_t options = variant(1, 1, ZR_DTYPE_F32, 0);
    toy_result_t result;
    offload(&options, ZR_OFFLOAD_NVME, 1);
    options.config.sub_group_elems = SMALL_GROUP;
    options.config.offload_optimizer.n_buffers = 3;
    train(&options, &result);
    size_t own = 16384 * sizeof(float); /* the runtime's, for looking at parameters */
    assert_int_equal(result.offload[0].staging_bytes,
                     3 * elem_bytes(&options, &result) * SMALL_GROUP);
    assert_int_equal(result.host_memory.by_tag[ZR_TAG_STAGING].peak,
                     own + 3 * elem_bytes(&options, &result) * SMALL_GROUP);
    assert_true(result.offload[0].state_bytes[ZR_TIER_NVME] >
                5 * 3 * elem_bytes(&options, &result) * SMALL_GROUP);

    options.config.host_memory_bytes = result.host_memory.reserved.peak;
    train(&options, &result);
    assert_true(result.host_memory.reserved.peak <= options.config.host_memory_bytes);
    options.config.host_memory_bytes /= 2;
    options.quiet = true;
    toy_train(&options, &result);
    assert_int_equal(result.status[0], ZR_ERR_BUDGET);
    assert_has(result.last_error[0], "staging|--nvme-buffers");
}

/* There are never more buffers than sub-groups, nor larger ones. */
TEST(few_groups_need_few_buffers) {
    skip_but_on_host();
    toy_options_t options = variant(1, 1, ZR_DTYPE_F32, 0);
    toy_result_t result;
    offload(&options, ZR_OFFLOAD_NVME, 1);
    options.config.offload_optimizer.n_buffers = 40;
    train(&options, &result);
    const zr_offload_report_t *report = &result.offload[0];
    assert_true(report->n_groups[ZR_TIER_NVME] < 10);
    assert_int_equal(report->staging_bytes, report->n_groups[ZR_TIER_NVME] *
                                                elem_bytes(&options, &result) *
                                                report->largest_group_elems);
}

/* What the store itself takes of the host is in the budget, too. */
TEST(the_store_is_counted) {
    skip_but_on_host();
    if (store_paths[0] == '\0')
        skip();
    toy_options_t options = variant(1, 1, ZR_DTYPE_F32, 0);
    toy_result_t result;
    offload(&options, ZR_OFFLOAD_NVME, 1);
    train(&options, &result);
    size_t without = result.host_memory.live.peak;
    over_files(&options);
    train(&options, &result);
    assert_true(result.host_memory.live.peak >= without + 2 * options.config.nvme.request_bytes);
}

/* Device memory that holds the model without its states is enough. */
TEST(a_device_budget_without_states_is_enough) {
    skip_but_on_host();
    toy_options_t options = variant(2, 2, ZR_DTYPE_F32, 0);
    toy_result_t result;
    offload(&options, ZR_OFFLOAD_NVME, 1);
    train(&options, &result);
    options.config.device_memory_bytes = result.device_memory.reserved.peak;
    train(&options, &result);
    offload(&options, ZR_OFFLOAD_NONE, 1);
    options.quiet = true;
    toy_train(&options, &result);
    assert_int_equal(result.status[0], ZR_ERR_BUDGET);
    assert_has(result.last_error[0], "--offload-optimizer cpu or nvme");
}

/* ---- refusals ------------------------------------------------------------------------------- */

TEST(what_cannot_be_is_said) {
    skip_but_on_host();
    toy_options_t options = variant(1, 2, ZR_DTYPE_F32, 0);
    offload(&options, ZR_OFFLOAD_NVME, 1);
    options.config.nvme.store = "floppy";
    toy_set(&options, "nvme-path=/tmp");
    toy_expect_error(&options, ZR_ERR_ARGUMENT, "floppy");
    if (store_paths[0] == '\0')
        return;
    options.config.nvme.store = "uring";
    toy_set(&options, "nvme-path=/nowhere/at/all");
    toy_expect_error(&options, ZR_ERR_IO, "/nowhere/at/all");
}

int main(int argc, char **argv) {
    device_name = argc > 1 ? argv[1] : device_name;
    is_host = strcmp(device_name, "host") == 0;
    zr_device_t *device = NULL;
    if (zr_device_open(device_name, NULL, &device) == ZR_ERR_UNSUPPORTED)
        return TEST_SKIPPED; /* said by the log */
    zr_device_close(&device);
    return run_all_tests(find_store_folders, leave_store_folders);
}
