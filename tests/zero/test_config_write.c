/*
 * A configuration that is written and read back is the same, in every field that has a key and
 * says something; and nothing is written that neither DeepSpeed nor libzero needs to be told.
 */
#include <jansson.h>

#include "tests/zero/config_helper.h"

static size_t throw(uint64_t * dice, size_t n) {
    *dice += 0x9e3779b97f4a7c15u;
    uint64_t z = *dice;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (size_t)((z ^ (z >> 31)) % n);
}

static void choose_schedule(uint64_t *dice, zr_config_t *config) {
    zr_schedule_t *schedule = &config->schedule;
    schedule->kind = (zr_schedule_kind_t) throw(dice, 4);
    if (schedule->kind == ZR_SCHEDULE_CONSTANT)
        return;
    schedule->warmup_steps = throw(dice, 50);
    if (schedule->kind != ZR_SCHEDULE_WARMUP)
        schedule->total_steps = 50 + throw(dice, 100);
    if (schedule->kind == ZR_SCHEDULE_WARMUP_COSINE) {
        schedule->warmup_min_ratio = (double) throw(dice, 10) / 10;
        schedule->cos_min_ratio = (double) throw(dice, 10) / 10;
    } else {
        schedule->warmup_min_lr = (double) throw(dice, 10) / 1e5;
        schedule->warmup_max_lr = (double) throw(dice, 10) / 1e4;
        schedule->warmup_log = throw(dice, 2);
    }
}

static void choose_offload(uint64_t *dice, zr_config_t *config) {
    zr_offload_options_t *state = &config->offload_optimizer;
    zr_offload_param_options_t *params = &config->offload_param;
    state->device = (zr_offload_device_t) throw(dice, 3);
    if (config->stage == 3)
        params->device = (zr_offload_device_t) throw(dice, 3);
    if (state->device != ZR_OFFLOAD_NONE)
        state->ratio = (double) throw(dice, 257) / 256;
    if (params->device != ZR_OFFLOAD_NONE)
        params->ratio = (double) throw(dice, 257) / 256;
    if (state->device == ZR_OFFLOAD_NVME) {
        state->n_buffers = 1 + throw(dice, 6);
        state->read_ahead = throw(dice, 2);
        state->write_behind = throw(dice, 2);
    }
    if (params->device == ZR_OFFLOAD_NVME) {
        params->n_buffers = 1 + throw(dice, 9);
        params->buffer_elems = 2048 + throw(dice, 1 << 20);
        params->max_in_cpu_elems = throw(dice, 2) * 12345;
    }
    if (state->device == ZR_OFFLOAD_NVME || params->device == ZR_OFFLOAD_NVME)
        snprintf(config->nvme.paths, sizeof(config->nvme.paths), "/nvme0,/nvme%zu",
                 1 + throw(dice, 4));
}

static zr_config_t choose(uint64_t seed) {
    uint64_t dice = seed * 1000003;
    zr_config_t config = zr_config_default();
    config.stage = (int) throw(&dice, 4);
    config.dtype = throw(&dice, 2) ? ZR_DTYPE_BF16 : ZR_DTYPE_F32;
    config.micro_batch = 1 + throw(&dice, 9);
    config.grad_accum = 1 + throw(&dice, 4);
    config.clip = (double) throw(&dice, 3) / 2;
    config.adamw.lr = (double)(1 + throw(&dice, 30)) / 1e4;
    config.optimizer = (zr_optimizer_kind_t) throw(&dice, 3);
    if (config.optimizer == ZR_OPTIMIZER_SGD) {
        config.momentum = (double) throw(&dice, 3) / 4;
        config.nesterov = throw(&dice, 2);
    } else {
        config.adamw.beta2 = throw(&dice, 2) ? 0.999 : 0.95;
    }
    if (config.optimizer == ZR_OPTIMIZER_ADAMW)
        config.adamw.epsilon = throw(&dice, 2) ? 1e-8 : 1e-6;
    config.adamw.weight_decay = (double) throw(&dice, 3) / 10;
    config.sub_group_elems = throw(&dice, 2) ? 1000000000 : (size_t)4096 << throw(&dice, 8);
    config.overlap_comm = throw(&dice, 2);
    config.shard_group_size = throw(&dice, 2) ? -1 : 1 + (int) throw(&dice, 2);
    config.check_overflow = throw(&dice, 2);
    config.wall_clock_breakdown = throw(&dice, 2);
    config.steps_per_print = 1 + throw(&dice, 20);
    config.nvme.request_bytes = throw(&dice, 2) ? 524288 : 1048576;
    config.nvme.depth = throw(&dice, 2) ? 32 : 8;
    if (config.stage == 3) {
        config.prefetch_elems = throw(&dice, 2) ? 50000000 : throw(&dice, 1000000);
        config.reuse_elems = throw(&dice, 2) * throw(&dice, 1000000);
        config.max_live_elems = throw(&dice, 2) ? 1000000000 : 1 + throw(&dice, 1000000);
    }
    choose_schedule(&dice, &config);
    choose_offload(&dice, &config);
    return config;
}

static void expect_same(uint64_t seed, const zr_config_t *written, const zr_config_t *read,
                        const char *text) {
    size_t n = 0;
    const zr_option_t *options = zr_options(&n);
    for (size_t i = 0; i < n; i++)
        if (options[i].key != NULL && options[i].field != NULL &&
            !zr_option_equal(&options[i], written, read))
            fail_msg("configuration %u: %s: %s became %s in\n%s", (unsigned)seed, options[i].key,
                     zr_option_text(&options[i], written).text,
                     zr_option_text(&options[i], read).text, text);
}

TEST(what_is_written_is_read_back) {
    messages_t messages;
    for (uint64_t seed = 1; seed <= 500; seed++) {
        zr_config_t config = choose(seed), read = zr_config_default();
        char *text = NULL;
        assert_ok(zr_config_write_json(&config, NULL, &text));
        if (read_text(text, &read, &messages) != ZR_OK)
            fail_msg("configuration %u: %s%s", (unsigned)seed, messages.text, text);
        expect_same(seed, &config, &read, text);
        assert_ok(zr_config_resolve(&read, 2, NULL));
        free(text);
    }
}

/* The least there is to say: where the two differ in what they take for absent. */
TEST(defaults_are_said_once) {
    zr_config_t config = zr_config_default();
    char *text = NULL;
    assert_ok(zr_config_write_json(&config, NULL, &text));
    json_t *object = json_loads(text, 0, NULL), *optimizer = json_object_get(object, "optimizer");
    json_t *zero = json_object_get(object, "zero_optimization");
    assert_non_null(object);
    assert_string_equal(json_string_value(json_object_get(optimizer, "type")), "AdamW");
    assert_non_null(json_object_get(json_object_get(optimizer, "params"), "betas"));
    assert_null(json_object_get(json_object_get(optimizer, "params"), "eps"));
    assert_int_equal(json_integer_value(json_object_get(zero, "stage")), 0);
    assert_null(json_object_get(zero, "stage3_param_persistence_threshold"));
    assert_null(json_object_get(zero, "offload_optimizer"));
    assert_null(json_object_get(object, "scheduler"));
    assert_null(json_object_get(object, "train_batch_size"));
    assert_true(json_is_false(json_object_get(json_object_get(object, "bf16"), "enabled")));
    json_decref(object);
    free(text);
    config.stage = 3;
    assert_ok(zr_config_write_json(&config, NULL, &text));
    assert_has(text, "\"stage3_param_persistence_threshold\": 0");
    free(text);
}
