/*
 * Matrix products against double precision: shapes that are multiples of nothing and, as some
 * epilogues need, of 8; transposed operands, every dtype, epilogue and alignment.
 */
#include "tests/kernels/nn/nn_test.h"
#include "tests/ref/ref_nn.h"

/* Among them one beyond each side of the blocks that BF16 goes by on the host. */
static const size_t shapes[][3] = {{1, 1, 1},     {3, 5, 7},    {17, 33, 65},  {16, 24, 40},
                                   {9, 64, 8},    {64, 96, 80}, {70, 90, 0},   {150, 67, 131},
                                   {270, 37, 33}, {33, 40, 3},  {41, 9, 1100}, {5, 1300, 20}};
#define N_SHAPES N_OF(shapes)

/* What operands and result are made of. */
typedef struct mix {
    zr_dtype_t a, b, c;
} mix_t;

/* One product, with all operands that it may need, and a b in double. */
typedef struct product {
    nn_device_t *device;
    zr_nn_matmul_t args;
    nn_array_t a, b, c, bias, addend, pre_gelu;
    double *y;
    bool is_off; /* some of it is not aligned */
} product_t;

/* A product of activations with parameters. */
static mix_t mix_of(const nn_device_t *device, zr_dtype_t param_dtype) {
    zr_dtype_t activation = nn_activation_dtype(device, param_dtype);
    return (mix_t){activation, param_dtype, activation};
}

/* All that a device has: activations with both kinds of parameters, and what is left, a result
   of the other dtype than its operands. */
#define N_MIXES 3
static mix_t mix_at(const nn_device_t *device, int index) {
    if (index < 2)
        return mix_of(device, index == 0 ? ZR_DTYPE_F32 : ZR_DTYPE_BF16);
    zr_dtype_t activation = nn_activation_dtype(device, ZR_DTYPE_BF16);
    return (mix_t){activation, activation,
                   activation == ZR_DTYPE_F32 ? ZR_DTYPE_BF16 : ZR_DTYPE_F32};
}

/* Array number `off` is an element off its alignment, as all are on some devices; -1: none. */
static product_t make_product(nn_device_t *device, const size_t shape[3], mix_t mix, int transpose,
                              int off) {
    size_t m = shape[0], n = shape[1], k = shape[2], skip_elems = device->skip_elems;
    product_t p = {.device = device, .y = malloc(m * n * sizeof(double))};
    const struct {
        nn_array_t *array;
        size_t n;
        zr_dtype_t dtype;
        double scale;
    } arrays[] = {{&p.a, m * k, mix.a, 1.0},      {&p.b, k * n, mix.b, 1.0},
                  {&p.c, m * n, mix.c, 1.0},      {&p.bias, n, mix.b, 1.0},
                  {&p.addend, m * n, mix.c, 1.0}, {&p.pre_gelu, m * n, mix.c, 3.0}};
    for (int i = 0; i < 6; i++) {
        device->skip_elems = i == off ? 1 : skip_elems;
        *arrays[i].array =
            nn_array_random(arrays[i].n, arrays[i].dtype, arrays[i].scale, (uint64_t)i + 1);
    }
    device->skip_elems = skip_elems;
    p.is_off = skip_elems > 0 || off >= 0;
    p.args = (zr_nn_matmul_t){.m = m,
                              .n = n,
                              .k = k,
                              .a = p.a.data,
                              .b = p.b.data,
                              .c = p.c.data,
                              .a_dtype = mix.a,
                              .b_dtype = mix.b,
                              .c_dtype = mix.c,
                              .bias_dtype = mix.b,
                              .transpose_a = transpose & 1,
                              .transpose_b = transpose & 2};
    assert_non_null(p.y);
    ref_matmul(p.y, p.a.ref, p.args.transpose_a, p.b.ref, p.args.transpose_b, m, n, k);
    return p;
}

static void free_product(product_t *p) {
    nn_arrays_free(&p->pre_gelu, &p->addend, &p->bias, &p->c, &p->b, &p->a);
    free(p->y);
}

static void run(const product_t *p) {
    nn_call(p->device, matmul, &p->args);
}

/* Whether the product may do the epilogue of such a shape itself: the emulation's does, unless it
 * is told not to; of a GPU's nobody knows. */
static bool has_epilogues(void) {
#if defined(ZR_TESTS_EMULATED)
    return getenv("EMU_NO_EPILOGUES") == NULL;
#else
    return false;
#endif
}

/* A real one. */
static bool is_gpu(const nn_device_t *device) {
    return !has_epilogues() && zr_device_info(device->device)->cuda_major > 0;
}

/* Of a GPU's products every seventh: for a new shape, cuBLASLt chooses and loads a kernel, which
 * takes tens of milliseconds. */
static bool is_left_out(const nn_device_t *device, size_t *n_p) {
    return (*n_p)++ % 7 != 0 && is_gpu(device);
}

/* Whether y may be rounded on its way to the result, because something is done behind the product:
 * on a GPU also what it is added to in place (seen of cuBLASLt 13 on an H200). */
static bool is_rounded(const product_t *p) {
    const zr_nn_matmul_t *args = &p->args;
    bool is_in_place = args->accumulate || (args->addend != NULL && args->addend == args->c);
    if (args->c_dtype == ZR_DTYPE_F32)
        return false;
    if (is_in_place && is_gpu(p->device))
        return true;
    if (args->bias != NULL && (!has_epilogues() || args->k == 0))
        return true;
    if (args->epilogue == ZR_NN_EPILOGUE_NONE)
        return false;
    bool is_fit = args->pre_gelu == NULL || (args->n % 8 == 0 && !p->is_off);
    return !has_epilogues() || !is_fit || args->k == 0 ||
           args->epilogue == ZR_NN_EPILOGUE_GELU_BACKWARD;
}

/* Whether the result may have the errors of the hardware's tanh. */
static bool is_approximate(const product_t *p, const nn_array_t *array) {
    return p->args.epilogue != ZR_NN_EPILOGUE_NONE && p->args.c_dtype == ZR_DTYPE_BF16 &&
           array == &p->c;
}

static void check(const product_t *p, const char *what, const nn_array_t *array) {
    const zr_nn_matmul_t *args = &p->args;
    double tolerance = is_rounded(p) ? 5e-3 : is_approximate(p, array) ? 5e-4 : 2e-6;
    char text[160];
    snprintf(text, sizeof(text), "%s: %zux%zux%zu%s%s, %s to %s%s", what, args->m, args->n, args->k,
             args->transpose_a ? " a^T" : "", args->transpose_b ? " b^T" : "",
             zr_dtype_name(args->b_dtype), zr_dtype_name(args->c_dtype),
             p->is_off ? ", not aligned" : "");
    nn_assert_close(text, array, tolerance);
}

/* What y is with what is added to it: a bias, and an addend. */
static double with_addends(const product_t *p, size_t i) {
    return p->y[i] + (p->args.bias != NULL ? p->bias.ref[i % p->args.n] : 0.0) +
           (p->args.addend != NULL ? p->addend.ref[i] : 0.0);
}

static void run_and_check(product_t *p, const char *what) {
    for (size_t i = 0; i < p->c.n; i++)
        p->c.ref[i] = with_addends(p, i);
    run(p);
    check(p, what, &p->c);
}

static void check_addends(product_t *p) {
    p->args.addend = p->addend.data;
    run_and_check(p, "addend");
    p->args.c = p->addend.data; /* which is its own addend */
    run(p);
    memcpy(p->addend.ref, p->c.ref, p->c.n * sizeof(double));
    check(p, "addend in place", &p->addend);
}

static void check_accumulated(product_t *p) {
    (void)nn_download(&p->c);
    for (size_t i = 0; i < p->c.n; i++)
        p->c.ref[i] = nn_value(&p->c, i) + p->y[i];
    p->args.accumulate = true;
    run(p);
    check(p, "accumulated", &p->c);
}

static void check_gelu(product_t *p, bool is_kept) {
    p->args.epilogue = ZR_NN_EPILOGUE_GELU;
    p->args.pre_gelu = is_kept ? p->pre_gelu.data : NULL;
    for (size_t i = 0; i < p->c.n; i++) {
        p->pre_gelu.ref[i] = is_kept ? with_addends(p, i) : p->pre_gelu.ref[i];
        p->c.ref[i] = ref_gelu(with_addends(p, i));
    }
    run(p);
    check(p, "gelu", &p->c);
    check(p, "before gelu", &p->pre_gelu);
}

static void check_gelu_backward(product_t *p) {
    p->args.epilogue = ZR_NN_EPILOGUE_GELU_BACKWARD;
    p->args.pre_gelu = p->pre_gelu.data;
    for (size_t i = 0; i < p->c.n; i++)
        p->c.ref[i] = with_addends(p, i) * ref_gelu_slope(p->pre_gelu.ref[i]);
    run(p);
    check(p, "gelu backward", &p->c);
    check(p, "its input", &p->pre_gelu);
}

/* With a bias or not: alone, accumulated, with an addend, with GELU that is kept or not, or its
 * gradient. What is done to a product is not done to the next one. */
enum { PLAIN, ADDENDS, GELU, GELU_KEPT, GELU_BACKWARD, N_KINDS };

static void check_product(nn_device_t *device, const size_t shape[3], mix_t mix, int transpose,
                          int kind, bool has_bias) {
    product_t p = make_product(device, shape, mix, transpose, -1);
    p.args.bias = has_bias ? p.bias.data : NULL;
    if (kind == PLAIN)
        run_and_check(&p, "product");
    if (kind == PLAIN && !has_bias)
        check_accumulated(&p);
    if (kind == ADDENDS)
        check_addends(&p);
    if (kind == GELU || kind == GELU_KEPT)
        check_gelu(&p, kind == GELU_KEPT);
    if (kind == GELU_BACKWARD)
        check_gelu_backward(&p);
    free_product(&p);
}

NN_TEST(test_products) {
    size_t n = 0;
    for (size_t s = 0; s < N_SHAPES; s++)
        for (int variant = 0; variant < 4 * N_MIXES; variant++) {
            mix_t mix = mix_at(device, variant / 4);
            /* On the host, a result in bf16 is a gradient, which goes with nothing else. */
            int n_kinds = mix.c == ZR_DTYPE_BF16 && mix.b == ZR_DTYPE_F32 ? 1 : 2 * N_KINDS;
            for (int kind = 0; kind < n_kinds; kind++)
                if (ONE_OF(1, 7) && !is_left_out(device, &n))
                    check_product(device, shapes[s], mix, variant % 4, kind / 2, kind % 2);
        }
}

/* Every address counts by itself: one that is aligned to its element alone is served as well, and
 * no algorithm that would need more of it is taken. */
NN_TEST(test_one_address_is_off) {
    static const size_t shape[3] = {16, 24, 8};
    for (int off = 0; off < 6; off++)
        for (int kind = 0; kind < N_KINDS; kind++) {
            product_t p = make_product(device, shape, mix_of(device, ZR_DTYPE_BF16), 0, off);
            p.args.bias = p.bias.data;
            if (kind == ADDENDS)
                check_addends(&p);
            else if (kind == GELU_BACKWARD)
                check_gelu_backward(&p);
            else
                check_gelu(&p, kind == GELU_KEPT);
            free_product(&p);
        }
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
NN_TEST(test_least_rows) {
    static const size_t rows[] = {1, 64, 191, 192, 193, 300};
    size_t before = 0;
    for (size_t i = 0; i < N_OF(rows); i++) {
        const size_t shape[3] = {rows[i], 70, 90};
        product_t product = make_product(device, shape, mix_of(device, ZR_DTYPE_F32), 2, -1);
        size_t own = zr_nn_matmul_workspace_bytes(device->device, &product.args);
        run(&product);
        float *alone = copy_result(&product);

        product.args.least_m = rows[i];
        assert_int_equal(zr_nn_matmul_workspace_bytes(device->device, &product.args), own);
        product.args.least_m = 1;
        size_t bytes = zr_nn_matmul_workspace_bytes(device->device, &product.args);
        assert_true(bytes >= own && bytes >= before);
        before = bytes;
        run(&product);
        expect_result("a product that may have fewer rows", &product, alone);
        free(alone);
        free_product(&product);
    }
}

/* The same product twice, on one device: the same bits. */
NN_TEST(test_determinism) {
    static const size_t shape[3] = {200, 333, 150};
    product_t product = make_product(device, shape, mix_of(device, ZR_DTYPE_F32), 1, -1);
    run(&product);
    float *first = copy_result(&product);
    for (int i = 0; i < (TEST_IS_SLOW ? 3 : 20); i++) {
        run(&product);
        expect_result("a product computed again", &product, first);
    }
    free(first);
    free_product(&product);
}

/* ---- rows that are parts of longer ones ------------------------------------------------------ */

enum { GAP_A = 13, GAP_C = 11 };

/* The product's own a and c, in rows that are longer by these gaps; those of c stay as they are. */
static void check_apart(product_t *p, bool accumulate) {
    zr_nn_matmul_t *args = &p->args;
    size_t rows_a = args->transpose_a ? args->k : args->m, m = args->m, n = args->n;
    size_t width_a = args->transpose_a ? args->m : args->k;
    args->lda = width_a + GAP_A;
    args->ldc = n + GAP_C;
    nn_array_t a = nn_array_random(rows_a * args->lda, args->a_dtype, 1.0, 11);
    nn_array_t c = nn_array_random(m * args->ldc, args->c_dtype, 1.0, 12);
    for (size_t i = 0; i < rows_a * width_a; i++)
        nn_set_value(&a, i / width_a * args->lda + i % width_a, p->a.ref[i]);
    nn_upload(&a);
    for (size_t i = 0; i < m * n; i++) {
        double *ref = &c.ref[i / n * args->ldc + i % n];
        *ref = with_addends(p, i) + (accumulate ? *ref : 0.0);
    }
    args->a = a.data;
    args->c = c.data;
    args->accumulate = accumulate;
    run(p);
    check(p, accumulate ? "accumulated in rows that are apart" : "rows that are apart", &c);
    for (size_t i = 0; i < c.n; i++)
        if (i % args->ldc >= n && nn_value(&c, i) != c.ref[i])
            fail_msg("element %zu, between two rows, was written", i);
    nn_array_free(&c);
    nn_array_free(&a);
}

NN_TEST(test_rows_apart) {
    size_t n = 0;
    for (size_t s = 0; s < N_SHAPES; s++)
        for (int variant = 0; variant < 4 * N_MIXES && shapes[s][2] > 0; variant++)
            for (int kind = 0; kind < 3; kind++) { /* alone, accumulated, with a bias */
                mix_t mix = mix_at(device, variant / 4);
                if ((kind == 2 && mix.c == ZR_DTYPE_BF16 && mix.b == ZR_DTYPE_F32) ||
                    !ONE_OF(1, 5) || is_left_out(device, &n))
                    continue;
                product_t p = make_product(device, shapes[s], mix, variant % 4, -1);
                p.args.bias = kind == 2 ? p.bias.data : NULL;
                check_apart(&p, kind == 1);
                free_product(&p);
            }
}
