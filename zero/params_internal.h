/*
 * Shards of parameters that do not live on the device: in host memory, or in a store. Stage 3.
 * Internal to zero/. Where nothing is offloaded (zr_base_offloads_params), calls do nothing. A
 * fraction may stay on the device, in whole shards of flat buffers: those (zr_unit_is_offloaded)
 * are none of this file's business but for their placement.
 *
 * A gather brings this rank's shard straight to its place in the gathered buffer, and the
 * all-gather is then in place: the device needs no memory for shards. What is in a store comes in
 * parts, each at most a staging buffer. The parts that a micro-batch reads are recorded, and read
 * ahead of the gathers of the next one, as far as there are buffers. Updates write parts from
 * their beginning to their end, with the writes of the last ones going on meanwhile.
 */
#pragma once

#include "offload/swap_internal.h"
#include "zero/nvme_internal.h"
#include "zero/units_internal.h"

/* Parts as the last micro-batch read them; position have been read in this one. */
typedef struct zr_read_order {
    zr_swap_item_t *parts; /* [n] */
    size_t n, capacity;
    size_t position;
} zr_read_order_t;

typedef struct zr_params {
    const zr_base_t *base;
    const zr_units_t *model;
    bool is_direct;          /* the device's kernels work on host memory, at once */
    bool is_read_by_updates; /* they are masters, or a half of them: from where they live, or */
    bool is_taken_gathered;  /* from the gathered buffer */
    size_t bytes[ZR_N_TIERS];
    size_t n_in_host; /* elements that stay there of what goes to a store */
    size_t n_buffers;
    size_t part_bytes; /* of what is moved, and written, at a time */

    zr_store_t *store;    /* the runtime's; NULL: nothing is on NVMe */
    zr_extents_t extents; /* of shards of flat buffers: N_FLATS for each unit */
    zr_swap_t *swap;
    zr_swap_t *own_writes; /* of updates in backward, which gathers read beside; else NULL */
    zr_swap_t *writes;     /* of updates: own_writes or swap */
    zr_swap_t *filled_by;  /* the one that has a pass open which writes */
    zr_swap_item_t *parts; /* [n_parts] in the order of units and flat buffers */
    size_t n_parts;
    zr_swap_item_t *updated; /* [n_updated] those that updates write */
    size_t n_updated;

    /* Reading. */
    zr_read_order_t orders[2]; /* of a micro-batch, and of an evaluation's */
    bool is_reading; /* a pass of the swap pipeline is open, over an order, or over one shard that
                        was not foreseen */
    const zr_read_order_t *ahead; /* it is over this one, and nothing of it was taken */
    uint64_t n_foreseen;          /* parts that were the next of their order */

    void *writing;             /* buffer of the part that is being written, or NULL */
    bool is_written_on_device; /* some of it */

    uint64_t copied_up_bytes;
    uint64_t copied_down_bytes;
    zr_store_statistics_t filled; /* after commit */
    zr_params_reads_t gathers;
    zr_store_count_t inspected; /* got by zr_params_read */
    double look_seconds;
} zr_params_t;

/** Say where shards live, and declare those that the store will have. After the layout. */
ZR_NODISCARD zr_status_t zr_params_place(zr_params_t *params, zr_nvme_t *nvme);
/** As many buffers as its configuration has by now, or as there are parts. */
void zr_params_use_buffers(zr_params_t *params);
/** What part of the trainable shards is on the device, 0 to 1, when they are placed. */
double zr_params_part_on_device(const zr_params_t *params);
/** Make what moves them. @param store  open; borrowed until destroy */
ZR_NODISCARD zr_status_t zr_params_create(zr_params_t *params, zr_store_t *store);
/** Free everything but the shards in host memory. No stream uses it any more. */
void zr_params_destroy(zr_params_t *params);
/** Allocate the shard of a flat buffer, if it lives in host memory. */
ZR_NODISCARD zr_status_t zr_params_allocate(zr_params_t *params, zr_unit_t *unit, int kind);

/** Set initial values: begin, all shards in the order of units and flat buffers, end. */
ZR_NODISCARD zr_status_t zr_params_begin_fill(zr_params_t *params);
ZR_NODISCARD zr_status_t zr_params_fill(zr_params_t *params, zr_unit_t *unit, int kind,
                                        size_t first, size_t n_elems, const float *values);
ZR_NODISCARD zr_status_t zr_params_end_fill(zr_params_t *params);

/** The next micro-batch will come, or begins, or that of an evaluation: start to read what the last
 * one read. What is read otherwise before it begins ends that. */
ZR_NODISCARD zr_status_t zr_params_read_ahead(zr_params_t *params);
/** End the reads that are under way: what was read ahead and not taken is dropped. */
ZR_NODISCARD zr_status_t zr_params_close_reads(zr_params_t *params);
/**
 * Queue, on the transfer stream, all of a flat buffer's shard to device memory.
 *
 * @param target  [shard_elems], its first user is the transfer stream
 */
ZR_NODISCARD zr_status_t zr_params_fetch(zr_params_t *params, zr_unit_t *unit, int kind,
                                         void *target);

/** An update: begin, writes of all trainable shards from their beginning to their end, end. */
ZR_NODISCARD zr_status_t zr_params_begin_update(zr_params_t *params);
ZR_NODISCARD zr_status_t zr_params_end_update(zr_params_t *params);

/** Elements of a shard that are about to be written. */
typedef struct zr_params_write {
    size_t first;        /* of the shard */
    size_t n_elems;      /* in: wanted, > 0; out: as many as lie together */
    zr_stream_t *stream; /* of the kernel that writes them; NULL: the CPU does */
    void *target;    /* out: where to; with is_read_by_updates, in an update, also what is there */
    void *on_device; /* out: == target where that is the device's, until close; else NULL */
} zr_params_write_t;

ZR_NODISCARD zr_status_t zr_params_open_write(zr_params_t *params, zr_unit_t *unit, int kind,
                                              zr_params_write_t *write);
/** The target is written: queued, where the stream is the compute stream, else done. */
ZR_NODISCARD zr_status_t zr_params_close_write(zr_params_t *params, zr_unit_t *unit, int kind,
                                               zr_params_write_t *write);

/** Elements of a shard as numbers, outside of micro-batches. */
ZR_NODISCARD zr_status_t zr_params_read(zr_params_t *params, const zr_unit_t *unit, int kind,
                                        size_t first, size_t n_elems, float *values);

/** New values of elements of a shard, outside of micro-batches and updates. Nothing that uses them
 * is queued. */
ZR_NODISCARD zr_status_t zr_params_write(zr_params_t *params, zr_unit_t *unit, int kind,
                                         size_t first, size_t n_elems, const float *values);

void zr_params_report(const zr_params_t *params, zr_params_report_t *report_p);
/** Seconds that this thread was blocked for transfers of gathers and updates. */
double zr_params_wait_seconds(const zr_params_t *params);
