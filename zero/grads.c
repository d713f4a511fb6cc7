/*
 * Summed gradients: see grads_internal.h.
 *
 * A shard whose parts live in different places is summed on the device, in its own slice of the
 * full gradients: what earlier micro-batches left is added to it there, part by part, its norm is
 * taken, and the parts go where they are kept. On a device whose memory the CPU cannot touch that
 * happens on the stream that brings gradients down, beside the next collectives.
 *
 * Where there are several groups of ranks (sharding_internal.h) a shard meets those of the other
 * groups once per step, when it holds its own group's sum of all micro-batches.
 */
#include "zero/grads_internal.h"

#include <math.h>

/* ---- where ----------------------------------------------------------------------------------- */

static const zr_piece_t *place_of(const zr_grads_t *grads, const zr_piece_t *piece) {
    return &grads->placement.pieces[piece - grads->state->pieces];
}

zr_tier_t zr_grads_tier(const zr_grads_t *grads, const zr_piece_t *piece) {
    bool is_on_device =
        grads->placement.n_pieces == 0 || grads->model->units[piece->tensor]->grads_in_bucket;
    return is_on_device ? ZR_TIER_DEVICE : place_of(grads, piece)->tier;
}

bool zr_grads_leaves_out(const zr_grads_t *grads, size_t i, size_t end, uint32_t *seen) {
    const zr_piece_t *piece = &grads->state->pieces[i];
    if (!grads->base->does_alike_once)
        return false;
    uint32_t kind = UINT32_C(1) << (piece->tier * ZR_N_TIERS + zr_grads_tier(grads, piece));
    bool is_new = (*seen & kind) == 0;
    *seen |= kind;
    return !is_new && i + 1 != end;
}

zr_status_t zr_grads_place(zr_grads_t *grads, zr_nvme_t *nvme) {
    const zr_base_t *base = grads->base;
    const zr_units_t *model = grads->model;
    const zr_offload_options_t *offload = &base->config.offload_optimizer;
    if (!zr_base_offloads_grads(base))
        return ZR_OK;
    zr_placement_options_t options = {.log = base->log,
                                      .heap = base->heap,
                                      .encodings = {zr_base_encoding(base)},
                                      .n_arrays = 1,
                                      .group_elems = grads->state->group_elems,
                                      .ratio = offload->gradients_ratio,
                                      .of = grads->state};
    zr_base_place_below(offload->gradients, offload->gradients_in_cpu_elems, &options);
    size_t *elems = zr_heap_alloc(base->heap, model->n_units, sizeof(*elems));
    if (elems == NULL)
        return zr_base_no_memory(base, zr_count_text(model->n_units, "unit").text);
    for (size_t i = 0; i < model->n_units; i++)
        elems[i] = model->units[i]->flat[FLAT_TRAINABLE].shard_elems;
    zr_status_t status = zr_placement_make(&options, elems, model->n_units, &grads->placement);
    zr_heap_free(base->heap, elems);
    ZR_TRY(status);
    grads->n_below = grads->placement.n_pieces - grads->placement.n_pieces_in[ZR_TIER_DEVICE];
    return zr_grads_drive_declare(&grads->drive, model, nvme);
}

void *zr_grads_of_piece(const zr_grads_t *grads, const zr_unit_t *unit, const zr_piece_t *piece) {
    const zr_base_t *base = grads->base;
    if (unit->grads_are_split && !unit->grads_in_bucket) {
        const zr_piece_t *place = place_of(grads, piece);
        void *in_tier[ZR_N_TIERS] = {
            [ZR_TIER_DEVICE] = unit->grad_shard, [ZR_TIER_HOST] = unit->grad_host};
        return place->tier == ZR_TIER_NVME ? NULL
                                           : (char *)in_tier[place->tier] + place->offset_bytes;
    }
    if (base->config.stage != 0 && unit->grad_shard != NULL && !unit->grads_in_bucket)
        return zr_base_at(base, unit->grad_shard, piece->first);
    return zr_base_at(base, unit->grad_full, zr_unit_state_range(unit).first + piece->first);
}

zr_status_t zr_grads_bring(zr_grads_t *grads, const zr_piece_t *piece, void **grads_p) {
    return zr_grads_drive_get(&grads->drive, place_of(grads, piece), grads_p);
}

static zr_status_t allocate(zr_grads_t *grads, const zr_unit_t *unit, zr_tier_t tier,
                            size_t size_bytes, void **pointer_p) {
    zr_allocation_request_t request = {.size_bytes = size_bytes,
                                       .tier = tier,
                                       .tag = ZR_TAG_GRADIENTS,
                                       .lifetime = ZR_LIFETIME_PERSISTENT,
                                       .name = unit->grads_tensor};
    grads->bytes[tier] += size_bytes;
    return size_bytes == 0 ? ZR_OK : zr_allocate(unit->base->allocator, &request, pointer_p);
}

static zr_status_t forget_errors(const zr_unit_t *unit, zr_stream_t *stream) {
    const zr_feedback_t *errors = &unit->grad_errors;
    if (errors->part == NULL)
        return ZR_OK;
    size_t n_elems = unit->flat[FLAT_TRAINABLE].shard_elems;
    zr_encoded_t between =
        zr_encoded_grads(unit->base, unit->base->sharding.replicas, unit->grads_tensor);
    ZR_TRY(zr_kernel_fill(stream, errors->part, ZR_DTYPE_F32, n_elems, 0.0f));
    return zr_kernel_fill(stream, errors->sum, ZR_DTYPE_F32, zr_encoded_slice(&between, n_elems),
                          0.0f);
}

zr_status_t zr_grads_forget_errors(zr_grads_t *grads) {
    for (size_t i = 0; i < grads->model->n_units; i++)
        ZR_TRY(forget_errors(grads->model->units[i], grads->base->transfer));
    return ZR_OK;
}

static zr_status_t allocate_full(zr_grads_t *grads, zr_unit_t *unit) {
    const zr_base_t *base = unit->base;
    size_t n_elems = unit->flat[FLAT_TRAINABLE].padded_elems;
    ZR_TRY(allocate(grads, unit, ZR_TIER_DEVICE, zr_base_bytes(base, n_elems), &unit->grad_full));
    /* Gaps and padding are never written again; they must not disturb the norm. */
    return zr_kernel_fill(base->compute, unit->grad_full, base->config.dtype, n_elems, 0.0f);
}

static zr_status_t allocate_shard(zr_grads_t *grads, zr_unit_t *unit) {
    size_t all = zr_base_bytes(unit->base, unit->flat[FLAT_TRAINABLE].shard_elems);
    const size_t *bytes = grads->n_below > 0 ? grads->placement.tensor_bytes[unit->index] : NULL;
    if (bytes == NULL || bytes[ZR_TIER_DEVICE] == all)
        return allocate(grads, unit, ZR_TIER_DEVICE, all, &unit->grad_shard);
    if (bytes[ZR_TIER_HOST] == all && !grads->copies->are_needed)
        return allocate(grads, unit, ZR_TIER_HOST, all, &unit->grad_shard);
    unit->grads_are_split = true;
    grads->bytes[ZR_TIER_NVME] += bytes[ZR_TIER_NVME];
    ZR_TRY(allocate(grads, unit, ZR_TIER_DEVICE, bytes[ZR_TIER_DEVICE], &unit->grad_shard));
    return allocate(grads, unit, ZR_TIER_HOST, bytes[ZR_TIER_HOST], &unit->grad_host);
}

static zr_status_t allocate_errors(zr_grads_t *grads, zr_unit_t *unit) {
    const zr_base_t *base = unit->base;
    size_t n_elems = unit->flat[FLAT_TRAINABLE].shard_elems;
    if (base->sharding.replicas == NULL || !base->config.error_feedback)
        return ZR_OK;
    zr_encoded_t between = zr_encoded_grads(base, base->sharding.replicas, unit->grads_tensor);
    if (between.encoding == NULL)
        return ZR_OK;
    size_t slice = zr_encoded_slice(&between, n_elems);
    ZR_TRY(allocate(grads, unit, ZR_TIER_DEVICE, n_elems * sizeof(float),
                    (void **)&unit->grad_errors.part));
    ZR_TRY(allocate(grads, unit, ZR_TIER_DEVICE, slice * sizeof(float),
                    (void **)&unit->grad_errors.sum));
    return forget_errors(unit, base->compute);
}

zr_status_t zr_grads_allocate(zr_grads_t *grads, zr_unit_t *unit) {
    if (zr_base_keeps_full_grads(unit->base))
        ZR_TRY(allocate_full(grads, unit));
    ZR_TRY(allocate_errors(grads, unit));
    bool is_kept = zr_base_reduces_every_micro_batch(unit->base) && zr_base_keeps_grads(unit->base);
    return is_kept ? allocate_shard(grads, unit) : ZR_OK;
}

/* ---- sums over the ranks --------------------------------------------------------------------- */

static zr_encoded_t in_group(const zr_unit_t *unit) {
    return zr_encoded_grads(unit->base, unit->base->sharding.group, unit->grads_tensor);
}

/* This rank's slice of the full gradients. */
static void *own_slice(const zr_unit_t *unit) {
    return zr_base_at(unit->base, unit->grad_full, zr_unit_own_first(unit, FLAT_TRAINABLE));
}

static zr_status_t reduce_scatter(zr_unit_t *unit, void *target) {
    zr_encoded_t encoded = in_group(unit);
    return zr_encoded_reduce_scatter(&encoded, unit->grad_full, target,
                                     unit->flat[FLAT_TRAINABLE].shard_elems);
}

/* Add up what the groups have summed for a shard. At the end of the sum, so once per step. */
static zr_status_t add_replicas(zr_unit_t *unit, void *shard) {
    zr_comm_t *replicas = unit->base->sharding.replicas;
    if (!zr_base_adds_groups(unit->base) || !zr_unit_ends_sum(unit))
        return ZR_OK;
    zr_encoded_t encoded = zr_encoded_grads(unit->base, replicas, unit->grads_tensor);
    return zr_encoded_all_reduce(&encoded, shard, unit->flat[FLAT_TRAINABLE].shard_elems,
                                 &unit->grad_errors);
}

/* Stage 0: the shards together are the full gradients. */
static zr_status_t gather_grads(zr_unit_t *unit, const void *shard) {
    zr_encoded_t encoded = in_group(unit);
    return zr_encoded_all_gather(&encoded, shard, unit->grad_full,
                                 unit->flat[FLAT_TRAINABLE].shard_elems);
}

/* Stages 0 and 1, once per step, in place: the sum of everything, or of this rank's slice. */
static zr_status_t reduce_in_place(zr_unit_t *unit) {
    const zr_base_t *base = unit->base;
    zr_encoded_t encoded = in_group(unit);
    if (base->config.stage == 0 && base->sharding.replicas == NULL)
        return zr_encoded_all_reduce(&encoded, unit->grad_full,
                                     unit->flat[FLAT_TRAINABLE].padded_elems, &(zr_feedback_t){0});
    ZR_TRY(reduce_scatter(unit, own_slice(unit)));
    ZR_TRY(add_replicas(unit, own_slice(unit)));
    return base->config.stage == 0 ? gather_grads(unit, own_slice(unit)) : ZR_OK;
}

/* In every micro-batch: to the shard, or in place, which nobody needs after, and then added. */
static zr_status_t reduce_to_shard(zr_unit_t *unit) {
    const zr_base_t *base = unit->base;
    zr_dtype_t dtype = base->config.dtype;
    bool is_first = zr_unit_begins_sum(unit);
    ZR_TRY(reduce_scatter(unit, is_first ? unit->grad_shard : own_slice(unit)));
    if (!is_first)
        ZR_TRY(zr_kernel_add(base->transfer, unit->grad_shard, dtype, own_slice(unit), dtype,
                             unit->flat[FLAT_TRAINABLE].shard_elems));
    return add_replicas(unit, unit->grad_shard);
}

/* ---- a shard in pieces ----------------------------------------------------------------------- */

/* Where work on pieces is queued. */
static zr_stream_t *pieces_stream(const zr_grads_t *grads) {
    return grads->copies->are_needed ? grads->copies->down : grads->base->transfer;
}

/* A piece of the shard in this rank's slice of the full gradients. */
static void *piece_in_slice(const zr_unit_t *unit, const zr_piece_t *piece) {
    return zr_base_at(unit->base, own_slice(unit), piece->first);
}

/* Add what earlier micro-batches left to this one's sum: the same as adding this one to it. */
static zr_status_t add_kept(zr_grads_t *grads, zr_unit_t *unit, const zr_piece_t *piece,
                            void *landing) {
    const zr_base_t *base = grads->base;
    zr_stream_t *stream = pieces_stream(grads);
    zr_dtype_t dtype = base->config.dtype;
    zr_tier_t tier = zr_grads_tier(grads, piece);
    void *kept = zr_grads_of_piece(grads, unit, piece);
    size_t size_bytes = zr_base_bytes(base, piece->n_elems);
    if (tier == ZR_TIER_NVME)
        ZR_TRY(zr_grads_bring(grads, piece, &kept));
    if (landing != NULL && tier != ZR_TIER_DEVICE) {
        ZR_TRY(zr_copy_async(stream, landing, kept, size_bytes, ZR_COPY_HOST_TO_DEVICE));
        grads->copies->up_bytes += size_bytes;
        kept = landing;
    }
    ZR_TRY(zr_kernel_add(stream, piece_in_slice(unit, piece), dtype, kept, dtype, piece->n_elems));
    return tier == ZR_TIER_NVME ? zr_grads_drive_release(&grads->drive, stream) : ZR_OK;
}

static zr_status_t keep(zr_grads_t *grads, zr_unit_t *unit, const zr_piece_t *piece) {
    const zr_base_t *base = grads->base;
    size_t size_bytes = zr_base_bytes(base, piece->n_elems);
    zr_tier_t tier = zr_grads_tier(grads, piece);
    bool goes_down = tier != ZR_TIER_DEVICE;
    void *target = zr_grads_of_piece(grads, unit, piece);
    if (tier == ZR_TIER_NVME)
        ZR_TRY(zr_grads_drive_next(&grads->drive, place_of(grads, piece), &target));
    if (goes_down && grads->copies->are_needed)
        grads->copies->down_bytes += size_bytes;
    ZR_TRY(zr_copy_async(pieces_stream(grads), target, piece_in_slice(unit, piece), size_bytes,
                         goes_down ? ZR_COPY_DEVICE_TO_HOST : ZR_COPY_DEVICE_TO_DEVICE));
    return tier == ZR_TIER_NVME ? zr_grads_drive_put(&grads->drive, pieces_stream(grads)) : ZR_OK;
}

/* Elements of a unit's largest piece that is not on the device. */
static size_t largest_below(const zr_grads_t *grads, const zr_unit_t *unit) {
    const zr_placement_t *placement = &grads->placement;
    size_t largest = 0;
    for (size_t i = placement->first_piece[unit->index];
         i < placement->first_piece[unit->index + 1]; i++)
        if (placement->pieces[i].tier != ZR_TIER_DEVICE && placement->pieces[i].n_elems > largest)
            largest = placement->pieces[i].n_elems;
    return largest;
}

static zr_status_t add_all_kept(zr_grads_t *grads, zr_unit_t *unit) {
    const zr_base_t *base = grads->base;
    const zr_placement_t *state = grads->state;
    zr_stream_t *stream = pieces_stream(grads);
    size_t end = state->first_piece[unit->index + 1];
    void *landing = NULL;
    if (grads->copies->are_needed && grads->n_below > 0)
        ZR_TRY(zr_base_allocate(base, zr_base_bytes(base, largest_below(grads, unit)),
                                ZR_TAG_GRADIENT_BUCKETS, ZR_LIFETIME_COLLECTIVE, unit->grads_tensor,
                                stream, &landing));
    zr_status_t status = ZR_OK;
    uint32_t seen = 0;
    for (size_t i = state->first_piece[unit->index]; i < end && status == ZR_OK; i++)
        if (!zr_grads_leaves_out(grads, i, end, &seen))
            status = add_kept(grads, unit, &state->pieces[i], landing);
    zr_free(base->allocator, &landing, stream);
    return status;
}

static zr_status_t queue_norm(zr_grads_t *grads, const zr_unit_t *unit, zr_stream_t *stream,
                              const void *shard) {
    const zr_base_t *base = grads->base;
    double *own = grads->norms_device + (size_t)base->sharding.rank * grads->model->n_units;
    return zr_kernel_sum_of_squares(stream, shard, base->config.dtype,
                                    unit->flat[FLAT_TRAINABLE].shard_elems, own + unit->index,
                                    grads->norm_workspace);
}

static zr_status_t order_pieces(const zr_grads_t *grads, zr_stream_t *earlier, zr_stream_t *later) {
    if (earlier == later)
        return ZR_OK;
    ZR_TRY(zr_event_record(grads->copies->grads_reduced, earlier));
    return zr_stream_wait(later, grads->copies->grads_reduced);
}

/* What earlier reductions of this step have left: on the device, those since the last begin. */
static zr_status_t add_earlier(zr_grads_t *grads, zr_unit_t *unit) {
    zr_dtype_t dtype = unit->base->config.dtype;
    if (unit->grad_held != NULL)
        return zr_kernel_add(pieces_stream(grads), own_slice(unit), dtype, unit->grad_held, dtype,
                             unit->flat[FLAT_TRAINABLE].shard_elems);
    return zr_unit_begins_sum(unit) ? ZR_OK : add_all_kept(grads, unit);
}

/* The sum stays on the device for the unit's next reduction, which comes at once. */
static zr_status_t hold(zr_grads_t *grads, zr_unit_t *unit) {
    const zr_base_t *base = grads->base;
    zr_stream_t *stream = pieces_stream(grads);
    size_t size_bytes = zr_base_bytes(base, unit->flat[FLAT_TRAINABLE].shard_elems);
    if (unit->grad_held == NULL)
        ZR_TRY(zr_base_allocate(base, size_bytes, ZR_TAG_GRADIENT_BUCKETS, ZR_LIFETIME_UNIT,
                                unit->grads_tensor, stream, &unit->grad_held));
    return zr_copy_async(stream, unit->grad_held, own_slice(unit), size_bytes,
                         ZR_COPY_DEVICE_TO_DEVICE);
}

static zr_status_t reduce_to_pieces(zr_grads_t *grads, zr_unit_t *unit) {
    const zr_base_t *base = grads->base;
    const zr_placement_t *state = grads->state;
    zr_stream_t *stream = pieces_stream(grads);
    ZR_TRY(reduce_scatter(unit, own_slice(unit)));
    ZR_TRY(order_pieces(grads, base->transfer, stream));
    ZR_TRY(add_earlier(grads, unit));
    if (!zr_unit_ends_begin(unit))
        return hold(grads, unit);
    zr_free(base->allocator, &unit->grad_held, stream);
    if (zr_base_adds_groups(base) && zr_unit_ends_sum(unit)) {
        ZR_TRY(order_pieces(grads, stream, base->transfer));
        ZR_TRY(add_replicas(unit, own_slice(unit)));
        ZR_TRY(order_pieces(grads, base->transfer, stream));
    }
    if (zr_unit_ends_sum(unit))
        ZR_TRY(queue_norm(grads, unit, stream, own_slice(unit)));
    bool is_updated = zr_unit_ends_sum(unit) && zr_base_updates_in_backward(base);
    bool is_kept = !is_updated || zr_base_keeps_sums(base);
    size_t end = state->first_piece[unit->index + 1];
    uint32_t seen = 0;
    for (size_t i = state->first_piece[unit->index]; i < end && is_kept; i++)
        if (!zr_grads_leaves_out(grads, i, end, &seen))
            ZR_TRY(keep(grads, unit, &state->pieces[i]));
    unit->grads_in_bucket = is_updated;
    return ZR_OK;
}

/* ---- a unit ---------------------------------------------------------------------------------- */

static zr_status_t reduce_every(zr_grads_t *grads, zr_unit_t *unit) {
    const zr_base_t *base = grads->base;
    if (zr_grads_in_pieces(unit))
        return reduce_to_pieces(grads, unit);
    ZR_TRY(reduce_to_shard(unit));
    if (base->config.stage != 0 || !zr_unit_ends_sum(unit))
        return ZR_OK;
    return gather_grads(unit, unit->grad_shard);
}

zr_status_t zr_grads_reduce(zr_grads_t *grads, zr_unit_t *unit) {
    const zr_base_t *base = grads->base;
    if (zr_unit_ends_sum(unit))
        grads->reduced[grads->n_reduced++] = unit;
    ZR_TRY(zr_base_order(base, base->compute, base->transfer));
    ZR_TRY(zr_base_reduces_every_micro_batch(base) ? reduce_every(grads, unit)
                                                   : reduce_in_place(unit));
    zr_stream_t *last = zr_grads_in_pieces(unit) ? pieces_stream(grads) : base->transfer;
    if (!zr_base_keeps_full_grads(base) && !unit->grads_in_bucket)
        zr_free(base->allocator, &unit->grad_full, last);
    return unit->grads_kept != NULL ? zr_event_record(unit->grads_kept, last) : ZR_OK;
}

/* ---- the norm --------------------------------------------------------------------------------
 *
 * It has one fixed order at every stage: each rank squares and adds the slices that are its shards,
 * unit by unit (also at stage 0, where it holds everything), the ranks of a group exchange these
 * partial sums, and each adds them by rank, then unit, in double.
 */

zr_status_t zr_grads_create(zr_grads_t *grads) {
    const zr_base_t *base = grads->base;
    const zr_units_t *model = grads->model;
    size_t workspace_bytes = 0;
    for (size_t i = 0; i < model->n_units; i++) {
        size_t need =
            zr_sum_of_squares_workspace_bytes(model->units[i]->flat[FLAT_TRAINABLE].shard_elems);
        workspace_bytes = need > workspace_bytes ? need : workspace_bytes;
    }
    size_t n_norms = (size_t)base->sharding.n_shards * model->n_units;
    grads->norms_host = zr_heap_alloc(base->heap, n_norms, sizeof(double));
    grads->reduced = zr_heap_alloc(base->heap, model->n_units, sizeof(zr_unit_t *));
    if (grads->norms_host == NULL || grads->reduced == NULL)
        return zr_base_no_memory(base, "norms");
    ZR_TRY(zr_base_allocate(base, n_norms * sizeof(double), ZR_TAG_WORKSPACE,
                            ZR_LIFETIME_PERSISTENT, "norms", NULL, (void **)&grads->norms_device));
    return zr_base_allocate(base, workspace_bytes, ZR_TAG_WORKSPACE, ZR_LIFETIME_PERSISTENT,
                            "norm workspace", NULL, &grads->norm_workspace);
}

void zr_grads_destroy(zr_grads_t *grads) {
    zr_grads_drive_destroy(&grads->drive);
    zr_free(grads->base->allocator, (void **)&grads->norms_device, NULL);
    zr_free(grads->base->allocator, &grads->norm_workspace, NULL);
}

/* This rank's part of a unit's norm. */
static zr_status_t queue_unit_norm(zr_grads_t *grads, const zr_unit_t *unit) {
    if (zr_grads_in_pieces(unit) && unit->flat[FLAT_TRAINABLE].padded_elems != 0)
        return ZR_OK; /* when it was reduced, and all of it was on the device */
    const void *shard = unit->grad_shard;
    if (shard == NULL && unit->grad_full != NULL)
        shard = own_slice(unit);
    return queue_norm(grads, unit, grads->base->compute, shard);
}

zr_status_t zr_grads_norm(zr_grads_t *grads, double *norm_p) {
    const zr_base_t *base = grads->base;
    size_t n_units = grads->model->n_units, n_norms = (size_t)base->sharding.n_shards * n_units;
    double sum = 0, n_addends = zr_base_n_addends(base);
    ZR_TRY(zr_base_order(base, base->transfer, base->compute));
    ZR_TRY(zr_copies_order_down(grads->copies, base->compute));
    zr_base_trace(base, "norm", NULL, 0);
    for (size_t i = 0; i < n_units; i++)
        ZR_TRY(queue_unit_norm(grads, grads->model->units[i]));
    ZR_TRY(zr_base_gather_control(base, base->sharding.group, "gradient norm", ZR_DTYPE_F64,
                                  grads->norms_device, n_units));
    ZR_TRY(zr_copy_async(base->compute, grads->norms_host, grads->norms_device,
                         n_norms * sizeof(double), ZR_COPY_DEVICE_TO_HOST));
    ZR_TRY(zr_stream_synchronize(base->compute));
    ZR_TRY(zr_sharding_check(&base->sharding));
    for (size_t i = 0; i < n_norms; i++)
        sum += grads->norms_host[i];
    *norm_p = sqrt(sum) / n_addends;
    return ZR_OK;
}

void zr_grads_report(const zr_grads_t *grads, zr_grads_report_t *report_p) {
    zr_grads_report_t report = {.has_store = false};
    for (int tier = 0; tier < ZR_N_TIERS; tier++)
        report.bytes[tier] = grads->bytes[tier];
    zr_grads_drive_report(&grads->drive, &report);
    *report_p = report;
}
