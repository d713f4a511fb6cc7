/*
 * Every key that is known, one by one: an option changes its field and nothing else, a fixed key
 * has its one value, a refused one is refused by name, and a slip of any of them is answered with
 * the right name.
 */
#include <ctype.h>

#include "tests/zero/config_helper.h"

/* ---- files with one key ------------------------------------------------------ */

/** A scheduler that has the key: of a parameter of one, its type is in the file, too. */
static zr_schedule_kind_t schedule_of(const zr_key_t *key) {
    unsigned schedules = key->option != NULL ? key->option->schedules : 0;
    int kind = ZR_SCHEDULE_CONSTANT;
    while (schedules != 0 && (schedules >> kind & 1) == 0)
        kind++;
    return (zr_schedule_kind_t)kind;
}

/** JSON of a file in which `path` is `value` and nothing else is, if possible. */
static void write_file(char *text, size_t size, const char *path, zr_schedule_kind_t kind,
                       const char *value) {
    static const char *const types[] = {"", "WarmupLR", "WarmupDecayLR", "WarmupCosineLR"};
    size_t used = 0, depth = 1;
    const char *dot;
    used += (size_t)snprintf(text, size, "{");
    for (; (dot = strchr(path, '.')) != NULL; path = dot + 1, depth++)
        used += (size_t)snprintf(text + used, size - used, "\"%.*s\": {", (int)(dot - path), path);
    used += (size_t)snprintf(text + used, size - used, "\"%s\": %s", path, value);
    for (; depth > 0; depth--) {
        if (depth == 2 && kind != ZR_SCHEDULE_CONSTANT)
            used += (size_t)snprintf(text + used, size - used, ", \"type\": \"%s\"", types[kind]);
        used += (size_t)snprintf(text + used, size - used, "}");
    }
}

/** What a file with this key starts from: the scheduler that the key needs is there already, and
 * DeepSpeed's defaults of what the file does not have. */
static zr_config_t config_for(const zr_key_t *key) {
    zr_config_t config = zr_config_default();
    config.clip = 1;
    config.adamw.lr = 1e-3;
    config.adamw.beta2 = 0.999;
    config.schedule.kind = schedule_of(key);
    if (config.schedule.kind == ZR_SCHEDULE_WARMUP_DECAY)
        config.schedule.warmup_max_lr = 1e-3;
    return config;
}

static zr_status_t read_key(const zr_key_t *key, const char *value, zr_config_t *config,
                            messages_t *messages) {
    char text[1024];
    write_file(text, sizeof(text), key->path, schedule_of(key), value);
    return read_text(text, config, messages);
}

static void expect(const zr_key_t *key, const char *value, zr_status_t expected,
                   const char *in_message) {
    messages_t messages;
    zr_config_t before = config_for(key), config = before;
    zr_status_t status = read_key(key, value, &config, &messages);
    if (status != expected || messages.n_messages != (in_message[0] != '\0'))
        fail_msg("%s = %s: %s instead of %s: %s", key->path, value, zr_status_name(status),
                 zr_status_name(expected), messages.text);
    if (strstr(messages.text, in_message) == NULL)
        fail_msg("%s = %s: no \"%s\" in %s", key->path, value, in_message, messages.text);
    assert_true(configs_equal(&config, &before));
}

static void expect_no_change(const zr_key_t *key, const char *value) {
    expect(key, value, ZR_OK, "");
}

/* ---- options ------------------------------------------------------------------- */

/** JSON of a value that is not the default, and the text of it. */
static void other_value(const zr_option_t *option, char *json, char *text) {
    zr_config_t config = zr_config_default();
    const zr_option_choice_t *choice = zr_option_choices(option);
    double number = zr_option_number(option, &config);
    if (choice != NULL) {
        while (choice->value == (int)number || (choice->json != NULL && choice->json[0] == '\0'))
            choice++;
        if (choice->json != NULL)
            snprintf(json, 64, "%s", choice->json);
        else
            snprintf(json, 64, "\"%s\"", choice->name);
        snprintf(text, 64, "%s", choice->name != NULL ? choice->name : choice->json);
    } else if (option->type == ZR_OPTION_PATHS) {
        snprintf(json, 64, "\"/local_nvme\"");
        snprintf(text, 64, "/local_nvme");
    } else if (option->type == ZR_OPTION_NUMBER) {
        snprintf(json, 64, "0.125");
        snprintf(text, 64, "0.125");
    } else {
        snprintf(json, 64, "%s", option->type == ZR_OPTION_BYTES ? "8192" : "7e0");
        snprintf(text, 64, "%s", option->type == ZR_OPTION_BYTES ? "8192" : "7");
    }
}

/** All fields but that of `option` are as they were, and that has `text`. */
static void expect_field(const zr_key_t *key, const char *text, const zr_config_t *before,
                         const zr_config_t *after) {
    size_t n = 0;
    const zr_option_t *options = zr_options(&n);
    for (size_t i = 0; i < n; i++) {
        bool is_it = options[i].offset == key->option->offset;
        zr_option_text_t was = zr_option_text(&options[i], before);
        zr_option_text_t is = zr_option_text(&options[i], after);
        const char *wanted = is_it ? text : was.text;
        if (options[i].field != NULL && strcmp(is.text, wanted) != 0)
            fail_msg("%s: %s is \"%s\" instead of \"%s\"", key->path, options[i].field, is.text,
                     wanted);
    }
}

static bool sets_its_field(void *context, const zr_key_t *key) {
    if (key->option == NULL || key->option->field == NULL || key->n_elements > 0)
        return true;
    messages_t messages;
    char json[64], text[64];
    zr_config_t before = config_for(key), config = before;
    other_value(key->option, json, text);
    if (read_key(key, json, &config, &messages) != ZR_OK)
        fail_msg("%s = %s: %s", key->path, json, messages.text);
    if (key->option->store != NULL) /* other fields follow from it */
        assert_ok(zr_option_set(key->option, key->path, text, NULL, &before));
    expect_field(key, text, &before, &config);
    return true;
}

TEST(test_options_change_their_field) {
    zr_keys_each(sets_its_field, NULL);
    messages_t messages;
    zr_config_t config = zr_config_default();
    assert_ok(
        read_text("{\"optimizer\": {\"params\": {\"betas\": [0.8, 0.99]}}}", &config, &messages));
    assert_true(config.adamw.beta1 == 0.8 && config.adamw.beta2 == 0.99);
    assert_ok(read_text("{\"gradient_accumulation_steps\": 9007199254740993}", &config, &messages));
    assert_true(config.grad_accum == 9007199254740993);
}

TEST(test_optimizers) {
    messages_t messages;
    zr_config_t config = zr_config_default();
    assert_ptr_equal(zr_config_optimizer(&config), &zr_adamw);
    assert_ok(read_text("{\"optimizer\": {\"type\": \"SGD\", \"params\": {\"lr\": 0.1, "
                        "\"momentum\": 0.9, \"nesterov\": true, \"weight_decay\": 0.01}}}",
                        &config, &messages));
    assert_ptr_equal(zr_config_optimizer(&config), &zr_sgd);
    assert_true(config.adamw.lr == 0.1 && config.adamw.weight_decay == 0.01);
    assert_true(zr_config_hyper(&config, 0) == 0.9 && zr_config_hyper(&config, 1) == 1);
    assert_ok(read_text("{\"optimizer\": {\"type\": \"lion\", \"params\": {\"betas\": [0.8, "
                        "0.7]}}}",
                        &config, &messages));
    assert_ptr_equal(zr_config_optimizer(&config), &zr_lion);
    assert_true(zr_config_hyper(&config, 0) == 0.8 && zr_config_hyper(&config, 1) == 0.7);
    assert_ok(read_text("{\"optimizer\": {\"type\": \"adam\"}}", &config, &messages));
    assert_ptr_equal(zr_config_optimizer(&config), &zr_adamw);
}

/* What a description has as a hyperparameter, a configuration can say. */
TEST(test_hyperparameters_are_known) {
    zr_config_t config = zr_config_default();
    size_t n = 0;
    const zr_optimizer_type_t *const *optimizers = zr_optimizers(&n);
    for (size_t i = 0; i < n; i++) {
        zr_config_set_optimizer(&config, optimizers[i]);
        assert_ptr_equal(zr_config_optimizer(&config), optimizers[i]);
        for (size_t k = 0; k < optimizers[i]->rule.n_hypers; k++)
            assert_true(zr_config_hyper(&config, k) == optimizers[i]->rule.hypers[k].usual);
    }
}

static bool has_its_range(void *context, const zr_key_t *key) {
    const zr_option_t *option = key->option;
    size_t *n = context;
    if (option == NULL || zr_option_choices(option) != NULL || option->type == ZR_OPTION_PATHS)
        return true;
    bool is_list = key->n_elements > 0;
    zr_option_range_t range = zr_option_range(option);
    char value[64];
    const double wrong[] = {option->least - (option->flags & ZR_OPTION_OR_ALL ? 3 : 1),
                            option->most + 1};
    bool has_zero = (option->flags & ZR_OPTION_FILE_ZERO) != 0;
    if (has_zero)
        expect(key, "0", ZR_OK, "0 has no effect: it is taken as not set");
    for (int i = has_zero; i < (option->most != 0 ? 2 : 1); i++) {
        snprintf(value, sizeof(value), is_list ? "[0.5, %.15g]" : "%.15g",
                 option->most > 1e20 && i == 1 ? 1e31 : wrong[i]);
        expect(key, value, ZR_ERR_ARGUMENT, key->path);
        expect(key, value, ZR_ERR_ARGUMENT, range.text);
    }
    if (zr_option_json_kind(option) == ZR_JSON_INTEGER) {
        expect(key, "1.5", ZR_ERR_ARGUMENT, "is 1.5, must be an integer");
        expect(key, "1e300", ZR_ERR_ARGUMENT, "without point and exponent");
        expect(key, "9007199254740994e1", ZR_ERR_ARGUMENT, "without point and exponent");
    }
    *n += 1;
    return true;
}

TEST(test_options_have_their_range) {
    size_t n = 0;
    zr_keys_each(has_its_range, &n);
    assert_true(n > 25);
}

static bool has_its_words(void *context, const zr_key_t *key) {
    size_t *n = context;
    if (key->option == NULL || zr_option_json_kind(key->option) != ZR_JSON_STRING ||
        key->option->choices == NULL)
        return true;
    for (const char *at = key->option->refused; at != NULL && *at != '\0';) {
        char value[64];
        size_t length = strcspn(at, " ");
        snprintf(value, sizeof(value), "\"%.*s\"", (int)length, at);
        expect(key, value, ZR_ERR_UNSUPPORTED, "which is not supported; write \"");
        snprintf(value, sizeof(value), "\"%.*sx\"", (int)length, at);
        expect(key, value, ZR_ERR_ARGUMENT, "which is not known; did you mean \"");
        at += length + strspn(at + length, " ");
    }
    expect(key, "\"quite another\"", ZR_ERR_ARGUMENT, "which is not known; write \"");
    *n += 1;
    return true;
}

TEST(test_words) {
    size_t n = 0;
    zr_keys_each(has_its_words, &n);
    assert_true(n >= 5);
}

static bool has_its_type(void *context, const zr_key_t *key) {
    static const char *const wrong[][4] = {[ZR_JSON_BOOL] = {"1", "\"true\"", "{}", "[true]"},
                                           [ZR_JSON_STRING] = {"1", "true", "{}", "[\"a\"]"},
                                           [ZR_JSON_NUMBER] = {"\"1\"", "false", "{}", "[1.0]"},
                                           [ZR_JSON_INTEGER] = {"\"1\"", "true", "{}", "[1]"}};
    static const char *const no_pairs[4] = {"0.9", "[0.9]", "[0.9, 0.9, 0.9]", "[0.9, \"0.9\"]"};
    char path[160];
    snprintf(path, sizeof(path), "%s is ", key->path);
    for (int i = 0; i < 4; i++) {
        if (key->option != NULL) {
            zr_json_kind_t kind = zr_option_json_kind(key->option);
            const char *value = key->n_elements > 0 ? no_pairs[i] : wrong[kind][i];
            expect(key, value, ZR_ERR_ARGUMENT, path);
            expect(key, value, ZR_ERR_ARGUMENT,
                   key->n_elements > 0 ? "a list of 2 numbers" : zr_json_kind_text(kind));
        } else if (key->section != NULL) {
            static const char *const no_objects[4] = {"1", "true", "[]", "\"{}\""};
            expect(key, no_objects[i], ZR_ERR_ARGUMENT, path);
        }
    }
    return true;
}

TEST(test_types) {
    zr_keys_each(has_its_type, NULL);
}

/* ---- the others ------------------------------------------------------------------ */

static bool keeps_its_rule(void *context, const zr_key_t *key) {
    size_t *n = context;
    char said[256], only[64];
    const zr_key_rule_t *rule = key->rule;
    if (rule == NULL)
        return true;
    bool is_refused = rule->only == NULL || strcmp(rule->only, "null") == 0;
    bool is_any = rule->only != NULL && strcmp(rule->only, ZR_KEY_ANY) == 0;
    bool is_noted = false;
    for (const char *at = rule->only; at != NULL && *at != '\0' && !is_any;) {
        size_t length = strcspn(at, " ");
        snprintf(only, sizeof(only), "%.*s", (int)length, at);
        if (*at == '|')
            is_noted = true;
        else
            expect(key, *at == ZR_KEY_NUMBER[0] ? "2e8" : only, ZR_OK, is_noted ? rule->note : "");
        at += length + strspn(at + length, " ");
    }
    snprintf(said, sizeof(said),
             is_refused ? "%s is not supported: %s" : "%s is {\"some\": 1}, only", key->path,
             rule->note);
    if (is_any)
        expect_no_change(key, "{\"some\": 1}");
    else
        expect(key, "{\"some\": 1}", ZR_ERR_UNSUPPORTED, said);
    n[is_any ? 2 : is_refused ? 1 : 0]++;
    return true;
}

TEST(test_fixed_and_refused_keys) {
    size_t n[3] = {0};
    zr_keys_each(keeps_its_rule, n);
    assert_true(n[0] > 50 && n[1] > 50 && n[2] > 5);
}

static bool is_without_effect(void *context, const zr_key_t *key) {
    size_t *n = context;
    const zr_key_section_t *section = zr_key_section_of(key);
    if (key->option != NULL || key->rule != NULL || key->section != NULL)
        return true;
    if (strcmp(zr_key_name(key), section->off) != 0) {
        expect_no_change(key, "[\"any\", {\"thing\": 1}]");
        expect_no_change(key, "null");
    } else {
        expect_no_change(key, section->only);
        expect(key, "77", ZR_ERR_UNSUPPORTED, section->why);
    }
    *n += 1;
    return true;
}

TEST(test_sections_that_are_off) {
    size_t n = 0;
    zr_keys_each(is_without_effect, &n);
    assert_true(n > 180);
}

static bool leaves_its_field(void *context, const zr_key_t *key) {
    bool is_ineffective = key->option == NULL && key->rule == NULL && key->section == NULL;
    bool is_auto = key->option != NULL ? (key->option->flags & ZR_OPTION_FILE_AUTO) != 0
                                       : zr_key_section_of(key)->may_be_auto;
    bool is_null = key->option != NULL
                       ? key->option->usual != NULL && strcmp(key->option->usual, "null") == 0
                       : key->section != NULL && key->section->may_be_null;
    const char *off = zr_key_section_of(key)->off;
    if (is_auto && is_ineffective && strcmp(zr_key_name(key), off) == 0)
        expect(key, "\"auto\"", ZR_OK, zr_key_section_of(key)->only);
    else if (is_auto)
        expect_no_change(key, "\"auto\"");
    else if (key->option != NULL &&
             (zr_option_json_kind(key->option) != ZR_JSON_STRING || key->option->choices != NULL))
        expect(key, "\"auto\"", ZR_ERR_ARGUMENT, key->path);
    if (is_null)
        expect_no_change(key, "null");
    else if (key->rule == NULL && !is_ineffective)
        expect(key, "null", ZR_ERR_ARGUMENT, key->path);
    return true;
}

TEST(test_auto_and_null_leave_the_field) {
    zr_keys_each(leaves_its_field, NULL);
}

/* ---- names ------------------------------------------------------------------------ */

typedef struct slip {
    const char *name;
    bool is_a_name; /* of another key */
} slip_t;

static bool is_slip(void *context, const zr_key_t *key) {
    slip_t *slip = context;
    slip->is_a_name = strcmp(zr_key_name(key), slip->name) == 0;
    return !slip->is_a_name;
}

static void check_slip(const zr_key_t *key, const char *name) {
    char path[256], text[1024], message[512];
    slip_t slip = {.name = name};
    messages_t messages;
    zr_config_t config = zr_config_default();
    zr_keys_each(is_slip, &slip);
    if (slip.is_a_name)
        return;
    snprintf(path, sizeof(path), "%.*s%s%s", (int)key->n_section, key->path,
             key->n_section > 0 ? "." : "", name);
    write_file(text, sizeof(text), path, ZR_SCHEDULE_CONSTANT, "1");
    assert_int_equal(read_text(text, &config, &messages), ZR_ERR_ARGUMENT);
    snprintf(message, sizeof(message), "%s is not a key of DeepSpeed's; did you mean %s?", path,
             key->path);
    if (strstr(messages.text, message) == NULL)
        fail_msg("%s: %s instead of %s", path, messages.text, message);
}

static bool has_slips(void *context, const zr_key_t *key) {
    const char *name = zr_key_name(key);
    size_t *n_keys = context, n = strlen(name), middle = n / 2;
    char slip[128];
    snprintf(slip, sizeof(slip), "%.*sq%s", (int)middle, name, name + middle); /* one more */
    check_slip(key, slip);
    snprintf(slip, sizeof(slip), "%.*s%s", (int)middle, name, name + middle + 1); /* less */
    if (n > 2)
        check_slip(key, slip);
    snprintf(slip, sizeof(slip), "%s", name);
    slip[middle] = 'Q'; /* another */
    check_slip(key, slip);
    snprintf(slip, sizeof(slip), "%s", name);
    slip[0] = name[1]; /* two swapped */
    slip[1] = name[0];
    if (name[0] != name[1])
        check_slip(key, slip);
    snprintf(slip, sizeof(slip), "%s", name);
    slip[0] = (char)toupper((unsigned char)slip[0]); /* case */
    check_slip(key, slip);
    *n_keys += 1;
    return true;
}

TEST(test_slips_are_answered_with_the_name) {
    size_t n = 0;
    zr_keys_each(has_slips, &n);
    assert_true(n > 400);
}

typedef struct count {
    const char *path;
    size_t n;
} count_t;

static bool count_key(void *context, const zr_key_t *key) {
    count_t *count = context;
    count->n += strcmp(key->path, count->path) == 0;
    return true;
}

static bool is_whole(void *context, const zr_key_t *key) {
    count_t count = {.path = key->path};
    zr_keys_each(count_key, &count);
    if (count.n != 1 || zr_key_section_of(key) == NULL || strlen(zr_key_name(key)) > 64)
        fail_msg("%s: %zu times, or without a section", key->path, count.n);
    assert_true(key->option == NULL || key->option->help != NULL);
    assert_true(key->rule == NULL || key->rule->note != NULL);
    return true;
}

TEST(test_tables_are_whole) {
    zr_keys_each(is_whole, NULL);
}
