#include "examples/bench/sgemm.h"

#include <oneapi/dnnl/dnnl.h>
#include <omp.h>
#include <stdlib.h>

#include "examples/bench/bench.h"

#define ROUNDS 7

static zr_status_t time_products(const float *a, const float *b, float *c, const zr_log_t *log,
                                 bench_times_t *times) {
    const dnnl_dim_t side = SGEMM_SIDE;
    for (int i = 0; i <= ROUNDS; i++) {
        double begin = bench_seconds();
        dnnl_status_t status =
            dnnl_sgemm('N', 'N', side, side, side, 1.0f, a, side, b, side, 0.0f, c, side);
        double seconds = bench_seconds() - begin;
        if (status != dnnl_success)
            return zr_fail(log, ZR_ERR_DEVICE, "oneDNN's product failed with status %d",
                           (int)status);
        if (i > 0 && !bench_times_add(times, seconds)) /* the first one meets cold memory */
            return zr_fail(log, ZR_ERR_MEMORY, "no memory for %d times", ROUNDS);
    }
    return ZR_OK;
}

zr_status_t sgemm_rate(int n_threads, const zr_log_t *log, double *rate_p) {
    size_t n_elems = (size_t)SGEMM_SIDE * SGEMM_SIDE;
    float *memory = malloc(3 * n_elems * sizeof(float));
    if (memory == NULL)
        return zr_fail(log, ZR_ERR_MEMORY, "no memory for three matrices of %d x %d", SGEMM_SIDE,
                       SGEMM_SIDE);
    for (size_t i = 0; i < 3 * n_elems; i++)
        memory[i] = 0.01f * (float)(i % 97);
    int n_before = omp_get_max_threads();
    omp_set_num_threads(n_threads);
    bench_times_t times = {0};
    zr_status_t status = time_products(memory, memory + n_elems, memory + 2 * n_elems, log, &times);
    omp_set_num_threads(n_before);
    if (status == ZR_OK)
        *rate_p = 2.0 * (double)n_elems * SGEMM_SIDE / bench_times_median(&times);
    bench_times_free(&times);
    free(memory);
    return status;
}
