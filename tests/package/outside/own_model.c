/* See own_model.h. */
#include "own_model.h"

#include <stdio.h>
#include <string.h>

enum { W = OWN_WIDTH };

/* What all kernels here are given. */
typedef struct own_args {
    size_t rows;
    const float *x, *w, *b, *inputs, *targets;
    float *y, *h, *gradient, *dw, *db;
    double *loss;
    bool adds_w, adds_b;
} own_args_t;

static zr_status_t run(zr_visit_t *visit, const char *name, void (*host)(const void *),
                       own_args_t *args) {
    zr_own_kernel_t kernel = {.name = name, .host = host};
    args->rows = visit->batch->rows;
    double n_elems = (double)(args->rows * W);
    zr_cost_t cost = {.operations = 4 * n_elems, .bytes = 12 * n_elems};
    return zr_kernel_own(visit->stream, &kernel, args, sizeof(*args), cost);
}

static zr_status_t take(zr_visit_t *visit, zr_memory_t memory, void **pointer_p) {
    return zr_visit_take(visit, memory, visit->batch->rows * W * sizeof(float), pointer_p);
}

static zr_status_t gradient_of(zr_param_t *param, float **gradient_p, bool *adds_p) {
    void *gradient = NULL;
    if (!zr_param_is_frozen(param))
        ZR_TRY(zr_param_grad(param, &gradient, adds_p));
    *gradient_p = gradient;
    return ZR_OK;
}

/* sum[c] (+)= the sum over rows of a[r][c] b[r][c], in order. */
static void sum_rows(float *sum, bool adds, const float *a, const float *b, size_t rows) {
    for (size_t c = 0; sum != NULL && c < W; c++) {
        float total = 0;
        for (size_t r = 0; r < rows; r++)
            total += a[r * W + c] * (b != NULL ? b[r * W + c] : 1.0f);
        sum[c] = adds ? sum[c] + total : total;
    }
}

static zr_status_t add_vector(zr_block_t *block, const char *name, zr_param_t **param_p) {
    zr_block_param_t desc = {
        .name = name, .n_dims = 1, .dims = {W}, .init = ZR_INIT_NORMAL, .deviation = 0.5};
    return zr_block_add_param(block, &desc, param_p);
}

/* ---- in -------------------------------------------------------------------------------------- */

typedef struct in_params {
    zr_param_t *w, *b;
} in_params_t;

static void in_forward_host(const void *context) {
    const own_args_t *a = context;
    for (size_t i = 0; i < a->rows * W; i++)
        a->y[i] = a->inputs[i / W] * a->w[i % W] + a->b[i % W];
}

static void in_backward_host(const void *context) {
    const own_args_t *a = context;
    sum_rows(a->db, a->adds_b, a->gradient, NULL, a->rows);
    for (size_t i = 0; i < a->rows * W; i++)
        a->gradient[i] *= a->inputs[i / W];
    sum_rows(a->dw, a->adds_w, a->gradient, NULL, a->rows);
}

static zr_status_t in_declare(zr_block_t *block, const void *shape, void *self) {
    in_params_t *in = self;
    (void)shape;
    ZR_TRY(add_vector(block, "in.w", &in->w));
    return add_vector(block, "in.b", &in->b);
}

static zr_status_t in_forward(zr_visit_t *visit) {
    const in_params_t *in = visit->self;
    ZR_TRY(take(visit, ZR_MEMORY_KEPT, &visit->y));
    own_args_t args = {.inputs = visit->batch->inputs[0],
                       .w = zr_param_data(in->w),
                       .b = zr_param_data(in->b),
                       .y = visit->y};
    return run(visit, "in", in_forward_host, &args);
}

static zr_status_t in_backward(zr_visit_t *visit) {
    const in_params_t *in = visit->self;
    own_args_t args = {.inputs = visit->batch->inputs[0], .gradient = visit->gradient};
    ZR_TRY(gradient_of(in->w, &args.dw, &args.adds_w));
    ZR_TRY(gradient_of(in->b, &args.db, &args.adds_b));
    return run(visit, "in backward", in_backward_host, &args);
}

static const zr_block_type_t in_block = {.name = "in",
                                         .declare = in_declare,
                                         .forward = in_forward,
                                         .backward = in_backward,
                                         .self_bytes = sizeof(in_params_t),
                                         .reads_no_params = true};

/* ---- mid ------------------------------------------------------------------------------------- */

typedef struct mid_tensors {
    void *h;
} mid_tensors_t;

static void mid_forward_host(const void *context) {
    const own_args_t *a = context;
    for (size_t i = 0; i < a->rows * W; i++) {
        a->h[i] = a->x[i] * a->w[i % W];
        if (a->y != NULL)
            a->y[i] = a->x[i] + a->h[i] * a->h[i];
    }
}

/* h becomes its own gradient. */
static void mid_backward_host(const void *context) {
    const own_args_t *a = context;
    for (size_t i = 0; i < a->rows * W; i++) {
        a->h[i] = 2.0f * a->h[i] * a->gradient[i];
        a->gradient[i] += a->h[i] * a->w[i % W];
    }
    sum_rows(a->dw, a->adds_w, a->h, a->x, a->rows);
}

static zr_status_t mid_declare(zr_block_t *block, const void *shape, void *self) {
    const own_options_t *options = shape;
    zr_param_t *spare;
    char name[32];
    snprintf(name, sizeof(name), "mid.%zu.spare", zr_block_index(block) - 1);
    zr_block_param_t desc = {.name = name, .n_dims = 1, .dims = {options->spare_elems}};
    if (options->spare_elems != 0)
        ZR_TRY(zr_block_add_param(block, &desc, &spare));
    snprintf(name, sizeof(name), "mid.%zu.w", zr_block_index(block) - 1);
    return add_vector(block, name, self);
}

static zr_status_t mid_forward(zr_visit_t *visit) {
    mid_tensors_t *tensors = visit->tensors;
    ZR_TRY(take(visit, visit->keeps ? ZR_MEMORY_KEPT : ZR_MEMORY_TEMPORARY, &tensors->h));
    if (visit->is_wanted)
        ZR_TRY(take(visit, ZR_MEMORY_KEPT, &visit->y));
    own_args_t args = {.x = visit->x,
                       .w = zr_param_data(*(zr_param_t **)visit->self),
                       .h = tensors->h,
                       .y = visit->y};
    ZR_TRY(run(visit, "mid", mid_forward_host, &args));
    if (!visit->keeps)
        zr_visit_drop(visit, &tensors->h);
    return ZR_OK;
}

static zr_status_t mid_backward(zr_visit_t *visit) {
    mid_tensors_t *tensors = visit->tensors;
    zr_param_t *w = *(zr_param_t **)visit->self;
    own_args_t args = {
        .x = visit->x, .w = zr_param_data(w), .h = tensors->h, .gradient = visit->gradient};
    ZR_TRY(gradient_of(w, &args.dw, &args.adds_w));
    ZR_TRY(run(visit, "mid backward", mid_backward_host, &args));
    zr_visit_drop(visit, &tensors->h);
    return ZR_OK;
}

static const zr_block_type_t mid_block = {.name = "mid",
                                          .declare = mid_declare,
                                          .forward = mid_forward,
                                          .backward = mid_backward,
                                          .self_bytes = sizeof(zr_param_t *),
                                          .tensors_bytes = sizeof(mid_tensors_t),
                                          .recomputes = true};

/* ---- loss ------------------------------------------------------------------------------------ */

static void loss_host(const void *context) {
    const own_args_t *a = context;
    double sum = 0;
    for (size_t i = 0; i < a->rows * W; i++) {
        double distance = (double)a->x[i] - a->targets[i / W];
        sum += 0.5 * distance * distance;
        if (a->gradient != NULL)
            a->gradient[i] = (float)(distance / (double)a->rows);
    }
    *a->loss += sum / (double)a->rows;
}

static zr_status_t loss_forward(zr_visit_t *visit) {
    own_args_t args = {.x = visit->x, .targets = visit->batch->inputs[1], .loss = visit->loss};
    return run(visit, "loss", loss_host, &args);
}

static zr_status_t loss_backward(zr_visit_t *visit) {
    ZR_TRY(take(visit, ZR_MEMORY_KEPT, &visit->gradient));
    own_args_t args = {.x = visit->x,
                       .targets = visit->batch->inputs[1],
                       .loss = visit->loss,
                       .gradient = visit->gradient};
    return run(visit, "loss backward", loss_host, &args);
}

static const zr_block_type_t loss_block = {
    .name = "loss", .forward = loss_forward, .backward = loss_backward};

/* ---- the model ------------------------------------------------------------------------------- */

static zr_status_t add_blocks(zr_model_t *model, size_t n_mids) {
    ZR_TRY(zr_model_add(model, &in_block, "in", NULL));
    for (size_t i = 0; i < n_mids; i++) {
        char name[32];
        snprintf(name, sizeof(name), "mid.%zu", i);
        ZR_TRY(zr_model_add(model, &mid_block, name, NULL));
    }
    return zr_model_add(model, &loss_block, "loss", NULL);
}

zr_status_t own_model_create(zr_runtime_t *runtime, const own_options_t *options,
                             zr_model_t **model_p) {
    zr_model_options_t model_options = {
        .shape = options,
        .shape_bytes = sizeof(*options),
        .inputs = {{"input", sizeof(float), 0}, {"target", sizeof(float), 0}},
        .n_inputs = 2,
        .seed = 11,
        .freeze = options->freeze,
        .activations = {.recompute = options->recompute,
                        .device = options->activations,
                        .most_rows = options->most_rows},
        .x_row_bytes = W * sizeof(float)};
    ZR_TRY(zr_model_create(runtime, &model_options, model_p));
    return add_blocks(*model_p, options->n_mids);
}

zr_param_t *own_model_param(zr_model_t *model, size_t index) {
    void *self = zr_block_self(zr_model_block(model, index < 2 ? 0 : index - 1));
    const in_params_t *in = self;
    if (index < 2)
        return index == 0 ? in->w : in->b;
    return *(zr_param_t **)self;
}

/* Each element of a row is a function of one number, whose derivative is carried along forward. */
double own_model_oracle(size_t n_mids, const double *params, const float *inputs,
                        const float *targets, size_t rows, double *gradients) {
    double loss = 0;
    for (size_t r = 0; r < rows; r++) {
        for (size_t c = 0; c < W; c++) {
            double value = inputs[r] * params[c] + params[W + c];
            double slope[16] = {inputs[r], 1.0}; /* of value, by each parameter */
            for (size_t i = 0; i < n_mids; i++) {
                double w = params[(2 + i) * W + c], by_value = 1 + 2 * w * w * value;
                for (size_t j = 0; j < 2 + i; j++)
                    slope[j] *= by_value;
                slope[2 + i] = 2 * w * value * value;
                value += w * w * value * value;
            }
            double distance = value - targets[r];
            loss += 0.5 * distance * distance / (double)rows;
            for (size_t j = 0; j < 2 + n_mids; j++)
                gradients[j * W + c] += distance * slope[j] / (double)rows;
        }
    }
    return loss;
}
