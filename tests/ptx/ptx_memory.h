/* How launches of translated kernels tell ptx_memory.cc what runs. */
#ifndef ZR_TESTS_PTX_PTX_MEMORY_H
#define ZR_TESTS_PTX_PTX_MEMORY_H

struct emu_watch_t;
extern const emu_watch_t ptx_watch;

/* A thread comes to a barrier: whether it is to pass as if there were none. */
bool ptx_is_taken_away(const char *barrier);

#endif
