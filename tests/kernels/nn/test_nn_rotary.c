/*
 * Rotary positions, the normalisation of queries and keys that goes before them, and SwiGLU against
 * double precision.
 */
#include "tests/common/kept_log.h"
#include "tests/kernels/nn/nn_test.h"
#include "tests/ref/ref_nn.h"

/* ---- SwiGLU -------------------------------------------------------------------------------- */

static void check_swiglu(nn_device_t *device, size_t n_rows, size_t channels, zr_dtype_t dtype) {
    size_t n = n_rows * channels;
    nn_array_t gate_up = nn_array_random(2 * n, dtype, 12.0, 1);
    nn_array_t y = nn_array_random(n, dtype, 1.0, 2), dy = nn_array_random(n, dtype, 1.0, 3);
    nn_array_t other = nn_array_random(2 * n, dtype, 1.0, 4);
    for (size_t i = 0; i < n; i++) {
        size_t g = i / channels * 2 * channels + i % channels, u = g + channels;
        y.ref[i] = ref_silu(gate_up.ref[g]) * gate_up.ref[u];
        other.ref[g] = dy.ref[i] * gate_up.ref[u] * ref_silu_slope(gate_up.ref[g]);
        other.ref[u] = dy.ref[i] * ref_silu(gate_up.ref[g]);
    }
    const zr_nn_swiglu_t forward = {.n_rows = n_rows,
                                    .channels = channels,
                                    .gate_up = gate_up.data,
                                    .y = y.data,
                                    .activation_dtype = dtype};
    zr_nn_swiglu_backward_t backward = {.n_rows = n_rows,
                                        .channels = channels,
                                        .dy = dy.data,
                                        .gate_up = gate_up.data,
                                        .dgate_up = other.data,
                                        .activation_dtype = dtype};
    assert_ok(zr_nn_swiglu(device->stream, &forward));
    nn_assert_close("swiglu", &y, 3e-7);
    assert_ok(zr_nn_swiglu_backward(device->stream, &backward));
    nn_assert_close("swiglu backward", &other, 6e-7);
    backward.dgate_up = gate_up.data;
    assert_ok(zr_nn_swiglu_backward(device->stream, &backward));
    nn_assert_same("swiglu backward in place", nn_download(&gate_up), nn_download(&other),
                   2 * n * zr_dtype_size(dtype));
    nn_array_t *arrays[] = {&gate_up, &y, &dy, &other};
    for (size_t i = 0; i < sizeof(arrays) / sizeof(arrays[0]); i++)
        nn_array_free(arrays[i]);
}

NN_TEST(test_swiglu) {
    static const size_t sizes[][2] = {{1, 1}, {3, 7}, {5, 64}, {17, 200}, {900, 40}, {2, 5003}};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        check_swiglu(device, sizes[i][0], sizes[i][1], ZR_DTYPE_F32);
        if (nn_activation_dtype(device, ZR_DTYPE_BF16) == ZR_DTYPE_BF16)
            check_swiglu(device, sizes[i][0], sizes[i][1], ZR_DTYPE_BF16);
    }
}

/* What is not finite stays so, and extremes do not become infinite by themselves. */
NN_TEST(test_swiglu_extremes) {
    static const double gates_and_ups[] = {NAN, INFINITY, 1e30, -1e30, 100, -100, 0, -0.0,
                                           1,   1,        1,    1,     1,   1,    1, 1};
    static const double ones[] = {1, 1, 1, 1, 1, 1, 1, 1};
    for (int variant = 0; variant < 2; variant++) {
        zr_dtype_t dtype = nn_activation_dtype(device, variant == 0 ? ZR_DTYPE_F32 : ZR_DTYPE_BF16);
        nn_array_t x = nn_array_of(gates_and_ups, 16, dtype), dy = nn_array_of(ones, 8, dtype);
        nn_array_t y = nn_array_random(8, dtype, 1.0, 1), dx = nn_array_random(16, dtype, 1.0, 2);
        const zr_nn_swiglu_t forward = {
            .n_rows = 1, .channels = 8, .gate_up = x.data, .y = y.data, .activation_dtype = dtype};
        const zr_nn_swiglu_backward_t backward = {.n_rows = 1,
                                                  .channels = 8,
                                                  .dy = dy.data,
                                                  .gate_up = x.data,
                                                  .dgate_up = dx.data,
                                                  .activation_dtype = dtype};
        assert_ok(zr_nn_swiglu(device->stream, &forward));
        assert_ok(zr_nn_swiglu_backward(device->stream, &backward));
        (void)nn_download(&y);
        (void)nn_download(&dx);
        for (size_t i = 0; i < 8; i++) { /* y and the gradient of what is multiplied are silu */
            double silu = nn_value(&y, i), slope = nn_value(&dx, i), x_i = x.ref[i];
            assert_true(isnan(x_i) ? isnan(silu) && isnan(slope) : isinf(x_i) == isinf(silu));
            assert_true(isnan(x_i) || nn_value(&dx, 8 + i) == silu);
            assert_true(isnan(x_i) || x_i < 100 || (silu == x_i && slope == 1));
            assert_true(!(x_i <= -100) || (fabs(silu) < 1e-4 && fabs(slope) < 1e-20));
        }
        nn_array_t *arrays[] = {&x, &y, &dy, &dx};
        for (size_t i = 0; i < sizeof(arrays) / sizeof(arrays[0]); i++)
            nn_array_free(arrays[i]);
    }
}

/* ---- frequencies --------------------------------------------------------------------------- */

/* Each pair's as the papers and the models' cards have it, written once more. */
static double expected_frequency(const zr_nn_rotary_positions_t *p, size_t i, size_t head_size) {
    double frequency = 1.0 / pow(p->theta, (double)(2 * i) / (double)head_size);
    if (p->scaling == ZR_NN_ROTARY_DEFAULT)
        return frequency;
    if (p->scaling == ZR_NN_ROTARY_LINEAR)
        return frequency / p->factor;
    double length = 2.0 * acos(-1.0) / frequency; /* of a wave, in positions */
    if (length < p->original_max_position_embeddings / p->high_freq_factor)
        return frequency;
    if (length > p->original_max_position_embeddings / p->low_freq_factor)
        return frequency / p->factor;
    double smooth = (p->original_max_position_embeddings / length - p->low_freq_factor) /
                    (p->high_freq_factor - p->low_freq_factor);
    return (1.0 - smooth) * frequency / p->factor + smooth * frequency;
}

static const zr_nn_rotary_positions_t llama3 = {.theta = 500000,
                                                .scaling = ZR_NN_ROTARY_LLAMA3,
                                                .factor = 8,
                                                .low_freq_factor = 1,
                                                .high_freq_factor = 4,
                                                .original_max_position_embeddings = 8192};

TEST(test_frequencies) {
    const zr_nn_rotary_positions_t cases[] = {
        {.theta = 10000}, {.theta = 10000, .scaling = ZR_NN_ROTARY_LINEAR, .factor = 2.5}, llama3};
    for (size_t k = 0; k < sizeof(cases) / sizeof(cases[0]); k++)
        for (size_t head_size = 2; head_size <= 256; head_size += 42) {
            float frequencies[ZR_NN_ROTARY_MAX_HEAD_SIZE / 2];
            zr_log_t log = zr_log_default();
            assert_ok(zr_nn_rotary_frequencies(&cases[k], head_size, &log, frequencies));
            for (size_t i = 0; i < head_size / 2; i++) {
                double expected = expected_frequency(&cases[k], i, head_size);
                if (!(fabs(frequencies[i] - expected) <= 1e-7 * expected))
                    fail_msg("case %zu, head size %zu: frequency %zu is %.9g instead of %.9g", k,
                             head_size, i, (double)frequencies[i], expected);
            }
        }
}

TEST(test_frequencies_refused) {
    zr_nn_rotary_positions_t cases[7] = {llama3, llama3, llama3, llama3, llama3, llama3, llama3};
    zr_log_t log = zr_log_default();
    float frequencies[ZR_NN_ROTARY_MAX_HEAD_SIZE / 2];
    log.sink = drop_message;
    cases[0].theta = 0;
    cases[1].scaling = (zr_nn_rotary_scaling_t)7;
    cases[2].factor = 0;
    cases[3].low_freq_factor = 0;
    cases[4].high_freq_factor = 1;
    cases[5].original_max_position_embeddings = 0;
    cases[6].factor = NAN;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        assert_int_equal(zr_nn_rotary_frequencies(&cases[i], 64, &log, frequencies),
                         ZR_ERR_ARGUMENT);
    assert_int_equal(zr_nn_rotary_frequencies(&llama3, 63, &log, frequencies), ZR_ERR_ARGUMENT);
    assert_int_equal(zr_nn_rotary_frequencies(&llama3, 258, &log, frequencies), ZR_ERR_ARGUMENT);
}

/* ---- rotary positions ---------------------------------------------------------------------- */

typedef struct rotary_case {
    size_t batch, seq, heads, kv_heads, head_size;
    zr_dtype_t dtype;
    bool is_turned, is_normalised, has_documents, accumulate;
} rotary_case_t;

#define EPSILON 1e-4

typedef struct rotary_arrays {
    nn_array_t qkv, out, rstd, dqkv, starts, weights[2], dweights[2];
    float frequencies[ZR_NN_ROTARY_MAX_HEAD_SIZE / 2];
} rotary_arrays_t;

/* Positions far apart would show fp32's rounding of the angle instead of the kernel's error. */
static rotary_arrays_t make_arrays(const rotary_case_t *c, zr_dtype_t activation) {
    size_t n_tokens = c->batch * c->seq, row = (c->heads + 2 * c->kv_heads) * c->head_size;
    rotary_arrays_t a = {
        .qkv = nn_array_random(n_tokens * row, activation, 2.0, 1),
        .out = nn_array_random(n_tokens * row, activation, 1.0, 2),
        .rstd = nn_array_random(n_tokens * (c->heads + c->kv_heads), ZR_DTYPE_F32, 1.0, 3),
        .dqkv = nn_array_random(n_tokens * row, activation, 1.0, 4),
        .starts = nn_documents(c->batch, c->seq, 1)};
    for (int i = 0; i < 2; i++) {
        a.weights[i] = nn_array_random(c->head_size, c->dtype, 2.0, 5 + (uint64_t)i);
        a.dweights[i] = nn_array_random(c->head_size, c->dtype, 1.0, 7 + (uint64_t)i);
        for (size_t k = 0; !c->accumulate && k < c->head_size; k++)
            a.dweights[i].ref[k] = 0.0;
    }
    const zr_nn_rotary_positions_t positions = {.theta = 10000};
    zr_log_t log = zr_log_default();
    assert_ok(zr_nn_rotary_frequencies(&positions, c->head_size, &log, a.frequencies));
    return a;
}

/* What the kernels should do, with everything there is. */
static void find_expected(const rotary_case_t *c, rotary_arrays_t *a) {
    size_t size = c->head_size, n_turned = c->heads + c->kv_heads, n = n_turned + c->kv_heads;
    double frequencies[ZR_NN_ROTARY_MAX_HEAD_SIZE / 2], opposite[ZR_NN_ROTARY_MAX_HEAD_SIZE / 2];
    for (size_t i = 0; i < size / 2; i++) {
        frequencies[i] = c->is_turned ? (double)a->frequencies[i] : 0.0;
        opposite[i] = -frequencies[i];
    }
    memcpy(a->out.ref, a->qkv.ref, a->qkv.n * sizeof(double));
    for (size_t head = 0; head < c->batch * c->seq * n; head++) {
        size_t token = head / n, h = head % n;
        double position = (double)(token % c->seq) - (c->has_documents ? a->starts.ref[token] : 0);
        double *x = a->qkv.ref + head * size, *y = a->out.ref + head * size;
        double *dx = a->dqkv.ref + head * size, dy[ZR_NN_ROTARY_MAX_HEAD_SIZE];
        int which = h >= c->heads;
        if (h >= n_turned)
            continue;
        if (c->is_normalised)
            ref_rmsnorm(y, x, a->weights[which].ref, EPSILON, 1, size);
        ref_rotate(y, frequencies, position, size);
        ref_rotate(dx, opposite, position, size);
        memcpy(dy, dx, size * sizeof(double));
        if (c->is_normalised)
            ref_rmsnorm_backward(dx, a->dweights[which].ref, dy, x, a->weights[which].ref, EPSILON,
                                 1, size);
    }
}

static zr_nn_qkv_shape_t shape_of(const rotary_case_t *c, const rotary_arrays_t *a) {
    return (zr_nn_qkv_shape_t){.batch = c->batch,
                               .seq = c->seq,
                               .heads = c->heads,
                               .kv_heads = c->kv_heads,
                               .head_size = c->head_size,
                               .document_starts = c->has_documents ? a->starts.data : NULL};
}

static void run_forward(nn_device_t *device, const rotary_case_t *c, const rotary_arrays_t *a,
                        void *out) {
    const zr_nn_rotary_t args = {.shape = shape_of(c, a),
                                 .qkv = a->qkv.data,
                                 .out = out,
                                 .frequencies = c->is_turned ? a->frequencies : NULL,
                                 .q_weight = c->is_normalised ? a->weights[0].data : NULL,
                                 .k_weight = c->is_normalised ? a->weights[1].data : NULL,
                                 .epsilon = (float)EPSILON,
                                 .rstd = c->is_normalised ? a->rstd.data : NULL,
                                 .activation_dtype = a->qkv.dtype,
                                 .param_dtype = c->dtype};
    assert_ok(zr_nn_rotary(device->stream, &args));
}

static void run_backward(nn_device_t *device, const rotary_case_t *c, const rotary_arrays_t *a) {
    const zr_nn_rotary_backward_t args = {
        .shape = shape_of(c, a),
        .dqkv = a->dqkv.data,
        .frequencies = c->is_turned ? a->frequencies : NULL,
        .qkv = c->is_normalised ? a->qkv.data : NULL,
        .q_weight = c->is_normalised ? a->weights[0].data : NULL,
        .k_weight = c->is_normalised ? a->weights[1].data : NULL,
        .rstd = c->is_normalised ? a->rstd.data : NULL,
        .dq_weight = {c->is_normalised ? a->dweights[0].data : NULL, c->accumulate},
        .dk_weight = {c->is_normalised ? a->dweights[1].data : NULL, c->accumulate},
        .activation_dtype = a->qkv.dtype,
        .param_dtype = c->dtype};
    zr_nn_workspace_t workspace =
        nn_workspace(zr_nn_rotary_backward_workspace_bytes(device->device, &args));
    assert_ok(zr_nn_rotary_backward(device->stream, &args, workspace));
    nn_workspace_free(&workspace);
}

static void check_rotary(nn_device_t *device, const rotary_case_t *c) {
    rotary_arrays_t a = make_arrays(c, nn_activation_dtype(device, c->dtype));
    find_expected(c, &a);
    run_forward(device, c, &a, a.out.data);
    nn_assert_close("rotary", &a.out, 4e-6);
    run_backward(device, c, &a);
    nn_assert_close("rotary backward", &a.dqkv, 6e-6);
    for (int i = 0; i < 2 && c->is_normalised; i++)
        nn_assert_close(i == 0 ? "gradient of q_weight" : "gradient of k_weight", &a.dweights[i],
                        4e-6);
    run_forward(device, c, &a, a.qkv.data);
    nn_assert_same("rotary in place", nn_download(&a.qkv), nn_download(&a.out),
                   a.qkv.n * zr_dtype_size(a.qkv.dtype));
    nn_array_t *arrays[] = {&a.qkv,        &a.out,        &a.rstd,        &a.dqkv,       &a.starts,
                            &a.weights[0], &a.weights[1], &a.dweights[0], &a.dweights[1]};
    for (size_t i = 0; i < sizeof(arrays) / sizeof(arrays[0]); i++)
        nn_array_free(arrays[i]);
}

NN_TEST(test_rotary) {
    static const size_t sizes[][5] = {{1, 1, 1, 1, 2},  {2, 9, 4, 2, 6},    {1, 35, 6, 2, 64},
                                      {2, 7, 3, 1, 80}, {1, 21, 2, 2, 128}, {1, 4, 5, 1, 256},
                                      {3, 2, 8, 4, 20}};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        for (int variant = 0; variant < 16; variant++)
            check_rotary(device,
                         &(rotary_case_t){.batch = sizes[i][0],
                                          .seq = sizes[i][1],
                                          .heads = sizes[i][2],
                                          .kv_heads = sizes[i][3],
                                          .head_size = sizes[i][4],
                                          .dtype = variant & 1 ? ZR_DTYPE_BF16 : ZR_DTYPE_F32,
                                          .is_turned = variant / 4 != 3,
                                          .is_normalised = variant & 2,
                                          .has_documents = variant & 4,
                                          .accumulate = variant & 8});
    /* More tokens than parts of the sum that is the weights' gradient. */
    check_rotary(device, &(rotary_case_t){2, 2100, 1, 1, 4, ZR_DTYPE_F32, true, true, true, false});
}

/* Nothing to turn: gradients of the weights are still 0. */
NN_TEST(test_no_rows) {
    check_rotary(device, &(rotary_case_t){0, 5, 2, 1, 8, ZR_DTYPE_F32, true, true, false, false});
}
