/*
 * The update, on the device, of state that lives elsewhere: see state_internal.h.
 *
 * A piece's state comes up to one of a few buffers, is updated on the update stream and goes back,
 * each on a stream of its own, so that three pieces are under way at a time. Gradients that wait in
 * host memory come up with it; parameters are written where they are.
 *
 * Which way is faster, this one or the host's kernels, is measured when the runtime is made: both
 * the kernels and the copies, on as many elements as a piece has, and not too many.
 */
#include "zero/state_internal.h"

#include <math.h>
#include <string.h>

/* ---- buffers --------------------------------------------------------------------------------- */

static zr_status_t allocate_stage(const zr_state_t *state, zr_state_stage_t *stage, size_t n_elems,
                                  bool has_grads) {
    ZR_TRY(zr_base_allocate(state->base, zr_state_bytes(state->rule, n_elems), ZR_TAG_STAGING,
                            ZR_LIFETIME_PERSISTENT, "optimizer state in transit", NULL,
                            &stage->state));
    if (!has_grads)
        return ZR_OK;
    return zr_base_allocate(state->base, zr_base_bytes(state->base, n_elems), ZR_TAG_STAGING,
                            ZR_LIFETIME_PERSISTENT, "gradients in transit", NULL, &stage->grads);
}

zr_status_t zr_state_create_stages(zr_state_t *state) {
    size_t n_elems = zr_state_largest_moved(state);
    for (size_t i = 0; i < ZR_STATE_N_STAGES; i++) {
        zr_state_stage_t *stage = &state->stages[i];
        ZR_TRY(allocate_stage(state, stage, n_elems, state->grads->n_below > 0));
        ZR_TRY(zr_event_create(state->base->device, &stage->there));
        ZR_TRY(zr_event_create(state->base->device, &stage->updated));
        ZR_TRY(zr_event_create(state->base->device, &stage->gone));
    }
    return ZR_OK;
}

static void free_stage(zr_state_t *state, zr_state_stage_t *stage) {
    zr_free(state->base->allocator, &stage->state, NULL);
    zr_free(state->base->allocator, &stage->grads, NULL);
}

void zr_state_destroy_stages(zr_state_t *state) {
    for (size_t i = 0; i < ZR_STATE_N_STAGES; i++) {
        zr_state_stage_t *stage = &state->stages[i];
        free_stage(state, stage);
        zr_event_destroy(&stage->there);
        zr_event_destroy(&stage->updated);
        zr_event_destroy(&stage->gone);
    }
}

/* ---- a piece --------------------------------------------------------------------------------- */

zr_status_t zr_state_bring_up(zr_state_t *state, const zr_piece_t *piece, const void *arrays,
                              const void *host_grads, zr_state_stage_t **stage_p) {
    zr_copies_t *copies = state->copies;
    zr_state_stage_t *stage = &state->stages[state->n_updated % ZR_STATE_N_STAGES];
    size_t state_bytes = zr_piece_bytes(&state->placement, piece);
    size_t grads_bytes = zr_base_bytes(state->base, piece->n_elems);
    ZR_TRY(zr_stream_wait(copies->up, stage->gone)); /* what was here before */
    ZR_TRY(zr_copy_async(copies->up, stage->state, arrays, state_bytes, ZR_COPY_HOST_TO_DEVICE));
    copies->up_bytes += state_bytes;
    if (host_grads != NULL) {
        ZR_TRY(zr_copy_async(copies->up, stage->grads, host_grads, grads_bytes,
                             ZR_COPY_HOST_TO_DEVICE));
        copies->up_bytes += grads_bytes;
    }
    ZR_TRY(zr_event_record(stage->there, copies->up));
    *stage_p = stage;
    return zr_stream_wait(state->base->update, stage->there);
}

zr_status_t zr_state_send_back(zr_state_t *state, const zr_piece_t *piece, zr_state_stage_t *stage,
                               void *arrays) {
    zr_stream_t *down = state->copies->down;
    size_t size_bytes = zr_piece_bytes(&state->placement, piece);
    ZR_TRY(zr_event_record(stage->updated, state->base->update));
    ZR_TRY(zr_stream_wait(down, stage->updated));
    ZR_TRY(zr_copy_async(down, arrays, stage->state, size_bytes, ZR_COPY_DEVICE_TO_HOST));
    state->copies->down_bytes += size_bytes;
    return zr_event_record(stage->gone, down);
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

static zr_status_t allocate_probe(const zr_state_t *state, probe_t *probe) {
    const zr_base_t *base = state->base;
    size_t state_bytes = zr_state_bytes(state->rule, probe->n_elems);
    size_t grads_bytes = zr_base_bytes(base, probe->n_elems);
    ZR_TRY(allocate_stage(state, &probe->device, probe->n_elems, true));
    ZR_TRY(zr_base_allocate_host(base, state_bytes, ZR_TAG_STAGING, "measuring updates",
                                 &probe->host.state));
    ZR_TRY(zr_base_allocate_host(base, grads_bytes, ZR_TAG_STAGING, "measuring updates",
                                 &probe->host.grads));
    if (!zr_base_has_data(base))
        return ZR_OK;
    memset(probe->host.state, 0, state_bytes);
    memset(probe->host.grads, 0, grads_bytes);
    return ZR_OK;
}

/* Parameters are written over the gradients, which have the same dtype and are read no more. */
static zr_status_t time_update(const zr_state_t *state, const probe_t *probe,
                               const zr_state_stage_t *stage, zr_stream_t *stream, double *best_p) {
    const zr_update_rule_t *rule = state->rule;
    zr_update_t args = {.n_elems = probe->n_elems / 2,
                        .grad = stage->grads,
                        .param = zr_base_at(state->base, stage->grads, probe->n_elems / 2),
                        .grad_dtype = state->base->config.dtype,
                        .param_dtype = state->base->config.dtype,
                        .grad_scale = 1,
                        .lr = 1e-3f,
                        .step = 1};
    for (size_t i = 0; i < rule->n_arrays; i++)
        args.arrays[i] = (char *)stage->state + zr_state_array_offset(rule, i, probe->n_elems);
    for (size_t i = 0; i < rule->n_hypers; i++)
        args.hyper[i] = (float)zr_config_hyper(&state->base->config, i);
    for (int i = 0; i < N_MEASUREMENTS; i++) {
        double start = zr_base_now(state->base);
        ZR_TRY(zr_kernel_update(stream, rule, &args));
        ZR_TRY(zr_stream_synchronize(stream));
        double seconds = (zr_base_now(state->base) - start) / (double)args.n_elems;
        *best_p = i == 1 || seconds < *best_p ? seconds : *best_p;
    }
    return ZR_OK;
}

static zr_status_t time_copy(const zr_state_t *state, const probe_t *probe, zr_copy_t kind,
                             double *best_p) {
    size_t size_bytes = zr_state_bytes(state->rule, probe->n_elems);
    bool is_up = kind == ZR_COPY_HOST_TO_DEVICE;
    zr_stream_t *stream = is_up ? state->copies->up : state->copies->down;
    for (int i = 0; i < N_MEASUREMENTS; i++) {
        double start = zr_base_now(state->base);
        ZR_TRY(zr_copy_async(stream, is_up ? probe->device.state : probe->host.state,
                             is_up ? probe->host.state : probe->device.state, size_bytes, kind));
        ZR_TRY(zr_stream_synchronize(stream));
        double seconds = (zr_base_now(state->base) - start) / (double)size_bytes;
        *best_p = i == 1 || seconds < *best_p ? seconds : *best_p;
    }
    return ZR_OK;
}

static zr_status_t measure(const zr_state_t *state, probe_t *probe, piece_seconds_t *seconds) {
    zr_dtype_t dtype = state->base->config.dtype;
    ZR_TRY(allocate_probe(state, probe));
    ZR_TRY(time_copy(state, probe, ZR_COPY_HOST_TO_DEVICE, &seconds->up));
    ZR_TRY(time_copy(state, probe, ZR_COPY_DEVICE_TO_HOST, &seconds->down));
    ZR_TRY(zr_kernel_fill(state->base->compute, probe->device.grads, dtype, probe->n_elems, 0.0f));
    ZR_TRY(time_update(state, probe, &probe->device, state->base->compute, &seconds->on_device));
    return time_update(state, probe, &probe->host, state->host, &seconds->on_host);
}

/* Of an element, when everything overlaps: the slowest part. */
static void predict(const zr_state_t *state, const piece_seconds_t *seconds,
                    zr_update_choice_t *choice) {
    double width = (double)zr_base_bytes(state->base, 1);
    double below = (double)state->grads->n_below / (double)state->n_lowered;
    double params_up = width * zr_params_part_on_device(state->params),
           params_down = width - params_up;
    size_t block = state->align_elems;
    double width_of_state = (double)zr_state_bytes(state->rule, block) / (double)block;
    double on_host =
        fmax(seconds->on_host, fmax((1 - below) * width * seconds->down, params_up * seconds->up));
    double on_device =
        fmax(seconds->on_device, fmax((width_of_state + below * width) * seconds->up,
                                      (width_of_state + params_down) * seconds->down));
    choice->host_elems_per_s = 1 / on_host;
    choice->device_elems_per_s = 1 / on_device;
    choice->is_on_device = on_device < on_host;
}

zr_status_t zr_state_choose(zr_state_t *state) {
    zr_update_on_t asked = state->base->config.offload_optimizer.update_on;
    zr_update_choice_t *choice = &state->choice;
    size_t n_elems = zr_state_largest_moved(state);
    if (!zr_update_runs_on(state->base->device, state->rule))
        return ZR_OK; /* nor can it be measured */
    choice->is_on_device = asked == ZR_UPDATE_ON_DEVICE;
    if (asked != ZR_UPDATE_ON_FASTER)
        return ZR_OK;
    probe_t probe = {.n_elems = n_elems < MOST_MEASURED_ELEMS ? n_elems : MOST_MEASURED_ELEMS};
    piece_seconds_t seconds = {0};
    zr_status_t status = measure(state, &probe, &seconds);
    free_stage(state, &probe.device);
    free_stage(state, &probe.host);
    ZR_TRY(status);
    choice->was_measured = true;
    predict(state, &seconds, choice);
    return ZR_OK;
}
