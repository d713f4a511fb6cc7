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
#include "examples/weights/safetensors_set.h"
#include "examples/weights/shape.h"
#include "models/shape.h"

#define PREFIX "transformer."
#define OUTPUT_NAME "lm_head.weight"
#define MAX_CONFIG_BYTES ((uint64_t)1 << 20)
#define NAME_BYTES 128

typedef struct hf_weights {
    weights_t base;
    zr_log_t log;
    safetensors_set_t set;
    const char *prefix; /* "" or PREFIX */
} hf_weights_t;

typedef struct full_name {
    char text[NAME_BYTES];
} full_name_t;

static full_name_t name_in_file(const hf_weights_t *hf, const char *name) {
    full_name_t full;
    snprintf(full.text, sizeof(full.text), "%s%s", hf->prefix, name);
    return full;
}

/* ---- the files --------------------------------------------------------------------------- */

/* One of the two names that a model's folder has. */
static zr_status_t open_folder(const char *path, const zr_log_t *log, safetensors_set_t *set) {
    char *file = in_file_beside(path, true, HF_WEIGHTS_NAME);
    char *index = in_file_beside(path, true, HF_INDEX_NAME);
    zr_status_t status;
    if (file == NULL || index == NULL)
        status = zr_fail(log, ZR_ERR_MEMORY, "no memory to open %s", path);
    else if (access(file, F_OK) == 0 && access(index, F_OK) == 0)
        status = zr_fail(log, ZR_ERR_ARGUMENT,
                         "%s has both " HF_WEIGHTS_NAME " and " HF_INDEX_NAME "; name the one that "
                         "is meant",
                         path);
    else if (access(file, F_OK) == 0)
        status = safetensors_set_open((const char *const *)&file, 1, log, set);
    else if (access(index, F_OK) == 0)
        status = safetensors_set_open_index(index, log, set);
    else
        status = zr_fail(log, ZR_ERR_ARGUMENT,
                         "%s has neither " HF_WEIGHTS_NAME " nor " HF_INDEX_NAME
                         "; name the files, or save the model as safetensors",
                         path);
    free(file);
    free(index);
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
    zr_gpt_shape_t shape;
    char where[256];
    const zr_log_t *log;
} finding_t;

static zr_status_t find(finding_t *finding, const zr_gpt_shape_t *shape, const char *where) {
    if (finding->found && !shapes_are_equal(&finding->shape, shape))
        return zr_fail(finding->log, ZR_ERR_FORMAT, "%s says %s, and %s says %s", finding->where,
                       shape_text(&finding->shape).text, where, shape_text(shape).text);
    finding->found = true;
    finding->shape = *shape;
    snprintf(finding->where, sizeof(finding->where), "%s", where);
    return ZR_OK;
}

static zr_status_t find_in_config(finding_t *finding, const char *path) {
    char *text;
    size_t n_bytes;
    zr_model_shape_t shape;
    ZR_TRY(in_file_text(path, MAX_CONFIG_BYTES, finding->log, &text, &n_bytes));
    zr_status_t status = zr_model_shape_read_config(text, n_bytes, path, finding->log, &shape);
    free(text);
    ZR_TRY(status);
    if (shape.kind != ZR_MODEL_GPT)
        return zr_fail(finding->log, ZR_ERR_FORMAT,
                       "%s: it is of a %s; only weights of gpt2 are read", path,
                       zr_model_kind_name(shape.kind));
    return find(finding, &shape.of.gpt, path);
}

static zr_status_t find_beside(finding_t *finding, const char *path) {
    char *config = in_file_beside(path, files_is_folder(path), HF_CONFIG_NAME);
    if (config == NULL)
        return zr_fail(finding->log, ZR_ERR_MEMORY, "no memory to open %s", path);
    bool is_there = access(config, F_OK) == 0 || errno != ENOENT;
    zr_status_t status = is_there ? find_in_config(finding, config) : ZR_OK;
    free(config);
    return status;
}

static zr_status_t find_in_headers(finding_t *finding, const safetensors_set_t *set) {
    for (size_t i = 0; i < set->n_files; i++) {
        zr_gpt_shape_t shape;
        char error[512];
        const char *model = set->files[i].header.model, *path = set->files[i].file.path;
        if (model == NULL)
            continue;
        if (!zr_gpt_shape_parse(model, &shape, error, sizeof(error)))
            return zr_fail(finding->log, ZR_ERR_FORMAT,
                           "%s: __metadata__: " SAFETENSORS_MODEL_KEY ": %s", path, error);
        ZR_TRY(find(finding, &shape, path));
    }
    return ZR_OK;
}

/* What the tensors say, for a message: only how many heads there are cannot be seen. */
static zr_status_t refuse_without_shape(const hf_weights_t *hf, const char *path) {
    safetensors_place_t wte = safetensors_set_find(&hf->set, name_in_file(hf, "wte.weight").text);
    safetensors_place_t wpe = safetensors_set_find(&hf->set, name_in_file(hf, "wpe.weight").text);
    size_t n_layers = 0;
    for (char name[64]; n_layers < SIZE_MAX; n_layers++) {
        snprintf(name, sizeof(name), "h.%zu.ln_1.weight", n_layers);
        if (safetensors_set_find(&hf->set, name_in_file(hf, name).text).tensor == NULL)
            break;
    }
    bool known = wte.tensor != NULL && wte.tensor->n_dims == 2 && wpe.tensor != NULL &&
                 wpe.tensor->n_dims == 2;
    if (!known)
        return zr_fail(&hf->log, ZR_ERR_FORMAT,
                       "%s: there are no matrices wte.weight and wpe.weight: this is no GPT-2",
                       path);
    return zr_fail(&hf->log, ZR_ERR_FORMAT,
                   "%s: there is no " HF_CONFIG_NAME " beside it, so nothing says how many heads "
                   "the model has; add --model layers=%zu,channels=%zu,heads=N,seq=%zu,vocab=%zu",
                   path, n_layers, wte.tensor->dims[1], wpe.tensor->dims[0], wte.tensor->dims[0]);
}

static zr_status_t find_shape(hf_weights_t *hf, const char *path, const zr_gpt_shape_t *model) {
    finding_t finding = {.log = &hf->log};
    if (model != NULL)
        ZR_TRY(find(&finding, model, "--model"));
    ZR_TRY(find_in_headers(&finding, &hf->set));
    ZR_TRY(find_beside(&finding, path));
    if (!finding.found)
        return refuse_without_shape(hf, path);
    hf->base.shape = finding.shape;
    return ZR_OK;
}

/* ---- the tensors ------------------------------------------------------------------------- */

static zr_status_t find_prefix(hf_weights_t *hf, const char *path) {
    bool bare = safetensors_set_find(&hf->set, "wte.weight").tensor != NULL;
    bool prefixed = safetensors_set_find(&hf->set, PREFIX "wte.weight").tensor != NULL;
    if (bare == prefixed)
        return zr_fail(&hf->log, ZR_ERR_FORMAT,
                       "%s: it has %s wte.weight and " PREFIX
                       "wte.weight; the weights of one GPT-2 "
                       "have one of them",
                       path, bare ? "both" : "neither");
    hf->prefix = prefixed ? PREFIX : "";
    return ZR_OK;
}

static bool has_shape(const safetensors_tensor_t *tensor, const zr_gpt_tensor_t *wanted) {
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

static zr_status_t check_tensor(const hf_weights_t *hf, const zr_gpt_tensor_t *wanted,
                                safetensors_place_t place) {
    const safetensors_tensor_t *tensor = place.tensor;
    const char *path = hf->set.files[place.file].file.path;
    if (!has_shape(tensor, wanted))
        return zr_fail(&hf->log, ZR_ERR_FORMAT,
                       "%s: tensor \"%s\" has the shape %s; in a model with %s it has %s", path,
                       tensor->name, dims_text(tensor->dims, tensor->n_dims).text,
                       shape_text(&hf->base.shape).text,
                       dims_text(wanted->dims, wanted->n_dims).text);
    if (tensor->type->kind == ELEMENT_OTHER)
        return zr_fail(&hf->log, ZR_ERR_FORMAT,
                       "%s: tensor \"%s\" is of dtype %s; F32, BF16 and F16 are read", path,
                       tensor->name, tensor->type->name);
    return ZR_OK;
}

/* Every parameter is there, and what they are of. */
static zr_status_t check_parameters(hf_weights_t *hf, const char *path) {
    static const char *const names[] = {"fp32", "bf16", "fp16"};
    size_t n_missing = 0, n = zr_gpt_n_tensors(&hf->base.shape);
    full_name_t missing = {""};
    for (size_t i = 0; i < n; i++) {
        zr_gpt_tensor_t wanted = zr_gpt_tensor_at(&hf->base.shape, i);
        full_name_t name = name_in_file(hf, wanted.name);
        safetensors_place_t place = safetensors_set_find(&hf->set, name.text);
        if (place.tensor == NULL) {
            missing = n_missing++ == 0 ? name : missing;
            continue;
        }
        ZR_TRY(check_tensor(hf, &wanted, place));
        const char *dtype = names[place.tensor->type->kind];
        hf->base.dtype = hf->base.dtype == NULL || hf->base.dtype == dtype ? dtype : "mixed";
    }
    if (n_missing > 0)
        return zr_fail(&hf->log, ZR_ERR_FORMAT,
                       "%s: %zu of the %s of a model with %s are missing, \"%s\" %s", path,
                       n_missing, zr_count_text(n, "tensor").text, shape_text(&hf->base.shape).text,
                       missing.text, n_missing == 1 ? "alone" : "first");
    return ZR_OK;
}

/* Which tokens a token sees, as a triangle of ones, and a large negative number. */
static bool is_buffer(const hf_weights_t *hf, const char *name) {
    size_t layer;
    const char *rest;
    return zr_gpt_split_layer(name, hf->base.shape.n_layers, &layer, &rest) &&
           (strcmp(rest, "attn.bias") == 0 || strcmp(rest, "attn.masked_bias") == 0);
}

/* A tensor of a file that is no parameter. */
static zr_status_t pass_over(hf_weights_t *hf, const char *path, const char *name) {
    size_t n_prefix = strlen(hf->prefix);
    bool has_prefix = strncmp(name, hf->prefix, n_prefix) == 0;
    if (has_prefix && is_buffer(hf, name + n_prefix)) {
        hf->base.n_ignored++;
        return ZR_OK;
    }
    return zr_fail(&hf->log, ZR_ERR_FORMAT,
                   "%s: tensor \"%s\" is no part of a GPT with %s; remove it, or name the right "
                   "model",
                   path, name, shape_text(&hf->base.shape).text);
}

static zr_status_t check_others(hf_weights_t *hf) {
    for (size_t i = 0; i < hf->set.n_files; i++) {
        const safetensors_header_t *header = &hf->set.files[i].header;
        for (size_t k = 0; k < header->n_tensors; k++) {
            zr_gpt_tensor_t found;
            const char *name = header->tensors[k].name;
            size_t n_prefix = strlen(hf->prefix);
            bool known = strcmp(name, OUTPUT_NAME) == 0 ||
                         (strncmp(name, hf->prefix, n_prefix) == 0 &&
                          zr_gpt_tensor_find(&hf->base.shape, name + n_prefix, &found));
            if (!known)
                ZR_TRY(pass_over(hf, hf->set.files[i].file.path, name));
        }
    }
    if (hf->base.n_ignored > 0)
        zr_log_write(&hf->log, ZR_LOG_INFO,
                     "%s of attention's mask (attn.bias, attn.masked_bias) are not read: "
                     "they are no parameters",
                     zr_count_text(hf->base.n_ignored, "tensor").text);
    return ZR_OK;
}

/* ---- the output -------------------------------------------------------------------------- */

/* Compare a piece of the output's matrix with the embedding. */
static zr_status_t compare_piece(const hf_weights_t *hf, safetensors_place_t output,
                                 safetensors_place_t wte, size_t first, size_t n, float *values) {
    float *others = values + WEIGHTS_PIECE_ELEMS;
    ZR_TRY(safetensors_set_read(&hf->set, output, first, n, values, &hf->log));
    ZR_TRY(safetensors_set_read(&hf->set, wte, first, n, others, &hf->log));
    if (memcmp(values, others, n * sizeof(*values)) == 0)
        return ZR_OK;
    return zr_fail(&hf->log, ZR_ERR_FORMAT,
                   "%s: " OUTPUT_NAME " is not "
                   "wte.weight: this GPT has one matrix for both",
                   hf->set.files[output.file].file.path);
}

/* A file may have the output's matrix as well, if it is the embedding. */
static zr_status_t check_output(const hf_weights_t *hf) {
    safetensors_place_t output = safetensors_set_find(&hf->set, OUTPUT_NAME);
    safetensors_place_t wte = safetensors_set_find(&hf->set, name_in_file(hf, "wte.weight").text);
    if (output.tensor == NULL)
        return ZR_OK;
    zr_gpt_tensor_t wanted = zr_gpt_tensor(&hf->base.shape, ZR_GPT_WTE, 0);
    ZR_TRY(check_tensor(hf, &wanted, output));
    float *values = malloc(2 * WEIGHTS_PIECE_ELEMS * sizeof(*values));
    if (values == NULL)
        return zr_fail(&hf->log, ZR_ERR_MEMORY, "no memory to compare " OUTPUT_NAME);
    zr_status_t status = ZR_OK;
    for (size_t done = 0; status == ZR_OK && done < wanted.n_elems; done += WEIGHTS_PIECE_ELEMS) {
        size_t rest = wanted.n_elems - done;
        size_t n = rest < WEIGHTS_PIECE_ELEMS ? rest : WEIGHTS_PIECE_ELEMS;
        status = compare_piece(hf, output, wte, done, n, values);
    }
    free(values);
    return status;
}

/* ---- as weights -------------------------------------------------------------------------- */

static zr_status_t read_piece(weights_t *weights, const zr_gpt_tensor_t *tensor, size_t first,
                              size_t n_elems, float *values) {
    hf_weights_t *hf = (hf_weights_t *)weights;
    safetensors_place_t place = safetensors_set_find(&hf->set, name_in_file(hf, tensor->name).text);
    return safetensors_set_read(&hf->set, place, first, n_elems, values, &hf->log);
}

static void destroy(weights_t *weights) {
    hf_weights_t *hf = (hf_weights_t *)weights;
    safetensors_set_close(&hf->set);
    free(hf);
}

static const weights_backend_t backend = {.read = read_piece, .destroy = destroy};

static zr_status_t open_all(hf_weights_t *hf, const char *const *paths, size_t n_paths,
                            const zr_gpt_shape_t *model) {
    ZR_TRY(open_set(paths, n_paths, &hf->log, &hf->set));
    ZR_TRY(find_prefix(hf, paths[0]));
    ZR_TRY(find_shape(hf, paths[0], model));
    ZR_TRY(check_parameters(hf, paths[0]));
    ZR_TRY(check_others(hf));
    return check_output(hf);
}

zr_status_t weights_open_hf(const char *const *paths, size_t n_paths, const zr_gpt_shape_t *model,
                            const zr_log_t *log, weights_t **weights_p) {
    hf_weights_t *hf = calloc(1, sizeof(*hf));
    if (hf == NULL)
        return zr_fail(log, ZR_ERR_MEMORY, "no memory to open %s", paths[0]);
    hf->base = (weights_t){.backend = &backend, .format = "safetensors"};
    hf->log = *log;
    zr_status_t status = open_all(hf, paths, n_paths, model);
    if (status == ZR_OK)
        *weights_p = &hf->base;
    else
        destroy(&hf->base);
    return status;
}
