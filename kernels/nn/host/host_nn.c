/*
 * The host's table of transformer kernels, and what those kernels share.
 */
#include "kernels/nn/host/host_nn.h"

#include <oneapi/dnnl/dnnl.h>
#include <oneapi/dnnl/dnnl_debug.h>
#include <omp.h>
#include <string.h>

#include "kernels/host/host_device.h"
#include "kernels/host/host_pool.h"

/* ---- tasks ------------------------------------------------------------------------ */

zr_status_t zr_host_nn_run(zr_stream_t *stream, zr_host_nn_job_t *job,
                           void (*task)(void *job, size_t index), const char *kernel) {
    zr_host_parallel_for(stream->device, job->n_tasks, task, job);
    int status = atomic_load(&job->status);
    if (status == 0)
        return ZR_OK;
    if (status == (int)dnnl_out_of_memory)
        return zr_fail(&stream->device->log, ZR_ERR_MEMORY,
                       "%s: oneDNN had no memory for a matrix product", kernel);
    return zr_fail(&stream->device->log, ZR_ERR_DEVICE, "%s: a matrix product failed: oneDNN's %s",
                   kernel, dnnl_status2str((dnnl_status_t)status));
}

zr_status_t zr_host_nn_run_tasks(zr_stream_t *stream, const void *args, size_t n_tasks,
                                 void (*task)(void *job, size_t index), const char *kernel) {
    zr_host_nn_job_t job = {
        .loops = zr_host_nn_loops(stream->device), .n_tasks = n_tasks, .args = args};
    return zr_host_nn_run(stream, &job, task, kernel);
}

const zr_host_nn_loops_t *zr_host_nn_loops(const zr_device_t *device) {
    static const zr_host_nn_loops_t *const tables[] = {
#ifdef ZR_HOST_HAVE_AVX512
        &zr_host_nn_loops_avx512,
#endif
#ifdef ZR_HOST_HAVE_AVX2
        &zr_host_nn_loops_avx2,
#endif
        &zr_host_nn_loops_baseline,
    };
    const char *isa = ((const zr_host_device_t *)device)->isa->name;
    for (size_t i = 0; i < sizeof(tables) / sizeof(tables[0]); i++) {
        if (strcmp(tables[i]->name, isa) == 0)
            return tables[i];
    }
    return &zr_host_nn_loops_baseline;
}

size_t zr_host_nn_n_tasks(const zr_device_t *device, size_t n_units) {
    size_t n_threads = (size_t)device->info.n_threads;
    if (n_threads == 1)
        return 1;
    return n_units < 4 * n_threads ? n_units : 4 * n_threads;
}

zr_status_t zr_host_nn_check_activations(const zr_stream_t *stream, const char *kernel,
                                         zr_dtype_t dtype) {
    if (dtype != ZR_DTYPE_F32)
        return zr_fail(&stream->device->log, ZR_ERR_UNSUPPORTED,
                       "%s: device \"host\" has fp32 activations only, not %s", kernel,
                       zr_dtype_name(dtype));
    return ZR_OK;
}

zr_status_t zr_host_nn_check_documents(const zr_stream_t *stream, const char *kernel,
                                       const zr_nn_qkv_shape_t *shape) {
    const int32_t *document_starts = shape->document_starts;
    size_t seq = shape->seq;
    for (size_t i = 0; document_starts != NULL && i < shape->batch * seq; i++) {
        size_t t = i % seq;
        int32_t start = document_starts[i];
        if (start == (int32_t)t || (t > 0 && start == document_starts[i - 1]))
            continue;
        return zr_fail(&stream->device->log, ZR_ERR_ARGUMENT,
                       "%s: document_starts has %d at position %zu of sequence %zu; the position "
                       "itself or what the one before it has are allowed",
                       kernel, (int)start, t, i / seq);
    }
    return ZR_OK;
}

static zr_status_t activation_dtype(const zr_device_t *device, zr_dtype_t param_dtype,
                                    zr_dtype_t *dtype_p) {
    (void)device;
    (void)param_dtype;
    *dtype_p = ZR_DTYPE_F32;
    return ZR_OK;
}

/* ---- parameters ---------------------------------------------------------------------- */

const float *zr_host_nn_widen(const zr_host_nn_loops_t *loops, const void *param, zr_dtype_t dtype,
                              size_t first, size_t n, float *buffer) {
    if (dtype == ZR_DTYPE_F32)
        return (const float *)param + first;
    loops->widen(buffer, (const zr_bf16_t *)param + first, n);
    return buffer;
}

void zr_host_nn_store_gradient(const zr_host_nn_loops_t *loops, const zr_nn_gradient_t *gradient,
                               zr_dtype_t dtype, size_t first, const float *values, size_t n) {
    if (dtype == ZR_DTYPE_F32) {
        float *data = (float *)gradient->data + first;
        if (gradient->accumulate)
            loops->add(data, values, n);
        else
            memcpy(data, values, n * sizeof(float));
        return;
    }
    zr_bf16_t *data = (zr_bf16_t *)gradient->data + first;
    if (gradient->accumulate)
        loops->narrow_add(data, values, n);
    else
        loops->narrow(data, values, n);
}

void zr_host_nn_clear_gradient(const zr_nn_gradient_t *gradient, zr_dtype_t dtype, size_t first,
                               size_t n) {
    size_t size = zr_dtype_size(dtype);
    if (!gradient->accumulate && n > 0)
        memset((char *)gradient->data + first * size, 0, n * size);
}

/* ---- matrix products -------------------------------------------------------------------- */

static void scale_matrix(size_t m, size_t n, float beta, float *c, size_t c_ld) {
    for (size_t row = 0; row < m; row++) {
        for (size_t column = 0; column < n; column++)
            c[row * c_ld + column] = beta == 0.0f ? 0.0f : beta * c[row * c_ld + column];
    }
}

int zr_host_sgemm(size_t m, size_t n, size_t k, float alpha, zr_host_matrix_t a, zr_host_matrix_t b,
                  float beta, float *c, size_t c_ld) {
    if (m == 0 || n == 0)
        return 0;
    if (k == 0) {
        scale_matrix(m, n, beta, c, c_ld);
        return 0;
    }
    /* oneDNN takes the number of threads from OpenMP, where it belongs to the calling thread;
       so setting it here disturbs no other, and it is put back for the caller's own use. */
    int n_threads = omp_get_max_threads();
    if (n_threads != 1)
        omp_set_num_threads(1);
    dnnl_status_t status =
        dnnl_sgemm(a.transpose ? 'T' : 'N', b.transpose ? 'T' : 'N', (dnnl_dim_t)m, (dnnl_dim_t)n,
                   (dnnl_dim_t)k, alpha, a.data, (dnnl_dim_t)a.ld, b.data, (dnnl_dim_t)b.ld, beta,
                   c, (dnnl_dim_t)c_ld);
    if (n_threads != 1)
        omp_set_num_threads(n_threads);
    return (int)status;
}

/* ---- the tables ------------------------------------------------------------------------- */

static zr_nn_run_fn *const kernels[ZR_NN_N_KERNELS] = {
    [ZR_NN_MATMUL] = zr_host_nn_matmul,
    [ZR_NN_BIAS_GRAD] = zr_host_nn_bias_grad,
    [ZR_NN_LAYERNORM] = zr_host_nn_layernorm,
    [ZR_NN_LAYERNORM_BACKWARD] = zr_host_nn_layernorm_backward,
    [ZR_NN_GELU] = zr_host_nn_gelu,
    [ZR_NN_GELU_BACKWARD] = zr_host_nn_gelu,
    [ZR_NN_SWIGLU] = zr_host_nn_swiglu,
    [ZR_NN_SWIGLU_BACKWARD] = zr_host_nn_swiglu_backward,
    [ZR_NN_ROTARY] = zr_host_nn_rotary,
    [ZR_NN_ROTARY_BACKWARD] = zr_host_nn_rotary_backward,
    [ZR_NN_ATTENTION] = zr_host_nn_attention,
    [ZR_NN_ATTENTION_BACKWARD] = zr_host_nn_attention_backward,
    [ZR_NN_EMBEDDING] = zr_host_nn_embedding,
    [ZR_NN_EMBEDDING_BACKWARD] = zr_host_nn_embedding_backward,
    [ZR_NN_LM_HEAD] = zr_host_nn_lm_head,
};

static zr_nn_bytes_fn *const bytes[ZR_NN_N_KERNELS] = {
    [ZR_NN_MATMUL] = zr_host_nn_matmul_bytes,
    [ZR_NN_LAYERNORM_BACKWARD] = zr_host_nn_layernorm_backward_bytes,
    [ZR_NN_ATTENTION] = zr_host_nn_attention_bytes,
    [ZR_NN_ATTENTION_BACKWARD] = zr_host_nn_attention_backward_bytes,
    [ZR_NN_EMBEDDING_BACKWARD] = zr_host_nn_embedding_backward_bytes,
    [ZR_NN_LM_HEAD] = zr_host_nn_lm_head_bytes,
};

static zr_status_t run(zr_stream_t *stream, const zr_nn_work_t *work) {
    return kernels[work->kernel](stream, work->args, work->workspace);
}

static size_t workspace_bytes(const zr_device_t *device, zr_nn_kernel_t kernel, const void *args) {
    return bytes[kernel] == NULL ? 0 : bytes[kernel](device, args);
}

const zr_nn_backend_t zr_host_nn_backend = {.name = "host",
                                            .activation_dtype = activation_dtype,
                                            .run = run,
                                            .workspace_bytes = workspace_bytes};
