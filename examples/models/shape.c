/*
 * The table of architectures, and what is the same for all: see shape.h.
 */
#include "models/shape.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "models/internal.h"

#define N_ELEMS(array) (sizeof(array) / sizeof((array)[0]))
#define CONFIG_NAME "config.json"
#define CONFIG_MAX_BYTES ((size_t)1 << 20) /* none is larger; /dev/zero is */
#define MOST_NAMES 64

static const zr_architecture_t *const architectures[ZR_N_MODEL_KINDS] = {
    [ZR_MODEL_GPT] = &zr_gpt_architecture, [ZR_MODEL_DECODER] = &zr_decoder_architecture};

static const zr_architecture_t *of(const zr_model_shape_t *shape) {
    return architectures[shape->kind];
}

/* ---- names ----------------------------------------------------------------------------------- */

/* Usual model `index` of all. */
static const char *usual(size_t index, zr_model_shape_t *shape_p) {
    for (size_t i = 0; i < ZR_N_MODEL_KINDS; i++)
        for (size_t k = 0;; k++) {
            const char *name = architectures[i]->usual(k, shape_p);
            if (name == NULL)
                break;
            if (index-- == 0)
                return name;
        }
    return NULL;
}

const char *zr_model_name(size_t index) {
    zr_model_shape_t shape;
    return usual(index, &shape);
}

const char *zr_model_shape_name(const zr_model_shape_t *shape) {
    zr_model_shape_t known;
    const char *name;
    for (size_t i = 0; (name = usual(i, &known)) != NULL; i++)
        if (!zr_model_shapes_differ(shape, &known, NULL))
            return name;
    return NULL;
}

const char *zr_model_kind_name(zr_model_kind_t kind) {
    return (size_t)kind < ZR_N_MODEL_KINDS ? architectures[kind]->name : NULL;
}

/* ---- reading --------------------------------------------------------------------------------- */

static const zr_architecture_t *architecture_of_type(const char *type) {
    for (size_t i = 0; i < ZR_N_MODEL_KINDS; i++)
        for (const char *const *known = architectures[i]->types; *known != NULL; known++)
            if (strcmp(*known, type) == 0)
                return architectures[i];
    return NULL;
}

static zr_status_t refuse_type(const char *type, const char *where, const zr_log_t *log) {
    char known[256] = "";
    for (size_t i = 0, used = 0; i < ZR_N_MODEL_KINDS; i++)
        for (const char *const *name = architectures[i]->types; *name != NULL; name++)
            used += (size_t)snprintf(known + used, sizeof(known) - used, "%s%s",
                                     used > 0 ? ", " : "", *name);
    return zr_fail(log, ZR_ERR_UNSUPPORTED, "%s: model_type is %.60s; supported: %s", where,
                   type != NULL ? type : "missing", known);
}

/* Files of GPT-2 that are older than the key do not have it. */
static const char *type_of(const json_t *root) {
    const json_t *type = json_object_get(root, "model_type");
    if (type == NULL && json_object_get(root, "n_layer") != NULL)
        return architectures[ZR_MODEL_GPT]->types[0];
    return json_string_value(type);
}

static zr_status_t read_root(const json_t *root, const char *where, const zr_log_t *log,
                             zr_model_shape_t *shape_p) {
    char error[512];
    const char *type = type_of(root);
    const zr_architecture_t *architecture = type != NULL ? architecture_of_type(type) : NULL;
    if (!json_is_object(root))
        return zr_fail(log, ZR_ERR_FORMAT, "%s: not an object", where);
    if (architecture == NULL)
        return refuse_type(type, where, log);
    zr_model_shape_t shape = {.kind = architecture->kind};
    ZR_TRY(architecture->read_config(root, where, log, &shape));
    if (!architecture->check(&shape, error, sizeof(error)))
        return zr_fail(log, ZR_ERR_ARGUMENT, "%s: %s", where, error);
    *shape_p = shape;
    return ZR_OK;
}

zr_status_t zr_model_shape_read_config(const char *text, size_t n_bytes, const char *where,
                                       const zr_log_t *log, zr_model_shape_t *shape_p) {
    json_error_t error;
    json_t *root = json_loadb(text, n_bytes, JSON_REJECT_DUPLICATES, &error);
    if (root == NULL)
        return zr_fail(log, ZR_ERR_FORMAT, "%s: line %d, column %d: %s", where, error.line,
                       error.column, error.text);
    zr_status_t status = read_root(root, where, log, shape_p);
    json_decref(root);
    return status;
}

static zr_status_t read_path(const char *path, bool is_folder, const zr_log_t *log,
                             zr_model_shape_t *shape_p) {
    size_t n = strlen(path), n_bytes;
    char *text, *where = malloc(n + sizeof("/" CONFIG_NAME));
    struct stat about;
    if (where == NULL)
        return zr_fail(log, ZR_ERR_MEMORY, "no memory to read %s", path);
    while (is_folder && n > 1 && path[n - 1] == '/')
        n--;
    sprintf(where, "%.*s%s", (int)n, path, is_folder ? "/" CONFIG_NAME : "");
    zr_status_t status;
    if (is_folder && stat(where, &about) != 0)
        status =
            zr_fail(log, ZR_ERR_ARGUMENT,
                    "%s: the folder has no " CONFIG_NAME
                    ", which describes the model; give a folder of Hugging Face's, a name or sizes",
                    path);
    else
        status = zr_text_file_read(where, CONFIG_MAX_BYTES, log, &text, &n_bytes);
    if (status == ZR_OK) {
        status = zr_model_shape_read_config(text, n_bytes, where, log, shape_p);
        free(text);
    }
    free(where);
    return status;
}

/* Endings of names on the Hugging Face hub that do not change the shape; those of a newer version
 * may, and are not here. */
static const struct {
    const char *begin;   /* of usual names */
    const char *endings; /* with spaces between */
} hub_endings[] = {
    {"llama-2-", "-hf -chat -chat-hf"},
    {"llama-3.", "-instruct"},
    {"qwen2.5-0.5b", "-instruct"},
    {"qwen2.5-3b", "-instruct"},
    {"mistral-7b", "-v0.1 -instruct-v0.1"},
    {"smollm2-", "-instruct"},
    {"tinyllama", "-1.1b-chat-v1.0 -1.1b-intermediate-step-1431k-3t _v1.1"},
};

static bool may_end_so(const char *name, const char *ending) {
    size_t length = strlen(ending);
    for (size_t i = 0; i < N_ELEMS(hub_endings) && length > 0; i++)
        if (strncmp(name, hub_endings[i].begin, strlen(hub_endings[i].begin)) == 0)
            for (const char *at = hub_endings[i].endings; *at != '\0'; at += strspn(at, " ")) {
                size_t n = strcspn(at, " ");
                if (n == length && strncmp(at, ending, n) == 0)
                    return true;
                at += n;
            }
    return length == 0;
}

typedef struct hub_name {
    char text[128];
} hub_name_t;

/* "meta-llama/Meta-Llama-3.1-8B" as names are written here: "llama-3.1-8b". A path stays. */
static hub_name_t hub_name_of(const char *text) {
    hub_name_t name;
    const char *slash = strchr(text, '/');
    bool is_id = slash != NULL && slash != text && strchr("./~", text[0]) == NULL &&
                 strchr(slash + 1, '/') == NULL;
    snprintf(name.text, sizeof(name.text), "%s", is_id ? slash + 1 : text);
    for (char *c = name.text; *c != '\0'; c++)
        *c = (char)tolower((unsigned char)*c);
    if (strncmp(name.text, "meta-llama-", 11) == 0)
        memmove(name.text, name.text + 5, strlen(name.text + 5) + 1);
    return name;
}

static bool find_hub_name(const char *text, zr_model_shape_t *shape_p) {
    hub_name_t hub_name = hub_name_of(text);
    zr_model_shape_t known;
    const char *name;
    for (size_t i = 0; (name = usual(i, &known)) != NULL; i++) {
        size_t n = strlen(name);
        if (strncmp(hub_name.text, name, n) != 0 || !may_end_so(name, hub_name.text + n))
            continue;
        *shape_p = known;
        return true;
    }
    return false;
}

/* Of what is neither a name nor sizes nor there. */
static zr_status_t refuse_name(const char *text, const zr_log_t *log) {
    const char *names[MOST_NAMES];
    hub_name_t hub_name = hub_name_of(text);
    size_t n = 0;
    while (n < MOST_NAMES && (names[n] = zr_model_name(n)) != NULL)
        n++;
    const char *nearest = zr_name_nearest(hub_name.text, names, n);
    for (size_t i = 0; i < n && nearest == NULL; i++) /* of another version */
        if (strncmp(hub_name.text, names[i], strlen(names[i])) == 0)
            nearest = names[i];
    zr_model_shape_t shape;
    return zr_fail(log, ZR_ERR_ARGUMENT,
                   "%s: not a model's name (such as %s or %s), sizes, or an existing file or "
                   "folder%s%s; docs/guide/train.md has all names",
                   text, architectures[0]->usual(0, &shape), architectures[1]->usual(0, &shape),
                   nearest != NULL ? "; the nearest name is " : "", nearest != NULL ? nearest : "");
}

/* Sizes begin with the name of their architecture, but for a GPT's. */
static const zr_architecture_t *architecture_of_sizes(const char **text) {
    for (size_t i = 0; i < ZR_N_MODEL_KINDS; i++) {
        size_t n = strlen(architectures[i]->name);
        if (strncmp(*text, architectures[i]->name, n) != 0 || (*text)[n] != ',')
            continue;
        *text += n + 1;
        return architectures[i];
    }
    return architectures[ZR_MODEL_GPT];
}

static zr_status_t read_sizes(const char *text, const zr_log_t *log, zr_model_shape_t *shape_p) {
    char error[1024];
    const char *sizes = text;
    const zr_architecture_t *architecture = architecture_of_sizes(&sizes);
    if (zr_model_keys_read(architecture, sizes, shape_p, error, sizeof(error)))
        return ZR_OK;
    return zr_fail(log, ZR_ERR_ARGUMENT, "%s: %s", text, error);
}

zr_status_t zr_model_shape_read(const char *text, const zr_log_t *log, zr_model_shape_t *shape_p) {
    zr_model_shape_t known;
    const char *name;
    struct stat about;
    for (size_t i = 0; (name = usual(i, &known)) != NULL; i++)
        if (strcmp(name, text) == 0) {
            *shape_p = known;
            return ZR_OK;
        }
    if (text[0] != '\0' && stat(text, &about) == 0)
        return read_path(text, S_ISDIR(about.st_mode), log, shape_p);
    if (strchr(text, '=') != NULL)
        return read_sizes(text, log, shape_p);
    if (find_hub_name(text, shape_p))
        return ZR_OK;
    return refuse_name(text, log);
}

static bool says_16_bits(const char *path) {
    static const char *const keys[] = {"dtype", "torch_dtype"};
    json_t *root = json_load_file(path, 0, NULL);
    bool is_16 = false;
    for (size_t i = 0; i < N_ELEMS(keys); i++) {
        const char *word = json_string_value(json_object_get(root, keys[i]));
        is_16 |= word != NULL && (strcmp(word, "bfloat16") == 0 || strcmp(word, "float16") == 0);
    }
    json_decref(root);
    return is_16;
}

bool zr_model_is_published_in_16_bits(const char *text) {
    zr_model_shape_t known;
    struct stat about;
    const char *name;
    for (size_t i = 0; (name = usual(i, &known)) != NULL; i++)
        if (strcmp(name, text) == 0)
            return known.kind == ZR_MODEL_DECODER;
    if (stat(text, &about) != 0)
        return find_hub_name(text, &known) && known.kind == ZR_MODEL_DECODER;
    size_t n = strlen(text) + sizeof("/" CONFIG_NAME);
    char *path = malloc(n);
    if (path == NULL)
        return false;
    snprintf(path, n, "%s%s", text, S_ISDIR(about.st_mode) ? "/" CONFIG_NAME : "");
    bool is_16 = says_16_bits(path);
    free(path);
    return is_16;
}

/* ---- writing, comparing ---------------------------------------------------------------------- */

size_t zr_model_n_values(zr_model_kind_t kind) {
    return architectures[kind]->n_keys;
}

zr_model_value_t zr_model_shape_value(const zr_model_shape_t *shape, size_t index) {
    return zr_model_key_value(&of(shape)->keys[index], shape);
}

/* The shape that a description without the optional values is of. */
static zr_model_shape_t plain_shape(const zr_model_shape_t *shape) {
    const zr_architecture_t *architecture = of(shape);
    zr_model_shape_t plain = {.kind = shape->kind};
    for (size_t i = 0; i < architecture->n_keys; i++) {
        const zr_model_key_t *key = &architecture->keys[i];
        if (!key->is_optional)
            memcpy((char *)&plain + key->offset, (const char *)shape + key->offset, sizeof(size_t));
    }
    if (architecture->complete != NULL)
        architecture->complete(&plain);
    return plain;
}

zr_model_text_t zr_model_shape_text(const zr_model_shape_t *shape) {
    const zr_architecture_t *architecture = of(shape);
    zr_model_shape_t plain = plain_shape(shape);
    zr_model_text_t text;
    size_t size = sizeof(text.text);
    size_t used = (size_t)snprintf(text.text, size, "%s", architecture->prefix);
    for (size_t i = 0, n = 0; i < architecture->n_keys && used < size; i++) {
        zr_model_value_t value = zr_model_shape_value(shape, i);
        if (architecture->keys[i].is_optional &&
            strcmp(value.text, zr_model_shape_value(&plain, i).text) == 0)
            continue;
        size_t first = used;
        used += (size_t)snprintf(text.text + used, size - used, "%s%s=", n++ > 0 ? "," : "",
                                 value.name);
        for (char *c = text.text + first; *c != '\0'; c++)
            *c = *c == '_' ? '-' : *c;
        if (used < size)
            used += (size_t)snprintf(text.text + used, size - used, "%s", value.text);
    }
    return text;
}

static zr_model_value_t architecture_value(const zr_model_shape_t *shape) {
    zr_model_value_t value = {.name = "architecture", .type = ZR_MODEL_WORD};
    snprintf(value.text, sizeof(value.text), "%s", of(shape)->name);
    return value;
}

bool zr_model_shapes_differ(const zr_model_shape_t *a, const zr_model_shape_t *b,
                            zr_model_difference_t *difference_p) {
    zr_model_difference_t difference = {architecture_value(a), architecture_value(b)};
    bool differs = a->kind != b->kind;
    for (size_t i = 0; !differs && i < zr_model_n_values(a->kind); i++) {
        difference =
            (zr_model_difference_t){zr_model_shape_value(a, i), zr_model_shape_value(b, i)};
        differs = strcmp(difference.a.text, difference.b.text) != 0;
    }
    if (differs && difference_p != NULL)
        *difference_p = difference;
    return differs;
}

/* ---- by their rows --------------------------------------------------------------------------- */

zr_status_t zr_model_shape_check(const zr_model_shape_t *shape, const zr_log_t *log) {
    char error[512];
    if ((size_t)shape->kind >= ZR_N_MODEL_KINDS)
        return zr_fail(log, ZR_ERR_ARGUMENT, "no model: kind %d; allowed: 0 to %d",
                       (int)shape->kind, ZR_N_MODEL_KINDS - 1);
    if (of(shape)->check(shape, error, sizeof(error)))
        return ZR_OK;
    return zr_fail(log, ZR_ERR_ARGUMENT, "invalid model: %s", error);
}

zr_model_sizes_t zr_model_shape_sizes(const zr_model_shape_t *shape) {
    return of(shape)->sizes(shape);
}

size_t zr_model_shape_n_params(const zr_model_shape_t *shape) {
    return of(shape)->n_params(shape);
}

double zr_model_shape_flops_per_token(const zr_model_shape_t *shape, size_t t) {
    return of(shape)->flops_per_token(shape, t);
}

zr_status_t zr_model_shape_create(zr_runtime_t *runtime, const zr_model_shape_t *shape,
                                  const zr_transformer_options_t *options,
                                  const zr_activation_options_t *activations,
                                  zr_model_t **model_p) {
    return of(shape)->create(runtime, shape, options, activations, model_p);
}

/* What a maker's context holds. */
typedef struct made {
    zr_model_shape_t shape;
    zr_transformer_options_t options;
} made_t;
_Static_assert(sizeof(made_t) <= ZR_MODEL_MAKER_BYTES, "a maker holds a model's shape");

static zr_status_t make(const void *context, zr_runtime_t *runtime,
                        const zr_activation_options_t *activations, zr_model_t **model_p) {
    const made_t *made = context;
    return zr_model_shape_create(runtime, &made->shape, &made->options, activations, model_p);
}

/* Layers are all alike, but where some are named. */
static size_t n_repeated(const void *context) {
    const made_t *made = context;
    const zr_decoder_shape_t *decoder = &made->shape.of.decoder;
    bool is_named = made->options.freeze != NULL && made->options.freeze[0] != '\0';
    if (is_named || (made->shape.kind == ZR_MODEL_DECODER &&
                     (decoder->window > 0 || decoder->unrotated[0] != 0 || decoder->repeat > 0)))
        return 0;
    return zr_model_shape_sizes(&made->shape).n_layers;
}

static void repeat(void *context, size_t n) {
    made_t *made = context;
    if (made->shape.kind == ZR_MODEL_DECODER)
        made->shape.of.decoder.n_layers = n;
    else
        made->shape.of.gpt.n_layers = n;
}

zr_model_maker_t zr_model_shape_maker(const zr_model_shape_t *shape,
                                      const zr_transformer_options_t *options) {
    zr_model_maker_t maker = {.make = make, .n_repeated = n_repeated, .repeat = repeat};
    made_t made = {*shape, *options};
    memcpy(maker.context, &made, sizeof(made));
    return maker;
}
