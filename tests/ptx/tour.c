#include "tests/ptx/tour.h"

#include <stdlib.h>

#include "kernels/nn/nn.h"
#include "zero/optim/optimizer.h"

static const zr_dtype_t dtypes[] = {ZR_DTYPE_F32, ZR_DTYPE_BF16};

/* Random values, or room for as many. */
static void *values(fixture_t *f, zr_dtype_t dtype, size_t n) {
    static uint64_t seed = 1;
    void *host = malloc(n * sizeof(float));
    assert_non_null(host);
    fixture_random_values(host, dtype, n, 1.0f, &seed);
    void *placed = fixture_place(f, host, n * zr_dtype_size(dtype), 0);
    free(host);
    return placed;
}

static float *floats(fixture_t *f, size_t n) {
    return values(f, ZR_DTYPE_F32, n);
}

static int32_t *tokens(fixture_t *f, size_t n, int vocab) {
    uint64_t seed = n;
    int32_t *host = malloc(n * sizeof(int32_t));
    assert_non_null(host);
    for (size_t i = 0; i < n; i++)
        host[i] = (int32_t)(random_bits(&seed) % (uint64_t)vocab);
    int32_t *placed = fixture_place(f, host, n * sizeof(int32_t), 0);
    free(host);
    return placed;
}

static zr_nn_workspace_t workspace(fixture_t *f, size_t size_bytes) {
    return (zr_nn_workspace_t){size_bytes > 0 ? fixture_take(f, size_bytes, 0) : NULL, size_bytes};
}

/* ---- the runtime's kernels ---- */

static void update(fixture_t *f, const zr_update_rule_t *rule, zr_dtype_t grad, zr_dtype_t param) {
    const size_t n = 1000;
    zr_update_t args = {.n_elems = n,
                        .arrays = {floats(f, n), floats(f, n), floats(f, n)},
                        .grad = values(f, grad, n),
                        .param = values(f, param, n),
                        .grad_dtype = grad,
                        .param_dtype = param,
                        .grad_scale = 1.0f,
                        .lr = 1e-3f,
                        .step = 1};
    for (size_t i = 0; i < rule->n_hypers; i++)
        args.hyper[i] = 0.9f;
    assert_int_equal(zr_kernel_update(f->stream, rule, &args), ZR_OK);
}

static void whole_arrays(fixture_t *f) {
    const size_t n = 3000;
    size_t n_optimizers = 0;
    const zr_optimizer_type_t *const *optimizers = zr_optimizers(&n_optimizers);
    for (int i = 0; i < 4; i++) {
        zr_dtype_t a = dtypes[i / 2], b = dtypes[i % 2];
        for (size_t k = 0; k < n_optimizers * ZR_N_STATE_FORMS; k++) {
            zr_update_rule_t rule = zr_update_rule_in(&optimizers[k / ZR_N_STATE_FORMS]->rule,
                                                      (zr_state_form_t)(k % ZR_N_STATE_FORMS));
            update(f, &rule, a, b);
            rule = zr_update_rule_split(&rule, b);
            update(f, &rule, a, b);
        }
        void *x = values(f, a, n), *y = values(f, b, n);
        assert_int_equal(zr_kernel_add(f->stream, x, a, y, b, n), ZR_OK);
        assert_int_equal(zr_kernel_cast(f->stream, x, a, y, b, n), ZR_OK);
    }
    for (int i = 0; i < 2; i++) {
        void *x = values(f, dtypes[i], n);
        assert_int_equal(zr_kernel_scale(f->stream, x, dtypes[i], n, 0.5f), ZR_OK);
        assert_int_equal(zr_kernel_fill(f->stream, x, dtypes[i], n, 0.5f), ZR_OK);
    }
}

static void blocks(fixture_t *f) {
    const size_t n = 1100;
    for (size_t i = 0; zr_encoding_at(i) != NULL; i++)
        for (int k = 0; k < 2; k++) {
            const zr_encoding_t *e = zr_encoding_at(i);
            void *x = values(f, dtypes[k], n), *to = fixture_take(f, zr_encoding_bytes(e, n), 0);
            assert_ok(e->queue_encode(e, f->stream, x, dtypes[k], n, to));
            assert_ok(e->queue_decode(e, f->stream, to, n, x, dtypes[k]));
        }
}

static void halves(fixture_t *f) {
    const zr_encoding_t *const all[] = {&zr_encoding_upper, &zr_encoding_lower};
    const size_t n = 1100;
    for (int i = 0; i < 2; i++) {
        void *x = floats(f, n), *to = fixture_take(f, zr_encoding_bytes(all[i], n), 0);
        assert_ok(all[i]->queue_encode(all[i], f->stream, x, ZR_DTYPE_F32, n, to));
        assert_ok(all[i]->queue_decode(all[i], f->stream, to, n, x, ZR_DTYPE_F32));
    }
}

static void norms(fixture_t *f) {
    for (int i = 0; i < 2; i++)
        for (size_t n = 700; n <= 100000; n *= 140) {
            void *x = values(f, dtypes[i], n), *out = fixture_take(f, sizeof(double), 0);
            void *sums = fixture_take(f, zr_sum_of_squares_workspace_bytes(n), 0);
            assert_int_equal(zr_kernel_sum_of_squares(f->stream, x, dtypes[i], n, out, sums),
                             ZR_OK);
        }
}

static void sums(fixture_t *f) {
    enum { MOST = 9 };
    const size_t n = 5000;
    void *dsts[MOST];
    const void *sources[MOST];
    for (int i = 0; i < 2; i++) {
        const void *many[ZR_MAX_SUM_SOURCES];
        for (int k = 0; k < ZR_MAX_SUM_SOURCES; k++)
            many[k] = values(f, dtypes[i], 40);
        assert_int_equal(zr_kernel_sum(f->stream, values(f, dtypes[i], 40), many,
                                       ZR_MAX_SUM_SOURCES, dtypes[i], 40),
                         ZR_OK);
        for (int n_sources = 1; n_sources <= MOST; n_sources += n_sources < 3 ? 1 : 3) {
            for (int k = 0; k < MOST; k++) {
                sources[k] = values(f, dtypes[i], n);
                dsts[k] = values(f, dtypes[i], n);
            }
            assert_int_equal(zr_kernel_sum(f->stream, dsts[0], sources, n_sources, dtypes[i], n),
                             ZR_OK);
            assert_int_equal(zr_kernel_spread(f->stream, dsts, 3, sources, n_sources, dtypes[i], n),
                             ZR_OK);
        }
    }
}

/* One source, of elements of every size, to few and to many places, aligned to 16 bytes or not. */
static void copies(fixture_t *f) {
    static const zr_dtype_t sizes[] = {ZR_DTYPE_F64, ZR_DTYPE_F32, ZR_DTYPE_BF16, ZR_DTYPE_U8};
    const size_t n = 37;
    for (int i = 0; i < 16; i++) {
        size_t elem_bytes = zr_dtype_size(sizes[i % 4]), skip_bytes = i / 8 * elem_bytes;
        int n_places = i / 4 % 2 == 0 ? 3 : 30;
        void *places[30];
        for (int k = 0; k < n_places; k++)
            places[k] = fixture_take(f, n * elem_bytes, skip_bytes);
        const void *source = fixture_take(f, n * elem_bytes, skip_bytes);
        assert_int_equal(zr_kernel_spread(f->stream, places, n_places, &source, 1, sizes[i % 4], n),
                         ZR_OK);
    }
}

/* ---- a transformer's ---- */

/* Two heads of queries, on as many of keys or on one; all positions in a document of 20 or none. */
static zr_nn_qkv_shape_t qkv_shape(fixture_t *f, size_t head_size, size_t seq, size_t kv_heads,
                                   bool hides) {
    zr_nn_qkv_shape_t shape = {
        .batch = 1, .seq = seq, .heads = 2, .kv_heads = kv_heads, .head_size = head_size};
    int32_t *starts = malloc(seq * sizeof(int32_t));
    assert_non_null(starts);
    for (size_t t = 0; t < seq; t++)
        starts[t] = (int32_t)(t / 20 * 20);
    if (hides)
        shape.document_starts = fixture_place(f, starts, seq * sizeof(int32_t), 0);
    free(starts);
    return shape;
}

static void attention(fixture_t *f, zr_dtype_t dtype, size_t head_size, size_t seq, size_t kv_heads,
                      bool hides) {
    size_t row = (2 + 2 * kv_heads) * head_size;
    zr_nn_attention_t args = {.shape = qkv_shape(f, head_size, seq, kv_heads, hides),
                              .window = hides ? 15 : 0,
                              .qkv = values(f, dtype, seq * row),
                              .out = values(f, dtype, 2 * seq * head_size),
                              .log_sum = floats(f, 2 * seq),
                              .activation_dtype = dtype};
    zr_nn_attention_backward_t backward = {.shape = args.shape,
                                           .window = args.window,
                                           .qkv = args.qkv,
                                           .out = args.out,
                                           .log_sum = args.log_sum,
                                           .dout = values(f, dtype, 2 * seq * head_size),
                                           .dqkv = values(f, dtype, seq * row),
                                           .activation_dtype = dtype};
    zr_nn_workspace_t room = workspace(f, zr_nn_attention_workspace_bytes(f->device, &args));
    assert_int_equal(zr_nn_attention(f->stream, &args, room), ZR_OK);
    room = workspace(f, zr_nn_attention_backward_workspace_bytes(f->device, &backward));
    assert_int_equal(zr_nn_attention_backward(f->stream, &backward, room), ZR_OK);
}

static void rotary(fixture_t *f, zr_dtype_t dtype, size_t head_size) {
    static float frequencies[ZR_NN_ROTARY_MAX_HEAD_SIZE / 2] = {1};
    const size_t seq = 70;
    void *qkv = values(f, dtype, 4 * seq * head_size);
    zr_nn_rotary_t args = {.shape = qkv_shape(f, head_size, seq, 1, true),
                           .qkv = qkv,
                           .out = values(f, dtype, 4 * seq * head_size),
                           .frequencies = frequencies,
                           .q_weight = values(f, dtype, head_size),
                           .k_weight = values(f, dtype, head_size),
                           .epsilon = 1e-6f,
                           .rstd = floats(f, 3 * seq),
                           .activation_dtype = dtype,
                           .param_dtype = dtype};
    zr_nn_rotary_backward_t backward = {.shape = args.shape,
                                        .dqkv = values(f, dtype, 4 * seq * head_size),
                                        .frequencies = frequencies,
                                        .qkv = qkv,
                                        .q_weight = args.q_weight,
                                        .k_weight = args.k_weight,
                                        .rstd = args.rstd,
                                        .dq_weight = {values(f, dtype, head_size), false},
                                        .dk_weight = {values(f, dtype, head_size), true},
                                        .activation_dtype = dtype,
                                        .param_dtype = dtype};
    zr_nn_workspace_t room =
        workspace(f, zr_nn_rotary_backward_workspace_bytes(f->device, &backward));
    assert_int_equal(zr_nn_rotary(f->stream, &args), ZR_OK);
    assert_int_equal(zr_nn_rotary_backward(f->stream, &backward, room), ZR_OK);
}

static void swiglu(fixture_t *f, zr_dtype_t dtype, size_t n_rows, size_t channels) {
    zr_nn_swiglu_t args = {.n_rows = n_rows,
                           .channels = channels,
                           .gate_up = values(f, dtype, 2 * n_rows * channels),
                           .y = values(f, dtype, n_rows * channels),
                           .activation_dtype = dtype};
    zr_nn_swiglu_backward_t backward = {.n_rows = n_rows,
                                        .channels = channels,
                                        .dy = args.y,
                                        .gate_up = args.gate_up,
                                        .dgate_up = values(f, dtype, 2 * n_rows * channels),
                                        .activation_dtype = dtype};
    assert_int_equal(zr_nn_swiglu(f->stream, &args), ZR_OK);
    assert_int_equal(zr_nn_swiglu_backward(f->stream, &backward), ZR_OK);
}

static void layernorm(fixture_t *f, zr_dtype_t dtype, size_t rows, size_t channels) {
    size_t n = rows * channels;
    zr_nn_layernorm_t args = {.n_rows = rows,
                              .channels = channels,
                              .x = values(f, dtype, n),
                              .weight = values(f, dtype, channels),
                              .bias = values(f, dtype, channels),
                              .y = values(f, dtype, n),
                              .mean = floats(f, rows),
                              .rstd = floats(f, rows),
                              .epsilon = 1e-5f,
                              .activation_dtype = dtype,
                              .param_dtype = dtype};
    zr_nn_layernorm_backward_t backward = {.n_rows = rows,
                                           .channels = channels,
                                           .dy = values(f, dtype, n),
                                           .x = args.x,
                                           .weight = args.weight,
                                           .mean = args.mean,
                                           .rstd = args.rstd,
                                           .dx = values(f, dtype, n),
                                           .dweight = {values(f, dtype, channels), false},
                                           .dbias = {values(f, dtype, channels), true},
                                           .activation_dtype = dtype,
                                           .param_dtype = dtype};
    zr_nn_workspace_t room =
        workspace(f, zr_nn_layernorm_backward_workspace_bytes(f->device, &backward));
    assert_int_equal(zr_nn_layernorm(f->stream, &args), ZR_OK);
    assert_int_equal(zr_nn_layernorm_backward(f->stream, &backward, room), ZR_OK);
}

static void rows(fixture_t *f, zr_dtype_t dtype) {
    const size_t n_rows = 300, n_columns = 72;
    void *x = values(f, dtype, n_rows * n_columns), *y = values(f, dtype, n_rows * n_columns);
    zr_nn_bias_grad_t bias = {.n_rows = n_rows,
                              .n_columns = n_columns,
                              .dy = x,
                              .dbias = {values(f, dtype, n_columns), false},
                              .activation_dtype = dtype,
                              .param_dtype = dtype};
    zr_nn_workspace_t room = workspace(f, zr_nn_bias_grad_workspace_bytes(f->device, &bias));
    assert_int_equal(zr_nn_bias_grad(f->stream, &bias, room), ZR_OK);
    assert_int_equal(zr_nn_gelu(f->stream, y, x, dtype, n_rows * n_columns), ZR_OK);
    assert_int_equal(zr_nn_gelu_backward(f->stream, y, y, x, dtype, n_rows * n_columns), ZR_OK);
    rotary(f, dtype, 64);
    rotary(f, dtype, 22); /* not whole accesses */
    swiglu(f, dtype, 9, 72);
    swiglu(f, dtype, 9, 37); /* not whole packs */
    layernorm(f, dtype, 11, 64);
    layernorm(f, dtype, 11, 69);   /* not whole packs */
    layernorm(f, dtype, 10, 1040); /* more registers */
    layernorm(f, dtype, 10, 2064); /* larger blocks */
    layernorm(f, dtype, 9, 4104);  /* longer than what a block holds */
}

static void embedding(fixture_t *f, zr_dtype_t dtype) {
    const size_t batch = 3, seq = 500, channels = 40, vocab = 300;
    zr_nn_embedding_t args = {.batch = batch,
                              .seq = seq,
                              .channels = channels,
                              .vocab = vocab,
                              .n_positions = seq,
                              .tokens = tokens(f, batch * seq, (int)vocab),
                              .token_table = values(f, dtype, vocab * channels),
                              .position_table = values(f, dtype, seq * channels),
                              .out = values(f, dtype, batch * seq * channels),
                              .activation_dtype = dtype,
                              .param_dtype = dtype};
    zr_nn_embedding_backward_t backward = {
        .batch = batch,
        .seq = seq,
        .channels = channels,
        .vocab = vocab,
        .n_positions = seq,
        .tokens = args.tokens,
        .dout = args.out,
        .dtoken_table = {values(f, dtype, vocab * channels), false},
        .dposition_table = {values(f, dtype, seq * channels), false},
        .activation_dtype = dtype,
        .param_dtype = dtype};
    zr_nn_workspace_t room =
        workspace(f, zr_nn_embedding_backward_workspace_bytes(f->device, &backward));
    assert_int_equal(zr_nn_embedding(f->stream, &args), ZR_OK);
    assert_int_equal(zr_nn_embedding_backward(f->stream, &backward, room), ZR_OK);
    int32_t starts[3 * 500];
    for (size_t i = 0; i < batch * seq; i++)
        starts[i] = (int32_t)(i % seq / 20 * 20);
    args.document_starts = backward.document_starts = fixture_place(f, starts, sizeof(starts), 0);
    assert_int_equal(zr_nn_embedding(f->stream, &args), ZR_OK);
    assert_int_equal(zr_nn_embedding_backward(f->stream, &backward, room), ZR_OK);
}

static void lm_head(fixture_t *f, zr_dtype_t dtype) {
    const size_t n_rows = 70, channels = 16, vocab = 700;
    zr_nn_lm_head_t args = {.n_rows = n_rows,
                            .channels = channels,
                            .vocab = vocab,
                            .vocab_chunk = vocab,
                            .row_chunk = 32,
                            .x = values(f, dtype, n_rows * channels),
                            .weight = values(f, dtype, vocab * channels),
                            .targets = tokens(f, n_rows, (int)vocab),
                            .loss = fixture_take(f, sizeof(double), 0),
                            .scale = 1.0f,
                            .dx = values(f, dtype, n_rows * channels),
                            .dweight = {values(f, dtype, vocab * channels), false},
                            .activation_dtype = dtype,
                            .param_dtype = dtype};
    zr_nn_workspace_t room = workspace(f, zr_nn_lm_head_workspace_bytes(f->device, &args));
    assert_int_equal(zr_nn_lm_head(f->stream, &args, room), ZR_OK);
}

/* Products without epilogues of their own: the bias is another kernel's, and again another's where
 * rows are apart. */
static void biases(fixture_t *f, zr_dtype_t c, zr_dtype_t bias, size_t gap) {
    const size_t m = 9, n = 24, k = 16;
    zr_nn_matmul_t args = {.m = m,
                           .n = n,
                           .k = k,
                           .ldc = n + gap,
                           .a = values(f, c, m * k),
                           .b = values(f, c, k * n),
                           .c = values(f, c, m * (n + gap)),
                           .a_dtype = c,
                           .b_dtype = c,
                           .c_dtype = c,
                           .bias = values(f, bias, n),
                           .bias_dtype = bias};
    zr_nn_workspace_t room = workspace(f, zr_nn_matmul_workspace_bytes(f->device, &args));
    assert_int_equal(zr_nn_matmul(f->stream, &args, room), ZR_OK);
}

static void tensor_cores(fixture_t *f) {
    for (size_t head_size = 64; head_size <= 128; head_size += 64) {
        attention(f, ZR_DTYPE_BF16, head_size, 136, 2, false);
        attention(f, ZR_DTYPE_BF16, head_size, 136, 1, false);
        attention(f, ZR_DTYPE_BF16, head_size, 136, 1, true);
    }
}

void tour(fixture_t *fixture, int part) {
    fixture_reset(fixture);
    if (part == 0)
        whole_arrays(fixture);
    else if (part == 1) {
        norms(fixture);
        blocks(fixture);
        halves(fixture);
    } else if (part == 2) {
        sums(fixture);
        copies(fixture);
    } else if (part == 3)
        tensor_cores(fixture);
    for (int i = 0; i < 2; i++) {
        if (part == 4)
            attention(fixture, dtypes[i], 16, 40, 1, i == 1);
        else if (part == 5)
            rows(fixture, dtypes[i]);
        else if (part == 6) {
            embedding(fixture, dtypes[i]);
            lm_head(fixture, dtypes[i]);
            for (int k = 0; k < 2; k++)
                for (size_t gap = 0; gap <= 8; gap += 8)
                    biases(fixture, dtypes[i], dtypes[k], gap);
        }
    }
    assert_int_equal(zr_stream_synchronize(fixture->stream), ZR_OK);
}
