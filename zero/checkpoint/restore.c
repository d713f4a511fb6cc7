/* Loading: see restore_internal.h. Which tensor a parameter's values are is found by name, once. */
#include "zero/checkpoint/restore_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "zero/runtime_internal.h"

zr_status_t zr_runtime_restore(zr_runtime_t *runtime, const zr_checkpoint_t *checkpoint) {
    if (runtime->committed)
        return zr_fail(&runtime->base.log, ZR_ERR_STATE, "zr_runtime_restore after commit");
    if (runtime->saves.carried.n_files > 0)
        return zr_fail(
            &runtime->base.log, ZR_ERR_STATE,
            "zr_runtime_restore after zr_runtime_carry: the checkpoint brings its own files");
    runtime->restore.checkpoint = checkpoint;
    return ZR_OK;
}

zr_status_t zr_runtime_link_frozen(zr_runtime_t *runtime) {
    if (runtime->committed)
        return zr_fail(&runtime->base.log, ZR_ERR_STATE, "zr_runtime_link_frozen after commit");
    runtime->base.links_frozen = true;
    return ZR_OK;
}

zr_status_t zr_runtime_carry(zr_runtime_t *runtime, const char *name, const void *bytes,
                             size_t n_bytes) {
    zr_base_t *base = &runtime->base;
    if (runtime->committed || runtime->restore.checkpoint != NULL)
        return zr_fail(&base->log, ZR_ERR_STATE, "zr_runtime_carry after %s",
                       runtime->committed ? "commit" : "zr_runtime_restore");
    if (base->rank != 0 || !zr_base_has_data(base))
        return ZR_OK;
    return zr_carried_add(&runtime->saves.carried, base->heap, name, bytes, n_bytes, &base->log);
}

/* ---- which tensor is whose ------------------------------------------------------------------- */

/* "[50257][768]" */
typedef struct shape_text {
    char text[96];
} shape_text_t;

static shape_text_t describe(int n_dims, const size_t *dims) {
    shape_text_t shape = {"[]"};
    size_t length = 0;
    for (int i = 0; i < n_dims; i++)
        length +=
            (size_t)snprintf(shape.text + length, sizeof(shape.text) - length, "[%zu]", dims[i]);
    return shape;
}

static bool has_shape(const zr_param_t *param, const zr_checkpoint_tensor_t *tensor) {
    return param->about->n_dims == tensor->n_dims &&
           memcmp(param->about->dims, tensor->dims,
                  (size_t)param->about->n_dims * sizeof(size_t)) == 0;
}

static bool trains(const zr_units_t *model) {
    for (size_t i = 0; i < model->n_params; i++)
        if (!model->params[i]->about->layout.frozen)
            return true;
    return false;
}

/* Parameters that were frozen and are not, or the other way round: the first, and how many. */
static void note_changes(const zr_checkpoint_t *checkpoint, const zr_units_t *model,
                         const zr_base_t *base, bool are_frozen, const char *what) {
    const char *first = NULL;
    size_t n = 0;
    for (size_t i = 0; i < model->n_params; i++) {
        const zr_param_t *param = model->params[i];
        if (param->is_new)
            continue;
        bool was_frozen = zr_checkpoint_tensor(checkpoint, param->tensor)->frozen;
        if (param->about->layout.frozen == was_frozen || param->about->layout.frozen != are_frozen)
            continue;
        first = n++ == 0 ? param->about->name : first;
    }
    if (n == 1)
        zr_log_write(&base->log, ZR_LOG_INFO, "\"%s\" %s", first, what);
    else if (n > 1)
        zr_log_write(&base->log, ZR_LOG_INFO, "each of %s, the first \"%s\", %s",
                     zr_count_text(n, "parameter").text, first, what);
}

static zr_status_t find_tensor(const zr_checkpoint_t *checkpoint, zr_param_t *param,
                               bool *is_taken) {
    const zr_base_t *base = param->unit->base;
    zr_checkpoint_info_t info;
    zr_checkpoint_info(checkpoint, &info);
    param->is_new = !zr_checkpoint_find(checkpoint, param->about->name, &param->tensor);
    if (param->is_new && param->may_be_new)
        return ZR_OK;
    if (param->is_new)
        return zr_fail(&base->log, ZR_ERR_ARGUMENT,
                       "checkpoint %s has no tensor \"%s\", which the model has: it belongs to a "
                       "different model",
                       info.path, param->about->name);
    const zr_checkpoint_tensor_t *tensor = zr_checkpoint_tensor(checkpoint, param->tensor);
    is_taken[param->tensor] = true;
    if (!has_shape(param, tensor))
        return zr_fail(&base->log, ZR_ERR_ARGUMENT,
                       "checkpoint %s has \"%s\" with shape %s, the model has shape %s: it belongs "
                       "to a different model",
                       info.path, param->about->name, describe(tensor->n_dims, tensor->dims).text,
                       describe(param->about->n_dims, param->about->dims).text);
    return ZR_OK;
}

static void note_new(const zr_units_t *model, const zr_base_t *base,
                     const zr_checkpoint_info_t *info) {
    const char *first = NULL;
    size_t n = 0;
    for (size_t i = 0; i < model->n_params; i++)
        if (model->params[i]->is_new)
            first = n++ == 0 ? model->params[i]->about->name : first;
    if (n > 0)
        zr_log_write(&base->log, ZR_LOG_INFO,
                     "checkpoint %s lacks %s, the first \"%s\": they start with initial values",
                     info->path, zr_count_text(n, "parameter").text, first);
}

static zr_status_t find_tensors(const zr_checkpoint_t *checkpoint, const zr_units_t *model,
                                const zr_base_t *base, const zr_checkpoint_info_t *info) {
    bool *is_taken = calloc(info->n_tensors + 1, sizeof(*is_taken));
    zr_status_t status = ZR_OK;
    if (is_taken == NULL)
        return zr_base_no_memory(base, zr_count_text(info->n_tensors, "tensor").text);
    for (size_t i = 0; i < model->n_params && status == ZR_OK; i++)
        status = find_tensor(checkpoint, model->params[i], is_taken);
    if (status == ZR_OK)
        note_new(model, base, info);
    for (size_t i = 0; i < info->n_tensors && status == ZR_OK; i++)
        if (!is_taken[i])
            status = zr_fail(&base->log, ZR_ERR_ARGUMENT,
                             "checkpoint %s has a tensor \"%s\", which the model does not have: it "
                             "belongs to a different model",
                             info->path, zr_checkpoint_tensor(checkpoint, i)->name);
    free(is_taken);
    return status;
}

/* ---- the optimizer --------------------------------------------------------------------------- */

/* A tensor with more than its master. */
static bool has_state(const zr_checkpoint_t *checkpoint, size_t n_tensors) {
    for (size_t i = 0; i < n_tensors; i++)
        if (zr_checkpoint_tensor(checkpoint, i)->has_moments)
            return true;
    return false;
}

/* What outer steps keep may be there or not: they begin anew. */
static bool has_arrays(const zr_checkpoint_t *checkpoint, const zr_update_rule_t *rule,
                       size_t n_arrays) {
    size_t n = rule->n_arrays < n_arrays ? rule->n_arrays : n_arrays;
    for (size_t i = 0; i < n; i++)
        if (strcmp(zr_checkpoint_array_name(checkpoint, i), rule->arrays[i].name) != 0)
            return false;
    for (size_t i = n; i < n_arrays; i++)
        if (strncmp(zr_checkpoint_array_name(checkpoint, i), "outer_", 6) != 0)
            return false;
    for (size_t i = n; i < rule->n_arrays; i++)
        if (strncmp(rule->arrays[i].name, "outer_", 6) != 0)
            return false;
    return true;
}

/* The first array that was kept in another way. */
static void note_encodings(const zr_checkpoint_t *checkpoint, const zr_base_t *base,
                           const zr_checkpoint_info_t *info) {
    const zr_update_rule_t rule = zr_config_rule(&base->config);
    for (size_t i = 1; i < rule.n_arrays && i < info->n_arrays; i++) {
        const zr_encoding_t *was = zr_checkpoint_array_encoding(checkpoint, i);
        if (was == rule.arrays[i].encoding)
            continue;
        zr_log_write(
            &base->log, ZR_LOG_INFO,
            "checkpoint %s stores \"%s\" of the optimizer in %s; this run uses %s (--state %s)",
            info->path, rule.arrays[i].name, was->name, rule.arrays[i].encoding->name,
            zr_state_form_name(rule.form));
        return;
    }
}

/* What another optimizer has gathered says nothing to this one. */
static zr_status_t check_optimizer(const zr_checkpoint_t *checkpoint, const zr_base_t *base,
                                   const zr_checkpoint_info_t *info) {
    const zr_optimizer_type_t *optimizer = zr_config_optimizer(&base->config);
    const zr_update_rule_t rule = zr_config_rule(&base->config);
    if (!has_state(checkpoint, info->n_tensors))
        return ZR_OK;
    if (strcmp(info->optimizer, optimizer->name) != 0)
        return zr_fail(&base->log, ZR_ERR_ARGUMENT,
                       "checkpoint %s has the state of optimizer \"%s\", and this run's is \"%s\": "
                       "use optimizer.type \"%s\" (--optimizer)",
                       info->path, info->optimizer, optimizer->name, info->optimizer);
    if (!has_arrays(checkpoint, &rule, info->n_arrays))
        return zr_fail(&base->log, ZR_ERR_ARGUMENT,
                       "checkpoint %s has the state of an optimizer \"%s\" with other arrays than "
                       "this run's",
                       info->path, info->optimizer);
    note_encodings(checkpoint, base, info);
    return ZR_OK;
}

static void note_messages(const zr_base_t *base, const zr_checkpoint_info_t *info) {
    zr_messages_text_t messages = zr_config_messages(&base->config);
    if (base->rank == 0 && strcmp(info->messages, messages.text) != 0)
        zr_log_write(&base->log, ZR_LOG_INFO,
                     "checkpoint %s was saved by a run with %s; this run has %s", info->path,
                     info->messages[0] != '\0' ? info->messages : "messages as they are",
                     messages.text[0] != '\0' ? messages.text : "messages as they are");
}

/* ---- reading --------------------------------------------------------------------------------- */

zr_status_t zr_restore_begin(zr_restore_t *restore, const zr_units_t *model, zr_base_t *base) {
    const zr_checkpoint_t *checkpoint = restore->checkpoint;
    zr_checkpoint_info_t info;
    if (checkpoint == NULL || !zr_base_has_data(base)) {
        restore->checkpoint = NULL;
        return ZR_OK;
    }
    zr_checkpoint_info(checkpoint, &info);
    ZR_TRY(find_tensors(checkpoint, model, base, &info));
    if (trains(model)) {          /* else nothing of the optimizer's is missed */
        if (info.n_updates > 0) { /* else none has state of the optimizer's */
            note_changes(checkpoint, model, base, false,
                         "was frozen and no longer is: its optimizer state begins at 0");
            note_changes(checkpoint, model, base, true,
                         "was trained and is frozen now: its optimizer state is dropped");
        }
        ZR_TRY(check_optimizer(checkpoint, base, &info));
    }
    note_messages(base, &info);
    ZR_TRY(zr_checkpoint_reader_create(checkpoint, &base->log, &restore->reader));
    base->progress.n_steps = info.step;
    base->progress.n_updates = info.n_updates;
    return ZR_OK;
}

bool zr_restore_has_array(const zr_restore_t *restore, size_t tensor, size_t array) {
    zr_checkpoint_info_t info;
    if (restore->checkpoint == NULL)
        return false;
    zr_checkpoint_info(restore->checkpoint, &info);
    return array == 0 || (array < info.n_arrays &&
                          zr_checkpoint_tensor(restore->checkpoint, tensor)->has_moments);
}

void zr_restore_end(zr_restore_t *restore) {
    zr_checkpoint_reader_destroy(&restore->reader);
    restore->checkpoint = NULL;
}
