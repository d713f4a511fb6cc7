/* Adapters beside weights: see adapter.h. */
#include "examples/weights/adapter.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "examples/common/files.h"
#include "examples/common/json.h"
#include "examples/weights/hf_config.h"
#include "examples/weights/hf_names.h"
#include "examples/weights/safetensors_set.h"

#define MAX_CONFIG_BYTES ((uint64_t)1 << 20)

/* Weights made of others. */
typedef struct over {
    weights_t base;
    weights_t *inner; /* owned */
    zr_log_t log;
    bool is_merged;
    safetensors_set_t set; /* of adapters that inner lacks */
    const char *prefix;    /* of their names */
    /* The factors of the layer that is merged; NULL: none. */
    const zr_model_tensor_t *of;
    float *a, *b; /* [rank, n_in], [n_out, rank] */
    size_t n_in;
} over_t;

/* ---- names ------------------------------------------------------------------------------- */

typedef struct name {
    char text[320];
} name_t;

static name_t name_in_file(const over_t *o, const char *name) {
    name_t full;
    snprintf(full.text, sizeof(full.text), ADAPTER_PREFIX "%s%s", o->prefix, name);
    return full;
}

/* "h.0.attn.c_attn.weight" to "h.0.attn.c_attn.lora_A.weight". */
static name_t factor_of(const char *weight, const char *factor) {
    name_t name;
    snprintf(name.text, sizeof(name.text), "%.*s.%s", (int)(strlen(weight) - strlen(".weight")),
             weight, factor);
    return name;
}

/* ---- merging ----------------------------------------------------------------------------- */

static zr_status_t read_factor(over_t *o, const char *name, float **values_p) {
    const zr_model_tensor_t *tensor = zr_model_tensors_find(&o->inner->tensors, name);
    float *values = malloc(tensor->n_elems * sizeof(*values));
    *values_p = values;
    if (values == NULL)
        return zr_fail(&o->log, ZR_ERR_MEMORY, "no memory for %s", name);
    return weights_read(o->inner, tensor, 0, tensor->n_elems, values);
}

static void drop_factors(over_t *o) {
    free(o->a);
    free(o->b);
    o->a = o->b = NULL;
    o->of = NULL;
}

static zr_status_t load_factors(over_t *o, const zr_model_tensor_t *tensor,
                                const zr_model_tensor_t *a) {
    drop_factors(o);
    ZR_TRY(read_factor(o, a->name, &o->a));
    ZR_TRY(read_factor(o, factor_of(tensor->name, ZR_LORA_B_NAME).text, &o->b));
    o->n_in = a->dims[1];
    o->of = tensor;
    return ZR_OK;
}

static zr_status_t merge(over_t *o, const zr_model_tensor_t *tensor, size_t first, size_t n_elems,
                         float *values) {
    size_t rank = o->base.lora.rank, n_in = o->n_in, n_columns = tensor->dims[1];
    bool is_in_first = hf_names_of(&o->base.shape)->is_in_first;
    double scale = o->base.lora.alpha / (double)rank;
    for (size_t i = 0; i < n_elems; i++) {
        size_t row = (first + i) / n_columns, column = (first + i) % n_columns;
        size_t in = is_in_first ? row : column, out = is_in_first ? column : row;
        double sum = 0;
        for (size_t r = 0; r < rank; r++)
            sum += (double)o->b[out * rank + r] * (double)o->a[r * n_in + in];
        values[i] = (float)((double)values[i] + scale * sum);
    }
    return ZR_OK;
}

/* ---- as weights -------------------------------------------------------------------------- */

static zr_status_t read_file(const over_t *o, const zr_model_tensor_t *tensor, size_t first,
                             size_t n_elems, float *values) {
    safetensors_place_t place = safetensors_set_find(&o->set, name_in_file(o, tensor->name).text);
    ZR_TRY(safetensors_set_read(&o->set, place, first, n_elems, values, &o->log));
    return weights_check_finite(values, n_elems, first, place.tensor->name,
                                o->set.files[place.file].file.path, &o->log);
}

static zr_status_t read_piece(weights_t *weights, const zr_model_tensor_t *tensor, size_t first,
                              size_t n_elems, float *values) {
    over_t *o = (over_t *)weights;
    const zr_model_tensor_t *a =
        o->is_merged ? zr_model_tensors_find(&o->inner->tensors,
                                             factor_of(tensor->name, ZR_LORA_A_NAME).text)
                     : NULL;
    if (o->set.n_files > 0 && zr_lora_is_factor(tensor->name))
        return read_file(o, tensor, first, n_elems, values);
    ZR_TRY(weights_read(o->inner, tensor, first, n_elems, values));
    if (a == NULL)
        return ZR_OK;
    if (o->of != tensor)
        ZR_TRY(load_factors(o, tensor, a));
    return merge(o, tensor, first, n_elems, values);
}

static void drop(over_t *o) {
    drop_factors(o);
    safetensors_set_close(&o->set);
    weights_clear(&o->base);
    free(o);
}

static void destroy(weights_t *weights) {
    over_t *o = (over_t *)weights;
    weights_close(&o->inner);
    drop(o);
}

static const weights_backend_t backend = {.read = read_piece, .destroy = destroy};

static const char *prefix_of(const weights_t *weights) {
    const char *prefix = hf_names_of(&weights->shape)->prefix;
    return prefix != NULL ? prefix : "";
}

static zr_status_t create(const weights_t *inner, const zr_log_t *log, over_t **over_p) {
    over_t *o = calloc(1, sizeof(*o));
    if (o == NULL)
        return zr_fail(log, ZR_ERR_MEMORY, "no memory for adapters");
    o->base = *inner;
    o->base.backend = &backend;
    o->base.tensors = (zr_model_tensors_t){0};
    o->base.origin.kinds = NULL;
    o->base.folder = NULL;
    o->log = *log;
    o->prefix = prefix_of(inner);
    *over_p = o;
    return ZR_OK;
}

/* Of each tensor of `inner` as there; those of a file as it has them. */
static zr_status_t set_origin(over_t *o, const weights_t *inner) {
    const zr_model_tensors_t *tensors = &o->base.tensors;
    if (inner->origin.kinds == NULL)
        return ZR_OK;
    o->base.origin.kinds = calloc(tensors->n, sizeof(*o->base.origin.kinds));
    if (o->base.origin.kinds == NULL)
        return zr_fail(&o->log, ZR_ERR_MEMORY, "no memory for adapters");
    for (size_t i = 0; i < tensors->n; i++) {
        const char *name = tensors->all[i].name;
        const zr_model_tensor_t *found = zr_model_tensors_find(&inner->tensors, name);
        o->base.origin.kinds[i] =
            found != NULL
                ? inner->origin.kinds[found - inner->tensors.all]
                : safetensors_set_find(&o->set, name_in_file(o, name).text).tensor->type->kind;
    }
    return ZR_OK;
}

/* Those that are no factors are left out. */
static void keep_factors(zr_model_tensors_t *tensors) {
    size_t n = 0;
    for (size_t i = 0; i < tensors->n; i++)
        if (zr_lora_is_factor(tensors->all[i].name))
            tensors->all[n++] = tensors->all[i];
    tensors->n = n;
}

zr_status_t adapter_take(adapter_part_t part, const zr_log_t *log, weights_t **weights) {
    over_t *o = NULL;
    ZR_TRY(create(*weights, log, &o));
    o->is_merged = part == ADAPTER_MERGED;
    o->base.has_lora = part != ADAPTER_MERGED;
    o->base.is_adapter = part == ADAPTER_ALONE;
    zr_status_t status = weights_list_tensors(&o->base, log);
    if (status == ZR_OK && part == ADAPTER_ALONE)
        keep_factors(&o->base.tensors);
    ZR_THEN(status, set_origin(o, *weights));
    if (part == ADAPTER_ALONE)
        o->base.origin.has_head = false;
    if (status != ZR_OK) {
        drop(o);
        return status;
    }
    o->inner = *weights;
    *weights = &o->base;
    return ZR_OK;
}

/* ---- the configuration ------------------------------------------------------------------- */

/* Null, false or empty: what a switch of PEFT has that is not used. */
static bool is_neutral(const json_t *value) {
    return json_is_null(value) || json_is_false(value) ||
           (json_is_array(value) && json_array_size(value) == 0) ||
           (json_is_object(value) && json_object_size(value) == 0);
}

/* What is read, and what changes nothing of A and B: notes, and settings of switches that are off.
 */
static bool is_known(const char *key, const json_t *value) {
    static const char *const known[] = {"auto_mapping",      "base_model_name_or_path",
                                        "inference_mode",    "lora_alpha",
                                        "lora_dropout",      "megatron_core",
                                        "peft_type",         "peft_version",
                                        "qalora_group_size", "r",
                                        "revision",          "runtime_config",
                                        "target_modules",    "task_type",
                                        "use_rslora",        "fan_in_fan_out"};
    const char *text = json_string_value(value);
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (strcmp(key, known[i]) == 0)
            return true;
    if (strcmp(key, "bias") == 0)
        return text != NULL && strcmp(text, "none") == 0;
    if (strcmp(key, "init_lora_weights") == 0)
        return json_is_true(value) ||
               (text != NULL && (strcmp(text, "gaussian") == 0 || strcmp(text, "orthogonal") == 0));
    return false;
}

/* A key whose value may mean more than A and B of one rank and alpha; NULL: there is none. */
static const char *find_other(const json_t *config) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)config, key, value) {
        if (!is_neutral(value) && !is_known(key, value))
            return key;
    }
    return NULL;
}

/* A list of names, or the name for all of them. */
static bool read_targets(const json_t *value, char *text, size_t size) {
    size_t used = 0, i;
    const json_t *name;
    if (json_is_string(value))
        return strcmp(json_string_value(value), ZR_LORA_ALL) == 0 &&
               (size_t)snprintf(text, size, ZR_LORA_ALL) < size;
    json_array_foreach(value, i, name) {
        const char *part = json_string_value(name);
        if (part == NULL || used >= size)
            return false;
        used += (size_t)snprintf(text + used, size - used, "%s%s", i > 0 ? "," : "", part);
    }
    return used > 0 && used < size;
}

/* What zr_lora_read reads: it checks all of it. */
static zr_status_t read_lora(const json_t *config, const char *path, const zr_log_t *log,
                             zr_lora_t *lora_p) {
    char targets[ZR_LORA_TARGETS_BYTES], text[2 * ZR_LORA_TARGETS_BYTES];
    const json_t *rank = json_object_get(config, "r");
    double alpha = json_number_value(json_object_get(config, "lora_alpha"));
    const char *type = json_string_value(json_object_get(config, "peft_type"));
    const char *other = find_other(config);
    files_log_t own = {.log = *log, .option = path};
    zr_log_t named = files_log(&own);
    if (type == NULL || strcmp(type, "LORA") != 0)
        return zr_fail(log, ZR_ERR_UNSUPPORTED, "%s: peft_type is %.40s; supported: LORA", path,
                       type != NULL ? type : "missing");
    if (other != NULL)
        return zr_fail(
            log, ZR_ERR_UNSUPPORTED,
            "%s: %s is set; supported: adapters of A and B of one rank and alpha (remove "
            "the key if it changes nothing of them, or merge the adapter with PEFT)",
            path, other);
    if (!read_targets(json_object_get(config, "target_modules"), targets, sizeof(targets)))
        return zr_fail(log, ZR_ERR_UNSUPPORTED,
                       "%s: target_modules has no names of at most %d bytes together; allowed: a "
                       "list of names, or \"" ZR_LORA_ALL "\" (one of another kind, or of more, "
                       "merge with PEFT, and import the merged model)",
                       path, ZR_LORA_TARGETS_BYTES - 1);
    if (!json_is_integer(rank) || json_integer_value(rank) < 1 || !(alpha > 0))
        return zr_fail(log, ZR_ERR_FORMAT,
                       "%s: r and lora_alpha must be numbers greater than 0, r a whole one", path);
    if (json_is_true(json_object_get(config, "use_rslora")))
        alpha *= sqrt((double)json_integer_value(rank));
    if (json_number_value(json_object_get(config, "lora_dropout")) > 0)
        zr_log_write(log, ZR_LOG_WARNING, "%s: lora_dropout is not applied in further training",
                     path);
    snprintf(text, sizeof(text), "rank=%lld,alpha=%.17g,targets=%s",
             (long long)json_integer_value(rank), alpha, targets);
    return zr_lora_read(text, &named, lora_p) == ZR_OK ? ZR_OK : ZR_ERR_FORMAT;
}

static zr_status_t read_config(const char *path, const zr_log_t *log, zr_lora_t *lora_p) {
    char *text;
    size_t n_bytes;
    json_error_t error;
    ZR_TRY(in_file_text(path, MAX_CONFIG_BYTES, log, &text, &n_bytes));
    json_t *config = json_loadb(text, n_bytes, JSON_REJECT_DUPLICATES, &error);
    free(text);
    if (!json_is_object(config)) {
        json_decref(config);
        return zr_fail(log, ZR_ERR_FORMAT, "%s: no object of JSON", path);
    }
    zr_status_t status = read_lora(config, path, log, lora_p);
    json_decref(config);
    return status;
}

/* The last parts of the names of the layers, each once. */
static json_t *list_targets(const weights_t *weights) {
    json_t *list = json_array();
    for (size_t i = 0; i < weights->tensors.n; i++) {
        const char *name = weights->tensors.all[i].name;
        size_t end = strlen(name) - strlen("." ZR_LORA_A_NAME), first = end;
        if (!zr_lora_is_factor(name) || strcmp(name + end, "." ZR_LORA_A_NAME) != 0)
            continue;
        while (first > 0 && name[first - 1] != '.')
            first--;
        json_t *part = json_stringn(name + first, end - first);
        bool is_there = false;
        for (size_t k = 0; k < json_array_size(list); k++)
            is_there |= json_equal(json_array_get(list, k), part) != 0;
        if (is_there)
            json_decref(part);
        else
            json_append(&list, part);
    }
    return list;
}

/* "all-linear" as what it stands for: others read it, too. */
static json_t *targets_of(const weights_t *weights) {
    if (strcmp(weights->lora.targets, ZR_LORA_ALL) == 0)
        return list_targets(weights);
    json_t *list = json_array();
    for (const char *target = weights->lora.targets; *target != '\0';) {
        size_t length = strcspn(target, ",");
        json_append(&list, json_stringn(target, length));
        target += length;
        target += *target == ',';
    }
    return list;
}

zr_status_t adapter_config_make(const weights_t *weights, const zr_log_t *log, char **text_p,
                                size_t *n_bytes_p) {
    double alpha = weights->lora.alpha;
    bool is_whole = alpha == floor(alpha) && alpha < 1e6;
    json_t *object =
        JSON_OBJECT({"peft_type", json_string("LORA")}, {"task_type", json_string("CAUSAL_LM")},
                    {"base_model_name_or_path", json_null()}, {"inference_mode", json_true()},
                    {"r", json_count(weights->lora.rank)},
                    {"lora_alpha", is_whole ? json_count((uint64_t)alpha) : json_real(alpha)},
                    {"target_modules", targets_of(weights)}, {"lora_dropout", json_real(0.0)},
                    {"bias", json_string("none")},
                    {"fan_in_fan_out", json_boolean(hf_names_of(&weights->shape)->is_in_first)});
    *text_p = hf_config_print(object, n_bytes_p);
    json_decref(object);
    return *text_p != NULL ? ZR_OK
                           : zr_fail(log, ZR_ERR_MEMORY, "no memory for " ADAPTER_CONFIG_NAME);
}

/* ---- beside weights ---------------------------------------------------------------------- */

/* Each factor is there, of its shape. */
static zr_status_t check_factor(const over_t *o, const zr_model_tensor_t *wanted) {
    name_t name = name_in_file(o, wanted->name);
    const safetensors_tensor_t *tensor = safetensors_set_find(&o->set, name.text).tensor;
    const char *path = o->set.files[0].file.path;
    if (tensor == NULL)
        return zr_fail(&o->log, ZR_ERR_FORMAT, "%s: tensor \"%s\" is missing", path, name.text);
    if (tensor->n_dims != 2 || tensor->dims[0] != wanted->dims[0] ||
        tensor->dims[1] != wanted->dims[1])
        return zr_fail(
            &o->log, ZR_ERR_FORMAT,
            "%s: tensor \"%s\" of %zu dimensions has another shape than [%zu, %zu], which "
            "the model and r say",
            path, name.text, (size_t)tensor->n_dims, wanted->dims[0], wanted->dims[1]);
    if (tensor->type->kind == ELEMENT_OTHER)
        return zr_fail(&o->log, ZR_ERR_FORMAT,
                       "%s: tensor \"%s\" is of dtype %s; F32, BF16 and F16 are read", path,
                       name.text, tensor->type->name);
    return ZR_OK;
}

static zr_status_t check_factors(const over_t *o) {
    const safetensors_header_t *header = &o->set.files[0].header;
    const char *path = o->set.files[0].file.path;
    size_t n_prefix = strlen(ADAPTER_PREFIX) + strlen(o->prefix);
    name_t prefix = name_in_file(o, "");
    for (size_t i = 0; i < o->base.tensors.n; i++)
        if (zr_lora_is_factor(o->base.tensors.all[i].name))
            ZR_TRY(check_factor(o, &o->base.tensors.all[i]));
    for (size_t i = 0; i < header->n_tensors; i++) {
        const char *name = header->tensors[i].name;
        bool has_prefix = strncmp(name, prefix.text, n_prefix) == 0;
        if (!has_prefix || !zr_lora_is_factor(name) ||
            zr_model_tensors_find(&o->base.tensors, name + n_prefix) == NULL)
            return zr_fail(
                &o->log, ZR_ERR_FORMAT,
                "%s: tensor \"%s\" is not an adapter of the layers that target_modules names", path,
                name);
    }
    return ZR_OK;
}

static zr_status_t open_files(const char *folder, over_t *o) {
    char *config = in_file_beside(folder, true, ADAPTER_CONFIG_NAME);
    char *file = in_file_beside(folder, true, ADAPTER_WEIGHTS_NAME);
    zr_status_t status = config != NULL && file != NULL
                             ? read_config(config, &o->log, &o->base.lora)
                             : zr_fail(&o->log, ZR_ERR_MEMORY, "no memory to open %s", folder);
    if (status == ZR_OK) {
        files_log_t own = {.log = o->log, .option = config};
        zr_log_t named = files_log(&own);
        status =
            zr_lora_check(&o->base.lora, &o->base.shape, &named) == ZR_OK ? ZR_OK : ZR_ERR_FORMAT;
    }
    ZR_THEN(status, safetensors_set_open((const char *const *)&file, 1, &o->log, &o->set));
    free(config);
    free(file);
    return status;
}

static zr_status_t add(const char *folder, over_t *o, weights_t *inner) {
    ZR_TRY(open_files(folder, o));
    o->base.has_lora = true;
    ZR_TRY(weights_list_tensors(&o->base, &o->log));
    ZR_TRY(check_factors(o));
    o->base.folder = inner->folder != NULL ? strdup(inner->folder) : NULL;
    return set_origin(o, inner);
}

zr_status_t adapter_add(const char *folder, const zr_log_t *log, weights_t **weights) {
    over_t *o = NULL;
    if (!files_is_folder(folder))
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "--adapter %s: no folder; give one with " ADAPTER_CONFIG_NAME
                       " and " ADAPTER_WEIGHTS_NAME,
                       folder);
    ZR_TRY(create(*weights, log, &o));
    zr_status_t status = add(folder, o, *weights);
    if (status != ZR_OK) {
        drop(o);
        return status;
    }
    o->inner = *weights;
    *weights = &o->base;
    return ZR_OK;
}
