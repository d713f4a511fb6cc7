/*
 * Causal attention against double precision, and that its scores are never all there.
 */
#include "tests/kernels/nn/nn_test.h"
#include "tests/ref/ref_nn.h"

static void check_attention(nn_device_t *device, size_t batch, size_t seq, size_t heads,
                            size_t head_size, zr_dtype_t dtype) {
    /* With bf16, probabilities are rounded before they are multiplied. */
    bool is_exact = dtype == ZR_DTYPE_F32;
    size_t n = batch * seq * heads * head_size;
    nn_array_t qkv = nn_array_random(3 * n, dtype, 2.0, 1);
    nn_array_t out = nn_array_random(n, dtype, 1.0, 2);
    nn_array_t log_sum = nn_array_random(batch * heads * seq, ZR_DTYPE_F32, 1.0, 3);
    nn_array_t dout = nn_array_random(n, dtype, 1.0, 4);
    nn_array_t dqkv = nn_array_random(3 * n, dtype, 1.0, 5);
    ref_attention(out.ref, log_sum.ref, qkv.ref, batch, seq, heads, head_size);
    ref_attention_backward(dqkv.ref, dout.ref, qkv.ref, batch, seq, heads, head_size);

    zr_nn_attention_t forward = {.batch = batch,
                                 .seq = seq,
                                 .heads = heads,
                                 .head_size = head_size,
                                 .qkv = qkv.data,
                                 .out = out.data,
                                 .log_sum = log_sum.data,
                                 .activation_dtype = dtype};
    zr_nn_workspace_t workspace =
        nn_workspace(zr_nn_attention_workspace_bytes(device->device, &forward));
    assert_ok(zr_nn_attention(device->stream, &forward, workspace));
    nn_assert_close("attention", &out, is_exact ? 2e-6 : 1e-2);
    nn_assert_close("attention's log_sum", &log_sum, is_exact ? 2e-6 : 1e-3);
    nn_workspace_free(&workspace);

    zr_nn_attention_backward_t backward = {.batch = batch,
                                           .seq = seq,
                                           .heads = heads,
                                           .head_size = head_size,
                                           .qkv = qkv.data,
                                           .out = out.data,
                                           .log_sum = log_sum.data,
                                           .dout = dout.data,
                                           .dqkv = dqkv.data,
                                           .activation_dtype = dtype};
    workspace = nn_workspace(zr_nn_attention_backward_workspace_bytes(device->device, &backward));
    assert_ok(zr_nn_attention_backward(device->stream, &backward, workspace));
    nn_assert_close("attention's dqkv", &dqkv, is_exact ? 4e-6 : 2e-2);
    nn_workspace_free(&workspace);

    nn_array_t *arrays[] = {&qkv, &out, &log_sum, &dout, &dqkv};
    for (size_t i = 0; i < sizeof(arrays) / sizeof(arrays[0]); i++)
        nn_array_free(arrays[i]);
}

static void attention_body(nn_device_t *device) {
    static const size_t sizes[][4] = {{1, 1, 1, 1},  {2, 3, 3, 5},    {1, 63, 2, 16}, {3, 64, 1, 8},
                                      {1, 65, 3, 7}, {2, 130, 2, 64}, {1, 200, 1, 33}};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        for (int variant = 0; variant < 2; variant++) {
            zr_dtype_t dtype = variant == 0 ? ZR_DTYPE_F32 : ZR_DTYPE_BF16;
            if (nn_activation_dtype(device, dtype) == dtype)
                check_attention(device, sizes[i][0], sizes[i][1], sizes[i][2], sizes[i][3], dtype);
        }
}

TEST(test_attention) {
    nn_on_every_device(attention_body);
}

/* A thread's workspace holds a tile of one head's scores, however many heads there are. */
static void workspace_body(nn_device_t *device) {
    zr_nn_attention_t forward = {.batch = 8, .seq = 1024, .heads = 12, .head_size = 64};
    zr_nn_attention_backward_t backward = {.batch = 8, .seq = 1024, .heads = 12, .head_size = 64};
    size_t scores_bytes = sizeof(float) * 1024 * 1024; /* of one head */
    size_t n_threads = (size_t)device->n_threads;
    assert_true(zr_nn_attention_workspace_bytes(device->device, &forward) <=
                n_threads * scores_bytes / 8);
    assert_true(zr_nn_attention_backward_workspace_bytes(device->device, &backward) <=
                n_threads * scores_bytes / 4);
}

TEST(test_workspace) {
    nn_on_every_device(workspace_body);
}
