/*
 * The machine's own rate of fp32 matrix products: one large square product of oneDNN, on as
 * many threads as it is given. It is what a model's products could reach at best.
 */
#ifndef EXAMPLES_BENCH_SGEMM_H
#define EXAMPLES_BENCH_SGEMM_H

#include "zero/zero.h"

#define SGEMM_SIDE 2048

/**
 * Measure the rate: the median of some products.
 *
 * @param n_threads      threads that share each product
 * @param rate_p         operations per second
 * @return ZR_OK; ZR_ERR_MEMORY; ZR_ERR_DEVICE
 */
ZR_NODISCARD zr_status_t sgemm_rate(int n_threads, const zr_log_t *log, double *rate_p);

#endif
