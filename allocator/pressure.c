/*
 * What is done when no mapped hole fits: map more, wait for pending frees, unmap idle granules
 * so that others can be mapped, and only then refuse.
 */
#include "allocator/internal.h"

size_t zr_tier_headroom(const zr_tier_memory_t *memory) {
    return memory->statistics.budget_bytes - memory->statistics.reserved.live;
}

/* A block becomes part of a hole. */
void zr_tier_give(zr_block_t *block) {
    if (block->arena->recording != NULL)
        zr_recording_ended(block->arena->recording, block);
    zr_arena_give(block->arena, block);
}

static void end_pending(zr_tier_memory_t *memory, zr_block_t *block) {
    memory->statistics.pending.live -= block->requested_bytes;
    zr_tier_give(block);
}

/* Make blocks free whose events have passed, without waiting. */
zr_status_t zr_tier_poll(zr_allocator_t *allocator, zr_tier_memory_t *memory) {
    for (int i = 0; memory->pending.n_blocks > 0 && i < ZR_N_PENDING_QUEUES; i++) {
        for (;;) {
            zr_block_t *block = NULL;
            ZR_TRY(zr_pending_take_passed(&memory->pending, &allocator->events, i, &block));
            if (block == NULL)
                break;
            end_pending(memory, block);
        }
    }
    return ZR_OK;
}

zr_status_t zr_tier_wait(zr_allocator_t *allocator, zr_tier_memory_t *memory) {
    zr_block_t *block = NULL;
    ZR_TRY(zr_pending_take_oldest(&memory->pending, &allocator->events, &block));
    if (block != NULL)
        end_pending(memory, block);
    return ZR_OK;
}

/* Unmap idle granules of an arena, up to what is still needed, and count them. */
zr_status_t zr_tier_trim(zr_tier_memory_t *memory, zr_arena_t *arena, size_t size_bytes,
                         const zr_growth_t *keep, size_t *freed) {
    size_t part = 0;
    zr_status_t status = ZR_OK;
    if (*freed < size_bytes)
        status = zr_arena_trim(arena, size_bytes - *freed, keep, &part);
    memory->statistics.reserved.live -= part;
    *freed += part;
    return status;
}

/*
 * Unmap idle granules for a growth that needs size_bytes more than there are: those of other
 * classes, the longest lives first because they will be missed last; then those of its own
 * outside the place it grows into. Should that be too little, all of its own go, once: then
 * no place looks cheaper than it is, and the next plan is the one that needs the least.
 */
static zr_status_t make_headroom(zr_attempt_t *attempt, const zr_growth_t *growth,
                                 size_t size_bytes) {
    size_t freed = 0;
    for (int i = 0; i < ZR_N_CLASSES; i++) {
        zr_arena_t *arena = &attempt->memory->arenas[i];
        if (arena != attempt->arena)
            ZR_TRY(zr_tier_trim(attempt->memory, arena, size_bytes, NULL, &freed));
    }
    ZR_TRY(zr_tier_trim(attempt->memory, attempt->arena, size_bytes, growth, &freed));
    if (freed >= size_bytes)
        return ZR_OK;
    if (attempt->is_trimmed)
        return ZR_ERR_BUDGET;
    attempt->is_trimmed = true;
    return zr_tier_trim(attempt->memory, attempt->arena, SIZE_MAX, NULL, &freed);
}

/* One step towards a fit: map a piece, or else wait for a pending free, or else unmap. */
zr_status_t zr_tier_make_room(zr_allocator_t *allocator, zr_attempt_t *attempt) {
    zr_tier_memory_t *memory = attempt->memory;
    zr_growth_t growth;
    size_t missing = 0;
    attempt->has_no_addresses = !zr_arena_plan_growth(attempt->arena, attempt->size_bytes, &growth);
    if (!attempt->has_no_addresses) {
        size_t headroom = zr_tier_headroom(memory);
        if (growth.cost_bytes <= headroom) {
            zr_status_t status = zr_arena_map(attempt->arena, &growth);
            if (status == ZR_OK)
                zr_count_up(&memory->statistics.reserved, growth.size_bytes);
            if (status != ZR_ERR_BUDGET)
                return status;
            attempt->is_machine_full = true;
            missing = growth.cost_bytes;
        } else {
            missing = growth.cost_bytes - headroom;
        }
    }
    if (memory->pending.n_blocks > 0)
        return zr_tier_wait(allocator, memory);
    if (attempt->has_no_addresses)
        return ZR_ERR_BUDGET;
    return make_headroom(attempt, &growth, missing);
}
