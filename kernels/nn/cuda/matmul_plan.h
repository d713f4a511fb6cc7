/*
 * Plans of matrix products: what cuBLASLt needs to know about a product, and the algorithm that
 * its heuristic chose, kept per shape in the device.
 *
 * cuBLASLt's matrices are column-major: what it sees of a row-major matrix is the transposed one.
 * So it is asked for c^T = op(b)^T op(a)^T, its first operand is b, and its rows are c's columns.
 *
 * A shape has one algorithm, on every rank and in every run: the heuristic is asked with the
 * shape alone, never with what addresses happen to be aligned to. It is let choose among
 * algorithms whose sums have one order: what it splits along k is kept in the workspace, in fp32,
 * and added in a step of its own.
 */
#pragma once

#include "kernels/nn/cuda/cublaslt.h"
#include "kernels/nn/cuda/cuda_nn.h"
#include "kernels/nn/cuda/matmul_cuda.h"

ZR_BEGIN_C

/* What a plan is for. Compared as bytes: made of zeros, each member then set. */
typedef struct zr_matmul_key {
    size_t m, n, k;
    size_t lda, ldc; /* elements from row to row */
    uint8_t dtype, c_dtype, bias_dtype;
    uint8_t transpose_a, transpose_b;
    uint8_t epilogue;
    uint8_t has_bias, has_pre_gelu;
    uint8_t is_aligned; /* all addresses to 16 bytes; otherwise to their element */
} zr_matmul_key_t;

typedef struct zr_matmul_plan {
    zr_matmul_key_t key;
    /* In the product; otherwise kernels behind it do. */
    bool adds_bias, applies_epilogue;
    const zr_nn_matmul_choice_t *choice; /* the device's; NULL: none was made for it */
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t a, b, c; /* of args a, b, c; addend has c's */
    cublasLtMatmulAlgo_t algorithm;
} zr_matmul_plan_t;

#define ZR_MATMUL_PLANS 128

/* A device's cuBLASLt. */
typedef struct zr_cuda_blas {
    zr_cublaslt_t lt;
    cublasLtHandle_t handle;
    zr_nn_matmul_choices_t choices; /* owned, with `texts`; name NULL: none were made */
    char *texts;
    zr_nn_matmul_counts_t counts;
    size_t n_plans;
    zr_matmul_plan_t *plans[ZR_MATMUL_PLANS]; /* the one used last is the first */
} zr_cuda_blas_t;

/** The device's, made by the first call. */
ZR_NODISCARD zr_status_t zr_cuda_blas(zr_device_t *device, zr_cuda_blas_t **blas_p);

zr_matmul_key_t zr_matmul_key(const zr_nn_matmul_t *args);

/** The plan of a product; made, and the one not used for longest forgotten, where it has none. */
ZR_NODISCARD zr_status_t zr_matmul_plan(zr_device_t *device, zr_cuda_blas_t *blas,
                                        const zr_nn_matmul_t *args,
                                        const zr_matmul_plan_t **plan_p);

/** What is proposed for a product and can be used, in the heuristic's order. At most
 * ZR_NN_MAX_PROPOSALS. */
ZR_NODISCARD zr_status_t zr_matmul_propose(zr_device_t *device, zr_cuda_blas_t *blas,
                                           const zr_nn_matmul_t *args, size_t limit_bytes,
                                           cublasLtMatmulHeuristicResult_t *results, int *n_p);
/** Forget all plans. */
void zr_matmul_plans_clear(zr_cuda_blas_t *blas);

/* ---- choices (matmul_choices.c) */

extern const zr_nn_chooser_t zr_cuda_nn_chooser;
/** The choice for a product; NULL: none. */
const zr_nn_matmul_choice_t *zr_matmul_choice_of(const zr_cuda_blas_t *blas,
                                                 const zr_matmul_key_t *key);
/** The attributes that tell an algorithm from others. */
ZR_NODISCARD cublasStatus_t zr_matmul_algorithm_text(const zr_cublaslt_t *lt,
                                                     const cublasLtMatmulAlgo_t *algorithm,
                                                     zr_nn_algorithm_text_t *text_p);
/** A product was queued: count it, and say once that choices lack one. */
void zr_matmul_choices_count(zr_device_t *device, zr_cuda_blas_t *blas,
                             const zr_matmul_plan_t *plan);
void zr_matmul_choices_clear(zr_cuda_blas_t *blas);

/* ---- descriptions */

/** Describe a product to cuBLASLt, without choosing an algorithm. zr_matmul_plan_free. */
ZR_NODISCARD cublasStatus_t zr_matmul_describe(const zr_cublaslt_t *lt, zr_matmul_plan_t *plan);
void zr_matmul_plan_free(const zr_cublaslt_t *lt, zr_matmul_plan_t *plan);

/** What cuBLASLt may look at before it chooses. Destroy it with the library's own call. */
ZR_NODISCARD cublasStatus_t zr_matmul_preference(const zr_cublaslt_t *lt,
                                                 const zr_matmul_key_t *key, size_t workspace_bytes,
                                                 cublasLtMatmulPreference_t *preference_p);

/** Say where the bias, or its gradient, and the other input or output of the epilogue are. */
ZR_NODISCARD cublasStatus_t zr_matmul_set_pointers(const zr_cublaslt_t *lt,
                                                   const zr_matmul_plan_t *plan, const void *bias,
                                                   const void *pre_gelu);

/** Log that a call for a product failed. ZR_ERR_DEVICE, ZR_ERR_MEMORY or ZR_ERR_UNSUPPORTED. */
zr_status_t zr_matmul_fail(zr_device_t *device, const zr_cuda_blas_t *blas,
                           const zr_nn_matmul_t *args, const char *call, cublasStatus_t status);

ZR_END_C
