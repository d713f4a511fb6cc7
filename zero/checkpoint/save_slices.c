/*
 * Which rank saves what. What is sharded, each rank saves of its own, and of several groups that
 * have the same, the ranks of one; what every rank has as a whole, one of them saves. Whichever
 * have least to save so far, so that all write about as much.
 */
#include "zero/checkpoint/save_internal.h"

#include <stdlib.h>

#include "zero/nvme.h"

#define MOST_CHUNK_BYTES ((size_t)256 << 10)

static bool is_whole(const zr_unit_t *unit, int kind) {
    if (kind == FLAT_TRAINABLE)
        return unit->runtime->config.stage == 0;
    return zr_rt_keeps_full(unit, kind);
}

static size_t row_bytes(const zr_unit_t *unit, int kind) {
    size_t n_elems = unit->flat[kind].padded_elems;
    if (kind == FLAT_TRAINABLE)
        return zr_state_bytes(unit->runtime->state.rule, n_elems);
    return zr_rt_bytes(unit->runtime, n_elems);
}

/* How many ranks, one behind the other, save a row together. */
static int n_savers(const zr_unit_t *unit, int kind) {
    return is_whole(unit, kind) ? 1 : unit->runtime->sharding.n_shards;
}

/* The first of so many ranks that have least to save. */
static int least_loaded(const uint64_t *loads, int n_ranks, int n_together) {
    int least = 0;
    for (int rank = n_together; rank < n_ranks; rank += n_together)
        least = loads[rank] < loads[least] ? rank : least;
    return least;
}

static void choose_owners(const zr_runtime_t *runtime, uint64_t *loads, int *owners) {
    for (size_t i = 0; i < runtime->n_units * N_FLATS; i++) {
        const zr_unit_t *unit = runtime->units[i / N_FLATS];
        int kind = (int)(i % N_FLATS), n_together = n_savers(unit, kind);
        owners[i] = least_loaded(loads, runtime->n_ranks, n_together);
        for (int rank = owners[i]; rank < owners[i] + n_together; rank++)
            loads[rank] += row_bytes(unit, kind) / (size_t)n_together;
    }
}

/* Of a unit's state: the pieces in which it lies. */
static size_t group_elems(const zr_unit_t *unit) {
    const zr_placement_t *placement = &unit->runtime->state.placement;
    return placement->pieces[placement->first_piece[unit->index]].n_elems;
}

/* Groups begin at chunks, because transfers do, and end at them. */
static size_t chunk_bytes(const zr_runtime_t *runtime) {
    const zr_placement_t *placement = &runtime->state.placement;
    size_t chunk = zr_nvme_common_chunk(MOST_CHUNK_BYTES, runtime->config.nvme.request_bytes);
    for (size_t i = 0; i < placement->n_tensors; i++)
        if (placement->first_piece[i + 1] - placement->first_piece[i] > 1)
            chunk = zr_nvme_common_chunk(
                chunk, zr_state_bytes(runtime->state.rule, group_elems(runtime->units[i])));
    return chunk;
}

zr_status_t zr_slices_make(const zr_runtime_t *runtime, zr_slices_t *slices_p) {
    zr_slices_t slices = {.chunk_bytes = chunk_bytes(runtime)};
    slices.owners = calloc(runtime->n_units * N_FLATS + 1, sizeof(*slices.owners));
    uint64_t *loads = calloc((size_t)runtime->n_ranks, sizeof(*loads));
    if (slices.owners == NULL || loads == NULL) {
        free(loads);
        zr_slices_clear(&slices);
        return zr_fail(&runtime->log, ZR_ERR_MEMORY, "the system has no memory to save %s",
                       zr_count_text(runtime->n_units, "unit").text);
    }
    choose_owners(runtime, loads, slices.owners);
    free(loads);
    *slices_p = slices;
    return ZR_OK;
}

void zr_slices_clear(zr_slices_t *slices) {
    free(slices->owners);
    *slices = (zr_slices_t){0};
}

bool zr_slices_find(const zr_slices_t *slices, const zr_unit_t *unit, int kind, int rank,
                    zr_slice_t *slice_p) {
    const zr_flat_t *flat = &unit->flat[kind];
    int place = rank - slices->owners[unit->index * N_FLATS + (size_t)kind];
    if (flat->padded_elems == 0 || place < 0 || place >= n_savers(unit, kind))
        return false;
    bool whole = is_whole(unit, kind);
    zr_slice_t slice = {.first = (size_t)place * flat->shard_elems,
                        .n_elems = whole ? flat->padded_elems : flat->shard_elems,
                        .n_arrays = 1,
                        .dtype = unit->runtime->config.dtype};
    slice.group_elems = slice.n_elems;
    if (kind == FLAT_TRAINABLE) {
        slice.group_elems = group_elems(unit);
        slice.n_arrays = (int)unit->runtime->state.rule->n_arrays;
        slice.dtype = ZR_DTYPE_F32;
        slice.n_bytes = zr_state_bytes(unit->runtime->state.rule, slice.n_elems);
    } else if (unit->data[kind].tier == ZR_TIER_NVME) {
        slice.dtype = ZR_DTYPE_F32; /* as it is looked at there */
    }
    if (kind == FLAT_FROZEN)
        slice.n_bytes = zr_encoding_bytes(zr_encoding_of(slice.dtype), slice.n_elems);
    *slice_p = slice;
    return true;
}
