/*
 * cuBLASLt as it is installed takes every description that products are given: names, sizes and
 * values of attributes. That needs no GPU; to choose an algorithm does.
 */
#include "kernels/nn/cuda/matmul_plan.h"
#include "tests/common/test.h"

static zr_cublaslt_t lt;

static void describe(const zr_matmul_key_t *key, bool adds_bias, bool applies_epilogue) {
    cublasLtMatmulPreference_t preference = NULL;
    zr_matmul_plan_t *plan = calloc(1, sizeof(*plan));
    assert_non_null(plan);
    plan->key = *key;
    plan->adds_bias = adds_bias;
    plan->applies_epilogue = applies_epilogue;
    assert_int_equal(zr_matmul_describe(&lt, plan), CUBLAS_STATUS_SUCCESS);
    assert_int_equal(zr_matmul_set_pointers(&lt, plan, plan, plan), CUBLAS_STATUS_SUCCESS);
    assert_int_equal(zr_matmul_preference(&lt, key, 4 << 20, &preference), CUBLAS_STATUS_SUCCESS);
    assert_int_equal(lt.cublasLtMatmulPreferenceDestroy_p(preference), CUBLAS_STATUS_SUCCESS);
    zr_matmul_plan_free(&lt, plan);
}

/* Every kind of product: dtypes, transposition, bias, epilogue, alignment. */
TEST(test_descriptions) {
    int memory = 0;
    for (unsigned i = 0; i < 2 * 2 * 4 * 2 * 3 * 2; i++) {
        zr_dtype_t dtype = i % 2 ? ZR_DTYPE_BF16 : ZR_DTYPE_F32;
        bool has_bias = i / 16 % 2;
        zr_nn_epilogue_t epilogue = (zr_nn_epilogue_t)(i / 32 % 3);
        zr_nn_matmul_t product = {.m = 24,
                                  .n = 32,
                                  .k = 40,
                                  .a_dtype = dtype,
                                  .b_dtype = dtype,
                                  .c_dtype = i / 2 % 2 ? dtype : ZR_DTYPE_F32,
                                  .bias_dtype = dtype,
                                  .transpose_a = i / 4 % 2,
                                  .transpose_b = i / 8 % 2,
                                  .bias = has_bias ? &memory : NULL,
                                  .epilogue = epilogue,
                                  .pre_gelu = epilogue != ZR_NN_EPILOGUE_NONE ? &memory : NULL};
        zr_matmul_key_t key = zr_matmul_key(&product);
        key.is_aligned = i / 96 % 2;
        describe(&key, has_bias, epilogue == ZR_NN_EPILOGUE_GELU);
    }
}

/* What tells algorithms from each other has these names and sizes; the version is this header's or
 * a later one. */
TEST(test_algorithm) {
    cublasLtMatmulAlgo_t algorithm = {0};
    zr_nn_algorithm_text_t text;
    assert_int_equal(zr_matmul_algorithm_text(&lt, &algorithm, &text), CUBLAS_STATUS_SUCCESS);
    assert_non_null(strstr(text.text, "id 0 tile "));
    assert_true(lt.cublasLtGetVersion_p() >= CUBLAS_VER_MAJOR * 10000);
}

/* A mistake would be seen: the library checks what it is given. */
TEST(test_mistakes) {
    cublasLtMatmulDesc_t product = NULL;
    int64_t wide = 0;
    assert_int_equal(lt.cublasLtMatmulDescCreate_p(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F),
                     CUBLAS_STATUS_SUCCESS);
    assert_int_equal(lt.cublasLtMatmulDescSetAttribute_p(product, CUBLASLT_MATMUL_DESC_TRANSA,
                                                         &wide, sizeof(wide)),
                     CUBLAS_STATUS_INVALID_VALUE);
    assert_int_equal(lt.cublasLtMatmulDescDestroy_p(product), CUBLAS_STATUS_SUCCESS);
}

int main(void) {
    zr_log_t log = zr_device_options_default().log;
    if (zr_cublaslt_find(&log, &lt) != ZR_OK) {
        printf("skipped: no cuBLASLt here\n");
        return 77;
    }
    int status = run_all_tests(NULL, NULL);
    zr_cublaslt_forget(&lt);
    return status;
}
