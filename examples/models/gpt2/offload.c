/*
 * Inputs of layers that wait for backward off the device: set up as the runtime's configuration
 * says where drives are concerned. gpt.c puts and gets them.
 */
#include <stdio.h>
#include <stdlib.h>

#include "examples/models/gpt2/internal.h"

/* Room in the rank's store: an extent for each layer. */
static zr_status_t declare(gpt_t *gpt) {
    static const char *const advice[] = {"--offload-activations cpu", "a smaller --micro-batch",
                                         "a shorter --seq", NULL};
    zr_stash_options_t *options = &gpt->stash_options;
    size_t n_buffers = zr_runtime_config(gpt->runtime)->offload_optimizer.n_buffers;
    size_t align = ZR_STORE_CHUNK_ALIGN_BYTES;
    size_t extent_bytes = (options->slot_bytes + align - 1) / align * align;
    zr_store_extent_t *extents = calloc(options->n_slots, sizeof(*extents));
    zr_extents_t place;
    if (extents == NULL)
        return zr_fail(zr_runtime_log(gpt->runtime), ZR_ERR_MEMORY, "no memory for %s",
                       zr_count_text(options->n_slots, "extent").text);
    for (size_t i = 0; i < options->n_slots; i++)
        extents[i] = (zr_store_extent_t){.name = options->name, .size_bytes = extent_bytes};
    options->n_buffers = n_buffers < options->n_slots ? n_buffers : options->n_slots;
    snprintf(gpt->stash_name, sizeof(gpt->stash_name), "inputs of %s",
             zr_count_text(options->n_slots, "layer").text);
    zr_extents_desc_t desc = {.name = gpt->stash_name,
                              .extents = extents,
                              .n_extents = options->n_slots,
                              .unit_bytes = zr_stash_most_chunk_bytes(options->slot_bytes),
                              .max_transfers = zr_stash_max_transfers(options->n_buffers),
                              .advice = advice};
    zr_status_t status = zr_runtime_add_extents(gpt->runtime, &desc, &place);
    free(extents);
    if (status == ZR_OK)
        options->first_extent = place.first;
    return status;
}

zr_status_t gpt_plan_activations(gpt_t *gpt, zr_offload_device_t device, size_t most_tokens) {
    const zr_log_t *log = zr_runtime_log(gpt->runtime);
    size_t row_bytes = gpt->shape.channels * zr_dtype_size(gpt->activation_dtype), need;
    if (device == ZR_OFFLOAD_NONE)
        return ZR_OK;
    if (!gpt->options.recompute || gpt->stash_options.n_slots != 0)
        return zr_fail(log, gpt->options.recompute ? ZR_ERR_STATE : ZR_ERR_ARGUMENT,
                       "activations can be offloaded once, and with recompute only");
    if (__builtin_mul_overflow(most_tokens, row_bytes, &need) ||
        __builtin_mul_overflow(need, gpt->shape.n_layers, &need) || need > SIZE_MAX / 16)
        return zr_fail(log, ZR_ERR_ARGUMENT, "inputs of %s for %s are more than memory can hold",
                       zr_count_text(gpt->shape.n_layers, "layer").text,
                       zr_count_text(most_tokens, "token").text);
    gpt->stash_options =
        (zr_stash_options_t){.log = *log,
                             .allocator = gpt->allocator,
                             .device = zr_runtime_device(gpt->runtime),
                             .tier = device == ZR_OFFLOAD_CPU ? ZR_TIER_HOST : ZR_TIER_NVME,
                             .n_slots = gpt->shape.n_layers,
                             .slot_bytes = most_tokens * row_bytes,
                             .name = "inputs of layers",
                             .tag = ZR_TAG_ACTIVATIONS,
                             .lifetime = ZR_LIFETIME_MICRO_BATCH};
    return device == ZR_OFFLOAD_NVME ? declare(gpt) : ZR_OK;
}

zr_status_t gpt_offload_activations(gpt_t *gpt) {
    if (gpt->stash_options.n_slots == 0 || gpt->stash != NULL)
        return ZR_OK;
    gpt->stash_options.store = zr_runtime_store(gpt->runtime);
    return zr_stash_create(&gpt->stash_options, &gpt->stash);
}

bool gpt_activations_statistics(const gpt_t *gpt, zr_stash_statistics_t *statistics_p) {
    if (gpt->stash == NULL)
        return false;
    zr_stash_statistics(gpt->stash, statistics_p);
    return true;
}
