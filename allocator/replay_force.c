/*
 * A plan's memory is one block of the class of plans, which is held: nobody else finds it there.
 * A place of it that is live is a block of its own, which stands in no arena's list.
 */
#include "allocator/internal.h"
#include "allocator/replay_force_internal.h"

static zr_arena_t *arena_of(zr_allocator_t *allocator, int tier) {
    return &allocator->tiers[tier].arenas[ZR_CLASS_PLANNED];
}

/* ---- out of force -------------------------------------------------------------------- */

/* Blocks are back. */
static void free_tables(zr_allocator_t *allocator) {
    zr_replay_t *replay = allocator->replay;
    for (int i = 0; i <= ZR_REPLAY_MAX_STREAMS; i++) {
        for (size_t k = 0; k < ZR_REPLAY_N_RECORDS; k++)
            zr_event_destroy(&replay->fences[i].events[k]);
        replay->fences[i] = (zr_replay_fence_t){0};
    }
    zr_heap_free(allocator->heap, replay->blocks);
    replay->blocks = NULL;
}

static void give_held(zr_replay_t *replay) {
    for (int tier = 0; tier < ZR_REPLAY_N_TIERS; tier++) {
        if (replay->held[tier] != NULL)
            zr_arena_give(replay->held[tier]->arena, replay->held[tier]);
        replay->held[tier] = NULL;
    }
}

/* Work that failed never runs again, so that its memory is free either way. */
static zr_status_t synchronize(const zr_replay_t *replay) {
    zr_status_t first = ZR_OK;
    for (int i = 1; i <= ZR_REPLAY_MAX_STREAMS; i++) {
        zr_status_t status =
            zr_replay_has_fence(replay, i) ? zr_stream_synchronize(replay->streams[i - 1]) : ZR_OK;
        first = first == ZR_OK ? status : first;
    }
    return first;
}

/* The block of an arena's list that an address is in. */
static zr_block_t *block_at(zr_arena_t *arena, size_t offset_bytes) {
    zr_block_t *block = arena->first;
    while (block->offset_bytes + block->size_bytes <= offset_bytes)
        block = block->next;
    return block;
}

/* Let a place that is live become a block of its arena's list. */
static void settle(zr_allocator_t *allocator, const zr_block_t *from) {
    zr_arena_t *arena = from->arena;
    zr_block_t *block =
        zr_arena_take_at(arena, block_at(arena, from->offset_bytes), from->offset_bytes,
                         zr_block_bytes(from->requested_bytes), from->requested_bytes);
    block->tag = from->tag;
    block->lifetime = from->lifetime;
    block->tape_number = from->tape_number;
    block->tape_epoch = from->tape_epoch;
    block->life = from->life;
    if (block->life != 0)
        allocator->recording->lives[block->life - 1].block = block;
    const void *pointer = arena->base + block->offset_bytes;
    zr_block_table_remove(&allocator->table, pointer);
    zr_block_table_add(&allocator->table, pointer, block);
}

bool zr_replay_release(zr_allocator_t *allocator) {
    zr_replay_t *replay = allocator->replay;
    if (!replay->is_in_force)
        return true;
    if (replay->n_live > 0 && zr_block_pool_reserve(&allocator->pool, 2 * replay->n_live) != ZR_OK)
        return false;
    if (synchronize(replay) != ZR_OK)
        zr_log_write(zr_device_log(allocator->device), ZR_LOG_WARNING,
                     "the plan's memory was used by failed work");
    give_held(replay);
    for (size_t i = 0; replay->n_live > 0 && i < replay->plan->n_entries; i++) {
        if (replay->blocks[i] == NULL)
            continue;
        settle(allocator, replay->blocks[i]);
        zr_replay_drop_block(allocator, i);
    }
    replay->n_overdue = 0;
    free_tables(allocator);
    replay->is_in_force = false;
    return true;
}

void zr_replay_abandon(zr_allocator_t *allocator) {
    if (allocator->replay->is_in_force)
        free_tables(allocator);
}

bool zr_replay_drop(zr_allocator_t *allocator) {
    zr_replay_t *replay = allocator->replay;
    if (replay == NULL || !replay->is_in_force || !zr_replay_release(allocator))
        return false;
    if (!replay->has_left)
        replay->tape.is_torn = true; /* what the step did so far, only the plan knew */
    replay->statistics.n_dropped++;
    return true;
}

bool zr_replay_yield(zr_allocator_t *allocator, const zr_allocation_request_t *request) {
    const zr_replay_t *replay = allocator->replay;
    return replay != NULL && replay->has_left && zr_replay_covers(request) &&
           zr_replay_drop(allocator);
}

/* ---- into force ------------------------------------------------------------------------ */

/* Nothing lives in the class of plans: there the plan begins at address 0. */
static bool is_empty(const zr_arena_t *arena) {
    for (const zr_block_t *block = arena->first; block != NULL; block = block->next) {
        if (block->state != ZR_BLOCK_FREE && block->state != ZR_BLOCK_UNMAPPED)
            return false;
    }
    return true;
}

/* Streams are waited for, rather than what each still uses: that is the same wait whatever was seen
 * to have passed before. */
static zr_status_t wait_for_streams(const zr_replay_t *replay) {
    for (int i = 1; i <= ZR_REPLAY_MAX_STREAMS; i++)
        if ((replay->plan->streams & 1u << i) != 0 && replay->streams[i - 1] != NULL)
            ZR_TRY(zr_stream_synchronize(replay->streams[i - 1]));
    return ZR_OK;
}

/* What the step before has left is not needed any more, once its streams have passed. */
static zr_status_t clear(zr_allocator_t *allocator, zr_tier_memory_t *memory) {
    ZR_TRY(zr_tier_poll(allocator, memory));
    while (memory->pending.n_blocks > 0)
        ZR_TRY(zr_tier_wait(allocator, memory));
    if (!is_empty(&memory->arenas[ZR_CLASS_PLANNED]))
        return ZR_ERR_BUDGET;
    for (int i = 0; i < ZR_N_LIFETIMES; i++)
        ZR_TRY(zr_tier_trim(memory, &memory->arenas[i]));
    return ZR_OK;
}

static zr_status_t hold(zr_allocator_t *allocator, int tier, size_t size_bytes) {
    zr_tier_memory_t *memory = &allocator->tiers[tier];
    zr_arena_t *arena = arena_of(allocator, tier);
    zr_allocation_request_t request = {
        .size_bytes = size_bytes, .tier = (zr_tier_t)tier, .name = "the plan"};
    zr_attempt_t attempt = {
        .request = &request, .memory = memory, .arena = arena, .size_bytes = size_bytes};
    zr_block_t *block = NULL;
    while (block == NULL) {
        ZR_TRY(zr_block_pool_reserve(&allocator->pool, ZR_BLOCKS_PER_STEP));
        block = zr_arena_find(arena, size_bytes);
        if (block == NULL)
            ZR_TRY(zr_tier_make_room(allocator, &attempt));
    }
    zr_arena_take(arena, block, size_bytes, 0);
    block->state = ZR_BLOCK_HELD;
    allocator->replay->held[tier] = block;
    return zr_tier_trim(memory, arena);
}

static zr_status_t hold_memory(zr_allocator_t *allocator) {
    const zr_replay_made_t *plan = allocator->replay->plan;
    ZR_TRY(wait_for_streams(allocator->replay));
    for (int tier = 0; tier < ZR_REPLAY_N_TIERS; tier++) {
        ZR_TRY(clear(allocator, &allocator->tiers[tier]));
        if (plan->summary[tier].height_bytes > 0)
            ZR_TRY(hold(allocator, tier, plan->summary[tier].height_bytes));
    }
    return ZR_OK;
}

zr_status_t zr_replay_add_fence(zr_allocator_t *allocator, int stream) {
    zr_event_t **events = allocator->replay->fences[stream].events;
    zr_status_t status = ZR_OK;
    for (size_t i = 0; i < ZR_REPLAY_N_RECORDS; i++)
        ZR_THEN(status, zr_event_create(allocator->device, &events[i]));
    for (size_t i = 0; status != ZR_OK && i < ZR_REPLAY_N_RECORDS; i++)
        zr_event_destroy(&events[i]);
    return status;
}

static zr_status_t make_tables(zr_allocator_t *allocator) {
    zr_replay_t *replay = allocator->replay;
    const zr_replay_made_t *plan = replay->plan;
    replay->blocks = zr_heap_alloc(allocator->heap, plan->n_entries, sizeof(zr_block_t *));
    if (replay->blocks == NULL)
        return ZR_ERR_MEMORY;
    for (int i = 1; i <= ZR_REPLAY_MAX_STREAMS; i++)
        if ((plan->streams & 1u << i) != 0)
            ZR_TRY(zr_replay_add_fence(allocator, i));
    return ZR_OK;
}

zr_status_t zr_replay_force(zr_allocator_t *allocator) {
    zr_status_t status = hold_memory(allocator);
    ZR_THEN(status, make_tables(allocator));
    if (status == ZR_OK)
        return ZR_OK;
    give_held(allocator->replay);
    free_tables(allocator);
    return status;
}
