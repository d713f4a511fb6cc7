/* Plans of matrix products: see matmul_plan.h. */
#include "kernels/nn/cuda/matmul_plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Return from the calling function when a call of cuBLASLt fails. */
#define TRY(call)                                                                                  \
    do {                                                                                           \
        cublasStatus_t tried = (call);                                                             \
        if (tried != CUBLAS_STATUS_SUCCESS)                                                        \
            return tried;                                                                          \
    } while (0)

/* ---- failures ------------------------------------------------------------------------------ */

static const char *epilogue_name(const zr_nn_matmul_t *args) {
    switch (args->epilogue) {
    case ZR_NN_EPILOGUE_GELU:
        return ", gelu";
    case ZR_NN_EPILOGUE_GELU_BACKWARD:
        return ", gelu backward";
    default:
        return "";
    }
}

zr_status_t zr_matmul_fail(zr_device_t *device, const zr_cuda_blas_t *blas,
                           const zr_nn_matmul_t *args, const char *call, cublasStatus_t status) {
    char product[192];
    snprintf(product, sizeof(product),
             "matmul [%zu, %zu] = [%zu, %zu]%s [%zu, %zu]%s (%s to %s%s%s)", args->m, args->n,
             args->m, args->k, args->transpose_a ? " turned" : "", args->k, args->n,
             args->transpose_b ? " turned" : "", zr_dtype_name(args->a_dtype),
             zr_dtype_name(args->c_dtype), args->bias != NULL ? ", bias" : "", epilogue_name(args));
    const char *name = blas->lt.cublasLtGetStatusName_p(status);
    const char *text = blas->lt.cublasLtGetStatusString_p(status);
    cudaError_t error = cudaGetLastError(); /* of work that was queued earlier, perhaps */
    if (error != cudaSuccess)
        return zr_cuda_fail(device, error, "%s: %s: %s", product, call, name);
    return zr_fail(&device->log,
                   status == CUBLAS_STATUS_ALLOC_FAILED    ? ZR_ERR_MEMORY
                   : status == CUBLAS_STATUS_NOT_SUPPORTED ? ZR_ERR_UNSUPPORTED
                                                           : ZR_ERR_DEVICE,
                   "cuda:%d: %s: %s: %s (%s)", ((zr_cuda_device_t *)device)->index, product, call,
                   text, name);
}

/* ---- the device's cuBLASLt ------------------------------------------------------------------- */

void zr_matmul_plans_clear(zr_cuda_blas_t *blas) {
    for (size_t i = 0; i < blas->n_plans; i++)
        zr_matmul_plan_free(&blas->lt, blas->plans[i]);
    blas->n_plans = 0;
}

/* Failures have nobody to be handed to; nothing of the device is used after this. */
static void close_blas(zr_cuda_device_t *cuda) {
    zr_cuda_blas_t *blas = cuda->blas;
    zr_matmul_plans_clear(blas);
    zr_matmul_choices_clear(blas);
    if (zr_cuda_enter(&cuda->base) == ZR_OK)
        (void)blas->lt.cublasLtDestroy_p(blas->handle);
    zr_cublaslt_forget(&blas->lt);
    free(blas);
    cuda->blas = NULL;
}

zr_status_t zr_cuda_blas(zr_device_t *device, zr_cuda_blas_t **blas_p) {
    zr_cuda_device_t *cuda = (zr_cuda_device_t *)device;
    if (cuda->blas != NULL) {
        *blas_p = cuda->blas;
        return ZR_OK;
    }
    zr_cuda_blas_t *blas = calloc(1, sizeof(*blas));
    if (blas == NULL)
        return zr_fail(&device->log, ZR_ERR_MEMORY, "matmul: no memory (%zu bytes)", sizeof(*blas));
    zr_status_t status = zr_cublaslt_find(&device->log, &blas->lt);
    if (status != ZR_OK)
        goto err_free;
    cublasStatus_t created = blas->lt.cublasLtCreate_p(&blas->handle);
    if (created != CUBLAS_STATUS_SUCCESS) {
        status = zr_fail(&device->log, ZR_ERR_DEVICE, "cuda:%d: matmul: cublasLtCreate: %s (%s)",
                         cuda->index, blas->lt.cublasLtGetStatusString_p(created),
                         blas->lt.cublasLtGetStatusName_p(created));
        goto err_forget;
    }
    cuda->close_blas = close_blas;
    *blas_p = cuda->blas = blas;
    return ZR_OK;

err_forget:
    zr_cublaslt_forget(&blas->lt);
err_free:
    free(blas);
    return status;
}

/* ---- what a plan is for --------------------------------------------------------------------- */

static bool is_aligned(const void *pointer) {
    return (uintptr_t)pointer % 16 == 0;
}

zr_matmul_key_t zr_matmul_key(const zr_nn_matmul_t *args) {
    zr_matmul_key_t key;
    memset(&key, 0, sizeof(key));
    key.m = args->m;
    key.n = args->n;
    key.k = args->k;
    key.lda = zr_nn_matmul_lda(args);
    key.ldc = zr_nn_matmul_ldc(args);
    key.dtype = (uint8_t)args->a_dtype;
    key.c_dtype = (uint8_t)args->c_dtype;
    key.bias_dtype = (uint8_t)(args->bias != NULL ? args->bias_dtype : 0);
    key.transpose_a = args->transpose_a;
    key.transpose_b = args->transpose_b;
    key.epilogue = (uint8_t)args->epilogue;
    key.has_bias = args->bias != NULL;
    key.has_pre_gelu = args->pre_gelu != NULL;
    key.is_aligned = is_aligned(args->a) && is_aligned(args->b) && is_aligned(args->c) &&
                     is_aligned(args->addend) && is_aligned(args->bias) &&
                     is_aligned(args->pre_gelu);
    return key;
}

/* ---- descriptions --------------------------------------------------------------------------- */

static cudaDataType_t cuda_type(uint8_t dtype) {
    return dtype == ZR_DTYPE_F32 ? CUDA_R_32F : CUDA_R_16BF;
}

/* What every address of a product is aligned to. */
static uint32_t alignment_bytes(const zr_matmul_key_t *key, uint8_t dtype) {
    return key->is_aligned ? 16 : (uint32_t)zr_dtype_size((zr_dtype_t)dtype);
}

static cublasLtEpilogue_t epilogue_of(const zr_matmul_plan_t *plan) {
    const zr_matmul_key_t *key = &plan->key;
    bool bias = plan->adds_bias;
    if (plan->applies_epilogue && key->has_pre_gelu)
        return bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    if (plan->applies_epilogue)
        return bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
    return bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
}

typedef struct attribute {
    cublasLtMatmulDescAttributes_t name;
    const void *value;
    size_t size_bytes;
} attribute_t;

static cublasStatus_t set_all(const zr_cublaslt_t *lt, cublasLtMatmulDesc_t product,
                              const attribute_t *attributes, size_t n) {
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
    for (size_t i = 0; i < n && status == CUBLAS_STATUS_SUCCESS; i++)
        status = lt->cublasLtMatmulDescSetAttribute_p(
            product, attributes[i].name, attributes[i].value, attributes[i].size_bytes);
    return status;
}

cublasStatus_t zr_matmul_set_pointers(const zr_cublaslt_t *lt, const zr_matmul_plan_t *plan,
                                      const void *bias, const void *pre_gelu) {
    attribute_t attributes[2];
    size_t n = 0;
    if (plan->adds_bias)
        attributes[n++] = (attribute_t){CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof(bias)};
    if (plan->applies_epilogue && plan->key.has_pre_gelu)
        attributes[n++] =
            (attribute_t){CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &pre_gelu, sizeof(pre_gelu)};
    return set_all(lt, plan->product, attributes, n);
}

/* The product's own attributes. Its pointers are no addresses yet: they tell the heuristic what
 * the addresses will be aligned to. */
static cublasStatus_t describe_product(const zr_cublaslt_t *lt, zr_matmul_plan_t *plan) {
    const zr_matmul_key_t *key = &plan->key;
    int32_t turn_first = key->transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    int32_t turn_second = key->transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    uint32_t epilogue = epilogue_of(plan);
    int32_t bias_type = (int32_t)cuda_type(key->bias_dtype);
    int64_t pre_gelu_ld = (int64_t)key->ldc;
    attribute_t attributes[5] = {{CUBLASLT_MATMUL_DESC_TRANSA, &turn_first, sizeof(turn_first)},
                                 {CUBLASLT_MATMUL_DESC_TRANSB, &turn_second, sizeof(turn_second)},
                                 {CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof(epilogue)}};
    size_t n = 3;
    if (plan->adds_bias)
        attributes[n++] =
            (attribute_t){CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &bias_type, sizeof(bias_type)};
    if (plan->applies_epilogue && key->has_pre_gelu)
        attributes[n++] =
            (attribute_t){CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &pre_gelu_ld, sizeof(pre_gelu_ld)};
    cublasStatus_t status = set_all(lt, plan->product, attributes, n);
    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    uintptr_t page = 4096;
    return zr_matmul_set_pointers(lt, plan,
                                  (const void *)(page + alignment_bytes(key, key->bias_dtype)),
                                  (const void *)(page + alignment_bytes(key, key->c_dtype)));
}

cublasStatus_t zr_matmul_describe(const zr_cublaslt_t *lt, zr_matmul_plan_t *plan) {
    const zr_matmul_key_t *key = &plan->key;
    cudaDataType_t type = cuda_type(key->dtype), c_type = cuda_type(key->c_dtype);
    size_t ldb = key->transpose_b ? key->k : key->n;
    cublasStatus_t status =
        lt->cublasLtMatmulDescCreate_p(&plan->product, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = describe_product(lt, plan);
    /* Rows of the column-major matrix are what lies one behind the other. */
    if (status == CUBLAS_STATUS_SUCCESS)
        status =
            lt->cublasLtMatrixLayoutCreate_p(&plan->a, type, key->transpose_a ? key->m : key->k,
                                             key->transpose_a ? key->k : key->m, (int64_t)key->lda);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = lt->cublasLtMatrixLayoutCreate_p(&plan->b, type, ldb,
                                                  key->transpose_b ? key->n : key->k, (int64_t)ldb);
    if (status == CUBLAS_STATUS_SUCCESS)
        status =
            lt->cublasLtMatrixLayoutCreate_p(&plan->c, c_type, key->n, key->m, (int64_t)key->ldc);
    return status;
}

void zr_matmul_plan_free(const zr_cublaslt_t *lt, zr_matmul_plan_t *plan) {
    if (plan == NULL)
        return;
    if (plan->product != NULL)
        (void)lt->cublasLtMatmulDescDestroy_p(plan->product);
    if (plan->a != NULL)
        (void)lt->cublasLtMatrixLayoutDestroy_p(plan->a);
    if (plan->b != NULL)
        (void)lt->cublasLtMatrixLayoutDestroy_p(plan->b);
    if (plan->c != NULL)
        (void)lt->cublasLtMatrixLayoutDestroy_p(plan->c);
    free(plan);
}

cublasStatus_t zr_matmul_preference(const zr_cublaslt_t *lt, const zr_matmul_key_t *key,
                                    size_t workspace_bytes,
                                    cublasLtMatmulPreference_t *preference_p) {
    uint64_t workspace = workspace_bytes;
    uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    uint32_t alignment = alignment_bytes(key, key->dtype);
    uint32_t c_alignment = alignment_bytes(key, key->c_dtype);
    const struct {
        cublasLtMatmulPreferenceAttributes_t name;
        const void *value;
        size_t size_bytes;
    } attributes[] = {
        {CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof(workspace)},
        {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes, sizeof(schemes)},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &alignment, sizeof(alignment)},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &alignment, sizeof(alignment)},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &c_alignment, sizeof(c_alignment)},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &c_alignment, sizeof(c_alignment)},
    };
    cublasLtMatmulPreference_t preference = NULL;
    cublasStatus_t status = lt->cublasLtMatmulPreferenceCreate_p(&preference);
    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    for (size_t i = 0;
         i < sizeof(attributes) / sizeof(attributes[0]) && status == CUBLAS_STATUS_SUCCESS; i++)
        status = lt->cublasLtMatmulPreferenceSetAttribute_p(
            preference, attributes[i].name, attributes[i].value, attributes[i].size_bytes);
    if (status != CUBLAS_STATUS_SUCCESS) {
        (void)lt->cublasLtMatmulPreferenceDestroy_p(preference);
        return status;
    }
    *preference_p = preference;
    return CUBLAS_STATUS_SUCCESS;
}

/* ---- choosing ------------------------------------------------------------------------------- */

/* The proposals that can be used, in the heuristic's order: CUBLAS_STATUS_NOT_SUPPORTED without
 * any.
 */
static cublasStatus_t propose(const zr_cuda_blas_t *blas, const zr_matmul_plan_t *plan,
                              size_t workspace_bytes, cublasLtMatmulHeuristicResult_t *proposals,
                              int *n_p) {
    const zr_cublaslt_t *lt = &blas->lt;
    cublasLtMatmulPreference_t preference;
    int n = 0;
    *n_p = 0;
    cublasStatus_t status = zr_matmul_preference(lt, &plan->key, workspace_bytes, &preference);
    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    status = lt->cublasLtMatmulAlgoGetHeuristic_p(blas->handle, plan->product, plan->b, plan->a,
                                                  plan->c, plan->c, preference, ZR_NN_MAX_PROPOSALS,
                                                  proposals, &n);
    (void)lt->cublasLtMatmulPreferenceDestroy_p(preference);
    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    for (int i = 0; i < n; i++)
        if (proposals[i].state == CUBLAS_STATUS_SUCCESS &&
            proposals[i].workspaceSize <= workspace_bytes)
            proposals[(*n_p)++] = proposals[i];
    return *n_p > 0 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

/* The algorithm that was chosen, or the first that is proposed. *is_missing_p: what was chosen is
 * not proposed. */
static cublasStatus_t choose(const zr_device_t *device, const zr_cuda_blas_t *blas,
                             zr_matmul_plan_t *plan, bool *is_missing_p) {
    const zr_nn_matmul_choice_t *choice = plan->choice;
    bool is_named = choice != NULL && choice->algorithm != NULL;
    cublasLtMatmulHeuristicResult_t proposals[ZR_NN_MAX_PROPOSALS];
    int n = 0;
    TRY(propose(blas, plan,
                is_named ? blas->choices.limit_bytes : zr_cuda_matmul_usual_bytes(device),
                proposals, &n));
    for (int i = 0; i < n; i++) {
        zr_nn_algorithm_text_t own;
        if (is_named) {
            TRY(zr_matmul_algorithm_text(&blas->lt, &proposals[i].algo, &own));
            if (strcmp(own.text, choice->algorithm) != 0 ||
                proposals[i].workspaceSize > choice->workspace_bytes)
                continue;
        }
        plan->algorithm = proposals[i].algo;
        return CUBLAS_STATUS_SUCCESS;
    }
    *is_missing_p = true;
    return CUBLAS_STATUS_NOT_SUPPORTED;
}

/* What cuBLASLt has no epilogue for, whatever the heuristic says. */
static bool may_add_bias(const zr_matmul_key_t *key) {
    return key->has_bias && key->bias_dtype == key->c_dtype;
}

/* How exact its GELU is, is not documented. The hardware's tanh is right to 2^-11: a rounding of
 * bf16, far from one of fp32. Its gradient within a product takes more than twice the time of both
 * apart on an H200 (docs/internals/gpu.md). */
static bool may_apply_epilogue(const zr_matmul_key_t *key) {
    if (key->epilogue != ZR_NN_EPILOGUE_GELU || key->c_dtype != ZR_DTYPE_BF16 ||
        key->has_bias != may_add_bias(key))
        return false;
    return !key->has_pre_gelu || (key->ldc % 8 == 0 && key->is_aligned);
}

/* Its versions differ in which of the two they give for an epilogue that they do not have. A
 * product that is refused without one is an error, whichever it is. */
static bool has_no_algorithm(cublasStatus_t status) {
    return status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE;
}

/* One way to do it. *plan_p is NULL afterwards when cuBLASLt has no algorithm for it. */
static zr_status_t try_plan(zr_device_t *device, zr_cuda_blas_t *blas, const zr_nn_matmul_t *args,
                            const zr_matmul_plan_t *wanted, zr_matmul_plan_t **plan_p) {
    *plan_p = NULL;
    zr_matmul_plan_t *plan = malloc(sizeof(*plan));
    if (plan == NULL)
        return zr_fail(&device->log, ZR_ERR_MEMORY, "matmul: no memory (%zu bytes)", sizeof(*plan));
    *plan = *wanted;
    bool is_missing = false;
    const char *call = "describing it to cuBLASLt";
    cublasStatus_t status = zr_matmul_describe(&blas->lt, plan);
    if (status == CUBLAS_STATUS_SUCCESS) {
        call = "cublasLtMatmulAlgoGetHeuristic";
        status = choose(device, blas, plan, &is_missing);
        if (status == CUBLAS_STATUS_SUCCESS) {
            *plan_p = plan;
            return ZR_OK;
        }
    }
    zr_matmul_plan_free(&blas->lt, plan);
    bool is_last = !wanted->adds_bias && !wanted->applies_epilogue;
    bool is_named = wanted->choice != NULL && wanted->choice->algorithm != NULL;
    if (is_missing || (is_last && is_named && status == CUBLAS_STATUS_NOT_SUPPORTED))
        return zr_fail(&device->log, ZR_ERR_UNSUPPORTED,
                       "%s: cuBLASLt does not propose \"%s\" for the product %s; measure again: "
                       "zero-bench matmul --save-choices FILE",
                       blas->choices.name, wanted->choice->algorithm, wanted->choice->product);
    if (has_no_algorithm(status) && !is_last)
        return ZR_OK;
    return zr_matmul_fail(device, blas, args, call, status);
}

/* As much of it in the product as cuBLASLt does for the shape. */
static zr_status_t make_plan(zr_device_t *device, zr_cuda_blas_t *blas, const zr_nn_matmul_t *args,
                             const zr_matmul_key_t *key, zr_matmul_plan_t **plan_p) {
    zr_matmul_plan_t wanted = {
        .key = *key, .adds_bias = may_add_bias(key), .choice = zr_matmul_choice_of(blas, key)};
    wanted.applies_epilogue = may_apply_epilogue(key);
    for (;;) {
        ZR_TRY(try_plan(device, blas, args, &wanted, plan_p));
        if (*plan_p != NULL)
            return ZR_OK;
        if (wanted.applies_epilogue)
            wanted.applies_epilogue = false;
        else
            wanted.adds_bias = false;
    }
}

/* What the plan without a choice has in the product, has it with one. */
zr_status_t zr_matmul_propose(zr_device_t *device, zr_cuda_blas_t *blas, const zr_nn_matmul_t *args,
                              size_t limit_bytes, cublasLtMatmulHeuristicResult_t *results,
                              int *n_p) {
    const zr_matmul_plan_t *plan;
    ZR_TRY(zr_matmul_plan(device, blas, args, &plan));
    cublasStatus_t status = propose(blas, plan, limit_bytes, results, n_p);
    return status == CUBLAS_STATUS_SUCCESS
               ? ZR_OK
               : zr_matmul_fail(device, blas, args, "cublasLtMatmulAlgoGetHeuristic", status);
}

/* Put the i-th plan first. */
static void use(zr_cuda_blas_t *blas, size_t i, zr_matmul_plan_t *plan) {
    memmove(&blas->plans[1], &blas->plans[0], i * sizeof(blas->plans[0]));
    blas->plans[0] = plan;
}

zr_status_t zr_matmul_plan(zr_device_t *device, zr_cuda_blas_t *blas, const zr_nn_matmul_t *args,
                           const zr_matmul_plan_t **plan_p) {
    zr_matmul_key_t key = zr_matmul_key(args);
    for (size_t i = 0; i < blas->n_plans; i++) {
        if (memcmp(&blas->plans[i]->key, &key, sizeof(key)) == 0) {
            use(blas, i, blas->plans[i]);
            *plan_p = blas->plans[0];
            return ZR_OK;
        }
    }
    zr_matmul_plan_t *plan;
    ZR_TRY(make_plan(device, blas, args, &key, &plan));
    if (blas->n_plans == ZR_MATMUL_PLANS)
        zr_matmul_plan_free(&blas->lt, blas->plans[--blas->n_plans]);
    use(blas, blas->n_plans++, plan);
    *plan_p = plan;
    return ZR_OK;
}
