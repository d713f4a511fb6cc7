/*
 * Inputs of layers that wait for backward off the device: set up as the runtime's configuration
 * says where drives are concerned. gpt.c puts and gets them.
 */
#include "examples/gpt_internal.h"

static zr_status_t create_on_nvme(gpt_t *gpt, zr_stash_options_t *options) {
    const zr_config_t *config = zr_runtime_config(gpt->runtime);
    zr_store_paths_t paths;
    zr_store_options_t store;
    zr_runtime_store_options(gpt->runtime, &paths, &store);
    store.n_bounce_buffers = 1; /* nothing is unaligned */
    size_t n_buffers = config->offload_optimizer.n_buffers;
    options->n_buffers = n_buffers < options->n_slots ? n_buffers : options->n_slots;
    options->backend = config->nvme.store;
    options->store = &store;
    return zr_stash_create(options, &gpt->stash);
}

/* What optimizer state and parameters have not taken of what this rank may use. */
static zr_status_t check_capacity(gpt_t *gpt, size_t need) {
    zr_offload_report_t report;
    size_t capacity = zr_runtime_config(gpt->runtime)->nvme.capacity_bytes;
    zr_runtime_offload(gpt->runtime, &report);
    size_t others = report.state_bytes[ZR_TIER_NVME] + report.params.bytes[ZR_TIER_NVME];
    if (capacity == ZR_CONFIG_NO_BUDGET || (others <= capacity && need <= capacity - others))
        return ZR_OK;
    return zr_fail(zr_runtime_log(gpt->runtime), ZR_ERR_BUDGET,
                   "nvme: the inputs of %zu layers, %.1f MiB, do not fit the %.1f MiB that this "
                   "rank may use, beside %.1f MiB of optimizer state and parameters; raise "
                   "--nvme-capacity, lower "
                   "--micro-batch or --seq, or use --offload-activations cpu",
                   gpt->shape.n_layers, (double)need / 0x1p20, (double)capacity / 0x1p20,
                   (double)others / 0x1p20);
}

zr_status_t gpt_offload_activations(gpt_t *gpt, zr_offload_device_t device, size_t most_tokens) {
    const zr_log_t *log = zr_runtime_log(gpt->runtime);
    size_t row_bytes = gpt->shape.channels * zr_dtype_size(gpt->activation_dtype), need;
    if (device == ZR_OFFLOAD_NONE)
        return ZR_OK;
    if (!gpt->options.recompute || gpt->stash != NULL)
        return zr_fail(log, gpt->stash != NULL ? ZR_ERR_STATE : ZR_ERR_ARGUMENT,
                       "activations can be offloaded once, and with recompute only");
    if (__builtin_mul_overflow(most_tokens, row_bytes, &need) ||
        __builtin_mul_overflow(need, gpt->shape.n_layers, &need) || need > SIZE_MAX / 16)
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "inputs of %zu layers for %zu tokens are more than memory can hold",
                       gpt->shape.n_layers, most_tokens);
    zr_stash_options_t options = {.log = *log,
                                  .allocator = gpt->allocator,
                                  .device = zr_runtime_device(gpt->runtime),
                                  .tier = ZR_TIER_HOST,
                                  .n_slots = gpt->shape.n_layers,
                                  .slot_bytes = most_tokens * row_bytes,
                                  .name = "inputs of layers",
                                  .tag = ZR_TAG_ACTIVATIONS,
                                  .lifetime = ZR_LIFETIME_MICRO_BATCH};
    if (device == ZR_OFFLOAD_CPU)
        return zr_stash_create(&options, &gpt->stash);
    ZR_TRY(check_capacity(gpt, need));
    options.tier = ZR_TIER_NVME;
    return create_on_nvme(gpt, &options);
}

bool gpt_activations_statistics(const gpt_t *gpt, zr_stash_statistics_t *statistics_p) {
    if (gpt->stash == NULL)
        return false;
    zr_stash_statistics(gpt->stash, statistics_p);
    return true;
}
