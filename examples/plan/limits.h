/*
 * What this process may use of its machine, where that is less than there is.
 */
#pragma once

#include <stddef.h>

#define LIMITS_NONE ((size_t)-1)

/**
 * Memory that the control groups of this process may use, all above it included.
 *
 * @param groups  "/proc/self/cgroup": its groups, of version 1 or 2
 * @param root    "/sys/fs/cgroup": where they are mounted
 * @return LIMITS_NONE where nothing is limited, or it cannot be read
 */
size_t limits_memory(const char *groups, const char *root);

/** Host memory that this process may pin (RLIMIT_MEMLOCK); LIMITS_NONE: no limit, or it may exceed
 * it (CAP_IPC_LOCK). */
size_t limits_pinned(void);

/** The most that a file of this process may have (RLIMIT_FSIZE); LIMITS_NONE: as much as fits. */
size_t limits_file(void);
