/*
 * Writes a configuration as DeepSpeed's JSON, from the table that it is read by. A key is left out
 * where it says nothing (of a section that is switched off, of another stage or scheduler), and
 * where DeepSpeed and libzero would both take the same value without it.
 */
#include "zero/config.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "zero/config_keys.h"

#define OPTIMIZER "zero_optimization.offload_optimizer."
#define PARAM "zero_optimization.offload_param."
#define PERSISTENCE "zero_optimization.stage3_param_persistence_threshold"
#define SCHEDULER_PARAMS "scheduler.params."

static bool begins_with(const char *path, const char *start) {
    return strncmp(path, start, strlen(start)) == 0;
}

/* ---- which keys ------------------------------------------------------------ */

static bool is_of_nvme(const char *path) {
    static const char *const names[] = {OPTIMIZER "nvme_path",     OPTIMIZER "buffer_count",
                                        OPTIMIZER "pipeline_read", OPTIMIZER "pipeline_write",
                                        PARAM "nvme_path",         PARAM "buffer_count",
                                        PARAM "buffer_size",       PARAM "max_in_cpu"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strcmp(path, names[i]) == 0)
            return true;
    return false;
}

static bool says_offload(zr_offload_device_t device, const char *path) {
    return device == ZR_OFFLOAD_NVME || (device == ZR_OFFLOAD_CPU && !is_of_nvme(path));
}

/* The batch is said by its other two sizes: it alone depends on the number of ranks. */
static bool is_batch_of_two(const zr_config_key_t *key, const zr_config_t *config) {
    return strcmp(key->path, "train_batch_size") == 0 && config->micro_batch != 0 &&
           config->grad_accum != 0;
}

/* Of drives that nothing of the file is on, what was set is said all the same. */
static bool says_transfers(const zr_config_t *config) {
    const zr_nvme_options_t usual = zr_config_default().nvme, *nvme = &config->nvme;
    return config->offload_optimizer.device == ZR_OFFLOAD_NVME ||
           config->offload_param.device == ZR_OFFLOAD_NVME ||
           nvme->request_bytes != usual.request_bytes || nvme->depth != usual.depth;
}

static bool says_something(const zr_config_key_t *key, const zr_config_t *config) {
    const char *path = key->path;
    if (is_batch_of_two(key, config))
        return false;
    if (begins_with(path, OPTIMIZER))
        return says_offload(config->offload_optimizer.device, path);
    if (begins_with(path, PARAM))
        return says_offload(config->offload_param.device, path);
    if (begins_with(path, "aio."))
        return says_transfers(config);
    if (begins_with(path, "zero_optimization.stage3_"))
        return config->stage == 3;
    if (begins_with(path, SCHEDULER_PARAMS))
        return config->schedule.kind != ZR_SCHEDULE_CONSTANT &&
               (key->schedules == 0 || (key->schedules >> config->schedule.kind & 1) != 0);
    return true;
}

/* ---- values ---------------------------------------------------------------- */

static json_t *load(const char *text) {
    return json_loads(text, JSON_DECODE_ANY, NULL);
}

static bool same_value(const json_t *a, const json_t *b) {
    if (json_is_number(a) && json_is_number(b))
        return json_number_value(a) == json_number_value(b);
    if (!json_is_array(a) || !json_is_array(b) || json_array_size(a) != json_array_size(b))
        return json_equal(a, b);
    for (size_t i = 0; i < json_array_size(a); i++)
        if (!same_value(json_array_get(a, i), json_array_get(b, i)))
            return false;
    return true;
}

/* NULL: not set, or no memory. */
static json_t *value_of(const zr_config_key_t *key, const zr_config_t *config) {
    char text[128];
    double numbers[2] = {0};
    if (key->store == ZR_STORE_TEXT)
        return json_string((const char *)config + key->offset);
    if (zr_config_key_numbers(key, config, numbers) == 1 && numbers[0] == 0 &&
        (key->flags & ZR_KEY_ZERO_UNSET) != 0)
        return NULL;
    zr_config_key_show(key, config, text, sizeof(text));
    return load(text);
}

/* Whether nobody takes another value where the key is absent. */
static bool is_usual(const zr_config_key_t *key, const json_t *value) {
    zr_config_t own = zr_config_default();
    json_t *ours = value_of(key, &own), *usual = load(key->usual);
    bool same = same_value(value, ours) &&
                (usual == NULL || json_is_null(usual) || same_value(value, usual));
    json_decref(ours);
    json_decref(usual);
    return same;
}

/* What is always said, though it may be usual: it is what a reader looks for. */
static bool is_always_said(const char *path) {
    static const char *const names[] = {"zero_optimization.stage", "bf16.enabled",
                                        OPTIMIZER "device", PARAM "device"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strcmp(path, names[i]) == 0)
            return true;
    return false;
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

static bool put_key(json_t *object, const zr_config_key_t *key, const zr_config_t *config) {
    if (key->action == ZR_KEY_FIXED && strcmp(key->path, PERSISTENCE) == 0 && config->stage == 3)
        return put_at(object, key->path, load(key->only)); /* DeepSpeed's default is another */
    if (key->action != ZR_KEY_FIELD || key->store == ZR_STORE_NOTHING ||
        !says_something(key, config))
        return true;
    json_t *value = value_of(key, config);
    if (value == NULL || json_is_null(value) ||
        (is_usual(key, value) && !is_always_said(key->path))) {
        json_decref(value);
        return true;
    }
    if (begins_with(key->path, "optimizer.params.") && json_object_get(object, "optimizer") == NULL)
        if (!put_at(object, "optimizer.type", json_string("AdamW"))) {
            json_decref(value);
            return false;
        }
    return put_at(object, key->path, value);
}

zr_status_t zr_config_write_json(const zr_config_t *config, const zr_log_t *log, char **text_p) {
    size_t n_keys = 0;
    const zr_config_key_t *keys = zr_config_keys(&n_keys);
    json_t *object = json_object();
    bool made = object != NULL;
    for (size_t i = 0; i < n_keys && made; i++)
        made = put_key(object, &keys[i], config);
    char *text = made ? json_dumps(object, JSON_INDENT(2) | JSON_REAL_PRECISION(15)) : NULL;
    json_decref(object);
    if (text == NULL)
        return zr_fail(log, ZR_ERR_MEMORY, "no memory for a configuration as JSON");
    *text_p = text;
    return ZR_OK;
}
