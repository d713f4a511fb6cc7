/* Whole files: good ones, malformed ones, hostile ones. */
#include <ctype.h>

#include "tests/zero/config_helper.h"

/** What Hugging Face's examples for stage 3 look like. */
static const char good_file[] =
    "{\n"
    "  \"train_batch_size\": 64, \"train_micro_batch_size_per_gpu\": \"auto\",\n"
    "  \"gradient_accumulation_steps\": 4, \"gradient_clipping\": 1,\n"
    "  \"steps_per_print\": 5, \"wall_clock_breakdown\": false,\n"
    "  \"bf16\": {\"enabled\": true},\n"
    "  \"fp16\": {\"enabled\": \"auto\", \"loss_scale\": 0, \"loss_scale_window\": 1000,\n"
    "           \"initial_scale_power\": 16, \"hysteresis\": 2, \"min_loss_scale\": 1},\n"
    "  \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 6e-4, \"betas\": [0.9, 0.98],\n"
    "                \"eps\": \"auto\", \"weight_decay\": 0.1}},\n"
    "  \"scheduler\": {\"type\": \"WarmupDecayLR\", \"params\": {\"warmup_min_lr\": 0,\n"
    "                \"warmup_max_lr\": 6e-4, \"warmup_num_steps\": 20,\n"
    "                \"total_num_steps\": \"auto\"}},\n"
    "  \"zero_optimization\": {\"stage\": 3, \"overlap_comm\": true, \"contiguous_gradients\": "
    "true,\n"
    "                \"reduce_bucket_size\": 5e8, \"stage3_prefetch_bucket_size\": 5e7,\n"
    "                \"stage3_param_persistence_threshold\": \"auto\",\n"
    "                \"stage3_gather_16bit_weights_on_model_save\": true,\n"
    "                \"offload_optimizer\": {\"device\": \"none\", \"pin_memory\": true},\n"
    "                \"offload_param\": null}\n"
    "}\n";

TEST(test_good_file) {
    messages_t messages;
    zr_config_t config = zr_config_default(), expected = config;
    expected.train_batch = 64;
    expected.grad_accum = 4;
    expected.clip = 1;
    expected.steps_per_print = 5;
    expected.dtype = ZR_DTYPE_BF16;
    expected.adamw = (zr_adamw_options_t){
        .lr = 6e-4, .beta1 = 0.9, .beta2 = 0.98, .epsilon = 1e-8, .weight_decay = 0.1};
    expected.schedule.kind = ZR_SCHEDULE_WARMUP_DECAY;
    expected.schedule.warmup_max_lr = 6e-4;
    expected.schedule.warmup_steps = 20;
    expected.stage = 3;
    expected.prefetch_elems = 50000000;
    assert_ok(read_text(good_file, &config, &messages));
    assert_has(messages.text, "fp16.enabled \"auto\" is taken as false: fp16 is not supported");
    assert_has(messages.text, "stage3_gather_16bit_weights_on_model_save true has no effect");
    assert_has(messages.text, "reduce_bucket_size 500000000.0 has no effect");
    assert_has(messages.text, "libzero's defaults (DeepSpeed's in brackets), which changes memory "
                              "and time, not the result: stage3_max_live_parameters all "
                              "(1000000000), stage3_max_reuse_distance 0 (1000000000)");
    assert_int_equal(messages.n_messages, 4);
    assert_true(configs_equal(&config, &expected));

    zr_log_t log = keep_messages(&messages);
    assert_int_equal(zr_config_resolve(&config, 4, &log), ZR_ERR_ARGUMENT);
    config.schedule.total_steps = 100; /* what the trainer does for "auto" */
    assert_ok(zr_config_resolve(&config, 4, &log));
    assert_int_equal(config.micro_batch, 4);
}

/* A file says -1, or nothing; "all" is for command lines. */
TEST(test_units_of_any_size) {
    messages_t messages;
    zr_config_t config = zr_config_default(), before = config;
    const char *text =
        "{\"train_micro_batch_size_per_gpu\": 1, \"zero_optimization\": {\"stage\": 3, "
        "\"stage3_prefetch_bucket_size\": %s, \"stage3_max_live_parameters\": %s}}";
    static const char *const values[][2] = {{"\"auto\"", "\"auto\""}, {"-1", "-1"}, {"0", "0"}};
    for (size_t i = 0; i < 3; i++) {
        char file[256];
        snprintf(file, sizeof(file), text, values[i][0], values[i][1]);
        config = before;
        assert_ok(read_text(file, &config, &messages));
        assert_true((config.prefetch_elems == ZR_CONFIG_ALL) == (i < 2));
        assert_true((config.max_live_elems == ZR_CONFIG_ALL) == (i < 2));
    }
    assert_int_equal(read_text("{\"zero_optimization\": {\"stage3_max_live_parameters\": -2}}",
                               &config, &messages),
                     ZR_ERR_ARGUMENT);
    assert_has(messages.text, "at least 0, or -1");
}

TEST(test_empty_object_changes_nothing) {
    messages_t messages;
    zr_config_t config = zr_config_default(), before = config;
    assert_ok(read_text("{}", &config, &messages));
    assert_true(configs_equal(&config, &before));
}

/** A file over another configuration: what it does not say stays. */
TEST(test_file_goes_over_what_is_there) {
    messages_t messages;
    zr_config_t config = zr_config_default();
    config.dtype = ZR_DTYPE_BF16;
    config.stage = 2;
    config.adamw.lr = 0.5;
    assert_ok(read_text("{\"bf16\": {\"enabled\": false}, "
                        "\"optimizer\": {\"params\": {\"eps\": 0.25}}}",
                        &config, &messages));
    assert_int_equal(config.dtype, ZR_DTYPE_F32);
    assert_int_equal(config.stage, 2);
    assert_true(config.adamw.lr == 0.5 && config.adamw.epsilon == 0.25);
}

/** Keys of stage 3 as DeepSpeed's fields are called, and values that say nothing here. */
TEST(test_names_and_values_of_published_files) {
    messages_t messages;
    zr_config_t config = zr_config_default();
    assert_ok(read_text("{\"gradient_clipping\": 0, \"zero_optimization\": {\"stage\": 3, "
                        "\"sub_group_size\": 0, \"max_live_parameters\": 0, "
                        "\"max_reuse_distance\": 0, \"prefetch_bucket_size\": 1e6, "
                        "\"param_persistence_threshold\": 1e5, "
                        "\"gather_16bit_weights_on_model_save\": true, "
                        "\"offload_optimizer\": {\"device\": \"cpu\", \"pin_memory\": false}}}",
                        &config, &messages));
    assert_true(config.stage == 3 && config.max_live_elems == 0 && config.reuse_elems == 0);
    assert_true(config.prefetch_elems == 1000000);
    assert_true(config.sub_group_elems == zr_config_default().sub_group_elems);
    assert_true(config.offload_optimizer.device == ZR_OFFLOAD_CPU);
    assert_int_equal(messages.n_messages, 4);
    assert_has(messages.text, "sub_group_size 0 has no effect|"
                              "stage3_param_persistence_threshold 100000.0 has no effect|"
                              "stage3_gather_16bit_weights_on_model_save true has no effect|"
                              "offload_optimizer.pin_memory false has no effect: host memory");
}

/** Texts as people write them, which DeepSpeed reads. */
TEST(test_relaxed_texts) {
    static const char *const texts[] = {
        "# of a run\n{\"zero_optimization\": {\"stage\": 3, // all\n}, }",
        "\xef\xbb\xbf{'zero_optimization': /* two\n lines */ {'stage': 3,},}",
        "{\n  zero_optimization: {\n    stage: 3 # all\n    overlap_comm: true\n  }\n}",
        "{zero_optimization:{stage:3/**/,\"stage3_prefetch_bucket_size\":-1}\n\n}\n// end"};
    for (size_t i = 0; i < N_OF(texts); i++) {
        messages_t messages;
        zr_config_t config = zr_config_default();
        if (read_text(texts[i], &config, &messages) != ZR_OK || config.stage != 3)
            fail_msg("%s: %s", texts[i], messages.text);
    }
    messages_t messages; /* what looks like a comment in a string is none */
    zr_config_t config = zr_config_default();
    assert_ok(read_text("{\"zero_optimization\": {\"offload_optimizer\": {\"nvme_path\": "
                        "'/a//b#\"c\\'/*d*/', }}}",
                        &config, &messages));
    assert_string_equal(config.nvme.paths, "/a//b#\"c'/*d*/");
}

/** DeepSpeed's defaults of what decides the result, where their section is there. */
TEST(test_absent_keys) {
    messages_t messages;
    zr_config_t config = zr_config_default();
    assert_ok(read_text("{\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"eps\": 1e-6}}, "
                        "\"scheduler\": {\"type\": \"WarmupDecayLR\"}}",
                        &config, &messages));
    assert_true(config.adamw.lr == 1e-3 && config.adamw.beta1 == 0.9);
    assert_true(config.adamw.beta2 == 0.999 && config.adamw.epsilon == 1e-6);
    assert_true(config.clip == 1 && config.schedule.warmup_max_lr == 1e-3);
    assert_int_equal(config.schedule.warmup_steps, 1000);
    assert_int_equal(messages.n_messages, 1);
    assert_has(messages.text, "keys that it does not have are DeepSpeed's defaults: "
                              "gradient_clipping 1.0, lr 0.001, betas[1] 0.999, "
                              "warmup_max_lr 0.001");

    config = zr_config_default(); /* "auto" and null are words, and the program's */
    assert_ok(read_text("{\"gradient_clipping\": \"auto\", \"optimizer\": {\"type\": \"Lion\", "
                        "\"params\": {\"lr\": \"auto\"}}, \"scheduler\": {\"type\": "
                        "\"WarmupDecayLR\", \"params\": {\"warmup_max_lr\": null}}}",
                        &config, &messages));
    assert_true(config.adamw.lr == zr_config_default().adamw.lr && config.clip == 0);
    assert_true(config.adamw.beta2 == 0.999 && config.schedule.warmup_max_lr == 0);

    config = zr_config_default(); /* the optimizer is the program's */
    assert_ok(read_text("{\"gradient_clipping\": 0, \"optimizer\": {}}", &config, &messages));
    zr_config_t own = zr_config_default();
    assert_true(configs_equal(&config, &own));
    assert_int_equal(messages.n_messages, 0);
}

/* ---- files that are wrong -------------------------------------------------------- */

typedef struct wrong_file {
    const char *text;
    zr_status_t status;
    const char *message;
} wrong_file_t;

static const wrong_file_t wrong_files[] = {
    {"", ZR_ERR_FORMAT, "is empty"},
    {" \n\t ", ZR_ERR_FORMAT, "is empty"},
    {"[]", ZR_ERR_FORMAT, "is [], must be an object"},
    {"3", ZR_ERR_FORMAT, "is 3, must be an object"},
    {"\"auto\"", ZR_ERR_FORMAT, "must be an object"},
    {"null", ZR_ERR_FORMAT, "must be an object"},
    {"{", ZR_ERR_FORMAT, "is the file truncated?"},
    {"{\"bf16\": {\"enabled\": tr", ZR_ERR_FORMAT, "line 1, column"},
    {"{\n \"stage\": 1,,\n}", ZR_ERR_FORMAT, "line 2, column"},
    {"{\"a\": [, 1]}", ZR_ERR_FORMAT, "near ','"},
    {"{\"a\": 1 \"b\": 2}", ZR_ERR_FORMAT, "near '\"b\"'"},
    {"{\n // stage\n 3}", ZR_ERR_FORMAT, "line 3, column 2: "},
    {"{\"bf16\": /* no end {}}", ZR_ERR_FORMAT, "line 1, column"},
    {"{\"optimizer\": {\"type\": AdamW}}", ZR_ERR_FORMAT, "invalid token near 'AdamW'"},
    {"{'bf16: {}}", ZR_ERR_FORMAT, "line 1"},
    {"{\"bf16\": {\"enabled\": True}}", ZR_ERR_FORMAT, "invalid token near 'True'"},
    {"{} {}", ZR_ERR_FORMAT, "end of file expected"},
    {"{\"a\": \"\xff\"}", ZR_ERR_FORMAT, "byte 0xff"},
    {"{\"a\": \"\\u0000\"}", ZR_ERR_FORMAT, "line 1"},
    {"{\"steps_per_print\": 1, \"steps_per_print\": 2}", ZR_ERR_FORMAT, "duplicate"},
    {"{\"bf16\": {\"enabled\": true, \"enabled\": true}}", ZR_ERR_FORMAT, "duplicate"},
    {"{\"optimizer\": {\"params\": {\"lr\": NaN}}}", ZR_ERR_FORMAT, "NaN"},
    {"{\"optimizer\": {\"params\": {\"lr\": 01}}}", ZR_ERR_FORMAT, "line 1"},
    {"{\"train_batch_size\": 99999999999999999999}", ZR_ERR_ARGUMENT, "too big integer"},
    {"{\"train_batch_size\": -99999999999999999999}", ZR_ERR_ARGUMENT, "too big negative"},
    {"{\"optimizer\": {\"params\": {\"lr\": 1e999}}}", ZR_ERR_ARGUMENT, "real number overflow"},
    {"{\"train_batch_size\": 1e19}", ZR_ERR_ARGUMENT, "train_batch_size is 1"},
    {"{\"train_batch_size\": -9223372036854775808}", ZR_ERR_ARGUMENT, "at least 1"},
    {"{\"zero_optimization\": true}", ZR_ERR_ARGUMENT, "zero_optimization is true, must be an"},
    {"{\"optimizer\": \"AdamW\"}", ZR_ERR_ARGUMENT, "optimizer is \"AdamW\", must be an object"},
    {"{\"optimizer\": {\"type\": \"Lamb\"}}", ZR_ERR_UNSUPPORTED,
     "optimizer.type is \"Lamb\", which is not supported; write \"AdamW\" or \"Lion\" "
     "or \"SGD\" or \"Adam\""},
    {"{\"optimizer\": {\"type\": \"AdmaW\"}}", ZR_ERR_ARGUMENT, "did you mean \"AdamW\"?"},
    {"{\"zero_optimization\": {\"offload_param\": {\"device\": \"tape\"}}}", ZR_ERR_ARGUMENT,
     "zero_optimization.offload_param.device is \"tape\""},
    {"{\"zero_optimization\": {\"offload_param\": {\"buffer_count\": -1}}}", ZR_ERR_ARGUMENT,
     "1 to 1024"},
    {"{\"zero_optimization\": {\"cpu_offload_param\": true}}", ZR_ERR_UNSUPPORTED,
     "write the section offload_param"},
    {"{\"zero_optimization\": {\"offload_param\": {\"nvme_path\": \"/a\"}, "
     "\"offload_optimizer\": {\"nvme_path\": \"/b\"}}}",
     ZR_ERR_UNSUPPORTED,
     "offload_param.nvme_path is \"/a\", offload_optimizer.nvme_path \"/b\"; only the same"},
    {"{\"zero_optimization\": {\"offload_optimizer\": {\"device\": \"nvm\"}}}", ZR_ERR_ARGUMENT,
     "did you mean \"nvme\"?"},
    {"{\"zero_optimization\": {\"prefetch_bucket_size\": 1, \"stage3_prefetch_bucket_size\": 2}}",
     ZR_ERR_ARGUMENT,
     "zero_optimization.prefetch_bucket_size is 1, and "
     "zero_optimization.stage3_prefetch_bucket_size, which is the same key, is 2"},
    {"{\"zero_optimization\": {\"prefetch_bucket_siz\": 1}}", ZR_ERR_ARGUMENT,
     "did you mean zero_optimization.stage3_prefetch_bucket_size?"},
    {"{\"stage\": 3}", ZR_ERR_ARGUMENT, "did you mean zero_optimization.stage?"},
    {"{\"zero_optimization.stage\": 3}", ZR_ERR_ARGUMENT, "keys have no dots"},
    {"{\"\": 3}", ZR_ERR_ARGUMENT, "docs/reference/deepspeed.md"},
    {"{\"entirely_unlike_anything\": 3}", ZR_ERR_ARGUMENT, "nor like one"},
    {"{\"fp16\": {\"enabled\": false, \"los_scale\": 0}}", ZR_ERR_ARGUMENT, "fp16.loss_scale?"},
    {"{\"fp16\": {\"enabled\": true, \"loss_scale\": 0}}", ZR_ERR_UNSUPPORTED,
     "fp16.enabled is true, only false is supported: fp16 is not supported; use bf16"},
    {"{\"wall_clock_breakdown\": \"auto\"}", ZR_ERR_ARGUMENT, "\"auto\" is not supported for this"},
    {"{\"scheduler\": {\"params\": {\"warmup_num_steps\": 3}}}", ZR_ERR_ARGUMENT,
     "scheduler.params.warmup_num_steps has no effect without scheduler.type"},
    {"{\"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"total_num_steps\": 3}}}",
     ZR_ERR_ARGUMENT, "scheduler.params.total_num_steps is not a parameter of WarmupLR"},
    {"{\"scheduler\": {\"params\": {\"warmup_max_lr\": 1}, \"type\": \"WarmupCosineLR\"}}",
     ZR_ERR_ARGUMENT, "warmup_max_lr is not a parameter of WarmupCosineLR"},
    {"{\"scheduler\": {\"type\": \"Warmup\", \"params\": {\"warmup_num_steps\": 3}}}",
     ZR_ERR_ARGUMENT, "did you mean \"WarmupLR\"?"},
    {"{\"scheduler\": {\"type\": \"OneCycle\"}}", ZR_ERR_UNSUPPORTED, "\"WarmupDecayLR\""},
};

TEST(test_wrong_files_are_named) {
    for (size_t i = 0; i < N_OF(wrong_files); i++) {
        const wrong_file_t *file = &wrong_files[i];
        messages_t messages;
        zr_config_t config = zr_config_default(), before = config;
        zr_status_t status = read_text(file->text, &config, &messages);
        if (status != file->status || !strstr(messages.text, file->message))
            fail_msg("%s: %s, \"%s\" instead of %s, \"%s\"", file->text, zr_status_name(status),
                     messages.text, zr_status_name(file->status), file->message);
        assert_int_equal(messages.n_messages, 1);
        assert_int_equal(strncmp(messages.text, "/proc/self/fd/", 14), 0);
        assert_true(configs_equal(&config, &before));
    }
}

TEST(test_all_wrong_keys_are_reported) {
    messages_t messages;
    zr_config_t config = zr_config_default(), before = config;
    zr_status_t status = read_text("{\"train_batch_size\": 8, \"stag\": 1, "
                                   "\"zero_optimization\": {\"stage\": 7, \"sub_group_size\": -1}, "
                                   "\"fp16\": {\"enabled\": true}, \"bf16\": {\"enabled\": 1}}",
                                   &config, &messages);
    assert_int_equal(status, ZR_ERR_ARGUMENT); /* of the first, "stag" */
    assert_int_equal(messages.n_messages, 5);
    assert_has(messages.text, "stag is not|zero_optimization.stage is "
                              "7|zero_optimization.sub_group_size|fp16.enabled|bf16.enabled");
    assert_true(configs_equal(&config, &before));

    status = read_text("{\"fp16\": {\"enabled\": true}, \"stag\": 1}", &config, &messages);
    assert_int_equal(status, ZR_ERR_UNSUPPORTED);
    assert_int_equal(messages.n_messages, 2);
}

/** Messages stay one short line whatever the file holds. */
TEST(test_messages_are_printable) {
    char *text = (char *)malloc(200000);
    assert_non_null(text);
    size_t n = (size_t)sprintf(text, "{\"");
    memset(text + n, 'x', 100000);
    n += 100000;
    n += (size_t)sprintf(text + n, "\": 1, \"a\\nb\\u001b[31m\": 2, \"log_level\": [\"\\n");
    memset(text + n, 'y', 50000);
    n += 50000;
    sprintf(text + n, "\"]}");
    messages_t messages;
    zr_config_t config = zr_config_default();
    assert_int_equal(read_text(text, &config, &messages), ZR_ERR_ARGUMENT);
    assert_int_equal(messages.n_messages, 3);
    assert_true(strlen(messages.text) < 1000);
    int n_lines = 0;
    for (const char *letter = messages.text; *letter; letter++) {
        n_lines += *letter == '\n';
        assert_true(*letter == '\n' || (*letter >= ' ' && *letter <= '~'));
    }
    assert_int_equal(n_lines, 3);
    free(text);
}

TEST(test_deep_nesting) {
    enum { DEPTH = 200000 };
    char *text = (char *)malloc(6 * DEPTH + 1);
    assert_non_null(text);
    messages_t messages;
    zr_config_t config = zr_config_default();
    for (size_t i = 0; i < DEPTH; i++)
        memcpy(text + 5 * i, "{\"a\":", 5);
    assert_int_equal(read_bytes(text, 5 * DEPTH, &config, &messages), ZR_ERR_FORMAT);
    assert_has(messages.text, "maximum parsing depth");
    memset(text, '[', DEPTH);
    assert_int_equal(read_bytes(text, DEPTH, &config, &messages), ZR_ERR_FORMAT);

    /* As deep as the parser goes, where any object may stand. */
    size_t n = (size_t)sprintf(text, "{\"autotuning\": {\"arg_mappings\": ");
    for (int i = 0; i < 1000; i++)
        n += (size_t)sprintf(text + n, "{\"a\":");
    n += (size_t)sprintf(text + n, "1");
    memset(text + n, '}', 1002);
    assert_ok(read_bytes(text, n + 1002, &config, &messages));
    free(text);
}

/* jansson passes over one between tokens; what it made of the text was taken for a part of it. */
TEST(test_zero_byte) {
    static const char text[] = "{\"train_batch_size\": 8\0}";
    messages_t messages;
    zr_config_t config = zr_config_default();
    assert_int_equal(read_bytes(text, sizeof(text) - 1, &config, &messages), ZR_ERR_FORMAT);
    assert_has(messages.text, "its byte 22 is 0, which is not allowed in text");
}

/* ---- the file system --------------------------------------------------------------- */

static void check_path(const char *path, zr_status_t expected, const char *message) {
    messages_t messages;
    zr_log_t log = keep_messages(&messages);
    zr_config_t config = zr_config_default(), before = config;
    assert_int_equal(zr_config_read_json(path, &log, &config), expected);
    assert_int_equal(messages.n_messages, 1);
    if (!strstr(messages.text, message))
        fail_msg("no \"%s\" in %s", message, messages.text);
    assert_true(configs_equal(&config, &before));
}

TEST(test_unreadable_files) {
    check_path("/nonexistent/ds_config.json", ZR_ERR_IO,
               "/nonexistent/ds_config.json: cannot open it: No such file or directory");
    check_path("/", ZR_ERR_IO, "/: cannot read it: Is a directory");
    check_path("", ZR_ERR_IO, "No such file");
    check_path(NULL, ZR_ERR_ARGUMENT, "no file");
    check_path("/dev/null", ZR_ERR_FORMAT, "is empty");
    check_path("/dev/zero", ZR_ERR_FORMAT, "larger than the limit of 16777216 bytes");
    check_path("/proc/self/mem", ZR_ERR_IO, "cannot read it");
    zr_log_t log = zr_log_default();
    log.level = ZR_LOG_ERROR;
    messages_t messages;
    log = keep_messages(&messages);
    assert_int_equal(zr_config_read_json("/dev/null", &log, NULL), ZR_ERR_ARGUMENT);
}

TEST(test_truncated_file) {
    messages_t messages;
    size_t n_bytes = strlen(good_file);
    for (size_t n = 0; n < n_bytes - 2; n++) { /* the last two bytes are "}\n" */
        zr_config_t config = zr_config_default(), before = config;
        assert_int_equal(read_bytes(good_file, n, &config, &messages), ZR_ERR_FORMAT);
        assert_int_equal(messages.n_messages, 1);
        assert_true(configs_equal(&config, &before));
    }
}

/* ---- random damage ------------------------------------------------------------------ */

static uint64_t next_random(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

static size_t damage(char *bytes, size_t n_bytes, uint64_t *state) {
    static const char pieces[] = "{}[]\",:0123456789.eE-+ truefalsenullauto\\u00\n/";
    size_t at = next_random(state) % n_bytes;
    switch (next_random(state) % 6) {
    case 0: /* any byte */
        bytes[at] = (char)next_random(state);
        break;
    case 1: /* a byte that means something */
        bytes[at] = pieces[next_random(state) % (sizeof(pieces) - 1)];
        break;
    case 2: /* another digit or letter, so that the text mostly stays JSON */
    case 3:
        while (!isalnum((unsigned char)bytes[at]))
            at = at + 1 < n_bytes ? at + 1 : 0;
        bytes[at] = (char)((isdigit((unsigned char)bytes[at]) ? '0' : 'a') +
                           (int)(next_random(state) % 10));
        break;
    case 4: /* one less */
        memmove(bytes + at, bytes + at + 1, n_bytes - at - 1);
        return n_bytes - 1;
    case 5: { /* a piece copied elsewhere */
        size_t from = next_random(state) % n_bytes;
        size_t length = next_random(state) % 16;
        length = length < n_bytes - at ? length : n_bytes - at;
        length = length < n_bytes - from ? length : n_bytes - from;
        memmove(bytes + at, bytes + from, length);
        break;
    }
    }
    return n_bytes;
}

TEST(test_damaged_files) {
    uint64_t seed = 20240520;
    char bytes[sizeof(good_file)];
    size_t n_ok = 0, n_wrong_keys = 0, n_no_json = 0;
    for (int i = 0; i < 4000; i++) {
        size_t n_bytes = strlen(good_file);
        memcpy(bytes, good_file, n_bytes);
        for (uint64_t k = next_random(&seed) % 3 + 1; k > 0; k--)
            n_bytes = damage(bytes, n_bytes, &seed);
        messages_t messages;
        zr_config_t config = zr_config_default(), before = config;
        zr_status_t status = read_bytes(bytes, n_bytes, &config, &messages);
        assert_true(status == ZR_OK || messages.n_messages > 0); /* good ones may have notes */
        assert_true(status == ZR_OK || configs_equal(&config, &before));
        n_ok += status == ZR_OK;
        n_wrong_keys += status == ZR_ERR_ARGUMENT || status == ZR_ERR_UNSUPPORTED;
        n_no_json += status == ZR_ERR_FORMAT;
    }
    print_message("%zu good, %zu with wrong keys, %zu no JSON\n", n_ok, n_wrong_keys, n_no_json);
    assert_true(n_ok > 100 && n_wrong_keys > 100 && n_no_json > 100);
    assert_int_equal(n_ok + n_wrong_keys + n_no_json, 4000);
}

/* Paths that were set before decide between two that differ, and are all that stays. */
TEST(test_paths_that_differ) {
    messages_t messages;
    zr_config_t config = zr_config_default();
    strcpy(config.nvme.paths, "/c");
    assert_ok(read_text("{\"zero_optimization\": {\"offload_param\": {\"nvme_path\": "
                        "\"/a\"}, \"offload_optimizer\": {\"nvme_path\": \"/b\"}}, "
                        "\"aio\": {\"queue_depth\": 7}}",
                        &config, &messages));
    assert_string_equal(config.nvme.paths, "/c");
    assert_int_equal(config.nvme.depth, 7);
    assert_ok(read_text("{\"zero_optimization\": {\"offload_param\": {\"nvme_path\": "
                        "\"/a\"}, \"offload_optimizer\": {\"nvme_path\": \"/a\"}}}",
                        &config, &messages));
    assert_string_equal(config.nvme.paths, "/a");
}

TEST(test_a_path_has_to_fit) {
    char text[2 * ZR_CONFIG_PATHS_BYTES], path[ZR_CONFIG_PATHS_BYTES + 1];
    for (size_t n = ZR_CONFIG_PATHS_BYTES - 1; n <= ZR_CONFIG_PATHS_BYTES; n++) {
        messages_t messages;
        zr_config_t config = zr_config_default();
        memset(path, 'p', n);
        path[n] = '\0';
        snprintf(text, sizeof(text),
                 "{\"zero_optimization\": {\"offload_optimizer\": {\"nvme_path\": \"%s\"}}}", path);
        bool fits = n < ZR_CONFIG_PATHS_BYTES;
        assert_int_equal(read_text(text, &config, &messages), fits ? ZR_OK : ZR_ERR_ARGUMENT);
        if (fits)
            assert_string_equal(config.nvme.paths, path);
        else
            assert_has(messages.text, "has 1024 bytes, must have less than 1024");
    }
}
