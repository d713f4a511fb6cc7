/*
 * Steps as trainers with a control flow of their own take them: with more micro-batches than were
 * declared, with sums instead of means, and with parameters that had no gradient.
 */
#include "zero/runtime_internal.h"

#include <string.h>

void zr_runtime_sum_micro_batches(zr_runtime_t *runtime) {
    runtime->base.sums_micro_batches = true;
}

/* ---- a micro-batch more ---- */

/* Keep [first, end) of a buffer of n elements; the rest becomes zero. */
static zr_status_t zero_around(const zr_base_t *base, void *buffer, size_t n, size_t first,
                               size_t end) {
    zr_dtype_t dtype = base->config.dtype;
    ZR_TRY(zr_kernel_fill(base->compute, buffer, dtype, first, 0.0f));
    return zr_kernel_fill(base->compute, zr_base_at(base, buffer, end), dtype, n - end, 0.0f);
}

/* Each element of the sum over all ranks stays with one of them: the next reduction adds it once.
 * The others keep a zero. */
static zr_status_t keep_sum_once(zr_unit_t *unit) {
    const zr_base_t *base = unit->base;
    const zr_flat_t *flat = &unit->flat[FLAT_TRAINABLE];
    bool is_first = !zr_base_adds_groups(base) || zr_comm_rank(base->sharding.replicas) == 0;
    if (!zr_base_reduces_every_micro_batch(base)) {
        size_t first = zr_unit_own_first(unit, FLAT_TRAINABLE);
        size_t end = is_first ? first + flat->shard_elems : first;
        ZR_TRY(zero_around(base, unit->grad_full, flat->padded_elems, first, end));
        for (size_t i = 0; i < unit->n_params; i++) /* what comes is added */
            unit->params[i]->grad_written = !unit->params[i]->about->layout.frozen;
        return ZR_OK;
    }
    return is_first ? ZR_OK : zero_around(base, unit->grad_shard, flat->shard_elems, 0, 0);
}

static zr_status_t check_extra(const zr_runtime_t *runtime) {
    const zr_base_t *base = &runtime->base;
    if (!zr_base_is_last_micro_batch(base) || zr_base_updates_in_backward(base))
        return zr_fail(
            &base->log, ZR_ERR_STATE, "zr_runtime_begin_extra_micro_batch after %zu of %s%s",
            base->progress.micro_batch, zr_count_text(base->config.grad_accum, "micro-batch").text,
            zr_base_updates_in_backward(base)
                ? ": updates in backward were made (--update-at backward); declare "
                  "how many the step has (gradient_accumulation_steps)"
                : "");
    if (zr_base_adds_groups(base) && zr_base_offloads_grads(base))
        return zr_fail(&base->log, ZR_ERR_UNSUPPORTED,
                       "a step with more micro-batches than declared cannot add to gradients that "
                       "groups have summed and offloaded: declare how many it has "
                       "(gradient_accumulation_steps)");
    for (size_t i = 0; i < runtime->model.n_units; i++)
        ZR_TRY(zr_unit_check_reduced(runtime->model.units[i]));
    return ZR_OK;
}

static zr_status_t begin_extra(zr_runtime_t *runtime) {
    zr_base_t *base = &runtime->base;
    ZR_TRY(zr_base_order(base, base->transfer, base->compute));
    for (size_t i = 0; i < runtime->model.n_units; i++)
        if (runtime->model.units[i]->flat[FLAT_TRAINABLE].padded_elems != 0)
            ZR_TRY(keep_sum_once(runtime->model.units[i]));
    ZR_TRY(zr_base_order(base, base->compute, base->transfer));
    base->progress.micro_batch--;
    return zr_rt_begin(runtime, 1);
}

zr_status_t zr_runtime_begin_extra_micro_batch(zr_runtime_t *runtime) {
    ZR_TRY(zr_rt_check_ready(runtime, "zr_runtime_begin_extra_micro_batch"));
    ZR_TRY(check_extra(runtime));
    return zr_rt_note(runtime, begin_extra(runtime));
}

/* ---- gradients that are kept ---- */

void *zr_param_kept_grad(const zr_param_t *param) {
    const zr_unit_t *unit = param->unit;
    const zr_base_t *base = unit->base;
    bool is_whole = base->config.stage == 0 || (base->config.stage == 1 && base->n_ranks == 1);
    if (param->about->layout.frozen || !is_whole || zr_base_updates_in_backward(base) ||
        zr_base_reduces_every_micro_batch(base) || unit->grad_full == NULL)
        return NULL;
    return zr_base_at(base, unit->grad_full, param->about->layout.offset_elems);
}

bool zr_runtime_params_are_masters(const zr_runtime_t *runtime) {
    return runtime->state.own_rule.splits_master && runtime->base.config.dtype == ZR_DTYPE_F32;
}

/* ---- parameters without a gradient ---- */

static void set_apart(zr_param_t *param, bool is_left_out, size_t n_left_out) {
    bool was = param->is_left_out || param->n_left_out != 0;
    bool is = is_left_out || n_left_out != 0;
    param->is_left_out = is_left_out;
    param->n_left_out = n_left_out;
    param->unit->n_apart += (size_t)is - (size_t)was;
}

zr_status_t zr_param_leave_out(zr_param_t *param) {
    zr_runtime_t *runtime = param->unit->runtime;
    const zr_base_t *base = &runtime->base;
    ZR_TRY(zr_rt_check_ready(runtime, "zr_param_leave_out"));
    if (param->about->layout.frozen)
        return zr_fail(&base->log, ZR_ERR_ARGUMENT,
                       "parameter \"%s\" is frozen: no update is made of it", param->about->name);
    if (!base->progress.in_micro_batch || param->unit->is_updated)
        return zr_fail(
            &base->log, ZR_ERR_STATE, "parameter \"%s\" is left out %s", param->about->name,
            param->unit->is_updated ? "after it was updated in backward" : "outside of a step");
    set_apart(param, true, param->n_left_out);
    return ZR_OK;
}

size_t zr_param_n_left_out(const zr_param_t *param) {
    return param->n_left_out;
}

void zr_param_set_n_left_out(zr_param_t *param, size_t n) {
    set_apart(param, param->is_left_out, n);
}

void zr_unit_take_in(zr_unit_t *unit, bool is_updated) {
    for (size_t i = 0; i < unit->n_params && unit->n_apart != 0; i++)
        if (unit->params[i]->is_left_out)
            set_apart(unit->params[i], false, unit->params[i]->n_left_out + is_updated);
}
