/*
 * Attention by cuDNN where it is missing, too old, refuses or fails: an error that names the way
 * out, or the library's own kernels, said once. What it computes is seen by
 * kernels/nn/test_nn_attention.c.
 */
#include "kernels/device_backend.h"
#include "kernels/nn/cuda/attention_graph.h"
#include "kernels/nn/nn.h"
#include "tests/emu/emu.h"
#include "tests/kernels/device_fixture.h"

#define SEQ 20
#define HEADS 2
#define HEAD_SIZE 64
#define N (SEQ * HEADS * HEAD_SIZE)

static fixture_t fixture;
static zr_nn_attention_t forward;
static zr_nn_attention_backward_t backward;

/* Warnings and errors. */
static void note(void *context, zr_log_level_t level, int rank, const char *message) {
    (void)context, (void)level, (void)rank;
    fixture.n_errors++;
    snprintf(fixture.last_error, sizeof(fixture.last_error), "%s", message);
}

static void *place(size_t n, uint64_t seed) {
    static zr_bf16_t values[3 * N];
    fixture_random_values(values, ZR_DTYPE_BF16, n, 1.0f, &seed);
    return fixture_place(&fixture, values, n * sizeof(zr_bf16_t), 0);
}

/* A device on a machine with such a cuDNN, and arguments. */
static void begin(emu_options_t options) {
    options.major = 9;
    emu_configure(&options);
    fixture_open(&fixture, "cuda", 1, NULL);
    fixture.device->log.sink = note;
    forward = (zr_nn_attention_t){.shape = {.batch = 1,
                                            .seq = SEQ,
                                            .heads = HEADS,
                                            .kv_heads = HEADS,
                                            .head_size = HEAD_SIZE},
                                  .qkv = place(3 * N, 1),
                                  .out = place(N, 2),
                                  .log_sum = fixture_take(&fixture, SEQ * HEADS * sizeof(float), 0),
                                  .activation_dtype = ZR_DTYPE_BF16,
                                  .engine = ZR_NN_ENGINE_CUDNN};
    backward = (zr_nn_attention_backward_t){.shape = forward.shape,
                                            .qkv = forward.qkv,
                                            .out = forward.out,
                                            .log_sum = forward.log_sum,
                                            .dout = place(N, 3),
                                            .dqkv = place(3 * N, 4),
                                            .activation_dtype = ZR_DTYPE_BF16,
                                            .engine = ZR_NN_ENGINE_CUDNN};
}

static void end(void) {
    emu_options_t options = emu_options_default();
    fixture_close(&fixture);
    emu_configure(&options);
}

static zr_status_t run(zr_nn_engine_t engine) {
    forward.engine = backward.engine = engine;
    size_t bytes[2] = {zr_nn_attention_workspace_bytes(fixture.device, &forward),
                       zr_nn_attention_backward_workspace_bytes(fixture.device, &backward)};
    zr_nn_workspace_t room[2];
    for (int i = 0; i < 2; i++)
        room[i] = (zr_nn_workspace_t){fixture_take(&fixture, bytes[i], 0), bytes[i]};
    ZR_TRY(zr_nn_attention(fixture.stream, &forward, room[0]));
    ZR_TRY(zr_nn_attention_backward(fixture.stream, &backward, room[1]));
    return zr_stream_synchronize(fixture.stream);
}

/* The bits are those of the library's own kernels, and `n` warnings name `words`. */
static void check_own(int n, const char *words) {
    static zr_bf16_t results[2][4 * N];
    for (int i = 0; i < 2; i++) {
        assert_ok(run(i == 0 ? ZR_NN_ENGINE_OWN : ZR_NN_ENGINE_CUDNN));
        fixture_download(&fixture, results[i], forward.out, N * sizeof(zr_bf16_t));
        fixture_download(&fixture, results[i] + N, backward.dqkv, 3 * N * sizeof(zr_bf16_t));
    }
    assert_memory_equal(results[0], results[1], sizeof(results[0]));
    assert_int_equal(fixture.n_errors, n);
    assert_true(n == 0 || strstr(fixture.last_error, words) != NULL);
    assert_ok(run(ZR_NN_ENGINE_CUDNN)); /* said once */
    assert_int_equal(fixture.n_errors, n);
}

static void check_open(emu_options_t options, const char *words) {
    zr_nn_engine_info_t info = {"unset", 0, 0};
    begin(options);
    assert_int_equal(zr_nn_attention_open(fixture.device, ZR_NN_ENGINE_CUDNN, &info),
                     ZR_ERR_UNSUPPORTED);
    assert_string_equal(info.name, "unset");
    assert_has(fixture.last_error, words);
    assert_has(fixture.last_error, "--attention own");
    assert_int_equal(run(ZR_NN_ENGINE_CUDNN), ZR_ERR_UNSUPPORTED);
    assert_ok(zr_nn_attention_open(fixture.device, ZR_NN_ENGINE_OWN, &info));
    assert_string_equal(info.name, "own");
    end();
}

TEST(test_missing_or_old) {
    emu_options_t options = emu_options_default();
    options.has_cudnn = false;
    check_open(options, "not found");
    options = emu_options_default();
    options.cudnn_version = 91002;
    check_open(options, "cuDNN 9.10.2 is too old: at least 9.16");
}

TEST(test_refused) {
    emu_options_t options = emu_options_default();
    options.cudnn_refuses = true;
    begin(options);
    check_own(2, "has no plan: cudnnBackendFinalize of ENGINEHEUR: CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN");
    assert_has(fixture.last_error,
               "attention_backward [1, 20, 2 heads of 64, 2 of keys]: cuDNN 9.19.0");
    end();
}

TEST(test_too_large) {
    char words[64];
    emu_options_t options = emu_options_default();
    options.cudnn_extra_bytes = 256;
    begin(options);
    backward.engine = ZR_NN_ENGINE_CUDNN;
    size_t planned = zr_nn_attention_backward_workspace_bytes(fixture.device, &backward) -
                     zr_cuda_attention_delta_bytes(&backward.shape);
    snprintf(words, sizeof(words), "a workspace of %zu bytes, planned: %zu", planned + 256,
             planned);
    check_own(2, words);
    end();
}

/* What it is not asked for: documents, fp32, addresses that are not aligned. */
TEST(test_not_asked) {
    begin(emu_options_default());
    static const int32_t starts[SEQ] = {0};
    forward.shape.document_starts = fixture_place(&fixture, starts, sizeof(starts), 0);
    backward.shape.document_starts = forward.shape.document_starts;
    check_own(0, "");
    end();
    begin(emu_options_default());
    forward.out = backward.dqkv;
    backward.out = forward.out = (char *)forward.out + 2;
    backward.dqkv = place(3 * N, 4);
    check_own(0, "");
    end();
}

/* Each call of the first run fails in turn: refusals are as above, anything else is an error. */
TEST(test_calls_fail) {
    static const struct {
        const char *name;
        int n;
    } calls[] = {{"cudnnCreate", 1},          {"cudnnBackendCreateDescriptor", 2},
                 {"cudnnBackendFinalize", 2}, {"cudnnBackendSetAttribute", 2},
                 {"cudnnSetStream", 2},       {"cudnnBackendGetAttribute", 1},
                 {"cudnnBackendExecute", 2}};
    for (size_t i = 0; i < N_OF(calls); i++)
        for (int nth = 1; nth <= calls[i].n; nth++) {
            begin(emu_options_default());
            emu_fail_call(calls[i].name, nth, CUDNN_STATUS_INTERNAL_ERROR);
            assert_int_equal(run(ZR_NN_ENGINE_CUDNN), ZR_ERR_DEVICE);
            assert_true(emu_has_failed_call());
            assert_has(fixture.last_error, "cuDNN 9.19.0");
            assert_ok(run(ZR_NN_ENGINE_CUDNN));
            assert_ok(zr_stream_synchronize(fixture.stream));
            end();
        }
    begin(emu_options_default());
    emu_fail_call("cudnnBackendFinalize", 9, CUDNN_STATUS_NOT_SUPPORTED);
    assert_ok(run(ZR_NN_ENGINE_CUDNN));
    assert_int_equal(fixture.n_errors, 1);
    end();
}

/* A plan is made once for each size, and forgotten when many others have come. */
TEST(test_plans_are_kept) {
    begin(emu_options_default());
    assert_ok(run(ZR_NN_ENGINE_CUDNN));
    emu_fail_call("cudnnBackendGetAttribute", 1, CUDNN_STATUS_INTERNAL_ERROR);
    assert_ok(run(ZR_NN_ENGINE_CUDNN));
    assert_false(emu_has_failed_call());
    forward.shape.seq = backward.shape.seq = SEQ - 1;
    assert_int_equal(run(ZR_NN_ENGINE_CUDNN), ZR_ERR_DEVICE);
    for (size_t seq = 1; seq <= 70; seq++) {
        forward.shape = backward.shape =
            (zr_nn_qkv_shape_t){.batch = 1, .seq = seq, .heads = 1, .kv_heads = 1, .head_size = 8};
        assert_ok(run(ZR_NN_ENGINE_CUDNN));
    }
    end();
}
