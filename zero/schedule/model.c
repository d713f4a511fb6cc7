/* What a model is made of: blocks and their parameters, before and until commit. */
#include "zero/schedule/model.h"

#include <stdio.h>
#include <string.h>

#include "zero/schedule/schedule_internal.h"

static zr_status_t fail_memory(const zr_model_t *model) {
    return zr_fail(model->log, ZR_ERR_MEMORY, "the system has no memory for a model of %s",
                   zr_count_text(model->n_blocks, "block").text);
}

const char *zr_recompute_name(zr_recompute_t recompute) {
    static const char *const names[ZR_N_RECOMPUTES] = {"none", "unit", "never"};
    return names[recompute];
}

/* ---- freezing -------------------------------------------------------------------------------- */

static size_t count_entries(const char *list) {
    size_t n = 1;
    for (const char *c = list; *c != '\0'; c++)
        n += *c == ',';
    return n;
}

/* Whether an entry is the name, its part before a dot, or all. Marks the entries that are. */
static bool is_frozen(zr_model_t *model, const char *name) {
    bool frozen = false;
    const char *entry = model->options.freeze;
    for (size_t i = 0; entry != NULL && *entry != '\0'; i++) {
        size_t length = strcspn(entry, ",");
        bool is_all = length == 1 && *entry == *ZR_MODEL_FREEZE_ALL;
        if (is_all || (length > 0 && strncmp(name, entry, length) == 0 &&
                       (name[length] == '\0' || name[length] == '.'))) {
            model->freeze_is_used[i] = true;
            frozen = true;
        }
        entry += length;
        entry += *entry == ',';
    }
    return frozen;
}

/* An entry without a name, as in "" and "wte,", names none either. */
static zr_status_t check_freeze(const zr_model_t *model) {
    const char *freeze = model->options.freeze, *entry = freeze;
    size_t n_entries = entry != NULL ? count_entries(entry) : 0;
    for (size_t i = 0; i < n_entries; i++) {
        size_t length = strcspn(entry, ",");
        if (!model->freeze_is_used[i])
            return zr_fail(
                model->log, ZR_ERR_ARGUMENT,
                "--freeze \"%s\": \"%.*s\" names no parameter; allowed: names of parameters, or "
                "their beginnings before a dot (such as \"%s\"), with commas between",
                freeze, (int)length, entry, model->blocks[model->n_blocks / 2]->name);
        entry += length;
        entry += *entry == ',';
    }
    return ZR_OK;
}

/* ---- life ------------------------------------------------------------------------------------ */

static zr_status_t check_options(const zr_model_options_t *options, const zr_log_t *log) {
    if (options->n_inputs > ZR_MAX_INPUTS)
        return zr_fail(log, ZR_ERR_ARGUMENT, "a model with %s; at most %d are allowed",
                       zr_count_text(options->n_inputs, "input").text, ZR_MAX_INPUTS);
    for (size_t i = 0; i < options->n_inputs; i++) {
        const zr_input_desc_t *input = &options->inputs[i];
        bool is_int32 = input->n_values != 0 || input->are_starts;
        if (input->elem_bytes == 0 || (is_int32 && input->elem_bytes != 4))
            return zr_fail(log, ZR_ERR_ARGUMENT,
                           "input \"%s\": elements of %zu bytes are invalid%s", input->name,
                           input->elem_bytes,
                           is_int32 ? ": those with n_values or are_starts have 4" : "");
        if (input->ignored > 0 || (input->ignored < 0 && input->n_values == 0))
            return zr_fail(log, ZR_ERR_ARGUMENT,
                           "input \"%s\": ignored is %d; it must be negative, with n_values, or 0",
                           input->name, (int)input->ignored);
    }
    const zr_activation_options_t *activations = &options->activations;
    if (activations->device != ZR_OFFLOAD_NONE &&
        (activations->recompute != ZR_RECOMPUTE_UNIT || activations->most_rows == 0 ||
         options->x_row_bytes == 0))
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "activations can be offloaded with recompute only, and where their largest "
                       "size is known (most_rows, x_row_bytes)");
    return ZR_OK;
}

static zr_status_t copy_options(zr_model_t *model, const zr_model_options_t *options) {
    model->options = *options;
    model->options.shape = NULL;
    model->options.freeze = NULL;
    void *shape = zr_heap_alloc(model->heap, 1, options->shape_bytes);
    if (shape == NULL)
        return fail_memory(model);
    if (options->shape_bytes != 0)
        memcpy(shape, options->shape, options->shape_bytes);
    model->options.shape = shape;
    if (options->freeze == NULL)
        return ZR_OK;
    model->options.freeze = zr_heap_text(model->heap, options->freeze);
    model->freeze_is_used =
        zr_heap_alloc(model->heap, count_entries(options->freeze), sizeof(bool));
    return model->options.freeze != NULL && model->freeze_is_used != NULL ? ZR_OK
                                                                          : fail_memory(model);
}

static zr_status_t add_groups(zr_model_t *model) {
    zr_group_t matrices = {
        .name = "matrices", .weight_decay = model->options.weight_decay, .lr_scale = 1.0};
    zr_group_t vectors = {.name = "vectors", .weight_decay = 0.0, .lr_scale = 1.0};
    ZR_TRY(zr_runtime_add_group(model->runtime, &matrices, &model->matrices));
    return zr_runtime_add_group(model->runtime, &vectors, &model->vectors);
}

zr_status_t zr_model_create(zr_runtime_t *runtime, const zr_model_options_t *options,
                            zr_model_t **model_p) {
    const zr_log_t *log = zr_runtime_log(runtime);
    ZR_TRY(check_options(options, log));
    zr_heap_t *heap = zr_heap_create(zr_allocator_heap(zr_runtime_allocator(runtime)));
    zr_model_t *model = heap != NULL ? zr_heap_alloc(heap, 1, sizeof(*model)) : NULL;
    if (model == NULL) {
        zr_heap_destroy(&heap);
        return zr_fail(log, ZR_ERR_MEMORY, "the system has no memory for a model");
    }
    model->heap = heap;
    model->inits = zr_heap_create(heap);
    model->runtime = runtime;
    model->allocator = zr_runtime_allocator(runtime);
    model->device = zr_runtime_device(runtime);
    model->stream = zr_runtime_stream(runtime);
    model->log = log;
    zr_status_t status = model->inits != NULL ? ZR_OK : fail_memory(model);
    ZR_THEN(status, copy_options(model, options));
    ZR_THEN(status, add_groups(model));
    if (status == ZR_OK)
        *model_p = model;
    else
        zr_model_destroy(&model);
    return status;
}

void zr_model_destroy(zr_model_t **model_p) {
    if (model_p == NULL || *model_p == NULL)
        return;
    zr_model_t *model = *model_p;
    for (size_t i = 0; i < model->n_flights; i++)
        zr_flight_end(model, &model->flights[i]);
    zr_flights_free(model);
    zr_stash_destroy(&model->stash);
    zr_free(model->allocator, (void **)&model->loss, model->stream);
    zr_heap_destroy(&model->inits);
    zr_heap_t *heap = model->heap;
    zr_heap_destroy(&heap);
    *model_p = NULL;
}

/* ---- blocks ---------------------------------------------------------------------------------- */

static zr_status_t check_type(const zr_model_t *model, const zr_block_type_t *type,
                              const char *name) {
    if (model->is_committed)
        return zr_fail(model->log, ZR_ERR_STATE, "block \"%s\": the model is committed", name);
    if (type->forward == NULL || type->backward == NULL ||
        type->tensors_bytes % sizeof(void *) != 0)
        return zr_fail(model->log, ZR_ERR_ARGUMENT,
                       "block \"%s\": a block needs forward and backward, and tensors_bytes of "
                       "whole pointers",
                       name);
    return ZR_OK;
}

static zr_status_t append_block(zr_model_t *model, zr_block_t *block) {
    if (!zr_heap_make_room(model->heap, &model->blocks, model->n_blocks, &model->capacity,
                           sizeof(zr_block_t *)))
        return fail_memory(model);
    block->index = model->n_blocks;
    model->blocks[model->n_blocks++] = block;
    return ZR_OK;
}

zr_status_t zr_model_add(zr_model_t *model, const zr_block_type_t *type, const char *name,
                         zr_block_t **block_p) {
    ZR_TRY(check_type(model, type, name));
    zr_block_t *block = zr_heap_alloc(model->heap, 1, sizeof(*block));
    if (block == NULL)
        return fail_memory(model);
    block->model = model;
    block->type = type;
    block->slot = ZR_NO_SLOT;
    block->n_tensors = type->tensors_bytes / sizeof(void *);
    block->tensors_offset = model->n_tensors;
    block->name = zr_heap_text(model->heap, name);
    block->self = zr_heap_alloc(model->heap, 1, type->self_bytes);
    if (block->name == NULL || block->self == NULL)
        return fail_memory(model);
    ZR_TRY(append_block(model, block));
    model->n_tensors += block->n_tensors;
    if (type->declare != NULL)
        ZR_TRY(type->declare(block, model->options.shape, block->self));
    if (block_p != NULL)
        *block_p = block;
    return ZR_OK;
}

/* A unit keeps all that is frozen in one encoding: what has another is of a second one. */
static zr_status_t find_unit(zr_block_t *block, const zr_param_desc_t *param, zr_unit_t **unit_p) {
    zr_runtime_t *runtime = block->model->runtime;
    bool is_encoded = param->frozen && param->encoding != NULL &&
                      param->encoding != zr_encoding_of(zr_runtime_config(runtime)->dtype);
    char name[256];
    if (block->unit == NULL)
        ZR_TRY(zr_runtime_add_unit(runtime, block->name, &block->unit));
    if (is_encoded && block->encoded == NULL) {
        snprintf(name, sizeof(name), "%.200s.%s", block->name, param->encoding->name);
        ZR_TRY(zr_runtime_add_unit(runtime, name, &block->encoded));
    }
    *unit_p = is_encoded ? block->encoded : block->unit;
    return ZR_OK;
}

zr_status_t zr_block_add_param(zr_block_t *block, const zr_block_param_t *desc,
                               zr_param_t **param_p) {
    zr_model_t *model = block->model;
    zr_param_init_t *init = zr_heap_alloc(model->inits, 1, sizeof(*init));
    if (init == NULL)
        return fail_memory(model);
    *init = (zr_param_init_t){desc->init, zr_init_key(model->options.seed, desc->name),
                              desc->deviation};
    zr_param_desc_t param = {.name = desc->name,
                             .n_dims = desc->n_dims,
                             .group = desc->n_dims <= 1 ? model->vectors : model->matrices,
                             .frozen = is_frozen(model, desc->name) ||
                                       (model->options.trains_added && !desc->is_added),
                             .may_be_new = desc->is_added,
                             .encoding = desc->encoding,
                             .fill = zr_init_fill,
                             .fill_context = init};
    memcpy(param.dims, desc->dims, sizeof(param.dims));
    zr_unit_t *unit = NULL;
    ZR_TRY(find_unit(block, &param, &unit));
    ZR_TRY(zr_unit_add_param(unit, &param, param_p));
    block->is_trained |= !param.frozen;
    return ZR_OK;
}

zr_status_t zr_block_use(zr_block_t *block, zr_block_t *used) {
    const zr_log_t *log = block->model->log;
    if (used->model != block->model || used->index >= block->index || used->unit == NULL)
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "block \"%s\" cannot use \"%s\": it must be an earlier block of the same "
                       "model, with parameters",
                       block->name, used->name);
    if (block->n_used == ZR_MAX_USED)
        return zr_fail(log, ZR_ERR_ARGUMENT, "block \"%s\" uses more than %d others", block->name,
                       ZR_MAX_USED);
    block->used[block->n_used++] = used;
    return ZR_OK;
}

void *zr_block_self(zr_block_t *block) {
    return block->self;
}

zr_block_t *zr_model_block(const zr_model_t *model, size_t index) {
    return index < model->n_blocks ? model->blocks[index] : NULL;
}

zr_model_t *zr_block_model(const zr_block_t *block) {
    return block->model;
}

size_t zr_block_index(const zr_block_t *block) {
    return block->index;
}

zr_unit_t *zr_block_unit(const zr_block_t *block) {
    return block->unit;
}

size_t zr_model_n_blocks(const zr_model_t *model) {
    return model->n_blocks;
}

size_t zr_model_input_bytes(const zr_model_t *model, size_t rows) {
    size_t elem_bytes = 0;
    for (size_t i = 0; i < model->options.n_inputs; i++)
        elem_bytes += model->options.inputs[i].elem_bytes;
    return rows * elem_bytes;
}

zr_runtime_t *zr_model_runtime(const zr_model_t *model) {
    return model->runtime;
}

/* ---- activations that wait elsewhere --------------------------------------------------------- */

/* What a block is given waits for backward, where it is computed again; with several micro-batches
 * together also for the block's own turn, as gradients do. */
static bool may_wait(const zr_model_t *model, const zr_block_t *block) {
    return block->index > 0 && (block->type->recomputes || model->n_together > 1);
}

size_t zr_model_count_inputs(const zr_model_t *model, size_t *size_bytes_p) {
    const zr_model_options_t *options = &model->options;
    size_t n = 0;
    for (size_t i = 0; i < model->n_blocks; i++)
        n += may_wait(model, model->blocks[i]);
    *size_bytes_p = n * model->n_together * options->activations.most_rows * options->x_row_bytes;
    return n;
}

static size_t number_slots(zr_model_t *model, const char **kind_p) {
    size_t n_slots = 0, n_together = model->n_together, size_bytes;
    size_t n_left = zr_model_count_inputs(model, &size_bytes);
    size_t n_on_device = n_together == 1 ? model->options.activations.n_on_device : 0;
    for (size_t i = 0; i < model->n_blocks; i++) {
        zr_block_t *block = model->blocks[i];
        if (!may_wait(model, block) || n_left-- <= n_on_device)
            continue;
        block->slot = n_slots;
        n_slots += n_together;
        *kind_p = n_together == 1 ? block->type->name : "block and micro-batch";
    }
    model->gradient_slot = n_slots;
    return n_together == 1 ? n_slots : n_slots + n_together;
}

/* The last slots, those of gradients first. */
static size_t count_in_host(const zr_model_t *model, size_t n_slots) {
    size_t n_blocks = model->options.activations.n_in_host, n_together = model->n_together;
    size_t n_gradients = n_slots - model->gradient_slot;
    if (n_blocks == 0)
        return 0;
    return n_blocks >= model->gradient_slot / n_together ? n_slots
                                                         : n_blocks * n_together + n_gradients;
}

/* Room in the rank's store: an extent for each slot. */
static zr_status_t declare_extents(zr_model_t *model) {
    static const char *const advice[] = {"--offload-activations cpu", "a smaller --micro-batch",
                                         "a shorter --seq", NULL};
    zr_stash_options_t *options = &model->stash_options;
    size_t asked = zr_runtime_config(model->runtime)->offload_optimizer.n_buffers;
    size_t n_buffers = asked != 0 ? asked : ZR_CONFIG_USUAL_BUFFERS;
    size_t align = ZR_STORE_CHUNK_ALIGN_BYTES;
    size_t extent_bytes = (options->slot_bytes + align - 1) / align * align;
    size_t n_extents = options->n_slots - options->n_in_host;
    zr_store_extent_t *extents = zr_heap_alloc(model->heap, n_extents, sizeof(*extents));
    zr_extents_t place;
    if (extents == NULL)
        return zr_fail(model->log, ZR_ERR_MEMORY, "no memory for %s",
                       zr_count_text(n_extents, "extent").text);
    for (size_t i = 0; i < n_extents; i++)
        extents[i] = (zr_store_extent_t){
            .name = options->name, .size_bytes = extent_bytes, .goes_first = true};
    options->n_buffers = n_buffers < n_extents ? n_buffers : n_extents;
    zr_extents_desc_t desc = {.name = model->stash_name,
                              .extents = extents,
                              .n_extents = n_extents,
                              .unit_bytes = zr_stash_most_chunk_bytes(options->slot_bytes),
                              .max_transfers = zr_stash_max_transfers(options->n_buffers),
                              .advice = advice};
    zr_status_t status = zr_runtime_add_extents(model->runtime, &desc, &place);
    zr_heap_free(model->heap, extents);
    if (status == ZR_OK)
        options->first_extent = place.first;
    return status;
}

static zr_status_t plan_stash(zr_model_t *model) {
    const zr_model_options_t *options = &model->options;
    const char *kind = "block";
    size_t n_slots = 0, slot_bytes, need;
    if (options->activations.device != ZR_OFFLOAD_NONE &&
        __builtin_mul_overflow(model->n_blocks, model->n_together, &need))
        return zr_fail(model->log, ZR_ERR_ARGUMENT, "%s of %s are more than memory can hold",
                       zr_count_text(model->n_together, "micro-batch").text,
                       zr_count_text(model->n_blocks, "block").text);
    if (options->activations.device != ZR_OFFLOAD_NONE)
        n_slots = number_slots(model, &kind);
    if (n_slots == 0)
        return ZR_OK;
    snprintf(model->stash_name, sizeof(model->stash_name), "inputs of %s",
             zr_count_text(n_slots, kind).text);
    if (__builtin_mul_overflow(options->activations.most_rows, options->x_row_bytes, &slot_bytes) ||
        __builtin_mul_overflow(slot_bytes, n_slots, &need) || need > SIZE_MAX / 16)
        return zr_fail(model->log, ZR_ERR_ARGUMENT, "%s for %s are more than memory can hold",
                       model->stash_name,
                       zr_count_text(options->activations.most_rows, "token").text);
    size_t n_in_host = count_in_host(model, n_slots);
    bool is_on_drives = options->activations.device == ZR_OFFLOAD_NVME && n_in_host < n_slots;
    model->stash_options = (zr_stash_options_t){.log = *model->log,
                                                .allocator = model->allocator,
                                                .device = model->device,
                                                .tier = is_on_drives ? ZR_TIER_NVME : ZR_TIER_HOST,
                                                .n_slots = n_slots,
                                                .n_in_host = is_on_drives ? n_in_host : 0,
                                                .slot_bytes = slot_bytes,
                                                .reads_when_told = model->n_together > 1,
                                                .name = "inputs of layers",
                                                .tag = ZR_TAG_ACTIVATIONS,
                                                .lifetime = ZR_LIFETIME_MICRO_BATCH};
    return is_on_drives ? declare_extents(model) : ZR_OK;
}

/* ---- commit ---------------------------------------------------------------------------------- */

/* Backward ends at the first block that has something to train; with nothing, at the last that has
 * parameters. */
static size_t find_first_trained(const zr_model_t *model) {
    size_t last = model->n_blocks - 1;
    for (size_t i = 0; i < model->n_blocks; i++)
        if (model->blocks[i]->is_trained)
            return i;
    while (last > 0 && model->blocks[last]->unit == NULL)
        last--;
    return last;
}

/* Whose parameters a block uses, that are trained. NULL: nobody's. */
static zr_block_t *find_used(const zr_block_t *block) {
    for (size_t i = 0; i < block->n_used; i++)
        if (block->used[i]->is_trained)
            return block->used[i];
    return NULL;
}

static bool may_be_late(const zr_block_t *block, const zr_block_t *used) {
    bool is_last = block->index + 1 == block->model->n_blocks;
    return is_last && block->type->separates && block->n_used == 1 && used->late == NULL;
}

/* Which micro-batches are walked together, and whose gradients then have to come late. */
static zr_status_t choose_order(zr_model_t *model) {
    model->n_together = zr_config_n_together(zr_runtime_config(model->runtime));
    for (size_t i = 0; i < model->n_blocks && model->n_together > 1; i++) {
        zr_block_t *block = model->blocks[i], *used = find_used(block);
        if (used == NULL)
            continue;
        if (!may_be_late(block, used))
            return zr_fail(model->log, ZR_ERR_UNSUPPORTED,
                           "block \"%s\" uses the parameters of \"%s\" but cannot compute their "
                           "gradients separately (zr_block_type_t.separates), which --order block "
                           "requires; use --order micro-batch",
                           block->name, used->name);
        used->late = block;
    }
    return ZR_OK;
}

zr_status_t zr_model_commit(zr_model_t *model) {
    if (model->is_committed || model->n_blocks == 0)
        return zr_fail(model->log, ZR_ERR_STATE, "zr_model_commit of a model that %s",
                       model->is_committed ? "is committed" : "has no blocks");
    ZR_TRY(check_freeze(model));
    model->first_trained = find_first_trained(model);
    ZR_TRY(choose_order(model));
    ZR_TRY(plan_stash(model));
    ZR_TRY(zr_runtime_commit(model->runtime));
    zr_heap_destroy(&model->inits);
    if (model->stash_options.n_slots != 0) {
        model->stash_options.store = zr_runtime_store(model->runtime);
        ZR_TRY(zr_stash_create(&model->stash_options, &model->stash));
    }
    model->is_committed = true;
    return ZR_OK;
}

bool zr_model_activations_statistics(const zr_model_t *model, zr_stash_statistics_t *statistics_p) {
    if (model->stash == NULL)
        return false;
    zr_stash_statistics(model->stash, statistics_p);
    return true;
}
