/*
 * Frees that wait for a stream: the caller has let go of the memory, but work that is
 * queued still uses it. An event recorded at the free says when that is over.
 *
 * There is a queue per stream, because a stream passes its events in order: only the
 * first block of a queue has to be asked. Streams beyond the number of queues share the
 * last one, where a block may wait longer than it has to but never too short.
 *
 * Threads: externally locked, by the allocator.
 */
#pragma once

#include "allocator/block_internal.h"

#define ZR_N_PENDING_QUEUES 8

/* Events not in use, kept because making one may cost more than all the rest of a free. */
typedef struct zr_event_pool {
    zr_heap_t *heap;     /* the allocator's */
    zr_device_t *device; /* borrowed */
    zr_event_t **spare;
    size_t n_spare;
    size_t n_events; /* spare or in a pending block; <= capacity, so that giving cannot fail */
    size_t capacity;
} zr_event_pool_t;

/** Destroy the events; those of pending blocks must be back. */
void zr_event_pool_clear(zr_event_pool_t *pool);

/* First in, first out, by list_next; the stream is only compared, it may be gone. */
typedef struct zr_pending_queue {
    const zr_stream_t *stream;
    zr_block_t *first, *last;
} zr_pending_queue_t;

typedef struct zr_pending {
    zr_pending_queue_t queues[ZR_N_PENDING_QUEUES];
    size_t n_blocks;
} zr_pending_t;

/**
 * Let a block wait for what is queued on a stream now.
 *
 * @param sequence  larger than that of every block pushed before
 * @return ZR_OK; ZR_ERR_MEMORY or ZR_ERR_DEVICE: there is no event, the block waits for nothing
 */
ZR_NODISCARD zr_status_t zr_pending_push(zr_pending_t *pending, zr_event_pool_t *pool,
                                         zr_block_t *block, zr_stream_t *stream, size_t sequence);

/** Take the first block of one queue out if its event has passed; else *block_p is NULL.
 * @param peeks  by zr_event_peek */
ZR_NODISCARD zr_status_t zr_pending_take_passed(zr_pending_t *pending, zr_event_pool_t *pool,
                                                int queue, bool peeks, zr_block_t **block_p);

/** The sequence of the block that was freed first, of all queues; SIZE_MAX when none is. */
size_t zr_pending_oldest(const zr_pending_t *pending);

/** Wait for the block that was freed first, of all queues, and take it out; NULL when none is. */
ZR_NODISCARD zr_status_t zr_pending_take_oldest(zr_pending_t *pending, zr_event_pool_t *pool,
                                                zr_block_t **block_p);

/** Forget all blocks, whatever their events say; the blocks stay as they are. */
void zr_pending_drop(zr_pending_t *pending, zr_event_pool_t *pool);
