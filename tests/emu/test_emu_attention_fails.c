/*
 * A launch of attention that fails is reported with the kernel's name, whichever it is.
 */
#include "kernels/nn/nn.h"
#include "tests/emu/emu.h"
#include "tests/kernels/device_fixture.h"

/* Of the backward pass the n-th launch: row sums, keys, queries. */
static const char *const launches[] = {"(row sums)", "(keys", "(queries"};

static void check_backward(fixture_t *f, zr_nn_attention_backward_t args, int nth) {
    size_t size_bytes = 3 * args.shape.batch * args.shape.seq * args.shape.heads *
                        args.shape.head_size * sizeof(float);
    fixture_reset(f);
    args.qkv = fixture_take(f, size_bytes, 0);
    args.out = fixture_take(f, size_bytes, 0);
    args.dout = fixture_take(f, size_bytes, 0);
    args.dqkv = fixture_take(f, size_bytes, 0);
    args.log_sum = fixture_take(f, size_bytes, 0);
    zr_nn_workspace_t workspace = {fixture_take(f, size_bytes, 0), size_bytes};
    emu_fail_call("cudaLaunchKernel", nth, 701);
    assert_refused(f, ZR_ERR_DEVICE, zr_nn_attention_backward(f->stream, &args, workspace));
    assert_has(f->last_error, "attention_backward");
    assert_non_null(strstr(f->last_error, launches[nth - 1]));
    /* Shared memory that is refused: asked for by the second and third. */
    emu_fail_call("cudaFuncSetAttribute", nth > 1 ? nth - 1 : 1, 1);
    assert_refused(f, ZR_ERR_DEVICE, zr_nn_attention_backward(f->stream, &args, workspace));
    assert_has(f->last_error, "shared memory");
    assert_ok(zr_stream_synchronize(f->stream));
}

TEST(test_launch_fails) {
    static fixture_t fixture;
    fixture_open(&fixture, "cuda", 1, NULL);
    for (size_t head_size = 16; head_size <= 64; head_size += 48)
        for (int nth = 1; nth <= 3; nth++)
            check_backward(&fixture,
                           (zr_nn_attention_backward_t){.shape = {.batch = 1,
                                                                  .seq = 2,
                                                                  .heads = 1,
                                                                  .kv_heads = 1,
                                                                  .head_size = head_size},
                                                        .activation_dtype = ZR_DTYPE_BF16},
                           nth);
    fixture_close(&fixture);
}
