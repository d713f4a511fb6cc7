/*
 * Writing a step down, and comparing two of them.
 */
#include <string.h>

#include "allocator/tape_internal.h"

void zr_tape_restart(zr_tape_t *tape) {
    tape->n_entries = tape->n_segments = 0;
    tape->now = 0;
    tape->epoch++;
    tape->is_torn = tape->is_too_long = false;
}

zr_status_t zr_tape_copy(const zr_tape_t *tape, zr_heap_t *heap, zr_tape_t *copy_p) {
    zr_tape_t copy = *tape;
    copy.heap = heap;
    copy.entries_capacity = tape->n_entries;
    copy.segments_capacity = tape->n_segments;
    copy.entries = zr_heap_alloc(heap, tape->n_entries, sizeof(*copy.entries));
    copy.segments = zr_heap_alloc(heap, tape->n_segments, sizeof(*copy.segments));
    if (copy.entries == NULL || copy.segments == NULL)
        return ZR_ERR_MEMORY;
    if (tape->n_entries > 0)
        memcpy(copy.entries, tape->entries, tape->n_entries * sizeof(*copy.entries));
    if (tape->n_segments > 0)
        memcpy(copy.segments, tape->segments, tape->n_segments * sizeof(*copy.segments));
    *copy_p = copy;
    return ZR_OK;
}

void zr_tape_mark(zr_tape_t *tape, const zr_mark_t *mark) {
    if (tape->is_torn)
        return;
    if (!zr_heap_make_room(tape->heap, &tape->segments, tape->n_segments, &tape->segments_capacity,
                           sizeof(*tape->segments))) {
        tape->is_torn = true;
        return;
    }
    tape->segments[tape->n_segments++] =
        (zr_tape_segment_t){.micro_batch = mark->micro_batch,
                            .unit = mark->unit,
                            .pass = mark->pass,
                            .first_entry = (uint32_t)tape->n_entries,
                            .time = tape->now};
}

static bool make_entry(zr_tape_t *tape) {
    tape->is_too_long = tape->n_entries >= tape->max_entries;
    return !tape->is_too_long && zr_heap_make_room(tape->heap, &tape->entries, tape->n_entries,
                                                   &tape->entries_capacity, sizeof(*tape->entries));
}

uint32_t zr_tape_allocated(zr_tape_t *tape, const zr_tape_kind_t *kind, size_t block_bytes,
                           uint32_t scale) {
    if (tape->is_torn || tape->n_segments == 0)
        return 0;
    if (tape->n_entries >= tape->entries_capacity || tape->n_entries >= tape->max_entries) {
        if (!make_entry(tape)) {
            tape->is_torn = true;
            return 0;
        }
    }
    tape->entries[tape->n_entries++] = (zr_tape_entry_t){.kind = *kind,
                                                         .block_bytes = block_bytes,
                                                         .lower = tape->now++,
                                                         .upper = ZR_TAPE_OPEN,
                                                         .least_scale = scale,
                                                         .most_scale = scale};
    return (uint32_t)tape->n_entries;
}

void zr_tape_freed(zr_tape_t *tape, uint32_t number, uint8_t stream) {
    if (tape->is_torn)
        return;
    zr_tape_entry_t *entry = &tape->entries[number - 1];
    entry->upper = tape->now++;
    entry->free_stream = stream;
}

size_t zr_tape_segment_at(const zr_tape_t *tape, uint32_t time) {
    size_t low = 0, high = tape->n_segments;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (tape->segments[middle].time <= time)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static bool has_room(zr_tape_t *tape, size_t n_entries, size_t n_segments) {
    if (n_entries > tape->entries_capacity) {
        zr_tape_entry_t *entries =
            zr_heap_resize(tape->heap, tape->entries, n_entries, sizeof(*entries));
        if (entries == NULL)
            return false;
        tape->entries = entries;
        tape->entries_capacity = n_entries;
    }
    if (n_segments > tape->segments_capacity) {
        zr_tape_segment_t *segments =
            zr_heap_resize(tape->heap, tape->segments, n_segments, sizeof(*segments));
        if (segments == NULL)
            return false;
        tape->segments = segments;
        tape->segments_capacity = n_segments;
    }
    return true;
}

void zr_tape_take_prefix(zr_tape_t *tape, const zr_tape_t *from, size_t time, size_t n_segments) {
    size_t n_entries = 0;
    while (n_entries < from->n_entries && from->entries[n_entries].lower < time)
        n_entries++;
    zr_tape_restart(tape);
    if (!has_room(tape, n_entries, n_segments)) {
        tape->is_torn = true;
        return;
    }
    for (size_t i = 0; i < n_entries; i++) {
        tape->entries[i] = from->entries[i];
        if (tape->entries[i].upper >= time)
            tape->entries[i].upper = ZR_TAPE_OPEN;
    }
    for (size_t i = 0; i < n_segments; i++)
        tape->segments[i] = from->segments[i];
    tape->n_entries = n_entries;
    tape->n_segments = n_segments;
    tape->now = (uint32_t)time;
}

zr_status_t zr_tape_close_gaps(zr_tape_t *tape) {
    uint32_t *times = zr_heap_alloc(tape->heap, (size_t)tape->now + 1, sizeof(*times));
    if (times == NULL)
        return ZR_ERR_MEMORY;
    for (size_t i = 0; i < tape->n_entries; i++) {
        times[tape->entries[i].lower] = 1;
        if (tape->entries[i].upper != ZR_TAPE_OPEN)
            times[tape->entries[i].upper] = 1;
    }
    uint32_t n_events = 0;
    for (size_t i = 0; i <= tape->now; i++) {
        uint32_t has_event = times[i];
        times[i] = n_events;
        n_events += has_event;
    }
    for (size_t i = 0; i < tape->n_entries; i++) {
        zr_tape_entry_t *entry = &tape->entries[i];
        entry->lower = times[entry->lower];
        if (entry->upper != ZR_TAPE_OPEN)
            entry->upper = times[entry->upper];
    }
    for (size_t i = 0; i < tape->n_segments; i++)
        tape->segments[i].time = times[tape->segments[i].time];
    tape->now = n_events;
    zr_heap_free(tape->heap, times);
    return ZR_OK;
}

zr_status_t zr_tape_fit(zr_tape_t *tape) {
    void *entries =
        zr_heap_resize(tape->heap, tape->entries, tape->n_entries, sizeof(*tape->entries));
    if (entries == NULL)
        return ZR_ERR_MEMORY;
    tape->entries = entries;
    tape->entries_capacity = tape->n_entries;
    void *segments =
        zr_heap_resize(tape->heap, tape->segments, tape->n_segments, sizeof(*tape->segments));
    if (segments == NULL)
        return ZR_ERR_MEMORY;
    tape->segments = segments;
    tape->segments_capacity = tape->n_segments;
    return ZR_OK;
}

/* ---- comparing -------------------------------------------------------------------- */

/* One past the last entry of a segment. */
static size_t end_of(const zr_tape_t *tape, size_t segment) {
    return segment + 1 < tape->n_segments ? tape->segments[segment + 1].first_entry
                                          : tape->n_entries;
}

static bool is_segment_alike(const zr_tape_segment_t *a, const zr_tape_segment_t *b) {
    return a->unit == b->unit && a->pass == b->pass;
}

bool zr_tape_is_alike(const zr_tape_t *a, const zr_tape_t *b) {
    if (a->n_entries != b->n_entries || a->n_segments != b->n_segments)
        return false;
    for (size_t i = 0; i < a->n_segments; i++) {
        if (a->segments[i].micro_batch != b->segments[i].micro_batch ||
            a->segments[i].first_entry != b->segments[i].first_entry ||
            !is_segment_alike(&a->segments[i], &b->segments[i]))
            return false;
    }
    for (size_t i = 0; i < a->n_entries; i++) {
        if (!zr_tape_kind_equals(&a->entries[i].kind, &b->entries[i].kind))
            return false;
    }
    return true;
}

static bool is_entry_same(const zr_tape_entry_t *a, const zr_tape_entry_t *b) {
    return zr_tape_kind_equals(&a->kind, &b->kind) && a->block_bytes == b->block_bytes &&
           a->lower == b->lower && a->upper == b->upper && a->free_stream == b->free_stream;
}

bool zr_tape_is_same(const zr_tape_t *a, const zr_tape_t *b) {
    if (a->now != b->now || !zr_tape_is_alike(a, b))
        return false;
    for (size_t i = 0; i < a->n_segments; i++)
        if (a->segments[i].time != b->segments[i].time)
            return false;
    for (size_t i = 0; i < a->n_entries; i++)
        if (!is_entry_same(&a->entries[i], &b->entries[i]))
            return false;
    return true;
}

static void enlarge(zr_tape_entry_t *entry, const zr_tape_entry_t *other) {
    if (other->varies || other->block_bytes != entry->block_bytes)
        entry->varies = true;
    if (other->block_bytes > entry->block_bytes)
        entry->block_bytes = other->block_bytes;
}

static void widen(zr_tape_entry_t *entry, const zr_tape_entry_t *other) {
    if (other->least_scale < entry->least_scale)
        entry->least_scale = other->least_scale;
    if (other->most_scale > entry->most_scale)
        entry->most_scale = other->most_scale;
}

/* Entries of two segments that are the same in both, from the first on. */
static size_t count_alike(const zr_tape_t *tape, size_t a, size_t b) {
    const zr_tape_entry_t *x = &tape->entries[tape->segments[a].first_entry];
    const zr_tape_entry_t *y = &tape->entries[tape->segments[b].first_entry];
    size_t n = 0;
    while (x + n < &tape->entries[end_of(tape, a)] && y + n < &tape->entries[end_of(tape, b)] &&
           zr_tape_kind_equals(&x[n].kind, &y[n].kind))
        n++;
    return n;
}

static size_t count_entries(const zr_tape_t *tape, size_t segment) {
    return end_of(tape, segment) - tape->segments[segment].first_entry;
}

/* Let two segments have the larger size of both in each place, as far as they do the same. */
static void join_segments(zr_tape_t *tape, size_t a, size_t b) {
    size_t n = count_alike(tape, a, b);
    bool are_alike = n == count_entries(tape, a) && n == count_entries(tape, b);
    for (size_t i = 0; i < n; i++) {
        zr_tape_entry_t *x = &tape->entries[tape->segments[a].first_entry + i];
        zr_tape_entry_t *y = &tape->entries[tape->segments[b].first_entry + i];
        enlarge(x, y);
        enlarge(y, x);
        if (are_alike) {
            widen(x, y);
            widen(y, x);
        }
    }
}

/* One past the last segment of the micro-batch that segment `i` is in; its first segment. */
static size_t end_of_micro_batch(const zr_tape_t *tape, size_t i) {
    size_t micro_batch = tape->segments[i].micro_batch;
    while (i < tape->n_segments && tape->segments[i].micro_batch == micro_batch)
        i++;
    return i;
}

static size_t start_of_micro_batch(const zr_tape_t *tape, size_t i) {
    while (i > 0 && tape->segments[i - 1].micro_batch == tape->segments[i].micro_batch)
        i--;
    return i;
}

/* The micro-batch that ends before segment `middle` with the one that begins there, as far as
 * their units come in the same order. */
static void join_micro_batches(zr_tape_t *tape, size_t middle) {
    size_t a = start_of_micro_batch(tape, middle - 1), b = middle;
    size_t end = end_of_micro_batch(tape, middle);
    if (tape->segments[a].micro_batch == 0 || tape->segments[b].micro_batch == 0)
        return;
    for (; a < middle && b < end; a++, b++) {
        if (!is_segment_alike(&tape->segments[a], &tape->segments[b]))
            return;
        join_segments(tape, a, b);
    }
}

void zr_tape_enlarge(zr_tape_t *tape, const zr_tape_t *other) {
    bool varies = false;
    for (size_t i = 0; i < tape->n_entries; i++) {
        varies = varies || tape->entries[i].block_bytes != other->entries[i].block_bytes;
        enlarge(&tape->entries[i], &other->entries[i]);
        widen(&tape->entries[i], &other->entries[i]);
    }
    if (!varies || tape->n_segments == 0)
        return;
    /* Forth and back, so that the largest of all reaches every one. */
    for (size_t i = end_of_micro_batch(tape, 0); i < tape->n_segments;
         i = end_of_micro_batch(tape, i))
        join_micro_batches(tape, i);
    for (size_t i = start_of_micro_batch(tape, tape->n_segments - 1); i > 0;
         i = start_of_micro_batch(tape, i - 1))
        join_micro_batches(tape, i);
}
