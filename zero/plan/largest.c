/*
 * The search for the largest: see run_largest.h.
 *
 * Whether a size fits is asked of a plan. What is left open besides, where gradients and inputs of
 * blocks wait, is a variant: each is searched from the best of those before it, so that one that is
 * no better costs a few plans.
 */
#include "zero/plan/run_largest.h"

typedef struct variant {
    zr_offload_device_t gradients, activations;
    bool parts_gradients; /* as many of them as host memory has no room for wait on the device */
} variant_t;

#define MOST_VARIANTS 9

static void drop_message(void *context, zr_log_level_t level, int rank, const char *message) {
    (void)context, (void)level, (void)rank, (void)message;
}

static const zr_log_t nowhere = {.sink = drop_message, .level = ZR_LOG_ERROR, .rank = -1};

/* ---- one size -------------------------------------------------------------------------------- */

/* The run of a size, but for what auto chooses. False: the family has not so many. */
static zr_status_t make_run(const zr_run_largest_t *search, const variant_t *variant, size_t index,
                            zr_run_request_t *run_p, bool *is_there_p) {
    zr_run_request_t run = search->run;
    run.log = nowhere;
    run.activations = variant->activations;
    run.config.offload_optimizer.gradients = variant->gradients;
    run.config.train_batch = 0;
    *is_there_p = search->family.set_model(search->family.context, index, &run);
    if (!*is_there_p)
        return ZR_OK;
    ZR_TRY(zr_config_resolve(&run.config, run.n_ranks, search->log));
    *run_p = run;
    return ZR_OK;
}

/* Whether a size fits in its order of a step. *plan_p: set where it does. */
static zr_status_t try_order(zr_run_largest_t *search, const variant_t *variant,
                             zr_run_request_t *run, zr_run_plan_t *plan_p, bool *fits_p) {
    const zr_run_open_t *places = &search->open.places;
    zr_run_plan_t plan;
    if (search->is_stopped != NULL && search->is_stopped(search->stop_context))
        return ZR_ERR_STATE;
    search->n_plans++;
    if (places->optimizer || places->params)
        ZR_TRY(zr_run_place(run, places, search->log, &search->n_plans));
    if (variant->parts_gradients)
        ZR_TRY(zr_run_place_gradients(run, search->log, &search->n_plans));
    zr_status_t status = zr_run_plan(run, &plan);
    *fits_p = status == ZR_OK;
    if (*fits_p)
        *plan_p = plan;
    if (status == ZR_OK || status == ZR_ERR_BUDGET)
        return ZR_OK;
    return zr_fail(search->log, status, "a plan of stage %d failed: %s", run->config.stage,
                   zr_status_name(status));
}

/* Whether a size fits in an order that may be chosen; the faster one then. */
static zr_status_t try_run(zr_run_largest_t *search, const variant_t *variant,
                           zr_run_request_t *run, zr_run_plan_t *plan_p, bool *fits_p) {
    zr_run_request_t other = *run;
    zr_run_plan_t plan;
    bool fits = false;
    ZR_TRY(try_order(search, variant, run, plan_p, fits_p));
    if (!search->open.places.order || run->config.grad_accum == 1)
        return ZR_OK;
    other.config.order = ZR_ORDER_BLOCK;
    ZR_TRY(try_order(search, variant, &other, &plan, &fits));
    if (!fits || (*fits_p && plan_p->step_seconds <= plan.step_seconds))
        return ZR_OK;
    *run = other;
    *plan_p = plan;
    *fits_p = true;
    return ZR_OK;
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
 * the best so far. */
static zr_status_t try_index(zr_run_largest_t *search, const variant_t *variant, size_t index,
                             bool *fits_p) {
    zr_run_request_t run;
    zr_run_plan_t plan;
    bool is_there;
    *fits_p = false;
    ZR_TRY(make_run(search, variant, index, &run, &is_there));
    if (!is_there)
        return ZR_OK;
    ZR_TRY(try_run(search, variant, &run, &plan, fits_p));
    if (!*fits_p)
        return ZR_OK;
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

/* From an index that fits: the largest, if what fits is in a row. */
static zr_status_t climb(zr_run_largest_t *search, const variant_t *variant, size_t fits) {
    size_t step = fits < 8 ? 8 : fits, fails = 0;
    bool good = true;
    while (good) { /* upwards */
        fails = fits + step;
        ZR_TRY(try_index(search, variant, fails, &good));
        fits = good ? fails : fits;
        step *= 2;
    }
    while (fails - fits > 1) { /* between the two */
        size_t middle = fits + (fails - fits) / 2;
        ZR_TRY(try_index(search, variant, middle, &good));
        fits = good ? middle : fits;
        fails = good ? fails : middle;
    }
    return ZR_OK;
}

/* The largest of a variant, if it is larger than that of those before. */
static zr_status_t search_variant(zr_run_largest_t *search, const variant_t *variant) {
    bool good = false;
    ZR_TRY(try_index(search, variant, search->found ? search->index + 1 : 0, &good));
    while (good) { /* until none of the next sizes fits */
        ZR_TRY(climb(search, variant, search->index));
        size_t top = search->index;
        good = false;
        for (size_t i = 1; i <= ZR_RUN_SIZES_CHECKED && !good; i++)
            ZR_TRY(try_index(search, variant, top + i, &good));
        search->is_monotone &= !good;
    }
    return ZR_OK;
}

static size_t list_variants(const zr_run_largest_t *search, variant_t variants[MOST_VARIANTS]) {
    const zr_run_request_t *run = &search->run;
    const zr_run_largest_open_t *open = &search->open;
    bool splits_gradients = open->gradients && run->config.stage >= 2 && !open->places.optimizer &&
                            run->config.offload_optimizer.device != ZR_OFFLOAD_NONE;
    size_t n = 0;
    for (int activations = 0; activations <= ZR_OFFLOAD_NVME; activations++) {
        bool is_given = !open->activations || !run->recompute;
        if (is_given && activations != (int)run->activations)
            continue;
        if (!is_given && activations == ZR_OFFLOAD_NVME && !open->has_drives)
            continue;
        variant_t variant = {.gradients = run->config.offload_optimizer.gradients,
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
    return search->has_next ? zr_run_fit(&search->next_run, search->log, &search->next) : ZR_OK;
}

zr_status_t zr_run_find_largest(zr_run_largest_t *search) {
    variant_t variants[MOST_VARIANTS];
    size_t n = list_variants(search, variants);
    search->is_monotone = true;
    for (size_t i = 0; i < n; i++)
        ZR_TRY(search_variant(search, &variants[i]));
    ZR_TRY(plan_next(search, &variants[0]));
    while (search->has_next && search->next.fits) { /* auto has not seen that it does */
        search->index += search->found;
        search->found = true;
        search->largest = search->next_run;
        search->plan = search->next.plan;
        ZR_TRY(plan_next(search, &variants[0]));
    }
    return ZR_OK;
}
