/*
 * cuBLASLt's calls, found when a device multiplies matrices for the first time: a program that is
 * linked with the library does not start where there is none, and takes longer to start where
 * there is.
 */
#pragma once

#include <cublasLt.h>

#include "kernels/base/log.h"
#include "kernels/base/status.h"

ZR_BEGIN_C

#define ZR_CUBLASLT_CALLS(CALL)                                                                    \
    CALL(cublasLtCreate)                                                                           \
    CALL(cublasLtDestroy)                                                                          \
    CALL(cublasLtGetStatusName)                                                                    \
    CALL(cublasLtGetStatusString)                                                                  \
    CALL(cublasLtMatmulDescCreate)                                                                 \
    CALL(cublasLtMatmulDescDestroy)                                                                \
    CALL(cublasLtMatmulDescSetAttribute)                                                           \
    CALL(cublasLtMatrixLayoutCreate)                                                               \
    CALL(cublasLtMatrixLayoutDestroy)                                                              \
    CALL(cublasLtMatmulPreferenceCreate)                                                           \
    CALL(cublasLtMatmulPreferenceDestroy)                                                          \
    CALL(cublasLtMatmulPreferenceSetAttribute)                                                     \
    CALL(cublasLtMatmulAlgoGetHeuristic)                                                           \
    CALL(cublasLtMatmulAlgoConfigGetAttribute)                                                     \
    CALL(cublasLtGetVersion)                                                                       \
    CALL(cublasLtMatmul)

typedef struct zr_cublaslt {
    void *library;
#define ZR_CUBLASLT_MEMBER(name) __typeof__(name) *name##_p;
    ZR_CUBLASLT_CALLS(ZR_CUBLASLT_MEMBER)
#undef ZR_CUBLASLT_MEMBER
} zr_cublaslt_t;

/**
 * Find them all.
 *
 * @return ZR_OK; ZR_ERR_UNSUPPORTED: the log names the library or the call that is missing
 *
 * Ownership: zr_cublaslt_forget. Tests have another file in place of cublaslt_find.c.
 */
ZR_NODISCARD zr_status_t zr_cublaslt_find(const zr_log_t *log, zr_cublaslt_t *lt_p);
void zr_cublaslt_forget(zr_cublaslt_t *lt);

ZR_END_C
