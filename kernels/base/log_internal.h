/*
 * The last error of a thread, for those of the library who hand it from one thread to another.
 */
#pragma once

#include "kernels/base/log.h"

ZR_BEGIN_C

/** Of a message, with the terminating zero. */
#define ZR_LOG_MESSAGE_BYTES 4096

/** Make this the calling thread's last error, without logging it. What is longer is cut. */
void zr_last_error_set(const char *message);

ZR_END_C
