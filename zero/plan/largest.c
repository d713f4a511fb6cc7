/*
 * The search for the largest: see run_largest.h.
 *
 * A plan says what a size needs: what is kept of it grows with its parameters, and everything else
 * about as the parameters of one block do. So a plan of any size says which one is about the
 * largest, and that one's plan says it better.
 *
 * Whether a size fits is asked of a plan. What is left open besides, where gradients and inputs of
 * blocks wait, is a variant: each is searched from the best of those before it, so that one that is
 * no better costs a few plans.
 *
 * Only the memory of a size counts, unless the speed does as well. So plans are of memory alone,
 * and the largest is planned in full at last: where it does not fit then, since tables take more,
 * all plans are made in full.
 */
#include "zero/plan/run_largest.h"

#include <math.h>

#include "zero/plan/fit_internal.h"

typedef struct variant {
    bool memory_only; /* its plans are */
    zr_offload_device_t gradients, activations;
    bool parts_gradients; /* as many of them as host memory has no room for wait on the device */
} variant_t;

#define MOST_VARIANTS 9

/* ---- one size -------------------------------------------------------------------------------- */

/* The run of a size, but for what auto chooses. False: the family has not so many. */
static zr_status_t make_run(const zr_run_largest_t *search, const variant_t *variant, size_t index,
                            zr_run_request_t *run_p, bool *is_there_p) {
    zr_run_request_t run = search->run;
    run.log = zr_run_nowhere;
    run.activations = variant->activations;
    run.memory_only = variant->memory_only;
    run.config.offload_optimizer.gradients = variant->gradients;
    run.config.train_batch = 0;
    *is_there_p = search->family.set_model(search->family.context, index, &run);
    if (!*is_there_p)
        return ZR_OK;
    ZR_TRY(zr_config_resolve(&run.config, run.n_ranks, search->log));
    *run_p = run;
    return ZR_OK;
}

static zr_status_t fail_plan(const zr_run_largest_t *search, int stage, zr_status_t status) {
    return zr_fail(search->log, status, "a plan of stage %d failed: %s", stage,
                   zr_status_name(status));
}

static bool is_fast_enough(const zr_run_largest_t *search, const zr_run_request_t *run,
                           const zr_run_plan_t *plan) {
    double tokens = (double)run->n_ranks * (double)run->config.micro_batch *
                    (double)run->config.grad_accum * (double)run->seq;
    return tokens >= search->least_tokens_per_s * plan->step_seconds;
}

/* Choose what is open of a run, and plan it. *status_p: of the plan. */
static zr_status_t plan_placed(zr_run_largest_t *search, const variant_t *variant, bool is_enough,
                               zr_run_request_t *run, zr_run_plan_t *plan_p,
                               zr_status_t *status_p) {
    bool is_planned = false;
    zr_run_open_t open = search->open.places;
    bool gives_up_prefetch = is_enough && run->memory_only && zr_run_opens_prefetch(run);
    if (gives_up_prefetch) /* what fits so fits */
        run->config.prefetch_elems = 0;
    open.params &= run->config.stage == 3;
    if (!open.optimizer && !open.params)
        open =
            (zr_run_open_t){.gradients = variant->parts_gradients, .activations = open.activations};
    open.is_enough = is_enough;
    if (open.optimizer || open.params || open.gradients || open.activations)
        ZR_TRY(
            zr_run_place_and_plan(run, &open, search->log, &search->n_plans, plan_p, &is_planned));
    search->n_plans += !is_planned;
    *status_p = is_planned ? ZR_OK : zr_run_plan(run, plan_p);
    zr_run_hold(plan_p, &run->config);
    if (gives_up_prefetch) /* until it is planned with times */
        run->config.prefetch_elems = ZR_CONFIG_ALL;
    return ZR_OK;
}

/* Whether a size fits in its way to make a step. *plan_p: set where it does. */
static zr_status_t try_way(zr_run_largest_t *search, const variant_t *variant,
                           zr_run_request_t *run, zr_run_plan_t *plan_p, bool *fits_p) {
    zr_run_plan_t plan;
    if (search->is_stopped != NULL && search->is_stopped(search->stop_context))
        return ZR_ERR_STATE;
    zr_status_t status;
    ZR_TRY(plan_placed(search, variant, search->least_tokens_per_s == 0, run, &plan, &status));
    *fits_p = status == ZR_OK && is_fast_enough(search, run, &plan);
    if (*fits_p)
        *plan_p = plan;
    return status == ZR_OK || status == ZR_ERR_BUDGET
               ? ZR_OK
               : fail_plan(search, run->config.stage, status);
}

/* Whether a size fits in a way that may be chosen; the fastest then. */
static zr_status_t try_run(zr_run_largest_t *search, const variant_t *variant,
                           zr_run_request_t *run, zr_run_plan_t *plan_p, bool *fits_p) {
    zr_run_way_t ways[ZR_RUN_MOST_WAYS];
    const zr_run_request_t asked = *run;
    size_t n_ways = zr_run_list_ways(&search->open.places, &run->config, ways);
    ZR_TRY(try_way(search, variant, run, plan_p, fits_p));
    for (size_t i = 1; i < n_ways; i++) {
        zr_run_request_t other = asked;
        zr_run_plan_t plan;
        bool fits = false;
        other.config.order = ways[i].order;
        other.config.update_at = ways[i].update_at;
        ZR_TRY(try_way(search, variant, &other, &plan, &fits));
        if (!fits || (*fits_p && plan_p->step_seconds <= plan.step_seconds))
            continue;
        *run = other;
        *plan_p = plan;
        *fits_p = true;
    }
    return ZR_OK;
}

/* ---- what sizes need ------------------------------------------------------------------------- */

/* Of a rank: what is kept from step to step, and what else is there at the peak. */
typedef struct needs {
    double n_params; /* padded; 0: nothing is known yet */
    double kept[ZR_N_TIERS], rest[ZR_N_TIERS];
    double stays; /* of what is kept: on the device, whatever is offloaded */
} needs_t;

/* Below stage 3 every rank computes with all parameters, below stage 2 it keeps all gradients. */
static double stays_on_device(int stage, const zr_run_plan_t *plan) {
    const zr_byte_count_t *by_tag = plan->tiers[ZR_TIER_DEVICE].by_tag;
    double params = stage < 3 ? (double)by_tag[ZR_TAG_PARAMETERS].peak : 0;
    return params + (stage < 2 ? (double)by_tag[ZR_TAG_GRADIENTS].peak : 0);
}

static needs_t needs_of(int stage, const zr_run_plan_t *plan) {
    static const zr_tag_t tags[] = {ZR_TAG_PARAMETERS, ZR_TAG_GRADIENTS, ZR_TAG_OPTIMIZER_STATE};
    needs_t needs = {.n_params = (double)plan->size.trainable_padded_elems +
                                 (double)plan->size.frozen_padded_elems,
                     .stays = stays_on_device(stage, plan)};
    for (int tier = 0; tier < ZR_N_TIERS; tier++) {
        bool is_nvme = tier == ZR_TIER_NVME;
        size_t all = is_nvme ? plan->nvme_bytes : plan->tiers[tier].live.peak;
        for (size_t i = 0; i < sizeof(tags) / sizeof(tags[0]); i++)
            needs.kept[tier] += (double)(is_nvme ? plan->nvme_by_tag[tags[i]]
                                                 : plan->tiers[tier].by_tag[tags[i]].peak);
        needs.rest[tier] = fmax(0, (double)all - needs.kept[tier]);
    }
    return needs;
}

/* Of so many parameters to what there is: tiers together, between which something may move. What is
 * not kept counts `rest` times. */
static double share_needed(const zr_run_largest_t *search, const variant_t *variant,
                           const needs_t *needs, double n_params, double rest) {
    const zr_run_request_t *run = &search->run;
    bool is_free =
        search->open.places.optimizer || search->open.places.params || variant->parts_gradients;
    bool is_one = run->hardware.kind == ZR_HARDWARE_HOST;
    double grown = n_params / needs->n_params, all = 0, budgets = 0;
    double most = needs->stays * grown / (double)zr_run_limit(run, ZR_TIER_DEVICE);
    double both = is_one ? (double)zr_run_memory(run, 0) : INFINITY;
    for (int tier = 0; tier < ZR_N_TIERS; tier++) {
        double budget = (double)zr_run_limit(run, (zr_tier_t)tier);
        if (tier == ZR_TIER_NVME && run->config.nvme.paths[0] == '\0')
            budget = 0;
        all += needs->kept[tier] * grown + rest * needs->rest[tier] * pow(grown, 2.0 / 3);
        budgets = tier == ZR_TIER_HOST ? fmin(budgets + budget, both) : budgets + budget;
        bool goes_on = is_free || (tier == ZR_TIER_DEVICE && is_one);
        if (tier < ZR_TIER_NVME && goes_on) {
            if (!is_free)
                most = fmax(most, all / budget); /* the device's by itself */
            continue;
        }
        if (all > 0)
            most = fmax(most, budgets > 0 ? all / budgets : INFINITY);
        all = budgets = 0;
    }
    return most;
}

/* 0: there are not so many, or it is not known how many parameters they have. */
static double count_params(const zr_run_largest_t *search, size_t index) {
    const zr_run_family_t *family = &search->family;
    return family->n_params != NULL ? (double)family->n_params(family->context, index) : 0;
}

/* No plan is needed to see that. */
static bool is_too_large(const zr_run_largest_t *search, const variant_t *variant,
                         const needs_t *needs, size_t index) {
    double n_params = count_params(search, index);
    return n_params > 0 && share_needed(search, variant, needs, n_params, 0) > 1;
}

/* The size that is about the largest, from `least` on. */
static size_t predict(const zr_run_largest_t *search, const variant_t *variant,
                      const needs_t *needs, size_t least) {
    size_t low = least, step = 1;
    while (step > 0) { /* doubled upwards, then halved */
        double n_params = count_params(search, low + step);
        bool fits = n_params > 0 && share_needed(search, variant, needs, n_params, 1) <= 1;
        low += fits ? step : 0;
        step = fits && step == low - least ? 2 * step : (fits ? step : step / 2);
    }
    return low;
}

static void note_size(zr_run_largest_t *search, const zr_run_plan_t *plan) {
    size_t n_params = plan->size.trainable_elems + plan->size.frozen_elems, i = search->n_sizes;
    for (size_t k = 0; k < search->n_sizes; k++) {
        if (search->sizes[k].n_params == n_params) { /* the variant that is looked at last */
            search->sizes[k].step_seconds = plan->step_seconds;
            return;
        }
    }
    if (search->n_sizes == ZR_RUN_MOST_SIZES)
        return;
    for (; i > 0 && search->sizes[i - 1].n_params > n_params; i--)
        search->sizes[i] = search->sizes[i - 1];
    search->sizes[i] = (zr_run_size_t){n_params, plan->step_seconds};
    search->n_sizes++;
}

/* Whether the size of an index fits; a size that the family does not have does not. What fits is
 * the best so far. needs_p: set to what it needs, if it fits; learns: if not, too. */
static zr_status_t try_index(zr_run_largest_t *search, const variant_t *variant, size_t index,
                             bool learns, needs_t *needs_p, bool *fits_p) {
    zr_run_request_t run;
    zr_run_plan_t plan;
    bool is_there;
    *fits_p = false;
    ZR_TRY(make_run(search, variant, index, &run, &is_there));
    if (!is_there)
        return ZR_OK;
    ZR_TRY(try_run(search, variant, &run, &plan, fits_p));
    if (!*fits_p && !learns)
        return ZR_OK;
    if (!*fits_p) {
        zr_run_request_t free = zr_run_to_learn(&run, 1);
        zr_status_t status = zr_run_plan(&free, &plan);
        search->n_plans++;
        *needs_p = needs_of(run.config.stage, &plan);
        return status == ZR_OK ? ZR_OK : fail_plan(search, run.config.stage, status);
    }
    *needs_p = needs_of(run.config.stage, &plan);
    if (!run.memory_only)
        note_size(search, &plan);
    if (search->found && index < search->index)
        return ZR_OK;
    search->found = true;
    search->index = index;
    search->largest = run;
    search->plan = plan;
    return ZR_OK;
}

/* ---- the largest ----------------------------------------------------------------------------- */

/* Between `low`, which fits, and the first known not to. */
typedef struct climb {
    size_t low, high;
    size_t up, down; /* by so much, where a prediction was no help */
    size_t n_missed; /* predictions that lay outside */
    needs_t needs;
} climb_t;

/* The first that miss are near; after so many, halves are quicker. */
#define MOST_MISSED 3

static size_t next_index(const zr_run_largest_t *search, const variant_t *variant, climb_t *climb,
                         size_t last, bool was_good) {
    size_t index = predict(search, variant, &climb->needs, climb->low);
    climb->n_missed += index <= climb->low || index >= climb->high;
    bool is_known = search->family.n_params != NULL && climb->n_missed <= MOST_MISSED;
    if (!is_known && climb->high != SIZE_MAX)
        return climb->low + (climb->high - climb->low) / 2;
    if (was_good && index <= climb->low) {
        index = climb->low + climb->up;
        climb->up *= 2;
    } else if (!was_good && index >= last) {
        index = last > climb->down ? last - climb->down : 0;
        climb->down *= 2;
    }
    index = index > climb->low ? index : climb->low + 1;
    return index < climb->high ? index : climb->high - 1;
}

/* From an index that fits: the largest, if what fits is in a row. */
static zr_status_t climb_from(zr_run_largest_t *search, const variant_t *variant, size_t low,
                              const needs_t *needs) {
    climb_t climb = {.low = low, .high = SIZE_MAX, .up = 1, .down = 1, .needs = *needs};
    size_t last = low;
    bool good = true;
    while (climb.high - climb.low > 1) {
        last = next_index(search, variant, &climb, last, good);
        bool is_certain = is_too_large(search, variant, &climb.needs, last);
        good = false;
        if (!is_certain)
            ZR_TRY(try_index(search, variant, last, true, &climb.needs, &good));
        climb.low = good ? last : climb.low;
        climb.high = good ? climb.high : last;
    }
    return ZR_OK;
}

/* The largest of a variant, if it is larger than that of those before. */
static zr_status_t search_variant(zr_run_largest_t *search, const variant_t *variant) {
    bool good = false;
    needs_t needs = {.n_params = 0};
    ZR_TRY(try_index(search, variant, search->found ? search->index + 1 : 0, false, &needs, &good));
    while (good) { /* until none of the next sizes fits */
        ZR_TRY(climb_from(search, variant, search->index, &needs));
        size_t top = search->index;
        good = false;
        for (size_t i = 2; i <= ZR_RUN_SIZES_CHECKED && !good; i++)
            if (!is_too_large(search, variant, &needs, top + i))
                ZR_TRY(try_index(search, variant, top + i, false, &needs, &good));
        search->is_monotone &= !good;
    }
    return ZR_OK;
}

/* Of the largest, the fastest placement that auto finds; of others none was looked for. */
static zr_status_t hasten(zr_run_largest_t *search) {
    zr_run_request_t run = search->largest;
    const variant_t variant = {.parts_gradients = false};
    zr_run_plan_t plan;
    zr_status_t status;
    run.memory_only = false;
    run.config.offload_optimizer.gradients = ZR_OFFLOAD_CPU;
    run.config.offload_optimizer.gradients_ratio = 1;
    run.config.master = search->run.config.master;
    ZR_TRY(plan_placed(search, &variant, false, &run, &plan, &status));
    if (status != ZR_OK ||
        (!search->largest.memory_only && plan.step_seconds > search->plan.step_seconds))
        return ZR_OK;
    search->largest = run;
    search->plan = plan;
    note_size(search, &plan);
    return ZR_OK;
}

static size_t list_variants(const zr_run_largest_t *search, bool memory_only,
                            variant_t variants[MOST_VARIANTS]) {
    const zr_run_request_t *run = &search->run;
    const zr_run_largest_open_t *open = &search->open;
    bool splits_gradients = open->gradients && run->config.stage >= 2 && !open->places.optimizer &&
                            run->config.offload_optimizer.device != ZR_OFFLOAD_NONE;
    size_t n = 0;
    for (int activations = 0; activations <= ZR_OFFLOAD_NVME; activations++) {
        bool is_given = !open->activations || run->recompute != ZR_RECOMPUTE_UNIT;
        if (is_given && activations != (int)run->activations)
            continue;
        if (!is_given && activations == ZR_OFFLOAD_NVME && !open->has_drives)
            continue;
        variant_t variant = {.memory_only = memory_only,
                             .gradients = run->config.offload_optimizer.gradients,
                             .activations = (zr_offload_device_t)activations};
        if (splits_gradients)
            variant.gradients = ZR_OFFLOAD_CPU;
        variants[n++] = variant;
        variant.gradients = ZR_OFFLOAD_NONE;
        if (splits_gradients)
            variants[n++] = variant;
        variant.gradients = ZR_OFFLOAD_CPU;
        variant.parts_gradients = true;
        if (splits_gradients)
            variants[n++] = variant;
    }
    return n;
}

/* ---- smaller ones --------------------------------------------------------------------------- */

/* The largest size with no more than so many parameters; 0: the smallest has more. */
static size_t find_size(const zr_run_largest_t *search, double n_params) {
    size_t low = 0, high = search->index;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        bool is_less = count_params(search, middle) <= n_params;
        low = is_less ? middle : low;
        high = is_less ? high : middle;
    }
    return low;
}

/* What they take, for those who draw it. What does not fit as the largest does is left out. */
static zr_status_t plan_smaller(zr_run_largest_t *search) {
    const variant_t variant = {.parts_gradients = false};
    double n_params = count_params(search, search->index);
    for (size_t i = 0; i < search->n_smaller; i++) {
        zr_run_request_t run = search->largest;
        zr_run_plan_t plan;
        zr_status_t status;
        run.config.master = search->run.config.master;
        n_params /= 2;
        size_t index = find_size(search, n_params);
        if (index == 0 || !search->family.set_model(search->family.context, index, &run))
            break;
        ZR_TRY(plan_placed(search, &variant, true, &run, &plan, &status));
        if (status == ZR_OK)
            note_size(search, &plan);
    }
    return ZR_OK;
}

/* ---- what is just too large ------------------------------------------------------------------ */

/* The next size, in the placement of the largest that fits; of none, the least that is needed. */
static zr_status_t plan_next(zr_run_largest_t *search, const variant_t *first) {
    if (search->found) {
        zr_run_request_t next = search->largest;
        search->has_next =
            search->family.set_model(search->family.context, search->index + 1, &next);
        search->next_run = next;
    } else {
        ZR_TRY(make_run(search, first, 0, &search->next_run, &search->has_next));
    }
    if (!search->has_next)
        return ZR_OK;
    search->next_run.memory_only = true;
    ZR_TRY(zr_run_fit(&search->next_run, search->log, &search->next));
    search->next_run.memory_only = false;
    if (search->next.fits)
        ZR_TRY(zr_run_fit(&search->next_run, search->log, &search->next));
    zr_run_hold(&search->next.plan, &search->next_run.config);
    return ZR_OK;
}

static zr_status_t search_variants(zr_run_largest_t *search, bool memory_only) {
    variant_t variants[MOST_VARIANTS];
    size_t n = list_variants(search, memory_only, variants);
    search->is_monotone = true;
    search->found = false;
    for (size_t i = 0; i < n; i++)
        ZR_TRY(search_variant(search, &variants[i]));
    return ZR_OK;
}

/* The plan of the largest in full, which may not fit. */
static zr_status_t add_times(zr_run_largest_t *search) {
    search->largest.memory_only = false;
    search->n_plans++;
    zr_status_t status = zr_run_plan(&search->largest, &search->plan);
    zr_run_hold(&search->plan, &search->largest.config);
    search->found = status == ZR_OK;
    if (search->found)
        note_size(search, &search->plan);
    return status == ZR_OK || status == ZR_ERR_BUDGET
               ? ZR_OK
               : fail_plan(search, search->largest.config.stage, status);
}

zr_status_t zr_run_find_largest(zr_run_largest_t *search) {
    zr_run_way_t ways[ZR_RUN_MOST_WAYS];
    variant_t first[MOST_VARIANTS];
    bool has_ways = zr_run_list_ways(&search->open.places, &search->run.config, ways) > 1;
    bool memory_only = search->least_tokens_per_s == 0 && !has_ways;
    ZR_TRY(search_variants(search, memory_only));
    bool was_found = search->found;
    bool hastens = (search->open.places.optimizer || search->open.places.params) &&
                   search->least_tokens_per_s == 0;
    if (search->found && hastens)
        ZR_TRY(hasten(search));
    if (search->found && search->largest.memory_only)
        ZR_TRY(add_times(search));
    if (was_found && !search->found) { /* with its tables it does not fit */
        ZR_TRY(search_variants(search, false));
        if (search->found && hastens)
            ZR_TRY(hasten(search));
    }
    if (search->found)
        ZR_TRY(plan_smaller(search));
    (void)list_variants(search, false, first);
    ZR_TRY(plan_next(search, &first[0]));
    while (search->has_next && search->next.fits && /* auto has not seen that it does */
           is_fast_enough(search, &search->next_run, &search->next.plan)) {
        search->index += search->found;
        search->found = true;
        search->largest = search->next_run;
        search->plan = search->next.plan;
        ZR_TRY(plan_next(search, &first[0]));
    }
    return ZR_OK;
}
