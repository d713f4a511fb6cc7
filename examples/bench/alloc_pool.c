/*
 * A plain caching best fit: one pool, one segment that grows at its end by exactly what is missing,
 * sizes as they are asked for. It knows no lives in advance and needs no granules: what it reserves
 * beyond what is live is holes and nothing else.
 */
#include "examples/bench/alloc_sim.h"

static sim_block_t *allocate(sim_t *sim, size_t size_bytes) {
    sim_block_t *block = sim_find(sim, 0, size_bytes);
    if (block != NULL)
        sim_take(sim, block);
    else
        block = sim_extend(sim, 0, size_bytes - sim_tail_bytes(sim, 0));
    if (block->size_bytes > size_bytes)
        sim_split(sim, block, size_bytes);
    return block;
}

const sim_kind_t sim_best_fit = {.name = "best_fit",
                                 .summary = "simulated: one pool that grows by what is missing",
                                 .allocate = allocate};
