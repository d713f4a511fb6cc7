/*
 * The allocator against a naive oracle: hundreds of thousands of seeded random requests
 * and frees over both tiers and all classes, on devices whose streams are done at once
 * and on one whose streams are late.
 *
 * The oracle keeps a plain list. It knows that nothing overlaps, what every count must
 * be, that contents survive, that nothing is handed out before its stream has passed,
 * that the budget holds, and for each refusal whether there really was no room.
 */
#include "allocator/internal.h"
#include "tests/allocator/fake_device.h"
#include "tests/common/test.h"

#define KIB ((size_t)1024)
#define MIB (1024 * KIB)
#define MAX_LIVE 400
#define MAX_PENDING 4096
#define N_STREAMS 3
#define N_TIERS_TESTED 2

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define N_OPERATIONS 15000
#else
#define N_OPERATIONS 150000
#endif

/* A tensor, live or freed but in use by a stream. */
typedef struct tensor {
    unsigned char *pointer;
    size_t size;
    zr_tier_t tier;
    zr_tag_t tag;
    zr_lifetime_t lifetime;
    unsigned char pattern;
    zr_stream_t *stream; /* pending: until `ticket` pieces of it have passed */
    size_t ticket;
} tensor_t;

typedef struct oracle {
    fake_t *fake;
    zr_allocator_t *allocator;
    zr_stream_t *streams[N_STREAMS];
    size_t budget[N_TIERS_TESTED];
    tensor_t live[MAX_LIVE];
    size_t n_live;
    tensor_t pending[MAX_PENDING];
    size_t n_pending;
    zr_tier_statistics_t expected[N_TIERS_TESTED];
    uint64_t random;
    uint64_t hash; /* of all that is not allowed to vary */
    size_t n_refused;
} oracle_t;

static size_t below(oracle_t *oracle, size_t n) {
    return (size_t)(fake_random(&oracle->random) % n);
}

static void note(oracle_t *oracle, uint64_t value) {
    oracle->hash = (oracle->hash ^ value) * UINT64_C(0x100000001B3);
}

/* ---- contents --------------------------------------------------------------------- */

static void write_pattern(const tensor_t *tensor) {
    for (size_t i = 0; i < tensor->size; i += 61)
        tensor->pointer[i] = (unsigned char)(tensor->pattern + i);
    if (tensor->size > 0)
        tensor->pointer[tensor->size - 1] = tensor->pattern;
}

static void check_pattern(const tensor_t *tensor) {
    for (size_t i = 0; i + 1 < tensor->size; i += 61)
        assert_int_equal(tensor->pointer[i], (unsigned char)(tensor->pattern + i));
    if (tensor->size > 0)
        assert_int_equal(tensor->pointer[tensor->size - 1], tensor->pattern);
}

/* ---- counts -------------------------------------------------------------------------- */

static void add(zr_byte_count_t *count, size_t size) {
    count->live += size;
    if (count->live > count->peak)
        count->peak = count->live;
}

static void assert_counts(const zr_byte_count_t *actual, const zr_byte_count_t *expected) {
    assert_int_equal(actual->live, expected->live);
    assert_int_equal(actual->peak, expected->peak);
}

static void check_statistics(oracle_t *oracle) {
    const fake_t *fake = oracle->fake;
    size_t n_calls = 0, n_moves = 0;
    for (int tier = 0; tier < N_TIERS_TESTED; tier++) {
        zr_tier_statistics_t actual, *expected = &oracle->expected[tier];
        zr_allocator_statistics(oracle->allocator, (zr_tier_t)tier, &actual);
        assert_int_equal(actual.budget_bytes, oracle->budget[tier]);
        assert_counts(&actual.live, &expected->live);
        for (int i = 0; i < ZR_N_TAGS; i++)
            assert_counts(&actual.by_tag[i], &expected->by_tag[i]);
        for (int i = 0; i < ZR_N_LIFETIMES; i++)
            assert_counts(&actual.by_lifetime[i], &expected->by_lifetime[i]);
        assert_int_equal(actual.n_live, expected->n_live);
        assert_int_equal(actual.n_allocations, expected->n_allocations);
        assert_int_equal(actual.reserved.live, oracle->fake->mapped_bytes[tier]);
        n_calls += actual.n_map_calls + actual.n_unmap_calls;
        n_moves += actual.n_move_calls;
        assert_true(actual.reserved.peak <= oracle->budget[tier]);
        size_t reserved = 0;
        for (int i = 0; i < ZR_N_CLASSES; i++) {
            const zr_byte_count_t *own = &actual.by_class[i].reserved;
            reserved += own->live;
            assert_true(own->live <= own->peak && own->peak <= actual.reserved.peak);
        }
        assert_int_equal(reserved, actual.reserved.live);
        note(oracle, actual.reserved.live);
        note(oracle, actual.reserved.peak);
    }
    assert_true(fake->cannot_move ||
                (n_calls == fake->n_maps + fake->n_unmaps && n_moves == fake->n_moves));
}

/* ---- what is pending -------------------------------------------------------------------- */

static bool is_in_use(const tensor_t *tensor) {
    return fake_stream_n_passed(tensor->stream) < tensor->ticket;
}

static void forget_passed(oracle_t *oracle) {
    size_t n = 0;
    for (size_t i = 0; i < oracle->n_pending; i++) {
        if (is_in_use(&oracle->pending[i]))
            oracle->pending[n++] = oracle->pending[i];
    }
    oracle->n_pending = n;
}

static bool overlap(const tensor_t *a, const tensor_t *b) {
    size_t a_size = a->size > 0 ? a->size : 1, b_size = b->size > 0 ? b->size : 1;
    return a->pointer < b->pointer + b_size && b->pointer < a->pointer + a_size;
}

/* ---- refusals --------------------------------------------------------------------------- */

typedef struct extent {
    size_t begin, end;
} extent_t;

static int compare_extents(const void *a, const void *b) {
    size_t x = ((const extent_t *)a)->begin, y = ((const extent_t *)b)->begin;
    return x < y ? -1 : x > y;
}

/* Extents of a class's live blocks in its range, in order. */
static size_t extents_of(const oracle_t *oracle, zr_tier_t tier, int lifetime, extent_t *extents) {
    size_t n = 0;
    for (size_t i = 0; i < oracle->n_live; i++) {
        const tensor_t *tensor = &oracle->live[i];
        if (tensor->tier != tier || (int)tensor->lifetime != lifetime || tensor->size == 0)
            continue;
        const fake_range_t *range = fake_range_of(oracle->fake, tensor->pointer);
        size_t begin = (size_t)((char *)tensor->pointer - range->base);
        extents[n++] = (extent_t){begin, begin + (tensor->size + 255) / 256 * 256};
    }
    qsort(extents, n, sizeof(*extents), compare_extents);
    return n;
}

/* Granules that live blocks keep mapped. */
static size_t count_pinned(const extent_t *extents, size_t n, size_t granule) {
    size_t n_pinned = 0, next = 0;
    for (size_t i = 0; i < n; i++) {
        size_t first = extents[i].begin / granule, last = (extents[i].end - 1) / granule;
        if (first < next)
            first = next;
        n_pinned += last + 1 - first;
        next = last + 1;
    }
    return n_pinned;
}

/* Granules to map for [begin, end) in a gap whose ends are pinned where not on a granule. */
static size_t count_fresh(size_t begin, size_t end, extent_t gap, size_t granule) {
    size_t low = begin / granule, high = (end + granule - 1) / granule;
    if (gap.begin % granule != 0 && low == gap.begin / granule)
        low++;
    if (gap.end % granule != 0 && high == gap.end / granule + 1)
        high--;
    return high > low ? high - low : 0;
}

/* Whether even an allocator that may remap every idle granule has no room for a request. */
static bool refusal_is_right(const oracle_t *oracle, const tensor_t *asked) {
    extent_t extents[MAX_LIVE + 1];
    size_t granule = oracle->fake->device->info.granule_bytes;
    size_t size = (asked->size + 255) / 256 * 256, n_pinned = 0, least = SIZE_MAX;
    for (int lifetime = 0; lifetime < ZR_N_LIFETIMES; lifetime++) {
        size_t n = extents_of(oracle, asked->tier, lifetime, extents);
        n_pinned += count_pinned(extents, n, granule);
        if (lifetime != (int)asked->lifetime)
            continue;
        extents[n] = (extent_t){64 * MIB, 0}; /* far beyond all */
        size_t begin = 0;
        for (size_t i = 0; i <= n; i++) {
            extent_t gap = {begin, extents[i].begin};
            begin = extents[i].end;
            if (gap.end - gap.begin < size)
                continue;
            size_t low = count_fresh(gap.begin, gap.begin + size, gap, granule);
            size_t high = count_fresh(gap.end - size, gap.end, gap, granule);
            least = low < least ? low : least;
            least = high < least ? high : least;
        }
    }
    return (n_pinned + least) * granule > oracle->budget[asked->tier];
}

/* ---- operations -------------------------------------------------------------------------- */

static size_t random_size(oracle_t *oracle) {
    static const size_t common[] = {256, 4096, 12288, 20000, 65536, 100000, 262144};
    switch (below(oracle, 8)) {
    case 0:
        return below(oracle, 3);
    case 1:
        return below(oracle, 5000);
    case 2:
        return below(oracle, 60000);
    case 3:
        return below(oracle, 40) == 0 ? below(oracle, 3 * MIB) : below(oracle, 300000);
    default:
        return common[below(oracle, sizeof(common) / sizeof(common[0]))];
    }
}

static void check_new(oracle_t *oracle, const tensor_t *tensor) {
    assert_int_equal((uintptr_t)tensor->pointer % 256, 0);
    for (size_t i = 0; i < oracle->n_live; i++)
        assert_false(overlap(tensor, &oracle->live[i]));
    for (size_t i = 0; i < oracle->n_pending; i++)
        assert_false(is_in_use(&oracle->pending[i]) && overlap(tensor, &oracle->pending[i]));
    fake_range_t *range = fake_range_of(oracle->fake, tensor->pointer);
    assert_non_null(range);
    assert_true(tensor->size == 0 || fake_is_mapped(oracle->fake, tensor->pointer, tensor->size));
    note(oracle, (uint64_t)(range - oracle->fake->ranges));
    note(oracle, (uint64_t)((char *)tensor->pointer - range->base));
}

static void try_allocate(oracle_t *oracle) {
    tensor_t tensor = {.size = random_size(oracle),
                       .tier = below(oracle, 3) == 0 ? ZR_TIER_HOST : ZR_TIER_DEVICE,
                       .tag = (zr_tag_t)below(oracle, ZR_N_TAGS),
                       .lifetime = (zr_lifetime_t)below(oracle, ZR_N_LIFETIMES),
                       .pattern = (unsigned char)below(oracle, 256)};
    zr_allocation_request_t request = {.size_bytes = tensor.size,
                                       .tier = tensor.tier,
                                       .tag = tensor.tag,
                                       .lifetime = tensor.lifetime,
                                       .name = "random"};
    void *pointer = NULL;
    zr_status_t status = zr_allocate(oracle->allocator, &request, &pointer);
    note(oracle, (uint64_t)status);
    if (status != ZR_OK) {
        assert_int_equal(status, ZR_ERR_BUDGET);
        assert_null(pointer);
        zr_tier_statistics_t statistics;
        zr_allocator_statistics(oracle->allocator, tensor.tier, &statistics);
        assert_int_equal(statistics.pending.live, 0);
        assert_true(refusal_is_right(oracle, &tensor));
        oracle->n_refused++;
        return;
    }
    tensor.pointer = pointer;
    check_new(oracle, &tensor);
    write_pattern(&tensor);
    oracle->live[oracle->n_live++] = tensor;
    zr_tier_statistics_t *expected = &oracle->expected[tensor.tier];
    add(&expected->live, tensor.size);
    add(&expected->by_tag[tensor.tag], tensor.size);
    add(&expected->by_lifetime[tensor.lifetime], tensor.size);
    expected->n_live++;
    expected->n_allocations++;
}

static void free_one(oracle_t *oracle, size_t index, bool may_wait) {
    tensor_t tensor = oracle->live[index];
    oracle->live[index] = oracle->live[--oracle->n_live];
    check_pattern(&tensor);
    zr_tier_statistics_t *expected = &oracle->expected[tensor.tier];
    expected->live.live -= tensor.size;
    expected->by_tag[tensor.tag].live -= tensor.size;
    expected->by_lifetime[tensor.lifetime].live -= tensor.size;
    expected->n_live--;

    void *pointer = tensor.pointer;
    if (may_wait && below(oracle, 3) > 0) {
        tensor.stream = oracle->streams[below(oracle, N_STREAMS)];
        tensor.ticket = fake_stream_queue(tensor.stream);
        zr_free(oracle->allocator, &pointer, tensor.stream);
        assert_true(oracle->n_pending < MAX_PENDING);
        if (!zr_device_info(oracle->fake->device)->synchronous)
            oracle->pending[oracle->n_pending++] = tensor;
    } else {
        zr_free(oracle->allocator, &pointer, NULL);
    }
    assert_null(pointer);
}

static void do_something_rare(oracle_t *oracle) {
    size_t dice = below(oracle, 4);
    if (dice == 0) {
        oracle->allocator->is_frugal = !oracle->allocator->is_frugal;
        return;
    }
    if (dice == 1) {
        zr_allocator_reset_peaks(oracle->allocator);
        for (int tier = 0; tier < N_TIERS_TESTED; tier++) {
            zr_tier_statistics_t *expected = &oracle->expected[tier];
            expected->live.peak = expected->live.live;
            for (int i = 0; i < ZR_N_TAGS; i++)
                expected->by_tag[i].peak = expected->by_tag[i].live;
            for (int i = 0; i < ZR_N_LIFETIMES; i++)
                expected->by_lifetime[i].peak = expected->by_lifetime[i].live;
        }
        return;
    }
    zr_tier_t tier = (zr_tier_t)below(oracle, N_TIERS_TESTED);
    assert_ok(zr_allocator_trim(oracle->allocator, tier));
}

static void do_one(oracle_t *oracle, size_t n_wanted) {
    size_t dice = below(oracle, 1000);
    if (dice == 0)
        do_something_rare(oracle);
    else if (dice < 100)
        fake_stream_pass(oracle->streams[below(oracle, N_STREAMS)], 1 + below(oracle, 8));
    else if (oracle->n_live < n_wanted && dice < 800)
        try_allocate(oracle);
    else if (oracle->n_live > 0)
        free_one(oracle, below(oracle, oracle->n_live), true);
    for (size_t i = 0; i < oracle->n_pending; i += 7) {
        if (is_in_use(&oracle->pending[i]))
            check_pattern(&oracle->pending[i]);
    }
    forget_passed(oracle);
}

/* ---- runs ----------------------------------------------------------------------------------- */

static void check_all_free(oracle_t *oracle) {
    for (int i = 0; i < N_STREAMS; i++)
        fake_stream_pass(oracle->streams[i], SIZE_MAX);
    for (int tier = 0; tier < N_TIERS_TESTED; tier++) {
        assert_ok(zr_allocator_trim(oracle->allocator, (zr_tier_t)tier));
        zr_tier_statistics_t statistics;
        zr_allocator_statistics(oracle->allocator, (zr_tier_t)tier, &statistics);
        assert_int_equal(statistics.live.live, 0);
        assert_int_equal(statistics.n_live, 0);
        assert_int_equal(statistics.pending.live, 0);
        assert_int_equal(statistics.reserved.live, 0);
        for (int i = 0; i < ZR_N_ARENAS; i++) {
            const zr_arena_t *arena = &oracle->allocator->tiers[tier].arenas[i];
            assert_ptr_equal(arena->first, arena->last);
            assert_int_equal(arena->first->size_bytes, arena->size_bytes);
        }
    }
    assert_true(zr_allocator_is_valid(oracle->allocator));
}

typedef struct setting {
    uint64_t seed;
    size_t granule_bytes, budget_bytes;
    bool is_late, cannot_move;
    size_t n_operations;
} setting_t;

/* A run; returns the hash of everything that has to be the same when it is run again. */
static uint64_t run(const setting_t *setting) {
    oracle_t *oracle = calloc(1, sizeof(*oracle));
    assert_non_null(oracle);
    oracle->random = setting->seed;
    oracle->fake = fake_open(setting->granule_bytes, setting->is_late);
    oracle->fake->cannot_move = setting->cannot_move;
    zr_allocator_options_t options = zr_allocator_options_default();
    options.log = fake_log(oracle->fake);
    options.budget_bytes[ZR_TIER_DEVICE] = oracle->budget[ZR_TIER_DEVICE] = setting->budget_bytes;
    options.budget_bytes[ZR_TIER_HOST] = oracle->budget[ZR_TIER_HOST] =
        setting->budget_bytes / 2 + 1000;
    assert_ok(zr_allocator_create(oracle->fake->device, &options, &oracle->allocator));
    for (int i = 0; i < N_STREAMS; i++)
        assert_ok(zr_stream_create(oracle->fake->device, "test", &oracle->streams[i]));

    size_t n_wanted = MAX_LIVE;
    for (size_t i = 0; i < setting->n_operations; i++) {
        if (i % 500 == 0)
            n_wanted = 1 + below(oracle, MAX_LIVE);
        do_one(oracle, n_wanted);
        check_statistics(oracle);
        if (i % 997 == 0)
            assert_true(zr_allocator_is_valid(oracle->allocator));
        if (oracle->n_refused > 0)
            fake_log_clear(oracle->fake);
    }
    assert_true(zr_allocator_is_valid(oracle->allocator));
    while (oracle->n_live > 0)
        free_one(oracle, oracle->n_live - 1, true);
    check_all_free(oracle);

    uint64_t hash = oracle->hash;
    printf("seed %llu: %zu refused, %zu maps, %zu unmaps, %zu moves, %zu waits\n",
           (unsigned long long)setting->seed, oracle->n_refused, oracle->fake->n_maps,
           oracle->fake->n_unmaps, oracle->fake->n_moves, oracle->fake->n_waits);
    assert_true(oracle->n_refused > 0); /* the budget was felt */
    assert_true(setting->cannot_move == (oracle->fake->n_moves == 0));
    assert_true(oracle->fake->n_unmaps > 0);
    assert_true(!setting->is_late || oracle->fake->n_waits > 0);
    for (int i = 0; i < N_STREAMS; i++)
        zr_stream_destroy(&oracle->streams[i]);
    fake_log_clear(oracle->fake);
    zr_allocator_destroy(&oracle->allocator);
    assert_string_equal(oracle->fake->text, ""); /* no leak to tell of */
    fake_close(oracle->fake);
    free(oracle);
    return hash;
}

TEST(test_synchronous_small_granule) {
    run(&(setting_t){.seed = 1,
                     .granule_bytes = 4 * KIB,
                     .budget_bytes = 8 * MIB,
                     .n_operations = N_OPERATIONS});
}

TEST(test_synchronous_large_granule) {
    run(&(setting_t){.seed = 2,
                     .granule_bytes = 256 * KIB,
                     .budget_bytes = 12 * MIB,
                     .n_operations = N_OPERATIONS});
}

TEST(test_late_small_granule) {
    run(&(setting_t){.seed = 3,
                     .granule_bytes = 4 * KIB,
                     .budget_bytes = 8 * MIB,
                     .is_late = true,
                     .n_operations = N_OPERATIONS});
}

TEST(test_late_large_granule) {
    run(&(setting_t){.seed = 4,
                     .granule_bytes = 64 * KIB,
                     .budget_bytes = 10 * MIB,
                     .is_late = true,
                     .n_operations = N_OPERATIONS});
}

TEST(test_a_device_that_cannot_move) {
    run(&(setting_t){.seed = 7,
                     .granule_bytes = 16 * KIB,
                     .budget_bytes = 8 * MIB,
                     .cannot_move = true,
                     .n_operations = N_OPERATIONS / 4});
}

TEST(test_same_calls_same_places) {
    for (int is_late = 0; is_late < 2; is_late++) {
        setting_t setting = {.seed = 5,
                             .granule_bytes = 16 * KIB,
                             .budget_bytes = 8 * MIB,
                             .is_late = is_late != 0,
                             .n_operations = N_OPERATIONS / 10};
        uint64_t first = run(&setting), again = run(&setting);
        setting.seed = 6;
        uint64_t other = run(&setting);
        assert_true(first == again);
        assert_true(first != other);
    }
}
