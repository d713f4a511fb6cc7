/*
 * Taking a problem apart: time becomes sections, buffers that live throughout go to the
 * bottom, and what no longer shares a section is planned on its own.
 *
 * None of this costs height. A section is a largest set of buffers alive at once, so that
 * sections say all about who overlaps whom. A buffer that is in every section of a part can
 * change places with all that lies below it. (Only if its size keeps the alignment of
 * what comes to lie on top; else it stays.)
 */
#include <stdlib.h>

#include "allocator/planner_internal.h"

/* Items that still have to be taken apart. */
typedef struct range {
    size_t begin, end, base;
} range_t;

typedef struct splitter {
    zr_plan_parts_t *parts;
    uint32_t *ends;       /* [n_items] scratch: when items end, sorted */
    uint32_t *section_at; /* [ranks of time] scratch */
    range_t *ranges;      /* a stack */
    size_t n_ranges, capacity;
    size_t n_looked, max_looked; /* items looked at; no more stacking below parts after max */
} splitter_t;

static int compare_u32(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static int compare_times(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static int compare_items(const void *a, const void *b) {
    const zr_plan_item_t *x = a, *y = b;
    if (x->first != y->first)
        return x->first < y->first ? -1 : 1;
    if (x->last != y->last)
        return x->last < y->last ? -1 : 1;
    if (x->size != y->size)
        return x->size < y->size ? -1 : 1;
    if (x->alignment != y->alignment)
        return x->alignment < y->alignment ? -1 : 1;
    return x->source < y->source ? -1 : x->source > y->source;
}

/* ---- sections ---------------------------------------------------------------------------- */

/* Make first and last of sorted items sections. A section ends where something ends after
 * something began. */
static uint32_t make_sections(splitter_t *splitter, zr_plan_item_t *items, size_t n_items) {
    uint32_t *ends = splitter->ends, section = 0;
    for (size_t i = 0; i < n_items; i++)
        ends[i] = items[i].last;
    qsort(ends, n_items, sizeof(*ends), compare_u32);
    bool has_begun = false;
    for (size_t i = 0, e = 0; e < n_items;) {
        if (i < n_items && items[i].first < ends[e]) {
            items[i++].first = section;
            has_begun = true;
            continue;
        }
        section += has_begun;
        has_begun = false;
        for (uint32_t end = ends[e]; e < n_items && ends[e] == end; e++)
            splitter->section_at[end] = section;
    }
    for (size_t i = 0; i < n_items; i++)
        items[i].last = splitter->section_at[items[i].last];
    return section;
}

static bool push_range(splitter_t *splitter, size_t begin, size_t end, size_t base) {
    if (!zr_heap_make_room(splitter->parts->heap, &splitter->ranges, splitter->n_ranges,
                           &splitter->capacity, sizeof(*splitter->ranges)))
        return false;
    splitter->ranges[splitter->n_ranges++] = (range_t){begin, end, base};
    return true;
}

/* ---- parts --------------------------------------------------------------------------------- */

/* The most bytes that one section has to hold. `load`: zeros, for the sections and one. */
static size_t most_in_a_section(const zr_plan_item_t *items, size_t n_items, uint32_t n_sections,
                                size_t *load) {
    size_t most = 0, now = 0;
    for (size_t i = 0; i < n_items; i++) {
        load[items[i].first] += items[i].size;
        load[items[i].last] -= items[i].size;
    }
    for (uint32_t s = 0; s < n_sections; s++) {
        now += load[s];
        most = now > most ? now : most;
    }
    return most;
}

static bool add_part(splitter_t *splitter, size_t begin, size_t end, size_t base,
                     uint32_t n_sections) {
    zr_plan_parts_t *parts = splitter->parts;
    size_t *load = zr_heap_alloc(parts->heap, (size_t)n_sections + 1, sizeof(*load));
    if (load == NULL || !zr_heap_make_room(parts->heap, &parts->parts, parts->n_parts,
                                           &parts->capacity, sizeof(*parts->parts)))
        return false;
    zr_plan_item_t *items = parts->items + begin;
    parts->parts[parts->n_parts] =
        (zr_plan_part_t){.heap = parts->heap,
                         .items = items,
                         .n_items = end - begin,
                         .offsets = parts->offsets + begin,
                         .n_sections = n_sections,
                         .base = base,
                         .bound = most_in_a_section(items, end - begin, n_sections, load),
                         .height = SIZE_MAX,
                         .strategy = "none",
                         .stride = 0.5,
                         .twin = parts->n_parts};
    parts->n_parts++;
    zr_heap_free(parts->heap, load);
    return true;
}

/* Move what is in every section to the front and place it; how many that are. */
static size_t settle(splitter_t *splitter, const range_t *range, uint32_t n_sections,
                     size_t *base_p) {
    zr_plan_parts_t *parts = splitter->parts;
    size_t n_settled = 0, alignment = 1;
    for (size_t i = range->begin; i < range->end; i++)
        if (parts->items[i].alignment > alignment)
            alignment = parts->items[i].alignment;
    *base_p = range->base;
    if (splitter->n_looked > splitter->max_looked)
        return 0;
    splitter->n_looked += range->end - range->begin;
    for (size_t i = range->begin; i < range->end; i++) {
        zr_plan_item_t item = parts->items[i];
        if (item.first != 0 || item.last != n_sections || item.size % alignment != 0)
            continue;
        size_t at = range->begin + n_settled++;
        parts->items[i] = parts->items[at];
        parts->items[at] = item;
        parts->offsets[at] = *base_p;
        *base_p += item.size;
    }
    if (*base_p > parts->settled_height)
        parts->settled_height = *base_p;
    return n_settled;
}

/* Take one range apart: into a part, or into ranges. */
static bool split_range(splitter_t *splitter, const range_t *range) {
    zr_plan_item_t *items = splitter->parts->items;
    qsort(items + range->begin, range->end - range->begin, sizeof(*items), compare_items);
    uint32_t reach = 0;
    size_t begin = range->begin;
    for (size_t i = range->begin; i < range->end; i++) {
        if (i > begin && items[i].first >= reach) {
            if (!push_range(splitter, begin, i, range->base))
                return false;
            begin = i;
        }
        reach = items[i].last > reach ? items[i].last : reach;
    }
    if (begin > range->begin)
        return push_range(splitter, begin, range->end, range->base);

    size_t base = range->base;
    uint32_t n_sections = make_sections(splitter, items + range->begin, range->end - range->begin);
    size_t n_settled = settle(splitter, range, n_sections, &base);
    if (n_settled == range->end - range->begin)
        return true;
    if (n_settled > 0)
        return push_range(splitter, range->begin + n_settled, range->end, base);
    qsort(items + range->begin, range->end - range->begin, sizeof(*items), compare_items);
    return add_part(splitter, range->begin, range->end, range->base, n_sections);
}

/* ---- twins ----------------------------------------------------------------------------------- */

static int compare_parts(const zr_plan_part_t *a, const zr_plan_part_t *b) {
    if (a->n_items != b->n_items)
        return a->n_items < b->n_items ? -1 : 1;
    for (size_t i = 0; i < a->n_items; i++) {
        zr_plan_item_t x = a->items[i], y = b->items[i];
        x.source = y.source = 0;
        int order = compare_items(&x, &y);
        if (order != 0)
            return order;
    }
    return 0;
}

static int compare_part_pointers(const void *a, const void *b) {
    const zr_plan_part_t *x = *(zr_plan_part_t *const *)a, *y = *(zr_plan_part_t *const *)b;
    int order = compare_parts(x, y);
    return order != 0 ? order : (x > y) - (x < y);
}

static zr_status_t find_twins(zr_plan_parts_t *parts) {
    if (parts->n_parts < 2)
        return ZR_OK;
    zr_plan_part_t **sorted = zr_heap_alloc(parts->heap, parts->n_parts, sizeof(zr_plan_part_t *));
    if (sorted == NULL)
        return ZR_ERR_MEMORY;
    for (size_t i = 0; i < parts->n_parts; i++)
        sorted[i] = &parts->parts[i];
    qsort(sorted, parts->n_parts, sizeof(zr_plan_part_t *), compare_part_pointers);
    for (size_t i = 1; i < parts->n_parts; i++)
        if (compare_parts(sorted[i - 1], sorted[i]) == 0)
            sorted[i]->twin = sorted[i - 1]->twin;
    zr_heap_free(parts->heap, sorted);
    return ZR_OK;
}

/* ---- the whole ------------------------------------------------------------------------------ */

/* Number the times in order. */
static zr_status_t rank_times(zr_plan_parts_t *parts) {
    size_t n_times = 2 * parts->n_items, n = 0;
    int64_t *times = zr_heap_alloc(parts->heap, n_times, sizeof(*times));
    if (times == NULL)
        return ZR_ERR_MEMORY;
    for (size_t i = 0; i < parts->n_items; i++) {
        times[2 * i] = parts->items[i].lower;
        times[2 * i + 1] = parts->items[i].upper;
    }
    qsort(times, n_times, sizeof(*times), compare_times);
    for (size_t i = 0; i < n_times; i++)
        if (i == 0 || times[i] != times[n - 1])
            times[n++] = times[i];
    for (size_t i = 0; i < parts->n_items; i++) {
        zr_plan_item_t *item = &parts->items[i];
        const int64_t *lower = bsearch(&item->lower, times, n, sizeof(*times), compare_times);
        const int64_t *upper = bsearch(&item->upper, times, n, sizeof(*times), compare_times);
        item->first = (uint32_t)(lower - times);
        item->last = (uint32_t)(upper - times);
    }
    zr_heap_free(parts->heap, times);
    return ZR_OK;
}

static void take_buffers(zr_plan_parts_t *parts, const zr_plan_buffer_t *buffers,
                         size_t n_buffers) {
    for (size_t i = 0; i < n_buffers; i++) {
        const zr_plan_buffer_t *buffer = &buffers[i];
        if (buffer->size_bytes == 0)
            continue;
        parts->items[parts->n_items++] =
            (zr_plan_item_t){.size = buffer->size_bytes,
                             .alignment = buffer->alignment == 0 ? 1 : buffer->alignment,
                             .lower = buffer->lower,
                             .upper = buffer->upper,
                             .source = (uint32_t)i};
    }
}

static zr_status_t split_all(zr_plan_parts_t *parts) {
    size_t n = parts->n_items;
    splitter_t splitter = {.parts = parts, .max_looked = 256 * n + 1000000};
    splitter.ends = zr_heap_alloc(parts->heap, n, sizeof(*splitter.ends));
    splitter.section_at = zr_heap_alloc(parts->heap, 2 * n + 1, sizeof(*splitter.section_at));
    if (splitter.ends == NULL || splitter.section_at == NULL ||
        (n > 0 && !push_range(&splitter, 0, n, 0)))
        return ZR_ERR_MEMORY;
    while (splitter.n_ranges > 0) {
        range_t range = splitter.ranges[--splitter.n_ranges];
        if (!split_range(&splitter, &range))
            return ZR_ERR_MEMORY;
    }
    zr_heap_free(parts->heap, splitter.ends);
    zr_heap_free(parts->heap, splitter.section_at);
    zr_heap_free(parts->heap, splitter.ranges);
    return ZR_OK;
}

zr_status_t zr_plan_parts_create(zr_heap_t *heap, const zr_plan_buffer_t *buffers, size_t n_buffers,
                                 zr_plan_parts_t *parts_p) {
    zr_plan_parts_t parts = {.heap = heap};
    parts.items = zr_heap_alloc(heap, n_buffers, sizeof(*parts.items));
    parts.offsets = zr_heap_alloc(heap, n_buffers, sizeof(*parts.offsets));
    if (parts.items == NULL || parts.offsets == NULL)
        return ZR_ERR_MEMORY;
    take_buffers(&parts, buffers, n_buffers);
    ZR_TRY(rank_times(&parts));
    ZR_TRY(split_all(&parts));
    ZR_TRY(find_twins(&parts));
    *parts_p = parts;
    return ZR_OK;
}
