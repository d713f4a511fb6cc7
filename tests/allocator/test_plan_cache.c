/*
 * Plans that were made are found again, by what is asked alone, and are those that would be made;
 * what differs in anything is made, and so is what there was no room to keep.
 */
#include <pthread.h>

#include "tests/allocator/plan_cases.h"
#include "tests/common/test.h"

#define N_BUFFERS 40
#define N_CASES 20

typedef struct made {
    size_t offsets[N_BUFFERS];
    zr_plan_result_t result;
} made_t;

static zr_plan_options_t options_with(zr_plan_cache_t *cache) {
    zr_plan_options_t options = zr_plan_options_default();
    options.max_seconds = 0.0;
    options.max_steps = 2000;
    options.cache = cache;
    return options;
}

static made_t make(const zr_plan_options_t *options, const zr_plan_buffer_t *buffers) {
    made_t made;
    memset(&made, 0, sizeof(made));
    assert_ok(zr_plan_offsets(buffers, N_BUFFERS, options, made.offsets, &made.result));
    return made;
}

static void make_case(size_t index, zr_plan_buffer_t *buffers) {
    plan_random_t random = {1 + index};
    plan_random_buffers(&random, buffers, N_BUFFERS, 1000, 30);
}

static void expect_same(const made_t *a, const made_t *b) {
    assert_memory_equal(a->offsets, b->offsets, sizeof(a->offsets));
    assert_int_equal(a->result.height_bytes, b->result.height_bytes);
    assert_int_equal(a->result.bound_bytes, b->result.bound_bytes);
    assert_int_equal(a->result.n_steps, b->result.n_steps);
    assert_string_equal(a->result.strategy, b->result.strategy);
}

/* Twice in another order; a cache that has room for few, or none, changes nothing. */
TEST(plans_are_those_without) {
    static const size_t sizes[] = {(size_t)1 << 20, 5 * N_BUFFERS * 40, 100};
    zr_plan_buffer_t buffers[N_BUFFERS];
    for (size_t k = 0; k < N_OF(sizes); k++) {
        zr_plan_cache_t *cache = zr_plan_cache_create(sizes[k]);
        zr_plan_options_t with = options_with(cache), without = options_with(NULL);
        assert_non_null(cache);
        for (size_t i = 0; i < 3 * N_CASES; i++) {
            make_case(i * i % N_CASES, buffers);
            made_t a = make(&with, buffers), b = make(&without, buffers);
            expect_same(&a, &b);
        }
        zr_plan_cache_destroy(&cache);
        assert_null(cache);
    }
    zr_plan_cache_destroy(NULL);
}

/* A plan that is made takes at least one second by this clock, and each more than any before. */
static double tick(void *context) {
    double *moment = context;
    return *moment = 2.0 * *moment + 1.0;
}

static bool is_found(const zr_plan_options_t *options, const zr_plan_buffer_t *buffers,
                     const made_t *before) {
    static double moment;
    zr_plan_options_t timed = *options;
    timed.clock = tick;
    timed.context = &moment;
    return make(&timed, buffers).result.seconds == before->result.seconds;
}

/* By each of its buffers' numbers, and by what is asked of it. */
TEST(what_differs_is_made) {
    zr_plan_buffer_t buffers[N_BUFFERS], other[N_BUFFERS];
    zr_plan_cache_t *cache = zr_plan_cache_create((size_t)1 << 20);
    zr_plan_options_t options = options_with(cache), changed;
    make_case(0, buffers);
    made_t first = make(&options, buffers);
    assert_true(is_found(&options, buffers, &first));
    for (int field = 0; field < 4; field++) {
        memcpy(other, buffers, sizeof(other));
        zr_plan_buffer_t *last = &other[N_BUFFERS - 1];
        last->lower -= field == 0;
        last->upper += field == 1;
        last->size_bytes += field == 2;
        last->alignment = field == 3 ? 64 : last->alignment;
        assert_false(is_found(&options, other, &first));
    }
    changed = options;
    changed.max_steps++;
    assert_false(is_found(&changed, buffers, &first));
    changed = options;
    changed.capacity_bytes = 1;
    assert_false(is_found(&changed, buffers, &first));
    changed = options;
    changed.max_seconds = 1e9; /* the answer depends on the clock */
    assert_false(is_found(&changed, buffers, &first));
    assert_true(is_found(&options, buffers, &first));
    zr_plan_cache_destroy(&cache);
}

/* What was used last stays. */
TEST(the_oldest_goes) {
    zr_plan_buffer_t buffers[3][N_BUFFERS];
    made_t made[3];
    zr_plan_cache_t *cache = zr_plan_cache_create(2 * (N_BUFFERS * 40 + 200));
    zr_plan_options_t options = options_with(cache);
    for (size_t i = 0; i < 3; i++)
        make_case(i, buffers[i]);
    for (size_t i = 0; i < 2; i++)
        made[i] = make(&options, buffers[i]);
    assert_true(is_found(&options, buffers[0], &made[0]));
    made[2] = make(&options, buffers[2]);
    assert_true(is_found(&options, buffers[0], &made[0]));
    assert_true(is_found(&options, buffers[2], &made[2]));
    assert_false(is_found(&options, buffers[1], &made[1]));
    zr_plan_cache_destroy(&cache);
}

/* ---- threads ---- */

static void *plan_all(void *argument) {
    zr_plan_options_t with = options_with(argument), without = options_with(NULL);
    zr_plan_buffer_t buffers[N_BUFFERS];
    for (size_t i = 0; i < N_CASES; i++) {
        made_t a, b;
        make_case(i, buffers);
        if (zr_plan_offsets(buffers, N_BUFFERS, &with, a.offsets, &a.result) != ZR_OK ||
            zr_plan_offsets(buffers, N_BUFFERS, &without, b.offsets, &b.result) != ZR_OK ||
            memcmp(a.offsets, b.offsets, sizeof(a.offsets)) != 0)
            return argument;
    }
    return NULL;
}

TEST(several_threads_share_one) {
    zr_plan_cache_t *cache = zr_plan_cache_create(3 * (N_BUFFERS * 40 + 200));
    pthread_t threads[3];
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, plan_all, cache), 0);
    for (size_t i = 0; i < 3; i++) {
        void *failed = NULL;
        assert_int_equal(pthread_join(threads[i], &failed), 0);
        assert_null(failed);
    }
    zr_plan_cache_destroy(&cache);
}
