/*
 * The machine's own rate of fp32 matrix products: one large square product of oneDNN, on as
 * many threads as it is given. It is what a model's products could reach at best.
 */
#ifndef EXAMPLES_BENCH_SGEMM_H
#define EXAMPLES_BENCH_SGEMM_H

#include "zero/zero.h"

#define SGEMM_SIDE 2048

typedef struct sgemm sgemm_t;

/** Matrices, and a first product that meets cold memory. `n_threads` share each product. */
ZR_NODISCARD zr_status_t sgemm_create(int n_threads, const zr_log_t *log, sgemm_t **sgemm_p);
void sgemm_destroy(sgemm_t **sgemm);

/** Time one product more. From any thread, one at a time. */
ZR_NODISCARD zr_status_t sgemm_run(sgemm_t *sgemm);
/** Operations per second of the median product; 0 when there was none. */
double sgemm_rate(sgemm_t *sgemm);

#endif
