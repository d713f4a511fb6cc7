/*
 * The simulated allocators: cases counted by hand, a naive best fit, and numbers that PyTorch's
 * own allocator gave.
 */
#include "examples/bench/alloc_sim.h"
#include "tests/common/test.h"

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)

enum { BEST_FIT, PYTORCH, EXPANDABLE };

static zr_log_t quiet;

static void reserve_for(const zr_plan_buffer_t *buffers, size_t n, size_t reserved[SIM_N_KINDS]) {
    trace_t trace = {.buffers = (zr_plan_buffer_t *)buffers, .n_buffers = n};
    assert_int_equal(sim_run(&trace, &quiet, reserved), ZR_OK);
}

TEST(test_kinds) {
    assert_ptr_equal(sim_kinds[BEST_FIT], &sim_best_fit);
    assert_ptr_equal(sim_kinds[PYTORCH], &sim_pytorch);
    assert_ptr_equal(sim_kinds[EXPANDABLE], &sim_pytorch_expandable);
}

/* ---- what is reserved, by hand --------------------------------------------------------------- */

/* All alive at once: what the first request of some size reserves, and what others still fit in. */
TEST(test_segments) {
    static const struct {
        size_t size_bytes, n, pytorch, expandable; /* the last two in MiB */
    } cases[] = {
        {0, 5, 0, 0},
        {1, 1, 2, 2},
        {512, 4096, 2, 2},
        {513, 2049, 4, 4}, /* each takes 1 KiB */
        {512 * KIB, 5, 4, 4},
        {MIB, 2, 2, 2},
        {MIB - 511, 3, 4, 4},  /* rounds up to 1 MiB, which is small */
        {MIB + 1, 1, 20, 20},  /* the large pool */
        {MIB + 1, 19, 20, 20}, /* 1 MiB + 512 bytes each */
        {MIB + 1, 20, 40, 40}, /* 20 of them are 20 MiB + 10 KiB */
        {9 * MIB, 3, 40, 40},  /* 18 in the first; 27 in pages */
        {10 * MIB - 512, 2, 20, 20},
        {10 * MIB - 511, 3, 30, 40}, /* rounds up to 10 MiB: segments of its own size */
        {10 * MIB + 1, 3, 36, 40},   /* 12 each; 30 MiB + 1536 bytes in pages */
        {33 * MIB, 2, 68, 80},       /* 34 each; 66 in pages */
    };
    static zr_plan_buffer_t buffers[4096];
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        size_t reserved[SIM_N_KINDS];
        for (size_t j = 0; j < cases[i].n; j++)
            buffers[j] = (zr_plan_buffer_t){0, 1, cases[i].size_bytes, 0};
        reserve_for(buffers, cases[i].n, reserved);
        assert_int_equal(reserved[BEST_FIT], cases[i].n * cases[i].size_bytes);
        assert_int_equal(reserved[PYTORCH], cases[i].pytorch * MIB);
        assert_int_equal(reserved[EXPANDABLE], cases[i].expandable * MIB);
    }
}

/* What ends at a time is free for what begins then, wherever it stands in the trace. */
TEST(test_ends_come_first) {
    static const zr_plan_buffer_t buffers[] = {{5, 9, 30 * MIB, 0}, {-3, 5, 30 * MIB, 0}};
    size_t reserved[SIM_N_KINDS];
    reserve_for(buffers, 2, reserved);
    assert_int_equal(reserved[BEST_FIT], 30 * MIB);
    assert_int_equal(reserved[PYTORCH], 30 * MIB);
    assert_int_equal(reserved[EXPANDABLE], 40 * MIB);
}

/* Two neighbours are one hole within a segment, but not across two. */
TEST(test_merging) {
    static const zr_plan_buffer_t across[] = {
        {0, 1, 12 * MIB, 0}, {0, 1, 12 * MIB, 0}, {1, 2, 24 * MIB, 0}};
    static const zr_plan_buffer_t within[] = {{0, 1, 6 * MIB, 0},
                                              {0, 2, 7 * MIB, 0},
                                              {0, 1, 6 * MIB, 0}, /* 20 MiB, 1 MiB left */
                                              {1, 2, 7 * MIB, 0},
                                              {1, 2, 6 * MIB, 0}}; /* the last 6 and 1 are 7 */
    size_t reserved[SIM_N_KINDS];
    reserve_for(across, 3, reserved);
    assert_int_equal(reserved[BEST_FIT], 24 * MIB);
    assert_int_equal(reserved[PYTORCH], 48 * MIB);
    assert_int_equal(reserved[EXPANDABLE], 40 * MIB);
    reserve_for(within, 5, reserved);
    assert_int_equal(reserved[BEST_FIT], 20 * MIB);
    assert_int_equal(reserved[PYTORCH], 20 * MIB);
    assert_int_equal(reserved[EXPANDABLE], 20 * MIB);
}

/* Small and large requests never share what is free. */
TEST(test_pools) {
    static const zr_plan_buffer_t buffers[] = {
        {0, 1, 15 * MIB, 0}, {1, 2, MIB, 0}, {1, 2, MIB, 0}, {1, 2, MIB, 0}};
    size_t reserved[SIM_N_KINDS];
    reserve_for(buffers, 4, reserved);
    assert_int_equal(reserved[BEST_FIT], 15 * MIB);
    assert_int_equal(reserved[PYTORCH], 20 * MIB);    /* 16, and two segments of 2 */
    assert_int_equal(reserved[EXPANDABLE], 24 * MIB); /* 20, and two pages of 2 */
}

/* ---- which block, by hand -------------------------------------------------------------------- */

TEST(test_splits) {
    sim_t sim;
    /* Large: a rest of 1 MiB stays, one of 512 bytes more is split off. */
    assert_true(sim_init(&sim, 8));
    sim_block_t *a = sim_pytorch.allocate(&sim, 20 * MIB);
    sim_free(&sim, a);
    a = sim_pytorch.allocate(&sim, 19 * MIB);
    assert_int_equal(a->size_bytes, 20 * MIB);
    assert_null(a->after);
    sim_free(&sim, a);
    a = sim_pytorch.allocate(&sim, 19 * MIB - 512);
    assert_int_equal(a->size_bytes, 19 * MIB - 512);
    assert_int_equal(a->after->size_bytes, MIB + 512);
    assert_true(a->after->is_free);
    /* Small: 512 bytes are. */
    sim_block_t *b = sim_pytorch.allocate(&sim, MIB - 512);
    sim_block_t *c = sim_pytorch.allocate(&sim, MIB);
    assert_int_equal(b->size_bytes, MIB - 512);
    assert_int_equal(c->after->size_bytes, 512);
    assert_int_equal(sim.reserved_bytes, 22 * MIB);
    sim_release(&sim);
    /* Expandable: always. */
    assert_true(sim_init(&sim, 8));
    a = sim_pytorch_expandable.allocate(&sim, 20 * MIB - 512);
    assert_int_equal(a->size_bytes, 20 * MIB - 512);
    assert_int_equal(a->after->size_bytes, 512);
    sim_release(&sim);
}

/* Of the free blocks the smallest that fits, and of equal ones the lowest. */
TEST(test_best_fit) {
    static const size_t sizes[] = {16, 2, 14, 2, 16, 2, 14, 2, 12, 2}; /* MiB */
    for (int kind = 0; kind < SIM_N_KINDS; kind++) {
        sim_t sim;
        sim_block_t *blocks[10];
        assert_true(sim_init(&sim, 16));
        for (int i = 0; i < 10; i++)
            blocks[i] = sim_kinds[kind]->allocate(&sim, sizes[i] * MIB);
        size_t expected = blocks[2]->address, reserved = sim.reserved_bytes;
        for (int i = 0; i < 10; i += 2)
            sim_free(&sim, blocks[i]);
        assert_int_equal(sim_kinds[kind]->allocate(&sim, 13 * MIB)->address, expected);
        assert_int_equal(sim.reserved_bytes, reserved);
        sim_release(&sim);
    }
}

/* The end of an expandable segment comes last, unless nothing else fits. */
TEST(test_expandable_end) {
    sim_t sim;
    assert_true(sim_init(&sim, 16));
    sim_block_t *hole = sim_pytorch_expandable.allocate(&sim, 30 * MIB);
    sim_block_t *kept = sim_pytorch_expandable.allocate(&sim, 6 * MIB); /* 4 MiB left at the end */
    sim_free(&sim, hole);
    sim_block_t *a = sim_pytorch_expandable.allocate(&sim, 3 * MIB);
    assert_int_equal(a->address, 0);
    sim_block_t *b = sim_pytorch_expandable.allocate(&sim, 27 * MIB);
    assert_int_equal(b->address, 3 * MIB);
    sim_block_t *c = sim_pytorch_expandable.allocate(&sim, 3 * MIB);
    assert_int_equal(c->address, 36 * MIB);
    assert_int_equal(sim.reserved_bytes, 40 * MIB);
    /* 1 MiB is left and counts: 21 MiB need one page more. */
    sim_block_t *d = sim_pytorch_expandable.allocate(&sim, 21 * MIB);
    assert_int_equal(d->address, 39 * MIB);
    assert_int_equal(sim.reserved_bytes, 60 * MIB);
    sim_block_t *const all[] = {a, d, kept, c, b};
    for (int i = 0; i < 5; i++)
        sim_free(&sim, all[i]);
    assert_int_equal(sim_tail_bytes(&sim, 1), 60 * MIB);
    sim_release(&sim);
}

/* ---- random traces --------------------------------------------------------------------------- */

#define N_RANDOM 3000

/* A generator that any language can repeat: Knuth's constants for 64 bits. */
static uint64_t draw(uint64_t *random, uint64_t n) {
    *random = *random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (*random >> 33) % n;
}

/* Sizes around all thresholds, lives short and long. */
static void make_random(uint64_t seed, zr_plan_buffer_t *buffers) {
    static const size_t sizes[] = {
        0,        1,       512,          100000,         MIB,          MIB + 1,
        3 * MIB,  7000000, 10 * MIB - 1, 10 * MIB - 512, 10 * MIB + 1, 16 * MIB,
        21 * MIB, 50000000};
    uint64_t random = seed;
    for (size_t i = 0; i < N_RANDOM; i++) {
        zr_plan_buffer_t *buffer = &buffers[i];
        uint64_t longest = draw(&random, 8) == 0 ? 2 * N_RANDOM : 100;
        size_t most = draw(&random, 4) == 0 ? 30 * MIB : 2 * MIB;
        buffer->lower = (int64_t)draw(&random, 4 * N_RANDOM);
        buffer->upper = buffer->lower + 1 + (int64_t)draw(&random, longest);
        buffer->size_bytes =
            draw(&random, 2) == 0 ? sizes[draw(&random, 14)] : (size_t)draw(&random, most);
        buffer->alignment = 0;
    }
}

/*
 * What torch.cuda.memory_stats would call reserved_bytes.all.peak: from PyTorch 2.15's own
 * allocator (libc10_cuda), over a CUDA runtime that did nothing but count addresses up, given these
 * traces with raw_alloc and raw_delete.
 */
TEST(test_pytorch_numbers) {
    static const size_t expected[][2] = {{1262485504, 1218445312},
                                         {1428160512, 1262485504},
                                         {1302331392, 1243611136},
                                         {1335885824, 1304428544}};
    static zr_plan_buffer_t buffers[N_RANDOM];
    for (size_t seed = 0; seed < sizeof(expected) / sizeof(expected[0]); seed++) {
        size_t reserved[SIM_N_KINDS];
        make_random(seed, buffers);
        reserve_for(buffers, N_RANDOM, reserved);
        assert_int_equal(reserved[PYTORCH], expected[seed][0]);
        assert_int_equal(reserved[EXPANDABLE], expected[seed][1]);
    }
}

/* Live buffers by address, and the end of the pool. */
typedef struct naive {
    const zr_plan_buffer_t *buffers[N_RANDOM];
    size_t addresses[N_RANDOM], n_live, end;
} naive_t;

static void naive_insert(naive_t *naive, size_t at, const zr_plan_buffer_t *buffer,
                         size_t address) {
    for (size_t i = naive->n_live++; i > at; i--) {
        naive->addresses[i] = naive->addresses[i - 1];
        naive->buffers[i] = naive->buffers[i - 1];
    }
    naive->addresses[at] = address;
    naive->buffers[at] = buffer;
    if (address + buffer->size_bytes > naive->end)
        naive->end = address + buffer->size_bytes;
}

/* In the smallest gap that fits; in none, from the last live byte on. */
static void naive_allocate(naive_t *naive, const zr_plan_buffer_t *buffer) {
    size_t best = naive->n_live, best_gap = SIZE_MAX, best_address = 0, below = 0;
    for (size_t i = 0; i <= naive->n_live; i++) {
        bool is_last = i == naive->n_live;
        size_t gap = (is_last ? naive->end : naive->addresses[i]) - below;
        bool is_better = gap >= buffer->size_bytes && gap < best_gap;
        if (is_better || (is_last && best_gap == SIZE_MAX)) {
            best = i;
            best_gap = gap;
            best_address = below;
        }
        if (!is_last)
            below = naive->addresses[i] + naive->buffers[i]->size_bytes;
    }
    naive_insert(naive, best, buffer, best_address);
}

static void naive_free_ended(naive_t *naive, int64_t time) {
    size_t n = 0;
    for (size_t i = 0; i < naive->n_live; i++) {
        if (naive->buffers[i]->upper <= time)
            continue;
        naive->addresses[n] = naive->addresses[i];
        naive->buffers[n++] = naive->buffers[i];
    }
    naive->n_live = n;
}

TEST(test_naive_best_fit) {
    static zr_plan_buffer_t buffers[N_RANDOM];
    static naive_t naive;
    for (uint64_t seed = 0; seed < 4; seed++) {
        size_t reserved[SIM_N_KINDS];
        make_random(seed, buffers);
        naive = (naive_t){.n_live = 0};
        for (int64_t time = 0; time < 4 * N_RANDOM; time++) {
            naive_free_ended(&naive, time);
            for (size_t i = 0; i < N_RANDOM; i++)
                if (buffers[i].lower == time && buffers[i].size_bytes > 0)
                    naive_allocate(&naive, &buffers[i]);
        }
        reserve_for(buffers, N_RANDOM, reserved);
        assert_int_equal(reserved[BEST_FIT], naive.end);
        assert_true(naive.end > zr_plan_max_live(buffers, N_RANDOM));
    }
}
