/*
 * One run in a folder of checkpoints at a time. The library locks a folder while it saves, so that
 * the one of two runs that comes second loses its step, which may be the older run: a run holds its
 * folder from its start, and what ends it in any way releases it. Programs that only read need no
 * lock.
 */
#pragma once

#include "zero/zero.h"

typedef struct train_lock {
    char *path; /* owned; NULL: nothing is held */
    int fd;
} train_lock_t;

/**
 * Hold a folder.
 *
 * @return ZR_OK, also where the file system has no locks, with a warning; ZR_ERR_ARGUMENT when
 *         another run holds it; ZR_ERR_IO; ZR_ERR_MEMORY: what is wrong has been logged
 */
ZR_NODISCARD zr_status_t train_lock_take(const char *dir, const zr_log_t *log,
                                         train_lock_t *lock_p);
void train_lock_drop(train_lock_t *lock);
