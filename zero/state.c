/*
 * Where the optimizer state lies, how it gets there and how it is looked at: see state.h. The
 * update is in state_update.c.
 *
 * Pieces in the store are cut so that each begins at a chunk; a unit is an extent. Initial values
 * are written by the same pipeline that updates use, so that commit needs no memory beyond its
 * buffers either.
 */
#include "zero/runtime_internal.h"

#include <stdlib.h>

#include "zero/nvme.h"

/* Of the store: the state of so many elements is whole chunks. */
#define GROUP_UNIT_ELEMS ((size_t)1 << 16)
#define SMALL_GROUP_UNIT_ELEMS ZR_CONFIG_LEAST_SUB_GROUP_ELEMS

/* ---- placement ----------------------------------------------------------------------------- */

static zr_tier_t lower_tier(const zr_config_t *config) {
    static const zr_tier_t tiers[] = {ZR_TIER_DEVICE, ZR_TIER_HOST, ZR_TIER_NVME};
    return tiers[config->offload_optimizer.device];
}

/* At most what config allows, as far as transfers can be so small; a piece per unit where nothing
 * is moved. */
static size_t group_elems(const zr_config_t *config) {
    size_t elems = config->sub_group_elems;
    if (config->offload_optimizer.device == ZR_OFFLOAD_NONE)
        return SIZE_MAX;
    elems = elems < ZR_STATE_GROUP_ELEMS ? elems : ZR_STATE_GROUP_ELEMS;
    size_t unit = elems < GROUP_UNIT_ELEMS ? SMALL_GROUP_UNIT_ELEMS : GROUP_UNIT_ELEMS;
    return elems / unit * unit;
}

void zr_state_list_items(zr_runtime_t *runtime, zr_unit_t *const *units, size_t n_units) {
    zr_state_t *state = &runtime->state;
    const zr_placement_t *placement = &state->placement;
    state->n_items = 0;
    for (size_t i = 0; i < n_units; i++) {
        size_t end = placement->first_piece[units[i]->index + 1];
        for (size_t p = placement->first_piece[units[i]->index]; p < end; p++) {
            const zr_piece_t *piece = &placement->pieces[p];
            if (piece->tier == ZR_TIER_NVME)
                state->items[state->n_items++] =
                    (zr_swap_item_t){.extent = state->extents.first + piece->tensor,
                                     .offset_bytes = piece->offset_bytes,
                                     .size_bytes = zr_piece_bytes(placement, piece)};
        }
    }
}

static zr_status_t list_pieces(zr_runtime_t *runtime) {
    zr_state_t *state = &runtime->state;
    const zr_placement_t *placement = &state->placement;
    state->lowered = calloc(placement->n_pieces + 1, sizeof(*state->lowered));
    state->items = calloc(placement->n_pieces_in[ZR_TIER_NVME] + 1, sizeof(*state->items));
    if (state->lowered == NULL || state->items == NULL)
        return zr_fail(&runtime->log, ZR_ERR_MEMORY, "the system has no memory for %s",
                       zr_count_text(placement->n_pieces, "piece").text);
    for (size_t i = 0; i < placement->n_pieces; i++) {
        const zr_piece_t *piece = &placement->pieces[i];
        if (piece->tier != ZR_TIER_DEVICE)
            state->lowered[state->n_lowered++] = i;
    }
    zr_state_list_items(runtime, runtime->units, runtime->n_units);
    return ZR_OK;
}

static zr_status_t cut(zr_runtime_t *runtime) {
    const zr_offload_options_t *offload = &runtime->config.offload_optimizer;
    zr_placement_options_t options = {.log = runtime->log,
                                      .elem_bytes = zr_state_bytes(runtime->state.rule, 1),
                                      .group_elems = group_elems(&runtime->config),
                                      .ratio = offload->ratio,
                                      .upper = ZR_TIER_DEVICE,
                                      .lower = lower_tier(&runtime->config)};
    if (offload->device == ZR_OFFLOAD_NVME && offload->max_in_cpu_elems != 0) {
        options.lower = ZR_TIER_HOST;
        options.has_lowest = true;
        options.lowest = ZR_TIER_NVME;
        options.most_lower_elems = offload->max_in_cpu_elems;
    }
    size_t *elems = calloc(runtime->n_units + 1, sizeof(*elems));
    if (elems == NULL)
        return zr_fail(&runtime->log, ZR_ERR_MEMORY, "the system has no memory for %s",
                       zr_count_text(runtime->n_units, "unit").text);
    for (size_t i = 0; i < runtime->n_units; i++)
        elems[i] = zr_rt_state_range(runtime->units[i]).n_elems;
    zr_status_t status =
        zr_placement_make(&options, elems, runtime->n_units, &runtime->state.placement);
    free(elems);
    return status;
}

/* ---- the store ------------------------------------------------------------------------------- */

/* How it needs less room there. */
static const char *const *advice(const zr_runtime_t *runtime) {
    static const char *const of_stage_0[] = {"a lower --offload-ratio", "a larger --state-in-host",
                                             "--offload-optimizer cpu",
                                             "--stage 1, 2 or 3 with more --ranks", NULL};
    static const char *const of_others[] = {"a lower --offload-ratio", "a larger --state-in-host",
                                            "--offload-optimizer cpu", "more --ranks", NULL};
    return runtime->config.stage == 0 ? of_stage_0 : of_others;
}

static zr_status_t declare(zr_runtime_t *runtime) {
    zr_state_t *state = &runtime->state;
    zr_store_extent_t *extents = calloc(runtime->n_units + 1, sizeof(*extents));
    if (extents == NULL)
        return zr_fail(&runtime->log, ZR_ERR_MEMORY, "the system has no memory for %s",
                       zr_count_text(runtime->n_units, "extent").text);
    for (size_t i = 0; i < runtime->n_units; i++)
        extents[i] =
            (zr_store_extent_t){.name = runtime->units[i]->state_tensor,
                                .size_bytes = state->placement.tensor_bytes[i][ZR_TIER_NVME]};
    zr_extents_desc_t desc = {.name = "optimizer state",
                              .extents = extents,
                              .n_extents = runtime->n_units,
                              .unit_bytes =
                                  zr_state_bytes(state->rule, group_elems(&runtime->config)),
                              .max_transfers = 2 * runtime->config.offload_optimizer.n_buffers + 2,
                              .advice = advice(runtime)};
    zr_status_t status = zr_nvme_declare(runtime, &desc, &state->extents);
    free(extents);
    return status;
}

static zr_status_t check_rule(const zr_runtime_t *runtime) {
    const zr_update_rule_t *rule = runtime->state.rule;
    ZR_TRY(zr_update_rule_check(rule, &runtime->log));
    for (size_t i = 0; i < rule->n_arrays; i++)
        if (ZR_LAYOUT_ALIGN_ELEMS % rule->arrays[i].encoding->block_elems != 0)
            return zr_fail(&runtime->log, ZR_ERR_UNSUPPORTED,
                           "optimizer array \"%s\": encoding %s has blocks of %zu elements; those "
                           "of at most %zu are possible",
                           rule->arrays[i].name, rule->arrays[i].encoding->name,
                           rule->arrays[i].encoding->block_elems, ZR_LAYOUT_ALIGN_ELEMS);
    return ZR_OK;
}

/* What stays on the device is updated there, and more where that is asked for. */
static zr_status_t check_kernel(const zr_runtime_t *runtime) {
    bool is_needed = runtime->state.placement.n_pieces_in[ZR_TIER_DEVICE] != 0 ||
                     runtime->config.offload_optimizer.update_on == ZR_UPDATE_ON_DEVICE;
    if (!is_needed || zr_update_runs_on(runtime->device, runtime->state.rule))
        return ZR_OK;
    return zr_fail(&runtime->log, ZR_ERR_UNSUPPORTED,
                   "optimizer \"%s\" has no kernel for device \"%s\": give it one, or keep all of "
                   "its state in host memory (--offload-optimizer cpu)",
                   zr_config_optimizer(&runtime->config)->name,
                   zr_device_info(runtime->device)->backend);
}

zr_status_t zr_state_place(zr_runtime_t *runtime) {
    runtime->state.rule = &zr_config_optimizer(&runtime->config)->rule;
    ZR_TRY(check_rule(runtime));
    ZR_TRY(cut(runtime));
    ZR_TRY(check_kernel(runtime));
    if (runtime->state.placement.n_pieces_in[ZR_TIER_NVME] != 0)
        ZR_TRY(declare(runtime));
    return list_pieces(runtime);
}

static zr_status_t create_swap(zr_runtime_t *runtime) {
    zr_state_t *state = &runtime->state;
    const zr_offload_options_t *offload = &runtime->config.offload_optimizer;
    zr_swap_options_t options = {
        .log = runtime->log,
        .allocator = runtime->allocator,
        .n_buffers = offload->n_buffers < state->n_items ? offload->n_buffers : state->n_items,
        .buffer_bytes = state->placement.largest_bytes[ZR_TIER_NVME],
        .read_ahead = offload->read_ahead,
        .write_behind = offload->write_behind};
    return zr_swap_create(&options, state->store, &state->swap);
}

/* ---- where the update runs ---------------------------------------------------------------------
 */

/* Kernels on host memory: of the device itself where it has them, else of a host device. */
static zr_status_t create_host(zr_runtime_t *runtime) {
    zr_state_t *state = &runtime->state;
    zr_device_options_t options = zr_device_options_default();
    if (zr_device_info(runtime->device)->computes_on_host) {
        state->host = runtime->compute;
        return ZR_OK;
    }
    options.log = runtime->log;
    options.n_threads = runtime->config.host_threads;
    ZR_TRY(zr_device_open_host(runtime->device, &options, &state->own_host));
    ZR_TRY(zr_stream_create(state->own_host, "host update", &state->own_host_stream));
    state->host = state->own_host_stream;
    return ZR_OK;
}

static zr_status_t allocate_copy(zr_runtime_t *runtime, void **pointer_p) {
    const zr_state_t *state = &runtime->state;
    size_t on_host = zr_state_largest_elems(state, ZR_TIER_HOST);
    size_t on_nvme = zr_state_largest_elems(state, ZR_TIER_NVME);
    zr_allocation_request_t request = {
        .size_bytes = zr_rt_bytes(runtime, on_host > on_nvme ? on_host : on_nvme),
        .tier = ZR_TIER_HOST,
        .tag = ZR_TAG_STAGING,
        .lifetime = ZR_LIFETIME_PERSISTENT,
        .name = "gradients and parameters on the host"};
    return zr_allocate(runtime->allocator, &request, pointer_p);
}

static zr_status_t create_copies(zr_runtime_t *runtime) {
    zr_state_t *state = &runtime->state;
    const zr_device_info_t *info = zr_device_info(runtime->device);
    state->has_copies = !info->host_addressable || !info->computes_on_host;
    if (!state->has_copies)
        return ZR_OK;
    ZR_TRY(zr_stream_create(runtime->device, "gradients down", &state->down));
    ZR_TRY(zr_stream_create(runtime->device, "parameters up", &state->up));
    ZR_TRY(zr_event_create(runtime->device, &state->grads_reduced));
    ZR_TRY(zr_event_create(runtime->device, &state->all_down));
    ZR_TRY(zr_event_create(runtime->device, &state->params_up));
    ZR_TRY(zr_event_create(runtime->device, &state->backward_done));
    ZR_TRY(zr_state_choose(runtime));
    if (state->choice.is_on_device)
        return zr_state_create_stages(runtime);
    for (size_t i = 0; i < ZR_STATE_N_COPIES; i++) {
        zr_state_copy_t *copy = &state->copies[i];
        if (runtime->n_grads_below < state->n_lowered)
            ZR_TRY(allocate_copy(runtime, &copy->grads));
        if (zr_params_part_on_device(runtime) > 0)
            ZR_TRY(allocate_copy(runtime, &copy->params));
        ZR_TRY(zr_event_create(runtime->device, &copy->grads_there));
        ZR_TRY(zr_event_create(runtime->device, &copy->params_taken));
    }
    return ZR_OK;
}

/* ---- life --------------------------------------------------------------------------------------
 */

zr_status_t zr_state_create(zr_runtime_t *runtime) {
    zr_state_t *state = &runtime->state;
    if (state->n_lowered != 0) {
        ZR_TRY(create_host(runtime));
        ZR_TRY(create_copies(runtime));
    }
    if (state->n_items == 0)
        return ZR_OK;
    state->store = runtime->nvme.store;
    return create_swap(runtime);
}

static zr_status_t allocate_tier(zr_unit_t *unit, zr_tier_t tier) {
    zr_runtime_t *runtime = unit->runtime;
    zr_allocation_request_t request = {.size_bytes =
                                           runtime->state.placement.tensor_bytes[unit->index][tier],
                                       .tier = tier,
                                       .tag = ZR_TAG_OPTIMIZER_STATE,
                                       .lifetime = ZR_LIFETIME_PERSISTENT,
                                       .name = unit->name};
    if (request.size_bytes == 0)
        return ZR_OK;
    return zr_allocate(runtime->allocator, &request, &unit->state[tier]);
}

zr_status_t zr_state_allocate_unit(zr_unit_t *unit) {
    const size_t *bytes = unit->runtime->state.placement.tensor_bytes[unit->index];
    ZR_TRY(allocate_tier(unit, ZR_TIER_DEVICE));
    ZR_TRY(allocate_tier(unit, ZR_TIER_HOST));
    if (bytes[ZR_TIER_HOST] != 0 && zr_rt_has_data(unit->runtime))
        memset(unit->state[ZR_TIER_HOST], 0, bytes[ZR_TIER_HOST]);
    /* All encodings have 0 as zeros, and pieces are whole floats. */
    return zr_kernel_fill(unit->runtime->compute, unit->state[ZR_TIER_DEVICE], ZR_DTYPE_F32,
                          bytes[ZR_TIER_DEVICE] / sizeof(float), 0.0f);
}

void zr_state_destroy(zr_runtime_t *runtime) {
    zr_state_t *state = &runtime->state;
    zr_swap_destroy(&state->swap);
    for (size_t i = 0; i < ZR_STATE_N_COPIES; i++) {
        zr_state_copy_t *copy = &state->copies[i];
        zr_free(runtime->allocator, &copy->grads, NULL);
        zr_free(runtime->allocator, &copy->params, NULL);
        zr_event_destroy(&copy->grads_there);
        zr_event_destroy(&copy->params_taken);
    }
    zr_state_destroy_stages(runtime);
    zr_event_destroy(&state->grads_reduced);
    zr_event_destroy(&state->all_down);
    zr_event_destroy(&state->params_up);
    zr_event_destroy(&state->backward_done);
    zr_stream_destroy(&state->down);
    zr_stream_destroy(&state->up);
    zr_stream_destroy(&state->own_host_stream);
    zr_device_close(&state->own_host);
    zr_placement_clear(&state->placement);
    free(state->lowered);
    free(state->items);
    *state = (zr_state_t){0};
}

/* ---- initial values
 * ------------------------------------------------------------------------------ */

zr_status_t zr_state_begin_fill(zr_runtime_t *runtime) {
    zr_state_t *state = &runtime->state;
    if (state->swap == NULL)
        return ZR_OK;
    return zr_swap_begin(state->swap, ZR_SWAP_FILL, state->items, state->n_items);
}

zr_status_t zr_state_end_fill(zr_runtime_t *runtime) {
    return runtime->state.swap == NULL ? ZR_OK : zr_swap_end(runtime->state.swap);
}

size_t zr_state_cut(const zr_unit_t *unit, size_t first, size_t n_elems) {
    zr_state_range_t range = zr_rt_state_range(unit);
    size_t end = range.first + range.n_elems, cut = end;
    if (first >= end)
        return n_elems;
    if (first < range.first) {
        cut = range.first;
    } else {
        const zr_piece_t *piece =
            zr_placement_find(&unit->runtime->state.placement, unit->index, first - range.first);
        cut = range.first + piece->first + piece->n_elems;
    }
    return n_elems < cut - first ? n_elems : cut - first;
}

/* A piece in a store is filled from its beginning to its end, in one buffer. */
static zr_status_t fill_swapped(zr_unit_t *unit, const zr_piece_t *piece, size_t first,
                                const zr_state_values_t *values) {
    const zr_state_t *state = &unit->runtime->state;
    bool has_data = zr_rt_has_data(unit->runtime);
    if (first == piece->first && values->array == 0) {
        void *buffer = NULL;
        ZR_TRY(zr_swap_next(state->swap, &buffer));
        unit->state[ZR_TIER_NVME] = buffer;
        if (has_data)
            memset(buffer, 0, zr_piece_bytes(&state->placement, piece));
    }
    if (has_data)
        zr_state_encoding(state, values->array)
            ->encode(values->host, values->n_elems,
                     zr_state_at(state, piece, unit->state[ZR_TIER_NVME], values->array,
                                 first - piece->first));
    if (!values->is_last || first + values->n_elems < piece->first + piece->n_elems)
        return ZR_OK;
    unit->state[ZR_TIER_NVME] = NULL;
    return zr_swap_done(state->swap);
}

/* Where a piece on device or host keeps its state. */
static void *resident_state(const zr_unit_t *unit, const zr_piece_t *piece) {
    return (char *)unit->state[piece->tier] + piece->offset_bytes;
}

zr_status_t zr_state_fill(zr_unit_t *unit, const zr_state_values_t *values) {
    const zr_state_t *state = &unit->runtime->state;
    zr_state_range_t range = zr_rt_state_range(unit);
    size_t first = values->first;
    if (values->n_elems == 0 || first < range.first || first >= range.first + range.n_elems)
        return ZR_OK;
    first -= range.first;
    const zr_piece_t *piece = zr_placement_find(&state->placement, unit->index, first);
    if (piece->tier == ZR_TIER_NVME)
        return fill_swapped(unit, piece, first, values);
    if (!zr_rt_has_data(unit->runtime))
        return ZR_OK;
    const zr_encoding_t *encoding = zr_state_encoding(state, values->array);
    void *target =
        zr_state_at(state, piece, resident_state(unit, piece), values->array, first - piece->first);
    if (piece->tier == ZR_TIER_HOST) {
        encoding->encode(values->host, values->n_elems, target);
        return ZR_OK;
    }
    return encoding->queue_encode(unit->runtime->compute, values->device, values->n_elems, target);
}

/* ---- looking at it
 * ---------------------------------------------------------------------------------- */

/* Bring the master of a piece to a buffer: its first array, to the end of a chunk. */
static zr_status_t load_master(zr_unit_t *unit, const zr_piece_t *piece, const float **master_p) {
    zr_state_t *state = &unit->runtime->state;
    size_t chunk = zr_store_info(state->store)->chunk_bytes;
    size_t all = zr_piece_bytes(&state->placement, piece);
    size_t master_bytes = zr_state_array_offset(state->rule, 1, piece->n_elems);
    size_t size_bytes = (master_bytes + chunk - 1) / chunk * chunk;
    zr_swap_item_t item = {.extent = state->extents.first + unit->index,
                           .offset_bytes = piece->offset_bytes,
                           .size_bytes = size_bytes < all ? size_bytes : all};
    const void *buffer = NULL;
    ZR_TRY(zr_swap_load(state->swap, &item, &buffer));
    *master_p = buffer;
    return ZR_OK;
}

static zr_status_t read_piece(zr_unit_t *unit, const zr_piece_t *piece, size_t first,
                              size_t n_elems, float *device) {
    zr_stream_t *stream = unit->runtime->compute;
    const float *master = NULL;
    if (piece->tier == ZR_TIER_NVME)
        ZR_TRY(load_master(unit, piece, &master));
    else
        master = resident_state(unit, piece);
    zr_copy_t kind =
        piece->tier == ZR_TIER_DEVICE ? ZR_COPY_DEVICE_TO_DEVICE : ZR_COPY_HOST_TO_DEVICE;
    ZR_TRY(zr_copy_async(stream, device, master + (first - piece->first), n_elems * sizeof(float),
                         kind));
    /* The next load may take the buffer. */
    return piece->tier == ZR_TIER_NVME ? zr_stream_synchronize(stream) : ZR_OK;
}

zr_status_t zr_state_read(zr_unit_t *unit, size_t first, size_t n_elems, float *device) {
    first -= zr_rt_state_range(unit).first;
    while (n_elems != 0) {
        const zr_piece_t *piece =
            zr_placement_find(&unit->runtime->state.placement, unit->index, first);
        size_t left = piece->first + piece->n_elems - first;
        size_t length = n_elems < left ? n_elems : left;
        ZR_TRY(read_piece(unit, piece, first, length, device));
        first += length;
        device += length;
        n_elems -= length;
    }
    return ZR_OK;
}

/* ---- report
 * ------------------------------------------------------------------------------------------- */

static void report_store(const zr_state_t *state, zr_offload_report_t *report) {
    zr_swap_statistics_t swap;
    zr_swap_statistics(state->swap, &swap);
    report->has_store = true;
    report->store = *zr_store_info(state->store);
    report->staging_bytes = swap.host_bytes;
    zr_store_account_statistics(state->store, state->extents.account, &report->all);
    for (int d = 0; d < ZR_N_STORE_DIRECTIONS; d++) {
        report->updates[d] = state->update_count[d];
        report->update_wait_seconds[d] = state->update_wait_seconds[d];
    }
}

void zr_runtime_offload(const zr_runtime_t *runtime, zr_offload_report_t *report_p) {
    const zr_state_t *state = &runtime->state;
    const zr_placement_t *placement = &state->placement;
    zr_offload_report_t report = {.has_copies = state->has_copies,
                                  .is_updated_on_device = state->choice.is_on_device,
                                  .was_measured = state->choice.was_measured,
                                  .n_early_groups = state->n_early,
                                  .host_elems_per_s = state->choice.host_elems_per_s,
                                  .device_elems_per_s = state->choice.device_elems_per_s,
                                  .copied_down_bytes = state->copied_down_bytes,
                                  .copied_up_bytes = state->copied_up_bytes,
                                  .update_seconds = state->update_seconds};
    for (int tier = 0; tier < ZR_N_TIERS; tier++) {
        size_t largest_elems = zr_state_largest_elems(state, (zr_tier_t)tier);
        report.n_groups[tier] = placement->n_pieces_in[tier];
        report.state_bytes[tier] = placement->bytes[tier];
        if (tier != ZR_TIER_DEVICE && largest_elems > report.largest_group_elems)
            report.largest_group_elems = largest_elems;
    }
    if (state->swap != NULL)
        report_store(state, &report);
    zr_params_report(runtime, &report.params);
    *report_p = report;
}
