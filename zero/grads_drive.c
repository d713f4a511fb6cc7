/* Gradients on drives: see grads_drive_internal.h. */
#include "zero/grads_drive_internal.h"

/* ---- life ------------------------------------------------------------------------------------ */

/* Each way has half of the buffers, and at least one. */
static size_t n_buffers(const zr_grads_drive_t *drive) {
    size_t most = zr_base_n_state_buffers(drive->base);
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
                              .max_transfers = 2 * zr_swap_max_transfers(n_buffers(drive)),
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
                                 .write_behind = true,
                                 .is_idle = &base->does_alike_once};
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
    ZR_TRY(zr_swap_begin(drive->up, ZR_SWAP_READ, drive->wanted, drive->n_wanted));
    drive->is_reading = true;
    return zr_swap_expect_pauses(drive->up); /* its end does not wait for the stream */
}

/* What the last micro-batch of this step has put comes up in this one, and goes down again. */
zr_status_t zr_grads_drive_begin_micro_batch(zr_grads_drive_t *drive) {
    if (drive->n_pieces == 0)
        return ZR_OK;
    ZR_TRY(end_passes(drive));
    if (drive->base->progress.n_begins > 1) {
        zr_swap_item_t *put = drive->put;
        drive->put = drive->wanted;
        drive->wanted = put;
        drive->n_wanted = drive->n_put;
        ZR_TRY(begin_reading(drive));
    }
    drive->n_put = 0;
    return ZR_OK;
}

/* Not before there is something to put: a micro-batch whose units are updated in backward puts
 * nothing. What is put may be read before it is on the drive: the store waits for that. */
static zr_status_t begin_writing(zr_grads_drive_t *drive) {
    ZR_TRY(zr_swap_begin(drive->down, ZR_SWAP_FILL, drive->put, drive->n_pieces));
    drive->is_writing = true;
    return zr_swap_expect_pauses(drive->down);
}

zr_status_t zr_grads_drive_drop_step(zr_grads_drive_t *drive) {
    return end_passes(drive);
}

/* ---- pieces ---------------------------------------------------------------------------------- */

static zr_swap_item_t item_of(const zr_grads_drive_t *drive, const zr_piece_t *piece) {
    return zr_swap_item_of(drive->placement, piece, drive->extents.first);
}

zr_status_t zr_grads_drive_next(zr_grads_drive_t *drive, const zr_piece_t *piece, void **buffer_p) {
    if (!drive->is_writing)
        ZR_TRY(begin_writing(drive));
    ZR_TRY(zr_swap_next(drive->down, buffer_p));
    drive->put[drive->n_put++] = item_of(drive, piece);
    return ZR_OK;
}

zr_status_t zr_grads_drive_put(zr_grads_drive_t *drive, zr_stream_t *stream) {
    return zr_swap_done_behind(drive->down, stream);
}

zr_status_t zr_grads_drive_get(zr_grads_drive_t *drive, const zr_piece_t *piece, void **buffer_p) {
    zr_swap_item_t item = item_of(drive, piece);
    ZR_TRY(zr_swap_seek(drive->up, &item));
    return zr_swap_next(drive->up, buffer_p);
}

zr_status_t zr_grads_drive_release(zr_grads_drive_t *drive, zr_stream_t *stream) {
    return stream == NULL ? zr_swap_done(drive->up) : zr_swap_done_behind(drive->up, stream);
}

/* ---- the update ------------------------------------------------------------------------------ */

zr_status_t zr_grads_drive_begin_update(zr_grads_drive_t *drive, zr_unit_t *const *units,
                                        size_t n_units) {
    if (drive->n_pieces == 0)
        return ZR_OK;
    ZR_TRY(end_passes(drive));
    drive->n_wanted = 0;
    for (size_t i = 0; i < n_units; i++)
        drive->n_wanted +=
            zr_swap_list_items(drive->placement, units[i]->index, drive->extents.first,
                               drive->wanted + drive->n_wanted);
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
