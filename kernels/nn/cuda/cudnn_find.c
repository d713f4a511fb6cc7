/* The library by the name that its version has, where the system looks for libraries, and then
 * where the build has found it. */
#if __has_include(<cudnn_graph.h>)
#include <dlfcn.h>

#include "kernels/nn/cuda/cudnn.h"

#define STRING_(x) #x
#define STRING(x) STRING_(x)
#define LIBRARY "libcudnn.so." STRING(CUDNN_MAJOR)
#ifndef ZR_CUDNN_FOLDER
#define ZR_CUDNN_FOLDER "."
#endif

/* It stays in memory once it is there, as it loads further libraries itself. */
static void *open_library(void) {
    int flags = RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE;
    void *library = dlopen(LIBRARY, flags);
    return library != NULL ? library : dlopen(ZR_CUDNN_FOLDER "/" LIBRARY, flags);
}

zr_status_t zr_cudnn_find(const zr_log_t *log, zr_cudnn_t *dnn_p) {
    zr_cudnn_t dnn = {.library = open_library()};
    if (dnn.library == NULL)
        return zr_fail(log, ZR_ERR_UNSUPPORTED,
                       "--attention cudnn: cuDNN was not found: %s; install " LIBRARY
                       ", name its folder in LD_LIBRARY_PATH, or use --attention own",
                       dlerror());
#define FIND(call)                                                                                 \
    dnn.call##_p = (__typeof__(dnn.call##_p))dlsym(dnn.library, #call);                            \
    if (dnn.call##_p == NULL) {                                                                    \
        zr_cudnn_forget(&dnn);                                                                     \
        return zr_fail(log, ZR_ERR_UNSUPPORTED,                                                    \
                       "--attention cudnn: " LIBRARY " has no %s; use --attention own", #call);    \
    }
    ZR_CUDNN_CALLS(FIND)
#undef FIND
    *dnn_p = dnn;
    return ZR_OK;
}

void zr_cudnn_forget(zr_cudnn_t *dnn) {
    if (dnn->library != NULL)
        dlclose(dnn->library);
    *dnn = (zr_cudnn_t){0};
}
#endif
