/*
 * Folding: training repeats itself. When buffers of equal size and life come again and again
 * with one period, time is wound up to one period, in which each of them stands once.
 *
 * Whatever overlaps in time still overlaps when it is wound up, so a plan of the period is a
 * plan of the whole. Buffers that cross the seam, or live longer than the period, take all
 * of it. That may cost height, though not where they are alive together at some time
 * anyway, as accumulated gradients are; so the seam lies where the fewest bytes cross it, and
 * the result is kept only if it is lower.
 */
#include <stdlib.h>

#include "allocator/planner_internal.h"

#define MIN_ITEMS 16
#define MAX_DEPTH 2
/* How many recurrences ahead are looked at: a period may hold equal buffers of many layers. */
#define MAX_AHEAD 64
#define MAX_PERIODS 4
#define MAX_SPAN ((uint64_t)1 << 60)
/* Steps for the plan of one period. */
#define PERIOD_STEPS 400000

/* An item on the wound-up time. */
typedef struct turn {
    uint64_t begin, duration; /* begin: modulo the period */
    uint64_t number;          /* of the turn; 0 and larger */
    size_t size, alignment;
    uint32_t item;
    uint32_t ordinal; /* among those alike in one turn */
} turn_t;

typedef struct fold {
    zr_plan_part_t *part;
    uint64_t begin; /* the earliest time of the part */
    turn_t *turns;  /* [n_items] */
    uint64_t periods[MAX_PERIODS];
    size_t n_periods;
    uint32_t *class_of; /* [n_items]: which folded buffer stands for the item */
    zr_plan_buffer_t *buffers;
    size_t n_buffers;
    size_t *offsets; /* of buffers */
} fold_t;

static int compare_u64(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static int compare_kind(const turn_t *x, const turn_t *y) {
    if (x->size != y->size)
        return x->size < y->size ? -1 : 1;
    if (x->alignment != y->alignment)
        return x->alignment < y->alignment ? -1 : 1;
    return (x->duration > y->duration) - (x->duration < y->duration);
}

/* Those alike together, by begin, then by these numbers of theirs. */
static int compare_turns(const turn_t *x, uint64_t of_x, const turn_t *y, uint64_t of_y) {
    int order = compare_kind(x, y);
    if (order != 0)
        return order;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    if (of_x != of_y)
        return of_x < of_y ? -1 : 1;
    return (x->item > y->item) - (x->item < y->item);
}

/* In the order of time. */
static int compare_in_time(const void *a, const void *b) {
    return compare_turns(a, 0, b, 0);
}

/* By place in the period, then turn. */
static int compare_wound(const void *a, const void *b) {
    const turn_t *x = a, *y = b;
    return compare_turns(x, x->number, y, y->number);
}

static int compare_class(const void *a, const void *b) {
    const turn_t *x = a, *y = b;
    return compare_turns(x, x->ordinal, y, y->ordinal);
}

/* ---- the period ------------------------------------------------------------------------------ */

static void fill_turns(fold_t *fold) {
    for (size_t i = 0; i < fold->part->n_items; i++) {
        const zr_plan_item_t *item = &fold->part->items[i];
        fold->turns[i] = (turn_t){.begin = (uint64_t)item->lower - fold->begin,
                                  .duration = (uint64_t)item->upper - (uint64_t)item->lower,
                                  .size = item->size,
                                  .alignment = item->alignment,
                                  .item = (uint32_t)i};
    }
}

/* Keep the periods that are met most often. */
static void count_periods(fold_t *fold, uint64_t *distances, size_t n_distances) {
    size_t counts[MAX_PERIODS] = {0};
    qsort(distances, n_distances, sizeof(*distances), compare_u64);
    for (size_t i = 0, end; i < n_distances; i = end) {
        for (end = i; end < n_distances && distances[end] == distances[i];)
            end++;
        size_t at = MAX_PERIODS;
        for (; at > 0 && counts[at - 1] < end - i; at--)
            if (at < MAX_PERIODS) {
                counts[at] = counts[at - 1];
                fold->periods[at] = fold->periods[at - 1];
            }
        if (at < MAX_PERIODS && 8 * (end - i) >= fold->part->n_items) {
            counts[at] = end - i;
            fold->periods[at] = distances[i];
        }
    }
    while (fold->n_periods < MAX_PERIODS && counts[fold->n_periods] > 0)
        fold->n_periods++;
}

static zr_status_t find_periods(fold_t *fold) {
    size_t n = fold->part->n_items, n_distances = 0;
    uint64_t *distances = zr_heap_alloc(fold->part->heap, n * MAX_AHEAD, sizeof(*distances));
    if (distances == NULL)
        return ZR_ERR_MEMORY;
    fill_turns(fold);
    qsort(fold->turns, n, sizeof(*fold->turns), compare_in_time);
    for (size_t i = 0; i < n; i++) {
        for (size_t j = i + 1; j < n && j <= i + MAX_AHEAD; j++) {
            const turn_t *x = &fold->turns[i], *y = &fold->turns[j];
            if (compare_kind(x, y) != 0)
                break;
            if (y->begin - x->begin >= x->duration)
                distances[n_distances++] = y->begin - x->begin;
        }
    }
    count_periods(fold, distances, n_distances);
    zr_heap_free(fold->part->heap, distances);
    return ZR_OK;
}

/* The time, within one period, that the fewest bytes live across. */
static zr_status_t find_seam(const fold_t *fold, uint64_t period, uint64_t *seam_p) {
    const zr_plan_part_t *part = fold->part;
    size_t n = part->n_items, ended = 0, live = 0, least = SIZE_MAX;
    turn_t *ends = zr_heap_alloc(part->heap, n, sizeof(*ends));
    if (ends == NULL)
        return ZR_ERR_MEMORY;
    for (size_t i = 0; i < n; i++)
        ends[i] = (turn_t){.begin = (uint64_t)part->items[i].upper - fold->begin,
                           .size = part->items[i].size};
    qsort(ends, n, sizeof(*ends), compare_u64); /* begin is the first member */
    for (size_t i = 0; i < n; i++) {
        /* Sections sort items by time, but within one only by section. */
        uint64_t begin = (uint64_t)part->items[i].lower - fold->begin;
        if (i == 0 || part->items[i].first != part->items[i - 1].first) {
            while (ended < n && ends[ended].begin <= begin)
                live -= ends[ended++].size;
            if (begin >= period / 2 && begin < period / 2 + period && live < least) {
                least = live;
                *seam_p = begin;
            }
        }
        live += part->items[i].size;
    }
    zr_heap_free(part->heap, ends);
    return ZR_OK;
}

/* ---- winding up ------------------------------------------------------------------------------ */

static void wind_up(fold_t *fold, uint64_t period, uint64_t seam) {
    size_t n = fold->part->n_items;
    turn_t *turns = fold->turns;
    uint64_t shift = period - seam % period;
    fill_turns(fold);
    for (size_t i = 0; i < n; i++) {
        uint64_t begin = turns[i].begin + shift;
        turns[i].begin = begin % period;
        turns[i].number = begin / period;
    }
    qsort(turns, n, sizeof(*turns), compare_wound);
    for (size_t i = 1; i < n; i++) {
        const turn_t *x = &turns[i - 1];
        if (compare_kind(x, &turns[i]) == 0 && x->begin == turns[i].begin &&
            x->number == turns[i].number)
            turns[i].ordinal = x->ordinal + 1;
    }
    qsort(turns, n, sizeof(*turns), compare_class);
    fold->n_buffers = 0;
    for (size_t i = 0; i < n; i++) {
        const turn_t *x = &turns[i];
        bool is_new = i == 0 || x->duration > period || compare_kind(x, x - 1) != 0 ||
                      x->begin != x[-1].begin || x->ordinal != x[-1].ordinal;
        if (is_new) {
            bool crosses = x->begin + x->duration > period;
            fold->buffers[fold->n_buffers++] =
                (zr_plan_buffer_t){.lower = crosses ? 0 : (int64_t)x->begin,
                                   .upper = (int64_t)(crosses ? period : x->begin + x->duration),
                                   .size_bytes = x->size,
                                   .alignment = x->alignment};
        }
        fold->class_of[x->item] = (uint32_t)(fold->n_buffers - 1);
    }
}

/* Plan the period; on the caller's clock, but not for long. */
static zr_status_t plan_period(fold_t *fold, size_t target, unsigned depth,
                               zr_plan_clock_t *clock) {
    zr_plan_part_t *part = fold->part;
    zr_plan_clock_t own = *clock;
    zr_plan_result_t result;
    if (own.max_steps - own.n_steps > PERIOD_STEPS)
        own.max_steps = own.n_steps + PERIOD_STEPS;
    zr_status_t status = zr_plan_run(part->heap, fold->buffers, fold->n_buffers, target, depth + 1,
                                     &own, fold->offsets, &result);
    (void)zr_plan_clock_step(clock, own.n_steps - clock->n_steps);
    if (status != ZR_OK || result.height_bytes >= part->height)
        return status;
    for (size_t i = 0; i < part->n_items; i++)
        part->offsets[i] = fold->offsets[fold->class_of[i]];
    part->height = result.height_bytes;
    part->strategy = "folded micro-batches";
    return ZR_OK;
}

static zr_status_t try_period(fold_t *fold, uint64_t period, size_t target, unsigned depth,
                              zr_plan_clock_t *clock) {
    uint64_t seam = 0;
    ZR_TRY(find_seam(fold, period, &seam));
    wind_up(fold, period, seam);
    if (4 * fold->n_buffers > 3 * fold->part->n_items)
        return ZR_OK;
    if (zr_plan_max_live(fold->buffers, fold->n_buffers) >= fold->part->height)
        return ZR_OK;
    return plan_period(fold, target, depth, clock);
}

zr_status_t zr_plan_fold(zr_plan_part_t *part, size_t target, unsigned depth,
                         zr_plan_clock_t *clock) {
    size_t n = part->n_items;
    if (n < MIN_ITEMS || depth >= MAX_DEPTH || zr_plan_clock_step(clock, 1))
        return ZR_OK;
    fold_t fold = {.part = part, .begin = (uint64_t)part->items[0].lower};
    uint64_t end = fold.begin;
    for (size_t i = 0; i < n; i++) {
        if (part->items[i].lower < (int64_t)fold.begin)
            fold.begin = (uint64_t)part->items[i].lower;
        if (part->items[i].upper > (int64_t)end)
            end = (uint64_t)part->items[i].upper;
    }
    if (end - fold.begin > MAX_SPAN)
        return ZR_OK;
    fold.turns = zr_heap_alloc(part->heap, n, sizeof(*fold.turns));
    fold.class_of = zr_heap_alloc(part->heap, n, sizeof(*fold.class_of));
    fold.buffers = zr_heap_alloc(part->heap, n, sizeof(*fold.buffers));
    fold.offsets = zr_heap_alloc(part->heap, n, sizeof(*fold.offsets));
    if (fold.turns == NULL || fold.class_of == NULL || fold.buffers == NULL || fold.offsets == NULL)
        return ZR_ERR_MEMORY;
    ZR_TRY(find_periods(&fold));
    for (size_t i = 0; i < fold.n_periods && part->height > target; i++)
        ZR_TRY(try_period(&fold, fold.periods[i], target, depth, clock));
    return ZR_OK;
}
