/*
 * Where the optimizer state lies, how it gets there and how it is looked at: see state_internal.h.
 * The update is in state_update.c.
 *
 * Pieces in the store are cut so that each begins at a chunk; a unit is an extent. Initial values
 * are written by the same pipeline that updates use, so that commit needs no memory beyond its
 * buffers either.
 */
#include "zero/state_internal.h"

#include <string.h>

/* Of the store: the state of so many elements is whole chunks. */
#define GROUP_UNIT_ELEMS ((size_t)1 << 16)
#define SMALL_GROUP_UNIT_ELEMS ZR_CONFIG_LEAST_SUB_GROUP_ELEMS

/* ---- placement ------------------------------------------------------------------------------ */

/* Whether transfers of so many elements of a state are whole blocks of drives. */
static bool suits_drives(const zr_config_t *config, const zr_update_rule_t *rule, size_t n_elems) {
    return zr_config_suits_drives(config, n_elems) &&
           (config->offload_optimizer.device != ZR_OFFLOAD_NVME || !rule->splits_master ||
            zr_state_bytes(rule, n_elems) % ZR_STORE_CHUNK_ALIGN_BYTES == 0);
}

/* At most what config allows, as far as transfers can be so small; a piece per unit where nothing
 * is moved. 0: transfers cannot be so small. */
static size_t group_elems_of(const zr_config_t *config, const zr_update_rule_t *rule) {
    size_t elems = config->sub_group_elems;
    if (config->offload_optimizer.device == ZR_OFFLOAD_NONE)
        return SIZE_MAX;
    elems = elems < ZR_STATE_GROUP_ELEMS ? elems : ZR_STATE_GROUP_ELEMS;
    size_t unit = elems < GROUP_UNIT_ELEMS ? SMALL_GROUP_UNIT_ELEMS : GROUP_UNIT_ELEMS;
    while (unit <= elems && !suits_drives(config, rule, unit))
        unit *= 2;
    return elems / unit * unit;
}

static size_t group_elems(const zr_state_t *state) {
    return group_elems_of(&state->base->config, state->rule);
}

static void append_items(zr_state_t *state, const zr_unit_t *unit) {
    size_t n = zr_swap_list_items(&state->placement, unit->index, zr_state_first_extent(state),
                                  state->items + state->n_items);
    ptrdiff_t n_extents = (ptrdiff_t)state->model->n_units;
    for (; n > 0 && state->n_sides > 1; n--)
        state->items[state->n_items++].put_shift = state->side == 0 ? n_extents : -n_extents;
    state->n_items += n;
}

void zr_state_list_items(zr_state_t *state, zr_unit_t *const *units, size_t n_units) {
    state->n_items = 0;
    for (size_t i = 0; i < n_units; i++)
        append_items(state, units[i]);
}

void zr_state_list_updates(zr_state_t *state) {
    const zr_units_t *model = state->model;
    bool is_reversed = zr_base_updates_in_backward(state->base);
    state->n_items = 0;
    for (size_t i = 0; i < model->n_units; i++)
        append_items(state, model->units[is_reversed ? model->n_units - 1 - i : i]);
}

void zr_state_turn(zr_state_t *state) {
    if (state->n_sides == 1)
        return;
    state->side = 1 - state->side;
    for (size_t i = 0; i < state->n_items; i++) { /* they keep their order */
        state->items[i].extent += (size_t)state->items[i].put_shift;
        state->items[i].put_shift = -state->items[i].put_shift;
    }
}

static zr_status_t list_pieces(zr_state_t *state) {
    const zr_placement_t *placement = &state->placement;
    state->lowered = zr_heap_alloc(state->base->heap, placement->n_pieces, sizeof(*state->lowered));
    state->items = zr_heap_alloc(state->base->heap, placement->n_pieces_in[ZR_TIER_NVME],
                                 sizeof(*state->items));
    state->first_lowered =
        zr_heap_alloc(state->base->heap, placement->n_tensors + 1, sizeof(*state->first_lowered));
    if (state->lowered == NULL || state->items == NULL || state->first_lowered == NULL)
        return zr_base_no_memory(state->base, zr_count_text(placement->n_pieces, "piece").text);
    for (size_t unit = 0; unit < placement->n_tensors; unit++) {
        size_t end = placement->first_piece[unit + 1];
        for (size_t i = placement->first_piece[unit]; i < end; i++)
            if (placement->pieces[i].tier != ZR_TIER_DEVICE)
                state->lowered[state->n_lowered++] = i;
        state->first_lowered[unit + 1] = state->n_lowered;
    }
    zr_state_list_items(state, state->model->units, state->model->n_units);
    return ZR_OK;
}

static zr_status_t cut(zr_state_t *state) {
    const zr_config_t *config = &state->base->config;
    const zr_units_t *model = state->model;
    const zr_offload_options_t *offload = &config->offload_optimizer;
    zr_placement_options_t options = {.log = state->base->log,
                                      .heap = state->base->heap,
                                      .n_arrays = state->rule->n_arrays,
                                      .group_elems = group_elems(state),
                                      .ratio = offload->ratio};
    zr_base_place_below(offload->device, offload->max_in_cpu_elems, &options);
    if (options.group_elems == 0)
        return zr_fail(&state->base->log, ZR_ERR_UNSUPPORTED,
                       "optimizer state of \"%s\" or its gradients on NVMe: sub-groups of %zu "
                       "elements are not multiples of the drives' block size, %zu bytes; use a "
                       "larger --sub-group",
                       state->rule->name, config->sub_group_elems, ZR_STORE_CHUNK_ALIGN_BYTES);
    for (size_t i = 0; i < options.n_arrays; i++)
        options.encodings[i] = state->rule->arrays[i].encoding;
    size_t *elems = zr_heap_alloc(state->base->heap, model->n_units, sizeof(*elems));
    if (elems == NULL)
        return zr_base_no_memory(state->base, zr_count_text(model->n_units, "unit").text);
    for (size_t i = 0; i < model->n_units; i++)
        elems[i] = zr_unit_state_range(model->units[i]).n_elems;
    zr_status_t status = zr_placement_make(&options, elems, model->n_units, &state->placement);
    zr_heap_free(state->base->heap, elems);
    return status;
}

/* ---- the store ------------------------------------------------------------------------------ */

/* How it needs less room there. */
static const char *const *advice(const zr_state_t *state) {
    static const char *const of_stage_0[] = {"a lower --offload-ratio", "a larger --state-in-host",
                                             "--offload-optimizer cpu",
                                             "--stage 1, 2 or 3 with more --ranks", NULL};
    static const char *const of_others[] = {"a lower --offload-ratio", "a larger --state-in-host",
                                            "--offload-optimizer cpu", "more --ranks", NULL};
    return state->base->config.stage == 0 ? of_stage_0 : of_others;
}

static zr_status_t declare(zr_state_t *state, zr_nvme_t *nvme) {
    size_t n_units = state->model->n_units, n_extents = state->n_sides * n_units;
    zr_store_extent_t *extents = zr_heap_alloc(state->base->heap, n_extents, sizeof(*extents));
    if (extents == NULL)
        return zr_base_no_memory(state->base, zr_count_text(n_extents, "extent").text);
    for (size_t i = 0; i < n_extents; i++)
        extents[i] = (zr_store_extent_t){
            .name = state->model->units[i % n_units]->state_tensor,
            .size_bytes = state->placement.tensor_bytes[i % n_units][ZR_TIER_NVME]};
    zr_extents_desc_t desc = {.name = "optimizer state",
                              .extents = extents,
                              .n_extents = n_extents,
                              .unit_bytes = zr_state_bytes(state->rule, group_elems(state)),
                              .max_transfers =
                                  zr_swap_max_transfers(zr_base_n_state_buffers(state->base)),
                              .advice = advice(state)};
    zr_status_t status = zr_nvme_declare(nvme, &desc, &state->extents);
    zr_heap_free(state->base->heap, extents);
    return status;
}

/* Shards and parameters begin with a block of what they are kept or sent in. */
static void align_to(zr_state_t *state, const zr_encoding_t *encoding) {
    if (encoding != NULL && encoding->block_elems > state->align_elems)
        state->align_elems = encoding->block_elems;
}

static bool needs_copies(const zr_base_t *base) {
    const zr_device_info_t *info = zr_device_info(base->device);
    return !info->host_addressable || !info->computes_on_host;
}

/* Why the master cannot be split; NULL: it can. */
static const char *why_apart(const zr_state_t *state, const zr_update_rule_t *split) {
    const zr_base_t *base = state->base;
    const zr_config_t *config = &base->config;
    if (group_elems_of(config, &state->saved_rule) > 0 && group_elems_of(config, split) == 0)
        return "--offload-optimizer nvme and this --sub-group, whose parts are smaller than a "
               "block "
               "of the drives";
    if (zr_config_takes_back(config))
        return "--update-at backward with --clip or --check-overflow, which keeps the old state: "
               "the old parameters would be lost";
    if (zr_config_message(config, config->gather_encoding) != NULL && config->stage < 3)
        return "--gather-encoding at stages 1 and 2, where ranks keep what they decode";
    if (needs_copies(base) && config->offload_optimizer.device != ZR_OFFLOAD_NONE &&
        (!zr_base_offloads_params(base) || config->offload_param.ratio < 1))
        return "--offload-optimizer on a device whose memory the CPU cannot reach, without "
               "--offload-params of all";
    return config->own_optimizer == NULL ? NULL : "an optimizer of the program's own";
}

/* Where parameters would have to be read for the update from where it only writes them. */
static bool is_slower_split(const zr_base_t *base) {
    const zr_offload_options_t *offload = &base->config.offload_optimizer;
    if (zr_base_updates_at_once(base))
        return false;
    if (base->config.offload_param.device == ZR_OFFLOAD_NVME)
        return offload->device != ZR_OFFLOAD_NVME || zr_base_updates_in_backward(base);
    bool may_be_above =
        offload->device != ZR_OFFLOAD_NVME && offload->update_on != ZR_UPDATE_ON_HOST;
    return zr_base_offloads_params(base) && needs_copies(base) &&
           (may_be_above || offload->ratio < 1);
}

static zr_status_t choose_master(zr_state_t *state) {
    const zr_config_t *config = &state->base->config;
    const zr_update_rule_t split = zr_update_rule_split(&state->saved_rule, config->dtype);
    const char *reason = why_apart(state, &split);
    if (config->master == ZR_MASTER_SPLIT && reason != NULL)
        return zr_fail(&state->base->log, ZR_ERR_UNSUPPORTED,
                       "--master split is not possible with %s; use --master auto or apart",
                       reason);
    if (config->master == ZR_MASTER_SPLIT ||
        (config->master == ZR_MASTER_AUTO && reason == NULL && !is_slower_split(state->base)))
        state->own_rule = split;
    state->params->is_read_by_updates = zr_state_splits(state);
    state->params->is_taken_gathered =
        zr_state_splits(state) && zr_base_updates_at_once(state->base);
    return ZR_OK;
}

static zr_update_rule_t without_outer(const zr_update_rule_t *rule, const zr_config_t *config) {
    zr_update_rule_t result = *rule;
    result.n_arrays -= config->outer_every > 0 ? ZR_N_OUTER_ARRAYS : 0;
    return result;
}

static zr_status_t check_rule(const zr_state_t *state) {
    const zr_update_rule_t rule = without_outer(&state->saved_rule, &state->base->config);
    return zr_update_rule_check(&rule, &state->base->log);
}

zr_status_t zr_state_prepare(zr_state_t *state) {
    const zr_config_t *config = &state->base->config;
    state->saved_rule = zr_config_rule(config);
    state->own_rule = state->saved_rule;
    ZR_TRY(check_rule(state));
    ZR_TRY(choose_master(state));
    state->rule = &state->own_rule;
    state->update_rule = without_outer(&state->own_rule, config);
    state->align_elems = ZR_LAYOUT_ALIGN_ELEMS;
    state->n_sides = zr_config_takes_back(&state->base->config) ? 2 : 1;
    for (size_t i = 0; i < state->rule->n_arrays; i++) {
        const zr_state_array_t *array = &state->rule->arrays[i];
        size_t block = array->encoding->block_elems;
        if (block == 0 || ZR_LAYOUT_MOST_ALIGN_ELEMS % block != 0)
            return zr_fail(&state->base->log, ZR_ERR_UNSUPPORTED,
                           "optimizer array \"%s\": encoding %s has blocks of %zu elements; powers "
                           "of two up to %zu are allowed",
                           array->name, array->encoding->name, block, ZR_LAYOUT_MOST_ALIGN_ELEMS);
        align_to(state, array->encoding);
    }
    align_to(state, zr_config_message(config, config->gather_encoding));
    align_to(state, zr_config_message(config, config->reduce_encoding));
    return ZR_OK;
}

/* What stays on the device is updated there, and more where that is asked for. */
static zr_status_t check_kernel(const zr_state_t *state) {
    bool is_needed = state->placement.n_pieces_in[ZR_TIER_DEVICE] != 0 ||
                     state->base->config.offload_optimizer.update_on == ZR_UPDATE_ON_DEVICE;
    if (!is_needed || zr_update_runs_on(state->base->device, state->rule))
        return ZR_OK;
    return zr_fail(&state->base->log, ZR_ERR_UNSUPPORTED,
                   "optimizer \"%s\" has no kernel for device \"%s\": give it one, or keep all of "
                   "its state in host memory (--offload-optimizer cpu)",
                   zr_config_optimizer(&state->base->config)->name,
                   zr_device_info(state->base->device)->backend);
}

zr_status_t zr_state_place(zr_state_t *state, zr_nvme_t *nvme) {
    ZR_TRY(cut(state));
    ZR_TRY(check_kernel(state));
    if (state->placement.n_pieces_in[ZR_TIER_NVME] != 0)
        ZR_TRY(declare(state, nvme));
    return list_pieces(state);
}

static zr_status_t create_swap(zr_state_t *state) {
    const zr_offload_options_t *offload = &state->base->config.offload_optimizer;
    zr_swap_options_t options = {
        .log = state->base->log,
        .allocator = state->base->allocator,
        .n_buffers = offload->n_buffers < state->n_items ? offload->n_buffers : state->n_items,
        .buffer_bytes = state->placement.largest_bytes[ZR_TIER_NVME],
        .read_ahead = offload->read_ahead,
        .write_behind = offload->write_behind,
        .is_idle = &state->base->does_alike_once};
    return zr_swap_create(&options, state->store, &state->swap);
}

/* ---- where the update runs ------------------------------------------------------------------ */

/* Kernels on host memory: of the device itself where it has them, else of a host device. */
static zr_status_t create_host(zr_state_t *state) {
    zr_device_options_t options = zr_device_options_default();
    if (zr_device_info(state->base->device)->computes_on_host) {
        state->host = state->base->compute;
        return ZR_OK;
    }
    options.log = state->base->log;
    options.n_threads = state->base->config.host_threads;
    ZR_TRY(zr_device_open_host(state->base->device, &options, &state->own_host));
    ZR_TRY(zr_stream_create(state->own_host, "host update", &state->own_host_stream));
    state->host = state->own_host_stream;
    return ZR_OK;
}

static zr_status_t allocate_slot(const zr_state_t *state, void **pointer_p) {
    size_t n_elems = zr_state_largest_moved(state);
    return zr_base_allocate_host(state->base, zr_base_bytes(state->base, n_elems), ZR_TAG_STAGING,
                                 "gradients and parameters on the host", pointer_p);
}

static zr_status_t create_copies(zr_state_t *state) {
    zr_device_t *device = state->base->device;
    ZR_TRY(zr_copies_create(state->copies, device));
    if (!state->copies->are_needed)
        return ZR_OK;
    ZR_TRY(zr_event_create(device, &state->params_up));
    ZR_TRY(zr_state_choose(state));
    if (state->choice.is_on_device)
        return zr_state_create_stages(state);
    for (size_t i = 0; i < ZR_STATE_N_SLOTS; i++) {
        zr_state_slot_t *slot = &state->slots[i];
        if (state->grads->n_below < state->n_lowered || zr_base_updates_in_backward(state->base))
            ZR_TRY(allocate_slot(state, &slot->grads));
        if (zr_params_part_on_device(state->params) > 0)
            ZR_TRY(allocate_slot(state, &slot->params));
        ZR_TRY(zr_event_create(device, &slot->grads_there));
        ZR_TRY(zr_event_create(device, &slot->params_taken));
    }
    return ZR_OK;
}

/* ---- life ----------------------------------------------------------------------------------- */

zr_status_t zr_state_create(zr_state_t *state, zr_store_t *store) {
    if (state->n_lowered != 0) {
        ZR_TRY(create_host(state));
        ZR_TRY(create_copies(state));
    }
    if (state->n_items == 0)
        return ZR_OK;
    state->store = store;
    return create_swap(state);
}

zr_status_t zr_state_allocate_unit(const zr_state_t *state, zr_unit_t *unit) {
    const zr_base_t *base = state->base;
    const size_t *of_side = state->placement.tensor_bytes[unit->index];
    size_t device_bytes = state->n_sides * of_side[ZR_TIER_DEVICE];
    size_t host_bytes = state->n_sides * of_side[ZR_TIER_HOST];
    void **on_device = &unit->state[ZR_TIER_DEVICE], **on_host = &unit->state[ZR_TIER_HOST];
    if (device_bytes != 0)
        ZR_TRY(zr_base_allocate(base, device_bytes, ZR_TAG_OPTIMIZER_STATE, ZR_LIFETIME_PERSISTENT,
                                unit->name, NULL, on_device));
    if (host_bytes != 0)
        ZR_TRY(
            zr_base_allocate_host(base, host_bytes, ZR_TAG_OPTIMIZER_STATE, unit->name, on_host));
    if (host_bytes != 0 && zr_base_has_data(base))
        memset(*on_host, 0, host_bytes);
    /* All encodings have 0 as zeros, and pieces are whole floats. */
    return zr_kernel_fill(base->compute, *on_device, ZR_DTYPE_F32, device_bytes / sizeof(float),
                          0.0f);
}

void zr_state_destroy(zr_state_t *state) {
    zr_swap_destroy(&state->swap);
    for (size_t i = 0; i < ZR_STATE_N_SLOTS; i++) {
        zr_state_slot_t *slot = &state->slots[i];
        zr_free(state->base->allocator, &slot->grads, NULL);
        zr_free(state->base->allocator, &slot->params, NULL);
        zr_event_destroy(&slot->grads_there);
        zr_event_destroy(&slot->params_taken);
    }
    zr_state_destroy_stages(state);
    zr_event_destroy(&state->params_up);
    zr_stream_destroy(&state->own_host_stream);
    zr_device_close(&state->own_host);
    *state = (zr_state_t){0};
}

/* ---- initial values ------------------------------------------------------------------------- */

zr_status_t zr_state_begin_fill(zr_state_t *state) {
    if (state->swap == NULL)
        return ZR_OK;
    return zr_swap_begin(state->swap, ZR_SWAP_FILL, state->items, state->n_items);
}

zr_status_t zr_state_end_fill(zr_state_t *state) {
    return state->swap == NULL ? ZR_OK : zr_swap_end(state->swap);
}

size_t zr_state_cut(const zr_state_t *state, const zr_unit_t *unit, size_t first, size_t n_elems) {
    zr_state_range_t range = zr_unit_state_range(unit);
    size_t end = range.first + range.n_elems, cut = end;
    if (first >= end)
        return n_elems;
    if (first < range.first) {
        cut = range.first;
    } else {
        const zr_piece_t *piece =
            zr_placement_find(&state->placement, unit->index, first - range.first);
        cut = range.first + piece->first + piece->n_elems;
    }
    return n_elems < cut - first ? n_elems : cut - first;
}

/* A piece in a store is filled from its beginning to its end, in one buffer. */
static zr_status_t fill_swapped(const zr_state_t *state, zr_unit_t *unit, const zr_piece_t *piece,
                                size_t first, const zr_state_values_t *values) {
    bool has_data = zr_base_has_data(state->base);
    if (first == piece->first && values->array == 0) {
        void *buffer = NULL;
        ZR_TRY(zr_swap_next(state->swap, &buffer));
        unit->state[ZR_TIER_NVME] = buffer;
        if (has_data)
            memset(buffer, 0, zr_piece_bytes(&state->placement, piece));
    }
    const zr_encoding_t *encoding = zr_state_encoding(state, values->array);
    if (has_data)
        encoding->encode(encoding, values->host, values->n_elems,
                         zr_state_at(state, piece, unit->state[ZR_TIER_NVME], values->array,
                                     first - piece->first));
    if (!values->is_last || first + values->n_elems < piece->first + piece->n_elems)
        return ZR_OK;
    unit->state[ZR_TIER_NVME] = NULL;
    return zr_swap_done(state->swap);
}

zr_status_t zr_state_fill(zr_state_t *state, zr_unit_t *unit, const zr_state_values_t *values) {
    zr_state_range_t range = zr_unit_state_range(unit);
    size_t first = values->first;
    if (values->n_elems == 0 || first < range.first || first >= range.first + range.n_elems)
        return ZR_OK;
    first -= range.first;
    const zr_piece_t *piece = zr_placement_find(&state->placement, unit->index, first);
    if (piece->tier == ZR_TIER_NVME)
        return fill_swapped(state, unit, piece, first, values);
    if (!zr_base_has_data(state->base))
        return ZR_OK;
    const zr_encoding_t *encoding = zr_state_encoding(state, values->array);
    void *target = zr_state_at(state, piece, zr_state_resident(state, unit, piece, state->side),
                               values->array, first - piece->first);
    if (piece->tier == ZR_TIER_HOST) {
        encoding->encode(encoding, values->host, values->n_elems, target);
        return ZR_OK;
    }
    return encoding->queue_encode(encoding, state->base->compute, values->device, ZR_DTYPE_F32,
                                  values->n_elems, target);
}

/* ---- looking at it -------------------------------------------------------------------------- */

/* Where values of an array are in the store: the chunks that have them, and where they begin. */
static zr_swap_item_t find_chunks(const zr_state_t *state, const zr_unit_t *unit,
                                  const zr_piece_t *piece, size_t array, size_t elem,
                                  size_t n_elems, size_t *skip_p) {
    size_t chunk = zr_store_info(state->store)->chunk_bytes;
    size_t all = zr_piece_bytes(&state->placement, piece);
    const zr_encoding_t *encoding = zr_state_encoding(state, array);
    size_t begin = zr_state_array_offset(state->rule, array, piece->n_elems) +
                   zr_encoding_bytes(encoding, elem);
    size_t item_begin = begin / chunk * chunk;
    size_t item_end = (begin + zr_encoding_bytes(encoding, n_elems) + chunk - 1) / chunk * chunk;
    *skip_p = begin - item_begin;
    return (zr_swap_item_t){.extent = zr_state_first_extent(state) + unit->index,
                            .offset_bytes = piece->offset_bytes + item_begin,
                            .size_bytes = (item_end < all ? item_end : all) - item_begin};
}

zr_status_t zr_state_join(zr_state_t *state, const zr_piece_t *piece, size_t first, size_t n_elems,
                          const void *kept, float *device, float *host) {
    const zr_unit_t *unit = state->model->units[piece->tensor];
    zr_stream_t *compute = state->base->compute;
    const zr_encoding_t *own = zr_unit_encoding(unit, FLAT_TRAINABLE);
    const zr_encoding_t *rest = zr_state_encoding(state, 0);
    if (!zr_unit_is_offloaded(unit, FLAT_TRAINABLE)) {
        const void *params = zr_unit_own_at(unit, zr_unit_state_range(unit).first + first);
        ZR_TRY(own->queue_decode(own, compute, params, n_elems, device, ZR_DTYPE_F32));
    } else {
        ZR_TRY(zr_stream_synchronize(compute)); /* it may have updated them */
        ZR_TRY(zr_params_read(state->params, unit, FLAT_TRAINABLE, first, n_elems, host));
        if (piece->tier != ZR_TIER_DEVICE && zr_base_has_data(state->base))
            rest->decode(rest, kept, n_elems, host);
        ZR_TRY(
            zr_copy_async(compute, device, host, n_elems * sizeof(float), ZR_COPY_HOST_TO_DEVICE));
        ZR_TRY(zr_stream_synchronize(compute));
        if (piece->tier != ZR_TIER_DEVICE)
            return ZR_OK;
    }
    return rest->queue_decode(rest, compute, kept, n_elems, device, ZR_DTYPE_F32);
}

static zr_status_t read_piece(zr_state_t *state, const zr_unit_t *unit, const zr_piece_t *piece,
                              const zr_state_values_t *part, float *device, float *host) {
    zr_stream_t *stream = state->base->compute;
    const zr_encoding_t *encoding = zr_state_encoding(state, part->array);
    size_t elem = part->first - piece->first, skip = 0;
    const void *values = NULL;
    bool is_split = part->array == 0 && zr_state_splits(state);
    if (piece->tier == ZR_TIER_NVME && encoding->block_bytes != 0) {
        zr_swap_item_t item =
            find_chunks(state, unit, piece, part->array, elem, part->n_elems, &skip);
        ZR_TRY(zr_swap_load(state->swap, &item, &values));
        values = (const char *)values + skip;
    } else if (encoding->block_bytes != 0) {
        values = zr_state_at(state, piece, zr_state_resident(state, unit, piece, state->side),
                             part->array, elem);
    }
    if (is_split) {
        ZR_TRY(zr_state_join(state, piece, part->first, part->n_elems, values, device, host));
        return piece->tier == ZR_TIER_NVME ? zr_stream_synchronize(stream) : ZR_OK;
    }
    if (piece->tier == ZR_TIER_DEVICE)
        return encoding->queue_decode(encoding, stream, values, part->n_elems, device,
                                      ZR_DTYPE_F32);
    if (encoding != &zr_encoding_fp32) {
        if (zr_base_has_data(state->base))
            encoding->decode(encoding, values, part->n_elems, host);
        values = host;
    }
    ZR_TRY(zr_copy_async(stream, device, values, part->n_elems * sizeof(float),
                         ZR_COPY_HOST_TO_DEVICE));
    /* The next load may take the buffer. */
    return piece->tier == ZR_TIER_NVME || values == host ? zr_stream_synchronize(stream) : ZR_OK;
}

/* What a load brings at once, at most: a part of a swap buffer, which has whole pieces. */
zr_status_t zr_state_read(zr_state_t *state, const zr_unit_t *unit, size_t array, size_t first,
                          size_t n_elems, float *device, float *host) {
    zr_state_values_t part = {.first = first - zr_unit_state_range(unit).first, .array = array};
    ZR_TRY(zr_state_settle(state));
    for (; n_elems != 0; n_elems -= part.n_elems) {
        const zr_piece_t *piece = zr_placement_find(&state->placement, unit->index, part.first);
        size_t left = piece->first + piece->n_elems - part.first;
        part.n_elems = n_elems < left ? n_elems : left;
        ZR_TRY(read_piece(state, unit, piece, &part, device, host));
        device += part.n_elems;
        host += part.n_elems;
        part.first += part.n_elems;
    }
    return ZR_OK;
}

/* ---- changing it ---------------------------------------------------------------------------- */

/* Of a piece in the store: in the chunks that have these elements. */
static zr_status_t rewrite(const zr_state_t *state, const zr_unit_t *unit, const zr_piece_t *piece,
                           size_t first, const zr_state_values_t *values) {
    const zr_encoding_t *encoding = zr_state_encoding(state, values->array);
    size_t skip = 0;
    if (encoding->block_bytes == 0)
        return ZR_OK;
    zr_swap_item_t item = find_chunks(state, unit, piece, values->array, first - piece->first,
                                      values->n_elems, &skip);
    void *buffer = NULL;
    ZR_TRY(zr_swap_begin(state->swap, ZR_SWAP_UPDATE, &item, 1));
    ZR_TRY(zr_swap_next(state->swap, &buffer));
    if (zr_base_has_data(state->base))
        encoding->encode(encoding, values->host, values->n_elems, (char *)buffer + skip);
    ZR_TRY(zr_swap_done(state->swap));
    return zr_swap_end(state->swap);
}

zr_status_t zr_state_write(zr_state_t *state, zr_unit_t *unit, const zr_state_values_t *values) {
    ZR_TRY(zr_state_settle(state));
    zr_state_range_t range = zr_unit_state_range(unit);
    size_t end = values->first + values->n_elems;
    zr_state_values_t part = *values;
    for (; part.first < end; part.first += part.n_elems) {
        part.n_elems = zr_state_cut(state, unit, part.first, end - part.first);
        part.host = values->host + (part.first - values->first);
        part.device = values->device + (part.first - values->first);
        size_t in_range = part.first - range.first;
        if (part.first < range.first || in_range >= range.n_elems)
            continue;
        const zr_piece_t *piece = zr_placement_find(&state->placement, unit->index, in_range);
        ZR_TRY(piece->tier == ZR_TIER_NVME ? rewrite(state, unit, piece, in_range, &part)
                                           : zr_state_fill(state, unit, &part));
    }
    return ZR_OK;
}

/* ---- report --------------------------------------------------------------------------------- */

static void report_store(const zr_state_t *state, zr_offload_report_t *report) {
    zr_swap_statistics_t swap;
    zr_swap_statistics(state->swap, &swap);
    report->has_store = true;
    report->store = *zr_store_info(state->store);
    report->staging_bytes = swap.host_bytes;
    if (state->writes_behind)
        zr_swap_await(state->swap);
    zr_store_account_statistics(state->store, state->extents.account, &report->all);
    for (int d = 0; d < ZR_N_STORE_DIRECTIONS; d++) {
        report->updates[d] = state->update_count[d];
        report->update_wait_seconds[d] = state->update_wait_seconds[d];
    }
    if (state->writes_behind) {
        zr_store_count_t later = zr_store_count_between(&state->before.count[ZR_STORE_PUT],
                                                        &report->all.count[ZR_STORE_PUT]);
        zr_store_count_add(&report->updates[ZR_STORE_PUT], &later);
    }
}

void zr_state_report(const zr_state_t *state, zr_offload_report_t *report_p) {
    const zr_placement_t *placement = &state->placement;
    zr_offload_report_t report = {.has_copies = state->copies->are_needed,
                                  .is_updated_on_device = state->choice.is_on_device,
                                  .was_measured = state->choice.was_measured,
                                  .has_split_masters = zr_state_splits(state),
                                  .n_early_groups = state->n_early,
                                  .host_elems_per_s = state->choice.host_elems_per_s,
                                  .device_elems_per_s = state->choice.device_elems_per_s,
                                  .copied_down_bytes = state->copies->down_bytes,
                                  .copied_up_bytes = state->copies->up_bytes,
                                  .update_seconds = state->update_seconds,
                                  .largest_group_elems = zr_state_largest_moved(state)};
    for (int tier = 0; tier < ZR_N_TIERS; tier++) {
        report.n_groups[tier] = placement->n_pieces_in[tier];
        report.state_bytes[tier] = state->n_sides * placement->bytes[tier];
    }
    if (state->swap != NULL)
        report_store(state, &report);
    zr_params_report(state->params, &report.params);
    zr_grads_report(state->grads, &report.grads);
    *report_p = report;
}
