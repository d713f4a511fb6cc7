/*
 * What the files of the model share.
 */
#ifndef EXAMPLES_MODELS_GPT2_INTERNAL_H
#define EXAMPLES_MODELS_GPT2_INTERNAL_H

#include "examples/models/gpt2/gpt.h"

#define GPT_EPSILON 1e-5f /* of every norm */

typedef enum gpt_init_kind { GPT_INIT_ZERO, GPT_INIT_ONE, GPT_INIT_NORMAL } gpt_init_kind_t;

/* How a parameter starts; the runtime calls gpt_init_fill with it. */
typedef struct gpt_init {
    gpt_init_kind_t kind;
    uint64_t key;     /* of seed and name */
    double deviation; /* NORMAL */
} gpt_init_t;

uint64_t gpt_init_key(uint64_t seed, const char *name);
void gpt_init_fill(void *context, size_t first, size_t n_elems, float *values);

typedef struct gpt_norm {
    zr_param_t *weight, *bias; /* [channels] */
} gpt_norm_t;

typedef struct gpt_linear {
    zr_param_t *weight, *bias; /* [n_in, n_out], [n_out] */
    size_t n_in, n_out;
} gpt_linear_t;

/* A layer, with what backward needs of its forward pass. Rows are the tokens of the micro-batch. */
typedef struct gpt_layer {
    zr_unit_t *unit;
    gpt_norm_t ln_1, ln_2;
    gpt_linear_t attn_in, attn_out; /* c_attn, attn.c_proj */
    gpt_linear_t mlp_in, mlp_out;   /* c_fc, mlp.c_proj */

    void *x;        /* [rows, channels] its input */
    void *qkv;      /* [rows, 3 channels] */
    void *attended; /* [rows, channels] */
    float *log_sum; /* [b, heads, t] */
    void *middle;   /* [rows, channels] x after attention was added */
    void *pre_gelu; /* [rows, 4 channels] */
} gpt_layer_t;

/* A micro-batch: its sizes, its tokens on the device, and what lives no longer than a unit. */
typedef struct gpt_batch {
    size_t b, t, rows;
    int32_t *tokens, *targets; /* [rows] on the device */
    void *staging;             /* the same on the host, until they are copied */
    void *residual;            /* [rows, channels] gradient of the residual stream */

    /* Within a unit. */
    float *statistics; /* [2, rows] mean and rstd of the norm at hand */
    void *normed;      /* [rows, channels] output of a norm */
    void *gelu;        /* [rows, 4 channels] */
    void *dwide;       /* [rows, 4 or 3 channels] gradient of pre_gelu or qkv */
    void *dnarrow;     /* [rows, channels] gradient of a norm's output, or of attended */
    void *workspace;
} gpt_batch_t;

struct gpt {
    zr_runtime_t *runtime;
    zr_allocator_t *allocator;
    zr_stream_t *stream;
    gpt_shape_t shape;
    gpt_options_t options;
    zr_dtype_t param_dtype;
    zr_dtype_t activation_dtype;

    zr_unit_t *embed;
    zr_param_t *wte; /* [vocab, channels], also the output's */
    zr_param_t *wpe; /* [seq, channels] */
    gpt_layer_t *layers;
    zr_unit_t *final;
    gpt_norm_t ln_f;
    size_t first_trained; /* no unit before it is trained: 0 embed, 1 + i layer i, ... */

    size_t n_inits, n_params;
    gpt_init_t *inits; /* [n_inits], one for each parameter */

    zr_stash_t *stash; /* inputs of layers, a slot each; NULL: they stay on the device */
    zr_stash_options_t stash_options; /* n_slots 0: nothing was planned */
    char stash_name[96];
    gpt_batch_t batch;
    void *x;         /* [rows, channels] the residual stream after the last layer */
    double *loss;    /* [2] on the device: of training since it was taken; of evaluation */
    size_t n_losses; /* micro-batches in loss[0] */
};

/* ---- helpers of the passes (gpt_layer.c) ------------------------------------------------ */

/** Memory for a tensor of this micro-batch (keep) or unit, into a field that owns it. */
ZR_NODISCARD zr_status_t gpt_take(gpt_t *gpt, const char *name, bool keep, size_t n_rows,
                                  size_t n_columns, void **field);
/** The field's memory is free once the work queued so far is done. NULL is fine. */
void gpt_drop(gpt_t *gpt, void **field);
/** A workspace into batch.workspace; given back with gpt_drop. */
ZR_NODISCARD zr_status_t gpt_take_workspace(gpt_t *gpt, const char *name, size_t size_bytes,
                                            zr_nn_workspace_t *workspace_p);
/** Where a parameter's gradient goes: data is NULL when it is frozen. */
ZR_NODISCARD zr_status_t gpt_gradient(zr_param_t *param, zr_nn_gradient_t *gradient_p);

/** batch.normed = norm(x). */
ZR_NODISCARD zr_status_t gpt_norm_forward(gpt_t *gpt, const char *name, const gpt_norm_t *norm,
                                          const void *x);
/** dx (+)= gradient of the norm's input, from batch.dnarrow, which is dropped. */
ZR_NODISCARD zr_status_t gpt_norm_backward(gpt_t *gpt, const char *name, const gpt_norm_t *norm,
                                           const void *x, void *dx, bool accumulate);

/**
 * One layer, of an acquired unit: *out_p = layer(layer->x).
 *
 * @param keep   whether what backward needs stays, but for x, which always does
 * @param out_p  NULL: only what backward needs is wanted
 */
ZR_NODISCARD zr_status_t gpt_layer_forward(gpt_t *gpt, gpt_layer_t *layer, bool keep, void **out_p);
/** batch.residual, the gradient of the layer's output, becomes that of its input. */
ZR_NODISCARD zr_status_t gpt_layer_backward(gpt_t *gpt, gpt_layer_t *layer);
/** Drop everything that the layer holds. */
void gpt_layer_drop(gpt_t *gpt, gpt_layer_t *layer);

#endif
