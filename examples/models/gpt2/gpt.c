/*
 * The model as a list of blocks: the embedding, the layers, the last norm, and the head, which uses
 * the embedding's table: logits, loss and their gradients are one pass while that is gathered for
 * backward, and the rest of its gradient, that of the input, needs no parameters.
 */
#include "examples/models/gpt2/gpt.h"

#include <stdio.h>
#include <string.h>

#include "examples/models/gpt2/internal.h"

/* Logits that exist at a time: at most 4 Mi elements, and a quarter of a large vocabulary, but
   no fewer columns than GPT_MIN_CHUNK, below which products are slow. */
#define GPT_LOGITS_ELEMS ((size_t)4 << 20)
#define GPT_LARGE_VOCAB ((size_t)1024)
#define GPT_MIN_CHUNK ((size_t)128)

enum { INPUT_TOKENS = 0, INPUT_TARGETS = 1, N_INPUTS = 2 };

zr_status_t gpt_add_param(zr_block_t *block, const gpt_model_t *model, gpt_kind_t kind,
                          size_t layer, zr_init_t init, double deviation, zr_param_t **param_p) {
    gpt_tensor_t tensor = gpt_tensor(&model->shape, kind, layer);
    zr_block_param_t desc = {.name = tensor.name,
                             .n_dims = tensor.n_dims,
                             .dims = {tensor.dims[0], tensor.dims[1]},
                             .init = init,
                             .deviation = deviation};
    return zr_block_add_param(block, &desc, param_p);
}

zr_status_t gpt_add_norm(zr_block_t *block, const gpt_model_t *model, gpt_kind_t weight,
                         size_t layer, part_norm_t *norm) {
    norm->channels = model->shape.channels;
    norm->epsilon = GPT_EPSILON;
    ZR_TRY(gpt_add_param(block, model, weight, layer, ZR_INIT_ONE, 0.0, &norm->weight));
    return gpt_add_param(block, model, (gpt_kind_t)(weight + 1), layer, ZR_INIT_ZERO, 0.0,
                         &norm->bias);
}

/* ---- the embedding --------------------------------------------------------------------------- */

typedef struct embed_tensors {
    void *workspace;
} embed_tensors_t;

static zr_status_t embed_declare(zr_block_t *block, const void *shape, void *self) {
    gpt_embed_t *embed = self;
    ZR_TRY(gpt_add_param(block, shape, GPT_WTE, 0, ZR_INIT_NORMAL, 0.02, &embed->wte));
    return gpt_add_param(block, shape, GPT_WPE, 0, ZR_INIT_NORMAL, 0.02, &embed->wpe);
}

static zr_status_t embed_forward(zr_visit_t *visit) {
    const gpt_model_t *model = visit->shape;
    const gpt_embed_t *embed = visit->self;
    ZR_TRY(part_take(visit, &model->types, ZR_MEMORY_KEPT, model->shape.channels, &visit->y));
    zr_nn_embedding_t args = {.batch = visit->batch->n_sequences,
                              .seq = visit->batch->seq,
                              .channels = model->shape.channels,
                              .vocab = model->shape.vocab,
                              .n_positions = model->shape.seq,
                              .tokens = visit->batch->inputs[INPUT_TOKENS],
                              .token_table = zr_param_data(embed->wte),
                              .position_table = zr_param_data(embed->wpe),
                              .out = visit->y,
                              .activation_dtype = model->types.activation_dtype,
                              .param_dtype = model->types.param_dtype};
    return zr_nn_embedding(visit->stream, &args);
}

static zr_status_t embed_backward(zr_visit_t *visit) {
    const gpt_model_t *model = visit->shape;
    const gpt_embed_t *embed = visit->self;
    embed_tensors_t *tensors = visit->tensors;
    zr_nn_embedding_backward_t args = {.batch = visit->batch->n_sequences,
                                       .seq = visit->batch->seq,
                                       .channels = model->shape.channels,
                                       .vocab = model->shape.vocab,
                                       .n_positions = model->shape.seq,
                                       .tokens = visit->batch->inputs[INPUT_TOKENS],
                                       .dout = visit->gradient,
                                       .activation_dtype = model->types.activation_dtype,
                                       .param_dtype = model->types.param_dtype};
    ZR_TRY(part_gradient(embed->wte, &args.dtoken_table));
    ZR_TRY(part_gradient(embed->wpe, &args.dposition_table));
    zr_nn_workspace_t workspace;
    ZR_TRY(part_take_workspace(visit,
                               zr_nn_embedding_backward_workspace_bytes(visit->device, &args),
                               &tensors->workspace, &workspace));
    ZR_TRY(zr_nn_embedding_backward(visit->stream, &args, workspace));
    zr_visit_drop(visit, &tensors->workspace);
    return ZR_OK;
}

static const zr_block_type_t embed_block = {.name = "embedding",
                                            .declare = embed_declare,
                                            .forward = embed_forward,
                                            .backward = embed_backward,
                                            .self_bytes = sizeof(gpt_embed_t),
                                            .tensors_bytes = sizeof(embed_tensors_t),
                                            .reads_no_params = true};

/* ---- the last norm --------------------------------------------------------------------------- */

typedef struct final_tensors {
    void *statistics; /* fp32 [2, rows] mean and rstd */
    void *workspace;
} final_tensors_t;

static zr_status_t final_declare(zr_block_t *block, const void *shape, void *self) {
    return gpt_add_norm(block, shape, GPT_LN_F_WEIGHT, 0, self);
}

static zr_status_t final_forward(zr_visit_t *visit) {
    const gpt_model_t *model = visit->shape;
    final_tensors_t *tensors = visit->tensors;
    return part_norm_forward(visit, &model->types, visit->self, visit->x, &tensors->statistics,
                             &visit->y);
}

static zr_status_t final_backward(zr_visit_t *visit) {
    const gpt_model_t *model = visit->shape;
    final_tensors_t *tensors = visit->tensors;
    void *dx = NULL;
    ZR_TRY(part_take(visit, &model->types, ZR_MEMORY_KEPT, model->shape.channels, &dx));
    zr_status_t status =
        part_norm_backward(visit, &model->types, visit->self, visit->x, tensors->statistics,
                           &visit->gradient, &tensors->workspace, dx, false);
    zr_visit_drop(visit, &visit->gradient);
    visit->gradient = dx;
    zr_visit_drop(visit, &tensors->statistics);
    return status;
}

static const zr_block_type_t final_block = {.name = "norm",
                                            .declare = final_declare,
                                            .forward = final_forward,
                                            .backward = final_backward,
                                            .self_bytes = sizeof(part_norm_t),
                                            .tensors_bytes = sizeof(final_tensors_t)};

/* ---- the head -------------------------------------------------------------------------------- */

typedef struct head_tensors {
    void *workspace;
} head_tensors_t;

static zr_status_t head_declare(zr_block_t *block, const void *shape, void *self) {
    (void)shape;
    zr_block_t *embed = zr_model_block(zr_block_model(block), 0);
    *(const gpt_embed_t **)self = zr_block_self(embed);
    return zr_block_use(block, embed);
}

/* Chunks of equal size: all but the last are computed twice, so it should not be a small rest.
 * Where lengths vary, those of the longest: with its own a shorter one could have more logits at a
 * time. */
static size_t vocab_chunk(const gpt_model_t *model, size_t rows) {
    size_t vocab = model->shape.vocab, most;
    rows = rows > model->most_rows ? rows : model->most_rows;
    most = GPT_LOGITS_ELEMS / rows;
    most = most < GPT_MIN_CHUNK ? GPT_MIN_CHUNK : most;
    size_t n_chunks = (vocab + most - 1) / most;
    if (n_chunks < 4 && vocab > GPT_LARGE_VOCAB)
        n_chunks = 4;
    return (vocab + n_chunks - 1) / n_chunks;
}

/* x to the loss; with gradients, to that of x and of wte. */
static zr_status_t compute_loss(zr_visit_t *visit, bool with_gradients) {
    const gpt_model_t *model = visit->shape;
    const gpt_embed_t *embed = *(const gpt_embed_t **)visit->self;
    head_tensors_t *tensors = visit->tensors;
    zr_nn_lm_head_t args = {.n_rows = visit->batch->rows,
                            .channels = model->shape.channels,
                            .vocab = model->shape.vocab,
                            .vocab_chunk = vocab_chunk(model, visit->batch->rows),
                            .x = visit->x,
                            .weight = zr_param_data(embed->wte),
                            .targets = visit->batch->inputs[INPUT_TARGETS],
                            .loss = visit->loss,
                            .scale = (float)(1.0 / (double)visit->batch->rows),
                            .activation_dtype = model->types.activation_dtype,
                            .param_dtype = model->types.param_dtype};
    if (with_gradients) {
        ZR_TRY(part_take(visit, &model->types, ZR_MEMORY_KEPT, model->shape.channels,
                         &visit->gradient));
        args.dx = visit->gradient;
        ZR_TRY(part_gradient(embed->wte, &args.dweight));
    }
    zr_nn_workspace_t workspace;
    ZR_TRY(part_take_workspace(visit, zr_nn_lm_head_workspace_bytes(visit->device, &args),
                               &tensors->workspace, &workspace));
    ZR_TRY(zr_nn_lm_head(visit->stream, &args, workspace));
    zr_visit_drop(visit, &tensors->workspace);
    return ZR_OK;
}

static zr_status_t head_forward(zr_visit_t *visit) {
    return compute_loss(visit, false);
}

static zr_status_t head_backward(zr_visit_t *visit) {
    return compute_loss(visit, true);
}

static const zr_block_type_t head_block = {.name = "head",
                                           .declare = head_declare,
                                           .forward = head_forward,
                                           .backward = head_backward,
                                           .self_bytes = sizeof(const gpt_embed_t *),
                                           .tensors_bytes = sizeof(head_tensors_t)};

/* ---- the model ------------------------------------------------------------------------------- */

static zr_status_t add_blocks(zr_model_t *model, size_t n_layers) {
    ZR_TRY(zr_model_add(model, &embed_block, "embed", NULL));
    for (size_t i = 0; i < n_layers; i++) {
        char name[48];
        snprintf(name, sizeof(name), "h.%zu", i);
        ZR_TRY(zr_model_add(model, &gpt_layer_block, name, NULL));
    }
    ZR_TRY(zr_model_add(model, &final_block, "ln_f", NULL));
    return zr_model_add(model, &head_block, "head", NULL);
}

static zr_status_t check_shape(const gpt_shape_t *shape, const zr_log_t *log) {
    if (shape->n_layers != 0 && shape->channels != 0 && shape->heads != 0 && shape->seq != 0 &&
        shape->vocab != 0 && shape->channels % shape->heads == 0)
        return ZR_OK;
    return zr_fail(
        log, ZR_ERR_ARGUMENT,
        "invalid model of %s, %s, %s, %s and %s: sizes must be positive, and the number of "
        "heads must divide the channels",
        zr_count_text(shape->n_layers, "layer").text,
        zr_count_text(shape->channels, "channel").text, zr_count_text(shape->heads, "head").text,
        zr_count_text(shape->seq, "position").text, zr_count_text(shape->vocab, "word").text);
}

zr_status_t gpt_create(zr_runtime_t *runtime, const gpt_shape_t *shape,
                       const gpt_options_t *options, const zr_activation_options_t *activations,
                       zr_model_t **model_p) {
    const zr_activation_options_t kept = {0};
    activations = activations != NULL ? activations : &kept;
    ZR_TRY(check_shape(shape, zr_runtime_log(runtime)));
    gpt_model_t own = {.shape = *shape, .most_rows = activations->most_rows};
    ZR_TRY(part_types_of(runtime, activations->least_rows, &own.types));
    zr_model_options_t model_options = {
        .shape = &own,
        .shape_bytes = sizeof(own),
        .inputs = {[INPUT_TOKENS] = {"token", sizeof(int32_t), shape->vocab},
                   [INPUT_TARGETS] = {"target", sizeof(int32_t), shape->vocab}},
        .n_inputs = N_INPUTS,
        .max_seq = shape->seq,
        .seed = options->seed,
        .weight_decay = options->weight_decay,
        .freeze = options->freeze,
        .activations = *activations,
        .x_row_bytes = shape->channels * zr_dtype_size(own.types.activation_dtype)};
    zr_model_t *model = NULL;
    ZR_TRY(zr_model_create(runtime, &model_options, &model));
    zr_status_t status = add_blocks(model, shape->n_layers);
    if (status == ZR_OK)
        *model_p = model;
    else
        zr_model_destroy(&model);
    return status;
}

/* What a maker's context holds. */
typedef struct gpt_made {
    gpt_shape_t shape;
    gpt_options_t options;
} gpt_made_t;
_Static_assert(sizeof(gpt_made_t) <= ZR_MODEL_MAKER_BYTES, "a maker holds a model's sizes");

static zr_status_t make(const void *context, zr_runtime_t *runtime,
                        const zr_activation_options_t *activations, zr_model_t **model_p) {
    const gpt_made_t *made = context;
    return gpt_create(runtime, &made->shape, &made->options, activations, model_p);
}

zr_model_maker_t gpt_maker(const gpt_shape_t *shape, const gpt_options_t *options) {
    zr_model_maker_t maker = {.make = make};
    gpt_made_t made = {*shape, *options};
    memcpy(maker.context, &made, sizeof(made));
    return maker;
}

static zr_host_batch_t make_batch(const int32_t *tokens, const int32_t *targets, size_t b,
                                  size_t t) {
    return (zr_host_batch_t){
        .n_sequences = b, .seq = t, .inputs = {[INPUT_TOKENS] = tokens, [INPUT_TARGETS] = targets}};
}

zr_status_t gpt_train_micro_batch(zr_model_t *gpt, const int32_t *tokens, const int32_t *targets,
                                  size_t b, size_t t) {
    zr_host_batch_t batch = make_batch(tokens, targets, b, t);
    return zr_model_train(gpt, &batch, 1);
}

zr_status_t gpt_evaluate(zr_model_t *gpt, const int32_t *tokens, const int32_t *targets, size_t b,
                         size_t t, double *loss_p) {
    zr_host_batch_t batch = make_batch(tokens, targets, b, t);
    return zr_model_evaluate(gpt, &batch, loss_p);
}
