/* See nccl_library.h. */
#include "zero/comm/nccl/nccl_library.h"

#include <dlfcn.h>
#include <string.h>

/* Non-blocking communicators, which can be given up, exist since 2.14; finalizing them, too. */
#define ZR_NCCL_LEAST_VERSION 21400

/* Where the build found it, for machines that do not have it where programs look. */
#ifndef ZR_NCCL_LIBRARY
#define ZR_NCCL_LIBRARY "libnccl.so.2"
#endif

static zr_status_t check_version(const zr_log_t *log, const zr_nccl_library_t *library) {
    int version = 0;
    ncclResult_t result = library->ncclGetVersion_p(&version);
    if (result != ncclSuccess || version < ZR_NCCL_LEAST_VERSION)
        return zr_fail(log, ZR_ERR_UNSUPPORTED,
                       "communicator \"nccl\": the NCCL library has version number %d; at least %d "
                       "is required",
                       version, ZR_NCCL_LEAST_VERSION);
    return ZR_OK;
}

zr_status_t zr_nccl_library_open(const zr_log_t *log, zr_nccl_library_t *library_p) {
    zr_nccl_library_t library;
    void *handle = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL)
        handle = dlopen(ZR_NCCL_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL)
        return zr_fail(log, ZR_ERR_UNSUPPORTED,
                       "communicator \"nccl\": %s; install NCCL, add its folder to "
                       "LD_LIBRARY_PATH, or use ranks that are threads",
                       dlerror());
#define FIND(name)                                                                                 \
    do {                                                                                           \
        void *found = dlsym(handle, #name);                                                        \
        if (found == NULL)                                                                         \
            return zr_fail(log, ZR_ERR_UNSUPPORTED,                                                \
                           "communicator \"nccl\": the NCCL library has no %s; it is too "         \
                           "old",                                                                  \
                           #name);                                                                 \
        memcpy(&library.name##_p, &found, sizeof(found));                                          \
    } while (0);
    ZR_NCCL_CALLS(FIND)
#undef FIND
    ZR_TRY(check_version(log, &library));
    *library_p = library;
    return ZR_OK;
}
