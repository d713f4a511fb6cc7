/*
 * A plan is that of one rank, and shards are equal, so that a rank's bytes times the ranks are
 * those of all. Model states are persistent, so that their tags' peaks are there at the tier's
 * peak; of what comes and goes only the sum at that moment is known.
 */
#include "examples/capacity/bytes.h"

static const zr_tag_t state_tags[] = {ZR_TAG_PARAMETERS, ZR_TAG_GRADIENTS, ZR_TAG_OPTIMIZER_STATE};

static uint64_t least(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

static void count_budgets(const train_options_t *run, const zr_hardware_t *hardware,
                          bool has_drives, capacity_bytes_t *bytes) {
    const zr_config_t *config = &run->config;
    bool is_one_memory = hardware->kind == ZR_HARDWARE_HOST;
    uint64_t n_ranks = (uint64_t)run->n_ranks, memory = hardware->host_memory_bytes;
    uint64_t device = is_one_memory ? memory : zr_hardware_device_room(hardware);
    device = least(config->device_memory_bytes, device);
    uint64_t host = least(config->host_memory_bytes, memory);
    uint64_t nvme = has_drives ? least(config->nvme.capacity_bytes, hardware->disk_bytes) : 0;
    bytes->budget[ZR_TIER_DEVICE] = n_ranks * device;
    bytes->budget[ZR_TIER_HOST] = n_ranks * host;
    bytes->budget[ZR_TIER_NVME] = n_ranks * nvme;
    uint64_t both = is_one_memory ? least(device + host, memory) : device + host;
    bytes->all_budgets = n_ranks * (both + nvme);
}

static uint64_t of_tag(const zr_run_plan_t *plan, int tier, zr_tag_t tag) {
    return tier == ZR_TIER_NVME ? plan->nvme_by_tag[tag] : plan->tiers[tier].by_tag[tag].peak;
}

/* Elements that have whole bytes, in any form of the state. */
#define BLOCK ((size_t)256)

capacity_bytes_t capacity_bytes_of(const train_options_t *run, const zr_hardware_t *hardware,
                                   const zr_run_plan_t *plan, bool has_drives) {
    capacity_bytes_t bytes = {.states = 0};
    const zr_model_size_t *size = &plan->size;
    uint64_t n_ranks = (uint64_t)run->n_ranks, all_states = 0, used = 0;
    zr_update_rule_t rule = zr_config_rule(&run->config);
    if (plan->offload.has_split_masters)
        rule = zr_update_rule_split(&rule, run->config.dtype);
    uint64_t per_block =
        BLOCK * 2 * zr_dtype_size(run->config.dtype) + zr_state_bytes(&rule, BLOCK);
    count_budgets(run, hardware, has_drives, &bytes);
    for (int tier = 0; tier < ZR_N_TIERS; tier++) {
        bool is_nvme = tier == ZR_TIER_NVME;
        uint64_t live = is_nvme ? plan->nvme_live_bytes : plan->tiers[tier].live.peak;
        uint64_t reserved = is_nvme ? plan->nvme_bytes : plan->tiers[tier].reserved.peak;
        uint64_t states = 0;
        for (size_t i = 0; i < sizeof(state_tags) / sizeof(state_tags[0]); i++)
            states += of_tag(plan, tier, state_tags[i]);
        all_states += n_ranks * states;
        bytes.work[tier] = n_ranks * (live - states);
        bytes.holes[tier] = n_ranks * (reserved - live);
        used += n_ranks * reserved;
    }
    bytes.states = size->trainable_elems * per_block / BLOCK + size->frozen_bytes;
    bytes.padding =
        size->trainable_padded_elems * per_block / BLOCK + size->frozen_padded_bytes - bytes.states;
    bytes.replicas = all_states - bytes.states - bytes.padding;
    bytes.unused = (int64_t)(bytes.all_budgets - used);
    return bytes;
}

double capacity_efficiency(const capacity_bytes_t *bytes) {
    return bytes->all_budgets > 0 ? (double)bytes->states / (double)bytes->all_budgets : 0;
}
