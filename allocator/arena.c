/*
 * One class's range of addresses: blocks in address order, bins of free blocks, and
 * the mapping of granules. See arena.h for the invariants.
 */
#include <stdint.h>

#include "allocator/arena.h"
#include "allocator/poison.h"
#include "allocator/record_internal.h"

static size_t min_size(size_t a, size_t b) {
    return a < b ? a : b;
}

static size_t round_down(size_t size_bytes, size_t granule_bytes) {
    return size_bytes & ~(granule_bytes - 1);
}

static size_t round_up(size_t size_bytes, size_t granule_bytes) {
    return round_down(size_bytes + granule_bytes - 1, granule_bytes);
}

static size_t end_of(const zr_block_t *block) {
    return block->offset_bytes + block->size_bytes;
}

/* ---- lists of free and unmapped blocks ------------------------------------------- */

void zr_arena_bin_of(size_t size_bytes, int *power_p, int *step_p) {
    size_t units = size_bytes / ZR_BLOCK_ALIGNMENT;
    if (units < ZR_BIN_STEPS) {
        *power_p = 0;
        *step_p = (int)units;
        return;
    }
    int log2_units = 63 - __builtin_clzll(units);
    *power_p = log2_units - 4; /* ZR_BIN_STEPS is 2^5: units 32 to 63 are power 1 */
    *step_p = (int)(units >> (log2_units - 5)) & (ZR_BIN_STEPS - 1);
}

static void list_push(zr_block_t **first, zr_block_t *block) {
    block->list_prev = NULL;
    block->list_next = *first;
    if (*first != NULL)
        (*first)->list_prev = block;
    *first = block;
}

static void list_unlink(zr_block_t **first, zr_block_t *block) {
    if (block->list_prev != NULL)
        block->list_prev->list_next = block->list_next;
    else
        *first = block->list_next;
    if (block->list_next != NULL)
        block->list_next->list_prev = block->list_prev;
    block->list_prev = block->list_next = NULL;
}

/* Put a free or unmapped block where it can be found. */
static void enlist(zr_arena_t *arena, zr_block_t *block) {
    if (block->state == ZR_BLOCK_UNMAPPED) {
        list_push(&arena->unmapped, block);
        return;
    }
    int power, step;
    zr_arena_bin_of(block->size_bytes, &power, &step);
    list_push(&arena->bins[power][step], block);
    arena->bin_steps[power] |= UINT32_C(1) << step;
    arena->bin_powers |= UINT64_C(1) << power;
}

static void delist(zr_arena_t *arena, zr_block_t *block) {
    if (block->state == ZR_BLOCK_UNMAPPED) {
        list_unlink(&arena->unmapped, block);
        return;
    }
    int power, step;
    zr_arena_bin_of(block->size_bytes, &power, &step);
    list_unlink(&arena->bins[power][step], block);
    if (arena->bins[power][step] != NULL)
        return;
    arena->bin_steps[power] &= ~(UINT32_C(1) << step);
    if (arena->bin_steps[power] == 0)
        arena->bin_powers &= ~(UINT64_C(1) << power);
}

/* ---- splitting and merging: of blocks that are in no list ------------------------- */

/* Cut a block after size_bytes; the rest becomes a new block of the same state. */
static zr_block_t *split(zr_arena_t *arena, zr_block_t *block, size_t size_bytes) {
    zr_block_t *rest = zr_block_pool_take(arena->pool);
    rest->arena = arena;
    rest->state = block->state;
    rest->offset_bytes = block->offset_bytes + size_bytes;
    rest->size_bytes = block->size_bytes - size_bytes;
    rest->prev = block;
    rest->next = block->next;
    if (rest->next != NULL)
        rest->next->prev = rest;
    else
        arena->last = rest;
    block->next = rest;
    block->size_bytes = size_bytes;
    return rest;
}

/* Let a block swallow its next one. */
static void merge_next(zr_arena_t *arena, zr_block_t *block) {
    zr_block_t *next = block->next;
    block->size_bytes += next->size_bytes;
    block->next = next->next;
    if (block->next != NULL)
        block->next->prev = block;
    else
        arena->last = block;
    zr_block_pool_give(arena->pool, next);
}

/* List a free or unmapped block, merged with neighbours of its kind. Returns the merged one. */
static zr_block_t *coalesce(zr_arena_t *arena, zr_block_t *block) {
    if (block->next != NULL && block->next->state == block->state) {
        delist(arena, block->next);
        merge_next(arena, block);
    }
    if (block->prev != NULL && block->prev->state == block->state) {
        block = block->prev;
        delist(arena, block);
        merge_next(arena, block);
    }
    enlist(arena, block);
    return block;
}

/* Cut a part out of a block that is in no list, and list the rest. Returns the part. */
static zr_block_t *isolate(zr_arena_t *arena, zr_block_t *block, size_t offset_bytes,
                           size_t size_bytes) {
    if (offset_bytes > block->offset_bytes) {
        zr_block_t *rest = split(arena, block, offset_bytes - block->offset_bytes);
        enlist(arena, block);
        block = rest;
    }
    if (size_bytes < block->size_bytes)
        enlist(arena, split(arena, block, size_bytes));
    return block;
}

/* Turn a part of a listed block from free to unmapped or back. Returns the block it is in then. */
static zr_block_t *convert(zr_arena_t *arena, zr_block_t *block, size_t offset_bytes,
                           size_t size_bytes, zr_block_state_t state) {
    delist(arena, block);
    block = isolate(arena, block, offset_bytes, size_bytes);
    block->state = state;
    return coalesce(arena, block);
}

/* ---- the range ----------------------------------------------------------------------- */

static zr_status_t reserve_range(zr_arena_t *arena, size_t size_bytes, size_t min_bytes) {
    zr_status_t status;
    for (;;) {
        void *base = NULL;
        status = zr_range_reserve(arena->device, arena->tier, size_bytes, &base);
        if (status == ZR_OK) {
            arena->base = base;
            arena->size_bytes = size_bytes;
            return ZR_OK;
        }
        if (status != ZR_ERR_BUDGET || size_bytes <= min_bytes)
            return status;
        size_bytes = round_up(size_bytes / 2, arena->granule_bytes);
        if (size_bytes < min_bytes)
            size_bytes = min_bytes;
    }
}

zr_status_t zr_arena_init(zr_arena_t *arena, zr_device_t *device, zr_block_pool_t *pool,
                          zr_tier_t tier, const char *name, bool is_backed, size_t size_bytes,
                          size_t min_bytes) {
    const zr_device_info_t *info = zr_device_info(device);
    *arena = (zr_arena_t){.device = device, .pool = pool, .tier = tier, .name = name};
    arena->granule_bytes = info->granule_bytes;
    arena->is_backed = is_backed;
    arena->is_addressable = is_backed && (tier == ZR_TIER_HOST || info->host_addressable);
    if (zr_block_pool_reserve(pool, 1) != ZR_OK)
        return zr_fail(zr_device_log(device), ZR_ERR_MEMORY, "%s memory: no metadata for a range",
                       zr_tier_name(tier));
    ZR_TRY(reserve_range(arena, size_bytes, min_bytes));

    zr_block_t *block = zr_block_pool_take(pool);
    block->arena = arena;
    block->size_bytes = arena->size_bytes;
    block->state = is_backed ? ZR_BLOCK_UNMAPPED : ZR_BLOCK_FREE;
    arena->first = arena->last = block;
    enlist(arena, block);
    return ZR_OK;
}

void zr_arena_release_range(zr_arena_t *arena) {
    if (arena->base == NULL)
        return;
    for (zr_block_t *block = arena->first; block != NULL; block = block->next) {
        if (arena->is_addressable && block->state != ZR_BLOCK_UNMAPPED)
            zr_unpoison(arena->base + block->offset_bytes, block->size_bytes);
    }
    void *base = arena->base;
    zr_range_release(arena->device, arena->tier, &base, arena->size_bytes);
    arena->base = NULL;
}

/* ---- fits ------------------------------------------------------------------------------ */

/* The smallest of the first n_probes blocks that hold the size, then the lowest; or NULL. */
static zr_block_t *best_in_bin(zr_block_t *block, size_t size_bytes, size_t n_probes) {
    zr_block_t *best = NULL;
    for (; block != NULL && n_probes > 0; block = block->list_next, n_probes--) {
        if (block->size_bytes == size_bytes)
            return block;
        if (block->size_bytes < size_bytes)
            continue;
        if (best == NULL || block->size_bytes < best->size_bytes ||
            (block->size_bytes == best->size_bytes && block->offset_bytes < best->offset_bytes))
            best = block;
    }
    return best;
}

/* First block of the first bin that is not empty and lies above the given one, or NULL. */
static zr_block_t *first_above(const zr_arena_t *arena, int power, int step) {
    uint32_t steps = 0;
    if (step + 1 < ZR_BIN_STEPS)
        steps = arena->bin_steps[power] & (UINT32_MAX << (step + 1));
    if (steps == 0) {
        uint64_t powers = arena->bin_powers & (UINT64_MAX << (power + 1));
        if (powers == 0)
            return NULL;
        power = __builtin_ctzll(powers);
        steps = arena->bin_steps[power];
    }
    return arena->bins[power][__builtin_ctz(steps)];
}

zr_block_t *zr_arena_find(const zr_arena_t *arena, size_t size_bytes) {
    if (size_bytes > arena->size_bytes)
        return NULL;
    int power, step;
    zr_arena_bin_of(size_bytes, &power, &step);
    zr_block_t *bin = arena->bins[power][step];
    zr_block_t *block = best_in_bin(bin, size_bytes, ZR_BIN_PROBES);
    if (block != NULL)
        return block;
    block = best_in_bin(first_above(arena, power, step), size_bytes, ZR_BIN_PROBES);
    if (block != NULL)
        return block;
    return best_in_bin(bin, size_bytes, SIZE_MAX); /* a hole that fits is never missed */
}

size_t zr_arena_largest_hole(const zr_arena_t *arena) {
    if (arena->bin_powers == 0)
        return 0;
    int power = 63 - __builtin_clzll(arena->bin_powers);
    int step = 31 - __builtin_clz(arena->bin_steps[power]);
    size_t largest = 0;
    for (const zr_block_t *block = arena->bins[power][step]; block != NULL;
         block = block->list_next) {
        if (block->size_bytes > largest)
            largest = block->size_bytes;
    }
    return largest;
}

void zr_arena_take(zr_arena_t *arena, zr_block_t *block, size_t size_bytes,
                   size_t requested_bytes) {
    delist(arena, block);
    if (size_bytes < block->size_bytes)
        enlist(arena, split(arena, block, size_bytes));
    block->state = ZR_BLOCK_LIVE;
    block->requested_bytes = requested_bytes;
    if (arena->is_addressable)
        zr_unpoison(arena->base + block->offset_bytes, requested_bytes);
}

zr_block_t *zr_arena_take_at(zr_arena_t *arena, zr_block_t *block, size_t offset_bytes,
                             size_t size_bytes, size_t requested_bytes) {
    delist(arena, block);
    block = isolate(arena, block, offset_bytes, size_bytes);
    block->state = ZR_BLOCK_LIVE;
    block->requested_bytes = requested_bytes;
    return block;
}

void zr_arena_give(zr_arena_t *arena, zr_block_t *block) {
    if (arena->is_addressable)
        zr_poison(arena->base + block->offset_bytes, block->requested_bytes);
    block->state = ZR_BLOCK_FREE;
    block->requested_bytes = 0;
    coalesce(arena, block);
}

/* ---- growth ---------------------------------------------------------------------------- */

static bool is_usable(const zr_block_t *block) {
    return block != NULL && (block->state == ZR_BLOCK_FREE || block->state == ZR_BLOCK_UNMAPPED);
}

/*
 * The cost of placing a request over an unmapped block, so that it begins (upwards) or
 * ends (downwards) as far as the free block before (after) it reaches. Gives up at max_cost.
 */
static bool plan_from(zr_block_t *unmapped, bool upwards, size_t size_bytes, size_t granule_bytes,
                      size_t max_cost, zr_growth_t *growth_p) {
    zr_growth_t growth = {.block = unmapped};
    const zr_block_t *block = upwards ? unmapped->prev : unmapped->next;
    if (block == NULL || block->state != ZR_BLOCK_FREE)
        block = unmapped;
    growth.begin_bytes = block->offset_bytes;
    growth.end_bytes = end_of(block);

    size_t need = size_bytes;
    for (; need > 0 && is_usable(block); block = upwards ? block->next : block->prev) {
        size_t part = min_size(block->size_bytes, need);
        if (block->state == ZR_BLOCK_UNMAPPED) {
            part = min_size(block->size_bytes, round_up(need, granule_bytes));
            growth.cost_bytes += part;
        }
        if (growth.cost_bytes >= max_cost)
            return false;
        if (block == unmapped) {
            growth.offset_bytes = upwards ? block->offset_bytes : end_of(block) - part;
            growth.size_bytes = part;
        }
        if (upwards)
            growth.end_bytes = block->offset_bytes + part;
        else
            growth.begin_bytes = end_of(block) - part;
        need -= min_size(need, part);
    }
    if (need > 0)
        return false;
    *growth_p = growth;
    return true;
}

/*
 * The cost of a window over a run of free and unmapped blocks is least where the window
 * begins or ends at the edge of a block, so those are all the places there are to try.
 */
bool zr_arena_plan_growth(const zr_arena_t *arena, size_t size_bytes, zr_growth_t *growth_p) {
    if (size_bytes > arena->size_bytes)
        return false;
    zr_growth_t best = {.cost_bytes = SIZE_MAX};
    for (zr_block_t *block = arena->unmapped; block != NULL; block = block->list_next) {
        for (int downwards = 0; downwards < 2; downwards++) {
            zr_growth_t growth;
            size_t max_cost = best.cost_bytes == SIZE_MAX ? SIZE_MAX : best.cost_bytes + 1;
            if (!plan_from(block, !downwards, size_bytes, arena->granule_bytes, max_cost, &growth))
                continue;
            if (growth.cost_bytes < best.cost_bytes || growth.offset_bytes < best.offset_bytes)
                best = growth;
        }
    }
    if (best.block == NULL)
        return false;
    *growth_p = best;
    return true;
}

static void record_change(const zr_arena_t *arena, size_t offset_bytes, size_t size_bytes,
                          bool is_mapped) {
    zr_record_stretch_t stretch = {.offset_bytes = offset_bytes,
                                   .size_bytes = size_bytes,
                                   .tier = (uint8_t)arena->tier,
                                   .class_index = (uint8_t)arena->class_index,
                                   .is_mapped = is_mapped};
    zr_recording_changed(arena->recording, &stretch);
}

zr_status_t zr_arena_map(zr_arena_t *arena, const zr_growth_t *growth) {
    arena->n_map_calls++;
    ZR_TRY(zr_range_map(arena->device, arena->tier, arena->base, growth->offset_bytes,
                        growth->size_bytes));
    arena->mapped_bytes += growth->size_bytes;
    if (arena->mapped_bytes > arena->mapped_peak_bytes)
        arena->mapped_peak_bytes = arena->mapped_bytes;
    if (arena->recording != NULL)
        record_change(arena, growth->offset_bytes, growth->size_bytes, true);
    if (arena->is_addressable)
        zr_poison(arena->base + growth->offset_bytes, growth->size_bytes);
    convert(arena, growth->block, growth->offset_bytes, growth->size_bytes, ZR_BLOCK_FREE);
    return ZR_OK;
}

/* ---- trimming ---------------------------------------------------------------------------- */

/* The highest stretch of whole granules in a free block outside `keep`; its size may be 0. */
static size_t idle_stretch(const zr_arena_t *arena, const zr_block_t *block,
                           const zr_growth_t *keep, size_t *offset_p) {
    size_t begin = round_up(block->offset_bytes, arena->granule_bytes);
    size_t end = round_down(end_of(block), arena->granule_bytes);
    if (keep != NULL && end > begin && keep->begin_bytes < end && begin < keep->end_bytes) {
        size_t above = round_up(keep->end_bytes, arena->granule_bytes);
        if (above < end)
            begin = above;
        else
            end = round_down(keep->begin_bytes, arena->granule_bytes);
    }
    *offset_p = begin;
    return end > begin ? end - begin : 0;
}

static zr_status_t unmap(zr_arena_t *arena, zr_block_t **block, size_t offset_bytes,
                         size_t size_bytes) {
    ZR_TRY(zr_block_pool_reserve(arena->pool, 2));
    arena->n_unmap_calls++;
    ZR_TRY(zr_range_unmap(arena->device, arena->tier, arena->base, offset_bytes, size_bytes));
    arena->mapped_bytes -= size_bytes;
    if (arena->recording != NULL)
        record_change(arena, offset_bytes, size_bytes, false);
    if (arena->is_addressable)
        zr_unpoison(arena->base + offset_bytes, size_bytes);
    *block = convert(arena, *block, offset_bytes, size_bytes, ZR_BLOCK_UNMAPPED);
    return ZR_OK;
}

zr_status_t zr_arena_trim(zr_arena_t *arena, size_t size_bytes, const zr_growth_t *keep,
                          size_t *freed_p) {
    *freed_p = 0;
    if (!arena->is_backed)
        return ZR_OK;
    for (zr_block_t *block = arena->last; block != NULL && *freed_p < size_bytes;
         block = block->prev) {
        if (block->state != ZR_BLOCK_FREE)
            continue;
        size_t offset;
        size_t idle = idle_stretch(arena, block, keep, &offset);
        if (idle == 0)
            continue;
        size_t part = round_up(min_size(idle, size_bytes - *freed_p), arena->granule_bytes);
        ZR_TRY(unmap(arena, &block, offset + idle - part, part));
        *freed_p += part;
    }
    return ZR_OK;
}
