/*
 * What happens when no hole fits and the budget is near: who is asked first, that idle granules are
 * moved and not given back, that scattered ones come together in one place, that any call into the
 * device may fail without anything being lost, and that frugal growth keeps what is reserved near
 * what is live.
 */
#include "allocator/internal.h"
#include "tests/allocator/fake_device.h"
#include "tests/common/test.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define IS_POISONED /* the library is: allocator/poison_internal.h */
#endif

#define GRANULE ((size_t)16384)
#define N_GRANULES 32 /* in the budget */

typedef struct fixture {
    fake_t *fake;
    zr_allocator_t *allocator;
    zr_stream_t *stream;
} fixture_t;

static void open_with(fixture_t *fixture, size_t budget_bytes) {
    *fixture = (fixture_t){.fake = fake_open(GRANULE, true)};
    zr_allocator_options_t options = zr_allocator_options_default();
    options.log = fake_log(fixture->fake);
    options.budget_bytes[ZR_TIER_DEVICE] = budget_bytes;
    options.budget_bytes[ZR_TIER_HOST] = GRANULE;
    assert_ok(zr_allocator_create(fixture->fake->device, &options, &fixture->allocator));
    assert_ok(zr_stream_create(fixture->fake->device, "test", &fixture->stream));
}

static void close_it(fixture_t *fixture) {
    assert_true(zr_allocator_is_valid(fixture->allocator));
    zr_stream_destroy(&fixture->stream);
    zr_allocator_destroy(&fixture->allocator);
    fake_close(fixture->fake);
}

static int setup(void **state) {
    fixture_t *fixture = calloc(1, sizeof(*fixture));
    assert_non_null(fixture);
    open_with(fixture, N_GRANULES * GRANULE);
    *state = fixture;
    return 0;
}

static int teardown(void **state) {
    close_it(*state);
    free(*state);
    return 0;
}

static zr_status_t try_allocate(const fixture_t *fixture, size_t size_bytes, zr_lifetime_t lifetime,
                                void **pointer_p) {
    zr_allocation_request_t request = {.size_bytes = size_bytes,
                                       .tier = ZR_TIER_DEVICE,
                                       .tag = ZR_TAG_OTHER,
                                       .lifetime = lifetime,
                                       .name = "h.3"};
    return zr_allocate(fixture->allocator, &request, pointer_p);
}

static void *allocate(const fixture_t *fixture, size_t size_bytes, zr_lifetime_t lifetime) {
    void *pointer = NULL;
    assert_ok(try_allocate(fixture, size_bytes, lifetime, &pointer));
    return pointer;
}

static void give(const fixture_t *fixture, void *pointer) {
    zr_free(fixture->allocator, &pointer, NULL);
}

/* Granules that a class has mapped. */
static size_t mapped(const fixture_t *fixture, zr_lifetime_t lifetime) {
    return fixture->allocator->tiers[ZR_TIER_DEVICE].arenas[lifetime].mapped_bytes / GRANULE;
}

static zr_tier_statistics_t statistics_of(const fixture_t *fixture) {
    zr_tier_statistics_t statistics;
    zr_allocator_statistics(fixture->allocator, ZR_TIER_DEVICE, &statistics);
    return statistics;
}

/* Let a class have mapped granules that nobody uses. */
static void make_idle(const fixture_t *fixture, size_t n_granules, zr_lifetime_t lifetime) {
    give(fixture, allocate(fixture, n_granules * GRANULE, lifetime));
}

static size_t below(uint64_t *state, size_t n) {
    return (size_t)(random_bits(state) % n);
}

/* ---- who is asked first ------------------------------------------------------------------ */

TEST_WITH(test_within_the_budget_memory_is_mapped, setup, teardown) {
    fixture_t *fixture = *state;
    make_idle(fixture, 16, ZR_LIFETIME_STEP);
    fake_forget_calls(fixture->fake);
    give(fixture, allocate(fixture, 16 * GRANULE, ZR_LIFETIME_UNIT));
    assert_string_equal(fixture->fake->calls, "m");
    assert_int_equal(mapped(fixture, ZR_LIFETIME_STEP), 16);
}

TEST_WITH(test_only_what_exceeds_the_budget_is_moved, setup, teardown) {
    fixture_t *fixture = *state;
    make_idle(fixture, 20, ZR_LIFETIME_STEP);
    fake_forget_calls(fixture->fake);
    give(fixture, allocate(fixture, 15 * GRANULE, ZR_LIFETIME_UNIT));
    assert_string_equal(fixture->fake->calls, "vm");
    assert_int_equal(mapped(fixture, ZR_LIFETIME_STEP), 17);
    assert_int_equal(mapped(fixture, ZR_LIFETIME_UNIT), 15);
    assert_int_equal(statistics_of(fixture).n_move_calls, 1);
    assert_int_equal(statistics_of(fixture).reserved.live, N_GRANULES * GRANULE);
}

TEST_WITH(test_pending_frees_come_before_moves, setup, teardown) {
    fixture_t *fixture = *state;
    make_idle(fixture, 8, ZR_LIFETIME_STEP);
    void *unit[3];
    for (int i = 0; i < 3; i++)
        unit[i] = allocate(fixture, 8 * GRANULE, ZR_LIFETIME_UNIT);
    for (int i = 0; i < 3; i++) {
        fake_stream_queue(fixture->stream);
        zr_free(fixture->allocator, &unit[i], fixture->stream);
    }
    fake_forget_calls(fixture->fake);
    give(fixture, allocate(fixture, 16 * GRANULE, ZR_LIFETIME_UNIT)); /* two of the frees do */
    assert_string_equal(fixture->fake->calls, "ww");
    give(fixture, allocate(fixture, 26 * GRANULE, ZR_LIFETIME_UNIT));
    assert_string_equal(fixture->fake->calls, "wwwv");
}

/* The longest lives first, because they are missed last; and the class's own after all others. */
TEST_WITH(test_other_classes_give_first, setup, teardown) {
    fixture_t *fixture = *state;
    static const zr_lifetime_t order[] = {ZR_LIFETIME_PERSISTENT, ZR_LIFETIME_MICRO_BATCH,
                                          ZR_LIFETIME_UNIT, ZR_LIFETIME_COLLECTIVE};
    static const size_t left[][4] = {{2, 4, 4, 12}, {0, 4, 4, 12}, {0, 2, 4, 12},
                                     {0, 0, 4, 12}, {0, 0, 2, 12}, {0, 0, 0, 12}};
    for (int i = 0; i < 4; i++)
        make_idle(fixture, left[0][i] + (i == 0 ? 2 : 0), order[i]);
    void *low = allocate(fixture, 4 * GRANULE, ZR_LIFETIME_STEP);
    void *wall = allocate(fixture, 4 * GRANULE, ZR_LIFETIME_STEP);
    for (size_t i = 0; i < 6; i++) {
        make_idle(fixture, 2 * (i + 1), ZR_LIFETIME_STEP); /* two more than before */
        for (int k = 0; k < 4; k++)
            assert_int_equal(mapped(fixture, order[k]), left[i][k]);
    }
    give(fixture, low);
    fake_forget_calls(fixture->fake);
    make_idle(fixture, 26, ZR_LIFETIME_STEP);
    assert_string_equal(fixture->fake->calls, "vv");
    assert_int_equal(mapped(fixture, ZR_LIFETIME_COLLECTIVE), 0);
    assert_int_equal(mapped(fixture, ZR_LIFETIME_STEP), N_GRANULES);
    give(fixture, wall);
}

/* Scattered granules between live tensors are all there is: they come together in one piece. */
TEST_WITH(test_stitching, setup, teardown) {
    fixture_t *fixture = *state;
    unsigned char *walls[N_GRANULES / 2];
    void *holes[N_GRANULES / 2];
    for (int i = 0; i < N_GRANULES / 2; i++) {
        walls[i] = allocate(fixture, GRANULE, ZR_LIFETIME_STEP);
        holes[i] = allocate(fixture, GRANULE, ZR_LIFETIME_STEP);
        memset(walls[i], i, GRANULE);
    }
    for (int i = 0; i < N_GRANULES / 2; i++)
        give(fixture, holes[i]);
    fake_forget_calls(fixture->fake);
    size_t size = N_GRANULES / 2 * GRANULE;
    unsigned char *whole = allocate(fixture, size, ZR_LIFETIME_STEP);
    /* The highest hole is a part of the place; all others move. */
    assert_string_equal(fixture->fake->calls, "vvvvvvvvvvvvvvv");
    memset(whole, 0xaa, size);
    for (int i = 0; i < N_GRANULES / 2; i++) {
        for (size_t k = 0; k < GRANULE; k++)
            assert_int_equal(walls[i][k], i);
    }
    assert_true(zr_allocator_is_valid(fixture->allocator));
    /* And into another class. */
    give(fixture, whole);
    whole = allocate(fixture, size, ZR_LIFETIME_UNIT);
    assert_string_equal(fixture->fake->calls, "vvvvvvvvvvvvvvvv");
    memset(whole, 0xbb, size);
    give(fixture, whole);
    for (int i = 0; i < N_GRANULES / 2; i++)
        give(fixture, walls[i]);
}

/*
 * The place that needs the least mapping, five idle granules and four more, cannot be had; another
 * one can, at the edge of half a granule that is mapped in any case, with those five.
 */
TEST_WITH(test_idle_memory_of_a_better_place_is_used, setup, teardown) {
    fixture_t *fixture = *state;
    void *half = allocate(fixture, GRANULE / 2, ZR_LIFETIME_STEP);
    void *gap = allocate(fixture, 10 * GRANULE + GRANULE / 2, ZR_LIFETIME_STEP);
    void *wall = allocate(fixture, GRANULE, ZR_LIFETIME_STEP);
    void *five = allocate(fixture, 5 * GRANULE, ZR_LIFETIME_STEP);
    give(fixture, gap);
    assert_ok(zr_allocator_trim(fixture->allocator, ZR_TIER_DEVICE));
    give(fixture, five);
    assert_int_equal(mapped(fixture, ZR_LIFETIME_STEP), 7);
    void *two = NULL;
    /* Of the budget, three granules are left. */
    zr_tier_statistics_t *statistics = &fixture->allocator->tiers[ZR_TIER_DEVICE].statistics;
    zr_allocator_reset_peaks(fixture->allocator);
    statistics->budget_bytes = 10 * GRANULE;
    assert_int_equal(try_allocate(fixture, 8 * GRANULE + GRANULE / 2 + 1, ZR_LIFETIME_STEP, &two),
                     ZR_ERR_BUDGET);
    assert_int_equal(mapped(fixture, ZR_LIFETIME_STEP), 7);
    fake_forget_calls(fixture->fake);
    void *whole = allocate(fixture, 8 * GRANULE + GRANULE / 2, ZR_LIFETIME_STEP);
    assert_true((char *)whole < (char *)wall);
    assert_string_equal(fixture->fake->calls, "vm");
    give(fixture, whole);
    give(fixture, wall);
    give(fixture, half);
}

/* A machine that refuses below the budget: what is idle is moved, and given back by nobody. */
TEST_WITH(test_a_full_machine, setup, teardown) {
    fixture_t *fixture = *state;
    make_idle(fixture, 4, ZR_LIFETIME_STEP);
    make_idle(fixture, 2, ZR_LIFETIME_MICRO_BATCH);
    fixture->fake->machine_bytes = 8 * GRANULE;
    fake_forget_calls(fixture->fake);
    void *unit = allocate(fixture, 6 * GRANULE, ZR_LIFETIME_UNIT), *more = NULL;
    assert_string_equal(fixture->fake->calls, "mvv"); /* all six: nobody says that two are left */
    assert_int_equal(try_allocate(fixture, 3 * GRANULE, ZR_LIFETIME_STEP, &more), ZR_ERR_BUDGET);
    assert_has(fixture->fake->text, "the machine is the cause");
    make_idle(fixture, 2, ZR_LIFETIME_COLLECTIVE);
    fake_forget_calls(fixture->fake);
    give(fixture, unit);
    unit = allocate(fixture, 8 * GRANULE, ZR_LIFETIME_UNIT);
    assert_string_equal(fixture->fake->calls, "mv");
    assert_int_equal(fixture->fake->n_unmaps, 0);
    give(fixture, unit);
}

/* What moves is still nobody's: the rest of it is poisoned where it comes to. */
TEST_WITH(test_what_is_moved_stays_poisoned, setup, teardown) {
#if defined(IS_POISONED)
    fixture_t *fixture = *state;
    make_idle(fixture, N_GRANULES, ZR_LIFETIME_STEP);
    unsigned char *bytes = allocate(fixture, GRANULE + 100, ZR_LIFETIME_UNIT);
    memset(bytes, 1, GRANULE + 100);
#if defined(__SANITIZE_ADDRESS__)
    for (size_t i = GRANULE + 100; i < 2 * GRANULE; i++)
        assert_true(__asan_address_is_poisoned(bytes + i));
#else
    for (size_t i = GRANULE + 100; i < 2 * GRANULE; i++)
        assert_int_equal(bytes[i], 0xff);
#endif
    give(fixture, bytes);
    make_idle(fixture, N_GRANULES, ZR_LIFETIME_STEP);
    assert_int_equal(mapped(fixture, ZR_LIFETIME_UNIT), 0);
#if defined(__SANITIZE_ADDRESS__)
    assert_null(__asan_region_is_poisoned(bytes, 2 * GRANULE)); /* as all that is unmapped */
#endif
#else
    print_message("only in sanitized builds\n");
    skip();
#endif
}

/* ---- faults ------------------------------------------------------------------------------ */

#define N_SLOTS 12

/* Whole granules alone, so that a request fits whenever the budget holds it and what is live. */
typedef struct traffic {
    fixture_t *fixture;
    unsigned char *slots[N_SLOTS];
    size_t sizes[N_SLOTS]; /* granules */
    size_t live;
    uint64_t random;
    size_t n_faults; /* requests that a fault met */
} traffic_t;

static bool is_fault_over(const fixture_t *fixture) {
    return fixture->fake->fail_call_at == 0;
}

static void take_one(traffic_t *traffic, int slot) {
    const fixture_t *fixture = traffic->fixture;
    size_t size = 1 + below(&traffic->random, 9);
    zr_lifetime_t lifetime = (zr_lifetime_t)below(&traffic->random, 3);
    bool was_over = is_fault_over(fixture);
    void *pointer = NULL;
    zr_status_t status = try_allocate(fixture, size * GRANULE, lifetime, &pointer);
    if (status != ZR_OK && !was_over && is_fault_over(fixture)) {
        traffic->n_faults++;
        assert_true(status == ZR_ERR_DEVICE || status == ZR_ERR_BUDGET);
        assert_null(pointer);
        assert_true(zr_allocator_is_valid(fixture->allocator));
        status = try_allocate(fixture, size * GRANULE, lifetime, &pointer);
    }
    assert_int_equal(status, traffic->live + size <= N_GRANULES ? ZR_OK : ZR_ERR_BUDGET);
    if (status != ZR_OK)
        return;
    memset(pointer, slot + 1, size * GRANULE);
    traffic->slots[slot] = pointer;
    traffic->sizes[slot] = size;
    traffic->live += size;
}

static void give_one(traffic_t *traffic, int slot) {
    const fixture_t *fixture = traffic->fixture;
    for (size_t i = 0; i < traffic->sizes[slot] * GRANULE; i += 64)
        assert_int_equal(traffic->slots[slot][i], slot + 1);
    traffic->live -= traffic->sizes[slot];
    void *pointer = traffic->slots[slot];
    bool waits = below(&traffic->random, 4) == 0;
    if (waits)
        fake_stream_queue(fixture->stream);
    zr_free(fixture->allocator, &pointer, waits ? fixture->stream : NULL);
    traffic->slots[slot] = NULL;
}

/* Returns how many requests met a fault, of which there may be one. */
static size_t run_traffic(fixture_t *fixture, uint64_t seed, int n_operations) {
    traffic_t traffic = {.fixture = fixture, .random = seed};
    for (int i = 0; i < n_operations; i++) {
        int slot = (int)below(&traffic.random, N_SLOTS);
        if (traffic.slots[slot] == NULL)
            take_one(&traffic, slot);
        else
            give_one(&traffic, slot);
        if (i % 50 == 49 && !is_fault_over(fixture)) {
            zr_status_t status = zr_allocator_trim(fixture->allocator, ZR_TIER_DEVICE);
            assert_true(status == ZR_OK || is_fault_over(fixture));
        }
        assert_int_equal(statistics_of(fixture).reserved.live,
                         fixture->fake->mapped_bytes[ZR_TIER_DEVICE]);
    }
    for (int slot = 0; slot < N_SLOTS; slot++) {
        if (traffic.slots[slot] != NULL)
            give_one(&traffic, slot);
    }
    return traffic.n_faults;
}

/* Nothing is lost: the whole budget can be had, in one piece. */
static void check_whole(fixture_t *fixture) {
    assert_true(zr_allocator_is_valid(fixture->allocator));
    assert_int_equal(statistics_of(fixture).live.live, 0);
    make_idle(fixture, N_GRANULES, ZR_LIFETIME_COLLECTIVE);
    assert_true(statistics_of(fixture).reserved.peak <= N_GRANULES * GRANULE);
    assert_ok(zr_allocator_trim(fixture->allocator, ZR_TIER_DEVICE));
    assert_int_equal(statistics_of(fixture).reserved.live, 0);
}

TEST(test_any_mapping_call_may_fail) {
    for (int kind = 0; kind < 4; kind++) {
        size_t n_faults = 0, n = 0;
        bool is_over = false;
        while (!is_over) {
            fixture_t fixture;
            open_with(&fixture, N_GRANULES * GRANULE);
            fixture.fake->cannot_move = kind % 2 == 1;
            fixture.allocator->is_frugal = kind >= 2;
            fixture.fake->fail_call_at = ++n;
            n_faults += run_traffic(&fixture, 11, 150);
            is_over = !is_fault_over(&fixture);
            fixture.fake->fail_call_at = 0;
            check_whole(&fixture);
            fake_log_clear(fixture.fake);
            close_it(&fixture);
        }
        printf("%zu calls failed, %zu of them a request\n", n - 1, n_faults);
        assert_true(n > 50 && n_faults > 20);
    }
}

/* A move on a device that cannot: the machine takes the memory and keeps it. */
TEST_WITH(test_memory_lost_to_the_machine, setup, teardown) {
    fixture_t *fixture = *state;
    void *live = allocate(fixture, 20 * GRANULE, ZR_LIFETIME_PERSISTENT), *unit = NULL;
    make_idle(fixture, 12, ZR_LIFETIME_STEP);
    fixture->fake->cannot_move = true;
    fixture->fake->machine_bytes = 0;
    assert_int_equal(try_allocate(fixture, 6 * GRANULE, ZR_LIFETIME_UNIT, &unit), ZR_ERR_BUDGET);
    assert_has(fixture->fake->text, "the machine is the cause");
    assert_true(zr_allocator_is_valid(fixture->allocator));
    assert_int_equal(statistics_of(fixture).reserved.live,
                     fixture->fake->mapped_bytes[ZR_TIER_DEVICE]);
    assert_int_equal(mapped(fixture, ZR_LIFETIME_PERSISTENT), 20);
    fixture->fake->machine_bytes = N_GRANULES * GRANULE;
    unit = allocate(fixture, 12 * GRANULE, ZR_LIFETIME_UNIT);
    give(fixture, unit);
    give(fixture, live);
}

/* ---- frugal growth ------------------------------------------------------------------------ */

/* Each class is large in a phase of its own; returns the most allocations alive at once. */
static size_t run_phases(fixture_t *fixture, uint64_t seed, size_t unit_bytes) {
    enum { N = 30, N_PHASES = 40, N_PER_PHASE = 40 };
    void *slots[N] = {NULL};
    size_t n_live = 0, n_live_max = 0;
    uint64_t random = seed;
    for (int phase = 0; phase < N_PHASES; phase++) {
        zr_lifetime_t lifetime = (zr_lifetime_t)below(&random, ZR_N_LIFETIMES);
        size_t n_wanted = 1 + below(&random, N - 1);
        for (int i = 0; i < N_PER_PHASE; i++) {
            int slot = (int)below(&random, N);
            if (slots[slot] == NULL && n_live < n_wanted) {
                size_t size = (1 + below(&random, 12 * GRANULE / unit_bytes)) * unit_bytes;
                slots[slot] = allocate(fixture, size, lifetime);
                n_live++;
            } else if (slots[slot] != NULL) {
                bool waits = below(&random, 3) == 0;
                if (waits)
                    fake_stream_queue(fixture->stream);
                zr_free(fixture->allocator, &slots[slot], waits ? fixture->stream : NULL);
                n_live--;
            }
            n_live_max = n_live > n_live_max ? n_live : n_live_max;
        }
    }
    for (int i = 0; i < N; i++)
        zr_free(fixture->allocator, &slots[i], NULL);
    return n_live_max;
}

/* Each tensor may begin and end inside of a granule: two granules each, and no more, are lost.
 * Where none does, nothing is. */
TEST(test_frugal_growth_reserves_what_is_live) {
    for (uint64_t seed = 1; seed <= 8; seed++) {
        size_t peak[2][2]; /* whole granules, frugal */
        for (int is_whole = 0; is_whole < 2; is_whole++) {
            for (int is_frugal = 0; is_frugal < 2; is_frugal++) {
                fixture_t fixture;
                open_with(&fixture, ZR_NO_BUDGET);
                fixture.allocator->is_frugal = is_frugal != 0;
                size_t n_live = run_phases(&fixture, seed, is_whole ? GRANULE : 100);
                zr_tier_statistics_t statistics = statistics_of(&fixture);
                peak[is_whole][is_frugal] = statistics.reserved.peak;
                size_t slack = is_whole ? 0 : 2 * n_live * GRANULE;
                if (is_frugal)
                    assert_true(statistics.reserved.peak <= statistics.live.peak + slack);
                else
                    assert_true(statistics.n_move_calls == 0);
                close_it(&fixture);
            }
            assert_true(peak[is_whole][1] * 5 < peak[is_whole][0] * 4);
        }
    }
}

TEST_WITH(test_frugal_growth_asks_in_order, setup, teardown) {
    fixture_t *fixture = *state;
    fixture->allocator->is_frugal = true;
    void *step = allocate(fixture, 8 * GRANULE, ZR_LIFETIME_STEP);
    void *unit = allocate(fixture, 4 * GRANULE, ZR_LIFETIME_UNIT);
    assert_string_equal(fixture->fake->calls, "mm"); /* nothing is idle */
    fake_forget_calls(fixture->fake);
    fake_stream_queue(fixture->stream);
    zr_free(fixture->allocator, &step, fixture->stream);
    zr_free(fixture->allocator, &unit, NULL);
    /* Of the 12 that were live, 10 are taken; the free behind the stream is waited for. */
    void *micro_batch = allocate(fixture, 10 * GRANULE, ZR_LIFETIME_MICRO_BATCH);
    assert_string_equal(fixture->fake->calls, "wvv");
    assert_int_equal(mapped(fixture, ZR_LIFETIME_STEP), 0);
    assert_int_equal(mapped(fixture, ZR_LIFETIME_UNIT), 2);
    /* Above the peak so far, what is still missing is mapped. */
    fake_forget_calls(fixture->fake);
    unit = allocate(fixture, 5 * GRANULE, ZR_LIFETIME_COLLECTIVE);
    assert_string_equal(fixture->fake->calls, "vm");
    assert_int_equal(statistics_of(fixture).reserved.peak, 15 * GRANULE);
    /* The budget holds for frugal growth, too. */
    void *more = NULL;
    assert_int_equal(try_allocate(fixture, 18 * GRANULE, ZR_LIFETIME_STEP, &more), ZR_ERR_BUDGET);
    fixture->allocator->is_frugal = false;
    give(fixture, micro_batch);
    fake_forget_calls(fixture->fake);
    micro_batch = allocate(fixture, 4 * GRANULE, ZR_LIFETIME_STEP);
    assert_string_equal(fixture->fake->calls, "m");
    give(fixture, micro_batch);
    give(fixture, unit);
}

/* What was live at the peak may be mapped again: no reason to take from others. */
TEST_WITH(test_frugal_growth_up_to_the_peak_is_mapped, setup, teardown) {
    fixture_t *fixture = *state;
    fixture->allocator->is_frugal = true;
    make_idle(fixture, 12, ZR_LIFETIME_STEP);
    assert_ok(zr_allocator_trim(fixture->allocator, ZR_TIER_DEVICE));
    make_idle(fixture, 6, ZR_LIFETIME_STEP);
    fake_forget_calls(fixture->fake);
    make_idle(fixture, 6, ZR_LIFETIME_UNIT);
    assert_string_equal(fixture->fake->calls, "m");
    make_idle(fixture, 2, ZR_LIFETIME_COLLECTIVE);
    assert_string_equal(fixture->fake->calls, "mv");
}

/* What is idle is used although it is less than what is missing. */
TEST_WITH(test_frugal_growth_takes_what_there_is, setup, teardown) {
    fixture_t *fixture = *state;
    fixture->allocator->is_frugal = true;
    void *step = allocate(fixture, GRANULE + 100, ZR_LIFETIME_STEP); /* most of a granule is lost */
    make_idle(fixture, 4, ZR_LIFETIME_UNIT);
    fake_forget_calls(fixture->fake);
    make_idle(fixture, 5, ZR_LIFETIME_MICRO_BATCH);
    assert_string_equal(fixture->fake->calls, "vm");
    assert_int_equal(statistics_of(fixture).reserved.live, 7 * GRANULE);
    give(fixture, step);
}
