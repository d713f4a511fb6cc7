/*
 * Gradients that wait on drives between their reduction and the update. Internal to zero/.
 *
 * They pass through staging buffers: those that go down are put behind the stream that copies them,
 * those that come up are read ahead. In a micro-batch that adds to earlier ones, sums come up in
 * the order in which the last micro-batch put them; for the update, in the order of its units.
 * Reductions in another order are followed.
 */
#pragma once

#include "offload/placement_internal.h"
#include "offload/swap_internal.h"
#include "zero/nvme_internal.h"
#include "zero/units_internal.h"

typedef struct zr_grads_drive {
    const zr_base_t *base;
    const zr_placement_t *placement; /* of gradients; its tensors are units, by index */
    size_t n_pieces;                 /* that wait on drives; 0: nothing of what follows is there */
    zr_extents_t extents;            /* of the units, by index */
    zr_store_t *store;               /* the runtime's */
    zr_swap_t *down, *up;
    zr_swap_item_t *put; /* [n_put, n_pieces in the end] by this micro-batch, in order */
    size_t n_put;
    zr_swap_item_t *wanted; /* [n_wanted] that come up, in order */
    size_t n_wanted;
    bool is_writing, is_reading; /* passes of down and up are open */
} zr_grads_drive_t;

/** Declare what the store will have. After gradients are placed. */
ZR_NODISCARD zr_status_t zr_grads_drive_declare(zr_grads_drive_t *drive, zr_units_t const *model,
                                                zr_nvme_t *nvme);
/** @param store  open; borrowed until destroy */
ZR_NODISCARD zr_status_t zr_grads_drive_create(zr_grads_drive_t *drive, zr_store_t *store);
/** No stream uses its buffers. */
void zr_grads_drive_destroy(zr_grads_drive_t *drive);

/** A micro-batch begins. Waits for nothing. */
ZR_NODISCARD zr_status_t zr_grads_drive_begin_micro_batch(zr_grads_drive_t *drive);
/** Forget the micro-batches so far. */
ZR_NODISCARD zr_status_t zr_grads_drive_drop_step(zr_grads_drive_t *drive);

/** A buffer for a piece that goes down. */
ZR_NODISCARD zr_status_t zr_grads_drive_next(zr_grads_drive_t *drive, const zr_piece_t *piece,
                                             void **buffer_p);
/** Put it, behind what the stream has to do now. */
ZR_NODISCARD zr_status_t zr_grads_drive_put(zr_grads_drive_t *drive, zr_stream_t *stream);

/** The gradients of a piece, in a buffer. */
ZR_NODISCARD zr_status_t zr_grads_drive_get(zr_grads_drive_t *drive, const zr_piece_t *piece,
                                            void **buffer_p);
/** They are no longer needed there, behind what the stream has to do now; NULL: now. */
ZR_NODISCARD zr_status_t zr_grads_drive_release(zr_grads_drive_t *drive, zr_stream_t *stream);

/** An update will go through the units in this order, or will be skipped; begin to read. */
ZR_NODISCARD zr_status_t zr_grads_drive_begin_update(zr_grads_drive_t *drive,
                                                     zr_unit_t *const *units, size_t n_units);
ZR_NODISCARD zr_status_t zr_grads_drive_end_update(zr_grads_drive_t *drive);

/** What it has moved, and waited for; zeros where nothing waits on drives. */
void zr_grads_drive_report(const zr_grads_drive_t *drive, zr_grads_report_t *report);
/** Seconds that this thread was blocked for its transfers. */
double zr_grads_drive_wait_seconds(const zr_grads_drive_t *drive);
