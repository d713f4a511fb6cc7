/* What this library is and how it was built. */
#include "zero/zero.h"

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)

const char *zr_version(void) {
    return TEXT(ZR_VERSION_MAJOR) "." TEXT(ZR_VERSION_MINOR) "." TEXT(ZR_VERSION_PATCH);
}

const char *zr_build_description(void) {
#if defined(ZR_HAVE_NCCL)
    return "devices host and cuda, communicators threads, processes and nccl";
#elif defined(ZR_HAVE_CUDA)
    return "devices host and cuda, communicators threads and processes; built without NCCL";
#else
    return "device host, communicators threads and processes; built without CUDA";
#endif
}
