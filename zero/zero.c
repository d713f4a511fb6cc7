/* What this library is and how it was built. */
#include "zero/zero.h"

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)

const char *zr_version(void) {
    return TEXT(ZR_VERSION_MAJOR) "." TEXT(ZR_VERSION_MINOR) "." TEXT(ZR_VERSION_PATCH);
}

const char *zr_build_description(void) {
#ifdef ZR_HAVE_CUDA
    return "devices host and cuda, communicator threads";
#else
    return "device host, communicator threads; built without CUDA";
#endif
}
