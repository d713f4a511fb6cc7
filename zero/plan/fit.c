/* One plan, and what is missing where it does not fit. */
#include "zero/plan/fit_internal.h"

#include <stdio.h>

/* The first error is what the run would say. */
static void keep_first(void *context, zr_log_level_t level, int rank, const char *message) {
    zr_run_fit_t *one = context;
    (void)rank;
    if (level == ZR_LOG_ERROR && one->message[0] == '\0')
        snprintf(one->message, sizeof(one->message), "%s", message);
}

size_t zr_run_list_ways(const zr_run_open_t *open, const zr_config_t *config,
                        zr_run_way_t ways[ZR_RUN_MOST_WAYS]) {
    bool has_orders = open->order && config->grad_accum > 1;
    zr_config_t in_backward = *config;
    in_backward.update_at = ZR_UPDATE_AT_BACKWARD;
    bool keeps_masters = zr_config_takes_back(&in_backward) && config->master == ZR_MASTER_SPLIT;
    bool has_moments = open->update_at && config->stage >= 2 && !keeps_masters;
    size_t n = 0;
    for (int order = 0; order <= has_orders; order++)
        for (int moment = 0; moment <= has_moments; moment++)
            ways[n++] = (zr_run_way_t){.order = order == 0 ? config->order : ZR_ORDER_BLOCK,
                                       .update_at =
                                           moment == 0 ? config->update_at : ZR_UPDATE_AT_BACKWARD};
    return n;
}

static size_t budget_of(const zr_run_request_t *request, zr_tier_t tier) {
    const zr_config_t *config = &request->config;
    const size_t budgets[ZR_N_TIERS] = {config->device_memory_bytes, config->host_memory_bytes,
                                        config->nvme.capacity_bytes};
    return budgets[tier];
}

static size_t needed_of(const zr_run_plan_t *plan, zr_tier_t tier) {
    return tier == ZR_TIER_NVME ? plan->nvme_bytes : plan->tiers[tier].reserved.peak;
}

size_t zr_run_memory(const zr_run_request_t *request, size_t table_bytes) {
    size_t machine = request->hardware.host_memory_bytes;
    size_t process = zr_config_rank_memory(&request->config);
    size_t left = table_bytes < process ? process - table_bytes : 0;
    return process != ZR_CONFIG_NO_BUDGET && left < machine ? left : machine;
}

size_t zr_run_limit(const zr_run_request_t *request, zr_tier_t tier) {
    const zr_hardware_t *hardware = &request->hardware;
    const size_t machine[ZR_N_TIERS] = {hardware->kind == ZR_HARDWARE_HOST
                                            ? zr_run_memory(request, 0)
                                            : zr_hardware_device_room(hardware),
                                        zr_run_memory(request, 0), hardware->disk_bytes};
    size_t budget = budget_of(request, tier);
    return budget < machine[tier] ? budget : machine[tier];
}

size_t zr_run_memory_needed(const zr_run_request_t *request, const zr_run_plan_t *plan) {
    bool is_one = request->hardware.kind == ZR_HARDWARE_HOST;
    return plan->metadata.peak + needed_of(plan, ZR_TIER_HOST) +
           (is_one ? needed_of(plan, ZR_TIER_DEVICE) : 0);
}

static void take_worse(zr_run_lack_t *lack, double *worst, zr_run_lack_t other) {
    double needed = (double)other.needed_bytes, there = (double)other.there_bytes;
    double share = there > 0 ? needed / there : needed;
    if (other.needed_bytes == 0 || share <= *worst)
        return;
    *worst = share;
    *lack = other;
}

size_t zr_run_there(const zr_run_request_t *request, zr_tier_t tier, const zr_run_plan_t *plan) {
    size_t there = zr_run_limit(request, tier), all = zr_run_memory(request, 0);
    if (request->hardware.kind != ZR_HARDWARE_HOST || tier != ZR_TIER_HOST)
        return there;
    size_t device = plan->tiers[ZR_TIER_DEVICE].reserved.peak;
    size_t left = all > device ? all - device : 0;
    return there < left ? there : left;
}

static size_t largest_tag(const zr_run_plan_t *plan, zr_tier_t tier, zr_tag_t *tag_p) {
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

const char *zr_run_lack_name(const zr_run_lack_t *lack) {
    static const char *const names[ZR_N_TIERS] = {"device memory", "host memory", "nvme memory"};
    if (lack->is_pinned)
        return "pinned memory (RLIMIT_MEMLOCK)";
    if (lack->is_of_process)
        return "memory of the process, with the library's tables";
    return lack->is_of_both ? "memory (device and host are one here)" : names[lack->tier];
}

zr_run_lack_t zr_run_find_lack(const zr_run_request_t *request, const zr_run_plan_t *plan) {
    zr_run_lack_t lack = {0};
    double worst = -1;
    for (int tier = 0; tier < ZR_N_TIERS; tier++)
        take_worse(&lack, &worst,
                   (zr_run_lack_t){.tier = (zr_tier_t)tier,
                                   .needed_bytes = needed_of(plan, (zr_tier_t)tier),
                                   .there_bytes = zr_run_limit(request, (zr_tier_t)tier)});
    bool is_one = request->hardware.kind == ZR_HARDWARE_HOST;
    size_t device = is_one ? needed_of(plan, ZR_TIER_DEVICE) : 0;
    size_t host = needed_of(plan, ZR_TIER_HOST);
    zr_run_lack_t both = {.tier = device >= host ? ZR_TIER_DEVICE : ZR_TIER_HOST,
                          .is_of_both = is_one,
                          .needed_bytes = device + host,
                          .there_bytes = request->hardware.host_memory_bytes};
    if (is_one)
        take_worse(&lack, &worst, both);
    both.is_of_process = true;
    both.needed_bytes = zr_run_memory_needed(request, plan);
    both.there_bytes = zr_config_rank_memory(&request->config);
    take_worse(&lack, &worst, both);
    if (is_one && request->hardware.pinned_bytes != 0) /* else all of host memory is */
        take_worse(&lack, &worst,
                   (zr_run_lack_t){.tier = ZR_TIER_HOST,
                                   .is_pinned = true,
                                   .needed_bytes = plan->tiers[ZR_TIER_HOST].pinned.peak,
                                   .there_bytes = request->hardware.pinned_bytes});
    lack.tag_bytes = largest_tag(plan, lack.tier, &lack.tag);
    return lack;
}

/* ---- what is left open ----------------------------------------------------------------------- */

typedef struct held_error {
    const zr_log_t *log;
    int rank;
    char message[1024];
} held_error_t;

/* Errors wait until it is known that less does not fit either. */
static void hold_error(void *context, zr_log_level_t level, int rank, const char *message) {
    held_error_t *held = context;
    zr_log_t log = zr_log_with_rank(held->log, rank);
    if (level != ZR_LOG_ERROR) {
        zr_log_write(&log, level, "%s", message);
    } else if (held->message[0] == '\0') {
        snprintf(held->message, sizeof(held->message), "%s", message);
        held->rank = rank;
    }
}

static void drop(void *context, zr_log_level_t level, int rank, const char *message) {
    (void)context, (void)level, (void)rank, (void)message;
}

const zr_log_t zr_run_nowhere = {.sink = drop, .level = ZR_LOG_ERROR, .rank = -1};

static bool has_on_drives(const zr_run_request_t *request) {
    const zr_offload_options_t *state = &request->config.offload_optimizer;
    return state->device == ZR_OFFLOAD_NVME || state->gradients == ZR_OFFLOAD_NVME ||
           request->activations == ZR_OFFLOAD_NVME;
}

bool zr_run_opens_buffers(const zr_run_request_t *request) {
    const zr_offload_param_options_t *params = &request->config.offload_param;
    return (has_on_drives(request) && request->config.offload_optimizer.n_buffers == 0) ||
           (params->device == ZR_OFFLOAD_NVME && params->n_buffers == 0);
}

static void set_open(zr_config_t *config, size_t n_buffers, size_t n_param_buffers) {
    if (config->offload_optimizer.n_buffers == 0)
        config->offload_optimizer.n_buffers = n_buffers;
    if (config->offload_param.n_buffers == 0)
        config->offload_param.n_buffers = n_param_buffers;
}

bool zr_run_opens_prefetch(const zr_run_request_t *request) {
    return request->config.stage == 3 && request->config.prefetch_elems == ZR_CONFIG_ALL;
}

bool zr_run_opens(const zr_run_request_t *request) {
    return zr_run_opens_buffers(request) || zr_run_opens_prefetch(request);
}

void zr_run_hold(const zr_run_plan_t *plan, zr_config_t *config) {
    set_open(config, plan->n_buffers, plan->n_param_buffers);
    if (plan->lacks_prefetch)
        config->prefetch_elems = 0;
}

/* Buffers are in host memory, which is all there is where the device is the host. */
static bool may_lack_buffers(const zr_run_request_t *request, const zr_run_plan_t *plan) {
    return request->hardware.kind == ZR_HARDWARE_HOST || plan->tiers[ZR_TIER_HOST].n_refused > 0 ||
           plan->tiers[ZR_TIER_DEVICE].n_refused == 0;
}

/* Whether a run that does not fit does so with so many; *plan_p: set if it does. */
static bool fits_with(const zr_run_request_t *request, size_t n_buffers, size_t n_param_buffers,
                      zr_run_plan_t *plan_p) {
    zr_run_request_t own = *request;
    zr_run_plan_t plan;
    own.log = zr_run_nowhere;
    set_open(&own.config, n_buffers, n_param_buffers);
    if (zr_run_plan_as_asked(&own, &plan) != ZR_OK)
        return false;
    plan.n_buffers = own.config.offload_optimizer.n_buffers;
    plan.n_param_buffers = own.config.offload_param.n_buffers;
    *plan_p = plan;
    return true;
}

/* Where as many as the run would choose do not fit: the most of a few numbers that do. */
static bool fits_with_fewer(const zr_run_request_t *request, zr_run_plan_t *plan_p) {
    static const size_t numbers[][2] = {{64, 32}, {16, 16}};
    bool is_more = request->config.update_at == ZR_UPDATE_AT_BACKWARD;
    if (!is_more ||
        !fits_with(request, ZR_CONFIG_USUAL_BUFFERS, ZR_CONFIG_USUAL_PARAM_BUFFERS, plan_p))
        return fits_with(request, 1, 1, plan_p);
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        if (fits_with(request, numbers[i][0], numbers[i][1], plan_p))
            return true;
    return true;
}

static zr_status_t tell_held(const held_error_t *held, zr_status_t status) {
    zr_log_t log = zr_log_with_rank(held->log, held->rank);
    return status == ZR_OK ? ZR_OK : zr_fail(&log, status, "%s", held->message);
}

zr_status_t zr_run_plan_with_prefetch(const zr_run_request_t *request, zr_run_plan_t *plan_p) {
    held_error_t held = {.log = &request->log};
    zr_run_request_t own = *request;
    if (!zr_run_opens_buffers(request))
        return zr_run_plan_as_asked(request, plan_p);
    own.log.sink = hold_error;
    own.log.context = &held;
    zr_status_t status = zr_run_plan_as_asked(&own, plan_p);
    if (status == ZR_ERR_BUDGET && may_lack_buffers(request, plan_p) &&
        fits_with_fewer(request, plan_p))
        return ZR_OK;
    return tell_held(&held, status);
}

/* What is gathered is on the device. */
static bool may_lack_prefetch(const zr_run_request_t *request, const zr_run_plan_t *plan) {
    return request->hardware.kind == ZR_HARDWARE_HOST || plan->tiers[ZR_TIER_DEVICE].n_refused > 0;
}

static bool fits_without_prefetch(const zr_run_request_t *request, zr_run_plan_t *plan_p) {
    zr_run_request_t own = *request;
    zr_run_plan_t plan;
    own.log = zr_run_nowhere;
    own.config.prefetch_elems = 0;
    if (zr_run_plan_with_prefetch(&own, &plan) != ZR_OK)
        return false;
    plan.lacks_prefetch = true;
    *plan_p = plan;
    return true;
}

zr_status_t zr_run_plan(const zr_run_request_t *request, zr_run_plan_t *plan_p) {
    held_error_t held = {.log = &request->log};
    zr_run_request_t own = *request;
    if (!zr_run_opens_prefetch(request))
        return zr_run_plan_with_prefetch(request, plan_p);
    own.log.sink = hold_error;
    own.log.context = &held;
    zr_status_t status = zr_run_plan_with_prefetch(&own, plan_p);
    if (status == ZR_ERR_BUDGET && may_lack_prefetch(request, plan_p) &&
        fits_without_prefetch(request, plan_p))
        return ZR_OK;
    return tell_held(&held, status);
}

/* ---- what it needs --------------------------------------------------------------------------- */

zr_run_request_t zr_run_without_limits(const zr_run_request_t *limited) {
    zr_run_request_t request = *limited;
    zr_hardware_t *hardware = &request.hardware;
    request.config.device_memory_bytes = ZR_CONFIG_NO_BUDGET;
    request.config.host_memory_bytes = ZR_CONFIG_NO_BUDGET;
    request.config.process_memory_bytes = ZR_CONFIG_NO_BUDGET;
    request.config.nvme.capacity_bytes = ZR_CONFIG_NO_BUDGET;
    hardware->device_memory_bytes = hardware->host_memory_bytes = ZR_RUN_ENOUGH_BYTES;
    hardware->disk_bytes = ZR_RUN_ENOUGH_BYTES;
    if (hardware->pinned_bytes != 0)
        hardware->pinned_bytes = ZR_RUN_ENOUGH_BYTES;
    return request;
}

zr_run_request_t zr_run_to_learn(const zr_run_request_t *limited, size_t n_steps) {
    zr_run_request_t request = zr_run_without_limits(limited);
    if (request.lengths == NULL && request.n_steps > n_steps)
        request.n_steps = n_steps;
    return request;
}

void zr_run_set_least(zr_run_request_t *request) {
    set_open(&request->config, ZR_CONFIG_USUAL_BUFFERS, ZR_CONFIG_USUAL_PARAM_BUFFERS);
    if (zr_run_opens_prefetch(request))
        request->config.prefetch_elems = 0;
}

/* What it needs, with enough of everything. */
static zr_status_t plan_without_limits(const zr_run_request_t *limited, const zr_log_t *log,
                                       zr_run_fit_t *one) {
    zr_run_request_t request = zr_run_without_limits(limited);
    request.log = *log;
    request.log.level = ZR_LOG_ERROR;
    request.memory_only = request.spans == NULL && request.trace == NULL;
    zr_run_set_least(&request);
    ZR_TRY(zr_run_plan(&request, &one->plan));
    one->lack = zr_run_find_lack(limited, &one->plan);
    return ZR_OK;
}

zr_status_t zr_run_fit(const zr_run_request_t *request, const zr_log_t *log, zr_run_fit_t *one_p) {
    zr_run_request_t own = *request;
    *one_p = (zr_run_fit_t){0};
    own.log = (zr_log_t){.sink = keep_first, .context = one_p, .level = ZR_LOG_ERROR};
    zr_status_t status = zr_run_plan(&own, &one_p->plan);
    if (status == ZR_ERR_BUDGET)
        return plan_without_limits(&own, log, one_p);
    if (status != ZR_OK)
        return zr_fail(log, status, "%s", one_p->message);
    one_p->fits = true;
    return ZR_OK;
}

bool zr_run_fits(const zr_run_request_t *request) {
    zr_run_request_t own = *request;
    zr_run_fit_t one = {0};
    own.log = (zr_log_t){.sink = keep_first, .context = &one, .level = ZR_LOG_ERROR};
    own.memory_only = true;
    return zr_run_plan(&own, &one.plan) != ZR_ERR_BUDGET;
}
