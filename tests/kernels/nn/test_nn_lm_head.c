/*
 * The language model head against double precision, in chunks of columns or rows that divide
 * nothing.
 */
#include "tests/kernels/nn/nn_test.h"
#include "tests/ref/ref_nn.h"

typedef struct head_case {
    size_t n_rows, channels, vocab, vocab_chunk;
    zr_dtype_t dtype;
    bool accumulate;
    double scale;        /* of the activations: large ones make extreme logits */
    size_t ignore_every; /* so many rows apart a target is ignored; 0: none is */
} head_case_t;

typedef struct head_arrays {
    nn_array_t x, weight, dx, dweight, targets;
    double loss;
} head_arrays_t;

/* Logits and their gradients are kept in the dtype of the activations. */
static double round_to(zr_dtype_t dtype, double value) {
    float single = (float)value;
    return dtype == ZR_DTYPE_F32 ? value : (double)zr_bf16_to_f32(zr_bf16_from_f32(single));
}

/* In a bf16 chunk, a logit that is almost between two values may be rounded to the other one. */
static double tolerance(const nn_array_t *x, double of_fp32, double of_bf16) {
    return x->dtype == ZR_DTYPE_F32 ? of_fp32 : of_bf16;
}

static head_arrays_t make_arrays(const nn_device_t *device, const head_case_t *c) {
    zr_dtype_t activation = nn_activation_dtype(device, c->dtype);
    size_t n_x = c->n_rows * c->channels, n_weight = c->vocab * c->channels;
    head_arrays_t arrays = {.x = nn_array_random(n_x, activation, c->scale, 1),
                            .weight = nn_array_random(n_weight, c->dtype, 1.0, 2),
                            .dx = nn_array_random(n_x, activation, 1.0, 3),
                            .dweight = nn_array_random(n_weight, c->dtype, 1e-2, 4),
                            .targets = nn_tokens_random(c->n_rows, c->vocab, 5)};
    for (size_t i = 0; c->ignore_every != 0 && i < c->n_rows; i += c->ignore_every)
        nn_set_value(&arrays.targets, i, -100);
    nn_upload(&arrays.targets);
    size_t n_logits = c->n_rows * c->vocab;
    double *logits = malloc(2 * n_logits * sizeof(double) + 1), *dlogits = logits + n_logits;
    double *dweight = malloc(c->vocab * c->channels * sizeof(double));
    ref_matmul(logits, arrays.x.ref, false, arrays.weight.ref, true, c->n_rows, c->vocab,
               c->channels);
    for (size_t i = 0; i < n_logits; i++)
        logits[i] = round_to(activation, logits[i]);
    arrays.loss =
        0.25 * ref_cross_entropy(dlogits, logits, arrays.targets.host, c->n_rows, c->vocab);
    for (size_t i = 0; i < n_logits; i++)
        dlogits[i] *= 0.25;
    ref_matmul(arrays.dx.ref, dlogits, false, arrays.weight.ref, false, c->n_rows, c->channels,
               c->vocab);
    ref_matmul(dweight, dlogits, true, arrays.x.ref, false, c->vocab, c->channels, c->n_rows);
    for (size_t i = 0; i < c->vocab * c->channels; i++)
        arrays.dweight.ref[i] = (c->accumulate ? arrays.dweight.ref[i] : 0.0) + dweight[i];
    free(logits);
    free(dweight);
    return arrays;
}

static void free_arrays(head_arrays_t *arrays) {
    nn_arrays_free(&arrays->x, &arrays->weight, &arrays->dx, &arrays->dweight, &arrays->targets);
}

static zr_nn_lm_head_t make_args(const head_case_t *c, const head_arrays_t *arrays,
                                 const nn_array_t *loss) {
    return (zr_nn_lm_head_t){.n_rows = c->n_rows,
                             .channels = c->channels,
                             .vocab = c->vocab,
                             .vocab_chunk = c->vocab_chunk,
                             .row_chunk = c->vocab_chunk < c->vocab ? c->n_rows / 3 + 1 : 0,
                             .x = arrays->x.data,
                             .weight = arrays->weight.data,
                             .targets = arrays->targets.data,
                             .loss = loss->data,
                             .scale = 0.25f,
                             .dx = arrays->dx.data,
                             .dweight = {arrays->dweight.data, c->accumulate},
                             .activation_dtype = arrays->x.dtype,
                             .param_dtype = c->dtype};
}

/* What the loss was added to. */
static const double before = 3.0;

/* What is added to the loss. */
static double run_head(nn_device_t *device, const zr_nn_lm_head_t *args, nn_array_t *loss) {
    zr_nn_workspace_t workspace = nn_workspace(zr_nn_lm_head_workspace_bytes(device->device, args));
    nn_set_value(loss, 0, before);
    nn_upload(loss);
    assert_ok(zr_nn_lm_head(device->stream, args, workspace));
    nn_workspace_free(&workspace);
    (void)nn_download(loss);
    return nn_value(loss, 0) - before;
}

static void assert_loss(const head_arrays_t *arrays, double value) {
    if (!(fabs(value - arrays->loss) <= tolerance(&arrays->x, 3e-6, 3e-4) * (1.0 + arrays->loss)))
        fail_msg("a loss of %.9g instead of %.9g", value, arrays->loss);
}

static void check_head(nn_device_t *device, const head_case_t *c) {
    head_arrays_t arrays = make_arrays(device, c);
    nn_array_t loss = nn_array_of(&before, 1, ZR_DTYPE_F64);
    zr_nn_lm_head_t args = make_args(c, &arrays, &loss);
    double tolerated = tolerance(&arrays.x, 1e-5, 4e-3), value = run_head(device, &args, &loss);
    assert_loss(&arrays, value);
    nn_assert_close("lm_head dx", &arrays.dx, tolerated);
    nn_assert_close("lm_head dweight", &arrays.dweight, tolerated);

    /* With one of the gradients, and without: the same loss, and the same of what is wanted. */
    args.dweight.data = NULL;
    assert_true(run_head(device, &args, &loss) == value);
    nn_assert_close("lm_head dx alone", &arrays.dx, tolerated);
    args.dx = NULL;
    assert_true(run_head(device, &args, &loss) == value);
    nn_assert_close("lm_head dx, not wanted", &arrays.dx, tolerated);
    nn_assert_close("lm_head dweight, not wanted", &arrays.dweight, tolerated);
    if (!c->accumulate) {
        args.dweight.data = arrays.dweight.data;
        assert_true(run_head(device, &args, &loss) == value);
        nn_assert_close("lm_head dweight alone", &arrays.dweight, tolerated);
    }
    nn_array_free(&loss);
    free_arrays(&arrays);
}

NN_TEST(test_head) {
    static const size_t sizes[][4] = {{1, 1, 1, 1},     {1, 3, 2, 1},        {5, 7, 257, 100},
                                      {33, 48, 97, 97}, {17, 20, 1000, 128}, {70, 12, 501, 4096},
                                      {0, 6, 30, 7},    {40, 3, 4099, 4000}};
    for (size_t i = 0; i < N_OF(sizes); i++)
        for (int variant = 0; variant < 4 && (!IS_SLOW || sizes[i][0] < 10); variant++)
            if (ONE_OF(1, 3))
                check_head(device,
                           &(head_case_t){sizes[i][0], sizes[i][1], sizes[i][2], sizes[i][3],
                                          variant & 1 ? ZR_DTYPE_BF16 : ZR_DTYPE_F32, variant & 2,
                                          1.0, 0});
}

/* Rows without a target have no loss and no gradient: some of them, and all. */
NN_TEST(test_ignored) {
    for (int variant = 0; variant < 4; variant++)
        if (ONE_OF(1, 3))
            check_head(device, &(head_case_t){17, 20, IS_SLOW ? 40 : 300, IS_SLOW ? 18 : 128,
                                              variant & 1 ? ZR_DTYPE_BF16 : ZR_DTYPE_F32, true, 1.0,
                                              variant & 2 ? 1 : 3});
}

/* Logits of hundreds: exp of none of them exists in fp32. */
NN_TEST(test_extreme_logits) {
    check_head(device, &(head_case_t){IS_SLOW ? 5 : 19, 30, IS_SLOW ? 100 : 300, 70, ZR_DTYPE_F32,
                                      false, 40.0, 0});
    /* All of a row negative. */
    check_head(device, &(head_case_t){7, 1, 1, 1, ZR_DTYPE_F32, false, 4e4, 0});
}

/* More rows than a device's block adds the loss up by threads; then a weight that is no number,
 * which makes a loss that is none. */
NN_TEST(test_many_rows_and_nan) {
    const head_case_t c = {IS_SLOW ? 3 : 300, 8, 40, 19, ZR_DTYPE_F32, false, 1.0, 0};
    head_arrays_t arrays = make_arrays(device, &c);
    nn_array_t loss = nn_array_of(&before, 1, ZR_DTYPE_F64);
    zr_nn_lm_head_t args = make_args(&c, &arrays, &loss);
    args.dx = args.dweight.data = NULL;
    assert_loss(&arrays, run_head(device, &args, &loss));
    nn_set_value(&arrays.weight, 21 * 8, NAN);
    nn_upload(&arrays.weight);
    assert_true(isnan(run_head(device, &args, &loss)));
    nn_array_free(&loss);
    free_arrays(&arrays);
}

/* One word is almost certain, and each of the many others less than a rounding of it: together they
 * count. */
NN_TEST(test_many_words_that_are_unlikely) {
    const head_case_t c = {1, 1, 6000, 2048, ZR_DTYPE_F32, false, 1.0, 0};
    head_arrays_t arrays = make_arrays(device, &c);
    nn_array_t loss = nn_array_of(&before, 1, ZR_DTYPE_F64);
    zr_nn_lm_head_t args = make_args(&c, &arrays, &loss);
    args.dx = args.dweight.data = NULL;
    nn_set_value(&arrays.x, 0, 1.0);
    nn_set_value(&arrays.targets, 0, 0);
    for (size_t i = 0; i < c.vocab; i++)
        nn_set_value(&arrays.weight, i, i == 0 ? 0.0 : -17.0);
    nn_upload(&arrays.x);
    nn_upload(&arrays.weight);
    nn_upload(&arrays.targets);
    double value = run_head(device, &args, &loss);
    double wanted = 0.25 * log1p((double)(c.vocab - 1) * exp(-17.0));
    if (!(fabs(value - wanted) < 5e-6))
        fail_msg("a loss of %.9g instead of %.9g", value, wanted);
    nn_array_free(&loss);
    free_arrays(&arrays);
}

/* By columns: the workspace grows with the chunk, not with the vocabulary. By rows: with the rows
 * of a chunk, and there is room for a bf16 weight's gradient in fp32, which is added up, and for a
 * copy of the weight that is filled up to a multiple of 128 rows. */
NN_TEST(test_workspace) {
    const bool by_rows = zr_device_info(device->device)->cuda_major > 0;
    const size_t vocab = 50257, channels = 768, stride = 50304;
    zr_nn_matmul_t product = {0}; /* whose workspace some devices have for any size */
    for (int i = 0; i < 2; i++) {
        zr_nn_lm_head_t args = {.n_rows = 256,
                                .channels = channels,
                                .vocab = vocab,
                                .vocab_chunk = 4096,
                                .row_chunk = 128,
                                .param_dtype = i == 0 ? ZR_DTYPE_F32 : ZR_DTYPE_BF16,
                                .dweight = {.data = &args}};
        args.activation_dtype = nn_activation_dtype(device, args.param_dtype);
        product.a_dtype = product.c_dtype = args.activation_dtype;
        product.b_dtype = args.param_dtype;
        size_t elem = zr_dtype_size(args.activation_dtype);
        size_t wide = elem == 2 ? stride * channels * (4 + 2) : 0;
        size_t bytes = zr_nn_lm_head_workspace_bytes(device->device, &args) -
                       zr_nn_matmul_workspace_bytes(device->device, &product);
        if (by_rows)
            assert_in_range(bytes, 128 * stride * elem + wide, 128 * stride * elem + wide + 8192);
        else
            assert_in_range(bytes, 256 * 4096 * elem, 256 * vocab * elem / 10);
    }
}

/* What models take. By rows, half a gigabyte, or four times the weight; by columns, a quarter of
 * the vocabulary, or less. More rows never need less. */
NN_TEST(test_chunks_of_models) {
    const bool by_rows = zr_device_info(device->device)->cuda_major > 0;
    const size_t sizes[][3] = {{16384, 768, 50257}, {12288, 1600, 50257}, {512, 64, 256}};
    const size_t row_chunks[] = {2944, 5248, 256}, vocab_chunks[] = {256, 340, 256};
    for (size_t i = 0; i < N_OF(sizes); i++) {
        zr_nn_lm_head_t args = {.channels = sizes[i][1],
                                .vocab = sizes[i][2],
                                .dweight = {.data = &args},
                                .activation_dtype = ZR_DTYPE_BF16,
                                .param_dtype = ZR_DTYPE_BF16};
        size_t before_bytes = 0;
        for (args.n_rows = 1; args.n_rows < 2 * sizes[i][0]; args.n_rows = 3 * args.n_rows + 1) {
            zr_nn_lm_head_chunks(device->device, 2 * sizes[i][0], &args);
            size_t bytes = zr_nn_lm_head_workspace_bytes(device->device, &args);
            assert_true(bytes >= before_bytes);
            before_bytes = bytes;
        }
        args.n_rows = sizes[i][0];
        zr_nn_lm_head_chunks(device->device, 0, &args);
        assert_int_equal(args.row_chunk, by_rows ? row_chunks[i] : 0);
        if (by_rows)
            assert_int_equal(args.vocab_chunk, args.vocab);
        else
            assert_in_range(args.vocab_chunk, vocab_chunks[i] / 2 + 1, vocab_chunks[i]);
    }
}
