/* Allocations that fail: see fail_malloc.h. */
#include "tests/allocator/fail_malloc.h"

fault_t fault;

static bool fails_now(void) {
    if (fault.countdown == 0 || --fault.countdown > 0)
        return false;
    if (fault.stays)
        fault.countdown = 1;
    fault.n_failed++;
    return true;
}

void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *pointer, size_t size);

void *__wrap_malloc(size_t size) {
    return fails_now() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t n, size_t size) {
    return fails_now() ? NULL : __real_calloc(n, size);
}

void *__wrap_realloc(void *pointer, size_t size) {
    return fails_now() ? NULL : __real_realloc(pointer, size);
}
