/*
 * A search for races in kernels: two accesses to the same bytes by different threads, one of them a
 * write, that no barrier orders. It does not depend on the order in which threads happened to run.
 *
 * What orders: the block's barrier, for its threads; a warp's barrier, for the lanes of its mask;
 * the end of a kernel. Shuffles, votes and matrix instructions do not: they promise no order of
 * memory. Blocks of one kernel are never ordered. Copies that a thread does not wait for write from
 * when they are begun to when it has waited for them, and nobody may touch their bytes between.
 *
 * One thread: the one that runs kernels.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

namespace races {

/* Shared memory by offset, global memory by address. */
enum space_t { SHARED, GLOBAL };

/* A kernel begins: what was before it is ordered before it. Then each block in turn, with its
 * number of threads. */
void begin_kernel();
void begin_block(size_t n_threads);

/* Thread `thread` of the block (0 to n_threads - 1) reads or writes up to 16 bytes; `here` is
 * static, and names the instruction. An access that races is told, with one of those that it races
 * with at least, once for each pair of places, and counted; so is, once for each place, a read of
 * shared memory that nothing in the block has written. */
void on_read(space_t space, uint64_t address, size_t size_bytes, size_t thread, const char *here);
void on_write(space_t space, uint64_t address, size_t size_bytes, size_t thread, const char *here);

/* A copy to shared memory is begun, and has been waited for by the thread that began it. */
void on_copy_begin(uint64_t to_shared, size_t size_bytes, size_t thread, const char *here);
void on_copy_end(uint64_t to_shared, size_t size_bytes, size_t thread, const char *here);

/* All threads of the block that have not ended have come to a barrier, and none has left it. What
 * ended ones did is ordered too; a warp's barrier orders only what those did that came to it. */
void on_block_barrier();
/* A thread has come to a barrier of the lanes `mask` of its warp, and goes on from it: all that
 * have not ended have come before the first goes on; who went on may come to the next one before
 * others have gone on from this one. A thread that the mask leaves out orders nothing. */
void on_warp_arrival(size_t thread, uint32_t mask);
void on_warp_departure(size_t thread, uint32_t mask);

/* Found so far: 0 is what a test expects. */
size_t n_found();

/* What is found from now on ends the process, with 1. */
void end_at_first();

/* Nothing was found yet; what will be is told there, and not on stderr. Borrowed until the next
 * call; NULL: it is counted only. */
void begin_anew(FILE *reports);

} // namespace races
