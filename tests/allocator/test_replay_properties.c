/*
 * Random trainings against the oracle of replay_steps.c: steps of segments and micro-batches that
 * repeat, and that go astray at random, on devices whose streams are done at once and on late
 * ones, with budgets and without. Whatever happens, no two tensors overlap, contents and counts
 * are right, and no address is used again before the work on it has passed. When steps repeat,
 * they are soon served by plan alone, from the same places and without a call into the device.
 */
#include "allocator/internal.h"
#include "allocator/replay_force_internal.h"
#include "allocator/record.h"
#include "tests/allocator/replay_steps.h"
#include "tests/common/test.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define N_OPERATIONS 12000
#else
#define N_OPERATIONS 170000
#endif

/* Slots: of a step, of what outlives it or comes unforeseen, and of persistent tensors. */
#define N_STEP_SLOTS 160
#define FIRST_EXTRA 170
#define N_EXTRA 30
#define FIRST_PERSISTENT 210
#define N_PERSISTENT 20
#define MAX_SEGMENTS 32
/* Longer than it takes patience to make another plan. */
#define MAX_QUIET 70

typedef struct training {
    steps_t *steps;
    uint64_t random;
    step_t step;    /* that repeats */
    int n_streams;  /* that it uses */
    bool varies;    /* sizes are other ones in each step */
    bool has_nulls; /* some tensors are freed by the CPU */
} training_t;

static size_t below(training_t *training, size_t n) {
    return (size_t)(random_bits(&training->random) % n);
}

/* ---- making a step ------------------------------------------------------------------------ */

static size_t random_size(training_t *training) {
    switch (below(training, 4)) {
    case 0:
        return 1 + below(training, 600);
    case 1:
        return 256 * (1 + below(training, 16));
    default:
        return 1 + below(training, 12000);
    }
}

static int random_stream(training_t *training) {
    return (int)below(training, (size_t)training->n_streams);
}

/* What has to be freed in which segment. */
typedef struct due {
    int slot, stream;
    size_t segment;
} due_t;

typedef struct maker {
    training_t *training;
    due_t due[N_STEP_SLOTS];
    size_t n_due, segment, n_segments;
    int next_slot;
} maker_t;

static void free_due(maker_t *maker, size_t i) {
    step_free(&maker->training->step, maker->due[i].slot, maker->due[i].stream);
    maker->due[i] = maker->due[--maker->n_due];
}

/* An allocation that is freed in segment `last`. */
static void make_tensor(maker_t *maker, zr_lifetime_t lifetime, size_t last) {
    training_t *training = maker->training;
    if (maker->next_slot == N_STEP_SLOTS)
        return;
    int stream = random_stream(training), slot = maker->next_slot++;
    step_op_t *op = step_allocate(&training->step, slot, random_size(training), lifetime, stream);
    op->tag = (zr_tag_t)below(training, ZR_N_TAGS);
    op->tier = below(training, 6) == 0 ? ZR_TIER_HOST : ZR_TIER_DEVICE;
    due_t due = {.slot = slot, .stream = stream, .segment = last};
    if (below(training, 4) == 0)
        due.stream = random_stream(training);
    if (training->has_nulls && below(training, 8) == 0) {
        due.stream = STEPS_NO_STREAM;
        op->is_idle = below(training, 2) == 0;
    }
    if (training->has_nulls && below(training, 40) == 0)
        op->stream = due.stream = STEPS_NO_STREAM;
    maker->due[maker->n_due++] = due;
}

/* The segment where what the forward pass of one has made is needed last. */
static size_t backward_of(const maker_t *maker, size_t first, size_t n_units) {
    return first + 2 * n_units - 1 - (maker->segment - first);
}

static void make_segment(maker_t *maker, size_t first, size_t n_units) {
    training_t *training = maker->training;
    for (size_t n = 1 + below(training, 4); n > 0; n--) {
        size_t dice = below(training, 10), here = maker->segment;
        if (dice < 4)
            make_tensor(maker, ZR_LIFETIME_UNIT, here);
        else if (dice < 5)
            make_tensor(maker, ZR_LIFETIME_UNIT, here + 1);
        else if (dice < 8 && here < first + n_units)
            make_tensor(maker, ZR_LIFETIME_MICRO_BATCH, backward_of(maker, first, n_units));
        else if (dice < 9)
            make_tensor(maker, ZR_LIFETIME_STEP, maker->n_segments - 1);
        else
            make_tensor(maker, ZR_LIFETIME_COLLECTIVE, here + below(training, 2));
        for (size_t i = 0; i < maker->n_due; i++) {
            if (maker->due[i].segment <= maker->segment && below(training, 3) == 0)
                free_due(maker, i);
        }
    }
    for (size_t i = maker->n_due; i > 0; i--) {
        if (maker->due[i - 1].segment <= maker->segment)
            free_due(maker, i - 1);
    }
    maker->segment++;
}

static void make_step(training_t *training) {
    maker_t maker = {.training = training};
    size_t n_units = 1 + below(training, 4), n_micro = 1 + below(training, 3);
    training->n_streams = 1 + (int)below(training, STEPS_N_STREAMS);
    training->varies = below(training, 4) == 0;
    training->has_nulls = below(training, 2) == 0;
    training->step.n_ops = 0;
    maker.n_segments = 2 * n_units * n_micro + 1;
    for (size_t i = 0; i < n_micro; i++) {
        size_t first = maker.segment;
        for (size_t k = 0; k < 2 * n_units; k++) {
            bool is_forward = k < n_units;
            size_t unit = is_forward ? k : 2 * n_units - 1 - k;
            step_mark(&training->step, i + 1, unit, is_forward ? 0 : 1);
            if (i == 0 && k == 0 && below(training, 3) == 0) {
                step_free(&training->step, FIRST_EXTRA, random_stream(training));
                step_allocate(&training->step, FIRST_EXTRA, 3000, ZR_LIFETIME_STEP, 0);
            }
            make_segment(&maker, first, n_units);
        }
    }
    step_mark(&training->step, 0, ZR_NO_UNIT, 2);
    make_segment(&maker, maker.segment, 0);
    while (maker.n_due > 0)
        free_due(&maker, 0);
}

/* ---- going astray --------------------------------------------------------------------------- */

static int any_stream(training_t *training) {
    return (int)below(training, STEPS_N_STREAMS + 1) - 1; /* or none */
}

/* A random operation of a kind; the step has some of each. */
static size_t pick(training_t *training, const step_t *step, step_op_kind_t kind) {
    size_t i = below(training, step->n_ops);
    while (step->ops[i].kind != kind)
        i = (i + 1) % step->n_ops;
    return i;
}

static void change_allocation(training_t *training, step_op_t *op) {
    switch (below(training, 6)) {
    case 0:
        op->size_bytes = 1 + below(training, 2 * op->size_bytes + 1);
        break;
    case 1:
        op->tag = (zr_tag_t)below(training, ZR_N_TAGS);
        break;
    case 2:
        op->stream = any_stream(training);
        break;
    case 3:
        op->lifetime = (zr_lifetime_t)(1 + below(training, ZR_N_LIFETIMES - 1));
        break;
    case 4:
        op->tier = (zr_tier_t)below(training, 2);
        break;
    default:
        op->is_idle = true;
    }
}

static void insert_extra(training_t *training, step_t *step) {
    int slot = FIRST_EXTRA + 1 + (int)below(training, N_EXTRA - 1);
    size_t at = 1 + below(training, step->n_ops);
    step_op_t op = {.kind = STEP_ALLOCATE,
                    .slot = slot,
                    .stream = any_stream(training),
                    .size_bytes = random_size(training),
                    .tier = (zr_tier_t)below(training, 2),
                    .tag = ZR_TAG_OTHER,
                    .lifetime = (zr_lifetime_t)(1 + below(training, ZR_N_LIFETIMES - 1))};
    step_insert(step, at, op);
    if (below(training, 3) == 0)
        return; /* it outlives the step */
    size_t end = at + 1 + below(training, step->n_ops - at);
    step_insert(step, end,
                (step_op_t){.kind = STEP_FREE, .slot = slot, .stream = any_stream(training)});
}

static void move_free(training_t *training, step_t *step) {
    size_t from = pick(training, step, STEP_FREE);
    step_op_t op = step->ops[from];
    step_remove(step, from);
    size_t far = 1 + below(training, 12);
    size_t to = below(training, 2) == 0 ? from + far : from - (from < far ? from : far);
    step_insert(step, to > step->n_ops ? step->n_ops : to, op);
}

static void change_marks(training_t *training, step_t *step) {
    size_t at = pick(training, step, STEP_MARK);
    if (below(training, 3) == 0)
        step->ops[at].mark.unit = 50 + below(training, 3);
    else if (at > 0)
        step_remove(step, at);
}

static void go_astray(training_t *training, step_t *step) {
    for (size_t n = 1 + below(training, 3); n > 0; n--) {
        size_t at;
        switch (below(training, 8)) {
        case 0:
        case 1:
            change_allocation(training, &step->ops[pick(training, step, STEP_ALLOCATE)]);
            break;
        case 2:
            insert_extra(training, step);
            break;
        case 3:
            step_remove(step, pick(training, step, STEP_ALLOCATE));
            break;
        case 4:
            move_free(training, step);
            break;
        case 5:
            at = pick(training, step, STEP_FREE);
            step->ops[at].stream = any_stream(training);
            break;
        case 6:
            change_marks(training, step);
            break;
        default: /* two change places */
            at = 1 + below(training, step->n_ops - 2);
            step_op_t op = step->ops[at];
            step->ops[at] = step->ops[at + 1];
            step->ops[at + 1] = op;
        }
    }
}

/* ---- running -------------------------------------------------------------------------------- */

static void do_persistent(training_t *training) {
    steps_t *steps = training->steps;
    int slot = FIRST_PERSISTENT + (int)below(training, N_PERSISTENT);
    step_op_t op = {.kind = STEP_ALLOCATE,
                    .slot = slot,
                    .stream = any_stream(training),
                    .size_bytes = random_size(training) * 2,
                    .tier = (zr_tier_t)below(training, 2),
                    .tag = ZR_TAG_PARAMETERS,
                    .lifetime = ZR_LIFETIME_PERSISTENT};
    if (below(training, 8) == 0)
        op.size_bytes = 0;
    if (steps->tensors[slot].pointer != NULL)
        op.kind = STEP_FREE;
    zr_status_t status = steps_do(steps, &op);
    assert_true(status == ZR_OK || status == ZR_ERR_BUDGET);
}

/* What else may happen between two operations. */
static void do_something_else(training_t *training) {
    steps_t *steps = training->steps;
    size_t dice = below(training, 400);
    if (dice < 40)
        fake_stream_pass(steps->streams[below(training, STEPS_N_STREAMS)], 1 + below(training, 8));
    else if (dice < 50)
        do_persistent(training);
    else if (dice < 52)
        assert_ok(zr_stream_synchronize(steps->streams[below(training, STEPS_N_STREAMS)]));
    else if (dice == 53)
        assert_ok(zr_allocator_trim(steps->allocator, (zr_tier_t)below(training, 2)));
}

static void do_op(training_t *training, const step_op_t *op) {
    steps_t *steps = training->steps;
    if (op->kind == STEP_ALLOCATE && steps->tensors[op->slot].pointer != NULL) {
        /* It has outlived its step: freed only now. */
        step_op_t gone = {.kind = STEP_FREE, .slot = op->slot, .stream = any_stream(training)};
        steps_do(steps, &gone);
    }
    zr_status_t status = steps_do(steps, op);
    assert_true(status == ZR_OK || (status == ZR_ERR_BUDGET && op->kind == STEP_ALLOCATE));
}

static void run_astray(training_t *training) {
    static step_t step;
    step = training->step;
    go_astray(training, &step);
    training->steps->step++;
    for (size_t i = 0; i < step.n_ops; i++) {
        do_op(training, &step.ops[i]);
        do_something_else(training);
    }
    steps_check(training->steps);
}

/* As it should be; the places. */
static uint64_t run_quiet(training_t *training) {
    steps_t *steps = training->steps;
    steps->step++;
    steps->places = 0;
    for (size_t i = 0; i < training->step.n_ops; i++) {
        step_op_t op = training->step.ops[i];
        if (training->varies && op.kind == STEP_ALLOCATE)
            op.size_bytes -= below(training, op.size_bytes);
        do_op(training, &op);
    }
    steps_check(steps);
    return steps->places;
}

static void free_slots(training_t *training, int first, int n) {
    for (int slot = first; slot < first + n; slot++) {
        step_op_t op = {.kind = STEP_FREE, .slot = slot, .stream = any_stream(training)};
        steps_do(training->steps, &op);
    }
}

/* How many steps in a row have followed their plan, up to the one that ended last. */
static size_t count_clean(training_t *training, size_t n_so_far) {
    bool is_clean = steps_replay(training->steps).last_clean_step == training->steps->step - 1;
    return is_clean ? n_so_far + 1 : 0;
}

/* ---- waits ---------------------------------------------------------------------------------- */

#define MAX_UNITS 65536 /* of 256 bytes, that a plan is high */
#define MAX_ENTRIES 1024

typedef struct owners {
    uint32_t of_unit[STEPS_N_TIERS][MAX_UNITS]; /* the entry that had it last, + 1; 0: none */
    uint32_t seen_by[MAX_ENTRIES];              /* the last entry that came after one, + 1 */
} owners_t;

/* Give an entry its place. How many others' streams it may wait for: behind what the CPU has freed,
 * for all that that one waited for. */
static size_t occupy(owners_t *owners, const zr_replay_made_t *plan, uint32_t index) {
    const zr_tape_entry_t *entry = &plan->tape.entries[index];
    size_t first = plan->entries[index].offset_bytes;
    size_t n_waits = 0, end = (first + entry->block_bytes) / 256;
    assert_true(end <= MAX_UNITS && plan->n_entries <= MAX_ENTRIES);
    for (size_t i = first / 256; i < end; i++) {
        uint32_t owner = owners->of_unit[entry->kind.tier][i];
        owners->of_unit[entry->kind.tier][i] = index + 1;
        if (owner == 0 || owners->seen_by[owner - 1] == index + 1)
            continue;
        owners->seen_by[owner - 1] = index + 1;
        uint8_t last = plan->tape.entries[owner - 1].free_stream;
        n_waits += last == 0 ? STEPS_N_STREAMS - 1 : last != entry->kind.stream;
    }
    return n_waits;
}

/* How often streams may wait for each other in a step that follows the plan: for who had a place
 * before, and once for the step before. */
static size_t most_waits(const zr_replay_t *replay) {
    static owners_t owners;
    const zr_replay_made_t *plan = replay->plan;
    bool joins[ZR_REPLAY_MAX_STREAMS + 1] = {false};
    size_t n_waits = 0, n_streams = 0;
    memset(&owners, 0, sizeof(owners));
    for (uint32_t i = 0; i < plan->n_entries; i++) {
        if (!plan->entries[i].is_planned)
            continue;
        n_waits += occupy(&owners, plan, i);
        joins[plan->tape.entries[i].kind.stream] = true;
    }
    for (int k = 1; k <= ZR_REPLAY_MAX_STREAMS; k++)
        n_streams += zr_replay_has_fence(replay, k);
    for (int k = 1; k <= ZR_REPLAY_MAX_STREAMS; k++)
        n_waits += joins[k] ? n_streams - 1 : 0;
    return n_waits;
}

/* Steps that repeat, until they follow a plan: then they go on doing so, with nothing else. */
static void settle(training_t *training) {
    steps_t *steps = training->steps;
    free_slots(training, 0, N_STEP_SLOTS);
    free_slots(training, FIRST_EXTRA, N_EXTRA);
    bool varies = training->varies;
    training->varies = false; /* all as large as they get */
    size_t n_clean = 0;       /* after a single one, what outlives it may come out as the next's */
    for (int i = 0; i < MAX_QUIET && n_clean < 3; i++) {
        run_quiet(training);
        n_clean = count_clean(training, n_clean);
    }
    training->varies = varies;
    /* In a tight budget there may be no room for a plan. */
    if (steps->options.budget_bytes < (size_t)1 << 20 && n_clean < 3)
        return;
    assert_int_equal(n_clean, 3);
    size_t n_calls = steps->fake->n_maps + steps->fake->n_unmaps, n_host = steps->fake->n_waits;
    zr_replay_statistics_t before = steps_replay(steps);
    uint64_t places = run_quiet(training);
    bool is_all_planned = steps_replay(steps).n_left_out == before.n_left_out;
    for (int i = 0; i < 3; i++) {
        size_t n_waits = steps_n_waits(steps);
        assert_true(run_quiet(training) == places || !is_all_planned);
        if (steps->options.is_late && !steps->allocator->replay->planning.is_as_long)
            assert_in_range(steps_n_waits(steps) - n_waits, 0,
                            most_waits(steps->allocator->replay));
    }
    assert_int_equal(steps_replay(steps).n_clean_steps, before.n_clean_steps + 4);
    assert_int_equal(steps_replay(steps).n_unplanned, before.n_unplanned);
    if (!training->has_nulls && is_all_planned) {
        assert_int_equal(steps->fake->n_maps + steps->fake->n_unmaps, n_calls);
        assert_int_equal(steps->fake->n_waits, n_host);
    }
}

/* ---- trainings ------------------------------------------------------------------------------ */

static void restart(training_t *training, const zr_replay_options_t *how) {
    zr_allocator_replay_stop(training->steps->allocator);
    assert_ok(zr_allocator_replay_start(training->steps->allocator, how));
}

static void record(training_t *training, bool begins) {
    zr_recording_t *recording = NULL;
    if (begins) {
        assert_ok(zr_allocator_record_start(training->steps->allocator, 0));
        return;
    }
    assert_ok(zr_allocator_record_stop(training->steps->allocator, &recording));
    zr_recording_destroy(&recording);
}

static void run(uint64_t seed, const steps_options_t *options) {
    training_t *training = calloc(1, sizeof(*training));
    assert_non_null(training);
    training->random = seed;
    steps_t *steps = training->steps = steps_open(options);
    zr_replay_options_t how = zr_replay_options_default();
    how.compute = seed % 2 == 0 ? NULL : steps->streams[0];
    how.is_as_long = seed > 6;
    assert_ok(zr_allocator_replay_start(steps->allocator, &how));
    zr_replay_statistics_t replay = {0};
    for (size_t round = 0; steps->n_operations < N_OPERATIONS; round++) {
        /* Where memory is not scarce, a step keeps the plan that it has left. */
        steps->allocator->is_frugal = round % 2 == 0;
        bool records = round % 5 == 4;
        if (round % 7 == 6)
            restart(training, &how);
        make_step(training);
        if (records)
            record(training, true);
        for (int i = 0; i < 16; i++) {
            if (below(training, 3) == 0)
                run_astray(training);
            else
                run_quiet(training);
        }
        if (records)
            record(training, false);
        settle(training);
        fake_log_clear(steps->fake);
        zr_replay_statistics_t now = steps_replay(steps);
        replay.n_steps += now.n_steps;
        replay.n_clean_steps += now.n_clean_steps;
        replay.n_planned = now.n_planned;
        replay.n_unplanned = now.n_unplanned;
        replay.n_dropped += now.n_dropped;
    }
    printf("seed %llu: %zu operations, %zu steps, %zu refused, %zu dropped, %zu device waits\n",
           (unsigned long long)seed, steps->n_operations, steps->step, steps->n_refused,
           replay.n_dropped, steps_n_waits(steps));
    assert_true(replay.n_clean_steps > 0 && replay.n_planned > 0 && replay.n_unplanned > 0);
    steps_close(&training->steps);
    free(training);
}

TEST(test_synchronous) {
    run(1, &(steps_options_t){.granule_bytes = 4096, .budget_bytes = (size_t)4 << 20});
}

TEST(test_synchronous_in_a_tight_budget) {
    run(2, &(steps_options_t){.granule_bytes = 4096, .budget_bytes = 90000});
}

TEST(test_late) {
    run(3, &(steps_options_t){
               .granule_bytes = 4096, .is_late = true, .budget_bytes = (size_t)4 << 20});
    run(4, &(steps_options_t){
               .granule_bytes = 65536, .is_late = true, .budget_bytes = (size_t)16 << 20});
}

TEST(test_late_as_in_long_steps) {
    run(7, &(steps_options_t){
               .granule_bytes = 4096, .is_late = true, .budget_bytes = (size_t)4 << 20});
    run(8, &(steps_options_t){
               .granule_bytes = 65536, .is_late = true, .budget_bytes = (size_t)16 << 20});
}

TEST(test_late_in_a_tight_budget) {
    run(5, &(steps_options_t){.granule_bytes = 4096, .is_late = true, .budget_bytes = 110000});
    run(6, &(steps_options_t){.granule_bytes = 16384, .is_late = true, .budget_bytes = 160000});
}
