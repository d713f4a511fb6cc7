/* Tables of several users: see shared_internal.h. */
#include "allocator/shared_internal.h"

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
