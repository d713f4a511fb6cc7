/*
 * Updates of tensors that stay the caller's: see updater.h. Pieces of the state are placed, kept
 * and brought as those of a runtime's (state_internal.h); the formulas and their loops are the
 * same.
 */
#include "zero/updater.h"

#include <string.h>

#include "offload/placement_internal.h"
#include "offload/swap_internal.h"
#include "zero/nvme_internal.h"
#include "zero/optim/optimizer.h"

/* Of a piece: more of it makes staging buffers larger, and transfers no faster. */
#define MOST_PIECE_ELEMS ((size_t)1 << 20)
/* Updated at a time, while it is in a cache. */
#define SLICE_ELEMS ((size_t)1 << 16)

struct zr_updater {
    zr_base_t base; /* of it: heap, config, log, device, allocator, compute */
    zr_update_rule_t own_rule;
    const zr_update_rule_t *rule;
    zr_dtype_t dtype;
    size_t first_array; /* of the rule's that are kept */
    size_t n_tensors;
    size_t *n_elems;          /* [n_tensors] */
    zr_placement_t placement; /* its tensors are these */
    void **resident;          /* [n_tensors] what of their state is in host memory */
    zr_nvme_t nvme;
    zr_extents_t extents;
    zr_swap_t *swap;       /* NULL: nothing is in the store */
    zr_swap_item_t *items; /* [pieces in the store] of the pass that is open */
    float *written; /* [SLICE_ELEMS] takes the parameters of a slice that are their own master */
    bool has_failed;
};

/* ---- life ------------------------------------------------------------------------------------ */

static zr_status_t check_asked(const zr_updater_t *updater) {
    const zr_device_info_t *info = zr_device_info(updater->base.device);
    const zr_log_t *log = &updater->base.log;
    ZR_TRY(zr_update_rule_check(updater->rule, log));
    if (updater->dtype != ZR_DTYPE_F32 && updater->dtype != ZR_DTYPE_BF16)
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "updater: parameters are %s; fp32 and bf16 are allowed",
                       zr_dtype_name(updater->dtype));
    if (!info->computes_on_host || info->stores_nothing)
        return zr_fail(log, ZR_ERR_UNSUPPORTED,
                       "updater: device \"%s\" has no kernels on host memory", info->backend);
    if (!zr_update_runs_on(updater->base.device, updater->rule))
        return zr_fail(log, ZR_ERR_UNSUPPORTED, "updater: optimizer \"%s\" has no kernel for it",
                       updater->rule->name);
    for (size_t i = 0; i < updater->rule->n_arrays; i++)
        if (updater->rule->arrays[i].encoding != &zr_encoding_fp32)
            return zr_fail(log, ZR_ERR_UNSUPPORTED,
                           "updater: array \"%s\" of optimizer \"%s\" is %s; only fp32 is allowed",
                           updater->rule->arrays[i].name, updater->rule->name,
                           updater->rule->arrays[i].encoding->name);
    return ZR_OK;
}

/* At most what config allows; in a store each piece begins a chunk. */
static size_t piece_elems(const zr_config_t *config) {
    size_t least = ZR_STORE_CHUNK_ALIGN_BYTES / sizeof(float);
    size_t elems =
        config->sub_group_elems < MOST_PIECE_ELEMS ? config->sub_group_elems : MOST_PIECE_ELEMS;
    return elems > least ? elems / least * least : least;
}

static zr_status_t place(zr_updater_t *updater) {
    const zr_offload_options_t *offload = &updater->base.config.offload_optimizer;
    zr_placement_options_t options = {.log = updater->base.log,
                                      .heap = updater->base.heap,
                                      .n_arrays = updater->rule->n_arrays - updater->first_array,
                                      .group_elems = piece_elems(&updater->base.config),
                                      .ratio = 1};
    zr_base_place_below(offload->device == ZR_OFFLOAD_NVME ? ZR_OFFLOAD_NVME : ZR_OFFLOAD_CPU,
                        offload->max_in_cpu_elems, &options);
    for (size_t i = 0; i < options.n_arrays; i++)
        options.encodings[i] = &zr_encoding_fp32;
    return zr_placement_make(&options, updater->n_elems, updater->n_tensors, &updater->placement);
}

static zr_status_t open_store(zr_updater_t *updater) {
    static const char *const advice[] = {"a larger --state-in-host", "--offload-optimizer cpu",
                                         NULL};
    const zr_base_t *base = &updater->base;
    const zr_placement_t *placement = &updater->placement;
    zr_store_extent_t *extents =
        zr_heap_alloc(base->heap, updater->n_tensors, sizeof(zr_store_extent_t));
    if (extents == NULL)
        return zr_base_no_memory(base, zr_count_text(updater->n_tensors, "extent").text);
    for (size_t i = 0; i < updater->n_tensors; i++)
        extents[i] = (zr_store_extent_t){.name = "optimizer state",
                                         .size_bytes = placement->tensor_bytes[i][ZR_TIER_NVME]};
    size_t n_arrays = placement->n_arrays;
    zr_extents_desc_t desc = {.name = "optimizer state",
                              .extents = extents,
                              .n_extents = updater->n_tensors,
                              .unit_bytes = piece_elems(&base->config) * sizeof(float) * n_arrays,
                              .max_transfers =
                                  zr_swap_max_transfers(base->config.offload_optimizer.n_buffers),
                              .advice = advice};
    zr_status_t status = zr_nvme_declare(&updater->nvme, &desc, &updater->extents);
    zr_heap_free(base->heap, extents);
    ZR_THEN(status, zr_nvme_open(&updater->nvme));
    return status;
}

/* Pieces of a tensor that are in the store, behind the items that there are. */
static size_t list_items(const zr_updater_t *updater, size_t tensor, size_t n_items) {
    return n_items + zr_swap_list_items(&updater->placement, tensor, updater->extents.first,
                                        updater->items + n_items);
}

/* What is in the store is 0, too. */
static zr_status_t fill_store(zr_updater_t *updater) {
    size_t n_items = 0;
    for (size_t i = 0; i < updater->n_tensors; i++)
        n_items = list_items(updater, i, n_items);
    ZR_TRY(zr_swap_begin(updater->swap, ZR_SWAP_FILL, updater->items, n_items));
    for (size_t i = 0; i < n_items; i++) {
        void *buffer = NULL;
        ZR_TRY(zr_swap_next(updater->swap, &buffer));
        memset(buffer, 0, updater->items[i].size_bytes);
        ZR_TRY(zr_swap_done(updater->swap));
    }
    return zr_swap_end(updater->swap);
}

static zr_status_t create_swap(zr_updater_t *updater) {
    const zr_base_t *base = &updater->base;
    const zr_offload_options_t *offload = &base->config.offload_optimizer;
    size_t n_pieces = updater->placement.n_pieces_in[ZR_TIER_NVME];
    if (n_pieces == 0)
        return ZR_OK;
    updater->items = zr_heap_alloc(base->heap, n_pieces, sizeof(*updater->items));
    if (updater->items == NULL)
        return zr_base_no_memory(base, zr_count_text(n_pieces, "piece").text);
    ZR_TRY(open_store(updater));
    zr_swap_options_t options = {.log = base->log,
                                 .allocator = base->allocator,
                                 .n_buffers =
                                     offload->n_buffers < n_pieces ? offload->n_buffers : n_pieces,
                                 .buffer_bytes = updater->placement.largest_bytes[ZR_TIER_NVME],
                                 .read_ahead = offload->read_ahead,
                                 .write_behind = offload->write_behind};
    ZR_TRY(zr_swap_create(&options, updater->nvme.store, &updater->swap));
    return fill_store(updater);
}

static zr_status_t allocate_resident(zr_updater_t *updater) {
    const zr_base_t *base = &updater->base;
    updater->resident = zr_heap_alloc(base->heap, updater->n_tensors, sizeof(void *));
    if (updater->resident == NULL)
        return zr_base_no_memory(base, zr_count_text(updater->n_tensors, "tensor").text);
    for (size_t i = 0; i < updater->n_tensors; i++) {
        size_t size_bytes = updater->placement.tensor_bytes[i][ZR_TIER_HOST];
        if (size_bytes == 0)
            continue;
        ZR_TRY(zr_base_allocate_host(base, size_bytes, ZR_TAG_OPTIMIZER_STATE, "optimizer state",
                                     &updater->resident[i]));
        memset(updater->resident[i], 0, size_bytes);
    }
    if (updater->first_array == 0)
        return ZR_OK;
    return zr_base_allocate_host(base, SLICE_ELEMS * sizeof(float), ZR_TAG_STAGING,
                                 "updated parameters", (void **)&updater->written);
}

static zr_status_t open_base(zr_base_t *base) {
    zr_allocator_options_t options = zr_allocator_options_default();
    options.log = base->log;
    options.budget_bytes[ZR_TIER_DEVICE] = base->config.device_memory_bytes;
    options.budget_bytes[ZR_TIER_HOST] = base->config.host_memory_bytes;
    options.process_bytes = zr_config_rank_memory(&base->config);
    options.advice = zr_base_advice(&base->config, 1);
    ZR_TRY(zr_allocator_create_in(base->heap, base->device, &options, &base->allocator));
    return zr_stream_create(base->device, "update", &base->compute);
}

static zr_status_t open(zr_updater_t *updater, const size_t *n_elems) {
    size_t n_tensors = updater->n_tensors;
    updater->n_elems = zr_heap_alloc(updater->base.heap, n_tensors, sizeof(*n_elems));
    if (updater->n_elems == NULL)
        return zr_base_no_memory(&updater->base, zr_count_text(n_tensors, "tensor").text);
    memcpy(updater->n_elems, n_elems, n_tensors * sizeof(*n_elems));
    ZR_TRY(check_asked(updater));
    ZR_TRY(open_base(&updater->base));
    ZR_TRY(place(updater));
    ZR_TRY(allocate_resident(updater));
    return create_swap(updater);
}

zr_status_t zr_updater_create(const zr_config_t *config, zr_device_t *device, const zr_log_t *log,
                              zr_dtype_t dtype, const size_t *n_elems, size_t n_tensors,
                              zr_updater_t **updater_p) {
    zr_log_t own_log = log != NULL ? *log : zr_log_default();
    if (config == NULL || device == NULL || n_elems == NULL || n_tensors == 0 || updater_p == NULL)
        return zr_fail(&own_log, ZR_ERR_ARGUMENT,
                       "zr_updater_create needs a configuration, a device, sizes of tensors and an "
                       "output pointer");
    zr_heap_t *heap = zr_heap_create(NULL);
    zr_updater_t *updater = heap != NULL ? zr_heap_alloc(heap, 1, sizeof(*updater)) : NULL;
    if (updater == NULL) {
        zr_heap_destroy(&heap);
        return zr_fail(&own_log, ZR_ERR_MEMORY, "the system has no memory for an updater");
    }
    updater->base = (zr_base_t){.heap = heap,
                                .config = *config,
                                .log = own_log,
                                .owner = getpid(),
                                .device = device,
                                .n_ranks = 1};
    updater->nvme.base = &updater->base;
    if (config->offload_optimizer.n_buffers == 0)
        updater->base.config.offload_optimizer.n_buffers = ZR_CONFIG_USUAL_BUFFERS;
    updater->base.config.outer_every = 0; /* of a runtime's groups */
    updater->own_rule = zr_config_rule(&updater->base.config);
    updater->rule = &updater->own_rule;
    updater->dtype = dtype;
    updater->first_array = dtype == ZR_DTYPE_F32 ? 1 : 0;
    updater->n_tensors = n_tensors;
    zr_status_t status = open(updater, n_elems);
    if (status != ZR_OK)
        zr_updater_destroy(&updater);
    else
        *updater_p = updater;
    return status;
}

void zr_updater_destroy(zr_updater_t **updater_pp) {
    if (updater_pp == NULL || *updater_pp == NULL)
        return;
    zr_updater_t *updater = *updater_pp;
    zr_base_t *base = &updater->base;
    *updater_pp = NULL;
    if (!zr_owner_is_here(base->owner)) {
        zr_store_destroy(&updater->nvme.store);
        return;
    }
    zr_base_drain(base->compute);
    zr_swap_destroy(&updater->swap);
    zr_nvme_close(&updater->nvme);
    for (size_t i = 0; updater->resident != NULL && i < updater->n_tensors; i++)
        zr_free(base->allocator, &updater->resident[i], NULL);
    zr_free(base->allocator, (void **)&updater->written, NULL);
    zr_stream_destroy(&base->compute);
    zr_allocator_destroy(&base->allocator);
    zr_heap_t *heap = base->heap;
    zr_heap_destroy(&heap);
}

/* ---- updates --------------------------------------------------------------------------------- */

/* Where an array begins in the state of a piece. */
static float *array_of(const zr_updater_t *updater, const zr_piece_t *piece, void *state,
                       size_t array) {
    return (float *)state + (array - updater->first_array) * piece->n_elems;
}

static zr_status_t update_slice(const zr_updater_t *updater, const zr_piece_t *piece, void *state,
                                const zr_update_t *asked, size_t first, size_t n_elems) {
    size_t in_tensor = piece->first + first;
    zr_update_t args = *asked;
    char *param = (char *)asked->param + in_tensor * zr_dtype_size(updater->dtype);
    args.n_elems = n_elems;
    args.grad = (const char *)asked->grad + in_tensor * zr_dtype_size(asked->grad_dtype);
    args.param = updater->first_array == 0 ? (void *)param : updater->written;
    args.param_dtype = updater->dtype;
    for (size_t i = 0; i < updater->rule->n_arrays; i++)
        args.arrays[i] =
            i < updater->first_array ? (void *)param : array_of(updater, piece, state, i) + first;
    return zr_kernel_update(updater->base.compute, updater->rule, &args);
}

static zr_status_t update_piece(const zr_updater_t *updater, const zr_piece_t *piece,
                                const zr_update_t *asked) {
    void *state = NULL;
    if (piece->tier == ZR_TIER_NVME)
        ZR_TRY(zr_swap_next(updater->swap, &state));
    else
        state = (char *)updater->resident[piece->tensor] + piece->offset_bytes;
    for (size_t first = 0; first < piece->n_elems; first += SLICE_ELEMS) {
        size_t left = piece->n_elems - first;
        ZR_TRY(update_slice(updater, piece, state, asked, first,
                            left < SLICE_ELEMS ? left : SLICE_ELEMS));
        if (piece->tier == ZR_TIER_NVME)
            zr_store_progress(updater->nvme.store);
    }
    return piece->tier == ZR_TIER_NVME ? zr_swap_done(updater->swap) : ZR_OK;
}

static zr_status_t check_usable(const zr_updater_t *updater, const char *call) {
    ZR_TRY(zr_owner_check(updater->base.owner, &updater->base.log, call, "the updater"));
    if (updater->has_failed)
        return zr_fail(&updater->base.log, ZR_ERR_STATE,
                       "%s: the updater has failed before and can only be destroyed", call);
    return ZR_OK;
}

static zr_status_t check_tensor(const zr_updater_t *updater, const char *call, size_t tensor) {
    ZR_TRY(check_usable(updater, call));
    if (tensor >= updater->n_tensors)
        return zr_fail(&updater->base.log, ZR_ERR_ARGUMENT, "%s: tensor %zu; there are %zu", call,
                       tensor, updater->n_tensors);
    return ZR_OK;
}

static zr_status_t check_update(const zr_updater_t *updater, const zr_tensor_update_t *update) {
    ZR_TRY(check_tensor(updater, "zr_updater_update", update->tensor));
    if (updater->n_elems[update->tensor] > 0 &&
        (update->update.param == NULL || update->update.grad == NULL))
        return zr_fail(&updater->base.log, ZR_ERR_ARGUMENT,
                       "zr_updater_update: tensor %zu has no parameters or gradients (NULL)",
                       update->tensor);
    return ZR_OK;
}

static zr_status_t update_all(zr_updater_t *updater, const zr_tensor_update_t *updates,
                              size_t n_updates) {
    const zr_placement_t *placement = &updater->placement;
    size_t n_items = 0;
    for (size_t i = 0; i < n_updates && updater->swap != NULL; i++)
        n_items = list_items(updater, updates[i].tensor, n_items);
    if (n_items > 0)
        ZR_TRY(zr_swap_begin(updater->swap, ZR_SWAP_UPDATE, updater->items, n_items));
    for (size_t i = 0; i < n_updates; i++) {
        size_t end = placement->first_piece[updates[i].tensor + 1];
        for (size_t p = placement->first_piece[updates[i].tensor]; p < end; p++)
            ZR_TRY(update_piece(updater, &placement->pieces[p], &updates[i].update));
    }
    ZR_TRY(zr_stream_synchronize(updater->base.compute));
    return n_items > 0 ? zr_swap_end(updater->swap) : ZR_OK;
}

zr_status_t zr_updater_update(zr_updater_t *updater, const zr_tensor_update_t *updates,
                              size_t n_updates) {
    ZR_TRY(check_usable(updater, "zr_updater_update"));
    for (size_t i = 0; i < n_updates; i++) {
        ZR_TRY(check_update(updater, &updates[i]));
        if (i > 0 && updates[i].tensor <= updates[i - 1].tensor)
            return zr_fail(&updater->base.log, ZR_ERR_ARGUMENT,
                           "zr_updater_update: tensor %zu comes after tensor %zu; tensors must be "
                           "in ascending order, each once",
                           updates[i].tensor, updates[i - 1].tensor);
    }
    zr_status_t status = update_all(updater, updates, n_updates);
    updater->has_failed = status != ZR_OK;
    return status;
}

/* ---- looking at state, and changing it ------------------------------------------------------- */

static zr_status_t check_array(const zr_updater_t *updater, const char *call, size_t tensor,
                               size_t array, const float *values) {
    ZR_TRY(check_tensor(updater, call, tensor));
    if (array < updater->first_array || array >= updater->rule->n_arrays)
        return zr_fail(&updater->base.log, ZR_ERR_ARGUMENT,
                       "%s: array %zu; optimizer \"%s\" keeps arrays %zu to %zu", call, array,
                       updater->rule->name, updater->first_array, updater->rule->n_arrays - 1);
    if (values == NULL && updater->n_elems[tensor] > 0)
        return zr_fail(&updater->base.log, ZR_ERR_ARGUMENT, "%s: no place for values (NULL)", call);
    return ZR_OK;
}

static zr_status_t read_array(zr_updater_t *updater, size_t tensor, size_t array, float *values) {
    const zr_placement_t *placement = &updater->placement;
    size_t begin = placement->first_piece[tensor], end = placement->first_piece[tensor + 1];
    size_t n_items = 0;
    if (updater->swap != NULL)
        list_items(updater, tensor, 0);
    for (size_t i = begin; i < end; i++) {
        const zr_piece_t *piece = &placement->pieces[i];
        const void *loaded = NULL;
        void *state = NULL;
        if (piece->tier == ZR_TIER_NVME) {
            ZR_TRY(zr_swap_load(updater->swap, &updater->items[n_items++], &loaded));
            state = (void *)(uintptr_t)loaded;
        } else {
            state = (char *)updater->resident[tensor] + piece->offset_bytes;
        }
        memcpy(values + piece->first, array_of(updater, piece, state, array),
               piece->n_elems * sizeof(float));
    }
    return ZR_OK;
}

static zr_status_t write_array(zr_updater_t *updater, size_t tensor, size_t array,
                               const float *values) {
    const zr_placement_t *placement = &updater->placement;
    size_t begin = placement->first_piece[tensor], end = placement->first_piece[tensor + 1];
    size_t n_items = updater->swap != NULL ? list_items(updater, tensor, 0) : 0;
    if (n_items > 0)
        ZR_TRY(zr_swap_begin(updater->swap, ZR_SWAP_UPDATE, updater->items, n_items));
    for (size_t i = begin; i < end; i++) {
        const zr_piece_t *piece = &placement->pieces[i];
        void *state = NULL;
        if (piece->tier == ZR_TIER_NVME)
            ZR_TRY(zr_swap_next(updater->swap, &state));
        else
            state = (char *)updater->resident[tensor] + piece->offset_bytes;
        memcpy(array_of(updater, piece, state, array), values + piece->first,
               piece->n_elems * sizeof(float));
        if (piece->tier == ZR_TIER_NVME)
            ZR_TRY(zr_swap_done(updater->swap));
    }
    return n_items > 0 ? zr_swap_end(updater->swap) : ZR_OK;
}

zr_status_t zr_updater_read(zr_updater_t *updater, size_t tensor, size_t array, float *values) {
    ZR_TRY(check_array(updater, "zr_updater_read", tensor, array, values));
    zr_status_t status = read_array(updater, tensor, array, values);
    updater->has_failed = status != ZR_OK;
    return status;
}

zr_status_t zr_updater_write(zr_updater_t *updater, size_t tensor, size_t array,
                             const float *values) {
    ZR_TRY(check_array(updater, "zr_updater_write", tensor, array, values));
    zr_status_t status = write_array(updater, tensor, array, values);
    updater->has_failed = status != ZR_OK;
    return status;
}

const zr_allocator_t *zr_updater_allocator(const zr_updater_t *updater) {
    return updater->base.allocator;
}
