/*
 * Attention of the CUDA device against the double precision oracle: all kernels, at lengths that
 * fit their tiles and that do not, each element within what its roundings allow; what lies around
 * the tensors is NaN and stays so; and the same bits in whatever order threads and blocks run.
 */
#include "kernels/nn/nn.h"
#include "tests/kernels/device_fixture.h"
#include "tests/ref/attention_bounds.h"
#include "tests/ref/ref_nn.h"

static const char *device_name = "cuda";

/* AddressSanitizer makes the emulation's fibres many times slower: fewer sizes then. */
#if defined(__SANITIZE_ADDRESS__)
#define IS_SLOW 1
#else
#define IS_SLOW 0
#endif
#define GUARD_BYTES ((size_t)4096)

/* A tensor: as doubles, which have the values that are on the device, and there. */
typedef struct tensor {
    double *ref, *bound;
    char *bytes; /* a guard, the elements, a guard */
    char *device;
    size_t n_elems;
    zr_dtype_t dtype;
} tensor_t;

typedef struct attention_test {
    fixture_t *f;
    attention_case_t c;
    zr_dtype_t dtype;
    tensor_t qkv, out, log_sum, dout, dqkv;
    size_t skip_elems; /* how far tensors are from alignment */
} attention_test_t;

static size_t size_of(const tensor_t *tensor) {
    return tensor->n_elems * zr_dtype_size(tensor->dtype);
}

static double round_to(double value, zr_dtype_t dtype) {
    float single = (float)value;
    return dtype == ZR_DTYPE_F32 ? single : zr_bf16_to_f32(zr_bf16_from_f32(single));
}

static double read_elem(const tensor_t *tensor, size_t i) {
    const char *elems = tensor->bytes + GUARD_BYTES;
    return tensor->dtype == ZR_DTYPE_F32
               ? ((const float *)(const void *)elems)[i]
               : zr_bf16_to_f32(((const zr_bf16_t *)(const void *)elems)[i]);
}

/* The tensor and its guards are NaN. */
static tensor_t make(attention_test_t *test, size_t n_elems, zr_dtype_t dtype) {
    tensor_t tensor = {.n_elems = n_elems, .dtype = dtype};
    tensor.ref = calloc(n_elems, sizeof(double));
    tensor.bound = calloc(n_elems, sizeof(double));
    tensor.bytes = malloc(size_of(&tensor) + 2 * GUARD_BYTES);
    memset(tensor.bytes, 0xff, size_of(&tensor) + 2 * GUARD_BYTES);
    tensor.device = (char *)fixture_place(test->f, tensor.bytes, size_of(&tensor) + 2 * GUARD_BYTES,
                                          test->skip_elems * zr_dtype_size(dtype)) +
                    GUARD_BYTES;
    return tensor;
}

static void release(tensor_t *tensor) {
    free(tensor->ref);
    free(tensor->bound);
    free(tensor->bytes);
}

/* To the device, rounded; the doubles become what was stored. */
static void upload(attention_test_t *test, tensor_t *tensor) {
    char *elems = tensor->bytes + GUARD_BYTES;
    for (size_t i = 0; i < tensor->n_elems; i++) {
        tensor->ref[i] = round_to(tensor->ref[i], tensor->dtype);
        if (tensor->dtype == ZR_DTYPE_F32)
            ((float *)(void *)elems)[i] = (float)tensor->ref[i];
        else
            ((zr_bf16_t *)(void *)elems)[i] = zr_bf16_from_f32((float)tensor->ref[i]);
    }
    fixture_upload(test->f, tensor->device, elems, size_of(tensor));
}

static void download(attention_test_t *test, tensor_t *tensor) {
    fixture_download(test->f, tensor->bytes, tensor->device - GUARD_BYTES,
                     size_of(tensor) + 2 * GUARD_BYTES);
}

static void draw(tensor_t *tensor, double largest, uint64_t seed) {
    for (size_t i = 0; i < tensor->n_elems; i++)
        tensor->ref[i] = largest * fixture_random_float(&seed);
}

/* Each element within its bound; guards as they were. All errors together: roundings go either way,
 * so that they stay below `rms` parts of the values. */
static void check(attention_test_t *test, const char *what, tensor_t *tensor, double rms) {
    double errors = 0, values = 0;
    download(test, tensor);
    for (size_t i = 0; i < GUARD_BYTES; i++)
        if (tensor->bytes[i] != (char)0xff ||
            tensor->bytes[GUARD_BYTES + size_of(tensor) + i] != (char)0xff)
            fail_msg("%s: something was written around the tensor", what);
    for (size_t i = 0; i < tensor->n_elems; i++) {
        double error = fabs(read_elem(tensor, i) - tensor->ref[i]);
        errors += error * error;
        values += tensor->ref[i] * tensor->ref[i];
        if (!(error <= tensor->bound[i]))
            fail_msg("%s (%s, batch %zu, seq %zu, heads %zu, head size %zu): element %zu is %g, "
                     "should be %g, may be off by %g",
                     what, zr_dtype_name(test->dtype), test->c.batch, test->c.seq, test->c.heads,
                     test->c.head_size, i, read_elem(tensor, i), tensor->ref[i], tensor->bound[i]);
    }
    if (getenv("ATTENTION_TEST_PRINT") != NULL)
        printf("%s %s seq %zu head size %zu: rms %g\n", what, zr_dtype_name(test->dtype),
               test->c.seq, test->c.head_size, sqrt(errors / values));
    if (!(sqrt(errors) <= rms * sqrt(values) + 1e-30))
        fail_msg("%s (%s, seq %zu, head size %zu): off by %g of the values, at most %g is allowed",
                 what, zr_dtype_name(test->dtype), test->c.seq, test->c.head_size,
                 sqrt(errors / values), rms);
}

static zr_nn_attention_t forward_args(const attention_test_t *test) {
    return (zr_nn_attention_t){.batch = test->c.batch,
                               .seq = test->c.seq,
                               .heads = test->c.heads,
                               .head_size = test->c.head_size,
                               .qkv = test->qkv.device,
                               .out = test->out.device,
                               .log_sum = (float *)(void *)test->log_sum.device,
                               .activation_dtype = test->dtype};
}

static zr_nn_attention_backward_t backward_args(const attention_test_t *test) {
    return (zr_nn_attention_backward_t){.batch = test->c.batch,
                                        .seq = test->c.seq,
                                        .heads = test->c.heads,
                                        .head_size = test->c.head_size,
                                        .qkv = test->qkv.device,
                                        .out = test->out.device,
                                        .log_sum = (float *)(void *)test->log_sum.device,
                                        .dout = test->dout.device,
                                        .dqkv = test->dqkv.device,
                                        .activation_dtype = test->dtype};
}

static const zr_nn_workspace_t none = {NULL, 0};

static void run_forward(attention_test_t *test) {
    zr_nn_attention_t args = forward_args(test);
    assert_int_equal(zr_nn_attention_workspace_bytes(test->f->device, &args), 0);
    assert_ok(zr_nn_attention(test->f->stream, &args, none));
}

/* The workspace is NaN, and followed by more of that. */
static void run_backward(attention_test_t *test) {
    zr_nn_attention_backward_t args = backward_args(test);
    size_t n_rows = test->c.batch * test->c.heads * test->c.seq;
    assert_int_equal(zr_nn_attention_backward_workspace_bytes(test->f->device, &args),
                     n_rows * sizeof(float));
    size_t used_bytes = test->f->used_bytes;
    size_t skip_elems = test->skip_elems;
    test->skip_elems = 0; /* a workspace is aligned */
    tensor_t workspace = make(test, n_rows, ZR_DTYPE_F32);
    test->skip_elems = skip_elems;
    zr_nn_workspace_t given = {workspace.device, size_of(&workspace)};
    assert_ok(zr_nn_attention_backward(test->f->stream, &args, given));
    download(test, &workspace);
    for (size_t i = 0; i < GUARD_BYTES; i++)
        assert_int_equal(workspace.bytes[GUARD_BYTES + size_of(&workspace) + i], (char)0xff);
    release(&workspace);
    test->f->used_bytes = used_bytes;
}

static void open_test(attention_test_t *test, double largest) {
    size_t n = test->c.batch * test->c.seq * test->c.heads * test->c.head_size;
    fixture_reset(test->f);
    test->c.rounding = test->dtype == ZR_DTYPE_F32 ? 0x1p-24 : 0x1p-8;
    test->qkv = make(test, 3 * n, test->dtype);
    test->out = make(test, n, test->dtype);
    test->log_sum = make(test, n / test->c.head_size, ZR_DTYPE_F32);
    test->dout = make(test, n, test->dtype);
    test->dqkv = make(test, 3 * n, test->dtype);
    draw(&test->qkv, largest, 1);
    draw(&test->dout, 1.0, 2);
    upload(test, &test->qkv);
    upload(test, &test->dout);
}

static void close_test(attention_test_t *test) {
    tensor_t *tensors[] = {&test->qkv, &test->out, &test->log_sum, &test->dout, &test->dqkv};
    for (size_t i = 0; i < sizeof(tensors) / sizeof(tensors[0]); i++)
        release(tensors[i]);
}

static void check_attention(attention_test_t test, double largest) {
    attention_case_t *c = &test.c;
    open_test(&test, largest);
    ref_attention(test.out.ref, test.log_sum.ref, test.qkv.ref, c->batch, c->seq, c->heads,
                  c->head_size);
    ref_attention_backward(test.dqkv.ref, test.dout.ref, test.qkv.ref, c->batch, c->seq, c->heads,
                           c->head_size);
    attention_bounds(test.out.bound, test.log_sum.bound, test.qkv.ref, test.out.ref, c);
    attention_backward_bounds(test.dqkv.bound, test.qkv.ref, test.dqkv.ref, test.out.ref,
                              test.dout.ref, test.log_sum.ref, c);
    bool is_single = test.dtype == ZR_DTYPE_F32;
    run_forward(&test);
    check(&test, "out", &test.out, is_single ? 2e-6 : 0x1p-8);
    check(&test, "log_sum", &test.log_sum, 2e-6);
    upload(&test, &test.out);
    upload(&test, &test.log_sum);
    run_backward(&test);
    /* Where one probability is nearly 1, dp and delta cancel, and delta's rounding remains. */
    double cancels = largest > 2 ? 4 : 1;
    check(&test, "dqkv", &test.dqkv, cancels * (is_single ? 4e-6 : 0x1p-8));
    close_test(&test);
}

/* ---- tests -------------------------------------------------------------------------------------
 */

static int setup(void **state) {
    static fixture_t fixture;
    fixture_open(&fixture, device_name, 1, NULL);
    *state = &fixture;
    return 0;
}

static int teardown(void **state) {
    fixture_close(*state);
    return 0;
}

static const zr_dtype_t dtypes[] = {ZR_DTYPE_BF16, ZR_DTYPE_F32};

TEST(test_sizes) {
    static const size_t head_sizes[] = {16, 64, 80, 128, 0}, seqs[] = {1, 2, 63, 64, 65, 130, 0};
    for (size_t d = 0; d < 2; d++)
        for (size_t h = 0; head_sizes[h] > 0; h++)
            for (size_t s = 0; seqs[s] > 0; s++) {
                bool is_short = seqs[s] < 64;
                if (IS_SLOW && seqs[s] != 65)
                    continue;
                attention_case_t c = {.batch = is_short ? 2 : 1,
                                      .seq = seqs[s],
                                      .heads = is_short ? 3 : 2,
                                      .head_size = head_sizes[h]};
                check_attention((attention_test_t){.f = *state, .c = c, .dtype = dtypes[d]}, 2.0);
            }
}

/* More than one tile of own rows, and a cut one, on every path; all columns that a lane can have.
 */
TEST(test_long) {
    if (!IS_SLOW) {
        check_attention(
            (attention_test_t){.f = *state, .c = {1, 269, 1, 64, 0}, .dtype = ZR_DTYPE_BF16}, 2.0);
        check_attention(
            (attention_test_t){.f = *state, .c = {2, 161, 1, 128, 0}, .dtype = ZR_DTYPE_BF16}, 2.0);
    }
    for (size_t d = 0; d < 2; d++)
        check_attention(
            (attention_test_t){.f = *state, .c = {1, 41, 1, 256, 0}, .dtype = dtypes[d]}, 2.0);
    /* Rows that are not aligned to 16 bytes; a single channel. */
    for (size_t d = 0; d < 2; d++)
        check_attention((attention_test_t){.f = *state, .c = {1, 35, 2, 20, 0}, .dtype = dtypes[d]},
                        2.0);
    check_attention((attention_test_t){.f = *state, .c = {1, 35, 2, 1, 0}, .dtype = ZR_DTYPE_F32},
                    2.0);
}

/* Scores of some hundreds: exponentials overflow unless they are relative to the largest. */
TEST(test_large_scores) {
    for (size_t head_size = 64; head_size <= 80; head_size += 16)
        check_attention((attention_test_t){.f = *state,
                                           .c = {1, IS_SLOW ? 65 : 130, 1, head_size, 0},
                                           .dtype = ZR_DTYPE_BF16},
                        12.0);
}

/* No 16-byte accesses: the tensor cores' kernels are not taken. */
TEST(test_unaligned) {
    check_attention(
        (attention_test_t){
            .f = *state, .c = {1, 33, 2, 64, 0}, .dtype = ZR_DTYPE_BF16, .skip_elems = 1},
        2.0);
}

/* Twice, with other orders of threads and blocks, and other moments of copies. */
TEST(test_same_bits) {
    for (size_t i = 0; i < 4; i++) {
        attention_test_t test = {.f = *state,
                                 .c = {1, IS_SLOW ? 33 : 100, 2, i % 2 == 0 ? 64 : 80, 0},
                                 .dtype = dtypes[i / 2]};
        open_test(&test, 2.0);
        tensor_t *results[] = {&test.out, &test.log_sum, &test.dqkv};
        char *first[3];
        for (int round = 0; round < (IS_SLOW ? 2 : 3); round++) {
            run_forward(&test);
            run_backward(&test);
            for (size_t k = 0; k < 3; k++) {
                download(&test, results[k]);
                size_t size_bytes = size_of(results[k]);
                if (round == 0)
                    first[k] =
                        memcpy(malloc(size_bytes), results[k]->bytes + GUARD_BYTES, size_bytes);
                assert_memory_equal(first[k], results[k]->bytes + GUARD_BYTES, size_bytes);
            }
        }
        for (size_t k = 0; k < 3; k++)
            free(first[k]);
        close_test(&test);
    }
}

TEST(test_refused) {
    attention_test_t test = {.f = *state, .c = {1, 2, 1, 257, 0}, .dtype = ZR_DTYPE_F32};
    open_test(&test, 2.0);
    zr_nn_attention_t forward = forward_args(&test);
    zr_nn_attention_backward_t backward = backward_args(&test);
    zr_nn_workspace_t given = {test.dqkv.device, size_of(&test.dqkv)};
    assert_refused(test.f, ZR_ERR_UNSUPPORTED, zr_nn_attention(test.f->stream, &forward, none));
    assert_non_null(strstr(test.f->last_error, "257"));
    assert_non_null(strstr(test.f->last_error, "1 to 256"));
    assert_refused(test.f, ZR_ERR_UNSUPPORTED,
                   zr_nn_attention_backward(test.f->stream, &backward, given));
    close_test(&test);
}

int main(int argc, char **argv) {
    device_name = fixture_device_name(argc, argv);
    if (strcmp(device_name, "host") == 0) {
        printf("skipped: test_nn_attention is the host's\n");
        return FIXTURE_SKIPPED;
    }
    if (fixture_probe(device_name) != 0)
        return FIXTURE_SKIPPED;
    return run_all_tests(setup, teardown);
}
