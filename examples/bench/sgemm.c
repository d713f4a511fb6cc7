#include "examples/bench/sgemm.h"

#include <oneapi/dnnl/dnnl.h>
#include <omp.h>
#include <stdlib.h>

#include "examples/bench/bench.h"

struct sgemm {
    zr_log_t log;
    int n_threads;
    float *memory; /* a, b and c, each SGEMM_SIDE x SGEMM_SIDE */
    bench_times_t times;
};

/* oneDNN goes by OpenMP's number of threads, which belongs to the calling thread. */
static zr_status_t multiply(sgemm_t *sgemm) {
    const dnnl_dim_t side = SGEMM_SIDE;
    const float *a = sgemm->memory, *b = a + side * side;
    float *c = sgemm->memory + 2 * side * side;
    int n_before = omp_get_max_threads();
    omp_set_num_threads(sgemm->n_threads);
    dnnl_status_t status =
        dnnl_sgemm('N', 'N', side, side, side, 1.0f, a, side, b, side, 0.0f, c, side);
    omp_set_num_threads(n_before);
    if (status != dnnl_success)
        return zr_fail(&sgemm->log, ZR_ERR_DEVICE, "oneDNN's product failed with status %d",
                       (int)status);
    return ZR_OK;
}

zr_status_t sgemm_create(int n_threads, const zr_log_t *log, sgemm_t **sgemm_p) {
    size_t n_elems = (size_t)SGEMM_SIDE * SGEMM_SIDE;
    sgemm_t *sgemm = calloc(1, sizeof(*sgemm));
    if (sgemm != NULL)
        sgemm->memory = malloc(3 * n_elems * sizeof(float));
    if (sgemm == NULL || sgemm->memory == NULL) {
        free(sgemm);
        return zr_fail(log, ZR_ERR_MEMORY, "no memory for three matrices of %d x %d", SGEMM_SIDE,
                       SGEMM_SIDE);
    }
    sgemm->log = *log;
    sgemm->n_threads = n_threads;
    for (size_t i = 0; i < 3 * n_elems; i++)
        sgemm->memory[i] = 0.01f * (float)(i % 97);
    zr_status_t status = multiply(sgemm);
    if (status != ZR_OK) {
        sgemm_destroy(&sgemm);
        return status;
    }
    *sgemm_p = sgemm;
    return ZR_OK;
}

void sgemm_destroy(sgemm_t **sgemm) {
    if (sgemm == NULL || *sgemm == NULL)
        return;
    bench_times_free(&(*sgemm)->times);
    free((*sgemm)->memory);
    free(*sgemm);
    *sgemm = NULL;
}

zr_status_t sgemm_run(sgemm_t *sgemm) {
    double begin = bench_seconds();
    ZR_TRY(multiply(sgemm));
    if (!bench_times_add(&sgemm->times, bench_seconds() - begin))
        return zr_fail(&sgemm->log, ZR_ERR_MEMORY, "no memory for %zu times",
                       sgemm->times.n_times + 1);
    return ZR_OK;
}

double sgemm_rate(sgemm_t *sgemm) {
    double seconds = bench_times_median(&sgemm->times), side = SGEMM_SIDE;
    return seconds > 0.0 ? 2.0 * side * side * side / seconds : 0.0;
}
