/*
 * Every key of the table, one by one: a supported key changes its field and nothing else, a
 * fixed one has its one value, a refused one is refused by name, and a slip of any of them is
 * answered with the right name.
 */
#include <ctype.h>

#include "tests/zero/config_helper.h"

/* ---- files with one key ------------------------------------------------------ */

/** JSON of a file in which `section`.`name` is `value` and nothing else is, if possible. */
static void write_file(char *text, size_t text_bytes, const char *section, unsigned schedules,
                       const char *name, const char *value) {
    char path[256], *rest = path, *part;
    int depth = 0;
    snprintf(path, sizeof(path), "%s", section);
    snprintf(text, text_bytes, "{");
    while (path[0] && (part = strsep(&rest, ".")) != NULL) {
        size_t used = strlen(text);
        snprintf(text + used, text_bytes - used, "\"%s\": {", part);
        depth++;
    }
    size_t used = strlen(text);
    used += (size_t)snprintf(text + used, text_bytes - used, "\"%s\": %s", name, value);
    for (; depth > 1; depth--)
        used += (size_t)snprintf(text + used, text_bytes - used, "}");
    if (schedules)
        used += (size_t)snprintf(text + used, text_bytes - used, ", \"type\": \"%s\"",
                                 schedules & (1u << ZR_SCHEDULE_WARMUP)         ? "WarmupLR"
                                 : schedules & (1u << ZR_SCHEDULE_WARMUP_DECAY) ? "WarmupDecayLR"
                                                                                : "WarmupCosineLR");
    snprintf(text + used, text_bytes - used, "%s}", depth == 1 ? "}" : "");
}

static void section_of(const zr_config_key_t *key, char *section, size_t section_bytes) {
    size_t chars = (size_t)(zr_config_key_name(key) - key->path);
    snprintf(section, section_bytes, "%.*s", (int)(chars ? chars - 1 : 0), key->path);
}

static zr_status_t read_key(const zr_config_key_t *key, const char *value, zr_config_t *config,
                            messages_t *messages) {
    char section[128], text[1024];
    section_of(key, section, sizeof(section));
    write_file(text, sizeof(text), section, key->schedules, zr_config_key_name(key), value);
    return read_text(text, config, messages);
}

/** What a file with this key starts from: the scheduler that the key needs is there already. */
static zr_config_t config_for(const zr_config_key_t *key) {
    zr_config_t config = zr_config_default();
    if (key->schedules & (1u << ZR_SCHEDULE_WARMUP))
        config.schedule.kind = ZR_SCHEDULE_WARMUP;
    else if (key->schedules & (1u << ZR_SCHEDULE_WARMUP_DECAY))
        config.schedule.kind = ZR_SCHEDULE_WARMUP_DECAY;
    else if (key->schedules)
        config.schedule.kind = ZR_SCHEDULE_WARMUP_COSINE;
    return config;
}

static void expect(const zr_config_key_t *key, const char *value, zr_status_t expected,
                   const char *in_message) {
    messages_t messages;
    zr_config_t before = config_for(key), config = before;
    zr_status_t status = read_key(key, value, &config, &messages);
    if (status != expected)
        fail_msg("%s = %s: %s instead of %s: %s", key->path, value, zr_status_name(status),
                 zr_status_name(expected), messages.text);
    if (expected == ZR_OK) {
        assert_int_equal(messages.n_messages, 0);
        return;
    }
    assert_int_equal(messages.n_messages, 1);
    if (!strstr(messages.text, in_message))
        fail_msg("%s = %s: no \"%s\" in %s", key->path, value, in_message, messages.text);
    assert_true(configs_equal(&config, &before));
}

static void expect_no_change(const zr_config_key_t *key, const char *value) {
    messages_t messages;
    zr_config_t before = config_for(key), config = before;
    zr_status_t status = read_key(key, value, &config, &messages);
    if (status != ZR_OK)
        fail_msg("%s = %s: %s", key->path, value, messages.text);
    assert_true(configs_equal(&config, &before));
}

/** A value of the key's type that is not the given one. */
static const char *another_value(const zr_config_key_t *key, const char *value) {
    if (key->choices) {
        for (const zr_key_choice_t *choice = key->choices; choice->name; choice++)
            if (!choice->supported) {
                static char quoted[64];
                snprintf(quoted, sizeof(quoted), "\"%s\"", choice->name);
                return quoted;
            }
        fail_msg("%s: no choice that is not supported", key->path);
    }
    switch (key->type) {
    case ZR_KEY_BOOL:
        return value && strcmp(value, "true") == 0 ? "false" : "true";
    case ZR_KEY_INTEGER:
        return "77";
    case ZR_KEY_NUMBER:
        return "0.77";
    case ZR_KEY_STRING:
        return "\"something\"";
    case ZR_KEY_PAIR:
        return "[0.5, 0.6]";
    case ZR_KEY_LIST:
        return "[1, \"two\"]";
    case ZR_KEY_OBJECT:
        return "{\"some\": {\"thing\": 1}}";
    case ZR_KEY_ANY:
        return "{\"any\": [\"thing\"]}";
    }
    return NULL;
}

static const zr_config_key_t *all_keys(size_t *n_keys_p) {
    return zr_config_keys(n_keys_p);
}

/* ---- the table itself -------------------------------------------------------- */

TEST(test_table_is_whole) {
    size_t n_keys;
    const zr_config_key_t *keys = all_keys(&n_keys);
    assert_true(n_keys > 400);
    for (size_t i = 0; i < n_keys; i++) {
        const zr_config_key_t *key = &keys[i];
        char section[128];
        section_of(key, section, sizeof(section));
        bool has_section = !section[0];
        for (size_t k = 0; k < n_keys; k++) {
            if (k != i && strcmp(keys[k].path, key->path) == 0)
                fail_msg("%s stands twice in the table", key->path);
            if (k < i && keys[k].action == ZR_KEY_SECTION && strcmp(keys[k].path, section) == 0)
                has_section = true;
        }
        if (!has_section)
            fail_msg("%s has no section before it", key->path);
        assert_true(key->action != ZR_KEY_SECTION || key->type == ZR_KEY_OBJECT);
        assert_true((key->action == ZR_KEY_FIXED) == (key->only != NULL));
        assert_true(key->action == ZR_KEY_INERT || key->note != NULL);
        assert_true((key->field != NULL) == (key->store != ZR_STORE_NOTHING));
        assert_true(key->field == NULL || key->action == ZR_KEY_FIELD);
        assert_true(strlen(zr_config_key_name(key)) <= 64);
    }
}

/* ---- supported keys ------------------------------------------------------------ */

/** A value for each supported key, and the same change made by hand. */
typedef struct change {
    const char *path, *value;
    void (*apply)(zr_config_t *config);
} change_t;

static void set_train_batch(zr_config_t *c) {
    c->train_batch = 4096;
}
static void set_micro_batch(zr_config_t *c) {
    c->micro_batch = 12;
}
static void set_grad_accum(zr_config_t *c) {
    c->grad_accum = 9007199254740993;
}
static void set_clip(zr_config_t *c) {
    c->clip = 0.25;
}
static void set_steps_per_print(zr_config_t *c) {
    c->steps_per_print = 2000;
}
static void set_breakdown(zr_config_t *c) {
    c->wall_clock_breakdown = true;
}
static void set_nothing(zr_config_t *c) {
}
static void set_lr(zr_config_t *c) {
    c->adamw.lr = 1e-5;
}
static void set_betas(zr_config_t *c) {
    c->adamw.beta1 = 0.8;
    c->adamw.beta2 = 0.99;
}
static void set_eps(zr_config_t *c) {
    c->adamw.epsilon = 1e-6;
}
static void set_weight_decay(zr_config_t *c) {
    c->adamw.weight_decay = 3e-7;
}
static void set_kind(zr_config_t *c) {
    c->schedule.kind = ZR_SCHEDULE_WARMUP_COSINE;
}
static void set_min_lr(zr_config_t *c) {
    c->schedule.warmup_min_lr = 2e-6;
}
static void set_max_lr(zr_config_t *c) {
    c->schedule.warmup_max_lr = 1e-3;
}
static void set_warmup_steps(zr_config_t *c) {
    c->schedule.warmup_steps = 0;
}
static void set_warmup_type(zr_config_t *c) {
    c->schedule.warmup_log = false;
}
static void set_total_steps(zr_config_t *c) {
    c->schedule.total_steps = 1000000;
}
static void set_min_ratio(zr_config_t *c) {
    c->schedule.warmup_min_ratio = 0.5;
}
static void set_cos_ratio(zr_config_t *c) {
    c->schedule.cos_min_ratio = 0;
}
static void set_bf16(zr_config_t *c) {
    c->dtype = ZR_DTYPE_BF16;
}
static void set_stage(zr_config_t *c) {
    c->stage = 3;
}
static void set_overlap(zr_config_t *c) {
    c->overlap_comm = false;
}
static void set_group_size(zr_config_t *c) {
    c->shard_group_size = 8;
}
static void set_overflow(zr_config_t *c) {
    c->check_overflow = false;
}
static void set_prefetch(zr_config_t *c) {
    c->prefetch_elems = 500000000;
}

static void set_sub_group(zr_config_t *c) {
    c->sub_group_elems = 1000;
}
static void set_max_live(zr_config_t *c) {
    c->max_live_elems = 2000000;
}
static void set_reuse(zr_config_t *c) {
    c->reuse_elems = 1000000000;
}

static void set_offload(zr_config_t *c) {
    c->offload_optimizer.device = ZR_OFFLOAD_NVME;
}
static void set_nvme_path(zr_config_t *c) {
    strcpy(c->nvme.paths, "/local_nvme");
}
static void set_buffers(zr_config_t *c) {
    c->offload_optimizer.n_buffers = 5;
}
static void set_pipeline_read(zr_config_t *c) {
    c->offload_optimizer.read_ahead = false;
}
static void set_pipeline_write(zr_config_t *c) {
    c->offload_optimizer.write_behind = false;
}
static void set_ratio(zr_config_t *c) {
    c->offload_optimizer.ratio = 0.3;
}
static void set_param_ratio(zr_config_t *c) {
    c->offload_param.ratio = 0.25;
}
static void set_param_offload(zr_config_t *c) {
    c->offload_param.device = ZR_OFFLOAD_CPU;
}
static void set_param_buffers(zr_config_t *c) {
    c->offload_param.n_buffers = 7;
}
static void set_param_buffer(zr_config_t *c) {
    c->offload_param.buffer_elems = 100000000;
}
static void set_param_in_cpu(zr_config_t *c) {
    c->offload_param.max_in_cpu_elems = 1000000000;
}
static void set_block_size(zr_config_t *c) {
    c->nvme.request_bytes = 1048576;
}
static void set_queue_depth(zr_config_t *c) {
    c->nvme.depth = 8;
}

static const change_t changes[] = {
    {"train_batch_size", "4096", set_train_batch},
    {"train_micro_batch_size_per_gpu", "12.0", set_micro_batch},
    {"gradient_accumulation_steps", "9007199254740993", set_grad_accum},
    {"gradient_clipping", "0.25", set_clip},
    {"steps_per_print", "2e3", set_steps_per_print},
    {"wall_clock_breakdown", "true", set_breakdown},
    {"optimizer.type", "\"adam\"", set_nothing},
    {"optimizer.params.lr", "1e-5", set_lr},
    {"optimizer.params.betas", "[0.8, 0.99]", set_betas},
    {"optimizer.params.eps", "0.000001", set_eps},
    {"optimizer.params.weight_decay", "3e-7", set_weight_decay},
    {"scheduler.type", "\"WarmupCosineLR\"", set_kind},
    {"scheduler.params.warmup_min_lr", "2e-6", set_min_lr},
    {"scheduler.params.warmup_max_lr", "0.001", set_max_lr},
    {"scheduler.params.warmup_num_steps", "0", set_warmup_steps},
    {"scheduler.params.warmup_type", "\"linear\"", set_warmup_type},
    {"scheduler.params.total_num_steps", "1e6", set_total_steps},
    {"scheduler.params.warmup_min_ratio", "0.5", set_min_ratio},
    {"scheduler.params.cos_min_ratio", "0", set_cos_ratio},
    {"bf16.enabled", "true", set_bf16},
    {"bf16.check_grad_overflow", "false", set_overflow},
    {"zero_optimization.stage", "3", set_stage},
    {"zero_optimization.overlap_comm", "false", set_overlap},
    {"zero_optimization.mics_shard_size", "8", set_group_size},
    {"zero_optimization.stage3_prefetch_bucket_size", "5e8", set_prefetch},
    {"zero_optimization.sub_group_size", "1000", set_sub_group},
    {"zero_optimization.stage3_max_live_parameters", "2e6", set_max_live},
    {"zero_optimization.stage3_max_reuse_distance", "1e9", set_reuse},
    {"zero_optimization.offload_param.device", "\"cpu\"", set_param_offload},
    {"zero_optimization.offload_param.nvme_path", "\"/local_nvme\"", set_nvme_path},
    {"zero_optimization.offload_param.buffer_count", "7", set_param_buffers},
    {"zero_optimization.offload_param.buffer_size", "1e8", set_param_buffer},
    {"zero_optimization.offload_param.max_in_cpu", "1e9", set_param_in_cpu},
    {"zero_optimization.offload_optimizer.device", "\"NVMe\"", set_offload},
    {"zero_optimization.offload_optimizer.nvme_path", "\"/local_nvme\"", set_nvme_path},
    {"zero_optimization.offload_optimizer.buffer_count", "5", set_buffers},
    {"zero_optimization.offload_optimizer.pipeline_read", "false", set_pipeline_read},
    {"zero_optimization.offload_optimizer.pipeline_write", "false", set_pipeline_write},
    {"zero_optimization.offload_optimizer.ratio", "0.3", set_ratio},
    {"zero_optimization.offload_param.ratio", "0.25", set_param_ratio},
    {"aio.block_size", "1048576", set_block_size},
    {"aio.queue_depth", "8", set_queue_depth},
};

static const change_t *change_of(const zr_config_key_t *key) {
    for (size_t i = 0; i < sizeof(changes) / sizeof(changes[0]); i++)
        if (strcmp(changes[i].path, key->path) == 0)
            return &changes[i];
    fail_msg("%s is supported, but no change of it is tested", key->path);
    return NULL;
}

TEST(test_supported_keys_change_their_field) {
    size_t n_keys, n_changes = 0;
    const zr_config_key_t *keys = all_keys(&n_keys);
    for (size_t i = 0; i < n_keys; i++) {
        const zr_config_key_t *key = &keys[i];
        if (key->action != ZR_KEY_FIELD)
            continue;
        const change_t *change = change_of(key);
        messages_t messages;
        zr_config_t expected = config_for(key), config = expected;
        change->apply(&expected);
        zr_status_t status = read_key(key, change->value, &config, &messages);
        if (status != ZR_OK || !configs_equal(&config, &expected))
            fail_msg("%s = %s: %s", key->path, change->value, messages.text);
        if (key->usual[0])
            expect(key, key->usual, ZR_OK, NULL);
        n_changes++;
    }
    assert_int_equal(n_changes, sizeof(changes) / sizeof(changes[0]));
}

TEST(test_supported_keys_have_their_range) {
    size_t n_keys;
    const zr_config_key_t *keys = all_keys(&n_keys);
    for (size_t i = 0; i < n_keys; i++) {
        const zr_config_key_t *key = &keys[i];
        if (key->action != ZR_KEY_FIELD || key->choices || key->type == ZR_KEY_BOOL)
            continue;
        const char *value = key->type == ZR_KEY_PAIR       ? "[0.9, -1]"
                            : key->range == ZR_RANGE_GROUP ? "0"
                                                           : "-1";
        expect(key, value, ZR_ERR_ARGUMENT, key->path);
        expect(key, value, ZR_ERR_ARGUMENT, zr_key_range_text(key->range));
        if (key->range == ZR_RANGE_POSITIVE)
            expect(key, "0", ZR_ERR_ARGUMENT, "more than 0");
        if (key->range == ZR_RANGE_FRACTION)
            expect(key, "1.01", ZR_ERR_ARGUMENT, "from 0 to 1");
        if (key->range == ZR_RANGE_STAGE)
            expect(key, "4", ZR_ERR_ARGUMENT, "is 4, has to be 0, 1, 2 or 3");
        if (key->range == ZR_RANGE_BETA)
            expect(key, "[1, 0.9]", ZR_ERR_ARGUMENT, "less than 1");
        if (key->type == ZR_KEY_INTEGER) {
            expect(key, "1.5", ZR_ERR_ARGUMENT, "is 1.5, has to be an integer");
            expect(key, "1e300", ZR_ERR_ARGUMENT, "without point and exponent");
            expect(key, "9007199254740994e1", ZR_ERR_ARGUMENT, "without point and exponent");
        }
    }
}

TEST(test_choices) {
    size_t n_keys;
    const zr_config_key_t *keys = all_keys(&n_keys);
    for (size_t i = 0; i < n_keys; i++) {
        const zr_config_key_t *key = &keys[i];
        if (!key->choices)
            continue;
        for (const zr_key_choice_t *choice = key->choices; choice->name; choice++) {
            char value[64];
            snprintf(value, sizeof(value), "\"%s\"", choice->name);
            expect(key, value, choice->supported ? ZR_OK : ZR_ERR_UNSUPPORTED, key->path);
            snprintf(value, sizeof(value), "\"%sx\"", choice->name);
            expect(key, value, ZR_ERR_ARGUMENT, choice->name);
        }
        expect(key, "\"quite another\"", ZR_ERR_ARGUMENT, "which is not known; write \"");
    }
}

/* ---- the others ------------------------------------------------------------------ */

TEST(test_fixed_keys_have_one_value) {
    size_t n_keys, n_fixed = 0;
    const zr_config_key_t *keys = all_keys(&n_keys);
    for (size_t i = 0; i < n_keys; i++) {
        if (keys[i].action != ZR_KEY_FIXED)
            continue;
        expect_no_change(&keys[i], keys[i].only);
        expect(&keys[i], another_value(&keys[i], keys[i].only), ZR_ERR_UNSUPPORTED, keys[i].path);
        n_fixed++;
    }
    assert_true(n_fixed > 50);
}

TEST(test_refused_keys_are_refused_by_name) {
    size_t n_keys, n_refused = 0;
    const zr_config_key_t *keys = all_keys(&n_keys);
    for (size_t i = 0; i < n_keys; i++) {
        if (keys[i].action != ZR_KEY_REFUSED)
            continue;
        char message[256];
        snprintf(message, sizeof(message), "%s is not supported: %s", keys[i].path, keys[i].note);
        expect(&keys[i], another_value(&keys[i], NULL), ZR_ERR_UNSUPPORTED, message);
        n_refused++;
    }
    assert_true(n_refused > 50);
}

TEST(test_inert_keys_change_nothing) {
    size_t n_keys, n_inert = 0;
    const zr_config_key_t *keys = all_keys(&n_keys);
    for (size_t i = 0; i < n_keys; i++) {
        if (keys[i].action != ZR_KEY_INERT)
            continue;
        if (keys[i].usual[0])
            expect_no_change(&keys[i], keys[i].usual);
        expect_no_change(&keys[i], another_value(&keys[i], NULL));
        n_inert++;
    }
    assert_true(n_inert > 150);
}

TEST(test_types_are_checked) {
    static const struct {
        zr_key_type_t type;
        const char *wrong[4];
    } cases[] = {
        {ZR_KEY_BOOL, {"1", "\"true\"", "{}", "[true]"}},
        {ZR_KEY_INTEGER, {"\"1\"", "true", "{}", "[1]"}},
        {ZR_KEY_NUMBER, {"\"1e-4\"", "false", "{}", "[1.0]"}},
        {ZR_KEY_STRING, {"1", "true", "{}", "[\"a\"]"}},
        {ZR_KEY_PAIR, {"0.9", "[0.9]", "[0.9, 0.9, 0.9]", "[0.9, \"0.9\"]"}},
        {ZR_KEY_LIST, {"1", "true", "{}", "\"[]\""}},
        {ZR_KEY_OBJECT, {"1", "true", "[]", "\"{}\""}},
    };
    size_t n_keys;
    const zr_config_key_t *keys = all_keys(&n_keys);
    for (size_t i = 0; i < n_keys; i++)
        for (size_t k = 0; k < sizeof(cases) / sizeof(cases[0]); k++)
            for (size_t w = 0; cases[k].type == keys[i].type && w < 4; w++) {
                char message[256];
                snprintf(message, sizeof(message), "%s is ", keys[i].path);
                expect(&keys[i], cases[k].wrong[w], ZR_ERR_ARGUMENT, message);
                expect(&keys[i], cases[k].wrong[w], ZR_ERR_ARGUMENT,
                       zr_key_type_text(keys[i].type));
            }
}

TEST(test_auto_and_null_leave_the_field) {
    size_t n_keys;
    const zr_config_key_t *keys = all_keys(&n_keys);
    for (size_t i = 0; i < n_keys; i++) {
        const zr_config_key_t *key = &keys[i];
        if (key->type == ZR_KEY_ANY)
            continue;
        bool any_string = key->type == ZR_KEY_STRING && key->action == ZR_KEY_INERT;
        if (key->flags & ZR_KEY_AUTO)
            expect_no_change(key, "\"auto\"");
        else if (!any_string)
            expect(key, "\"auto\"",
                   key->type == ZR_KEY_STRING && !key->choices ? ZR_ERR_UNSUPPORTED
                                                               : ZR_ERR_ARGUMENT,
                   key->path);
        if (strcmp(key->usual, "null") == 0)
            expect_no_change(key, "null");
        else
            expect(key, "null", ZR_ERR_ARGUMENT, key->path);
    }
}

static void check_slip(const zr_config_key_t *key, const char *slip) {
    char section[128], text[1024], message[256];
    const char *name = zr_config_key_name(key);
    section_of(key, section, sizeof(section));
    size_t n_keys;
    const zr_config_key_t *keys = all_keys(&n_keys);
    for (size_t i = 0; i < n_keys; i++)
        if (strcmp(zr_config_key_name(&keys[i]), slip) == 0)
            return; /* the name of another key */
    messages_t messages;
    zr_config_t config = zr_config_default();
    write_file(text, sizeof(text), section, 0, slip, "1");
    assert_int_equal(read_text(text, &config, &messages), ZR_ERR_ARGUMENT);
    snprintf(message, sizeof(message), "%s%s%s is not a key of DeepSpeed's; did you mean %s?",
             section, section[0] ? "." : "", slip, key->path);
    if (!strstr(messages.text, message))
        fail_msg("%s instead of %s: %s", slip, name, messages.text);
}

TEST(test_slips_are_answered_with_the_name) {
    size_t n_keys;
    const zr_config_key_t *keys = all_keys(&n_keys);
    for (size_t i = 0; i < n_keys; i++) {
        const char *name = zr_config_key_name(&keys[i]);
        size_t n = strlen(name), middle = n / 2;
        char slip[128];
        snprintf(slip, sizeof(slip), "%.*sq%s", (int)middle, name, name + middle); /* one more */
        check_slip(&keys[i], slip);
        snprintf(slip, sizeof(slip), "%.*s%s", (int)middle, name, name + middle + 1); /* less */
        if (n > 2)
            check_slip(&keys[i], slip);
        snprintf(slip, sizeof(slip), "%s", name);
        slip[middle] = 'Q'; /* another */
        check_slip(&keys[i], slip);
        snprintf(slip, sizeof(slip), "%s", name);
        slip[0] = name[1]; /* two swapped */
        slip[1] = name[0];
        if (name[0] != name[1])
            check_slip(&keys[i], slip);
        snprintf(slip, sizeof(slip), "%s", name);
        slip[0] = (char)toupper((unsigned char)slip[0]); /* case */
        check_slip(&keys[i], slip);
    }
}
