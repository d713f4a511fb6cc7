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
    bool by_mpi;     /* MPI's launcher started it: MPI tells where rank 0 is, and host and port are
                        ignored */
    bool has_socket; /* ranks meet at a socket of zr_launch_listen or zr_launch_connect, and host
                        and port are for messages */
    int socket;
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

/* ---- ranks that share something already, such as another library's communication ------------ */

enum { ZR_PLACE_ADDRESSES = 8, ZR_PLACE_NETWORK_BYTES = 128 };

/** The place where rank 0 listens, for the other ranks: bytes that it sends them by any means. */
typedef struct zr_place {
    int32_t port;                         /* 0: rank 0 cannot be reached */
    int32_t n_addresses;                  /* at least one, where there is a port */
    char network[ZR_PLACE_NETWORK_BYTES]; /* of its machine; "": unknown */
    char addresses[ZR_PLACE_ADDRESSES][ZR_ADDRESS_BYTES];
} zr_place_t;

/**
 * Rank 0: listen for the others.
 *
 * @param launch   host: the name or address by which others reach this machine. Where it leads
 *                 to none of this machine's addresses, or is "", each of them is told. port: 0
 *                 takes a free one. Its host, port and socket are set
 * @param place_p  filled; its port stays 0 on failure
 * @return ZR_OK; ZR_ERR_COMM, logged
 *
 * Ownership: the socket is the caller's, also behind zr_comm_create_processes and its like, which
 * use a copy: close it with zr_launch_drop once they have returned.
 */
ZR_NODISCARD zr_status_t zr_launch_listen(const zr_log_t *log, zr_launch_t *launch,
                                          zr_place_t *place_p);

/**
 * Another rank: connect to rank 0, at the first of its addresses that answers.
 *
 * @param place   as rank 0 has sent it; it is checked
 * @param launch  its host, port and socket are set; the socket is owned as above
 * @return ZR_OK; ZR_ERR_COMM, logged
 */
ZR_NODISCARD zr_status_t zr_launch_connect(const zr_log_t *log, const zr_place_t *place,
                                           int timeout_ms, zr_launch_t *launch);

/** Close the socket, if there is one. */
void zr_launch_drop(zr_launch_t *launch);

/**
 * Read a secret from a file: 16 to 4096 bytes, without the trailing newline.
 *
 * @param path  of a file that only its owner and group can read; messages begin with the path
 * @return ZR_OK; ZR_ERR_ARGUMENT if others can read it or it is too short; otherwise as
 *         zr_text_file_read; logged
 */
ZR_NODISCARD zr_status_t zr_secret_read(const zr_log_t *log, const char *path,
                                        zr_secret_t *secret_p);

/** Take the secret that the environment has, or had when it was first asked: it is removed there.
 * Errors as zr_secret_read. */
ZR_NODISCARD zr_status_t zr_secret_take_from_environment(const zr_log_t *log,
                                                         zr_secret_t *secret_p);

ZR_END_C
