/*
 * A device for tests whose streams run late, in any order that events allow.
 */
#ifndef ZR_TESTS_ZERO_COMM_LATE_DEVICE_H
#define ZR_TESTS_ZERO_COMM_LATE_DEVICE_H

#include "kernels/device.h"

/**
 * Take a reference on the one late device of the process: its streams and events may be used
 * from any thread, so that ranks can share it.
 */
ZR_NODISCARD zr_status_t late_device_open(zr_device_t **device_p);
void late_device_close(zr_device_t **device);

/** The next copy within the device on this stream fails when it is queued. */
void late_device_fail_copy(zr_stream_t *stream);

#endif
