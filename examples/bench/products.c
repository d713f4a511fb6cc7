/* The products: see products.h. */
#include "examples/bench/products.h"

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

_Static_assert(N_PASSES == PRODUCTS_OF_A_LINEAR, "as the header says");
_Static_assert(sizeof(layers) / sizeof(layers[0]) * N_PASSES == N_PRODUCTS, "likewise");

static zr_status_t queue_product(void *context, zr_stream_t *stream) {
    const product_t *product = context;
    return zr_nn_matmul(stream, &product->args, product->workspace);
}

/* y = x weight + bias */
static zr_nn_matmul_t forward(const products_t *p, size_t layer) {
    zr_nn_matmul_t args = {.m = p->n_rows,
                           .n = layers[layer].n_out * p->channels,
                           .k = layers[layer].n_in * p->channels,
                           .a = p->x,
                           .b = p->weight,
                           .c = p->y,
                           .a_dtype = p->activation_dtype,
                           .b_dtype = p->param_dtype,
                           .c_dtype = p->activation_dtype,
                           .bias = p->bias,
                           .bias_dtype = p->param_dtype};
    if (layers[layer].has_addend)
        args.addend = p->dy;
    if (layers[layer].has_gelu) {
        args.epilogue = ZR_NN_EPILOGUE_GELU;
        args.pre_gelu = p->pre_gelu;
    }
    return args;
}

/* dx = dy weight^T */
static zr_nn_matmul_t input_gradient(const products_t *p, size_t layer) {
    zr_nn_matmul_t args = {.m = p->n_rows,
                           .n = layers[layer].n_in * p->channels,
                           .k = layers[layer].n_out * p->channels,
                           .a = p->dy,
                           .b = p->weight,
                           .c = p->y,
                           .a_dtype = p->activation_dtype,
                           .b_dtype = p->param_dtype,
                           .c_dtype = p->activation_dtype,
                           .transpose_b = true};
    if (layers[layer].after_gelu) {
        args.epilogue = ZR_NN_EPILOGUE_GELU_BACKWARD;
        args.pre_gelu = p->pre_gelu;
    }
    return args;
}

/* dweight = x^T dy */
static zr_nn_matmul_t weight_gradient(const products_t *p, size_t layer) {
    zr_nn_matmul_t args = {.m = layers[layer].n_in * p->channels,
                           .n = layers[layer].n_out * p->channels,
                           .k = p->n_rows,
                           .a = p->x,
                           .b = p->dy,
                           .c = p->weight_grad,
                           .a_dtype = p->activation_dtype,
                           .b_dtype = p->activation_dtype,
                           .c_dtype = p->param_dtype,
                           .transpose_a = true};
    return args;
}

static void make_products(products_t *p, zr_nn_workspace_t workspace) {
    for (size_t i = 0; i < N_PRODUCTS; i++) {
        size_t layer = i / N_PASSES, pass = i % N_PASSES;
        product_t *product = &p->products[i];
        *product = (product_t){.layer = layers[layer].name, .pass = passes[pass]};
        product->args = pass == PASS_FORWARD          ? forward(p, layer)
                        : pass == PASS_INPUT_GRADIENT ? input_gradient(p, layer)
                                                      : weight_gradient(p, layer);
        product->workspace = workspace;
        p->works[i] = (work_t){.queue = queue_product, .context = product};
    }
}

static size_t workspace_bytes(const products_t *p) {
    size_t most = 0;
    for (size_t i = 0; i < N_PRODUCTS; i++) {
        size_t size = zr_nn_matmul_workspace_bytes(p->on->device, &p->products[i].args);
        most = size > most ? size : most;
    }
    return most;
}

static zr_status_t make_arrays(products_t *p) {
    on_device_t *on = p->on;
    size_t n_rows = p->n_rows * 4 * p->channels, n_weight = 4 * p->channels * p->channels;
    size_t param = zr_dtype_size(p->param_dtype), n_bias = 4 * p->channels;
    size_t rows_bytes = n_rows * zr_dtype_size(p->activation_dtype);
    zr_nn_workspace_t workspace = {0};
    ZR_TRY(ON_DEVICE_TAKE(on, {&p->x, rows_bytes}, {&p->dy, rows_bytes}, {&p->y, rows_bytes},
                          {&p->pre_gelu, rows_bytes}, {&p->weight, n_weight * param},
                          {&p->weight_grad, n_weight * param}, {&p->bias, n_bias * param}));
    make_products(p, workspace);
    workspace.size_bytes = workspace_bytes(p);
    ZR_TRY(ON_DEVICE_TAKE(on, {&workspace.data, workspace.size_bytes}));
    void *const rows[] = {p->x, p->dy, p->y, p->pre_gelu};
    for (size_t i = 0; i < 4; i++)
        ZR_TRY(on_device_draw(on, rows[i], p->activation_dtype, n_rows));
    make_products(p, workspace);
    ZR_TRY(on_device_draw(on, p->weight, p->param_dtype, n_weight));
    return on_device_draw(on, p->bias, p->param_dtype, n_bias);
}

zr_status_t products_make(on_device_t *on, size_t n_rows, size_t channels, zr_dtype_t dtype,
                          products_t *products) {
    *products =
        (products_t){.on = on, .n_rows = n_rows, .channels = channels, .param_dtype = dtype};
    ZR_TRY(zr_nn_activation_dtype(on->device, dtype, &products->activation_dtype));
    return make_arrays(products);
}

double products_per_s(products_t *products) {
    double operations = 0.0, seconds = 0.0;
    for (size_t i = 0; i < N_PRODUCTS; i++) {
        operations += products->works[i].cost.operations;
        seconds += bench_times_median(&products->works[i].times);
    }
    return operations / seconds;
}
