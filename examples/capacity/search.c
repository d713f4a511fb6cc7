/* From the options of zero-capacity to the library's search, and back. */
#include "examples/capacity/search.h"

#include <stdlib.h>
#include <string.h>

#include "examples/train/plan.h"

#define N_DRAWN 5 /* sizes below the largest */

const char *capacity_where_name(capacity_where_t where) {
    static const char *const names[] = {"none", "cpu", "nvme", "auto"};
    return names[where];
}

/* The run of a capacity, but for its size and what is chosen for it. */
static train_options_t run_of(const capacity_search_t *search) {
    const capacity_place_t *place = &search->place;
    train_options_t run = search->its_case->run;
    zr_config_t *config = &run.config;
    run.auto_optimizer = place->optimizer == CAPACITY_AUTO;
    run.auto_params = place->params == CAPACITY_AUTO;
    config->stage = place->stage;
    config->offload_optimizer.device =
        run.auto_optimizer ? ZR_OFFLOAD_NONE : (zr_offload_device_t)place->optimizer;
    config->offload_param.device =
        run.auto_params ? ZR_OFFLOAD_NONE : (zr_offload_device_t)place->params;
    return run;
}

/* A size of the family, as zero-train takes it. */
static bool set_shape(const capacity_search_t *search, size_t index, train_options_t *run) {
    if (!capacity_family_shape(&search->options->family, index, &run->shape))
        return false;
    run->seq = run->seq_min = zr_model_shape_sizes(&run->shape).seq;
    return true;
}

/* Its model in a plan's request. The drives of described hardware have no folders, and need none.
 */
static bool set_model(const void *context, size_t index, zr_run_request_t *request) {
    const capacity_search_t *search = context;
    train_options_t run = run_of(search);
    if (!set_shape(search, index, &run))
        return false;
    zr_transformer_options_t model = train_options_model(&search->options->run); /* outlives it */
    request->model = zr_model_shape_maker(&run.shape, &model);
    request->seq = run.seq;
    request->seq_min = run.seq_min;
    return true;
}

static size_t n_params(const void *context, size_t index) {
    const capacity_search_t *search = context;
    zr_model_shape_t shape;
    return capacity_family_shape(&search->options->family, index, &shape)
               ? zr_model_shape_n_params(&shape)
               : 0;
}

/* What was chosen for a size, as zero-train takes it. */
static train_options_t chosen_run(const capacity_search_t *search, size_t index,
                                  const zr_run_request_t *chosen) {
    train_options_t run = run_of(search);
    (void)set_shape(search, index, &run);
    run.config = chosen->config;
    run.offload_activations = chosen->activations;
    run.activations_on_device = chosen->activations_on_device;
    run.activations_in_host = chosen->activations_in_host;
    return run;
}

static bool is_stopped(const void *context) {
    const capacity_search_t *search = context;
    return search->stop != NULL && atomic_load(search->stop);
}

static void take_results(capacity_search_t *search, const zr_run_largest_t *found) {
    size_t next = found->found ? found->index + 1 : 0;
    search->n_plans = found->n_plans;
    search->found = found->found;
    search->has_next = found->has_next;
    search->is_monotone = found->is_monotone;
    search->index = found->index;
    search->plan = found->plan;
    search->next = found->next;
    search->n_sizes = found->n_sizes;
    memcpy(search->sizes, found->sizes, sizeof(search->sizes));
    if (found->found)
        search->run = chosen_run(search, found->index, &found->largest);
    if (found->has_next)
        search->next_run = chosen_run(search, next, &found->next_run);
    search->next_shape = search->next_run.shape;
}

zr_status_t capacity_search(capacity_search_t *search) {
    const capacity_options_t *o = search->options;
    train_options_t run = run_of(search);
    zr_run_largest_t *largest = calloc(1, sizeof(*largest)); /* plans are large */
    if (largest == NULL)
        return zr_fail(search->log, ZR_ERR_MEMORY, "no memory for a search");
    *largest = (zr_run_largest_t){
        .family = {.set_model = set_model, .n_params = n_params, .context = search},
        .run = train_plan_request(&run, &search->its_case->hardware),
        .open = {.places = train_plan_open(&run),
                 .gradients = o->gradients_open,
                 .activations = o->activations_open,
                 .has_drives = o->has_drives},
        .least_tokens_per_s = o->least_tokens_per_s,
        .n_smaller = o->plot_path != NULL ? N_DRAWN : 0,
        .log = search->log,
        .is_stopped = is_stopped,
        .stop_context = search,
        .n_plans = search->n_plans};
    largest->open.places.update_on = false; /* half the plans */
    zr_status_t status = zr_run_find_largest(largest);
    if (status == ZR_OK)
        take_results(search, largest);
    free(largest);
    return status;
}
