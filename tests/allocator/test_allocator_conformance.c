/*
 * The allocator against the oracle of replay_steps.c: millions of seeded random requests and frees
 * over both tiers, of each class and of all, frees behind streams that are done at once or late, in
 * budgets that are felt. Beyond what that oracle knows: for each refusal, whether there really was
 * no room; and that the same calls end in the same places.
 */
#include "allocator/internal.h"
#include "tests/allocator/replay_steps.h"
#include "tests/common/test.h"

#define KIB ((size_t)1024)
#define MIB (1024 * KIB)
#define MAX_SLOTS 240
#define N_STREAMS_USED 3
#define MIXED ZR_N_LIFETIMES

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define N_CHECKED 15000
#define N_OF_CLASS 20000
#else
#define N_CHECKED 75000
#define N_OF_CLASS 400000
#endif

typedef struct setting {
    uint64_t seed;
    size_t granule_bytes, budget_bytes;
    bool is_late, cannot_move;
    size_t n_operations;
    bool is_checked; /* after each operation, each refusal, with large tensors */
    int class_index; /* of all tensors, or MIXED */
    size_t n_slots;
} setting_t;

typedef struct traffic {
    const setting_t *setting;
    steps_t *steps;
    uint64_t random;
    uint64_t hash;   /* of all that is not allowed to vary */
    size_t n_wanted; /* slots in use at most, for now */
} traffic_t;

static size_t below(traffic_t *traffic, size_t n) {
    return (size_t)(random_bits(&traffic->random) % n);
}

static void note(traffic_t *traffic, uint64_t value) {
    traffic->hash = (traffic->hash ^ value) * UINT64_C(0x100000001B3);
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
static size_t extents_of(const steps_t *steps, zr_tier_t tier, int lifetime, extent_t *extents) {
    size_t n = 0;
    for (int i = 0; i < steps->n_live; i++) {
        const steps_tensor_t *tensor = &steps->tensors[steps->live[i]];
        if (tensor->tier != tier || (int)tensor->lifetime != lifetime || tensor->size_bytes == 0)
            continue;
        const fake_range_t *range = fake_range_of(steps->fake, tensor->pointer);
        size_t begin = (size_t)((char *)tensor->pointer - range->base);
        extents[n++] = (extent_t){begin, begin + (tensor->size_bytes + 255) / 256 * 256};
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
static bool refusal_is_right(const steps_t *steps, const step_op_t *asked) {
    extent_t extents[MAX_SLOTS + 1];
    size_t granule = steps->options.granule_bytes;
    size_t size = (asked->size_bytes + 255) / 256 * 256, n_pinned = 0, least = SIZE_MAX;
    for (int lifetime = 0; lifetime < ZR_N_LIFETIMES; lifetime++) {
        size_t n = extents_of(steps, asked->tier, lifetime, extents);
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
    return (n_pinned + least) * granule > steps->options.budget_bytes;
}

/* ---- operations -------------------------------------------------------------------------- */

/* Common sizes, next to nothing, and now and then much. */
static size_t random_size(traffic_t *traffic) {
    static const size_t common[] = {256, 4096, 12288, 20000, 65536, 100000, 262144};
    bool is_large = traffic->setting->is_checked;
    switch (below(traffic, 8)) {
    case 0:
        return below(traffic, 3);
    case 1:
        return is_large ? below(traffic, 5000) : 256 * (1 + below(traffic, 40));
    case 2:
        return is_large                  ? below(traffic, 60000)
               : below(traffic, 16) == 0 ? below(traffic, 150000)
                                         : below(traffic, 20000);
    case 3:
        if (is_large)
            return below(traffic, below(traffic, 40) == 0 ? 3 * MIB : 300000);
        return 1 + below(traffic, 6000);
    default:
        return is_large ? common[below(traffic, N_OF(common))] : 1 + below(traffic, 6000);
    }
}

/* The result of an allocation; range and offset, as addresses are the system's. */
static void note_place(traffic_t *traffic, const step_op_t *op, zr_status_t status) {
    steps_t *steps = traffic->steps;
    const char *pointer = (const char *)steps->tensors[op->slot].pointer;
    note(traffic, (uint64_t)status);
    if (status != ZR_OK) {
        assert_true(!traffic->setting->is_checked || refusal_is_right(steps, op));
        return;
    }
    const fake_range_t *range = fake_range_of(steps->fake, pointer);
    note(traffic, (uint64_t)(range - steps->fake->ranges));
    note(traffic, (uint64_t)(pointer - range->base));
}

static void do_one(traffic_t *traffic) {
    steps_t *steps = traffic->steps;
    int slot = (int)below(traffic, traffic->setting->n_slots);
    int stream = (int)below(traffic, N_STREAMS_USED + 1) - 1; /* or none */
    step_op_t op = {.kind = STEP_FREE, .slot = slot, .stream = stream};
    if (steps->tensors[slot].pointer == NULL) {
        int class_index = traffic->setting->class_index;
        if (slot >= (int)traffic->n_wanted)
            return;
        op.kind = STEP_ALLOCATE;
        op.size_bytes = random_size(traffic);
        op.tier = below(traffic, 4) == 0 ? ZR_TIER_HOST : ZR_TIER_DEVICE;
        op.tag = (zr_tag_t)below(traffic, ZR_N_TAGS);
        op.lifetime = (zr_lifetime_t)(class_index == MIXED ? below(traffic, ZR_N_LIFETIMES)
                                                           : (size_t)class_index);
    }
    zr_status_t status = steps_do(steps, &op);
    assert_true(status == ZR_OK || status == ZR_ERR_BUDGET);
    if (op.kind == STEP_ALLOCATE)
        note_place(traffic, &op, status);
    if (!traffic->setting->is_checked)
        return;
    steps_check_counts(steps);
    for (int tier = 0; tier < STEPS_N_TIERS; tier++)
        note(traffic, steps_memory(steps, (zr_tier_t)tier).reserved.live);
}

static void do_something_rare(traffic_t *traffic, size_t i) {
    steps_t *steps = traffic->steps;
    if (i % 8 == 0)
        fake_stream_pass(steps->streams[below(traffic, N_STREAMS_USED)], 1 + below(traffic, 8));
    if (i % 500 == 0)
        traffic->n_wanted = 1 + below(traffic, traffic->setting->n_slots);
    if (i % 1000 == 0)
        steps_check(steps);
    if (below(traffic, 4000) == 0)
        assert_ok(zr_allocator_trim(steps->allocator, (zr_tier_t)below(traffic, 2)));
    if (below(traffic, 4000) == 0)
        steps->allocator->is_frugal = !steps->allocator->is_frugal;
    if (below(traffic, 4000) == 0)
        steps_reset_peaks(steps);
    if (steps->fake->n_logged[ZR_LOG_ERROR] > 0)
        fake_log_clear(steps->fake);
}

/* A run; returns the hash of everything that has to be the same when it is run again. */
static uint64_t run(const setting_t *setting) {
    steps_options_t options = {.granule_bytes = setting->granule_bytes,
                               .is_late = setting->is_late,
                               .budget_bytes = setting->budget_bytes};
    traffic_t traffic = {.setting = setting,
                         .steps = steps_open(&options),
                         .random = setting->seed,
                         .n_wanted = setting->n_slots};
    const fake_t *fake = traffic.steps->fake;
    traffic.steps->fake->cannot_move = setting->cannot_move;
    for (size_t i = 0; traffic.steps->n_operations < setting->n_operations; i++) {
        do_something_rare(&traffic, i);
        do_one(&traffic);
    }
    printf("%s, seed %llu: %zu operations, %zu refused, %zu maps, %zu unmaps, %zu moves, %zu "
           "waits\n",
           setting->class_index == MIXED ? "mixed" : zr_class_name(setting->class_index),
           (unsigned long long)setting->seed, traffic.steps->n_operations, traffic.steps->n_refused,
           fake->n_maps, fake->n_unmaps, fake->n_moves, fake->n_waits);
    assert_true(traffic.steps->n_refused > 0); /* the budget was felt */
    assert_true(fake->n_unmaps > 0);
    assert_true(!setting->cannot_move || fake->n_moves == 0);
    assert_true(!setting->is_late || fake->n_waits > 0);
    steps_close(&traffic.steps);
    return traffic.hash;
}

TEST(test_every_call_is_checked) {
    static const setting_t settings[] = {
        {1, 4 * KIB, 8 * MIB + 1000, false, false, N_CHECKED, true, MIXED, MAX_SLOTS},
        {2, 256 * KIB, 9 * MIB, false, false, N_CHECKED, true, MIXED, MAX_SLOTS},
        {3, 4 * KIB, 8 * MIB, true, false, N_CHECKED, true, MIXED, MAX_SLOTS},
        {4, 64 * KIB, 7 * MIB + 1000, true, false, N_CHECKED, true, MIXED, MAX_SLOTS},
        {7, 16 * KIB, 6 * MIB, false, true, N_CHECKED / 4, true, MIXED, MAX_SLOTS}};
    for (size_t i = 0; i < N_OF(settings); i++)
        run(&settings[i]);
}

TEST(test_each_class_and_all) {
    for (int i = 0; i <= MIXED; i++)
        run(&(setting_t){.seed = 77 + (uint64_t)i,
                         .granule_bytes = i % 3 == 0 && i < MIXED ? 16384 : 4096,
                         .budget_bytes = i == MIXED ? 250000 : 200000,
                         .is_late = i % 2 == 0 || i == MIXED,
                         .n_operations = N_OF_CLASS,
                         .class_index = i,
                         .n_slots = 48});
}

TEST(test_same_calls_same_places) {
    for (int is_late = 0; is_late < 2; is_late++) {
        setting_t setting = {5,    16 * KIB, 6 * MIB,  is_late != 0, false, N_CHECKED / 2,
                             true, MIXED,    MAX_SLOTS};
        uint64_t first = run(&setting), again = run(&setting);
        setting.seed = 6;
        assert_true(first == again);
        assert_true(first != run(&setting));
    }
}
