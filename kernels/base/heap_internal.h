/*
 * Heaps of the library's own tables, which are no tensors: what was allocated in one goes as a
 * whole when it ends, so that nobody has to free it piece by piece. They count what was asked of
 * them.
 *
 * A heap is one of mimalloc's, which allocates on its creating thread alone. What another thread
 * asks for, and everything in builds without mimalloc (with sanitizers, so that they see each
 * block), comes from malloc and is in the heap's list.
 *
 * Threads: externally locked; two heaps may be counted together and belong to two threads, and any
 * thread may destroy one.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "kernels/base/status.h"

ZR_BEGIN_C

typedef struct zr_heap zr_heap_t;

/**
 * Create a heap of the calling thread.
 *
 * @param counted_in  what is asked of the new one counts as asked of this one; it has to outlive
 *                    the new one. NULL: it counts by itself
 * @return NULL without memory, which is not logged
 */
ZR_NODISCARD zr_heap_t *zr_heap_create(zr_heap_t *counted_in);
/** With all that is in it. */
void zr_heap_destroy(zr_heap_t **heap);

/** An array of zeros, aligned to 16 bytes; NULL without memory, or when the size overflows. It is
 * fine to ask for nothing: the pointer is then unique and must not be followed. */
ZR_NODISCARD void *zr_heap_alloc(zr_heap_t *heap, size_t n, size_t size_bytes);
/** The same array, or NULL, with another number of elements; new ones are zeros. NULL without
 * memory, or when the size overflows: it is as it was then. */
ZR_NODISCARD void *zr_heap_resize(zr_heap_t *heap, void *array, size_t n, size_t size_bytes);
/** Let an array, the pointer to which is at `array_p`, have room for an element more than its first
 * `n`, and twice as much where it has none. false: nothing has changed. */
ZR_NODISCARD bool zr_heap_make_room(zr_heap_t *heap, void *array_p, size_t n, size_t *capacity,
                                    size_t size_bytes);
/** A copy of a text, or of NULL, which is NULL. */
ZR_NODISCARD char *zr_heap_text(zr_heap_t *heap, const char *text);
ZR_NODISCARD char *zr_heap_printf(zr_heap_t *heap, const char *format, ...) ZR_PRINTF(2, 3);
/** For what does not live as long as its heap; NULL is fine. */
void zr_heap_free(zr_heap_t *heap, void *pointer);

/** What was asked of a heap, and of those that are counted in it: now, and at most so far. */
typedef struct zr_heap_count {
    size_t bytes, peak;
} zr_heap_count_t;

/** Threads: any. */
zr_heap_count_t zr_heap_count(const zr_heap_t *heap);
/** Let a heap that counts by itself, and those that are counted in it, have no more than that: what
 * is asked for beyond is as if there was no memory. Threads: before any of it is asked for. */
void zr_heap_limit(zr_heap_t *heap, size_t most_bytes);
/** Let a heap in which no other is counted count by itself, from what it has on. */
void zr_heap_count_alone(zr_heap_t *heap);
/** Count, until the heap ends, bytes that are not there, of what it stands for; or no longer. */
void zr_heap_count_absent(zr_heap_t *heap, size_t size_bytes);
void zr_heap_uncount_absent(zr_heap_t *heap, size_t size_bytes);
/** Count, in the peak, bytes that were asked of another heap meanwhile, and are given back. */
void zr_heap_count_passing(zr_heap_t *heap, size_t size_bytes);

ZR_END_C
