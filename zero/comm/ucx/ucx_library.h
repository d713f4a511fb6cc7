/*
 * UCX's calls, found when ranks of several machines first have data for each other. UCX's types
 * stay within this folder.
 *
 *   ucx_library.c   the library's calls, and what it may not do to the process
 *   ucx_devices.c   which network devices lead to the others
 *   ucx_links.c     endpoints, transfers, and the thread that moves them
 *   ucx_none.c      instead, where the build has found no headers of UCX
 */
#pragma once

#include <ucp/api/ucp.h>

#include "zero/comm/ucx/ucx_links.h"

/* Programs are not linked with UCX: it costs its start, and is not needed on one machine. */
#define ZR_UCX_CALLS(CALL)                                                                         \
    CALL(ucp_config_read)                                                                          \
    CALL(ucp_config_modify)                                                                        \
    CALL(ucp_config_release)                                                                       \
    CALL(ucp_init_version)                                                                         \
    CALL(ucp_cleanup)                                                                              \
    CALL(ucp_worker_create)                                                                        \
    CALL(ucp_worker_destroy)                                                                       \
    CALL(ucp_worker_get_address)                                                                   \
    CALL(ucp_worker_release_address)                                                               \
    CALL(ucp_worker_get_efd)                                                                       \
    CALL(ucp_worker_arm)                                                                           \
    CALL(ucp_worker_signal)                                                                        \
    CALL(ucp_worker_progress)                                                                      \
    CALL(ucp_ep_create)                                                                            \
    CALL(ucp_ep_close_nbx)                                                                         \
    CALL(ucp_tag_send_nbx)                                                                         \
    CALL(ucp_tag_recv_nbx)                                                                         \
    CALL(ucp_request_cancel)                                                                       \
    CALL(ucp_request_check_status)                                                                 \
    CALL(ucp_request_free)

typedef struct zr_ucx_library {
#define ZR_UCX_MEMBER(name) __typeof__(name) *name##_p;
    ZR_UCX_CALLS(ZR_UCX_MEMBER)
#undef ZR_UCX_MEMBER
    __typeof__(ucs_status_string) *ucs_status_string_p;
} zr_ucx_library_t;

/** Find them all. False, and why in error[ZR_UCX_ERROR_BYTES], where one is missing. */
bool zr_ucx_library_open(zr_ucx_library_t *library_p, char *error);

/**
 * UCX's list of the devices to use: the network interface that has an address, and all ports of
 * RDMA devices. An interface that does not lead to the others would be tried as any other one.
 *
 * @param address  of this machine
 * @return false: no interface has it, or the list does not fit; then there is no list
 */
bool zr_ucx_list_devices(const char *address, char *list, size_t list_bytes);
