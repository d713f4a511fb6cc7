/*
 * The communicators' conformance suite on ranks that are threads, with GPUs: all on one, and, where
 * there are two that reach each other's memory, on those. Without a GPU it is skipped; tests/emu/
 * runs it with emulated ones.
 */
#include <cuda_runtime_api.h>

#include "tests/common/test.h"
#include "tests/zero/comm/comm_suite.h"

static int n_opened; /* devices, so far */

static zr_status_t open_on_one(zr_device_t **device_p) {
    return zr_device_open("cuda", NULL, device_p);
}

static zr_status_t open_on_two(zr_device_t **device_p) {
    zr_device_options_t options = zr_device_options_default();
    options.index = n_opened++ % 2;
    return zr_device_open("cuda", &options, device_p);
}

static bool has_two(void) {
    int n_devices = 0, there = 0, back = 0;
    return cudaGetDeviceCount(&n_devices) == cudaSuccess && n_devices > 1 &&
           cudaDeviceCanAccessPeer(&there, 0, 1) == cudaSuccess && there &&
           cudaDeviceCanAccessPeer(&back, 1, 0) == cudaSuccess && back;
}

int main(void) {
    zr_device_t *device = NULL;
    comm_suite_t suite = {
        .name = "threads on one GPU",
        .create = zr_comm_create_threads,
        .open_device = open_on_one,
        .close_device = zr_device_close,
        .is_slow = TEST_IS_SLOW,
    };
    if (open_on_one(&device) == ZR_ERR_UNSUPPORTED)
        return 77; /* said by the log */
    zr_device_close(&device);
    int n_failed = run_comm_suite(&suite);
    if (!has_two())
        return n_failed;
    suite.name = "threads on two GPUs";
    suite.open_device = open_on_two;
    return n_failed + run_comm_suite(&suite);
}
