/* cuBLASLt and its calls. */
#include "kernels/nn/cuda/cublaslt.h"
#include "kernels/nn/cuda/library.h"

#define LIBRARY "libcublasLt.so." ZR_LIBRARY_STRING(CUBLAS_VER_MAJOR)
#ifndef ZR_CUBLASLT_FOLDER
#define ZR_CUBLASLT_FOLDER "."
#endif

zr_status_t zr_cublaslt_find(const zr_log_t *log, zr_cublaslt_t *lt_p) {
    zr_cublaslt_t lt = {.library = zr_library_open(LIBRARY, ZR_CUBLASLT_FOLDER "/" LIBRARY)};
    if (lt.library == NULL)
        return zr_fail(log, ZR_ERR_UNSUPPORTED,
                       "matmul: device \"cuda\" needs cuBLASLt: %s; install " LIBRARY
                       " (CUDA's libcublas), or name its folder in LD_LIBRARY_PATH",
                       dlerror());
#define FIND(call)                                                                                 \
    lt.call##_p = (__typeof__(lt.call##_p))dlsym(lt.library, #call);                               \
    if (lt.call##_p == NULL) {                                                                     \
        zr_cublaslt_forget(&lt);                                                                   \
        return zr_fail(log, ZR_ERR_UNSUPPORTED, "matmul: " LIBRARY " has no %s", #call);           \
    }
    ZR_CUBLASLT_CALLS(FIND)
#undef FIND
    *lt_p = lt;
    return ZR_OK;
}

void zr_cublaslt_forget(zr_cublaslt_t *lt) {
    if (lt->library != NULL)
        dlclose(lt->library);
    *lt = (zr_cublaslt_t){0};
}
