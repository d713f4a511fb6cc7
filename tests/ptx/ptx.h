/*
 * What nvcc makes of the kernels, run without a GPU: its PTX is translated to C++
 * (ptx_translate.cc) and runs on the emulation's threads (tests/emu/), launched by the objects that
 * nvcc has made for the library. The emulation proper has the same files compiled by the host's
 * compiler; here the code is nvcc's, only what ptxas makes of it is not seen. Every access to
 * memory is looked at: whether it is allowed, aligned, and ordered with those of other threads
 * (races.h).
 *
 *   ptx_translate.cc  PTX to C++; a program, which the build runs
 *   ptx_thread.h      what one thread of the translated code calls, instruction by instruction
 *   ptx_memory.cc     accesses
 *   ptx_launch.cc     kernels by their names; launches
 *   races.cc          accesses that nothing orders
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <vector>

/* ---- what translated files say of themselves ------------------------------------------------ */

/* Of a kernel's parameters, laid out as PTX says: where in `params` each begins. */
struct ptx_param_t {
    size_t offset_bytes, size_bytes;
};

struct ptx_kernel_t {
    const char *name;                         /* mangled: the .entry's */
    void (*run)(const unsigned char *params); /* one thread of it; which one: emu_thread */
    const ptx_param_t *params;
    size_t n_params;
    size_t params_bytes;
    size_t shared_bytes;  /* static, from offset 0 of the block's shared memory */
    unsigned max_threads; /* of a block (.maxntid); 0: nothing is said */
};

/* One translated file. Places ("here") are static texts "FILE:LINE INSTRUCTION (NAME.ptx:LINE)",
 * FILE and LINE those of the source; each instruction has one of its own. */
struct ptx_module_t {
    const char *name;
    const ptx_kernel_t *kernels;
    size_t n_kernels;
    const char *const *barriers; /* places of what orders accesses: bar, cp.async.wait_group and
                                    commit_group */
    size_t n_barriers;
};

/* Called once by each translated file, before main. */
void ptx_add_module(const ptx_module_t *module);

/* ---- for tests ------------------------------------------------------------------------------ */

const std::vector<const ptx_module_t *> &ptx_modules();
/* Launches of a kernel so far, by its mangled name. */
size_t ptx_n_launches(const char *kernel);

/* From now on kernels get at most so many blocks, so that their loops over the grid go round; 0: as
 * many as are asked for. */
void ptx_limit_blocks(unsigned most);

/* From now on barriers whose place begins so are no barriers: to see whether somebody notices.
 * NULL: all are. As the program starts it is what PTX_TAKE_AWAY of the environment says. */
void ptx_take_away(const char *place);
/* Who is told of each barrier that a thread comes to; NULL: nobody. */
void ptx_note_barriers(void (*note)(const char *place));

/* ---- memory, for translated code ------------------------------------------------------------ */

/* Where bytes of shared or global memory lie that the running thread reads or writes as one access,
 * aligned to its size (1 to 16). What is not allowed is told with its place and is a fault: the
 * kernel ends there, its device reports cudaErrorIllegalAddress. Dynamic shared memory begins at
 * the kernel's shared_bytes, rounded up to 16. */
const void *ptx_read_shared(uint32_t address, size_t size_bytes, const char *here);
void *ptx_write_shared(uint32_t address, size_t size_bytes, const char *here);
const void *ptx_read_global(uint64_t address, size_t size_bytes, const char *here);
void *ptx_write_global(uint64_t address, size_t size_bytes, const char *here);

/* cp.async: copies that the thread does not wait for. What `from_bytes` does not cover becomes
 * zero. */
void ptx_copy_begin(uint32_t to_shared, uint64_t from_global, size_t to_bytes, size_t from_bytes,
                    const char *here);
void ptx_copy_commit(const char *here);
void ptx_copy_wait(size_t n_groups, const char *here);

/* bar.sync 0, and bar.warp.sync. */
void ptx_wait_for_block(const char *here);
void ptx_wait_for_warp(uint32_t mask, const char *here);

