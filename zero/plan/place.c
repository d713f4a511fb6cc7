/*
 * Choosing a placement: see run_search.h.
 *
 * What lives where is a small problem of sums (shares_internal.h), but for what a tier holds
 * besides. That is read from a plan, and depends on the placement a little: so a placement is found
 * with what is known, planned within the budgets, and where it does not fit, planned without them
 * to know better. What fits is then moved towards what would fit if memory had no holes. All this
 * asks for memory alone; times are planned of what was found, to choose by.
 */
#include <math.h>
#include <stdio.h>

#include "zero/plan/fit_internal.h"
#include "zero/plan/shares_internal.h"

#define MOST_CORRECTIONS 6      /* of a placement that does not fit */
#define ROUGH_CORRECTIONS 2     /* by a first step alone, in which memory follows no plan yet */
#define FREE_CORRECTIONS 2      /* with parameters still free: they move in whole shards */
#define LEAST_ROOM 0.002        /* of a budget, and more each time */
#define MOST_MOVES 10           /* of one that does */
#define WORTH_IT 0.999          /* of a step, or the simpler one is taken */
#define WORTH_SPLITTING 0.95    /* of a step, by what is known without a plan */
#define RATIO_STEPS 1e5         /* a fraction of a configuration has so many digits */
#define LEAST_MOVE (1.0 / 1024) /* a fraction that is worth a plan */

typedef struct search {
    zr_run_request_t *run; /* whose config is turned */
    const zr_run_open_t *open;
    const zr_log_t *log;
    zr_shares_facts_t facts;
    double state_elems, param_elems; /* of a rank */
    size_t n_inputs;
    size_t n_plans;
    zr_run_plan_t planned; /* if is_planned: of the run as it is */
    bool is_planned;
    bool tries_split;  /* it may turn out to be impossible */
    bool memory_only;  /* plans are */
    char message[512]; /* the first error of the last plan */
} search_t;

/* A placement that has been planned. */
typedef struct placed {
    bool fits;
    zr_shares_t shares;
    zr_shares_t found; /* shares, before they were moved */
    zr_run_request_t run;
    zr_run_plan_t plan;          /* fits: of the run */
    double rest[ZR_N_TIERS];     /* fits: live at most, besides */
    bool is_refused[ZR_N_TIERS]; /* does not fit: who had no room */
} placed_t;

/* ---- a plan ---------------------------------------------------------------------------------- */

/* What a plan fails for, when that is not memory. */
static void keep_first(void *context, zr_log_level_t level, int rank, const char *message) {
    search_t *search = context;
    (void)rank;
    if (level == ZR_LOG_ERROR && search->message[0] == '\0')
        snprintf(search->message, sizeof(search->message), "%s", message);
}

/* Within the budgets, or with enough of everything and for so many steps. */
static zr_status_t plan(search_t *search, size_t n_free, zr_run_plan_t *plan_p, bool *fits_p) {
    bool has_limits = n_free == 0;
    zr_run_request_t request = has_limits ? *search->run : zr_run_to_learn(search->run, n_free);
    request.log = (zr_log_t){.sink = keep_first, .context = search, .level = ZR_LOG_ERROR};
    request.memory_only |= search->memory_only;
    search->message[0] = '\0';
    search->n_plans++;
    zr_status_t status = zr_run_plan_with_prefetch(&request, plan_p);
    *fits_p = status == ZR_OK;
    if (status == ZR_ERR_UNSUPPORTED && search->tries_split)
        return status;
    if (status != ZR_OK && (status != ZR_ERR_BUDGET || !has_limits))
        return zr_fail(search->log, status, "%s", search->message);
    return ZR_OK;
}

static double needed_of(const zr_run_plan_t *plan, zr_tier_t tier, bool with_holes) {
    if (tier == ZR_TIER_NVME)
        return (double)plan->nvme_bytes;
    const zr_tier_statistics_t *statistics = &plan->tiers[tier];
    return (double)(with_holes ? statistics->reserved.peak : statistics->live.peak);
}

static double in_tier(const zr_run_plan_t *plan, zr_tier_t tier, zr_kept_t kept) {
    static const zr_tag_t tags[] = {ZR_TAG_OPTIMIZER_STATE, ZR_TAG_PARAMETERS, ZR_TAG_GRADIENTS};
    if (tier == ZR_TIER_NVME)
        return (double)plan->nvme_by_tag[tags[kept]];
    return (double)plan->tiers[tier].by_tag[tags[kept]].peak;
}

static double in_all_tiers(const zr_run_plan_t *plan, zr_kept_t kept) {
    double bytes = 0;
    for (int tier = 0; tier < ZR_N_TIERS; tier++)
        bytes += in_tier(plan, (zr_tier_t)tier, kept);
    return bytes;
}

/* Of so many inputs of blocks, as the run says. */
static void read_inputs(const zr_run_request_t *run, size_t n, double of_p[ZR_N_TIERS]) {
    bool is_down = run->activations != ZR_OFFLOAD_NONE;
    double up = is_down ? fmin((double)run->activations_on_device, (double)n) : (double)n;
    double host = (double)n - up;
    if (run->activations == ZR_OFFLOAD_NVME)
        host = fmin((double)run->activations_in_host, host);
    of_p[ZR_TIER_DEVICE] = up / fmax((double)n, 1);
    of_p[ZR_TIER_HOST] = host / fmax((double)n, 1);
    of_p[ZR_TIER_NVME] = ((double)n - up - host) / fmax((double)n, 1);
}

/* Where a plan had it: in whole sub-groups, shards and inputs. */
static zr_shares_t shares_of(const search_t *search, const zr_run_plan_t *plan) {
    zr_shares_t shares = {.of = {{0}}};
    read_inputs(search->run, plan->n_inputs, shares.of[ZR_KEPT_INPUTS]);
    for (int kept = 0; kept < ZR_KEPT_INPUTS; kept++) {
        double all = in_all_tiers(plan, (zr_kept_t)kept);
        for (int tier = 0; tier < ZR_N_TIERS && all > 0; tier++)
            shares.of[kept][tier] = in_tier(plan, (zr_tier_t)tier, (zr_kept_t)kept) / all;
    }
    return shares;
}

/* Of host memory, which is one with the device's where the device is the host. */
static void limit_memory(const zr_run_request_t *run, size_t table_bytes,
                         zr_shares_facts_t *facts) {
    double memory = (double)zr_run_memory(run, table_bytes);
    facts->both = run->hardware.kind == ZR_HARDWARE_HOST ? memory : INFINITY;
    facts->budget[ZR_TIER_HOST] = fmin((double)zr_run_limit(run, ZR_TIER_HOST), memory);
}

/* What tiers hold besides: what a plan needs, less what is moved. And what its tables leave. */
static void learn(const search_t *search, const zr_run_plan_t *plan, zr_shares_facts_t *facts) {
    zr_shares_t shares = shares_of(search, plan);
    if (facts->bytes[ZR_KEPT_STATE] > 0) /* a master is split or not by where parameters are */
        facts->bytes[ZR_KEPT_STATE] = in_all_tiers(plan, ZR_KEPT_STATE);
    limit_memory(search->run, plan->metadata.peak, facts);
    for (int tier = 0; tier < ZR_N_TIERS; tier++)
        facts->rest[tier] = needed_of(plan, (zr_tier_t)tier, false) -
                            zr_shares_bytes(facts, &shares, (zr_tier_t)tier);
    facts->compute_seconds = plan->times.busy[ZR_RUN_COMPUTE];
}

/* ---- from shares to options, and back ---------------------------------------------------------
 */

/* Rounded, so that as much as was asked for is down at least. */
static double ratio_of(double down) {
    return fmin(1, ceil(down * RATIO_STEPS - 1e-6) / RATIO_STEPS);
}

static size_t elems_of(double share, double n_elems) {
    return share > 0 ? (size_t)(share * n_elems) : 0;
}

static zr_offload_device_t lowest_of(const double of[ZR_N_TIERS]) {
    if (of[ZR_TIER_NVME] * RATIO_STEPS > 0.5)
        return ZR_OFFLOAD_NVME;
    return of[ZR_TIER_HOST] * RATIO_STEPS > 0.5 ? ZR_OFFLOAD_CPU : ZR_OFFLOAD_NONE;
}

static void apply_grads(search_t *search, const double of_state[ZR_N_TIERS],
                        const double of_grads[ZR_N_TIERS]) {
    zr_offload_options_t *state = &search->run->config.offload_optimizer;
    double down = of_grads[ZR_TIER_HOST] + of_grads[ZR_TIER_NVME];
    double all = fmax(0, of_grads[ZR_TIER_DEVICE] - of_state[ZR_TIER_DEVICE]) + down;
    state->gradients = all * RATIO_STEPS > 0.5 ? lowest_of(of_grads) : ZR_OFFLOAD_CPU;
    state->gradients_ratio = all * RATIO_STEPS > 0.5 ? ratio_of(down / all) : 1;
    if (state->gradients == ZR_OFFLOAD_NONE)
        state->gradients_ratio = 1;
    state->gradients_in_cpu_elems = state->gradients == ZR_OFFLOAD_NVME
                                        ? elems_of(of_grads[ZR_TIER_HOST], search->state_elems)
                                        : 0;
}

/* Rounded, so that no more is up than was asked for. */
static void apply_inputs(search_t *search, const double of_inputs[ZR_N_TIERS]) {
    zr_run_request_t *run = search->run;
    size_t n = search->n_inputs, up = (size_t)((double)n * of_inputs[ZR_TIER_DEVICE] + 1e-6);
    size_t host = (size_t)((double)n * of_inputs[ZR_TIER_HOST] + 1e-6);
    run->activations = up == n                                       ? ZR_OFFLOAD_NONE
                       : of_inputs[ZR_TIER_NVME] * RATIO_STEPS > 0.5 ? ZR_OFFLOAD_NVME
                                                                     : ZR_OFFLOAD_CPU;
    run->activations_on_device = up < n ? up : 0;
    run->activations_in_host = run->activations == ZR_OFFLOAD_NVME ? host : 0;
}

static void apply(search_t *search, const zr_shares_facts_t *facts, const zr_shares_t *shares) {
    zr_offload_options_t *state = &search->run->config.offload_optimizer;
    zr_offload_param_options_t *params = &search->run->config.offload_param;
    const double *of_state = shares->of[ZR_KEPT_STATE], *of_params = shares->of[ZR_KEPT_PARAMS];
    const double *of_grads = shares->of[ZR_KEPT_GRADS];
    if (facts->is_open[ZR_KEPT_STATE]) {
        state->device = lowest_of(of_state);
        bool moves = state->device != ZR_OFFLOAD_NONE, sinks = state->device == ZR_OFFLOAD_NVME;
        state->ratio = moves ? ratio_of(1 - of_state[ZR_TIER_DEVICE]) : 1;
        state->max_in_cpu_elems = sinks ? elems_of(of_state[ZR_TIER_HOST], search->state_elems) : 0;
    }
    if (facts->is_open[ZR_KEPT_PARAMS]) {
        params->device = lowest_of(of_params);
        bool moves = params->device != ZR_OFFLOAD_NONE, sinks = params->device == ZR_OFFLOAD_NVME;
        params->ratio = moves ? ratio_of(1 - of_params[ZR_TIER_DEVICE]) : 1;
        params->max_in_cpu_elems =
            sinks ? elems_of(of_params[ZR_TIER_HOST], search->param_elems) : 0;
    }
    if (facts->is_open[ZR_KEPT_GRADS])
        apply_grads(search, of_state, of_grads);
    if (facts->is_open[ZR_KEPT_INPUTS])
        apply_inputs(search, shares->of[ZR_KEPT_INPUTS]);
}

/* Where a configuration says it is. */
static void read_shares(zr_offload_device_t device, double ratio, size_t in_host, double n_elems,
                        double of_p[ZR_N_TIERS]) {
    double down = device == ZR_OFFLOAD_NONE ? 0 : ratio, host = down;
    if (device == ZR_OFFLOAD_NVME)
        host = fmin(down, (double)in_host / fmax(n_elems, 1));
    of_p[ZR_TIER_DEVICE] = 1 - down;
    of_p[ZR_TIER_HOST] = host;
    of_p[ZR_TIER_NVME] = down - host;
}

/* ---- what is known ----------------------------------------------------------------------------
 */

static void count_elems(search_t *search, const zr_run_plan_t *plan) {
    const zr_config_t *config = &search->run->config;
    double all = (double)plan->size.trainable_padded_elems;
    double n_shards = (double)zr_config_n_shards(config, search->run->n_ranks);
    search->state_elems = config->stage == 0 ? all : all / n_shards;
    search->param_elems = (all + (double)plan->size.frozen_padded_elems) / n_shards;
}

/* Where a split master's half of a parameter has to be off a device that is not the host. */
static bool splits_below(const zr_run_request_t *run) {
    return run->config.master == ZR_MASTER_SPLIT && run->hardware.kind != ZR_HARDWARE_HOST;
}

/* Budgets, and what is open. */
static void begin_facts(search_t *search) {
    const zr_run_request_t *run = search->run;
    const zr_config_t *config = &run->config;
    zr_shares_facts_t *facts = &search->facts;
    double n_passes = (double)(config->grad_accum / zr_config_n_together(config));
    *facts = (zr_shares_facts_t){
        .is_open = {[ZR_KEPT_STATE] = search->open->optimizer,
                    [ZR_KEPT_PARAMS] = search->open->params && config->stage == 3,
                    [ZR_KEPT_GRADS] = search->open->gradients && config->stage >= 2,
                    [ZR_KEPT_INPUTS] =
                        search->open->activations && run->recompute == ZR_RECOMPUTE_UNIT},
        .has_drives = config->nvme.paths[0] != '\0',
        .params_leave_device = splits_below(run),
        .n_micro_batches = n_passes,
        .n_param_reads = 2 * n_passes,
        .n_input_reads = zr_config_n_together(config) > 1 ? 3 : 1,
        .updates_in_backward = config->update_at == ZR_UPDATE_AT_BACKWARD,
        .n_sides = zr_config_takes_back(config) ? 2 : 1,
        .hardware = &run->hardware};
    for (int tier = 0; tier < ZR_N_TIERS; tier++)
        facts->budget[tier] = (double)zr_run_limit(run, (zr_tier_t)tier);
    limit_memory(run, 0, facts);
}

/* Bytes of what may be moved, of a plan of where it was. */
static void measure(search_t *search, const zr_run_plan_t *plan) {
    const zr_config_t *config = &search->run->config;
    const zr_offload_options_t *state = &config->offload_optimizer;
    zr_shares_facts_t *facts = &search->facts;
    count_elems(search, plan);
    search->n_inputs = plan->n_inputs;
    if (facts->is_open[ZR_KEPT_INPUTS])
        facts->bytes[ZR_KEPT_INPUTS] = (double)plan->inputs_bytes;
    if (facts->is_open[ZR_KEPT_STATE])
        facts->bytes[ZR_KEPT_STATE] = in_all_tiers(plan, ZR_KEPT_STATE);
    else
        read_shares(state->device, state->ratio, state->max_in_cpu_elems, search->state_elems,
                    facts->given.of[ZR_KEPT_STATE]);
    if (facts->is_open[ZR_KEPT_PARAMS])
        facts->bytes[ZR_KEPT_PARAMS] = in_all_tiers(plan, ZR_KEPT_PARAMS);
    if (config->stage >= 2)
        facts->bytes[ZR_KEPT_GRADS] = in_all_tiers(plan, ZR_KEPT_GRADS);
    if (!facts->is_open[ZR_KEPT_STATE] && !facts->is_open[ZR_KEPT_GRADS])
        facts->bytes[ZR_KEPT_GRADS] = 0;
    read_shares(state->gradients, state->gradients_ratio, state->gradients_in_cpu_elems,
                search->state_elems, facts->offloaded_grads);
}

/* All as far up as may be. Of a run whose state is not open, gradients of what is offloaded begin
 * in host memory. */
static zr_shares_t first_shares(const search_t *search) {
    zr_shares_t shares = {.of = {{1, 0, 0}, {1, 0, 0}, {1, 0, 0}, {1, 0, 0}}};
    const zr_offload_options_t *state = &search->run->config.offload_optimizer;
    if (search->facts.params_leave_device)
        shares.of[ZR_KEPT_PARAMS][ZR_TIER_DEVICE] = 0, shares.of[ZR_KEPT_PARAMS][ZR_TIER_HOST] = 1;
    if (search->facts.is_open[ZR_KEPT_STATE])
        return shares;
    shares.of[ZR_KEPT_GRADS][ZR_TIER_DEVICE] = 0;
    read_shares(state->device, state->ratio, state->max_in_cpu_elems, search->state_elems,
                shares.of[ZR_KEPT_STATE]);
    shares.of[ZR_KEPT_GRADS][ZR_TIER_DEVICE] = shares.of[ZR_KEPT_STATE][ZR_TIER_DEVICE];
    shares.of[ZR_KEPT_GRADS][ZR_TIER_HOST] = 1 - shares.of[ZR_KEPT_STATE][ZR_TIER_DEVICE];
    return shares;
}

/* ---- one placement ----------------------------------------------------------------------------
 */

static void keep(const search_t *search, const zr_shares_t *shares, const zr_run_plan_t *plan,
                 placed_t *placed) {
    zr_shares_facts_t facts = search->facts;
    learn(search, plan, &facts);
    if (!placed->fits || search->memory_only || plan->step_seconds <= placed->plan.step_seconds) {
        placed->run = *search->run;
        placed->plan = *plan;
    }
    placed->fits = true;
    placed->shares = *shares;
    for (int tier = 0; tier < ZR_N_TIERS; tier++)
        placed->rest[tier] = facts.rest[tier];
}

/* Who had no room, of a plan that does not fit. */
static void note_refused(const search_t *search, const zr_run_plan_t *plan, placed_t *placed) {
    bool is_known = false;
    for (int tier = ZR_TIER_DEVICE; tier <= ZR_TIER_HOST; tier++) {
        placed->is_refused[tier] = plan->tiers[tier].n_refused > 0;
        is_known |= placed->is_refused[tier];
    }
    if (!is_known && zr_run_memory_needed(search->run, plan) >
                         zr_config_rank_memory(&search->run->config)) /* tables were too large */
        placed->is_refused[ZR_TIER_HOST] = is_known = true;
    if (is_known && isfinite(search->facts.both)) /* either may be the cause */
        placed->is_refused[ZR_TIER_DEVICE] = placed->is_refused[ZR_TIER_HOST] = true;
    placed->is_refused[ZR_TIER_NVME] = !is_known;
}

static zr_status_t try_shares(search_t *search, const zr_shares_facts_t *facts,
                              const zr_shares_t *shares, placed_t *placed, bool *fits_p) {
    zr_run_plan_t within;
    apply(search, facts, shares);
    ZR_TRY(plan(search, 0, &within, fits_p));
    if (*fits_p)
        keep(search, shares, &within, placed);
    else
        note_refused(search, &within, placed);
    return ZR_OK;
}

static double distance(const zr_shares_t *a, const zr_shares_t *b) {
    double most = 0;
    for (int kept = 0; kept < ZR_N_KEPT; kept++)
        for (int tier = 0; tier < ZR_N_TIERS; tier++)
            most = fmax(most, fabs(a->of[kept][tier] - b->of[kept][tier]));
    return most;
}

/* Room for what whole sub-groups are more than a share; and in tiers that had none, more of it each
 * time: the holes that they had where there was enough, or a little more. */
static void grow_room(const search_t *search, const zr_run_plan_t *plan, const placed_t *placed,
                      int n_corrections, double room[ZR_N_TIERS]) {
    const zr_shares_facts_t *facts = &search->facts;
    double of_elem =
        (facts->bytes[ZR_KEPT_STATE] + facts->bytes[ZR_KEPT_GRADS]) / fmax(search->state_elems, 1);
    double group = (double)plan->offload.largest_group_elems * of_elem;
    for (int tier = 0; tier < ZR_N_TIERS; tier++) {
        double budget = facts->budget[tier];
        double holes =
            needed_of(plan, (zr_tier_t)tier, true) - needed_of(plan, (zr_tier_t)tier, false);
        if (!isfinite(budget))
            room[tier] = 0;
        else if (n_corrections == 0)
            room[tier] = group;
        else if (placed->is_refused[tier])
            room[tier] = fmax(room[tier] + LEAST_ROOM * budget * n_corrections, fmin(group, holes));
    }
}

/* The best that leaves that room; or half of it, or less, where nothing else is possible. */
static bool find_with_room(const zr_shares_facts_t *facts, zr_shares_aim_t aim,
                           const double room[ZR_N_TIERS], zr_shares_t *shares_p) {
    bool is_found = false;
    for (double part = 1; part > 0.2 && !is_found; part /= 2) {
        zr_shares_facts_t own = *facts;
        for (int tier = 0; tier < ZR_N_TIERS; tier++)
            own.rest[tier] += part * room[tier];
        is_found = zr_shares_find(&own, aim, shares_p);
    }
    return is_found;
}

/* Parameters move in whole shards: after some corrections they stay where they have come to be. */
static void hold_params(const search_t *search, const zr_run_plan_t *plan,
                        zr_shares_facts_t *facts) {
    zr_shares_t shares = shares_of(search, plan);
    facts->is_open[ZR_KEPT_PARAMS] = false;
    for (int tier = 0; tier < ZR_N_TIERS; tier++)
        facts->given.of[ZR_KEPT_PARAMS][tier] = shares.of[ZR_KEPT_PARAMS][tier];
}

/* Find shares that fit, and plan them; where they do not, find out what was not known. */
static zr_status_t find(search_t *search, zr_shares_aim_t aim, placed_t *placed) {
    zr_shares_facts_t facts = search->facts;
    zr_shares_t shares, last = {.of = {{-1}}};
    double room[ZR_N_TIERS] = {0};
    for (int i = 0; i < MOST_CORRECTIONS; i++) {
        zr_run_plan_t free;
        bool fits = false, is_planned = false;
        if (!find_with_room(&facts, aim, room, &shares) || distance(&shares, &last) < 1e-9)
            break;
        ZR_TRY(try_shares(search, &facts, &shares, placed, &fits));
        if (fits)
            break;
        ZR_TRY(plan(search, i < ROUGH_CORRECTIONS ? 1 : 2, &free, &is_planned));
        if (i >= FREE_CORRECTIONS && facts.is_open[ZR_KEPT_PARAMS])
            hold_params(search, &free, &facts);
        learn(search, &free, &facts);
        grow_room(search, &free, placed, i, room);
        last = shares;
    }
    search->facts = facts;
    return ZR_OK;
}

/* ---- what holes leave -------------------------------------------------------------------------
 */

/* What a tier leaves unused. */
static double slack_of(const zr_shares_facts_t *facts, const placed_t *placed, zr_tier_t tier) {
    return facts->budget[tier] - placed->rest[tier] - zr_shares_bytes(facts, &placed->shares, tier);
}

/*
 * Move what fits towards what would fit if all that is not live could be used: as far as that
 * fits. Where a tier has no room for it, half of what is in between is left there, and so on.
 */
static zr_status_t polish(search_t *search, zr_shares_aim_t aim, placed_t *placed) {
    double least[ZR_N_TIERS] = {0}; /* that has to be left, more than which does not suffice */
    bool was_refused[ZR_N_TIERS] = {false};
    for (int i = 0; i < MOST_MOVES; i++) {
        zr_shares_facts_t facts = search->facts;
        double left[ZR_N_TIERS] = {0};
        zr_shares_t next;
        bool fits = false;
        for (int tier = 0; tier < ZR_N_TIERS; tier++) {
            if (was_refused[tier])
                left[tier] = (least[tier] + slack_of(&facts, placed, (zr_tier_t)tier)) / 2;
            facts.rest[tier] = placed->rest[tier] + left[tier];
        }
        if (!zr_shares_find(&facts, aim, &next) || distance(&next, &placed->shares) <= LEAST_MOVE)
            break;
        ZR_TRY(try_shares(search, &facts, &next, placed, &fits));
        for (int tier = 0; tier < ZR_N_TIERS && !fits; tier++) {
            was_refused[tier] |= placed->is_refused[tier];
            least[tier] = placed->is_refused[tier] ? left[tier] : least[tier];
        }
    }
    *search->run = placed->run;
    return ZR_OK;
}

/* ---- the choice ------------------------------------------------------------------------------ */

static void take_faster(const placed_t *placed, placed_t *best) {
    if (placed->fits &&
        (!best->fits || placed->plan.step_seconds < WORTH_IT * best->plan.step_seconds))
        *best = *placed;
}

/* Plan what was found by plans of memory alone again, with times. If it does not fit, because of
 * the tables of a process, plans are no longer of memory alone. */
static zr_status_t add_times(search_t *search, placed_t *placed) {
    *search->run = placed->run;
    search->memory_only = false;
    zr_status_t status = plan(search, 0, &placed->plan, &placed->fits);
    search->memory_only = placed->fits;
    return status;
}

/* As it was found, or moved: what is faster. The former is planned only where it may be. */
static zr_status_t find_fastest(search_t *search, zr_shares_aim_t aim, placed_t *placed) {
    ZR_TRY(find(search, aim, placed));
    placed->found = placed->shares;
    if (!placed->fits || search->open->is_enough)
        return ZR_OK;
    placed_t first = *placed;
    ZR_TRY(polish(search, aim, placed));
    if (!search->memory_only)
        return ZR_OK;
    ZR_TRY(add_times(search, placed));
    if (!placed->fits || zr_shares_seconds(&search->facts, &placed->shares) <=
                             zr_shares_seconds(&search->facts, &first.shares))
        return ZR_OK;
    ZR_TRY(add_times(search, &first));
    take_faster(&first, placed);
    return ZR_OK;
}

static zr_status_t try_aim(search_t *search, zr_shares_aim_t aim, placed_t *best) {
    bool params_are_open = search->facts.is_open[ZR_KEPT_PARAMS];
    placed_t placed = {.fits = false};
    zr_shares_t shares;
    if (best->fits && zr_shares_find(&search->facts, aim, &shares) &&
        distance(&shares, &best->found) <= LEAST_MOVE)
        return ZR_OK; /* the same */
    bool was_memory_only = search->memory_only;
    ZR_TRY(find_fastest(search, aim, &placed));
    if (was_memory_only && !search->memory_only) {
        placed = (placed_t){.fits = false};
        search->facts.is_open[ZR_KEPT_PARAMS] = params_are_open;
        ZR_TRY(find_fastest(search, aim, &placed));
    }
    take_faster(&placed, best);
    search->facts.is_open[ZR_KEPT_PARAMS] = params_are_open;
    return ZR_OK;
}

/* Nothing fits: what needs least of the upper tiers. */
static void turn_all_down(search_t *search) {
    zr_tier_t lowest = search->facts.has_drives ? ZR_TIER_NVME : ZR_TIER_HOST;
    zr_shares_t shares = {.of = {{0}}};
    shares.of[ZR_KEPT_STATE][lowest] = shares.of[ZR_KEPT_PARAMS][lowest] = 1;
    shares.of[ZR_KEPT_GRADS][ZR_TIER_HOST] = shares.of[ZR_KEPT_INPUTS][lowest] = 1;
    apply(search, &search->facts, &shares);
}

/* Else what is not on the device is as near. */
static bool moves_by_links(const search_t *search) {
    return search->facts.has_drives || search->run->hardware.kind != ZR_HARDWARE_HOST;
}

/* Some do not wait in host memory though their state left the device: it is short. */
static bool parts_gradients(const search_t *search, const placed_t *best) {
    double up = best->shares.of[ZR_KEPT_GRADS][ZR_TIER_DEVICE] +
                best->shares.of[ZR_KEPT_GRADS][ZR_TIER_NVME] -
                best->shares.of[ZR_KEPT_STATE][ZR_TIER_DEVICE];
    return best->fits && search->facts.is_open[ZR_KEPT_GRADS] && up > LEAST_MOVE;
}

static zr_status_t learn_first(search_t *search) {
    zr_run_plan_t free;
    bool is_planned = false;
    begin_facts(search);
    zr_shares_t first = first_shares(search);
    apply(search, &search->facts, &first);
    ZR_TRY(plan(search, 1, &free, &is_planned));
    measure(search, &free);
    learn(search, &free, &search->facts);
    return ZR_OK;
}

/* What is divided between device and host is updated in two places, and now and then all of it in
 * host memory is faster. */
static zr_status_t try_whole(search_t *search, placed_t *best) {
    const double *state = best->shares.of[ZR_KEPT_STATE];
    bool is_divided = state[ZR_TIER_DEVICE] > LEAST_MOVE && state[ZR_TIER_HOST] > LEAST_MOVE &&
                      state[ZR_TIER_NVME] <= LEAST_MOVE;
    if (!best->fits || !is_divided || !search->facts.is_open[ZR_KEPT_STATE])
        return ZR_OK;
    placed_t whole = {.fits = false};
    zr_shares_t shares = best->shares;
    bool was_memory_only = search->memory_only, fits;
    for (int tier = 0; tier < ZR_N_TIERS; tier++)
        shares.of[ZR_KEPT_STATE][tier] = shares.of[ZR_KEPT_GRADS][tier] = tier == ZR_TIER_HOST;
    *search->run = best->run;
    search->memory_only = false;
    zr_status_t status = try_shares(search, &search->facts, &shares, &whole, &fits);
    search->memory_only = was_memory_only;
    whole.found = shares;
    if (status == ZR_OK)
        take_faster(&whole, best);
    return status;
}

static zr_status_t try_aims(search_t *search, placed_t *best) {
    ZR_TRY(try_aim(search, ZR_SHARES_UPMOST, best));
    if (!best->fits || (!search->open->is_enough && moves_by_links(search)))
        ZR_TRY(try_aim(search, ZR_SHARES_FASTEST, best));
    if (!search->open->is_enough && parts_gradients(search, best))
        ZR_TRY(try_aim(search, ZR_SHARES_GRADS_UP, best));
    if (!search->open->is_enough && search->run->hardware.kind != ZR_HARDWARE_HOST)
        ZR_TRY(try_whole(search, best));
    if (!best->fits)
        ZR_TRY(try_aim(search, ZR_SHARES_DOWNMOST, best));
    return ZR_OK;
}

/* A split master takes less room, and less time on drives; but then no parameter stays on the
 * device, and it may be impossible. */
static bool may_split(const search_t *search) {
    zr_run_request_t split = *search->run;
    split.config.master = ZR_MASTER_SPLIT;
    return search->run->config.master == ZR_MASTER_AUTO && splits_below(&split) &&
           search->facts.is_open[ZR_KEPT_STATE] && search->facts.is_open[ZR_KEPT_PARAMS];
}

/* Whether it is expected to be the only way, or a faster one. */
static bool would_split(const search_t *search) {
    zr_shares_facts_t facts = search->facts;
    zr_shares_t apart, split;
    if (!zr_shares_find(&facts, ZR_SHARES_FASTEST, &apart))
        return true;
    if (search->open->is_enough || apart.of[ZR_KEPT_STATE][ZR_TIER_NVME] <= LEAST_MOVE)
        return false;
    double seconds = zr_shares_seconds(&facts, &apart);
    facts.params_leave_device = true;
    facts.bytes[ZR_KEPT_STATE] -=
        search->state_elems * (double)zr_dtype_size(search->run->config.dtype);
    return zr_shares_find(&facts, ZR_SHARES_FASTEST, &split) &&
           zr_shares_seconds(&facts, &split) < WORTH_SPLITTING * seconds;
}

static zr_status_t try_split(search_t *search, placed_t *best) {
    const zr_run_request_t asked = *search->run;
    const zr_shares_facts_t facts = search->facts;
    search->run->config.master = ZR_MASTER_SPLIT;
    search->tries_split = true;
    zr_status_t status = learn_first(search);
    ZR_THEN(status, try_aims(search, best));
    search->tries_split = false;
    *search->run = asked;
    search->facts = facts;
    return status == ZR_ERR_UNSUPPORTED ? ZR_OK : status;
}

static zr_status_t choose(search_t *search) {
    placed_t best = {.fits = false};
    ZR_TRY(learn_first(search)); /* with masters as asked */
    bool is_open = may_split(search), comes_first = is_open && would_split(search);
    if (comes_first)
        ZR_TRY(try_split(search, &best));
    if (!best.fits)
        ZR_TRY(try_aims(search, &best));
    if (!best.fits && is_open && !comes_first)
        ZR_TRY(try_split(search, &best));
    search->is_planned = best.fits;
    if (best.fits) {
        *search->run = best.run;
        search->planned = best.plan;
    } else {
        turn_all_down(search);
    }
    return ZR_OK;
}

/* Where no fractions of inputs were found that fit, all of them wait in one tier. */
static zr_status_t choose_whole_inputs(search_t *search) {
    const zr_run_open_t *asked = search->open;
    zr_run_open_t open = *asked;
    const zr_run_request_t lowest = *search->run;
    open.activations = false;
    search->open = &open;
    for (int at = ZR_OFFLOAD_NONE; at <= (int)lowest.activations && !search->is_planned; at++) {
        search->run->activations = (zr_offload_device_t)at;
        search->run->activations_on_device = search->run->activations_in_host = 0;
        ZR_TRY(choose(search));
    }
    search->open = asked;
    if (!search->is_planned)
        *search->run = lowest;
    return ZR_OK;
}

/* Tiers are filled beside the usual buffers; what is left open of them is so again if that fits. */
static zr_status_t open_buffers(search_t *search, const zr_config_t *asked) {
    zr_config_t *config = &search->run->config;
    config->offload_optimizer.n_buffers = asked->offload_optimizer.n_buffers;
    config->offload_param.n_buffers = asked->offload_param.n_buffers;
    bool is_limited = search->run->hardware.pinned_bytes < ZR_RUN_ENOUGH_BYTES;
    if (!zr_run_opens_buffers(search->run))
        return ZR_OK;
    search->is_planned = false;
    if (config->update_at != ZR_UPDATE_AT_BACKWARD && !is_limited)
        return ZR_OK;
    search->memory_only = search->open->is_enough;
    ZR_TRY(plan(search, 0, &search->planned, &search->is_planned));
    if (search->is_planned)
        zr_run_hold(&search->planned, config);
    return ZR_OK;
}

/* With updates where the run says. */
static zr_status_t place_with_prefetch(zr_run_request_t *run, const zr_run_open_t *open,
                                       const zr_log_t *log, size_t *n_plans_p,
                                       zr_run_plan_t *plan_p, bool *is_planned_p) {
    search_t search = {.run = run, .open = open, .log = log, .memory_only = true};
    const zr_config_t asked = run->config;
    const size_t pinned_bytes = run->hardware.pinned_bytes;
    if (pinned_bytes != 0)
        run->hardware.pinned_bytes = ZR_RUN_ENOUGH_BYTES; /* buffers are chosen by it at last */
    if (asked.offload_optimizer.n_buffers == 0)
        run->config.offload_optimizer.n_buffers = ZR_CONFIG_USUAL_BUFFERS;
    if (asked.offload_param.n_buffers == 0)
        run->config.offload_param.n_buffers = ZR_CONFIG_USUAL_PARAM_BUFFERS;
    zr_status_t status = choose(&search);
    if (status == ZR_OK && !search.is_planned && search.facts.is_open[ZR_KEPT_INPUTS])
        status = choose_whole_inputs(&search);
    run->hardware.pinned_bytes = pinned_bytes;
    search.is_planned &= pinned_bytes == 0 || pinned_bytes >= ZR_RUN_ENOUGH_BYTES;
    ZR_THEN(status, open_buffers(&search, &asked));
    ZR_TRY(status);
    search.is_planned &= run->memory_only || !open->is_enough; /* with its times */
    *n_plans_p += search.n_plans;
    *is_planned_p = search.is_planned;
    if (search.is_planned)
        *plan_p = search.planned;
    return ZR_OK;
}

/* Tiers are filled beside what is prefetched; without it only where nothing fits else. */
static zr_status_t place(zr_run_request_t *run, const zr_run_open_t *open, const zr_log_t *log,
                         size_t *n_plans_p, zr_run_plan_t *plan_p, bool *is_planned_p) {
    const zr_run_request_t asked = *run;
    ZR_TRY(place_with_prefetch(run, open, log, n_plans_p, plan_p, is_planned_p));
    if (*is_planned_p || !zr_run_opens_prefetch(run))
        return ZR_OK;
    const zr_run_request_t lowest = *run;
    *run = asked;
    run->config.prefetch_elems = 0;
    ZR_TRY(place_with_prefetch(run, open, log, n_plans_p, plan_p, is_planned_p));
    if (!*is_planned_p)
        *run = lowest;
    return ZR_OK;
}

/* A placement with updates on the GPU instead, where that is possible and faster. */
static zr_status_t try_updates_on_device(const zr_run_request_t *asked, const zr_run_open_t *open,
                                         size_t *n_plans_p, zr_run_request_t *run,
                                         zr_run_plan_t *plan_p, bool *is_planned_p) {
    zr_run_request_t other = *asked;
    zr_run_plan_t plan;
    bool is_planned = false;
    other.config.offload_optimizer.update_on = ZR_UPDATE_ON_DEVICE;
    other.log = zr_run_nowhere;
    zr_status_t status = place(&other, open, &zr_run_nowhere, n_plans_p, &plan, &is_planned);
    if (status == ZR_OK && !is_planned) { /* with the buffers that it leaves open */
        status = zr_run_plan(&other, &plan);
        ++*n_plans_p;
    }
    if (status != ZR_OK)
        return status == ZR_ERR_MEMORY ? status : ZR_OK;
    if (!*is_planned_p) {
        zr_run_request_t own = *run;
        own.log = zr_run_nowhere;
        *is_planned_p = zr_run_plan(&own, plan_p) == ZR_OK;
        ++*n_plans_p;
    }
    if (*is_planned_p && plan.step_seconds >= WORTH_IT * plan_p->step_seconds)
        return ZR_OK;
    other.log = run->log;
    *run = other;
    *plan_p = plan;
    *is_planned_p = true;
    return ZR_OK;
}

zr_status_t zr_run_place_and_plan(zr_run_request_t *run, const zr_run_open_t *open,
                                  const zr_log_t *log, size_t *n_plans_p, zr_run_plan_t *plan_p,
                                  bool *is_planned_p) {
    zr_offload_options_t *state = &run->config.offload_optimizer;
    const zr_run_request_t asked = *run;
    bool is_open = open->optimizer && state->update_on == ZR_UPDATE_ON_FASTER;
    /* Room on the device is for what stays there, and not for updates of what does not, at first.
     */
    if (is_open)
        state->update_on = ZR_UPDATE_ON_HOST;
    ZR_TRY(place(run, open, log, n_plans_p, plan_p, is_planned_p));
    bool is_tried = is_open && open->update_on && !open->is_enough &&
                    run->hardware.kind != ZR_HARDWARE_HOST && state->device != ZR_OFFLOAD_NONE;
    return is_tried ? try_updates_on_device(&asked, open, n_plans_p, run, plan_p, is_planned_p)
                    : ZR_OK;
}

zr_status_t zr_run_place(zr_run_request_t *run, const zr_run_open_t *open, const zr_log_t *log,
                         size_t *n_plans_p) {
    zr_run_plan_t plan;
    bool is_planned;
    return zr_run_place_and_plan(run, open, log, n_plans_p, &plan, &is_planned);
}
