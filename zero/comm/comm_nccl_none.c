/*
 * The communicator `nccl` where it is not built. A file of its own: a build with NCCL, and a test
 * with its emulation, have these functions elsewhere.
 */
#ifndef ZR_HAVE_NCCL

#include "zero/comm/comm.h"

bool zr_comm_has_nccl(void) {
    return false;
}

static zr_status_t refuse(const zr_comm_options_t *options) {
    return zr_fail(options != NULL ? &options->log : NULL, ZR_ERR_UNSUPPORTED,
                   "communicator \"nccl\" is not part of this build: it was built without NCCL or "
                   "without CUDA; use ranks that are threads, or build with both");
}

zr_status_t zr_comm_create_nccl_threads(int n_ranks, const zr_comm_options_t *options,
                                        zr_comm_t **comms) {
    (void)n_ranks;
    (void)comms;
    return refuse(options);
}

zr_status_t zr_comm_create_nccl(const zr_launch_t *launch, const zr_comm_options_t *options,
                                zr_comm_t **comm_p) {
    (void)launch;
    (void)comm_p;
    return refuse(options);
}

#endif
