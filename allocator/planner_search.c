/*
 * The exact search: is there a plan of at most so many bytes?
 *
 * Buffers are placed from the bottom up. Each unplaced buffer has the lowest offset that is
 * still open to it; a section's floor is the least of these. Where floors are lower than on both
 * sides, in a valley, the next buffer of a section there is either one that can begin at
 * the floor, or nothing begins there and the bytes up to the next possible offset are lost. So
 * every plan that is worth having is found on exactly one path:
 *
 * - Canonical: a plan in which no buffer could fall or jump to a lower place exists whenever
 *   any does (move them until nothing moves; the sum of offsets shrinks). So a buffer begins at
 *   0 or on top of one that overlaps it in time, and a hole that could hold a later one is a
 *   reason to turn back. A buffer that was passed over therefore has to wait for another that
 *   blocks the hole (`hole_end`), and cannot begin before that one's end.
 * - Bound: in each section, what is unplaced, in the order of its lowest offsets, has to fit
 *   under the capacity.
 * - Parts: when no unplaced buffer spans two stretches of time, each is solved alone, and
 *   when one has no plan, no change in the other is tried.
 * - Memory: the situation of a part (its unplaced buffers and their lowest offsets) that has
 *   failed once is not searched again, whatever lies below it.
 *
 * Offsets are counted in units that divide all sizes and alignments, as 32-bit numbers. Where
 * they would not fit, units are larger and sizes rounded up; then a plan that is found is
 * still a plan, but that none was found proves nothing.
 */
#include <stdlib.h>
#include <string.h>

#include "allocator/planner_internal.h"

#define MAX_UNITS ((size_t)1 << 29)
#define NEVER INT32_MAX
#define TABLE_LARGEST ((size_t)1 << 18)
#define TABLE_WORDS ((size_t)1 << 21)

typedef enum outcome {
    FOUND,
    NONE,   /* there is no plan */
    UNKNOWN /* the steps were used up, or memory was */
} outcome_t;

/* Which valley to go on in, where none leaves just one way. No choice is best for all. */
typedef enum focus {
    FEWEST_WAYS, /* then the least room */
    LOWEST_FLOOR,
    LEAST_ROOM,
    N_FOCUSES
} focus_t;

/* What a trail puts back. */
typedef struct change {
    uint32_t item;
    int32_t lowest, support, hole_end;
} change_t;

typedef struct situation {
    uint64_t a, b;
} situation_t;

struct zr_plan_search {
    zr_heap_t *heap; /* the part's */
    size_t n_items;
    uint32_t n_sections;
    size_t unit;
    bool is_exact;
    int32_t capacity;

    /* By item. */
    uint32_t *first, *last;
    int32_t *size, *alignment;
    int32_t *lowest;   /* the lowest open offset */
    int32_t *support;  /* the highest end of what is placed and overlaps it in time */
    int32_t *hole_end; /* passed over: something must begin below this and block; else 0 */
    uint32_t *rank;    /* which to try first */
    double *weight;    /* for making ranks */
    uint64_t *salt;
    bool fills_valleys; /* try first what leaves no gap beside it */
    focus_t focus;

    /* By section, and of the part that was looked at last. */
    int32_t *floor;   /* least of the lowest offsets; NEVER when nothing is left */
    int32_t *end;     /* where the unplaced ends at the earliest */
    uint32_t *reach;  /* how far what begins here reaches; 0: nothing does */
    uint32_t *n_open; /* in a valley: buffers that may begin at the floor */
    bool *is_valley;

    /* Sets of items, one bit each. */
    size_t n_words;
    uint64_t *neighbours; /* [n_items] sets: the item and what overlaps it in time */
    uint64_t *why;        /* after NONE: the items that it depends on */
    uint64_t *reasons;    /* sets, one above the other: what the open branches depend on */
    size_t n_reasons, reasons_capacity;

    change_t *trail;
    size_t n_trail, trail_capacity;
    uint32_t *stack; /* lists of items, one above the other */
    size_t n_stack, stack_capacity;
    /* A table without deletion: older entries are overwritten. */
    situation_t *failed;
    uint64_t *failed_why; /* alongside, n_words each */
    size_t failed_mask;

    zr_plan_clock_t *clock;
    uint64_t n_steps, max_steps; /* of this call */
    size_t depth, max_depth;
    bool is_out_of_memory;
};
typedef zr_plan_search_t search_t;

/* ---- lists and the trail ------------------------------------------------------------- */

/* Let an array, the pointer to which is at `array_p`, have room for as many. */
static bool reserve(search_t *search, void *array_p, size_t needed, size_t *capacity,
                    size_t size_bytes) {
    if (needed <= *capacity)
        return true;
    void **array = array_p;
    void *larger = zr_heap_resize(search->heap, *array, 2 * needed, size_bytes);
    if (larger == NULL) {
        search->is_out_of_memory = true;
        return false;
    }
    *array = larger;
    *capacity = 2 * needed;
    return true;
}

/* Make a list of `n_items` on the stack; its place, or SIZE_MAX when there is no memory. */
static size_t push_list(search_t *search, size_t n_items) {
    size_t begin = search->n_stack, needed = begin + n_items;
    if (!reserve(search, &search->stack, needed, &search->stack_capacity, sizeof(*search->stack)))
        return SIZE_MAX;
    search->n_stack = needed;
    return begin;
}

/* Have room for a change of each of `n_items`. */
static bool reserve_trail(search_t *search, size_t n_items) {
    return reserve(search, &search->trail, search->n_trail + n_items, &search->trail_capacity,
                   sizeof(*search->trail));
}

static void remember(search_t *search, uint32_t item) {
    search->trail[search->n_trail++] = (change_t){.item = item,
                                                  .lowest = search->lowest[item],
                                                  .support = search->support[item],
                                                  .hole_end = search->hole_end[item]};
}

static void undo(search_t *search, size_t n_trail) {
    while (search->n_trail > n_trail) {
        const change_t *change = &search->trail[--search->n_trail];
        search->lowest[change->item] = change->lowest;
        search->support[change->item] = change->support;
        search->hole_end[change->item] = change->hole_end;
    }
}

static bool overlap(const search_t *search, uint32_t a, uint32_t b) {
    return search->first[a] < search->last[b] && search->first[b] < search->last[a];
}

static int32_t align_units(int32_t offset, int32_t alignment) {
    return (offset + alignment - 1) & ~(alignment - 1);
}

/* ---- inference ------------------------------------------------------------------------- */

/* The lowest end of anything that may still block the hole that `item` was passed over for. */
static int32_t least_block(const search_t *search, const uint32_t *list, uint32_t n_items,
                           uint32_t item) {
    int32_t least = NEVER;
    for (uint32_t i = 0; i < n_items; i++) {
        uint32_t other = list[i];
        int32_t end = search->lowest[other] + search->size[other];
        if (end < least && search->lowest[other] < search->hole_end[item] && other != item &&
            overlap(search, other, item))
            least = end;
    }
    return least;
}

static void clear_why(search_t *search) {
    memset(search->why, 0, search->n_words * sizeof(*search->why));
}

static void add_set(uint64_t *restrict to, const uint64_t *restrict from, size_t n_words) {
    for (size_t i = 0; i < n_words; i++)
        to[i] |= from[i];
}

static void add_neighbours(search_t *search, uint32_t item) {
    add_set(search->why, search->neighbours + item * search->n_words, search->n_words);
}

static void add_item(uint64_t *set, uint32_t item) {
    set[item / 64] |= (uint64_t)1 << item % 64;
}

static bool has_item(const uint64_t *set, uint32_t item) {
    return (set[item / 64] >> item % 64 & 1) != 0;
}

/* Raise the lowest offsets of what was passed over; false when a hole will not be blocked. */
static bool settle_holes(search_t *search, size_t begin, uint32_t n_items) {
    const uint32_t *list = search->stack + begin;
    for (bool again = true; again;) {
        again = false;
        for (uint32_t i = 0; i < n_items; i++) {
            uint32_t item = list[i];
            if (search->hole_end[item] == 0)
                continue;
            int32_t least = least_block(search, list, n_items, item);
            if (least > search->capacity - search->size[item]) {
                clear_why(search);
                add_neighbours(search, item);
                return false;
            }
            least = align_units(least, search->alignment[item]);
            if (least <= search->lowest[item])
                continue;
            if (!reserve_trail(search, 1))
                return false;
            remember(search, item);
            search->lowest[item] = least;
            again = true;
        }
    }
    return true;
}

static void sort_by_lowest(search_t *search, size_t begin, uint32_t n_items) {
    uint32_t *list = search->stack + begin;
    const int32_t *lowest = search->lowest;
    for (uint32_t i = 1; i < n_items; i++) {
        uint32_t item = list[i], at = i;
        for (; at > 0 && lowest[list[at - 1]] > lowest[item]; at--)
            list[at] = list[at - 1];
        list[at] = item;
    }
}

typedef struct span {
    uint32_t first, last; /* sections */
} span_t;

static span_t span_of(const search_t *search, size_t begin, uint32_t n_items) {
    span_t span = {UINT32_MAX, 0};
    for (uint32_t i = 0; i < n_items; i++) {
        uint32_t item = search->stack[begin + i];
        span.first = search->first[item] < span.first ? search->first[item] : span.first;
        span.last = search->last[item] > span.last ? search->last[item] : span.last;
    }
    return span;
}

/* Pile up what is unplaced, in the order of its lowest offsets; false when a section is too
 * low for it. Fills floor, end and reach. */
static bool pile_up(search_t *search, size_t begin, uint32_t n_items, span_t span) {
    int32_t *restrict floor = search->floor, *restrict end = search->end;
    for (uint32_t s = span.first; s < span.last; s++) {
        floor[s] = NEVER;
        end[s] = 0;
        search->reach[s] = 0;
    }
    for (uint32_t i = 0; i < n_items; i++) {
        uint32_t item = search->stack[begin + i];
        uint32_t first = search->first[item], last = search->last[item];
        int32_t lowest = search->lowest[item], size = search->size[item];
        for (uint32_t s = first; s < last; s++) {
            floor[s] = lowest < floor[s] ? lowest : floor[s];
            end[s] = (lowest > end[s] ? lowest : end[s]) + size;
        }
        if (last > search->reach[first])
            search->reach[first] = last;
    }
    int32_t highest = 0;
    for (uint32_t s = span.first; s < span.last; s++)
        highest = end[s] > highest ? end[s] : highest;
    return highest <= search->capacity;
}

/* After pile_up: the pile of the first section that is too low, from its last gap on. */
static void blame_pile(search_t *search, size_t begin, uint32_t n_items, span_t span) {
    uint32_t section = span.first;
    while (search->end[section] <= search->capacity)
        section++;
    int32_t end = 0;
    clear_why(search);
    for (uint32_t i = 0; i < n_items; i++) {
        uint32_t item = search->stack[begin + i];
        if (search->first[item] > section || search->last[item] <= section)
            continue;
        if (search->lowest[item] > end) {
            clear_why(search);
            end = search->lowest[item];
        }
        end += search->size[item];
        add_item(search->why, item);
    }
}

/* ---- memory of what failed --------------------------------------------------------------- */

static situation_t key_of(const search_t *search, size_t begin, uint32_t n_items) {
    situation_t key = {.a = (uint64_t)search->capacity, .b = n_items};
    for (uint32_t i = 0; i < n_items; i++) {
        uint32_t item = search->stack[begin + i];
        uint64_t state =
            (uint64_t)(uint32_t)search->lowest[item] << 32 | (uint32_t)search->hole_end[item];
        unsigned __int128 product = (unsigned __int128)(state ^ search->salt[2 * item]) *
                                    (state * 0x9e3779b97f4a7c15u + search->salt[2 * item + 1]);
        key.a += (uint64_t)product ^ (uint64_t)(product >> 64);
        key.b += (uint64_t)(product >> 64) * 0xd1342543de82ef95u ^ (uint64_t)product >> 7;
    }
    return key;
}

static bool has_failed(const search_t *search, situation_t key) {
    const situation_t *entry = &search->failed[key.a & search->failed_mask];
    return entry->a == key.a && entry->b == key.b;
}

/* ---- branching --------------------------------------------------------------------------- */

static void find_valleys(search_t *search, span_t span) {
    const int32_t *floor = search->floor;
    for (uint32_t s = span.first; s < span.last;) {
        uint32_t end = s + 1;
        while (end < span.last && floor[end] == floor[s])
            end++;
        bool is_valley = floor[s] != NEVER && (s == span.first || floor[s - 1] > floor[s]) &&
                         (end == span.last || floor[end] > floor[s]);
        for (; s < end; s++) {
            search->is_valley[s] = is_valley;
            search->n_open[s] = 0;
        }
    }
}

static bool is_open(const search_t *search, uint32_t item, uint32_t section) {
    return search->lowest[item] == search->floor[section] && search->hole_end[item] == 0;
}

/* Less is to be gone on with first; two numbers, the second where the first is equal. */
static uint64_t urgency(const search_t *search, uint32_t section) {
    uint32_t room = (uint32_t)(search->capacity - search->end[section]);
    uint32_t floor = (uint32_t)search->floor[section];
    uint32_t ways = search->n_open[section] + (room > 0);
    if (ways <= 1 || search->focus == FEWEST_WAYS)
        return (uint64_t)ways << 32 | room;
    if (search->focus == LOWEST_FLOOR)
        return (uint64_t)(2 + floor) << 32 | room;
    return (uint64_t)(2 + room) << 32 | floor;
}

static uint32_t choose_section(search_t *search, size_t begin, uint32_t n_items, span_t span) {
    find_valleys(search, span);
    for (uint32_t i = 0; i < n_items; i++) {
        uint32_t item = search->stack[begin + i], first = search->first[item];
        if (!search->is_valley[first] || !is_open(search, item, first))
            continue;
        for (uint32_t s = first; s < search->last[item]; s++)
            search->n_open[s]++;
    }
    uint32_t best = UINT32_MAX;
    uint64_t least = UINT64_MAX;
    for (uint32_t s = span.first; s < span.last; s++) {
        if (!search->is_valley[s] || urgency(search, s) >= least)
            continue;
        best = s;
        least = urgency(search, s);
    }
    return best;
}

/* Place an item at its lowest offset; false when something passed over could jump below it. */
static bool place(search_t *search, uint32_t item, size_t begin, uint32_t n_items) {
    int32_t offset = search->lowest[item], end = offset + search->size[item];
    if (!reserve_trail(search, n_items))
        return false;
    for (uint32_t i = 0; i < n_items; i++) {
        uint32_t other = search->stack[begin + i];
        if (!overlap(search, item, other) || search->support[other] >= end)
            continue;
        if (search->hole_end[other] != 0 && offset >= search->hole_end[other]) {
            clear_why(search);
            add_neighbours(search, other);
            return false;
        }
        remember(search, other);
        int32_t lowest = align_units(end, search->alignment[other]);
        search->support[other] = end;
        search->hole_end[other] = 0;
        if (lowest > search->lowest[other])
            search->lowest[other] = lowest;
    }
    return true;
}

/* The stretch of equal floors around a section. */
static span_t valley_of(const search_t *search, uint32_t section, span_t span) {
    span_t valley = {section, section + 1};
    while (valley.first > span.first && search->floor[valley.first - 1] == search->floor[section])
        valley.first--;
    while (valley.last < span.last && search->floor[valley.last] == search->floor[section])
        valley.last++;
    return valley;
}

/* Smaller is to be tried first: in some rounds, what leaves no gap beside it. */
static uint64_t preference(const search_t *search, uint32_t item, span_t valley) {
    uint64_t n_gaps = (search->first[item] != valley.first) + (search->last[item] != valley.last);
    return (search->fills_valleys ? n_gaps << 32 : 0) + search->rank[item];
}

static bool are_alike(const search_t *search, uint32_t a, uint32_t b) {
    return search->first[a] == search->first[b] && search->last[a] == search->last[b] &&
           search->size[a] == search->size[b] && search->alignment[a] == search->alignment[b];
}

/* List what may begin at the floor of a section, the most promising first; two that are
 * alike once. */
static uint32_t list_open(search_t *search, size_t begin, uint32_t n_items, uint32_t section,
                          size_t open, span_t valley) {
    uint32_t *list = search->stack + open, n_open = 0;
    for (uint32_t i = 0; i < n_items; i++) {
        uint32_t item = search->stack[begin + i], at = n_open;
        if (search->first[item] > section || search->last[item] <= section ||
            !is_open(search, item, section))
            continue;
        bool is_known = false;
        for (uint32_t j = 0; j < n_open && !is_known; j++)
            is_known = are_alike(search, item, list[j]);
        if (is_known)
            continue;
        uint64_t own = preference(search, item, valley);
        for (; at > 0 && preference(search, list[at - 1], valley) > own; at--)
            list[at] = list[at - 1];
        list[at] = item;
        n_open++;
    }
    return n_open;
}

static outcome_t solve(search_t *search, size_t begin, uint32_t n_items);

/* Whether what failed depends on the changes since `n_trail`. */
static bool depends_on_changes(const search_t *search, size_t n_trail) {
    for (size_t i = n_trail; i < search->n_trail; i++) {
        const change_t *change = &search->trail[i];
        if (has_item(search->why, change->item) &&
            (change->lowest != search->lowest[change->item] ||
             change->hole_end != search->hole_end[change->item]))
            return true;
    }
    return false;
}

static outcome_t solve_with(search_t *search, size_t begin, uint32_t n_items, uint32_t item,
                            bool *depends_p) {
    size_t child = push_list(search, n_items - 1), n_trail = search->n_trail;
    if (child == SIZE_MAX)
        return UNKNOWN;
    for (uint32_t i = 0, n = 0; i < n_items; i++)
        if (search->stack[begin + i] != item)
            search->stack[child + n++] = search->stack[begin + i];
    outcome_t outcome = NONE;
    if (place(search, item, child, n_items - 1))
        outcome = solve(search, child, n_items - 1);
    *depends_p = has_item(search->why, item) || depends_on_changes(search, n_trail);
    if (outcome != FOUND)
        undo(search, n_trail);
    search->n_stack = child;
    return outcome;
}

/* Nothing of a section begins at its floor. */
static outcome_t solve_without(search_t *search, size_t begin, uint32_t n_items, uint32_t section,
                               int32_t floor, bool *depends_p) {
    size_t n_trail = search->n_trail;
    if (!reserve_trail(search, n_items))
        return UNKNOWN;
    for (uint32_t i = 0; i < n_items; i++) {
        uint32_t item = search->stack[begin + i];
        if (search->first[item] > section || search->last[item] <= section ||
            search->lowest[item] != floor)
            continue;
        remember(search, item);
        search->hole_end[item] = floor + search->size[item];
        search->lowest[item] = align_units(floor + 1, search->alignment[item]);
    }
    outcome_t outcome = solve(search, begin, n_items);
    *depends_p = depends_on_changes(search, n_trail);
    if (outcome != FOUND)
        undo(search, n_trail);
    return outcome;
}

/* Have a set of reasons above the others, filled with the items of a section. */
static bool push_reasons(search_t *search, size_t begin, uint32_t n_items, uint32_t section) {
    size_t n_words = search->n_words, needed = (search->n_reasons + 1) * n_words;
    if (!reserve(search, &search->reasons, needed, &search->reasons_capacity,
                 sizeof(*search->reasons)))
        return false;
    uint64_t *reasons = search->reasons + search->n_reasons++ * n_words;
    memset(reasons, 0, n_words * sizeof(*reasons));
    for (uint32_t i = 0; i < n_items; i++) {
        uint32_t item = search->stack[begin + i];
        if (search->first[item] <= section && section < search->last[item])
            add_item(reasons, item);
    }
    return true;
}

/* Raised because of what was passed over: whoever depends on it depends on its neighbours. */
static void blame_raised(search_t *search, size_t n_trail, size_t n_trail_end) {
    for (size_t i = n_trail_end; i > n_trail; i--) {
        uint32_t item = search->trail[i - 1].item;
        if (has_item(search->why, item))
            add_neighbours(search, item);
    }
}

/* Whether a byte of a section may be lost. */
static bool has_room(const search_t *search, size_t begin, uint32_t n_items, uint32_t section) {
    int32_t end = search->floor[section];
    for (uint32_t i = 0; i < n_items; i++) {
        uint32_t item = search->stack[begin + i];
        if (search->first[item] <= section && section < search->last[item])
            end += search->size[item];
    }
    return end < search->capacity;
}

/* Go through the ways to go on at a section. When one fails for reasons that have nothing to
 * do with it, the others fail, too. */
static outcome_t try_ways(search_t *search, size_t begin, uint32_t n_items, uint32_t section,
                          size_t open, uint32_t n_open) {
    int32_t floor = search->floor[section];
    bool may_lose = has_room(search, begin, n_items, section);
    size_t level = search->n_reasons - 1, n_words = search->n_words;
    for (uint32_t i = 0; i < n_open + may_lose; i++) {
        bool depends = true;
        outcome_t outcome =
            i < n_open ? solve_with(search, begin, n_items, search->stack[open + i], &depends)
                       : solve_without(search, begin, n_items, section, floor, &depends);
        if (outcome != NONE || !depends)
            return outcome;
        add_set(search->reasons + level * n_words, search->why, n_words);
    }
    memcpy(search->why, search->reasons + level * n_words, n_words * sizeof(*search->why));
    return NONE;
}

static outcome_t branch(search_t *search, size_t begin, uint32_t n_items, span_t span) {
    uint32_t section = choose_section(search, begin, n_items, span);
    size_t open = push_list(search, n_items);
    if (open == SIZE_MAX || !push_reasons(search, begin, n_items, section))
        return UNKNOWN;
    span_t valley = valley_of(search, section, span);
    uint32_t n_open = list_open(search, begin, n_items, section, open, valley);
    search->n_stack = open + n_open;
    outcome_t outcome = try_ways(search, begin, n_items, section, open, n_open);
    search->n_stack = open;
    search->n_reasons--;
    return outcome;
}

/* Solve the stretches that nothing unplaced spans, one after the other. The shortest is the
 * first: it fails soonest. */
static outcome_t solve_split(search_t *search, size_t begin, uint32_t n_items, uint32_t cut) {
    size_t low = push_list(search, n_items);
    if (low == SIZE_MAX)
        return UNKNOWN;
    uint32_t n_low = 0, n_high = 0;
    for (uint32_t i = 0; i < n_items; i++)
        n_low += search->last[search->stack[begin + i]] <= cut;
    for (uint32_t i = 0, n = 0; i < n_items; i++) {
        uint32_t item = search->stack[begin + i];
        if (search->last[item] <= cut)
            search->stack[low + n++] = item;
        else
            search->stack[low + n_low + n_high++] = item;
    }
    bool low_first = n_low <= n_high;
    outcome_t outcome = low_first ? solve(search, low, n_low) : solve(search, low + n_low, n_high);
    if (outcome == FOUND)
        outcome = low_first ? solve(search, low + n_low, n_high) : solve(search, low, n_low);
    search->n_stack = low;
    return outcome;
}

/* A section that nothing unplaced spans from the one before it; 0 when there is none. */
static uint32_t find_cut(const search_t *search, span_t span) {
    uint32_t reach = 0, cut = 0, middle = (span.first + span.last) / 2;
    for (uint32_t s = span.first; s < span.last; s++) {
        if (s > span.first && reach <= s && (cut == 0 || s <= middle))
            cut = s;
        reach = search->reach[s] > reach ? search->reach[s] : reach;
    }
    return cut;
}

static bool count_step(search_t *search, uint32_t n_items) {
    uint64_t n_steps = 1 + n_items / 64;
    search->n_steps += n_steps;
    return !zr_plan_clock_step(search->clock, n_steps) && search->n_steps < search->max_steps &&
           search->depth < search->max_depth && !search->is_out_of_memory;
}

static outcome_t solve_settled(search_t *search, size_t begin, uint32_t n_items) {
    span_t span = span_of(search, begin, n_items);
    sort_by_lowest(search, begin, n_items);
    if (!pile_up(search, begin, n_items, span)) {
        blame_pile(search, begin, n_items, span);
        return NONE;
    }
    uint32_t cut = find_cut(search, span);
    if (cut != 0)
        return solve_split(search, begin, n_items, cut);
    situation_t key = key_of(search, begin, n_items);
    size_t at = key.a & search->failed_mask, n_words = search->n_words;
    if (has_failed(search, key)) {
        memcpy(search->why, search->failed_why + at * n_words, n_words * sizeof(*search->why));
        return NONE;
    }
    outcome_t outcome = branch(search, begin, n_items, span);
    if (outcome == NONE) {
        search->failed[at] = key;
        memcpy(search->failed_why + at * n_words, search->why, n_words * sizeof(*search->why));
    }
    return outcome;
}

static outcome_t solve_node(search_t *search, size_t begin, uint32_t n_items) {
    size_t n_trail = search->n_trail;
    outcome_t outcome = NONE;
    bool is_settled = settle_holes(search, begin, n_items);
    size_t n_trail_end = search->n_trail;
    if (search->is_out_of_memory)
        return UNKNOWN;
    if (is_settled)
        outcome = solve_settled(search, begin, n_items);
    if (outcome == NONE)
        blame_raised(search, n_trail, n_trail_end);
    return outcome;
}

static outcome_t solve(search_t *search, size_t begin, uint32_t n_items) {
    if (n_items == 0)
        return FOUND;
    if (!count_step(search, n_items))
        return UNKNOWN;
    search->depth++;
    outcome_t outcome = solve_node(search, begin, n_items);
    search->depth--;
    return outcome;
}

/* ---- set up ------------------------------------------------------------------------------- */

static size_t greatest_divisor(size_t a, size_t b) {
    while (b != 0) {
        size_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* The unit that divides all, made larger until the numbers are small enough. */
static void choose_unit(search_t *search, const zr_plan_part_t *part) {
    size_t unit = 0, total = 0;
    for (size_t i = 0; i < part->n_items; i++) {
        unit = greatest_divisor(part->items[i].size, unit);
        if (part->items[i].alignment > 1)
            unit = greatest_divisor(part->items[i].alignment, unit);
        total += part->items[i].size + part->items[i].alignment;
    }
    search->is_exact = true;
    while (total / unit + part->n_items >= MAX_UNITS) {
        unit *= 2;
        search->is_exact = false;
    }
    search->unit = unit;
}

static void fill_items(search_t *search, const zr_plan_part_t *part) {
    uint64_t random = 1;
    choose_unit(search, part);
    for (size_t i = 0; i < part->n_items; i++) {
        const zr_plan_item_t *item = &part->items[i];
        search->first[i] = item->first;
        search->last[i] = item->last;
        search->size[i] = (int32_t)((item->size + search->unit - 1) / search->unit);
        search->alignment[i] =
            (int32_t)(item->alignment / greatest_divisor(item->alignment, search->unit));
        search->salt[2 * i] = zr_plan_random(&random);
        search->salt[2 * i + 1] = zr_plan_random(&random);
    }
    for (uint32_t i = 0; i < part->n_items; i++)
        for (uint32_t j = 0; j < part->n_items; j++)
            if (overlap(search, i, j))
                add_item(search->neighbours + i * search->n_words, j);
}

/* An array of zeros, or no memory for the whole. */
static void *take(search_t *search, size_t n, size_t size_bytes) {
    void *array = zr_heap_alloc(search->heap, n, size_bytes);
    search->is_out_of_memory = search->is_out_of_memory || array == NULL;
    return array;
}

static void allocate_arrays(search_t *search) {
    size_t n = search->n_items, n_sections = search->n_sections, table = 1024;
    while (table < 1024 * n && table < TABLE_LARGEST)
        table *= 2;
    while (table > 1024 && table * (search->n_words + 2) > TABLE_WORDS)
        table /= 2;
    search->failed_mask = table - 1;
    search->first = take(search, n, sizeof(*search->first));
    search->last = take(search, n, sizeof(*search->last));
    search->size = take(search, n, sizeof(*search->size));
    search->alignment = take(search, n, sizeof(*search->alignment));
    search->lowest = take(search, n, sizeof(*search->lowest));
    search->support = take(search, n, sizeof(*search->support));
    search->hole_end = take(search, n, sizeof(*search->hole_end));
    search->rank = take(search, n, sizeof(*search->rank));
    search->weight = take(search, n, sizeof(*search->weight));
    search->salt = take(search, 2 * n, sizeof(*search->salt));
    search->neighbours = take(search, n * search->n_words, sizeof(*search->neighbours));
    search->why = take(search, search->n_words, sizeof(*search->why));
    search->failed_why = take(search, table * search->n_words, sizeof(*search->failed_why));
    search->floor = take(search, n_sections, sizeof(*search->floor));
    search->end = take(search, n_sections, sizeof(*search->end));
    search->reach = take(search, n_sections, sizeof(*search->reach));
    search->n_open = take(search, n_sections, sizeof(*search->n_open));
    search->is_valley = take(search, n_sections, sizeof(*search->is_valley));
    search->failed = take(search, table, sizeof(*search->failed));
}

static search_t *search_create(const zr_plan_part_t *part) {
    search_t *search = zr_heap_alloc(part->heap, 1, sizeof(*search));
    if (search == NULL)
        return NULL;
    search->heap = part->heap;
    search->n_items = part->n_items;
    search->n_sections = part->n_sections;
    search->n_words = (part->n_items + 63) / 64;
    search->max_depth = 2 * part->n_items + 64;
    allocate_arrays(search);
    if (search->is_out_of_memory)
        return NULL;
    fill_items(search, part);
    return search;
}

/* ---- which to try first ---------------------------------------------------------------- */

#define N_RANKINGS 4

static double weigh(const zr_plan_item_t *item, unsigned ranking) {
    double size = (double)item->size, width = (double)(item->last - item->first);
    double duration = (double)item->upper - (double)item->lower;
    switch (ranking) {
    case 0:
        return size * duration;
    case 1:
        return width + 1e-18 * size;
    case 2:
        return size;
    default:
        return duration + 1e-18 * size;
    }
}

static void rank_items(search_t *search, const zr_plan_part_t *part, unsigned round) {
    uint64_t random = round;
    uint32_t n = (uint32_t)search->n_items;
    for (uint32_t i = 0; i < n; i++) {
        double noise = round < N_RANKINGS ? 0.0 : (double)(zr_plan_random(&random) >> 11) * 0x1p-53;
        search->weight[i] = weigh(&part->items[i], round % N_RANKINGS) * (1.0 + noise);
    }
    for (uint32_t i = 0; i < n; i++) {
        uint32_t rank = 0;
        for (uint32_t j = 0; j < n; j++)
            rank += search->weight[j] > search->weight[i] ||
                    (search->weight[j] == search->weight[i] && j < i);
        search->rank[i] = rank;
    }
}

/* ---- the call ------------------------------------------------------------------------------ */

static void take_plan(const search_t *search, zr_plan_part_t *part) {
    size_t height = 0;
    for (size_t i = 0; i < part->n_items; i++) {
        part->offsets[i] = (size_t)search->lowest[i] * search->unit;
        size_t end = part->offsets[i] + part->items[i].size;
        height = end > height ? end : height;
    }
    part->height = height;
    part->strategy = "exact search";
}

zr_status_t zr_plan_search(zr_plan_part_t *part, size_t capacity, unsigned round, uint64_t n_steps,
                           zr_plan_clock_t *clock) {
    if (part->search == NULL && (part->search = search_create(part)) == NULL)
        return ZR_ERR_MEMORY;
    search_t *search = part->search;
    size_t n = search->n_items, units = capacity / search->unit;
    search->capacity = units < MAX_UNITS ? (int32_t)units : (int32_t)MAX_UNITS;
    search->clock = clock;
    search->n_steps = 0;
    search->max_steps = n_steps;
    search->depth = search->n_trail = search->n_stack = search->n_reasons = 0;
    memset(search->lowest, 0, n * sizeof(*search->lowest));
    memset(search->support, 0, n * sizeof(*search->support));
    memset(search->hole_end, 0, n * sizeof(*search->hole_end));
    rank_items(search, part, round);
    search->fills_valleys = round / 4 % 2 == 1;
    search->focus = (focus_t)(round % N_FOCUSES);
    size_t begin = push_list(search, n);
    if (begin == SIZE_MAX)
        return ZR_ERR_MEMORY;
    for (uint32_t i = 0; i < n; i++)
        search->stack[begin + i] = i;
    outcome_t outcome = solve(search, begin, (uint32_t)n);
    if (search->is_out_of_memory)
        return ZR_ERR_MEMORY;
    size_t next = (units + 1) * search->unit;
    if (outcome == FOUND)
        take_plan(search, part);
    else if (outcome == NONE && search->is_exact && next > part->bound)
        part->bound = next;
    return ZR_OK;
}
