/* See origin.h. The dtype that most tensors have, and those of the others by name. */
#include "examples/weights/origin.h"

#include <stdlib.h>
#include <string.h>

#include "examples/common/json.h"

static element_kind_t most_frequent(const element_kind_t *kinds, size_t n) {
    size_t counts[ELEMENT_OTHER] = {0};
    element_kind_t most = ELEMENT_FP32;
    for (size_t i = 0; i < n; i++)
        counts[kinds[i]]++;
    for (int kind = 0; kind < ELEMENT_OTHER; kind++)
        if (counts[kind] > counts[most])
            most = (element_kind_t)kind;
    return most;
}

/* Of adapters, which may come later, fp32. */
static element_kind_t usual_kind(const zr_model_tensor_t *tensor, element_kind_t most) {
    return zr_lora_is_factor(tensor->name) ? ELEMENT_FP32 : most;
}

zr_status_t origin_print(const weights_t *weights, const zr_log_t *log, char **text_p) {
    const weights_origin_t *origin = &weights->origin;
    element_kind_t most = most_frequent(origin->kinds, weights->tensors.n);
    json_t *others = json_object();
    for (size_t i = 0; i < weights->tensors.n; i++)
        if (origin->kinds[i] != usual_kind(&weights->tensors.all[i], most))
            json_put(&others, weights->tensors.all[i].name,
                     json_string(element_kind_name(origin->kinds[i])));
    json_t *head =
        origin->has_head ? json_string(element_kind_name(origin->head_kind)) : json_null();
    json_t *object =
        JSON_OBJECT({"prefix", json_boolean(origin->has_prefix)}, {"head", head},
                    {"dtype", json_string(element_kind_name(most))}, {"others", others});
    if (origin->is_bare)
        json_put(&object, "bare", json_true());
    *text_p = object != NULL ? json_dumps(object, JSON_INDENT(1)) : NULL;
    json_decref(object);
    return *text_p != NULL ? ZR_OK : zr_fail(log, ZR_ERR_MEMORY, "no memory for " ORIGIN_NAME);
}

static bool read_kind(const json_t *value, element_kind_t *kind_p) {
    const char *name = json_string_value(value);
    for (int kind = 0; name != NULL && kind < ELEMENT_OTHER; kind++)
        if (strcmp(name, element_kind_name((element_kind_t)kind)) == 0) {
            *kind_p = (element_kind_t)kind;
            return true;
        }
    return false;
}

/* False: it is none. */
static bool read_origin(const json_t *object, const zr_model_tensors_t *tensors,
                        weights_origin_t *origin) {
    const json_t *prefix = json_object_get(object, "prefix");
    const json_t *head = json_object_get(object, "head");
    json_t *others = json_object_get(object, "others"), *value;
    element_kind_t most;
    const char *name;
    if (!json_is_boolean(prefix) || !json_is_object(others) ||
        !read_kind(json_object_get(object, "dtype"), &most))
        return false;
    origin->has_prefix = json_is_true(prefix);
    origin->is_bare = json_is_true(json_object_get(object, "bare"));
    origin->has_head = !json_is_null(head);
    if (origin->has_head && !read_kind(head, &origin->head_kind))
        return false;
    for (size_t i = 0; i < tensors->n; i++)
        origin->kinds[i] = usual_kind(&tensors->all[i], most);
    json_object_foreach(others, name, value) {
        const zr_model_tensor_t *tensor = zr_model_tensors_find(tensors, name);
        if (tensor == NULL || !read_kind(value, &origin->kinds[tensor - tensors->all]))
            return false;
    }
    return true;
}

zr_status_t origin_parse(const char *text, size_t n_bytes, const char *where, const zr_log_t *log,
                         weights_t *weights) {
    weights_origin_t origin = {.kinds = calloc(weights->tensors.n, sizeof(*origin.kinds))};
    if (origin.kinds == NULL)
        return zr_fail(log, ZR_ERR_MEMORY, "no memory for " ORIGIN_NAME);
    json_t *object = json_loadb(text, n_bytes, JSON_REJECT_DUPLICATES, NULL);
    bool is_one = read_origin(object, &weights->tensors, &origin);
    json_decref(object);
    if (is_one) {
        weights->origin = origin;
        return ZR_OK;
    }
    free(origin.kinds);
    return zr_fail(log, ZR_ERR_FORMAT, "%s: it does not describe the original files of the weights",
                   where);
}
