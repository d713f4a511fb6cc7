/*
 * A rank's part in a collective whose tensors it can address on all ranks: those of threads, and of
 * processes that have mapped each other's memory.
 *
 * Every rank moves its own part: it reads what that is made of, wherever it is, and writes it to
 * every rank that wants it, directly, through the device of its own stream. So each byte is read
 * once and written once, in large contiguous copies or sums.
 * A rank that is done with its part helps with the others': large parts are made in pieces, and
 * each piece by whoever takes it first. So no core is idle while another, which has more ranks to
 * run or is taken away for a while, has pieces left. That all tensors stay where they are until all
 * parts are made is the communicator's to see to.
 *
 * Threads: the rank's own.
 */
#pragma once

#include <stdatomic.h>

#include "zero/comm/comm_backend.h"

typedef struct zr_pass {
    int rank, n_ranks;
    /* [n_ranks] each: */
    const void **sends; /* what the ranks send and receive in the call under way, as this process
                           addresses it: filled by the communicator */
    void **recvs;
    atomic_size_t **n_taken; /* pieces of each rank's part that have been taken, as all ranks see
                                it: 0 when the rank arrives, filled by the communicator.
                                NULL, of any: each rank makes its own part, as on asynchronous
                                devices */
    const void **sources;    /* of zr_kernel_spread */
    void **dsts;
} zr_pass_t;

/** Bytes of the five arrays of so many ranks, to be at `arrays`. */
size_t zr_pass_bytes(int n_ranks);
void zr_pass_init(zr_pass_t *pass, void *arrays, int rank, int n_ranks);

/** Queue this rank's part of the call on its stream, and what it takes of others': a collective
 * with data, not a split. */
ZR_NODISCARD zr_status_t zr_pass_make_part(zr_pass_t *pass, const zr_comm_call_t *call);
