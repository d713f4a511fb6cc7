/* See owner_internal.h. */
#include "kernels/base/owner_internal.h"

zr_status_t zr_owner_check(pid_t owner, const zr_log_t *log, const char *call, const char *what) {
    if (zr_owner_is_here(owner))
        return ZR_OK;
    return zr_fail(log, ZR_ERR_STATE,
                   "%s: %s was created in process %ld, and this is process %ld, a fork of it: "
                   "create it in this process, or start this process without fork (\"spawn\" of "
                   "Python's multiprocessing)",
                   call, what, (long)owner, (long)getpid());
}
