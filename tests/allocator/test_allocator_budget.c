/*
 * The budget: that it is never exceeded, that memory moves between classes before
 * anything is refused, what the refusal says, and that a machine that has less than the
 * budget is survived.
 */
#include "allocator/internal.h"
#include "tests/allocator/fake_device.h"
#include "tests/common/test.h"

#define GRANULE ((size_t)65536)
#define N_GRANULES 32 /* in the budget */

typedef struct fixture {
    fake_t *fake;
    zr_allocator_t *allocator;
} fixture_t;

static void create(fixture_t *fixture, size_t budget_bytes) {
    zr_allocator_options_t options = zr_allocator_options_default();
    options.log = fake_log(fixture->fake);
    options.budget_bytes[ZR_TIER_DEVICE] = budget_bytes;
    options.budget_bytes[ZR_TIER_HOST] = GRANULE;
    options.advice = (zr_allocator_advice_t){
        .budget[ZR_TIER_DEVICE] = "a larger budget",
        .any[ZR_TIER_DEVICE] = "--stage 2",
        .any[ZR_TIER_HOST] = "less on the host",
        .by_tag[ZR_TIER_DEVICE] = {[ZR_TAG_GRADIENTS] = "smaller gradients",
                                   [ZR_TAG_GATHERED_PARAMETERS] = "less at a time",
                                   [ZR_TAG_WORKSPACE] = "less at a time",
                                   [ZR_TAG_DATA] = "less data"}};
    assert_ok(zr_allocator_create(fixture->fake->device, &options, &fixture->allocator));
}

static int setup(void **state) {
    fixture_t *fixture = calloc(1, sizeof(*fixture));
    fixture->fake = fake_open(GRANULE, false);
    create(fixture, N_GRANULES * GRANULE);
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

static zr_status_t try_allocate(fixture_t *fixture, size_t size_bytes, zr_lifetime_t lifetime,
                                zr_tag_t tag, void **pointer_p) {
    zr_allocation_request_t request = {.size_bytes = size_bytes,
                                       .tier = ZR_TIER_DEVICE,
                                       .tag = tag,
                                       .lifetime = lifetime,
                                       .name = "h.3"};
    return zr_allocate(fixture->allocator, &request, pointer_p);
}

static void *allocate(fixture_t *fixture, size_t size_bytes, zr_lifetime_t lifetime) {
    void *pointer = NULL;
    assert_ok(try_allocate(fixture, size_bytes, lifetime, ZR_TAG_GRADIENTS, &pointer));
    return pointer;
}

static zr_tier_statistics_t statistics_of(fixture_t *fixture) {
    zr_tier_statistics_t statistics;
    zr_allocator_statistics(fixture->allocator, ZR_TIER_DEVICE, &statistics);
    return statistics;
}

static void assert_says(const fixture_t *fixture, const char *part) {
    if (strstr(fixture->fake->text, part) == NULL)
        fail_msg("\"%s\" is not in: %s", part, fixture->fake->text);
}

/* ---- exhaustion ---------------------------------------------------------------------- */

TEST_WITH(test_the_whole_budget_can_be_used, setup, teardown) {
    fixture_t *fixture = *state;
    void *pointers[N_GRANULES], *more = NULL;
    for (int i = 0; i < N_GRANULES; i++)
        pointers[i] = allocate(fixture, GRANULE, ZR_LIFETIME_STEP);
    assert_int_equal(try_allocate(fixture, 1, ZR_LIFETIME_STEP, ZR_TAG_DATA, &more), ZR_ERR_BUDGET);
    assert_int_equal(try_allocate(fixture, 1, ZR_LIFETIME_UNIT, ZR_TAG_DATA, &more), ZR_ERR_BUDGET);
    assert_null(more);
    assert_int_equal(statistics_of(fixture).reserved.peak, N_GRANULES * GRANULE);
    assert_int_equal(statistics_of(fixture).n_allocations, N_GRANULES);

    zr_free(fixture->allocator, &pointers[7], NULL);
    pointers[7] = allocate(fixture, GRANULE, ZR_LIFETIME_STEP);
    for (int i = 0; i < N_GRANULES; i++)
        zr_free(fixture->allocator, &pointers[i], NULL);
    void *all = allocate(fixture, N_GRANULES * GRANULE, ZR_LIFETIME_STEP);
    memset(all, 3, N_GRANULES * GRANULE);
    zr_free(fixture->allocator, &all, NULL);
}

TEST_WITH(test_idle_memory_moves_between_classes, setup, teardown) {
    fixture_t *fixture = *state;
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < ZR_N_LIFETIMES; i++) {
            void *all = allocate(fixture, N_GRANULES * GRANULE, (zr_lifetime_t)i);
            memset(all, round, N_GRANULES * GRANULE);
            zr_free(fixture->allocator, &all, NULL);
        }
    }
    assert_int_equal(statistics_of(fixture).reserved.peak, N_GRANULES * GRANULE);
    assert_int_equal(statistics_of(fixture).n_map_calls, 1);
    assert_int_equal(statistics_of(fixture).n_unmap_calls, 0);
    assert_int_equal(statistics_of(fixture).n_move_calls, 3 * ZR_N_LIFETIMES - 1);
}

TEST_WITH(test_growth_maps_the_least, setup, teardown) {
    /* Live blocks with holes of addresses between; the one next to free memory costs least. */
    fixture_t *fixture = *state;
    void *blocks[6];
    for (int i = 0; i < 6; i++)
        blocks[i] = allocate(fixture, 3 * GRANULE + (i == 4 ? GRANULE / 2 : 0), ZR_LIFETIME_STEP);
    void *there = blocks[2];
    zr_free(fixture->allocator, &blocks[0], NULL);
    zr_free(fixture->allocator, &blocks[2], NULL);
    assert_ok(zr_allocator_trim(fixture->allocator, ZR_TIER_DEVICE));
    size_t before = statistics_of(fixture).reserved.live;
    blocks[2] = allocate(fixture, 3 * GRANULE, ZR_LIFETIME_STEP);
    assert_int_equal(statistics_of(fixture).reserved.live, before + 3 * GRANULE);
    assert_true(blocks[2] < there); /* the lower of two that cost the same */
    zr_free(fixture->allocator, &blocks[4], NULL);
    assert_ok(zr_allocator_trim(fixture->allocator, ZR_TIER_DEVICE));
    before = statistics_of(fixture).reserved.live;
    blocks[4] = allocate(fixture, 3 * GRANULE + GRANULE / 2, ZR_LIFETIME_STEP);
    assert_int_equal(statistics_of(fixture).reserved.live, before + 3 * GRANULE); /* not 4 */
    for (int i = 1; i < 6; i++)
        zr_free(fixture->allocator, &blocks[i], NULL);
}

/* ---- what a refusal says ----------------------------------------------------------------- */

TEST_WITH(test_message_when_the_total_is_the_cause, setup, teardown) {
    fixture_t *fixture = *state;
    void *gradients = allocate(fixture, 20 * GRANULE, ZR_LIFETIME_STEP), *more = NULL;
    void *data = NULL;
    assert_ok(try_allocate(fixture, 100, ZR_LIFETIME_UNIT, ZR_TAG_DATA, &data));
    assert_int_equal(try_allocate(fixture, 16 * GRANULE + 1, ZR_LIFETIME_UNIT,
                                  ZR_TAG_GATHERED_PARAMETERS, &more),
                     ZR_ERR_BUDGET);
    assert_says(fixture, "device memory: 1.0 MiB (1048577 bytes) for \"h.3\" "
                         "(gathered_parameters, lifetime unit) does not fit: ");
    assert_says(fixture, "2.0 MiB (2097152 bytes) budget");
    assert_says(fixture, "1.3 MiB (1310820 bytes) live (gradients 1.2 MiB, data 100 bytes), ");
    assert_says(fixture, "1.3 MiB (1376256 bytes) reserved");
    /* 11 granules are left, and all but 256 bytes of that of the data */
    assert_says(fixture, "largest hole 0.7 MiB (786176 bytes)");
    assert_says(fixture, "the total is the cause: it is 0.3 MiB (262245 bytes) over the budget");
    assert_says(fixture, "over the budget; try a larger budget, --stage 2, smaller gradients, or "
                         "less at a time\n");
    assert_int_equal(fixture->fake->n_logged[ZR_LOG_ERROR], 1);

    void *hole = allocate(fixture, 786176, ZR_LIFETIME_UNIT); /* the message spoke the truth */
    zr_free(fixture->allocator, &hole, NULL);
    zr_free(fixture->allocator, &data, NULL);
    zr_free(fixture->allocator, &gradients, NULL);
}

TEST_WITH(test_message_when_a_hole_is_the_cause, setup, teardown) {
    fixture_t *fixture = *state;
    void *walls[N_GRANULES], *rest[N_GRANULES], *more = NULL;
    for (int i = 0; i < N_GRANULES; i++) {
        walls[i] = allocate(fixture, 256, ZR_LIFETIME_MICRO_BATCH);
        rest[i] = allocate(fixture, GRANULE - 256, ZR_LIFETIME_MICRO_BATCH);
    }
    for (int i = 0; i < N_GRANULES; i++)
        zr_free(fixture->allocator, &rest[i], NULL);
    assert_int_equal(
        try_allocate(fixture, GRANULE, ZR_LIFETIME_MICRO_BATCH, ZR_TAG_ACTIVATIONS, &more),
        ZR_ERR_BUDGET);
    assert_says(fixture, "(activations, lifetime micro_batch) does not fit");
    assert_says(fixture,
                "budget, 8192 bytes live (gradients 8192 bytes), 2.0 MiB (2097152 bytes) reser");
    assert_says(fixture, "largest hole 0.1 MiB (65280 bytes); a hole is the cause: "
                         "2.0 MiB (2088960 bytes) of the budget are not live, but the largest "
                         "hole that class \"micro_batch\" can use is 0.1 MiB (65280 bytes)");
    void *hole = allocate(fixture, 65280, ZR_LIFETIME_MICRO_BATCH);
    zr_free(fixture->allocator, &hole, NULL);
    for (int i = 0; i < N_GRANULES; i++)
        zr_free(fixture->allocator, &walls[i], NULL);
}

/* Less than a granule holds nothing, and a granule of another class nothing of this one. */
TEST_WITH(test_message_when_granules_are_the_cause, setup, teardown) {
    fixture_t *fixture = *state;
    void *wall, *more = NULL;
    zr_allocator_destroy(&fixture->allocator);
    create(fixture, GRANULE - 4096);
    assert_int_equal(try_allocate(fixture, 256, ZR_LIFETIME_STEP, ZR_TAG_OTHER, &more),
                     ZR_ERR_BUDGET);
    assert_says(fixture, "granules are the cause: memory is reserved in granules of 0.1 MiB (65536 "
                         "bytes), and the budget has room for 0 of them");
    zr_allocator_destroy(&fixture->allocator);
    create(fixture, 2 * GRANULE + 4096);
    assert_int_equal(
        try_allocate(fixture, 2 * GRANULE + 256, ZR_LIFETIME_STEP, ZR_TAG_OTHER, &more),
        ZR_ERR_BUDGET);
    assert_says(fixture, "and the budget has room for 2 of them");
    wall = allocate(fixture, GRANULE + 256, ZR_LIFETIME_MICRO_BATCH);
    assert_int_equal(try_allocate(fixture, 256, ZR_LIFETIME_STEP, ZR_TAG_OTHER, &more),
                     ZR_ERR_BUDGET);
    assert_says(fixture,
                "each for one class of lifetimes, and no granule is left for class \"step\"");
    zr_free(fixture->allocator, &wall, NULL);
}

TEST_WITH(test_message_when_the_addresses_are_the_cause, setup, teardown) {
    fixture_t *fixture = *state;
    zr_allocator_destroy(&fixture->allocator);
    fixture->fake->max_range_bytes = 100 * GRANULE;
    fixture->fake->device->info.memory_bytes = 30 * GRANULE; /* 94 with slack are enough */
    create(fixture, ZR_NO_BUDGET);
    void *pointer = NULL;
    size_t range_bytes = fixture->allocator->tiers[0].arenas[0].size_bytes;
    assert_true(range_bytes >= 94 * GRANULE && range_bytes <= 100 * GRANULE);
    assert_int_equal(try_allocate(fixture, 101 * GRANULE, ZR_LIFETIME_STEP, ZR_TAG_OTHER, &pointer),
                     ZR_ERR_BUDGET);
    assert_says(fixture, "no budget");
    assert_says(fixture, "the addresses are the cause");
    assert_int_equal(try_allocate(fixture, SIZE_MAX, ZR_LIFETIME_STEP, ZR_TAG_OTHER, &pointer),
                     ZR_ERR_BUDGET);
    pointer = allocate(fixture, range_bytes, ZR_LIFETIME_STEP);
    zr_free(fixture->allocator, &pointer, NULL);
}

TEST_WITH(test_creation_without_addresses_fails, setup, teardown) {
    fixture_t *fixture = *state;
    zr_allocator_destroy(&fixture->allocator);
    fixture->fake->max_range_bytes = 10 * GRANULE;
    zr_allocator_options_t options = zr_allocator_options_default();
    options.log = fake_log(fixture->fake);
    assert_int_equal(zr_allocator_create(fixture->fake->device, &options, &fixture->allocator),
                     ZR_ERR_BUDGET);
    assert_null(fixture->allocator);
    assert_says(fixture, "device memory: the process has no address space left");
}

/* ---- a machine with less than the budget ---------------------------------------------------- */

TEST_WITH(test_message_when_the_machine_is_the_cause, setup, teardown) {
    fixture_t *fixture = *state;
    fixture->fake->machine_bytes = 10 * GRANULE;
    void *idle = allocate(fixture, 4 * GRANULE, ZR_LIFETIME_UNIT), *more = NULL;
    void *live = allocate(fixture, 5 * GRANULE, ZR_LIFETIME_STEP);
    zr_free(fixture->allocator, &idle, NULL);
    void *grown = allocate(fixture, 5 * GRANULE, ZR_LIFETIME_STEP); /* takes what is idle */
    assert_int_equal(try_allocate(fixture, 256, ZR_LIFETIME_STEP, ZR_TAG_OTHER, &more),
                     ZR_ERR_BUDGET);
    assert_says(fixture, "the machine is the cause");
    assert_says(fixture, "reserved; try --stage 2, or smaller gradients\n"); /* no budget helps */
    zr_free(fixture->allocator, &live, NULL);
    zr_free(fixture->allocator, &grown, NULL);
}

/* A sequence with growth in pieces and moving; what it asks for may be refused. */
static int play(fixture_t *fixture) {
    static const size_t granules[] = {3, 1, 5, 2, 7, 1, 4, 9};
    void *pointers[40] = {NULL};
    int n_failed = 0;
    for (int i = 0; i < 200; i++) {
        void **pointer = &pointers[(i * 13) % 40];
        if (*pointer != NULL) {
            unsigned char *bytes = *pointer;
            assert_int_equal(bytes[0], (i * 13) % 40);
            zr_free(fixture->allocator, pointer, NULL);
            continue;
        }
        size_t size = granules[i % 8] * GRANULE / 2 + 256;
        zr_status_t status =
            try_allocate(fixture, size, (zr_lifetime_t)(i % 3), ZR_TAG_OTHER, pointer);
        if (status != ZR_OK) {
            assert_int_equal(status, ZR_ERR_BUDGET);
            assert_null(*pointer);
            n_failed++;
        } else {
            memset(*pointer, (i * 13) % 40, size);
        }
        assert_int_equal(statistics_of(fixture).reserved.live,
                         fixture->fake->mapped_bytes[ZR_TIER_DEVICE]);
    }
    for (int i = 0; i < 40; i++)
        zr_free(fixture->allocator, &pointers[i], NULL);
    return n_failed;
}

TEST_WITH(test_a_machine_that_is_always_full, setup, teardown) {
    fixture_t *fixture = *state;
    for (size_t granules = 0; granules < 20; granules++) {
        fixture->fake->machine_bytes = granules * GRANULE;
        assert_ok(zr_allocator_trim(fixture->allocator, ZR_TIER_DEVICE));
        assert_true(play(fixture) > 0);
        assert_true(zr_allocator_is_valid(fixture->allocator));
    }
}

TEST_WITH(test_moving_and_unmapping_may_fail, setup, teardown) {
    fixture_t *fixture = *state;
    void *idle = allocate(fixture, N_GRANULES * GRANULE, ZR_LIFETIME_STEP), *more = NULL;
    zr_free(fixture->allocator, &idle, NULL);
    fixture->fake->fail_unmap = fixture->fake->fail_move = true;
    assert_int_equal(try_allocate(fixture, GRANULE, ZR_LIFETIME_UNIT, ZR_TAG_OTHER, &more),
                     ZR_ERR_DEVICE);
    assert_int_equal(zr_allocator_trim(fixture->allocator, ZR_TIER_DEVICE), ZR_ERR_DEVICE);
    assert_int_equal(statistics_of(fixture).reserved.live, N_GRANULES * GRANULE);
    fixture->fake->fail_unmap = fixture->fake->fail_move = false;
    more = allocate(fixture, GRANULE, ZR_LIFETIME_UNIT);
    zr_free(fixture->allocator, &more, NULL);
}
