#include "tests/allocator/plan_cases.h"

#include <string.h>

static uint64_t next(plan_random_t *random) {
    random->state = random->state * 6364136223846793005u + 1442695040888963407u;
    return random->state >> 33;
}

size_t plan_random_in(plan_random_t *random, size_t least, size_t most) {
    return least + next(random) % (most - least + 1);
}

void plan_random_buffers(plan_random_t *random, zr_plan_buffer_t *buffers, size_t n_buffers,
                         size_t max_size, size_t n_times) {
    for (size_t i = 0; i < n_buffers; i++) {
        size_t lower = plan_random_in(random, 0, n_times - 1);
        buffers[i] =
            (zr_plan_buffer_t){.lower = (int64_t)lower,
                               .upper = (int64_t)plan_random_in(random, lower + 1, n_times),
                               .size_bytes = plan_random_in(random, 1, max_size)};
    }
}

/* ---- cut rectangles ------------------------------------------------------------------------- */

typedef struct rectangle {
    size_t left, right, bottom, top;
} rectangle_t;

/* Cut one rectangle into two, or five; how many, or 0 when it is too small. */
static size_t cut(plan_random_t *random, rectangle_t r, rectangle_t *pieces) {
    size_t width = r.right - r.left, height = r.top - r.bottom;
    if (next(random) % 4 == 0 && width >= 3 && height >= 3) {
        size_t a = plan_random_in(random, r.left + 1, r.right - 2);
        size_t b = plan_random_in(random, a + 1, r.right - 1);
        size_t c = plan_random_in(random, r.bottom + 1, r.top - 2);
        size_t d = plan_random_in(random, c + 1, r.top - 1);
        pieces[0] = (rectangle_t){r.left, b, r.bottom, c};
        pieces[1] = (rectangle_t){b, r.right, r.bottom, d};
        pieces[2] = (rectangle_t){a, r.right, d, r.top};
        pieces[3] = (rectangle_t){r.left, a, c, r.top};
        pieces[4] = (rectangle_t){a, b, c, d};
        return 5;
    }
    bool upright = next(random) % 2 == 0;
    if ((upright ? width : height) < 2)
        return 0;
    pieces[0] = pieces[1] = r;
    if (upright)
        pieces[0].right = pieces[1].left = plan_random_in(random, r.left + 1, r.right - 1);
    else
        pieces[0].top = pieces[1].bottom = plan_random_in(random, r.bottom + 1, r.top - 1);
    return 2;
}

static void put(zr_plan_buffer_t *buffer, rectangle_t r) {
    *buffer = (zr_plan_buffer_t){.lower = (int64_t)r.left,
                                 .upper = (int64_t)r.right,
                                 .size_bytes = r.top - r.bottom,
                                 .alignment = r.bottom}; /* its place in the plan, for now */
}

static rectangle_t get(const zr_plan_buffer_t *buffer) {
    return (rectangle_t){(size_t)buffer->lower, (size_t)buffer->upper, buffer->alignment,
                         buffer->alignment + buffer->size_bytes};
}

void plan_cut_rectangle(plan_random_t *random, zr_plan_buffer_t *buffers, size_t n_buffers,
                        size_t n_times, size_t height) {
    rectangle_t pieces[5];
    size_t n = 1;
    put(&buffers[0], (rectangle_t){0, n_times, 0, height});
    while (n < n_buffers) {
        size_t at = next(random) % n, other = next(random) % n;
        rectangle_t a = get(&buffers[at]), b = get(&buffers[other]);
        if ((b.right - b.left) * (b.top - b.bottom) > (a.right - a.left) * (a.top - a.bottom))
            at = other;
        size_t n_pieces = cut(random, get(&buffers[at]), pieces);
        if (n_pieces == 0 || n + n_pieces - 1 > n_buffers)
            continue;
        put(&buffers[at], pieces[0]);
        for (size_t i = 1; i < n_pieces; i++)
            put(&buffers[n++], pieces[i]);
    }
    for (size_t i = n; i-- > 0;) {
        size_t other = next(random) % (i + 1);
        zr_plan_buffer_t buffer = buffers[i];
        buffers[i] = buffers[other];
        buffers[other] = buffer;
        buffers[i].alignment = 0;
    }
}

size_t plan_full_sections(plan_random_t *random, zr_plan_buffer_t *buffers, size_t n_buffers,
                          size_t n_times, size_t height) {
    size_t n = 3 * n_buffers;
    plan_cut_rectangle(random, buffers, n, n_times, height);
    for (int tries = 0; tries < 2000 && n > n_buffers; tries++) {
        zr_plan_buffer_t *a = &buffers[next(random) % n], *b = &buffers[next(random) % n];
        if (a->upper != b->lower || a->size_bytes != b->size_bytes)
            continue;
        a->upper = b->upper;
        *b = buffers[--n];
    }
    return n;
}

/* ---- training ------------------------------------------------------------------------------- */

size_t plan_micro_batches(plan_random_t *random, zr_plan_buffer_t *buffers, size_t n_layers,
                          size_t n_micro_batches) {
    enum { TICKS = 10 };
    size_t n = 0, sizes[8], period = 2 * n_layers * TICKS;
    for (int i = 0; i < 8; i++)
        sizes[i] = 256 * plan_random_in(random, 1, 4000);
    for (size_t m = 0; m < n_micro_batches; m++) {
        for (size_t layer = 0; layer < n_layers; layer++) {
            int64_t forward = (int64_t)(m * period + layer * TICKS);
            int64_t backward = (int64_t)((m + 1) * period - (layer + 1) * TICKS);
            for (int i = 0; i < 3; i++) /* kept for the backward pass */
                buffers[n++] = (zr_plan_buffer_t){forward + i, backward + 9 - i, sizes[i], 256};
            for (int i = 3; i < 6; i++) { /* used at once */
                buffers[n++] = (zr_plan_buffer_t){forward + i, forward + i + 3, sizes[i], 256};
                buffers[n++] = (zr_plan_buffer_t){backward + i, backward + i + 4, sizes[i], 256};
            }
            if (m == 0) /* gradients, added up to the end */
                buffers[n++] = (zr_plan_buffer_t){backward + 2, (int64_t)(n_micro_batches * period),
                                                  sizes[6], 256};
        }
    }
    return n;
}

/* ---- oracles -------------------------------------------------------------------------------- */

static bool live_together(const zr_plan_buffer_t *a, const zr_plan_buffer_t *b) {
    return a->lower < b->upper && b->lower < a->upper;
}

bool plan_is_valid(const zr_plan_buffer_t *buffers, size_t n_buffers, const size_t *offsets,
                   size_t height) {
    size_t highest = 0;
    for (size_t i = 0; i < n_buffers; i++) {
        size_t end = offsets[i] + buffers[i].size_bytes;
        if (end < offsets[i] ||
            (buffers[i].alignment > 1 && offsets[i] % buffers[i].alignment != 0))
            return false;
        if (buffers[i].size_bytes == 0)
            continue;
        highest = end > highest ? end : highest;
        for (size_t j = 0; j < i; j++)
            if (live_together(&buffers[i], &buffers[j]) &&
                offsets[i] < offsets[j] + buffers[j].size_bytes && offsets[j] < end)
                return false;
    }
    return highest == height;
}

size_t plan_max_live(const zr_plan_buffer_t *buffers, size_t n_buffers) {
    size_t most = 0;
    for (size_t i = 0; i < n_buffers; i++) {
        size_t live = 0;
        for (size_t j = 0; j < n_buffers; j++)
            if (buffers[j].lower <= buffers[i].lower && buffers[i].lower < buffers[j].upper)
                live += buffers[j].size_bytes;
        most = live > most ? live : most;
    }
    return most;
}

#define MAX_STACKED 12

typedef struct stacking {
    const zr_plan_buffer_t *buffers;
    size_t n_buffers, least, max_live;
    size_t ends[MAX_STACKED];
    bool is_placed[MAX_STACKED];
} stacking_t;

/* Where a buffer would stand on those that are placed. */
static size_t offset_of(const stacking_t *stacking, size_t index) {
    const zr_plan_buffer_t *buffer = &stacking->buffers[index];
    size_t offset = 0, alignment = buffer->alignment == 0 ? 1 : buffer->alignment;
    for (size_t j = 0; j < stacking->n_buffers; j++)
        if (stacking->is_placed[j] && live_together(buffer, &stacking->buffers[j]) &&
            stacking->ends[j] > offset)
            offset = stacking->ends[j];
    return (offset + alignment - 1) / alignment * alignment;
}

/* In the order of offsets, and of equal ones in that of the buffers. */
static void stack_more(stacking_t *stacking, size_t n_placed, size_t height, size_t last,
                       size_t last_offset) {
    if (height >= stacking->least || stacking->least == stacking->max_live)
        return;
    if (n_placed == stacking->n_buffers)
        stacking->least = height;
    for (size_t i = 0; i < stacking->n_buffers; i++) {
        size_t offset = stacking->is_placed[i] ? 0 : offset_of(stacking, i);
        if (stacking->is_placed[i] || offset < last_offset || (offset == last_offset && i < last))
            continue;
        stacking->is_placed[i] = true;
        stacking->ends[i] = offset + stacking->buffers[i].size_bytes;
        stack_more(stacking, n_placed + 1, stacking->ends[i] > height ? stacking->ends[i] : height,
                   i, offset);
        stacking->is_placed[i] = false;
    }
}

size_t plan_least_height(const zr_plan_buffer_t *buffers, size_t n_buffers) {
    stacking_t stacking = {.buffers = buffers,
                           .n_buffers = n_buffers,
                           .least = SIZE_MAX,
                           .max_live = plan_max_live(buffers, n_buffers)};
    stack_more(&stacking, 0, 0, 0, 0);
    return stacking.least;
}
