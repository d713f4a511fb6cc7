/*
 * A layer of the model, forward and backward, and the memory of a micro-batch.
 *
 * What is cheap to compute again is not kept, with or without recomputation: outputs of norms
 * and of GELU. Every tensor is given back as soon as the last kernel that reads it is queued.
 */
#include "examples/models/gpt2/internal.h"

/* ---- memory ------------------------------------------------------------------------- */

static zr_status_t allocate(gpt_t *gpt, const char *name, zr_tag_t tag, zr_lifetime_t lifetime,
                            size_t size_bytes, void **field) {
    zr_allocation_request_t request = {.size_bytes = size_bytes,
                                       .tier = ZR_TIER_DEVICE,
                                       .tag = tag,
                                       .lifetime = lifetime,
                                       .name = name,
                                       .stream = gpt->stream};
    return zr_allocate(gpt->allocator, &request, field);
}

zr_status_t gpt_take(gpt_t *gpt, const char *name, bool keep, size_t n_rows, size_t n_columns,
                     void **field) {
    size_t n_elems;
    if (__builtin_mul_overflow(n_rows, n_columns, &n_elems) || n_elems > SIZE_MAX / 16)
        return zr_fail(zr_runtime_log(gpt->runtime), ZR_ERR_ARGUMENT,
                       "activations of \"%s\": %zu x %zu elements are more than memory can hold",
                       name, n_rows, n_columns);
    return allocate(gpt, name, ZR_TAG_ACTIVATIONS,
                    keep ? ZR_LIFETIME_MICRO_BATCH : ZR_LIFETIME_UNIT,
                    n_elems * zr_dtype_size(gpt->activation_dtype), field);
}

/* fp32 whatever the activations are. */
static zr_status_t take_floats(gpt_t *gpt, const char *name, bool keep, size_t n_elems,
                               float **field) {
    return allocate(gpt, name, ZR_TAG_ACTIVATIONS,
                    keep ? ZR_LIFETIME_MICRO_BATCH : ZR_LIFETIME_UNIT, n_elems * sizeof(float),
                    (void **)field);
}

void gpt_drop(gpt_t *gpt, void **field) {
    zr_free(gpt->allocator, field, gpt->stream);
}

static void drop_floats(gpt_t *gpt, float **field) {
    void *pointer = *field;
    gpt_drop(gpt, &pointer);
    *field = NULL;
}

zr_status_t gpt_take_workspace(gpt_t *gpt, const char *name, size_t size_bytes,
                               zr_nn_workspace_t *workspace_p) {
    if (size_bytes > 0)
        ZR_TRY(allocate(gpt, name, ZR_TAG_WORKSPACE, ZR_LIFETIME_UNIT, size_bytes,
                        &gpt->batch.workspace));
    *workspace_p = (zr_nn_workspace_t){gpt->batch.workspace, size_bytes};
    return ZR_OK;
}

zr_status_t gpt_gradient(zr_param_t *param, zr_nn_gradient_t *gradient_p) {
    *gradient_p = (zr_nn_gradient_t){NULL, false};
    if (zr_param_is_frozen(param))
        return ZR_OK;
    return zr_param_grad(param, &gradient_p->data, &gradient_p->accumulate);
}

void gpt_layer_drop(gpt_t *gpt, gpt_layer_t *layer) {
    gpt_drop(gpt, &layer->x);
    gpt_drop(gpt, &layer->qkv);
    gpt_drop(gpt, &layer->attended);
    drop_floats(gpt, &layer->log_sum);
    gpt_drop(gpt, &layer->middle);
    gpt_drop(gpt, &layer->pre_gelu);
}

/* ---- norms ---------------------------------------------------------------------------- */

zr_status_t gpt_norm_forward(gpt_t *gpt, const char *name, const gpt_norm_t *norm, const void *x) {
    gpt_batch_t *batch = &gpt->batch;
    if (batch->statistics == NULL)
        ZR_TRY(take_floats(gpt, name, false, 2 * batch->rows, &batch->statistics));
    ZR_TRY(gpt_take(gpt, name, false, batch->rows, gpt->shape.channels, &batch->normed));
    zr_nn_layernorm_t args = {.n_rows = batch->rows,
                              .channels = gpt->shape.channels,
                              .x = x,
                              .weight = zr_param_data(norm->weight),
                              .bias = zr_param_data(norm->bias),
                              .y = batch->normed,
                              .mean = batch->statistics,
                              .rstd = batch->statistics + batch->rows,
                              .epsilon = GPT_EPSILON,
                              .activation_dtype = gpt->activation_dtype,
                              .param_dtype = gpt->param_dtype};
    return zr_nn_layernorm(gpt->stream, &args);
}

zr_status_t gpt_norm_backward(gpt_t *gpt, const char *name, const gpt_norm_t *norm, const void *x,
                              void *dx, bool accumulate) {
    gpt_batch_t *batch = &gpt->batch;
    zr_nn_layernorm_backward_t args = {.n_rows = batch->rows,
                                       .channels = gpt->shape.channels,
                                       .dy = batch->dnarrow,
                                       .x = x,
                                       .weight = zr_param_data(norm->weight),
                                       .mean = batch->statistics,
                                       .rstd = batch->statistics + batch->rows,
                                       .dx = dx,
                                       .accumulate_dx = accumulate,
                                       .activation_dtype = gpt->activation_dtype,
                                       .param_dtype = gpt->param_dtype};
    ZR_TRY(gpt_gradient(norm->weight, &args.dweight));
    ZR_TRY(gpt_gradient(norm->bias, &args.dbias));
    zr_nn_workspace_t workspace;
    zr_device_t *device = zr_runtime_device(gpt->runtime);
    ZR_TRY(gpt_take_workspace(gpt, name, zr_nn_layernorm_backward_workspace_bytes(device, &args),
                              &workspace));
    ZR_TRY(zr_nn_layernorm_backward(gpt->stream, &args, workspace));
    gpt_drop(gpt, &batch->workspace);
    gpt_drop(gpt, &batch->dnarrow);
    return ZR_OK;
}

/* ---- linear layers ----------------------------------------------------------------------- */

static zr_status_t multiply(gpt_t *gpt, const char *name, const zr_nn_matmul_t *args) {
    zr_nn_workspace_t workspace;
    zr_device_t *device = zr_runtime_device(gpt->runtime);
    ZR_TRY(gpt_take_workspace(gpt, name, zr_nn_matmul_workspace_bytes(device, args), &workspace));
    ZR_TRY(zr_nn_matmul(gpt->stream, args, workspace));
    gpt_drop(gpt, &gpt->batch.workspace);
    return ZR_OK;
}

/* A product with the linear layer's shapes filled in: y = x weight + bias. */
static zr_nn_matmul_t forward_product(gpt_t *gpt, const gpt_linear_t *linear, const void *x,
                                      void *y) {
    return (zr_nn_matmul_t){.m = gpt->batch.rows,
                            .least_m = gpt->options.least_tokens,
                            .n = linear->n_out,
                            .k = linear->n_in,
                            .a = x,
                            .b = zr_param_data(linear->weight),
                            .c = y,
                            .a_dtype = gpt->activation_dtype,
                            .b_dtype = gpt->param_dtype,
                            .c_dtype = gpt->activation_dtype,
                            .bias = zr_param_data(linear->bias),
                            .bias_dtype = gpt->param_dtype};
}

/* dx = dy weight^T */
static zr_nn_matmul_t input_product(gpt_t *gpt, const gpt_linear_t *linear, const void *dy,
                                    void *dx) {
    return (zr_nn_matmul_t){.m = gpt->batch.rows,
                            .least_m = gpt->options.least_tokens,
                            .n = linear->n_in,
                            .k = linear->n_out,
                            .a = dy,
                            .b = zr_param_data(linear->weight),
                            .transpose_b = true,
                            .c = dx,
                            .a_dtype = gpt->activation_dtype,
                            .b_dtype = gpt->param_dtype,
                            .c_dtype = gpt->activation_dtype};
}

/* The gradients of weight and bias: x^T dy, and the sum of dy. */
static zr_status_t train_linear(gpt_t *gpt, const char *name, const gpt_linear_t *linear,
                                const void *x, const void *dy) {
    zr_nn_gradient_t dweight;
    ZR_TRY(gpt_gradient(linear->weight, &dweight));
    if (dweight.data != NULL) {
        zr_nn_matmul_t product = {.m = linear->n_in,
                                  .n = linear->n_out,
                                  .k = gpt->batch.rows,
                                  .a = x,
                                  .transpose_a = true,
                                  .b = dy,
                                  .c = dweight.data,
                                  .a_dtype = gpt->activation_dtype,
                                  .b_dtype = gpt->activation_dtype,
                                  .c_dtype = gpt->param_dtype,
                                  .accumulate = dweight.accumulate};
        ZR_TRY(multiply(gpt, name, &product));
    }
    zr_nn_bias_grad_t sum = {.n_rows = gpt->batch.rows,
                             .n_columns = linear->n_out,
                             .dy = dy,
                             .activation_dtype = gpt->activation_dtype,
                             .param_dtype = gpt->param_dtype};
    ZR_TRY(gpt_gradient(linear->bias, &sum.dbias));
    if (sum.dbias.data == NULL)
        return ZR_OK;
    zr_nn_workspace_t workspace;
    zr_device_t *device = zr_runtime_device(gpt->runtime);
    ZR_TRY(
        gpt_take_workspace(gpt, name, zr_nn_bias_grad_workspace_bytes(device, &sum), &workspace));
    ZR_TRY(zr_nn_bias_grad(gpt->stream, &sum, workspace));
    gpt_drop(gpt, &gpt->batch.workspace);
    return ZR_OK;
}

/* ---- forward -------------------------------------------------------------------------------- */

static zr_status_t attend(gpt_t *gpt, gpt_layer_t *layer, const char *name) {
    const gpt_batch_t *batch = &gpt->batch;
    zr_nn_attention_t args = {.batch = batch->b,
                              .seq = batch->t,
                              .heads = gpt->shape.heads,
                              .head_size = gpt->shape.channels / gpt->shape.heads,
                              .qkv = layer->qkv,
                              .out = layer->attended,
                              .log_sum = layer->log_sum,
                              .activation_dtype = gpt->activation_dtype};
    zr_nn_workspace_t workspace;
    zr_device_t *device = zr_runtime_device(gpt->runtime);
    ZR_TRY(
        gpt_take_workspace(gpt, name, zr_nn_attention_workspace_bytes(device, &args), &workspace));
    ZR_TRY(zr_nn_attention(gpt->stream, &args, workspace));
    gpt_drop(gpt, &gpt->batch.workspace);
    return ZR_OK;
}

/* middle = x + attention(norm(x)) */
static zr_status_t attention_forward(gpt_t *gpt, gpt_layer_t *layer, bool keep) {
    gpt_batch_t *batch = &gpt->batch;
    const char *name = zr_unit_name(layer->unit);
    size_t channels = gpt->shape.channels;
    ZR_TRY(gpt_norm_forward(gpt, name, &layer->ln_1, layer->x));
    ZR_TRY(gpt_take(gpt, name, keep, batch->rows, 3 * channels, &layer->qkv));
    zr_nn_matmul_t product = forward_product(gpt, &layer->attn_in, batch->normed, layer->qkv);
    ZR_TRY(multiply(gpt, name, &product));
    gpt_drop(gpt, &batch->normed);

    ZR_TRY(gpt_take(gpt, name, keep, batch->rows, channels, &layer->attended));
    ZR_TRY(take_floats(gpt, name, keep, batch->rows * gpt->shape.heads, &layer->log_sum));
    ZR_TRY(attend(gpt, layer, name));
    if (!keep) {
        gpt_drop(gpt, &layer->qkv);
        drop_floats(gpt, &layer->log_sum);
    }
    ZR_TRY(gpt_take(gpt, name, keep, batch->rows, channels, &layer->middle));
    product = forward_product(gpt, &layer->attn_out, layer->attended, layer->middle);
    product.addend = layer->x;
    ZR_TRY(multiply(gpt, name, &product));
    if (!keep)
        gpt_drop(gpt, &layer->attended);
    return ZR_OK;
}

/* out = middle + mlp(norm(middle)) */
static zr_status_t mlp_forward(gpt_t *gpt, gpt_layer_t *layer, bool keep, void **out_p) {
    gpt_batch_t *batch = &gpt->batch;
    const char *name = zr_unit_name(layer->unit);
    ZR_TRY(gpt_norm_forward(gpt, name, &layer->ln_2, layer->middle));
    ZR_TRY(gpt_take(gpt, name, false, batch->rows, layer->mlp_in.n_out, &batch->gelu));
    if (keep)
        ZR_TRY(gpt_take(gpt, name, true, batch->rows, layer->mlp_in.n_out, &layer->pre_gelu));
    zr_nn_matmul_t product = forward_product(gpt, &layer->mlp_in, batch->normed, batch->gelu);
    product.epilogue = ZR_NN_EPILOGUE_GELU;
    product.pre_gelu = layer->pre_gelu;
    ZR_TRY(multiply(gpt, name, &product));
    gpt_drop(gpt, &batch->normed);
    if (out_p != NULL) {
        ZR_TRY(gpt_take(gpt, name, true, batch->rows, gpt->shape.channels, out_p));
        product = forward_product(gpt, &layer->mlp_out, batch->gelu, *out_p);
        product.addend = layer->middle;
        ZR_TRY(multiply(gpt, name, &product));
        gpt_drop(gpt, &batch->gelu); /* else backward, which follows, uses it */
    }
    if (!keep)
        gpt_drop(gpt, &layer->middle);
    return ZR_OK;
}

zr_status_t gpt_layer_forward(gpt_t *gpt, gpt_layer_t *layer, bool keep, void **out_p) {
    ZR_TRY(attention_forward(gpt, layer, keep));
    ZR_TRY(mlp_forward(gpt, layer, keep, out_p));
    drop_floats(gpt, &gpt->batch.statistics);
    return ZR_OK;
}

/* ---- backward ------------------------------------------------------------------------------- */

static zr_status_t mlp_backward(gpt_t *gpt, gpt_layer_t *layer) {
    gpt_batch_t *batch = &gpt->batch;
    const char *name = zr_unit_name(layer->unit);
    size_t wide = layer->mlp_in.n_out;
    if (batch->gelu == NULL) {
        ZR_TRY(gpt_take(gpt, name, false, batch->rows, wide, &batch->gelu));
        ZR_TRY(zr_nn_gelu(gpt->stream, batch->gelu, layer->pre_gelu, gpt->activation_dtype,
                          batch->rows * wide));
    }
    ZR_TRY(train_linear(gpt, name, &layer->mlp_out, batch->gelu, batch->residual));
    gpt_drop(gpt, &batch->gelu);

    ZR_TRY(gpt_take(gpt, name, false, batch->rows, wide, &batch->dwide));
    zr_nn_matmul_t product = input_product(gpt, &layer->mlp_out, batch->residual, batch->dwide);
    product.epilogue = ZR_NN_EPILOGUE_GELU_BACKWARD;
    product.pre_gelu = layer->pre_gelu;
    ZR_TRY(multiply(gpt, name, &product));
    gpt_drop(gpt, &layer->pre_gelu);

    ZR_TRY(gpt_norm_forward(gpt, name, &layer->ln_2, layer->middle));
    ZR_TRY(train_linear(gpt, name, &layer->mlp_in, batch->normed, batch->dwide));
    gpt_drop(gpt, &batch->normed);
    ZR_TRY(gpt_take(gpt, name, false, batch->rows, gpt->shape.channels, &batch->dnarrow));
    product = input_product(gpt, &layer->mlp_in, batch->dwide, batch->dnarrow);
    ZR_TRY(multiply(gpt, name, &product));
    gpt_drop(gpt, &batch->dwide);
    ZR_TRY(gpt_norm_backward(gpt, name, &layer->ln_2, layer->middle, batch->residual, true));
    gpt_drop(gpt, &layer->middle);
    return ZR_OK;
}

static zr_status_t attend_backward(gpt_t *gpt, gpt_layer_t *layer, const char *name) {
    const gpt_batch_t *batch = &gpt->batch;
    zr_nn_attention_backward_t args = {.batch = batch->b,
                                       .seq = batch->t,
                                       .heads = gpt->shape.heads,
                                       .head_size = gpt->shape.channels / gpt->shape.heads,
                                       .qkv = layer->qkv,
                                       .out = layer->attended,
                                       .log_sum = layer->log_sum,
                                       .dout = batch->dnarrow,
                                       .dqkv = batch->dwide,
                                       .activation_dtype = gpt->activation_dtype};
    zr_nn_workspace_t workspace;
    zr_device_t *device = zr_runtime_device(gpt->runtime);
    ZR_TRY(gpt_take_workspace(gpt, name, zr_nn_attention_backward_workspace_bytes(device, &args),
                              &workspace));
    ZR_TRY(zr_nn_attention_backward(gpt->stream, &args, workspace));
    gpt_drop(gpt, &gpt->batch.workspace);
    return ZR_OK;
}

static zr_status_t attention_backward(gpt_t *gpt, gpt_layer_t *layer) {
    gpt_batch_t *batch = &gpt->batch;
    const char *name = zr_unit_name(layer->unit);
    size_t channels = gpt->shape.channels;
    ZR_TRY(train_linear(gpt, name, &layer->attn_out, layer->attended, batch->residual));
    ZR_TRY(gpt_take(gpt, name, false, batch->rows, channels, &batch->dnarrow));
    zr_nn_matmul_t product = input_product(gpt, &layer->attn_out, batch->residual, batch->dnarrow);
    ZR_TRY(multiply(gpt, name, &product));

    ZR_TRY(gpt_take(gpt, name, false, batch->rows, 3 * channels, &batch->dwide));
    ZR_TRY(attend_backward(gpt, layer, name));
    gpt_drop(gpt, &batch->dnarrow);
    gpt_drop(gpt, &layer->attended);
    gpt_drop(gpt, &layer->qkv);
    drop_floats(gpt, &layer->log_sum);

    ZR_TRY(gpt_norm_forward(gpt, name, &layer->ln_1, layer->x));
    ZR_TRY(train_linear(gpt, name, &layer->attn_in, batch->normed, batch->dwide));
    gpt_drop(gpt, &batch->normed);
    ZR_TRY(gpt_take(gpt, name, false, batch->rows, channels, &batch->dnarrow));
    product = input_product(gpt, &layer->attn_in, batch->dwide, batch->dnarrow);
    ZR_TRY(multiply(gpt, name, &product));
    gpt_drop(gpt, &batch->dwide);
    ZR_TRY(gpt_norm_backward(gpt, name, &layer->ln_1, layer->x, batch->residual, true));
    gpt_drop(gpt, &layer->x);
    return ZR_OK;
}

zr_status_t gpt_layer_backward(gpt_t *gpt, gpt_layer_t *layer) {
    if (layer->qkv == NULL) /* only x was kept */
        ZR_TRY(gpt_layer_forward(gpt, layer, true, NULL));
    ZR_TRY(mlp_backward(gpt, layer));
    ZR_TRY(attention_backward(gpt, layer));
    drop_floats(gpt, &gpt->batch.statistics);
    return ZR_OK;
}
