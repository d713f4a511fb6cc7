/*
 * Matrix products of the CUDA device against double precision: shapes that are multiples of
 * nothing and shapes that are, every dtype, transposition and epilogue, addresses that are aligned
 * and not; with epilogues that cuBLASLt does and, where it has none, the kernels behind the
 * product. And what the device keeps of shapes, and says when a call fails.
 */
#include "kernels/nn/cuda/matmul_plan.h"
#include "tests/emu/emu.h"
#include "tests/emu/nn_array.h"
#include "tests/ref/ref_nn.h"

static fixture_t fixture;

/* m, n, k: multiples of 8 are what epilogues need. */
static const size_t shapes[][3] = {{1, 1, 1},   {3, 5, 7},  {17, 33, 65}, {16, 24, 40},
                                   {70, 90, 0}, {9, 64, 8}, {33, 40, 3},  {64, 8, 129}};
#define N_SHAPES (sizeof(shapes) / sizeof(shapes[0]))

/* Operands and result. */
typedef struct mix {
    zr_dtype_t in, out;
} mix_t;
static const mix_t mixes[] = {
    {ZR_DTYPE_F32, ZR_DTYPE_F32}, {ZR_DTYPE_BF16, ZR_DTYPE_BF16}, {ZR_DTYPE_BF16, ZR_DTYPE_F32}};

typedef struct product {
    zr_nn_matmul_t args;
    emu_array_t a, b, c, bias, addend, pre_gelu;
    double *y;
    size_t skip_bytes;
} product_t;

static product_t make_product(const size_t shape[3], mix_t mix, int transpose, size_t skip) {
    size_t m = shape[0], n = shape[1], k = shape[2];
    fixture_reset(&fixture);
    product_t p = {.a = emu_array_random(&fixture, m * k, mix.in, 1.0, 1, skip),
                   .b = emu_array_random(&fixture, k * n, mix.in, 1.0, 2, skip),
                   .c = emu_array_random(&fixture, m * n, mix.out, 1.0, 3, skip),
                   .bias = emu_array_random(&fixture, n, mix.out, 1.0, 4, skip),
                   .addend = emu_array_random(&fixture, m * n, mix.out, 1.0, 5, skip),
                   .pre_gelu = emu_array_random(&fixture, m * n, mix.out, 3.0, 6, skip),
                   .y = malloc(m * n * sizeof(double)),
                   .skip_bytes = skip};
    p.args = (zr_nn_matmul_t){.m = m,
                              .n = n,
                              .k = k,
                              .a = p.a.data,
                              .b = p.b.data,
                              .c = p.c.data,
                              .a_dtype = mix.in,
                              .b_dtype = mix.in,
                              .c_dtype = mix.out,
                              .bias_dtype = mix.out,
                              .transpose_a = transpose & 1,
                              .transpose_b = transpose & 2};
    assert_non_null(p.y);
    ref_matmul(p.y, p.a.ref, p.args.transpose_a, p.b.ref, p.args.transpose_b, m, n, k);
    return p;
}

static void free_product(product_t *p) {
    emu_array_t *arrays[] = {&p->a, &p->b, &p->c, &p->bias, &p->addend, &p->pre_gelu};
    for (size_t i = 0; i < sizeof(arrays) / sizeof(arrays[0]); i++)
        emu_array_free(arrays[i]);
    free(p->y);
}

static void run(const zr_nn_matmul_t *args) {
    size_t bytes = zr_cuda_nn_matmul_workspace_bytes(fixture.device, args);
    void *workspace = fixture_take(&fixture, bytes, 0);
    assert_ok(zr_cuda_nn_matmul(fixture.stream, args, workspace));
}

/* Whether y is rounded on its way to the result, because something is done behind the product. */
static bool is_rounded(const product_t *p) {
    const zr_nn_matmul_t *args = &p->args;
    bool has_epilogues = emu_options_default().has_epilogues;
    if (args->c_dtype == ZR_DTYPE_F32)
        return false;
    if (args->bias != NULL && (!has_epilogues || args->k == 0))
        return true;
    if (args->epilogue == ZR_NN_EPILOGUE_NONE)
        return false;
    bool is_fit = args->pre_gelu == NULL || (args->n % 8 == 0 && p->skip_bytes == 0);
    return !has_epilogues || !is_fit || args->k == 0 ||
           (args->epilogue == ZR_NN_EPILOGUE_GELU_BACKWARD && args->bias != NULL);
}

/* Whether the result may have the errors of the hardware's tanh. */
static bool is_approximate(const product_t *p, const emu_array_t *array) {
    return p->args.epilogue != ZR_NN_EPILOGUE_NONE && p->args.c_dtype == ZR_DTYPE_BF16 &&
           array == &p->c;
}

static void check(const product_t *p, const char *what, const emu_array_t *array, int bf16_units) {
    double tolerance = is_rounded(p) ? 5e-3 : is_approximate(p, array) ? 5e-4 : 2e-6;
    char text[160];
    snprintf(text, sizeof(text), "%s: [%zu, %zu, %zu]%s%s, %s to %s, %zu bytes off", what,
             p->args.m, p->args.n, p->args.k, p->args.transpose_a ? " a^T" : "",
             p->args.transpose_b ? " b^T" : "", zr_dtype_name(p->args.a_dtype),
             zr_dtype_name(p->args.c_dtype), p->skip_bytes);
    emu_assert_close(&fixture, text, array, tolerance, bf16_units);
}

static void expect(product_t *p, double beta, const double *addend) {
    for (size_t i = 0; i < p->c.n; i++)
        p->c.ref[i] = p->y[i] + (addend != NULL ? beta * addend[i] : 0.0);
}

static void check_plain(const size_t shape[3], mix_t mix, int transpose, size_t skip) {
    product_t p = make_product(shape, mix, transpose, skip);
    expect(&p, 0.0, NULL);
    run(&p.args);
    check(&p, "product", &p.c, 1);
    double *before = malloc(p.c.n * sizeof(double));
    memcpy(before, p.c.ref, p.c.n * sizeof(double));
    p.args.accumulate = true; /* to what is there now */
    expect(&p, 1.0, before);
    run(&p.args);
    check(&p, "accumulated", &p.c, 3);
    p.args.accumulate = false;
    p.args.addend = p.addend.data;
    expect(&p, 1.0, p.addend.ref);
    run(&p.args);
    check(&p, "addend", &p.c, 1);
    p.args.c = p.addend.data;
    run(&p.args);
    memcpy(p.addend.ref, p.c.ref, p.c.n * sizeof(double));
    check(&p, "addend in place", &p.addend, 1);
    free(before);
    free_product(&p);
}

static void check_bias(const size_t shape[3], mix_t mix, int transpose, size_t skip) {
    product_t p = make_product(shape, mix, transpose, skip);
    for (size_t i = 0; i < p.c.n; i++)
        p.y[i] += p.bias.ref[i % p.args.n];
    p.args.bias = p.bias.data;
    expect(&p, 0.0, NULL);
    run(&p.args);
    check(&p, "bias", &p.c, 1);
    p.args.addend = p.addend.data;
    expect(&p, 1.0, p.addend.ref);
    run(&p.args);
    check(&p, "bias and addend", &p.c, 1);
    free_product(&p);
}

/* With a bias or not, and what GELU was applied to kept or not. */
static void check_gelu(const size_t shape[3], mix_t mix, int transpose, size_t skip) {
    for (int variant = 0; variant < 4; variant++) {
        product_t p = make_product(shape, mix, transpose, skip);
        p.args.epilogue = ZR_NN_EPILOGUE_GELU;
        p.args.bias = variant & 1 ? p.bias.data : NULL;
        p.args.pre_gelu = variant & 2 ? p.pre_gelu.data : NULL;
        for (size_t i = 0; i < p.c.n; i++) {
            double y = p.y[i] + (variant & 1 ? p.bias.ref[i % p.args.n] : 0.0);
            p.pre_gelu.ref[i] = variant & 2 ? y : p.pre_gelu.ref[i];
            p.c.ref[i] = ref_gelu(y);
        }
        run(&p.args);
        check(&p, variant & 1 ? "gelu, with bias" : "gelu", &p.c, 1);
        check(&p, "before gelu", &p.pre_gelu, 1);
        free_product(&p);
    }
}

static void check_gelu_backward(const size_t shape[3], mix_t mix, int transpose, size_t skip) {
    for (int variant = 0; variant < 2; variant++) {
        product_t p = make_product(shape, mix, transpose, skip);
        p.args.epilogue = ZR_NN_EPILOGUE_GELU_BACKWARD;
        p.args.pre_gelu = p.pre_gelu.data;
        p.args.bias = variant & 1 ? p.bias.data : NULL;
        for (size_t i = 0; i < p.c.n; i++)
            p.c.ref[i] = (p.y[i] + (variant & 1 ? p.bias.ref[i % p.args.n] : 0.0)) *
                         ref_gelu_slope(p.pre_gelu.ref[i]);
        run(&p.args);
        check(&p, "gelu backward", &p.c, 1);
        check(&p, "its input", &p.pre_gelu, 1);
        free_product(&p);
    }
}

static void on_every_product(void (*body)(const size_t shape[3], mix_t mix, int transpose,
                                          size_t skip)) {
    for (size_t s = 0; s < N_SHAPES; s++)
        for (size_t mix = 0; mix < sizeof(mixes) / sizeof(mixes[0]); mix++)
            for (int transpose = 0; transpose < 4; transpose++)
                for (size_t skip = 0; skip <= 4; skip += 4)
                    body(shapes[s], mixes[mix], transpose, skip);
}

TEST(test_plain) {
    on_every_product(check_plain);
}

TEST(test_bias) {
    on_every_product(check_bias);
}

TEST(test_gelu) {
    on_every_product(check_gelu);
}

TEST(test_gelu_backward) {
    on_every_product(check_gelu_backward);
}

/* Every address counts by itself: one that is aligned to its element alone is served as well, and
 * no algorithm that would need more of it is taken. */
TEST(test_one_address_is_off) {
    static const size_t shape[3] = {16, 24, 8};
    for (int which = 0; which < 6; which++) {
        product_t p = make_product(shape, mixes[1], 0, 0);
        emu_array_t *arrays[] = {&p.a, &p.b, &p.c, &p.bias, &p.pre_gelu, &p.addend};
        size_t bytes = arrays[which]->n * 2;
        char *moved = fixture_take(&fixture, bytes, 2);
        assert_ok(zr_copy_async(fixture.stream, moved, arrays[which]->data, bytes,
                                ZR_COPY_DEVICE_TO_DEVICE));
        arrays[which]->data = moved;
        p.args.a = p.a.data;
        p.args.b = p.b.data;
        p.args.c = p.c.data;
        p.args.bias = p.bias.data;
        p.skip_bytes = 2; /* GELU is behind the product then */
        if (which == 5) {
            p.args.addend = p.addend.data;
        } else {
            p.args.epilogue = ZR_NN_EPILOGUE_GELU;
            p.args.pre_gelu = p.pre_gelu.data;
        }
        for (size_t i = 0; i < p.c.n; i++) {
            double y = p.y[i] + p.bias.ref[i % p.args.n];
            p.c.ref[i] = which == 5 ? y + p.addend.ref[i] : ref_gelu(y);
        }
        run(&p.args);
        check(&p, "one address is off", &p.c, 1);
        free_product(&p);
    }
}

/* ---- what the device keeps ----------------------------------------------------------------- */

static zr_cuda_blas_t *blas(void) {
    zr_cuda_blas_t *blas = NULL;
    assert_ok(zr_cuda_blas(fixture.device, &blas));
    return blas;
}

/* A shape is asked about once; where its operands lie does not matter. */
TEST(test_shape_is_kept) {
    product_t p = make_product((const size_t[]){24, 16, 8}, mixes[1], 0, 0);
    run(&p.args);
    emu_fail_call("cublasLtMatmulAlgoGetHeuristic", 1, CUBLAS_STATUS_INTERNAL_ERROR);
    p.args.a = fixture_take(&fixture, 24 * 8 * 2, 64);
    run(&p.args);
    assert_false(emu_has_failed_call());
    const zr_matmul_plan_t *plan = blas()->plans[0];
    assert_int_equal(plan->key.m, 24);
    p.args.a = fixture_take(&fixture, 24 * 8 * 2, 2); /* but whether 16 bytes can be read does */
    size_t bytes = zr_cuda_nn_matmul_workspace_bytes(fixture.device, &p.args);
    void *workspace = fixture_take(&fixture, bytes, 0);
    assert_refused(&fixture, ZR_ERR_DEVICE, zr_cuda_nn_matmul(fixture.stream, &p.args, workspace));
    assert_true(emu_has_failed_call());
    run(&p.args);
    assert_ok(zr_stream_synchronize(fixture.stream));
    free_product(&p);
}

/* More shapes than are kept: the one not used for longest goes. */
TEST(test_shapes_are_forgotten) {
    product_t p = make_product((const size_t[]){2 * ZR_MATMUL_PLANS, 8, 8}, mixes[0], 0, 0);
    size_t live = emu_n_live();
    for (size_t m = 1; m <= 2 * ZR_MATMUL_PLANS; m++) {
        p.args.m = m;
        run(&p.args);
        p.args.m = 2 * ZR_MATMUL_PLANS; /* is used again and again */
        run(&p.args);
        fixture_reset(&fixture);
        assert_true(blas()->n_plans <= ZR_MATMUL_PLANS);
    }
    assert_true(emu_n_live() <= live + 4 * ZR_MATMUL_PLANS);
    assert_int_equal(blas()->n_plans, ZR_MATMUL_PLANS);
    for (size_t i = 0; i + 1 < ZR_MATMUL_PLANS; i++)
        assert_int_equal(blas()->plans[i]->key.m, 2 * ZR_MATMUL_PLANS - i);
    assert_ok(zr_stream_synchronize(fixture.stream));
    free_product(&p);
}

/* ---- failures ---------------------------------------------------------------------------------
 */

/* Each call that a product of a new shape makes fails once: it is refused, says so once, and the
 * next product is well again. */
TEST(test_each_call_fails) {
    static const char *const calls[] = {
        "cublasLtMatmulDescCreate",    "cublasLtMatmulDescSetAttribute",
        "cublasLtMatrixLayoutCreate",  "cublasLtMatmulPreferenceCreate",
        "cublasLtMatmulPreferenceSet", "cublasLtMatmulAlgoGetHeuristic"};
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++)
        for (int nth = 1;; nth++) {
            size_t shape[3] = {8 + (size_t)nth, 16 + 8 * i, 24};
            product_t p = make_product(shape, mixes[1], 0, 0);
            p.args.epilogue = ZR_NN_EPILOGUE_GELU;
            p.args.bias = p.bias.data;
            p.args.pre_gelu = p.pre_gelu.data;
            void *workspace =
                fixture_take(&fixture, zr_cuda_matmul_workspace_bytes(fixture.device), 0);
            emu_fail_call(calls[i], nth, CUBLAS_STATUS_INTERNAL_ERROR);
            fixture.n_errors = 0;
            zr_status_t status = zr_cuda_nn_matmul(fixture.stream, &p.args, workspace);
            bool has_failed = emu_has_failed_call();
            emu_fail_call(NULL, 0, 0);
            assert_int_equal(status, has_failed ? ZR_ERR_DEVICE : ZR_OK);
            assert_int_equal(fixture.n_errors, has_failed);
            if (has_failed)
                assert_non_null(strstr(fixture.last_error, "CUBLAS_STATUS_INTERNAL_ERROR"));
            assert_ok(zr_cuda_nn_matmul(fixture.stream, &p.args, workspace));
            assert_ok(zr_stream_synchronize(fixture.stream));
            free_product(&p);
            if (!has_failed)
                break;
        }
}

TEST(test_messages) {
    product_t p = make_product((const size_t[]){5, 16, 7}, mixes[1], 2, 0);
    void *workspace = fixture_take(&fixture, zr_cuda_matmul_workspace_bytes(fixture.device), 0);
    p.args.bias = p.bias.data;
    run(&p.args);
    /* The bias is set before it, in a call whose name begins the same. */
    int nth = emu_options_default().has_epilogues ? 2 : 1;
    emu_fail_call("cublasLtMatmul", nth, CUBLAS_STATUS_NOT_SUPPORTED);
    assert_refused(&fixture, ZR_ERR_UNSUPPORTED,
                   zr_cuda_nn_matmul(fixture.stream, &p.args, workspace));
    static const char *const parts[] = {"[5, 16] = [5, 7] [7, 16] turned", "bf16 to bf16, bias",
                                        "cublasLtMatmul: ", "CUBLAS_STATUS_NOT_SUPPORTED"};
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
        assert_non_null(strstr(fixture.last_error, parts[i]));
    p.args.a_dtype = ZR_DTYPE_F32;
    assert_refused(&fixture, ZR_ERR_UNSUPPORTED,
                   zr_cuda_nn_matmul(fixture.stream, &p.args, workspace));
    assert_non_null(strstr(fixture.last_error, "fp32 x bf16 -> bf16"));
    p.args.b_dtype = ZR_DTYPE_F32;
    assert_refused(&fixture, ZR_ERR_UNSUPPORTED,
                   zr_cuda_nn_matmul(fixture.stream, &p.args, workspace));
    free_product(&p);
}

/* A product that fails when it runs is named when somebody waits. */
TEST(test_failure_of_work) {
    product_t p = make_product((const size_t[]){8, 8, 8}, mixes[0], 0, 0);
    emu_fail_kernel("cublasLtMatmul", 1, 719);
    run(&p.args);
    assert_refused(&fixture, ZR_ERR_DEVICE, zr_stream_synchronize(fixture.stream));
    assert_non_null(strstr(fixture.last_error, "matmul on \"test\""));
    void *workspace = fixture_take(&fixture, zr_cuda_matmul_workspace_bytes(fixture.device), 0);
    assert_refused(&fixture, ZR_ERR_DEVICE, zr_cuda_nn_matmul(fixture.stream, &p.args, workspace));
    emu_forget_failures();
    free_product(&p);
}

/* Opening a device looks for no cuBLASLt; the first product does. */
TEST(test_no_library) {
    emu_options_t options = emu_options_default();
    fixture_t other;
    fixture_close(&fixture);
    options.has_cublaslt = false;
    emu_configure(&options);
    fixture_open(&other, "cuda", 1, NULL);
    void *memory = fixture_take(&other, 64 << 10, 0);
    zr_nn_matmul_t args = {.m = 8, .n = 8, .k = 8, .a = memory, .b = memory, .c = memory};
    assert_refused(&other, ZR_ERR_UNSUPPORTED, zr_cuda_nn_matmul(other.stream, &args, memory));
    fixture_close(&other);
    options.has_cublaslt = true;
    emu_configure(&options);
    fixture_open(&other, "cuda", 1, NULL);
    emu_fail_call("cublasLtCreate", 1, CUBLAS_STATUS_NOT_INITIALIZED);
    assert_refused(&other, ZR_ERR_DEVICE, zr_cuda_nn_matmul(other.stream, &args, memory));
    assert_non_null(strstr(other.last_error, "cublasLtCreate: "));
    assert_non_null(strstr(other.last_error, "(CUBLAS_STATUS_NOT_INITIALIZED)"));
    fixture_close(&other);
    options.major = 9;
    emu_configure(&options);
    fixture_open(&other, "cuda", 1, NULL);
    assert_int_equal(zr_cuda_nn_matmul_workspace_bytes(other.device, &args), 32 << 20);
    fixture_close(&other);
    options.major = 8;
    emu_configure(&options);
    fixture_open(&fixture, "cuda", 1, NULL);
    assert_int_equal(zr_cuda_nn_matmul_workspace_bytes(fixture.device, &args), 4 << 20);
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
