/*
 * A lower plan that is found beside training: steps whose tensors fit without any loss, but not
 * by a greedy order. The first plan is made of greedy orders alone here; the search then finds
 * the one without loss, and it is taken at the start of a step, when nothing lives in its way.
 */
#include <sched.h>

#include "allocator/internal.h"
#include "allocator/replay_search_internal.h"
#include "tests/allocator/fake_device.h"
#include "tests/allocator/plan_cases.h"
#include "tests/common/test.h"

#define N_TENSORS 48
#define N_TIMES 24
#define HEIGHT 400
#define GRANULE 4096

typedef struct training {
    fake_t *fake;
    zr_allocator_t *allocator;
    zr_plan_buffer_t tensors[N_TENSORS];
    unsigned char *pointers[N_TENSORS];
    size_t step;
    size_t kept; /* beyond the second step; SIZE_MAX: none */
} training_t;

static void allocate(training_t *training, size_t i) {
    zr_allocation_request_t request = {.size_bytes = training->tensors[i].size_bytes * 256,
                                       .tier = ZR_TIER_DEVICE,
                                       .tag = ZR_TAG_ACTIVATIONS,
                                       .lifetime = ZR_LIFETIME_UNIT};
    void *pointer = NULL;
    assert_ok(zr_allocate(training->allocator, &request, &pointer));
    memset(pointer, (int)i + 1, request.size_bytes);
    training->pointers[i] = pointer;
}

static void release(training_t *training, size_t i) {
    if (training->pointers[i] == NULL)
        return;
    for (size_t k = 0; k < training->tensors[i].size_bytes * 256; k += 255)
        assert_int_equal(training->pointers[i][k], i + 1);
    zr_free(training->allocator, (void **)&training->pointers[i], NULL);
}

/* One step; `kept` lives on after it. */
static void run_step(training_t *training, size_t kept) {
    zr_mark_t mark = {.step = ++training->step, .micro_batch = 1, .unit = ZR_NO_UNIT};
    zr_allocator_mark(training->allocator, &mark);
    for (int64_t time = 0; time <= N_TIMES; time++) {
        for (size_t i = 0; i < N_TENSORS; i++) {
            if (training->tensors[i].upper == time && i != kept)
                release(training, i);
        }
        for (size_t i = 0; i < N_TENSORS; i++) {
            if (training->tensors[i].lower == time)
                allocate(training, i);
        }
    }
    assert_true(zr_allocator_is_valid(training->allocator));
}

static zr_replay_statistics_t statistics_of(const training_t *training) {
    zr_replay_statistics_t statistics;
    zr_allocator_replay_statistics(training->allocator, &statistics);
    return statistics;
}

static size_t last_tensor(const training_t *training) {
    size_t i = 0;
    while (training->tensors[i].upper != N_TIMES)
        i++;
    return i;
}

/* The plan comes into force at the start of the second step, which leaves one tensor if asked. */
static void open_training(training_t *training, uint64_t seed, bool keeps_one) {
    *training = (training_t){.fake = fake_open(GRANULE, false)};
    plan_random_t random = {.state = seed};
    plan_cut_rectangle(&random, training->tensors, N_TENSORS, N_TIMES, HEIGHT);
    assert_ok(zr_allocator_create(training->fake->device, NULL, &training->allocator));
    zr_replay_options_t options = zr_replay_options_default();
    options.search_seconds = 600;
    assert_ok(zr_allocator_replay_start(training->allocator, &options));
    training->allocator->replay->planning.search.max_steps = 1;
    run_step(training, SIZE_MAX);
    training->kept = keeps_one ? last_tensor(training) : SIZE_MAX;
    run_step(training, training->kept);
    assert_true(statistics_of(training).has_plan);
}

static void close_training(training_t *training) {
    zr_allocator_destroy(&training->allocator);
    fake_close(training->fake);
}

/* Open one whose first plan is higher than it has to be. */
static void open_lossy(training_t *training, bool keeps_one) {
    for (uint64_t seed = 1; seed < 200; seed++) {
        open_training(training, seed, keeps_one);
        if (training->allocator->replay->search != NULL)
            return;
        if (keeps_one)
            release(training, training->kept);
        close_training(training);
    }
    fail_msg("greedy orders lose nothing");
}

static void await_search(const training_t *training) {
    zr_replay_search_t *search = training->allocator->replay->search;
    assert_non_null(search);
    while (!zr_replay_search_is_done(search))
        sched_yield();
}

TEST(test_little_is_not_searched_for) {
    zr_replay_made_t plan = {.summary = {{.height_bytes = 1000000, .bound_bytes = 999000}}};
    assert_false(zr_replay_plan_can_improve(&plan));
    plan.summary[1] = (zr_replay_plan_t){.height_bytes = 10000, .bound_bytes = 9989};
    assert_true(zr_replay_plan_can_improve(&plan));
}

TEST(test_lower_plan_is_taken) {
    training_t training;
    open_lossy(&training, false);
    zr_replay_plan_t before = statistics_of(&training).plans[ZR_TIER_DEVICE];
    assert_true(before.height_bytes > before.bound_bytes);
    await_search(&training);
    for (int i = 0; i < 3; i++)
        run_step(&training, SIZE_MAX);
    zr_replay_statistics_t after = statistics_of(&training);
    assert_int_equal(after.n_lowered, 1);
    assert_int_equal(after.plans[ZR_TIER_DEVICE].height_bytes, HEIGHT * 256);
    assert_int_equal(after.n_clean_steps, after.n_steps - 1);
    assert_int_equal(after.n_plans, 2);
    assert_null(training.allocator->replay->search);
    zr_tier_statistics_t memory;
    zr_allocator_statistics(training.allocator, ZR_TIER_DEVICE, &memory);
    assert_true(memory.reserved.live < before.height_bytes + GRANULE);
    close_training(&training);
}

/* Something of the plan lives beyond its step: the plan stays until it is gone. */
TEST(test_not_while_something_lives) {
    training_t training;
    open_lossy(&training, true);
    await_search(&training);
    zr_mark_t mark = {.step = ++training.step, .micro_batch = 1, .unit = ZR_NO_UNIT};
    zr_allocator_mark(training.allocator, &mark);
    assert_true(statistics_of(&training).has_plan);
    assert_int_equal(statistics_of(&training).n_lowered, 0);
    assert_int_equal(statistics_of(&training).n_clean_steps, 1);
    release(&training, training.kept);
    close_training(&training);
}

/* The end of replay, or of the allocator, does not wait for a search to finish. */
TEST(test_search_is_cancelled) {
    training_t training;
    open_lossy(&training, false);
    zr_allocator_replay_stop(training.allocator);
    assert_false(statistics_of(&training).is_on);
    run_step(&training, SIZE_MAX);
    close_training(&training);
    open_lossy(&training, false);
    close_training(&training);
}
