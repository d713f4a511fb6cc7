/* Libraries of CUDA that are loaded when they are used. */
#pragma once

#include <dlfcn.h>
#include <stddef.h>

#define ZR_LIBRARY_STRING_(x) #x
#define ZR_LIBRARY_STRING(x) ZR_LIBRARY_STRING_(x)

/**
 * Load a library by the name that its version has, where the system looks for libraries, and then
 * where the build has found it. It stays in memory once it is there: it may have loaded others, and
 * others may have taken hold of it.
 *
 * @param path  its name in the folder of the build
 * @return for dlclose; NULL: dlerror says why
 */
static inline void *zr_library_open(const char *name, const char *path) {
    int flags = RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE;
    void *library = dlopen(name, flags);
    return library != NULL ? library : dlopen(path, flags);
}
