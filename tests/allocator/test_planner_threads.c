/* Several threads plan at once: each gets the plan that it gets alone. */
#include <pthread.h>

#include "tests/allocator/plan_cases.h"
#include "tests/common/test.h"

#define N_BUFFERS 80
#define N_THREADS 4

typedef struct planner {
    uint64_t seed;
    zr_plan_buffer_t buffers[N_BUFFERS];
    size_t offsets[N_BUFFERS];
    zr_plan_result_t result;
    zr_status_t status;
} planner_t;

static void *plan(void *argument) {
    planner_t *planner = argument;
    plan_random_t random = {planner->seed};
    zr_plan_options_t options = zr_plan_options_default();
    options.max_seconds = 0.0;
    options.max_steps = 20000;
    plan_random_buffers(&random, planner->buffers, N_BUFFERS, 1000, 50);
    planner->status =
        zr_plan_offsets(planner->buffers, N_BUFFERS, &options, planner->offsets, &planner->result);
    return NULL;
}

TEST(test_threads) {
    static planner_t alone[N_THREADS], together[N_THREADS];
    pthread_t threads[N_THREADS];
    for (int i = 0; i < N_THREADS; i++) {
        alone[i].seed = together[i].seed = 1 + (uint64_t)i / 2;
        plan(&alone[i]);
    }
    for (int i = 0; i < N_THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, plan, &together[i]), 0);
    for (int i = 0; i < N_THREADS; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    for (int i = 0; i < N_THREADS; i++) {
        assert_ok(together[i].status);
        assert_int_equal(together[i].result.n_steps, alone[i].result.n_steps);
        assert_memory_equal(together[i].offsets, alone[i].offsets, sizeof(alone[i].offsets));
        assert_true(plan_is_valid(together[i].buffers, N_BUFFERS, together[i].offsets,
                                  together[i].result.height_bytes));
    }
}
