/*
 * Summed gradients: how a micro-batch's meet those of the other ranks, and where what this rank
 * keeps of them waits for the update. Internal to zero/.
 *
 * A stage that keeps full gradients (0 and 1) has them on the device. Of a shard, what is updated
 * on the device stays there, and what is updated on the host, because its state is offloaded, waits
 * in host memory, if config says so (zr_base_offloads_grads), or as large a fraction of it as
 * config says: the device then holds one bucket at a time, and the rest. Whatever is kept where,
 * the same sums are made in the same order.
 */
#pragma once

#include "offload/placement_internal.h"
#include "zero/copies_internal.h"
#include "zero/units_internal.h"

/** Where the gradients of a piece of state wait for its update. */
typedef struct zr_grads_place {
    bool is_below; /* in host memory, else on the device */
    size_t first;  /* of its unit's elements that wait there */
} zr_grads_place_t;

typedef struct zr_grads {
    const zr_base_t *base;
    const zr_units_t *model;
    const zr_placement_t *placement; /* of the state */
    zr_copies_t *copies;
    zr_grads_place_t *places; /* [pieces of state]; NULL: all on the device */
    size_t n_below;           /* pieces whose gradients wait in host memory */
    zr_unit_t **reduced;      /* [n_reduced] in the last micro-batch, in order; of [n_units] */
    size_t n_reduced;
    double *norms_device; /* [n_shards][n_units]: partial sums of squares */
    double *norms_host;
    void *norm_workspace;
} zr_grads_t;

/** Make what norms need. After the layout. */
ZR_NODISCARD zr_status_t zr_grads_create(zr_grads_t *grads);
void zr_grads_destroy(zr_grads_t *grads);

/** Decide where the gradients of all pieces wait, once they are placed. */
ZR_NODISCARD zr_status_t zr_grads_place(zr_grads_t *grads);

/** Whether a piece's gradients wait in host memory. */
bool zr_grads_wait_below(const zr_grads_t *grads, const zr_piece_t *piece);

/** Allocate what a unit keeps between micro-batches. After its state is placed. */
ZR_NODISCARD zr_status_t zr_grads_allocate(const zr_grads_t *grads, zr_unit_t *unit);

/**
 * Reduce a unit's full gradients, which are complete and on the compute stream, as far as stage
 * and micro-batch ask for it, and give them up where the stage keeps none.
 */
ZR_NODISCARD zr_status_t zr_grads_reduce(zr_grads_t *grads, zr_unit_t *unit);

/** The norm of the averaged gradients of all ranks. Work queued on compute from now on finds what
 * was kept. */
ZR_NODISCARD zr_status_t zr_grads_norm(zr_grads_t *grads, double *norm_p);

/** The gradients of a piece of state, [n_elems]: where zr_grads_wait_below says. */
void *zr_grads_of_piece(const zr_grads_t *grads, const zr_unit_t *unit, const zr_piece_t *piece);
