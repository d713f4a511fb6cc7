/* The driver's calls, found through the runtime, which has loaded the driver by then. */
#include "kernels/cuda/cuda_device.h"

/* Version 10.2 had all of them, and their form has not changed since. */
#define ZR_CUDA_DRIVER_VERSION 10020

/* The call has changed twice. NULL: not found. */
static void *find(const char *name) {
    void *function = NULL;
#if CUDART_VERSION >= 12050
    cudaError_t error = cudaGetDriverEntryPointByVersion(name, &function, ZR_CUDA_DRIVER_VERSION,
                                                         cudaEnableDefault, NULL);
#elif CUDART_VERSION >= 12000
    cudaError_t error = cudaGetDriverEntryPoint(name, &function, cudaEnableDefault, NULL);
#else
    cudaError_t error = cudaGetDriverEntryPoint(name, &function, cudaEnableDefault);
#endif
    return error == cudaSuccess ? function : NULL;
}

zr_status_t zr_cuda_driver_find(const zr_log_t *log, zr_cuda_driver_t *driver) {
#define FIND(call)                                                                                 \
    driver->call##_p = (__typeof__(driver->call##_p))find(#call);                                  \
    if (driver->call##_p == NULL)                                                                  \
        return zr_fail(log, ZR_ERR_UNSUPPORTED,                                                    \
                       "device \"cuda\": the driver has no %s; a newer driver is required",        \
                       #call);
    ZR_CUDA_DRIVER_CALLS(FIND)
#undef FIND
    return ZR_OK;
}
