/* cuDNN and its calls. */
#if __has_include(<cudnn_graph.h>)
#include "kernels/nn/cuda/cudnn.h"
#include "kernels/nn/cuda/library.h"

#define LIBRARY "libcudnn.so." ZR_LIBRARY_STRING(CUDNN_MAJOR)
#ifndef ZR_CUDNN_FOLDER
#define ZR_CUDNN_FOLDER "."
#endif

zr_status_t zr_cudnn_find(const zr_log_t *log, zr_cudnn_t *dnn_p) {
    zr_cudnn_t dnn = {.library = zr_library_open(LIBRARY, ZR_CUDNN_FOLDER "/" LIBRARY)};
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
