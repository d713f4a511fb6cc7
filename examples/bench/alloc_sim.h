/*
 * Allocators that are simulated, to see what they would reserve for a trace. Nothing is allocated:
 * blocks are numbers. They share segments of addresses, cut into blocks that are merged with their
 * free neighbours as soon as they are freed, and free blocks ordered by size; what makes them
 * differ is one function each, which chooses a block, makes room when there is none, and splits.
 * None of them gives memory back, so that what is reserved at the end is the most that ever was.
 *
 * Streams are left out: all is allocated and freed on one, and free at the time that the trace
 * says.
 */
#pragma once

#include "examples/bench/trace.h"

#define SIM_MAX_POOLS 2

typedef struct sim_block sim_block_t;
struct sim_block {
    size_t address, size_bytes;
    sim_block_t *before, *after; /* neighbours in the segment; NULL at its ends */
    int pool;
    bool is_free;
    /* Free: in the pool's tree, ordered by size, then address; a heap by priority, too. */
    sim_block_t *smaller, *larger;
    uint64_t priority;
};

typedef struct sim_pool {
    sim_block_t *free_blocks; /* the root of the tree */
    sim_block_t *last;        /* the highest block of the segment made last; NULL: there is none */
} sim_pool_t;

/** What is in use and free of one simulated allocator. Threads: one. */
typedef struct sim {
    sim_block_t *blocks; /* [capacity], the first n_blocks have been in use; */
    size_t n_blocks, capacity;
    sim_block_t *spare; /* of those the ones that were merged away, by `after` */
    sim_pool_t pools[SIM_MAX_POOLS];
    size_t reserved_bytes;
    size_t end_address; /* of the segment made last */
    uint64_t random;
} sim_t;

typedef struct sim_kind {
    const char *name; /* "best_fit" */
    const char *summary;
    /* Give a block of at least size_bytes > 0; it is not free. Cannot fail: no capacity limits it.
     */
    sim_block_t *(*allocate)(sim_t *sim, size_t size_bytes);
} sim_kind_t;

/* alloc_pool.c, alloc_pytorch.c */
extern const sim_kind_t sim_best_fit;
extern const sim_kind_t sim_pytorch;
extern const sim_kind_t sim_pytorch_expandable;

/** All of them, in the order of reports. */
#define SIM_N_KINDS 3
extern const sim_kind_t *const sim_kinds[SIM_N_KINDS];

/**
 * Run every kind over a trace. What ends at a time is freed before what begins then is allocated;
 * otherwise the order is the trace's. Buffers of size 0 need nothing. Alignments are not looked at.
 *
 * @param reserved_p  the most bytes that each has reserved, in the order of sim_kinds
 * @return ZR_OK; ZR_ERR_MEMORY
 */
ZR_NODISCARD zr_status_t sim_run(const trace_t *trace, const zr_log_t *log,
                                 size_t reserved_p[SIM_N_KINDS]);

/* ---- for the allocators ---------------------------------------------------------------------- */

/** Room for this many allocations in all, freed or not; false when there is no memory. */
bool sim_init(sim_t *sim, size_t n_allocations);
void sim_release(sim_t *sim);

/** The smallest free block of the pool that holds so much, of those the lowest; NULL: none does. */
sim_block_t *sim_find(const sim_t *sim, int pool, size_t size_bytes);
/** The next free block of the same pool by size, then address; NULL: there is none. */
sim_block_t *sim_next_larger(const sim_t *sim, const sim_block_t *block);
/** Take a free block. */
void sim_take(sim_t *sim, sim_block_t *block);
/** Reserve a segment of its own for the pool, above all others: one block, which is taken. */
sim_block_t *sim_add_segment(sim_t *sim, int pool, size_t size_bytes);
/** What is free at the end of the segment that the pool made last. */
size_t sim_tail_bytes(const sim_t *sim, int pool);
/**
 * Make the pool's only segment longer by size_bytes, or begin it.
 *
 * @return the new piece, together with what was free before it, taken
 */
sim_block_t *sim_extend(sim_t *sim, int pool, size_t size_bytes);
/** Let a taken block keep size_bytes; the rest becomes a free one. */
void sim_split(sim_t *sim, sim_block_t *block, size_t size_bytes);
/** Free a taken block, merged with its free neighbours. */
void sim_free(sim_t *sim, sim_block_t *block);
