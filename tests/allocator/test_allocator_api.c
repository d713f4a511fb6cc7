/*
 * What each call of the allocator promises, one promise per test: arguments, empty
 * allocations, wrong frees, counts and their peaks, trimming, leaks.
 */
#include "allocator/internal.h"
#include "tests/allocator/fake_device.h"
#include "tests/common/test.h"

#define GRANULE ((size_t)65536)

typedef struct fixture {
    fake_t *fake;
    zr_allocator_t *allocator;
} fixture_t;

static int setup(void **state) {
    fixture_t *fixture = calloc(1, sizeof(*fixture));
    fixture->fake = fake_open(GRANULE, false);
    zr_allocator_options_t options = zr_allocator_options_default();
    options.log = fake_log(fixture->fake);
    options.budget_bytes[ZR_TIER_DEVICE] = 64 * GRANULE;
    if (zr_allocator_create(fixture->fake->device, &options, &fixture->allocator) != ZR_OK)
        return -1;
    *state = fixture;
    return 0;
}

static int teardown(void **state) {
    fixture_t *fixture = *state;
    bool is_valid = fixture->allocator == NULL || zr_allocator_is_valid(fixture->allocator);
    zr_allocator_destroy(&fixture->allocator);
    fake_close(fixture->fake);
    free(fixture);
    return is_valid ? 0 : -1;
}

static zr_allocation_request_t request_of(size_t size_bytes) {
    return (zr_allocation_request_t){.size_bytes = size_bytes,
                                     .tier = ZR_TIER_DEVICE,
                                     .tag = ZR_TAG_ACTIVATIONS,
                                     .lifetime = ZR_LIFETIME_STEP,
                                     .name = "x"};
}

static void *allocate(fixture_t *fixture, size_t size_bytes) {
    zr_allocation_request_t request = request_of(size_bytes);
    void *pointer = NULL;
    assert_ok(zr_allocate(fixture->allocator, &request, &pointer));
    assert_non_null(pointer);
    return pointer;
}

static zr_tier_statistics_t statistics_of(fixture_t *fixture, zr_tier_t tier) {
    zr_tier_statistics_t statistics;
    zr_allocator_statistics(fixture->allocator, tier, &statistics);
    return statistics;
}

/* ---- arguments --------------------------------------------------------------------- */

TEST(test_names) {
    assert_string_equal(zr_tag_name(ZR_TAG_PARAMETERS), "parameters");
    assert_string_equal(zr_tag_name(ZR_TAG_GRADIENT_BUCKETS), "gradient_buckets");
    assert_string_equal(zr_tag_name(ZR_TAG_OTHER), "other");
    assert_string_equal(zr_tag_name((zr_tag_t)ZR_N_TAGS), "?");
    assert_string_equal(zr_lifetime_name(ZR_LIFETIME_MICRO_BATCH), "micro_batch");
    assert_string_equal(zr_lifetime_name(ZR_LIFETIME_COLLECTIVE), "collective");
    assert_string_equal(zr_lifetime_name((zr_lifetime_t)-1), "?");
}

TEST_WITH(test_wrong_arguments_are_refused, setup, teardown) {
    fixture_t *fixture = *state;
    zr_allocator_t *none = NULL;
    zr_allocator_options_t options = zr_allocator_options_default();
    options.log = fake_log(fixture->fake);
    assert_int_equal(zr_allocator_create(NULL, &options, &none), ZR_ERR_ARGUMENT);
    assert_int_equal(zr_allocator_create(fixture->fake->device, &options, NULL), ZR_ERR_ARGUMENT);

    void *pointer = NULL;
    zr_allocation_request_t request = request_of(8);
    assert_int_equal(zr_allocate(fixture->allocator, NULL, &pointer), ZR_ERR_ARGUMENT);
    assert_int_equal(zr_allocate(fixture->allocator, &request, NULL), ZR_ERR_ARGUMENT);
    request.tier = ZR_TIER_NVME;
    assert_int_equal(zr_allocate(fixture->allocator, &request, &pointer), ZR_ERR_ARGUMENT);
    request = request_of(8);
    request.tag = (zr_tag_t)ZR_N_TAGS;
    assert_int_equal(zr_allocate(fixture->allocator, &request, &pointer), ZR_ERR_ARGUMENT);
    request = request_of(8);
    request.lifetime = (zr_lifetime_t)-1;
    assert_int_equal(zr_allocate(fixture->allocator, &request, &pointer), ZR_ERR_ARGUMENT);
    assert_null(pointer);
    assert_int_equal(zr_allocator_trim(fixture->allocator, ZR_TIER_NVME), ZR_ERR_ARGUMENT);
    assert_int_equal(fixture->fake->n_logged[ZR_LOG_ERROR], 8);
    assert_int_equal(statistics_of(fixture, ZR_TIER_NVME).n_allocations, 0);
}

TEST(test_destroy_takes_null) {
    zr_allocator_t *none = NULL;
    zr_allocator_destroy(NULL);
    zr_allocator_destroy(&none);
}

TEST_WITH(test_defaults_have_no_budget, setup, teardown) {
    fixture_t *fixture = *state;
    zr_allocator_t *allocator = NULL;
    assert_ok(zr_allocator_create(fixture->fake->device, NULL, &allocator));
    zr_tier_statistics_t statistics;
    zr_allocator_statistics(allocator, ZR_TIER_HOST, &statistics);
    assert_true(statistics.budget_bytes == ZR_NO_BUDGET);
    zr_allocation_request_t request = request_of(3 * GRANULE + 1);
    request.tier = ZR_TIER_HOST;
    void *pointer = NULL;
    assert_ok(zr_allocate(allocator, &request, &pointer));
    memset(pointer, 1, request.size_bytes);
    zr_free(allocator, &pointer, NULL);
    zr_allocator_destroy(&allocator);
}

/* ---- allocating and freeing ----------------------------------------------------------- */

TEST_WITH(test_empty_allocations, setup, teardown) {
    fixture_t *fixture = *state;
    enum { N = 300 };
    void *pointers[N];
    for (int i = 0; i < N; i++) {
        pointers[i] = allocate(fixture, 0);
        for (int k = 0; k < i; k++)
            assert_ptr_not_equal(pointers[i], pointers[k]);
    }
    void *one = allocate(fixture, 1);
    zr_tier_statistics_t statistics = statistics_of(fixture, ZR_TIER_DEVICE);
    assert_int_equal(statistics.n_live, N + 1);
    assert_int_equal(statistics.live.live, 1);
    assert_int_equal(statistics.reserved.live, GRANULE); /* that of the one byte */
    for (int i = 0; i < N; i++)
        zr_free(fixture->allocator, &pointers[i], NULL);
    zr_free(fixture->allocator, &one, NULL);
    assert_int_equal(statistics_of(fixture, ZR_TIER_DEVICE).n_live, 0);
}

TEST_WITH(test_empty_allocations_need_no_budget, setup, teardown) {
    fixture_t *fixture = *state;
    zr_allocator_options_t options = zr_allocator_options_default();
    options.log = fake_log(fixture->fake);
    options.budget_bytes[ZR_TIER_HOST] = 0;
    zr_allocator_t *allocator = NULL;
    assert_ok(zr_allocator_create(fixture->fake->device, &options, &allocator));
    zr_allocation_request_t request = request_of(0);
    request.tier = ZR_TIER_HOST;
    void *empty = NULL, *full = NULL;
    assert_ok(zr_allocate(allocator, &request, &empty));
    request.size_bytes = 1;
    assert_int_equal(zr_allocate(allocator, &request, &full), ZR_ERR_BUDGET);
    zr_free(allocator, &empty, NULL);
    zr_allocator_destroy(&allocator);
}

TEST_WITH(test_wrong_frees_are_harmless, setup, teardown) {
    fixture_t *fixture = *state;
    void *pointer = allocate(fixture, 1000), *copy = pointer, *inside = (char *)pointer + 256;
    int local = 0;
    void *foreign = &local, *none = NULL;

    zr_free(fixture->allocator, &none, NULL);
    zr_free(fixture->allocator, NULL, NULL);
    assert_int_equal(fixture->fake->n_logged[ZR_LOG_ERROR], 0);
    zr_free(fixture->allocator, &foreign, NULL);
    assert_ptr_equal(foreign, &local);
    zr_free(fixture->allocator, &inside, NULL);
    assert_int_equal(fixture->fake->n_logged[ZR_LOG_ERROR], 2);
    assert_int_equal(statistics_of(fixture, ZR_TIER_DEVICE).n_live, 1);

    zr_free(fixture->allocator, &pointer, NULL);
    assert_null(pointer);
    zr_free(fixture->allocator, &copy, NULL);
    assert_int_equal(fixture->fake->n_logged[ZR_LOG_ERROR], 3);
    assert_has(fixture->fake->text, "not live");
    assert_int_equal(statistics_of(fixture, ZR_TIER_DEVICE).live.live, 0);
}

TEST_WITH(test_classes_share_no_granule, setup, teardown) {
    fixture_t *fixture = *state;
    void *pointers[ZR_N_LIFETIMES];
    for (int i = 0; i < ZR_N_LIFETIMES; i++) {
        zr_allocation_request_t request = request_of(256);
        request.lifetime = (zr_lifetime_t)i;
        assert_ok(zr_allocate(fixture->allocator, &request, &pointers[i]));
        for (int k = 0; k < i; k++)
            assert_true((uintptr_t)pointers[i] / GRANULE != (uintptr_t)pointers[k] / GRANULE);
    }
    zr_tier_statistics_t statistics = statistics_of(fixture, ZR_TIER_DEVICE);
    assert_int_equal(statistics.reserved.live, ZR_N_LIFETIMES * GRANULE);
    for (int i = 0; i < ZR_N_LIFETIMES; i++)
        zr_free(fixture->allocator, &pointers[i], NULL);
}

TEST_WITH(test_best_fit_takes_the_smallest_hole, setup, teardown) {
    fixture_t *fixture = *state;
    void *large = allocate(fixture, 40 * 1024), *wall = allocate(fixture, 256);
    void *small = allocate(fixture, 20 * 1024), *wall2 = allocate(fixture, 256);
    void *small_before = small;
    zr_free(fixture->allocator, &large, NULL);
    zr_free(fixture->allocator, &small, NULL);
    small = allocate(fixture, 18 * 1024);
    assert_ptr_equal(small, small_before);
    zr_free(fixture->allocator, &small, NULL);
    zr_free(fixture->allocator, &wall, NULL);
    zr_free(fixture->allocator, &wall2, NULL);
}

TEST_WITH(test_a_hole_that_fits_is_never_missed, setup, teardown) {
    /* More holes in one bin than are looked at first, all too small but the oldest. */
    fixture_t *fixture = *state;
    enum { N = ZR_BIN_PROBES + 10 };
    size_t small = 64 * 1024, right = small + 512; /* the same bin */
    void *holes[N], *walls[N];
    for (int i = 0; i < N; i++) {
        holes[i] = allocate(fixture, i == 0 ? right : small);
        walls[i] = allocate(fixture, 256);
    }
    void *expected = holes[0];
    for (int i = 0; i < N; i++)
        zr_free(fixture->allocator, &holes[i], NULL);
    size_t n_maps = fixture->fake->n_maps;
    void *pointer = allocate(fixture, right);
    assert_ptr_equal(pointer, expected);
    assert_int_equal(fixture->fake->n_maps, n_maps);
    zr_free(fixture->allocator, &pointer, NULL);
    for (int i = 0; i < N; i++)
        zr_free(fixture->allocator, &walls[i], NULL);
}

TEST_WITH(test_steady_steps_make_no_device_call, setup, teardown) {
    fixture_t *fixture = *state;
    size_t n_calls = 0;
    for (int step = 0; step < 5; step++) {
        void *pointers[20];
        for (int i = 0; i < 20; i++)
            pointers[i] = allocate(fixture, (size_t)(1 + i * i) * 517);
        for (int i = 0; i < 20; i++)
            zr_free(fixture->allocator, &pointers[(i * 7) % 20], NULL);
        zr_tier_statistics_t statistics = statistics_of(fixture, ZR_TIER_DEVICE);
        assert_int_equal(statistics.n_map_calls, fixture->fake->n_maps);
        assert_int_equal(statistics.n_unmap_calls, fixture->fake->n_unmaps);
        assert_int_equal(statistics.n_move_calls, fixture->fake->n_moves);
        if (step == 0)
            n_calls = statistics.n_map_calls;
        assert_int_equal(
            statistics.n_map_calls + statistics.n_unmap_calls + statistics.n_move_calls, n_calls);
    }
    assert_true(n_calls > 0);
}

/* ---- poison: sanitized builds only ------------------------------------------------------- */

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>

TEST_WITH(test_what_is_free_is_poisoned, setup, teardown) {
    fixture_t *fixture = *state;
    void *pointer = allocate(fixture, 1000);
    char *bytes = pointer;
    assert_null(__asan_region_is_poisoned(bytes, 1000));
    for (int i = 0; i < 24; i++)
        assert_true(__asan_address_is_poisoned(bytes + 1000 + i));
    zr_free(fixture->allocator, &pointer, NULL);
    for (int i = 0; i < 1000; i++)
        assert_true(__asan_address_is_poisoned(bytes + i));
}
#elif defined(__SANITIZE_THREAD__)
TEST_WITH(test_what_is_free_is_poisoned, setup, teardown) {
    fixture_t *fixture = *state;
    void *pointer = allocate(fixture, 1000);
    unsigned char *bytes = pointer;
    assert_int_equal(bytes[999], 0xff);
    memset(bytes, 7, 1000);
    zr_free(fixture->allocator, &pointer, NULL);
    for (int i = 0; i < 1000; i++)
        assert_int_equal(bytes[i], 0xff);
}
#else
TEST_WITH(test_what_is_free_is_poisoned, setup, teardown) {
    print_message("only in sanitized builds\n");
    skip();
}
#endif

/* ---- counts ------------------------------------------------------------------------------ */

TEST_WITH(test_counts_and_peaks, setup, teardown) {
    fixture_t *fixture = *state;
    void *a = allocate(fixture, 1000), *b = allocate(fixture, 3);
    zr_free(fixture->allocator, &a, NULL);
    zr_tier_statistics_t statistics = statistics_of(fixture, ZR_TIER_DEVICE);
    assert_int_equal(statistics.budget_bytes, 64 * GRANULE);
    assert_int_equal(statistics.live.live, 3);
    assert_int_equal(statistics.live.peak, 1003);
    assert_int_equal(statistics.by_tag[ZR_TAG_ACTIVATIONS].live, 3);
    assert_int_equal(statistics.by_tag[ZR_TAG_ACTIVATIONS].peak, 1003);
    assert_int_equal(statistics.by_tag[ZR_TAG_DATA].peak, 0);
    assert_int_equal(statistics.at_peak[ZR_TAG_ACTIVATIONS], 1003);
    assert_int_equal(statistics.by_lifetime[ZR_LIFETIME_STEP].peak, 1003);
    assert_int_equal(statistics.by_lifetime[ZR_LIFETIME_UNIT].peak, 0);
    assert_int_equal(statistics.n_live, 1);
    assert_int_equal(statistics.n_allocations, 2);
    assert_int_equal(statistics_of(fixture, ZR_TIER_HOST).live.peak, 0);
    zr_free(fixture->allocator, &b, NULL);
}

/* The hole is that of the moment when live was largest, whatever is freed later. */
TEST_WITH(test_holes_at_the_peak, setup, teardown) {
    fixture_t *fixture = *state;
    void *first = allocate(fixture, 2 * GRANULE), *middle = allocate(fixture, 3 * GRANULE);
    void *last = allocate(fixture, GRANULE);
    int class = (int)request_of(1).lifetime;
    zr_free(fixture->allocator, &middle, NULL);
    assert_int_equal(statistics_of(fixture, ZR_TIER_DEVICE).by_class[class].largest_hole_bytes, 0);
    zr_allocation_request_t request = request_of(4 * GRANULE);
    request.lifetime = ZR_LIFETIME_COLLECTIVE;
    assert_int_not_equal(class, ZR_LIFETIME_COLLECTIVE);
    void *other = NULL;
    assert_ok(zr_allocate(fixture->allocator, &request, &other));
    for (int round = 0; round < 2; round++) {
        zr_tier_statistics_t statistics = statistics_of(fixture, ZR_TIER_DEVICE);
        assert_int_equal(statistics.by_class[class].largest_hole_bytes, 3 * GRANULE);
        assert_int_equal(statistics.by_class[ZR_LIFETIME_COLLECTIVE].largest_hole_bytes, 0);
        assert_int_equal(statistics.by_class[class].reserved.peak, 6 * GRANULE);
        assert_int_equal(statistics.by_class[ZR_LIFETIME_COLLECTIVE].reserved.peak, 4 * GRANULE);
        zr_free(fixture->allocator, &first, NULL);
        zr_free(fixture->allocator, &last, NULL);
        zr_free(fixture->allocator, &other, NULL);
    }
    assert_ok(zr_allocator_trim(fixture->allocator, ZR_TIER_DEVICE));
    zr_tier_statistics_t statistics = statistics_of(fixture, ZR_TIER_DEVICE);
    assert_int_equal(statistics.by_class[class].reserved.live, 0);
    assert_int_equal(statistics.by_class[class].reserved.peak, 6 * GRANULE);
    zr_allocator_reset_peaks(fixture->allocator);
    statistics = statistics_of(fixture, ZR_TIER_DEVICE);
    assert_int_equal(statistics.by_class[class].reserved.peak, 0);
    assert_int_equal(statistics.by_class[class].largest_hole_bytes, 0);
}

TEST_WITH(test_reset_of_peaks, setup, teardown) {
    fixture_t *fixture = *state;
    void *a = allocate(fixture, 4 * GRANULE), *b = allocate(fixture, 5);
    zr_free(fixture->allocator, &a, NULL);
    assert_ok(zr_allocator_trim(fixture->allocator, ZR_TIER_DEVICE));
    zr_allocator_reset_peaks(fixture->allocator);
    zr_tier_statistics_t statistics = statistics_of(fixture, ZR_TIER_DEVICE);
    assert_int_equal(statistics.live.peak, 5);
    assert_int_equal(statistics.reserved.live, GRANULE);
    assert_int_equal(statistics.reserved.peak, GRANULE);
    assert_int_equal(statistics.by_tag[ZR_TAG_ACTIVATIONS].peak, 5);
    assert_int_equal(statistics.by_lifetime[ZR_LIFETIME_STEP].peak, 5);
    assert_int_equal(statistics.n_allocations, 2);
    zr_free(fixture->allocator, &b, NULL);
    assert_int_equal(statistics_of(fixture, ZR_TIER_DEVICE).live.peak, 5);
}

TEST_WITH(test_trim_gives_idle_memory_back, setup, teardown) {
    fixture_t *fixture = *state;
    void *keep = allocate(fixture, 100), *drop = allocate(fixture, 10 * GRANULE);
    zr_free(fixture->allocator, &drop, NULL);
    assert_int_equal(statistics_of(fixture, ZR_TIER_DEVICE).reserved.live, 11 * GRANULE);
    assert_ok(zr_allocator_trim(fixture->allocator, ZR_TIER_DEVICE));
    assert_int_equal(statistics_of(fixture, ZR_TIER_DEVICE).reserved.live, GRANULE);
    assert_int_equal(fixture->fake->mapped_bytes[ZR_TIER_DEVICE], GRANULE);
    zr_free(fixture->allocator, &keep, NULL);
}

/* ---- leaks ---------------------------------------------------------------------------------- */

TEST_WITH(test_leaks_are_told_per_tag, setup, teardown) {
    fixture_t *fixture = *state;
    allocate(fixture, 1000);
    allocate(fixture, 24);
    zr_allocation_request_t request = request_of(1 << 20);
    request.tier = ZR_TIER_HOST;
    request.tag = ZR_TAG_OPTIMIZER_STATE;
    void *pointer = NULL;
    assert_ok(zr_allocate(fixture->allocator, &request, &pointer));
    zr_allocator_destroy(&fixture->allocator);
    assert_null(fixture->allocator);
    const char *text = fixture->fake->text;
    assert_non_null(
        strstr(text, "device memory: never freed: 2 allocations of activations, 0.0 MiB (1024 b"));
    assert_has(text,
               "host memory: never freed: 1 allocation of optimizer_state, 1.0 MiB (1048576 b");
    assert_int_equal(fixture->fake->n_logged[ZR_LOG_WARNING], 2);
}
