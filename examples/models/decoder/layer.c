/*
 * A layer of the model, forward and backward.
 *
 * Queries, keys and values are columns of one array, as attention takes them, and gates and what
 * they are multiplied with are columns of another; each is a linear layer of its own that writes
 * its columns. What is cheap to compute again is kept with ZR_RECOMPUTE_NEVER alone: outputs of
 * norms, of SwiGLU, and of rotary positions where they do not take the place of what they turn.
 */
#include <stdio.h>
#include <string.h>

#include "models/decoder/internal.h"

typedef struct layer {
    zr_part_norm_t attn_norm, mlp_norm;
    zr_part_linear_t q, k, v, out;
    zr_part_linear_t gate, up, down;
    zr_param_t *q_norm, *k_norm; /* NULL: heads are not normalised */
} layer_t;

typedef struct layer_tensors {
    /* What backward needs of forward; rows are the tokens of the micro-batch. */
    void *qkv;      /* [rows, heads + 2 kv_heads, head_size], turned where nothing is normalised */
    void *attended; /* [rows, heads, head_size] */
    void *log_sum;  /* fp32 [b, heads, t] */
    void *middle;   /* [rows, channels] x after attention was added */
    void *gate_up;  /* [rows, 2, wide] */
    zr_part_normed_t of_attention, of_mlp;
    /* Within a visit. */
    void *turned;     /* as qkv: normalised and turned; NULL: qkv is */
    void *rstd;       /* fp32 [rows, heads + kv_heads] of the heads' norms */
    void *statistics; /* fp32 [2, rows] of the norm at hand */
    void *normed;     /* [rows, channels] output of a norm */
    void *swiglu;     /* [rows, wide] */
    void *dwide;      /* gradient of gate_up, or of qkv */
    void *dmiddle;    /* [rows, wide or heads * head_size] gradient of swiglu, or of attended */
    void *dnarrow;    /* [rows, channels] gradient of a norm's output */
    zr_part_scratch_t scratch;
} layer_tensors_t;

static const zr_part_product_t plain = {0};
static const zr_part_product_t keeping = {.keeps_x = true};

static size_t index_of(const zr_block_t *block) {
    return zr_block_index(block) - 1;
}

/* ---- parameters ------------------------------------------------------------------------------ */

/* "model.layers.3.<part>" */
typedef struct part_name {
    char text[96];
} part_name_t;

static part_name_t name_of(const zr_block_t *block, const char *part) {
    part_name_t name;
    snprintf(name.text, sizeof(name.text), "model.layers.%zu.%s", index_of(block), part);
    return name;
}

/* ld_y: of the array that y is columns of; 0: y is all of it. */
static zr_status_t add_linear(zr_block_t *block, const zr_decoder_model_t *model, const char *part,
                              size_t n_in, size_t n_out, bool has_bias, size_t ld_y,
                              zr_part_linear_t *linear) {
    part_name_t name = name_of(block, part);
    zr_part_linear_desc_t desc = {.name = name.text,
                                  .n_in = n_in,
                                  .n_out = n_out,
                                  .is_out_first = true,
                                  .has_no_bias = !has_bias,
                                  .ld_y = ld_y,
                                  .deviation = 0.02,
                                  .encoding = model->base.encoding,
                                  .adapter = model->base.adapter};
    return zr_part_linear_declare(block, &model->base.types, &desc, linear);
}

static zr_status_t add_norm(zr_block_t *block, const zr_decoder_model_t *model, const char *part,
                            size_t channels, zr_part_norm_t *norm) {
    return zr_decoder_add_norm(block, model, name_of(block, part).text, channels, norm);
}

static size_t qkv_columns(const zr_decoder_shape_t *s) {
    return (s->heads + 2 * s->kv_heads) * s->head_size;
}

static zr_status_t declare_attention(zr_block_t *block, const zr_decoder_model_t *model,
                                     layer_t *layer) {
    const zr_decoder_shape_t *s = &model->shape;
    size_t columns = qkv_columns(s), wide = s->heads * s->head_size;
    size_t narrow = s->kv_heads * s->head_size;
    bool bias = s->has_qkv_bias;
    zr_part_norm_t of_heads;
    ZR_TRY(add_norm(block, model, "input_layernorm.weight", s->channels, &layer->attn_norm));
    ZR_TRY(
        add_linear(block, model, "self_attn.q_proj", s->channels, wide, bias, columns, &layer->q));
    ZR_TRY(add_linear(block, model, "self_attn.k_proj", s->channels, narrow, bias, columns,
                      &layer->k));
    ZR_TRY(add_linear(block, model, "self_attn.v_proj", s->channels, narrow, bias, columns,
                      &layer->v));
    if (s->normalises_qk) {
        ZR_TRY(add_norm(block, model, "self_attn.q_norm.weight", s->head_size, &of_heads));
        layer->q_norm = of_heads.weight;
        ZR_TRY(add_norm(block, model, "self_attn.k_norm.weight", s->head_size, &of_heads));
        layer->k_norm = of_heads.weight;
    }
    return add_linear(block, model, "self_attn.o_proj", wide, s->channels, s->has_out_bias, 0,
                      &layer->out);
}

static zr_status_t declare(zr_block_t *block, const void *shape, void *self) {
    const zr_decoder_model_t *model = shape;
    const zr_decoder_shape_t *s = &model->shape;
    layer_t *layer = self;
    bool bias = s->has_mlp_bias;
    ZR_TRY(declare_attention(block, model, layer));
    ZR_TRY(
        add_norm(block, model, "post_attention_layernorm.weight", s->channels, &layer->mlp_norm));
    ZR_TRY(add_linear(block, model, "mlp.gate_proj", s->channels, s->wide, bias, 2 * s->wide,
                      &layer->gate));
    ZR_TRY(add_linear(block, model, "mlp.up_proj", s->channels, s->wide, bias, 2 * s->wide,
                      &layer->up));
    return add_linear(block, model, "mlp.down_proj", s->wide, s->channels, bias, 0, &layer->down);
}

/* ---- what both passes do --------------------------------------------------------------------- */

static void *column_of(const zr_decoder_model_t *model, void *rows, size_t column) {
    return (char *)rows + column * zr_dtype_size(model->base.types.activation_dtype);
}

static zr_nn_qkv_shape_t qkv_shape(const zr_visit_t *visit) {
    const zr_decoder_shape_t *s = &((const zr_decoder_model_t *)visit->shape)->shape;
    return (zr_nn_qkv_shape_t){.batch = visit->batch->n_sequences,
                               .seq = visit->batch->seq,
                               .heads = s->heads,
                               .kv_heads = s->kv_heads,
                               .head_size = s->head_size,
                               .document_starts = zr_part_document_starts(visit)};
}

static const float *frequencies_of(const zr_visit_t *visit) {
    const zr_decoder_model_t *model = visit->shape;
    const zr_decoder_shape_t *s = &model->shape;
    return zr_decoder_has_layer(s, s->unrotated, index_of(visit->block)) ? NULL
                                                                         : model->frequencies;
}

static size_t window_of(const zr_visit_t *visit) {
    const zr_decoder_shape_t *s = &((const zr_decoder_model_t *)visit->shape)->shape;
    return zr_decoder_has_layer(s, s->windowed, index_of(visit->block)) ? s->window : 0;
}

static const void *data_of(zr_param_t *param) {
    return param != NULL ? zr_param_data(param) : NULL;
}

/* Positions into queries and keys: in place, or, as backward needs what was normalised as it was,
 * into `turned`. */
static zr_status_t turn(zr_visit_t *visit) {
    const zr_decoder_model_t *model = visit->shape;
    const layer_t *layer = visit->self;
    layer_tensors_t *tensors = visit->tensors;
    const zr_decoder_shape_t *s = &model->shape;
    zr_nn_rotary_t args = {.shape = qkv_shape(visit),
                           .qkv = tensors->qkv,
                           .out = tensors->qkv,
                           .frequencies = frequencies_of(visit),
                           .q_weight = data_of(layer->q_norm),
                           .k_weight = data_of(layer->k_norm),
                           .epsilon = (float)s->epsilon,
                           .activation_dtype = model->base.types.activation_dtype,
                           .param_dtype = model->base.types.param_dtype};
    if (s->normalises_qk) {
        zr_memory_t memory = zr_part_cheap_memory(visit);
        ZR_TRY(zr_part_take(visit, &model->base.types, memory, qkv_columns(s), &tensors->turned));
        ZR_TRY(zr_part_take_floats(visit, memory, visit->batch->rows * (s->heads + s->kv_heads),
                                   &tensors->rstd));
        args.out = tensors->turned;
        args.rstd = tensors->rstd;
    } else if (args.frequencies == NULL) {
        return ZR_OK;
    }
    return zr_nn_rotary(visit->stream, &args);
}

static void *turned_qkv(const layer_tensors_t *tensors) {
    return tensors->turned != NULL ? tensors->turned : tensors->qkv;
}

static zr_status_t gate(zr_visit_t *visit) {
    const zr_decoder_model_t *model = visit->shape;
    layer_tensors_t *tensors = visit->tensors;
    ZR_TRY(zr_part_take(visit, &model->base.types, zr_part_cheap_memory(visit), model->shape.wide,
                        &tensors->swiglu));
    return zr_nn_swiglu(visit->stream,
                        &(zr_nn_swiglu_t){.n_rows = visit->batch->rows,
                                          .channels = model->shape.wide,
                                          .gate_up = tensors->gate_up,
                                          .y = tensors->swiglu,
                                          .activation_dtype = model->base.types.activation_dtype});
}

/* ---- forward --------------------------------------------------------------------------------- */

static zr_status_t attend(zr_visit_t *visit) {
    const zr_decoder_model_t *model = visit->shape;
    layer_tensors_t *tensors = visit->tensors;
    zr_nn_attention_t args = {.shape = qkv_shape(visit),
                              .window = window_of(visit),
                              .qkv = turned_qkv(tensors),
                              .out = tensors->attended,
                              .log_sum = tensors->log_sum};
    ZR_TRY(zr_part_attention_forward(visit, &model->base.types, args, &tensors->scratch));
    if (zr_part_cheap_memory(visit) == ZR_MEMORY_TEMPORARY) {
        zr_visit_drop(visit, &tensors->turned);
        zr_visit_drop(visit, &tensors->rstd);
    }
    return ZR_OK;
}

static zr_status_t project_qkv(zr_visit_t *visit) {
    const zr_decoder_model_t *model = visit->shape;
    const layer_t *layer = visit->self;
    layer_tensors_t *tensors = visit->tensors;
    const zr_part_linear_t *const linears[] = {&layer->q, &layer->k, &layer->v};
    size_t column = 0;
    for (int i = 0; i < 3; i++) {
        ZR_TRY(zr_part_linear_forward(visit, linears[i], tensors->normed, &plain, &tensors->scratch,
                                      column_of(model, tensors->qkv, column)));
        column += linears[i]->n_out;
    }
    return ZR_OK;
}

/* middle = x + attention(norm(x)) */
static zr_status_t attention_forward(zr_visit_t *visit) {
    const zr_decoder_model_t *model = visit->shape;
    const layer_t *layer = visit->self;
    layer_tensors_t *tensors = visit->tensors;
    const zr_decoder_shape_t *s = &model->shape;
    zr_memory_t memory = zr_part_memory(visit);
    ZR_TRY(zr_part_norm_forward(visit, &model->base.types, &layer->attn_norm, visit->x,
                                &tensors->statistics, &tensors->normed));
    ZR_TRY(zr_part_take(visit, &model->base.types, memory, qkv_columns(s), &tensors->qkv));
    ZR_TRY(project_qkv(visit));
    zr_part_norm_done(visit, &tensors->of_attention, &tensors->statistics, &tensors->normed);
    ZR_TRY(turn(visit));

    ZR_TRY(zr_part_take(visit, &model->base.types, memory, s->heads * s->head_size,
                        &tensors->attended));
    ZR_TRY(zr_part_take_floats(visit, memory, visit->batch->rows * s->heads, &tensors->log_sum));
    ZR_TRY(attend(visit));
    if (!visit->keeps) {
        zr_visit_drop(visit, &tensors->qkv);
        zr_visit_drop(visit, &tensors->log_sum);
    }
    ZR_TRY(zr_part_take(visit, &model->base.types, memory, s->channels, &tensors->middle));
    zr_part_product_t residual = {.addend = visit->x};
    ZR_TRY(zr_part_linear_forward(visit, &layer->out, tensors->attended, &residual,
                                  &tensors->scratch, tensors->middle));
    if (!visit->keeps)
        zr_visit_drop(visit, &tensors->attended);
    return ZR_OK;
}

/* y = middle + mlp(norm(middle)) */
static zr_status_t mlp_forward(zr_visit_t *visit) {
    const zr_decoder_model_t *model = visit->shape;
    const layer_t *layer = visit->self;
    layer_tensors_t *tensors = visit->tensors;
    const zr_part_types_t *types = &model->base.types;
    size_t wide = model->shape.wide;
    ZR_TRY(zr_part_norm_forward(visit, types, &layer->mlp_norm, tensors->middle,
                                &tensors->statistics, &tensors->normed));
    ZR_TRY(zr_part_take(visit, types, zr_part_memory(visit), 2 * wide, &tensors->gate_up));
    ZR_TRY(zr_part_linear_forward(visit, &layer->gate, tensors->normed, &plain, &tensors->scratch,
                                  tensors->gate_up));
    ZR_TRY(zr_part_linear_forward(visit, &layer->up, tensors->normed, &plain, &tensors->scratch,
                                  column_of(model, tensors->gate_up, wide)));
    zr_part_norm_done(visit, &tensors->of_mlp, &tensors->statistics, &tensors->normed);
    if (visit->is_wanted) {
        zr_part_product_t residual = {.addend = tensors->middle};
        ZR_TRY(gate(visit));
        if (!visit->keeps)
            zr_visit_drop(visit, &tensors->gate_up);
        ZR_TRY(zr_part_take(visit, types, ZR_MEMORY_KEPT, model->shape.channels, &visit->y));
        ZR_TRY(zr_part_linear_forward(visit, &layer->down, tensors->swiglu, &residual,
                                      &tensors->scratch, visit->y));
        if (zr_part_cheap_memory(visit) == ZR_MEMORY_TEMPORARY)
            zr_visit_drop(visit, &tensors->swiglu);
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

/* The gradient of gate_up, where that was. */
static zr_status_t gate_backward(zr_visit_t *visit) {
    const zr_decoder_model_t *model = visit->shape;
    layer_tensors_t *tensors = visit->tensors;
    zr_nn_swiglu_backward_t args = {.n_rows = visit->batch->rows,
                                    .channels = model->shape.wide,
                                    .dy = tensors->dmiddle,
                                    .gate_up = tensors->gate_up,
                                    .dgate_up = tensors->gate_up,
                                    .activation_dtype = model->base.types.activation_dtype};
    ZR_TRY(zr_nn_swiglu_backward(visit->stream, &args));
    zr_visit_drop(visit, &tensors->dmiddle);
    return ZR_OK;
}

static zr_status_t mlp_backward(zr_visit_t *visit) {
    const zr_decoder_model_t *model = visit->shape;
    const layer_t *layer = visit->self;
    layer_tensors_t *tensors = visit->tensors;
    if (tensors->swiglu == NULL)
        ZR_TRY(gate(visit));
    ZR_TRY(zr_part_linear_backward(visit, &layer->down, &tensors->swiglu, visit->gradient, &plain,
                                   &tensors->scratch, &tensors->dmiddle));
    ZR_TRY(gate_backward(visit));

    ZR_TRY(zr_part_norm_again(visit, &model->base.types, &layer->mlp_norm, tensors->middle,
                              &tensors->of_mlp, &tensors->statistics, &tensors->normed));
    ZR_TRY(zr_part_linear_backward(visit, &layer->gate, &tensors->normed, tensors->gate_up,
                                   &keeping, &tensors->scratch, &tensors->dnarrow));
    ZR_TRY(zr_part_linear_backward(visit, &layer->up, &tensors->normed,
                                   column_of(model, tensors->gate_up, model->shape.wide), &plain,
                                   &tensors->scratch, &tensors->dnarrow));
    zr_visit_drop(visit, &tensors->gate_up);
    ZR_TRY(zr_part_norm_backward(visit, &model->base.types, &layer->mlp_norm, tensors->middle,
                                 tensors->statistics, &tensors->dnarrow,
                                 &tensors->scratch.workspace, visit->gradient, true));
    zr_visit_drop(visit, &tensors->middle);
    return ZR_OK;
}

static zr_status_t attend_backward(zr_visit_t *visit) {
    const zr_decoder_model_t *model = visit->shape;
    layer_tensors_t *tensors = visit->tensors;
    zr_nn_attention_backward_t args = {.shape = qkv_shape(visit),
                                       .window = window_of(visit),
                                       .qkv = turned_qkv(tensors),
                                       .out = tensors->attended,
                                       .log_sum = tensors->log_sum,
                                       .dout = tensors->dmiddle,
                                       .dqkv = tensors->dwide};
    ZR_TRY(zr_part_attention_backward(visit, &model->base.types, args, &tensors->scratch));
    zr_visit_drop(visit, &tensors->turned);
    return ZR_OK;
}

/* The gradient of qkv as it was before. */
static zr_status_t turn_backward(zr_visit_t *visit) {
    const zr_decoder_model_t *model = visit->shape;
    const layer_t *layer = visit->self;
    layer_tensors_t *tensors = visit->tensors;
    bool normalises = model->shape.normalises_qk;
    zr_nn_rotary_backward_t args = {.shape = qkv_shape(visit),
                                    .dqkv = tensors->dwide,
                                    .frequencies = frequencies_of(visit),
                                    .qkv = normalises ? tensors->qkv : NULL,
                                    .q_weight = data_of(layer->q_norm),
                                    .k_weight = data_of(layer->k_norm),
                                    .rstd = tensors->rstd,
                                    .activation_dtype = model->base.types.activation_dtype,
                                    .param_dtype = model->base.types.param_dtype};
    zr_nn_workspace_t workspace;
    if (!normalises && args.frequencies == NULL)
        return ZR_OK;
    ZR_TRY(zr_part_gradient(layer->q_norm, &args.dq_weight));
    ZR_TRY(zr_part_gradient(layer->k_norm, &args.dk_weight));
    ZR_TRY(zr_part_take_workspace(visit,
                                  zr_nn_rotary_backward_workspace_bytes(visit->device, &args),
                                  &tensors->scratch.workspace, &workspace));
    ZR_TRY(zr_nn_rotary_backward(visit->stream, &args, workspace));
    zr_visit_drop(visit, &tensors->scratch.workspace);
    zr_visit_drop(visit, &tensors->rstd);
    return ZR_OK;
}

/* From the gradient of qkv to that of the norm's output. */
static zr_status_t project_backward(zr_visit_t *visit) {
    const zr_decoder_model_t *model = visit->shape;
    const layer_t *layer = visit->self;
    layer_tensors_t *tensors = visit->tensors;
    const zr_part_linear_t *const linears[] = {&layer->q, &layer->k, &layer->v};
    size_t column = 0;
    for (int i = 0; i < 3; i++) {
        ZR_TRY(zr_part_linear_backward(
            visit, linears[i], &tensors->normed, column_of(model, tensors->dwide, column),
            i < 2 ? &keeping : &plain, &tensors->scratch, &tensors->dnarrow));
        column += linears[i]->n_out;
    }
    zr_visit_drop(visit, &tensors->dwide);
    return ZR_OK;
}

static zr_status_t attention_backward(zr_visit_t *visit) {
    const zr_decoder_model_t *model = visit->shape;
    const layer_t *layer = visit->self;
    layer_tensors_t *tensors = visit->tensors;
    const zr_part_types_t *types = &model->base.types;
    ZR_TRY(zr_part_linear_backward(visit, &layer->out, &tensors->attended, visit->gradient,
                                   &keeping, &tensors->scratch, &tensors->dmiddle));
    if (model->shape.normalises_qk && tensors->turned == NULL)
        ZR_TRY(turn(visit));
    ZR_TRY(zr_part_take(visit, types, ZR_MEMORY_TEMPORARY, qkv_columns(&model->shape),
                        &tensors->dwide));
    ZR_TRY(attend_backward(visit));
    zr_visit_drop(visit, &tensors->dmiddle);
    zr_visit_drop(visit, &tensors->attended);
    zr_visit_drop(visit, &tensors->log_sum);
    ZR_TRY(turn_backward(visit));
    zr_visit_drop(visit, &tensors->qkv);

    ZR_TRY(zr_part_norm_again(visit, types, &layer->attn_norm, visit->x, &tensors->of_attention,
                              &tensors->statistics, &tensors->normed));
    ZR_TRY(project_backward(visit));
    return zr_part_norm_backward(visit, types, &layer->attn_norm, visit->x, tensors->statistics,
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

const zr_block_type_t zr_decoder_layer_block = {.name = "layer",
                                                .declare = declare,
                                                .forward = forward,
                                                .backward = backward,
                                                .self_bytes = sizeof(layer_t),
                                                .tensors_bytes = sizeof(layer_tensors_t),
                                                .recomputes = true};
