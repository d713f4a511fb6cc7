/*
 * What PyTorch's caching allocator for CUDA reserves, by the rules and constants of
 * c10/cuda/CUDACachingAllocator.cpp, whose names stand beside them here, with
 * the settings that it has unless a user changes them: no max_split_size, no garbage collection,
 * no rounding to divisions of powers of two.
 *
 * Requests are rounded up to 512 bytes; those of at most 1 MiB come from a pool of their own. Each
 * pool takes its smallest free block that fits, of equal ones the lowest. When there is none,
 *
 * - it gets a segment from cudaMalloc: 2 MiB for small requests, 20 MiB for those below 10 MiB,
 *   others as large as they are, in multiples of 2 MiB. Blocks are merged only with neighbours in
 *   their segment. What remains of a block is split off when it is at least 512 bytes (small pool)
 *   or more than 1 MiB (large pool); otherwise it stays with the block, unused;
 * - or, with expandable_segments:True, the pool's one segment is made longer, by pages of 2 MiB
 *   (small pool) or 20 MiB (large pool), counted from what is free at its end. Whatever remains is
 *   split off. The free block at the end counts as if it were as large as the segment may become,
 *   so that another free block that fits comes first, however large.
 *
 * Nothing goes back to the device before it is out of memory, so that case is not simulated: a
 * capacity that is exceeded here would make PyTorch give its unused segments back and try again.
 * Where cudaMalloc places segments is not known; they are taken to follow each other. With that,
 * and one stream, PyTorch 2.15 reserved the same bytes for random traces (test_alloc_sim.c has
 * some); no GPU was asked.
 */
#include "examples/bench/alloc_sim.h"

#define MIB ((size_t)1 << 20)

enum { SMALL_POOL, LARGE_POOL };

static const size_t min_block = 512;            /* kMinBlockSize */
static const size_t small_size = MIB;           /* kSmallSize: the largest small request */
static const size_t small_buffer = 2 * MIB;     /* kSmallBuffer: segments and pages of that pool */
static const size_t large_buffer = 20 * MIB;    /* kLargeBuffer: the same of the large pool, */
static const size_t min_large_alloc = 10 * MIB; /* kMinLargeAlloc: but segments from here on */
static const size_t round_large = 2 * MIB;      /* kRoundLarge: are the request in these */

static size_t round_up(size_t size_bytes, size_t multiple) {
    return (size_bytes + multiple - 1) / multiple * multiple;
}

static int pool_of(size_t rounded_bytes) {
    return rounded_bytes <= small_size ? SMALL_POOL : LARGE_POOL;
}

/* ---- segments from cudaMalloc ---------------------------------------------------------------- */

static size_t segment_size(size_t rounded_bytes) {
    if (rounded_bytes <= small_size)
        return small_buffer;
    if (rounded_bytes < min_large_alloc)
        return large_buffer;
    return round_up(rounded_bytes, round_large);
}

static sim_block_t *allocate(sim_t *sim, size_t size_bytes) {
    size_t rounded = round_up(size_bytes, min_block);
    int pool = pool_of(rounded);
    sim_block_t *block = sim_find(sim, pool, rounded);
    if (block != NULL)
        sim_take(sim, block);
    else
        block = sim_add_segment(sim, pool, segment_size(rounded));
    size_t rest = block->size_bytes - rounded;
    if (pool == SMALL_POOL ? rest >= min_block : rest > small_size)
        sim_split(sim, block, rounded);
    return block;
}

const sim_kind_t sim_pytorch = {
    .name = "pytorch", .summary = "simulated: PyTorch's caching allocator", .allocate = allocate};

/* ---- expandable segments --------------------------------------------------------------------- */

static sim_block_t *find_before_end(const sim_t *sim, int pool, size_t rounded_bytes) {
    sim_block_t *block = sim_find(sim, pool, rounded_bytes);
    if (block == NULL || block != sim->pools[pool].last)
        return block;
    sim_block_t *next = sim_next_larger(sim, block);
    return next != NULL ? next : block;
}

static sim_block_t *allocate_expandable(sim_t *sim, size_t size_bytes) {
    size_t rounded = round_up(size_bytes, min_block);
    int pool = pool_of(rounded);
    size_t page_size = pool == SMALL_POOL ? small_buffer : large_buffer;
    sim_block_t *block = find_before_end(sim, pool, rounded);
    if (block != NULL)
        sim_take(sim, block);
    else
        block = sim_extend(sim, pool, round_up(rounded - sim_tail_bytes(sim, pool), page_size));
    if (block->size_bytes > rounded)
        sim_split(sim, block, rounded);
    return block;
}

const sim_kind_t sim_pytorch_expandable = {.name = "pytorch_expandable",
                                           .summary =
                                               "simulated: the same with expandable_segments:True",
                                           .allocate = allocate_expandable};
