/* See comm_mpi.h. */
#include "examples/bench/comm_mpi.h"

#include <dlfcn.h>
#include <limits.h>
#include <malloc.h>
#include <stdio.h>
#include <string.h>

/* Where a build has modules beside its programs. */
#ifndef COMM_MPI_MODULE_PLACE
#define COMM_MPI_MODULE_PLACE "$ORIGIN/../lib/libzero/"
#endif

/* What is there says itself what it is: the communicator has loaded it for all, since plug-ins of
 * MPI want that. Every MPI has this function, with this type. */
static bool find_library(char *text) {
    enum { MOST_BYTES = 8192 }; /* of what MPI writes */
    int (*get_version)(char *text, int *length_p) = NULL;
    char version[MOST_BYTES] = "";
    int length = 0;
    *(void **)&get_version = dlsym(RTLD_DEFAULT, "MPI_Get_library_version");
    if (get_version == NULL || get_version(version, &length) != 0) {
        snprintf(text, COMM_MPI_ERROR_BYTES, "the ranks were started without MPI");
        return false;
    }
    for (char *end = version; *end != '\0'; end++)
        *end = *end == '\t' ? ' ' : *end;
    snprintf(text, COMM_MPI_ERROR_BYTES, "%.*s",
             (int)strcspn(version, ",\n") < COMM_MPI_LIBRARY_BYTES ? (int)strcspn(version, ",\n")
                                                                   : COMM_MPI_LIBRARY_BYTES - 1,
             version);
    return true;
}

const comm_mpi_module_t *comm_mpi_find(char *text) {
    char path[512];
    if (!find_library(text))
        return NULL;
    bool is_open_mpi = strncmp(text, "Open MPI", strlen("Open MPI")) == 0;
    snprintf(path, sizeof(path), COMM_MPI_MODULE_PLACE "libzero-bench-%s.so",
             is_open_mpi ? "openmpi" : "mpich");
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    const comm_mpi_module_t *module = handle != NULL ? dlsym(handle, COMM_MPI_MODULE_SYMBOL) : NULL;
    if (module != NULL && module->version == COMM_MPI_MODULE_VERSION)
        return module;
    const char *why = module != NULL ? "it is of another version" : dlerror();
    snprintf(text, COMM_MPI_ERROR_BYTES, "%.200s", why != NULL ? why : path);
    return NULL;
}

void comm_mpi_keep_memory(void) {
    (void)mallopt(M_MMAP_MAX, 0);
    (void)mallopt(M_TRIM_THRESHOLD, INT_MAX);
}

void comm_mpi_share_heap(void) {
    (void)mallopt(M_ARENA_MAX, 1);
}
