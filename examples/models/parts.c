/* Linear layers, norms and their memory: see parts.h. */
#include "models/parts.h"

#include <stdio.h>

zr_status_t zr_part_types_of(const zr_runtime_t *runtime, size_t least_rows,
                             zr_part_types_t *types_p) {
    zr_dtype_t dtype = zr_runtime_config(runtime)->dtype;
    *types_p = (zr_part_types_t){.param_dtype = dtype, .least_rows = least_rows};
    return zr_nn_activation_dtype(zr_runtime_device((zr_runtime_t *)runtime), dtype,
                                  &types_p->activation_dtype);
}

/* ---- memory ---------------------------------------------------------------------------------- */

zr_status_t zr_part_take(zr_visit_t *visit, const zr_part_types_t *types, zr_memory_t memory,
                         size_t n_columns, void **pointer_p) {
    size_t n_rows = visit->batch->rows, n_elems;
    if (__builtin_mul_overflow(n_rows, n_columns, &n_elems) || n_elems > SIZE_MAX / 16)
        return zr_fail(zr_runtime_log(zr_model_runtime(zr_block_model(visit->block))),
                       ZR_ERR_ARGUMENT,
                       "activations of \"%s\": %zu x %zu elements are more than memory can hold",
                       visit->name, n_rows, n_columns);
    return zr_visit_take(visit, memory, n_elems * zr_dtype_size(types->activation_dtype),
                         pointer_p);
}

zr_status_t zr_part_take_floats(zr_visit_t *visit, zr_memory_t memory, size_t n_elems,
                                void **pointer_p) {
    return zr_visit_take(visit, memory, n_elems * sizeof(float), pointer_p);
}

zr_status_t zr_part_take_workspace(zr_visit_t *visit, size_t size_bytes, void **field,
                                   zr_nn_workspace_t *workspace_p) {
    if (size_bytes > 0)
        ZR_TRY(zr_visit_take(visit, ZR_MEMORY_WORKSPACE, size_bytes, field));
    *workspace_p = (zr_nn_workspace_t){*field, size_bytes};
    return ZR_OK;
}

zr_status_t zr_part_gradient(zr_param_t *param, zr_nn_gradient_t *gradient_p) {
    *gradient_p = (zr_nn_gradient_t){NULL, false};
    if (param == NULL || zr_param_is_frozen(param))
        return ZR_OK;
    return zr_param_grad(param, &gradient_p->data, &gradient_p->accumulate);
}

/* ---- linear layers --------------------------------------------------------------------------- */

zr_status_t zr_part_multiply(zr_visit_t *visit, const zr_nn_matmul_t *product, void **field) {
    zr_nn_workspace_t workspace;
    ZR_TRY(zr_part_take_workspace(visit, zr_nn_matmul_workspace_bytes(visit->device, product),
                                  field, &workspace));
    ZR_TRY(zr_nn_matmul(visit->stream, product, workspace));
    zr_visit_drop(visit, field);
    return ZR_OK;
}

zr_status_t zr_part_linear_add_param(zr_block_t *block, const zr_part_linear_t *linear,
                                     const zr_block_param_t *desc, zr_param_t **param_p) {
    char name[256];
    zr_block_param_t param = *desc;
    if ((size_t)snprintf(name, sizeof(name), "%s.%s", linear->name, desc->name) >= sizeof(name))
        return zr_fail(zr_runtime_log(zr_model_runtime(zr_block_model(block))), ZR_ERR_ARGUMENT,
                       "\"%.60s...\": a parameter's name has at most %zu characters", name,
                       sizeof(name) - 1);
    param.name = name;
    return zr_block_add_param(block, &param, param_p);
}

zr_status_t zr_part_linear_declare(zr_block_t *block, const zr_part_types_t *types,
                                   const zr_part_linear_desc_t *desc, zr_part_linear_t *linear) {
    zr_block_param_t weight = {.name = "weight",
                               .n_dims = 2,
                               .dims = {desc->is_out_first ? desc->n_out : desc->n_in,
                                        desc->is_out_first ? desc->n_in : desc->n_out},
                               .init = ZR_INIT_NORMAL,
                               .deviation = desc->deviation,
                               .encoding = desc->encoding};
    zr_block_param_t bias = {.name = "bias", .n_dims = 1, .dims = {desc->n_out}};
    *linear = (zr_part_linear_t){.name = desc->name,
                                 .types = *types,
                                 .n_in = desc->n_in,
                                 .n_out = desc->n_out,
                                 .ld_y = desc->ld_y,
                                 .is_out_first = desc->is_out_first,
                                 .adapter = desc->adapter};
    ZR_TRY(zr_part_linear_add_param(block, linear, &weight, &linear->weight));
    if (!desc->has_no_bias)
        ZR_TRY(zr_part_linear_add_param(block, linear, &bias, &linear->bias));
    if (linear->adapter != NULL)
        ZR_TRY(linear->adapter->declare(block, linear));
    linear->name = NULL;
    return ZR_OK;
}

static const void *data_of(zr_param_t *param) {
    return param != NULL ? zr_param_data(param) : NULL;
}

/* x to y, or the other way round. */
static zr_nn_matmul_t product_with_weight(const zr_visit_t *visit, const zr_part_linear_t *linear,
                                          const void *a, void *c, bool is_backward) {
    return (zr_nn_matmul_t){.m = visit->batch->rows,
                            .least_m = linear->types.least_rows,
                            .n = is_backward ? linear->n_in : linear->n_out,
                            .k = is_backward ? linear->n_out : linear->n_in,
                            .lda = is_backward ? linear->ld_y : 0,
                            .ldc = is_backward ? 0 : linear->ld_y,
                            .a = a,
                            .b = zr_param_data(linear->weight),
                            .transpose_b = is_backward != linear->is_out_first,
                            .c = c,
                            .a_dtype = linear->types.activation_dtype,
                            .b_dtype = linear->types.param_dtype,
                            .c_dtype = linear->types.activation_dtype};
}

zr_status_t zr_part_linear_forward(zr_visit_t *visit, const zr_part_linear_t *linear, const void *x,
                                   const zr_part_product_t *more, zr_part_scratch_t *scratch,
                                   void *y) {
    /* A GELU comes behind the adapter. */
    bool is_split = linear->adapter != NULL && more->epilogue == ZR_NN_EPILOGUE_GELU;
    void *sum = is_split && more->pre_gelu != NULL ? more->pre_gelu : y;
    zr_nn_matmul_t product = product_with_weight(visit, linear, x, sum, false);
    product.bias = data_of(linear->bias);
    product.bias_dtype = linear->types.param_dtype;
    product.addend = more->addend;
    if (!is_split) {
        product.epilogue = more->epilogue;
        product.pre_gelu = more->pre_gelu;
    }
    ZR_TRY(zr_part_multiply(visit, &product, &scratch->workspace));
    if (linear->adapter == NULL)
        return ZR_OK;
    ZR_TRY(linear->adapter->forward(visit, linear, x, scratch, sum));
    return is_split ? zr_nn_gelu(visit->stream, y, sum, linear->types.activation_dtype,
                                 product.m * product.n)
                    : ZR_OK;
}

static zr_status_t train_bias(zr_visit_t *visit, const zr_part_linear_t *linear, const void *dy,
                              const zr_nn_gradient_t *dbias, void **field) {
    zr_nn_bias_grad_t sum = {.n_rows = visit->batch->rows,
                             .n_columns = linear->n_out,
                             .ld_dy = linear->ld_y,
                             .dy = dy,
                             .dbias = *dbias,
                             .activation_dtype = linear->types.activation_dtype,
                             .param_dtype = linear->types.param_dtype};
    zr_nn_workspace_t workspace;
    ZR_TRY(zr_part_take_workspace(visit, zr_nn_bias_grad_workspace_bytes(visit->device, &sum),
                                  field, &workspace));
    ZR_TRY(zr_nn_bias_grad(visit->stream, &sum, workspace));
    zr_visit_drop(visit, field);
    return ZR_OK;
}

/* The gradients of weight and bias. */
static zr_status_t train(zr_visit_t *visit, const zr_part_linear_t *linear, const void *x,
                         const void *dy, void **workspace) {
    zr_nn_gradient_t dweight, dbias;
    ZR_TRY(zr_part_gradient(linear->weight, &dweight));
    ZR_TRY(zr_part_gradient(linear->bias, &dbias));
    if (dbias.data != NULL)
        ZR_TRY(train_bias(visit, linear, dy, &dbias, workspace));
    if (dweight.data == NULL)
        return ZR_OK;
    bool is_out_first = linear->is_out_first;
    zr_nn_matmul_t product = {.m = is_out_first ? linear->n_out : linear->n_in,
                              .n = is_out_first ? linear->n_in : linear->n_out,
                              .k = visit->batch->rows,
                              .lda = linear->ld_y, /* 0 where a is x */
                              .a = is_out_first ? dy : x,
                              .transpose_a = true,
                              .b = is_out_first ? x : dy,
                              .c = dweight.data,
                              .a_dtype = linear->types.activation_dtype,
                              .b_dtype = linear->types.activation_dtype,
                              .c_dtype = linear->types.param_dtype,
                              .accumulate = dweight.accumulate};
    return zr_part_multiply(visit, &product, workspace);
}

zr_status_t zr_part_linear_backward(zr_visit_t *visit, const zr_part_linear_t *linear, void **x,
                                    const void *dy, const zr_part_product_t *more,
                                    zr_part_scratch_t *scratch, void **dx) {
    const zr_part_adapter_t *adapter = linear->adapter;
    bool is_split = adapter != NULL && more->epilogue == ZR_NN_EPILOGUE_GELU_BACKWARD;
    ZR_TRY(train(visit, linear, *x, dy, &scratch->workspace));
    if (adapter == NULL && !more->keeps_x)
        zr_visit_drop(visit, x);
    bool is_added = *dx != NULL;
    if (!is_added)
        ZR_TRY(zr_part_take(visit, &linear->types, ZR_MEMORY_TEMPORARY, linear->n_in, dx));
    zr_nn_matmul_t product = product_with_weight(visit, linear, dy, *dx, true);
    product.accumulate = is_added;
    if (!is_split) {
        product.epilogue = more->epilogue;
        product.pre_gelu = more->pre_gelu;
    }
    ZR_TRY(zr_part_multiply(visit, &product, &scratch->workspace));
    if (adapter == NULL)
        return ZR_OK;
    ZR_TRY(adapter->backward(visit, linear, *x, dy, scratch, *dx));
    if (!more->keeps_x)
        zr_visit_drop(visit, x);
    return is_split ? zr_nn_gelu_backward(visit->stream, *dx, *dx, more->pre_gelu,
                                          linear->types.activation_dtype, product.m * product.n)
                    : ZR_OK;
}

/* ---- attention ------------------------------------------------------------------------------- */

zr_status_t zr_part_attention_forward(zr_visit_t *visit, const zr_part_types_t *types,
                                      zr_nn_attention_t args, zr_part_scratch_t *scratch) {
    zr_nn_workspace_t workspace;
    args.activation_dtype = types->activation_dtype;
    args.engine = types->attention;
    ZR_TRY(zr_part_take_workspace(visit, zr_nn_attention_workspace_bytes(visit->device, &args),
                                  &scratch->workspace, &workspace));
    ZR_TRY(zr_nn_attention(visit->stream, &args, workspace));
    zr_visit_drop(visit, &scratch->workspace);
    return ZR_OK;
}

zr_status_t zr_part_attention_backward(zr_visit_t *visit, const zr_part_types_t *types,
                                       zr_nn_attention_backward_t args,
                                       zr_part_scratch_t *scratch) {
    zr_nn_workspace_t workspace;
    args.activation_dtype = types->activation_dtype;
    args.engine = types->attention;
    ZR_TRY(zr_part_take_workspace(visit,
                                  zr_nn_attention_backward_workspace_bytes(visit->device, &args),
                                  &scratch->workspace, &workspace));
    ZR_TRY(zr_nn_attention_backward(visit->stream, &args, workspace));
    zr_visit_drop(visit, &scratch->workspace);
    return ZR_OK;
}

/* ---- norms ----------------------------------------------------------------------------------- */

zr_status_t zr_part_norm_forward(zr_visit_t *visit, const zr_part_types_t *types,
                                 const zr_part_norm_t *norm, const void *x, void **statistics,
                                 void **y) {
    size_t rows = visit->batch->rows;
    if (*statistics == NULL)
        ZR_TRY(zr_part_take_floats(visit, zr_part_cheap_memory(visit), 2 * rows, statistics));
    ZR_TRY(zr_part_take(visit, types, zr_part_cheap_memory(visit), norm->channels, y));
    bool is_rms = norm->bias == NULL;
    zr_nn_layernorm_t args = {.n_rows = rows,
                              .channels = norm->channels,
                              .is_rms = is_rms,
                              .x = x,
                              .weight = zr_param_data(norm->weight),
                              .bias = data_of(norm->bias),
                              .y = *y,
                              .mean = is_rms ? NULL : *statistics,
                              .rstd = (float *)*statistics + rows,
                              .epsilon = norm->epsilon,
                              .activation_dtype = types->activation_dtype,
                              .param_dtype = types->param_dtype};
    return zr_nn_layernorm(visit->stream, &args);
}

void zr_part_norm_done(zr_visit_t *visit, zr_part_normed_t *kept, void **statistics, void **y) {
    if (zr_part_cheap_memory(visit) == ZR_MEMORY_TEMPORARY) {
        zr_visit_drop(visit, y);
        return;
    }
    *kept = (zr_part_normed_t){*statistics, *y};
    *statistics = *y = NULL;
}

zr_status_t zr_part_norm_again(zr_visit_t *visit, const zr_part_types_t *types,
                               const zr_part_norm_t *norm, const void *x, zr_part_normed_t *kept,
                               void **statistics, void **y) {
    if (kept->y == NULL)
        return zr_part_norm_forward(visit, types, norm, x, statistics, y);
    zr_visit_drop(visit, statistics);
    *statistics = kept->statistics;
    *y = kept->y;
    *kept = (zr_part_normed_t){NULL, NULL};
    return ZR_OK;
}

zr_status_t zr_part_norm_backward(zr_visit_t *visit, const zr_part_types_t *types,
                                  const zr_part_norm_t *norm, const void *x, const void *statistics,
                                  void **dy, void **field, void *dx, bool accumulate) {
    size_t rows = visit->batch->rows;
    bool is_rms = norm->bias == NULL;
    zr_nn_layernorm_backward_t args = {.n_rows = rows,
                                       .channels = norm->channels,
                                       .is_rms = is_rms,
                                       .dy = *dy,
                                       .x = x,
                                       .weight = zr_param_data(norm->weight),
                                       .mean = is_rms ? NULL : statistics,
                                       .rstd = (const float *)statistics + rows,
                                       .dx = dx,
                                       .accumulate_dx = accumulate,
                                       .activation_dtype = types->activation_dtype,
                                       .param_dtype = types->param_dtype};
    ZR_TRY(zr_part_gradient(norm->weight, &args.dweight));
    ZR_TRY(zr_part_gradient(norm->bias, &args.dbias));
    zr_nn_workspace_t workspace;
    ZR_TRY(zr_part_take_workspace(
        visit, zr_nn_layernorm_backward_workspace_bytes(visit->device, &args), field, &workspace));
    ZR_TRY(zr_nn_layernorm_backward(visit->stream, &args, workspace));
    zr_visit_drop(visit, field);
    zr_visit_drop(visit, dy);
    return ZR_OK;
}

/* ---- blocks ---------------------------------------------------------------------------------- */

static const zr_part_types_t *types_of(const zr_visit_t *visit) {
    return &((const zr_part_model_t *)visit->shape)->types;
}

const int32_t *zr_part_document_starts(const zr_visit_t *visit) {
    return visit->batch->inputs[ZR_PART_STARTS];
}

zr_status_t zr_part_embed_forward(zr_visit_t *visit) {
    const zr_part_types_t *types = types_of(visit);
    const zr_part_tables_t *tables = visit->self;
    ZR_TRY(zr_part_take(visit, types, ZR_MEMORY_KEPT, tables->channels, &visit->y));
    zr_nn_embedding_t args = {.batch = visit->batch->n_sequences,
                              .seq = visit->batch->seq,
                              .channels = tables->channels,
                              .vocab = tables->vocab,
                              .n_positions = tables->n_positions,
                              .tokens = visit->batch->inputs[ZR_PART_TOKENS],
                              .document_starts = zr_part_document_starts(visit),
                              .token_table = zr_param_data(tables->words),
                              .position_table = data_of(tables->positions),
                              .out = visit->y,
                              .activation_dtype = types->activation_dtype,
                              .param_dtype = types->param_dtype};
    return zr_nn_embedding(visit->stream, &args);
}

zr_status_t zr_part_embed_backward(zr_visit_t *visit) {
    const zr_part_types_t *types = types_of(visit);
    const zr_part_tables_t *tables = visit->self;
    zr_part_tensors_t *tensors = visit->tensors;
    zr_nn_embedding_backward_t args = {.batch = visit->batch->n_sequences,
                                       .seq = visit->batch->seq,
                                       .channels = tables->channels,
                                       .vocab = tables->vocab,
                                       .n_positions = tables->n_positions,
                                       .tokens = visit->batch->inputs[ZR_PART_TOKENS],
                                       .document_starts = zr_part_document_starts(visit),
                                       .dout = visit->gradient,
                                       .activation_dtype = types->activation_dtype,
                                       .param_dtype = types->param_dtype};
    ZR_TRY(zr_part_gradient(tables->words, &args.dtoken_table));
    ZR_TRY(zr_part_gradient(tables->positions, &args.dposition_table));
    zr_nn_workspace_t workspace;
    ZR_TRY(zr_part_take_workspace(visit,
                                  zr_nn_embedding_backward_workspace_bytes(visit->device, &args),
                                  &tensors->workspace, &workspace));
    ZR_TRY(zr_nn_embedding_backward(visit->stream, &args, workspace));
    zr_visit_drop(visit, &tensors->workspace);
    return ZR_OK;
}

zr_status_t zr_part_last_norm_forward(zr_visit_t *visit) {
    zr_part_tensors_t *tensors = visit->tensors;
    return zr_part_norm_forward(visit, types_of(visit), visit->self, visit->x, &tensors->statistics,
                                &visit->y);
}

zr_status_t zr_part_last_norm_backward(zr_visit_t *visit) {
    const zr_part_norm_t *norm = visit->self;
    zr_part_tensors_t *tensors = visit->tensors;
    void *dx = NULL;
    ZR_TRY(zr_part_take(visit, types_of(visit), ZR_MEMORY_KEPT, norm->channels, &dx));
    zr_status_t status =
        zr_part_norm_backward(visit, types_of(visit), norm, visit->x, tensors->statistics,
                              &visit->gradient, &tensors->workspace, dx, false);
    zr_visit_drop(visit, &visit->gradient);
    visit->gradient = dx;
    zr_visit_drop(visit, &tensors->statistics);
    return status;
}

/* x to the loss, and to the gradients of x and of the table. */
static zr_status_t compute_loss(zr_visit_t *visit, bool of_x, bool of_table) {
    const zr_part_model_t *model = visit->shape;
    const zr_part_tables_t *tables = visit->self;
    zr_part_tensors_t *tensors = visit->tensors;
    size_t rows = visit->batch->rows;
    zr_nn_lm_head_t args = {.n_rows = rows,
                            .channels = tables->channels,
                            .vocab = tables->vocab,
                            .x = visit->x,
                            .weight = zr_param_data(tables->words),
                            .targets = visit->batch->inputs[ZR_PART_TARGETS],
                            .loss = visit->loss,
                            .scale = (float)visit->batch->loss_scale,
                            .activation_dtype = model->types.activation_dtype,
                            .param_dtype = model->types.param_dtype};
    zr_nn_lm_head_chunks(visit->device, model->most_rows, &args);
    if (of_x)
        ZR_TRY(
            zr_part_take(visit, &model->types, ZR_MEMORY_KEPT, tables->channels, &visit->gradient));
    args.dx = visit->gradient;
    if (of_table)
        ZR_TRY(zr_part_gradient(tables->words, &args.dweight));
    zr_nn_workspace_t workspace;
    ZR_TRY(zr_part_take_workspace(visit, zr_nn_lm_head_workspace_bytes(visit->device, &args),
                                  &tensors->workspace, &workspace));
    ZR_TRY(zr_nn_lm_head(visit->stream, &args, workspace));
    zr_visit_drop(visit, &tensors->workspace);
    return ZR_OK;
}

zr_status_t zr_part_head_forward(zr_visit_t *visit) {
    return compute_loss(visit, false, false);
}

zr_status_t zr_part_head_backward(zr_visit_t *visit) {
    return compute_loss(visit, visit->part != ZR_BACKWARD_USED,
                        visit->part != ZR_BACKWARD_BUT_USED);
}

/* ---- models ---------------------------------------------------------------------------------- */

static zr_status_t add_blocks(zr_model_t *model, const zr_part_model_desc_t *desc) {
    ZR_TRY(zr_model_add(model, desc->embed, "embed", NULL));
    for (size_t i = 0; i < desc->n_layers; i++) {
        char name[48];
        snprintf(name, sizeof(name), "%s.%zu", desc->layer_name, i);
        ZR_TRY(zr_model_add(model, desc->layer, name, NULL));
    }
    ZR_TRY(zr_model_add(model, desc->norm, desc->norm_name, NULL));
    return zr_model_add(model, desc->head, "head", NULL);
}

zr_status_t zr_part_model_create(zr_runtime_t *runtime, const zr_part_model_desc_t *desc,
                                 const zr_activation_options_t *activations, zr_model_t **model_p) {
    const zr_activation_options_t kept = {0};
    zr_part_model_t *base = desc->shape;
    activations = activations != NULL ? activations : &kept;
    base->most_rows = activations->most_rows;
    base->keeps_cheap = activations->recompute == ZR_RECOMPUTE_NEVER;
    base->encoding = desc->options->encoding;
    base->adapter = desc->options->adapter;
    ZR_TRY(zr_part_types_of(runtime, activations->least_rows, &base->types));
    base->types.attention = desc->options->attention;
    zr_model_options_t options = {
        .shape = desc->shape,
        .shape_bytes = desc->shape_bytes,
        .inputs = {[ZR_PART_TOKENS] = {"token", sizeof(int32_t), desc->vocab},
                   [ZR_PART_TARGETS] = {"target", sizeof(int32_t), desc->vocab,
                                        .ignored = ZR_NN_TARGET_IGNORED},
                   [ZR_PART_STARTS] = {"document start", sizeof(int32_t), .are_starts = true}},
        .n_inputs = desc->options->has_documents ? ZR_PART_N_INPUTS : ZR_PART_STARTS,
        .max_seq = desc->seq,
        .seed = desc->options->seed,
        .weight_decay = desc->options->weight_decay,
        .freeze = desc->options->freeze,
        .trains_added = desc->options->trains_added,
        .activations = *activations,
        .x_row_bytes = desc->channels * zr_dtype_size(base->types.activation_dtype)};
    zr_model_t *model = NULL;
    ZR_TRY(zr_model_create(runtime, &options, &model));
    zr_status_t status = add_blocks(model, desc);
    if (status == ZR_OK)
        *model_p = model;
    else
        zr_model_destroy(&model);
    return status;
}
