/*
 * Following a plan: the cursor, what a place waits for, and the marks that move it on. See
 * replay_internal.h for why it is safe.
 */
#include <time.h>

#include "allocator/internal.h"
#include "allocator/poison_internal.h"
#include "allocator/replay_force_internal.h"
#include "allocator/replay_search_internal.h"

#define NO_SEGMENT SIZE_MAX
/* Work that planning may take in zr_allocator_mark once the greedy orders have missed the bound. */
#define PLAN_STEPS 50000
/* Plans in a row that no step has followed before it takes patience to make another. */
#define EAGER_PLANS 3
#define MAX_PATIENCE 64

/* ---- the cursor --------------------------------------------------------------------- */

#define NO_ENTRY SIZE_MAX

static bool is_planned(const zr_replay_t *replay, size_t entry) {
    return replay->plan->entries[entry].is_planned;
}

/*
 * The step leaves the plan, which it has followed up to an event: until now nothing was written
 * down, because it is what the plan's own tape says.
 */
static void leave(zr_replay_t *replay, size_t event) {
    if (replay->has_left)
        return;
    replay->has_left = true;
    const zr_replay_made_t *plan = replay->plan;
    size_t n_segments = replay->segment == NO_SEGMENT ? 0 : replay->segment + 1;
    zr_tape_take_prefix(&replay->tape, &plan->tape, event, n_segments);
    for (size_t i = 0; i < replay->tape.n_entries; i++) {
        zr_block_t *block = replay->blocks[i];
        if (block != NULL) {
            replay->tape.entries[i].upper = ZR_TAPE_OPEN;
            block->tape_number = (uint32_t)i + 1;
            block->tape_epoch = replay->tape.epoch;
        } else if (is_planned(replay, i) && replay->tape.entries[i].upper == ZR_TAPE_OPEN) {
            zr_tape_freed(&replay->tape, (uint32_t)i + 1, plan->tape.entries[i].free_stream);
        }
    }
}

/* The plan has an entry's free behind it. */
static void pass_free(zr_replay_t *replay, size_t entry) {
    zr_block_t *block = replay->blocks[entry];
    if (block == NULL || block->is_overdue)
        return;
    block->is_overdue = true;
    replay->n_overdue++;
}

/* Move the cursor to an event: what was to be allocated before it is left out. */
static void move_to(zr_replay_t *replay, size_t event) {
    for (; replay->at < event; replay->at++) {
        uint32_t passed = replay->plan->events[replay->at];
        if ((passed & 1) != 0)
            pass_free(replay, passed >> 1);
        else if (is_planned(replay, passed >> 1))
            leave(replay, replay->at);
    }
}

/* The entry of the next allocation in this segment; NO_ENTRY: there are none left. */
static size_t next_entry(zr_replay_t *replay) {
    while (replay->at < replay->end) {
        uint32_t event = replay->plan->events[replay->at++];
        if ((event & 1) == 0)
            return event >> 1;
        pass_free(replay, event >> 1);
    }
    return NO_ENTRY;
}

/* Go to the next segment of the plan that a mark means, if there is one. */
static void seek(zr_replay_t *replay, const zr_mark_t *mark) {
    const zr_tape_t *tape = &replay->plan->tape;
    size_t segment = replay->segment + 1; /* NO_SEGMENT + 1 is the first */
    while (segment < tape->n_segments && !zr_tape_segment_is(&tape->segments[segment], mark))
        segment++;
    replay->is_in_segment = segment < tape->n_segments;
    if (segment != replay->segment + 1 || !replay->is_in_segment)
        leave(replay, replay->at);
    if (!replay->is_in_segment)
        return;
    move_to(replay, tape->segments[segment].time);
    replay->segment = segment;
    replay->end =
        segment + 1 < tape->n_segments ? tape->segments[segment + 1].time : replay->plan->n_events;
}

/* ---- streams --------------------------------------------------------------------------- */

static uint8_t number_of(zr_replay_t *replay, const zr_stream_t *stream) {
    if (stream == NULL)
        return 0;
    for (int i = 0; i < ZR_REPLAY_MAX_STREAMS; i++) {
        if (replay->streams[i] == NULL)
            replay->streams[i] = (zr_stream_t *)stream;
        if (replay->streams[i] == stream)
            return (uint8_t)(i + 1);
    }
    return ZR_REPLAY_OTHER_STREAM;
}

static zr_event_t *event_of(const zr_replay_fence_t *fence, size_t number) {
    return fence->events[number % ZR_REPLAY_N_RECORDS];
}

/* Note where a stream is. */
static zr_status_t record(zr_replay_t *replay, int stream) {
    zr_replay_fence_t *fence = &replay->fences[stream];
    ZR_TRY(zr_event_record(event_of(fence, fence->n_records + 1), replay->streams[stream - 1]));
    fence->n_records++;
    fence->has_freed = false;
    return ZR_OK;
}

/* Let a stream wait for a record, or, where it is gone, for the first that there still is. */
static zr_status_t wait_for(zr_stream_t *stream, uint8_t number, zr_replay_fence_t *fence,
                            size_t at) {
    if (at <= fence->joined[number])
        return ZR_OK;
    if (at + ZR_REPLAY_N_RECORDS <= fence->n_records)
        at = fence->n_records - ZR_REPLAY_N_RECORDS + 1;
    ZR_TRY(zr_stream_wait(stream, event_of(fence, at)));
    fence->joined[number] = at;
    return ZR_OK;
}

/* Let the stream that uses an entry's place wait for another, as far as the plan says. */
static zr_status_t order_behind(zr_replay_t *replay, size_t entry, zr_stream_t *stream, int other) {
    zr_replay_fence_t *fence = &replay->fences[other];
    uint8_t number = replay->plan->tape.entries[entry].kind.stream;
    size_t since = replay->plan->entries[entry].since[other - 1], at = fence->n_before;
    if (replay->has_left) {
        ZR_TRY(record(replay, other));
        at = fence->n_records;
    } else if (since > 0) {
        at = fence->n_records + 1 - since;
        at = at > fence->least ? at : fence->least;
    }
    return wait_for(stream, number, fence, at);
}

/* Let the stream that uses an entry's place wait for those that used it before. */
static zr_status_t order_behind_others(zr_replay_t *replay, size_t entry, zr_stream_t *stream) {
    uint8_t number = replay->plan->tape.entries[entry].kind.stream;
    for (int i = 1; i <= ZR_REPLAY_MAX_STREAMS; i++)
        if (zr_replay_has_fence(replay, i) && i != number)
            ZR_TRY(order_behind(replay, entry, stream, i));
    return ZR_OK;
}

/* ---- allocating and freeing ------------------------------------------------------------ */

/* Whether this step is, so far, what the plan says. */
static bool is_followed(const zr_replay_t *replay) {
    return replay->is_in_force && !replay->has_left;
}

static zr_tape_kind_t kind_of(zr_replay_t *replay, const zr_allocation_request_t *request) {
    return (zr_tape_kind_t){.stream = number_of(replay, request->stream),
                            .tier = (uint8_t)request->tier,
                            .tag = (uint8_t)request->tag,
                            .lifetime = (uint8_t)request->lifetime};
}

/* What a step that follows the plan knows of an entry: whether its size varies, and that a place
 * that was large enough is so for the scale. Of a plan that is shared nobody asks. */
static void note(const zr_replay_t *replay, size_t entry, size_t block_bytes) {
    zr_tape_entry_t *noted = &replay->plan->tape.entries[entry];
    if (replay->plan->shared.cache != NULL)
        return;
    if (block_bytes != noted->block_bytes)
        noted->varies = true;
    if (replay->scale == 0)
        return;
    if (replay->scale < noted->least_scale)
        noted->least_scale = replay->scale;
    if (replay->scale > noted->most_scale)
        noted->most_scale = replay->scale;
}

/* The entry whose place a request may have; NO_ENTRY: it is served without the plan. */
static size_t match(zr_replay_t *replay, const zr_allocation_request_t *request,
                    size_t block_bytes) {
    zr_tape_kind_t kind = kind_of(replay, request);
    size_t entry = replay->is_in_segment ? next_entry(replay) : NO_ENTRY;
    const zr_tape_entry_t *on_tape = entry != NO_ENTRY ? &replay->plan->tape.entries[entry] : NULL;
    bool matches = on_tape != NULL && zr_tape_kind_equals(&on_tape->kind, &kind);
    if (matches && !is_planned(replay, entry)) {
        note(replay, entry, block_bytes);
        replay->statistics.n_left_out++;
        return NO_ENTRY;
    }
    if (matches && block_bytes <= on_tape->block_bytes && replay->n_overdue == 0)
        return entry;
    leave(replay, entry != NO_ENTRY ? replay->at - 1 : replay->at);
    replay->statistics.n_unplanned++;
    return NO_ENTRY;
}

/* The block of an entry's place, until it is given back. One must be spare. */
static zr_block_t *make_block(zr_allocator_t *allocator, size_t entry) {
    zr_replay_t *replay = allocator->replay;
    const zr_tape_entry_t *on_tape = &replay->plan->tape.entries[entry];
    const zr_block_t *held = replay->held[on_tape->kind.tier];
    zr_block_t *block = replay->blocks[entry] = zr_block_pool_take(&allocator->pool);
    block->arena = held->arena;
    block->offset_bytes = held->offset_bytes + replay->plan->entries[entry].offset_bytes;
    block->size_bytes = on_tape->block_bytes;
    block->state = ZR_BLOCK_LIVE;
    block->planned = (uint32_t)entry + 1;
    replay->n_live++;
    return block;
}

void zr_replay_drop_block(zr_allocator_t *allocator, size_t entry) {
    zr_replay_t *replay = allocator->replay;
    zr_block_pool_give(&allocator->pool, replay->blocks[entry]);
    replay->blocks[entry] = NULL;
    replay->n_live--;
}

zr_status_t zr_replay_take(zr_allocator_t *allocator, const zr_allocation_request_t *request,
                           size_t block_bytes, zr_block_t **block_p) {
    zr_replay_t *replay = allocator->replay;
    if (!replay->is_in_force || replay->step == 0)
        return ZR_OK;
    size_t entry = match(replay, request, block_bytes);
    if (entry == NO_ENTRY)
        return ZR_OK;
    zr_status_t status = zr_block_pool_reserve(&allocator->pool, 1);
    if (status == ZR_OK && !replay->planning.is_synchronous)
        status = order_behind_others(replay, entry, request->stream);
    if (status != ZR_OK) {
        leave(replay, replay->at - 1); /* who has the place next cannot rely on its waits */
        return status;
    }
    zr_block_t *block = make_block(allocator, entry);
    const zr_arena_t *arena = block->arena;
    if (arena->is_addressable)
        zr_unpoison(arena->base + block->offset_bytes, request->size_bytes);
    block->requested_bytes = request->size_bytes;
    note(replay, entry, block_bytes);
    replay->statistics.n_planned++;
    *block_p = block;
    return ZR_OK;
}

void zr_replay_allocated(zr_replay_t *replay, const zr_allocation_request_t *request,
                         zr_block_t *block) {
    block->tape_number = 0;
    if (is_followed(replay))
        return;
    zr_tape_kind_t kind = kind_of(replay, request);
    size_t place_bytes = zr_block_bytes(request->size_bytes);
    block->tape_number = zr_tape_allocated(&replay->tape, &kind, place_bytes, replay->scale);
    block->tape_epoch = replay->tape.epoch;
}

/* Whether who has a block's place next cannot rely on what the plan says of its free. */
static bool is_free_divergent(const zr_replay_t *replay, const zr_block_t *block, uint8_t stream) {
    return block->is_overdue ||
           (!replay->planning.is_synchronous &&
            stream != replay->plan->tape.entries[block->planned - 1].free_stream);
}

void zr_replay_freed(zr_replay_t *replay, zr_block_t *block, zr_stream_t *stream) {
    if (block->planned != 0 && is_free_divergent(replay, block, number_of(replay, stream)))
        leave(replay, replay->at);
    if (block->tape_number != 0 && block->tape_epoch == replay->tape.epoch)
        zr_tape_freed(&replay->tape, block->tape_number, number_of(replay, stream));
    block->tape_number = 0;
}

/* There is no event to wait for: wait for the stream itself. Never ZR_OK. */
static zr_status_t wait_instead(zr_stream_t *stream, zr_status_t status) {
    zr_status_t waited = zr_stream_synchronize(stream);
    return waited == ZR_OK ? status : waited;
}

/* Note where the stream is, for whoever has the place next. */
static zr_status_t note_last_use(zr_allocator_t *allocator, size_t entry, zr_stream_t *stream) {
    zr_replay_t *replay = allocator->replay;
    uint8_t number = number_of(replay, stream);
    if (number == 0)
        return ZR_OK;
    if (number == ZR_REPLAY_OTHER_STREAM)
        return zr_stream_synchronize(stream);
    zr_replay_fence_t *fence = &replay->fences[number];
    zr_status_t status = ZR_OK;
    if (!zr_replay_has_fence(replay, number)) /* no tensor of the plan was freed behind it */
        status = zr_replay_add_fence(allocator, number);
    fence->has_freed = status == ZR_OK;
    uint32_t freed = replay->plan->tape.entries[entry].upper + 1;
    bool is_in_order = freed > fence->freed;
    if (replay->plan->entries[entry].is_awaited || !is_in_order)
        ZR_THEN(status, record(replay, number));
    if (status != ZR_OK) {
        leave(replay, replay->at);
        return wait_instead(stream, status);
    }
    if (is_in_order)
        fence->freed = freed;
    else
        fence->least = fence->n_records;
    return ZR_OK;
}

zr_status_t zr_replay_give(zr_allocator_t *allocator, zr_block_t *block, zr_stream_t *stream) {
    zr_replay_t *replay = allocator->replay;
    const zr_arena_t *arena = block->arena;
    size_t entry = block->planned - 1;
    if (arena->recording != NULL)
        zr_recording_ended(arena->recording, block);
    /* Host memory may still be copied from or to by a stream that is late. */
    if (arena->is_addressable && replay->planning.is_synchronous)
        zr_poison(arena->base + block->offset_bytes, block->requested_bytes);
    if (block->is_overdue)
        replay->n_overdue--;
    zr_replay_drop_block(allocator, entry);
    return replay->planning.is_synchronous ? ZR_OK : note_last_use(allocator, entry, stream);
}

/* ---- steps --------------------------------------------------------------------------------- */

/* How many steps in a row have to leave their plan before another is made. */
static size_t patience(const zr_replay_t *replay) {
    if (replay->n_plans_in_row < EAGER_PLANS)
        return 1;
    size_t doublings = replay->n_plans_in_row - EAGER_PLANS + 1;
    return doublings < 6 ? (size_t)1 << doublings : MAX_PATIENCE;
}

static double seconds_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* What a plan takes while it is made: the tape is each allocator's own until then. */
static void count_made(zr_allocator_t *allocator, const zr_replay_made_t *made, size_t tape_bytes) {
    size_t peak = zr_heap_count(made->shared.heap).peak;
    zr_heap_count_passing(allocator->heap,
                          tape_bytes + zr_part_of_shared(allocator, peak - tape_bytes));
}

/* Make a plan of what the step did. The lock is given up meanwhile. */
static zr_status_t make_plan(zr_allocator_t *allocator, zr_replay_made_t **made_p) {
    zr_replay_t *replay = allocator->replay;
    zr_tape_t tape = replay->tape;
    zr_heap_t *heap = zr_heap_create(allocator->heap);
    zr_status_t status = heap != NULL ? ZR_OK : ZR_ERR_MEMORY;
    size_t tape_bytes = 0;
    /* What other threads free meanwhile is on no tape. */
    if (heap != NULL)
        replay->tape =
            (zr_tape_t){.heap = heap, .max_entries = tape.max_entries, .epoch = tape.epoch + 1};
    if (heap != NULL && replay->plan != NULL && zr_tape_is_alike(&tape, &replay->plan->tape))
        zr_tape_enlarge(&tape, &replay->plan->tape);
    pthread_mutex_unlock(&allocator->lock);
    double start = seconds_now();
    ZR_THEN(status, zr_tape_close_gaps(&tape));
    ZR_THEN(status, zr_tape_fit(&tape));
    if (status == ZR_OK) {
        zr_heap_count_alone(tape.heap);
        tape_bytes = zr_heap_count(tape.heap).bytes;
        status = zr_replay_plan_make(allocator->shared, &tape, &replay->planning, made_p);
    } else if (heap != NULL) {
        zr_heap_destroy(&tape.heap);
    }
    double seconds = seconds_now() - start;
    if (status != ZR_OK)
        zr_log_write(
            &allocator->log, ZR_LOG_WARNING,
            "step %zu: no memory to plan its allocations (%s); they continue without a plan",
            replay->step, zr_status_name(status));
    pthread_mutex_lock(&allocator->lock);
    if (status == ZR_OK)
        count_made(allocator, *made_p, tape_bytes);
    replay->statistics.plan_seconds += seconds;
    return status;
}

static void free_plan(zr_allocator_t *allocator, zr_replay_made_t **plan, size_t size_bytes) {
    zr_heap_uncount_absent(allocator->heap, size_bytes);
    zr_replay_plan_free(plan);
}

/* Put another plan into force, of which so many bytes are this allocator's. It is taken over,
 * whatever comes of it. */
static void replace_plan(zr_allocator_t *allocator, zr_replay_made_t *made, size_t size_bytes) {
    zr_replay_t *replay = allocator->replay;
    zr_heap_count_absent(allocator->heap, size_bytes);
    if (!zr_replay_release(allocator)) {
        free_plan(allocator, &made, size_bytes);
        return;
    }
    free_plan(allocator, &replay->plan, replay->plan_bytes);
    replay->plan = made;
    replay->plan_bytes = size_bytes;
    replay->is_in_force = zr_replay_force(allocator) == ZR_OK;
    if (replay->is_in_force)
        replay->statistics.n_plans++;
}

/* What was found for a plan that is not in force any more is of no use. */
static void end_search(zr_replay_t *replay) {
    zr_replay_made_t *found =
        zr_replay_search_stop(&replay->search, &replay->statistics.search_bytes);
    zr_replay_plan_free(&found);
}

bool zr_replay_end_search(zr_replay_t *replay) {
    bool is_running = replay != NULL && replay->search != NULL;
    if (is_running)
        end_search(replay);
    return is_running;
}

static void renew_plan(zr_allocator_t *allocator) {
    zr_replay_t *replay = allocator->replay;
    zr_replay_made_t *made = NULL;
    replay->n_divergent_in_row = 0;
    replay->n_plans_in_row++;
    end_search(replay);
    if (make_plan(allocator, &made) != ZR_OK)
        return;
    replace_plan(allocator, made,
                 zr_part_of_shared(allocator, zr_heap_count(made->shared.heap).bytes));
    if (replay->is_in_force && replay->search_seconds > 0 &&
        zr_replay_plan_can_improve(replay->plan))
        replay->search =
            zr_replay_search_start(&replay->plan->tape, &replay->planning, replay->search_seconds,
                                   zr_process_headroom(allocator));
}

static size_t height_of(const zr_replay_made_t *plan) {
    size_t height = 0;
    for (int tier = 0; tier < ZR_REPLAY_N_TIERS; tier++)
        height += plan->summary[tier].height_bytes;
    return height;
}

/* Take what a search has found, if it is lower; not while something lives where it would lie. */
static void take_found(zr_allocator_t *allocator) {
    zr_replay_t *replay = allocator->replay;
    if (replay->search == NULL || replay->n_live > 0 || !zr_replay_search_is_done(replay->search))
        return;
    zr_replay_made_t *found =
        zr_replay_search_stop(&replay->search, &replay->statistics.search_bytes);
    if (found == NULL || !replay->is_in_force || height_of(found) >= height_of(replay->plan)) {
        zr_replay_plan_free(&found);
        return;
    }
    replay->statistics.n_lowered++;
    replace_plan(allocator, found, zr_heap_count(found->shared.heap).bytes);
}

/* True when the warning of a step that is too long has to be given: once. */
static bool is_too_long(zr_replay_t *replay) {
    bool is_new = replay->tape.is_too_long && !replay->is_warned;
    replay->is_warned = replay->is_warned || is_new;
    return is_new;
}

static void end_step(zr_allocator_t *allocator) {
    zr_replay_t *replay = allocator->replay;
    if (replay->is_in_force) {
        move_to(replay, replay->plan->n_events);
        if (replay->segment + 1 != replay->plan->tape.n_segments)
            leave(replay, replay->at);
    }
    replay->is_in_segment = false;
    bool followed = is_followed(replay);
    replay->statistics.n_steps++;
    if (followed) {
        replay->statistics.n_clean_steps++;
        replay->statistics.last_clean_step = replay->step;
        replay->n_divergent_in_row = replay->n_plans_in_row = 0;
        take_found(allocator);
        return;
    }
    replay->n_divergent_in_row++;
    if (is_too_long(replay)) {
        pthread_mutex_unlock(&allocator->lock); /* the sink is the caller's */
        zr_log_write(&allocator->log, ZR_LOG_WARNING,
                     "step %zu allocates more than %s: it is not planned (max_allocations)",
                     replay->step, zr_count_text(replay->tape.max_entries, "time").text);
        pthread_mutex_lock(&allocator->lock);
    }
    if (!replay->tape.is_torn && replay->tape.n_entries > 0 &&
        replay->n_divergent_in_row >= patience(replay))
        renew_plan(allocator);
}

/* What lives on from the step before is overdue already: that one's end has passed all frees. */
static void begin_step(zr_replay_t *replay, size_t step) {
    replay->step = step;
    zr_tape_restart(&replay->tape);
    replay->segment = NO_SEGMENT;
    replay->at = replay->end = 0;
    replay->is_in_segment = replay->has_left = false;
    if (!replay->is_in_force)
        return;
    for (int i = 1; i <= ZR_REPLAY_MAX_STREAMS; i++) {
        zr_replay_fence_t *fence = &replay->fences[i];
        fence->freed = 0;
        fence->least = 0;
        if (fence->has_freed && record(replay, i) != ZR_OK)
            leave(replay, 0); /* each place then waits for all there is */
        fence->n_before = fence->n_records;
    }
}

/* What lives outside of the plan while it is put back is why it may not come into force: the step
 * then makes another. */
static void go_on(zr_allocator_t *allocator) {
    zr_replay_t *replay = allocator->replay;
    if (replay->is_paused)
        replay->is_in_force = zr_replay_force(allocator) == ZR_OK;
    replay->is_paused = false;
}

void zr_replay_mark(zr_allocator_t *allocator, const zr_mark_t *mark) {
    zr_replay_t *replay = allocator->replay;
    if (mark->step != replay->step) {
        if (replay->step != 0)
            end_step(allocator);
        go_on(allocator);
        begin_step(replay, mark->step);
    }
    if (replay->is_in_force)
        seek(replay, mark);
    if (!is_followed(replay))
        zr_tape_mark(&replay->tape, mark);
}

/* ---- public calls --------------------------------------------------------------------------- */

zr_replay_options_t zr_replay_options_default(void) {
    return (zr_replay_options_t){.max_allocations = ZR_REPLAY_MAX_ALLOCATIONS};
}

static zr_replay_t *create_replay(const zr_allocator_t *allocator,
                                  const zr_replay_options_t *options) {
    zr_heap_t *heap = zr_heap_create(allocator->heap);
    zr_replay_t *replay = heap != NULL ? zr_heap_alloc(allocator->heap, 1, sizeof(*replay)) : NULL;
    if (replay == NULL) {
        zr_heap_destroy(&heap);
        return NULL;
    }
    replay->tape.heap = heap;
    replay->tape.max_entries =
        options->max_allocations == 0 ? ZR_REPLAY_MAX_ALLOCATIONS : options->max_allocations;
    if (replay->tape.max_entries > ZR_TAPE_OPEN / 4)
        replay->tape.max_entries = ZR_TAPE_OPEN / 4;
    replay->tape.epoch = allocator->tape_epoch + 1;
    replay->planning =
        (zr_replay_planning_t){.log = allocator->log,
                               .is_synchronous = allocator->is_synchronous,
                               .is_as_long = options->is_as_long,
                               .search = {.log = allocator->log,
                                          .cache = allocator->plans,
                                          .max_steps = options->is_as_long ? 1 : PLAN_STEPS}};
    replay->planning.compute = number_of(replay, options->compute);
    replay->search_seconds = options->search_seconds;
    replay->segment = NO_SEGMENT;
    replay->statistics.is_on = true;
    return replay;
}

void zr_allocator_use_plans(zr_allocator_t *allocator, zr_plan_cache_t *plans) {
    pthread_mutex_lock(&allocator->lock);
    allocator->plans = plans;
    pthread_mutex_unlock(&allocator->lock);
}

void zr_allocator_share_tables(zr_allocator_t *allocator, zr_plan_cache_t *plans,
                               size_t n_allocators) {
    pthread_mutex_lock(&allocator->lock);
    allocator->shared = plans;
    allocator->n_sharing = n_allocators;
    pthread_mutex_unlock(&allocator->lock);
}

zr_status_t zr_allocator_replay_start(zr_allocator_t *allocator,
                                      const zr_replay_options_t *options) {
    zr_replay_options_t defaults = zr_replay_options_default();
    pthread_mutex_lock(&allocator->lock);
    bool is_on = allocator->replay != NULL;
    if (!is_on)
        allocator->replay = create_replay(allocator, options != NULL ? options : &defaults);
    bool has_started = !is_on && allocator->replay != NULL;
    allocator->is_frugal = allocator->replay != NULL;
    pthread_mutex_unlock(&allocator->lock);
    if (is_on)
        return zr_fail(&allocator->log, ZR_ERR_STATE, "replay of allocations is on already");
    if (!has_started)
        return zr_fail(&allocator->log, ZR_ERR_MEMORY, "no memory for a replay of allocations");
    return ZR_OK;
}

void zr_allocator_replay_stop(zr_allocator_t *allocator) {
    pthread_mutex_lock(&allocator->lock);
    bool is_released = allocator->replay == NULL || zr_replay_release(allocator);
    if (is_released)
        zr_replay_destroy(allocator);
    pthread_mutex_unlock(&allocator->lock);
    if (!is_released)
        zr_log_write(
            &allocator->log, ZR_LOG_WARNING,
            "replay of allocations cannot be stopped: no memory for metadata of live allocations");
}

void zr_replay_destroy(zr_allocator_t *allocator) {
    zr_replay_t *replay = allocator->replay;
    if (replay == NULL)
        return;
    end_search(replay);
    zr_replay_abandon(allocator);
    free_plan(allocator, &replay->plan, replay->plan_bytes);
    zr_heap_destroy(&replay->tape.heap);
    allocator->tape_epoch = replay->tape.epoch;
    zr_heap_free(allocator->heap, replay);
    allocator->replay = NULL;
    allocator->is_frugal = false;
}

void zr_allocator_replay_pause(zr_allocator_t *allocator) {
    pthread_mutex_lock(&allocator->lock);
    zr_replay_t *replay = allocator->replay;
    if (replay != NULL && replay->step != 0) {
        end_step(allocator);
        replay->step = 0;
        zr_tape_restart(&replay->tape);
        replay->is_paused = replay->is_in_force && zr_replay_release(allocator);
    }
    pthread_mutex_unlock(&allocator->lock);
}

void zr_allocator_replay_statistics(zr_allocator_t *allocator,
                                    zr_replay_statistics_t *statistics_p) {
    *statistics_p = (zr_replay_statistics_t){0};
    pthread_mutex_lock(&allocator->lock);
    const zr_replay_t *replay = allocator->replay;
    if (replay != NULL) {
        *statistics_p = replay->statistics;
        bool has_plan = statistics_p->has_plan = replay->is_in_force || replay->is_paused;
        for (int i = 0; has_plan && i < ZR_REPLAY_N_TIERS; i++)
            statistics_p->plans[i] = replay->plan->summary[i];
        if (has_plan)
            statistics_p->n_segments = replay->plan->tape.n_segments;
    }
    pthread_mutex_unlock(&allocator->lock);
}

/* ---- steps that would follow ----------------------------------------------------------------- */

void zr_allocator_replay_scale(zr_allocator_t *allocator, uint32_t scale) {
    pthread_mutex_lock(&allocator->lock);
    if (allocator->replay != NULL)
        allocator->replay->scale = scale;
    pthread_mutex_unlock(&allocator->lock);
}

/* Whether the step has followed the plan, and the plan has nothing left of it. */
static bool is_at_end(const zr_replay_t *replay) {
    if (!is_followed(replay) || replay->segment + 1 != replay->plan->tape.n_segments)
        return false;
    for (size_t i = replay->at; i < replay->plan->n_events; i++) {
        uint32_t event = replay->plan->events[i];
        if ((event & 1) == 0 && is_planned(replay, event >> 1))
            return false;
    }
    return true;
}

/* What an entry reaches. One that varies and has no place is put where there is room, which depends
 * on the steps before. */
static zr_replay_reach_t reach_of(const zr_replay_made_t *plan, size_t i) {
    const zr_tape_entry_t *entry = &plan->tape.entries[i];
    if (!plan->entries[i].is_planned && entry->varies)
        return (zr_replay_reach_t){.least = UINT32_MAX};
    if (entry->most_scale == 0) /* it depends on none */
        return (zr_replay_reach_t){.most = UINT32_MAX};
    return (zr_replay_reach_t){.least = entry->least_scale, .most = entry->most_scale};
}

/* What all entries of each micro-batch reach. */
static void find_reach(const zr_replay_made_t *plan, zr_replay_reach_t *reach,
                       size_t n_micro_batches) {
    const zr_tape_t *tape = &plan->tape;
    size_t segment = 0;
    for (size_t i = 0; i < n_micro_batches; i++)
        reach[i] = (zr_replay_reach_t){.most = UINT32_MAX};
    for (size_t i = 0; i < tape->n_entries; i++) {
        while (segment + 1 < tape->n_segments && tape->segments[segment + 1].first_entry <= i)
            segment++;
        size_t micro_batch = tape->segments[segment].micro_batch;
        if (micro_batch == 0 || micro_batch > n_micro_batches)
            micro_batch = n_micro_batches;
        zr_replay_reach_t *of_all = &reach[micro_batch - 1], own = reach_of(plan, i);
        if (own.least > of_all->least)
            of_all->least = own.least;
        if (own.most < of_all->most)
            of_all->most = own.most;
    }
}

bool zr_allocator_replay_reach(zr_allocator_t *allocator, zr_replay_reach_t *reach_p,
                               size_t n_micro_batches) {
    pthread_mutex_lock(&allocator->lock);
    const zr_replay_t *replay = allocator->replay;
    bool is_known = replay != NULL && n_micro_batches > 0 && is_at_end(replay) &&
                    replay->plan->shared.cache == NULL;
    if (is_known)
        find_reach(replay->plan, reach_p, n_micro_batches);
    pthread_mutex_unlock(&allocator->lock);
    return is_known;
}
