/*
 * NCCL's calls, found when a communicator is made. NCCL and CUDA types stay within this folder.
 *
 *   nccl_library.c   the library's calls
 *   nccl_link.c      one NCCL communicator: queueing, and the thread that watches over it
 *   comm_nccl.c      the communicator `nccl`: collectives, sums in rank order
 */
#pragma once

#include <nccl.h>

#include "kernels/base/log.h"

/*
 * A program that is linked with NCCL does not start without it, and takes in 200 MB where it needs
 * none of them. So the library is loaded when it is asked for, and stays.
 */
#define ZR_NCCL_CALLS(CALL)                                                                        \
    CALL(ncclGetVersion)                                                                           \
    CALL(ncclGetUniqueId)                                                                          \
    CALL(ncclGetErrorString)                                                                       \
    CALL(ncclGetLastError)                                                                         \
    CALL(ncclCommInitRankConfig)                                                                   \
    CALL(ncclCommGetAsyncError)                                                                    \
    CALL(ncclCommFinalize)                                                                         \
    CALL(ncclCommDestroy)                                                                          \
    CALL(ncclCommAbort)                                                                            \
    CALL(ncclGroupStart)                                                                           \
    CALL(ncclGroupEnd)                                                                             \
    CALL(ncclAllGather)                                                                            \
    CALL(ncclReduceScatter)                                                                        \
    CALL(ncclAllReduce)                                                                            \
    CALL(ncclBroadcast)                                                                            \
    CALL(ncclSend)                                                                                 \
    CALL(ncclRecv)

typedef struct zr_nccl_library {
#define ZR_NCCL_MEMBER(name) __typeof__(name) *name##_p;
    ZR_NCCL_CALLS(ZR_NCCL_MEMBER)
#undef ZR_NCCL_MEMBER
} zr_nccl_library_t;

/** Find them all. ZR_ERR_UNSUPPORTED says which library or call is missing, or too old. */
ZR_NODISCARD zr_status_t zr_nccl_library_open(const zr_log_t *log, zr_nccl_library_t *library_p);
