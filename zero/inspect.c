/*
 * Looking at the model from outside a step: parameter values, their hash, averages of scalars.
 *
 * A parameter is read in pieces that fit a small staging buffer: the rank that owns a piece of
 * the fp32 master gives it to all. So reading the largest model needs no memory of its own, and
 * it is traffic of the control kind.
 */
#include "zero/runtime_internal.h"

#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

/* ---- parameters ---- */

/* What is in host memory or in a store, through `values`, which are overwritten later. */
static zr_status_t stage_offloaded(zr_runtime_t *runtime, zr_unit_t *unit, int kind, size_t first,
                                   size_t n_elems, float *values) {
    ZR_TRY(zr_params_read(&runtime->params, unit, kind, first, n_elems, values));
    return zr_copy_async(unit->base->compute, runtime->exchange.staging_device, values,
                         n_elems * sizeof(float), ZR_COPY_HOST_TO_DEVICE);
}

/* Elements [first, first + n_elems) of the flat buffer, which rank `owner` holds, to staging. */
static zr_status_t stage_piece(zr_runtime_t *runtime, zr_unit_t *unit, int kind, size_t first,
                               size_t n_elems, float *values) {
    const zr_base_t *base = unit->base;
    float *staging = runtime->exchange.staging_device;
    if (kind == FLAT_TRAINABLE)
        return zr_state_read(&runtime->state, unit, 0, first, n_elems, staging, values);
    first -= zr_base_keeps_full_params(base) ? 0 : zr_unit_own_first(unit, kind);
    if (zr_unit_is_offloaded(unit, kind))
        return stage_offloaded(runtime, unit, kind, first, n_elems, values);
    const zr_encoding_t *encoding = zr_unit_encoding(unit, kind);
    return encoding->queue_decode(encoding, base->compute,
                                  zr_unit_at(unit, kind, unit->data[kind].own, first), n_elems,
                                  staging, ZR_DTYPE_F32);
}

static bool is_local(const zr_base_t *base, int kind) {
    if (kind == FLAT_TRAINABLE)
        return base->config.stage == 0 || base->sharding.n_shards == 1;
    return zr_base_keeps_full_params(base);
}

static zr_status_t broadcast_staging(zr_runtime_t *runtime, const zr_unit_t *unit, size_t n_elems,
                                     int owner) {
    const zr_base_t *base = unit->base;
    zr_message_t message = {
        .tensor = unit->params_tensor, .dtype = ZR_DTYPE_F32, .traffic = ZR_TRAFFIC_CONTROL};
    ZR_TRY(zr_base_order(base, base->compute, base->transfer));
    ZR_TRY(zr_comm_broadcast(base->sharding.group, &message, runtime->exchange.staging_device,
                             n_elems, owner, base->transfer));
    return zr_base_order(base, base->transfer, base->compute);
}

static zr_status_t read_piece(zr_runtime_t *runtime, zr_unit_t *unit, int kind, size_t first,
                              size_t n_elems, float *values) {
    const zr_base_t *base = unit->base;
    int owner = (int)(first / unit->flat[kind].shard_elems);
    bool local = is_local(base, kind);
    if (local || owner == base->sharding.rank)
        ZR_TRY(stage_piece(runtime, unit, kind, first, n_elems, values));
    if (!local)
        ZR_TRY(broadcast_staging(runtime, unit, n_elems, owner));
    ZR_TRY(zr_copy_async(base->compute, values, runtime->exchange.staging_device,
                         n_elems * sizeof(float), ZR_COPY_DEVICE_TO_HOST));
    ZR_TRY(zr_stream_synchronize(base->compute));
    return zr_sharding_check(&base->sharding);
}

size_t zr_unit_piece_length(const zr_unit_t *unit, int kind, size_t first, size_t n_left) {
    size_t shard_elems = unit->flat[kind].shard_elems;
    size_t to_shard_end = shard_elems - first % shard_elems;
    size_t length = n_left < to_shard_end ? n_left : to_shard_end;
    return length < ZR_STAGING_ELEMS ? length : ZR_STAGING_ELEMS;
}

static zr_status_t read_param(zr_param_t *param, size_t first, size_t n_elems, float *values) {
    zr_unit_t *unit = param->unit;
    int kind = param->about->layout.frozen ? FLAT_FROZEN : FLAT_TRAINABLE;
    size_t position = param->about->layout.offset_elems + first;
    size_t end = position + n_elems, lead = position % zr_unit_encoding(unit, kind)->block_elems;
    if (lead != 0 && n_elems != 0) { /* a block is read from its beginning */
        float block[ZR_LAYOUT_MOST_ALIGN_ELEMS];
        size_t rest = zr_unit_encoding(unit, kind)->block_elems - lead;
        size_t length = n_elems < rest ? n_elems : rest;
        ZR_TRY(read_piece(unit->runtime, unit, kind, position - lead, lead + length, block));
        memcpy(values, block + lead, length * sizeof(float));
        values += length;
        position += length;
    }
    while (position < end) {
        size_t length = zr_unit_piece_length(unit, kind, position, end - position);
        ZR_TRY(read_piece(unit->runtime, unit, kind, position, length, values));
        values += length;
        position += length;
    }
    return ZR_OK;
}

zr_param_t *zr_runtime_param(const zr_runtime_t *runtime, const char *name) {
    return zr_units_find_param(&runtime->model, name);
}

zr_param_t *zr_runtime_param_at(const zr_runtime_t *runtime, size_t index) {
    return index < runtime->model.n_params ? runtime->model.params[index] : NULL;
}

zr_status_t zr_rt_check_param(const zr_param_t *param, const char *call, size_t first,
                              size_t n_elems) {
    const zr_runtime_t *runtime = param->unit->runtime;
    ZR_TRY(zr_rt_check_outside(runtime, call));
    if (first > param->about->layout.n_elems || n_elems > param->about->layout.n_elems - first)
        return zr_fail(&runtime->base.log, ZR_ERR_ARGUMENT,
                       "%s from element %zu of parameter \"%s\", which has %zu",
                       zr_count_text(n_elems, "element").text, first, param->about->name,
                       param->about->layout.n_elems);
    return ZR_OK;
}

zr_status_t zr_param_read(zr_param_t *param, size_t first, size_t n_elems, float *values) {
    zr_runtime_t *runtime = param->unit->runtime;
    ZR_TRY(zr_rt_check_param(param, "zr_param_read", first, n_elems));
    if (values == NULL && n_elems > 0)
        return zr_fail(&runtime->base.log, ZR_ERR_ARGUMENT,
                       "no output pointer (NULL) for %s of parameter \"%s\"",
                       zr_count_text(n_elems, "element").text, param->about->name);
    return zr_rt_note(runtime, read_param(param, first, n_elems, values));
}

/* ---- what ranks tell each other ---- */

zr_status_t zr_runtime_share(zr_runtime_t *runtime, const double *values, size_t n_values,
                             double *all) {
    const zr_base_t *base = &runtime->base;
    const double *shared = NULL;
    ZR_TRY(zr_rt_check_ready(runtime, "zr_runtime_share"));
    if (n_values < 1 || n_values > ZR_MAX_SHARED_VALUES)
        return zr_fail(&base->log, ZR_ERR_ARGUMENT, "zr_runtime_share: %s; 1 to %d are allowed",
                       zr_count_text(n_values, "value").text, ZR_MAX_SHARED_VALUES);
    if (values == NULL || all == NULL)
        return zr_fail(&base->log, ZR_ERR_ARGUMENT,
                       "zr_runtime_share: %s at %p, the output for all ranks' values at %p",
                       zr_count_text(n_values, "value").text, (const void *)values, (void *)all);
    ZR_TRY(zr_rt_note(runtime, zr_exchange_values(&runtime->exchange, values, n_values, &shared)));
    memcpy(all, shared, (size_t)base->n_ranks * n_values * sizeof(double));
    return ZR_OK;
}

zr_status_t zr_runtime_average(zr_runtime_t *runtime, double value, double *average_p) {
    const double *all = NULL;
    ZR_TRY(zr_rt_check_ready(runtime, "zr_runtime_average"));
    ZR_TRY(zr_rt_note(runtime, zr_exchange_values(&runtime->exchange, &value, 1, &all)));
    double sum = 0;
    for (int rank = 0; rank < runtime->base.n_ranks; rank++)
        sum += all[rank];
    *average_p = sum / runtime->base.n_ranks;
    return ZR_OK;
}

/* ---- hash ---- */

/* Exponents of all ones: infinities and NaN. */
static size_t count_non_finite(const float *values, size_t n_elems) {
    size_t n = 0;
    for (size_t i = 0; i < n_elems; i++) {
        uint32_t bits;
        memcpy(&bits, &values[i], sizeof(bits));
        n += (bits & 0x7f800000u) == 0x7f800000u;
    }
    return n;
}

static zr_status_t look_at_params(zr_runtime_t *runtime, XXH3_state_t *state, size_t *n_p) {
    float *values = runtime->exchange.staging_host;
    *n_p = 0;
    for (size_t i = 0; i < runtime->model.n_params; i++) {
        zr_param_t *param = runtime->model.params[i];
        for (size_t first = 0; first < param->about->layout.n_elems; first += ZR_STAGING_ELEMS) {
            size_t n_left = param->about->layout.n_elems - first;
            size_t n_elems = n_left < ZR_STAGING_ELEMS ? n_left : ZR_STAGING_ELEMS;
            ZR_TRY(read_param(param, first, n_elems, values));
            XXH3_64bits_update(state, values, n_elems * sizeof(float));
            *n_p += count_non_finite(values, n_elems);
        }
    }
    return ZR_OK;
}

/* Groups hold the same, each its own copy. */
static zr_status_t check_replicas(zr_runtime_t *runtime, uint64_t xxh3) {
    const zr_base_t *base = &runtime->base;
    const double words[2] = {(double)(uint32_t)xxh3, (double)(uint32_t)(xxh3 >> 32)};
    const double *all = NULL;
    if (base->sharding.n_groups == 1 || base->progress.n_apart > 0)
        return ZR_OK;
    ZR_TRY(zr_exchange_values(&runtime->exchange, words, 2, &all));
    for (int rank = 1; rank < base->n_ranks; rank++)
        if (all[2 * rank] != all[0] || all[2 * rank + 1] != all[1])
            return zr_fail(&base->log, ZR_ERR_STATE,
                           "rank %d has other weights than rank 0: the copies of the model that "
                           "groups of %s hold have diverged; resume from a checkpoint",
                           rank, zr_count_text((uint64_t)base->sharding.n_shards, "rank").text);
    return ZR_OK;
}

zr_status_t zr_runtime_weights(zr_runtime_t *runtime, zr_weights_t *weights_p) {
    ZR_TRY(zr_rt_check_outside(runtime, "zr_runtime_weights"));
    if (!zr_base_has_data(&runtime->base))
        return zr_fail(&runtime->base.log, ZR_ERR_UNSUPPORTED,
                       "the weights have no hash: device \"%s\" is simulated and stores no data",
                       zr_device_info(runtime->base.device)->backend);
    XXH3_state_t *state = XXH3_createState();
    if (state == NULL)
        return zr_rt_note(runtime, zr_base_no_memory(&runtime->base, "a hash"));
    XXH3_64bits_reset(state);
    zr_weights_t weights = {0};
    zr_status_t status = look_at_params(runtime, state, &weights.n_non_finite);
    weights.xxh3 = XXH3_64bits_digest(state);
    XXH3_freeState(state);
    ZR_THEN(status, check_replicas(runtime, weights.xxh3));
    if (status == ZR_OK)
        *weights_p = weights;
    return zr_rt_note(runtime, status);
}

zr_status_t zr_runtime_weights_xxh3(zr_runtime_t *runtime, uint64_t *hash_p) {
    zr_weights_t weights;
    ZR_TRY(zr_runtime_weights(runtime, &weights));
    *hash_p = weights.xxh3;
    return ZR_OK;
}
