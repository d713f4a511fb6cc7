/* See model_json.h. What is read becomes a description, so that it is checked as --model is. */
#include "examples/common/model_json.h"

#include <stdio.h>
#include <string.h>

#include "examples/common/files.h"
#include "examples/common/json.h"

#define ARCHITECTURE "architecture"

static json_t *value_json(const zr_model_value_t *value) {
    switch (value->type) {
    case ZR_MODEL_SIZE:
        return json_count(value->size);
    case ZR_MODEL_REAL:
        return json_real(value->real);
    case ZR_MODEL_FLAG:
        return json_boolean(value->size != 0);
    default:
        return json_string(value->text);
    }
}

json_t *model_json(const zr_model_shape_t *shape) {
    json_t *object = json_object();
    if (shape->kind != ZR_MODEL_GPT)
        json_put(&object, ARCHITECTURE, json_string(zr_model_kind_name(shape->kind)));
    for (size_t i = 0; i < zr_model_n_values(shape->kind); i++) {
        zr_model_value_t value = zr_model_shape_value(shape, i);
        json_put(&object, value.name, value_json(&value));
    }
    return object;
}

/* "key=value,..."; false: a value is no number, flag or text, or there is no room. */
static bool print_values(json_t *object, char *text, size_t size) {
    const char *key, *architecture = json_string_value(json_object_get(object, ARCHITECTURE));
    json_t *value;
    size_t used = (size_t)snprintf(text, size, "%s", architecture != NULL ? architecture : "");
    json_object_foreach(object, key, value) {
        if (strcmp(key, ARCHITECTURE) == 0)
            continue;
        if (used >= size ||
            !(json_is_number(value) || json_is_boolean(value) || json_is_string(value)))
            return false;
        used += (size_t)snprintf(text + used, size - used, "%s%s=", used > 0 ? "," : "", key);
        if (used >= size)
            return false;
        if (json_is_string(value))
            used += (size_t)snprintf(text + used, size - used, "%s", json_string_value(value));
        else if (json_is_boolean(value))
            used += (size_t)snprintf(text + used, size - used, "%d", json_is_true(value));
        else if (json_is_real(value))
            used += (size_t)snprintf(text + used, size - used, "%.17g", json_real_value(value));
        else
            used += (size_t)snprintf(text + used, size - used, "%" JSON_INTEGER_FORMAT,
                                     json_integer_value(value));
    }
    return used > 0 && used < size;
}

zr_status_t model_from_json(const json_t *object, const char *where, const zr_log_t *log,
                            zr_model_shape_t *shape_p) {
    char text[2 * ZR_MODEL_TEXT_BYTES];
    files_log_t own = {.log = *log, .option = where};
    zr_log_t named = files_log(&own);
    if (!json_is_object(object) || !print_values((json_t *)object, text, sizeof(text)) ||
        strchr(text, '=') == NULL || strchr(text, '/') != NULL)
        return zr_fail(log, ZR_ERR_FORMAT, "%s: its description of the model is invalid", where);
    return zr_model_shape_read(text, &named, shape_p) == ZR_OK ? ZR_OK : ZR_ERR_FORMAT;
}
