/*
 * How a process that is one rank of several finds the others: what torchrun and its like, mpirun or
 * srun tell it in the environment.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kernels/base/log.h"

ZR_BEGIN_C

/** Of an address, as a number in words. */
#define ZR_ADDRESS_BYTES 64
#define ZR_SECRET_BYTES 32
/** The environment's variable with a secret. */
#define ZR_SECRET_VARIABLE "ZR_COMM_SECRET"

/** What only the ranks of a run know: who does not is not let in. It also signs checkpoints. */
typedef struct zr_secret {
    bool is_given;                      /* false: whoever reaches a port is let in */
    unsigned char key[ZR_SECRET_BYTES]; /* made of it */
} zr_secret_t;

typedef struct zr_launch {
    char host[256];       /* of rank 0: MASTER_ADDR */
    int port;             /* at which rank 0 listens: MASTER_PORT; 1 to 65535 */
    int rank;             /* RANK */
    int n_ranks;          /* WORLD_SIZE */
    int local_rank;       /* LOCAL_RANK: which of its machine's ranks, and so which GPU */
    int n_local_ranks;    /* LOCAL_WORLD_SIZE: ranks of its machine; 0: nobody says */
    int start_timeout_ms; /* how long ranks wait for each other until all have come; 0: as long as
                             in a call (timeout_ms of zr_comm_options_t) */
    zr_secret_t secret;
    char bind[ZR_ADDRESS_BYTES]; /* a number of this machine at which this process listens,
                      "0.0.0.0" or "::" for all of them; "": that which leads to the host */
    bool by_mpi; /* MPI's launcher has started it: MPI tells where rank 0 is, and host and port
                    mean nothing */
} zr_launch_t;

/**
 * What the environment says: WORLD_SIZE and what belongs to it, as torchrun sets them; without,
 * what mpirun (Open MPI, MPICH and those made of it) and srun set.
 *
 * @param launch_p  filled when *is_launched_p; otherwise it has the secret and the number of ranks
 * alone: 1 where a launcher says so, 0 without a launcher
 * @param is_launched_p  whether this process is one rank of several; otherwise it is alone, and the
 *                       other variables mean nothing
 * @return ZR_OK; ZR_ERR_ARGUMENT when a variable is missing or out of range: the log names it,
 *         what it has to be, and who sets it
 *
 * Where torchrun keeps a store of its own at MASTER_PORT (TORCHELASTIC_USE_AGENT_STORE=True), the
 * port is the next one. A secret in ZR_COMM_SECRET is taken, and is not in the environment
 * afterwards; the process keeps it for further calls.
 */
ZR_NODISCARD zr_status_t zr_launch_from_environment(const zr_log_t *log, zr_launch_t *launch_p,
                                                    bool *is_launched_p);

/**
 * Read a secret: a file's bytes, 16 to 4096, but for the end of its line.
 *
 * @param path  of a file that others than its owner's group cannot read; messages begin with it
 * @return ZR_OK; ZR_ERR_ARGUMENT when others can read it, or it is too short; otherwise as
 *         zr_text_file_read; logged
 */
ZR_NODISCARD zr_status_t zr_secret_read(const zr_log_t *log, const char *path,
                                        zr_secret_t *secret_p);

ZR_END_C
