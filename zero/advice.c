/*
 * What to try when memory runs out, by what this configuration lets live where. The allocator says
 * it beside the numbers: each tier has its own ways out, and one that helps another tier is none.
 * Options are called as zero-train calls them; docs/reference/json.md has the fields.
 */
#include "zero/base_internal.h"

static const char *const smaller_batch = "a smaller --micro-batch, a shorter --seq, --recompute "
                                         "unit with --offload-activations cpu or nvme";

/* Whether gradients leave the device with their state. */
static bool moves_gradients(const zr_config_t *config) {
    return config->stage >= 2 && config->offload_optimizer.gradients != ZR_OFFLOAD_NONE;
}

static void advise_device(const zr_config_t *config, int n_shards, zr_allocator_advice_t *advice) {
    static const char *const stages[] = {"--stage 1, 2 or 3", "--stage 2 or 3", "--stage 3",
                                         "more --ranks"};
    const char **by_tag = advice->by_tag[ZR_TIER_DEVICE];
    bool shards = n_shards > 1 || config->stage == 3; /* a lone rank's shard is the whole */
    advice->budget[ZR_TIER_DEVICE] = "a larger --device-memory";
    advice->any[ZR_TIER_DEVICE] =
        shards ? stages[config->stage] : "--stage 3 with --offload-params cpu or nvme";
    if (config->offload_optimizer.device == ZR_OFFLOAD_NONE)
        by_tag[ZR_TAG_OPTIMIZER_STATE] = "--offload-optimizer cpu or nvme";
    else if (config->offload_optimizer.ratio < 1)
        by_tag[ZR_TAG_OPTIMIZER_STATE] = "a larger --offload-ratio";
    if (config->offload_optimizer.device == ZR_OFFLOAD_NONE && moves_gradients(config))
        by_tag[ZR_TAG_GRADIENTS] = by_tag[ZR_TAG_OPTIMIZER_STATE];
    else if (config->stage >= 2 && !moves_gradients(config))
        by_tag[ZR_TAG_GRADIENTS] = "--offload-gradients cpu or nvme, with an offloaded optimizer";
    else if (config->stage >= 2 && config->offload_optimizer.gradients_ratio < 1)
        by_tag[ZR_TAG_GRADIENTS] = "a larger --offload-gradients-ratio";
    if (config->stage == 3 && config->offload_param.device == ZR_OFFLOAD_NONE)
        by_tag[ZR_TAG_PARAMETERS] = "--offload-params cpu or nvme";
    else if (config->stage == 3 && config->offload_param.ratio < 1)
        by_tag[ZR_TAG_PARAMETERS] = "a larger --offload-param-ratio";
    if (config->stage == 3 && config->prefetch_elems > 0)
        by_tag[ZR_TAG_GATHERED_PARAMETERS] = "--prefetch 0";
    by_tag[ZR_TAG_ACTIVATIONS] = smaller_batch;
    by_tag[ZR_TAG_WORKSPACE] = smaller_batch;
    by_tag[ZR_TAG_DATA] = smaller_batch;
}

/* Of what passes through host memory on its way to files. */
static const char *advise_staging(const zr_config_t *config) {
    bool state =
        config->offload_optimizer.device == ZR_OFFLOAD_NVME || zr_config_has_grads_on_nvme(config);
    bool params = config->offload_param.device == ZR_OFFLOAD_NVME;
    if (!state && !params && config->nvme.paths[0] == '\0')
        return NULL;
    if (state && params)
        return "fewer or smaller staging buffers (--nvme-buffers, --sub-group, --param-buffers, "
               "--param-buffer, request_bytes in --io-settings)";
    if (state)
        return "fewer or smaller staging buffers (--nvme-buffers, --sub-group, request_bytes in "
               "--io-settings)";
    if (params)
        return "fewer or smaller staging buffers (--param-buffers, --param-buffer, request_bytes "
               "in --io-settings)";
    return "fewer or smaller staging buffers (--nvme-buffers, request_bytes in --io-settings)";
}

static void advise_host(const zr_config_t *config, zr_allocator_advice_t *advice) {
    const char **by_tag = advice->by_tag[ZR_TIER_HOST];
    advice->budget[ZR_TIER_HOST] = "a larger --host-memory";
    if (config->offload_optimizer.device == ZR_OFFLOAD_CPU)
        by_tag[ZR_TAG_OPTIMIZER_STATE] = "--offload-optimizer nvme or a lower --offload-ratio";
    if (config->offload_optimizer.device == ZR_OFFLOAD_NVME)
        by_tag[ZR_TAG_OPTIMIZER_STATE] = "a smaller --state-in-host";
    if (zr_config_has_grads_on_nvme(config))
        by_tag[ZR_TAG_GRADIENTS] = "a smaller --gradients-in-host";
    else if (config->offload_optimizer.device != ZR_OFFLOAD_NONE && moves_gradients(config))
        by_tag[ZR_TAG_GRADIENTS] =
            "a lower --offload-gradients-ratio, or --offload-gradients nvme or none";
    if (config->offload_param.device == ZR_OFFLOAD_CPU)
        by_tag[ZR_TAG_PARAMETERS] = "--offload-params nvme";
    if (config->offload_param.device == ZR_OFFLOAD_NVME)
        by_tag[ZR_TAG_PARAMETERS] = "a smaller --params-in-host";
    by_tag[ZR_TAG_ACTIVATIONS] = "--offload-activations nvme or a smaller --micro-batch";
    by_tag[ZR_TAG_STAGING] = advise_staging(config);
}

zr_allocator_advice_t zr_base_advice(const zr_config_t *config, int n_shards) {
    zr_allocator_advice_t advice = {.process = "a larger --memory"};
    advise_device(config, n_shards, &advice);
    advise_host(config, &advice);
    for (int tier = 0; tier < ZR_N_TIERS && zr_config_takes_back(config); tier++)
        advice.by_tag[tier][ZR_TAG_OPTIMIZER_STATE] = "--update-at end, which keeps no old state";
    return advice;
}
