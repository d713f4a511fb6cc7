/*
 * Tables that are the same for several allocators, as ranks of a process have them, and are only
 * read: one has the table of all, and each counts a part (zr_allocator_share_tables). A table ends
 * with the last that has it.
 *
 * Threads: thread-safe, but for what is not shared yet.
 */
#pragma once

#include "allocator/planner.h"
#include "kernels/base/heap_internal.h"

typedef struct zr_allocator zr_allocator_t;

/** Begins a table, which lies in its heap. Zeros, but for the first two. */
typedef struct zr_shared {
    zr_heap_t *heap;
    /* Whether a table of this kind is, or will be, what another one is. */
    bool (*is_same)(const struct zr_shared *a, const struct zr_shared *b);
    zr_plan_cache_t *cache; /* whose list it is in; NULL: one user has it */
    struct zr_shared *next;
    size_t n_users;
    bool is_being_made;
} zr_shared_t;

/**
 * The same table of another user, after waiting for it to be made; or the caller's own, which the
 * caller then makes: others that need it wait for zr_shared_settle.
 *
 * @param cache  NULL: it is the caller's own
 */
zr_shared_t *zr_shared_take(zr_plan_cache_t *cache, zr_shared_t *own);
/** It is made, or could not be: then it is the caller's alone, and one of those that wait makes it.
 */
void zr_shared_settle(zr_shared_t *own, bool is_made);
/** The last one's end is that of its heap. NULL is fine. */
void zr_shared_leave(zr_shared_t *shared);

/**
 * Share a table that is made.
 *
 * @param own      with a heap that counts by itself, which ends where another one's is taken
 * @param bytes_p  what is counted of it
 */
zr_shared_t *zr_allocator_share_table(zr_allocator_t *allocator, zr_shared_t *own, size_t *bytes_p);
/** NULL is fine. */
void zr_allocator_leave_table(zr_allocator_t *allocator, zr_shared_t *shared, size_t size_bytes);
