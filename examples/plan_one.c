/* One plan: see plan_one.h. */
#include "examples/plan_one.h"

#include <stdio.h>

#define ENOUGH_BYTES ((size_t)1 << 50) /* of memory, for any plan */

/* The first error is what the run would say. */
static void keep_first(void *context, zr_log_level_t level, int rank, const char *message) {
    plan_one_t *one = context;
    (void)rank;
    if (level == ZR_LOG_ERROR && one->message[0] == '\0')
        snprintf(one->message, sizeof(one->message), "%s", message);
}

size_t plan_one_there(const gpt_plan_request_t *request, zr_tier_t tier, const gpt_plan_t *plan) {
    const zr_config_t *config = &request->config;
    const zr_hardware_t *hardware = &request->hardware;
    const size_t budgets[ZR_N_TIERS] = {config->device_memory_bytes, config->host_memory_bytes,
                                        config->nvme.capacity_bytes};
    size_t machine[ZR_N_TIERS] = {hardware->device_memory_bytes, hardware->host_memory_bytes,
                                  hardware->disk_bytes};
    if (hardware->kind == ZR_HARDWARE_HOST) {
        size_t device = plan->tiers[ZR_TIER_DEVICE].reserved.peak;
        size_t all = hardware->host_memory_bytes;
        machine[ZR_TIER_DEVICE] = all;
        machine[ZR_TIER_HOST] = all > device ? all - device : 0;
    }
    return budgets[tier] < machine[tier] ? budgets[tier] : machine[tier];
}

static size_t largest_tag(const gpt_plan_t *plan, zr_tier_t tier, zr_tag_t *tag_p) {
    size_t largest = 0;
    for (int tag = 0; tag < ZR_N_TAGS; tag++) {
        size_t bytes =
            tier == ZR_TIER_NVME ? plan->nvme_by_tag[tag] : plan->tiers[tier].by_tag[tag].peak;
        if (bytes > largest) {
            largest = bytes;
            *tag_p = (zr_tag_t)tag;
        }
    }
    return largest;
}

static plan_lack_t find_lack(const gpt_plan_request_t *request, const gpt_plan_t *plan) {
    plan_lack_t lack = {0};
    double worst = -1;
    for (int tier = 0; tier < ZR_N_TIERS; tier++) {
        size_t needed = tier == ZR_TIER_NVME ? plan->nvme_bytes : plan->tiers[tier].reserved.peak;
        size_t has = plan_one_there(request, (zr_tier_t)tier, plan);
        double share = has > 0 ? (double)needed / (double)has : (double)needed;
        if (needed == 0 || share <= worst)
            continue;
        worst = share;
        lack = (plan_lack_t){.tier = (zr_tier_t)tier, .needed_bytes = needed, .there_bytes = has};
    }
    lack.tag_bytes = largest_tag(plan, lack.tier, &lack.tag);
    return lack;
}

/* What it needs, with enough of everything. */
static zr_status_t plan_without_limits(const gpt_plan_request_t *limited, const zr_log_t *log,
                                       plan_one_t *one) {
    gpt_plan_request_t request = *limited;
    zr_hardware_t *hardware = &request.hardware;
    request.log = *log;
    request.log.level = ZR_LOG_ERROR;
    request.config.device_memory_bytes = ZR_CONFIG_NO_BUDGET;
    request.config.host_memory_bytes = ZR_CONFIG_NO_BUDGET;
    request.config.nvme.capacity_bytes = ZR_CONFIG_NO_BUDGET;
    hardware->device_memory_bytes = hardware->host_memory_bytes = ENOUGH_BYTES;
    hardware->disk_bytes = ENOUGH_BYTES;
    ZR_TRY(gpt_plan(&request, &one->plan));
    one->lack = find_lack(limited, &one->plan);
    return ZR_OK;
}

zr_status_t plan_one(const gpt_plan_request_t *request, const zr_log_t *log, plan_one_t *one_p) {
    gpt_plan_request_t own = *request;
    *one_p = (plan_one_t){0};
    own.log = (zr_log_t){.sink = keep_first, .context = one_p, .level = ZR_LOG_ERROR};
    zr_status_t status = gpt_plan(&own, &one_p->plan);
    if (status == ZR_ERR_BUDGET)
        return plan_without_limits(&own, log, one_p);
    if (status != ZR_OK)
        return zr_fail(log, status, "%s", one_p->message);
    one_p->fits = true;
    return ZR_OK;
}
