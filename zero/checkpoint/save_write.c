/*
 * A rank's files of a checkpoint: data through a store with a named file, so that it is hashed in
 * passing, goes past the page cache and has many requests under way; and then the checksums.
 *
 * Where the CPU can touch the state, the store takes it from where it is. From a device it comes
 * through staging buffers; from NVMe through the buffers of the swap pipeline, file to file, and
 * is verified on the way: what has gone bad is found when it is saved, not when it is needed.
 */
#include "zero/checkpoint/save_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <xxhash.h>

#include "offload/staging_internal.h"
#include "zero/checkpoint/file_internal.h"
#include "zero/checkpoint/folder_internal.h"

#define MOST_IN_FLIGHT ((size_t)32)

/* A put that is under way, and what has to be given back after it. */
typedef struct put {
    zr_store_ticket_t ticket;
    bool is_swapped; /* the oldest buffer of the swap pipeline */
} put_t;

/* Bytes that stay as they are until they have been put. */
typedef struct part {
    size_t extent;
    uint64_t offset;
    uint64_t n_bytes;
    const void *bytes;
    const uint64_t *sums; /* of its chunks, where they are known; else NULL */
    bool is_swapped;      /* it is a buffer of the swap pipeline */
} part_t;

struct zr_save_writer {
    const zr_base_t *base;
    const zr_exchange_t *exchange;
    zr_state_t *state;
    const zr_slices_t *slices;
    const char *folder;
    bool copies; /* what is in memory, so that the run goes on meanwhile */
    zr_save_parts_t lent;
    size_t n_extents;
    zr_store_t *store;
    zr_staging_t staging;
    size_t staging_bytes;       /* of each buffer; 0: there are none */
    uint64_t n_staged;          /* buffers used so far */
    put_t puts[MOST_IN_FLIGHT]; /* the oldest first, in a ring */
    size_t first_put, n_puts;
    size_t n_swapped; /* buffers of the swap pipeline that are given out */
    bool is_swapping; /* a pass is open */
    part_t *parts;    /* [n_parts] in memory, put when the writer finishes */
    size_t n_parts;
    char *copy;       /* where they are, when they were copied; NULL: where they live */
    void *copy_owned; /* its allocation; NULL: it is in what was lent */
    size_t copied_bytes;
};

void zr_save_data_name(int rank, char name[64]) {
    snprintf(name, 64, "rank-%05d.data", rank);
}

void zr_save_sums_name(int rank, char name[64]) {
    snprintf(name, 64, "rank-%05d.sums", rank);
}

/* ---- puts ------------------------------------------------------------------------------------ */

/* An error of the swap pipeline ends its pass. */
static zr_status_t note_swap(zr_save_writer_t *save, zr_status_t status) {
    save->is_swapping &= status == ZR_OK;
    return status;
}

static zr_status_t end_oldest(zr_save_writer_t *save) {
    put_t put = save->puts[save->first_put];
    save->first_put = (save->first_put + 1) % MOST_IN_FLIGHT;
    save->n_puts--;
    ZR_TRY(zr_store_wait(save->store, put.ticket));
    if (!put.is_swapped)
        return ZR_OK;
    save->n_swapped--;
    return note_swap(save, zr_swap_done(save->state->swap));
}

static zr_status_t put(zr_save_writer_t *save, const part_t *part) {
    put_t next = {.is_swapped = part->is_swapped};
    if (save->n_puts == MOST_IN_FLIGHT)
        ZR_TRY(end_oldest(save));
    if (part->sums != NULL)
        ZR_TRY(zr_store_put_hashed(save->store, part->extent, part->offset, part->n_bytes,
                                   part->bytes, part->sums, &next.ticket));
    else
        ZR_TRY(zr_store_put(save->store, part->extent, part->offset, part->n_bytes, part->bytes,
                            &next.ticket));
    save->puts[(save->first_put + save->n_puts++) % MOST_IN_FLIGHT] = next;
    return ZR_OK;
}

static zr_status_t end_puts(zr_save_writer_t *save) {
    while (save->n_puts != 0)
        ZR_TRY(end_oldest(save));
    return ZR_OK;
}

/* A staging buffer that nothing is under way from: all puts but those of the others have ended. */
static zr_status_t take_staging(zr_save_writer_t *save, char **buffer_p) {
    while (save->n_puts >= ZR_SAVE_N_STAGING_BUFFERS)
        ZR_TRY(end_oldest(save));
    *buffer_p = zr_staging_buffer(&save->staging, save->n_staged++ % ZR_SAVE_N_STAGING_BUFFERS);
    return ZR_OK;
}

/* ---- from where it lives --------------------------------------------------------------------- */

static zr_status_t put_from_device(zr_save_writer_t *save, size_t extent, uint64_t offset,
                                   uint64_t n_bytes, const char *device) {
    zr_stream_t *stream = save->base->compute;
    for (uint64_t done = 0; done < n_bytes; done += save->staging_bytes) {
        uint64_t left = n_bytes - done;
        size_t length = left < save->staging_bytes ? left : save->staging_bytes;
        char *buffer = NULL;
        ZR_TRY(take_staging(save, &buffer));
        ZR_TRY(zr_copy_async(stream, buffer, device + done, length, ZR_COPY_DEVICE_TO_HOST));
        ZR_TRY(zr_stream_synchronize(stream));
        part_t part = {extent, offset + done, length, buffer, NULL, false};
        ZR_TRY(put(save, &part));
    }
    return ZR_OK;
}

static bool needs_staging(const zr_base_t *base, zr_tier_t tier) {
    return tier == ZR_TIER_DEVICE && !zr_device_info(base->device)->host_addressable;
}

static void add_part(zr_save_writer_t *save, size_t extent, uint64_t offset, uint64_t n_bytes,
                     const void *bytes) {
    save->parts[save->n_parts++] =
        (part_t){.extent = extent, .offset = offset, .n_bytes = n_bytes, .bytes = bytes};
}

static zr_status_t copy_part(zr_save_writer_t *save, size_t extent, uint64_t offset,
                             uint64_t n_bytes, const void *bytes, zr_tier_t tier) {
    char *copy = save->copy + save->copied_bytes;
    save->copied_bytes += zr_save_aligned(n_bytes);
    add_part(save, extent, offset, n_bytes, copy);
    if (!zr_base_has_data(save->base))
        return ZR_OK;
    if (tier == ZR_TIER_DEVICE)
        return zr_copy_async(save->base->compute, copy, bytes, n_bytes, ZR_COPY_DEVICE_TO_HOST);
    memcpy(copy, bytes, n_bytes);
    return ZR_OK;
}

static zr_status_t put_resident(zr_save_writer_t *save, size_t extent, uint64_t offset,
                                uint64_t n_bytes, const void *bytes, zr_tier_t tier) {
    if (save->copy != NULL)
        return copy_part(save, extent, offset, n_bytes, bytes, tier);
    if (needs_staging(save->base, tier))
        return put_from_device(save, extent, offset, n_bytes, bytes);
    add_part(save, extent, offset, n_bytes, bytes);
    return ZR_OK;
}

/* What the store has verified when it was read has these; where its chunks are others, NULL. */
static const uint64_t *known_sums(const zr_save_writer_t *save, const zr_piece_t *piece) {
    const zr_state_t *state = save->state;
    size_t chunk = zr_store_info(state->store)->chunk_bytes, n_chunks;
    const uint64_t *sums =
        zr_store_checksums(state->store, zr_state_first_extent(state) + piece->tensor, &n_chunks);
    if (sums == NULL || chunk != save->slices->chunk_bytes)
        return NULL;
    return sums + piece->offset_bytes / chunk;
}

static zr_status_t put_swapped(zr_save_writer_t *save, const zr_piece_t *piece, part_t *part) {
    zr_state_t *state = save->state;
    size_t n_buffers = save->base->config.offload_optimizer.n_buffers;
    void *buffer = NULL;
    if (n_buffers > state->n_items)
        n_buffers = state->n_items;
    while (save->n_swapped + 1 >= n_buffers && save->n_swapped > 0)
        ZR_TRY(end_oldest(save));
    ZR_TRY(note_swap(save, zr_swap_next(state->swap, &buffer)));
    save->n_swapped++;
    part->bytes = buffer;
    part->sums = known_sums(save, piece);
    part->is_swapped = true;
    return put(save, part);
}

/* ---- with masters that are split ------------------------------------------------------------- */

/* Elements of a piece's masters, from what its state has of them. */
static zr_status_t take_masters(zr_save_writer_t *save, const zr_piece_t *piece, const char *kept,
                                size_t first, size_t n_elems, float *out) {
    zr_stream_t *stream = save->base->compute;
    float *device = save->exchange->staging_device;
    for (size_t n = 0; n_elems > 0; first += n, n_elems -= n, out += n) {
        n = n_elems < ZR_STAGING_ELEMS ? n_elems : ZR_STAGING_ELEMS;
        const char *rest = kept + zr_encoding_bytes(zr_state_encoding(save->state, 0), first);
        ZR_TRY(zr_state_join(save->state, piece, piece->first + first, n, rest, device, out));
        ZR_TRY(zr_copy_async(stream, out, device, n * sizeof(float), ZR_COPY_DEVICE_TO_HOST));
        ZR_TRY(zr_stream_synchronize(stream));
    }
    return ZR_OK;
}

/* Bytes of a piece from `begin` on, as it is saved: its masters, and the other arrays. */
static zr_status_t take_bytes(zr_save_writer_t *save, const zr_piece_t *piece, const char *arrays,
                              size_t begin, size_t n_bytes, char *out) {
    const zr_update_rule_t *rule = save->state->rule;
    size_t masters_bytes = piece->n_elems * sizeof(float);
    if (begin < masters_bytes) {
        size_t n = n_bytes < masters_bytes - begin ? n_bytes : masters_bytes - begin;
        ZR_TRY(take_masters(save, piece, arrays, begin / sizeof(float), n / sizeof(float),
                            (float *)out));
        begin += n;
        n_bytes -= n;
        out += n;
    }
    const char *others = arrays + zr_state_array_offset(rule, 1, piece->n_elems);
    if (piece->tier != ZR_TIER_DEVICE) {
        if (zr_base_has_data(save->base))
            memcpy(out, others + (begin - masters_bytes), n_bytes);
        return ZR_OK;
    }
    ZR_TRY(zr_copy_async(save->base->compute, out, others + (begin - masters_bytes), n_bytes,
                         ZR_COPY_DEVICE_TO_HOST));
    return zr_stream_synchronize(save->base->compute);
}

static zr_status_t put_joined(zr_save_writer_t *save, size_t extent, uint64_t offset,
                              const zr_piece_t *piece, const char *arrays) {
    size_t n_bytes = zr_state_saved_bytes(save->state, piece);
    if (save->copy != NULL && piece->tier != ZR_TIER_NVME) {
        char *copy = save->copy + save->copied_bytes;
        save->copied_bytes += zr_save_aligned(n_bytes);
        add_part(save, extent, offset, n_bytes, copy);
        return take_bytes(save, piece, arrays, 0, n_bytes, copy);
    }
    for (size_t done = 0, length = 0; done < n_bytes; done += length) {
        char *buffer = NULL;
        length = n_bytes - done < save->staging_bytes ? n_bytes - done : save->staging_bytes;
        ZR_TRY(take_staging(save, &buffer));
        ZR_TRY(take_bytes(save, piece, arrays, done, length, buffer));
        part_t part = {extent, offset + done, length, buffer, NULL, false};
        ZR_TRY(put(save, &part));
    }
    return ZR_OK;
}

static zr_status_t put_split(zr_save_writer_t *save, size_t extent, uint64_t offset,
                             const zr_unit_t *unit, const zr_piece_t *piece) {
    zr_state_t *state = save->state;
    void *buffer = NULL;
    if (piece->tier != ZR_TIER_NVME)
        return put_joined(save, extent, offset, piece,
                          zr_state_resident(state, unit, piece, state->side));
    ZR_TRY(note_swap(save, zr_swap_next(state->swap, &buffer)));
    save->n_swapped++;
    ZR_TRY(put_joined(save, extent, offset, piece, buffer));
    save->n_swapped--;
    return note_swap(save, zr_swap_done(state->swap));
}

/* All pieces of a unit's state that this rank saves: all that it has. */
static zr_status_t put_state(zr_save_writer_t *save, size_t extent, const zr_unit_t *unit) {
    const zr_placement_t *placement = &save->state->placement;
    uint64_t offset = 0;
    for (size_t i = placement->first_piece[unit->index];
         i < placement->first_piece[unit->index + 1]; i++) {
        const zr_piece_t *piece = &placement->pieces[i];
        uint64_t n_bytes = zr_state_saved_bytes(save->state, piece);
        part_t part = {.extent = extent, .offset = offset, .n_bytes = n_bytes};
        if (zr_state_splits(save->state))
            ZR_TRY(put_split(save, extent, offset, unit, piece));
        else if (piece->tier == ZR_TIER_NVME)
            ZR_TRY(put_swapped(save, piece, &part));
        else
            ZR_TRY(put_resident(save, extent, offset, n_bytes,
                                zr_state_resident(save->state, unit, piece, save->state->side),
                                piece->tier));
        offset += n_bytes;
    }
    return ZR_OK;
}

/* Frozen parameters in the runtime's store, as numbers. */
static zr_status_t put_looked_at(zr_save_writer_t *save, size_t extent, const zr_slice_t *slice) {
    size_t most = save->staging_bytes / sizeof(float);
    for (size_t first = 0, n_elems; first < slice->n_elems; first += n_elems) {
        char *buffer = NULL;
        n_elems = slice->n_elems - first < most ? slice->n_elems - first : most;
        ZR_TRY(take_staging(save, &buffer));
        ZR_TRY(zr_params_read(save->state->params, slice->unit, FLAT_FROZEN, first, n_elems,
                              (float *)buffer));
        part_t part = {extent, first * sizeof(float), n_elems * sizeof(float), buffer, NULL, false};
        ZR_TRY(put(save, &part));
    }
    return ZR_OK;
}

static zr_status_t put_slice(zr_save_writer_t *save, size_t extent, const zr_slice_t *slice) {
    const zr_unit_params_t *data = &slice->unit->data[slice->kind];
    if (slice->kind == FLAT_TRAINABLE)
        return put_state(save, extent, slice->unit);
    if (data->tier == ZR_TIER_NVME)
        return put_looked_at(save, extent, slice);
    return put_resident(save, extent, 0, slice->n_bytes, data->own, data->tier);
}

static zr_status_t put_slices(zr_save_writer_t *save) {
    size_t extent = 0;
    for (zr_slice_t slice = {0}; zr_slices_next(save->slices, save->slices->rank, &slice);)
        ZR_TRY(put_slice(save, extent++, &slice));
    return ZR_OK;
}

/* ---- the store ------------------------------------------------------------------------------- */

/* Extents are declared before there is a store; rows of the units, those of this rank. */
static size_t list_extents(const zr_save_writer_t *save, zr_store_extent_t *extents) {
    size_t n = 0;
    for (zr_slice_t slice = {0}; zr_slices_next(save->slices, save->slices->rank, &slice);)
        extents[n++] = zr_slice_extent(&slice);
    return n;
}

/* Of a checkpoint that is no more: what lies on the drive already takes less time to write over. */
static bool takes_spare(const char *folder, const char *name) {
    char *from = NULL, *to = NULL;
    bool is_taken = false;
    if (asprintf(&from, "%s/" ZR_FOLDER_SPARE_PREFIX "%s", folder, name) < 0)
        return false;
    if (asprintf(&to, "%s/%s", folder, name) >= 0) {
        is_taken = rename(from, to) == 0;
        free(to);
    }
    free(from);
    return is_taken;
}

static zr_status_t open_store(zr_save_writer_t *save, const char *folder,
                              const zr_store_extent_t *extents, size_t n_extents) {
    const zr_base_t *base = save->base;
    zr_store_options_t options = zr_nvme_store_options(base);
    char name[64];
    zr_save_data_name(base->rank, name);
    options.chunk_bytes = save->slices->chunk_bytes;
    options.max_transfers = MOST_IN_FLIGHT;
    options.n_bounce_buffers = ZR_SAVE_N_BOUNCE_BUFFERS;
    options.lent = save->lent.bounce;
    options.paths = &folder;
    options.n_paths = 1;
    options.file_name = name;
    options.overwrites = zr_base_has_data(base) && takes_spare(folder, name);
    const char *store = zr_base_has_data(base) ? zr_store_drive_backend(NULL) : "sim";
    return zr_store_create(store, &options, extents, n_extents, &save->store);
}

static zr_status_t make_staging(zr_save_writer_t *save) {
    const zr_base_t *base = save->base;
    save->staging_bytes = zr_save_staging_bytes(save->slices, save->copies);
    if (save->staging_bytes == 0)
        return ZR_OK;
    zr_staging_options_t options = {.log = &base->log,
                                    .allocator = base->allocator,
                                    .user = "save",
                                    .name = "staging of a checkpoint",
                                    .lent = save->lent.staging,
                                    .n_buffers = ZR_SAVE_N_STAGING_BUFFERS,
                                    .buffer_bytes = save->staging_bytes};
    return zr_staging_make(&options, save->store, &save->staging);
}

static zr_status_t begin_swap(zr_save_writer_t *save) {
    zr_state_t *state = save->state;
    ZR_TRY(zr_state_settle(state));
    zr_unit_t **units = zr_heap_alloc(save->slices->heap, state->model->n_units, sizeof(*units));
    size_t n_units = 0;
    if (units == NULL)
        return zr_base_no_memory(save->base, zr_count_text(state->model->n_units, "unit").text);
    for (zr_slice_t slice = {0}; zr_slices_next(save->slices, save->slices->rank, &slice);)
        if (slice.kind == FLAT_TRAINABLE)
            units[n_units++] = slice.unit;
    zr_state_list_items(state, units, n_units);
    zr_heap_free(save->slices->heap, units);
    ZR_TRY(zr_swap_begin(state->swap, ZR_SWAP_READ, state->items, state->n_items));
    save->is_swapping = true;
    return ZR_OK;
}

static zr_status_t end_swap(zr_save_writer_t *save) {
    ZR_TRY(end_puts(save));
    if (!save->is_swapping)
        return ZR_OK;
    save->is_swapping = false;
    return zr_swap_end(save->state->swap);
}

/* After an error the pass may be open, with buffers given out: when nothing is under way from them
 * they go back. How the puts have ended has been said. */
static zr_status_t give_up(zr_save_writer_t *save, zr_status_t status) {
    zr_swap_t *swap = save->state->swap;
    zr_status_t ended = save->store == NULL ? ZR_OK : zr_store_wait_all(save->store);
    for (; save->is_swapping && save->n_swapped > 0; save->n_swapped--)
        ended = note_swap(save, zr_swap_done(swap));
    if (save->is_swapping)
        ended = zr_swap_end(swap);
    return status != ZR_OK ? status : ended;
}

/* ---- checksums ------------------------------------------------------------------------------- */

static zr_status_t write_sums_to(const zr_save_writer_t *save, const zr_file_t *file,
                                 size_t *n_chunks_p) {
    size_t n_all = 0;
    for (size_t i = 0; i < save->n_extents; i++) {
        size_t n_chunks = 0;
        const uint64_t *sums = zr_store_checksums(save->store, i, &n_chunks);
        ZR_TRY(zr_file_write(file, n_all * sizeof(*sums), sums, n_chunks * sizeof(*sums),
                             &save->base->log));
        n_all += n_chunks;
    }
    *n_chunks_p = n_all;
    return ZR_OK;
}

static zr_status_t write_sums(const zr_save_writer_t *save, size_t *n_chunks_p) {
    const zr_log_t *log = &save->base->log;
    zr_file_t file = {.fd = -1};
    char name[64];
    int fd = -1;
    zr_save_sums_name(save->base->rank, name);
    ZR_TRY(zr_folder_open(save->folder, log, &fd));
    zr_status_t status = zr_file_create(fd, save->folder, name, log, &file);
    close(fd);
    ZR_TRY(status);
    status = write_sums_to(save, &file, n_chunks_p);
    if (status == ZR_OK)
        return zr_file_sync_and_close(&file, log);
    zr_file_close(&file);
    return status;
}

/* ---- all of it ------------------------------------------------------------------------------- */

static void note_rows(const zr_save_writer_t *save, zr_written_file_t *file) {
    size_t extent = 0, n_chunks = 0;
    for (zr_slice_t slice = {0}; zr_slices_next(save->slices, save->slices->rank, &slice);) {
        const uint64_t *sums = zr_store_checksums(save->store, extent, &n_chunks);
        zr_written_t *row = &file->rows[zr_slice_row(&slice)];
        row->offset_bytes = zr_store_file_offset(save->store, extent++);
        row->xxh3 = XXH3_64bits(sums, n_chunks * sizeof(*sums));
    }
}

static zr_status_t place_copy(zr_save_writer_t *save) {
    size_t size_bytes = zr_save_copy_bytes(save->slices);
    if (size_bytes == 0)
        return ZR_OK;
    save->copy = zr_store_buffer_fit(&save->lent.copy, size_bytes, ZR_SAVE_ALIGN_BYTES);
    if (save->copy != NULL)
        return ZR_OK;
    ZR_TRY(zr_base_allocate_host(save->base, size_bytes, ZR_TAG_STAGING, "copy for a checkpoint",
                                 &save->copy_owned));
    save->copy = save->copy_owned;
    return ZR_OK;
}

static zr_status_t begin(zr_save_writer_t *save) {
    const zr_state_t *state = save->state;
    size_t n_rows = state->model->n_units * N_FLATS;
    size_t most_parts = state->placement.n_pieces + n_rows + 1;
    zr_store_extent_t *extents = zr_heap_alloc(save->slices->heap, n_rows, sizeof(*extents));
    save->parts = zr_heap_alloc(save->slices->heap, most_parts, sizeof(*save->parts));
    if (extents == NULL || save->parts == NULL)
        return zr_base_no_memory(save->base, "extents");
    save->n_extents = list_extents(save, extents);
    if (save->n_extents != 0)
        ZR_TRY(open_store(save, save->folder, extents, save->n_extents));
    zr_heap_free(save->slices->heap, extents);
    return ZR_OK;
}

zr_status_t zr_save_writer_create(const zr_saves_t *saves, const zr_slices_t *slices,
                                  const char *folder, bool copies, zr_save_writer_t **writer_p) {
    zr_save_writer_t *save = zr_heap_alloc(slices->heap, 1, sizeof(*save));
    if (save == NULL)
        return zr_base_no_memory(saves->base, "what writes a checkpoint");
    *save = (zr_save_writer_t){.base = saves->base,
                               .exchange = saves->exchange,
                               .state = slices->state,
                               .slices = slices,
                               .folder = folder,
                               .copies = copies,
                               .lent = zr_save_lend(saves, slices, copies)};
    zr_status_t status = begin(save);
    if (status != ZR_OK)
        zr_save_writer_destroy(&save);
    else
        *writer_p = save;
    return status;
}

static zr_status_t take(zr_save_writer_t *save) {
    if (save->copies)
        ZR_TRY(place_copy(save));
    ZR_TRY(make_staging(save));
    if (save->state->swap != NULL)
        ZR_TRY(begin_swap(save));
    ZR_TRY(put_slices(save));
    ZR_TRY(end_swap(save));
    return zr_stream_synchronize(save->base->compute);
}

zr_status_t zr_save_writer_take(zr_save_writer_t *save) {
    zr_state_t *state = save->state;
    if (save->n_extents == 0)
        return ZR_OK;
    zr_status_t status = take(save);
    zr_state_list_updates(state);
    return status == ZR_OK ? ZR_OK : give_up(save, status);
}

static zr_status_t put_parts(zr_save_writer_t *save) {
    for (size_t i = 0; i < save->n_parts; i++)
        ZR_TRY(put(save, &save->parts[i]));
    return end_puts(save);
}

zr_status_t zr_save_writer_finish(zr_save_writer_t *save, zr_written_file_t *file_p) {
    if (save->n_extents == 0)
        return ZR_OK;
    ZR_TRY(put_parts(save));
    ZR_TRY(zr_store_sync(save->store));
    file_p->data_bytes = zr_store_info(save->store)->reserved_bytes;
    if (!zr_base_has_data(save->base))
        return ZR_OK;
    ZR_TRY(write_sums(save, &file_p->n_chunks));
    note_rows(save, file_p);
    return ZR_OK;
}

void zr_save_writer_destroy(zr_save_writer_t **writer) {
    zr_save_writer_t *save = *writer;
    if (save == NULL)
        return;
    zr_staging_clear(&save->staging);
    zr_store_destroy(&save->store);
    zr_free(save->base->allocator, &save->copy_owned, NULL);
    *writer = NULL;
}
