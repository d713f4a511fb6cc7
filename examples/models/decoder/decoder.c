/*
 * The model as a list of blocks: the embedding, the layers, the last norm, and the head, which uses
 * the embedding's table where it is tied, and else has one of its own.
 */
#include "models/decoder/decoder.h"

#include "models/decoder/internal.h"

zr_status_t zr_decoder_add_norm(zr_block_t *block, const zr_decoder_model_t *model,
                                const char *name, size_t channels, zr_part_norm_t *norm) {
    zr_block_param_t weight = {.name = name, .n_dims = 1, .dims = {channels}, .init = ZR_INIT_ONE};
    *norm = (zr_part_norm_t){.channels = channels, .epsilon = (float)model->shape.epsilon};
    return zr_block_add_param(block, &weight, &norm->weight);
}

/* ---- the blocks but layers ------------------------------------------------------------------ */

static zr_status_t declare_words(zr_block_t *block, const void *shape, const char *name,
                                 zr_part_tables_t *tables) {
    const zr_decoder_shape_t *s = &((const zr_decoder_model_t *)shape)->shape;
    zr_block_param_t words = {.name = name,
                              .n_dims = 2,
                              .dims = {s->vocab, s->channels},
                              .init = ZR_INIT_NORMAL,
                              .deviation = 0.02};
    *tables = (zr_part_tables_t){.channels = s->channels, .vocab = s->vocab};
    return zr_block_add_param(block, &words, &tables->words);
}

static zr_status_t embed_declare(zr_block_t *block, const void *shape, void *self) {
    return declare_words(block, shape, "model.embed_tokens.weight", self);
}

static const zr_block_type_t embed_block = {.name = "embedding",
                                            .declare = embed_declare,
                                            .forward = zr_part_embed_forward,
                                            .backward = zr_part_embed_backward,
                                            .self_bytes = sizeof(zr_part_tables_t),
                                            .tensors_bytes = sizeof(zr_part_tensors_t),
                                            .reads_no_params = true};

static zr_status_t head_declare(zr_block_t *block, const void *shape, void *self) {
    const zr_decoder_model_t *model = shape;
    if (!model->shape.is_tied)
        return declare_words(block, shape, "lm_head.weight", self);
    zr_block_t *embed = zr_model_block(zr_block_model(block), 0);
    *(zr_part_tables_t *)self = *(const zr_part_tables_t *)zr_block_self(embed);
    return zr_block_use(block, embed);
}

static const zr_block_type_t head_block = {.name = "head",
                                           .declare = head_declare,
                                           .forward = zr_part_head_forward,
                                           .backward = zr_part_head_backward,
                                           .separates = true,
                                           .self_bytes = sizeof(zr_part_tables_t),
                                           .tensors_bytes = sizeof(zr_part_tensors_t)};

static zr_status_t norm_declare(zr_block_t *block, const void *shape, void *self) {
    const zr_decoder_model_t *model = shape;
    return zr_decoder_add_norm(block, model, "model.norm.weight", model->shape.channels, self);
}

static const zr_block_type_t norm_block = {.name = "norm",
                                           .declare = norm_declare,
                                           .forward = zr_part_last_norm_forward,
                                           .backward = zr_part_last_norm_backward,
                                           .self_bytes = sizeof(zr_part_norm_t),
                                           .tensors_bytes = sizeof(zr_part_tensors_t)};

/* ---- the model ------------------------------------------------------------------------------- */

zr_status_t zr_decoder_check(const zr_decoder_shape_t *shape, const zr_log_t *log) {
    const zr_model_shape_t model = {.kind = ZR_MODEL_DECODER, .of.decoder = *shape};
    return zr_model_shape_check(&model, log);
}

zr_status_t zr_decoder_create(zr_runtime_t *runtime, const zr_decoder_shape_t *shape,
                              const zr_transformer_options_t *options,
                              const zr_activation_options_t *activations, zr_model_t **model_p) {
    const zr_log_t *log = zr_runtime_log(runtime);
    ZR_TRY(zr_decoder_check(shape, log));
    zr_decoder_model_t own = {.shape = *shape};
    ZR_TRY(zr_nn_rotary_frequencies(&shape->rotary, shape->head_size, log, own.frequencies));
    zr_part_model_desc_t desc = {.shape = &own,
                                 .shape_bytes = sizeof(own),
                                 .n_layers = shape->n_layers,
                                 .channels = shape->channels,
                                 .vocab = shape->vocab,
                                 .seq = shape->seq,
                                 .embed = &embed_block,
                                 .layer = &zr_decoder_layer_block,
                                 .norm = &norm_block,
                                 .head = &head_block,
                                 .layer_name = "layers",
                                 .norm_name = "norm",
                                 .options = options};
    return zr_part_model_create(runtime, &desc, activations, model_p);
}
