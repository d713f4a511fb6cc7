/*
 * An arena: one reserved address range, that of one lifetime class in one tier.
 *
 * Blocks cover the range without gaps. Each is unmapped (whole granules of addresses
 * only), free (mapped), live or pending. Neighbours that are both free, or both
 * unmapped, are merged at once, so that every hole is as large as it can be. Free
 * blocks stand in bins of two levels, powers of two in 32 steps each; a fit is found
 * there in constant time and needs no mapping. Only when there is none does the
 * arena look for the place that needs the least new mapping (zr_arena_plan_growth), which
 * is then mapped or filled with idle granules from elsewhere, piece by piece.
 *
 * The same calls in the same order always end in the same offsets.
 *
 * Threads: externally locked, by the allocator.
 */
#pragma once

#include "allocator/block_internal.h"
#include "allocator/record.h"

#define ZR_BIN_STEPS 32
#define ZR_BIN_POWERS 44 /* sizes up to 2^56 */
/* Free blocks looked at per bin before a good fit is taken for the best one. */
#define ZR_BIN_PROBES 32

struct zr_arena {
    zr_device_t *device; /* borrowed */
    zr_block_pool_t *pool;
    zr_tier_t tier;
    const char *name;          /* static: of the class, for messages */
    int class_index;           /* 0 when not backed */
    zr_recording_t *recording; /* the allocator's, told of mappings; NULL: nothing is recorded */
    char *base;
    size_t size_bytes;
    size_t granule_bytes;
    bool is_backed;      /* false: of empty allocations; never mapped, its blocks count as free */
    bool is_addressable; /* the CPU may touch what is mapped: it is poisoned in debug builds */

    zr_block_t *first, *last; /* by address */
    zr_block_t *unmapped;     /* UNMAPPED blocks, by list_next; empty when not backed */
    zr_block_t *bins[ZR_BIN_POWERS][ZR_BIN_STEPS]; /* FREE blocks, by list_next */
    uint32_t bin_steps[ZR_BIN_POWERS];             /* bit set: the bin is not empty */
    uint64_t bin_powers;                           /* bit set: some bin of that power is not */

    zr_byte_count_t live; /* requested bytes of LIVE blocks; kept by the allocator */
    size_t idle_bytes;    /* whole granules of FREE blocks; 0 when not backed */
    size_t mapped_bytes;  /* sum over blocks that are not UNMAPPED; 0 when not backed */
    size_t mapped_peak_bytes;
    size_t n_map_calls, n_unmap_calls, n_move_calls; /* moves: into it */
};

/**
 * Reserve an arena's addresses, halving the size down to `min_bytes` while there are none.
 *
 * @param device, pool, name  borrowed until zr_arena_release_range
 * @return ZR_OK; ZR_ERR_MEMORY; ZR_ERR_BUDGET
 */
ZR_NODISCARD zr_status_t zr_arena_init(zr_arena_t *arena, zr_device_t *device,
                                       zr_block_pool_t *pool, zr_tier_t tier, const char *name,
                                       bool is_backed, size_t size_bytes, size_t min_bytes);
/** Give the addresses and all that is mapped back. The blocks stay with the pool. */
void zr_arena_release_range(zr_arena_t *arena);

/** The free block that a request of size_bytes should be cut from; NULL: none is large enough. */
zr_block_t *zr_arena_find(const zr_arena_t *arena, size_t size_bytes);

/** Cut a live block off the start of a free one. Takes one block from the pool at most. */
void zr_arena_take(zr_arena_t *arena, zr_block_t *block, size_t size_bytes, size_t requested_bytes);
/**
 * Cut a live block out of a free one, somewhere in it: contents, and what may be touched, stay.
 * Takes two blocks from the pool at most.
 */
zr_block_t *zr_arena_take_at(zr_arena_t *arena, zr_block_t *block, size_t offset_bytes,
                             size_t size_bytes, size_t requested_bytes);
/** Make a live, pending or held block free. */
void zr_arena_give(zr_arena_t *arena, zr_block_t *block);

/* A place for a request, and what has to be mapped so that it fits. */
typedef struct zr_growth {
    size_t cost_bytes;               /* unmapped in the whole place */
    zr_block_t *block;               /* the first unmapped block in it; NULL: none is left */
    size_t offset_bytes, size_bytes; /* and the part of that which lies in the place */
    size_t begin_bytes, end_bytes;   /* the place: what is idle in it is not to be taken away */
} zr_growth_t;

/** Find the place that needs the least mapping; false: the addresses have no hole so large. */
bool zr_arena_plan_growth(const zr_arena_t *arena, size_t size_bytes, zr_growth_t *growth_p);

/**
 * Find the place that would need the least mapping if nothing idle were mapped: when it cannot be
 * had by moving all that is idle elsewhere into it, no place can.
 */
bool zr_arena_plan_afresh(const zr_arena_t *arena, size_t size_bytes, zr_growth_t *growth_p);

/** Map one piece of a plan. Takes two blocks from the pool at most. Changes nothing on failure. */
ZR_NODISCARD zr_status_t zr_arena_map(zr_arena_t *arena, const zr_growth_t *growth);

/** Bytes of idle granules: mapped, and free as a whole. Those in the place `keep` do not count. */
size_t zr_arena_idle_bytes(const zr_arena_t *arena, const zr_growth_t *keep);

/**
 * Unmap all idle granules.
 *
 * @param freed_p  what was unmapped, also on failure
 */
ZR_NODISCARD zr_status_t zr_arena_trim(zr_arena_t *arena, size_t *freed_p);

/**
 * Move idle granules of an arena, the highest first, into a place of the same or another one of
 * the tier, until size_bytes have come or nothing is idle outside of the place.
 *
 * @param growth   the place; goes on to its next piece
 * @param moved_p  what has come, also on failure
 * @param lost_p   unmapped, and nothing mapped for it
 * @return ZR_OK; ZR_ERR_BUDGET: the machine has kept what is lost; ZR_ERR_DEVICE; ZR_ERR_MEMORY
 */
ZR_NODISCARD zr_status_t zr_arena_move(zr_arena_t *arena, zr_growth_t *growth, zr_arena_t *from,
                                       size_t size_bytes, size_t *moved_p, size_t *lost_p);

/** The largest free block; 0: there is none. */
size_t zr_arena_largest_hole(const zr_arena_t *arena);

/** Power and step of the bin for a size. */
void zr_arena_bin_of(size_t size_bytes, int *power_p, int *step_p);
