/*
 * The language model head against double precision, in chunks that divide nothing.
 */
#include "tests/kernels/nn/nn_test.h"
#include "tests/ref/ref_nn.h"

typedef struct head_case {
    size_t n_rows, channels, vocab, vocab_chunk;
    zr_dtype_t dtype;
    bool accumulate;
    double scale; /* of the activations: large ones make extreme logits */
} head_case_t;

typedef struct head_arrays {
    nn_array_t x, weight, dx, dweight, targets;
    double loss;
} head_arrays_t;

/* Logits and their gradients are kept in the dtype of the activations. */
static double tolerance(const nn_array_t *x, double of_fp32) {
    return x->dtype == ZR_DTYPE_F32 ? of_fp32 : 1e-2;
}

static head_arrays_t make_arrays(const nn_device_t *device, const head_case_t *c) {
    zr_dtype_t activation = nn_activation_dtype(device, c->dtype);
    size_t n_x = c->n_rows * c->channels, n_weight = c->vocab * c->channels;
    head_arrays_t arrays = {.x = nn_array_random(n_x, activation, c->scale, 1),
                            .weight = nn_array_random(n_weight, c->dtype, 1.0, 2),
                            .dx = nn_array_random(n_x, activation, 1.0, 3),
                            .dweight = nn_array_random(n_weight, c->dtype, 1e-2, 4),
                            .targets = nn_tokens_random(c->n_rows, c->vocab, 5)};
    size_t n_logits = c->n_rows * c->vocab;
    double *logits = malloc(2 * n_logits * sizeof(double) + 1), *dlogits = logits + n_logits;
    double *dweight = malloc(c->vocab * c->channels * sizeof(double));
    ref_matmul(logits, arrays.x.ref, false, arrays.weight.ref, true, c->n_rows, c->vocab,
               c->channels);
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
    nn_array_free(&arrays->x);
    nn_array_free(&arrays->weight);
    nn_array_free(&arrays->dx);
    nn_array_free(&arrays->dweight);
    nn_array_free(&arrays->targets);
}

static zr_nn_lm_head_t make_args(const head_case_t *c, const head_arrays_t *arrays,
                                 const nn_array_t *loss) {
    return (zr_nn_lm_head_t){.n_rows = c->n_rows,
                             .channels = c->channels,
                             .vocab = c->vocab,
                             .vocab_chunk = c->vocab_chunk,
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

static void run_head(nn_device_t *device, const zr_nn_lm_head_t *args) {
    zr_nn_workspace_t workspace = nn_workspace(zr_nn_lm_head_workspace_bytes(device->device, args));
    assert_ok(zr_nn_lm_head(device->stream, args, workspace));
    nn_workspace_free(&workspace);
}

/* What the loss was added to. */
static const double before = 3.0;

static void assert_loss(const nn_array_t *loss, double expected, double tolerated) {
    (void)nn_download(loss);
    double value = nn_value(loss, 0) - before;
    if (!(fabs(value - expected) <= tolerated * (1.0 + expected)))
        fail_msg("a loss of %.9g instead of %.9g", value, expected);
}

static void check_head(nn_device_t *device, const head_case_t *c) {
    head_arrays_t arrays = make_arrays(device, c);
    nn_array_t loss = nn_array_of(&before, 1, ZR_DTYPE_F64);
    nn_array_t loss_alone = nn_array_of(&before, 1, ZR_DTYPE_F64);
    zr_nn_lm_head_t args = make_args(c, &arrays, &loss);
    run_head(device, &args);
    assert_loss(&loss, arrays.loss, tolerance(&arrays.x, 3e-6));
    nn_assert_close("lm_head dx", &arrays.dx, tolerance(&arrays.x, 1e-5));
    nn_assert_close("lm_head dweight", &arrays.dweight, tolerance(&arrays.x, 1e-5));

    /* Without gradients, and with one of them: the same loss and the same dx. */
    args.loss = loss_alone.data;
    args.dweight.data = NULL;
    run_head(device, &args);
    nn_assert_close("lm_head dx alone", &arrays.dx, tolerance(&arrays.x, 1e-5));
    args.dx = NULL;
    nn_set_value(&loss_alone, 0, before);
    nn_upload(&loss_alone);
    run_head(device, &args);
    nn_assert_same("loss alone", nn_download(&loss_alone), nn_download(&loss), sizeof(double));
    nn_array_free(&loss);
    nn_array_free(&loss_alone);
    free_arrays(&arrays);
}

static void head_body(nn_device_t *device) {
    static const size_t sizes[][4] = {{1, 1, 1, 1},     {1, 3, 2, 1},        {5, 7, 257, 100},
                                      {33, 48, 97, 97}, {17, 20, 1000, 128}, {70, 12, 501, 4096},
                                      {0, 6, 30, 7},    {40, 3, 4099, 4000}};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        for (int variant = 0; variant < 4; variant++) {
            head_case_t c = {sizes[i][0],
                             sizes[i][1],
                             sizes[i][2],
                             sizes[i][3],
                             variant & 1 ? ZR_DTYPE_BF16 : ZR_DTYPE_F32,
                             variant & 2,
                             1.0};
            check_head(device, &c);
        }
    }
}

TEST(test_head) {
    nn_on_every_device(head_body);
}

/* Logits of hundreds: exp of none of them exists in fp32. */
static void extreme_body(nn_device_t *device) {
    check_head(device, &(head_case_t){19, 30, 300, 70, ZR_DTYPE_F32, false, 40.0});
}

TEST(test_extreme_logits) {
    nn_on_every_device(extreme_body);
}

/* The workspace grows with the chunk, not with the vocabulary. */
static void workspace_body(nn_device_t *device) {
    zr_nn_lm_head_t args = {.n_rows = 256,
                            .channels = 768,
                            .vocab = 50257,
                            .vocab_chunk = 4096,
                            .dx = &args,
                            .activation_dtype = ZR_DTYPE_F32,
                            .param_dtype = ZR_DTYPE_F32};
    const zr_nn_matmul_t product = {0}; /* whose workspace some devices have for any size */
    size_t logits_bytes = 256 * 50257 * sizeof(float);
    assert_true(zr_nn_lm_head_workspace_bytes(device->device, &args) <
                logits_bytes / 10 + zr_nn_matmul_workspace_bytes(device->device, &product));
}

TEST(test_workspace) {
    nn_on_every_device(workspace_body);
}
