/*
 * The parameters of a model, from its own blocks: they are declared on a simulated runtime that is
 * not committed, so there is no second table of them.
 */
#include <stdlib.h>
#include <string.h>

#include "models/shape.h"

/* A rank that nothing is stored on. */
typedef struct declared {
    zr_device_t *device;
    zr_comm_t *comm;
    zr_runtime_t *runtime;
    zr_model_t *model;
} declared_t;

static void undo(declared_t *d) {
    zr_model_destroy(&d->model);
    zr_runtime_destroy(&d->runtime);
    zr_comm_destroy(&d->comm);
    zr_device_close(&d->device);
}

static zr_status_t declare(const zr_model_shape_t *shape, const zr_part_adapter_t *adapter,
                           const zr_log_t *log, declared_t *d) {
    zr_device_options_t device_options = zr_device_options_default();
    zr_comm_options_t comm_options = zr_comm_options_default();
    zr_hardware_t hardware = zr_hardware_default();
    zr_config_t config = zr_config_default();
    const zr_transformer_options_t options = {.adapter = adapter};
    device_options.log = comm_options.log = *log;
    device_options.hardware = &hardware;
    ZR_TRY(zr_config_resolve(&config, 1, log));
    ZR_TRY(zr_device_open("sim", &device_options, &d->device));
    ZR_TRY(zr_comm_create_sim(0, 1, &comm_options, &d->comm));
    ZR_TRY(zr_runtime_create(&config, d->comm, d->device, log, &d->runtime));
    return zr_model_shape_create(d->runtime, shape, &options, NULL, &d->model);
}

static char *copy_text(const char *text, char **to) {
    char *copy = *to;
    size_t n = strlen(text) + 1;
    memcpy(copy, text, n);
    *to += n;
    return copy;
}

/* One allocation for all names: those of units are repeated. */
static zr_status_t list(const zr_runtime_t *runtime, const zr_log_t *log,
                        zr_model_tensors_t *tensors_p) {
    zr_model_tensors_t tensors = {0};
    const zr_param_t *param;
    size_t n_bytes = 0;
    for (; (param = zr_runtime_param_at(runtime, tensors.n)) != NULL; tensors.n++)
        n_bytes += strlen(zr_param_name(param)) + strlen(zr_unit_name(zr_param_unit(param))) + 2;
    tensors.all = calloc(tensors.n + 1, sizeof(*tensors.all));
    tensors.names = malloc(n_bytes + 1);
    if (tensors.all == NULL || tensors.names == NULL) {
        zr_model_tensors_free(&tensors);
        return zr_fail(log, ZR_ERR_MEMORY, "no memory for the names of %s",
                       zr_count_text(tensors.n, "parameter").text);
    }
    char *names = tensors.names;
    for (size_t i = 0; i < tensors.n; i++) {
        zr_model_tensor_t *tensor = &tensors.all[i];
        param = zr_runtime_param_at(runtime, i);
        tensor->name = copy_text(zr_param_name(param), &names);
        tensor->unit = copy_text(zr_unit_name(zr_param_unit(param)), &names);
        tensor->n_dims = zr_param_dims(param, tensor->dims);
        tensor->n_elems = zr_param_n_elems(param);
    }
    *tensors_p = tensors;
    return ZR_OK;
}

zr_status_t zr_model_shape_tensors(const zr_model_shape_t *shape, const zr_part_adapter_t *adapter,
                                   const zr_log_t *log, zr_model_tensors_t *tensors_p) {
    const zr_log_t own_log = log != NULL ? *log : zr_log_default();
    declared_t declared = {0};
    zr_status_t status = declare(shape, adapter, &own_log, &declared);
    ZR_THEN(status, list(declared.runtime, &own_log, tensors_p));
    undo(&declared);
    return status;
}

const zr_model_tensor_t *zr_model_tensors_find(const zr_model_tensors_t *tensors,
                                               const char *name) {
    for (size_t i = 0; i < tensors->n; i++)
        if (strcmp(tensors->all[i].name, name) == 0)
            return &tensors->all[i];
    return NULL;
}

void zr_model_tensors_free(zr_model_tensors_t *tensors) {
    free(tensors->all);
    free(tensors->names);
    *tensors = (zr_model_tensors_t){0};
}
