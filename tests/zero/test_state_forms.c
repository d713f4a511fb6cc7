/*
 * --state: an optimizer whose arrays are kept in fewer bits. The same bits at every stage, with all
 * numbers of ranks that a reference has, wherever state lives and however it is cut; bytes as many
 * as the form has; checkpoints of one form gone on from in it and in others.
 */
#include <math.h>
#include <unistd.h>

#include "tests/common/test.h"
#include "tests/zero/toy.h"

static const char *device_name; /* another one than the host; NULL: none */

static toy_options_t variant(int stage, int n_ranks, int form) {
    toy_options_t options = toy_options_default(stage, n_ranks);
    options.config.state_form = (zr_state_form_t)form;
    options.config.dtype = ZR_DTYPE_BF16;
    options.config.nvme.store = "memory";
    options.n_steps = 4;
    options.device_name = device_name;
    return options;
}

/* State on the device, in part in host memory, and in a store. */
static void put(toy_options_t *options, int place) {
    static const size_t sub_groups[] = {2048, 2048, (size_t)1 << 18};
    options->config.offload_optimizer.device = (zr_offload_device_t)place;
    options->config.offload_optimizer.ratio = place == ZR_OFFLOAD_CPU ? 0.5 : 1;
    options->config.sub_group_elems = sub_groups[options->config.state_form];
}

static void expect_same_bits(const zr_optimizer_type_t *type, int form, int n_ranks) {
    toy_options_t options = variant(0, n_ranks, form);
    zr_config_set_optimizer(&options.config, type);
    uint64_t reference = toy_hash(&options);
    for (int stage = 0; stage <= 3; stage++)
        for (int place = ZR_OFFLOAD_NONE; place <= ZR_OFFLOAD_NVME; place++) {
            options = variant(stage, n_ranks, form);
            zr_config_set_optimizer(&options.config, type);
            put(&options, place);
            if (stage == 3)
                options.config.offload_param.device = (zr_offload_device_t)place;
            toy_expect_hash(&options, reference);
        }
}

TEST(bits_are_the_same_everywhere) {
    size_t n = 0;
    const zr_optimizer_type_t *const *types = zr_optimizers(&n);
    for (size_t i = 0; i < n; i++)
        for (int form = ZR_STATE_BF16; form < ZR_N_STATE_FORMS; form++)
            expect_same_bits(types[i], form, types[i] == &zr_adamw ? 3 : 2);
}

TEST(forms_differ_and_take_their_bytes) {
    static const size_t bytes_of_block[] = {10 * 256, 6 * 256, 2 * 256 + 2 * 260};
    uint64_t hashes[ZR_N_STATE_FORMS];
    for (int form = 0; form < ZR_N_STATE_FORMS; form++) {
        toy_options_t options = variant(1, 2, form);
        toy_result_t result;
        toy_train_well(&options, &result);
        hashes[form] = result.hash;
        size_t shard_elems = result.size.trainable_padded_elems / 2;
        assert_int_equal(result.device_memory.by_tag[ZR_TAG_OPTIMIZER_STATE].peak,
                         shard_elems * bytes_of_block[form] / 256);
    }
    assert_true(hashes[0] != hashes[1] && hashes[0] != hashes[2] && hashes[1] != hashes[2]);
}

/* From a checkpoint of two steps, another two in another form, at a stage and in a place. */
static uint64_t go_on(const char *folder, int form, int stage, int n_ranks, int place) {
    toy_options_t options = variant(stage, n_ranks, form);
    toy_result_t result;
    put(&options, place);
    options.restore_from = folder;
    toy_train_well(&options, &result);
    return result.hash;
}

static void save(const char *folder, int form, size_t n_steps, toy_result_t *result) {
    toy_options_t options = variant(2, 2, form);
    options.n_steps = n_steps;
    options.config.nvme.request_bytes = 4096; /* and chunks: blocks lie in two of them */
    options.save_to = folder;
    toy_train_well(&options, result);
}

TEST(checkpoints_are_gone_on_from) {
    for (int saved = 0; saved < ZR_N_STATE_FORMS; saved++) {
        char folder[] = "/tmp/zr-state-forms-XXXXXX", command[128];
        assert_non_null(mkdtemp(folder));
        toy_options_t options = variant(2, 2, saved);
        toy_result_t whole, first;
        toy_train_well(&options, &whole);
        save(folder, saved, 2, &first);
        for (int form = 0; form < ZR_N_STATE_FORMS; form++) {
            uint64_t hash = go_on(folder, form, 0, 2, ZR_OFFLOAD_NONE);
            assert_true((hash == whole.hash) == (form == saved));
            assert_true(go_on(folder, form, 3, 2, ZR_OFFLOAD_CPU) == hash);
            assert_true(go_on(folder, form, 1, 2, ZR_OFFLOAD_NVME) == hash);
        }
        snprintf(command, sizeof(command), "rm -r %s", folder);
        assert_int_equal(system(command), 0);
    }
}

/* A program's own optimizer, whose loop knows fp32 alone, has its arrays in all forms. */
static void own_loop(const zr_update_t *part, const void *factors) {
    float *master = part->arrays[0], *sum = part->arrays[1];
    const zr_bf16_t *grad = part->grad;
    (void)factors;
    for (size_t i = 0; i < part->n_elems; i++) {
        sum[i] = fmaf(0.5f, sum[i], zr_bf16_to_f32(grad[i]) * part->grad_scale);
        master[i] = fmaf(-part->lr, sum[i], master[i]);
        ((zr_bf16_t *)part->param)[i] = zr_bf16_from_f32(master[i]);
    }
}

static const zr_optimizer_type_t own = {
    .name = "Own",
    .rule = {.name = "own",
             .arrays = {{"master", &zr_encoding_fp32}, {"sum", &zr_encoding_fp32}},
             .n_arrays = 2,
             .loops = {own_loop}},
};

TEST(an_own_optimizer_has_all_forms_on_the_host) {
    if (device_name != NULL)
        skip();
    for (int form = ZR_STATE_BF16; form < ZR_N_STATE_FORMS; form++)
        expect_same_bits(&own, form, 2);
}

int main(int argc, char **argv) {
    device_name = argc > 1 ? argv[1] : NULL;
    return run_all_tests(NULL, NULL);
}
