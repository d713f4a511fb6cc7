/*
 * The end of a step: global norm (grads.c), clip, update where the state lives (state_update.c),
 * publish. Reading the norm back is the one place where a step waits for the device.
 */
#include "zero/outer_internal.h"
#include "zero/runtime_internal.h"

#include <math.h>

/* Values that all elements share; the rate, the decay and the hyperparameters are of each group. */
static zr_update_t update_args(const zr_runtime_t *runtime, double grad_scale) {
    const zr_base_t *base = &runtime->base;
    return (zr_update_t){.grad_dtype = base->config.dtype,
                         .param_dtype = base->config.dtype,
                         .grad_scale = (float)grad_scale,
                         .step = (int)base->progress.n_updates + 1};
}

/* Stages 1 and 2: every rank has updated its slice of the full parameters. */
zr_status_t zr_step_publish(zr_state_t *state, const zr_unit_t *unit, bool is_update) {
    const zr_base_t *base = unit->base;
    if (base->config.stage == 0 || base->config.stage == 3)
        return ZR_OK;
    zr_base_trace(base, "publish", unit->name, 0);
    ZR_TRY(is_update ? zr_base_end_updates(base, base->transfer)
                     : zr_base_order(base, base->compute, base->transfer));
    ZR_TRY(zr_state_order_params(state, base->transfer));
    zr_encoded_t gathered = zr_encoded_params(base, unit->params_tensor);
    void *full = unit->data[FLAT_TRAINABLE].own;
    void *own = zr_base_at(base, full, zr_unit_own_first(unit, FLAT_TRAINABLE));
    return zr_encoded_all_gather(&gathered, own, full, unit->flat[FLAT_TRAINABLE].shard_elems);
}

static zr_status_t update_all(zr_runtime_t *runtime, double lr, double grad_scale) {
    zr_base_t *base = &runtime->base;
    zr_state_t *state = &runtime->state;
    zr_state_update_t update = {.args = update_args(runtime, grad_scale), .lr = lr};
    zr_base_trace(base, "update", NULL, 0);
    ZR_TRY(zr_params_begin_update(&runtime->params));
    ZR_TRY(zr_state_begin_update(state));
    size_t n_units;
    zr_unit_t *const *units = zr_state_order(state, &n_units);
    for (size_t i = 0; i < n_units; i++) {
        if (units[i]->flat[FLAT_TRAINABLE].padded_elems == 0)
            continue;
        ZR_TRY(zr_state_update_unit(state, units[i], &update));
        ZR_TRY(zr_step_publish(state, units[i], true));
    }
    zr_base_trace(base, "update", NULL, 0);
    ZR_TRY(zr_state_end_update(state));
    return zr_params_end_update(&runtime->params);
}

/* ---- in backward -------------------------------------------------------------------------------
 *
 * Collectives run beside compute: a unit is updated behind the next one's reduction, so that
 * compute need not wait for its own, and two buckets live at a time. Where they do not, it is
 * updated at once.
 *
 * Where gradients are clipped or overflow is checked for, the state of before is kept on its other
 * side until the norm is known. An update that has to be clipped is made again, from there and from
 * the gradients, which are kept, too; one that has to be skipped leaves parameters to be made from
 * their masters again. */

/* What has passed since, without exchanges and waits, which count by themselves. */
static void count_seconds(zr_runtime_t *runtime, double start, const zr_runtime_time_t *before) {
    zr_runtime_time_t after;
    zr_runtime_time(runtime, &after);
    runtime->optimizer_seconds +=
        zr_base_now(&runtime->base) - start - (after.comm_seconds - before->comm_seconds) -
        (after.stall_seconds - before->stall_seconds) - (after.io_seconds - before->io_seconds);
}

zr_status_t zr_step_read_ahead(zr_runtime_t *runtime) {
    if (runtime->reads_ahead)
        return ZR_OK;
    runtime->reads_ahead = true;
    return zr_state_read_ahead(&runtime->state, true);
}

static zr_status_t begin_in_backward(zr_runtime_t *runtime) {
    if (runtime->is_updating)
        return ZR_OK;
    runtime->is_updating = true;
    ZR_TRY(zr_step_read_ahead(runtime));
    ZR_TRY(zr_params_begin_update(&runtime->params));
    return zr_state_begin_update(&runtime->state);
}

static zr_status_t update_in_backward(zr_runtime_t *runtime, zr_unit_t *unit) {
    zr_base_t *base = &runtime->base;
    zr_state_update_t update = {.args = update_args(runtime, 1 / zr_base_n_addends(base)),
                                .lr = zr_config_lr(&base->config, base->progress.n_updates)};
    ZR_TRY(zr_state_update_in_backward(&runtime->state, unit, &update));
    unit->grads_in_bucket = false;
    zr_free(base->allocator, &unit->grad_full, base->update);
    return zr_step_publish(&runtime->state, unit, true);
}

zr_status_t zr_step_follow(zr_runtime_t *runtime, zr_unit_t *unit) {
    const zr_base_t *base = &runtime->base;
    bool is_behind = base->transfer != base->compute && !zr_base_updates_at_once(base);
    zr_unit_t *ready = is_behind ? runtime->behind : unit;
    runtime->behind = is_behind ? unit : NULL;
    zr_runtime_time_t before;
    zr_runtime_time(runtime, &before);
    double start = zr_base_now(base);
    ZR_TRY(begin_in_backward(runtime)); /* what the first update needs is read from now on */
    ZR_TRY(ready != NULL ? update_in_backward(runtime, ready) : ZR_OK);
    count_seconds(runtime, start, &before);
    return ZR_OK;
}

static zr_status_t end_in_backward(zr_runtime_t *runtime) {
    zr_unit_t *unit = runtime->behind;
    runtime->behind = NULL;
    if (unit != NULL)
        ZR_TRY(update_in_backward(runtime, unit));
    ZR_TRY(begin_in_backward(runtime)); /* where nothing is trained */
    runtime->is_updating = runtime->reads_ahead = false;
    ZR_TRY(zr_state_end_update(&runtime->state));
    return zr_params_end_update(&runtime->params);
}

/* ---- the step ---------------------------------------------------------------------------------
 */

/* The next micro-batch computes with, and gathers from, what this step has written. */
static zr_status_t order_next_step(const zr_base_t *base) {
    ZR_TRY(zr_base_order(base, base->compute, base->transfer));
    return zr_base_order(base, base->transfer, base->compute);
}

static zr_status_t check_complete(const zr_runtime_t *runtime) {
    const zr_base_t *base = &runtime->base;
    if (!zr_base_is_last_micro_batch(base))
        return zr_fail(&base->log, ZR_ERR_STATE, "zr_runtime_step after %zu of %s",
                       base->progress.micro_batch,
                       zr_count_text(base->config.grad_accum, "micro-batch").text);
    for (size_t i = 0; i < runtime->model.n_units; i++) {
        const zr_unit_t *unit = runtime->model.units[i];
        if (unit->n_acquired != 0)
            return zr_fail(&base->log, ZR_ERR_STATE,
                           "zr_runtime_step while unit \"%s\" is acquired", unit->name);
        ZR_TRY(zr_unit_check_reduced(unit));
    }
    return ZR_OK;
}

static double clip_factor(double clip, double norm) {
    double factor = clip / (norm + 1e-6);
    return clip > 0 && factor < 1 ? factor : 1;
}

/* Without check_overflow a norm that is not finite ends the run, wherever updates are made: when it
 * is known, some may have been. */
static zr_status_t refuse_norm(const zr_base_t *base, double norm) {
    return zr_fail(&base->log, ZR_ERR_STATE,
                   "step %zu: the norm of its gradients is %s, which ends the run; "
                   "--check-overflow on skips such steps",
                   base->progress.n_steps + 1, isnan(norm) ? "not a number" : "infinite");
}

/* The norm, and with it whether to update, and by how much. */
static zr_status_t find_norm(zr_runtime_t *runtime, zr_step_report_t *report) {
    const zr_base_t *base = &runtime->base;
    ZR_TRY(zr_grads_norm(&runtime->grads, &report->gradient_norm));
    report->clip_factor = clip_factor(base->config.clip, report->gradient_norm);
    report->skipped = !isfinite(report->gradient_norm);
    return report->skipped && !base->config.check_overflow
               ? refuse_norm(base, report->gradient_norm)
               : ZR_OK;
}

static void say_skipped(const zr_base_t *base, double norm) {
    const zr_progress_t *progress = &base->progress;
    zr_log_write(&base->log, ZR_LOG_WARNING,
                 "step %zu is skipped: the norm of its gradients is %s (%zu skipped so far)",
                 progress->n_steps + 1, isnan(norm) ? "not a number" : "infinite",
                 progress->n_steps + 1 - progress->n_updates);
}

/* There is no update, or it is taken back. */
static zr_status_t skip(zr_runtime_t *runtime) {
    zr_state_t *state = &runtime->state;
    size_t n_units;
    zr_unit_t *const *units = zr_state_order(state, &n_units);
    ZR_TRY(zr_grads_forget_errors(&runtime->grads)); /* which are no numbers either */
    if (!zr_base_updates_in_backward(&runtime->base))
        return zr_state_skip_update(state);
    for (size_t i = 0; i < n_units; i++) {
        ZR_TRY(zr_unit_take_masters(units[i]));
        ZR_TRY(zr_step_publish(state, units[i], false));
    }
    return ZR_OK;
}

/* The update, when its norm is known; in backward it was made as if nothing had to be clipped. */
static zr_status_t update(zr_runtime_t *runtime, const zr_step_report_t *report) {
    bool is_made = zr_base_updates_in_backward(&runtime->base);
    if (is_made && report->clip_factor < 1)
        ZR_TRY(zr_state_read_ahead(&runtime->state, false));
    if (!is_made || report->clip_factor < 1)
        ZR_TRY(update_all(runtime, report->lr,
                          report->clip_factor / zr_base_n_addends(&runtime->base)));
    zr_state_turn(&runtime->state);
    runtime->base.progress.n_updates++;
    return ZR_OK;
}

static zr_status_t finish_step(zr_runtime_t *runtime, zr_step_report_t *report) {
    const zr_base_t *base = &runtime->base;
    report->lr = zr_config_lr(&base->config, base->progress.n_updates);
    ZR_TRY(zr_base_updates_in_backward(base) ? end_in_backward(runtime)
                                             : zr_state_read_ahead(&runtime->state, false));
    ZR_TRY(find_norm(runtime, report));
    if (report->skipped)
        say_skipped(base, report->gradient_norm);
    ZR_TRY(report->skipped ? skip(runtime) : update(runtime, report));
    return order_next_step(base);
}

zr_status_t zr_runtime_step(zr_runtime_t *runtime, zr_step_report_t *report_p) {
    zr_base_t *base = &runtime->base;
    zr_progress_t *progress = &base->progress;
    ZR_TRY(zr_rt_check_ready(runtime, "zr_runtime_step"));
    ZR_TRY(check_complete(runtime));
    zr_runtime_time_t before;
    zr_allocator_mark(base->allocator,
                      &(zr_mark_t){.step = progress->n_steps + 1, .unit = ZR_NO_UNIT});
    zr_runtime_time(runtime, &before);
    double start = zr_base_now(base);
    zr_step_report_t report = {0};
    ZR_TRY(zr_rt_note(runtime, finish_step(runtime, &report)));
    count_seconds(runtime, start, &before);
    for (size_t i = 0; i < runtime->model.n_units;
         i++) /* the norm was waited for behind all uses */
        zr_unit_drop_gathered(runtime, runtime->model.units[i]);
    ZR_TRY(zr_rt_note(runtime, zr_params_read_ahead(&runtime->params)));
    for (size_t i = 0; i < runtime->model.n_units; i++)
        zr_unit_take_in(runtime->model.units[i], !report.skipped);
    progress->micro_batch = progress->n_begins = 0;
    progress->in_micro_batch = false;
    zr_trace_at(zr_device_trace(base->device), zr_base_now(base), &(zr_trace_place_t){0});
    progress->n_steps++;
    ZR_TRY(zr_rt_note(runtime, zr_outer_step(runtime)));
    report.step = progress->n_steps;
    report.n_skipped = progress->n_steps - progress->n_updates;
    if (report_p != NULL)
        *report_p = report;
    return ZR_OK;
}
