/* See low_rank.h. */
#include "tests/ref/low_rank.h"

static size_t n_rows(const zr_part_linear_t *linear, int factor) {
    return factor == LOW_RANK_A ? linear->n_in : LOW_RANK;
}

static size_t n_columns(const zr_part_linear_t *linear, int factor) {
    return factor == LOW_RANK_A ? LOW_RANK : linear->n_out;
}

static zr_status_t declare(zr_block_t *block, zr_part_linear_t *linear) {
    for (int factor = LOW_RANK_A; factor <= LOW_RANK_B; factor++) {
        zr_block_param_t param = {.name = factor == LOW_RANK_A ? "a.weight" : "b.weight",
                                  .n_dims = 2,
                                  .dims = {n_rows(linear, factor), n_columns(linear, factor)},
                                  .init = ZR_INIT_NORMAL,
                                  .deviation = 0.1};
        ZR_TRY(zr_part_linear_add_param(block, linear, &param, &linear->added[factor]));
    }
    return ZR_OK;
}

/* c += rows times a factor, or its transpose; where c is NULL it is taken, and overwritten. */
static zr_status_t multiply(zr_visit_t *visit, const zr_part_linear_t *linear, const void *rows,
                            int factor, bool transpose, zr_part_scratch_t *scratch, void **c) {
    size_t n_out = n_columns(linear, factor), n_in = n_rows(linear, factor);
    zr_nn_matmul_t product = {.m = visit->batch->rows,
                              .least_m = linear->types.least_rows,
                              .n = transpose ? n_in : n_out,
                              .k = transpose ? n_out : n_in,
                              .a = rows,
                              .b = zr_param_data(linear->added[factor]),
                              .transpose_b = transpose,
                              .addend = *c,
                              .a_dtype = linear->types.activation_dtype,
                              .b_dtype = linear->types.param_dtype,
                              .c_dtype = linear->types.activation_dtype};
    if (*c == NULL)
        ZR_TRY(zr_part_take(visit, &linear->types, ZR_MEMORY_TEMPORARY, product.n, c));
    product.c = *c;
    return zr_part_multiply(visit, &product, &scratch->workspace);
}

/* The gradient of a factor: x^T dy. */
static zr_status_t train(zr_visit_t *visit, const zr_part_linear_t *linear, const void *x,
                         const void *dy, int factor, zr_part_scratch_t *scratch) {
    zr_nn_gradient_t gradient;
    ZR_TRY(zr_part_gradient(linear->added[factor], &gradient));
    zr_nn_matmul_t product = {.m = n_rows(linear, factor),
                              .n = n_columns(linear, factor),
                              .k = visit->batch->rows,
                              .a = x,
                              .transpose_a = true,
                              .b = dy,
                              .c = gradient.data,
                              .a_dtype = linear->types.activation_dtype,
                              .b_dtype = linear->types.activation_dtype,
                              .c_dtype = linear->types.param_dtype,
                              .accumulate = gradient.accumulate};
    return gradient.data != NULL ? zr_part_multiply(visit, &product, &scratch->workspace) : ZR_OK;
}

static zr_status_t forward(zr_visit_t *visit, const zr_part_linear_t *linear, const void *x,
                           zr_part_scratch_t *scratch, void *y) {
    void **middle = &scratch->adapter[0];
    ZR_TRY(multiply(visit, linear, x, LOW_RANK_A, false, scratch, middle));
    ZR_TRY(multiply(visit, linear, *middle, LOW_RANK_B, false, scratch, &y));
    zr_visit_drop(visit, middle);
    return ZR_OK;
}

static zr_status_t backward(zr_visit_t *visit, const zr_part_linear_t *linear, const void *x,
                            const void *dy, zr_part_scratch_t *scratch, void *dx) {
    void **middle = &scratch->adapter[0], **dmiddle = &scratch->adapter[1];
    ZR_TRY(multiply(visit, linear, x, LOW_RANK_A, false, scratch, middle));
    ZR_TRY(train(visit, linear, *middle, dy, LOW_RANK_B, scratch));
    zr_visit_drop(visit, middle);
    ZR_TRY(multiply(visit, linear, dy, LOW_RANK_B, true, scratch, dmiddle));
    ZR_TRY(train(visit, linear, x, *dmiddle, LOW_RANK_A, scratch));
    ZR_TRY(multiply(visit, linear, *dmiddle, LOW_RANK_A, true, scratch, &dx));
    zr_visit_drop(visit, dmiddle);
    return ZR_OK;
}

const zr_part_adapter_t low_rank_adapter = {
    .declare = declare, .forward = forward, .backward = backward};
