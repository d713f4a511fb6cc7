/*
 * The model as a whole: what it is made of, and the order in which a micro-batch acquires,
 * computes, reduces and releases its units. At stage 3 each unit is gathered twice, once for
 * each direction; the output of the model shares the embedding's parameters, so logits, loss and
 * their gradients are one pass while the embedding is acquired for backward, and the rest
 * of its gradient, that of the input, needs no parameters.
 */
#include "examples/models/gpt2/gpt.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "examples/models/gpt2/internal.h"
#include "examples/models/gpt2/tensors.h"

/* Logits that exist at a time: at most 4 Mi elements, and a quarter of a large vocabulary, but
   no fewer columns than GPT_MIN_CHUNK, below which products are slow. */
#define GPT_LOGITS_ELEMS ((size_t)4 << 20)
#define GPT_LARGE_VOCAB ((size_t)1024)
#define GPT_MIN_CHUNK ((size_t)128)

/* ---- building ------------------------------------------------------------------------ */

/* What is needed to add parameters one after the other. */
typedef struct builder {
    gpt_t *gpt;
    int matrices, vectors; /* groups */
    const char *freeze;
    bool *used; /* of each entry of freeze: whether it names a parameter */
} builder_t;

static size_t count_entries(const char *list) {
    size_t n = 1;
    for (const char *c = list; *c != '\0'; c++)
        n += *c == ',';
    return n;
}

/* Whether an entry is the name, or its part before a dot. Marks the entries that are. */
static bool is_frozen(builder_t *builder, const char *name) {
    bool frozen = false;
    const char *entry = builder->freeze;
    for (size_t i = 0; entry != NULL && *entry != '\0'; i++) {
        size_t length = strcspn(entry, ",");
        if (length > 0 && strncmp(name, entry, length) == 0 &&
            (name[length] == '\0' || name[length] == '.')) {
            builder->used[i] = true;
            frozen = true;
        }
        entry += length;
        entry += *entry == ',';
    }
    return frozen;
}

/* An entry without a name, as in "" and "wte,", names none either. */
static zr_status_t check_freeze(const builder_t *builder) {
    const char *entry = builder->freeze;
    size_t n_entries = entry != NULL ? count_entries(entry) : 0;
    for (size_t i = 0; i < n_entries; i++) {
        size_t length = strcspn(entry, ",");
        if (!builder->used[i])
            return zr_fail(zr_runtime_log(builder->gpt->runtime), ZR_ERR_ARGUMENT,
                           "--freeze \"%s\": \"%.*s\" names no parameter; names are like wte, wpe, "
                           "h.0.attn.c_attn.weight, h.0.mlp, h.1, ln_f, with commas between",
                           builder->freeze, (int)length, entry);
        entry += length;
        entry += *entry == ',';
    }
    return ZR_OK;
}

/* One parameter, into its unit. */
static zr_status_t add_param(builder_t *builder, zr_unit_t *unit, gpt_kind_t kind, size_t layer,
                             gpt_init_kind_t init_kind, double deviation, zr_param_t **param_p) {
    gpt_t *gpt = builder->gpt;
    gpt_tensor_t tensor = gpt_tensor(&gpt->shape, kind, layer);
    gpt_init_t *init = &gpt->inits[gpt->n_params++];
    *init = (gpt_init_t){init_kind, gpt_init_key(gpt->options.seed, tensor.name), deviation};
    zr_param_desc_t desc = {.name = tensor.name,
                            .n_dims = tensor.n_dims,
                            .dims = {tensor.dims[0], tensor.dims[1]},
                            .group = tensor.n_dims == 1 ? builder->vectors : builder->matrices,
                            .frozen = is_frozen(builder, tensor.name),
                            .fill = gpt_init_fill,
                            .fill_context = init};
    return zr_unit_add_param(unit, &desc, param_p);
}

/* A norm: its weight is of the kind that is named, its bias of the next one. */
static zr_status_t add_norm(builder_t *builder, zr_unit_t *unit, gpt_kind_t weight, size_t layer,
                            gpt_norm_t *norm) {
    ZR_TRY(add_param(builder, unit, weight, layer, GPT_INIT_ONE, 0.0, &norm->weight));
    return add_param(builder, unit, (gpt_kind_t)(weight + 1), layer, GPT_INIT_ZERO, 0.0,
                     &norm->bias);
}

/* Likewise a linear layer. */
static zr_status_t add_linear(builder_t *builder, size_t layer, gpt_kind_t weight, double deviation,
                              gpt_linear_t *linear) {
    zr_unit_t *unit = builder->gpt->layers[layer].unit;
    gpt_tensor_t tensor = gpt_tensor(&builder->gpt->shape, weight, layer);
    linear->n_in = tensor.dims[0];
    linear->n_out = tensor.dims[1];
    ZR_TRY(add_param(builder, unit, weight, layer, GPT_INIT_NORMAL, deviation, &linear->weight));
    return add_param(builder, unit, (gpt_kind_t)(weight + 1), layer, GPT_INIT_ZERO, 0.0,
                     &linear->bias);
}

static zr_status_t add_layer(builder_t *builder, size_t index) {
    gpt_t *gpt = builder->gpt;
    gpt_layer_t *layer = &gpt->layers[index];
    double into_residual = 0.02 / sqrt(2.0 * (double)gpt->shape.n_layers);
    char name[48];
    snprintf(name, sizeof(name), "h.%zu", index);
    ZR_TRY(zr_runtime_add_unit(gpt->runtime, name, &layer->unit));
    ZR_TRY(add_norm(builder, layer->unit, GPT_LN_1_WEIGHT, index, &layer->ln_1));
    ZR_TRY(add_linear(builder, index, GPT_ATTN_IN_WEIGHT, 0.02, &layer->attn_in));
    ZR_TRY(add_linear(builder, index, GPT_ATTN_OUT_WEIGHT, into_residual, &layer->attn_out));
    ZR_TRY(add_norm(builder, layer->unit, GPT_LN_2_WEIGHT, index, &layer->ln_2));
    ZR_TRY(add_linear(builder, index, GPT_MLP_IN_WEIGHT, 0.02, &layer->mlp_in));
    return add_linear(builder, index, GPT_MLP_OUT_WEIGHT, into_residual, &layer->mlp_out);
}

static zr_status_t add_everything(builder_t *builder) {
    gpt_t *gpt = builder->gpt;
    zr_runtime_t *runtime = gpt->runtime;
    zr_group_t matrices = {
        .name = "matrices", .weight_decay = gpt->options.weight_decay, .lr_scale = 1.0};
    zr_group_t vectors = {.name = "vectors", .weight_decay = 0.0, .lr_scale = 1.0};
    ZR_TRY(zr_runtime_add_group(runtime, &matrices, &builder->matrices));
    ZR_TRY(zr_runtime_add_group(runtime, &vectors, &builder->vectors));

    ZR_TRY(zr_runtime_add_unit(runtime, "embed", &gpt->embed));
    ZR_TRY(add_param(builder, gpt->embed, GPT_WTE, 0, GPT_INIT_NORMAL, 0.02, &gpt->wte));
    ZR_TRY(add_param(builder, gpt->embed, GPT_WPE, 0, GPT_INIT_NORMAL, 0.02, &gpt->wpe));
    for (size_t i = 0; i < gpt->shape.n_layers; i++)
        ZR_TRY(add_layer(builder, i));
    ZR_TRY(zr_runtime_add_unit(runtime, "ln_f", &gpt->final));
    ZR_TRY(add_norm(builder, gpt->final, GPT_LN_F_WEIGHT, 0, &gpt->ln_f));
    return check_freeze(builder);
}

static bool layer_is_trained(const gpt_layer_t *layer) {
    const zr_param_t *params[] = {
        layer->ln_1.weight,     layer->ln_1.bias,     layer->attn_in.weight, layer->attn_in.bias,
        layer->attn_out.weight, layer->attn_out.bias, layer->ln_2.weight,    layer->ln_2.bias,
        layer->mlp_in.weight,   layer->mlp_in.bias,   layer->mlp_out.weight, layer->mlp_out.bias};
    for (size_t i = 0; i < sizeof(params) / sizeof(params[0]); i++) {
        if (!zr_param_is_frozen(params[i]))
            return true;
    }
    return false;
}

/* The backward pass ends at the first unit that has something to train. */
static size_t find_first_trained(const gpt_t *gpt) {
    if (!zr_param_is_frozen(gpt->wte) || !zr_param_is_frozen(gpt->wpe))
        return 0;
    for (size_t i = 0; i < gpt->shape.n_layers; i++) {
        if (layer_is_trained(&gpt->layers[i]))
            return i + 1;
    }
    return gpt->shape.n_layers + 1;
}

static zr_status_t build(gpt_t *gpt) {
    const zr_log_t *log = zr_runtime_log(gpt->runtime);
    const char *freeze = gpt->options.freeze;
    gpt->layers = calloc(gpt->shape.n_layers, sizeof(*gpt->layers));
    gpt->inits = calloc(gpt->n_inits, sizeof(*gpt->inits));
    bool *used = calloc(freeze == NULL ? 1 : count_entries(freeze), sizeof(*used));
    zr_status_t status;
    if (gpt->layers == NULL || gpt->inits == NULL || used == NULL) {
        status = zr_fail(log, ZR_ERR_MEMORY, "the system has no memory for a model of %s",
                         zr_count_text(gpt->shape.n_layers, "layer").text);
    } else {
        builder_t builder = {.gpt = gpt, .freeze = freeze, .used = used};
        status = add_everything(&builder);
    }
    free(used);
    gpt->options.freeze = NULL; /* borrowed until here */
    if (status == ZR_OK)
        gpt->first_trained = find_first_trained(gpt);
    return status;
}

zr_status_t gpt_create(zr_runtime_t *runtime, const gpt_shape_t *shape,
                       const gpt_options_t *options, gpt_t **gpt_p) {
    const zr_log_t *log = zr_runtime_log(runtime);
    if (shape->n_layers == 0 || shape->channels == 0 || shape->heads == 0 || shape->seq == 0 ||
        shape->vocab == 0 || shape->channels % shape->heads != 0)
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "a model of %s, %s, %s, %s and %s "
                       "is none: all must be positive, and heads divide channels",
                       zr_count_text(shape->n_layers, "layer").text,
                       zr_count_text(shape->channels, "channel").text,
                       zr_count_text(shape->heads, "head").text,
                       zr_count_text(shape->seq, "position").text,
                       zr_count_text(shape->vocab, "word").text);
    gpt_t *gpt = calloc(1, sizeof(*gpt));
    if (gpt == NULL)
        return zr_fail(log, ZR_ERR_MEMORY, "the system has no memory for a model");
    gpt->runtime = runtime;
    gpt->allocator = zr_runtime_allocator(runtime);
    gpt->stream = zr_runtime_stream(runtime);
    gpt->shape = *shape;
    gpt->options = *options;
    gpt->n_inits = gpt_n_tensors(shape);
    gpt->param_dtype = zr_runtime_config(runtime)->dtype;
    zr_status_t status = zr_nn_activation_dtype(zr_runtime_device(runtime), gpt->param_dtype,
                                                &gpt->activation_dtype);
    if (status == ZR_OK)
        status = build(gpt);
    if (status != ZR_OK) {
        gpt_destroy(&gpt);
        return status;
    }
    *gpt_p = gpt;
    return ZR_OK;
}

/* ---- memory of a micro-batch --------------------------------------------------------------- */

/* Give back everything of a micro-batch: most is gone already, unless it failed. */
static void drop_batch(gpt_t *gpt) {
    gpt_batch_t *batch = &gpt->batch;
    if (gpt->stash != NULL)
        zr_stash_clear(gpt->stash);
    void **fields[] = {(void **)&batch->tokens,
                       (void **)&batch->targets,
                       &batch->staging,
                       &batch->residual,
                       (void **)&batch->statistics,
                       &batch->normed,
                       &batch->gelu,
                       &batch->dwide,
                       &batch->dnarrow,
                       &batch->workspace,
                       &gpt->x};
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++)
        gpt_drop(gpt, fields[i]);
    for (size_t i = 0; gpt->layers != NULL && i < gpt->shape.n_layers; i++)
        gpt_layer_drop(gpt, &gpt->layers[i]);
}

void gpt_destroy(gpt_t **gpt_pp) {
    if (gpt_pp == NULL || *gpt_pp == NULL)
        return;
    gpt_t *gpt = *gpt_pp;
    drop_batch(gpt);
    zr_stash_destroy(&gpt->stash);
    gpt_drop(gpt, (void **)&gpt->loss);
    free(gpt->layers);
    free(gpt->inits);
    free(gpt);
    *gpt_pp = NULL;
}

static zr_status_t check_tokens(const gpt_t *gpt, const char *what, const int32_t *tokens,
                                size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (tokens[i] < 0 || (size_t)tokens[i] >= gpt->shape.vocab)
            return zr_fail(zr_runtime_log(gpt->runtime), ZR_ERR_ARGUMENT,
                           "%s %zu is %d, outside of the model's vocabulary of %zu", what, i,
                           (int)tokens[i], gpt->shape.vocab);
    }
    return ZR_OK;
}

static zr_status_t check_batch(const gpt_t *gpt, const int32_t *tokens, const int32_t *targets,
                               size_t b, size_t t) {
    const zr_log_t *log = zr_runtime_log(gpt->runtime);
    if (b == 0 || t == 0 || t > gpt->shape.seq)
        return zr_fail(log, ZR_ERR_ARGUMENT, "a batch of %s of %s; the model takes 1 to %s",
                       zr_count_text(b, "sequence").text, zr_count_text(t, "token").text,
                       zr_count_text(gpt->shape.seq, "token").text);
    if (b > INT32_MAX / t)
        return zr_fail(log, ZR_ERR_ARGUMENT, "a batch of %s of %s; at most %s are possible",
                       zr_count_text(b, "sequence").text, zr_count_text(t, "token").text,
                       zr_count_text((uint64_t)INT32_MAX, "token").text);
    ZR_TRY(check_tokens(gpt, "token", tokens, b * t));
    return check_tokens(gpt, "target", targets, b * t);
}

static zr_status_t allocate(gpt_t *gpt, const char *name, zr_tier_t tier, zr_tag_t tag,
                            zr_lifetime_t lifetime, size_t size_bytes, void **field) {
    zr_allocation_request_t request = {.size_bytes = size_bytes,
                                       .tier = tier,
                                       .tag = tag,
                                       .lifetime = lifetime,
                                       .name = name,
                                       .stream = tier == ZR_TIER_DEVICE ? gpt->stream : NULL};
    return zr_allocate(gpt->allocator, &request, field);
}

/* Of the largest micro-batch. */
static size_t most_rows(const gpt_t *gpt) {
    size_t rows = gpt->batch.rows, most = gpt->options.most_tokens;
    return rows > most ? rows : most;
}

/* Copy tokens to the device by way of host memory of our own, which the allocator keeps until
   the copy is done. It is that of the largest micro-batch: what a late device copies from has no
   place in a plan of memory, and finds the same room in every step if its size is always the
   same. */
static zr_status_t upload_tokens(gpt_t *gpt, const int32_t *tokens, const int32_t *targets) {
    gpt_batch_t *batch = &gpt->batch;
    size_t size_bytes = batch->rows * sizeof(int32_t);
    size_t most_bytes = most_rows(gpt) * sizeof(int32_t);
    ZR_TRY(allocate(gpt, "tokens", ZR_TIER_DEVICE, ZR_TAG_DATA, ZR_LIFETIME_MICRO_BATCH, size_bytes,
                    (void **)&batch->tokens));
    ZR_TRY(allocate(gpt, "tokens", ZR_TIER_DEVICE, ZR_TAG_DATA, ZR_LIFETIME_MICRO_BATCH, size_bytes,
                    (void **)&batch->targets));
    ZR_TRY(allocate(gpt, "tokens", ZR_TIER_HOST, ZR_TAG_STAGING, ZR_LIFETIME_MICRO_BATCH,
                    2 * most_bytes, &batch->staging));
    if (!zr_device_info(zr_runtime_device(gpt->runtime))->stores_nothing) {
        memcpy(batch->staging, tokens, size_bytes);
        memcpy((char *)batch->staging + size_bytes, targets, size_bytes);
    }
    ZR_TRY(zr_copy_async(gpt->stream, batch->tokens, batch->staging, size_bytes,
                         ZR_COPY_HOST_TO_DEVICE));
    ZR_TRY(zr_copy_async(gpt->stream, batch->targets, (char *)batch->staging + size_bytes,
                         size_bytes, ZR_COPY_HOST_TO_DEVICE));
    gpt_drop(gpt, &batch->staging);
    return ZR_OK;
}

static zr_status_t begin_batch(gpt_t *gpt, const int32_t *tokens, const int32_t *targets, size_t b,
                               size_t t) {
    gpt->batch.b = b;
    gpt->batch.t = t;
    gpt->batch.rows = b * t;
    return upload_tokens(gpt, tokens, targets);
}

/* ---- losses -------------------------------------------------------------------------------- */

static zr_status_t clear_loss(gpt_t *gpt, size_t index) {
    static const double zero = 0.0; /* lives until the copy is done, whenever that is */
    return zr_copy_async(gpt->stream, &gpt->loss[index], &zero, sizeof(zero),
                         ZR_COPY_HOST_TO_DEVICE);
}

static zr_status_t prepare_losses(gpt_t *gpt) {
    if (gpt->loss != NULL)
        return ZR_OK;
    ZR_TRY(allocate(gpt, "losses", ZR_TIER_DEVICE, ZR_TAG_OTHER, ZR_LIFETIME_PERSISTENT,
                    2 * sizeof(double), (void **)&gpt->loss));
    ZR_TRY(clear_loss(gpt, 0));
    return clear_loss(gpt, 1);
}

/* Read a sum of losses, and start it again from 0. */
static zr_status_t read_loss(gpt_t *gpt, size_t index, double *sum_p) {
    double sum = 0.0;
    ZR_TRY(
        zr_copy_async(gpt->stream, &sum, &gpt->loss[index], sizeof(sum), ZR_COPY_DEVICE_TO_HOST));
    ZR_TRY(zr_stream_synchronize(gpt->stream));
    ZR_TRY(clear_loss(gpt, index));
    *sum_p = sum;
    return ZR_OK;
}

zr_status_t gpt_take_loss(gpt_t *gpt, double *loss_p) {
    if (gpt->n_losses == 0)
        return zr_fail(zr_runtime_log(gpt->runtime), ZR_ERR_STATE,
                       "gpt_take_loss without a micro-batch since the last one");
    double sum;
    zr_device_t *device = zr_runtime_device(gpt->runtime);
    zr_trace_phase(zr_device_trace(device), zr_device_now(device), "loss");
    ZR_TRY(read_loss(gpt, 0, &sum));
    *loss_p = sum / (double)gpt->n_losses;
    gpt->n_losses = 0;
    return ZR_OK;
}

/* ---- passes -----------------------------------------------------------------------------------
 */

static zr_status_t embed_forward(gpt_t *gpt, void **out_p) {
    const gpt_batch_t *batch = &gpt->batch;
    ZR_TRY(zr_unit_acquire(gpt->embed, ZR_FORWARD));
    ZR_TRY(gpt_take(gpt, "embed", true, batch->rows, gpt->shape.channels, out_p));
    zr_nn_embedding_t args = {.batch = batch->b,
                              .seq = batch->t,
                              .channels = gpt->shape.channels,
                              .vocab = gpt->shape.vocab,
                              .n_positions = gpt->shape.seq,
                              .tokens = batch->tokens,
                              .token_table = zr_param_data(gpt->wte),
                              .position_table = zr_param_data(gpt->wpe),
                              .out = *out_p,
                              .activation_dtype = gpt->activation_dtype,
                              .param_dtype = gpt->param_dtype};
    ZR_TRY(zr_nn_embedding(gpt->stream, &args));
    return zr_unit_release(gpt->embed);
}

/* A layer that backward will reach has computed: its input may leave the device. */
static zr_status_t put_away(gpt_t *gpt, size_t index) {
    const gpt_batch_t *batch = &gpt->batch;
    size_t n_elems = batch->rows * gpt->shape.channels;
    if (gpt->stash == NULL)
        return ZR_OK;
    return zr_stash_put(gpt->stash, index, &gpt->layers[index].x,
                        n_elems * zr_dtype_size(gpt->activation_dtype), gpt->stream);
}

/* The input of a layer for backward, and the next one on its way while backward computes. */
static zr_status_t bring_back(gpt_t *gpt, size_t index) {
    if (gpt->stash == NULL)
        return ZR_OK;
    ZR_TRY(zr_stash_get(gpt->stash, index, gpt->stream, &gpt->layers[index].x));
    return index > 0 && index >= gpt->first_trained
               ? zr_stash_prefetch(gpt->stash, index - 1, gpt->stream)
               : ZR_OK;
}

/* From tokens to gpt->x. What backward needs stays in the layers that it will reach. */
static zr_status_t layers_forward(gpt_t *gpt, bool for_backward) {
    ZR_TRY(embed_forward(gpt, &gpt->layers[0].x));
    for (size_t i = 0; i < gpt->shape.n_layers; i++) {
        gpt_layer_t *layer = &gpt->layers[i];
        bool reached = for_backward && i + 1 >= gpt->first_trained;
        void **out = i + 1 < gpt->shape.n_layers ? &gpt->layers[i + 1].x : &gpt->x;
        ZR_TRY(zr_unit_acquire(layer->unit, ZR_FORWARD));
        ZR_TRY(gpt_layer_forward(gpt, layer, reached && !gpt->options.recompute, out));
        ZR_TRY(zr_unit_release(layer->unit));
        if (reached)
            ZR_TRY(put_away(gpt, i));
        else
            gpt_drop(gpt, &layer->x);
    }
    return ZR_OK;
}

/* Chunks of equal size: all but the last are computed twice, so it should not be a small rest.
 * Where lengths vary, those of the longest: with its own a shorter one could have more logits at a
 * time. */
static size_t vocab_chunk(const gpt_t *gpt) {
    size_t rows = most_rows(gpt);
    size_t vocab = gpt->shape.vocab, most = GPT_LOGITS_ELEMS / rows;
    most = most < GPT_MIN_CHUNK ? GPT_MIN_CHUNK : most;
    size_t n_chunks = (vocab + most - 1) / most;
    if (n_chunks < 4 && vocab > GPT_LARGE_VOCAB)
        n_chunks = 4;
    return (vocab + n_chunks - 1) / n_chunks;
}

/* batch.normed to the loss; with gradients, to batch.dnarrow and that of wte. */
static zr_status_t head(gpt_t *gpt, double *loss, bool gradients) {
    gpt_batch_t *batch = &gpt->batch;
    zr_nn_lm_head_t args = {.n_rows = batch->rows,
                            .channels = gpt->shape.channels,
                            .vocab = gpt->shape.vocab,
                            .vocab_chunk = vocab_chunk(gpt),
                            .x = batch->normed,
                            .weight = zr_param_data(gpt->wte),
                            .targets = batch->targets,
                            .loss = loss,
                            .scale = (float)(1.0 / (double)batch->rows),
                            .activation_dtype = gpt->activation_dtype,
                            .param_dtype = gpt->param_dtype};
    if (gradients) {
        ZR_TRY(gpt_take(gpt, "embed", true, batch->rows, gpt->shape.channels, &batch->dnarrow));
        args.dx = batch->dnarrow;
        ZR_TRY(gpt_gradient(gpt->wte, &args.dweight));
    }
    zr_nn_workspace_t workspace;
    zr_device_t *device = zr_runtime_device(gpt->runtime);
    ZR_TRY(
        gpt_take_workspace(gpt, "embed", zr_nn_lm_head_workspace_bytes(device, &args), &workspace));
    ZR_TRY(zr_nn_lm_head(gpt->stream, &args, workspace));
    gpt_drop(gpt, &batch->workspace);
    return ZR_OK;
}

/* The last norm, whose output the head takes. */
static zr_status_t final_forward(gpt_t *gpt) {
    ZR_TRY(zr_unit_acquire(gpt->final, ZR_FORWARD));
    ZR_TRY(gpt_norm_forward(gpt, "ln_f", &gpt->ln_f, gpt->x));
    return zr_unit_release(gpt->final);
}

/* Loss and gradients, back to the output of the last layer. */
static zr_status_t head_backward(gpt_t *gpt) {
    gpt_batch_t *batch = &gpt->batch;
    ZR_TRY(zr_unit_acquire(gpt->embed, ZR_BACKWARD));
    ZR_TRY(head(gpt, &gpt->loss[0], true));
    ZR_TRY(zr_unit_release(gpt->embed)); /* its gradient is complete when the input's is added */
    gpt->n_losses++;
    gpt_drop(gpt, &batch->normed);

    ZR_TRY(zr_unit_acquire(gpt->final, ZR_BACKWARD));
    ZR_TRY(gpt_take(gpt, "ln_f", true, batch->rows, gpt->shape.channels, &batch->residual));
    ZR_TRY(gpt_norm_backward(gpt, "ln_f", &gpt->ln_f, gpt->x, batch->residual, false));
    gpt_drop(gpt, (void **)&batch->statistics);
    gpt_drop(gpt, &gpt->x);
    ZR_TRY(zr_unit_reduce(gpt->final));
    return zr_unit_release(gpt->final);
}

static zr_status_t embed_backward(gpt_t *gpt) {
    gpt_batch_t *batch = &gpt->batch;
    ZR_TRY(zr_unit_acquire(gpt->embed, ZR_GRADIENTS));
    zr_nn_embedding_backward_t args = {.batch = batch->b,
                                       .seq = batch->t,
                                       .channels = gpt->shape.channels,
                                       .vocab = gpt->shape.vocab,
                                       .n_positions = gpt->shape.seq,
                                       .tokens = batch->tokens,
                                       .dout = batch->residual,
                                       .activation_dtype = gpt->activation_dtype,
                                       .param_dtype = gpt->param_dtype};
    ZR_TRY(gpt_gradient(gpt->wte, &args.dtoken_table));
    ZR_TRY(gpt_gradient(gpt->wpe, &args.dposition_table));
    zr_nn_workspace_t workspace;
    zr_device_t *device = zr_runtime_device(gpt->runtime);
    ZR_TRY(gpt_take_workspace(gpt, "embed", zr_nn_embedding_backward_workspace_bytes(device, &args),
                              &workspace));
    ZR_TRY(zr_nn_embedding_backward(gpt->stream, &args, workspace));
    gpt_drop(gpt, &batch->workspace);
    ZR_TRY(zr_unit_reduce(gpt->embed));
    return zr_unit_release(gpt->embed);
}

static zr_status_t backward(gpt_t *gpt) {
    ZR_TRY(head_backward(gpt));
    for (size_t i = gpt->shape.n_layers; i-- > 0 && i + 1 >= gpt->first_trained;) {
        gpt_layer_t *layer = &gpt->layers[i];
        ZR_TRY(zr_unit_acquire(layer->unit, ZR_BACKWARD));
        ZR_TRY(bring_back(gpt, i));
        ZR_TRY(gpt_layer_backward(gpt, layer));
        ZR_TRY(zr_unit_reduce(layer->unit));
        ZR_TRY(zr_unit_release(layer->unit));
    }
    return gpt->first_trained == 0 ? embed_backward(gpt) : ZR_OK;
}

static zr_status_t train(gpt_t *gpt, const int32_t *tokens, const int32_t *targets, size_t b,
                         size_t t) {
    ZR_TRY(prepare_losses(gpt));
    ZR_TRY(zr_runtime_begin_micro_batch(gpt->runtime));
    ZR_TRY(begin_batch(gpt, tokens, targets, b, t));
    ZR_TRY(layers_forward(gpt, true));
    ZR_TRY(final_forward(gpt));
    return backward(gpt);
}

zr_status_t gpt_train_micro_batch(gpt_t *gpt, const int32_t *tokens, const int32_t *targets,
                                  size_t b, size_t t) {
    ZR_TRY(check_batch(gpt, tokens, targets, b, t));
    zr_status_t status = train(gpt, tokens, targets, b, t);
    drop_batch(gpt);
    return status;
}

static zr_status_t evaluate(gpt_t *gpt, const int32_t *tokens, const int32_t *targets, size_t b,
                            size_t t) {
    ZR_TRY(prepare_losses(gpt));
    ZR_TRY(begin_batch(gpt, tokens, targets, b, t));
    ZR_TRY(layers_forward(gpt, false));
    ZR_TRY(final_forward(gpt));
    ZR_TRY(zr_unit_acquire(gpt->embed, ZR_FORWARD));
    ZR_TRY(head(gpt, &gpt->loss[1], false));
    return zr_unit_release(gpt->embed);
}

zr_status_t gpt_evaluate(gpt_t *gpt, const int32_t *tokens, const int32_t *targets, size_t b,
                         size_t t, double *loss_p) {
    ZR_TRY(check_batch(gpt, tokens, targets, b, t));
    zr_status_t status = evaluate(gpt, tokens, targets, b, t);
    drop_batch(gpt);
    ZR_TRY(status);
    return read_loss(gpt, 1, loss_p);
}
