/*
 * A checkpoint as the source of weights, and as their destination: the library gives and takes
 * tensors by name, in any pieces.
 */
#include "examples/weights/weights_checkpoint.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "examples/common/json.h"
#include "examples/common/model_json.h"
#include "examples/weights/carry.h"
#include "examples/weights/origin.h"

/* Of the trainer's object. */
#define MODEL_KEY "model"

/* ---- the shape --------------------------------------------------------------------------- */

static zr_status_t read_lora(const char *text, const zr_log_t *log, weights_t *weights) {
    weights->has_lora = text != NULL;
    return text == NULL || zr_lora_read(text, log, &weights->lora) == ZR_OK ? ZR_OK : ZR_ERR_FORMAT;
}

static zr_status_t read_shape(const zr_checkpoint_t *checkpoint, const zr_model_shape_t *model,
                              const char *path, const zr_log_t *log, weights_t *weights) {
    json_t *trainer = json_loads(zr_checkpoint_trainer_json(checkpoint), 0, NULL);
    const json_t *said = json_object_get(trainer, MODEL_KEY);
    zr_model_shape_t shape = {0};
    zr_status_t status = ZR_OK;
    if (said != NULL)
        status = model_from_json(said, path, log, &shape);
    else if (model != NULL)
        shape = *model;
    else
        status = zr_fail(log, ZR_ERR_FORMAT,
                         "%s: it does not describe its model; add --model NAME, its "
                         "sizes, or a config.json",
                         path);
    if (status == ZR_OK && model != NULL)
        status = weights_expect_shape(model, "--model", &shape, path, log);
    ZR_THEN(status,
            read_lora(json_string_value(json_object_get(trainer, ZR_LORA_KEY)), log, weights));
    json_decref(trainer);
    if (status == ZR_OK)
        weights->shape = shape;
    return status;
}

/* ---- reading ----------------------------------------------------------------------------- */

typedef struct checkpoint_weights {
    weights_t base;
    zr_log_t log;
    const zr_checkpoint_t *checkpoint;
    zr_checkpoint_reader_t *reader;
} checkpoint_weights_t;

static zr_status_t read_piece(weights_t *weights, const zr_model_tensor_t *tensor, size_t first,
                              size_t n_elems, float *values) {
    checkpoint_weights_t *w = (checkpoint_weights_t *)weights;
    size_t index;
    if (!zr_checkpoint_find(w->checkpoint, tensor->name, &index))
        return zr_fail(&w->log, ZR_ERR_STATE, "the checkpoint has no %s", tensor->name);
    return zr_checkpoint_read(w->reader, index, ZR_CHECKPOINT_VALUE, first, n_elems, values);
}

static void destroy(weights_t *weights) {
    checkpoint_weights_t *w = (checkpoint_weights_t *)weights;
    zr_checkpoint_reader_destroy(&w->reader);
    weights_clear(weights);
    free(w);
}

static const weights_backend_t backend = {.read = read_piece, .destroy = destroy};

static bool has_shape(const zr_checkpoint_tensor_t *found, const zr_model_tensor_t *wanted) {
    return found->n_dims == wanted->n_dims &&
           memcmp(found->dims, wanted->dims, (size_t)wanted->n_dims * sizeof(*found->dims)) == 0;
}

/* Its tensors are those of the model, in any order. Names are unique: as many as there should be,
   and each known, are all. */
static zr_status_t check_tensors(const checkpoint_weights_t *w, const zr_checkpoint_info_t *info) {
    zr_model_text_t model = zr_model_shape_text(&w->base.shape);
    for (size_t i = 0; i < info->n_tensors; i++) {
        const zr_checkpoint_tensor_t *found = zr_checkpoint_tensor(w->checkpoint, i);
        const zr_model_tensor_t *wanted = zr_model_tensors_find(&w->base.tensors, found->name);
        if (wanted == NULL)
            return zr_fail(&w->log, ZR_ERR_FORMAT,
                           "%s: tensor \"%s\" is not a part of a model with %s", info->path,
                           found->name, model.text);
        if (!has_shape(found, wanted))
            return zr_fail(&w->log, ZR_ERR_FORMAT,
                           "%s: tensor \"%s\" has another shape than in a model with %s",
                           info->path, found->name, model.text);
    }
    if (info->n_tensors != w->base.tensors.n)
        return zr_fail(&w->log, ZR_ERR_FORMAT, "%s: it has %s; a model with %s has %zu", info->path,
                       zr_count_text(info->n_tensors, "tensor").text, model.text,
                       w->base.tensors.n);
    return ZR_OK;
}

/* How the files had the weights that were imported. */
static zr_status_t read_origin(checkpoint_weights_t *w) {
    char *text;
    size_t n_bytes = 0;
    ZR_TRY(carry_read(w->checkpoint, ORIGIN_NAME, &w->log, &text, &n_bytes));
    zr_status_t status =
        text != NULL
            ? origin_parse(text, n_bytes, ORIGIN_NAME " of the checkpoint", &w->log, &w->base)
            : ZR_OK;
    free(text);
    return status;
}

static zr_status_t open_all(checkpoint_weights_t *w, const zr_checkpoint_info_t *info,
                            const zr_model_shape_t *model) {
    ZR_TRY(read_shape(w->checkpoint, model, info->path, &w->log, &w->base));
    ZR_TRY(weights_list_tensors(&w->base, &w->log));
    ZR_TRY(check_tensors(w, info));
    ZR_TRY(read_origin(w));
    return zr_checkpoint_reader_create(w->checkpoint, &w->log, &w->reader);
}

zr_status_t weights_of_checkpoint(const zr_checkpoint_t *checkpoint, const zr_model_shape_t *model,
                                  const zr_log_t *log, weights_t **weights_p) {
    zr_checkpoint_info_t info;
    zr_checkpoint_info(checkpoint, &info);
    checkpoint_weights_t *w = calloc(1, sizeof(*w));
    if (w == NULL)
        return zr_fail(log, ZR_ERR_MEMORY, "no memory to read %s", info.path);
    *w = (checkpoint_weights_t){.base = {.backend = &backend,
                                         .format = "checkpoint",
                                         .dtype = "fp32",
                                         .carrier = checkpoint},
                                .log = *log,
                                .checkpoint = checkpoint};
    zr_status_t status = open_all(w, &info, model);
    if (status == ZR_OK)
        *weights_p = &w->base;
    else
        destroy(&w->base);
    return status;
}

/* ---- writing ----------------------------------------------------------------------------- */

/* A tensor while the writer asks for its values, which it cannot be refused. */
typedef struct filling {
    weights_t *weights;
    const weights_import_t *options;
    const zr_model_tensor_t *tensor;
    uint64_t n_done; /* elements */
    zr_status_t status;
} filling_t;

static void fill(void *context, size_t first, size_t n_elems, float *values) {
    filling_t *filling = context;
    if (filling->status == ZR_OK)
        filling->status = weights_read(filling->weights, filling->tensor, first, n_elems, values);
    if (filling->status != ZR_OK)
        memset(values, 0, n_elems * sizeof(*values));
    filling->n_done += n_elems;
    if (filling->options->progress != NULL)
        filling->options->progress(filling->options->context, filling->n_done);
}

static zr_status_t add_tensors(weights_t *weights, const weights_import_t *options,
                               zr_checkpoint_writer_t *writer) {
    filling_t filling = {.weights = weights, .options = options};
    for (size_t i = 0; i < weights->tensors.n; i++) {
        filling.tensor = &weights->tensors.all[i];
        zr_param_desc_t desc = {.name = filling.tensor->name,
                                .n_dims = filling.tensor->n_dims,
                                .frozen =
                                    weights->has_lora && !zr_lora_is_factor(filling.tensor->name),
                                .fill = fill,
                                .fill_context = &filling};
        memcpy(desc.dims, filling.tensor->dims, sizeof(filling.tensor->dims));
        ZR_TRY(zr_checkpoint_writer_add(writer, &desc));
        ZR_TRY(filling.status);
    }
    return ZR_OK;
}

static zr_status_t add_files(const weights_t *weights, zr_checkpoint_writer_t *writer,
                             const zr_log_t *log) {
    char *text;
    if (weights->origin.kinds == NULL)
        return ZR_OK;
    ZR_TRY(origin_print(weights, log, &text));
    zr_status_t status = zr_checkpoint_writer_carry(writer, ORIGIN_NAME, text, strlen(text));
    free(text);
    if (status == ZR_OK && weights->folder != NULL)
        status = carry_import(weights->folder, writer, log);
    return status;
}

/* What --resume takes is the newest: a run's own would hide what is imported. */
static zr_status_t check_folder(const char *folder, const zr_log_t *log, bool *is_there_p) {
    zr_checkpoint_entry_t *entries = NULL;
    size_t n_entries = 0;
    *is_there_p = access(folder, F_OK) == 0;
    if (!*is_there_p)
        return ZR_OK;
    ZR_TRY(zr_checkpoint_list(folder, log, &entries, &n_entries));
    zr_status_t status = ZR_OK;
    for (size_t i = 0; status == ZR_OK && i < n_entries; i++)
        if (entries[i].is_complete)
            status = zr_fail(log, ZR_ERR_ARGUMENT,
                             "--checkpoint-dir %s: %s exists in it, and zero-train --resume uses "
                             "the newest; name a folder without checkpoints",
                             folder, entries[i].name);
    free(entries);
    return status;
}

static char *trainer_text(const weights_t *weights) {
    json_t *trainer = json_object();
    json_put(&trainer, MODEL_KEY, model_json(&weights->shape));
    if (weights->has_lora)
        json_put(&trainer, ZR_LORA_KEY, json_string(zr_lora_text(&weights->lora).text));
    char *text = json_dumps(trainer, JSON_COMPACT);
    json_decref(trainer);
    return text;
}

zr_status_t weights_write_checkpoint(weights_t *weights, const weights_import_t *options,
                                     const zr_log_t *log) {
    bool was_there = false;
    ZR_TRY(check_folder(options->folder, log, &was_there));
    char *trainer = trainer_text(weights);
    if (trainer == NULL)
        return zr_fail(log, ZR_ERR_MEMORY, "no memory to write a checkpoint");
    zr_save_options_t save = {
        .folder = options->folder, .trainer_json = trainer, .secret = options->secret};
    zr_checkpoint_writer_t *writer = NULL;
    zr_status_t status = zr_checkpoint_writer_create(&save, log, &writer);
    ZR_THEN(status, add_tensors(weights, options, writer));
    ZR_THEN(status, add_files(weights, writer, log));
    ZR_THEN(status, zr_checkpoint_writer_publish(writer));
    zr_checkpoint_writer_destroy(&writer);
    free(trainer);
    if (status != ZR_OK && !was_there)
        (void)rmdir(options->folder); /* it was made for this one, which has left nothing in it */
    return status;
}
