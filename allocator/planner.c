/*
 * The planner: checks the input, takes it apart, and spends its time on the part that is
 * highest, because only that one decides the height of the whole.
 */
#include "allocator/planner.h"

#include <math.h>
#include <stdlib.h>
#include <time.h>

#include "allocator/planner_internal.h"

/* Steps between two looks at the clock. */
#define LOOK_STEPS 1024
/* Steps of the first round of a search; they grow from round to round. */
#define FIRST_STEPS 4000

/* ---- the clock ------------------------------------------------------------------------------ */

double zr_plan_clock_now(const zr_plan_clock_t *clock) {
    if (clock->options->clock != NULL)
        return clock->options->clock(clock->options->context);
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void look(zr_plan_clock_t *clock) {
    const zr_plan_options_t *options = clock->options;
    clock->next_look = clock->n_steps + LOOK_STEPS;
    if (options->is_cancelled != NULL && options->is_cancelled(options->context))
        clock->is_over = true;
    if (options->max_seconds > 0.0 && zr_plan_clock_now(clock) >= clock->end)
        clock->is_over = true;
}

bool zr_plan_clock_step(zr_plan_clock_t *clock, uint64_t n_steps) {
    clock->n_steps += n_steps;
    if (clock->n_steps >= clock->max_steps)
        clock->is_over = true;
    else if (clock->n_steps >= clock->next_look)
        look(clock);
    return clock->is_over;
}

static zr_plan_clock_t clock_start(const zr_plan_options_t *options) {
    zr_plan_clock_t clock = {.options = options,
                             .max_steps = options->max_steps == 0 ? UINT64_MAX : options->max_steps,
                             .next_look = LOOK_STEPS};
    clock.begin = zr_plan_clock_now(&clock);
    clock.end = options->max_seconds > 0.0 ? clock.begin + options->max_seconds : INFINITY;
    return clock;
}

/* ---- the input ------------------------------------------------------------------------------ */

zr_plan_options_t zr_plan_options_default(void) {
    return (zr_plan_options_t){.log = zr_log_default(), .max_seconds = 1.0};
}

static zr_status_t check_buffer(const zr_plan_buffer_t *buffer, size_t index, const zr_log_t *log) {
    size_t alignment = buffer->alignment;
    if (buffer->lower >= buffer->upper)
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "buffer %zu lives from %lld to %lld: the end must be after the begin", index,
                       (long long)buffer->lower, (long long)buffer->upper);
    if ((alignment & (alignment - 1)) != 0 || alignment > ZR_PLAN_MAX_ALIGNMENT)
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "buffer %zu has alignment %zu: must be a power of two up to %zu", index,
                       alignment, ZR_PLAN_MAX_ALIGNMENT);
    return ZR_OK;
}

static zr_status_t check_input(const zr_plan_buffer_t *buffers, size_t n_buffers,
                               const size_t *offsets, const zr_log_t *log) {
    size_t left = ZR_PLAN_MAX_BYTES;
    if (n_buffers > 0 && (buffers == NULL || offsets == NULL))
        return zr_fail(log, ZR_ERR_ARGUMENT, "%s to plan, but no array of %s",
                       zr_count_text(n_buffers, "buffer").text,
                       buffers == NULL ? "them" : "offsets");
    if (n_buffers > ZR_PLAN_MAX_BUFFERS)
        return zr_fail(log, ZR_ERR_ARGUMENT, "%zu buffers are too many to plan; at most %zu",
                       n_buffers, ZR_PLAN_MAX_BUFFERS);
    for (size_t i = 0; i < n_buffers; i++) {
        ZR_TRY(check_buffer(&buffers[i], i, log));
        size_t padding = buffers[i].alignment;
        if (buffers[i].size_bytes > left || padding > left - buffers[i].size_bytes)
            return zr_fail(log, ZR_ERR_ARGUMENT,
                           "the sizes of buffers 0 to %zu add up to more than %zu bytes", i,
                           ZR_PLAN_MAX_BYTES);
        left -= buffers[i].size_bytes + padding;
    }
    return ZR_OK;
}

/* ---- spending the time ---------------------------------------------------------------------- */

typedef struct run {
    zr_plan_parts_t parts;
    size_t capacity; /* 0: none */
    unsigned depth;
    zr_plan_clock_t *clock;
} run_t;

/* No plan of the whole is lower. */
static size_t bound_of(const run_t *run) {
    size_t bound = run->parts.settled_height;
    for (size_t i = 0; i < run->parts.n_parts; i++) {
        const zr_plan_part_t *part = &run->parts.parts[i];
        size_t own = part->base + run->parts.parts[part->twin].bound;
        bound = own > bound ? own : bound;
    }
    return bound;
}

/* What is aimed at: the capacity, or where that cannot be reached, the least. */
static size_t target_of(const run_t *run) {
    size_t bound = bound_of(run);
    return run->capacity > bound ? run->capacity : bound;
}

/* The part that reaches highest; it has no twin before it. NULL when there are no parts. */
static zr_plan_part_t *highest_part(const run_t *run, size_t *height_p, size_t *base_p) {
    zr_plan_part_t *highest = NULL;
    *height_p = 0;
    for (size_t i = 0; i < run->parts.n_parts; i++) {
        zr_plan_part_t *part = &run->parts.parts[run->parts.parts[i].twin];
        size_t base = run->parts.parts[i].base, height = base + part->height;
        if (highest == NULL || height > *height_p) {
            highest = part;
            *height_p = height;
            *base_p = base;
        }
    }
    return highest;
}

/* Look for something lower than there is, further down after each success. */
static zr_status_t descend(zr_plan_part_t *part, size_t target, unsigned round, uint64_t n_steps,
                           zr_plan_clock_t *clock) {
    for (int i = 0; i < 3 && part->height > target; i++) {
        size_t height = part->height, gap = height - target;
        size_t less = (size_t)(part->stride * (double)gap);
        less = less == 0 ? 1 : less > gap ? gap : less;
        ZR_TRY(zr_plan_search(part, height - less, round, n_steps, clock));
        part->stride *= part->height < height ? 2.0 : 0.5;
        part->stride = fmin(fmax(part->stride, 1.0 / 128), 1.0);
    }
    return ZR_OK;
}

/* A round on one part: the exact search at what is aimed at; where that is too hard for
 * now, at something between it and what there is; at times the search over orders, which
 * is all there is for large parts. */
static zr_status_t improve(zr_plan_part_t *part, size_t target, zr_plan_clock_t *clock) {
    unsigned round = part->round++;
    uint64_t n_steps = (uint64_t)((double)FIRST_STEPS * pow(1.25, round < 120 ? round : 120));
    if (part->n_items > ZR_PLAN_MAX_SEARCH)
        return zr_plan_order_improve(part, target, n_steps / 4 + part->n_items * 16, clock);
    ZR_TRY(zr_plan_search(part, target, round, n_steps, clock));
    if (part->height > target && part->bound <= target && round % 4 != 0)
        return descend(part, target, round, n_steps / 4, clock);
    if (part->height > target && part->bound <= target && round % 8 == 4)
        return zr_plan_order_improve(part, target, n_steps / 4, clock);
    return ZR_OK;
}

static zr_status_t plan_parts(run_t *run) {
    size_t height = 0, base = 0;
    for (size_t i = 0; i < run->parts.n_parts; i++) {
        zr_plan_part_t *part = &run->parts.parts[i];
        if (part->twin != i)
            continue;
        size_t target = target_of(run) - part->base;
        ZR_TRY(zr_plan_greedy(part, target, run->clock));
        if (part->height > target)
            ZR_TRY(zr_plan_fold(part, target, run->depth, run->clock));
    }
    zr_plan_part_t *part = highest_part(run, &height, &base);
    while (part != NULL && height > target_of(run) && !zr_plan_clock_step(run->clock, 1)) {
        ZR_TRY(improve(part, target_of(run) - base, run->clock));
        part = highest_part(run, &height, &base);
    }
    return ZR_OK;
}

static void report(const run_t *run, size_t *offsets, zr_plan_result_t *result) {
    const zr_plan_parts_t *parts = &run->parts;
    size_t base = 0;
    for (size_t i = 0; i < parts->n_items; i++)
        offsets[parts->items[i].source] = parts->offsets[i];
    for (size_t i = 0; i < parts->n_parts; i++) {
        const zr_plan_part_t *part = &parts->parts[i], *twin = &parts->parts[part->twin];
        for (size_t j = 0; j < part->n_items; j++)
            offsets[part->items[j].source] = part->base + twin->offsets[j];
    }
    const zr_plan_part_t *highest = highest_part(run, &result->height_bytes, &base);
    result->strategy = highest == NULL ? "stacking" : highest->strategy;
    if (parts->settled_height > result->height_bytes)
        result->height_bytes = parts->settled_height;
    result->max_live_bytes = parts->max_live_bytes;
    result->bound_bytes = bound_of(run);
    result->is_proven = result->height_bytes <= result->bound_bytes;
    result->is_stopped = result->height_bytes > target_of(run);
}

zr_status_t zr_plan_run(zr_heap_t *counted_in, const zr_plan_buffer_t *buffers, size_t n_buffers,
                        size_t capacity, unsigned depth, zr_plan_clock_t *clock, size_t *offsets_p,
                        zr_plan_result_t *result_p) {
    run_t run = {.capacity = capacity, .depth = depth, .clock = clock};
    zr_plan_result_t result = {0};
    zr_heap_t *heap = zr_heap_create(counted_in);
    if (heap == NULL)
        return ZR_ERR_MEMORY;
    zr_status_t status = zr_plan_parts_create(heap, buffers, n_buffers, &run.parts);
    ZR_THEN(status, plan_parts(&run));
    if (status == ZR_OK) {
        for (size_t i = 0; i < n_buffers; i++)
            offsets_p[i] = 0;
        report(&run, offsets_p, &result);
        *result_p = result;
    }
    zr_heap_destroy(&heap);
    return status;
}

/* In a heap of its own, to know how much it takes. */
static zr_status_t make_plan(zr_heap_t *counted_in, const zr_plan_question_t *question,
                             size_t *offsets_p, zr_plan_answer_t *answer_p) {
    const zr_plan_options_t *options = question->options;
    zr_plan_clock_t clock = clock_start(options);
    zr_heap_t *heap = zr_heap_create(counted_in);
    zr_status_t status = heap != NULL ? ZR_OK : ZR_ERR_MEMORY;
    ZR_THEN(status, zr_plan_run(heap, question->buffers, question->n_buffers,
                                options->capacity_bytes, 0, &clock, offsets_p, &answer_p->result));
    if (status == ZR_OK) {
        answer_p->heap_bytes = counted_in == NULL ? zr_heap_count(heap).peak : 0;
        answer_p->result.n_steps = clock.n_steps;
        answer_p->result.seconds = zr_plan_clock_now(&clock) - clock.begin;
    }
    zr_heap_destroy(&heap);
    if (status != ZR_OK)
        return zr_fail(&options->log, status, "no memory to plan %s",
                       zr_count_text(question->n_buffers, "buffer").text);
    return ZR_OK;
}

static zr_status_t find_plan(zr_heap_t *counted_in, zr_plan_question_t *question, size_t *offsets_p,
                             zr_plan_answer_t *answer_p) {
    if (!zr_plan_cache_knows(question->options))
        return make_plan(counted_in, question, offsets_p, answer_p);
    if (zr_plan_cache_find(question, offsets_p, answer_p))
        return ZR_OK;
    zr_status_t status = make_plan(NULL, question, offsets_p, answer_p);
    zr_plan_cache_end(question, offsets_p, status == ZR_OK ? answer_p : NULL);
    return status;
}

zr_status_t zr_plan_offsets_in(zr_heap_t *counted_in, const zr_plan_buffer_t *buffers,
                               size_t n_buffers, const zr_plan_options_t *options,
                               size_t *offsets_p, zr_plan_result_t *result_p) {
    zr_plan_options_t defaults = zr_plan_options_default();
    zr_plan_question_t question = {.options = options == NULL ? &defaults : options,
                                   .buffers = buffers,
                                   .n_buffers = n_buffers};
    zr_plan_answer_t answer = {0};
    ZR_TRY(check_input(buffers, n_buffers, offsets_p, &question.options->log));
    ZR_TRY(find_plan(counted_in, &question, offsets_p, &answer));
    if (counted_in != NULL)
        zr_heap_count_passing(counted_in, answer.heap_bytes);
    if (result_p != NULL)
        *result_p = answer.result;
    return ZR_OK;
}

zr_status_t zr_plan_offsets(const zr_plan_buffer_t *buffers, size_t n_buffers,
                            const zr_plan_options_t *options, size_t *offsets_p,
                            zr_plan_result_t *result_p) {
    return zr_plan_offsets_in(NULL, buffers, n_buffers, options, offsets_p, result_p);
}

static void stay_silent(void *context, zr_log_level_t level, int rank, const char *message) {
    (void)context;
    (void)level;
    (void)rank;
    (void)message;
}

size_t zr_plan_max_live(const zr_plan_buffer_t *buffers, size_t n_buffers) {
    size_t max_live = 0;
    zr_log_t log = zr_log_default();
    log.sink = stay_silent;
    zr_heap_t *heap = zr_heap_create(NULL);
    if (heap == NULL || check_input(buffers, n_buffers, &max_live, &log) != ZR_OK ||
        zr_plan_find_max_live(heap, buffers, n_buffers, &max_live) != ZR_OK)
        max_live = 0;
    zr_heap_destroy(&heap);
    return max_live;
}
