/*
 * Collectives, timed and checked: all ranks of a communicator make the same calls, in turns with
 * copies of as many bytes as have to be moved, and the slowest rank's time counts.
 */
#pragma once

#include "examples/bench/bench.h"
#include "examples/bench/comm_mpi.h"

/** A communicator that can be measured. Adding one is an entry of the table in comm.c. */
typedef struct comm_choice {
    const char *name;
    const char *device; /* of each rank: "host", or "cuda", a GPU each */
    bool is_launched;   /* ranks are processes, this one of them */
} comm_choice_t;

/** One measurement. */
typedef struct comm_row {
    zr_collective_t collective;
    bool in_place;
    size_t block_elems; /* of one rank; the tensor has as many for each rank */

    /* Of comm_measure. */
    double bytes;                 /* that have to be read and written, by all ranks together */
    double seconds, copy_seconds; /* of a call, and of copies that read and write as much */
    double ratio;                 /* seconds of copies to those of calls beside them: the median */
    const char *copy;             /* the faster way to copy; static */
    double read_ratio; /* of reading alone what all tensors hold; 0: it was not measured */
    size_t n_rounds, calls_a_round; /* of the collective */
    const char *mpi;                /* MPI's own, the faster one: "MPI_Allgather"; NULL: none */
    bool mpi_keeps_memory;          /* comm_mpi_keep_memory; otherwise malloc as it comes */
    double mpi_seconds, mpi_ratio;  /* of it; its seconds to those of calls beside it: the median */
} comm_row_t;

typedef struct comm_options {
    const comm_choice_t *comm;
    int n_ranks, n_threads; /* threads of each rank, on the host */
    zr_dtype_t dtype;
    double seconds; /* of a row, about */
    zr_log_t log;
} comm_options_t;

/**
 * Bytes that all ranks together have to read from and write to memory for a collective on tensors
 * of tensor_bytes on each: every input once, and every output once (docs/internals/bench.md).
 */
double comm_least_bytes(zr_collective_t collective, bool in_place, double tensor_bytes,
                        int n_ranks);

/** What was measured. */
typedef struct comm_about {
    char device[128];               /* of the first rank */
    bool has_mpi;                   /* MPI's own collectives, too */
    char mpi[COMM_MPI_ERROR_BYTES]; /* its library, or why not; "": it is not asked for */
} comm_about_t;

/**
 * Measure all rows; of ranks that are processes, with MPI's own collectives where there is MPI.
 *
 * @return ZR_OK; what failed has been logged otherwise; ZR_ERR_COMM also for wrong results
 */
ZR_NODISCARD zr_status_t comm_measure(const comm_options_t *options, comm_row_t *rows,
                                      size_t n_rows, comm_about_t *about_p);
