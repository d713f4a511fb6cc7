/*
 * Summed gradients: how a micro-batch's meet those of the other ranks, and where what this rank
 * keeps of them waits for the update. Internal to zero/.
 *
 * A stage that keeps full gradients (0 and 1) has them on the device. Of a shard, what is updated
 * on the device stays there, and what is updated on the host, because its state is offloaded, waits
 * in host memory, if config says so (zr_rt_offloads_grads), or as large a fraction of it as config
 * says: the device then holds one bucket at a time, and the rest. Whatever is kept where, the same
 * sums are made in the same order.
 */
#pragma once

#include "offload/placement.h"
#include "zero/runtime.h"

/** Where the gradients of a piece of state wait for its update. */
typedef struct zr_grads_place {
    bool is_below; /* in host memory, else on the device */
    size_t first;  /* of its unit's elements that wait there */
} zr_grads_place_t;

/** Decide it for all pieces, once they are placed. */
ZR_NODISCARD zr_status_t zr_grads_place(zr_runtime_t *runtime);

/** Whether a piece's gradients wait in host memory. */
bool zr_grads_wait_below(const zr_runtime_t *runtime, const zr_piece_t *piece);

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

/** The gradients of a piece of state, [n_elems]: where zr_grads_wait_below says. */
void *zr_grads_of_piece(const zr_unit_t *unit, const zr_piece_t *piece);
