/*
 * Whether the allocator still is what its headers say it is: every block, list, table
 * entry and sum is walked and compared. For tests and debug builds.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "allocator/internal.h"

/* Log what is wrong and give back false. */
static bool broken(const zr_allocator_t *allocator, const char *format, ...) ZR_PRINTF(2, 3);

static bool broken(const zr_allocator_t *allocator, const char *format, ...) {
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    zr_log_write(&allocator->log, ZR_LOG_ERROR, "the allocator is not valid: %s", text);
    return false;
}

/* What walking a tier's blocks adds up to. */
typedef struct sums {
    size_t by_tag[ZR_N_TAGS];
    size_t by_lifetime[ZR_N_LIFETIMES];
    size_t live, pending, mapped; /* bytes; live and pending as requested */
    size_t n_blocks, n_live, n_pending;
    size_t n_free, n_unmapped, arena_live; /* of one arena */
} sums_t;

/* ---- one arena -------------------------------------------------------------------------- */

/* A live block: in the table, in the right class, and no larger than its request needs. */
static bool check_live(const zr_allocator_t *allocator, const zr_block_t *block, sums_t *sums) {
    const zr_arena_t *arena = block->arena;
    const zr_tier_memory_t *memory = &allocator->tiers[arena->tier];
    int class = (int)(arena - memory->arenas);
    size_t offset = block->offset_bytes;
    if ((unsigned)block->tag >= ZR_N_TAGS || (unsigned)block->lifetime >= ZR_N_LIFETIMES)
        return broken(allocator, "%s+%zu has tag %d, lifetime %d", arena->name, offset,
                      (int)block->tag, (int)block->lifetime);
    if (class != ZR_CLASS_PLANNED &&
        class != (block->requested_bytes == 0 ? ZR_ARENA_EMPTY : (int)block->lifetime))
        return broken(allocator, "%s+%zu belongs into class %s", arena->name, offset,
                      zr_lifetime_name(block->lifetime));
    if (block->requested_bytes > block->size_bytes ||
        (block->planned == 0 && block->size_bytes - block->requested_bytes > ZR_BLOCK_ALIGNMENT))
        return broken(allocator, "%s+%zu has %zu bytes for %zu", arena->name, offset,
                      block->size_bytes, block->requested_bytes);
    if (block->life != 0 &&
        (allocator->recording == NULL || block->life > allocator->recording->n_lives ||
         allocator->recording->lives[block->life - 1].block != block))
        return broken(allocator, "%s+%zu is not life %zu of the recording", arena->name, offset,
                      block->life);
    if (block->state == ZR_BLOCK_PENDING) {
        sums->pending += block->requested_bytes;
        sums->n_pending++;
        return block->event != NULL ||
               broken(allocator, "%s+%zu waits for nothing", arena->name, offset);
    }
    if (zr_block_table_find(&allocator->table, arena->base + offset) != block)
        return broken(allocator, "%s+%zu is live and not in the table", arena->name, offset);
    sums->by_tag[block->tag] += block->requested_bytes;
    sums->by_lifetime[block->lifetime] += block->requested_bytes;
    sums->live += block->requested_bytes;
    sums->arena_live += block->requested_bytes;
    sums->n_live++;
    return true;
}

/* A place of the plan: inside what is held, and where it is live its block says what its entry
 * says. */
static bool check_place(const zr_allocator_t *allocator, const zr_block_t *held, size_t index,
                        sums_t *sums) {
    const zr_replay_t *replay = allocator->replay;
    const zr_block_t *block = replay->blocks[index];
    size_t offset = replay->plan->entries[index].offset_bytes;
    size_t block_bytes = replay->plan->tape.entries[index].block_bytes;
    if (block == NULL)
        return true;
    if (block->planned != index + 1 || block->arena != held->arena ||
        block->offset_bytes != held->offset_bytes + offset || block->size_bytes != block_bytes ||
        offset + block_bytes > held->size_bytes)
        return broken(allocator, "entry %zu of the plan has %zu bytes at %zu", index,
                      block->size_bytes, block->offset_bytes);
    if (block->state != ZR_BLOCK_LIVE)
        return broken(allocator, "entry %zu of the plan has a block in state %d", index,
                      (int)block->state);
    sums->n_blocks++;
    return check_live(allocator, block, sums);
}

static bool places_overlap(const zr_block_t *a, const zr_block_t *b) {
    return b != NULL && a->arena == b->arena && a->offset_bytes < b->offset_bytes + b->size_bytes &&
           b->offset_bytes < a->offset_bytes + a->size_bytes;
}

/* The memory of a plan, and all its places in this tier. */
static bool check_held(const zr_allocator_t *allocator, const zr_block_t *held, sums_t *sums) {
    const zr_replay_t *replay = allocator->replay;
    zr_tier_t tier = held->arena->tier;
    if (replay == NULL || !replay->is_in_force || replay->held[tier] != held)
        return broken(allocator, "%s+%zu is held by no plan", held->arena->name,
                      held->offset_bytes);
    const zr_replay_made_t *plan = replay->plan;
    for (size_t i = 0; i < plan->n_entries; i++) {
        if (!plan->entries[i].is_planned || plan->tape.entries[i].kind.tier != tier)
            continue;
        if (!check_place(allocator, held, i, sums))
            return false;
        for (size_t k = 0; replay->blocks[i] != NULL && k < i; k++) {
            if (places_overlap(replay->blocks[i], replay->blocks[k]))
                return broken(allocator, "entries %zu and %zu of the plan overlap", k, i);
        }
    }
    return true;
}

/* What replay counts of its entries. */
static bool check_replay(const zr_allocator_t *allocator) {
    const zr_replay_t *replay = allocator->replay;
    size_t n_live = 0, n_overdue = 0;
    for (size_t i = 0; replay->is_in_force && i < replay->plan->n_entries; i++) {
        n_live += replay->blocks[i] != NULL;
        n_overdue += replay->blocks[i] != NULL && replay->blocks[i]->is_overdue;
    }
    if (n_live != replay->n_live || n_overdue != replay->n_overdue)
        return broken(allocator,
                      "the plan has %zu live and %zu overdue entries, counted are %zu "
                      "and %zu",
                      n_live, n_overdue, replay->n_live, replay->n_overdue);
    return true;
}

static bool check_block(const zr_allocator_t *allocator, const zr_arena_t *arena,
                        const zr_block_t *block, size_t expected_offset, sums_t *sums) {
    size_t offset = block->offset_bytes, granule = arena->granule_bytes;
    if (block->arena != arena || offset != expected_offset || block->size_bytes == 0 ||
        block->size_bytes % ZR_BLOCK_ALIGNMENT != 0)
        return broken(allocator, "%s+%zu: a block of %zu bytes at %zu", arena->name,
                      expected_offset, block->size_bytes, offset);
    if (block->prev != NULL ? block->prev->next != block : arena->first != block)
        return broken(allocator, "%s+%zu is not linked both ways", arena->name, offset);
    sums->n_blocks++;
    switch (block->state) {
    case ZR_BLOCK_UNMAPPED:
        sums->n_unmapped++;
        if (offset % granule != 0 || block->size_bytes % granule != 0 || !arena->is_backed)
            return broken(allocator, "%s+%zu: %zu unmapped bytes are not whole granules",
                          arena->name, offset, block->size_bytes);
        break;
    case ZR_BLOCK_FREE:
        sums->n_free++;
        break;
    case ZR_BLOCK_HELD:
        return check_held(allocator, block, sums);
    default:
        return check_live(allocator, block, sums);
    }
    if (block->next != NULL && block->next->state == block->state)
        return broken(allocator, "%s+%zu was not merged with the block after it", arena->name,
                      offset);
    return true;
}

static bool check_bin(const zr_allocator_t *allocator, const zr_arena_t *arena, int power, int step,
                      size_t *n_free) {
    const zr_block_t *bin = arena->bins[power][step];
    bool is_marked = (arena->bin_steps[power] >> step & 1) != 0;
    if (is_marked != (bin != NULL) ||
        (arena->bin_powers >> power & 1) != (arena->bin_steps[power] != 0))
        return broken(allocator, "%s: bin %d/%d is marked wrongly", arena->name, power, step);
    const zr_block_t *prev = NULL;
    for (const zr_block_t *block = bin; block != NULL; block = block->list_next) {
        int right_power, right_step;
        zr_arena_bin_of(block->size_bytes, &right_power, &right_step);
        if (block->state != ZR_BLOCK_FREE || block->arena != arena || right_power != power ||
            right_step != step || block->list_prev != prev)
            return broken(allocator, "%s+%zu with %zu bytes should not be in bin %d/%d",
                          arena->name, block->offset_bytes, block->size_bytes, power, step);
        prev = block;
        ++*n_free;
    }
    return true;
}

static bool check_lists(const zr_allocator_t *allocator, const zr_arena_t *arena,
                        const sums_t *sums) {
    size_t n_free = 0, n_unmapped = 0;
    for (int power = 0; power < ZR_BIN_POWERS; power++) {
        for (int step = 0; step < ZR_BIN_STEPS; step++) {
            if (!check_bin(allocator, arena, power, step, &n_free))
                return false;
        }
    }
    const zr_block_t *prev = NULL;
    for (const zr_block_t *block = arena->unmapped; block != NULL; block = block->list_next) {
        if (block->state != ZR_BLOCK_UNMAPPED || block->arena != arena || block->list_prev != prev)
            return broken(allocator, "%s+%zu is wrongly listed as unmapped", arena->name,
                          block->offset_bytes);
        prev = block;
        n_unmapped++;
    }
    if (n_free != sums->n_free || n_unmapped != sums->n_unmapped)
        return broken(allocator, "%s: %zu of %zu free and %zu of %zu unmapped blocks are listed",
                      arena->name, n_free, sums->n_free, n_unmapped, sums->n_unmapped);
    return true;
}

/* Whole granules of a free block. */
static size_t idle_of(const zr_arena_t *arena, const zr_block_t *block) {
    size_t granule = arena->granule_bytes, end = block->offset_bytes + block->size_bytes;
    size_t first = (block->offset_bytes + granule - 1) / granule, last = end / granule;
    bool is_idle = arena->is_backed && block->state == ZR_BLOCK_FREE && last > first;
    return is_idle ? (last - first) * granule : 0;
}

static bool check_arena(const zr_allocator_t *allocator, const zr_arena_t *arena, sums_t *sums) {
    sums->n_free = sums->n_unmapped = sums->arena_live = 0;
    size_t offset = 0, mapped = 0, idle = 0;
    const zr_block_t *last = NULL;
    for (const zr_block_t *block = arena->first; block != NULL; block = block->next) {
        if (!check_block(allocator, arena, block, offset, sums))
            return false;
        if (arena->is_backed && block->state != ZR_BLOCK_UNMAPPED)
            mapped += block->size_bytes;
        idle += idle_of(arena, block);
        offset += block->size_bytes;
        last = block;
    }
    if (last != arena->last || offset != arena->size_bytes)
        return broken(allocator, "%s: blocks end at %zu of %zu bytes", arena->name, offset,
                      arena->size_bytes);
    if (idle != arena->idle_bytes)
        return broken(allocator, "%s: %zu bytes are idle, %zu are counted", arena->name, idle,
                      arena->idle_bytes);
    if (mapped != arena->mapped_bytes)
        return broken(allocator, "%s: %zu bytes are mapped, %zu are counted", arena->name, mapped,
                      arena->mapped_bytes);
    if (sums->arena_live != arena->live.live || arena->live.peak < arena->live.live)
        return broken(allocator, "%s: %zu bytes are live, %zu are counted", arena->name,
                      sums->arena_live, arena->live.live);
    sums->mapped += mapped;
    return check_lists(allocator, arena, sums);
}

/* ---- one tier ---------------------------------------------------------------------------- */

static bool check_count(const zr_allocator_t *allocator, zr_tier_t tier, const char *what,
                        const zr_byte_count_t *count, size_t live) {
    if (count->live == live && count->peak >= count->live)
        return true;
    return broken(allocator, "%s memory, %s: %zu bytes are counted (peak %zu), %zu are there",
                  zr_tier_name(tier), what, count->live, count->peak, live);
}

static bool check_counts(const zr_allocator_t *allocator, const zr_tier_memory_t *memory,
                         const sums_t *sums) {
    const zr_tier_statistics_t *statistics = &memory->statistics;
    zr_tier_t tier = memory->tier;
    size_t at_peak = 0;
    for (int i = 0; i < ZR_N_TAGS; i++) {
        at_peak += statistics->at_peak[i];
        if (!check_count(allocator, tier, zr_tag_name((zr_tag_t)i), &statistics->by_tag[i],
                         sums->by_tag[i]))
            return false;
    }
    if (!memory->is_at_peak && at_peak != statistics->live.peak)
        return broken(allocator, "%s memory: tags have %zu bytes at the peak of %zu",
                      zr_tier_name(tier), at_peak, statistics->live.peak);
    for (int i = 0; i < ZR_N_LIFETIMES; i++) {
        if (!check_count(allocator, tier, zr_lifetime_name((zr_lifetime_t)i),
                         &statistics->by_lifetime[i], sums->by_lifetime[i]))
            return false;
    }
    if (!check_count(allocator, tier, "live", &statistics->live, sums->live) ||
        !check_count(allocator, tier, "pending", &statistics->pending, sums->pending) ||
        !check_count(allocator, tier, "reserved", &statistics->reserved, sums->mapped))
        return false;
    if (statistics->reserved.peak > statistics->budget_bytes)
        return broken(allocator, "%s memory: %zu bytes were reserved with a budget of %zu",
                      zr_tier_name(tier), statistics->reserved.peak, statistics->budget_bytes);
    if (statistics->n_live != sums->n_live || memory->pending.n_blocks != sums->n_pending)
        return broken(allocator, "%s memory: %zu of %zu live and %zu of %zu pending blocks counted",
                      zr_tier_name(tier), statistics->n_live, sums->n_live,
                      memory->pending.n_blocks, sums->n_pending);
    return true;
}

static bool check_queues(const zr_allocator_t *allocator, const zr_tier_memory_t *memory) {
    size_t n_blocks = 0;
    for (int i = 0; i < ZR_N_PENDING_QUEUES; i++) {
        const zr_pending_queue_t *queue = &memory->pending.queues[i];
        const zr_block_t *last = NULL;
        for (const zr_block_t *block = queue->first; block != NULL; block = block->list_next) {
            if (block->state != ZR_BLOCK_PENDING || block->arena->tier != memory->tier ||
                (last != NULL && block->sequence <= last->sequence))
                return broken(allocator, "%s+%zu is wrongly queued", block->arena->name,
                              block->offset_bytes);
            last = block;
            n_blocks++;
        }
        if (queue->last != last)
            return broken(allocator, "queue %d does not end with its last block", i);
    }
    if (n_blocks != memory->pending.n_blocks)
        return broken(allocator, "%zu blocks are queued, %zu are counted", n_blocks,
                      memory->pending.n_blocks);
    return true;
}

bool zr_allocator_check(const zr_allocator_t *allocator) {
    size_t n_blocks = 0, n_live = 0, n_pending = 0;
    for (int i = 0; i < ZR_N_MEMORY_TIERS; i++) {
        const zr_tier_memory_t *memory = &allocator->tiers[i];
        sums_t sums;
        memset(&sums, 0, sizeof(sums));
        for (int k = 0; k < ZR_N_ARENAS; k++) {
            if (!check_arena(allocator, &memory->arenas[k], &sums))
                return false;
        }
        if (!check_counts(allocator, memory, &sums) || !check_queues(allocator, memory))
            return false;
        n_blocks += sums.n_blocks;
        n_live += sums.n_live;
        n_pending += sums.n_pending;
    }
    if (allocator->table.n_blocks != n_live)
        return broken(allocator, "%zu blocks are live, %zu are in the table", n_live,
                      allocator->table.n_blocks);
    if (allocator->pool.n_blocks != n_blocks + allocator->pool.n_spare)
        return broken(allocator, "%zu blocks were made, %zu are used and %zu spare",
                      allocator->pool.n_blocks, n_blocks, allocator->pool.n_spare);
    if (allocator->replay != NULL && !check_replay(allocator))
        return false;
    if (allocator->events.n_events != allocator->events.n_spare + n_pending)
        return broken(allocator, "%zu events were made, %zu are used and %zu spare",
                      allocator->events.n_events, n_pending, allocator->events.n_spare);
    return true;
}
