/*
 * Plans of zero-train's runs: see train_plan.h.
 *
 * With sequences of varying length, memory depends on which lengths come in which step. They are
 * known before the run, from its seed. What a micro-batch needs does not depend on the lengths of
 * those before it, but on its place in its step, and on whether the step is one of the first: so
 * the longest in each place, put into one step, need as much as any later step.
 */
#include "examples/train_plan.h"

#include <stdlib.h>

#include "examples/data.h"
#include "examples/this_machine.h"
#include "examples/train_report.h"

#define MOST_MICRO_BATCHES                                                                         \
    8                                    /* of a planned step: the third and those after it need   \
                                            the same, but for the last */
#define MOST_LOOKED_AT ((size_t)1 << 20) /* micro-batches, for their lengths */

gpt_plan_request_t train_plan_request(const train_options_t *options,
                                      const zr_hardware_t *hardware) {
    int n_machines = (options->n_ranks - 1) / hardware->ranks_per_node + 1;
    return (gpt_plan_request_t){.shape = options->shape,
                                .options = {.recompute = options->recompute,
                                            .seed = options->seed,
                                            .freeze = options->freeze,
                                            .weight_decay = options->config.adamw.weight_decay},
                                .config = options->config,
                                .activations = options->offload_activations,
                                .seq = options->seq,
                                .n_steps = PLAN_N_STEPS,
                                .saves = options->checkpoint.dir != NULL,
                                .save_every = options->checkpoint.every,
                                .save_goes_on = options->checkpoint.is_async,
                                .n_ranks = options->n_ranks,
                                .sums = options->sums,
                                .beside = train_options_overlap(options, n_machines),
                                .plans = options->plans,
                                .hardware = *hardware};
}

void train_plan_peaks(const gpt_plan_t *plan, train_peak_t peaks_p[ZR_N_TIERS]) {
    for (int tier = ZR_TIER_DEVICE; tier <= ZR_TIER_HOST; tier++)
        peaks_p[tier] = train_peak_of(&plan->tiers[tier]);
    peaks_p[ZR_TIER_NVME] =
        (train_peak_t){.live = plan->nvme_live_bytes, .reserved = plan->nvme_bytes};
    for (int tag = 0; tag < ZR_N_TAGS; tag++)
        peaks_p[ZR_TIER_NVME].by_tag[tag] = plan->nvme_by_tag[tag];
}

/* ---- lengths --------------------------------------------------------------------------------- */

typedef struct lengths {
    const train_options_t *options;
    data_options_t data;
    size_t n_places;    /* of a planned step */
    size_t n_looked_at; /* micro-batches */
} lengths_t;

/* Where a micro-batch of the run stands in a planned step: those that are left out need what the
 * one before the last does. */
static size_t place_of(const lengths_t *l, size_t micro_batch) {
    size_t n = l->options->config.grad_accum;
    if (micro_batch + 1 == n)
        return l->n_places - 1;
    return micro_batch + 1 < l->n_places ? micro_batch : l->n_places - 2;
}

static bool all_are_longest(const lengths_t *l, const size_t *of_step) {
    for (size_t i = 0; i < l->n_places; i++)
        if (of_step[i] < l->options->seq)
            return false;
    return true;
}

/* Put the lengths of a step where they are longer than what is there. */
static void merge_step(lengths_t *l, size_t step, size_t *of_step) {
    for (size_t i = 0; i < l->options->config.grad_accum; i++) {
        bool has_looked = l->n_looked_at++ < MOST_LOOKED_AT;
        size_t own = has_looked ? data_length_of(&l->data, step, i) : l->options->seq;
        size_t *there = &of_step[place_of(l, i)];
        *there = own > *there ? own : *there;
        if (!has_looked && all_are_longest(l, of_step))
            return;
    }
}

/* Those of the first steps, each for itself, and of one step for all others. NULL: no memory. */
static size_t *draw_lengths(const train_options_t *o, gpt_plan_request_t *request) {
    lengths_t l = {.options = o,
                   .data = {.seq = o->seq, .seq_min = o->seq_min, .seed = o->seed},
                   .n_places = request->config.grad_accum};
    size_t *lengths = calloc((PLAN_N_STEPS + 1) * l.n_places, sizeof(*lengths));
    if (lengths == NULL)
        return NULL;
    for (size_t step = 0; step < request->n_steps; step++)
        merge_step(&l, step, lengths + step * l.n_places);
    size_t *others = lengths + request->n_steps * l.n_places;
    for (size_t step = PLAN_N_STEPS; step < o->steps && !all_are_longest(&l, others); step++)
        merge_step(&l, step, others);
    request->n_steps += o->steps > PLAN_N_STEPS;
    return lengths;
}

/* ---- the plan -------------------------------------------------------------------------------- */

static void keep_first(void *context, zr_log_level_t level, int rank, const char *message) {
    train_plan_t *plan = context;
    (void)rank;
    if (level == ZR_LOG_ERROR && plan->message[0] == '\0')
        snprintf(plan->message, sizeof(plan->message), "%s", message);
}

static zr_status_t plan_places(gpt_plan_request_t *request, const zr_log_t *log,
                               train_plan_t *plan) {
    zr_offload_options_t *state = &request->config.offload_optimizer;
    plan->has_choice = request->hardware.kind == ZR_HARDWARE_CUDA &&
                       state->device != ZR_OFFLOAD_NONE && state->update_on == ZR_UPDATE_ON_FASTER;
    if (plan->has_choice)
        state->update_on = ZR_UPDATE_ON_HOST;
    ZR_TRY(plan_one(request, log, &plan->on_host));
    if (!plan->has_choice)
        return ZR_OK;
    state->update_on = ZR_UPDATE_ON_DEVICE;
    return plan_one(request, log, &plan->on_device);
}

/* Leave out what needs no more than what is planned. */
static void shorten(gpt_plan_request_t *request, size_t n_steps) {
    zr_config_t *config = &request->config;
    if (n_steps < request->n_steps)
        request->n_steps = n_steps;
    if (config->grad_accum <= MOST_MICRO_BATCHES)
        return;
    config->grad_accum = MOST_MICRO_BATCHES;
    config->train_batch = config->micro_batch * config->grad_accum * (size_t)request->n_ranks;
}

static zr_status_t make(const train_options_t *options, const zr_log_t *log, train_plan_t *plan) {
    zr_hardware_t hardware;
    ZR_TRY(this_machine_describe(options, log, &hardware));
    gpt_plan_request_t request = train_plan_request(options, &hardware);
    size_t *lengths = NULL;
    shorten(&request, options->steps);
    if (options->seq_min < options->seq) {
        lengths = draw_lengths(options, &request);
        if (lengths == NULL)
            return zr_fail(log, ZR_ERR_MEMORY, "no memory for the lengths of sequences");
    }
    request.lengths = lengths;
    zr_status_t status = plan_places(&request, log, plan);
    free(lengths);
    return status;
}

void train_plan_make(const train_options_t *options, train_plan_t *plan_p) {
    *plan_p = (train_plan_t){0};
    zr_log_t log = {.sink = keep_first, .context = plan_p, .level = ZR_LOG_ERROR};
    plan_p->is_made = make(options, &log, plan_p) == ZR_OK;
}

void train_plan_warn(const train_plan_t *plan, const train_options_t *options,
                     const zr_log_t *log) {
    const zr_config_t *config = &options->config;
    const plan_lack_t *lack = &plan->on_host.lack;
    char needed[32], there[32];
    if (!plan->is_made || plan->on_host.fits || (plan->has_choice && plan->on_device.fits) ||
        (lack->tier != ZR_TIER_DEVICE && lack->tier != ZR_TIER_HOST))
        return;
    bool is_device = lack->tier == ZR_TIER_DEVICE;
    if (!lack->is_of_both &&
        (is_device ? config->device_memory_bytes : config->host_memory_bytes) <= lack->there_bytes)
        return; /* the run is refused, and says why */
    zr_log_write(log, ZR_LOG_WARNING,
                 "a rank needs %s of %s, and its part of this machine is %s: the system may "
                 "end the run without a word; --device-memory and --host-memory have it refused "
                 "instead, and zero-plan says what fits",
                 train_format_bytes((double)lack->needed_bytes, needed, sizeof(needed)),
                 plan_lack_name(lack),
                 train_format_bytes((double)lack->there_bytes, there, sizeof(there)));
}

train_planned_t train_plan_of(const train_plan_t *plan, const train_result_t *result) {
    bool on_device = plan->has_choice && result->offload.n_updated_on_device > 0;
    const plan_one_t *one = on_device ? &plan->on_device : &plan->on_host;
    train_planned_t planned = {.is_made = plan->is_made, .fits = one->fits};
    if (planned.is_made)
        train_plan_peaks(&one->plan, planned.peak);
    return planned;
}
