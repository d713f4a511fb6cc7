/*
 * Poison, in debug and sanitized builds only: memory that is nobody's holds 0xff, which
 * is NaN in fp32 and bf16, so that a value read too late spreads and shows. Under
 * AddressSanitizer it may not even be touched, nor the bytes between what was requested
 * and the end of its block.
 */
#pragma once

#include <stddef.h>
#include <string.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

#define ZR_POISON_BYTE 0xff

/** Memory that nobody may read; it may be touched until now. */
static inline void zr_poison(void *pointer, size_t size_bytes) {
#if defined(ZR_ALLOCATOR_POISON)
    memset(pointer, ZR_POISON_BYTE, size_bytes);
#endif
#if defined(__SANITIZE_ADDRESS__)
    __asan_poison_memory_region(pointer, size_bytes);
#endif
    (void)pointer;
    (void)size_bytes;
}

/** Memory that may be touched from now on, or that is about to be unmapped. */
static inline void zr_unpoison(void *pointer, size_t size_bytes) {
#if defined(__SANITIZE_ADDRESS__)
    __asan_unpoison_memory_region(pointer, size_bytes);
#endif
    (void)pointer;
    (void)size_bytes;
}
