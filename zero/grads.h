/*
 * Summed gradients: how a micro-batch's meet those of the other ranks, and where what this rank
 * keeps of them waits for the update. Internal to zero/.
 *
 * A stage that keeps full gradients (0 and 1) has them on the device. Of a shard, what is updated
 * on the device stays there, and what is updated on the host, because its state is offloaded, waits
 * in host memory, if config says so (zr_rt_offloads_grads): the device then holds one bucket at a
 * time. Whatever is kept where, the same sums are made in the same order.
 */
#ifndef ZR_ZERO_GRADS_H
#define ZR_ZERO_GRADS_H

#include "offload/placement.h"
#include "zero/runtime.h"

/** Allocate what a unit keeps between micro-batches. After its state is placed. */
ZR_NODISCARD zr_status_t zr_grads_allocate(zr_unit_t *unit);

/**
 * Reduce a unit's full gradients, which are complete and on the compute stream, as far as stage
 * and micro-batch ask for it, and give them up where the stage keeps none.
 */
ZR_NODISCARD zr_status_t zr_grads_reduce(zr_unit_t *unit);

/** Queue this rank's part of a unit's norm on the compute stream, or find it queued. */
ZR_NODISCARD zr_status_t zr_grads_queue_norm(zr_unit_t *unit);

/** Work queued on compute from now on finds what was kept so far. */
ZR_NODISCARD zr_status_t zr_grads_order_before_compute(zr_runtime_t *runtime);

/** The gradients of a piece of state, [n_elems]: on the device; or, with zr_rt_offloads_grads, in
 * host memory where the piece is not on the device. */
void *zr_grads_of_piece(const zr_unit_t *unit, const zr_piece_t *piece);

#endif
