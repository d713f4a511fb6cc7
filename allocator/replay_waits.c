/*
 * For what streams have to wait before they use a place.
 */
#include <string.h>

#include "allocator/replay_internal.h"

#define MOST_PARTS ((size_t)4096)

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
    size_t n_streams;                 /* of the plan */
    size_t most_parts;                /* of a tier */
    span_t *spans;                    /* [n_entries] */
    part_t *parts[ZR_REPLAY_N_TIERS]; /* by address */
    size_t n_parts[ZR_REPLAY_N_TIERS];
    uint32_t *first, *next; /* entries by the ends of their lives, + 1: lists */
    uint32_t *freed;        /* [n_entries][n_streams] of the parts that each touches */
    uint32_t *ranks;        /* [n_events] of what is awaited, among that of its stream */
} waits_t;

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

static void add_border(waits_t *waits, int tier, size_t address) {
    part_t *parts = waits->parts[tier];
    size_t n = waits->n_parts[tier], at = part_at(waits, tier, address) + 1;
    if (parts[at - 1].begin == address || n == waits->most_parts)
        return;
    memmove(parts + at + 1, parts + at, (n - at) * sizeof(*parts));
    parts[at] = (part_t){.begin = address};
    waits->n_parts[tier]++;
}

/* A long step's memory is one part: who waits for whom then depends on no offsets, and is the same
 * in each of its units. */
static size_t most_parts(const zr_replay_made_t *made) {
    size_t n_borders = 2 * made->n_entries + 1;
    bool is_long = made->planning.is_as_long;
    for (size_t i = 0; i < made->tape.n_segments; i++)
        is_long |= made->tape.segments[i].unit + 1 >= ZR_REPLAY_LONG_UNITS;
    if (is_long)
        return 1;
    return n_borders < MOST_PARTS ? n_borders : MOST_PARTS;
}

/* Parts end where places do, as far as there are so many. */
static void find_parts(waits_t *waits) {
    const zr_replay_made_t *made = waits->made;
    for (int tier = 0; tier < ZR_REPLAY_N_TIERS; tier++)
        waits->n_parts[tier] = 1;
    for (size_t i = 0; i < made->n_entries; i++) {
        int tier = made->tape.entries[i].kind.tier;
        size_t begin = made->entries[i].offset_bytes;
        if (!made->entries[i].is_planned)
            continue;
        add_border(waits, tier, begin);
        add_border(waits, tier, begin + made->tape.entries[i].block_bytes);
    }
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
static void list_by_end(const waits_t *waits) {
    const zr_tape_t *tape = &waits->made->tape;
    for (size_t i = 0; i < tape->n_entries; i++) {
        if (!waits->made->entries[i].is_planned || tape->entries[i].free_stream == 0)
            continue;
        uint32_t end = zr_replay_end_of_life(tape, &tape->entries[i], &waits->made->planning);
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

/* An entry begins: its place waits for what was freed there, and whoever comes next need only wait
 * for it, where it covers a part. But one that the CPU frees may never have been used, so that what
 * its stream was made to wait for still has to be. */
static void take_over(const waits_t *waits, size_t entry) {
    const zr_tape_entry_t *life = &waits->made->tape.entries[entry];
    size_t begin = waits->made->entries[entry].offset_bytes, end = begin + life->block_bytes;
    uint32_t *freed = waits->freed + entry * waits->n_streams;
    const part_t *behind,
        *all_behind = waits->parts[life->kind.tier] + waits->n_parts[life->kind.tier];
    for (part_t *part = parts_of(waits, entry, &behind); part < behind; part++) {
        for (size_t i = 0; i < waits->n_streams; i++)
            freed[i] = part->freed[i] > freed[i] ? part->freed[i] : freed[i];
        if (life->free_stream != 0 && part->begin >= begin && part + 1 < all_behind &&
            part[1].begin <= end)
            memset(part->freed, 0, sizeof(part->freed));
    }
}

static bool begins(const zr_replay_made_t *made, size_t event) {
    return (made->events[event] & 1) == 0 && made->entries[made->events[event] >> 1].is_planned;
}

static void find_freed(const waits_t *waits) {
    const zr_replay_made_t *made = waits->made;
    for (size_t i = 0; i < made->n_events; i++) {
        size_t entry = made->events[i] >> 1;
        for (uint32_t past = waits->first[i]; past != 0; past = waits->next[past - 1])
            pass_on(waits, past - 1);
        if (!begins(made, i))
            continue;
        take_over(waits, entry);
        uint32_t *freed = waits->freed + entry * waits->n_streams;
        freed[made->tape.entries[entry].kind.stream - 1] = 0; /* it is in order with itself */
        for (size_t k = 0; k < waits->n_streams; k++)
            if (freed[k] != 0)
                made->entries[made->events[freed[k] - 1] >> 1].is_awaited = true;
    }
}

static void fill_since(const waits_t *waits) {
    const zr_replay_made_t *made = waits->made;
    uint32_t n_awaited[ZR_REPLAY_MAX_STREAMS] = {0}; /* by stream - 1, so far */
    for (size_t i = 0; i < made->n_events; i++) {
        size_t entry = made->events[i] >> 1;
        const uint32_t *freed = waits->freed + entry * waits->n_streams;
        if ((made->events[i] & 1) != 0 && made->entries[entry].is_awaited)
            waits->ranks[i] = ++n_awaited[made->tape.entries[entry].free_stream - 1];
        for (size_t k = 0; k < waits->n_streams && begins(made, i); k++) {
            uint32_t since = freed[k] != 0 ? n_awaited[k] - waits->ranks[freed[k] - 1] + 1 : 0;
            made->entries[entry].since[k] = (uint8_t)(since < UINT8_MAX ? since : UINT8_MAX);
        }
    }
}

static bool make_tables(zr_heap_t *heap, waits_t *waits) {
    const zr_replay_made_t *made = waits->made;
    waits->spans = zr_heap_alloc(heap, made->n_entries, sizeof(*waits->spans));
    waits->first = zr_heap_alloc(heap, made->n_events + 1, sizeof(*waits->first));
    waits->next = zr_heap_alloc(heap, made->n_entries, sizeof(*waits->next));
    waits->freed = zr_heap_alloc(heap, made->n_entries * waits->n_streams, sizeof(*waits->freed));
    waits->ranks = zr_heap_alloc(heap, made->n_events, sizeof(*waits->ranks));
    bool has_memory = waits->spans != NULL && waits->first != NULL && waits->next != NULL &&
                      waits->freed != NULL && waits->ranks != NULL;
    for (int tier = 0; tier < ZR_REPLAY_N_TIERS; tier++) {
        waits->parts[tier] = zr_heap_alloc(heap, waits->most_parts, sizeof(part_t));
        has_memory &= waits->parts[tier] != NULL;
    }
    return has_memory;
}

zr_status_t zr_replay_find_waits(zr_replay_made_t *made) {
    zr_heap_t *heap = made->shared.heap;
    waits_t waits = {.made = made, .n_streams = 1, .most_parts = most_parts(made)};
    while (made->streams >> (waits.n_streams + 1) != 0)
        waits.n_streams++;
    if (!make_tables(heap, &waits))
        return ZR_ERR_MEMORY;
    find_parts(&waits);
    find_spans(&waits);
    list_by_end(&waits);
    find_freed(&waits);
    fill_since(&waits);
    for (int tier = 0; tier < ZR_REPLAY_N_TIERS; tier++)
        zr_heap_free(heap, waits.parts[tier]);
    zr_heap_free(heap, waits.spans);
    zr_heap_free(heap, waits.first);
    zr_heap_free(heap, waits.next);
    zr_heap_free(heap, waits.freed);
    zr_heap_free(heap, waits.ranks);
    return ZR_OK;
}
