/* Links between machines where the build has found no headers of UCX: there are none. */
#ifndef ZR_HAVE_UCX

#include "zero/comm/ucx/ucx_links.h"

zr_status_t zr_ucx_links_create(zr_comm_t *comm, const zr_comm_call_t *call,
                                const zr_machines_t *machines, const char *address,
                                zr_ucx_links_t **links_p) {
    (void)call;
    (void)machines;
    (void)address;
    (void)links_p;
    zr_control_kill(comm->control,
                    "cannot reach ranks of other machines: this build is without UCX; "
                    "install its headers (libucx-dev) and build again");
    return ZR_ERR_COMM;
}

void zr_ucx_links_post(zr_ucx_links_t *links, zr_mpi_transfer_t *transfers, size_t n_transfers) {
    (void)links;
    (void)transfers;
    (void)n_transfers;
}

zr_status_t zr_ucx_links_wait(zr_ucx_links_t *links) {
    (void)links;
    return ZR_ERR_COMM;
}

void zr_ucx_links_cut(zr_ucx_links_t *links) {
    (void)links;
}

void zr_ucx_links_destroy(zr_ucx_links_t **links) {
    (void)links;
}

#endif
