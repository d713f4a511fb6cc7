/*
 * The allocations of this process, counted and made to fail one at a time.
 *
 * The linker's --wrap sends every call of the library and the programs here; what other
 * libraries allocate inside themselves is not seen. An allocation is a piece of memory, a
 * mapping, an open file or folder, or a thread: whatever the system may refuse.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/** Let the n-th allocation from now on fail, counted from 1; 0: none. Resets the count. */
void fault_arm(long n);
/** Whether it has failed. */
bool fault_hit(void);
/** Allocations since fault_arm, with those that failed. */
long fault_count(void);
/** What is allocated now and not given back. */
long fault_live(void);
/** Bytes of address space that are mapped now. */
long fault_mapped_bytes(void);
/** Descriptors that are open now. */
size_t fault_descriptors(void);

/** From now on only calls that threads make while they are inside count, or (false) all. */
void fault_scope(bool scoped);
/** The calling thread is inside, or no longer; whether it was before. */
bool fault_enter(bool inside);
bool fault_is_inside(void);
/** Allocations neither fail nor count from now on, or (false) they do again. */
void fault_spare_allocations(bool spared);
/** Another kind of call, counted as allocations are: whether it fails, with errno set to that. */
bool fault_meets(int error);

/** malloc and free that count, for libraries that take such functions. */
void *fault_malloc(size_t size_bytes);
/** The same, but never refused. */
void *fault_malloc_always(size_t size_bytes);
void fault_free(void *pointer);
