/*
 * Initial values: from the parameters' fill functions, or from a checkpoint (restore.h), through a
 * small staging buffer, to wherever parameters and state live.
 */
#include "zero/runtime_internal.h"

#include <string.h>

#include "zero/checkpoint/restore.h"

/* Elements [first, first + n_elems) of a row, before they are where they belong. */
typedef struct chunk {
    zr_unit_t *unit;
    int kind;
    size_t own_first; /* of what this rank has of the parameters */
    size_t first;
    size_t n_elems;
} chunk_t;

static zr_status_t find_values(const zr_param_t *param, size_t array, size_t first, size_t n_elems,
                               float *values) {
    if (param->unit->runtime->restore != NULL)
        return zr_restore_values(param, array, first, n_elems, values);
    if (param->fill != NULL)
        param->fill(param->fill_context, first, n_elems, values);
    return ZR_OK;
}

/* Of all parameters that lie there; what lies between them is 0. */
static zr_status_t fill_staging(const chunk_t *chunk, size_t array) {
    const zr_unit_t *unit = chunk->unit;
    float *values = unit->runtime->staging_host;
    memset(values, 0, chunk->n_elems * sizeof(float));
    for (size_t i = 0; i < unit->n_params; i++) {
        const zr_param_t *param = unit->params[i];
        const zr_layout_param_t *layout = &param->layout;
        size_t begin = layout->offset_elems, end = begin + layout->n_elems;
        begin = begin > chunk->first ? begin : chunk->first;
        end = end < chunk->first + chunk->n_elems ? end : chunk->first + chunk->n_elems;
        if (layout->frozen == (chunk->kind == FLAT_FROZEN) && begin < end)
            ZR_TRY(find_values(param, array, begin - layout->offset_elems, end - begin,
                               values + (begin - chunk->first)));
    }
    return ZR_OK;
}

static zr_status_t place_params(const chunk_t *chunk) {
    zr_unit_t *unit = chunk->unit;
    zr_runtime_t *runtime = unit->runtime;
    size_t first = chunk->first - chunk->own_first;
    if (zr_rt_is_offloaded(unit, chunk->kind))
        return zr_params_fill(unit, chunk->kind, first, chunk->n_elems, runtime->staging_host);
    if (!zr_rt_has_data(runtime))
        return ZR_OK;
    return zr_rt_encoding(runtime)->queue_encode(
        runtime->compute, runtime->staging_device, chunk->n_elems,
        zr_rt_at(runtime, unit->data[chunk->kind].own, first));
}

static zr_status_t place_array(const chunk_t *chunk, size_t array, bool is_last) {
    zr_runtime_t *runtime = chunk->unit->runtime;
    zr_state_values_t values = {.first = chunk->first,
                                .n_elems = chunk->n_elems,
                                .array = array,
                                .is_last = is_last,
                                .host = runtime->staging_host,
                                .device = runtime->staging_device};
    if (zr_rt_has_data(runtime)) {
        ZR_TRY(fill_staging(chunk, array));
        ZR_TRY(zr_copy_async(runtime->compute, runtime->staging_device, runtime->staging_host,
                             chunk->n_elems * sizeof(float), ZR_COPY_HOST_TO_DEVICE));
    }
    if (array == 0)
        ZR_TRY(place_params(chunk));
    if (chunk->kind == FLAT_TRAINABLE)
        ZR_TRY(zr_state_fill(chunk->unit, &values));
    return zr_stream_synchronize(runtime->compute); /* the staging buffer is filled again */
}

/* Of a checkpoint all arrays, of what this rank updates. */
static zr_status_t place_chunk(const chunk_t *chunk) {
    zr_state_range_t range = zr_rt_state_range(chunk->unit);
    bool has_moments = chunk->unit->runtime->restore != NULL && chunk->kind == FLAT_TRAINABLE &&
                       chunk->first >= range.first && chunk->first < range.first + range.n_elems;
    size_t n_arrays = has_moments ? chunk->unit->runtime->state.rule->n_arrays : 1;
    for (size_t array = 0; array < n_arrays; array++)
        ZR_TRY(place_array(chunk, array, array == n_arrays - 1));
    return ZR_OK;
}

/* Without data there is nothing to bring, and only what goes to a store is gone through. */
zr_status_t zr_initial_place(zr_unit_t *unit, int kind) {
    zr_runtime_t *runtime = unit->runtime;
    const zr_flat_t *flat = &unit->flat[kind];
    bool full = zr_rt_keeps_full_params(runtime);
    chunk_t chunk = {.unit = unit, .kind = kind};
    chunk.own_first = full ? 0 : zr_rt_own_first(runtime, flat);
    size_t end = chunk.own_first + (full ? flat->padded_elems : flat->shard_elems);
    size_t most = zr_rt_has_data(runtime) ? ZR_STAGING_ELEMS : SIZE_MAX;
    for (chunk.first = chunk.own_first; chunk.first < end; chunk.first += chunk.n_elems) {
        chunk.n_elems = end - chunk.first < most ? end - chunk.first : most;
        if (kind == FLAT_TRAINABLE)
            chunk.n_elems = zr_state_cut(unit, chunk.first, chunk.n_elems);
        ZR_TRY(place_chunk(&chunk));
    }
    return ZR_OK;
}
