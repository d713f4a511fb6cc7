/*
 * Launchers of the CUDA kernels that move memory: what kernels.h promises, on a CUDA stream.
 *
 * Internal to the CUDA device. The streams are cudaStream_t, passed as void * so that no CUDA
 * type leaves kernels/cuda. Arguments have been checked (kernels/kernels.c); counts may be 0.
 * All return ZR_OK, or ZR_ERR_DEVICE when the launch is refused, logged with the kernel's name.
 *
 * Pointers may be aligned to their element only: groups of 16 bytes are read and written as one
 * access where all pointers of a call allow it, element by element otherwise. No kernel uses
 * atomics, so no sum depends on the run.
 */
#ifndef ZR_KERNELS_CUDA_CUDA_KERNELS_H
#define ZR_KERNELS_CUDA_CUDA_KERNELS_H

#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

ZR_NODISCARD zr_status_t zr_cuda_adamw(void *stream, const zr_log_t *log, const zr_adamw_t *args);
ZR_NODISCARD zr_status_t zr_cuda_sum_of_squares(void *stream, const zr_log_t *log, const void *x,
                                                zr_dtype_t dtype, size_t n_elems, double *result,
                                                void *workspace);
ZR_NODISCARD zr_status_t zr_cuda_add(void *stream, const zr_log_t *log, void *dst,
                                     zr_dtype_t dst_dtype, const void *src, zr_dtype_t src_dtype,
                                     size_t n_elems);
ZR_NODISCARD zr_status_t zr_cuda_scale(void *stream, const zr_log_t *log, void *x, zr_dtype_t dtype,
                                       size_t n_elems, float factor);
ZR_NODISCARD zr_status_t zr_cuda_cast(void *stream, const zr_log_t *log, void *dst,
                                      zr_dtype_t dst_dtype, const void *src, zr_dtype_t src_dtype,
                                      size_t n_elems);
ZR_NODISCARD zr_status_t zr_cuda_fill(void *stream, const zr_log_t *log, void *x, zr_dtype_t dtype,
                                      size_t n_elems, float value);

/**
 * @param sources  [n_sources], host memory, borrowed for the call
 * @return as above; ZR_ERR_UNSUPPORTED for more than 256 sources
 */
ZR_NODISCARD zr_status_t zr_cuda_sum(void *stream, const zr_log_t *log, void *dst,
                                     const void *const *sources, int n_sources, zr_dtype_t dtype,
                                     size_t n_elems);

#ifdef __cplusplus
}
#endif
#endif
