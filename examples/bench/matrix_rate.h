/*
 * The machine's own rate of matrix products: one large square product, again and again. It is what
 * a model's products could reach at best. On the host it is oneDNN's sgemm in fp32; on a GPU it is
 * cuBLASLt's product of operands of the model's dtype, through the library.
 */
#pragma once

#include "examples/bench/on_device.h"

typedef struct matrix_rate matrix_rate_t;

/**
 * Matrices, and first products that meet what is cold.
 *
 * @param options  the device; on the host its threads share each product
 * @param dtype    of the operands on a GPU
 * @param side     0: 2048 on the host, 8192 on a GPU
 *
 * Threads: one at a time, not always the same.
 */
ZR_NODISCARD zr_status_t matrix_rate_create(const on_device_options_t *options, zr_dtype_t dtype,
                                            size_t side, matrix_rate_t **rate_p);
void matrix_rate_destroy(matrix_rate_t **rate);

/** Time the product again. */
ZR_NODISCARD zr_status_t matrix_rate_run(matrix_rate_t *rate);
/** Let go of the threads that make it: OpenMP's look for work for some milliseconds more, on cores
 * that what is timed next needs. The next product makes them anew. */
void matrix_rate_rest(void);
/** Operations per second of the median; 0 when there was none. */
double matrix_rate_per_s(matrix_rate_t *rate);
size_t matrix_rate_side(const matrix_rate_t *rate);
/** "sgemm" or "cublas": what it is made with; static. */
const char *matrix_rate_name(const matrix_rate_t *rate);
