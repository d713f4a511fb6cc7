/*
 * Matrix products of the CUDA device: what it keeps of shapes, and says when a call fails. What
 * they compute is seen by kernels/nn/test_nn_matmul.c.
 */
#include "kernels/nn/cuda/cuda_nn.h"
#include "kernels/nn/cuda/matmul_plan.h"
#include "tests/emu/emu.h"
#include "tests/kernels/device_fixture.h"

static fixture_t fixture;

/* A product without an epilogue, of zeros. */
static zr_nn_matmul_t make_product(size_t m, size_t n, size_t k, zr_dtype_t dtype) {
    size_t elem = zr_dtype_size(dtype);
    fixture_reset(&fixture);
    return (zr_nn_matmul_t){.m = m,
                            .n = n,
                            .k = k,
                            .a = fixture_take(&fixture, m * k * elem, 0),
                            .b = fixture_take(&fixture, k * n * elem, 0),
                            .c = fixture_take(&fixture, m * n * elem, 0),
                            .a_dtype = dtype,
                            .b_dtype = dtype,
                            .c_dtype = dtype,
                            .bias_dtype = dtype};
}

static zr_status_t run(const zr_nn_matmul_t *args) {
    size_t bytes = zr_nn_matmul_workspace_bytes(fixture.device, args);
    return zr_cuda_nn_matmul(fixture.stream, args, fixture_take(&fixture, bytes, 0));
}

/* ---- what the device keeps ----------------------------------------------------------------- */

static zr_cuda_blas_t *blas(void) {
    zr_cuda_blas_t *blas = NULL;
    assert_ok(zr_cuda_blas(fixture.device, &blas));
    return blas;
}

/* A shape is asked about once; where its operands lie does not matter. */
TEST(test_shape_is_kept) {
    zr_nn_matmul_t args = make_product(24, 16, 8, ZR_DTYPE_BF16);
    assert_ok(run(&args));
    emu_fail_call("cublasLtMatmulAlgoGetHeuristic", 1, CUBLAS_STATUS_INTERNAL_ERROR);
    args.a = fixture_take(&fixture, 24 * 8 * 2, 64);
    assert_ok(run(&args));
    assert_false(emu_has_failed_call());
    const zr_matmul_plan_t *plan = blas()->plans[0];
    assert_int_equal(plan->key.m, 24);
    args.a = fixture_take(&fixture, 24 * 8 * 2, 2); /* but whether 16 bytes can be read does */
    assert_refused(&fixture, ZR_ERR_DEVICE, run(&args));
    assert_true(emu_has_failed_call());
    assert_ok(run(&args));
    assert_ok(zr_stream_synchronize(fixture.stream));
}

/* More shapes than are kept: the one not used for longest goes. */
TEST(test_shapes_are_forgotten) {
    zr_nn_matmul_t args = make_product(2 * ZR_MATMUL_PLANS, 8, 8, ZR_DTYPE_F32);
    size_t live = emu_n_live();
    for (size_t m = 1; m <= 2 * ZR_MATMUL_PLANS; m++) {
        args.m = m;
        assert_ok(run(&args));
        args.m = 2 * ZR_MATMUL_PLANS; /* is used again and again */
        assert_ok(run(&args));
        fixture_reset(&fixture);
        assert_true(blas()->n_plans <= ZR_MATMUL_PLANS);
    }
    assert_true(emu_n_live() <= live + 4 * ZR_MATMUL_PLANS);
    assert_int_equal(blas()->n_plans, ZR_MATMUL_PLANS);
    for (size_t i = 0; i + 1 < ZR_MATMUL_PLANS; i++)
        assert_int_equal(blas()->plans[i]->key.m, 2 * ZR_MATMUL_PLANS - i);
    assert_ok(zr_stream_synchronize(fixture.stream));
}

/* ---- failures ------------------------------------------------------------------------------- */

/* Each call that a product of a new shape makes fails once: it is refused, says so once, and the
 * next product is well again. */
TEST(test_each_call_fails) {
    static const char *const calls[] = {
        "cublasLtMatmulDescCreate",    "cublasLtMatmulDescSetAttribute",
        "cublasLtMatrixLayoutCreate",  "cublasLtMatmulPreferenceCreate",
        "cublasLtMatmulPreferenceSet", "cublasLtMatmulAlgoGetHeuristic"};
    for (size_t i = 0; i < N_OF(calls); i++)
        for (int nth = 1;; nth++) {
            size_t m = 8 + (size_t)nth, n = 16 + 8 * i;
            zr_nn_matmul_t args = make_product(m, n, 24, ZR_DTYPE_BF16);
            args.epilogue = ZR_NN_EPILOGUE_GELU;
            args.bias = fixture_take(&fixture, 2 * n, 0);
            args.pre_gelu = fixture_take(&fixture, 2 * m * n, 0);
            emu_fail_call(calls[i], nth, CUBLAS_STATUS_INTERNAL_ERROR);
            fixture.n_errors = 0;
            zr_status_t status = run(&args);
            bool has_failed = emu_has_failed_call();
            emu_fail_call(NULL, 0, 0);
            assert_int_equal(status, has_failed ? ZR_ERR_DEVICE : ZR_OK);
            assert_int_equal(fixture.n_errors, has_failed);
            if (has_failed)
                assert_has(fixture.last_error, "CUBLAS_STATUS_INTERNAL_ERROR");
            assert_ok(run(&args));
            assert_ok(zr_stream_synchronize(fixture.stream));
            if (!has_failed)
                break;
        }
}

TEST(test_messages) {
    zr_nn_matmul_t args = make_product(5, 16, 7, ZR_DTYPE_BF16);
    args.transpose_b = true;
    args.bias = fixture_take(&fixture, 2 * 16, 0);
    assert_ok(run(&args));
    /* The bias is set before it, in a call whose name begins the same. */
    int nth = emu_options_default().has_epilogues ? 2 : 1;
    emu_fail_call("cublasLtMatmul", nth, CUBLAS_STATUS_NOT_SUPPORTED);
    assert_refused(&fixture, ZR_ERR_UNSUPPORTED, run(&args));
    static const char *const parts[] = {"[5, 16] = [5, 7] [7, 16] turned", "bf16 to bf16, bias",
                                        "cublasLtMatmul: ", "CUBLAS_STATUS_NOT_SUPPORTED"};
    for (size_t i = 0; i < N_OF(parts); i++)
        assert_non_null(strstr(fixture.last_error, parts[i]));
    args.a_dtype = ZR_DTYPE_F32;
    assert_refused(&fixture, ZR_ERR_UNSUPPORTED, run(&args));
    assert_has(fixture.last_error, "fp32 x bf16 -> bf16");
    args.b_dtype = ZR_DTYPE_F32;
    assert_refused(&fixture, ZR_ERR_UNSUPPORTED, run(&args));
}

/* A product that fails when it runs is named when somebody waits. */
TEST(test_failure_of_work) {
    zr_nn_matmul_t args = make_product(8, 8, 8, ZR_DTYPE_F32);
    emu_fail_kernel("cublasLtMatmul", 1, 719);
    assert_ok(run(&args));
    assert_refused(&fixture, ZR_ERR_DEVICE, zr_stream_synchronize(fixture.stream));
    assert_has(fixture.last_error, "matmul on \"test\"");
    assert_refused(&fixture, ZR_ERR_DEVICE, run(&args));
    emu_forget_failures();
}

/* ---- chosen algorithms --------------------------------------------------------------------- */

enum { M = 24, N = 16, K = 40 };

#define ALGORITHM(id, splits)                                                                      \
    "id " #id " tile 0 stages 0 splits " #splits                                                   \
    " reduction 0 swizzling 0 option 0 inner 0 cluster 0"
#define PRODUCT "24 x 16 x 40, rows of 40 and 16, fp32 to fp32"

/* With these choices, NULL for none: the sums are right, in whatever order. */
static void multiply(const zr_nn_matmul_choices_t *choices, float *c_p) {
    float a[M * K], b[K * N];
    uint64_t state = 1;
    zr_nn_matmul_t args = make_product(M, N, K, ZR_DTYPE_F32);
    fixture_random_values(a, ZR_DTYPE_F32, M * K, 1.0f, &state);
    fixture_random_values(b, ZR_DTYPE_F32, K * N, 1.0f, &state);
    args.a = fixture_place(&fixture, a, sizeof(a), 0);
    args.b = fixture_place(&fixture, b, sizeof(b), 0);
    assert_ok(zr_nn_matmul_choose(fixture.device, choices));
    assert_ok(run(&args));
    fixture_download(&fixture, c_p, args.c, M * N * sizeof(float));
    for (size_t i = 0; i < M * N; i++) {
        double sum = 0.0;
        for (size_t j = 0; j < K; j++)
            sum += (double)a[i / N * K + j] * b[j * N + i % N];
        assert_true(fabs(c_p[i] - sum) <= K * K * 0x1p-24);
    }
}

static zr_nn_algorithm_text_t here;
static zr_nn_matmul_choice_t one;

static zr_nn_matmul_choices_t choices_of(const char *algorithm, size_t workspace_bytes) {
    assert_ok(zr_nn_matmul_library(fixture.device, &here));
    one = (zr_nn_matmul_choice_t){PRODUCT, algorithm, workspace_bytes};
    return (zr_nn_matmul_choices_t){.name = "choices",
                                    .made_for = here.text,
                                    .limit_bytes = 6 << 20,
                                    .choices = &one,
                                    .n_choices = 1};
}

/* What is chosen decides about the bits, and the workspace is what it needs. */
TEST(test_choices) {
    static const struct {
        const char *algorithm;
        size_t workspace_bytes, expected_bytes;
    } cases[] = {{NULL, 0, 4 << 20},
                 {ALGORITHM(20, 1), 3072, 4 << 20},
                 {ALGORITHM(21, 2), 3072, 4 << 20},
                 {ALGORITHM(23, 3), 3072, 4 << 20},
                 {ALGORITHM(24, 5), EMU_LARGE_WORKSPACE_BYTES, EMU_LARGE_WORKSPACE_BYTES}};
    static float first[M * N], own[N_OF(cases)][M * N];
    zr_nn_matmul_proposals_t proposals;
    zr_nn_matmul_t args = make_product(M, N, K, ZR_DTYPE_F32);
    multiply(NULL, first);
    for (size_t i = 0; i < N_OF(cases); i++) {
        zr_nn_matmul_choices_t choices = choices_of(cases[i].algorithm, cases[i].workspace_bytes);
        multiply(&choices, own[i]);
        assert_int_equal(zr_nn_matmul_workspace_bytes(fixture.device, &args),
                         cases[i].expected_bytes);
        assert_int_equal(zr_nn_matmul_counts(fixture.device).chosen, 1);
        for (size_t j = 0; j < i; j++)
            assert_int_equal(memcmp(own[i], own[j], sizeof(own[i])) == 0, i == 1);
    }
    assert_memory_equal(own[0], first, sizeof(first));
    assert_ok(zr_nn_matmul_choose(fixture.device, NULL));
    assert_ok(zr_nn_matmul_proposals(fixture.device, &args, 6 << 20, &proposals));
    assert_string_equal(proposals.product.text, PRODUCT);
    assert_int_equal(proposals.n, 5);
    assert_string_equal(proposals.algorithms[3].text, cases[4].algorithm);
    assert_int_equal(proposals.workspace_bytes[3], cases[4].workspace_bytes);
    assert_ok(zr_nn_matmul_proposals(fixture.device, &args, 4 << 20, &proposals));
    assert_int_equal(proposals.n, 4);
}

/* A product that the choices lack has the first algorithm, and is counted. */
TEST(test_product_without_choice) {
    zr_nn_matmul_choices_t choices = choices_of(NULL, 0);
    assert_ok(zr_nn_matmul_choose(fixture.device, &choices));
    zr_nn_matmul_t args = make_product(M, N, K + 1, ZR_DTYPE_F32);
    for (int i = 0; i < 3; i++)
        assert_ok(run(&args));
    zr_nn_matmul_counts_t counts = zr_nn_matmul_counts(fixture.device);
    assert_int_equal(counts.chosen, 0);
    assert_int_equal(counts.unknown, 3);
    assert_ok(zr_stream_synchronize(fixture.stream));
    assert_ok(zr_nn_matmul_choose(fixture.device, NULL));
}

TEST(test_refused_choices) {
    static const struct {
        const char *algorithm;
        size_t workspace_bytes;
        const char *said;
    } cases[] = {{"id 19", 3072, "choices: cuBLASLt does not propose \"id 19\"|" PRODUCT},
                 {ALGORITHM(21, 2), 3071, "does not propose|measure again"},
                 {ALGORITHM(22, 1), 3072, "CUBLAS_STATUS_NOT_SUPPORTED"}};
    zr_nn_matmul_t args = make_product(M, N, K, ZR_DTYPE_F32);
    for (size_t i = 0; i < N_OF(cases); i++) {
        zr_nn_matmul_choices_t choices = choices_of(cases[i].algorithm, cases[i].workspace_bytes);
        assert_ok(zr_nn_matmul_choose(fixture.device, &choices));
        assert_refused(&fixture, ZR_ERR_UNSUPPORTED, run(&args));
        assert_has(fixture.last_error, cases[i].said);
    }
    zr_nn_matmul_choices_t choices = choices_of(NULL, 0);
    choices.made_for = "cuBLASLt 1, another device";
    assert_refused(&fixture, ZR_ERR_UNSUPPORTED, zr_nn_matmul_choose(fixture.device, &choices));
    assert_has(fixture.last_error, "made for \"cuBLASLt 1, another device\"|measure here");
    assert_ok(zr_nn_matmul_choose(fixture.device, NULL));
    emu_fail_call("cublasLtMatmulAlgoConfigGetAttribute", 3, CUBLAS_STATUS_INTERNAL_ERROR);
    choices = choices_of(ALGORITHM(21, 2), 3072);
    assert_ok(zr_nn_matmul_choose(fixture.device, &choices));
    assert_refused(&fixture, ZR_ERR_DEVICE, run(&args));
    assert_ok(zr_nn_matmul_choose(fixture.device, NULL));
}

/* Opening a device looks for no cuBLASLt; the first product does. */
TEST(test_no_library) {
    static const struct {
        bool has_cublaslt;
        int major;
        size_t workspace_bytes;
        const char *failing; /* NULL: none */
    } cases[] = {{false, 8, 4 << 20, NULL},
                 {true, 8, 4 << 20, "cublasLtCreate"},
                 {true, 9, 32 << 20, NULL},
                 {true, 8, 4 << 20, NULL}};
    for (size_t i = 0; i < N_OF(cases); i++) {
        emu_options_t options = emu_options_default();
        options.has_cublaslt = cases[i].has_cublaslt;
        options.major = cases[i].major;
        fixture_close(&fixture);
        emu_configure(&options);
        fixture_open(&fixture, "cuda", 1, NULL);
        zr_nn_matmul_t args = make_product(8, 8, 8, ZR_DTYPE_F32);
        assert_int_equal(zr_nn_matmul_workspace_bytes(fixture.device, &args),
                         cases[i].workspace_bytes);
        if (!cases[i].has_cublaslt)
            assert_refused(&fixture, ZR_ERR_UNSUPPORTED, run(&args));
        if (cases[i].failing == NULL)
            continue;
        emu_fail_call(cases[i].failing, 1, CUBLAS_STATUS_NOT_INITIALIZED);
        assert_refused(&fixture, ZR_ERR_DEVICE, run(&args));
        assert_has(fixture.last_error, "cublasLtCreate: |(CUBLAS_STATUS_NOT_INITIALIZED)");
    }
}

static int setup(void **state) {
    fixture_open(&fixture, "cuda", 1, NULL);
    return 0;
}

static int teardown(void **state) {
    fixture_close(&fixture);
    return 0;
}

const test_group_t test_group = {setup, teardown};
