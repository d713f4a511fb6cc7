/*
 * A layer of the model, forward and backward.
 *
 * What is cheap to compute again is not kept, with or without recomputation: outputs of norms
 * and of GELU.
 */
#include <math.h>

#include "examples/models/gpt2/internal.h"

typedef struct layer_tensors {
    /* What backward needs of forward; rows are the tokens of the micro-batch. */
    void *qkv;      /* [rows, 3 channels] */
    void *attended; /* [rows, channels] */
    void *log_sum;  /* fp32 [b, heads, t] */
    void *middle;   /* [rows, channels] x after attention was added */
    void *pre_gelu; /* [rows, 4 channels] */
    /* Within a visit. */
    void *statistics; /* fp32 [2, rows] mean and rstd of the norm at hand */
    void *normed;     /* [rows, channels] output of a norm */
    void *gelu;       /* [rows, 4 channels] */
    void *dwide;      /* [rows, 4 or 3 channels] gradient of pre_gelu or qkv */
    void *dnarrow;    /* [rows, channels] gradient of a norm's output, or of attended */
    void *workspace;
} layer_tensors_t;

static const part_product_t plain = {0};

/* ---- parameters ------------------------------------------------------------------------------ */

/* A linear layer: its weight is of the kind that is named, its bias of the next one. */
static zr_status_t add_linear(zr_block_t *block, const gpt_model_t *model, size_t layer,
                              gpt_kind_t weight, double deviation, part_linear_t *linear) {
    gpt_tensor_t tensor = gpt_tensor(&model->shape, weight, layer);
    linear->n_in = tensor.dims[0];
    linear->n_out = tensor.dims[1];
    ZR_TRY(gpt_add_param(block, model, weight, layer, ZR_INIT_NORMAL, deviation, &linear->weight));
    return gpt_add_param(block, model, (gpt_kind_t)(weight + 1), layer, ZR_INIT_ZERO, 0.0,
                         &linear->bias);
}

static zr_status_t declare(zr_block_t *block, const void *shape, void *self) {
    const gpt_model_t *model = shape;
    gpt_layer_t *layer = self;
    size_t index = zr_block_index(block) - 1;
    double into_residual = 0.02 / sqrt(2.0 * (double)model->shape.n_layers);
    ZR_TRY(gpt_add_norm(block, model, GPT_LN_1_WEIGHT, index, &layer->ln_1));
    ZR_TRY(add_linear(block, model, index, GPT_ATTN_IN_WEIGHT, 0.02, &layer->attn_in));
    ZR_TRY(add_linear(block, model, index, GPT_ATTN_OUT_WEIGHT, into_residual, &layer->attn_out));
    ZR_TRY(gpt_add_norm(block, model, GPT_LN_2_WEIGHT, index, &layer->ln_2));
    ZR_TRY(add_linear(block, model, index, GPT_MLP_IN_WEIGHT, 0.02, &layer->mlp_in));
    return add_linear(block, model, index, GPT_MLP_OUT_WEIGHT, into_residual, &layer->mlp_out);
}

/* ---- forward --------------------------------------------------------------------------------- */

static zr_memory_t memory_of_forward(const zr_visit_t *visit) {
    return visit->keeps ? ZR_MEMORY_KEPT : ZR_MEMORY_TEMPORARY;
}

static zr_status_t attend(zr_visit_t *visit, const gpt_model_t *model, layer_tensors_t *tensors) {
    zr_nn_attention_t args = {.batch = visit->batch->n_sequences,
                              .seq = visit->batch->seq,
                              .heads = model->shape.heads,
                              .head_size = model->shape.channels / model->shape.heads,
                              .qkv = tensors->qkv,
                              .out = tensors->attended,
                              .log_sum = tensors->log_sum,
                              .activation_dtype = model->types.activation_dtype};
    zr_nn_workspace_t workspace;
    ZR_TRY(part_take_workspace(visit, zr_nn_attention_workspace_bytes(visit->device, &args),
                               &tensors->workspace, &workspace));
    ZR_TRY(zr_nn_attention(visit->stream, &args, workspace));
    zr_visit_drop(visit, &tensors->workspace);
    return ZR_OK;
}

/* middle = x + attention(norm(x)) */
static zr_status_t attention_forward(zr_visit_t *visit) {
    const gpt_model_t *model = visit->shape;
    const gpt_layer_t *layer = visit->self;
    layer_tensors_t *tensors = visit->tensors;
    zr_memory_t memory = memory_of_forward(visit);
    size_t channels = model->shape.channels;
    ZR_TRY(part_norm_forward(visit, &model->types, &layer->ln_1, visit->x, &tensors->statistics,
                             &tensors->normed));
    ZR_TRY(part_take(visit, &model->types, memory, 3 * channels, &tensors->qkv));
    ZR_TRY(part_linear_forward(visit, &model->types, &layer->attn_in, tensors->normed, &plain,
                               &tensors->workspace, tensors->qkv));
    zr_visit_drop(visit, &tensors->normed);

    ZR_TRY(part_take(visit, &model->types, memory, channels, &tensors->attended));
    ZR_TRY(part_take_floats(visit, memory, visit->batch->rows * model->shape.heads,
                            &tensors->log_sum));
    ZR_TRY(attend(visit, model, tensors));
    if (!visit->keeps) {
        zr_visit_drop(visit, &tensors->qkv);
        zr_visit_drop(visit, &tensors->log_sum);
    }
    ZR_TRY(part_take(visit, &model->types, memory, channels, &tensors->middle));
    part_product_t residual = {.addend = visit->x};
    ZR_TRY(part_linear_forward(visit, &model->types, &layer->attn_out, tensors->attended, &residual,
                               &tensors->workspace, tensors->middle));
    if (!visit->keeps)
        zr_visit_drop(visit, &tensors->attended);
    return ZR_OK;
}

/* y = middle + mlp(norm(middle)) */
static zr_status_t mlp_forward(zr_visit_t *visit) {
    const gpt_model_t *model = visit->shape;
    const gpt_layer_t *layer = visit->self;
    layer_tensors_t *tensors = visit->tensors;
    const part_types_t *types = &model->types;
    size_t wide = layer->mlp_in.n_out;
    ZR_TRY(part_norm_forward(visit, types, &layer->ln_2, tensors->middle, &tensors->statistics,
                             &tensors->normed));
    ZR_TRY(part_take(visit, types, ZR_MEMORY_TEMPORARY, wide, &tensors->gelu));
    if (visit->keeps)
        ZR_TRY(part_take(visit, types, ZR_MEMORY_KEPT, wide, &tensors->pre_gelu));
    part_product_t gelu = {.epilogue = ZR_NN_EPILOGUE_GELU, .pre_gelu = tensors->pre_gelu};
    ZR_TRY(part_linear_forward(visit, types, &layer->mlp_in, tensors->normed, &gelu,
                               &tensors->workspace, tensors->gelu));
    zr_visit_drop(visit, &tensors->normed);
    if (visit->is_wanted) {
        part_product_t residual = {.addend = tensors->middle};
        ZR_TRY(part_take(visit, types, ZR_MEMORY_KEPT, model->shape.channels, &visit->y));
        ZR_TRY(part_linear_forward(visit, types, &layer->mlp_out, tensors->gelu, &residual,
                                   &tensors->workspace, visit->y));
        zr_visit_drop(visit, &tensors->gelu); /* else backward, which follows, uses it */
    }
    if (!visit->keeps)
        zr_visit_drop(visit, &tensors->middle);
    return ZR_OK;
}

static zr_status_t forward(zr_visit_t *visit) {
    layer_tensors_t *tensors = visit->tensors;
    ZR_TRY(attention_forward(visit));
    ZR_TRY(mlp_forward(visit));
    zr_visit_drop(visit, &tensors->statistics);
    return ZR_OK;
}

/* ---- backward -------------------------------------------------------------------------------- */

static zr_status_t mlp_backward(zr_visit_t *visit) {
    const gpt_model_t *model = visit->shape;
    const gpt_layer_t *layer = visit->self;
    layer_tensors_t *tensors = visit->tensors;
    const part_types_t *types = &model->types;
    void **workspace = &tensors->workspace;
    size_t wide = layer->mlp_in.n_out;
    if (tensors->gelu == NULL) {
        ZR_TRY(part_take(visit, types, ZR_MEMORY_TEMPORARY, wide, &tensors->gelu));
        ZR_TRY(zr_nn_gelu(visit->stream, tensors->gelu, tensors->pre_gelu, types->activation_dtype,
                          visit->batch->rows * wide));
    }
    ZR_TRY(part_linear_train(visit, types, &layer->mlp_out, tensors->gelu, visit->gradient,
                             workspace));
    zr_visit_drop(visit, &tensors->gelu);

    ZR_TRY(part_take(visit, types, ZR_MEMORY_TEMPORARY, wide, &tensors->dwide));
    part_product_t gelu = {.epilogue = ZR_NN_EPILOGUE_GELU_BACKWARD, .pre_gelu = tensors->pre_gelu};
    ZR_TRY(part_linear_input_gradient(visit, types, &layer->mlp_out, visit->gradient, &gelu,
                                      workspace, tensors->dwide));
    zr_visit_drop(visit, &tensors->pre_gelu);

    ZR_TRY(part_norm_forward(visit, types, &layer->ln_2, tensors->middle, &tensors->statistics,
                             &tensors->normed));
    ZR_TRY(part_linear_train(visit, types, &layer->mlp_in, tensors->normed, tensors->dwide,
                             workspace));
    zr_visit_drop(visit, &tensors->normed);
    ZR_TRY(part_take(visit, types, ZR_MEMORY_TEMPORARY, model->shape.channels, &tensors->dnarrow));
    ZR_TRY(part_linear_input_gradient(visit, types, &layer->mlp_in, tensors->dwide, &plain,
                                      workspace, tensors->dnarrow));
    zr_visit_drop(visit, &tensors->dwide);
    ZR_TRY(part_norm_backward(visit, types, &layer->ln_2, tensors->middle, tensors->statistics,
                              &tensors->dnarrow, workspace, visit->gradient, true));
    zr_visit_drop(visit, &tensors->middle);
    return ZR_OK;
}

static zr_status_t attend_backward(zr_visit_t *visit, const gpt_model_t *model,
                                   layer_tensors_t *tensors) {
    zr_nn_attention_backward_t args = {.batch = visit->batch->n_sequences,
                                       .seq = visit->batch->seq,
                                       .heads = model->shape.heads,
                                       .head_size = model->shape.channels / model->shape.heads,
                                       .qkv = tensors->qkv,
                                       .out = tensors->attended,
                                       .log_sum = tensors->log_sum,
                                       .dout = tensors->dnarrow,
                                       .dqkv = tensors->dwide,
                                       .activation_dtype = model->types.activation_dtype};
    zr_nn_workspace_t workspace;
    ZR_TRY(part_take_workspace(visit,
                               zr_nn_attention_backward_workspace_bytes(visit->device, &args),
                               &tensors->workspace, &workspace));
    ZR_TRY(zr_nn_attention_backward(visit->stream, &args, workspace));
    zr_visit_drop(visit, &tensors->workspace);
    return ZR_OK;
}

static zr_status_t attention_backward(zr_visit_t *visit) {
    const gpt_model_t *model = visit->shape;
    const gpt_layer_t *layer = visit->self;
    layer_tensors_t *tensors = visit->tensors;
    const part_types_t *types = &model->types;
    void **workspace = &tensors->workspace;
    size_t channels = model->shape.channels;
    ZR_TRY(part_linear_train(visit, types, &layer->attn_out, tensors->attended, visit->gradient,
                             workspace));
    ZR_TRY(part_take(visit, types, ZR_MEMORY_TEMPORARY, channels, &tensors->dnarrow));
    ZR_TRY(part_linear_input_gradient(visit, types, &layer->attn_out, visit->gradient, &plain,
                                      workspace, tensors->dnarrow));

    ZR_TRY(part_take(visit, types, ZR_MEMORY_TEMPORARY, 3 * channels, &tensors->dwide));
    ZR_TRY(attend_backward(visit, model, tensors));
    zr_visit_drop(visit, &tensors->dnarrow);
    zr_visit_drop(visit, &tensors->attended);
    zr_visit_drop(visit, &tensors->qkv);
    zr_visit_drop(visit, &tensors->log_sum);

    ZR_TRY(part_norm_forward(visit, types, &layer->ln_1, visit->x, &tensors->statistics,
                             &tensors->normed));
    ZR_TRY(part_linear_train(visit, types, &layer->attn_in, tensors->normed, tensors->dwide,
                             workspace));
    zr_visit_drop(visit, &tensors->normed);
    ZR_TRY(part_take(visit, types, ZR_MEMORY_TEMPORARY, channels, &tensors->dnarrow));
    ZR_TRY(part_linear_input_gradient(visit, types, &layer->attn_in, tensors->dwide, &plain,
                                      workspace, tensors->dnarrow));
    zr_visit_drop(visit, &tensors->dwide);
    return part_norm_backward(visit, types, &layer->ln_1, visit->x, tensors->statistics,
                              &tensors->dnarrow, workspace, visit->gradient, true);
}

/* The gradient of the residual stream is that of y, and becomes that of x where it is. */
static zr_status_t backward(zr_visit_t *visit) {
    layer_tensors_t *tensors = visit->tensors;
    ZR_TRY(mlp_backward(visit));
    ZR_TRY(attention_backward(visit));
    zr_visit_drop(visit, &tensors->statistics);
    return ZR_OK;
}

const zr_block_type_t gpt_layer_block = {.name = "layer",
                                         .declare = declare,
                                         .forward = forward,
                                         .backward = backward,
                                         .self_bytes = sizeof(gpt_layer_t),
                                         .tensors_bytes = sizeof(layer_tensors_t),
                                         .recomputes = true};
