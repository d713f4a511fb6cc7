/*
 * Connections for data between ranks of several machines, where no launcher of MPI's has started
 * them: TCP, one between each two ranks of different machines, of each communicator that has data
 * to exchange. What goes over them is what would go through MPI: transfers, in the order in which
 * they are posted, sizes known on both sides. Each is announced by a header, which is checked.
 *
 * Ranks show each other where they listen, and a number that only they know (zr_card_t): who
 * connects has to have it, and both sides the secret of the run, where there is one
 * (secret_internal.h). Nothing protects what is sent then: the network is one whose members are
 * trusted.
 *
 * Threads: the rank's own. Data moves while it posts and waits; in between, the system's buffers
 * take some.
 */
#pragma once

#include "zero/comm/mpi/machines.h"
#include "zero/comm/mpi/mpi_module.h"

typedef struct zr_links zr_links_t;

/**
 * Listen for the others.
 *
 * @return the links, to be ended by zr_links_destroy; NULL: no memory, nothing logged
 */
zr_links_t *zr_links_create(zr_control_t *control, const zr_log_t *log, int timeout_ms,
                            zr_link_place_t *place_p);

/**
 * Connect to all ranks of other machines. All ranks do it at the same time.
 *
 * @param machines  who they are; borrowed for the call
 * @param places    [n_ranks] checked
 * @return ZR_OK; ZR_ERR_COMM: the control has ended, with the reason
 */
ZR_NODISCARD zr_status_t zr_links_connect(zr_links_t *links, zr_control_t *control,
                                          const zr_machines_t *machines,
                                          const zr_link_place_t *places);

/** Begin transfers; borrowed until they are done, or the links are cut. */
void zr_links_post(zr_links_t *links, zr_mpi_transfer_t *transfers, size_t n_transfers);

/**
 * Wait for transfers, as long as the communicator lives and bytes move within the time limit.
 *
 * @return ZR_OK; ZR_ERR_COMM: the control has ended, with the reason, and the links are cut
 */
ZR_NODISCARD zr_status_t zr_links_wait(zr_links_t *links, zr_control_t *control,
                                       zr_mpi_transfer_t *transfers, size_t n_transfers);

/** Nothing that was posted is touched any more. */
void zr_links_cut(zr_links_t *links);

void zr_links_destroy(zr_links_t **links);
