/*
 * Plans of zero-train's runs: see train_plan.h.
 *
 * With sequences of varying length, memory depends on which lengths come in which step. They are
 * known before the run, from its seed.
 */
#include "examples/train/plan.h"

#include <pthread.h>
#include <stdlib.h>

#include "examples/data/data.h"
#include "examples/plan/this_machine.h"
#include "examples/train/launch.h"
#include "examples/train/report.h"

/* Of a planned step: the third and those after it need the same, but for the last. */
#define MOST_MICRO_BATCHES 8
/* That have to be planned of a run whose lengths vary, where it comes to follow plans. */
#define USUAL_STEPS 32

zr_run_request_t train_plan_request(const train_options_t *options, const zr_hardware_t *hardware) {
    int n_machines = (options->n_ranks - 1) / hardware->ranks_per_node + 1;
    zr_transformer_options_t model = train_options_model(options);
    zr_config_t config = options->config;
    config.process_ranks = n_machines > 1 ? 1 : train_launch_n_here(options);
    zr_hardware_t own = *hardware;
    own.matmul_workspace_bytes = options->matmul_workspace_bytes;
    return (zr_run_request_t){.model = zr_model_shape_maker(&options->shape, &model),
                              .config = config,
                              .recompute = options->recompute,
                              .activations = options->offload_activations,
                              .activations_on_device = options->activations_on_device,
                              .activations_in_host = options->activations_in_host,
                              .seq = options->seq,
                              .seq_min = options->seq_min,
                              .n_steps = zr_run_steps_of_plan(config.stage),
                              .saves = options->checkpoint.dir != NULL && !options->evaluation.only,
                              .save_every = options->checkpoint.every,
                              .save_goes_on = options->checkpoint.is_async,
                              .save_links = options->checkpoint.links_frozen,
                              .n_ranks = options->n_ranks,
                              .sums = options->sums,
                              .uses_nccl = options->use_nccl,
                              .concurrent = train_options_overlap(options, n_machines),
                              .plans = options->plans,
                              .hardware = own};
}

void train_plan_peaks(const zr_run_plan_t *plan, train_peak_t peaks_p[ZR_N_TIERS]) {
    for (int tier = ZR_TIER_DEVICE; tier <= ZR_TIER_HOST; tier++)
        peaks_p[tier] = train_peak_of(&plan->tiers[tier]);
    peaks_p[ZR_TIER_NVME] =
        (train_peak_t){.live = plan->nvme_live_bytes, .reserved = plan->nvme_bytes};
    for (int tag = 0; tag < ZR_N_TAGS; tag++)
        peaks_p[ZR_TIER_NVME].by_tag[tag] = peaks_p[ZR_TIER_NVME].at_peak[tag] =
            plan->nvme_by_tag[tag];
}

/* ---- lengths --------------------------------------------------------------------------------- */

static size_t length_of(const void *context, size_t step, size_t micro_batch) {
    const train_options_t *options = context;
    data_options_t data = {.seq = options->seq, .seq_min = options->seq_min, .seed = options->seed};
    return data_length_of(&data, step, micro_batch);
}

/* ---- the plan -------------------------------------------------------------------------------- */

static void keep_first(void *context, zr_log_level_t level, int rank, const char *message) {
    train_plan_t *plan = context;
    (void)rank;
    if (level == ZR_LOG_ERROR && plan->message[0] == '\0')
        snprintf(plan->message, sizeof(plan->message), "%s", message);
}

static zr_status_t plan_places(zr_run_request_t *request, const zr_log_t *log, train_plan_t *plan) {
    zr_offload_options_t *state = &request->config.offload_optimizer;
    plan->has_choice = request->hardware.kind == ZR_HARDWARE_CUDA &&
                       state->device != ZR_OFFLOAD_NONE && state->update_on == ZR_UPDATE_ON_FASTER;
    if (plan->has_choice)
        state->update_on = ZR_UPDATE_ON_HOST;
    ZR_TRY(zr_run_fit(request, log, &plan->on_host));
    if (!plan->has_choice)
        return ZR_OK;
    state->update_on = ZR_UPDATE_ON_DEVICE;
    return zr_run_fit(request, log, &plan->on_device);
}

/* Leave out what needs no more than what is planned. With lengths, all are planned where enough
 * steps can be. */
static void shorten(zr_run_request_t *request, size_t n_layers_each, size_t n_steps) {
    zr_config_t *config = &request->config;
    bool varies = request->lengths != NULL;
    size_t n_layers = config->grad_accum * n_layers_each;
    if (varies || n_steps < request->n_steps)
        request->n_steps = n_steps;
    if (zr_config_n_together(config) > 1) /* all of them are held */
        return;
    if (config->grad_accum <= MOST_MICRO_BATCHES ||
        (varies && n_layers <= ZR_RUN_MOST_BLOCKS / USUAL_STEPS))
        return;
    config->grad_accum = MOST_MICRO_BATCHES;
    config->train_batch = config->micro_batch * config->grad_accum * (size_t)request->n_ranks;
}

static zr_status_t make(const train_options_t *options, size_t first_step,
                        const zr_run_evaluations_t *evaluations, const zr_log_t *log,
                        train_plan_t *plan) {
    zr_hardware_t hardware;
    train_options_t own = *options;
    if (!train_options_use_nvme(options))
        own.config.nvme.paths[0] = '\0'; /* folders of --config that nobody goes to */
    ZR_TRY(this_machine_describe(&own, log, &hardware));
    zr_run_request_t request = train_plan_request(options, &hardware);
    zr_run_lengths_t lengths = {.of = length_of,
                                .context = options,
                                .first_step = first_step,
                                .grad_accum = request.config.grad_accum};
    size_t n_steps = options->steps > first_step ? options->steps - first_step : 0;
    if (options->evaluation.only)
        n_steps = 0;
    request.evaluations = *evaluations;
    request.n_before = first_step;
    request.n_run_steps = n_steps;
    if (options->seq_min < options->seq)
        request.lengths = &lengths;
    shorten(&request, zr_model_shape_sizes(&options->shape).n_layers, n_steps);
    return plan_places(&request, log, plan);
}

typedef struct making {
    const train_options_t *options;
    size_t first_step;
    const zr_run_evaluations_t *evaluations;
    train_plan_t *plan;
} making_t;

static void *make_in_thread(void *context) {
    const making_t *m = context;
    zr_log_t log = {.sink = keep_first, .context = m->plan, .level = ZR_LOG_ERROR};
    m->plan->status = make(m->options, m->first_step, m->evaluations, &log, m->plan);
    m->plan->is_made = m->plan->status == ZR_OK;
    return NULL;
}

/* In a thread of its own: what it had of the heap is then there for those of the ranks. */
void train_plan_make(const train_options_t *options, size_t first_step,
                     const zr_run_evaluations_t *evaluations, train_plan_t *plan_p) {
    making_t making = {options, first_step, evaluations, plan_p};
    pthread_t thread;
    *plan_p = (train_plan_t){0};
    if (pthread_create(&thread, NULL, make_in_thread, &making) == 0)
        pthread_join(thread, NULL);
    else
        make_in_thread(&making);
}

/* Where a budget is short, the run is refused, and says why. */
static void warn_of_machine(const zr_run_lack_t *lack, const zr_config_t *config,
                            const zr_log_t *log) {
    bool is_device = lack->tier == ZR_TIER_DEVICE;
    if (lack->is_of_process || lack->is_pinned || lack->tier == ZR_TIER_NVME ||
        (!lack->is_of_both && (is_device ? config->device_memory_bytes
                                         : config->host_memory_bytes) <= lack->there_bytes))
        return;
    zr_log_write(log, ZR_LOG_WARNING,
                 "a rank needs %s of %s, and its part of this machine is %s: the system may kill "
                 "the run; zero-plan tells what fits",
                 train_bytes((double)lack->needed_bytes).text, zr_run_lack_name(lack),
                 train_bytes((double)lack->there_bytes).text);
}

zr_status_t train_plan_check(const train_plan_t *plan, const train_options_t *options,
                             const zr_log_t *log) {
    if (!plan->is_made || plan->on_host.fits || (plan->has_choice && plan->on_device.fits))
        return ZR_OK;
    const zr_run_lack_t *lack = &plan->on_host.lack;
    if (!options->config.plan_check) {
        warn_of_machine(lack, &options->config, log);
        return ZR_OK;
    }
    return zr_fail(log, ZR_ERR_BUDGET,
                   "%s; the planned run needs %s of %s but has %s, so it was not started; "
                   "--plan-check off starts it",
                   plan->on_host.message, train_bytes((double)lack->needed_bytes).text,
                   zr_run_lack_name(lack), train_bytes((double)lack->there_bytes).text);
}

bool train_plan_may_hold(const train_options_t *options) {
    const zr_config_t *config = &options->config;
    bool opens_buffers =
        config->offload_optimizer.n_buffers == 0 || config->offload_param.n_buffers == 0;
    return (train_options_use_nvme(options) && opens_buffers) ||
           (config->stage == 3 && config->prefetch_elems == ZR_CONFIG_ALL);
}

void train_plan_hold(const train_plan_t *plan, train_options_t *options, const zr_log_t *log) {
    zr_config_t *config = &options->config;
    size_t n = plan->on_host.plan.n_buffers + plan->on_device.plan.n_buffers;
    zr_run_hold(&plan->on_host.plan, config);
    zr_run_hold(&plan->on_device.plan, config);
    if (n > 0)
        zr_log_write(log, ZR_LOG_INFO,
                     "--nvme-buffers %zu --param-buffers %zu are used: more do not fit in host "
                     "memory",
                     config->offload_optimizer.n_buffers, config->offload_param.n_buffers);
    if (plan->on_host.plan.lacks_prefetch || plan->on_device.plan.lacks_prefetch)
        zr_log_write(log, ZR_LOG_INFO,
                     "--prefetch 0 is used: two units at a time do not fit in device memory");
}

train_planned_t train_plan_of(const train_plan_t *plan, const train_result_t *result) {
    bool on_device = plan->has_choice && result->n_updated_on_device > 0;
    const zr_run_fit_t *one = on_device ? &plan->on_device : &plan->on_host;
    train_planned_t planned = {.is_made = plan->is_made, .fits = one->fits};
    if (planned.is_made) {
        planned.metadata = one->plan.metadata;
        train_plan_peaks(&one->plan, planned.peak);
    }
    return planned;
}
