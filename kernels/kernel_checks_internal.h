/* What the dispatch of kernels shares: checks of arguments, and the call. Internal to kernels/. */
#pragma once

#include "kernels/device_backend.h"

/** An array of a kernel: fp32 or bf16, an address that fits it, a size that exists. */
ZR_NODISCARD zr_status_t zr_check_array(const zr_stream_t *stream, const char *kernel,
                                        const char *array, const void *address, zr_dtype_t dtype,
                                        size_t n_elems);

/** Queue a kernel whose arguments are fine, and account for it. */
ZR_NODISCARD zr_status_t zr_kernel_run(zr_stream_t *stream, const zr_kernel_work_t *work,
                                       const zr_charge_t *charge);


/** Check and queue ZR_KERNEL_ENCODE or ZR_KERNEL_DECODE of an encoding that has a code. */
ZR_NODISCARD zr_status_t zr_kernel_code(zr_stream_t *stream, const zr_kernel_work_t *work,
                                        const zr_encoding_t *encoding);
