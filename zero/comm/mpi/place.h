/*
 * Where rank 0 listens, which ranks that MPI's launcher has started learn through MPI, and the way
 * there.
 */
#ifndef ZR_ZERO_COMM_MPI_PLACE_H
#define ZR_ZERO_COMM_MPI_PLACE_H

#include "zero/comm/launch.h"
#include "zero/comm/peer.h"

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
 * @param place   checked
 * @param launch  its host becomes the address that was tried last
 * @return ZR_OK; ZR_ERR_COMM, logged
 */
ZR_NODISCARD zr_status_t zr_mpi_place_connect(const zr_log_t *log, const zr_mpi_place_t *place,
                                              int timeout_ms, zr_launch_t *launch, int *socket_p);

#endif
