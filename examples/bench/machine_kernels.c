/*
 * A processor's rates: the kernels of a model, at sizes that a step has, so that a rate has in it
 * what a plan does not tell apart: shapes, caches, and the parts of a kernel that are no products.
 */
#include <stdlib.h>
#include <string.h>

#include "examples/bench/machine_rank.h"
#include "examples/bench/memory_kernels.h"
#include "examples/bench/products.h"

#define HEAD_SIZE 64
#define FEW 8 /* times as many rows of a host's layer are many */

static const zr_dtype_t dtypes[] = {ZR_DTYPE_F32, ZR_DTYPE_BF16};

/* A micro-batch of a model whose weights are more than caches hold, and on a device that works on
 * thousands of rows at once as many of them. */
machine_sizes_t machine_sizes(const machine_options_t *options, bool is_host) {
    if (options->is_quick)
        return (machine_sizes_t){.n_rows = 64,
                                 .channels = 64,
                                 .large = {64, 128},
                                 .small = {is_host ? 8 : 64, 64},
                                 .seq = 16,
                                 .vocab = 256,
                                 .update_elems = 4096,
                                 .comm_bytes = 65536,
                                 .file_bytes = (size_t)4 << 20,
                                 .pass_bytes = 4 << 20};
    return (machine_sizes_t){.n_rows = is_host ? 512 : 8192,
                             .channels = 768,
                             .large = {is_host ? 512 : 8192, is_host ? 768 : 2048},
                             .small = {is_host ? 512 / FEW : 8192, 768},
                             .seq = is_host ? 256 : 1024,
                             .vocab = is_host ? 16384 : 50257,
                             .update_elems = (size_t)16 << 20, /* more than caches hold */
                             .comm_bytes = (size_t)28 << 20,   /* near those of a layer */
                             .file_bytes = (size_t)256 << 20,
                             .pass_bytes = 512 << 20};
}

/* ---- products -------------------------------------------------------------------------------- */

/* All products of a layer, one after another. */
typedef struct layer_time {
    double operations, bytes, seconds;
} layer_time_t;

static zr_status_t time_layer(machine_rank_t *rank, on_device_t *on, int dtype,
                              const machine_layer_t *layer, layer_time_t *time_p) {
    products_t *products = calloc(1, sizeof(*products));
    if (products == NULL)
        return zr_fail(&rank->options->log, ZR_ERR_MEMORY, "no memory for a layer's products");
    zr_status_t status = products_make(on, layer->n_rows, layer->channels, dtypes[dtype], products);
    ZR_THEN(status, machine_rank_time(rank, products->works, N_PRODUCTS, on->stream));
    for (size_t i = 0; i < N_PRODUCTS; i++) {
        time_p->operations += products->works[i].cost.operations;
        time_p->bytes += products->works[i].cost.bytes;
        time_p->seconds += bench_times_median(&products->works[i].times);
    }
    works_free(products->works, N_PRODUCTS);
    free(products);
    return status;
}

/* seconds = operations / ops_per_s + bytes / bytes_per_s, of a layer with many operations for each
 * byte and of one with fewer. Where that takes no longer for it, all bytes are hidden. */
static void fit_products(const layer_time_t *large, const layer_time_t *small,
                         machine_processor_t *processor, int dtype) {
    double determinant = large->operations * small->bytes - small->operations * large->bytes;
    double per_byte =
        (large->operations * small->seconds - small->operations * large->seconds) / determinant;
    double per_operation =
        (large->seconds * small->bytes - small->seconds * large->bytes) / determinant;
    bool is_hidden = per_byte <= 1.0 / MACHINE_HIDDEN || per_operation <= 0.0;
    processor->matrix_bytes_per_s[dtype] = is_hidden ? MACHINE_HIDDEN : 1.0 / per_byte;
    processor->matrix_ops_per_s[dtype] =
        is_hidden ? large->operations / large->seconds : 1.0 / per_operation;
}

static zr_status_t measure_products(machine_rank_t *rank, on_device_t *on, int dtype,
                                    machine_processor_t *processor) {
    layer_time_t large = {0}, small = {0};
    on_device_t second = {0};
    ZR_TRY(time_layer(rank, on, dtype, &rank->sizes.large, &large));
    zr_status_t status = on_device_open(rank->opened, &second);
    ZR_THEN(status, time_layer(rank, &second, dtype, &rank->sizes.small, &small));
    on_device_close(&second);
    if (status == ZR_OK)
        fit_products(&large, &small, processor, dtype);
    return status;
}

/* ---- attention and the head ------------------------------------------------------------------ */

typedef struct model {
    zr_nn_attention_t attention;
    zr_nn_attention_backward_t attention_backward;
    zr_nn_lm_head_t head;
    zr_nn_workspace_t workspace;
    int32_t *targets;
} model_t;

static zr_status_t queue_attention(void *context, zr_stream_t *stream) {
    const model_t *model = context;
    return zr_nn_attention(stream, &model->attention, model->workspace);
}

static zr_status_t queue_attention_backward(void *context, zr_stream_t *stream) {
    const model_t *model = context;
    return zr_nn_attention_backward(stream, &model->attention_backward, model->workspace);
}

static zr_status_t queue_head(void *context, zr_stream_t *stream) {
    const model_t *model = context;
    return zr_nn_lm_head(stream, &model->head, model->workspace);
}

static void describe_model(const zr_device_t *device, model_t *model, const machine_sizes_t *sizes,
                           zr_dtype_t activation, zr_dtype_t param) {
    const zr_nn_qkv_shape_t shape = {.batch = sizes->n_rows / sizes->seq,
                                     .seq = sizes->seq,
                                     .heads = sizes->channels / HEAD_SIZE,
                                     .kv_heads = sizes->channels / HEAD_SIZE,
                                     .head_size = HEAD_SIZE};
    model->attention = (zr_nn_attention_t){.shape = shape, .activation_dtype = activation};
    model->attention_backward =
        (zr_nn_attention_backward_t){.shape = shape, .activation_dtype = activation};
    model->head = (zr_nn_lm_head_t){.n_rows = sizes->n_rows,
                                    .channels = sizes->channels,
                                    .vocab = sizes->vocab,
                                    .scale = 1.0f / (float)sizes->n_rows,
                                    .activation_dtype = activation,
                                    .param_dtype = param};
    zr_nn_lm_head_chunks(device, 0, &model->head);
}

/* The workspace of any of them. */
static size_t model_workspace_bytes(const on_device_t *on, const model_t *model) {
    const size_t sizes[] = {
        zr_nn_attention_workspace_bytes(on->device, &model->attention),
        zr_nn_attention_backward_workspace_bytes(on->device, &model->attention_backward),
        zr_nn_lm_head_workspace_bytes(on->device, &model->head)};
    size_t most = 0;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        most = sizes[i] > most ? sizes[i] : most;
    return most;
}

static zr_status_t make_model(on_device_t *on, model_t *model, const machine_sizes_t *sizes,
                              zr_dtype_t param) {
    zr_nn_attention_t *forward = &model->attention;
    zr_nn_attention_backward_t *backward = &model->attention_backward;
    zr_nn_lm_head_t *head = &model->head;
    zr_dtype_t activation;
    size_t n_rows = sizes->n_rows, row = n_rows * sizes->channels;
    size_t table = sizes->vocab * sizes->channels, heads = sizes->channels / HEAD_SIZE;
    ZR_TRY(zr_nn_activation_dtype(on->device, param, &activation));
    describe_model(on->device, model, sizes, activation, param);
    size_t act = zr_dtype_size(activation), size = zr_dtype_size(param);
    void *qkv = NULL, *out = NULL, *dout = NULL, *dqkv = NULL, *weight = NULL, *dweight = NULL;
    float *log_sum = NULL;
    ZR_TRY(ON_DEVICE_TAKE(on, {&qkv, 3 * row * act}, {&out, row * act}, {&dout, row * act},
                          {&dqkv, 3 * row * act}, {&weight, table * size}, {&dweight, table * size},
                          {&log_sum, n_rows * heads * sizeof(float)},
                          {&model->targets, n_rows * sizeof(int32_t)},
                          {&head->loss, sizeof(double)}));
    forward->qkv = backward->qkv = qkv;
    forward->out = out;
    backward->out = out;
    forward->log_sum = log_sum;
    backward->log_sum = log_sum;
    backward->dout = head->x = dout;
    backward->dqkv = head->dx = dqkv;
    head->weight = weight;
    head->dweight = (zr_nn_gradient_t){.data = dweight};
    head->targets = model->targets;
    model->workspace.size_bytes = model_workspace_bytes(on, model);
    ZR_TRY(ON_DEVICE_TAKE(on, {&model->workspace.data, model->workspace.size_bytes}));
    ZR_TRY(on_device_draw(on, qkv, activation, 3 * row));
    ZR_TRY(on_device_draw(on, dout, activation, row));
    ZR_TRY(zr_kernel_fill(on->stream, head->loss, ZR_DTYPE_F32, 2, 0.0f));
    ZR_TRY(zr_kernel_fill(on->stream, model->targets, ZR_DTYPE_F32, n_rows, 0.0f)); /* token 0 */
    ZR_TRY(on_device_draw(on, weight, param, table));
    /* As at the start of a training: of larger logits' softmax most are denormal numbers, which
     * some processors multiply a hundred times slower. */
    return zr_kernel_scale(on->stream, weight, param, table, 0.03f);
}

static double ops_per_s(work_t *work) {
    return work->cost.operations / bench_times_median(&work->times);
}

/* How fast operations are to those of products, bytes aside, which go as theirs do. */
static double ratio_to_products(double operations, double bytes, double seconds, int dtype,
                                const machine_processor_t *processor) {
    double left = seconds - bytes / processor->matrix_bytes_per_s[dtype];
    if (left < 0.5 * seconds)
        left = 0.5 * seconds; /* no more than half of it can be bytes */
    return operations / left / processor->matrix_ops_per_s[dtype];
}

static zr_status_t measure_model(machine_rank_t *rank, on_device_t *on, int dtype,
                                 machine_processor_t *processor) {
    model_t model = {0};
    work_t works[] = {{.queue = queue_attention, .context = &model},
                      {.queue = queue_attention_backward, .context = &model},
                      {.queue = queue_head, .context = &model}};
    zr_status_t status = make_model(on, &model, &rank->sizes, dtypes[dtype]);
    ZR_THEN(status, machine_rank_time(rank, works, 3, on->stream));
    if (status == ZR_OK) {
        double seconds = bench_times_median(&works[0].times) + bench_times_median(&works[1].times);
        int activation =
            model.attention.activation_dtype == ZR_DTYPE_BF16; /* that it is charged as */
        processor->attention_ratio[dtype] = ratio_to_products(
            works[0].cost.operations + works[1].cost.operations,
            works[0].cost.bytes + works[1].cost.bytes, seconds, activation, processor);
        processor->lm_head_ratio[dtype] =
            ratio_to_products(works[2].cost.operations, works[2].cost.bytes,
                              bench_times_median(&works[2].times), dtype, processor);
    }
    works_free(works, 3);
    return status;
}

/* ---- memory ---------------------------------------------------------------------------------- */

static zr_status_t measure_memory(machine_rank_t *rank, on_device_t *on, int dtype,
                                  machine_processor_t *processor) {
    const memory_kernels_shape_t shape = {.n_rows = 4 * rank->sizes.n_rows,
                                          .channels = rank->sizes.channels,
                                          .vocab = 64,
                                          .dtype = dtypes[dtype]};
    memory_kernels_t kernels;
    work_t works[N_MEMORY_KERNELS + 1] = {{.queue = memory_kernels_copy, .context = &kernels}};
    size_t n = 1, n_gelu = 0;
    for (size_t i = 0; i < N_MEMORY_KERNELS; i++)
        if (memory_kernels_all[i].is_of_layers)
            works[n++] = (work_t){.queue = memory_kernels_all[i].queue, .context = &kernels};
    n_gelu = n;
    works[n++] = (work_t){.queue = memory_kernels_gelu, .context = &kernels};
    zr_status_t status = memory_kernels_make(on, &shape, &kernels);
    ZR_THEN(status, machine_rank_time(rank, works, n, on->stream));
    if (status == ZR_OK) {
        double bytes = 0.0, seconds = 0.0;
        for (size_t i = 0; i < n_gelu; i++) {
            bytes += works[i].cost.bytes;
            seconds += bench_times_median(&works[i].times);
        }
        processor->memory_bytes_per_s = bytes / seconds;
        processor->vector_per_s = ops_per_s(&works[n_gelu]);
    }
    works_free(works, n);
    return status;
}

static zr_status_t queue_update(void *context, zr_stream_t *stream) {
    return zr_kernel_update(stream, &zr_adamw.rule, context);
}

static zr_status_t measure_update(machine_rank_t *rank, on_device_t *on, int dtype,
                                  machine_processor_t *processor) {
    size_t n = rank->sizes.update_elems, wide = n * sizeof(float);
    zr_update_t args = {.n_elems = n,
                        .grad_dtype = dtypes[dtype],
                        .param_dtype = dtypes[dtype],
                        .grad_scale = 1.0f,
                        .lr = 1e-4f,
                        .hyper = {0.9f, 0.95f, 1e-8f},
                        .step = 10};
    work_t work = {.queue = queue_update, .context = &args};
    void *grad = NULL;
    ZR_TRY(ON_DEVICE_TAKE(on, {&args.arrays[0], wide}, {&args.arrays[1], wide},
                          {&args.arrays[2], wide}, {&grad, wide}, {&args.param, wide}));
    for (size_t i = 0; i < zr_adamw.rule.n_arrays; i++)
        ZR_TRY(zr_kernel_fill(on->stream, args.arrays[i], ZR_DTYPE_F32, n, 0.5f));
    args.grad = grad;
    ZR_TRY(on_device_draw(on, grad, dtypes[dtype], n));
    zr_status_t status = machine_rank_time(rank, &work, 1, on->stream);
    if (status == ZR_OK)
        processor->update_bytes_per_s = work.cost.bytes / bench_times_median(&work.times);
    works_free(&work, 1);
    return status;
}

/* ---- next to nothing ------------------------------------------------------------------------ */

#define N_SMALL 100

static zr_status_t queue_nothing(void *context, zr_stream_t *stream) {
    return zr_kernel_fill(stream, context, ZR_DTYPE_F32, 16, 0.0f);
}

static zr_status_t measure_queueing(machine_rank_t *rank, on_device_t *on, int dtype,
                                    machine_processor_t *processor) {
    (void)dtype;
    work_t work = {.queue = queue_nothing};
    ZR_TRY(ON_DEVICE_TAKE(on, {&work.context, 64}));
    zr_status_t status = machine_rank_time(rank, &work, 1, on->stream);
    processor->kernel_s = bench_times_median(&work.times);
    works_free(&work, 1);
    double begin = bench_seconds();
    for (int i = 0; i < N_SMALL && status == ZR_OK; i++)
        status = queue_nothing(work.context, on->stream);
    processor->queue_s = (bench_seconds() - begin) / N_SMALL;
    zr_status_t passed = zr_stream_synchronize(on->stream);
    return status != ZR_OK ? status : passed;
}

/* ---- all of it ------------------------------------------------------------------------------ */

zr_status_t machine_rank_processor(machine_rank_t *rank, const on_device_options_t *on_options,
                                   machine_processor_t *processor) {
    static const struct {
        zr_status_t (*measure)(machine_rank_t *, on_device_t *, int, machine_processor_t *);
        int dtype;
    } groups[] = {{measure_products, 0}, {measure_products, 1}, {measure_model, 0},
                  {measure_model, 1},    {measure_memory, 0},   {measure_update, 0},
                  {measure_queueing, 0}};
    rank->opened = on_options;
    for (size_t i = 0; i < sizeof(groups) / sizeof(groups[0]); i++) {
        on_device_t on = {0};
        zr_status_t status = on_device_open(on_options, &on);
        ZR_THEN(status, groups[i].measure(rank, &on, groups[i].dtype, processor));
        on_device_close(&on);
        ZR_TRY(status);
    }
    return ZR_OK;
}
