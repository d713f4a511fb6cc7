/*
 * The runtime's own kernels: sums, casts and fills that ZeRO needs. Updates are in update.h.
 *
 * All of them queue work on a stream and take device pointers, aligned to their
 * element; arrays of one call must not overlap unless stated otherwise. All backends and
 * instruction sets give bitwise identical results (NaNs may differ in payload): element formulas
 * use explicit fmaf without contraction, and each sum has one documented order. A count of 0 is
 * fine everywhere.
 *
 * Each kernel states its cost, which simulated devices and benchmarks use.
 */
#pragma once

#include "kernels/device.h"

ZR_BEGIN_C

/** What a kernel costs: floating point operations, and bytes read plus written. */
typedef struct zr_cost {
    double operations;
    double bytes;
} zr_cost_t;

/** Which of a processor's rates applies to a kernel's operations. */
typedef enum zr_rate {
    ZR_RATE_VECTOR = 0,
    ZR_RATE_MATRIX = 1,    /* matrix products of a dtype: bf16 if any of the matrices is */
    ZR_RATE_ATTENTION = 2, /* matrix products in attention */
    ZR_RATE_LM_HEAD = 3,   /* matrix products in the language model head */
    ZR_RATE_UPDATE = 4     /* as VECTOR, with a separate rate for bytes */
} zr_rate_t;

/** A queued kernel, for accounting. */
typedef struct zr_charge {
    const char *kernel; /* static */
    zr_cost_t cost;
    zr_rate_t rate;
    zr_dtype_t dtype; /* ignored with ZR_RATE_VECTOR and ZR_RATE_UPDATE */
} zr_charge_t;

/**
 * To be called after each launch of your own kernel on zr_stream_native, with its cost. A simulated
 * device advances its clock by that, and errors of queued work name the kernel.
 *
 * @param charge  borrowed for the call, except the name, which must stay valid
 * @return ZR_OK; ZR_ERR_ARGUMENT for a kernel without a name, or a cost that is not a finite number
 *         >= 0; ZR_ERR_DEVICE: the launch failed, if the device reports that at once
 *
 * Threads: those of the stream.
 */
ZR_NODISCARD zr_status_t zr_stream_launched(zr_stream_t *stream, const zr_charge_t *charge);

/** Cost of the work queued on a stream since its creation. */
ZR_NODISCARD zr_status_t zr_stream_cost(const zr_stream_t *stream, zr_cost_t *cost_p);

/**
 * result[0] = sum of squares of x, in double.
 *
 * The order of the sum (kernels/sum_of_squares_math.h) is the same for all backends, instruction
 * sets and numbers of threads.
 *
 * @param result     [1] on the device, overwritten
 * @param workspace  zr_sum_of_squares_workspace_bytes(n_elems) on the device, or NULL if 0
 */
ZR_NODISCARD zr_status_t zr_kernel_sum_of_squares(zr_stream_t *stream, const void *x,
                                                  zr_dtype_t dtype, size_t n_elems, double *result,
                                                  void *workspace);
size_t zr_sum_of_squares_workspace_bytes(size_t n_elems);

/** dst += src, added in fp32 and rounded once; dtypes F32 or BF16, in any mix. */
ZR_NODISCARD zr_status_t zr_kernel_add(zr_stream_t *stream, void *dst, zr_dtype_t dst_dtype,
                                       const void *src, zr_dtype_t src_dtype, size_t n_elems);

/** x *= factor, in fp32 and rounded once; F32 or BF16. */
ZR_NODISCARD zr_status_t zr_kernel_scale(zr_stream_t *stream, void *x, zr_dtype_t dtype,
                                         size_t n_elems, float factor);

/** dst = src in another dtype (F32, BF16), round to nearest even; no overlap. */
ZR_NODISCARD zr_status_t zr_kernel_cast(zr_stream_t *stream, void *dst, zr_dtype_t dst_dtype,
                                        const void *src, zr_dtype_t src_dtype, size_t n_elems);

/** x = value (rounded to dtype); F32 or BF16. */
ZR_NODISCARD zr_status_t zr_kernel_fill(zr_stream_t *stream, void *x, zr_dtype_t dtype,
                                        size_t n_elems, float value);

#define ZR_MAX_SUM_SOURCES 1024

/**
 * dst[i] = sources[0][i] + sources[1][i] + ..., added in fp32 in that order, rounded once.
 *
 * @param sources    [n_sources] pointers to [n_elems] of dtype (F32 or BF16), borrowed for the
 *                   call; dst may be one of them, otherwise no overlap
 * @param n_sources  1 to ZR_MAX_SUM_SOURCES
 */
ZR_NODISCARD zr_status_t zr_kernel_sum(zr_stream_t *stream, void *dst, const void *const *sources,
                                       int n_sources, zr_dtype_t dtype, size_t n_elems);

/** If all arrays together have at least this many bytes, the host uses non-temporal stores for
 * destinations with this alignment. */
#define ZR_SPREAD_STREAM_BYTES ((size_t)4 << 20)
#define ZR_SPREAD_STREAM_ALIGNMENT ((size_t)64)

/**
 * The same sum to several places: dsts[d][i] = sources[0][i] + sources[1][i] + ... for every d.
 * A device can do it in one pass over memory: each source is read once, each dst written once.
 *
 * @param dsts       [n_dsts] pointers to [n_elems] of dtype, borrowed for the call; each may be one
 *                   of the sources, otherwise no overlap with them or each other
 * @param n_dsts     0 to ZR_MAX_SUM_SOURCES
 * @param sources    as in zr_kernel_sum; a single source is copied bitwise and may have any dtype
 */
ZR_NODISCARD zr_status_t zr_kernel_spread(zr_stream_t *stream, void *const *dsts, int n_dsts,
                                          const void *const *sources, int n_sources,
                                          zr_dtype_t dtype, size_t n_elems);

ZR_END_C
