/*
 * Causal attention against double precision, on every device: at lengths and heads that fit tiles
 * and that do not, each element within what its roundings allow; the same bits in whatever order
 * threads and blocks run; and that its scores are never all there. ATTENTION_ENGINE=cudnn of the
 * environment: by cuDNN, where it has such heads.
 */
#include "tests/kernels/nn/nn_test.h"
#include "tests/ref/attention_bounds.h"
#include "tests/ref/ref_nn.h"

typedef struct attention_test {
    nn_device_t *device;
    attention_case_t c;
    zr_dtype_t dtype;
    nn_array_t qkv, out, log_sum, dout, dqkv, starts;
} attention_test_t;

static const zr_dtype_t dtypes[] = {ZR_DTYPE_BF16, ZR_DTYPE_F32};

/* Documents of document_step, twice as many, ... positions; 0: none. */
static attention_test_t make_test(nn_device_t *device, attention_case_t c, zr_dtype_t dtype,
                                  double largest, size_t document_step) {
    size_t n = c.ref.batch * c.ref.seq * c.ref.heads * c.ref.head_size;
    size_t n_qkv = n / c.ref.heads * (c.ref.heads + 2 * c.ref.kv_heads);
    nn_array_t starts =
        nn_documents(c.ref.batch, c.ref.seq, document_step == 0 ? 1 : document_step);
    c.rounding = dtype == ZR_DTYPE_F32 ? 0x1p-24 : 0x1p-8;
    c.ref.document_starts = document_step == 0 ? NULL : starts.host;
    return (attention_test_t){.device = device,
                              .c = c,
                              .dtype = dtype,
                              .qkv = nn_array_random(n_qkv, dtype, largest, 1),
                              .out = nn_array_random(n, dtype, 1.0, 2),
                              .log_sum = nn_array_random(n / c.ref.head_size, ZR_DTYPE_F32, 1.0, 3),
                              .dout = nn_array_random(n, dtype, 1.0, 4),
                              .dqkv = nn_array_random(n_qkv, dtype, 1.0, 5),
                              .starts = starts};
}

static void free_test(attention_test_t *test) {
    nn_arrays_free(&test->qkv, &test->out, &test->log_sum, &test->dout, &test->dqkv, &test->starts);
}

static zr_nn_qkv_shape_t shape_of(const attention_test_t *test) {
    const ref_attention_t *ref = &test->c.ref;
    return (zr_nn_qkv_shape_t){.batch = ref->batch,
                               .seq = ref->seq,
                               .heads = ref->heads,
                               .kv_heads = ref->kv_heads,
                               .head_size = ref->head_size,
                               .document_starts =
                                   ref->document_starts == NULL ? NULL : test->starts.data};
}

static zr_nn_engine_t engine(void) {
    return getenv("ATTENTION_ENGINE") == NULL ? ZR_NN_ENGINE_OWN : ZR_NN_ENGINE_CUDNN;
}

static zr_status_t run_forward(const attention_test_t *test) {
    zr_nn_attention_t args = {.shape = shape_of(test),
                              .window = test->c.ref.window,
                              .qkv = test->qkv.data,
                              .out = test->out.data,
                              .log_sum = test->log_sum.data,
                              .activation_dtype = test->dtype,
                              .engine = engine()};
    zr_nn_workspace_t workspace =
        nn_workspace(zr_nn_attention_workspace_bytes(test->device->device, &args));
    zr_status_t status = zr_nn_attention(test->device->stream, &args, workspace);
    nn_workspace_free(&workspace);
    return status;
}

static zr_status_t run_backward(const attention_test_t *test) {
    zr_nn_attention_backward_t args = {.shape = shape_of(test),
                                       .window = test->c.ref.window,
                                       .qkv = test->qkv.data,
                                       .out = test->out.data,
                                       .log_sum = test->log_sum.data,
                                       .dout = test->dout.data,
                                       .dqkv = test->dqkv.data,
                                       .activation_dtype = test->dtype,
                                       .engine = engine()};
    zr_nn_workspace_t workspace =
        nn_workspace(zr_nn_attention_backward_workspace_bytes(test->device->device, &args));
    zr_status_t status = zr_nn_attention_backward(test->device->stream, &args, workspace);
    nn_workspace_free(&workspace);
    return status;
}

/* Each element within its bound. All errors together: roundings go either way, so that they stay
 * below `rms` parts of the values. */
static void check(const attention_test_t *test, const char *what, const nn_array_t *array,
                  const double *bound, double rms) {
    const ref_attention_t *c = &test->c.ref;
    double errors = 0, values = 0;
    (void)nn_download(array);
    for (size_t i = 0; i < array->n; i++) {
        double error = fabs(nn_value(array, i) - array->ref[i]);
        errors += error * error;
        values += array->ref[i] * array->ref[i];
        if (!(error <= bound[i]))
            fail_msg("%s (%s, batch %zu, seq %zu, heads %zu, head size %zu): element %zu is %g, "
                     "should be %g, may be off by %g",
                     what, zr_dtype_name(test->dtype), c->batch, c->seq, c->heads, c->head_size, i,
                     nn_value(array, i), array->ref[i], bound[i]);
    }
    if (!(sqrt(errors) <= rms * sqrt(values) + 1e-30))
        fail_msg("%s (%s, seq %zu, head size %zu): off by %g of the values, at most %g is allowed",
                 what, zr_dtype_name(test->dtype), c->seq, c->head_size, sqrt(errors / values),
                 rms);
}

/* What the backward pass is given: the oracle's, rounded. */
static void put_oracle(nn_array_t *array) {
    for (size_t i = 0; i < array->n; i++)
        nn_set_value(array, i, array->ref[i]);
    nn_upload(array);
}

static void check_documents(nn_device_t *device, attention_case_t c, zr_dtype_t dtype,
                            double largest, size_t document_step) {
    if (nn_activation_dtype(device, dtype) != dtype)
        return;
    attention_test_t t = make_test(device, c, dtype, largest, document_step);
    double *bounds[3] = {malloc(t.out.n * sizeof(double)), malloc(t.log_sum.n * sizeof(double)),
                         malloc(t.dqkv.n * sizeof(double))};
    ref_attention(t.out.ref, t.log_sum.ref, t.qkv.ref, &t.c.ref);
    ref_attention_backward(t.dqkv.ref, t.dout.ref, t.qkv.ref, &t.c.ref);
    attention_bounds(bounds[0], bounds[1], t.qkv.ref, t.out.ref, &t.c);
    attention_backward_bounds(bounds[2], t.qkv.ref, t.dqkv.ref, t.out.ref, t.dout.ref,
                              t.log_sum.ref, &t.c);
    bool is_single = dtype == ZR_DTYPE_F32;
    assert_ok(run_forward(&t));
    check(&t, "out", &t.out, bounds[0], is_single ? 2e-6 : 0x1p-8);
    check(&t, "log_sum", &t.log_sum, bounds[1], 2e-6);
    put_oracle(&t.out);
    put_oracle(&t.log_sum);
    assert_ok(run_backward(&t));
    /* Where one probability is nearly 1, dp and delta cancel, and delta's rounding remains. */
    double cancels = largest > 2 ? 4 : 1;
    check(&t, "dqkv", &t.dqkv, bounds[2], cancels * (is_single ? 4e-6 : 0x1p-8));
    for (int i = 0; i < 3; i++)
        free(bounds[i]);
    free_test(&t);
}

static void check_attention(nn_device_t *device, attention_case_t c, zr_dtype_t dtype,
                            double largest) {
    check_documents(device, c, dtype, largest, 0);
}

/* Batch, sequence, heads, channels of a head. Where nothing is aligned to 16 bytes, the tensor
 * cores' kernels are not taken. */
NN_TEST(test_sizes) {
    static const size_t head_sizes[] = {16, 64, 80, 128, 0}, seqs[] = {1, 2, 63, 64, 65, 130, 0};
    static const attention_case_t others[] = {
        {{1, 1, 1, 1, 1, 0, NULL}, 0},   {{2, 3, 3, 3, 5, 0, NULL}, 0},
        {{3, 64, 1, 1, 8, 0, NULL}, 0},  {{1, 65, 3, 3, 7, 0, NULL}, 0},
        {{1, 33, 2, 2, 64, 0, NULL}, 0}, {{1, 35, 2, 2, 1, 0, NULL}, 0},
        {{1, 35, 2, 2, 20, 0, NULL}, 0}, {{1, 41, 1, 1, 256, 0, NULL}, 0}};
    for (size_t d = 0; d < 2; d++) {
        for (size_t i = 0; i < (device->skip_elems > 0 ? 5 : N_OF(others)); i++)
            if (ONE_OF(1, 3))
                check_attention(device, others[i], dtypes[d], 2.0);
        for (size_t h = 0; device->skip_elems == 0 && head_sizes[h] > 0; h++)
            for (size_t s = 0; seqs[s] > 0; s++) {
                bool is_short = seqs[s] < 64;
                attention_case_t c = {{is_short ? 2 : 1, seqs[s], is_short ? 3 : 2,
                                       is_short ? 3 : 2, head_sizes[h], 0, NULL},
                                      0};
                if ((!IS_SLOW || seqs[s] == 65) && ONE_OF(1, 5))
                    check_attention(device, c, dtypes[d], 2.0);
            }
    }
}

/* More than one tile of own rows, and a cut one, on every path; all columns that a lane can have.
 * Then scores of some hundreds: exponentials overflow unless they are relative to the largest. */
NN_TEST(test_long_and_large) {
    static const attention_case_t cases[] = {{{1, 269, 1, 1, 64, 0, NULL}, 0},
                                             {{2, 161, 1, 1, 128, 0, NULL}, 0},
                                             {{1, 200, 1, 1, 33, 0, NULL}, 0}};
    if (device->skip_elems > 0)
        return;
    for (size_t i = 0; !IS_SLOW && i < N_OF(cases); i++)
        check_attention(device, cases[i], nn_activation_dtype(device, ZR_DTYPE_BF16), 2.0);
    for (size_t head_size = 64; head_size <= 80; head_size += 16) {
        attention_case_t c = {{1, IS_SLOW ? 65 : 130, 1, 1, head_size, 0, NULL}, 0};
        check_attention(device, c, nn_activation_dtype(device, ZR_DTYPE_BF16), 12.0);
    }
}

/* Heads of keys for several of queries each, windows, documents, and all of them, on every path;
 * what is hidden begins and ends within tiles and between them. */
NN_TEST(test_hidden) {
    static const struct {
        size_t batch, seq, heads, kv_heads, head_size, window, document_step;
    } cases[] = {{2, 5, 4, 2, 6, 0, 0},
                 {1, 70, 6, 1, 16, 0, 0},
                 {1, 9, 1, 1, 4, 1, 0},
                 {2, 66, 2, 2, 8, 3, 0},
                 {1, 40, 2, 2, 8, 39, 0},
                 {2, 67, 2, 2, 5, 0, 1},
                 {1, 96, 4, 4, 80, 7, 5},
                 {1, 140, 2, 1, 16, 0, 23},
                 /* With bf16, on tensor cores. */
                 {1, 130, 4, 2, 64, 0, 0},
                 {1, 131, 1, 1, 64, 65, 0},
                 {1, 200, 1, 1, 64, 0, 64},
                 {2, 133, 4, 2, 64, 30, 20},
                 {1, 150, 3, 1, 128, 0, 0},
                 {1, 135, 3, 1, 128, 50, 33},
                 {1, 161, 1, 1, 128, 1, 0},
                 {1, 269, 1, 1, 64, 100, 23}};
    for (size_t i = 0; i < N_OF(cases); i++)
        for (size_t d = 0; d < 2; d++) {
            const attention_case_t c = {{cases[i].batch, cases[i].seq, cases[i].heads,
                                         cases[i].kv_heads, cases[i].head_size, cases[i].window,
                                         NULL},
                                        0};
            bool is_long = cases[i].seq > 100;
            if ((is_long && (IS_SLOW || device->skip_elems > 0)) || !ONE_OF(1, 3))
                continue;
            check_documents(device, c, dtypes[d], 2.0, cases[i].document_step);
        }
}

/* Again and again, with other orders of threads and blocks, and other moments of copies. */
NN_TEST(test_same_bits) {
    for (size_t i = 0; device->skip_elems == 0 && i < 5; i++) {
        attention_case_t c = {{1, IS_SLOW ? 33 : 100, 2, 2, i % 2 == 0 ? 64 : 80, 0, NULL}, 0};
        if (nn_activation_dtype(device, dtypes[i / 2 % 2]) != dtypes[i / 2 % 2])
            continue;
        attention_test_t t = make_test(device, c, dtypes[i / 2 % 2], 2.0, i < 4 ? 0 : 11);
        const nn_array_t *results[] = {&t.out, &t.log_sum, &t.dqkv};
        void *first[3] = {NULL};
        for (int round = 0; round < (IS_SLOW ? 2 : 3); round++) {
            assert_ok(run_forward(&t));
            assert_ok(run_backward(&t));
            for (size_t k = 0; k < 3; k++) {
                size_t size_bytes = results[k]->n * zr_dtype_size(results[k]->dtype);
                const void *bytes = nn_download(results[k]);
                if (round == 0)
                    first[k] = memcpy(malloc(size_bytes), bytes, size_bytes);
                nn_assert_same("attention, again", first[k], bytes, size_bytes);
            }
        }
        for (size_t k = 0; k < 3; k++)
            free(first[k]);
        free_test(&t);
    }
}

/* Devices that have kernels for some heads say for which. */
NN_TEST(test_refused) {
    char words[ZR_DEVICE_ERROR_BYTES];
    attention_test_t t =
        make_test(device, (attention_case_t){{1, 2, 1, 1, 257, 0, NULL}, 0}, ZR_DTYPE_F32, 2.0, 0);
    bool is_any = strcmp(zr_device_info(device->device)->backend, "host") == 0;
    for (int i = 0; i < 2; i++) {
        zr_status_t status = i == 0 ? run_forward(&t) : run_backward(&t);
        assert_int_equal(status, is_any ? ZR_OK : ZR_ERR_UNSUPPORTED);
        zr_device_last_error(device->device, words);
        assert_true(is_any || (strstr(words, "257") != NULL && strstr(words, "1 to 256") != NULL));
    }
    free_test(&t);
}

/* A thread's workspace holds a tile of one head's scores, however many heads there are. */
NN_TEST(test_workspace) {
    zr_nn_attention_t forward = {
        .shape = {.batch = 8, .seq = 1024, .heads = 12, .kv_heads = 12, .head_size = 64}};
    zr_nn_attention_backward_t backward = {
        .shape = {.batch = 8, .seq = 1024, .heads = 12, .kv_heads = 12, .head_size = 64}};
    size_t scores_bytes = sizeof(float) * 1024 * 1024; /* of one head */
    size_t n_threads = (size_t)device->n_threads;
    assert_true(zr_nn_attention_workspace_bytes(device->device, &forward) <=
                n_threads * scores_bytes / 8);
    assert_true(zr_nn_attention_backward_workspace_bytes(device->device, &backward) <=
                n_threads * scores_bytes / 4);
}
