/*
 * The library is looked for by the name that its version has, where the system looks for
 * libraries, and then where the toolkit of the build has it.
 */
#include <dlfcn.h>

#include "kernels/nn/cuda/cublaslt.h"

#define STRING_(x) #x
#define STRING(x) STRING_(x)
#define LIBRARY "libcublasLt.so." STRING(CUBLAS_VER_MAJOR)
#ifndef ZR_CUBLASLT_FOLDER
#define ZR_CUBLASLT_FOLDER "."
#endif

/* It stays in memory once it is there: other libraries may have taken hold of it, too. */
static void *open_library(void) {
    int flags = RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE;
    void *library = dlopen(LIBRARY, flags);
    return library != NULL ? library : dlopen(ZR_CUBLASLT_FOLDER "/" LIBRARY, flags);
}

zr_status_t zr_cublaslt_find(const zr_log_t *log, zr_cublaslt_t *lt_p) {
    zr_cublaslt_t lt = {.library = open_library()};
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
