/*
 * How a process that is one rank of several finds the others: from environment variables set by
 * torchrun, mpirun or srun.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kernels/base/log.h"

ZR_BEGIN_C

/** Size of a numeric address as text. */
#define ZR_ADDRESS_BYTES 64
#define ZR_SECRET_BYTES 32
/** Environment variable for the secret. */
#define ZR_SECRET_VARIABLE "ZR_COMM_SECRET"

/** A secret shared by the ranks of a run: connections without it are refused. It also signs
 * checkpoints. */
typedef struct zr_secret {
    bool is_given;                      /* false: every connection is accepted */
    unsigned char key[ZR_SECRET_BYTES]; /* derived from the secret */
} zr_secret_t;

typedef struct zr_launch {
    char host[256];    /* of rank 0: MASTER_ADDR */
    int port;          /* at which rank 0 listens: MASTER_PORT; 1 to 65535 */
    int rank;          /* RANK */
    int n_ranks;       /* WORLD_SIZE */
    int local_rank;    /* LOCAL_RANK: index among the ranks of its machine, and index of its GPU */
    int n_local_ranks; /* LOCAL_WORLD_SIZE: ranks of its machine; 0: unknown */
    int start_timeout_ms; /* how long to wait until all ranks have joined; 0: timeout_ms of
                             zr_comm_options_t */
    zr_secret_t secret;
    char bind[ZR_ADDRESS_BYTES]; /* numeric address of this machine to listen at, "0.0.0.0" or "::"
                                    for all; "": the one that routes to `host` */
    bool by_mpi; /* MPI's launcher started it: MPI tells where rank 0 is, and host and port are
                    ignored */
} zr_launch_t;

/**
 * Read the launch from the environment: WORLD_SIZE and related variables as torchrun sets them, or
 * else those of mpirun (Open MPI, MPICH and derivatives) or srun.
 *
 * @param launch_p  filled if *is_launched_p; otherwise only the secret and n_ranks are set: 1 if a
 *                  launcher says so, 0 without a launcher
 * @param is_launched_p  whether this process is one rank of several
 * @return ZR_OK; ZR_ERR_ARGUMENT when a variable is missing or out of range: the log names it, the
 *         allowed values, and who sets it
 *
 * If torchrun uses MASTER_PORT itself (TORCHELASTIC_USE_AGENT_STORE=True), the next port is used. A
 * secret in ZR_COMM_SECRET is removed from the environment; the process keeps it for further calls.
 */
ZR_NODISCARD zr_status_t zr_launch_from_environment(const zr_log_t *log, zr_launch_t *launch_p,
                                                    bool *is_launched_p);

/**
 * Read a secret from a file: 16 to 4096 bytes, without the trailing newline.
 *
 * @param path  of a file that only its owner and group can read; messages begin with the path
 * @return ZR_OK; ZR_ERR_ARGUMENT if others can read it or it is too short; otherwise as
 *         zr_text_file_read; logged
 */
ZR_NODISCARD zr_status_t zr_secret_read(const zr_log_t *log, const char *path,
                                        zr_secret_t *secret_p);

ZR_END_C
