/*
 * Choosing a placement: see train_auto.h.
 *
 * Two questions are asked of a plan, each by itself: does the device hold it, whatever the host
 * has to, and does the host. What can be moved down is ordered, and more of it always helps, so the
 * least that fits is found by halving.
 */
#include "examples/train_auto.h"

#include <string.h>

#include "examples/this_machine.h"
#include "examples/train_plan.h"

#define N_SHARES 256 /* a fraction is found to 1 of so many */

typedef struct search {
    train_options_t *options;
    const zr_log_t *log;
    gpt_plan_request_t request; /* with the options' own budgets */
    size_t state_elems;         /* parameters whose state a rank has */
    size_t param_elems;         /* of its shards */
    size_t n_plans;
    bool has_said;
} search_t;

/* ---- a plan -----------------------------------------------------------------------------------
 */

static void drop(void *context, zr_log_level_t level, int rank, const char *message) {
    (void)context, (void)level, (void)rank, (void)message;
}

/* The first error of a plan that has to fit, or nothing does. */
static void say(void *context, zr_log_level_t level, int rank, const char *message) {
    search_t *search = context;
    (void)rank;
    if (level != ZR_LOG_ERROR || search->has_said)
        return;
    search->has_said = true;
    zr_log_write(search->log, ZR_LOG_ERROR,
                 "auto: nothing fits%s; with the least that it needs: %s",
                 search->options->config.nvme.paths[0] == '\0'
                     ? " (no drives were used: --nvme-path names them)"
                     : "",
                 message);
}

/* Which budgets a plan is held to. */
typedef enum question { OF_DEVICE = 1, OF_HOST = 2, OF_ALL = 7 } question_t;

static zr_status_t ask(search_t *search, question_t question, zr_log_t log, bool *fits_p) {
    gpt_plan_t plan;
    gpt_plan_request_t request = search->request;
    request.config = search->options->config;
    request.log = log;
    if (!(question & OF_DEVICE))
        request.config.device_memory_bytes = ZR_CONFIG_NO_BUDGET;
    if (!(question & OF_HOST))
        request.config.host_memory_bytes = ZR_CONFIG_NO_BUDGET;
    if (question != OF_ALL)
        request.config.nvme.capacity_bytes = ZR_CONFIG_NO_BUDGET;
    search->n_plans++;
    zr_status_t status = gpt_plan(&request, &plan);
    *fits_p = status == ZR_OK;
    size_t all = plan.size.trainable_padded_elems, n_ranks = (size_t)request.n_ranks;
    search->state_elems = request.config.stage == 0 ? all : all / n_ranks;
    search->param_elems = (all + plan.size.frozen_padded_elems) / n_ranks;
    return status == ZR_ERR_BUDGET ? ZR_OK : status;
}

static zr_status_t fits(search_t *search, question_t question, bool *fits_p) {
    return ask(search, question, (zr_log_t){.sink = drop, .level = ZR_LOG_ERROR}, fits_p);
}

/* ---- looking for the least --------------------------------------------------------------------
 */

/* What is turned, from 0 (all is up) to N_SHARES (all is down). */
typedef void (*turn_fn)(search_t *search, size_t share);

static void turn_state_ratio(search_t *search, size_t share) {
    search->options->config.offload_optimizer.ratio = (double)share / N_SHARES;
}

static void turn_params_ratio(search_t *search, size_t share) {
    search->options->config.offload_param.ratio = (double)share / N_SHARES;
}

static size_t part_that_is_up(size_t n_elems, size_t share) {
    return (size_t)((double)n_elems * (double)(N_SHARES - share) / N_SHARES);
}

static void turn_state_in_host(search_t *search, size_t share) {
    search->options->config.offload_optimizer.max_in_cpu_elems =
        part_that_is_up(search->state_elems, share);
}

static void turn_params_in_host(search_t *search, size_t share) {
    search->options->config.offload_param.max_in_cpu_elems =
        part_that_is_up(search->param_elems, share);
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

/* ---- the choice -------------------------------------------------------------------------------
 */

static zr_status_t relieve_device(search_t *search, bool *fits_p) {
    train_options_t *o = search->options;
    ZR_TRY(fits(search, OF_DEVICE, fits_p));
    if (!*fits_p && o->auto_optimizer) {
        o->config.offload_optimizer.device = ZR_OFFLOAD_CPU;
        ZR_TRY(turn_down(search, turn_state_ratio, OF_DEVICE, fits_p));
    }
    if (!*fits_p && o->auto_params) {
        o->config.offload_param.device = ZR_OFFLOAD_CPU;
        ZR_TRY(turn_down(search, turn_params_ratio, OF_DEVICE, fits_p));
    }
    return ZR_OK;
}

static zr_status_t relieve_host(search_t *search, bool *fits_p) {
    train_options_t *o = search->options;
    zr_offload_options_t *state = &o->config.offload_optimizer;
    zr_offload_param_options_t *params = &o->config.offload_param;
    ZR_TRY(fits(search, OF_HOST, fits_p));
    if (o->config.nvme.paths[0] == '\0')
        return ZR_OK;
    if (!*fits_p && o->auto_optimizer && state->device == ZR_OFFLOAD_CPU) {
        state->device = ZR_OFFLOAD_NVME;
        ZR_TRY(turn_down(search, turn_state_in_host, OF_HOST, fits_p));
    }
    if (!*fits_p && o->auto_params && params->device == ZR_OFFLOAD_CPU) {
        params->device = ZR_OFFLOAD_NVME;
        ZR_TRY(turn_down(search, turn_params_in_host, OF_HOST, fits_p));
    }
    return ZR_OK;
}

static void reset(search_t *search) {
    zr_config_t *config = &search->options->config;
    if (search->options->auto_optimizer) {
        config->offload_optimizer.device = ZR_OFFLOAD_NONE;
        config->offload_optimizer.ratio = 1;
        config->offload_optimizer.max_in_cpu_elems = 0;
    }
    if (search->options->auto_params) {
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

static zr_status_t choose(search_t *search) {
    zr_offload_options_t *state = &search->options->config.offload_optimizer;
    bool is_free = !search->options->gradients_given && search->options->config.stage >= 2;
    bool found = false;
    ZR_TRY(place(search, &found));
    if (!found && is_free) {
        state->gradients = ZR_OFFLOAD_NONE;
        ZR_TRY(place(search, &found));
    }
    if (!found && is_free) {
        state->gradients = ZR_OFFLOAD_CPU;
        ZR_TRY(place(search, &found));
    }
    ZR_TRY(ask(search, OF_ALL, (zr_log_t){.sink = say, .context = search, .level = ZR_LOG_ERROR},
               &found));
    return found ? ZR_OK : ZR_ERR_BUDGET;
}

/* ---- saying it --------------------------------------------------------------------------------
 */

static void describe(const char *what, zr_offload_device_t device, double ratio, size_t in_host,
                     char *text, size_t size) {
    static const char *const names[] = {"none", "cpu", "nvme"};
    int n = snprintf(text, size, " --offload-%s %s", what, names[device]);
    bool is_params = what[0] == 'p';
    if (device != ZR_OFFLOAD_NONE && ratio < 1)
        n += snprintf(text + n, size - (size_t)n, " --offload-%s %.8g",
                      is_params ? "param-ratio" : "ratio", ratio);
    if (device == ZR_OFFLOAD_NVME && in_host > 0)
        snprintf(text + n, size - (size_t)n, " --%s-in-host %zu", is_params ? "params" : "state",
                 in_host);
}

static void announce(const search_t *search) {
    const zr_config_t *config = &search->options->config;
    const zr_offload_options_t *state = &config->offload_optimizer;
    const zr_offload_param_options_t *param = &config->offload_param;
    char of_state[128] = "", of_params[128] = "";
    if (search->options->auto_optimizer)
        describe("optimizer", state->device, state->ratio, state->max_in_cpu_elems, of_state,
                 sizeof(of_state));
    if (search->options->auto_params)
        describe("params", param->device, param->ratio, param->max_in_cpu_elems, of_params,
                 sizeof(of_params));
    bool is_cuda = search->request.hardware.kind == ZR_HARDWARE_CUDA;
    zr_log_write(search->log, ZR_LOG_INFO, "auto:%s%s%s%s (%zu plans)", of_state, of_params,
                 is_cuda && state->device != ZR_OFFLOAD_NONE &&
                         state->update_on == ZR_UPDATE_ON_HOST
                     ? " --update-on host"
                     : "",
                 state->device != ZR_OFFLOAD_NONE && state->gradients == ZR_OFFLOAD_NONE &&
                         config->stage >= 2
                     ? " --offload-gradients none"
                     : "",
                 search->n_plans);
}

bool train_auto_is_wanted(const train_options_t *options) {
    return options->auto_optimizer || options->auto_params;
}

zr_status_t train_auto_place_on(train_options_t *options, const zr_hardware_t *hardware,
                                const zr_log_t *log) {
    search_t search = {.options = options, .log = log};
    search.request = train_plan_request(options, hardware);
    /* Room on the device is for what stays there, not for updates of what does not. */
    if (options->config.offload_optimizer.update_on == ZR_UPDATE_ON_FASTER)
        options->config.offload_optimizer.update_on = ZR_UPDATE_ON_HOST;
    ZR_TRY(choose(&search));
    announce(&search);
    return ZR_OK;
}

zr_status_t train_auto_place(train_options_t *options, const zr_log_t *log) {
    zr_hardware_t hardware;
    ZR_TRY(this_machine_describe(options, log, &hardware));
    return train_auto_place_on(options, &hardware, log);
}
