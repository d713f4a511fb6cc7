/*
 * The planner against oracles: the least height of small problems, plans without loss of cut
 * rectangles, validity of large ones, and the same plan for the same input. Work is limited
 * in steps, so that nothing here depends on time.
 */
#include "tests/allocator/plan_cases.h"
#include "tests/common/kept_log.h"
#include "tests/common/test.h"

#define MAX_BUFFERS 8000
#define TRIED(n) (TEST_IS_SLOW ? (n) / 5 : (n))

static zr_plan_buffer_t buffers[MAX_BUFFERS];
static size_t offsets[MAX_BUFFERS];

static zr_plan_options_t in_steps(uint64_t max_steps) {
    zr_plan_options_t options = zr_plan_options_default();
    options.max_seconds = 0.0;
    options.max_steps = max_steps;
    return options;
}

static zr_plan_result_t plan(size_t n_buffers, const zr_plan_options_t *options) {
    zr_plan_result_t result;
    assert_ok(zr_plan_offsets(buffers, n_buffers, options, offsets, &result));
    assert_true(plan_is_valid(buffers, n_buffers, offsets, result.height_bytes));
    assert_int_equal(result.max_live_bytes, plan_max_live(buffers, n_buffers));
    assert_true(result.bound_bytes >= result.max_live_bytes);
    assert_true(result.height_bytes >= result.bound_bytes);
    assert_int_equal(result.is_proven, result.height_bytes == result.bound_bytes);
    return result;
}

/* ---- small: the least height, and the proof ----------------------------------------------- */

static void plan_small(size_t n_buffers) {
    zr_plan_options_t options = in_steps(0);
    zr_plan_result_t result = plan(n_buffers, &options);
    size_t least = plan_least_height(buffers, n_buffers);
    assert_int_equal(result.height_bytes, least);
    assert_true(result.is_proven);
    assert_false(result.is_stopped);
}

TEST(test_least_height) {
    plan_random_t random = {1};
    for (int i = 0; i < TRIED(3000); i++) {
        size_t n = plan_random_in(&random, 1, 9);
        size_t max_size = i % 3 == 0 ? 4 : i % 3 == 1 ? 10 : 100000;
        plan_random_buffers(&random, buffers, n, max_size, plan_random_in(&random, 3, 9));
        plan_small(n);
    }
}

/* Hardly any room: some need more than what is alive at once, which has to be proven. */
TEST(test_least_height_full) {
    plan_random_t random = {11};
    size_t n_above = 0;
    for (int i = 0; i < 4000; i++) {
        size_t n = plan_random_in(&random, 8, 10), n_times = plan_random_in(&random, 8, 12);
        n = plan_full_sections(&random, buffers, n, n_times, plan_random_in(&random, 5, 8));
        if (n > 10)
            continue;
        plan_small(n);

        n_above += plan_least_height(buffers, n) > plan_max_live(buffers, n);
    }

    assert_true(n_above > 3);
}

TEST(test_least_height_aligned) {
    plan_random_t random = {2};
    for (int i = 0; i < TRIED(8000); i++) {
        size_t n = plan_random_in(&random, 1, i % 10 == 0 ? 8 : 7);
        plan_random_buffers(&random, buffers, n, 20, plan_random_in(&random, 3, 9));
        for (size_t j = 0; j < n; j++)
            buffers[j].alignment = (size_t)1 << plan_random_in(&random, 0, 4);
        plan_small(n);
    }
}

/* The least height is above what is alive at once, and the search has to find that out. */
TEST(test_unavoidable_hole) {
    static const zr_plan_buffer_t hole[] = {
        {0, 2, 3, 0}, {1, 4, 2, 0}, {3, 6, 3, 0}, {2, 3, 3, 0},
        {5, 8, 2, 0}, {4, 5, 2, 0}, {0, 1, 2, 0},
    };
    memcpy(buffers, hole, sizeof(hole));
    plan_small(N_OF(hole));
}

/* ---- the order of time ---------------------------------------------------------------------- */

#define N_LIVE 20
#define N_IN_TIME 400

/* Always as many alive: the first at once, then each when another ends. */
static void turn_over(plan_random_t *random) {
    size_t live[N_LIVE];
    for (size_t i = 0; i < N_IN_TIME; i++) {
        size_t at = i < N_LIVE ? i : plan_random_in(random, 0, N_LIVE - 1);
        int64_t now = i < N_LIVE ? 0 : 2 * (int64_t)i;
        if (i >= N_LIVE)
            buffers[live[at]].upper = now - 1;
        buffers[i] = (zr_plan_buffer_t){.lower = now,
                                        .upper = 2 * N_IN_TIME,
                                        .size_bytes = plan_random_in(random, 1, 1000),
                                        .alignment = (size_t)1 << plan_random_in(random, 0, 6)};
        live[at] = i;
    }
}

/* The tightest place between those that live when the buffer begins, by trying all of them. */
static size_t best_fit(size_t index, const bool *is_placed) {
    const zr_plan_buffer_t *own = &buffers[index];
    size_t best = SIZE_MAX, least_spare = SIZE_MAX;
    for (size_t i = 0; i <= N_IN_TIME; i++) { /* behind each, and at the bottom */
        size_t at = i == N_IN_TIME ? 0 : offsets[i] + buffers[i].size_bytes, end = SIZE_MAX;
        if (i < N_IN_TIME && (!is_placed[i] || buffers[i].upper <= own->lower))
            continue;
        at = (at + own->alignment - 1) / own->alignment * own->alignment;
        bool is_free = true;
        for (size_t k = 0; k < N_IN_TIME; k++) {
            if (!is_placed[k] || buffers[k].upper <= own->lower)
                continue;
            size_t begin = offsets[k];
            is_free &= at + own->size_bytes <= begin || at >= begin + buffers[k].size_bytes;
            end = begin >= at && begin < end ? begin : end;
        }
        size_t spare = end == SIZE_MAX ? SIZE_MAX - 1 : end - at - own->size_bytes;
        if (is_free && (spare < least_spare || (spare == least_spare && at < best))) {
            least_spare = spare;
            best = at;
        }
    }
    return best;
}

static int compare_in_time(const void *a, const void *b) {
    const zr_plan_buffer_t *x = a, *y = b;
    if (x->lower != y->lower)
        return x->lower < y->lower ? -1 : 1;
    if (x->upper != y->upper)
        return x->upper < y->upper ? -1 : 1;
    return (x->size_bytes > y->size_bytes) - (x->size_bytes < y->size_bytes);
}

/* With no step to spend there is this plan alone. */
TEST(test_order_of_time) {
    plan_random_t random = {21};
    zr_plan_options_t options = in_steps(1);
    for (int i = 0; i < 20; i++) {
        bool is_placed[N_IN_TIME] = {false};
        size_t found[N_IN_TIME];
        turn_over(&random);
        qsort(buffers, N_IN_TIME, sizeof(*buffers), compare_in_time);
        zr_plan_result_t result = plan(N_IN_TIME, &options);
        assert_string_equal(result.strategy, "time, best fit");
        memcpy(found, offsets, sizeof(found));
        for (size_t k = 0; k < N_IN_TIME; k++) {
            offsets[k] = best_fit(k, is_placed);
            is_placed[k] = true;
            assert_int_equal(found[k], offsets[k]);
        }
    }
}

/* ---- cut rectangles ------------------------------------------------------------------------ */

TEST(test_no_loss) {
    plan_random_t random = {3};
    zr_plan_options_t options = in_steps(4000000);
    for (int i = 0; i < TRIED(400); i++) {
        size_t n = plan_random_in(&random, 2, 90);
        plan_cut_rectangle(&random, buffers, n, 200, 1000);
        zr_plan_result_t result = plan(n, &options);
        assert_int_equal(result.max_live_bytes, 1000);
        assert_int_equal(result.height_bytes, 1000);
        assert_true(result.is_proven);
    }
}

/* Sizes so large and odd that the search has to count in larger units. */
TEST(test_large_sizes) {
    plan_random_t random = {4};
    zr_plan_options_t options = in_steps(100000);
    for (int i = 0; i < 50; i++) {
        size_t n = plan_random_in(&random, 10, 60), large = (size_t)1 << 40;
        plan_cut_rectangle(&random, buffers, n, 50, 100);
        for (size_t j = 0; j < n; j++)
            buffers[j].size_bytes = buffers[j].size_bytes * large + j % 3;
        zr_plan_result_t result = plan(n, &options);
        assert_true(result.height_bytes < 120 * large);
    }
}

/* ---- repetition ------------------------------------------------------------------------------ */

TEST(test_micro_batches) {
    plan_random_t random = {5};
    for (size_t n_micro_batches = 1; n_micro_batches <= 16; n_micro_batches *= 4) {
        for (size_t n_layers = 2; n_layers <= 32; n_layers *= 4) {
            size_t n = plan_micro_batches(&random, buffers, n_layers, n_micro_batches);
            zr_plan_options_t options = in_steps(1000000);
            zr_plan_result_t result = plan(n, &options);
            assert_true((double)result.height_bytes <= 1.001 * (double)result.max_live_bytes);
        }
    }
}

/* Micro-batches too irregular for most greedy orders, held together by what lives across them:
 * accumulators that begin in the first, and buffers handed on from each to the next. */
TEST(test_folding) {
    enum { N = 40, N_COPIES = 20, PERIOD = 50 };
    int n_folded = 0;
    plan_random_t random = {12};
    zr_plan_options_t options = in_steps(1000000);
    for (int i = 0; i < 10; i++) {
        size_t n = 0;
        plan_cut_rectangle(&random, buffers, N, PERIOD, 300);
        for (int copy = 0; copy < N_COPIES; copy++) {
            for (int j = 0; j < N; j++, n++) {
                buffers[n] = buffers[j];
                buffers[n].lower += copy * PERIOD;
                buffers[n].upper += copy * PERIOD;
            }
        }
        for (int copy = 0; copy < N_COPIES; copy++)
            buffers[n++] = (zr_plan_buffer_t){45 + copy * PERIOD, 55 + copy * PERIOD, 10, 0};
        for (int j = 0; j < 3; j++)
            buffers[n++] = (zr_plan_buffer_t){20 + j, N_COPIES * PERIOD, 7, 0};
        zr_plan_result_t result = plan(n, &options);
        assert_int_equal(result.max_live_bytes, 331);
        assert_int_equal(result.height_bytes, 331);
        n_folded += strcmp(result.strategy, "folded micro-batches") == 0;
    }
    assert_true(n_folded >= 5); /* an order may do, by chance */
}

/* Equal stretches that share nothing are planned once, and all lie alike. */
TEST(test_twins) {
    enum { N = 40, N_COPIES = 20 };
    plan_random_t random = {6};
    zr_plan_options_t options = in_steps(2000000);
    plan_cut_rectangle(&random, buffers, N, 50, 300);
    for (int copy = 1; copy < N_COPIES; copy++)
        for (int i = 0; i < N; i++) {
            buffers[copy * N + i] = buffers[i];
            buffers[copy * N + i].lower += copy * 50;
            buffers[copy * N + i].upper += copy * 50;
        }
    zr_plan_result_t once = plan(N, &options);
    zr_plan_result_t result = plan(N * N_COPIES, &options);
    assert_int_equal(result.height_bytes, 300);
    assert_int_equal(result.n_steps, once.n_steps);
    /* Something that lives throughout goes below all of them. */
    buffers[N * N_COPIES] = (zr_plan_buffer_t){0, N_COPIES * 50, 77, 0};
    result = plan(N * N_COPIES + 1, &options);
    assert_int_equal(result.height_bytes, 377);
    assert_int_equal(offsets[N * N_COPIES], 0);
}

/* ---- large ---------------------------------------------------------------------------------- */

TEST(test_large) {
    static const size_t counts[] = {1000, 3000, 7000};
    plan_random_t random = {7};
    for (int i = 0; i < 3; i++) {
        for (size_t j = 0; j < counts[i]; j++) {
            size_t lower = plan_random_in(&random, 0, 10000);
            size_t life = plan_random_in(&random, 1, j % 50 == 0 ? 3000 : 100);
            buffers[j] = (zr_plan_buffer_t){(int64_t)lower, (int64_t)(lower + life),
                                            256 * plan_random_in(&random, 1, 5000), 256};
        }
        zr_plan_options_t options = in_steps(200000);
        zr_plan_result_t result = plan(counts[i], &options);
        assert_true((double)result.height_bytes <= 1.1 * (double)result.max_live_bytes);
    }
}

/* ---- the same again ------------------------------------------------------------------------- */

TEST(test_same_plan) {
    static size_t first[MAX_BUFFERS];
    plan_random_t random = {8};
    for (int i = 0; i < 20; i++) {
        size_t n = plan_random_in(&random, 50, 200);
        plan_random_buffers(&random, buffers, n, 1000, 60);
        zr_plan_options_t options = in_steps(50000);
        zr_plan_result_t a = plan(n, &options);
        memcpy(first, offsets, sizeof(first));
        zr_plan_result_t b = plan(n, &options);
        assert_memory_equal(first, offsets, n * sizeof(*offsets));
        assert_int_equal(a.n_steps, b.n_steps);
        assert_string_equal(a.strategy, b.strategy);
    }
}

/* ---- stopping ------------------------------------------------------------------------------- */

/* A clock that ticks each time it is looked at, and ends the work at a tick. */
typedef struct ticks {
    int n_looks, cancel_at;
} ticks_t;

static double tick(void *context) {
    ticks_t *ticks = context;
    return 0.01 * ++ticks->n_looks;
}

static bool is_cancelled(void *context) {
    ticks_t *ticks = context;
    return ++ticks->n_looks >= ticks->cancel_at;
}

TEST(test_deadline_and_cancel) {
    plan_random_t random = {9};
    plan_random_buffers(&random, buffers, 300, 100000, 400);
    for (int i = 0; i < 40; i++) {
        ticks_t ticks = {.cancel_at = i / 2};
        zr_plan_options_t options = in_steps(0);
        options.context = &ticks;
        if (i % 2 == 0) {
            options.clock = tick;
            options.max_seconds = 0.005 * (i + 1);
        } else {
            options.is_cancelled = is_cancelled;
        }
        zr_plan_result_t result = plan(300, &options);
        assert_true(result.is_stopped || result.is_proven);
        assert_in_range(ticks.n_looks, 1, i + 5);
    }
}

/* With a capacity it stops as soon as that is reached, however low it could get. */
TEST(test_capacity) {
    plan_random_t random = {10};
    plan_cut_rectangle(&random, buffers, 80, 200, 1000);
    zr_plan_options_t options = in_steps(4000000);
    options.capacity_bytes = 3000;
    zr_plan_result_t easy = plan(80, &options);
    assert_true(easy.height_bytes <= 3000);
    assert_false(easy.is_stopped);
    options.capacity_bytes = 1000;
    zr_plan_result_t hard = plan(80, &options);
    assert_int_equal(hard.height_bytes, 1000);
    assert_true(hard.n_steps > easy.n_steps);
    options.capacity_bytes = 999; /* cannot be: the least is found instead */
    zr_plan_result_t impossible = plan(80, &options);
    assert_int_equal(impossible.height_bytes, 1000);
    assert_true(impossible.is_proven);
}

/* ---- hostile input -------------------------------------------------------------------------- */

static void assert_refused(zr_plan_buffer_t bad) {
    kept_log_t kept;
    zr_plan_options_t options = in_steps(1000);
    zr_plan_result_t result = {.height_bytes = 12345};
    options.log = kept_log(&kept, options.log.level);
    buffers[0] = (zr_plan_buffer_t){0, 10, 64, 0};
    buffers[1] = bad;
    offsets[0] = offsets[1] = 4711;
    assert_int_equal(zr_plan_offsets(buffers, 2, &options, offsets, &result), ZR_ERR_ARGUMENT);
    assert_int_equal(kept.n_messages, 1);
    assert_int_equal(offsets[0], 4711);
    assert_int_equal(result.height_bytes, 12345);
    assert_int_equal(zr_plan_max_live(buffers, 2), 0);
}

TEST(test_refused) {
    assert_refused((zr_plan_buffer_t){5, 5, 1, 0});
    assert_refused((zr_plan_buffer_t){6, 5, 1, 0});
    assert_refused((zr_plan_buffer_t){INT64_MAX, INT64_MIN, 1, 0});
    assert_refused((zr_plan_buffer_t){0, 1, 1, 3});
    assert_refused((zr_plan_buffer_t){0, 1, 1, (size_t)1 << 41});
    assert_refused((zr_plan_buffer_t){0, 1, SIZE_MAX, 0});
    assert_refused((zr_plan_buffer_t){0, 1, ZR_PLAN_MAX_BYTES, 0});
    assert_refused((zr_plan_buffer_t){0, 1, SIZE_MAX - 63, 0});
    kept_log_t kept;
    zr_plan_options_t options = in_steps(1000);
    options.log = kept_log(&kept, options.log.level);
    assert_int_equal(zr_plan_offsets(NULL, 1, &options, offsets, NULL), ZR_ERR_ARGUMENT);
    assert_int_equal(zr_plan_offsets(buffers, 1, &options, NULL, NULL), ZR_ERR_ARGUMENT);
    assert_int_equal(zr_plan_offsets(buffers, SIZE_MAX / 2, &options, offsets, NULL),
                     ZR_ERR_ARGUMENT);
    assert_int_equal(kept.n_messages, 3);
}

TEST(test_extremes) {
    zr_plan_options_t options = in_steps(100000);
    assert_int_equal(plan(0, &options).height_bytes, 0);
    assert_ok(zr_plan_offsets(NULL, 0, NULL, NULL, NULL));
    buffers[0] = (zr_plan_buffer_t){INT64_MIN, INT64_MAX, (size_t)1 << 60, 0};
    buffers[1] = (zr_plan_buffer_t){INT64_MIN, -1, (size_t)1 << 60, (size_t)1 << 40};
    buffers[2] = (zr_plan_buffer_t){-1, INT64_MAX, (size_t)1 << 60, 1};
    buffers[3] = (zr_plan_buffer_t){-2, 2, 0, 1024};
    assert_int_equal(plan(4, &options).height_bytes, (size_t)2 << 60);
    /* Many that are all the same, and none that overlap. */
    for (size_t i = 0; i < 3000; i++)
        buffers[i] = (zr_plan_buffer_t){0, 1, 1, 0};
    assert_int_equal(plan(3000, &options).height_bytes, 3000);
    for (size_t i = 0; i < 3000; i++)
        buffers[i] = (zr_plan_buffer_t){(int64_t)i, (int64_t)i + 1, 5, 0};
    assert_int_equal(plan(3000, &options).height_bytes, 5);
    /* Lives within lives: each is at the bottom of what remains. */
    for (size_t i = 0; i < 3000; i++)
        buffers[i] = (zr_plan_buffer_t){(int64_t)i, 6000 - (int64_t)i, 5, 0};
    assert_int_equal(plan(3000, &options).height_bytes, 15000);
}
