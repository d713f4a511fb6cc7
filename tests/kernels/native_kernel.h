/* A kernel that is none of the library's, for test_native.c: one file for each kind of device. */
#pragma once

#include <stddef.h>

#include "kernels/base/status.h"

ZR_BEGIN_C

/** x[i] = 2 x[i] + 1, queued on the handle; NULL: done at once. */
void native_kernel(void *handle, float *x, size_t n_elems);

ZR_END_C
