/*
 * How a process finds the others, and its way to MPI: the module (mpi_module.h), found and loaded
 * when a run was started by MPI's launcher, and shared by a communicator and the groups split from
 * it. Where ranks were started otherwise, there is none. For communicators of processes, whatever
 * their data goes by.
 *
 * Threads: a site belongs to the thread of its rank.
 */
#pragma once

#include "zero/comm/control_internal.h"
#include "zero/comm/mpi/mpi_module.h"
#include "zero/comm/peer_internal.h"

typedef struct zr_mpi_site {
    const zr_mpi_module_t *module;
    zr_log_t log;
    int n_users;  /* communicators; the last one closes it */
    bool is_dead; /* others may not come to MPI's end */
    int timeout_ms;
} zr_mpi_site_t;

/**
 * Find the other ranks: through MPI where its launcher has started them, which begins it and learns
 * where rank 0 listens; else where the launch says. A rank that is alone is fine.
 *
 * @param log     of the rank
 * @param site_p  NULL where MPI's launcher has not started them
 * @return ZR_OK; ZR_ERR_UNSUPPORTED when there is no module for this MPI; ZR_ERR_COMM;
 * ZR_ERR_ARGUMENT; ZR_ERR_MEMORY: logged
 */
ZR_NODISCARD zr_status_t zr_mpi_site_find_ranks(const zr_launch_t *launch, const zr_log_t *log,
                                                int timeout_ms, zr_mpi_site_t **site_p,
                                                zr_control_t **control_p);

/** One communicator more, or less. is_dead: it has failed, and is no group. NULL is fine. */
void zr_mpi_site_share(zr_mpi_site_t *site);
void zr_mpi_site_leave(zr_mpi_site_t *site, bool is_dead);

/** End the control: the first of these transfers that is not done, and there is one, takes too
 * long. */
void zr_mpi_kill_for_lateness(zr_control_t *control, const zr_mpi_transfer_t *transfers,
                              int timeout_ms, const char *how);

/**
 * Wait for transfers, as long as the communicator lives and each of them makes its way within the
 * time limit. What is left of them otherwise is given up, with all of MPI in this process.
 *
 * @return ZR_OK; ZR_ERR_COMM: the control has ended, with the reason
 */
ZR_NODISCARD zr_status_t zr_mpi_site_wait(zr_mpi_site_t *site, zr_control_t *control,
                                          zr_mpi_transfer_t *transfers, size_t n_transfers);
