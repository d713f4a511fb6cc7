/*
 * Whether a size fits is asked of a plan. What differs within one capacity, where gradients and
 * inputs of layers wait, is a variant: each is searched from the best of those before it, so that
 * one that is no better costs a few plans.
 */
#include "examples/capacity/search.h"

#include <string.h>

#include "examples/plan/auto.h"

typedef struct variant {
    zr_offload_device_t gradients, activations;
    bool parts_gradients; /* as many of them as host memory has no room for wait on the device */
} variant_t;

#define MOST_VARIANTS 9

const char *capacity_where_name(capacity_where_t where) {
    static const char *const names[] = {"none", "cpu", "nvme", "auto"};
    return names[where];
}

/* ---- a run ----------------------------------------------------------------------------------- */

static void drop(void *context, zr_log_level_t level, int rank, const char *message) {
    (void)context, (void)level, (void)rank, (void)message;
}

static const zr_log_t nowhere = {.sink = drop, .level = ZR_LOG_ERROR, .rank = -1};

/* The run of a size, but for what auto chooses. */
static zr_status_t make_run(const capacity_search_t *search, const variant_t *variant,
                            const gpt_shape_t *shape, train_options_t *run_p) {
    const capacity_place_t *place = &search->place;
    train_options_t run = search->its_case->run;
    zr_config_t *config = &run.config;
    run.shape = *shape;
    run.seq = run.seq_min = shape->seq;
    run.offload_activations = variant->activations;
    run.auto_optimizer = place->optimizer == CAPACITY_AUTO;
    run.auto_params = place->params == CAPACITY_AUTO;
    config->stage = place->stage;
    config->offload_optimizer.device =
        run.auto_optimizer ? ZR_OFFLOAD_NONE : (zr_offload_device_t)place->optimizer;
    config->offload_optimizer.gradients = variant->gradients;
    config->offload_param.device =
        run.auto_params ? ZR_OFFLOAD_NONE : (zr_offload_device_t)place->params;
    config->train_batch = 0;
    ZR_TRY(zr_config_resolve(config, run.n_ranks, search->log));
    *run_p = run;
    return ZR_OK;
}

/* The drives of described hardware have no folders, and need none. */
static gpt_plan_request_t request_of(const capacity_search_t *search, const train_options_t *run) {
    gpt_plan_request_t request = train_plan_request(run, &search->its_case->hardware);
    request.log = nowhere;
    return request;
}

/* Whether a size fits. *run_p, *plan_p: set where it does. */
static zr_status_t try_shape(capacity_search_t *search, const variant_t *variant,
                             const gpt_shape_t *shape, train_options_t *run_p, gpt_plan_t *plan_p,
                             bool *fits_p) {
    train_options_t run;
    gpt_plan_t plan;
    if (search->stop != NULL && atomic_load(search->stop))
        return ZR_ERR_STATE;
    ZR_TRY(make_run(search, variant, shape, &run));
    search->n_plans++;
    if (run.auto_optimizer || run.auto_params)
        ZR_TRY(plan_auto_place(&run, &search->its_case->hardware, search->log, &search->n_plans));
    if (variant->parts_gradients)
        ZR_TRY(
            plan_auto_gradients(&run, &search->its_case->hardware, search->log, &search->n_plans));
    gpt_plan_request_t request = request_of(search, &run);
    zr_status_t status = gpt_plan(&request, &plan);
    *fits_p = status == ZR_OK;
    if (*fits_p) {
        *run_p = run;
        *plan_p = plan;
    }
    if (status == ZR_OK || status == ZR_ERR_BUDGET)
        return ZR_OK;
    return zr_fail(search->log, status, "a plan of stage %d failed: %s", search->place.stage,
                   zr_status_name(status));
}

/* ---- the largest ----------------------------------------------------------------------------- */

static void note_size(capacity_search_t *search, const gpt_shape_t *shape, double step_seconds) {
    size_t n_params = gpt_n_params(shape), i = search->n_sizes;
    for (size_t k = 0; k < search->n_sizes; k++) {
        if (search->sizes[k].n_params == n_params) { /* the variant that is looked at last */
            search->sizes[k].step_seconds = step_seconds;
            return;
        }
    }
    if (search->n_sizes == CAPACITY_MOST_SIZES)
        return;
    for (; i > 0 && search->sizes[i - 1].n_params > n_params; i--)
        search->sizes[i] = search->sizes[i - 1];
    search->sizes[i] = (capacity_size_t){n_params, step_seconds};
    search->n_sizes++;
}

/* Whether the size of an index fits; a size that the family does not have does not. What fits is
 * the best so far. */
static zr_status_t try_index(capacity_search_t *search, const variant_t *variant, size_t index,
                             bool *fits_p) {
    gpt_shape_t shape;
    *fits_p = false;
    if (!capacity_family_shape(&search->options->family, index, &shape))
        return ZR_OK;
    train_options_t run;
    gpt_plan_t plan;
    ZR_TRY(try_shape(search, variant, &shape, &run, &plan, fits_p));
    if (!*fits_p)
        return ZR_OK;
    note_size(search, &shape, plan.step_seconds);
    if (search->found && index < search->index)
        return ZR_OK;
    search->found = true;
    search->index = index;
    search->run = run;
    search->plan = plan;
    return ZR_OK;
}

/* From an index that fits: the largest, if what fits is in a row. */
static zr_status_t climb(capacity_search_t *search, const variant_t *variant, size_t fits) {
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
static zr_status_t search_variant(capacity_search_t *search, const variant_t *variant) {
    bool good = false;
    ZR_TRY(try_index(search, variant, search->found ? search->index + 1 : 0, &good));
    while (good) { /* until none of the next sizes fits */
        ZR_TRY(climb(search, variant, search->index));
        size_t top = search->index;
        good = false;
        for (size_t i = 1; i <= CAPACITY_CHECKED && !good; i++)
            ZR_TRY(try_index(search, variant, top + i, &good));
        search->is_monotone &= !good;
    }
    return ZR_OK;
}

static size_t list_variants(const capacity_search_t *search, variant_t variants[MOST_VARIANTS]) {
    const capacity_options_t *o = search->options;
    const train_options_t *run = &search->its_case->run;
    const capacity_place_t *place = &search->place;
    bool splits_gradients = o->gradients_open && place->stage >= 2 &&
                            (place->optimizer == CAPACITY_CPU || place->optimizer == CAPACITY_NVME);
    size_t n = 0;
    for (int activations = 0; activations <= ZR_OFFLOAD_NVME; activations++) {
        bool is_given = !o->activations_open || !run->recompute;
        if (is_given && activations != (int)run->offload_activations)
            continue;
        if (!is_given && activations == ZR_OFFLOAD_NVME && !o->has_drives)
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
static zr_status_t plan_next(capacity_search_t *search, const variant_t *first) {
    const capacity_family_t *family = &search->options->family;
    size_t index = search->found ? search->index + 1 : 0;
    search->has_next = capacity_family_shape(family, index, &search->next_shape);
    if (!search->has_next)
        return ZR_OK;
    if (search->found) {
        search->next_run = search->run;
        search->next_run.shape = search->next_shape;
    } else {
        ZR_TRY(make_run(search, first, &search->next_shape, &search->next_run));
    }
    gpt_plan_request_t request = request_of(search, &search->next_run);
    return plan_one(&request, search->log, &search->next);
}

zr_status_t capacity_search(capacity_search_t *search) {
    variant_t variants[MOST_VARIANTS];
    size_t n = list_variants(search, variants);
    search->is_monotone = true;
    for (size_t i = 0; i < n; i++)
        ZR_TRY(search_variant(search, &variants[i]));
    ZR_TRY(plan_next(search, &variants[0]));
    while (search->has_next && search->next.fits) { /* auto has not seen that it does */
        search->index += search->found;
        search->found = true;
        search->run = search->next_run;
        search->plan = search->next.plan;
        ZR_TRY(plan_next(search, &variants[0]));
    }
    return ZR_OK;
}
