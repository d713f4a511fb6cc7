/*
 * Initial values: from the parameters' fill functions, or from a checkpoint (restore_internal.h),
 * through a small staging buffer, to wherever parameters and state live.
 */
#include "zero/runtime_internal.h"

#include <string.h>

/* Elements [first, first + n_elems) of a row, before they are where they belong. */
typedef struct chunk {
    zr_runtime_t *runtime;
    zr_unit_t *unit;
    int kind;
    size_t own_first; /* of what this rank has of the parameters */
    size_t first;
    size_t n_elems;
} chunk_t;

/* Groups that take steps of their own begin with the master. */
static zr_status_t find_values(const zr_runtime_t *runtime, const zr_param_t *param, size_t array,
                               size_t first, size_t n_elems, float *values) {
    const zr_restore_t *restore = &runtime->restore;
    bool is_saved = restore->checkpoint != NULL && !param->is_new;
    bool is_there = is_saved && zr_restore_has_array(restore, param->tensor, array);
    if (array == zr_state_anchor(&runtime->state) && !is_there)
        return find_values(runtime, param, 0, first, n_elems, values);
    if (is_there)
        return zr_checkpoint_read(restore->reader, param->tensor, array, first, n_elems, values);
    if (!is_saved && param->fill != NULL && array == 0)
        param->fill(param->fill_context, first, n_elems, values);
    return ZR_OK;
}

/* Of all parameters that lie there; what lies between them is 0. */
static zr_status_t fill_staging(const chunk_t *chunk, size_t array) {
    const zr_unit_t *unit = chunk->unit;
    float *values = chunk->runtime->exchange.staging_host;
    memset(values, 0, chunk->n_elems * sizeof(float));
    for (size_t i = 0; i < unit->n_params; i++) {
        const zr_param_t *param = unit->params[i];
        const zr_layout_param_t *layout = &param->about->layout;
        size_t begin = layout->offset_elems, end = begin + layout->n_elems;
        begin = begin > chunk->first ? begin : chunk->first;
        end = end < chunk->first + chunk->n_elems ? end : chunk->first + chunk->n_elems;
        if (layout->frozen == (chunk->kind == FLAT_FROZEN) && begin < end)
            ZR_TRY(find_values(chunk->runtime, param, array, begin - layout->offset_elems,
                               end - begin, values + (begin - chunk->first)));
    }
    return ZR_OK;
}

static zr_status_t place_params(const chunk_t *chunk) {
    zr_runtime_t *runtime = chunk->runtime;
    zr_unit_t *unit = chunk->unit;
    const zr_base_t *base = unit->base;
    size_t first = chunk->first - chunk->own_first;
    if (zr_unit_is_offloaded(unit, chunk->kind))
        return zr_params_fill(&runtime->params, unit, chunk->kind, first, chunk->n_elems,
                              runtime->exchange.staging_host);
    if (!zr_base_has_data(base))
        return ZR_OK;
    const zr_encoding_t *encoding = zr_unit_encoding(unit, chunk->kind);
    return encoding->queue_encode(
        encoding, base->compute, runtime->exchange.staging_device, ZR_DTYPE_F32, chunk->n_elems,
        zr_unit_at(unit, chunk->kind, unit->data[chunk->kind].own, first));
}

static zr_status_t place_array(const chunk_t *chunk, size_t array, bool is_last) {
    const zr_base_t *base = chunk->unit->base;
    const zr_exchange_t *exchange = &chunk->runtime->exchange;
    zr_state_values_t values = {.first = chunk->first,
                                .n_elems = chunk->n_elems,
                                .array = array,
                                .is_last = is_last,
                                .host = exchange->staging_host,
                                .device = exchange->staging_device};
    if (zr_base_has_data(base)) {
        ZR_TRY(fill_staging(chunk, array));
        ZR_TRY(zr_copy_async(base->compute, exchange->staging_device, exchange->staging_host,
                             chunk->n_elems * sizeof(float), ZR_COPY_HOST_TO_DEVICE));
    }
    if (array == 0)
        ZR_TRY(place_params(chunk));
    if (chunk->kind == FLAT_TRAINABLE)
        ZR_TRY(zr_state_fill(&chunk->runtime->state, chunk->unit, &values));
    return zr_stream_synchronize(base->compute); /* the staging buffer is filled again */
}

/* Of a checkpoint all arrays, of what this rank updates; else the master, and with outer steps what
 * groups begin with. */
static zr_status_t place_chunk(const chunk_t *chunk) {
    const zr_runtime_t *runtime = chunk->runtime;
    zr_state_range_t range = zr_unit_state_range(chunk->unit);
    bool is_updated = chunk->kind == FLAT_TRAINABLE && chunk->first >= range.first &&
                      chunk->first < range.first + range.n_elems;
    bool has_moments = runtime->restore.checkpoint != NULL && is_updated;
    bool has_anchor = runtime->base.config.outer_every > 0 && is_updated;
    size_t anchor = zr_state_anchor(&runtime->state);
    size_t last = has_moments ? runtime->state.rule->n_arrays - 1 : has_anchor ? anchor : 0;
    for (size_t array = 0; array <= last; array++)
        if (array == 0 || has_moments || array == anchor)
            ZR_TRY(place_array(chunk, array, array == last));
    return ZR_OK;
}

/* Without data there is nothing to bring, and only what goes to a store is gone through. */
zr_status_t zr_initial_place(zr_runtime_t *runtime, zr_unit_t *unit, int kind) {
    const zr_base_t *base = unit->base;
    const zr_flat_t *flat = &unit->flat[kind];
    bool full = zr_base_keeps_full_params(base);
    chunk_t chunk = {.runtime = runtime, .unit = unit, .kind = kind};
    chunk.own_first = full ? 0 : zr_unit_own_first(unit, kind);
    size_t end = chunk.own_first + (full ? flat->padded_elems : flat->shard_elems);
    size_t most = zr_base_has_data(base) ? ZR_STAGING_ELEMS : SIZE_MAX;
    for (chunk.first = chunk.own_first; chunk.first < end; chunk.first += chunk.n_elems) {
        chunk.n_elems = end - chunk.first < most ? end - chunk.first : most;
        if (kind == FLAT_TRAINABLE)
            chunk.n_elems = zr_state_cut(&runtime->state, unit, chunk.first, chunk.n_elems);
        ZR_TRY(place_chunk(&chunk));
    }
    return ZR_OK;
}
