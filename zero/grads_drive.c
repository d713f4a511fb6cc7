/* Gradients on drives: see grads_drive_internal.h. */
#include "zero/grads_drive_internal.h"

#include <string.h>

/* ---- life ------------------------------------------------------------------------------------ */

/* Each way has half of the buffers, and at least one. */
static size_t n_buffers(const zr_grads_drive_t *drive) {
    size_t most = drive->base->config.offload_optimizer.n_buffers;
    size_t n = most > 2 ? most / 2 : 1;
    return n < drive->n_pieces ? n : drive->n_pieces;
}

zr_status_t zr_grads_drive_declare(zr_grads_drive_t *drive, const zr_units_t *model,
                                   zr_nvme_t *nvme) {
    static const char *const advice[] = {"--offload-gradients cpu or none",
                                         "a lower --offload-gradients-ratio",
                                         "a larger --gradients-in-host", "more --ranks", NULL};
    const zr_base_t *base = drive->base;
    drive->n_pieces = drive->placement->n_pieces_in[ZR_TIER_NVME];
    if (drive->n_pieces == 0)
        return ZR_OK;
    zr_store_extent_t *extents = zr_heap_alloc(base->heap, model->n_units, sizeof(*extents));
    drive->put = zr_heap_alloc(base->heap, drive->n_pieces, sizeof(*drive->put));
    drive->wanted = zr_heap_alloc(base->heap, drive->n_pieces, sizeof(*drive->wanted));
    if (extents == NULL || drive->put == NULL || drive->wanted == NULL)
        return zr_base_no_memory(base, zr_count_text(drive->n_pieces, "piece").text);
    for (size_t i = 0; i < model->n_units; i++)
        extents[i] =
            (zr_store_extent_t){.name = model->units[i]->grads_tensor,
                                .size_bytes = drive->placement->tensor_bytes[i][ZR_TIER_NVME]};
    zr_extents_desc_t desc = {.name = "gradients",
                              .extents = extents,
                              .n_extents = model->n_units,
                              .unit_bytes = zr_base_bytes(base, drive->placement->group_elems),
                              .max_transfers = 2 * (2 * n_buffers(drive) + 2),
                              .advice = advice};
    zr_status_t status = zr_nvme_declare(nvme, &desc, &drive->extents);
    zr_heap_free(base->heap, extents);
    return status;
}

zr_status_t zr_grads_drive_create(zr_grads_drive_t *drive, zr_store_t *store) {
    const zr_base_t *base = drive->base;
    if (drive->n_pieces == 0)
        return ZR_OK;
    drive->store = store;
    zr_swap_options_t options = {.log = base->log,
                                 .allocator = base->allocator,
                                 .device = base->device,
                                 .n_buffers = n_buffers(drive),
                                 .buffer_bytes = drive->placement->largest_bytes[ZR_TIER_NVME],
                                 .read_ahead = true,
                                 .write_behind = true};
    ZR_TRY(zr_swap_create(&options, store, &drive->down));
    return zr_swap_create(&options, store, &drive->up);
}

void zr_grads_drive_destroy(zr_grads_drive_t *drive) {
    zr_swap_destroy(&drive->down);
    zr_swap_destroy(&drive->up);
}

/* ---- passes ---------------------------------------------------------------------------------- */

static zr_status_t end_passes(zr_grads_drive_t *drive) {
    bool is_writing = drive->is_writing, is_reading = drive->is_reading;
    drive->is_writing = drive->is_reading = false;
    ZR_TRY(is_writing ? zr_swap_end(drive->down) : ZR_OK);
    return is_reading ? zr_swap_end(drive->up) : ZR_OK;
}

static zr_status_t begin_reading(zr_grads_drive_t *drive) {
    ZR_TRY(zr_swap_begin(drive->up, ZR_SWAP_READ, drive->wanted + drive->n_taken,
                         drive->n_wanted - drive->n_taken));
    drive->is_reading = true;
    return ZR_OK;
}

/* What the last micro-batch of this step has put comes up in this one, and goes down again. */
static zr_status_t begin_micro_batch(zr_grads_drive_t *drive) {
    drive->is_due = false;
    ZR_TRY(end_passes(drive));
    if (drive->base->progress.n_begins > 1) {
        zr_swap_item_t *put = drive->put;
        drive->put = drive->wanted;
        drive->wanted = put;
        drive->n_wanted = drive->n_put;
        drive->n_taken = 0;
        ZR_TRY(begin_reading(drive));
    }
    drive->n_put = 0;
    ZR_TRY(zr_swap_begin(drive->down, ZR_SWAP_FILL, drive->put, drive->n_pieces));
    drive->is_writing = true;
    return ZR_OK;
}

void zr_grads_drive_begin_micro_batch(zr_grads_drive_t *drive) {
    drive->is_due = drive->n_pieces != 0;
}

zr_status_t zr_grads_drive_progress(zr_grads_drive_t *drive) {
    if (drive->n_pieces == 0)
        return ZR_OK;
    ZR_TRY(zr_swap_progress(drive->down));
    ZR_TRY(zr_swap_progress(drive->up));
    return drive->is_due && zr_swap_is_done(drive->down) ? begin_micro_batch(drive) : ZR_OK;
}

zr_status_t zr_grads_drive_drop_step(zr_grads_drive_t *drive) {
    drive->is_due = false;
    return end_passes(drive);
}

/* ---- pieces ---------------------------------------------------------------------------------- */

static zr_swap_item_t item_of(const zr_grads_drive_t *drive, const zr_piece_t *piece) {
    return (zr_swap_item_t){.extent = drive->extents.first + piece->tensor,
                            .offset_bytes = piece->offset_bytes,
                            .size_bytes = zr_piece_bytes(drive->placement, piece)};
}

zr_status_t zr_grads_drive_next(zr_grads_drive_t *drive, const zr_piece_t *piece, void **buffer_p) {
    if (drive->is_due)
        ZR_TRY(begin_micro_batch(drive));
    ZR_TRY(zr_swap_next(drive->down, buffer_p));
    drive->put[drive->n_put++] = item_of(drive, piece);
    return ZR_OK;
}

zr_status_t zr_grads_drive_put(zr_grads_drive_t *drive, zr_stream_t *stream) {
    return zr_swap_done_behind(drive->down, stream);
}

static bool is_same(const zr_swap_item_t *a, const zr_swap_item_t *b) {
    return a->extent == b->extent && a->offset_bytes == b->offset_bytes;
}

/* Bring the items from `at` on before those from `first` on. */
static zr_status_t rotate(zr_grads_drive_t *drive, size_t first, size_t at) {
    size_t n = at - first, n_rest = drive->n_wanted - at;
    zr_swap_item_t *moved = zr_heap_alloc(drive->base->heap, n, sizeof(*moved));
    if (moved == NULL)
        return zr_base_no_memory(drive->base, zr_count_text(n, "piece").text);
    memcpy(moved, drive->wanted + first, n * sizeof(*moved));
    memmove(drive->wanted + first, drive->wanted + at, n_rest * sizeof(*moved));
    memcpy(drive->wanted + first + n_rest, moved, n * sizeof(*moved));
    zr_heap_free(drive->base->heap, moved);
    return ZR_OK;
}

/* Make a piece the next one that comes up. */
static zr_status_t seek(zr_grads_drive_t *drive, const zr_piece_t *piece) {
    zr_swap_item_t item = item_of(drive, piece);
    size_t at = drive->n_taken;
    while (at < drive->n_wanted && !is_same(&drive->wanted[at], &item))
        at++;
    if (at == drive->n_wanted)
        return zr_fail(&drive->base->log, ZR_ERR_STATE,
                       "gradients of \"%s\" are wanted, and were not put in this step",
                       zr_store_extent(drive->store, item.extent)->name);
    if (at == drive->n_taken)
        return ZR_OK;
    drive->is_reading = false;
    ZR_TRY(zr_swap_end(drive->up));
    ZR_TRY(rotate(drive, drive->n_taken, at));
    return begin_reading(drive);
}

zr_status_t zr_grads_drive_get(zr_grads_drive_t *drive, const zr_piece_t *piece, void **buffer_p) {
    if (drive->is_due)
        ZR_TRY(begin_micro_batch(drive));
    ZR_TRY(seek(drive, piece));
    drive->n_taken++;
    return zr_swap_next(drive->up, buffer_p);
}

zr_status_t zr_grads_drive_release(zr_grads_drive_t *drive, zr_stream_t *stream) {
    return stream == NULL ? zr_swap_done(drive->up) : zr_swap_done_behind(drive->up, stream);
}

/* ---- the update ------------------------------------------------------------------------------ */

zr_status_t zr_grads_drive_begin_update(zr_grads_drive_t *drive, zr_unit_t *const *units,
                                        size_t n_units) {
    const zr_placement_t *placement = drive->placement;
    if (drive->n_pieces == 0)
        return ZR_OK;
    ZR_TRY(end_passes(drive));
    drive->n_wanted = drive->n_taken = 0;
    for (size_t i = 0; i < n_units; i++) {
        size_t end = placement->first_piece[units[i]->index + 1];
        for (size_t p = placement->first_piece[units[i]->index]; p < end; p++)
            if (placement->pieces[p].tier == ZR_TIER_NVME)
                drive->wanted[drive->n_wanted++] = item_of(drive, &placement->pieces[p]);
    }
    return begin_reading(drive);
}

zr_status_t zr_grads_drive_end_update(zr_grads_drive_t *drive) {
    return end_passes(drive);
}

/* ---- report ---------------------------------------------------------------------------------- */

void zr_grads_drive_report(const zr_grads_drive_t *drive, zr_grads_report_t *report) {
    zr_swap_statistics_t swap;
    if (drive->up == NULL)
        return;
    zr_swap_statistics(drive->up, &swap);
    report->has_store = true;
    report->store = *zr_store_info(drive->store);
    report->staging_bytes = 2 * swap.host_bytes;
    zr_store_account_statistics(drive->store, drive->extents.account, &report->all);
}

double zr_grads_drive_wait_seconds(const zr_grads_drive_t *drive) {
    zr_store_statistics_t all;
    if (drive->store == NULL)
        return 0;
    zr_store_account_statistics(drive->store, drive->extents.account, &all);
    return all.wait_seconds[ZR_STORE_PUT] + all.wait_seconds[ZR_STORE_GET];
}
