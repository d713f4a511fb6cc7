/*
 * Summed gradients: how a micro-batch's meet those of the other ranks, and where what this rank
 * keeps of them waits for the update. Internal to zero/.
 *
 * A stage that keeps full gradients (0 and 1) has them on the device. A shard has a placement of
 * its own, in the pieces of the state: what has its state on the device stays there, and of the
 * rest as much as config says (zr_base_offloads_grads) waits in host memory or on drives
 * (grads_drive_internal.h). The device then holds one bucket at a time, and the rest. Whatever is
 * kept where, the same sums are made in the same order.
 */
#pragma once

#include "zero/copies_internal.h"
#include "zero/encoded_internal.h"
#include "zero/grads_drive_internal.h"

typedef struct zr_grads {
    const zr_base_t *base;
    const zr_units_t *model;
    const zr_placement_t *state; /* its placement */
    zr_copies_t *copies;
    zr_placement_t placement; /* of gradients, in the same pieces; without any: on the device */
    size_t n_below;           /* pieces that wait elsewhere */
    zr_grads_drive_t drive;   /* of those in the store */
    size_t bytes[ZR_N_TIERS]; /* that are kept between micro-batches */
    zr_unit_t **reduced;      /* [n_reduced] in the last micro-batch, in order; of [n_units] */
    size_t n_reduced;
    double *norms_device; /* [n_shards][n_units]: partial sums of squares */
    double *norms_host;
    void *norm_workspace;
} zr_grads_t;

/** Make what norms need. After the layout. */
ZR_NODISCARD zr_status_t zr_grads_create(zr_grads_t *grads);
void zr_grads_destroy(zr_grads_t *grads);

/** Decide where the gradients of all pieces of the state wait, once these are placed, and declare
 * what of them the store will have. */
ZR_NODISCARD zr_status_t zr_grads_place(zr_grads_t *grads, zr_nvme_t *nvme);

/** The tier where the gradients of a piece of state wait. */
zr_tier_t zr_grads_tier(const zr_grads_t *grads, const zr_piece_t *piece);

/**
 * Whether work on the pieces [.., end) of state of a unit leaves out piece i: where what is alike
 * is done once, all but the last and the first of those with the same tiers.
 *
 * @param seen  0 before the first piece; which kinds there were
 */
bool zr_grads_leaves_out(const zr_grads_t *grads, size_t i, size_t end, uint32_t *seen);

/** Allocate what a unit keeps between micro-batches. After its state is placed. */
ZR_NODISCARD zr_status_t zr_grads_allocate(zr_grads_t *grads, zr_unit_t *unit);

/** Whether a unit's shard is summed in its slice of the full gradients, and then taken from there,
 * piece by piece. */
static inline bool zr_grads_in_pieces(const zr_unit_t *unit) {
    return unit->grads_are_split || zr_base_updates_in_backward(unit->base);
}

/**
 * Reduce a unit's full gradients, which are complete and on the compute stream, as far as stage
 * and micro-batch ask for it, and give them up where the stage keeps none.
 */
ZR_NODISCARD zr_status_t zr_grads_reduce(zr_grads_t *grads, zr_unit_t *unit);

/** What was left out of what was sent so far is forgotten, on the transfer stream. */
ZR_NODISCARD zr_status_t zr_grads_forget_errors(zr_grads_t *grads);

/** The norm of the averaged gradients of all ranks. Work queued on compute from now on finds what
 * was kept. */
ZR_NODISCARD zr_status_t zr_grads_norm(zr_grads_t *grads, double *norm_p);

/** The gradients of a piece of state, [n_elems], where zr_grads_tier says; NULL: on drives. */
void *zr_grads_of_piece(const zr_grads_t *grads, const zr_unit_t *unit, const zr_piece_t *piece);
/** Those that are on drives, in a buffer, until zr_grads_drive_release. */
ZR_NODISCARD zr_status_t zr_grads_bring(zr_grads_t *grads, const zr_piece_t *piece, void **grads_p);

void zr_grads_report(const zr_grads_t *grads, zr_grads_report_t *report_p);
