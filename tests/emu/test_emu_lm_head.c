/*
 * The language model head of the CUDA device: how many products it takes, and what it refuses. What
 * it computes is seen by kernels/nn/test_nn_lm_head.c.
 */
#include "kernels/nn/cuda/cuda_nn.h"
#include "tests/emu/emu.h"
#include "tests/kernels/device_fixture.h"

static fixture_t fixture;

/* Of zeros, with both gradients. */
static zr_nn_lm_head_t make_head(size_t n_rows, size_t channels, size_t vocab, size_t row_chunk) {
    static const int32_t targets[8] = {0};
    const double loss = 0.0;
    void *arrays[4];
    fixture_reset(&fixture);
    for (int i = 0; i < 4; i++)
        arrays[i] = fixture_take(&fixture, (n_rows + vocab) * channels * sizeof(float), 0);
    return (zr_nn_lm_head_t){.n_rows = n_rows,
                             .channels = channels,
                             .vocab = vocab,
                             .row_chunk = row_chunk,
                             .x = arrays[0],
                             .weight = arrays[1],
                             .targets = fixture_place(&fixture, targets, sizeof(targets), 0),
                             .loss = fixture_place(&fixture, &loss, sizeof(loss), 0),
                             .scale = 0.25f,
                             .dx = arrays[2],
                             .dweight = {arrays[3], false}};
}

/* Each chunk of rows is multiplied three times: logits, dx, dweight. */
TEST(test_products) {
    for (size_t n_chunks = 1; n_chunks <= 3; n_chunks++) {
        zr_nn_lm_head_t args = make_head(6, 8, 48, 6 / n_chunks);
        int n_products = (int)(3 * n_chunks);
        for (int nth = n_products; nth <= n_products + 1; nth++) {
            emu_fail_kernel("cublasLtMatmul", nth, 719);
            void *workspace =
                fixture_take(&fixture, zr_nn_lm_head_workspace_bytes(fixture.device, &args), 0);
            assert_ok(zr_cuda_nn_lm_head(fixture.stream, &args, workspace));
            bool has_failed = zr_stream_synchronize(fixture.stream) != ZR_OK;
            assert_int_equal(has_failed, nth == n_products);
            emu_fail_kernel("", 0, 0);
            emu_forget_failures();
        }
    }
}

TEST(test_refused) {
    zr_nn_lm_head_t args = make_head(5, 8, 40, 2);
    args.param_dtype = ZR_DTYPE_BF16;
    assert_refused(&fixture, ZR_ERR_UNSUPPORTED,
                   zr_cuda_nn_lm_head(fixture.stream, &args, args.dx));
    assert_has(fixture.last_error, "not fp32 with bf16");
}

static int setup(void **state) {
    fixture_open(&fixture, "cuda", 1, NULL);
    return 0;
}

static int teardown(void **state) {
    fixture_close(&fixture);
    return 0;
}

const test_group_t test_group = {setup, teardown};
