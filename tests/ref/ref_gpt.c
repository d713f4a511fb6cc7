/*
 * See ref_gpt.h.
 */
#include "tests/ref/ref_gpt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/ref/ref_nn.h"

#define EPSILON 1e-5

/* Tensors of a layer, in their order. */
enum {
    LN_1_WEIGHT,
    LN_1_BIAS,
    ATTN_IN_WEIGHT,
    ATTN_IN_BIAS,
    ATTN_OUT_WEIGHT,
    ATTN_OUT_BIAS,
    LN_2_WEIGHT,
    LN_2_BIAS,
    MLP_IN_WEIGHT,
    MLP_IN_BIAS,
    MLP_OUT_WEIGHT,
    MLP_OUT_BIAS,
    N_LAYER_TENSORS
};

size_t ref_gpt_n_tensors(const ref_gpt_shape_t *shape) {
    return 2 + N_LAYER_TENSORS * shape->n_layers + 2;
}

size_t ref_gpt_tensor(const ref_gpt_shape_t *shape, size_t index, char *name) {
    static const char *const names[] = {
        "ln_1.weight",        "ln_1.bias",        "attn.c_attn.weight", "attn.c_attn.bias",
        "attn.c_proj.weight", "attn.c_proj.bias", "ln_2.weight",        "ln_2.bias",
        "mlp.c_fc.weight",    "mlp.c_fc.bias",    "mlp.c_proj.weight",  "mlp.c_proj.bias"};
    size_t c = shape->channels;
    const size_t sizes[] = {c, c, 3 * c * c, 3 * c, c * c, c, c, c, 4 * c * c, 4 * c, 4 * c * c, c};
    if (index < 2) {
        snprintf(name, 64, index == 0 ? "wte.weight" : "wpe.weight");
        return (index == 0 ? shape->vocab : shape->seq) * c;
    }
    if (index + 2 >= ref_gpt_n_tensors(shape)) {
        snprintf(name, 64, index + 2 == ref_gpt_n_tensors(shape) ? "ln_f.weight" : "ln_f.bias");
        return c;
    }
    size_t layer = (index - 2) / N_LAYER_TENSORS, tensor = (index - 2) % N_LAYER_TENSORS;
    snprintf(name, 64, "h.%zu.%s", layer, names[tensor]);
    return sizes[tensor];
}

/* ---- linear layers ------------------------------------------------------------------ */

static double *new_array(size_t n) {
    double *array = calloc(n + 1, sizeof(double));
    if (array == NULL)
        abort();
    return array;
}

/* y = x weight + bias */
static double *linear(const double *x, const double *weight, const double *bias, size_t rows,
                      size_t n_in, size_t n_out) {
    double *y = new_array(rows * n_out);
    ref_matmul(y, x, false, weight, false, rows, n_out, n_in);
    for (size_t i = 0; i < rows * n_out; i++)
        y[i] += bias[i % n_out];
    return y;
}

/* dx; dweight and dbias are written. */
static double *linear_backward(double *dweight, double *dbias, const double *dy, const double *x,
                               const double *weight, size_t rows, size_t n_in, size_t n_out) {
    double *dx = new_array(rows * n_in);
    ref_matmul(dx, dy, false, weight, true, rows, n_in, n_out);
    ref_matmul(dweight, x, true, dy, false, n_in, n_out, rows);
    for (size_t i = 0; i < n_out; i++)
        dbias[i] = 0.0;
    for (size_t i = 0; i < rows * n_out; i++)
        dbias[i % n_out] += dy[i];
    return dx;
}

/* ---- a layer --------------------------------------------------------------------------- */

typedef struct layer {
    double *x, *norm_1, *qkv, *attended, *middle, *norm_2, *pre_gelu, *gelu;
} layer_t;

typedef struct sizes {
    size_t b, t, rows, heads, channels;
} sizes_t;

static ref_attention_t attention_of(const sizes_t *s) {
    return (ref_attention_t){.batch = s->b,
                             .seq = s->t,
                             .heads = s->heads,
                             .kv_heads = s->heads,
                             .head_size = s->channels / s->heads};
}

/* The layer's output; everything on the way is kept. */
static double *layer_forward(layer_t *layer, double *const *w, const sizes_t *s) {
    size_t c = s->channels, n = s->rows * c;
    ref_attention_t attention = attention_of(s);
    layer->norm_1 = new_array(n);
    ref_layernorm(layer->norm_1, layer->x, w[LN_1_WEIGHT], w[LN_1_BIAS], EPSILON, s->rows, c);
    layer->qkv = linear(layer->norm_1, w[ATTN_IN_WEIGHT], w[ATTN_IN_BIAS], s->rows, c, 3 * c);
    layer->attended = new_array(n);
    ref_attention(layer->attended, NULL, layer->qkv, &attention);
    layer->middle = linear(layer->attended, w[ATTN_OUT_WEIGHT], w[ATTN_OUT_BIAS], s->rows, c, c);
    for (size_t i = 0; i < n; i++)
        layer->middle[i] += layer->x[i];
    layer->norm_2 = new_array(n);
    ref_layernorm(layer->norm_2, layer->middle, w[LN_2_WEIGHT], w[LN_2_BIAS], EPSILON, s->rows, c);
    layer->pre_gelu = linear(layer->norm_2, w[MLP_IN_WEIGHT], w[MLP_IN_BIAS], s->rows, c, 4 * c);
    layer->gelu = new_array(4 * n);
    for (size_t i = 0; i < 4 * n; i++)
        layer->gelu[i] = ref_gelu(layer->pre_gelu[i]);
    double *out = linear(layer->gelu, w[MLP_OUT_WEIGHT], w[MLP_OUT_BIAS], s->rows, 4 * c, c);
    for (size_t i = 0; i < n; i++)
        out[i] += layer->middle[i];
    return out;
}

/* residual: gradient of the output, becomes that of the input. */
static void layer_backward(const layer_t *layer, double *const *w, double *const *g,
                           double *residual, const sizes_t *s) {
    size_t c = s->channels, n = s->rows * c;
    double *dx = new_array(n);
    double *dgelu = linear_backward(g[MLP_OUT_WEIGHT], g[MLP_OUT_BIAS], residual, layer->gelu,
                                    w[MLP_OUT_WEIGHT], s->rows, 4 * c, c);
    for (size_t i = 0; i < 4 * n; i++)
        dgelu[i] *= ref_gelu_slope(layer->pre_gelu[i]);
    double *dnorm = linear_backward(g[MLP_IN_WEIGHT], g[MLP_IN_BIAS], dgelu, layer->norm_2,
                                    w[MLP_IN_WEIGHT], s->rows, c, 4 * c);
    ref_layernorm_backward(dx, g[LN_2_WEIGHT], g[LN_2_BIAS], dnorm, layer->middle, w[LN_2_WEIGHT],
                           EPSILON, s->rows, c);
    for (size_t i = 0; i < n; i++)
        residual[i] += dx[i];
    free(dgelu);
    free(dnorm);

    double *dattended = linear_backward(g[ATTN_OUT_WEIGHT], g[ATTN_OUT_BIAS], residual,
                                        layer->attended, w[ATTN_OUT_WEIGHT], s->rows, c, c);
    double *dqkv = new_array(3 * n);
    ref_attention_t attention = attention_of(s);
    ref_attention_backward(dqkv, dattended, layer->qkv, &attention);
    dnorm = linear_backward(g[ATTN_IN_WEIGHT], g[ATTN_IN_BIAS], dqkv, layer->norm_1,
                            w[ATTN_IN_WEIGHT], s->rows, c, 3 * c);
    ref_layernorm_backward(dx, g[LN_1_WEIGHT], g[LN_1_BIAS], dnorm, layer->x, w[LN_1_WEIGHT],
                           EPSILON, s->rows, c);
    for (size_t i = 0; i < n; i++)
        residual[i] += dx[i];
    free(dattended);
    free(dqkv);
    free(dnorm);
    free(dx);
}

static void free_layer(layer_t *layer) {
    double *arrays[] = {layer->x,      layer->norm_1, layer->qkv,      layer->attended,
                        layer->middle, layer->norm_2, layer->pre_gelu, layer->gelu};
    for (size_t i = 0; i < sizeof(arrays) / sizeof(arrays[0]); i++)
        free(arrays[i]);
}

/* ---- the model ----------------------------------------------------------------------------- */

static double *embed(const double *wte, const double *wpe, const int32_t *tokens,
                     const sizes_t *s) {
    double *x = new_array(s->rows * s->channels);
    for (size_t i = 0; i < s->rows * s->channels; i++) {
        size_t row = i / s->channels, column = i % s->channels;
        x[i] = wte[(size_t)tokens[row] * s->channels + column] +
               wpe[row % s->t * s->channels + column];
    }
    return x;
}

static void embed_backward(double *dwte, double *dwpe, const double *dx, const int32_t *tokens,
                           const sizes_t *s) {
    for (size_t i = 0; i < s->rows * s->channels; i++) {
        size_t row = i / s->channels, column = i % s->channels;
        dwte[(size_t)tokens[row] * s->channels + column] += dx[i];
        dwpe[row % s->t * s->channels + column] += dx[i];
    }
}

double ref_gpt(const ref_gpt_shape_t *shape, double *const *params, double *const *gradients,
               const int32_t *tokens, const int32_t *targets, size_t b, size_t t) {
    const sizes_t s = {b, t, b * t, shape->heads, shape->channels};
    size_t n_layers = shape->n_layers, last = 2 + N_LAYER_TENSORS * n_layers;
    size_t n = s.rows * s.channels, n_logits = s.rows * shape->vocab;
    layer_t *layers = calloc(n_layers + 1, sizeof(*layers));
    if (layers == NULL)
        abort();

    layers[0].x = embed(params[0], params[1], tokens, &s);
    for (size_t i = 0; i < n_layers; i++)
        layers[i + 1].x = layer_forward(&layers[i], params + 2 + i * N_LAYER_TENSORS, &s);
    const double *x = layers[n_layers].x;
    double *norm = new_array(n), *logits = new_array(n_logits), *dlogits = new_array(n_logits);
    ref_layernorm(norm, x, params[last], params[last + 1], EPSILON, s.rows, s.channels);
    ref_matmul(logits, norm, false, params[0], true, s.rows, shape->vocab, s.channels);
    double loss = ref_cross_entropy(dlogits, logits, targets, s.rows, shape->vocab);

    if (gradients != NULL) {
        for (size_t i = 0; i < n_logits; i++)
            dlogits[i] /= (double)s.rows;
        double *dnorm = new_array(n), *residual = new_array(n);
        ref_matmul(dnorm, dlogits, false, params[0], false, s.rows, s.channels, shape->vocab);
        ref_matmul(gradients[0], dlogits, true, norm, false, shape->vocab, s.channels, s.rows);
        memset(gradients[1], 0, shape->seq * s.channels * sizeof(double));
        ref_layernorm_backward(residual, gradients[last], gradients[last + 1], dnorm, x,
                               params[last], EPSILON, s.rows, s.channels);
        for (size_t i = n_layers; i-- > 0;)
            layer_backward(&layers[i], params + 2 + i * N_LAYER_TENSORS,
                           gradients + 2 + i * N_LAYER_TENSORS, residual, &s);
        embed_backward(gradients[0], gradients[1], residual, tokens, &s);
        free(dnorm);
        free(residual);
    }
    for (size_t i = 0; i <= n_layers; i++)
        free_layer(&layers[i]);
    free(layers);
    free(norm);
    free(logits);
    free(dlogits);
    return loss / (double)s.rows;
}
