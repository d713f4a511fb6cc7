/*
 * cuDNN's calls, found when --attention cudnn is first asked for: like cuBLASLt's (cublaslt.h), so
 * that programs start without cuDNN.
 */
#pragma once

#include <cudnn_graph.h>

#include "kernels/base/log.h"
#include "kernels/base/status.h"

ZR_BEGIN_C

#define ZR_CUDNN_CALLS(CALL)                                                                       \
    CALL(cudnnGetVersion)                                                                          \
    CALL(cudnnGetErrorString)                                                                      \
    CALL(cudnnGetLastErrorString)                                                                  \
    CALL(cudnnCreate)                                                                              \
    CALL(cudnnDestroy)                                                                             \
    CALL(cudnnSetStream)                                                                           \
    CALL(cudnnBackendCreateDescriptor)                                                             \
    CALL(cudnnBackendDestroyDescriptor)                                                            \
    CALL(cudnnBackendSetAttribute)                                                                 \
    CALL(cudnnBackendGetAttribute)                                                                 \
    CALL(cudnnBackendFinalize)                                                                     \
    CALL(cudnnBackendExecute)

typedef struct zr_cudnn {
    void *library;
#define ZR_CUDNN_MEMBER(name) __typeof__(name) *name##_p;
    ZR_CUDNN_CALLS(ZR_CUDNN_MEMBER)
#undef ZR_CUDNN_MEMBER
} zr_cudnn_t;

/**
 * Find them all.
 *
 * @return ZR_OK; ZR_ERR_UNSUPPORTED: the log names the library or the call that is missing
 *
 * Ownership: zr_cudnn_forget. Tests have another file in place of cudnn_find.c.
 */
ZR_NODISCARD zr_status_t zr_cudnn_find(const zr_log_t *log, zr_cudnn_t *dnn_p);
void zr_cudnn_forget(zr_cudnn_t *dnn);

ZR_END_C
