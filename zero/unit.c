/*
 * A unit in a micro-batch: gather, prefetch, release, buckets of gradients. Their reduction is in
 * grads.c.
 *
 * Two streams work: `compute` runs the trainer's kernels, `transfer` the collectives. A gather
 * is queued on transfer and compute waits for its event, so the gather of the next unit runs
 * beside the computation of this one. Memory is given back to the allocator together with the
 * stream that used it last, which is what makes it safe to reuse while work is still queued.
 */
#include "zero/runtime_internal.h"

#include <stdlib.h>

static zr_message_t params_message(const zr_unit_t *unit) {
    return (zr_message_t){unit->params_tensor, unit->runtime->config.dtype, ZR_TRAFFIC_MODEL};
}

/* ---- gathering ---- */

static bool is_gathered(const zr_unit_t *unit) {
    for (int kind = 0; kind < N_FLATS; kind++)
        if (unit->flat[kind].padded_elems != 0 && unit->data[kind].full == NULL)
            return false;
    return true;
}

static zr_status_t gather_flat(zr_unit_t *unit, int kind) {
    zr_runtime_t *runtime = unit->runtime;
    const zr_flat_t *flat = &unit->flat[kind];
    unit_params_t *data = &unit->data[kind];
    ZR_TRY(zr_rt_allocate(runtime, zr_rt_bytes(runtime, flat->padded_elems),
                          ZR_TAG_GATHERED_PARAMETERS, ZR_LIFETIME_UNIT, unit->params_tensor,
                          runtime->transfer, &data->full));
    runtime->gathered_elems += flat->padded_elems;
    zr_message_t message = params_message(unit);
    void *own = data->own;
    if (zr_rt_is_offloaded(unit, kind)) {
        own = zr_rt_at(runtime, data->full, zr_rt_own_first(runtime, flat));
        ZR_TRY(zr_params_fetch(unit, kind, own));
    }
    return zr_comm_all_gather(runtime->sharding.group, &message, own, data->full, flat->shard_elems,
                              runtime->transfer);
}

static zr_status_t gather(zr_unit_t *unit) {
    zr_runtime_t *runtime = unit->runtime;
    for (int kind = 0; kind < N_FLATS; kind++)
        if (unit->flat[kind].padded_elems != 0 && unit->data[kind].full == NULL)
            ZR_TRY(gather_flat(unit, kind));
    return zr_event_record(unit->gathered, runtime->transfer);
}

/* Behind their last user, or NULL: it has been waited for. */
static void drop_gathered(zr_unit_t *unit, zr_stream_t *stream) {
    for (int kind = 0; kind < N_FLATS; kind++) {
        unit_params_t *data = &unit->data[kind];
        if (data->full == data->own || data->full == NULL)
            continue;
        unit->runtime->gathered_elems -= unit->flat[kind].padded_elems;
        zr_free(unit->runtime->allocator, &data->full, stream);
    }
}

static bool is_gathered_apart(const zr_unit_t *unit) {
    for (int kind = 0; kind < N_FLATS; kind++)
        if (unit->data[kind].full != NULL && unit->data[kind].full != unit->data[kind].own)
            return true;
    return false;
}

static bool can_drop(const zr_unit_t *unit) {
    return unit->n_acquired == 0 && is_gathered_apart(unit);
}

void zr_unit_drop_gathered(zr_unit_t *unit) {
    if (can_drop(unit))
        drop_gathered(unit, NULL);
}

/* Nobody has to have read what was gathered ahead: its gather may still be under way. */
static zr_status_t await_and_drop(zr_unit_t *unit) {
    if (!can_drop(unit))
        return ZR_OK;
    ZR_TRY(zr_stream_wait(unit->runtime->compute, unit->gathered));
    drop_gathered(unit, unit->runtime->compute);
    return ZR_OK;
}

/* ---- recorded order ---- */

static zr_status_t append_order(zr_runtime_t *runtime, zr_unit_t *unit) {
    if (runtime->n_order == runtime->order_capacity) {
        size_t capacity = runtime->order_capacity ? 2 * runtime->order_capacity : 64;
        zr_unit_t **grown = realloc(runtime->order_units, capacity * sizeof(zr_unit_t *));
        if (grown == NULL)
            return zr_fail(&runtime->log, ZR_ERR_MEMORY,
                           "the system has no memory to record the order of units");
        runtime->order_units = grown;
        runtime->order_capacity = capacity;
    }
    runtime->order_units[runtime->n_order++] = unit;
    return ZR_OK;
}

/* All ranks may change their order together (the communicator finds the one that does not):
 * what was gathered for the old order is dropped, and recording goes on from here. */
static zr_status_t forget_order(zr_runtime_t *runtime, zr_unit_t *unit) {
    zr_log_write(&runtime->log, ZR_LOG_INFO,
                 "the order of units changed at position %zu: \"%s\" instead of \"%s\"; it is "
                 "recorded again",
                 runtime->order_position, unit->name,
                 runtime->order_units[runtime->order_position]->name);
    runtime->n_order = runtime->order_position;
    for (size_t i = 0; i < runtime->n_units; i++)
        if (runtime->units[i] != unit)
            ZR_TRY(await_and_drop(runtime->units[i]));
    return ZR_OK;
}

static zr_status_t follow_order(zr_runtime_t *runtime, zr_unit_t *unit) {
    if (runtime->order_position < runtime->n_order &&
        runtime->order_units[runtime->order_position] != unit)
        ZR_TRY(forget_order(runtime, unit));
    if (runtime->order_position == runtime->n_order)
        ZR_TRY(append_order(runtime, unit));
    runtime->order_position++;
    return ZR_OK;
}

static size_t padded_elems(const zr_unit_t *unit) {
    return unit->flat[FLAT_TRAINABLE].padded_elems + unit->flat[FLAT_FROZEN].padded_elems;
}

/* Gather the next unit of the recorded order ahead of its use: one, so that at most one unit
 * more than those acquired is in memory. */
static zr_status_t prefetch(zr_runtime_t *runtime) {
    if (runtime->config.prefetch_elems == 0 || runtime->order_position >= runtime->n_order)
        return ZR_OK;
    zr_unit_t *next = runtime->order_units[runtime->order_position];
    if (next->n_acquired != 0 || is_gathered(next) ||
        padded_elems(next) > runtime->config.prefetch_elems ||
        runtime->gathered_elems + padded_elems(next) > runtime->config.max_live_elems)
        return ZR_OK;
    return gather(next);
}

/* Whether a unit that is released now is needed again soon enough to stay gathered. */
static bool is_reused_soon(const zr_unit_t *unit) {
    const zr_runtime_t *runtime = unit->runtime;
    size_t distance = 0;
    if (!runtime->in_micro_batch || runtime->gathered_elems > runtime->config.max_live_elems)
        return false;
    for (size_t i = runtime->order_position; i < runtime->n_order; i++) {
        if (runtime->order_units[i] == unit)
            return true;
        distance += padded_elems(runtime->order_units[i]);
        if (distance > runtime->config.reuse_elems)
            return false;
    }
    return false;
}

static zr_status_t acquire_params(zr_unit_t *unit) {
    zr_runtime_t *runtime = unit->runtime;
    if (zr_rt_keeps_full_params(runtime))
        return ZR_OK;
    if (runtime->in_micro_batch)
        ZR_TRY(follow_order(runtime, unit));
    if (!is_gathered(unit))
        ZR_TRY(gather(unit));
    if (runtime->transfer != runtime->compute)
        ZR_TRY(zr_stream_wait(runtime->compute, unit->gathered));
    ZR_TRY(zr_params_progress(runtime));
    return runtime->in_micro_batch ? prefetch(runtime) : ZR_OK;
}

/* ---- gradients ---- */

static bool has_trainable(const zr_unit_t *unit) {
    return unit->flat[FLAT_TRAINABLE].padded_elems != 0;
}

/* The next parameter of the trainable flat buffer that starts at or after `from`. */
static const zr_layout_param_t *next_param(const zr_unit_t *unit, size_t from) {
    const zr_layout_param_t *next = NULL;
    for (size_t i = 0; i < unit->n_params; i++) {
        const zr_layout_param_t *layout = &unit->params[i]->layout;
        if (!layout->frozen && layout->n_elems != 0 && layout->offset_elems >= from &&
            (next == NULL || layout->offset_elems < next->offset_elems))
            next = layout;
    }
    return next;
}

static zr_status_t zero_grads(zr_runtime_t *runtime, void *grads, size_t first, size_t end) {
    return zr_kernel_fill(runtime->compute, zr_rt_at(runtime, grads, first), runtime->config.dtype,
                          end - first, 0.0f);
}

/* What no parameter covers must be zero in the sums and the norm. */
static zr_status_t zero_gaps(zr_unit_t *unit) {
    const zr_flat_t *flat = &unit->flat[FLAT_TRAINABLE];
    size_t covered = 0;
    for (const zr_layout_param_t *next = next_param(unit, 0); next != NULL;
         next = next_param(unit, covered)) {
        ZR_TRY(zero_grads(unit->runtime, unit->grad_full, covered, next->offset_elems));
        covered = next->offset_elems + next->n_elems;
    }
    return zero_grads(unit->runtime, unit->grad_full, covered, flat->padded_elems);
}

static zr_status_t check_grads(const zr_unit_t *unit) {
    const zr_runtime_t *runtime = unit->runtime;
    if (unit->reduced)
        return zr_fail(&runtime->log, ZR_ERR_STATE,
                       "unit \"%s\": gradients were reduced in this micro-batch already",
                       unit->name);
    if (!runtime->in_micro_batch)
        return zr_fail(&runtime->log, ZR_ERR_STATE,
                       "unit \"%s\": gradients outside a micro-batch; call "
                       "zr_runtime_begin_micro_batch first",
                       unit->name);
    return ZR_OK;
}

static zr_status_t acquire_grads(zr_unit_t *unit) {
    zr_runtime_t *runtime = unit->runtime;
    if (!has_trainable(unit) || unit->grad_full != NULL)
        return ZR_OK;
    ZR_TRY(zr_rt_allocate(runtime, zr_rt_bytes(runtime, unit->flat[FLAT_TRAINABLE].padded_elems),
                          ZR_TAG_GRADIENT_BUCKETS, ZR_LIFETIME_UNIT, unit->grads_tensor,
                          runtime->compute, &unit->grad_full));
    return zero_gaps(unit);
}

static zr_status_t zero_missing_grads(zr_unit_t *unit) {
    for (size_t i = 0; i < unit->n_params; i++) {
        zr_param_t *param = unit->params[i];
        if (param->layout.frozen || param->grad_written || param->layout.n_elems == 0)
            continue;
        size_t first = param->layout.offset_elems;
        ZR_TRY(zero_grads(unit->runtime, unit->grad_full, first, first + param->layout.n_elems));
        param->grad_written = true;
    }
    return ZR_OK;
}

static void forget_grads(zr_unit_t *unit) {
    for (size_t i = 0; i < unit->n_params; i++)
        unit->params[i]->grad_written = false;
}

static zr_status_t reduce(zr_unit_t *unit) {
    zr_runtime_t *runtime = unit->runtime;
    if (!zr_rt_reduces_every_micro_batch(runtime) && !zr_rt_is_last_micro_batch(runtime))
        return ZR_OK;
    ZR_TRY(zero_missing_grads(unit));
    ZR_TRY(zr_grads_reduce(unit));
    forget_grads(unit);
    return ZR_OK;
}

/* ---- public calls ---- */

static zr_status_t acquire(zr_unit_t *unit, zr_pass_t pass) {
    if (unit->runtime->in_micro_batch)
        zr_rt_mark(unit->runtime, unit, pass);
    if (pass != ZR_GRADIENTS)
        ZR_TRY(acquire_params(unit));
    if (pass != ZR_FORWARD)
        ZR_TRY(acquire_grads(unit));
    unit->n_acquired++;
    unit->has_params = unit->has_params || pass != ZR_GRADIENTS;
    unit->has_grads = unit->has_grads || pass != ZR_FORWARD;
    return ZR_OK;
}

zr_status_t zr_unit_acquire(zr_unit_t *unit, zr_pass_t pass) {
    zr_runtime_t *runtime = unit->runtime;
    ZR_TRY(zr_rt_check_ready(runtime, "zr_unit_acquire"));
    if (pass != ZR_FORWARD && pass != ZR_BACKWARD && pass != ZR_GRADIENTS)
        return zr_fail(&runtime->log, ZR_ERR_ARGUMENT, "unit \"%s\": there is no pass %d",
                       unit->name, (int)pass);
    if (pass != ZR_FORWARD)
        ZR_TRY(check_grads(unit));
    return zr_rt_note(runtime, acquire(unit, pass));
}

zr_status_t zr_unit_release(zr_unit_t *unit) {
    zr_runtime_t *runtime = unit->runtime;
    ZR_TRY(zr_rt_check_ready(runtime, "zr_unit_release"));
    if (unit->n_acquired == 0)
        return zr_fail(&runtime->log, ZR_ERR_STATE, "unit \"%s\" is released but not acquired",
                       unit->name);
    unit->n_acquired--;
    if (unit->n_acquired == 0) {
        bool had_params = unit->has_params;
        if (unit->released != NULL && runtime->in_micro_batch)
            ZR_TRY(zr_rt_note(runtime, zr_event_record(unit->released, runtime->compute)));
        unit->has_params = false;
        unit->has_grads = false;
        /* Without, they are gathered ahead of their use: compute has not waited for them. */
        if (had_params && (runtime->config.reuse_elems == 0 || !is_reused_soon(unit)))
            drop_gathered(unit, runtime->compute);
    }
    return ZR_OK;
}

zr_status_t zr_unit_reduce(zr_unit_t *unit) {
    zr_runtime_t *runtime = unit->runtime;
    ZR_TRY(zr_rt_check_ready(runtime, "zr_unit_reduce"));
    if (!unit->has_grads || unit->reduced)
        return zr_fail(&runtime->log, ZR_ERR_STATE, "unit \"%s\" is reduced %s", unit->name,
                       unit->reduced ? "twice in a micro-batch"
                                     : "but was not acquired with gradients");
    unit->reduced = true;
    unit->has_grads = false;
    if (has_trainable(unit) && zr_rt_is_last_micro_batch(runtime))
        runtime->reduced[runtime->n_reduced++] = unit;
    return has_trainable(unit) ? zr_rt_note(runtime, reduce(unit)) : ZR_OK;
}

static zr_status_t check_begin(const zr_runtime_t *runtime, size_t n) {
    if (runtime->micro_batch == runtime->config.grad_accum)
        return zr_fail(&runtime->log, ZR_ERR_STATE,
                       "the step has %s, and all are begun; call zr_runtime_step",
                       zr_count_text(runtime->config.grad_accum, "micro-batch").text);
    if (n == 0 || n > runtime->config.grad_accum - runtime->micro_batch)
        return zr_fail(&runtime->log, ZR_ERR_ARGUMENT,
                       "%s cannot begin together: the step has %zu left",
                       zr_count_text(n, "micro-batch").text,
                       runtime->config.grad_accum - runtime->micro_batch);
    for (size_t i = 0; i < runtime->n_units; i++) {
        const zr_unit_t *unit = runtime->units[i];
        if (runtime->micro_batch > 0 && has_trainable(unit) && !unit->reduced)
            return zr_fail(&runtime->log, ZR_ERR_STATE,
                           "unit \"%s\" was not reduced in micro-batch %zu", unit->name,
                           runtime->micro_batch);
    }
    return ZR_OK;
}

zr_status_t zr_runtime_begin_micro_batches(zr_runtime_t *runtime, size_t n) {
    ZR_TRY(zr_rt_check_ready(runtime, "zr_runtime_begin_micro_batch"));
    ZR_TRY(check_begin(runtime, n));
    for (size_t i = 0; i < runtime->n_units; i++) {
        zr_unit_t *unit = runtime->units[i];
        unit->reduced = false;
        ZR_TRY(zr_rt_note(runtime, await_and_drop(unit)));
    }
    /* Gradients that are kept are overwritten, and may still be read by their reduction. */
    if (zr_rt_keeps_full_grads(runtime) && runtime->micro_batch > 0)
        ZR_TRY(zr_rt_note(runtime, zr_rt_order(runtime, runtime->transfer, runtime->compute)));
    ZR_TRY(zr_rt_note(runtime, zr_params_read_ahead(runtime)));
    runtime->micro_batch += n;
    runtime->n_begins++;
    runtime->n_reduced = 0;
    zr_rt_mark(runtime, NULL, ZR_FORWARD);
    runtime->in_micro_batch = true;
    runtime->order_position = 0;
    return ZR_OK;
}

zr_status_t zr_runtime_begin_micro_batch(zr_runtime_t *runtime) {
    return zr_runtime_begin_micro_batches(runtime, 1);
}

const void *zr_param_data(const zr_param_t *param) {
    const zr_unit_t *unit = param->unit;
    void *full = unit->data[param->layout.frozen ? FLAT_FROZEN : FLAT_TRAINABLE].full;
    if (!unit->has_params || full == NULL)
        return NULL;
    return zr_rt_at(unit->runtime, full, param->layout.offset_elems);
}

zr_status_t zr_param_grad(zr_param_t *param, void **grad_p, bool *accumulate_p) {
    zr_unit_t *unit = param->unit;
    zr_runtime_t *runtime = unit->runtime;
    ZR_TRY(zr_rt_check_ready(runtime, "zr_param_grad"));
    if (param->layout.frozen || !unit->has_grads)
        return zr_fail(
            &runtime->log, ZR_ERR_STATE, "parameter \"%s\" has no gradient: %s", param->name,
            param->layout.frozen ? "it is frozen" : "its unit is not acquired with gradients");
    if (grad_p == NULL)
        return zr_fail(&runtime->log, ZR_ERR_ARGUMENT,
                       "no place (NULL) for the gradient of parameter \"%s\"", param->name);
    size_t first = param->layout.offset_elems;
    if (accumulate_p == NULL && !param->grad_written)
        ZR_TRY(zr_rt_note(
            runtime, zero_grads(runtime, unit->grad_full, first, first + param->layout.n_elems)));
    if (accumulate_p != NULL)
        *accumulate_p = param->grad_written;
    param->grad_written = true;
    *grad_p = zr_rt_at(runtime, unit->grad_full, first);
    return ZR_OK;
}

size_t zr_param_n_elems(const zr_param_t *param) {
    return param->layout.n_elems;
}

bool zr_param_is_frozen(const zr_param_t *param) {
    return param->layout.frozen;
}

const char *zr_param_name(const zr_param_t *param) {
    return param->name;
}

const char *zr_unit_name(const zr_unit_t *unit) {
    return unit->name;
}
