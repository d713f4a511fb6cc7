/*
 * A kernel of a caller's own on a stream of the library: it runs in the order of the stream, its
 * cost is in the stream's accounts, and what is no cost is refused.
 */
#include "kernels/device_fixture.h"
#include "tests/kernels/native_kernel.h"

enum { N = 1000 };

static const char *device_name;
static fixture_t fixture;

static zr_charge_t charge_of(double operations, double bytes) {
    return (zr_charge_t){.kernel = "own", .cost = {operations, bytes}, .rate = ZR_RATE_VECTOR};
}

static void launch(float *x) {
    zr_charge_t charge = charge_of(2.0 * N, 2.0 * N * sizeof(float));
    native_kernel(zr_stream_native(fixture.stream), x, N);
    assert_ok(zr_stream_launched(fixture.stream, &charge));
}

TEST(test_handle) {
    bool is_synchronous = zr_device_info(fixture.device)->synchronous;
    assert_int_equal(zr_stream_native(fixture.stream) == NULL, is_synchronous);
}

/* Between kernels of the library, which it waits for and which wait for it. */
TEST(test_order) {
    float values[N];
    float *x = fixture_take(&fixture, sizeof(values), 0),
          *y = fixture_take(&fixture, sizeof(values), 0);
    assert_ok(zr_kernel_fill(fixture.stream, y, ZR_DTYPE_F32, N, 0.5f));
    for (int round = 0; round < 3; round++) {
        assert_ok(zr_kernel_fill(fixture.stream, x, ZR_DTYPE_F32, N, (float)round));
        launch(x);
        assert_ok(zr_kernel_add(fixture.stream, y, ZR_DTYPE_F32, x, ZR_DTYPE_F32, N));
    }
    fixture_download(&fixture, values, y, sizeof(values));
    for (size_t i = 0; i < N; i++)
        assert_true(values[i] == 0.5f + 1.0f + 3.0f + 5.0f);
}

TEST(test_cost) {
    zr_cost_t before, after;
    float *x = fixture_take(&fixture, N * sizeof(float), 0);
    assert_ok(zr_stream_cost(fixture.stream, &before));
    launch(x);
    assert_ok(zr_stream_cost(fixture.stream, &after));
    assert_true(after.operations - before.operations == 2.0 * N);
    assert_true(after.bytes - before.bytes == 2.0 * N * sizeof(float));

    const zr_charge_t wrong[] = {charge_of(-1.0, 0.0),
                                 charge_of(0.0, -1.0),
                                 charge_of(NAN, 0.0),
                                 charge_of(0.0, INFINITY),
                                 {.cost = {1.0, 1.0}}};
    for (size_t i = 0; i < N_OF(wrong); i++)
        assert_refused(&fixture, ZR_ERR_ARGUMENT, zr_stream_launched(fixture.stream, &wrong[i]));
    assert_refused(&fixture, ZR_ERR_ARGUMENT, zr_stream_launched(fixture.stream, NULL));
    assert_ok(zr_stream_cost(fixture.stream, &before));
    assert_memory_equal(&before, &after, sizeof(after));
}

int main(int argc, char **argv) {
    device_name = fixture_device_name(argc, argv);
    int status = fixture_probe(device_name);
    if (status != 0)
        return status;
    fixture_open(&fixture, device_name, 1, NULL);
    status = run_all_tests(NULL, NULL);
    fixture_close(&fixture);
    return status;
}
