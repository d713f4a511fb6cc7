/* Shards of parameters in host memory and in a store: see params_internal.h. */
#include "zero/params_internal.h"

#include <string.h>

#include "offload/placement_internal.h"

/* Parts of a shard that is larger than a buffer begin at multiples of the first; where buffers
 * are smaller than that, of the second. */
#define PART_UNIT_BYTES ((size_t)256 << 10)

/* ---- placement ------------------------------------------------------------------------------- */

static size_t shard_bytes(const zr_unit_t *unit, int kind) {
    return zr_unit_bytes(unit, kind, unit->flat[kind].shard_elems);
}

/* The least multiple of `unit` that is whole blocks of all units. */
static size_t common_unit(const zr_params_t *params, size_t unit) {
    for (size_t i = 0; i < params->model->n_units; i++) {
        const zr_unit_t *one = params->model->units[i];
        size_t block = zr_unit_encoding(one, FLAT_FROZEN)->block_bytes, multiple = unit;
        while (zr_unit_is_encoded(one, FLAT_FROZEN) && multiple % block != 0)
            multiple += unit;
        unit = multiple;
    }
    return unit;
}

static zr_status_t limit_parts(zr_params_t *params) {
    const zr_base_t *base = params->base;
    size_t most = base->config.offload_param.buffer_elems;
    most = most > SIZE_MAX / sizeof(float) ? SIZE_MAX : zr_base_bytes(base, most);
    size_t unit = common_unit(params, PART_UNIT_BYTES);
    size_t least = common_unit(params, ZR_CONFIG_LEAST_BUFFER_BYTES);
    unit = most < unit ? least : unit;
    params->part_bytes = most / unit * unit;
    if (params->part_bytes != 0)
        return ZR_OK;
    return zr_fail(&base->log, ZR_ERR_ARGUMENT,
                   "--param-buffer: %s are less than one block of the frozen parameters' encoding; "
                   "the minimum is %zu elements",
                   zr_size_text(most).text, zr_encoding_elems(zr_base_encoding(base), least));
}

/* Spread what stays on the device over the order of the shards. */
static zr_status_t divide(const zr_params_t *params) {
    const zr_base_t *base = params->base;
    const zr_units_t *model = params->model;
    const zr_offload_param_options_t *offload = &base->config.offload_param;
    size_t n_flats = model->n_units * N_FLATS;
    zr_placement_t placement = {0};
    zr_placement_options_t options = {.log = base->log,
                                      .heap = zr_heap_create(base->heap),
                                      .encodings = {zr_base_encoding(base)},
                                      .n_arrays = 1,
                                      .group_elems = SIZE_MAX, /* whole shards */
                                      .ratio = offload->ratio,
                                      .upper = ZR_TIER_DEVICE,
                                      .lower = offload->device == ZR_OFFLOAD_CPU ? ZR_TIER_HOST
                                                                                 : ZR_TIER_NVME};
    size_t *elems =
        options.heap != NULL ? zr_heap_alloc(options.heap, n_flats, sizeof(*elems)) : NULL;
    if (elems == NULL) {
        zr_heap_destroy(&options.heap);
        return zr_base_no_memory(base, zr_count_text(n_flats, "shard").text);
    }
    for (size_t i = 0; i < n_flats; i++)
        elems[i] = zr_encoding_elems(zr_base_encoding(base), /* as bytes are divided */
                                     shard_bytes(model->units[i / N_FLATS], (int)(i % N_FLATS)));
    zr_status_t status = zr_placement_make(&options, elems, n_flats, &placement);
    for (size_t i = 0; i < placement.n_pieces; i++) {
        const zr_piece_t *piece = &placement.pieces[i];
        model->units[piece->tensor / N_FLATS]->data[piece->tensor % N_FLATS].tier = piece->tier;
    }
    zr_heap_destroy(&options.heap);
    return status;
}

/* Of what would go to a store, shards go to host memory as long as there is room for what may stay
 * there. */
static void place_shard(zr_params_t *params, zr_unit_t *unit, int kind) {
    const zr_offload_param_options_t *offload = &params->base->config.offload_param;
    zr_unit_params_t *data = &unit->data[kind];
    size_t n_elems = unit->flat[kind].shard_elems, size_bytes = shard_bytes(unit, kind);
    if (data->tier == ZR_TIER_NVME && n_elems <= offload->max_in_cpu_elems - params->n_in_host) {
        params->n_in_host += n_elems;
        data->tier = ZR_TIER_HOST;
    }
    params->bytes[data->tier] += size_bytes;
    if (data->tier == ZR_TIER_NVME && size_bytes != 0)
        data->n_parts = (size_bytes - 1) / params->part_bytes + 1;
    params->n_parts += data->n_parts;
    params->n_updated += kind == FLAT_TRAINABLE ? data->n_parts : 0;
}

static void list_shard(zr_params_t *params, zr_unit_t *unit, int kind) {
    zr_unit_params_t *data = &unit->data[kind];
    size_t size_bytes = shard_bytes(unit, kind);
    data->first_part = params->n_parts;
    for (size_t i = 0; i < data->n_parts; i++) {
        size_t offset = i * params->part_bytes, left = size_bytes - offset;
        zr_swap_item_t part = {.extent =
                                   params->extents.first + unit->index * N_FLATS + (size_t)kind,
                               .offset_bytes = offset,
                               .size_bytes = left < params->part_bytes ? left : params->part_bytes};
        params->parts[params->n_parts++] = part;
        if (kind == FLAT_TRAINABLE)
            params->updated[params->n_updated++] = part;
    }
}

static zr_status_t list_shards(zr_params_t *params) {
    params->parts = zr_heap_alloc(params->base->heap, params->n_parts, sizeof(*params->parts));
    params->updated =
        zr_heap_alloc(params->base->heap, params->n_updated, sizeof(*params->updated));
    if (params->parts == NULL || params->updated == NULL)
        return zr_base_no_memory(params->base, zr_count_text(params->n_parts, "part").text);
    params->n_parts = params->n_updated = 0;
    for (size_t i = 0; i < params->model->n_units; i++)
        for (int kind = 0; kind < N_FLATS; kind++)
            list_shard(params, params->model->units[i], kind);
    return ZR_OK;
}

/* As long as a number is left open, the most that it may become. */
static size_t most_buffers(const zr_params_t *params) {
    size_t n = zr_base_n_buffers(params->base, params->base->config.offload_param.n_buffers,
                                 ZR_CONFIG_USUAL_PARAM_BUFFERS, ZR_CONFIG_MOST_AUTO_PARAM_BUFFERS);
    return n < params->n_parts ? n : params->n_parts;
}

void zr_params_use_buffers(zr_params_t *params) {
    params->n_buffers = most_buffers(params);
}

static zr_status_t declare(zr_params_t *params, zr_nvme_t *nvme) {
    static const char *const advice[] = {"--offload-params cpu", "a lower --offload-param-ratio",
                                         "a larger --params-in-host", "more --ranks", NULL};
    size_t n_extents = params->model->n_units * N_FLATS;
    size_t n_swaps = zr_base_updates_in_backward(params->base) ? 2 : 1; /* see create_swap */
    zr_store_extent_t *extents = zr_heap_alloc(params->base->heap, n_extents, sizeof(*extents));
    if (extents == NULL)
        return zr_base_no_memory(params->base, zr_count_text(n_extents, "extent").text);
    for (size_t i = 0; i < n_extents; i++) {
        const zr_unit_t *unit = params->model->units[i / N_FLATS];
        int kind = (int)(i % N_FLATS);
        bool is_here = unit->data[kind].tier == ZR_TIER_NVME;
        extents[i] = (zr_store_extent_t){.name = unit->params_tensor,
                                         .size_bytes = is_here ? shard_bytes(unit, kind) : 0,
                                         .goes_first = true};
    }
    zr_extents_desc_t desc = {.name = "parameters",
                              .extents = extents,
                              .n_extents = n_extents,
                              .unit_bytes = params->part_bytes,
                              .max_transfers =
                                  n_swaps * zr_swap_max_transfers(most_buffers(params)),
                              .advice = advice};
    zr_status_t status = zr_nvme_declare(nvme, &desc, &params->extents);
    zr_heap_free(params->base->heap, extents);
    return status;
}

zr_status_t zr_params_place(zr_params_t *params, zr_nvme_t *nvme) {
    if (!zr_base_offloads_params(params->base))
        return ZR_OK;
    ZR_TRY(limit_parts(params));
    ZR_TRY(divide(params));
    for (size_t i = 0; i < params->model->n_units; i++)
        for (int kind = 0; kind < N_FLATS; kind++)
            place_shard(params, params->model->units[i], kind);
    if (params->n_parts != 0)
        ZR_TRY(declare(params, nvme));
    return list_shards(params);
}

double zr_params_part_on_device(const zr_params_t *params) {
    size_t all = 0, on_device = 0;
    for (size_t i = 0; i < params->model->n_units; i++) {
        const zr_unit_t *unit = params->model->units[i];
        size_t n_elems = unit->flat[FLAT_TRAINABLE].shard_elems;
        all += n_elems;
        on_device += zr_unit_is_offloaded(unit, FLAT_TRAINABLE) ? 0 : n_elems;
    }
    return all == 0 ? 0 : (double)on_device / (double)all;
}

/* ---- life ------------------------------------------------------------------------------------ */

static zr_status_t create_swap(zr_params_t *params) {
    const zr_base_t *base = params->base;
    size_t largest = 0;
    for (size_t i = 0; i < params->n_parts; i++)
        largest = params->parts[i].size_bytes > largest ? params->parts[i].size_bytes : largest;
    zr_swap_options_t options = {.log = base->log,
                                 .allocator = base->allocator,
                                 .device = base->device,
                                 .n_buffers = params->n_buffers,
                                 .buffer_bytes = largest,
                                 .read_ahead = true,
                                 .write_behind = true,
                                 .is_idle = &base->does_alike_once};
    ZR_TRY(zr_swap_create(&options, params->store, &params->swap));
    params->writes = params->swap;
    if (!zr_base_updates_in_backward(base) || params->n_updated == 0)
        return ZR_OK;
    ZR_TRY(zr_swap_create(&options, params->store, &params->own_writes)); /* while others read */
    params->writes = params->own_writes;
    return ZR_OK;
}

zr_status_t zr_params_create(zr_params_t *params, zr_store_t *store) {
    const zr_device_info_t *info = zr_device_info(params->base->device);
    if (!zr_base_offloads_params(params->base))
        return ZR_OK;
    params->is_direct = info->host_addressable && info->computes_on_host;
    if (params->n_parts == 0)
        return ZR_OK;
    params->store = store;
    return create_swap(params);
}

void zr_params_destroy(zr_params_t *params) {
    zr_swap_destroy(&params->own_writes);
    zr_swap_destroy(&params->swap);
    *params = (zr_params_t){0};
}

zr_status_t zr_params_allocate(zr_params_t *params, zr_unit_t *unit, int kind) {
    zr_unit_params_t *data = &unit->data[kind];
    if (data->tier != ZR_TIER_HOST)
        return ZR_OK;
    return zr_base_allocate_host(params->base, shard_bytes(unit, kind), ZR_TAG_PARAMETERS,
                                 unit->params_tensor, &data->own);
}

/* ---- reading --------------------------------------------------------------------------------- */

static zr_status_t open_reads(zr_params_t *params, zr_swap_item_t *items, size_t n_items) {
    ZR_TRY(zr_swap_begin(params->swap, ZR_SWAP_READ, items, n_items));
    params->is_reading = true;
    return ZR_OK;
}

zr_status_t zr_params_close_reads(zr_params_t *params) {
    if (!params->is_reading)
        return ZR_OK;
    params->is_reading = false;
    params->ahead = NULL;
    return zr_swap_end(params->swap);
}

/* The one that is recorded and followed now. */
static zr_read_order_t *order_now(zr_params_t *params) {
    return &params->orders[params->base->progress.in_evaluation];
}

static zr_status_t append_part(zr_params_t *params, zr_read_order_t *order,
                               const zr_swap_item_t *part) {
    if (!zr_heap_make_room(params->base->heap, &order->parts, order->n, &order->capacity,
                           sizeof(*order->parts)))
        return zr_base_no_memory(params->base, "the order of reads");
    order->parts[order->n++] = *part;
    return ZR_OK;
}

static bool is_expected(const zr_params_t *params, const zr_read_order_t *order,
                        const zr_swap_item_t *part) {
    if (!params->is_reading || order->position == order->n)
        return false;
    const zr_swap_item_t *next = &order->parts[order->position];
    return next->extent == part->extent && next->offset_bytes == part->offset_bytes;
}

/* Make the parts of a shard the next ones of an open pass. */
static zr_status_t seek_shard(zr_params_t *params, const zr_unit_params_t *data) {
    zr_swap_item_t *first = &params->parts[data->first_part];
    zr_read_order_t *order = order_now(params);
    bool has_order = zr_base_has_order(params->base);
    if (has_order && is_expected(params, order, first)) {
        order->position += data->n_parts;
        params->n_foreseen += data->n_parts;
        return ZR_OK;
    }
    ZR_TRY(zr_params_close_reads(params));
    if (has_order) {
        order->n = order->position; /* it is another order from here on */
        for (size_t i = 0; i < data->n_parts; i++)
            ZR_TRY(append_part(params, order, first + i));
        order->position = order->n;
    }
    return open_reads(params, first, data->n_parts);
}

static void count_gather(zr_params_t *params, size_t size_bytes) {
    size_t block = zr_store_info(params->store)->block_bytes;
    params->gathers.n_parts++;
    params->gathers.bytes += size_bytes;
    params->gathers.moved_bytes += (size_bytes + block - 1) / block * block;
}

/* The next part of the pass. */
static zr_status_t fetch_part(zr_params_t *params, void *target, size_t size_bytes) {
    void *buffer = NULL;
    ZR_TRY(zr_swap_next(params->swap, &buffer));
    params->ahead = NULL;
    count_gather(params, size_bytes);
    ZR_TRY(
        zr_copy_async(params->base->transfer, target, buffer, size_bytes, ZR_COPY_HOST_TO_DEVICE));
    ZR_TRY(zr_swap_done_behind(params->swap, params->base->transfer));
    zr_store_progress(params->store);
    return ZR_OK;
}

zr_status_t zr_params_fetch(zr_params_t *params, zr_unit_t *unit, int kind, void *target) {
    const zr_unit_params_t *data = &unit->data[kind];
    size_t size_bytes = shard_bytes(unit, kind);
    params->copied_up_bytes += size_bytes;
    if (data->tier == ZR_TIER_HOST)
        return zr_copy_async(params->base->transfer, target, data->own, size_bytes,
                             ZR_COPY_HOST_TO_DEVICE);
    ZR_TRY(seek_shard(params, data));
    size_t n_parts = params->base->does_alike_once ? 1 : data->n_parts;
    for (size_t i = 0; i < n_parts; i++) {
        const zr_swap_item_t *part = &params->parts[data->first_part + i];
        ZR_TRY(fetch_part(params, (char *)target + part->offset_bytes, part->size_bytes));
    }
    return ZR_OK;
}

zr_status_t zr_params_read_ahead(zr_params_t *params) {
    zr_read_order_t *order = order_now(params);
    if (params->store == NULL || params->ahead == order)
        return ZR_OK;
    ZR_TRY(zr_params_close_reads(params));
    if (order->position != 0) /* a micro-batch has been: it may have read less than those before */
        order->n = order->position;
    order->position = 0;
    if (order->n == 0)
        return ZR_OK;
    ZR_TRY(open_reads(params, order->parts, order->n));
    params->ahead = order;
    return ZR_OK;
}

/* What was moved of them. */
static void account(const zr_params_t *params, zr_store_statistics_t *statistics_p) {
    zr_store_account_statistics(params->store, params->extents.account, statistics_p);
}

/* ---- writing --------------------------------------------------------------------------------- */

zr_status_t zr_params_begin_fill(zr_params_t *params) {
    if (params->store == NULL)
        return ZR_OK;
    params->filled_by = params->swap;
    return zr_swap_begin(params->swap, ZR_SWAP_FILL, params->parts, params->n_parts);
}

zr_status_t zr_params_end_fill(zr_params_t *params) {
    if (params->store == NULL)
        return ZR_OK;
    ZR_TRY(zr_swap_end(params->swap));
    account(params, &params->filled);
    return ZR_OK;
}

zr_status_t zr_params_begin_update(zr_params_t *params) {
    /* The CPU writes what the transfer stream has been reading: the norm has waited for that, or,
     * in backward, the reduction that the update follows. */
    if (params->n_updated == 0)
        return ZR_OK;
    if (params->writes == params->swap)
        ZR_TRY(zr_params_close_reads(params));
    params->filled_by = params->writes;
    bool is_read = params->is_read_by_updates && !params->is_taken_gathered;
    return zr_swap_begin(params->writes, is_read ? ZR_SWAP_UPDATE : ZR_SWAP_FILL, params->updated,
                         params->n_updated);
}

zr_status_t zr_params_end_update(zr_params_t *params) {
    return params->n_updated == 0 ? ZR_OK : zr_swap_end(params->writes);
}

/* Where elements of a shard are on the host, while they are written. */
static char *host_place(const zr_params_t *params, const zr_unit_t *unit, int kind, size_t first) {
    size_t offset = zr_unit_bytes(unit, kind, first);
    if (unit->data[kind].tier == ZR_TIER_HOST)
        return (char *)unit->data[kind].own + offset;
    return (char *)params->writing + offset % params->part_bytes;
}

/* What an update reads and a buffer does not have yet, slice by slice: it is in a cache then. */
static zr_status_t take_gathered(const zr_params_t *params, const zr_unit_t *unit, int kind,
                                 const zr_params_write_t *write) {
    bool is_updated = params->is_taken_gathered && params->filled_by == params->own_writes;
    if (!is_updated || unit->data[kind].tier != ZR_TIER_NVME)
        return ZR_OK;
    size_t first = zr_unit_own_first(unit, kind) + write->first;
    return zr_copy_async(write->stream, write->target,
                         zr_unit_at(unit, kind, unit->data[kind].full, first),
                         zr_unit_bytes(unit, kind, write->n_elems), ZR_COPY_DEVICE_TO_DEVICE);
}

zr_status_t zr_params_open_write(zr_params_t *params, zr_unit_t *unit, int kind,
                                 zr_params_write_t *write) {
    const zr_base_t *base = params->base;
    size_t part_elems = zr_encoding_elems(zr_unit_encoding(unit, kind), params->part_bytes);
    size_t left = part_elems - write->first % part_elems;
    write->n_elems = write->n_elems < left ? write->n_elems : left;
    write->on_device = NULL;
    if (unit->data[kind].tier == ZR_TIER_NVME && params->writing == NULL) {
        size_t number = zr_unit_bytes(unit, kind, write->first) / params->part_bytes;
        ZR_TRY(
            zr_swap_seek(params->filled_by, &params->parts[unit->data[kind].first_part + number]));
        ZR_TRY(zr_swap_next(params->filled_by, &params->writing));
        params->is_written_on_device = false;
    }
    write->target = host_place(params, unit, kind, write->first);
    ZR_TRY(take_gathered(params, unit, kind, write));
    if (params->is_direct || write->stream != base->update)
        return ZR_OK;
    ZR_TRY(zr_base_allocate(base, zr_unit_bytes(unit, kind, write->n_elems), ZR_TAG_STAGING,
                            ZR_LIFETIME_COLLECTIVE, unit->params_tensor, write->stream,
                            &write->on_device));
    if (params->is_read_by_updates && !base->does_alike_once) {
        size_t size_bytes = zr_unit_bytes(unit, kind, write->n_elems);
        ZR_TRY(zr_copy_async(write->stream, write->on_device, write->target, size_bytes,
                             ZR_COPY_HOST_TO_DEVICE));
        params->copied_up_bytes += size_bytes;
    }
    write->target = write->on_device;
    params->is_written_on_device = true;
    return ZR_OK;
}

/* The part that is being written goes to the store when its last element is there. */
static zr_status_t end_part(zr_params_t *params, zr_unit_t *unit, int kind, size_t end_elem) {
    size_t end = zr_unit_bytes(unit, kind, end_elem);
    if (unit->data[kind].tier != ZR_TIER_NVME ||
        (end % params->part_bytes != 0 && end != shard_bytes(unit, kind)))
        return ZR_OK;
    params->writing = NULL;
    return params->is_written_on_device
               ? zr_swap_done_behind(params->filled_by, params->base->update)
               : zr_swap_done(params->filled_by);
}

zr_status_t zr_params_close_write(zr_params_t *params, zr_unit_t *unit, int kind,
                                  zr_params_write_t *write) {
    const zr_base_t *base = params->base;
    size_t size_bytes = zr_unit_bytes(unit, kind, write->n_elems);
    if (write->on_device != NULL) {
        zr_status_t status = ZR_OK;
        if (!base->does_alike_once)
            status = zr_copy_async(write->stream, host_place(params, unit, kind, write->first),
                                   write->on_device, size_bytes, ZR_COPY_DEVICE_TO_HOST);
        zr_free(base->allocator, &write->on_device, write->stream);
        ZR_TRY(status);
        params->copied_down_bytes += size_bytes;
    }
    if (params->store != NULL)
        zr_store_progress(params->store);
    return end_part(params, unit, kind, write->first + write->n_elems);
}

/* ---- values ---------------------------------------------------------------------------------- */

zr_status_t zr_params_fill(zr_params_t *params, zr_unit_t *unit, int kind, size_t first,
                           size_t n_elems, const float *values) {
    const zr_encoding_t *encoding = zr_unit_encoding(unit, kind);
    while (n_elems != 0) {
        zr_params_write_t write = {.first = first, .n_elems = n_elems};
        ZR_TRY(zr_params_open_write(params, unit, kind, &write));
        if (zr_base_has_data(params->base))
            encoding->encode(encoding, values, write.n_elems, write.target);
        ZR_TRY(zr_params_close_write(params, unit, kind, &write));
        first += write.n_elems;
        values += write.n_elems;
        n_elems -= write.n_elems;
    }
    return ZR_OK;
}

/* The part of a shard with element `first`, in a buffer; it stays there for the next call. */
static zr_status_t look_at_part(zr_params_t *params, const zr_unit_t *unit, int kind, size_t first,
                                const char **part_p) {
    size_t number = zr_unit_bytes(unit, kind, first) / params->part_bytes;
    zr_store_statistics_t before, after;
    const void *buffer = NULL;
    account(params, &before);
    double waited = before.wait_seconds[ZR_STORE_GET]; /* also for what is dropped now */
    ZR_TRY(zr_params_close_reads(params));
    account(params, &before);
    ZR_TRY(
        zr_swap_load(params->swap, &params->parts[unit->data[kind].first_part + number], &buffer));
    account(params, &after);
    zr_store_count_t moved =
        zr_store_count_between(&before.count[ZR_STORE_GET], &after.count[ZR_STORE_GET]);
    zr_store_count_add(&params->inspected, &moved);
    params->look_seconds += after.wait_seconds[ZR_STORE_GET] - waited;
    *part_p = buffer;
    return ZR_OK;
}

zr_status_t zr_params_read(zr_params_t *params, const zr_unit_t *unit, int kind, size_t first,
                           size_t n_elems, float *values) {
    const zr_base_t *base = params->base;
    const zr_encoding_t *encoding = zr_unit_encoding(unit, kind);
    size_t part_elems = zr_encoding_elems(encoding, params->part_bytes);
    /* Frozen ones nothing has written since commit, and trained ones the caller has waited for. */
    while (n_elems != 0) {
        size_t left = part_elems - first % part_elems;
        size_t length = n_elems < left ? n_elems : left;
        const char *part = NULL;
        if (unit->data[kind].tier == ZR_TIER_NVME)
            ZR_TRY(look_at_part(params, unit, kind, first, &part));
        else
            part = (const char *)unit->data[kind].own +
                   zr_unit_bytes(unit, kind, first - first % part_elems);
        if (zr_base_has_data(base))
            encoding->decode(encoding, part + zr_unit_bytes(unit, kind, first % part_elems), length,
                             values);
        first += length;
        values += length;
        n_elems -= length;
    }
    return ZR_OK;
}

/* The part of a shard with element `first`, in the store. */
static zr_status_t rewrite_part(zr_params_t *params, const zr_unit_t *unit, int kind, size_t first,
                                size_t n_elems, const float *values) {
    const zr_encoding_t *encoding = zr_unit_encoding(unit, kind);
    size_t offset = zr_base_bytes(params->base, first);
    const zr_unit_params_t *data = &unit->data[kind];
    zr_swap_item_t *part = &params->parts[data->first_part + offset / params->part_bytes];
    void *buffer = NULL;
    ZR_TRY(zr_swap_begin(params->swap, ZR_SWAP_UPDATE, part, 1));
    ZR_TRY(zr_swap_next(params->swap, &buffer));
    if (zr_base_has_data(params->base))
        encoding->encode(encoding, values, n_elems, (char *)buffer + offset % params->part_bytes);
    ZR_TRY(zr_swap_done(params->swap));
    return zr_swap_end(params->swap);
}

zr_status_t zr_params_write(zr_params_t *params, zr_unit_t *unit, int kind, size_t first,
                            size_t n_elems, const float *values) {
    const zr_encoding_t *encoding = zr_unit_encoding(unit, kind);
    size_t part_elems = zr_encoding_elems(encoding, params->part_bytes);
    if (unit->data[kind].tier == ZR_TIER_HOST && !zr_base_has_data(params->base))
        return ZR_OK;
    if (unit->data[kind].tier == ZR_TIER_HOST) {
        encoding->encode(encoding, values, n_elems,
                         zr_base_at(params->base, unit->data[kind].own, first));
        return ZR_OK;
    }
    ZR_TRY(zr_params_close_reads(params)); /* what was read ahead has the old values */
    while (n_elems != 0) {
        size_t left = part_elems - first % part_elems;
        size_t length = n_elems < left ? n_elems : left;
        ZR_TRY(rewrite_part(params, unit, kind, first, length, values));
        first += length;
        values += length;
        n_elems -= length;
    }
    return ZR_OK;
}

/* ---- report ---------------------------------------------------------------------------------- */

double zr_params_wait_seconds(const zr_params_t *params) {
    zr_store_statistics_t now;
    double seconds = -params->look_seconds;
    if (params->store == NULL)
        return 0;
    account(params, &now);
    for (int d = 0; d < ZR_N_STORE_DIRECTIONS; d++)
        seconds += now.wait_seconds[d] - params->filled.wait_seconds[d];
    return seconds;
}

static void report_store(const zr_params_t *params, zr_params_report_t *report) {
    zr_swap_statistics_t swap;
    zr_swap_statistics(params->swap, &swap);
    account(params, &report->all);
    report->has_store = true;
    report->store = *zr_store_info(params->store);
    report->staging_bytes = swap.host_bytes;
    report->n_buffers = params->n_buffers;
    report->n_foreseen = params->n_foreseen;
    report->gathers = params->gathers;
    report->n_unused = swap.n_unused;
    report->unused_bytes = swap.unused_bytes;
    report->updates = zr_store_count_between(&params->filled.count[ZR_STORE_PUT],
                                             &report->all.count[ZR_STORE_PUT]);
    report->inspected = params->inspected;
    report->gather_wait_seconds = report->all.wait_seconds[ZR_STORE_GET] - params->look_seconds;
    report->update_wait_seconds =
        report->all.wait_seconds[ZR_STORE_PUT] - params->filled.wait_seconds[ZR_STORE_PUT];
}

void zr_params_report(const zr_params_t *params, zr_params_report_t *report_p) {
    zr_params_report_t report = {.copied_up_bytes = params->copied_up_bytes,
                                 .copied_down_bytes = params->copied_down_bytes};
    memcpy(report.bytes, params->bytes, sizeof(report.bytes));
    if (params->swap != NULL) /* host memory may have had no room for it */
        report_store(params, &report);
    *report_p = report;
}
