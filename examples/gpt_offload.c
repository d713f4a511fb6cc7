/*
 * Inputs of layers that wait for backward off the device: set up as the runtime's configuration
 * says where drives are concerned. gpt.c puts and gets them.
 */
#include <stdio.h>
#include <string.h>

#include "examples/gpt_internal.h"

/* Cut a list of folders at its commas, in place; each is named once per file in it. No more than
 * there may be: config has been checked. */
static size_t split_paths(char *text, size_t n_files, const char *paths[ZR_STORE_MAX_PATHS]) {
    size_t n_folders = 0;
    char *rest = NULL;
    for (char *path = strtok_r(text, ",", &rest); path != NULL; path = strtok_r(NULL, ",", &rest))
        paths[n_folders++] = path;
    for (size_t i = n_folders; i < n_folders * n_files; i++)
        paths[i] = paths[i % n_folders];
    return n_folders * n_files;
}

static zr_status_t create_on_nvme(gpt_t *gpt, zr_stash_options_t *options) {
    const zr_config_t *config = zr_runtime_config(gpt->runtime);
    const zr_nvme_options_t *nvme = &config->nvme;
    zr_store_options_t store = zr_store_options_default();
    const char *paths[ZR_STORE_MAX_PATHS];
    char text[ZR_CONFIG_PATHS_BYTES];
    bool is_drive = strcmp(nvme->store, "memory") != 0;
    snprintf(text, sizeof(text), "%s", nvme->paths);
    store.log = options->log;
    store.allocator = is_drive ? gpt->allocator : NULL; /* "memory" stands for a drive */
    store.verify = nvme->verify;
    store.paths = paths;
    store.n_paths = split_paths(text, nvme->files_per_path, paths);
    store.request_bytes = nvme->request_bytes;
    store.depth = nvme->depth;
    store.submit_batch = nvme->submit_batch < nvme->depth ? nvme->submit_batch : nvme->depth;
    store.n_bounce_buffers = 1; /* nothing is unaligned */
    size_t n_buffers = config->offload_optimizer.n_buffers;
    options->n_buffers = n_buffers < options->n_slots ? n_buffers : options->n_slots;
    options->backend = nvme->store;
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
