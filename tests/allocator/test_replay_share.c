/*
 * Allocators that share plans: what does the same has one plan, which is the one that each would
 * have made, and counts a part of it; what differs has its own. Whoever cannot make a plan leaves
 * nobody waiting.
 */
#include <pthread.h>

#include "allocator/internal.h"
#include "allocator/planner_internal.h"
#include "tests/allocator/replay_steps.h"
#include "tests/common/test.h"

#define N_ALLOCATORS 4
#define N_TENSORS 40
#define PLENTY ((size_t)4 << 20)

/* Tensors that differ in size and life, on two streams. */
static step_t make_step(size_t least_bytes) {
    static step_t step;
    step.n_ops = 0;
    for (size_t segment = 0; segment < 4; segment++) {
        step_mark(&step, 1, segment, 0);
        for (int i = 0; i < N_TENSORS; i++)
            step_allocate(&step, i, least_bytes + 500 * (size_t)i, ZR_LIFETIME_UNIT, i % 2);
        for (int i = 0; i < N_TENSORS; i++)
            step_free(&step, i * 7 % N_TENSORS, i % 3 % 2);
    }
    return step;
}

static steps_t *start(zr_plan_cache_t *cache, size_t n_sharing, bool is_late) {
    steps_options_t options = {.granule_bytes = 4096, .is_late = is_late, .budget_bytes = PLENTY};
    steps_t *steps = steps_open(&options);
    zr_allocator_share_tables(steps->allocator, cache, n_sharing);
    assert_ok(zr_allocator_replay_start(steps->allocator, NULL));
    return steps;
}

static const zr_replay_made_t *plan_of(const steps_t *steps) {
    assert_true(steps->allocator->replay->is_in_force);
    return steps->allocator->replay->plan;
}

static size_t table_bytes(const steps_t *steps) {
    return zr_heap_count(steps->allocator->heap).bytes;
}

static void expect_same_places(const zr_replay_made_t *a, const zr_replay_made_t *b) {
    assert_int_equal(a->n_entries, b->n_entries);
    for (size_t i = 0; i < a->n_entries; i++)
        assert_int_equal(a->entries[i].offset_bytes, b->entries[i].offset_bytes);
}

static void expect_nothing_left(zr_plan_cache_t *cache) {
    assert_null(cache->shared);
    zr_plan_cache_destroy(&cache);
}

TEST(those_that_do_the_same_have_one_plan) {
    for (int is_late = 0; is_late < 2; is_late++) {
        zr_plan_cache_t *cache = zr_plan_cache_create(0);
        steps_t *alone = start(NULL, 1, is_late), *all[N_ALLOCATORS];
        step_t step = make_step(300);
        steps_run_times(alone, &step, 4);
        size_t plan_bytes = alone->allocator->replay->plan_bytes;
        assert_true(plan_bytes > 4 * N_TENSORS * sizeof(zr_tape_entry_t));
        for (size_t i = 0; i < N_ALLOCATORS; i++) {
            all[i] = start(cache, N_ALLOCATORS, is_late);
            steps_run_times(all[i], &step, 4);
            assert_ptr_equal(plan_of(all[i]), plan_of(all[0]));
            assert_int_equal(plan_of(all[i])->shared.n_users, i + 1);
            expect_same_places(plan_of(all[i]), plan_of(alone));
            size_t part = (plan_bytes + N_ALLOCATORS - 1) / N_ALLOCATORS;
            assert_int_equal(table_bytes(alone) - table_bytes(all[i]), plan_bytes - part);
        }
        assert_int_equal(zr_heap_count(plan_of(all[0])->shared.heap).bytes, plan_bytes);
        for (size_t i = 0; i < N_ALLOCATORS; i++)
            steps_close(&all[i]);
        steps_close(&alone);
        expect_nothing_left(cache);
    }
}

TEST(those_that_differ_have_their_own) {
    zr_plan_cache_t *cache = zr_plan_cache_create(0);
    steps_t *all[N_ALLOCATORS];
    for (size_t i = 0; i < N_ALLOCATORS; i++) {
        step_t step = make_step(i == 2 ? 3000 : 300);
        all[i] = start(cache, N_ALLOCATORS, true);
        steps_run_times(all[i], &step, 4);
    }
    assert_ptr_not_equal(plan_of(all[2]), plan_of(all[0]));
    assert_int_equal(plan_of(all[2])->shared.n_users, 1);
    assert_int_equal(plan_of(all[0])->shared.n_users, N_ALLOCATORS - 1);
    /* One changes its ways, and then so do all. */
    step_t step = make_step(3000);
    for (size_t i = 0; i < N_ALLOCATORS; i++) {
        steps_run_times(all[i], &step, 4);
        assert_ptr_equal(plan_of(all[i]), plan_of(all[2]));
    }
    assert_int_equal(plan_of(all[2])->shared.n_users, N_ALLOCATORS);
    for (size_t i = 0; i < N_ALLOCATORS; i++)
        steps_close(&all[i]);
    expect_nothing_left(cache);
}

/* ---- threads ---------------------------------------------------------------------------- */

typedef struct asking {
    zr_plan_cache_t *cache;
    pthread_barrier_t *start, *asked;
    pthread_t thread;
    bool lacks_memory;
    zr_replay_made_t *made;
    size_t n_users; /* of it, when all have asked; 0: it could not be made */
    zr_status_t status;
} asking_t;

static zr_status_t write_tape(zr_tape_t *tape) {
    zr_mark_t mark = {.step = 1, .micro_batch = 1};
    zr_tape_mark(tape, &mark);
    for (uint32_t i = 1; i <= N_TENSORS; i++)
        zr_tape_allocated(tape, &(zr_tape_kind_t){.stream = 1}, 256 * i, 0);
    for (uint32_t i = 1; i <= N_TENSORS; i++)
        zr_tape_freed(tape, i, 1);
    ZR_TRY(zr_tape_close_gaps(tape));
    return zr_tape_fit(tape);
}

/* Who lacks memory can write down what it did, and not plan it. */
static void *ask(void *context) {
    asking_t *asking = context;
    zr_heap_t *heap = zr_heap_create(NULL);
    zr_tape_t tape = {.heap = heap, .max_entries = 1000};
    zr_replay_planning_t planning = {.is_synchronous = true};
    asking->status = write_tape(&tape);
    if (asking->lacks_memory)
        zr_heap_limit(heap, zr_heap_count(heap).bytes + sizeof(zr_replay_made_t) + 100);
    pthread_barrier_wait(asking->start);
    if (asking->status == ZR_OK)
        asking->status = zr_replay_plan_make(asking->cache, &tape, &planning, &asking->made);
    const zr_replay_made_t *made = asking->made;
    pthread_barrier_wait(asking->asked);
    asking->n_users = made != NULL ? made->shared.n_users : 0;
    pthread_barrier_wait(asking->asked);
    zr_replay_plan_free(&asking->made);
    return NULL;
}

static void ask_together(zr_plan_cache_t *cache, asking_t *all, size_t n_lacking) {
    pthread_barrier_t start, asked;
    pthread_barrier_init(&start, NULL, N_ALLOCATORS);
    pthread_barrier_init(&asked, NULL, N_ALLOCATORS);
    for (size_t i = 0; i < N_ALLOCATORS; i++) {
        all[i] = (asking_t){
            .cache = cache, .start = &start, .asked = &asked, .lacks_memory = i < n_lacking};
        assert_int_equal(pthread_create(&all[i].thread, NULL, ask, &all[i]), 0);
    }
    for (size_t i = 0; i < N_ALLOCATORS; i++)
        pthread_join(all[i].thread, NULL);
    pthread_barrier_destroy(&start);
    pthread_barrier_destroy(&asked);
}

TEST(who_cannot_make_it_leaves_nobody_waiting) {
    zr_plan_cache_t *cache = zr_plan_cache_create(0);
    for (size_t round = 0; round < 200; round++) {
        asking_t all[N_ALLOCATORS];
        size_t n_lacking = round % (N_ALLOCATORS + 1);
        ask_together(cache, all, n_lacking);
        size_t n_users = 0;
        for (size_t i = 0; i < N_ALLOCATORS; i++)
            n_users += all[i].status == ZR_OK;
        assert_true(n_lacking < N_ALLOCATORS ? n_users >= N_ALLOCATORS - n_lacking : n_users == 0);
        for (size_t i = 0; i < N_ALLOCATORS; i++) {
            assert_true(all[i].status == ZR_OK ||
                        (all[i].lacks_memory && all[i].status == ZR_ERR_MEMORY));
            assert_int_equal(all[i].n_users, all[i].status == ZR_OK ? n_users : 0);
        }
        assert_null(cache->shared);
    }
    expect_nothing_left(cache);
}
