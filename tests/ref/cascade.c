/*
 * Two questions are asked of a plan, each by itself: does the device hold it, whatever the host
 * has to, and does the host. What can be moved down is ordered, and more of it always helps, so the
 * least that fits is found by halving.
 */
#include "tests/ref/cascade.h"

#define N_SHARES 256 /* a fraction is found to 1 of so many */

typedef struct search {
    zr_run_request_t *run; /* whose config is turned */
    const zr_run_open_t *open;
    size_t state_elems; /* parameters whose state a rank has */
    size_t param_elems; /* of its shards */
    size_t n_plans;
} search_t;

/* ---- a plan ---------------------------------------------------------------------------------- */

/* What a plan is held to: budgets, and, where there is one, the memory of both. */
typedef enum question {
    OF_DEVICE = 1,
    OF_HOST_BUDGET = 2,
    OF_MEMORY = 4,
    OF_HOST = OF_HOST_BUDGET | OF_MEMORY,
    OF_BOTH = OF_DEVICE | OF_HOST
} question_t;

static bool is_one_memory(const search_t *search) {
    return search->run->hardware.kind == ZR_HARDWARE_HOST;
}

static zr_status_t fits(search_t *search, question_t question, bool *fits_p) {
    zr_run_plan_t plan;
    zr_run_request_t request = *search->run;
    zr_config_t *config = &request.config;
    if ((question & OF_DEVICE) == 0)
        config->device_memory_bytes = ZR_CONFIG_NO_BUDGET;
    if ((question & OF_HOST_BUDGET) == 0)
        config->host_memory_bytes = ZR_CONFIG_NO_BUDGET;
    if ((question & OF_MEMORY) == 0 && is_one_memory(search))
        request.hardware.host_memory_bytes = ZR_RUN_ENOUGH_BYTES;
    config->nvme.capacity_bytes = ZR_CONFIG_NO_BUDGET;
    search->n_plans++;
    zr_status_t status = zr_run_plan(&request, &plan);
    *fits_p = status == ZR_OK;
    size_t all = plan.size.trainable_padded_elems;
    size_t n_shards = (size_t)zr_config_n_shards(config, request.n_ranks);
    search->state_elems = config->stage == 0 ? all : all / n_shards;
    search->param_elems = (all + plan.size.frozen_padded_elems) / n_shards;
    return status == ZR_ERR_BUDGET ? ZR_OK : status;
}

/* ---- looking for the least ------------------------------------------------------------------- */

/* What is turned, from 0 (all is up) to N_SHARES (all is down). */
typedef void (*turn_fn)(search_t *search, size_t share);

static void turn_state_ratio(search_t *search, size_t share) {
    search->run->config.offload_optimizer.ratio = (double)share / N_SHARES;
}

static void turn_params_ratio(search_t *search, size_t share) {
    search->run->config.offload_param.ratio = (double)share / N_SHARES;
}

static size_t part_that_is_up(size_t n_elems, size_t share) {
    return (size_t)((double)n_elems * (double)(N_SHARES - share) / N_SHARES);
}

static void turn_state_in_host(search_t *search, size_t share) {
    search->run->config.offload_optimizer.max_in_cpu_elems =
        part_that_is_up(search->state_elems, share);
}

static void turn_params_in_host(search_t *search, size_t share) {
    search->run->config.offload_param.max_in_cpu_elems =
        part_that_is_up(search->param_elems, share);
}

/* Of gradients, what leaves host memory goes up. */
static void turn_gradients_up(search_t *search, size_t share) {
    search->run->config.offload_optimizer.gradients = ZR_OFFLOAD_CPU;
    search->run->config.offload_optimizer.gradients_ratio = (double)(N_SHARES - share) / N_SHARES;
}

/* Turn down as little as the budget asked about needs. *fits_p false: all is down, in vain. */
static zr_status_t turn_down(search_t *search, turn_fn turn, question_t question, bool *fits_p) {
    size_t low = 0, high = N_SHARES; /* `low` - 1 does not fit; `high` does, or nothing */
    turn(search, high);
    ZR_TRY(fits(search, question, fits_p));
    while (*fits_p && low < high) {
        size_t middle = low + (high - low) / 2;
        bool fits_here = false;
        turn(search, middle);
        ZR_TRY(fits(search, question, &fits_here));
        low = fits_here ? low : middle + 1;
        high = fits_here ? middle : high;
    }
    turn(search, high);
    return ZR_OK;
}

/* ---- the choice ------------------------------------------------------------------------------ */

static zr_status_t relieve_device(search_t *search, bool *fits_p) {
    zr_config_t *config = &search->run->config;
    ZR_TRY(fits(search, OF_DEVICE, fits_p));
    if (!*fits_p && search->open->optimizer) {
        config->offload_optimizer.device = ZR_OFFLOAD_CPU;
        ZR_TRY(turn_down(search, turn_state_ratio, OF_DEVICE, fits_p));
    }
    if (!*fits_p && search->open->params) {
        config->offload_param.device = ZR_OFFLOAD_CPU;
        ZR_TRY(turn_down(search, turn_params_ratio, OF_DEVICE, fits_p));
    }
    return ZR_OK;
}

static zr_status_t relieve_host(search_t *search, bool *fits_p) {
    zr_config_t *config = &search->run->config;
    zr_offload_options_t *state = &config->offload_optimizer;
    zr_offload_param_options_t *params = &config->offload_param;
    ZR_TRY(fits(search, OF_HOST, fits_p));
    if (config->nvme.paths[0] == '\0')
        return ZR_OK;
    if (!*fits_p && search->open->optimizer && state->device == ZR_OFFLOAD_CPU) {
        state->device = ZR_OFFLOAD_NVME;
        ZR_TRY(turn_down(search, turn_state_in_host, OF_HOST, fits_p));
    }
    if (!*fits_p && search->open->optimizer && is_one_memory(search)) {
        state->device = ZR_OFFLOAD_NVME; /* also what the device's budget has room for */
        ZR_TRY(turn_down(search, turn_state_ratio, OF_BOTH, fits_p));
    }
    if (!*fits_p && search->open->params && params->device == ZR_OFFLOAD_CPU) {
        params->device = ZR_OFFLOAD_NVME;
        ZR_TRY(turn_down(search, turn_params_in_host, OF_HOST, fits_p));
    }
    if (!*fits_p && search->open->params && is_one_memory(search)) {
        params->device = ZR_OFFLOAD_NVME;
        ZR_TRY(turn_down(search, turn_params_ratio, OF_BOTH, fits_p));
    }
    return ZR_OK;
}

static void reset(search_t *search) {
    zr_config_t *config = &search->run->config;
    if (search->open->optimizer) {
        config->offload_optimizer.device = ZR_OFFLOAD_NONE;
        config->offload_optimizer.ratio = 1;
        config->offload_optimizer.max_in_cpu_elems = 0;
    }
    if (search->open->params) {
        config->offload_param.device = ZR_OFFLOAD_NONE;
        config->offload_param.ratio = 1;
        config->offload_param.max_in_cpu_elems = 0;
    }
}

static zr_status_t place(search_t *search, bool *fits_p) {
    bool fits_host = false;
    reset(search);
    ZR_TRY(relieve_device(search, fits_p));
    ZR_TRY(relieve_host(search, &fits_host));
    *fits_p = *fits_p && fits_host;
    return ZR_OK;
}

/* Where host memory is what is short: with all parameters on drives the device has room for state,
 * whose gradients then are not in host memory either. */
static zr_status_t place_state_first(search_t *search, bool *fits_p) {
    zr_config_t *config = &search->run->config;
    *fits_p = false;
    if (!search->open->optimizer || !search->open->params || config->nvme.paths[0] == '\0')
        return ZR_OK;
    reset(search);
    config->offload_optimizer.device = config->offload_param.device = ZR_OFFLOAD_NVME;
    ZR_TRY(turn_down(search, turn_state_ratio, OF_DEVICE | OF_MEMORY, fits_p));
    return *fits_p ? fits(search, OF_HOST, fits_p) : ZR_OK;
}

/* The least of host memory that there is, but for gradients that the device has no room for. */
static zr_status_t place_gradients_last(search_t *search, bool *fits_p) {
    zr_config_t *config = &search->run->config;
    *fits_p = false;
    if (config->nvme.paths[0] == '\0' && search->open->optimizer)
        return ZR_OK;
    reset(search);
    if (search->open->optimizer)
        config->offload_optimizer.device = ZR_OFFLOAD_NVME;
    if (search->open->params && config->stage == 3)
        config->offload_param.device = ZR_OFFLOAD_NVME;
    ZR_TRY(turn_down(search, turn_gradients_up, OF_HOST, fits_p));
    ZR_TRY(*fits_p ? fits(search, OF_DEVICE, fits_p) : ZR_OK);
    if (!*fits_p)
        config->offload_optimizer.gradients_ratio = 1;
    return ZR_OK;
}

/* Gradients go with their state, unless only the device has room for them. */
static zr_status_t choose(search_t *search) {
    zr_offload_options_t *state = &search->run->config.offload_optimizer;
    bool is_free = search->open->gradients && search->run->config.stage >= 2;
    bool found = false;
    ZR_TRY(place(search, &found));
    if (found || !is_free)
        return ZR_OK;
    state->gradients = ZR_OFFLOAD_NONE;
    ZR_TRY(place(search, &found));
    if (found)
        return ZR_OK;
    state->gradients = ZR_OFFLOAD_CPU;
    ZR_TRY(place_state_first(search, &found));
    if (!found)
        ZR_TRY(place_gradients_last(search, &found));
    return found ? ZR_OK : place(search, &found);
}

zr_status_t ref_cascade(zr_run_request_t *run, const zr_run_open_t *open, size_t *n_plans_p) {
    search_t search = {.run = run, .open = open};
    if (run->config.offload_optimizer.update_on == ZR_UPDATE_ON_FASTER)
        run->config.offload_optimizer.update_on = ZR_UPDATE_ON_HOST;
    ZR_TRY(choose(&search));
    *n_plans_p += search.n_plans;
    return ZR_OK;
}
