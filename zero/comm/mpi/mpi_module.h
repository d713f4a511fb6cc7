/*
 * What libzero asks of MPI, without a type of MPI's.
 *
 * Behind it is a small shared object, one for each kind of MPI that the build found
 * (module/mpi_module.c): the only thing that is linked with MPI. It is loaded when a run was
 * started by MPI's launcher (mpi_site.c), so programs start as fast as without it, and where there
 * is none.
 *
 * In the module, a thread of its own makes every call of MPI, since some of them (MPI_Init,
 * MPI_Finalize) wait for other processes without a limit. Who asks waits for that thread, and not
 * longer than he says. It is also what moves data on while a rank computes sums.
 *
 * MPI can be begun once in a process, and ended once; so the module counts who uses it, which is
 * state of the process, as MPI is.
 *
 * Threads: entries may be called from any thread; a transfer belongs to who posted it.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#define ZR_MPI_MODULE_VERSION 3u
/** The symbol of the table: const zr_mpi_module_t. */
#define ZR_MPI_MODULE_SYMBOL "zr_mpi_module"

enum { ZR_MPI_ERROR_BYTES = 256, ZR_MPI_LIBRARY_BYTES = 128 };

/** Bytes on their way to another rank or from it. */
typedef struct zr_mpi_transfer {
    void *buffer;      /* stays until it is done, or given up */
    size_t size_bytes; /* at most INT_MAX; the same on both sides */
    int peer;          /* in MPI's world */
    int tag;           /* 0 to 32767 */
    bool is_send;
    bool is_done;                 /* of `wait`, which may be asked */
    struct zr_mpi_transfer *next; /* the module's, as are */
    void *request, *links;
} zr_mpi_transfer_t;

typedef struct zr_mpi_world {
    int rank, n_ranks;
    char library[ZR_MPI_LIBRARY_BYTES]; /* its name and version */
} zr_mpi_world_t;

/* Where an entry fails, `error` [ZR_MPI_ERROR_BYTES] says why; nothing is logged. */
typedef struct zr_mpi_module {
    unsigned version;
    /* Begin MPI, or use it once more. False: it failed, or took longer; then it is given up. */
    bool (*open)(int timeout_ms, zr_mpi_world_t *world_p, char *error);
    /* all[r] = rank r's own. A collective among all processes. */
    bool (*gather)(const void *own, size_t size_bytes, void *all, int timeout_ms, char *error);
    /* Begin transfers; borrowed until they are done. Those of one peer, tag and direction are made
     * in the order in which they are posted. */
    void (*post)(zr_mpi_transfer_t *transfers, size_t n_transfers);
    /* Wait until some of these are done, for so long at most. *n_left_p: how many are not. */
    bool (*wait)(zr_mpi_transfer_t *transfers, size_t n_transfers, int wait_ms, size_t *n_left_p,
                 char *error);
    /* No call of MPI is made any more in this process: nothing that was posted is touched. */
    void (*give_up)(void);
    /* Use it once less. The last ends MPI, unless other processes may not come to its end
     * (is_dead). False: it was given up before, the end took longer, or failed. */
    bool (*close)(bool is_dead, int timeout_ms, char *error);
} zr_mpi_module_t;
