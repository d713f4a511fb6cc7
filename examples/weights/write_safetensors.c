/*
 * Tensors are written in the order of the model, each from its first element to its last, so a file
 * is one stream. Where they are cut into several files, a file ends before the tensor that it has
 * no room for; a tensor is never cut.
 */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "examples/common/files.h"
#include "examples/common/json.h"
#include "examples/weights/adapter.h"
#include "examples/weights/carry.h"
#include "examples/weights/hf_config.h"
#include "examples/weights/hf_names.h"
#include "examples/weights/in_file.h"
#include "examples/weights/out_file.h"
#include "examples/weights/pieces.h"
#include "examples/weights/safetensors.h"
#include "examples/weights/weights_hf.h"

typedef struct writing {
    pieces_t pieces;
    zr_log_t log;
    size_t n_tensors;              /* the model's, and a tied head's */
    safetensors_tensor_t *tensors; /* [n_tensors] all of them, in order */
    size_t *files;                 /* [n_tensors] which file each is in */
    size_t n_files;
    uint64_t n_bytes; /* of the files */
} writing_t;

/* ---- what will be where ------------------------------------------------------------------ */

static bool has_head(const weights_t *weights) {
    return weights->origin.kinds != NULL && weights->origin.has_head;
}

/* The parameter that is written as number `index`: a tied head's is the embedding. */
static const zr_model_tensor_t *source_of(const writing_t *w, size_t index) {
    const weights_t *weights = w->pieces.weights;
    const zr_model_tensors_t *tensors = &weights->tensors;
    return index < tensors->n
               ? &tensors->all[index]
               : zr_model_tensors_find(tensors, hf_names_of(&weights->shape)->embedding);
}

static element_kind_t kind_of(const writing_t *w, size_t index) {
    const weights_origin_t *origin = &w->pieces.weights->origin;
    if (!w->pieces.options->as_origin)
        return w->pieces.options->kind;
    if (origin->kinds == NULL)
        return ELEMENT_FP32;
    return index < w->pieces.weights->tensors.n ? origin->kinds[index] : origin->head_kind;
}

/* A model with a head has the prefix, unless its files came without. */
static const char *prefix_of(const writing_t *w, const char *name) {
    const weights_t *weights = w->pieces.weights;
    const char *prefix = hf_names_of(&weights->shape)->prefix;
    bool is_bare = prefix == NULL || strcmp(name, HF_HEAD_NAME) == 0 ||
                   (weights->origin.kinds != NULL && !weights->origin.has_prefix);
    return is_bare ? "" : prefix;
}

static zr_status_t describe(writing_t *w, size_t index) {
    const zr_model_tensor_t *tensor = source_of(w, index);
    const char *name = index < w->pieces.weights->tensors.n ? tensor->name : HF_HEAD_NAME;
    safetensors_tensor_t *out = &w->tensors[index];
    out->type = element_type_of(kind_of(w, index));
    out->n_dims = tensor->n_dims;
    memcpy(out->dims, tensor->dims, sizeof(tensor->dims));
    out->n_elems = tensor->n_elems;
    out->size_bytes = (uint64_t)tensor->n_elems * out->type->size_bytes;
    const char *prefix = prefix_of(w, name), *outer = "";
    if (w->pieces.weights->is_adapter) {
        const char *full = hf_names_of(&w->pieces.weights->shape)->prefix;
        outer = ADAPTER_PREFIX;
        prefix = full != NULL ? full : "";
    } else if (w->pieces.weights->origin.is_bare)
        name = hf_bare_name(hf_names_of(&w->pieces.weights->shape), name);
    if (asprintf(&out->name, "%s%s%s", outer, prefix, name) < 0) {
        out->name = NULL;
        return zr_fail(&w->log, ZR_ERR_MEMORY, "no memory for the names of tensors");
    }
    return ZR_OK;
}

/* A tensor that is larger than files are to be has one of its own. */
static void cut_into_files(writing_t *w) {
    uint64_t most = w->pieces.options->shard_bytes, n_bytes = 0;
    size_t file = 0;
    for (size_t i = 0; i < w->n_tensors; i++) {
        if (most > 0 && n_bytes > 0 && w->tensors[i].size_bytes > most - n_bytes) {
            file++;
            n_bytes = 0;
        }
        n_bytes += w->tensors[i].size_bytes < most ? w->tensors[i].size_bytes : most;
        w->files[i] = file;
    }
    w->n_files = file + 1;
}

static zr_status_t plan(writing_t *w) {
    w->tensors = calloc(w->n_tensors, sizeof(*w->tensors));
    w->files = calloc(w->n_tensors, sizeof(*w->files));
    if (w->tensors == NULL || w->files == NULL)
        return zr_fail(&w->log, ZR_ERR_MEMORY, "no memory for %s",
                       zr_count_text(w->n_tensors, "tensor").text);
    for (size_t i = 0; i < w->n_tensors; i++)
        ZR_TRY(describe(w, i));
    cut_into_files(w);
    if (w->n_files > SAFETENSORS_MAX_FILES)
        return zr_fail(&w->log, ZR_ERR_ARGUMENT,
                       "--shard-size %" PRIu64 " makes %zu files; at most %d are allowed: take a "
                       "larger size",
                       w->pieces.options->shard_bytes, w->n_files, SAFETENSORS_MAX_FILES);
    return ZR_OK;
}

/* ---- a file ------------------------------------------------------------------------------ */

typedef struct piece_to_file {
    out_file_t *file;
    size_t elem_bytes;
} piece_to_file_t;

static zr_status_t write_piece(void *context, const void *elements, size_t first, size_t n_elems) {
    (void)first;
    const piece_to_file_t *to = context;
    return out_file_write(to->file, elements, n_elems * to->elem_bytes);
}

static zr_status_t write_tensors(writing_t *w, size_t first, size_t n, const char *header,
                                 size_t n_header, out_file_t *file) {
    ZR_TRY(out_file_write(file, header, n_header));
    for (size_t i = first; i < first + n; i++) {
        piece_to_file_t to = {.file = file, .elem_bytes = w->tensors[i].type->size_bytes};
        w->pieces.kind = w->tensors[i].type->kind;
        ZR_TRY(pieces_of_tensor(&w->pieces, source_of(w, i), write_piece, &to));
    }
    return out_file_publish(file);
}

/* Tensors [first, first + n) as one file. */
static zr_status_t write_file(writing_t *w, const char *path, size_t first, size_t n) {
    zr_model_text_t model = zr_model_shape_text(&w->pieces.weights->shape);
    uint64_t size_bytes = 0;
    char *header;
    size_t n_header;
    ZR_TRY(safetensors_build(w->tensors + first, n, model.text, &w->log, &header, &n_header));
    for (size_t i = first; i < first + n; i++)
        size_bytes += w->tensors[i].size_bytes;
    out_file_t *file = NULL;
    zr_status_t status = out_file_create(path, n_header + size_bytes, &w->log, &file);
    ZR_THEN(status, write_tensors(w, first, n, header, n_header, file));
    out_file_destroy(&file);
    free(header);
    w->n_bytes += n_header + size_bytes;
    return status;
}

/* ---- a folder ---------------------------------------------------------------------------- */

typedef struct file_name {
    char text[96];
} file_name_t;

static file_name_t name_of_file(const writing_t *w, size_t file) {
    file_name_t name;
    snprintf(name.text, sizeof(name.text), "%s",
             w->pieces.weights->is_adapter ? ADAPTER_WEIGHTS_NAME : HF_WEIGHTS_NAME);
    if (w->n_files > 1)
        snprintf(name.text, sizeof(name.text), "model-%05zu-of-%05zu.safetensors", file + 1,
                 w->n_files);
    return name;
}

static zr_status_t write_bytes(const writing_t *w, const char *folder, const char *name,
                               const char *bytes, size_t n_bytes) {
    char *path = in_file_beside(folder, true, name);
    if (path == NULL)
        return zr_fail(&w->log, ZR_ERR_MEMORY, "no memory to write %s", name);
    zr_status_t status = out_file_bytes(path, bytes, n_bytes, &w->log);
    free(path);
    return status;
}

/* Take an object over, which may be NULL. */
static zr_status_t write_json(const writing_t *w, const char *folder, const char *name,
                              json_t *object) {
    size_t n_bytes = 0;
    char *text = hf_config_print(object, &n_bytes);
    json_decref(object);
    zr_status_t status = text != NULL ? write_bytes(w, folder, name, text, n_bytes)
                                      : zr_fail(&w->log, ZR_ERR_MEMORY, "no memory for %s", name);
    free(text);
    return status;
}

static zr_status_t write_index(const writing_t *w, const char *folder) {
    json_t *index = json_object(), *map = json_object();
    uint64_t n_bytes = 0;
    for (size_t i = 0; i < w->n_tensors; i++) {
        n_bytes += w->tensors[i].size_bytes;
        json_put(&map, w->tensors[i].name, json_string(name_of_file(w, w->files[i]).text));
    }
    JSON_PUT(&index, {"metadata", json_pack("{s:I}", "total_size", (json_int_t)n_bytes)},
             {"weight_map", map});
    return write_json(w, folder, HF_INDEX_NAME, index);
}

/* As it came, but for the dtype where that is another; made of the shape where none came. */
static zr_status_t write_config(const writing_t *w, const char *folder) {
    const weights_t *weights = w->pieces.weights;
    const weights_export_t *options = w->pieces.options;
    char *text;
    size_t n_bytes = 0;
    ZR_TRY(carry_read(weights->carrier, HF_CONFIG_NAME, &w->log, &text, &n_bytes));
    zr_status_t status = ZR_OK;
    if (text == NULL)
        status = hf_config_make(&weights->shape, kind_of(w, 0), &w->log, &text, &n_bytes);
    else if (!options->as_origin || weights->origin.kinds == NULL)
        status = hf_config_set_dtype(kind_of(w, 0), &w->log, &text, &n_bytes);
    ZR_THEN(status, write_bytes(w, folder, HF_CONFIG_NAME, text, n_bytes));
    free(text);
    return status;
}

static zr_status_t write_adapter_config(const writing_t *w, const char *folder) {
    char *text;
    size_t n_bytes = 0;
    ZR_TRY(adapter_config_make(w->pieces.weights, &w->log, &text, &n_bytes));
    zr_status_t status = write_bytes(w, folder, ADAPTER_CONFIG_NAME, text, n_bytes);
    free(text);
    return status;
}

static zr_status_t write_files(writing_t *w, const char *folder) {
    for (size_t first = 0, n; first < w->n_tensors; first += n) {
        for (n = 1; first + n < w->n_tensors && w->files[first + n] == w->files[first];)
            n++;
        char *path = in_file_beside(folder, true, name_of_file(w, w->files[first]).text);
        zr_status_t status = path != NULL ? write_file(w, path, first, n)
                                          : zr_fail(&w->log, ZR_ERR_MEMORY, "no memory for a name");
        free(path);
        ZR_TRY(status);
    }
    return ZR_OK;
}

static zr_status_t write_folder(writing_t *w) {
    out_folder_t *folder;
    ZR_TRY(out_folder_create(w->pieces.options->path, &w->log, &folder));
    const char *path = out_folder_path(folder);
    bool is_adapter = w->pieces.weights->is_adapter;
    zr_status_t status = is_adapter ? write_adapter_config(w, path) : write_config(w, path);
    if (status == ZR_OK && w->pieces.weights->carrier != NULL && !is_adapter)
        status = carry_export(w->pieces.weights->carrier, path, &w->log);
    ZR_THEN(status, write_files(w, path));
    if (status == ZR_OK && w->n_files > 1)
        status = write_index(w, path);
    ZR_THEN(status, out_folder_publish(folder));
    out_folder_destroy(&folder);
    return status;
}

/* ---- all --------------------------------------------------------------------------------- */

static zr_status_t write_all(writing_t *w) {
    const weights_export_t *options = w->pieces.options;
    bool one = files_name_ends(options->path, ".safetensors");
    if (one && options->shard_bytes > 0)
        return zr_fail(&w->log, ZR_ERR_ARGUMENT,
                       "--shard-size: -o %s names one file; name a folder for several, or leave "
                       "--shard-size out",
                       options->path);
    ZR_TRY(plan(w));
    return one ? write_file(w, options->path, 0, w->n_tensors) : write_folder(w);
}

/* Of what is written: a head that is there twice is of one dtype in most files, but need not. */
static const char *dtype_of(const writing_t *w) {
    for (size_t i = 1; i < w->n_tensors; i++)
        if (kind_of(w, i) != kind_of(w, 0))
            return "mixed";
    return element_kind_name(kind_of(w, 0));
}

zr_status_t weights_write_safetensors(weights_t *weights, const weights_export_t *options,
                                      const zr_log_t *log, weights_report_t *report_p) {
    writing_t w = {.log = *log, .n_tensors = weights->tensors.n + (has_head(weights) ? 1 : 0)};
    ZR_TRY(pieces_create(weights, options, log, &w.pieces));
    zr_status_t status = write_all(&w);
    if (status == ZR_OK)
        *report_p =
            (weights_report_t){.n_files = w.n_files, .n_bytes = w.n_bytes, .dtype = dtype_of(&w)};
    for (size_t i = 0; w.tensors != NULL && i < w.n_tensors; i++)
        free(w.tensors[i].name);
    free(w.tensors);
    free(w.files);
    pieces_free(&w.pieces);
    return status;
}
