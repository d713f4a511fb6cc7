/* Allocations that fail: see fail_malloc.h. */
#include "tests/allocator/fail_malloc.h"
#include "tests/common/test.h"

fault_t fault;

static bool fails_now(void) {
    if (fault.countdown == 0 || --fault.countdown > 0)
        return false;
    if (fault.stays)
        fault.countdown = 1;
    fault.n_failed++;
    return true;
}

WRAP(void *, malloc, size_t size) {
    return fails_now() ? NULL : __real_malloc(size);
}

WRAP(void *, calloc, size_t n, size_t size) {
    return fails_now() ? NULL : __real_calloc(n, size);
}

WRAP(void *, realloc, void *pointer, size_t size) {
    return fails_now() ? NULL : __real_realloc(pointer, size);
}

#ifdef ZR_HAVE_MIMALLOC

WRAP(void *, mi_heap_new, void) {
    return fails_now() ? NULL : __real_mi_heap_new();
}

WRAP(void *, mi_heap_zalloc, void *heap, size_t size) {
    return fails_now() ? NULL : __real_mi_heap_zalloc(heap, size);
}

WRAP(void *, mi_heap_realloc, void *heap, void *pointer, size_t size) {
    return fails_now() ? NULL : __real_mi_heap_realloc(heap, pointer, size);
}
#endif
