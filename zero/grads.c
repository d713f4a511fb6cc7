/*
 * Summed gradients: see grads.h.
 *
 * A shard whose parts live in different places is summed on the device, in its own slice of the
 * full gradients: what earlier micro-batches left is added to it there, part by part, its norm is
 * taken, and the parts go where they are kept. On a device whose memory the CPU cannot touch that
 * happens on the stream that brings gradients down, beside the next collectives.
 *
 * Where there are several groups of ranks (sharding.h) a shard meets those of the other groups once
 * per step, when it holds its own group's sum of all micro-batches.
 */
#include "zero/grads.h"

#include <stdlib.h>

#include "zero/runtime_internal.h"

/* ---- where ----------------------------------------------------------------------------------- */

static zr_grads_place_t *place_of(const zr_runtime_t *runtime, const zr_piece_t *piece) {
    return &runtime->grads_places[piece - runtime->state.placement.pieces];
}

bool zr_grads_wait_below(const zr_runtime_t *runtime, const zr_piece_t *piece) {
    return runtime->grads_places != NULL && place_of(runtime, piece)->is_below;
}

/* Of pieces whose state is not on the device, evenly over their order. */
zr_status_t zr_grads_place(zr_runtime_t *runtime) {
    const zr_placement_t *placement = &runtime->state.placement;
    double ratio = runtime->config.offload_optimizer.gradients_ratio;
    size_t n_lowered = 0, n_below = 0; /* elements */
    if (!zr_rt_offloads_grads(runtime))
        return ZR_OK;
    runtime->grads_places = calloc(placement->n_pieces + 1, sizeof(*runtime->grads_places));
    if (runtime->grads_places == NULL)
        return zr_fail(&runtime->log, ZR_ERR_MEMORY, "the system has no memory for %s",
                       zr_count_text(placement->n_pieces, "piece").text);
    for (size_t unit = 0; unit < placement->n_tensors; unit++) {
        size_t first[2] = {0, 0};
        for (size_t i = placement->first_piece[unit]; i < placement->first_piece[unit + 1]; i++) {
            const zr_piece_t *piece = &placement->pieces[i];
            zr_grads_place_t *place = &runtime->grads_places[i];
            bool is_lowered = piece->tier != ZR_TIER_DEVICE;
            n_lowered += is_lowered ? piece->n_elems : 0;
            place->is_below = is_lowered && (double)n_below < ratio * (double)n_lowered;
            place->first = first[place->is_below];
            first[place->is_below] += piece->n_elems;
            n_below += place->is_below ? piece->n_elems : 0;
            runtime->n_grads_below += place->is_below;
        }
    }
    return ZR_OK;
}

/* Of a unit's shard. */
static size_t elems_below(const zr_unit_t *unit) {
    const zr_runtime_t *runtime = unit->runtime;
    const zr_placement_t *placement = &runtime->state.placement;
    size_t n = 0;
    for (size_t i = placement->first_piece[unit->index];
         i < placement->first_piece[unit->index + 1]; i++)
        n += zr_grads_wait_below(runtime, &placement->pieces[i]) ? placement->pieces[i].n_elems : 0;
    return n;
}

void *zr_grads_of_piece(const zr_unit_t *unit, const zr_piece_t *piece) {
    const zr_runtime_t *runtime = unit->runtime;
    if (unit->grads_are_split) {
        const zr_grads_place_t *place = place_of(runtime, piece);
        return zr_rt_at(runtime, place->is_below ? unit->grad_host : unit->grad_shard,
                        place->first);
    }
    if (runtime->config.stage != 0 && unit->grad_shard != NULL)
        return zr_rt_at(runtime, unit->grad_shard, piece->first);
    return zr_rt_at(runtime, unit->grad_full, zr_rt_state_range(unit).first + piece->first);
}

static zr_status_t allocate(zr_unit_t *unit, zr_tier_t tier, size_t n_elems, void **pointer_p) {
    zr_allocation_request_t request = {.size_bytes = zr_rt_bytes(unit->runtime, n_elems),
                                       .tier = tier,
                                       .tag = ZR_TAG_GRADIENTS,
                                       .lifetime = ZR_LIFETIME_PERSISTENT,
                                       .name = unit->grads_tensor};
    return n_elems == 0 ? ZR_OK : zr_allocate(unit->runtime->allocator, &request, pointer_p);
}

static zr_status_t allocate_full(zr_unit_t *unit) {
    zr_runtime_t *runtime = unit->runtime;
    size_t n_elems = unit->flat[FLAT_TRAINABLE].padded_elems;
    ZR_TRY(allocate(unit, ZR_TIER_DEVICE, n_elems, &unit->grad_full));
    /* Gaps and padding are never written again; they must not disturb the norm. */
    return zr_kernel_fill(runtime->compute, unit->grad_full, runtime->config.dtype, n_elems, 0.0f);
}

static zr_status_t allocate_shard(zr_unit_t *unit) {
    const zr_runtime_t *runtime = unit->runtime;
    size_t shard_elems = unit->flat[FLAT_TRAINABLE].shard_elems;
    size_t below_elems = elems_below(unit);
    if (below_elems == 0)
        return allocate(unit, ZR_TIER_DEVICE, shard_elems, &unit->grad_shard);
    if (below_elems == shard_elems && !runtime->state.has_copies)
        return allocate(unit, ZR_TIER_HOST, shard_elems, &unit->grad_shard);
    unit->grads_are_split = true;
    ZR_TRY(allocate(unit, ZR_TIER_DEVICE, shard_elems - below_elems, &unit->grad_shard));
    return allocate(unit, ZR_TIER_HOST, below_elems, &unit->grad_host);
}

zr_status_t zr_grads_allocate(zr_unit_t *unit) {
    if (zr_rt_keeps_full_grads(unit->runtime))
        ZR_TRY(allocate_full(unit));
    return zr_rt_keeps_grad_shard(unit->runtime) ? allocate_shard(unit) : ZR_OK;
}

/* ---- sums over the ranks --------------------------------------------------------------------- */

static zr_message_t message_of(const zr_unit_t *unit) {
    return (zr_message_t){unit->grads_tensor, unit->runtime->config.dtype, ZR_TRAFFIC_MODEL};
}

/* This rank's slice of the full gradients. */
static void *own_slice(const zr_unit_t *unit) {
    const zr_runtime_t *runtime = unit->runtime;
    return zr_rt_at(runtime, unit->grad_full,
                    zr_rt_own_first(runtime, &unit->flat[FLAT_TRAINABLE]));
}

static zr_status_t reduce_scatter(zr_unit_t *unit, void *target) {
    zr_runtime_t *runtime = unit->runtime;
    zr_message_t message = message_of(unit);
    return zr_comm_reduce_scatter(runtime->sharding.group, &message, unit->grad_full, target,
                                  unit->flat[FLAT_TRAINABLE].shard_elems, runtime->transfer);
}

/* Add up what the groups have summed for a shard. In the last micro-batch, so once per step. */
static zr_status_t add_replicas(zr_unit_t *unit, void *shard) {
    zr_runtime_t *runtime = unit->runtime;
    zr_message_t message = message_of(unit);
    if (runtime->sharding.replicas == NULL || !zr_rt_is_last_micro_batch(runtime))
        return ZR_OK;
    return zr_comm_all_reduce(runtime->sharding.replicas, &message, shard,
                              unit->flat[FLAT_TRAINABLE].shard_elems, runtime->transfer);
}

/* Stage 0: the shards together are the full gradients. */
static zr_status_t gather_grads(zr_unit_t *unit, const void *shard) {
    zr_runtime_t *runtime = unit->runtime;
    zr_message_t message = message_of(unit);
    return zr_comm_all_gather(runtime->sharding.group, &message, shard, unit->grad_full,
                              unit->flat[FLAT_TRAINABLE].shard_elems, runtime->transfer);
}

/* Stages 0 and 1, once per step, in place: the sum of everything, or of this rank's slice. */
static zr_status_t reduce_in_place(zr_unit_t *unit) {
    zr_runtime_t *runtime = unit->runtime;
    zr_message_t message = message_of(unit);
    bool is_one_group = runtime->sharding.replicas == NULL;
    if (runtime->config.stage == 0 && is_one_group)
        return zr_comm_all_reduce(runtime->sharding.group, &message, unit->grad_full,
                                  unit->flat[FLAT_TRAINABLE].padded_elems, runtime->transfer);
    ZR_TRY(reduce_scatter(unit, own_slice(unit)));
    ZR_TRY(add_replicas(unit, own_slice(unit)));
    return runtime->config.stage == 0 ? gather_grads(unit, own_slice(unit)) : ZR_OK;
}

/* In every micro-batch: to the shard, or in place, which nobody needs after, and then added. */
static zr_status_t reduce_to_shard(zr_unit_t *unit) {
    zr_runtime_t *runtime = unit->runtime;
    zr_dtype_t dtype = runtime->config.dtype;
    bool is_first = runtime->n_begins == 1;
    ZR_TRY(reduce_scatter(unit, is_first ? unit->grad_shard : own_slice(unit)));
    if (!is_first)
        ZR_TRY(zr_kernel_add(runtime->transfer, unit->grad_shard, dtype, own_slice(unit), dtype,
                             unit->flat[FLAT_TRAINABLE].shard_elems));
    return add_replicas(unit, unit->grad_shard);
}

/* ---- a shard in pieces ----------------------------------------------------------------------- */

/* Where work on pieces is queued. */
static zr_stream_t *pieces_stream(const zr_runtime_t *runtime) {
    return runtime->state.has_copies ? runtime->state.down : runtime->transfer;
}

/* A piece of the shard in this rank's slice of the full gradients. */
static void *piece_in_slice(const zr_unit_t *unit, const zr_piece_t *piece) {
    return zr_rt_at(unit->runtime, own_slice(unit), piece->first);
}

/* Add what earlier micro-batches left to this one's sum: the same as adding this one to it. */
static zr_status_t add_kept(zr_unit_t *unit, const zr_piece_t *piece, void *landing) {
    zr_runtime_t *runtime = unit->runtime;
    zr_stream_t *stream = pieces_stream(runtime);
    zr_dtype_t dtype = runtime->config.dtype;
    const void *kept = zr_grads_of_piece(unit, piece);
    size_t size_bytes = zr_rt_bytes(runtime, piece->n_elems);
    if (landing != NULL && zr_grads_wait_below(runtime, piece)) {
        ZR_TRY(zr_copy_async(stream, landing, kept, size_bytes, ZR_COPY_HOST_TO_DEVICE));
        runtime->state.copied_up_bytes += size_bytes;
        kept = landing;
    }
    return zr_kernel_add(stream, piece_in_slice(unit, piece), dtype, kept, dtype, piece->n_elems);
}

static zr_status_t keep(zr_unit_t *unit, const zr_piece_t *piece) {
    zr_runtime_t *runtime = unit->runtime;
    size_t size_bytes = zr_rt_bytes(runtime, piece->n_elems);
    bool goes_down = zr_grads_wait_below(runtime, piece);
    if (goes_down && runtime->state.has_copies)
        runtime->state.copied_down_bytes += size_bytes;
    return zr_copy_async(pieces_stream(runtime), zr_grads_of_piece(unit, piece),
                         piece_in_slice(unit, piece), size_bytes,
                         goes_down ? ZR_COPY_DEVICE_TO_HOST : ZR_COPY_DEVICE_TO_DEVICE);
}

static zr_status_t add_all_kept(zr_unit_t *unit) {
    zr_runtime_t *runtime = unit->runtime;
    const zr_placement_t *placement = &runtime->state.placement;
    zr_stream_t *stream = pieces_stream(runtime);
    size_t end = placement->first_piece[unit->index + 1], largest = 0;
    for (size_t i = placement->first_piece[unit->index]; i < end; i++)
        if (zr_grads_wait_below(runtime, &placement->pieces[i]) &&
            placement->pieces[i].n_elems > largest)
            largest = placement->pieces[i].n_elems;
    void *landing = NULL;
    if (runtime->state.has_copies)
        ZR_TRY(zr_rt_allocate(runtime, zr_rt_bytes(runtime, largest), ZR_TAG_GRADIENT_BUCKETS,
                              ZR_LIFETIME_COLLECTIVE, unit->grads_tensor, stream, &landing));
    zr_status_t status = ZR_OK;
    for (size_t i = placement->first_piece[unit->index]; i < end && status == ZR_OK; i++)
        status = add_kept(unit, &placement->pieces[i], landing);
    zr_free(runtime->allocator, &landing, stream);
    return status;
}

static zr_status_t queue_norm(zr_unit_t *unit, zr_stream_t *stream, const void *grads) {
    zr_runtime_t *runtime = unit->runtime;
    double *own = runtime->norms_device + (size_t)runtime->sharding.rank * runtime->n_units;
    return zr_kernel_sum_of_squares(stream, grads, runtime->config.dtype,
                                    unit->flat[FLAT_TRAINABLE].shard_elems, own + unit->index,
                                    runtime->norm_workspace);
}

static zr_status_t order_pieces(zr_runtime_t *runtime, zr_stream_t *earlier, zr_stream_t *later) {
    if (earlier == later)
        return ZR_OK;
    ZR_TRY(zr_event_record(runtime->state.grads_reduced, earlier));
    return zr_stream_wait(later, runtime->state.grads_reduced);
}

static zr_status_t reduce_to_pieces(zr_unit_t *unit) {
    zr_runtime_t *runtime = unit->runtime;
    const zr_placement_t *placement = &runtime->state.placement;
    zr_stream_t *stream = pieces_stream(runtime);
    ZR_TRY(reduce_scatter(unit, own_slice(unit)));
    ZR_TRY(order_pieces(runtime, runtime->transfer, stream));
    if (runtime->n_begins > 1)
        ZR_TRY(add_all_kept(unit));
    if (runtime->sharding.replicas != NULL && zr_rt_is_last_micro_batch(runtime)) {
        ZR_TRY(order_pieces(runtime, stream, runtime->transfer));
        ZR_TRY(add_replicas(unit, own_slice(unit)));
        ZR_TRY(order_pieces(runtime, runtime->transfer, stream));
    }
    if (zr_rt_is_last_micro_batch(runtime))
        ZR_TRY(queue_norm(unit, stream, own_slice(unit)));
    size_t end = placement->first_piece[unit->index + 1];
    for (size_t i = placement->first_piece[unit->index]; i < end; i++)
        ZR_TRY(keep(unit, &placement->pieces[i]));
    return ZR_OK;
}

/* ---- a unit ---------------------------------------------------------------------------------- */

static zr_status_t reduce_every(zr_unit_t *unit) {
    const zr_runtime_t *runtime = unit->runtime;
    if (unit->grads_are_split)
        return reduce_to_pieces(unit);
    ZR_TRY(reduce_to_shard(unit));
    if (runtime->config.stage != 0 || !zr_rt_is_last_micro_batch(runtime))
        return ZR_OK;
    return gather_grads(unit, unit->grad_shard);
}

zr_status_t zr_grads_reduce(zr_unit_t *unit) {
    zr_runtime_t *runtime = unit->runtime;
    ZR_TRY(zr_rt_order(runtime, runtime->compute, runtime->transfer));
    ZR_TRY(zr_rt_reduces_every_micro_batch(runtime) ? reduce_every(unit) : reduce_in_place(unit));
    zr_stream_t *last = unit->grads_are_split ? pieces_stream(runtime) : runtime->transfer;
    if (!zr_rt_keeps_full_grads(runtime))
        zr_free(runtime->allocator, &unit->grad_full, last);
    return unit->grads_kept != NULL ? zr_event_record(unit->grads_kept, last) : ZR_OK;
}

zr_status_t zr_grads_queue_norm(zr_unit_t *unit) {
    zr_runtime_t *runtime = unit->runtime;
    if (unit->grads_are_split)
        return ZR_OK; /* when it was reduced, and all of it was on the device */
    if (unit->grad_shard != NULL)
        return queue_norm(unit, runtime->compute, unit->grad_shard);
    return queue_norm(unit, runtime->compute, unit->grad_full != NULL ? own_slice(unit) : NULL);
}

zr_status_t zr_grads_order_before_compute(zr_runtime_t *runtime) {
    ZR_TRY(zr_rt_order(runtime, runtime->transfer, runtime->compute));
    return zr_state_order_down(runtime);
}
