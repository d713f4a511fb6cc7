/*
 * zero-bench kernels: bytes per second of the kernels that move memory and hardly compute, against
 * the device's own copy in the same run: kernel and copy take turns. Bytes are those that a kernel
 * has to read and write, as it charges them to its stream.
 */
#include <stdlib.h>
#include <string.h>

#include "examples/bench/on_device.h"

#define MAX_COUNT ((size_t)1 << 31)
#define N_POSITIONS 1024

typedef struct options {
    on_device_options_t on;
    size_t n_rows, channels, vocab;
    zr_dtype_t dtype;
} options_t;

/* Arrays of rows x channels, of which kernels read x and dy and write y; parameters and the rest.
 */
typedef struct bench {
    on_device_t on;
    size_t n_rows, channels, vocab, n_elems, n_positions;
    zr_dtype_t activation_dtype, param_dtype;
    char *x, *dy, *y;
    char *param, *param_grad; /* [vocab, channels] */
    char *positions;          /* [N_POSITIONS, channels] */
    float *wide;              /* [n_elems] */
    float *mean, *rstd;       /* [n_rows] */
    int32_t *tokens;          /* [n_rows] */
    double *result;
    zr_nn_workspace_t workspace;
} bench_t;

/* ---- options -------------------------------------------------------------------------- */

enum { KEY_TOKENS = ON_DEVICE_KEY_FIRST_OWN, KEY_CHANNELS, KEY_VOCAB, KEY_DTYPE };

static const struct argp_option option_table[] = {
    {"tokens", KEY_TOKENS, "N", 0, "rows of the arrays (default 16384)", 0},
    {"channels", KEY_CHANNELS, "C", 0, "columns of the arrays (default 768)", 0},
    {"vocab", KEY_VOCAB, "V", 0, "rows of the table of tokens (default 50257)", 0},
    {"dtype", KEY_DTYPE, "NAME", 0, "of parameters: fp32 (default) or bf16", 0},
    ON_DEVICE_OPTIONS,
    BENCH_COMMON_OPTIONS,
    {0},
};

static zr_status_t take_option(int key, const char *value, void *options) {
    options_t *o = options;
    switch (key) {
    case KEY_TOKENS:
        return args_count("--tokens", value, 1, MAX_COUNT, o->on.log, &o->n_rows);
    case KEY_CHANNELS:
        return args_count("--channels", value, 1, 65536, o->on.log, &o->channels);
    case KEY_VOCAB:
        return args_count("--vocab", value, 1, 1 << 24, o->on.log, &o->vocab);
    case KEY_DTYPE:
        return args_dtype("--dtype", value, o->on.log, &o->dtype);
    }
    return on_device_take_option(key, value, &o->on);
}

static const bench_parser_t parser = {
    .name = "kernels",
    .options = option_table,
    .take = take_option,
    .doc = "Bytes per second of the kernels that memory bounds, against the device's own copy in "
           "the same run."};

/* ---- the kernels ------------------------------------------------------------------------ */

static zr_status_t queue_copy(void *context, zr_stream_t *stream) {
    bench_t *b = context;
    return zr_copy_async(stream, b->y, b->x, b->n_elems * zr_dtype_size(b->activation_dtype),
                         ZR_COPY_DEVICE_TO_DEVICE);
}

static zr_status_t queue_fill(void *context, zr_stream_t *stream) {
    bench_t *b = context;
    return zr_kernel_fill(stream, b->y, b->activation_dtype, b->n_elems, 0.5f);
}

static zr_status_t queue_scale(void *context, zr_stream_t *stream) {
    bench_t *b = context;
    return zr_kernel_scale(stream, b->y, b->activation_dtype, b->n_elems, 1.0f);
}

static zr_status_t queue_cast_down(void *context, zr_stream_t *stream) {
    bench_t *b = context;
    return zr_kernel_cast(stream, b->y, ZR_DTYPE_BF16, b->wide, ZR_DTYPE_F32, b->n_elems);
}

static zr_status_t queue_cast_up(void *context, zr_stream_t *stream) {
    bench_t *b = context;
    return zr_kernel_cast(stream, b->wide, ZR_DTYPE_F32, b->x, ZR_DTYPE_BF16, b->n_elems);
}

static zr_status_t queue_add(void *context, zr_stream_t *stream) {
    bench_t *b = context;
    return zr_kernel_add(stream, b->wide, ZR_DTYPE_F32, b->x, b->activation_dtype, b->n_elems);
}

static zr_status_t queue_sum(void *context, zr_stream_t *stream) {
    bench_t *b = context;
    const void *const sources[] = {b->x, b->dy};
    return zr_kernel_sum(stream, b->y, sources, 2, b->activation_dtype, b->n_elems);
}

static zr_status_t queue_norm(void *context, zr_stream_t *stream) {
    bench_t *b = context;
    return zr_kernel_sum_of_squares(stream, b->x, b->activation_dtype, b->n_elems, b->result,
                                    b->workspace.data);
}

static zr_status_t queue_layernorm(void *context, zr_stream_t *stream) {
    bench_t *b = context;
    const zr_nn_layernorm_t args = {.n_rows = b->n_rows,
                                    .channels = b->channels,
                                    .x = b->x,
                                    .weight = b->param,
                                    .bias = b->positions,
                                    .y = b->y,
                                    .mean = b->mean,
                                    .rstd = b->rstd,
                                    .epsilon = 1e-5f,
                                    .activation_dtype = b->activation_dtype,
                                    .param_dtype = b->param_dtype};
    return zr_nn_layernorm(stream, &args);
}

static zr_nn_layernorm_backward_t layernorm_backward(bench_t *b) {
    return (zr_nn_layernorm_backward_t){.n_rows = b->n_rows,
                                        .channels = b->channels,
                                        .dy = b->dy,
                                        .x = b->x,
                                        .weight = b->param,
                                        .mean = b->mean,
                                        .rstd = b->rstd,
                                        .dx = b->y,
                                        .dweight = {.data = b->param_grad},
                                        .dbias = {.data = b->positions},
                                        .activation_dtype = b->activation_dtype,
                                        .param_dtype = b->param_dtype};
}

static zr_status_t queue_layernorm_backward(void *context, zr_stream_t *stream) {
    bench_t *b = context;
    const zr_nn_layernorm_backward_t args = layernorm_backward(b);
    return zr_nn_layernorm_backward(stream, &args, b->workspace);
}

static zr_status_t queue_gelu(void *context, zr_stream_t *stream) {
    bench_t *b = context;
    return zr_nn_gelu(stream, b->y, b->x, b->activation_dtype, b->n_elems);
}

static zr_status_t queue_gelu_backward(void *context, zr_stream_t *stream) {
    bench_t *b = context;
    return zr_nn_gelu_backward(stream, b->y, b->dy, b->x, b->activation_dtype, b->n_elems);
}

static zr_nn_bias_grad_t bias_grad(bench_t *b) {
    return (zr_nn_bias_grad_t){.n_rows = b->n_rows,
                               .n_columns = b->channels,
                               .dy = b->dy,
                               .dbias = {.data = b->param_grad},
                               .activation_dtype = b->activation_dtype,
                               .param_dtype = b->param_dtype};
}

static zr_status_t queue_bias_grad(void *context, zr_stream_t *stream) {
    bench_t *b = context;
    const zr_nn_bias_grad_t args = bias_grad(b);
    return zr_nn_bias_grad(stream, &args, b->workspace);
}

static zr_status_t queue_embedding(void *context, zr_stream_t *stream) {
    bench_t *b = context;
    const zr_nn_embedding_t args = {.batch = b->n_rows / b->n_positions,
                                    .seq = b->n_positions,
                                    .channels = b->channels,
                                    .vocab = b->vocab,
                                    .n_positions = b->n_positions,
                                    .tokens = b->tokens,
                                    .token_table = b->param,
                                    .position_table = b->positions,
                                    .out = b->y,
                                    .activation_dtype = b->activation_dtype,
                                    .param_dtype = b->param_dtype};
    return zr_nn_embedding(stream, &args);
}

static zr_nn_embedding_backward_t embedding_backward(bench_t *b) {
    return (zr_nn_embedding_backward_t){.batch = b->n_rows / b->n_positions,
                                        .seq = b->n_positions,
                                        .channels = b->channels,
                                        .vocab = b->vocab,
                                        .n_positions = b->n_positions,
                                        .tokens = b->tokens,
                                        .dout = b->dy,
                                        .dtoken_table = {.data = b->param_grad},
                                        .dposition_table = {.data = b->positions},
                                        .activation_dtype = b->activation_dtype,
                                        .param_dtype = b->param_dtype};
}

static zr_status_t queue_embedding_backward(void *context, zr_stream_t *stream) {
    bench_t *b = context;
    const zr_nn_embedding_backward_t args = embedding_backward(b);
    return zr_nn_embedding_backward(stream, &args, b->workspace);
}

static const struct {
    const char *name;
    zr_status_t (*queue)(void *context, zr_stream_t *stream);
} kernels[] = {
    {"fill", queue_fill},
    {"scale", queue_scale},
    {"cast to bf16", queue_cast_down},
    {"cast to fp32", queue_cast_up},
    {"add", queue_add},
    {"sum", queue_sum},
    {"sum of squares", queue_norm},
    {"layernorm", queue_layernorm},
    {"layernorm backward", queue_layernorm_backward}, /* of the means that the one before made */
    {"gelu", queue_gelu},
    {"gelu backward", queue_gelu_backward},
    {"bias gradient", queue_bias_grad},
    {"embedding", queue_embedding},
    {"embedding backward", queue_embedding_backward},
};
#define N_KERNELS (sizeof(kernels) / sizeof(kernels[0]))

/* ---- memory ------------------------------------------------------------------------------- */

static size_t workspace_bytes(bench_t *b) {
    const zr_nn_layernorm_backward_t norm = layernorm_backward(b);
    const zr_nn_bias_grad_t bias = bias_grad(b);
    const zr_nn_embedding_backward_t embedding = embedding_backward(b);
    const size_t sizes[] = {zr_sum_of_squares_workspace_bytes(b->n_elems),
                            zr_nn_layernorm_backward_workspace_bytes(b->on.device, &norm),
                            zr_nn_bias_grad_workspace_bytes(b->on.device, &bias),
                            zr_nn_embedding_backward_workspace_bytes(b->on.device, &embedding)};
    size_t most = 0;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        most = sizes[i] > most ? sizes[i] : most;
    return most;
}

/* Bytes of all arrays. Without memory they are somewhere: a workspace's size follows no pointer,
 * but asks whether there is one. */
static size_t take_arrays(bench_t *b, bool has_memory) {
    static char somewhere[256];
    size_t elem_bytes = zr_dtype_size(b->activation_dtype);
    size_t row_bytes = b->channels * zr_dtype_size(b->param_dtype), sum = 0;
    struct {
        void *array_p;
        size_t size_bytes;
    } arrays[] = {
        {&b->x, b->n_elems * elem_bytes},       {&b->dy, b->n_elems * elem_bytes},
        {&b->y, b->n_elems * elem_bytes},       {&b->param, b->vocab * row_bytes},
        {&b->param_grad, b->vocab * row_bytes}, {&b->positions, N_POSITIONS * row_bytes},
        {&b->wide, b->n_elems * sizeof(float)}, {&b->mean, b->n_rows * sizeof(float)},
        {&b->rstd, b->n_rows * sizeof(float)},  {&b->tokens, b->n_rows * sizeof(int32_t)},
        {&b->result, sizeof(double)},           {&b->workspace.data, b->workspace.size_bytes}};
    for (size_t i = 0; i < sizeof(arrays) / sizeof(arrays[0]); i++) {
        sum += on_device_array_bytes(arrays[i].size_bytes);
        void *array = has_memory ? on_device_take(&b->on, arrays[i].size_bytes) : somewhere;
        memcpy(arrays[i].array_p, &array, sizeof(array));
    }
    return sum;
}

static zr_status_t draw_tokens(bench_t *b) {
    int32_t *tokens = malloc(b->n_rows * sizeof(*tokens));
    if (tokens == NULL)
        return zr_fail(zr_device_log(b->on.device), ZR_ERR_MEMORY, "no memory for %zu tokens",
                       b->n_rows);
    uint64_t state = 1;
    for (size_t i = 0; i < b->n_rows; i++) {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        tokens[i] = (int32_t)((state >> 33) % b->vocab);
    }
    zr_status_t status = zr_copy_async(b->on.stream, b->tokens, tokens, b->n_rows * sizeof(*tokens),
                                       ZR_COPY_HOST_TO_DEVICE);
    zr_status_t passed = zr_stream_synchronize(b->on.stream);
    free(tokens);
    return status != ZR_OK ? status : passed;
}

static zr_status_t fill_arrays(bench_t *b) {
    zr_stream_t *stream = b->on.stream;
    size_t table = b->vocab * b->channels;
    ZR_TRY(zr_kernel_fill(stream, b->x, b->activation_dtype, b->n_elems, 0.5f));
    ZR_TRY(zr_kernel_fill(stream, b->dy, b->activation_dtype, b->n_elems, 0.25f));
    ZR_TRY(zr_kernel_fill(stream, b->y, b->activation_dtype, b->n_elems, 0.0f));
    ZR_TRY(zr_kernel_fill(stream, b->wide, ZR_DTYPE_F32, b->n_elems, 0.0f));
    ZR_TRY(zr_kernel_fill(stream, b->param, b->param_dtype, table, 0.5f));
    ZR_TRY(zr_kernel_fill(stream, b->positions, b->param_dtype, N_POSITIONS * b->channels, 0.5f));
    return draw_tokens(b);
}

static zr_status_t set_up(bench_t *b, const options_t *options) {
    ZR_TRY(on_device_open(&options->on, &b->on));
    b->n_rows = options->n_rows;
    b->channels = options->channels;
    b->vocab = options->vocab;
    b->n_elems = b->n_rows * b->channels;
    b->n_positions = b->n_rows < N_POSITIONS ? b->n_rows : N_POSITIONS;
    b->param_dtype = options->dtype;
    ZR_TRY(zr_nn_activation_dtype(b->on.device, b->param_dtype, &b->activation_dtype));
    take_arrays(b, false);
    b->workspace.size_bytes = workspace_bytes(b);
    ZR_TRY(on_device_map(&b->on, take_arrays(b, false)));
    take_arrays(b, true);
    return fill_arrays(b);
}

/* ---- the report -------------------------------------------------------------------------- */

/* A kernel, and the copy that took turns with it. */
typedef struct pair {
    work_t kernel, copy;
} pair_t;

typedef struct figures {
    double seconds, bytes_per_s, copy_bytes_per_s, ratio;
} figures_t;

static figures_t figures_of(pair_t *pair) {
    figures_t figures = {.seconds = bench_times_median(&pair->kernel.times)};
    figures.bytes_per_s = pair->kernel.cost.bytes / figures.seconds;
    figures.copy_bytes_per_s = pair->copy.cost.bytes / bench_times_median(&pair->copy.times);
    figures.ratio = figures.bytes_per_s / figures.copy_bytes_per_s;
    return figures;
}

static void print_for_people(const bench_t *b, pair_t *pairs) {
    fprintf(stderr, "%s\n%zu x %zu, %s parameters, %s activations, median of %zu rounds\n",
            zr_device_info(b->on.device)->description, b->n_rows, b->channels,
            zr_dtype_name(b->param_dtype), zr_dtype_name(b->activation_dtype),
            pairs[0].kernel.times.n_times);
    for (size_t i = 0; i < N_KERNELS; i++) {
        figures_t figures = figures_of(&pairs[i]);
        fprintf(stderr, "  %-20s %9.1f us  %8.2f GB/s  copy %8.2f GB/s  ratio %6.3f\n",
                kernels[i].name, 1e6 * figures.seconds, 1e-9 * figures.bytes_per_s,
                1e-9 * figures.copy_bytes_per_s, figures.ratio);
    }
}

static json_t *describe_kernel(const char *name, pair_t *pair) {
    figures_t figures = figures_of(pair);
    json_t *object = json_object();
    if (json_put(object, "name", json_string(name)) &&
        json_put(object, "bytes", json_number(pair->kernel.cost.bytes)) &&
        json_put(object, "seconds", json_number(figures.seconds)) &&
        json_put(object, "bytes_per_s", json_number(figures.bytes_per_s)) &&
        json_put(object, "copy_bytes_per_s", json_number(figures.copy_bytes_per_s)) &&
        json_put(object, "ratio", json_number(figures.ratio)))
        return object;
    json_decref(object);
    return NULL;
}

static json_t *describe(const bench_t *b, pair_t *pairs) {
    json_t *object = json_object(), *list = json_array();
    double least = figures_of(&pairs[0]).ratio;
    bool is_whole = list != NULL;
    for (size_t i = 0; i < N_KERNELS; i++) {
        double ratio = figures_of(&pairs[i]).ratio;
        least = ratio < least ? ratio : least;
        is_whole = is_whole &&
                   json_array_append_new(list, describe_kernel(kernels[i].name, &pairs[i])) == 0;
    }
    is_whole = json_put(object, "kernels", list) && is_whole;
    if (is_whole && json_put(object, "command", json_string("kernels")) &&
        json_put(object, "device", json_string(zr_device_info(b->on.device)->description)) &&
        json_put(object, "dtype", json_string(zr_dtype_name(b->param_dtype))) &&
        json_put(object, "activation_dtype", json_string(zr_dtype_name(b->activation_dtype))) &&
        json_put(object, "tokens", json_count(b->n_rows)) &&
        json_put(object, "channels", json_count(b->channels)) &&
        json_put(object, "vocab", json_count(b->vocab)) &&
        json_put(object, "rounds", json_count(pairs[0].kernel.times.n_times)) &&
        json_put(object, "ratio", json_number(least)))
        return object;
    json_decref(object);
    return NULL;
}

/* ---- the command --------------------------------------------------------------------------- */

static int run(int argc, char **argv, const zr_log_t *log) {
    options_t options = {.on = on_device_options_default(log),
                         .n_rows = 16384,
                         .channels = 768,
                         .vocab = 50257,
                         .dtype = ZR_DTYPE_F32};
    bench_t bench = {0};
    pair_t pairs[N_KERNELS] = {0};
    int code = BENCH_FAILED;
    if (!bench_parse(&parser, argc, argv, log, &options.on.common, &code))
        return code;
    for (size_t i = 0; i < N_KERNELS; i++) {
        pairs[i].kernel = (work_t){.queue = kernels[i].queue, .context = &bench};
        pairs[i].copy = (work_t){.queue = queue_copy, .context = &bench};
    }
    zr_status_t status = set_up(&bench, &options);
    if (status == ZR_OK)
        status =
            works_measure(&pairs[0].kernel, 2 * N_KERNELS, bench.on.stream, options.on.seconds);
    code = on_device_exit_code(status);
    if (status == ZR_OK)
        print_for_people(&bench, pairs);
    if (status == ZR_OK && options.on.common.json)
        code = bench_print(describe(&bench, pairs), log);
    works_free(&pairs[0].kernel, 2 * N_KERNELS);
    on_device_close(&bench.on);
    return code;
}

const bench_command_t bench_kernels = {
    .name = "kernels",
    .summary = "bytes/s of the kernels that memory bounds, against the device's own copy",
    .run = run};
