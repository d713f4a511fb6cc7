/*
 * Chosen algorithms of matrix products. A choice names its product and its algorithm by texts,
 * which are compared with those of the products and proposals that there are: nothing that was read
 * from a file reaches cuBLASLt.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/nn/cuda/matmul_plan.h"

/* ---- texts ------------------------------------------------------------------------------------
 */

static zr_nn_algorithm_text_t product_text(const zr_matmul_key_t *key) {
    static const char *const epilogues[] = {"", ", gelu", ", gelu backward"};
    zr_nn_algorithm_text_t text;
    snprintf(text.text, sizeof(text.text),
             "%zu x %zu x %zu%s%s, rows of %zu and %zu, %s to %s%s%s%s%s%s", key->m, key->n, key->k,
             key->transpose_a ? ", a transposed" : "", key->transpose_b ? ", b transposed" : "",
             key->lda, key->ldc, zr_dtype_name((zr_dtype_t)key->dtype),
             zr_dtype_name((zr_dtype_t)key->c_dtype), key->has_bias ? ", bias " : "",
             key->has_bias ? zr_dtype_name((zr_dtype_t)key->bias_dtype) : "",
             epilogues[key->epilogue], key->has_pre_gelu ? ", pre_gelu" : "",
             key->is_aligned ? "" : ", not aligned");
    return text;
}

cublasStatus_t zr_matmul_algorithm_text(const zr_cublaslt_t *lt,
                                        const cublasLtMatmulAlgo_t *algorithm,
                                        zr_nn_algorithm_text_t *text_p) {
    static const struct {
        const char *name;
        cublasLtMatmulAlgoConfigAttributes_t attribute;
        size_t size_bytes;
    } parts[] = {{"id", CUBLASLT_ALGO_CONFIG_ID, 4},
                 {" tile", CUBLASLT_ALGO_CONFIG_TILE_ID, 4},
                 {" stages", CUBLASLT_ALGO_CONFIG_STAGES_ID, 4},
                 {" splits", CUBLASLT_ALGO_CONFIG_SPLITK_NUM, 4},
                 {" reduction", CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, 4},
                 {" swizzling", CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, 4},
                 {" option", CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, 4},
                 {" inner", CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, 2},
                 {" cluster", CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, 2}};
    size_t used = 0, written = 0;
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        uint32_t value = 0;
        uint16_t narrow = 0;
        bool is_narrow = parts[i].size_bytes == sizeof(narrow);
        cublasStatus_t status = lt->cublasLtMatmulAlgoConfigGetAttribute_p(
            algorithm, parts[i].attribute, is_narrow ? (void *)&narrow : &value,
            parts[i].size_bytes, &written);
        if (status != CUBLAS_STATUS_SUCCESS)
            return status;
        used += (size_t)snprintf(text_p->text + used, sizeof(text_p->text) - used, "%s %u",
                                 parts[i].name, is_narrow ? narrow : value);
    }
    return CUBLAS_STATUS_SUCCESS;
}

/* ---- the device's choices ---------------------------------------------------------------------
 */

const zr_nn_matmul_choice_t *zr_matmul_choice_of(const zr_cuda_blas_t *blas,
                                                 const zr_matmul_key_t *key) {
    zr_nn_algorithm_text_t own = product_text(key);
    for (size_t i = 0; i < blas->choices.n_choices; i++)
        if (strcmp(blas->choices.choices[i].product, own.text) == 0)
            return &blas->choices.choices[i];
    return NULL;
}

void zr_matmul_choices_count(zr_device_t *device, zr_cuda_blas_t *blas,
                             const zr_matmul_plan_t *plan) {
    if (blas->choices.name == NULL)
        return;
    if (plan->choice != NULL) {
        blas->counts.chosen++;
        return;
    }
    if (blas->counts.unknown++ == 0)
        zr_log_write(&device->log, ZR_LOG_INFO,
                     "%s: has no choice for the product %s; it has the first algorithm that is "
                     "proposed, and so have others without a choice",
                     blas->choices.name, product_text(&plan->key).text);
}

void zr_matmul_choices_clear(zr_cuda_blas_t *blas) {
    free((void *)blas->choices.choices);
    free(blas->texts);
    blas->texts = NULL;
    blas->choices = (zr_nn_matmul_choices_t){0};
    blas->counts = (zr_nn_matmul_counts_t){0};
}

static const char *copy_text(char **at, const char *text) {
    if (text == NULL)
        return NULL;
    char *copy = *at;
    size_t n_bytes = strlen(text) + 1;
    *at = memcpy(copy, text, n_bytes) + n_bytes;
    return copy;
}

static size_t text_bytes(const zr_nn_matmul_choices_t *from) {
    size_t n_bytes = strlen(from->name) + 1 + strlen(from->made_for) + 1;
    for (size_t i = 0; i < from->n_choices; i++) {
        const zr_nn_matmul_choice_t *choice = &from->choices[i];
        n_bytes += strlen(choice->product) + 1;
        n_bytes += choice->algorithm != NULL ? strlen(choice->algorithm) + 1 : 0;
    }
    return n_bytes;
}

static zr_status_t copy_choices(const zr_log_t *log, zr_cuda_blas_t *blas,
                                const zr_nn_matmul_choices_t *from) {
    char *texts = malloc(text_bytes(from)), *at = texts;
    zr_nn_matmul_choice_t *choices = calloc(from->n_choices + 1, sizeof(*choices));
    if (texts == NULL || choices == NULL) {
        free(texts);
        free(choices);
        return zr_fail(log, ZR_ERR_MEMORY, "%s: no memory for %s", from->name,
                       zr_count_text(from->n_choices, "choice").text);
    }
    for (size_t i = 0; i < from->n_choices; i++)
        choices[i] = (zr_nn_matmul_choice_t){copy_text(&at, from->choices[i].product),
                                             copy_text(&at, from->choices[i].algorithm),
                                             from->choices[i].workspace_bytes};
    zr_matmul_plans_clear(blas);
    zr_matmul_choices_clear(blas);
    blas->texts = texts;
    blas->choices = (zr_nn_matmul_choices_t){.name = copy_text(&at, from->name),
                                             .made_for = copy_text(&at, from->made_for),
                                             .limit_bytes = from->limit_bytes,
                                             .choices = choices,
                                             .n_choices = from->n_choices};
    return ZR_OK;
}

/* ---- the chooser --------------------------------------------------------------------------------
 */

static zr_status_t library(zr_device_t *device, zr_nn_algorithm_text_t *text_p) {
    zr_cuda_blas_t *blas;
    ZR_TRY(zr_cuda_enter(device));
    ZR_TRY(zr_cuda_blas(device, &blas));
    snprintf(text_p->text, sizeof(text_p->text), "cuBLASLt %zu, %s",
             blas->lt.cublasLtGetVersion_p(), device->info.description);
    return ZR_OK;
}

static zr_status_t proposals(zr_device_t *device, const zr_nn_matmul_t *args, size_t limit_bytes,
                             zr_nn_matmul_proposals_t *proposals_p) {
    zr_cuda_blas_t *blas;
    cublasLtMatmulHeuristicResult_t results[ZR_NN_MAX_PROPOSALS];
    int n = 0;
    zr_matmul_key_t key = zr_matmul_key(args);
    ZR_TRY(zr_cuda_enter(device));
    ZR_TRY(zr_cuda_blas(device, &blas));
    ZR_TRY(zr_matmul_propose(device, blas, args, limit_bytes, results, &n));
    *proposals_p = (zr_nn_matmul_proposals_t){.product = product_text(&key), .n = (size_t)n};
    for (int i = 0; i < n; i++) {
        cublasStatus_t status =
            zr_matmul_algorithm_text(&blas->lt, &results[i].algo, &proposals_p->algorithms[i]);
        if (status != CUBLAS_STATUS_SUCCESS)
            return zr_matmul_fail(device, blas, args, "cublasLtMatmulAlgoConfigGetAttribute",
                                  status);
        proposals_p->workspace_bytes[i] = results[i].workspaceSize;
    }
    return ZR_OK;
}

static zr_status_t choose(zr_device_t *device, const zr_nn_matmul_choices_t *choices) {
    zr_cuda_blas_t *blas;
    zr_nn_algorithm_text_t here;
    ZR_TRY(library(device, &here));
    ZR_TRY(zr_cuda_blas(device, &blas));
    if (choices == NULL) {
        zr_matmul_plans_clear(blas);
        zr_matmul_choices_clear(blas);
        return ZR_OK;
    }
    if (strcmp(choices->made_for, here.text) != 0)
        return zr_fail(&device->log, ZR_ERR_UNSUPPORTED,
                       "%s: made for \"%.*s\", but this is \"%s\"; leave it out, or measure here: "
                       "zero-bench matmul --save-choices FILE",
                       choices->name, ZR_NN_ALGORITHM_BYTES, choices->made_for, here.text);
    return copy_choices(&device->log, blas, choices);
}

static zr_nn_matmul_counts_t counts(const zr_device_t *device) {
    const zr_cuda_blas_t *blas = ((const zr_cuda_device_t *)device)->blas;
    return blas == NULL ? (zr_nn_matmul_counts_t){0} : blas->counts;
}

const zr_nn_chooser_t zr_cuda_nn_chooser = {
    .library = library, .proposals = proposals, .choose = choose, .counts = counts};
