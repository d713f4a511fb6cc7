/* How launches of translated kernels tell ptx_memory.cc what runs. */
#pragma once

struct emu_watch_t;
extern const emu_watch_t ptx_watch;

/* A thread comes to a barrier: whether it is to pass as if there were none. */
bool ptx_is_taken_away(const char *barrier);

