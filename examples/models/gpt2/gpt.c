/*
 * The model as a list of blocks: the embedding, the layers, the last norm, and the head, which uses
 * the embedding's table: logits, loss and their gradients are one pass while that is gathered for
 * backward, and the rest of its gradient, that of the input, needs no parameters.
 */
#include "models/gpt2/gpt.h"

#include "models/gpt2/internal.h"

zr_status_t zr_gpt_add_param(zr_block_t *block, const zr_gpt_model_t *model, zr_gpt_kind_t kind,
                             size_t layer, zr_init_t init, double deviation, zr_param_t **param_p) {
    zr_gpt_tensor_t tensor = zr_gpt_tensor(&model->shape, kind, layer);
    zr_block_param_t desc = {.name = tensor.name,
                             .n_dims = tensor.n_dims,
                             .dims = {tensor.dims[0], tensor.dims[1]},
                             .init = init,
                             .deviation = deviation};
    return zr_block_add_param(block, &desc, param_p);
}

zr_status_t zr_gpt_add_norm(zr_block_t *block, const zr_gpt_model_t *model, zr_gpt_kind_t weight,
                            size_t layer, zr_part_norm_t *norm) {
    norm->channels = model->shape.channels;
    norm->epsilon = ZR_GPT_EPSILON;
    ZR_TRY(zr_gpt_add_param(block, model, weight, layer, ZR_INIT_ONE, 0.0, &norm->weight));
    return zr_gpt_add_param(block, model, (zr_gpt_kind_t)(weight + 1), layer, ZR_INIT_ZERO, 0.0,
                            &norm->bias);
}

/* ---- the blocks but layers ------------------------------------------------------------------ */

static zr_status_t embed_declare(zr_block_t *block, const void *shape, void *self) {
    const zr_gpt_shape_t *sizes = &((const zr_gpt_model_t *)shape)->shape;
    zr_part_tables_t *tables = self;
    *tables = (zr_part_tables_t){
        .channels = sizes->channels, .vocab = sizes->vocab, .n_positions = sizes->seq};
    ZR_TRY(zr_gpt_add_param(block, shape, ZR_GPT_WTE, 0, ZR_INIT_NORMAL, 0.02, &tables->words));
    return zr_gpt_add_param(block, shape, ZR_GPT_WPE, 0, ZR_INIT_NORMAL, 0.02, &tables->positions);
}

static const zr_block_type_t embed_block = {.name = "embedding",
                                            .declare = embed_declare,
                                            .forward = zr_part_embed_forward,
                                            .backward = zr_part_embed_backward,
                                            .self_bytes = sizeof(zr_part_tables_t),
                                            .tensors_bytes = sizeof(zr_part_tensors_t),
                                            .reads_no_params = true};

static zr_status_t final_declare(zr_block_t *block, const void *shape, void *self) {
    return zr_gpt_add_norm(block, shape, ZR_GPT_LN_F_WEIGHT, 0, self);
}

static const zr_block_type_t final_block = {.name = "norm",
                                            .declare = final_declare,
                                            .forward = zr_part_last_norm_forward,
                                            .backward = zr_part_last_norm_backward,
                                            .self_bytes = sizeof(zr_part_norm_t),
                                            .tensors_bytes = sizeof(zr_part_tensors_t)};

static zr_status_t head_declare(zr_block_t *block, const void *shape, void *self) {
    (void)shape;
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

/* ---- the model ------------------------------------------------------------------------------- */

zr_status_t zr_gpt_create(zr_runtime_t *runtime, const zr_gpt_shape_t *shape,
                          const zr_transformer_options_t *options,
                          const zr_activation_options_t *activations, zr_model_t **model_p) {
    const zr_model_shape_t model = {.kind = ZR_MODEL_GPT, .of.gpt = *shape};
    ZR_TRY(zr_model_shape_check(&model, zr_runtime_log(runtime)));
    zr_gpt_model_t own = {.shape = *shape};
    zr_part_model_desc_t desc = {.shape = &own,
                                 .shape_bytes = sizeof(own),
                                 .n_layers = shape->n_layers,
                                 .channels = shape->channels,
                                 .vocab = shape->vocab,
                                 .seq = shape->seq,
                                 .embed = &embed_block,
                                 .layer = &zr_gpt_layer_block,
                                 .norm = &final_block,
                                 .head = &head_block,
                                 .layer_name = "h",
                                 .norm_name = "ln_f",
                                 .options = options};
    return zr_part_model_create(runtime, &desc, activations, model_p);
}
