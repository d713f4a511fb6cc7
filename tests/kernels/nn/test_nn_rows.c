/*
 * Layer normalisation, GELU, bias gradients and embeddings against double precision.
 */
#include "tests/kernels/nn/nn_test.h"
#include "tests/ref/ref_nn.h"

/* ---- layer normalisation -------------------------------------------------------------- */

typedef struct norm_case {
    size_t n_rows, channels;
    zr_dtype_t dtype;
    bool accumulate, is_rms;
} norm_case_t;

static void check_layernorm(nn_device_t *device, const norm_case_t *c) {
    size_t n = c->n_rows * c->channels;
    zr_dtype_t activation = nn_activation_dtype(device, c->dtype);
    nn_array_t x = nn_array_random(n, activation, 2.0, 1);
    nn_array_t weight = nn_array_random(c->channels, c->dtype, 1.0, 2);
    nn_array_t bias = nn_array_random(c->channels, c->dtype, 1.0, 3);
    nn_array_t y = nn_array_random(n, activation, 1.0, 4);
    nn_array_t dy = nn_array_random(n, activation, 1.0, 5);
    nn_array_t dx = nn_array_random(n, activation, 1.0, 6);
    nn_array_t dweight = nn_array_random(c->channels, c->dtype, 1.0, 7);
    nn_array_t dbias = nn_array_random(c->channels, c->dtype, 1.0, 8);
    nn_array_t mean = nn_array_random(c->n_rows, ZR_DTYPE_F32, 1.0, 9);
    nn_array_t rstd = nn_array_random(c->n_rows, ZR_DTYPE_F32, 1.0, 10);

    zr_nn_layernorm_t forward = {.n_rows = c->n_rows,
                                 .channels = c->channels,
                                 .is_rms = c->is_rms,
                                 .x = x.data,
                                 .weight = weight.data,
                                 .bias = c->is_rms ? NULL : bias.data,
                                 .y = y.data,
                                 .mean = c->is_rms ? NULL : mean.data,
                                 .rstd = rstd.data,
                                 .epsilon = 1e-5f,
                                 .activation_dtype = activation,
                                 .param_dtype = c->dtype};
    assert_ok(zr_nn_layernorm(device->stream, &forward));
    if (c->is_rms)
        ref_rmsnorm(y.ref, x.ref, weight.ref, 1e-5, c->n_rows, c->channels);
    else
        ref_layernorm(y.ref, x.ref, weight.ref, bias.ref, 1e-5, c->n_rows, c->channels);
    nn_assert_close("layernorm", &y, 3e-6);

    double *old[3] = {malloc(n * 8 + 1), malloc(c->channels * 8), malloc(c->channels * 8)};
    memcpy(old[0], dx.ref, n * 8);
    memcpy(old[1], dweight.ref, c->channels * 8);
    memcpy(old[2], dbias.ref, c->channels * 8);
    if (c->is_rms) {
        memset(dweight.ref, 0, c->channels * 8);
        ref_rmsnorm_backward(dx.ref, dweight.ref, dy.ref, x.ref, weight.ref, 1e-5, c->n_rows,
                             c->channels);
    } else {
        ref_layernorm_backward(dx.ref, dweight.ref, dbias.ref, dy.ref, x.ref, weight.ref, 1e-5,
                               c->n_rows, c->channels);
    }
    for (size_t i = 0; c->accumulate && i < n; i++)
        dx.ref[i] += old[0][i];
    for (size_t i = 0; c->accumulate && i < c->channels; i++) {
        dweight.ref[i] += old[1][i];
        dbias.ref[i] += c->is_rms ? 0.0 : old[2][i];
    }
    zr_nn_layernorm_backward_t backward = {.n_rows = c->n_rows,
                                           .channels = c->channels,
                                           .is_rms = c->is_rms,
                                           .dy = dy.data,
                                           .x = x.data,
                                           .weight = weight.data,
                                           .mean = c->is_rms ? NULL : mean.data,
                                           .rstd = rstd.data,
                                           .dx = dx.data,
                                           .accumulate_dx = c->accumulate,
                                           .dweight = {dweight.data, c->accumulate},
                                           .dbias = {c->is_rms ? NULL : dbias.data, c->accumulate},
                                           .activation_dtype = activation,
                                           .param_dtype = c->dtype};
    nn_call(device, layernorm_backward, &backward);
    /* With two channels the gradient is 0 but for epsilon: what is left is cancellation. */
    nn_assert_close("layernorm dx", &dx, c->channels == 2 ? 1e-2 : 1e-5);
    nn_assert_close("layernorm dweight", &dweight, 1e-5);
    nn_assert_close("layernorm dbias", &dbias, 3e-6);

    for (int i = 0; i < 3; i++)
        free(old[i]);
    nn_arrays_free(&x, &weight, &bias, &y, &dy, &dx, &mean, &rstd, &dweight, &dbias);
}

NN_TEST(test_layernorm) {
    static const size_t sizes[][2] = {{1, 2},  {7, 33},   {13, 257}, {64, 128}, {5, 771},
                                      {0, 40}, {2500, 9}, {3, 2600}, {9, 4400}};
    for (size_t i = 0; i < N_OF(sizes); i++) {
        for (int variant = 0; variant < 8; variant++)
            if (ONE_OF(1, 3))
                check_layernorm(device, &(norm_case_t){sizes[i][0], sizes[i][1],
                                                       variant & 1 ? ZR_DTYPE_BF16 : ZR_DTYPE_F32,
                                                       variant & 2, variant & 4});
    }
    /* Columns that no thread keeps, of more rows than are gone through at once. */
    for (int is_rms = 0; is_rms < 2; is_rms++)
        if (ONE_OF(1, 3))
            check_layernorm(device, &(norm_case_t){460, 4104, ZR_DTYPE_BF16, true, is_rms});
}

/* ---- GELU -------------------------------------------------------------------------------- */

static void check_gelu(nn_device_t *device, size_t n, zr_dtype_t dtype) {
    nn_array_t x = nn_array_random(n, dtype, 12.0, 1);
    nn_array_t y = nn_array_random(n, dtype, 1.0, 2);
    nn_array_t dy = nn_array_random(n, dtype, 1.0, 3);
    for (size_t j = 0; j < n; j++)
        y.ref[j] = ref_gelu(x.ref[j]);
    assert_ok(zr_nn_gelu(device->stream, y.data, x.data, dtype, n));
    nn_assert_close("gelu", &y, 2e-7);
    for (size_t j = 0; j < n; j++)
        dy.ref[j] *= ref_gelu_slope(x.ref[j]);
    assert_ok(zr_nn_gelu_backward(device->stream, dy.data, dy.data, x.data, dtype, n));
    nn_assert_close("gelu backward in place", &dy, 4e-7);
    nn_arrays_free(&x, &y, &dy);
}

NN_TEST(test_gelu) {
    static const size_t sizes[] = {1, 15, 1000, 70001};
    for (size_t i = 0; i < N_OF(sizes); i++) {
        check_gelu(device, sizes[i], ZR_DTYPE_F32);
        if (nn_activation_dtype(device, ZR_DTYPE_BF16) == ZR_DTYPE_BF16)
            check_gelu(device, sizes[i], ZR_DTYPE_BF16);
    }
}

/* What is not finite must stay so: a step with it is skipped, not taken. Extremes must not
   become infinite by themselves. */
static void check_extremes(nn_device_t *device, zr_dtype_t dtype) {
    static const double values[] = {NAN, INFINITY, 1e30, -1e30, 100.0, -100.0, 0.0, -0.0};
    nn_array_t x = nn_array_of(values, 8, dtype);
    nn_array_t y = nn_array_random(8, dtype, 1.0, 1), dx = nn_array_random(8, dtype, 1.0, 2);
    static const double ones[] = {1, 1, 1, 1, 1, 1, 1, 1};
    nn_array_t dy = nn_array_of(ones, 8, dtype);
    assert_ok(zr_nn_gelu(device->stream, y.data, x.data, dtype, 8));
    assert_ok(zr_nn_gelu_backward(device->stream, dx.data, dy.data, x.data, dtype, 8));
    (void)nn_download(&y);
    (void)nn_download(&dx);
#define Y(i) nn_value(&y, i)
#define DX(i) nn_value(&dx, i)
    assert_true(isnan(Y(0)) && isnan(DX(0)));
    assert_true(isinf(Y(1)));
    assert_true(Y(2) == x.ref[2] && DX(2) == 1.0);
    assert_true(fabs(Y(3)) < 1e-5 && fabs(DX(3)) < 1e-20);
    assert_true(Y(4) == 100.0 && DX(4) == 1.0);
    assert_true(fabs(Y(5)) < 1e-30 && fabs(DX(5)) < 1e-20);
    assert_true(Y(6) == 0.0 && fabs(DX(6) - 0.5) < 1e-6 && Y(7) == 0.0);
#undef Y
#undef DX
    nn_arrays_free(&x, &y, &dx, &dy);
}

NN_TEST(test_extremes) {
    check_extremes(device, ZR_DTYPE_F32);
    if (nn_activation_dtype(device, ZR_DTYPE_BF16) == ZR_DTYPE_BF16)
        check_extremes(device, ZR_DTYPE_BF16);
}

/* ---- bias ---------------------------------------------------------------------------------- */

static void check_bias_grad(nn_device_t *device, size_t n_rows, size_t n_columns, size_t gap,
                            zr_dtype_t dtype, bool accumulate) {
    zr_dtype_t activation = nn_activation_dtype(device, dtype);
    size_t ld = n_columns + gap;
    nn_array_t dy = nn_array_random(n_rows * ld, activation, 1.0, 8);
    nn_array_t dbias = nn_array_random(n_columns, dtype, 1.0, 9);
    for (size_t j = 0; j < n_columns; j++) {
        dbias.ref[j] = accumulate ? dbias.ref[j] : 0.0;
        for (size_t i = 0; i < n_rows; i++)
            dbias.ref[j] += dy.ref[i * ld + j];
    }
    zr_nn_bias_grad_t args = {.n_rows = n_rows,
                              .n_columns = n_columns,
                              .ld_dy = gap > 0 ? ld : 0,
                              .dy = dy.data,
                              .dbias = {dbias.data, accumulate},
                              .activation_dtype = activation,
                              .param_dtype = dtype};
    nn_call(device, bias_grad, &args);
    nn_assert_close("bias gradient", &dbias, 2e-6);
    nn_arrays_free(&dy, &dbias);
}

NN_TEST(test_bias_gradients) {
    static const size_t sizes[][2] = {{1, 1},    {0, 9},     {7, 130},  {129, 63},
                                      {40, 257}, {300, 520}, {1100, 16}};
    for (size_t i = 0; i < N_OF(sizes); i++) {
        for (int variant = 0; variant < 12; variant++)
            if (ONE_OF(1, 5))
                check_bias_grad(device, sizes[i][0], sizes[i][1], (size_t)(variant / 4 * 4),
                                variant & 1 ? ZR_DTYPE_BF16 : ZR_DTYPE_F32, variant & 2);
    }
}

/* ---- embedding ------------------------------------------------------------------------------ */

typedef struct embedding_case {
    size_t batch, seq, channels, vocab, n_positions;
    zr_dtype_t dtype;
    bool accumulate;
    const nn_array_t *starts; /* of documents; NULL: none */
} embedding_case_t;

static size_t position_of(const embedding_case_t *c, size_t row) {
    return row % c->seq - (c->starts != NULL ? (size_t)c->starts->ref[row] : 0);
}

static const int32_t *starts_of(const embedding_case_t *c) {
    return c->starts != NULL ? c->starts->data : NULL;
}

static void check_embedding_forward(nn_device_t *device, const embedding_case_t *c,
                                    const nn_array_t *tokens) {
    size_t n = c->batch * c->seq * c->channels;
    zr_dtype_t activation = nn_activation_dtype(device, c->dtype);
    nn_array_t tokens_table = nn_array_random(c->vocab * c->channels, c->dtype, 1.0, 1);
    nn_array_t positions = nn_array_random(c->n_positions * c->channels, c->dtype, 1.0, 2);
    nn_array_t out = nn_array_random(n, activation, 1.0, 3);
    for (size_t i = 0; i < n; i++) {
        size_t row = i / c->channels, column = i % c->channels;
        out.ref[i] =
            tokens_table.ref[(size_t)tokens->ref[row] * c->channels + column] +
            (c->n_positions == 0 ? 0.0 : positions.ref[position_of(c, row) * c->channels + column]);
    }
    zr_nn_embedding_t args = {.batch = c->batch,
                              .seq = c->seq,
                              .channels = c->channels,
                              .vocab = c->vocab,
                              .n_positions = c->n_positions,
                              .tokens = tokens->data,
                              .document_starts = starts_of(c),
                              .token_table = tokens_table.data,
                              .position_table = c->n_positions == 0 ? NULL : positions.data,
                              .out = out.data,
                              .activation_dtype = activation,
                              .param_dtype = c->dtype};
    assert_ok(zr_nn_embedding(device->stream, &args));
    nn_assert_close("embedding", &out, 1e-7);
    nn_arrays_free(&tokens_table, &positions, &out);
}

static void check_embedding_backward(nn_device_t *device, const embedding_case_t *c,
                                     const nn_array_t *tokens) {
    size_t n = c->batch * c->seq * c->channels;
    zr_dtype_t activation = nn_activation_dtype(device, c->dtype);
    nn_array_t dout = nn_array_random(n, activation, 1.0, 4);
    nn_array_t dtokens = nn_array_random(c->vocab * c->channels, c->dtype, 1.0, 5);
    nn_array_t dpositions = nn_array_random(c->n_positions * c->channels, c->dtype, 1.0, 6);
    for (size_t i = 0; !c->accumulate && i < dtokens.n; i++)
        dtokens.ref[i] = 0.0;
    for (size_t i = 0; !c->accumulate && i < dpositions.n; i++)
        dpositions.ref[i] = 0.0;
    for (size_t i = 0; i < n; i++) {
        size_t row = i / c->channels, column = i % c->channels;
        dtokens.ref[(size_t)tokens->ref[row] * c->channels + column] += dout.ref[i];
        if (c->n_positions != 0)
            dpositions.ref[position_of(c, row) * c->channels + column] += dout.ref[i];
    }
    zr_nn_embedding_backward_t args = {
        .batch = c->batch,
        .seq = c->seq,
        .channels = c->channels,
        .vocab = c->vocab,
        .n_positions = c->n_positions,
        .tokens = tokens->data,
        .document_starts = starts_of(c),
        .dout = dout.data,
        .dtoken_table = {dtokens.data, c->accumulate},
        .dposition_table = {c->n_positions == 0 ? NULL : dpositions.data, c->accumulate},
        .activation_dtype = activation,
        .param_dtype = c->dtype};
    nn_call(device, embedding_backward, &args);
    nn_assert_close("token gradients", &dtokens, 1e-6);
    nn_assert_close("position gradients", &dpositions, 1e-6);
    nn_arrays_free(&dout, &dtokens, &dpositions);
}

NN_TEST(test_embedding) {
    static const size_t sizes[][5] = {
        {1, 1, 1, 1, 1},  {3, 7, 33, 11, 9},    {5, 19, 300, 3, 40},   {2, 50, 17, 70001, 50},
        {0, 4, 12, 5, 6}, {4, 64, 8, 1000, 64}, {3, 700, 9, 300, 701}, {2, 9, 300, 20, 0}};
    for (size_t i = 0; i < N_OF(sizes); i++) {
        size_t n_tokens = sizes[i][0] * sizes[i][1];
        nn_array_t tokens = nn_tokens_random(n_tokens, sizes[i][3], 9);
        for (size_t j = 0; sizes[i][3] > 65536 && j < n_tokens; j++)
            nn_set_value(&tokens, j, 3 + 65536 * ((int)tokens.ref[j] % 2)); /* but for the upper
                                                                               half alike */
        nn_array_t starts = nn_documents(sizes[i][0], sizes[i][1], 2);
        nn_upload(&tokens);
        for (int variant = 0; variant < 8; variant++) {
            if (!ONE_OF(1, 3))
                continue;
            embedding_case_t c = {sizes[i][0], sizes[i][1],
                                  sizes[i][2], sizes[i][3],
                                  sizes[i][4], variant & 1 ? ZR_DTYPE_BF16 : ZR_DTYPE_F32,
                                  variant & 2, variant & 4 ? &starts : NULL};
            check_embedding_forward(device, &c, &tokens);
            check_embedding_backward(device, &c, &tokens);
        }
        nn_arrays_free(&tokens, &starts);
    }
}

/* Numbers of very different size, so that the order of a sum shows in its bits. */
static nn_array_t uneven_random(size_t n, uint64_t seed) {
    nn_array_t array = nn_array_random(n, ZR_DTYPE_F32, 1.0, seed);
    for (size_t i = 0; i < n; i++)
        nn_set_value(&array, i, ldexp(array.ref[i], (int)(i * 7 % 23)));
    nn_upload(&array);
    return array;
}

/* Occurrences of a token, and of a document's position, are added in the order of their rows, on
 * every device. There are more tokens than all warps of CUDA's sort read at once. */
NN_TEST(test_token_order) {
    const size_t batch = 2, seq = 4500, channels = 12, vocab = 300;
    nn_array_t dout = uneven_random(batch * seq * channels, 1);
    nn_array_t gradient = nn_array_random(vocab * channels, ZR_DTYPE_F32, 1.0, 2);
    nn_array_t tokens = nn_tokens_random(batch * seq, vocab, 3);
    for (size_t i = 0; i < batch * seq; i += 3) /* one is frequent, and its number has two bytes */
        nn_set_value(&tokens, i, 290);
    nn_upload(&tokens);
    nn_array_t starts = nn_documents(batch, seq, 5);
    nn_array_t positions = nn_array_random(seq * channels, ZR_DTYPE_F32, 1.0, 4);
    float *expected = calloc((vocab + seq) * channels, sizeof(float));
    float *of_positions = expected + vocab * channels;
    assert_non_null(expected);
    for (size_t i = 0; i < dout.n; i++) {
        size_t row = i / channels, position = row % seq - (size_t)starts.ref[row];
        expected[(size_t)tokens.ref[row] * channels + i % channels] += (float)dout.ref[i];
        of_positions[position * channels + i % channels] += (float)dout.ref[i];
    }
    zr_nn_embedding_backward_t args = {.batch = batch,
                                       .seq = seq,
                                       .channels = channels,
                                       .vocab = vocab,
                                       .n_positions = seq,
                                       .tokens = tokens.data,
                                       .document_starts = starts.data,
                                       .dout = dout.data,
                                       .dtoken_table = {gradient.data, false},
                                       .dposition_table = {positions.data, false},
                                       .activation_dtype = ZR_DTYPE_F32,
                                       .param_dtype = ZR_DTYPE_F32};
    nn_call(device, embedding_backward, &args);
    nn_assert_same("token gradients in order", nn_download(&gradient), expected,
                   vocab * channels * sizeof(float));
    nn_assert_same("position gradients in order", nn_download(&positions), of_positions,
                   seq * channels * sizeof(float));
    free(expected);
    nn_arrays_free(&gradient, &positions, &starts, &tokens, &dout);
}

/* Sums over rows have the same bits when they are made again. */
NN_TEST(test_again) {
    const size_t n_rows = 700, channels = 72;
    nn_array_t dy = uneven_random(n_rows * channels, 1), x = uneven_random(n_rows * channels, 2);
    nn_array_t weight = nn_array_random(channels, ZR_DTYPE_F32, 1.0, 3);
    nn_array_t mean = nn_array_random(n_rows, ZR_DTYPE_F32, 1.0, 4);
    nn_array_t rstd = nn_array_random(n_rows, ZR_DTYPE_F32, 1.0, 5);
    nn_array_t dx = nn_array_random(n_rows * channels, ZR_DTYPE_F32, 1.0, 6);
    nn_array_t sums[2];
    for (int i = 0; i < 2; i++) {
        sums[i] = nn_array_random(3 * channels, ZR_DTYPE_F32, 1.0, 7);
        float *out = sums[i].data;
        zr_nn_layernorm_backward_t args = {.n_rows = n_rows,
                                           .channels = channels,
                                           .dy = dy.data,
                                           .x = x.data,
                                           .weight = weight.data,
                                           .mean = mean.data,
                                           .rstd = rstd.data,
                                           .dx = dx.data,
                                           .dweight = {out, false},
                                           .dbias = {out + channels, false},
                                           .activation_dtype = ZR_DTYPE_F32,
                                           .param_dtype = ZR_DTYPE_F32};
        nn_call(device, layernorm_backward, &args);
        zr_nn_bias_grad_t bias = {.n_rows = n_rows,
                                  .n_columns = channels,
                                  .dy = dy.data,
                                  .dbias = {out + 2 * channels, false},
                                  .activation_dtype = ZR_DTYPE_F32,
                                  .param_dtype = ZR_DTYPE_F32};
        nn_call(device, bias_grad, &bias);
    }
    nn_assert_same("sums over rows, again", nn_download(&sums[0]), nn_download(&sums[1]),
                   3 * channels * sizeof(float));
    nn_arrays_free(&dy, &x, &weight, &mean, &rstd, &dx, &sums[0], &sums[1]);
}
