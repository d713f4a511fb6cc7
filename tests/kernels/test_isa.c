/*
 * All instruction sets and all numbers of threads give the same bits: every kernel is
 * run on the same random bits, many of them no usual numbers, and the results compared.
 * Of a NaN only that it is one has to be the same.
 */
#include "kernels/device_fixture.h"
#include "zero/optim/optimizer.h"

#define N_CODES 5     /* encodings of blocks */
#define N_ELEMS 70001 /* four full pieces and one that fits nothing */

/* What one device makes of the inputs, as it lies in memory. */
typedef struct results {
    float master[N_ELEMS], m[N_ELEMS], v[N_ELEMS], param[N_ELEMS];
    float add[N_ELEMS], scale[N_ELEMS], sum[N_ELEMS], widened[N_ELEMS], fill[N_ELEMS];
    double sum_of_squares[2];
    uint16_t param_bf16[N_ELEMS], add_bf16[N_ELEMS], scale_bf16[N_ELEMS], sum_bf16[N_ELEMS];
    uint16_t narrowed[N_ELEMS], fill_bf16[N_ELEMS];
    float blocks[N_CODES][N_ELEMS], blocks_bf16[N_CODES][N_ELEMS];
    float decoded[N_CODES][N_ELEMS];
    uint16_t decoded_bf16[N_CODES][N_ELEMS];
} results_t;

typedef struct inputs {
    float a[N_ELEMS], b[N_ELEMS], c[N_ELEMS], v[N_ELEMS];
    uint16_t a_bf16[N_ELEMS], b_bf16[N_ELEMS];
} inputs_t;

/* Mostly numbers around 1; every 16th has random bits: tiny, huge, infinite, NaN. */
static void make_inputs(inputs_t *inputs) {
    uint64_t random = 42;
    float *arrays[] = {inputs->a, inputs->b, inputs->c, inputs->v};
    for (int k = 0; k < 4; k++)
        for (size_t i = 0; i < N_ELEMS; i++) {
            uint32_t bits = (uint32_t)random_bits(&random);
            arrays[k][i] = fixture_random_float(&random);
            if (bits % 16 == 0)
                memcpy(&arrays[k][i], &bits, sizeof(bits));
        }
    for (size_t i = 0; i < N_ELEMS; i++) {
        inputs->v[i] = fabsf(inputs->v[i]);
        inputs->a_bf16[i] = (uint16_t)random_bits(&random);
        inputs->b_bf16[i] = zr_bf16_from_f32(fixture_random_float(&random));
    }
}

static void run_update(zr_stream_t *stream, const zr_update_rule_t *rule, const inputs_t *in,
                       results_t *out, bool bf16) {
    memcpy(out->master, in->a, sizeof(in->a));
    memcpy(out->m, in->b, sizeof(in->b));
    memcpy(out->v, in->v, sizeof(in->v));
    zr_update_t args = {.n_elems = N_ELEMS,
                        .arrays = {out->master, out->m, out->v},
                        .grad = bf16 ? (const void *)in->b_bf16 : in->c,
                        .param = bf16 ? (void *)out->param_bf16 : out->param,
                        .grad_dtype = bf16 ? ZR_DTYPE_BF16 : ZR_DTYPE_F32,
                        .param_dtype = bf16 ? ZR_DTYPE_BF16 : ZR_DTYPE_F32,
                        .grad_scale = 0.7f,
                        .lr = 1e-3f,
                        .weight_decay = 0.1f,
                        .step = 3,
                        .rounding = {17, 5},
                        .first = 512};
    for (size_t i = 0; i < rule->n_hypers; i++)
        args.hyper[i] = rule->hypers[i].is_switch ? 1.0f : 0.9f;
    assert_ok(zr_kernel_update(stream, rule, &args));
}

static void run_sums(zr_stream_t *stream, const inputs_t *in, results_t *out) {
    double workspace[16];
    assert_true(zr_sum_of_squares_workspace_bytes(N_ELEMS) <= sizeof(workspace));
    assert_ok(zr_kernel_sum_of_squares(stream, out->fill, ZR_DTYPE_F32, N_ELEMS,
                                       &out->sum_of_squares[0], workspace));
    assert_ok(zr_kernel_sum_of_squares(stream, in->b_bf16, ZR_DTYPE_BF16, N_ELEMS,
                                       &out->sum_of_squares[1], workspace));
    const void *wide[] = {in->a, in->b, in->c, in->v, in->b, in->c, in->c};
    const void *narrow[] = {in->a_bf16, in->b_bf16, in->b_bf16};
    assert_ok(zr_kernel_sum(stream, out->sum, wide, 7, ZR_DTYPE_F32, N_ELEMS));
    assert_ok(zr_kernel_sum(stream, out->sum_bf16, narrow, 3, ZR_DTYPE_BF16, N_ELEMS));
}

static void run_elements(zr_stream_t *stream, const inputs_t *in, results_t *out) {
    const zr_dtype_t f32 = ZR_DTYPE_F32, bf16 = ZR_DTYPE_BF16;
    memcpy(out->add, in->a, sizeof(in->a));
    memcpy(out->scale, in->b, sizeof(in->b));
    memcpy(out->add_bf16, in->b_bf16, sizeof(in->b_bf16));
    memcpy(out->scale_bf16, in->a_bf16, sizeof(in->a_bf16));
    memcpy(out->fill, in->c, sizeof(in->c));
    for (size_t i = 0; i < N_ELEMS; i++)
        if (!isfinite(out->fill[i]))
            out->fill[i] = 0.0f; /* the sum of squares has to be a number worth comparing */
    assert_ok(zr_kernel_add(stream, out->add, f32, in->b, f32, N_ELEMS));
    assert_ok(zr_kernel_add(stream, out->add, f32, in->a_bf16, bf16, N_ELEMS));
    assert_ok(zr_kernel_add(stream, out->add_bf16, bf16, in->c, f32, N_ELEMS));
    assert_ok(zr_kernel_add(stream, out->add_bf16, bf16, in->a_bf16, bf16, N_ELEMS));
    assert_ok(zr_kernel_scale(stream, out->scale, f32, N_ELEMS, 0.1f));
    assert_ok(zr_kernel_scale(stream, out->scale_bf16, bf16, N_ELEMS, 3.3f));
    assert_ok(zr_kernel_cast(stream, out->narrowed, bf16, in->a, f32, N_ELEMS));
    assert_ok(zr_kernel_cast(stream, out->widened, f32, in->a_bf16, bf16, N_ELEMS));
    assert_ok(zr_kernel_fill(stream, out->fill_bf16, bf16, N_ELEMS, 0.1f));
}

static void run_codes(zr_stream_t *stream, const inputs_t *in, results_t *out) {
    const zr_dtype_t f32 = ZR_DTYPE_F32, bf16 = ZR_DTYPE_BF16;
    for (size_t k = 0; k < N_CODES; k++) {
        const zr_encoding_t *e = zr_encoding_at(2 + k);
        assert_ok(e->queue_encode(e, stream, in->a, f32, N_ELEMS, out->blocks[k]));
        assert_ok(e->queue_decode(e, stream, out->blocks[k], N_ELEMS, out->decoded[k], f32));
        assert_ok(e->queue_encode(e, stream, in->b_bf16, bf16, N_ELEMS, out->blocks_bf16[k]));
        assert_ok(
            e->queue_decode(e, stream, out->blocks_bf16[k], N_ELEMS, out->decoded_bf16[k], bf16));
    }
}

/* One bit pattern for all NaNs. */
static void merge_wide(float *wide, size_t n_elems) {
    for (size_t i = 0; i < n_elems; i++)
        if (isnan(wide[i]))
            wide[i] = NAN;
}

static void merge_nans(results_t *results) {
    merge_wide((float *)results, 9 * (size_t)N_ELEMS);
    merge_wide(results->decoded[0], N_CODES * (size_t)N_ELEMS);
    uint16_t *narrow = results->param_bf16;
    for (size_t i = 0; i < 6 * (size_t)N_ELEMS; i++)
        if ((narrow[i] & 0x7fff) > 0x7f80)
            narrow[i] = 0x7fc0;
}

/* False when this machine or build lacks the instruction set. */
static bool run_all(const char *isa, int n_threads, const zr_update_rule_t *rule,
                    const inputs_t *inputs, results_t *results) {
    zr_device_options_t options = zr_device_options_default();
    options.isa = isa;
    options.n_threads = n_threads;
    zr_device_t *device = NULL;
    zr_stream_t *stream = NULL;
    zr_status_t status = zr_device_open("host", &options, &device);
    if (status == ZR_ERR_UNSUPPORTED)
        return false;
    assert_ok(status);
    assert_non_null(strstr(zr_device_info(device)->description, isa));
    assert_int_equal(zr_device_info(device)->n_threads, n_threads);
    assert_ok(zr_stream_create(device, "isa", &stream));
    memset(results, 0, sizeof(*results));
    run_update(stream, rule, inputs, results, true);
    run_update(stream, rule, inputs, results, false);
    run_elements(stream, inputs, results);
    run_codes(stream, inputs, results);
    run_sums(stream, inputs, results);
    merge_nans(results);
    zr_stream_destroy(&stream);
    zr_device_close(&device);
    return true;
}

static void expect_same_bits(const zr_update_rule_t *rule) {
    const char *isas[] = {"baseline", "avx2", "avx512"};
    inputs_t *inputs = malloc(sizeof(*inputs));
    results_t *first = malloc(sizeof(*first)), *other = malloc(sizeof(*other));
    make_inputs(inputs);
    assert_true(run_all("baseline", 1, rule, inputs, first));
    for (size_t i = 0; i < 3; i++)
        for (int n_threads = 1; n_threads <= 3; n_threads++) {
            if (!run_all(isas[i], n_threads, rule, inputs, other)) {
                print_message("skipped: no %s here\n", isas[i]);
                break;
            }
            assert_memory_equal(first->master, other->master, sizeof(first->master));
            assert_memory_equal(first->v, other->v, sizeof(first->v));
            assert_memory_equal(first->sum_of_squares, other->sum_of_squares,
                                sizeof(first->sum_of_squares));
            assert_memory_equal(first, other, sizeof(*first));
        }
    free(inputs);
    free(first);
    free(other);
}

TEST(test_same_bits) {
    size_t n_optimizers = 0;
    const zr_optimizer_type_t *const *optimizers = zr_optimizers(&n_optimizers);
    for (size_t i = 0; i < n_optimizers; i++)
        for (int form = 0; form < ZR_N_STATE_FORMS; form++) {
            if (!ONE_OF(1, 5))
                continue;
            zr_update_rule_t rule = zr_update_rule_in(&optimizers[i]->rule, (zr_state_form_t)form);
            expect_same_bits(&rule);
        }
}

/* What is too large for caches is written past them, in a way of each instruction set. */
TEST(test_large_sums) {
    const char *isas[] = {"baseline", "avx2", "avx512"};
    const size_t n_elems = ((size_t)3 << 20) / sizeof(float) + 19; /* 9 MiB, or more, of a call */
    float *a = NULL, *b = NULL, *sums[2] = {NULL};
    assert_int_equal(posix_memalign((void **)&a, 64, n_elems * sizeof(float)), 0);
    assert_int_equal(posix_memalign((void **)&b, 64, n_elems * sizeof(float)), 0);
    for (int d = 0; d < 2; d++)
        assert_int_equal(posix_memalign((void **)&sums[d], 64, n_elems * sizeof(float)), 0);
    for (size_t i = 0; i < n_elems; i++) {
        a[i] = (float)i;
        b[i] = 0.5f;
    }
    for (size_t k = 0; k < 3; k++) {
        zr_device_options_t options = zr_device_options_default();
        options.isa = isas[k];
        zr_device_t *device = NULL;
        zr_stream_t *stream = NULL;
        if (zr_device_open("host", &options, &device) != ZR_OK)
            continue;
        assert_ok(zr_stream_create(device, "isa", &stream));
        const void *sources[] = {a, b};
        void *dsts[] = {sums[0], sums[1]};
        memset(sums[0], 0, n_elems * sizeof(float));
        memset(sums[1], 0, n_elems * sizeof(float));
        assert_ok(zr_kernel_spread(stream, dsts, 2, sources, 2, ZR_DTYPE_F32, n_elems));
        for (size_t i = 0; i < n_elems; i++)
            assert_true(sums[0][i] == (float)i + 0.5f && sums[1][i] == (float)i + 0.5f);
        assert_ok(zr_kernel_spread(stream, dsts, 2, sources, 1, ZR_DTYPE_F32, n_elems));
        assert_memory_equal(sums[0], a, n_elems * sizeof(float));
        assert_memory_equal(sums[1], a, n_elems * sizeof(float));
        zr_stream_destroy(&stream);
        zr_device_close(&device);
    }
    free(a);
    free(b);
    free(sums[0]);
    free(sums[1]);
}

/* Of the choices, the default is the best: the last that opens. */
TEST(test_default_is_the_best) {
    const char *isas[] = {"baseline", "avx2", "avx512"};
    const char *best = NULL;
    for (size_t i = 0; i < 3; i++) {
        zr_device_options_t options = zr_device_options_default();
        options.isa = isas[i];
        zr_device_t *device = NULL;
        if (zr_device_open("host", &options, &device) == ZR_OK)
            best = isas[i];
        zr_device_close(&device);
    }
    zr_device_t *device = NULL;
    assert_ok(zr_device_open("host", NULL, &device));
    assert_non_null(strstr(zr_device_info(device)->description, best));
    zr_device_close(&device);
}
