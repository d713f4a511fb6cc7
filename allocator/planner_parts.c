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
#include <string.h>

#include "allocator/planner_internal.h"

/* Items that still have to be taken apart. */
typedef struct range {
    size_t begin, end, base;
} range_t;

typedef struct splitter {
    zr_plan_parts_t *parts;
    uint32_t *section_at; /* [ranks of time] scratch, zeros */
    range_t *ranges;      /* a stack */
    size_t n_ranges, capacity;
    size_t n_looked, max_looked; /* items looked at; no more stacking below parts after max */
} splitter_t;

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

/* Items are often in the order of `first` already, as those of a tape are. */
static void sort_items(zr_plan_item_t *items, size_t n_items) {
    for (size_t i = 1; i < n_items; i++)
        if (items[i].first < items[i - 1].first) {
            qsort(items, n_items, sizeof(*items), compare_items);
            return;
        }
    for (size_t i = 0, end; i < n_items; i = end) {
        for (end = i + 1; end < n_items && items[end].first == items[i].first;)
            end++;
        if (end - i > 1)
            qsort(items + i, end - i, sizeof(*items), compare_items);
    }
}

/* Make first and last of sorted items sections. A section ends where something ends after
 * something began. */
static uint32_t make_sections(splitter_t *splitter, zr_plan_item_t *items, size_t n_items) {
    uint32_t *section_at = splitter->section_at, section = 0, last = 0;
    bool has_begun = false;
    for (size_t i = 0; i < n_items; i++) {
        section_at[items[i].last] = 1;
        last = items[i].last > last ? items[i].last : last;
    }
    uint32_t begin = items[0].first;
    for (size_t i = 0, time = begin; time <= last; time++) {
        if (section_at[time] == 0)
            continue;
        for (; i < n_items && items[i].first < time; i++, has_begun = true)
            items[i].first = section;
        section += has_begun;
        has_begun = false;
        section_at[time] = section;
    }
    for (size_t i = 0; i < n_items; i++)
        items[i].last = section_at[items[i].last];
    memset(section_at + begin, 0, ((size_t)last - begin + 1) * sizeof(*section_at));
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
    sort_items(items + range->begin, range->end - range->begin);
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
    sort_items(items + range->begin, range->end - range->begin);
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

/* The times that are met are marked in a table of all between. */
static zr_status_t number_near_times(zr_plan_parts_t *parts, int64_t begin, size_t n_times) {
    uint32_t *number_of = zr_heap_alloc(parts->heap, n_times, sizeof(*number_of)), n = 0;
    if (number_of == NULL)
        return ZR_ERR_MEMORY;
    for (size_t i = 0; i < parts->n_items; i++)
        number_of[parts->items[i].lower - begin] = number_of[parts->items[i].upper - begin] = 1;
    for (size_t i = 0; i < n_times; i++) {
        bool is_met = number_of[i] != 0;
        number_of[i] = n;
        n += is_met;
    }
    for (size_t i = 0; i < parts->n_items; i++) {
        parts->items[i].first = number_of[parts->items[i].lower - begin];
        parts->items[i].last = number_of[parts->items[i].upper - begin];
    }
    zr_heap_free(parts->heap, number_of);
    return ZR_OK;
}

static zr_status_t number_far_times(zr_plan_parts_t *parts) {
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

/* Number the times in order. */
static zr_status_t rank_times(zr_plan_parts_t *parts) {
    int64_t begin = INT64_MAX, end = INT64_MIN;
    for (size_t i = 0; i < parts->n_items; i++) {
        begin = parts->items[i].lower < begin ? parts->items[i].lower : begin;
        end = parts->items[i].upper > end ? parts->items[i].upper : end;
    }
    uint64_t span = parts->n_items > 0 ? (uint64_t)end - (uint64_t)begin : 0;
    if (span / 8 > parts->n_items)
        return number_far_times(parts);
    return number_near_times(parts, begin, (size_t)span + 1);
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

static zr_status_t take_in_ranks(zr_heap_t *heap, const zr_plan_buffer_t *buffers, size_t n_buffers,
                                 zr_plan_parts_t *parts) {
    *parts = (zr_plan_parts_t){.heap = heap};
    parts->items = zr_heap_alloc(heap, n_buffers, sizeof(*parts->items));
    size_t *load = zr_heap_alloc(heap, 2 * n_buffers + 1, sizeof(*load));
    if (parts->items == NULL || load == NULL)
        return ZR_ERR_MEMORY;
    take_buffers(parts, buffers, n_buffers);
    ZR_TRY(rank_times(parts));
    parts->max_live_bytes =
        most_in_a_section(parts->items, parts->n_items, (uint32_t)(2 * parts->n_items), load);
    zr_heap_free(heap, load);
    return ZR_OK;
}

static zr_status_t split_all(zr_plan_parts_t *parts) {
    size_t n = parts->n_items;
    splitter_t splitter = {.parts = parts, .max_looked = 256 * n + 1000000};
    splitter.section_at = zr_heap_alloc(parts->heap, 2 * n + 1, sizeof(*splitter.section_at));
    if (splitter.section_at == NULL || (n > 0 && !push_range(&splitter, 0, n, 0)))
        return ZR_ERR_MEMORY;
    while (splitter.n_ranges > 0) {
        range_t range = splitter.ranges[--splitter.n_ranges];
        if (!split_range(&splitter, &range))
            return ZR_ERR_MEMORY;
    }
    zr_heap_free(parts->heap, splitter.section_at);
    zr_heap_free(parts->heap, splitter.ranges);
    return ZR_OK;
}

zr_status_t zr_plan_parts_create(zr_heap_t *heap, const zr_plan_buffer_t *buffers, size_t n_buffers,
                                 zr_plan_parts_t *parts_p) {
    zr_plan_parts_t parts;
    ZR_TRY(take_in_ranks(heap, buffers, n_buffers, &parts));
    parts.offsets = zr_heap_alloc(heap, n_buffers, sizeof(*parts.offsets));
    if (parts.offsets == NULL)
        return ZR_ERR_MEMORY;
    ZR_TRY(split_all(&parts));
    ZR_TRY(find_twins(&parts));
    *parts_p = parts;
    return ZR_OK;
}

zr_status_t zr_plan_find_max_live(zr_heap_t *heap, const zr_plan_buffer_t *buffers,
                                  size_t n_buffers, size_t *max_live_p) {
    zr_plan_parts_t parts;
    ZR_TRY(take_in_ranks(heap, buffers, n_buffers, &parts));
    *max_live_p = parts.max_live_bytes;
    return ZR_OK;
}
