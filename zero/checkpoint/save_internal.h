/*
 * Parts of zr_runtime_save: which slices a rank saves (save_slices.c), and how they get to its
 * files (save_write.c). Internal to zero/checkpoint/.
 */
#pragma once

#include "zero/checkpoint/manifest_internal.h"
#include "zero/checkpoint/restore_internal.h"

/* What a rank saves of a unit's row of one kind: an extent of its data file. */
typedef struct zr_slice {
    size_t next_row; /* to look at */
    zr_unit_t *unit;
    int kind;
    size_t first; /* of the row's elements */
    size_t n_elems;
    size_t group_elems;
    int n_arrays;
    zr_dtype_t dtype; /* of the first */
    uint64_t n_bytes; /* of all arrays */
} zr_slice_t;

/* Who saves what: a function of the layout, the same on every rank. */
typedef struct zr_slices {
    zr_heap_t *heap;   /* of this, and of what writes them; borrowed */
    zr_state_t *state; /* whose units they are of; borrowed */
    int *owners; /* [n_units * N_FLATS]: the first rank that saves of a row; what is sharded, it and
                    those behind it of its group */
    size_t chunk_bytes; /* at whose multiples groups begin */
    int rank; /* whose slices are written here: the own ones; without data, as in a plan, those
                 whose tables are largest, so that a plan of one rank is that of all */
} zr_slices_t;

ZR_NODISCARD zr_status_t zr_slices_make(zr_heap_t *heap, zr_state_t *state, zr_slices_t *slices_p);
/** The next slice that a rank saves, in the order of its extents: for (zr_slice_t slice = {0};
 * zr_slices_next(slices, rank, &slice);). */
bool zr_slices_next(const zr_slices_t *slices, int rank, zr_slice_t *slice);
/** A slice as an extent of the rank's file. */
static inline zr_store_extent_t zr_slice_extent(const zr_slice_t *slice) {
    const zr_unit_t *unit = slice->unit;
    return (zr_store_extent_t){.name = slice->kind == FLAT_FROZEN ? unit->params_tensor
                                                                  : unit->state_tensor,
                               .size_bytes = slice->n_bytes};
}
/** Of a slice, in arrays of rows. */
static inline size_t zr_slice_row(const zr_slice_t *slice) {
    return slice->unit->index * N_FLATS + (size_t)slice->kind;
}

/* Where a slice has come to lie. */
typedef struct zr_written {
    uint64_t offset_bytes;
    uint64_t xxh3; /* of its checksums */
} zr_written_t;

/* A rank's files. */
typedef struct zr_written_file {
    uint64_t data_bytes;
    size_t n_chunks;
    zr_written_t *rows; /* [n_units * N_FLATS]; of those that this rank saves */
} zr_written_file_t;

/** Names of a rank's files. */
void zr_save_data_name(int rank, char name[64]);
void zr_save_sums_name(int rank, char name[64]);

/* ---- save_base.c ---- */

/** Link files of a checkpoint with frozen parameters into the folder of one in the making, whose
 * manifest has them from then on. ZR_ERR_IO; ZR_ERR_FORMAT; ZR_ERR_MEMORY. */
ZR_NODISCARD zr_status_t zr_base_link(const char *path, const zr_units_t *model,
                                      const char *partial, const zr_log_t *log, zr_manifest_t *to);

/* ---- save_memory.c ---- */

#define ZR_SAVE_N_STAGING_BUFFERS ((size_t)3)
/* State lies wherever the allocator has put it: few drives take it from there without a copy. */
#define ZR_SAVE_N_BOUNCE_BUFFERS ((size_t)8)

/* As transfers past the page cache want memory, mostly. */
#define ZR_SAVE_ALIGN_BYTES ((size_t)4096)

/** Where a piece begins in a copy. */
static inline uint64_t zr_save_aligned(uint64_t n_bytes) {
    return (n_bytes + ZR_SAVE_ALIGN_BYTES - 1) / ZR_SAVE_ALIGN_BYTES * ZR_SAVE_ALIGN_BYTES;
}
/** Host memory that a copy takes of what this rank has in memory and saves. */
size_t zr_save_copy_bytes(const zr_slices_t *slices);
/** Of each staging buffer; 0: nothing passes through any. */
size_t zr_save_staging_bytes(const zr_slices_t *slices, bool copies);
/** Whether all ranks have room for a copy; what they lack is said once. Collective. */
ZR_NODISCARD zr_status_t zr_save_find_room(zr_saves_t *saves, const zr_slices_t *slices,
                                           bool *copies_p);
/** save.c: whether it is true of all ranks. Collective. */
ZR_NODISCARD zr_status_t zr_save_all_say(zr_exchange_t *exchange, bool own, bool *all_p);

/** What a save is lent of the memory that a runtime holds which expects saves. Where a part is all
 * zeros, or is too small, it takes memory of its own. */
typedef struct zr_save_parts {
    zr_store_buffer_t bounce, staging, copy;
} zr_save_parts_t;
zr_save_parts_t zr_save_lend(const zr_saves_t *saves, const zr_slices_t *slices, bool copies);
/** Nothing is held any more. */
void zr_saves_release(zr_saves_t *saves);

/* ---- save_write.c ---- */

/** What writes this rank's slices into the folder of a checkpoint in the making. Not collective. */
typedef struct zr_save_writer zr_save_writer_t;

/**
 * Make the file, and what writes it.
 *
 * @param slices, folder  borrowed until destroy
 * @param copies          what is in memory is copied when it is taken; else it has to stay as it is
 *                        until the writer is destroyed
 * @return what the store and the allocator return
 */
ZR_NODISCARD zr_status_t zr_save_writer_create(const zr_saves_t *saves, const zr_slices_t *slices,
                                               const char *folder, bool copies,
                                               zr_save_writer_t **writer_p);

/**
 * Take what is saved: what is on NVMe is written now.
 *
 * @return what the store, the allocator and the device return
 */
ZR_NODISCARD zr_status_t zr_save_writer_take(zr_save_writer_t *writer);

/**
 * Write the rest; all of it is on the drive afterwards. By any thread, if only one at a time uses
 * the writer.
 *
 * @param file_p  its rows are the caller's, zeroed
 */
ZR_NODISCARD zr_status_t zr_save_writer_finish(zr_save_writer_t *writer, zr_written_file_t *file_p);

/** By the rank's thread. */
void zr_save_writer_destroy(zr_save_writer_t **writer);
