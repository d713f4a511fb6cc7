#include "examples/bench/matrix_rate.h"

#include <oneapi/dnnl/dnnl.h>
#include <omp.h>
#include <stdlib.h>

#include "examples/common/device.h"

#define HOST_SIDE 2048
#define DEVICE_SIDE 8192

struct matrix_rate {
    on_device_t on;
    size_t side;
    int n_threads;          /* of the host */
    zr_nn_matmul_t product; /* also of the host: its arrays */
    zr_nn_workspace_t workspace;
    work_t work;
};

/* ---- the products ----------------------------------------------------------------------- */

/* oneDNN goes by OpenMP's number of threads, which belongs to the calling thread. The host's work
 * is done when it has been queued, so that this comes in its turn. */
static zr_status_t queue_sgemm(void *context, zr_stream_t *stream) {
    const matrix_rate_t *rate = context;
    const dnnl_dim_t side = (dnnl_dim_t)rate->side;
    int n_before = omp_get_max_threads();
    omp_set_num_threads(rate->n_threads);
    dnnl_status_t status = dnnl_sgemm('N', 'N', side, side, side, 1.0f, rate->product.a, side,
                                      rate->product.b, side, 0.0f, rate->product.c, side);
    omp_set_num_threads(n_before);
    if (status != dnnl_success)
        return zr_fail(zr_device_log(zr_stream_device(stream)), ZR_ERR_DEVICE,
                       "oneDNN's product failed with status %d", (int)status);
    return ZR_OK;
}

static zr_status_t queue_matmul(void *context, zr_stream_t *stream) {
    const matrix_rate_t *rate = context;
    return zr_nn_matmul(stream, &rate->product, rate->workspace);
}

/* ---- making one ---------------------------------------------------------------------------- */

static zr_status_t make_matrices(matrix_rate_t *rate, zr_dtype_t dtype) {
    on_device_t *on = &rate->on;
    size_t n = rate->side * rate->side, size_bytes = n * zr_dtype_size(dtype);
    rate->product = (zr_nn_matmul_t){.m = rate->side,
                                     .n = rate->side,
                                     .k = rate->side,
                                     .a_dtype = dtype,
                                     .b_dtype = dtype,
                                     .c_dtype = dtype};
    rate->workspace.size_bytes = zr_nn_matmul_workspace_bytes(on->device, &rate->product);
    void *a = NULL, *b = NULL;
    ZR_TRY(ON_DEVICE_TAKE(on, {&a, size_bytes}, {&b, size_bytes}, {&rate->product.c, size_bytes},
                          {&rate->workspace.data, rate->workspace.size_bytes}));
    rate->product.a = a;
    rate->product.b = b;
    ZR_TRY(on_device_draw(on, a, dtype, n));
    return on_device_draw(on, b, dtype, n);
}

static zr_status_t set_up(matrix_rate_t *rate, const on_device_options_t *options, zr_dtype_t dtype,
                          size_t side) {
    on_device_options_t quiet_options = *options;
    zr_log_t quiet = *options->common.log;
    quiet.level = ZR_LOG_WARNING; /* the command has said which device it takes */
    quiet_options.common.log = &quiet;
    ZR_TRY(on_device_open(&quiet_options, &rate->on));
    bool is_host = on_device_is_host(&rate->on);
    rate->n_threads = device_threads(options->n_threads, 1);
    rate->side = side != 0 ? side : is_host ? HOST_SIDE : DEVICE_SIDE;
    ZR_TRY(make_matrices(rate, is_host ? ZR_DTYPE_F32 : dtype));
    rate->work = (work_t){.queue = is_host ? queue_sgemm : queue_matmul, .context = rate};
    return work_warm_up(&rate->work, rate->on.stream);
}

zr_status_t matrix_rate_create(const on_device_options_t *options, zr_dtype_t dtype, size_t side,
                               matrix_rate_t **rate_p) {
    matrix_rate_t *rate = calloc(1, sizeof(*rate));
    if (rate == NULL)
        return zr_fail(options->common.log, ZR_ERR_MEMORY, "no memory for a product's times");
    zr_status_t status = set_up(rate, options, dtype, side);
    if (status != ZR_OK) {
        matrix_rate_destroy(&rate);
        return status;
    }
    *rate_p = rate;
    return ZR_OK;
}

void matrix_rate_destroy(matrix_rate_t **rate) {
    if (rate == NULL || *rate == NULL)
        return;
    works_free(&(*rate)->work, 1);
    on_device_close(&(*rate)->on);
    free(*rate);
    *rate = NULL;
}

zr_status_t matrix_rate_run(matrix_rate_t *rate) {
    return work_time(&rate->work, rate->on.stream);
}

double matrix_rate_per_s(matrix_rate_t *rate) {
    double seconds = bench_times_median(&rate->work.times), side = (double)rate->side;
    return seconds > 0.0 ? 2.0 * side * side * side / seconds : 0.0;
}

size_t matrix_rate_side(const matrix_rate_t *rate) {
    return rate->side;
}

const char *matrix_rate_name(const matrix_rate_t *rate) {
    return on_device_is_host(&rate->on) ? "sgemm" : "cublas";
}

void matrix_rate_rest(void) {
    (void)omp_pause_resource_all(omp_pause_soft);
}
