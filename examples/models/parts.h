/*
 * What blocks of transformers are made of: a linear layer, a norm, and the memory of a visit in
 * rows of activations. Each is written once for all models.
 *
 * Every tensor is dropped as soon as the last kernel that reads it is queued.
 */
#ifndef EXAMPLES_MODELS_PARTS_H
#define EXAMPLES_MODELS_PARTS_H

#include "zero/zero.h"

/** What the kernels of a model have in common; a part of its shape. */
typedef struct part_types {
    zr_dtype_t param_dtype;
    zr_dtype_t activation_dtype;
    size_t least_rows; /* of the smallest micro-batch there will be: what its products take a
                          workspace for, larger ones take one for, too, so that all can follow one
                          plan of memory; 0: as each needs it */
} part_types_t;

/** The dtypes of a runtime. ZR_ERR_UNSUPPORTED when its device has no kernels for them. */
ZR_NODISCARD zr_status_t part_types_of(const zr_runtime_t *runtime, size_t least_rows,
                                       part_types_t *types_p);

/* ---- memory ---------------------------------------------------------------------------------- */

/** [n_rows of the batch, n_columns] of activations. */
ZR_NODISCARD zr_status_t part_take(zr_visit_t *visit, const part_types_t *types, zr_memory_t memory,
                                   size_t n_columns, void **pointer_p);
/** [n_elems] fp32, whatever the activations are. */
ZR_NODISCARD zr_status_t part_take_floats(zr_visit_t *visit, zr_memory_t memory, size_t n_elems,
                                          void **pointer_p);
/** A workspace of so many bytes into a field, to be dropped; 0: none. */
ZR_NODISCARD zr_status_t part_take_workspace(zr_visit_t *visit, size_t size_bytes, void **field,
                                             zr_nn_workspace_t *workspace_p);
/** Where a parameter's gradient goes: data is NULL when it is frozen. */
ZR_NODISCARD zr_status_t part_gradient(zr_param_t *param, zr_nn_gradient_t *gradient_p);

/* ---- linear layers --------------------------------------------------------------------------- */

typedef struct part_linear {
    zr_param_t *weight; /* [n_in, n_out] */
    zr_param_t *bias;   /* [n_out] */
    size_t n_in, n_out;
} part_linear_t;

/** What a product does beside it. */
typedef struct part_product {
    const void *addend;        /* forward: a residual stream, added; NULL: none */
    zr_nn_epilogue_t epilogue; /* GELU forward, GELU_BACKWARD for the input's gradient */
    void *pre_gelu;
} part_product_t;

/** y = x weight + bias. `workspace` is a field of the block's tensors, free before and after. */
ZR_NODISCARD zr_status_t part_linear_forward(zr_visit_t *visit, const part_types_t *types,
                                             const part_linear_t *linear, const void *x,
                                             const part_product_t *more, void **workspace, void *y);
/** dx = dy weight^T. */
ZR_NODISCARD zr_status_t part_linear_input_gradient(zr_visit_t *visit, const part_types_t *types,
                                                    const part_linear_t *linear, const void *dy,
                                                    const part_product_t *more, void **workspace,
                                                    void *dx);
/** The gradients of weight and bias: x^T dy, and the sum of dy. */
ZR_NODISCARD zr_status_t part_linear_train(zr_visit_t *visit, const part_types_t *types,
                                           const part_linear_t *linear, const void *x,
                                           const void *dy, void **workspace);

/* ---- norms ----------------------------------------------------------------------------------- */

typedef struct part_norm {
    zr_param_t *weight, *bias; /* [channels] */
    size_t channels;
    float epsilon;
} part_norm_t;

/** y = norm(x), taken here. `statistics` [2, rows], mean and rstd for backward, is taken where it
 * is NULL, within the visit. */
ZR_NODISCARD zr_status_t part_norm_forward(zr_visit_t *visit, const part_types_t *types,
                                           const part_norm_t *norm, const void *x,
                                           void **statistics, void **y);
/** dx (+)= gradient of the norm's input, from *dy, which is dropped. */
ZR_NODISCARD zr_status_t part_norm_backward(zr_visit_t *visit, const part_types_t *types,
                                            const part_norm_t *norm, const void *x,
                                            const void *statistics, void **dy, void **workspace,
                                            void *dx, bool accumulate);

#endif
