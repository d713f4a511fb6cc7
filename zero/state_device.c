/*
 * The update, on the device, of state that lives elsewhere: see state.h.
 *
 * A piece's state comes up to one of a few buffers, is updated on the compute stream and goes back,
 * each on a stream of its own, so that three pieces are under way at a time. Gradients that wait in
 * host memory come up with it; parameters are written where they are.
 *
 * Which way is faster, this one or the host's kernels, is measured when the runtime is made: both
 * the kernels and the copies, on as many elements as a piece has, and not too many.
 */
#include <math.h>

#include "zero/runtime_internal.h"

/* ---- buffers --------------------------------------------------------------------------------- */

static size_t largest_piece_elems(const zr_state_t *state) {
    size_t on_host = zr_state_largest_elems(state, ZR_TIER_HOST);
    size_t on_nvme = zr_state_largest_elems(state, ZR_TIER_NVME);
    return on_host > on_nvme ? on_host : on_nvme;
}

static zr_status_t allocate_stage(zr_runtime_t *runtime, zr_state_stage_t *stage, size_t n_elems,
                                  bool has_grads) {
    ZR_TRY(zr_rt_allocate(runtime, zr_state_bytes(runtime->state.rule, n_elems), ZR_TAG_STAGING,
                          ZR_LIFETIME_PERSISTENT, "optimizer state on its way", NULL,
                          &stage->state));
    if (!has_grads)
        return ZR_OK;
    return zr_rt_allocate(runtime, zr_rt_bytes(runtime, n_elems), ZR_TAG_STAGING,
                          ZR_LIFETIME_PERSISTENT, "gradients on their way", NULL, &stage->grads);
}

zr_status_t zr_state_create_stages(zr_runtime_t *runtime) {
    zr_state_t *state = &runtime->state;
    size_t n_elems = largest_piece_elems(state);
    for (size_t i = 0; i < ZR_STATE_N_STAGES; i++) {
        zr_state_stage_t *stage = &state->stages[i];
        ZR_TRY(allocate_stage(runtime, stage, n_elems, runtime->n_grads_below > 0));
        ZR_TRY(zr_event_create(runtime->device, &stage->there));
        ZR_TRY(zr_event_create(runtime->device, &stage->updated));
        ZR_TRY(zr_event_create(runtime->device, &stage->gone));
    }
    return ZR_OK;
}

static void free_stage(zr_runtime_t *runtime, zr_state_stage_t *stage) {
    zr_free(runtime->allocator, &stage->state, NULL);
    zr_free(runtime->allocator, &stage->grads, NULL);
}

void zr_state_destroy_stages(zr_runtime_t *runtime) {
    for (size_t i = 0; i < ZR_STATE_N_STAGES; i++) {
        zr_state_stage_t *stage = &runtime->state.stages[i];
        free_stage(runtime, stage);
        zr_event_destroy(&stage->there);
        zr_event_destroy(&stage->updated);
        zr_event_destroy(&stage->gone);
    }
}

/* ---- a piece --------------------------------------------------------------------------------- */

zr_status_t zr_state_bring_up(zr_runtime_t *runtime, const zr_piece_t *piece, const void *state,
                              const void *host_grads, zr_state_stage_t **stage_p) {
    zr_state_t *own = &runtime->state;
    zr_state_stage_t *stage = &own->stages[own->n_updated % ZR_STATE_N_STAGES];
    size_t state_bytes = zr_piece_bytes(&own->placement, piece);
    size_t grads_bytes = zr_rt_bytes(runtime, piece->n_elems);
    ZR_TRY(zr_stream_wait(own->up, stage->gone)); /* what was here before */
    ZR_TRY(zr_copy_async(own->up, stage->state, state, state_bytes, ZR_COPY_HOST_TO_DEVICE));
    own->copied_up_bytes += state_bytes;
    if (host_grads != NULL) {
        ZR_TRY(
            zr_copy_async(own->up, stage->grads, host_grads, grads_bytes, ZR_COPY_HOST_TO_DEVICE));
        own->copied_up_bytes += grads_bytes;
    }
    ZR_TRY(zr_event_record(stage->there, own->up));
    *stage_p = stage;
    return zr_stream_wait(runtime->compute, stage->there);
}

zr_status_t zr_state_send_back(zr_runtime_t *runtime, const zr_piece_t *piece,
                               zr_state_stage_t *stage, void *state) {
    zr_state_t *own = &runtime->state;
    size_t size_bytes = zr_piece_bytes(&own->placement, piece);
    ZR_TRY(zr_event_record(stage->updated, runtime->compute));
    ZR_TRY(zr_stream_wait(own->down, stage->updated));
    ZR_TRY(zr_copy_async(own->down, state, stage->state, size_bytes, ZR_COPY_DEVICE_TO_HOST));
    own->copied_down_bytes += size_bytes;
    return zr_event_record(stage->gone, own->down);
}

/* ---- which way ------------------------------------------------------------------------------- */

#define MOST_MEASURED_ELEMS ((size_t)1 << 18)
#define N_MEASUREMENTS 4 /* the first warms up */

/* What is measured with: a piece on both sides. */
typedef struct probe {
    size_t n_elems;
    zr_state_stage_t device;
    zr_state_stage_t host;
} probe_t;

/* Seconds per element of a piece's ways. */
typedef struct piece_seconds {
    double on_host, on_device; /* updating */
    double up, down;           /* per byte */
} piece_seconds_t;

static zr_status_t allocate_probe(zr_runtime_t *runtime, probe_t *probe) {
    size_t state_bytes = zr_state_bytes(runtime->state.rule, probe->n_elems);
    zr_allocation_request_t request = {.size_bytes = state_bytes,
                                       .tier = ZR_TIER_HOST,
                                       .tag = ZR_TAG_STAGING,
                                       .lifetime = ZR_LIFETIME_PERSISTENT,
                                       .name = "measuring updates"};
    ZR_TRY(allocate_stage(runtime, &probe->device, probe->n_elems, true));
    ZR_TRY(zr_allocate(runtime->allocator, &request, &probe->host.state));
    request.size_bytes = zr_rt_bytes(runtime, probe->n_elems);
    ZR_TRY(zr_allocate(runtime->allocator, &request, &probe->host.grads));
    if (!zr_rt_has_data(runtime))
        return ZR_OK;
    memset(probe->host.state, 0, state_bytes);
    memset(probe->host.grads, 0, zr_rt_bytes(runtime, probe->n_elems));
    return ZR_OK;
}

/* Parameters are written over the gradients, which have the same dtype and are read no more. */
static zr_status_t time_update(const zr_runtime_t *runtime, const probe_t *probe,
                               const zr_state_stage_t *stage, zr_stream_t *stream, double *best_p) {
    const zr_update_rule_t *rule = runtime->state.rule;
    zr_update_t args = {.n_elems = probe->n_elems / 2,
                        .grad = stage->grads,
                        .param = zr_rt_at(runtime, stage->grads, probe->n_elems / 2),
                        .grad_dtype = runtime->config.dtype,
                        .param_dtype = runtime->config.dtype,
                        .grad_scale = 1,
                        .lr = 1e-3f,
                        .step = 1};
    for (size_t i = 0; i < rule->n_arrays; i++)
        args.arrays[i] = (char *)stage->state + zr_state_array_offset(rule, i, probe->n_elems);
    for (size_t i = 0; i < rule->n_hypers; i++)
        args.hyper[i] = (float)zr_config_hyper(&runtime->config, i);
    for (int i = 0; i < N_MEASUREMENTS; i++) {
        double start = zr_rt_now(runtime);
        ZR_TRY(zr_kernel_update(stream, rule, &args));
        ZR_TRY(zr_stream_synchronize(stream));
        double seconds = (zr_rt_now(runtime) - start) / (double)args.n_elems;
        *best_p = i == 1 || seconds < *best_p ? seconds : *best_p;
    }
    return ZR_OK;
}

static zr_status_t time_copy(const zr_runtime_t *runtime, const probe_t *probe, zr_copy_t kind,
                             double *best_p) {
    size_t size_bytes = zr_state_bytes(runtime->state.rule, probe->n_elems);
    bool is_up = kind == ZR_COPY_HOST_TO_DEVICE;
    zr_stream_t *stream = is_up ? runtime->state.up : runtime->state.down;
    for (int i = 0; i < N_MEASUREMENTS; i++) {
        double start = zr_rt_now(runtime);
        ZR_TRY(zr_copy_async(stream, is_up ? probe->device.state : probe->host.state,
                             is_up ? probe->host.state : probe->device.state, size_bytes, kind));
        ZR_TRY(zr_stream_synchronize(stream));
        double seconds = (zr_rt_now(runtime) - start) / (double)size_bytes;
        *best_p = i == 1 || seconds < *best_p ? seconds : *best_p;
    }
    return ZR_OK;
}

static zr_status_t measure(zr_runtime_t *runtime, probe_t *probe, piece_seconds_t *seconds) {
    zr_dtype_t dtype = runtime->config.dtype;
    ZR_TRY(allocate_probe(runtime, probe));
    ZR_TRY(time_copy(runtime, probe, ZR_COPY_HOST_TO_DEVICE, &seconds->up));
    ZR_TRY(time_copy(runtime, probe, ZR_COPY_DEVICE_TO_HOST, &seconds->down));
    ZR_TRY(zr_kernel_fill(runtime->compute, probe->device.grads, dtype, probe->n_elems, 0.0f));
    ZR_TRY(time_update(runtime, probe, &probe->device, runtime->compute, &seconds->on_device));
    return time_update(runtime, probe, &probe->host, runtime->state.host, &seconds->on_host);
}

/* Of an element, when everything overlaps: the slowest part. */
static void predict(const zr_runtime_t *runtime, const piece_seconds_t *seconds,
                    zr_update_choice_t *choice) {
    double width = (double)zr_rt_bytes(runtime, 1);
    double below = (double)runtime->n_grads_below / (double)runtime->state.n_lowered;
    double params_up = width * zr_params_part_on_device(runtime), params_down = width - params_up;
    double state = (double)zr_state_bytes(runtime->state.rule, 1);
    double on_host =
        fmax(seconds->on_host, fmax((1 - below) * width * seconds->down, params_up * seconds->up));
    double on_device = fmax(seconds->on_device, fmax((state + below * width) * seconds->up,
                                                     (state + params_down) * seconds->down));
    choice->host_elems_per_s = 1 / on_host;
    choice->device_elems_per_s = 1 / on_device;
    choice->is_on_device = on_device < on_host;
}

zr_status_t zr_state_choose(zr_runtime_t *runtime) {
    zr_state_t *state = &runtime->state;
    zr_update_choice_t *choice = &state->choice;
    size_t n_elems = largest_piece_elems(state);
    *choice = (zr_update_choice_t){.is_on_device = state->has_copies &&
                                                   runtime->config.offload_optimizer.update_on ==
                                                       ZR_UPDATE_ON_DEVICE};
    if (!zr_update_runs_on(runtime->device, state->rule)) {
        choice->is_on_device = false; /* nor can it be measured */
        return ZR_OK;
    }
    if (!state->has_copies || runtime->config.offload_optimizer.update_on != ZR_UPDATE_ON_FASTER)
        return ZR_OK;
    probe_t probe = {.n_elems = n_elems < MOST_MEASURED_ELEMS ? n_elems : MOST_MEASURED_ELEMS};
    piece_seconds_t seconds = {0};
    zr_status_t status = measure(runtime, &probe, &seconds);
    free_stage(runtime, &probe.device);
    free_stage(runtime, &probe.host);
    ZR_TRY(status);
    choice->was_measured = true;
    predict(runtime, &seconds, choice);
    return ZR_OK;
}
