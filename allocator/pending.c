/*
 * Queues of freed blocks that streams still use, and the events that they wait for.
 */
#include "allocator/pending_internal.h"

/* ---- events ------------------------------------------------------------------------- */

static zr_status_t take_event(zr_event_pool_t *pool, zr_event_t **event_p) {
    if (pool->n_spare > 0) {
        *event_p = pool->spare[--pool->n_spare];
        return ZR_OK;
    }
    if (!zr_heap_make_room(pool->heap, &pool->spare, pool->n_events, &pool->capacity,
                           sizeof(zr_event_t *)))
        return ZR_ERR_MEMORY;
    ZR_TRY(zr_event_create(pool->device, event_p));
    pool->n_events++;
    return ZR_OK;
}

static void give_event(zr_event_pool_t *pool, zr_event_t *event) {
    pool->spare[pool->n_spare++] = event;
}

void zr_event_pool_clear(zr_event_pool_t *pool) {
    for (size_t i = 0; i < pool->n_spare; i++)
        zr_event_destroy(&pool->spare[i]);
}

/* ---- queues ------------------------------------------------------------------------- */

/* The stream's queue, else an empty one, else the last, which is then shared. */
static zr_pending_queue_t *queue_of(zr_pending_t *pending, const zr_stream_t *stream) {
    zr_pending_queue_t *empty = NULL;
    for (int i = 0; i < ZR_N_PENDING_QUEUES; i++) {
        zr_pending_queue_t *queue = &pending->queues[i];
        if (queue->first != NULL && queue->stream == stream)
            return queue;
        if (queue->first == NULL && empty == NULL)
            empty = queue;
    }
    if (empty == NULL)
        return &pending->queues[ZR_N_PENDING_QUEUES - 1];
    empty->stream = stream;
    return empty;
}

static zr_block_t *take_first(zr_pending_t *pending, zr_event_pool_t *pool,
                              zr_pending_queue_t *queue) {
    zr_block_t *block = queue->first;
    queue->first = block->list_next;
    if (queue->first == NULL)
        queue->last = NULL;
    block->list_next = NULL;
    give_event(pool, block->event);
    block->event = NULL;
    pending->n_blocks--;
    return block;
}

zr_status_t zr_pending_push(zr_pending_t *pending, zr_event_pool_t *pool, zr_block_t *block,
                            zr_stream_t *stream, size_t sequence) {
    zr_event_t *event = NULL;
    ZR_TRY(take_event(pool, &event));
    zr_status_t status = zr_event_record(event, stream);
    if (status != ZR_OK) {
        give_event(pool, event);
        return status;
    }
    zr_pending_queue_t *queue = queue_of(pending, stream);
    block->state = ZR_BLOCK_PENDING;
    block->event = event;
    block->sequence = sequence;
    block->list_next = NULL;
    if (queue->last != NULL)
        queue->last->list_next = block;
    else
        queue->first = block;
    queue->last = block;
    pending->n_blocks++;
    return ZR_OK;
}

zr_status_t zr_pending_take_passed(zr_pending_t *pending, zr_event_pool_t *pool, int queue,
                                   bool peeks, zr_block_t **block_p) {
    zr_pending_queue_t *from = &pending->queues[queue];
    bool passed = false;
    if (from->first != NULL)
        ZR_TRY((peeks ? zr_event_peek : zr_event_query)(from->first->event, &passed));
    *block_p = passed ? take_first(pending, pool, from) : NULL;
    return ZR_OK;
}

/* The number of the queue whose first block was freed first; of an empty one when all are. */
static int oldest_queue(const zr_pending_t *pending) {
    int oldest = 0;
    for (int i = 1; i < ZR_N_PENDING_QUEUES; i++) {
        const zr_block_t *first = pending->queues[i].first, *least = pending->queues[oldest].first;
        if (first != NULL && (least == NULL || first->sequence < least->sequence))
            oldest = i;
    }
    return oldest;
}

size_t zr_pending_oldest(const zr_pending_t *pending) {
    const zr_block_t *first = pending->queues[oldest_queue(pending)].first;
    return first != NULL ? first->sequence : SIZE_MAX;
}

zr_status_t zr_pending_take_oldest(zr_pending_t *pending, zr_event_pool_t *pool,
                                   zr_block_t **block_p) {
    zr_pending_queue_t *oldest = &pending->queues[oldest_queue(pending)];
    if (oldest->first != NULL)
        ZR_TRY(zr_event_synchronize(oldest->first->event));
    *block_p = oldest->first != NULL ? take_first(pending, pool, oldest) : NULL;
    return ZR_OK;
}

void zr_pending_drop(zr_pending_t *pending, zr_event_pool_t *pool) {
    for (int i = 0; i < ZR_N_PENDING_QUEUES; i++) {
        while (pending->queues[i].first != NULL)
            take_first(pending, pool, &pending->queues[i]);
    }
}
