/*
 * The oracle of replay: see replay_steps.h.
 */
#include "allocator/internal.h"
#include "tests/allocator/replay_steps.h"
#include "tests/common/test.h"

/* ---- steps --------------------------------------------------------------------------- */

static step_op_t *append(step_t *step, step_op_t op) {
    assert_true(step->n_ops < STEPS_MAX_OPS);
    step->ops[step->n_ops] = op;
    return &step->ops[step->n_ops++];
}

void step_mark(step_t *step, size_t micro_batch, size_t unit, int pass) {
    zr_mark_t mark = {.micro_batch = micro_batch, .unit = unit, .pass = pass};
    append(step, (step_op_t){.kind = STEP_MARK, .mark = mark});
}

step_op_t *step_allocate(step_t *step, int slot, size_t size_bytes, zr_lifetime_t lifetime,
                         int stream) {
    return append(step, (step_op_t){.kind = STEP_ALLOCATE,
                                    .slot = slot,
                                    .stream = stream,
                                    .size_bytes = size_bytes,
                                    .tier = ZR_TIER_DEVICE,
                                    .tag = ZR_TAG_WORKSPACE,
                                    .lifetime = lifetime});
}

void step_free(step_t *step, int slot, int stream) {
    append(step, (step_op_t){.kind = STEP_FREE, .slot = slot, .stream = stream});
}

void step_insert(step_t *step, size_t index, step_op_t op) {
    assert_true(step->n_ops < STEPS_MAX_OPS && index <= step->n_ops);
    memmove(step->ops + index + 1, step->ops + index, (step->n_ops - index) * sizeof(step->ops[0]));
    step->ops[index] = op;
    step->n_ops++;
}

void step_remove(step_t *step, size_t index) {
    assert_true(index < step->n_ops);
    step->n_ops--;
    memmove(step->ops + index, step->ops + index + 1, (step->n_ops - index) * sizeof(step->ops[0]));
}

/* ---- opening ------------------------------------------------------------------------- */

steps_t *steps_open(const steps_options_t *options) {
    steps_t *steps = calloc(1, sizeof(*steps));
    assert_non_null(steps);
    steps->options = *options;
    steps->fake = fake_open(options->granule_bytes, options->is_late);
    zr_allocator_options_t how = zr_allocator_options_default();
    how.log = fake_log(steps->fake);
    for (int tier = 0; tier < STEPS_N_TIERS; tier++)
        how.budget_bytes[tier] = options->budget_bytes;
    assert_ok(zr_allocator_create(steps->fake->device, &how, &steps->allocator));
    for (int i = 0; i < STEPS_N_STREAMS; i++)
        assert_ok(zr_stream_create(steps->fake->device, "test", &steps->streams[i]));
    return steps;
}

/* Each class is one range again: free, or unmapped. */
static void check_all_free(steps_t *steps) {
    for (int tier = 0; tier < STEPS_N_TIERS; tier++) {
        assert_ok(zr_allocator_trim(steps->allocator, (zr_tier_t)tier));
        zr_tier_statistics_t statistics = steps_memory(steps, (zr_tier_t)tier);
        assert_int_equal(statistics.n_live, 0);
        assert_int_equal(statistics.live.live, 0);
        assert_int_equal(statistics.pending.live, 0);
        assert_int_equal(statistics.reserved.live, 0);
        for (int i = 0; i < ZR_N_ARENAS; i++) {
            const zr_arena_t *arena = &steps->allocator->tiers[tier].arenas[i];
            assert_ptr_equal(arena->first, arena->last);
            assert_int_equal(arena->first->size_bytes, arena->size_bytes);
        }
    }
}

void steps_close(steps_t **steps_p) {
    steps_t *steps = *steps_p;
    while (steps->n_live > 0) {
        step_op_t op = {.kind = STEP_FREE, .slot = steps->live[0], .stream = STEPS_NO_STREAM};
        assert_ok(steps_do(steps, &op));
    }
    steps_check(steps);
    zr_allocator_replay_stop(steps->allocator);
    for (int i = 0; i < STEPS_N_STREAMS; i++)
        fake_stream_pass(steps->streams[i], SIZE_MAX);
    check_all_free(steps);
    steps_check(steps);
    for (int i = 0; i < STEPS_N_STREAMS; i++)
        zr_stream_destroy(&steps->streams[i]);
    fake_log_clear(steps->fake);
    zr_allocator_destroy(&steps->allocator);
    assert_string_equal(steps->fake->text, ""); /* no leak to tell of */
    fake_close(steps->fake);
    free(steps);
    *steps_p = NULL;
}

/* ---- checks -------------------------------------------------------------------------- */

zr_replay_statistics_t steps_replay(steps_t *steps) {
    zr_replay_statistics_t statistics;
    zr_allocator_replay_statistics(steps->allocator, &statistics);
    return statistics;
}

zr_tier_statistics_t steps_memory(steps_t *steps, zr_tier_t tier) {
    zr_tier_statistics_t statistics;
    zr_allocator_statistics(steps->allocator, tier, &statistics);
    return statistics;
}

size_t steps_n_waits(const steps_t *steps) {
    return steps->fake->n_stream_waits - steps->n_user_waits;
}

static void assert_counts(const zr_byte_count_t *actual, const zr_byte_count_t *expected) {
    assert_int_equal(actual->live, expected->live);
    assert_int_equal(actual->peak, expected->peak);
}

void steps_check_counts(steps_t *steps) {
    size_t n_calls = 0, n_moves = 0;
    for (int tier = 0; tier < STEPS_N_TIERS; tier++) {
        zr_tier_statistics_t actual = steps_memory(steps, (zr_tier_t)tier);
        const zr_tier_statistics_t *expected = &steps->expected[tier];
        assert_counts(&actual.live, &expected->live);
        for (int i = 0; i < ZR_N_TAGS; i++)
            assert_counts(&actual.by_tag[i], &expected->by_tag[i]);
        for (int i = 0; i < ZR_N_LIFETIMES; i++)
            assert_counts(&actual.by_lifetime[i], &expected->by_lifetime[i]);
        assert_int_equal(actual.n_live, expected->n_live);
        assert_int_equal(actual.n_allocations, expected->n_allocations);
        assert_int_equal(actual.reserved.live, steps->fake->mapped_bytes[tier]);
        assert_true(actual.reserved.peak <= actual.budget_bytes);
        size_t reserved = 0, live = 0;
        for (int i = 0; i < ZR_N_CLASSES; i++) {
            const zr_byte_count_t *own = &actual.by_class[i].reserved;
            reserved += own->live;
            live += actual.by_class[i].live.live;
            assert_true(own->live <= own->peak && own->peak <= actual.reserved.peak);
        }
        assert_int_equal(reserved, actual.reserved.live);
        assert_int_equal(live, actual.live.live);
        n_calls += actual.n_map_calls + actual.n_unmap_calls;
        n_moves += actual.n_move_calls;
    }
    const fake_t *fake = steps->fake;
    assert_true(fake->cannot_move || fake->n_moves == n_moves);
    assert_true(fake->cannot_move || fake->n_maps + fake->n_unmaps == n_calls);
}

void steps_reset_peaks(steps_t *steps) {
    zr_allocator_reset_peaks(steps->allocator);
    for (int tier = 0; tier < STEPS_N_TIERS; tier++) {
        zr_tier_statistics_t *expected = &steps->expected[tier];
        expected->live.peak = expected->live.live;
        for (int i = 0; i < ZR_N_TAGS; i++)
            expected->by_tag[i].peak = expected->by_tag[i].live;
        for (int i = 0; i < ZR_N_LIFETIMES; i++)
            expected->by_lifetime[i].peak = expected->by_lifetime[i].live;
    }
}

static void write_pattern(const steps_tensor_t *tensor) {
    for (size_t i = 0; i < tensor->size_bytes; i += 509)
        tensor->pointer[i] = (unsigned char)(tensor->pattern + i);
    if (tensor->size_bytes > 0)
        tensor->pointer[tensor->size_bytes - 1] = tensor->pattern;
}

static void check_pattern(const steps_tensor_t *tensor) {
    for (size_t i = 0; i + 1 < tensor->size_bytes; i += 509)
        assert_int_equal(tensor->pointer[i], (unsigned char)(tensor->pattern + i));
    if (tensor->size_bytes > 0)
        assert_int_equal(tensor->pointer[tensor->size_bytes - 1], tensor->pattern);
}

void steps_check(steps_t *steps) {
    steps_check_counts(steps);
    for (int i = 0; i < steps->n_live; i++)
        check_pattern(&steps->tensors[steps->live[i]]);
    assert_true(zr_allocator_is_valid(steps->allocator));
    assert_int_equal(steps->fake->n_violations, 0);
}

/* ---- who had an address before ---------------------------------------------------------- */

static zr_stream_t *stream_of(const steps_t *steps, int stream) {
    return stream == STEPS_NO_STREAM ? NULL : steps->streams[stream];
}

static const unsigned char *end_of(const steps_tensor_t *tensor) {
    return tensor->pointer + (tensor->size_bytes > 0 ? tensor->size_bytes : 1);
}

static bool is_behind(const steps_t *steps, const steps_extent_t *extent, int stream) {
    return fake_is_ordered(steps->fake, steps->streams[extent->stream], extent->tick,
                           stream_of(steps, stream));
}

static void check_order(const steps_t *steps, const steps_tensor_t *tensor) {
    for (size_t i = 0; i < steps->n_extents; i++) {
        const steps_extent_t *extent = &steps->extents[i];
        if (extent->begin < end_of(tensor) && tensor->pointer < extent->end &&
            !is_behind(steps, extent, tensor->stream))
            fail_msg("step %zu: %p is used by stream %d before work %zu of stream %d has passed",
                     steps->step, (void *)tensor->pointer, tensor->stream, extent->tick,
                     extent->stream);
    }
}

/* Forget what the CPU knows to have passed, and what lies inside a tensor that comes behind it. */
static void forget_extents(steps_t *steps, const steps_tensor_t *tensor, int stream) {
    size_t n = 0;
    for (size_t i = 0; i < steps->n_extents; i++) {
        const steps_extent_t *extent = &steps->extents[i];
        bool is_covered = tensor->pointer <= extent->begin && extent->end <= end_of(tensor);
        if (!is_behind(steps, extent, STEPS_NO_STREAM) &&
            !(is_covered && is_behind(steps, extent, stream)))
            steps->extents[n++] = *extent;
    }
    steps->n_extents = n;
}

static void note_extent(steps_t *steps, const steps_tensor_t *tensor, int stream, size_t tick) {
    forget_extents(steps, tensor, stream);
    assert_true(steps->n_extents < STEPS_MAX_EXTENTS);
    steps->extents[steps->n_extents++] = (steps_extent_t){
        .begin = tensor->pointer, .end = end_of(tensor), .stream = stream, .tick = tick};
}

/* ---- operations -------------------------------------------------------------------------- */

static void count_up(zr_byte_count_t *count, size_t size_bytes) {
    count->live += size_bytes;
    if (count->live > count->peak)
        count->peak = count->live;
}

static void note(steps_t *steps, uint64_t value) {
    steps->places = (steps->places ^ value) * UINT64_C(0x100000001B3);
}

static void check_new(steps_t *steps, const steps_tensor_t *tensor) {
    assert_int_equal((uintptr_t)tensor->pointer % 256, 0);
    for (int i = 0; i < steps->n_live; i++) {
        const steps_tensor_t *other = &steps->tensors[steps->live[i]];
        assert_false(other->pointer < end_of(tensor) && tensor->pointer < end_of(other));
    }
    assert_true(tensor->size_bytes == 0 ||
                fake_is_mapped(steps->fake, tensor->pointer, tensor->size_bytes));
    if (steps->options.is_late)
        check_order(steps, tensor);
}

/* What is refused for its size is refused after all else was tried. */
static void check_refusal(steps_t *steps, const step_op_t *op) {
    assert_int_equal(steps_memory(steps, op->tier).pending.live, 0);
    assert_false(steps_replay(steps).has_plan);
}

static zr_status_t allocate(steps_t *steps, const step_op_t *op) {
    steps_tensor_t *tensor = &steps->tensors[op->slot];
    assert_null(tensor->pointer);
    zr_allocation_request_t request = {.size_bytes = op->size_bytes,
                                       .tier = op->tier,
                                       .tag = op->tag,
                                       .lifetime = op->lifetime,
                                       .name = "step",
                                       .stream = stream_of(steps, op->stream)};
    void *pointer = NULL;
    zr_status_t status = zr_allocate(steps->allocator, &request, &pointer);
    if (status != ZR_OK) {
        assert_null(pointer);
        if (status == ZR_ERR_BUDGET)
            check_refusal(steps, op);
        steps->n_refused++;
        return status;
    }
    steps_tensor_t made = {.pointer = pointer,
                           .size_bytes = op->size_bytes,
                           .tier = op->tier,
                           .tag = op->tag,
                           .lifetime = op->lifetime,
                           .stream = op->stream,
                           .is_used = !op->is_idle && op->stream != STEPS_NO_STREAM,
                           .pattern = (unsigned char)(steps->n_operations * 7)};
    check_new(steps, &made);
    write_pattern(&made);
    *tensor = made;
    steps->live[steps->n_live++] = op->slot;
    if (made.is_used)
        fake_stream_queue(steps->streams[op->stream]);
    zr_tier_statistics_t *expected = &steps->expected[op->tier];
    count_up(&expected->live, op->size_bytes);
    count_up(&expected->by_tag[op->tag], op->size_bytes);
    count_up(&expected->by_lifetime[op->lifetime], op->size_bytes);
    expected->n_live++;
    expected->n_allocations++;
    note(steps, (uint64_t)op->slot);
    note(steps, (uint64_t)(uintptr_t)pointer);
    return ZR_OK;
}

/* Let one stream wait for another, as whoever uses a tensor on both does. */
static void join(steps_t *steps, int waiter, int other) {
    zr_event_t *event = NULL;
    bool fails_create = steps->fake->fail_event_create, fails = steps->fake->fail_event_record;
    bool fails_wait = steps->fake->fail_stream_waits;
    steps->fake->fail_event_create = steps->fake->fail_event_record = false;
    steps->fake->fail_stream_waits = false;
    assert_ok(zr_event_create(steps->fake->device, &event));
    assert_ok(zr_event_record(event, steps->streams[other]));
    assert_ok(zr_stream_wait(steps->streams[waiter], event));
    zr_event_destroy(&event);
    steps->n_user_waits++;
    steps->fake->fail_event_create = fails_create;
    steps->fake->fail_event_record = fails;
    steps->fake->fail_stream_waits = fails_wait;
}

/* The last use of a tensor, before its free: queued, or waited for. */
static void use_last(steps_t *steps, const steps_tensor_t *tensor, int stream) {
    if (stream == STEPS_NO_STREAM) {
        bool fails = steps->fake->fail_waits;
        steps->fake->fail_waits = false;
        if (tensor->is_used)
            assert_ok(zr_stream_synchronize(steps->streams[tensor->stream]));
        steps->fake->fail_waits = fails;
        return;
    }
    if (tensor->stream != STEPS_NO_STREAM && tensor->stream != stream)
        join(steps, stream, tensor->stream);
    size_t tick = fake_stream_queue(steps->streams[stream]);
    if (steps->options.is_late && tensor->size_bytes > 0)
        note_extent(steps, tensor, stream, tick);
}

static void give(steps_t *steps, const step_op_t *op) {
    steps_tensor_t tensor = steps->tensors[op->slot];
    if (tensor.pointer == NULL)
        return;
    check_pattern(&tensor);
    steps->tensors[op->slot].pointer = NULL;
    int i = 0;
    while (steps->live[i] != op->slot)
        i++;
    steps->live[i] = steps->live[--steps->n_live];
    zr_tier_statistics_t *expected = &steps->expected[tensor.tier];
    expected->live.live -= tensor.size_bytes;
    expected->by_tag[tensor.tag].live -= tensor.size_bytes;
    expected->by_lifetime[tensor.lifetime].live -= tensor.size_bytes;
    expected->n_live--;
    use_last(steps, &tensor, op->stream);
    void *pointer = tensor.pointer;
    zr_free(steps->allocator, &pointer, stream_of(steps, op->stream));
    assert_null(pointer);
}

zr_status_t steps_do(steps_t *steps, const step_op_t *op) {
    steps->n_operations++;
    if (op->kind == STEP_ALLOCATE)
        return allocate(steps, op);
    if (op->kind == STEP_FREE) {
        give(steps, op);
        return ZR_OK;
    }
    zr_mark_t mark = op->mark;
    mark.step = steps->step;
    zr_allocator_replay_scale(steps->allocator, op->scale);
    zr_allocator_mark(steps->allocator, &mark);
    return ZR_OK;
}

uint64_t steps_run(steps_t *steps, const step_t *step) {
    steps->step++;
    steps->places = 0;
    for (size_t i = 0; i < step->n_ops; i++)
        assert_ok(steps_do(steps, &step->ops[i]));
    steps_check(steps);
    return steps->places;
}

void steps_run_times(steps_t *steps, const step_t *step, size_t n) {
    for (size_t i = 0; i < n; i++)
        steps_run(steps, step);
}
