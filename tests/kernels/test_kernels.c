/*
 * The runtime's kernels against their oracle in double precision, on the device whose
 * name is the first argument (host when there is none), in every mix of dtypes, at
 * sizes and offsets that fit nothing. Device memory is reached by copies only.
 */
#include <float.h>

#include "kernels/device_fixture.h"
#include "ref/ref_kernels.h"
#include "zero/optim/optimizer.h"

static const char *device_name;

/* Around the sizes of vectors, lanes, blocks and pieces, and primes. */
#define MAX_ELEMS (TEST_IS_SLOW ? 262147 : 1048583)
static const size_t sizes[] = {0,    1,    2,     7,     15,    16,    17,    31,
                               127,  130,  131,   132,   255,   256,   257,   1021,
                               2048, 4099, 16383, 16384, 16385, 32771, 65537, MAX_ELEMS};
#define N_SIZES N_OF(sizes)
static const zr_dtype_t dtypes[] = {ZR_DTYPE_F32, ZR_DTYPE_BF16};

static int setup(void **state) {
    static fixture_t fixture;
    fixture_open(&fixture, device_name, 2, NULL);
    *state = &fixture;
    return 0;
}

static int teardown(void **state) {
    fixture_close(*state);
    return 0;
}

/* ---- arrays of either dtype -------------------------------------------------------- */

/* An array in host memory, the values it holds as floats, and its place on the device. */
typedef struct array {
    zr_dtype_t dtype;
    size_t n_elems, size_bytes;
    void *bytes;
    float *values;
    void *device;
} array_t;

static uint16_t bf16_of(float value) {
    return ref_bf16_nearest(value);
}

static float value_at(const void *bytes, zr_dtype_t dtype, size_t i) {
    return dtype == ZR_DTYPE_F32 ? ((const float *)bytes)[i]
                                 : (float)ref_bf16_value(((const uint16_t *)bytes)[i]);
}

/* Element i is some value of magnitude up to `scale`, exactly as dtype can hold it. The place is
 * `skip` elements off a multiple of 256 bytes, and one guard element follows. */
static array_t make_array(fixture_t *f, zr_dtype_t dtype, size_t n_elems, size_t skip, float scale,
                          uint64_t seed) {
    array_t array = {.dtype = dtype, .n_elems = n_elems};
    size_t elem = zr_dtype_size(dtype);
    array.size_bytes = (n_elems + 1) * elem;
    array.bytes = malloc(array.size_bytes);
    array.values = malloc((n_elems + 1) * sizeof(float));
    for (size_t i = 0; i <= n_elems; i++) {
        float value = scale * fixture_random_float(&seed);
        if (dtype == ZR_DTYPE_F32)
            ((float *)array.bytes)[i] = value;
        else
            ((uint16_t *)array.bytes)[i] = bf16_of(value);
        array.values[i] = value_at(array.bytes, dtype, i);
    }
    array.device = fixture_place(f, array.bytes, array.size_bytes, skip * elem);
    return array;
}

/* Read the array back; the guard element must be as it was. */
static void fetch(fixture_t *f, const array_t *array, void *bytes) {
    size_t elem = zr_dtype_size(array->dtype);
    fixture_download(f, bytes, array->device, array->size_bytes);
    assert_memory_equal((char *)bytes + array->n_elems * elem,
                        (char *)array->bytes + array->n_elems * elem, elem);
}

/* The array on the device holds exactly these values, each rounded once to its dtype. */
static void assert_holds(fixture_t *f, const array_t *array, const float *expected) {
    void *bytes = malloc(array->size_bytes);
    fetch(f, array, bytes);
    for (size_t i = 0; i < array->n_elems; i++) {
        float got = value_at(bytes, array->dtype, i);
        float want = array->dtype == ZR_DTYPE_F32 ? expected[i]
                                                  : (float)ref_bf16_value(bf16_of(expected[i]));
        if (memcmp(&got, &want, sizeof(got)) != 0)
            fail_msg("element %zu of %zu (%s): %.9g, expected %.9g", i, array->n_elems,
                     zr_dtype_name(array->dtype), (double)got, (double)want);
    }
    free(bytes);
}

static void free_array(array_t *array) {
    free(array->bytes);
    free(array->values);
}

/* ---- updates ---------------------------------------------------------------------- */

#define MAX_ARRAYS 3 /* of a state */

typedef struct update_case {
    const zr_optimizer_type_t *optimizer;
    size_t n_elems, skip;
    zr_dtype_t grad_dtype, param_dtype;
    float grad_scale, weight_decay, magnitude;
    float hyper[3];
    int step;
} update_case_t;

static void assert_near(const char *what, size_t i, double got, double want, double bound) {
    if (!(fabs(got - want) <= bound))
        fail_msg("%s[%zu]: %.17g, expected %.17g within %g", what, i, got, want, bound);
}

/* What an element of each array of the state becomes, and how far it may be off. */
typedef struct wanted {
    double value[MAX_ARRAYS], bound[MAX_ARRAYS];
} wanted_t;

static wanted_t refer(const zr_update_rule_t *rule, const zr_update_t *args, const double *state,
                      double grad) {
    double grad_scale = (double)args->grad_scale, lr = (double)args->lr;
    double decay = (double)args->weight_decay, hyper[3];
    for (int k = 0; k < 3; k++)
        hyper[k] = (double)args->hyper[k];
    if (rule == &zr_adamw.rule) {
        const ref_adamw_t ref = {grad_scale, lr, hyper[0], hyper[1], hyper[2], decay, args->step};
        ref_adamw_result_t r = ref_adamw_element(&ref, state[0], state[1], state[2], grad);
        return (wanted_t){{r.master, r.m, r.v}, {r.master_bound, r.m_bound, r.v_bound}};
    }
    const ref_lion_t lion = {grad_scale, lr, hyper[0], hyper[1], decay};
    const ref_sgd_t sgd = {grad_scale, lr, hyper[0], decay, hyper[1] != 0.0};
    ref_two_result_t r = rule == &zr_lion.rule ? ref_lion_element(&lion, state[0], state[1], grad)
                                               : ref_sgd_element(&sgd, state[0], state[1], grad);
    return (wanted_t){{r.master, r.other}, {r.master_bound, r.other_bound}};
}

static void check_results(fixture_t *f, const zr_update_rule_t *rule, const zr_update_t *args,
                          const array_t *state, const array_t *grad, const array_t *param) {
    float *results[MAX_ARRAYS];
    for (size_t k = 0; k < rule->n_arrays; k++) {
        results[k] = malloc(state[k].size_bytes);
        fetch(f, &state[k], results[k]);
    }
    for (size_t i = 0; i < args->n_elems; i++) {
        double before[MAX_ARRAYS] = {0};
        for (size_t k = 0; k < rule->n_arrays; k++)
            before[k] = (double)state[k].values[i];
        wanted_t want = refer(rule, args, before, (double)grad->values[i]);
        for (size_t k = 0; k < rule->n_arrays; k++)
            assert_near(rule->arrays[k].name, i, (double)results[k][i], want.value[k],
                        want.bound[k]);
    }
    assert_holds(f, grad, grad->values); /* it is only read */
    for (size_t i = 0; param->dtype == ZR_DTYPE_BF16 && i < args->n_elems; i++)
        results[0][i] = (float)ref_bf16_value(ref_bf16_of_master(results[0][i]));
    assert_holds(f, param, results[0]); /* the master, rounded */
    for (size_t k = 0; k < rule->n_arrays; k++)
        free(results[k]);
}

static void check_update(fixture_t *f, const update_case_t *c) {
    static const size_t skips[MAX_ARRAYS] = {7, 3, 2};
    const zr_update_rule_t *rule = &c->optimizer->rule;
    array_t state[MAX_ARRAYS];
    zr_update_t args = {.n_elems = c->n_elems,
                        .grad_dtype = c->grad_dtype,
                        .param_dtype = c->param_dtype,
                        .grad_scale = c->grad_scale,
                        .lr = 3e-3f,
                        .hyper = {c->hyper[0], c->hyper[1], c->hyper[2]},
                        .weight_decay = c->weight_decay,
                        .step = c->step};
    fixture_reset(f);
    for (size_t k = 0; k < rule->n_arrays; k++) {
        state[k] = make_array(f, ZR_DTYPE_F32, c->n_elems, c->skip ? skips[k] : 0,
                              k == 0 ? 1.0f : c->magnitude, k + 1);
        for (size_t i = 0; k == 2 && i <= c->n_elems; i++) /* v is a sum of squares */
            ((float *)state[k].bytes)[i] = state[k].values[i] *= state[k].values[i];
        fixture_upload(f, state[k].device, state[k].bytes, state[k].size_bytes);
        args.arrays[k] = state[k].device;
    }
    array_t grad = make_array(f, c->grad_dtype, c->n_elems, c->skip ? 5 : 0, c->magnitude, 4);
    array_t param = make_array(f, c->param_dtype, c->n_elems, c->skip ? 1 : 0, 1.0f, 5);
    args.grad = grad.device;
    args.param = param.device;
    assert_ok(zr_kernel_update(f->stream, rule, &args));
    assert_ok(zr_stream_synchronize(f->stream));
    check_results(f, rule, &args, state, &grad, &param);
    for (size_t k = 0; k < rule->n_arrays; k++)
        free_array(&state[k]);
    free_array(&grad);
    free_array(&param);
}

TEST(test_update_sizes) {
    static const update_case_t cases[] = {
        {.optimizer = &zr_adamw, .hyper = {0.9f, 0.95f, 1e-8f}, .step = 3},
        {.optimizer = &zr_lion, .hyper = {0.9f, 0.99f}, .step = 1},
        {.optimizer = &zr_sgd, .hyper = {0.9f}, .step = 1}};
    for (size_t s = 0; s < N_SIZES; s++)
        for (size_t mix = 0; mix < 12; mix++) {
            update_case_t c = cases[mix / 4];
            c.n_elems = sizes[s];
            c.skip = s % 2;
            c.grad_dtype = dtypes[mix / 2 % 2];
            c.param_dtype = dtypes[mix % 2];
            c.grad_scale = 0.37f;
            c.weight_decay = 0.1f;
            c.magnitude = 1.0f;
            if (c.optimizer == &zr_sgd)
                c.hyper[1] = (float)(s % 2);
            if ((sizes[s] < MAX_ELEMS || mix % 4 == 0 || mix == 3) && ONE_OF(1, 5))
                check_update(*state, &c);
        }
}

TEST(test_update_factors) {
    const float usual = 1e-8f;
    const update_case_t cases[] = {
        /* optimizer, n, skip, grad, param, scale, decay, magnitude, numbers, step */
        {&zr_adamw, 3001, 0, 0, 0, 1.0f, 0.0f, 1.0f, {0.9f, 0.95f, usual}, 1},       /* the first */
        {&zr_adamw, 3001, 0, 0, 0, 1.0f, 0.01f, 1.0f, {0.9f, 0.95f, usual}, 100000}, /* late */
        {&zr_adamw, 3001, 0, 0, 0, 1e-4f, 0.1f, 1e3f, {0.9f, 0.95f, 1e-6f}, 2},   /* clipped hard */
        {&zr_adamw, 3001, 0, 0, 0, 1.0f, 0.1f, 1e-18f, {0.9f, 0.95f, usual}, 10}, /* small v */
        {&zr_adamw, 3001, 0, 0, 0, 1.0f, 0.1f, 1e-30f, {0.9f, 0.95f, usual}, 10}, /* v underflows */
        {&zr_adamw, 3001, 0, 1, 1, 1.0f, 0.1f, 1e15f, {0.9f, 0.95f, usual}, 10},  /* the largest */
        {&zr_adamw, 3001, 0, 0, 0, 0.0f, 0.1f, 1.0f, {0.9f, 0.95f, usual}, 10},   /* no gradient */
        {&zr_adamw, 3001, 0, 0, 0, -1.0f, 0.1f, 1.0f, {0.9f, 0.95f, usual}, 10},
        {&zr_lion, 3001, 0, 0, 0, 1.0f, 0.0f, 1.0f, {0.9f, 0.99f}, 1},
        {&zr_lion, 3001, 0, 1, 1, 1e-4f, 0.1f, 1e3f, {0.0f, 0.0f}, 1},
        {&zr_lion, 3001, 0, 0, 0, 1.0f, 0.1f, 1e-38f, {0.9f, 0.99f}, 1}, /* underflows */
        {&zr_lion, 3001, 0, 0, 0, 0.0f, 0.1f, 0.0f, {0.9f, 0.99f}, 1},   /* the sign of 0 is 0 */
        {&zr_lion, 3001, 0, 0, 0, -1.0f, 0.1f, 1e30f, {0.5f, 0.5f}, 1},
        {&zr_sgd, 3001, 0, 0, 0, 1.0f, 0.0f, 1.0f, {0.0f, 0.0f}, 1},
        {&zr_sgd, 3001, 0, 0, 0, 1.0f, 0.0f, 1.0f, {0.9f, 1.0f}, 1},
        {&zr_sgd, 3001, 0, 1, 1, 1e-4f, 0.1f, 1e3f, {0.9f, 1.0f}, 1},
        {&zr_sgd, 3001, 0, 0, 0, 1.0f, 0.1f, 1e-38f, {0.99f, 0.0f}, 1},
        {&zr_sgd, 3001, 0, 0, 0, -1.0f, 0.5f, 1e30f, {0.5f, 1.0f}, 1},
    };
    for (size_t i = 0; i < N_OF(cases); i++)
        check_update(*state, &cases[i]);
}

/* A NaN or infinite gradient shows in what it updates, and nowhere else: as AdamW divides it by
 * itself a NaN, in Lion as its sign. */
TEST(test_update_not_finite) {
    fixture_t *f = *state;
    enum { n_elems = 1000 };
    float ones[n_elems], grad[n_elems], results[n_elems];
    const zr_optimizer_type_t *optimizers[] = {&zr_adamw, &zr_lion, &zr_sgd};
    for (size_t i = 0; i < n_elems; i++)
        ones[i] = 1.0f, grad[i] = i == 100 ? NAN : i == 200 ? INFINITY : 0.5f;
    for (int k = 0; k < 3; k++) {
        fixture_reset(f);
        zr_update_t args = {.n_elems = n_elems,
                            .grad = fixture_place(f, grad, sizeof(grad), 0),
                            .param = fixture_place(f, ones, sizeof(ones), 0),
                            .grad_scale = 1.0f,
                            .lr = 0.1f,
                            .hyper = {0.9f, k == 0 ? 0.99f : 0.5f, k == 0 ? 1e-8f : 0.0f},
                            .step = 1};
        for (size_t n = 0; n < optimizers[k]->rule.n_arrays; n++)
            args.arrays[n] = fixture_place(f, ones, sizeof(ones), 0);
        assert_ok(zr_kernel_update(f->stream, &optimizers[k]->rule, &args));
        const void *shown[] = {args.param, args.arrays[0]};
        for (int n = 0; n < 2; n++) {
            fixture_download(f, results, shown[n], sizeof(results));
            for (size_t i = 0; i < n_elems; i++) {
                assert_int_equal(isnan(results[i]) != 0, i == 100 || (i == 200 && k == 0));
                assert_int_equal(isinf(results[i]) != 0, i == 200 && k == 2);
            }
        }
        fixture_download(f, results, args.arrays[1], sizeof(results));
        for (size_t i = 0; i < n_elems; i++)
            assert_int_equal(isfinite(results[i]) != 0, i != 100 && i != 200);
    }
}

TEST(test_update_refusals) {
    fixture_t *f = *state;
    fixture_reset(f);
    float *x = fixture_take(f, 64, 0);
    const zr_update_t good = {.n_elems = 2,
                              .arrays = {x, x + 2, x + 4},
                              .grad = x + 6,
                              .param = x + 8,
                              .grad_scale = 1.0f,
                              .lr = 0.1f,
                              .hyper = {0.9f, 0.99f, 1e-8f},
                              .weight_decay = 0.1f,
                              .step = 1};
    assert_ok(zr_kernel_fill(f->stream, x, ZR_DTYPE_F32, 16, 1.0f));
    assert_ok(zr_kernel_update(f->stream, &zr_adamw.rule, &good));
#define REFUSED_WITH(member, value)                                                                \
    do {                                                                                           \
        zr_update_t bad = good;                                                                    \
        bad.member = value;                                                                        \
        assert_refused(f, ZR_ERR_ARGUMENT, zr_kernel_update(f->stream, &zr_adamw.rule, &bad));     \
    } while (0)
    REFUSED_WITH(arrays[0], NULL);
    REFUSED_WITH(arrays[1], NULL);
    REFUSED_WITH(arrays[2], NULL);
    REFUSED_WITH(grad, NULL);
    REFUSED_WITH(param, NULL);
    REFUSED_WITH(arrays[0], (float *)((char *)x + 2));
    REFUSED_WITH(grad, (char *)x + 1);
    REFUSED_WITH(grad_dtype, ZR_DTYPE_I32);
    REFUSED_WITH(param_dtype, ZR_DTYPE_F64);
    REFUSED_WITH(param_dtype, (zr_dtype_t)99);
    REFUSED_WITH(n_elems, SIZE_MAX);
    REFUSED_WITH(step, 0);
    REFUSED_WITH(step, -5);
    REFUSED_WITH(hyper[0], 1.0f);
    REFUSED_WITH(hyper[0], -0.1f);
    REFUSED_WITH(hyper[1], 1.0f);
    REFUSED_WITH(hyper[1], NAN);
    REFUSED_WITH(lr, -1.0f);
    REFUSED_WITH(lr, INFINITY);
    REFUSED_WITH(hyper[2], -1e-8f);
    REFUSED_WITH(weight_decay, NAN);
    REFUSED_WITH(grad_scale, INFINITY);
#undef REFUSED_WITH
}

/* ---- sum of squares ----------------------------------------------------------------- */

static double device_sum_of_squares(fixture_t *f, const array_t *x) {
    size_t workspace_bytes = zr_sum_of_squares_workspace_bytes(x->n_elems);
    void *workspace = workspace_bytes > 0 ? fixture_take(f, workspace_bytes, 8) : NULL;
    double *result = fixture_take(f, sizeof(double), 8);
    assert_ok(
        zr_kernel_sum_of_squares(f->stream, x->device, x->dtype, x->n_elems, result, workspace));
    double value = -1.0;
    fixture_download(f, &value, result, sizeof(value));
    return value;
}

TEST(test_sum_of_squares) {
    fixture_t *f = *state;
    for (size_t s = 0; s < N_SIZES; s++)
        for (size_t d = 0; d < 2; d++)
            for (size_t skip = 0; skip < 2; skip++) {
                fixture_reset(f);
                array_t x = make_array(f, dtypes[d], sizes[s], skip, 3.0f, s);
                double got = device_sum_of_squares(f, &x);
                double exact = (double)ref_sum_of_squares(x.values, x.n_elems);
                /* Additions that one addend goes through: in its lane, and in the trees. */
                double n_additions = (double)sizes[s] / 256.0 + 64.0 + 16.0;
                assert_near("sum of squares", sizes[s], got, exact, exact * n_additions * 0x1p-53);
                double in_order = ref_sum_of_squares_in_order(x.values, x.n_elems);
                assert_memory_equal(&got, &in_order, sizeof(got));
                free_array(&x);
            }
}

TEST(test_sum_of_squares_extremes) {
    fixture_t *f = *state;
    const float odd[] = {NAN, INFINITY, -INFINITY, FLT_MAX, FLT_MIN, 0x1p-149f, -0.0f};
    for (size_t k = 0; k < N_OF(odd); k++)
        for (size_t place = 0; place < 40000; place += 13331) {
            fixture_reset(f);
            array_t x = make_array(f, ZR_DTYPE_F32, 40000, 0, 0.0f, 1);
            ((float *)x.bytes)[place] = odd[k];
            fixture_upload(f, x.device, x.bytes, x.size_bytes);
            double got = device_sum_of_squares(f, &x);
            double want = (double)odd[k] * (double)odd[k];
            assert_true(isnan(want) ? isnan(got) : got == want);
            free_array(&x);
        }
}

TEST(test_sum_of_squares_refusals) {
    fixture_t *f = *state;
    fixture_reset(f);
    void *x = fixture_take(f, 80000, 0);
    double *result = fixture_take(f, 16, 0), *workspace = fixture_take(f, 1024, 0);
    size_t n = 20000;
    assert_int_equal(zr_sum_of_squares_workspace_bytes(0), 0);
    assert_int_equal(zr_sum_of_squares_workspace_bytes(16384), 0);
    assert_true(zr_sum_of_squares_workspace_bytes(16385) > 0);
    assert_true(zr_sum_of_squares_workspace_bytes(n) <= 1024);
    assert_refused(f, ZR_ERR_ARGUMENT,
                   zr_kernel_sum_of_squares(f->stream, x, ZR_DTYPE_F32, n, result, NULL));
    assert_refused(f, ZR_ERR_ARGUMENT,
                   zr_kernel_sum_of_squares(f->stream, x, ZR_DTYPE_F32, n, NULL, workspace));
    assert_refused(f, ZR_ERR_ARGUMENT,
                   zr_kernel_sum_of_squares(f->stream, x, ZR_DTYPE_F64, n, result, workspace));
    assert_refused(f, ZR_ERR_ARGUMENT,
                   zr_kernel_sum_of_squares(f->stream, NULL, ZR_DTYPE_F32, n, result, workspace));
    assert_refused(f, ZR_ERR_ARGUMENT,
                   zr_kernel_sum_of_squares(f->stream, x, ZR_DTYPE_F32, n,
                                            (double *)((char *)result + 4), workspace));
}

/* ---- add, scale, cast, fill ------------------------------------------------------------ */

TEST(test_add) {
    fixture_t *f = *state;
    float *expected = malloc(MAX_ELEMS * sizeof(float));
    for (size_t s = 0; s < N_SIZES; s++)
        for (size_t mix = 0; mix < 4; mix++) {
            fixture_reset(f);
            array_t dst = make_array(f, dtypes[mix / 2], sizes[s], s % 3, 2.0f, s);
            array_t src = make_array(f, dtypes[mix % 2], sizes[s], s % 2, 2.0f, s + 100);
            for (size_t i = 0; i < sizes[s]; i++)
                expected[i] = ref_add(dst.values[i], src.values[i]);
            assert_ok(
                zr_kernel_add(f->stream, dst.device, dst.dtype, src.device, src.dtype, sizes[s]));
            assert_holds(f, &dst, expected);
            assert_holds(f, &src, src.values);
            free_array(&dst);
            free_array(&src);
        }
    free(expected);
}

TEST(test_scale) {
    fixture_t *f = *state;
    float *expected = malloc(MAX_ELEMS * sizeof(float));
    const float factors[] = {0.3333333f, -2.5e-40f, 0.0f, 1e38f};
    for (size_t s = 0; s < N_SIZES; s++)
        for (size_t d = 0; d < 2; d++) {
            fixture_reset(f);
            float factor = factors[s % 4];
            array_t x = make_array(f, dtypes[d], sizes[s], s % 3, 2.0f, s);
            for (size_t i = 0; i < sizes[s]; i++)
                expected[i] = ref_multiply(x.values[i], factor);
            assert_ok(zr_kernel_scale(f->stream, x.device, x.dtype, sizes[s], factor));
            assert_holds(f, &x, expected);
            free_array(&x);
        }
    free(expected);
}

TEST(test_cast_and_fill) {
    fixture_t *f = *state;
    float *expected = malloc(MAX_ELEMS * sizeof(float));
    for (size_t s = 0; s < N_SIZES; s++)
        for (size_t mix = 0; mix < 4; mix++) {
            fixture_reset(f);
            array_t dst = make_array(f, dtypes[mix / 2], sizes[s], s % 3, 1.0f, s);
            array_t src = make_array(f, dtypes[mix % 2], sizes[s], s % 2, 1.0f, s + 100);
            assert_ok(
                zr_kernel_cast(f->stream, dst.device, dst.dtype, src.device, src.dtype, sizes[s]));
            assert_holds(f, &dst, src.values);
            for (size_t i = 0; i < sizes[s]; i++)
                expected[i] = 1.2345678f;
            assert_ok(zr_kernel_fill(f->stream, dst.device, dst.dtype, sizes[s], 1.2345678f));
            assert_holds(f, &dst, expected);
            free_array(&dst);
            free_array(&src);
        }
    free(expected);
}

TEST(test_element_refusals) {
    fixture_t *f = *state;
    fixture_reset(f);
    char *x = fixture_take(f, 256, 0);
    zr_stream_t *s = f->stream;
    const zr_dtype_t f32 = ZR_DTYPE_F32, bf16 = ZR_DTYPE_BF16;
    assert_refused(f, ZR_ERR_ARGUMENT, zr_kernel_add(s, NULL, f32, x, f32, 4));
    assert_refused(f, ZR_ERR_ARGUMENT, zr_kernel_add(s, x, f32, NULL, f32, 4));
    assert_refused(f, ZR_ERR_ARGUMENT, zr_kernel_add(s, x, ZR_DTYPE_U8, x, f32, 4));
    assert_refused(f, ZR_ERR_ARGUMENT, zr_kernel_add(s, x, f32, x, ZR_DTYPE_I32, 4));
    assert_refused(f, ZR_ERR_ARGUMENT, zr_kernel_scale(s, x + 1, bf16, 4, 1.0f));
    assert_refused(f, ZR_ERR_ARGUMENT, zr_kernel_scale(s, x, ZR_DTYPE_F64, 4, 1.0f));
    assert_refused(f, ZR_ERR_ARGUMENT, zr_kernel_cast(s, x, f32, x + 129, bf16, 4));
    assert_refused(f, ZR_ERR_ARGUMENT, zr_kernel_cast(s, x, (zr_dtype_t)-1, x + 128, bf16, 4));
    assert_refused(f, ZR_ERR_ARGUMENT, zr_kernel_fill(s, x + 2, f32, 4, 1.0f));
    assert_refused(f, ZR_ERR_ARGUMENT, zr_kernel_fill(s, x, f32, SIZE_MAX / 4, 1.0f));
    /* Nothing to do is always possible. */
    assert_ok(zr_kernel_add(s, NULL, f32, NULL, bf16, 0));
    assert_ok(zr_kernel_scale(s, NULL, f32, 0, 1.0f));
    assert_ok(zr_kernel_cast(s, NULL, bf16, NULL, f32, 0));
    assert_ok(zr_kernel_fill(s, NULL, bf16, 0, 1.0f));
}

/* ---- sum of sources ----------------------------------------------------------------------- */

/* Sum `n_sources` arrays into `dst_index` of them, or into another array when that is -1. */
static void check_sum(fixture_t *f, zr_dtype_t dtype, size_t n_elems, int n_sources,
                      int dst_index) {
    fixture_reset(f);
    array_t *arrays = calloc((size_t)n_sources + 1, sizeof(*arrays));
    const void **sources = calloc((size_t)n_sources, sizeof(*sources));
    float *expected = malloc((n_elems + 1) * sizeof(float));
    for (int k = 0; k <= n_sources; k++) {
        arrays[k] = make_array(f, dtype, n_elems, (size_t)k % 3, 1.0f, (uint64_t)k + 7);
        if (k < n_sources)
            sources[k] = arrays[k].device;
    }
    for (size_t i = 0; i < n_elems; i++) {
        expected[i] = arrays[0].values[i];
        for (int k = 1; k < n_sources; k++)
            expected[i] = ref_add(expected[i], arrays[k].values[i]);
    }
    int dst = dst_index >= 0 ? dst_index : n_sources;
    assert_ok(zr_kernel_sum(f->stream, arrays[dst].device, sources, n_sources, dtype, n_elems));
    assert_holds(f, &arrays[dst], expected);
    for (int k = 0; k <= n_sources; k++) {
        if (k != dst)
            assert_holds(f, &arrays[k], arrays[k].values);
        free_array(&arrays[k]);
    }
    free(expected);
    free(sources);
    free(arrays);
}

TEST(test_sum) {
    const int counts[] = {1, 2, 3, 4, 5, 6, 8, 9, 13};
    for (size_t d = 0; d < 2; d++)
        for (size_t c = 0; c < N_OF(counts); c++)
            for (size_t s = 0; s < N_SIZES; s++) {
                bool large = sizes[s] > 70000;
                if ((!large || counts[c] == 3) && ONE_OF(1, 5))
                    check_sum(*state, dtypes[d], sizes[s], counts[c], (int)s % 2 - 1);
            }
}

TEST(test_sum_into_a_source) {
    for (size_t d = 0; d < 2; d++)
        for (int dst = 0; dst < 6; dst++)
            check_sum(*state, dtypes[d], 33333, 6, dst);
}

TEST(test_sum_of_most_sources) {
    check_sum(*state, ZR_DTYPE_F32, 1009, ZR_MAX_SUM_SOURCES, -1);
    check_sum(*state, ZR_DTYPE_BF16, 1009, ZR_MAX_SUM_SOURCES, 500);
}

/* 2^24 + 1 + 1 is 2^24 in fp32 from the left, and more from the right. */
TEST(test_sum_keeps_the_order) {
    fixture_t *f = *state;
    fixture_reset(f);
    float big = 0x1p24f, one = 1.0f, result = 0.0f;
    void *a = fixture_place(f, &big, 4, 0), *b = fixture_place(f, &one, 4, 0);
    void *c = fixture_place(f, &one, 4, 0), *dst = fixture_take(f, 4, 0);
    const void *from_big[] = {a, b, c}, *from_small[] = {b, c, a};
    assert_ok(zr_kernel_sum(f->stream, dst, from_big, 3, ZR_DTYPE_F32, 1));
    fixture_download(f, &result, dst, 4);
    assert_true(result == 0x1p24f);
    assert_ok(zr_kernel_sum(f->stream, dst, from_small, 3, ZR_DTYPE_F32, 1));
    fixture_download(f, &result, dst, 4);
    assert_true(result == 0x1p24f + 2.0f);
}

TEST(test_sum_refusals) {
    fixture_t *f = *state;
    fixture_reset(f);
    float *x = fixture_take(f, 64, 0);
    const void *sources[] = {x, NULL};
    assert_refused(f, ZR_ERR_ARGUMENT, zr_kernel_sum(f->stream, x, sources, 0, ZR_DTYPE_F32, 4));
    assert_refused(f, ZR_ERR_ARGUMENT, zr_kernel_sum(f->stream, x, sources, -1, ZR_DTYPE_F32, 4));
    assert_refused(f, ZR_ERR_ARGUMENT, zr_kernel_sum(f->stream, x, sources, 2, ZR_DTYPE_F32, 4));
    assert_refused(f, ZR_ERR_ARGUMENT, zr_kernel_sum(f->stream, x, NULL, 1, ZR_DTYPE_F32, 4));
    assert_refused(f, ZR_ERR_ARGUMENT,
                   zr_kernel_sum(f->stream, x, sources, ZR_MAX_SUM_SOURCES + 1, ZR_DTYPE_F32, 4));
    assert_refused(f, ZR_ERR_ARGUMENT, zr_kernel_sum(f->stream, x, sources, 1, ZR_DTYPE_I32, 4));
    assert_refused(f, ZR_ERR_ARGUMENT, zr_kernel_sum(f->stream, NULL, sources, 1, ZR_DTYPE_F32, 4));
    assert_ok(zr_kernel_sum(f->stream, x, sources, 2, ZR_DTYPE_F32, 0));
}

/* ---- to several places ---------------------------------------------------------------------- */

/* Sum `n_sources` arrays to `n_dsts` others, of which the first is source number `source_dst`,
 * unless that is -1. Every third array begins where no cache line does. */
static void check_spread(fixture_t *f, zr_dtype_t dtype, size_t n_elems, int n_sources, int n_dsts,
                         int source_dst) {
    enum { MOST = 32 };
    array_t arrays[2 * MOST];
    const void *sources[MOST];
    void *dsts[MOST];
    float *expected = malloc((n_elems + 1) * sizeof(float));
    fixture_reset(f);
    for (int k = 0; k < n_sources + n_dsts; k++) {
        arrays[k] = make_array(f, dtype, n_elems, k % 3 == 2, 1.0f, (uint64_t)k + 7);
        if (k < n_sources)
            sources[k] = arrays[k].device;
        else
            dsts[k - n_sources] = arrays[k].device;
    }
    if (source_dst >= 0)
        dsts[0] = arrays[source_dst].device;
    for (size_t i = 0; i < n_elems; i++) {
        expected[i] = arrays[0].values[i];
        for (int k = 1; k < n_sources; k++)
            expected[i] = ref_add(expected[i], arrays[k].values[i]);
    }
    assert_ok(zr_kernel_spread(f->stream, dsts, n_dsts, sources, n_sources, dtype, n_elems));
    for (int k = 0; k < n_sources + n_dsts; k++) {
        bool is_dst = k == source_dst || k > n_sources || (k == n_sources && source_dst < 0);
        assert_holds(f, &arrays[k], is_dst ? expected : arrays[k].values);
        free_array(&arrays[k]);
    }
    free(expected);
}

TEST(test_spread) {
    const int counts[][3] = {{1, 1, -1}, {1, 3, -1}, {1, 2, 0},   {2, 1, -1},
                             {2, 2, 1},  {3, 3, -1}, {4, 4, 2},   {5, 5, -1},
                             {8, 8, 7},  {13, 2, 0}, {14, 12, 3}, {1, 26, -1}};
    for (size_t d = 0; d < 2; d++)
        for (size_t c = 0; c < N_OF(counts); c++)
            for (size_t s = 0; s < N_SIZES; s++)
                if (sizes[s] <= 70000 && ONE_OF(1, 5))
                    check_spread(*state, dtypes[d], sizes[s], counts[c][0], counts[c][1],
                                 counts[c][2]);
}

/* What is too large for caches may be written in another way: on the host. A GPU has one way for
 * these, too, but an emulated one would take seconds. */
TEST(test_spread_of_large_arrays) {
#if defined(ZR_TESTS_EMULATED)
    skip();
#endif
    for (size_t d = 0; d < 2; d++) {
        /* The last piece is some cache lines and a part of one. */
        size_t n_elems = ((size_t)9 << 20) / 6 / zr_dtype_size(dtypes[d]) + 101;
        check_spread(*state, dtypes[d], n_elems, 1, 5, -1);
        check_spread(*state, dtypes[d], n_elems, 1, 6, 0);
        check_spread(*state, dtypes[d], n_elems, 5, 1, -1);
        check_spread(*state, dtypes[d], n_elems, 3, 3, 0);
        check_spread(*state, dtypes[d], n_elems, 3, 3, -1);
    }
}

/* All bits of a single source arrive, those of no number too, and of any dtype. */
TEST(test_spread_copies_bits) {
    enum { N = 1 << 16 };
    fixture_t *f = *state;
    const zr_dtype_t all[] = {ZR_DTYPE_U8, ZR_DTYPE_BF16, ZR_DTYPE_F32, ZR_DTYPE_I32, ZR_DTYPE_F64};
    uint16_t patterns[N], copy[N];
    for (size_t i = 0; i < N; i++)
        patterns[i] = (uint16_t)i;
    for (size_t d = 0; d < N_OF(all); d++) {
        fixture_reset(f);
        const void *source = fixture_place(f, patterns, sizeof(patterns), 0);
        void *dsts[] = {fixture_take(f, sizeof(copy), 8), fixture_take(f, sizeof(copy), 0)};
        assert_ok(zr_kernel_spread(f->stream, dsts, 2, &source, 1, all[d],
                                   sizeof(copy) / zr_dtype_size(all[d])));
        for (int i = 0; i < 2; i++) {
            fixture_download(f, copy, dsts[i], sizeof(copy));
            assert_memory_equal(copy, patterns, sizeof(copy));
        }
    }
}

TEST(test_spread_refusals) {
    fixture_t *f = *state;
    fixture_reset(f);
    zr_stream_t *s = f->stream;
    char *x = fixture_take(f, 64, 0), *y = fixture_take(f, 64, 0);
    const void *sources[] = {x, NULL}, *odd[] = {x, x + 2};
    void *dsts[] = {y, NULL};
    const int most = ZR_MAX_SUM_SOURCES;
    const zr_dtype_t f32 = ZR_DTYPE_F32;
    assert_refused(f, ZR_ERR_ARGUMENT, zr_kernel_spread(s, dsts, 1, sources, 0, f32, 4));
    assert_refused(f, ZR_ERR_ARGUMENT, zr_kernel_spread(s, dsts, 1, sources, most + 1, f32, 4));
    assert_refused(f, ZR_ERR_ARGUMENT, zr_kernel_spread(s, dsts, -1, sources, 1, f32, 4));
    assert_refused(f, ZR_ERR_ARGUMENT, zr_kernel_spread(s, dsts, most + 1, sources, 1, f32, 4));
    assert_refused(f, ZR_ERR_ARGUMENT, zr_kernel_spread(s, dsts, 2, sources, 1, f32, 4));
    assert_refused(f, ZR_ERR_ARGUMENT, zr_kernel_spread(s, dsts, 1, sources, 2, f32, 4));
    assert_refused(f, ZR_ERR_ARGUMENT, zr_kernel_spread(s, dsts, 1, odd, 2, f32, 4));
    assert_refused(f, ZR_ERR_ARGUMENT, zr_kernel_spread(s, NULL, 1, odd, 1, f32, 4));
    assert_refused(f, ZR_ERR_ARGUMENT, zr_kernel_spread(s, dsts, 1, NULL, 1, f32, 4));
    assert_refused(f, ZR_ERR_ARGUMENT, zr_kernel_spread(s, dsts, 1, odd, 2, ZR_DTYPE_I32, 2));
    assert_refused(f, ZR_ERR_ARGUMENT, zr_kernel_spread(s, dsts, 1, odd, 1, (zr_dtype_t)-1, 2));
    assert_ok(zr_kernel_spread(s, dsts, 0, sources, 1, f32, 4));
    assert_ok(zr_kernel_spread(s, dsts, 2, sources, 2, f32, 0));
}

int main(int argc, char **argv) {
    device_name = fixture_device_name(argc, argv);
    if (fixture_probe(device_name) != 0)
        return FIXTURE_SKIPPED;
    return run_all_tests(setup, teardown);
}
