/*
 * The conformance suite on ranks that are threads, on a device whose streams run late: what
 * the host device, which does everything at once, cannot show.
 */
#include "tests/zero/comm/comm_suite.h"
#include "tests/common/late_device.h"

int main(void) {
    static const comm_suite_t suite = {
        .name = "threads on a late device",
        .create = zr_comm_create_threads,
        .open_device = late_device_open,
        .close_device = zr_device_close,
        .fail_copy = late_device_fail_copy,
        .failure = LATE_DEVICE_FAILURE,
    };
    return run_comm_suite(&suite);
}
