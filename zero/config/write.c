/*
 * Writes a configuration as DeepSpeed's JSON, from the rows that it is read by. A key is left out
 * where it says nothing (of a section that is switched off, of another stage or scheduler), and
 * where DeepSpeed and libzero would both take the same value without it.
 */
#include "zero/config.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "zero/config/keys.h"

#define OPTIMIZER "zero_optimization.offload_optimizer."
#define PARAM "zero_optimization.offload_param."
#define RATE "scheduler.params.warmup_max_lr"
#define PERSISTENCE "zero_optimization.stage3_param_persistence_threshold"

static bool begins_with(const char *path, const char *start) {
    return strncmp(path, start, strlen(start)) == 0;
}

/* ---- which keys ------------------------------------------------------------ */

static bool is_on_drives(const zr_config_t *config) {
    return config->offload_optimizer.device == ZR_OFFLOAD_NVME ||
           config->offload_param.device == ZR_OFFLOAD_NVME;
}

/* Of drives that nothing of the file is on, what was set is said all the same. */
static bool says_transfers(const zr_config_t *config) {
    const zr_nvme_options_t usual = zr_config_default().nvme, *nvme = &config->nvme;
    return is_on_drives(config) || nvme->request_bytes != usual.request_bytes ||
           nvme->depth != usual.depth;
}

/* A section says where its drives are, and each of both is read alone. */
static bool says_paths(const zr_key_t *key, const zr_config_t *config) {
    return (begins_with(key->path, PARAM) ? config->offload_param.device
                                          : config->offload_optimizer.device) == ZR_OFFLOAD_NVME;
}

static bool says_something(const zr_key_t *key, const zr_config_t *config) {
    const zr_option_t *option = key->option;
    if (option->field == NULL || zr_option_idle(option, config) != NULL)
        return false;
    if (option->type == ZR_OPTION_PATHS)
        return says_paths(key, config);
    if (begins_with(key->path, "aio."))
        return says_transfers(config);
    if (strcmp(key->path, "train_batch_size") == 0) /* it alone depends on the number of ranks */
        return config->micro_batch == 0 || config->grad_accum == 0;
    return option->schedules == 0 || (option->schedules >> config->schedule.kind & 1) != 0;
}

/* ---- values ---------------------------------------------------------------- */

static bool same_value(const json_t *a, const json_t *b) {
    if (json_is_number(a) && json_is_number(b))
        return json_number_value(a) == json_number_value(b);
    return json_equal(a, b);
}

/* NULL: not set, or a file has no word for it, or no memory. */
static json_t *value_of(const zr_option_t *option, const zr_config_t *config) {
    zr_option_text_t text = zr_option_text(option, config);
    double number = zr_option_number(option, config);
    const zr_option_choice_t *choice = zr_option_choices(option);
    if ((option->flags & (ZR_OPTION_UNSET0 | ZR_OPTION_OR_AUTO)) != 0 && number == 0)
        return NULL;
    if (choice != NULL) {
        while (!zr_option_choice_is_last(choice) && choice->value != (int)number)
            choice++;
        return choice->json != NULL   ? json_loads(choice->json, JSON_DECODE_ANY, NULL)
               : choice->name != NULL ? json_string(choice->name)
                                      : NULL;
    }
    if (option->type == ZR_OPTION_PATHS || option->type == ZR_OPTION_STRING)
        return json_string(text.text);
    if (option->type == ZR_OPTION_INT)
        return json_integer((json_int_t)number);
    return json_loads(text.text, JSON_DECODE_ANY, NULL);
}

/* Whether nobody takes another value where the key is absent. */
static bool is_usual(const zr_option_t *option, const json_t *value) {
    zr_config_t own = zr_config_default();
    json_t *ours = value_of(option, &own);
    json_t *usual = option->usual != NULL ? json_loads(option->usual, JSON_DECODE_ANY, NULL) : NULL;
    bool same = same_value(value, ours) &&
                (usual == NULL || json_is_null(usual) || same_value(value, usual));
    json_decref(ours);
    json_decref(usual);
    return same;
}

/* The value of a key, a list where it has elements; *is_usual_p: it need not be said. */
static json_t *value_of_key(const zr_key_t *key, const zr_config_t *config, bool *is_usual_p) {
    if (key->n_elements == 0) {
        json_t *value = value_of(key->option, config);
        *is_usual_p = value == NULL || is_usual(key->option, value);
        return value;
    }
    json_t *list = json_array();
    *is_usual_p = true;
    for (size_t i = 0; i < key->n_elements && list != NULL; i++) {
        json_t *value = value_of(&key->option[i], config);
        *is_usual_p = *is_usual_p && value != NULL && is_usual(&key->option[i], value);
        if (json_array_append_new(list, value) != 0) {
            json_decref(list);
            list = NULL;
        }
    }
    return list;
}

/* ---- the object ------------------------------------------------------------ */

/* Put a value where its path leads, making the sections on the way. Takes the value. */
static bool put_at(json_t *object, const char *path, json_t *value) {
    const char *dot = strchr(path, '.');
    if (dot == NULL)
        return json_object_set_new(object, path, value) == 0;
    char name[64];
    snprintf(name, sizeof(name), "%.*s", (int)(dot - path), path);
    json_t *section = json_object_get(object, name);
    if (section == NULL) {
        section = json_object();
        if (json_object_set_new(object, name, section) != 0) {
            json_decref(value);
            return false;
        }
    }
    return put_at(section, dot + 1, value);
}

typedef struct writing {
    const zr_config_t *config;
    const zr_key_section_t *section; /* whose turn it is */
    json_t *object;
    bool made;
} writing_t;

static bool put_key(void *context, const zr_key_t *key) {
    writing_t *w = context;
    if (zr_key_section_of(key) != w->section)
        return true;
    if (strcmp(key->path, PERSISTENCE) == 0 && w->config->stage == 3)
        w->made = put_at(w->object, key->path, json_integer(0)); /* DeepSpeed's is another */
    if (strcmp(key->path, RATE) == 0 && w->config->schedule.kind == ZR_SCHEDULE_WARMUP_DECAY &&
        w->config->schedule.warmup_max_lr == 0)
        w->made = put_at(w->object, key->path, json_null()); /* the optimizer's, not 0.001 */
    if (key->option == NULL || !says_something(key, w->config))
        return w->made;
    bool is_usual = false;
    json_t *value = value_of_key(key, w->config, &is_usual);
    if (value == NULL || (is_usual && (key->option->flags & ZR_OPTION_SAID) == 0)) {
        json_decref(value);
        return true;
    }
    if (begins_with(key->path, "optimizer.params.") &&
        json_object_get(w->object, "optimizer") == NULL)
        w->made = put_at(w->object, "optimizer.type", json_string("AdamW"));
    w->made = put_at(w->object, key->path, value) && w->made;
    return w->made;
}

zr_status_t zr_config_write_json(const zr_config_t *config, const zr_log_t *log, char **text_p) {
    writing_t w = {.config = config, .object = json_object()};
    w.made = w.object != NULL;
    size_t n_sections = 0;
    const zr_key_section_t *sections = zr_key_sections(&n_sections);
    for (size_t i = 0; i < n_sections && w.made; i++) {
        w.section = &sections[i];
        zr_keys_each(put_key, &w);
    }
    char *text = w.made ? json_dumps(w.object, JSON_INDENT(2) | JSON_REAL_PRECISION(15)) : NULL;
    json_decref(w.object);
    if (text == NULL)
        return zr_fail(log, ZR_ERR_MEMORY, "no memory for a configuration as JSON");
    *text_p = text;
    return ZR_OK;
}
