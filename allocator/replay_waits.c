/*
 * For what streams have to wait before they use a place.
 */
#include <stdlib.h>
#include <string.h>

#include "allocator/replay_internal.h"

#define MOST_PARTS ((size_t)4096)
#define LONG_SEGMENTS 4096 /* of a long step */

/* A part of a tier's memory. */
typedef struct part {
    size_t begin;
    uint32_t freed[ZR_REPLAY_MAX_STREAMS]; /* by stream - 1: when it freed the last of what was
                                              there, + 1 */
} part_t;

/* Parts that an entry touches: first <= i < end. */
typedef struct span {
    uint32_t first, end;
} span_t;

typedef struct waits {
    zr_replay_made_t *made;
    span_t *spans;                    /* [n_entries] */
    part_t *parts[ZR_REPLAY_N_TIERS]; /* by address */
    size_t n_parts[ZR_REPLAY_N_TIERS];
    uint32_t *first, *next; /* entries by the ends of their lives, + 1: lists */
    uint32_t *ranks;        /* [n_events] of what is awaited, among that of its stream */
    uint32_t n_awaited[ZR_REPLAY_MAX_STREAMS]; /* by stream - 1, so far */
} waits_t;

static int compare_addresses(const void *a, const void *b) {
    size_t x = *(const size_t *)a, y = *(const size_t *)b;
    return (x > y) - (x < y);
}

/* Where places begin and end, each once. */
static size_t find_borders(const zr_replay_made_t *made, int tier, size_t *borders) {
    size_t n = 0, n_once = 0;
    for (size_t i = 0; i < made->n_entries; i++) {
        if (!made->entries[i].is_planned || made->tape.entries[i].kind.tier != tier)
            continue;
        borders[n++] = made->entries[i].offset_bytes;
        borders[n++] = made->entries[i].offset_bytes + made->tape.entries[i].block_bytes;
    }
    qsort(borders, n, sizeof(*borders), compare_addresses);
    for (size_t i = 0; i < n; i++)
        if (i == 0 || borders[i] != borders[n_once - 1])
            borders[n_once++] = borders[i];
    return n_once;
}

/* Parts end where places do, all of them if that are not too many. A long step's memory is one
 * part: who waits for whom then depends on no offsets, and is the same in each of its units. */
static zr_status_t make_parts(waits_t *waits, int tier) {
    const zr_replay_made_t *made = waits->made;
    zr_heap_t *heap = made->shared.heap;
    bool is_long = made->planning.is_as_long || made->tape.n_segments >= LONG_SEGMENTS;
    size_t *borders = zr_heap_alloc(heap, is_long ? 1 : 2 * made->n_entries, sizeof(*borders));
    if (borders == NULL)
        return ZR_ERR_MEMORY;
    size_t n_borders = is_long ? 1 : find_borders(made, tier, borders);
    size_t step = n_borders / MOST_PARTS + 1, n = (n_borders + step - 1) / step;
    part_t *parts = waits->parts[tier] = zr_heap_alloc(heap, n + 1, sizeof(*parts));
    if (parts == NULL)
        return ZR_ERR_MEMORY;
    waits->n_parts[tier] = n;
    for (size_t i = 0; i < n; i++)
        parts[i].begin = borders[i * step];
    zr_heap_free(heap, borders);
    return ZR_OK;
}

/* The last part that begins at an address or below, or the first. */
static uint32_t part_at(const waits_t *waits, int tier, size_t address) {
    size_t low = 0, high = waits->n_parts[tier];
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (waits->parts[tier][middle].begin <= address)
            low = middle;
        else
            high = middle;
    }
    return (uint32_t)low;
}

static void find_spans(const waits_t *waits) {
    const zr_replay_made_t *made = waits->made;
    for (size_t i = 0; i < made->n_entries; i++) {
        if (!made->entries[i].is_planned)
            continue;
        int tier = made->tape.entries[i].kind.tier;
        size_t begin = made->entries[i].offset_bytes;
        size_t last = begin + made->tape.entries[i].block_bytes - 1;
        waits->spans[i] = (span_t){part_at(waits, tier, begin), part_at(waits, tier, last) + 1};
    }
}

/* From here to *end_p. */
static part_t *parts_of(const waits_t *waits, size_t entry, const part_t **end_p) {
    part_t *parts = waits->parts[waits->made->tape.entries[entry].kind.tier];
    *end_p = parts + waits->spans[entry].end;
    return parts + waits->spans[entry].first;
}

/* What the CPU frees is in no stream's use. */
static void list_by_end(const waits_t *waits, const zr_replay_planning_t *planning) {
    const zr_tape_t *tape = &waits->made->tape;
    for (size_t i = 0; i < tape->n_entries; i++) {
        if (!waits->made->entries[i].is_planned || tape->entries[i].free_stream == 0)
            continue;
        uint32_t end = zr_replay_end_of_life(tape, &tape->entries[i], planning);
        waits->next[i] = waits->first[end];
        waits->first[end] = (uint32_t)i + 1;
    }
}

/* Others may have an entry's place from now on. */
static void pass_on(const waits_t *waits, size_t entry) {
    const zr_tape_entry_t *past = &waits->made->tape.entries[entry];
    const part_t *end;
    for (part_t *part = parts_of(waits, entry, &end); part < end; part++) {
        uint32_t *freed = &part->freed[past->free_stream - 1];
        *freed = past->upper + 1 > *freed ? past->upper + 1 : *freed;
    }
}

/* An entry begins: what its place waits for, which has ranks when it is known of all. */
static void fill_entry(const waits_t *waits, size_t entry, bool has_ranks) {
    zr_replay_made_t *made = waits->made;
    uint32_t freed[ZR_REPLAY_MAX_STREAMS] = {0};
    const part_t *end;
    for (const part_t *part = parts_of(waits, entry, &end); part < end; part++)
        for (int i = 0; i < ZR_REPLAY_MAX_STREAMS; i++)
            freed[i] = part->freed[i] > freed[i] ? part->freed[i] : freed[i];
    for (int i = 0; i < ZR_REPLAY_MAX_STREAMS; i++) {
        if (freed[i] == 0 || i + 1 == made->tape.entries[entry].kind.stream)
            continue;
        made->entries[made->events[freed[i] - 1] >> 1].is_awaited = true;
        uint32_t since = has_ranks ? waits->n_awaited[i] - waits->ranks[freed[i] - 1] + 1 : 0;
        made->entries[entry].since[i] = (uint8_t)(since < UINT8_MAX ? since : UINT8_MAX);
    }
}

/* Of what an entry covers, it is the last now. One that the CPU frees may never have been used, so
 * that what its stream was made to wait for still has to be. */
static void supersede(const waits_t *waits, size_t entry) {
    const zr_tape_entry_t *life = &waits->made->tape.entries[entry];
    size_t begin = waits->made->entries[entry].offset_bytes, end = begin + life->block_bytes;
    const part_t *behind,
        *all_behind = waits->parts[life->kind.tier] + waits->n_parts[life->kind.tier];
    for (part_t *part = parts_of(waits, entry, &behind); part < behind; part++)
        if (life->free_stream != 0 && part->begin >= begin && part + 1 < all_behind &&
            part[1].begin <= end)
            memset(part->freed, 0, sizeof(part->freed));
}

static void count_awaited(waits_t *waits, size_t event) {
    const zr_replay_made_t *made = waits->made;
    size_t entry = made->events[event] >> 1;
    if ((made->events[event] & 1) != 0 && made->entries[entry].is_awaited)
        waits->ranks[event] = ++waits->n_awaited[made->tape.entries[entry].free_stream - 1];
}

static void fill_entries_of(waits_t *waits, bool has_ranks) {
    const zr_replay_made_t *made = waits->made;
    for (int tier = 0; tier < ZR_REPLAY_N_TIERS; tier++)
        for (size_t i = 0; i < waits->n_parts[tier]; i++)
            memset(waits->parts[tier][i].freed, 0, sizeof(waits->parts[tier][i].freed));
    for (size_t i = 0; i < made->n_events; i++) {
        size_t entry = made->events[i] >> 1;
        for (uint32_t past = waits->first[i]; past != 0; past = waits->next[past - 1])
            pass_on(waits, past - 1);
        if (has_ranks)
            count_awaited(waits, i);
        if ((made->events[i] & 1) != 0 || !made->entries[entry].is_planned)
            continue;
        fill_entry(waits, entry, has_ranks);
        supersede(waits, entry);
    }
}

zr_status_t zr_replay_find_waits(zr_replay_made_t *made, const zr_replay_planning_t *planning) {
    zr_heap_t *heap = made->shared.heap;
    waits_t waits = {.made = made,
                     .spans = zr_heap_alloc(heap, made->n_entries, sizeof(*waits.spans)),
                     .first = zr_heap_alloc(heap, made->n_events + 1, sizeof(*waits.first)),
                     .next = zr_heap_alloc(heap, made->n_entries, sizeof(*waits.next)),
                     .ranks = zr_heap_alloc(heap, made->n_events, sizeof(*waits.ranks))};
    if (waits.spans == NULL || waits.first == NULL || waits.next == NULL || waits.ranks == NULL)
        return ZR_ERR_MEMORY;
    for (int tier = 0; tier < ZR_REPLAY_N_TIERS; tier++)
        ZR_TRY(make_parts(&waits, tier));
    find_spans(&waits);
    list_by_end(&waits, planning);
    fill_entries_of(&waits, false);
    fill_entries_of(&waits, true);
    for (int tier = 0; tier < ZR_REPLAY_N_TIERS; tier++)
        zr_heap_free(heap, waits.parts[tier]);
    zr_heap_free(heap, waits.spans);
    zr_heap_free(heap, waits.first);
    zr_heap_free(heap, waits.next);
    zr_heap_free(heap, waits.ranks);
    return ZR_OK;
}
