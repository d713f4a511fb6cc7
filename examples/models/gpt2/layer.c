/*
 * A layer of the model, forward and backward.
 *
 * What is cheap to compute again is kept with ZR_RECOMPUTE_NEVER alone: outputs of norms and of
 * GELU.
 */
#include <math.h>
#include <string.h>

#include "models/gpt2/internal.h"

typedef struct layer_tensors {
    /* What backward needs of forward; rows are the tokens of the micro-batch. */
    void *qkv;      /* [rows, 3 channels] */
    void *attended; /* [rows, channels] */
    void *log_sum;  /* fp32 [b, heads, t] */
    void *middle;   /* [rows, channels] x after attention was added */
    void *pre_gelu; /* [rows, 4 channels] */
    zr_part_normed_t of_attention, of_mlp;
    /* Within a visit. */
    void *statistics; /* fp32 [2, rows] mean and rstd of the norm at hand */
    void *normed;     /* [rows, channels] output of a norm */
    void *gelu;       /* [rows, 4 channels] */
    void *dwide;      /* [rows, 4 or 3 channels] gradient of pre_gelu or qkv */
    void *dnarrow;    /* [rows, channels] gradient of a norm's output, or of attended */
    zr_part_scratch_t scratch;
} layer_tensors_t;

static const zr_part_product_t plain = {0};

/* ---- parameters ------------------------------------------------------------------------------ */

/* A linear layer: its weight is of the kind that is named, its bias of the next one. */
static zr_status_t add_linear(zr_block_t *block, const zr_gpt_model_t *model, size_t layer,
                              zr_gpt_kind_t weight, double deviation, zr_part_linear_t *linear) {
    zr_gpt_tensor_t tensor = zr_gpt_tensor(&model->shape, weight, layer);
    tensor.name[strlen(tensor.name) - strlen(".weight")] = '\0';
    zr_part_linear_desc_t desc = {.name = tensor.name,
                                  .n_in = tensor.dims[0],
                                  .n_out = tensor.dims[1],
                                  .deviation = deviation,
                                  .encoding = model->base.encoding,
                                  .adapter = model->base.adapter};
    return zr_part_linear_declare(block, &model->base.types, &desc, linear);
}

static zr_status_t declare(zr_block_t *block, const void *shape, void *self) {
    const zr_gpt_model_t *model = shape;
    zr_gpt_layer_t *layer = self;
    size_t index = zr_block_index(block) - 1;
    double into_residual = 0.02 / sqrt(2.0 * (double)model->shape.n_layers);
    ZR_TRY(zr_gpt_add_norm(block, model, ZR_GPT_LN_1_WEIGHT, index, &layer->ln_1));
    ZR_TRY(add_linear(block, model, index, ZR_GPT_ATTN_IN_WEIGHT, 0.02, &layer->attn_in));
    ZR_TRY(
        add_linear(block, model, index, ZR_GPT_ATTN_OUT_WEIGHT, into_residual, &layer->attn_out));
    ZR_TRY(zr_gpt_add_norm(block, model, ZR_GPT_LN_2_WEIGHT, index, &layer->ln_2));
    ZR_TRY(add_linear(block, model, index, ZR_GPT_MLP_IN_WEIGHT, 0.02, &layer->mlp_in));
    return add_linear(block, model, index, ZR_GPT_MLP_OUT_WEIGHT, into_residual, &layer->mlp_out);
}

/* ---- forward --------------------------------------------------------------------------------- */

static zr_nn_qkv_shape_t qkv_shape(const zr_visit_t *visit, const zr_gpt_model_t *model) {
    return (zr_nn_qkv_shape_t){.batch = visit->batch->n_sequences,
                               .seq = visit->batch->seq,
                               .heads = model->shape.heads,
                               .kv_heads = model->shape.heads,
                               .head_size = model->shape.channels / model->shape.heads,
                               .document_starts = zr_part_document_starts(visit)};
}

static zr_status_t attend(zr_visit_t *visit, const zr_gpt_model_t *model,
                          layer_tensors_t *tensors) {
    zr_nn_attention_t args = {.shape = qkv_shape(visit, model),
                              .qkv = tensors->qkv,
                              .out = tensors->attended,
                              .log_sum = tensors->log_sum};
    return zr_part_attention_forward(visit, &model->base.types, args, &tensors->scratch);
}

/* middle = x + attention(norm(x)) */
static zr_status_t attention_forward(zr_visit_t *visit) {
    const zr_gpt_model_t *model = visit->shape;
    const zr_gpt_layer_t *layer = visit->self;
    layer_tensors_t *tensors = visit->tensors;
    zr_memory_t memory = zr_part_memory(visit);
    size_t channels = model->shape.channels;
    ZR_TRY(zr_part_norm_forward(visit, &model->base.types, &layer->ln_1, visit->x,
                                &tensors->statistics, &tensors->normed));
    ZR_TRY(zr_part_take(visit, &model->base.types, memory, 3 * channels, &tensors->qkv));
    ZR_TRY(zr_part_linear_forward(visit, &layer->attn_in, tensors->normed, &plain,
                                  &tensors->scratch, tensors->qkv));
    zr_part_norm_done(visit, &tensors->of_attention, &tensors->statistics, &tensors->normed);

    ZR_TRY(zr_part_take(visit, &model->base.types, memory, channels, &tensors->attended));
    ZR_TRY(zr_part_take_floats(visit, memory, visit->batch->rows * model->shape.heads,
                               &tensors->log_sum));
    ZR_TRY(attend(visit, model, tensors));
    if (!visit->keeps) {
        zr_visit_drop(visit, &tensors->qkv);
        zr_visit_drop(visit, &tensors->log_sum);
    }
    ZR_TRY(zr_part_take(visit, &model->base.types, memory, channels, &tensors->middle));
    zr_part_product_t residual = {.addend = visit->x};
    ZR_TRY(zr_part_linear_forward(visit, &layer->attn_out, tensors->attended, &residual,
                                  &tensors->scratch, tensors->middle));
    if (!visit->keeps)
        zr_visit_drop(visit, &tensors->attended);
    return ZR_OK;
}

/* y = middle + mlp(norm(middle)) */
static zr_status_t mlp_forward(zr_visit_t *visit) {
    const zr_gpt_model_t *model = visit->shape;
    const zr_gpt_layer_t *layer = visit->self;
    layer_tensors_t *tensors = visit->tensors;
    const zr_part_types_t *types = &model->base.types;
    size_t wide = layer->mlp_in.n_out;
    ZR_TRY(zr_part_norm_forward(visit, types, &layer->ln_2, tensors->middle, &tensors->statistics,
                                &tensors->normed));
    ZR_TRY(zr_part_take(visit, types, zr_part_cheap_memory(visit), wide, &tensors->gelu));
    if (visit->keeps)
        ZR_TRY(zr_part_take(visit, types, ZR_MEMORY_KEPT, wide, &tensors->pre_gelu));
    zr_part_product_t gelu = {.epilogue = ZR_NN_EPILOGUE_GELU, .pre_gelu = tensors->pre_gelu};
    ZR_TRY(zr_part_linear_forward(visit, &layer->mlp_in, tensors->normed, &gelu, &tensors->scratch,
                                  tensors->gelu));
    zr_part_norm_done(visit, &tensors->of_mlp, &tensors->statistics, &tensors->normed);
    if (visit->is_wanted) {
        zr_part_product_t residual = {.addend = tensors->middle};
        ZR_TRY(zr_part_take(visit, types, ZR_MEMORY_KEPT, model->shape.channels, &visit->y));
        ZR_TRY(zr_part_linear_forward(visit, &layer->mlp_out, tensors->gelu, &residual,
                                      &tensors->scratch, visit->y));
        if (zr_part_cheap_memory(visit) == ZR_MEMORY_TEMPORARY)
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
    const zr_gpt_model_t *model = visit->shape;
    const zr_gpt_layer_t *layer = visit->self;
    layer_tensors_t *tensors = visit->tensors;
    const zr_part_types_t *types = &model->base.types;
    size_t wide = layer->mlp_in.n_out;
    if (tensors->gelu == NULL) {
        ZR_TRY(zr_part_take(visit, types, ZR_MEMORY_TEMPORARY, wide, &tensors->gelu));
        ZR_TRY(zr_nn_gelu(visit->stream, tensors->gelu, tensors->pre_gelu, types->activation_dtype,
                          visit->batch->rows * wide));
    }
    zr_part_product_t gelu = {.epilogue = ZR_NN_EPILOGUE_GELU_BACKWARD,
                              .pre_gelu = tensors->pre_gelu};
    ZR_TRY(zr_part_linear_backward(visit, &layer->mlp_out, &tensors->gelu, visit->gradient, &gelu,
                                   &tensors->scratch, &tensors->dwide));
    zr_visit_drop(visit, &tensors->pre_gelu);

    ZR_TRY(zr_part_norm_again(visit, types, &layer->ln_2, tensors->middle, &tensors->of_mlp,
                              &tensors->statistics, &tensors->normed));
    zr_part_product_t plain = {0};
    ZR_TRY(zr_part_linear_backward(visit, &layer->mlp_in, &tensors->normed, tensors->dwide, &plain,
                                   &tensors->scratch, &tensors->dnarrow));
    zr_visit_drop(visit, &tensors->dwide);
    ZR_TRY(zr_part_norm_backward(visit, types, &layer->ln_2, tensors->middle, tensors->statistics,
                                 &tensors->dnarrow, &tensors->scratch.workspace, visit->gradient,
                                 true));
    zr_visit_drop(visit, &tensors->middle);
    return ZR_OK;
}

static zr_status_t attend_backward(zr_visit_t *visit, const zr_gpt_model_t *model,
                                   layer_tensors_t *tensors) {
    zr_nn_attention_backward_t args = {.shape = qkv_shape(visit, model),
                                       .qkv = tensors->qkv,
                                       .out = tensors->attended,
                                       .log_sum = tensors->log_sum,
                                       .dout = tensors->dnarrow,
                                       .dqkv = tensors->dwide};
    return zr_part_attention_backward(visit, &model->base.types, args, &tensors->scratch);
}

static zr_status_t attention_backward(zr_visit_t *visit) {
    const zr_gpt_model_t *model = visit->shape;
    const zr_gpt_layer_t *layer = visit->self;
    layer_tensors_t *tensors = visit->tensors;
    const zr_part_types_t *types = &model->base.types;
    size_t channels = model->shape.channels;
    zr_part_product_t keep = {.keeps_x = true};
    ZR_TRY(zr_part_linear_backward(visit, &layer->attn_out, &tensors->attended, visit->gradient,
                                   &keep, &tensors->scratch, &tensors->dnarrow));

    ZR_TRY(zr_part_take(visit, types, ZR_MEMORY_TEMPORARY, 3 * channels, &tensors->dwide));
    ZR_TRY(attend_backward(visit, model, tensors));
    zr_visit_drop(visit, &tensors->dnarrow);
    zr_visit_drop(visit, &tensors->attended);
    zr_visit_drop(visit, &tensors->qkv);
    zr_visit_drop(visit, &tensors->log_sum);

    ZR_TRY(zr_part_norm_again(visit, types, &layer->ln_1, visit->x, &tensors->of_attention,
                              &tensors->statistics, &tensors->normed));
    ZR_TRY(zr_part_linear_backward(visit, &layer->attn_in, &tensors->normed, tensors->dwide, &plain,
                                   &tensors->scratch, &tensors->dnarrow));
    zr_visit_drop(visit, &tensors->dwide);
    return zr_part_norm_backward(visit, types, &layer->ln_1, visit->x, tensors->statistics,
                                 &tensors->dnarrow, &tensors->scratch.workspace, visit->gradient,
                                 true);
}

/* The gradient of the residual stream is that of y, and becomes that of x where it is. */
static zr_status_t backward(zr_visit_t *visit) {
    layer_tensors_t *tensors = visit->tensors;
    ZR_TRY(mlp_backward(visit));
    ZR_TRY(attention_backward(visit));
    zr_visit_drop(visit, &tensors->statistics);
    return ZR_OK;
}

const zr_block_type_t zr_gpt_layer_block = {.name = "layer",
                                            .declare = declare,
                                            .forward = forward,
                                            .backward = backward,
                                            .self_bytes = sizeof(zr_gpt_layer_t),
                                            .tensors_bytes = sizeof(layer_tensors_t),
                                            .recomputes = true};
