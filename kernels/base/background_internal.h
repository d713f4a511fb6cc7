/*
 * What a thread does in between while it computes: transfers of drives belong to the thread of a
 * rank and go on only when it sees to them. The host's kernels call zr_background between the parts
 * of their work; on other threads than the one that began it, that does nothing.
 */
#pragma once

#include <stdbool.h>

/** From now on zr_background calls `move` on this thread, at most every 0.2 ms. */
void zr_background_begin(void (*move)(void *context), void *context);
void zr_background_end(void);

/** Until it is called with false, zr_background does nothing on this thread: for work of whoever is
 * moved there, and is in the middle of something. */
void zr_background_hold(bool holds);

/** Between two parts of a kernel's work. */
void zr_background(void);
