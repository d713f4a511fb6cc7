/*
 * A checkpoint as the source of weights, and as their destination: the library gives and takes
 * tensors by name, in any pieces.
 */
#include "examples/weights/weights_checkpoint.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "examples/common/json.h"
#include "examples/common/gpt_json.h"
#include "examples/weights/shape.h"

#define MODEL_KEY "model" /* of the trainer's object */

/* ---- the shape --------------------------------------------------------------------------- */

static zr_status_t read_shape(const zr_checkpoint_t *checkpoint, const zr_gpt_shape_t *model,
                              const char *path, const zr_log_t *log, zr_gpt_shape_t *shape_p) {
    json_t *trainer = json_loads(zr_checkpoint_trainer_json(checkpoint), 0, NULL);
    const json_t *said = json_object_get(trainer, MODEL_KEY);
    zr_gpt_shape_t shape = {0};
    zr_status_t status = ZR_OK;
    if (said != NULL)
        status = shape_from_json(said, path, log, &shape);
    else if (model != NULL)
        shape = *model;
    else
        status = zr_fail(log, ZR_ERR_FORMAT,
                         "%s: its trainer has not said what model it is of; add --model "
                         "layers=..,channels=..,heads=..,seq=..,vocab=..",
                         path);
    if (status == ZR_OK && model != NULL && !shapes_are_equal(model, &shape))
        status = zr_fail(log, ZR_ERR_FORMAT, "--model says %s, and %s says %s",
                         shape_text(model).text, path, shape_text(&shape).text);
    json_decref(trainer);
    if (status == ZR_OK)
        *shape_p = shape;
    return status;
}

/* ---- reading ----------------------------------------------------------------------------- */

typedef struct checkpoint_weights {
    weights_t base;
    zr_log_t log;
    const zr_checkpoint_t *checkpoint;
    zr_checkpoint_reader_t *reader;
} checkpoint_weights_t;

static zr_status_t read_piece(weights_t *weights, const zr_gpt_tensor_t *tensor, size_t first,
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
    free(w);
}

static const weights_backend_t backend = {.read = read_piece, .destroy = destroy};

static bool has_shape(const zr_checkpoint_tensor_t *found, const zr_gpt_tensor_t *wanted) {
    return found->n_dims == wanted->n_dims && found->dims[0] == wanted->dims[0] &&
           (wanted->n_dims == 1 || found->dims[1] == wanted->dims[1]);
}

/* Its tensors are those of the model, in any order. Names are unique: as many as there should be,
   and each known, are all. */
static zr_status_t check_tensors(const checkpoint_weights_t *w, const zr_checkpoint_info_t *info) {
    const zr_gpt_shape_t *shape = &w->base.shape;
    for (size_t i = 0; i < info->n_tensors; i++) {
        const zr_checkpoint_tensor_t *found = zr_checkpoint_tensor(w->checkpoint, i);
        zr_gpt_tensor_t wanted;
        if (!zr_gpt_tensor_find(shape, found->name, &wanted))
            return zr_fail(&w->log, ZR_ERR_FORMAT, "%s: tensor \"%s\" is no part of a GPT with %s",
                           info->path, found->name, shape_text(shape).text);
        if (!has_shape(found, &wanted))
            return zr_fail(&w->log, ZR_ERR_FORMAT,
                           "%s: tensor \"%s\" has another shape than in a GPT with %s", info->path,
                           found->name, shape_text(shape).text);
    }
    if (info->n_tensors != zr_gpt_n_tensors(shape))
        return zr_fail(&w->log, ZR_ERR_FORMAT, "%s: it has %s; a GPT with %s has %zu", info->path,
                       zr_count_text(info->n_tensors, "tensor").text, shape_text(shape).text,
                       zr_gpt_n_tensors(shape));
    return ZR_OK;
}

zr_status_t weights_of_checkpoint(const zr_checkpoint_t *checkpoint, const zr_gpt_shape_t *model,
                                  const zr_log_t *log, weights_t **weights_p) {
    zr_checkpoint_info_t info;
    zr_checkpoint_info(checkpoint, &info);
    checkpoint_weights_t *w = calloc(1, sizeof(*w));
    if (w == NULL)
        return zr_fail(log, ZR_ERR_MEMORY, "no memory to read %s", info.path);
    *w = (checkpoint_weights_t){
        .base = {.backend = &backend, .format = "checkpoint", .dtype = "fp32"},
        .log = *log,
        .checkpoint = checkpoint};
    zr_status_t status = read_shape(checkpoint, model, info.path, log, &w->base.shape);
    ZR_THEN(status, check_tensors(w, &info));
    ZR_THEN(status, zr_checkpoint_reader_create(checkpoint, log, &w->reader));
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
    zr_gpt_tensor_t tensor;
    uint64_t n_done; /* elements */
    zr_status_t status;
} filling_t;

static void fill(void *context, size_t first, size_t n_elems, float *values) {
    filling_t *filling = context;
    if (filling->status == ZR_OK)
        filling->status = weights_read(filling->weights, &filling->tensor, first, n_elems, values);
    if (filling->status != ZR_OK)
        memset(values, 0, n_elems * sizeof(*values));
    filling->n_done += n_elems;
    if (filling->options->progress != NULL)
        filling->options->progress(filling->options->context, filling->n_done);
}

static zr_status_t add_tensors(weights_t *weights, const weights_import_t *options,
                               zr_checkpoint_writer_t *writer) {
    filling_t filling = {.weights = weights, .options = options};
    for (size_t i = 0; i < zr_gpt_n_tensors(&weights->shape); i++) {
        filling.tensor = zr_gpt_tensor_at(&weights->shape, i);
        zr_param_desc_t desc = {.name = filling.tensor.name,
                                .n_dims = filling.tensor.n_dims,
                                .dims = {filling.tensor.dims[0], filling.tensor.dims[1]},
                                .fill = fill,
                                .fill_context = &filling};
        ZR_TRY(zr_checkpoint_writer_add(writer, &desc));
        ZR_TRY(filling.status);
    }
    return zr_checkpoint_writer_publish(writer);
}

/* What --resume takes is the newest: a run's own would hide what is imported. */
static zr_status_t check_folder(const char *folder, const zr_log_t *log) {
    zr_checkpoint_entry_t *entries = NULL;
    size_t n_entries = 0;
    FILE *probe = fopen(folder, "rb");
    if (probe == NULL) /* not there yet */
        return ZR_OK;
    fclose(probe);
    ZR_TRY(zr_checkpoint_list(folder, log, &entries, &n_entries));
    zr_status_t status = ZR_OK;
    for (size_t i = 0; status == ZR_OK && i < n_entries; i++)
        if (entries[i].is_complete)
            status = zr_fail(log, ZR_ERR_ARGUMENT,
                             "--checkpoint-dir %s: %s is in it, and zero-train --resume takes the "
                             "newest; name a folder without checkpoints",
                             folder, entries[i].name);
    free(entries);
    return status;
}

static char *trainer_text(const zr_gpt_shape_t *shape) {
    json_t *trainer = json_object();
    json_put(&trainer, MODEL_KEY, gpt_shape_json(shape));
    char *text = json_dumps(trainer, JSON_COMPACT);
    json_decref(trainer);
    return text;
}

zr_status_t weights_write_checkpoint(weights_t *weights, const weights_import_t *options,
                                     const zr_log_t *log) {
    ZR_TRY(check_folder(options->folder, log));
    char *trainer = trainer_text(&weights->shape);
    if (trainer == NULL)
        return zr_fail(log, ZR_ERR_MEMORY, "no memory to write a checkpoint");
    zr_save_options_t save = {.folder = options->folder, .trainer_json = trainer};
    zr_checkpoint_writer_t *writer = NULL;
    zr_status_t status = zr_checkpoint_writer_create(&save, log, &writer);
    ZR_THEN(status, add_tensors(weights, options, writer));
    zr_checkpoint_writer_destroy(&writer);
    free(trainer);
    return status;
}
