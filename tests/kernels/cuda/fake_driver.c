/* In place of the driver's library, so that cuDNN makes plans without a GPU: it compiles its
 * kernels, and what it loads goes nowhere. */
static int object;

#define GIVES(name)                                                                                \
    int name(void **object_p);                                                                     \
    int name(void **object_p) {                                                                    \
        *object_p = &object;                                                                       \
        return 0;                                                                                  \
    }
GIVES(cuLibraryLoadData)
GIVES(cuLibraryGetKernel)
GIVES(cuModuleLoadData)
GIVES(cuModuleLoadDataEx)
GIVES(cuModuleGetFunction)

#define ANSWERS(name, answer)                                                                      \
    int name(int *value_p);                                                                        \
    int name(int *value_p) {                                                                       \
        *value_p = answer;                                                                         \
        return 0;                                                                                  \
    }
ANSWERS(cuDriverGetVersion, 13000)
ANSWERS(cuDeviceGetCount, 1)
ANSWERS(cuKernelGetAttribute, 0)
ANSWERS(cuFuncGetAttribute, 0)
ANSWERS(cuDeviceGetAttribute, 0)

#define RETURNS(name, status)                                                                      \
    int name(void);                                                                                \
    int name(void) {                                                                               \
        return status;                                                                             \
    }
RETURNS(cuInit, 0)
RETURNS(cuKernelSetAttribute, 0)
RETURNS(cuFuncSetAttribute, 0)
RETURNS(cuLibraryUnload, 0)
RETURNS(cuModuleUnload, 0)
RETURNS(cuCtxGetCurrent, 0)

/* These need a GPU. */
#define FAILS(name) RETURNS(name, 100)
FAILS(cuCtxGetDevice)
FAILS(cuCtxGetLimit)
FAILS(cuCtxPopCurrent)
FAILS(cuCtxPushCurrent)
FAILS(cuDeviceGet)
FAILS(cuDevicePrimaryCtxRelease)
FAILS(cuDevicePrimaryCtxReset)
FAILS(cuDevicePrimaryCtxRetain)
FAILS(cuGetErrorName)
FAILS(cuGetErrorString)
FAILS(cuGetExportTable)
FAILS(cuLaunchCooperativeKernel)
FAILS(cuLaunchKernel)
FAILS(cuLaunchKernelEx)
FAILS(cuLibraryLoadFromFile)
FAILS(cuLinkAddData)
FAILS(cuLinkAddData_v2)
FAILS(cuLinkAddFile_v2)
FAILS(cuLinkComplete)
FAILS(cuLinkCreate)
FAILS(cuLinkCreate_v2)
FAILS(cuLinkDestroy)
FAILS(cuMemcpyDtoH_v2)
FAILS(cuModuleGetGlobal_v2)
FAILS(cuModuleLoadFatBinary)
FAILS(cuOccupancyMaxActiveBlocksPerMultiprocessor)
FAILS(cuOccupancyMaxPotentialClusterSize)
FAILS(cuStreamGetCtx)
FAILS(cuStreamSynchronize)
FAILS(cuTensorMapEncodeTiled)
