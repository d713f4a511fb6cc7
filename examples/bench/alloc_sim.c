#include "examples/bench/alloc_sim.h"

#include <stdlib.h>

const sim_kind_t *const sim_kinds[SIM_N_KINDS] = {&sim_best_fit, &sim_pytorch,
                                                  &sim_pytorch_expandable};

/* ---- free blocks: a treap, so that no order of sizes makes it deep --------------------------- */

static bool is_before(const sim_block_t *block, size_t size_bytes, size_t address) {
    return block->size_bytes < size_bytes ||
           (block->size_bytes == size_bytes && block->address < address);
}

/* xorshift: the same priorities in every run. */
static uint64_t next_random(sim_t *sim) {
    sim->random ^= sim->random << 13;
    sim->random ^= sim->random >> 7;
    sim->random ^= sim->random << 17;
    return sim->random;
}

/* Where the link to a block of this size, address and priority is, or belongs. */
static sim_block_t **find_link(sim_pool_t *pool, const sim_block_t *block) {
    sim_block_t **link = &pool->free_blocks;
    while (*link != NULL && *link != block && (*link)->priority >= block->priority)
        link = is_before(*link, block->size_bytes, block->address) ? &(*link)->larger
                                                                   : &(*link)->smaller;
    return link;
}

static void insert_free(sim_t *sim, sim_block_t *block) {
    block->is_free = true;
    block->priority = next_random(sim);
    sim_block_t **link = find_link(&sim->pools[block->pool], block), *rest = *link;
    *link = block;
    sim_block_t **smaller = &block->smaller, **larger = &block->larger;
    while (rest != NULL) {
        bool goes_below = is_before(rest, block->size_bytes, block->address);
        sim_block_t ***side = goes_below ? &smaller : &larger;
        **side = rest;
        *side = goes_below ? &rest->larger : &rest->smaller;
        rest = **side;
    }
    *smaller = *larger = NULL;
}

static void remove_free(sim_t *sim, sim_block_t *block) {
    sim_block_t **link = find_link(&sim->pools[block->pool], block);
    sim_block_t *smaller = block->smaller, *larger = block->larger;
    while (smaller != NULL && larger != NULL) {
        bool is_smaller = smaller->priority > larger->priority;
        sim_block_t **side = is_smaller ? &smaller : &larger;
        *link = *side;
        link = is_smaller ? &smaller->larger : &larger->smaller;
        *side = *link;
    }
    *link = smaller != NULL ? smaller : larger;
    block->is_free = false;
}

/* The first free block that is not before this size and address. */
static sim_block_t *first_from(const sim_pool_t *pool, size_t size_bytes, size_t address) {
    sim_block_t *first = NULL;
    for (sim_block_t *block = pool->free_blocks; block != NULL;) {
        bool is_too_small = is_before(block, size_bytes, address);
        if (!is_too_small)
            first = block;
        block = is_too_small ? block->larger : block->smaller;
    }
    return first;
}

sim_block_t *sim_find(const sim_t *sim, int pool, size_t size_bytes) {
    return first_from(&sim->pools[pool], size_bytes, 0);
}

sim_block_t *sim_next_larger(const sim_t *sim, const sim_block_t *block) {
    return first_from(&sim->pools[block->pool], block->size_bytes, block->address + 1);
}

void sim_take(sim_t *sim, sim_block_t *block) {
    remove_free(sim, block);
}

/* ---- blocks and segments --------------------------------------------------------------------- */

bool sim_init(sim_t *sim, size_t n_allocations) {
    *sim = (sim_t){.capacity = 2 * n_allocations, .random = UINT64_C(0x9E3779B97F4A7C15)};
    sim->blocks = malloc((sim->capacity + 1) * sizeof(*sim->blocks));
    return sim->blocks != NULL;
}

void sim_release(sim_t *sim) {
    free(sim->blocks);
    *sim = (sim_t){0};
}

/* An allocation makes two at most: what is reserved for it, and what is split off. */
static sim_block_t *new_block(sim_t *sim, sim_block_t fields) {
    sim_block_t *block = sim->spare;
    if (block != NULL)
        sim->spare = block->after;
    else
        block = &sim->blocks[sim->n_blocks++];
    *block = fields;
    return block;
}

/* Let a block swallow the one after it. */
static void merge_after(sim_t *sim, sim_block_t *block) {
    sim_block_t *after = block->after;
    block->size_bytes += after->size_bytes;
    block->after = after->after;
    if (block->after != NULL)
        block->after->before = block;
    if (sim->pools[block->pool].last == after)
        sim->pools[block->pool].last = block;
    after->after = sim->spare;
    sim->spare = after;
}

sim_block_t *sim_add_segment(sim_t *sim, int pool, size_t size_bytes) {
    sim_block_t *block = new_block(
        sim, (sim_block_t){.address = sim->end_address, .size_bytes = size_bytes, .pool = pool});
    sim->end_address += size_bytes;
    sim->reserved_bytes += size_bytes;
    sim->pools[pool].last = block;
    return block;
}

size_t sim_tail_bytes(const sim_t *sim, int pool) {
    const sim_block_t *last = sim->pools[pool].last;
    return last != NULL && last->is_free ? last->size_bytes : 0;
}

sim_block_t *sim_extend(sim_t *sim, int pool, size_t size_bytes) {
    sim_block_t *last = sim->pools[pool].last;
    if (last == NULL)
        return sim_add_segment(sim, pool, size_bytes);
    sim->reserved_bytes += size_bytes;
    if (last->is_free) {
        remove_free(sim, last);
        last->size_bytes += size_bytes;
        return last;
    }
    last->after = new_block(sim, (sim_block_t){.address = last->address + last->size_bytes,
                                               .size_bytes = size_bytes,
                                               .before = last,
                                               .pool = pool});
    sim->pools[pool].last = last->after;
    return last->after;
}

void sim_split(sim_t *sim, sim_block_t *block, size_t size_bytes) {
    sim_block_t *rest = new_block(sim, (sim_block_t){.address = block->address + size_bytes,
                                                     .size_bytes = block->size_bytes - size_bytes,
                                                     .before = block,
                                                     .after = block->after,
                                                     .pool = block->pool});
    block->size_bytes = size_bytes;
    block->after = rest;
    if (rest->after != NULL)
        rest->after->before = rest;
    if (sim->pools[block->pool].last == block)
        sim->pools[block->pool].last = rest;
    insert_free(sim, rest);
}

void sim_free(sim_t *sim, sim_block_t *block) {
    if (block->after != NULL && block->after->is_free) {
        remove_free(sim, block->after);
        merge_after(sim, block);
    }
    if (block->before != NULL && block->before->is_free) {
        block = block->before;
        remove_free(sim, block);
        merge_after(sim, block);
    }
    insert_free(sim, block);
}

/* ---- a trace --------------------------------------------------------------------------------- */

typedef struct event {
    int64_t time;
    size_t buffer;
    bool begins;
} event_t;

static int compare_events(const void *a, const void *b) {
    const event_t *x = a, *y = b;
    if (x->time != y->time)
        return x->time < y->time ? -1 : 1;
    if (x->begins != y->begins)
        return x->begins ? 1 : -1;
    return (x->buffer > y->buffer) - (x->buffer < y->buffer);
}

static size_t sort_events(const trace_t *trace, event_t *events) {
    size_t n = 0;
    for (size_t i = 0; i < trace->n_buffers; i++) {
        const zr_plan_buffer_t *buffer = &trace->buffers[i];
        if (buffer->size_bytes == 0)
            continue;
        events[n++] = (event_t){.time = buffer->lower, .buffer = i, .begins = true};
        events[n++] = (event_t){.time = buffer->upper, .buffer = i};
    }
    qsort(events, n, sizeof(*events), compare_events);
    return n;
}

static bool run_kind(const sim_kind_t *kind, const trace_t *trace, const event_t *events,
                     size_t n_events, sim_block_t **live, size_t *reserved_p) {
    sim_t sim;
    if (!sim_init(&sim, n_events / 2))
        return false;
    for (size_t i = 0; i < n_events; i++) {
        size_t buffer = events[i].buffer;
        if (events[i].begins)
            live[buffer] = kind->allocate(&sim, trace->buffers[buffer].size_bytes);
        else
            sim_free(&sim, live[buffer]);
    }
    *reserved_p = sim.reserved_bytes;
    sim_release(&sim);
    return true;
}

zr_status_t sim_run(const trace_t *trace, const zr_log_t *log, size_t reserved_p[SIM_N_KINDS]) {
    size_t n = trace->n_buffers, reserved[SIM_N_KINDS];
    event_t *events = malloc((2 * n + 1) * sizeof(*events));
    sim_block_t **live = malloc((n + 1) * sizeof(sim_block_t *));
    bool has_memory = events != NULL && live != NULL;
    if (has_memory) {
        size_t n_events = sort_events(trace, events);
        for (int i = 0; has_memory && i < SIM_N_KINDS; i++)
            has_memory = run_kind(sim_kinds[i], trace, events, n_events, live, &reserved[i]);
    }
    free(events);
    free(live);
    if (!has_memory)
        return zr_fail(log, ZR_ERR_MEMORY, "no memory to simulate allocators with %s",
                       zr_count_text(n, "buffer").text);
    for (int i = 0; i < SIM_N_KINDS; i++)
        reserved_p[i] = reserved[i];
    return ZR_OK;
}
