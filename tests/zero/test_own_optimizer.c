/*
 * An optimizer of a user's own: a description and a loop in this file, which the library knows
 * nothing of. Its momentum is kept in bf16, so that a state of two encodings is sharded, moved and
 * saved, too; another one keeps it in an encoding of its own, of 8 bits by blocks.
 */
#include <math.h>
#include <unistd.h>

#include "tests/common/eight_bits.h"
#include "tests/common/test.h"
#include "tests/zero/toy.h"

static const char *device_name; /* another one than the host; NULL: none */

static void own_loop(const zr_update_t *part, const void *factors) {
    float *master = part->arrays[0];
    zr_bf16_t *momentum = part->arrays[1];
    float decay = part->hyper[0];
    (void)factors;
    for (size_t i = 0; i < part->n_elems; i++) {
        float grad = part->grad_dtype == ZR_DTYPE_F32
                         ? ((const float *)part->grad)[i]
                         : zr_bf16_to_f32(((const zr_bf16_t *)part->grad)[i]);
        float sum = fmaf(decay, zr_bf16_to_f32(momentum[i]), grad * part->grad_scale);
        momentum[i] = zr_bf16_from_f32(sum);
        master[i] = fmaf(-part->lr, sum, master[i] * (1.0f - part->lr * part->weight_decay));
        if (part->param_dtype == ZR_DTYPE_F32)
            ((float *)part->param)[i] = master[i];
        else
            ((zr_bf16_t *)part->param)[i] = zr_bf16_from_f32(master[i]);
    }
}

static const zr_optimizer_type_t own_optimizer = {
    .name = "Own",
    .rule = {.name = "own",
             .arrays = {{"master", &zr_encoding_fp32}, {"momentum", &zr_encoding_bf16}},
             .n_arrays = 2,
             .hypers = {{.name = "decay", .key = "decay", .index = -1, .usual = 0.5, .below = 1}},
             .n_hypers = 1,
             .operations_per_elem = 8,
             .loops = {own_loop}},
};

/* The same with a momentum in blocks of 256. */
static void packed_loop(const zr_update_t *part, const void *factors) {
    eight_bits_block_t *blocks = part->arrays[1];
    for (size_t first = 0; first < part->n_elems; first += 256, blocks++) {
        float momentum[256];
        zr_bf16_t rounded[256];
        zr_update_t block = *part;
        block.n_elems = part->n_elems - first < 256 ? part->n_elems - first : 256;
        eight_bits.decode(&eight_bits, blocks, block.n_elems, momentum);
        zr_encoding_bf16.encode(&zr_encoding_bf16, momentum, block.n_elems, rounded);
        block.arrays[0] = (float *)part->arrays[0] + first;
        block.arrays[1] = rounded;
        block.grad = (const char *)part->grad + first * zr_dtype_size(part->grad_dtype);
        block.param = (char *)part->param + first * zr_dtype_size(part->param_dtype);
        own_loop(&block, factors);
        zr_encoding_bf16.decode(&zr_encoding_bf16, rounded, block.n_elems, momentum);
        eight_bits.encode(&eight_bits, momentum, block.n_elems, blocks);
    }
}

static const zr_optimizer_type_t packed_optimizer = {
    .name = "Packed",
    .rule = {.name = "packed",
             .arrays = {{"master", &zr_encoding_fp32}, {"momentum", &eight_bits}},
             .n_arrays = 2,
             .hypers = {{.name = "decay", .key = "decay", .index = -1, .usual = 0.5, .below = 1}},
             .n_hypers = 1,
             .operations_per_elem = 12,
             .loops = {packed_loop}},
};

static toy_options_t variant(int stage, int n_ranks, unsigned flags) {
    toy_options_t options = toy_options_default(stage, n_ranks);
    zr_config_set_optimizer(&options.config, &own_optimizer);
    options.config.dtype = flags & 1 ? ZR_DTYPE_BF16 : ZR_DTYPE_F32;
    options.config.clip = flags & 2 ? 0.05 : 0;
    options.config.nvme.store = "memory";
    options.n_steps = 4;
    return options;
}

static void expect_same_bits(const zr_optimizer_type_t *type, size_t sub_group_elems) {
    static const zr_offload_device_t devices[] = {ZR_OFFLOAD_NONE, ZR_OFFLOAD_CPU, ZR_OFFLOAD_NVME};
    for (int n_ranks = 1; n_ranks <= 3; n_ranks++)
        for (unsigned flags = 0; flags < 4; flags++) {
            toy_options_t options = variant(0, n_ranks, flags);
            zr_config_set_optimizer(&options.config, type);
            uint64_t reference = toy_hash(&options);
            for (int stage = 0; stage <= 3; stage++)
                for (int d = 0; d < 3; d++) {
                    options = variant(stage, n_ranks, flags);
                    zr_config_set_optimizer(&options.config, type);
                    options.config.offload_optimizer.device = devices[d];
                    options.config.offload_optimizer.ratio = stage % 2 ? 1 : 0.5;
                    options.config.sub_group_elems = d == 0   ? 1000
                                                     : d == 1 ? 2048
                                                              : sub_group_elems;
                    toy_expect_hash(&options, reference);
                }
        }
}

TEST(its_bits_are_the_same_everywhere) {
    expect_same_bits(&own_optimizer, 2048);
    expect_same_bits(&packed_optimizer, (size_t)1 << 18);
}

/* Shards, and what is updated at a time, begin with blocks, and the state takes what they take. */
TEST(an_encoding_of_its_own_has_whole_blocks) {
    toy_options_t options = variant(2, 3, 1);
    toy_result_t result, plain;
    toy_train_well(&options, &plain);
    zr_config_set_optimizer(&options.config, &packed_optimizer);
    toy_train_well(&options, &result);
    size_t shard_elems = result.size.trainable_padded_elems / 3;
    assert_true(result.size.trainable_padded_elems > plain.size.trainable_padded_elems);
    assert_int_equal(shard_elems % 256, 0);
    assert_int_equal(result.device_memory.by_tag[ZR_TAG_OPTIMIZER_STATE].peak,
                     shard_elems / 256 * (4 * 256 + sizeof(eight_bits_block_t)));
    assert_true(result.hash != plain.hash);
    options.quiet = true;
    options.expect_saves = true;
    toy_train(&options, &result);
    assert_int_equal(result.status[0], ZR_ERR_UNSUPPORTED);
    assert_non_null(strstr(result.last_error[0], "\"momentum\" cannot be saved"));
    options.expect_saves = false;
    options.config.offload_optimizer.device = ZR_OFFLOAD_NVME;
    options.config.sub_group_elems = 2048;
    toy_train(&options, &result);
    assert_int_equal(result.status[0], ZR_ERR_ARGUMENT);
    assert_non_null(strstr(result.last_error[0], "--sub-group) is 2048"));
    zr_encoding_t large = eight_bits;
    large.block_elems = 512;
    zr_optimizer_type_t type = packed_optimizer;
    type.rule.arrays[1].encoding = &large;
    options.config.offload_optimizer.device = ZR_OFFLOAD_NONE;
    zr_config_set_optimizer(&options.config, &type);
    toy_train(&options, &result);
    assert_int_equal(result.status[0], ZR_ERR_UNSUPPORTED);
    assert_non_null(strstr(result.last_error[0], "blocks of 512 elements"));
}

TEST(its_state_takes_six_bytes) {
    toy_options_t options = variant(1, 2, 1);
    toy_result_t result;
    toy_train_well(&options, &result);
    assert_int_equal(result.device_memory.by_tag[ZR_TAG_OPTIMIZER_STATE].peak,
                     6 * result.size.trainable_padded_elems / 2);
}

TEST(its_state_is_saved_and_others_refuse_it) {
    char folder[] = "/tmp/zr-own-optimizer-XXXXXX", command[128];
    assert_non_null(mkdtemp(folder));
    toy_options_t options = variant(2, 2, 1);
    toy_result_t whole, first, second;
    toy_train_well(&options, &whole);
    options.n_steps = 2;
    options.save_to = folder;
    toy_train_well(&options, &first);
    options = variant(3, 3, 0); /* other ranks read it, in another dtype */
    options.restore_from = folder;
    toy_train_well(&options, &second);
    options = variant(1, 2, 1);
    options.restore_from = folder;
    toy_train_well(&options, &second);
    assert_true(second.hash == whole.hash && first.hash != whole.hash);
    options = variant(1, 2, 1);
    zr_config_set_optimizer(&options.config, &zr_adamw);
    options.restore_from = folder;
    options.quiet = true;
    toy_train(&options, &second);
    assert_int_equal(second.status[0], ZR_ERR_ARGUMENT);
    assert_has(second.last_error[0], "\"Own\"");
    snprintf(command, sizeof(command), "rm -r %s", folder);
    assert_int_equal(system(command), 0);
}

/* The simulated device takes the time of what it says it costs. */
TEST(its_cost_is_charged) {
    zr_hardware_t hardware = zr_hardware_default();
    zr_device_options_t options = zr_device_options_default();
    zr_device_t *device = NULL;
    zr_stream_t *stream = NULL;
    zr_cost_t cost;
    void *memory = NULL;
    size_t n_elems = 1000000;
    options.hardware = &hardware;
    assert_ok(zr_device_open("sim", &options, &device));
    size_t granule = zr_device_info(device)->granule_bytes;
    size_t size_bytes = (n_elems * 16 + granule - 1) / granule * granule;
    assert_ok(zr_stream_create(device, "test", &stream));
    assert_ok(zr_range_reserve(device, ZR_TIER_DEVICE, size_bytes, &memory));
    assert_ok(zr_range_map(device, ZR_TIER_DEVICE, memory, 0, size_bytes));
    zr_update_t update = {.n_elems = n_elems,
                          .arrays = {memory, memory},
                          .grad = memory,
                          .param = memory,
                          .grad_dtype = ZR_DTYPE_BF16,
                          .param_dtype = ZR_DTYPE_BF16,
                          .grad_scale = 1,
                          .step = 1};
    double before = zr_device_now(device);
    assert_ok(zr_kernel_update(stream, &own_optimizer.rule, &update));
    assert_ok(zr_stream_synchronize(stream));
    assert_ok(zr_stream_cost(stream, &cost));
    assert_true(cost.bytes == 16e6 && cost.operations == 8e6);
    assert_true(zr_device_now(device) - before >= 16e6 / hardware.device.update_bytes_per_s);
    zr_range_release(device, ZR_TIER_DEVICE, &memory, size_bytes);
    zr_stream_destroy(&stream);
    zr_device_close(&device);
}

static void keep(void *context, zr_log_level_t level, int rank, const char *message) {
    (void)level, (void)rank;
    snprintf(context, 512, "%s", message);
}

static void expect_refused(const zr_update_rule_t *rule, const char *part) {
    char last[512] = "";
    zr_log_t log = {.sink = keep, .context = last};
    assert_int_equal(zr_update_rule_check(rule, &log), ZR_ERR_ARGUMENT);
    assert_has(last, part);
}

TEST(what_is_no_description_is_refused) {
    zr_update_rule_t rule = own_optimizer.rule;
    assert_ok(zr_update_rule_check(&rule, NULL));
    rule.n_arrays = 0;
    expect_refused(&rule, "0 arrays");
    rule = own_optimizer.rule;
    rule.arrays[0].encoding = &zr_encoding_bf16;
    expect_refused(&rule, "master");
    rule = own_optimizer.rule;
    rule.n_arrays = 3;
    rule.arrays[2] = (zr_state_array_t){"wide", &zr_encoding_fp32};
    expect_refused(&rule, "come first");
    rule = own_optimizer.rule;
    rule.arrays[1].name = NULL;
    expect_refused(&rule, "no name");
    rule = own_optimizer.rule;
    rule.hypers[0].usual = 1;
    expect_refused(&rule, "range");
    rule = own_optimizer.rule;
    rule.operations_per_elem = NAN;
    expect_refused(&rule, "operations");
}

/* On a device that it has no kernel for, its state has to be where the host updates it. */
TEST(without_a_kernel_it_needs_the_host) {
    toy_options_t options = variant(1, 2, 1);
    toy_result_t result;
    if (device_name == NULL)
        skip();
    uint64_t reference = toy_hash(&options);
    options.device_name = device_name;
    options.quiet = true;
    toy_train(&options, &result);
    assert_int_equal(result.status[0], ZR_ERR_UNSUPPORTED);
    assert_has(result.last_error[0], "no kernel for device");
    options.config.offload_optimizer.device = ZR_OFFLOAD_CPU;
    options.config.offload_optimizer.update_on = ZR_UPDATE_ON_DEVICE;
    toy_train(&options, &result);
    assert_int_equal(result.status[0], ZR_ERR_UNSUPPORTED);
    options.config.offload_optimizer.update_on = ZR_UPDATE_ON_FASTER;
    toy_train_well(&options, &result);
    assert_true(result.hash == reference);
}

int main(int argc, char **argv) {
    device_name = argc > 1 ? argv[1] : NULL;
    return run_all_tests(NULL, NULL);
}
