/* See ucx_library.h. */
#include "zero/comm/ucx/ucx_library.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 * What UCX reads from the environment when it is loaded, and when it is begun, and what it may not
 * do: handle the process's signals, end it, write on its standard output, or put itself between the
 * program and the system's calls for memory (it loses arguments of mremap, by which the host device
 * moves memory). Its buffers are of the size that was fastest, and it does not wait for a machine
 * that does not answer. Who sets a variable has the last word.
 */
static void keep_to_itself(void) {
    static const char *const variables[][2] = {
        {"UCX_HANDLE_ERRORS", "none"},     {"UCX_DEBUG_SIGNO", "0"},
        {"UCX_MEM_EVENTS", "n"},           {"UCX_VFS_ENABLE", "n"},
        {"UCX_LOG_FILE", "stderr"},        {"UCX_LOG_LEVEL", "fatal"},
        {"UCX_TCP_TX_SEG_SIZE", "128k"},   {"UCX_TCP_RX_SEG_SIZE", "128k"},
        {"UCX_TCP_CONN_NB", "y"},          {"UCX_KEEPALIVE_INTERVAL", "inf"},
        {"UCX_WARN_UNUSED_ENV_VARS", "n"},
    };
    for (size_t i = 0; i < sizeof(variables) / sizeof(variables[0]); i++)
        (void)setenv(variables[i][0], variables[i][1], 0);
}

/* It stays loaded. */
bool zr_ucx_library_open(zr_ucx_library_t *library_p, char *error) {
    zr_ucx_library_t library;
    keep_to_itself();
    void *handle = dlopen("libucp.so.0", RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL) {
        snprintf(error, ZR_UCX_ERROR_BYTES, "%s", dlerror());
        return false;
    }
#define FIND(name)                                                                                 \
    do {                                                                                           \
        void *found = dlsym(handle, #name);                                                        \
        if (found == NULL) {                                                                       \
            snprintf(error, ZR_UCX_ERROR_BYTES, "libucp.so.0 is too old: it has no %s", #name);    \
            return false;                                                                          \
        }                                                                                          \
        memcpy(&library.name##_p, &found, sizeof(found));                                          \
    } while (0);
    ZR_UCX_CALLS(FIND)
    FIND(ucs_status_string) /* of a library that libucp is linked with */
#undef FIND
    *library_p = library;
    return true;
}
