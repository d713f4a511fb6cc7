/*
 * The language model head of the CUDA device against double precision: chunks that divide
 * nothing, one chunk, rows of no chunk's targets, extreme logits, and what it leaves alone.
 */
#include "kernels/nn/cuda/cuda_nn.h"
#include "tests/emu/emu.h"
#include "tests/emu/nn_array.h"
#include "tests/ref/ref_nn.h"

static fixture_t fixture;

typedef struct head_case {
    size_t n_rows, channels, vocab, vocab_chunk;
    zr_dtype_t dtype;
    bool accumulate;
    double scale; /* of the activations: large ones make extreme logits */
} head_case_t;

typedef struct head {
    emu_array_t x, weight, dx, dweight;
    int32_t *targets, *device_targets;
    double *device_loss, loss; /* what is added to it */
} head_t;

static double round_to(zr_dtype_t dtype, double value) {
    float single = (float)value;
    return dtype == ZR_DTYPE_F32 ? (double)single
                                 : (double)zr_bf16_to_f32(zr_bf16_from_f32(single));
}

/* What should come out, from logits that are rounded as the device rounds them. */
static void refer(const head_case_t *c, head_t *h) {
    size_t n_logits = c->n_rows * c->vocab;
    double *logits = malloc(2 * n_logits * sizeof(double) + 1), *dlogits = logits + n_logits;
    double *dweight = malloc(c->vocab * c->channels * sizeof(double));
    ref_matmul(logits, h->x.ref, false, h->weight.ref, true, c->n_rows, c->vocab, c->channels);
    for (size_t i = 0; i < n_logits; i++)
        logits[i] = round_to(c->dtype, logits[i]);
    h->loss = 0.25 * ref_cross_entropy(dlogits, logits, h->targets, c->n_rows, c->vocab);
    for (size_t i = 0; i < n_logits; i++)
        dlogits[i] *= 0.25;
    ref_matmul(h->dx.ref, dlogits, false, h->weight.ref, false, c->n_rows, c->channels, c->vocab);
    ref_matmul(dweight, dlogits, true, h->x.ref, false, c->vocab, c->channels, c->n_rows);
    for (size_t i = 0; i < c->vocab * c->channels; i++)
        h->dweight.ref[i] = (c->accumulate ? h->dweight.ref[i] : 0.0) + dweight[i];
    free(logits);
    free(dweight);
}

static head_t make_head(const head_case_t *c) {
    fixture_reset(&fixture);
    size_t n_x = c->n_rows * c->channels, n_weight = c->vocab * c->channels;
    head_t h = {.x = emu_array_random(&fixture, n_x, c->dtype, c->scale, 1, 0),
                .weight = emu_array_random(&fixture, n_weight, c->dtype, 1.0, 2, 0),
                .dx = emu_array_random(&fixture, n_x, c->dtype, 1.0, 3, 0),
                .dweight = emu_array_random(&fixture, n_weight, c->dtype, 1e-2, 4, 0),
                .targets = malloc(c->n_rows * sizeof(int32_t) + 1)};
    uint64_t seed = 5;
    double three = 3.0;
    for (size_t i = 0; i < c->n_rows; i++)
        h.targets[i] = (int32_t)(fixture_random(&seed) % c->vocab);
    h.device_targets = fixture_place(&fixture, h.targets, c->n_rows * sizeof(int32_t), 0);
    h.device_loss = fixture_place(&fixture, &three, sizeof(three), 0);
    refer(c, &h);
    return h;
}

static void free_head(head_t *h) {
    emu_array_free(&h->x);
    emu_array_free(&h->weight);
    emu_array_free(&h->dx);
    emu_array_free(&h->dweight);
    free(h->targets);
}

static zr_nn_lm_head_t arguments(const head_case_t *c, const head_t *h) {
    return (zr_nn_lm_head_t){.n_rows = c->n_rows,
                             .channels = c->channels,
                             .vocab = c->vocab,
                             .vocab_chunk = c->vocab_chunk,
                             .x = h->x.data,
                             .weight = h->weight.data,
                             .targets = h->device_targets,
                             .loss = h->device_loss,
                             .scale = 0.25f,
                             .dx = h->dx.data,
                             .dweight = {h->dweight.data, c->accumulate},
                             .activation_dtype = c->dtype,
                             .param_dtype = c->dtype};
}

#define GUARD_BYTES 256

/* With a workspace of exactly the size asked for, and guards behind it. The loss that was added. */
static double run(const zr_nn_lm_head_t *args) {
    unsigned char guard[GUARD_BYTES];
    double loss = 3.0;
    size_t bytes = zr_cuda_nn_lm_head_workspace_bytes(fixture.device, args);
    char *workspace = fixture_take(&fixture, bytes + GUARD_BYTES, 0);
    memset(guard, 0xa5, sizeof(guard));
    fixture_upload(&fixture, workspace + bytes, guard, GUARD_BYTES);
    fixture_upload(&fixture, args->loss, &loss, sizeof(loss));
    assert_ok(zr_cuda_nn_lm_head(fixture.stream, args, workspace));
    fixture_download(&fixture, guard, workspace + bytes, GUARD_BYTES);
    for (size_t i = 0; i < GUARD_BYTES; i++)
        assert_int_equal(guard[i], 0xa5);
    fixture_download(&fixture, &loss, args->loss, sizeof(loss));
    return loss - 3.0;
}

static void assert_loss(double loss, double expected, zr_dtype_t dtype) {
    /* A logit that is almost between two values of bf16 may be rounded to the other one. */
    double tolerance = (dtype == ZR_DTYPE_F32 ? 3e-6 : 3e-4) * (1.0 + expected);
    if (!(fabs(loss - expected) <= tolerance))
        fail_msg("a loss of %.9g instead of %.9g", loss, expected);
}

static void check_head(const head_case_t *c) {
    double tolerance = c->dtype == ZR_DTYPE_F32 ? 1e-5 : 4e-3; /* gradients of logits are bf16 */
    head_t h = make_head(c);
    zr_nn_lm_head_t args = arguments(c, &h);
    double loss = run(&args);
    assert_loss(loss, h.loss, c->dtype);
    emu_assert_close(&fixture, "dx", &h.dx, tolerance, 1);
    emu_assert_close(&fixture, "dweight", &h.dweight, tolerance, 1);

    /* With one of the gradients, and without: the same loss and the same dx. */
    args.dweight.data = NULL;
    assert_true(run(&args) == loss);
    emu_assert_close(&fixture, "dx alone", &h.dx, tolerance, 1);
    args.dx = NULL;
    assert_true(run(&args) == loss);
    emu_assert_close(&fixture, "dx, not wanted", &h.dx, tolerance, 1);
    emu_assert_close(&fixture, "dweight, not wanted", &h.dweight, tolerance, 1);
    if (!c->accumulate) {
        args.dweight.data = h.dweight.data;
        assert_true(run(&args) == loss);
        emu_assert_close(&fixture, "dweight alone", &h.dweight, tolerance, 1);
    }
    free_head(&h);
}

TEST(test_head) {
    /* AddressSanitizer sees both types, and gradients that are added to and that are not. */
#if defined(__SANITIZE_ADDRESS__)
    const int every = 3;
#else
    const int every = 1;
#endif
    static const size_t sizes[][4] = {{1, 1, 1, 1},       {1, 3, 2, 1},        {5, 7, 257, 100},
                                      {9, 48, 97, 97},    {17, 12, 501, 4096}, {0, 6, 30, 7},
                                      {7, 24, 1000, 128}, {3, 16, 4099, 4000}};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        for (int variant = 0; variant < 4; variant += every)
            check_head(&(head_case_t){sizes[i][0], sizes[i][1], sizes[i][2], sizes[i][3],
                                      variant & 1 ? ZR_DTYPE_BF16 : ZR_DTYPE_F32, variant & 2,
                                      1.0});
}

/* Logits of hundreds: exp of none of them exists in fp32. */
TEST(test_extreme_logits) {
    check_head(&(head_case_t){19, 30, 300, 70, ZR_DTYPE_F32, false, 40.0});
    check_head(&(head_case_t){7, 1, 1, 1, ZR_DTYPE_F32, false, 4e4}); /* all of a row negative */
}

/* More rows than the loss is added up by threads. */
TEST(test_many_rows) {
    const head_case_t c = {300, 8, 19, 19, ZR_DTYPE_F32, false, 1.0};
    head_t h = make_head(&c);
    zr_nn_lm_head_t args = arguments(&c, &h);
    args.dx = args.dweight.data = NULL;
    assert_loss(run(&args), h.loss, c.dtype);
    free_head(&h);
}

/* A logit that is no number makes a loss that is none. */
TEST(test_nan) {
    const head_case_t c = {5, 8, 40, 16, ZR_DTYPE_F32, false, 1.0};
    head_t h = make_head(&c);
    float nan_value = NAN;
    fixture_upload(&fixture, (float *)h.weight.data + 21 * 8, &nan_value, sizeof(nan_value));
    zr_nn_lm_head_t args = arguments(&c, &h);
    assert_true(isnan(run(&args)));
    free_head(&h);
}

/* A single chunk is multiplied three times: logits, dx, dweight. Each one more, one more for its
 * logits again, but for the last. */
TEST(test_products) {
    for (size_t n_chunks = 1; n_chunks <= 3; n_chunks++) {
        const head_case_t c = {6, 8, 48, 48 / n_chunks, ZR_DTYPE_F32, false, 1.0};
        head_t h = make_head(&c);
        zr_nn_lm_head_t args = arguments(&c, &h);
        int n_products = (int)(4 * n_chunks - 1);
        for (int nth = n_products; nth <= n_products + 1; nth++) {
            emu_fail_kernel("cublasLtMatmul", nth, 719);
            void *workspace = fixture_take(
                &fixture, zr_cuda_nn_lm_head_workspace_bytes(fixture.device, &args), 0);
            assert_ok(zr_cuda_nn_lm_head(fixture.stream, &args, workspace));
            bool has_failed = zr_stream_synchronize(fixture.stream) != ZR_OK;
            assert_int_equal(has_failed, nth == n_products);
            emu_fail_kernel("", 0, 0);
            emu_forget_failures();
        }
        free_head(&h);
    }
}

/* The workspace grows with the chunk, not with the vocabulary. */
TEST(test_workspace) {
    zr_nn_lm_head_t args = {.n_rows = 256,
                            .channels = 768,
                            .vocab = 50257,
                            .vocab_chunk = 4096,
                            .dx = &args,
                            .activation_dtype = ZR_DTYPE_BF16,
                            .param_dtype = ZR_DTYPE_BF16};
    zr_nn_matmul_t product = {0};
    size_t bytes = zr_cuda_nn_lm_head_workspace_bytes(fixture.device, &args) -
                   zr_cuda_nn_matmul_workspace_bytes(fixture.device, &product);
    assert_in_range(bytes, 256 * 4096 * 2 + 256 * 768 * 4, 256 * 50257 * 2 / 5);
}

TEST(test_refused) {
    const head_case_t c = {5, 8, 40, 16, ZR_DTYPE_F32, false, 1.0};
    head_t h = make_head(&c);
    zr_nn_lm_head_t args = arguments(&c, &h);
    args.param_dtype = ZR_DTYPE_BF16;
    assert_refused(&fixture, ZR_ERR_UNSUPPORTED,
                   zr_cuda_nn_lm_head(fixture.stream, &args, h.dx.data));
    assert_non_null(strstr(fixture.last_error, "not fp32 with bf16"));
    free_head(&h);
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
