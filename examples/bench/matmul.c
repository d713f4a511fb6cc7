/*
 * zero-bench matmul: operations per second of the products of a GPT layer, forward and backward, as
 * the model makes them, against the machine's own rate in the same run.
 */
#include <string.h>

#include "examples/bench/matrix_rate.h"

#define MAX_COUNT ((size_t)1 << 24)

typedef struct options {
    on_device_options_t on;
    size_t n_rows, channels, side;
    zr_dtype_t dtype;
} options_t;

enum { PASS_FORWARD, PASS_INPUT_GRADIENT, PASS_WEIGHT_GRADIENT, N_PASSES };
static const char *const passes[N_PASSES] = {"forward", "input gradient", "weight gradient"};

/* The linear layers: inputs and outputs in channels, and what the model has them do besides. */
static const struct {
    const char *name;
    size_t n_in, n_out;
    bool has_addend; /* the residual stream */
    bool has_gelu;   /* on its output */
    bool after_gelu; /* its input's gradient goes through it */
} layers[] = {
    {.name = "attention in", .n_in = 1, .n_out = 3},
    {.name = "attention out", .n_in = 1, .n_out = 1, .has_addend = true},
    {.name = "mlp in", .n_in = 1, .n_out = 4, .has_gelu = true},
    {.name = "mlp out", .n_in = 4, .n_out = 1, .has_addend = true, .after_gelu = true},
};
#define N_LAYERS (sizeof(layers) / sizeof(layers[0]))
#define N_PRODUCTS (N_LAYERS * N_PASSES)

typedef struct product {
    const char *layer, *pass;
    zr_nn_matmul_t args;
    zr_nn_workspace_t workspace;
} product_t;

/* Arrays of as many elements as the largest product needs. */
typedef struct bench {
    on_device_t on;
    size_t n_rows, channels;
    zr_dtype_t activation_dtype, param_dtype;
    void *x, *dy, *y, *pre_gelu;       /* [n_rows, 4 channels] */
    void *weight, *weight_grad, *bias; /* [4 channels, channels]; [4 channels] */
    product_t products[N_PRODUCTS];
    work_t works[N_PRODUCTS];
    matrix_rate_t *rate;
} bench_t;

/* ---- options -------------------------------------------------------------------------- */

enum { KEY_TOKENS = ON_DEVICE_KEY_FIRST_OWN, KEY_CHANNELS, KEY_SIDE, KEY_DTYPE };

static const struct argp_option option_table[] = {
    {"tokens", KEY_TOKENS, "N", 0, "rows of the activations (default 1024; on a GPU 16384)", 0},
    {"channels", KEY_CHANNELS, "C", 0, "of the model (default 768)", 0},
    {"side", KEY_SIDE, "N", 0,
     "of the square matrices of the machine's own product (default 2048; on a GPU 8192)", 0},
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
    case KEY_SIDE:
        return args_count("--side", value, 16, 65536, o->on.log, &o->side);
    case KEY_DTYPE:
        return args_dtype("--dtype", value, o->on.log, &o->dtype);
    }
    return on_device_take_option(key, value, &o->on);
}

static const bench_parser_t parser = {
    .name = "matmul",
    .options = option_table,
    .take = take_option,
    .doc = "Operations per second of the products of a GPT layer, against the machine's own rate "
           "in the same run."};

/* ---- the products ------------------------------------------------------------------------ */

static zr_status_t queue_product(void *context, zr_stream_t *stream) {
    const product_t *product = context;
    return zr_nn_matmul(stream, &product->args, product->workspace);
}

/* y = x weight + bias */
static zr_nn_matmul_t forward(const bench_t *b, size_t layer) {
    zr_nn_matmul_t args = {.m = b->n_rows,
                           .n = layers[layer].n_out * b->channels,
                           .k = layers[layer].n_in * b->channels,
                           .a = b->x,
                           .b = b->weight,
                           .c = b->y,
                           .a_dtype = b->activation_dtype,
                           .b_dtype = b->param_dtype,
                           .c_dtype = b->activation_dtype,
                           .bias = b->bias,
                           .bias_dtype = b->param_dtype};
    if (layers[layer].has_addend)
        args.addend = b->dy;
    if (layers[layer].has_gelu) {
        args.epilogue = ZR_NN_EPILOGUE_GELU;
        args.pre_gelu = b->pre_gelu;
    }
    return args;
}

/* dx = dy weight^T */
static zr_nn_matmul_t input_gradient(const bench_t *b, size_t layer) {
    zr_nn_matmul_t args = {.m = b->n_rows,
                           .n = layers[layer].n_in * b->channels,
                           .k = layers[layer].n_out * b->channels,
                           .a = b->dy,
                           .b = b->weight,
                           .c = b->y,
                           .a_dtype = b->activation_dtype,
                           .b_dtype = b->param_dtype,
                           .c_dtype = b->activation_dtype,
                           .transpose_b = true};
    if (layers[layer].after_gelu) {
        args.epilogue = ZR_NN_EPILOGUE_GELU_BACKWARD;
        args.pre_gelu = b->pre_gelu;
    }
    return args;
}

/* dweight = x^T dy */
static zr_nn_matmul_t weight_gradient(const bench_t *b, size_t layer) {
    return (zr_nn_matmul_t){.m = layers[layer].n_in * b->channels,
                            .n = layers[layer].n_out * b->channels,
                            .k = b->n_rows,
                            .a = b->x,
                            .b = b->dy,
                            .c = b->weight_grad,
                            .a_dtype = b->activation_dtype,
                            .b_dtype = b->activation_dtype,
                            .c_dtype = b->param_dtype,
                            .transpose_a = true};
}

static void make_products(bench_t *b, zr_nn_workspace_t workspace) {
    for (size_t i = 0; i < N_PRODUCTS; i++) {
        size_t layer = i / N_PASSES, pass = i % N_PASSES;
        product_t *product = &b->products[i];
        *product = (product_t){.layer = layers[layer].name, .pass = passes[pass]};
        product->args = pass == PASS_FORWARD          ? forward(b, layer)
                        : pass == PASS_INPUT_GRADIENT ? input_gradient(b, layer)
                                                      : weight_gradient(b, layer);
        product->workspace = workspace;
        b->works[i] = (work_t){.queue = queue_product, .context = product};
    }
}

static size_t workspace_bytes(const bench_t *b) {
    size_t most = 0;
    for (size_t i = 0; i < N_PRODUCTS; i++) {
        size_t size = zr_nn_matmul_workspace_bytes(b->on.device, &b->products[i].args);
        most = size > most ? size : most;
    }
    return most;
}

static zr_status_t make_arrays(bench_t *b) {
    static char somewhere[256]; /* a workspace's size asks whether there are arrays */
    on_device_t *on = &b->on;
    size_t n_rows = b->n_rows * 4 * b->channels, n_weight = 4 * b->channels * b->channels;
    size_t param = zr_dtype_size(b->param_dtype), n_bias = 4 * b->channels;
    size_t rows_bytes = n_rows * zr_dtype_size(b->activation_dtype);
    zr_nn_workspace_t workspace = {0};
    b->x = b->dy = b->y = b->pre_gelu = b->weight = b->weight_grad = b->bias = somewhere;
    make_products(b, workspace);
    workspace.size_bytes = workspace_bytes(b);
    ZR_TRY(on_device_map(on, 4 * on_device_array_bytes(rows_bytes) +
                                 2 * on_device_array_bytes(n_weight * param) +
                                 on_device_array_bytes(n_bias * param) +
                                 on_device_array_bytes(workspace.size_bytes)));
    void **const rows[] = {&b->x, &b->dy, &b->y, &b->pre_gelu};
    for (size_t i = 0; i < 4; i++) {
        *rows[i] = on_device_take(on, rows_bytes);
        ZR_TRY(on_device_draw(on, *rows[i], b->activation_dtype, n_rows));
    }
    b->weight = on_device_take(on, n_weight * param);
    b->weight_grad = on_device_take(on, n_weight * param);
    b->bias = on_device_take(on, n_bias * param);
    workspace.data = on_device_take(on, workspace.size_bytes);
    make_products(b, workspace);
    ZR_TRY(on_device_draw(on, b->weight, b->param_dtype, n_weight));
    return on_device_draw(on, b->bias, b->param_dtype, n_bias);
}

static zr_status_t set_up(bench_t *b, const options_t *options) {
    ZR_TRY(on_device_open(&options->on, &b->on));
    b->n_rows = options->n_rows;
    if (b->n_rows == 0)
        b->n_rows = on_device_is_host(&b->on) ? 1024 : 16384;
    b->channels = options->channels;
    b->param_dtype = options->dtype;
    ZR_TRY(zr_nn_activation_dtype(b->on.device, b->param_dtype, &b->activation_dtype));
    ZR_TRY(make_arrays(b));
    return matrix_rate_create(&options->on, options->dtype, options->side, &b->rate);
}

static zr_status_t measure(bench_t *b, double seconds) {
    for (size_t i = 0; i < N_PRODUCTS; i++)
        ZR_TRY(work_warm_up(&b->works[i], b->on.stream));
    double end = bench_seconds() + seconds;
    for (size_t round = 0; round < ON_DEVICE_MIN_ROUNDS || bench_seconds() < end; round++) {
        for (size_t i = 0; i < N_PRODUCTS; i++) {
            if (i % N_PASSES == 0)
                ZR_TRY(matrix_rate_run(b->rate));
            ZR_TRY(work_time(&b->works[i], b->on.stream));
        }
    }
    return ZR_OK;
}

/* ---- the report -------------------------------------------------------------------------- */

/* Operations per second of all products, one after another. */
static double rate_of_all(bench_t *b) {
    double operations = 0.0, seconds = 0.0;
    for (size_t i = 0; i < N_PRODUCTS; i++) {
        operations += b->works[i].cost.operations;
        seconds += bench_times_median(&b->works[i].times);
    }
    return operations / seconds;
}

static double rate_of(work_t *work) {
    return work->cost.operations / bench_times_median(&work->times);
}

static void print_for_people(bench_t *b) {
    double machine = matrix_rate_per_s(b->rate);
    fprintf(stderr, "%s\n%zu tokens, %zu channels, %s parameters, median of %zu rounds\n",
            zr_device_info(b->on.device)->description, b->n_rows, b->channels,
            zr_dtype_name(b->param_dtype), b->works[0].times.n_times);
    for (size_t i = 0; i < N_PRODUCTS; i++)
        fprintf(stderr, "  %-14s %-15s %10.1f GFLOP/s  ratio %6.3f\n", b->products[i].layer,
                b->products[i].pass, 1e-9 * rate_of(&b->works[i]), rate_of(&b->works[i]) / machine);
    fprintf(stderr, "  %-30s %10.1f GFLOP/s  ratio %6.3f\n", "all", 1e-9 * rate_of_all(b),
            rate_of_all(b) / machine);
    fprintf(stderr, "  %-30s %10.1f GFLOP/s, this machine's own (%zu x %zu)\n",
            matrix_rate_name(b->rate), 1e-9 * machine, matrix_rate_side(b->rate),
            matrix_rate_side(b->rate));
}

static json_t *describe_product(bench_t *b, size_t i) {
    const product_t *product = &b->products[i];
    double rate = rate_of(&b->works[i]);
    json_t *object = json_object();
    if (json_put(object, "layer", json_string(product->layer)) &&
        json_put(object, "pass", json_string(product->pass)) &&
        json_put(object, "m", json_count(product->args.m)) &&
        json_put(object, "n", json_count(product->args.n)) &&
        json_put(object, "k", json_count(product->args.k)) &&
        json_put(object, "seconds", json_number(bench_times_median(&b->works[i].times))) &&
        json_put(object, "gflop_per_s", json_number(1e-9 * rate)) &&
        json_put(object, "ratio", json_number(rate / matrix_rate_per_s(b->rate))))
        return object;
    json_decref(object);
    return NULL;
}

static json_t *describe(bench_t *b) {
    json_t *object = json_object(), *list = json_array();
    double machine = matrix_rate_per_s(b->rate), all = rate_of_all(b);
    bool is_whole = list != NULL;
    for (size_t i = 0; i < N_PRODUCTS; i++)
        is_whole = is_whole && json_array_append_new(list, describe_product(b, i)) == 0;
    is_whole = json_put(object, "products", list) && is_whole;
    if (is_whole && json_put(object, "command", json_string("matmul")) &&
        json_put(object, "device", json_string(zr_device_info(b->on.device)->description)) &&
        json_put(object, "dtype", json_string(zr_dtype_name(b->param_dtype))) &&
        json_put(object, "activation_dtype", json_string(zr_dtype_name(b->activation_dtype))) &&
        json_put(object, "tokens", json_count(b->n_rows)) &&
        json_put(object, "channels", json_count(b->channels)) &&
        json_put(object, "rounds", json_count(b->works[0].times.n_times)) &&
        json_put(object, "gflop_per_s", json_number(1e-9 * all)) &&
        json_put(object, "machine", json_string(matrix_rate_name(b->rate))) &&
        json_put(object, "machine_side", json_count(matrix_rate_side(b->rate))) &&
        json_put(object, "machine_gflop_per_s", json_number(1e-9 * machine)) &&
        json_put(object, "ratio", json_number(all / machine)))
        return object;
    json_decref(object);
    return NULL;
}

/* ---- the command --------------------------------------------------------------------------- */

static int run(int argc, char **argv, const zr_log_t *log) {
    options_t options = {
        .on = on_device_options_default(log), .channels = 768, .dtype = ZR_DTYPE_F32};
    bench_t bench = {0};
    int code = BENCH_FAILED;
    if (!bench_parse(&parser, argc, argv, log, &options.on.common, &code))
        return code;
    zr_status_t status = set_up(&bench, &options);
    if (status == ZR_OK)
        status = measure(&bench, options.on.seconds);
    code = on_device_exit_code(status);
    if (status == ZR_OK)
        print_for_people(&bench);
    if (status == ZR_OK && options.on.common.json)
        code = bench_print(describe(&bench), log);
    works_free(bench.works, N_PRODUCTS);
    matrix_rate_destroy(&bench.rate);
    on_device_close(&bench.on);
    return code;
}

const bench_command_t bench_matmul = {
    .name = "matmul",
    .summary = "the products of a GPT layer against the machine's own rate",
    .run = run};
