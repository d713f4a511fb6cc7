/*
 * Replay by plan through the public interface: a step that repeats is served by plan, without a
 * call into the device; whatever does not match is served all the same, counted, and planned
 * again; and memory passes from stream to stream in order, also where the plan was left or
 * something failed. replay_steps.c watches each step.
 */
#include "allocator/internal.h"
#include "allocator/snapshot.h"
#include "tests/allocator/replay_steps.h"
#include "tests/common/test.h"

#define GRANULE ((size_t)4096)
#define PLENTY ((size_t)4 << 20)
#define COMPUTE 0
#define COMM 1
#define UPDATE ZR_NO_UNIT

/* ---- a step of a training of two units ----------------------------------------------------- */

enum { ACT_0, ACT_1, WORK_0, WORK_1, WORK_2, WORK_3, GRAD_0, GRAD_1, BUCKET, STAGING, N_BASE };
#define EXTRA 100
#define N_ALLOCATIONS 10

static void allocate_tagged(step_t *step, int slot, size_t size_bytes, zr_lifetime_t lifetime,
                            zr_tag_t tag, int stream) {
    step_allocate(step, slot, size_bytes, lifetime, stream)->tag = tag;
}

static step_t base_step(void) {
    static step_t step;
    step.n_ops = 0;
    step_mark(&step, 1, 0, 0);
    allocate_tagged(&step, ACT_0, 10000, ZR_LIFETIME_MICRO_BATCH, ZR_TAG_ACTIVATIONS, COMPUTE);
    allocate_tagged(&step, WORK_0, 3000, ZR_LIFETIME_UNIT, ZR_TAG_WORKSPACE, COMPUTE);
    allocate_tagged(&step, STAGING, 5000, ZR_LIFETIME_UNIT, ZR_TAG_STAGING, COMM);
    step.ops[step.n_ops - 1].tier = ZR_TIER_HOST;
    step_free(&step, WORK_0, COMPUTE);
    step_free(&step, STAGING, COMM);
    step_mark(&step, 1, 1, 0);
    allocate_tagged(&step, ACT_1, 20000, ZR_LIFETIME_MICRO_BATCH, ZR_TAG_ACTIVATIONS, COMPUTE);
    allocate_tagged(&step, WORK_1, 5000, ZR_LIFETIME_UNIT, ZR_TAG_WORKSPACE, COMPUTE);
    step_free(&step, WORK_1, COMPUTE);
    step_mark(&step, 1, 1, 1);
    allocate_tagged(&step, WORK_2, 7000, ZR_LIFETIME_UNIT, ZR_TAG_WORKSPACE, COMPUTE);
    allocate_tagged(&step, GRAD_1, 4000, ZR_LIFETIME_STEP, ZR_TAG_GRADIENTS, COMPUTE);
    step_free(&step, WORK_2, COMPUTE);
    step_free(&step, ACT_1, COMPUTE);
    step_mark(&step, 1, 0, 1);
    allocate_tagged(&step, WORK_3, 9000, ZR_LIFETIME_UNIT, ZR_TAG_WORKSPACE, COMM);
    allocate_tagged(&step, GRAD_0, 6000, ZR_LIFETIME_STEP, ZR_TAG_GRADIENTS, COMPUTE);
    step_free(&step, WORK_3, COMM);
    step_free(&step, ACT_0, COMPUTE);
    step_mark(&step, 0, UPDATE, 2);
    allocate_tagged(&step, BUCKET, 8000, ZR_LIFETIME_COLLECTIVE, ZR_TAG_GRADIENT_BUCKETS, COMM);
    step_free(&step, BUCKET, COMM);
    step_free(&step, GRAD_0, COMPUTE);
    step_free(&step, GRAD_1, COMM);
    return step;
}

/* Where an operation stands. */
static size_t find(const step_t *step, step_op_kind_t kind, int slot) {
    for (size_t i = 0; i < step->n_ops; i++) {
        if (step->ops[i].kind == kind && step->ops[i].slot == slot)
            return i;
    }
    fail_msg("no such operation");
    return 0;
}

static size_t find_mark(const step_t *step, size_t segment) {
    for (size_t i = 0; i < step->n_ops; i++) {
        if (step->ops[i].kind == STEP_MARK && segment-- == 0)
            return i;
    }
    return step->n_ops;
}

/* Move an operation to before another. */
static void move_before(step_t *step, size_t from, size_t to) {
    step_op_t op = step->ops[from];
    step_remove(step, from);
    step_insert(step, to > from ? to - 1 : to, op);
}

static steps_t *open_with(bool is_late, size_t budget_bytes, size_t max_allocations) {
    steps_options_t options = {
        .granule_bytes = GRANULE, .is_late = is_late, .budget_bytes = budget_bytes};
    steps_t *steps = steps_open(&options);
    zr_replay_options_t how = zr_replay_options_default();
    how.max_allocations = max_allocations;
    assert_ok(zr_allocator_replay_start(steps->allocator, &how));
    return steps;
}

/* Nothing is scarce, not even what was ever live at once: a plan is kept by a step that left it. */
static steps_t *open_plain(bool is_late) {
    steps_t *steps = open_with(is_late, PLENTY, 0);
    steps->allocator->is_frugal = false;
    return steps;
}

/* Calls into the device that map. */
static size_t n_calls(steps_t *steps) {
    return steps->fake->n_maps + steps->fake->n_unmaps;
}

/* ---- steps that repeat -------------------------------------------------------------------- */

static void check_follows(bool is_late) {
    steps_t *steps = open_plain(is_late);
    step_t step = base_step();
    steps_run(steps, &step);
    assert_false(steps_replay(steps).has_plan);
    assert_int_equal(steps_replay(steps).n_planned, 0);
    uint64_t places = steps_run(steps, &step);
    zr_replay_statistics_t replay = steps_replay(steps);
    assert_true(replay.has_plan);
    assert_int_equal(replay.n_planned, N_ALLOCATIONS);
    assert_int_equal(replay.n_segments, 5);
    assert_int_equal(replay.plans[ZR_TIER_DEVICE].n_allocations, N_ALLOCATIONS - 1);
    assert_int_equal(replay.plans[ZR_TIER_HOST].n_allocations, 1);

    size_t calls = n_calls(steps), n_waits = steps->fake->n_waits, n_events = steps->fake->n_events;
    steps_reset_peaks(steps);
    for (int i = 0; i < 20; i++)
        assert_true(steps_run(steps, &step) == places);
    assert_int_equal(n_calls(steps), calls);
    assert_int_equal(steps->fake->n_waits, n_waits); /* the CPU waits for nothing */
    assert_int_equal(steps->fake->n_events, n_events);
    replay = steps_replay(steps);
    assert_int_equal(replay.n_steps, 21);
    assert_int_equal(replay.n_clean_steps, 20);
    assert_int_equal(replay.last_clean_step, 21);
    assert_int_equal(replay.n_plans, 1);
    assert_int_equal(replay.n_planned, 21 * N_ALLOCATIONS);
    assert_int_equal(replay.n_unplanned, 0);
    assert_int_equal(replay.n_left_out, 0);
    zr_tier_statistics_t device = steps_memory(steps, ZR_TIER_DEVICE);
    assert_true(replay.plans[ZR_TIER_DEVICE].height_bytes <= device.reserved.live);
    assert_true(device.reserved.peak < device.live.peak + N_ALLOCATIONS * 256 + GRANULE);
    steps_close(&steps);
}

TEST(test_a_step_that_repeats_is_planned) {
    check_follows(false);
    check_follows(true);
}

/* ---- steps that diverge ------------------------------------------------------------------- */

static void change_larger(step_t *step) {
    step->ops[find(step, STEP_ALLOCATE, WORK_1)].size_bytes = 5500;
}

static void change_smaller(step_t *step) {
    step->ops[find(step, STEP_ALLOCATE, ACT_1)].size_bytes = 3000;
}

static void change_tag(step_t *step) {
    step->ops[find(step, STEP_ALLOCATE, ACT_1)].tag = ZR_TAG_OTHER;
}

static void change_stream(step_t *step) {
    step->ops[find(step, STEP_ALLOCATE, ACT_1)].stream = 2;
}

static void change_to_no_stream(step_t *step) {
    step->ops[find(step, STEP_ALLOCATE, WORK_1)].stream = STEPS_NO_STREAM;
}

static void change_lifetime(step_t *step) {
    step->ops[find(step, STEP_ALLOCATE, ACT_1)].lifetime = ZR_LIFETIME_STEP;
}

static void change_tier(step_t *step) {
    step->ops[find(step, STEP_ALLOCATE, ACT_1)].tier = ZR_TIER_HOST;
}

static void change_extra(step_t *step) {
    size_t at = find(step, STEP_ALLOCATE, ACT_1);
    step_op_t op = step->ops[at];
    op.slot = EXTRA;
    op.tag = ZR_TAG_OTHER;
    step_insert(step, at, op);
    step_free(step, EXTRA, COMPUTE);
}

static void change_missing(step_t *step) {
    step_remove(step, find(step, STEP_ALLOCATE, ACT_1));
}

static void change_missing_last(step_t *step) {
    step_remove(step, find(step, STEP_ALLOCATE, BUCKET));
}

static void change_unknown_segment(step_t *step) {
    step->ops[find_mark(step, 1)].mark.unit = 77;
}

static void change_left_out_segment(step_t *step) {
    size_t from = find_mark(step, 1), to = find_mark(step, 2);
    for (size_t i = from; i < to; i++)
        step_remove(step, from);
}

static void change_order_of_segments(step_t *step) {
    size_t from = find_mark(step, 0), middle = find_mark(step, 1), to = find_mark(step, 2);
    for (size_t i = from; i < middle; i++)
        move_before(step, from, to);
}

static void change_order_within(step_t *step) {
    move_before(step, find(step, STEP_ALLOCATE, WORK_1), find(step, STEP_ALLOCATE, ACT_1));
}

static void change_late_free(step_t *step) {
    size_t to = find(step, STEP_ALLOCATE, WORK_3);
    move_before(step, find(step, STEP_FREE, WORK_1), to + 1);
}

static void change_early_free(step_t *step) {
    move_before(step, find(step, STEP_FREE, ACT_1), find(step, STEP_FREE, WORK_2));
}

static void change_free_stream(step_t *step) {
    step->ops[find(step, STEP_FREE, WORK_1)].stream = COMM;
}

static void change_free_by_strange_stream(step_t *step) {
    step->ops[find(step, STEP_FREE, WORK_1)].stream = 3;
    step->ops[find(step, STEP_FREE, ACT_1)].stream = 2;
}

static void change_free_by_none(step_t *step) {
    step->ops[find(step, STEP_FREE, WORK_1)].stream = STEPS_NO_STREAM;
}

/* Freed within the step after, by check_divergence. */
static void change_outlives(step_t *step) {
    step->ops[find(step, STEP_ALLOCATE, WORK_1)].slot = EXTRA;
    step_remove(step, find(step, STEP_FREE, WORK_1));
}

typedef struct divergence {
    const char *name;
    void (*change)(step_t *step);
    size_t n_unplanned; /* in the step that diverges */
    bool is_clean_sync, is_clean_late;
    bool blocks_plan; /* something of the plan before lives: the next one finds no empty place */
} divergence_t;

static const divergence_t divergences[] = {
    {"larger", change_larger, 1, false, false, false},
    {"smaller", change_smaller, 0, true, true, false},
    {"another tag", change_tag, 1, false, false, false},
    {"another stream", change_stream, 1, false, false, false},
    {"no stream", change_to_no_stream, 1, false, false, false},
    {"another lifetime", change_lifetime, 1, false, false, false},
    {"another tier", change_tier, 1, false, false, false},
    {"one more", change_extra, 3, false, false, false},
    {"one less", change_missing, 1, false, false, false},
    {"the last is missing", change_missing_last, 0, false, false, false},
    {"an unknown segment", change_unknown_segment, 2, false, false, false},
    {"a segment left out", change_left_out_segment, 0, false, false, false},
    {"another order of segments", change_order_of_segments, 3, false, false, false},
    {"another order in a segment", change_order_within, 2, false, false, false},
    {"a late free", change_late_free, 3, false, false, false},
    {"an early free", change_early_free, 0, true, true, false},
    {"freed behind another stream", change_free_stream, 0, true, false, false},
    {"freed behind a strange stream", change_free_by_strange_stream, 0, true, false, false},
    {"freed behind none", change_free_by_none, 0, true, false, false},
    {"outlives its step", change_outlives, 5, false, false, true},
};
#define N_DIVERGENCES N_OF(divergences)

static void check_divergence(const divergence_t *divergence, bool is_late) {
    steps_t *steps = open_plain(is_late);
    step_t step = base_step(), other = step;
    divergence->change(&other);
    steps_run_times(steps, &step, 5);
    zr_replay_statistics_t before = steps_replay(steps);
    steps_run(steps, &other);
    zr_replay_statistics_t after = steps_replay(steps);
    step_t next = step;
    step_insert(&next, find(&next, STEP_ALLOCATE, STAGING) + 1,
                (step_op_t){.kind = STEP_FREE, .slot = EXTRA, .stream = COMM});
    steps_run(steps, &next);
    zr_replay_statistics_t ended = steps_replay(steps);
    size_t n_unplanned = after.n_unplanned - before.n_unplanned;
    size_t n_made = 0;
    for (size_t i = 0; i < other.n_ops; i++)
        n_made += other.ops[i].kind == STEP_ALLOCATE;
    if (n_unplanned != divergence->n_unplanned)
        fail_msg("%s, %s: %zu allocations were not planned, not %zu", divergence->name,
                 is_late ? "late" : "synchronous", n_unplanned, divergence->n_unplanned);
    assert_int_equal(after.n_planned - before.n_planned, n_made - n_unplanned);
    bool is_clean = is_late ? divergence->is_clean_late : divergence->is_clean_sync;
    /* The step before ended at the first mark of `other`: cleanly. */
    assert_int_equal(after.n_clean_steps - before.n_clean_steps, 1);
    if ((ended.n_clean_steps > after.n_clean_steps) != is_clean)
        fail_msg("%s, %s: clean is %d", divergence->name, is_late ? "late" : "synchronous",
                 !is_clean);
    assert_int_equal(ended.n_plans, is_clean || divergence->blocks_plan ? 1 : 2);

    /* Planned again: the odd step, then the usual one. */
    steps_run_times(steps, &step, 2);
    zr_replay_statistics_t usual = steps_replay(steps);
    uint64_t places = steps_run(steps, &step);
    assert_true(steps_run(steps, &step) == places);
    assert_int_equal(steps_replay(steps).n_clean_steps, usual.n_clean_steps + 2);
    assert_int_equal(steps_replay(steps).n_unplanned, usual.n_unplanned);

    /* The odd step stays: it is learnt, too. */
    if (!divergence->blocks_plan) {
        size_t n_clean = steps_replay(steps).n_clean_steps;
        steps_run_times(steps, &other, 5); /* of which the first may be none, the last has no end */
        assert_true(steps_replay(steps).n_clean_steps >= n_clean + 4);
        assert_int_equal(steps_replay(steps).last_clean_step, steps->step - 1);
    }
    steps_close(&steps);
}

TEST(test_each_divergence) {
    for (int is_late = 0; is_late < 2; is_late++) {
        for (size_t i = 0; i < N_DIVERGENCES; i++)
            check_divergence(&divergences[i], is_late != 0);
    }
}

/* A step that changes for good is learnt in one. */
TEST(test_each_divergence_that_stays) {
    for (size_t i = 0; i < 2 * N_DIVERGENCES; i++) {
        const divergence_t *divergence = &divergences[i / 2];
        if (divergence->blocks_plan)
            continue;
        bool is_late = i % 2 != 0;
        steps_t *steps = open_plain(is_late);
        step_t step = base_step(), other = step;
        divergence->change(&other);
        steps_run_times(steps, &step, 3);
        steps_run_times(steps, &other, 4);
        zr_replay_statistics_t replay = steps_replay(steps);
        bool is_clean = is_late ? divergence->is_clean_late : divergence->is_clean_sync;
        if (replay.n_clean_steps != 4 + (size_t)is_clean)
            fail_msg("%s, %s: %zu steps were clean", divergence->name,
                     is_late ? "late" : "synchronous", replay.n_clean_steps);
        steps_close(&steps);
    }
}

static void free_extra(steps_t *steps) {
    step_op_t op = {.kind = STEP_FREE, .slot = EXTRA, .stream = COMM};
    steps_do(steps, &op);
}

/* All pairs, one after the other, with usual steps between some: whatever comes, it is served. */
TEST(test_divergences_in_a_row) {
    for (int is_late = 0; is_late < 2; is_late++) {
        steps_t *steps = open_plain(is_late != 0);
        step_t usual = base_step();
        for (size_t i = 0; i < N_DIVERGENCES * N_DIVERGENCES; i++) {
            step_t first = usual, second = usual;
            divergences[i / N_DIVERGENCES].change(&first);
            divergences[i % N_DIVERGENCES].change(&second);
            step_insert(&usual, 1 + i % usual.n_ops,
                        (step_op_t){.kind = STEP_FREE, .slot = EXTRA, .stream = COMM});
            steps_run_times(steps, &usual, 1 + i % 3);
            steps_run(steps, &first);
            free_extra(steps);
            steps_run(steps, &second);
            usual = base_step();
        }
        zr_replay_statistics_t replay = steps_replay(steps);
        assert_true(replay.n_planned > replay.n_unplanned);
        steps_close(&steps);
    }
}

/* A step that needs more than was ever live at once takes the plan's memory for it. */
TEST(test_step_that_left_gets_the_memory) {
    for (int is_late = 0; is_late < 2; is_late++) {
        steps_t *steps = open_with(is_late != 0, PLENTY, 0);
        step_t step = base_step(), other = step;
        steps_run_times(steps, &step, 3);
        change_larger(&other);
        steps_run(steps, &other);
        assert_int_equal(steps_replay(steps).n_dropped, 1);
        assert_false(steps_replay(steps).has_plan);
        zr_tier_statistics_t statistics;
        zr_allocator_statistics(steps->allocator, ZR_TIER_DEVICE, &statistics);
        assert_true(statistics.reserved.peak <=
                    statistics.live.peak +
                        2 * ZR_N_CLASSES * zr_device_info(steps->fake->device)->granule_bytes);
        steps_run_times(steps, &step, 2);
        assert_true(steps_replay(steps).has_plan);
        steps_close(&steps);
    }
}

/* ---- planning again ------------------------------------------------------------------------ */

TEST(test_patience_grows) {
    static const size_t planned_after[] = {1, 2, 3, 5, 9, 17, 33, 65, 129, 193};
    steps_t *steps = open_plain(false);
    step_t step = base_step();
    size_t n = 0;
    for (size_t i = 1; i < 200; i++) {
        step.ops[find_mark(&step, 1)].mark.unit = 100 + i; /* as no other step has it */
        steps_run(steps, &step);
        size_t n_plans = steps_replay(steps).n_plans; /* of the steps before this one */
        if (n_plans > n && planned_after[n++] != i - 1)
            fail_msg("plan %zu was made after step %zu", n, i - 1);
        assert_int_equal(n_plans, n);
    }
    assert_int_equal(n, 10);

    /* The step that was planned last comes again: patience begins anew. */
    step_t usual = step;
    usual.ops[find_mark(&usual, 1)].mark.unit = 100 + 193;
    steps_run(steps, &usual);
    step.ops[find_mark(&step, 1)].mark.unit = 7;
    steps_run_times(steps, &step, 3);
    assert_int_equal(steps_replay(steps).n_clean_steps, 2);
    assert_int_equal(steps_replay(steps).n_plans, 11);
    steps_close(&steps);
}

TEST(test_sizes_that_vary_are_enlarged) {
    steps_t *steps = open_plain(true);
    step_t step = base_step();
    step_op_t *act = &step.ops[find(&step, STEP_ALLOCATE, ACT_1)];
    step_op_t *work = &step.ops[find(&step, STEP_ALLOCATE, WORK_2)];
    static const size_t sizes[][2] = {{20000, 7000}, {30000, 6000}, {10000, 9000}, {30000, 9000}};
    for (size_t i = 0; i < 4; i++) {
        act->size_bytes = sizes[i][0];
        work->size_bytes = sizes[i][1];
        steps_run(steps, &step);
    }
    assert_int_equal(steps_replay(steps).n_clean_steps, 0);
    size_t n_plans = steps_replay(steps).n_plans;
    for (size_t i = 0; i < 8; i++) {
        act->size_bytes = 10000 + i % 3 * 10000;
        work->size_bytes = 9000 - i * 500;
        steps_run(steps, &step);
    }
    assert_int_equal(steps_replay(steps).n_clean_steps, 8);
    assert_int_equal(steps_replay(steps).n_plans, n_plans);
    steps_close(&steps);
}

/* A step of micro-batches whose tensors have these sizes. */
static step_t accumulating_step(const size_t *sizes, size_t n) {
    static step_t step;
    step.n_ops = 0;
    for (size_t i = 0; i < n; i++) {
        step_mark(&step, i + 1, 0, 0);
        step_allocate(&step, 0, sizes[i], ZR_LIFETIME_MICRO_BATCH, COMPUTE);
        step_mark(&step, i + 1, 0, 1);
        step_allocate(&step, 1, 2 * sizes[i], ZR_LIFETIME_UNIT, COMPUTE);
        step_free(&step, 1, COMPUTE);
        step_free(&step, 0, COMPUTE);
    }
    step_mark(&step, 0, UPDATE, 2);
    step_allocate(&step, 0, 500, ZR_LIFETIME_STEP, COMPUTE);
    step_free(&step, 0, COMPUTE);
    return step;
}

TEST(test_micro_batches_share_their_largest_size) {
    steps_t *steps = open_plain(false);
    static const size_t seen[][4] = {{1000, 2000, 7000, 3000}, {1000, 2000, 6000, 4000}};
    static const size_t any[][4] = {
        {7000, 7000, 7000, 7000}, {6999, 1, 2, 3}, {1, 2, 3, 7000}, {5000, 6000, 7000, 1}};
    for (size_t i = 0; i < 2; i++) {
        step_t step = accumulating_step(seen[i], 4);
        steps_run(steps, &step);
    }
    for (size_t i = 0; i < 4; i++) {
        step_t step = accumulating_step(any[i], 4);
        steps_run(steps, &step);
        steps_run(steps, &step);
    }
    zr_replay_statistics_t replay = steps_replay(steps);
    assert_int_equal(replay.n_plans, 2);
    assert_int_equal(replay.n_clean_steps, 7); /* all from the third on that have ended */
    assert_int_equal(replay.plans[ZR_TIER_DEVICE].height_bytes, 7168 + 14080);
    steps_close(&steps);
}

#define FEW 5

/* A step of two micro-batches. Those of a small scale need something that others do not. */
static uint64_t run_scales(steps_t *steps, uint32_t first, uint32_t second) {
    const uint32_t scales[2] = {first, second};
    const size_t sizes[2] = {100 * (size_t)first, 100 * (size_t)second};
    step_t step = accumulating_step(sizes, 2);
    for (size_t i = 2; i-- > 0;) {
        size_t mark = 0;
        for (size_t k = step.n_ops; k-- > 0;)
            if (step.ops[k].kind == STEP_MARK && step.ops[k].mark.micro_batch == i + 1) {
                step.ops[k].scale = scales[i];
                mark = k;
            }
        if (scales[i] > FEW)
            continue;
        step_op_t more = {.kind = STEP_ALLOCATE, .slot = EXTRA, .size_bytes = 700};
        step_insert(&step, mark + 2, (step_op_t){.kind = STEP_FREE, .slot = EXTRA});
        more.lifetime = ZR_LIFETIME_COLLECTIVE;
        step_insert(&step, mark + 2, more);
    }
    return steps_run(steps, &step);
}

static void expect_reach(steps_t *steps, uint32_t least, uint32_t most, uint32_t second_least,
                         uint32_t second_most) {
    zr_replay_reach_t reach[2];
    assert_true(zr_allocator_replay_reach(steps->allocator, reach, 2));
    assert_int_equal(reach[0].least, least);
    assert_int_equal(reach[0].most, most);
    assert_int_equal(reach[1].least, second_least);
    assert_int_equal(reach[1].most, second_most);
}

static void expect_no_reach(steps_t *steps) {
    zr_replay_reach_t reach[2];
    assert_false(zr_allocator_replay_reach(steps->allocator, reach, 2));
}

TEST(test_what_would_follow_is_known) {
    for (int is_late = 0; is_late < 2; is_late++) {
        steps_t *steps = open_plain(is_late != 0);
        expect_no_reach(steps);
        run_scales(steps, 10, 20);
        expect_no_reach(steps);
        run_scales(steps, 10, 20);
        expect_reach(steps, 10, 10, 20, 20);
        run_scales(steps, 8, 15);
        expect_reach(steps, 8, 10, 15, 20);
        run_scales(steps, 30, 12); /* leaves it; both have the places of either in the next plan */
        expect_no_reach(steps);
        run_scales(steps, 9, 9);
        expect_reach(steps, 8, 30, 8, 30);
        size_t n_clean = steps_replay(steps).n_clean_steps;
        run_scales(steps, 30, 8);
        run_scales(steps, 8, 30);
        expect_reach(steps, 8, 30, 8, 30);
        run_scales(steps, 3, 20); /* a plan of the other kind has forgotten them */
        assert_int_equal(steps_replay(steps).n_clean_steps, n_clean + 3);
        expect_no_reach(steps);
        run_scales(steps, 3, 20);
        expect_reach(steps, 3, 3, 20, 20);
        steps_close(&steps);
    }
}

/* A micro-batch of a scale, and a tensor more behind an operation of the step. */
static void run_with_more(steps_t *steps, uint32_t scale, size_t behind, size_t size_bytes,
                          int stream) {
    const size_t size = 100 * (size_t)scale;
    step_op_t more = {.kind = STEP_ALLOCATE, .slot = EXTRA, .stream = stream};
    step_t step = accumulating_step(&size, 1);
    step.ops[0].scale = scale;
    step_insert(&step, behind + 1, (step_op_t){.kind = STEP_FREE, .slot = EXTRA, .stream = stream});
    more.size_bytes = size_bytes;
    more.lifetime = ZR_LIFETIME_UNIT;
    step_insert(&step, behind + 1, more);
    steps_run(steps, &step);
}

static void expect_any_reach(steps_t *steps, bool is_any) {
    zr_replay_reach_t reach;
    assert_true(zr_allocator_replay_reach(steps->allocator, &reach, 1));
    assert_true(is_any ? reach.least == 10 && reach.most == 20 : reach.least > reach.most);
}

/* On a late device what no stream uses has no place. Where its size varies, what it finds depends
 * on all steps before; also where it is no micro-batch's, and has no scale. */
TEST(test_what_has_no_place_may_not_vary) {
    static const uint32_t scales[3] = {10, 20, 15};
    static const size_t of_micro_batch = 0, of_update = 6;
    for (int i = 0; i < 4; i++) {
        bool varies = i % 2 != 0;
        steps_t *steps = open_plain(true);
        for (size_t k = 0; k < 3; k++)
            run_with_more(steps, scales[k], i < 2 ? of_micro_batch : of_update,
                          varies ? 100 * (size_t)scales[k] : 2000, STEPS_NO_STREAM);
        expect_any_reach(steps, !varies);
        steps_close(&steps);
    }
}

/* What has varied while it had a place, and then has none, because it outlives its step. */
TEST(test_what_had_a_place_may_not_vary_without) {
    static const uint32_t scales[6] = {20, 10, 15, 20, 20, 20};
    for (int varies = 0; varies < 2; varies++) {
        steps_t *steps = open_plain(false);
        for (size_t i = 0; i < 6; i++) {
            const size_t size = 100 * (size_t)scales[i];
            step_t step = accumulating_step(&size, 1);
            step_op_t end = {.kind = STEP_FREE, .slot = EXTRA, .stream = COMPUTE};
            step_op_t begin = {.kind = STEP_ALLOCATE, .slot = EXTRA, .stream = COMPUTE};
            begin.size_bytes = varies ? size : 2000;
            begin.lifetime = ZR_LIFETIME_STEP;
            step.ops[0].scale = scales[i];
            if (i < 2)
                step_insert(&step, 1, end);
            step_insert(&step, 1, begin);
            if (i > 2)
                step_insert(&step, 1, end); /* of the step before */
            steps_run(steps, &step);
        }
        expect_any_reach(steps, !varies);
        steps_close(&steps);
    }
}

TEST(test_too_many_allocations_are_said_once) {
    steps_t *steps = open_with(true, PLENTY, N_ALLOCATIONS - 1);
    step_t step = base_step();
    steps_run_times(steps, &step, 6);
    assert_int_equal(steps->fake->n_logged[ZR_LOG_WARNING], 1);
    assert_has(steps->fake->text, "max_allocations");
    assert_false(steps_replay(steps).has_plan);
    steps_close(&steps);
    steps = open_with(true, PLENTY, N_ALLOCATIONS);
    steps_run_times(steps, &step, 6);
    assert_int_equal(steps->fake->n_logged[ZR_LOG_WARNING], 0);
    assert_int_equal(steps_replay(steps).n_clean_steps, 4);
    steps_close(&steps);
}

/* ---- what is left out ----------------------------------------------------------------------- */

TEST(test_what_outlives_its_step_is_left_out) {
    for (int is_late = 0; is_late < 2; is_late++) {
        steps_t *steps = open_plain(is_late != 0);
        step_t step = base_step();
        /* Freed by the step after; and one that no stream uses. */
        step_insert(&step, 1, (step_op_t){.kind = STEP_FREE, .slot = EXTRA, .stream = COMM});
        step_allocate(&step, EXTRA, 3000, ZR_LIFETIME_STEP, COMPUTE);
        step_allocate(&step, EXTRA + 1, 2000, ZR_LIFETIME_UNIT, STEPS_NO_STREAM);
        step_free(&step, EXTRA + 1, STEPS_NO_STREAM);
        steps_run_times(steps, &step, 6);
        zr_replay_statistics_t replay = steps_replay(steps);
        assert_int_equal(replay.n_clean_steps, 4);
        assert_int_equal(replay.n_unplanned, 0);
        assert_int_equal(replay.n_left_out, 5 * (is_late ? 2 : 1));
        assert_int_equal(replay.n_planned, 5 * (N_ALLOCATIONS + (is_late ? 0 : 1)));
        steps_close(&steps);
    }
}

TEST(test_empty_and_persistent_ones_are_not_its_business) {
    steps_t *steps = open_plain(true);
    step_t step = base_step();
    steps_run_times(steps, &step, 2);
    for (int i = 0; i < 4; i++) {
        step_t other = step;
        step_insert(&other, 3,
                    (step_op_t){.kind = STEP_ALLOCATE,
                                .slot = EXTRA + i,
                                .size_bytes = 5000,
                                .lifetime = ZR_LIFETIME_PERSISTENT,
                                .stream = COMPUTE});
        step_allocate(&other, EXTRA + 10, 0, ZR_LIFETIME_UNIT, COMPUTE);
        step_free(&other, EXTRA + 10, COMM);
        steps_run(steps, &other);
    }
    steps_run(steps, &step);
    assert_int_equal(steps_replay(steps).n_clean_steps, 5);
    assert_int_equal(steps_replay(steps).n_left_out, 0);
    steps_close(&steps);
}

/* A last segment without allocations is one all the same. */
TEST(test_a_step_that_ends_early_is_not_clean) {
    steps_t *steps = open_plain(false);
    step_t step = base_step(), longer = step;
    step_mark(&longer, 0, UPDATE, 3);
    steps_run_times(steps, &longer, 3);
    assert_int_equal(steps_replay(steps).n_clean_steps, 1);
    steps_run(steps, &step);
    steps_run(steps, &step);
    assert_int_equal(steps_replay(steps).n_clean_steps, 2);
    steps_run(steps, &step);
    assert_int_equal(steps_replay(steps).n_clean_steps, 3);
    steps_close(&steps);
}

/* Sizes are enlarged only between steps that do the same. */
TEST(test_other_steps_do_not_enlarge_each_other) {
    steps_t *steps = open_plain(false);
    step_t first = {.n_ops = 0}, second;
    step_mark(&first, 1, 0, 0);
    allocate_tagged(&first, 0, 9000, ZR_LIFETIME_UNIT, ZR_TAG_WORKSPACE, COMPUTE);
    allocate_tagged(&first, 1, 1000, ZR_LIFETIME_UNIT, ZR_TAG_OTHER, COMPUTE);
    step_free(&first, 0, COMPUTE);
    step_free(&first, 1, COMPUTE);
    second = first;
    second.ops[1] = first.ops[2];
    second.ops[2] = first.ops[1];
    for (int i = 0; i < 2; i++) {
        steps_run_times(steps, &first, 3);
        steps_run_times(steps, &second, 3);
        assert_int_equal(steps_replay(steps).plans[ZR_TIER_DEVICE].height_bytes, 9216 + 1024);
    }
    steps_close(&steps);
}

/* ---- stopping and starting ------------------------------------------------------------------ */

static void do_part(steps_t *steps, const step_t *step, size_t from, size_t to) {
    for (size_t i = from; i < to; i++)
        assert_ok(steps_do(steps, &step->ops[i]));
    steps_check(steps);
}

/* Stop, or stop and start, at every place of a step, in the first, second and later steps. */
/* What comes between steps, like an evaluation, has the plan's memory and is no part of any step:
 * it maps nothing more, and the steps behind it follow the plan at the same places. */
TEST(test_what_comes_between_steps_has_the_memory) {
    for (int is_late = 0; is_late < 2; is_late++) {
        steps_t *steps = open_with(is_late != 0, PLENTY, 0);
        step_t step = base_step(), between = {.n_ops = 0};
        step_allocate(&between, EXTRA, 20000, ZR_LIFETIME_MICRO_BATCH, COMPUTE);
        step_allocate(&between, EXTRA + 1, 9000, ZR_LIFETIME_UNIT, COMM);
        step_free(&between, EXTRA + 1, COMPUTE);
        step_free(&between, EXTRA, COMPUTE);
        zr_allocator_replay_pause(steps->allocator); /* before the first, there is nothing */
        steps_run(steps, &step);
        zr_allocator_replay_pause(steps->allocator);
        assert_true(steps_replay(steps).has_plan);
        uint64_t places = steps_run(steps, &step);
        size_t reserved = steps_memory(steps, ZR_TIER_DEVICE).reserved.peak;
        for (size_t i = 0; i < 6; i++) {
            zr_allocator_replay_pause(steps->allocator);
            for (size_t k = 0; k < 2; k++) {
                do_part(steps, &between, 0, between.n_ops);
                zr_allocator_replay_pause(steps->allocator);
            }
            assert_true(steps_replay(steps).has_plan);
            assert_true(steps_run(steps, &step) == places);
            assert_true(steps_run(steps, &step) == places);
        }
        zr_replay_statistics_t replay = steps_replay(steps);
        assert_int_equal(steps_memory(steps, ZR_TIER_DEVICE).reserved.peak, reserved);
        assert_int_equal(replay.n_plans, 1);
        assert_int_equal(replay.n_planned, 13 * N_ALLOCATIONS);
        assert_int_equal(replay.n_unplanned + replay.n_left_out, 0);
        assert_int_equal(replay.n_clean_steps, 12);
        steps_close(&steps);
    }
}

/* What outlives a step stays where it is while the plan gives way, and the plan comes back when it
 * is gone. */
TEST(test_what_lives_between_steps_stays) {
    steps_t *steps = open_with(false, PLENTY, 0);
    step_t step = base_step(), longer = step;
    step_remove(&longer, find(&longer, STEP_FREE, GRAD_1));
    steps_run_times(steps, &step, 3);
    steps->step++;
    do_part(steps, &longer, 0, longer.n_ops);
    zr_allocator_replay_pause(steps->allocator);
    steps_check(steps);
    step_op_t gone = {.kind = STEP_FREE, .slot = GRAD_1, .stream = COMM};
    assert_ok(steps_do(steps, &gone));
    steps_run_times(steps, &step, 4);
    zr_replay_statistics_t replay = steps_replay(steps);
    assert_true(replay.has_plan);
    assert_int_equal(replay.last_clean_step, steps->step - 1);
    steps_close(&steps);
}

TEST(test_stop_and_start_anywhere) {
    step_t step = base_step();
    for (size_t at = 0; at < 3 * step.n_ops; at++) {
        size_t n_before = at / step.n_ops, middle = at % step.n_ops;
        steps_t *steps = open_plain(at % 2 == 0);
        steps_run_times(steps, &step, n_before);
        steps->step++;
        do_part(steps, &step, 0, middle);
        assert_int_equal(zr_allocator_replay_start(steps->allocator, NULL), ZR_ERR_STATE);
        zr_allocator_replay_stop(steps->allocator);
        steps_check(steps);
        assert_false(steps_replay(steps).is_on);
        zr_allocator_replay_stop(steps->allocator); /* nothing happens */
        if (at % 3 == 0) {
            do_part(steps, &step, middle, step.n_ops);
            steps_run(steps, &step);
        }
        assert_ok(zr_allocator_replay_start(steps->allocator, NULL));
        if (at % 3 == 1)
            do_part(steps, &step, middle, step.n_ops);
        for (size_t i = 0; at % 3 == 2 && i < N_BASE; i++) {
            /* What is live from before is freed in a step of the new replay. */
            if (i == 0)
                steps_do(steps, &step.ops[0]);
            step_op_t op = {.kind = STEP_FREE, .slot = (int)i, .stream = COMPUTE};
            steps_do(steps, &op);
        }
        steps_run_times(steps, &step, 5);
        assert_true(steps_replay(steps).n_clean_steps >= 2);
        steps_close(&steps);
    }
}

TEST(test_leaks_of_planned_memory_are_told) {
    for (int is_late = 0; is_late < 2; is_late++) {
        steps_t *steps = open_plain(is_late != 0);
        step_t step = base_step();
        steps_run_times(steps, &step, 3);
        steps->step++;
        do_part(steps, &step, 0, find_mark(&step, 2));
        assert_int_equal(steps->n_live, 2); /* the activations, by plan */
        assert_int_equal(steps_memory(steps, ZR_TIER_DEVICE).by_class[ZR_CLASS_PLANNED].live.live,
                         30000);
        zr_allocator_destroy(&steps->allocator);
        assert_has(steps->fake->text, "activations");
        for (int i = 0; i < STEPS_N_STREAMS; i++)
            zr_stream_destroy(&steps->streams[i]);
        fake_close(steps->fake);
        free(steps);
    }
}

/* ---- budgets -------------------------------------------------------------------------------- */

static step_op_t persistent(int slot, size_t size_bytes) {
    return (step_op_t){.kind = STEP_ALLOCATE,
                       .slot = slot,
                       .size_bytes = size_bytes,
                       .tag = ZR_TAG_PARAMETERS,
                       .lifetime = ZR_LIFETIME_PERSISTENT,
                       .stream = STEPS_NO_STREAM};
}

/* In the middle of a step, at each place, something comes that needs the plan's memory. */
TEST(test_a_plan_gives_way) {
    step_t step = base_step();
    size_t n_dropped = 0;
    for (size_t at = 0; at < 2 * step.n_ops; at++) {
        steps_t *steps = open_with(at % 2 == 0, 24 * GRANULE, 0);
        size_t middle = at / 2;
        steps_run_times(steps, &step, 3);
        steps->step++;
        do_part(steps, &step, 0, middle);
        step_op_t large = persistent(EXTRA, 23 * GRANULE - steps_memory(steps, 0).live.live -
                                                (size_t)steps->n_live * GRANULE);
        zr_status_t status = steps_do(steps, &large);
        assert_true(status == ZR_OK || status == ZR_ERR_BUDGET);
        steps_check(steps);
        n_dropped += steps_replay(steps).n_dropped;
        assert_int_equal(steps_replay(steps).has_plan, steps_replay(steps).n_dropped == 0);
        step_op_t gone = {.kind = STEP_FREE, .slot = EXTRA, .stream = COMM};
        steps_do(steps, &gone);
        do_part(steps, &step, middle, step.n_ops);
        steps_run_times(steps, &step, 6);
        zr_replay_statistics_t replay = steps_replay(steps);
        assert_true(replay.has_plan);
        assert_int_equal(replay.last_clean_step, steps->step - 1);
        assert_true(replay.n_plans <= 2); /* of whole steps alone */
        steps_close(&steps);
    }
    assert_true(n_dropped > step.n_ops);
}

/* A step that has left its plan gets the plan's memory; what is live then stays known. */
TEST(test_what_a_dropped_plan_leaves_is_learnt) {
    for (int is_late = 0; is_late < 2; is_late++) {
        steps_t *steps = open_with(is_late != 0, PLENTY, 0);
        step_t step = base_step(), other = step;
        other.ops[find(&other, STEP_ALLOCATE, WORK_1)].size_bytes = 20 * GRANULE;
        steps_run_times(steps, &step, 3);
        steps_run_times(steps, &other, 4);
        zr_replay_statistics_t replay = steps_replay(steps);
        assert_int_equal(replay.n_dropped, 1);
        assert_int_equal(replay.n_left_out, 0);
        assert_int_equal(replay.last_clean_step, steps->step - 1);
        steps_close(&steps);
    }
}

/* Every second of many tensors lives when their plan is dropped: each needs blocks of its own. */
TEST(test_many_live_when_a_plan_is_dropped) {
    enum { N = 12000 };
    static void *pointers[N];
    steps_t *steps = open_with(false, (size_t)16 << 20, 0);
    zr_allocation_request_t request = {
        .size_bytes = 300, .tag = ZR_TAG_OTHER, .lifetime = ZR_LIFETIME_UNIT};
    for (size_t step = 1; step <= 3; step++) {
        zr_allocator_mark(steps->allocator, &(zr_mark_t){.step = step, .unit = 1});
        for (int i = 0; i < N; i++)
            assert_ok(zr_allocate(steps->allocator, &request, &pointers[i]));
        for (int i = 0; i < N; i += 2)
            zr_free(steps->allocator, &pointers[i], NULL);
        if (step == 3) {
            assert_int_equal(steps_replay(steps).n_planned, 2 * N);
            zr_allocator_replay_stop(steps->allocator);
            assert_true(zr_allocator_is_valid(steps->allocator));
        }
        for (int i = 1; i < N; i += 2)
            zr_free(steps->allocator, &pointers[i], NULL);
    }
    steps->expected[0].n_allocations = 3 * N;
    steps->expected[0].live.peak = steps->expected[0].by_tag[ZR_TAG_OTHER].peak =
        steps->expected[0].by_lifetime[ZR_LIFETIME_UNIT].peak = 300 * (size_t)N;
    steps_close(&steps);
}

TEST(test_without_room_for_a_plan_it_goes_on_without) {
    for (int is_late = 0; is_late < 2; is_late++) {
        steps_t *steps = open_with(is_late != 0, 24 * GRANULE, 0);
        step_op_t large = persistent(EXTRA, 14 * GRANULE);
        assert_ok(steps_do(steps, &large));
        step_t step = base_step();
        /* Without a plan, granules are mapped where they are needed; a plan needs all at once. */
        step_t small = step;
        for (size_t i = 0; i < small.n_ops; i++)
            small.ops[i].size_bytes /= 2;
        steps_run_times(steps, &small, 20);
        assert_int_equal(steps_replay(steps).n_steps, 19);
        step_op_t gone = {.kind = STEP_FREE, .slot = EXTRA, .stream = STEPS_NO_STREAM};
        steps_do(steps, &gone);
        steps_run_times(steps, &small, 100);
        assert_true(steps_replay(steps).has_plan);
        assert_int_equal(steps_replay(steps).last_clean_step, steps->step - 1);
        steps_close(&steps);
    }
}

TEST(test_each_map_call_fails) {
    step_t step = base_step(), other = step;
    change_larger(&other);
    size_t n = 1;
    for (bool failed = true; failed; n++) {
        steps_t *steps = open_plain(n % 2 == 0);
        steps->fake->fail_map_at = n;
        for (int i = 0; i < 12; i++) {
            const step_t *now = i == 4 || i == 8 ? &other : &step;
            steps->step++;
            for (size_t k = 0; k < now->n_ops; k++) {
                zr_status_t status = steps_do(steps, &now->ops[k]);
                assert_true(status == ZR_OK || status == ZR_ERR_BUDGET);
            }
            steps_check(steps);
        }
        failed = steps->fake->fail_map_at == 0;
        assert_int_equal(steps_replay(steps).last_clean_step, 11);
        steps_close(&steps);
    }
    assert_true(n > 8);
}

/* ---- recording ------------------------------------------------------------------------------ */

/* Lives of a recording that began with n_live and then saw n_allocations. */
static void check_recording(steps_t *steps, size_t n_live, size_t n_made, size_t peak) {
    zr_recording_t *recording = NULL;
    zr_recording_info_t info;
    assert_ok(zr_allocator_record_stop(steps->allocator, &recording));
    zr_recording_info(recording, &info);
    assert_true(info.is_complete);
    assert_int_equal(info.n_lives, n_live + n_made);
    size_t n_found = 0, most = 0;
    for (size_t i = 0; i < info.n_lives; i++) {
        zr_life_t life, other;
        zr_recording_life(recording, i, &life);
        n_found += life.lower == 0;
        assert_true(life.lower < life.upper);
        size_t live = 0;
        for (size_t k = 0; k < info.n_lives; k++) {
            zr_recording_life(recording, k, &other);
            if (other.tier == ZR_TIER_DEVICE && other.lower <= life.lower &&
                life.lower < other.upper)
                live += other.size_bytes;
        }
        most = live > most ? live : most;
    }
    assert_int_equal(n_found, n_live);
    assert_int_equal(most, peak);
    static const char *const paths[] = {"replay.csv", "replay.json", "replay.pickle"};
    zr_log_t log = fake_log(steps->fake);
    for (int i = 0; i < 3; i++) {
        assert_ok(zr_snapshot_save(recording, paths[i], &log));
        remove(paths[i]);
    }
    zr_recording_destroy(&recording);
}

/* A recording begins and ends at every place of a step that is served by plan. */
TEST(test_recordings_see_planned_memory) {
    step_t step = base_step();
    for (size_t at = 0; at < step.n_ops; at++) {
        steps_t *steps = open_plain(at % 2 != 0);
        steps_run_times(steps, &step, 3);
        steps->step++;
        do_part(steps, &step, 0, at);
        size_t n_live = (size_t)steps->n_live;
        assert_ok(zr_allocator_record_start(steps->allocator, 0));
        zr_allocator_reset_peaks(steps->allocator);
        steps_memory(steps, ZR_TIER_DEVICE);
        for (int tier = 0; tier < STEPS_N_TIERS; tier++) {
            zr_tier_statistics_t *expected = &steps->expected[tier];
            expected->live.peak = expected->live.live;
            for (int i = 0; i < ZR_N_TAGS; i++)
                expected->by_tag[i].peak = expected->by_tag[i].live;
            for (int i = 0; i < ZR_N_LIFETIMES; i++)
                expected->by_lifetime[i].peak = expected->by_lifetime[i].live;
        }
        if (at % 4 == 0)
            zr_allocator_replay_stop(steps->allocator); /* its lives go on */
        size_t before = steps_memory(steps, 0).n_allocations + steps_memory(steps, 1).n_allocations;
        do_part(steps, &step, at, step.n_ops);
        if (at % 4 == 1)
            assert_ok(zr_allocator_record_start(steps->allocator, 0));
        if (at % 4 == 1) {
            n_live = (size_t)steps->n_live;
            before = steps_memory(steps, 0).n_allocations + steps_memory(steps, 1).n_allocations;
        }
        steps->step++;
        do_part(steps, &step, 0, at);
        size_t n_made =
            steps_memory(steps, 0).n_allocations + steps_memory(steps, 1).n_allocations - before;
        size_t peak = steps_memory(steps, ZR_TIER_DEVICE).live.peak;
        if (at % 2 == 0) /* on a late device, what is pending lives on in a recording */
            check_recording(steps, n_live, n_made, peak);
        steps_close(&steps);
    }
}

/* ---- streams that are late ------------------------------------------------------------------ */

/* How many waits a clean step queues; the events there are then. */
static size_t waits_of(const step_t *step, size_t *n_events_p) {
    steps_t *steps = open_plain(true);
    steps_run_times(steps, step, 4);
    size_t n_waits = steps_n_waits(steps);
    steps_run(steps, step);
    n_waits = steps_n_waits(steps) - n_waits;
    assert_int_equal(steps_replay(steps).n_clean_steps, 3);
    *n_events_p = steps->fake->n_events;
    steps_close(&steps);
    return n_waits;
}

TEST(test_no_more_waits_than_needed) {
    step_t step = {.n_ops = 0};
    size_t n_events = 0;
    /* One stream waits for nobody. */
    step_mark(&step, 1, 0, 0);
    for (int i = 0; i < 5; i++) {
        step_allocate(&step, i, 5000, ZR_LIFETIME_UNIT, COMPUTE);
        step_free(&step, i, COMPUTE);
    }
    assert_int_equal(waits_of(&step, &n_events), 0);
    assert_int_equal(n_events, 5 + ZR_REPLAY_N_RECORDS); /* the first step's frees, and one fence */
    /* The other comes second, at the same place: one event, and nothing of the step before. */
    step_allocate(&step, 5, 5000, ZR_LIFETIME_UNIT, COMM);
    step_free(&step, 5, COMM);
    assert_int_equal(waits_of(&step, &n_events), 2); /* and the first waits for the step before */
    /* Handed over by the caller: nothing more. */
    step_allocate(&step, 6, 5000, ZR_LIFETIME_UNIT, COMM);
    step_free(&step, 6, COMPUTE);
    step_allocate(&step, 7, 5000, ZR_LIFETIME_UNIT, COMPUTE);
    step_free(&step, 7, COMPUTE);
    assert_int_equal(waits_of(&step, &n_events), 2);
}

/* What another stream than compute frees is kept for the segment after, and no longer. */
TEST(test_what_others_free_is_kept_for_a_segment) {
    for (int has_compute = 0; has_compute < 2; has_compute++) {
        steps_options_t options = {.granule_bytes = GRANULE, .is_late = true};
        options.budget_bytes = PLENTY;
        steps_t *steps = steps_open(&options);
        zr_replay_options_t how = zr_replay_options_default();
        how.compute = has_compute ? steps->streams[COMPUTE] : NULL;
        assert_ok(zr_allocator_replay_start(steps->allocator, &how));
        step_t step = {.n_ops = 0};
        for (int i = 0; i < 6; i++) {
            step_mark(&step, 1, (size_t)i, 0);
            step_allocate(&step, i, 5120, ZR_LIFETIME_UNIT, i == 0 ? COMM : COMPUTE);
            step_free(&step, i, i == 0 ? COMM : COMPUTE);
        }
        steps_run_times(steps, &step, 4);
        assert_int_equal(steps_replay(steps).n_clean_steps, 2);
        assert_int_equal(steps_replay(steps).plans[ZR_TIER_DEVICE].height_bytes,
                         has_compute ? 2 * 5120 : 5120);
        steps_close(&steps);
    }
}

/* Two streams have a tensor each, and then one has another: as large as the other stream's was, or
 * as its own. Whether its place waits for the other stream. */
static bool waits_behind(bool is_of_other, bool is_as_long) {
    steps_options_t options = {.granule_bytes = GRANULE, .is_late = true, .budget_bytes = PLENTY};
    steps_t *steps = steps_open(&options);
    zr_replay_options_t how = zr_replay_options_default();
    how.is_as_long = is_as_long;
    assert_ok(zr_allocator_replay_start(steps->allocator, &how));
    step_t step = {.n_ops = 0};
    step_mark(&step, 1, 0, 0);
    step_allocate(&step, 0, 2560, ZR_LIFETIME_UNIT, COMPUTE);
    step_allocate(&step, 1, is_of_other ? 5120 : 1024, ZR_LIFETIME_UNIT, COMM);
    step_free(&step, 1, COMM);
    step_free(&step, 0, COMPUTE);
    step_allocate(&step, 2, is_of_other ? 5120 : 2560, ZR_LIFETIME_UNIT, COMPUTE);
    step_free(&step, 2, COMPUTE);
    steps_run_times(steps, &step, 4);
    assert_int_equal(steps_replay(steps).n_clean_steps, 2);
    assert_int_equal(steps_replay(steps).plans[ZR_TIER_DEVICE].height_bytes,
                     2560 + (is_of_other ? 5120 : 1024));
    bool waits = steps->allocator->replay->plan->entries[2].since[COMM] > 0;
    steps_close(&steps);
    return waits;
}

/* Who waits for whom in a long step, or in one that stands for it, does not depend on where. */
TEST(test_a_long_step_waits_alike_wherever_places_are) {
    assert_false(waits_behind(false, false));
    assert_true(waits_behind(true, false));
    assert_true(waits_behind(false, true));
    assert_true(waits_behind(true, true));
}

/* Far more is freed and waited for, in host memory, between two tensors of one place than a stream
 * has records. */
TEST(test_a_place_waits_for_what_was_freed_long_ago) {
    enum { N_BETWEEN = 200 };
    steps_t *steps = open_plain(true);
    step_t step = {.n_ops = 0};
    step_mark(&step, 1, 0, 0);
    step_allocate(&step, 0, 5120, ZR_LIFETIME_UNIT, COMPUTE);
    step_free(&step, 0, COMPUTE);
    for (int i = 0; i < N_BETWEEN; i++)
        for (int stream = COMPUTE; stream <= COMM; stream++) {
            step_allocate(&step, 1, 1024, ZR_LIFETIME_UNIT, stream)->tier = ZR_TIER_HOST;
            step_free(&step, 1, stream);
        }
    step_allocate(&step, 2, 5120, ZR_LIFETIME_UNIT, 2);
    step_free(&step, 2, 2);
    steps_run_times(steps, &step, 6);
    assert_int_equal(steps_replay(steps).n_clean_steps, 4);
    const zr_replay_made_t *plan = steps->allocator->replay->plan;
    assert_int_equal(plan->entries[plan->n_entries - 1].since[COMPUTE], N_BETWEEN + 1);
    steps_close(&steps);
}

/* Memory that one stream has used, given to a tensor that nobody uses, passes to a third. */
TEST(test_what_was_never_used_hides_nobody) {
    for (int others = 0; others < 2; others++) {
        steps_t *steps = open_plain(true);
        step_t step = {.n_ops = 0};
        step_mark(&step, 1, 0, 0);
        if (others == 0) {
            step_allocate(&step, 0, 5000, ZR_LIFETIME_UNIT, 2);
            step_free(&step, 0, 2);
        }
        step_allocate(&step, 1, 5000, ZR_LIFETIME_UNIT, COMPUTE)->is_idle = true;
        step_free(&step, 1, STEPS_NO_STREAM);
        step_allocate(&step, 2, 5000, ZR_LIFETIME_UNIT, COMM);
        step_free(&step, 2, COMM);
        if (others == 1) {
            step_allocate(&step, 0, 5000, ZR_LIFETIME_UNIT, 2);
            step_free(&step, 0, 2);
        }
        steps_run_times(steps, &step, 6);
        assert_int_equal(steps_replay(steps).n_clean_steps, 4);
        steps_close(&steps);
    }
}

/* A tensor of the step before is freed before this one allocates: its place waits for that. */
TEST(test_a_late_free_is_waited_for_in_the_next_step) {
    steps_t *steps = open_plain(true);
    step_t step = {.n_ops = 0};
    step_mark(&step, 1, 0, 0);
    step_allocate(&step, 0, 5000, ZR_LIFETIME_UNIT, COMPUTE);
    step_free(&step, 0, COMPUTE);
    step_mark(&step, 1, 1, 0);
    step_allocate(&step, 1, 5000, ZR_LIFETIME_UNIT, COMM);
    step_free(&step, 1, COMM);
    steps_run_times(steps, &step, 3);
    step_t first = step, second = step;
    step_remove(&first, find(&first, STEP_FREE, 1));
    step_insert(&second, 1, (step_op_t){.kind = STEP_FREE, .slot = 1, .stream = COMM});
    for (int i = 0; i < 3; i++) {
        steps_run(steps, &first);
        steps_run(steps, &second);
        steps_run_times(steps, &step, 3);
    }
    assert_true(steps_replay(steps).n_clean_steps >= 5);
    steps_close(&steps);
}

/* ---- failures ------------------------------------------------------------------------------- */

typedef enum failing { CREATE, RECORD, WAIT, STREAM_WAIT, N_FAILING } failing_t;

static void let_fail(steps_t *steps, failing_t what, bool fails) {
    steps->fake->fail_event_create = fails && what == CREATE;
    steps->fake->fail_event_record = fails && what == RECORD;
    steps->fake->fail_waits = fails && what == WAIT;
    steps->fake->fail_stream_waits = fails && what == STREAM_WAIT;
}

/* In one step, or a whole one, events cannot be had: nothing is lost, and order is kept. */
TEST(test_device_failures) {
    step_t step = base_step();
    for (int what = 0; what < N_FAILING; what++) {
        for (size_t at = 0; at <= 3 * step.n_ops; at++) {
            steps_t *steps = open_plain(true);
            size_t n_done = 0;
            for (int i = 0; i < 7; i++) {
                steps->step++;
                for (size_t k = 0; k < step.n_ops; k++, n_done++) {
                    let_fail(steps, (failing_t)what,
                             at == 3 * step.n_ops ? i == 2 : n_done >= at && n_done < at + 3);
                    zr_status_t status = steps_do(steps, &step.ops[k]);
                    assert_true(status == ZR_OK || status == ZR_ERR_DEVICE ||
                                (what == CREATE && status == ZR_ERR_MEMORY));
                    let_fail(steps, (failing_t)what, false);
                }
                steps_check(steps);
            }
            zr_replay_statistics_t replay = steps_replay(steps);
            assert_true(replay.has_plan);
            assert_int_equal(replay.last_clean_step, 6);
            steps_close(&steps);
        }
    }
}
