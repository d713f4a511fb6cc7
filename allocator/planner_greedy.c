/*
 * Greedy planning: take the buffers in some order and give each the first place, or the
 * tightest hole, among those placed before that live at the same time.
 *
 * No single order is good for all problems, so there is a portfolio of them. After it, the best
 * order is changed at random, a little at a time, and what is not worse is kept.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "allocator/planner_internal.h"

/* ---- one order ------------------------------------------------------------------------------ */

#define STRIP 16 /* so many are compared at once */
#define MOST_ON_SHELF ((size_t)64)

/* Placed items whose offsets follow each other. What repeats itself has the same offset again and
 * again, so that they are often of one time, and are passed over together. */
typedef struct shelf {
    size_t n;
    int32_t begin, end;                                /* sections of any */
    int32_t first[MOST_ON_SHELF], last[MOST_ON_SHELF]; /* of each; behind n never alive */
    uint32_t items[MOST_ON_SHELF];                     /* by offset */
} shelf_t;

/* Placing in an order, with what it needs. */
typedef struct placer {
    const zr_plan_part_t *part;
    shelf_t *shelves; /* in the order in which they were needed */
    shelf_t **rows;   /* [n_rows] the same by offset; at most the first is empty */
    size_t n_rows;
    size_t *offsets; /* [n_items] */
    size_t height;
} placer_t;

static size_t most_shelves(const zr_plan_part_t *part) {
    return part->n_items / (MOST_ON_SHELF / 2) + 1;
}

/* ---- the order of time -------------------------------------------------------------------- */

/* What lives at one time does not overlap, so that its holes say where there is room. */
typedef struct hole {
    size_t begin, end;
} hole_t;

typedef struct holes {
    hole_t *all; /* [n] by address, apart from each other, below the top */
    size_t n, top;
    uint32_t *by_end;  /* [n_items] items by their last section */
    size_t n_returned; /* of these */
} holes_t;

/* The first hole that begins above an address. */
static size_t hole_above(const holes_t *holes, size_t address) {
    size_t low = 0, high = holes->n;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (holes->all[middle].begin <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Replace `n_old` holes from `at` on by others. */
static void put_holes(holes_t *holes, size_t at, size_t n_old, const hole_t *others, size_t n) {
    memmove(holes->all + at + n, holes->all + at + n_old,
            (holes->n - at - n_old) * sizeof(*holes->all));
    memcpy(holes->all + at, others, n * sizeof(*others));
    holes->n = holes->n - n_old + n;
}

/* An item has ended: its place joins the holes next to it, or lowers the top. */
static void return_place(holes_t *holes, size_t begin, size_t end) {
    size_t next = hole_above(holes, begin);
    bool joins_last = next > 0 && holes->all[next - 1].end == begin;
    bool joins_next = next < holes->n && holes->all[next].begin == end;
    hole_t joined = {joins_last ? holes->all[next - 1].begin : begin,
                     joins_next ? holes->all[next].end : end};
    bool is_top = joined.end == holes->top;
    put_holes(holes, next - joins_last, (size_t)joins_last + joins_next, &joined, !is_top);
    if (is_top)
        holes->top = joined.begin;
}

/* The hole with the fewest bytes to spare, the lowest of several; else on top. */
static size_t take_place(holes_t *holes, const zr_plan_item_t *item) {
    size_t best = SIZE_MAX, least_spare = SIZE_MAX;
    for (size_t i = 0; i < holes->n && least_spare > 0; i++) {
        size_t at = zr_plan_align(holes->all[i].begin, item->alignment), end = holes->all[i].end;
        if (end < at || end - at < item->size || end - at - item->size >= least_spare)
            continue;
        least_spare = end - at - item->size;
        best = i;
    }
    hole_t hole = {holes->top, SIZE_MAX};
    if (best != SIZE_MAX)
        hole = holes->all[best];
    size_t at = zr_plan_align(hole.begin, item->alignment), end = at + item->size, n = 0;
    hole_t left[2];
    if (at > hole.begin)
        left[n++] = (hole_t){hole.begin, at};
    if (best != SIZE_MAX && end < hole.end)
        left[n++] = (hole_t){end, hole.end};
    put_holes(holes, best != SIZE_MAX ? best : holes->n, best != SIZE_MAX, left, n);
    holes->top = best != SIZE_MAX ? holes->top : end;
    return at;
}

static zr_status_t sort_by_end(const zr_plan_part_t *part, uint32_t *by_end) {
    uint32_t *n_ended = zr_heap_alloc(part->heap, (size_t)part->n_sections + 2, sizeof(*n_ended));
    if (n_ended == NULL)
        return ZR_ERR_MEMORY;
    for (size_t i = 0; i < part->n_items; i++)
        n_ended[part->items[i].last + 1]++;
    for (uint32_t s = 0; s <= part->n_sections; s++)
        n_ended[s + 1] += n_ended[s];
    for (size_t i = 0; i < part->n_items; i++)
        by_end[n_ended[part->items[i].last]++] = (uint32_t)i;
    zr_heap_free(part->heap, n_ended);
    return ZR_OK;
}

/* Items in their own order, which is that of time. It costs items times holes only, so that there
 * is always a plan soon. */
static zr_status_t place_in_time(placer_t *placer) {
    const zr_plan_part_t *part = placer->part;
    size_t n = part->n_items;
    holes_t holes = {.all = zr_heap_alloc(part->heap, n + 2, sizeof(*holes.all)),
                     .by_end = zr_heap_alloc(part->heap, n, sizeof(*holes.by_end))};
    if (holes.all == NULL || holes.by_end == NULL)
        return ZR_ERR_MEMORY;
    ZR_TRY(sort_by_end(part, holes.by_end));
    placer->height = 0;
    for (size_t i = 0; i < n; i++) {
        const zr_plan_item_t *item = &part->items[i], *ended;
        for (; ended = &part->items[holes.by_end[holes.n_returned]], ended->last <= item->first;
             holes.n_returned++) {
            size_t begin = placer->offsets[ended - part->items];
            return_place(&holes, begin, begin + ended->size);
        }
        placer->offsets[i] = take_place(&holes, item);
        placer->height = holes.top > placer->height ? holes.top : placer->height;
    }
    zr_heap_free(part->heap, holes.all);
    zr_heap_free(part->heap, holes.by_end);
    return ZR_OK;
}

/* ---- any order ------------------------------------------------------------------------------ */

/* Whether any of a strip is alive in some of the sections. */
static bool strip_meets(const int32_t *restrict first, const int32_t *restrict last, int32_t begin,
                        int32_t end) {
    int32_t any = 0; /* below 0: both differences of one are, which the compiler does for several */
    for (int i = 0; i < STRIP; i++)
        any |= (first[i] - end) & (begin - last[i]);
    return any < 0;
}

/* A place for an item, as far as has been looked from below. */
typedef struct look {
    const zr_plan_item_t *item;
    bool best_fit;
    size_t at, best, least_spare; /* best: SIZE_MAX: none so far */
} look_t;

/* Pass over an item that is alive at the same time; true: first fit has its place. */
static bool pass_over(const placer_t *placer, uint32_t other, look_t *look) {
    size_t offset = placer->offsets[other], size = look->item->size;
    if (offset >= look->at && offset - look->at >= size) {
        if (!look->best_fit)
            return true;
        if (offset - look->at - size < look->least_spare) {
            look->least_spare = offset - look->at - size;
            look->best = look->at;
        }
    }
    size_t end = offset + placer->part->items[other].size;
    if (end > look->at)
        look->at = zr_plan_align(end, look->item->alignment);
    return false;
}

static bool pass_shelf(const placer_t *placer, const shelf_t *shelf, look_t *look) {
    const int32_t begin = (int32_t)look->item->first, end = (int32_t)look->item->last;
    for (size_t strip = 0; strip < shelf->n; strip += STRIP) {
        if (!strip_meets(shelf->first + strip, shelf->last + strip, begin, end))
            continue;
        for (size_t i = strip; i < strip + STRIP; i++)
            if (shelf->first[i] < end && shelf->last[i] > begin &&
                pass_over(placer, shelf->items[i], look))
                return true;
    }
    return false;
}

/* First fit takes the lowest hole, best fit the one with the fewest bytes to spare. */
static size_t find_place(const placer_t *placer, const zr_plan_item_t *item, bool best_fit) {
    const int32_t begin = (int32_t)item->first, end = (int32_t)item->last;
    look_t look = {.item = item, .best_fit = best_fit, .best = SIZE_MAX, .least_spare = SIZE_MAX};
    for (size_t i = 0; i < placer->n_rows; i++) {
        const shelf_t *shelf = placer->rows[i];
        if (shelf->begin < end && shelf->end > begin && pass_shelf(placer, shelf, &look))
            return look.at;
    }
    return look.best != SIZE_MAX ? look.best : look.at;
}

static void put_on(const placer_t *placer, shelf_t *shelf, size_t at, uint32_t index) {
    const zr_plan_item_t *item = &placer->part->items[index];
    size_t n_above = shelf->n - at;
    memmove(shelf->items + at + 1, shelf->items + at, n_above * sizeof(*shelf->items));
    memmove(shelf->first + at + 1, shelf->first + at, n_above * sizeof(*shelf->first));
    memmove(shelf->last + at + 1, shelf->last + at, n_above * sizeof(*shelf->last));
    shelf->items[at] = index;
    shelf->first[at] = (int32_t)item->first;
    shelf->last[at] = (int32_t)item->last;
    shelf->begin = (int32_t)item->first < shelf->begin ? (int32_t)item->first : shelf->begin;
    shelf->end = (int32_t)item->last > shelf->end ? (int32_t)item->last : shelf->end;
    shelf->n++;
}

/* An empty one in row `at`. */
static shelf_t *add_shelf(placer_t *placer, size_t at) {
    shelf_t *shelf = &placer->shelves[placer->n_rows];
    *shelf = (shelf_t){.begin = INT32_MAX};
    memmove(placer->rows + at + 1, placer->rows + at,
            (placer->n_rows - at) * sizeof(*placer->rows));
    placer->rows[at] = shelf;
    placer->n_rows++;
    return shelf;
}

/* Its upper half goes to a shelf of its own. */
static void divide(placer_t *placer, size_t row) {
    const shelf_t full = *placer->rows[row];
    shelf_t *lower = placer->rows[row], *upper = add_shelf(placer, row + 1);
    *lower = (shelf_t){.begin = INT32_MAX};
    for (size_t i = 0; i < full.n; i++) {
        shelf_t *half = i < full.n / 2 ? lower : upper;
        put_on(placer, half, half->n, full.items[i]);
    }
}

/* The last row that begins at an offset or below, or the first. */
static size_t row_of(const placer_t *placer, size_t offset) {
    size_t low = 0, high = placer->n_rows;
    while (high - low > 1) {
        size_t middle = (low + high) / 2;
        if (placer->offsets[placer->rows[middle]->items[0]] <= offset)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static void place(placer_t *placer, uint32_t index, size_t offset) {
    size_t row = row_of(placer, offset), end = offset + placer->part->items[index].size;
    if (placer->rows[row]->n == MOST_ON_SHELF) {
        divide(placer, row);
        row = row_of(placer, offset);
    }
    shelf_t *shelf = placer->rows[row];
    size_t at = shelf->n;
    while (at > 0 && placer->offsets[shelf->items[at - 1]] > offset)
        at--;
    put_on(placer, shelf, at, index);
    placer->offsets[index] = offset;
    placer->height = end > placer->height ? end : placer->height;
}

/* So many steps of the clock are one item in an order's place i: more have been placed before. */
static uint64_t steps_of(size_t i) {
    return i / 1024 + (i % 16 == 0);
}

/* The same of all items. */
static uint64_t steps_of_order(size_t n_items) {
    uint64_t n = n_items, full = n / 1024;
    return 1024 * (full * (full - 1) / 2) + (n - 1024 * full) * full + (n + 15) / 16;
}

/* Place all in an order; false when it was given up, at `limit` or because time is over. */
static bool place_in_order(placer_t *placer, const uint32_t *order, bool best_fit, size_t limit,
                           zr_plan_clock_t *clock) {
    placer->n_rows = placer->height = 0;
    (void)add_shelf(placer, 0);
    for (size_t i = 0; i < placer->part->n_items; i++) {
        const zr_plan_item_t *item = &placer->part->items[order[i]];
        place(placer, order[i], find_place(placer, item, best_fit));
        if (placer->height > limit || zr_plan_clock_step(clock, steps_of(i)))
            return false;
    }
    return true;
}

static void keep_plan(zr_plan_part_t *part, const placer_t *placer, const char *strategy) {
    memcpy(part->offsets, placer->offsets, part->n_items * sizeof(*part->offsets));
    part->height = placer->height;
    part->strategy = strategy;
}

static bool placer_create(placer_t *placer, const zr_plan_part_t *part) {
    size_t n = part->n_items;
    size_t n_shelves = most_shelves(part);
    *placer = (placer_t){.part = part,
                         .shelves = zr_heap_alloc(part->heap, n_shelves, sizeof(*placer->shelves)),
                         .rows = zr_heap_alloc(part->heap, n_shelves, sizeof(*placer->rows)),
                         .offsets = zr_heap_alloc(part->heap, n, sizeof(*placer->offsets))};
    return placer->shelves != NULL && placer->rows != NULL && placer->offsets != NULL;
}

/* ---- the portfolio -------------------------------------------------------------------------- */

/* Larger comes first. */
typedef struct ranked {
    double key, second;
    uint32_t item;
} ranked_t;

static int compare_ranked(const void *a, const void *b) {
    const ranked_t *x = a, *y = b;
    if (x->key != y->key)
        return x->key > y->key ? -1 : 1;
    if (x->second != y->second)
        return x->second > y->second ? -1 : 1;
    return (x->item > y->item) - (x->item < y->item);
}

typedef enum measure {
    BY_SIZE,
    BY_DURATION,
    BY_AREA,
    BY_CONTENTION,
    BY_CONTENTION_AND_DURATION,
    BY_CONTENTION_TIMES_SIZE,
    BY_SECTIONS,
    BY_BEGIN,
    BY_END,
    N_MEASURES
} measure_t;

static const char *const first_fit_names[N_MEASURES] = {"size, first fit",
                                                        "duration, first fit",
                                                        "area, first fit",
                                                        "contention and size, first fit",
                                                        "contention and duration, first fit",
                                                        "contention times size, first fit",
                                                        "sections, first fit",
                                                        "begin, first fit",
                                                        "end, first fit"};
static const char *const best_fit_names[N_MEASURES] = {"size, best fit",
                                                       "duration, best fit",
                                                       "area, best fit",
                                                       "contention and size, best fit",
                                                       "contention and duration, best fit",
                                                       "contention times size, best fit",
                                                       "sections, best fit",
                                                       "begin, best fit",
                                                       "end, best fit"};

/* Of each item: the most bytes of any section that it lives in. */
static zr_status_t measure_contention(const zr_plan_part_t *part, size_t **contention_p) {
    size_t *contention = zr_heap_alloc(part->heap, part->n_items, sizeof(*contention));
    size_t n = part->n_sections, n_levels = 1;
    while ((size_t)2 << (n_levels - 1) <= n)
        n_levels++;
    size_t *most = zr_heap_alloc(part->heap, n_levels * (n + 1), sizeof(*most));
    if (contention == NULL || most == NULL)
        return ZR_ERR_MEMORY;
    *contention_p = contention;
    for (size_t i = 0; i < part->n_items; i++) {
        most[part->items[i].first] += part->items[i].size;
        most[part->items[i].last] -= part->items[i].size;
    }
    for (size_t s = 1; s < n; s++)
        most[s] += most[s - 1];
    /* Level k: of 2^k sections from here on. */
    for (size_t k = 1; k < n_levels; k++) {
        const size_t *below = most + (k - 1) * (n + 1), half = (size_t)1 << (k - 1);
        size_t *level = most + k * (n + 1);
        for (size_t s = 0; s + 2 * half <= n; s++)
            level[s] = below[s] > below[s + half] ? below[s] : below[s + half];
    }
    for (size_t i = 0; i < part->n_items; i++) {
        size_t first = part->items[i].first, last = part->items[i].last, k = 0;
        while ((size_t)2 << k <= last - first)
            k++;
        size_t left = most[k * (n + 1) + first];
        size_t right = most[k * (n + 1) + last - ((size_t)1 << k)];
        contention[i] = left > right ? left : right;
    }
    zr_heap_free(part->heap, most);
    return ZR_OK;
}

static void rank(ranked_t *ranked, const zr_plan_item_t *item, size_t contention,
                 measure_t measure) {
    double size = (double)item->size, duration = (double)item->upper - (double)item->lower;
    double sections = (double)(item->last - item->first);
    ranked->second = duration;
    switch (measure) {
    case BY_SIZE:
        ranked->key = size;
        break;
    case BY_DURATION:
        ranked->key = duration;
        ranked->second = size;
        break;
    case BY_AREA:
        ranked->key = size * duration;
        break;
    case BY_CONTENTION:
        ranked->key = (double)contention;
        ranked->second = size;
        break;
    case BY_CONTENTION_AND_DURATION:
        ranked->key = (double)contention;
        break;
    case BY_CONTENTION_TIMES_SIZE:
        ranked->key = (double)contention * size;
        break;
    case BY_SECTIONS:
        ranked->key = sections;
        ranked->second = size;
        break;
    case BY_BEGIN:
        ranked->key = -(double)item->first;
        ranked->second = size;
        break;
    default:
        ranked->key = (double)item->last;
        ranked->second = size;
    }
}

/* contention: [n_items] made when it is first needed; NULL: it was not yet. */
static zr_status_t order_items(const zr_plan_part_t *part, size_t **contention, measure_t measure,
                               uint32_t *order) {
    if (measure >= BY_CONTENTION && *contention == NULL)
        ZR_TRY(measure_contention(part, contention));
    ranked_t *ranked = zr_heap_alloc(part->heap, part->n_items, sizeof(*ranked));
    if (ranked == NULL)
        return ZR_ERR_MEMORY;
    for (size_t i = 0; i < part->n_items; i++) {
        ranked[i].item = (uint32_t)i;
        rank(&ranked[i], &part->items[i], *contention != NULL ? (*contention)[i] : 0, measure);
    }
    qsort(ranked, part->n_items, sizeof(*ranked), compare_ranked);
    for (size_t i = 0; i < part->n_items; i++)
        order[i] = ranked[i].item;
    zr_heap_free(part->heap, ranked);
    return ZR_OK;
}

/* ---- the best order, for the local search ------------------------------------------------ */

struct zr_plan_order_search {
    uint32_t *order, *best; /* [n_items] */
    placer_t placer;
    size_t height; /* of `best`, by first fit */
    uint64_t random;
};

static zr_plan_order_search_t *order_create(const zr_plan_part_t *part) {
    zr_plan_order_search_t *order = zr_heap_alloc(part->heap, 1, sizeof(*order));
    if (order == NULL)
        return NULL;
    order->height = SIZE_MAX;
    order->random = 1;
    order->order = zr_heap_alloc(part->heap, part->n_items, sizeof(*order->order));
    order->best = zr_heap_alloc(part->heap, part->n_items, sizeof(*order->best));
    bool is_whole =
        placer_create(&order->placer, part) && order->order != NULL && order->best != NULL;
    return is_whole ? order : NULL;
}

/* No order of so many can be tried to its end: then that is all there is time for. */
static bool is_too_long(zr_plan_clock_t *clock, size_t n_items) {
    uint64_t n_steps = steps_of_order(n_items);
    return n_steps >= clock->max_steps - clock->n_steps && zr_plan_clock_step(clock, n_steps);
}

zr_status_t zr_plan_greedy(zr_plan_part_t *part, size_t target, zr_plan_clock_t *clock) {
    size_t *contention = NULL;
    zr_plan_order_search_t *order = part->order = order_create(part);
    if (order == NULL)
        return ZR_ERR_MEMORY;
    placer_t *placer = &order->placer;
    ZR_TRY(place_in_time(placer));
    keep_plan(part, placer, "time, best fit");
    zr_status_t status = ZR_OK;
    for (int m = 0; status == ZR_OK && m < 2 * N_MEASURES && part->height > target; m++) {
        bool best_fit = m % 2 == 1;
        if (zr_plan_clock_step(clock, 1) || is_too_long(clock, part->n_items))
            break;
        if (!best_fit)
            status = order_items(part, &contention, (measure_t)(m / 2), order->order);
        if (status != ZR_OK)
            break;
        size_t limit = best_fit || part->height <= order->height ? part->height : order->height;
        if (!place_in_order(placer, order->order, best_fit, limit, clock))
            continue;
        if (!best_fit && placer->height < order->height) {
            order->height = placer->height;
            memcpy(order->best, order->order, part->n_items * sizeof(*order->best));
        }
        if (placer->height < part->height)
            keep_plan(part, placer, best_fit ? best_fit_names[m / 2] : first_fit_names[m / 2]);
    }
    zr_heap_free(part->heap, contention);
    return status;
}

/* ---- the local search ------------------------------------------------------------------------ */

/* Move an item that ends at the top, or any, to a random place before its own; or swap two. */
static void change_order(zr_plan_order_search_t *search, size_t n_items) {
    uint32_t *order = search->order;
    size_t from = zr_plan_random(&search->random) % n_items;
    size_t to = zr_plan_random(&search->random) % n_items;
    uint32_t item = order[from];
    if (zr_plan_random(&search->random) % 2 == 0) {
        order[from] = order[to];
        order[to] = item;
        return;
    }
    if (to < from)
        memmove(order + to + 1, order + to, (from - to) * sizeof(*order));
    else
        memmove(order + from, order + from + 1, (to - from) * sizeof(*order));
    order[to] = item;
}

/* Move what stands highest to a random earlier place. */
static void lower_top(zr_plan_order_search_t *search, size_t n_items, size_t height) {
    const placer_t *placer = &search->placer;
    uint32_t *order = search->order;
    for (size_t i = n_items; i-- > 1;) {
        uint32_t item = order[i];
        if (placer->offsets[item] + placer->part->items[item].size < height)
            continue;
        size_t to = zr_plan_random(&search->random) % i;
        memmove(order + to + 1, order + to, (i - to) * sizeof(*order));
        order[to] = item;
        return;
    }
}

zr_status_t zr_plan_order_improve(zr_plan_part_t *part, size_t target, uint64_t n_steps,
                                  zr_plan_clock_t *clock) {
    zr_plan_order_search_t *search = part->order;
    uint64_t end = clock->n_steps + n_steps;
    size_t n = part->n_items, bytes = n * sizeof(*search->best);
    if (search->height == SIZE_MAX) /* the portfolio was cut short, or best fit was better */
        for (size_t i = 0; i < n; i++)
            search->best[i] = (uint32_t)i;
    if (!place_in_order(&search->placer, search->best, false, SIZE_MAX, clock))
        return ZR_OK;
    search->height = search->placer.height;
    while (part->height > target && clock->n_steps < end && !zr_plan_clock_step(clock, 1)) {
        memcpy(search->order, search->best, bytes);
        if (zr_plan_random(&search->random) % 2 == 0)
            lower_top(search, n, search->height);
        for (uint64_t i = zr_plan_random(&search->random) % 3; i > 0; i--)
            change_order(search, n);
        if (!place_in_order(&search->placer, search->order, false, search->height, clock))
            continue;
        memcpy(search->best, search->order, bytes);
        search->height = search->placer.height;
        if (search->height < part->height)
            keep_plan(part, &search->placer, "search over orders");
    }
    return ZR_OK;
}
