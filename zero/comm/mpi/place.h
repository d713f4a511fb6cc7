/*
 * Where rank 0 listens, which ranks that MPI's launcher has started learn through MPI, and the way
 * there.
 */
#ifndef ZR_ZERO_COMM_MPI_PLACE_H
#define ZR_ZERO_COMM_MPI_PLACE_H

#include "zero/comm/launch.h"

enum { ZR_MPI_PLACE_ADDRESSES = 8, ZR_MPI_ADDRESS_BYTES = 64, ZR_MPI_NETWORK_BYTES = 128 };

/** Sent as it is. */
typedef struct zr_mpi_place {
    int32_t port;                       /* 0: it cannot be reached */
    int32_t n_addresses;                /* at least one, where there is a port */
    char network[ZR_MPI_NETWORK_BYTES]; /* of its machine; "" where that is not known */
    char addresses[ZR_MPI_PLACE_ADDRESSES][ZR_MPI_ADDRESS_BYTES];
} zr_mpi_place_t;

/**
 * Rank 0: listen at a port that is free, or at MASTER_PORT where that is set.
 *
 * @param place       zeros; what the others are to be told, also on failure
 * @param listener_p  close it, if it is not -1, also on failure
 * @return ZR_OK; ZR_ERR_COMM, logged
 */
ZR_NODISCARD zr_status_t zr_mpi_place_listen(const zr_log_t *log, zr_mpi_place_t *place,
                                             int *listener_p);

/**
 * Another rank: try the addresses in turn, until one answers.
 *
 * @param place   with a port
 * @param launch  its host becomes the address that was tried last
 * @return ZR_OK; ZR_ERR_COMM, logged
 */
ZR_NODISCARD zr_status_t zr_mpi_place_connect(const zr_log_t *log, const zr_mpi_place_t *place,
                                              int timeout_ms, zr_launch_t *launch, int *socket_p);

#endif
