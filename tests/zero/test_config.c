/* Checks of a configuration, and the batch size that two others give. */
#include <limits.h>

#include "tests/zero/config_helper.h"

TEST(test_default_is_valid) {
    messages_t messages;
    zr_log_t log = keep_messages(&messages);
    zr_config_t config = zr_config_default();
    assert_int_equal(zr_config_resolve(&config, 3, &log), ZR_OK);
    assert_int_equal(messages.n_messages, 0);
    assert_int_equal(config.micro_batch, 1);
    assert_int_equal(config.grad_accum, 1);
    assert_int_equal(config.train_batch, 3);
    assert_true(config.adamw.lr == 3e-4 && config.adamw.beta2 == 0.95);
    assert_int_equal(config.prefetch_elems, 50000000);
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
    {32, 2, 3, 4, 0, 0, 0, "x 4 ranks is 24"},
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
    for (size_t i = 0; i < sizeof(batch_cases) / sizeof(batch_cases[0]); i++) {
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
            assert_non_null(strstr(messages.text, c->message));
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

static void stage_4(zr_config_t *c) {
    c->stage = 4;
}
static void stage_negative(zr_config_t *c) {
    c->stage = -1;
}
static void dtype_i32(zr_config_t *c) {
    c->dtype = ZR_DTYPE_I32;
}
static void reduce_7(zr_config_t *c) {
    c->reduce = (zr_reduce_t)2;
}
static void clip_negative(zr_config_t *c) {
    c->clip = -1;
}
static void clip_infinite(zr_config_t *c) {
    c->clip = INFINITY;
}
static void lr_nan(zr_config_t *c) {
    c->adamw.lr = NAN;
}
static void lr_negative(zr_config_t *c) {
    c->adamw.lr = -1e-9;
}
static void beta1_one(zr_config_t *c) {
    c->adamw.beta1 = 1;
}
static void beta2_negative(zr_config_t *c) {
    c->adamw.beta2 = -0.1;
}
static void epsilon_zero(zr_config_t *c) {
    c->adamw.epsilon = 0;
}
static void weight_decay_negative(zr_config_t *c) {
    c->adamw.weight_decay = -0.1;
}
static void steps_per_print_zero(zr_config_t *c) {
    c->steps_per_print = 0;
}
static void kind_9(zr_config_t *c) {
    c->schedule.kind = (zr_schedule_kind_t)9;
}
static void min_lr_negative(zr_config_t *c) {
    c->schedule.warmup_min_lr = -1;
}
static void max_lr_nan(zr_config_t *c) {
    c->schedule.warmup_max_lr = NAN;
}
static void ratio_above_1(zr_config_t *c) {
    c->schedule.warmup_min_ratio = 1.5;
}
static void cosine_ratio_negative(zr_config_t *c) {
    c->schedule.cos_min_ratio = -0.5;
}
static void cosine_without_end(zr_config_t *c) {
    c->schedule.kind = ZR_SCHEDULE_WARMUP_COSINE;
}
static void decay_shorter_than_warmup(zr_config_t *c) {
    c->schedule.kind = ZR_SCHEDULE_WARMUP_DECAY;
    c->schedule.warmup_steps = 11;
    c->schedule.total_steps = 10;
}

static void epsilon_too_small_for_fp32(zr_config_t *c) {
    c->adamw.epsilon = 1e-50;
}
static void beta1_too_close_to_1_for_fp32(zr_config_t *c) {
    c->adamw.beta1 = 1 - 1e-12;
}
static void lr_too_large_for_fp32(zr_config_t *c) {
    c->adamw.lr = 1e39;
}

static void sub_group_too_small(zr_config_t *c) {
    c->offload_optimizer.device = ZR_OFFLOAD_CPU;
    c->sub_group_elems = 1023;
}
static void buffer_too_small(zr_config_t *c) {
    c->stage = 3;
    c->offload_param.device = ZR_OFFLOAD_CPU;
    c->offload_param.buffer_elems = 1;
}

static void ratio_above_all(zr_config_t *c) {
    c->offload_optimizer.ratio = 1.01;
}
static void no_buffers(zr_config_t *c) {
    c->offload_optimizer.n_buffers = 0;
}
static void too_many_buffers(zr_config_t *c) {
    c->offload_optimizer.n_buffers = 1025;
}
static void offload_to_tape(zr_config_t *c) {
    c->offload_optimizer.device = (zr_offload_device_t)3;
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
static void too_deep(zr_config_t *c) {
    c->nvme.depth = 1025;
}
static void no_batch(zr_config_t *c) {
    c->nvme.submit_batch = 0;
}
static void too_many_files(zr_config_t *c) {
    strcpy(c->nvme.paths, "/a,/b,/c");
    c->nvme.files_per_path = 6;
}
static void too_many_paths(zr_config_t *c) {
    strcpy(c->nvme.paths, "1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17");
}
static void threads_negative(zr_config_t *c) {
    c->host_threads = -1;
}

static const wrong_case_t wrong_cases[] = {
    {stage_4, "stage (zero_optimization.stage, --stage) is 4, has to be 0, 1, 2 or 3"},
    {stage_negative, "is -1, has to be 0, 1, 2 or 3"},
    {dtype_i32, "dtype (bf16.enabled, --dtype) is 3, has to be fp32 or bf16"},
    {reduce_7, "reduce (--reduce) is 2, has to be auto or every-micro-batch"},
    {clip_negative, "clip (gradient_clipping, --clip) is -1, has to be 0 to 1e+30"},
    {clip_infinite, "clip (gradient_clipping, --clip) is inf"},
    {lr_nan, "adamw.lr (optimizer.params.lr, --lr) is nan"},
    {lr_negative, "adamw.lr (optimizer.params.lr, --lr) is -1e-09"},
    {beta1_one, "(optimizer.params.betas[0], --beta1) is 1, has to be 0 to 0.999999"},
    {beta2_negative, "--beta2) is -0.1"},
    {epsilon_zero, "adamw.epsilon (optimizer.params.eps, --epsilon) is 0, has to be 1e-37 to 1"},
    {weight_decay_negative,
     "adamw.weight_decay (optimizer.params.weight_decay, --weight-decay) is -0.1"},
    {steps_per_print_zero, "steps_per_print (steps_per_print) is 0, has to be at least 1"},
    {kind_9, "schedule.kind (scheduler.type, --schedule) is 9"},
    {min_lr_negative, "schedule.warmup_min_lr"},
    {max_lr_nan, "schedule.warmup_max_lr"},
    {ratio_above_1, "is 1.5, has to be 0 to 1"},
    {cosine_ratio_negative, "schedule.cos_min_ratio"},
    {cosine_without_end, "schedule.total_steps (scheduler.params.total_num_steps) is not set"},
    {decay_shorter_than_warmup, "is 11, has to be at most schedule.total_steps"},
    {epsilon_too_small_for_fp32, "is 1e-50, has to be 1e-37 to 1"},
    {beta1_too_close_to_1_for_fp32, "is 0.999999999999, has to be 0 to 0.999999"},
    {sub_group_too_small,
     "--sub-group) is 1023; with an offloaded optimizer allowed are at least 1024"},
    {buffer_too_small, "--param-buffer) is 1; allowed are at least 1024 (4096 bytes of fp32)"},
    {lr_too_large_for_fp32, "is 1e+39, has to be 0 to 1000"},
    {ratio_above_all, "offload_optimizer.ratio (zero_optimization.offload_optimizer.ratio, "
                      "--offload-ratio) is 1.01, has to be 0 to 1"},
    {no_buffers, "buffer_count, --nvme-buffers) is 0, has to be 1 to 1024"},
    {too_many_buffers, "buffer_count, --nvme-buffers) is 1025, has to be 1 to 1024"},
    {offload_to_tape, "--offload-optimizer) is 3, has to be none, cpu or nvme"},
    {nvme_without_path, "no path is named: set nvme.paths"},
    {odd_requests, "nvme.request_bytes (aio.block_size) is 5000, has to be a multiple of 4096"},
    {endless_paths, "nvme.paths is not NUL-terminated"},
    {empty_path, "is \"/a,,/b\": a folder between its commas has no name"},
    {too_deep, "nvme.depth (aio.queue_depth) is 1025, has to be 1 to 1024"},
    {no_batch, "nvme.submit_batch is 0, has to be at least 1"},
    {too_many_files, "nvme.files_per_path is 6, with 3 paths; 1 to 16 files"},
    {too_many_paths, "nvme.files_per_path is 1, with 17 paths"},
    {threads_negative, "host_threads is -1"},
};

TEST(test_wrong_fields_are_named) {
    for (size_t i = 0; i < sizeof(wrong_cases) / sizeof(wrong_cases[0]); i++) {
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

TEST(test_all_wrong_fields_are_reported) {
    messages_t messages;
    zr_log_t log = keep_messages(&messages);
    zr_config_t config = zr_config_default();
    for (size_t i = 0; i < 4; i++)
        wrong_cases[3 * i].spoil(&config); /* stage, reduce, lr, weight decay */
    cosine_without_end(&config);
    assert_int_equal(zr_config_resolve(&config, 0, &log), ZR_ERR_ARGUMENT);
    assert_int_equal(messages.n_messages, 6);
    assert_non_null(strstr(messages.text, "0 ranks, has to be at least 1"));
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
