/*
 * Rounds of a simulated machine that leaps over most of them: it is afterwards as one that was
 * asked for each, and does not leap where they would not be alike.
 */
#include <math.h>
#include <string.h>

#include "kernels/sim/sim_clock.h"
#include "kernels/sim/sim_machine.h"
#include "tests/common/test.h"

enum { N_QUEUES = 3, N_ROUNDS = 300, MOST_OPS = 16, MOST_RECORDS = 4096 };

/* A machine before its rounds, with those. */
typedef struct rounds {
    zr_heap_t *heap;
    zr_sim_machine_t machine;
    double passes[MOST_RECORDS];
    zr_sim_op_t ops[MOST_OPS];
    size_t further[MOST_OPS][ZR_N_SIM_NAMES];
    size_t n_ops, n_again;
} rounds_t;

static void open_rounds(rounds_t *rounds) {
    zr_sim_clock_t *clock = NULL;
    *rounds = (rounds_t){.heap = zr_heap_create(NULL)};
    assert_non_null(rounds->heap);
    assert_ok(zr_sim_clock_create(NULL, &clock));
    assert_true(zr_sim_machine_open(&rounds->machine, rounds->heap, clock, N_QUEUES, 0));
    rounds->machine.passes = rounds->passes;
    rounds->machine.n_passes = MOST_RECORDS;
}

static void close_rounds(rounds_t *rounds) {
    zr_sim_machine_close(&rounds->machine);
    zr_sim_clock_destroy(&rounds->machine.clock);
    zr_heap_destroy(&rounds->heap);
}

/* record: of the first round. */
static void add_op(rounds_t *rounds, zr_sim_op_t op, size_t record, size_t further) {
    op.records[ZR_SIM_OWN] = record;
    rounds->further[rounds->n_ops][ZR_SIM_OWN] = further;
    rounds->ops[rounds->n_ops++] = op;
}

static void add_work(rounds_t *rounds, uint32_t queue, zr_sim_part_t part, double seconds) {
    add_op(rounds,
           (zr_sim_op_t){.kind = ZR_SIM_OP_WORK,
                         .number = queue,
                         .part = part,
                         .name = "work",
                         .seconds = seconds,
                         .launch = 1e-6,
                         .found = true},
           0, 0);
}

static void add_follow(rounds_t *rounds, uint32_t queue, size_t record, size_t further) {
    add_op(rounds, (zr_sim_op_t){.kind = ZR_SIM_OP_FOLLOW, .number = queue, .found = true}, record,
           further);
}

static void add_record(rounds_t *rounds, uint32_t queue, size_t record) {
    add_op(rounds, (zr_sim_op_t){.kind = ZR_SIM_OP_RECORD, .number = queue, .found = true}, record,
           1);
}

/* Events of others, a second apart: before the rounds. */
static void record_others(rounds_t *rounds, size_t n, double first) {
    for (size_t i = 0; i < n; i++)
        rounds->passes[++rounds->machine.n_records] = first + (double)i;
}

static void see(void *context, const zr_sim_span_t *span) {
    (void)context, (void)span;
}

static void see_again(void *context, const zr_sim_span_t *spans, size_t n, size_t n_times,
                      double seconds) {
    (void)spans, (void)n, (void)seconds;
    ((rounds_t *)context)->n_again += n_times;
}

static void assert_near(double a, double b) {
    if (!(fabs(a - b) <= 1e-12 * fabs(b)))
        fail_msg("%.15g is not %.15g", a, b);
}

/* What both rounds' machines are like afterwards is the same; how many of `rounds` were not asked
 * is returned. They are asked one by one of `other`, which is as `rounds`. */
static size_t check(rounds_t *rounds, rounds_t *other) {
    zr_sim_round_t round = {rounds->ops, rounds->further, rounds->n_ops};
    zr_sim_round_t step = {other->ops, other->further, other->n_ops};
    zr_sim_clock_observe(rounds->machine.clock, see, rounds);
    zr_sim_clock_observe_again(rounds->machine.clock, see_again);
    assert_true(zr_sim_machine_go_rounds(&rounds->machine, &round, N_ROUNDS));
    for (size_t i = 0; i < N_ROUNDS; i++)
        assert_true(zr_sim_machine_go_round(&other->machine, &step));
    const zr_sim_machine_t *a = &rounds->machine, *b = &other->machine;
    assert_near(a->clock->now, b->clock->now);
    assert_int_equal(a->n_records, b->n_records);
    for (size_t i = 1; i <= b->n_records; i++)
        assert_near(a->passes[i], b->passes[i]);
    for (size_t i = 0; i < N_QUEUES; i++)
        assert_near(a->queues[i].ready, b->queues[i].ready);
    for (size_t i = 0; i < rounds->n_ops; i++)
        assert_int_equal(round.ops[i].records[ZR_SIM_OWN], step.ops[i].records[ZR_SIM_OWN]);
    for (int i = 0; i < ZR_N_SIM_PARTS; i++) {
        const zr_sim_part_time_t *own = &a->clock->parts[i], *right = &b->clock->parts[i];
        assert_near(own->busy, right->busy);
        assert_int_equal(own->n_forgotten + own->n, right->n_forgotten + right->n);
        size_t n = own->n < right->n ? own->n : right->n; /* of others, they forget some sooner */
        for (size_t k = 1; k <= n; k++) {
            assert_near(own->stretches[own->n - k].begin, right->stretches[right->n - k].begin);
            assert_near(own->stretches[own->n - k].end, right->stretches[right->n - k].end);
        }
    }
    return rounds->n_again;
}

static rounds_t rounds, other;

static size_t fill_and_check(void (*fill)(rounds_t *rounds)) {
    open_rounds(&rounds);
    open_rounds(&other);
    fill(&rounds);
    fill(&other);
    size_t n_again = check(&rounds, &other);
    close_rounds(&rounds);
    close_rounds(&other);
    return n_again;
}

static void fill_ahead(rounds_t *own) {
    add_work(own, 0, ZR_SIM_COMPUTE, 1);
    add_record(own, 0, 1);
    add_follow(own, 1, 1, 1);
    add_work(own, 1, ZR_SIM_NETWORK, 0.25);
}

/* What they leave between their work is there for whoever comes later. */
TEST(a_thread_that_is_ahead_leaves_gaps) {
    assert_true(fill_and_check(fill_ahead) > N_ROUNDS - 10);
}

static void fill_waiting(rounds_t *own) {
    record_others(own, N_ROUNDS, 5);
    add_follow(own, 0, 1, 1);
    add_work(own, 0, ZR_SIM_COMPUTE, 0.5);
}

static void fill_waiting_for_late(rounds_t *own) {
    fill_waiting(own);
    own->passes[N_ROUNDS / 2] += 0.75;
}

static void fill_backwards(rounds_t *own) {
    record_others(own, N_ROUNDS, 5);
    add_follow(own, 0, N_ROUNDS, (size_t)-1);
    add_work(own, 0, ZR_SIM_COMPUTE, 0.5);
}

TEST(events_of_others_have_to_go_on_evenly) {
    assert_true(fill_and_check(fill_waiting) > N_ROUNDS - 10);
    size_t n_again = fill_and_check(fill_waiting_for_late);
    assert_true(n_again > 0 && n_again <= N_ROUNDS / 2);
    assert_true(fill_and_check(fill_backwards) > N_ROUNDS - 10);
}

/* Each waits for the one 14 before it, and the first 14 for others. */
static void fill_ring(rounds_t *own) {
    record_others(own, 14, 0);
    own->passes[14] += 100;
    add_follow(own, 0, 1, 1);
    add_work(own, 0, ZR_SIM_COMPUTE, 1);
    add_record(own, 0, 15);
}

TEST(what_was_recorded_rounds_ago_counts) {
    size_t n_again = fill_and_check(fill_ring);
    assert_true(n_again > 0 && n_again <= N_ROUNDS - 14);
}

/* Behind work that it needs 200 rounds to catch up with. */
static void fill_catching_up(rounds_t *own) {
    own->machine.queues[1].ready = 200.5;
    add_work(own, 0, ZR_SIM_COMPUTE, 2);
    add_record(own, 0, 1);
    add_work(own, 1, ZR_SIM_NETWORK, 1);
    add_follow(own, 1, 1, 1);
}

/* It goes on evenly for long, and then otherwise. */
TEST(a_queue_that_is_caught_up_with_goes_on_otherwise) {
    size_t n_again = fill_and_check(fill_catching_up);
    assert_true(n_again < N_ROUNDS / 2);
}

static void fill_asking(rounds_t *own) {
    own->machine.queues[1].ready = 1e-4;
    add_record(own, 1, 1);
    add_op(own,
           (zr_sim_op_t){.kind = ZR_SIM_OP_ASK_EVENT, .number = 1, .launch = 1e-6, .found = false},
           1, 1);
}

/* Whether an event has passed is found otherwise at last, with and without leaps. */
TEST(what_is_found_otherwise_ends_the_rounds) {
    open_rounds(&rounds);
    fill_asking(&rounds);
    zr_sim_round_t round = {rounds.ops, rounds.further, rounds.n_ops};
    assert_false(zr_sim_machine_go_rounds(&rounds.machine, &round, N_ROUNDS));
    close_rounds(&rounds);
    open_rounds(&rounds);
    fill_asking(&rounds);
    assert_true(zr_sim_machine_go_rounds(&rounds.machine, &round, 90));
    close_rounds(&rounds);
}
