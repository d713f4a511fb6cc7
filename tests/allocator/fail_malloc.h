/*
 * For tests of the library without memory: the linker sends its malloc, calloc and realloc here,
 * and those of its heaps (--wrap), and one of them fails when it is told to.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

typedef struct fault {
    size_t countdown; /* 0: never */
    bool stays;       /* all after it fail as well */
    size_t n_failed;
} fault_t;
extern fault_t fault;

void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *pointer, size_t size);
void *__wrap_mi_heap_new(void);
void *__wrap_mi_heap_zalloc(void *heap, size_t size);
void *__wrap_mi_heap_realloc(void *heap, void *pointer, size_t size);
