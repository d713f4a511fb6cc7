/*
 * Blocks: what the allocator knows about each stretch of a class's addresses. They
 * lie in ordinary memory, never in the memory they describe, which may be a device's.
 *
 * All metadata that a free will need exists before an allocation succeeds, so that
 * freeing cannot fail: a free returns blocks to the pool and never takes one.
 */
#pragma once

#include <stdint.h>

#include "allocator/allocator.h"
#include "kernels/base/heap_internal.h"

#define ZR_BLOCK_ALIGNMENT 256

typedef struct zr_arena zr_arena_t;
typedef struct zr_block zr_block_t;

typedef enum zr_block_state {
    ZR_BLOCK_UNMAPPED, /* addresses only; whole granules */
    ZR_BLOCK_FREE,     /* mapped, and nobody's */
    ZR_BLOCK_LIVE,     /* a tensor */
    ZR_BLOCK_PENDING,  /* freed by the caller, in use by work queued on a stream */
    ZR_BLOCK_HELD /* the whole of a plan's memory, whose places are blocks of no arena's list */
} zr_block_state_t;

struct zr_block {
    /* What every allocation and free looks at comes first, in as few cache lines as can be. */
    zr_arena_t *arena;
    size_t offset_bytes;    /* in the range, a multiple of ZR_BLOCK_ALIGNMENT */
    size_t size_bytes;      /* likewise, > 0 */
    size_t requested_bytes; /* LIVE and PENDING: what was asked for, <= size_bytes */
    zr_block_state_t state;
    zr_tag_t tag;               /* LIVE and PENDING, as is lifetime */
    zr_lifetime_t lifetime : 8; /* differs from the arena's for empty allocations and in a plan */
    bool is_overdue : 1;        /* of the plan: live, though that has its free behind it */
    uint32_t planned;           /* of a place of the plan: its entry + 1; otherwise 0 */
    uint32_t tape_number, tape_epoch; /* LIVE: on which tape (tape_internal.h) it is; 0: on none */
    size_t life; /* LIVE and PENDING: its number in the recording + 1; 0: in none */

    zr_block_t *prev, *next;           /* neighbours; together they cover the range, in order */
    zr_block_t *list_prev, *list_next; /* of the state: bin, unmapped list, queue, or pool */
    zr_event_t *event;                 /* PENDING: passes when the memory may be used again */
    size_t sequence;                   /* PENDING: order of the frees */
};

/* ---- the pool of unused blocks ------------------------------------------------- */

typedef struct zr_block_pool {
    zr_heap_t *heap;   /* the allocator's */
    zr_block_t *spare; /* by list_next */
    size_t n_spare;
    size_t n_blocks; /* spare or in an arena */
} zr_block_pool_t;

/** Have at least `n_blocks` spare. ZR_ERR_MEMORY changes nothing. */
ZR_NODISCARD zr_status_t zr_block_pool_reserve(zr_block_pool_t *pool, size_t n_blocks);
/** Take a spare block, zeroed; one must be there. */
zr_block_t *zr_block_pool_take(zr_block_pool_t *pool);
void zr_block_pool_give(zr_block_pool_t *pool, zr_block_t *block);

/* ---- the table of live blocks, by address --------------------------------------- */

typedef struct zr_block_entry {
    const void *pointer; /* NULL: empty */
    zr_block_t *block;
} zr_block_entry_t;

/*
 * Open addressing with linear probing and no tombstones; at most half full, because a
 * removal looks at every entry of its run.
 */
#define ZR_TABLE_SLOTS_PER_BLOCK 4
typedef struct zr_block_table {
    zr_heap_t *heap; /* the allocator's */
    zr_block_entry_t *entries;
    size_t capacity; /* 0 or a power of two */
    size_t n_blocks;
    int shift; /* 64 - log2(capacity) */
} zr_block_table_t;

/** Have room for one block more. ZR_ERR_MEMORY changes nothing. */
ZR_NODISCARD zr_status_t zr_block_table_reserve(zr_block_table_t *table);
/** Add a block; room must have been reserved and the pointer must not be there. */
void zr_block_table_add(zr_block_table_t *table, const void *pointer, zr_block_t *block);
/** The block of a pointer, or NULL. */
zr_block_t *zr_block_table_find(const zr_block_table_t *table, const void *pointer);
/** Take the block of a pointer out, or return NULL. */
zr_block_t *zr_block_table_remove(zr_block_table_t *table, const void *pointer);
