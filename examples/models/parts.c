/* Linear layers, norms and their memory: see parts.h. */
#include "examples/models/parts.h"

zr_status_t part_types_of(const zr_runtime_t *runtime, size_t least_rows, part_types_t *types_p) {
    zr_dtype_t dtype = zr_runtime_config(runtime)->dtype;
    *types_p = (part_types_t){.param_dtype = dtype, .least_rows = least_rows};
    return zr_nn_activation_dtype(zr_runtime_device((zr_runtime_t *)runtime), dtype,
                                  &types_p->activation_dtype);
}

/* ---- memory ---------------------------------------------------------------------------------- */

zr_status_t part_take(zr_visit_t *visit, const part_types_t *types, zr_memory_t memory,
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

zr_status_t part_take_floats(zr_visit_t *visit, zr_memory_t memory, size_t n_elems,
                             void **pointer_p) {
    return zr_visit_take(visit, memory, n_elems * sizeof(float), pointer_p);
}

zr_status_t part_take_workspace(zr_visit_t *visit, size_t size_bytes, void **field,
                                zr_nn_workspace_t *workspace_p) {
    if (size_bytes > 0)
        ZR_TRY(zr_visit_take(visit, ZR_MEMORY_WORKSPACE, size_bytes, field));
    *workspace_p = (zr_nn_workspace_t){*field, size_bytes};
    return ZR_OK;
}

zr_status_t part_gradient(zr_param_t *param, zr_nn_gradient_t *gradient_p) {
    *gradient_p = (zr_nn_gradient_t){NULL, false};
    if (zr_param_is_frozen(param))
        return ZR_OK;
    return zr_param_grad(param, &gradient_p->data, &gradient_p->accumulate);
}

/* ---- linear layers --------------------------------------------------------------------------- */

static zr_status_t multiply(zr_visit_t *visit, const zr_nn_matmul_t *args, void **field) {
    zr_nn_workspace_t workspace;
    ZR_TRY(part_take_workspace(visit, zr_nn_matmul_workspace_bytes(visit->device, args), field,
                               &workspace));
    ZR_TRY(zr_nn_matmul(visit->stream, args, workspace));
    zr_visit_drop(visit, field);
    return ZR_OK;
}

zr_status_t part_linear_forward(zr_visit_t *visit, const part_types_t *types,
                                const part_linear_t *linear, const void *x,
                                const part_product_t *more, void **workspace, void *y) {
    zr_nn_matmul_t product = {.m = visit->batch->rows,
                              .least_m = types->least_rows,
                              .n = linear->n_out,
                              .k = linear->n_in,
                              .a = x,
                              .b = zr_param_data(linear->weight),
                              .c = y,
                              .a_dtype = types->activation_dtype,
                              .b_dtype = types->param_dtype,
                              .c_dtype = types->activation_dtype,
                              .bias = zr_param_data(linear->bias),
                              .bias_dtype = types->param_dtype,
                              .addend = more->addend,
                              .epilogue = more->epilogue,
                              .pre_gelu = more->pre_gelu};
    return multiply(visit, &product, workspace);
}

zr_status_t part_linear_input_gradient(zr_visit_t *visit, const part_types_t *types,
                                       const part_linear_t *linear, const void *dy,
                                       const part_product_t *more, void **workspace, void *dx) {
    zr_nn_matmul_t product = {.m = visit->batch->rows,
                              .least_m = types->least_rows,
                              .n = linear->n_in,
                              .k = linear->n_out,
                              .a = dy,
                              .b = zr_param_data(linear->weight),
                              .transpose_b = true,
                              .c = dx,
                              .a_dtype = types->activation_dtype,
                              .b_dtype = types->param_dtype,
                              .c_dtype = types->activation_dtype,
                              .epilogue = more->epilogue,
                              .pre_gelu = more->pre_gelu};
    return multiply(visit, &product, workspace);
}

static zr_status_t train_weight(zr_visit_t *visit, const part_types_t *types,
                                const part_linear_t *linear, const void *x, const void *dy,
                                void **workspace) {
    zr_nn_gradient_t dweight;
    ZR_TRY(part_gradient(linear->weight, &dweight));
    if (dweight.data == NULL)
        return ZR_OK;
    zr_nn_matmul_t product = {.m = linear->n_in,
                              .n = linear->n_out,
                              .k = visit->batch->rows,
                              .a = x,
                              .transpose_a = true,
                              .b = dy,
                              .c = dweight.data,
                              .a_dtype = types->activation_dtype,
                              .b_dtype = types->activation_dtype,
                              .c_dtype = types->param_dtype,
                              .accumulate = dweight.accumulate};
    return multiply(visit, &product, workspace);
}

zr_status_t part_linear_train(zr_visit_t *visit, const part_types_t *types,
                              const part_linear_t *linear, const void *x, const void *dy,
                              void **field) {
    ZR_TRY(train_weight(visit, types, linear, x, dy, field));
    zr_nn_bias_grad_t sum = {.n_rows = visit->batch->rows,
                             .n_columns = linear->n_out,
                             .dy = dy,
                             .activation_dtype = types->activation_dtype,
                             .param_dtype = types->param_dtype};
    ZR_TRY(part_gradient(linear->bias, &sum.dbias));
    if (sum.dbias.data == NULL)
        return ZR_OK;
    zr_nn_workspace_t workspace;
    ZR_TRY(part_take_workspace(visit, zr_nn_bias_grad_workspace_bytes(visit->device, &sum), field,
                               &workspace));
    ZR_TRY(zr_nn_bias_grad(visit->stream, &sum, workspace));
    zr_visit_drop(visit, field);
    return ZR_OK;
}

/* ---- norms ----------------------------------------------------------------------------------- */

zr_status_t part_norm_forward(zr_visit_t *visit, const part_types_t *types, const part_norm_t *norm,
                              const void *x, void **statistics, void **y) {
    size_t rows = visit->batch->rows;
    if (*statistics == NULL)
        ZR_TRY(part_take_floats(visit, ZR_MEMORY_TEMPORARY, 2 * rows, statistics));
    ZR_TRY(part_take(visit, types, ZR_MEMORY_TEMPORARY, norm->channels, y));
    zr_nn_layernorm_t args = {.n_rows = rows,
                              .channels = norm->channels,
                              .x = x,
                              .weight = zr_param_data(norm->weight),
                              .bias = zr_param_data(norm->bias),
                              .y = *y,
                              .mean = *statistics,
                              .rstd = (float *)*statistics + rows,
                              .epsilon = norm->epsilon,
                              .activation_dtype = types->activation_dtype,
                              .param_dtype = types->param_dtype};
    return zr_nn_layernorm(visit->stream, &args);
}

zr_status_t part_norm_backward(zr_visit_t *visit, const part_types_t *types,
                               const part_norm_t *norm, const void *x, const void *statistics,
                               void **dy, void **field, void *dx, bool accumulate) {
    size_t rows = visit->batch->rows;
    zr_nn_layernorm_backward_t args = {.n_rows = rows,
                                       .channels = norm->channels,
                                       .dy = *dy,
                                       .x = x,
                                       .weight = zr_param_data(norm->weight),
                                       .mean = statistics,
                                       .rstd = (const float *)statistics + rows,
                                       .dx = dx,
                                       .accumulate_dx = accumulate,
                                       .activation_dtype = types->activation_dtype,
                                       .param_dtype = types->param_dtype};
    ZR_TRY(part_gradient(norm->weight, &args.dweight));
    ZR_TRY(part_gradient(norm->bias, &args.dbias));
    zr_nn_workspace_t workspace;
    ZR_TRY(part_take_workspace(
        visit, zr_nn_layernorm_backward_workspace_bytes(visit->device, &args), field, &workspace));
    ZR_TRY(zr_nn_layernorm_backward(visit->stream, &args, workspace));
    zr_visit_drop(visit, field);
    zr_visit_drop(visit, dy);
    return ZR_OK;
}
