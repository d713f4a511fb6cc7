/*
 * A rank of zero-bench comm: its tensors, and what it does in turns with the others. comm_work.c
 * makes the calls and copies, comm_check.c looks whether results are right, comm_turns.c takes the
 * times.
 */
#pragma once

#include "examples/bench/comm_copy.h"
#include "examples/bench/comm_run.h"
#include "examples/bench/on_device.h"

#define COMM_STAGING_BYTES ((size_t)1 << 20)

/** What takes turns: the ways to copy (comm_copy_t), reading alone, the collective, MPI's own. */
enum {
    COMM_WORK_READ = N_COMM_COPIES,
    COMM_WORK_OURS,
    COMM_WORK_MPI,
    N_COMM_WORKS = COMM_WORK_MPI + N_COMM_MPI_WAYS
};

typedef struct comm_rank {
    zr_rank_t *of; /* the library's */
    const comm_options_t *options;
    comm_row_t *rows; /* this rank's own copy */
    size_t n_rows;
    on_device_t on;
    bool is_host;
    char *whole, *other; /* tensors of all ranks' blocks; for the work in place, the first alone */
    double *shown;       /* [n_ranks] on the device: what ranks tell each other */
    size_t n_copies;     /* made so far */
    char *staging;       /* [COMM_STAGING_BYTES] of the host */
    crew_t *crew;        /* copies, on the host */
    bench_times_t times[N_COMM_WORKS];
    comm_about_t about;
    const comm_mpi_module_t *mpi; /* NULL: it is left out */
    void *mpi_ranks;
    double (*untouched)[N_COMM_MPI_WAYS]; /* [n_rows] seconds of MPI's own, malloc as it comes */
} comm_rank_t;

/* ---- comm_work.c ---- */

size_t comm_block_bytes(const comm_rank_t *rank, const comm_row_t *row);
size_t comm_tensor_elems(const comm_rank_t *rank, const comm_row_t *row);
/** Where a rank's block is: its place in the whole tensor, or apart from it. */
char *comm_block(const comm_rank_t *rank, const comm_row_t *row);

/** Whether there is this work for such a row. */
bool comm_has_work(const comm_rank_t *rank, const comm_row_t *row, int work);
/** "reduce_scatter", "MPI_Reduce_scatter"; of works that there are, but for copies. Static. */
const char *comm_work_name(const comm_rank_t *rank, const comm_row_t *row, int work);
/** Do it once, or queue it. */
ZR_NODISCARD zr_status_t comm_do_work(comm_rank_t *rank, const comm_row_t *row, int work);

/* ---- comm_check.c ---- */

/**
 * Do it once on values that tell ranks and places apart; a wrong result is ZR_ERR_COMM.
 *
 * @param work  no copy
 */
ZR_NODISCARD zr_status_t comm_check(comm_rank_t *rank, const comm_row_t *row, int work);

/* ---- comm_turns.c ---- */

/** The largest of what the ranks give. */
ZR_NODISCARD zr_status_t comm_agree_on_most(comm_rank_t *rank, double own, double *most_p);
/** Check our call, time all works of a row in turns, and note what came of it. */
ZR_NODISCARD zr_status_t comm_measure_row(comm_rank_t *rank, comm_row_t *row);
/** Check a call of MPI's, and time it a few times by itself. */
ZR_NODISCARD zr_status_t comm_measure_untouched(comm_rank_t *rank, const comm_row_t *row, int work,
                                                double *median_p);
