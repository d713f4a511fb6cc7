/*
 * Plans that were made: whoever plans many runs meets the same lives again, as placements of
 * state that is not in them differ. What is asked is compared as a whole, so that an answer is the
 * one that would be found again. The list is short, and the last that was used stands first.
 */
#include <stdlib.h>
#include <string.h>

#include "allocator/planner_internal.h"

typedef struct zr_plan_cached {
    struct zr_plan_cached *next;
    uint64_t hash;
    size_t size_bytes; /* of all of it */
    size_t n_buffers, capacity_bytes;
    uint64_t max_steps;
    zr_plan_answer_t answer;
    zr_plan_buffer_t *buffers; /* [n_buffers], behind the entry */
    size_t *offsets;           /* likewise */
} entry_t;

zr_plan_cache_t *zr_plan_cache_create(size_t max_bytes) {
    zr_plan_cache_t *cache = calloc(1, sizeof(*cache));
    if (cache == NULL || pthread_mutex_init(&cache->lock, NULL) != 0) {
        free(cache);
        return NULL;
    }
    if (pthread_cond_init(&cache->is_made, NULL) != 0) {
        pthread_mutex_destroy(&cache->lock);
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
    pthread_cond_destroy(&(*cache)->is_made);
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

static entry_t *find_entry(zr_plan_cache_t *cache, const zr_plan_question_t *question) {
    entry_t **link = &cache->first, *entry;
    for (; (entry = *link) != NULL; link = &entry->next)
        if (entry->hash == question->hash && entry->n_buffers == question->n_buffers &&
            entry->capacity_bytes == question->options->capacity_bytes &&
            entry->max_steps == question->options->max_steps &&
            is_same(entry->buffers, question->buffers, question->n_buffers))
            break;
    if (entry == NULL)
        return NULL;
    *link = entry->next;
    entry->next = cache->first;
    cache->first = entry;
    return entry;
}

static bool is_being_made(const zr_plan_cache_t *cache, const zr_plan_question_t *question) {
    for (const zr_plan_question_t *other = cache->asked; other != NULL; other = other->next)
        if (other->hash == question->hash && other->n_buffers == question->n_buffers &&
            other->options->capacity_bytes == question->options->capacity_bytes &&
            other->options->max_steps == question->options->max_steps &&
            is_same(other->buffers, question->buffers, question->n_buffers))
            return true;
    return false;
}

bool zr_plan_cache_find(zr_plan_question_t *question, size_t *offsets_p,
                        zr_plan_answer_t *answer_p) {
    zr_plan_cache_t *cache = question->options->cache;
    question->hash = hash_of(question->buffers, question->n_buffers);
    pthread_mutex_lock(&cache->lock);
    while (is_being_made(cache, question))
        pthread_cond_wait(&cache->is_made, &cache->lock);
    const entry_t *entry = find_entry(cache, question);
    if (entry != NULL) {
        memcpy(offsets_p, entry->offsets, question->n_buffers * sizeof(*offsets_p));
        *answer_p = entry->answer;
    } else {
        question->next = cache->asked;
        cache->asked = question;
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

static entry_t *make_entry(const zr_plan_question_t *question, const size_t *offsets,
                           const zr_plan_answer_t *answer) {
    size_t n_buffers = question->n_buffers, buffers_bytes = n_buffers * sizeof(zr_plan_buffer_t),
           offsets_bytes = n_buffers * sizeof(*offsets);
    size_t size_bytes = sizeof(entry_t) + buffers_bytes + offsets_bytes;
    entry_t *entry = size_bytes <= question->options->cache->max_bytes ? malloc(size_bytes) : NULL;
    if (entry == NULL)
        return NULL; /* it is made again */
    *entry = (entry_t){.hash = question->hash,
                       .size_bytes = size_bytes,
                       .n_buffers = n_buffers,
                       .capacity_bytes = question->options->capacity_bytes,
                       .max_steps = question->options->max_steps,
                       .answer = *answer};
    entry->buffers = (zr_plan_buffer_t *)(entry + 1);
    entry->offsets = (size_t *)(entry->buffers + n_buffers);
    memcpy(entry->buffers, question->buffers, buffers_bytes);
    memcpy(entry->offsets, offsets, offsets_bytes);
    return entry;
}

void zr_plan_cache_end(zr_plan_question_t *question, const size_t *offsets,
                       const zr_plan_answer_t *answer) {
    zr_plan_cache_t *cache = question->options->cache;
    entry_t *entry = answer != NULL ? make_entry(question, offsets, answer) : NULL;
    pthread_mutex_lock(&cache->lock);
    zr_plan_question_t **link = &cache->asked;
    while (*link != question)
        link = &(*link)->next;
    *link = question->next;
    if (entry != NULL) {
        make_room(cache, entry->size_bytes);
        entry->next = cache->first;
        cache->first = entry;
        cache->size_bytes += entry->size_bytes;
    }
    pthread_cond_broadcast(&cache->is_made);
    pthread_mutex_unlock(&cache->lock);
}
