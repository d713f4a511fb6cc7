/* Attention by cuDNN: see attention_cudnn.h. */
#include "kernels/nn/cuda/attention_cudnn.h"

#include <math.h>
#include <float.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if __has_include(<cudnn_graph.h>)
#include "kernels/nn/cuda/attention_graph.h"

/* Earlier ones are wrong for lengths that are no multiples of 128, or without the operations. */
#define LEAST_VERSION 91600
#define N_GRAPHS 64

/* A device's cuDNN. */
typedef struct zr_cuda_attention_plans {
    zr_cudnn_t dnn;
    cudnnHandle_t handle;
    zr_nn_engine_info_t info;
    size_t n_graphs;
    zr_attention_graph_t *graphs[N_GRAPHS]; /* the one used last is the first; without a plan where
                                               cuDNN has none */
} zr_cuda_attention_plans_t;

/* ---- the device's cuDNN ---------------------------------------------------------------------- */

static void free_graph(zr_attention_graph_t *graph) {
    zr_attention_graph_free(graph);
    free(graph);
}

/* Failures have nobody to be handed to; nothing of the device is used after this. */
static void close_attention(zr_cuda_device_t *cuda) {
    zr_cuda_attention_plans_t *plans = cuda->attention;
    bool is_current = zr_cuda_enter(&cuda->base) == ZR_OK;
    while (plans->n_graphs > 0)
        free_graph(plans->graphs[--plans->n_graphs]);
    if (is_current)
        (void)plans->dnn.cudnnDestroy_p(plans->handle);
    zr_cudnn_forget(&plans->dnn);
    free(plans);
    cuda->attention = NULL;
}

static zr_status_t open_library(zr_device_t *device, zr_cuda_attention_plans_t *plans) {
    ZR_TRY(zr_cudnn_find(&device->log, &plans->dnn));
    size_t version = plans->dnn.cudnnGetVersion_p();
    snprintf(plans->info.name, sizeof(plans->info.name), "cuDNN %zu.%zu.%zu", version / 10000,
             version / 100 % 100, version % 100);
    if (version < LEAST_VERSION)
        return zr_fail(&device->log, ZR_ERR_UNSUPPORTED,
                       "--attention cudnn: %s is too old: at least %d.%d is needed; install it, or "
                       "use --attention own",
                       plans->info.name, LEAST_VERSION / 10000, LEAST_VERSION / 100 % 100);
    cudnnStatus_t status = plans->dnn.cudnnCreate_p(&plans->handle);
    if (status != CUDNN_STATUS_SUCCESS)
        return zr_fail(&device->log, ZR_ERR_DEVICE,
                       "cuda:%d: --attention cudnn: %s: cudnnCreate: %s; use --attention own",
                       ((zr_cuda_device_t *)device)->index, plans->info.name,
                       plans->dnn.cudnnGetErrorString_p(status));
    return ZR_OK;
}

static zr_status_t find_plans(zr_device_t *device, zr_cuda_attention_plans_t **plans_p) {
    zr_cuda_device_t *cuda = (zr_cuda_device_t *)device;
    if (cuda->attention == NULL) {
        zr_cuda_attention_plans_t *plans = calloc(1, sizeof(*plans));
        if (plans == NULL)
            return zr_fail(&device->log, ZR_ERR_MEMORY, "attention: no memory (%zu bytes)",
                           sizeof(*plans));
        zr_status_t status = open_library(device, plans);
        if (status != ZR_OK) {
            zr_cudnn_forget(&plans->dnn);
            free(plans);
            return status;
        }
        cuda->attention = plans;
        cuda->close_attention = close_attention;
    }
    *plans_p = cuda->attention;
    return ZR_OK;
}

zr_status_t zr_cuda_nn_attention_open(zr_device_t *device, zr_nn_engine_info_t *info_p) {
    zr_cuda_attention_plans_t *plans = NULL;
    ZR_TRY(zr_cuda_enter(device));
    ZR_TRY(find_plans(device, &plans));
    *info_p = plans->info;
    return ZR_OK;
}

/* ---- plans ----------------------------------------------------------------------------------- */

static const char *shape_text(const zr_attention_key_t *key, char *text, size_t text_bytes) {
    snprintf(text, text_bytes, "attention%s [%zu, %zu, %zu heads of %zu, %zu of keys]",
             key->is_backward ? "_backward" : "", key->batch, key->seq, key->heads, key->head_size,
             key->kv_heads);
    return text;
}

static zr_status_t fail_call(zr_device_t *device, const zr_cuda_attention_plans_t *plans,
                             const zr_attention_graph_t *graph) {
    char shape[160], details[512] = "";
    shape_text(&graph->key, shape, sizeof(shape));
    cudaError_t error = cudaGetLastError(); /* of work that was queued earlier, perhaps */
    const char *name = plans->dnn.cudnnGetErrorString_p(graph->status);
    if (error != cudaSuccess)
        return zr_cuda_fail(device, error, "%s: %s: %s", shape, graph->call, name);
    plans->dnn.cudnnGetLastErrorString_p(details, sizeof(details));
    return zr_fail(&device->log, ZR_ERR_DEVICE, "cuda:%d: %s: %s: %s: %s (%s)",
                   ((zr_cuda_device_t *)device)->index, shape, plans->info.name, graph->call, name,
                   details);
}

/* The first rank speaks for all. */
static void say_refusal(zr_device_t *device, const zr_cuda_attention_plans_t *plans,
                        const zr_attention_graph_t *graph, size_t most_bytes) {
    char shape[160], reason[160];
    snprintf(reason, sizeof(reason), "has no plan: %s: %s", graph->call,
             plans->dnn.cudnnGetErrorString_p(graph->status));
    if (graph->workspace_bytes > most_bytes)
        snprintf(reason, sizeof(reason), "needs a workspace of %zu bytes, planned: %zu",
                 graph->workspace_bytes, most_bytes);
    if (device->log.rank <= 0)
        zr_log_write(&device->log, ZR_LOG_WARNING,
                     "--attention cudnn: %s: %s %s; the library's own kernels compute it",
                     shape_text(&graph->key, shape, sizeof(shape)), plans->info.name, reason);
}

static zr_status_t make_graph(zr_device_t *device, const zr_cuda_attention_plans_t *plans,
                              const zr_attention_key_t *key, size_t most_bytes,
                              zr_attention_graph_t **graph_p) {
    zr_attention_graph_t *graph = calloc(1, sizeof(*graph));
    if (graph == NULL)
        return zr_fail(&device->log, ZR_ERR_MEMORY, "attention: no memory (%zu bytes)",
                       sizeof(*graph));
    graph->dnn = &plans->dnn;
    graph->key = *key;
    graph->handle = plans->handle;
    cudnnStatus_t made = zr_attention_graph_plan(graph, most_bytes);
    if (made != CUDNN_STATUS_SUCCESS && !zr_attention_is_refusal(made)) {
        zr_status_t status = fail_call(device, plans, graph);
        free_graph(graph);
        return status;
    }
    if (made != CUDNN_STATUS_SUCCESS) {
        say_refusal(device, plans, graph, most_bytes);
        zr_attention_graph_free(graph);
    }
    *graph_p = graph;
    return ZR_OK;
}

static void use(zr_cuda_attention_plans_t *plans, size_t i, zr_attention_graph_t *graph) {
    memmove(&plans->graphs[1], &plans->graphs[0], i * sizeof(plans->graphs[0]));
    plans->graphs[0] = graph;
}

static zr_status_t find_graph(zr_device_t *device, zr_cuda_attention_plans_t *plans,
                              const zr_attention_key_t *key, size_t most_bytes,
                              zr_attention_graph_t **graph_p) {
    zr_attention_graph_t *graph = NULL;
    size_t i = 0;
    while (i < plans->n_graphs && memcmp(&plans->graphs[i]->key, key, sizeof(*key)) != 0)
        i++;
    if (i < plans->n_graphs) {
        graph = plans->graphs[i];
    } else {
        ZR_TRY(make_graph(device, plans, key, most_bytes, &graph));
        if (plans->n_graphs == N_GRAPHS)
            free_graph(plans->graphs[--plans->n_graphs]);
        i = plans->n_graphs++;
    }
    use(plans, i, graph);
    *graph_p = graph;
    return ZR_OK;
}

/* ---- running --------------------------------------------------------------------------------- */

static zr_attention_key_t key_of(const zr_cuda_attention_work_t *work) {
    zr_attention_key_t key;
    memset(&key, 0, sizeof(key));
    key.batch = work->shape.batch;
    key.seq = work->shape.seq;
    key.heads = work->shape.heads;
    key.kv_heads = work->shape.kv_heads;
    key.head_size = work->shape.head_size;
    key.window = work->window < work->shape.seq ? work->window : 0;
    key.is_backward = work->dout != NULL;
    return key;
}

/* Where the queries', keys' and values' heads begin. */
static void find_thirds(const zr_attention_key_t *key, const void *qkv, void **thirds) {
    const size_t head_bytes = key->head_size * sizeof(zr_bf16_t);
    thirds[0] = (char *)(uintptr_t)qkv;
    thirds[1] = (char *)thirds[0] + key->heads * head_bytes;
    thirds[2] = (char *)thirds[1] + key->kv_heads * head_bytes;
}

static bool is_aligned(const zr_cuda_attention_work_t *work) {
    return ((uintptr_t)work->qkv | (uintptr_t)work->out | (uintptr_t)work->dout |
            (uintptr_t)work->dqkv) % 16 == 0;
}

zr_status_t zr_cuda_attention_cudnn(zr_stream_t *stream, const zr_cuda_attention_work_t *work,
                                    bool *is_done_p) {
    float scale = (float)(1.0 / sqrt((double)work->shape.head_size)), hidden = -FLT_MAX;
    float window = (float)work->window, one = 1.0f;
    zr_attention_key_t key = key_of(work);
    size_t delta_bytes = key.is_backward ? zr_cuda_attention_delta_bytes(&work->shape) : 0;
    zr_cuda_attention_plans_t *plans = NULL;
    zr_attention_graph_t *graph = NULL;
    *is_done_p = false;
    if (!is_aligned(work))
        return ZR_OK;
    ZR_TRY(find_plans(stream->device, &plans));
    ZR_TRY(find_graph(stream->device, plans, &key, work->workspace_bytes - delta_bytes, &graph));
    if (graph->plan == NULL)
        return ZR_OK;
    void *data[ZR_ATTENTION_N_TENSORS] = {[ZR_ATTENTION_OUT] = work->out,
                                          [ZR_ATTENTION_LOG_SUM] = work->log_sum,
                                          [ZR_ATTENTION_SCALE] = &scale,
                                          [ZR_ATTENTION_HIDDEN] = &hidden};
    find_thirds(&key, work->qkv, &data[ZR_ATTENTION_Q]);
    if (key.window != 0)
        data[ZR_ATTENTION_WINDOW] = &window;
    if (key.is_backward) {
        find_thirds(&key, work->dqkv, &data[ZR_ATTENTION_DQ]);
        data[ZR_ATTENTION_DOUT] = (void *)(uintptr_t)work->dout;
        data[ZR_ATTENTION_DELTA] = work->workspace;
        data[ZR_ATTENTION_ONE] = &one;
    }
    graph->status = plans->dnn.cudnnSetStream_p(plans->handle, zr_cuda_queue(stream));
    graph->call = "cudnnSetStream";
    if (graph->status != CUDNN_STATUS_SUCCESS ||
        zr_attention_graph_run(graph, data, (char *)work->workspace + delta_bytes) !=
            CUDNN_STATUS_SUCCESS)
        return fail_call(stream->device, plans, graph);
    *is_done_p = true;
    if (key.is_backward)
        plans->info.n_backward++;
    else
        plans->info.n_forward++;
    return zr_cuda_launched(stream, key.is_backward ? "attention_backward (cuDNN)"
                                                    : "attention (cuDNN)");
}

#else /* no header */

zr_status_t zr_cuda_nn_attention_open(zr_device_t *device, zr_nn_engine_info_t *info_p) {
    (void)info_p;
    return zr_fail(&device->log, ZR_ERR_UNSUPPORTED,
                   "--attention cudnn: built without cuDNN's headers; install those of version 9 "
                   "and build again, or use --attention own");
}

zr_status_t zr_cuda_attention_cudnn(zr_stream_t *stream, const zr_cuda_attention_work_t *work,
                                    bool *is_done_p) {
    zr_nn_engine_info_t info;
    (void)work, (void)is_done_p;
    return zr_cuda_nn_attention_open(stream->device, &info);
}

#endif
