/*
 * Host memory that saving takes: buffers, and a copy where the run goes on meanwhile.
 *
 * A run that will save has it from the start, until it ends: a budget that is too small is met at
 * commit, not hours later, a save takes nothing from others, and what is live does not depend on
 * how long one takes. It is one allocation, of which a save is lent parts.
 */
#include "zero/checkpoint/save_internal.h"

#define MOST_STAGING_BYTES ((size_t)4 << 20)

/* ---- how much -------------------------------------------------------------------------------- */

/* Of one row, if this rank saves of it. */
typedef size_t (*row_fn)(const zr_state_t *state, const zr_slice_t *slice);

/* Frozen parameters on NVMe, which are looked at. */
static bool is_looked_at(const zr_slice_t *slice) {
    return slice->kind == FLAT_FROZEN && slice->unit->data[FLAT_FROZEN].tier == ZR_TIER_NVME;
}

/* Of a unit's state, as it is saved. */
static size_t pieces_bytes(const zr_state_t *state, const zr_slice_t *slice, bool in_store) {
    const zr_placement_t *placement = &state->placement;
    size_t n_bytes = 0, unit = slice->unit->index;
    for (size_t i = placement->first_piece[unit]; i < placement->first_piece[unit + 1]; i++)
        if ((placement->pieces[i].tier == ZR_TIER_NVME) == in_store)
            n_bytes += zr_save_aligned(zr_state_saved_bytes(state, &placement->pieces[i]));
    return n_bytes;
}

static size_t resident_bytes(const zr_state_t *state, const zr_slice_t *slice) {
    if (slice->kind == FLAT_TRAINABLE)
        return pieces_bytes(state, slice, false);
    return is_looked_at(slice) ? 0 : zr_save_aligned(slice->n_bytes);
}

/* With it what is in the store of a state whose masters are joined. */
static size_t looked_at_bytes(const zr_state_t *state, const zr_slice_t *slice) {
    if (slice->kind == FLAT_TRAINABLE && zr_state_splits(state))
        return pieces_bytes(state, slice, true);
    return is_looked_at(slice) ? slice->n_bytes : 0;
}

/* What is on a device that the CPU cannot look into, or has masters that are joined. */
static size_t device_bytes(const zr_state_t *state, const zr_slice_t *slice) {
    if (slice->kind == FLAT_TRAINABLE && zr_state_splits(state))
        return pieces_bytes(state, slice, false);
    if (zr_device_info(state->base->device)->host_addressable)
        return 0;
    if (slice->kind == FLAT_TRAINABLE)
        return state->placement.tensor_bytes[slice->unit->index][ZR_TIER_DEVICE];
    return slice->unit->data[FLAT_FROZEN].tier == ZR_TIER_DEVICE ? slice->n_bytes : 0;
}

/* What a rank saves of all rows together, and of the largest. Pieces of its own stand for those of
 * any other, as all shards are alike. */
static size_t add_up(const zr_slices_t *slices, int rank, row_fn bytes_of, size_t *largest_p) {
    size_t sum = 0;
    *largest_p = 0;
    for (zr_slice_t slice = {0}; zr_slices_next(slices, rank, &slice);) {
        size_t n_bytes = bytes_of(slices->state, &slice);
        sum += n_bytes;
        *largest_p = n_bytes > *largest_p ? n_bytes : *largest_p;
    }
    return sum;
}

size_t zr_save_copy_bytes(const zr_slices_t *slices) {
    size_t largest;
    return add_up(slices, slices->rank, resident_bytes, &largest);
}

/* What a buffer has room for on a rank: its largest row, or a part of it. */
static size_t staging_of(const zr_slices_t *slices, int rank, bool copies) {
    size_t looked_at, on_device, chunk = slices->chunk_bytes;
    add_up(slices, rank, looked_at_bytes, &looked_at);
    add_up(slices, rank, device_bytes, &on_device);
    size_t largest = copies || looked_at > on_device ? looked_at : on_device;
    size_t most = MOST_STAGING_BYTES / chunk * chunk;
    largest = (largest + chunk - 1) / chunk * chunk;
    return largest < most ? largest : most;
}

/* As large on each rank as on the one with the largest: they are pinned while it saves, and a plan
 * of one rank is that of all. */
size_t zr_save_staging_bytes(const zr_slices_t *slices, bool copies) {
    size_t most = 0;
    for (int rank = 0; rank < slices->state->base->n_ranks; rank++) {
        size_t own = staging_of(slices, rank, copies);
        most = own > most ? own : most;
    }
    return most;
}

/* Sizes of the parts, with room to align what lies in them, each staging buffer for itself. */
static zr_save_parts_t parts_of(const zr_slices_t *slices, int rank, size_t staging_bytes,
                                bool copies) {
    zr_store_options_t store = zr_nvme_store_options(slices->state->base);
    size_t n_buffers = ZR_SAVE_N_STAGING_BUFFERS, largest;
    size_t staging = n_buffers * staging_bytes;
    size_t copy = copies ? add_up(slices, rank, resident_bytes, &largest) : 0;
    return (zr_save_parts_t){.bounce.size_bytes = ZR_SAVE_N_BOUNCE_BUFFERS * store.request_bytes +
                                                  ZR_SAVE_ALIGN_BYTES,
                             .staging.size_bytes = staging + (n_buffers + 1) * ZR_SAVE_ALIGN_BYTES,
                             .copy.size_bytes = copy + ZR_SAVE_ALIGN_BYTES};
}

static bool saves_any(const zr_slices_t *slices, int rank) {
    size_t largest;
    return slices->state->n_items != 0 || add_up(slices, rank, resident_bytes, &largest) != 0 ||
           add_up(slices, rank, looked_at_bytes, &largest) != 0;
}

/* A rank that saves nothing needs nothing. */
static size_t memory_of(const zr_slices_t *slices, int rank, size_t staging_bytes, bool copies) {
    zr_save_parts_t parts = parts_of(slices, rank, staging_bytes, copies);
    if (!saves_any(slices, rank))
        return 0;
    return parts.bounce.size_bytes + parts.staging.size_bytes + parts.copy.size_bytes;
}

/* The most of any rank: where one saves a unit for others, ranks differ in what they save, and each
 * has the same room, so that a run fits on all of them or on none, and a plan of one rank is that
 * of all. */
static size_t memory_bytes(const zr_slices_t *slices, bool copies) {
    size_t most = 0, staging_bytes = zr_save_staging_bytes(slices, copies);
    for (int rank = 0; rank < slices->state->base->n_ranks; rank++) {
        size_t own = memory_of(slices, rank, staging_bytes, copies);
        most = own > most ? own : most;
    }
    return most;
}

/* ---- for a copy ------------------------------------------------------------------------------ */

static bool has_room(const zr_base_t *base, size_t n_bytes) {
    zr_tier_statistics_t host;
    zr_allocator_statistics(base->allocator, ZR_TIER_HOST, &host);
    return host.budget_bytes - host.reserved.live >= n_bytes;
}

static void say_no_room(zr_saves_t *saves, const zr_slices_t *slices) {
    if (!saves->said_no_room && saves->base->rank == 0)
        zr_log_write(&saves->base->log, ZR_LOG_WARNING,
                     "host memory has no room for a copy of what is saved, %s on rank 0: training "
                     "waits while checkpoints are written; give more --host-memory, or leave "
                     "--checkpoint-async out",
                     zr_size_text(zr_save_copy_bytes(slices)).text);
    saves->said_no_room = true;
}

zr_status_t zr_save_find_room(zr_saves_t *saves, const zr_slices_t *slices, bool *copies_p) {
    bool has_own = has_room(saves->base, memory_bytes(slices, true));
    ZR_TRY(zr_save_all_say(saves->exchange, has_own, copies_p));
    if (!*copies_p)
        say_no_room(saves, slices);
    return ZR_OK;
}

/* ---- from the start -------------------------------------------------------------------------- */

void zr_saves_release(zr_saves_t *saves) {
    zr_free(saves->base->allocator, &saves->memory, NULL);
}

zr_save_parts_t zr_save_lend(const zr_saves_t *saves, const zr_slices_t *slices, bool copies) {
    zr_save_parts_t parts =
        parts_of(slices, slices->rank, zr_save_staging_bytes(slices, copies), copies);
    zr_store_buffer_t *all[] = {&parts.bounce, &parts.staging, &parts.copy};
    char *base = saves->memory;
    size_t left = base != NULL ? saves->memory_bytes : 0;
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        size_t n_bytes = all[i]->size_bytes;
        *all[i] = n_bytes <= left ? (zr_store_buffer_t){base, n_bytes} : (zr_store_buffer_t){0};
        base += all[i]->size_bytes;
        left -= all[i]->size_bytes;
    }
    return parts;
}

zr_status_t zr_saves_reserve(zr_saves_t *saves, zr_state_t *state) {
    zr_slices_t slices;
    if (!saves->are_expected)
        return ZR_OK;
    zr_heap_t *heap = zr_heap_create(saves->base->heap);
    if (heap == NULL)
        return zr_base_no_memory(saves->base, "what will be saved");
    zr_status_t status = zr_slices_make(heap, state, &slices);
    if (status == ZR_OK && saves->go_on)
        status = zr_save_find_room(saves, &slices, &saves->go_on);
    if (status == ZR_OK)
        saves->memory_bytes = memory_bytes(&slices, saves->go_on);
    zr_heap_destroy(&heap);
    if (status != ZR_OK || saves->memory_bytes == 0)
        return status;
    return zr_base_allocate_host(saves->base, saves->memory_bytes, ZR_TAG_STAGING,
                                 "buffers of checkpoints", &saves->memory);
}
