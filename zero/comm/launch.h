/*
 * How a process that is one rank of several finds the others: what torchrun and its like, mpirun or
 * srun tell it in the environment.
 */
#pragma once

#include <stdbool.h>

#include "kernels/base/log.h"

ZR_BEGIN_C

typedef struct zr_launch {
    char host[256];       /* of rank 0: MASTER_ADDR */
    int port;             /* at which rank 0 listens: MASTER_PORT; 1 to 65535 */
    int rank;             /* RANK */
    int n_ranks;          /* WORLD_SIZE */
    int local_rank;       /* LOCAL_RANK: which of its machine's ranks, and so which GPU */
    int n_local_ranks;    /* LOCAL_WORLD_SIZE: ranks of its machine; 0: nobody says */
    int start_timeout_ms; /* how long ranks wait for each other until all have come; 0: as long as
                             in a call (timeout_ms of zr_comm_options_t) */
    bool by_mpi; /* MPI's launcher has started it: MPI tells where rank 0 is, and host and port
                    mean nothing */
} zr_launch_t;

/**
 * What the environment says: WORLD_SIZE and what belongs to it, as torchrun sets them; without,
 * what mpirun (Open MPI, MPICH and those made of it) and srun set.
 *
 * @param launch_p  filled when *is_launched_p; otherwise it has the number of ranks alone: 1 where
 * a launcher says so, 0 where there is none
 * @param is_launched_p  whether this process is one rank of several; otherwise it is alone, and the
 *                       other variables mean nothing
 * @return ZR_OK; ZR_ERR_ARGUMENT when a variable is missing or out of range: the log names it,
 *         what it has to be, and who sets it
 *
 * Where torchrun keeps a store of its own at MASTER_PORT (TORCHELASTIC_USE_AGENT_STORE=True), the
 * port is the next one.
 */
ZR_NODISCARD zr_status_t zr_launch_from_environment(const zr_log_t *log, zr_launch_t *launch_p,
                                                    bool *is_launched_p);

ZR_END_C
