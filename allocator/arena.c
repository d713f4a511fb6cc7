/*
 * One class's range of addresses: blocks in address order, bins of free blocks, and
 * the mapping of granules. See arena_internal.h for the invariants.
 */
#include <stdint.h>

#include "allocator/arena_internal.h"
#include "allocator/poison_internal.h"
#include "allocator/record_internal.h"

static size_t min_size(size_t a, size_t b) {
    return a < b ? a : b;
}

static size_t max_size(size_t a, size_t b) {
    return a > b ? a : b;
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

static bool contains(const zr_block_t *block, size_t offset_bytes) {
    return block->offset_bytes <= offset_bytes && offset_bytes < end_of(block);
}

/* Blocks taken from the pool by mapping or unmapping a part of one, at most. */
#define BLOCKS_PER_CHANGE 2

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
/* Whole granules of a free block. */
static size_t idle_in(const zr_arena_t *arena, const zr_block_t *block) {
    size_t begin = round_up(block->offset_bytes, arena->granule_bytes);
    size_t end = round_down(end_of(block), arena->granule_bytes);
    return arena->is_backed && end > begin ? end - begin : 0;
}

static void enlist(zr_arena_t *arena, zr_block_t *block) {
    if (block->state == ZR_BLOCK_UNMAPPED) {
        list_push(&arena->unmapped, block);
        return;
    }
    int power, step;
    arena->idle_bytes += idle_in(arena, block);
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
    arena->idle_bytes -= idle_in(arena, block);
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
    arena->is_addressable =
        is_backed && !info->stores_nothing && (tier == ZR_TIER_HOST || info->host_addressable);
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

/* Let a growth go on with the first unmapped piece of its place, at this block or after it. */
static void go_on(zr_growth_t *growth, zr_block_t *block, size_t granule_bytes) {
    size_t begin = round_down(growth->begin_bytes, granule_bytes);
    size_t end = round_up(growth->end_bytes, granule_bytes);
    growth->block = NULL;
    growth->size_bytes = 0;
    for (; block != NULL && block->offset_bytes < end; block = block->next) {
        if (block->state != ZR_BLOCK_UNMAPPED || end_of(block) <= begin)
            continue;
        growth->block = block;
        growth->offset_bytes = max_size(block->offset_bytes, begin);
        growth->size_bytes = min_size(end_of(block), end) - growth->offset_bytes;
        return;
    }
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
    zr_block_t *first = best.block;
    while (first->offset_bytes > best.begin_bytes && is_usable(first->prev))
        first = first->prev;
    go_on(&best, first, arena->granule_bytes);
    *growth_p = best;
    return true;
}

/* Bytes to map for [begin, end) in a run of free and unmapped blocks if nothing idle were mapped.
 * Granules that the run shares with a live block are mapped in any case. */
static size_t cost_afresh(size_t begin, size_t end, size_t run_begin, size_t run_end,
                          size_t granule_bytes) {
    size_t low = round_down(begin, granule_bytes), high = round_up(end, granule_bytes);
    if (low < run_begin)
        low += granule_bytes;
    if (high > run_end)
        high -= granule_bytes;
    return high > low ? high - low : 0;
}

/* As above, the cost is least at an edge: here, of the run. */
bool zr_arena_plan_afresh(const zr_arena_t *arena, size_t size_bytes, zr_growth_t *growth_p) {
    zr_growth_t best = {0};
    size_t least = SIZE_MAX;
    zr_block_t *first = NULL; /* of the run with the best place */
    for (zr_block_t *block = arena->first; block != NULL; block = block->next) {
        if (!is_usable(block))
            continue;
        zr_block_t *run = block;
        while (is_usable(block->next))
            block = block->next;
        size_t run_begin = run->offset_bytes, run_end = end_of(block);
        if (run_end - run_begin < size_bytes)
            continue;
        for (int is_upper = 0; is_upper < 2; is_upper++) {
            size_t begin = is_upper ? run_end - size_bytes : run_begin, end = begin + size_bytes;
            size_t cost = cost_afresh(begin, end, run_begin, run_end, arena->granule_bytes);
            if (cost >= least)
                continue;
            least = cost;
            first = run;
            best = (zr_growth_t){.begin_bytes = begin, .end_bytes = end};
        }
    }
    if (first == NULL)
        return false;
    size_t begin = round_down(best.begin_bytes, arena->granule_bytes);
    size_t end = round_up(best.end_bytes, arena->granule_bytes);
    for (const zr_block_t *block = first; is_usable(block); block = block->next) {
        if (block->state == ZR_BLOCK_UNMAPPED && block->offset_bytes < end && end_of(block) > begin)
            best.cost_bytes += min_size(end_of(block), end) - max_size(block->offset_bytes, begin);
    }
    go_on(&best, first, arena->granule_bytes);
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

/* Count what the device has mapped of an unmapped block, and make it free. */
static zr_block_t *note_mapped(zr_arena_t *arena, zr_block_t *block, size_t offset_bytes,
                               size_t size_bytes) {
    arena->mapped_bytes += size_bytes;
    if (arena->mapped_bytes > arena->mapped_peak_bytes)
        arena->mapped_peak_bytes = arena->mapped_bytes;
    if (arena->recording != NULL)
        record_change(arena, offset_bytes, size_bytes, true);
    if (arena->is_addressable)
        zr_poison(arena->base + offset_bytes, size_bytes);
    return convert(arena, block, offset_bytes, size_bytes, ZR_BLOCK_FREE);
}

/* And the other way round. */
static zr_block_t *note_unmapped(zr_arena_t *arena, zr_block_t *block, size_t offset_bytes,
                                 size_t size_bytes) {
    arena->mapped_bytes -= size_bytes;
    if (arena->recording != NULL)
        record_change(arena, offset_bytes, size_bytes, false);
    if (arena->is_addressable)
        zr_unpoison(arena->base + offset_bytes, size_bytes);
    return convert(arena, block, offset_bytes, size_bytes, ZR_BLOCK_UNMAPPED);
}

zr_status_t zr_arena_map(zr_arena_t *arena, const zr_growth_t *growth) {
    arena->n_map_calls++;
    ZR_TRY(zr_range_map(arena->device, arena->tier, arena->base, growth->offset_bytes,
                        growth->size_bytes));
    note_mapped(arena, growth->block, growth->offset_bytes, growth->size_bytes);
    return ZR_OK;
}

/* ---- what is idle ------------------------------------------------------------------------ */

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

/* Of a block, within a place. */
static size_t idle_in_place(const zr_arena_t *arena, const zr_block_t *block,
                            const zr_growth_t *place) {
    size_t low = max_size(round_up(block->offset_bytes, arena->granule_bytes),
                          round_down(place->begin_bytes, arena->granule_bytes));
    size_t high = min_size(round_down(end_of(block), arena->granule_bytes),
                           round_up(place->end_bytes, arena->granule_bytes));
    return block->state == ZR_BLOCK_FREE && high > low ? high - low : 0;
}

/* A place is a run of blocks that are free or unmapped, so few are looked at. */
size_t zr_arena_idle_bytes(const zr_arena_t *arena, const zr_growth_t *keep) {
    size_t idle_bytes = arena->idle_bytes;
    const zr_block_t *block = keep != NULL ? keep->block : NULL;
    if (keep == NULL || !arena->is_backed)
        return idle_bytes;
    for (block = block != NULL ? block : arena->first;
         block->prev != NULL && end_of(block->prev) + arena->granule_bytes > keep->begin_bytes;)
        block = block->prev;
    for (; block != NULL && block->offset_bytes < keep->end_bytes + arena->granule_bytes;
         block = block->next)
        idle_bytes -= idle_in_place(arena, block, keep);
    return idle_bytes;
}

static zr_status_t unmap(zr_arena_t *arena, zr_block_t **block, size_t offset_bytes,
                         size_t size_bytes) {
    ZR_TRY(zr_block_pool_reserve(arena->pool, BLOCKS_PER_CHANGE));
    arena->n_unmap_calls++;
    ZR_TRY(zr_range_unmap(arena->device, arena->tier, arena->base, offset_bytes, size_bytes));
    *block = note_unmapped(arena, *block, offset_bytes, size_bytes);
    return ZR_OK;
}

zr_status_t zr_arena_trim(zr_arena_t *arena, size_t *freed_p) {
    *freed_p = 0;
    if (!arena->is_backed)
        return ZR_OK;
    for (zr_block_t *block = arena->last; block != NULL; block = block->prev) {
        size_t offset, idle = 0;
        if (block->state == ZR_BLOCK_FREE)
            idle = idle_stretch(arena, block, NULL, &offset);
        if (idle == 0)
            continue;
        ZR_TRY(unmap(arena, &block, offset, idle));
        *freed_p += idle;
    }
    return ZR_OK;
}

/*
 * Move a part of the free block *source to where the growth goes on. *source becomes the unmapped
 * block that the part has left behind, and the growth goes on after it. Both may lie in the same
 * arena, even side by side, so that a change to the one may merge or split the other.
 */
static zr_status_t move_part(zr_arena_t *arena, zr_growth_t *growth, zr_arena_t *from,
                             zr_block_t **source, size_t offset_bytes, size_t size_bytes) {
    ZR_TRY(zr_block_pool_reserve(arena->pool, 2 * BLOCKS_PER_CHANGE));
    arena->n_move_calls++;
    size_t there = growth->offset_bytes;
    zr_status_t status = zr_range_move(arena->device, arena->tier, from->base, offset_bytes,
                                       arena->base, there, size_bytes);
    if (status != ZR_OK && status != ZR_ERR_BUDGET)
        return status;
    zr_block_t *left = note_unmapped(from, *source, offset_bytes, size_bytes);
    *source = left;
    if (status != ZR_OK)
        return status;
    bool are_one = from == arena && contains(left, there);
    zr_block_t *come = note_mapped(arena, are_one ? left : growth->block, there, size_bytes);
    if (are_one)
        *source = offset_bytes < there ? come->prev : come->next;
    go_on(growth, come, arena->granule_bytes);
    return ZR_OK;
}

zr_status_t zr_arena_move(zr_arena_t *arena, zr_growth_t *growth, zr_arena_t *from,
                          size_t size_bytes, size_t *moved_p, size_t *lost_p) {
    const zr_growth_t *keep = from == arena ? growth : NULL;
    *moved_p = *lost_p = 0;
    for (zr_block_t *block = from->last;
         block != NULL && from->idle_bytes > 0 && *moved_p < size_bytes && growth->size_bytes > 0;
         block = block->prev) {
        size_t offset, idle = 0;
        if (block->state == ZR_BLOCK_FREE)
            idle = idle_stretch(from, block, keep, &offset);
        if (idle == 0)
            continue;
        size_t wanted = round_up(size_bytes - *moved_p, arena->granule_bytes);
        size_t part = min_size(idle, min_size(wanted, growth->size_bytes));
        zr_status_t status = move_part(arena, growth, from, &block, offset + idle - part, part);
        if (status == ZR_ERR_BUDGET)
            *lost_p = part;
        ZR_TRY(status);
        *moved_p += part;
    }
    return ZR_OK;
}
