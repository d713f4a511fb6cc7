/*
 * The pool that blocks come from, and the table that finds a live block by its
 * address. Both grow only in their reserve calls; everything else cannot fail.
 */
#include "allocator/block_internal.h"

#define MIN_CHUNK_BLOCKS 64
#define MAX_CHUNK_BLOCKS 4096
#define MIN_TABLE_CAPACITY 64

/* ---- the pool --------------------------------------------------------------------- */

zr_status_t zr_block_pool_reserve(zr_block_pool_t *pool, size_t n_blocks) {
    if (pool->n_spare >= n_blocks)
        return ZR_OK;
    size_t n_new = pool->n_blocks;
    if (n_new < MIN_CHUNK_BLOCKS)
        n_new = MIN_CHUNK_BLOCKS;
    if (n_new > MAX_CHUNK_BLOCKS)
        n_new = MAX_CHUNK_BLOCKS;
    if (n_new < n_blocks)
        n_new = n_blocks;
    zr_block_t *blocks = zr_heap_alloc(pool->heap, n_new, sizeof(*blocks));
    if (blocks == NULL)
        return ZR_ERR_MEMORY;
    pool->n_blocks += n_new;
    for (size_t i = n_new; i > 0; i--)
        zr_block_pool_give(pool, &blocks[i - 1]);
    return ZR_OK;
}

zr_block_t *zr_block_pool_take(zr_block_pool_t *pool) {
    zr_block_t *block = pool->spare;
    pool->spare = block->list_next;
    pool->n_spare--;
    *block = (zr_block_t){0};
    return block;
}

void zr_block_pool_give(zr_block_pool_t *pool, zr_block_t *block) {
    block->list_next = pool->spare;
    pool->spare = block;
    pool->n_spare++;
}

/* ---- the table -------------------------------------------------------------------- */

/* Fibonacci hashing; pointers are multiples of the alignment, so its bits say nothing. */
static size_t home_of(const zr_block_table_t *table, const void *pointer) {
    uint64_t key = (uint64_t)(uintptr_t)pointer / ZR_BLOCK_ALIGNMENT;
    return (size_t)((key * UINT64_C(0x9E3779B97F4A7C15)) >> table->shift);
}

/* The entry that holds the pointer, or the empty one where it would go. */
static size_t probe(const zr_block_table_t *table, const void *pointer) {
    size_t mask = table->capacity - 1;
    size_t i = home_of(table, pointer);
    while (table->entries[i].pointer != NULL && table->entries[i].pointer != pointer)
        i = (i + 1) & mask;
    return i;
}

zr_status_t zr_block_table_reserve(zr_block_table_t *table) {
    if (ZR_TABLE_SLOTS_PER_BLOCK * (table->n_blocks + 1) <= table->capacity)
        return ZR_OK;
    zr_block_table_t grown = {.heap = table->heap,
                              .capacity =
                                  table->capacity == 0 ? MIN_TABLE_CAPACITY : 2 * table->capacity};
    grown.shift = 64 - __builtin_ctzll(grown.capacity);
    grown.entries = zr_heap_alloc(table->heap, grown.capacity, sizeof(*grown.entries));
    if (grown.entries == NULL)
        return ZR_ERR_MEMORY;
    for (size_t i = 0; i < table->capacity; i++) {
        if (table->entries[i].pointer != NULL)
            zr_block_table_add(&grown, table->entries[i].pointer, table->entries[i].block);
    }
    zr_heap_free(table->heap, table->entries);
    *table = grown;
    return ZR_OK;
}

void zr_block_table_add(zr_block_table_t *table, const void *pointer, zr_block_t *block) {
    table->entries[probe(table, pointer)] = (zr_block_entry_t){.pointer = pointer, .block = block};
    table->n_blocks++;
}

zr_block_t *zr_block_table_find(const zr_block_table_t *table, const void *pointer) {
    if (table->capacity == 0 || pointer == NULL)
        return NULL;
    return table->entries[probe(table, pointer)].block;
}

zr_block_t *zr_block_table_remove(zr_block_table_t *table, const void *pointer) {
    if (table->capacity == 0 || pointer == NULL)
        return NULL;
    size_t mask = table->capacity - 1;
    size_t hole = probe(table, pointer);
    zr_block_t *block = table->entries[hole].block;
    if (block == NULL)
        return NULL;

    /* Move later entries of the same run back over the hole, unless they are before home then. */
    for (size_t i = (hole + 1) & mask; table->entries[i].pointer != NULL; i = (i + 1) & mask) {
        size_t home = home_of(table, table->entries[i].pointer);
        if (((i - home) & mask) >= ((i - hole) & mask)) {
            table->entries[hole] = table->entries[i];
            hole = i;
        }
    }
    table->entries[hole] = (zr_block_entry_t){0};
    table->n_blocks--;
    return block;
}
