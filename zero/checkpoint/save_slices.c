/*
 * Which rank saves what. What is sharded, each rank saves of its own, and of several groups that
 * have the same, the ranks of one; what every rank has as a whole, one of them saves. Whichever
 * have least to save so far, so that all write about as much.
 */
#include "zero/checkpoint/save_internal.h"

#define MOST_CHUNK_BYTES ((size_t)256 << 10)

static bool is_whole(const zr_unit_t *unit, int kind) {
    if (kind == FLAT_TRAINABLE)
        return unit->base->config.stage == 0;
    return zr_unit_keeps_full(unit, kind);
}

static size_t row_bytes(const zr_state_t *state, const zr_unit_t *unit, int kind) {
    size_t n_elems = unit->flat[kind].padded_elems;
    if (kind == FLAT_FROZEN && unit->base->links_frozen)
        return 0;
    if (kind == FLAT_TRAINABLE)
        return zr_state_bytes(&state->saved_rule, n_elems);
    return zr_base_bytes(unit->base, n_elems);
}

/* How many ranks, one behind the other, save a row together. */
static int n_savers(const zr_unit_t *unit, int kind) {
    return is_whole(unit, kind) ? 1 : unit->base->sharding.n_shards;
}

/* The first of so many ranks that have least to save. */
static int least_loaded(const uint64_t *loads, int n_ranks, int n_together) {
    int least = 0;
    for (int rank = n_together; rank < n_ranks; rank += n_together)
        least = loads[rank] < loads[least] ? rank : least;
    return least;
}

static void choose_owners(const zr_state_t *state, uint64_t *loads, int *owners) {
    for (size_t i = 0; i < state->model->n_units * N_FLATS; i++) {
        const zr_unit_t *unit = state->model->units[i / N_FLATS];
        int kind = (int)(i % N_FLATS), n_together = n_savers(unit, kind);
        owners[i] = least_loaded(loads, state->base->n_ranks, n_together);
        for (int rank = owners[i]; rank < owners[i] + n_together; rank++)
            loads[rank] += row_bytes(state, unit, kind) / (size_t)n_together;
    }
}

/* Of a unit's state: the pieces in which it lies. */
static size_t group_elems(const zr_state_t *state, const zr_unit_t *unit) {
    const zr_placement_t *placement = &state->placement;
    return placement->pieces[placement->first_piece[unit->index]].n_elems;
}

/* Groups begin at chunks, because transfers do, and end at them. */
static size_t chunk_bytes(const zr_state_t *state) {
    const zr_placement_t *placement = &state->placement;
    size_t chunk = zr_nvme_common_chunk(MOST_CHUNK_BYTES, state->base->config.nvme.request_bytes);
    for (size_t i = 0; i < placement->n_tensors; i++)
        if (placement->first_piece[i + 1] - placement->first_piece[i] > 1)
            chunk = zr_nvme_common_chunk(
                chunk,
                zr_state_bytes(&state->saved_rule, group_elems(state, state->model->units[i])));
    return chunk;
}

static bool saves_row(const zr_slices_t *slices, size_t row, int rank) {
    const zr_unit_t *unit = slices->state->model->units[row / N_FLATS];
    int kind = (int)(row % N_FLATS), place = rank - slices->owners[row];
    if (kind == FLAT_FROZEN && unit->base->links_frozen)
        return false;
    return unit->flat[kind].padded_elems != 0 && place >= 0 && place < n_savers(unit, kind);
}

bool zr_slices_next(const zr_slices_t *slices, int rank, zr_slice_t *slice_p) {
    const zr_state_t *state = slices->state;
    size_t row = slice_p->next_row, n_rows = state->model->n_units * N_FLATS;
    while (row < n_rows && !saves_row(slices, row, rank))
        row++;
    if (row == n_rows)
        return false;
    zr_unit_t *unit = state->model->units[row / N_FLATS];
    int kind = (int)(row % N_FLATS);
    const zr_flat_t *flat = &unit->flat[kind];
    zr_slice_t slice = {.next_row = row + 1,
                        .unit = unit,
                        .kind = kind,
                        .first = (size_t)(rank - slices->owners[row]) * flat->shard_elems,
                        .n_elems = is_whole(unit, kind) ? flat->padded_elems : flat->shard_elems,
                        .n_arrays = 1,
                        .dtype = unit->base->config.dtype};
    slice.group_elems = slice.n_elems;
    if (kind == FLAT_TRAINABLE) {
        slice.group_elems = group_elems(state, unit);
        slice.n_arrays = (int)state->saved_rule.n_arrays;
        slice.dtype = ZR_DTYPE_F32;
        slice.n_bytes = zr_state_bytes(&state->saved_rule, slice.n_elems);
    } else {
        if (unit->data[kind].tier == ZR_TIER_NVME)
            slice.dtype = ZR_DTYPE_F32; /* as it is looked at there */
        slice.n_bytes = zr_encoding_bytes(zr_encoding_of(slice.dtype), slice.n_elems);
    }
    *slice_p = slice;
    return true;
}

/* Whose slices take most in tables of a store. */
static int fullest_rank(const zr_slices_t *slices) {
    const zr_store_options_t options = zr_nvme_store_options(slices->state->base);
    size_t most_bytes = 0;
    int fullest = 0;
    for (int rank = 0; rank < slices->state->base->n_ranks; rank++) {
        size_t n_bytes = 0;
        for (zr_slice_t slice = {0}; zr_slices_next(slices, rank, &slice);) {
            const zr_store_extent_t extent = zr_slice_extent(&slice);
            n_bytes += zr_store_extent_table_bytes(&extent, slices->chunk_bytes, options.verify);
        }
        fullest = n_bytes > most_bytes ? rank : fullest;
        most_bytes = n_bytes > most_bytes ? n_bytes : most_bytes;
    }
    return fullest;
}

zr_status_t zr_slices_make(zr_heap_t *heap, zr_state_t *state, zr_slices_t *slices_p) {
    zr_slices_t slices = {.heap = heap, .state = state, .chunk_bytes = chunk_bytes(state)};
    slices.owners = zr_heap_alloc(heap, state->model->n_units * N_FLATS, sizeof(*slices.owners));
    uint64_t *loads = zr_heap_alloc(heap, (size_t)state->base->n_ranks, sizeof(*loads));
    if (slices.owners == NULL || loads == NULL)
        return zr_fail(&state->base->log, ZR_ERR_MEMORY, "the system has no memory to save %s",
                       zr_count_text(state->model->n_units, "unit").text);
    choose_owners(state, loads, slices.owners);
    zr_heap_free(heap, loads);
    slices.rank = zr_base_has_data(state->base) ? state->base->rank : fullest_rank(&slices);
    *slices_p = slices;
    return ZR_OK;
}
