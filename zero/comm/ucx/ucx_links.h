/*
 * Data between ranks of different machines: UCX moves it by the best way that both have
 * (InfiniBand, RoCE, TCP). A communicator that has ranks on several machines has endpoints of its
 * own to those of other machines; ranks show each other UCX's addresses over the control
 * connection (control_internal.h), so that it does not matter who has started them.
 *
 * UCX tells of a lost endpoint; that a process is dead or stopped, or its machine is lost, is told
 * sooner by the control connection, and by names. A message carries a number that only ranks of the
 * communicator know (zr_card_t): what comes without it is never received. As for wire_internal.h,
 * the network is one whose members are trusted.
 *
 * A thread makes every call of UCX while it is connected, so that data moves on while the rank
 * computes or waits for others, and no rank waits for what its neighbour's UCX has yet to answer.
 *
 * Threads: the rank's own.
 */
#ifndef ZR_ZERO_COMM_UCX_LINKS_H
#define ZR_ZERO_COMM_UCX_LINKS_H

#include "zero/comm/mpi/machines.h"
#include "zero/comm/mpi/mpi_module.h"

enum { ZR_UCX_ERROR_BYTES = 256 };

typedef struct zr_ucx_links zr_ucx_links_t;

/**
 * Connect to all ranks of other machines. All ranks do it at the same time.
 *
 * @param call      under way, in which addresses are exchanged
 * @param machines  who is where; borrowed for the call
 * @param address   of this machine, by which others reach it; NULL: not known
 * @param links_p   to be ended by zr_ucx_links_destroy
 * @return ZR_OK; ZR_ERR_COMM: the control has ended, with the reason
 */
ZR_NODISCARD zr_status_t zr_ucx_links_create(zr_comm_t *comm, const zr_comm_call_t *call,
                                             const zr_machines_t *machines, const char *address,
                                             zr_ucx_links_t **links_p);

/**
 * Begin transfers, and no others before these are waited for. Those of one peer and direction are
 * made in order.
 *
 * @param transfers  [n_transfers] of at least 1 byte each; borrowed until then, or until the links
 * are cut
 */
void zr_ucx_links_post(zr_ucx_links_t *links, zr_mpi_transfer_t *transfers, size_t n_transfers);

/**
 * Wait for them, as long as the communicator lives and bytes move within the time limit.
 *
 * @return ZR_OK; ZR_ERR_COMM: the control has ended, with the reason, and the links are cut
 */
ZR_NODISCARD zr_status_t zr_ucx_links_wait(zr_ucx_links_t *links);

/** Nothing that was posted is touched any more, and nothing more can be. */
void zr_ucx_links_cut(zr_ucx_links_t *links);

/** NULL in *links is fine. */
void zr_ucx_links_destroy(zr_ucx_links_t **links);

#endif
