/* See outer_internal.h. */
#include "zero/outer_internal.h"

#include "kernels/sgd_math.h"

/* What an outer step of a unit works with, on the device: [n_elems] each of what this rank updates.
 */
typedef struct work {
    zr_runtime_t *runtime;
    zr_unit_t *unit;
    zr_state_range_t range;
    float *anchor; /* the parameters that groups began with; in the end, those that they go on
                      from */
    float *momentum;
    float *master; /* this group's; then what it has moved by, backwards */
    void *moved;   /* the same in the dtype; == master where that is fp32 */
    void *params;  /* new ones, in the dtype */
} work_t;

static bool is_float(const zr_base_t *base) {
    return base->config.dtype == ZR_DTYPE_F32;
}

static zr_status_t take(const work_t *work, size_t size_bytes, void **pointer_p) {
    const zr_base_t *base = work->unit->base;
    return zr_base_allocate(base, size_bytes, ZR_TAG_WORKSPACE, ZR_LIFETIME_UNIT,
                            work->unit->state_tensor, base->compute, pointer_p);
}

static zr_status_t take_all(work_t *work) {
    const zr_base_t *base = work->unit->base;
    size_t n = work->range.n_elems;
    ZR_TRY(take(work, n * sizeof(float), (void **)&work->anchor));
    ZR_TRY(take(work, n * sizeof(float), (void **)&work->momentum));
    ZR_TRY(take(work, n * sizeof(float), (void **)&work->master));
    ZR_TRY(take(work, zr_base_bytes(base, n), &work->params));
    work->moved = work->master;
    return is_float(base) ? ZR_OK : take(work, zr_base_bytes(base, n), &work->moved);
}

static void give_back_all(work_t *work) {
    const zr_base_t *base = work->unit->base;
    if (work->moved == work->master)
        work->moved = NULL;
    void **all[] = {&work->moved, &work->params, (void **)&work->master, (void **)&work->momentum,
                    (void **)&work->anchor};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        zr_free(base->allocator, all[i], base->compute);
}

/* An array, through the staging buffer on the host. */
static zr_status_t read_array(const work_t *work, size_t array, float *device) {
    float *host = work->runtime->exchange.staging_host;
    for (size_t done = 0, n = 0; done < work->range.n_elems; done += n) {
        size_t left = work->range.n_elems - done;
        n = left < ZR_STAGING_ELEMS ? left : ZR_STAGING_ELEMS;
        ZR_TRY(zr_state_read(&work->runtime->state, work->unit, array, work->range.first + done, n,
                             device + done, host));
    }
    return ZR_OK;
}

/* anchor - master. */
static zr_status_t find_moved(const work_t *work) {
    const zr_base_t *base = work->unit->base;
    size_t n = work->range.n_elems, anchor = zr_state_anchor(&work->runtime->state);
    ZR_TRY(read_array(work, 0, work->master));
    ZR_TRY(read_array(work, anchor, work->anchor));
    ZR_TRY(read_array(work, anchor + 1, work->momentum));
    ZR_TRY(zr_kernel_scale(base->compute, work->master, ZR_DTYPE_F32, n, -1.0f));
    ZR_TRY(zr_kernel_add(base->compute, work->master, ZR_DTYPE_F32, work->anchor, ZR_DTYPE_F32, n));
    return is_float(base) ? ZR_OK
                          : zr_kernel_cast(base->compute, work->moved, base->config.dtype,
                                           work->master, ZR_DTYPE_F32, n);
}

/* The sum over the groups. At stage 0 each rank of a group sees to its slice. */
static zr_status_t add_groups(const work_t *work) {
    const zr_unit_t *unit = work->unit;
    const zr_base_t *base = unit->base;
    size_t shard = unit->flat[FLAT_TRAINABLE].shard_elems;
    zr_encoded_t between = zr_encoded_grads(base, base->sharding.replicas, unit->grads_tensor);
    zr_encoded_t within = zr_encoded_grads(base, base->sharding.group, unit->grads_tensor);
    bool is_whole = base->config.stage == 0;
    void *own = is_whole ? zr_base_at(base, work->moved, zr_unit_own_first(unit, FLAT_TRAINABLE))
                         : work->moved;
    ZR_TRY(zr_base_order(base, base->compute, base->transfer));
    ZR_TRY(zr_encoded_all_reduce(&between, own, shard, &unit->grad_errors));
    if (is_whole)
        ZR_TRY(zr_encoded_all_gather(&within, own, work->moved, shard));
    return zr_base_order(base, base->transfer, base->compute);
}

static zr_status_t move_anchor(const work_t *work) {
    const zr_base_t *base = work->unit->base;
    const zr_config_t *config = &base->config;
    zr_update_t args = {.n_elems = work->range.n_elems,
                        .arrays = {work->anchor, work->momentum},
                        .grad = work->moved,
                        .param = work->params,
                        .grad_dtype = config->dtype,
                        .param_dtype = config->dtype,
                        .grad_scale = (float)(1.0 / base->sharding.n_groups),
                        .lr = (float)config->outer_lr,
                        .step = 1};
    args.hyper[ZR_SGD_MOMENTUM] = (float)config->outer_momentum;
    args.hyper[ZR_SGD_NESTEROV] = 1.0f;
    return zr_kernel_update(base->compute, &zr_sgd.rule, &args);
}

/* ---- arrays of the state --------------------------------------------------------------------- */

/* New values of an array, through the staging buffer on the host. */
static zr_status_t write_array(const work_t *work, size_t array, const float *device) {
    const zr_base_t *base = work->unit->base;
    float *host = work->runtime->exchange.staging_host;
    zr_state_values_t values = {.first = work->range.first, .array = array, .is_last = true};
    size_t end = values.first + work->range.n_elems;
    for (; values.first < end; values.first += values.n_elems) {
        size_t left = end - values.first;
        values.n_elems = left < ZR_STAGING_ELEMS ? left : ZR_STAGING_ELEMS;
        values.device = device + (values.first - work->range.first);
        values.host = host;
        if (work->runtime->state.n_lowered > 0) {
            ZR_TRY(zr_copy_async(base->compute, host, values.device, values.n_elems * sizeof(float),
                                 ZR_COPY_DEVICE_TO_HOST));
            ZR_TRY(zr_stream_synchronize(base->compute));
        }
        ZR_TRY(zr_state_write(&work->runtime->state, work->unit, &values));
    }
    return ZR_OK;
}

/* Parameters that do not live on the device, from the same buffer. */
static zr_status_t write_offloaded(const work_t *work) {
    const zr_base_t *base = work->unit->base;
    float *host = work->runtime->exchange.staging_host;
    for (size_t i = 0, n = 0; i < work->range.n_elems; i += n) {
        n = work->range.n_elems - i < ZR_STAGING_ELEMS ? work->range.n_elems - i : ZR_STAGING_ELEMS;
        ZR_TRY(zr_copy_async(base->compute, host, work->anchor + i, n * sizeof(float),
                             ZR_COPY_DEVICE_TO_HOST));
        ZR_TRY(zr_stream_synchronize(base->compute));
        ZR_TRY(zr_params_write(&work->runtime->params, work->unit, FLAT_TRAINABLE, i, n, host));
    }
    return ZR_OK;
}

static zr_status_t write_params(const work_t *work) {
    const zr_unit_t *unit = work->unit;
    const zr_base_t *base = unit->base;
    if (zr_unit_is_offloaded(unit, FLAT_TRAINABLE))
        return write_offloaded(work);
    size_t own_first =
        zr_base_keeps_full_params(base) ? 0 : zr_unit_own_first(unit, FLAT_TRAINABLE);
    ZR_TRY(zr_copy_async(
        base->compute,
        zr_base_at(base, unit->data[FLAT_TRAINABLE].own, work->range.first - own_first),
        work->params, zr_base_bytes(base, work->range.n_elems), ZR_COPY_DEVICE_TO_DEVICE));
    return zr_step_publish(&work->runtime->state, unit, false);
}

static zr_status_t meet(work_t *work) {
    size_t anchor = zr_state_anchor(&work->runtime->state);
    ZR_TRY(take_all(work));
    ZR_TRY(find_moved(work));
    ZR_TRY(add_groups(work));
    ZR_TRY(move_anchor(work));
    ZR_TRY(write_array(work, 0, work->anchor));
    ZR_TRY(write_array(work, anchor, work->anchor));
    ZR_TRY(write_array(work, anchor + 1, work->momentum));
    return write_params(work);
}

static zr_status_t meet_all(zr_runtime_t *runtime) {
    const zr_base_t *base = &runtime->base;
    ZR_TRY(zr_rt_await_all(runtime));
    zr_allocator_replay_pause(base->allocator);
    for (size_t i = 0; i < runtime->model.n_units; i++) {
        zr_unit_t *unit = runtime->model.units[i];
        work_t work = {.runtime = runtime, .unit = unit, .range = zr_unit_state_range(unit)};
        if (work.range.n_elems == 0)
            continue;
        zr_base_trace(&runtime->base, "outer step", unit->name, 0);
        zr_status_t status = meet(&work);
        give_back_all(&work);
        ZR_TRY(status);
    }
    runtime->base.progress.n_apart = 0;
    /* The next micro-batch computes with, and gathers from, what this has written. */
    ZR_TRY(zr_base_order(base, base->compute, base->transfer));
    return zr_base_order(base, base->transfer, base->compute);
}

zr_status_t zr_outer_step(zr_runtime_t *runtime) {
    zr_progress_t *progress = &runtime->base.progress;
    size_t every = runtime->base.config.outer_every;
    if (every == 0 || ++progress->n_apart < every)
        return ZR_OK;
    return meet_all(runtime);
}

/* ---- before a checkpoint ----------------------------------------------------------------------
 */

/* An array of a unit as one of the groups has it, through the staging buffers. Which one is of no
 * account, as long as all take it. */
static zr_status_t share_array(const work_t *work, size_t array) {
    const zr_base_t *base = work->unit->base;
    const zr_exchange_t *exchange = &work->runtime->exchange;
    zr_message_t message = {
        .tensor = work->unit->state_tensor, .dtype = ZR_DTYPE_F32, .traffic = ZR_TRAFFIC_CONTROL};
    int root = (int)(work->unit->index % (size_t)base->sharding.n_groups);
    zr_state_values_t values = {.first = work->range.first,
                                .array = array,
                                .is_last = true,
                                .host = exchange->staging_host,
                                .device = exchange->staging_device};
    size_t end = values.first + work->range.n_elems;
    for (; values.first < end; values.first += values.n_elems) {
        size_t left = end - values.first;
        values.n_elems = left < ZR_STAGING_ELEMS ? left : ZR_STAGING_ELEMS;
        ZR_TRY(zr_state_read(&work->runtime->state, work->unit, array, values.first, values.n_elems,
                             exchange->staging_device, exchange->staging_host));
        ZR_TRY(zr_base_order(base, base->compute, base->transfer));
        ZR_TRY(zr_comm_broadcast(base->sharding.replicas, &message, exchange->staging_device,
                                 values.n_elems, root, base->transfer));
        ZR_TRY(zr_base_order(base, base->transfer, base->compute));
        ZR_TRY(zr_copy_async(base->compute, exchange->staging_host, exchange->staging_device,
                             values.n_elems * sizeof(float), ZR_COPY_DEVICE_TO_HOST));
        ZR_TRY(zr_stream_synchronize(base->compute));
        ZR_TRY(zr_state_write(&work->runtime->state, work->unit, &values));
        ZR_TRY(zr_stream_synchronize(base->compute));
    }
    return ZR_OK;
}

static zr_status_t share_moments(zr_runtime_t *runtime) {
    size_t n_arrays = zr_state_anchor(&runtime->state);
    for (size_t i = 0; i < runtime->model.n_units; i++) {
        zr_unit_t *unit = runtime->model.units[i];
        const work_t work = {.runtime = runtime, .unit = unit, .range = zr_unit_state_range(unit)};
        for (size_t array = 1; array < n_arrays; array++)
            ZR_TRY(share_array(&work, array));
    }
    return ZR_OK;
}

/* Groups skip steps each for itself. */
static zr_status_t share_progress(zr_runtime_t *runtime) {
    const double own = (double)runtime->base.progress.n_updates, *all = NULL;
    ZR_TRY(zr_exchange_values(&runtime->exchange, &own, 1, &all));
    if (zr_base_has_data(&runtime->base))
        runtime->base.progress.n_updates = (size_t)all[0];
    return ZR_OK;
}

zr_status_t zr_outer_settle(zr_runtime_t *runtime) {
    if (runtime->base.config.outer_every == 0)
        return ZR_OK;
    ZR_TRY(runtime->base.progress.n_apart > 0 ? meet_all(runtime) : zr_rt_await_all(runtime));
    ZR_TRY(share_moments(runtime));
    return share_progress(runtime);
}

zr_status_t zr_runtime_join_groups(zr_runtime_t *runtime) {
    ZR_TRY(zr_rt_check_outside(runtime, "zr_runtime_join_groups"));
    bool is_apart = runtime->base.progress.n_apart > 0;
    return is_apart ? zr_rt_note(runtime, meet_all(runtime)) : ZR_OK;
}
