/*
 * The conformance suite on ranks that are threads, each with a host device.
 */
#include "tests/zero/comm/comm_suite.h"

static zr_status_t open_device(zr_device_t **device_p) {
    zr_device_options_t options = zr_device_options_default();
    options.n_threads = 1;
    return zr_device_open("host", &options, device_p);
}

int main(void) {
    static const comm_suite_t suite = {
        .name = "threads on host",
        .create = zr_comm_create_threads,
        .open_device = open_device,
        .close_device = zr_device_close,
    };
    return run_comm_suite(&suite);
}
