/*
 * How many staging buffers a run has that leaves it open. Where units are updated within backward,
 * what buffers do not hold of the next unit is waited for: drives have nothing to do while the
 * device computes, and then it has to wait for them. Forward has little else to move: it writes
 * what the last step has left in the buffers, and then reads as much for the next. So the more of
 * them the better; as many as the largest unit fills four times. Otherwise updates follow each
 * other, and a few are enough.
 */
#include "zero/runtime_internal.h"

/* Of what a budget leaves, for all of them: the rest is for what steps need besides. */
#define PART_OF_BUDGET 0.9
/* Where nothing says how much memory may be used. */
#define MOST_WITHOUT_BUDGET 64

static size_t least(size_t a, size_t b) {
    return a < b ? a : b;
}

static size_t between(size_t n, size_t fewest, size_t most) {
    return n < fewest ? fewest : least(n, most);
}

/* What the store and the exchange of values have for themselves. */
static size_t other_buffers(const zr_runtime_t *runtime) {
    zr_store_options_t options = zr_nvme_store_options(&runtime->base);
    return options.n_bounce_buffers * options.request_bytes + ZR_STAGING_ELEMS * sizeof(float);
}

/* What host memory may be used for buffers. */
static size_t allowance(const zr_runtime_t *runtime) {
    const zr_config_t *config = &runtime->base.config;
    size_t process = zr_config_rank_memory(config);
    size_t budget = process == ZR_CONFIG_NO_BUDGET ? process : process / 2; /* the device's, too */
    size_t used = runtime->state.n_sides * runtime->state.placement.bytes[ZR_TIER_HOST] +
                  runtime->grads.placement.bytes[ZR_TIER_HOST] +
                  runtime->params.bytes[ZR_TIER_HOST] + other_buffers(runtime);
    budget = least(budget, config->host_memory_bytes);
    if (budget == ZR_CONFIG_NO_BUDGET)
        return budget;
    return used < budget ? (size_t)((double)(budget - used) * PART_OF_BUDGET) : 0;
}

static size_t most_pieces_of_unit(const zr_placement_t *placement) {
    size_t most = 0;
    for (size_t unit = 0; unit < placement->n_tensors; unit++) {
        size_t n = 0;
        for (size_t i = placement->first_piece[unit]; i < placement->first_piece[unit + 1]; i++)
            n += placement->pieces[i].tier == ZR_TIER_NVME;
        most = n > most ? n : most;
    }
    return most;
}

static size_t most_parts_of_unit(const zr_units_t *model) {
    size_t most = 0;
    for (size_t i = 0; i < model->n_units; i++)
        for (int kind = 0; kind < N_FLATS; kind++)
            if (model->units[i]->data[kind].n_parts > most)
                most = model->units[i]->data[kind].n_parts;
    return most;
}

void zr_buffers_choose(zr_runtime_t *runtime) {
    const zr_base_t *base = &runtime->base;
    zr_config_t *config = &runtime->base.config;
    size_t *n_state = &config->offload_optimizer.n_buffers;
    size_t *n_params = &config->offload_param.n_buffers;
    size_t pieces = most_pieces_of_unit(&runtime->state.placement);
    size_t parts = most_parts_of_unit(&runtime->model);
    size_t allowed = allowance(runtime), most = zr_base_n_state_buffers(base);
    if (allowed == ZR_CONFIG_NO_BUDGET)
        most = least(most, MOST_WITHOUT_BUDGET);
    size_t wanted_state = between(4 * pieces, ZR_CONFIG_USUAL_BUFFERS, most);
    size_t wanted_params = between(parts, ZR_CONFIG_USUAL_PARAM_BUFFERS,
                                   zr_base_n_buffers(base, 0, ZR_CONFIG_USUAL_PARAM_BUFFERS,
                                                     ZR_CONFIG_MOST_AUTO_PARAM_BUFFERS));
    size_t state_bytes = runtime->state.placement.largest_bytes[ZR_TIER_NVME] +
                         runtime->grads.placement.largest_bytes[ZR_TIER_NVME];
    size_t param_bytes = parts != 0 ? 2 * runtime->params.part_bytes : 0; /* each way has its own */
    double wanted =
        (double)wanted_state * (double)state_bytes + (double)wanted_params * (double)param_bytes;
    double part = wanted > (double)allowed ? (double)allowed / wanted : 1;
    if (*n_state == 0)
        *n_state =
            between((size_t)(part * (double)wanted_state), ZR_CONFIG_USUAL_BUFFERS, wanted_state);
    if (*n_params == 0)
        *n_params = between((size_t)(part * (double)wanted_params), ZR_CONFIG_USUAL_PARAM_BUFFERS,
                            wanted_params);
    zr_params_use_buffers(&runtime->params);
}
