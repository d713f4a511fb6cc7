/*
 * A model's shape is in config.json, in files of ours also in their header, or it is given. All
 * that say it must agree, and the tensors must have the shapes that follow from it: there is none
 * too few, and none too many but buffers, which have no weights in them.
 */
#include "examples/weights/weights_hf.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "examples/common/files.h"
#include "examples/weights/adapter.h"
#include "examples/weights/carry.h"
#include "examples/weights/hf_names.h"
#include "examples/weights/safetensors_set.h"

#define MAX_CONFIG_BYTES ((uint64_t)1 << 20)
#define NAME_BYTES 256

typedef struct hf_weights {
    weights_t base;
    zr_log_t log;
    safetensors_set_t set;
    const hf_names_t *names;
    const char *prefix; /* of names; "": none */
} hf_weights_t;

typedef struct full_name {
    char text[NAME_BYTES];
} full_name_t;

static full_name_t name_in_file(const hf_weights_t *hf, const char *name) {
    full_name_t full;
    if (hf->base.origin.is_bare)
        name = hf_bare_name(hf->names, name);
    snprintf(full.text, sizeof(full.text), "%s%s",
             strcmp(name, HF_HEAD_NAME) == 0 ? "" : hf->prefix, name);
    return full;
}

/* The name here of one in a file; NULL: it lacks the prefix that those have. */
static const char *name_here(const hf_weights_t *hf, const char *in_file, full_name_t *full) {
    size_t n_prefix = strlen(hf->prefix);
    if (strncmp(in_file, hf->prefix, n_prefix) != 0)
        return NULL;
    snprintf(full->text, sizeof(full->text), "%s%s",
             hf->base.origin.is_bare ? hf->names->own_prefix : "", in_file + n_prefix);
    return full->text;
}

static safetensors_place_t place_of(const hf_weights_t *hf, const char *name) {
    return safetensors_set_find(&hf->set, name_in_file(hf, name).text);
}

/* ---- the files --------------------------------------------------------------------------- */

/* One of the two names that a model's folder has. */
static zr_status_t open_folder(const char *path, const zr_log_t *log, safetensors_set_t *set) {
    char *file = in_file_beside(path, true, HF_WEIGHTS_NAME);
    char *index = in_file_beside(path, true, HF_INDEX_NAME);
    char *adapter = in_file_beside(path, true, ADAPTER_CONFIG_NAME);
    zr_status_t status;
    if (file == NULL || index == NULL || adapter == NULL)
        status = zr_fail(log, ZR_ERR_MEMORY, "no memory to open %s", path);
    else if (access(file, F_OK) == 0 && access(index, F_OK) == 0)
        status = zr_fail(log, ZR_ERR_ARGUMENT,
                         "%s has both " HF_WEIGHTS_NAME " and " HF_INDEX_NAME "; name one of them",
                         path);
    else if (access(file, F_OK) == 0)
        status = safetensors_set_open((const char *const *)&file, 1, log, set);
    else if (access(index, F_OK) == 0)
        status = safetensors_set_open_index(index, log, set);
    else if (access(adapter, F_OK) == 0)
        status = zr_fail(log, ZR_ERR_ARGUMENT,
                         "%s is a folder of adapters; import the folder of the model that they are "
                         "for, and give this one with --adapter %s",
                         path, path);
    else
        status = zr_fail(log, ZR_ERR_ARGUMENT,
                         "%s has neither " HF_WEIGHTS_NAME " nor " HF_INDEX_NAME
                         "; name the files, or save the model as safetensors",
                         path);
    free(file);
    free(index);
    free(adapter);
    return status;
}

static zr_status_t open_set(const char *const *paths, size_t n_paths, const zr_log_t *log,
                            safetensors_set_t *set) {
    if (n_paths == 1 && files_is_folder(paths[0]))
        return open_folder(paths[0], log, set);
    if (n_paths == 1 && files_name_ends(paths[0], ".json"))
        return safetensors_set_open_index(paths[0], log, set);
    return safetensors_set_open(paths, n_paths, log, set);
}

/* ---- the model's shape ------------------------------------------------------------------- */

/* What has said it, so far. */
typedef struct finding {
    bool found;
    zr_model_shape_t shape;
    char where[256];
    const zr_log_t *log;
} finding_t;

static zr_status_t find(finding_t *finding, const zr_model_shape_t *shape, const char *where) {
    if (finding->found)
        ZR_TRY(weights_expect_shape(&finding->shape, finding->where, shape, where, finding->log));
    finding->found = true;
    finding->shape = *shape;
    snprintf(finding->where, sizeof(finding->where), "%s", where);
    return ZR_OK;
}

static zr_status_t find_in_config(finding_t *finding, const char *folder) {
    char *path = in_file_beside(folder, true, HF_CONFIG_NAME), *text;
    size_t n_bytes;
    zr_model_shape_t shape;
    if (path == NULL)
        return zr_fail(finding->log, ZR_ERR_MEMORY, "no memory to open %s", folder);
    zr_status_t status = ZR_OK;
    if (access(path, F_OK) == 0 || errno != ENOENT) {
        status = in_file_text(path, MAX_CONFIG_BYTES, finding->log, &text, &n_bytes);
        if (status == ZR_OK) {
            status = zr_model_shape_read_config(text, n_bytes, path, finding->log, &shape);
            free(text);
        }
        ZR_THEN(status, find(finding, &shape, path));
    }
    free(path);
    return status;
}

/* Sizes alone: the text of --model may be a path, which no file is to name. */
static zr_status_t read_in_header(const char *model, const char *path, const zr_log_t *log,
                                  zr_model_shape_t *shape_p) {
    files_log_t own = {.log = *log, .option = path};
    zr_log_t named = files_log(&own);
    if (strchr(model, '=') == NULL || strchr(model, '/') != NULL)
        return zr_fail(log, ZR_ERR_FORMAT,
                       "%s: __metadata__: " SAFETENSORS_MODEL_KEY
                       ": \"%.200s\" are not sizes of a model",
                       path, model);
    return zr_model_shape_read(model, &named, shape_p) == ZR_OK ? ZR_OK : ZR_ERR_FORMAT;
}

static zr_status_t find_in_headers(finding_t *finding, const safetensors_set_t *set) {
    for (size_t i = 0; i < set->n_files; i++) {
        zr_model_shape_t shape;
        const char *model = set->files[i].header.model, *path = set->files[i].file.path;
        if (model == NULL)
            continue;
        ZR_TRY(read_in_header(model, path, finding->log, &shape));
        ZR_TRY(find(finding, &shape, path));
    }
    return ZR_OK;
}

static zr_status_t find_shape(hf_weights_t *hf, const char *path, const zr_model_shape_t *model) {
    finding_t finding = {.log = &hf->log};
    if (model != NULL)
        ZR_TRY(find(&finding, model, "--model"));
    ZR_TRY(find_in_headers(&finding, &hf->set));
    ZR_TRY(find_in_config(&finding, hf->base.folder));
    if (!finding.found)
        return zr_fail(&hf->log, ZR_ERR_FORMAT,
                       "%s: there is no " HF_CONFIG_NAME
                       " in the same folder, which says what model it is; "
                       "add --model NAME, its sizes, or the path of a " HF_CONFIG_NAME,
                       path);
    hf->base.shape = finding.shape;
    hf->names = hf_names_of(&hf->base.shape);
    return weights_list_tensors(&hf->base, &hf->log);
}

/* ---- the tensors ------------------------------------------------------------------------- */

static zr_status_t find_prefix(hf_weights_t *hf, const char *path) {
    const hf_names_t *names = hf->names;
    const char *bare_name = hf_bare_name(names, names->embedding);
    const char *prefix = names->own_prefix != NULL ? names->own_prefix : names->prefix;
    full_name_t full_name;
    snprintf(full_name.text, sizeof(full_name.text), "%s%s", prefix, bare_name);
    bool bare = safetensors_set_find(&hf->set, bare_name).tensor != NULL;
    bool prefixed = safetensors_set_find(&hf->set, full_name.text).tensor != NULL;
    if (bare == prefixed)
        return zr_fail(&hf->log, ZR_ERR_FORMAT,
                       "%s: it has %s %s %s %s; give the weights of one model", path,
                       bare ? "both" : "neither", bare_name, bare ? "and" : "nor", full_name.text);
    hf->base.origin.has_prefix = prefixed && names->own_prefix == NULL;
    hf->base.origin.is_bare = bare && names->own_prefix != NULL;
    hf->prefix = hf->base.origin.has_prefix ? prefix : "";
    return ZR_OK;
}

static bool has_shape(const safetensors_tensor_t *tensor, const zr_model_tensor_t *wanted) {
    bool equal = tensor->n_dims == wanted->n_dims;
    for (int i = 0; equal && i < wanted->n_dims; i++)
        equal = tensor->dims[i] == wanted->dims[i];
    return equal;
}

typedef struct dims_text {
    char text[160];
} dims_text_t;

/* "[50257, 768]" */
static dims_text_t dims_text(const size_t *dims, int n_dims) {
    dims_text_t text;
    size_t n = (size_t)snprintf(text.text, sizeof(text.text), "[");
    for (int i = 0; i < n_dims && i < 4; i++)
        n += (size_t)snprintf(text.text + n, sizeof(text.text) - n, "%s%zu", i > 0 ? ", " : "",
                              dims[i]);
    snprintf(text.text + n, sizeof(text.text) - n, n_dims > 4 ? ", ...]" : "]");
    return text;
}

static zr_status_t check_tensor(const hf_weights_t *hf, const zr_model_tensor_t *wanted,
                                safetensors_place_t place) {
    const safetensors_tensor_t *tensor = place.tensor;
    const char *path = hf->set.files[place.file].file.path;
    if (!has_shape(tensor, wanted))
        return zr_fail(&hf->log, ZR_ERR_FORMAT,
                       "%s: tensor \"%s\" has the shape %s; in a model with %s it has %s", path,
                       tensor->name, dims_text(tensor->dims, tensor->n_dims).text,
                       zr_model_shape_text(&hf->base.shape).text,
                       dims_text(wanted->dims, wanted->n_dims).text);
    if (tensor->type->kind == ELEMENT_OTHER)
        return zr_fail(&hf->log, ZR_ERR_FORMAT,
                       "%s: tensor \"%s\" is of dtype %s%s; F32, BF16 and F16 are read", path,
                       tensor->name, tensor->type->name,
                       strncmp(tensor->type->name, "F8_", 3) == 0 ? " (quantised weights)" : "");
    return ZR_OK;
}

/* Refuse the tensors of GPTQ, AWQ and bitsandbytes by what their names end with. */
static zr_status_t check_quantized(const hf_weights_t *hf, const char *path) {
    static const char *const endings[] = {
        ".qweight",   ".qzeros",        ".absmax",          ".SCB",
        ".quant_map", ".weight_packed", ".weight_scale_inv"};
    for (size_t i = 0; i < hf->set.n_files; i++) {
        const safetensors_header_t *header = &hf->set.files[i].header;
        for (size_t k = 0; k < header->n_tensors * (sizeof(endings) / sizeof(endings[0])); k++) {
            const char *name = header->tensors[k % header->n_tensors].name;
            if (files_name_ends(name, endings[k / header->n_tensors]))
                return zr_fail(
                    &hf->log, ZR_ERR_UNSUPPORTED,
                    "%s: tensor \"%s\" is of quantised weights, which are not supported; "
                    "give the model that they were made of, in fp32, bf16 or fp16",
                    path, name);
        }
    }
    return ZR_OK;
}

/* Every parameter is there, and what they are of. */
static zr_status_t check_parameters(hf_weights_t *hf, const char *path) {
    const zr_model_tensors_t *tensors = &hf->base.tensors;
    size_t n_missing = 0;
    full_name_t missing = {""};
    hf->base.origin.kinds = calloc(tensors->n, sizeof(*hf->base.origin.kinds));
    if (hf->base.origin.kinds == NULL)
        return zr_fail(&hf->log, ZR_ERR_MEMORY, "no memory to open %s", path);
    for (size_t i = 0; i < tensors->n; i++) {
        full_name_t name = name_in_file(hf, tensors->all[i].name);
        safetensors_place_t place = safetensors_set_find(&hf->set, name.text);
        if (place.tensor == NULL) {
            missing = n_missing++ == 0 ? name : missing;
            continue;
        }
        ZR_TRY(check_tensor(hf, &tensors->all[i], place));
        hf->base.origin.kinds[i] = place.tensor->type->kind;
    }
    if (n_missing > 0)
        ZR_TRY(check_quantized(hf, path));
    if (n_missing > 0)
        return zr_fail(&hf->log, ZR_ERR_FORMAT,
                       "%s: %zu of the %s of a model with %s are missing, \"%s\" %s", path,
                       n_missing, zr_count_text(tensors->n, "tensor").text,
                       zr_model_shape_text(&hf->base.shape).text, missing.text,
                       n_missing == 1 ? "alone" : "first");
    hf->base.dtype = element_kinds_name(hf->base.origin.kinds, tensors->n);
    return ZR_OK;
}

/* Numbers that follow from the configuration, which older files have. */
static bool is_buffer(const hf_weights_t *hf, const char *name) {
    size_t layer, n_layers = zr_model_shape_sizes(&hf->base.shape).n_layers;
    char made[NAME_BYTES];
    for (const char *const *buffer = hf->names->buffers; *buffer != NULL; buffer++) {
        size_t n = strcspn(*buffer, "%");
        if (strncmp(name, *buffer, n) != 0 || sscanf(name + n, "%zu", &layer) != 1 ||
            layer >= n_layers)
            continue;
        snprintf(made, sizeof(made), "%.*s%zu%s", (int)n, *buffer, layer,
                 *buffer + n + strlen("%zu"));
        if (strcmp(made, name) == 0)
            return true;
    }
    return false;
}

static zr_status_t check_other(hf_weights_t *hf, const char *path, const char *name) {
    full_name_t full;
    const char *here = name_here(hf, name, &full);
    if (strcmp(name, HF_HEAD_NAME) == 0 ||
        (here != NULL && zr_model_tensors_find(&hf->base.tensors, here) != NULL))
        return ZR_OK;
    if (here != NULL && is_buffer(hf, here)) {
        hf->base.n_ignored++;
        return ZR_OK;
    }
    return zr_fail(
        &hf->log, ZR_ERR_FORMAT,
        "%s: tensor \"%s\" is not a part of a model with %s; remove it, or name the right model",
        path, name, zr_model_shape_text(&hf->base.shape).text);
}

static zr_status_t check_others(hf_weights_t *hf) {
    for (size_t i = 0; i < hf->set.n_files; i++) {
        const safetensors_header_t *header = &hf->set.files[i].header;
        for (size_t k = 0; k < header->n_tensors; k++)
            ZR_TRY(check_other(hf, hf->set.files[i].file.path, header->tensors[k].name));
    }
    if (hf->base.n_ignored > 0)
        zr_log_write(&hf->log, ZR_LOG_INFO, "%s of %s are ignored: they are not parameters",
                     zr_count_text(hf->base.n_ignored, "tensor").text, hf->names->what);
    return ZR_OK;
}

/* ---- the head ---------------------------------------------------------------------------- */

/* Compare a piece of the head's matrix with the embedding. */
static zr_status_t compare_piece(const hf_weights_t *hf, safetensors_place_t head,
                                 safetensors_place_t embedding, size_t first, size_t n,
                                 float *values) {
    float *others = values + WEIGHTS_PIECE_ELEMS;
    ZR_TRY(safetensors_set_read(&hf->set, head, first, n, values, &hf->log));
    ZR_TRY(safetensors_set_read(&hf->set, embedding, first, n, others, &hf->log));
    if (memcmp(values, others, n * sizeof(*values)) == 0)
        return ZR_OK;
    return zr_fail(&hf->log, ZR_ERR_FORMAT,
                   "%s: tensor \"" HF_HEAD_NAME "\" is not %s: this model has one matrix for both "
                   "(tie_word_embeddings is true)",
                   hf->set.files[head.file].file.path, embedding.tensor->name);
}

/* Files of a model with a tied head may have the head's matrix as well, if it is the embedding. */
static zr_status_t check_head(hf_weights_t *hf) {
    const zr_model_tensors_t *tensors = &hf->base.tensors;
    const zr_model_tensor_t *wanted = zr_model_tensors_find(tensors, hf->names->embedding);
    safetensors_place_t head = safetensors_set_find(&hf->set, HF_HEAD_NAME);
    if (head.tensor == NULL || zr_model_tensors_find(tensors, HF_HEAD_NAME) != NULL)
        return ZR_OK;
    ZR_TRY(check_tensor(hf, wanted, head));
    hf->base.origin.has_head = true;
    hf->base.origin.head_kind = head.tensor->type->kind;
    float *values = malloc(2 * WEIGHTS_PIECE_ELEMS * sizeof(*values));
    if (values == NULL)
        return zr_fail(&hf->log, ZR_ERR_MEMORY, "no memory to compare " HF_HEAD_NAME);
    zr_status_t status = ZR_OK;
    for (size_t done = 0; status == ZR_OK && done < wanted->n_elems; done += WEIGHTS_PIECE_ELEMS) {
        size_t rest = wanted->n_elems - done;
        size_t n = rest < WEIGHTS_PIECE_ELEMS ? rest : WEIGHTS_PIECE_ELEMS;
        status = compare_piece(hf, head, place_of(hf, wanted->name), done, n, values);
    }
    free(values);
    return status;
}

/* ---- as weights -------------------------------------------------------------------------- */

static zr_status_t read_piece(weights_t *weights, const zr_model_tensor_t *tensor, size_t first,
                              size_t n_elems, float *values) {
    hf_weights_t *hf = (hf_weights_t *)weights;
    safetensors_place_t place = place_of(hf, tensor->name);
    ZR_TRY(safetensors_set_read(&hf->set, place, first, n_elems, values, &hf->log));
    return weights_check_finite(values, n_elems, first, place.tensor->name,
                                hf->set.files[place.file].file.path, &hf->log);
}

static void destroy(weights_t *weights) {
    hf_weights_t *hf = (hf_weights_t *)weights;
    safetensors_set_close(&hf->set);
    weights_clear(weights);
    free(hf);
}

static const weights_backend_t backend = {.read = read_piece, .destroy = destroy};

static zr_status_t open_all(hf_weights_t *hf, const char *const *paths, size_t n_paths,
                            const zr_model_shape_t *model) {
    hf->base.folder = files_is_folder(paths[0]) ? strdup(paths[0]) : in_file_folder(paths[0]);
    if (hf->base.folder == NULL)
        return zr_fail(&hf->log, ZR_ERR_MEMORY, "no memory to open %s", paths[0]);
    ZR_TRY(open_set(paths, n_paths, &hf->log, &hf->set));
    ZR_TRY(find_shape(hf, paths[0], model));
    ZR_TRY(find_prefix(hf, paths[0]));
    ZR_TRY(check_parameters(hf, paths[0]));
    ZR_TRY(check_others(hf));
    ZR_TRY(check_head(hf));
    return carry_check(hf->base.folder, zr_model_shape_sizes(&hf->base.shape).vocab, &hf->log);
}

zr_status_t weights_open_hf(const char *const *paths, size_t n_paths, const zr_model_shape_t *model,
                            const zr_log_t *log, weights_t **weights_p) {
    hf_weights_t *hf = calloc(1, sizeof(*hf));
    if (hf == NULL)
        return zr_fail(log, ZR_ERR_MEMORY, "no memory to open %s", paths[0]);
    hf->base = (weights_t){.backend = &backend, .format = "safetensors"};
    hf->log = *log;
    hf->prefix = "";
    zr_status_t status = open_all(hf, paths, n_paths, model);
    if (status == ZR_OK)
        *weights_p = &hf->base;
    else
        destroy(&hf->base);
    return status;
}
