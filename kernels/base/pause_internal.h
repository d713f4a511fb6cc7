/*
 * Between two looks at what another thread will change: tells the processor that this one waits,
 * so that it takes less from what runs beside it.
 */
#pragma once

static inline void zr_pause(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

