/*
 * Heaps: see heap_internal.h. Each block begins with what frees and counts it, in a list of all,
 * for the thread that destroys a heap may be another one than mimalloc lets touch it, and the one
 * that created it may have ended.
 */
#include "kernels/base/heap_internal.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef ZR_HAVE_MIMALLOC
#include <mimalloc.h>
#else /* no heap is anybody's, so none of these is called */
typedef struct mi_heap_s mi_heap_t;
#define mi_heap_new() NULL
#define mi_heap_zalloc(heap, size_bytes) NULL
#define mi_heap_realloc(heap, pointer, size_bytes) NULL
#define mi_heap_collect(heap, by_force) (void)(heap)
#define mi_heap_delete(heap) (void)(heap)
#define mi_free(pointer) (void)(pointer)
#endif

#define FIRST_ROOM 16

typedef struct block {
    _Alignas(16) struct block *prev;
    struct block *next;
    size_t size_bytes; /* as asked for */
    bool is_in_heap;   /* mimalloc's, not malloc's */
} block_t;

typedef struct meter {
    atomic_size_t bytes, peak;
    size_t most_bytes;
} meter_t;

struct zr_heap {
    mi_heap_t *own;  /* NULL in builds without mimalloc */
    uint64_t thread; /* that created it */
    block_t blocks;  /* a ring of all, which begins and ends with this one */
    size_t bytes;    /* asked of this heap alone */
    meter_t *meter;  /* counts them, and those of others */
    meter_t own_meter;
};

/* Of the calling thread; unlike the system's, never that of one that has ended. */
static uint64_t thread_number(void) {
    static atomic_uint_least64_t n_threads;
    static _Thread_local uint64_t number;
    if (number == 0)
        number = atomic_fetch_add(&n_threads, 1) + 1;
    return number;
}

static bool is_own(const zr_heap_t *heap) {
    return heap->own != NULL && heap->thread == thread_number();
}

zr_heap_t *zr_heap_create(zr_heap_t *counted_in) {
    zr_heap_t *heap = calloc(1, sizeof(*heap));
    if (heap == NULL)
        return NULL;
#ifdef ZR_HAVE_MIMALLOC
    heap->own = mi_heap_new();
    if (heap->own == NULL) {
        free(heap);
        return NULL;
    }
#endif
    heap->thread = thread_number();
    heap->blocks.prev = heap->blocks.next = &heap->blocks;
    heap->own_meter.most_bytes = SIZE_MAX;
    heap->meter = counted_in != NULL ? counted_in->meter : &heap->own_meter;
    return heap;
}

/* ---- counts and the list ------------------------------------------------------------ */

static void count(zr_heap_t *heap, size_t before, size_t now) {
    heap->bytes += now - before;
    size_t bytes = atomic_fetch_add(&heap->meter->bytes, now - before) + now - before;
    size_t peak = atomic_load(&heap->meter->peak);
    while (now > before && bytes > peak &&
           !atomic_compare_exchange_weak(&heap->meter->peak, &peak, bytes))
        ;
}

void zr_heap_count_passing(zr_heap_t *heap, size_t size_bytes) {
    count(heap, 0, size_bytes);
    count(heap, size_bytes, 0);
}

void zr_heap_count_absent(zr_heap_t *heap, size_t size_bytes) {
    count(heap, 0, size_bytes);
}

void zr_heap_uncount_absent(zr_heap_t *heap, size_t size_bytes) {
    count(heap, size_bytes, 0);
}

void zr_heap_limit(zr_heap_t *heap, size_t most_bytes) {
    heap->meter->most_bytes = most_bytes;
}

void zr_heap_count_alone(zr_heap_t *heap) {
    size_t bytes = heap->bytes;
    count(heap, bytes, 0);
    heap->meter = &heap->own_meter;
    count(heap, 0, bytes);
}

/* Of a block whose array grows so. */
static bool is_allowed(const zr_heap_t *heap, size_t before, size_t now) {
    size_t bytes = atomic_load(&heap->meter->bytes), most = heap->meter->most_bytes;
    return now <= before || (bytes <= most && now - before <= most - bytes);
}

zr_heap_count_t zr_heap_count(const zr_heap_t *heap) {
    return (zr_heap_count_t){atomic_load(&heap->meter->bytes), atomic_load(&heap->meter->peak)};
}

static void *link_block(zr_heap_t *heap, block_t *block, size_t size_bytes, bool is_in_heap) {
    *block = (block_t){&heap->blocks, heap->blocks.next, size_bytes, is_in_heap};
    block->prev->next = block->next->prev = block;
    return block + 1;
}

static void free_block(block_t *block) {
    block->prev->next = block->next;
    block->next->prev = block->prev;
    if (block->is_in_heap)
        mi_free(block);
    else
        free(block);
}

void zr_heap_destroy(zr_heap_t **heap_p) {
    zr_heap_t *heap = *heap_p;
    if (heap == NULL)
        return;
    count(heap, heap->bytes, 0);
    while (heap->blocks.next != &heap->blocks)
        free_block(heap->blocks.next);
    /* Another thread's is empty now, and mimalloc ends it with that thread. This one may have taken
       over pages that a thread left when it ended, with blocks in them that are used:
       mi_heap_destroy would free these, too. Empty ones are not to be handed on. */
    if (is_own(heap)) {
        mi_heap_collect(heap->own, false);
        mi_heap_delete(heap->own);
    }
    free(heap);
    *heap_p = NULL;
}

/* ---- allocation ----------------------------------------------------------------------- */

/* Of a block with n elements; false: there is no such size. */
static bool measure(size_t n, size_t size_bytes, size_t *block_bytes_p) {
    return !__builtin_mul_overflow(n, size_bytes, block_bytes_p) &&
           !__builtin_add_overflow(*block_bytes_p, sizeof(block_t), block_bytes_p) &&
           *block_bytes_p <= PTRDIFF_MAX;
}

void *zr_heap_alloc(zr_heap_t *heap, size_t n, size_t size_bytes) {
    size_t block_bytes = 0;
    if (!measure(n, size_bytes, &block_bytes) || !is_allowed(heap, 0, n * size_bytes))
        return NULL;
    bool own = is_own(heap);
    block_t *block = own ? mi_heap_zalloc(heap->own, block_bytes) : calloc(1, block_bytes);
    if (block == NULL)
        return NULL;
    count(heap, 0, n * size_bytes);
    return link_block(heap, block, n * size_bytes, own);
}

void *zr_heap_resize(zr_heap_t *heap, void *array, size_t n, size_t size_bytes) {
    if (array == NULL)
        return zr_heap_alloc(heap, n, size_bytes);
    block_t *block = (block_t *)array - 1;
    size_t before = block->size_bytes, now = n * size_bytes, block_bytes = 0;
    if (!measure(n, size_bytes, &block_bytes) || !is_allowed(heap, before, now))
        return NULL;
    if (block->is_in_heap && !is_own(heap)) { /* mimalloc would take it out of its heap */
        void *moved = zr_heap_alloc(heap, n, size_bytes);
        if (moved != NULL) {
            memcpy(moved, array, before < now ? before : now);
            zr_heap_free(heap, array);
        }
        return moved;
    }
    block_t *resized = block->is_in_heap ? mi_heap_realloc(heap->own, block, block_bytes)
                                         : realloc(block, block_bytes);
    if (resized == NULL)
        return NULL;
    resized->prev->next = resized->next->prev = resized;
    resized->size_bytes = now;
    if (now > before)
        memset((char *)(resized + 1) + before, 0, now - before);
    count(heap, before, now);
    return resized + 1;
}

bool zr_heap_make_room(zr_heap_t *heap, void *array_p, size_t n, size_t *capacity,
                       size_t size_bytes) {
    if (n < *capacity)
        return true;
    void **array = array_p;
    size_t wanted = *capacity == 0 ? FIRST_ROOM : 2 * *capacity;
    void *larger = zr_heap_resize(heap, *array, wanted, size_bytes);
    if (larger == NULL)
        return false;
    *array = larger;
    *capacity = wanted;
    return true;
}

char *zr_heap_printf(zr_heap_t *heap, const char *format, ...) {
    va_list arguments, again;
    va_start(arguments, format);
    va_copy(again, arguments);
    int length = vsnprintf(NULL, 0, format, arguments);
    char *text = length < 0 ? NULL : zr_heap_alloc(heap, (size_t)length + 1, 1);
    if (text != NULL)
        vsnprintf(text, (size_t)length + 1, format, again);
    va_end(again);
    va_end(arguments);
    return text;
}

char *zr_heap_text(zr_heap_t *heap, const char *text) {
    return text == NULL ? NULL : zr_heap_printf(heap, "%s", text);
}

void zr_heap_free(zr_heap_t *heap, void *pointer) {
    if (pointer == NULL)
        return;
    block_t *block = (block_t *)pointer - 1;
    count(heap, block->size_bytes, 0);
    free_block(block);
}
