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

#include <string.h>

/* ---- gathering ---- */

static bool is_gathered(const zr_unit_t *unit) {
    for (int kind = 0; kind < N_FLATS; kind++)
        if (unit->flat[kind].padded_elems != 0 && unit->data[kind].full == NULL)
            return false;
    return true;
}

/* This rank's shard, as it is kept: on the device, or brought to its place in `whole`. */
static zr_status_t bring_own(zr_runtime_t *runtime, zr_unit_t *unit, int kind, void *whole,
                             void **own_p) {
    *own_p = unit->data[kind].own;
    if (!zr_unit_is_offloaded(unit, kind))
        return ZR_OK;
    *own_p = zr_unit_at(unit, kind, whole, zr_unit_own_first(unit, kind));
    return zr_params_fetch(&runtime->params, unit, kind, *own_p);
}

/* All shards of a flat buffer that is encoded, to `whole`. */
static zr_status_t collect(zr_runtime_t *runtime, zr_unit_t *unit, int kind, void *whole) {
    const zr_base_t *base = &runtime->base;
    zr_message_t message = {.tensor = unit->params_tensor,
                            .encoding = zr_unit_encoding(unit, kind),
                            .traffic = ZR_TRAFFIC_MODEL};
    void *own = NULL;
    ZR_TRY(bring_own(runtime, unit, kind, whole, &own));
    return zr_comm_all_gather(base->sharding.group, &message, own, whole,
                              unit->flat[kind].shard_elems, base->transfer);
}

/* What is encoded crosses links so, and is decoded here. */
static zr_status_t decode(zr_runtime_t *runtime, zr_unit_t *unit, int kind) {
    const zr_base_t *base = &runtime->base;
    const zr_encoding_t *encoding = zr_unit_encoding(unit, kind);
    zr_unit_params_t *data = &unit->data[kind];
    size_t n_elems = unit->flat[kind].padded_elems;
    void *blocks = data->own, *whole = NULL;
    zr_status_t status = ZR_OK;
    if (!zr_unit_keeps_full(unit, kind)) {
        ZR_TRY(zr_base_allocate(base, zr_unit_bytes(unit, kind, n_elems),
                                ZR_TAG_GATHERED_PARAMETERS, ZR_LIFETIME_COLLECTIVE,
                                unit->params_tensor, base->transfer, &whole));
        blocks = whole;
        status = collect(runtime, unit, kind, whole);
    }
    ZR_THEN(status, encoding->queue_decode(encoding, base->transfer, blocks, n_elems, data->full,
                                           base->config.dtype));
    zr_free(base->allocator, &whole, base->transfer);
    return status;
}

static zr_status_t gather_flat(zr_runtime_t *runtime, zr_unit_t *unit, int kind) {
    const zr_base_t *base = &runtime->base;
    const zr_flat_t *flat = &unit->flat[kind];
    zr_unit_params_t *data = &unit->data[kind];
    ZR_TRY(zr_base_allocate(base, zr_base_bytes(base, flat->padded_elems),
                            ZR_TAG_GATHERED_PARAMETERS, ZR_LIFETIME_UNIT, unit->params_tensor,
                            base->transfer, &data->full));
    runtime->gathers.n_elems += flat->padded_elems;
    if (zr_unit_is_encoded(unit, kind))
        return decode(runtime, unit, kind);
    zr_encoded_t gathered = zr_encoded_params(base, unit->params_tensor);
    void *own = NULL;
    ZR_TRY(bring_own(runtime, unit, kind, data->full, &own));
    return zr_encoded_all_gather(&gathered, own, data->full, flat->shard_elems);
}

static zr_status_t gather(zr_runtime_t *runtime, zr_unit_t *unit) {
    for (int kind = 0; kind < N_FLATS; kind++)
        if (unit->flat[kind].padded_elems != 0 && unit->data[kind].full == NULL)
            ZR_TRY(gather_flat(runtime, unit, kind));
    return zr_event_record(unit->gathered, runtime->base.transfer);
}

/* Behind their last user, or NULL: it has been waited for. */
static void drop_gathered(zr_gathers_t *gathers, zr_unit_t *unit, zr_stream_t *stream) {
    for (int kind = 0; kind < N_FLATS; kind++) {
        zr_unit_params_t *data = &unit->data[kind];
        if (data->full == data->own || data->full == NULL)
            continue;
        gathers->n_elems -= unit->flat[kind].padded_elems;
        zr_free(unit->base->allocator, &data->full, stream);
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

void zr_unit_drop_gathered(zr_runtime_t *runtime, zr_unit_t *unit) {
    if (can_drop(unit))
        drop_gathered(&runtime->gathers, unit, NULL);
}

/* Nobody has to have read what was gathered ahead: its gather may still be under way. */
static zr_status_t await_and_drop(zr_gathers_t *gathers, zr_unit_t *unit) {
    if (!can_drop(unit))
        return ZR_OK;
    ZR_TRY(zr_stream_wait(unit->base->compute, unit->gathered));
    drop_gathered(gathers, unit, unit->base->compute);
    return ZR_OK;
}

/* ---- recorded order ---- */

/* The one that is recorded and followed now. */
static zr_gather_order_t *order_now(zr_runtime_t *runtime) {
    return &runtime->gathers.orders[runtime->base.progress.in_evaluation];
}

static zr_status_t append_order(zr_gather_order_t *order, zr_unit_t *unit) {
    if (!zr_heap_make_room(unit->base->heap, &order->units, order->n, &order->capacity,
                           sizeof(zr_unit_t *)))
        return zr_base_no_memory(unit->base, "the order of units");
    order->units[order->n++] = unit;
    return ZR_OK;
}

/* All ranks may change their order together (the communicator finds the one that does not):
 * what was gathered for the old order is dropped, and recording goes on from here. */
static zr_status_t forget_order(zr_runtime_t *runtime, const zr_unit_t *unit) {
    zr_gather_order_t *order = order_now(runtime);
    const zr_units_t *model = &runtime->model;
    zr_log_write(&runtime->base.log, ZR_LOG_INFO,
                 "the order of units changed at position %zu: \"%s\" instead of \"%s\"; it is "
                 "recorded again",
                 order->position, unit->name, order->units[order->position]->name);
    order->n = order->position;
    for (size_t i = 0; i < model->n_units; i++)
        if (model->units[i] != unit)
            ZR_TRY(await_and_drop(&runtime->gathers, model->units[i]));
    return ZR_OK;
}

static zr_status_t follow_order(zr_runtime_t *runtime, zr_unit_t *unit) {
    zr_gather_order_t *order = order_now(runtime);
    if (order->position < order->n && order->units[order->position] != unit)
        ZR_TRY(forget_order(runtime, unit));
    if (order->position == order->n)
        ZR_TRY(append_order(order, unit));
    order->position++;
    return ZR_OK;
}

static size_t padded_elems(const zr_unit_t *unit) {
    return unit->flat[FLAT_TRAINABLE].padded_elems + unit->flat[FLAT_FROZEN].padded_elems;
}

/* Gather the next unit of the recorded order ahead of its use: one, so that at most one unit
 * more than those acquired is in memory. */
static zr_status_t prefetch(zr_runtime_t *runtime) {
    const zr_gather_order_t *order = order_now(runtime);
    const zr_config_t *config = &runtime->base.config;
    if (config->prefetch_elems == 0 || order->position >= order->n)
        return ZR_OK;
    zr_unit_t *next = order->units[order->position];
    if (next->n_acquired != 0 || is_gathered(next) || padded_elems(next) > config->prefetch_elems ||
        runtime->gathers.n_elems + padded_elems(next) > config->max_live_elems)
        return ZR_OK;
    return gather(runtime, next);
}

/* The limit that keeps a unit from being prefetched beside one like it; NULL: none. */
static const char *limit_of_prefetch(const zr_config_t *config, size_t elems) {
    return elems > config->prefetch_elems       ? "--prefetch (stage3_prefetch_bucket_size)"
           : elems > config->max_live_elems / 2 ? "--max-live (stage3_max_live_parameters)"
                                                : NULL;
}

void zr_unit_warn_of_prefetch(const zr_runtime_t *runtime) {
    const zr_base_t *base = &runtime->base;
    const zr_units_t *model = &runtime->model;
    size_t n = 0, largest = 0;
    for (size_t i = 0; i < model->n_units; i++) {
        size_t elems = padded_elems(model->units[i]);
        n += limit_of_prefetch(&base->config, elems) != NULL;
        largest = elems > largest ? elems : largest;
    }
    if (base->rank != 0 || zr_base_keeps_full_params(base) || base->config.prefetch_elems == 0 ||
        2 * n <= model->n_units)
        return;
    zr_log_write(&base->log, ZR_LOG_WARNING,
                 "%zu of %s are not gathered ahead but waited for: they have up to %zu parameters, "
                 "and %s leaves no room for the next one; \"all\" does",
                 n, zr_count_text(model->n_units, "unit").text, largest,
                 limit_of_prefetch(&base->config, largest));
}

/* Whether a unit that is released now is needed again soon enough to stay gathered. */
static bool is_reused_soon(const zr_gathers_t *gathers, const zr_unit_t *unit) {
    const zr_gather_order_t *order = &gathers->orders[0];
    const zr_config_t *config = &unit->base->config;
    size_t distance = 0;
    if (!unit->base->progress.in_micro_batch || gathers->n_elems > config->max_live_elems)
        return false;
    for (size_t i = order->position; i < order->n; i++) {
        if (order->units[i] == unit)
            return true;
        distance += padded_elems(order->units[i]);
        if (distance > config->reuse_elems)
            return false;
    }
    return false;
}

static zr_status_t acquire_params(zr_runtime_t *runtime, zr_unit_t *unit) {
    const zr_base_t *base = &runtime->base;
    if (zr_base_keeps_full_params(base) && !zr_unit_is_encoded(unit, FLAT_FROZEN))
        return ZR_OK;
    if (zr_base_has_order(base))
        ZR_TRY(follow_order(runtime, unit));
    if (!is_gathered(unit))
        ZR_TRY(gather(runtime, unit));
    if (base->transfer != base->compute)
        ZR_TRY(zr_stream_wait(base->compute, unit->gathered));
    return zr_base_has_order(base) ? prefetch(runtime) : ZR_OK;
}

/* ---- gradients ---- */

static bool has_trainable(const zr_unit_t *unit) {
    return unit->flat[FLAT_TRAINABLE].padded_elems != 0;
}

/* The next parameter of the trainable flat buffer that starts at or after `from`. */
static const zr_layout_param_t *next_param(const zr_unit_t *unit, size_t from) {
    const zr_layout_param_t *next = NULL;
    for (size_t i = 0; i < unit->n_params; i++) {
        const zr_layout_param_t *layout = &unit->params[i]->about->layout;
        if (!layout->frozen && layout->n_elems != 0 && layout->offset_elems >= from &&
            (next == NULL || layout->offset_elems < next->offset_elems))
            next = layout;
    }
    return next;
}

static zr_status_t zero_grads(const zr_unit_t *unit, size_t first, size_t end) {
    const zr_base_t *base = unit->base;
    return zr_kernel_fill(base->compute, zr_base_at(base, unit->grad_full, first),
                          base->config.dtype, end - first, 0.0f);
}

/* What no parameter covers must be zero in the sums and the norm. */
static zr_status_t zero_gaps(zr_unit_t *unit) {
    const zr_flat_t *flat = &unit->flat[FLAT_TRAINABLE];
    size_t covered = 0;
    for (const zr_layout_param_t *next = next_param(unit, 0); next != NULL;
         next = next_param(unit, covered)) {
        ZR_TRY(zero_grads(unit, covered, next->offset_elems));
        covered = next->offset_elems + next->n_elems;
    }
    return zero_grads(unit, covered, flat->padded_elems);
}

static zr_status_t check_grads(const zr_unit_t *unit) {
    const zr_base_t *base = unit->base;
    if (base->progress.in_micro_batch && zr_unit_is_reduced(unit))
        return zr_fail(&base->log, ZR_ERR_STATE,
                       "unit \"%s\": gradients were reduced in this micro-batch already",
                       unit->name);
    if (!base->progress.in_micro_batch)
        return zr_fail(&base->log, ZR_ERR_STATE,
                       "unit \"%s\": gradients outside a micro-batch; call "
                       "zr_runtime_begin_micro_batch first",
                       unit->name);
    return ZR_OK;
}

static zr_status_t acquire_grads(zr_unit_t *unit) {
    const zr_base_t *base = unit->base;
    if (!has_trainable(unit))
        return ZR_OK;
    if (zr_base_keeps_full_grads(base)) /* they may still be read by the last reduction */
        return unit->n_reduced > 0 ? zr_base_order(base, base->transfer, base->compute) : ZR_OK;
    if (unit->grad_full != NULL)
        return ZR_OK;
    ZR_TRY(zr_base_allocate(base, zr_base_bytes(base, unit->flat[FLAT_TRAINABLE].padded_elems),
                            ZR_TAG_GRADIENT_BUCKETS, ZR_LIFETIME_UNIT, unit->grads_tensor,
                            base->compute, &unit->grad_full));
    return zero_gaps(unit);
}

static zr_status_t zero_missing_grads(zr_unit_t *unit) {
    for (size_t i = 0; i < unit->n_params; i++) {
        zr_param_t *param = unit->params[i];
        if (param->about->layout.frozen || param->grad_written || param->about->layout.n_elems == 0)
            continue;
        size_t first = param->about->layout.offset_elems;
        ZR_TRY(zero_grads(unit, first, first + param->about->layout.n_elems));
        param->grad_written = true;
    }
    return ZR_OK;
}

static void forget_grads(zr_unit_t *unit) {
    for (size_t i = 0; i < unit->n_params; i++)
        unit->params[i]->grad_written = false;
}

/* Whoever else has acquired it would compute with new parameters. */
static zr_status_t check_sole_use(const zr_unit_t *unit) {
    if (unit->n_acquired == 1)
        return ZR_OK;
    return zr_fail(&unit->base->log, ZR_ERR_STATE,
                   "unit \"%s\" is reduced while it is acquired %d times: --update-at backward "
                   "updates its parameters from now on",
                   unit->name, unit->n_acquired);
}

/* Update it; what that takes of a unit that was acquired for its gradients alone is gathered. */
static zr_status_t follow(zr_runtime_t *runtime, zr_unit_t *unit) {
    const zr_base_t *base = unit->base;
    const zr_unit_params_t *data = &unit->data[FLAT_TRAINABLE];
    bool is_missing =
        runtime->params.is_taken_gathered && data->tier == ZR_TIER_NVME && data->full == NULL;
    if (is_missing) {
        ZR_TRY(gather_flat(runtime, unit, FLAT_TRAINABLE));
        ZR_TRY(zr_event_record(unit->gathered, base->transfer));
        ZR_TRY(zr_stream_wait(base->compute, unit->gathered));
    }
    ZR_TRY(zr_step_follow(runtime, unit));
    if (is_missing)
        drop_gathered(&runtime->gathers, unit, base->compute);
    return ZR_OK;
}

static zr_status_t reduce(zr_runtime_t *runtime, zr_unit_t *unit) {
    zr_grads_t *grads = &runtime->grads;
    if (!zr_base_reduces_every_micro_batch(unit->base) && !zr_unit_ends_sum(unit))
        return ZR_OK;
    unit->is_updated = zr_unit_ends_sum(unit) && zr_base_updates_in_backward(unit->base);
    if (unit->is_updated)
        ZR_TRY(check_sole_use(unit));
    ZR_TRY(zero_missing_grads(unit));
    ZR_TRY(zr_grads_reduce(grads, unit));
    forget_grads(unit);
    return unit->is_updated ? follow(runtime, unit) : ZR_OK;
}

/* ---- public calls ---- */

/* Tell the recorder and the allocator what computes from now on in this micro-batch; NULL: no unit
 * yet. */
static void mark(zr_base_t *base, const zr_unit_t *unit, zr_pass_t pass) {
    const char *phase = pass == ZR_FORWARD ? "forward" : "backward";
    zr_trace_t *trace = zr_device_trace(base->device);
    size_t step = base->progress.n_steps + 1, micro_batch = base->progress.at;
    if (trace != NULL)
        zr_trace_at(trace, zr_base_now(base),
                    &(zr_trace_place_t){.step = step,
                                        .micro_batch = micro_batch,
                                        .phase = unit != NULL ? phase : NULL,
                                        .unit = unit != NULL ? unit->name : NULL});
    zr_allocator_mark(base->allocator, &(zr_mark_t){.step = step,
                                                    .micro_batch = micro_batch,
                                                    .unit = unit != NULL ? unit->index : ZR_NO_UNIT,
                                                    .pass = (int)pass});
    base->progress.marked = unit;
    base->progress.marked_pass = pass;
}

void zr_runtime_at_micro_batch(zr_runtime_t *runtime, size_t index) {
    zr_progress_t *progress = &runtime->base.progress;
    size_t at = progress->micro_batch - progress->n_together + 1 + index;
    if (!progress->in_micro_batch || index >= progress->n_together || at == progress->at)
        return;
    progress->at = at;
    mark(&runtime->base, progress->marked, progress->marked_pass);
}

static bool has_gradients(zr_pass_t pass) {
    return pass == ZR_BACKWARD || pass == ZR_GRADIENTS;
}

void zr_rt_keep_moving(void *context) {
    const zr_runtime_t *runtime = context;
    if (runtime->nvme.store != NULL)
        zr_store_progress(runtime->nvme.store);
}

static zr_status_t acquire(zr_runtime_t *runtime, zr_unit_t *unit, zr_pass_t pass) {
    if (runtime->base.progress.in_micro_batch && unit->is_updated)
        return zr_fail(
            &runtime->base.log, ZR_ERR_STATE,
            "unit \"%s\" is acquired after its last reduction in the step: its parameters are "
            "updated already (--update-at backward); reduce it after its last "
            "use, or update at the end",
            unit->name);
    if (runtime->base.progress.in_micro_batch)
        mark(&runtime->base, unit, pass);
    zr_rt_keep_moving(runtime);
    if (pass != ZR_GRADIENTS)
        ZR_TRY(acquire_params(runtime, unit));
    if (has_gradients(pass))
        ZR_TRY(acquire_grads(unit));
    unit->n_acquired++;
    unit->has_params = unit->has_params || pass != ZR_GRADIENTS;
    unit->has_grads = unit->has_grads || has_gradients(pass);
    return ZR_OK;
}

zr_status_t zr_unit_acquire(zr_unit_t *unit, zr_pass_t pass) {
    zr_runtime_t *runtime = unit->runtime;
    ZR_TRY(zr_rt_check_ready(runtime, "zr_unit_acquire"));
    if (pass != ZR_FORWARD && pass != ZR_BACKWARD_PARAMS && !has_gradients(pass))
        return zr_fail(&runtime->base.log, ZR_ERR_ARGUMENT, "unit \"%s\": there is no pass %d",
                       unit->name, (int)pass);
    if (has_gradients(pass))
        ZR_TRY(check_grads(unit));
    return zr_rt_note(runtime, acquire(runtime, unit, pass));
}

zr_status_t zr_unit_release(zr_unit_t *unit) {
    zr_runtime_t *runtime = unit->runtime;
    const zr_base_t *base = unit->base;
    ZR_TRY(zr_rt_check_ready(runtime, "zr_unit_release"));
    if (unit->n_acquired == 0)
        return zr_fail(&runtime->base.log, ZR_ERR_STATE, "unit \"%s\" is released but not acquired",
                       unit->name);
    unit->n_acquired--;
    if (unit->n_acquired == 0) {
        bool had_params = unit->has_params;
        unit->has_params = false;
        unit->has_grads = false;
        /* Without, they are gathered ahead of their use: compute has not waited for them. */
        if (had_params &&
            (base->config.reuse_elems == 0 || !is_reused_soon(&runtime->gathers, unit)))
            drop_gathered(&runtime->gathers, unit, base->compute);
    }
    return ZR_OK;
}

zr_status_t zr_unit_reduce(zr_unit_t *unit) {
    zr_runtime_t *runtime = unit->runtime;
    ZR_TRY(zr_rt_check_ready(runtime, "zr_unit_reduce"));
    bool is_reduced = runtime->base.progress.in_micro_batch && zr_unit_is_reduced(unit);
    if (!unit->has_grads || is_reduced)
        return zr_fail(&runtime->base.log, ZR_ERR_STATE, "unit \"%s\" is reduced %s", unit->name,
                       is_reduced ? "twice in a micro-batch"
                                  : "but was not acquired with gradients");
    unit->has_grads = false;
    zr_status_t status = has_trainable(unit) ? reduce(runtime, unit) : ZR_OK;
    unit->n_reduced += zr_base_micro_batches_per_reduction(&runtime->base);
    return zr_rt_note(runtime, status);
}

zr_status_t zr_unit_check_reduced(const zr_unit_t *unit) {
    const zr_progress_t *progress = &unit->base->progress;
    if (!has_trainable(unit) || zr_unit_is_reduced(unit))
        return ZR_OK;
    return zr_fail(&unit->base->log, ZR_ERR_STATE, "unit \"%s\" was not reduced in micro-batch %zu",
                   unit->name, progress->micro_batch - progress->n_together + unit->n_reduced + 1);
}

static zr_status_t check_begin(const zr_runtime_t *runtime, size_t n) {
    const zr_base_t *base = &runtime->base;
    size_t n_begun = base->progress.micro_batch, n_left = base->config.grad_accum - n_begun;
    if (n_left == 0)
        return zr_fail(&base->log, ZR_ERR_STATE,
                       "the step has %s, and all are begun; call zr_runtime_step",
                       zr_count_text(n_begun, "micro-batch").text);
    if (n == 0 || n > n_left)
        return zr_fail(&base->log, ZR_ERR_ARGUMENT,
                       "%s cannot begin together: the step has %zu left",
                       zr_count_text(n, "micro-batch").text, n_left);
    if (!zr_base_keeps_grads(base) && n < n_left)
        return zr_fail(&base->log, ZR_ERR_ARGUMENT,
                       "%s of %zu: with --update-at backward and --order block no gradients are "
                       "kept between micro-batches; begin all micro-batches of a step together",
                       zr_count_text(n, "micro-batch").text, n_left);
    for (size_t i = 0; i < runtime->model.n_units && n_begun > 0; i++)
        ZR_TRY(zr_unit_check_reduced(runtime->model.units[i]));
    return ZR_OK;
}

zr_status_t zr_rt_begin(zr_runtime_t *runtime, size_t n) {
    zr_base_t *base = &runtime->base;
    for (size_t i = 0; i < runtime->model.n_units; i++) {
        zr_unit_t *unit = runtime->model.units[i];
        unit->n_reduced = 0;
        unit->is_updated = false;
        ZR_TRY(await_and_drop(&runtime->gathers, unit));
    }
    /* Gradients that are kept are overwritten, and may still be read by their reduction. */
    if (zr_base_keeps_full_grads(base) && base->progress.micro_batch > 0)
        ZR_TRY(zr_base_order(base, base->transfer, base->compute));
    base->progress.in_evaluation = false;
    ZR_TRY(zr_params_read_ahead(&runtime->params));
    base->progress.at = base->progress.micro_batch + 1;
    base->progress.micro_batch += n;
    base->progress.n_together = n;
    base->progress.n_begins++;
    runtime->grads.n_reduced = 0;
    ZR_TRY(zr_grads_drive_begin_micro_batch(&runtime->grads.drive));
    mark(base, NULL, ZR_FORWARD);
    base->progress.in_micro_batch = true;
    runtime->gathers.orders[0].position = 0;
    bool is_last = zr_base_is_last_micro_batch(base) && zr_base_updates_in_backward(base);
    return is_last ? zr_step_read_ahead(runtime) : ZR_OK;
}

size_t zr_runtime_micro_batches_left(const zr_runtime_t *runtime) {
    return runtime->base.config.grad_accum - runtime->base.progress.micro_batch;
}

zr_status_t zr_runtime_begin_micro_batches(zr_runtime_t *runtime, size_t n) {
    ZR_TRY(zr_rt_check_ready(runtime, "zr_runtime_begin_micro_batch"));
    ZR_TRY(check_begin(runtime, n));
    return zr_rt_note(runtime, zr_rt_begin(runtime, n));
}

zr_status_t zr_runtime_begin_micro_batch(zr_runtime_t *runtime) {
    return zr_runtime_begin_micro_batches(runtime, 1);
}

/* Sums of gradients start anew with the first micro-batch of a step, whatever they hold. */
static zr_status_t drop_step(zr_runtime_t *runtime) {
    zr_base_t *base = &runtime->base;
    for (size_t i = 0; i < runtime->model.n_units; i++) {
        zr_unit_t *unit = runtime->model.units[i];
        ZR_TRY(await_and_drop(&runtime->gathers, unit));
        forget_grads(unit);
        unit->n_reduced = 0;
        zr_unit_take_in(unit, false);
        zr_free(base->allocator, &unit->grad_held, base->transfer);
        if (!zr_base_keeps_full_grads(base)) /* a bucket that was not reduced */
            zr_free(base->allocator, &unit->grad_full, base->compute);
    }
    ZR_TRY(zr_grads_drive_drop_step(&runtime->grads.drive));
    if (runtime->reads_ahead && !runtime->is_updating) {
        ZR_TRY(zr_state_skip_update(&runtime->state));
        runtime->reads_ahead = false;
    }
    base->progress.micro_batch = base->progress.n_begins = base->progress.n_together = 0;
    base->progress.in_micro_batch = false;
    zr_trace_at(zr_device_trace(base->device), zr_base_now(base), &(zr_trace_place_t){0});
    return zr_base_order(base, base->transfer, base->compute); /* which reads what they were */
}

static bool has_reduced(const zr_runtime_t *runtime) {
    for (size_t i = 0; i < runtime->model.n_units; i++)
        if (runtime->model.units[i]->n_reduced > 0)
            return true;
    return false;
}

zr_status_t zr_runtime_drop_step(zr_runtime_t *runtime) {
    const zr_base_t *base = &runtime->base;
    ZR_TRY(zr_rt_check_ready(runtime, "zr_runtime_drop_step"));
    if (base->progress.micro_batch == 0)
        return ZR_OK;
    bool has_begun = has_reduced(runtime);
    for (size_t i = 0; i < runtime->model.n_units; i++) {
        const zr_unit_t *unit = runtime->model.units[i];
        if (unit->n_acquired != 0)
            return zr_fail(&base->log, ZR_ERR_STATE,
                           "zr_runtime_drop_step while unit \"%s\" is acquired", unit->name);
        if (unit->is_updated)
            return zr_fail(&base->log, ZR_ERR_STATE,
                           "zr_runtime_drop_step after unit \"%s\" was updated in backward "
                           "(--update-at backward)",
                           unit->name);
        if (has_begun)
            ZR_TRY(zr_unit_check_reduced(unit));
    }
    return zr_rt_note(runtime, drop_step(runtime));
}

zr_status_t zr_runtime_begin_evaluation(zr_runtime_t *runtime) {
    zr_base_t *base = &runtime->base;
    ZR_TRY(zr_rt_check_ready(runtime, "zr_runtime_begin_evaluation"));
    if (base->progress.micro_batch != 0)
        return zr_fail(&base->log, ZR_ERR_STATE,
                       "zr_runtime_begin_evaluation after %zu of %s; evaluate between steps",
                       base->progress.micro_batch,
                       zr_count_text(base->config.grad_accum, "micro-batch").text);
    zr_allocator_replay_pause(base->allocator);
    base->progress.in_evaluation = true;
    runtime->gathers.orders[1].position = 0;
    return zr_rt_note(runtime, zr_params_read_ahead(&runtime->params));
}

const void *zr_param_data(const zr_param_t *param) {
    const zr_unit_t *unit = param->unit;
    void *full = unit->data[param->about->layout.frozen ? FLAT_FROZEN : FLAT_TRAINABLE].full;
    if (!unit->has_params || full == NULL)
        return NULL;
    return zr_base_at(unit->base, full, param->about->layout.offset_elems);
}

zr_status_t zr_param_grad(zr_param_t *param, void **grad_p, bool *accumulate_p) {
    zr_unit_t *unit = param->unit;
    zr_runtime_t *runtime = unit->runtime;
    ZR_TRY(zr_rt_check_ready(runtime, "zr_param_grad"));
    if (param->about->layout.frozen || !unit->has_grads)
        return zr_fail(&runtime->base.log, ZR_ERR_STATE, "parameter \"%s\" has no gradient: %s",
                       param->about->name,
                       param->about->layout.frozen ? "it is frozen"
                                                   : "its unit is not acquired with gradients");
    if (grad_p == NULL)
        return zr_fail(&runtime->base.log, ZR_ERR_ARGUMENT,
                       "no output pointer (NULL) for the gradient of parameter \"%s\"",
                       param->about->name);
    if (runtime->reads_ahead) /* in backward, between updates */
        zr_rt_keep_moving(runtime);
    size_t first = param->about->layout.offset_elems;
    if (accumulate_p == NULL && !param->grad_written)
        ZR_TRY(zr_rt_note(runtime, zero_grads(unit, first, first + param->about->layout.n_elems)));
    if (accumulate_p != NULL)
        *accumulate_p = param->grad_written;
    param->grad_written = true;
    *grad_p = zr_base_at(unit->base, unit->grad_full, first);
    return ZR_OK;
}

size_t zr_param_n_elems(const zr_param_t *param) {
    return param->about->layout.n_elems;
}

bool zr_param_is_frozen(const zr_param_t *param) {
    return param->about->layout.frozen;
}

const char *zr_param_name(const zr_param_t *param) {
    return param->about->name;
}

const zr_unit_t *zr_param_unit(const zr_param_t *param) {
    return param->unit;
}

int zr_param_dims(const zr_param_t *param, size_t dims_p[4]) {
    memcpy(dims_p, param->about->dims, (size_t)param->about->n_dims * sizeof(*dims_p));
    return param->about->n_dims;
}

const char *zr_unit_name(const zr_unit_t *unit) {
    return unit->name;
}
