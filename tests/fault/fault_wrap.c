/*
 * Counters are atomic: the ranks of a run allocate at the same time, so which of them meets
 * the failure differs from run to run, and all of them have to bear it.
 */
#include "tests/fault/fault_wrap.h"

#include "tests/common/test.h"

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static atomic_long n_calls;
static atomic_long n_live;
static atomic_long mapped_bytes;
static atomic_long failing; /* the call that fails; 0: none */
static atomic_bool hit;
static atomic_bool is_scoped;
static _Thread_local bool is_inside;
static atomic_bool spares_allocations;

void fault_spare_allocations(bool spared) {
    atomic_store(&spares_allocations, spared);
}

void fault_scope(bool scoped) {
    atomic_store(&is_scoped, scoped);
}

bool fault_enter(bool inside) {
    bool before = is_inside;
    is_inside = inside;
    return before;
}

bool fault_is_inside(void) {
    return is_inside;
}

void fault_arm(long n) {
    atomic_store(&hit, false);
    atomic_store(&failing, n);
    atomic_store(&n_calls, 0);
}

bool fault_hit(void) {
    return atomic_load(&hit);
}

long fault_count(void) {
    return atomic_load(&n_calls);
}

long fault_live(void) {
    return atomic_load(&n_live);
}

long fault_mapped_bytes(void) {
    return atomic_load(&mapped_bytes);
}

bool fault_meets(int error) {
    if (atomic_load(&is_scoped) && !is_inside)
        return false;
    if (atomic_fetch_add(&n_calls, 1) + 1 != atomic_load(&failing))
        return false;
    atomic_store(&hit, true);
    errno = error;
    return true;
}

static bool is_refused(int error) {
    return !atomic_load(&spares_allocations) && fault_meets(error);
}

static void *counted(void *pointer) {
    if (pointer != NULL)
        atomic_fetch_add(&n_live, 1);
    return pointer;
}

/* ---- memory ----------------------------------------------------------------------------- */

WRAP(void *, malloc, size_t size) {
    return is_refused(ENOMEM) ? NULL : counted(__real_malloc(size));
}

WRAP(void *, calloc, size_t n, size_t size) {
    return is_refused(ENOMEM) ? NULL : counted(__real_calloc(n, size));
}

WRAP(void *, realloc, void *pointer, size_t size) {
    if (is_refused(ENOMEM))
        return NULL;
    void *grown = __real_realloc(pointer, size);
    return pointer == NULL ? counted(grown) : grown;
}

WRAP(void *, aligned_alloc, size_t alignment, size_t size) {
    return is_refused(ENOMEM) ? NULL : counted(__real_aligned_alloc(alignment, size));
}

WRAP(int, posix_memalign, void **pointer_p, size_t alignment, size_t size) {
    if (is_refused(ENOMEM))
        return ENOMEM;
    int error = __real_posix_memalign(pointer_p, alignment, size);
    if (error == 0)
        counted(*pointer_p);
    return error;
}

WRAP(char *, strdup, const char *text) {
    return is_refused(ENOMEM) ? NULL : counted(__real_strdup(text));
}

WRAP(char *, strndup, const char *text, size_t n) {
    return is_refused(ENOMEM) ? NULL : counted(__real_strndup(text, n));
}

WRAP(int, vasprintf, char **text_p, const char *format, va_list arguments) {
    if (is_refused(ENOMEM))
        return -1;
    int length = __real_vasprintf(text_p, format, arguments);
    if (length >= 0)
        counted(*text_p);
    return length;
}

WRAP(int, asprintf, char **text_p, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int length = __wrap_vasprintf(text_p, format, arguments);
    va_end(arguments);
    return length;
}

WRAP(void, free, void *pointer) {
    if (pointer != NULL)
        atomic_fetch_sub(&n_live, 1);
    __real_free(pointer);
}

#ifdef ZR_HAVE_MIMALLOC
/* What is in a heap is not counted: it goes with the heap, which is. */

WRAP(void *, mi_heap_new, void) {
    return is_refused(ENOMEM) ? NULL : __real_mi_heap_new();
}

WRAP(void *, mi_heap_zalloc, void *heap, size_t size) {
    return is_refused(ENOMEM) ? NULL : __real_mi_heap_zalloc(heap, size);
}

WRAP(void *, mi_heap_realloc, void *heap, void *pointer, size_t size) {
    return is_refused(ENOMEM) ? NULL : __real_mi_heap_realloc(heap, pointer, size);
}
#endif

void *fault_malloc(size_t size_bytes) {
    return __wrap_malloc(size_bytes);
}

void *fault_malloc_always(size_t size_bytes) {
    return counted(__real_malloc(size_bytes));
}

void fault_free(void *pointer) {
    __wrap_free(pointer);
}

/* ---- mappings --------------------------------------------------------------------------- */

WRAP(void *, mmap, void *address, size_t size, int protection, int flags, int file, off_t offset) {
    if (is_refused(ENOMEM))
        return MAP_FAILED;
    void *pointer = __real_mmap(address, size, protection, flags, file, offset);
    if (pointer != MAP_FAILED && (flags & MAP_FIXED) == 0)
        atomic_fetch_add(&mapped_bytes, (long)size);
    return pointer;
}

WRAP(int, munmap, void *address, size_t size) {
    atomic_fetch_sub(&mapped_bytes, (long)size);
    return __real_munmap(address, size);
}

WRAP(int, mprotect, void *address, size_t size, int protection) {
    return is_refused(ENOMEM) ? -1 : __real_mprotect(address, size, protection);
}

/* ---- files and threads ------------------------------------------------------------------ */

WRAP(FILE *, fopen, const char *path, const char *mode) {
    return is_refused(ENOMEM) ? NULL : counted(__real_fopen(path, mode));
}

WRAP(int, fclose, FILE *file) {
    atomic_fetch_sub(&n_live, 1);
    return __real_fclose(file);
}

WRAP(DIR *, opendir, const char *path) {
    return is_refused(ENOMEM) ? NULL : counted(__real_opendir(path));
}

WRAP(DIR *, fdopendir, int fd) {
    return is_refused(ENOMEM) ? NULL : counted(__real_fdopendir(fd));
}

WRAP(int, closedir, DIR *folder) {
    atomic_fetch_sub(&n_live, 1);
    return __real_closedir(folder);
}

size_t fault_descriptors(void) {
    size_t n = 0;
    DIR *stream = __real_opendir("/proc/self/fd");
    if (stream == NULL)
        abort();
    while (readdir(stream) != NULL)
        n++;
    __real_closedir(stream);
    return n;
}

WRAP(int, pthread_create, pthread_t *thread, const pthread_attr_t *attributes,
     void *(*start)(void *), void *argument) {
    if (is_refused(EAGAIN))
        return EAGAIN;
    int error = __real_pthread_create(thread, attributes, start, argument);
    if (error == 0)
        atomic_fetch_add(&n_live, 1);
    return error;
}

WRAP(int, pthread_join, pthread_t thread, void **result) {
    int error = __real_pthread_join(thread, result);
    if (error == 0)
        atomic_fetch_sub(&n_live, 1);
    return error;
}
