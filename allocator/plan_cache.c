/*
 * Plans that were made: whoever plans many runs meets the same lives again, as placements of
 * state that is not in them differ. What is asked is compared as a whole, so that an answer is the
 * one that would be found again. The list is short, and the last that was used stands first.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "allocator/planner_internal.h"

typedef struct entry {
    struct entry *next;
    uint64_t hash;
    size_t size_bytes; /* of all of it */
    size_t n_buffers, capacity_bytes;
    uint64_t max_steps;
    zr_plan_result_t result;
    zr_plan_buffer_t *buffers; /* [n_buffers], behind the entry */
    size_t *offsets;           /* likewise */
} entry_t;

struct zr_plan_cache {
    pthread_mutex_t lock; /* guards what follows */
    entry_t *first;
    size_t size_bytes, max_bytes;
};

zr_plan_cache_t *zr_plan_cache_create(size_t max_bytes) {
    zr_plan_cache_t *cache = calloc(1, sizeof(*cache));
    if (cache == NULL || pthread_mutex_init(&cache->lock, NULL) != 0) {
        free(cache);
        return NULL;
    }
    cache->max_bytes = max_bytes;
    return cache;
}

void zr_plan_cache_destroy(zr_plan_cache_t **cache) {
    if (cache == NULL || *cache == NULL)
        return;
    for (entry_t *entry = (*cache)->first, *next; entry != NULL; entry = next) {
        next = entry->next;
        free(entry);
    }
    pthread_mutex_destroy(&(*cache)->lock);
    free(*cache);
    *cache = NULL;
}

/* ---- what is asked ------------------------------------------------------------------------- */

/* With a limit of time, or somebody who ends it, the same question has many answers. */
bool zr_plan_cache_knows(const zr_plan_options_t *options) {
    return options->cache != NULL && options->max_seconds <= 0.0 && options->is_cancelled == NULL;
}

static uint64_t mix(uint64_t hash, uint64_t value) {
    return (hash ^ value) * 0x9e3779b97f4a7c15u ^ hash >> 29;
}

static uint64_t hash_of(const zr_plan_buffer_t *buffers, size_t n_buffers) {
    uint64_t hash = n_buffers;
    for (size_t i = 0; i < n_buffers; i++) {
        hash = mix(hash, (uint64_t)buffers[i].lower);
        hash = mix(hash, (uint64_t)buffers[i].upper);
        hash = mix(hash, buffers[i].size_bytes);
        hash = mix(hash, buffers[i].alignment);
    }
    return hash;
}

static bool is_same(const zr_plan_buffer_t *a, const zr_plan_buffer_t *b, size_t n_buffers) {
    for (size_t i = 0; i < n_buffers; i++)
        if (a[i].lower != b[i].lower || a[i].upper != b[i].upper ||
            a[i].size_bytes != b[i].size_bytes || a[i].alignment != b[i].alignment)
            return false;
    return true;
}

/* ---- the list ------------------------------------------------------------------------------ */

bool zr_plan_cache_find(const zr_plan_options_t *options, const zr_plan_buffer_t *buffers,
                        size_t n_buffers, size_t *offsets_p, zr_plan_result_t *result_p) {
    zr_plan_cache_t *cache = options->cache;
    uint64_t hash = hash_of(buffers, n_buffers);
    pthread_mutex_lock(&cache->lock);
    entry_t **link = &cache->first, *entry;
    for (; (entry = *link) != NULL; link = &entry->next)
        if (entry->hash == hash && entry->n_buffers == n_buffers &&
            entry->capacity_bytes == options->capacity_bytes &&
            entry->max_steps == options->max_steps && is_same(entry->buffers, buffers, n_buffers))
            break;
    if (entry != NULL) {
        *link = entry->next;
        entry->next = cache->first;
        cache->first = entry;
        memcpy(offsets_p, entry->offsets, n_buffers * sizeof(*offsets_p));
        *result_p = entry->result;
    }
    pthread_mutex_unlock(&cache->lock);
    return entry != NULL;
}

/* Those that were not used for longest go. Lock held. */
static void make_room(zr_plan_cache_t *cache, size_t size_bytes) {
    while (cache->first != NULL && cache->size_bytes > cache->max_bytes - size_bytes) {
        entry_t **link = &cache->first;
        while ((*link)->next != NULL)
            link = &(*link)->next;
        cache->size_bytes -= (*link)->size_bytes;
        free(*link);
        *link = NULL;
    }
}

void zr_plan_cache_add(const zr_plan_options_t *options, const zr_plan_buffer_t *buffers,
                       size_t n_buffers, const size_t *offsets, const zr_plan_result_t *result) {
    zr_plan_cache_t *cache = options->cache;
    size_t buffers_bytes = n_buffers * sizeof(*buffers),
           offsets_bytes = n_buffers * sizeof(*offsets);
    size_t size_bytes = sizeof(entry_t) + buffers_bytes + offsets_bytes;
    entry_t *entry = size_bytes <= cache->max_bytes ? malloc(size_bytes) : NULL;
    if (entry == NULL)
        return; /* it is made again */
    *entry = (entry_t){.hash = hash_of(buffers, n_buffers),
                       .size_bytes = size_bytes,
                       .n_buffers = n_buffers,
                       .capacity_bytes = options->capacity_bytes,
                       .max_steps = options->max_steps,
                       .result = *result};
    entry->buffers = (zr_plan_buffer_t *)(entry + 1);
    entry->offsets = (size_t *)(entry->buffers + n_buffers);
    memcpy(entry->buffers, buffers, buffers_bytes);
    memcpy(entry->offsets, offsets, offsets_bytes);
    pthread_mutex_lock(&cache->lock);
    make_room(cache, size_bytes);
    entry->next = cache->first;
    cache->first = entry;
    cache->size_bytes += size_bytes;
    pthread_mutex_unlock(&cache->lock);
}
