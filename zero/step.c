/*
 * The end of a step: global norm, clip, update where the state lives (state_update.c), publish.
 *
 * The norm has one fixed order at every stage: each rank squares and adds the slices that are
 * its shards, unit by unit (also at stage 0, where it holds everything), the ranks of a group
 * exchange these partial sums, and each adds them by rank, then unit, in double. Reading the sum
 * back is the one place where a step waits for the device.
 */
#include "zero/runtime_internal.h"

#include <math.h>

static zr_status_t queue_norms(zr_runtime_t *runtime) {
    for (size_t i = 0; i < runtime->n_units; i++)
        ZR_TRY(zr_grads_queue_norm(runtime->units[i]));
    return zr_rt_gather_control(runtime, runtime->sharding.group, "gradient norm", ZR_DTYPE_F64,
                                runtime->norms_device, runtime->n_units);
}

static zr_status_t global_norm(zr_runtime_t *runtime, double *norm_p) {
    zr_rt_trace(runtime, "norm", NULL, 0);
    ZR_TRY(queue_norms(runtime));
    size_t n_norms = (size_t)runtime->sharding.n_shards * runtime->n_units;
    ZR_TRY(zr_copy_async(runtime->compute, runtime->norms_host, runtime->norms_device,
                         n_norms * sizeof(double), ZR_COPY_DEVICE_TO_HOST));
    ZR_TRY(zr_stream_synchronize(runtime->compute));
    ZR_TRY(zr_sharding_check(&runtime->sharding));
    double sum = 0;
    for (size_t i = 0; i < n_norms; i++)
        sum += runtime->norms_host[i];
    double n_addends = (double)runtime->n_ranks * (double)runtime->config.grad_accum;
    *norm_p = sqrt(sum) / n_addends;
    return ZR_OK;
}

/* What all elements share; the rate and the decay are of each group. */
static zr_update_t update_args(const zr_runtime_t *runtime, double grad_scale) {
    zr_update_t args = {.grad_dtype = runtime->config.dtype,
                        .param_dtype = runtime->config.dtype,
                        .grad_scale = (float)grad_scale,
                        .step = (int)runtime->n_updates + 1};
    for (size_t i = 0; i < runtime->state.rule->n_hypers; i++)
        args.hyper[i] = (float)zr_config_hyper(&runtime->config, i);
    return args;
}

/* Stages 1 and 2: every rank has updated its slice of the full parameters. */
static zr_status_t publish_unit(zr_unit_t *unit) {
    zr_runtime_t *runtime = unit->runtime;
    const zr_flat_t *flat = &unit->flat[FLAT_TRAINABLE];
    if (runtime->config.stage == 0 || runtime->config.stage == 3)
        return ZR_OK;
    zr_rt_trace(runtime, "publish", unit, 0);
    ZR_TRY(zr_rt_order(runtime, runtime->compute, runtime->transfer));
    ZR_TRY(zr_state_order_params(runtime, runtime->transfer));
    zr_message_t message = {unit->params_tensor, runtime->config.dtype, ZR_TRAFFIC_MODEL};
    void *full = unit->data[FLAT_TRAINABLE].own;
    void *own = zr_rt_at(runtime, full, zr_rt_own_first(runtime, flat));
    return zr_comm_all_gather(runtime->sharding.group, &message, own, full, flat->shard_elems,
                              runtime->transfer);
}

static zr_status_t update_all(zr_runtime_t *runtime, double lr, double grad_scale) {
    zr_state_update_t update = {.args = update_args(runtime, grad_scale), .lr = lr};
    zr_rt_trace(runtime, "update", NULL, 0);
    ZR_TRY(zr_params_begin_update(runtime));
    ZR_TRY(zr_state_begin_update(runtime));
    bool is_early = zr_rt_may_update_early(runtime);
    zr_unit_t **units = is_early ? runtime->reduced : runtime->units;
    size_t n_units = is_early ? runtime->n_reduced : runtime->n_units;
    for (size_t i = 0; i < n_units; i++) {
        if (units[i]->flat[FLAT_TRAINABLE].padded_elems == 0)
            continue;
        ZR_TRY(zr_state_update_unit(units[i], &update));
        ZR_TRY(publish_unit(units[i]));
    }
    zr_rt_trace(runtime, "update", NULL, 0);
    ZR_TRY(zr_state_end_update(runtime));
    ZR_TRY(zr_params_end_update(runtime));
    runtime->n_updates++;
    return ZR_OK;
}

/* The next micro-batch computes with, and gathers from, what this step has written. */
static zr_status_t order_next_step(zr_runtime_t *runtime) {
    ZR_TRY(zr_rt_order(runtime, runtime->compute, runtime->transfer));
    return zr_rt_order(runtime, runtime->transfer, runtime->compute);
}

static zr_status_t check_complete(zr_runtime_t *runtime) {
    if (runtime->micro_batch != runtime->config.grad_accum)
        return zr_fail(&runtime->log, ZR_ERR_STATE, "zr_runtime_step after %zu of %s",
                       runtime->micro_batch,
                       zr_count_text(runtime->config.grad_accum, "micro-batch").text);
    for (size_t i = 0; i < runtime->n_units; i++) {
        const zr_unit_t *unit = runtime->units[i];
        if (unit->n_acquired != 0)
            return zr_fail(&runtime->log, ZR_ERR_STATE,
                           "zr_runtime_step while unit \"%s\" is acquired", unit->name);
        if (unit->flat[FLAT_TRAINABLE].padded_elems != 0 && !unit->reduced)
            return zr_fail(&runtime->log, ZR_ERR_STATE,
                           "unit \"%s\" was not reduced in micro-batch %zu", unit->name,
                           runtime->micro_batch);
    }
    return ZR_OK;
}

static double clip_factor(double clip, double norm) {
    double factor = clip / (norm + 1e-6);
    return clip > 0 && factor < 1 ? factor : 1;
}

/* Without check_overflow a norm that is not finite ends the run, wherever updates are made: when it
 * is known, some may have been. */
static zr_status_t refuse_norm(const zr_runtime_t *runtime, double norm) {
    return zr_fail(
        &runtime->log, ZR_ERR_STATE,
        "step %zu: the norm of its gradients is %s, which ends the run, because overflow "
        "is not checked for; --check-overflow on skips such steps",
        runtime->n_steps + 1, isnan(norm) ? "not a number" : "infinite");
}

/* The norm, and with it whether to update, and by how much. */
static zr_status_t find_norm(zr_runtime_t *runtime, zr_step_report_t *report) {
    ZR_TRY(zr_grads_order_before_compute(runtime));
    ZR_TRY(global_norm(runtime, &report->gradient_norm));
    report->clip_factor = clip_factor(runtime->config.clip, report->gradient_norm);
    report->skipped = !isfinite(report->gradient_norm);
    return report->skipped && !runtime->config.check_overflow
               ? refuse_norm(runtime, report->gradient_norm)
               : ZR_OK;
}

static zr_status_t finish_step(zr_runtime_t *runtime, zr_step_report_t *report) {
    double n_addends = (double)runtime->n_ranks * (double)runtime->config.grad_accum;
    report->lr = zr_config_lr(&runtime->config, runtime->n_updates);
    ZR_TRY(zr_state_read_ahead(runtime));
    if (zr_rt_may_update_early(runtime)) {
        ZR_TRY(update_all(runtime, report->lr, 1 / n_addends));
        ZR_TRY(find_norm(runtime, report));
        return order_next_step(runtime);
    }
    ZR_TRY(find_norm(runtime, report));
    if (report->skipped) {
        zr_log_write(&runtime->log, ZR_LOG_WARNING,
                     "step %zu is skipped: the norm of its gradients is %s (%zu skipped so far)",
                     runtime->n_steps + 1,
                     isnan(report->gradient_norm) ? "not a number" : "infinite",
                     runtime->n_steps + 1 - runtime->n_updates);
        ZR_TRY(zr_state_skip_update(runtime));
    } else {
        ZR_TRY(update_all(runtime, report->lr, report->clip_factor / n_addends));
    }
    return order_next_step(runtime);
}

zr_status_t zr_runtime_step(zr_runtime_t *runtime, zr_step_report_t *report_p) {
    ZR_TRY(zr_rt_check_ready(runtime, "zr_runtime_step"));
    ZR_TRY(check_complete(runtime));
    zr_runtime_time_t before, after;
    zr_allocator_mark(runtime->allocator,
                      &(zr_mark_t){.step = runtime->n_steps + 1, .unit = ZR_NO_UNIT});
    zr_runtime_time(runtime, &before);
    double start = zr_rt_now(runtime);
    zr_step_report_t report = {0};
    ZR_TRY(zr_rt_note(runtime, finish_step(runtime, &report)));
    zr_runtime_time(runtime, &after);
    runtime->optimizer_seconds +=
        zr_rt_now(runtime) - start - (after.comm_seconds - before.comm_seconds) -
        (after.stall_seconds - before.stall_seconds) - (after.io_seconds - before.io_seconds);
    for (size_t i = 0; i < runtime->n_units; i++)
        zr_unit_drop_gathered(runtime->units[i]); /* the norm was waited for behind all uses */
    ZR_TRY(zr_rt_note(runtime, zr_params_read_ahead(runtime)));
    runtime->micro_batch = runtime->n_begins = 0;
    runtime->in_micro_batch = false;
    zr_trace_at(zr_device_trace(runtime->device), zr_rt_now(runtime), &(zr_trace_place_t){0});
    runtime->n_steps++;
    report.step = runtime->n_steps;
    report.n_skipped = runtime->n_steps - runtime->n_updates;
    if (report_p != NULL)
        *report_p = report;
    return ZR_OK;
}
