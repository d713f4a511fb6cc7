/*
 * What the transformer's kernels refuse, and what they charge.
 */
#include "tests/common/one_thing.h"
#include "tests/kernels/nn/nn_test.h"

typedef struct fixture {
    zr_device_t *device;
    zr_stream_t *stream;
    char message[1024];
} fixture_t;

static void keep_message(void *context, zr_log_level_t level, int rank, const char *message) {
    expect_one_thing(message);
    (void)level, (void)rank;
    fixture_t *fixture = context;
    strncpy(fixture->message, message, sizeof(fixture->message) - 1);
}

static int set_up(void **state) {
    static fixture_t fixture;
    zr_device_options_t options = zr_device_options_default();
    options.n_threads = 2;
    options.log.sink = keep_message;
    options.log.context = &fixture;
    assert_ok(zr_device_open("host", &options, &fixture.device));
    assert_ok(zr_stream_create(fixture.device, "compute", &fixture.stream));
    *state = &fixture;
    return 0;
}

static int tear_down(void **state) {
    fixture_t *fixture = *state;
    zr_stream_destroy(&fixture->stream);
    zr_device_close(&fixture->device);
    return 0;
}

static float memory[64];

static zr_nn_matmul_t small_product(void) {
    return (zr_nn_matmul_t){.m = 2, .n = 2, .k = 2, .a = memory, .b = memory + 4, .c = memory + 8};
}

TEST(test_matmul_refuses) {
    fixture_t *f = *state;
    zr_nn_workspace_t none = {NULL, 0};
    zr_nn_matmul_t args = small_product();
    args.a = NULL;
    assert_int_equal(zr_nn_matmul(f->stream, &args, none), ZR_ERR_ARGUMENT);
    assert_has(f->message, "a is NULL");
    args = small_product();
    args.a_dtype = ZR_DTYPE_I32;
    assert_int_equal(zr_nn_matmul(f->stream, &args, none), ZR_ERR_ARGUMENT);
    assert_has(f->message, "int32");
    args = small_product();
    args.n = SIZE_MAX / 4;
    assert_int_equal(zr_nn_matmul(f->stream, &args, none), ZR_ERR_ARGUMENT);
    assert_has(f->message, "more than memory can hold");
    args = small_product();
    args.lda = 1;
    assert_int_equal(zr_nn_matmul(f->stream, &args, none), ZR_ERR_ARGUMENT);
    assert_non_null(strstr(f->message, "rows of a have a stride of 1 element, but 2 columns"));
    args = small_product();
    args.ldc = 3;
    args.epilogue = ZR_NN_EPILOGUE_GELU;
    assert_int_equal(zr_nn_matmul(f->stream, &args, none), ZR_ERR_ARGUMENT);
    assert_non_null(strstr(f->message, "strided rows of c"));
    args = small_product();
    args.accumulate = true;
    args.bias = memory;
    assert_int_equal(zr_nn_matmul(f->stream, &args, none), ZR_ERR_ARGUMENT);
    args = small_product();
    args.epilogue = ZR_NN_EPILOGUE_GELU_BACKWARD;
    assert_int_equal(zr_nn_matmul(f->stream, &args, none), ZR_ERR_ARGUMENT);
    args = small_product();
    args.a_dtype = ZR_DTYPE_BF16; /* valid, but this device has no such activations */
    assert_int_equal(zr_nn_matmul(f->stream, &args, none), ZR_ERR_UNSUPPORTED);
    assert_has(f->message, "bf16");
    args = small_product();
    args.b_dtype = ZR_DTYPE_BF16; /* needs a workspace */
    assert_int_equal(zr_nn_matmul(f->stream, &args, none), ZR_ERR_ARGUMENT);
    assert_has(f->message, "workspace");
}

TEST(test_others_refuse) {
    fixture_t *f = *state;
    zr_nn_workspace_t none = {NULL, 0};
    int32_t tokens[4] = {0, 1, 2, 9};
    zr_nn_embedding_t embedding = {.batch = 1,
                                   .seq = 4,
                                   .channels = 2,
                                   .vocab = 9,
                                   .n_positions = 4,
                                   .tokens = tokens,
                                   .token_table = memory,
                                   .position_table = memory + 20,
                                   .out = memory + 30};
    assert_int_equal(zr_nn_embedding(f->stream, &embedding), ZR_ERR_ARGUMENT);
    assert_has(f->message, "token 9 at 3");
    tokens[3] = -1;
    assert_int_equal(zr_nn_embedding(f->stream, &embedding), ZR_ERR_ARGUMENT);
    tokens[3] = 8;
    assert_ok(zr_nn_embedding(f->stream, &embedding));
    embedding.n_positions = 3;
    assert_int_equal(zr_nn_embedding(f->stream, &embedding), ZR_ERR_ARGUMENT);
    assert_has(f->message, "only 3 positions");

    assert_int_equal(zr_nn_gelu(f->stream, memory, memory, ZR_DTYPE_BF16, 3), ZR_ERR_UNSUPPORTED);
    assert_int_equal(zr_nn_gelu(f->stream, memory, NULL, ZR_DTYPE_F32, 3), ZR_ERR_ARGUMENT);
    zr_nn_attention_t attention = {
        .shape = {.batch = 1, .seq = 2, .heads = 1, .kv_heads = 1, .head_size = 2},
        .qkv = memory,
        .out = memory + 20,
        .log_sum = memory + 30};
    assert_int_equal(zr_nn_attention(f->stream, &attention, none), ZR_ERR_ARGUMENT);
    attention.shape.seq = SIZE_MAX / 2;
    assert_int_equal(zr_nn_attention(f->stream, &attention, none), ZR_ERR_ARGUMENT);

    attention.shape.seq = 2;
    attention.shape.heads = 3;
    attention.shape.kv_heads = 2;
    assert_int_equal(zr_nn_attention(f->stream, &attention, none), ZR_ERR_ARGUMENT);
    assert_non_null(strstr(f->message, "3 heads of queries on 2"));
    attention.shape.kv_heads = 0;
    assert_int_equal(zr_nn_attention(f->stream, &attention, none), ZR_ERR_ARGUMENT);

    double loss = 0.0;
    zr_nn_lm_head_t head = {.n_rows = 1,
                            .channels = 2,
                            .vocab = 3,
                            .vocab_chunk = 0,
                            .x = memory,
                            .weight = memory + 4,
                            .targets = tokens,
                            .loss = &loss};
    assert_int_equal(zr_nn_lm_head(f->stream, &head, none), ZR_ERR_ARGUMENT);
    assert_has(f->message, "vocab_chunk");
    head.vocab_chunk = 2;
    int32_t target = 3;
    head.targets = &target;
    _Alignas(ZR_NN_WORKSPACE_ALIGNMENT) float workspace[1024];
    assert_int_equal(
        zr_nn_lm_head(f->stream, &head, (zr_nn_workspace_t){workspace + 1, sizeof(workspace) - 4}),
        ZR_ERR_ARGUMENT);
    assert_has(f->message, "not aligned to 256 bytes");
    assert_int_equal(
        zr_nn_lm_head(f->stream, &head, (zr_nn_workspace_t){workspace, sizeof(workspace)}),
        ZR_ERR_ARGUMENT);
    assert_non_null(strstr(f->message, "target 3 at 0"));
    target = -1;
    assert_int_equal(
        zr_nn_lm_head(f->stream, &head, (zr_nn_workspace_t){workspace, sizeof(workspace)}),
        ZR_ERR_ARGUMENT);
    assert_non_null(strstr(f->message, "target -1 at 0"));
    assert_true(loss == 0.0);
}

TEST(test_llama_refuses) {
    fixture_t *f = *state;
    zr_nn_workspace_t none = {NULL, 0};
    int32_t starts[4] = {0, 0, 2, 2};
    zr_nn_rotary_t rotary = {.shape = {.batch = 1,
                                       .seq = 4,
                                       .heads = 1,
                                       .kv_heads = 1,
                                       .head_size = 2,
                                       .document_starts = starts},
                             .qkv = memory,
                             .out = memory};
    assert_ok(zr_nn_rotary(f->stream, &rotary));
    starts[2] = 1; /* neither its own position nor what the one before has */
    assert_int_equal(zr_nn_rotary(f->stream, &rotary), ZR_ERR_ARGUMENT);
    assert_non_null(strstr(f->message, "document_starts has 1 at position 2 of sequence 0"));
    starts[2] = 2;
    starts[0] = 1;
    assert_int_equal(zr_nn_rotary(f->stream, &rotary), ZR_ERR_ARGUMENT);
    starts[0] = 0;
    rotary.q_weight = memory;
    assert_int_equal(zr_nn_rotary(f->stream, &rotary), ZR_ERR_ARGUMENT);
    assert_non_null(strstr(f->message, "only one of them"));
    rotary.k_weight = memory;
    assert_int_equal(zr_nn_rotary(f->stream, &rotary), ZR_ERR_ARGUMENT);
    assert_non_null(strstr(f->message, "rstd is NULL"));
    rotary.shape.head_size = 3;
    assert_int_equal(zr_nn_rotary(f->stream, &rotary), ZR_ERR_ARGUMENT);
    assert_non_null(strstr(f->message, "3 channels"));
    zr_nn_rotary_backward_t backward = {
        .shape = {.batch = 1, .seq = 1, .heads = 1, .kv_heads = 1, .head_size = 2},
        .dqkv = memory,
        .dk_weight = {.data = memory}};
    assert_int_equal(zr_nn_rotary_backward(f->stream, &backward, none), ZR_ERR_ARGUMENT);

    zr_nn_layernorm_t norm = {.n_rows = 1,
                              .channels = 2,
                              .is_rms = true,
                              .x = memory,
                              .weight = memory,
                              .y = memory,
                              .bias = memory,
                              .rstd = memory};
    assert_int_equal(zr_nn_layernorm(f->stream, &norm), ZR_ERR_ARGUMENT);
    assert_non_null(strstr(f->message, "rmsnorm: has no mean and no bias"));
    norm.is_rms = false;
    assert_int_equal(zr_nn_layernorm(f->stream, &norm), ZR_ERR_ARGUMENT);
    assert_non_null(strstr(f->message, "layernorm: mean is NULL"));

    zr_nn_swiglu_t swiglu = {.n_rows = 1, .channels = 2, .gate_up = memory};
    assert_int_equal(zr_nn_swiglu(f->stream, &swiglu), ZR_ERR_ARGUMENT);
    swiglu.channels = SIZE_MAX / 2;
    assert_int_equal(zr_nn_swiglu(f->stream, &swiglu), ZR_ERR_ARGUMENT);
}

TEST(test_costs) {
    fixture_t *f = *state;
    zr_nn_workspace_t none = {NULL, 0};
    zr_nn_matmul_t args = small_product();
    zr_cost_t before, after;
    assert_ok(zr_stream_cost(f->stream, &before));
    assert_ok(zr_nn_matmul(f->stream, &args, none));
    assert_ok(zr_stream_cost(f->stream, &after));
    assert_true(after.operations - before.operations == 16.0);
    assert_true(after.bytes - before.bytes == 48.0);

    /* Half of the scores, and the diagonal: 1 + 2 + ... + seq keys. */
    zr_nn_attention_t attention = {
        .shape = {.batch = 2, .seq = 10, .heads = 3, .kv_heads = 3, .head_size = 4}};
    assert_true(zr_nn_attention_cost(&attention).operations == 4.0 * 2 * 3 * 4 * 55);
    attention.shape.kv_heads = 1; /* as many scores, fewer keys and values */
    assert_true(zr_nn_attention_cost(&attention).operations == 4.0 * 2 * 3 * 4 * 55);
    assert_true(zr_nn_attention_cost(&attention).bytes == 2 * 10 * (2 * 3 + 2 * 1) * 4 * 4);
    attention.window = 4; /* 1 + 2 + 3 + 4 + 4 ... keys */
    assert_true(zr_nn_attention_cost(&attention).operations == 4.0 * 2 * 3 * 4 * 34);
    zr_nn_lm_head_t head = {.n_rows = 5, .channels = 7, .vocab = 100, .vocab_chunk = 100};
    assert_true(zr_nn_lm_head_cost(&head).operations == 2.0 * 5 * 7 * 100);
    head.dx = memory;
    head.dweight.data = memory;
    assert_true(zr_nn_lm_head_cost(&head).operations == 6.0 * 5 * 7 * 100);
    head.vocab_chunk = 60; /* 60 of 100 columns are computed again */
    double again = zr_nn_lm_head_cost(&head).operations - 6.0 * 5 * 7 * 100;
    assert_true(again > 2.0 * 5 * 7 * 59.9 && again < 2.0 * 5 * 7 * 60.1);
    head.vocab_chunk = 100;
    double once = zr_nn_lm_head_cost(&head).bytes;
    head.row_chunk = 2; /* by rows nothing is; the weight is read for each of three chunks */
    assert_true(zr_nn_lm_head_cost(&head).operations == 6.0 * 5 * 7 * 100);
    assert_true(zr_nn_lm_head_cost(&head).bytes == once + 2 * 2.0 * 7 * 100 * 4);
}

TEST(test_activation_dtype) {
    fixture_t *f = *state;
    zr_dtype_t dtype = ZR_DTYPE_U8;
    assert_ok(zr_nn_activation_dtype(f->device, ZR_DTYPE_BF16, &dtype));
    assert_int_equal(dtype, ZR_DTYPE_F32);
    assert_int_equal(zr_nn_activation_dtype(f->device, ZR_DTYPE_I32, &dtype), ZR_ERR_ARGUMENT);
}

const test_group_t test_group = {set_up, tear_down};
