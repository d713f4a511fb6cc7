/*
 * The communicators' conformance suite on ranks that are threads, with emulated GPUs: all on one,
 * and on two that reach each other's memory.
 */
#include <cuda_runtime_api.h>

#include "tests/emu/emu.h"
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

int main(void) {
    comm_suite_t suite = {
        .name = "threads on one emulated GPU",
        .create = zr_comm_create_threads,
        .open_device = open_on_one,
        .close_device = zr_device_close,
    };
    int n_failed = run_comm_suite(&suite);
    suite.name = "threads on two emulated GPUs";
    suite.open_device = open_on_two;
    return n_failed + run_comm_suite(&suite);
}
