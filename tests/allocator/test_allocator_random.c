/*
 * A million random requests and frees per class, and a million over all classes together, against
 * the oracle of replay_steps.c: both tiers, sizes from nothing to large, frees behind streams that
 * are late, and budgets that are felt. In the end each class is one range again.
 */
#include "tests/allocator/replay_steps.h"
#include "tests/common/test.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define N_OPERATIONS 20000
#else
#define N_OPERATIONS 1000000
#endif

#define N_SLOTS 48
#define N_STREAMS_USED 3
#define MIXED ZR_N_LIFETIMES

typedef struct traffic {
    steps_t *steps;
    uint64_t random;
    int class_index; /* or MIXED */
    size_t n_wanted; /* slots in use at most, for now */
} traffic_t;

static size_t below(traffic_t *traffic, size_t n) {
    return (size_t)(fake_random(&traffic->random) % n);
}

static size_t random_size(traffic_t *traffic) {
    switch (below(traffic, 8)) {
    case 0:
        return below(traffic, 3);
    case 1:
        return 256 * (1 + below(traffic, 40));
    case 2:
        return below(traffic, 16) == 0 ? below(traffic, 150000) : below(traffic, 20000);
    default:
        return 1 + below(traffic, 6000);
    }
}

static int random_stream(traffic_t *traffic) {
    return (int)below(traffic, N_STREAMS_USED + 1) - 1; /* or none */
}

static void do_one(traffic_t *traffic) {
    steps_t *steps = traffic->steps;
    int slot = (int)below(traffic, N_SLOTS);
    step_op_t op = {.kind = STEP_FREE, .slot = slot, .stream = random_stream(traffic)};
    if (steps->tensors[slot].pointer == NULL) {
        if (slot >= (int)traffic->n_wanted)
            return;
        op.kind = STEP_ALLOCATE;
        op.size_bytes = random_size(traffic);
        op.tier = below(traffic, 4) == 0 ? ZR_TIER_HOST : ZR_TIER_DEVICE;
        op.tag = (zr_tag_t)below(traffic, ZR_N_TAGS);
        op.lifetime = (zr_lifetime_t)(traffic->class_index == MIXED ? below(traffic, ZR_N_LIFETIMES)
                                                                    : (size_t)traffic->class_index);
    }
    zr_status_t status = steps_do(steps, &op);
    assert_true(status == ZR_OK || status == ZR_ERR_BUDGET);
}

static void do_something_rare(traffic_t *traffic, size_t i) {
    steps_t *steps = traffic->steps;
    if (i % 8 == 0)
        fake_stream_pass(steps->streams[below(traffic, N_STREAMS_USED)], 1 + below(traffic, 4));
    if (i % 500 == 0)
        traffic->n_wanted = 1 + below(traffic, N_SLOTS);
    if (i % 1000 == 0)
        steps_check(steps);
    if (below(traffic, 4000) == 0)
        assert_ok(zr_allocator_trim(steps->allocator, (zr_tier_t)below(traffic, 2)));
    if (steps->fake->n_logged[ZR_LOG_ERROR] > 0)
        fake_log_clear(steps->fake);
}

static void run(int class_index, bool is_late, size_t granule_bytes, size_t budget_bytes) {
    steps_options_t options = {
        .granule_bytes = granule_bytes, .is_late = is_late, .budget_bytes = budget_bytes};
    traffic_t traffic = {.steps = steps_open(&options),
                         .random = 77 + (uint64_t)class_index,
                         .class_index = class_index,
                         .n_wanted = N_SLOTS};
    for (size_t i = 0; traffic.steps->n_operations < N_OPERATIONS; i++) {
        do_something_rare(&traffic, i);
        do_one(&traffic);
    }
    printf("%s: %zu operations, %zu refused, %zu maps, %zu waits\n",
           class_index == MIXED ? "mixed" : zr_class_name(class_index), traffic.steps->n_operations,
           traffic.steps->n_refused, traffic.steps->fake->n_maps, traffic.steps->fake->n_waits);
    assert_true(traffic.steps->n_refused > 0);
    assert_true(!is_late || traffic.steps->fake->n_waits > 0);
    steps_close(&traffic.steps);
}

TEST(test_each_class) {
    for (int i = 0; i < ZR_N_LIFETIMES; i++)
        run(i, i % 2 == 0, i % 3 == 0 ? 16384 : 4096, 200000);
}

TEST(test_all_classes_together) {
    run(MIXED, true, 4096, 250000);
}
