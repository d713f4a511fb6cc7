/*
 * The process that an object belongs to.
 *
 * A fork copies an object's memory, but neither its threads nor its part in the rings, files and
 * connections that both processes then share. So calls are refused in a fork, and destroying an
 * object there only forgets it: what it holds is the other process's.
 */
#pragma once

#include <stdbool.h>
#include <sys/types.h>
#include <unistd.h>

#include "kernels/base/log.h"

ZR_BEGIN_C

/** True in the process that has made the object. */
static inline bool zr_owner_is_here(pid_t owner) {
    return owner == getpid();
}

/**
 * Refuse a call in any other process than the object's.
 *
 * @param owner  getpid() of the process that has made the object
 * @param what   the object: "the runtime"
 * @return ZR_OK; ZR_ERR_STATE, logged with both processes
 */
ZR_NODISCARD zr_status_t zr_owner_check(pid_t owner, const zr_log_t *log, const char *call,
                                        const char *what);

ZR_END_C
