/* Tables of several users: see shared_internal.h. */
#include "allocator/shared_internal.h"

#include "allocator/internal.h"
#include "allocator/planner_internal.h"

/* Lock held. */
static zr_shared_t *find_same(const zr_plan_cache_t *cache, const zr_shared_t *own) {
    zr_shared_t *shared = cache->shared;
    while (shared != NULL && (shared->is_same != own->is_same || !own->is_same(shared, own)))
        shared = shared->next;
    return shared;
}

zr_shared_t *zr_shared_take(zr_plan_cache_t *cache, zr_shared_t *own) {
    if (cache == NULL)
        return own;
    pthread_mutex_lock(&cache->lock);
    zr_shared_t *shared = find_same(cache, own);
    while (shared != NULL && shared->is_being_made) {
        pthread_cond_wait(&cache->is_made, &cache->lock);
        shared = find_same(cache, own);
    }
    if (shared == NULL) {
        shared = own;
        own->cache = cache;
        own->is_being_made = true;
        own->next = cache->shared;
        cache->shared = own;
    }
    shared->n_users++;
    pthread_mutex_unlock(&cache->lock);
    return shared;
}

/* Lock held. */
static void take_out(zr_shared_t *shared) {
    zr_shared_t **link = &shared->cache->shared;
    while (*link != shared)
        link = &(*link)->next;
    *link = shared->next;
}

void zr_shared_settle(zr_shared_t *own, bool is_made) {
    zr_plan_cache_t *cache = own->cache;
    if (cache == NULL)
        return;
    pthread_mutex_lock(&cache->lock);
    own->is_being_made = false;
    if (!is_made) {
        take_out(own);
        own->cache = NULL;
    }
    pthread_cond_broadcast(&cache->is_made);
    pthread_mutex_unlock(&cache->lock);
}

/* Whether nobody else has it: then it is in no list any more. */
static bool is_left(zr_shared_t *shared) {
    zr_plan_cache_t *cache = shared->cache;
    if (cache == NULL)
        return true;
    pthread_mutex_lock(&cache->lock);
    bool is_last = --shared->n_users == 0;
    if (is_last)
        take_out(shared);
    pthread_mutex_unlock(&cache->lock);
    return is_last;
}

void zr_shared_leave(zr_shared_t *shared) {
    if (shared == NULL || !is_left(shared))
        return;
    zr_heap_t *heap = shared->heap;
    zr_heap_destroy(&heap);
}

zr_shared_t *zr_allocator_share_table(zr_allocator_t *allocator, zr_shared_t *own,
                                      size_t *bytes_p) {
    zr_shared_t *shared = zr_shared_take(allocator->shared, own);
    if (shared == own)
        zr_shared_settle(own, true);
    else
        zr_shared_leave(own);
    pthread_mutex_lock(&allocator->lock);
    *bytes_p = zr_part_of_shared(allocator, zr_heap_count(shared->heap).bytes);
    zr_heap_count_absent(allocator->heap, *bytes_p);
    pthread_mutex_unlock(&allocator->lock);
    return shared;
}

void zr_allocator_leave_table(zr_allocator_t *allocator, zr_shared_t *shared, size_t size_bytes) {
    pthread_mutex_lock(&allocator->lock);
    zr_heap_uncount_absent(allocator->heap, size_bytes);
    pthread_mutex_unlock(&allocator->lock);
    zr_shared_leave(shared);
}
