/*
 * MPI's own collectives, for zero-bench comm to measure beside ours.
 *
 * Where ranks were started by MPI's launcher, the communicator `processes` has begun MPI in this
 * process (zr_comm_create_processes), and the program may call it in between. As in the library,
 * what is linked with MPI is a small shared object for each kind of it (mpi/own_collectives.c),
 * loaded here, so that zero-bench runs where MPI is missing, and no MPI type appears elsewhere.
 *
 * Threads: the rank's own, from begin to end.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "zero/zero.h"

enum { COMM_MPI_ERROR_BYTES = 256, COMM_MPI_LIBRARY_BYTES = 96 };

/** A call among all ranks, on host memory. */
typedef struct comm_mpi_call {
    zr_collective_t collective;
    bool in_place;
    zr_dtype_t dtype;
    void *whole;        /* block_elems of each rank: what is gathered, reduced, or sent by root */
    void *block;        /* this rank's, where it is not in place */
    size_t block_elems; /* reduce-scatter in place: the result is at the beginning of whole */
    int n_ranks, root;
} comm_mpi_call_t;

/** There are two reduce-scatters, and the faster one counts; else there is one way. */
#define N_COMM_MPI_WAYS 2

/* ---- the shared object ---- */

#define COMM_MPI_MODULE_VERSION 1u
/** The symbol of the table: const comm_mpi_module_t. */
#define COMM_MPI_MODULE_SYMBOL "comm_mpi_module"

/* Where an entry fails, `error` [COMM_MPI_ERROR_BYTES] says why. */
typedef struct comm_mpi_module {
    unsigned version;
    /* A communicator of all ranks, which all of them make together. NULL: it failed. */
    void *(*begin)(char *error);
    /* "MPI_Allgather". NULL: there is no such way, or MPI cannot do it, as with too many elements
     * for its counts, or sums of bf16, which it does not know. Static. */
    const char *(*name)(const comm_mpi_call_t *call, int way);
    bool (*call)(void *ranks, const comm_mpi_call_t *call, int way, char *error);
    void (*end)(void *ranks);
} comm_mpi_module_t;

/* ---- what the program calls ---- */

/**
 * Find the shared object for the MPI that has begun in this process.
 *
 * @param text  [COMM_MPI_ERROR_BYTES]: the name of MPI's library, or why there is nothing
 * @return NULL: there is nothing; static otherwise
 */
const comm_mpi_module_t *comm_mpi_find(char *text);

/**
 * Have the process keep memory that was freed for the next allocation, whatever its size. MPI
 * allocates as much as it reduces in each call, and the system's clearing of new pages takes longer
 * than the sums do. What was measured before is malloc as it comes.
 */
void comm_mpi_keep_memory(void);

/**
 * One heap for all threads, as in a program of one: call it before there are others. Without, the
 * heap of a thread that is not the first is too small for what MPI allocates.
 */
void comm_mpi_share_heap(void);
