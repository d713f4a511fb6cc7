/*
 * The update of the optimizer state where it lives: see state_internal.h.
 *
 * Units are updated in order, and their pieces in order. A piece on the device is a kernel queued
 * on the update stream. Any other is updated here and now: its state is in host memory, or comes
 * to a buffer of the swap pipeline, which reads the next ones and writes the last ones meanwhile.
 * Where the CPU cannot touch the device's memory, the gradients of the next piece come down on a
 * stream of their own while this one is updated, and the parameters of the last one go up on
 * another.
 */
#include "zero/state_internal.h"

/* A piece in work: where its state, gradients and parameters can be touched by whose kernels. */
typedef struct piece_work {
    const zr_state_update_t *update;
    zr_unit_t *unit;
    const zr_piece_t *piece;
    size_t first; /* of the piece in the flat buffer */
    void *arrays; /* of the piece's state */
    void *old; /* as arrays, of the side in force, which is copied to them first; NULL: they are */
    void *grads;
    void *params; /* NULL: they live elsewhere, zr_params_open_write says where */
    zr_stream_t *stream;
    size_t most_elems; /* that are updated at a time: up to the next multiple of it in the piece */
    bool is_sliced;    /* it comes from a store and is updated in its buffer */
    const zr_param_t *apart; /* whose elements are updated now, by a call of their own; or NULL */
    bool is_left_out;        /* it only takes the memory that its update takes */
} piece_work_t;

/* What comes from a store is updated in slices of so many elements. A slice of all its arrays is
 * verified, updated and hashed while it is in a cache, and the drive is looked after behind it:
 * less than what is with it lasts, and not so little that waking a device's threads counts. */
#define SLICE_ELEMS ((size_t)1 << 18)

/* ---- arrays on the device ---- */

static void *device_params(const zr_unit_t *unit, size_t first) {
    return zr_unit_is_offloaded(unit, FLAT_TRAINABLE) ? NULL : zr_unit_own_at(unit, first);
}

/* ---- copies between device and host ---- */

/* Bring the gradients of the next piece down, if there is one, and they are not there. */
static zr_status_t queue_grads(zr_state_t *state) {
    if (!state->copies->are_needed || state->choice.is_on_device ||
        state->next_lowered == state->end_lowered)
        return ZR_OK;
    const zr_piece_t *piece = &state->placement.pieces[state->lowered[state->next_lowered++]];
    zr_state_slot_t *slot = &state->slots[state->n_brought++ % ZR_STATE_N_SLOTS];
    if (zr_grads_tier(state->grads, piece) != ZR_TIER_DEVICE)
        return ZR_OK;
    const zr_unit_t *unit = state->model->units[piece->tensor];
    size_t size_bytes = zr_base_bytes(state->base, piece->n_elems);
    ZR_TRY(zr_copy_async(state->copies->down, slot->grads,
                         zr_grads_of_piece(state->grads, unit, piece), size_bytes,
                         ZR_COPY_DEVICE_TO_HOST));
    state->copies->down_bytes += size_bytes;
    return zr_event_record(slot->grads_there, state->copies->down);
}

static zr_status_t take_copies(zr_state_t *state, piece_work_t *work) {
    zr_state_slot_t *slot = &state->slots[state->n_updated % ZR_STATE_N_SLOTS];
    ZR_TRY(queue_grads(state));
    ZR_TRY(zr_event_synchronize(slot->params_taken)); /* of the piece before last */
    if (zr_grads_tier(state->grads, work->piece) == ZR_TIER_DEVICE) {
        ZR_TRY(zr_event_synchronize(slot->grads_there));
        work->grads = slot->grads;
    }
    if (work->params != NULL) /* the device's */
        work->params = slot->params;
    return ZR_OK;
}

static zr_status_t send_params(zr_state_t *state, const piece_work_t *work) {
    zr_state_slot_t *slot = &state->slots[state->n_updated % ZR_STATE_N_SLOTS];
    size_t size_bytes = zr_base_bytes(state->base, work->piece->n_elems);
    ZR_TRY(zr_copy_async(state->copies->up, device_params(work->unit, work->first), slot->params,
                         size_bytes, ZR_COPY_HOST_TO_DEVICE));
    state->copies->up_bytes += size_bytes;
    return zr_event_record(slot->params_taken, state->copies->up);
}

/* ---- a piece ---- */

/* Elements [first, first + n_elems) of the flat buffer, all of one group; their parameters go to
 * `params`. What the host updates is there when this returns: its streams are synchronous. */
static zr_status_t update_run(const zr_state_t *state, const piece_work_t *work,
                              const zr_segment_t *run, void *params) {
    const zr_unit_group_t *group = &state->model->groups[run->group];
    size_t in_piece = run->first - work->first;
    zr_update_t args = work->update->args;
    args.n_elems = run->n_elems;
    for (size_t i = 0; i < state->rule->n_arrays; i++) {
        args.arrays[i] = zr_state_at(state, work->piece, work->arrays, i, in_piece);
        if (work->old != NULL)
            ZR_TRY(zr_copy_async(work->stream, args.arrays[i],
                                 zr_state_at(state, work->piece, work->old, i, in_piece),
                                 zr_encoding_bytes(zr_state_encoding(state, i), run->n_elems),
                                 ZR_COPY_DEVICE_TO_DEVICE));
    }
    args.grad = zr_base_at(state->base, work->grads, in_piece);
    args.param = params;
    args.lr = (float)(work->update->lr * group->shared.lr_scale);
    args.weight_decay = (float)group->shared.weight_decay;
    for (size_t i = 0; i < state->rule->n_hypers; i++)
        args.hyper[i] = (float)group->hyper[i];
    if (work->apart != NULL) {
        args.is_left_out = work->apart->is_left_out;
        args.step -= (int)work->apart->n_left_out;
    }
    args.rounding[0] = (uint32_t)work->unit->index * 0x9e3779b9u;
    args.rounding[1] = (uint32_t)args.step * 0x85ebca6bu;
    args.first = run->first;
    return zr_kernel_update(work->stream, &state->update_rule, &args);
}

/* The parameter that a run begins in, if it is updated by calls of its own: the run then ends with
 * it. Otherwise the run ends before the next one that is. */
static const zr_param_t *take_param_apart(const zr_unit_t *unit, zr_segment_t *run) {
    const zr_param_t *found = NULL;
    size_t next = SIZE_MAX, next_apart = SIZE_MAX;
    for (size_t i = 0; i < unit->n_params; i++) {
        const zr_param_t *param = unit->params[i];
        const zr_layout_param_t *layout = &param->about->layout;
        bool is_apart = param->is_left_out || param->n_left_out != 0;
        if (layout->frozen || layout->n_elems == 0)
            continue;
        if (layout->offset_elems <= run->first) {
            if (found == NULL || layout->offset_elems > found->about->layout.offset_elems)
                found = param;
            continue;
        }
        next = layout->offset_elems < next ? layout->offset_elems : next;
        if (is_apart && layout->offset_elems < next_apart)
            next_apart = layout->offset_elems;
    }
    bool is_apart = found != NULL && (found->is_left_out || found->n_left_out != 0);
    size_t end = is_apart ? next : next_apart;
    if (run->n_elems > end - run->first)
        run->n_elems = end - run->first;
    return is_apart ? found : NULL;
}

/* As many of a run's elements as have their parameters in one place. */
static zr_status_t update_some(const zr_state_t *state, const piece_work_t *work,
                               zr_segment_t *run) {
    zr_unit_t *unit = work->unit;
    if (work->params != NULL)
        return update_run(state, work, run,
                          zr_base_at(state->base, work->params, run->first - work->first));
    zr_params_write_t write = {.first = run->first - zr_unit_state_range(unit).first,
                               .n_elems = run->n_elems,
                               .stream = work->stream};
    ZR_TRY(zr_params_open_write(state->params, unit, FLAT_TRAINABLE, &write));
    run->n_elems = write.n_elems;
    if (!work->is_left_out)
        ZR_TRY(update_run(state, work, run, write.target));
    return zr_params_close_write(state->params, unit, FLAT_TRAINABLE, &write);
}

/* Open or close the bytes of a run in the buffer of the piece, of all its arrays. */
static zr_status_t pass_slice(const zr_state_t *state, const piece_work_t *work,
                              const zr_segment_t *run,
                              zr_status_t (*pass)(zr_swap_t *, size_t, size_t)) {
    for (size_t array = 0; array < state->rule->n_arrays; array++) {
        const char *begin =
            zr_state_at(state, work->piece, work->arrays, array, run->first - work->first);
        size_t n_bytes = zr_encoding_bytes(zr_state_encoding(state, array), run->n_elems);
        if (n_bytes != 0)
            ZR_TRY(pass(state->swap, (size_t)(begin - (const char *)work->arrays), n_bytes));
    }
    return ZR_OK;
}

/* As update_some, in the buffer of the swap pipeline. */
static zr_status_t update_slice(const zr_state_t *state, const piece_work_t *work,
                                zr_segment_t *run) {
    ZR_TRY(pass_slice(state, work, run, zr_swap_open_slice));
    ZR_TRY(update_some(state, work, run));
    return pass_slice(state, work, run, zr_swap_close_slice);
}

static zr_status_t update_runs(const zr_state_t *state, piece_work_t *work) {
    const zr_flat_t *flat = &work->unit->flat[FLAT_TRAINABLE];
    size_t piece_end = work->first + work->piece->n_elems;
    for (size_t i = 0; i < flat->n_segments; i++) {
        zr_segment_t run = flat->segments[i];
        size_t end = run.first + run.n_elems;
        run.first = run.first > work->first ? run.first : work->first;
        end = end < piece_end ? end : piece_end;
        for (; run.first < end; run.first += run.n_elems) {
            size_t most = work->most_elems - (run.first - work->first) % work->most_elems;
            run.n_elems = end - run.first < most ? end - run.first : most;
            work->apart = work->unit->n_apart != 0 ? take_param_apart(work->unit, &run) : NULL;
            ZR_TRY(work->is_sliced ? update_slice(state, work, &run)
                                   : update_some(state, work, &run));
            if (work->piece->tier == ZR_TIER_NVME)
                zr_store_progress(state->store);
        }
    }
    return ZR_OK;
}

/* Where a piece's state is, `old`, and where its new one goes, `arrays`; NULL and there, where both
 * are the same. */
static zr_status_t find_home(const zr_state_t *state, piece_work_t *work) {
    size_t side = state->side, new_side = state->n_sides - 1 - side;
    if (work->piece->tier == ZR_TIER_NVME) {
        zr_swap_item_t item =
            zr_swap_item_of(&state->placement, work->piece, zr_state_first_extent(state));
        ZR_TRY(zr_swap_seek(state->swap, &item));
        return zr_swap_next(state->swap, &work->arrays);
    }
    work->arrays = zr_state_resident(state, work->unit, work->piece, new_side);
    if (side != new_side)
        work->old = zr_state_resident(state, work->unit, work->piece, side);
    return ZR_OK;
}

static zr_status_t update_on_device(const zr_state_t *state, piece_work_t *work) {
    ZR_TRY(find_home(state, work));
    return update_runs(state, work);
}

static zr_status_t update_on_host(zr_state_t *state, piece_work_t *work) {
    bool is_swapped = work->piece->tier == ZR_TIER_NVME;
    work->stream = state->host;
    if (state->copies->are_needed)
        ZR_TRY(take_copies(state, work));
    ZR_TRY(find_home(state, work));
    work->is_sliced = is_swapped;
    if ((is_swapped || work->old != NULL) && work->most_elems > SLICE_ELEMS)
        work->most_elems = SLICE_ELEMS;
    ZR_TRY(update_runs(state, work));
    if (work->params != NULL && state->copies->are_needed)
        ZR_TRY(send_params(state, work));
    if (zr_grads_tier(state->grads, work->piece) == ZR_TIER_NVME)
        ZR_TRY(zr_grads_drive_release(&state->grads->drive, NULL));
    state->n_updated++;
    return is_swapped ? zr_swap_done(state->swap) : ZR_OK;
}

/* Of a piece that lives elsewhere. */
static zr_status_t update_on_stage(zr_state_t *state, piece_work_t *work) {
    zr_tier_t tier = zr_grads_tier(state->grads, work->piece);
    const void *host_grads = tier != ZR_TIER_DEVICE ? work->grads : NULL;
    zr_state_stage_t *stage = NULL;
    ZR_TRY(find_home(state, work));
    void *home = work->arrays, *old = work->old != NULL ? work->old : home;
    ZR_TRY(zr_state_bring_up(state, work->piece, old, host_grads, &stage));
    if (tier == ZR_TIER_NVME)
        ZR_TRY(zr_grads_drive_release(&state->grads->drive, state->copies->up));
    work->arrays = stage->state;
    work->old = NULL;
    work->grads = host_grads != NULL ? stage->grads : work->grads;
    ZR_TRY(update_runs(state, work));
    ZR_TRY(zr_state_send_back(state, work->piece, stage, home));
    state->n_updated++;
    if (work->piece->tier != ZR_TIER_NVME)
        return ZR_OK;
    ZR_TRY(zr_event_synchronize(stage->gone));
    return zr_swap_done(state->swap);
}

static zr_status_t update_piece(zr_state_t *state, piece_work_t *work) {
    work->stream = state->base->update;
    if (work->is_left_out)
        return update_runs(state, work);
    work->grads = zr_grads_of_piece(state->grads, work->unit, work->piece);
    if (zr_grads_tier(state->grads, work->piece) == ZR_TIER_NVME)
        ZR_TRY(zr_grads_bring(state->grads, work->piece, &work->grads));
    if (work->piece->tier == ZR_TIER_DEVICE)
        return update_on_device(state, work);
    return state->choice.is_on_device ? update_on_stage(state, work) : update_on_host(state, work);
}

/* Elements that a call updates: whole blocks. */
static size_t most_elems(const zr_state_t *state) {
    size_t most = state->base->config.sub_group_elems, align = state->align_elems;
    return most > align ? most - most % align : align;
}

/* Whether the update of a piece takes memory of the device: for its parameters, on their way. */
static bool allocates(const zr_state_t *state, const zr_unit_t *unit, const zr_piece_t *piece) {
    bool is_on_device = piece->tier == ZR_TIER_DEVICE || state->choice.is_on_device;
    return is_on_device && !state->params->is_direct && zr_unit_is_offloaded(unit, FLAT_TRAINABLE);
}

zr_status_t zr_state_update_unit(zr_state_t *state, zr_unit_t *unit,
                                 const zr_state_update_t *update) {
    const zr_placement_t *placement = &state->placement;
    size_t range_first = zr_unit_state_range(unit).first;
    size_t begin = placement->first_piece[unit->index];
    size_t end = placement->first_piece[unit->index + 1];
    if (zr_base_updates_in_backward(state->base)) { /* units come in the order of reductions */
        state->next_lowered = state->first_lowered[unit->index];
        state->end_lowered = state->first_lowered[unit->index + 1];
        ZR_TRY(queue_grads(state));
    }
    uint32_t seen = 0;
    for (size_t i = begin; i < end; i++) {
        bool is_left_out = zr_grads_leaves_out(state->grads, i, end, &seen);
        if (is_left_out && !allocates(state, unit, &placement->pieces[i]))
            continue;
        piece_work_t work = {.update = update,
                             .is_left_out = is_left_out,
                             .unit = unit,
                             .piece = &placement->pieces[i],
                             .first = range_first + placement->pieces[i].first,
                             .most_elems = most_elems(state)};
        zr_base_trace(state->base, "update", unit->name, i + 1 - begin);
        work.params = device_params(unit, work.first);
        ZR_TRY(update_piece(state, &work));
    }
    return ZR_OK;
}

/* ---- all ---- */

zr_unit_t *const *zr_state_order(const zr_state_t *state, size_t *n_units_p) {
    bool is_of_reductions = zr_base_updates_in_backward(state->base);
    *n_units_p = is_of_reductions ? state->grads->n_reduced : state->model->n_units;
    return is_of_reductions ? state->grads->reduced : state->model->units;
}

/* What moved since the last update is not of one, but for writes of it that ended later. */
static void count_from_now(zr_state_t *state) {
    const zr_store_count_t put = state->before.count[ZR_STORE_PUT];
    zr_store_account_statistics(state->store, state->extents.account, &state->before);
    if (state->writes_behind)
        state->before.count[ZR_STORE_PUT] = put;
    state->writes_behind = false;
}

zr_status_t zr_state_read_ahead(zr_state_t *state, bool in_backward) {
    size_t n_units;
    zr_unit_t *const *units = zr_state_order(state, &n_units);
    if (!in_backward)
        ZR_TRY(zr_grads_drive_begin_update(&state->grads->drive, units, n_units));
    if (state->swap == NULL)
        return ZR_OK;
    count_from_now(state);
    zr_swap_pass_t pass = state->choice.is_on_device ? ZR_SWAP_UPDATE : ZR_SWAP_SLICES;
    ZR_TRY(zr_swap_begin(state->swap, pass, state->items, state->n_items));
    return in_backward ? zr_swap_expect_pauses(state->swap) : ZR_OK;
}

zr_status_t zr_state_skip_update(zr_state_t *state) {
    ZR_TRY(zr_grads_drive_end_update(&state->grads->drive));
    return state->swap == NULL ? ZR_OK : zr_swap_end(state->swap);
}

zr_status_t zr_state_begin_update(zr_state_t *state) {
    ZR_TRY(zr_base_begin_updates(state->base));
    if (state->n_lowered == 0)
        return ZR_OK;
    state->begin_seconds = zr_base_now(state->base);
    state->n_updated = state->n_brought = state->next_lowered = 0;
    state->end_lowered = zr_base_updates_in_backward(state->base) ? 0 : state->n_lowered;
    if (!state->copies->are_needed)
        return ZR_OK;
    /* The host has waited for the norm, and with it for all that compute, transfer and down had to
     * do: nothing that is queued for the update has anything to wait for. */
    return queue_grads(state);
}

/* Since it was counted before, or since reading began. */
static void count_update(zr_state_t *state) {
    zr_store_statistics_t now;
    zr_store_account_statistics(state->store, state->extents.account, &now);
    for (int d = 0; d < ZR_N_STORE_DIRECTIONS; d++) {
        zr_store_count_t moved = zr_store_count_between(&state->before.count[d], &now.count[d]);
        zr_store_count_add(&state->update_count[d], &moved);
        state->update_wait_seconds[d] += now.wait_seconds[d] - state->before.wait_seconds[d];
    }
    state->before = now;
}

zr_status_t zr_state_settle(zr_state_t *state) {
    if (!state->writes_behind)
        return ZR_OK;
    state->writes_behind = false;
    ZR_TRY(zr_swap_settle(state->swap));
    count_update(state);
    return ZR_OK;
}

zr_status_t zr_state_update_in_backward(zr_state_t *state, zr_unit_t *unit,
                                        const zr_state_update_t *update) {
    double begin = zr_base_now(state->base);
    ZR_TRY(zr_stream_wait(state->base->update, unit->grads_kept));
    ZR_TRY(zr_state_update_unit(state, unit, update));
    state->n_early += state->first_lowered[unit->index + 1] - state->first_lowered[unit->index];
    state->begin_seconds = zr_base_now(state->base); /* of what is left to the end */
    state->update_seconds += state->begin_seconds - begin;
    if (state->swap != NULL)
        count_update(state);
    return ZR_OK;
}

zr_status_t zr_state_order_params(zr_state_t *state, zr_stream_t *later) {
    if (!state->copies->are_needed || state->choice.is_on_device)
        return ZR_OK;
    ZR_TRY(zr_event_record(state->params_up, state->copies->up));
    return zr_stream_wait(later, state->params_up);
}

zr_status_t zr_state_end_update(zr_state_t *state) {
    ZR_TRY(zr_base_end_updates(state->base, state->base->compute));
    if (state->n_lowered == 0)
        return ZR_OK;
    ZR_TRY(zr_grads_drive_end_update(&state->grads->drive));
    if (state->swap != NULL)
        ZR_TRY(zr_swap_end(state->swap));
    if (state->store != NULL)
        count_update(state);
    state->writes_behind = state->swap != NULL && zr_base_updates_in_backward(state->base);
    state->update_seconds += zr_base_now(state->base) - state->begin_seconds;
    if (state->choice.is_on_device)
        return zr_copies_order_down(state->copies, state->base->compute);
    return zr_state_order_params(state, state->base->compute);
}
