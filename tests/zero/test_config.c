/* Checks of a configuration, and the batch size that two others give. */
#include <limits.h>

#include "tests/zero/config_helper.h"

TEST(test_default_is_valid) {
    messages_t messages;
    zr_log_t log = keep_messages(&messages);
    zr_config_t config = zr_config_default();
    assert_ok(zr_config_resolve(&config, 3, &log));
    assert_int_equal(messages.n_messages, 0);
    assert_int_equal(config.micro_batch, 1);
    assert_int_equal(config.grad_accum, 1);
    assert_int_equal(config.train_batch, 3);
    assert_true(config.adamw.lr == 3e-4 && config.adamw.beta2 == 0.95);
    assert_true(config.prefetch_elems == ZR_CONFIG_ALL && config.max_live_elems == ZR_CONFIG_ALL);
    assert_true(config.device_memory_bytes == ZR_CONFIG_NO_BUDGET);
}

typedef struct batch_case {
    size_t train, micro, accum; /* as given */
    int n_ranks;
    size_t train_after, micro_after, accum_after; /* 0: refused */
    const char *message;
} batch_case_t;

static const batch_case_t batch_cases[] = {
    {0, 0, 0, 4, 4, 1, 1, NULL},
    {24, 0, 0, 4, 24, 6, 1, NULL},
    {0, 6, 0, 4, 24, 6, 1, NULL},
    {0, 0, 3, 4, 12, 1, 3, NULL},
    {24, 2, 0, 4, 24, 2, 3, NULL},
    {24, 0, 3, 4, 24, 2, 3, NULL},
    {0, 2, 3, 4, 24, 2, 3, NULL},
    {24, 2, 3, 4, 24, 2, 3, NULL},
    {7, 0, 0, 7, 7, 1, 1, NULL},
    {SIZE_MAX, SIZE_MAX, 1, 1, SIZE_MAX, SIZE_MAX, 1, NULL},
    {32, 2, 3, 4, 0, 0, 0, "x 4 ranks is 24; remove one of the three keys\n"},
    {8, 1, 4, 1, 0, 0, 0, "x 1 rank is 4; remove one of the three keys, or run with 2 ranks\n"},
    {30, 4, 0, 4, 0, 0, 0, "not a multiple of train_micro_batch_size_per_gpu 4 x 4 ranks"},
    {30, 0, 4, 4, 0, 0, 0, "not a multiple of gradient_accumulation_steps 4 x 4 ranks"},
    {3, 0, 0, 4, 0, 0, 0, "train_batch_size 3"},
    {4, 8, 0, 1, 0, 0, 0, "not a multiple"},
    {8, SIZE_MAX / 2, 0, 4, 0, 0, 0, "not a multiple"},
    {0, SIZE_MAX / 2, 3, 1, 0, 0, 0, "overflows"},
    {0, SIZE_MAX / 2, 1, 3, 0, 0, 0, "overflows"},
    {8, SIZE_MAX / 2 + 1, 2, 4, 0, 0, 0, "overflows"},
};

TEST(test_two_batch_sizes_give_the_third) {
    for (size_t i = 0; i < N_OF(batch_cases); i++) {
        const batch_case_t *c = &batch_cases[i];
        messages_t messages;
        zr_log_t log = keep_messages(&messages);
        zr_config_t config = zr_config_default();
        config.train_batch = c->train;
        config.micro_batch = c->micro;
        config.grad_accum = c->accum;
        zr_config_t before = config;
        zr_status_t status = zr_config_resolve(&config, c->n_ranks, &log);
        if (c->message) {
            assert_int_equal(status, ZR_ERR_ARGUMENT);
            assert_has(messages.text, c->message);
            assert_true(configs_equal(&config, &before));
            continue;
        }
        assert_int_equal(status, ZR_OK);
        assert_true(config.train_batch == c->train_after);
        assert_true(config.micro_batch == c->micro_after);
        assert_true(config.grad_accum == c->accum_after);
    }
}

/** A configuration with one thing wrong, and what the message has to say. */
typedef struct wrong_case {
    void (*spoil)(zr_config_t *config);
    const char *message;
} wrong_case_t;

static void cosine_without_end(zr_config_t *c) {
    c->schedule.kind = ZR_SCHEDULE_WARMUP_COSINE;
}
static void decay_shorter_than_warmup(zr_config_t *c) {
    c->schedule.kind = ZR_SCHEDULE_WARMUP_DECAY;
    c->schedule.warmup_steps = 11;
    c->schedule.total_steps = 10;
}

static void sub_group_too_small(zr_config_t *c) {
    c->offload_optimizer.device = ZR_OFFLOAD_CPU;
    c->sub_group_elems = 1023;
}
static void sub_group_too_small_for_codes(zr_config_t *c) {
    c->state_form = ZR_STATE_8BIT;
    c->offload_optimizer.device = ZR_OFFLOAD_NVME;
    snprintf(c->nvme.paths, sizeof(c->nvme.paths), ".");
    c->sub_group_elems = 65536;
}
static void sub_group_too_small_to_be_saved(zr_config_t *c) {
    c->state_form = ZR_STATE_8BIT;
    c->offload_optimizer.device = ZR_OFFLOAD_CPU;
    c->sub_group_elems = 4096;
}
static void sub_group_too_small_for_gradients(zr_config_t *c) {
    c->stage = 2;
    c->dtype = ZR_DTYPE_BF16;
    c->offload_optimizer.device = ZR_OFFLOAD_CPU;
    c->offload_optimizer.gradients = ZR_OFFLOAD_NVME;
    c->sub_group_elems = 2047;
    strcpy(c->nvme.paths, "drive");
}
static void updated_before_it_is_sharded(zr_config_t *c) {
    c->stage = 1;
    c->update_at = ZR_UPDATE_AT_BACKWARD;
}
static void buffer_too_small(zr_config_t *c) {
    c->stage = 3;
    c->offload_param.device = ZR_OFFLOAD_CPU;
    c->offload_param.buffer_elems = 1;
}

static void nvme_without_path(zr_config_t *c) {
    c->offload_optimizer.device = ZR_OFFLOAD_NVME;
}
static void odd_requests(zr_config_t *c) {
    c->nvme.request_bytes = 5000;
}
static void endless_paths(zr_config_t *c) {
    memset(c->nvme.paths, 'p', sizeof(c->nvme.paths));
}
static void empty_path(zr_config_t *c) {
    strcpy(c->nvme.paths, "/a,,/b");
}
static void too_many_files(zr_config_t *c) {
    strcpy(c->nvme.paths, "/a,/b,/c");
    c->nvme.files_per_path = 6;
}
static void too_many_paths(zr_config_t *c) {
    strcpy(c->nvme.paths, "1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17");
}

static const wrong_case_t wrong_cases[] = {
    {cosine_without_end,
     "requires schedule.total_steps (scheduler.params.total_num_steps), which is not set"},
    {decay_shorter_than_warmup, "is 11, must be at most schedule.total_steps"},
    {sub_group_too_small,
     "--sub-group) is 1023; with an offloaded optimizer allowed: at least 1024"},
    {sub_group_too_small_for_codes,
     "--sub-group) is 65536; with offloaded optimizer state in fewer "
     "bits (--state) allowed: at least 131072"},
    {sub_group_too_small_to_be_saved, "--sub-group) is 4096; with offloaded optimizer state in "
                                      "fewer bits (--state) allowed: at least 131072"},
    {sub_group_too_small_for_gradients, "--sub-group) is 2047; with gradients of bf16 on nvme "
                                        "(--offload-gradients nvme) allowed: at least 2048"},
    {updated_before_it_is_sharded, "(--update-at) is backward at stage 1"},
    {buffer_too_small, "--param-buffer) is 1; allowed: at least 1024 (4096 bytes of fp32)"},
    {nvme_without_path, "no path is given: set nvme.paths"},
    {odd_requests, "nvme.request_bytes (aio.block_size) is 5000, must be a multiple of 4096"},
    {endless_paths, "nvme.paths is not NUL-terminated"},
    {empty_path, "is \"/a,,/b\": a folder name is empty"},
    {too_many_files, "nvme.files_per_path is 6, with 3 paths; 1 to 16 files"},
    {too_many_paths, "nvme.files_per_path is 1, with 17 paths"},
};

TEST(test_wrong_fields_are_named) {
    for (size_t i = 0; i < N_OF(wrong_cases); i++) {
        messages_t messages;
        zr_log_t log = keep_messages(&messages);
        zr_config_t config = zr_config_default();
        wrong_cases[i].spoil(&config);
        assert_int_equal(zr_config_resolve(&config, 2, &log), ZR_ERR_ARGUMENT);
        if (!strstr(messages.text, wrong_cases[i].message))
            fail_msg("\"%s\" does not say \"%s\"", messages.text, wrong_cases[i].message);
        assert_int_equal(messages.n_messages, 1);
        assert_int_equal(config.train_batch, 0); /* nothing was filled in */
    }
}

/* ---- ranges ------------------------------------------------------------------------------- */

/** Put a number into a field, whatever it holds. */
static void store(const zr_option_t *option, double value, zr_config_t *config) {
    if (option->type == ZR_OPTION_NUMBER)
        *(double *)(void *)((char *)config + option->offset) = value;
    else
        zr_option_store_whole(option, (uint64_t)(int64_t)value, config);
}

static void expect_refused(const zr_option_t *option, double value) {
    messages_t messages;
    char said[256];
    zr_log_t log = keep_messages(&messages);
    zr_config_t config = zr_config_default(), before;
    store(option, value, &config);
    before = config;
    assert_int_equal(zr_config_resolve(&config, 1, &log), ZR_ERR_ARGUMENT);
    snprintf(said, sizeof(said), "configuration: %s", option->field);
    if (strstr(messages.text, said) == NULL ||
        strstr(messages.text, option->key ? option->key : "") == NULL ||
        strstr(messages.text, option->name ? option->name : "") == NULL ||
        strstr(messages.text, zr_option_range(option).text) == NULL)
        fail_msg("%s = %g: %s", option->field, value, messages.text);
    assert_true(configs_equal(&config, &before));
}

/** Each field is named, with what files and options call it, and what it must be. */
TEST(test_fields_have_the_range_of_their_row) {
    size_t n = 0, n_ranges = 0;
    const zr_option_t *options = zr_options(&n);
    for (size_t i = 0; i < n; i++) {
        const zr_option_t *option = &options[i];
        bool is_unset = (option->flags & (ZR_OPTION_UNSET0 | ZR_OPTION_OR_AUTO)) != 0;
        if (option->field == NULL || option->type == ZR_OPTION_PATHS ||
            option->type == ZR_OPTION_SWITCH)
            continue;
        if (option->type == ZR_OPTION_NUMBER) {
            expect_refused(option, (double)NAN);
            expect_refused(option, (double)INFINITY);
            expect_refused(option, option->least > 0 ? option->least / 2 : -1e-9);
        } else if (option->type == ZR_OPTION_CHOICE || option->type == ZR_OPTION_INT) {
            expect_refused(option, -2);
        } else if (option->least > 0 && !is_unset) {
            expect_refused(option, option->least - 1);
        }
        if (option->most != 0 && option->type != ZR_OPTION_NUMBER)
            expect_refused(option, option->most + 1);
        else if (option->most != 0)
            expect_refused(option, option->most * (1 + 1e-9));
        n_ranges++;
    }
    assert_true(n_ranges > 35);
}

TEST(test_all_wrong_fields_are_reported) {
    messages_t messages;
    zr_log_t log = keep_messages(&messages);
    zr_config_t config = zr_config_default();
    config.stage = 4;
    config.reduce = (zr_reduce_t)2;
    config.adamw.weight_decay = -0.1;
    cosine_without_end(&config);
    assert_int_equal(zr_config_resolve(&config, 0, &log), ZR_ERR_ARGUMENT);
    assert_int_equal(messages.n_messages, 5);
    assert_has(messages.text,
               "0 ranks, must be at least 1|stage (zero_optimization.stage, --stage) is 4, must be "
               "0, 1, 2 or 3");
}

TEST(test_zero_ranks_and_null) {
    messages_t messages;
    zr_log_t log = keep_messages(&messages);
    zr_config_t config = zr_config_default();
    assert_int_equal(zr_config_resolve(&config, 0, &log), ZR_ERR_ARGUMENT);
    assert_int_equal(zr_config_resolve(&config, -3, &log), ZR_ERR_ARGUMENT);
    assert_int_equal(zr_config_resolve(NULL, 1, &log), ZR_ERR_ARGUMENT);
    assert_int_equal(messages.n_messages, 3);
}
