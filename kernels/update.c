/* Dispatch of updates: checks, costs, and the call of the backend. See update.h. */
#include "kernels/update.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "kernels/device_backend.h"
#include "kernels/kernel_checks_internal.h"

/* ---- rules ----------------------------------------------------------------------------------- */

static zr_status_t check_arrays(const zr_update_rule_t *rule, const zr_log_t *log) {
    if (rule->n_arrays < 1 || rule->n_arrays > ZR_MAX_STATE_ARRAYS)
        return zr_fail(log, ZR_ERR_ARGUMENT, "update \"%s\" has %zu arrays; 1 to %d are allowed",
                       rule->name, rule->n_arrays, ZR_MAX_STATE_ARRAYS);
    for (size_t i = 0; i < rule->n_arrays; i++) {
        const zr_state_array_t *array = &rule->arrays[i];
        if (array->name == NULL || array->encoding == NULL)
            return zr_fail(log, ZR_ERR_ARGUMENT, "update \"%s\": array %zu has no %s", rule->name,
                           i, array->name == NULL ? "name" : "encoding");
        if (i > 0 && array->encoding->align_bytes > rule->arrays[i - 1].encoding->align_bytes)
            return zr_fail(log, ZR_ERR_ARGUMENT,
                           "update \"%s\": array \"%s\" (%s) comes after \"%s\" (%s); arrays with "
                           "larger elements must come first",
                           rule->name, array->name, array->encoding->name, rule->arrays[i - 1].name,
                           rule->arrays[i - 1].encoding->name);
    }
    if (rule->arrays[0].encoding != &zr_encoding_fp32)
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "update \"%s\": its first array, the master, is %s; it must be fp32",
                       rule->name, rule->arrays[0].encoding->name);
    return ZR_OK;
}

static bool is_in_range(const zr_hyper_t *hyper, double value) {
    return value >= hyper->least && value < hyper->below;
}

zr_status_t zr_update_rule_check(const zr_update_rule_t *rule, const zr_log_t *log) {
    if (rule->name == NULL)
        return zr_fail(log, ZR_ERR_ARGUMENT, "an update has no name");
    ZR_TRY(check_arrays(rule, log));
    if (rule->n_hypers > ZR_MAX_HYPERS)
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "update \"%s\" has %zu hyperparameters; up to %d are allowed", rule->name,
                       rule->n_hypers, ZR_MAX_HYPERS);
    for (size_t i = 0; i < rule->n_hypers; i++) {
        const zr_hyper_t *hyper = &rule->hypers[i];
        if (hyper->name == NULL || hyper->key == NULL || !is_in_range(hyper, hyper->usual))
            return zr_fail(log, ZR_ERR_ARGUMENT,
                           "update \"%s\": hyperparameter %zu has no name, no key, or a default "
                           "out of its range",
                           rule->name, i);
    }
    if (!(rule->operations_per_elem >= 0 && isfinite(rule->operations_per_elem)))
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "update \"%s\" costs %g operations per element; a finite number >= 0 is "
                       "needed",
                       rule->name, rule->operations_per_elem);
    return ZR_OK;
}

bool zr_hyper_allows(const zr_hyper_t *hyper, double value) {
    double rounded = (double)(float)value;
    return is_in_range(hyper, rounded) && !(hyper->is_positive && rounded == hyper->least);
}

size_t zr_update_rule_hyper(const zr_update_rule_t *rule, const char *name) {
    size_t i = 0;
    while (i < rule->n_hypers && strcmp(rule->hypers[i].name, name) != 0)
        i++;
    return i;
}

const char *zr_state_form_name(zr_state_form_t form) {
    static const char *const names[ZR_N_STATE_FORMS] = {"fp32", "bf16", "8bit"};
    return form >= 0 && form < ZR_N_STATE_FORMS ? names[form] : "?";
}

zr_update_rule_t zr_update_rule_in(const zr_update_rule_t *rule, zr_state_form_t form) {
    zr_update_rule_t result = *rule;
    result.form = form;
    for (size_t i = 1; i < rule->n_arrays && form != ZR_STATE_FP32; i++) {
        zr_state_array_t *array = &result.arrays[i];
        if (array->encoding != &zr_encoding_fp32)
            continue;
        result.formed |= 1u << i;
        array->encoding = form == ZR_STATE_BF16           ? &zr_encoding_bf16
                          : rule->never_negative >> i & 1 ? &zr_encoding_ufloat8
                                                          : &zr_encoding_float8;
    }
    return result;
}

zr_update_rule_t zr_update_rule_split(const zr_update_rule_t *rule, zr_dtype_t param_dtype) {
    zr_update_rule_t result = *rule;
    result.splits_master = true;
    result.arrays[0].encoding =
        param_dtype == ZR_DTYPE_F32 ? &zr_encoding_nothing : &zr_encoding_lower;
    return result;
}

size_t zr_state_array_offset(const zr_update_rule_t *rule, size_t array, size_t n_elems) {
    size_t bytes = 0;
    for (size_t i = 0; i < array; i++)
        bytes += zr_encoding_bytes(rule->arrays[i].encoding, n_elems);
    return bytes;
}

size_t zr_state_bytes(const zr_update_rule_t *rule, size_t n_elems) {
    return zr_state_array_offset(rule, rule->n_arrays, n_elems);
}

/* ---- calls ----------------------------------------------------------------------------------- */

static zr_status_t refuse_number(const zr_stream_t *stream, const zr_update_rule_t *rule,
                                 const char *name, double value, double least, double below) {
    return zr_fail(&stream->device->log, ZR_ERR_ARGUMENT,
                   "%s: %s is %g; it must be at least %g and less than %g", rule->name, name, value,
                   least, below);
}

static zr_status_t check_numbers(const zr_stream_t *stream, const zr_update_rule_t *rule,
                                 const zr_update_t *update) {
    if (!(update->lr >= 0.0f && update->lr < INFINITY))
        return refuse_number(stream, rule, "lr", (double)update->lr, 0, (double)INFINITY);
    if (!(update->weight_decay >= 0.0f && update->weight_decay < INFINITY))
        return refuse_number(stream, rule, "weight_decay", (double)update->weight_decay, 0,
                             (double)INFINITY);
    for (size_t i = 0; i < rule->n_hypers; i++) {
        const zr_hyper_t *hyper = &rule->hypers[i];
        if (!is_in_range(hyper, (double)update->hyper[i]))
            return refuse_number(stream, rule, hyper->name, (double)update->hyper[i], hyper->least,
                                 hyper->below);
    }
    if (!isfinite(update->grad_scale))
        return zr_fail(&stream->device->log, ZR_ERR_ARGUMENT, "%s: grad_scale is %g", rule->name,
                       (double)update->grad_scale);
    if (update->step < 1)
        return zr_fail(&stream->device->log, ZR_ERR_ARGUMENT, "%s: step is %d; must be at least 1",
                       rule->name, update->step);
    return ZR_OK;
}

static zr_status_t check_state_array(const zr_stream_t *stream, const zr_update_rule_t *rule,
                                     size_t index, const zr_update_t *update) {
    const zr_state_array_t *array = &rule->arrays[index];
    if (array->encoding->block_bytes == 0)
        return ZR_OK;
    if (update->n_elems > 0 && update->arrays[index] == NULL)
        return zr_fail(&stream->device->log, ZR_ERR_ARGUMENT, "%s: %s is NULL with %s", rule->name,
                       array->name, zr_count_text(update->n_elems, "element").text);
    if ((uintptr_t)update->arrays[index] % array->encoding->align_bytes != 0)
        return zr_fail(&stream->device->log, ZR_ERR_ARGUMENT,
                       "%s: %s at %p is not aligned to its %zu-byte elements", rule->name,
                       array->name, update->arrays[index], array->encoding->align_bytes);
    return ZR_OK;
}

static zr_status_t check_update(const zr_stream_t *stream, const zr_update_rule_t *rule,
                                const zr_update_t *update) {
    for (size_t i = 0; i < rule->n_arrays; i++)
        ZR_TRY(check_state_array(stream, rule, i, update));
    ZR_TRY(zr_check_array(stream, rule->name, "grad", update->grad, update->grad_dtype,
                          update->n_elems));
    ZR_TRY(zr_check_array(stream, rule->name, "param", update->param, update->param_dtype,
                          update->n_elems));
    return check_numbers(stream, rule, update);
}

bool zr_update_runs_on(const zr_device_t *device, const zr_update_rule_t *rule) {
    return device->backend->has_update == NULL || device->backend->has_update(rule);
}

zr_status_t zr_kernel_update(zr_stream_t *stream, const zr_update_rule_t *rule,
                             const zr_update_t *update) {
    ZR_TRY(check_update(stream, rule, update));
    if (update->n_elems == 0)
        return ZR_OK;
    if (!zr_update_runs_on(stream->device, rule))
        return zr_fail(&stream->device->log, ZR_ERR_UNSUPPORTED,
                       "update \"%s\" has no kernel for device \"%s\"", rule->name,
                       stream->device->backend->name);
    zr_update_t args = *update;
    args.form = rule->form;
    args.splits_master = rule->splits_master;
    const zr_kernel_work_t work = {.kernel = ZR_KERNEL_UPDATE, .rule = rule, .update = &args};
    const zr_charge_t charge = {
        .kernel = rule->name, .cost = zr_update_cost(rule, update), .rate = ZR_RATE_UPDATE};
    return zr_kernel_run(stream, &work, &charge);
}

zr_cost_t zr_update_cost(const zr_update_rule_t *rule, const zr_update_t *update) {
    size_t n = update->n_elems;
    size_t params = (rule->splits_master ? 2 : 1) * n * zr_dtype_size(update->param_dtype);
    size_t bytes = 2 * zr_state_bytes(rule, n) + n * zr_dtype_size(update->grad_dtype) + params;
    return (zr_cost_t){.operations = rule->operations_per_elem * (double)n, .bytes = (double)bytes};
}
