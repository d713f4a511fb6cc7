/*
 * Matrix products against double precision: shapes that are multiples of
 * nothing, transposed operands, both dtypes, every epilogue.
 */
#include "tests/kernels/nn/nn_test.h"
#include "tests/ref/ref_nn.h"

/* Among them one beyond each side of the blocks that BF16 goes by. */
static const size_t shapes[][3] = {{1, 1, 1},     {3, 5, 7},     {17, 33, 65},
                                   {64, 96, 80},  {70, 90, 0},   {150, 67, 131},
                                   {270, 37, 33}, {41, 9, 1100}, {5, 1300, 20}};
#define N_SHAPES (sizeof(shapes) / sizeof(shapes[0]))

/* One product, with the operands it needs. */
typedef struct product {
    zr_nn_matmul_t args;
    nn_array_t a, b, c;
} product_t;

/* What operands and result are made of. */
typedef struct mix {
    zr_dtype_t a, b, c;
} mix_t;

/* A product of activations with parameters. */
static mix_t mix_of(const nn_device_t *device, zr_dtype_t param_dtype) {
    zr_dtype_t activation = nn_activation_dtype(device, param_dtype);
    return (mix_t){activation, param_dtype, activation};
}

/* All that a device has: activations with both kinds of parameters, and what is left, a gradient
   of the other dtype than its operands. */
#define N_MIXES 3
static mix_t mix_at(const nn_device_t *device, int index) {
    if (index < 2)
        return mix_of(device, index == 0 ? ZR_DTYPE_F32 : ZR_DTYPE_BF16);
    zr_dtype_t activation = nn_activation_dtype(device, ZR_DTYPE_BF16);
    return (mix_t){activation, activation,
                   activation == ZR_DTYPE_F32 ? ZR_DTYPE_BF16 : ZR_DTYPE_F32};
}

/* With a result in bf16, what the epilogue goes by may have been rounded. */
static double tolerance_behind(zr_dtype_t c_dtype) {
    return c_dtype == ZR_DTYPE_F32 ? 2e-6 : 5e-3;
}

static product_t make_product(const size_t shape[3], bool transpose_a, bool transpose_b,
                              mix_t mix) {
    size_t m = shape[0], n = shape[1], k = shape[2];
    product_t product = {.a = nn_array_random(m * k, mix.a, 1.0, 1),
                         .b = nn_array_random(k * n, mix.b, 1.0, 2),
                         .c = nn_array_random(m * n, mix.c, 1.0, 3)};
    product.args = (zr_nn_matmul_t){.m = m,
                                    .n = n,
                                    .k = k,
                                    .a = product.a.data,
                                    .b = product.b.data,
                                    .c = product.c.data,
                                    .a_dtype = mix.a,
                                    .b_dtype = mix.b,
                                    .c_dtype = mix.c,
                                    .transpose_a = transpose_a,
                                    .transpose_b = transpose_b};
    return product;
}

static void free_product(product_t *product) {
    nn_array_free(&product->a);
    nn_array_free(&product->b);
    nn_array_free(&product->c);
}

static double *reference(const product_t *product) {
    const zr_nn_matmul_t *args = &product->args;
    double *y = malloc(args->m * args->n * sizeof(double));
    assert_non_null(y);
    ref_matmul(y, product->a.ref, args->transpose_a, product->b.ref, args->transpose_b, args->m,
               args->n, args->k);
    return y;
}

static void run_product(nn_device_t *device, const product_t *product) {
    zr_nn_workspace_t workspace =
        nn_workspace(zr_nn_matmul_workspace_bytes(device->device, &product->args));
    assert_ok(zr_nn_matmul(device->stream, &product->args, workspace));
    nn_workspace_free(&workspace);
}

static void check_plain(nn_device_t *device, const size_t shape[3], int variant) {
    bool transpose_a = variant & 1, transpose_b = variant & 2, accumulate = variant & 4;
    mix_t mix = mix_at(device, variant / 8);
    product_t product = make_product(shape, transpose_a, transpose_b, mix);
    product.args.accumulate = accumulate;
    double *y = reference(&product);
    for (size_t i = 0; i < product.c.n; i++)
        product.c.ref[i] = (accumulate ? product.c.ref[i] : 0.0) + y[i];
    run_product(device, &product);

    char what[120];
    snprintf(what, sizeof(what), "%zux%zux%zu%s%s%s %s->%s", shape[0], shape[1], shape[2],
             transpose_a ? " a^T" : "", transpose_b ? " b^T" : "", accumulate ? " +=" : "",
             zr_dtype_name(mix.b), zr_dtype_name(mix.c));
    nn_assert_close(what, &product.c, 2e-6);
    free(y);
    free_product(&product);
}

static void plain_body(nn_device_t *device) {
    for (size_t i = 0; i < N_SHAPES; i++) {
        for (int variant = 0; variant < 8 * N_MIXES; variant++)
            check_plain(device, shapes[i], variant);
    }
}

TEST(test_products) {
    nn_on_every_device(plain_body);
}

/* y = a b + bias (+ addend): then GELU or not. */
static void check_bias(nn_device_t *device, const size_t shape[3], zr_dtype_t dtype, bool add,
                       bool gelu) {
    mix_t mix = mix_of(device, dtype);
    product_t product = make_product(shape, false, false, mix);
    nn_array_t bias = nn_array_random(shape[1], dtype, 1.0, 4);
    nn_array_t addend = nn_array_random(product.c.n, mix.c, 1.0, 5);
    nn_array_t pre_gelu = nn_array_random(product.c.n, mix.c, 1.0, 6);
    double *y = reference(&product);
    for (size_t i = 0; i < product.c.n; i++) {
        y[i] += bias.ref[i % shape[1]] + (add ? addend.ref[i] : 0.0);
        pre_gelu.ref[i] = y[i];
        product.c.ref[i] = gelu ? ref_gelu(y[i]) : y[i];
    }
    product.args.bias = bias.data;
    product.args.bias_dtype = dtype;
    product.args.addend = add ? addend.data : NULL;
    product.args.epilogue = gelu ? ZR_NN_EPILOGUE_GELU : ZR_NN_EPILOGUE_NONE;
    product.args.pre_gelu = gelu ? pre_gelu.data : NULL;
    run_product(device, &product);
    nn_assert_close(gelu  ? "gelu epilogue"
                    : add ? "bias and addend"
                          : "bias",
                    &product.c, tolerance_behind(mix.c));
    if (gelu)
        nn_assert_close("pre_gelu", &pre_gelu, 2e-6);

    if (add) { /* once more in place: c is its own addend */
        memcpy(product.c.host, nn_download(&addend), product.c.n * zr_dtype_size(mix.c));
        nn_upload(&product.c);
        product.args.addend = product.c.data;
        run_product(device, &product);
        nn_assert_close("addend in place", &product.c, tolerance_behind(mix.c));
    }
    free(y);
    nn_array_free(&bias);
    nn_array_free(&addend);
    nn_array_free(&pre_gelu);
    free_product(&product);
}

static void check_gelu_backward(nn_device_t *device, const size_t shape[3], zr_dtype_t dtype) {
    mix_t mix = mix_of(device, dtype);
    product_t product = make_product(shape, false, true, mix);
    nn_array_t pre_gelu = nn_array_random(product.c.n, mix.c, 3.0, 7);
    double *y = reference(&product);
    for (size_t i = 0; i < product.c.n; i++)
        product.c.ref[i] = y[i] * ref_gelu_slope(pre_gelu.ref[i]);
    product.args.epilogue = ZR_NN_EPILOGUE_GELU_BACKWARD;
    product.args.pre_gelu = pre_gelu.data;
    run_product(device, &product);
    nn_assert_close("gelu backward epilogue", &product.c, tolerance_behind(mix.c));
    free(y);
    nn_array_free(&pre_gelu);
    free_product(&product);
}

static void epilogue_body(nn_device_t *device) {
    for (size_t i = 0; i < N_SHAPES; i++) {
        for (int variant = 0; variant < 2; variant++) {
            zr_dtype_t dtype = variant == 0 ? ZR_DTYPE_F32 : ZR_DTYPE_BF16;
            check_bias(device, shapes[i], dtype, false, false);
            check_bias(device, shapes[i], dtype, true, false);
            check_bias(device, shapes[i], dtype, false, true);
            check_gelu_backward(device, shapes[i], dtype);
        }
    }
}

TEST(test_epilogues) {
    nn_on_every_device(epilogue_body);
}

/* A copy of an fp32 result, to be freed, and whether another run has the same bits. */
static float *copy_result(const product_t *product) {
    float *copy = malloc(product->c.n * sizeof(float));
    assert_non_null(copy);
    memcpy(copy, nn_download(&product->c), product->c.n * sizeof(float));
    return copy;
}

static void expect_result(const char *what, const product_t *product, const float *expected) {
    nn_assert_same(what, expected, nn_download(&product->c), product->c.n * sizeof(float));
}

/* The workspace of a product that may have fewer rows is as large as those need, and no rows of its
 * own make it smaller; the bits are those of the product alone. */
static void least_rows_body(nn_device_t *device) {
    static const size_t rows[] = {1, 64, 191, 192, 193, 300};
    size_t before = 0;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const size_t shape[3] = {rows[i], 70, 90};
        product_t product = make_product(shape, false, true, mix_of(device, ZR_DTYPE_F32));
        size_t own = zr_nn_matmul_workspace_bytes(device->device, &product.args);
        run_product(device, &product);
        float *alone = copy_result(&product);

        product.args.least_m = rows[i];
        assert_int_equal(zr_nn_matmul_workspace_bytes(device->device, &product.args), own);
        product.args.least_m = 1;
        size_t bytes = zr_nn_matmul_workspace_bytes(device->device, &product.args);
        assert_true(bytes >= own && bytes >= before);
        before = bytes;
        run_product(device, &product);
        expect_result("a product that may have fewer rows", &product, alone);
        free(alone);
        free_product(&product);
    }
}

TEST(test_least_rows) {
    nn_on_every_device(least_rows_body);
}

/* The same product twice, on one device: the same bits. */
static void determinism_body(nn_device_t *device) {
    static const size_t shape[3] = {200, 333, 150};
    product_t product = make_product(shape, true, false, mix_of(device, ZR_DTYPE_F32));
    run_product(device, &product);
    float *first = copy_result(&product);
    for (int i = 0; i < 20; i++) {
        run_product(device, &product);
        expect_result("a product computed again", &product, first);
    }
    free(first);
    free_product(&product);
}

TEST(test_determinism) {
    nn_on_every_device(determinism_body);
}
